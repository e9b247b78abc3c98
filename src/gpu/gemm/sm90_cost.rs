//! What the configurations of our sm_90 product cost, by how their tiles fill a GPU: cycles, from which [`sm90_rules`](super::sm90_rules) makes orders. Pure.

use crate::gpu::kernels::{Sm90Config, Sm90Scales};

/// Cycles of a multiprocessor: for 128 of k of one tile, and for the rest of a tile, of which what blocks that divide k send each other is a part.
#[derive(Clone, Copy)]
pub(super) struct Cost {
    pub(super) block: usize,
    pub(super) tile: usize,
}

/// Fitted to the times of each kernel alone, m of 128 to 8192, with those near the fastest counting most: 59 products on an H200 (`kernels.md` of
/// `benches/record/2026-11-26-nvidia-h200-sm90`, kernels with all ends), 34 and 31 on an H100 (`plain-end.txt` of `2026-11-26-nvidia-h100-sm90`, `times.txt` of `2026-11-27-nvidia-h100-sm90`, plain
/// ends). The README of the latter says how far behind the fastest the first choice is, and how far at shapes kept out of a fit. Blocks that divide k take no less for 128 of k than blocks that do not.
pub(super) fn cost(config: Sm90Config) -> Cost {
    let (block, tile) = match config {
        Sm90Config::Tile256x128 => (1190, 3400),
        Sm90Config::Tile128x128 => (647, 1550),
        Sm90Config::Tile128x160 => (801, 1950),
        Sm90Config::Tile128x192 => (923, 2050),
        Sm90Config::Tile64x192 => (633, 2800),
        Sm90Config::Tile128x64 => (407, 1450),
        Sm90Config::Tile64x128 => (418, 1700),
        Sm90Config::Tile64x64 => (316, 1800),
        Sm90Config::Tile64x64Two => (460, 900),
        Sm90Config::Tile128x160K2 => (1052, 5650),
        Sm90Config::Tile128x64K2 => (470, 3800),
        Sm90Config::Tile64x64K2 => (329, 4300),
        Sm90Config::Tile64x64K3 => (386, 6050),
        Sm90Config::Tile64x64K4 => (341, 2900),
        Sm90Config::Tile128x144 => (735, 2800),
        Sm90Config::Tile128x96 => (579, 1600),
        Sm90Config::Tile128x80 => (554, 950),
        Sm90Config::Tile64x32 => (274, 2000),
        Sm90Config::Tile128x144K2 => (882, 4150),
        Sm90Config::Tile128x96K2 => (630, 4100),
    };
    Cost { block, tile }
}

/// Of 1x128 scales on both sides, whose sums take twice the instructions: fitted to 24 products at eleven (n, k), m of 64 to 4096, and to seven of few tiles, to a BF16 D (H200, `benches/record/2026-12-01-nvidia-h200-vectors`). The first choice takes 1.002 of the fastest's
/// time there, and 1.005 at shapes that were kept out of a fit, where by the costs above it takes 1.022.
fn cost_of_vectors(config: Sm90Config) -> Cost {
    let (block, tile) = match config {
        Sm90Config::Tile256x128 => (1567, 4750),
        Sm90Config::Tile128x128 => (862, 4350),
        Sm90Config::Tile128x160 => (1025, 4050),
        Sm90Config::Tile128x192 => (1181, 3450),
        Sm90Config::Tile64x192 => (780, 2400),
        Sm90Config::Tile128x64 => (480, 2350),
        Sm90Config::Tile64x128 => (467, 2550),
        Sm90Config::Tile64x64 => (331, 2150),
        Sm90Config::Tile64x64Two => (539, 1900),
        Sm90Config::Tile128x160K2 => (1045, 7800),
        Sm90Config::Tile128x64K2 => (556, 2800),
        Sm90Config::Tile64x64K2 => (416, 3050),
        Sm90Config::Tile64x64K3 => (337, 3800),
        Sm90Config::Tile64x64K4 => (340, 4000),
        // They have no such kernels.
        Sm90Config::Tile128x144
        | Sm90Config::Tile128x96
        | Sm90Config::Tile128x80
        | Sm90Config::Tile64x32
        | Sm90Config::Tile128x144K2
        | Sm90Config::Tile128x96K2 => return cost(config),
    };
    Cost { block, tile }
}

/// What configurations cost in products of scales that lie so.
pub(super) fn cost_of(scales: Sm90Scales) -> fn(Sm90Config) -> Cost {
    match scales {
        Sm90Scales::Vectors => cost_of_vectors,
        Sm90Scales::Blocks | Sm90Scales::BlocksOfA | Sm90Scales::Outer { .. } => cost,
    }
}

/// Cycles of a product of so many groups, each of m rows: whole waves of tiles, as every block takes its tiles one after the other.
pub(super) fn cycles(config: Sm90Config, groups: usize, mnk: [usize; 3], sm_count: usize) -> usize {
    let [products, rest] = parts_of_time(config, cost(config), groups, mnk, sm_count);
    products.saturating_add(rest)
}

/// Of one product: its operands are read meanwhile, which with few rows takes longer than to multiply them, and does not hide all of that.
pub(super) fn cycles_of_whole(config: Sm90Config, cost: Cost, mnk: [usize; 3], sm_count: usize) -> usize {
    let ([m, n, k], [products, rest]) = (mnk, parts_of_time(config, cost, 1, mnk, sm_count));
    let read = (m + n).saturating_mul(k) / BYTES_A_CYCLE;
    products.max(read.saturating_add(products / 4)).saturating_add(rest)
}

/// Of groups of rows whose D the copy engine stores: it stores all but the last of a block's largest tiles while the next is multiplied. That takes 900 cycles off each where groups have many rows; of fewer, whose cut tiles the
/// warps store, it was not measured (8 groups of 4200, n = 7168, k = 2048: 709 us, 739 of 128 x 192; H200, `benches/record/2026-12-01-nvidia-h200-rings/grouped.md`).
pub(super) fn cycles_of_rows(config: Sm90Config, groups: usize, mnk: [usize; 3], sm_count: usize) -> usize {
    let [products, rest] = parts_of_time(config, cost(config), groups, mnk, sm_count);
    let under = match config {
        Sm90Config::Tile256x128 if mnk[0] >= 1000 => (rest / cost(config).tile).saturating_sub(1).saturating_mul(900),
        _ => 0,
    };
    products.saturating_add(rest - under)
}

/// Cycles of the loops over k, and of the rest of each tile; of problems that no GPU holds no more than a number has.
fn parts_of_time(
    config: Sm90Config,
    Cost { block, tile: rest }: Cost,
    groups: usize,
    [m, n, k]: [usize; 3],
    sm_count: usize,
) -> [usize; 2] {
    let tile = config.tile();
    let waves = groups.saturating_mul(tile.tiles(m, n)).div_ceil(tile.blocks_at_once(sm_count));
    let products = waves.saturating_mul(k.div_ceil(128).div_ceil(tile.split) * block);
    [products, waves.saturating_mul(rest)]
}

/// What memory gives in such a cycle.
pub(super) const BYTES_A_CYCLE: usize = 2400;
