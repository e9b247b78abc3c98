//! [`LtProduct`]: the product step by cuBLASLt. Descriptors, layouts and algorithms are made beforehand, so that
//! [`LtProduct::enqueue`] only fills in addresses and launches.

use std::fmt::Write as _;

use crate::epilogue::Activation;
use crate::error::Result;
use crate::format::layout::ScaleLayout;
use crate::format::{BlockScaleFormat, CodeFormat, DType, Scheme};

use crate::gpu::device::memory::Span;
use crate::gpu::gemm::call::{ALIGNMENT, Call, Spans};
use crate::gpu::gemm::desc::{Accumulate, Accumulation, GemmDesc, OutAmax};
use crate::gpu::gemm::pair_kind::{PairKind, pair_kind};
use crate::gpu::gemm::record::LtAlgorithm;
use crate::gpu::gemm::steps::{Offered, Search};
use crate::gpu::gemm::sum::{FactorPlace, ScaleSource, Sum, Target, ValueSource};
use crate::gpu::handle::{Handle, WORKSPACE_BYTES};
use crate::gpu::lt::quirks::{self, Problem, Scaling, Version};
use crate::gpu::lt::{
    self, Algo, Compute, DataType, EpilogueKind, Factors, FastAccumulation, Heuristic, Layouts, MatmulCall, MatmulDesc,
    MatrixLayout, Operand, PointerAttr, PointerMode, Pointers, Preference, Reduction, ScaleMode, Transpose, attr,
};

/// The most algorithms that the heuristic may be asked for.
const MOST_ALGORITHMS: usize = 256;

/// A product by cuBLASLt, ready apart from addresses.
pub(crate) struct LtProduct {
    sum: Sum,
    matmul: MatmulDesc,
    layouts: Layouts,
    algos: Vec<Algo>,
    chosen: usize,
}

/// The cuBLASLt side of a [`Sum`], before an algorithm is known.
struct Setup {
    matmul: MatmulDesc,
    layouts: Layouts,
}

/// The type of an operand's codes.
pub(crate) fn code_type(scheme: Scheme) -> DataType {
    match scheme.spec().format {
        CodeFormat::E4M3 => DataType::E4m3,
        CodeFormat::E5M2 => DataType::E5m2,
        CodeFormat::E2M1 => DataType::E2m1,
    }
}

/// The types of A and B in the call.
fn operand_types(desc: &GemmDesc, sum: &Sum) -> [DataType; 2] {
    match sum.values {
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
fn epilogue_kind(sum: &Sum) -> Option<EpilogueKind> {
    Some(match (sum.bias.is_some(), sum.activation) {
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
fn setup(placeholder: u64, desc: &GemmDesc, sum: &Sum) -> Result<Setup> {
    let mut matmul = MatmulDesc::new(Compute::F32, DataType::F32)?;
    matmul.set(attr::TransA, Transpose::Yes)?;
    matmul.set(attr::TransB, Transpose::No)?;
    let mut pointers = Vec::new();
    // Plain numbers have no scales: a scale pointer would make the library refuse them.
    if let (Some(a), Some(b)) = (scale_mode(sum.a_scales, desc), scale_mode(sum.b_scales, desc)) {
        matmul.set(attr::AScaleMode, b)?;
        matmul.set(attr::BScaleMode, a)?;
        pointers.extend([PointerAttr::AScale, PointerAttr::BScale]);
        let fast = match sum.accumulation {
            Accumulation::Precise => FastAccumulation::Off,
            Accumulation::Fast => FastAccumulation::On,
        };
        matmul.set(attr::FastAccum, fast)?;
    }
    if sum.factors == FactorPlace::Device {
        matmul.set(attr::AlphaBetaPlace, PointerMode::Device)?;
    }
    if let Some(kind) = epilogue_kind(sum) {
        matmul.set(attr::Epilogue, kind)?;
    }
    if let Some(bias) = sum.bias {
        matmul.set(attr::BiasDataType, DataType::from(bias))?;
        pointers.push(PointerAttr::Bias);
    }
    if sum.d_type == DType::E4M3 {
        pointers.push(PointerAttr::DScale);
    }
    if sum.amax == OutAmax::Store {
        pointers.push(PointerAttr::AmaxD);
    }
    matmul.expect_pointers(&pointers, placeholder)?;
    let (n, k, rows) = (desc.n, desc.k, sum.rows);
    let [a_type, b_type] = operand_types(desc, sum);
    let d = || MatrixLayout::new(DataType::from(sum.d_type), n, rows, sum.d_stride);
    // An FP8 D wants a wide C even where none is read (documented).
    let c = if sum.d_type == DType::E4M3 { MatrixLayout::new(DataType::Bf16, n, rows, sum.d_stride) } else { d() };
    let layouts = Layouts {
        a: MatrixLayout::new(b_type, k, n, k)?,
        b: MatrixLayout::new(a_type, k, rows, desc.multiplied_a_stride())?,
        c: c?,
        d: d()?,
    };
    Ok(Setup { matmul, layouts })
}

/// The problem as the ledger of known bugs sees it.
fn problem(handle: &Handle, desc: &GemmDesc, sum: &Sum) -> Problem {
    let [a_type, b_type] = operand_types(desc, sum);
    let largest = [
        b_type.bytes_of(desc.n * desc.k).unwrap_or(usize::MAX),
        a_type.bytes_of(sum.rows * desc.multiplied_a_stride()).unwrap_or(usize::MAX),
        sum.rows * sum.d_stride * sum.d_type.bytes(),
    ];
    Problem {
        compute_capability: handle.device().compute_capability,
        m: sum.rows,
        n: desc.n,
        k: desc.k,
        scaling: match (sum.a_scales, pair_kind(desc)) {
            (ScaleLayout::Absent, _) => Scaling::Unscaled,
            (ScaleLayout::Scalar, _) => Scaling::Tensor,
            (ScaleLayout::Outer, _) => Scaling::Row,
            (ScaleLayout::Vec128 | ScaleLayout::Blk128, _) => Scaling::Block128,
            (ScaleLayout::Tiled128x4, PairKind::Block(BlockScaleFormat::Ue8m0)) => Scaling::Block32,
            (ScaleLayout::Tiled128x4, _) => Scaling::Block16,
        },
        has_bias: sum.bias.is_some(),
        has_activation: sum.activation != Activation::None,
        has_c: sum.accumulate == Accumulate::Add,
        fp32_out: sum.d_type == DType::F32,
        largest_bytes: largest.into_iter().max().unwrap_or(0) as u64,
    }
}

/// Why the ledger of known bugs forbids asking for this problem, if it does.
fn forbidden(version: Version, problem: &Problem) -> Option<String> {
    let fused = problem.has_bias || problem.has_activation;
    let quirk = quirks::refuse(version, problem).or(quirks::unfuse(version, problem).filter(|_| fused))?;
    Some(format!("cuBLASLt {version}: {} ({})", quirk.effect, quirk.source))
}

/// Place of a recorded algorithm among those that the heuristic offers now.
///
/// A record's bytes never reach the library, which takes any: what is handed to it is the heuristic's own offer.
fn find(algos: &[Algo], recorded: &LtAlgorithm) -> Option<usize> {
    algos.iter().position(|algo| words(algo) == recorded.words)
}

/// The 64 opaque bytes of an algorithm as hexadecimal digits.
fn words(algo: &Algo) -> String {
    algo.to_words().iter().fold(String::with_capacity(128), |mut text, word| {
        // Writing to a String cannot fail.
        let _ = write!(text, "{word:016x}");
        text
    })
}

impl LtProduct {
    /// Asks the library for algorithms; gives the words for why there is none.
    pub(crate) fn ask(handle: &Handle, desc: &GemmDesc, sum: &Sum, search: Search) -> Result<Offered<Self>> {
        let lt = handle.lt()?;
        let (version, problem) = (lt.version(), problem(handle, desc, sum));
        if let Some(reason) = forbidden(version, &problem) {
            return Ok(Err(reason));
        }
        let Setup { matmul, layouts } = setup(handle.placeholder(), desc, sum)?;
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
            let offered = match lt::heuristic(lt, &matmul, &layouts, &preference, search.candidates.max(1))? {
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
                return Ok(Ok(Self { sum: *sum, matmul, layouts, algos, chosen: 0 }));
            }
        }
        Ok(Err(refusal))
    }

    /// With a recorded algorithm, if the heuristic offers it here again; gives the words for why not.
    pub(crate) fn recorded(
        handle: &Handle,
        desc: &GemmDesc,
        sum: &Sum,
        recorded: &LtAlgorithm,
        search: Search,
    ) -> Result<Offered<Self>> {
        // The list may have been longer where the record was made.
        for candidates in [search.candidates, MOST_ALGORITHMS] {
            let mut product = match Self::ask(handle, desc, sum, Search { candidates, ..search })? {
                Ok(product) => product,
                Err(reason) => return Ok(Err(reason)),
            };
            if let Some(place) = find(&product.algos, recorded) {
                product.algos = vec![product.algos.swap_remove(place)];
                return Ok(Ok(product));
            }
        }
        let (version, limit) = (handle.lt()?.version(), search.workspace_limit.min(WORKSPACE_BYTES));
        Ok(Err(format!(
            "cuBLASLt {version} does not offer it for this problem with {limit} bytes of workspace, or it is known to fail"
        )))
    }

    /// The algorithm in use.
    fn algo(&self) -> &Algo {
        &self.algos[self.chosen]
    }

    /// The algorithm in use, as a record names it.
    pub(crate) fn algorithm(&self) -> LtAlgorithm {
        let config = self.algo().config();
        let config = config.map_or_else(|error| format!("not readable ({error})"), |config| config.to_string());
        LtAlgorithm { words: words(self.algo()), config }
    }

    /// How often the thread blocks of the algorithm in use fill the GPU.
    pub(crate) fn waves(&self) -> f32 {
        self.algo().waves()
    }

    /// Bytes of the handle's workspace that the algorithm in use takes.
    pub(crate) fn workspace_bytes(&self) -> usize {
        self.algo().workspace_bytes()
    }

    /// Place of the algorithm in use, and how many were offered.
    pub(crate) fn place(&self) -> (usize, usize) {
        (self.chosen, self.algos.len())
    }

    /// Uses another of the offered algorithms; out of range keeps the one in use.
    pub(crate) fn choose(&mut self, index: usize) {
        if index < self.algos.len() {
            self.chosen = index;
        }
    }

    /// Enqueues the product. Allocates nothing, asks no heuristic, waits for nothing.
    pub(crate) fn enqueue(&mut self, call: &Call<'_>) -> Result<()> {
        let (sum, handle) = (self.sum, call.handle);
        let factors = match sum.factors {
            FactorPlace::Host => {
                let (alpha, beta) = call.factors(sum.accumulate);
                Factors::Host { alpha, beta }
            }
            FactorPlace::Device => Factors::Device(&call.scratch.factors),
        };
        let numbers = |source: Option<ValueSource>, spans, scratch| match source {
            Some(ValueSource::Scratch) => scratch,
            Some(ValueSource::Given | ValueSource::Codes) | None => spans,
        };
        let a = numbers(sum.values.map(|v| v.a), &call.a.numbers, &call.scratch.a);
        let b = numbers(sum.values.map(|v| v.b), &call.b.numbers, &call.scratch.b);
        let target = match sum.target {
            Target::D => &call.d,
            Target::Scratch => &call.scratch.sum,
        };
        let unit = handle.unit_scale();
        // As in `setup`: the library's A is our B.
        let pointers = Pointers {
            a_scale: scale(&sum, sum.b_scales, &call.b, &unit),
            b_scale: scale(&sum, sum.a_scales, &call.a, &unit),
            d_scale: call.out_encode.as_ref().filter(|_| sum.d_type == DType::E4M3),
            amax_d: call.amax.as_ref().filter(|_| sum.amax == OutAmax::Store),
            bias: call.bias.as_ref().map(|(span, _)| span).filter(|_| sum.bias.is_some()),
        };
        lt::matmul(MatmulCall {
            handle: handle.lt()?,
            desc: &mut self.matmul,
            layouts: &self.layouts,
            algo: &self.algos[self.chosen],
            factors,
            a: b,
            b: a,
            // Never read (E4M3 is not accumulated into). D's address under C's wide layout is refused: status 7 (observed,
            // cuBLASLt 13.1).
            c: (sum.d_type == DType::E4M3).then_some(&unit),
            d: target,
            pointers,
            workspace: &call.workspace,
            stream: call.queue,
        })
    }
}

/// The scales that the library applies to an operand; `None` for plain numbers.
fn scale<'s>(sum: &Sum, layout: ScaleLayout, spans: &'s Spans<'s>, unit: &'s Span<'s>) -> Option<&'s Span<'s>> {
    match (layout, sum.scales) {
        (ScaleLayout::Absent, _) => None,
        (_, ScaleSource::Ones) => Some(unit),
        (ScaleLayout::Tiled128x4, ScaleSource::Matrices) => spans.block_scales.as_ref(),
        (_, ScaleSource::Matrices) => spans.scales.as_ref(),
    }
}

#[cfg(test)]
mod tests;
