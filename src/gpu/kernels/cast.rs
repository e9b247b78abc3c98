//! Launches for casts of any source: `kernels/cast/cast_*.cu`, and `kernels/fused/produced.cu` for what is computed before it is cast.

use std::iter::empty;

use super::Kernels;
use super::cast_args::{CastOut, CastRule, CastSource};
use super::cast_call::{CastFrom, CastPart, CastTo, CastValues};
use super::cast_channels::{ChannelKernels, are_channels_wide, is_channel};
use super::fused::FusedKernels;
use super::launch::{Blocks, ByInput, GRID_Y, Kernel, THREADS, enqueue};
use super::module::{Module, Modules};
use super::operand::{address, check_aligned, check_bytes, check_floats, extent, is_aligned, words};
use crate::error::{Error, Result};
use crate::format::{CastGroup, CastRecipe, CastScales, CastScheme, CodeFormat, DType, Extent};
use crate::gpu::device::memory::{Span, check_apart};
use crate::gpu::device::stream::Queue;

/// Threads of a block that casts a whole row, at the most, of a source that is there and of one that is computed; each holds four
/// vectors of eight elements.
const ROW_THREADS: [usize; 2] = [512, 256];

/// The kernels of the family of plain sources and codes.
pub(super) struct CastKernels {
    /// Groups of columns: where there are few rows; in squares of eight rows, and row by row, to E4M3 and to E2M1 each.
    few: BySource,
    square: [BySource; 2],
    line: [BySource; 2],
    /// To E2M1 of aligned bf16 and f16.
    wide: [Wide; 2],
    /// Codes of a matrix without gaps, by `usize::from` of whether the target is E2M1 and whether the source is.
    flat: [[Kernel; 2]; 2],
    /// The same of E4M3 to E2M1 in groups of 16, 32, 64 and 128 columns, each within one of the source, whose own have 32 or more.
    steps: [Steps; 4],
    /// Row read twice, row in registers.
    row: [BySource; 2],
    tile: BySource,
    channel: BySource,
    /// Of E4M3 and of E2M1 codes.
    channel_wide: [ChannelKernels; 2],
    /// E4M3, E2M1.
    back: [ByInput; 2],
    back_transposed: [ByInput; 2],
    /// 16 neighbours of a row in a thread, and 64.
    fp4_to_fp8: [(Kernel, usize); 2],
    /// Of many rows of groups of 32 with UE8M0 scales, uncounted.
    fp4_to_fp8_words: Kernel,
}

/// A kernel of E4M3 to E2M1 by thresholds: pieces of 32 neighbours that a thread has at once, and blocks that stay on each multiprocessor of an sm_90. Others have a
/// block for each of their pieces. Mirror of `PIECES` and `STEPS_BLOCKS` in `kernels/cast/cast_steps.cuh`.
#[derive(Clone, Copy)]
struct Steps {
    kernel: Kernel,
    pieces: usize,
    blocks: usize,
}

/// Kernels whose lanes have sixteen neighbours of a matrix of 16 bits, and what they are for.
struct Wide {
    /// Matrices without gaps whose scales lie by rows.
    flat: Kernel,
    /// The same of few rows, in groups of 128, eight neighbours a lane, to E4M3 and to E2M1.
    few: [Kernel; 2],
    /// Other rows.
    line: Kernel,
    /// Scales by columns or UE8M0, blocks one after the other down the rows and across them.
    square: [Kernel; 2],
    /// Whole rows of at most `WIDE_ROW` columns.
    row: Kernel,
}

impl Wide {
    fn of(file: Module, dtype: &str) -> Result<Self> {
        let kernel = |name: &str| file.kernel(&format!("{name}_{dtype}"));
        Ok(Self {
            flat: kernel("cast_groups_flat")?,
            few: [kernel("cast_groups_flat_few_e4m3")?, kernel("cast_groups_flat_few_e2m1")?],
            line: kernel("cast_groups_wide")?,
            square: [kernel("cast_groups_wide_square")?, kernel("cast_groups_wide_across")?],
            row: kernel("cast_row_wide")?,
        })
    }
}

/// One kernel for each kind of source.
struct BySource {
    plain: ByInput,
    e4m3: Kernel,
    e2m1: Kernel,
    /// Codes per channel; E4M3, E2M1. Few kernels are made for them: none of those that keep codes packed.
    channel: Option<[Kernel; 2]>,
}

impl BySource {
    fn of(file: Module, pattern: &str) -> Result<Self> {
        let coded = |format: &str| file.kernel(&format!("{pattern}_{format}"));
        Ok(Self { plain: file.by_input(pattern)?, e4m3: coded("e4m3")?, e2m1: coded("e2m1")?, channel: None })
    }

    fn with_channels(file: Module, pattern: &str) -> Result<Self> {
        let coded = |format: &str| file.kernel(&format!("{pattern}_{format}_channel"));
        Ok(Self { channel: Some([coded("e4m3")?, coded("e2m1")?]), ..Self::of(file, pattern)? })
    }

    fn kernel(&self, from: &CastFrom<'_>) -> Result<Kernel> {
        match from.values {
            CastValues::Plain { dtype, .. } => self.plain.of(dtype, from.is_aligned()),
            CastValues::Coded { scheme, .. } if is_channel(scheme) => {
                let kernels = self.channel.ok_or_else(|| {
                    Error::unsupported(
                        "a source of codes per channel, in a kernel that keeps them packed",
                        "it has kernels of its own",
                        "report it: Kernels::cast chose the wrong one",
                    )
                })?;
                Ok(kernels[usize::from(scheme.format() == CodeFormat::E2M1)])
            }
            CastValues::Coded { scheme, .. } if scheme.format() == CodeFormat::E2M1 => Ok(self.e2m1),
            CastValues::Coded { .. } => Ok(self.e4m3),
            CastValues::Produced { .. } => Err(Error::unsupported(
                "a source that is computed, in a kernel for plain ones",
                "it has kernels of its own",
                "report it: Kernels::cast chose the wrong one",
            )),
        }
    }
}

impl CastKernels {
    pub(super) fn of(modules: &Modules) -> Result<Self> {
        let (rows, tile) = (modules.file("cast/cast_rows")?, modules.file("cast/cast_tile")?);
        let back = modules.file("cast/cast_back")?;
        let steps = |shift: u32, pieces: usize, blocks: usize| -> Result<Steps> {
            Ok(Steps { kernel: rows.kernel(&format!("cast_steps_{shift}_e4m3"))?, pieces, blocks })
        };
        let flat = |to: &str, of: &str| rows.kernel(&format!("cast_groups_flat_{to}_{of}"));
        Ok(Self {
            few: BySource::with_channels(rows, "cast_groups_few")?,
            square: [BySource::of(rows, "cast_groups_square_e4m3")?, BySource::of(rows, "cast_groups_square_e2m1")?],
            line: [BySource::of(rows, "cast_groups_e4m3")?, BySource::of(rows, "cast_groups_e2m1")?],
            wide: [Wide::of(rows, "bf16")?, Wide::of(rows, "f16")?],
            flat: [[flat("e4m3", "e4m3")?, flat("e4m3", "e2m1")?], [flat("e2m1", "e4m3")?, flat("e2m1", "e2m1")?]],
            steps: [steps(4, 1, 9)?, steps(5, 1, 9)?, steps(6, 2, 5)?, steps(7, 2, 5)?],
            row: [BySource::with_channels(rows, "cast_row_0")?, BySource::of(rows, "cast_row_4")?],
            tile: BySource::with_channels(tile, "cast_tile")?,
            channel: BySource::with_channels(tile, "cast_channel")?,
            channel_wide: [ChannelKernels::of(&tile, "e4m3")?, ChannelKernels::of(&tile, "e2m1")?],
            back: [back.by_input("cast_back_e4m3")?, back.by_input("cast_back_e2m1")?],
            back_transposed: [back.by_input("cast_back_transposed_e4m3")?, back.by_input("cast_back_transposed_e2m1")?],
            fp4_to_fp8: [(back.kernel("fp4_to_fp8_1")?, 2), (back.kernel("fp4_to_fp8_4")?, 8)],
            fp4_to_fp8_words: back.kernel("fp4_to_fp8_words_2")?,
        })
    }
}

impl CastKernels {
    /// The kernel that casts groups of many rows, of a source that is there, and its blocks.
    fn of_many_rows(&self, from: &CastFrom<'_>, scheme: CastScheme, rows: usize) -> Result<(Kernel, Blocks)> {
        let to_e2m1 = scheme.format() == CodeFormat::E2M1;
        let wide = to_e2m1.then(|| self.wide(from)).flatten();
        if scheme.scales() != CastScales::RowMajor {
            // Squares follow one another across the rows, but for those to E2M1 that write much of scales (kernels/cast/cast_rows.cuh).
            let many_scales = scheme.scales() == CastScales::ColumnMajor && scheme.group() == CastGroup::Group1x16;
            let (across, warps) = if wide.is_some() { (!many_scales, 4) } else { (!to_e2m1, 8) };
            let (right, down) = (from.cols.div_ceil(128 * warps), rows.div_ceil(8));
            let blocks = if across { (right, down) } else { (down, right) };
            if blocks.1 <= GRID_Y {
                let kernel = match wide {
                    Some(wide) => wide.square[usize::from(across)],
                    None => self.square[usize::from(to_e2m1)].kernel(from)?,
                };
                return Ok((kernel, Blocks::new(blocks, 32 * warps as u32)));
            }
            if let Ok(blocks) = fours(rows, from.cols) {
                return Ok((self.few.kernel(from)?, blocks));
            }
        }
        if let Some(wide) = wide {
            return Ok((wide.line, line(rows, from.cols, 8)?));
        }
        let kernel = self.line[usize::from(to_e2m1)].kernel(from)?;
        Ok((kernel, line(rows, from.cols, vectors_of(&from.values))?))
    }

    /// Of a matrix whose rows follow one another without a gap, and its scales likewise, all of it as one row: the kernel, and its blocks. `few`: as
    /// `Kernels::are_few` says. `hopper`: multiprocessors, of an sm_90.
    fn flat(
        &self,
        from: &CastFrom<'_>,
        to: &CastTo<'_>,
        part: CastPart,
        few: bool,
        hopper: Option<usize>,
    ) -> Option<(Kernel, Blocks)> {
        let to_e2m1 = to.scheme.format() == CodeFormat::E2M1;
        let by_128 = to.scheme.group() == CastGroup::Group1x128;
        let (kernel, elements, most) = match from.values {
            CastValues::Plain { row_stride, .. } if row_stride == from.cols => match self.wide(from)? {
                wide if few && by_128 => (wide.few[usize::from(to_e2m1)], 8, usize::MAX),
                wide if !few && to_e2m1 => (wide.flat, 32, usize::MAX),
                _ => return None,
            },
            CastValues::Coded { scheme, .. } if !few && lies_flat(scheme, from.cols) => {
                let of_e2m1 = scheme.format() == CodeFormat::E2M1;
                let steps =
                    (to_e2m1 && !of_e2m1 && part == CastPart::Both).then(|| self.steps(scheme, to.scheme)).flatten();
                match steps {
                    Some(Steps { kernel, pieces, blocks }) => {
                        (kernel, 32 * pieces, hopper.map_or(usize::MAX, |sm_count| blocks * sm_count))
                    }
                    None => {
                        let kernel = self.flat[usize::from(to_e2m1)][usize::from(of_e2m1)];
                        (kernel, if to_e2m1 || of_e2m1 { 64 } else { 32 }, usize::MAX)
                    }
                }
            }
            _ => return None,
        };
        let all = from.rows * from.cols;
        let flat = from.index.is_none() && from.rows == to.rows && lies_flat(to.scheme, from.cols) && all <= FLAT;
        flat.then(|| (kernel, Blocks::new((all.div_ceil(128 * elements).min(most), 1), 128)))
    }

    /// The kernel of E4M3 to E2M1 by thresholds, where groups are large enough and have one scale of the source each.
    fn steps(&self, from: CastScheme, to: CastScheme) -> Option<Steps> {
        match (from.group().extents()[1], to.group().extents()[1]) {
            // A thread's 32 neighbours have one scale of the source.
            (Extent::Elements(of), Extent::Elements(columns)) if of >= columns.max(32) => match columns {
                16 => Some(self.steps[0]),
                32 => Some(self.steps[1]),
                64 => Some(self.steps[2]),
                128 => Some(self.steps[3]),
                _ => None,
            },
            _ => None,
        }
    }

    /// The kernel that casts so many tiles per channel, and the threads of its blocks.
    fn of_channels(
        &self,
        from: &CastFrom<'_>,
        to: &CastTo<'_>,
        tiles: usize,
        sm_count: usize,
    ) -> Result<(Kernel, u32)> {
        match from.values {
            CastValues::Coded { scheme, .. } if are_channels_wide(from, to) => {
                let kernels = &self.channel_wide[usize::from(scheme.format() == CodeFormat::E2M1)];
                Ok(kernels.of_tiles(tiles, to.scheme.format(), sm_count))
            }
            // Of plain matrices blocks have 64 columns (kernels/cast/cast_tile.cuh).
            CastValues::Plain { .. } => Ok((self.channel.kernel(from)?, THREADS / 2)),
            _ => Ok((self.channel.kernel(from)?, THREADS)),
        }
    }

    /// The kernels of sixteen neighbours, if they serve this source.
    fn wide(&self, from: &CastFrom<'_>) -> Option<&Wide> {
        match from.values {
            CastValues::Plain { dtype: DType::Bf16, .. } if from.is_aligned() => Some(&self.wide[0]),
            CastValues::Plain { dtype: DType::F16, .. } if from.is_aligned() => Some(&self.wide[1]),
            _ => None,
        }
    }
}

/// Whether groups of some columns, whose scales lie by rows, follow one another through the whole matrix.
fn lies_flat(scheme: CastScheme, cols: usize) -> bool {
    let [down, right] = scheme.group().extents();
    let whole = matches!(right, Extent::Elements(size) if size > 1 && cols.is_multiple_of(size));
    down == Extent::Elements(1) && whole && scheme.scales() == CastScales::RowMajor
}

/// That E2M1 codes may be made E4M3.
fn check_fp4_to_fp8(from: &CastFrom<'_>, to: &CastTo<'_>, inexact: Option<&Span<'_>>) -> Result<()> {
    let count = "count of inexact groups";
    to.check("target")?;
    from.check(to.rows)?;
    check_floats(count, inexact, 1)?;
    let inexact = inexact.map(|inexact| words(count, inexact, 1));
    from.check_apart(empty(), to.spans().into_iter().chain(inexact))
}

/// Elements of a matrix that is one row, at the most: kernels count them in 32 bits.
const FLAT: usize = 1 << 31;

/// Columns of a row that `cast_row_wide_*` holds.
const WIDE_ROW: usize = 128 * 64;

/// Elements of a thread of `cast_groups_*`, in vectors of eight, as `kernels/cast/cast_rows.cu` has them.
fn vectors_of(values: &CastValues<'_>) -> usize {
    if matches!(values, CastValues::Coded { .. }) { 8 } else { 4 }
}

/// Columns of a part of a row, what a block casts at the most: 1024 vectors of eight.
const PART: usize = 8192;

fn parts_of_row(cols: usize) -> usize {
    cols.div_ceil(PART).max(1)
}

/// Parts of a row of so many columns, and the threads of each, with so many vectors of eight.
fn spans_and_threads(cols: usize, vectors: usize) -> (usize, usize) {
    let spans = parts_of_row(cols);
    (spans, cols.div_ceil(8 * vectors * spans).next_multiple_of(32))
}

/// A block for each part of a row.
fn line(rows: usize, cols: usize, vectors: usize) -> Result<Blocks> {
    check_columns(rows, cols, PART)?;
    let (spans, threads) = spans_and_threads(cols, vectors);
    Ok(Blocks::new((rows, spans), threads as u32))
}

/// Columns and rows of blocks for tiles of 128 rows, so many across. Where there are more rows of tiles than a grid has, its columns begin anew (`tile_of_block` in kernels/cast/tile_place.cuh).
fn tile_grid(rows: usize, across: usize) -> (usize, usize) {
    let down = rows.div_ceil(128);
    let turns = down.div_ceil(GRID_Y);
    (across * turns, down.div_ceil(turns))
}

/// Blocks of four rows and 1024 columns, as `cast_groups_few_*` have them.
fn fours(rows: usize, cols: usize) -> Result<Blocks> {
    check_columns(rows, cols, 1024)?;
    Ok(Blocks::new((rows.div_ceil(4), cols.div_ceil(1024)), THREADS))
}

/// Blocks of 64 rows and 32 columns, as `cast_back_transposed_*` have them.
fn turned(rows: usize, cols: usize) -> Result<Blocks> {
    check_columns(rows, cols, 32)?;
    Ok(Blocks::new((rows.div_ceil(64), cols.div_ceil(32)), THREADS))
}

/// That the second dimension of a grid holds blocks of so many columns each.
fn check_columns(rows: usize, cols: usize, of_block: usize) -> Result<()> {
    let most = GRID_Y * of_block;
    if cols > most {
        return Err(Error::shape(
            "matrix of a cast",
            format!("{rows} x {cols}"),
            format!(
                "must have at most {most} columns here, where a GPU gives each row {GRID_Y} blocks of {of_block} columns"
            ),
            "cast it in parts, each of fewer columns",
        ));
    }
    Ok(())
}

impl Kernels {
    /// Whether a block for each row, or for each part of one, would not give every multiprocessor some: then small blocks are faster.
    pub(super) fn are_few(&self, rows: usize, cols: usize) -> bool {
        rows * parts_of_row(cols) < 4 * self.sm_count
    }

    /// Casts to the grouping of `to`, whose scheme is the recipe's. Everything is checked and loaded before the launch is returned, so that another may
    /// be enqueued first; the spans must be borrowed until it is called.
    pub(crate) fn cast<'k>(
        &'k self,
        stream: &'k Queue,
        from: &CastFrom<'_>,
        recipe: CastRecipe,
        part: CastPart,
        to: &CastTo<'_>,
    ) -> Result<impl FnOnce() -> Result<()> + use<'k>> {
        let (rows, cols) = (to.rows, to.cols);
        to.check("target")?;
        from.check(rows)?;
        from.check_apart(empty(), to.spans().into_iter())?;
        if from.cols != cols {
            return Err(Error::shape(
                "target",
                format!("{cols} columns"),
                format!("must have {}, as the source", from.cols),
                "pass a matrix of that shape",
            ));
        }
        let [row_extent, col_extent] = to.scheme.group().extents();
        // A source that is computed has one kernel of each kind.
        let produced = match from.values {
            CastValues::Produced { dtype, .. } => Some((self.fused(stream)?, dtype, from.is_aligned())),
            _ => None,
        };
        let family = self.casts(stream)?;
        let of_channels = matches!(from.values, CastValues::Coded { scheme, .. } if is_channel(scheme));
        let choose = |plain: &BySource, fused: fn(&FusedKernels) -> &ByInput| match produced {
            Some((family, dtype, aligned)) => fused(family).of(dtype, aligned),
            None => plain.kernel(from),
        };
        let hopper = self.on_hopper().then_some(self.sm_count);
        let flat = family.flat(from, to, part, self.are_few(rows, cols), hopper);
        let launch = match (row_extent, col_extent) {
            _ if rows == 0 => None,
            (Extent::Elements(1), Extent::All) => {
                let vectors = cols / 8;
                let to_e2m1 = to.scheme.format() == CodeFormat::E2M1;
                let wide = to_e2m1 && cols <= WIDE_ROW && !self.are_few(rows, cols);
                let threads = vectors.div_ceil(4).next_multiple_of(32).max(32);
                let most = ROW_THREADS[usize::from(produced.is_some())];
                let (kernel, threads) = match family.wide(from) {
                    Some(kernels) if wide => (kernels.row, vectors.div_ceil(8).next_multiple_of(32).max(32)),
                    _ if threads <= most && !of_channels => (choose(&family.row[1], |f| &f.row[1])?, threads),
                    _ => (choose(&family.row[0], |f| &f.row[0])?, most),
                };
                Some((kernel, Blocks::new((rows, 1), threads as u32)))
            }
            _ if cols == 0 => None,
            (Extent::Elements(1), _) if flat.is_some() => flat,
            (Extent::Elements(1), _) => Some({
                let few = of_channels || self.are_few(rows, cols);
                let scheme = to.scheme;
                match (from.values, produced) {
                    (CastValues::Produced { producer, .. }, Some((fused, dtype, aligned))) if !few => {
                        match fused.many(&producer, scheme, dtype, aligned) {
                            Some(kernel) => (kernel, line(rows, cols, 4)?),
                            None => (fused.few.of(dtype, aligned)?, fours(rows, cols)?),
                        }
                    }
                    _ if few => (choose(&family.few, |f| &f.few)?, fours(rows, cols)?),
                    _ => family.of_many_rows(from, scheme, rows)?,
                }
            }),
            _ => {
                let half = is_channel(to.scheme) && matches!(from.values, CastValues::Plain { .. });
                let grid = tile_grid(rows, cols.div_ceil(if half { 64 } else { 128 }));
                let (kernel, threads) = match (from.values, produced) {
                    (CastValues::Produced { producer, .. }, Some((fused, dtype, aligned))) if is_channel(to.scheme) => {
                        (fused.channel(&producer, dtype, aligned)?, THREADS)
                    }
                    _ if is_channel(to.scheme) => family.of_channels(from, to, grid.0 * grid.1, self.sm_count)?,
                    _ => (choose(&family.tile, |f| &f.tile)?, THREADS),
                };
                Some((kernel, Blocks::new(grid, threads)))
            }
        };
        if let Some((_, blocks)) = launch {
            blocks.checked()?;
        }
        let (mut source, rule, mut out) = (CastSource::new(from), CastRule::new(recipe), CastOut::new(to, part));
        let (mut rows, mut cols) = (rows, cols);
        if flat.is_some() {
            (rows, cols) = (1, rows * cols);
            source = CastSource::new(&CastFrom { rows, cols, ..*from });
            out = CastOut::new(&CastTo { rows, cols, ..*to }, part);
        }
        // Blocks ask for the tile of the one that comes so many later: rows and columns of tiles.
        let tiles = cols.div_ceil(128).max(1);
        let ahead = are_channels_wide(from, to)
            .then_some(((2 * self.sm_count / tiles) as u32, (2 * self.sm_count % tiles) as u32));
        let (rows, cols) = (rows as u32, cols as u32);
        Ok(move || match (launch, ahead) {
            (Some((kernel, blocks)), Some((ahead_down, ahead_right))) => {
                enqueue!(stream, kernel, blocks, source, rows, cols, rule, out, ahead_down, ahead_right)
            }
            (Some((kernel, blocks)), None) => enqueue!(stream, kernel, blocks, source, rows, cols, rule, out),
            (None, _) => Ok(()),
        })
    }

    /// `y = round(fl(code * scale))`, rows of `y` `y_stride` elements apart.
    pub(crate) fn cast_back(
        &self,
        stream: &Queue,
        q: &CastTo<'_>,
        y: &Span<'_>,
        y_stride: usize,
        dtype: DType,
    ) -> Result<()> {
        q.check("source")?;
        let (rows, cols) = (q.rows, q.cols);
        check_bytes("output", y, extent(rows, cols, y_stride) * dtype.bytes())?;
        check_aligned("output", y, dtype.bytes() as u64)?;
        let read = [("codes", *q.codes), ("scales", *q.scales)];
        let written = y.slice(0, extent(rows, cols, y_stride) * dtype.bytes());
        check_apart(read.into_iter(), [("matrix to cast back to", written)].into_iter())?;
        if rows == 0 || cols == 0 {
            return Ok(());
        }
        let family = self.casts(stream)?;
        let format = usize::from(q.scheme.format() == CodeFormat::E2M1);
        let (kernels, blocks) = match q.scheme.is_transposed() {
            true => (&family.back_transposed[format], turned(rows, cols)?),
            false => (&family.back[format], line(rows, cols, 2)?),
        };
        let from = CastFrom {
            x: q.codes,
            values: CastValues::Coded { scheme: q.scheme, scales: q.scales },
            rows,
            cols,
            index: None,
        };
        enqueue!(
            stream,
            kernels.of(dtype, is_aligned(y.address, rows, y_stride, dtype))?,
            blocks,
            CastSource::new(&from),
            y.address,
            y_stride as u64,
        )
    }

    /// E2M1 codes in groups along rows, scales powers of two, to E4M3 codes in groups of 128 with UE8M0 scales.
    pub(crate) fn fp4_to_fp8(
        &self,
        stream: &Queue,
        from: &CastFrom<'_>,
        to: &CastTo<'_>,
        inexact: Option<&Span<'_>>,
    ) -> Result<()> {
        check_fp4_to_fp8(from, to, inexact)?;
        if to.rows == 0 || to.cols == 0 {
            return Ok(());
        }
        let family = self.casts(stream)?;
        let many = !self.are_few(to.rows, to.cols);
        let (source, out) = (CastSource::new(from), CastOut::new(to, CastPart::Both));
        let words = matches!(from.values, CastValues::Coded { scheme, .. }
            if scheme.scales() == CastScales::Ue8m0 && scheme.group() == CastGroup::Group1x32);
        let (right, down) = (to.cols.div_ceil(1024), to.rows.div_ceil(8));
        if many && words && inexact.is_none() && down <= GRID_Y {
            return enqueue!(stream, family.fp4_to_fp8_words, Blocks::new((right, down), THREADS), source, out);
        }
        let (kernel, vectors) = family.fp4_to_fp8[usize::from(many)];
        enqueue!(stream, kernel, line(to.rows, to.cols, vectors)?, source, out, address(inexact))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::device::memory::assert_apart;

    /// By what the user knows of them, not as a grid of blocks.
    #[test]
    fn columns_beyond_a_grid_are_refused() {
        let line_of_two = |rows, cols| line(rows, cols, 2);
        for (blocks, most) in [
            (&line_of_two as &dyn Fn(usize, usize) -> Result<Blocks>, 536_862_720),
            (&fours, 67_107_840),
            (&turned, 2_097_120),
        ] {
            blocks(3, most).unwrap().checked().unwrap();
            let Err(Error::Shape { operand, found, rule, remedy }) = blocks(3, most + 16) else {
                panic!("{most} + 16 columns are taken")
            };
            assert_eq!((operand.as_str(), found), ("matrix of a cast", format!("3 x {}", most + 16)));
            assert!(
                rule.contains(&format!("at most {most} columns")) && remedy.contains("in parts"),
                "{rule} {remedy}"
            );
        }
    }

    #[test]
    fn codes_and_the_count_of_inexact_groups_lie_apart_from_the_source() {
        let (rows, cols) = (4, 32);
        let e2m1 = CastScheme::new(CodeFormat::E2M1, CastGroup::Group1x32).unwrap();
        let e4m3 = CastScheme::new(CodeFormat::E4M3, CastGroup::Group1x128).unwrap().with_scales(CastScales::Ue8m0);
        let names = [
            "source",
            "scales of the source",
            "codes of the target",
            "scales of the target",
            "count of inexact groups",
        ];
        assert_apart(&names, 3, 128, |at| {
            let values = CastValues::Coded { scheme: e2m1, scales: &at[1] };
            let from = CastFrom { x: &at[0], values, rows, cols, index: None };
            let to = CastTo { codes: &at[2], scales: &at[3], scheme: e4m3, rows, cols };
            check_fp4_to_fp8(&from, &to, Some(&at[4]))
        });
    }

    #[test]
    fn each_row_of_tiles_has_blocks() {
        for rows in [1, 128, 129, 128 * GRID_Y, 128 * GRID_Y + 1, 256 * GRID_Y + 1, i32::MAX as usize] {
            let (x, y) = tile_grid(rows, 3);
            let (turns, down) = (x / 3, rows.div_ceil(128));
            assert!(x == 3 * turns && y <= GRID_Y, "{rows}");
            assert!((down..down + turns).contains(&(turns * y)), "{rows}: {turns} x {y} for {down}");
        }
    }
}
