//! [`SmallMConfig::in_chain`]: how a product of few rows is enqueued as a link of a chain. Pure. (One row with E2M1 weights has links of its own: `OneRow::link_of`.)

use super::small_m_config::{SmallMBlock, SmallMConfig};
use super::small_m_split::clusters_at_once;

impl SmallMConfig {
    /// How this product is enqueued as a link of a chain: in which configuration, of as many parts of k, so that sums have the same order; and with how
    /// many stages left it releases the next kernel (E4M3; E2M1: 1, behind its wait), 0 where it does not. `None`: as elsewhere, not as a link.
    ///
    /// A kernel needs some one and a half microseconds from its release to its first load. Released earlier, it takes the memory from the one that
    /// runs, and both wait longer; what it loads before its wait is a part of a ring of stages.
    pub(super) fn in_chain(self, [m, n, k]: [usize; 3], sm_count: usize) -> Option<(Self, u32)> {
        let link = Link { m, n, k, sm_count };
        match self.block() {
            SmallMBlock::One | SmallMBlock::OneDeep | SmallMBlock::Two => link.fp8(self),
            // These begin as other kernels do.
            SmallMBlock::Tile | SmallMBlock::TileE4m3 => None,
            SmallMBlock::Four | SmallMBlock::Eight | SmallMBlock::Sixteen | SmallMBlock::Narrow => {
                Some(link.e2m1(self))
            }
        }
    }
}

/// A product, and a GPU's multiprocessors.
struct Link {
    m: usize,
    n: usize,
    k: usize,
    sm_count: usize,
}

impl Link {
    fn steps(&self, config: SmallMConfig) -> usize {
        self.k.div_ceil(128) / (config.split() as usize * config.block().parts())
    }

    fn blocks(&self, config: SmallMConfig) -> usize {
        config.block().tiles(self.n) * config.split() as usize
    }

    fn places(&self, config: SmallMConfig) -> usize {
        config.block().residents(self.m)
    }

    fn at_once(&self, config: SmallMConfig) -> bool {
        self.blocks(config) <= self.places(config) * self.sm_count
    }

    /// The same of whole clusters: of many blocks some find no place for all of them, and a second round takes as long as the first (20 x 2112 x 7168 by clusters of four 12.5 us for 8.1, 1 x 6144 x 2048 6.3 for 5.3).
    fn clusters_at_once(&self, config: SmallMConfig) -> bool {
        config.block().tiles(self.n) <= clusters_at_once(self.places(config), config.split() as usize, self.sm_count)
    }

    fn evenly(&self, config: SmallMConfig, part: [usize; 2]) -> bool {
        evenly(self.blocks(config), self.sm_count, part)
    }

    /// Whether the blocks of the next kernel find places on the multiprocessors, which have so many each, as evenly as those of this one: beside all of them, or
    /// where each of them ends. Else those that come early stand together on some multiprocessors, which end late (H200, 2026-11: 10240 x 8192 in two parts of `one` 27.1 us for
    /// 22.5, m = 1).
    fn leaves_room(&self, config: SmallMConfig) -> bool {
        let blocks = self.blocks(config);
        finds_places(blocks, self.places(config), self.sm_count) && self.evenly(config, [5, 6])
    }

    /// Of FP8. Made from most configurations at 36 shapes and m of 1, 16, 20 and 32 (H200, 2026-11, the records of links): 9.0 us become 7.9 at 4096 x 7168, where blocks of one warpgroup take 8.3, 7.4 become 6.1 at 3072 x 7168.
    fn fp8(&self, config: SmallMConfig) -> Option<(SmallMConfig, u32)> {
        let of = |block, split| SmallMConfig::new(block, split).ok();
        let is_two = config.block() == SmallMBlock::Two;
        let two = of(SmallMBlock::Two, config.split() / 2).filter(|_| !is_two && config.split() >= 2);
        // More of its part of k is on its way, in fewer blocks on a multiprocessor (5120 x 8192 11.1 us for 12.1). Of whole rows of B that is lost where some multiprocessors have fewer blocks (18944 x 3584 18.7 for 17.9).
        let deep = of(SmallMBlock::OneDeep, config.split()).filter(|_| !is_two);
        let deep = deep.filter(|deep| self.clusters_at_once(*deep) && (deep.split() > 1 || self.evenly(*deep, [4, 5])));
        // Which lie on them more evenly than blocks of two warpgroups.
        let deep_first = |two| !self.evenly(two, [4, 5]) && deep.is_some_and(|deep| self.evenly(deep, [9, 10]));
        let wide = two.filter(|two| self.is_wide(*two, config) && !deep_first(*two));
        // At most one block on each: the next kernel's find places beside all of them, however they lie (0.83 to 0.97 of the time in 36 cases of `two`). Of more than 16 rows a block takes longer, and less of the time is the memory's alone.
        let alone = self.blocks(config) <= self.sm_count || !self.at_once(config) || self.m > 16;
        let own = Some(config).filter(|_| self.leaves_room(config) || (is_two && self.evenly(config, [7, 10])));
        let fits = two.filter(|two| self.at_once(*two) && self.evenly(*two, [7, 10]));
        let link = wide.or(own).or(deep).or(Some(config).filter(|_| alone)).or(fits)?;
        Some((link, self.left(link)))
    }

    /// Whether blocks of two warpgroups are faster: with a long walk, with a shorter one where more than two blocks of one stand on a multiprocessor, or, with more rows, where each has one of them at most. Of more than 16 rows
    /// a multiprocessor has room for one.
    fn is_wide(&self, two: SmallMConfig, one: SmallMConfig) -> bool {
        let (few, steps) = (self.m <= 8, self.steps(two));
        if self.m > 16 {
            let long = if two.split() == 1 { steps >= 7 } else { steps >= 16 && self.evenly(two, [9, 10]) };
            return long && self.clusters_at_once(two) && self.leaves_room(two);
        }
        let long = steps >= if few { 8 } else { 7 };
        let crowded = few && steps >= 6 && self.blocks(one) > 2 * self.sm_count;
        let thin = !few && steps >= 4 && two.split() <= 2 && self.blocks(two) <= self.sm_count;
        (long || crowded || thin) && self.evenly(two, [7, 10]) && (self.at_once(two) || steps <= 8)
    }

    /// The stages left with which it releases the next kernel.
    fn left(&self, config: SmallMConfig) -> u32 {
        let steps = self.steps(config);
        match config.block() {
            SmallMBlock::OneDeep => 3,
            // Of 7168 x 2048 and 2112 x 7168, say, and of 32 stages; of 14 and 16 four are better.
            SmallMBlock::Two if steps <= 8 || (self.m <= 8 && steps > 16) => 5,
            _ => 4,
        }
    }

    /// Of E2M1 weights, from all configurations at 5 shapes and m of 1 and 16 (H200, 2026-11, the records of chains and of ends), and at 16 others and m of 2, 8 and 16 (the record of links).
    fn e2m1(&self, config: SmallMConfig) -> (SmallMConfig, u32) {
        // Of half as many rows each, where all of them run at once (`nvfp4`, 4096 x 7168, m = 1: 8.6 us for 9.7). They read A twice as often, of 16 rows at a loss.
        let in_two = (config.block(), config.split()) == (SmallMBlock::Eight, 2);
        let narrow = SmallMConfig::new(SmallMBlock::Narrow, 1).ok().filter(|_| in_two && self.m <= 2);
        let config = narrow.filter(|narrow| self.at_once(*narrow)).unwrap_or(config);
        let found = finds_places(self.blocks(config), self.places(config), self.sm_count);
        (config, u32::from(!self.at_once(config) || self.steps(config) <= 2 || found))
    }
}

/// Whether the blocks of the next kernel find places beside all of these, or where each of them ends. That some multiprocessors have fewer does not matter to E2M1 weights, for which the decoding counts, not the memory alone (H200, 2026-11, the
/// record of links: of 89 configurations of published codes with 2 to 16 rows in which some have fewer chains take 0.92 of the time on average, 1.02 at worst; repacked, 2 x 5120 x 8192 in two parts of `eight`, 9.4 us for 10.6, 2 x 3072 x 7168 by `sixteen` 6.0 for 6.7).
pub(super) fn finds_places(blocks: usize, places: usize, sm_count: usize) -> bool {
    let each = blocks.div_ceil(sm_count);
    each == places || 2 * each <= places
}

/// Whether multiprocessors have as many blocks each, or on average this part of what those have that have the most.
pub(super) fn evenly(blocks: usize, sm_count: usize, [part, of]: [usize; 2]) -> bool {
    of * blocks >= part * blocks.div_ceil(sm_count) * sm_count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::kernels::SmallMOperands;

    /// The same parts of k, in the same order; and what was measured to be best.
    #[test]
    fn links_have_the_same_sums() {
        use SmallMBlock::{Eight, Four, Narrow, One, OneDeep, Tile, Two};
        let config = |block, split| SmallMConfig::new(block, split).unwrap();
        let parts = |config: SmallMConfig| config.block().parts() * config.split() as usize;
        for operands in [SmallMOperands::Fp8, SmallMOperands::E2m1Weights] {
            for (all, mnk) in [[1, 4096, 7168], [16, 7168, 2048], [8, 57344, 8192], [1, 8, 16], [32, 2112, 7168]]
                .into_iter()
                .flat_map(|mnk| SmallMConfig::all(operands).map(move |config| (config, mnk)))
            {
                let Some((link, _)) = all.in_chain(mnk, 132) else { continue };
                assert_eq!((parts(link), link.block().operands()), (parts(all), operands), "{all}");
            }
        }
        let of = |block, split, mnk| config(block, split).in_chain(mnk, 132);
        assert_eq!(of(One, 4, [1, 4096, 7168]), Some((config(Two, 2), 4)));
        assert_eq!(of(Two, 2, [16, 4096, 7168]), Some((config(Two, 2), 4)));
        assert_eq!(of(Two, 1, [16, 7168, 2048]), Some((config(Two, 1), 5)));
        assert_eq!(of(One, 4, [16, 7168, 2048]), Some((config(One, 4), 4)));
        assert_eq!([1, 16].map(|m| of(One, 8, [m, 2112, 7168]).unwrap().0), [config(One, 8), config(Two, 4)]);
        assert_eq!(
            [1, 16].map(|m| of(OneDeep, 2, [m, 8192, 8192]).unwrap()),
            [(config(Two, 1), 5), (config(Two, 1), 4)]
        );
        assert_eq!(of(OneDeep, 2, [1, 57344, 8192]), Some((config(OneDeep, 2), 3)), "many rounds of blocks");
        // 384 blocks in places for 396 of deep ones, and 296, which leave some multiprocessors with fewer.
        assert_eq!([of(One, 1, [1, 24576, 1536]), of(One, 1, [1, 18944, 3584])], [Some((config(OneDeep, 1), 3)), None]);
        // 320 blocks, 160 of two warpgroups; 72, 36 of two.
        let deep = |split| Some((config(OneDeep, split), 3));
        assert_eq!(
            [of(One, 2, [1, 10240, 5120]), of(One, 4, [16, 5120, 8192]), of(One, 8, [8, 576, 7168])],
            [2, 4, 8].map(deep)
        );
        let two = |split| Some((config(Two, split), 5));
        assert_eq!(
            [of(Two, 8, [1, 576, 7168]), of(Two, 8, [1, 1536, 7168]), of(Two, 2, [1, 5120, 8192])],
            [two(8), two(8), None],
            "72 blocks, 192 and 160"
        );
        // Deep blocks lie evenly, those of two warpgroups do not; clusters of four of which not all find places.
        assert_eq!([of(One, 2, [1, 12288, 4096]), of(One, 4, [1, 6144, 2048])], [deep(2), two(2)]);
        assert_eq!([1, 16].map(|m| of(One, 4, [m, 4096, 2048]).unwrap().0), [config(One, 4), config(Two, 2)]);
        assert_eq!(of(One, 8, [16, 2048, 4096]).unwrap().0, config(One, 8), "of eight parts that is no gain");
        assert_eq!(
            [of(One, 4, [1, 6144, 4096]), of(One, 8, [8, 3072, 7168]), of(One, 4, [1, 7168, 3072])],
            [2, 4, 2].map(two)
        );
        assert_eq!([of(One, 2, [1, 24576, 1536]), of(One, 2, [16, 24576, 1536])], [two(1), Some((config(One, 2), 4))]);
        // More rows: a multiprocessor has one block of two warpgroups, and two deep ones.
        let many = |block, split, [n, k]: [usize; 2]| of(block, split, [20, n, k]).unwrap().0;
        assert_eq!([many(One, 8, [2112, 7168]), many(One, 4, [4096, 7168])], [config(One, 8), config(One, 4)]);
        assert_eq!([many(One, 4, [5120, 8192]), many(One, 2, [10240, 5120])], [config(One, 4), config(One, 2)]);
        assert_eq!([many(One, 4, [3072, 7168]), many(One, 4, [3584, 18944])], [config(OneDeep, 4); 2]);
        assert_eq!([many(One, 8, [2112, 16384]), many(One, 2, [6144, 2048])], [config(One, 8), config(OneDeep, 2)]);
        assert_eq!([many(One, 2, [7168, 2048]), many(One, 4, [4096, 14336])], [config(Two, 1), config(Two, 2)]);
        assert_eq!(of(Eight, 2, [3, 5120, 8192]), Some((config(Eight, 2), 1)), "uneven");
        assert_eq!(of(One, 1, [1, 32768, 512]), Some((config(One, 1), 4)));
        assert_eq!(
            [2, 3].map(|m| of(Eight, 2, [m, 4096, 7168])),
            [Some((config(Narrow, 1), 1)), Some((config(Eight, 2), 0))]
        );
        assert_eq!(of(Eight, 2, [1, 4096, 4096]), Some((config(Narrow, 1), 1)));
        assert_eq!(of(Eight, 2, [1, 7168, 2048]), Some((config(Eight, 2), 1)), "more than run at once");
        assert_eq!(of(Eight, 1, [1, 4096, 7168]).unwrap().0, config(Eight, 1), "half as many parts");
        assert_eq!(of(Four, 1, [16, 10240, 8192]), Some((config(Four, 1), 0)));
        assert_eq!(of(Four, 1, [16, 24576, 1536]), Some((config(Four, 1), 1)), "many rounds of blocks");
        assert_eq!(of(Four, 2, [16, 7168, 2048]), Some((config(Four, 2), 1)));
        assert_eq!(of(Tile, 4, [32, 7168, 2048]), None);
    }
}
