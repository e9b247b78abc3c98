//! Links of E2M1 weights: every block, and the kernels that are links alone.

use scaled_gemm::{CodeOrder, Epilogue};

use super::*;

/// Every block for few rows, whichever the rules choose, with every split in turn.
#[test]
fn every_block_of_e2m1_weights_is_a_link() {
    alone(|| {
        let Some(handle) = hopper() else { return };
        use SmallMBlock::{Eight, Four, Narrow, Sixteen};
        for (m, blocks) in [
            (1, [Four, Narrow, Sixteen, Eight]),
            (16, [Narrow, Four, Narrow, Eight]),
            (8, [Four, Narrow, Sixteen, Eight]),
        ] {
            for kinds in [[By::SmallM(Scheme::Nvfp4)], [By::SmallM(Scheme::Mxfp4)], [By::Repacked(Scheme::Nvfp4)]] {
                // Rows of repacked codes are multiples of 128.
                let n = if matches!(kinds[0], By::Repacked(_)) { 2048 } else { 2112 };
                let mut net = Net::new(&handle, m, n, &kinds, 120, 24);
                net.plan_in(&handle, |i| SmallMConfig::new(blocks[i % 4], [1, 2, 4, 8][i / 4 % 4]).unwrap());
                let words = format!("m = {m}, {kinds:?} in {blocks:?}");
                let want = net.want(&handle);
                let (graph, links) = links_of(|| handle.capture(|| handle.chain(|| net.all(&handle))).unwrap());
                assert_eq!(links, [120, 119], "{words}");
                net.check(&handle, &graph, &want, &words);
            }
        }
    });
}

/// How a link is made, as the crate tells it: configuration, by the kernel of links, weights before its wait one behind the other.
type Made = (SmallMConfig, bool, bool);

/// Columns, length, what is planned, and what the links are on a GPU of 132 multiprocessors.
type Case = ([usize; 2], SmallMConfig, Made);

/// More than one row by the kernels of links, and with weights in turn: parts of k that are even and uneven, end in a step, and have as few steps as all are on their way before the wait, or more. The sum of all before is in the residual.
#[test]
fn links_of_e2m1_weights_have_more_steps_on_their_way() {
    alone(|| {
        let Some(handle) = hopper() else { return };
        use SmallMBlock::{Eight, Four, Narrow};
        let of = |block, split| SmallMConfig::new(block, split).unwrap();
        let (deep, paced) = (|split| (of(Four, split), true, true), |config| (config, false, true));
        let published: [Case; 7] = [
            ([264, 1536], of(Four, 1), deep(1)),
            ([264, 2080], of(Four, 2), deep(2)),
            ([264, 2016], of(Four, 1), deep(1)),
            ([264, 6144], of(Narrow, 1), deep(4)),
            ([264, 6144], of(Four, 2), paced(of(Four, 2))),
            ([264, 5152], of(Eight, 1), paced(of(Four, 2))),
            ([2112, 6144], of(Four, 4), paced(of(Narrow, 1))),
        ];
        let repacked: [Case; 4] = [
            ([264, 1536], of(Four, 1), deep(1)),
            ([264, 2176], of(Four, 2), deep(2)),
            ([264, 2048], of(Eight, 1), deep(2)),
            ([264, 6144], of(Four, 8), deep(8)),
        ];
        let (bf16, f16) = (DType::Bf16, DType::F16);
        for (a, scheme) in [(bf16, Scheme::Nvfp4), (f16, Scheme::Nvfp4Row), (bf16, Scheme::Mxfp4)] {
            for case in &published {
                sums_of_all_before(&handle, (a, scheme, CodeOrder::Published), case);
            }
            for case in repacked.iter().filter(|_| scheme != Scheme::Mxfp4) {
                sums_of_all_before(&handle, (a, scheme, CodeOrder::Repacked), case);
            }
        }
    });
}

fn sums_of_all_before(
    handle: &Handle,
    (a_type, scheme, order): (DType, Scheme, CodeOrder),
    ([n, k], config, made): &Case,
) {
    const LAYERS: usize = 12;
    let (n, k, mut rng) = (*n, *k, Noise::new(203));
    let noise: Vec<f32> = (0..n * k + 8 * LAYERS).map(|_| rng.normal()).collect();
    let noise = handle.stream().clone_htod(&bytes_of(DType::Bf16, &noise)).unwrap();
    let weights: Vec<_> = (0..LAYERS)
        .map(|i| {
            let x = MatRef::new(noise.slice(i * 16..i * 16 + n * k * 2), DType::Bf16, n, k).unwrap();
            let mut b = handle.quantize(&x, Recipe::new(scheme)).unwrap();
            b.repack(handle, order).unwrap();
            b
        })
        .collect();
    for m in [2, 8, 9, 16] {
        let words = format!("{m} x {n} x {k}, {a_type} x {scheme} {order}, {config}");
        let x: Vec<f32> = (0..m * k).map(|_| rng.normal()).collect();
        let x = handle.upload(&bytes_of(a_type, &x)).unwrap();
        let x = || MatRef::new(&x, a_type, m, k).unwrap();
        let desc = GemmDesc::new(m, n, k, Operand::Plain(a_type), scheme, DType::Bf16).with_b_order(order);
        let desc = desc.with_epilogue(Epilogue { residual: Some(DType::Bf16), ..Default::default() });
        let mut plan = small_m_weights::planned(handle, &desc, *config);
        plan.prepare(handle, &weights[0]).unwrap();
        let mut values: Vec<_> = (0..=LAYERS).map(|_| handle.alloc(m * n * 2).unwrap()).collect();
        let zeros = vec![0; m * n * 2];
        let mut sums = |values: &mut [DeviceBuffer]| {
            (0..LAYERS).try_for_each(|i| {
                let (residual, d) = in_and_out(values, i);
                let (residual, d) = (MatRef::new(residual, DType::Bf16, m, n)?, MatMut::new(d, DType::Bf16, m, n)?);
                let args = GemmArgs::weight_only(x(), &weights[i], d).residual(residual);
                plan.execute(handle, args.alpha(1.0 / ((k * LAYERS) as f32).sqrt()))
            })
        };
        reset(handle, &mut values, &zeros);
        sums(&mut values).unwrap();
        let want = read(handle, &values);
        assert!(values_of(DType::Bf16, &want[LAYERS]).iter().any(|v| v.abs() > 0.1), "{words}: compares nothing");
        let (graph, events) =
            told::told("kernels::small_m", || handle.capture(|| handle.chain(|| sums(&mut values))).unwrap());
        let links: Vec<_> = events.iter().filter(|fields| fields.contains_key("loads_early")).collect();
        // The first follows nothing that is known.
        let early = links.iter().filter(|link| link["loads_early"] == "true").count();
        assert_eq!([links.len(), early], [LAYERS, LAYERS - 1], "{words}");
        if handle.device().sm_count == 132 {
            let (config, deep, paced) = made;
            let expected = [config.to_string(), deep.to_string(), paced.to_string()];
            for link in links {
                assert_eq!(["config", "deep", "paced"].map(|field| link[field].clone()), expected, "{words}");
            }
        }
        check(handle, &graph, &mut values, &zeros, &want, &words);
    }
}
