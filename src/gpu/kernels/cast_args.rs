//! What the kernels of casts are passed: mirrors of the structs of `kernels/cast/cast.cuh` and `source.cuh`.

use super::cast_call::{CastFrom, CastPart, CastTo, CastValues, ProducerCall};
use super::operand::{address, format_code};
use crate::format::{CastRecipe, CastScales, CastScheme, DType, Extent, Fp8Scales};

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

    /// Bytes from a scale to that of the row below, 0 where a group has many rows.
    fn down(&self) -> u64 {
        if self.row_shift == 0 { self.row() } else { 0 }
    }

    /// Bytes from a row of scales to the next.
    fn row(&self) -> u64 {
        if self.order == ROW_MAJOR { u64::from(self.cols) * 4 } else { 4 }
    }

    /// Bytes from a column of scales to the next, of UE8M0 from four columns to the next four.
    fn right(&self) -> u64 {
        match self.order {
            ROW_MAJOR => 4,
            _ => u64::from(self.rows).next_multiple_of(4) * 4,
        }
    }
}

/// Mirror of `CastRule` in `kernels/cast/cast.cuh`.
#[repr(C)]
#[derive(Clone, Copy, Default)]
pub(super) struct CastRule {
    floor: f32,
    pow2: u32,
    format: u32,
}

impl CastRule {
    pub(super) fn new(recipe: CastRecipe) -> Self {
        Self {
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

/// Mirror of `Producer` in `kernels/cast/source.cuh`.
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
            columns_f32: u32::from(call.columns.is_some_and(|(_, dtype)| dtype == DType::F32)),
        }
    }
}

/// Mirror of `CastSource` in `kernels/cast/source.cuh`.
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
    scale_row: u64,
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
            scale_row: grid.row(),
            scale_right: grid.right(),
            producer,
        }
    }
}
