//! Two GPUs in one process: each operand is for handles of its own GPU, and handles of both work side by side.
//!
//! Each test runs in a process of its own (`hazards::alone`), and skips with a word where the driver shows one GPU.
#![cfg(feature = "cuda")]

#[path = "common/calls.rs"]
mod calls;
mod common;
#[path = "common/hazards.rs"]
mod hazards;
#[path = "common/sm90_work.rs"]
mod sm90_work;

use std::sync::{Arc, Barrier, mpsc};
use std::thread;
use std::time::Duration;

use calls::{Call, Kind, activations, launched};
use common::gemm::*;
use common::*;
use hazards::{BLOCKS, ROWS_BY_ROWS, alone};
use scaled_gemm::cudarc::driver::CudaContext;
use scaled_gemm::{
    Activation, Basis, Bf16Gemm, DType, DeviceBuffer, Error, Formulation, GemmPlan, GroupedGemmArgs, GroupedRows,
    Handle, MatMut, MatRef, Nvfp4Options, Nvfp4Recipe, QuantMatrix, QuantizeTo, Recipe, Scheme,
};
use sm90_work::Sm90Work;

const SHAPE: [usize; 3] = [16, 1024, 1024];

/// True if there are two GPUs; otherwise says why not.
fn two_gpus() -> bool {
    if handle().is_none() {
        return false;
    }
    let count = CudaContext::device_count().unwrap();
    if count < 2 {
        println!("skipped: the driver shows {count} GPU, and this needs two");
    }
    count >= 2
}

/// A layer with everything: quantizer, product, epilogue kernel; and where they are, products of `sm90`, whole and of groups.
struct Work {
    ops: Operands,
    extras: Extras,
    case: Case,
    plan: GemmPlan,
    output: Output,
    want: Stored,
    sm90: Option<Sm90Work>,
}

impl Work {
    fn new(handle: &Handle) -> Self {
        let [m, n, _] = SHAPE;
        let ops = Operands::new(handle, &mut Noise::new(91), SHAPE, ROWS_BY_ROWS);
        let extras = Extras::new(handle, &mut Noise::new(92), m, n, &[0]);
        let layer = Case { bias: Some(DType::Bf16), residual: Some(DType::F32), ..Case::new(DType::F32) };
        let case = Case { activation: Activation::Silu, ..layer };
        let mut plan = handle.plan(&case.desc(&ops)).unwrap();
        let want = execute(handle, &mut plan, &ops, &extras, &case);
        let output = Output::new(handle, &ops, &extras, &case);
        Self { ops, extras, case, plan, output, want, sm90: Sm90Work::new(handle, 0) }
    }

    /// Enqueues a call by the plan and one by the cache, without waiting.
    fn enqueue(&mut self, handle: &Handle) {
        self.output.reset(handle);
        self.plan.execute(handle, self.output.args(&self.ops, &self.extras, &self.case)).unwrap();
        handle.scaled_gemm(self.output.args(&self.ops, &self.extras, &self.case)).unwrap();
        if let Some(sm90) = &mut self.sm90 {
            sm90.reset(handle);
            sm90.launch(handle).unwrap();
        }
    }

    fn check(&self, handle: &Handle, words: &str) {
        let gpu = handle.device().ordinal;
        assert!(self.output.read(handle, words) == self.want, "GPU {gpu}, {words}");
        if let Some(sm90) = &self.sm90 {
            sm90.check(handle, &format!("GPU {gpu}, {words}"));
        }
    }

    fn run(&mut self, handle: &Handle, words: &str) {
        self.enqueue(handle);
        self.check(handle, words);
    }
}

/// A refusal from our own checks that names both GPUs.
fn refused<T>(what: &str, result: Result<T, Error>) {
    let error = result.err().unwrap_or_else(|| panic!("{what} was accepted"));
    let text = error.to_string();
    assert!(!matches!(error, Error::Driver { .. } | Error::Cublas { .. }), "{what}: {text}");
    assert!(text.contains("GPU 0") && text.contains("GPU 1"), "{what}: {text}");
}

/// Two handles, operands on both GPUs, and `calls` that give operands of one to the handle of the other; neither GPU suffers.
fn mixed(calls: impl FnOnce([&Handle; 2], [&mut Work; 2])) {
    if !two_gpus() {
        return;
    }
    let handles = [Handle::new(0).unwrap(), Handle::new(1).unwrap()];
    let [mut first, mut second] = handles.each_ref().map(Work::new);
    calls([&handles[0], &handles[1]], [&mut first, &mut second]);
    first.run(&handles[0], "after the refusals");
    second.run(&handles[1], "after the refusals");
    handles.iter().for_each(|handle| handle.synchronize().unwrap());
}

#[test]
fn quantizers_refuse_operands_of_another_gpu() {
    alone(|| {
        mixed(|[h0, h1], [w0, w1]| {
            let (n, k) = (w0.ops.b.rows(), w0.ops.b.cols());
            let recipe = Recipe::new(ROWS_BY_ROWS.1);
            let buffers = [h0, h1].map(|handle| upload(handle, &vec![0u8; n * k * 4]));
            let [x0, x1] = buffers.each_ref().map(|buffer| MatRef::new(buffer, DType::F32, n, k).unwrap());
            refused("quantize with x on GPU 1, on GPU 0", h0.quantize(&x1, recipe));
            refused("quantize with x on GPU 0, on GPU 1", h1.quantize(&x0, recipe));
            refused("quantize_into a target on GPU 1", h0.quantize_into(&x0, recipe, QuantizeTo::Plain(&mut w1.ops.b)));
            let mut amax = h1.stream().alloc_zeros::<f32>(1).unwrap();
            refused("amax_into GPU 1", h0.amax_into(&x0, &mut (&mut amax).into()));
        });
    });
}

/// A cast refused for one of its targets says nothing of the other either.
#[test]
fn the_basis_stays_when_a_target_is_on_another_gpu() {
    alone(|| {
        mixed(|[h0, h1], _| {
            let (rows, cols) = (32, 64);
            let x = h0.alloc(rows * cols * 4).unwrap();
            let x = MatRef::new(&x, DType::F32, rows, cols).unwrap();
            let mut near = QuantMatrix::zeros(h0, Scheme::Nvfp4, rows, cols).unwrap();
            let mut far = QuantMatrix::zeros(h1, Scheme::Nvfp4, cols, rows).unwrap();
            let options = Nvfp4Options { basis: Basis::Hadamard16, ..Nvfp4Options::default() };
            let recipe: Recipe = Nvfp4Recipe::tensor(options).unwrap().into();
            let cast = h0.quantize_into(&x, recipe, QuantizeTo::Both(&mut near, &mut far));
            refused("quantize_into a transposed target on GPU 1", cast);
            assert_eq!([near.basis(), far.basis()], [Basis::Plain; 2]);
            h0.quantize_into(&x, recipe, QuantizeTo::Plain(&mut near)).unwrap();
            assert_eq!(near.basis(), Basis::Hadamard16);
        });
    });
}

#[test]
fn products_refuse_operands_of_another_gpu() {
    alone(|| {
        mixed(|[h0, h1], [w0, w1]| {
            let (extras, case) = (&w0.extras, w0.case);
            let mut own = Output::new(h0, &w0.ops, extras, &case);
            let mut far = Output::new(h1, &w1.ops, &w1.extras, &case);
            let a_far = own.args_of(&w1.ops.a, &w0.ops.b, extras, &case);
            refused("A on GPU 1", w0.plan.execute(h0, a_far));
            let b_far = own.args_of(&w0.ops.a, &w1.ops.b, extras, &case);
            refused("B on GPU 1", h0.scaled_gemm(b_far));
            refused("D on GPU 1", h0.scaled_gemm(far.args_of(&w0.ops.a, &w0.ops.b, extras, &case)));
            let extras_far = own.args_of(&w0.ops.a, &w0.ops.b, &w1.extras, &case);
            refused("bias and residual on GPU 1", w0.plan.execute(h0, extras_far));
            refused("a handle on GPU 1", h1.scaled_gemm(own.args(&w0.ops, extras, &case)));
            let (Some(near), Some(far)) = (&mut w0.sm90, &mut w1.sm90) else { return };
            let grouped = Sm90Work::grouped;
            refused("A of groups on GPU 1", grouped(h0, &far.a, &near.b, &near.counts, &mut near.d));
            refused("B of groups on GPU 1", grouped(h0, &near.a, &far.b, &near.counts, &mut near.d));
            refused("counts on GPU 1", grouped(h0, &near.a, &near.b, &far.counts, &mut near.d));
            refused("D of groups on GPU 1", grouped(h0, &near.a, &near.b, &near.counts, &mut far.d));
            refused("groups by a handle on GPU 1", grouped(h1, &near.a, &near.b, &near.counts, &mut near.d));
        });
    });
}

#[test]
fn prepare_refuses_a_b_of_another_gpu() {
    alone(|| {
        mixed(|[h0, h1], [w0, w1]| {
            refused("prepare with B on GPU 1", w0.plan.prepare(h0, &w1.ops.b));
            let case = Case::new(DType::Bf16);
            let [near, far] = [h0, h1].map(|handle| Operands::new(handle, &mut Noise::new(93), SHAPE, BLOCKS));
            if offered(h0, &case.desc(&near)).contains(&Formulation::RepeatedScales) {
                let mut plan = plan(h0, &case.desc(&near), Formulation::RepeatedScales);
                refused("repeated scales of a B on GPU 1", plan.prepare(h0, &far.b));
            }
        });
    });
}

#[test]
fn dequantizing_and_reading_refuse_another_gpu() {
    alone(|| {
        mixed(|[h0, h1], [w0, w1]| {
            let (m, k) = (w0.ops.a.rows(), w0.ops.a.cols());
            let [mut y0, mut y1] = [h0, h1].map(|handle| poisoned(handle, m * k * 4));
            let mut near = MatMut::new(&mut y0, DType::F32, m, k).unwrap();
            refused("dequantize_into with q on GPU 1", h0.dequantize_into(&w1.ops.a, &mut near));
            let mut far = MatMut::new(&mut y1, DType::F32, m, k).unwrap();
            refused("dequantize_into with y on GPU 1", h0.dequantize_into(&w0.ops.a, &mut far));
            refused("to_host of a matrix on GPU 1", w1.ops.a.to_host(h0));
            refused("read_bytes of GPU 1", h0.read_bytes(&w1.ops.a.codes()));
        });
    });
}

#[test]
fn the_bf16_product_refuses_operands_of_another_gpu() {
    alone(|| {
        mixed(|[h0, h1], _| {
            let [m, n, k] = SHAPE;
            let zeros = |handle: &Handle, len: usize| handle.stream().alloc_zeros::<u8>(len * 2).unwrap();
            let (a, b, mut d) = (zeros(h0, m * k), zeros(h1, n * k), zeros(h0, m * n));
            let (a, b) = (MatRef::new(&a, DType::Bf16, m, k).unwrap(), MatRef::new(&b, DType::Bf16, n, k).unwrap());
            let mut product = Bf16Gemm::new(h0, m, n, k, 1).unwrap();
            let mut d = MatMut::new(&mut d, DType::Bf16, m, n).unwrap();
            refused("Bf16Gemm::execute with B on GPU 1", product.execute(h0, &a, &b, &mut d));
        });
    });
}

/// Handles made in both orders, used in turns without waiting, and dropped in both orders; then each GPU is used again.
#[test]
fn handles_of_two_gpus_come_and_go_in_any_order() {
    alone(|| {
        if !two_gpus() {
            return;
        }
        for made in [[0, 1], [1, 0]] {
            for first_gone in [0, 1] {
                let words = format!("made in order {made:?}, number {first_gone} of them dropped first");
                let handles = made.map(|gpu| Handle::new(gpu).unwrap());
                assert_eq!(handles.each_ref().map(|handle| handle.device().ordinal), made);
                let mut works = handles.each_ref().map(Work::new);
                for _ in 0..10 {
                    for (handle, work) in handles.iter().zip(&mut works) {
                        work.enqueue(handle);
                    }
                }
                for (handle, work) in handles.iter().zip(&works) {
                    work.check(handle, &words);
                }
                let mut pairs: Vec<_> = handles.into_iter().zip(works).collect();
                // The handle, and with it the last of its GPU's modules, goes before its plan and matrices.
                let (gone, rest) = pairs.remove(first_gone);
                drop(gone);
                let (other, mut work) = pairs.remove(0);
                work.run(&other, &format!("{words}: the other one goes on"));
                drop(rest);
                work.run(&other, &format!("{words}: and on"));
                let again = Handle::new(made[first_gone]).unwrap();
                Work::new(&again).run(&again, &format!("{words}: a handle there again"));
                work.run(&other, &format!("{words}: still"));
            }
        }
    });
}

/// One thread for each GPU, and then both handles in the other's thread.
#[test]
fn handles_of_two_gpus_in_two_threads() {
    alone(|| {
        if !two_gpus() {
            return;
        }
        let pairs = [0, 1].map(|gpu| {
            thread::spawn(move || {
                let handle = Handle::new(gpu).unwrap();
                let mut work = Work::new(&handle);
                (0..20).for_each(|_| work.run(&handle, "in a thread of its own"));
                (handle, work)
            })
        });
        for (handle, mut work) in pairs.map(|thread| thread.join().unwrap()) {
            work.run(&handle, "moved to the first thread");
        }
    });
}

/// A graph on GPU 1, captured and launched while GPU 0 is the thread's current one in between.
#[test]
fn graphs_of_two_gpus() {
    alone(|| {
        if !two_gpus() {
            return;
        }
        let handles = [Handle::new(0).unwrap(), Handle::new(1).unwrap()];
        let mut works = handles.each_ref().map(Work::new);
        let graphs: Vec<_> = handles
            .iter()
            .zip(&mut works)
            .map(|(handle, Work { ops, extras, case, plan, output, sm90, .. })| {
                let enqueue = || {
                    plan.execute(handle, output.args(ops, extras, case))?;
                    sm90.as_mut().map_or(Ok(()), |sm90| sm90.launch(handle))
                };
                capture(handle, enqueue).unwrap()
            })
            .collect();
        for _ in 0..3 {
            for (handle, work) in handles.iter().zip(&mut works) {
                work.output.reset(handle);
                work.sm90.iter_mut().for_each(|sm90| sm90.reset(handle));
            }
            handles.iter().zip(&graphs).for_each(|(handle, graph)| handle.launch(graph).unwrap());
            for (handle, work) in handles.iter().zip(&works) {
                work.check(handle, "a graph");
            }
        }
    });
}

/// Products of slots on several streams of each GPU, in turns and in graphs: streams and events are of the GPU that they are made for.
#[test]
fn each_gpu_has_streams_of_its_own() {
    alone(|| {
        if !two_gpus() {
            return;
        }
        let (groups, slot, n, k) = (5, 128, 128, 256);
        let handles = [Handle::new(0).unwrap(), Handle::new(1).unwrap()];
        let operands = handles.each_ref().map(|handle| {
            let mut rng = Noise::new(97 + handle.device().ordinal as u64);
            [slot, n].map(|rows| {
                let x = handle.upload(&rng.bf16(groups * rows * k, 1.0)).unwrap();
                let x = MatRef::new(&x, DType::Bf16, groups * rows, k).unwrap();
                handle.quantize(&x, Recipe::new(Scheme::Nvfp4)).unwrap()
            })
        });
        let counts = handles.each_ref().map(|handle| handle.upload(&vec![1i64; groups]).unwrap());
        let mut results = handles.each_ref().map(|handle| handle.alloc(groups * slot * n * 2).unwrap());
        let run = |gpu: usize, d: &mut DeviceBuffer, streams: usize| {
            let ([a, b], rows) = (&operands[gpu], GroupedRows::Masked { slot_rows: slot, counts: counts[gpu].view() });
            let d = MatMut::new(d, DType::Bf16, groups * slot, n)?;
            handles[gpu].grouped_gemm(GroupedGemmArgs::new(a, b, groups, rows, d).product_a_slot().streams(streams))
        };
        let read = |gpu: usize, d: &DeviceBuffer| handles[gpu].read_bytes(&d.view()).unwrap();
        let want: Vec<_> = results
            .iter_mut()
            .enumerate()
            .map(|(gpu, d)| {
                run(gpu, d, 1).unwrap();
                read(gpu, d)
            })
            .collect();
        let poison = |gpu: usize, d: &mut DeviceBuffer| {
            handles[gpu].write(&mut d.view_mut(), &vec![0xFFu8; groups * slot * n * 2]).unwrap();
        };
        for round in 0..8 {
            for (gpu, d) in results.iter_mut().enumerate() {
                poison(gpu, d);
                run(gpu, d, 2 + round % 4).unwrap();
            }
            for (gpu, d) in results.iter().enumerate() {
                assert!(read(gpu, d) == want[gpu], "GPU {gpu}, round {round}");
            }
        }
        let graphs: Vec<_> = results
            .iter_mut()
            .enumerate()
            .map(|(gpu, d)| capture_owned(&handles[gpu], || run(gpu, d, 4)).unwrap())
            .collect();
        results.iter_mut().enumerate().for_each(|(gpu, d)| poison(gpu, d));
        handles.iter().zip(&graphs).for_each(|(handle, graph)| handle.launch(graph).unwrap());
        for (gpu, d) in results.iter().enumerate() {
            assert!(read(gpu, d) == want[gpu], "GPU {gpu}, a graph");
        }
    });
}

/// Each of two threads drops memory of the other's GPU inside its captures; its next call frees it. (That call held its own GPU's
/// turn and waited for the other's, and so did the other thread's: neither ever went on.)
#[test]
fn memory_of_the_other_gpu_dropped_in_captures() {
    const ROUNDS: usize = 300;
    const PATIENCE: Duration = Duration::from_secs(60);
    alone(|| {
        if !two_gpus() {
            return;
        }
        let [set, ..] = activations();
        let threads = [0, 1].map(|gpu| {
            let (own, other) = (Handle::new(gpu).unwrap(), Handle::new(1 - gpu).unwrap());
            let mut call = Call::new(&own, Kind::Rows).unwrap();
            let want = call.eager(&own, &set);
            (own, other, call, want)
        });
        let start = Arc::new(Barrier::new(2));
        let (end, ends) = mpsc::channel();
        // Not scoped: what hangs is left behind, and ends with the process.
        for (own, other, mut call, want) in threads {
            let (start, end) = (start.clone(), end.clone());
            thread::spawn(move || {
                start.wait();
                for round in 0..ROUNDS {
                    let buffer = other.alloc(1 << 16).unwrap();
                    let graph = own.capture(|| {
                        drop(buffer);
                        call.enqueue(&own)
                    });
                    let words = format!("GPU {}, round {round}", own.device().ordinal);
                    launched(&own, &graph.unwrap_or_else(|e| panic!("{words}: {e}")), &mut call, &want, &words);
                }
                end.send(()).unwrap();
            });
        }
        drop(end);
        for _ in 0..2 {
            ends.recv_timeout(PATIENCE)
                .unwrap_or_else(|e| panic!("{e}: each thread waits for the other, or has failed"));
        }
    });
}
