//! Chains: products of few rows that begin before the one before them has ended give the bits that they give one after the other, in graphs
//! launched again and again; what is not ours comes behind all of a chain, inside and at its end, however it ends; streams of one capture have a chain
//! each; weights that were just written are not read too early.
//!
//! Each test runs in a process of its own (`hazards::alone`): what loads kernels breaks the captures of others.
#![cfg(feature = "cuda")]

mod common;
#[path = "gpu_chains/e2m1.rs"]
mod e2m1;
#[path = "common/foreign.rs"]
mod foreign;
#[path = "gpu_chains/fp8.rs"]
mod fp8;
#[path = "common/hazards.rs"]
mod hazards;
#[path = "gpu_chains/long.rs"]
mod long;
#[path = "gpu_chains/net.rs"]
mod net;
#[allow(dead_code, unused_imports, unused_macros, reason = "what is for other suites")]
#[path = "common/small_m_weights.rs"]
mod small_m_weights;
#[path = "common/told.rs"]
mod told;

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};

use common::{Noise, bytes_of, values_of};
use foreign::*;
use hazards::alone;
use net::*;
use scaled_gemm::cudarc::driver::DevicePtr;
use scaled_gemm::cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as THREAD_LOCAL;
use scaled_gemm::{
    BorrowsOutliveGraph, DType, DeviceBuffer, Error, Formulation, Fp8Format, GemmArgs, GemmDesc, Handle, MatMut,
    MatRef, Operand, PlanOptions, QuantMatrix, QuantizeTo, Recipe, Scheme, SmallMBlock, SmallMConfig,
};

const E4M3: Fp8Format = Fp8Format::E4M3;
/// What cuBLASLt multiplies with 1x128 scales.
const BLOCKS: (Scheme, Scheme) = (Scheme::Fp8Group1x128(E4M3), Scheme::Fp8Group128x128(E4M3));

/// Hundreds of links, of every kernel for few rows: each has what the link before stored, and reads it behind its wait.
#[test]
fn chains_give_the_bits_of_products_one_after_the_other() {
    alone(|| {
        let Some(handle) = hopper() else { return };
        let cases: [(usize, &[By]); 7] = [
            (1, &[By::SmallM(Scheme::Nvfp4)]),
            (1, &[By::Repacked(Scheme::Nvfp4)]),
            (16, &[By::Repacked(Scheme::Nvfp4Row), By::SmallM(Scheme::Nvfp4)]),
            (16, &[By::SmallM(Scheme::Nvfp4), By::SmallM(Scheme::Mxfp4)]),
            (33, &[By::SmallM(Scheme::Nvfp4Row)]),
            (1, &[By::Quantized(Scheme::Fp8Group1x128(E4M3), Scheme::Fp8Group128x128(E4M3))]),
            (16, &[By::Quantized(Scheme::Fp8Row(E4M3), Scheme::Fp8Row(E4M3))]),
        ];
        for (m, kinds) in cases {
            // 24 matrices of 4096 x 4096 come from memory at each use.
            let mut net = Net::new(&handle, m, 4096, kinds, 240, 24 / kinds.len());
            let words = format!("m = {m}, {} x {}", net.layers[0].b.scheme(), kinds.len());
            let want = net.want(&handle);
            let (graph, [links, early]) = links_of(|| handle.capture(|| handle.chain(|| net.all(&handle))).unwrap());
            net.check(&handle, &graph, &want, &words);
            // The first quantizer follows nothing that is known.
            let all = if m > 16 { [0; 2] } else { [240, 239] };
            assert_eq!([links, early], all, "{words}: tiles are no links");
            // Outside of a graph, and in a graph without the scope, nothing is a link.
            let (_, none) = links_of(|| {
                handle.chain(|| net.all(&handle)).unwrap();
                handle.capture(|| net.all(&handle)).unwrap()
            });
            assert_eq!(none, [0; 2], "{words}");
            drop(graph);
            // The same memory again and again, as engines use it: no cache holds what was there before.
            net.values.truncate(2);
            let want = net.want(&handle);
            let graph = handle.capture(|| handle.chain(|| net.all(&handle))).unwrap();
            net.check(&handle, &graph, &want, &format!("{words}, two buffers"));
        }
    });
}

/// A product of cuBLASLt reads what the link before it stores, a product or a quantizer, inside the scope and right behind it.
#[test]
fn the_library_comes_behind_all_links() {
    alone(|| {
        let Some(handle) = hopper() else { return };
        let plain = [By::SmallM(Scheme::Nvfp4), By::SmallM(Scheme::Nvfp4), By::Library];
        let native =
            [By::Quantized(BLOCKS.0, BLOCKS.1), By::Native(BLOCKS.0, BLOCKS.1), By::Native(BLOCKS.0, BLOCKS.1)];
        for (m, kinds) in [(1, plain), (16, plain), (1, native), (16, native)] {
            let mut net = Net::new(&handle, m, 4096, &kinds, 120, 8);
            let want = net.want(&handle);
            let (inside, links) = links_of(|| handle.capture(|| handle.chain(|| net.all(&handle))).unwrap());
            assert_eq!(
                links,
                if kinds == plain { [80, 40] } else { [40, 0] },
                "what is behind the library follows none"
            );
            net.check(&handle, &inside, &want, "inside");
            let behind = handle.capture(|| {
                (0..40).map(|i| 3 * i).try_for_each(|i| {
                    handle.chain(|| {
                        net.layer(&handle, i)?;
                        net.quantize(&handle, i + 1)?;
                        if kinds == plain { net.product(&handle, i + 1) } else { Ok(()) }
                    })?;
                    if kinds == native {
                        net.product(&handle, i + 1)?;
                        handle.chain(|| net.quantize(&handle, i + 2))?;
                    }
                    net.product(&handle, i + 2)
                })
            });
            net.check(&handle, &behind.unwrap(), &want, "behind");
            // A capture inside the scope ends as the scope does, and so does the scope itself, before eager calls.
            let captured = handle.chain(|| handle.capture(|| net.all(&handle))).unwrap();
            net.check(&handle, &captured, &want, "a graph captured in a scope");
        }
    });
}

/// What is enqueued into a capture.
type Work<'a> = &'a dyn Fn() -> Result<(), Error>;

/// Leaves a scope by an error or a panic, behind this work.
fn leave(handle: &Handle, panics: bool, work: impl FnOnce() -> Result<(), Error>) {
    let left = catch_unwind(AssertUnwindSafe(|| {
        handle.chain(|| {
            work()?;
            if panics {
                std::panic::panic_any("left");
            }
            Err::<(), _>(Error::NoGpu { reason: "left".into(), remedy: String::new() })
        })
    }));
    match left {
        Ok(left) => assert!(!panics && matches!(left, Err(Error::NoGpu { .. })), "{left:?}"),
        Err(_) => assert!(panics),
    }
}

/// A scope that is left by an error, or by a panic, ends as any other.
#[test]
fn a_scope_ends_however_it_is_left() {
    alone(|| {
        let Some(handle) = hopper() else { return };
        let mut net = Net::new(&handle, 1, 4096, &[By::SmallM(Scheme::Nvfp4), By::Library], 80, 8);
        let want = net.want(&handle);
        for panics in [false, true] {
            let graph = handle.capture(|| {
                (0..40).try_for_each(|i| {
                    leave(&handle, panics, || net.layer(&handle, 2 * i));
                    net.layer(&handle, 2 * i + 1)
                })
            });
            net.check(&handle, &graph.unwrap(), &want, if panics { "panic" } else { "error" });
            // Outside of scopes nothing is a link any more.
            assert_eq!(links_of(|| handle.capture(|| net.all(&handle)).map(drop)).1, [0; 2]);
        }
    });
}

/// Where chains end, by the nodes of graphs: captures of cudarc's end nothing themselves, so that whatever others enqueued behind the last call would come
/// behind these nodes alone. Without an end bits would be wrong only where a race shows.
#[test]
fn an_end_is_enqueued_behind_the_scope_and_before_what_is_not_ours() {
    alone(|| {
        let Some(handle) = hopper() else { return };
        let (m, n) = (16, 2048);
        // Two links each, quantizer and product; quantizer and cuBLASLt.
        let kinds = [By::Quantized(BLOCKS.0, BLOCKS.1), By::Native(BLOCKS.0, BLOCKS.1)];
        let net = RefCell::new(Net::new(&handle, m, n, &kinds, 6, 3));
        net.borrow_mut().want(&handle);
        let other = Handle::from_stream(handle.stream().clone()).unwrap();
        let of_other = RefCell::new(Net::new(&other, m, n, &kinds[1..], 1, 1));
        of_other.borrow_mut().want(&other);
        let layer = |i| net.borrow_mut().layer(&handle, i);
        let count = |work: Work<'_>| nodes(&foreign(&handle, THREAD_LOCAL, work));
        let links = || [0, 2, 4].into_iter().try_for_each(layer);
        assert_eq!(count(&links), 6);
        assert_eq!(count(&|| handle.chain(links)), 7, "an end behind the scope");
        let quantizer = || net.borrow_mut().quantize(&handle, 0);
        assert_eq!(count(&|| handle.chain(quantizer)), 2, "an end behind a quantizer");
        let inner = || handle.chain(|| handle.chain(|| layer(0)).and_then(|()| layer(2)));
        assert_eq!(count(&inner), 5, "a scope inside of another ends nothing");
        for panics in [false, true] {
            let left = || {
                leave(&handle, panics, || layer(0));
                Ok(())
            };
            assert_eq!(count(&left), 3, "an end behind a scope that is left, by a panic: {panics}");
        }
        // A product of the library, behind a product or a quantizer, and memory that the driver sets to zero.
        let x = handle.upload(&vec![0u8; m * n * 2]).unwrap();
        let amax = RefCell::new(handle.alloc(m * 4).unwrap());
        let cleared = || {
            let x = MatRef::new(&x, DType::Bf16, m, n)?;
            handle.row_amax_into(&x, &mut amax.borrow_mut().view_mut())
        };
        cleared().unwrap();
        let library = || net.borrow_mut().product(&handle, 1);
        let quantized = || layer(1);
        let by_other = || of_other.borrow_mut().product(&other, 0);
        let others: [(&str, Work<'_>); 4] = [
            ("cuBLASLt behind a product", &library),
            ("cuBLASLt behind a quantizer", &quantized),
            ("cuBLASLt by another handle of the stream", &by_other),
            ("a clear", &cleared),
        ];
        for (what, other) in others {
            let between = || layer(0).and_then(|()| other()).and_then(|()| layer(2));
            assert_eq!(count(&|| handle.chain(between)), count(&between) + 2, "{what} between two links");
        }
    });
}

/// Two handles on one stream: one has the scope, the other enqueues a product of cuBLASLt in it. And two on two streams, each with its own.
#[test]
fn two_handles() {
    alone(|| {
        let Some(handle) = hopper() else { return };
        let other = Handle::from_stream(handle.stream().clone()).unwrap();
        let kinds = [By::SmallM(Scheme::Nvfp4), By::Library];
        let net = RefCell::new(Net::new(&handle, 1, 4096, &kinds[..1], 80, 8));
        let library = Net::new(&other, 1, 4096, &kinds[1..], 80, 8);
        net.borrow_mut()
            .layers
            .iter_mut()
            .zip(library.layers)
            .skip(1)
            .step_by(2)
            .for_each(|(ours, theirs)| *ours = theirs);
        let all = |net: &mut Net| {
            (0..net.layers.len()).try_for_each(|i| net.layer(if i % 2 == 0 { &handle } else { &other }, i))
        };
        net.borrow_mut().reset(&handle);
        all(&mut net.borrow_mut()).unwrap();
        let want = net.borrow().read(&handle);
        // SAFETY: all that the graph uses lives to the end of this test.
        let promise = unsafe { BorrowsOutliveGraph::promise() };
        let (graph, links) =
            links_of(|| handle.capture_borrowing(promise, || handle.chain(|| all(&mut net.borrow_mut()))).unwrap());
        assert_eq!(links, [40, 0]);
        net.borrow_mut().check(&handle, &graph, &want, "two handles on a stream");

        std::thread::scope(|scope| {
            for m in [1, 16] {
                scope.spawn(move || {
                    let handle = Handle::new(0).unwrap();
                    let mut net = Net::new(&handle, m, 2048, &[By::SmallM(Scheme::Nvfp4)], 200, 24);
                    let want = net.want(&handle);
                    // Another thread's first use of a kernel may break a capture: then it is made again.
                    let graph = (0..5).find_map(|_| handle.capture(|| handle.chain(|| net.all(&handle))).ok());
                    net.check(&handle, &graph.unwrap(), &want, "two handles on two streams");
                });
            }
        });
    });
}

/// Two streams that are captured into one graph have a chain each: what one enqueues ends none of the other's, and takes no end from it. (Work of any
/// kind on the one took the end of the other's chain: what came behind that, cuBLASLt or what others enqueued, followed a kernel that had released.)
#[test]
fn streams_of_one_capture_have_chains_of_their_own() {
    alone(|| {
        let Some(first) = hopper() else { return };
        let handles = hazards::two_handles(first);
        let [one, two] = &handles;
        let (links, library) = (By::Quantized(BLOCKS.0, BLOCKS.1), By::Native(BLOCKS.0, BLOCKS.1));
        let new = |handle: &Handle| RefCell::new(Net::new(handle, 16, 4096, &[links, links, library], 30, 8));
        let nets = handles.each_ref().map(new);
        let want = [0, 1].map(|s| nets[s].borrow_mut().want(&handles[s]));
        let capture = |work: Work<'_>| {
            foreign(one, THREAD_LOCAL, || {
                two.stream().join(one.stream()).unwrap();
                let enqueued = work();
                one.stream().join(two.stream()).unwrap();
                enqueued
            })
        };
        // With the scopes, or without.
        let scoped = Cell::new(true);
        let chain = |s: usize, work: Work<'_>| {
            if scoped.get() { handles[s].chain(work) } else { work() }
        };
        let quantize = |s: usize, i| nets[s].borrow_mut().quantize(&handles[s], i);
        let product = |s: usize, i| nets[s].borrow_mut().product(&handles[s], i);
        let layer = |s: usize, i| quantize(s, i).and_then(|()| product(s, i));
        // One kernel of ours, which is no link.
        let x = two.upload(&vec![0u8; 64 * 2048 * 2]).unwrap();
        let q = RefCell::new(QuantMatrix::zeros(two, Scheme::Nvfp4Row, 64, 2048).unwrap());
        let quantizer = || {
            let x = MatRef::new(&x, DType::Bf16, 64, 2048)?;
            two.quantize_into(&x, Recipe::new(Scheme::Nvfp4Row), QuantizeTo::Plain(&mut q.borrow_mut()))
        };
        quantizer().unwrap();
        two.synchronize().unwrap();
        let kernel = || chain(0, &|| layer(0, 0).and_then(|()| quantizer()));
        let links = || chain(0, &|| layer(0, 0).and_then(|()| chain(1, &|| layer(1, 0))));
        let library = || chain(0, &|| layer(0, 0).and_then(|()| layer(1, 2)));
        let library_here = || chain(0, &|| layer(0, 0).and_then(|()| quantizer()).and_then(|()| product(0, 2)));
        let alternate = || {
            let each = |i| {
                quantize(0, i).and_then(|()| quantize(1, i)).and_then(|()| product(0, i)).and_then(|()| product(1, i))
            };
            chain(0, &|| chain(1, &|| (0..30).try_for_each(each)))
        };
        let cases: [(&str, usize, Work<'_>); 5] = [
            ("a kernel of the other stream", 1, &kernel),
            ("a link of the other stream, each with an end", 2, &links),
            ("cuBLASLt on the other stream", 1, &library),
            ("a kernel of the other stream, then cuBLASLt on this one", 1, &library_here),
            ("both in turns", 20, &alternate),
        ];
        for (what, ends, work) in cases {
            let counts = [true, false].map(|with| {
                scoped.set(with);
                nodes(&capture(work))
            });
            assert_eq!(counts[0], counts[1] + ends, "{what}: nodes with the scopes, and without");
        }
        // Where the end stands the count does not tell: a link behind the library's product of the other stream still follows the one before it.
        scoped.set(true);
        let between = || chain(0, &|| layer(0, 0).and_then(|()| layer(1, 2)).and_then(|()| layer(0, 1)));
        assert_eq!(links_of(|| capture(&between)).1, [2, 1], "the library on the other stream ends this chain");
        let (graph, links) = links_of(|| capture(&alternate));
        assert_eq!(links, [40, 20], "the second link of each three follows the first of its stream");
        for launch in 0..5 {
            for (s, handle) in handles.iter().enumerate() {
                nets[s].borrow_mut().reset(handle);
                handle.synchronize().unwrap();
            }
            graph.launch().unwrap();
            one.synchronize().unwrap();
            for (s, handle) in handles.iter().enumerate() {
                assert!(nets[s].borrow().read(handle) == want[s], "stream {s}, launch {launch}");
            }
        }
    });
}

/// Who writes the codes of B.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Writer {
    /// The product before the one that multiplies by them.
    Product,
    /// The same, with a quantizer of something else in between, which releases at once.
    ProductBeforeAQuantizer,
    /// Such a quantizer, of what the products before it store.
    Quantizer,
}

/// Weights that the chain itself writes are not loaded before they are there; beside the same writers, those that nobody writes are.
#[test]
fn weights_that_a_chain_writes() {
    alone(|| {
        let Some(handle) = hopper() else { return };
        // The codes of B, 64 x 4096 of four bits, are as long as 16 x 4096 numbers of BF16, or 16 x 8192 codes of FP8.
        let (m, n, rows, few) = (16, 4096, 64, Scheme::Fp8Row(E4M3));
        let mut net = Net::new(&handle, m, n, &[By::SmallM(Scheme::Nvfp4)], 16, 8);
        let slice = handle.stream().alloc_zeros::<u8>(8 * m * n).unwrap();
        let address = slice.device_ptr(handle.stream()).0;
        // SAFETY: `slice` lives to the end of this test, all work is on one stream, and any bytes are codes.
        let part = |from: usize, bytes: usize| unsafe {
            assert!(from + bytes <= 8 * m * n);
            DeviceBuffer::from_raw(handle.stream(), address + from as u64, bytes, ()).unwrap()
        };
        let size = 2 * m * n;
        let [codes, wide, unwritten] = [0, size, 3 * size];
        for (writer, written) in [Writer::Product, Writer::ProductBeforeAQuantizer, Writer::Quantizer]
            .into_iter()
            .flat_map(|writer| [(writer, true), (writer, false)])
        {
            let scales = handle.upload(&[1f32]).unwrap();
            let blocks = handle.upload(&vec![0x38u8; Scheme::Nvfp4.block_scale_len(rows, n)]).unwrap();
            let of_b = part(if written { codes } else { unwritten }, size);
            let b = QuantMatrix::from_parts(Scheme::Nvfp4, rows, n, of_b, Some(scales), Some(blocks)).unwrap();
            let desc = GemmDesc::new(m, rows, n, Operand::Plain(DType::Bf16), Scheme::Nvfp4, DType::Bf16);
            let options = PlanOptions::default().with_formulation(Formulation::SmallM);
            let mut plan = handle.plan_with(&desc, &options).unwrap();
            plan.prepare(&handle, &b).unwrap();
            let x = handle.upload(&net.x).unwrap();
            let mut stored = match writer {
                Writer::Product | Writer::ProductBeforeAQuantizer => [part(codes, size), part(codes, size)],
                Writer::Quantizer => [part(wide, size), part(wide + size, size)],
            };
            let of_wide = part(wide, 2 * size);
            let of_rows = handle.upload(&vec![0f32; few.scale_len(m, 2 * n)]).unwrap();
            let mut quantized = QuantMatrix::from_parts(few, m, 2 * n, part(codes, size), Some(of_rows), None).unwrap();
            let mut other = QuantMatrix::zeros(&handle, few, m, n).unwrap();
            let mut results: Vec<_> = (0..8).map(|_| handle.alloc(m * rows * 2).unwrap()).collect();
            let mut all = |net: &mut Net, results: &mut [DeviceBuffer]| {
                let x = || MatRef::new(&x, DType::Bf16, m, n);
                let mut products = |net: &mut Net, layers: std::ops::Range<usize>| {
                    net.layers[layers].iter_mut().zip(&mut stored).try_for_each(|(layer, stored)| {
                        let d = MatMut::new(stored, DType::Bf16, m, n)?;
                        layer.plan.execute(&handle, GemmArgs::weight_only(x()?, &layer.b, d))
                    })
                };
                results.iter_mut().enumerate().try_for_each(|(i, result)| {
                    match writer {
                        Writer::Product => products(net, i..i + 1)?,
                        Writer::ProductBeforeAQuantizer => {
                            products(net, i..i + 1)?;
                            handle.quantize_into(&x()?, Recipe::new(few), QuantizeTo::Plain(&mut other))?;
                        }
                        Writer::Quantizer => {
                            products(net, 2 * i..2 * i + 2)?;
                            let wide = MatRef::new(&of_wide, DType::Bf16, m, 2 * n)?;
                            handle.quantize_into(&wide, Recipe::new(few), QuantizeTo::Plain(&mut quantized))?;
                        }
                    }
                    plan.execute(&handle, GemmArgs::weight_only(x()?, &b, MatMut::new(result, DType::Bf16, m, rows)?))
                })
            };
            let read = |results: &[DeviceBuffer]| -> Vec<Vec<u8>> {
                results.iter().map(|result| handle.read_bytes(&result.view()).unwrap()).collect()
            };
            all(&mut net, &mut results).unwrap();
            let want = read(&results);
            assert!(
                !written || want.windows(2).all(|pair| pair[0] != pair[1]),
                "{writer:?}: weights that change nothing"
            );
            let (graph, links) = links_of(|| handle.capture(|| handle.chain(|| all(&mut net, &mut results))).unwrap());
            // The first link follows none, and eight multiply by B.
            let count = if writer == Writer::Quantizer { 24 } else { 16 };
            assert_eq!(links, [count, count - 1 - if written { 8 } else { 0 }], "{writer:?}, of B: {written}");
            for launch in 0..20 {
                results.iter_mut().for_each(|result| handle.write(&mut result.view_mut(), &[0xFFu8; 64]).unwrap());
                handle.launch(&graph).unwrap();
                assert!(read(&results) == want, "{writer:?}, of B: {written}, launch {launch}");
            }
        }
    });
}
