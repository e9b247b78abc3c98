//! [`GroupedRows`]: where the rows of groups lie.

use crate::error::Result;
use crate::gpu::device::memory::DeviceBytes;
use crate::gpu::device::stream::Order;
use crate::gpu::kernels::{GroupPlaces, Sm90Along};

/// Where the rows of groups lie in A and D, which have the same rows. All numbers are signed 64-bit integers (`i64`) in device memory, at least
/// as many of each kind as there are groups, which each launch reads anew; nobody reads them back. They must not change while a launch runs, which the order of streams sees to but for memory that was passed
/// by its address: its blocks read them more than once, and might wait for each other without end. In one launch
/// ([`GroupedGemmArgs::explain`](crate::GroupedGemmArgs::explain)) rows of D of no group are not written, and what rows of A of no group hold does not matter.
///
/// Counts are clamped: a group has no more rows than lie there, and none where its count is negative; no two groups share a row.
/// [`GroupedGemmArgs::clamped`](crate::GroupedGemmArgs::clamped) tells how many were not taken as they say.
#[doc(alias = "m_splits")]
pub enum GroupedRows<'a> {
    /// One behind the other, with gaps: group g has `counts[g]` rows from `starts[g]` on, up to `starts[g + 1]` at the most, the last
    /// group up to the end of A. Starts do not decrease, those of
    /// empty groups neither: a group that starts before an earlier one, outside of A, or at no multiple of 4 (of 128 where block scales are read by [cuBLASLt's own product](crate::GroupedGemmArgs::by_cublaslt)), is left out, and so is one whose
    /// next starts before it. Casts begin groups at multiples of 128.
    Contiguous {
        /// First row of each group, in 64 bits.
        starts: DeviceBytes<'a>,
        /// Rows of each group, in 64 bits.
        counts: DeviceBytes<'a>,
    },
    /// In slots of equal length: group g has the first `counts[g]` rows from `g * slot_rows` on, and no more than `slot_rows`. Where one product is
    /// made for each slot ([`GroupedGemmArgs::explain`](crate::GroupedGemmArgs::explain)) counts are not read, and the rows of D behind them hold what A's rows there give.
    Masked {
        /// Rows of a slot: a multiple of 4, or of 128 where one product is made for each.
        slot_rows: usize,
        /// Rows of each group, in 64 bits.
        counts: DeviceBytes<'a>,
    },
}

impl GroupedRows<'_> {
    /// With the places of so many groups on the stream.
    pub(crate) fn with_places<'q, T>(
        &'q self,
        groups: usize,
        order: &Order<'q>,
        then: impl FnOnce(GroupPlaces<'_>) -> Result<T>,
    ) -> Result<T> {
        let (Self::Contiguous { counts, .. } | Self::Masked { counts, .. }) = self;
        let counts = counts.at(order)?;
        match self {
            Self::Contiguous { starts, .. } => {
                let starts = starts.at(order)?;
                then(GroupPlaces { groups, starts: Some(&starts), slot_rows: 0, counts: &counts })
            }
            Self::Masked { slot_rows, .. } => {
                then(GroupPlaces { groups, starts: None, slot_rows: *slot_rows, counts: &counts })
            }
        }
    }

    /// Rows of a slot; `None` where the device alone knows where groups begin.
    pub(crate) fn slot_rows(&self) -> Option<usize> {
        match self {
            Self::Masked { slot_rows, .. } => Some(*slot_rows),
            Self::Contiguous { .. } => None,
        }
    }

    /// How many rows a group has, as far as the host knows.
    pub(crate) fn expected(&self, groups: usize, rows: usize) -> usize {
        expected(self.slot_rows(), groups, rows)
    }
}

/// Refuses slots of so many rows that so many rows of A do not hold.
pub(super) fn check_slots(slot_rows: Option<usize>, groups: usize, rows: usize) -> Result<()> {
    slot_rows.map_or(Ok(()), |slot_rows| Sm90Along::Rows.check_slots(rows, groups, slot_rows))
}

/// How many rows a group has, as far as the host knows: all that a slot holds, or an equal share.
pub(super) fn expected(slot_rows: Option<usize>, groups: usize, rows: usize) -> usize {
    slot_rows.unwrap_or_else(|| rows.div_ceil(groups.max(1)))
}
