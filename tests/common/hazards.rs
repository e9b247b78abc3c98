//! What tests of memory and streams share: a process of one's own, a stream that is late, and handles that share a GPU.
#![allow(dead_code)]

use std::any::type_name;
use std::env;
use std::ffi::c_void;
use std::fs;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use ndarray::Array2;
use scaled_gemm::cudarc::driver::{CudaSlice, CudaStream, sys};
use scaled_gemm::{DType, Formulation, Fp8Format, GemmPlan, Handle, QuantMatrix, Scheme};

use crate::common::gemm::*;
use crate::common::*;

pub const ROWS_BY_ROWS: (Scheme, Scheme) = (Scheme::Fp8Row(Fp8Format::E4M3), Scheme::Fp8Row(Fp8Format::E4M3));
pub const BLOCKS: (Scheme, Scheme) = (Scheme::Fp8Group1x128(Fp8Format::E4M3), Scheme::Fp8Group128x128(Fp8Format::E4M3));

/// How long a test may take in its own process: compiling the kernels at run time is the longest part of it.
const LIMIT: Duration = Duration::from_secs(240);

/// How long a stalled stream stays behind what was enqueued meanwhile: a thousand times longer than the GPU takes for that.
const LATE: Duration = Duration::from_millis(400);

/// How long it stays behind where nobody says that all is enqueued: then some call waits for it.
const STUCK: Duration = Duration::from_secs(5);

/// Runs `body`, a closure written in a test, in a process of its own, where a broken context or a hang harms no other test.
/// With `SCALED_GEMM_TEST_ALONE` set it runs here: for tools that follow one process.
pub fn alone<F: FnOnce()>(body: F) {
    alone_with(&[], body);
}

/// The same with variables of the environment. Where it runs here it passes by, saying so, unless they are as they should be.
pub fn alone_with<F: FnOnce()>(variables: &[(&str, &str)], body: F) {
    const VARIABLE: &str = "SCALED_GEMM_TEST_ALONE";
    // A process in which no test has the name passes too: the file that this names says that the body came to its end.
    const MARK: &str = "SCALED_GEMM_TEST_ALONE_MARK";
    if env::var_os(VARIABLE).is_some() {
        if let Some((name, value)) =
            variables.iter().find(|(name, value)| env::var(name).ok().as_deref() != Some(value))
        {
            return println!("skipped: {name} must be {value} for the whole process");
        }
        body();
        return env::var_os(MARK).map_or((), |mark| fs::write(mark, "ran").unwrap());
    }
    // The closure's type is `crate::test::{{closure}}`, with the test's modules between, and its name has no crate.
    let (_, path) = type_name::<F>().split_once("::").unwrap();
    let (test, _) = path.split_once("::{{closure}}").unwrap();
    let folder = tempfile::tempdir().unwrap();
    let mark = folder.path().join("mark");
    let arguments = [test, "--exact", "--nocapture", "--test-threads", "1"];
    let mut child = Command::new(env::current_exe().unwrap());
    let child = child.args(arguments).envs(variables.iter().copied());
    let mut child = child.env(VARIABLE, "1").env(MARK, &mark).spawn().unwrap();
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            assert!(status.success(), "{test}: {status}; its words are above");
            return assert!(mark.exists(), "{test}: its process passed and did not run it to its end");
        }
        if start.elapsed() > LIMIT {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{test} hung: killed after {LIMIT:?}");
        }
        sleep(Duration::from_millis(20));
    }
}

/// Holds a stream back until [`Stall::release`], and a while longer: what is enqueued there comes late, and the GPU is free for
/// other streams.
///
/// Warm up first: loading a kernel may wait for the whole context.
pub struct Stall {
    gate: &'static Gate,
}

#[derive(Default)]
struct Gate {
    enqueued: AtomicBool,
    over: AtomicBool,
}

impl Stall {
    pub fn on(handle: &Handle) -> Self {
        Self::on_stream(handle.stream())
    }

    pub fn on_stream(stream: &Arc<CudaStream>) -> Self {
        extern "C" fn wait(gate: *mut c_void) {
            // SAFETY: `gate` is the leaked one below, and only ever shared.
            let gate = unsafe { &*gate.cast_const().cast::<Gate>() };
            let start = Instant::now();
            while !gate.enqueued.load(Ordering::Acquire) && start.elapsed() < STUCK {
                sleep(Duration::from_millis(1));
            }
            if gate.enqueued.load(Ordering::Acquire) {
                sleep(LATE);
            }
            gate.over.store(true, Ordering::Release);
        }
        let gate: &'static Gate = Box::leak(Box::default());
        stream.context().bind_to_thread().unwrap();
        let argument = std::ptr::from_ref(gate).cast_mut().cast();
        // SAFETY: the stream is alive and its context bound; the function calls nothing of CUDA, and the gate never dies.
        unsafe { sys::cuLaunchHostFunc(stream.cu_stream(), Some(wait), argument) }.result().unwrap();
        Self { gate }
    }

    /// All that races with the late work is enqueued. Panics if the stream was no longer held back: then nothing raced, and a
    /// right result would prove nothing.
    #[track_caller]
    pub fn release(self) {
        assert!(!self.gate.over.load(Ordering::Acquire), "no race: a call before this waited for the late stream");
    }
}

/// Also where a test panics before it.
impl Drop for Stall {
    fn drop(&mut self) {
        self.gate.enqueued.store(true, Ordering::Release);
    }
}

/// Two handles on streams of their own in one context of GPU 0.
pub fn two_handles(first: Handle) -> [Handle; 2] {
    let second = Handle::from_stream(first.stream().context().new_stream().unwrap()).unwrap();
    [first, second]
}

pub fn upload_f32(handle: &Handle, x: &Array2<f32>) -> CudaSlice<u8> {
    upload(handle, &bytes_of(DType::F32, x.iter()))
}

/// A product of rows by rows with the plan that computes it, and what it gives alone.
pub struct RowProduct {
    pub ops: Operands,
    pub extras: Extras,
    pub case: Case,
    pub plan: GemmPlan,
    pub want: Stored,
}

impl RowProduct {
    /// `None`, with the reason, where the GPU multiplies no FP8.
    pub fn new(handle: &Handle, shape: [usize; 3]) -> Option<Self> {
        let [m, n, _] = shape;
        let ops = Operands::new(handle, &mut Noise::new(81), shape, ROWS_BY_ROWS);
        let extras = Extras::new(handle, &mut Noise::new(82), m, n, &[0]);
        let case = Case::new(DType::Bf16);
        if offered(handle, &case.desc(&ops)).is_empty() {
            println!("skipped: {} multiplies no FP8", handle.device());
            return None;
        }
        let mut plan = handle.plan(&case.desc(&ops)).unwrap();
        let want = execute(handle, &mut plan, &ops, &extras, &case);
        Some(Self { ops, extras, case, plan, want })
    }
}

/// What a product makes of its B and keeps there.
#[derive(Clone, Copy, Debug)]
pub enum Derived {
    /// The 128x128 scales, repeated for every row.
    Repeated,
    /// Codes times block scales of NVFP4.
    Kept,
}

/// A product whose B has a derived buffer.
pub struct Layer {
    pub derived: Derived,
    pub ops: Operands,
    pub extras: Extras,
    pub case: Case,
    pub plan: GemmPlan,
}

impl Layer {
    /// `None`, with the reason, where the GPU has no such product.
    pub fn new(handle: &Handle, derived: Derived) -> Option<Self> {
        let shape @ [m, n, _] = [16, 1024, 1024];
        let (pair, formulation) = match derived {
            Derived::Repeated => (BLOCKS, Formulation::RepeatedScales),
            Derived::Kept => ((Scheme::Nvfp4, Scheme::Nvfp4), Formulation::DequantizedBf16),
        };
        let ops = Operands::new(handle, &mut Noise::new(84), shape, pair);
        let (extras, case) = (Extras::new(handle, &mut Noise::new(85), m, n, &[0]), Case::new(DType::Bf16));
        derive(handle, derived, &ops.b);
        if !offered(handle, &case.desc(&ops)).contains(&formulation) {
            println!("skipped: {} offers no {formulation}", handle.device());
            return None;
        }
        let mut plan = plan(handle, &case.desc(&ops), formulation);
        plan.prepare(handle, &ops.b).unwrap();
        Some(Self { derived, ops, extras, case, plan })
    }

    /// What the product gives with another B, whose derived buffer is made now.
    pub fn with(&mut self, handle: &Handle, b: &QuantMatrix) -> Stored {
        derive(handle, self.derived, b);
        self.plan.prepare(handle, b).unwrap();
        let mut output = Output::new(handle, &self.ops, &self.extras, &self.case);
        self.plan.execute(handle, output.args_of(&self.ops.a, b, &self.extras, &self.case)).unwrap();
        output.read(handle, &self.plan.explain())
    }

    /// What a call outside of graphs gives with the layer's own B, as it is now, by the layer's plan if it still fits.
    pub fn eager(&mut self, handle: &Handle) -> Stored {
        let desc = self.case.desc(&self.ops);
        if desc != *self.plan.desc() {
            let mut plan = plan(handle, &desc, self.plan.formulation());
            return execute(handle, &mut plan, &self.ops, &self.extras, &self.case);
        }
        let mut output = Output::new(handle, &self.ops, &self.extras, &self.case);
        self.plan.execute(handle, output.args(&self.ops, &self.extras, &self.case)).unwrap();
        output.read(handle, &self.plan.explain())
    }

    /// The same by a plan of the handle's cache.
    pub fn cached(&self, handle: &Handle) -> Stored {
        let mut output = Output::new(handle, &self.ops, &self.extras, &self.case);
        handle.scaled_gemm(output.args(&self.ops, &self.extras, &self.case)).unwrap();
        output.read(handle, "scaled_gemm")
    }

    /// A buffer for new weights in F32, and three sets of them.
    pub fn weights(&self, handle: &Handle) -> (CudaSlice<u8>, [Vec<u8>; 3]) {
        let (n, k) = (self.ops.b.rows(), self.ops.b.cols());
        let mut rng = Noise::new(86);
        let sets = [(); 3].map(|()| bytes_of(DType::F32, tiled(&mut rng, n, k).iter()));
        (handle.stream().alloc_zeros(n * k * 4).unwrap(), sets)
    }
}

pub fn derive(handle: &Handle, derived: Derived, b: &QuantMatrix) {
    if let Derived::Kept = derived {
        b.keep_dequantized(handle, DType::Bf16).unwrap();
    }
}
