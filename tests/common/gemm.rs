//! What the GEMM suites share: pairs, operands whose scales differ by orders of magnitude, cases, outputs between guards.

use ndarray::Array2;
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::pair::check_pair;
use scaled_gemm::reference::{self, Accumulator, Bound, Gelu, GemmInputs, HostOperand, SumBound};
use scaled_gemm::{
    Accumulate, Accumulation, Activation, DType, Epilogue, Error, Extent, Finish, Formulation, Fp8Format, GemmArgs,
    GemmDesc, GemmPlan, Handle, HostQuantMatrix, MatMut, MatRef, Operand, OutAmax, PlanOptions, QuantMatrix,
    QuantizeTo, Recipe, Scheme, VecRef,
};

use super::{Noise, bytes_of, round_to, upload, upload_strided, values_of};

pub const WIDE: [DType; 3] = [DType::Bf16, DType::F16, DType::F32];

/// The pairs of FP8 scheme families that multiply, by their names.
pub const FAMILIES: [(&str, &str); 5] = [
    ("fp8-tensor", "fp8-tensor"),
    ("fp8-row", "fp8-row"),
    ("fp8-1x128", "fp8-128x128"),
    ("fp8-128x128", "fp8-1x128"),
    ("fp8-1x128", "fp8-1x128"),
];

pub const FORMATS: [(Fp8Format, Fp8Format); 3] =
    [(Fp8Format::E4M3, Fp8Format::E4M3), (Fp8Format::E4M3, Fp8Format::E5M2), (Fp8Format::E5M2, Fp8Format::E4M3)];

/// One family in each mix of code formats.
pub fn mixes((a, b): (&str, &str)) -> Vec<(Scheme, Scheme)> {
    let scheme = |name, format| Scheme::from_name(name, format).unwrap();
    let pairs: Vec<_> = FORMATS.into_iter().map(|(fa, fb)| (scheme(a, fa), scheme(b, fb))).collect();
    assert!(pairs.iter().all(|(a, b)| check_pair(*a, *b, "test").is_ok()));
    pairs
}

/// Every pair of FP8 matrices that multiplies.
pub fn pairs() -> Vec<(Scheme, Scheme)> {
    FAMILIES.into_iter().flat_map(mixes).collect()
}

pub fn has_blocks(scheme: Scheme) -> bool {
    scheme.spec().group_cols != Extent::All
}

pub fn is_tensor(scheme: Scheme) -> bool {
    scheme.spec().group_rows == Extent::All
}

/// Fast and precise where it makes a difference: block scales are promoted anyway.
pub fn accumulations(a: Scheme) -> &'static [Accumulation] {
    if has_blocks(a) { &[Accumulation::Precise] } else { &[Accumulation::Precise, Accumulation::Fast] }
}

pub fn accumulator(accumulation: Accumulation) -> Accumulator {
    match accumulation {
        Accumulation::Precise => Accumulator::TensorCorePromoted,
        Accumulation::Fast => Accumulator::TensorCoreFast,
    }
}

/// Normal data in which every row, every 128 columns of a row and every 128 x 128 tile has a size of its own, over three
/// orders of magnitude: a scale taken from a wrong place of any layout shows. Products stay within F16 up to k = 576.
pub fn tiled(rng: &mut Noise, rows: usize, cols: usize) -> Array2<f32> {
    let groups = cols.div_ceil(128);
    let mut factors = |count: usize, decades: f32| -> Vec<f32> {
        (0..count).map(|_| 10f32.powf((rng.uniform() - 0.5) * decades)).collect()
    };
    let by_tile = factors(rows.div_ceil(128) * groups, 1.5);
    let by_row = factors(rows, 1.0);
    let by_group = factors(rows * groups, 0.5);
    Array2::from_shape_fn((rows, cols), |(i, j)| {
        let factor = by_tile[i / 128 * groups + j / 128] * by_row[i] * by_group[i * groups + j / 128];
        0.125 * rng.normal() * factor
    })
}

pub fn quantized(x: &Array2<f32>, scheme: Scheme) -> HostQuantMatrix {
    reference::quantize(x.view(), DType::F32, Recipe::new(scheme)).unwrap()
}

/// A and B of a product, on the host and on the device.
pub trait Product {
    fn shape(&self) -> [usize; 3];
    fn host_a(&self) -> HostOperand<'_>;
    fn host_b(&self) -> &HostQuantMatrix;
    fn b(&self) -> &QuantMatrix;
    /// The plain product into packed rows of `out`.
    fn problem(&self, out: DType) -> GemmDesc;
    fn call<'a>(&'a self, d: MatMut<'a>) -> GemmArgs<'a>;

    fn sums(&self, accumulation: Accumulation) -> SumBound {
        let wide = self.host_b().scheme().spec().block.is_some() || self.host_a().quantized().is_none();
        let accumulator = if wide { Accumulator::TensorCoreWide } else { accumulator(accumulation) };
        SumBound::new(self.host_a(), self.host_b(), accumulator)
    }
}

/// A quantized A and B.
pub struct Operands {
    pub host_a: HostQuantMatrix,
    pub host_b: HostQuantMatrix,
    pub a: QuantMatrix,
    pub b: QuantMatrix,
}

impl Operands {
    pub fn new(handle: &Handle, rng: &mut Noise, [m, n, k]: [usize; 3], (a, b): (Scheme, Scheme)) -> Self {
        Self::of(handle, quantized(&tiled(rng, m, k), a), quantized(&tiled(rng, n, k), b))
    }

    pub fn of(handle: &Handle, host_a: HostQuantMatrix, host_b: HostQuantMatrix) -> Self {
        let a = QuantMatrix::from_host(handle, &host_a).unwrap();
        let b = QuantMatrix::from_host(handle, &host_b).unwrap();
        Self { host_a, host_b, a, b }
    }
}

impl Product for Operands {
    fn shape(&self) -> [usize; 3] {
        [self.a.rows(), self.b.rows(), self.a.cols()]
    }

    fn host_a(&self) -> HostOperand<'_> {
        HostOperand::Quantized(&self.host_a)
    }

    fn host_b(&self) -> &HostQuantMatrix {
        &self.host_b
    }

    fn b(&self) -> &QuantMatrix {
        &self.b
    }

    fn problem(&self, out: DType) -> GemmDesc {
        let [m, n, k] = self.shape();
        let desc = GemmDesc::new(m, n, k, self.a.scheme(), self.b.scheme(), out);
        desc.with_kept(self.b.kept()).with_b_order(self.b.code_order())
    }

    fn call<'a>(&'a self, d: MatMut<'a>) -> GemmArgs<'a> {
        GemmArgs::new(&self.a, &self.b, d)
    }
}

/// A plain A, whose rows lie apart by `a_gap` elements, and a quantized B.
pub struct PlainOperands {
    pub host_a: Array2<f32>,
    pub dtype: DType,
    pub a_gap: usize,
    pub host_b: HostQuantMatrix,
    a: CudaSlice<u8>,
    pub b: QuantMatrix,
}

impl PlainOperands {
    pub fn of(handle: &Handle, x: &Array2<f32>, dtype: DType, a_gap: usize, host_b: HostQuantMatrix) -> Self {
        let host_a = x.mapv(|v| round_to(dtype, v));
        let a = upload_strided(handle, &host_a, dtype, x.ncols() + a_gap, 0);
        let b = QuantMatrix::from_host(handle, &host_b).unwrap();
        Self { host_a, dtype, a_gap, host_b, a, b }
    }

    /// Other activations at the same address.
    pub fn rewrite(&mut self, handle: &Handle, x: &Array2<f32>) {
        let other = Self::of(handle, x, self.dtype, self.a_gap, self.host_b.clone());
        handle.stream().memcpy_dtod(&other.a, &mut self.a).unwrap();
        self.host_a = other.host_a;
    }
}

impl Product for PlainOperands {
    fn shape(&self) -> [usize; 3] {
        [self.host_a.nrows(), self.b.rows(), self.host_a.ncols()]
    }

    fn host_a(&self) -> HostOperand<'_> {
        HostOperand::Plain(self.host_a.view(), self.dtype)
    }

    fn host_b(&self) -> &HostQuantMatrix {
        &self.host_b
    }

    fn b(&self) -> &QuantMatrix {
        &self.b
    }

    fn problem(&self, out: DType) -> GemmDesc {
        let [m, n, k] = self.shape();
        let desc = GemmDesc::new(m, n, k, Operand::Plain(self.dtype), self.b.scheme(), out);
        desc.with_a_stride(k + self.a_gap).with_kept(self.b.kept()).with_b_order(self.b.code_order())
    }

    fn call<'a>(&'a self, d: MatMut<'a>) -> GemmArgs<'a> {
        let [m, _, k] = self.shape();
        let a = MatRef::new(&self.a, self.dtype, m, k).unwrap().with_row_stride(k + self.a_gap).unwrap();
        GemmArgs::weight_only(a, &self.b, d)
    }
}

/// What is computed beside the operands. `beta` adds to D; `encode` and `amax` count for E4M3 output.
#[derive(Clone, Copy, Debug)]
pub struct Case {
    pub out: DType,
    pub accumulation: Accumulation,
    pub alpha: f32,
    pub beta: Option<f32>,
    pub bias: Option<DType>,
    pub activation: Activation,
    pub residual: Option<DType>,
    pub encode: f32,
    pub amax: OutAmax,
    /// Elements between the rows of D and of the residual.
    pub gap: usize,
    /// Whether it is planned for chains.
    pub chained: bool,
}

impl Case {
    pub fn new(out: DType) -> Self {
        Self {
            out,
            accumulation: Accumulation::Precise,
            alpha: 1.0,
            beta: None,
            bias: None,
            activation: Activation::None,
            residual: None,
            encode: 1.0,
            amax: OutAmax::Ignore,
            gap: 0,
            chained: false,
        }
    }

    pub fn desc(&self, ops: &impl Product) -> GemmDesc {
        let [_, n, _] = ops.shape();
        ops.problem(self.out)
            .with_out_stride(n + self.gap)
            .with_epilogue(Epilogue { bias: self.bias, activation: self.activation, residual: self.residual })
            .with_accumulate(if self.beta.is_some() { Accumulate::Add } else { Accumulate::Replace })
            .with_accumulation(self.accumulation)
            .with_out_amax(self.amax)
            .with_chained(self.chained)
    }
}

/// Bias, residual and old D of every type, for one shape. Rounded to BF16 and F16 at once, so that every type holds them.
pub struct Extras {
    pub bias: Vec<f32>,
    pub residual: Array2<f32>,
    pub old: Array2<f32>,
    biases: Vec<CudaSlice<u8>>,
    residuals: Vec<(usize, CudaSlice<u8>)>,
}

/// Rounded to the numbers that BF16 and F16 share.
fn common_value(x: f32) -> f32 {
    round_to(DType::F16, round_to(DType::Bf16, x))
}

impl Extras {
    /// `gaps`: the row gaps of the cases that will use them.
    pub fn new(handle: &Handle, rng: &mut Noise, m: usize, n: usize, gaps: &[usize]) -> Self {
        let mut spread = || common_value(rng.normal() * 10f32.powf(rng.uniform() * 3.0 - 1.5));
        let bias: Vec<f32> = (0..n).map(|_| spread()).collect();
        let residual = Array2::from_shape_fn((m, n), |_| spread());
        let old = Array2::from_shape_fn((m, n), |_| spread());
        let biases = WIDE.map(|dtype| upload(handle, &bytes_of(dtype, &bias))).into();
        let residuals = gaps
            .iter()
            .flat_map(|gap| WIDE.map(|dtype| (*gap, upload_strided(handle, &residual, dtype, n + gap, 0))))
            .collect();
        Self { bias, residual, old, biases, residuals }
    }

    fn bias_on_device(&self, dtype: DType) -> VecRef<'_> {
        let place = WIDE.iter().position(|t| *t == dtype).unwrap();
        VecRef::new(&self.biases[place], dtype, self.bias.len()).unwrap()
    }

    fn residual_on_device(&self, dtype: DType, gap: usize) -> MatRef<'_> {
        let place = WIDE.iter().position(|t| *t == dtype).unwrap();
        let (_, buffer) = self.residuals.iter().filter(|(g, _)| *g == gap).nth(place).unwrap();
        let (m, n) = self.residual.dim();
        MatRef::new(buffer, dtype, m, n).unwrap().with_row_stride(n + gap).unwrap()
    }

    /// The same problem for the reference.
    pub fn inputs<'a>(&'a self, ops: &'a impl Product, case: &Case) -> GemmInputs<'a> {
        GemmInputs {
            alpha: case.alpha,
            accumulate: case.beta.map(|beta| (beta, self.old.view())),
            bias: case.bias.map(|dtype| (&self.bias[..], dtype)),
            activation: case.activation,
            residual: case.residual.map(|dtype| (self.residual.view(), dtype)),
            out_encode: if case.out == DType::E4M3 { case.encode } else { 1.0 },
            ..GemmInputs::new(ops.host_a(), ops.host_b(), case.out)
        }
    }
}

/// Bytes behind the last row of D that no kernel may touch.
const GUARD: usize = 1024;

/// An output on the device: every byte 0xFF, NaN in every type, unless it holds an old D; guarded between and behind rows.
pub struct Output {
    pub buffer: CudaSlice<u8>,
    pub dtype: DType,
    pub rows: usize,
    pub cols: usize,
    pub stride: usize,
    initial: Vec<u8>,
    encode: CudaSlice<f32>,
    amax: CudaSlice<f32>,
}

/// What a call left in its output: packed bytes of D, and amax.
#[derive(Clone, Debug, PartialEq)]
pub struct Stored {
    pub bytes: Vec<u8>,
    pub amax: u32,
}

impl Output {
    pub fn new(handle: &Handle, ops: &impl Product, extras: &Extras, case: &Case) -> Self {
        let [rows, cols, _] = ops.shape();
        let (size, stride) = (case.out.bytes(), cols + case.gap);
        let mut bytes = vec![0xFF; rows * stride * size + GUARD];
        if case.beta.is_some() {
            for (i, row) in extras.old.rows().into_iter().enumerate() {
                let old = bytes_of(case.out, row.iter());
                bytes[i * stride * size..][..old.len()].copy_from_slice(&old);
            }
        }
        Self {
            buffer: upload(handle, &bytes),
            dtype: case.out,
            rows,
            cols,
            stride,
            initial: bytes,
            encode: handle.stream().clone_htod(&[case.encode]).unwrap(),
            amax: handle.stream().clone_htod(&[f32::NAN]).unwrap(),
        }
    }

    /// As it was at first, at the same address.
    pub fn reset(&mut self, handle: &Handle) {
        handle.stream().memcpy_htod(&self.initial, &mut self.buffer).unwrap();
        handle.stream().memcpy_htod(&[f32::NAN], &mut self.amax).unwrap();
    }

    /// Another encode factor, at the same address.
    pub fn set_encode(&mut self, handle: &Handle, encode: f32) {
        handle.stream().memcpy_htod(&[encode], &mut self.encode).unwrap();
    }

    /// The arguments of a call into this output.
    pub fn args<'a>(&'a mut self, ops: &'a impl Product, extras: &'a Extras, case: &Case) -> GemmArgs<'a> {
        self.args_with(|d| ops.call(d), extras, case)
    }

    pub fn args_of<'a>(
        &'a mut self,
        a: &'a QuantMatrix,
        b: &'a QuantMatrix,
        extras: &'a Extras,
        case: &Case,
    ) -> GemmArgs<'a> {
        self.args_with(|d| GemmArgs::new(a, b, d), extras, case)
    }

    pub fn args_with<'a>(
        &'a mut self,
        call: impl FnOnce(MatMut<'a>) -> GemmArgs<'a>,
        extras: &'a Extras,
        case: &Case,
    ) -> GemmArgs<'a> {
        let d = MatMut::new(&mut self.buffer, self.dtype, self.rows, self.cols);
        let d = d.unwrap().with_row_stride(self.stride).unwrap();
        let mut args = call(d).alpha(case.alpha).activation(case.activation);
        args = args.accumulation(case.accumulation).chained(case.chained);
        if let Some(beta) = case.beta {
            args = args.accumulate(beta);
        }
        if let Some(dtype) = case.bias {
            args = args.bias(extras.bias_on_device(dtype));
        }
        if let Some(dtype) = case.residual {
            args = args.residual(extras.residual_on_device(dtype, case.gap));
        }
        if case.out == DType::E4M3 {
            args = args.out_encode(&self.encode);
        }
        match case.amax {
            OutAmax::Ignore => args,
            OutAmax::Store => args.amax(&mut self.amax),
        }
    }

    /// What lies in the output now. Panics if a byte outside the rows was written.
    pub fn read(&self, handle: &Handle, context: &str) -> Stored {
        let all = handle.stream().clone_dtoh(&self.buffer).unwrap();
        let amax = handle.stream().clone_dtoh(&self.amax).unwrap();
        handle.synchronize().unwrap();
        let size = self.dtype.bytes();
        let (row, pitch) = (self.cols * size, self.stride * size);
        let mut bytes = Vec::with_capacity(self.rows * row);
        for i in 0..self.rows {
            let (inside, gap) = all[i * pitch..][..pitch].split_at(row);
            bytes.extend_from_slice(inside);
            assert!(gap.iter().all(|b| *b == 0xFF), "{context}: written between rows {i} and {}", i + 1);
        }
        assert!(all[self.rows * pitch..].iter().all(|b| *b == 0xFF), "{context}: written behind the last row");
        Stored { bytes, amax: amax[0].to_bits() }
    }
}

impl Stored {
    pub fn values(&self, ops: &impl Product, case: &Case) -> Array2<f32> {
        let [m, n, _] = ops.shape();
        Array2::from_shape_vec((m, n), values_of(case.out, &self.bytes)).unwrap()
    }
}

/// Who computes the GELU of a plan.
pub fn gelu(plan: &GemmPlan) -> Gelu {
    match (plan.formulation(), plan.finish()) {
        (Formulation::SmallM | Formulation::Sm90, _) | (_, Finish::EpilogueKernel) => Gelu::Ieee,
        _ => Gelu::Approximate,
    }
}

/// Runs a prepared plan once into a fresh output.
pub fn execute(handle: &Handle, plan: &mut GemmPlan, ops: &impl Product, extras: &Extras, case: &Case) -> Stored {
    plan.prepare(handle, ops.b()).unwrap();
    let mut output = Output::new(handle, ops, extras, case);
    plan.execute(handle, output.args(ops, extras, case)).unwrap();
    output.read(handle, &plan.explain())
}

/// The formulations that are offered. At least one where the pair exists at all: sm_90 and cuBLASLt 12.9 have every pair.
pub fn offered(handle: &Handle, desc: &GemmDesc) -> Vec<Formulation> {
    let offers = handle.offers(desc).unwrap();
    let mut offered = Vec::new();
    for offer in &offers {
        match &offer.refusal {
            None => offered.push(offer.formulation),
            Some(reason) => assert!(!reason.is_empty(), "{desc}: {} is refused without a reason", offer.formulation),
        }
    }
    assert!(!offered.is_empty() || !has_every_pair(handle), "{desc}: no formulation: {offers:?}");
    offered
}

pub fn has_every_pair(handle: &Handle) -> bool {
    handle.device().compute_capability == (9, 0) && handle.library().is_ok_and(|library| library.version >= 120900)
}

/// A plan for one formulation.
pub fn plan(handle: &Handle, desc: &GemmDesc, formulation: Formulation) -> GemmPlan {
    let plan = handle.plan_with(desc, &PlanOptions::default().with_formulation(formulation));
    let plan = plan.unwrap_or_else(|e| panic!("{desc} by {formulation}, which was offered: {e}"));
    assert_eq!((plan.formulation(), plan.desc()), (formulation, desc));
    plan
}

/// What a suite has computed, and how near to the bound it came.
#[derive(Default)]
pub struct Tally {
    /// Problems that were posed.
    pub posed: usize,
    /// Problems that some formulation computed.
    pub computed: usize,
    /// Largest error as a fraction of its tolerance.
    pub worst: f64,
}

impl Tally {
    /// [`check_case`], counted.
    pub fn check(&mut self, handle: &Handle, ops: &impl Product, extras: &Extras, sums: &SumBound, case: &Case) {
        let errors = check_case(handle, ops, extras, sums, case);
        self.posed += 1;
        self.computed += usize::from(!errors.is_empty());
        self.worst = errors.into_iter().fold(self.worst, f64::max);
    }

    /// Says what was computed; panics unless `posed` problems were posed, and at least `least` of them computed.
    pub fn finish(&self, what: &str, posed: usize, least: usize) {
        let Self { computed, worst, .. } = self;
        println!("{what}: {computed} of {posed} problems computed, largest error {worst:.3} of its tolerance");
        assert_eq!(self.posed, posed, "{what}: problems posed");
        assert!(*computed >= least, "{what}: {computed} problems computed, at least {least} must be");
    }
}

/// How many of `posed` FP8 problems must be computed: all where every pair exists.
pub fn least_fp8(handle: &Handle, posed: usize) -> usize {
    if has_every_pair(handle) { posed } else { 0 }
}

/// Bias, activation, residual and accumulation of every type and all together, at an m that needs padding (17) or one that
/// does not. Alpha and the row gap take turns.
pub fn epilogue_cases(m: usize, gap: usize) -> impl Iterator<Item = Case> {
    let types = || [None].into_iter().chain(WIDE.map(Some));
    let mut cases = Vec::new();
    for out in WIDE {
        for bias in types() {
            for activation in Activation::ALL {
                for residual in types().filter(|r| m == 17 || *r != Some(DType::F16)) {
                    let betas: &[_] = if out == DType::F32 { &[None, Some(1.0), Some(0.5)] } else { &[None] };
                    for beta in betas {
                        let alpha = [1.0, -0.75, 3.0][cases.len() % 3];
                        let gap = if cases.len().is_multiple_of(2) { 0 } else { gap };
                        cases.push(Case { alpha, beta: *beta, bias, activation, residual, gap, ..Case::new(out) });
                    }
                }
            }
        }
    }
    cases.into_iter()
}

/// Everything that our epilogue kernel adds.
pub fn layer() -> Case {
    Case {
        bias: Some(DType::Bf16),
        activation: Activation::Silu,
        residual: Some(DType::F16),
        alpha: 0.5,
        beta: Some(0.5),
        gap: 8,
        ..Case::new(DType::F32)
    }
}

/// Quantizes `x` into a matrix that exists, where a graph finds it.
pub fn rewrite(handle: &Handle, x: &Array2<f32>, to: &mut QuantMatrix) {
    let buffer = upload(handle, &bytes_of(DType::F32, x.iter()));
    let input = MatRef::new(&buffer, DType::F32, x.nrows(), x.ncols()).unwrap();
    handle.quantize_into(&input, Recipe::new(to.scheme()), QuantizeTo::Plain(to)).unwrap();
}

/// The words are in the message, and cuBLASLt's bare refusal is not.
#[track_caller]
pub fn refused<T>(result: Result<T, Error>, words: &[&str]) -> Error {
    let error = result.err().unwrap_or_else(|| panic!("accepted, and should be refused with {words:?}"));
    let text = error.to_string();
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
    assert!(!text.contains("NOT_SUPPORTED") && !matches!(error, Error::Cublas { .. }), "{text}");
    error
}

/// Computes the case by every formulation offered and checks each result against the bound. Gives the largest error of
/// each as a fraction of its tolerance: nothing where nothing is offered.
pub fn check_case(handle: &Handle, ops: &impl Product, extras: &Extras, sums: &SumBound, case: &Case) -> Vec<f64> {
    let desc = case.desc(ops);
    let inputs = extras.inputs(ops, case);
    let mut errors = Vec::new();
    let mut bounds: Vec<(Gelu, Bound)> = Vec::new();
    for formulation in offered(handle, &desc) {
        let mut plan = plan(handle, &desc, formulation);
        let stored = execute(handle, &mut plan, ops, extras, case);
        let gelu = gelu(&plan);
        if !bounds.iter().any(|(g, _)| *g == gelu) {
            bounds.push((gelu, sums.with(&inputs, gelu).unwrap()));
        }
        let (_, bound) = bounds.iter().find(|(g, _)| *g == gelu).unwrap();
        let found = bound.check(stored.values(ops, case).view());
        errors.push(
            found.unwrap_or_else(|e| panic!("{e}; alpha {}, beta {:?}\n{}", case.alpha, case.beta, plan.explain())),
        );
        if case.amax == OutAmax::Store {
            // The amax is taken before encoding: that of the same result in F32.
            let wide = GemmInputs { out: DType::F32, out_encode: 1.0, ..inputs };
            let bound = sums.with(&wide, gelu).unwrap();
            let reach = |sign: f64| {
                let cells = bound.exact.iter().zip(&bound.tolerance);
                cells.fold(0.0f64, |most, (v, t)| most.max(v.abs() + sign * t))
            };
            let amax = f64::from(f32::from_bits(stored.amax));
            assert!(
                reach(-1.0) <= amax && amax <= reach(1.0),
                "amax {amax} of {}..{}\n{}",
                reach(-1.0),
                reach(1.0),
                plan.explain()
            );
        }
    }
    errors
}
