//! What a plan is made of: [`Step`]s, walked in order by each call, and [`Candidate`], the steps of one way to compute a problem.

use crate::error::{Error, Result};
use crate::format::{CodeOrder, DType, Scheme};

use crate::gpu::cast::quantize::factor;
use crate::gpu::gemm::args::GemmArgs;
use crate::gpu::gemm::call::{self, Call};
use crate::gpu::gemm::desc::{Accumulate, GemmDesc};
use crate::gpu::gemm::finish;
use crate::gpu::gemm::formulation::{Finish, Formulation};
use crate::gpu::gemm::lt_step::LtProduct;
use crate::gpu::gemm::our_pairs::sm90_pair;
use crate::gpu::gemm::outline::{Outline, ScaleUse, outline};
use crate::gpu::gemm::record::Algorithm;
use crate::gpu::gemm::sm90_rules::Sm90Gpu;
use crate::gpu::gemm::sm90_step::Sm90Product;
use crate::gpu::gemm::small_m_step::{SmallMGpu, SmallMProduct};
use crate::gpu::gemm::sum::{FactorPlace, ValueSource};
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{BlockCodes, Input, KernelFamily, Output};

/// How many algorithms to ask for, and how much workspace they may use.
#[derive(Clone, Copy)]
pub(crate) struct Search {
    pub(crate) candidates: usize,
    pub(crate) workspace_limit: usize,
    /// Of the calls, where it is known; plans do not know it, and take it for 1. What has no kernel that multiplies by it is not offered.
    pub(crate) alpha: f32,
}

/// A or B.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    A,
    B,
}

/// One thing that a call enqueues.
pub(crate) enum Step {
    /// Writes codes and scales of an A that is given plain into scratch.
    QuantizeA,
    /// Writes an operand's codes times block scales as plain numbers of this type into scratch.
    Dequantize(Side, Scheme, DType),
    /// Writes alpha times the second-level scales of whole matrices, and beta if the product adds to D, into scratch.
    Factors(Accumulate),
    /// Sums over k into D or into scratch.
    Product(Product),
    /// Copies the m rows of a padded result from scratch to D.
    Copy,
    /// Scales, bias, activation, residual and the cast, from FP32 scratch to D, by our kernel.
    Epilogue([ScaleUse; 2]),
}

/// Who computes a product.
pub(crate) enum Product {
    /// cuBLASLt.
    Lt(Box<LtProduct>),
    /// Our kernels for sm_90.
    Sm90(Box<Sm90Product>),
    /// Our kernels for few rows.
    SmallM(Box<SmallMProduct>),
}

/// An answer, or the words for why there is none.
pub(crate) type Offered<T> = std::result::Result<T, String>;

/// For a record of an algorithm that this way does not have.
pub(crate) fn none_such(way: Formulation, desc: &GemmDesc) -> String {
    format!("{way} has no such algorithm for {} x {} and m = {}", desc.a, desc.b, desc.m)
}

impl Product {
    /// Asks for algorithms of the product that this outline needs.
    fn ask(handle: &Handle, desc: &GemmDesc, outline: &Outline, search: Search) -> Result<Offered<Self>> {
        let (sum, gpu) = (&outline.sum, SmallMGpu::of(handle));
        match outline.formulation {
            Formulation::Sm90 => Ok(sm90_pair(desc)
                .map(|pair| Self::Sm90(Box::new(Sm90Product::ask(desc, sum, pair, Sm90Gpu::of(handle), search))))),
            Formulation::SmallM => Ok(Ok(Self::SmallM(Box::new(SmallMProduct::ask(desc, sum, gpu, search))))),
            _ => Ok(LtProduct::ask(handle, desc, sum, search)?.map(|lt| Self::Lt(Box::new(lt)))),
        }
    }

    /// With the algorithm of a record, if it is still to be had.
    fn recorded(
        handle: &Handle,
        desc: &GemmDesc,
        outline: &Outline,
        algorithm: &Algorithm,
        search: Search,
    ) -> Result<Offered<Self>> {
        let (sum, gpu) = (&outline.sum, SmallMGpu::of(handle));
        match (algorithm, outline.formulation) {
            (Algorithm::Sm90(config), Formulation::Sm90) => match sm90_pair(desc) {
                Ok(pair) if Sm90Product::serves(desc, sum, pair, *config) => {
                    Ok(Ok(Self::Sm90(Box::new(Sm90Product::recorded(desc, sum, pair, Sm90Gpu::of(handle), *config)))))
                }
                _ => Ok(Err(none_such(Formulation::Sm90, desc))),
            },
            (Algorithm::SmallM(config), Formulation::SmallM) => Ok(SmallMProduct::serves(desc, gpu, *config)
                .map(|()| Self::SmallM(Box::new(SmallMProduct::recorded(desc, sum, gpu, *config))))),
            (Algorithm::Sm90(_) | Algorithm::SmallM(_), other)
            | (Algorithm::CublasLt(_), other @ (Formulation::Sm90 | Formulation::SmallM)) => {
                Ok(Err(none_such(other, desc)))
            }
            (Algorithm::CublasLt(recorded), _) => {
                let product = LtProduct::recorded(handle, desc, sum, recorded, search)?;
                Ok(product.map(|lt| Self::Lt(Box::new(lt))))
            }
        }
    }

    /// The kernels that a call launches, beside those that every plan loads.
    pub(crate) fn kernels(&self) -> Option<KernelFamily> {
        match self {
            Self::Lt(_) => None,
            Self::Sm90(sm90) => Some(sm90.kernels()),
            Self::SmallM(small_m) => Some(small_m.kernels()),
        }
    }

    /// The algorithm in use.
    pub(crate) fn algorithm(&self) -> Algorithm {
        match self {
            Self::Lt(lt) => Algorithm::CublasLt(lt.algorithm()),
            Self::Sm90(sm90) => Algorithm::Sm90(sm90.config()),
            Self::SmallM(small_m) => Algorithm::SmallM(small_m.config()),
        }
    }

    /// The algorithm in use in words, and what else is known of it.
    pub(crate) fn describe(&self) -> String {
        let (algorithm, (place, offered), waves) = (self.algorithm(), self.place(), self.waves());
        let passes = match self {
            Self::SmallM(small_m) => small_m.words(),
            _ => String::new(),
        };
        format!("{algorithm}{passes}, {waves:.2} waves (number {} of {offered} offered)", place + 1)
    }

    /// How often its thread blocks fill the GPU.
    pub(crate) fn waves(&self) -> f32 {
        match self {
            Self::Lt(lt) => lt.waves(),
            Self::Sm90(sm90) => sm90.waves(),
            Self::SmallM(small_m) => small_m.waves(),
        }
    }

    /// What runs in its place where a call's alpha, which a plan does not know, is not 1; `None`: itself.
    pub(crate) fn with_other_alpha(&self) -> Option<String> {
        match self {
            Self::Lt(_) | Self::SmallM(_) => None,
            Self::Sm90(sm90) => sm90.with_other_alpha(),
        }
    }

    /// Bytes of the handle's workspace that the algorithm in use takes.
    pub(crate) fn workspace_bytes(&self) -> usize {
        match self {
            Self::Lt(lt) => lt.workspace_bytes(),
            Self::Sm90(_) | Self::SmallM(_) => 0,
        }
    }

    /// Place of the algorithm in use, and how many were offered.
    pub(crate) fn place(&self) -> (usize, usize) {
        match self {
            Self::Lt(lt) => lt.place(),
            Self::Sm90(sm90) => sm90.place(),
            Self::SmallM(small_m) => small_m.place(),
        }
    }

    /// Uses another of the offered algorithms; out of range keeps the one in use.
    pub(crate) fn choose(&mut self, index: usize) {
        match self {
            Self::Lt(lt) => lt.choose(index),
            Self::Sm90(sm90) => sm90.choose(index),
            Self::SmallM(small_m) => small_m.choose(index),
        }
    }

    fn enqueue(&mut self, call: &Call<'_>) -> Result<()> {
        match self {
            Self::Lt(lt) => lt.enqueue(call),
            Self::Sm90(sm90) => sm90.enqueue(call),
            Self::SmallM(small_m) => small_m.enqueue(call),
        }
    }
}

impl Step {
    fn enqueue(&mut self, call: &Call<'_>) -> Result<()> {
        match self {
            Self::QuantizeA => quantize_a(call),
            Self::Dequantize(side, scheme, dtype) => dequantize(call, *side, *scheme, *dtype),
            Self::Factors(accumulate) => {
                let (a, b, factors) = (call.a.scales.as_ref(), call.b.scales.as_ref(), call.factors(*accumulate));
                call.handle.kernels().gemm_factors(call.queue, factors, a, b, &call.scratch.factors)
            }
            Self::Product(product) => product.enqueue(call),
            Self::Copy => finish::copy(call),
            Self::Epilogue(rescale) => finish::epilogue(call, *rescale),
        }
    }
}

/// Writes codes and scales of A, the bytes of the quantizer.
fn quantize_a(call: &Call<'_>) -> Result<()> {
    let missing = |what: &str| {
        Error::unsupported(
            format!("quantizing an A without {what}"),
            "the plan asks for it",
            "report it: it was planned so",
        )
    };
    let source = call.a_source.as_ref().ok_or_else(|| missing("a source"))?;
    let scales = call.a.scales.as_ref().ok_or_else(|| missing("scales"))?;
    let GemmDesc { m: rows, k: cols, .. } = *call.desc;
    let x = Input { x: &source.x, dtype: source.dtype, rows, cols, row_stride: source.row_stride };
    let out = Output { codes: &call.a.numbers, scales, block_scales: &call.a.numbers.slice(0, 0) };
    match &source.scale {
        None => call.handle.enqueue_fp8(&x, source.recipe, &out),
        Some(scale) => {
            let factor = factor(scale, scale.number())?;
            call.handle.kernels().quantize_tensor(call.queue, &x, source.recipe.format, factor, &out, None)
        }
    }
}

/// Writes `values[i, j] = code[i, j] * block_scale[i, block]`, packed, into the operand's scratch.
fn dequantize(call: &Call<'_>, side: Side, scheme: Scheme, dtype: DType) -> Result<()> {
    let (rows, order, spans, values) = match side {
        Side::A => (call.desc.m, CodeOrder::Published, &call.a, &call.scratch.a),
        Side::B => (call.desc.n, call.desc.b_order, &call.b, &call.scratch.b),
    };
    let Some(block_scales) = &spans.block_scales else {
        return Err(Error::unsupported(
            format!("dequantizing {side:?} of scheme {scheme}"),
            "it came without block scales",
            "this is a bug of scaled-gemm: please report it",
        ));
    };
    let cols = call.desc.k;
    let codes = BlockCodes { scheme, rows, cols, order, codes: &spans.numbers, block_scales, scales: None };
    call.handle.kernels().dequantize_blocks(call.queue, &codes, values, cols, dtype)
}

fn enqueue(steps: &mut [Step], call: &Call<'_>) -> Result<()> {
    steps.iter_mut().try_for_each(|step| step.enqueue(call))
}

/// One formulation and finish of one problem, ready apart from addresses.
pub(crate) struct Candidate {
    outline: Outline,
    steps: Vec<Step>,
    /// Why the finishes with less traffic were not taken.
    pub(crate) passed_over: Vec<String>,
}

impl Candidate {
    /// Asks for algorithms. Reserves no scratch memory.
    pub(crate) fn ask(
        handle: &Handle,
        desc: &GemmDesc,
        formulation: Formulation,
        finish: Finish,
        search: Search,
    ) -> Result<Offered<Self>> {
        match outline(desc, formulation, finish) {
            Ok(outline) => {
                let product = Product::ask(handle, desc, &outline, search)?;
                Ok(product.map(|product| Self::new(desc, outline, product)))
            }
            Err(reason) => Ok(Err(reason)),
        }
    }

    /// With the algorithm of a record, if it is still to be had.
    pub(crate) fn recorded(
        handle: &Handle,
        desc: &GemmDesc,
        (formulation, finish, algorithm): (Formulation, Finish, &Algorithm),
        search: Search,
    ) -> Result<Offered<Self>> {
        match outline(desc, formulation, finish) {
            Ok(outline) => {
                let product = Product::recorded(handle, desc, &outline, algorithm, search)?;
                Ok(product.map(|product| Self::new(desc, outline, product)))
            }
            Err(reason) => Ok(Err(reason)),
        }
    }

    fn new(desc: &GemmDesc, mut outline: Outline, product: Product) -> Self {
        if let Product::SmallM(small_m) = &product {
            outline.scratch.few_rows = small_m.scratch_bytes();
        }
        let mut steps = Vec::new();
        if desc.quantize_a.is_some() {
            steps.push(Step::QuantizeA);
        }
        if outline.sum.factors == FactorPlace::Device {
            steps.push(Step::Factors(outline.sum.accumulate));
        }
        if let Some(values) = outline.sum.values {
            let sides = [(Side::A, values.a, desc.a.scheme()), (Side::B, values.b, Some(desc.b))];
            for (side, source, scheme) in sides {
                if let (ValueSource::Scratch, Some(scheme)) = (source, scheme) {
                    steps.push(Step::Dequantize(side, scheme, values.dtype));
                }
            }
        }
        steps.push(Step::Product(product));
        match outline.finish {
            Finish::Fused => {}
            Finish::PaddedCopy => steps.push(Step::Copy),
            Finish::EpilogueKernel => steps.push(Step::Epilogue(outline.rescale)),
        }
        Self { outline, steps, passed_over: Vec::new() }
    }

    /// What it computes, and in which parts.
    pub(crate) fn outline(&self) -> &Outline {
        &self.outline
    }

    /// The product among the steps.
    pub(crate) fn product(&self) -> Option<&Product> {
        self.steps.iter().find_map(|step| match step {
            Step::Product(product) => Some(product),
            _ => None,
        })
    }

    /// How many algorithms of the product were offered.
    pub(crate) fn algorithms(&self) -> usize {
        self.product().map_or(0, |product| product.place().1)
    }

    /// Uses another of the offered algorithms; out of range keeps the one in use.
    pub(crate) fn choose(&mut self, index: usize) {
        for step in &mut self.steps {
            if let Step::Product(product) = step {
                product.choose(index);
            }
        }
    }

    /// Bytes of scratch that a call needs: the handle must have reserved them.
    pub(crate) fn scratch_bytes(&self) -> usize {
        self.outline.scratch.bytes()
    }

    /// Enqueues every step. The arguments fit the problem (checked by the caller).
    ///
    /// Allocates nothing, asks no heuristic, waits for nothing.
    pub(crate) fn enqueue(&mut self, handle: &Handle, desc: &GemmDesc, args: &mut GemmArgs<'_>) -> Result<()> {
        let Self { outline, steps, .. } = self;
        call::with_addresses(handle, desc, outline, args, |call| enqueue(steps, call))
    }

    /// The same of a call that is made, on the queue that it names.
    pub(crate) fn enqueue_call(&mut self, call: &Call<'_>) -> Result<()> {
        enqueue(&mut self.steps, call)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{Fp8Format, Fp8Granularity, Fp8Recipe, Operand};
    use crate::gpu::gemm::quantize_a::QuantizeA;
    use crate::gpu::lt::Algo;
    use crate::gpu::lt::tests::found;
    use crate::gpu::matrix::derived::KeptWeights;

    fn steps(desc: &GemmDesc, formulation: Formulation, finish: Finish) -> Vec<String> {
        let outline = outline(desc, formulation, finish).unwrap();
        let algos = [[1; 8], [2; 8]].map(Algo::from_words).to_vec();
        let product = Product::Lt(Box::new(LtProduct::not_offered(desc, &outline.sum, algos)));
        let mut candidate = Candidate::new(desc, outline, product);
        assert_eq!(candidate.algorithms(), 2);
        candidate.choose(1);
        candidate.choose(2);
        assert_eq!(candidate.product().map(Product::place), Some((1, 2)), "out of range keeps the one in use");
        let word = |step: &Step| match step {
            Step::QuantizeA => "quantize A".to_string(),
            Step::Dequantize(side, scheme, dtype) => format!("dequantize {side:?} {scheme} {dtype}"),
            Step::Factors(accumulate) => format!("factors {accumulate:?}"),
            Step::Product(_) => "product".to_string(),
            Step::Copy => "copy".to_string(),
            Step::Epilogue(scales) => format!("epilogue {scales:?}"),
        };
        candidate.steps.iter().map(word).collect()
    }

    #[test]
    fn a_way_is_a_list_of_steps() {
        if found().is_none() {
            return;
        }
        use Finish::{EpilogueKernel, Fused, PaddedCopy};
        let f = Fp8Format::E4M3;
        let (vec, blk, row) = (Scheme::Fp8Group1x128(f), Scheme::Fp8Group128x128(f), Scheme::Fp8Row(f));
        let blocks = |m| GemmDesc::new(m, 4096, 7168, vec, blk, DType::Bf16);
        assert_eq!(steps(&blocks(8), Formulation::RepeatedScales, Fused), ["product"]);
        assert_eq!(steps(&blocks(7), Formulation::RepeatedScales, PaddedCopy), ["product", "copy"]);
        let quantized =
            blocks(7).with_quantize_a(QuantizeA::new(DType::F32, Fp8Recipe::new(Fp8Granularity::Group1x128, f)));
        assert_eq!(steps(&quantized, Formulation::RepeatedScales, PaddedCopy), ["quantize A", "product", "copy"]);
        let rows = GemmDesc::new(7, 4096, 7168, row, row, DType::Bf16);
        assert_eq!(steps(&rows, Formulation::Rescaled, EpilogueKernel), ["product", "epilogue [Each, Each]"]);
        let weights = GemmDesc::new(7, 4096, 7168, Operand::Plain(DType::F16), Scheme::Nvfp4, DType::F32);
        let weights = weights.with_accumulate(Accumulate::Add);
        assert_eq!(
            steps(&weights, Formulation::DequantizedBf16, Fused),
            ["factors Add", "dequantize B nvfp4 f16", "product"]
        );
        // The epilogue kernel adds D's old value; alpha is formed all the same.
        assert_eq!(
            steps(
                &weights.with_kept(KeptWeights::Dequantized(DType::F16)),
                Formulation::DequantizedBf16,
                EpilogueKernel
            ),
            ["factors Replace", "product", "epilogue [Nothing, Nothing]"]
        );
        let both = GemmDesc::new(7, 4096, 7168, Scheme::Nvfp4Row, Scheme::Nvfp4, DType::Bf16);
        assert_eq!(
            steps(&both, Formulation::DequantizedBf16, EpilogueKernel),
            ["dequantize A nvfp4-row bf16", "dequantize B nvfp4 bf16", "product", "epilogue [Each, One]"]
        );
    }
}
