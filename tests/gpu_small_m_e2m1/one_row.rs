//! One row, which on sm_90 has kernels of its own, has the bits that other kernels give it, outside of chains and as a link of one, of codes as published and repacked.

use ndarray::s;
use scaled_gemm::{CodeOrder, Handle, SmallMBlock, SmallMConfig};

use super::*;
use crate::repacked::repacked;
use crate::told::{self, told};
use CodeOrder::{Published, Repacked};
use SmallMBlock::{Eight, Four, Narrow, Sixteen};

/// In which blocks the kernels of one row ran, how many steps of codes they had on their way, and whether they asked for the first before the wait, launch by launch.
type Launch = (String, u64, bool);

fn launches_of<T>(work: impl FnOnce() -> T) -> (T, Vec<Launch>) {
    let (done, launches) = told("kernels::small_m_one_row", work);
    let launch = |fields: &told::Fields| {
        (fields["block"].clone(), fields["stages"].parse().unwrap(), fields["loads_early"] == "true")
    };
    (done, launches.iter().map(launch).collect())
}

const OWN: [Pair; 3] = [(BF16, NV), (F16, NV_ROW), (BF16, MX4)];

fn on_hopper(handle: &Handle) -> bool {
    handle.device().compute_capability == (9, 0)
}

fn of(block: SmallMBlock, split: u32) -> SmallMConfig {
    SmallMConfig::new(block, split).unwrap()
}

fn laid(handle: &Handle, both: Both, codes: CodeOrder) -> Both {
    if codes == Repacked { repacked(handle, both) } else { both }
}

/// With k that ends in a step, of fewer steps than warps, of more than are on their way, and so long that a row finds no room; where a kernel of one row is launched, and `explain` says so, and where not.
#[test]
fn one_row_has_the_bits_of_the_first_of_two() {
    let Some(handle) = decoding() else { return };
    let mut rng = Noise::new(196);
    let own = |config: SmallMConfig, k: usize| config.block() != Sixteen && k / config.split() as usize <= 1 << 15;
    let shapes = [[136, 32], [264, 544], [72, 1056], [8, 2048], [136, 7168], [2056, 4128], [72, 18944]];
    for nk in shapes {
        let configs: Vec<_> = all(1).filter(|config| most_of(*config) == 16).collect();
        OWN.into_iter().for_each(|pair| has_the_bits(&handle, &mut rng, nk, (pair, Published), &configs, own));
    }
    // In parts of 16384 and 32768 a row finds room, in longer ones none.
    let configs =
        [(Four, 2), (Four, 8), (Eight, 2), (Eight, 4), (Narrow, 1), (Narrow, 4)].map(|(b, split)| of(b, split));
    let runs = configs.into_iter().filter(|config| clusters() || !config.needs_clusters());
    has_the_bits(&handle, &mut rng, [40, 1 << 17], (OWN[0], Published), &runs.collect::<Vec<_>>(), own);
}

/// Of repacked codes where the warp that has the most has four steps or more.
#[test]
fn one_repacked_row_has_the_bits_of_the_first_of_two() {
    let Some(handle) = decoding() else { return };
    let mut rng = Noise::new(199);
    let own = |config: SmallMConfig, k: usize| {
        let parts = config.split() as usize * warps(config);
        [Four, Eight].contains(&config.block()) && k.div_ceil(128).div_ceil(parts) >= 4
    };
    for nk in [[8, 128], [264, 1536], [72, 2048], [136, 4608], [2056, 7168], [40, 32768]] {
        let configs: Vec<_> = all(1).filter(|config| most_of(*config) == 16).collect();
        OWN[..2].iter().for_each(|pair| has_the_bits(&handle, &mut rng, nk, (*pair, Repacked), &configs, own));
    }
}

fn warps(config: SmallMConfig) -> usize {
    match config.block() {
        Four => 4,
        Eight => 8,
        _ => 16,
    }
}

fn has_the_bits(
    handle: &Handle,
    rng: &mut Noise,
    [n, k]: [usize; 2],
    (pair, codes): (Pair, CodeOrder),
    configs: &[SmallMConfig],
    own: impl Fn(SmallMConfig, usize) -> bool,
) {
    let (x, w) = (blocked(rng, 2, k), quantized(&blocked(rng, n, k), pair.1));
    let case = Case::new(DType::F32);
    for config in configs {
        let rows = |m: usize| {
            let both = laid(handle, operands(handle, &x.slice(s![..m, ..]).to_owned(), w.clone(), pair.0), codes);
            let extras = Extras::new(handle, &mut Noise::new(197), m, n, &[]);
            with!(&both, |ops| {
                let mut plan = planned(handle, &case.desc(ops), *config);
                let (stored, own) = launches_of(|| execute(handle, &mut plan, ops, &extras, &case));
                (stored.bytes, own, plan.explain().to_string())
            })
        };
        let ((one, launches, explain), (two, others, _)) = (rows(1), rows(2));
        assert!(one == two[..n * 4], "{n} x {k}, {}, {config}: other bits", pair.1);
        let expected = on_hopper(handle) && own(*config, k);
        let alone = (config.block().to_string(), 2, false);
        assert!(launches.iter().all(|launch| *launch == alone), "{config}: {launches:?}");
        assert_eq!((!launches.is_empty(), others.len()), (expected, 0), "{n} x {k}, {config}");
        assert_eq!(explain.contains("A in shared memory"), expected, "{explain}");
    }
}

/// The same as links of a chain, whose weights are loaded before the wait; and with four steps on their way where warps have three of them to eight, in turn from five on.
#[test]
fn links_have_the_bits_of_products_alone() {
    let Some(handle) = decoding() else { return };
    let mut rng = Noise::new(198);
    let cases = [
        (2112, of(Four, 2), 4),
        (2048, of(Four, 1), 4),
        (1568, of(Four, 1), 4),
        (1024, of(Four, 1), 2),
        (2592, of(Four, 1), 4),
        (4096, of(Four, 1), 4),
        (4224, of(Four, 1), 2),
        (2112, of(Eight, 2), 2),
        (4224, of(Eight, 2), 2),
        (2112, of(Narrow, 1), 2),
        (4224, of(Narrow, 1), 2),
    ];
    for pair in OWN {
        for (k, config, stages) in cases {
            links(&handle, &mut rng, [264, k], (pair, Published), config, Some((config.block(), stages)));
        }
    }
}

/// Of repacked codes in the block of as many parts of k that is the fastest; `None`: by the kernels of more rows.
#[test]
fn repacked_links_have_the_bits_of_products_alone() {
    let Some(handle) = decoding() else { return };
    let mut rng = Noise::new(200);
    // Of 3400 rows blocks of 32 fill a GPU nearly, of 264 not; of 6528 some multiprocessors have two.
    let cases = [
        ([264, 2048], of(Four, 1), Some((Four, 4))),
        ([264, 4608], of(Four, 1), Some((Four, 4))),
        ([6528, 4608], of(Four, 1), Some((Four, 2))),
        ([264, 1152], of(Four, 1), None),
        ([264, 2048], of(Four, 2), Some((Four, 2))),
        ([3400, 4096], of(Eight, 1), Some((Eight, 3))),
        ([3400, 4096], of(Four, 2), Some((Eight, 3))),
        ([3400, 2048], of(Eight, 1), Some((Eight, 2))),
        ([264, 7168], of(Sixteen, 1), Some((Eight, 2))),
        ([264, 7168], of(Eight, 1), Some((Four, 4))),
        ([264, 7168], of(Eight, 2), None),
    ];
    for pair in &OWN[..2] {
        for (nk, config, own) in cases {
            links(&handle, &mut rng, nk, (*pair, Repacked), config, own);
        }
    }
}

fn links(
    handle: &Handle,
    rng: &mut Noise,
    [n, k]: [usize; 2],
    (pair, codes): (Pair, CodeOrder),
    config: SmallMConfig,
    own: Option<(SmallMBlock, u64)>,
) {
    if config.needs_clusters() && !clusters() {
        return;
    }
    let case = Case::new(DType::F32);
    let mut layers: Vec<_> = (0..3)
        .map(|_| {
            let both = laid(handle, new(handle, rng, [1, n, k], pair), codes);
            let extras = Extras::new(handle, rng, 1, n, &[]);
            let mut plan = with!(&both, |ops| planned(handle, &case.desc(ops), config));
            let want = with!(&both, |ops| execute(handle, &mut plan, ops, &extras, &case));
            let output = with!(&both, |ops| Output::new(handle, ops, &extras, &case));
            (both, extras, plan, want, output)
        })
        .collect();
    let (graph, launches) = launches_of(|| {
        let all = || {
            handle.chain(|| {
                layers.iter_mut().try_for_each(|(both, extras, plan, _, output)| {
                    with!(&*both, |ops| plan.execute(handle, output.args(ops, extras, &case)))
                })
            })
        };
        capture_among_others(handle, all).unwrap()
    });
    // The first follows nothing that is known.
    let own = own.filter(|_| on_hopper(handle));
    let link = |early| own.map(|(block, stages)| (block.to_string(), stages, early));
    let expected: Vec<_> = [false, true, true].into_iter().filter_map(link).collect();
    // A capture that another thread's test broke is made anew.
    let broken = if expected.is_empty() { 0 } else { launches.len().saturating_sub(expected.len()) };
    let launches = &launches[broken..];
    assert_eq!(launches, expected, "{pair:?}, {n} x {k}, {config}");
    for (.., output) in &mut layers {
        output.reset(handle);
    }
    handle.launch(&graph).unwrap();
    for (.., want, output) in &layers {
        assert!(output.read(handle, "a link") == *want, "{pair:?}, {n} x {k}, {config}");
    }
}
