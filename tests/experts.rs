//! Rows of experts: groups that begin at multiples of 128 rows of one matrix, with anything between them, are quantized as if each were alone; the signal that their products keep.

#[path = "common/experts_signal.rs"]
mod experts_signal;

use experts_signal::{GROUPS as EXPERTS, Tokens, asked, assert_kept, kept_on_the_cpu};
use ndarray::{Array2, s};
use scaled_gemm::reference::{Noise, dequantize, quantize};
use scaled_gemm::{DType, Fp8Format, HostQuantMatrix, Recipe, Scheme};

/// First row and rows of each group, of 896 rows: one of exactly a tile, one without rows, one of more than a tile, one of a single row.
const GROUPS: [(usize, usize); 6] = [(0, 100), (128, 128), (256, 0), (256, 133), (512, 1), (640, 200)];
const ROWS: usize = 896;

/// Codes of `count` rows from row `from` on, `row` bytes each.
fn codes_of_rows(q: &HostQuantMatrix, row: usize, from: usize, count: usize) -> Vec<u8> {
    q.logical_codes()[from * row..(from + count) * row].to_vec()
}

/// `gap`: what rows of no group hold.
fn check(scheme: Scheme, gap: f32) {
    let cols = 288;
    let mut noise = Noise::new(31);
    let mut x = Array2::from_elem((ROWS, cols), gap);
    for (g, (start, count)) in GROUPS.into_iter().enumerate() {
        let rows = noise.matrix(count, cols, DType::Bf16) * 4f32.powi(g as i32 - 2);
        x.slice_mut(s![start..start + count, ..]).assign(&rows);
    }
    let recipe = Recipe::new(scheme);
    let all = quantize(x.view(), DType::Bf16, recipe).unwrap();
    let (values, row) = (dequantize(&all, DType::F32), all.logical_codes().len() / ROWS);
    for (start, count) in GROUPS {
        let rows = s![start..start + count, ..];
        let alone = quantize(x.slice(rows), DType::Bf16, recipe).unwrap();
        let what = format!("{scheme}, {count} rows from {start} on, gaps of {gap}");
        assert!(codes_of_rows(&all, row, start, count) == codes_of_rows(&alone, row, 0, count), "codes of {what}");
        assert_eq!(values.slice(rows), dequantize(&alone, DType::F32), "{what}");
    }
}

#[test]
fn scales_along_rows_see_their_row_alone() {
    for format in Fp8Format::ALL {
        for scheme in [Scheme::Fp8Row(format), Scheme::Fp8Group1x128(format), Scheme::Mxfp8(format)] {
            check(scheme, f32::NAN);
        }
    }
    for scheme in [Scheme::Mxfp4, Scheme::Nvfp4Row] {
        check(scheme, 3e38);
    }
}

#[test]
fn tiles_of_128_rows_see_one_group_and_the_zeros_behind_it() {
    for format in Fp8Format::ALL {
        check(Scheme::Fp8Group128x128(format), 0.0);
    }
}

/// Forward, dX and dW of every kind of scales and each expert, of the codes that it has alone: as much as the suite of the GPU asks.
#[test]
fn products_of_experts_keep_the_signal_that_their_codes_allow() {
    for asked in asked() {
        for outliers in [false, true] {
            let tokens = Tokens::new(outliers);
            for g in 0..EXPERTS {
                let what = format!("{:?}, outliers {outliers}, group {g}", asked.pairs);
                assert_kept(&asked, outliers, kept_on_the_cpu(&asked, &tokens, g), &what);
            }
        }
    }
}
