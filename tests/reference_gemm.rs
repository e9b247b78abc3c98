//! The reference product against the f64 bound: every pair, output and epilogue, odd shapes, special values, refusals.

use ndarray::{Array2, ArrayView2, Axis};
use scaled_gemm::codec::round_to;
use scaled_gemm::pair::{check_pair, multiplied_in};
use scaled_gemm::reference::{
    Accumulator, Gelu, GemmInputs, HostOperand, Noise, Promotion, definition, dequantize, gemm_bound, quantize,
    quantize_transposed, scaled_gemm, scaled_gemm_amax, sqnr_db,
};
use scaled_gemm::{Activation, DType, Error, Fp8Format, HostQuantMatrix, Recipe, Scheme};
use scaled_gemm::{Basis, BlockScaleFormat, Operand};

const E4M3: Fp8Format = Fp8Format::E4M3;
const E5M2: Fp8Format = Fp8Format::E5M2;

fn matrix(rows: usize, cols: usize, seed: u64) -> Array2<f32> {
    let mut noise = Noise::new(seed);
    Array2::from_shape_fn((rows, cols), |(i, j)| {
        let v = 2.0 * noise.uniform() - 1.0;
        // Rows, and blocks of rows and columns, of very different size: a scale taken from a wrong place shows.
        v * 2f32.powi((i % 7) as i32 - 3 + (i / 128 % 2 * 4) as i32 - (j / 128 % 3 * 2) as i32)
    })
}

fn operand(rows: usize, cols: usize, seed: u64, scheme: Scheme) -> HostQuantMatrix {
    quantize(matrix(rows, cols, seed).view(), DType::F32, Recipe::new(scheme)).unwrap()
}

/// A as it is held: quantized, or plain.
enum Held {
    Quantized(HostQuantMatrix),
    Plain(Array2<f32>, DType),
}

impl Held {
    fn new(rows: usize, cols: usize, seed: u64, kind: Operand) -> Self {
        match kind {
            Operand::Quantized(scheme) => Self::Quantized(operand(rows, cols, seed, scheme)),
            Operand::Plain(dtype) => Self::Plain(matrix(rows, cols, seed).mapv(|v| round_to(dtype, v)), dtype),
        }
    }

    /// The values that are multiplied, scales included, in FP32.
    fn values(&self) -> Array2<f32> {
        match self {
            Self::Quantized(q) => dequantize(q, DType::F32),
            Self::Plain(values, _) => values.clone(),
        }
    }
}

impl<'a> From<&'a Held> for HostOperand<'a> {
    fn from(held: &'a Held) -> Self {
        match held {
            Held::Quantized(q) => q.into(),
            Held::Plain(values, dtype) => HostOperand::Plain(values.view(), *dtype),
        }
    }
}

/// Every legal pair of two quantized operands.
fn quantized_pairs() -> impl Iterator<Item = (Scheme, Scheme)> {
    let all = Scheme::ALL.into_iter().flat_map(|a| Scheme::ALL.into_iter().map(move |b| (a, b)));
    all.filter(|(a, b)| check_pair(*a, *b, "cpu").is_ok())
}

/// Every legal pair, those with a plain A last.
fn pairs() -> Vec<(Operand, Scheme)> {
    let mut pairs: Vec<_> = quantized_pairs().map(|(a, b)| (Operand::from(a), b)).collect();
    for dtype in [DType::Bf16, DType::F16] {
        let plain = Scheme::ALL.into_iter().map(|b| (Operand::Plain(dtype), b));
        pairs.extend(plain.filter(|(a, b)| check_pair(*a, *b, "cpu").is_ok()));
    }
    assert_eq!(pairs.len(), 15 + 3 + 4 + 6 + 5 + 8);
    pairs
}

fn is_tensor(scheme: Scheme) -> bool {
    scheme == Scheme::Fp8Tensor(E4M3) || scheme == Scheme::Fp8Tensor(E5M2)
}

/// The same matrix after a change to its codes, FP32 scales and block scales, each in logical order.
fn changed(q: &HostQuantMatrix, change: impl FnOnce(&mut [u8], &mut [f32], &mut [u8])) -> HostQuantMatrix {
    let (mut codes, mut scales, mut blocks) =
        (q.logical_codes().to_vec(), q.logical_scales(), q.logical_block_scales());
    change(&mut codes, &mut scales, &mut blocks);
    HostQuantMatrix::from_block_logical(q.scheme(), q.rows(), q.cols(), codes, &scales, &blocks).unwrap()
}

/// Checks against the FP32 bound, and against that of BF16 tensor cores where they compute the product.
#[track_caller]
fn check(inputs: &GemmInputs<'_>, what: &str) -> Array2<f32> {
    let d = scaled_gemm(inputs).unwrap();
    let mut bound = gemm_bound(inputs, Accumulator::Fp32, Gelu::Ieee).unwrap();
    let defined = definition::scaled_gemm(inputs).unwrap();
    for ((at, exact), defined) in bound.exact.indexed_iter().zip(&defined) {
        // Sums in f64 in another order. The bound overflows where FP32 does, the definition later.
        let near = (exact - defined).abs() <= 1e-4 * bound.tolerance[at];
        assert!(near || !exact.is_finite() || !defined.is_finite(), "{what}: {at:?} is {exact}, not {defined}");
    }
    bound.check(d.view()).unwrap_or_else(|e| panic!("{what}: {e}"));
    if bound.exact.iter().all(|v| v.is_finite()) {
        bound.exact = defined;
        bound.check(d.view()).unwrap_or_else(|e| panic!("{what}, by definition: {e}"));
    }
    if inputs.b.scheme().spec().block.is_some() {
        let wide = gemm_bound(inputs, Accumulator::TensorCoreWide, Gelu::Ieee).unwrap();
        wide.check(d.view()).unwrap_or_else(|e| panic!("{what}, wide: {e}"));
    }
    d
}

#[test]
fn every_pair_output_and_epilogue_is_within_the_bound() {
    let (m, n, k) = (19, 272, 400);
    let bias: Vec<f32> = (0..n).map(|j| round_to(DType::Bf16, (j as f32 - 100.0) / 7.0)).collect();
    let residual = matrix(m, n, 77).mapv(|v| round_to(DType::F16, v));
    let c = matrix(m, n, 78);
    for (sa, sb) in pairs() {
        let (a, b) = (Held::new(m, k, 1, sa), operand(n, k, 2, sb));
        for out in [DType::Bf16, DType::F16, DType::F32, DType::E4M3] {
            if out == DType::E4M3 && !(is_tensor(sb) && sa.scheme().is_some()) {
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
                        out_encode: if out == DType::E4M3 { 1.7 } else { 1.0 },
                        ..GemmInputs::new(&a, &b, out)
                    };
                    check(&inputs, &format!("{sa} x {sb} -> {out}, {activation:?}, {with_bias} {with_residual}"));
                }
            }
        }
    }
}

/// As on the GPU: C is memory that nobody may have written yet.
#[test]
fn beta_zero_does_not_read_c() {
    let (a, b) = (operand(4, 128, 1, Scheme::Fp8Row(E4M3)), operand(16, 128, 2, Scheme::Fp8Row(E4M3)));
    let plain = GemmInputs::new(&a, &b, DType::F32);
    let want = scaled_gemm(&plain).unwrap();
    for poison in [f32::NAN, f32::INFINITY] {
        let c = Array2::from_elem((4, 16), poison);
        for beta in [0.0, -0.0] {
            let inputs = GemmInputs { accumulate: Some((beta, c.view())), ..plain };
            assert_eq!(check(&inputs, "beta = 0"), want);
            let [with, without] = [&inputs, &plain].map(|i| gemm_bound(i, Accumulator::Fp32, Gelu::Ieee).unwrap());
            assert_eq!((with.exact, with.tolerance), (without.exact, without.tolerance));
        }
    }
}

#[test]
fn odd_shapes() {
    for (sa, sb) in pairs() {
        for m in [1, 3, 17, 130] {
            for (n, k) in [(8, 16), (24, 48), (520, 144), (8, 576)] {
                let (a, b) = (Held::new(m, k, 3, sa), operand(n, k, 4, sb));
                check(&GemmInputs::new(&a, &b, DType::Bf16), &format!("{m} x {n} x {k}, {sa} x {sb}"));
            }
        }
        let (a, b) = (Held::new(0, 128, 3, sa), operand(8, 128, 4, sb));
        assert_eq!(scaled_gemm(&GemmInputs::new(&a, &b, DType::F32)).unwrap().dim(), (0, 8));
        let (a, b) = (Held::new(3, 128, 3, sa), operand(0, 128, 4, sb));
        assert_eq!(scaled_gemm(&GemmInputs::new(&a, &b, DType::F32)).unwrap().dim(), (3, 0));
    }
}

#[test]
fn the_bounds_are_ordered_and_tight_enough_to_see_a_wrong_scale() {
    let (m, n, k) = (17, 264, 576);
    for (sa, sb) in [
        (Scheme::Fp8Tensor(E4M3), Scheme::Fp8Tensor(E4M3)),
        (Scheme::Fp8Row(E4M3), Scheme::Fp8Row(E4M3)),
        (Scheme::Fp8Group1x128(E4M3), Scheme::Fp8Group128x128(E4M3)),
        (Scheme::Fp8Group1x128(E4M3), Scheme::Fp8Group1x128(E4M3)),
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
        let d = scaled_gemm(&GemmInputs { a: (&wrong).into(), ..inputs }).unwrap();
        assert!(fast.check(d.view()).is_err(), "{sa} x {sb}");
    }
}

#[test]
fn the_wide_bound_is_tight_enough_to_see_a_wrong_scale() {
    let (m, n, k) = (17, 264, 1152);
    let last = pairs().into_iter().filter(|(_, b)| b.spec().block.is_some());
    for (sa, sb) in last {
        let (a, b) = (Held::new(m, k, 5, sa), operand(n, k, 6, sb));
        let inputs = GemmInputs::new(&a, &b, DType::F32);
        let [fp32, wide, fast] = [Accumulator::Fp32, Accumulator::TensorCoreWide, Accumulator::TensorCoreFast]
            .map(|accumulator| gemm_bound(&inputs, accumulator, Gelu::Ieee).unwrap());
        let size = |v: &Array2<f64>| v.iter().map(|v| v * v).sum::<f64>().sqrt();
        let relative = [&fp32, &wide, &fast].map(|b| size(&b.tolerance) / size(&b.exact));
        assert!(relative[0] < 2e-4 && relative[1] < 2e-3, "{sa} x {sb}: {relative:?}");
        assert!(relative[0] < relative[1] && relative[1] < relative[2], "{sa} x {sb}: {relative:?}");

        let refused = |wrong: &HostQuantMatrix, what: &str| {
            let d = scaled_gemm(&GemmInputs { b: wrong, ..inputs }).unwrap();
            assert!(wide.check(d.view()).is_err(), "{sa} x {sb}: {what}");
        };
        refused(&changed(&b, |_, _, blocks| blocks.rotate_left(1)), "block scales in a wrong order");
        refused(&changed(&b, |_, _, blocks| blocks[5] -= 1), "one block scale smaller by a step");
        refused(&changed(&b, |codes, _, _| codes.iter_mut().for_each(|c| *c = c.rotate_left(4))), "halves swapped");
        if sb.is_nvfp4() {
            refused(&changed(&b, |_, scales, _| scales[0] *= 1.01), "a second-level scale off by a hundredth");
        }
    }
}

#[test]
fn products_are_those_of_the_dequantized() {
    let (m, n, k) = (33, 40, 256);
    for (sa, sb) in pairs() {
        let (a, b) = (Held::new(m, k, 8, sa), operand(n, k, 9, sb));
        let d = scaled_gemm(&GemmInputs::new(&a, &b, DType::F32)).unwrap();
        let plain = a.values().dot(&dequantize(&b, DType::F32).t());
        let db = sqnr_db(plain.as_slice().unwrap(), d.as_slice().unwrap());
        assert!(db > 120.0, "{sa} x {sb}: {db} dB");
    }
}

/// Operands whose sums are exact in any order, so that what follows the sum is seen to the last bit: block scales of 1,
/// one column block, and second-level scales with many bits.
#[test]
fn second_level_scales_are_applied_in_the_documented_order() {
    let (m, n, k) = (5, 16, 32);
    let exact = |rows, scheme: Scheme, seed: u64| {
        let any = |i| (i as u64 * 37 + seed * 11) as u8;
        // FP8 codes of two binades.
        let near_one = |i| 0x30 | (any(i) & 0x8F);
        let bytes = 0..scheme.code_bytes(rows, k);
        let (codes, one) = match scheme.spec().block.unwrap().format {
            BlockScaleFormat::Ue4m3 => (bytes.map(any).collect(), 0x38),
            // Every E2M1 code is near one.
            BlockScaleFormat::Ue8m0 if scheme == Scheme::Mxfp4 => (bytes.map(any).collect(), 127),
            BlockScaleFormat::Ue8m0 => (bytes.map(near_one).collect(), 127),
        };
        let [r, c] = scheme.block_grid(rows, k);
        let [groups, _] = scheme.scale_grid(rows, k);
        let scales: Vec<f32> = (0..groups).map(|i| 0.0123 + (i as f32 + seed as f32).sqrt() / 7.0).collect();
        HostQuantMatrix::from_block_logical(scheme, rows, k, codes, &scales, &vec![one; r * c]).unwrap()
    };
    let alpha = 0.7f32;
    for (sa, sb) in pairs().into_iter().filter(|(_, b)| b.spec().block.is_some()) {
        let a = match sa {
            Operand::Quantized(scheme) => Held::Quantized(exact(m, scheme, 3)),
            Operand::Plain(dtype) => {
                Held::Plain(Array2::from_shape_fn((m, k), |(i, j)| (i * 3 + j) as f32 - 9.0), dtype)
            }
        };
        let b = exact(n, sb, 5);
        let d = scaled_gemm(&GemmInputs { alpha, ..GemmInputs::new(&a, &b, DType::F32) }).unwrap();
        let scale = |q: &HostQuantMatrix, row: usize| match q.scales() {
            [] => None,
            [one] => Some(*one),
            rows => Some(rows[row]),
        };
        let values = |operand: HostOperand<'_>, row: usize| match operand {
            HostOperand::Plain(values, _) => values.row(row).to_vec(),
            HostOperand::Quantized(q) => {
                let mut values = vec![0.0; k];
                q.decode_row(row, &mut values);
                values
            }
        };
        let by_row = |scheme: Option<Scheme>| scheme == Some(Scheme::Nvfp4Row);
        for ((i, j), got) in d.indexed_iter() {
            let products = values((&a).into(), i).into_iter().zip(values((&b).into(), j));
            let exact = products.map(|(a, b)| f64::from(a) * f64::from(b)).sum::<f64>();
            let sum = exact as f32;
            assert_eq!(f64::from(sum), exact);
            let scale_a = HostOperand::from(&a).quantized().and_then(|q| scale(q, i)).unwrap_or(1.0);
            let scale_b = scale(&b, j).unwrap_or(1.0);
            let want = if by_row(sa.scheme()) || by_row(Some(sb)) {
                sum * alpha * scale_a * scale_b
            } else {
                sum * (alpha * scale_a * scale_b)
            };
            assert_eq!(got.to_bits(), want.to_bits(), "{sa} x {sb} D[{i}, {j}]");
        }
    }
}

#[test]
fn large_second_level_scales_do_not_overflow_before_alpha() {
    for (sa, sb) in
        [(Scheme::Nvfp4, Scheme::Nvfp4), (Scheme::Nvfp4Row, Scheme::Nvfp4), (Scheme::Nvfp4Row, Scheme::Nvfp4Row)]
    {
        let large = |q: HostQuantMatrix| changed(&q, |_, scales, _| scales.fill(1e30));
        let (a, b) = (large(operand(3, 64, 1, sa)), large(operand(8, 64, 2, sb)));
        let inputs = GemmInputs { alpha: 1e-33, ..GemmInputs::new(&a, &b, DType::F32) };
        let d = check(&inputs, "large scales");
        assert!(d.iter().all(|v| v.is_finite()) && d.iter().any(|v| v.abs() > 1e27), "{sa} x {sb}: {d}");
    }
}

#[test]
fn equal_rows_of_nvfp4_row_are_nvfp4() {
    // Every row has the largest magnitude of the matrix: codes, block scales and second levels are the same.
    let same_amax = |rows, seed| {
        let mut x = matrix(rows, 96, seed).mapv(|v| v.clamp(-4.0, 4.0));
        x.axis_iter_mut(Axis(0))
            .enumerate()
            .for_each(|(i, mut row)| row[i % 96] = if i % 2 == 0 { 5.25 } else { -5.25 });
        x
    };
    let (xa, xb) = (same_amax(21, 3), same_amax(40, 4));
    let of = |x: &Array2<f32>, scheme| quantize(x.view(), DType::F32, Recipe::new(scheme)).unwrap();
    let tensor = [of(&xa, Scheme::Nvfp4), of(&xb, Scheme::Nvfp4)];
    let rows = [of(&xa, Scheme::Nvfp4Row), of(&xb, Scheme::Nvfp4Row)];
    for (tensor, rows) in tensor.iter().zip(&rows) {
        assert_eq!(tensor.codes(), rows.codes());
        assert_eq!(tensor.block_scales(), rows.block_scales());
        assert!(rows.scales().iter().all(|s| *s == tensor.scales()[0]));
    }
    // 5.25 / 2688 is 2^-9: every multiplication by it is exact, so the products are equal to the last bit.
    assert_eq!(tensor[0].scales(), [1.0 / 512.0]);
    let product = |a, b| scaled_gemm(&GemmInputs { alpha: 0.37, ..GemmInputs::new(a, b, DType::F32) }).unwrap();
    let want = product(&tensor[0], &tensor[1]);
    for (a, b) in [(&tensor[0], &rows[1]), (&rows[0], &tensor[1]), (&rows[0], &rows[1])] {
        assert_eq!(product(a, b), want, "{} x {}", a.scheme(), b.scheme());
    }
    let plain = HostOperand::Plain(xa.view(), DType::Bf16);
    let weight_only = |b| scaled_gemm(&GemmInputs::new(plain, b, DType::F32)).unwrap();
    assert_eq!(weight_only(&tensor[1]), weight_only(&rows[1]));
}

#[test]
fn e8m0_scales_at_both_ends() {
    let (m, n, k) = (4, 8, 64);
    let mx = |rows: usize, format, byte: u8, code: fn(usize) -> u8| {
        let scheme = Scheme::Mxfp8(format);
        let codes = (0..rows * k).map(code).collect();
        HostQuantMatrix::from_block_logical(scheme, rows, k, codes, &[], &vec![byte; rows * k / 32]).unwrap()
    };
    for (format, byte) in [(E4M3, 0), (E4M3, 2), (E5M2, 1), (E5M2, 9)] {
        // Values of A from the smallest code on, many below what BF16 holds; B large, so that products are ordinary.
        let a = mx(m, format, byte, |i| (i % 64) as u8 | ((i % 3 == 0) as u8) << 7);
        let b = mx(n, E4M3, 245, |i| (i * 7 % 0x60) as u8);
        let inputs = GemmInputs::new(&a, &b, DType::F32);
        check(&inputs, "small scales");
        let wide = gemm_bound(&inputs, Accumulator::TensorCoreWide, Gelu::Ieee).unwrap();
        let values = |q: &HostQuantMatrix, round: fn(f32) -> f32| {
            let x = dequantize(q, DType::F32);
            x.mapv(|v| f64::from(round(v)))
        };
        let product = |round| values(&a, round).dot(&values(&b, |v| v).t()).mapv(|v| v as f32);
        let exact = product(|v| v);
        let rounded = product(|v| round_to(DType::Bf16, v));
        let flushed = product(|v| if v.abs() < f32::MIN_POSITIVE { 0.0 } else { v });
        assert_ne!(exact, flushed);
        for d in [exact, rounded, flushed] {
            wide.check(d.view()).unwrap();
        }
    }
    // 2^120 * 448 is beyond FP32: infinity of the right sign, and NaN where infinities meet.
    let a = mx(m, E4M3, 247, |i| if i / 64 == 1 { 0xFE } else { 0x38 });
    let ones = mx(n, E4M3, 127, |_| 0x38);
    let d = check(&GemmInputs::new(&a, &ones, DType::F32), "large scales");
    assert!(d.row(1).iter().all(|v| *v == f32::NEG_INFINITY) && d.row(0).iter().all(|v| v.is_finite()), "{d}");
    let halves = mx(n, E4M3, 127, |i| if i % 64 < 32 { 0x38 } else { 0xB8 });
    let d = check(&GemmInputs::new(&a, &halves, DType::F32), "infinities of both signs");
    assert!(d.row(1).iter().all(|v| v.is_nan()), "{d}");
}

#[test]
fn plain_values_are_rounded_to_their_type_and_may_have_strides() {
    let (x, w) = (matrix(64, 7, 1), operand(16, 64, 2, Scheme::Nvfp4));
    for dtype in [DType::Bf16, DType::F16] {
        let rounded = x.t().mapv(|v| round_to(dtype, v)).as_standard_layout().to_owned();
        let product = |a| scaled_gemm(&GemmInputs::new(HostOperand::Plain(a, dtype), &w, DType::F32)).unwrap();
        assert_eq!(product(x.t()), product(rounded.view()));
    }
}

#[test]
fn unfused_block_sums_differ_by_rounding_only() {
    let (a, b) = (operand(9, 512, 1, Scheme::Fp8Group1x128(E4M3)), operand(16, 512, 2, Scheme::Fp8Group128x128(E4M3)));
    let fused = GemmInputs::new(&a, &b, DType::F32);
    let unfused = GemmInputs { promotion: Promotion::Unfused, ..fused };
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
    let inputs = GemmInputs { out_encode: 2.0 * 448.0 / amax, ..GemmInputs::new(&a, &b, DType::E4M3) };
    let (d, got) = scaled_gemm_amax(&inputs).unwrap();
    assert_eq!(got, amax);
    assert!(d.iter().any(|v| v.abs() == 448.0));
    for (d, v) in d.iter().zip(&plain) {
        assert_eq!(*d, round_to(DType::E4M3, v * inputs.out_encode));
    }
    gemm_bound(&inputs, Accumulator::Fp32, Gelu::Ieee).unwrap().check(d.view()).unwrap();
}

#[test]
fn non_finite_values_travel_and_overflow_is_infinite() {
    for (sa, sb) in pairs() {
        let (a, b) = (Held::new(6, 256, 1, sa), operand(24, 256, 2, sb));
        let a = match a {
            // E2M1 has no NaN: that of a block scale does.
            Held::Quantized(q) => Held::Quantized(changed(&q, |codes, _, blocks| match q.scheme().spec().block {
                None => codes[2 * 256 + 200] = 0x7F,
                Some(block) => {
                    let nan = if block.format == BlockScaleFormat::Ue4m3 { 0x7F } else { 0xFF };
                    blocks[(2 * 256 + 200) / block.cols] = nan;
                }
            })),
            Held::Plain(mut values, dtype) => {
                values[[2, 200]] = f32::NAN;
                Held::Plain(values, dtype)
            }
        };
        for activation in Activation::ALL {
            let inputs = GemmInputs { activation, ..GemmInputs::new(&a, &b, DType::Bf16) };
            let d = check(&inputs, "NaN in a row of A");
            for ((i, j), v) in d.indexed_iter() {
                assert_eq!(v.is_nan(), i == 2, "{sa} x {sb} D[{i}, {j}] = {v}");
            }
        }
        let big = changed(&b, |_, scales, blocks| {
            scales.iter_mut().for_each(|s| *s *= 1e9);
            if scales.is_empty() {
                // F16 holds MXFP4 weights to byte 140, with which large sums are beyond it all the same.
                let more = if multiplied_in(sa, sb).is_some() { 140 - blocks.iter().max().unwrap() } else { 30 };
                blocks.iter_mut().for_each(|b| *b += more);
            }
        });
        let d = check(&GemmInputs::new(&a, &big, DType::F16), "overflow");
        assert!(d.iter().any(|v| v.is_infinite()));
    }
}

#[test]
fn signal_to_noise_of_the_product() {
    let (x, w) = (matrix(128, 1024, 31), matrix(256, 1024, 32));
    let exact = x.mapv(f64::from).dot(&w.mapv(f64::from).t());
    for (sa, sb) in pairs() {
        let a = match sa {
            Operand::Quantized(sa) => Held::Quantized(quantize(x.view(), DType::F32, Recipe::new(sa)).unwrap()),
            Operand::Plain(dtype) => Held::Plain(x.clone(), dtype),
        };
        let b = quantize(w.view(), DType::F32, Recipe::new(sb)).unwrap();
        let d = scaled_gemm(&GemmInputs::new(&a, &b, DType::Bf16)).unwrap();
        let db = sqnr_db(exact.as_slice().unwrap(), d.as_slice().unwrap());
        // Decibels of each operand; errors of both add up.
        let of = |operand: Operand| match operand {
            Operand::Plain(_) => 50.0,
            Operand::Quantized(scheme) if scheme.is_nvfp4() => 19.1,
            Operand::Quantized(Scheme::Mxfp4) => 18.5,
            Operand::Quantized(scheme) if scheme.spec().format == E4M3 => 30.1,
            Operand::Quantized(_) => 23.5,
        };
        let noise = |db: f64| 10f64.powf(-db / 10.0);
        let floor = -10.0 * (noise(of(sa)) + noise(of(sb.into()))).log10();
        println!("{sa} x {sb}: {db:.2} dB, floor {floor:.2}");
        assert!(db >= floor, "{sa} x {sb}: {db} dB, floor {floor}");
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
    let values = matrix(4, 128, 1);
    for dtype in [DType::Bf16, DType::F16, DType::F32, DType::E4M3] {
        for scheme in Scheme::ALL {
            if check_pair(Operand::Plain(dtype), scheme, "cpu").is_err() {
                let (a, b) = (HostOperand::Plain(values.view(), dtype), operand(16, 128, 2, scheme));
                let error = refuse(&GemmInputs::new(a, &b, DType::Bf16), &["is not supported on cpu", dtype.name()]);
                assert!(matches!(error, Error::Pair { .. }));
            }
        }
    }
    let (na, nb) = (operand(4, 128, 1, Scheme::Nvfp4), operand(16, 128, 2, Scheme::Nvfp4));
    refuse(&GemmInputs::new(&na, &nb, DType::E4M3), &["D", "e4m3", "nvfp4 x nvfp4"]);
    let turned = nb.clone().assume_basis(Basis::Hadamard16);
    refuse(&GemmInputs::new(&na, &turned, DType::Bf16), &["basis", "Hadamard"]);
    let plain = HostOperand::Plain(values.view(), DType::Bf16);
    refuse(&GemmInputs::new(plain, &turned, DType::Bf16), &["basis", "Hadamard"]);
    let both = na.clone().assume_basis(Basis::Hadamard16);
    let turned = scaled_gemm(&GemmInputs::new(&both, &turned, DType::Bf16)).unwrap();
    assert_eq!(turned, scaled_gemm(&GemmInputs::new(&na, &nb, DType::Bf16)).unwrap());
    refuse(&GemmInputs::new(plain, &operand(16, 144, 2, Scheme::Nvfp4), DType::Bf16), &["B", "16 x 144", "k = 128"]);
    // B was named, which must have had no columns then.
    let none = ndarray::Array2::zeros((4, 0));
    let none = HostOperand::Plain(none.view(), DType::Bf16);
    refuse(&GemmInputs::new(none, &nb, DType::Bf16), &["A: 4 x 0 must have columns", "multiple of 16"]);
    // The gradient of no rows: both have none.
    let none = ndarray::Array2::zeros((0, 32));
    let none = quantize_transposed(none.view(), DType::F32, Recipe::new(tensor)).unwrap();
    let words = ["A: 32 x 0 must have columns", "skip products of nothing: a gradient over no rows adds nothing"];
    refuse(&GemmInputs::new(&none, &none, DType::F32), &words);
    let odd = operand(12, 128, 2, tensor);
    refuse(&GemmInputs::new(&a, &odd, DType::Bf16), &["B", "n = 12", "multiple of 8"]);
    let eight = operand(8, 128, 2, tensor);
    refuse(&GemmInputs::new(&a, &eight, DType::E4M3), &["n = 8", "multiple of 16", "e4m3"]);
    let short = operand(16, 144, 2, tensor);
    refuse(&GemmInputs::new(&a, &short, DType::Bf16), &["B", "16 x 144", "k = 128"]);
    let ragged = |rows| HostQuantMatrix::from_logical(tensor, rows, 24, vec![0; rows * 24], &[1.0]).unwrap();
    refuse(&GemmInputs::new(&ragged(3), &ragged(8), DType::Bf16), &["k = 24", "multiple of 16"]);
    refuse(&GemmInputs::new(&a, &b, DType::E5M2), &["D", "e5m2"]);
    let (ra, rb) = (operand(4, 128, 1, Scheme::Fp8Row(E4M3)), operand(16, 128, 2, Scheme::Fp8Row(E4M3)));
    refuse(&GemmInputs::new(&ra, &rb, DType::E4M3), &["D", "e4m3", "fp8-row"]);

    let plain = GemmInputs::new(&a, &b, DType::Bf16);
    let values = [0.0f32; 80];
    let view = ArrayView2::from_shape((5, 16), &values).unwrap();
    refuse(&GemmInputs { bias: Some((&values[..15], DType::F32)), ..plain }, &["bias", "15", "n = 16"]);
    refuse(&GemmInputs { bias: Some((&values[..16], DType::E4M3)), ..plain }, &["bias", "e4m3"]);
    refuse(&GemmInputs { residual: Some((view, DType::F32)), ..plain }, &["residual", "5 x 16", "4 x 16"]);
    refuse(&GemmInputs { accumulate: Some((1.0, view)), ..plain }, &["D", "bf16", "f32"]);
    refuse(&GemmInputs { accumulate: Some((1.0, view)), out: DType::F32, ..plain }, &["C", "5 x 16", "4 x 16"]);
    refuse(&GemmInputs { out_encode: 2.0, ..plain }, &["D", "bf16", "encode"]);
}

#[test]
fn a_thousand_cubed_takes_seconds() {
    let (a, b) =
        (operand(1024, 1024, 1, Scheme::Fp8Group1x128(E4M3)), operand(1024, 1024, 2, Scheme::Fp8Group128x128(E4M3)));
    let start = std::time::Instant::now();
    let d = scaled_gemm(&GemmInputs::new(&a, &b, DType::Bf16)).unwrap();
    let took = start.elapsed();
    assert_eq!(d.dim(), (1024, 1024));
    println!("1024^3 on the CPU: {took:?}");
    // Generous: a loaded machine with few cores must pass; minutes would mean that the fast path is gone.
    assert!(took.as_secs() < 60, "{took:?}");
}
