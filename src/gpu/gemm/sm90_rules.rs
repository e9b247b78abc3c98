//! [`order`], [`order_of_whole`]: which configuration of our sm_90 product is tried first; [`sum_order`]: which give a row the same bits. Pure.

use crate::format::Fp8Format;
use crate::gpu::gemm::measured::Card;
use crate::gpu::gemm::our_pairs::Sm90Pair;
use crate::gpu::gemm::sm90_cost::{BYTES_A_CYCLE, Cost, cost, cost_of, cycles, cycles_of_rows, cycles_of_whole};
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{Sm90Config, Sm90Scales};

/// The configurations whose kernels cast D, or compute SwiGLU of columns that B has two rows for, likewise.
pub(crate) fn cast_order(swiglu: bool, groups: usize, [m, n, k]: [usize; 3], sm_count: usize) -> Vec<Sm90Config> {
    let stored =
        |config: Sm90Config| config.codes_tile().map(|_| (cycles(config, groups, [m, n, k], sm_count), config));
    let mut all: Vec<_> = match swiglu {
        true => swiglu_cycles(groups, [m, n, k], sm_count).collect(),
        false => Sm90Config::ALL.into_iter().filter_map(stored).collect(),
    };
    all.sort_by_key(|(cycles, _)| *cycles);
    all.into_iter().map(|(_, config)| config).collect()
}

/// SwiGLU of two products in two steps, where that should be faster than in one kernel: the configuration of the products, which are stored in FP32 side by side, of
/// columns that B has two rows for. Tiles of the fused kernel have twice the columns, and fill the GPU worse. A pass takes about as long as 3,500 cycles and what it reads and writes beside the
/// L2 cache.
pub(crate) fn swiglu_in_steps([m, n, k]: [usize; 3], sm_count: usize) -> Option<Sm90Config> {
    if m >= MOST_ROWS_IN_STEPS {
        return None;
    }
    // Neither is faster than a read of B.
    let read = n.saturating_mul(2).saturating_mul(k) / BYTES_A_CYCLE;
    let fused = swiglu_cycles(1, [m, n, k], sm_count).map(|(cycles, _)| cycles).min()?.max(read);
    let products = by_key(|config| cycles(config, 1, [m, 2 * n, k], sm_count))[0];
    let pass = 3500 + m * n * 16 / BYTES_A_CYCLE;
    let steps = cycles(products, 1, [m, 2 * n, k], sm_count).max(read).saturating_add(pass);
    (steps < fused).then_some(products)
}

/// From here on the pass costs more than what the fused kernel loses.
const MOST_ROWS_IN_STEPS: usize = 1024;

/// Cycles of SwiGLU in each configuration that has it.
fn swiglu_cycles(groups: usize, [m, n, k]: [usize; 3], sm_count: usize) -> impl Iterator<Item = (usize, Sm90Config)> {
    Sm90Config::ALL.into_iter().filter_map(move |config| {
        // A tile does what one of twice the columns does.
        let tile = config.swiglu_tile()?;
        let Cost { block, tile: rest } = match config {
            Sm90Config::Tile128x128 => Cost { block: 1150, tile: 3500 },
            _ => Cost { block: 1050, tile: 2400 },
        };
        let waves = groups.saturating_mul(tile.tiles(m, n)).div_ceil(tile.blocks_at_once(sm_count));
        Some((waves.saturating_mul(k.div_ceil(128) * block + rest), config))
    })
}

/// The configurations for groups, from the one with the fewest cycles on; of equals the one with the larger tile, which reads less.
/// `boxed`: groups of rows, whose D is stored by the copy engine.
pub(crate) fn order(boxed: bool, groups: usize, mnk: [usize; 3], sm_count: usize) -> Vec<Sm90Config> {
    by_key(|config| match boxed {
        true => cycles_of_rows(config, groups, mnk, sm_count),
        false => cycles(config, groups, mnk, sm_count),
    })
}

/// Those that have kernels for groups, from the one with the least on.
fn by_key(key: impl Fn(Sm90Config) -> usize) -> Vec<Sm90Config> {
    let mut all: Vec<_> = Sm90Config::ALL.into_iter().filter(is_for_groups).collect();
    all.sort_by_key(|config| key(*config));
    all
}

fn is_for_groups(config: &Sm90Config) -> bool {
    config.k_parts() == 1 && !config.ends_plainly()
}

/// The first of them that has kernels for what is multiplied.
pub(crate) fn first_of_groups(
    boxed: bool,
    groups: usize,
    mnk: [usize; 3],
    sm_count: usize,
    has_kernels: impl Fn(&Sm90Config) -> bool,
) -> Sm90Config {
    order(boxed, groups, mnk, sm_count).into_iter().find(has_kernels).unwrap_or(Sm90Config::Tile128x128)
}

/// What of a GPU decides which configuration of a whole product is tried first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sm90Gpu {
    pub(crate) sm_count: usize,
    /// Of which configurations were measured.
    pub(crate) card: Option<Card>,
}

impl Sm90Gpu {
    pub(crate) fn of(handle: &Handle) -> Self {
        let device = handle.device();
        Self { sm_count: device.sm_count as usize, card: Card::of(&device.name) }
    }
}

/// Those for a whole product of scales that lie so: also those that divide k, where one round is all and each block has some of it. What was [measured](MEASURED) to be faster comes before all, but where both sides have 1x128 scales.
pub(crate) fn order_of_whole(scales: Sm90Scales, mnk: [usize; 3], gpu: Sm90Gpu) -> Vec<Sm90Config> {
    let mut all = by_cycles(cost_of(scales), mnk, gpu.sm_count);
    if scales == Sm90Scales::Vectors {
        return all;
    }
    let first = MEASURED.iter().find(|(problem, _)| *problem == mnk).and_then(|(_, of)| match gpu.card? {
        Card::H200 => of[0],
        Card::H100 => of[1],
    });
    let measured = |config: &Sm90Config| Some(*config) == first;
    // Stable: the others stay as they are.
    all.sort_by_key(|config| !measured(config));
    all
}

/// Those for a whole product, from the one with the fewest cycles on.
fn by_cycles(cost: fn(Sm90Config) -> Cost, mnk: [usize; 3], sm_count: usize) -> Vec<Sm90Config> {
    let mut all: Vec<_> = Sm90Config::ALL.into_iter().filter(|config| is_for_whole(*config, mnk, sm_count)).collect();
    all.sort_by_key(|config| cycles_of_whole(*config, cost(*config), mnk, sm_count));
    all
}

/// Of the published problems of more than 64 rows those at which another configuration than that of the fewest cycles was more than 2 % faster, and which was the fastest, on an H200 (`benches/record/2026-11-30-nvidia-h200-chained`, `2026-11-30-nvidia-h200-requests` and `2026-12-01-nvidia-h200-rings`, m up to 4096) and on an H100 (`2026-11-27-nvidia-h100-beside-3`), plain
/// end, with pauses; their READMEs have the times. Costs that are fitted to these problems, too, come to within 0.2 % of the fastest on average, but lose 0.1 % more than these at what is kept out of the fit: so the costs stay, and these are told.
const MEASURED: [([usize; 3], [Option<Sm90Config>; 2]); 15] = {
    use Sm90Config::{
        Tile64x64Two, Tile64x128, Tile128x64, Tile128x80, Tile128x96, Tile128x128, Tile128x144, Tile128x192,
        Tile256x128,
    };
    const fn both(config: Sm90Config) -> [Option<Sm90Config>; 2] {
        [Some(config); 2]
    }
    [
        ([128, 32768, 512], [Some(Tile64x128), Some(Tile64x64Two)]),
        ([128, 5120, 8192], [None, Some(Tile128x64)]),
        ([128, 24576, 1536], both(Tile64x128)),
        ([1024, 2048, 768], both(Tile128x144)),
        ([512, 7168, 2048], both(Tile128x128)),
        ([2048, 7168, 16384], both(Tile128x192)),
        ([128, 51200, 5120], both(Tile128x80)),
        ([128, 7168, 2048], [Some(Tile64x128), None]),
        ([256, 24576, 1536], [None, Some(Tile128x96)]),
        ([128, 8192, 28672], [Some(Tile64x128), None]),
        ([256, 32768, 512], [Some(Tile128x128), None]),
        ([128, 7168, 16384], [Some(Tile64x128), None]),
        ([512, 32768, 512], [Some(Tile128x128), None]),
        ([1024, 10240, 5120], [Some(Tile128x128), None]),
        ([4096, 32768, 512], [Some(Tile256x128), None]),
    ]
};

fn is_for_whole(config: Sm90Config, [m, n, k]: [usize; 3], sm_count: usize) -> bool {
    let tile = config.tile();
    tile.split == 1 || (tile.tiles(m, n) <= tile.blocks_at_once(sm_count) && k.div_ceil(128) >= 4 * tile.split)
}

/// What takes the place of a configuration that ends plainly where alpha is not 1: the first of that order which gives the same bits. A record may name a configuration that is not in the order.
pub(crate) fn stand_in(config: Sm90Config, mnk: [usize; 3], sm_count: usize) -> Option<Sm90Config> {
    let may = |other: &Sm90Config| config.ends_plainly() && other.stands_in_for(config);
    let order = |other: &Sm90Config| {
        (!is_for_whole(*other, mnk, sm_count), cycles_of_whole(*other, cost(*other), mnk, sm_count))
    };
    Sm90Config::ALL.into_iter().filter(may).min_by_key(order)
}

/// How a configuration adds up an element of D: those of one order give it the same bits. The match of [`sum_order`] asks whoever
/// adds a configuration, and [`serves`] keeps all but those of the first order out of batch-invariant plans.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum SumOrder {
    /// One block of 128 along k after the other, from the first: `sum = fma(p, scale, sum)` (`sum + p` with scales of rows and matrices) in FP32, from 0.
    /// p is the tensor cores' sum of the block, from 0, in steps of 32.
    BlockAfterBlock,
    /// So many parts of k, each so, and then the sums of the parts, from the first. Which configuration is chosen follows m.
    Parts(usize),
}

/// The order of sums of a configuration. What those of one order differ in has no part in it: an atom's columns are apart from each other in the tensor cores (32 to 192
/// give the same bits: observed on an H100, of 64, 128, 160 and 192 on an H200, too), depth and unrolling change when a block is multiplied and not when it is added, and
/// tiles, clusters and blocks divide m and n alone.
pub(crate) fn sum_order(config: Sm90Config) -> SumOrder {
    match config {
        Sm90Config::Tile256x128
        | Sm90Config::Tile128x128
        | Sm90Config::Tile128x160
        | Sm90Config::Tile128x192
        | Sm90Config::Tile64x192
        | Sm90Config::Tile128x64
        | Sm90Config::Tile64x128
        | Sm90Config::Tile64x64
        | Sm90Config::Tile64x64Two
        | Sm90Config::Tile128x144
        | Sm90Config::Tile128x96
        | Sm90Config::Tile128x80
        | Sm90Config::Tile64x32 => SumOrder::BlockAfterBlock,
        Sm90Config::Tile128x160K2
        | Sm90Config::Tile128x64K2
        | Sm90Config::Tile64x64K2
        | Sm90Config::Tile64x64K3
        | Sm90Config::Tile64x64K4
        | Sm90Config::Tile128x144K2
        | Sm90Config::Tile128x96K2 => SumOrder::Parts(config.k_parts()),
    }
}

/// Whether a product of such operands may be computed in this configuration: a batch-invariant one in those of one order, whatever m is; `plainly`: one whose sums become BF16, and nothing else.
pub(crate) fn serves(config: Sm90Config, batch_invariant: bool, pair: Sm90Pair, plainly: bool) -> bool {
    pair.scales.multiply_in(config, pair.formats, plainly)
        && (!batch_invariant || sum_order(config) == SumOrder::BlockAfterBlock)
}

/// Whether what was measured of E4M3 holds for these codes: the configuration that should be fastest, of those with kernels for such scales, has one for them. (Products of either take the same time.)
pub(crate) fn has_the_fastest(mnk: [usize; 3], sm_count: usize, pair: Sm90Pair) -> bool {
    let of_e4m3 = |config: &Sm90Config| pair.scales.multiply_in(*config, [Fp8Format::E4M3; 2], false);
    let fastest = by_cycles(cost_of(pair.scales), mnk, sm_count).into_iter().find(of_e4m3);
    fastest.is_some_and(|config| pair.scales.multiply_in(config, pair.formats, false))
}

/// Of 1x128 scales on both sides: cycles of the fastest configuration, and of tiles of 128 x 128.
pub(crate) fn of_vectors_beside_squares(mnk: [usize; 3], sm_count: usize) -> [usize; 2] {
    let cost = cost_of(Sm90Scales::Vectors);
    let cycles = |config| cycles_of_whole(config, cost(config), mnk, sm_count);
    let fastest = by_cycles(cost, mnk, sm_count).into_iter().find(|config| !config.ends_plainly());
    let squares = cycles(Sm90Config::Tile128x128);
    [fastest.map_or(squares, cycles), squares]
}

/// Several rounds of the largest tiles.
pub(crate) fn has_rounds([m, n, _]: [usize; 3], sm_count: usize) -> bool {
    let tile = Sm90Config::Tile256x128.tile();
    tile.tiles(m, n) >= 2 * tile.blocks_at_once(sm_count)
}

/// More than one round of the largest tiles, of which nine tenths are D.
pub(crate) fn fill_rounds([m, n, _]: [usize; 3], sm_count: usize) -> bool {
    let tile = Sm90Config::Tile256x128.tile();
    let (tiles, at_once) = (tile.tiles(m, n), tile.blocks_at_once(sm_count));
    let computed = (tiles.div_ceil(at_once) * at_once) as u128 * (tile.rows * tile.cols) as u128;
    tiles > at_once && 10 * m as u128 * n as u128 >= 9 * computed
}

/// How often the tiles of the configuration fill the GPU.
pub(crate) fn waves(config: Sm90Config, [m, n, _]: [usize; 3], sm_count: usize) -> f32 {
    config.tile().tiles(m, n) as f32 / config.tile().blocks_at_once(sm_count) as f32
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Sm90Gpu = Sm90Gpu { sm_count: 132, card: Some(Card::H200) };

    /// The fastest of each that has all ends, and those within 4 % of it (H200, `kernels.md`): microseconds of the best, and of others.
    #[test]
    fn what_was_fastest_comes_first() {
        use Sm90Config::{
            Tile64x64, Tile64x64K2, Tile64x64K4, Tile64x64Two, Tile64x128, Tile64x192, Tile128x64, Tile128x64K2,
            Tile128x128, Tile128x160, Tile128x160K2, Tile128x192, Tile256x128,
        };
        let cases: [([usize; 3], &[Sm90Config]); 23] = [
            ([128, 4096, 7168], &[Tile128x64K2, Tile64x64]), // 12.8, 13.1; 14.2, 17.0
            ([256, 4096, 7168], &[Tile128x64, Tile64x128]),  // 17.0, 17.0; 17.8, 24.6
            ([512, 4096, 7168], &[Tile128x128]),             // 25.4; 29.1, 41.8
            ([1024, 4096, 7168], &[Tile256x128, Tile128x128]), // 46.0, 47.4; 66
            ([128, 7168, 2048], &[Tile64x128, Tile128x64, Tile64x64Two]), // 7.3, 7.4, 7.6; 8.8
            ([256, 7168, 2048], &[Tile128x128]),             // 10.1; 11.3
            ([512, 7168, 2048], &[Tile128x128, Tile256x128]), // 16.6, 17.3
            ([1024, 7168, 2048], &[Tile128x160, Tile256x128]), // 28.5, 29.2
            ([4096, 4096, 7168], &[Tile256x128]),            // 175; 184
            ([4096, 7168, 16384], &[Tile256x128]),           // 684; 724
            ([4096, 24576, 1536], &[Tile256x128, Tile128x192]), // 246, 248
            ([8192, 8192, 8192], &[Tile256x128, Tile128x192]), // 793, 804
            ([512, 5120, 8192], &[Tile128x160]),             // 34.3; 38.2, 47.8
            ([256, 10240, 5120], &[Tile128x160]),            // 23.7; 26.4, 32.3
            ([4096, 576, 7168], &[Tile128x160]),             // 30.9; 33.2
            ([2048, 1536, 2048], &[Tile128x192]),            // 13.4; 16.0
            ([512, 2112, 7168], &[Tile128x64]),              // 16.6; 18.9
            ([96, 18432, 7168], &[Tile128x160, Tile128x192]), // 37.8, 38.7; 47.2
            ([64, 18432, 7168], &[Tile64x192]),              // 36.9 (of 2026-11-25); 46.0
            ([256, 5120, 8192], &[Tile128x160K2]),           // 25.2 (H100); 26.4, 28.4
            ([256, 5120, 25600], &[Tile128x160K2]),          // 65.8 (H100); 73.6, 80.2
            ([128, 2112, 7168], &[Tile64x64K2]),             // 9.7; 11.6, 12.8
            ([128, 576, 7168], &[Tile64x64K4]),              // 6.5; 8.6, 12.7
        ];
        for (mnk, fastest) in cases {
            let mut order = order_of_whole(Sm90Scales::Blocks, mnk, H200);
            order.retain(|config| !config.ends_plainly());
            assert!(fastest.contains(&order[0]), "{mnk:?}: {order:?}");
            let [mut of_groups, mut whole] = [super::order(false, 1, mnk, 132), order];
            whole.retain(|config| config.k_parts() == 1);
            of_groups.sort();
            whole.sort();
            assert_eq!(of_groups, whole, "{mnk:?}: none is lost");
        }
        // Groups: 8 of 1024 rows, and 4 of 8192. They are ranked by what their tiles take alone.
        assert_eq!(order(true, 8, [1024, 4096, 7168], 132)[0], Tile256x128);
        assert_eq!(order(true, 4, [8192, 4096, 7168], 132)[0], Tile256x128);
        // 8 of 4176 rows, n = 7168, k = 2048: 709; 739 of 128x192. 8 of 3799: 1290; 1323. 8 of 1138: 412 of 128x192; 422. 6 of 1052 rows: 285 of 128x192; 297. 32 of 193: 364; 415 of 128x160.
        assert_eq!(order(true, 8, [4176, 7168, 2048], 132)[0], Tile256x128);
        assert_eq!(order(true, 8, [3799, 4096, 7168], 132)[0], Tile256x128);
        assert_eq!(order(true, 8, [1138, 4096, 7168], 132)[0], Tile128x192);
        assert_eq!(order(true, 6, [1052, 4096, 7168], 132)[0], Tile128x192);
        assert_eq!(order(true, 32, [193, 4096, 7168], 132)[0], Tile256x128);
        // Where the warps store D nothing is taken off, nor of few rows.
        for (groups, mnk) in [(8, [1100, 4096, 2048]), (64, [300, 4096, 512])] {
            assert_eq!(order(false, groups, mnk, 132)[0], order(true, groups, mnk, 132)[0], "{groups} x {mnk:?}");
        }
        assert_eq!(order(false, 8, [4176, 7168, 2048], 132)[0], Tile128x192);
        // 64 of 16 rows: 456; 463 of 64x64-two (`grouped.md` of fea77ce).
        assert_eq!(order(true, 64, [16, 4096, 7168], 132)[0], Tile64x128);
        // Blocks do not divide k where there is little of it, or there are more tiles than one round has.
        for mnk in [[64, 64, 896], [256, 8192, 8192]] {
            assert!(
                order_of_whole(Sm90Scales::Blocks, mnk, H200).iter().all(|config| config.k_parts() == 1),
                "{mnk:?}"
            );
        }
    }

    /// The fastest of products of two 1x128 scales (H200, `turns.md` of `benches/record/2026-12-01-nvidia-h200-vectors`, of n = 576 and 128 x 2112 x 7168 `before.md`), and those within 2 % of it: microseconds with pauses, and of what the costs of other scales choose.
    #[test]
    fn what_was_fastest_of_vectors_comes_first() {
        use Sm90Config::{
            Tile64x64K2, Tile64x64K3, Tile64x64K4, Tile64x64Two, Tile64x128, Tile128x64, Tile128x64K2, Tile128x128,
            Tile128x160, Tile128x192, Tile256x128,
        };
        let cases: [([usize; 3], &[Sm90Config]); 14] = [
            ([128, 4096, 7168], &[Tile128x64K2]),                         // 13.9; 14.9 (64 x 64)
            ([256, 4096, 7168], &[Tile64x128, Tile128x64]),               // 19.5, 19.6; 31.9 (128 x 128)
            ([512, 4096, 7168], &[Tile128x128]),                          // 33.0; 36.1
            ([1024, 4096, 7168], &[Tile256x128]),                         // 57.2; 64.4 (128 x 128)
            ([1024, 2112, 7168], &[Tile128x64]),                          // 36.4; 37.3 (128 x 160)
            ([4096, 2112, 7168], &[Tile128x192]),                         // 125; 140
            ([2048, 7168, 2048], &[Tile128x192]),                         // 65.6; 70.9 (128 x 128)
            ([2048, 7168, 16384], &[Tile128x192]),                        // 465; 502 (128 x 128)
            ([1024, 14336, 4096], &[Tile128x192]),                        // 122; 132 (128 x 128)
            ([1024, 10240, 5120], &[Tile128x160]),                        // 108; 111
            ([128, 7168, 2048], &[Tile64x64Two, Tile64x128, Tile128x64]), // 8.65 to 8.84
            ([128, 2112, 7168], &[Tile64x64K2]),                          // 10.6
            ([128, 576, 7168], &[Tile64x64K4]),                           // 7.2
            ([256, 576, 7168], &[Tile64x64K3]),                           // 8.0
        ];
        for (mnk, fastest) in cases {
            let mut order = order_of_whole(Sm90Scales::Vectors, mnk, H200);
            order.retain(|config| !config.ends_plainly());
            assert!(fastest.contains(&order[0]), "{mnk:?}: {order:?}");
        }
    }

    /// The fastest of products to a plain BF16 D (H100, `times.txt` and `plain-end.txt`): microseconds with pauses of the first, and of others.
    #[test]
    fn what_was_fastest_with_a_plain_end_comes_first() {
        use Sm90Config::{
            Tile64x32, Tile64x64, Tile64x64K2, Tile64x64K3, Tile64x64K4, Tile128x64, Tile128x64K2, Tile128x80,
            Tile128x96, Tile128x96K2, Tile128x128, Tile128x144, Tile128x144K2, Tile128x160, Tile128x192,
        };
        for (mnk, fastest) in [
            ([4096, 576, 7168], Tile128x144),   // 32.3; 36.9 (128 x 192), 38.2
            ([8192, 576, 7168], Tile128x144),   // 60.1; 70.2, 73.5
            ([2048, 2112, 7168], Tile128x144),  // 60.9; 65.6
            ([1024, 2112, 7168], Tile128x144),  // 29.5; 30.0
            ([2048, 576, 7168], Tile128x144K2), // 19.8; 24.3
            ([256, 5120, 8192], Tile128x80),    // 24.8; 27.4
            ([1024, 1536, 2048], Tile128x96),   // 9.5; 10.5
            ([1024, 576, 7168], Tile128x96K2),  // 14.5; 15.4
            ([256, 576, 7168], Tile64x64K3),    // 8.6; 9.9
            ([128, 576, 7168], Tile64x64K4),    // 8.6; 17.0 (64 x 64)
            ([512, 576, 7168], Tile128x64K2),   // 12.0; 13.2
            ([128, 2112, 7168], Tile64x64K2),   // 12.1; 12.7 (128 x 64 by three), 15.0
            ([128, 2048, 768], Tile64x32),      // 3.9; 4.2
            ([128, 1536, 2048], Tile64x32),     // 4.9; 5.1
            ([128, 4096, 7168], Tile64x64),     // 14.2; 16.4 (128 x 64 by two)
            ([512, 2112, 7168], Tile128x64),    // 17.3; 20.4
            ([512, 4096, 7168], Tile128x128),   // 26.7; 29.7
            ([512, 5120, 8192], Tile128x160),   // 37.1; 41.1
            ([2048, 1536, 2048], Tile128x192),  // 14.7 and 13.1; 15.7 (128 x 128)
            ([4096, 2112, 7168], Tile128x192),  // 110; 128
        ] {
            let order = order_of_whole(Sm90Scales::Blocks, mnk, H200);
            assert_eq!(order[0], fastest, "{mnk:?}: {order:?}");
        }
    }

    /// Each may take its problem, and is not what the rule says by itself: else it need not be told.
    #[test]
    fn what_was_measured_comes_first() {
        for (mnk, of) in MEASURED {
            let cycles = by_cycles(cost, mnk, 132);
            for (config, card) in of.into_iter().zip([Card::H200, Card::H100]) {
                let first = order_of_whole(Sm90Scales::Blocks, mnk, Sm90Gpu { card: Some(card), ..H200 })[0];
                assert_eq!(first, config.unwrap_or(cycles[0]), "{mnk:?}, {card}");
                assert_ne!(config, Some(cycles[0]), "{mnk:?}, {card}");
            }
            assert_eq!(
                order_of_whole(Sm90Scales::Blocks, mnk, Sm90Gpu { card: None, ..H200 }),
                cycles,
                "{mnk:?}, of another GPU"
            );
        }
    }

    /// It is the first in the order of those that give the same bits, whichever tile is nearest; also of configurations that a record alone names.
    #[test]
    fn what_ends_plainly_has_a_stand_in_by_cost() {
        use Sm90Config::{
            Tile64x32, Tile64x64Two, Tile128x80, Tile128x96, Tile128x96K2, Tile128x128, Tile128x144, Tile128x144K2,
            Tile128x160, Tile128x160K2, Tile256x128,
        };
        for (mnk, plain, expected) in [
            // The nearest, of 64 columns, are more than one round there.
            ([256, 5120, 8192], Tile128x80, Tile128x128),
            ([1024, 576, 7168], Tile128x96K2, Tile128x160K2),
            ([2048, 576, 7168], Tile128x144K2, Tile128x160K2),
            ([1024, 1536, 2048], Tile128x96, Tile128x128),
            ([4096, 576, 7168], Tile128x144, Tile128x160),
            ([2048, 2112, 7168], Tile128x144, Tile128x160),
            ([5632, 1280, 8192], Tile128x144, Tile256x128),
            ([128, 2048, 768], Tile64x32, Tile64x64Two),
        ] {
            let order = order_of_whole(Sm90Scales::Blocks, mnk, H200);
            let first = order.iter().find(|other| !other.ends_plainly() && other.k_parts() == plain.k_parts());
            assert_eq!((stand_in(plain, mnk, 132), first), (Some(expected), Some(&expected)), "{mnk:?}, {plain}");
        }
        for mnk in [[1, 8, 16], [256, 5120, 8192], [4096, 576, 7168], [8192, 8192, 8192]] {
            for config in Sm90Config::ALL {
                let found = stand_in(config, mnk, 132);
                assert_eq!(found.is_some(), config.ends_plainly(), "{mnk:?}, {config}");
                assert!(found.is_none_or(|other| sum_order(other) == sum_order(config) && !other.ends_plainly()));
            }
        }
    }

    /// The fastest of those that have kernels for E5M2 on one side, where the fastest of all has none.
    #[test]
    fn groups_are_multiplied_in_what_has_kernels() {
        use Fp8Format::{E4M3, E5M2};
        for (groups, mnk, of_all, of_e5m2) in [
            (1, [512, 5120, 8192], Sm90Config::Tile128x160, Sm90Config::Tile256x128),
            (1, [64, 18432, 7168], Sm90Config::Tile64x192, Sm90Config::Tile64x128),
        ] {
            for (formats, expected) in [([E4M3, E4M3], of_all), ([E5M2, E4M3], of_e5m2), ([E4M3, E5M2], of_e5m2)] {
                let has_kernels = |config: &Sm90Config| config.multiplies(formats);
                let found = first_of_groups(true, groups, mnk, 132, has_kernels);
                assert_eq!(found, expected, "{groups} of {mnk:?}, {formats:?}");
            }
        }
    }

    #[test]
    fn rounds_are_of_the_largest_tiles() {
        assert!(has_rounds([4096, 4096, 16], 132) && !has_rounds([1024, 4096, 16], 132));
        // 3.88 and 1.94 of 132; 0.97, 1.70, 1.94 of which one half is no D, and no tile.
        assert!([4096, 2048].into_iter().all(|m| fill_rounds([m, 4096, 16], 132)));
        assert!(
            [[1024, 4096, 16], [1024, 7168, 16], [128, 32768, 16], [0, 8, 16]]
                .into_iter()
                .all(|mnk| !fill_rounds(mnk, 132))
        );
    }

    /// Where two steps are faster than one kernel.
    #[test]
    fn swiglu_in_steps_is_for_few_tiles() {
        let steps = |m, n, k| swiglu_in_steps([m, n, k], 132);
        // Microseconds of both (`fused_gemm.md` of the record of experts): 18.7 for 31.8, 19.1 for 32.1, 22.7 for 32.5 and 30.1 for 33.7; 81.9 for 91.4, 85.4 for 92.3, 99.9 for 103.8.
        assert!([64, 128, 256, 512].into_iter().all(|m| steps(m, 2048, 7168).is_some()));
        assert!([32, 64, 128].into_iter().all(|m| steps(m, 18432, 7168).is_some()));
        // There the one kernel is as fast as the product itself, or the pass takes what is won.
        assert!([32, 64, 256].into_iter().all(|m| steps(m, 28672, 8192).is_none()));
        assert!(steps(1024, 2048, 7168).is_none() && steps(512, 18432, 7168).is_none());
    }

    /// Cycles of the largest numbers that descriptions allow are no `usize`.
    #[test]
    fn the_largest_problems_have_an_order() {
        let most = i32::MAX as usize - 512;
        for (groups, mnk) in [(1, [most; 3]), (most, [most; 3]), (most, [1, most, most]), (most, [most, 128, 16])] {
            assert_eq!(
                order(true, groups, mnk, 132).len(),
                Sm90Config::ALL.iter().filter(|it| is_for_groups(it)).count()
            );
            assert!([false, true].into_iter().all(|swiglu| !cast_order(swiglu, groups, mnk, 132).is_empty()));
            for scales in [Sm90Scales::Blocks, Sm90Scales::Vectors] {
                assert!(!order_of_whole(scales, mnk, H200).is_empty());
            }
        }
        assert!(swiglu_in_steps([MOST_ROWS_IN_STEPS - 1, most, most], 132).is_none());
    }

    #[test]
    fn waves_count_whole_clusters() {
        assert_eq!(waves(Sm90Config::Tile256x128, [1024, 4096, 7168], 132), 128.0 / 132.0);
        assert_eq!(waves(Sm90Config::Tile64x64Two, [64, 64, 16], 132), 1.0 / 264.0);
    }
}
