//! Launches for casts of any source: `kernels/cast/cast_*.cu`, and `kernels/fused/produced.cu` for what is computed before it is cast.

use super::Kernels;
use super::fused::FusedKernels;
use super::launch::{Blocks, ByInput, GRID_Y, Kernel, THREADS, enqueue};
use super::module::{Module, Modules};
use super::operand::{address, check_aligned, check_bytes, check_floats, extent, format_code, is_aligned};
use crate::error::{Error, Result};
use crate::format::{CastRecipe, CastScales, CastScheme, CodeFormat, DType, Extent, Fp8Scales};
use crate::gpu::device::memory::Span;
use crate::gpu::device::stream::Queue;

/// Threads of a block that casts a whole row, at the most, of a source that is there and of one that is computed; each holds four
/// vectors of eight elements.
const ROW_THREADS: [usize; 2] = [512, 256];

/// The kernels of the family of plain sources and codes.
pub(super) struct CastKernels {
    /// For four rows in a block, and for as many as registers hold (`quads_of`).
    rows: [BySource; 2],
    /// Row read twice, row in registers.
    row: [BySource; 2],
    tile: BySource,
    /// E4M3, E2M1.
    back: [ByInput; 2],
    back_transposed: [ByInput; 2],
    fp4_to_fp8: Kernel,
}

/// One kernel for each kind of source.
struct BySource {
    plain: ByInput,
    e4m3: Kernel,
    e2m1: Kernel,
}

impl BySource {
    fn of(file: Module, pattern: &str) -> Result<Self> {
        let coded = |format: &str| file.kernel(&format!("{pattern}_{format}"));
        Ok(Self { plain: file.by_input(pattern)?, e4m3: coded("e4m3")?, e2m1: coded("e2m1")? })
    }

    fn kernel(&self, from: &CastFrom<'_>) -> Result<Kernel> {
        match from.values {
            CastValues::Plain { dtype, .. } => self.plain.of(dtype, from.is_aligned()),
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
            rows: [BySource::of(rows, "cast_rows_few")?, BySource::of(rows, "cast_rows_many")?],
            row: [BySource::of(rows, "cast_row_0")?, BySource::of(rows, "cast_row_4")?],
            tile: BySource::of(tile, "cast_tile")?,
            back: [back.by_input("cast_back_e4m3")?, back.by_input("cast_back_e2m1")?],
            back_transposed: [back.by_input("cast_back_transposed_e4m3")?, back.by_input("cast_back_transposed_e2m1")?],
            fp4_to_fp8: back.kernel("fp4_to_fp8")?,
        })
    }
}

/// Mirror of `quads` in `kernels/cast/cast_rows.cuh`, times four rows; none for what is computed, which has the registers for one (two took
/// 211 us where one took 185, observed: H200, 2026-11).
fn quads_of(values: &CastValues<'_>) -> Option<usize> {
    match values {
        CastValues::Plain { dtype, .. } => Some(if dtype.bytes() == 2 { 4 } else { 2 }),
        CastValues::Coded { .. } => Some(2),
        CastValues::Produced { .. } => None,
    }
}

/// What a cast reads, resolved on the stream.
pub(crate) struct CastFrom<'a> {
    /// Elements, or codes.
    pub(crate) x: &'a Span<'a>,
    pub(crate) values: CastValues<'a>,
    /// Of the source.
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// The source's row (i32) for each row of the result.
    pub(crate) index: Option<&'a Span<'a>>,
}

/// What it is.
#[derive(Clone, Copy)]
pub(crate) enum CastValues<'a> {
    Plain {
        dtype: DType,
        row_stride: usize,
    },
    Coded {
        scheme: CastScheme,
        scales: &'a Span<'a>,
    },
    /// Computed of a plain matrix, whose columns are twice those of the source where it is gated.
    Produced {
        dtype: DType,
        row_stride: usize,
        producer: ProducerCall<'a>,
    },
}

/// What is computed.
#[derive(Clone, Copy, Default)]
pub(crate) struct ProducerCall<'a> {
    pub(crate) kind: ProducerKind,
    pub(crate) clamp: Option<f32>,
    /// FP32, one for each row.
    pub(crate) weights: Option<&'a Span<'a>>,
    /// i32, one for each row.
    pub(crate) experts: Option<&'a Span<'a>>,
    /// Three u64.
    pub(crate) counts: Option<&'a Span<'a>>,
    /// Factors of columns, of x's type or FP32.
    pub(crate) columns: Option<(&'a Span<'a>, DType)>,
    /// Values are rounded to BF16 before they are cast.
    pub(crate) rounded: bool,
}

/// As `kernels/fused/produced.cuh` numbers it.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
pub(crate) enum ProducerKind {
    #[default]
    Swiglu = 0,
    Silu = 1,
    Gelu = 2,
    GeluTanh = 3,
    /// x times its row's weight, times its column's.
    Normed = 4,
}

/// Codes and scales of a matrix.
pub(crate) struct CastTo<'a> {
    pub(crate) codes: &'a Span<'a>,
    pub(crate) scales: &'a Span<'a>,
    pub(crate) scheme: CastScheme,
    pub(crate) rows: usize,
    pub(crate) cols: usize,
}

/// What is written of it, as `kernels/cast/cast.cuh` numbers it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum CastPart {
    Both = 0,
    /// By the scales that are there.
    Codes = 1,
    Scales = 2,
}

// Orders of scales, as `kernels/cast/cast.cuh` numbers them.
const ROW_MAJOR: u32 = 0;
const COLUMN_MAJOR: u32 = 1;
const UE8M0: u32 = 2;

/// Mirror of `CastGrid` in `kernels/cast/cast.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct CastGrid {
    rows: u32,
    cols: u32,
    row_shift: u32,
    col_shift: u32,
    order: u32,
}

impl CastGrid {
    fn new(scheme: CastScheme, rows: usize, cols: usize) -> Self {
        let [grid_rows, grid_cols] = scheme.group().grid(rows, cols);
        let [row_shift, col_shift] = scheme.group().extents().map(|extent| match extent {
            Extent::All => 31,
            Extent::Elements(size) => size.trailing_zeros(),
        });
        let order = match scheme.scales() {
            CastScales::RowMajor => ROW_MAJOR,
            CastScales::ColumnMajor => COLUMN_MAJOR,
            CastScales::Ue8m0 => UE8M0,
        };
        Self { rows: grid_rows as u32, cols: grid_cols as u32, row_shift, col_shift, order }
    }

    /// Bytes from a scale to that of the next row, 0 where a group has many.
    fn down(&self) -> u64 {
        match (self.row_shift, self.order) {
            (0, ROW_MAJOR) => u64::from(self.cols) * 4,
            (0, _) => 4,
            _ => 0,
        }
    }

    /// Bytes from a scale to that of 64 columns further, from a column that is less than 64 past a multiple of 128.
    fn right(&self) -> u64 {
        let pitch = u64::from(self.rows).next_multiple_of(4);
        let groups = 64_u64.checked_shr(self.col_shift).unwrap_or(0);
        match self.order {
            ROW_MAJOR => groups * 4,
            COLUMN_MAJOR => groups * pitch * 4,
            // Four neighbours are one word.
            UE8M0.. => groups / 4 * 4 * pitch + groups % 4,
        }
    }
}

/// Mirror of `CastRule` in `kernels/cast/cast.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct CastRule {
    max: f32,
    floor: f32,
    pow2: u32,
    format: u32,
}

impl CastRule {
    pub(super) fn new(recipe: CastRecipe) -> Self {
        Self {
            max: recipe.scheme().format().max(),
            floor: recipe.floor(),
            pow2: u32::from(recipe.numbers() == Fp8Scales::PowerOfTwo),
            format: format_code(recipe.scheme().format()),
        }
    }
}

/// Mirror of `CastOut` in `kernels/cast/cast.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct CastOut {
    codes: u64,
    scales: u64,
    grid: CastGrid,
    part: u32,
    transposed: u32,
}

impl CastOut {
    pub(super) fn new(to: &CastTo<'_>, part: CastPart) -> Self {
        let grid = CastGrid::new(to.scheme, to.rows, to.cols);
        let transposed = u32::from(to.scheme.is_transposed());
        Self { codes: to.codes.address, scales: to.scales.address, grid, part: part as u32, transposed }
    }
}

/// Mirror of `Producer` in `kernels/cast/cast.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct Producer {
    weights: u64,
    experts: u64,
    counts: u64,
    columns: u64,
    kind: u32,
    clamped: u32,
    clamp: f32,
    rounded: u32,
    columns_f32: u32,
}

impl Producer {
    pub(super) fn new(call: &ProducerCall<'_>) -> Self {
        Self {
            weights: address(call.weights),
            experts: address(call.experts),
            counts: address(call.counts),
            columns: address(call.columns.map(|(span, _)| span)),
            kind: call.kind as u32,
            clamped: u32::from(call.clamp.is_some()),
            clamp: call.clamp.unwrap_or_default(),
            rounded: u32::from(call.rounded),
            columns_f32: u32::from(call.columns.is_some_and(|(_, dtype)| dtype == DType::F32)),
        }
    }
}

/// Mirror of `CastSource` in `kernels/cast/cast.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct CastSource {
    x: u64,
    scales: u64,
    index: u64,
    stride: u64,
    rows: u32,
    cols: u32,
    grid: CastGrid,
    scale_down: u64,
    scale_right: u64,
    producer: Producer,
}

impl CastSource {
    pub(super) fn with_producer(self, producer: Producer) -> Self {
        Self { producer, ..self }
    }

    pub(super) fn new(from: &CastFrom<'_>) -> Self {
        let (none, plain) = (Producer::default(), CastGrid::default());
        let (scales, stride, grid, producer) = match from.values {
            CastValues::Plain { row_stride, .. } => (0, row_stride, plain, none),
            CastValues::Coded { scheme, scales } => {
                (scales.address, from.cols, CastGrid::new(scheme, from.rows, from.cols), none)
            }
            CastValues::Produced { row_stride, ref producer, .. } => (0, row_stride, plain, Producer::new(producer)),
        };
        Self {
            x: from.x.address,
            scales,
            index: address(from.index),
            stride: stride as u64,
            rows: from.rows as u32,
            cols: from.cols as u32,
            grid,
            scale_down: grid.down(),
            scale_right: grid.right(),
            producer,
        }
    }
}

impl CastTo<'_> {
    pub(super) fn spans(&self) -> [(&'static str, &Span<'_>); 2] {
        [("codes of the target", self.codes), ("scales of the target", self.scales)]
    }

    pub(super) fn check(&self, operand: &str) -> Result<()> {
        let Self { codes, scales, scheme, rows, cols } = *self;
        scheme.check_shape(rows, cols)?;
        check_bytes(&format!("codes of the {operand}"), codes, scheme.code_bytes(rows, cols))?;
        check_aligned(&format!("codes of the {operand}"), codes, 8)?;
        check_bytes(&format!("scales of the {operand}"), scales, scheme.scale_bytes(rows, cols))?;
        check_aligned(&format!("scales of the {operand}"), scales, 4)
    }
}

impl CastFrom<'_> {
    /// That the kernels may read it for a result of so many rows.
    pub(super) fn check(&self, result_rows: usize) -> Result<()> {
        if self.rows > i32::MAX as usize {
            return Err(Error::shape(
                "source",
                format!("{} rows", self.rows),
                format!("must have at most {}", i32::MAX),
                "cast it in parts",
            ));
        }
        match self.values {
            CastValues::Plain { dtype, row_stride } => {
                check_bytes("source", self.x, extent(self.rows, self.cols, row_stride) * dtype.bytes())?;
                check_aligned("source", self.x, dtype.bytes() as u64)?;
            }
            CastValues::Coded { scheme, scales } => {
                if scheme.is_transposed() {
                    return Err(Error::unsupported(
                        format!("a cast of codes in {scheme}"),
                        "its rows do not lie together",
                        "cast it back first (Handle::cast_back_into), or keep it as it was before it was transposed",
                    ));
                }
                CastTo { codes: self.x, scales, scheme, rows: self.rows, cols: self.cols }.check("source")?;
            }
            CastValues::Produced { dtype, row_stride, producer } => {
                let cols = if producer.kind == ProducerKind::Swiglu { 2 * self.cols } else { self.cols };
                check_bytes("source", self.x, extent(self.rows, cols, row_stride) * dtype.bytes())?;
                check_aligned("source", self.x, dtype.bytes() as u64)?;
                check_floats("weights of rows", producer.weights, self.rows)?;
                check_floats("experts of rows", producer.experts, self.rows)?;
                if let Some((weights, dtype)) = producer.columns {
                    check_bytes("weights of columns", weights, self.cols * dtype.bytes())?;
                    check_aligned("weights of columns", weights, dtype.bytes() as u64)?;
                }
                if let Some(counts) = producer.counts {
                    check_bytes("counts of the clamp", counts, 24)?;
                    check_aligned("counts of the clamp", counts, 8)?;
                }
            }
        }
        match self.index {
            Some(index) => {
                check_bytes("row index", index, result_rows * 4)?;
                check_aligned("row index", index, 4)
            }
            None if result_rows == self.rows => Ok(()),
            None => Err(Error::shape(
                "target",
                format!("{result_rows} rows"),
                format!("must have {}, as the source", self.rows),
                "pass a matrix of that shape, or a row index",
            )),
        }
    }

    /// Whether all that is read sixteen bytes at a time begins so.
    pub(super) fn is_aligned(&self) -> bool {
        let rows_are = |dtype, row_stride| is_aligned(self.x.address, self.rows, row_stride, dtype);
        match self.values {
            CastValues::Plain { dtype, row_stride } => rows_are(dtype, row_stride),
            CastValues::Coded { .. } => true,
            CastValues::Produced { dtype, row_stride, producer } => {
                let columns = producer.columns.is_none_or(|(weights, _)| weights.address.is_multiple_of(16));
                columns && rows_are(dtype, row_stride)
            }
        }
    }

    /// What it reads, by name.
    pub(super) fn spans(&self) -> impl Iterator<Item = (&'static str, &Span<'_>)> {
        let others = match &self.values {
            CastValues::Plain { .. } => [None; 4],
            CastValues::Coded { scales, .. } => [Some(("scales of the source", *scales)), None, None, None],
            CastValues::Produced { producer, .. } => [
                producer.weights.map(|weights| ("weights of rows", weights)),
                producer.experts.map(|experts| ("experts of rows", experts)),
                producer.counts.map(|counts| ("counts of the clamp", counts)),
                producer.columns.map(|(weights, _)| ("weights of columns", weights)),
            ],
        };
        let others = others.into_iter().flatten();
        [("source", self.x)].into_iter().chain(others).chain(self.index.map(|index| ("row index", index)))
    }
}

/// Refuses a target that lies where something is read.
pub(super) fn check_apart<'s>(
    sources: impl Iterator<Item = (&'static str, &'s Span<'s>)>,
    targets: &[(&'static str, &Span<'_>)],
) -> Result<()> {
    for (what, source) in sources {
        for (which, target) in targets {
            let (a, b) = (source.address, target.address);
            if source.bytes > 0 && target.bytes > 0 && a < b + target.bytes as u64 && b < a + source.bytes as u64 {
                return Err(Error::shape(
                    *which,
                    format!("{} bytes at {b:#x}", target.bytes),
                    format!("must not overlap the {what}, {} bytes at {a:#x}", source.bytes),
                    "cast into memory of its own",
                ));
            }
        }
    }
    Ok(())
}

impl Kernels {
    /// Casts to the grouping of `to`, whose scheme is the recipe's.
    pub(crate) fn cast(
        &self,
        stream: &Queue,
        from: &CastFrom<'_>,
        recipe: CastRecipe,
        part: CastPart,
        to: &CastTo<'_>,
    ) -> Result<()> {
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
        let choose = |plain: &BySource, fused: fn(&FusedKernels) -> &ByInput| match produced {
            Some((family, dtype, aligned)) => fused(family).of(dtype, aligned),
            None => plain.kernel(from),
        };
        let (kernel, blocks) = match (row_extent, col_extent) {
            _ if rows == 0 => return Ok(()),
            (Extent::Elements(1), Extent::All) => {
                let vectors = cols / 8;
                let threads = vectors.div_ceil(4).next_multiple_of(32).max(32);
                let most = ROW_THREADS[usize::from(produced.is_some())];
                let (kernel, threads) = match threads <= most {
                    true => (choose(&family.row[1], |f| &f.row[1])?, threads),
                    false => (choose(&family.row[0], |f| &f.row[0])?, most),
                };
                (kernel, Blocks::new((rows, 1), threads as u32))
            }
            _ if cols == 0 => return Ok(()),
            (Extent::Elements(1), _) => {
                let across = cols.div_ceil(1024);
                // Many rows a block once that still leaves every multiprocessor several blocks.
                let many =
                    quads_of(&from.values).filter(|quads| rows.div_ceil(4 * quads) * across >= self.sm_count * 8);
                let kernel = choose(&family.rows[usize::from(many.is_some())], |f| &f.rows)?;
                (kernel, Blocks::new((rows.div_ceil(4 * many.unwrap_or(1)), across), THREADS))
            }
            _ => {
                let kernel = choose(&family.tile, |f| &f.tile)?;
                (kernel, Blocks::new((rows.div_ceil(128) * cols.div_ceil(128), 1), THREADS))
            }
        };
        enqueue!(
            stream,
            kernel,
            blocks,
            CastSource::new(from),
            rows as u32,
            cols as u32,
            CastRule::new(recipe),
            CastOut::new(to, part),
        )
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
        let (kernels, grid) = match q.scheme.is_transposed() {
            true => (&family.back_transposed[format], (rows.div_ceil(64), cols.div_ceil(32))),
            false => (&family.back[format], (cols.div_ceil(THREADS as usize * 16), rows.clamp(1, GRID_Y))),
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
            Blocks::new(grid, THREADS),
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
        let blocks = to.rows.div_ceil(4) * to.cols.div_ceil(1024);
        enqueue!(
            stream,
            self.casts(stream)?.fp4_to_fp8,
            Blocks::new((blocks, 1), THREADS),
            CastSource::new(from),
            CastOut::new(to, CastPart::Both),
            address(inexact),
        )
    }
}
