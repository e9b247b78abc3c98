//! What this crate adds to `cublasLtMatmul`: the same product, by the same algorithm, called bare and through a plan.
//!
//! `cargo bench --bench raw`; on a machine without a toolchain, the runner that `scripts/bundle.sh` packs.

mod common;

use std::ffi::c_void;
use std::ptr::null_mut;
use std::time::Instant;

use common::*;
use cublaslt_sys::{
    CublasLt, cublasComputeType_t, cublasLtHandle_t, cublasLtMatmulAlgo_t, cublasLtMatmulDesc_t,
    cublasLtMatmulDescAttributes_t as Attribute, cublasLtMatmulMatrixScale_t as Mode, cublasLtMatrixLayout_t,
    cublasStatus_t, cudaDataType_t,
};
use scaled_gemm::cudarc::driver::{CudaSlice, DevicePtr};
use scaled_gemm::{
    Accumulation, DType, DeviceBuffer, Formulation, Fp8Format, GemmArgs, GemmDesc, GemmPlan, Handle, MatMut, MatRef,
    PlanOptions, QuantMatrix, Recipe, Result, Scheme, Timing,
};

const F: Fp8Format = Fp8Format::E4M3;
const SHAPES: [[usize; 3]; 3] = [[16, 4096, 7168], [128, 7168, 2048], [4096, 4096, 7168]];
const WORKSPACE: usize = 32 << 20;
/// Calls between two waits, and how often.
const BATCH: usize = 50;
const BATCHES: usize = 200;

fn main() {
    main_with_gpu(|handle, _| {
        head(handle, "A plan's execute against a bare cublasLtMatmul of the same algorithm");
        println!("\n## Device time, cold operands");
        println!("| pair | m, n, k | raw us | execute us | ratio |\n|---|---|---|---|---|");
        each(handle, device_time);
        println!(
            "\n## Host time of one call, same operands again, best and median of {BATCHES} batches of {BATCH}, us"
        );
        println!("The last column is what a call asks the driver for the sake of foreign captures.\n");
        println!(
            "| pair | m, n, k | events | raw | execute | scaled_gemm | cuStreamIsCapturing |\n|---|---|---|---|---|---|---|"
        );
        each(handle, |handle, pair, shape| host_time(handle, pair, shape, "tracked"));
        // SAFETY: from here on, one stream does all work, and waits before memory is freed.
        unsafe { handle.stream().context().disable_event_tracking() };
        each(handle, |handle, pair, shape| host_time(handle, pair, shape, "off"));
    });
}

fn each(handle: &Handle, measure: impl Fn(&Handle, (Scheme, Scheme), [usize; 3])) {
    for pair in [(Scheme::Fp8Tensor(F), Scheme::Fp8Tensor(F)), (Scheme::Fp8Group1x128(F), Scheme::Fp8Group128x128(F))] {
        for shape in SHAPES {
            measure(handle, pair, shape);
            handle.clear_plans();
            handle.synchronize().unwrap();
        }
    }
}

/// One set of operands, with the addresses that the bare call takes.
struct Operands {
    a: QuantMatrix,
    b: QuantMatrix,
    d: CudaSlice<u8>,
    addresses: Addresses,
}

#[derive(Clone, Copy)]
struct Addresses {
    a: [u64; 2],
    b: [u64; 2],
    d: u64,
}

fn matrix(handle: &Handle, seed: u64, scheme: Scheme, rows: usize, cols: usize) -> (QuantMatrix, [u64; 2]) {
    let x = random(handle, seed, rows * cols, DType::Bf16);
    let x = MatRef::new(&x, DType::Bf16, rows, cols).unwrap();
    let host = handle.quantize(&x, Recipe::new(scheme)).unwrap().to_host(handle).unwrap();
    let codes = handle.stream().clone_htod(host.codes()).unwrap();
    let scales = handle.stream().clone_htod(host.scales()).unwrap();
    let addresses = [codes.device_ptr(handle.stream()).0, scales.device_ptr(handle.stream()).0];
    (
        QuantMatrix::from_parts(
            scheme,
            rows,
            cols,
            DeviceBuffer::from_slice(codes).unwrap(),
            Some(DeviceBuffer::from_slice(scales).unwrap()),
            None,
        )
        .unwrap(),
        addresses,
    )
}

fn operands(handle: &Handle, seed: u64, (a, b): (Scheme, Scheme), [m, n, k]: [usize; 3]) -> Operands {
    let (a, a_addresses) = matrix(handle, seed, a, m, k);
    let (b, b_addresses) = matrix(handle, seed + 1000, b, n, k);
    let d = handle.stream().alloc_zeros::<u8>(m * n * 2).unwrap();
    let address = d.device_ptr(handle.stream()).0;
    Operands { a, b, d, addresses: Addresses { a: a_addresses, b: b_addresses, d: address } }
}

fn args<'a>(ops: &'a mut Operands, [m, n, _]: [usize; 3]) -> Result<GemmArgs<'a>> {
    let d = MatMut::new(&mut ops.d, DType::Bf16, m, n)?;
    Ok(GemmArgs::new(&ops.a, &ops.b, d).accumulation(accumulation(ops.a.scheme())))
}

fn accumulation(a: Scheme) -> Accumulation {
    if matches!(a, Scheme::Fp8Tensor(_)) { Accumulation::Fast } else { Accumulation::Precise }
}

fn plan(handle: &Handle, (a, b): (Scheme, Scheme), [m, n, k]: [usize; 3]) -> Option<GemmPlan> {
    let desc = GemmDesc::new(m, n, k, a, b, DType::Bf16).with_accumulation(accumulation(a));
    // The bare call has no second scale buffer.
    let plan = handle.plan_with(&desc, &PlanOptions::default().with_formulation(Formulation::Native));
    plan.map_err(|error| println!("| {a} x {b} | {m}, {n}, {k} | {error} |")).ok()
}

fn device_time(handle: &Handle, pair: (Scheme, Scheme), shape: [usize; 3]) {
    let Some(mut plan) = plan(handle, pair, shape) else { return };
    let [m, n, k] = shape;
    let sets = rotation(handle, m * k + n * k + 2 * m * n);
    let mut ops: Vec<_> = (0..sets).map(|i| operands(handle, i as u64, pair, shape)).collect();
    let addresses: Vec<_> = ops.iter().map(|o| o.addresses).collect();
    let mut raw = Raw::new(handle, &plan, pair, shape);
    let times = borrowing(Timing::SUSTAINED).over(sets).in_turns(handle, 2, |who, call| match who {
        0 => raw.call(addresses[call % sets]),
        _ => plan.execute(handle, args(&mut ops[call % sets], shape)?),
    });
    let times = times.unwrap();
    let ratio = times[1].median() / times[0].median();
    println!("| {} x {} | {m}, {n}, {k} | {} | {} | {ratio:.4} |", pair.0, pair.1, times[0], times[1]);
}

fn host_time(handle: &Handle, pair: (Scheme, Scheme), shape: [usize; 3], events: &str) {
    let Some(mut plan) = plan(handle, pair, shape) else { return };
    let [m, n, k] = shape;
    let mut ops = operands(handle, 1, pair, shape);
    let mut raw = Raw::new(handle, &plan, pair, shape);
    let addresses = ops.addresses;
    let stream = handle.stream().clone();
    let words = batches(handle, |who| match who {
        0 => raw.call(addresses),
        1 => plan.execute(handle, args(&mut ops, shape)?),
        2 => handle.scaled_gemm(args(&mut ops, shape)?),
        _ => stream.capture_status().map(drop).map_err(|error| panic!("{error}")),
    });
    println!("| {} x {} | {m}, {n}, {k} | {events} | {} |", pair.0, pair.1, words.join(" | "));
}

/// Best and median microseconds of the host for one call of each competitor, whose batches take turns.
fn batches(handle: &Handle, mut call: impl FnMut(usize) -> Result<()>) -> [String; 4] {
    let mut times = [const { Vec::new() }; 4];
    for _ in 0..BATCHES {
        for (who, times) in times.iter_mut().enumerate() {
            handle.synchronize().unwrap();
            let start = Instant::now();
            for _ in 0..BATCH {
                call(who).unwrap();
            }
            times.push(start.elapsed().as_secs_f64() * 1e6 / BATCH as f64);
        }
    }
    handle.synchronize().unwrap();
    times.map(|mut times| {
        let middle = median(&mut times);
        format!("{:.2}, {middle:.2}", times[0])
    })
}

/// Sorts, too.
fn median(times: &mut [f64]) -> f64 {
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}

/// A `cublasLtMatmul` with nothing around it.
struct Raw {
    api: CublasLt,
    handle: cublasLtHandle_t,
    desc: cublasLtMatmulDesc_t,
    /// B, A and D as the library sees them: column-major, `Dᵀ = B Aᵀ`.
    layouts: [cublasLtMatrixLayout_t; 3],
    algo: cublasLtMatmulAlgo_t,
    workspace: (CudaSlice<u8>, u64),
    stream: u64,
    last: [u64; 2],
}

fn ok(answer: std::result::Result<cublasStatus_t, &cublaslt_sys::libloading::Error>) {
    assert_eq!(answer.unwrap().0, 0, "a status of cuBLASLt");
}

impl Raw {
    fn new(handle: &Handle, plan: &GemmPlan, (a, b): (Scheme, Scheme), [m, n, k]: [usize; 3]) -> Self {
        let record = plan.record().unwrap().to_json().unwrap();
        let record: serde_json::Value = serde_json::from_str(&record).unwrap();
        let words = record["algorithm"]["cublaslt"]["words"].as_str().unwrap();
        let data = std::array::from_fn(|i| u64::from_str_radix(&words[16 * i..16 * (i + 1)], 16).unwrap());
        let path = handle.library().unwrap().path.unwrap();
        handle.stream().context().bind_to_thread().unwrap();
        // SAFETY: this is the file of the cuBLASLt that the crate itself has loaded.
        let api = unsafe { CublasLt::open(path) }.unwrap();
        let (mut lt, mut desc, mut layouts) = (null_mut(), null_mut(), [null_mut(); 3]);
        let (e4m3, bf16) = (cudaDataType_t::CUDA_R_8F_E4M3, cudaDataType_t::CUDA_R_16BF);
        let shapes = [(e4m3, k, n), (e4m3, k, m), (bf16, n, m)];
        let (compute, f32) = (cublasComputeType_t::CUBLAS_COMPUTE_32F, cudaDataType_t::CUDA_R_32F);
        // SAFETY: each call writes one handle to a place that outlives it; the context is bound.
        unsafe {
            ok(api.cublasLtCreate(&mut lt));
            ok(api.cublasLtMatmulDescCreate(&mut desc, compute, f32));
            for (layout, (dtype, rows, cols)) in layouts.iter_mut().zip(shapes) {
                ok(api.cublasLtMatrixLayoutCreate(layout, dtype, rows as u64, cols as u64, rows as i64));
            }
        }
        let workspace = handle.stream().alloc_zeros::<u8>(WORKSPACE).unwrap();
        let address = workspace.device_ptr(handle.stream()).0;
        let stream = handle.stream().cu_stream() as u64;
        let algo = cublasLtMatmulAlgo_t { data };
        let raw = Self { api, handle: lt, desc, layouts, algo, workspace: (workspace, address), stream, last: [0; 2] };
        let mode = |scheme| match scheme {
            Scheme::Fp8Tensor(_) => Mode::CUBLASLT_MATMUL_MATRIX_SCALE_SCALAR_32F.0,
            Scheme::Fp8Group1x128(_) => Mode::CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F.0,
            _ => Mode::CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F.0,
        };
        raw.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSA, 1u32);
        raw.set(Attribute::CUBLASLT_MATMUL_DESC_TRANSB, 0u32);
        raw.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_MODE, mode(b));
        raw.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_MODE, mode(a));
        let fast = accumulation(a) == Accumulation::Fast;
        raw.set(Attribute::CUBLASLT_MATMUL_DESC_FAST_ACCUM, u8::from(fast));
        handle.synchronize().unwrap();
        raw
    }

    fn set<T: Copy>(&self, attribute: Attribute, value: T) {
        let value = &raw const value;
        // SAFETY: the library reads size_of::<T>() bytes of `value`, which outlives the call.
        ok(unsafe { self.api.cublasLtMatmulDescSetAttribute(self.desc, attribute, value.cast(), size_of::<T>()) });
    }

    fn call(&mut self, Addresses { a, b, d }: Addresses) -> Result<()> {
        if self.last != [b[1], a[1]] {
            self.set(Attribute::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER, b[1]);
            self.set(Attribute::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER, a[1]);
            self.last = [b[1], a[1]];
        }
        let (alpha, beta) = (1.0f32, 0.0f32);
        let (alpha, beta): (*const f32, *const f32) = (&alpha, &beta);
        let at = |address: u64| address as *mut c_void;
        let [b_layout, a_layout, d_layout] = self.layouts;
        // SAFETY: the addresses are of whole matrices of these layouts, which the caller keeps until the stream was waited
        // for; alpha and beta are read before the call returns; only this stream works on the memory.
        ok(unsafe {
            self.api.cublasLtMatmul(
                self.handle,
                self.desc,
                alpha.cast(),
                at(b[0]),
                b_layout,
                at(a[0]),
                a_layout,
                beta.cast(),
                at(d),
                d_layout,
                at(d),
                d_layout,
                &self.algo,
                at(self.workspace.1),
                self.workspace.0.len(),
                self.stream as *mut _,
            )
        });
        Ok(())
    }
}

impl Drop for Raw {
    fn drop(&mut self) {
        // SAFETY: made in `new`, destroyed once; the timing functions waited for all work.
        unsafe {
            for layout in self.layouts {
                ok(self.api.cublasLtMatrixLayoutDestroy(layout));
            }
            ok(self.api.cublasLtMatmulDescDestroy(self.desc));
            ok(self.api.cublasLtDestroy(self.handle));
        }
    }
}
