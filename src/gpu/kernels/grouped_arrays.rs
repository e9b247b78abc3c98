//! What cuBLASLt's own products of groups read on the device, `kernels/gemm/grouped_arrays.cu`: the addresses and extents of each group's matrices.

use super::Kernels;
use super::grouped_between::GroupPlaces;
use super::launch::{Blocks, enqueue};
use super::operand::{address, check_aligned, check_bytes, check_floats, extent};
use crate::error::Result;
use crate::gpu::device::memory::Span;
use crate::gpu::device::stream::Queue;

/// The arrays of 64-bit numbers, in the order in which they lie; A and B are ours.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum GroupArray {
    BAt,
    AAt,
    DAt,
    BScales,
    AScales,
    N,
    K,
    Rows,
    DStride,
}

const ARRAYS: usize = 9;
/// Each array begins at a multiple of 16 bytes, and so do alpha and beta behind them.
const GRAIN: usize = 2;

fn pitch(groups: usize) -> usize {
    groups.next_multiple_of(GRAIN)
}

/// Bytes of all arrays, and of alpha and beta behind them.
pub(crate) fn group_array_bytes(groups: usize) -> usize {
    8 * ARRAYS * pitch(groups) + 16
}

/// Where one of them begins, of `group_array_bytes`.
pub(crate) fn group_array<'s>(all: &Span<'s>, groups: usize, array: GroupArray) -> Span<'s> {
    all.slice(8 * array as usize * pitch(groups), 8 * groups)
}

/// Alpha and beta.
pub(crate) fn group_factors<'s>(all: &Span<'s>, groups: usize) -> Span<'s> {
    all.slice(8 * ARRAYS * pitch(groups), 8)
}

/// The scales of an operand, whose addresses the arrays have: bytes from a group's to the next one's, and from those of 128 rows to the next.
#[derive(Clone, Copy)]
pub(crate) struct GroupScales<'a> {
    pub(crate) all: Span<'a>,
    pub(crate) group: usize,
    pub(crate) rows128: usize,
}

/// One operand: where it begins, and bytes of a row.
#[derive(Clone, Copy)]
pub(crate) struct GroupOperand<'a> {
    pub(crate) codes: Span<'a>,
    pub(crate) row: usize,
    pub(crate) scales: Option<GroupScales<'a>>,
}

pub(crate) struct GroupArrays<'a> {
    pub(crate) places: GroupPlaces<'a>,
    /// Rows that a group begins at a multiple of: 4 or 128.
    pub(crate) step: usize,
    /// Rows of A, n, k.
    pub(crate) mnk: [usize; 3],
    pub(crate) a: GroupOperand<'a>,
    pub(crate) b: GroupOperand<'a>,
    pub(crate) d: &'a Span<'a>,
    /// Elements from one row of D to the next, and bytes of one.
    pub(crate) d_stride: usize,
    pub(crate) d_bytes: usize,
    pub(crate) alpha: f32,
    /// Further factors of all products, of A and of B.
    pub(crate) levels: [Option<&'a Span<'a>>; 2],
    pub(crate) arrays: &'a Span<'a>,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Operand {
    at: u64,
    row: u64,
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Scales {
    at: u64,
    group: u64,
    rows128: u64,
}

/// Mirror of `GroupArraysProblem` in `kernels/gemm/grouped_arrays.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Problem {
    starts: u64,
    counts: u64,
    slot_rows: u64,
    groups: u32,
    rows: u32,
    n: u32,
    k: u32,
    d_stride: u64,
    operands: [Operand; 3],
    scales: [Scales; 2],
    levels: [u64; 2],
    alpha: f32,
    step: u32,
    arrays: u64,
    pitch: u64,
}

impl GroupOperand<'_> {
    /// Refuses what is shorter than so many rows, in groups of so many.
    fn check(&self, operand: &str, rows: usize, groups: usize) -> Result<()> {
        check_bytes(operand, &self.codes, rows.saturating_mul(self.row))?;
        check_aligned(operand, &self.codes, 16)?;
        let Some(GroupScales { ref all, group, rows128 }) = self.scales else { return Ok(()) };
        let of_rows = rows.div_ceil(128).saturating_mul(rows128);
        check_bytes(operand, all, of_rows.max(groups.saturating_mul(group)))?;
        check_aligned(operand, all, if rows128 > 0 { 16 } else { 4 })
    }

    fn operand(&self) -> Operand {
        Operand { at: self.codes.address, row: self.row as u64 }
    }

    fn scales(&self) -> Scales {
        self.scales.map_or(Scales { at: 0, group: 0, rows128: 0 }, |scales| Scales {
            at: scales.all.address,
            group: scales.group as u64,
            rows128: scales.rows128 as u64,
        })
    }
}

impl Kernels {
    /// Fills the arrays of this product. Of groups that are not taken the rows are zero, and the addresses those of the operands.
    pub(crate) fn grouped_arrays(&self, stream: &Queue, call: &GroupArrays<'_>) -> Result<()> {
        let &GroupArrays { places, step, mnk: [rows, n, k], a, b, d, d_stride, d_bytes, alpha, levels, arrays } = call;
        let (groups, of_places) = (places.groups, places.checked(rows, step)?);
        a.check("A of groups", rows, groups)?;
        b.check("B of groups", groups.saturating_mul(n), groups)?;
        check_bytes("D of groups", d, extent(rows, n, d_stride).saturating_mul(d_bytes))?;
        check_aligned("D of groups", d, 16)?;
        levels.into_iter().flatten().try_for_each(|level| check_floats("second level", level, 1))?;
        check_bytes("arrays of groups", arrays, group_array_bytes(groups))?;
        check_aligned("arrays of groups", arrays, 16)?;
        let problem = Problem {
            starts: of_places.starts,
            counts: of_places.counts,
            slot_rows: of_places.slot_rows,
            groups: of_places.groups,
            rows: rows as u32,
            n: n as u32,
            k: k as u32,
            d_stride: d_stride as u64,
            operands: [a.operand(), b.operand(), Operand { at: d.address, row: (d_stride * d_bytes) as u64 }],
            scales: [a.scales(), b.scales()],
            levels: levels.map(address),
            alpha,
            step: step as u32,
            arrays: arrays.address,
            pitch: pitch(groups) as u64,
        };
        enqueue!(stream, self.grouped(stream)?.arrays, Blocks::new((1, 1), 32), problem)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOURCE: &str = include_str!("../../../kernels/gemm/grouped_arrays.cu");

    #[test]
    fn arrays_are_those_of_the_kernel() {
        assert!(SOURCE.contains("enum { B_AT, A_AT, D_AT, B_SCALES, A_SCALES, N, K, ROWS, D_STRIDE, ARRAYS };"));
        assert_eq!((GroupArray::BAt as usize, GroupArray::DStride as usize), (0, ARRAYS - 1));
        assert_eq!(size_of::<Problem>(), 184);
        let all = Span::unguarded(4096, group_array_bytes(3));
        // Three numbers take the place of four.
        assert_eq!(group_array(&all, 3, GroupArray::AAt).address, 4096 + 32);
        let last = group_array(&all, 3, GroupArray::DStride);
        assert_eq!((last.address, last.bytes), (4096 + 8 * 32, 24));
        let factors = group_factors(&all, 3);
        assert_eq!((factors.address, factors.bytes), (4096 + 9 * 32, 8));
        assert!(factors.address + 16 <= 4096 + all.bytes as u64);
    }
}
