//! Links of FP8: every block and count of stages, blocks that lie unevenly or come in rounds, links that follow one another at once.

use super::*;

/// Chains of every block of FP8, and of parts of k that have no stage, one, as many as the ring has and more: weights of the first stages come in groups of copies of their own, and some of them in turn.
#[test]
fn every_block_of_fp8_is_a_link() {
    alone(|| {
        let Some(handle) = hopper() else { return };
        use SmallMBlock::{One, OneDeep, Two};
        let rows = (Scheme::Fp8Row(E4M3), Scheme::Fp8Row(E4M3));
        // 9, 17, 32 and 48 times 128 of k.
        let cases = [
            (1152, [(Two, 8), (OneDeep, 8), (One, 8), (Two, 4)]),
            (2112, [(One, 8), (OneDeep, 4), (Two, 4), (Two, 8)]),
            (4096, [(One, 8), (OneDeep, 2), (Two, 2), (Two, 8)]),
            (6144, [(One, 8), (Two, 8), (One, 4), (Two, 8)]),
        ];
        for (n, configs) in cases {
            for (m, (a, b)) in [(1, BLOCKS), (16, BLOCKS), (8, rows), (20, BLOCKS)] {
                let mut net = Net::new(&handle, m, n, &[By::Quantized(a, b)], 120, 24);
                net.plan_in(&handle, |i| {
                    let (block, split) = configs[i % 4];
                    SmallMConfig::new(block, split).unwrap()
                });
                let words = format!("m = {m}, n = {n}, {b}");
                let want = net.want(&handle);
                let (graph, links) = links_of(|| handle.capture(|| handle.chain(|| net.all(&handle))).unwrap());
                // The first quantizer follows nothing that is known.
                assert_eq!(links, [120, 119], "{words}");
                net.check(&handle, &graph, &want, &words);
            }
        }
    });
}

/// What is planned for chains is launched as planned there, and outside of them too, to the same bits, whatever the arguments say of the place; and by whoever asks for it without a plan.
#[test]
fn plans_for_chains_serve_calls_at_any_place() {
    alone(|| {
        let Some(handle) = hopper() else { return };
        // Of which the rules choose other parts of k than alone.
        let cases = [(16, 9216, By::Quantized(BLOCKS.0, BLOCKS.1)), (2, 5120, By::SmallM(Scheme::Nvfp4))];
        for (m, n, kind) in cases {
            let mut net = Net::new(&handle, m, n, &[kind], 60, 8);
            for layer in &mut net.layers {
                layer.plan = handle.plan(&layer.plan.desc().with_chained(true)).unwrap();
                layer.plan.prepare(&handle, &layer.b).unwrap();
            }
            let chained = net.layers[0].plan.explain();
            assert!(chained.contains(", chained on "), "{chained}");
            let alone = handle.plan(&net.layers[0].plan.desc().with_chained(false)).unwrap().explain();
            let algorithm = |text: &str| text.lines().find(|line| line.contains("algorithm: ")).map(str::to_string);
            if handle.device().sm_count == 132 {
                assert_ne!(algorithm(&alone), algorithm(&chained), "{chained}");
            }
            let words = format!("{m} x {n} x {n}, {kind:?}");
            let want = net.want(&handle);
            let (graph, links) = links_of(|| handle.capture(|| handle.chain(|| net.all(&handle))).unwrap());
            assert_eq!(links, [60, 59], "{words}");
            net.check(&handle, &graph, &want, &words);
            // The first product, by its problem.
            net.reset(&handle);
            net.quantize(&handle, 0).unwrap();
            let Net { values, a, layers, .. } = &mut net;
            let (x, d) = in_and_out(values, 0);
            let (x, d) = (MatRef::new(x, DType::Bf16, m, n).unwrap(), MatMut::new(d, DType::Bf16, m, n).unwrap());
            let args = match a {
                Some(a) => GemmArgs::new(a, &layers[0].b, d),
                None => GemmArgs::weight_only(x, &layers[0].b, d),
            };
            let args = args.alpha(1.0 / (n as f32).sqrt()).chained(true);
            assert_eq!(args.desc().unwrap(), *layers[0].plan.desc());
            handle.scaled_gemm(args).unwrap();
            assert!(net.read(&handle)[1] == want[1], "{words}: without a plan");
        }
    });
}

/// Parts of k of three to seven stages, one each, in rings that are not filled, filled, and filled once more: of few columns, to which alone blocks of two warpgroups with so few of them are given. The sum of all before is in
/// the residual.
#[test]
fn fp8_links_of_few_columns_and_stages() {
    alone(|| {
        let Some(handle) = hopper() else { return };
        use SmallMBlock::{OneDeep, Two};
        const LAYERS: usize = 24;
        let (n, (a, b)) = (576, BLOCKS);
        let configs = [(Two, 8), (OneDeep, 8)].map(|(block, split)| SmallMConfig::new(block, split).unwrap());
        let mut rng = Noise::new(202);
        // 3.5, 4.5, 5.5 and 6.5 stages in each of 16 parts, and 4 to 7 deep ones in each of eight.
        for k in [7168, 9216, 11264, 13312] {
            let noise: Vec<f32> = (0..n * k + 8 * LAYERS).map(|_| rng.normal()).collect();
            let noise = handle.stream().clone_htod(&bytes_of(DType::Bf16, &noise)).unwrap();
            let weights: Vec<_> = (0..LAYERS)
                .map(|i| {
                    let x = MatRef::new(noise.slice(i * 16..i * 16 + n * k * 2), DType::Bf16, n, k).unwrap();
                    handle.quantize(&x, Recipe::new(b)).unwrap()
                })
                .collect();
            for m in [1, 8, 9, 16, 17, 32] {
                let x: Vec<f32> = (0..m * k).map(|_| rng.normal()).collect();
                let x = handle.upload(&bytes_of(DType::Bf16, &x)).unwrap();
                let x = handle.quantize(&MatRef::new(&x, DType::Bf16, m, k).unwrap(), Recipe::new(a)).unwrap();
                let desc = GemmDesc::new(m, n, k, a, b, DType::Bf16);
                let desc =
                    desc.with_epilogue(scaled_gemm::Epilogue { residual: Some(DType::Bf16), ..Default::default() });
                let mut plans = configs.map(|config| small_m_weights::planned(&handle, &desc, config));
                plans.iter_mut().for_each(|plan| plan.prepare(&handle, &weights[0]).unwrap());
                let mut values: Vec<_> = (0..=LAYERS).map(|_| handle.alloc(m * n * 2).unwrap()).collect();
                let zeros = vec![0; m * n * 2];
                let mut sums = |values: &mut [DeviceBuffer]| {
                    (0..LAYERS).try_for_each(|i| {
                        let (residual, d) = in_and_out(values, i);
                        let (residual, d) =
                            (MatRef::new(residual, DType::Bf16, m, n)?, MatMut::new(d, DType::Bf16, m, n)?);
                        let args = GemmArgs::new(&x, &weights[i], d).residual(residual);
                        plans[i % 2].execute(&handle, args.alpha(1.0 / ((k * LAYERS) as f32).sqrt()))
                    })
                };
                reset(&handle, &mut values, &zeros);
                sums(&mut values).unwrap();
                let want = read(&handle, &values);
                assert!(values_of(DType::Bf16, &want[LAYERS]).iter().any(|v| v.abs() > 0.1), "compares nothing");
                let (graph, links) = links_of(|| handle.capture(|| handle.chain(|| sums(&mut values))).unwrap());
                assert_eq!(links, [LAYERS, LAYERS - 1], "m = {m}, k = {k}");
                check(&handle, &graph, &mut values, &zeros, &want, &format!("m = {m}, k = {k}"));
            }
        }
    });
}

/// Links whose blocks lie on the multiprocessors unevenly, or come in rounds, in the configuration that such have there (of an H200 or an H100 with 132 multiprocessors; on others they are checked alone).
#[test]
fn fp8_links_of_uneven_blocks_and_of_rounds() {
    alone(|| {
        let Some(handle) = hopper() else { return };
        use SmallMBlock::{One, OneDeep, Two};
        let of = |(block, split): (SmallMBlock, u32)| SmallMConfig::new(block, split).unwrap();
        let rounds = ((OneDeep, 8), (One, 8));
        let uneven = [((One, 4), (OneDeep, 4)), ((One, 2), (OneDeep, 2)), ((One, 8), (One, 8)), rounds];
        let cases = [
            (1, 4096, vec![rounds]),
            (1, 5120, uneven.to_vec()),
            (16, 5120, uneven.to_vec()),
            (8, 6144, vec![((One, 4), (Two, 2)), ((One, 8), (One, 8))]),
            (16, 6144, vec![((One, 4), (Two, 2)), ((One, 8), (One, 8))]),
        ];
        for (m, n, configs) in cases {
            let mut net = Net::new(&handle, m, n, &[By::Quantized(BLOCKS.0, BLOCKS.1)], 60, 8);
            net.plan_in(&handle, |i| of(configs[i % configs.len()].0));
            let want = net.want(&handle);
            let (graph, events) =
                told::told("kernels::small_m", || handle.capture(|| handle.chain(|| net.all(&handle))).unwrap());
            let links: Vec<_> = events.iter().filter_map(|fields| fields.get("config").cloned()).collect();
            assert_eq!(links.len(), net.layers.len(), "m = {m}, n = {n}");
            if handle.device().sm_count == 132 {
                let expected = configs.iter().cycle().map(|(_, link)| of(*link).to_string());
                assert_eq!(links, expected.take(links.len()).collect::<Vec<_>>(), "m = {m}, n = {n}");
            }
            net.check(&handle, &graph, &want, &format!("m = {m}, n = {n}"));
        }
    });
}

/// Products of FP8 that follow each other at once, as of one activation with several matrices, the sum of all before in the residual.
#[test]
fn fp8_products_that_follow_one_another() {
    alone(|| {
        let Some(handle) = hopper() else { return };
        for (m, a, b) in [
            (1, Scheme::Fp8Group1x128(E4M3), Scheme::Fp8Group128x128(E4M3)),
            (16, Scheme::Fp8Group1x128(E4M3), Scheme::Fp8Group128x128(E4M3)),
            (32, Scheme::Fp8Row(E4M3), Scheme::Fp8Row(E4M3)),
            (5, Scheme::Fp8Tensor(E4M3), Scheme::Fp8Tensor(E4M3)),
        ] {
            let mut net = Net::new(&handle, m, 4096, &[By::Quantized(a, b)], 200, 16);
            let a = net.a.take().unwrap();
            net.reset(&handle);
            let mut a = a;
            let x = MatRef::new(&net.values[0], DType::Bf16, m, net.n).unwrap();
            handle.quantize_into(&x, Recipe::new(a.scheme()), QuantizeTo::Plain(&mut a)).unwrap();
            let (n, count) = (net.n, net.layers.len());
            for layer in &mut net.layers {
                let desc = GemmDesc::new(m, n, n, a.scheme(), b, DType::Bf16);
                let desc =
                    desc.with_epilogue(scaled_gemm::Epilogue { residual: Some(DType::Bf16), ..Default::default() });
                let options = PlanOptions::default().with_formulation(Formulation::SmallM);
                layer.plan = handle.plan_with(&desc, &options).unwrap();
                layer.plan.prepare(&handle, &layer.b).unwrap();
            }
            let sums = |net: &mut Net| {
                (0..count).try_for_each(|i| {
                    let (residual, d) = in_and_out(&mut net.values, i);
                    let (residual, d) = (MatRef::new(residual, DType::Bf16, m, n)?, MatMut::new(d, DType::Bf16, m, n)?);
                    let Layer { b, plan } = &mut net.layers[i];
                    // As many terms as there are layers.
                    let alpha = 1.0 / ((n * count) as f32).sqrt();
                    plan.execute(&handle, GemmArgs::new(&a, b, d).residual(residual).alpha(alpha))
                })
            };
            sums(&mut net).unwrap();
            let want = net.read(&handle);
            let (graph, links) = links_of(|| handle.capture(|| handle.chain(|| sums(&mut net))).unwrap());
            assert_eq!(links, [count, count - 1]);
            net.check(&handle, &graph, &want, &format!("m = {m}, {b}"));
        }
    });
}
