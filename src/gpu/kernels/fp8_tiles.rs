//! Launches for FP8 with FP32 scales, in tiles of 128x128 that are written by rows and transposed: the `*_transposed` kernels of `kernels/cast/fp8_*.cu`, and the
//! amax of rows and columns that goes before one of them.

use super::Kernels;
use super::launch::{Blocks, THREADS, enqueue_cast};
use super::linear::check_column_sums;
use super::operand::{Factor, Input, Output, address, check_floats, check_output};
use super::scale_rule::ScaleRule;
use crate::error::{Error, Result};
use crate::format::pair::K_MULTIPLE;
use crate::format::{Fp8Granularity, Fp8Recipe};
use crate::gpu::device::memory::Span;
use crate::gpu::device::stream::Queue;

/// Tiles that one block of `amax_row_column` walks: `STRIP` of `kernels/cast/tile.cuh`.
const STRIP: usize = 2;

/// Mirror of `TileIn` in `kernels/cast/tile.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct TileIn {
    factor: u64,
    row_amax: u64,
    col_amax: u64,
    factor_kind: u32,
}

/// Mirror of `TileOut` in `kernels/cast/tile.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct TileOut {
    codes: u64,
    scales: u64,
    codes_t: u64,
    scales_t: u64,
}

impl Kernels {
    /// Tiles of 128x128: every scheme whose transposed codes are wanted. The columns of the transpose are the rows of X, filled up with
    /// zeros to a multiple of 16. `sums` receives the column sums of each 128 rows, in f64, for [`Kernels::bias_gradient`].
    ///
    /// `factor` is the computed encode factor of the tensor scheme, `amax` the row and column maxima of the row scheme.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn quantize_tiles(
        &self,
        stream: &Queue,
        x: &Input<'_>,
        recipe: Fp8Recipe,
        factor: Option<Factor<'_>>,
        amax: [Option<&Span<'_>>; 2],
        out: Option<&Output<'_>>,
        transposed: Option<&Output<'_>>,
        sums: Option<&Span<'_>>,
    ) -> Result<()> {
        x.check()?;
        out.map_or(Ok(()), |o| check_output(o, recipe.scheme(), x.rows, x.cols))?;
        let cols_t = x.rows.next_multiple_of(K_MULTIPLE);
        transposed.map_or(Ok(()), |o| check_output(o, recipe.scheme(), x.cols, cols_t))?;
        let family = self.fp8(stream)?;
        let kernels = match recipe.granularity {
            Fp8Granularity::Tensor => &family.quantize_tensor_transposed,
            Fp8Granularity::Row => &family.quantize_row_transposed,
            Fp8Granularity::Group1x128 => &family.quantize_1x128_transposed,
            Fp8Granularity::Group128x128 => &family.quantize_128x128_transposed,
        };
        let needed = |name: &str, span: Option<&Span<'_>>, count: usize, wanted: bool| match span {
            Some(span) => check_floats(name, span, count),
            None if wanted => Err(Error::shape(name, "nothing", "must be given for this scheme", "compute it first")),
            None => Ok(()),
        };
        let per_row = recipe.granularity == Fp8Granularity::Row;
        needed("row amax", amax[0], x.rows, per_row && out.is_some())?;
        needed("column amax", amax[1], x.cols, per_row && transposed.is_some())?;
        if factor.is_none() && recipe.granularity == Fp8Granularity::Tensor {
            return Err(Error::shape("factor", "nothing", "must be given for this scheme", "compute it first"));
        }
        let (factor, factor_kind) = factor.map_or(Ok((0, 0)), |f| f.of_fp8())?;
        let tile_in = TileIn { factor, row_amax: address(amax[0]), col_amax: address(amax[1]), factor_kind };
        let tile_out = TileOut {
            codes: address(out.map(|o| o.codes)),
            scales: address(out.map(|o| o.scales)),
            codes_t: address(transposed.map(|o| o.codes)),
            scales_t: address(transposed.map(|o| o.scales)),
        };
        let blocks = Blocks::new((x.rows.div_ceil(128) * x.cols.div_ceil(128), 1), THREADS);
        let rule = ScaleRule::new(recipe, x.dtype);
        let Some(sums) = sums else { return enqueue_cast!(stream, kernels, x, blocks, rule, tile_in, tile_out) };
        check_column_sums(sums, x.rows, x.cols)?;
        let [tensor, row, vector] = &self.linear(stream)?.quantize_gradient;
        let summing = match recipe.granularity {
            Fp8Granularity::Tensor => tensor,
            Fp8Granularity::Row => row,
            Fp8Granularity::Group1x128 => vector,
            Fp8Granularity::Group128x128 => {
                return Err(Error::unsupported(
                    "column sums beside a cast to fp8-128x128",
                    "tiles are for weights, of which nothing needs them",
                    "cast to fp8-1x128",
                ));
            }
        };
        enqueue_cast!(stream, summing, x, blocks, rule, tile_in, tile_out, sums.address)
    }

    /// Raises each row's and each column's amax to that of its elements.
    pub(crate) fn amax_row_column(
        &self,
        stream: &Queue,
        x: &Input<'_>,
        rows: Option<&Span<'_>>,
        cols: Option<&Span<'_>>,
    ) -> Result<()> {
        x.check()?;
        check_floats("row amax", rows, x.rows)?;
        check_floats("column amax", cols, x.cols)?;
        if x.rows == 0 || x.cols == 0 {
            return Ok(());
        }
        enqueue_cast!(
            stream,
            self.fp8(stream)?.amax_row_column,
            x,
            Blocks::new((x.rows.div_ceil(128) * x.cols.div_ceil(128).div_ceil(STRIP), 1), THREADS),
            address(rows),
            address(cols),
        )
    }
}
