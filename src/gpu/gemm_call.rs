//! [`Candidate`]: one formulation and finish of one problem, ready to be enqueued: descriptors, layouts, algorithms and
//! scratch made beforehand, so that [`Candidate::enqueue`] only checks, fills in addresses and launches.

use crate::epilogue::Activation;
use crate::error::{Error, Result};
use crate::format::layout::ScaleLayout;
use crate::format::{BlockScaleFormat, CodeFormat, DType, Scheme};

use super::formulation::{Finish, Formulation, PairKind, pair_kind};
use super::gemm_args::{ArgA, GemmArgs};
use super::gemm_core::{Core, FactorPlace, ScaleUse, ValueSource, core};
use super::gemm_desc::{Accumulate, Accumulation, GemmDesc, OutAmax};
use super::handle::{Fixed, Handle, WORKSPACE_BYTES};
use super::kernels::{EpilogueCall, ScaleVector};
use super::lt::{
    self, Algo, Compute, DataType, EpilogueKind, Factors, FastAccumulation, Heuristic, Layouts, MatmulCall, MatmulDesc,
    MatrixLayout, Operand, PointerAttr, PointerMode, Pointers, Preference, Reduction, ScaleMode, Transpose, attr,
};
use super::matrix::QuantMatrix;
use super::memory::{DeviceBytes, DeviceBytesMut, Order, Span, driver};
use super::quirks::{self, Problem, Scaling};

/// Alignment that plans assume of every operand, and `execute` asks for.
const ALIGNMENT: u32 = 16;

/// How many algorithms to ask for, and how much workspace they may use.
#[derive(Clone, Copy)]
pub(super) struct Search {
    pub(super) candidates: usize,
    pub(super) workspace_limit: usize,
}

/// A call that is ready, apart from addresses.
pub(super) struct Candidate {
    pub(super) core: Core,
    matmul: MatmulDesc,
    layouts: Layouts,
    algos: Vec<Algo>,
    chosen: usize,
    scratch: Option<Fixed<u8>>,
    /// Why the finishes with less traffic were not taken.
    pub(super) passed_over: Vec<String>,
}

/// The cuBLASLt side of a [`Core`], before an algorithm is known.
struct Setup {
    matmul: MatmulDesc,
    layouts: Layouts,
}

/// The type of an operand's codes.
fn code_type(scheme: Scheme) -> DataType {
    match scheme.spec().format {
        CodeFormat::E4M3 => DataType::E4m3,
        CodeFormat::E5M2 => DataType::E5m2,
        CodeFormat::E2M1 => DataType::E2m1,
    }
}

/// The types of A and B in the call.
fn operand_types(desc: &GemmDesc, core: &Core) -> [DataType; 2] {
    match core.values {
        Some(values) => [DataType::from(values.dtype); 2],
        None => [desc.a.scheme().unwrap_or(desc.b), desc.b].map(code_type),
    }
}

/// The mode of scales in this layout; `None` for plain numbers.
fn scale_mode(layout: ScaleLayout, desc: &GemmDesc) -> Option<ScaleMode> {
    Some(match layout {
        ScaleLayout::Scalar => ScaleMode::Scalar,
        ScaleLayout::Outer => ScaleMode::OuterVector,
        ScaleLayout::Vec128 => ScaleMode::Group1x128,
        ScaleLayout::Blk128 => ScaleMode::Block128,
        ScaleLayout::Tiled128x4 => match desc.b.spec().block?.format {
            BlockScaleFormat::Ue4m3 => ScaleMode::Vector16Ue4m3,
            BlockScaleFormat::Ue8m0 => ScaleMode::Vector32Ue8m0,
        },
        ScaleLayout::Absent => return None,
    })
}

/// What cuBLASLt calls this epilogue; `None` where it has none.
fn epilogue_kind(core: &Core) -> Option<EpilogueKind> {
    Some(match (core.bias.is_some(), core.activation) {
        (false, Activation::None) => EpilogueKind::Default,
        (true, Activation::None) => EpilogueKind::Bias,
        (false, Activation::Relu) => EpilogueKind::Relu,
        (true, Activation::Relu) => EpilogueKind::ReluBias,
        (false, Activation::Gelu) => EpilogueKind::Gelu,
        (true, Activation::Gelu) => EpilogueKind::GeluBias,
        (_, Activation::Silu) => return None,
    })
}

/// The one place of the row-major swap. cuBLASLt is column-major: it sees `Dᵀ = B Aᵀ`, so our B goes first, transposed
/// (k x n, leading dimension k), our A second, as it is (k x rows), and D is n x rows. Leading dimensions count elements,
/// those of E2M1 too. `placeholder` stands for addresses that are not known yet.
fn setup(placeholder: u64, desc: &GemmDesc, core: &Core) -> Result<Setup> {
    let mut matmul = MatmulDesc::new(Compute::F32, DataType::F32)?;
    matmul.set(attr::TransA, Transpose::Yes)?;
    matmul.set(attr::TransB, Transpose::No)?;
    let mut pointers = Vec::new();
    // Plain numbers have no scales: a scale pointer would make the library refuse them.
    if let (Some(a), Some(b)) = (scale_mode(core.a_scales, desc), scale_mode(core.b_scales, desc)) {
        matmul.set(attr::AScaleMode, b)?;
        matmul.set(attr::BScaleMode, a)?;
        pointers.extend([PointerAttr::AScale, PointerAttr::BScale]);
        let fast = match core.accumulation {
            Accumulation::Precise => FastAccumulation::Off,
            Accumulation::Fast => FastAccumulation::On,
        };
        matmul.set(attr::FastAccum, fast)?;
    }
    if core.factors == FactorPlace::Device {
        matmul.set(attr::AlphaBetaPlace, PointerMode::Device)?;
    }
    if let Some(kind) = epilogue_kind(core) {
        matmul.set(attr::Epilogue, kind)?;
    }
    if let Some(bias) = core.bias {
        matmul.set(attr::BiasDataType, DataType::from(bias))?;
        pointers.push(PointerAttr::Bias);
    }
    if core.d_type == DType::E4M3 {
        pointers.push(PointerAttr::DScale);
    }
    if core.amax == OutAmax::Store {
        pointers.push(PointerAttr::AmaxD);
    }
    matmul.expect_pointers(&pointers, placeholder)?;
    let (n, k, rows) = (desc.n, desc.k, core.rows);
    let [a_type, b_type] = operand_types(desc, core);
    let d = || MatrixLayout::new(DataType::from(core.d_type), n, rows, core.d_stride);
    // An FP8 D wants a wide C even where none is read (documented).
    let c = if core.d_type == DType::E4M3 { MatrixLayout::new(DataType::Bf16, n, rows, core.d_stride) } else { d() };
    let layouts = Layouts {
        a: MatrixLayout::new(b_type, k, n, k)?,
        b: MatrixLayout::new(a_type, k, rows, desc.a_stride)?,
        c: c?,
        d: d()?,
    };
    Ok(Setup { matmul, layouts })
}

/// The problem as the ledger of known bugs sees it.
fn problem(handle: &Handle, desc: &GemmDesc, core: &Core) -> Problem {
    let [a_type, b_type] = operand_types(desc, core);
    let largest = [
        b_type.bytes_of(desc.n * desc.k).unwrap_or(usize::MAX),
        a_type.bytes_of(core.rows * desc.a_stride).unwrap_or(usize::MAX),
        core.rows * core.d_stride * core.d_type.bytes(),
    ];
    Problem {
        compute_capability: handle.device().compute_capability,
        m: core.rows,
        n: desc.n,
        k: desc.k,
        scaling: match (core.a_scales, pair_kind(desc)) {
            (ScaleLayout::Absent, _) => Scaling::Unscaled,
            (ScaleLayout::Scalar, _) => Scaling::Tensor,
            (ScaleLayout::Outer, _) => Scaling::Row,
            (ScaleLayout::Vec128 | ScaleLayout::Blk128, _) => Scaling::Block128,
            (ScaleLayout::Tiled128x4, PairKind::Block(BlockScaleFormat::Ue8m0)) => Scaling::Block32,
            (ScaleLayout::Tiled128x4, _) => Scaling::Block16,
        },
        has_bias: core.bias.is_some(),
        has_activation: core.activation != Activation::None,
        has_c: core.accumulate == Accumulate::Add,
        fp32_out: core.d_type == DType::F32,
        largest_bytes: largest.into_iter().max().unwrap_or(0) as u64,
    }
}

/// A [`Candidate`], or the words for why there is none.
pub(super) type CandidateOffer = std::result::Result<Candidate, String>;

impl Candidate {
    /// Asks the library for algorithms. Scratch memory is not allocated yet.
    pub(super) fn ask(
        handle: &Handle,
        desc: &GemmDesc,
        formulation: Formulation,
        finish: Finish,
        search: Search,
    ) -> Result<CandidateOffer> {
        let core = match core(desc, formulation, finish) {
            Ok(core) => core,
            Err(reason) => return Ok(Err(reason)),
        };
        let (version, problem) = (handle.lt().version(), problem(handle, desc, &core));
        let fused = problem.has_bias || problem.has_activation;
        let quirk = quirks::refuse(version, &problem).or(quirks::unfuse(version, &problem).filter(|_| fused));
        if let Some(quirk) = quirk {
            return Ok(Err(format!("cuBLASLt {version}: {} ({})", quirk.effect, quirk.source)));
        }
        let Setup { matmul, layouts } = setup(handle.placeholder(), desc, &core)?;
        let limit = search.workspace_limit.min(WORKSPACE_BYTES);
        // Where only split-k algorithms are offered and all are dropped, no workspace leaves those that do not split.
        let mut refusal = String::new();
        for workspace in [limit, 0] {
            let mut preference = Preference::new()?;
            preference.workspace_bytes(workspace)?;
            for operand in [Operand::A, Operand::B, Operand::C, Operand::D] {
                preference.alignment(operand, ALIGNMENT)?;
            }
            // Partial sums of a split k stay in FP32; the other schemes would round them to D's type.
            preference.reduction(Reduction::ComputeType)?;
            let offered = match lt::heuristic(handle.lt(), &matmul, &layouts, &preference, search.candidates.max(1))? {
                Heuristic::Offered(algos) => algos,
                Heuristic::Refused(status) => {
                    let words = format!("cuBLASLt {version} has no algorithm for it (status {status})");
                    return Ok(Err(if refusal.is_empty() { words } else { refusal }));
                }
            };
            let mut algos = Vec::with_capacity(offered.len());
            for algo in offered {
                let config = algo.config()?;
                match quirks::drops(version, &problem, config.id, config.split_k) {
                    None => algos.push(algo),
                    Some(quirk) => {
                        let effect = quirk.effect;
                        refusal = format!("cuBLASLt {version} offers only algorithms that are known to fail: {effect}");
                    }
                }
            }
            if !algos.is_empty() {
                let passed_over = Vec::new();
                return Ok(Ok(Self { core, matmul, layouts, algos, chosen: 0, scratch: None, passed_over }));
            }
        }
        Ok(Err(refusal))
    }

    /// A candidate with a recorded algorithm, if the library still takes it. Asks no heuristic.
    pub(super) fn recorded(
        handle: &Handle,
        desc: &GemmDesc,
        (formulation, finish, words): (Formulation, Finish, [u64; 8]),
        search: Search,
    ) -> Result<CandidateOffer> {
        let core = match core(desc, formulation, finish) {
            Ok(core) => core,
            Err(reason) => return Ok(Err(reason)),
        };
        let Setup { matmul, layouts } = setup(handle.placeholder(), desc, &core)?;
        let algo = match Algo::from_words(words).check(handle.lt(), &matmul, &layouts)? {
            Heuristic::Offered(algos) => algos.into_iter().next(),
            Heuristic::Refused(status) => return Ok(Err(format!("cuBLASLt refuses the algorithm (status {status})"))),
        };
        let Some(algo) = algo else { return Ok(Err("cuBLASLt gave the algorithm back as nothing".to_string())) };
        let (version, config) = (handle.lt().version(), algo.config()?);
        if let Some(quirk) = quirks::drops(version, &problem(handle, desc, &core), config.id, config.split_k) {
            return Ok(Err(format!("cuBLASLt {version}: {} ({})", quirk.effect, quirk.source)));
        }
        let limit = search.workspace_limit.min(WORKSPACE_BYTES);
        if algo.workspace_bytes() > limit {
            return Ok(Err(format!("it needs {} bytes of workspace and {limit} are allowed", algo.workspace_bytes())));
        }
        Ok(Ok(Self { core, matmul, layouts, algos: vec![algo], chosen: 0, scratch: None, passed_over: Vec::new() }))
    }

    /// Allocates the scratch matrix, once.
    pub(super) fn allocate(&mut self, handle: &Handle) -> Result<()> {
        let bytes = self.core.scratch_bytes();
        if bytes == 0 || self.scratch.is_some() {
            return Ok(());
        }
        let memory = handle.stream().alloc_zeros::<u8>(bytes);
        let memory = memory.map_err(|e| driver(&format!("allocating {bytes} bytes of scratch for a plan"), e))?;
        self.scratch = Some(Fixed::new(memory, handle.launch_stream()));
        Ok(())
    }

    /// Frees the scratch matrix, in stream order.
    pub(super) fn release(&mut self) {
        self.scratch = None;
    }

    /// The algorithm in use.
    pub(super) fn algo(&self) -> &Algo {
        &self.algos[self.chosen]
    }

    /// Place of the algorithm in use, and how many were offered.
    pub(super) fn place(&self) -> (usize, usize) {
        (self.chosen, self.algos.len())
    }

    /// Uses another of the offered algorithms; out of range keeps the one in use.
    pub(super) fn choose(&mut self, index: usize) {
        if index < self.algos.len() {
            self.chosen = index;
        }
    }

    /// Enqueues the call: GEMM, and what its finish adds. The arguments fit the problem (checked by the caller).
    ///
    /// Allocates nothing, asks no heuristic, waits for nothing.
    pub(super) fn enqueue(&mut self, handle: &Handle, desc: &GemmDesc, args: &mut GemmArgs<'_>) -> Result<()> {
        let stream = handle.launch_stream();
        let core = self.core;
        let GemmArgs { a, b, d, bias, residual, alpha, beta, out_encode, amax, .. } = args;
        let a: &ArgA<'_> = a;
        let (a_buffers, b_buffers) = (Buffers::of_a(a, &core)?, Buffers::of_b(b, &core)?);
        let order = stream.order();
        let (a_spans, b_spans) = (a_buffers.spans(order), b_buffers.spans(order));
        let bias = bias.as_ref().map(|bias| (bias.data().at(order), bias.dtype()));
        let encode = out_encode.as_ref().map(|encode: &DeviceBytes<'_>| encode.at(order));
        let amax = amax.as_mut().map(|amax: &mut DeviceBytesMut<'_>| amax.at(order));
        let d_stride = d.row_stride();
        let d = d.data_mut().at(order);

        let scratch = self.scratch.as_ref().map(Fixed::span);
        if scratch.is_none() && core.scratch_bytes() > 0 {
            return Err(missing_scratch(desc));
        }
        let scratch = core.scratch.parts().map(|(at, bytes)| scratch.as_ref().map(|whole| whole.slice(at, bytes)));
        let [sum, a_values, b_values, device_factors] = &scratch;
        let target = match (core.finish, sum) {
            (Finish::Fused, _) => &d,
            (_, Some(sum)) => sum,
            (_, None) => return Err(missing_scratch(desc)),
        };
        for (operand, span) in [("A", &a_spans.numbers), ("B", &b_spans.numbers), ("D", target)] {
            check_alignment(operand, span)?;
        }
        let fused = core.finish != Finish::EpilogueKernel;
        let beta = beta.unwrap_or(0.0);
        let lt_beta = if core.accumulate == Accumulate::Add { beta } else { 0.0 };
        let factors = match (core.factors, device_factors) {
            (FactorPlace::Host, _) => Factors::Host { alpha: *alpha, beta: lt_beta },
            (FactorPlace::Device, Some(place)) => {
                let (a, b) = (a_spans.scales.as_ref(), b_spans.scales.as_ref());
                handle.kernels().gemm_factors(stream, (*alpha, lt_beta), a, b, place)?;
                Factors::Device(place)
            }
            (FactorPlace::Device, None) => return Err(missing_scratch(desc)),
        };
        let quantized_a = match a {
            ArgA::Quantized(a) => Some(*a),
            ArgA::Plain(_) => None,
        };
        let a_numbers = numbers(handle, &core, core.values.map(|v| v.a), quantized_a, &a_spans, a_values.as_ref())?;
        let b_numbers = numbers(handle, &core, core.values.map(|v| v.b), Some(b), &b_spans, b_values.as_ref())?;
        let unit = handle.unit_scale();
        // As in `setup`: the library's A is our B.
        let pointers = Pointers {
            a_scale: lt_scale(&core, core.b_scales, &b_spans, &unit),
            b_scale: lt_scale(&core, core.a_scales, &a_spans, &unit),
            d_scale: encode.as_ref().filter(|_| fused),
            amax_d: amax.as_ref().filter(|_| fused),
            bias: bias.as_ref().map(|(span, _)| span).filter(|_| fused),
        };
        lt::matmul(MatmulCall {
            handle: handle.lt(),
            desc: &mut self.matmul,
            layouts: &self.layouts,
            algo: &self.algos[self.chosen],
            factors,
            a: b_numbers,
            b: a_numbers,
            // Never read (E4M3 is not accumulated into). D's address under C's wide layout is refused: status 7 (observed,
            // cuBLASLt 13.1).
            c: (core.d_type == DType::E4M3).then_some(&unit),
            d: target,
            pointers,
            workspace: &handle.workspace(),
            stream,
        })?;
        match core.finish {
            Finish::Fused => Ok(()),
            Finish::PaddedCopy => {
                let size = core.d_type.bytes();
                let (from, to) = (core.d_stride * size, d_stride * size);
                handle.kernels().copy_2d(stream, target, from, &d, to, desc.m, desc.n * size)
            }
            Finish::EpilogueKernel => {
                if let Some(amax) = &amax {
                    handle.kernels().zero(stream, amax, 4)?;
                }
                let residual = residual.as_ref().map(|r| (r.data().at(order), r.row_stride(), r.dtype()));
                // beta = 0 means that D's old value is not read, so that a NaN in it does not matter.
                let add = desc.accumulate == Accumulate::Add && beta != 0.0;
                handle.kernels().epilogue(
                    stream,
                    &EpilogueCall {
                        m: desc.m,
                        n: desc.n,
                        acc: target,
                        acc_stride: core.d_stride,
                        row_scale: scale_vector(core.rescale[0], &a_spans),
                        col_scale: scale_vector(core.rescale[1], &b_spans),
                        beta,
                        c: add.then_some((&d, d_stride)),
                        bias: bias.as_ref().map(|(span, dtype)| (span, *dtype)),
                        activation: desc.epilogue.activation,
                        residual: residual.as_ref().map(|(span, stride, dtype)| (span, *stride, *dtype)),
                        d: &d,
                        d_stride,
                        d_type: desc.out,
                        out_encode: encode.as_ref(),
                        amax: amax.as_ref(),
                    },
                )
            }
        }
    }
}

/// The buffers of one operand that a call reads.
struct Buffers<'a> {
    /// Codes, or plain numbers.
    numbers: DeviceBytes<'a>,
    block_scales: Option<DeviceBytes<'a>>,
    scales: Option<DeviceBytes<'a>>,
}

/// Their addresses.
struct Spans<'s> {
    numbers: Span<'s>,
    block_scales: Option<Span<'s>>,
    scales: Option<Span<'s>>,
}

impl<'a> Buffers<'a> {
    fn of_a(a: &'a ArgA<'_>, core: &Core) -> Result<Self> {
        match a {
            ArgA::Quantized(a) => Self::of(a, core, core.values.map(|v| v.a)),
            ArgA::Plain(a) => Ok(Self { numbers: a.data().reborrow(), block_scales: None, scales: None }),
        }
    }

    fn of_b(b: &'a QuantMatrix, core: &Core) -> Result<Self> {
        let mut buffers = Self::of(b, core, core.values.map(|v| v.b))?;
        if core.formulation == Formulation::RepeatedScales {
            buffers.scales = Some(b.repeated_scales().ok_or_else(not_prepared)?);
        }
        Ok(buffers)
    }

    fn of(q: &'a QuantMatrix, core: &Core, source: Option<ValueSource>) -> Result<Self> {
        let present = |bytes: DeviceBytes<'a>| Some(bytes).filter(|bytes| !bytes.is_empty());
        let scales = present(q.scales());
        match (source, core.values) {
            (Some(ValueSource::Given), Some(values)) => {
                let numbers = q.kept_values(values.dtype).ok_or_else(|| not_kept(values.dtype))?;
                Ok(Self { numbers, block_scales: None, scales })
            }
            _ => Ok(Self { numbers: q.codes(), block_scales: present(q.block_scales()), scales }),
        }
    }

    fn spans<'s>(&'s self, order: Order<'s>) -> Spans<'s> {
        Spans {
            numbers: self.numbers.at(order),
            block_scales: self.block_scales.as_ref().map(|bytes| bytes.at(order)),
            scales: self.scales.as_ref().map(|bytes| bytes.at(order)),
        }
    }
}

/// What the GEMM reads of an operand: its own buffer, or the scratch that it is dequantized into here.
fn numbers<'s>(
    handle: &Handle,
    core: &Core,
    source: Option<ValueSource>,
    matrix: Option<&QuantMatrix>,
    spans: &'s Spans<'_>,
    scratch: Option<&'s Span<'_>>,
) -> Result<&'s Span<'s>> {
    match (source, core.values, matrix, &spans.block_scales, scratch) {
        (Some(ValueSource::Scratch), Some(values), Some(matrix), Some(block_scales), Some(scratch)) => {
            let stream = handle.launch_stream();
            matrix.dequantize_codes(handle, stream, &spans.numbers, block_scales, scratch, values.dtype)?;
            Ok(scratch)
        }
        _ => Ok(&spans.numbers),
    }
}

/// The scales that the library applies; `None` for plain numbers.
fn lt_scale<'s>(core: &Core, layout: ScaleLayout, spans: &'s Spans<'s>, unit: &'s Span<'s>) -> Option<&'s Span<'s>> {
    match layout {
        ScaleLayout::Absent => None,
        ScaleLayout::Tiled128x4 => spans.block_scales.as_ref(),
        _ if core.formulation == Formulation::Rescaled => Some(unit),
        _ => spans.scales.as_ref(),
    }
}

/// The scales that the epilogue kernel applies.
fn scale_vector<'s>(scale: ScaleUse, spans: &'s Spans<'s>) -> Option<ScaleVector<'s>> {
    match scale {
        ScaleUse::Nothing => None,
        ScaleUse::One => spans.scales.as_ref().map(ScaleVector::One),
        ScaleUse::Each => spans.scales.as_ref().map(ScaleVector::Each),
    }
}

/// Refuses, in the caller's words, an address that cuBLASLt's kernels cannot load from.
fn check_alignment(operand: &str, span: &Span<'_>) -> Result<()> {
    if span.address.is_multiple_of(u64::from(ALIGNMENT)) {
        return Ok(());
    }
    Err(Error::Alignment {
        operand: operand.to_string(),
        address: span.address,
        required: u64::from(ALIGNMENT),
        remedy: "begin at an allocation or at a multiple of 16 bytes in it, or copy".to_string(),
    })
}

fn not_prepared() -> Error {
    Error::unsupported(
        "executing with the repeated-scales formulation",
        "B has no repeated scales yet, and execute allocates nothing",
        "call GemmPlan::prepare with this B once (again after QuantMatrix::scales_mut), before any graph capture",
    )
}

fn not_kept(dtype: DType) -> Error {
    Error::unsupported(
        format!("executing a plan for a B that keeps {dtype} values"),
        "B keeps none, and execute allocates nothing",
        "call QuantMatrix::keep_dequantized, or plan without kept values",
    )
}

fn missing_scratch(desc: &GemmDesc) -> Error {
    Error::unsupported(
        format!("executing the plan for {desc}"),
        "its scratch memory was released when autotune failed",
        "plan again",
    )
}

#[cfg(test)]
mod tests;
