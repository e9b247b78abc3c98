//! The NVFP4, MXFP8 and MXFP4 reference quantizers: byte for byte their definition, special values, and what the recipes promise.

#[path = "quantize_blocks/data.rs"]
mod data;

use data::*;
use ndarray::{Array2, ArrayView2, s};
use scaled_gemm::codec::{decode, decode_block_scale, decode_e2m1, encode, encode_e2m1, encode_e4m3, round_to};
use scaled_gemm::reference::definition::nvfp4::{error, multiplier, second_level};
use scaled_gemm::reference::{
    Noise, definition, dequantize, hadamard16, hadamard16_amax, hadamard16_inverse, quantize, quantize_rows,
    quantize_transposed, quantize_transposed_with_scale, quantize_with_scale, sqnr_db,
};
use scaled_gemm::{
    Basis, BlockScaleRule, BlockShape, CodeFormat, CodeRounding, DType, E4m3Bound, ErrorMath, ErrorMetric, GivenScale,
    HostQuantMatrix, MxScaleRule, Mxfp4Recipe, Nvfp4Options, Nvfp4Recipe, Nvfp4Rule, Recipe, Scheme,
};

#[track_caller]
fn defined(q: &HostQuantMatrix, x: &Array2<f32>, source: DType, recipe: Recipe) {
    let want = definition::quantize(x.view(), source, recipe).unwrap();
    assert!(bytes(q) == bytes(&want), "{:?} {source} {recipe:?}", x.dim());
}

#[test]
fn every_recipe_is_its_definition_on_every_shape() {
    for (rows, cols) in [(1, 16), (3, 48), (17, 144), (48, 80), (16, 7168), (1, 7168)] {
        for source in INPUTS {
            let x = hard(rows, cols, source);
            for recipe in recipes().into_iter().filter(|r| takes(*r, rows)) {
                let q = quantize(x.view(), source, recipe).unwrap();
                defined(&q, &x, source, recipe);
                assert_eq!((q.scheme(), q.basis()), (recipe.scheme(), recipe.basis()));
            }
            for recipe in mx_recipes() {
                let q = quantize(x.view(), source, recipe).unwrap();
                defined(&q, &x, source, recipe);
            }
        }
    }
}

#[test]
fn any_bits_give_what_the_definition_gives() {
    for seed in 0..6 {
        // Every pattern of bits: NaN, infinities, zeros, subnormals of both signs; exponents of a whole matrix or near each other.
        let spread = [0xFFFF_FFFF, 0x83FF_FFFF, 0x807F_FFFF][seed % 3];
        let mut noise = Noise::new(70 + seed as u64);
        let x = Array2::from_shape_simple_fn((16, 1104), || match noise.bits() as u32 {
            special @ 0..0x0800_0000 => [0.0, -0.0, f32::NAN, -f32::NAN, f32::INFINITY, 1e-45][special as usize % 6],
            bits => f32::from_bits(bits & spread ^ (0x3F80_0000 & !spread)),
        });
        for recipe in recipes().into_iter().chain(mx_recipes()) {
            let q = quantize(x.view(), DType::F32, recipe).unwrap();
            defined(&q, &x, DType::F32, recipe);
            for out in INPUTS {
                let (got, want) = (dequantize(&q, out), definition::dequantize(&q, out));
                let same = |(a, b): (&f32, &f32)| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
                assert!(got.iter().zip(&want).all(same), "{recipe:?} {out}");
            }
        }
    }
}

/// Squares of strict errors under- and overflow where fast ones do not: far from 1 the two disagree in most blocks.
#[test]
fn numbers_far_from_one_follow_the_formulas_too() {
    for exponent in [-126, -60, -57, -50, 60, 80, 100, 124] {
        let x = Noise::new(23).matrix(16, 80, DType::F32).mapv(|v| v * 2f32.powi(exponent));
        for source in [DType::Bf16, DType::F32] {
            let x = x.mapv(|v| round_to(source, v));
            for recipe in recipes() {
                let q = quantize(x.view(), source, recipe).unwrap();
                defined(&q, &x, source, recipe);
            }
        }
    }
}

#[test]
fn transposed_is_quantize_of_the_transpose() {
    let x = hard(48, 80, DType::Bf16);
    let t = x.t().as_standard_layout().to_owned();
    for recipe in recipes() {
        let q = quantize_transposed(x.view(), DType::Bf16, recipe).unwrap();
        assert_eq!((q.rows(), q.cols()), (80, 48));
        defined(&q, &t, DType::Bf16, recipe);
    }
    for recipe in mx_recipes() {
        defined(&quantize_transposed(x.view(), DType::Bf16, recipe).unwrap(), &t, DType::Bf16, recipe);
    }
    // With plain scales a tile is its own transpose: one scale, transposed codes.
    let tiles = options(Nvfp4Options { shape: BlockShape::Tile16x16, ..Nvfp4Options::default() });
    let [q, t] = [quantize, quantize_transposed].map(|f| f(x.view(), DType::Bf16, tiles).unwrap());
    let (q_codes, t_codes) = (codes(&q), codes(&t));
    for i in 0..48 {
        for j in 0..80 {
            assert_eq!(q_codes[i * 80 + j], t_codes[j * 48 + i]);
            assert_eq!(q.block_scale_at(i, j / 16), t.block_scale_at(j, i / 16));
        }
    }
}

#[test]
fn a_given_second_level_takes_the_place_of_the_amax() {
    let x = hard(33, 48, DType::F32);
    let largest = amax(&x);
    for recipe in recipes().into_iter().filter(|r| r.scheme() == Scheme::Nvfp4 && takes(*r, 33)) {
        for factor in [1.0f32, 0.25, 3.0] {
            let number = largest * factor;
            for given in [GivenScale::Amax(number), GivenScale::Encode(900.0 / number), GivenScale::Decode(number)] {
                let q = quantize_with_scale(x.view(), DType::F32, recipe, given).unwrap();
                let want = definition::quantize_with_scale(x.view(), DType::F32, recipe, given).unwrap();
                assert!(bytes(&q) == bytes(&want), "{given:?} {recipe:?}");
            }
        }
        let t = x.slice(s![0..32, ..]);
        let given = GivenScale::Amax(largest);
        let q = quantize_transposed_with_scale(t, DType::F32, recipe, given).unwrap();
        let want = definition::quantize_with_scale(t.t(), DType::F32, recipe, given).unwrap();
        assert!(bytes(&q) == bytes(&want), "{recipe:?}");
    }
    // Powers of two times 2688 say the same in all three ways.
    for power in [0.25f32, 1.0, 8.0] {
        let of = |given| quantize_with_scale(x.view(), DType::F32, PLAIN, given).unwrap();
        let q = of(GivenScale::Amax(2688.0 * power));
        assert_eq!(q.scales(), [power]);
        assert_eq!(q, of(GivenScale::Decode(power)));
        assert_eq!(q, of(GivenScale::Encode(1.0 / power)));
    }
    for scheme in [Scheme::Nvfp4Row, Scheme::Mxfp8(E4M3), Scheme::Mxfp4, Scheme::Fp8Tensor(E4M3)] {
        let recipe = Recipe::new(scheme);
        let error = quantize_with_scale(x.view(), DType::F32, recipe, GivenScale::Amax(1.0)).unwrap_err().to_string();
        assert!(error.contains(recipe.scheme().spec().name) && error.contains("nvfp4"), "{error}");
    }
}

/// Parts that know the amax of the whole and their first row, also of Hadamard and stochastic recipes.
#[test]
fn rows_have_the_bytes_that_they_have_in_the_whole() {
    let (rows, cols) = (64, 144);
    let x = hard(rows, cols, DType::Bf16);
    let mut parted = 0;
    for recipe in recipes().into_iter().chain(mx_recipes()) {
        let whole = quantize(x.view(), DType::Bf16, recipe).unwrap();
        let amax = match recipe.basis() {
            Basis::Plain => amax(&x),
            Basis::Hadamard16 => hadamard16_amax(x.as_slice().unwrap()),
        };
        for step in [16, 48] {
            for from in (0..rows).step_by(step) {
                let some = from..(from + step).min(rows);
                let part = x.slice(s![some.clone(), ..]);
                let q = quantize_rows(part, DType::Bf16, recipe, GivenScale::Amax(amax), from).unwrap();
                assert_eq!(codes(&q), codes(&whole)[from * cols..some.end * cols], "{recipe:?} {some:?}");
                for row in some.clone() {
                    for block in 0..q.scheme().block_grid(1, cols)[1] {
                        assert_eq!(q.block_scale_at(row - from, block), whole.block_scale_at(row, block), "{recipe:?}");
                    }
                }
                parted += 1;
            }
        }
        if recipe.scheme() == Scheme::Nvfp4 {
            let q = quantize_rows(x.view(), DType::Bf16, recipe, GivenScale::Amax(amax), 0).unwrap();
            assert_eq!(q.scales()[0].to_bits(), whole.scales()[0].to_bits(), "{recipe:?}");
        }
    }
    assert!(parted > 100, "{parted}");
}

/// Tiles of such a part would be others than those of the whole.
#[test]
fn parts_that_begin_within_a_tile_are_refused() {
    let x = hard(32, 144, DType::Bf16);
    let whole = GivenScale::Amax(amax(&x));
    let part = |recipe: Recipe, from| quantize_rows(x.view(), DType::Bf16, recipe, whole, from);
    let tiles = Nvfp4Options { shape: BlockShape::Tile16x16, ..Nvfp4Options::PLAIN };
    let tiles: Recipe = Nvfp4Recipe::tensor(tiles).unwrap().into();
    for (recipe, rows) in [(tiles, 16), (Recipe::new(Scheme::Fp8Group128x128(E4M3)), 128)] {
        for from in [1, 5, rows - 1, rows + 1, rows + rows / 2] {
            let error = part(recipe, from).unwrap_err().to_string();
            let rule = format!("first row of x: {from} must be a multiple of {rows}");
            assert!(error.contains(&rule) && error.contains("cut the matrix between tiles"), "{error}");
        }
        assert!(part(recipe, rows).is_ok() && part(recipe, 3 * rows).is_ok(), "{recipe:?}");
    }
    for scheme in [Scheme::Nvfp4, Scheme::Nvfp4Row, Scheme::Mxfp4, Scheme::Fp8Tensor(E4M3), Scheme::Fp8Group1x128(E4M3)]
    {
        assert!(part(Recipe::new(scheme), 5).is_ok(), "{scheme}");
    }
}

#[test]
fn strided_views_give_the_same_bytes() {
    let wide = hard(96, 160, DType::Bf16);
    let strided = wide.slice(s![..;-2, 16..144]);
    let copy = strided.as_standard_layout().to_owned();
    for recipe in recipes().into_iter().chain(mx_recipes()) {
        let [a, b] = [strided, copy.view()].map(|x| quantize(x, DType::Bf16, recipe).unwrap());
        assert_eq!(a, b, "{recipe:?}");
    }
}

/// By hand, in units of the significand: 33 / 2688 is 0xC92492 + 0.29; fl(1 / 2688) is 0xC30C31, 0.24 too high, and its 33-fold
/// is 0xC92492 + 0.53, which rounds up. 0x40E3FFFF is 7.125 - 2^-21; a sixth of it lies 2/3 of a unit below 1.1875, the tie of
/// the E4M3 numbers 1.125 and 1.25; fl(1/6) is 3.0e-8 of itself too high, 0.30 of a unit there, so that on CUDA it is the tie,
/// which goes to the even 1.25.
#[test]
fn torchao_divides_as_pytorch_does_on_the_device() {
    let mut x = Array2::<f32>::zeros((1, 32));
    x[[0, 0]] = f32::from_bits(0x40E3_FFFF);
    x[[0, 1]] = 3.0;
    x[[0, 20]] = 33.0;
    let run = |rule, amax| {
        let recipe = torchao(rule);
        let given = quantize_with_scale(x.view(), DType::F32, recipe, GivenScale::Amax(amax)).unwrap();
        let found = quantize(x.view(), DType::F32, recipe).unwrap();
        (found.scales()[0].to_bits(), given.block_scale_at(0, 0), given.row_codes(0)[0])
    };
    // Codes of 7.125 and 3: 6 and 2 with the scale 1.25, 6 and 3 with 1.125.
    assert_eq!(run(Nvfp4Rule::TorchAo, 2688.0), (0x3C49_2493, 0x3A, 0x47));
    assert_eq!(run(Nvfp4Rule::TorchAoCpu, 2688.0), (0x3C49_2492, 0x39, 0x57));
}

#[test]
fn zeros_and_special_values() {
    for recipe in recipes() {
        // Nothing but zeros: codes keep signs, everything decodes to zero.
        let mut x = Array2::<f32>::zeros((16, 32));
        x[[3, 5]] = -0.0;
        let q = quantize(x.view(), DType::F32, recipe).unwrap();
        let floor = if options_of(recipe).rule != Nvfp4Rule::TransformerEngine { 0x08 } else { 0x00 };
        assert!(q.logical_block_scales().iter().all(|s| *s == floor), "{recipe:?}");
        assert!(q.scales().iter().all(|s| *s == 0.0), "{recipe:?}");
        assert!(dequantize(&q, DType::F32).iter().all(|v| *v == 0.0), "{recipe:?}");
        if recipe.basis() == Basis::Plain {
            assert_eq!(q.row_codes(3)[2], 0x80, "{recipe:?}");
        }
        // A row of zeros and NaN among others: NaN is no amax, and becomes 6 times the scale.
        let mut x = Noise::new(3).matrix(16, 32, DType::F32);
        x.row_mut(2).fill(0.0);
        x[[2, 1]] = f32::NAN;
        x[[2, 20]] = -f32::NAN;
        let q = quantize(x.view(), DType::F32, recipe).unwrap();
        defined(&q, &x, DType::F32, recipe);
        if recipe.basis() == Basis::Plain {
            assert_eq!((q.row_codes(2)[0] >> 4, q.row_codes(2)[10] & 15), (7, 7), "{recipe:?}");
        }
        if options_of(recipe).shape == BlockShape::Row1x16 && recipe.basis() == Basis::Plain {
            assert_eq!([q.block_scale_at(2, 0), q.block_scale_at(2, 1)], [floor; 2], "{recipe:?}");
        }
        // Infinity: the encode factor is 1, the stored scale infinite.
        x[[9, 17]] = f32::NEG_INFINITY;
        let q = quantize(x.view(), DType::F32, recipe).unwrap();
        defined(&q, &x, DType::F32, recipe);
        assert!(q.scale_at(if recipe.scheme() == Scheme::Nvfp4Row { 9 } else { 0 }, 0).is_infinite(), "{recipe:?}");
        if options_of(recipe).rule == Nvfp4Rule::TransformerEngine && recipe.basis() == Basis::Plain {
            assert_eq!(q.row_codes(9)[8] >> 4, 15, "{recipe:?}");
            assert_eq!(q.block_scale_at(9, 1), 0x7E, "{recipe:?}");
        }
    }
    for recipe in mx_recipes() {
        let mut x = Array2::<f32>::zeros((4, 48));
        (x[[0, 1]], x[[1, 2]], x[[2, 33]]) = (-0.0, f32::NAN, f32::INFINITY);
        x[[2, 34]] = 1.0;
        // The smallest subnormal: byte 0 and no flush to zero.
        x[[3, 0]] = 2f32.powi(-130);
        let q = quantize(x.view(), DType::F32, recipe).unwrap();
        assert_eq!(q.scales(), [0.0f32; 0]);
        let inf = if rule_of(recipe) == MxScaleRule::Up { 254 } else { 255 };
        assert_eq!(q.logical_block_scales(), [0, 0, 0, 0, 0, inf, 0, 0], "{recipe:?}");
        // Minus zero, NaN, infinity, and a subnormal that is an eighth of its scale.
        let code: fn(CodeFormat, f32) -> u8 = |format, v| format.fp8().map_or_else(|| encode_e2m1(v), |f| encode(f, v));
        let largest = if inf == 254 { f32::INFINITY } else { f32::NAN };
        let want = [-0.0, f32::NAN, largest, 0.125].map(|v| code(recipe.format(), v));
        let codes = codes(&q);
        assert_eq!([codes[1], codes[48 + 2], codes[96 + 33], codes[144]], want, "{recipe:?}");
        if let Some(format) = recipe.format().fp8() {
            assert_eq!((codes[1], codes[48 + 2], decode(format, codes[144])), (0x80, 0x7F, 0.125));
        }
    }
    // Rounded to the codes' mantissa this amax is infinite: torchao's main branch gives 255, which loses the block.
    assert_eq!(CodeFormat::ALL.map(|format| MxScaleRule::Even.byte(f32::MAX, format)), [247, 240, 253]);
}

/// Blocks of numerics [4o6_disagree1] and [4o6_disagree2], with the amax of their tensors: E = 256, MAE.
const DISAGREE: [(u32, [u32; 3]); 2] =
    [(0x405D_E000, [0x3FD0_8000, 0x3F9C_6000, 0x3E98_0000]), (0x4060_2000, [0x3F9C_8000, 0x3F6A_C000, 0x3ECC_0000])];

#[test]
fn strict_and_fast_errors_may_choose_differently() {
    for (largest, values) in DISAGREE {
        let mut x = Array2::zeros((3, 48));
        x[[2, 40]] = f32::from_bits(largest);
        values.iter().enumerate().for_each(|(j, v)| x[[1, 16 + j]] = f32::from_bits(*v));
        let scale = |math| {
            let block_scale = BlockScaleRule::FourOverSix { metric: ErrorMetric::Mae, math };
            let o = Nvfp4Options { block_scale, bound: E4m3Bound::Max256, ..Nvfp4Options::default() };
            let q = quantize(x.view(), DType::F32, options(o)).unwrap();
            defined(&q, &x, DType::F32, options(o));
            decode_block_scale(Scheme::Nvfp4.spec().block.unwrap().format, q.block_scale_at(1, 1))
        };
        // Strict maps to 4, with the larger scale.
        assert!(scale(ErrorMath::Strict) > 1.4 * scale(ErrorMath::Fast));
    }
}

/// A tile whose sums differ along rows and columns in the last bit: numerics [fo6_2d_row_col_disagree].
#[test]
fn a_tile_and_its_transpose_may_choose_differently() {
    let cases: serde_json::Value = serde_json::from_str(include_str!("data/numerics.json")).unwrap();
    let cases = cases["5_nvfp4"].as_array().unwrap();
    let tile = &cases.iter().find(|c| c["id"] == "fo6_2d_row_col_disagree").unwrap()["in"];
    let number = |v: &serde_json::Value| f32::from_bits(u32::from_str_radix(v.as_str().unwrap(), 16).unwrap());
    let runs = tile["tile_row_major"]["f32_rle"].as_array().unwrap();
    let values = runs.iter().flat_map(|run| vec![number(&run[1]); run[0].as_u64().unwrap() as usize]).collect();
    let tile_values = Array2::from_shape_vec((16, 16), values).unwrap();
    // In a corner of a matrix whose other tiles are zero, but for the amax of all.
    let mut x = Array2::zeros((32, 48));
    x.slice_mut(s![16.., 32..]).assign(&tile_values);
    x[[0, 0]] = number(&tile["global_amax"]);
    let block_scale = BlockScaleRule::FourOverSix { metric: ErrorMetric::Mae, math: ErrorMath::Strict };
    let recipe = options(Nvfp4Options { block_scale, shape: BlockShape::Tile16x16, ..Nvfp4Options::default() });
    let q = quantize(x.view(), DType::F32, recipe).unwrap();
    let t = quantize_transposed(x.view(), DType::F32, recipe).unwrap();
    defined(&q, &x, DType::F32, recipe);
    defined(&t, &x.t().to_owned(), DType::F32, recipe);
    assert_eq!((q.block_scale_at(16, 2), t.block_scale_at(32, 1)), (0x77, 0x72));
}

#[test]
fn ties_go_to_the_even_code() {
    // Amax 6 * 448 and a block amax of 6 make every factor 1.
    let x = [6.0f32, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.25, -0.75, -1.25, -1.75, -2.5, -3.5, -5.0, -0.0];
    let q =
        quantize_with_scale(ArrayView2::from_shape((1, 16), &x).unwrap(), DType::F32, PLAIN, GivenScale::Amax(2688.0))
            .unwrap();
    assert_eq!(codes(&q), [7, 0, 2, 2, 4, 4, 6, 6, 8, 10, 10, 12, 12, 14, 14, 8]);
    assert_eq!((q.block_scale_at(0, 0), q.scale_at(0, 0)), (0x38, 1.0));
}

#[test]
fn tiny_blocks_have_a_zero_scale_and_decode_to_zero() {
    let mut x = Array2::zeros((1, 32));
    (x[[0, 0]], x[[0, 16]], x[[0, 17]]) = (2688.0, 1e-6, -1e-6);
    let q = quantize(x.view(), DType::F32, PLAIN).unwrap();
    assert_eq!(codes(&q)[16..18], [7, 15]);
    let values = dequantize(&q, DType::F32);
    assert_eq!([values[[0, 16]].to_bits(), values[[0, 17]].to_bits()], [0, 0x8000_0000]);
    // A matrix of subnormals: the encode factor stops at FLT_MAX, and nothing is NaN.
    let x = Array2::from_shape_fn((4, 32), |(i, j)| f32::from_bits((i * 32 + j) as u32 * 1000));
    for recipe in recipes().into_iter().filter(|r| options_of(*r).rule == Nvfp4Rule::TransformerEngine && takes(*r, 4))
    {
        let q = quantize(x.view(), DType::F32, recipe).unwrap();
        defined(&q, &x, DType::F32, recipe);
        assert!(dequantize(&q, DType::F32).iter().all(|v| v.is_finite()), "{recipe:?}");
    }
}

#[test]
fn a_row_times_a_power_of_two_has_the_same_codes() {
    let x = Noise::new(17).matrix(40, 144, DType::F32);
    let mut scaled = x.clone();
    let power = |i: usize| 2f32.powi(i as i32 - 20);
    scaled.rows_mut().into_iter().enumerate().for_each(|(i, mut row)| row.mapv_inplace(|v| v * power(i)));
    for o in four_over_six().into_iter().chain([Nvfp4Options::default()]) {
        let [a, b] = [&x, &scaled].map(|x| quantize(x.view(), DType::F32, by_row(o)).unwrap());
        assert_eq!((a.codes(), a.block_scales()), (b.codes(), b.block_scales()), "{o:?}");
        (0..40).for_each(|i| assert_eq!(a.scale_at(i, 0) * power(i), b.scale_at(i, 0), "{o:?}"));
        // And each row is what it is alone, as a matrix.
        for i in [0, 17, 39] {
            let alone = quantize(x.slice(s![i..i + 1, ..]), DType::F32, options(o)).unwrap();
            assert_eq!((a.row_codes(i), a.scale_at(i, 0)), (alone.row_codes(0), alone.scale_at(0, 0)));
        }
    }
}

#[test]
fn four_over_six_never_errs_more_than_mapping_to_six() {
    let mut x = Noise::new(5).matrix(32, 528, DType::F32);
    // Magnitudes that mapped to 6 fall between the codes 4 and 6: mapping to 4 wins even for a tile. (Not near the largest
    // of all, where both scales are 448.)
    x.slice_mut(s![.., ..64]).mapv_inplace(|v| (1.5 + 0.5 * v.abs().fract()).copysign(v));
    for o in four_over_six() {
        let BlockScaleRule::FourOverSix { metric, math } = o.block_scale else { panic!("plain scales have no error") };
        let level = second_level(GivenScale::Amax(amax(&x)), o.bound, Nvfp4Rule::TransformerEngine);
        for shape in [BlockShape::Row1x16, BlockShape::Tile16x16] {
            let q = quantize(x.view(), DType::F32, options(Nvfp4Options { shape, ..o })).unwrap();
            let height = if shape == BlockShape::Tile16x16 { 16 } else { 1 };
            let mut fours = 0;
            for top in (0..32).step_by(height) {
                for b in 0..33 {
                    let tile = x.slice(s![top..top + height, b * 16..b * 16 + 16]);
                    let lines: Vec<[f32; 16]> =
                        tile.rows().into_iter().map(|r| std::array::from_fn(|j| r[j])).collect();
                    let s6 = encode_e4m3((amax(tile) / 6.0 * level.encode).min(448.0));
                    let s = q.block_scale_at(top, b);
                    let error = |s| error(&lines, s, &level, o.bound, (metric, math));
                    assert!(error(s) <= error(s6), "{o:?} {shape:?}");
                    fours += u32::from(s != s6);
                }
            }
            let tiles = 32 / height as u32 * 33;
            assert!(fours > tiles / 30 && fours < tiles * 3 / 4, "{o:?} {shape:?}: {fours} of {tiles} map to 4");
        }
    }
}

#[test]
fn stochastic_rounding_is_unbiased_and_reproducible() {
    let x = Noise::new(9).matrix(2, 48, DType::F32);
    let recipe = |seed, offset| {
        options(Nvfp4Options { rounding: CodeRounding::Stochastic { seed, offset }, ..Nvfp4Options::default() })
    };
    let of = |seed, offset| quantize(x.view(), DType::F32, recipe(seed, offset)).unwrap();
    assert_eq!(of(1, 2), of(1, 2));
    assert_ne!(of(1, 2), of(1, 3));
    assert_ne!(of(1, 2), of(1 << 32 | 1, 2));
    // A row depends on its place in the matrix alone, not on how many follow.
    let given = GivenScale::Amax(amax(&x));
    let alone = quantize_with_scale(x.slice(s![..1, ..]), DType::F32, recipe(1, 2), given).unwrap();
    assert_eq!(alone.row_codes(0), of(1, 2).row_codes(0));

    // The mean of N draws of one element: each draw is one of two neighbours, a step apart. Hoeffding: a mean of N such
    // draws is farther than t from its expectation with probability 2 exp(-2 N (t / step)^2), which is 2e-14 at
    // t = 4 step / sqrt(N), so 2e-12 for all 96 elements. The expectation itself is off by at most step / 256.
    const N: u32 = 2000;
    let nearest = quantize(x.view(), DType::F32, PLAIN).unwrap();
    let mut sums = vec![0.0f64; 96];
    for offset in 0..u64::from(N) {
        let codes = codes(&of(42, offset));
        sums.iter_mut().zip(codes).for_each(|(sum, code)| *sum += f64::from(decode_e2m1(code)));
    }
    let mut biased = 0;
    for (at, (v, sum)) in x.iter().zip(sums).enumerate() {
        let level = second_level(GivenScale::Amax(amax(&x)), E4m3Bound::Max448, Nvfp4Rule::TransformerEngine);
        let inv = multiplier(nearest.block_scale_at(at / 48, at % 48 / 16), level.encode);
        // Beyond 6 every code is 6.
        let v = f64::from((v * inv).clamp(-6.0, 6.0));
        let step = if v.abs() >= 4.0 {
            2.0
        } else if v.abs() >= 2.0 {
            1.0
        } else {
            0.5
        };
        let off = (sum / f64::from(N) - v).abs();
        assert!(off <= step * (4.0 / f64::from(N).sqrt() + 1.0 / 256.0), "element {at}: {v} has a mean {off} off");
        biased += u32::from((f64::from(decode_e2m1(codes(&nearest)[at])) - v).abs() > step / 8.0);
    }
    assert!(biased > 48, "rounding to nearest would pass this test too");
}

#[test]
fn hadamard_rows_turn_back_and_keep_products() {
    let x = Noise::new(13).matrix(8, 64, DType::F32).mapv(|v| round_to(DType::Bf16, v));
    for block in x.as_slice().unwrap().as_chunks::<16>().0 {
        let y = hadamard16(block);
        let exact = |j: usize| {
            let term = |i: usize| {
                let minus = (0xD7E8 >> i & 1) ^ ((i & j).count_ones() & 1);
                f64::from(block[i]) * if minus == 1 { -0.25 } else { 0.25 }
            };
            (0..16).map(term).sum::<f64>()
        };
        let size = block.iter().map(|v| f64::from(v.abs())).sum::<f64>() / 4.0;
        for (j, y) in y.iter().enumerate() {
            // Half a unit of BF16, and four FP32 additions of numbers up to `size`.
            let bound = exact(j).abs() * 2f64.powi(-8) + 4.0 * size * 2f64.powi(-23);
            assert!((f64::from(*y) - exact(j)).abs() <= bound);
        }
        // The inverse adds the errors of sixteen BF16 numbers, each at most 2^-9 of at most `size`, a quarter each.
        for (back, x) in hadamard16_inverse(&y).iter().zip(block) {
            assert!(f64::from((back - x).abs()) <= size * 4.0 * 2f64.powi(-8));
        }
    }
    // Small integers come back exactly.
    let whole: [f32; 16] = std::array::from_fn(|i| (i as f32 * 7.0) % 5.0 - 2.0);
    assert_eq!(hadamard16_inverse(&hadamard16(&whole)), whole);
    // One large element is spread over its block: the transform's purpose.
    let mut spike = x.clone();
    spike[[0, 5]] = 100.0;
    let hadamard = options(Nvfp4Options { basis: Basis::Hadamard16, ..Nvfp4Options::default() });
    let q = quantize(spike.view(), DType::Bf16, hadamard).unwrap();
    assert_eq!(q.basis(), Basis::Hadamard16);
    let turned: Vec<f32> = spike.as_slice().unwrap().as_chunks().0.iter().flat_map(hadamard16).collect();
    assert_eq!(q.scale_at(0, 0), amax(&turned) / 2688.0, "amax is taken after the transform");
    assert!(amax(&turned) < 30.0);
}

#[test]
fn dequantize_multiplies_block_scale_and_scale_first() {
    let x = hard(33, 80, DType::Bf16);
    for recipe in recipes().into_iter().filter(|r| takes(*r, 33)).chain(mx_recipes()) {
        let q = quantize(x.view(), DType::Bf16, recipe).unwrap();
        let (block, mut codes) = (recipe.scheme().spec().block.unwrap(), vec![0.0; 80]);
        for out in INPUTS {
            let values = dequantize(&q, out);
            for i in 0..33 {
                q.decode_row(i, &mut codes);
                for j in 0..80 {
                    let s = decode_block_scale(block.format, q.block_scale_at(i, j / block.cols));
                    let factor = match recipe.scheme() {
                        Scheme::Nvfp4 => s * q.scale_at(0, 0),
                        Scheme::Nvfp4Row => s * q.scale_at(i, 0),
                        _ => s,
                    };
                    let (got, want) = (values[[i, j]], round_to(out, codes[j] * factor));
                    assert!(got.to_bits() == want.to_bits() || (got.is_nan() && want.is_nan()), "{recipe:?}");
                }
            }
        }
    }
}

/// Signal to noise of normal numbers. A step of E2M1 is 1/2 to 2 for a largest value of 6; published figures for NVFP4 are
/// about 20 dB, for MXFP8 those of its codes less the saturation of the floor rules. MXFP4 loses to NVFP4 by its blocks of 32 and
/// by scales that are up to a factor of 2 off; ceil leaves the codes above 4 unused.
#[test]
fn signal_to_noise_of_normal_numbers() {
    // Twelve uniform numbers added: normal without the far tail, whose one amax would decide what 4over6 can gain.
    let mut noise = Noise::new(21);
    let x = Array2::from_shape_simple_fn((256, 1024), || (0..12).map(|_| noise.uniform()).sum::<f32>() - 6.0);
    let db = |recipe| {
        let q = quantize(x.view(), DType::F32, recipe).unwrap();
        sqnr_db(x.as_slice().unwrap(), dequantize(&q, DType::F32).as_slice().unwrap())
    };
    let tile = |o| options(Nvfp4Options { shape: BlockShape::Tile16x16, ..o });
    let (plain, tiles, rows) = (db(PLAIN), db(tile(Nvfp4Options::default())), db(ROW));
    assert!(plain > 20.0 && rows > 20.0 && tiles > 18.0 && plain > tiles, "{plain} {rows} {tiles}");
    for o in four_over_six() {
        let better = (db(options(o)), db(by_row(o)), db(tile(o)));
        assert!(better.0 > plain + 0.3 && better.1 > rows + 0.3 && better.2 > tiles, "{o:?}: {better:?}");
    }
    for recipe in mx_recipes() {
        let floor = match recipe.format() {
            CodeFormat::E4M3 => 28.0,
            CodeFormat::E5M2 => 24.0,
            CodeFormat::E2M1 if rule_of(recipe) == MxScaleRule::Ceil => 16.5,
            CodeFormat::E2M1 => 18.5,
        };
        assert!(db(recipe) > floor, "{recipe:?}: {}", db(recipe));
    }
    // As the docs of the recipe say.
    let mxfp4 = |rule| db(Recipe::Mxfp4(Mxfp4Recipe { rule }));
    let others = MxScaleRule::ALL.into_iter().filter(|rule| *rule != MxScaleRule::Even);
    assert!(others.map(mxfp4).all(|db| db < mxfp4(MxScaleRule::Even)));
}

#[test]
fn what_does_not_fit_is_refused_with_numbers() {
    let x = Noise::new(1).matrix(33, 48, DType::F32);
    for recipe in recipes().into_iter().filter(|r| !takes(*r, 33)) {
        let error = quantize(x.view(), DType::F32, recipe).unwrap_err().to_string();
        assert!(error.contains("33 rows") && error.contains("multiple of 16"), "{error}");
    }
    for recipe in recipes().into_iter().chain(mx_recipes()) {
        let columns = |cols| quantize(x.slice(s![..16, ..cols]), DType::F32, recipe);
        let error = columns(40).unwrap_err().to_string();
        assert!(error.contains("40 elements along the quantized axis") && error.contains("multiple of 16"), "{error}");
        assert!(quantize_transposed(x.view(), DType::F32, recipe).unwrap_err().to_string().contains("33"));
        assert!(quantize(x.slice(s![..16, ..]), DType::E5M2, recipe).unwrap_err().to_string().contains("e5m2"));
        // No rows, no columns: nothing to do.
        let none = quantize(x.slice(s![..0, ..]), DType::F32, recipe).unwrap();
        assert_eq!(dequantize(&none, DType::F32).dim(), (0, 48));
        assert_eq!(dequantize(&columns(0).unwrap(), DType::F32).dim(), (16, 0));
    }
}
