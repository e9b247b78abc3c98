//! [`RowLaunch`]: which kernel quantizes rows to NVFP4 whose second levels are found in the same pass, and in which blocks.

use super::launch::Blocks;
use crate::format::DType;

/// Elements from which rows are many, and from which they are so many that each thread takes two blocks of 16 where errors are strict, too.
const MANY: usize = 1 << 24;
const MOST: usize = 1 << 26;

/// Threads that take a row, so many blocks of 16 in each.
pub(super) fn threads_of_row(cols: usize, blocks: usize) -> usize {
    cols.div_ceil(16 * blocks).next_multiple_of(32).max(64)
}

/// Whether rows of so many threads, with two blocks of 16 in each, leave less of a multiprocessor's registers unused than those with one: there is room for 24 and
/// for 28 warps. With strict errors 16384 x 6144 takes 0.95 of the time then, 16384 x 7168, which fills it with one, 1.03 (measured: H200, 2026-11).
fn fills_more(two: usize, one: usize) -> bool {
    let filled = |threads: usize, room: usize| room / (threads / 32) * (threads / 32);
    filled(two, 24) * 28 > filled(one, 28) * 24
}

/// What quantizes rows whose second levels are found in the same pass.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RowKernel {
    /// Rows that are read twice.
    Long,
    /// Rows held in registers.
    Held,
    /// 4over6 of many rows: places in `Nvfp4Kernels::many`.
    Many { rule: usize, narrow: usize },
    /// The same of the most rows, with strict errors: places in `Nvfp4Kernels::most`.
    Most { errors: usize, narrow: usize },
}

/// How it is launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct RowLaunch {
    pub(super) kernel: RowKernel,
    /// Rows that a block takes in turn: 1 or 4.
    pub(super) together: u32,
    pub(super) blocks: Blocks,
}

impl RowLaunch {
    /// For the rule at `place` on a GPU of so many multiprocessors.
    pub(super) fn new(
        place: usize,
        (rows, cols): (usize, usize),
        dtype: DType,
        aligned: bool,
        sm_count: usize,
    ) -> Self {
        // Two blocks of 16 in each thread (`row_threads` of the kernel). Groups of four rows are blocks of their own, which
        // the GPU deals out as multiprocessors come free; single rows are as many as registers allow at once.
        let wanted = threads_of_row(cols, 2);
        let (held, threads) = (wanted <= 512, wanted.min(512));
        let registers = if place == 0 { 64 } else { 128 };
        let resident = sm_count * (65536 / registers / threads).max(1);
        let padded = rows.next_multiple_of(128);
        let together = if held && padded / 4 >= 4 * sm_count { 4 } else { 1 };
        let rows_at_once = if together == 4 { padded / 4 } else { padded.min(resident) };
        let many = Self::many(place, (rows, cols), dtype).filter(|_| together == 4 && aligned);
        let (kernel, threads) = many.unwrap_or((if held { RowKernel::Held } else { RowKernel::Long }, threads));
        Self { kernel, together, blocks: Blocks::new((rows_at_once, 1), threads as u32) }
    }

    /// The kernel for many aligned rows, and its threads, if there is one: with two blocks of 16 in each thread or, where errors are strict
    /// and rows not the most, one. Small matrices have too few rows for the more that fit: 3 % slower at 4001 x 2048 (measured: H200, 2026-11).
    fn many(place: usize, (rows, cols): (usize, usize), dtype: DType) -> Option<(RowKernel, usize)> {
        let rule = place.checked_sub(1).filter(|_| rows * cols >= MANY)?;
        let narrow = [DType::Bf16, DType::F16].iter().position(|known| *known == dtype)?;
        let threads = threads_of_row(cols, 2);
        if rule >= 2 && rows * cols >= MOST && threads <= 224 && fills_more(threads, threads_of_row(cols, 1)) {
            return Some((RowKernel::Most { errors: rule - 2, narrow }, threads));
        }
        let (blocks, most) = if rule < 2 { (2, 256) } else { (1, 448) };
        let threads = threads_of_row(cols, blocks);
        (threads <= most).then_some((RowKernel::Many { rule, narrow }, threads))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Of aligned BF16 by the plain rule (0), 4over6 with fast absolute (1) or strict squared errors (4).
    fn of(place: usize, rows: usize, cols: usize) -> RowLaunch {
        RowLaunch::new(place, (rows, cols), DType::Bf16, true, 132)
    }

    fn launch(kernel: RowKernel, together: u32, blocks: usize, threads: u32) -> RowLaunch {
        RowLaunch { kernel, together, blocks: Blocks::new((blocks, 1), threads) }
    }

    const FAST: RowKernel = RowKernel::Many { rule: 0, narrow: 0 };
    const STRICT: RowKernel = RowKernel::Many { rule: 3, narrow: 0 };

    #[test]
    fn many_rows_have_kernels_of_their_own() {
        // Of 2^24 elements, in rows of up to 8192 columns, or 7168 where errors are strict.
        assert_eq!(of(1, 16144, 1040), launch(FAST, 4, 4064, 64));
        assert_eq!(of(1, 16384, 1024), launch(FAST, 4, 4096, 64));
        assert_eq!(of(1, 16383, 1024), launch(RowKernel::Held, 4, 4096, 64));
        assert_eq!(of(4, 16144, 1040), launch(STRICT, 4, 4064, 96));
        assert_eq!(of(1, 1 << 20, 16), launch(FAST, 4, 1 << 18, 64));
        assert_eq!(of(1, 4096, 8192), launch(FAST, 4, 1024, 256));
        assert_eq!(of(1, 4096, 8208), launch(RowKernel::Held, 4, 1024, 288));
        assert_eq!(of(4, 4096, 7168), launch(STRICT, 4, 1024, 448));
        assert_eq!(of(4, 4096, 7184), launch(RowKernel::Held, 4, 1024, 256));
        // Of 2^26 elements two blocks a thread are faster with strict errors, too, unless one fills the registers better.
        let most = |errors, threads| launch(RowKernel::Most { errors, narrow: 0 }, 4, 4096, threads);
        assert_eq!((of(4, 16384, 4096), of(3, 16384, 6144)), (most(1, 128), most(0, 192)));
        assert_eq!(of(3, 16384, 4080), launch(RowKernel::Many { rule: 2, narrow: 0 }, 4, 4096, 256));
        assert_eq!(of(3, 16384, 7168), launch(RowKernel::Many { rule: 2, narrow: 0 }, 4, 4096, 448));
        assert_eq!(of(4, 32768, 2048), launch(STRICT, 4, 8192, 128));
        assert_eq!(of(4, 16384, 7184), launch(RowKernel::Held, 4, 4096, 256));
        // Rows for four blocks of a multiprocessor, four in each; padding counts.
        assert_eq!(of(1, 16 * 132 + 1, 8192), launch(FAST, 4, 544, 256));
        assert_eq!(of(1, 16 * 128, 8192), launch(RowKernel::Held, 1, 2 * 132, 256));
        // Not the plain rule, no single precision, no row that begins elsewhere.
        assert_eq!(of(0, 4096, 8192), launch(RowKernel::Held, 4, 1024, 256));
        for (dtype, aligned, kernel) in [
            (DType::Bf16, true, FAST),
            (DType::F16, true, RowKernel::Many { rule: 0, narrow: 1 }),
            (DType::F32, true, RowKernel::Held),
            (DType::F16, false, RowKernel::Held),
        ] {
            assert_eq!(RowLaunch::new(1, (4096, 8192), dtype, aligned, 132).kernel, kernel, "{dtype} {aligned}");
        }
    }

    #[test]
    fn single_rows_are_as_many_as_fit() {
        assert_eq!(of(0, 128, 7168), launch(RowKernel::Held, 1, 128, 224));
        assert_eq!(of(0, 2000, 7168), launch(RowKernel::Held, 1, 4 * 132, 224));
        assert_eq!(of(1, 2000, 7168), launch(RowKernel::Held, 1, 2 * 132, 224));
        assert_eq!(of(0, 3, 16384), launch(RowKernel::Held, 1, 128, 512));
        // Too long for registers, however many.
        assert_eq!(of(1, 4096, 16400), launch(RowKernel::Long, 1, 132, 512));
        assert_eq!(of(0, 1, 16), launch(RowKernel::Held, 1, 128, 64));
    }
}
