//! A GPU through the library's `gpu` module. Matrices are copied there and back; times are device time.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::process::Command;

use ndarray::{Array2, ArrayView2};
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::reference::{Accumulator, Gelu, GemmInputs, HostOperand};
use scaled_gemm::{
    Accumulation, Bf16Gemm, Formulation, GemmArgs, GemmDesc, GemmPlan, Handle, KernelSource, MatMut, MatRef,
    PlanOptions, QuantMatrix, QuantizeTo, TuneOptions, TuneTable, VecRef, copy, time_calls,
};
use scaled_gemm::{DType, Error, HostQuantMatrix, Operand, Recipe, Result, Scheme};

use super::check::sampled_error;
use super::{Activations, Device, HostA, Pair, PairTime, Support};
use crate::args::AccumulationChoice;
use crate::data::{from_bytes, normal_bytes, rows_of, to_bytes};
use crate::output::Failure;

/// Bytes of the copy that is the roof: far more than any L2 cache.
const COPY_BYTES: usize = 256 << 20;
/// Algorithms of the baseline that are timed; the fastest is the baseline.
const BASELINE_CANDIDATES: usize = 8;
/// Calls in one graph, and launches of it.
const CALLS: usize = 24;
const REPLAYS: usize = 15;

struct Cuda {
    handle: Handle,
    accumulation: Accumulation,
}

pub fn open() -> Result<Box<dyn Device>> {
    Ok(Box::new(Cuda { handle: Handle::new(0)?, accumulation: Accumulation::Precise }))
}

/// Operands of one product, several times over, so that each call finds cold ones.
struct Sets {
    activations: Activations,
    x: Vec<CudaSlice<u8>>,
    /// Empty where A stays plain.
    a: Vec<QuantMatrix>,
    b: Vec<QuantMatrix>,
    d: Vec<CudaSlice<u8>>,
}

impl Sets {
    /// The operands of one call.
    fn args(&mut self, [m, n, k]: [usize; 3], out: DType, call: usize) -> Result<GemmArgs<'_>> {
        let at = call % self.d.len();
        let d = MatMut::new(&mut self.d[at], out, m, n)?;
        Ok(match self.activations {
            Activations::Quantized(_) => GemmArgs::new(&self.a[at], &self.b[at], d),
            Activations::Plain(dtype) => GemmArgs::weight_only(MatRef::new(&self.x[at], dtype, m, k)?, &self.b[at], d),
        })
    }
}

/// The type that `DequantizedBf16` multiplies in, and weights are kept in.
fn kept_dtype(a: Operand, out: DType) -> DType {
    match a {
        Operand::Plain(dtype) => dtype,
        Operand::Quantized(scheme) if scheme.is_nvfp4() && out == DType::F16 => DType::F16,
        Operand::Quantized(_) => DType::Bf16,
    }
}

impl Cuda {
    fn upload(&self, bytes: &[u8]) -> Result<CudaSlice<u8>> {
        self.handle.stream().clone_htod(bytes).map_err(|e| driver("copying to the GPU", e))
    }

    fn zeros(&self, bytes: usize) -> Result<CudaSlice<u8>> {
        // One byte more than nothing: the driver has no empty allocations.
        self.handle.stream().alloc_zeros(bytes.max(1)).map_err(|e| driver("allocating device memory", e))
    }

    fn duplicates(&self, one: CudaSlice<u8>, count: usize) -> Result<Vec<CudaSlice<u8>>> {
        let mut all = vec![one];
        while all.len() < count {
            all.push(self.handle.stream().clone_dtod(&all[0]).map_err(|e| driver("copying on the GPU", e))?);
        }
        Ok(all)
    }

    fn download(&self, data: &CudaSlice<u8>, rows: usize, cols: usize, dtype: DType) -> Result<Array2<f32>> {
        let mut bytes = self.handle.stream().clone_dtoh(data).map_err(|e| driver("copying from the GPU", e))?;
        self.handle.synchronize()?;
        bytes.truncate(rows * cols * dtype.bytes());
        Array2::from_shape_vec((rows, cols), from_bytes(&bytes, dtype))
            .map_err(|e| Error::shape("D", format!("{rows} x {cols}"), e.to_string(), "report it: the program made it"))
    }

    /// How many sets of this many bytes exceed the L2 cache twice over.
    fn sets(&self, bytes: usize) -> usize {
        (2 * self.handle.device().l2_bytes / bytes.max(1) + 1).clamp(1, CALLS)
    }

    fn desc(&self, [m, n, k]: [usize; 3], a: Operand, b: Scheme, out: DType) -> GemmDesc {
        GemmDesc::new(m, n, k, a, b, out).with_accumulation(self.accumulation)
    }

    fn prepare(&self, [m, n, k]: [usize; 3], pair: Pair, out: DType) -> Result<Sets> {
        let source = match pair.a {
            Activations::Quantized(_) => DType::Bf16,
            Activations::Plain(dtype) => dtype,
        };
        let host_x = normal_bytes(m, k, source, 1);
        let host_w = normal_bytes(n, k, DType::Bf16, 2);
        let count = self.sets(m * k + n * k + m * n * out.bytes());
        let w = self.upload(&host_w)?;
        let w = MatRef::new(&w, DType::Bf16, n, k)?;
        let x = self.duplicates(self.upload(&host_x)?, count)?;
        let view = |x| MatRef::new(x, source, m, k);
        Ok(Sets {
            activations: pair.a,
            a: match pair.a {
                Activations::Quantized(recipe) => {
                    x.iter().map(|x| self.handle.quantize(&view(x)?, recipe)).collect::<Result<_>>()?
                }
                Activations::Plain(_) => Vec::new(),
            },
            b: (0..count).map(|_| self.handle.quantize(&w, pair.b)).collect::<Result<_>>()?,
            d: (0..count).map(|_| self.zeros(m * n * out.bytes())).collect::<Result<_>>()?,
            x,
        })
    }

    /// The plan for these operands. Where it would dequantize the weights in each call, they are kept dequantized: that is
    /// what a model's weights are worth, and what the plan is then for. Says whether.
    fn plan(&self, mnk: [usize; 3], pair: Pair, out: DType, sets: &mut Sets) -> Result<(GemmPlan, bool)> {
        let desc = self.desc(mnk, pair.a.operand(), pair.b.scheme(), out);
        let plan = self.handle.plan(&desc)?;
        if plan.formulation() != Formulation::DequantizedBf16 {
            return Ok((plan, false));
        }
        for b in &sets.b {
            b.keep_dequantized(&self.handle, kept_dtype(desc.a, out))?;
        }
        let desc = sets.args(mnk, out, 0)?.accumulation(self.accumulation).desc()?;
        Ok((self.handle.plan(&desc)?, true))
    }

    fn execute(&self, plan: &mut GemmPlan, sets: &mut Sets, call: usize) -> Result<()> {
        let (mnk, out) = ([plan.desc().m, plan.desc().n, plan.desc().k], plan.desc().out);
        let args = sets.args(mnk, out, call)?.accumulation(self.accumulation);
        plan.execute(&self.handle, args)
    }

    /// Quantizes A as its recipe says; nothing where it stays plain.
    fn quantize_a(&self, sets: &mut Sets, call: usize) -> Result<()> {
        let Activations::Quantized(recipe) = sets.activations else { return Ok(()) };
        let at = call % sets.a.len();
        let (rows, cols) = (sets.a[at].rows(), sets.a[at].cols());
        let x = MatRef::new(&sets.x[at], DType::Bf16, rows, cols)?;
        self.handle.quantize_into(&x, recipe, QuantizeTo::Plain(&mut sets.a[at]))
    }

    /// Rows of a plain matrix on the device.
    fn rows(&self, data: &CudaSlice<u8>, rows: Range<usize>, cols: usize, dtype: DType) -> Result<Array2<f32>> {
        let row = cols * dtype.bytes();
        let part = data.slice(rows.start * row..rows.end * row);
        let part = self.handle.stream().clone_dtod(&part).map_err(|e| driver("copying on the GPU", e))?;
        self.download(&part, rows.len(), cols, dtype)
    }
}

impl Device for Cuda {
    fn name(&self) -> &'static str {
        "cuda"
    }

    fn title(&self) -> String {
        format!("cuda, {}", self.handle.device())
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        let device = self.handle.device();
        let (major, minor) = device.compute_capability;
        let mut facts = vec![
            ("gpu", device.name.clone()),
            ("architecture", format!("sm_{major}{minor}, {} multiprocessors", device.sm_count)),
            (
                "memory",
                format!(
                    "{:.1} GiB, L2 {} MiB",
                    device.memory_bytes as f64 / (1u64 << 30) as f64,
                    device.l2_bytes >> 20
                ),
            ),
            ("driver", smi("driver_version").unwrap_or_else(|| "unknown (nvidia-smi does not answer)".into())),
        ];
        match self.handle.library() {
            Ok(library) => {
                facts.push(("cublaslt", format!("{} ({})", library.version_text, library.version)));
                let path = library.path.map_or("unknown".into(), |p| p.display().to_string());
                facts.push(("from", format!("{path} ({})", library.found_by)));
            }
            Err(error) => facts.push(("cublaslt", error.to_string())),
        }
        let kernels = match self.handle.kernel_source() {
            KernelSource::Embedded => "compiled with the program",
            _ => "compiled at run time (NVRTC)",
        };
        facts.extend([
            ("kernels", kernels.into()),
            ("program", concat!("scaled-gemm ", env!("CARGO_PKG_VERSION")).into()),
        ]);
        facts
    }

    fn set_accumulation(&mut self, accumulation: AccumulationChoice) {
        self.accumulation = match accumulation {
            AccumulationChoice::Precise => Accumulation::Precise,
            AccumulationChoice::Fast => Accumulation::Fast,
        };
    }

    fn use_tuning(&mut self, path: &Path) -> Result<()> {
        self.handle.set_tuning(TuneTable::load(path)?);
        Ok(())
    }

    fn quantize(&mut self, x: ArrayView2<'_, f32>, source: DType, recipe: Recipe) -> Result<HostQuantMatrix> {
        let data = self.upload(&to_bytes(x, source))?;
        let x = MatRef::new(&data, source, x.nrows(), x.ncols())?;
        self.handle.quantize(&x, recipe)?.to_host(&self.handle)
    }

    fn dequantize(&mut self, q: &HostQuantMatrix, out: DType) -> Result<Array2<f32>> {
        let (rows, cols) = (q.rows(), q.cols());
        let mut y = self.zeros(rows * cols * out.bytes())?;
        let q = QuantMatrix::from_host(&self.handle, q)?;
        self.handle.dequantize_into(&q, &mut MatMut::new(&mut y, out, rows, cols)?)?;
        self.download(&y, rows, cols, out)
    }

    fn gemm(&mut self, inputs: &GemmInputs<'_>) -> Result<Array2<f32>> {
        let (m, n, k, out) = (inputs.a.rows(), inputs.b.rows(), inputs.a.cols(), inputs.out);
        let b = QuantMatrix::from_host(&self.handle, inputs.b)?;
        let mut d = self.zeros(m * n * out.bytes())?;
        let target = MatMut::new(&mut d, out, m, n)?;
        let (quantized, plain);
        let args = match inputs.a {
            HostOperand::Quantized(a) => {
                quantized = QuantMatrix::from_host(&self.handle, a)?;
                GemmArgs::new(&quantized, &b, target)
            }
            HostOperand::Plain(x, dtype) => {
                plain = self.upload(&to_bytes(x, dtype))?;
                GemmArgs::weight_only(MatRef::new(&plain, dtype, m, k)?, &b, target)
            }
        };
        let bias = match inputs.bias {
            Some((values, dtype)) => Some((self.upload(&to_bytes(values, dtype))?, dtype, values.len())),
            None => None,
        };
        let mut args = args.activation(inputs.activation).accumulation(self.accumulation);
        if let Some((data, dtype, len)) = &bias {
            args = args.bias(VecRef::new(data, *dtype, *len)?);
        }
        self.handle.scaled_gemm(args)?;
        self.download(&d, m, n, out)
    }

    fn arithmetic(&self, a: Operand, b: Scheme) -> (Accumulator, Gelu) {
        let native_blocks = self.handle.device().compute_capability.0 >= 10;
        let accumulator = match (b.spec().block, self.accumulation) {
            (Some(_), _) if !native_blocks || a.scheme().is_none() => Accumulator::TensorCoreWide,
            // How those cores add is not known here: the widest bound.
            (Some(_), _) | (None, Accumulation::Fast) => Accumulator::TensorCoreFast,
            (None, Accumulation::Precise) => Accumulator::TensorCorePromoted,
        };
        (accumulator, Gelu::Approximate)
    }

    fn support(&mut self, mnk: [usize; 3], a: Operand, b: Scheme, out: DType) -> Support {
        let desc = self.desc(mnk, a, b, out);
        let ways = match self.handle.supports(&desc) {
            Ok(ways) => ways,
            Err(e) => return Support { ways: Vec::new(), refused: vec![("any formulation".into(), e.to_string())] },
        };
        let others = Formulation::ALL.into_iter().filter(|f| !ways.contains(f));
        let refused = others.filter_map(|f| {
            let options = PlanOptions::default().with_formulation(f);
            let error = self.handle.plan_with(&desc, &options).err()?;
            Some((f.to_string(), error.to_string()))
        });
        Support { refused: refused.collect(), ways: ways.iter().map(Formulation::to_string).collect() }
    }

    fn baseline(&self) -> String {
        format!("BF16 through cuBLASLt, FP32 sums, BF16 output, the fastest of up to {BASELINE_CANDIDATES} algorithms")
    }

    fn method(&self) -> String {
        format!("graphs of {CALLS} calls over operands rotated past the L2 cache, median of {REPLAYS} launches")
    }

    fn time_baseline(&mut self, [m, n, k]: [usize; 3]) -> Result<f64> {
        let count = self.sets(2 * (m * k + n * k + m * n));
        let upload = |rows, seed| self.upload(&normal_bytes(rows, k, DType::Bf16, seed));
        let x = self.duplicates(upload(m, 1)?, count)?;
        let w = self.duplicates(upload(n, 2)?, count)?;
        let mut d = self.duplicates(self.zeros(2 * m * n)?, count)?;
        let mut gemm = Bf16Gemm::new(&self.handle, m, n, k, BASELINE_CANDIDATES)?;
        let mut time = |gemm: &mut Bf16Gemm, replays| {
            time_calls(&self.handle, CALLS, replays, |call| {
                let at = call % count;
                let (a, b) = (MatRef::new(&x[at], DType::Bf16, m, k)?, MatRef::new(&w[at], DType::Bf16, n, k)?);
                gemm.execute(&self.handle, &a, &b, &mut MatMut::new(&mut d[at], DType::Bf16, m, n)?)
            })
        };
        let (mut best, mut fastest) = (0, f64::INFINITY);
        for candidate in 0..gemm.candidates() {
            gemm.choose(candidate);
            let us = time(&mut gemm, 3)?;
            if us < fastest {
                (best, fastest) = (candidate, us);
            }
        }
        gemm.choose(best);
        time(&mut gemm, REPLAYS)
    }

    fn time_pair(&mut self, mnk: [usize; 3], pair: Pair, out: DType) -> Result<PairTime> {
        let [m, n, k] = mnk;
        let mut sets = self.prepare(mnk, pair, out)?;
        let (mut plan, kept) = self.plan(mnk, pair, out, &mut sets)?;
        for b in &sets.b {
            plan.prepare(&self.handle, b)?;
        }
        let gemm_us = time_calls(&self.handle, CALLS, REPLAYS, |i| self.execute(&mut plan, &mut sets, i))?;
        let (quantize_us, both_us) = match pair.a {
            Activations::Quantized(_) => {
                let quantize_us = time_calls(&self.handle, CALLS, REPLAYS, |i| self.quantize_a(&mut sets, i))?;
                let both_us = time_calls(&self.handle, CALLS, REPLAYS, |i| {
                    self.quantize_a(&mut sets, i)?;
                    self.execute(&mut plan, &mut sets, i)
                })?;
                (quantize_us, both_us)
            }
            Activations::Plain(_) => (0.0, gemm_us),
        };
        let a = sets.a.first().map(|a| a.to_host(&self.handle)).transpose()?;
        let rows_of_a = |rows: Range<usize>| match (&a, pair.a) {
            (Some(a), _) => Ok(HostA::Quantized(rows_of(a, rows.start, rows.len())?)),
            (None, Activations::Plain(dtype)) => Ok(HostA::Plain(self.rows(&sets.x[0], rows, k, dtype)?, dtype)),
            (None, Activations::Quantized(_)) => {
                Err(Error::shape("A", "no matrix", "was quantized", "report it: the program made it"))
            }
        };
        let (b, arithmetic) = (sets.b[0].to_host(&self.handle)?, self.arithmetic(pair.a.operand(), pair.b.scheme()));
        let error = sampled_error(m, rows_of_a, &b, out, arithmetic, |rows| self.rows(&sets.d[0], rows, n, out))?;
        let keeping = if kept { ", weights kept dequantized" } else { "" };
        let formulation = format!("{} {}{keeping}", plan.formulation(), plan.finish());
        Ok(PairTime { gemm_us, quantize_us, both_us, formulation, error })
    }

    fn copy_rate(&mut self) -> Result<f64> {
        let (from, mut to) = (self.zeros(COPY_BYTES)?, self.zeros(COPY_BYTES)?);
        let us = time_calls(&self.handle, 8, REPLAYS, |_| copy(&self.handle, &from, &mut to))?;
        Ok(2.0 * COPY_BYTES as f64 / us * 1e6)
    }

    fn clocks(&self) -> String {
        smi("clocks.sm,clocks.mem").unwrap_or_default()
    }

    fn default_ms(&self) -> Vec<usize> {
        vec![1, 4, 16, 64, 128, 256, 512, 1024, 4096, 8192]
    }

    fn tune(
        &mut self,
        problems: &[([usize; 3], Pair)],
        out: DType,
        step: &mut dyn FnMut(String),
    ) -> std::result::Result<String, Failure> {
        let mut table = TuneTable::default();
        for &(mnk, pair) in problems {
            let [m, n, k] = mnk;
            let mut sets = self.prepare(mnk, pair, out)?;
            let (mut plan, _) = self.plan(mnk, pair, out, &mut sets)?;
            let args = sets.args(mnk, out, 0)?.accumulation(self.accumulation);
            let report = plan.autotune(&self.handle, args, &TuneOptions::default())?;
            let us = report.record.measured_us().unwrap_or(f64::NAN);
            step(format!("{m} x {n} x {k} {}: {} {us:.1} us", pair.name(), report.record.formulation()));
            table.insert(report.record);
        }
        Ok(table.to_json()?)
    }
}

fn driver(call: &str, error: impl fmt::Display) -> Error {
    Error::Driver { call: call.into(), reason: error.to_string() }
}

/// What nvidia-smi says about the first GPU it shows; `None` where it is missing or silent. For records only.
fn smi(query: &str) -> Option<String> {
    let output =
        Command::new("nvidia-smi").args([&format!("--query-gpu={query}"), "--format=csv,noheader"]).output().ok()?;
    let text = String::from_utf8(output.stdout).ok()?;
    let line = text.lines().next()?.trim();
    (output.status.success() && !line.is_empty()).then(|| line.to_string())
}
