//! Graphs of `Handle::capture`: they outlive all that they were captured from, follow weights that are written around them, and
//! what they cannot own is refused.
//!
//! Tests that could break their context run in a process of their own (`hazards::alone`).
#![cfg(feature = "cuda")]

#[path = "common/calls.rs"]
mod calls;
mod common;
#[path = "common/hazards.rs"]
mod hazards;

use calls::*;
use common::gemm::*;
use common::*;
use hazards::*;
use scaled_gemm::cudarc::driver::DevicePtr;
use scaled_gemm::{
    DType, DeviceBuffer, DeviceBytes, Error, Formulation, GemmArgs, GemmDesc, Handle, HostQuantMatrix, MatMut, MatRef,
    QuantMatrix, QuantizeTo, Recipe, Scheme, VecRef,
};

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

fn outlives(kind: Kind, lose: impl FnOnce(&Handle, Call) -> Left) {
    let capture = |handle: &Handle, call: &mut Call| handle.capture(|| call.enqueue(handle)).unwrap();
    graph_outlives(kind, capture, |handle, graph| handle.launch(graph).unwrap(), lose);
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
fn a_graph_outlives_what_our_product_reads() {
    alone(|| outlives(Kind::Sm90, all_but_x_and_d));
    alone(|| outlives(Kind::SmallM, all_but_x_and_d));
    alone(|| outlives(Kind::Codes, all_but_x_and_d));
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

/// Numbers that a caller writes into a part of B, one FP32 for each row of another matrix: scales, or eight codes each.
struct Part {
    derived: Derived,
    numbers: usize,
    rows: DeviceBuffer,
    rng: Noise,
}

impl Part {
    /// What writes it is loaded.
    fn new(handle: &Handle, weights: &Weights) -> Self {
        let derived = weights.layer.derived;
        let numbers = match derived {
            Derived::Repeated => weights.b.scheme().scale_len(weights.b.rows(), weights.b.cols()),
            Derived::Kept => 4096,
        };
        let part = Self { derived, numbers, rows: handle.alloc(numbers * 16 * 4).unwrap(), rng: Noise::new(103) };
        let mut loaded = handle.alloc(numbers * 4).unwrap();
        handle.row_amax_into(&part.x().unwrap(), &mut loaded.view_mut()).unwrap();
        part
    }

    fn x(&self) -> Result<MatRef<'_>, Error> {
        MatRef::new(&self.rows, DType::F32, self.numbers, 16)
    }

    /// Other numbers, which the next [`Part::write`] writes.
    fn set(&mut self, handle: &Handle) -> Vec<u8> {
        let values: Vec<f32> = (0..self.numbers).map(|_| 2f32.powf(self.rng.uniform() * 8.0 - 4.0)).collect();
        let repeated: Vec<f32> = values.iter().flat_map(|value| [*value; 16]).collect();
        handle.write(&mut self.rows.view_mut(), &repeated).unwrap();
        bytes_of(DType::F32, &values)
    }

    fn write(&self, handle: &Handle, b: &mut QuantMatrix) -> Result<(), Error> {
        b.write_parts(handle, |mut parts| {
            let part = match self.derived {
                Derived::Repeated => &mut parts.scales,
                Derived::Kept => &mut parts.codes,
            };
            handle.row_amax_into(&self.x()?, part)
        })
    }

    /// What of it is in this matrix.
    fn of(&self, host: &HostQuantMatrix) -> Vec<u8> {
        match self.derived {
            Derived::Repeated => bytes_of(DType::F32, host.scales()),
            Derived::Kept => host.codes()[..self.numbers * 4].to_vec(),
        }
    }
}

/// A graph writes parts of B that were lent by `write_parts`, and a quantizer outside of graphs writes all of B between its
/// capture and its launch: the product has the quantized rest and the graph's part.
fn parts_written_behind_a_quantizer(derived: Derived) {
    let Some(handle) = handle() else { return };
    let Some(mut weights) = Weights::new(&handle, derived) else { return };
    weights.derive(&handle);
    let mut part = Part::new(&handle, &weights);
    let graph = handle.capture(|| part.write(&handle, &mut weights.b)).unwrap();
    for launch in 0..3 {
        let values = part.set(&handle);
        weights.set(&handle, launch);
        weights.quantize(&handle).unwrap();
        let between = weights.product(&handle, |weights| weights.multiply(&handle));
        let quantized = weights.fresh(&handle);
        assert!(between == weights.want(&handle, &quantized), "{derived:?}, launch {launch}: behind the quantizer");
        handle.launch(&graph).unwrap();
        let got = weights.product(&handle, |weights| weights.multiply(&handle));
        let host = weights.b.to_host(&handle).unwrap();
        assert!(part.of(&host) == values, "{derived:?}, launch {launch}: the graph wrote its part");
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

/// Who writes B in a graph.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Writer {
    Quantizer,
    Caller,
}

/// The product is captured first, what writes B second, and they are launched the other way round: the product has the new
/// weights, since the graph that writes them derives too. (Where it did not, the product had new codes with old scales, or a new
/// tensor scale with old values. No product here makes again what is derived, as those do that come after such a graph.)
fn derived_in_a_capture(derived: Derived, writer: Writer) {
    let Some(handle) = handle() else { return };
    let Some(mut weights) = Weights::new(&handle, derived) else { return };
    weights.derive(&handle);
    drop(weights.fresh(&handle));
    let mut part = Part::new(&handle, &weights);
    let multiplies = handle.capture(|| weights.multiply(&handle)).unwrap();
    let writes = handle.capture(|| match writer {
        Writer::Quantizer => weights.quantize(&handle),
        Writer::Caller => part.write(&handle, &mut weights.b),
    });
    let writes = writes.unwrap();
    let mut before = weights.product(&handle, |_| handle.launch(&multiplies));
    for launch in 0..3 {
        part.set(&handle);
        weights.set(&handle, launch);
        handle.launch(&writes).unwrap();
        let got = weights.product(&handle, |_| handle.launch(&multiplies));
        let fresh = QuantMatrix::from_host(&handle, &weights.b.to_host(&handle).unwrap()).unwrap();
        let want = weights.want(&handle, &fresh);
        assert!(std::mem::replace(&mut before, want.clone()) != want, "other weights, same product");
        assert!(got == want, "{derived:?}, {writer:?}, launch {launch}: the graph that writes B derives nothing");
    }
}

#[test]
fn a_graph_that_quantizes_repeats_the_scales() {
    alone(|| derived_in_a_capture(Derived::Repeated, Writer::Quantizer));
}

#[test]
fn a_graph_that_quantizes_writes_kept_values() {
    alone(|| derived_in_a_capture(Derived::Kept, Writer::Quantizer));
}

#[test]
fn a_graph_that_writes_parts_repeats_the_scales() {
    alone(|| derived_in_a_capture(Derived::Repeated, Writer::Caller));
}

#[test]
fn a_graph_that_writes_parts_writes_kept_values() {
    alone(|| derived_in_a_capture(Derived::Kept, Writer::Caller));
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
