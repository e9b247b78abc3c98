//! [`Candidate`]: one formulation and finish of one problem, ready to be enqueued: descriptors, layouts, algorithms and
//! scratch made beforehand, so that [`Candidate::enqueue`] only checks, fills in addresses and launches.

use crate::epilogue::Activation;
use crate::error::{Error, Result};
use crate::format::layout::ScaleLayout;
use crate::format::{CodeFormat, DType, Scheme};

use super::formulation::{Core, Finish, Formulation, core};
use super::gemm_desc::{Accumulate, Accumulation, GemmArgs, GemmDesc, OutAmax};
use super::handle::{Fixed, Handle, WORKSPACE_BYTES};
use super::kernels::EpilogueCall;
use super::lt::{
    self, Algo, Compute, DataType, EpilogueKind, FastAccumulation, Heuristic, Layouts, MatmulCall, MatmulDesc,
    MatrixLayout, Operand, PointerAttr, Pointers, Preference, Reduction, ScaleMode, Transpose, attr,
};
use super::memory::{DeviceBytes, DeviceBytesMut, Span, driver};
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

fn data_type(scheme: Scheme) -> DataType {
    match scheme.spec().format {
        CodeFormat::E4M3 => DataType::E4m3,
        CodeFormat::E5M2 | CodeFormat::E2M1 => DataType::E5m2,
    }
}

fn scale_mode(layout: ScaleLayout) -> ScaleMode {
    match layout {
        ScaleLayout::Scalar => ScaleMode::Scalar,
        ScaleLayout::Outer => ScaleMode::OuterVector,
        ScaleLayout::Vec128 => ScaleMode::Vector128,
        ScaleLayout::Blk128 => ScaleMode::Block128,
        ScaleLayout::Tiled128x4 | ScaleLayout::Absent => ScaleMode::Scalar,
    }
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
/// (k x n, leading dimension k), our A second, as it is (k x rows), and D is n x rows.
fn setup(handle: &Handle, desc: &GemmDesc, core: &Core) -> Result<Setup> {
    let mut matmul = MatmulDesc::new(Compute::F32, DataType::F32)?;
    matmul.set(attr::TransA, Transpose::Yes)?;
    matmul.set(attr::TransB, Transpose::No)?;
    matmul.set(attr::AScaleMode, scale_mode(core.b_scales))?;
    matmul.set(attr::BScaleMode, scale_mode(core.a_scales))?;
    let fast = match core.accumulation {
        Accumulation::Precise => FastAccumulation::Off,
        Accumulation::Fast => FastAccumulation::On,
    };
    matmul.set(attr::FastAccum, fast)?;
    if let Some(kind) = epilogue_kind(core) {
        matmul.set(attr::Epilogue, kind)?;
    }
    let mut pointers = vec![PointerAttr::AScale, PointerAttr::BScale];
    if let Some(bias) = core.bias {
        matmul.set(attr::BiasDataType, DataType::from(bias))?;
        pointers.push(PointerAttr::Bias);
    }
    if core.d_type == DType::E4m3 {
        pointers.push(PointerAttr::DScale);
    }
    if core.amax == OutAmax::Store {
        pointers.push(PointerAttr::AmaxD);
    }
    matmul.expect_pointers(&pointers, handle.placeholder())?;
    let (n, k, rows) = (desc.n, desc.k, core.rows);
    let d = || MatrixLayout::new(DataType::from(core.d_type), n, rows, core.d_stride);
    // An FP8 D wants a wide C even where none is read (documented).
    let c = if core.d_type == DType::E4m3 { MatrixLayout::new(DataType::Bf16, n, rows, core.d_stride) } else { d() };
    let layouts = Layouts {
        a: MatrixLayout::new(data_type(desc.b), k, n, k)?,
        b: MatrixLayout::new(data_type(desc.a), k, rows, k)?,
        c: c?,
        d: d()?,
    };
    Ok(Setup { matmul, layouts })
}

/// The problem as the ledger of known bugs sees it.
fn problem(handle: &Handle, desc: &GemmDesc, core: &Core) -> Problem {
    let largest = [desc.n * desc.k, core.rows * desc.k, core.rows * core.d_stride * core.d_type.bytes()];
    Problem {
        compute_capability: handle.device().compute_capability,
        m: core.rows,
        n: desc.n,
        k: desc.k,
        scaling: match core.a_scales {
            ScaleLayout::Scalar => Scaling::Tensor,
            ScaleLayout::Outer => Scaling::Row,
            ScaleLayout::Vec128 | ScaleLayout::Blk128 | ScaleLayout::Tiled128x4 | ScaleLayout::Absent => Scaling::Block128,
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
        let Setup { matmul, layouts } = setup(handle, desc, &core)?;
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
        let Setup { matmul, layouts } = setup(handle, desc, &core)?;
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
        let (a_codes, b_codes) = (a.codes(), b.codes());
        let a_scales = a.scales();
        let b_scales = match core.formulation {
            Formulation::RepeatedScales => b.repeated_scales().ok_or_else(not_prepared)?,
            Formulation::Native | Formulation::Rescaled => b.scales(),
        };
        let order = stream.order();
        let (a_codes, b_codes) = (a_codes.at(order), b_codes.at(order));
        let (a_scales, b_scales) = (a_scales.at(order), b_scales.at(order));
        let bias = bias.as_ref().map(|bias| (bias.data().at(order), bias.dtype()));
        let encode = out_encode.as_ref().map(|encode: &DeviceBytes<'_>| encode.at(order));
        let amax = amax.as_mut().map(|amax: &mut DeviceBytesMut<'_>| amax.at(order));
        let d_stride = d.row_stride();
        let d = d.data_mut().at(order);

        let scratch = self.scratch.as_ref().map(Fixed::span);
        let target = match (core.finish, &scratch) {
            (Finish::Fused, _) => &d,
            (_, Some(scratch)) => scratch,
            (_, None) => return Err(missing_scratch(desc)),
        };
        for (operand, span) in [("codes of A", &a_codes), ("codes of B", &b_codes), ("D", target)] {
            check_alignment(operand, span)?;
        }
        let unit = handle.unit_scale();
        let (scale_of_a, scale_of_b) = if core.unit_scales() { (&unit, &unit) } else { (&a_scales, &b_scales) };
        let fused = core.finish != Finish::EpilogueKernel;
        // As in `setup`: the library's A is our B.
        let pointers = Pointers {
            a_scale: Some(scale_of_b),
            b_scale: Some(scale_of_a),
            d_scale: encode.as_ref().filter(|_| fused),
            amax_d: amax.as_ref().filter(|_| fused),
            bias: bias.as_ref().map(|(span, _)| span).filter(|_| fused),
        };
        let beta = beta.unwrap_or(0.0);
        lt::matmul(MatmulCall {
            handle: handle.lt(),
            desc: &mut self.matmul,
            layouts: &self.layouts,
            algo: &self.algos[self.chosen],
            alpha: *alpha,
            beta: if core.accumulate == Accumulate::Add { beta } else { 0.0 },
            a: &b_codes,
            b: &a_codes,
            // Never read (E4M3 is not accumulated into). D's address under C's wide layout is refused: status 7 (observed,
            // cuBLASLt 13.1).
            c: (core.d_type == DType::E4m3).then_some(&unit),
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
                        row_scale: core.unit_scales().then_some(&a_scales),
                        col_scale: core.unit_scales().then_some(&b_scales),
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

fn missing_scratch(desc: &GemmDesc) -> Error {
    Error::unsupported(
        format!("executing the plan for {desc}"),
        "its scratch memory was released when autotune failed",
        "plan again",
    )
}
