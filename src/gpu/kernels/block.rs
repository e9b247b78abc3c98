//! Launches of the block-scaled quantizers and dequantizers: `kernels/nvfp4*.cu` and `kernels/mxfp8.cu`.

use std::ffi::c_void;
use std::sync::Arc;

use cudarc::driver::CudaModule;

use super::{
    ByInput, GRID_Y, Input, Kernels, THREADS, address, by_input, check_aligned, check_bytes, check_floats, enqueue,
    extent, format_code, is_aligned, launch,
};
use crate::error::{Error, Result};
use crate::format::{
    Basis, BlockScaleRule, BlockShape, CodeRounding, DType, ErrorMath, ErrorMetric, Fp8Format, MxScaleRule,
    Nvfp4Recipe, Scheme, TorchDevice,
};
use crate::gpu::memory::{LaunchStream, Span};

/// Rows and columns of a tile of `nvfp4_tile.cu`.
const TILE: [usize; 2] = [64, 128];

/// The kernels for block scales.
pub(crate) struct BlockKernels {
    /// By rule: plain, 4over6 with absolute and with squared errors, fast and then strict.
    given: [ByInput; 5],
    /// By rule; first for rows that are read twice, then for rows held in registers.
    row: [[ByInput; 2]; 5],
    /// For the plain rule, rounded to nearest, in the data's own basis; for any.
    tile: [ByInput; 2],
    amax_hadamard: ByInput,
    mxfp8: ByInput,
    mxfp8_tile: ByInput,
    dequantize_nvfp4: ByInput,
    dequantize_mxfp8: ByInput,
}

impl BlockKernels {
    /// From the modules of `nvfp4.cu`, `nvfp4_tile.cu` and `mxfp8.cu`.
    pub(super) fn load(
        [rows, tiles, mx]: [&Arc<CudaModule>; 3],
        by_input: impl Fn(&Arc<CudaModule>, &str) -> Result<ByInput>,
    ) -> Result<Self> {
        let rule = |name: &str| -> Result<[ByInput; 2]> {
            Ok([
                by_input(rows, &format!("quantize_nvfp4_row_{name}_long"))?,
                by_input(rows, &format!("quantize_nvfp4_row_{name}_held"))?,
            ])
        };
        Ok(Self {
            given: [
                by_input(rows, "quantize_nvfp4_plain")?,
                by_input(rows, "quantize_nvfp4_mae")?,
                by_input(rows, "quantize_nvfp4_mse")?,
                by_input(rows, "quantize_nvfp4_strict_mae")?,
                by_input(rows, "quantize_nvfp4_strict_mse")?,
            ],
            row: [rule("plain")?, rule("mae")?, rule("mse")?, rule("strict_mae")?, rule("strict_mse")?],
            tile: [by_input(tiles, "quantize_nvfp4_tile_plain")?, by_input(tiles, "quantize_nvfp4_tile_any")?],
            amax_hadamard: by_input(tiles, "amax_hadamard")?,
            mxfp8: by_input(mx, "quantize_mxfp8")?,
            mxfp8_tile: by_input(mx, "quantize_mxfp8_tile")?,
            dequantize_nvfp4: by_input(rows, "dequantize_nvfp4")?,
            dequantize_mxfp8: by_input(mx, "dequantize_mxfp8")?,
        })
    }
}

/// A block-scaled matrix on the device.
pub(crate) struct BlockCodes<'a> {
    pub(crate) scheme: Scheme,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    pub(crate) codes: &'a Span<'a>,
    pub(crate) block_scales: &'a Span<'a>,
    /// The second level; `None` counts as 1.
    pub(crate) scales: Option<&'a Span<'a>>,
}

/// What a block-scaled quantizer writes; `scales` is not touched for MXFP8.
pub(crate) struct BlockOutput<'a> {
    pub(crate) codes: &'a Span<'a>,
    pub(crate) scales: &'a Span<'a>,
    pub(crate) block_scales: &'a Span<'a>,
}

/// A second level on the device: one FP32, or with [`Given::RowAmax`] one for each row of the output.
#[derive(Clone, Copy)]
pub(crate) enum Given<'a> {
    Amax(&'a Span<'a>),
    Encode(&'a Span<'a>),
    Decode(&'a Span<'a>),
    RowAmax(&'a Span<'a>),
}

impl<'a> Given<'a> {
    /// As `kernels/nvfp4.cuh` numbers it.
    fn kind(self) -> u32 {
        match self {
            Self::Amax(_) | Self::RowAmax(_) => 0,
            Self::Encode(_) => 1,
            Self::Decode(_) => 2,
        }
    }

    fn span(self) -> &'a Span<'a> {
        match self {
            Self::Amax(span) | Self::Encode(span) | Self::Decode(span) | Self::RowAmax(span) => span,
        }
    }

    fn check(self, rows: usize) -> Result<()> {
        let count = if matches!(self, Self::RowAmax(_)) { rows } else { 1 };
        check_floats("second-level scale", self.span(), count)
    }
}

/// Mirror of `Nvfp4Rule` in `kernels/nvfp4.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Nvfp4Rule {
    six_e: f32,
    given: u32,
    rule: u32,
    mse: u32,
    strict: u32,
    tile: u32,
    hadamard: u32,
    stochastic: u32,
    seed: u64,
    offset: u64,
}

impl Nvfp4Rule {
    fn new(recipe: Nvfp4Recipe, given: u32) -> Self {
        let options = recipe.options();
        let (rule, mse, strict) = match (recipe.torchao(), options.block_scale) {
            (Some(TorchDevice::Cuda), _) => (2, 0, 0),
            (Some(TorchDevice::Cpu), _) => (3, 0, 0),
            (None, BlockScaleRule::Plain) => (0, 0, 0),
            (None, BlockScaleRule::FourOverSix { metric, math }) => {
                (1, u32::from(metric == ErrorMetric::Mse), u32::from(math == ErrorMath::Strict))
            }
        };
        let (stochastic, seed, offset) = match options.rounding {
            CodeRounding::Nearest => (0, 0, 0),
            CodeRounding::Stochastic { seed, offset } => (1, seed, offset),
        };
        Self {
            six_e: 6.0 * options.bound.value(),
            // torchao's way to divide an amax has a kind of its own.
            given: if (given, rule) == (0, 2) { 3 } else { given },
            rule,
            mse,
            strict,
            tile: u32::from(options.shape == BlockShape::Tile16x16),
            hadamard: u32::from(options.basis == Basis::Hadamard16),
            stochastic,
            seed,
            offset,
        }
    }

    /// True for the plain rule, rounded to nearest, in the data's own basis; 16x16 tiles or not.
    fn is_plain(&self) -> bool {
        matches!(self, Self { hadamard: 0, stochastic: 0, rule: 0, .. })
    }

    /// Place in the tables of kernels along rows; `None` for what only the tile kernel does.
    fn along_rows(&self) -> Option<usize> {
        match self {
            Self { tile: 0, hadamard: 0, stochastic: 0, rule: 0, .. } => Some(0),
            Self { tile: 0, hadamard: 0, stochastic: 0, rule: 1, mse, strict, .. } => {
                Some((1 + mse + 2 * strict) as usize)
            }
            _ => None,
        }
    }
}

/// Mirror of `Nvfp4Given` in `kernels/nvfp4_tile.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Nvfp4Given {
    rows: u64,
    cols: u64,
    each: u32,
}

/// Mirror of `Nvfp4Out` in `kernels/nvfp4_tile.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Nvfp4Out {
    codes: u64,
    block_scales: u64,
    scales: u64,
    codes_t: u64,
    block_scales_t: u64,
    scales_t: u64,
}

/// Mirror of `MxRule` in `kernels/mxfp8.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct MxRule {
    rounding: u32,
    format: u32,
    inverse_max: f32,
    largest: i32,
    half_step: u32,
}

impl MxRule {
    fn new(rounding: MxScaleRule, format: Fp8Format) -> Self {
        let (largest, mantissa_bits) = match format {
            Fp8Format::E4M3 => (8, 3),
            Fp8Format::E5M2 => (15, 2),
        };
        Self {
            rounding: match rounding {
                MxScaleRule::Up => 0,
                MxScaleRule::Floor => 1,
                MxScaleRule::Ceil => 2,
                MxScaleRule::Even => 3,
                MxScaleRule::Rceil => 4,
            },
            format: format_code(format),
            inverse_max: 1.0 / format.max(),
            largest,
            half_step: 1 << (22 - mantissa_bits),
        }
    }
}

/// Mirror of `MxOut` in `kernels/mxfp8.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct MxOut {
    codes: u64,
    block_scales: u64,
    codes_t: u64,
    block_scales_t: u64,
}

/// Codes are stored eight bytes at a time, block scales up to sixteen.
fn check_output(out: &BlockOutput<'_>, scheme: Scheme, rows: usize, cols: usize) -> Result<()> {
    check_bytes("codes", out.codes, scheme.code_bytes(rows, cols))?;
    check_aligned("codes", out.codes, 8)?;
    check_bytes("block scales", out.block_scales, scheme.block_scale_len(rows, cols))?;
    check_aligned("block scales", out.block_scales, 16)?;
    check_bytes("scales", out.scales, scheme.scale_len(rows, cols) * 4)?;
    check_aligned("scales", out.scales, 4)
}

fn check_transposable(x: &Input<'_>) -> Result<()> {
    if x.rows.is_multiple_of(16) {
        return Ok(());
    }
    Err(Error::shape(
        "input of a transposing cast",
        format!("{} rows", x.rows),
        "must be a multiple of 16 (they become the columns of the transpose)",
        "pad the rows with zeros",
    ))
}

/// Blocks of eight warps, each warp four rows by 128 columns, rows padded to 128: for `quantize_mxfp8`.
fn warp_grid(rows: usize, cols: usize) -> (usize, usize) {
    let units = rows.next_multiple_of(128) / 4 * cols.div_ceil(128).max(1);
    (units.div_ceil(8).max(1), 1)
}

/// The grid of kernels that `walk` through tiles of 128 rows (`kernels/nvfp4.cu`) in this many steps: x covers the columns, y
/// is 16 times the number of tiles at work at once.
fn walk_grid(rows: usize, cols: usize, steps: usize) -> (usize, usize) {
    let tiles = rows.div_ceil(128).max(1);
    (cols.div_ceil(512).max(1), 16 * tiles.div_ceil(steps).min(GRID_Y / 16))
}

impl Kernels {
    /// NVFP4 along rows with one second level, or with one of each row computed in the same pass (`given` is `None`).
    ///
    /// `backwards`: the end of the matrix is what L2 holds. Only recipes that [`Nvfp4Rule::along_rows`] knows come here.
    fn quantize_nvfp4_rows(
        &self,
        stream: &LaunchStream,
        x: &Input<'_>,
        rule: Nvfp4Rule,
        given: Option<(Given<'_>, bool)>,
        out: &BlockOutput<'_>,
        place: usize,
    ) -> Result<()> {
        let (rows, cols) = (x.rows as u32, x.cols as u32);
        let Some((given, backwards)) = given else {
            // Two blocks of 16 in each thread (`row_threads` of the kernel). Groups of four rows are blocks of their own, which
            // the GPU deals out as multiprocessors come free; single rows are as many as registers allow at once.
            let threads = x.cols.div_ceil(32).next_multiple_of(32).max(64);
            let held = threads <= 512;
            let threads = threads.min(512);
            let registers = if place == 0 { 64 } else { 128 };
            let resident = self.sm_count * (65536 / registers / threads).max(1);
            let padded = x.rows.next_multiple_of(128);
            let together = if held && padded / 4 >= 4 * self.sm_count { 4u32 } else { 1 };
            let rows_at_once = if together == 4 { padded / 4 } else { padded.min(resident) };
            return enqueue!(
                stream,
                by_input(&self.block.row[place][usize::from(held)], x.dtype, x.aligned())?,
                (rows_at_once, 1),
                threads as u32,
                x.x.address,
                x.row_stride as u64,
                rows,
                cols,
                rule,
                together,
                out.codes.address,
                out.block_scales.address,
                out.scales.address,
            );
        };
        // A few steps for each block, once there are more than enough blocks; what `given_blocks` of the kernel says.
        let blocks = if x.dtype == DType::F32 || !x.aligned() { 2 } else { [5, 4, 4, 3, 3][place] };
        let (columns, lines) = walk_grid(x.rows, x.cols, 1);
        let steps = (columns * lines / (self.sm_count * blocks * 3)).clamp(1, 8);
        enqueue!(
            stream,
            by_input(&self.block.given[place], x.dtype, x.aligned())?,
            walk_grid(x.rows, x.cols, steps),
            THREADS,
            x.x.address,
            x.row_stride as u64,
            rows,
            cols,
            rule,
            given.span().address,
            u32::from(backwards),
            out.codes.address,
            out.block_scales.address,
            out.scales.address,
        )
    }

    /// Quantizes X, and its transpose where wanted, as NVFP4.
    ///
    /// `given` is the second level of X and that of the transpose; for `Nvfp4Row` `None` means: computed in the same pass,
    /// which is possible for recipes along rows without transposed output ([`Kernels::row_amax_in_pass`]).
    #[allow(clippy::too_many_arguments)]
    pub(crate) fn quantize_nvfp4(
        &self,
        stream: &LaunchStream,
        x: &Input<'_>,
        recipe: Nvfp4Recipe,
        given: [Option<Given<'_>>; 2],
        backwards: bool,
        out: Option<&BlockOutput<'_>>,
        transposed: Option<&BlockOutput<'_>>,
    ) -> Result<()> {
        x.check()?;
        out.map_or(Ok(()), |o| check_output(o, recipe.scheme(), x.rows, x.cols))?;
        transposed.map_or(Ok(()), |o| check_output(o, recipe.scheme(), x.cols, x.rows))?;
        given[0].map_or(Ok(()), |g| g.check(x.rows))?;
        given[1].map_or(Ok(()), |g| g.check(x.cols))?;
        let kind = given[0].or(given[1]).map_or(0, Given::kind);
        let rule = Nvfp4Rule::new(recipe, kind);
        let each = recipe.scheme() == Scheme::Nvfp4Row;
        if let (Some(out), None, Some(place)) = (out, transposed, rule.along_rows()) {
            let one = given[0].filter(|_| !each).map(|g| (g, backwards));
            if each || one.is_some() {
                return self.quantize_nvfp4_rows(stream, x, rule, one, out, place);
            }
        }
        if transposed.is_some() {
            check_transposable(x)?;
        }
        for (wanted, given) in [(out, given[0]), (transposed, given[1])] {
            if wanted.is_some() && given.is_none_or(|g| matches!(g, Given::RowAmax(_)) != each) {
                return Err(Error::shape("second level", "none of its kind", "must be given", "compute it first"));
            }
        }
        let span = |g: Option<Given<'_>>| g.map_or(0, |g| g.span().address);
        let given = Nvfp4Given { rows: span(given[0]), cols: span(given[1]), each: u32::from(each) };
        let place = |o: Option<&BlockOutput<'_>>| {
            [address(o.map(|o| o.codes)), address(o.map(|o| o.block_scales)), address(o.map(|o| o.scales))]
        };
        let ([codes, block_scales, scales], [codes_t, block_scales_t, scales_t]) = (place(out), place(transposed));
        let target = Nvfp4Out { codes, block_scales, scales, codes_t, block_scales_t, scales_t };
        // Two tiles of 64 rows cover one of 128 x 4 scales, padding included. An empty matrix still has a second level.
        let tiles = (x.rows.next_multiple_of(128) / TILE[0] * x.cols.div_ceil(TILE[1])).max(1);
        enqueue!(
            stream,
            by_input(&self.block.tile[usize::from(!rule.is_plain())], x.dtype, x.aligned())?,
            (tiles, 1),
            THREADS,
            x.x.address,
            x.row_stride as u64,
            x.rows as u32,
            x.cols as u32,
            rule,
            given,
            target,
        )
    }

    /// True if the quantizer finds the row maxima of this recipe itself.
    pub(crate) fn row_amax_in_pass(recipe: Nvfp4Recipe) -> bool {
        Nvfp4Rule::new(recipe, 0).along_rows().is_some()
    }

    /// Raises `row` to max |y| of the Hadamard transforms of the rows, `col` to that of the columns.
    pub(crate) fn amax_hadamard(
        &self,
        stream: &LaunchStream,
        x: &Input<'_>,
        row: Option<&Span<'_>>,
        col: Option<&Span<'_>>,
    ) -> Result<()> {
        x.check()?;
        row.map_or(Ok(()), |s| check_floats("amax", s, 1))?;
        col.map_or(Ok(()), |s| check_floats("amax of the transpose", s, 1))?;
        if col.is_some() {
            check_transposable(x)?;
        }
        enqueue!(
            stream,
            by_input(&self.block.amax_hadamard, x.dtype, x.aligned())?,
            (x.rows.div_ceil(TILE[0]) * x.cols.div_ceil(TILE[1]), 1),
            THREADS,
            x.x.address,
            x.row_stride as u64,
            x.rows as u32,
            x.cols as u32,
            address(row),
            address(col),
        )
    }

    /// Quantizes X, and its transpose where wanted, as MXFP8.
    pub(crate) fn quantize_mxfp8(
        &self,
        stream: &LaunchStream,
        x: &Input<'_>,
        (rounding, format): (MxScaleRule, Fp8Format),
        out: Option<&BlockOutput<'_>>,
        transposed: Option<&BlockOutput<'_>>,
    ) -> Result<()> {
        x.check()?;
        let scheme = Scheme::Mxfp8(format);
        out.map_or(Ok(()), |o| check_output(o, scheme, x.rows, x.cols))?;
        transposed.map_or(Ok(()), |o| check_output(o, scheme, x.cols, x.rows))?;
        let rule = MxRule::new(rounding, format);
        if let (Some(out), None) = (out, transposed) {
            return enqueue!(
                stream,
                by_input(&self.block.mxfp8, x.dtype, x.aligned())?,
                warp_grid(x.rows, x.cols),
                THREADS,
                x.x.address,
                x.row_stride as u64,
                x.rows as u32,
                x.cols as u32,
                rule,
                out.codes.address,
                out.block_scales.address,
            );
        }
        check_transposable(x)?;
        let place = |o: Option<&BlockOutput<'_>>| [address(o.map(|o| o.codes)), address(o.map(|o| o.block_scales))];
        let ([codes, block_scales], [codes_t, block_scales_t]) = (place(out), place(transposed));
        enqueue!(
            stream,
            by_input(&self.block.mxfp8_tile, x.dtype, x.aligned())?,
            (x.rows.div_ceil(128) * x.cols.div_ceil(128), 1),
            THREADS,
            x.x.address,
            x.row_stride as u64,
            x.rows as u32,
            x.cols as u32,
            rule,
            MxOut { codes, block_scales, codes_t, block_scales_t },
        )
    }

    /// `y[i, j] = round(fl(code * fl(block_scale * scale)))`, rows `y_stride` elements apart.
    pub(crate) fn dequantize_blocks(
        &self,
        stream: &LaunchStream,
        q: &BlockCodes<'_>,
        y: &Span<'_>,
        y_stride: usize,
        dtype: DType,
    ) -> Result<()> {
        let &BlockCodes { scheme, rows, cols, codes, block_scales, scales } = q;
        check_bytes("codes", codes, scheme.code_bytes(rows, cols))?;
        check_aligned("codes", codes, 8)?;
        check_bytes("block scales", block_scales, scheme.block_scale_len(rows, cols))?;
        check_aligned("block scales", block_scales, 16)?;
        check_bytes("output", y, extent(rows, cols, y_stride) * dtype.bytes())?;
        check_aligned("output", y, dtype.bytes() as u64)?;
        if !cols.is_multiple_of(16) || rows > u32::MAX as usize || cols > i32::MAX as usize {
            return Err(Error::shape(
                "quantized matrix",
                format!("{rows} x {cols}"),
                "must have a multiple of 16 columns and fewer than 2^31 of each",
                "pad the columns with zeros",
            ));
        }
        if rows == 0 || cols == 0 {
            return Ok(());
        }
        let aligned = is_aligned(y.address, rows, y_stride, dtype);
        let (rows32, cols32, stride) = (rows as u32, cols as u32, y_stride as u64);
        // Eight rows by eight columns a thread; sixteen blocks along y are a tile of 128 rows.
        let grid = (cols.div_ceil(THREADS as usize * 8), 16 * rows.div_ceil(128).min(GRID_Y / 16));
        if let Scheme::Mxfp8(format) = scheme {
            return enqueue!(
                stream,
                by_input(&self.block.dequantize_mxfp8, dtype, aligned)?,
                grid,
                THREADS,
                codes.address,
                block_scales.address,
                rows32,
                cols32,
                format_code(format),
                y.address,
                stride,
            );
        }
        scales.map_or(Ok(()), |s| check_floats("scales", s, scheme.scale_len(rows, cols)))?;
        enqueue!(
            stream,
            by_input(&self.block.dequantize_nvfp4, dtype, aligned)?,
            grid,
            THREADS,
            codes.address,
            block_scales.address,
            address(scales),
            u32::from(scheme == Scheme::Nvfp4Row),
            rows32,
            cols32,
            y.address,
            stride,
        )
    }
}
