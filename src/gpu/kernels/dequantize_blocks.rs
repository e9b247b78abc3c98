//! Launches that dequantize codes with block scales, of any scheme: kernels of `kernels/cast/nvfp4.cu`, `mxfp8.cu` and `mxfp4.cu`.

use super::Kernels;
use super::launch::{Blocks, GRID_Y, THREADS, enqueue};
use super::operand::{BlockCodes, address, format_code, is_aligned};
use crate::error::Result;
use crate::format::{CodeOrder, DType, Scheme};
use crate::gpu::device::memory::Span;
use crate::gpu::device::stream::Queue;

impl Kernels {
    /// `y[i, j] = round(fl(code * fl(block_scale * scale)))`, rows `y_stride` elements apart.
    pub(crate) fn dequantize_blocks(
        &self,
        stream: &Queue,
        q: &BlockCodes<'_>,
        y: &Span<'_>,
        y_stride: usize,
        dtype: DType,
    ) -> Result<()> {
        q.check(y, y_stride, dtype)?;
        let &BlockCodes { scheme, rows, cols, order, codes, block_scales, scales } = q;
        if rows == 0 || cols == 0 {
            return Ok(());
        }
        let aligned = is_aligned(y.address, rows, y_stride, dtype);
        // Eight rows by eight columns a thread; sixteen blocks along y are a tile of 128 rows.
        let grid = (cols.div_ceil(THREADS as usize * 8), 16 * rows.div_ceil(128).min(GRID_Y / 16));
        let blocks = Blocks::new(grid, THREADS);
        if let Scheme::Mxfp8(format) = scheme {
            return enqueue!(
                stream,
                self.mxfp8(stream)?.dequantize.of(dtype, aligned)?,
                blocks,
                codes.address,
                block_scales.address,
                rows as u32,
                cols as u32,
                format_code(format),
                y.address,
                y_stride as u64,
            );
        }
        if scheme == Scheme::Mxfp4 {
            return enqueue!(
                stream,
                self.mxfp4(stream)?.dequantize.of(dtype, aligned)?,
                blocks,
                codes.address,
                block_scales.address,
                rows as u32,
                cols as u32,
                y.address,
                y_stride as u64,
            );
        }
        enqueue!(
            stream,
            self.nvfp4(stream)?.dequantize[usize::from(order == CodeOrder::Repacked)].of(dtype, aligned)?,
            blocks,
            codes.address,
            block_scales.address,
            address(scales),
            u32::from(scheme == Scheme::Nvfp4Row),
            rows as u32,
            cols as u32,
            y.address,
            y_stride as u64,
        )
    }
}
