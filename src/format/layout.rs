//! Orders of scales in device memory: lengths and index functions.
//!
//! Mirrored by `kernels/layout.cuh`.

/// Order of FP32 scales on the device, for a logical grid of `rows x cols` scales.
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
}

impl ScaleLayout {
    /// Number of FP32 values to allocate, padding included.
    pub const fn len(self, rows: usize, cols: usize) -> usize {
        match self {
            Self::Scalar => 1,
            Self::Outer => rows,
            Self::Vec128 => rows.next_multiple_of(4) * cols,
            Self::Blk128 => rows * cols.next_multiple_of(4),
        }
    }

    /// Place of the scale in row group `row` and column group `col` of a `rows x cols` grid.
    pub const fn index(self, rows: usize, cols: usize, row: usize, col: usize) -> usize {
        match self {
            Self::Scalar => 0,
            Self::Outer => row,
            Self::Vec128 => col * rows.next_multiple_of(4) + row,
            Self::Blk128 => row * cols.next_multiple_of(4) + col,
        }
    }

    /// Scales in device order, padding zero, from logical order (`[rows][cols]`, row-major). Allocates.
    ///
    /// # Panics
    /// If `logical` is shorter than `rows * cols`.
    pub fn to_device(self, rows: usize, cols: usize, logical: &[f32]) -> Vec<f32> {
        let mut device = vec![0.0; self.len(rows, cols)];
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
    pub fn to_logical(self, rows: usize, cols: usize, device: &[f32]) -> Vec<f32> {
        let mut logical = Vec::with_capacity(rows * cols);
        for row in 0..rows {
            logical.extend((0..cols).map(|col| device[self.index(rows, cols, row, col)]));
        }
        logical
    }
}
