//! [`Handle::fused_gemm`]: a product and the pass behind it in one kernel, whole or of groups of rows: SwiGLU of two products, and results in codes. Of FP8
//! operands by the kernels of `sm90`; SwiGLU of few rows by those of `small-m` (`few_rows`).

mod few_rows;
mod two_steps;

use crate::epilogue::Activation;
use crate::error::{Error, Result};
use crate::format::{Basis, DType, Fp8Format, Fp8Granularity, Fp8Recipe, Operand, Scheme, pair};
use crate::gpu::device::memory::DeviceBytes;
use crate::gpu::gemm::available::HOPPER;
use crate::gpu::gemm::outline::{ScaleUse, second_level};
use crate::gpu::gemm::sm90_rules;
use crate::gpu::gemm::small_m_step::{How, SmallMGpu};
use crate::gpu::grouped::fit::{
    Fit, check_apart, check_numbers, check_operands_apart, check_parts_apart, check_places_apart,
};
use crate::gpu::grouped::{GroupedA, GroupedRows, few};
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{
    KernelFamily, Meeting, Sm90Call, Sm90Codes, Sm90Config, Sm90End, Sm90Groups, Sm90Operand, Sm90Scales, SmallMConfig,
    SmallMWeights,
};
use crate::gpu::matrix::{MatMut, MatRef, QuantMatrix, VecRef};

/// Where the result goes.
pub enum FusedOut<'a> {
    /// Numbers: BF16, F16 or F32.
    Plain(MatMut<'a>),
    /// `fp8-1x128:e4m3`, codes and scales as the next product reads them.
    Quantized(&'a mut QuantMatrix),
}

impl<'a> From<MatMut<'a>> for FusedOut<'a> {
    fn from(d: MatMut<'a>) -> Self {
        Self::Plain(d)
    }
}

impl<'a> From<&'a mut QuantMatrix> for FusedOut<'a> {
    fn from(d: &'a mut QuantMatrix) -> Self {
        Self::Quantized(d)
    }
}

impl FusedOut<'_> {
    fn shape(&self) -> (usize, usize) {
        match self {
            Self::Plain(d) => (d.rows(), d.cols()),
            Self::Quantized(d) => (d.rows(), d.cols()),
        }
    }
}

/// The operands of one product with the pass behind it. A: `fp8-1x128:e4m3`, m x k; B: `fp8-128x128:e4m3`, of columns k; of SwiGLU also both `fp8-row:e4m3` or both `fp8-tensor:e4m3`; or both as
/// [`FusedGemmArgs::swiglu_weight_only`] says. Sums are FP32 from one block of 128 along k to the next; what follows is computed in FP32, and nothing is rounded in between.
pub struct FusedGemmArgs<'a> {
    a: GroupedA<'a>,
    b: &'a QuantMatrix,
    d: FusedOut<'a>,
    swiglu: bool,
    groups: Option<(usize, GroupedRows<'a>)>,
    alpha: f32,
    bias: Option<VecRef<'a>>,
    activation: Activation,
    recipe: Fp8Recipe,
    expected_rows: Option<usize>,
    config: Option<Sm90Config>,
    small_m_config: Option<SmallMConfig>,
    scales_of_b: Option<DeviceBytes<'a>>,
    batch_invariant: bool,
    chained: bool,
}

/// The most plain rows without groups: for more the codes are better decoded once, for all of them.
const MOST_PLAIN_ROWS: usize = 64;

/// Which kernels multiply.
enum Way<'a> {
    Sm90(&'a QuantMatrix, Sm90Scales),
    /// The products, and a pass over them.
    Sm90InSteps(&'a QuantMatrix, Sm90Scales, Sm90Config),
    SmallM(&'a QuantMatrix, SmallMConfig),
    FewRows(SmallMWeights, few::Gated),
}

impl<'a> FusedGemmArgs<'a> {
    /// `D = silu(alpha A Gᵀ) ∘ (alpha A Uᵀ)`: the gated MLP's first half. B holds the rows of G, then those of U, as engines stack `gate_proj` and `up_proj`:
    /// 2n x k, n a multiple of 128 and k of 16. D, m x n: numbers, or `fp8-1x128:e4m3` codes for the next product. In the arithmetic of
    /// [`reference::swiglu`](crate::reference::swiglu) of the two products in FP32. The scale of an `fp8-tensor` is that of both matrices, and of all groups.
    pub fn swiglu(a: &'a QuantMatrix, b: &'a QuantMatrix, d: impl Into<FusedOut<'a>>) -> Self {
        Self::of(GroupedA::Quantized(a), b, d.into(), true)
    }

    /// The same with plain activations, for decode: A BF16 or F16, m x k, its rows any multiple of 16 bytes apart; B of a scheme that
    /// [`GroupedGemmArgs::weight_only`](crate::GroupedGemmArgs::weight_only) multiplies, k a multiple of 16, of 32 with E2M1 codes. D: BF16, F16 or F32, or without groups codes. Both matrices are read once, side by side, for up
    /// to 32 rows (of a group, with [`FusedGemmArgs::groups`]), and from L2 for more; without groups m is at most 64. In the arithmetic of
    /// [`reference::swiglu`](crate::reference::swiglu) of the two products in FP32.
    ///
    /// Codes are `quantize(D)` of D in FP32, in two launches: the kernel and the quantizer, with D in 4 m n bytes of scratch memory, or both products, in 8 m n bytes, and a pass over
    /// them that casts; of 9 rows and more often in three or four, by warpgroup products, with A and parts of sums in scratch memory, too ([`FusedGemmArgs::explain`] says which). Of groups they are refused: the quantizer casts every row.
    /// Groups of more than 16 usual rows (E4M3 codes: 64) take a launch before, which arranges A in scratch memory: call it once with these shapes and expected rows before a capture.
    ///
    /// ```no_run
    /// use scaled_gemm::{FusedGemmArgs, GemmArgs, Handle, MatMut, MatRef, QuantMatrix, Result};
    ///
    /// /// `gate_up` holds the rows of gate, then those of up, in NVFP4; `hidden` has half as many columns, in BF16.
    /// fn half_a_layer(handle: &Handle, x: MatRef<'_>, gate_up: &QuantMatrix, hidden: MatMut<'_>) -> Result<()> {
    ///     handle.fused_gemm(FusedGemmArgs::swiglu_weight_only(x, gate_up, hidden))
    /// }
    /// ```
    pub fn swiglu_weight_only(a: MatRef<'a>, b: &'a QuantMatrix, d: impl Into<FusedOut<'a>>) -> Self {
        Self::of(GroupedA::Plain(a), b, d.into(), true)
    }

    /// `D = quantize(activation(alpha A Bᵀ + bias))`, m x n, n and k multiples of 16: the bytes of [`Handle::quantize_into`] of the product in FP32.
    pub fn quantized(a: &'a QuantMatrix, b: &'a QuantMatrix, d: &'a mut QuantMatrix) -> Self {
        Self::of(GroupedA::Quantized(a), b, FusedOut::Quantized(d), false)
    }

    fn of(a: GroupedA<'a>, b: &'a QuantMatrix, d: FusedOut<'a>, swiglu: bool) -> Self {
        Self {
            a,
            b,
            d,
            swiglu,
            groups: None,
            alpha: 1.0,
            bias: None,
            activation: Activation::None,
            recipe: Fp8Recipe::new(Fp8Granularity::Group1x128, Fp8Format::E4M3),
            expected_rows: None,
            config: None,
            small_m_config: None,
            scales_of_b: None,
            batch_invariant: false,
            chained: false,
        }
    }

    /// The same of groups of A's rows, each with a B of its own, those of group 0 first: experts. Rows of D of no group are not written, their scales
    /// neither. [`GroupedRows`] says where groups lie; n is a multiple of 128.
    pub fn groups(self, groups: usize, rows: GroupedRows<'a>) -> Self {
        Self { groups: Some((groups, rows)), ..self }
    }

    /// Multiplies products by `alpha` (a host number: a captured graph keeps the value it was captured with).
    pub fn alpha(self, alpha: f32) -> Self {
        Self { alpha, ..self }
    }

    /// Adds a bias for each column, of each group: BF16, F16 or F32. Not with SwiGLU.
    pub fn bias(self, bias: VecRef<'a>) -> Self {
        Self { bias: Some(bias), ..self }
    }

    /// Applies an activation after the bias. Not with SwiGLU.
    pub fn activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// By which rule a quantized D gets its scales: 1x128, E4M3. Unless told, [`Fp8Recipe::new`]'s.
    pub fn recipe(self, recipe: Fp8Recipe) -> Self {
        Self { recipe, ..self }
    }

    /// How many rows a group usually has, which decides the configuration, and of a plain A whether it is arranged in scratch memory (above 16; E4M3 codes: 64); never the bits, nor how many rows a group may have. Unless told, all that a slot holds, or an
    /// equal share of A's rows.
    pub fn expected_rows(self, rows: usize) -> Self {
        Self { expected_rows: Some(rows), ..self }
    }

    /// This configuration of `sm90` and no other: `128x128` or `64x128`, of codes without SwiGLU also `256x128`. Results are the same in every bit. Not of a plain A.
    pub fn config(self, config: Sm90Config) -> Self {
        Self { config: Some(config), ..self }
    }

    /// This configuration of `small-m` and no other: of `fp8-1x128` and `fp8-128x128`, for SwiGLU of at most 32 rows without groups.
    pub fn small_m_config(self, config: SmallMConfig) -> Self {
        Self { small_m_config: Some(config), ..self }
    }

    /// Of groups of plain rows, a scale for each matrix in the place of the one of an `nvfp4` or `fp8-tensor` B, as published experts have: FP32, two for each group, that of gate and that of up, group by group, 4-byte aligned; of NVFP4 the second level, as a decode factor. What it holds when the
    /// product runs is what counts. Others are refused.
    pub fn scales_of_b(self, scales: DeviceBytes<'a>) -> Self {
        Self { scales_of_b: Some(scales), ..self }
    }

    /// Whether a row of D must have the same bits whatever m is; not unless told. Whichever rows stand beside it, it has them anyway, and in groups
    /// and from 33 rows on whatever m is, too: for fewer the parts of k follow m.
    pub fn batch_invariant(self, batch_invariant: bool) -> Self {
        Self { batch_invariant, ..self }
    }

    /// Whether the call is a link of a chain, planned as one product with the stacked 2n x k weights would be ([`GemmDesc::chained`](crate::GemmDesc::chained)); not unless told. It decides the configuration of SwiGLU of few rows without groups, and so its bits, which are the
    /// same in a chain and outside of it; batch-invariant products are not changed by it.
    pub fn chained(self, chained: bool) -> Self {
        Self { chained, ..self }
    }

    /// Matrices in B, of each group.
    fn matrices(&self) -> usize {
        if self.swiglu { 2 } else { 1 }
    }

    /// m, n and k.
    fn mnk(&self) -> [usize; 3] {
        let (m, n) = self.d.shape();
        [m, n, self.a.cols()]
    }

    /// Refuses scales of matrices that no kernel reads.
    fn check_scales(&self) -> Result<()> {
        let served = matches!(self.a, GroupedA::Plain(_)) && self.groups.is_some();
        if self.scales_of_b.is_none() || (served && second_level(self.b.scheme().into()) == ScaleUse::One) {
            return Ok(());
        }
        Err(Error::unsupported(
            format!("a scale for each matrix of {} x {}", self.a.operand(), self.b.scheme()),
            "SwiGLU of groups of plain rows reads it, in the place of the one of an nvfp4 or fp8-tensor B",
            "leave it out: each row of a B of nvfp4-row or fp8-row has the scale of its matrix",
        ))
    }

    /// Which kernels multiply these operands.
    fn way(&self, handle: &Handle) -> Result<Way<'a>> {
        self.check_scales()?;
        match &self.a {
            GroupedA::Quantized(a) => {
                let layout = self.check_pair(handle, a)?;
                self.check_shapes(handle)?;
                Ok(match self.small_m(layout, SmallMGpu::of(handle))? {
                    Some(config) => Way::SmallM(a, config),
                    None => match self.in_steps(handle.device().sm_count as usize) {
                        Some(config) => Way::Sm90InSteps(a, layout, config),
                        None => Way::Sm90(a, layout),
                    },
                })
            }
            GroupedA::Plain(a) => {
                let weights = few::served(handle.device(), a.dtype(), self.b.scheme(), self.b.code_order())?;
                pair::check_basis(Basis::Plain, self.b.basis())?;
                if self.config.is_some() || self.small_m_config.is_some() {
                    let remedy = "leave it out";
                    return Err(Error::unsupported(
                        "a configuration of sm90 or small-m for a plain A",
                        "other kernels multiply it",
                        remedy,
                    ));
                }
                self.check_shapes(handle)?;
                self.check_codes_of_groups()?;
                if self.groups.is_none() && a.rows() > MOST_PLAIN_ROWS {
                    return Err(Error::shape(
                        "A",
                        format!("{} x {}", a.rows(), a.cols()),
                        format!("plain rows with SwiGLU in the kernel are at most {MOST_PLAIN_ROWS}"),
                        "quantize A as fp8-1x128 and multiply fp8-128x128 weights, or pass as many rows at a time",
                    ));
                }
                let config = match self.groups {
                    None if self.batch_invariant => few::tiles(weights, [a.rows(), a.cols()]).map(few::Gated::Tiles),
                    Some(_) => few::config(weights, self.usual_rows(), [a.rows(), a.cols()]).map(few::Gated::Tiles),
                    None => {
                        let mnk = [a.rows(), self.b.rows(), a.cols()];
                        few::gated(weights, mnk, SmallMGpu::of(handle), self.chained)
                    }
                };
                Ok(Way::FewRows(weights, config?))
            }
        }
    }

    /// How the kernels of `sm90` read the scales. Refuses what they do not read.
    fn check_pair(&self, handle: &Handle, a: &QuantMatrix) -> Result<Sm90Scales> {
        let Self { b, swiglu, .. } = self;
        let (row, tensor) = (Scheme::Fp8Row(Fp8Format::E4M3), Scheme::Fp8Tensor(Fp8Format::E4M3));
        let (vec, blk) = (Scheme::Fp8Group1x128(Fp8Format::E4M3), Scheme::Fp8Group128x128(Fp8Format::E4M3));
        let (major, minor) = handle.device().compute_capability;
        let after = if *swiglu { "SwiGLU" } else { "a cast" };
        let refuse = |reason: String| {
            Err(Error::Pair {
                a: Operand::Quantized(a.scheme()),
                b: b.scheme(),
                device: handle.device().to_string(),
                reason,
                remedy: if *swiglu {
                    "store the products in one matrix (Handle::scaled_gemm or grouped_gemm), and quantize SwigluSource of it".to_string()
                } else {
                    "store the product (Handle::scaled_gemm or grouped_gemm), and quantize it".to_string()
                },
            })
        };
        if (major, minor) != HOPPER {
            return refuse(format!(
                "a product with {after} in its kernel is for sm_90, and this GPU is sm_{major}{minor}"
            ));
        }
        let layout = match (a.scheme(), b.scheme()) {
            pair if pair == (vec, blk) => Sm90Scales::Blocks,
            pair if *swiglu && pair == (row, row) => Sm90Scales::Outer { each: [true; 2] },
            pair if *swiglu && pair == (tensor, tensor) => Sm90Scales::Outer { each: [false; 2] },
            _ => {
                let others = if *swiglu { format!(", of {row} or of {tensor} on both sides") } else { String::new() };
                return refuse(format!("a product with {after} in its kernel is of {vec} and {blk}{others}"));
            }
        };
        pair::check_basis(a.basis(), b.basis())?;
        Ok(layout)
    }

    /// Refuses operands that do not fit together.
    fn check_shapes(&self, handle: &Handle) -> Result<()> {
        let Self { a, b, swiglu, .. } = self;
        let vec = Scheme::Fp8Group1x128(Fp8Format::E4M3);
        let [m, n, k] = self.mnk();
        if k == 0 || !k.is_multiple_of(16) {
            let rule = "must be a multiple of 16 above 0";
            return Err(Error::shape("k", k.to_string(), rule, "pad the columns of A and B with zeros"));
        }
        if let Some(config) = self.config
            && !(if *swiglu { config.swiglu_tile().is_some() } else { config.stores_codes() })
        {
            return Err(config.casts_nothing());
        }
        if !n.is_multiple_of(16) {
            let rule = "must be a multiple of 16: so many codes are stored at once";
            return Err(Error::shape(
                "columns of D",
                n.to_string(),
                rule,
                "pad the rows of B with zeros, and D's columns",
            ));
        }
        let groups = self.groups.as_ref().map(|(count, rows)| (*count, rows.slot_rows()));
        // With SwiGLU there is none, as is said below.
        let bias = self.bias.as_ref().filter(|_| !swiglu).map(|bias| (bias.dtype(), bias.len()));
        let (of_a, b) = ([a.rows(), k], [b.rows(), b.cols()]);
        Fit { a: of_a, b, d: [m, n], groups, matrices: self.matrices(), bias }.check()?;
        match &self.d {
            FusedOut::Plain(d) => check_numbers(d.dtype(), "store one of them, or pass a QuantMatrix")?,
            FusedOut::Quantized(d) => {
                self.recipe.check()?;
                if self.recipe.scheme() != vec {
                    return Err(Error::unsupported(
                        format!("a recipe of {} for D", self.recipe.scheme()),
                        format!("the kernel stores {vec}"),
                        "pass a recipe of Fp8Granularity::Group1x128 and E4M3",
                    ));
                }
                if d.scheme() != vec {
                    let found = format!("{m} x {n} {}", d.scheme());
                    return Err(Error::shape(
                        "D",
                        found,
                        format!("must be {vec}"),
                        "allocate it with QuantMatrix::zeros",
                    ));
                }
                handle.check_basis(Basis::Plain, d)?;
            }
        }
        if self.swiglu && (self.bias.is_some() || self.activation != Activation::None) {
            return Err(Error::unsupported(
                "a bias or an activation with SwiGLU",
                "the kernel computes SwiGLU of the two products alone",
                "store the products, and apply them in calls of their own",
            ));
        }
        Ok(())
    }

    /// Rows of a group, or all.
    fn usual_rows(&self) -> usize {
        let [m, ..] = self.mnk();
        let rows = self.groups.as_ref().map_or(m, |(groups, rows)| rows.expected(*groups, m));
        self.expected_rows.unwrap_or(rows).clamp(1, m.max(1))
    }

    /// The configuration asked for, or the one that should be fastest.
    fn chosen(&self, sm_count: usize) -> Sm90Config {
        let [_, n, k] = self.mnk();
        let groups = self.groups.as_ref().map_or(1, |(groups, _)| *groups);
        let mnk = [self.usual_rows(), n, k];
        self.config.unwrap_or_else(|| sm90_rules::cast_order(self.swiglu, groups, mnk, sm_count)[0])
    }

    /// Which kernel computes it, what it costs in memory, and why.
    ///
    /// # Errors
    /// As [`Handle::fused_gemm`], but for what memory itself is asked: lengths of counts and starts, alignment and row stride of D, overlap.
    pub fn explain(&self, handle: &Handle) -> Result<String> {
        let way = self.way(handle)?;
        let [m, n, k] = self.mnk();
        let of = self.groups.as_ref().map_or(String::new(), |(groups, _)| format!("{groups} groups, "));
        let what = if self.swiglu { "SwiGLU of two products" } else { "a product" };
        let to = match &self.d {
            FusedOut::Plain(d) => d.dtype().to_string(),
            FusedOut::Quantized(d) => d.scheme().to_string(),
        };
        // Of few rows codes are the quantizer's.
        let few = |config: String| match &self.d {
            FusedOut::Plain(_) => (format!("one launch of small-m, {config}"), 0),
            FusedOut::Quantized(_) => {
                (format!("two launches: small-m, {config}, and the quantizer behind it"), self.hidden_bytes())
            }
        };
        let ((launches, scratch), because) = match way {
            Way::Sm90(..) => (
                (format!("one launch of {}", self.chosen(handle.device().sm_count as usize)), 0),
                "our kernels for sm_90 serve this pair",
            ),
            Way::Sm90InSteps(.., config) => (
                (format!("two launches: {config} for both products, and a pass over them"), self.both_bytes()),
                "its tiles fill the GPU better than those of one kernel, and the bits are the same",
            ),
            Way::SmallM(_, config) => {
                (few(config.to_string()), "of few rows one pass over both matrices is the fastest")
            }
            Way::FewRows(_, gated) => {
                let of_products = few::FewWay::Gated(gated).scratch_bytes([m, n, k]);
                let launches = match gated {
                    few::Gated::Tiles(config) => {
                        let (launches, of_results) = few(config.to_string());
                        (launches, of_products + of_results)
                    }
                    few::Gated::ThenPass(_, how, _) => {
                        let launches = match how {
                            None | Some(How::OneRow) => "two",
                            Some(How::Warpgroups(Meeting::Cluster)) => "three",
                            Some(How::Warpgroups(Meeting::Memory)) => "four",
                        };
                        (format!("{launches} launches: small-m, {gated}"), of_products)
                    }
                };
                (launches, "A is plain: weights are decoded")
            }
        };
        let scratch = if scratch > 0 { format!("{scratch} bytes of") } else { "no".to_string() };
        Ok(format!(
            "{of}m = {m}, n = {n}, k = {k}: {what} to {to}\n  {launches}; {scratch} scratch memory\n  because {because}"
        ))
    }
}

impl Handle {
    /// A product and what follows it, in one launch, or two where that is faster ([`FusedGemmArgs::explain`]): [`FusedGemmArgs::swiglu`], [`FusedGemmArgs::swiglu_weight_only`] and [`FusedGemmArgs::quantized`]. The pass between the products of an MLP,
    /// which reads and writes its hidden layer in memory, is gone. Codes cost nothing beside the product at most sizes. SwiGLU is faster than the planned product and a pass up to 16 rows, and 32 of a narrow layer, where
    /// `small-m` reads both matrices side by side (to codes with the quantizer behind it), from about 1024 rows on, and for 32 rows and more of a very wide layer. In between tiles of twice the columns fill the GPU
    /// worse: there it takes two steps of `sm90`, or is up to 1.3 times as slow as what the library plans for the product (docs/performance.md).
    /// Few rows go through `small-m` for `fp8-1x128` x `fp8-128x128` alone: scales of rows and whole matrices take the kernel of `sm90` or two steps at any m, where few rows were not measured.
    /// To decode such layers, compare [`Handle::scaled_gemm`] and a [`SwigluSource`](crate::SwigluSource) behind it.
    ///
    /// A row of D has the same bits whichever rows stand beside it, and in groups, from 33 rows on and with [`FusedGemmArgs::batch_invariant`] whatever m is. D must not overlap A, B, a bias, and where groups lie, nor its codes its scales. What is derived of a
    /// quantized D follows it ([`QuantMatrix::write_parts`]); its padding is left as it is: zero, as in every matrix.
    ///
    /// Once its kernels are loaded (by the first call, or [`Handle::load_kernels`] of [`KernelFamily::Sm90`], [`KernelFamily::SmallM`] for few rows and two steps, with
    /// [`KernelFamily::Fp8`] where few become codes, of a plain A too, [`KernelFamily::SmallMGroups`] and [`KernelFamily::SmallMWeights`] for a plain A) it allocates nothing but, at most once, scratch memory where [`FusedGemmArgs::explain`] names some, and waits for nothing:
    /// safe inside graph capture. Where it does, call it once with these shapes and expected rows before a capture: scratch memory is reserved then, and refused in a capture.
    /// Groups may have other places and counts at each launch.
    ///
    /// ```no_run
    /// # use scaled_gemm::{FusedGemmArgs, Fp8Format, Handle, MatMut, QuantMatrix, Result, Scheme};
    /// fn mlp(handle: &Handle, x: &QuantMatrix, gate_up: &QuantMatrix, down: &QuantMatrix, y: MatMut<'_>) -> Result<()> {
    ///     let vec = Scheme::Fp8Group1x128(Fp8Format::E4M3);
    ///     let mut hidden = QuantMatrix::zeros(handle, vec, x.rows(), gate_up.rows() / 2)?;
    ///     handle.fused_gemm(FusedGemmArgs::swiglu(x, gate_up, &mut hidden))?;
    ///     handle.scaled_gemm(scaled_gemm::GemmArgs::new(&hidden, down, y))
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::Pair`] for other schemes and GPUs; [`Error::Shape`], [`Error::DType`], [`Error::Alignment`] for what does not fit together;
    /// [`Error::Unsupported`] for other recipes and configurations, operands of two bases or of another GPU, and in a capture for kernels that are not loaded,
    /// borrowed memory, and scratch memory that no call before has reserved; [`Error::Kernel`] and [`Error::Library`] if they cannot be loaded; [`Error::Driver`] if the launch fails.
    pub fn fused_gemm(&self, mut args: FusedGemmArgs<'_>) -> Result<()> {
        let (a, layout) = match args.way(self)? {
            Way::Sm90(a, layout) => (a, layout),
            Way::Sm90InSteps(a, layout, config) => return args.multiply_in_steps(self, a, layout, config),
            Way::SmallM(a, config) => return args.multiply_codes(self, a, config),
            Way::FewRows(weights, config) => return args.multiply_plain(self, weights, config),
        };
        let config = args.chosen(self.device().sm_count as usize);
        let [m, n, k] = args.mnk();
        let (queue, kernels) = (self.queue(), self.kernels());
        kernels.load(queue, KernelFamily::Sm90)?;
        let _turn = queue.turn();
        let FusedGemmArgs { b, d, swiglu, groups, alpha, bias, activation, recipe, .. } = &mut args;
        {
            let order = queue.order();
            let (a, b) = (a.read(&order)?, b.read(&order)?);
            let bias = bias.as_ref().map(|v| Ok::<_, Error>((v.data().at(&order)?, v.dtype()))).transpose()?;
            let (plain, codes);
            let (d, d_stride, d_type, scales) = match d {
                FusedOut::Plain(d) => {
                    let (stride, dtype) = (d.row_stride(), d.dtype());
                    let bytes = d.extent_bytes();
                    plain = d.data_mut().at(&order)?.slice(0, bytes);
                    (&plain, stride, dtype, None)
                }
                FusedOut::Quantized(d) => {
                    codes = d.write(&order)?;
                    check_parts_apart(&codes)?;
                    (&codes.codes, n, DType::E4M3, Some(Sm90Codes { scales: &codes.scales, recipe: *recipe }))
                }
            };
            let written = [Some(d), scales.map(|codes| codes.scales)];
            let written = || written.into_iter().flatten();
            written().try_for_each(|d| check_operands_apart(&a, &b, d))?;
            bias.iter().try_for_each(|(bias, _)| written().try_for_each(|d| check_apart("a bias", &[bias], d)))?;
            let end = match scales {
                codes if *swiglu => Sm90End::Swiglu(codes),
                Some(codes) => Sm90End::Codes(codes),
                None => Sm90End::Numbers,
            };
            let launch = |groups: Option<Sm90Groups<'_>>| {
                let call = Sm90Call {
                    config,
                    stand_in: None,
                    formats: [Fp8Format::E4M3; 2],
                    m,
                    n,
                    k,
                    a: Sm90Operand { codes: &a.codes, scales: &a.scales },
                    b: Sm90Operand { codes: &b.codes, scales: &b.scales },
                    layout,
                    d,
                    d_stride,
                    d_type,
                    alpha: *alpha,
                    beta: 0.0,
                    bias: bias.as_ref().map(|(span, dtype)| (span, *dtype)),
                    activation: *activation,
                    residual: None,
                    groups,
                    end,
                };
                self.sm90_product(&call)
            };
            match groups {
                None => launch(None)?,
                Some((groups, rows)) => rows.with_places(*groups, &order, |places| {
                    written().try_for_each(|d| check_places_apart(&places, d))?;
                    launch(Some(places.into()))
                })?,
            }
        }
        if let FusedOut::Quantized(d) = &mut args.d {
            d.set_basis(Basis::Plain);
            d.derive_again(self)?;
        }
        Ok(())
    }
}
