//! Launches for FP8 with FP32 scales: `kernels/cast/fp8_*.cu`, but for those of `fp8_tensor_once` and `fp8_tiles`.

use super::Kernels;
use super::launch::{Blocks, ByInput, GRID_Y, THREADS, enqueue, enqueue_cast};
use super::module::Modules;
use super::operand::{
    Factor, Input, Output, address, check_aligned, check_bytes, check_floats, check_output, extent, format_code,
    is_aligned,
};
use super::scale_rule::ScaleRule;
use super::small_m_config::{SmallMOperands, most_rows};
use crate::error::{Error, Result};
use crate::format::layout::ScaleLayout;
use crate::format::{DType, Fp8Format, Fp8Recipe, Scheme};
use crate::gpu::device::memory::Span;
use crate::gpu::device::stream::Queue;

/// The kernels of the family.
pub(super) struct Fp8Kernels {
    amax_tensor: ByInput,
    /// For one and two vectors of eight elements in each thread.
    quantize_tensor: [ByInput; 2],
    /// Amax and cast in one launch, in a grid and in one cluster.
    pub(super) quantize_tensor_once: [ByInput; 2],
    pub(super) quantize_tensor_transposed: ByInput,
    /// In the order of [`ScaleLayout`]: one scale, one a row, 1x128, 128x128.
    dequantize: [ByInput; 4],
    /// For 0 (row read twice), 1, 2, 4 and 8 vectors of eight elements in each thread.
    quantize_row: [ByInput; 5],
    pub(super) amax_row_column: ByInput,
    pub(super) quantize_row_transposed: ByInput,
    /// For small matrices, then for one and two groups of each row in each warp.
    quantize_1x128: [ByInput; 3],
    pub(super) quantize_1x128_transposed: ByInput,
    /// For 2 and 4 rows in each thread.
    quantize_128x128: [ByInput; 2],
    pub(super) quantize_128x128_transposed: ByInput,
}

impl Fp8Kernels {
    pub(super) fn of(modules: &Modules) -> Result<Self> {
        let (tensor, row) = (modules.file("cast/fp8_tensor")?, modules.file("cast/fp8_row")?);
        let once = modules.file("cast/fp8_tensor_once")?;
        let group = modules.file("cast/fp8_group")?;
        Ok(Self {
            amax_tensor: tensor.by_input("amax_tensor")?,
            quantize_tensor: [tensor.by_input("quantize_fp8_tensor_1")?, tensor.by_input("quantize_fp8_tensor_2")?],
            quantize_tensor_once: [
                once.by_input("quantize_fp8_tensor_in_grid")?,
                once.by_input("quantize_fp8_tensor_in_cluster")?,
            ],
            quantize_tensor_transposed: tensor.by_input("quantize_fp8_tensor_transposed")?,
            dequantize: [
                tensor.by_input("dequantize_fp8_tensor")?,
                row.by_input("dequantize_fp8_row")?,
                group.by_input("dequantize_fp8_1x128")?,
                group.by_input("dequantize_fp8_128x128")?,
            ],
            quantize_row: [
                row.by_input("quantize_fp8_row_0")?,
                row.by_input("quantize_fp8_row_1")?,
                row.by_input("quantize_fp8_row_2")?,
                row.by_input("quantize_fp8_row_4")?,
                row.by_input("quantize_fp8_row_8")?,
            ],
            amax_row_column: row.by_input("amax_row_column")?,
            quantize_row_transposed: row.by_input("quantize_fp8_row_transposed")?,
            quantize_1x128: [
                group.by_input("quantize_fp8_1x128_small")?,
                group.by_input("quantize_fp8_1x128_1")?,
                group.by_input("quantize_fp8_1x128_2")?,
            ],
            quantize_1x128_transposed: group.by_input("quantize_fp8_1x128_transposed")?,
            quantize_128x128: [group.by_input("quantize_fp8_128x128_2")?, group.by_input("quantize_fp8_128x128_4")?],
            quantize_128x128_transposed: group.by_input("quantize_fp8_128x128_transposed")?,
        })
    }
}

/// The kernels of this file know FP32 scales only.
fn not_fp8(scheme: Scheme) -> Error {
    Error::unsupported(format!("{scheme} in a kernel for FP32 scales"), "it has block scales", "call the block kernel")
}

impl Kernels {
    /// `amax = max |x|`, and from it the encode factor and scale of `recipe` (two FP32 at `factor`).
    ///
    /// `state` (8 bytes) is zero between calls.
    pub(crate) fn amax_tensor(
        &self,
        stream: &Queue,
        x: &Input<'_>,
        recipe: Fp8Recipe,
        state: &Span<'_>,
        factor: Option<&Span<'_>>,
        amax: Option<&Span<'_>>,
    ) -> Result<()> {
        x.check()?;
        check_floats("amax state", state, 2)?;
        check_floats("factor", factor, 2)?;
        check_floats("amax", amax, 1)?;
        let (rows, cols) = x.flattened();
        let y = rows.clamp(1, GRID_Y);
        let blocks = (cols / 8).div_ceil(THREADS as usize * 4).clamp(1, (self.sm_count * 8).div_ceil(y));
        enqueue!(
            stream,
            self.fp8(stream)?.amax_tensor.of(x.dtype, x.aligned())?,
            Blocks::new((blocks, y), THREADS),
            x.x.address,
            x.row_stride as u64,
            rows as u32,
            cols as u64,
            ScaleRule::new(recipe, x.dtype),
            state.address,
            address(factor),
            address(amax),
        )
    }

    /// `code = sat(fl(x * encode))` with one factor for the matrix; raises `amax` to `max |x|` where wanted.
    pub(crate) fn quantize_tensor(
        &self,
        stream: &Queue,
        x: &Input<'_>,
        format: Fp8Format,
        factor: Factor<'_>,
        out: &Output<'_>,
        amax: Option<&Span<'_>>,
    ) -> Result<()> {
        x.check()?;
        check_output(out, Scheme::Fp8Tensor(format), x.rows, x.cols)?;
        let (factor, kind) = factor.of_fp8()?;
        check_floats("amax", amax, 1)?;
        let (rows, cols) = x.flattened();
        // Two vectors a thread once that still leaves every multiprocessor several blocks.
        let unroll = if rows * cols >= self.sm_count << 15 { 2 } else { 1 };
        let grid = (cols.div_ceil(THREADS as usize * 8 * unroll).max(1), rows.clamp(1, GRID_Y));
        enqueue!(
            stream,
            self.fp8(stream)?.quantize_tensor[unroll - 1].of(x.dtype, x.aligned())?,
            Blocks::new(grid, THREADS),
            x.x.address,
            x.row_stride as u64,
            rows as u32,
            cols as u64,
            format_code(format),
            factor,
            kind,
            out.codes.address,
            out.scales.address,
            address(amax),
        )
    }

    /// Amax and cast of each row, the input read once where a row fits in a block's registers.
    pub(crate) fn quantize_row(
        &self,
        stream: &Queue,
        x: &Input<'_>,
        recipe: Fp8Recipe,
        out: &Output<'_>,
    ) -> Result<()> {
        x.check()?;
        check_output(out, recipe.scheme(), x.rows, x.cols)?;
        let vectors = x.cols / 8;
        // Threads for `per` vectors each, whole warps.
        let threads = |per: usize| vectors.div_ceil(per).next_multiple_of(32).max(32);
        let (choice, threads) = if x.rows < 2 * self.sm_count && threads(1) <= 1024 {
            // Few rows: spread each over more threads.
            (1, threads(1))
        } else if x.rows < 2 * self.sm_count && threads(2) <= 1024 {
            (2, threads(2))
        } else if threads(4) <= 256 {
            (3, threads(4))
        } else if threads(8) <= 512 {
            (4, threads(8))
        } else {
            (0, 1024)
        };
        let kernel = self.fp8(stream)?.quantize_row[choice].of(x.dtype, x.aligned())?;
        self.between_products(stream, x.rows, out, |releases| {
            enqueue!(
                stream,
                kernel,
                Blocks::new((x.rows, 1), threads as u32),
                x.x.address,
                x.row_stride as u64,
                x.cols as u32,
                ScaleRule::new(recipe, x.dtype),
                out.codes.address,
                out.scales.address,
                releases,
            )
        })
    }

    /// Enqueues a quantizer of few rows, in the scope of a chain as a link: it is told whether it releases the product behind it.
    fn between_products(
        &self,
        stream: &Queue,
        rows: usize,
        out: &Output<'_>,
        enqueue: impl FnOnce(u32) -> Result<()>,
    ) -> Result<()> {
        let few = rows <= most_rows(SmallMOperands::Fp8);
        let link = stream.link(&[]).filter(|_| few).and_then(|follows| Some((follows, self.end_of_chain()?)));
        enqueue(u32::from(link.is_some()))?;
        if let Some((follows, seal)) = link {
            stream.linked(&[out.codes, out.scales], follows.beside, Some(seal));
        }
        Ok(())
    }

    /// Amax and cast of each 1x128 group, in one pass.
    pub(crate) fn quantize_1x128(
        &self,
        stream: &Queue,
        x: &Input<'_>,
        recipe: Fp8Recipe,
        out: &Output<'_>,
    ) -> Result<()> {
        x.check()?;
        check_output(out, recipe.scheme(), x.rows, x.cols)?;
        let quads = x.rows.div_ceil(4);
        let blocks = x.cols.div_ceil(128);
        // Two groups a warp once that still leaves every multiprocessor several blocks; small matrices get more threads.
        let (choice, grid) = if quads * blocks.div_ceil(16) >= self.sm_count * 16 {
            (2, (quads * blocks.div_ceil(16), 1))
        } else if quads * blocks.div_ceil(8) >= self.sm_count * 4 || quads * 4 > GRID_Y {
            (1, (quads * blocks.div_ceil(8), 1))
        } else {
            let (kernels, grid) = (&self.fp8(stream)?.quantize_1x128[0], (blocks.div_ceil(16), quads * 4));
            return self.between_products(stream, x.rows, out, |releases| {
                enqueue_cast!(
                    stream,
                    kernels,
                    x,
                    Blocks::new(grid, THREADS),
                    ScaleRule::new(recipe, x.dtype),
                    out.codes.address,
                    out.scales.address,
                    releases,
                )
            });
        };
        enqueue_cast!(
            stream,
            self.fp8(stream)?.quantize_1x128[choice],
            x,
            Blocks::new(grid, THREADS),
            ScaleRule::new(recipe, x.dtype),
            out.codes.address,
            out.scales.address,
        )
    }

    /// Amax and cast of each 128x128 tile, in one pass.
    pub(crate) fn quantize_128x128(
        &self,
        stream: &Queue,
        x: &Input<'_>,
        recipe: Fp8Recipe,
        out: &Output<'_>,
    ) -> Result<()> {
        x.check()?;
        check_output(out, recipe.scheme(), x.rows, x.cols)?;
        let tiles = x.rows.div_ceil(128) * x.cols.div_ceil(128);
        // Few tiles: more threads for each.
        let (choice, threads) = if tiles < 2 * self.sm_count { (0, 1024) } else { (1, 512) };
        enqueue_cast!(
            stream,
            self.fp8(stream)?.quantize_128x128[choice],
            x,
            Blocks::new((tiles, 1), threads),
            ScaleRule::new(recipe, x.dtype),
            out.codes.address,
            out.scales.address,
        )
    }

    /// `y = round(fl(code * scale))`.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn dequantize(
        &self,
        stream: &Queue,
        scheme: Scheme,
        rows: usize,
        cols: usize,
        input: &Output<'_>,
        y: &Span<'_>,
        y_stride: usize,
        dtype: DType,
    ) -> Result<()> {
        check_output(input, scheme, rows, cols)?;
        check_bytes("output", y, extent(rows, cols, y_stride) * dtype.bytes())?;
        check_aligned("output", y, dtype.bytes() as u64)?;
        let choice = match scheme.spec().scale_layout {
            ScaleLayout::Scalar => 0,
            ScaleLayout::Outer => 1,
            ScaleLayout::Vec128 => 2,
            ScaleLayout::Blk128 => 3,
            ScaleLayout::Tiled128x4 | ScaleLayout::Absent => return Err(not_fp8(scheme)),
        };
        let grid = (cols.div_ceil(THREADS as usize * 16).max(1), rows.clamp(1, GRID_Y));
        enqueue!(
            stream,
            self.fp8(stream)?.dequantize[choice].of(dtype, is_aligned(y.address, rows, y_stride, dtype))?,
            Blocks::new(grid, THREADS),
            input.codes.address,
            input.scales.address,
            rows as u32,
            cols as u32,
            format_code(scheme.spec().format),
            y.address,
            y_stride as u64,
        )
    }
}
