//! Launches for NVFP4: `kernels/cast/nvfp4.cu`, `nvfp4_tile.cu` and `nvfp4_repack.cu`.

use super::Kernels;
use super::launch::{Blocks, ByInput, GRID_Y, Kernel, THREADS, enqueue, enqueue_cast, enqueue_input};
use super::module::Modules;
use super::nvfp4_row_launch::{RowKernel, RowLaunch};
use super::operand::{
    Factor, Input, Output, address, check_aligned, check_bytes, check_floats, check_output, check_transposable,
};
use crate::error::{Error, Result};
use crate::format::{
    Basis, BlockScaleRule, BlockShape, CodeOrder, CodeRounding, DType, ErrorMath, ErrorMetric, Nvfp4Recipe, Scheme,
    TorchDevice,
};
use crate::gpu::device::memory::Span;
use crate::gpu::device::stream::Queue;

/// Rows and columns of a tile of `nvfp4_tile.cu`.
const TILE: [usize; 2] = [64, 128];

/// The kernels of the family.
pub(super) struct Nvfp4Kernels {
    /// By rule: plain, 4over6 with absolute and with squared errors, fast and then strict, torchao's; plain after the Hadamard transform, and
    /// with random rounding.
    given: [ByInput; 8],
    /// By rule, the first five of them; first for rows that are read twice, then for rows held in registers.
    row: [[ByInput; 2]; 5],
    /// 4over6 of many rows of BF16 and F16, by rule.
    many: [[Kernel; 2]; 4],
    /// With strict errors, of the most: absolute ones, squared ones.
    most: [[Kernel; 2]; 2],
    /// For the plain rule, rounded to nearest, in the data's own basis; for any.
    tile: [ByInput; 2],
    amax_hadamard: ByInput,
    /// Of codes as published, and repacked.
    pub(super) dequantize: [ByInput; 2],
    /// To the repacked order, and back.
    repack: [Kernel; 2],
}

impl Nvfp4Kernels {
    pub(super) fn of(modules: &Modules) -> Result<Self> {
        let (rows, tiles) = (modules.file("cast/nvfp4")?, modules.file("cast/nvfp4_tile")?);
        let repack = modules.file("cast/nvfp4_repack")?;
        let by_input = |name: &str| rows.by_input(name);
        let row = |rule: &str| -> Result<[ByInput; 2]> {
            Ok([
                by_input(&format!("quantize_nvfp4_row_{rule}_long"))?,
                by_input(&format!("quantize_nvfp4_row_{rule}_held"))?,
            ])
        };
        let narrow = |rule: &str, which: &str| -> Result<[Kernel; 2]> {
            let kernel = |dtype| rows.kernel(&format!("quantize_nvfp4_row_{rule}_{which}_{dtype}"));
            Ok([kernel("bf16")?, kernel("f16")?])
        };
        Ok(Self {
            given: [
                by_input("quantize_nvfp4_plain")?,
                by_input("quantize_nvfp4_mae")?,
                by_input("quantize_nvfp4_mse")?,
                by_input("quantize_nvfp4_strict_mae")?,
                by_input("quantize_nvfp4_strict_mse")?,
                by_input("quantize_nvfp4_torchao")?,
                by_input("quantize_nvfp4_hadamard")?,
                by_input("quantize_nvfp4_stochastic")?,
            ],
            row: [row("plain")?, row("mae")?, row("mse")?, row("strict_mae")?, row("strict_mse")?],
            many: [
                narrow("mae", "many")?,
                narrow("mse", "many")?,
                narrow("strict_mae", "many")?,
                narrow("strict_mse", "many")?,
            ],
            most: [narrow("strict_mae", "most")?, narrow("strict_mse", "most")?],
            tile: [tiles.by_input("quantize_nvfp4_tile_plain")?, tiles.by_input("quantize_nvfp4_tile_any")?],
            amax_hadamard: tiles.by_input("amax_hadamard")?,
            dequantize: [by_input("dequantize_nvfp4")?, by_input("dequantize_nvfp4_repacked")?],
            repack: [repack.kernel("repack_nvfp4")?, repack.kernel("unpack_nvfp4")?],
        })
    }
}

/// Mirror of `Nvfp4Rule` in `kernels/cast/nvfp4.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct KernelRule {
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

impl KernelRule {
    pub(super) fn new(recipe: Nvfp4Recipe, given: u32) -> Self {
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

    /// Place in the table of kernels along rows with a given second level; `None` for what only the tile kernel does.
    fn with_given(&self) -> Option<usize> {
        match self {
            Self { tile: 0, hadamard: 0, stochastic: 0, rule: 2 | 3, .. } => Some(5),
            Self { tile: 0, hadamard: 1, stochastic: 0, rule: 0, .. } => Some(6),
            Self { tile: 0, hadamard: 0, stochastic: 1, rule: 0, .. } => Some(7),
            _ => self.along_rows(),
        }
    }

    /// The same with one for each row, found in the same pass.
    pub(super) fn along_rows(&self) -> Option<usize> {
        match self {
            Self { tile: 0, hadamard: 0, stochastic: 0, rule: 0, .. } => Some(0),
            Self { tile: 0, hadamard: 0, stochastic: 0, rule: 1, mse, strict, .. } => {
                Some((1 + mse + 2 * strict) as usize)
            }
            _ => None,
        }
    }
}

/// Mirror of `Nvfp4Given` in `kernels/cast/nvfp4_tile.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Nvfp4Given {
    rows: u64,
    cols: u64,
    each: u32,
}

/// Mirror of `Nvfp4Out` in `kernels/cast/nvfp4_tile.cu`.
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

/// The grid of kernels that `walk` through tiles of 128 rows (`kernels/cast/nvfp4.cu`) in this many steps: x covers the columns, y
/// is 16 times the number of tiles at work at once.
fn walk_grid(rows: usize, cols: usize, steps: usize) -> (usize, usize) {
    let tiles = rows.div_ceil(128).max(1);
    (cols.div_ceil(512).max(1), 16 * tiles.div_ceil(steps).min(GRID_Y / 16))
}

impl Kernels {
    /// NVFP4 along rows with one second level, or with one of each row computed in the same pass (`given` is `None`).
    ///
    /// `backwards`: the end of the matrix is what L2 holds. `place` is of [`KernelRule::with_given`] or, where nothing is given, of
    /// [`KernelRule::along_rows`].
    fn quantize_nvfp4_rows(
        &self,
        stream: &Queue,
        x: &Input<'_>,
        rule: KernelRule,
        given: Option<(u64, bool)>,
        out: &Output<'_>,
        place: usize,
    ) -> Result<()> {
        let Some((given, backwards)) = given else {
            let launch = RowLaunch::new(place, (x.rows, x.cols), x.dtype, x.aligned(), self.sm_count);
            let kernels = self.nvfp4(stream)?;
            let kernel = match launch.kernel {
                RowKernel::Long => kernels.row[place][0].of(x.dtype, x.aligned())?,
                RowKernel::Held => kernels.row[place][1].of(x.dtype, x.aligned())?,
                RowKernel::Many { rule, narrow } => kernels.many[rule][narrow],
                RowKernel::Most { errors, narrow } => kernels.most[errors][narrow],
            };
            return enqueue_input!(
                stream,
                kernel,
                x,
                launch.blocks,
                rule,
                launch.together,
                out.codes.address,
                out.block_scales.address,
                out.scales.address,
            );
        };
        // A few steps for each block, once there are more than enough blocks; what `given_blocks` of the kernel says.
        let blocks = if x.dtype == DType::F32 || !x.aligned() { 2 } else { [5, 4, 4, 3, 3, 4, 4, 4][place] };
        let (columns, lines) = walk_grid(x.rows, x.cols, 1);
        let steps = (columns * lines / (self.sm_count * blocks * 3)).clamp(1, 8);
        enqueue_cast!(
            stream,
            self.nvfp4(stream)?.given[place],
            x,
            Blocks::new(walk_grid(x.rows, x.cols, steps), THREADS),
            rule,
            given,
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
        stream: &Queue,
        x: &Input<'_>,
        recipe: Nvfp4Recipe,
        given: [Option<Factor<'_>>; 2],
        backwards: bool,
        out: Option<&Output<'_>>,
        transposed: Option<&Output<'_>>,
    ) -> Result<()> {
        x.check()?;
        out.map_or(Ok(()), |o| check_output(o, recipe.scheme(), x.rows, x.cols))?;
        transposed.map_or(Ok(()), |o| check_output(o, recipe.scheme(), x.cols, x.rows))?;
        let levels = [(given[0], x.rows), (given[1], x.cols)];
        let [level, level_t] = levels.map(|(given, rows)| given.map(|given| given.of_nvfp4(rows)).transpose());
        let (level, level_t) = (level?, level_t?);
        let kind = level.or(level_t).map_or(0, |(_, kind)| kind);
        let rule = KernelRule::new(recipe, kind);
        let each = recipe.scheme() == Scheme::Nvfp4Row;
        let place = if each { rule.along_rows() } else { rule.with_given() };
        if let (Some(out), None, Some(place)) = (out, transposed, place) {
            let one = level.filter(|_| !each).map(|(address, _)| (address, backwards));
            // Levels of rows that are given are read by the kernel of tiles.
            if (each && level.is_none()) || one.is_some() {
                return self.quantize_nvfp4_rows(stream, x, rule, one, out, place);
            }
        }
        if transposed.is_some() {
            check_transposable(x)?;
        }
        for (wanted, given) in [(out, given[0]), (transposed, given[1])] {
            if wanted.is_some() && given.is_none_or(|given| given.is_of_rows() != each) {
                return Err(Error::shape("second level", "none of its kind", "must be given", "compute it first"));
            }
        }
        let address_of = |level: Option<(u64, u32)>| level.map_or(0, |(address, _)| address);
        let given = Nvfp4Given { rows: address_of(level), cols: address_of(level_t), each: u32::from(each) };
        let place = |o: Option<&Output<'_>>| {
            [address(o.map(|o| o.codes)), address(o.map(|o| o.block_scales)), address(o.map(|o| o.scales))]
        };
        let ([codes, block_scales, scales], [codes_t, block_scales_t, scales_t]) = (place(out), place(transposed));
        let target = Nvfp4Out { codes, block_scales, scales, codes_t, block_scales_t, scales_t };
        // Two tiles of 64 rows cover one of 128 x 4 scales, padding included. An empty matrix still has a second level.
        let tiles = (x.rows.next_multiple_of(128) / TILE[0] * x.cols.div_ceil(TILE[1])).max(1);
        enqueue_cast!(
            stream,
            self.nvfp4(stream)?.tile[usize::from(!rule.is_plain())],
            x,
            Blocks::new((tiles, 1), THREADS),
            rule,
            given,
            target,
        )
    }

    /// True if the quantizer finds the row maxima of this recipe itself.
    pub(crate) fn row_amax_in_pass(recipe: Nvfp4Recipe) -> bool {
        KernelRule::new(recipe, 0).along_rows().is_some()
    }

    /// Raises `row` to max |y| of the Hadamard transforms of the rows, `col` to that of the columns.
    pub(crate) fn amax_hadamard(
        &self,
        stream: &Queue,
        x: &Input<'_>,
        row: Option<&Span<'_>>,
        col: Option<&Span<'_>>,
    ) -> Result<()> {
        x.check()?;
        check_floats("amax", row, 1)?;
        check_floats("amax of the transpose", col, 1)?;
        if col.is_some() {
            check_transposable(x)?;
        }
        enqueue_cast!(
            stream,
            self.nvfp4(stream)?.amax_hadamard,
            x,
            Blocks::new((x.rows.div_ceil(TILE[0]) * x.cols.div_ceil(TILE[1]), 1), THREADS),
            address(row),
            address(col),
        )
    }

    /// Puts the codes of an NVFP4 matrix into this order, from the other one, in place.
    pub(crate) fn repack(
        &self,
        stream: &Queue,
        (rows, cols): (usize, usize),
        codes: &Span<'_>,
        to: CodeOrder,
    ) -> Result<()> {
        CodeOrder::Repacked.check(Scheme::Nvfp4, rows, cols)?;
        check_bytes("codes", codes, Scheme::Nvfp4.code_bytes(rows, cols))?;
        check_aligned("codes", codes, 16)?;
        if rows == 0 || cols == 0 {
            return Ok(());
        }
        // Eight rows a block: each thread up to `PIECES` times 16 bytes of them.
        let (slabs, threads) = (rows / 8, (cols / 4).div_ceil(8).next_multiple_of(32).max(128));
        enqueue!(
            stream,
            self.nvfp4(stream)?.repack[usize::from(to == CodeOrder::Published)],
            Blocks::new((slabs.min(1 << 20), 1), threads as u32),
            codes.address,
            slabs as u32,
            cols as u32,
        )
    }
}
