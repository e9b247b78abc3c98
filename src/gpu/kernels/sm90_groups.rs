//! [`Sm90Groups`]: where the groups of a product for Hopper lie.

use super::grouped_between::GroupPlaces;
use super::operand::check_aligned;
use crate::error::{Error, Result};
use crate::gpu::device::memory::Span;

/// Where groups of rows lie in A and D, or of k in A and B. Counts are 64-bit integers on the device; no more rows are taken than lie there.
#[derive(Clone, Copy)]
pub(crate) struct Sm90Groups<'a> {
    pub(crate) count: usize,
    pub(crate) along: Sm90Along,
    pub(crate) rows: Sm90Rows<'a>,
    pub(crate) counts: &'a Span<'a>,
    /// Whether A, and B, have a scale for each group where they would have one in all.
    pub(crate) scales: [bool; 2],
}

/// What groups divide.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sm90Along {
    /// The rows of A and D: `D_g = A_g B_g^T`.
    Rows,
    /// k, whose numbers are the rows of what A and B are transposes of: `D_g = A_g B_g^T` of columns of both. What of the last 128 a group has not must be
    /// zeros in both, or zeros on one side and finite numbers on the other: zero times a NaN code, a NaN scale or an infinity of E5M2 is NaN in all of `D_g`.
    K,
}

impl Sm90Along {
    /// Groups begin at multiples of it.
    pub(crate) fn step(self) -> usize {
        if self == Self::Rows { 4 } else { 128 }
    }

    /// Whether so many rows, or numbers along k, hold so many slots, each of whole steps.
    pub(crate) fn holds_slots(self, held: usize, count: usize, slot: usize) -> bool {
        slot.is_multiple_of(self.step()) && slot.checked_mul(count).is_some_and(|all| all <= held)
    }

    /// Refuses those that are not held.
    pub(crate) fn check_slots(self, held: usize, count: usize, slot: usize) -> Result<()> {
        if self.holds_slots(held, count, slot) {
            return Ok(());
        }
        Err(match self {
            Self::Rows => Error::shape(
                "rows of A",
                format!("{held} rows for {count} slots of {slot}"),
                "must hold every slot, each of a multiple of 4 rows",
                "pass slots of a multiple of 4 rows (casts begin groups at multiples of 128), and an A of all slots",
            ),
            Self::K => Error::shape(
                "k",
                format!("{held} for {count} slots of {slot}"),
                "must hold every slot, each of a multiple of 128: the kernels take k in blocks of 128, of which none belongs to two groups",
                "pass slots of a multiple of 128 rows, and transposes of all slots",
            ),
        })
    }
}

/// Where a group of rows begins.
#[derive(Clone, Copy)]
pub(crate) enum Sm90Rows<'a> {
    /// At a row that the device says, 64-bit integers. A group is left out whose row is negative, beyond A, or no multiple of 4 (of k: of 128).
    Starts(&'a Span<'a>),
    /// At the group's number times this many rows, of which it has no more.
    Slots(usize),
}

impl<'a> From<GroupPlaces<'a>> for Sm90Groups<'a> {
    fn from(places: GroupPlaces<'a>) -> Self {
        let rows = places.starts.map_or(Sm90Rows::Slots(places.slot_rows), Sm90Rows::Starts);
        Self { count: places.groups, along: Sm90Along::Rows, rows, counts: places.counts, scales: [false; 2] }
    }
}

impl Sm90Groups<'_> {
    /// Whether the kernel finds them in a product of m, n and k.
    pub(super) fn check(&self, [m, n, k]: [usize; 3]) -> Result<()> {
        let of_rows = self.along == Sm90Along::Rows;
        if of_rows && !n.is_multiple_of(128) {
            return Err(Error::shape(
                "B",
                format!("n = {n} rows for each of {} groups", self.count),
                "must be a multiple of 128: no 128x128 scale belongs to two groups",
                "pad the rows of each group's B with zeros",
            ));
        }
        let numbers = [("counts of groups", Some(self.counts)), ("starts of groups", self.starts())];
        for (name, span) in numbers {
            let Some(span) = span else { continue };
            if span.bytes < self.count * 8 {
                return Err(Error::shape(
                    name,
                    format!("{} bytes for {} groups", span.bytes, self.count),
                    format!("must be at least {}: one 64-bit integer for each group", self.count * 8),
                    "pass as many numbers as there are groups",
                ));
            }
            check_aligned(name, span, 8)?;
        }
        let Sm90Rows::Slots(rows) = self.rows else { return Ok(()) };
        self.along.check_slots(if of_rows { m } else { k }, self.count, rows)
    }

    fn starts(&self) -> Option<&Span<'_>> {
        match self.rows {
            Sm90Rows::Starts(starts) => Some(starts),
            Sm90Rows::Slots(_) => None,
        }
    }
}
