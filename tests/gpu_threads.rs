//! Many handles, streams and threads at once give the bits that each gives alone, without a wait that the caller writes.
#![cfg(feature = "cuda")]

#[path = "common/calls.rs"]
mod calls;
mod common;
#[path = "common/hazards.rs"]
mod hazards;
#[path = "common/sm90_work.rs"]
mod sm90_work;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use calls::{Weights, fill};
use common::gemm::*;
use common::*;
use hazards::{Derived, alone, two_handles};
use ndarray::Array2;
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::{
    Activation, DType, Formulation, Fp8Format, GemmPlan, Handle, MatRef, QuantMatrix, QuantizeTo, Recipe, Scheme,
};
use sm90_work::Sm90Work;

const THREADS: usize = 8;
const ROUNDS: usize = 40;

/// Eight problems that differ in scheme, shape, epilogue and formulation.
fn problem(thread: usize) -> ((Scheme, Scheme), [usize; 3], Case) {
    let pair = mixes(FAMILIES[thread % FAMILIES.len()])[thread % 3];
    let shape = [[1, 520, 576], [17, 2112, 144], [64, 1024, 1024], [130, 520, 2048]][thread % 4];
    let plain = Case::new([DType::Bf16, DType::F32, DType::F16][thread % 3]);
    let layer = Case {
        bias: Some(DType::Bf16),
        activation: [Activation::Silu, Activation::Relu][thread / 2 % 2],
        residual: (thread % 4 == 1).then_some(DType::F32),
        gap: 8,
        ..plain
    };
    (pair, shape, [plain, layer][thread % 2])
}

/// The operands of one thread on its handle.
struct Work {
    ops: Operands,
    extras: Extras,
    case: Case,
    x: CudaSlice<u8>,
}

impl Work {
    fn new(handle: &Handle, thread: usize) -> Self {
        let (pair, [m, n, k], case) = problem(thread);
        let mut rng = Noise::new(100 + thread as u64);
        let x = tiled(&mut rng, m, k);
        let ops = Operands::of(handle, quantized(&x, pair.0), quantized(&tiled(&mut rng, n, k), pair.1));
        let extras = Extras::new(handle, &mut rng, m, n, &[case.gap]);
        Self { ops, extras, case, x: upload(handle, &bytes_of(DType::F32, x.iter())) }
    }

    /// A plan, if this GPU has the pair.
    fn plan(&self, handle: &Handle) -> Option<GemmPlan> {
        let desc = self.case.desc(&self.ops);
        (!offered(handle, &desc).is_empty()).then(|| handle.plan(&desc).unwrap())
    }

    /// Quantizes x again into A, which must not change it.
    fn requantize(&mut self, handle: &Handle) {
        let a = &mut self.ops.a;
        let x = MatRef::new(&self.x, DType::F32, a.rows(), a.cols()).unwrap();
        let recipe = Recipe::new(a.scheme());
        handle.quantize_into(&x, recipe, QuantizeTo::Plain(a)).unwrap();
    }
}

#[test]
fn eight_threads_with_handles_of_their_own() {
    if handle().is_none() {
        return;
    }
    let alone: Vec<Option<Stored>> = (0..THREADS)
        .map(|thread| {
            let handle = Handle::new(0).unwrap();
            let work = Work::new(&handle, thread);
            let mut plan = work.plan(&handle)?;
            Some(execute(&handle, &mut plan, &work.ops, &work.extras, &work.case))
        })
        .collect();
    let start = Barrier::new(THREADS);
    thread::scope(|scope| {
        for (thread, want) in alone.iter().enumerate() {
            let start = &start;
            scope.spawn(move || {
                let handle = Handle::new(0).unwrap();
                let mut work = Work::new(&handle, thread);
                let plan = work.plan(&handle);
                let mut output = Output::new(&handle, &work.ops, &work.extras, &work.case);
                start.wait();
                let (Some(mut plan), Some(want)) = (plan, want) else { return };
                plan.prepare(&handle, &work.ops.b).unwrap();
                for round in 0..ROUNDS {
                    output.reset(&handle);
                    // Some calls without a wait, so that the threads' work overlaps on the GPU.
                    for call in 0..5 {
                        work.requantize(&handle);
                        let args = output.args(&work.ops, &work.extras, &work.case);
                        match call % 2 {
                            0 => plan.execute(&handle, args).unwrap(),
                            _ => handle.scaled_gemm(args).unwrap(),
                        }
                    }
                    let got = output.read(&handle, "threads");
                    assert!(got == *want, "thread {thread}, round {round} differs\n{}", plan.explain());
                }
            });
        }
    });
}

/// The same of `sm90`, whole products with every kind of scales and groups, whose tensor maps each plan and handle makes for itself; then each handle goes on in this thread.
#[test]
fn eight_threads_of_sm90_and_its_groups() {
    let Some(first) = handle() else { return };
    let alone: Vec<_> = (0..THREADS).map_while(|thread| Some(Sm90Work::new(&first, thread)?.want)).collect();
    if alone.len() < THREADS {
        return;
    }
    let start = Barrier::new(THREADS);
    let moved: Vec<_> = thread::scope(|scope| {
        let threads = alone.iter().enumerate().map(|(thread, want)| {
            let start = &start;
            scope.spawn(move || {
                let handle = Handle::new(0).unwrap();
                let mut work = Sm90Work::new(&handle, thread).unwrap();
                assert!(work.want == *want, "thread {thread}: another handle gives other bits");
                start.wait();
                for round in 0..ROUNDS {
                    work.reset(&handle);
                    // Some calls without a wait, so that the threads' work overlaps on the GPU.
                    (0..5).for_each(|_| work.launch(&handle).unwrap());
                    // Where D is added to, each call would change it: the last one has one of its own.
                    work.reset(&handle);
                    work.launch(&handle).unwrap();
                    work.check(&handle, &format!("thread {thread}, round {round}"));
                }
                (handle, work)
            })
        });
        let threads: Vec<_> = threads.collect();
        threads.into_iter().map(|thread| thread.join().unwrap()).collect()
    });
    for (number, (handle, mut work)) in moved.into_iter().enumerate() {
        work.reset(&handle);
        work.launch(&handle).unwrap();
        work.check(&handle, &format!("the handle of thread {number}, moved to the first"));
    }
}

/// Handles made, used and dropped by many threads at once: the libraries are loaded once, and nothing is torn down early.
#[test]
fn handles_come_and_go() {
    if handle().is_none() {
        return;
    }
    let start = Barrier::new(THREADS);
    thread::scope(|scope| {
        for thread in 0..THREADS {
            let start = &start;
            scope.spawn(move || {
                start.wait();
                let mut first = None;
                for _ in 0..5 {
                    let handle = Handle::new(0).unwrap();
                    let work = Work::new(&handle, thread);
                    let Some(mut plan) = work.plan(&handle) else { return };
                    let got = execute(&handle, &mut plan, &work.ops, &work.extras, &work.case);
                    assert!(*first.get_or_insert(got.clone()) == got, "thread {thread}\n{}", plan.explain());
                }
            });
        }
    });
}

/// Four handles on one context share one B, whose repeated scales they all want at once.
#[test]
fn shared_weights_are_prepared_once_by_whoever_comes_first() {
    let Some(handle) = handle() else { return };
    let pair = (Scheme::Fp8Group1x128(Fp8Format::E4M3), Scheme::Fp8Group128x128(Fp8Format::E4M3));
    let (shape, case) = ([20, 2112, 1024], Case::new(DType::Bf16));
    let ops = Operands::new(&handle, &mut Noise::new(51), shape, pair);
    let extras = Extras::new(&handle, &mut Noise::new(0), shape[0], shape[1], &[]);
    let desc = case.desc(&ops);
    if !offered(&handle, &desc).contains(&Formulation::RepeatedScales) {
        println!("skipped: {} offers no repeated scales", handle.device());
        return;
    }
    let want = execute(&handle, &mut plan(&handle, &desc, Formulation::RepeatedScales), &ops, &extras, &case);
    let native = execute(&handle, &mut plan(&handle, &desc, Formulation::Native), &ops, &extras, &case);
    let context = handle.stream().context();
    for round in 0..10 {
        let weights = Arc::new(QuantMatrix::from_host(&handle, &ops.host_b).unwrap());
        let bytes = weights.device_bytes();
        let start = Arc::new(Barrier::new(4));
        let threads: Vec<_> = (0..4)
            .map(|thread| {
                let (weights, start, host_a) = (weights.clone(), start.clone(), ops.host_a.clone());
                let (host_b, context) = (ops.host_b.clone(), context.clone());
                let (want, native) = (want.clone(), native.clone());
                thread::spawn(move || {
                    let handle = Handle::from_stream(context.new_stream().unwrap()).unwrap();
                    let own = Operands::of(&handle, host_a, host_b);
                    let extras = Extras::new(&handle, &mut Noise::new(0), shape[0], shape[1], &[]);
                    let formulation = [Formulation::RepeatedScales, Formulation::Native][usize::from(thread == 3)];
                    let want = [want, native][usize::from(thread == 3)].clone();
                    let mut plan = plan(&handle, &desc, formulation);
                    let mut output = Output::new(&handle, &own, &extras, &case);
                    start.wait();
                    plan.prepare(&handle, &weights).unwrap();
                    for call in 0..10 {
                        plan.execute(&handle, output.args_of(&own.a, &weights, &extras, &case)).unwrap();
                        let got = output.read(&handle, "shared");
                        assert!(got == want, "round {round}, thread {thread}, call {call}\n{}", plan.explain());
                        output.reset(&handle);
                    }
                })
            })
            .collect();
        threads.into_iter().for_each(|t| t.join().unwrap());
        assert_eq!(weights.device_bytes(), bytes + shape[1] * shape[2] / 128 * 4, "one second buffer");
    }
}

#[test]
fn a_handle_moves_between_threads_with_its_plans_and_matrices() {
    let Some(handle) = handle() else { return };
    for number in 0..THREADS {
        let work = Work::new(&handle, number);
        let Some(mut plan) = work.plan(&handle) else { continue };
        let want = execute(&handle, &mut plan, &work.ops, &work.extras, &work.case);
        let moved = thread::scope(|scope| {
            let (plan, work) = (&mut plan, &work);
            scope.spawn(move || execute_elsewhere(plan, work)).join().unwrap()
        });
        assert!(moved == want, "another handle in another thread");
    }
    // Now the handle itself: made here, used there, used here again.
    let work = Work::new(&handle, 3);
    let Some(mut plan) = work.plan(&handle) else { return };
    let want = execute(&handle, &mut plan, &work.ops, &work.extras, &work.case);
    let there = thread::spawn(move || {
        let got = execute(&handle, &mut plan, &work.ops, &work.extras, &work.case);
        let mut output = Output::new(&handle, &work.ops, &work.extras, &work.case);
        handle.scaled_gemm(output.args(&work.ops, &work.extras, &work.case)).unwrap();
        let cached = output.read(&handle, "there");
        (handle, plan, work, got, cached)
    });
    let (handle, mut plan, work, got, cached) = there.join().unwrap();
    assert!(got == want && cached == want, "in the other thread");
    assert!(execute(&handle, &mut plan, &work.ops, &work.extras, &work.case) == want, "back again");
}

/// The same problem on a handle made in this thread, planned from the record of another thread's plan.
fn execute_elsewhere(plan: &mut GemmPlan, work: &Work) -> Stored {
    let handle = Handle::new(0).unwrap();
    let options = scaled_gemm::PlanOptions::default().with_record(plan.record().unwrap());
    let mut plan = handle.plan_with(plan.desc(), &options).unwrap();
    let ops = Operands::of(&handle, work.ops.host_a.clone(), work.ops.host_b.clone());
    execute(&handle, &mut plan, &ops, &work.extras, &work.case)
}

/// Some hundred microseconds of work on the handle's stream.
fn delay(handle: &Handle, x: &CudaSlice<f32>, q: &mut QuantMatrix) {
    let x = MatRef::new(x, DType::F32, q.rows(), q.cols()).unwrap();
    for _ in 0..8 {
        handle.quantize_into(&x, Recipe::new(q.scheme()), QuantizeTo::Plain(q)).unwrap();
    }
}

/// Operands written on one stream and read on another, overwritten while the other may still read, and freed while it may
/// still read: cudarc's events order all three, and this crate must not lose them.
#[test]
fn streams_wait_for_each_other_without_being_told() {
    let Some(writer) = handle() else { return };
    let reader = Handle::from_stream(writer.stream().context().new_stream().unwrap()).unwrap();
    let mut rng = Noise::new(52);
    let (size, slow) = (4096, Scheme::Fp8Row(Fp8Format::E4M3));
    let big = writer.stream().alloc_zeros::<f32>(size * size).unwrap();
    let big_too = reader.stream().alloc_zeros::<f32>(size * size).unwrap();
    let mut busy = QuantMatrix::zeros(&writer, slow, size, size).unwrap();
    let mut busy_too = QuantMatrix::zeros(&reader, slow, size, size).unwrap();
    let (m, n, k) = (64, 520, 1024);
    for family in FAMILIES {
        let pair = mixes(family)[0];
        let recipe = Recipe::new(pair.0);
        let mut ops = Operands::new(&writer, &mut rng, [m, n, k], pair);
        let extras = Extras::new(&writer, &mut rng, m, n, &[0]);
        let case = Case { bias: Some(DType::F32), ..Case::new(DType::Bf16) };
        if offered(&reader, &case.desc(&ops)).is_empty() {
            continue;
        }
        let mut plan = reader.plan(&case.desc(&ops)).unwrap();
        plan.prepare(&reader, &ops.b).unwrap();
        let inputs: [Array2<f32>; 2] = std::array::from_fn(|_| tiled(&mut rng, m, k));
        let on_device = inputs.each_ref().map(|x| upload(&writer, &bytes_of(DType::F32, x.iter())));
        let wants = inputs.each_ref().map(|x| {
            let alone = Operands::of(&reader, quantized(x, pair.0), ops.host_b.clone());
            execute(&reader, &mut plan, &alone, &extras, &case)
        });
        assert!(wants[0] != wants[1]);
        writer.synchronize().unwrap();
        reader.synchronize().unwrap();
        for round in 0..20 {
            let mut outputs: [Output; 2] = std::array::from_fn(|_| Output::new(&writer, &ops, &extras, &case));
            // Both writes wait on a busy stream, and so does the first read: the second write must wait for it.
            for (i, output) in outputs.iter_mut().enumerate() {
                delay(&writer, &big, &mut busy);
                let x = MatRef::new(&on_device[i], DType::F32, m, k).unwrap();
                writer.quantize_into(&x, recipe, QuantizeTo::Plain(&mut ops.a)).unwrap();
                delay(&reader, &big_too, &mut busy_too);
                plan.execute(&reader, output.args(&ops, &extras, &case)).unwrap();
            }
            for (i, output) in outputs.iter().enumerate() {
                let got = output.read(&writer, "read on the writer's stream");
                assert!(got == wants[i], "{family:?}, round {round}, output {i}\n{}", plan.explain());
            }
            // A matrix that is gone, and whose memory is written again, before the reader has come to it.
            let mut output = Output::new(&writer, &ops, &extras, &case);
            let x = MatRef::new(&on_device[0], DType::F32, m, k).unwrap();
            let a = writer.quantize(&x, recipe).unwrap();
            let bytes = a.codes().len();
            delay(&reader, &big_too, &mut busy_too);
            plan.execute(&reader, output.args_of(&a, &ops.b, &extras, &case)).unwrap();
            drop(a);
            let reused = poisoned(&writer, bytes);
            assert!(output.read(&writer, "freed") == wants[0], "{family:?}, round {round}: freed too early");
            drop(reused);
        }
    }
}

/// Set when it is dropped, also by a panic: another thread goes on until then.
struct Until<'a>(&'a AtomicBool);

impl Drop for Until<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Release);
    }
}

/// One thread writes weights in turns while another launches a graph that multiplies by them, on another stream: each D is that of
/// one set of weights. (A launch came between the new codes and what is derived from them, and its product was of both sets.)
/// It goes on until products of either set were seen while the other thread wrote, however the threads are scheduled.
fn weights_written_while_a_graph_serves(derived: Derived) {
    const LAUNCHES: usize = 400;
    const LIMIT: Duration = Duration::from_secs(120);
    let Some(handle) = handle() else { return };
    let [serves, writes] = two_handles(handle);
    let Some(mut weights) = Weights::new(&serves, derived) else { return };
    weights.derive(&serves);
    let sets = [0, 1].map(|set| writes.upload(&weights.sets[set]).unwrap());
    let wants = [0, 1].map(|set| {
        weights.set(&serves, set);
        let fresh = weights.fresh(&serves);
        weights.want(&serves, &fresh)
    });
    assert!(wants[0] != wants[1], "other weights, same product");
    let graph = serves.capture(|| weights.multiply(&serves)).unwrap();
    let Weights { mut b, mut d, .. } = weights;
    let (n, k, recipe) = (b.rows(), b.cols(), Recipe::new(b.scheme()));
    // From here on B is that of the sets.
    let write = |writes: &Handle, b: &mut QuantMatrix, set: usize| {
        let x = MatRef::new(&sets[set], DType::F32, n, k).unwrap();
        writes.quantize_into(&x, recipe, QuantizeTo::Plain(b)).unwrap();
    };
    write(&writes, &mut b, 0);
    writes.synchronize().unwrap();
    let (over, count) = (AtomicBool::new(false), AtomicUsize::new(0));
    let (mut served, mut mixed, mut launches) = ([0; 2], 0, 0);
    let written = thread::scope(|scope| {
        let until = Until(&over);
        let (over, count, b) = (&over, &count, &mut b);
        let writer = scope.spawn(move || {
            let mut written = 0;
            while !over.load(Ordering::Acquire) {
                written += 1;
                write(&writes, b, written % 2);
                count.store(written, Ordering::Release);
                // It catches up behind each set in turns.
                if written % 3 == 0 {
                    writes.synchronize().unwrap();
                }
            }
            written
        });
        // Until either set was seen and there were writes between the launches; what is not there by then fails below.
        let start = Instant::now();
        let enough =
            |served: &[usize; 2]| served.iter().all(|served| *served > 0) && count.load(Ordering::Acquire) >= 2;
        while launches < LAUNCHES || !enough(&served) && start.elapsed() < LIMIT {
            launches += 1;
            fill(&serves, &mut d);
            serves.launch(&graph).unwrap();
            let got = serves.read_bytes(&d.view()).unwrap();
            match wants.iter().position(|want| *want == got) {
                Some(set) => served[set] += 1,
                None => mixed += 1,
            }
        }
        drop(until);
        writer.join().unwrap()
    });
    println!("{derived:?}: weights written {written} times; products of either set {served:?}, of neither {mixed}");
    assert_eq!(mixed, 0, "{derived:?}: of {launches} products, those of weights that were being written");
    let seen = served.iter().all(|served| *served > 0);
    assert!(seen, "{derived:?}: {served:?} products of either set in {LIMIT:?} prove nothing, of {written} writes");
}

#[test]
fn a_graph_serves_with_repeated_scales_while_weights_are_written() {
    alone(|| weights_written_while_a_graph_serves(Derived::Repeated));
}

#[test]
fn a_graph_serves_with_kept_values_while_weights_are_written() {
    alone(|| weights_written_while_a_graph_serves(Derived::Kept));
}
