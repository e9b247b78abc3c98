//! Captures by others, through cudarc: their graphs find their memory whole, whatever was dropped since, and what would break
//! a capture, or become a part of its graph, is refused.
//!
//! Each test runs in a process of its own (`hazards::alone`): a broken capture leaves errors behind.
#![cfg(feature = "cuda")]

#[path = "common/calls.rs"]
mod calls;
mod common;
#[path = "common/foreign.rs"]
mod foreign;
#[path = "common/hazards.rs"]
mod hazards;

use std::panic::{AssertUnwindSafe, catch_unwind};

use calls::*;
use common::gemm::*;
use common::*;
use foreign::*;
use hazards::*;
use scaled_gemm::cudarc::driver::sys::CUstreamCaptureMode::{
    self, CU_STREAM_CAPTURE_MODE_RELAXED as RELAXED, CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as THREAD_LOCAL,
};
use scaled_gemm::cudarc::driver::sys::CUstreamCaptureStatus::CU_STREAM_CAPTURE_STATUS_NONE;
use scaled_gemm::cudarc::driver::{CudaContext, CudaGraph, CudaStream, sys};
use scaled_gemm::{
    DType, DeviceBuffer, Error, Formulation, GroupedGemmArgs, GroupedRows, Handle, KernelFamily, MatMut, MatRef,
    PlanOptions, QuantizeTo, Recipe, Scheme, Timing,
};

const MODES: [CUstreamCaptureMode; 2] = [THREAD_LOCAL, RELAXED];
const ALL_MODES: [CUstreamCaptureMode; 3] = [THREAD_LOCAL, RELAXED, CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_GLOBAL];

fn is_captured(stream: &CudaStream) -> bool {
    stream.capture_status().unwrap() != CU_STREAM_CAPTURE_STATUS_NONE
}

/// D of a launch.
fn launched_by_cudarc(handle: &Handle, graph: &CudaGraph, call: &mut Call) -> Vec<u8> {
    fill(handle, &mut call.d);
    graph.launch().unwrap();
    handle.read_bytes(&call.d.view()).unwrap()
}

/// Products of slots on several streams fork and join in a capture of others; the handle goes on behind it, and one that is dropped inside leaves the capture whole.
fn takes_several_streams(modes: [CUstreamCaptureMode; 3]) {
    let Some(handle) = handle() else { return };
    let (groups, slot, n, k) = (6, 128, 128, 256);
    let mut rng = Noise::new(89);
    let mut cast = |rows: usize| {
        let x = handle.upload(&rng.bf16(rows * k, 1.0)).unwrap();
        handle.quantize(&MatRef::new(&x, DType::Bf16, rows, k).unwrap(), Recipe::new(Scheme::Nvfp4)).unwrap()
    };
    let (a, b) = (cast(groups * slot), cast(groups * n));
    let counts = handle.upload(&[1i64; 6]).unwrap();
    let mut d = handle.alloc(groups * slot * n * 2).unwrap();
    let run = |on: &Handle, d: &mut DeviceBuffer, streams| {
        let rows = GroupedRows::Masked { slot_rows: slot, counts: counts.view() };
        let d = MatMut::new(d, DType::Bf16, groups * slot, n)?;
        on.grouped_gemm(GroupedGemmArgs::new(&a, &b, groups, rows, d).product_a_slot().streams(streams))
    };
    run(&handle, &mut d, 1).unwrap();
    let want = handle.read_bytes(&d.view()).unwrap();
    let poison = |d: &mut DeviceBuffer| handle.write(&mut d.view_mut(), &vec![0xFFu8; want.len()]).unwrap();
    for mode in modes {
        let mut passing = Some(Handle::from_stream(handle.stream().clone()).unwrap());
        for on in [&handle, passing.as_ref().unwrap()] {
            poison(&mut d);
            run(on, &mut d, 4).unwrap();
            assert!(handle.read_bytes(&d.view()).unwrap() == want, "{mode:?}, before");
        }
        let graph = foreign(&handle, mode, || run(&handle, &mut d, 4));
        let dropped = foreign(&handle, mode, || {
            run(passing.as_ref().unwrap(), &mut d, 4)?;
            passing = None;
            run(&handle, &mut d, 2)
        });
        for (graph, what) in [(&graph, "alone"), (&dropped, "with a handle that was dropped inside")] {
            poison(&mut d);
            graph.launch().unwrap();
            assert!(handle.read_bytes(&d.view()).unwrap() == want, "{mode:?}, {what}");
            poison(&mut d);
            run(&handle, &mut d, 3).unwrap();
            assert!(handle.read_bytes(&d.view()).unwrap() == want, "{mode:?}, {what}, behind it");
        }
    }
}

#[test]
fn a_foreign_capture_takes_several_streams() {
    alone(|| takes_several_streams(ALL_MODES));
}

// What a graph was captured from is gone.

/// Nobody tells when a graph of others is gone, so that all it uses stays. (What was freed was given to the next who asked,
/// and the graph read and wrote there.)
fn outlives(kind: Kind, lose: impl Fn(&Handle, Call) -> Left) {
    for mode in MODES {
        let capture = |handle: &Handle, call: &mut Call| foreign(handle, mode, || call.enqueue(handle));
        graph_outlives(kind, capture, |_, graph| graph.launch().unwrap(), &lose);
    }
}

#[test]
fn a_foreign_graph_outlives_all_but_d() {
    alone(|| outlives(Kind::Rows, all_but_d));
}

#[test]
fn a_foreign_graph_follows_its_input() {
    alone(|| outlives(Kind::Rows, all_but_x_and_d));
}

#[test]
fn a_foreign_graph_outlives_what_our_product_reads() {
    alone(|| outlives(Kind::Sm90, all_but_d));
}

#[test]
fn a_foreign_graph_outlives_repeated_scales() {
    alone(|| outlives(Kind::Repeated, all_but_d));
}

#[test]
fn a_foreign_graph_outlives_kept_values() {
    alone(|| outlives(Kind::Kept, all_but_d));
}

#[test]
fn a_foreign_graph_outlives_scratch_memory() {
    alone(|| {
        outlives(Kind::Scratch, |handle, Call { d, plan, .. }| {
            assert!(plan.scratch_bytes() > 0, "{}", plan.explain());
            drop(plan);
            handle.trim_scratch().unwrap();
            Left { x: None, d, b: None, rest: Vec::new() }
        });
    });
}

/// The handle's own memory too: its workspace, and what the tensor quantizer counts in.
#[test]
fn a_foreign_graph_outlives_its_handle() {
    alone(|| {
        for mode in MODES {
            let Some((handle, mut call, _, want)) = ready(Kind::Scratch) else { return };
            let graph = foreign(&handle, mode, || call.enqueue(&handle));
            let mut sizes = call.allocations(&handle);
            // The workspace, and the small ones.
            sizes.extend([32 << 20, 64, 32]);
            // Made before, so that its own memory is not what was given back.
            let next = Handle::from_stream(handle.stream().clone()).unwrap();
            let Left { mut d, .. } = all_but_d(&handle, call);
            drop(handle);
            let poison = Poison::new(&next, &sizes);
            for launch in 0..3 {
                fill(&next, &mut d);
                graph.launch().unwrap();
                assert!(next.read_bytes(&d.view()).unwrap() == want, "{mode:?}, launch {launch}");
            }
            poison.check(&next, "a handle that is gone");
        }
    });
}

/// What is dropped meanwhile, here or in another thread, waits for nothing: cuBLASLt's own handles stay, as destroying one would wait for the GPU and break the capture.
#[test]
fn handles_that_are_dropped_meanwhile_leave_a_capture_whole() {
    alone(|| {
        for mode in ALL_MODES {
            for elsewhere in [false, true] {
                let Some((handle, mut call, _, want)) = ready(Kind::Scratch) else { return };
                let (on_its_stream, other) =
                    (Handle::from_stream(handle.stream().clone()).unwrap(), Handle::new(0).unwrap());
                drop(other.upload(&[1u8; 1 << 20]).unwrap());
                let graph = foreign(&handle, mode, || {
                    let dropped = move || drop((on_its_stream, other));
                    if elsewhere {
                        std::thread::spawn(dropped).join().unwrap()
                    } else {
                        dropped()
                    }
                    call.enqueue(&handle)
                });
                let mut d = all_but_d(&handle, call).d;
                fill(&handle, &mut d);
                graph.launch().unwrap();
                assert!(handle.read_bytes(&d.view()).unwrap() == want, "{mode:?}, elsewhere: {elsewhere}");
            }
        }
    });
}

/// The default stream waits for blocking ones, so that a free on it would break a capture of those: it comes when that has ended.
#[test]
fn buffers_of_the_default_stream_leave_a_capture_of_a_blocking_one_whole() {
    alone(|| {
        let Some(first) = handle() else { return };
        let context = first.stream().context().clone();
        let handle = Handle::from_stream(context.default_stream()).unwrap();
        let mut raw = std::ptr::null_mut();
        // SAFETY: making the handle has bound the context, and the driver writes one stream to `raw`.
        unsafe { sys::cuStreamCreate(&mut raw, 0) }.result().unwrap();
        // SAFETY: it was made in this context, and is never destroyed.
        let blocking = unsafe { context.wrap_borrowed_stream(raw) };
        for (mode, elsewhere) in ALL_MODES.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
            let buffer = handle.upload(&[1u8; 1 << 20]).unwrap();
            handle.synchronize().unwrap();
            blocking.begin_capture(mode).unwrap();
            match elsewhere {
                true => std::thread::spawn(|| drop(buffer)).join().unwrap(),
                false => drop(buffer),
            }
            let ended = blocking.end_capture(sys::CUgraphInstantiate_flags(0));
            assert!(ended.is_ok(), "{mode:?}, elsewhere: {elsewhere}: {:?}", ended.err());
        }
    });
}

/// How a closure of `Handle::capture` returns that has ended the capture itself.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Returns {
    Ok,
    Error,
    Panic,
    /// In a capture, which is not the one it was called in.
    InAnother,
    /// The same, and that one is broken: no graph will come of it.
    InABrokenOne,
}

/// Then the graph is somebody else's, and what it uses stays. (After a panic nothing was kept: the log was gone with it.)
fn ended_inside(returns: Returns) {
    let capture = |handle: &Handle, call: &mut Call| {
        let mut graph = None;
        let captured = catch_unwind(AssertUnwindSafe(|| {
            handle.capture(|| {
                call.enqueue(handle)?;
                graph = Some(end(handle.stream()));
                match returns {
                    Returns::Ok => Ok(()),
                    Returns::Error => Err(Error::Driver { call: "the closure's own".into(), reason: "error".into() }),
                    Returns::Panic => panic!("the closure's own panic"),
                    Returns::InAnother => {
                        handle.stream().begin_capture(THREAD_LOCAL).unwrap();
                        call.enqueue(handle)
                    }
                    Returns::InABrokenOne => {
                        handle.stream().begin_capture(THREAD_LOCAL).unwrap();
                        // SAFETY: the stream is alive; the driver refuses to wait for what a capture has, and breaks the capture.
                        let refused = unsafe { sys::cuStreamSynchronize(handle.stream().cu_stream()) };
                        assert!(refused.result().is_err(), "a stream that is captured was waited for");
                        Ok(())
                    }
                }
            })
        }));
        match captured {
            Ok(captured) => {
                assert_ne!(returns, Returns::Panic, "the panic was lost");
                let words =
                    captured.err().unwrap_or_else(|| panic!("{returns:?}: a graph that others have")).to_string();
                assert!(returns != Returns::Error || words.contains("the closure's own"), "{words}");
            }
            Err(panic) => {
                let words = panic.downcast_ref::<&str>().copied();
                assert_eq!(words, Some("the closure's own panic"), "{returns:?}");
            }
        }
        assert!(!is_captured(handle.stream()), "{returns:?}: still captured");
        graph.unwrap()
    };
    graph_outlives(
        Kind::Scratch,
        capture,
        |_, graph| graph.launch().unwrap(),
        |handle, Call { d, plan, .. }| {
            drop(plan);
            handle.trim_scratch().unwrap();
            Left { x: None, d, b: None, rest: Vec::new() }
        },
    );
}

#[test]
fn a_capture_that_its_closure_ends_keeps_memory() {
    alone(|| ended_inside(Returns::Ok));
}

#[test]
fn a_capture_that_its_closure_ends_with_an_error_keeps_memory() {
    alone(|| ended_inside(Returns::Error));
}

#[test]
fn a_capture_that_its_closure_ends_with_a_panic_keeps_memory() {
    alone(|| ended_inside(Returns::Panic));
}

#[test]
fn a_capture_that_its_closure_replaces_keeps_memory() {
    alone(|| ended_inside(Returns::InAnother));
}

/// (What broke was taken for the capture whose graph somebody has.)
#[test]
fn a_capture_that_its_closure_replaces_and_breaks_keeps_memory() {
    alone(|| ended_inside(Returns::InABrokenOne));
}

/// A call of cudarc's waits for an event from before the capture, which breaks it: that is an error, and the next capture is
/// whole. (cudarc returned the error in the place of ending the capture, and the stream stayed captured.)
#[test]
fn a_capture_that_cudarc_breaks_is_ended() {
    alone(|| {
        let Some((handle, mut call, set, want)) = ready(Kind::Rows) else { return };
        let mut slice = handle.stream().alloc_zeros::<u8>(64).unwrap();
        let broken = handle.capture(|| {
            call.enqueue(&handle)?;
            // Its error, if it says any, is lost.
            let _ = handle.stream().memset_zeros(&mut slice);
            Ok(())
        });
        // Its events may be of the broken capture.
        std::mem::forget(slice);
        assert!(matches!(broken.err(), Some(Error::Driver { .. })), "a broken capture gave a graph");
        assert!(!is_captured(handle.stream()), "still captured");
        works(&handle, &mut call, &set, &want, "after a capture that cudarc broke");
    });
}

// Refusals, after which the handle works on.

/// Calls that are refused in the captures of others and leave nothing there: the graph is that of the call behind them.
fn refused_inside(tries: impl Fn(&Handle, &mut Call)) {
    for mode in MODES {
        let Some((handle, mut call, set, want)) = ready(Kind::Rows) else { return };
        let without = foreign(&handle, mode, || call.enqueue(&handle));
        let graph = foreign(&handle, mode, || {
            tries(&handle, &mut call);
            call.enqueue(&handle)
        });
        assert_eq!(nodes(&graph), nodes(&without), "{mode:?}: nodes of the graph with the refusals, and without");
        for launch in 0..2 {
            let got = launched_by_cudarc(&handle, &graph, &mut call);
            assert!(got == want, "{mode:?}, launch {launch}: a graph with refusals in its capture");
        }
        works(&handle, &mut call, &set, &want, "after the refusals");
    }
}

const WORDS: [&str; 1] = ["captur"];

/// A second handle of the stream. (Its workspace became memory of the graph, which had it back with the first launch.)
#[test]
fn a_handle_of_a_captured_stream_is_refused() {
    alone(|| {
        refused_inside(|handle, _| {
            refused(Handle::from_stream(handle.stream().clone()), &["captured"]);
        });
        let Some(handle) = handle() else { return };
        let Some(mut call) = Call::new(&handle, Kind::Rows) else { return };
        let [set, second, _] = activations();
        let want = call.eager(&handle, &set);
        let twin = || Handle::from_stream(handle.stream().clone());
        refused(handle.capture(|| twin().map(drop)), &["captured"]);
        works(&handle, &mut call, &set, &want, "after a handle in a capture");
        let mut tried = None;
        let graph = handle.capture(|| {
            tried = Some(twin());
            call.enqueue(&handle)
        });
        refused(tried.unwrap(), &["captured"]);
        let graph = graph.unwrap_or_else(|e| panic!("a handle that was refused broke the capture: {e}"));
        launched(&handle, &graph, &mut call, &want, "with a refused handle in its capture");
        // After the captures it is made, and computes.
        let twin = twin().unwrap();
        let mut theirs = Call::new(&twin, Kind::Rows).unwrap();
        let want_of_theirs = theirs.eager(&twin, &second);
        works(&twin, &mut theirs, &second, &want_of_theirs, "the second handle");
        works(&handle, &mut call, &set, &want, "beside a second handle");
    });
}

/// (The memory was the graph's: alive between its launches only.)
#[test]
fn allocations_in_a_foreign_capture_are_refused() {
    alone(|| {
        refused_inside(|handle, _| {
            refused(handle.alloc(1 << 16), &WORDS);
            refused(handle.upload(&[1f32; 64]), &WORDS);
            refused(handle.upload::<f32>(&[]), &WORDS);
        });
    });
}

/// What happened to a slice before cannot be told inside.
#[test]
fn taking_over_a_slice_in_a_foreign_capture_is_refused() {
    alone(|| {
        for mode in MODES {
            let Some((handle, mut call, set, want)) = ready(Kind::Rows) else { return };
            let slice = poisoned(&handle, 1 << 16);
            let without = foreign(&handle, mode, || call.enqueue(&handle));
            let graph = foreign(&handle, mode, || {
                refused(DeviceBuffer::from_slice(slice), &WORDS);
                call.enqueue(&handle)
            });
            assert_eq!(nodes(&graph), nodes(&without), "{mode:?}: nodes of the graph with the refusal, and without");
            assert!(launched_by_cudarc(&handle, &graph, &mut call) == want, "{mode:?}: with a refusal in its capture");
            let slice = poisoned(&handle, 1 << 16);
            let taken = DeviceBuffer::from_slice(slice).unwrap();
            let bytes = handle.read_bytes(&taken.view()).unwrap();
            assert!(bytes.iter().all(|byte| *byte == 0xFF), "{mode:?}: taken over afterwards");
            works(&handle, &mut call, &set, &want, "after the refusal");
        }
    });
}

/// (It allocated and cleared its own memory inside, and was refused only where it waited.)
#[test]
fn timing_in_a_foreign_capture_is_refused() {
    alone(|| {
        for timing in [Timing::PAUSES, Timing::SUSTAINED, Timing::PAUSES.flushed()] {
            refused_inside(|handle, call| {
                refused(timing.time(handle, |_| call.enqueue(handle)), &WORDS);
                refused(timing.in_turns(handle, 2, |_, _| call.enqueue(handle)), &WORDS);
            });
        }
    });
}

// Operands of others.

/// A slice whose own stream is captured.
#[derive(Clone, Copy, Debug)]
enum Captured {
    /// Nobody touches it inside.
    Untouched,
    /// Its event is then one of the capture.
    Written,
    /// cudarc orders nothing, so that the handle's stream would join the slice's.
    SingleStream,
}

/// It is no operand for another stream: work there would wait for the capture. (It did, and so became a part of it: the handle's
/// stream was captured without a word, and the capture could not be ended.)
fn slice_of_a_captured_stream(captured: Captured) {
    for mode in MODES {
        let Some(handle) = handle() else { return };
        let what = format!("{mode:?}, {captured:?}");
        let stream = handle.stream().context().new_stream().unwrap();
        let home = match captured {
            Captured::SingleStream => {
                let context = CudaContext::new(0).unwrap();
                // SAFETY: the stream is of the same context, and lives to the end of this round, as the slices do.
                let home = unsafe { context.wrap_borrowed_stream(stream.cu_stream()) };
                assert!(!home.context().is_in_multi_stream_mode(), "{what}: this is the other mode");
                home
            }
            Captured::Untouched | Captured::Written => stream.clone(),
        };
        let Some(mut call) = Call::new(&handle, Kind::Rows) else { return };
        let ([m, _, k], [set, ..]) = (SHAPE, activations());
        let want = call.eager(&handle, &set);
        let [mut x, mut y] = [(); 2].map(|()| match captured {
            // SAFETY: nobody reads them. No event of theirs is recorded yet: a capture bears to wait for none from before it.
            Captured::Written => unsafe { home.alloc::<u8>(m * k * 4) }.unwrap(),
            Captured::Untouched | Captured::SingleStream => home.alloc_zeros(m * k * 4).unwrap(),
        });
        home.synchronize().unwrap();
        let recipe = Recipe::new(call.a.scheme());
        home.begin_capture(mode).unwrap();
        if let Captured::Written = captured {
            home.memset_zeros(&mut x).unwrap();
            home.memset_zeros(&mut y).unwrap();
        }
        let read = {
            let x = MatRef::new(&x, DType::F32, m, k).unwrap();
            handle.quantize_into(&x, recipe, QuantizeTo::Plain(&mut call.a))
        };
        assert!(!is_captured(handle.stream()), "{what}: a read, and the handle's stream is captured");
        let written = handle.dequantize_into(&call.a, &mut MatMut::new(&mut y, DType::F32, m, k).unwrap());
        assert!(!is_captured(handle.stream()), "{what}: a write, and the handle's stream is captured");
        refused(read, &WORDS);
        refused(written, &WORDS);
        let ended = home.end_capture(sys::CUgraphInstantiate_flags(0));
        assert!(ended.is_ok(), "{what}: the capture is broken: {ended:?}", ended = ended.err());
        works(&handle, &mut call, &set, &want, &what);
        match captured {
            // Its events cannot be waited for any more, not even by what frees it.
            Captured::Written => std::mem::forget((x, y)),
            // Taken when the capture has ended.
            Captured::Untouched | Captured::SingleStream => {
                let x = MatRef::new(&x, DType::F32, m, k).unwrap();
                handle.quantize_into(&x, recipe, QuantizeTo::Plain(&mut call.a)).unwrap();
                handle.dequantize_into(&call.a, &mut MatMut::new(&mut y, DType::F32, m, k).unwrap()).unwrap();
                handle.synchronize().unwrap();
            }
        }
    }
}

#[test]
fn a_slice_of_a_captured_stream_is_refused() {
    alone(|| slice_of_a_captured_stream(Captured::Untouched));
}

#[test]
fn a_slice_written_in_a_capture_is_refused() {
    alone(|| slice_of_a_captured_stream(Captured::Written));
}

#[test]
fn a_slice_of_a_captured_stream_is_refused_in_single_stream_mode() {
    alone(|| slice_of_a_captured_stream(Captured::SingleStream));
}

/// A slice that was written in the capture of a third stream, while its own is not captured. Its event draws in whoever waits for
/// it, which is seen only afterwards; then nothing is enqueued, and the capture ends whole. (A slice of the handle's own stream was
/// not asked, so that the work became a part of the capture without a word.)
fn slice_written_in_anothers_capture(own: bool) {
    for (mode, reads) in MODES.into_iter().flat_map(|mode| [(mode, false), (mode, true)]) {
        let Some((handle, mut call, set, want)) = ready(Kind::Rows) else { return };
        let what = format!("{mode:?}, reads: {reads}");
        let context = handle.stream().context();
        let (home, third) = (context.new_stream().unwrap(), context.new_stream().unwrap());
        let home = if own { handle.stream().clone() } else { home };
        let [m, _, k] = SHAPE;
        // SAFETY: nobody reads it. No event of it is recorded yet: a capture bears to wait for none from before it.
        let mut y = unsafe { home.alloc::<u8>(m * k * 4) }.unwrap();
        home.synchronize().unwrap();
        third.begin_capture(mode).unwrap();
        third.memset_zeros(&mut y).unwrap();
        let tried = match reads {
            false => handle.dequantize_into(&call.a, &mut MatMut::new(&mut y, DType::F32, m, k).unwrap()),
            true => {
                let recipe = Recipe::new(call.a.scheme());
                let y = MatRef::new(&y, DType::F32, m, k).unwrap();
                handle.quantize_into(&y, recipe, QuantizeTo::Plain(&mut call.a))
            }
        };
        refused(tried, &WORDS);
        assert_eq!(nodes(&end(&third)), 1, "{what}: the graph has the clearing alone");
        assert!(!is_captured(handle.stream()), "{what}: still captured");
        // Its events cannot be waited for any more, not even by what frees it.
        std::mem::forget(y);
        works(&handle, &mut call, &set, &want, &what);
    }
}

#[test]
fn a_slice_written_in_anothers_capture_is_refused() {
    alone(|| slice_written_in_anothers_capture(false));
}

#[test]
fn a_slice_of_the_handles_stream_written_in_anothers_capture_is_refused() {
    alone(|| slice_written_in_anothers_capture(true));
}

/// Values that a B keeps, which a graph wrote, are made again in each call that reads them, and in no other.
#[test]
fn kept_values_are_made_again_for_their_readers() {
    alone(|| {
        made_again_for_their_readers();
    });
}

fn made_again_for_their_readers() {
    let Some(handle) = handle() else { return };
    if !KernelFamily::SmallM.runs_on(handle.device().compute_capability) {
        return;
    }
    let mut rng = Noise::new(83);
    let (x, w) = (tiled(&mut rng, 3, 256), tiled(&mut rng, 64, 256));
    let weights = upload(&handle, &bytes_of(DType::Bf16, w.iter()));
    let mut ops = PlainOperands::of(&handle, &x, DType::Bf16, 0, quantized(&w, Scheme::Nvfp4));
    ops.b.keep_dequantized(&handle, DType::Bf16).unwrap();
    let case = Case::new(DType::Bf16);
    let extras = Extras::new(&handle, &mut rng, 3, 64, &[]);
    let count = |ops: &PlainOperands, formulation| {
        let options = PlanOptions::default().with_formulation(formulation);
        let mut plan = handle.plan_with(&case.desc(ops), &options).unwrap();
        plan.prepare(&handle, &ops.b).unwrap();
        let mut output = Output::new(&handle, ops, &extras, &case);
        nodes(&foreign(&handle, RELAXED, || plan.execute(&handle, output.args(ops, &extras, &case))))
    };
    let ways = [Formulation::SmallM, Formulation::DequantizedBf16];
    let before = ways.map(|way| count(&ops, way));
    let graph = capture(&handle, || {
        let w = MatRef::new(&weights, DType::Bf16, 64, 256)?;
        handle.quantize_into(&w, Recipe::new(Scheme::Nvfp4), QuantizeTo::Plain(&mut ops.b))
    });
    let after = ways.map(|way| count(&ops, way));
    assert_eq!([after[0], after[1] - 1], before, "launches of {ways:?}");
    drop(graph.unwrap());
}
