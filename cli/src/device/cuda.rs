//! A GPU through the library's `gpu` module. Matrices are copied there and back; times are device time.

use std::fmt;
use std::ops::Range;
use std::path::Path;
use std::process::Command;
use std::time::Instant;

use ndarray::Array2;
use scaled_gemm::checkpoint::PlainRows;
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::cudarc::driver::sys::CUdevice_attribute;
use scaled_gemm::reference::{Accumulator, Gelu, GemmInputs, HostOperand, rows_of};
use scaled_gemm::{
    Accumulation, Bf16Gemm, BorrowsOutliveGraph, Cadence, ClockWatch, Formulation, GemmArgs, GemmDesc, GemmPlan,
    Handle, KernelSource, MatMut, MatRef, PlanOptions, QuantMatrix, QuantizeTo, Timing, TuneOptions, TuneTable, VecRef,
    copy,
};
use scaled_gemm::{DType, Error, Operand, Result, Scheme};

use super::check::sampled_error;
use super::cuda_caster::CudaCaster;
use super::cuda_decode;
use super::cuda_quantizers;
use super::cuda_sources::OnGpu;
use super::sources::Sources;
use super::{Activations, Caster, DecodeTime, Device, HostA, Pair, PairTime, Support};
use crate::args::AccumulationChoice;
use crate::data::{normal_bytes, to_bytes};
use crate::memory;
use crate::output::Failure;
use crate::quantizers::Quantizer;

/// Bytes of the copy that is the roof: far more than any L2 cache.
const COPY_BYTES: usize = 256 << 20;
/// Algorithms of the baseline that are timed; the fastest is the baseline.
pub(super) const BASELINE_CANDIDATES: usize = 8;
/// From this m on the cadence matters: both are measured.
const LARGE_ROWS: usize = 1024;

pub(super) struct Cuda {
    pub(super) handle: Handle,
    accumulation: Accumulation,
    batch_invariant: bool,
    chained: bool,
    /// Whether measured choices are in use, and what was made of them for the last product.
    tuned: bool,
    explained: Option<String>,
    /// Its place on the bus, by which nvidia-smi knows it: the driver's list may be another than nvidia-smi's.
    bus_id: Option<String>,
    watch: ClockWatch,
    /// The fastest algorithm of each baseline that was timed.
    fastest: Vec<([usize; 3], Cadence, usize)>,
}

pub fn open(ordinal: usize) -> Result<Box<dyn Device>> {
    let handle = Handle::new(ordinal)?;
    let bus_id = bus_id(&handle);
    let watch = ClockWatch::start(&handle);
    Ok(Box::new(Cuda {
        handle,
        accumulation: Accumulation::Precise,
        batch_invariant: false,
        chained: false,
        tuned: false,
        explained: None,
        bus_id,
        watch,
        fastest: Vec::new(),
    }))
}

/// `00000000:19:00.0`; `None` where the driver does not say.
fn bus_id(handle: &Handle) -> Option<String> {
    let number = |attribute| handle.stream().context().attribute(attribute).ok();
    let domain = number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_DOMAIN_ID)?;
    let bus = number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_BUS_ID)?;
    let device = number(CUdevice_attribute::CU_DEVICE_ATTRIBUTE_PCI_DEVICE_ID)?;
    Some(format!("{domain:08x}:{bus:02x}:{device:02x}.0"))
}

/// Operands of one product, several times over, so that each call finds cold ones.
pub(super) struct Sets {
    activations: Activations,
    x: Vec<CudaSlice<u8>>,
    w: Vec<CudaSlice<u8>>,
    /// Empty where A stays plain.
    pub(super) a: Vec<QuantMatrix>,
    pub(super) b: Vec<QuantMatrix>,
    pub(super) d: Vec<CudaSlice<u8>>,
}

impl Sets {
    /// The operands of one call.
    pub(super) fn args(&mut self, [m, n, k]: [usize; 3], out: DType, call: usize) -> Result<GemmArgs<'_>> {
        let at = call % self.d.len();
        let d = MatMut::new(&mut self.d[at], out, m, n)?;
        Ok(match self.activations {
            Activations::Quantized(_) => GemmArgs::new(&self.a[at], &self.b[at], d),
            Activations::Plain(dtype) => GemmArgs::weight_only(MatRef::new(&self.x[at], dtype, m, k)?, &self.b[at], d),
        })
    }
}

/// The type that `DequantizedBf16` multiplies in, and weights are kept in.
pub(super) fn kept_dtype(a: Operand, out: DType) -> DType {
    match a {
        Operand::Plain(dtype) => dtype,
        Operand::Quantized(scheme) if scheme.is_nvfp4() && out == DType::F16 => DType::F16,
        Operand::Quantized(_) => DType::Bf16,
    }
}

impl Cuda {
    pub(super) fn upload(&self, bytes: &[u8]) -> Result<CudaSlice<u8>> {
        self.handle.stream().clone_htod(bytes).map_err(|e| driver("copying to the GPU", e))
    }

    pub(super) fn zeros(&self, bytes: usize) -> Result<CudaSlice<u8>> {
        // One byte more than nothing: the driver has no empty allocations.
        self.handle.stream().alloc_zeros(bytes.max(1)).map_err(|e| driver("allocating device memory", e))
    }

    pub(super) fn duplicates(&self, one: CudaSlice<u8>, count: usize) -> Result<Vec<CudaSlice<u8>>> {
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
        Ok(PlainRows::new(dtype, rows, cols, bytes)?.to_f32())
    }

    /// How many sets of this many bytes exceed the L2 cache three times over.
    pub(super) fn sets(&self, bytes: usize) -> usize {
        (3 * self.handle.device().l2_bytes / bytes.max(1) + 1).clamp(2, 64)
    }

    pub(super) fn desc(&self, [m, n, k]: [usize; 3], a: Operand, b: Scheme, out: DType) -> GemmDesc {
        GemmDesc::new(m, n, k, a, b, out)
            .with_accumulation(self.accumulation)
            .with_batch_invariant(self.batch_invariant)
            .with_chained(self.chained)
    }

    /// With what the options say of every product.
    fn as_asked<'a>(&self, args: GemmArgs<'a>) -> GemmArgs<'a> {
        args.accumulation(self.accumulation).batch_invariant(self.batch_invariant).chained(self.chained)
    }

    pub(super) fn prepare(&self, [m, n, k]: [usize; 3], pair: Pair, out: DType) -> Result<Sets> {
        let source = match pair.a {
            Activations::Quantized(_) => DType::Bf16,
            Activations::Plain(dtype) => dtype,
        };
        let host_x = normal_bytes(m, k, source, 1);
        let host_w = normal_bytes(n, k, DType::Bf16, 2);
        // The least that a product of any scheme touches: codes of half a byte, and D.
        let count = self.sets((m + n) * k / 2 + m * n * out.bytes());
        let w = self.duplicates(self.upload(&host_w)?, count)?;
        let x = self.duplicates(self.upload(&host_x)?, count)?;
        let view = |x| MatRef::new(x, source, m, k);
        let mut sets = Sets {
            activations: pair.a,
            a: match pair.a {
                Activations::Quantized(recipe) => {
                    x.iter().map(|x| self.handle.quantize(&view(x)?, recipe)).collect::<Result<_>>()?
                }
                Activations::Plain(_) => Vec::new(),
            },
            b: Vec::new(),
            // The baseline's D is BF16.
            d: (0..count).map(|_| self.zeros(m * n * out.bytes().max(2))).collect::<Result<_>>()?,
            x,
            w,
        };
        sets.b = self.quantized_weights(&sets, [m, n, k], pair)?;
        Ok(sets)
    }

    /// The weights of each set, quantized.
    pub(super) fn quantized_weights(&self, sets: &Sets, [_, n, k]: [usize; 3], pair: Pair) -> Result<Vec<QuantMatrix>> {
        let weight = |w| self.handle.quantize(&MatRef::new(w, DType::Bf16, n, k)?, pair.b);
        sets.w.iter().map(weight).collect()
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
        let desc = self.as_asked(sets.args(mnk, out, 0)?).desc()?;
        Ok((self.handle.plan(&desc)?, true))
    }

    pub(super) fn execute(&self, plan: &mut GemmPlan, sets: &mut Sets, call: usize) -> Result<()> {
        let (mnk, out) = ([plan.desc().m, plan.desc().n, plan.desc().k], plan.desc().out);
        let args = self.as_asked(sets.args(mnk, out, call)?);
        plan.execute(&self.handle, args)
    }

    /// Quantizes A as its recipe says; nothing where it stays plain.
    pub(super) fn quantize_a(&self, sets: &mut Sets, call: usize) -> Result<()> {
        let Activations::Quantized(recipe) = sets.activations else { return Ok(()) };
        let at = call % sets.a.len();
        let (rows, cols) = (sets.a[at].rows(), sets.a[at].cols());
        let x = MatRef::new(&sets.x[at], DType::Bf16, rows, cols)?;
        self.handle.quantize_into(&x, recipe, QuantizeTo::Plain(&mut sets.a[at]))
    }

    /// Largest error of checked elements of a product, as a fraction of the f64 bound.
    pub(super) fn error_of(&self, plan: &mut GemmPlan, sets: &mut Sets) -> Result<f64> {
        let (GemmDesc { m, n, k, out, .. }, activations) = (*plan.desc(), sets.activations);
        // What is checked is the plan's own.
        self.handle.stream().memset_zeros(&mut sets.d[0]).map_err(|e| driver("clearing D", e))?;
        self.execute(plan, sets, 0)?;
        let a = sets.a.first().map(|a| a.to_host(&self.handle)).transpose()?;
        let rows_of_a = |rows: Range<usize>| match (&a, activations) {
            (Some(a), _) => Ok(HostA::Quantized(rows_of(a, rows.start, rows.len())?)),
            (None, Activations::Plain(dtype)) => Ok(HostA::Plain(self.rows(&sets.x[0], rows, k, dtype)?, dtype)),
            (None, Activations::Quantized(_)) => {
                Err(Error::shape("A", "no matrix", "was quantized", "report it: the program made it"))
            }
        };
        let (b, arithmetic) = (sets.b[0].to_host(&self.handle)?, self.arithmetic(plan.desc().a, sets.b[0].scheme()));
        sampled_error(m, rows_of_a, &b, out, arithmetic, |rows| self.rows(&sets.d[0], rows, n, out))
    }

    /// The baseline of one call: a plain A is F16 in no pair of the bench, so that it reads the same X.
    pub(super) fn multiply_plain(
        &self,
        gemm: &mut Bf16Gemm,
        sets: &mut Sets,
        [m, n, k]: [usize; 3],
        call: usize,
    ) -> Result<()> {
        let at = call % sets.d.len();
        let (a, b) = (MatRef::new(&sets.x[at], DType::Bf16, m, k)?, MatRef::new(&sets.w[at], DType::Bf16, n, k)?);
        gemm.execute(&self.handle, &a, &b, &mut MatMut::new(&mut sets.d[at], DType::Bf16, m, n)?)
    }

    /// Chooses the fastest algorithm of the baseline in this cadence, once a shape.
    pub(super) fn choose_baseline(
        &mut self,
        baseline: &mut Bf16Gemm,
        sets: &mut Sets,
        mnk: [usize; 3],
        cadence: Cadence,
    ) -> Result<()> {
        if let Some((.., index)) = self.fastest.iter().find(|(problem, of, _)| (*problem, *of) == (mnk, cadence)) {
            baseline.choose(*index);
            return Ok(());
        }
        let short = borrowing(Timing::of(cadence)).with_calls(4).with_launches(3).over(sets.d.len());
        baseline.choose_fastest(&self.handle, &short, |gemm, call| self.multiply_plain(gemm, sets, mnk, call))?;
        self.fastest.push((mnk, cadence, baseline.chosen()));
        Ok(())
    }

    /// What nvidia-smi says about this GPU; `None` where it is missing or silent. For records only.
    fn smi(&self, query: &str) -> Option<String> {
        let which = self.bus_id.as_ref().map(|id| format!("--id={id}"));
        let mut command = Command::new("nvidia-smi");
        let output =
            command.args(which).args([&format!("--query-gpu={query}"), "--format=csv,noheader"]).output().ok()?;
        let text = String::from_utf8(output.stdout).ok()?;
        let line = text.lines().next()?.trim();
        (output.status.success() && !line.is_empty()).then(|| line.to_string())
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
        match self.handle.device().ordinal {
            0 => format!("cuda, {}", self.handle.device()),
            ordinal => format!("cuda:{ordinal}, {}", self.handle.device()),
        }
    }

    fn check_memory(&self, [m, n, k]: [usize; 3], out: DType) -> std::result::Result<(), Failure> {
        let what = format!("{m} x {n} x {k} to {out}");
        let [m, n, k] = [m, n, k].map(|d| d as u64);
        // Here: the operands in BF16, and as codes where they are checked. There: the same and D, in each set; codes have half a byte at the least.
        memory::require(&what, 3 * (m + n) * k, memory::available(), "this machine")?;
        let (operands, d) = ((m + n) * k, m * n * out.bytes() as u64);
        let sets = self.sets((operands / 2 + d) as usize) as u64;
        let (memory, l2) = (self.handle.device().memory_bytes as u64, self.handle.device().l2_bytes as u64);
        // Links of chains are tuned with copies of the weights, twice as large as the L2 cache or two of them.
        let copies = if self.chained { (2 * l2 + n * k).max(2 * n * k) } else { 0 };
        memory::require(&what, sets * (2 * operands + operands / 2 + d) + copies, Some(memory), "the GPU")
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
            ("driver", self.smi("driver_version").unwrap_or_else(|| "unknown (nvidia-smi does not answer)".into())),
        ];
        match self.handle.library() {
            Ok(library) => {
                facts.push(("cublaslt", format!("{} ({})", library.version_text, library.version)));
                let path = library.path.map_or("unknown".into(), |p| p.display().to_string());
                facts.push(("from", format!("{path} ({})", library.found_by)));
            }
            Err(error) => {
                facts.push(("cublaslt", error.to_string()));
                let ours = "by our own kernels alone: FP8 on sm_90, and few rows with weights that are decoded";
                facts.push(("products", ours.into()));
            }
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

    fn set_accumulation(&mut self, accumulation: AccumulationChoice) -> Result<()> {
        self.accumulation = match accumulation {
            AccumulationChoice::Precise => Accumulation::Precise,
            AccumulationChoice::Fast => Accumulation::Fast,
        };
        Ok(())
    }

    fn set_batch_invariant(&mut self) -> Result<()> {
        self.batch_invariant = true;
        Ok(())
    }

    fn set_chained(&mut self) {
        self.chained = true;
    }

    fn use_tuning(&mut self, path: &Path) -> Result<()> {
        self.handle.set_tuning(TuneTable::load(path)?);
        self.tuned = true;
        Ok(())
    }

    fn part_bytes(&self) -> usize {
        CudaCaster::PART
    }

    /// The kernel counts random bytes from the first row that it is given.
    fn divides_stochastic(&self) -> bool {
        false
    }

    fn casters(&self) -> Vec<Box<dyn Caster>> {
        (0..CudaCaster::side_by_side()).map(|_| self.caster()).collect()
    }

    fn caster(&self) -> Box<dyn Caster> {
        Box::new(CudaCaster::new(self.handle.device().ordinal))
    }

    fn sources(&self) -> Box<dyn Sources + '_> {
        Box::new(OnGpu(&self.handle))
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
        let mut args = self.as_asked(args.activation(inputs.activation));
        if let Some((data, dtype, len)) = &bias {
            args = args.bias(VecRef::new(data, *dtype, *len)?);
        }
        let desc = args.desc()?;
        self.handle.scaled_gemm(args)?;
        if self.tuned {
            self.explained = Some(self.handle.plan(&desc)?.explain());
        }
        self.download(&d, m, n, out)
    }

    fn explained(&self) -> Option<&str> {
        self.explained.as_deref()
    }

    fn arithmetic(&self, a: Operand, b: Scheme) -> (Accumulator, Gelu) {
        let native_blocks = self.handle.device().compute_capability.0 >= 10;
        let accumulator = match (b.spec().block, self.accumulation) {
            _ if a.scheme().is_none() => Accumulator::TensorCoreWide,
            (Some(_), _) if !native_blocks => Accumulator::TensorCoreWide,
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
        let (sustained, pauses) = (Timing::SUSTAINED, Timing::PAUSES);
        format!(
            "medians of graph launches over operands rotated past the L2 cache, in turns; sustained: {} calls or more, {} \
             launches back to back; pauses (m >= {LARGE_ROWS}): {} and {}, a pause after each",
            sustained.calls, sustained.launches, pauses.calls, pauses.launches
        )
    }

    fn check_baseline(&mut self, [m, n, k]: [usize; 3]) -> Result<()> {
        Bf16Gemm::new(&self.handle, m, n, k, 1).map(drop)
    }

    fn time_pair(&mut self, mnk: [usize; 3], pair: Pair, out: DType) -> Result<Vec<PairTime>> {
        let [m, n, k] = mnk;
        let mut sets = self.prepare(mnk, pair, out)?;
        let count = sets.d.len();
        let (mut plan, kept) = self.plan(mnk, pair, out, &mut sets)?;
        for b in &sets.b {
            plan.prepare(&self.handle, b)?;
        }
        let mut baseline = Bf16Gemm::new(&self.handle, m, n, k, BASELINE_CANDIDATES)?;
        // The baseline, the product; where A is quantized, its quantization, and both.
        let competitors = if sets.a.is_empty() { 2 } else { 4 };
        let mut times = Vec::new();
        for cadence in Cadence::ALL.into_iter().filter(|cadence| *cadence == Cadence::Sustained || m >= LARGE_ROWS) {
            let timing = borrowing(Timing::of(cadence)).over(count);
            self.choose_baseline(&mut baseline, &mut sets, mnk, cadence)?;
            let start = Instant::now();
            let taken = timing.in_turns(&self.handle, competitors, |who, call| match who {
                0 => self.multiply_plain(&mut baseline, &mut sets, mnk, call),
                1 => self.execute(&mut plan, &mut sets, call),
                2 => self.quantize_a(&mut sets, call),
                _ => {
                    self.quantize_a(&mut sets, call)?;
                    self.execute(&mut plan, &mut sets, call)
                }
            })?;
            let us: Vec<f64> = taken.iter().map(|times| times.median()).collect();
            let (quantize_us, both_us) = if competitors == 4 { (us[2], us[3]) } else { (0.0, us[1]) };
            let clock = self.watch.since(start).to_string();
            times.push((cadence, [us[0], us[1], quantize_us, both_us], clock));
        }
        let error = self.error_of(&mut plan, &mut sets)?;
        let keeping = if kept { ", weights kept dequantized" } else { "" };
        let formulation = format!("{} {}{keeping}", plan.formulation(), plan.finish());
        let of_cadence = |(cadence, us, clock): (Cadence, [f64; 4], String)| {
            let [baseline_us, gemm_us, quantize_us, both_us] = us;
            let (cadence, formulation) = (cadence.name(), formulation.clone());
            PairTime { cadence, baseline_us, gemm_us, quantize_us, both_us, formulation, error, clock }
        };
        Ok(times.into_iter().map(of_cadence).collect())
    }

    fn time_decode(&mut self, mnk: [usize; 3], pair: Pair, out: DType) -> Result<DecodeTime> {
        cuda_decode::time(self, mnk, pair, out)
    }

    fn time_quantizers(
        &mut self,
        [rows, cols]: [usize; 2],
        all: &[Quantizer],
        step: &mut dyn FnMut(),
    ) -> Result<Vec<Result<f64>>> {
        cuda_quantizers::time(self, [rows, cols], all, step)
    }

    fn copy_rate(&mut self) -> Result<f64> {
        let (from, mut to) = (self.zeros(COPY_BYTES)?, self.zeros(COPY_BYTES)?);
        let times =
            borrowing(Timing::SUSTAINED).with_calls(8).time(&self.handle, |_| copy(&self.handle, &from, &mut to))?;
        Ok(2.0 * COPY_BYTES as f64 / times.median() * 1e6)
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
            let args = self.as_asked(sets.args(mnk, out, 0)?);
            let report = plan.autotune(&self.handle, args, &TuneOptions::default())?;
            let us = report.record.measured_us().unwrap_or(f64::NAN);
            step(format!("{m} x {n} x {k} {}: {} {us:.1} us", pair.name(), report.record.formulation()));
            table.insert(report.record);
        }
        Ok(table.to_json()?)
    }
}

pub(super) fn driver(call: &str, error: impl fmt::Display) -> Error {
    Error::Driver { call: call.into(), reason: error.to_string() }
}

/// The same timing for calls that use cudarc slices.
pub(super) fn borrowing(timing: Timing) -> Timing {
    // SAFETY: what is timed here uses slices of `Sets`, or of a local, that no timed call drops or replaces.
    timing.borrowing(unsafe { BorrowsOutliveGraph::promise() })
}
