//! Orders of scales in device memory: lengths and index functions.
//!
//! Mirrored by `kernels/base/layout.cuh`.

use std::ops::Range;

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
        self.for_each_run(rows, cols, |run, at, stride| {
            let (run, places) = (&logical[run], &mut device[at..]);
            match (<&[T; 4]>::try_from(run), places.first_chunk_mut()) {
                // Most runs of tiles: a copy of a length that is known is no call.
                (Ok(run), Some(places)) if stride == 1 => *places = *run,
                _ => run.iter().zip(places.iter_mut().step_by(stride)).for_each(|(v, place)| *place = *v),
            }
        });
        device
    }

    /// Scales in logical order (`[rows][cols]`, row-major) from device order. Allocates.
    ///
    /// # Panics
    /// If `device` is shorter than [`ScaleLayout::len`].
    pub fn to_logical<T: Copy>(self, rows: usize, cols: usize, device: &[T]) -> Vec<T> {
        let mut logical = Vec::with_capacity(rows * cols);
        self.for_each_run(rows, cols, |run, at, stride| {
            let places = &device[at..];
            match places.first_chunk::<4>() {
                Some(places) if stride == 1 && run.len() == 4 => logical.extend_from_slice(places),
                _ => logical.extend(places.iter().step_by(stride).take(run.len())),
            }
        });
        logical
    }

    /// Calls `run` with places in logical order, all of them in turn, that lie at a place of the device and every `stride`
    /// from there on. The index of each scale would take longer than its copy.
    #[inline(always)]
    fn for_each_run(self, rows: usize, cols: usize, mut run: impl FnMut(Range<usize>, usize, usize)) {
        let stride = if self == Self::Vec128 { self.index(rows, cols, 0, 1) } else { 1 };
        // Rows of nothing have no place.
        for row in 0..if cols == 0 { 0 } else { rows } {
            let start = row * cols;
            match self {
                Self::Tiled128x4 => {
                    // The four scales of a row in a tile, and the same row of the next tile.
                    let mut at = self.index(rows, cols, row, 0);
                    for col in (0..cols).step_by(4) {
                        run(start + col..start + (col + 4).min(cols), at, stride);
                        at += 512;
                    }
                }
                _ => run(start..start + cols, self.index(rows, cols, row, 0), stride),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn orders_are_their_index_functions() {
        for layout in ScaleLayout::ALL.into_iter().filter(|layout| *layout != ScaleLayout::Absent) {
            for (rows, cols) in [(1, 1), (3, 5), (4, 8), (128, 4), (131, 9), (300, 7), (0, 3), (3, 0)] {
                // What a layout has one of for the matrix or a row comes in such grids only.
                let [rows, cols] = match layout {
                    ScaleLayout::Scalar => [1, 1],
                    ScaleLayout::Outer => [rows, 1],
                    _ => [rows, cols],
                };
                let logical: Vec<u32> = (1..=(rows * cols) as u32).collect();
                let device = layout.to_device(rows, cols, &logical);
                let mut want = vec![0; layout.len(rows, cols)];
                for at in 0..rows * cols {
                    want[layout.index(rows, cols, at / cols, at % cols)] = logical[at];
                }
                assert_eq!(device, want, "{layout} {rows} x {cols}");
                assert_eq!(layout.to_logical(rows, cols, &device), logical, "{layout} {rows} x {cols}");
            }
        }
    }
}
