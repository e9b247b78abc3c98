//! [`SmallMConfig::in_chain`]: how a product of few rows is enqueued as a link of a chain. Pure. (One row with E2M1 weights has links of its own: `OneRow::link_of`.)

use super::small_m_config::{SmallMBlock, SmallMConfig};
use super::small_m_split::clusters_at_once;
use crate::format::CodeOrder;

/// How a product is enqueued as a link of a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct AsLink {
    /// Of as many parts of k as the one that it takes the place of, so that sums have the same order.
    pub(super) config: SmallMConfig,
    /// With how many stages left it releases the next kernel (E4M3; E2M1: 1, behind its wait); 0: not before its end.
    pub(super) releases: u32,
    /// E2M1, more than one row: by the kernel of links, with [`LINK_STAGES`] steps of codes on their way.
    pub(super) deep: bool,
    /// E2M1: those before its wait are asked for one behind the other.
    pub(super) paced: bool,
}

/// Steps of E2M1 codes on their way in kernels that are links alone, of [`SmallMBlock::Four`]. Mirror of the rows `SMALL_M_LINK` in `kernels/gemm/small_m_e2m1.cu` and `small_m_repacked.cu`.
pub(super) const LINK_STAGES: usize = 3;

impl SmallMConfig {
    /// How this product is enqueued as a link of a chain. `None`: as elsewhere, not as a link.
    ///
    /// Released early, a kernel takes the memory from the one that runs, and both wait longer; what it loads before its wait is a ring of stages at the most.
    pub(super) fn in_chain(self, codes: CodeOrder, [m, n, k]: [usize; 3], sm_count: usize) -> Option<AsLink> {
        let link = Link { m, n, k, sm_count };
        match self.block() {
            SmallMBlock::One | SmallMBlock::OneDeep | SmallMBlock::Two => {
                let (config, releases) = link.fp8(self)?;
                Some(AsLink { config, releases, deep: false, paced: false })
            }
            // These begin as other kernels do.
            SmallMBlock::Tile | SmallMBlock::TileE4m3 => None,
            SmallMBlock::Four | SmallMBlock::Eight | SmallMBlock::Sixteen | SmallMBlock::Narrow => {
                Some(link.e2m1(self, codes))
            }
        }
    }
}

impl SmallMConfig {
    /// A configuration of as many parts of k, and so of the same bits, that is faster outside of chains, of FP8 rows. `None`: this one, as far as is known.
    pub(crate) fn as_fast(self, [m, n, k]: [usize; 3], sm_count: usize) -> Option<Self> {
        let fp8 = matches!(self.block(), SmallMBlock::One | SmallMBlock::OneDeep | SmallMBlock::Two);
        let link = Link { m, n, k, sm_count };
        Some(self).filter(|_| fp8 && m <= FEW_ROWS).and_then(|config| link.alone(config))
    }
}

/// Up to so many rows of A links of FP8 fill their rings before they multiply. (`PACED` of `kernels/gemm/small_m.cuh`.)
pub(crate) const FEW_ROWS: usize = 16;

/// A product, and a GPU's multiprocessors.
struct Link {
    m: usize,
    n: usize,
    k: usize,
    sm_count: usize,
}

impl Link {
    fn steps(&self, config: SmallMConfig) -> usize {
        self.k.div_ceil(128) / config.parts()
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

    /// Of FP8.
    fn fp8(&self, config: SmallMConfig) -> Option<(SmallMConfig, u32)> {
        let link = if self.m > FEW_ROWS { self.of_many(config) } else { self.of_few(config)? };
        Some((link, self.left(link)))
    }

    /// Blocks that cut k into as many parts as this configuration: of one warpgroup, deep ones, and of two warpgroups.
    fn of_parts(&self, config: SmallMConfig) -> [Option<SmallMConfig>; 3] {
        let parts = config.parts();
        let of = |block: SmallMBlock| SmallMConfig::new(block, (parts / block.parts()) as u32).ok();
        [SmallMBlock::One, SmallMBlock::OneDeep, SmallMBlock::Two].map(of)
    }

    /// Whether deep blocks all stand at once, of larger clusters some fewer than by that number (16 x 2880 x 2880 by 45 of eight, of 46, 5.5 us for 4.5).
    fn deep_fits(&self, deep: SmallMConfig) -> bool {
        let places = clusters_at_once(self.places(deep), deep.split() as usize, self.sm_count);
        self.clusters_at_once(deep) && (deep.split() < 4 || 20 * deep.block().tiles(self.n) <= 19 * places)
    }

    /// Of up to 16 rows, in the block of as many parts of k that is the fastest: deep ones where each multiprocessor has one at most, or three all stand at once; of those of two warpgroups, of which two do, a longer walk. What counts
    /// is how much of B lies in shared memory when A comes. Made from all configurations at 46 shapes and m of 1 and 16, and mended at 14 others (H200, 2026-11, the record of paced links), where what is planned takes 1.004 of the
    /// fastest link's time on average, and 0.85 to 0.87 of what it takes outside of chains.
    fn of_few(&self, config: SmallMConfig) -> Option<SmallMConfig> {
        let [one, deep, two] = self.of_parts(config);
        let (Some(one), Some(deep)) = (one, deep) else { return two };
        let (blocks, steps) = (self.blocks(one), self.steps(one));
        // With a very long walk nothing is gained.
        if steps > 80 {
            return None;
        }
        if blocks <= self.sm_count {
            return Some(deep);
        }
        let two_each = blocks <= 2 * self.sm_count;
        if !two_each && self.deep_fits(deep) {
            // A long walk in which some multiprocessors have fewer gains nothing (9216 x 9216 23.3 us, 22.8 alone).
            return Some(deep).filter(|deep| self.evenly(*deep, [4, 5]) || steps <= 24);
        }
        let Some(two) = two else {
            // Of whole rows of B a long walk gains nothing, but for few rows of A and many blocks (16 x 28672 x 4096 36.1 us, 33.6 alone).
            let gains = steps <= 16 || (self.m <= 8 && blocks > 3 * self.sm_count);
            let link = if 2 * blocks <= 3 * self.sm_count { deep } else { one };
            return Some(link).filter(|_| gains);
        };
        let even = self.evenly(two, [7, 10]);
        if two_each {
            // Of which most multiprocessors have one: of small clusters deep ones (6144 x 2048 by halves 4.0 us for 4.2 of two warpgroups, 3072 x 3072 by fourths 3.6 for 3.7).
            let most_have_one = 2 * blocks <= 3 * self.sm_count && one.split() < 8;
            let of_even = if self.is_long(blocks, steps) { two } else { one };
            return Some(if even && !most_have_one { of_even } else { deep });
        }
        if even && steps >= if one.split() < 8 { 8 } else { 7 } && self.clusters_at_once(two) {
            return Some(two);
        }
        // More than one round of either, and of these not many, or of clusters of two.
        let at_once = clusters_at_once(one.block().have_memory(self.m), one.split() as usize, self.sm_count);
        let rounds = one.block().tiles(self.n) > at_once && (one.split() == 2 || blocks <= 8 * self.sm_count);
        Some(if steps >= 10 && rounds { deep } else { one })
    }

    /// Whether two warpgroups take as many steps together that they gain by it, of blocks of which a multiprocessor has two at most.
    fn is_long(&self, blocks: usize, steps: usize) -> bool {
        steps >= 8 || (steps >= 7 && 2 * blocks <= 3 * self.sm_count)
    }

    /// The block of as many parts of k that is faster outside of chains. From the same record: 0.94 to 1.00 of the time.
    fn alone(&self, config: SmallMConfig) -> Option<SmallMConfig> {
        let [Some(one), Some(deep), two] = self.of_parts(config) else { return None };
        let (blocks, steps) = (self.blocks(one), self.steps(one));
        if blocks <= self.sm_count {
            return Some(deep);
        }
        if blocks <= 2 * self.sm_count {
            let long = if self.m <= 8 { self.is_long(blocks, steps) } else { steps >= 16 };
            let two = two?;
            return if self.evenly(two, [7, 10]) { Some(two).filter(|_| long) } else { Some(deep) };
        }
        Some(deep).filter(|deep| self.m <= 8 && steps >= 12 && self.deep_fits(*deep) && self.evenly(*deep, [4, 5]))
    }

    /// Of more than 16 rows, made from most configurations at 36 shapes and m of 20 and 32 (H200, 2026-11, the records of links). A block takes longer, and less of the time is the memory's alone.
    fn of_many(&self, config: SmallMConfig) -> SmallMConfig {
        let of = |block, split| SmallMConfig::new(block, split).ok();
        let is_two = config.block() == SmallMBlock::Two;
        let two = of(SmallMBlock::Two, config.split() / 2).filter(|_| !is_two && config.split() >= 2);
        // More of its part of k is on its way, in fewer blocks on a multiprocessor. Of whole rows of B that is lost where some multiprocessors have fewer blocks (18944 x 3584 18.7 for 17.9).
        let deep = of(SmallMBlock::OneDeep, config.split()).filter(|_| !is_two);
        let deep = deep.filter(|deep| self.clusters_at_once(*deep) && (deep.split() > 1 || self.evenly(*deep, [4, 5])));
        // Which lie on them more evenly than blocks of two warpgroups.
        let deep_first = |two| !self.evenly(two, [4, 5]) && deep.is_some_and(|deep| self.evenly(deep, [9, 10]));
        let wide = two.filter(|two| self.is_wide(*two) && !deep_first(*two));
        let own = Some(config).filter(|_| self.leaves_room(config) || (is_two && self.evenly(config, [7, 10])));
        wide.or(own).or(deep).unwrap_or(config)
    }

    /// Whether blocks of two warpgroups are faster, of which a multiprocessor has room for one of more than 16 rows: with a long walk.
    fn is_wide(&self, two: SmallMConfig) -> bool {
        let steps = self.steps(two);
        let long = if two.split() == 1 { steps >= 7 } else { steps >= 16 && self.evenly(two, [9, 10]) };
        long && self.clusters_at_once(two) && self.leaves_room(two)
    }

    /// The stages left with which it releases the next kernel, whose first loads come a fourth of a microsecond later: as it asks for its last stages, and where the next kernel's blocks stand beside others before that.
    fn left(&self, config: SmallMConfig) -> u32 {
        let (few, steps, blocks) = (self.m <= 8, self.steps(config), self.blocks(config));
        match config.block() {
            SmallMBlock::OneDeep => 3 + u32::from(few && blocks > 2 * self.sm_count),
            SmallMBlock::Two if few => 7 + u32::from(blocks > self.sm_count),
            SmallMBlock::Two if self.m <= FEW_ROWS && blocks > self.sm_count => 6,
            SmallMBlock::Two => 4 + u32::from(steps <= 8),
            _ if self.m > FEW_ROWS || blocks <= 2 * self.sm_count || steps > 16 => 4,
            _ => 5 + u32::from(few),
        }
    }

    /// Of E2M1 weights, from all configurations at 5 shapes and m of 1 and 16 (H200, 2026-11, the records of chains and of ends), and at 16 others and m of 2, 8 and 16 (the record of links).
    fn e2m1(&self, config: SmallMConfig, codes: CodeOrder) -> AsLink {
        let config = self.block_of_e2m1(config, codes).unwrap_or(config);
        let deep = self.is_deep(config, codes);
        let releases = deep || self.e2m1_releases(config, codes);
        // Behind a link that releases nothing, as this one mostly is then, there is nothing to wait in turn for.
        let paced = deep || (releases && self.is_paced(config, codes));
        AsLink { config, releases: u32::from(releases), deep, paced }
    }

    /// Whether it releases the next kernel behind its wait: where that finds places, or with few steps. (Of many 8192 x 8192 by `eight` takes 18 us for 15, 2 rows; 3072 x 7168 in two parts of it, with three, 6.8 for 9.2.)
    fn e2m1_releases(&self, config: SmallMConfig, codes: CodeOrder) -> bool {
        let (steps, blocks, few) = (self.steps(config), self.blocks(config), self.m <= 8);
        if !self.at_once(config) || steps <= 2 || finds_places(blocks, self.places(config), self.sm_count) {
            return true;
        }
        match config.block() {
            SmallMBlock::Four if few => steps <= 4,
            SmallMBlock::Four => steps <= 3 && 2 * blocks > 5 * self.sm_count,
            SmallMBlock::Eight if few => {
                let least = codes == CodeOrder::Published || 10 * blocks <= 19 * self.sm_count;
                (steps <= 8 && 2 * blocks <= 3 * self.sm_count) || (steps <= 4 && least)
            }
            _ => false,
        }
    }

    /// The block of as many parts of k that is the fastest, of the same records and the one of links planned for chains (14 shapes more, m of 2, 8 and 16).
    fn block_of_e2m1(&self, config: SmallMConfig, codes: CodeOrder) -> Option<SmallMConfig> {
        use SmallMBlock::{Eight, Four, Narrow, Sixteen};
        let of = |block: SmallMBlock, parts: usize| SmallMConfig::new(block, (parts / block.parts()) as u32).ok();
        let (few, parts) = (self.m <= 8, config.parts());
        // Rows of B by 32, for each multiprocessor, in hundredths.
        let each = 100 * Eight.tiles(self.n) / self.sm_count.max(1);
        match parts {
            // One row comes here where the kernels that keep it are not the fastest. Of half as many rows each, where all of them run at once (`nvfp4`, 4096 x 7168: 8.6 us for 9.7).
            _ if self.m == 1 => {
                let in_two = (config.block(), config.split()) == (Eight, 2);
                of(Narrow, parts).filter(|narrow| in_two && self.at_once(*narrow))
            }
            // Of repacked codes more than two on some multiprocessors, with a long walk, which neither releases early, are slower (10240 x 8192, 2 rows, 16.3 us for 15.5).
            8 if few && codes == CodeOrder::Repacked && (201..=280).contains(&each) && self.k >= 8192 => of(Four, 8),
            8 if few && (151..=320).contains(&each) => of(Eight, 8),
            8 => of(Four, 8),
            16 if each <= 30 => of(Four, 16),
            // Of half as many rows each, one for each multiprocessor: 2112 x 7168, 2 rows 5.2 us for 5.8.
            16 if Narrow.tiles(self.n) <= self.sm_count && self.k >= 4096 => of(Narrow, 16),
            16 if each <= 55 && self.k < 4096 => of(Eight, 16),
            16 if few => {
                let least = if codes == CodeOrder::Published { 90 } else { 70 };
                of(if (least..=100).contains(&each) { Sixteen } else { Eight }, 16)
            }
            16 => of(if (90..=100).contains(&each) { Eight } else { Four }, 16),
            _ => None,
        }
    }

    /// Of 128 of k, of the warp that has the most.
    fn most_steps(&self, config: SmallMConfig) -> usize {
        self.k.div_ceil(128).div_ceil(config.parts())
    }

    /// Whether the kernel of links is faster: all steps or all but one are on their way before the wait, and blocks are few (H200, 2026-11, the record of links planned for chains: 0.83 to 0.98 of the time; of more than three on a multiprocessor 1.04).
    fn is_deep(&self, config: SmallMConfig, codes: CodeOrder) -> bool {
        let least = match codes {
            CodeOrder::Published => LINK_STAGES,
            CodeOrder::Repacked => 2,
        };
        let most = if self.m <= 8 { 3 } else { 2 };
        let has_one = config.block() == SmallMBlock::Four && self.m > 1;
        let is_short = (least..=LINK_STAGES + 1).contains(&self.most_steps(config));
        has_one && is_short && self.blocks(config) <= most * self.sm_count
    }

    /// Whether more steps follow than the two that are on their way before the wait, of few blocks: 0.96 to 1.00 of the time on average (`narrow`, 2 x 2112 x 7168, 5.2 us for 5.8); of many 1.02.
    fn is_paced(&self, config: SmallMConfig, codes: CodeOrder) -> bool {
        let has_two = config.block() != SmallMBlock::Sixteen && codes == CodeOrder::Published;
        let most = if self.m <= 8 { 3 } else { 2 };
        has_two && self.most_steps(config) > 2 && self.blocks(config) <= most * self.sm_count
    }
}

/// Whether the blocks of the next kernel find places beside all of these, or where each of them ends. That some multiprocessors have fewer does not matter to E2M1 weights, for which the decoding counts, not the memory alone (H200, 2026-11, the
/// record of links: of 89 configurations of published codes with 2 to 16 rows in which some have fewer chains take 0.92 of the time on average, 1.02 at worst; repacked, 2 x 5120 x 8192 in two parts of `eight`, 9.4 us for 10.6, 2 x 3072 x 7168 by `sixteen` 6.0 for 6.7).
pub(super) fn finds_places(blocks: usize, places: usize, sm_count: usize) -> bool {
    let each = blocks.div_ceil(sm_count.max(1));
    each == places || 2 * each <= places
}

/// Whether multiprocessors have as many blocks each, or on average this part of what those have that have the most.
pub(super) fn evenly(blocks: usize, sm_count: usize, [part, of]: [usize; 2]) -> bool {
    let sm_count = sm_count.max(1);
    of * blocks >= part * blocks.div_ceil(sm_count) * sm_count
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::kernels::SmallMOperands;

    /// The same parts of k, in the same order; and what was measured to be best.
    #[test]
    fn links_have_the_same_sums() {
        use SmallMBlock::{Four, One, OneDeep, Tile, Two};
        let config = |block, split| SmallMConfig::new(block, split).unwrap();
        let parts = SmallMConfig::parts;
        for operands in [SmallMOperands::Fp8, SmallMOperands::E2m1Weights] {
            for (all, mnk) in [[1, 4096, 7168], [16, 7168, 2048], [8, 57344, 8192], [1, 8, 16], [32, 2112, 7168]]
                .into_iter()
                .flat_map(|mnk| SmallMConfig::all(operands).map(move |config| (config, mnk)))
            {
                for codes in CodeOrder::ALL {
                    let Some(AsLink { config: link, deep, paced, .. }) = all.in_chain(codes, mnk, 132) else {
                        continue;
                    };
                    assert_eq!((parts(link), link.block().operands()), (parts(all), operands), "{all}");
                    assert!(!deep || (link.block() == Four && paced && mnk[0] > 1));
                }
            }
        }
        // Whatever the GPU and the product are, in chains and outside of them.
        let lengths = [8, 64, 576, 2112, 4096, 8448, 8456, 16896, 24576, 131_072, 1 << 30];
        let products = lengths.into_iter().flat_map(|n| lengths.map(|k| [n, 2 * k])).filter(|[_, k]| *k <= 1 << 30);
        for ([n, k], m, sm_count) in products
            .flat_map(|nk| [1, 8, 9, 16, 17, 32].map(|m| (nk, m)))
            .flat_map(|(nk, m)| [0, 1, 2, 78, 114, 132].map(|sm_count| (nk, m, sm_count)))
        {
            for own in SmallMConfig::all(SmallMOperands::Fp8) {
                let link = own.in_chain(CodeOrder::Published, [m, n, k], sm_count).map(|link| {
                    assert!((3..=8).contains(&link.releases), "{m} x {n} x {k}, {own}: {} stages left", link.releases);
                    link.config
                });
                for other in link.into_iter().chain(own.as_fast([m, n, k], sm_count)) {
                    assert_eq!(parts(other), parts(own), "{m} x {n} x {k}, {own}");
                    assert_eq!(other.block().operands(), SmallMOperands::Fp8);
                }
            }
            for (own, codes) in
                SmallMConfig::all(SmallMOperands::E2m1Weights).flat_map(|own| CodeOrder::ALL.map(|codes| (own, codes)))
            {
                let Some(AsLink { config, releases, deep, .. }) = own.in_chain(codes, [m, n, k], sm_count) else {
                    continue;
                };
                assert_eq!(parts(config), parts(own), "{m} x {n} x {k}, {own}");
                assert!(config.block().operands() == SmallMOperands::E2m1Weights && releases <= 1);
                assert!(!deep || (config.block() == Four && m > 1));
                // Blocks of many warps are not taken in more than one round.
                let link = Link { m, n, k, sm_count };
                let many = matches!(config.block(), SmallMBlock::Narrow | SmallMBlock::Sixteen) && config != own;
                assert!(!many || link.at_once(config), "{m} x {n} x {k}, {own} by {config}");
            }
        }
        let of = |block, split, mnk| {
            let link = config(block, split).in_chain(CodeOrder::Published, mnk, 132)?;
            Some((link.config, link.releases))
        };
        // What was the fastest of as many parts of k, within 1 %, at shapes of the record of paced links. One block for each multiprocessor, or two.
        let fp8 = |block, split, mnk| of(block, split, mnk).map(|(link, left)| (link.block(), link.split(), left));
        let [one, deep, two] = [One, OneDeep, Two].map(|block| move |split, left| Some((block, split, left)));
        assert_eq!([1, 8].map(|m| fp8(One, 4, [m, 4096, 7168])), [two(2, 7); 2]);
        assert_eq!([9, 16].map(|m| fp8(Two, 2, [m, 4096, 7168])), [two(2, 4); 2]);
        assert_eq!([1, 16].map(|m| fp8(One, 8, [m, 4096, 7168])), [one(8, 6), one(8, 5)]);
        assert_eq!([1, 16].map(|m| fp8(One, 4, [m, 7168, 2048])), [one(4, 6), one(4, 5)]);
        assert_eq!([1, 16].map(|m| fp8(One, 8, [m, 2112, 7168])), [one(8, 4); 2]);
        assert_eq!([1, 16].map(|m| fp8(OneDeep, 2, [m, 8192, 8192])), [two(1, 7), two(1, 4)]);
        assert_eq!([1, 16].map(|m| fp8(One, 8, [m, 1536, 7168])), [two(4, 7), two(4, 5)]);
        // At most one for each multiprocessor, and 160, which are 80 of two warpgroups.
        assert_eq!([1, 16].map(|m| fp8(One, 8, [m, 1280, 8192])), [deep(8, 3); 2]);
        assert_eq!([1, 16].map(|m| fp8(One, 8, [m, 576, 7168])), [deep(8, 3); 2]);
        assert_eq!([1, 16].map(|m| fp8(One, 8, [m, 1024, 4096])), [deep(8, 3); 2]);
        assert_eq!(fp8(Two, 8, [1, 576, 7168]), two(8, 7), "sixteen parts");
        // More: three deep ones on each, or not all of their clusters find places.
        assert_eq!([1, 16].map(|m| fp8(One, 4, [m, 5120, 8192])), [deep(4, 4), deep(4, 3)]);
        assert_eq!([1, 16].map(|m| fp8(One, 1, [m, 24576, 1536])), [deep(1, 4), deep(1, 3)]);
        assert_eq!(fp8(Two, 2, [1, 5120, 8192]), deep(4, 4), "as many parts");
        assert_eq!([fp8(One, 8, [1, 2560, 9728]), fp8(Two, 4, [1, 2880, 2880])], [deep(8, 4), one(8, 6)]);
        assert_eq!([1, 16].map(|m| fp8(One, 4, [m, 6144, 2048])), [one(4, 6), one(4, 5)]);
        assert_eq!([1, 16].map(|m| fp8(One, 4, [m, 6144, 4096])), [two(2, 8), two(2, 6)]);
        assert_eq!([1, 16].map(|m| fp8(Two, 2, [m, 8192, 3072])), [one(4, 6), one(4, 5)]);
        assert_eq!([1, 16].map(|m| fp8(Two, 2, [m, 8192, 8192])), [two(2, 8), two(2, 6)]);
        // Fewer on some, with a long walk and a shorter one; whole rows of B; many rounds of deep ones.
        assert_eq!([fp8(One, 2, [1, 9216, 9216]), fp8(One, 2, [1, 9728, 2560])], [None, deep(2, 4)]);
        assert_eq!([1, 16].map(|m| fp8(One, 1, [m, 28672, 4096])), [one(1, 4), None]);
        assert_eq!([fp8(One, 1, [1, 8960, 1536]), fp8(One, 1, [1, 12288, 4096])], [deep(1, 3), None]);
        assert_eq!([fp8(OneDeep, 1, [1, 8192, 28672]), fp8(One, 1, [1, 4096, 4096])], [None, deep(1, 3)]);
        // More rounds of blocks.
        assert_eq!([fp8(One, 8, [1, 3072, 7168]), fp8(One, 4, [1, 8192, 3584])], [two(4, 8), one(4, 6)]);
        assert_eq!([fp8(One, 2, [1, 6144, 2048]), fp8(One, 4, [16, 3072, 3072])], [deep(2, 3), deep(4, 3)]);
        assert_eq!([fp8(One, 2, [1, 18944, 3584]), fp8(One, 4, [1, 10240, 5120])], [one(2, 6), deep(4, 4)]);
        assert_eq!([1, 16].map(|m| fp8(One, 4, [m, 27648, 5120])), [one(4, 6), one(4, 5)]);
        assert_eq!([1, 16].map(|m| fp8(One, 1, [m, 32768, 512])), [one(1, 6), one(1, 5)]);
        assert_eq!([1, 16].map(|m| fp8(OneDeep, 2, [m, 57344, 8192])), [deep(2, 4), deep(2, 3)]);
        // More rows: a multiprocessor has one block of two warpgroups, and two deep ones.
        let many = |block, split, [n, k]: [usize; 2]| of(block, split, [20, n, k]).unwrap().0;
        assert_eq!([many(One, 8, [2112, 7168]), many(One, 4, [4096, 7168])], [config(One, 8), config(One, 4)]);
        assert_eq!([many(One, 4, [5120, 8192]), many(One, 2, [10240, 5120])], [config(One, 4), config(One, 2)]);
        assert_eq!([many(One, 4, [3072, 7168]), many(One, 4, [3584, 18944])], [config(OneDeep, 4); 2]);
        assert_eq!([many(One, 8, [2112, 16384]), many(One, 2, [6144, 2048])], [config(One, 8), config(OneDeep, 2)]);
        assert_eq!([many(One, 2, [7168, 2048]), many(One, 4, [4096, 14336])], [config(Two, 1), config(Two, 2)]);
        assert_eq!(of(Tile, 4, [32, 7168, 2048]), None);
    }

    /// Of two rows and more: within 6 % of the fastest link of as many parts (H200, 2026-11, the record of links planned for chains), `*` by the kernel of links, `+` with weights in turn, `!` not released early.
    #[test]
    fn links_of_e2m1_weights_are_those_that_were_fastest() {
        use CodeOrder::{Published, Repacked};
        use SmallMBlock::{Eight, Four, Narrow, Sixteen};
        let cases = [
            (Published, Four, 1, [2, 7168, 2048], "four, k split by 1 *"),
            (Published, Eight, 1, [8, 6144, 4096], "four, k split by 2 *"),
            (Published, Four, 2, [16, 4096, 4096], "four, k split by 2 *"),
            (Published, Eight, 1, [2, 5120, 8192], "four, k split by 2 +"),
            (Published, Four, 2, [2, 12288, 4096], "eight, k split by 1 +"),
            (Published, Four, 2, [8, 14336, 4096], "four, k split by 2"),
            (Published, Four, 1, [2, 24576, 1536], "four, k split by 1"),
            (Published, Eight, 2, [2, 2112, 7168], "narrow, k split by 1 +"),
            (Published, Sixteen, 1, [16, 2112, 7168], "narrow, k split by 1 +"),
            // Not in a second round of blocks.
            (Published, Four, 4, [16, 2304, 7168], "four, k split by 4 !"),
            (Published, Eight, 2, [2, 3072, 28672], "eight, k split by 2 !"),
            (Published, Sixteen, 1, [2, 3072, 7168], "eight, k split by 2 +"),
            (Published, Eight, 2, [8, 4096, 7168], "sixteen, k split by 1"),
            (Published, Sixteen, 1, [16, 4096, 7168], "eight, k split by 2 +"),
            (Published, Four, 4, [8, 5120, 5120], "eight, k split by 2 +"),
            (Published, Four, 4, [8, 5120, 8192], "eight, k split by 2 +"),
            (Published, Four, 8, [8, 576, 7168], "four, k split by 8"),
            (Repacked, Four, 1, [8, 7168, 2048], "four, k split by 1 *"),
            (Repacked, Four, 8, [16, 576, 7168], "four, k split by 8 *"),
            (Repacked, Eight, 1, [8, 8192, 8192], "eight, k split by 1 !"),
            (Repacked, Eight, 1, [2, 10240, 8192], "four, k split by 2 !"),
            (Repacked, Eight, 2, [2, 3072, 7168], "sixteen, k split by 1"),
            (Repacked, Narrow, 2, [2, 2112, 7168], "narrow, k split by 2"),
            // One row, where the kernels that keep it are not taken.
            (Repacked, Eight, 2, [1, 4096, 4096], "narrow, k split by 1"),
            (Repacked, Sixteen, 1, [1, 4096, 7168], "sixteen, k split by 1"),
        ];
        for (codes, block, split, mnk, want) in cases {
            let link = SmallMConfig::new(block, split).unwrap().in_chain(codes, mnk, 132).unwrap();
            let how = match link {
                AsLink { deep: true, paced: true, releases: 1, .. } => " *",
                AsLink { deep: false, paced: true, releases: 1, .. } => " +",
                AsLink { deep: false, paced: false, releases: 1, .. } => "",
                AsLink { deep: false, paced: false, releases: 0, .. } => " !",
                other => panic!("{other:?}"),
            };
            assert_eq!(format!("{}{how}", link.config), want, "{codes}, {block}, {split}, {mnk:?}");
        }
    }

    /// Outside of chains, in the same record.
    #[test]
    fn other_blocks_are_as_fast() {
        use SmallMBlock::{Four, One, OneDeep, Two};
        let of = |block, split, mnk| {
            let fast = SmallMConfig::new(block, split).unwrap().as_fast(mnk, 132)?;
            Some((fast.block(), fast.split()))
        };
        // One block for each multiprocessor, or two, with a longer walk of more rows.
        assert_eq!([1, 16].map(|m| of(One, 8, [m, 576, 7168])), [Some((OneDeep, 8)); 2]);
        assert_eq!([8, 16].map(|m| of(One, 4, [m, 4096, 7168])), [Some((Two, 2)), None]);
        assert_eq!([1, 16].map(|m| of(One, 4, [m, 4096, 11008])), [Some((Two, 2)); 2]);
        assert_eq!([1, 16].map(|m| of(One, 8, [m, 1280, 8192])), [Some((OneDeep, 8)); 2]);
        assert_eq!([of(One, 8, [1, 2112, 7168]), of(One, 4, [1, 4096, 2048])], [None; 2], "short");
        // Three.
        assert_eq!([1, 16].map(|m| of(One, 2, [m, 10240, 5120])), [Some((OneDeep, 2)), None]);
        assert_eq!([of(One, 4, [1, 4608, 4608]), of(One, 2, [1, 9216, 9216])], [None; 2], "short; fewer on some");
        // Other parts, more rows, other weights.
        assert_eq!([of(Two, 8, [1, 576, 7168]), of(One, 8, [17, 576, 7168])], [None; 2]);
        assert_eq!([of(One, 8, [1, 576, 7168]), of(Four, 2, [1, 576, 7168])], [Some((OneDeep, 8)), None]);
    }
}
