//! Launches of the quantizers and dequantizers: `kernels/fp8_*.cu`.

use std::ffi::c_void;

use super::{
    GRID_Y, Kernels, THREADS, address, by_input, check_aligned, check_bytes, check_floats, enqueue, extent,
    format_code, is_aligned, launch,
};
use crate::error::{Error, Result};
use crate::format::layout::ScaleLayout;
use crate::format::{DType, Fp8Format, Fp8Granularity, Fp8Recipe, Fp8Rule, Fp8Scales, Scheme};
use crate::gpu::memory::{LaunchStream, Span};

/// Tiles that one block of `amax_row_column` walks: `STRIP` of `kernels/tile.cuh`.
const STRIP: usize = 4;

/// A plain input of a quantizer, resolved on the stream.
pub(crate) struct Input<'a> {
    pub(crate) x: &'a Span<'a>,
    pub(crate) dtype: DType,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) row_stride: usize,
}

impl Input<'_> {
    pub(super) fn aligned(&self) -> bool {
        is_aligned(self.x.address, self.rows, self.row_stride, self.dtype)
    }

    pub(super) fn check(&self) -> Result<()> {
        let needed = extent(self.rows, self.cols, self.row_stride) * self.dtype.bytes();
        check_bytes("input", self.x, needed)?;
        if !self.cols.is_multiple_of(16) || self.rows > u32::MAX as usize || self.cols > i32::MAX as usize {
            return Err(Error::shape(
                "input",
                format!("{} x {}", self.rows, self.cols),
                "must have a multiple of 16 columns and fewer than 2^31 of each",
                "pad the columns with zeros",
            ));
        }
        Ok(())
    }

    /// The same as one long row where the rows are contiguous: fewer, fuller blocks.
    fn flattened(&self) -> (usize, usize) {
        if self.row_stride == self.cols { (1, self.rows * self.cols) } else { (self.rows, self.cols) }
    }
}

/// Codes and scales that a quantizer writes.
pub(crate) struct Output<'a> {
    pub(crate) codes: &'a Span<'a>,
    pub(crate) scales: &'a Span<'a>,
}

/// The factor of a per-tensor cast, on the device.
#[derive(Clone, Copy)]
pub(crate) enum Factor<'a> {
    /// One FP32 that multiplies the data; the stored scale is its reciprocal.
    Encode(&'a Span<'a>),
    /// One FP32, the stored scale; its reciprocal multiplies the data.
    Decode(&'a Span<'a>),
    /// Two FP32: encode factor and scale, as [`Kernels::amax_tensor`] writes them.
    Computed(&'a Span<'a>),
}

impl Factor<'_> {
    /// Address and kind, as `kernels/tile.cuh` numbers it.
    fn checked(&self) -> Result<(u64, u32)> {
        let (span, kind, count) = match self {
            Self::Encode(span) => (span, 0, 1),
            Self::Decode(span) => (span, 1, 1),
            Self::Computed(span) => (span, 2, 2),
        };
        check_floats("factor", span, count)?;
        Ok((span.address, kind))
    }
}

/// Mirror of `ScaleRule` in `kernels/common.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
struct ScaleRule {
    max: f32,
    overflow: f32,
    rule: u32,
    pow2: u32,
    format: u32,
}

impl ScaleRule {
    fn new(recipe: Fp8Recipe, input: DType) -> Self {
        Self {
            max: recipe.format.max(),
            overflow: recipe.overflow_encode(input),
            rule: match recipe.rule {
                Fp8Rule::TorchAo => 0,
                Fp8Rule::TransformerEngine => 1,
                Fp8Rule::DeepSeek => 2,
                Fp8Rule::DeepGemm => 3,
                Fp8Rule::DeepGemmCpu => 4,
            },
            pow2: (recipe.scales == Fp8Scales::PowerOfTwo) as u32,
            format: format_code(recipe.format),
        }
    }
}

/// Mirror of `TileIn` in `kernels/tile.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct TileIn {
    factor: u64,
    row_amax: u64,
    col_amax: u64,
    factor_kind: u32,
}

/// Mirror of `TileOut` in `kernels/tile.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct TileOut {
    codes: u64,
    scales: u64,
    codes_t: u64,
    scales_t: u64,
}

/// Codes are stored eight at a time, scales one float at a time.
fn check_output(out: &Output<'_>, scheme: Scheme, rows: usize, cols: usize) -> Result<()> {
    check_bytes("codes", out.codes, scheme.code_bytes(rows, cols))?;
    check_aligned("codes", out.codes, 16)?;
    check_bytes("scales", out.scales, scheme.scale_len(rows, cols) * 4)?;
    check_aligned("scales", out.scales, 4)
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
        stream: &LaunchStream,
        x: &Input<'_>,
        recipe: Fp8Recipe,
        state: &Span<'_>,
        factor: Option<&Span<'_>>,
        amax: Option<&Span<'_>>,
    ) -> Result<()> {
        x.check()?;
        check_floats("amax state", state, 2)?;
        factor.map_or(Ok(()), |s| check_floats("factor", s, 2))?;
        amax.map_or(Ok(()), |s| check_floats("amax", s, 1))?;
        let (rows, cols) = x.flattened();
        let y = rows.clamp(1, GRID_Y);
        let blocks = (cols / 8).div_ceil(THREADS as usize * 4).clamp(1, (self.sm_count * 8).div_ceil(y));
        enqueue!(
            stream,
            by_input(&self.amax_tensor, x.dtype, x.aligned())?,
            (blocks, y),
            THREADS,
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
        stream: &LaunchStream,
        x: &Input<'_>,
        format: Fp8Format,
        factor: Factor<'_>,
        out: &Output<'_>,
        amax: Option<&Span<'_>>,
    ) -> Result<()> {
        x.check()?;
        check_output(out, Scheme::Fp8Tensor(format), x.rows, x.cols)?;
        let (factor, kind) = factor.checked()?;
        amax.map_or(Ok(()), |s| check_floats("amax", s, 1))?;
        let (rows, cols) = x.flattened();
        // Two vectors a thread once that still leaves every multiprocessor several blocks.
        let unroll = if rows * cols >= self.sm_count << 15 { 2 } else { 1 };
        let grid = (cols.div_ceil(THREADS as usize * 8 * unroll).max(1), rows.clamp(1, GRID_Y));
        enqueue!(
            stream,
            by_input(&self.quantize_tensor[unroll - 1], x.dtype, x.aligned())?,
            grid,
            THREADS,
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
        stream: &LaunchStream,
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
        enqueue!(
            stream,
            by_input(&self.quantize_row[choice], x.dtype, x.aligned())?,
            (x.rows, 1),
            threads as u32,
            x.x.address,
            x.row_stride as u64,
            x.cols as u32,
            ScaleRule::new(recipe, x.dtype),
            out.codes.address,
            out.scales.address,
        )
    }

    /// Amax and cast of each 1x128 group, in one pass.
    pub(crate) fn quantize_1x128(
        &self,
        stream: &LaunchStream,
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
            (0, (blocks.div_ceil(16), quads * 4))
        };
        enqueue!(
            stream,
            by_input(&self.quantize_1x128[choice], x.dtype, x.aligned())?,
            grid,
            THREADS,
            x.x.address,
            x.row_stride as u64,
            x.rows as u32,
            x.cols as u32,
            ScaleRule::new(recipe, x.dtype),
            out.codes.address,
            out.scales.address,
        )
    }

    /// Amax and cast of each 128x128 tile, in one pass.
    pub(crate) fn quantize_128x128(
        &self,
        stream: &LaunchStream,
        x: &Input<'_>,
        recipe: Fp8Recipe,
        out: &Output<'_>,
    ) -> Result<()> {
        x.check()?;
        check_output(out, recipe.scheme(), x.rows, x.cols)?;
        let tiles = x.rows.div_ceil(128) * x.cols.div_ceil(128);
        // Few tiles: more threads for each.
        let (choice, threads) = if tiles < 2 * self.sm_count { (0, 1024) } else { (1, 512) };
        enqueue!(
            stream,
            by_input(&self.quantize_128x128[choice], x.dtype, x.aligned())?,
            (tiles, 1),
            threads,
            x.x.address,
            x.row_stride as u64,
            x.rows as u32,
            x.cols as u32,
            ScaleRule::new(recipe, x.dtype),
            out.codes.address,
            out.scales.address,
        )
    }

    /// Tiles of 128x128: every scheme whose transposed codes are wanted.
    ///
    /// `factor` is the computed encode factor of the tensor scheme, `amax` the row and column maxima of the row scheme.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn quantize_tiles(
        &self,
        stream: &LaunchStream,
        x: &Input<'_>,
        recipe: Fp8Recipe,
        factor: Option<Factor<'_>>,
        amax: [Option<&Span<'_>>; 2],
        out: Option<&Output<'_>>,
        transposed: Option<&Output<'_>>,
    ) -> Result<()> {
        x.check()?;
        out.map_or(Ok(()), |o| check_output(o, recipe.scheme(), x.rows, x.cols))?;
        transposed.map_or(Ok(()), |o| check_output(o, recipe.scheme(), x.cols, x.rows))?;
        if transposed.is_some() && !x.rows.is_multiple_of(16) {
            return Err(Error::shape(
                "input of a transposing cast",
                format!("{} rows", x.rows),
                "must be a multiple of 16 (they become the columns of an FP8 operand)",
                "pad the rows with zeros",
            ));
        }
        let kernels = match recipe.granularity {
            Fp8Granularity::Tensor => &self.quantize_tensor_transposed,
            Fp8Granularity::Row => &self.quantize_row_transposed,
            Fp8Granularity::Group1x128 => &self.quantize_1x128_transposed,
            Fp8Granularity::Group128x128 => &self.quantize_128x128_transposed,
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
        let (factor, factor_kind) = factor.map_or(Ok((0, 0)), |f| f.checked())?;
        let tile_in = TileIn { factor, row_amax: address(amax[0]), col_amax: address(amax[1]), factor_kind };
        let tile_out = TileOut {
            codes: address(out.map(|o| o.codes)),
            scales: address(out.map(|o| o.scales)),
            codes_t: address(transposed.map(|o| o.codes)),
            scales_t: address(transposed.map(|o| o.scales)),
        };
        enqueue!(
            stream,
            by_input(kernels, x.dtype, x.aligned())?,
            (x.rows.div_ceil(128) * x.cols.div_ceil(128), 1),
            THREADS,
            x.x.address,
            x.row_stride as u64,
            x.rows as u32,
            x.cols as u32,
            ScaleRule::new(recipe, x.dtype),
            tile_in,
            tile_out,
        )
    }

    /// Raises each row's and each column's amax to that of its elements.
    pub(crate) fn amax_row_column(
        &self,
        stream: &LaunchStream,
        x: &Input<'_>,
        rows: Option<&Span<'_>>,
        cols: Option<&Span<'_>>,
    ) -> Result<()> {
        x.check()?;
        rows.map_or(Ok(()), |s| check_floats("row amax", s, x.rows))?;
        cols.map_or(Ok(()), |s| check_floats("column amax", s, x.cols))?;
        enqueue!(
            stream,
            by_input(&self.amax_row_column, x.dtype, x.aligned())?,
            (x.rows.div_ceil(128) * x.cols.div_ceil(128).div_ceil(STRIP), 1),
            THREADS,
            x.x.address,
            x.row_stride as u64,
            x.rows as u32,
            x.cols as u32,
            address(rows),
            address(cols),
        )
    }

    /// `y = round(fl(code * scale))`.
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn dequantize(
        &self,
        stream: &LaunchStream,
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
            by_input(&self.dequantize[choice], dtype, is_aligned(y.address, rows, y_stride, dtype))?,
            grid,
            THREADS,
            input.codes.address,
            input.scales.address,
            rows as u32,
            cols as u32,
            format_code(scheme.spec().format),
            y.address,
            y_stride as u64,
        )
    }

    /// The scales of a 128x128 matrix repeated for each of its rows.
    pub(crate) fn repeat_scales(
        &self,
        stream: &LaunchStream,
        tiles: &Span<'_>,
        n: usize,
        k: usize,
        out: &Span<'_>,
    ) -> Result<()> {
        let blocks = k.div_ceil(128);
        check_bytes("128x128 scales", tiles, ScaleLayout::Blk128.len(n.div_ceil(128), blocks) * 4)?;
        check_bytes("repeated scales", out, ScaleLayout::Vec128.len(n, blocks) * 4)?;
        let grid = (n.next_multiple_of(4).div_ceil(THREADS as usize), blocks.clamp(1, GRID_Y));
        enqueue!(stream, &self.repeat_scales, grid, THREADS, tiles.address, n as u32, k as u32, out.address)
    }
}
