//! Groups of rows of BF16 or F16 numbers, in one launch of our kernels that decode the weights: [`FewRows`]. Also of rows with block scales, behind a launch that
//! dequantizes them, of all rows as one group, and of two matrices side by side; results in codes by a quantizer behind it.

use super::fit::{check_apart, check_parts_apart, check_places_apart};
use super::{GroupedA, GroupedRows};
use crate::epilogue::Activation;
use crate::error::{Error, Result};
use crate::format::{Basis, CodeOrder, DType, Fp8Recipe, Operand, Scheme, pair};
use crate::gpu::device::info::DeviceInfo;
use crate::gpu::device::memory::{DeviceBytes, Span};
use crate::gpu::device::stream::Queue;
use crate::gpu::gemm::available::HOPPER;
use crate::gpu::gemm::chain_rules;
use crate::gpu::gemm::outline::{ScaleUse, second_level};
use crate::gpu::gemm::small_m_step::{How, SmallMGpu};
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{
    BlockCodes, E2M1_K_MULTIPLE, Each, Input, KernelFamily, Kernels, OuterScales, Output, Sm90Groups, SmallMConfig,
    SmallMEnd, SmallMGroupsCall, SmallMGroupsConfig, SmallMOperands, SmallMWeights, SmallMWeightsCall,
};
use crate::gpu::matrix::{MatMut, MatRef, QuantMatrix, QuantSpans, VecRef};

/// How a plain A and a B whose codes lie in this order are multiplied, after checking that they are a pair which these kernels read.
///
/// # Errors
/// [`Error::Pair`] for others, and on other GPUs.
pub(crate) fn served(device: &DeviceInfo, a: DType, b: Scheme, b_order: CodeOrder) -> Result<SmallMWeights> {
    pair::check_pair(Operand::Plain(a), b, &device.to_string())?;
    let (major, minor) = device.compute_capability;
    let reason = match SmallMWeights::of(b, b_order) {
        Some(weights) if weights.multiplies(a) && (major, minor) == HOPPER => return Ok(weights),
        Some(weights) if weights.multiplies(a) => {
            format!("products of groups with a plain A are for sm_90, and this GPU is sm_{major}{minor}")
        }
        _ => "products of groups with a plain A are of bf16 with nvfp4, nvfp4-row, mxfp4 or mxfp8:e4m3, and of bf16 or f16 with FP8 weights in e4m3, nvfp4 and nvfp4-row"
            .to_string(),
    };
    Err(Error::Pair {
        a: Operand::Plain(a),
        b,
        device: device.to_string(),
        reason,
        remedy: "multiply the groups one by one with GemmArgs::weight_only, of a pair that Handle::supports offers on this GPU"
            .to_string(),
    })
}

/// How quantized rows and weights are multiplied so, and as numbers of which type the rows are dequantized: where both have block scales. Codes times those are
/// exact in BF16, and of NVFP4 in F16, which an F16 D asks for, as of products by `small-m` without groups.
pub(super) fn served_quantized(
    device: &DeviceInfo,
    a: Scheme,
    (b, b_order): (Scheme, CodeOrder),
    d: DType,
    k: usize,
) -> Option<(SmallMWeights, DType)> {
    let blocks = |scheme: Scheme| scheme.spec().block.is_some();
    let weights = SmallMWeights::of(b, b_order).filter(|_| blocks(a) && blocks(b))?;
    let dtype = if d == DType::F16 && a.is_nvfp4() { DType::F16 } else { DType::Bf16 };
    let whole = weights.operands() != SmallMOperands::E2m1Weights || k.is_multiple_of(E2M1_K_MULTIPLE);
    let served = device.compute_capability == HOPPER && whole && weights.multiplies(dtype);
    (served && pair::check_pair(a, b, "").is_ok()).then_some((weights, dtype))
}

/// The configuration for groups that have so many rows each, as a rule, of an A of m x k.
pub(crate) fn config(weights: SmallMWeights, rows: usize, mk: [usize; 2]) -> Result<SmallMGroupsConfig> {
    SmallMGroupsConfig::of(weights.operands(), rows, mk)
}

/// That for m rows which are no groups.
pub(crate) fn tiles(weights: SmallMWeights, [m, k]: [usize; 2]) -> Result<SmallMGroupsConfig> {
    SmallMGroupsConfig::of_tiles(weights.operands(), m, k)
}

/// How SwiGLU of plain rows is computed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Gated {
    /// In one launch of tiles.
    Tiles(SmallMGroupsConfig),
    /// Both products in this configuration, stored in FP32, and a pass over them. Without groups. By kernels that are sm_90's alone, if any, with so much scratch memory.
    ThenPass(SmallMConfig, Option<How>, usize),
}

impl std::fmt::Display for Gated {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Tiles(config) => write!(f, "{config}"),
            Self::ThenPass(config, how, _) => {
                let how = how.map(|how| how.to_string()).unwrap_or_default();
                write!(f, "{config}{how}, and a pass over both products")
            }
        }
    }
}

/// That for m rows, which are no groups, with a B of n rows: in the configuration that this product by itself has. Where that is no tile, as E2M1
/// weights mostly have it up to 16 rows, or its tiles do not all run at once, the product and a pass are faster than both in one kernel, whose tiles are slower by more than the pass takes (H200,
/// 2026-11, the record of experts, m = 1: `nvfp4-row` 57344 x 8192 88 us for the product, 89.4 with the pass, 106 in one kernel; FP8 70.5 of 36864 x 7168 for the product, 74.4 in one kernel; 11.0 and 12.0 of
/// 4096 x 7168). And so it is where the product is one of warpgroup products, of which there are none with two matrices without groups.
pub(crate) fn gated(weights: SmallMWeights, mnk: [usize; 3], gpu: SmallMGpu, chained: bool) -> Result<Gated> {
    let (config, codes) = (tiles(weights, [mnk[0], mnk[2]])?, weights.code_order());
    let then_pass = |own: SmallMConfig| {
        gpu.wgmma(own, codes, mnk).is_some() || own.block() != config.tile().block() || !at_once(own, mnk, gpu.sm_count)
    };
    Ok(match chain_rules::order(weights.operands(), codes, mnk, gpu, chained).first() {
        Some(own) if then_pass(*own) => {
            Gated::ThenPass(*own, gpu.how(*own, codes, mnk), gpu.scratch_bytes(*own, codes, mnk))
        }
        Some(tile) => Gated::Tiles(config.with_tile(*tile)),
        None => Gated::Tiles(config),
    })
}

/// Whether all blocks of this product run at once.
fn at_once(config: SmallMConfig, [m, n, _]: [usize; 3], sm_count: usize) -> bool {
    config.block().tiles(n) * config.split() as usize <= config.block().residents(m) * sm_count
}

/// The rows of A.
#[derive(Clone, Copy)]
pub(crate) enum RowsOfA<'c, 'a> {
    Plain(&'c MatRef<'a>),
    /// With block scales, to be dequantized as numbers of this type. All of them: which belong to groups the device alone knows.
    Quantized(&'c QuantMatrix, DType),
}

impl<'c, 'a> RowsOfA<'c, 'a> {
    /// A for kernels that decode weights; a quantized one is dequantized as numbers of this type.
    pub(super) fn of(a: &'c GroupedA<'a>, dtype: DType) -> Self {
        match a {
            GroupedA::Plain(a) => Self::Plain(a),
            GroupedA::Quantized(a) => Self::Quantized(a, dtype),
        }
    }

    /// Rows and columns.
    fn shape(&self) -> [usize; 2] {
        match self {
            Self::Plain(a) => [a.rows(), a.cols()],
            Self::Quantized(a, _) => [a.rows(), a.cols()],
        }
    }

    /// The scheme that they are dequantized from.
    fn scheme(&self) -> Option<Scheme> {
        match self {
            Self::Plain(_) => None,
            Self::Quantized(a, _) => Some(a.scheme()),
        }
    }
}

/// What a call needs that a first one makes: loaded kernels, and scratch memory.
pub(super) struct Needs {
    family: KernelFamily,
    /// The scheme of an A that is dequantized.
    a: Option<Scheme>,
    /// Bytes of what a product has beside its operands (A arranged, parts of sums, both products of a pass), of the numbers of A, and of results that are cast.
    bytes: [usize; 3],
}

impl Needs {
    /// Of groups of rows of this A, in this configuration.
    pub(super) fn of_groups(a: Operand, shape: [usize; 2], config: SmallMGroupsConfig) -> Self {
        let bytes = [config.arranged_bytes(shape), of_numbers(a.scheme(), shape), 0];
        Self { family: KernelFamily::SmallMGroups, a: a.scheme(), bytes }
    }

    pub(super) fn scratch_bytes(&self) -> usize {
        self.bytes.iter().sum()
    }

    /// Loads and reserves it.
    pub(super) fn make_ready(&self, handle: &Handle) -> Result<()> {
        let (queue, kernels) = (handle.queue(), handle.kernels());
        kernels.load(queue, self.family)?;
        self.a.map_or(Ok(()), |scheme| kernels.load_casts(queue, scheme))?;
        let [_, _, of_results] = self.bytes;
        if of_results > 0 {
            kernels.load(queue, KernelFamily::Fp8)?;
        }
        handle.reserve_scratch(self.scratch_bytes())
    }
}

/// Scratch memory for the numbers of an A of such a scheme.
fn of_numbers(a: Option<Scheme>, [rows, cols]: [usize; 2]) -> usize {
    a.map_or(0, |_| rows * cols * 2)
}

/// The rows of A on the stream, and where the kernels find their numbers.
enum SpansOfA<'s> {
    Plain {
        numbers: Span<'s>,
        stride: usize,
        dtype: DType,
    },
    /// Numbers in scratch memory, packed, once they are dequantized.
    Quantized {
        q: &'s QuantMatrix,
        read: QuantSpans<'s>,
        numbers: Span<'s>,
        dtype: DType,
    },
}

impl SpansOfA<'_> {
    fn numbers(&self) -> &Span<'_> {
        let (Self::Plain { numbers, .. } | Self::Quantized { numbers, .. }) = self;
        numbers
    }

    fn dtype(&self) -> DType {
        let (Self::Plain { dtype, .. } | Self::Quantized { dtype, .. }) = self;
        *dtype
    }

    fn stride(&self) -> usize {
        match self {
            Self::Plain { stride, .. } => *stride,
            Self::Quantized { q, .. } => q.cols(),
        }
    }

    /// The scales that are no part of the numbers, in the place of one those of groups.
    fn outer<'a>(&'a self, of_groups: Option<&'a Span<'a>>) -> Option<OuterScales<'a>> {
        match self {
            Self::Plain { .. } => None,
            Self::Quantized { q, read, .. } => outer(second_level(q.scheme().into()), &read.scales, of_groups),
        }
    }

    /// Refuses a D that overlaps what is read.
    fn check_apart(&self, d: &Span<'_>) -> Result<()> {
        match self {
            Self::Plain { numbers, .. } => check_apart("A", &[numbers], d),
            Self::Quantized { read, .. } => check_apart("A", &read.all(), d),
        }
    }

    /// Enqueues what goes before the product: of plain rows nothing.
    fn dequantize(&self, kernels: &Kernels, queue: &Queue) -> Result<()> {
        let Self::Quantized { q, read: QuantSpans { codes, block_scales, .. }, numbers, dtype } = self else {
            return Ok(());
        };
        let (scheme, order, rows, cols) = (q.scheme(), q.code_order(), q.rows(), q.cols());
        let codes = BlockCodes { scheme, order, rows, cols, codes, block_scales, scales: None };
        kernels.dequantize_blocks(queue, &codes, numbers, cols, *dtype)
    }
}

/// Where the results go.
pub(crate) enum FewOut<'c, 'a> {
    Numbers(&'c mut MatMut<'a>),
    /// E4M3 with 1x128 scales by this recipe. The quantizer casts every row: so without groups.
    Codes(&'c mut QuantMatrix, Fp8Recipe),
}

impl FewOut<'_, '_> {
    /// Rows and columns.
    fn shape(&self) -> [usize; 2] {
        match self {
            Self::Numbers(d) => [d.rows(), d.cols()],
            Self::Codes(d, _) => [d.rows(), d.cols()],
        }
    }

    /// Scratch memory of a call, for results in FP32 that are cast behind it. A pass over both products casts by itself.
    fn scratch_bytes(&self, way: FewWay) -> usize {
        let [m, n] = self.shape();
        let casts = matches!(self, Self::Codes(..)) && !matches!(way, FewWay::Gated(Gated::ThenPass(..)));
        if casts { m * n * 4 } else { 0 }
    }
}

/// D on the stream.
enum SpansOfD<'s> {
    Numbers {
        d: Span<'s>,
        stride: usize,
        dtype: DType,
    },
    /// By way of results in FP32, packed, in scratch memory.
    Codes {
        out: QuantSpans<'s>,
        results: Span<'s>,
        recipe: Fp8Recipe,
    },
}

impl SpansOfD<'_> {
    /// What is written for the caller.
    fn written(&self) -> impl Iterator<Item = &Span<'_>> {
        let all = match self {
            Self::Numbers { d, .. } => [Some(d), None],
            Self::Codes { out, .. } => [Some(&out.codes), Some(&out.scales)],
        };
        all.into_iter().flatten()
    }

    /// What the product stores, of n columns: the memory, its row stride and type.
    fn stored(&self, n: usize) -> (&Span<'_>, usize, DType) {
        match self {
            Self::Numbers { d, stride, dtype } => (d, *stride, *dtype),
            Self::Codes { results, .. } => (results, n, DType::F32),
        }
    }

    /// Enqueues the pass over both products.
    fn swiglu(&self, kernels: &Kernels, queue: &Queue, both: &Span<'_>, mn: [usize; 2]) -> Result<()> {
        match self {
            Self::Numbers { d, stride, dtype } => kernels.small_m_swiglu(queue, both, mn, (d, *stride, *dtype)),
            Self::Codes { out, recipe, .. } => {
                let none = out.codes.slice(0, 0);
                let out = Output { codes: &out.codes, scales: &out.scales, block_scales: &none };
                kernels.small_m_swiglu_codes(queue, both, mn, *recipe, &out)
            }
        }
    }

    /// Enqueues what goes behind the product: of numbers nothing.
    fn quantize(&self, handle: &Handle, [m, n]: [usize; 2]) -> Result<()> {
        let Self::Codes { out, results, recipe } = self else { return Ok(()) };
        let x = Input { x: results, dtype: DType::F32, rows: m, cols: n, row_stride: n };
        let none = out.codes.slice(0, 0);
        let out = Output { codes: &out.codes, scales: &out.scales, block_scales: &none };
        handle.enqueue_fp8(&x, *recipe, &out)
    }
}

/// One launch, or two.
pub(crate) struct FewRows<'c, 'a> {
    pub(crate) weights: SmallMWeights,
    pub(crate) a: RowsOfA<'c, 'a>,
    pub(crate) b: &'c QuantMatrix,
    /// `None`: all rows are one group's.
    pub(crate) groups: Option<(usize, &'c GroupedRows<'a>)>,
    pub(crate) d: FewOut<'c, 'a>,
    pub(crate) alpha: f32,
    pub(crate) bias: Option<&'c VecRef<'a>>,
    pub(crate) activation: Activation,
    /// In the place of the one scale of A, or of B, one for each group, or for each matrix: with groups alone.
    pub(crate) scales: [Option<&'c DeviceBytes<'a>>; 2],
    pub(crate) way: FewWay,
}

/// What it computes, and how.
#[derive(Clone, Copy)]
pub(crate) enum FewWay {
    /// The product of each group.
    Plain(SmallMGroupsConfig),
    /// Of two matrices, of which the first one's product is activated and multiplied with the other's.
    Gated(Gated),
}

impl FewWay {
    /// Bytes of A of m x k as it is arranged for the product, and of parts of its sums.
    fn arranged_bytes(self, mk: [usize; 2]) -> usize {
        match self {
            Self::Plain(config) | Self::Gated(Gated::Tiles(config)) => config.arranged_bytes(mk),
            Self::Gated(Gated::ThenPass(.., arranged)) => arranged,
        }
    }

    /// Scratch memory of a call for D of m x n, sums over k.
    pub(crate) fn scratch_bytes(self, [m, n, k]: [usize; 3]) -> usize {
        let both = if matches!(self, Self::Gated(Gated::ThenPass(..))) { m * 2 * n * 4 } else { 0 };
        self.arranged_bytes([m, k]) + both
    }
}

impl FewRows<'_, '_> {
    fn needs(&self) -> Needs {
        let ([m, k], [_, n]) = (self.a.shape(), self.d.shape());
        let of_products = self.way.scratch_bytes([m, n, k]);
        // Of a product and a pass the product's; on sm_90 those of the pass come with them.
        let family = match self.way {
            FewWay::Gated(Gated::ThenPass(..)) => KernelFamily::SmallMWeights,
            _ => KernelFamily::SmallMGroups,
        };
        let of_a = of_numbers(self.a.scheme(), self.a.shape());
        Needs { family, a: self.a.scheme(), bytes: [of_products, of_a, self.d.scratch_bytes(self.way)] }
    }

    /// Enqueues it. Loads the kernels, if they are not yet.
    pub(crate) fn multiply(self, handle: &Handle) -> Result<()> {
        self.needs().make_ready(handle)?;
        self.multiply_ready(handle)
    }

    /// The same where what it [needs](Needs) is there: allocates nothing.
    pub(super) fn multiply_ready(mut self, handle: &Handle) -> Result<()> {
        let _turn = handle.queue().turn();
        let Needs { bytes, .. } = self.needs();
        self.enqueue(handle, bytes)?;
        if let FewOut::Codes(d, _) = self.d {
            d.set_basis(Basis::Plain);
            d.derive_again(handle)?;
        }
        Ok(())
    }

    /// The same with kernels that are loaded, and so much scratch memory.
    fn enqueue(&mut self, handle: &Handle, [of_products, of_a, of_results]: [usize; 3]) -> Result<()> {
        let &mut Self { weights, a, b, groups, ref mut d, alpha, bias, activation, scales: of_groups, way } = self;
        let (queue, kernels) = (handle.queue(), handle.kernels());
        let ([m, k], [_, n]) = (a.shape(), d.shape());
        let order = queue.order();
        let spans = b.read_in_order(&order)?;
        let scratch = handle.scratch(of_products + of_a + of_results)?;
        let d = match d {
            FewOut::Numbers(d) => {
                let (stride, dtype, bytes) = (d.row_stride(), d.dtype(), d.extent_bytes());
                SpansOfD::Numbers { d: d.data_mut().at(&order)?.slice(0, bytes), stride, dtype }
            }
            FewOut::Codes(d, recipe) => {
                let (out, results) = (d.write(&order)?, scratch.slice(of_products + of_a, of_results));
                check_parts_apart(&out)?;
                SpansOfD::Codes { out, results, recipe: *recipe }
            }
        };
        let bias = bias.map(|v| Ok::<_, Error>((v.data().at(&order)?, v.dtype()))).transpose()?;
        d.written().try_for_each(|d| check_apart("B", &spans.all(), d))?;
        bias.iter().try_for_each(|(bias, _)| d.written().try_for_each(|d| check_apart("a bias", &[bias], d)))?;
        let (scales, level) = match weights {
            SmallMWeights::Fp8 => (None, second_level(b.scheme().into())),
            SmallMWeights::Fp8Vectors | SmallMWeights::Fp8Tiles => (Some(&spans.scales), ScaleUse::Nothing),
            SmallMWeights::Nvfp4 | SmallMWeights::Nvfp4Repacked | SmallMWeights::Mxfp4 | SmallMWeights::Mxfp8 => {
                (Some(&spans.block_scales), second_level(b.scheme().into()))
            }
        };
        let a = match a {
            RowsOfA::Plain(a) => SpansOfA::Plain {
                numbers: a.data().at(&order)?.slice(0, a.extent_bytes()),
                stride: a.row_stride(),
                dtype: a.dtype(),
            },
            RowsOfA::Quantized(q, dtype) => {
                SpansOfA::Quantized { q, read: q.read(&order)?, numbers: scratch.slice(of_products, of_a), dtype }
            }
        };
        d.written().try_for_each(|d| a.check_apart(d))?;
        let [of_groups_a, of_groups_b] = of_groups.map(|scales| scales.map(|scales| scales.at(&order)).transpose());
        let of_groups = [of_groups_a?, of_groups_b?];
        // As many as are read: of B one for each matrix, of which a group that is gated has two.
        let (count, matrices) =
            (groups.as_ref().map_or(0, |(count, _)| *count), if matches!(way, FewWay::Gated(_)) { 2 } else { 1 });
        for (scales, each) in of_groups.iter().zip([1, matrices]) {
            let Some(scales) = scales else { continue };
            let read = scales.slice(0, scales.bytes.min(count.saturating_mul(4 * each)));
            d.written().try_for_each(|d| check_apart("scales of groups", &[&read], d))?;
        }
        let outer = outer(level, &spans.scales, of_groups[1].as_ref());
        let end = |d, d_stride, d_type, activation| SmallMEnd {
            alpha,
            beta: 0.0,
            bias: bias.as_ref().map(|(span, dtype)| (span, *dtype)),
            activation,
            residual: None,
            d,
            d_stride,
            d_type,
        };
        // It begins as scratch memory does, and is whole lines.
        let arranged = scratch.slice(0, way.arranged_bytes([m, k]));
        let product = |config, n, end| SmallMWeightsCall {
            config,
            m,
            n,
            k,
            a: a.numbers(),
            a_stride: a.stride(),
            a_type: a.dtype(),
            a_is_made: matches!(a, SpansOfA::Quantized { .. }),
            weights,
            codes: &spans.codes,
            scales,
            scratch: Some(&arranged).filter(|arranged| arranged.bytes > 0),
            outer: [a.outer(of_groups[0].as_ref()), outer],
            end,
        };
        let (config, gated) = match way {
            FewWay::Plain(config) => (config, false),
            FewWay::Gated(Gated::Tiles(config)) => (config, true),
            FewWay::Gated(Gated::ThenPass(config, ..)) => {
                let both = scratch.slice(arranged.bytes, of_products - arranged.bytes);
                let end = end(&both, 2 * n, DType::F32, Activation::None);
                kernels.small_m_weights_product(queue, &product(config, 2 * n, end))?;
                return d.swiglu(kernels, queue, &both, [m, n]);
            }
        };
        let launch = |groups: Option<Sm90Groups<'_>>| {
            a.dequantize(kernels, queue)?;
            let (stored, stride, dtype) = d.stored(n);
            let product = product(config.tile(), n, end(stored, stride, dtype, activation));
            kernels.small_m_groups(queue, &SmallMGroupsCall { config, product, groups, gated })?;
            d.quantize(handle, [m, n])
        };
        match groups {
            None => launch(None),
            Some((count, rows)) => rows.with_places(count, &order, |places| {
                d.written().try_for_each(|d| check_places_apart(&places, d))?;
                launch(Some(places.into()))
            }),
        }
    }
}

/// The scales of this level, if there are any; those of groups take the place of one.
fn outer<'s>(level: ScaleUse, scales: &'s Span<'s>, of_groups: Option<&'s Span<'s>>) -> Option<OuterScales<'s>> {
    match (level, of_groups) {
        (ScaleUse::Nothing, _) => None,
        (ScaleUse::One, Some(scales)) => Some(OuterScales { scales, each: Each::Group }),
        (ScaleUse::One, None) => Some(OuterScales { scales, each: Each::All }),
        (ScaleUse::Each, _) => Some(OuterScales { scales, each: Each::Row }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::kernels::SmallMBlock;

    /// Where one kernel was faster than the product and a pass, and where not (H200, the record of experts).
    #[test]
    fn gated_products_are_of_tiles_that_all_run_at_once() {
        let of = |wgmma, weights, mnk, chained| {
            gated(weights, mnk, SmallMGpu { sm_count: 132, clusters: true, wgmma }, chained).unwrap()
        };
        let on = |wgmma, weights, m, n: usize| of(wgmma, weights, [m, 2 * n, 7168], false);
        // Planned for chains, in other parts of k, as one product of both is.
        let [alone, chained] = [false, true].map(|chained| of(true, SmallMWeights::Nvfp4, [8, 5120, 8192], chained));
        let parts = |gated| match gated {
            Gated::ThenPass(config, ..) => config.parts(),
            Gated::Tiles(_) => 0,
        };
        assert_eq!([parts(alone), parts(chained)], [8, 16]);
        let way = |weights, m, n| on(false, weights, m, n);
        let block = |gated| match gated {
            Gated::Tiles(_) => None,
            Gated::ThenPass(config, ..) => Some(config.block()),
        };
        let passes = |weights, m, n| block(way(weights, m, n));
        use SmallMWeights::{Fp8Tiles, Nvfp4};
        assert_eq!([1, 16, 64].map(|m| passes(Fp8Tiles, m, 2048)), [None; 3]);
        assert_eq!([1, 64].map(|m| passes(Fp8Tiles, m, 18432)), [Some(SmallMBlock::TileE4m3); 2]);
        assert!(matches!(passes(Nvfp4, 16, 2048), Some(SmallMBlock::Four | SmallMBlock::Eight)));
        assert_eq!([passes(Nvfp4, 32, 2048), passes(Nvfp4, 32, 18432)], [None, Some(SmallMBlock::Tile)]);
        let bytes = |way| FewWay::Gated(way).scratch_bytes([16, 2048, 7168]);
        assert_eq!([bytes(way(Nvfp4, 16, 2048)), bytes(way(Fp8Tiles, 16, 2048))], [16 * 2 * 2048 * 4, 0]);
        assert!(way(Nvfp4, 1, 128).to_string().contains("k split by"));
        // Warpgroup products have no kernels of two matrices.
        let wide = |weights, m, n| on(true, weights, m, n);
        assert_eq!([17, 64].map(|m| block(wide(Nvfp4, m, 2048))), [Some(SmallMBlock::Tile); 2]);
        assert_eq!([17, 33].map(|m| block(wide(Fp8Tiles, m, 512))), [None, Some(SmallMBlock::TileE4m3)]);
        assert!(wide(Nvfp4, 16, 1920) == way(Nvfp4, 16, 1920) && wide(Fp8Tiles, 1, 2048) == way(Fp8Tiles, 1, 2048));
        let both = 33 * 2 * 2048 * 4;
        // A arranged, and eight parts of both products behind it.
        assert_eq!(FewWay::Gated(wide(Nvfp4, 33, 2048)).scratch_bytes([33, 2048, 7168]), 48 * 7168 * 2 + 9 * both);
        assert!(wide(Nvfp4, 33, 2048).to_string().contains("by warpgroup products, between"));
        assert!(wide(Nvfp4, 33, 18432).to_string().contains("by warpgroup products, behind"));
    }
}
