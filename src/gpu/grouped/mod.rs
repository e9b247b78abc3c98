//! [`Handle::grouped_gemm`]: products of groups of rows, each with a matrix of its own: the experts of a layer.
//!
//! One launch of our kernels for sm_90, which read on the device where groups lie: of FP8 operands those of `sm90`, of plain rows those that decode weights
//! (`few`), behind one that dequantizes rows with block scales. Of other pairs, and on other GPUs, one product a slot (`slots`). `weight`: gradients of the matrices, one product a group, or in one launch of all (`whole`). `between`: what lies between groups becomes zeros. `fit`: what operands must have in
//! common.

mod between;
pub(crate) mod few;
pub(crate) mod fit;
mod slots;
mod weight;
mod whole;

pub use weight::GroupedWeightGradient;

use crate::epilogue::Activation;
use crate::error::{Error, Result};
use crate::format::{DType, Fp8Format, Operand, pair};
use crate::gpu::device::memory::{DeviceBytes, DeviceBytesMut};
use crate::gpu::device::stream::Order;
use crate::gpu::gemm::available::HOPPER;
use crate::gpu::gemm::our_pairs::grouped_scales;
use crate::gpu::gemm::sm90_rules;
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{
    GroupPlaces, KernelFamily, Sm90Along, Sm90Call, Sm90Config, Sm90End, Sm90Groups, Sm90Maps, Sm90Operand, Sm90Scales,
    SmallMGroupsConfig, SmallMWeights,
};
use crate::gpu::lt::quirks::why_not_grouped;
use crate::gpu::matrix::{MatMut, MatRef, QuantMatrix, VecRef};
use fit::{Fit, check_apart, check_numbers, check_places_apart};

/// Where the rows of groups lie in A and D, which have the same rows. All numbers are signed 64-bit integers (`i64`) in device memory, at least
/// as many of each kind as there are groups, which each launch reads anew; nobody reads them back. They must not change while a launch runs, which the order of streams sees to but for memory that was passed
/// by its address: its blocks read them more than once, and might wait for each other without end. In one launch
/// ([`GroupedGemmArgs::explain`]) rows of D of no group are not written, and what rows of A of no group hold does not matter.
///
/// Counts are clamped: a group has no more rows than lie there, and none where its count is negative; no two groups share a row.
/// [`GroupedGemmArgs::clamped`] tells how many were not taken as they say.
pub enum GroupedRows<'a> {
    /// One behind the other, with gaps: group g has `counts[g]` rows from `starts[g]` on, up to `starts[g + 1]` at the most, the last
    /// group up to the end of A. Starts do not decrease, those of
    /// empty groups neither: a group that starts before an earlier one, outside of A, or at no multiple of 4, is left out, and so is one whose
    /// next starts before it. Casts begin groups at multiples of 128.
    Contiguous {
        /// First row of each group, in 64 bits.
        starts: DeviceBytes<'a>,
        /// Rows of each group, in 64 bits.
        counts: DeviceBytes<'a>,
    },
    /// In slots of equal length: group g has the first `counts[g]` rows from `g * slot_rows` on, and no more than `slot_rows`. Where one product is
    /// made for each slot ([`GroupedGemmArgs::explain`]) counts are not read, and the rows of D behind them hold what A's rows there give.
    Masked {
        /// Rows of a slot: a multiple of 4, or of 128 where one product is made for each.
        slot_rows: usize,
        /// Rows of each group, in 64 bits.
        counts: DeviceBytes<'a>,
    },
}

impl GroupedRows<'_> {
    /// With the places of so many groups on the stream.
    pub(crate) fn with_places<'q, T>(
        &'q self,
        groups: usize,
        order: &Order<'q>,
        then: impl FnOnce(GroupPlaces<'_>) -> Result<T>,
    ) -> Result<T> {
        let (Self::Contiguous { counts, .. } | Self::Masked { counts, .. }) = self;
        let counts = counts.at(order)?;
        match self {
            Self::Contiguous { starts, .. } => {
                let starts = starts.at(order)?;
                then(GroupPlaces { groups, starts: Some(&starts), slot_rows: 0, counts: &counts })
            }
            Self::Masked { slot_rows, .. } => {
                then(GroupPlaces { groups, starts: None, slot_rows: *slot_rows, counts: &counts })
            }
        }
    }
}

impl GroupedRows<'_> {
    /// Refuses slots that so many rows of A do not hold.
    pub(crate) fn check_slots(&self, groups: usize, rows: usize) -> Result<()> {
        match self {
            Self::Masked { slot_rows, .. } => Sm90Along::Rows.check_slots(rows, groups, *slot_rows),
            Self::Contiguous { .. } => Ok(()),
        }
    }

    /// How many rows a group has, as far as the host knows: all that a slot holds, or an equal share.
    pub(crate) fn expected(&self, groups: usize, rows: usize) -> usize {
        match self {
            Self::Masked { slot_rows, .. } => *slot_rows,
            Self::Contiguous { .. } => rows.div_ceil(groups.max(1)),
        }
    }
}

/// A of a product of groups.
pub(crate) enum GroupedA<'a> {
    Quantized(&'a QuantMatrix),
    Plain(MatRef<'a>),
}

impl GroupedA<'_> {
    pub(crate) fn rows(&self) -> usize {
        match self {
            Self::Quantized(a) => a.rows(),
            Self::Plain(a) => a.rows(),
        }
    }

    pub(crate) fn cols(&self) -> usize {
        match self {
            Self::Quantized(a) => a.cols(),
            Self::Plain(a) => a.cols(),
        }
    }

    pub(crate) fn operand(&self) -> Operand {
        match self {
            Self::Quantized(a) => a.scheme().into(),
            Self::Plain(a) => Operand::Plain(a.dtype()),
        }
    }
}

/// The operands of one grouped product `D_g = activation(alpha * A_g B_gᵀ + bias_g)`, sums in FP32, each step rounded to FP32 as
/// [`Epilogue`](crate::Epilogue) says.
pub struct GroupedGemmArgs<'a> {
    a: GroupedA<'a>,
    b: &'a QuantMatrix,
    groups: usize,
    rows: GroupedRows<'a>,
    d: MatMut<'a>,
    alpha: f32,
    bias: Option<VecRef<'a>>,
    activation: Activation,
    expected_rows: Option<usize>,
    config: Option<Sm90Config>,
    clamped: Option<DeviceBytesMut<'a>>,
    scales: [Option<DeviceBytes<'a>>; 2],
}

impl<'a> GroupedGemmArgs<'a> {
    /// A: the rows of all groups, k columns, `fp8-1x128:e4m3` where B is `fp8-128x128:e4m3`, else `fp8-row:e4m3` or `fp8-tensor:e4m3`, as B is. B: `groups * n`
    /// rows, those of group 0 first; n a multiple of 128. Of `fp8-tensor` one scale is that of all groups, or each has its own ([`GroupedGemmArgs::scales_of_a`], [`GroupedGemmArgs::scales_of_b`]). D: BF16, F16 or F32, A's rows by n, apart
    /// from all that is read.
    ///
    /// On sm_90 also both with block scales, MXFP8, MXFP4 and NVFP4, but for a B in E5M2: a launch dequantizes all rows of A into scratch memory, and one multiplies the groups as
    /// [`GroupedGemmArgs::weight_only`] does (in slots up to 128 [usual](Self::expected_rows) rows). In slots any other pair that [`Handle::scaled_gemm`] multiplies, but for an A with 1x128 scales: E5M2, and block scales on other GPUs.
    pub fn new(a: &'a QuantMatrix, b: &'a QuantMatrix, groups: usize, rows: GroupedRows<'a>, d: MatMut<'a>) -> Self {
        Self::of(GroupedA::Quantized(a), b, groups, rows, d)
    }

    /// The same with plain activations, as [`GemmArgs::weight_only`](crate::GemmArgs::weight_only). A: BF16 or F16, its rows any
    /// multiple of 16 bytes apart. B: NVFP4 and FP8 in E4M3, for a BF16 A also MXFP4 and MXFP8 in E4M3; `groups * n` rows, n a multiple of 128; one second-level
    /// scale of `nvfp4` is that of all groups, `nvfp4-row` has one for each row. k a multiple of 16, of 32 with E2M1 codes. On sm_90, in one launch, with groups as many as there are: matrices of groups
    /// without rows are not read. Made for decode, where a group has few rows, it takes any number: 32 of a group, or 64 where it usually has more than 96, are multiplied by one pass over
    /// its matrix, and as many passes are made as it takes, most of them from L2; each row has the same bits whatever [`GroupedGemmArgs::expected_rows`] says. With hundreds of rows of each group it is up to
    /// three times as slow as products one by one, whose counts the host must know, of weights that are dequantized once (docs/performance.md).
    ///
    /// ```no_run
    /// # use scaled_gemm::{DType, GroupedGemmArgs, GroupedRows, Handle, MatMut, MatRef, QuantMatrix, Result};
    /// # use scaled_gemm::DeviceBuffer;
    /// # fn decode(handle: &Handle, x: MatRef<'_>, nvfp4: &QuantMatrix, counts: &DeviceBuffer, d: &mut DeviceBuffer) -> Result<()> {
    /// // 256 experts of 2048 x 7168 weights, at most four tokens of each in a slot of its own.
    /// let rows = GroupedRows::Masked { slot_rows: 4, counts: counts.view() };
    /// let d = MatMut::new(d, DType::Bf16, 256 * 4, 2048)?;
    /// handle.grouped_gemm(GroupedGemmArgs::weight_only(x, nvfp4, 256, rows, d))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn weight_only(a: MatRef<'a>, b: &'a QuantMatrix, groups: usize, rows: GroupedRows<'a>, d: MatMut<'a>) -> Self {
        Self::of(GroupedA::Plain(a), b, groups, rows, d)
    }

    fn of(a: GroupedA<'a>, b: &'a QuantMatrix, groups: usize, rows: GroupedRows<'a>, d: MatMut<'a>) -> Self {
        let (bias, activation) = (None, Activation::None);
        let (scales, clamped) = ([None, None], None);
        Self { a, b, groups, rows, d, alpha: 1.0, bias, activation, expected_rows: None, config: None, clamped, scales }
    }

    /// Multiplies the products by `alpha` (a host number: a captured graph keeps the value it was captured with).
    pub fn alpha(self, alpha: f32) -> Self {
        Self { alpha, ..self }
    }

    /// Adds a bias for each column of each group: BF16, F16 or F32, `groups * n` numbers, those of group 0 first.
    pub fn bias(self, bias: VecRef<'a>) -> Self {
        Self { bias: Some(bias), ..self }
    }

    /// Applies an activation after the bias.
    pub fn activation(self, activation: Activation) -> Self {
        Self { activation, ..self }
    }

    /// A scale for each group in the place of the one of an `fp8-tensor` A: FP32, as many as groups, 4-byte aligned; of one launch alone. What it holds when the
    /// product runs is what counts.
    pub fn scales_of_a(self, scales: DeviceBytes<'a>) -> Self {
        let [_, b] = self.scales;
        Self { scales: [Some(scales), b], ..self }
    }

    /// The same of an `fp8-tensor` B: experts that were quantized each by itself, whose codes lie one behind the other.
    pub fn scales_of_b(self, scales: DeviceBytes<'a>) -> Self {
        let [a, _] = self.scales;
        Self { scales: [a, Some(scales)], ..self }
    }

    /// How many rows a group usually has, which decides the configuration and nothing else, but for slots of rows with block scales: those of up to 128 usual rows are multiplied
    /// in one launch, others are one product a slot. Unless told, all that a slot holds, or an equal share of A's rows.
    pub fn expected_rows(self, rows: usize) -> Self {
        Self { expected_rows: Some(rows), ..self }
    }

    /// This configuration of `sm90` and no other, of those whose [`Sm90Config::k_parts`] is 1; others are refused. Results are the same in every bit. Only for operands that `sm90` multiplies: not of a
    /// plain A, nor of block scales.
    pub fn config(self, config: Sm90Config) -> Self {
        Self { config: Some(config), ..self }
    }

    /// `clamped`, 4 bytes of device memory, receives how many groups were not taken as their numbers say, as a `u32`: a count below 0, or above the rows that
    /// lie there; rows that begin outside of A, before an earlier group, or at no multiple of 4; groups without rows count as taken. Of slots that are one product each, too, whose
    /// counts nobody else reads. What it held is overwritten, by a launch of its own behind the product. 4-byte aligned.
    pub fn clamped(self, clamped: DeviceBytesMut<'a>) -> Self {
        Self { clamped: Some(clamped), ..self }
    }

    /// Which way the products go, of operands that fit together.
    fn way(&self, handle: &Handle) -> Result<Way<'a>> {
        let Self { a, b, .. } = self;
        let a = match a {
            GroupedA::Quantized(a) => *a,
            GroupedA::Plain(a) => {
                let weights = few::served(handle, a, b)?;
                if self.config.is_some() {
                    return Err(Error::unsupported(
                        "a configuration of sm90 for a plain A",
                        "other kernels multiply it",
                        "leave it out",
                    ));
                }
                self.check_scales(false)?;
                self.check()?;
                return Ok(Way::FewRows(weights, few::config(weights, self.usual_rows(), a.cols())?, a.dtype()));
            }
        };
        a.check_published("A of a grouped product")?;
        pair::check_basis(a.basis(), b.basis())?;
        let (major, minor) = handle.device().compute_capability;
        let reason = match grouped_scales(a.scheme(), b.scheme()) {
            Ok(scales) if (major, minor) == HOPPER => {
                self.check_scales(scales == Sm90Scales::Outer { each: [false; 2] })?;
                self.config.map_or(Ok(()), Sm90Config::check_groups)?;
                self.check()?;
                return Ok(Way::Launch(a, scales));
            }
            Ok(_) => format!("the grouped product is for sm_90, and this GPU is sm_{major}{minor}"),
            Err(reason) => format!("the grouped product is ours for sm_90: {reason}"),
        };
        self.check_scales(false)?;
        // A pair that nobody multiplies has a reason of its own.
        let device = handle.device().to_string();
        pair::check_pair(a.scheme(), b.scheme(), &device)?;
        if self.config.is_some() {
            return Err(Error::unsupported(
                format!("a configuration of sm90 for groups of {} x {}", a.scheme(), b.scheme()),
                reason,
                "leave it out",
            ));
        }
        let in_slots = slots::why_not(self, a);
        if let Some((weights, dtype)) = few::served_quantized(handle, a.scheme(), b, self.d.dtype())
            && (in_slots.is_some() || self.usual_rows() <= MOST_DECODED_ROWS)
        {
            self.check()?;
            return Ok(Way::FewRows(weights, few::config(weights, self.usual_rows(), a.cols())?, dtype));
        }
        match in_slots {
            None => {
                self.check()?;
                Ok(Way::Slots(a, reason))
            }
            Some(why) => Err(Error::Pair {
                a: Operand::Quantized(a.scheme()),
                b: b.scheme(),
                device,
                reason: format!("{reason}; {why}"),
                remedy: "multiply the groups one by one with Handle::scaled_gemm, of a pair that Handle::supports offers on this GPU".to_string(),
            }),
        }
    }

    /// Refuses scales of groups, unless the way of the product reads them.
    fn check_scales(&self, are_read: bool) -> Result<()> {
        if are_read || self.scales.iter().all(Option::is_none) {
            return Ok(());
        }
        Err(Error::unsupported(
            format!("a scale for each group of {} x {}", self.a.operand(), self.b.scheme()),
            "the kernels for sm_90 read it of fp8-tensor:e4m3 operands, in one launch of all groups",
            "pass operands of fp8-row, each of whose rows has the scale of its group",
        ))
    }

    /// Refuses operands that do not fit together.
    fn check(&self) -> Result<()> {
        let Self { a, b, groups, rows, d, bias, .. } = self;
        let (of_a, of_d) = ([a.rows(), a.cols()], [d.rows(), d.cols()]);
        let groups = Some((*groups, rows));
        Fit { a: of_a, b, d: of_d, groups, matrices: 1, bias: bias.as_ref() }.check()?;
        check_numbers(d, "store one of them")
    }

    fn count_clamped(&mut self, handle: &Handle) -> Result<()> {
        let Self { a, groups, rows, clamped, .. } = self;
        count_clamped(handle, (*groups, rows), (Sm90Along::Rows, a.rows()), clamped.as_mut())
    }

    /// Rows of a group.
    fn usual_rows(&self) -> usize {
        let expected = self.expected_rows.unwrap_or_else(|| self.rows.expected(self.groups, self.a.rows()));
        expected.clamp(1, self.a.rows().max(1))
    }

    /// The configuration asked for, or the one that should be fastest.
    fn chosen(&self, sm_count: usize) -> Sm90Config {
        let mnk = [self.usual_rows(), self.d.cols(), self.a.cols()];
        self.config.unwrap_or_else(|| sm90_rules::order(self.groups, mnk, sm_count)[0])
    }
}

/// Of rows with block scales in slots: up to so many of a group one launch that decodes weights is faster than a product a slot, which reads and writes them as numbers (H200, 2026-11, the
/// record of prefill, 8 groups of BF16 rows x 4096 x 7168 `nvfp4-row`: 347 us for 354 at 128 rows each, 664 for 415 at 256).
const MOST_DECODED_ROWS: usize = 128;

/// How groups are multiplied.
enum Way<'a> {
    /// One launch of our kernels for sm_90, which read scales so.
    Launch(&'a QuantMatrix, Sm90Scales),
    /// One launch of those that decode such weights, with rows of this type, as which those of a quantized A are dequantized before.
    FewRows(SmallMWeights, SmallMGroupsConfig, DType),
    /// One product a slot, and why not the other.
    Slots(&'a QuantMatrix, String),
}

impl GroupedGemmArgs<'_> {
    /// Which way the products go, what it costs in memory, and why.
    ///
    /// # Errors
    /// As [`Handle::grouped_gemm`].
    pub fn explain(&mut self, handle: &Handle) -> Result<String> {
        let (groups, n, k) = (self.groups, self.d.cols(), self.a.cols());
        let what = format!("{groups} groups of {} x {}, n = {n}, k = {k}", self.a.operand(), self.b.scheme());
        match self.way(handle)? {
            Way::Launch(..) => Ok(format!(
                "{what}\n  one launch of {}, by groups that the device knows; no scratch memory; empty groups take no time\n  because our kernels for sm_90 serve this pair",
                self.chosen(handle.device().sm_count as usize)
            )),
            Way::FewRows(_, config, dtype) => {
                let (before, because) = match rows_of_a(&self.a, dtype) {
                    few::RowsOfA::Plain(_) => ("no scratch memory".to_string(), "A is plain: weights are decoded"),
                    rows => (
                        format!(
                            "behind a launch that dequantizes all of A to {dtype}, {} bytes of scratch memory",
                            rows.scratch_bytes()
                        ),
                        "both sides have block scales, which this GPU's tensor cores do not read: weights are decoded",
                    ),
                };
                Ok(format!(
                    "{what}\n  one launch of small-m, {config}, by groups that the device knows; {before}; matrices of groups without rows are not read\n  because {because}"
                ))
            }
            Way::Slots(a, reason) => Ok(format!(
                "{what}\n  one product a slot, {groups} of them one after the other on the handle's stream, each of all rows of a slot: counts are not read, empty groups take as long\n  because {reason}; {}\n{}",
                why_not_grouped(handle.lt().version()),
                slots::explain(handle, self, a)?
            )),
        }
    }
}

impl Handle {
    /// `D_g = activation(alpha * A_g B_gᵀ + bias_g)` for every group g, in one launch where our kernels for sm_90 serve the pair: then rows of D that belong to
    /// no group are not touched, and equal rows have equal results, whatever else is multiplied. D must not overlap what is read. Of block scales on both sides a launch that dequantizes A goes before. Other pairs, in slots, take one product a slot
    /// ([`GroupedGemmArgs::explain`], which also says why they are not cuBLASLt's own grouped products).
    ///
    /// The gradient of the input is such a product, too: A is dY, and B the transposes of the matrices, `groups * k` rows.
    /// [`GroupedWeightGradient`] is that of the matrices.
    ///
    /// Once its kernels are loaded (by the first call, or [`Handle::load_kernels`] of [`KernelFamily::Sm90`], or [`KernelFamily::SmallMGroups`] for a plain A or one with block scales, and [`KernelFamily::Grouped`] where
    /// [`GroupedGemmArgs::clamped`] is given) one launch allocates nothing and waits for nothing: then it is safe inside graph capture. Groups may have other places and
    /// counts at each launch. The first call with an A that is dequantized may allocate scratch memory
    /// and load its scheme's family, and products of slots are planned at theirs, as those of [`Handle::scaled_gemm`] are: call it once before a capture, with the same operands' shapes.
    ///
    /// ```no_run
    /// # use scaled_gemm::{DType, GroupedGemmArgs, GroupedRows, Handle, MatMut, MatRef, Recipe, Result, Scheme};
    /// # use scaled_gemm::{DeviceBuffer, Fp8Format};
    /// # fn experts(handle: &Handle, x: &MatRef<'_>, weights: &MatRef<'_>, d: &mut DeviceBuffer) -> Result<()> {
    /// // Two experts of 256 x 512 weights, rows upon rows; 100 tokens of the one from row 0 on, 30 of the other from row 128 on.
    /// let a = handle.quantize(x, Recipe::new(Scheme::Fp8Group1x128(Fp8Format::E4M3)))?; // 256 x 512
    /// let b = handle.quantize(weights, Recipe::new(Scheme::Fp8Group128x128(Fp8Format::E4M3)))?; // 512 x 512
    /// let (starts, counts) = (handle.upload(&[0i64, 128])?, handle.upload(&[100i64, 30])?);
    /// let rows = GroupedRows::Contiguous { starts: starts.view(), counts: counts.view() };
    /// handle.grouped_gemm(GroupedGemmArgs::new(&a, &b, 2, rows, MatMut::new(d, DType::Bf16, 256, 256)?))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Pair`] for pairs that neither way takes on this GPU; [`Error::Shape`], [`Error::DType`], [`Error::Alignment`] for what does not fit together;
    /// [`Error::Unsupported`] for operands of two bases or of another GPU, and in a capture for kernels that are not loaded and borrowed memory;
    /// [`Error::Kernel`] and [`Error::Library`] if they cannot be loaded; [`Error::Driver`] if the launch fails.
    pub fn grouped_gemm(&self, mut args: GroupedGemmArgs<'_>) -> Result<()> {
        let way = args.way(self)?;
        let (queue, kernels) = (self.queue(), self.kernels());
        check_clamped(self, args.clamped.as_mut())?;
        let (a, layout) = match way {
            Way::Launch(a, scales) => (a, scales),
            Way::FewRows(weights, config, dtype) => {
                self.multiply_few_rows(&mut args, weights, config, dtype)?;
                return args.count_clamped(self);
            }
            Way::Slots(a, _) => {
                slots::multiply(self, &mut args, a)?;
                return args.count_clamped(self);
            }
        };
        let config = args.chosen(self.device().sm_count as usize);
        let GroupedGemmArgs { b, groups, rows, d, alpha, bias, activation, scales, .. } = &mut args;
        let (m, n, k, d_stride, d_type) = (a.rows(), d.cols(), a.cols(), d.row_stride(), d.dtype());
        let d_bytes = d.extent_bytes();
        kernels.load(queue, KernelFamily::Sm90)?;
        let order = queue.order();
        let (a, b) = (a.read(&order)?, b.read(&order)?);
        let d = d.data_mut().at(&order)?.slice(0, d_bytes);
        let bias = bias.as_ref().map(|v| Ok::<_, Error>((v.data().at(&order)?, v.dtype()))).transpose()?;
        let of_groups = scales.each_ref().map(Option::is_some);
        let [scales_a, scales_b] =
            scales.each_ref().map(|scales| scales.as_ref().map(|scales| scales.at(&order)).transpose());
        let (scales_a, scales_b) = (scales_a?, scales_b?);
        check_apart("A", &a.all(), &d)?;
        check_apart("B", &b.all(), &d)?;
        let vectors = [bias.as_ref().map(|(span, _)| span), scales_a.as_ref(), scales_b.as_ref()];
        vectors.into_iter().flatten().try_for_each(|read| check_apart("a bias or scales", &[read], &d))?;
        rows.with_places(*groups, &order, |places| {
            check_places_apart(&places, &d)?;
            let call = Sm90Call {
                config,
                formats: [Fp8Format::E4M3; 2],
                m,
                n,
                k,
                a: Sm90Operand { codes: &a.codes, scales: scales_a.as_ref().unwrap_or(&a.scales) },
                b: Sm90Operand { codes: &b.codes, scales: scales_b.as_ref().unwrap_or(&b.scales) },
                layout,
                d: &d,
                d_stride,
                d_type,
                alpha: *alpha,
                beta: 0.0,
                bias: bias.as_ref().map(|(span, dtype)| (span, *dtype)),
                activation: *activation,
                residual: None,
                groups: Some(Sm90Groups { scales: of_groups, ..places.into() }),
                end: Sm90End::Numbers,
            };
            kernels.sm90_product(queue, &call, &mut Sm90Maps::default())
        })?;
        drop(order);
        args.count_clamped(self)
    }

    fn multiply_few_rows(
        &self,
        args: &mut GroupedGemmArgs<'_>,
        weights: SmallMWeights,
        config: SmallMGroupsConfig,
        dtype: DType,
    ) -> Result<()> {
        let GroupedGemmArgs { a, b, groups, rows, d, alpha, bias, activation, .. } = args;
        let a = rows_of_a(a, dtype);
        let (alpha, bias, activation, groups) = (*alpha, bias.as_ref(), *activation, Some((*groups, &*rows)));
        few::FewRows { weights, a, b, groups, d, alpha, bias, activation, way: few::FewWay::Plain(config) }
            .multiply(self)
    }
}

/// A for kernels that decode weights; a quantized one is dequantized as numbers of this type.
fn rows_of_a<'c, 'a>(a: &'c GroupedA<'a>, dtype: DType) -> few::RowsOfA<'c, 'a> {
    match a {
        GroupedA::Plain(a) => few::RowsOfA::Plain(a),
        GroupedA::Quantized(a) => few::RowsOfA::Quantized(a, dtype),
    }
}

/// Before a product: refuses memory that holds no count, and loads the kernel that counts.
fn check_clamped(handle: &Handle, clamped: Option<&mut DeviceBytesMut<'_>>) -> Result<()> {
    let Some(clamped) = clamped else { return Ok(()) };
    if clamped.len() < 4 {
        let found = format!("{} bytes", clamped.len());
        return Err(Error::shape("count of clamped groups", found, "must be 4", "pass memory of a u32"));
    }
    let order = handle.queue().order();
    let address = clamped.at(&order)?.address;
    drop(order);
    if !address.is_multiple_of(4) {
        return Err(Error::Alignment {
            operand: "count of clamped groups".to_string(),
            address,
            required: 4,
            remedy: "pass memory of a u32".to_string(),
        });
    }
    handle.kernels().load(handle.queue(), KernelFamily::Grouped)
}

/// Behind a product, so that one that is refused leaves no count: how many of these groups of so many rows, or numbers along k, it did not take as their
/// numbers say.
fn count_clamped(
    handle: &Handle,
    (groups, rows): (usize, &GroupedRows<'_>),
    held: (Sm90Along, usize),
    clamped: Option<&mut DeviceBytesMut<'_>>,
) -> Result<()> {
    let Some(clamped) = clamped else { return Ok(()) };
    let (queue, kernels) = (handle.queue(), handle.kernels());
    let order = queue.order();
    let clamped = clamped.at(&order)?;
    rows.with_places(groups, &order, |places| kernels.count_clamped_groups(queue, held, &places, &clamped))
}
