//! Chains: products of few rows that begin before the one before them has ended give the bits that they give one after the other, in graphs
//! launched again and again; what is not ours comes behind all of a chain, inside and at its end, however it ends; weights that were just
//! written are not read too early.
#![cfg(feature = "cuda")]

mod common;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::rc::Rc;
use std::sync::{Arc, Mutex};

use common::*;
use scaled_gemm::cudarc::driver::DevicePtr;
use scaled_gemm::{
    BorrowsOutliveGraph, CapturedGraph, DType, DeviceBuffer, Error, Formulation, Fp8Format, GemmArgs, GemmDesc,
    GemmPlan, Handle, KeptWeights, KernelFamily, MatMut, MatRef, Operand, PlanOptions, QuantMatrix, QuantizeTo, Recipe,
    Scheme,
};
use tracing::field::{Field, Visit};

const E4M3: Fp8Format = Fp8Format::E4M3;

/// A handle on an sm_90.
fn hopper() -> Option<Handle> {
    let handle = handle()?;
    if !KernelFamily::SmallM.runs_on(handle.device().compute_capability) {
        println!("skipped: {} is no sm_90", handle.device());
        return None;
    }
    Some(handle)
}

/// Links of chains and how many of them load their weights early, as the crate tells of them.
#[derive(Clone, Default)]
struct Links(Arc<Mutex<[usize; 2]>>);

impl Links {
    fn of<T>(work: impl FnOnce() -> T) -> (T, [usize; 2]) {
        let links = Self::default();
        let done = tracing::subscriber::with_default(links.clone(), work);
        let counts = *links.0.lock().unwrap();
        (done, counts)
    }
}

impl tracing::Subscriber for Links {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target().ends_with("kernels::small_m")
    }
    fn new_span(&self, _: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        tracing::span::Id::from_u64(1)
    }
    fn record(&self, _: &tracing::span::Id, _: &tracing::span::Record<'_>) {}
    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}
    fn event(&self, event: &tracing::Event<'_>) {
        struct Early(Option<bool>);
        impl Visit for Early {
            fn record_bool(&mut self, field: &Field, value: bool) {
                if field.name() == "loads_early" {
                    self.0 = Some(value);
                }
            }
            fn record_debug(&mut self, _: &Field, _: &dyn std::fmt::Debug) {}
        }
        let mut early = Early(None);
        event.record(&mut early);
        if let Some(early) = early.0 {
            let mut counts = self.0.lock().unwrap();
            counts[0] += 1;
            counts[1] += usize::from(early);
        }
    }
    fn enter(&self, _: &tracing::span::Id) {}
    fn exit(&self, _: &tracing::span::Id) {}
}

/// Square layers one behind the other: what one stores is what the next multiplies.
struct Net {
    m: usize,
    n: usize,
    layers: Vec<Layer>,
    /// What goes into the first, and what each stores, BF16 `[m][n]`: a buffer for each, or two in turns.
    values: Vec<DeviceBuffer>,
    /// Of FP8 layers: `values` quantized.
    a: Option<QuantMatrix>,
    x: Vec<u8>,
}

struct Layer {
    b: Rc<QuantMatrix>,
    plan: GemmPlan,
}

/// How a layer is computed.
#[derive(Clone, Copy, PartialEq)]
enum By {
    /// Our product of few rows, of what the layer before stored.
    SmallM(Scheme),
    /// cuBLASLt, of the same.
    Library,
    /// Our product of few rows, of that quantized.
    Quantized(Scheme, Scheme),
}

impl Net {
    /// `count` layers, `kinds` in turns, of so many matrices of each.
    fn new(handle: &Handle, m: usize, n: usize, kinds: &[By], count: usize, matrices: usize) -> Self {
        let mut rng = Noise::new(171);
        let noise: Vec<f32> = (0..n * n + matrices * 8).map(|_| rng.normal()).collect();
        let noise = handle.upload(&bytes_of(DType::Bf16, &noise)).unwrap();
        let noise = handle.read_bytes(&noise.view()).unwrap();
        let noise = handle.stream().clone_htod(&noise).unwrap();
        let quantized = |i: usize, scheme| {
            let part = noise.slice(i * 16..i * 16 + n * n * 2);
            let x = MatRef::new(part, DType::Bf16, n, n).unwrap();
            handle.quantize(&x, Recipe::new(scheme)).unwrap()
        };
        let mut made: Vec<Vec<Rc<QuantMatrix>>> = Vec::new();
        for kind in kinds {
            let scheme = match kind {
                By::SmallM(scheme) | By::Quantized(_, scheme) => *scheme,
                By::Library => Scheme::Nvfp4,
            };
            let all = (0..matrices).map(|i| {
                let b = quantized(i, scheme);
                if *kind == By::Library {
                    b.keep_dequantized(handle, DType::Bf16).unwrap();
                }
                Rc::new(b)
            });
            made.push(all.collect());
        }
        let mut layers: Vec<Layer> = Vec::new();
        for i in 0..count {
            let (kind, b) = (kinds[i % kinds.len()], made[i % kinds.len()][i / kinds.len() % matrices].clone());
            let (operand, formulation, kept) = match kind {
                By::SmallM(_) => (Operand::Plain(DType::Bf16), Formulation::SmallM, KeptWeights::Nothing),
                By::Quantized(a, _) => (a.into(), Formulation::SmallM, KeptWeights::Nothing),
                By::Library => {
                    (Operand::Plain(DType::Bf16), Formulation::DequantizedBf16, KeptWeights::Dequantized(DType::Bf16))
                }
            };
            let desc = GemmDesc::new(m, n, n, operand, b.scheme(), DType::Bf16).with_kept(kept);
            let mut plan = handle.plan_with(&desc, &PlanOptions::default().with_formulation(formulation)).unwrap();
            plan.prepare(handle, &b).unwrap();
            layers.push(Layer { b, plan });
        }
        let x: Vec<f32> = (0..m * n).map(|_| rng.normal()).collect();
        let values = (0..=count).map(|_| handle.alloc(m * n * 2).unwrap()).collect();
        let a = kinds.iter().find_map(|kind| match kind {
            By::Quantized(a, _) => Some(QuantMatrix::zeros(handle, *a, m, n).unwrap()),
            _ => None,
        });
        Self { m, n, layers, values, a, x: bytes_of(DType::Bf16, &x) }
    }

    /// What goes in, and poison in the place of what is stored.
    fn reset(&mut self, handle: &Handle) {
        handle.write(&mut self.values[0].view_mut(), &self.x).unwrap();
        let poison = vec![0xFFu8; self.m * self.n * 2];
        for value in &mut self.values[1..] {
            handle.write(&mut value.view_mut(), &poison).unwrap();
        }
    }

    fn layer(&mut self, handle: &Handle, i: usize) -> Result<(), Error> {
        let Self { m, n, layers, values, a, .. } = self;
        let (x, d) = in_and_out(values, i);
        let (x, d) = (MatRef::new(x, DType::Bf16, *m, *n)?, MatMut::new(d, DType::Bf16, *m, *n)?);
        let Layer { b, plan } = &mut layers[i];
        let args = match a {
            Some(a) => {
                handle.quantize_into(&x, Recipe::new(a.scheme()), QuantizeTo::Plain(a))?;
                GemmArgs::new(a, b, d)
            }
            None => GemmArgs::weight_only(x, b, d),
        };
        // Sums of n products of such numbers are sqrt(n) times as large.
        plan.execute(handle, args.alpha(1.0 / (*n as f32).sqrt()))
    }

    fn all(&mut self, handle: &Handle) -> Result<(), Error> {
        (0..self.layers.len()).try_for_each(|i| self.layer(handle, i))
    }

    fn read(&self, handle: &Handle) -> Vec<Vec<u8>> {
        self.values.iter().map(|value| handle.read_bytes(&value.view()).unwrap()).collect()
    }

    /// What layer by layer stores, outside of graphs.
    fn want(&mut self, handle: &Handle) -> Vec<Vec<u8>> {
        self.reset(handle);
        self.all(handle).unwrap();
        let want = self.read(handle);
        let last = values_of(&want[self.layers.len() % want.len()]);
        let size = last.iter().map(|v| v.abs()).sum::<f32>() / last.len() as f32;
        assert!((0.05..20.0).contains(&size), "numbers of size {size} compare nothing");
        want
    }

    /// A graph stores the same, at every launch.
    fn check(&mut self, handle: &Handle, graph: &CapturedGraph, want: &[Vec<u8>], words: &str) {
        for launch in 0..5 {
            self.reset(handle);
            handle.launch(graph).unwrap();
            let got = self.read(handle);
            let wrong = got.iter().zip(want).position(|(got, want)| got != want);
            assert_eq!(wrong, None, "{words}: the first value that differs in launch {launch}");
        }
    }
}

/// The buffers of layer i.
fn in_and_out(values: &mut [DeviceBuffer], i: usize) -> (&DeviceBuffer, &mut DeviceBuffer) {
    let (from, to) = (i % values.len(), (i + 1) % values.len());
    let (before, behind) = values.split_at_mut(from.max(to));
    match from < to {
        true => (&before[from], &mut behind[0]),
        false => (&behind[0], &mut before[to]),
    }
}

fn values_of(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks(2).map(|b| f32::from_bits(u32::from(u16::from_le_bytes([b[0], b[1]])) << 16)).collect()
}

/// Hundreds of links, of every kernel for few rows: each has what the link before stored, and reads it behind its wait.
#[test]
fn chains_give_the_bits_of_products_one_after_the_other() {
    let Some(handle) = hopper() else { return };
    let cases: [(usize, &[By]); 5] = [
        (1, &[By::SmallM(Scheme::Nvfp4)]),
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
        let (graph, [links, early]) = Links::of(|| handle.capture(|| handle.chain(|| net.all(&handle))).unwrap());
        net.check(&handle, &graph, &want, &words);
        // The first quantizer follows nothing that is known.
        let all = if m > 16 { [0; 2] } else { [240, 239] };
        assert_eq!([links, early], all, "{words}: tiles are no links");
        // Outside of a graph, and in a graph without the scope, nothing is a link.
        let (_, none) = Links::of(|| {
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
}

/// Products of FP8 that follow each other at once, as of one activation with several matrices, the sum of all before in the residual.
#[test]
fn fp8_products_that_follow_one_another() {
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
            let desc = desc.with_epilogue(scaled_gemm::Epilogue { residual: Some(DType::Bf16), ..Default::default() });
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
        let (graph, links) = Links::of(|| handle.capture(|| handle.chain(|| sums(&mut net))).unwrap());
        assert_eq!(links, [count, count - 1]);
        net.check(&handle, &graph, &want, &format!("m = {m}, {b}"));
    }
}

/// A product of cuBLASLt reads what the link before it stores, inside the scope and right behind it.
#[test]
fn the_library_comes_behind_all_links() {
    let Some(handle) = hopper() else { return };
    for m in [1, 16] {
        let kinds = [By::SmallM(Scheme::Nvfp4), By::SmallM(Scheme::Nvfp4), By::Library];
        let mut net = Net::new(&handle, m, 4096, &kinds, 120, 8);
        let want = net.want(&handle);
        let (inside, links) = Links::of(|| handle.capture(|| handle.chain(|| net.all(&handle))).unwrap());
        assert_eq!(links, [80, 40], "a link behind the library follows none");
        net.check(&handle, &inside, &want, "inside");
        let behind = handle.capture(|| {
            (0..40).try_for_each(|i| {
                handle.chain(|| {
                    net.layer(&handle, 3 * i)?;
                    net.layer(&handle, 3 * i + 1)
                })?;
                net.layer(&handle, 3 * i + 2)
            })
        });
        net.check(&handle, &behind.unwrap(), &want, "behind");
        // A capture inside the scope ends as the scope does, and so does the scope itself, before eager calls.
        let captured = handle.chain(|| handle.capture(|| net.all(&handle))).unwrap();
        net.check(&handle, &captured, &want, "a graph captured in a scope");
    }
}

/// A scope that is left by an error, or by a panic, ends as any other.
#[test]
fn a_scope_ends_however_it_is_left() {
    let Some(handle) = hopper() else { return };
    let mut net = Net::new(&handle, 1, 4096, &[By::SmallM(Scheme::Nvfp4), By::Library], 80, 8);
    let want = net.want(&handle);
    for panics in [false, true] {
        let graph = handle.capture(|| {
            (0..40).try_for_each(|i| {
                let left = catch_unwind(AssertUnwindSafe(|| {
                    handle.chain(|| {
                        net.layer(&handle, 2 * i)?;
                        if panics {
                            std::panic::panic_any("left");
                        }
                        Err::<(), _>(Error::NoGpu { reason: "left".into(), remedy: String::new() })
                    })
                }));
                match left {
                    Ok(left) => assert!(matches!(left, Err(Error::NoGpu { .. }))),
                    Err(_) => assert!(panics),
                }
                net.layer(&handle, 2 * i + 1)
            })
        });
        net.check(&handle, &graph.unwrap(), &want, if panics { "panic" } else { "error" });
        // Outside of scopes nothing is a link any more.
        assert_eq!(Links::of(|| handle.capture(|| net.all(&handle)).map(drop)).1, [0; 2]);
    }
}

/// Two handles on one stream: one has the scope, the other enqueues a product of cuBLASLt in it. And two on two streams, each with its own.
#[test]
fn two_handles() {
    let Some(handle) = hopper() else { return };
    let other = Handle::from_stream(handle.stream().clone()).unwrap();
    let kinds = [By::SmallM(Scheme::Nvfp4), By::Library];
    let net = RefCell::new(Net::new(&handle, 1, 4096, &kinds[..1], 80, 8));
    let library = Net::new(&other, 1, 4096, &kinds[1..], 80, 8);
    net.borrow_mut().layers.iter_mut().zip(library.layers).skip(1).step_by(2).for_each(|(ours, theirs)| *ours = theirs);
    let all =
        |net: &mut Net| (0..net.layers.len()).try_for_each(|i| net.layer(if i % 2 == 0 { &handle } else { &other }, i));
    net.borrow_mut().reset(&handle);
    all(&mut net.borrow_mut()).unwrap();
    let want = net.borrow().read(&handle);
    // SAFETY: all that the graph uses lives to the end of this test.
    let promise = unsafe { BorrowsOutliveGraph::promise() };
    let (graph, links) =
        Links::of(|| handle.capture_borrowing(promise, || handle.chain(|| all(&mut net.borrow_mut()))).unwrap());
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
}

/// Weights that the chain itself writes, by a quantizer or by the product before, are not loaded before they are there.
#[test]
fn weights_that_a_chain_writes() {
    let Some(handle) = hopper() else { return };
    let (m, n) = (16, 4096);
    let mut net = Net::new(&handle, m, n, &[By::SmallM(Scheme::Nvfp4)], 8, 8);
    net.reset(&handle);
    // The codes of B are what the product before stores: 64 x 4096 of four bits.
    let (rows, cols) = (64, n);
    let slice = handle.stream().alloc_zeros::<u8>(m * n * 2).unwrap();
    let address = slice.device_ptr(handle.stream()).0;
    // SAFETY: `slice` lives to the end of this test, all work is on one stream, and any bytes are codes.
    let buffer = || unsafe { DeviceBuffer::from_raw(handle.stream(), address, m * n * 2, ()) }.unwrap();
    let scales = handle.upload(&[1f32]).unwrap();
    let blocks = handle.upload(&vec![0x38u8; Scheme::Nvfp4.block_scale_len(rows, cols)]).unwrap();
    let b = QuantMatrix::from_parts(Scheme::Nvfp4, rows, cols, buffer(), Some(scales), Some(blocks)).unwrap();
    let desc = GemmDesc::new(m, rows, cols, Operand::Plain(DType::Bf16), Scheme::Nvfp4, DType::Bf16);
    let options = PlanOptions::default().with_formulation(Formulation::SmallM);
    let mut plan = handle.plan_with(&desc, &options).unwrap();
    plan.prepare(&handle, &b).unwrap();
    let mut codes = buffer();
    let mut results: Vec<_> = (0..8).map(|_| handle.alloc(m * rows * 2).unwrap()).collect();
    let x = handle.upload(&net.x).unwrap();
    let mut all = |net: &mut Net, results: &mut [DeviceBuffer]| {
        net.layers.iter_mut().zip(results).try_for_each(|(layer, result)| {
            let x = || MatRef::new(&x, DType::Bf16, m, n);
            let d = MatMut::new(&mut codes, DType::Bf16, m, n)?;
            layer.plan.execute(&handle, GemmArgs::weight_only(x()?, &layer.b, d))?;
            plan.execute(&handle, GemmArgs::weight_only(x()?, &b, MatMut::new(result, DType::Bf16, m, rows)?))
        })
    };
    let read = |results: &[DeviceBuffer]| -> Vec<Vec<u8>> {
        results.iter().map(|result| handle.read_bytes(&result.view()).unwrap()).collect()
    };
    all(&mut net, &mut results).unwrap();
    let want = read(&results);
    assert!(want.windows(2).all(|pair| pair[0] != pair[1]), "weights that change nothing");
    let (graph, links) = Links::of(|| handle.capture(|| handle.chain(|| all(&mut net, &mut results))).unwrap());
    assert_eq!(links, [16, 7], "B is written by the product before it");
    for launch in 0..20 {
        results.iter_mut().for_each(|result| handle.write(&mut result.view_mut(), &[0xFFu8; 64]).unwrap());
        handle.launch(&graph).unwrap();
        assert!(read(&results) == want, "launch {launch}");
    }
    drop(graph);
}

/// The same where a quantizer writes them, out of what the product before it stores.
#[test]
fn weights_that_a_chain_quantizes() {
    let Some(handle) = hopper() else { return };
    let (m, rows, n) = (3, 64, 4096);
    let mut net = Net::new(&handle, rows, n, &[By::SmallM(Scheme::Nvfp4)], 8, 8);
    let mut b = QuantMatrix::zeros(&handle, Scheme::Nvfp4, rows, n).unwrap();
    let desc = GemmDesc::new(m, rows, n, Operand::Plain(DType::Bf16), Scheme::Nvfp4, DType::Bf16);
    let options = PlanOptions::default().with_formulation(Formulation::SmallM);
    let mut plan = handle.plan_with(&desc, &options).unwrap();
    plan.prepare(&handle, &b).unwrap();
    let x = handle.upload(&net.x).unwrap();
    let mut results: Vec<_> = (0..8).map(|_| handle.alloc(m * rows * 2).unwrap()).collect();
    let mut all = |net: &mut Net, results: &mut [DeviceBuffer]| {
        results.iter_mut().enumerate().try_for_each(|(i, result)| {
            net.layer(&handle, i)?;
            let weights = MatRef::new(&net.values[i + 1], DType::Bf16, rows, n)?;
            handle.quantize_into(&weights, Recipe::new(Scheme::Nvfp4), QuantizeTo::Plain(&mut b))?;
            let x = MatRef::new(&x, DType::Bf16, m, n)?;
            plan.execute(&handle, GemmArgs::weight_only(x, &b, MatMut::new(result, DType::Bf16, m, rows)?))
        })
    };
    net.reset(&handle);
    all(&mut net, &mut results).unwrap();
    let read = |results: &[DeviceBuffer]| -> Vec<Vec<u8>> {
        results.iter().map(|result| handle.read_bytes(&result.view()).unwrap()).collect()
    };
    let want = read(&results);
    assert!(want.windows(2).all(|pair| pair[0] != pair[1]), "weights that change nothing");
    let graph = handle.capture(|| handle.chain(|| all(&mut net, &mut results))).unwrap();
    for launch in 0..20 {
        net.reset(&handle);
        results.iter_mut().for_each(|result| handle.write(&mut result.view_mut(), &[0xFFu8; 64]).unwrap());
        handle.launch(&graph).unwrap();
        assert!(read(&results) == want, "launch {launch}");
    }
}
