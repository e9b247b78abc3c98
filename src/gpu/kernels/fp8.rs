//! Launches for FP8 with FP32 scales: `kernels/cast/fp8_*.cu`.

use super::Kernels;
use super::launch::{Blocks, ByInput, GRID_Y, THREADS, enqueue, enqueue_cast};
use super::linear::check_column_sums;
use super::module::Modules;
use super::operand::{
    Factor, Input, Output, address, check_aligned, check_bytes, check_floats, check_output, extent, format_code,
    is_aligned,
};
use super::small_m_config::{SmallMOperands, most_rows};
use crate::error::{Error, Result};
use crate::format::layout::ScaleLayout;
use crate::format::pair::K_MULTIPLE;
use crate::format::{DType, Fp8Format, Fp8Granularity, Fp8Recipe, Fp8Rule, Fp8Scales, Scheme};
use crate::gpu::device::memory::Span;
use crate::gpu::device::stream::Queue;

/// Tiles that one block of `amax_row_column` walks: `STRIP` of `kernels/cast/tile.cuh`.
const STRIP: usize = 2;

/// Elements that a thread of `quantize_fp8_tensor_in_*` takes at the most, its threads in a block, and the blocks of its cluster, as
/// `kernels/cast/fp8_tensor_once.cu` has them. Of a grid there is a block for each multiprocessor at the most, half of what always fits: a
/// kernel of another stream that stays, and waits for this one, leaves it room.
const ONCE_HELD: usize = 32;
const ONCE_THREADS: usize = 512;
const ONCE_CLUSTER: usize = 8;

/// The kernels of the family.
pub(super) struct Fp8Kernels {
    amax_tensor: ByInput,
    /// For one and two vectors of eight elements in each thread.
    quantize_tensor: [ByInput; 2],
    /// Amax and cast in one launch, in a grid and in one cluster.
    quantize_tensor_once: [ByInput; 2],
    quantize_tensor_transposed: ByInput,
    /// In the order of [`ScaleLayout`]: one scale, one a row, 1x128, 128x128.
    dequantize: [ByInput; 4],
    /// For 0 (row read twice), 1, 2, 4 and 8 vectors of eight elements in each thread.
    quantize_row: [ByInput; 5],
    amax_row_column: ByInput,
    quantize_row_transposed: ByInput,
    /// For small matrices, then for one and two groups of each row in each warp.
    quantize_1x128: [ByInput; 3],
    quantize_1x128_transposed: ByInput,
    /// For 2 and 4 rows in each thread.
    quantize_128x128: [ByInput; 2],
    quantize_128x128_transposed: ByInput,
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

/// Mirror of `ScaleRule` in `kernels/base/types.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct ScaleRule {
    max: f32,
    overflow: f32,
    rule: u32,
    pow2: u32,
    format: u32,
}

impl ScaleRule {
    pub(super) fn new(recipe: Fp8Recipe, input: DType) -> Self {
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

/// Blocks of such a launch at the most: one of each multiprocessor, and no more than have a thread that reads its part.
fn most_at_once(sm_count: usize) -> usize {
    sm_count.min(ONCE_THREADS)
}

/// Whether so many contiguous elements are cast in one launch: at least one, and as many as those blocks hold.
fn fit_once(elements: usize, sm_count: usize) -> bool {
    (1..=ONCE_HELD * ONCE_THREADS * most_at_once(sm_count)).contains(&elements)
}

/// The blocks of that launch, and whether they are one cluster.
///
/// Where one cluster holds all, its blocks meet through shared memory: 0.3 to 0.6 us sooner than through the L2 cache (measured: H200,
/// 2026-11). A part of a GPU that is smaller than two of them might not place one.
fn blocks_once(elements: usize, has_clusters: bool, sm_count: usize) -> (bool, Blocks) {
    if elements <= ONCE_CLUSTER * ONCE_THREADS * ONCE_HELD && has_clusters && sm_count >= 2 * ONCE_CLUSTER {
        let threads = elements.div_ceil(ONCE_CLUSTER * ONCE_HELD).next_multiple_of(32).max(128);
        (true, Blocks::new((ONCE_CLUSTER, 1), threads as u32).clusters(ONCE_CLUSTER as u32))
    } else {
        let grid = elements.div_ceil(ONCE_HELD * ONCE_THREADS);
        (false, Blocks::new((grid, 1), ONCE_THREADS as u32).cooperative())
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

    /// Bytes of the place where blocks of `quantize_tensor_once` meet: `Meeting` of `kernels/cast/fp8_tensor_once.cu`, with a part for each of them.
    pub(crate) fn meeting_bytes(&self) -> usize {
        8 + 8 * most_at_once(self.sm_count)
    }

    /// Whether `quantize_tensor_once` can: a contiguous matrix of as many elements as one block of each multiprocessor holds.
    pub(crate) fn fits_once(&self, x: &Input<'_>) -> bool {
        let (rows, elements) = x.flattened();
        rows == 1 && fit_once(elements, self.sm_count)
    }

    /// [`Kernels::amax_tensor`] and [`Kernels::quantize_tensor`] in one launch that reads the matrix once.
    ///
    /// `place` ([`Kernels::meeting_bytes`]) is zero before the first call, and of one stream.
    pub(crate) fn quantize_tensor_once(
        &self,
        stream: &Queue,
        x: &Input<'_>,
        recipe: Fp8Recipe,
        place: &Span<'_>,
        out: &Output<'_>,
    ) -> Result<()> {
        x.check()?;
        check_output(out, recipe.scheme(), x.rows, x.cols)?;
        check_floats("where blocks meet", place, self.meeting_bytes() / 4)?;
        check_aligned("where blocks meet", place, 8)?;
        if !self.fits_once(x) {
            return Err(Error::shape(
                "matrix to cast in one launch",
                format!("{} x {}, rows {} elements apart", x.rows, x.cols, x.row_stride),
                "must be contiguous and fit the registers of one block of each multiprocessor",
                "report it: Kernels::fits_once was not asked",
            ));
        }
        let kernels = &self.fp8(stream)?.quantize_tensor_once;
        let [in_grid, in_cluster] = [&kernels[0], &kernels[1]].map(|of| of.of(x.dtype, x.aligned()));
        let (in_grid, in_cluster) = (in_grid?, in_cluster?);
        let vectors = x.rows * x.cols / 8;
        let (clustered, blocks) = blocks_once(vectors * 8, in_cluster.has_clusters(), self.sm_count);
        let kernel = if clustered { in_cluster } else { in_grid };
        enqueue!(
            stream,
            kernel,
            blocks,
            x.x.address,
            vectors as u32,
            ScaleRule::new(recipe, x.dtype),
            place.address,
            out.codes.address,
            out.scales.address,
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

#[cfg(test)]
mod tests {
    use super::*;

    /// What one block holds, and one cluster.
    const BLOCK: usize = 16384;
    const CLUSTER: usize = 8 * BLOCK;

    #[test]
    fn a_matrix_is_cast_in_one_launch_while_it_fits_a_block_of_each_multiprocessor() {
        for (elements, fits) in [(0, false), (16, true), (132 * BLOCK, true), (132 * BLOCK + 16, false)] {
            assert_eq!(fit_once(elements, 132), fits, "{elements}");
        }
        // 128 x 7168 takes 56 of them.
        assert!(fit_once(128 * 7168, 56) && !fit_once(128 * 7168, 55));
    }

    #[test]
    fn that_launch_is_one_cluster_where_that_holds_all() {
        let cluster = |threads| (true, Blocks::new((8, 1), threads).clusters(8));
        let grid = |blocks| (false, Blocks::new((blocks, 1), 512).cooperative());
        assert_eq!(blocks_once(16, true, 132), cluster(128));
        assert_eq!(blocks_once(8 * 32 * 128 + 16, true, 132), cluster(160));
        assert_eq!(blocks_once(CLUSTER, true, 132), cluster(512));
        assert_eq!(blocks_once(CLUSTER + 16, true, 132), grid(9));
        assert_eq!(blocks_once(128 * 7168, true, 132), grid(56));
        // A part of a GPU, and one without clusters.
        assert_eq!((blocks_once(16, true, 16), blocks_once(16, true, 15)), (cluster(128), grid(1)));
        assert_eq!((blocks_once(CLUSTER, false, 108), blocks_once(BLOCK + 16, false, 108)), (grid(8), grid(2)));
    }
}
