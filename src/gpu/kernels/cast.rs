//! Launches for casts of any source: `kernels/cast/cast_*.cu`, and `kernels/fused/produced.cu` for what is computed before it is cast.

use super::Kernels;
use super::cast_args::{CastOut, CastRule, CastSource};
use super::cast_call::{CastFrom, CastPart, CastTo, CastValues, check_apart};
use super::fused::FusedKernels;
use super::launch::{Blocks, ByInput, GRID_Y, Kernel, THREADS, enqueue};
use super::module::{Module, Modules};
use super::operand::{address, check_aligned, check_bytes, check_floats, extent, is_aligned};
use crate::error::{Error, Result};
use crate::format::{CastGroup, CastRecipe, CastScales, CastScheme, CodeFormat, DType, Extent};
use crate::gpu::device::memory::Span;
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
    /// To E2M1 of large matrices of aligned bf16 and f16.
    large: [Kernel; 2],
    /// Row read twice, row in registers.
    row: [BySource; 2],
    tile: BySource,
    channel: BySource,
    /// E4M3, E2M1.
    back: [ByInput; 2],
    back_transposed: [ByInput; 2],
    /// 16 neighbours of a row in a thread, and 64.
    fp4_to_fp8: [(Kernel, usize); 2],
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
        Ok(Self {
            few: BySource::with_channels(rows, "cast_groups_few")?,
            square: [BySource::of(rows, "cast_groups_square_e4m3")?, BySource::of(rows, "cast_groups_square_e2m1")?],
            line: [BySource::of(rows, "cast_groups_e4m3")?, BySource::of(rows, "cast_groups_e2m1")?],
            large: [rows.kernel("cast_groups_large_bf16")?, rows.kernel("cast_groups_large_f16")?],
            row: [BySource::with_channels(rows, "cast_row_0")?, BySource::of(rows, "cast_row_4")?],
            tile: BySource::with_channels(tile, "cast_tile")?,
            channel: BySource::with_channels(tile, "cast_channel")?,
            back: [back.by_input("cast_back_e4m3")?, back.by_input("cast_back_e2m1")?],
            back_transposed: [back.by_input("cast_back_transposed_e4m3")?, back.by_input("cast_back_transposed_e2m1")?],
            fp4_to_fp8: [(back.kernel("fp4_to_fp8_1")?, 2), (back.kernel("fp4_to_fp8_4")?, 8)],
        })
    }
}

impl CastKernels {
    /// The kernel that casts groups of many rows, of a source that is there, and its blocks.
    fn of_many_rows(
        &self,
        from: &CastFrom<'_>,
        scheme: CastScheme,
        rows: usize,
        sm_count: usize,
    ) -> Result<(Kernel, Blocks)> {
        let to_e2m1 = scheme.format() == CodeFormat::E2M1;
        let large = to_e2m1.then(|| self.large(from, rows, sm_count)).flatten();
        let (right, down) = (from.cols.div_ceil(1024), rows.div_ceil(8));
        if writes_columns(scheme, large.is_some()) {
            // Squares follow one another down the rows, those to E4M3 across.
            let blocks = if to_e2m1 { (down, right) } else { (right, down) };
            if blocks.1 <= GRID_Y {
                return Ok((self.square[usize::from(to_e2m1)].kernel(from)?, Blocks::new(blocks, THREADS)));
            }
            if right <= GRID_Y {
                return Ok((self.few.kernel(from)?, Blocks::new((rows.div_ceil(4), right), THREADS)));
            }
        }
        if let Some(kernel) = large {
            return Ok((kernel, line(rows, from.cols, 8)));
        }
        let kernel = self.line[usize::from(to_e2m1)].kernel(from)?;
        Ok((kernel, line(rows, from.cols, vectors_of(&from.values))))
    }

    /// The kernel to E2M1 whose threads have twice the vectors, where it is faster.
    fn large(&self, from: &CastFrom<'_>, rows: usize, sm_count: usize) -> Option<Kernel> {
        let (spans, threads) = spans_and_threads(from.cols, 8);
        if rows * spans * threads < LARGE_WAVES * LARGE_THREADS * sm_count || !from.is_aligned() {
            return None;
        }
        match from.values {
            CastValues::Plain { dtype: DType::Bf16, .. } => Some(self.large[0]),
            CastValues::Plain { dtype: DType::F16, .. } => Some(self.large[1]),
            _ => None,
        }
    }
}

/// Whether scales of one row lie so far apart that rows are better cast some at a time (measured: H200, 2026-11). UE8M0 packs four of them, and where
/// a `large` kernel takes E2M1, whole rows in their order are worth more, but for groups of 16.
fn writes_columns(scheme: CastScheme, large: bool) -> bool {
    match scheme.scales() {
        CastScales::RowMajor => false,
        CastScales::ColumnMajor => true,
        CastScales::Ue8m0 => !large || scheme.group() == CastGroup::Group1x16,
    }
}

/// Whether each column of a group has a scale of its own.
fn is_channel(scheme: CastScheme) -> bool {
    scheme.group().extents()[1] == Extent::Elements(1)
}

/// Elements of a thread of `cast_groups_*`, in vectors of eight, as `kernels/cast/cast_rows.cu` has them.
fn vectors_of(values: &CastValues<'_>) -> usize {
    if matches!(values, CastValues::Coded { .. }) { 8 } else { 4 }
}

/// Threads of `cast_groups_large_*` on a multiprocessor, and how often they must fill all of these to be faster than shorter ones
/// (measured: H200, 2026-11: at 8192 x 7168 they are, at 8192 x 5120 not).
const LARGE_THREADS: usize = 7 * 128;
const LARGE_WAVES: usize = 7;

/// Parts of a row, each of at most 1024 vectors of eight, what a block casts at the most.
fn parts_of_row(cols: usize) -> usize {
    cols.div_ceil(8192).max(1)
}

/// Parts of a row of so many columns, and the threads of each, with so many vectors of eight.
fn spans_and_threads(cols: usize, vectors: usize) -> (usize, usize) {
    let spans = parts_of_row(cols);
    (spans, cols.div_ceil(8 * vectors * spans).next_multiple_of(32))
}

fn line(rows: usize, cols: usize, vectors: usize) -> Blocks {
    let (spans, threads) = spans_and_threads(cols, vectors);
    Blocks::new((rows, spans), threads as u32)
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
        check_apart(from.spans(), &to.spans())?;
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
        let launch = match (row_extent, col_extent) {
            _ if rows == 0 => None,
            (Extent::Elements(1), Extent::All) => {
                let vectors = cols / 8;
                let threads = vectors.div_ceil(4).next_multiple_of(32).max(32);
                let most = ROW_THREADS[usize::from(produced.is_some())];
                let (kernel, threads) = match threads <= most && !of_channels {
                    true => (choose(&family.row[1], |f| &f.row[1])?, threads),
                    false => (choose(&family.row[0], |f| &f.row[0])?, most),
                };
                Some((kernel, Blocks::new((rows, 1), threads as u32)))
            }
            _ if cols == 0 => None,
            (Extent::Elements(1), _) => Some({
                let few_blocks = Blocks::new((rows.div_ceil(4), cols.div_ceil(1024)), THREADS);
                let few = of_channels || self.are_few(rows, cols);
                let scheme = to.scheme;
                match (from.values, produced) {
                    (CastValues::Produced { producer, .. }, Some((fused, dtype, aligned))) if !few => {
                        match fused.many(&producer, scheme, dtype, aligned) {
                            Some(kernel) => (kernel, line(rows, cols, 4)),
                            None => (fused.few.of(dtype, aligned)?, few_blocks),
                        }
                    }
                    _ if few => (choose(&family.few, |f| &f.few)?, few_blocks),
                    _ => family.of_many_rows(from, scheme, rows, self.sm_count)?,
                }
            }),
            _ => {
                let kernel = match (from.values, produced) {
                    (CastValues::Produced { producer, .. }, Some((fused, dtype, aligned))) if is_channel(to.scheme) => {
                        fused.channel(&producer, dtype, aligned)?
                    }
                    _ if is_channel(to.scheme) => family.channel.kernel(from)?,
                    _ => choose(&family.tile, |f| &f.tile)?,
                };
                Some((kernel, Blocks::new((rows.div_ceil(128) * cols.div_ceil(128), 1), THREADS)))
            }
        };
        if let Some((_, blocks)) = launch {
            blocks.checked()?;
        }
        let (source, rule, out) = (CastSource::new(from), CastRule::new(recipe), CastOut::new(to, part));
        Ok(move || match launch {
            Some((kernel, blocks)) => enqueue!(stream, kernel, blocks, source, rows as u32, cols as u32, rule, out),
            None => Ok(()),
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
        check_apart([("codes", q.codes), ("scales", q.scales)].into_iter(), &[("matrix to cast back to", y)])?;
        if rows == 0 || cols == 0 {
            return Ok(());
        }
        let family = self.casts(stream)?;
        let format = usize::from(q.scheme.format() == CodeFormat::E2M1);
        let (kernels, blocks) = match q.scheme.is_transposed() {
            true => (&family.back_transposed[format], Blocks::new((rows.div_ceil(64), cols.div_ceil(32)), THREADS)),
            false => (&family.back[format], line(rows, cols, 2)),
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
        to.check("target")?;
        from.check(to.rows)?;
        check_apart(from.spans(), &to.spans())?;
        check_floats("count of inexact groups", inexact, 1)?;
        if to.rows == 0 || to.cols == 0 {
            return Ok(());
        }
        let many = !self.are_few(to.rows, to.cols);
        let (kernel, vectors) = self.casts(stream)?.fp4_to_fp8[usize::from(many)];
        enqueue!(
            stream,
            kernel,
            line(to.rows, to.cols, vectors),
            CastSource::new(from),
            CastOut::new(to, CastPart::Both),
            address(inexact),
        )
    }
}
