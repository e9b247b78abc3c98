//! One row, which on sm_90 has kernels of its own, has the bits that other kernels give it, outside of chains and as a link of one.

use ndarray::s;
use scaled_gemm::{Handle, SmallMBlock, SmallMConfig};

use super::*;
use crate::told::{self, told};

/// How many steps of codes the kernels of one row had on their way, and whether they asked for the first before the wait, launch by launch.
fn stages_of<T>(work: impl FnOnce() -> T) -> (T, Vec<(u64, bool)>) {
    let (done, launches) = told("kernels::small_m_one_row", work);
    let number = |fields: &told::Fields| (fields["stages"].parse().unwrap(), fields["loads_early"] == "true");
    (done, launches.iter().map(number).collect())
}

const OWN: [Pair; 3] = [(BF16, NV), (F16, NV_ROW), (BF16, MX4)];

fn on_hopper(handle: &Handle) -> bool {
    handle.device().compute_capability == (9, 0)
}

/// With k that ends in a step, of fewer steps than warps, of more than are on their way, and so long that a row finds no room; where a kernel of one row is launched, and `explain` says so, and where not.
#[test]
fn one_row_has_the_bits_of_the_first_of_two() {
    let Some(handle) = decoding() else { return };
    let mut rng = Noise::new(196);
    let shapes = [[136, 32], [264, 544], [72, 1056], [8, 2048], [136, 7168], [2056, 4128], [72, 18944]];
    for [n, k] in shapes {
        let configs: Vec<_> = all(1).filter(|config| most_of(*config) == 16).collect();
        OWN.into_iter().for_each(|pair| has_the_bits(&handle, &mut rng, [n, k], pair, &configs));
    }
    // In parts of 16384 and 32768 a row finds room, in longer ones none.
    use SmallMBlock::{Eight, Four, Narrow};
    let of = |block, split| SmallMConfig::new(block, split).unwrap();
    let configs =
        [(Four, 2), (Four, 8), (Eight, 2), (Eight, 4), (Narrow, 1), (Narrow, 4)].map(|(b, split)| of(b, split));
    let runs = configs.into_iter().filter(|config| clusters() || !config.needs_clusters());
    has_the_bits(&handle, &mut rng, [40, 1 << 17], OWN[0], &runs.collect::<Vec<_>>());
}

fn has_the_bits(handle: &Handle, rng: &mut Noise, [n, k]: [usize; 2], pair: Pair, configs: &[SmallMConfig]) {
    let (x, w) = (blocked(rng, 2, k), quantized(&blocked(rng, n, k), pair.1));
    let case = Case::new(DType::F32);
    for config in configs {
        let rows = |m: usize| {
            let both = operands(handle, &x.slice(s![..m, ..]).to_owned(), w.clone(), pair.0);
            let extras = Extras::new(handle, &mut Noise::new(197), m, n, &[]);
            with!(&both, |ops| {
                let mut plan = planned(handle, &case.desc(ops), *config);
                let (stored, own) = stages_of(|| execute(handle, &mut plan, ops, &extras, &case));
                (stored.bytes, own, plan.explain().to_string())
            })
        };
        let ((one, own, explain), (two, others, _)) = (rows(1), rows(2));
        assert!(one == two[..n * 4], "{n} x {k}, {}, {config}: other bits", pair.1);
        let fits = k / config.split() as usize <= 1 << 15;
        let expected = on_hopper(handle) && config.block() != SmallMBlock::Sixteen && fits;
        assert!(own.iter().all(|launch| *launch == (2, false)), "{config}: {own:?}");
        assert_eq!((!own.is_empty(), others.len()), (expected, 0), "{n} x {k}, {config}");
        assert_eq!(explain.contains("A in shared memory"), expected, "{explain}");
    }
}

/// The same as links of a chain, whose weights are loaded before the wait; and with four steps on their way where warps have three or four of them.
#[test]
fn links_have_the_bits_of_products_alone() {
    use SmallMBlock::{Eight, Four, Narrow};
    let Some(handle) = decoding() else { return };
    let mut rng = Noise::new(198);
    let cases = [
        (2112, Four, 2, 4),
        (2048, Four, 1, 4),
        (1568, Four, 1, 4),
        (1024, Four, 1, 2),
        (2592, Four, 1, 2),
        (2112, Eight, 2, 2),
        (2112, Narrow, 1, 2),
    ];
    for pair in OWN {
        for (k, block, split, stages) in cases {
            let config = SmallMConfig::new(block, split).unwrap();
            if config.needs_clusters() && !clusters() {
                continue;
            }
            let case = Case::new(DType::F32);
            let mut layers: Vec<_> = (0..3)
                .map(|_| {
                    let both = new(&handle, &mut rng, [1, 264, k], pair);
                    let extras = Extras::new(&handle, &mut rng, 1, 264, &[]);
                    let mut plan = with!(&both, |ops| planned(&handle, &case.desc(ops), config));
                    let want = with!(&both, |ops| execute(&handle, &mut plan, ops, &extras, &case));
                    let output = with!(&both, |ops| Output::new(&handle, ops, &extras, &case));
                    (both, extras, plan, want, output)
                })
                .collect();
            let (graph, own) = stages_of(|| {
                let all = || {
                    handle.chain(|| {
                        layers.iter_mut().try_for_each(|(both, extras, plan, _, output)| {
                            with!(&*both, |ops| plan.execute(&handle, output.args(ops, extras, &case)))
                        })
                    })
                };
                capture_among_others(&handle, all).unwrap()
            });
            // The first follows nothing that is known.
            let expected =
                if on_hopper(&handle) { vec![(stages, false), (stages, true), (stages, true)] } else { vec![] };
            // A capture that another thread's test broke is made anew.
            let own = &own[own.len().saturating_sub(expected.len())..];
            assert_eq!(own, expected, "{pair:?}, k = {k}, {config}");
            for (.., output) in &mut layers {
                output.reset(&handle);
            }
            handle.launch(&graph).unwrap();
            for (.., want, output) in &layers {
                assert!(output.read(&handle, "a link") == *want, "{pair:?}, k = {k}, {config}");
            }
        }
    }
}
