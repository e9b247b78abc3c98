//! Parts of a quantized matrix, so that a large product can be checked where it is cheap to.

use crate::error::{Error, Result};
use crate::format::{Extent, HostQuantMatrix};

/// Up to `len` rows from row `start` on as a matrix of their own; `start` is a multiple of 128, so that no tile is cut.
///
/// The product of these rows is that part of the whole product. Allocates.
///
/// # Errors
/// [`Error::Shape`] if `start` is not a multiple of 128, or not a row of the matrix.
pub fn rows_of(q: &HostQuantMatrix, start: usize, len: usize) -> Result<HostQuantMatrix> {
    if !start.is_multiple_of(128) || start >= q.rows() {
        return Err(Error::shape(
            "rows",
            format!("start {start} of {} rows", q.rows()),
            "must be a multiple of 128 inside the matrix",
            "begin at a tile",
        ));
    }
    let (scheme, cols) = (q.scheme(), q.cols());
    let len = len.min(q.rows() - start);
    let [row_groups, col_groups] = scheme.scale_grid(len, cols);
    let first = match scheme.spec().group_rows {
        Extent::All => 0,
        Extent::Elements(size) => start / size,
    };
    let scales: Vec<f32> =
        (0..row_groups * col_groups).map(|i| q.scale_at(first + i / col_groups, i % col_groups)).collect();
    let [block_rows, blocks] = scheme.block_grid(len, cols);
    let block_scales: Vec<u8> =
        (0..block_rows * blocks).map(|i| q.block_scale_at(start + i / blocks, i % blocks)).collect();
    let codes = (start..start + len).flat_map(|row| q.row_codes(row)).copied().collect();
    HostQuantMatrix::from_block_logical(scheme, len, cols, codes, &scales, &block_scales)
        .map(|part| part.assume_basis(q.basis()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{DType, Fp8Format, Recipe, Scheme};
    use crate::reference::{Noise, dequantize, quantize};
    use ndarray::s;

    #[test]
    fn rows_keep_their_values_in_every_scheme() {
        let x = Noise::new(5).matrix(300, 272, DType::F32);
        let blocks = [Scheme::Nvfp4, Scheme::Nvfp4Row, Scheme::Mxfp8(Fp8Format::E4M3), Scheme::Mxfp4];
        for scheme in Scheme::FP8.into_iter().chain(blocks) {
            let q = quantize(x.view(), DType::F32, Recipe::new(scheme)).unwrap();
            let whole = dequantize(&q, DType::F32);
            for (start, len, rows) in [(0, 8, 8), (128, 128, 128), (256, 128, 44)] {
                let part = rows_of(&q, start, len).unwrap();
                assert_eq!(dequantize(&part, DType::F32), whole.slice(s![start..start + rows, ..]), "{scheme} {start}");
            }
            for start in [1, 64, 384] {
                assert!(matches!(rows_of(&q, start, 8), Err(Error::Shape { .. })), "{start}");
            }
        }
    }
}
