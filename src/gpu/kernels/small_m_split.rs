//! How blocks that share rows of B bring their sums over parts of k together by warpgroup products ([`small_m_wgmma`](super::small_m_wgmma)), and what that costs. Pure.

use super::small_m_config::SmallMConfig;

/// Clusters of `split` blocks that run at once, where a multiprocessor holds so many blocks: those of four and eight do not fill every part of the GPU (observed on an H200: 15 of 16 of what its
/// multiprocessors would hold).
pub(crate) fn clusters_at_once(residents: usize, split: usize, sm_count: usize) -> usize {
    let all = sm_count * residents / split;
    if split < 4 { all.max(1) } else { (all * 15 / 16).max(1) }
}

/// Where the parts of a sum meet, with fewer kernels first. Either way they are added in the order of k, to the same bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Meeting {
    /// In one block, or in the shared memory of a cluster.
    Cluster,
    /// In scratch memory, where another kernel adds them.
    Memory,
}

impl std::fmt::Display for Meeting {
    /// Where the product stands among what is launched.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Cluster => "behind a kernel that arranges A",
            Self::Memory => "between a kernel that arranges A and one that adds parts of sums",
        })
    }
}

/// Half steps of 128 of k that a product takes beside those of its blocks: of one block, of a cluster, to which each of its blocks adds one, of two kernels; and of each round of blocks behind the first. Fitted to all splits
/// of 16 to 64 rows of three schemes at 11 shapes (H200, 2026-11, the record of joins), where what costs the least takes 1.007 of the fastest on average, 1.062 at most (`nvfp4`, 64 x 5120 x 5120), and 1.011 and 1.063 of the
/// powers of two alone.
const ALONE: usize = 12;
const CLUSTER: usize = 12;
const TWO_KERNELS: usize = 20;
const ROUND: usize = 12;

/// Half steps of blocks that stand on a multiprocessor at once and take a step each: another one beside a block takes half as long again, a third one as long.
fn half_steps(at_once: usize) -> usize {
    match at_once {
        0 => 0,
        1 | 2 => at_once + 1,
        _ => 2 * at_once - 1,
    }
}

/// Half steps of so many blocks or clusters, of which `places` says how many run at once with that many blocks on a multiprocessor, up to `residents`; each takes so many steps.
fn rounds(all: usize, places: impl Fn(usize) -> usize, residents: usize, steps: usize) -> usize {
    let (full, rest) = (all / places(residents), all % places(residents));
    let last = (1..=residents).find(|blocks| rest <= places(*blocks)).filter(|_| rest > 0).unwrap_or(0);
    (full * half_steps(residents) + half_steps(last)) * steps + (full + usize::from(last > 0)).saturating_sub(1) * ROUND
}

/// Where the parts of a product of n rows of B meet, and what it costs, in half steps of 128 of k. A cluster that finds no multiprocessors of its own stands beside another one, and all wait for these two: blocks that are no
/// cluster are spread over all multiprocessors (H200, 2026-11: 32 clusters of four, 64 x 4096 x 7168 of `nvfp4`, 21.2 us, and 14.4 as blocks). `None`: nowhere, as no cluster has so many blocks, and more than run at once
/// leave nothing in memory.
pub(crate) fn meeting(
    config: SmallMConfig,
    [n, k]: [usize; 2],
    residents: usize,
    sm_count: usize,
) -> Option<(Meeting, usize)> {
    let (tiles, split) = (config.block().tiles(n), config.split() as usize);
    let steps = k.div_ceil(128).div_ceil(split);
    let spread = rounds(tiles * split, |blocks| sm_count.max(1) * blocks, residents, steps);
    if split == 1 {
        return Some((Meeting::Cluster, spread + ALONE));
    }
    let clusters = (!config.needs_memory()).then(|| {
        let clusters = rounds(tiles, |blocks| clusters_at_once(blocks, split, sm_count), residents, steps);
        (Meeting::Cluster, clusters + CLUSTER + split)
    });
    // More rounds gain little, and the parts of as many blocks as run at once are little memory.
    let one_round = tiles * split <= sm_count * residents;
    let memory = one_round.then_some((Meeting::Memory, spread + TWO_KERNELS));
    // Of equal costs that with fewer kernels.
    clusters.into_iter().chain(memory).min_by_key(|(_, cost)| *cost)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::kernels::small_m_config::SmallMBlock;

    fn of(split: u32, nk: [usize; 2], residents: usize) -> (Meeting, usize) {
        somewhere(split, nk, residents).unwrap()
    }

    fn somewhere(split: u32, nk: [usize; 2], residents: usize) -> Option<(Meeting, usize)> {
        meeting(SmallMConfig::new(SmallMBlock::Tile, split).unwrap(), nk, residents, 132)
    }

    #[test]
    fn blocks_beside_others_take_longer() {
        assert_eq!([0, 1, 2, 3].map(half_steps), [0, 2, 3, 5]);
        let of = |blocks| rounds(blocks, |at_once| 10 * at_once, 2, 7);
        // One and two on a multiprocessor, and another round of one.
        assert_eq!([0, 1, 10, 11, 20].map(of), [0, 2 * 7, 2 * 7, 3 * 7, 3 * 7]);
        assert_eq!([21, 41].map(of), [5 * 7 + ROUND, 8 * 7 + 2 * ROUND]);
    }

    #[test]
    fn clusters_meet_where_each_finds_its_own_multiprocessors() {
        use Meeting::{Cluster, Memory};
        // Of four blocks 30 do, of eight 15.
        assert_eq!([30, 31].map(|tiles| of(4, [tiles * 128, 7168], 2).0), [Cluster, Memory]);
        assert_eq!([15, 16].map(|tiles| of(8, [tiles * 128, 7168], 2).0), [Cluster, Memory]);
        assert_eq!(
            [66, 67].map(|tiles| of(2, [tiles * 128, 7168], 2).0),
            [Cluster; 2],
            "two stand together either way"
        );
        assert_eq!([1, 2, 4, 8].map(|split| of(split, [4096, 7168], 2).0), [Cluster, Cluster, Memory, Memory]);
        // 448 blocks: 264 at once, and 184, of which some multiprocessors have two.
        assert_eq!(of(1, [57344, 8192], 2), (Cluster, 6 * 64 + ROUND + ALONE));
        assert_eq!(of(4, [4096, 7168], 2).1, 2 * 14 + TWO_KERNELS);
        // No more parts than blocks that run at once: 66 times four are, and 67 are not.
        assert_eq!([66, 67].map(|tiles| of(4, [tiles * 128, 8192], 2).0), [Memory, Cluster]);
        // A short k does not pay for another kernel.
        assert_eq!(of(4, [4096, 512], 2).0, Cluster);
        // A GPU of which nothing is known.
        let unknown = |split| meeting(SmallMConfig::new(SmallMBlock::Tile, split).unwrap(), [128, 128], 2, 0);
        assert_eq!((unknown(8).unwrap().0, unknown(3)), (Cluster, None));
    }

    /// A split that no cluster has: never in one, and of no more blocks than run at once.
    #[test]
    fn three_and_six_meet_in_memory_alone() {
        use Meeting::Memory;
        assert_eq!(somewhere(3, [10240, 8192], 2), Some((Memory, 3 * 22 + TWO_KERNELS)));
        assert_eq!(somewhere(3, [5120, 5120], 2), Some((Memory, 2 * 14 + TWO_KERNELS)));
        assert_eq!(somewhere(6, [2112, 7168], 2), Some((Memory, 2 * 10 + TWO_KERNELS)));
        // 88 times three are as many as run at once, and 89 are more; of three to a multiprocessor 66 times six.
        assert_eq!([88, 89].map(|tiles| somewhere(3, [tiles * 128, 8192], 2).map(|at| at.0)), [Some(Memory), None]);
        assert_eq!([66, 67].map(|tiles| somewhere(6, [tiles * 128, 8192], 3).map(|at| at.0)), [Some(Memory), None]);
        // However short k is.
        assert_eq!(somewhere(6, [128, 128], 2), Some((Memory, 2 + TWO_KERNELS)));
    }
}
