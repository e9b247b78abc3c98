//! Orders of scales in device memory: lengths and index functions.
//!
//! Mirrored by `kernels/base/layout.cuh`.

/// Order of scales on the device, for a logical grid of `rows x cols` scales.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ScaleLayout {
    /// One scale.
    Scalar,
    /// One scale a row, in row order (cuBLASLt's OUTER_VEC_32F).
    Outer,
    /// 1x128 groups, rows contiguous: scale (i, b) at `b * pitch + i`, pitch = rows rounded up to 4 (cuBLASLt's VEC128_32F).
    Vec128,
    /// 128x128 tiles, K blocks contiguous: scale (i, b) at `i * pitch + b`, pitch = K blocks rounded up to 4 (cuBLASLt's BLK128x128_32F).
    Blk128,
    /// Byte scales of 1x16 or 1x32 blocks (cuBLASLt's VEC16_UE4M3 and VEC32_UE8M0): tiles of 128 rows by 4 blocks, 512 bytes
    /// each, along K first; scale (i, b) at `tile * 512 + (i % 32) * 16 + (i % 128 / 32) * 4 + b % 4`. Rows are padded to a
    /// multiple of 128, blocks to one of 4.
    Tiled128x4,
    /// No scales.
    Absent,
}

named!(
    ScaleLayout, "order of scales", Scalar => "scalar", Outer => "outer", Vec128 => "vec128", Blk128 => "blk128",
    Tiled128x4 => "tiled-128x4", Absent => "absent",
);

impl ScaleLayout {
    /// Number of scales to allocate, padding included.
    pub const fn len(self, rows: usize, cols: usize) -> usize {
        match self {
            Self::Scalar => 1,
            Self::Outer => rows,
            Self::Vec128 => rows.next_multiple_of(4) * cols,
            Self::Blk128 => rows * cols.next_multiple_of(4),
            Self::Tiled128x4 => rows.next_multiple_of(128) * cols.next_multiple_of(4),
            Self::Absent => 0,
        }
    }

    /// Place of the scale in row group `row` and column group `col` of a `rows x cols` grid.
    pub const fn index(self, rows: usize, cols: usize, row: usize, col: usize) -> usize {
        match self {
            Self::Scalar => 0,
            Self::Outer => row,
            Self::Vec128 => col * rows.next_multiple_of(4) + row,
            Self::Blk128 => row * cols.next_multiple_of(4) + col,
            Self::Tiled128x4 => {
                (row / 128 * cols.div_ceil(4) + col / 4) * 512 + row % 32 * 16 + row % 128 / 32 * 4 + col % 4
            }
            Self::Absent => 0,
        }
    }

    /// Scales in device order, padding zero, from logical order (`[rows][cols]`, row-major). Allocates.
    ///
    /// # Panics
    /// If `logical` is shorter than `rows * cols`.
    pub fn to_device<T: Copy + Default>(self, rows: usize, cols: usize, logical: &[T]) -> Vec<T> {
        let mut device = vec![T::default(); self.len(rows, cols)];
        for row in 0..rows {
            for col in 0..cols {
                device[self.index(rows, cols, row, col)] = logical[row * cols + col];
            }
        }
        device
    }

    /// Scales in logical order (`[rows][cols]`, row-major) from device order. Allocates.
    ///
    /// # Panics
    /// If `device` is shorter than [`ScaleLayout::len`].
    pub fn to_logical<T: Copy>(self, rows: usize, cols: usize, device: &[T]) -> Vec<T> {
        let mut logical = Vec::with_capacity(rows * cols);
        for row in 0..rows {
            logical.extend((0..cols).map(|col| device[self.index(rows, cols, row, col)]));
        }
        logical
    }
}
