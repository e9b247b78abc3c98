//! Graphs of `Handle::capture`: they outlive all that they were captured from, follow weights that are written around them, and
//! what they cannot own is refused.
//!
//! Tests that could break their context run in a process of their own (`hazards::alone`).
#![cfg(feature = "cuda")]

mod common;
#[path = "common/hazards.rs"]
mod hazards;

use common::gemm::*;
use common::*;
use hazards::*;
use scaled_gemm::cudarc::driver::{CudaSlice, DevicePtr};
use scaled_gemm::{
    CapturedGraph, DType, DeviceBuffer, DeviceBytes, Epilogue, Error, Formulation, GemmArgs, GemmDesc, GemmPlan,
    Handle, MatMut, MatRef, QuantMatrix, QuantizeTo, Recipe, Scheme, VecRef,
};

const SHAPE: [usize; 3] = [16, 1024, 1024];

/// What a product reads beside codes and scales.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    /// Nothing: rows by rows.
    Rows,
    /// The repeated scales of B.
    Repeated,
    /// The values that B keeps.
    Kept,
    /// Both operands dequantized into the handle's scratch memory.
    Scratch,
}

/// X quantized into A, and A times B plus a bias into D: all in memory of this crate.
struct Call {
    x: DeviceBuffer,
    bias: DeviceBuffer,
    d: DeviceBuffer,
    a: QuantMatrix,
    b: QuantMatrix,
    plan: GemmPlan,
}

impl Call {
    /// `None`, with the reason, where the GPU has no such product.
    fn new(handle: &Handle, kind: Kind) -> Option<Self> {
        let [m, n, k] = SHAPE;
        let nvfp4 = (Scheme::Nvfp4, Scheme::Nvfp4);
        let (pair, wanted) = match kind {
            Kind::Rows => (ROWS_BY_ROWS, None),
            Kind::Repeated => (BLOCKS, Some(Formulation::RepeatedScales)),
            Kind::Kept | Kind::Scratch => (nvfp4, Some(Formulation::DequantizedBf16)),
        };
        let mut rng = Noise::new(101);
        let Operands { a, b, .. } = Operands::new(handle, &mut rng, SHAPE, pair);
        if kind == Kind::Kept {
            derive(handle, Derived::Kept, &b);
        }
        let desc = GemmDesc::new(m, n, k, a.scheme(), b.scheme(), DType::Bf16).with_kept(b.kept());
        let desc = desc.with_epilogue(Epilogue { bias: Some(DType::Bf16), ..Epilogue::default() });
        let offered = offered(handle, &desc);
        let Some(formulation) = wanted.or(offered.first().copied()).filter(|wanted| offered.contains(wanted)) else {
            println!("skipped: {} offers no {kind:?} product of {pair:?}", handle.device());
            return None;
        };
        let mut plan = plan(handle, &desc, formulation);
        plan.prepare(handle, &b).unwrap();
        let bias: Vec<f32> = (0..n).map(|_| round_to(DType::Bf16, rng.normal())).collect();
        let bias = handle.upload(&bytes_of(DType::Bf16, &bias)).unwrap();
        let (x, d) = (handle.alloc(m * k * 4).unwrap(), handle.alloc(m * n * 2).unwrap());
        Some(Self { x, bias, d, a, b, plan })
    }

    fn enqueue(&mut self, handle: &Handle) -> Result<(), Error> {
        let [m, n, k] = SHAPE;
        let x = MatRef::new(&self.x, DType::F32, m, k)?;
        handle.quantize_into(&x, Recipe::new(self.a.scheme()), QuantizeTo::Plain(&mut self.a))?;
        let d = MatMut::new(&mut self.d, DType::Bf16, m, n)?;
        let bias = VecRef::new(&self.bias, DType::Bf16, n)?;
        self.plan.execute(handle, GemmArgs::new(&self.a, &self.b, d).bias(bias))
    }

    /// D of a call outside of graphs with these activations. They stay in X, and D is poisoned again.
    fn eager(&mut self, handle: &Handle, x: &[u8]) -> Vec<u8> {
        handle.write(&mut self.x.view_mut(), x).unwrap();
        fill(handle, &mut self.d);
        self.enqueue(handle).unwrap();
        let d = handle.read_bytes(&self.d.view()).unwrap();
        fill(handle, &mut self.d);
        d
    }

    /// Bytes of every allocation that is given back when all but D is dropped.
    fn allocations(&self, handle: &Handle) -> Vec<usize> {
        let parts = |q: &QuantMatrix| q.codes().len() + q.scales().len() + q.block_scales().len();
        let derived = self.b.device_bytes() - parts(&self.b);
        let all = [parts(&self.a), parts(&self.b), derived, self.x.len(), self.bias.len(), handle.scratch_bytes()];
        all.into_iter().filter(|bytes| *bytes > 0).collect()
    }
}

/// Three sets of activations.
fn activations() -> [Vec<u8>; 3] {
    let [m, _, k] = SHAPE;
    let mut rng = Noise::new(102);
    [(); 3].map(|()| bytes_of(DType::F32, tiled(&mut rng, m, k).iter()))
}

fn fill(handle: &Handle, buffer: &mut DeviceBuffer) {
    let poison = vec![0xFFu8; buffer.len()];
    handle.write(&mut buffer.view_mut(), &poison).unwrap();
}

/// Buffers of 0xFF bytes where memory of these sizes was given back, several of each.
struct Poison(Vec<CudaSlice<u8>>);

impl Poison {
    fn new(handle: &Handle, sizes: &[usize]) -> Self {
        let each = |size: &usize| [(); 8].map(|()| poisoned(handle, *size));
        Self(sizes.iter().flat_map(each).collect())
    }

    /// Panics if somebody wrote into one.
    fn check(&self, handle: &Handle, words: &str) {
        let whole = |buffer| handle.stream().clone_dtoh(buffer).unwrap().iter().all(|byte| *byte == 0xFF);
        assert!(self.0.iter().all(whole), "{words}: the graph writes to memory that was given back");
    }
}

/// The tests below prove nothing if what is given back is not what the poison gets.
#[test]
fn poison_comes_where_memory_was_given_back() {
    alone(|| {
        let Some(handle) = handle() else { return };
        if !handle.stream().context().has_async_alloc() {
            return println!("skipped: {} has no memory pool", handle.device());
        }
        let bytes = 1 << 20;
        let slice = handle.stream().alloc_zeros::<u8>(bytes).unwrap();
        let address = slice.device_ptr(handle.stream()).0;
        // What is allocated behind it keeps the pool from shrinking.
        let behind = handle.alloc(bytes).unwrap();
        drop(DeviceBuffer::from_slice(slice).unwrap());
        let rest = Poison::new(&handle, &[bytes]);
        let found = rest.0.iter().any(|buffer| buffer.device_ptr(handle.stream()).0 == address);
        assert!(found, "the memory at {address:#x} was not given back, or not given again");
        drop(behind);
    });
}

// What a graph was captured from is gone.

/// What is left of a call after its capture.
struct Left {
    /// `None`: dropped too.
    x: Option<DeviceBuffer>,
    d: DeviceBuffer,
    /// B without what was derived from it.
    b: Option<QuantMatrix>,
    rest: Vec<Poison>,
}

/// Captures a call, lets `lose` drop what it was captured from, and launches the graph three times.
fn outlives(kind: Kind, lose: impl FnOnce(&Handle, Call) -> Left) {
    let Some(handle) = handle() else { return };
    let Some(mut call) = Call::new(&handle, kind) else { return };
    let sets = activations();
    let want = sets.each_ref().map(|x| call.eager(&handle, x));
    assert!(want[0] != want[1] && want[1] != want[2], "other activations, same product");
    handle.write(&mut call.x.view_mut(), &sets[0]).unwrap();
    let graph = handle.capture(|| call.enqueue(&handle)).unwrap();
    let untouched = handle.read_bytes(&call.d.view()).unwrap();
    assert!(untouched.iter().all(|byte| *byte == 0xFF), "{kind:?}: written during capture");
    let allocations = call.allocations(&handle);
    let Left { mut x, mut d, b, mut rest } = lose(&handle, call);
    rest.push(Poison::new(&handle, &allocations));
    for (launch, set) in sets.iter().enumerate() {
        // Without X the graph goes on with what lay there.
        let want = match &mut x {
            Some(x) => {
                handle.write(&mut x.view_mut(), set).unwrap();
                &want[launch]
            }
            None => &want[0],
        };
        fill(&handle, &mut d);
        handle.launch(&graph).unwrap();
        assert!(handle.read_bytes(&d.view()).unwrap() == *want, "{kind:?}: launch {launch}");
    }
    rest.iter().for_each(|poison| poison.check(&handle, &format!("{kind:?}")));
    // A graph gives back what it owns, and the handle goes on.
    drop((graph, b));
    let mut again = Call::new(&handle, kind).unwrap();
    assert!(again.eager(&handle, &sets[1]) == want[1], "{kind:?}: a call after the graph is gone");
}

fn all_but_x_and_d(_: &Handle, Call { x, d, .. }: Call) -> Left {
    Left { x: Some(x), d, b: None, rest: Vec::new() }
}

fn all_but_d(_: &Handle, Call { d, .. }: Call) -> Left {
    Left { x: None, d, b: None, rest: Vec::new() }
}

#[test]
fn a_graph_outlives_operands_and_plan() {
    alone(|| outlives(Kind::Rows, all_but_x_and_d));
}

#[test]
fn a_graph_outlives_its_input_too() {
    alone(|| outlives(Kind::Rows, all_but_d));
}

#[test]
fn a_graph_outlives_a_matrix_with_repeated_scales() {
    alone(|| outlives(Kind::Repeated, all_but_x_and_d));
}

#[test]
fn a_graph_outlives_a_matrix_with_kept_values() {
    alone(|| outlives(Kind::Kept, all_but_x_and_d));
}

#[test]
fn a_graph_outlives_kept_values_that_are_forgotten() {
    alone(|| {
        outlives(Kind::Kept, |_, Call { x, d, mut b, .. }| {
            let before = b.device_bytes();
            b.forget_dequantized();
            assert!(b.device_bytes() < before, "nothing was forgotten");
            Left { x: Some(x), d, b: Some(b), rest: Vec::new() }
        });
    });
}

/// The scratch memory is replaced by more for a larger plan, and then given back.
#[test]
fn a_graph_outlives_the_scratch_memory_of_its_handle() {
    alone(|| {
        outlives(Kind::Scratch, |handle, Call { x, d, plan: small, .. }| {
            let before = handle.scratch_bytes();
            assert!(small.scratch_bytes() > 0 && before > 0, "{}", small.explain());
            drop(small);
            let (m, n, k) = (16, 8192, 8192);
            let b = QuantMatrix::zeros(handle, Scheme::Nvfp4, n, k).unwrap();
            let desc = GemmDesc::new(m, n, k, Scheme::Nvfp4, Scheme::Nvfp4, DType::Bf16);
            let mut large = plan(handle, &desc, Formulation::DequantizedBf16);
            large.prepare(handle, &b).unwrap();
            assert!(handle.scratch_bytes() > before, "the larger plan needs no more: {}", large.explain());
            let replaced = Poison::new(handle, &[before]);
            handle.trim_scratch().unwrap();
            assert_eq!(handle.scratch_bytes(), 0);
            let trimmed = Poison::new(handle, &[before]);
            Left { x: Some(x), d, b: None, rest: vec![replaced, trimmed] }
        });
    });
}

// Refusals, after which the handle works on.

/// A call, a graph of it, and what both give.
fn works(handle: &Handle, call: &mut Call, set: &[u8], want: &[u8], words: &str) {
    assert!(call.eager(handle, set) == want, "{words}: an eager call");
    let graph = handle.capture(|| call.enqueue(handle)).unwrap_or_else(|e| panic!("{words}: a capture: {e}"));
    launched(handle, &graph, call, want, words);
}

fn launched(handle: &Handle, graph: &CapturedGraph, call: &mut Call, want: &[u8], words: &str) {
    fill(handle, &mut call.d);
    handle.launch(graph).unwrap();
    assert!(handle.read_bytes(&call.d.view()).unwrap() == want, "{words}: a graph");
    fill(handle, &mut call.d);
}

fn unsupported<T>(result: Result<T, Error>, words: &[&str]) {
    let error = refused(result, words);
    assert!(matches!(error, Error::Unsupported { .. }), "{error}");
}

#[test]
fn a_capture_that_owns_takes_no_slices() {
    alone(|| {
        let Some(handle) = handle() else { return };
        let Some(mut call) = Call::new(&handle, Kind::Rows) else { return };
        let ([m, n, k], [set, _, _]) = (SHAPE, activations());
        let want = call.eager(&handle, &set);
        let (slice, bias) = (upload(&handle, &set), poisoned(&handle, n * 2));
        let address = bias.device_ptr(handle.stream()).0;
        let mut target = poisoned(&handle, m * n * 2);
        let recipe = Recipe::new(call.a.scheme());
        let words = ["in Handle::capture", "cannot keep it alive", "capture_borrowing", "DeviceBuffer"];

        let x = MatRef::new(&slice, DType::F32, m, k).unwrap();
        let of_x = handle.capture(|| handle.quantize_into(&x, recipe, QuantizeTo::Plain(&mut call.a)));
        unsupported(of_x, &words);
        works(&handle, &mut call, &set, &want, "after a slice as X");

        let of_d = handle.capture(|| {
            let bias = VecRef::new(&call.bias, DType::Bf16, n)?;
            let d = MatMut::new(&mut target, DType::Bf16, m, n)?;
            call.plan.execute(&handle, GemmArgs::new(&call.a, &call.b, d).bias(bias))
        });
        unsupported(of_d, &words);
        works(&handle, &mut call, &set, &want, "after a slice as D");

        let of_bias = handle.capture(|| {
            let bias = VecRef::new(&bias, DType::Bf16, n)?;
            let d = MatMut::new(&mut call.d, DType::Bf16, m, n)?;
            call.plan.execute(&handle, GemmArgs::new(&call.a, &call.b, d).bias(bias))
        });
        unsupported(of_bias, &words);
        works(&handle, &mut call, &set, &want, "after a slice as bias");

        let of_address = handle.capture(|| {
            // SAFETY: the slice is as long, and alive to the end of the test.
            let bytes = unsafe { DeviceBytes::from_raw(address, n * 2) };
            let d = MatMut::new(&mut call.d, DType::Bf16, m, n)?;
            call.plan.execute(&handle, GemmArgs::new(&call.a, &call.b, d).bias(VecRef::new(bytes, DType::Bf16, n)?))
        });
        unsupported(of_address, &words);
        works(&handle, &mut call, &set, &want, "after a bare address as bias");

        // A closure that goes on captures the rest, and the same calls take slices outside of captures.
        let mut tried = None;
        let graph = handle.capture(|| {
            tried = Some(handle.quantize_into(&x, recipe, QuantizeTo::Plain(&mut call.a)));
            call.enqueue(&handle)
        });
        unsupported(tried.unwrap(), &words);
        launched(&handle, &graph.unwrap(), &mut call, &want, "with a refused slice in its capture");
        handle.quantize_into(&x, recipe, QuantizeTo::Plain(&mut call.a)).unwrap();
        let target = handle.stream().clone_dtoh(&target).unwrap();
        assert!(target.iter().all(|byte| *byte == 0xFF), "a refused D was written");
    });
}

#[test]
fn a_graph_is_launched_by_its_own_handle_only() {
    alone(|| {
        let Some(handle) = handle() else { return };
        let [own, other] = two_handles(handle);
        // On the same stream, with scratch memory of its own.
        let twin = Handle::from_stream(own.stream().clone()).unwrap();
        let Some(mut call) = Call::new(&own, Kind::Rows) else { return };
        let [set, second, _] = activations();
        let want = call.eager(&own, &set);
        let graph = own.capture(|| call.enqueue(&own)).unwrap();
        for (wrong, whose) in [(&other, "another stream's handle"), (&twin, "another handle of the stream")] {
            unsupported(wrong.launch(&graph), &["another handle", "the handle that captured it"]);
            wrong.synchronize().unwrap();
            let d = own.read_bytes(&call.d.view()).unwrap();
            assert!(d.iter().all(|byte| *byte == 0xFF), "{whose}: launched although refused");
            launched(&own, &graph, &mut call, &want, whose);
            let mut theirs = Call::new(wrong, Kind::Rows).unwrap();
            let want = theirs.eager(wrong, &second);
            works(wrong, &mut theirs, &second, &want, whose);
        }
        works(&own, &mut call, &set, &want, "its own handle");
    });
}

#[test]
fn no_launch_and_no_capture_inside_a_capture() {
    alone(|| {
        let Some(handle) = handle() else { return };
        let twin = Handle::from_stream(handle.stream().clone()).unwrap();
        let Some(mut call) = Call::new(&handle, Kind::Rows) else { return };
        let [set, _, _] = activations();
        let want = call.eager(&handle, &set);
        let first = handle.capture(|| call.enqueue(&handle)).unwrap();
        let launch = ["launching a graph while the stream is captured", "after the capture has ended"];
        let capture = ["a capture inside a capture", "captured into a graph already"];

        // Alone in a capture.
        unsupported(handle.capture(|| handle.launch(&first)), &launch);
        works(&handle, &mut call, &set, &want, "after a launch in a capture");
        unsupported(handle.capture(|| handle.capture(|| Ok(())).map(drop)), &capture);
        works(&handle, &mut call, &set, &want, "after a capture in a capture");
        unsupported(handle.capture(|| twin.capture(|| Ok(())).map(drop)), &capture);
        works(&handle, &mut call, &set, &want, "after a twin's capture in a capture");

        // Before work that is captured.
        let (mut launched_there, mut captured_there) = (None, None);
        let outer = handle.capture(|| {
            launched_there = Some(handle.launch(&first));
            captured_there = Some(handle.capture(|| Ok(())));
            call.enqueue(&handle)
        });
        let outer = outer.unwrap_or_else(|e| panic!("the refusals broke the capture: {e}"));
        unsupported(launched_there.unwrap(), &launch);
        unsupported(captured_there.unwrap(), &capture);
        launched(&handle, &outer, &mut call, &want, "with refusals in its capture");
        launched(&handle, &first, &mut call, &want, "refused in a capture, and launched after it");
    });
}

// Derived buffers.

/// A layer, a B of its own without anything derived from it, X for new weights, and D.
struct Weights {
    layer: Layer,
    b: QuantMatrix,
    x: DeviceBuffer,
    sets: [Vec<u8>; 3],
    d: DeviceBuffer,
}

impl Weights {
    fn new(handle: &Handle, derived: Derived) -> Option<Self> {
        let layer = Layer::new(handle, derived)?;
        let (_, sets) = layer.weights(handle);
        let b = QuantMatrix::from_host(handle, &layer.ops.host_b).unwrap();
        let (x, d) = (handle.alloc(sets[0].len()).unwrap(), handle.alloc(layer.ops.a.rows() * b.rows() * 2).unwrap());
        Some(Self { layer, b, x, sets, d })
    }

    /// Makes what the product reads beside B.
    fn derive(&mut self, handle: &Handle) {
        derive(handle, self.layer.derived, &self.b);
        self.layer.plan.prepare(handle, &self.b).unwrap();
    }

    fn set(&mut self, handle: &Handle, launch: usize) {
        handle.write(&mut self.x.view_mut(), &self.sets[launch]).unwrap();
    }

    /// The weights in X as a matrix that no graph knows.
    fn fresh(&self, handle: &Handle) -> QuantMatrix {
        let x = MatRef::new(&self.x, DType::F32, self.b.rows(), self.b.cols()).unwrap();
        handle.quantize(&x, Recipe::new(self.b.scheme())).unwrap()
    }

    /// What the product gives with that matrix, from which everything is derived now.
    fn want(&mut self, handle: &Handle, fresh: &QuantMatrix) -> Vec<u8> {
        self.layer.with(handle, fresh).bytes
    }

    fn quantize(&mut self, handle: &Handle) -> Result<(), Error> {
        let x = MatRef::new(&self.x, DType::F32, self.b.rows(), self.b.cols())?;
        handle.quantize_into(&x, Recipe::new(self.b.scheme()), QuantizeTo::Plain(&mut self.b))
    }

    /// The product, and nothing before it.
    fn multiply(&mut self, handle: &Handle) -> Result<(), Error> {
        let d = MatMut::new(&mut self.d, DType::Bf16, self.layer.ops.a.rows(), self.b.rows())?;
        self.layer.plan.execute(handle, GemmArgs::new(&self.layer.ops.a, &self.b, d))
    }

    /// D of work that is enqueued by this.
    fn product(&mut self, handle: &Handle, enqueue: impl FnOnce(&mut Self) -> Result<(), Error>) -> Vec<u8> {
        fill(handle, &mut self.d);
        enqueue(self).unwrap();
        handle.read_bytes(&self.d.view()).unwrap()
    }
}

/// A graph that quantizes into B was captured before anything was derived from it: products, in a graph or not, that come behind
/// its launches have the new weights.
fn derived_after_the_capture(derived: Derived, product_in_graph: bool) {
    let Some(handle) = handle() else { return };
    let Some(mut weights) = Weights::new(&handle, derived) else { return };
    drop(weights.fresh(&handle));
    let quantizes = handle.capture(|| weights.quantize(&handle)).unwrap();
    weights.derive(&handle);
    let multiplies = product_in_graph.then(|| handle.capture(|| weights.multiply(&handle)).unwrap());
    let mut before = None;
    for launch in 0..3 {
        weights.set(&handle, launch);
        let fresh = weights.fresh(&handle);
        let want = weights.want(&handle, &fresh);
        assert!(before.replace(want.clone()).as_ref() != Some(&want), "other weights, same product");
        handle.launch(&quantizes).unwrap();
        let got = weights.product(&handle, |weights| match &multiplies {
            Some(graph) => handle.launch(graph),
            None => weights.multiply(&handle),
        });
        assert!(got == want, "{derived:?}, launch {launch}: old weights behind a graph older than what is derived");
    }
}

#[test]
fn repeated_scales_made_after_the_capture_follow_the_graph() {
    alone(|| derived_after_the_capture(Derived::Repeated, false));
}

#[test]
fn kept_values_made_after_the_capture_follow_the_graph() {
    alone(|| derived_after_the_capture(Derived::Kept, false));
}

#[test]
fn a_graph_follows_repeated_scales_made_after_another_graph() {
    alone(|| derived_after_the_capture(Derived::Repeated, true));
}

#[test]
fn a_graph_follows_kept_values_made_after_another_graph() {
    alone(|| derived_after_the_capture(Derived::Kept, true));
}

/// A graph writes parts of B that were lent by `write_parts`, and a quantizer outside of graphs writes all of B between its
/// capture and its launch: the product has the quantized rest and the graph's part.
fn parts_written_behind_a_quantizer(derived: Derived) {
    let Some(handle) = handle() else { return };
    let Some(mut weights) = Weights::new(&handle, derived) else { return };
    weights.derive(&handle);
    // One FP32 number a row: scales, or the bit patterns of eight codes.
    let numbers = match derived {
        Derived::Repeated => weights.b.scheme().scale_len(weights.b.rows(), weights.b.cols()),
        Derived::Kept => 4096,
    };
    let mut rows = handle.alloc(numbers * 16 * 4).unwrap();
    let mut loaded = handle.alloc(numbers * 4).unwrap();
    let x = MatRef::new(&rows, DType::F32, numbers, 16).unwrap();
    handle.row_amax_into(&x, &mut loaded.view_mut()).unwrap();
    let graph = handle.capture(|| {
        weights.b.write_parts(&handle, |mut parts| {
            let part = match derived {
                Derived::Repeated => &mut parts.scales,
                Derived::Kept => &mut parts.codes,
            };
            handle.row_amax_into(&x, part)
        })
    });
    let graph = graph.unwrap();
    let mut rng = Noise::new(103);
    for launch in 0..3 {
        let values: Vec<f32> = (0..numbers).map(|_| 2f32.powf(rng.uniform() * 8.0 - 4.0)).collect();
        let repeated: Vec<f32> = values.iter().flat_map(|value| [*value; 16]).collect();
        handle.write(&mut rows.view_mut(), &repeated).unwrap();
        weights.set(&handle, launch);
        weights.quantize(&handle).unwrap();
        let between = weights.product(&handle, |weights| weights.multiply(&handle));
        let quantized = weights.fresh(&handle);
        assert!(between == weights.want(&handle, &quantized), "{derived:?}, launch {launch}: behind the quantizer");
        handle.launch(&graph).unwrap();
        let got = weights.product(&handle, |weights| weights.multiply(&handle));
        let host = weights.b.to_host(&handle).unwrap();
        let part = match derived {
            Derived::Repeated => bytes_of(DType::F32, host.scales()),
            Derived::Kept => host.codes()[..numbers * 4].to_vec(),
        };
        assert!(part == bytes_of(DType::F32, &values), "{derived:?}, launch {launch}: the graph wrote its part");
        let fresh = QuantMatrix::from_host(&handle, &host).unwrap();
        let want = weights.want(&handle, &fresh);
        assert!(want != between, "another part, same product");
        assert!(got == want, "{derived:?}, launch {launch}: the product does not have what the graph wrote");
    }
}

#[test]
fn repeated_scales_follow_a_graph_launched_behind_a_quantizer() {
    alone(|| parts_written_behind_a_quantizer(Derived::Repeated));
}

#[test]
fn kept_values_follow_a_graph_launched_behind_a_quantizer() {
    alone(|| parts_written_behind_a_quantizer(Derived::Kept));
}

/// A graph of a product alone, and codes and scales copied into B by the caller between its launches.
fn parts_written_between_launches(derived: Derived) {
    let Some(handle) = handle() else { return };
    let Some(mut weights) = Weights::new(&handle, derived) else { return };
    weights.derive(&handle);
    let graph = handle.capture(|| weights.multiply(&handle)).unwrap();
    let mut before = None;
    for launch in 0..3 {
        weights.set(&handle, launch);
        let fresh = weights.fresh(&handle);
        let want = weights.want(&handle, &fresh);
        assert!(before.replace(want.clone()).as_ref() != Some(&want), "other weights, same product");
        let host = fresh.to_host(&handle).unwrap();
        let written = weights.b.write_parts(&handle, |mut parts| {
            handle.write(&mut parts.codes, host.codes())?;
            handle.write(&mut parts.scales, host.scales())?;
            handle.write(&mut parts.block_scales, host.block_scales())
        });
        written.unwrap();
        let got = weights.product(&handle, |_| handle.launch(&graph));
        assert!(got == want, "{derived:?}, launch {launch}: the graph has old weights");
        let eager = weights.product(&handle, |weights| weights.multiply(&handle));
        assert!(eager == want, "{derived:?}, launch {launch}: a call outside of the graph has old weights");
        let again = weights.product(&handle, |_| handle.launch(&graph));
        assert!(again == want, "{derived:?}, launch {launch}: the graph, once more");
    }
}

#[test]
fn a_graph_follows_repeated_scales_of_weights_copied_between_launches() {
    alone(|| parts_written_between_launches(Derived::Repeated));
}

#[test]
fn a_graph_follows_kept_values_of_weights_copied_between_launches() {
    alone(|| parts_written_between_launches(Derived::Kept));
}
