//! Launches that go before casts of groups of rows, `kernels/cast/grouped_between.cu`: what lies between groups is cleared, rows get a number of their group, and groups the amax of their rows.

use super::Kernels;
use super::launch::{Blocks, THREADS, enqueue};
use super::operand::{Input, address, check_aligned, check_bytes, check_floats, extent, words};
use super::sm90_groups::Sm90Along;
use crate::error::{Error, Result};
use crate::gpu::device::memory::{Named, Span, check_apart};
use crate::gpu::device::stream::Queue;

/// Blocks of a multiprocessor, and warps of a block, each of which takes a row: rows are short, and most of them are kept.
const BLOCKS: usize = 8;
const WARPS: usize = THREADS as usize / 32;

/// Where groups of rows lie: 64-bit integers on the device, any numbers.
#[derive(Clone, Copy)]
pub(crate) struct GroupPlaces<'a> {
    pub(crate) groups: usize,
    /// First rows; `None`: in slots of so many rows.
    pub(crate) starts: Option<&'a Span<'a>>,
    pub(crate) slot_rows: usize,
    pub(crate) counts: &'a Span<'a>,
}

/// Mirror of `GroupPlaces` in `kernels/cast/grouped_between.cu`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Places {
    pub(super) starts: u64,
    pub(super) counts: u64,
    pub(super) slot_rows: u64,
    pub(super) groups: u32,
    step: u32,
}

/// What messages call the count of clamped groups.
pub(crate) const CLAMPED: &str = "count of clamped groups";

/// And what an amax of each.
pub(crate) const GROUP_AMAX: &str = "amax of groups";

impl GroupPlaces<'_> {
    /// The numbers that say so, by name: every block reads them.
    pub(crate) fn read(&self) -> impl Iterator<Item = Named<'_>> + Clone {
        let bytes = self.groups.saturating_mul(8);
        let numbers = [("counts of groups", Some(self.counts)), ("starts of groups", self.starts)];
        numbers.into_iter().filter_map(move |(name, span)| Some((name, span?.slice(0, bytes))))
    }

    /// Groups begin at multiples of `step`.
    pub(super) fn checked(&self, rows: usize, step: usize) -> Result<Places> {
        for (name, numbers) in [("counts of groups", Some(self.counts)), ("starts of groups", self.starts)] {
            let Some(numbers) = numbers else { continue };
            check_bytes(name, numbers, self.groups.saturating_mul(8))?;
            check_aligned(name, numbers, 8)?;
        }
        let slots = if self.starts.is_some() { Some(0) } else { self.slot_rows.checked_mul(self.groups) };
        if self.groups >= 1 << 31 || rows >= 1 << 31 || slots.is_none_or(|slots| slots > rows) {
            return Err(Error::shape(
                "groups of rows",
                format!("{} groups, slots of {} rows, in {rows}", self.groups, self.slot_rows),
                "must lie in the matrix, groups and rows below 2^31",
                "pass the matrix of all slots",
            ));
        }
        let (starts, counts) = (address(self.starts), self.counts.address);
        Ok(Places { starts, counts, slot_rows: self.slot_rows as u64, groups: self.groups as u32, step: step as u32 })
    }
}

impl Kernels {
    /// Sets the rows of no group to zero: `rows` rows of `row_bytes` bytes, `row_stride` bytes apart. `clamped` receives how many groups were not taken as
    /// their numbers say.
    pub(crate) fn clear_between_groups(
        &self,
        stream: &Queue,
        x: &Span<'_>,
        (rows, row_bytes, row_stride): (usize, usize, usize),
        (places, step): (&GroupPlaces<'_>, usize),
        clamped: Option<&Span<'_>>,
    ) -> Result<()> {
        let bytes = extent(rows, row_bytes, row_stride);
        check_bytes("rows of groups", x, bytes)?;
        clamped.map_or(Ok(()), check_clamped)?;
        check_cleared_apart(&x.slice(0, bytes), places, clamped)?;
        let places = places.checked(rows, step)?;
        let blocks = Blocks::new((rows.div_ceil(WARPS).clamp(1, self.sm_count * BLOCKS), 1), THREADS);
        let kernel = self.grouped(stream)?.clear_between;
        let (row_bytes, row_stride) = (row_bytes as u64, row_stride as u64);
        enqueue!(stream, kernel, blocks, x.address, row_bytes, row_stride, rows as u32, places, address(clamped))
    }

    /// Of each of so many rows the number of its group, or that of none.
    pub(crate) fn spread_over_groups(
        &self,
        stream: &Queue,
        (of_groups, of_none): (&Span<'_>, f32),
        of_rows: &Span<'_>,
        rows: usize,
        places: &GroupPlaces<'_>,
    ) -> Result<()> {
        // What the one caller has of them: counts and starts are numbers of groups, too.
        check_floats("second levels of groups", of_groups, places.groups)?;
        check_floats("second levels of rows", of_rows, rows)?;
        let places = places.checked(rows, Sm90Along::Rows.step())?;
        let blocks = Blocks::new((rows.div_ceil(WARPS).clamp(1, self.sm_count * BLOCKS), 1), THREADS);
        let kernel = self.grouped(stream)?.spread;
        enqueue!(stream, kernel, blocks, of_groups.address, of_none, of_rows.address, rows as u32, places)
    }

    /// Of each group the largest magnitude of its rows, 0 without elements. `of_rows`, 16-byte aligned, holds that of each row meanwhile: as many numbers as rows, or none for rows without columns.
    pub(crate) fn amax_over_groups(
        &self,
        stream: &Queue,
        x: &Input<'_>,
        of_rows: &Span<'_>,
        places: &GroupPlaces<'_>,
        of_groups: &Span<'_>,
    ) -> Result<()> {
        x.check()?;
        // Rows without elements are none.
        let rows = if x.cols == 0 { 0 } else { x.rows };
        check_floats("amax of rows", of_rows, rows)?;
        check_aligned("amax of rows", of_rows, 16)?;
        check_floats(GROUP_AMAX, of_groups, places.groups)?;
        let to = places.checked(x.rows, Sm90Along::Rows.step())?;
        if places.groups == 0 {
            return Ok(());
        }
        if rows > 0 {
            self.zero(stream, of_rows, rows * 4)?;
            self.amax_row_column(stream, x, Some(of_rows), None)?;
        }
        // Few groups may each have most of the rows, and leave multiprocessors free.
        let threads = if places.groups <= self.sm_count { 1024 } else { THREADS };
        let (kernel, blocks) = (self.grouped(stream)?.amax_over, Blocks::new((places.groups, 1), threads));
        enqueue!(stream, kernel, blocks, of_rows.address, rows as u32, to, of_groups.address)
    }

    /// `clamped` receives how many groups of a matrix of `rows` rows, or numbers along k, a product does not take as their numbers say, whose groups begin at multiples of `step`.
    pub(crate) fn count_clamped_groups(
        &self,
        stream: &Queue,
        (step, rows): (usize, usize),
        places: &GroupPlaces<'_>,
        clamped: &Span<'_>,
    ) -> Result<()> {
        let places = places.checked(rows, step)?;
        check_clamped(clamped)?;
        let kernel = self.grouped(stream)?.count_clamped;
        enqueue!(stream, kernel, Blocks::new((1, 1), 32), rows as u32, places, clamped.address)
    }
}

/// That rows which become zeros, and the count, lie apart from where groups lie, and from each other.
fn check_cleared_apart(x: &Span<'_>, places: &GroupPlaces<'_>, clamped: Option<&Span<'_>>) -> Result<()> {
    let count = clamped.map(|clamped| words(CLAMPED, clamped, 1));
    check_apart(places.read(), [("rows of groups", *x)].into_iter().chain(count))
}

fn check_clamped(clamped: &Span<'_>) -> Result<()> {
    check_bytes(CLAMPED, clamped, 4)?;
    check_aligned(CLAMPED, clamped, 4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::device::memory::assert_apart;

    #[test]
    fn numbers_and_slots_are_checked() {
        assert_eq!(size_of::<Places>(), 32);
        let numbers = Span::unguarded(4096, 24);
        let places = GroupPlaces { groups: 3, starts: None, slot_rows: 128, counts: &numbers };
        assert!(places.checked(384, 4).is_ok());
        let text = |places: GroupPlaces<'_>, rows| places.checked(rows, 4).map(drop).unwrap_err().to_string();
        assert!(text(places, 383).contains("3 groups, slots of 128 rows, in 383"));
        assert!(text(GroupPlaces { groups: 4, ..places }, 512).contains("counts of groups"));
        assert!(text(GroupPlaces { slot_rows: usize::MAX, ..places }, 512).contains("slots"));
        // (As many groups as no memory has levels for were multiplied by the bytes of one without a look.)
        let levels = check_floats("second levels of groups", &numbers, usize::MAX).unwrap_err().to_string();
        assert!(levels.contains("second levels of groups: 24 bytes"), "{levels}");
        let odd = Span::unguarded(4100, 24);
        assert!(text(GroupPlaces { starts: Some(&odd), ..places }, 512).contains("starts of groups"));
        // Starts may be anything: the device looks at them.
        assert!(GroupPlaces { starts: Some(&numbers), ..places }.checked(1, 4).is_ok());
    }

    #[test]
    fn what_is_cleared_and_counted_lies_apart_from_where_groups_lie() {
        let names = ["counts of groups", "starts of groups", "rows of groups", CLAMPED];
        assert_apart(&names, 2, 24, |at| {
            let places = GroupPlaces { groups: 3, starts: Some(&at[1]), slot_rows: 0, counts: &at[0] };
            check_cleared_apart(&at[2], &places, Some(&at[3]))
        });
        // Numbers behind those of the groups, and memory behind the count, are no part of either.
        let (counts, x) = (Span::unguarded(4096, 64), Span::unguarded(4096 + 24, 64));
        let places = GroupPlaces { groups: 3, starts: None, slot_rows: 128, counts: &counts };
        check_cleared_apart(&x, &places, None).unwrap();
        check_cleared_apart(&x, &places, Some(&Span::unguarded(4092, 64))).unwrap();
        let said = check_cleared_apart(&Span::unguarded(4096 + 23, 64), &places, None).unwrap_err().to_string();
        assert!(said.contains("rows of groups: 64 bytes at 0x1017") && said.contains("counts of groups, 24"), "{said}");
    }
}
