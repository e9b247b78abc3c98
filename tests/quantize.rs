//! The FP8 reference quantizers against their definition: special values, ragged groups, strides, every recipe.

use half::bf16;
use ndarray::{Array2, ArrayView2, s};
use scaled_gemm::codec::{decode, encode};
use scaled_gemm::reference::{
    Noise, amax, definition, dequantize, quantize, quantize_rows, quantize_tensor, quantize_transposed,
    quantize_transposed_with_scale, sqnr_db,
};
use scaled_gemm::{
    CodeRounding, DType, Fp8Format, Fp8Granularity, Fp8Recipe, Fp8Rule, Fp8Scales, GivenScale, HostQuantMatrix, Recipe,
    Result, Scheme,
};

const E4M3: Fp8Format = Fp8Format::E4M3;
const VECTOR: Fp8Recipe = Fp8Recipe::new(Fp8Granularity::Group1x128, E4M3);

/// Normal numbers whose rows and column blocks differ by orders of magnitude.
fn matrix(rows: usize, cols: usize, seed: u64) -> Array2<f32> {
    let mut noise = Noise::new(seed);
    Array2::from_shape_fn((rows, cols), |(i, j)| {
        noise.normal() * 4f32.powi((i % 5) as i32 - 2) * 8f32.powi((j / 128 % 3) as i32 - 1)
    })
}

/// The bytes of the definition, padding and NaN included.
#[track_caller]
fn same(q: &HostQuantMatrix, want: &HostQuantMatrix, what: &str) {
    assert_eq!(q.codes(), want.codes(), "{what}");
    let bits = |q: &HostQuantMatrix| q.scales().iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(q), bits(want), "{what}");
}

#[test]
fn every_recipe_is_its_definition_on_ragged_shapes() {
    for (rows, cols) in [(1, 16), (3, 144), (130, 576), (257, 128)] {
        let mut x = matrix(rows, cols, 7);
        x[[0, 0]] = f32::NAN;
        x[[rows / 2, cols / 2]] = -0.0;
        if rows > 100 {
            x.slice_mut(s![.., 0..128]).fill(0.0);
            x[[rows - 1, cols - 1]] = f32::INFINITY;
            x[[rows - 2, cols - 1]] = 1e-44;
            x.row_mut(5).fill(-f32::from_bits(3));
        }
        for recipe in Fp8Recipe::all() {
            for source in [DType::Bf16, DType::F16, DType::F32] {
                let want = definition::quantize(x.view(), source, recipe).unwrap();
                let q = quantize(x.view(), source, recipe).unwrap();
                same(&q, &want, &format!("{rows} x {cols} {recipe:?} {source}"));
            }
        }
    }
}

#[test]
fn any_bits_give_what_the_definition_gives() {
    for seed in 0..4 {
        // Every pattern of bits, or none of a magnitude of 2 and more: then scales are finite.
        let spread = [0xFFFF_FFFF, 0xBFFF_FFFF][seed % 2];
        let mut noise = Noise::new(60 + seed as u64);
        let x = Array2::from_shape_simple_fn((130, 208), || f32::from_bits(noise.bits() as u32 & spread));
        for len in [0, 1, 15, 31, 33, 130 * 208] {
            let x = &x.as_slice().unwrap()[..len];
            let naive = x.iter().filter(|v| !v.is_nan()).fold(0.0f32, |a, v| a.max(v.abs()));
            assert_eq!(amax(x).to_bits(), naive.to_bits());
        }
        for recipe in Fp8Recipe::all() {
            let q = quantize(x.view(), DType::F32, recipe).unwrap();
            same(&q, &definition::quantize(x.view(), DType::F32, recipe).unwrap(), &format!("{recipe:?}"));
            for out in [DType::F32, DType::Bf16, DType::F16, DType::E4M3, DType::E5M2] {
                let (got, want) = (dequantize(&q, out), definition::dequantize(&q, out));
                let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
                assert!(got.iter().zip(&want).all(same), "{recipe:?} {out}");
            }
        }
    }
}

/// A view without elements may have any number of rows or columns. (Tables of the rows were made before they were counted: panics, hours
/// of work, and aborts.)
#[test]
fn more_rows_than_a_matrix_has_are_refused_before_any_work() {
    for dim in [(1 << 61, 0), (1 << 33, 0), (1 << 31, 0), (0, 1 << 61)] {
        let x = ArrayView2::from_shape(dim, &[]).unwrap();
        let refused = |what: &str, result: Result<HostQuantMatrix>, (rows, cols): (usize, usize)| {
            let said = result.unwrap_err().to_string();
            let words = [&format!("{rows} x {cols}")[..], "at most 2147483647 rows and columns", "split it"];
            assert!(words.iter().all(|word| said.contains(word)), "{what}: {said}");
        };
        for recipe in Recipe::all(CodeRounding::Stochastic { seed: 1, offset: 2 }) {
            let what = format!("{dim:?} {recipe}");
            refused(&what, quantize(x, DType::Bf16, recipe), dim);
            refused(&what, quantize_transposed(x, DType::Bf16, recipe), (dim.1, dim.0));
            refused(&what, quantize_rows(x, DType::Bf16, recipe, GivenScale::Amax(1.0), 0), dim);
        }
        refused("given", quantize_tensor(x, E4M3, GivenScale::Encode(1.0)).map(|(q, _)| q), dim);
    }
}

/// A view may have one number as all its elements. (Memory for all of them was asked for: a panic.)
#[test]
fn more_elements_than_memory_can_have_are_refused_before_any_work() {
    let (one, dim) = (Array2::<f32>::ones((1, 1)), ((1 << 31) - 16, (1 << 31) - 32));
    let x = one.broadcast(dim).unwrap();
    let refused = |what: &str, result: Result<HostQuantMatrix>, (rows, cols): (usize, usize)| {
        let said = result.unwrap_err().to_string();
        let words = [&format!("{rows} x {cols}")[..], "at most 1152921504606846975 elements", "split it"];
        assert!(words.iter().all(|word| said.contains(word)), "{what}: {said}");
    };
    let (given, turned) = (GivenScale::Amax(1.0), (dim.1, dim.0));
    for recipe in Recipe::all(CodeRounding::Stochastic { seed: 1, offset: 2 }) {
        let what = recipe.to_string();
        refused(&what, quantize(x, DType::Bf16, recipe), dim);
        refused(&what, quantize_transposed(x, DType::Bf16, recipe), turned);
        refused(&what, quantize_rows(x, DType::Bf16, recipe, given, 0), dim);
        if recipe.scheme() == Scheme::Nvfp4 {
            refused(&what, quantize_transposed_with_scale(x, DType::Bf16, recipe, given), turned);
        }
    }
    refused("given", quantize_tensor(x, E4M3, GivenScale::Encode(1.0)).map(|(q, _)| q), dim);
}

/// Nor is the transpose made of what is refused.
#[test]
fn transposes_that_no_recipe_takes_are_refused_before_they_are_made() {
    let one = Array2::<f32>::ones((1, 1));
    let x = one.broadcast((17, 1 << 40)).unwrap();
    let said = quantize_transposed(x, DType::Bf16, VECTOR).unwrap_err().to_string();
    assert!(said.contains("17") && said.contains("16"), "{said}");
}

#[test]
fn transposed_is_quantize_of_the_transpose() {
    let x = matrix(144, 272, 3);
    for recipe in Fp8Recipe::all() {
        let want = definition::quantize(x.t(), DType::F32, recipe).unwrap();
        let q = quantize_transposed(x.view(), DType::F32, recipe).unwrap();
        assert_eq!((q.rows(), q.cols()), (272, 144));
        same(&q, &want, &format!("{recipe:?}"));
    }
    // 128 x 128 tiles are their own transposes: the codes of one are the transposed codes of the other.
    let tile = Fp8Recipe::new(Fp8Granularity::Group128x128, E4M3);
    let (q, t) =
        (quantize(x.view(), DType::F32, tile).unwrap(), quantize_transposed(x.view(), DType::F32, tile).unwrap());
    for i in 0..144 {
        for j in 0..272 {
            assert_eq!(q.codes()[i * 272 + j], t.codes()[j * 144 + i]);
        }
    }
}

#[test]
fn strided_and_reversed_views_give_the_same_bytes() {
    let wide = matrix(260, 400, 11);
    let view = wide.slice(s![3..133, 16..304]);
    let copy = view.to_owned();
    let every_other = wide.slice(s![..;2, ..;-1]).slice(s![.., 0..288]).to_owned();
    for recipe in Fp8Recipe::all() {
        assert_eq!(quantize(view, DType::F32, recipe).unwrap(), quantize(copy.view(), DType::F32, recipe).unwrap());
        let strided = wide.slice(s![..;2, ..;-1]);
        let strided = strided.slice(s![.., 0..288]);
        assert_eq!(
            quantize(strided, DType::F32, recipe).unwrap(),
            quantize(every_other.view(), DType::F32, recipe).unwrap()
        );
    }
}

#[test]
fn the_amax_is_found_in_every_position() {
    // A BF16 row whose only large value sits in each place in turn: a missed maximum halves a power-of-two scale.
    let recipe = Fp8Recipe::new(Fp8Granularity::Row, E4M3).with_rule(Fp8Rule::DeepSeek).power_of_two();
    let cols = 7168;
    let large = bf16::from_f32(450.0).to_f32();
    let mut x = Array2::from_elem((1, cols), 448.0f32);
    for at in 0..cols {
        x[[0, at]] = large;
        let q = quantize(x.view(), DType::Bf16, recipe).unwrap();
        assert_eq!(q.scale_at(0, 0), 2.0, "at {at}");
        assert!(q.codes().iter().all(|c| *c == 0x76), "at {at}");
        x[[0, at]] = 448.0;
    }
    for granularity in [Fp8Granularity::Group1x128, Fp8Granularity::Group128x128, Fp8Granularity::Tensor] {
        let recipe = Fp8Recipe { granularity, ..recipe };
        let scheme = recipe.scheme();
        let mut x = Array2::from_elem((130, 144), 448.0f32);
        for i in 0..130 {
            for j in (i % 7..144).step_by(7) {
                x[[i, j]] = -large;
                let q = quantize(x.view(), DType::Bf16, recipe).unwrap();
                let spec = scheme.spec();
                let (r, c) = (i / spec.group_rows.size(130), j / spec.group_cols.size(144));
                assert_eq!(q.scale_at(r, c), 2.0, "{scheme} at {i}, {j}");
                assert_eq!(q.logical_scales().iter().filter(|s| **s == 2.0).count(), 1);
                x[[i, j]] = 448.0;
            }
        }
    }
}

#[test]
fn special_values_do_what_the_recipe_says() {
    let mut x = Array2::<f32>::zeros((1, 128));
    x[[0, 1]] = -0.0;
    x[[0, 2]] = f32::NAN;
    x[[0, 3]] = -f32::NAN;
    let floors = [
        (Fp8Rule::TorchAo, 0x2720_D7C5u32),
        (Fp8Rule::TransformerEngine, 0x3F80_0000),
        (Fp8Rule::DeepSeek, (1e-4f32 / 448.0).to_bits()),
        (Fp8Rule::DeepGemm, (1e-4f32 / 448.0).to_bits()),
        (Fp8Rule::DeepGemmCpu, (1e-4f32 / 448.0).to_bits()),
    ];
    for (rule, scale) in floors {
        let q = quantize(x.view(), DType::F32, VECTOR.with_rule(rule)).unwrap();
        assert_eq!(q.codes()[..4], [0x00, 0x80, 0x7F, 0x7F], "{rule:?}");
        assert_eq!(q.scale_at(0, 0).to_bits(), scale, "{rule:?}");
    }
    x[[0, 4]] = f32::NEG_INFINITY;
    x[[0, 5]] = 3.0;
    for scales in Fp8Scales::ALL {
        for rule in Fp8Rule::ALL {
            let q = quantize(x.view(), DType::F32, Fp8Recipe { rule, scales, ..VECTOR }).unwrap();
            let want = match rule {
                // Scale 1: the infinity saturates, the others survive.
                Fp8Rule::TransformerEngine => [0xFE, encode(E4M3, 3.0)],
                // Encode 0: 0 * inf is NaN, finite values become 0.
                _ => [0x7F, 0x00],
            };
            assert_eq!(q.codes()[4..6], want, "{rule:?} {scales:?}");
        }
    }
}

/// `amax / 448.0` of a PyTorch tensor. By hand, in units of the significand: 3 / 448 is 0xDB6DB6 + 6/7, rounded 0xDB6DB7;
/// fl(1 / 448) is 0x924925, and half of 3 * 0x924925 is 0xDB6DB7 + 1/2, a tie, which goes to the even 0xDB6DB8.
#[test]
fn deepgemm_divides_as_pytorch_does_on_the_device() {
    let mut x = Array2::<f32>::zeros((1, 128));
    x[[0, 7]] = -3.0;
    let scale = |rule| quantize(x.view(), DType::F32, VECTOR.with_rule(rule)).unwrap().scale_at(0, 0).to_bits();
    assert_eq!((scale(Fp8Rule::DeepGemm), scale(Fp8Rule::DeepGemmCpu)), (0x3BDB_6DB8, 0x3BDB_6DB7));
    // 55 % of all mantissas, as docs/numerics.md says; powers of two of 448, and the powers of two of UE8M0, never.
    let recipe = |rule| VECTOR.with_rule(rule);
    let both = |amax| [Fp8Rule::DeepGemm, Fp8Rule::DeepGemmCpu].map(|p| recipe(p).group_scale(amax, DType::F32).scale);
    let differ = |mantissa: u32| matches!(both(f32::from_bits(0x3F80_0000 | mantissa)), [a, b] if a != b);
    let count = (0..1u32 << 23).step_by(64).filter(|m| differ(*m)).count();
    assert!((0.545..0.55).contains(&(count as f64 / f64::from(1 << 17))), "{count}");
    for mantissa in (0..1u32 << 23).step_by(1021) {
        let amax = f32::from_bits(0x4200_0000 | mantissa);
        let [a, b] =
            [Fp8Rule::DeepGemm, Fp8Rule::DeepGemmCpu].map(|p| recipe(p).power_of_two().group_scale(amax, DType::F32));
        assert_eq!(a, b, "{amax:e}");
    }
    assert_eq!(both(448.0 * 8.0), [8.0; 2]);
}

/// torchao's `exp2(floor(log2(encode)))` gives 1 here, and 448 units of the amax saturate.
#[test]
fn an_encode_factor_just_below_a_power_of_two_is_rounded_down() {
    let amax = 448.0f32.next_up();
    assert_eq!(VECTOR.group_scale(amax, DType::F32).encode, 1.0f32.next_down());
    assert_eq!(VECTOR.power_of_two().group_scale(amax, DType::F32).encode, 0.5);
}

#[test]
fn given_scales_and_their_amax() {
    let mut x = matrix(33, 48, 5);
    x[[1, 1]] = f32::NAN;
    let amax = x.iter().fold(0.0f32, |a, v| a.max(v.abs()));
    for format in [E4M3, Fp8Format::E5M2] {
        for (given, encode_factor, scale) in
            [(GivenScale::Encode(3.0), 3.0, 1.0 / 3.0), (GivenScale::Decode(0.3), 1.0 / 0.3f32, 0.3)]
        {
            let (q, got) = quantize_tensor(x.view(), format, given).unwrap();
            assert_eq!(got, amax);
            assert_eq!(q.scales(), [scale]);
            let want: Vec<u8> = x.iter().map(|v| encode(format, v * encode_factor)).collect();
            assert_eq!(q.codes(), want);
        }
    }
}

#[test]
fn dequantize_is_code_times_scale_rounded_once_more() {
    let x = matrix(130, 272, 9);
    for recipe in Fp8Recipe::all() {
        let q = quantize(x.view(), DType::F32, recipe).unwrap();
        for out in [DType::F32, DType::Bf16, DType::F16] {
            let (got, want) = (dequantize(&q, out), definition::dequantize(&q, out));
            assert_eq!(got.dim(), want.dim(), "{recipe:?} {out}");
            assert_eq!(got.mapv(f32::to_bits), want.mapv(f32::to_bits), "{recipe:?} {out}");
        }
    }
}

#[test]
fn quantization_error_is_within_half_a_step() {
    // |y - q| <= max(2^-10, 2^-4 |y|) with y = x / scale for E4M3; 2^-3 and 2^-17 for E5M2.
    let x = matrix(130, 576, 2);
    for recipe in Fp8Recipe::all() {
        let q = quantize(x.view(), DType::F32, recipe).unwrap();
        let spec = recipe.scheme().spec();
        let (step, relative) = if spec.format == E4M3 { (2f64.powi(-10), 0.0625) } else { (2f64.powi(-17), 0.125) };
        let mut largest = 0.0f64;
        for ((i, j), v) in x.indexed_iter() {
            let scale = f64::from(q.scale_at(i / spec.group_rows.size(130), j / spec.group_cols.size(576)));
            let (y, code) = (f64::from(*v) / scale, f64::from(decode(recipe.format, q.codes()[i * 576 + j])));
            assert!((y - code).abs() <= (y.abs() * relative).max(step) * (1.0 + 1e-6), "{recipe:?} {y} {code}");
            largest = largest.max(code.abs());
        }
        let max = f64::from(spec.format.max());
        let floor = if recipe.scales == Fp8Scales::PowerOfTwo { max / 2.0 * 0.9 } else { max };
        assert!(largest >= floor && largest <= max, "{recipe:?}: the largest code is {largest}");
    }
}

#[test]
fn signal_to_noise_floors() {
    // Uniform magnitudes in one group: the classic figures (torchao's tests ask 25 dB of E4M3).
    let x = matrix(256, 1024, 21).mapv(|v| v.clamp(-8.0, 8.0));
    for recipe in Fp8Recipe::all() {
        let got = dequantize(&quantize(x.view(), DType::F32, recipe).unwrap(), DType::F32);
        let db = sqnr_db(x.as_slice().unwrap(), got.as_slice().unwrap());
        let floor = if recipe.scheme().spec().format == E4M3 { 28.0 } else { 22.0 };
        assert!(db >= floor, "{recipe:?}: {db} dB");
    }
}

#[test]
fn empty_matrices_work_and_wrong_columns_are_refused() {
    for recipe in Fp8Recipe::all() {
        let nothing = ArrayView2::from_shape((0, 256), &[]).unwrap();
        let q = quantize(nothing, DType::Bf16, recipe).unwrap();
        same(&q, &definition::quantize(nothing, DType::Bf16, recipe).unwrap(), "no rows");
        assert_eq!((q.rows(), q.cols(), q.codes().len()), (0, 256, 0));
        assert_eq!(dequantize(&q, DType::F32).dim(), (0, 256));
        let q = quantize_transposed(ArrayView2::from_shape((0, 256), &[]).unwrap(), DType::Bf16, recipe).unwrap();
        assert_eq!((q.rows(), q.cols()), (256, 0));
        same(&q, &definition::quantize(nothing.t(), DType::Bf16, recipe).unwrap(), "no columns");
        assert_eq!(dequantize(&q, DType::F32).dim(), (256, 0));

        let x = Array2::zeros((16, 24));
        let error = quantize(x.view(), DType::Bf16, recipe).unwrap_err().to_string();
        assert!(error.contains("24") && error.contains("multiple of 16"), "{error}");
        assert!(quantize_transposed(x.view(), DType::Bf16, recipe).is_ok());
        assert!(quantize_transposed(x.t(), DType::Bf16, recipe).is_err());
        let error = quantize(x.slice(s![.., 0..16]), DType::E4M3, recipe).unwrap_err().to_string();
        assert!(error.contains("e4m3"), "{error}");
    }
    assert!(quantize_tensor(Array2::zeros((2, 8)).view(), E4M3, GivenScale::Encode(1.0)).is_err());
    let error = quantize_tensor(Array2::zeros((2, 16)).view(), E4M3, GivenScale::Amax(1.0)).unwrap_err().to_string();
    assert!(error.contains("amax") && error.contains("group_scale"), "{error}");
}

/// DeepGEMM has no codes of E5M2: its rules are refused with them, by quantizers of matrices and of grouped tensors, and not listed.
#[test]
fn a_rule_has_the_codes_of_its_project() {
    let x = Array2::<f32>::ones((4, 128));
    for rule in [Fp8Rule::DeepGemm, Fp8Rule::DeepGemmCpu] {
        for granularity in Fp8Granularity::ALL {
            let recipe = Fp8Recipe::new(granularity, Fp8Format::E5M2).with_rule(rule);
            let error = quantize(x.view(), DType::F32, recipe).unwrap_err().to_string();
            for word in [rule.name(), "e5m2", "E4M3 codes only"] {
                assert!(error.contains(word), "{error}");
            }
            assert!(!Fp8Recipe::all().any(|listed| listed == recipe), "{recipe:?}");
        }
    }
    assert_eq!(Fp8Recipe::all().count(), 2 * 4 * (5 + 3));
}
