//! [`SmallMConfig::in_chain`]: how a product of few rows is enqueued as a link of a chain. Pure. (One row with E2M1 weights has links of its own: `OneRow::link_of`.)

use super::small_m_config::{SmallMBlock, SmallMConfig};

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

    /// Whether the blocks of the next kernel find places on the multiprocessors, which have so many each, as evenly as those of this one: beside all of them, or
    /// where each of them ends. Else those that come early stand together on some multiprocessors, which end late (H200, 2026-11: 10240 x 8192 in two parts of `one` 27.1 us for
    /// 22.5, m = 1).
    fn leaves_room(&self, config: SmallMConfig) -> bool {
        let blocks = self.blocks(config);
        finds_places(blocks, self.places(config), self.sm_count) && evenly(blocks, self.sm_count, [5, 6])
    }

    /// Of FP8. Made from most configurations at 20 shapes and m of 1, 8 and 16 (H200, 2026-11, the record of links), where it is the fastest of as many parts or within 2 % of it in all but one (12 %): 9.0 us become 7.9 at
    /// 4096 x 7168, where blocks of one warpgroup take 8.3, 7.4 become 6.1 at 3072 x 7168. More rows have the older rule, without what follows from unevenness.
    fn fp8(&self, config: SmallMConfig) -> Option<(SmallMConfig, u32)> {
        let of = |block, split| SmallMConfig::new(block, split).ok();
        let narrow = config.block() != SmallMBlock::Two && config.split() >= 2;
        let two = of(SmallMBlock::Two, config.split() / 2).filter(|_| narrow);
        let chosen = two.filter(|two| self.is_wide(*two, config)).unwrap_or(config);
        if chosen != config || self.leaves_room(config) {
            return Some((chosen, self.left(chosen)));
        }
        if self.m > 16 {
            return None;
        }
        // More of its part of k is on its way, in fewer blocks on a multiprocessor (5120 x 8192 11.1 us for 12.1).
        let deep = of(SmallMBlock::OneDeep, config.split()).filter(|deep| narrow && self.at_once(*deep));
        // At most one block on each: the next kernel's find places beside all of them, however they lie (0.83 to 0.97 of the time in 36 cases of `two`).
        let alone = self.blocks(config) <= self.sm_count || !self.at_once(config);
        deep.or(Some(config).filter(|_| alone)).map(|config| (config, self.left(config)))
    }

    /// Whether blocks of two warpgroups are faster: with a long walk, or with a shorter one where more than two blocks of one stand on a multiprocessor.
    fn is_wide(&self, two: SmallMConfig, one: SmallMConfig) -> bool {
        let (few, steps) = (self.m <= 8, self.steps(two));
        if self.m > 16 {
            return steps >= 7 && self.leaves_room(two);
        }
        let long = steps >= if few { 8 } else { 7 };
        let crowded = few && steps >= 6 && self.blocks(one) > 2 * self.sm_count;
        (long || crowded) && evenly(self.blocks(two), self.sm_count, [7, 10]) && (self.at_once(two) || steps <= 8)
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
        // 384 blocks in places for 528, of one part: none was timed.
        assert_eq!(of(One, 1, [1, 24576, 1536]), None);
        // 320 blocks, 160 of two warpgroups; 72, 36 of two.
        let deep = |split| Some((config(OneDeep, split), 3));
        assert_eq!(
            [of(One, 2, [1, 10240, 5120]), of(One, 4, [16, 5120, 8192]), of(One, 8, [8, 576, 7168])],
            [2, 4, 8].map(deep)
        );
        let two = |split| Some((config(Two, split), 5));
        assert_eq!([of(Two, 8, [1, 576, 7168]), of(Two, 2, [1, 5120, 8192])], [two(8), None], "72 blocks, and 160");
        assert_eq!(
            [of(One, 4, [1, 6144, 4096]), of(One, 8, [8, 3072, 7168]), of(One, 4, [1, 7168, 3072])],
            [2, 4, 2].map(two)
        );
        assert_eq!([of(One, 2, [1, 24576, 1536]), of(One, 2, [16, 24576, 1536])], [two(1), Some((config(One, 2), 4))]);
        // More rows than were timed.
        assert_eq!([of(One, 4, [17, 5120, 8192]), of(One, 2, [17, 10240, 5120])], [None; 2]);
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
