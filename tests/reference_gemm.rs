//! The reference product against the f64 bound: every pair, output and epilogue, odd shapes, special values, refusals.

use ndarray::{Array2, ArrayView2};
use scaled_gemm::codec::round_to;
use scaled_gemm::pair::check_pair;
use scaled_gemm::reference::{
    Accumulator, BlockSum, Gelu, GemmInputs, dequantize, gemm_bound, quantize, scaled_gemm, scaled_gemm_amax, sqnr_db,
};
use scaled_gemm::{Activation, DType, Error, Fp8Format, HostQuantMatrix, Recipe, Scheme};

const E4M3: Fp8Format = Fp8Format::E4M3;
const E5M2: Fp8Format = Fp8Format::E5M2;

fn matrix(rows: usize, cols: usize, seed: u32) -> Array2<f32> {
    let mut state = seed.wrapping_mul(2654435761).wrapping_add(99);
    Array2::from_shape_fn((rows, cols), |(i, j)| {
        state = state.wrapping_mul(1664525).wrapping_add(1013904223);
        let v = (state >> 8) as f32 / (1 << 23) as f32 - 1.0;
        // Rows, and blocks of rows and columns, of very different size: a scale taken from a wrong place shows.
        v * 2f32.powi((i % 7) as i32 - 3 + (i / 128 % 2 * 4) as i32 - (j / 128 % 3 * 2) as i32)
    })
}

fn operand(rows: usize, cols: usize, seed: u32, scheme: Scheme) -> HostQuantMatrix {
    quantize(matrix(rows, cols, seed).view(), DType::F32, Recipe::new(scheme)).unwrap()
}

fn pairs() -> impl Iterator<Item = (Scheme, Scheme)> {
    let all = Scheme::ALL.into_iter().flat_map(|a| Scheme::ALL.into_iter().map(move |b| (a, b)));
    all.filter(|(a, b)| check_pair(*a, *b, "cpu").is_ok())
}

fn is_tensor(scheme: Scheme) -> bool {
    scheme == Scheme::Fp8Tensor(E4M3) || scheme == Scheme::Fp8Tensor(E5M2)
}

/// Checks against the FP32 bound, and that the tensor core bounds are wider but not vacuous.
#[track_caller]
fn check(inputs: &GemmInputs<'_>, what: &str) -> Array2<f32> {
    let d = scaled_gemm(inputs).unwrap();
    let bound = gemm_bound(inputs, Accumulator::Fp32, Gelu::Ieee).unwrap();
    bound.check(d.view()).unwrap_or_else(|e| panic!("{what}: {e}"));
    d
}

#[test]
fn every_pair_output_and_epilogue_is_within_the_bound() {
    let (m, n, k) = (19, 272, 400);
    let bias: Vec<f32> = (0..n).map(|j| round_to(DType::Bf16, (j as f32 - 100.0) / 7.0)).collect();
    let residual = matrix(m, n, 77).mapv(|v| round_to(DType::F16, v));
    let c = matrix(m, n, 78);
    for (sa, sb) in pairs() {
        let (a, b) = (operand(m, k, 1, sa), operand(n, k, 2, sb));
        for out in [DType::Bf16, DType::F16, DType::F32, DType::E4m3] {
            if out == DType::E4m3 && !is_tensor(sa) {
                continue;
            }
            for activation in Activation::ALL {
                for (with_bias, with_residual, with_c) in
                    [(false, false, false), (true, false, false), (false, true, true), (true, true, true)]
                {
                    let inputs = GemmInputs {
                        alpha: if with_bias { 1.0 } else { -0.75 },
                        bias: with_bias.then_some((&bias[..], DType::Bf16)),
                        residual: with_residual.then_some((residual.view(), DType::F16)),
                        accumulate: (with_c && out == DType::F32).then_some((0.3, c.view())),
                        activation,
                        out_encode: if out == DType::E4m3 { 1.7 } else { 1.0 },
                        ..GemmInputs::new(&a, &b, out)
                    };
                    check(&inputs, &format!("{sa} x {sb} -> {out}, {activation:?}, {with_bias} {with_residual}"));
                }
            }
        }
    }
}

#[test]
fn odd_shapes() {
    for (sa, sb) in pairs() {
        for m in [1, 3, 17, 130] {
            for (n, k) in [(8, 16), (520, 144), (8, 576)] {
                let (a, b) = (operand(m, k, 3, sa), operand(n, k, 4, sb));
                check(&GemmInputs::new(&a, &b, DType::Bf16), &format!("{m} x {n} x {k}, {sa} x {sb}"));
            }
        }
        let (a, b) = (operand(0, 128, 3, sa), operand(8, 128, 4, sb));
        assert_eq!(scaled_gemm(&GemmInputs::new(&a, &b, DType::F32)).unwrap().dim(), (0, 8));
        let (a, b) = (operand(3, 128, 3, sa), operand(0, 128, 4, sb));
        assert_eq!(scaled_gemm(&GemmInputs::new(&a, &b, DType::F32)).unwrap().dim(), (3, 0));
    }
}

#[test]
fn the_bounds_are_ordered_and_tight_enough_to_see_a_wrong_scale() {
    let (m, n, k) = (17, 264, 576);
    for (sa, sb) in [
        (Scheme::Fp8Tensor(E4M3), Scheme::Fp8Tensor(E4M3)),
        (Scheme::Fp8Row(E4M3), Scheme::Fp8Row(E4M3)),
        (Scheme::Fp8Block1x128(E4M3), Scheme::Fp8Block128x128(E4M3)),
        (Scheme::Fp8Block1x128(E4M3), Scheme::Fp8Block1x128(E4M3)),
    ] {
        let (a, b) = (operand(m, k, 5, sa), operand(n, k, 6, sb));
        let inputs = GemmInputs::new(&a, &b, DType::F32);
        let [fp32, promoted, fast] = [Accumulator::Fp32, Accumulator::TensorCorePromoted, Accumulator::TensorCoreFast]
            .map(|accumulator| gemm_bound(&inputs, accumulator, Gelu::Ieee).unwrap());
        let size = |v: &Array2<f64>| v.iter().map(|v| v * v).sum::<f64>().sqrt();
        let relative = [&fp32, &promoted, &fast].map(|b| size(&b.tolerance) / size(&b.exact));
        assert!(relative[0] < 2e-4 && relative[1] < 0.02 && relative[2] < 0.1, "{sa} x {sb}: {relative:?}");
        assert!(relative[0] < relative[1] && relative[1] <= relative[2], "{sa} x {sb}: {relative:?}");

        // Scales of B in a wrong order, or one scale of A off by an eighth, must fail even the widest bound.
        if sb.scale_len(n, k) > 1 {
            let mut scales = b.logical_scales();
            scales.rotate_left(1);
            let wrong = HostQuantMatrix::from_logical(sb, n, k, b.logical_codes().to_vec(), &scales).unwrap();
            let d = scaled_gemm(&GemmInputs { b: &wrong, ..inputs }).unwrap();
            assert!(fast.check(d.view()).is_err(), "{sa} x {sb}");
        }
        let mut scales = a.logical_scales();
        scales.iter_mut().for_each(|s| *s *= 1.125);
        let wrong = HostQuantMatrix::from_logical(sa, m, k, a.logical_codes().to_vec(), &scales).unwrap();
        let d = scaled_gemm(&GemmInputs { a: &wrong, ..inputs }).unwrap();
        assert!(fast.check(d.view()).is_err(), "{sa} x {sb}");
    }
}

#[test]
fn row_and_tensor_products_are_the_product_of_the_dequantized() {
    let (m, n, k) = (33, 40, 256);
    for (sa, sb) in pairs() {
        let (a, b) = (operand(m, k, 8, sa), operand(n, k, 9, sb));
        let d = scaled_gemm(&GemmInputs::new(&a, &b, DType::F32)).unwrap();
        let plain = dequantize(&a, DType::F32).dot(&dequantize(&b, DType::F32).t());
        let db = sqnr_db(plain.as_slice().unwrap(), d.as_slice().unwrap());
        assert!(db > 120.0, "{sa} x {sb}: {db} dB");
    }
}

#[test]
fn unfused_block_sums_differ_by_rounding_only() {
    let (a, b) = (operand(9, 512, 1, Scheme::Fp8Block1x128(E4M3)), operand(16, 512, 2, Scheme::Fp8Block128x128(E4M3)));
    let fused = GemmInputs::new(&a, &b, DType::F32);
    let unfused = GemmInputs { block_sum: BlockSum::Unfused, ..fused };
    check(&unfused, "unfused");
    let (fused, unfused) = (scaled_gemm(&fused).unwrap(), scaled_gemm(&unfused).unwrap());
    assert_ne!(fused, unfused);
    assert!(sqnr_db(fused.as_slice().unwrap(), unfused.as_slice().unwrap()) > 120.0);
}

#[test]
fn e4m3_output_saturates_and_reports_the_amax_before_scaling() {
    let tensor = Scheme::Fp8Tensor(E4M3);
    let (a, b) = (operand(5, 128, 1, tensor), operand(16, 128, 2, tensor));
    let plain = scaled_gemm(&GemmInputs::new(&a, &b, DType::F32)).unwrap();
    let amax = plain.iter().fold(0.0f32, |a, v| a.max(v.abs()));
    let inputs = GemmInputs { out_encode: 2.0 * 448.0 / amax, ..GemmInputs::new(&a, &b, DType::E4m3) };
    let (d, got) = scaled_gemm_amax(&inputs).unwrap();
    assert_eq!(got, amax);
    assert!(d.iter().any(|v| v.abs() == 448.0));
    for (d, v) in d.iter().zip(&plain) {
        assert_eq!(*d, round_to(DType::E4m3, v * inputs.out_encode));
    }
    gemm_bound(&inputs, Accumulator::Fp32, Gelu::Ieee).unwrap().check(d.view()).unwrap();
}

#[test]
fn non_finite_values_travel_and_overflow_is_infinite() {
    for (sa, sb) in pairs() {
        let (a, b) = (operand(6, 256, 1, sa), operand(24, 256, 2, sb));
        let mut codes = a.logical_codes().to_vec();
        codes[2 * 256 + 200] = 0x7F;
        let a = HostQuantMatrix::from_logical(sa, 6, 256, codes, &a.logical_scales()).unwrap();
        for activation in Activation::ALL {
            let inputs = GemmInputs { activation, ..GemmInputs::new(&a, &b, DType::Bf16) };
            let d = check(&inputs, "NaN in a row of A");
            for ((i, j), v) in d.indexed_iter() {
                assert_eq!(v.is_nan(), i == 2, "{sa} x {sb} D[{i}, {j}] = {v}");
            }
        }
        let big: Vec<f32> = b.logical_scales().iter().map(|s| s * 1e9).collect();
        let b = HostQuantMatrix::from_logical(sb, 24, 256, b.logical_codes().to_vec(), &big).unwrap();
        let d = check(&GemmInputs::new(&a, &b, DType::F16), "overflow");
        assert!(d.iter().any(|v| v.is_infinite()));
    }
}

#[test]
fn signal_to_noise_of_the_product() {
    let (x, w) = (matrix(128, 1024, 31), matrix(256, 1024, 32));
    let exact = x.mapv(f64::from).dot(&w.mapv(f64::from).t());
    for (sa, sb) in pairs() {
        let a = quantize(x.view(), DType::F32, Recipe::new(sa)).unwrap();
        let b = quantize(w.view(), DType::F32, Recipe::new(sb)).unwrap();
        let d = scaled_gemm(&GemmInputs::new(&a, &b, DType::Bf16)).unwrap();
        let db = sqnr_db(exact.as_slice().unwrap(), d.as_slice().unwrap());
        let floor = if sa.spec().format == E4M3 && sb.spec().format == E4M3 { 27.0 } else { 22.0 };
        assert!(db >= floor, "{sa} x {sb}: {db} dB");
    }
}

#[test]
fn refusals_name_operand_numbers_and_rule() {
    let tensor = Scheme::Fp8Tensor(E4M3);
    let (a, b) = (operand(4, 128, 1, tensor), operand(16, 128, 2, tensor));
    let refuse = |inputs: &GemmInputs<'_>, words: &[&str]| {
        let error = scaled_gemm(inputs).unwrap_err();
        assert!(gemm_bound(inputs, Accumulator::Fp32, Gelu::Ieee).is_err());
        let text = error.to_string();
        words.iter().for_each(|w| assert!(text.contains(w), "{w:?} is not in {text:?}"));
        error
    };
    for a_scheme in Scheme::ALL {
        for b_scheme in Scheme::ALL {
            if check_pair(a_scheme, b_scheme, "cpu").is_err() {
                let (a, b) = (operand(4, 128, 1, a_scheme), operand(16, 128, 2, b_scheme));
                let error = refuse(&GemmInputs::new(&a, &b, DType::Bf16), &["is not supported on cpu", ":"]);
                assert!(matches!(error, Error::Pair { .. }));
            }
        }
    }
    let odd = operand(12, 128, 2, tensor);
    refuse(&GemmInputs::new(&a, &odd, DType::Bf16), &["B", "n = 12", "multiple of 8"]);
    let eight = operand(8, 128, 2, tensor);
    refuse(&GemmInputs::new(&a, &eight, DType::E4m3), &["n = 8", "multiple of 16", "e4m3"]);
    let short = operand(16, 144, 2, tensor);
    refuse(&GemmInputs::new(&a, &short, DType::Bf16), &["B", "16 x 144", "k = 128"]);
    let ragged = |rows| HostQuantMatrix::from_logical(tensor, rows, 24, vec![0; rows * 24], &[1.0]).unwrap();
    refuse(&GemmInputs::new(&ragged(3), &ragged(8), DType::Bf16), &["k = 24", "multiple of 16"]);
    refuse(&GemmInputs::new(&a, &b, DType::E5m2), &["D", "e5m2"]);
    let (ra, rb) = (operand(4, 128, 1, Scheme::Fp8Row(E4M3)), operand(16, 128, 2, Scheme::Fp8Row(E4M3)));
    refuse(&GemmInputs::new(&ra, &rb, DType::E4m3), &["D", "e4m3", "fp8-row"]);

    let plain = GemmInputs::new(&a, &b, DType::Bf16);
    let values = [0.0f32; 80];
    let view = ArrayView2::from_shape((5, 16), &values).unwrap();
    refuse(&GemmInputs { bias: Some((&values[..15], DType::F32)), ..plain }, &["bias", "15", "n = 16"]);
    refuse(&GemmInputs { bias: Some((&values[..16], DType::E4m3)), ..plain }, &["bias", "e4m3"]);
    refuse(&GemmInputs { residual: Some((view, DType::F32)), ..plain }, &["residual", "5 x 16", "4 x 16"]);
    refuse(&GemmInputs { accumulate: Some((1.0, view)), ..plain }, &["D", "bf16", "f32"]);
    refuse(&GemmInputs { accumulate: Some((1.0, view)), out: DType::F32, ..plain }, &["C", "5 x 16", "4 x 16"]);
    refuse(&GemmInputs { out_encode: 2.0, ..plain }, &["D", "bf16", "encode"]);
}

#[test]
fn a_thousand_cubed_takes_seconds() {
    let (a, b) =
        (operand(1024, 1024, 1, Scheme::Fp8Block1x128(E4M3)), operand(1024, 1024, 2, Scheme::Fp8Block128x128(E4M3)));
    let start = std::time::Instant::now();
    let d = scaled_gemm(&GemmInputs::new(&a, &b, DType::Bf16)).unwrap();
    let took = start.elapsed();
    assert_eq!(d.dim(), (1024, 1024));
    println!("1024^3 on the CPU: {took:?}");
    // Generous: a loaded machine with few cores must pass; minutes would mean that the fast path is gone.
    assert!(took.as_secs() < 60, "{took:?}");
}
