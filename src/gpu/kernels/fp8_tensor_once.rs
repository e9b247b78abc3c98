//! Launches for FP8 with one scale, the amax and the cast in one: `kernels/cast/fp8_tensor_once.cu`.

use super::Kernels;
use super::launch::{Blocks, enqueue};
use super::operand::{Input, Output, check_aligned, check_floats, check_output};
use super::scale_rule::ScaleRule;
use crate::error::{Error, Result};
use crate::format::Fp8Recipe;
use crate::gpu::device::memory::Span;
use crate::gpu::device::stream::Queue;

/// Elements that a thread of `quantize_fp8_tensor_in_*` takes at the most, its threads in a block, and the blocks of its cluster, as
/// `kernels/cast/fp8_tensor_once.cu` has them. Of a grid there is a block for each multiprocessor at the most, half of what always fits: a
/// kernel of another stream that stays, and waits for this one, leaves it room.
const ONCE_HELD: usize = 32;
const ONCE_THREADS: usize = 512;
const ONCE_CLUSTER: usize = 8;

/// Blocks of such a launch at the most: one of each multiprocessor, and no more than have a thread that reads its part.
fn most_at_once(sm_count: usize) -> usize {
    sm_count.min(ONCE_THREADS)
}

/// Whether so many contiguous elements are cast in one launch: at least one, and as many as those blocks hold.
fn fit_once(elements: usize, sm_count: usize) -> bool {
    (1..=ONCE_HELD * ONCE_THREADS * most_at_once(sm_count)).contains(&elements)
}

/// The blocks of that launch, and whether they are one cluster.
///
/// Where one cluster holds all, its blocks meet through shared memory: 0.3 to 0.6 us sooner than through the L2 cache (measured: H200,
/// 2026-11). A part of a GPU that is smaller than two of them might not place one.
fn blocks_once(elements: usize, has_clusters: bool, sm_count: usize) -> (bool, Blocks) {
    if elements <= ONCE_CLUSTER * ONCE_THREADS * ONCE_HELD && has_clusters && sm_count >= 2 * ONCE_CLUSTER {
        let threads = elements.div_ceil(ONCE_CLUSTER * ONCE_HELD).next_multiple_of(32).max(128);
        (true, Blocks::new((ONCE_CLUSTER, 1), threads as u32).clusters(ONCE_CLUSTER as u32))
    } else {
        let grid = elements.div_ceil(ONCE_HELD * ONCE_THREADS);
        (false, Blocks::new((grid, 1), ONCE_THREADS as u32).cooperative())
    }
}

impl Kernels {
    /// Bytes of the place where blocks of `quantize_tensor_once` meet: `Meeting` of `kernels/cast/fp8_tensor_once.cu`, with a part for each of them.
    pub(crate) fn meeting_bytes(&self) -> usize {
        8 + 8 * most_at_once(self.sm_count)
    }

    /// Whether `quantize_tensor_once` can: a contiguous matrix of as many elements as one block of each multiprocessor holds.
    pub(crate) fn fits_once(&self, x: &Input<'_>) -> bool {
        let (rows, elements) = x.flattened();
        rows == 1 && fit_once(elements, self.sm_count)
    }

    /// [`Kernels::amax_tensor`] and [`Kernels::quantize_tensor`] in one launch that reads the matrix once.
    ///
    /// `place` ([`Kernels::meeting_bytes`]) is zero before the first call, and of one stream.
    pub(crate) fn quantize_tensor_once(
        &self,
        stream: &Queue,
        x: &Input<'_>,
        recipe: Fp8Recipe,
        place: &Span<'_>,
        out: &Output<'_>,
    ) -> Result<()> {
        x.check()?;
        check_output(out, recipe.scheme(), x.rows, x.cols)?;
        check_floats("where blocks meet", place, self.meeting_bytes() / 4)?;
        check_aligned("where blocks meet", place, 8)?;
        if !self.fits_once(x) {
            return Err(Error::shape(
                "matrix to cast in one launch",
                format!("{} x {}, rows {} elements apart", x.rows, x.cols, x.row_stride),
                "must be contiguous and fit the registers of one block of each multiprocessor",
                "report it: Kernels::fits_once was not asked",
            ));
        }
        let kernels = &self.fp8(stream)?.quantize_tensor_once;
        let [in_grid, in_cluster] = [&kernels[0], &kernels[1]].map(|of| of.of(x.dtype, x.aligned()));
        let (in_grid, in_cluster) = (in_grid?, in_cluster?);
        let vectors = x.rows * x.cols / 8;
        let (clustered, blocks) = blocks_once(vectors * 8, in_cluster.has_clusters(), self.sm_count);
        let kernel = if clustered { in_cluster } else { in_grid };
        enqueue!(
            stream,
            kernel,
            blocks,
            x.x.address,
            vectors as u32,
            ScaleRule::new(recipe, x.dtype),
            place.address,
            out.codes.address,
            out.scales.address,
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What one block holds, and one cluster.
    const BLOCK: usize = 16384;
    const CLUSTER: usize = 8 * BLOCK;

    #[test]
    fn a_matrix_is_cast_in_one_launch_while_it_fits_a_block_of_each_multiprocessor() {
        for (elements, fits) in [(0, false), (16, true), (132 * BLOCK, true), (132 * BLOCK + 16, false)] {
            assert_eq!(fit_once(elements, 132), fits, "{elements}");
        }
        // 128 x 7168 takes 56 of them.
        assert!(fit_once(128 * 7168, 56) && !fit_once(128 * 7168, 55));
    }

    #[test]
    fn that_launch_is_one_cluster_where_that_holds_all() {
        let cluster = |threads| (true, Blocks::new((8, 1), threads).clusters(8));
        let grid = |blocks| (false, Blocks::new((blocks, 1), 512).cooperative());
        assert_eq!(blocks_once(16, true, 132), cluster(128));
        assert_eq!(blocks_once(8 * 32 * 128 + 16, true, 132), cluster(160));
        assert_eq!(blocks_once(CLUSTER, true, 132), cluster(512));
        assert_eq!(blocks_once(CLUSTER + 16, true, 132), grid(9));
        assert_eq!(blocks_once(128 * 7168, true, 132), grid(56));
        // A part of a GPU, and one without clusters.
        assert_eq!((blocks_once(16, true, 16), blocks_once(16, true, 15)), (cluster(128), grid(1)));
        assert_eq!((blocks_once(CLUSTER, false, 108), blocks_once(BLOCK + 16, false, 108)), (grid(8), grid(2)));
    }
}
