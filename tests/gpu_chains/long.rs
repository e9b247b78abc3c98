//! A hundred thousand links, and the reference at their end.

use ndarray::Array2;
use scaled_gemm::reference::{self, Accumulator, Gelu, GemmInputs, HostOperand, SumBound};
use scaled_gemm::{DType, Fp8Format, Handle, Recipe, Scheme, SmallMBlock, SmallMConfig};

use super::hazards::alone;
use super::net::*;
use super::told;
use crate::common::*;

const E4M3: Fp8Format = Fp8Format::E4M3;
const LINKS: usize = 240;
const PRODUCTS: usize = 100_000;

/// Small, for runs under a sanitizer: a few links of each kind, launched once.
#[test]
fn each_link_once() {
    alone(|| {
        let Some(handle) = hopper() else { return };
        let blocks = By::Quantized(Scheme::Fp8Group1x128(E4M3), Scheme::Fp8Group128x128(E4M3));
        let rows = By::Quantized(Scheme::Fp8Row(E4M3), Scheme::Fp8Row(E4M3));
        let [nvfp4, repacked, mxfp4] =
            [By::SmallM(Scheme::Nvfp4), By::Repacked(Scheme::Nvfp4), By::SmallM(Scheme::Mxfp4)];
        let [mut all, mut deep] = [0; 2];
        // Of three steps, by the kernels of links.
        let four = Some(SmallMConfig::new(SmallMBlock::Four, 1).unwrap());
        let cases = [
            (1, 1024, &[nvfp4, repacked, mxfp4][..], None),
            (16, 1024, &[repacked, mxfp4], None),
            (1, 1024, &[blocks], None),
            (16, 1024, &[rows], None),
            (2, 1536, &[nvfp4, repacked, mxfp4], four),
            (16, 1536, &[nvfp4, repacked, mxfp4], four),
        ];
        for (m, n, kinds, config) in cases {
            let mut net = Net::new(&handle, m, n, kinds, 6, 2);
            if let Some(config) = config {
                net.plan_in(&handle, |_| config);
            }
            let want = net.want(&handle);
            let (graph, events) =
                told::told("kernels::small_m", || handle.capture(|| handle.chain(|| net.all(&handle))).unwrap());
            net.reset(&handle);
            handle.launch(&graph).unwrap();
            assert!(net.read(&handle) == want, "m = {m}, {kinds:?}");
            let links = |field| events.iter().filter(|fields| fields.get(field).is_some_and(|is| is == "true")).count();
            (all, deep) = (all + links("loads_early"), deep + links("deep"));
        }
        assert!(all >= 30 && deep >= 8, "{all} links with weights before their wait, {deep} by kernels of links");
    });
}

/// Launches of a chain of 240 links, one behind the other, until a hundred thousand products have run: what the last layer stored is its product, by the f64 bound of what went into
/// it, and all of it has the bits of products one after the other. Two buffers take turns: what a link reads before the one before it has stored is of another layer. Every other launch has
/// other numbers, so that what is left of the launch before is wrong, too.
#[test]
fn a_hundred_thousand_links() {
    alone(|| {
        let Some(handle) = hopper() else { return };
        let blocks = By::Quantized(Scheme::Fp8Group1x128(E4M3), Scheme::Fp8Group128x128(E4M3));
        let rows = By::Quantized(Scheme::Fp8Row(E4M3), Scheme::Fp8Row(E4M3));
        let cases: [(usize, &[By]); 6] = [
            (1, &[By::SmallM(Scheme::Nvfp4)]),
            (16, &[By::SmallM(Scheme::Nvfp4), By::SmallM(Scheme::Mxfp4)]),
            (1, &[By::Repacked(Scheme::Nvfp4)]),
            (16, &[By::Repacked(Scheme::Nvfp4), By::Repacked(Scheme::Nvfp4Row)]),
            (1, &[blocks]),
            (16, &[rows]),
        ];
        for (m, kinds) in cases {
            let words = format!("m = {m}, {kinds:?}");
            let mut net = Net::new(&handle, m, 4096, kinds, LINKS, 24 / kinds.len());
            net.values.truncate(2);
            let other: Vec<f32> = values_of(DType::Bf16, &net.x).iter().map(|v| -v).collect();
            let inputs = [net.x.clone(), bytes_of(DType::Bf16, &other)];
            let [of_other, want] = [1, 0].map(|input| {
                net.x.clone_from(&inputs[input]);
                net.want(&handle)
            });
            assert!(of_other != want, "{words}: other numbers, same results");
            let (graph, links) = links_of(|| handle.capture(|| handle.chain(|| net.all(&handle))).unwrap());
            assert_eq!(
                links,
                [LINKS, LINKS - 1],
                "{words}: the first quantizer or product follows nothing that is known"
            );
            let launches = PRODUCTS.div_ceil(LINKS);
            net.reset(&handle);
            for launch in 0..launches {
                let input = &inputs[(launches - 1 - launch) % 2];
                handle.write(&mut net.values[0].view_mut(), input).unwrap();
                handle.launch(&graph).unwrap();
            }
            let got = net.read(&handle);
            let wrong = got.iter().zip(&want).position(|(got, want)| got != want);
            assert_eq!(wrong, None, "{words}: the buffer that differs behind {launches} launches");
            check_last(&handle, &net, &got, &words);
        }
    });
}

/// What the last layer stored is its product, by what lies in the two buffers.
fn check_last(handle: &Handle, net: &Net, values: &[Vec<u8>], words: &str) {
    let (m, n, last) = (net.m, net.n, net.layers.len() - 1);
    let matrix = |i: usize| Array2::from_shape_vec((m, n), values_of(DType::Bf16, &values[i % 2])).unwrap();
    let (x, d) = (matrix(last), matrix(last + 1));
    let b = net.layers[last].b.to_host(handle).unwrap();
    let a = net.a.as_ref().map(|a| {
        let found = a.to_host(handle).unwrap();
        let want = reference::quantize(x.view(), DType::Bf16, Recipe::new(a.scheme())).unwrap();
        assert_same_bits(&found, &want, words);
        found
    });
    let (operand, accumulator) = match &a {
        Some(a) => (HostOperand::Quantized(a), Accumulator::TensorCorePromoted),
        None => (HostOperand::Plain(x.view(), DType::Bf16), Accumulator::TensorCoreWide),
    };
    let inputs = GemmInputs { alpha: 1.0 / (n as f32).sqrt(), ..GemmInputs::new(operand, &b, DType::Bf16) };
    let bound = SumBound::new(inputs.a, &b, accumulator).with(&inputs, Gelu::Ieee).unwrap();
    let worst = bound.check(d.view()).unwrap_or_else(|e| panic!("{words}: {e}"));
    println!("{words}: largest error {worst:.3} of its tolerance");
}
