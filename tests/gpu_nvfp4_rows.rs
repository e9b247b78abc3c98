//! NVFP4 with a second level for each row and 4over6, of so many rows that kernels of their own take them: bytes equal the reference's.
#![cfg(feature = "cuda")]

mod common;
#[path = "common/quantize.rs"]
mod quantize;

use common::*;
use quantize::*;
use scaled_gemm::{DType, MatRef, QuantizeTo, Recipe, Scheme, reference};

/// 4over6 with a second level for each row.
fn recipes() -> Vec<Recipe> {
    four_over_six().into_iter().filter(|recipe| recipe.scheme() == Scheme::Nvfp4Row).collect()
}

/// So many rows that each thread takes two blocks of 16 with strict errors (`RowKernel::Most` in src/gpu/kernels/nvfp4_row_launch.rs): the same 512 rows again and again.
#[test]
fn most_rows_of_strict_four_over_six() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(78);
    let (some, rows, cols) = (512, 16384, 6144);
    for dtype in [DType::Bf16, DType::F16] {
        let x = rows_of_every_kind(&mut rng, some, cols, dtype);
        let data = handle.upload(&bytes_of(dtype, &x).repeat(rows / some)).unwrap();
        let all = MatRef::new(&data, dtype, rows, cols).unwrap();
        for recipe in recipes() {
            let want = reference::quantize(x.view(), dtype, recipe).unwrap();
            let mut out = poisoned_matrix(&handle, Scheme::Nvfp4Row, rows, cols);
            handle.quantize_into(&all, recipe, QuantizeTo::Plain(&mut out)).unwrap();
            let got = out.to_host(&handle).unwrap();
            // Tiles of block scales have 128 rows, so that those of some rows lie together.
            let same = |part: &[u8], want: &[u8]| part.chunks(want.len()).all(|some| some == want);
            assert!(same(got.codes(), want.codes()), "codes, {dtype} {recipe:?}");
            assert!(same(got.block_scales(), want.block_scales()), "block scales, {dtype} {recipe:?}");
            assert!(got.scales().chunks(some).all(|some| some == want.scales()), "scales, {dtype} {recipe:?}");
        }
    }
}
