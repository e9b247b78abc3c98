//! [`GroupedMembers`]: where the members of a grouped tensor lie, as its kernels read it.

use super::grouped_forward::GroupedForward;
use super::operand::{check_aligned, check_bytes};
use crate::error::{Error, Result};
use crate::gpu::device::memory::{Named, Span};

/// Of so many members at the most, in a buffer of so many elements, each block finds itself where they lie.
pub(super) const FEW: usize = 512;
const FEW_LENGTH: usize = (1 << 32) - (1 << 16);

/// Where members lie, and scratch for which of their rows lie where they may.
#[derive(Clone, Copy)]
pub(crate) struct GroupedMembers<'a> {
    pub(crate) count: usize,
    /// Elements of the buffer.
    pub(crate) length: usize,
    /// A number of eight bytes for each member, any contents; offsets in elements.
    pub(crate) rows: &'a Span<'a>,
    pub(crate) cols: &'a Span<'a>,
    pub(crate) offsets: &'a Span<'a>,
    pub(crate) scratch: &'a Span<'a>,
    /// A `u32`: receives how many members were not taken as they say.
    pub(crate) clamped: &'a Span<'a>,
}

/// Mirror of `GroupedMembers` in `kernels/cast/grouped.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Members {
    rows: u64,
    cols: u64,
    offsets: u64,
    forward: u64,
    fitting: u64,
    chunks: u64,
    tiles: u64,
    clamped: u64,
    length: u64,
    forward_length: u64,
    members: u32,
}

impl GroupedMembers<'_> {
    /// What the kernels read while they write: nothing of it may be written.
    pub(super) fn numbers(&self) -> [Named<'_>; 3] {
        [
            ("rows of the layout", *self.rows),
            ("columns of the layout", *self.cols),
            ("offsets of the layout", *self.offsets),
        ]
    }

    /// Bytes of scratch: rows that fit, and prefix sums of chunks and of tiles with their totals. `None`: no machine has so many.
    pub(crate) fn scratch_bytes(count: usize) -> Option<usize> {
        count.checked_mul(24)?.checked_add(16)
    }

    /// Whether each block adds up the members itself, so that nothing goes before it.
    pub(super) fn are_few(&self) -> bool {
        self.count <= FEW && self.length <= FEW_LENGTH
    }

    pub(super) fn checked(&self, forward: Option<&GroupedForward<'_>>) -> Result<Members> {
        let Self { count, length, .. } = *self;
        for (name, span) in self.numbers() {
            check_bytes(name, &span, count * 8)?;
            check_aligned(name, &span, 8)?;
        }
        let scratch = Self::scratch_bytes(count).filter(|_| count < 1 << 31).ok_or_else(|| {
            let rule = "must be fewer than 2^31";
            Error::shape("members of a grouped tensor", count.to_string(), rule, "split the tensor")
        })?;
        check_bytes("scratch", self.scratch, scratch)?;
        check_aligned("scratch", self.scratch, 8)?;
        check_bytes("count of clamped members", self.clamped, 4)?;
        check_aligned("count of clamped members", self.clamped, 4)?;
        let (offsets, forward_length) = forward.map_or((0, 0), |second| (second.offsets.address, second.length as u64));
        let (scratch, each) = (self.scratch.address, count as u64 * 8);
        let [fitting, chunks, tiles] = match self.are_few() {
            true => [0; 3],
            false => [scratch, scratch + each, scratch + 2 * each + 8],
        };
        Ok(Members {
            rows: self.rows.address,
            cols: self.cols.address,
            offsets: self.offsets.address,
            forward: offsets,
            fitting,
            chunks,
            tiles,
            clamped: self.clamped.address,
            length: length as u64,
            forward_length,
            members: count as u32,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_has_the_size_of_what_it_mirrors() {
        assert_eq!(size_of::<Members>(), 88);
    }

    #[test]
    fn scratch_has_room_for_what_is_planned() {
        let (numbers, scratch) = (Span::unguarded(4096, 8 * 1025), Span::unguarded(1 << 20, 24 * 1025 + 16));
        let (rows, cols, offsets, clamped) = (&numbers, &numbers, &numbers, &Span::unguarded(64, 4));
        let members = GroupedMembers { count: 1025, length: 1, rows, cols, offsets, scratch: &scratch, clamped };
        let m = members.checked(None).unwrap();
        assert_eq!([m.fitting, m.chunks, m.tiles], [1 << 20, (1 << 20) + 8200, (1 << 20) + 8200 + 8208]);
        assert_eq!(m.tiles + 1026 * 8, scratch.address + scratch.bytes as u64);
        assert!(GroupedMembers { count: 1026, ..members }.checked(None).is_err());
        assert!(GroupedMembers { scratch: &scratch.slice(0, 24 * 1025 + 15), ..members }.checked(None).is_err());
        assert!(GroupedMembers { clamped: &Span::unguarded(64, 3), ..members }.checked(None).is_err());
        assert_eq!(GroupedMembers::scratch_bytes(usize::MAX), None);
        assert!(GroupedMembers::scratch_bytes(1 << 20).unwrap() + (4 << 20) <= 32 << 20);
    }

    #[test]
    fn few_members_are_added_up_by_each_block() {
        let (numbers, scratch) = (Span::unguarded(4096, 8 * 1025), Span::unguarded(1 << 20, 24 * 1025 + 16));
        let (rows, cols, offsets, clamped) = (&numbers, &numbers, &numbers, &Span::unguarded(64, 4));
        for (count, length, few) in [
            (0, 0, true),
            (512, 1, true),
            (513, 1, false),
            (3, 0xFFFF_0000, true),
            (3, 0xFFFF_0001, false),
            (3, 1 << 32, false),
        ] {
            let members = GroupedMembers { count, length, rows, cols, offsets, scratch: &scratch, clamped };
            let m = members.checked(None).unwrap();
            assert_eq!((m.fitting == 0, m.chunks == 0, m.tiles == 0), (few, few, few), "{count} in {length}");
        }
    }
}
