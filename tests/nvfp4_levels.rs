//! NVFP4 with a second level of each row that is given: the rows of an expert as its own level alone makes them.

use ndarray::{Array2, s};
use scaled_gemm::reference::{Noise, dequantize, quantize_with_row_scales, quantize_with_scale};
use scaled_gemm::{
    BlockScaleRule, DType, ErrorMath, ErrorMetric, GivenScale, HostQuantMatrix, Nvfp4Options, Nvfp4Recipe, Recipe,
    Scheme,
};

/// First row, rows and level of each expert; what lies between has a level, too.
const EXPERTS: [(usize, usize, f32); 4] = [(0, 70, 0.02), (128, 1, 3e-5), (256, 127, 0.7), (384, 20, 0.0)];
const ROWS: usize = 410;
const COLS: usize = 272;

/// The plain rule, and every one of 4over6.
fn all_options() -> Vec<Nvfp4Options> {
    let four_over_six = |metric| {
        ErrorMath::ALL.map(|math| Nvfp4Options {
            block_scale: BlockScaleRule::FourOverSix { metric, math },
            ..Nvfp4Options::default()
        })
    };
    ErrorMetric::ALL.into_iter().flat_map(four_over_six).chain([Nvfp4Options::default()]).collect()
}

/// Codes, block scales and scale bits of some rows, which begin a tile of 128.
fn parts_of(q: &HostQuantMatrix, from: usize, count: usize) -> (Vec<u8>, Vec<u8>) {
    let (row, [_, blocks]) = (COLS / 2, q.scheme().block_grid(q.rows(), COLS));
    let codes = q.logical_codes()[from * row..(from + count) * row].to_vec();
    (codes, q.logical_block_scales()[from * blocks..(from + count) * blocks].to_vec())
}

#[test]
fn rows_of_one_level_are_those_of_a_matrix_with_it() {
    let x = Noise::new(71).matrix(ROWS, COLS, DType::Bf16);
    let mut numbers = vec![0.25; ROWS];
    for (start, count, level) in EXPERTS {
        numbers[start..start + count].fill(level);
    }
    for options in all_options() {
        let (rows, one) = (Nvfp4Recipe::rows(options).unwrap(), Nvfp4Recipe::tensor(options).unwrap());
        for kind in [GivenScale::Decode(()), GivenScale::Amax(()), GivenScale::Encode(())] {
            let all = quantize_with_row_scales(x.view(), DType::Bf16, rows, kind.with_number(&numbers[..])).unwrap();
            assert_eq!(all.scheme(), Scheme::Nvfp4Row);
            let values = dequantize(&all, DType::F32);
            for (start, count, level) in EXPERTS {
                let own = s![start..start + count, ..];
                let alone = quantize_with_scale(x.slice(own), DType::Bf16, one, kind.with_number(level)).unwrap();
                let what = format!("{options:?}, {kind:?}, {count} rows from {start} on");
                assert!(parts_of(&all, start, count) == parts_of(&alone, 0, count), "{what}");
                let scale = alone.logical_scales()[0].to_bits();
                assert!(all.logical_scales()[start..start + count].iter().all(|s| s.to_bits() == scale), "{what}");
                // An encode factor of 0 is a scale of infinity.
                if scale != f32::INFINITY.to_bits() {
                    assert_eq!(values.slice(own), dequantize(&alone, DType::F32), "{what}");
                }
            }
        }
    }
}

/// What rows of no group get on a GPU.
#[test]
fn rows_of_an_empty_level_read_as_zeros() {
    let x = Array2::from_shape_fn((3, 32), |(i, j)| [0.0, f32::NAN, 3e38, -1.0][(i + j) % 4]);
    for (kind, none) in
        [(GivenScale::Decode(()), 0.0), (GivenScale::Amax(()), 0.0), (GivenScale::Encode(()), f32::INFINITY)]
    {
        for options in all_options() {
            let recipe = Nvfp4Recipe::rows(options).unwrap();
            let q = quantize_with_row_scales(x.view(), DType::F32, recipe, kind.with_number(&[none; 3][..])).unwrap();
            assert_eq!(q.logical_scales()[..], [0.0; 3], "{kind:?}, {options:?}");
            assert!(dequantize(&q, DType::F32).iter().all(|v| *v == 0.0), "{kind:?}, {options:?}");
        }
    }
}

#[test]
fn levels_are_one_for_each_row_of_nvfp4_row() {
    let x = Array2::<f32>::ones((3, 32));
    let said = |recipe: Recipe, numbers: &[f32]| {
        let scales = GivenScale::Decode(numbers);
        quantize_with_row_scales(x.view(), DType::F32, recipe, scales).unwrap_err().to_string()
    };
    let short = said(Recipe::new(Scheme::Nvfp4Row), &[1.0; 2]);
    assert!(short.contains("2 numbers") && short.contains("must be 3"), "{short}");
    for scheme in [Scheme::Nvfp4, Scheme::Mxfp4] {
        let other = said(Recipe::new(scheme), &[1.0; 3]);
        assert!(other.contains(&format!("with {scheme}")) && other.contains("nvfp4-row alone"), "{other}");
    }
    let none = Array2::zeros((3, 0));
    let recipe = Recipe::new(Scheme::Nvfp4Row);
    let q = quantize_with_row_scales(none.view(), DType::F32, recipe, GivenScale::Decode(&[1.0; 3][..])).unwrap();
    assert_eq!(q.logical_scales()[..], [0.0; 3]);
}
