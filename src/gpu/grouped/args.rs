//! [`GroupedGemmArgs`]: the operands of a product of groups.

use super::fit::Fit;
use super::operand::check_members;
use super::{GroupedGemmDesc, GroupedOperand, GroupedRows};
use crate::epilogue::Activation;
use crate::error::Result;
use crate::format::{Basis, DType, Operand, pair};
use crate::gpu::device::memory::{DeviceBytes, DeviceBytesMut};
use crate::gpu::handle::Handle;
use crate::gpu::kernels::Sm90Config;
use crate::gpu::matrix::{GroupedMatrix, MatMut, MatRef, QuantMatrix, VecRef};

/// A of a product of groups.
pub(crate) enum GroupedA<'a> {
    Quantized(&'a QuantMatrix),
    Plain(MatRef<'a>),
}

impl<'a> GroupedA<'a> {
    pub(super) fn quantized(&self) -> Option<&'a QuantMatrix> {
        match self {
            Self::Quantized(a) => Some(a),
            Self::Plain(_) => None,
        }
    }

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

    /// Elements from one row to the next.
    fn row_stride(&self) -> usize {
        match self {
            Self::Quantized(a) => a.cols(),
            Self::Plain(a) => a.row_stride(),
        }
    }

    fn basis(&self) -> Basis {
        match self {
            Self::Quantized(a) => a.basis(),
            Self::Plain(_) => Basis::Plain,
        }
    }
}

/// The operands of one grouped product `D_g = activation(alpha * A_g B_gᵀ + bias_g)`, sums in FP32, each step rounded to FP32 as
/// [`Epilogue`](crate::Epilogue) says.
#[doc(alias = "GroupedLinear")]
#[doc(alias = "grouped_mm")]
pub struct GroupedGemmArgs<'a> {
    pub(super) a: GroupedA<'a>,
    pub(super) b: &'a QuantMatrix,
    pub(super) groups: usize,
    pub(super) rows: GroupedRows<'a>,
    pub(super) d: MatMut<'a>,
    pub(super) alpha: f32,
    pub(super) bias: Option<VecRef<'a>>,
    pub(super) activation: Activation,
    pub(super) expected_rows: Option<usize>,
    pub(super) config: Option<Sm90Config>,
    pub(super) a_product_a_slot: bool,
    pub(super) asks_cublaslt: bool,
    pub(super) streams: Option<usize>,
    pub(super) clamped: Option<DeviceBytesMut<'a>>,
    pub(super) scales: [Option<DeviceBytes<'a>>; 2],
    /// A and B where they are grouped tensors.
    pub(super) tensors: [Option<&'a GroupedMatrix<'a>>; 2],
}

impl<'a> GroupedGemmArgs<'a> {
    /// A: the rows of all groups, k columns, `fp8-1x128` where B is `fp8-128x128`, else `fp8-1x128`, `fp8-row` or `fp8-tensor`, as B is; E4M3, one of both also E5M2. B: `groups * n`
    /// rows, those of group 0 first; n a multiple of 128. Of `fp8-tensor` and `nvfp4` one scale is that of all groups, or each has its own ([`GroupedGemmArgs::scales_of_a`], [`GroupedGemmArgs::scales_of_b`]). D: BF16, F16 or F32, A's rows by n, apart
    /// from all that is read.
    ///
    /// On sm_90 also both with block scales, MXFP8, MXFP4 and NVFP4, but for a B in E5M2: a launch dequantizes all rows of A into scratch memory, and one multiplies the groups as
    /// [`GroupedGemmArgs::weight_only`] does (in slots up to 128 [usual](Self::expected_rows) rows). In slots any other pair that [`Handle::scaled_gemm`](crate::Handle::scaled_gemm) multiplies, but for 1x128 scales on either side: those of other GPUs, and a B in MXFP8 of E5M2 codes.
    ///
    /// Grouped tensors are such operands, too, with the scale of each member: tokens and matrices that were quantized on the device, in one buffer each
    /// ([`GroupedTensor::padded_rows`](crate::GroupedTensor::padded_rows), [`GroupedTensor::stacked`](crate::GroupedTensor::stacked)); `fp8-tensor` then.
    pub fn new(
        a: impl Into<GroupedOperand<'a>>,
        b: impl Into<GroupedOperand<'a>>,
        groups: usize,
        rows: GroupedRows<'a>,
        d: MatMut<'a>,
    ) -> Self {
        let (a, b) = (a.into(), b.into());
        let tensors = [a.grouped, b.grouped];
        let scales = tensors.map(|tensor| tensor?.scales());
        Self { scales, tensors, ..Self::of(GroupedA::Quantized(a.matrix), b.matrix, groups, rows, d) }
    }

    /// The same with plain activations, as [`GemmArgs::weight_only`](crate::GemmArgs::weight_only). A: BF16 or F16, its rows any
    /// multiple of 16 bytes apart. B: NVFP4 and FP8 in E4M3, for a BF16 A also MXFP4 and MXFP8 in E4M3; `groups * n` rows, n a multiple of 128; one second-level
    /// scale of `nvfp4`, or scale of `fp8-tensor`, is that of all groups, unless each has its own ([`GroupedGemmArgs::scales_of_b`]); `nvfp4-row` and `fp8-row` have one for each row. k a multiple of 16, of 32 with E2M1 codes. On sm_90, in one launch or two (below), with groups as many as there are: matrices of groups
    /// without rows are not read. Groups have any number of rows: 8 to 64 of a group, by how many it [usually](GroupedGemmArgs::expected_rows) has, are multiplied by one pass over
    /// its matrix, and as many passes are made as it takes, most of them from L2; each row has the same bits whatever [`GroupedGemmArgs::expected_rows`] says. Of more than 16 usual rows (FP8 weights: 64) a launch before arranges A in scratch memory, which the first call reserves:
    /// call it once before a capture, or [plan](crate::Handle::plan_grouped) it. With some 1000 rows of each group and E2M1 weights it takes up to 2.1 times as long as products one by one, whose counts the host must know, of weights that are dequantized once (docs/performance-few-rows.md).
    ///
    /// ```no_run
    /// # use scaled_gemm::{DType, GroupedGemmArgs, GroupedRows, Handle, MatMut, MatRef, QuantMatrix, Result};
    /// # use scaled_gemm::DeviceBuffer;
    /// # fn decode(handle: &Handle, x: MatRef<'_>, nvfp4: &QuantMatrix, counts: &DeviceBuffer, d: &mut DeviceBuffer) -> Result<()> {
    /// // 256 experts of 2048 x 7168 weights, at most four tokens of each in a slot of its own.
    /// let rows = GroupedRows::Masked { slot_rows: 4, counts: counts.view() };
    /// let d = MatMut::new(d, DType::Bf16, 256 * 4, 2048)?;
    /// // Of 64 tokens a step a group usually has two: told, as a slot has room for more.
    /// handle.grouped_gemm(GroupedGemmArgs::weight_only(x, nvfp4, 256, rows, d).expected_rows(2))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn weight_only(a: MatRef<'a>, b: &'a QuantMatrix, groups: usize, rows: GroupedRows<'a>, d: MatMut<'a>) -> Self {
        Self::of(GroupedA::Plain(a), b, groups, rows, d)
    }

    fn of(a: GroupedA<'a>, b: &'a QuantMatrix, groups: usize, rows: GroupedRows<'a>, d: MatMut<'a>) -> Self {
        let (bias, activation) = (None, Activation::None);
        let (scales, tensors, clamped, config) = ([None, None], [None; 2], None, None);
        let (alpha, expected_rows, streams, a_product_a_slot, asks_cublaslt) = (1.0, None, None, false, false);
        Self {
            a,
            b,
            groups,
            rows,
            d,
            alpha,
            bias,
            activation,
            expected_rows,
            config,
            a_product_a_slot,
            asks_cublaslt,
            streams,
            clamped,
            scales,
            tensors,
        }
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

    /// A scale for each group in the place of the one of an `fp8-tensor` or `nvfp4` A, or of those that members of a grouped tensor have: FP32, as many as groups, 4-byte aligned. Of NVFP4 it is the second level, as a decode factor (`amax / 2688`). What it holds when the
    /// product runs is what counts; where each slot is a product, a copy before lays them apart in scratch memory, 32 bytes for each group. Others are refused: rows of `fp8-row` and `nvfp4-row` have the scale of their group
    /// ([`Handle::quantize_nvfp4_groups_into`](crate::Handle::quantize_nvfp4_groups_into)).
    pub fn scales_of_a(self, scales: DeviceBytes<'a>) -> Self {
        let [_, b] = self.scales;
        Self { scales: [Some(scales), b], ..self }
    }

    /// The same of an `fp8-tensor` or `nvfp4` B, of a plain A, too: experts that were quantized each by itself, as published ones with a `weight_scale_2` each, whose codes and block scales lie one behind the other.
    pub fn scales_of_b(self, scales: DeviceBytes<'a>) -> Self {
        let [a, _] = self.scales;
        Self { scales: [a, Some(scales)], ..self }
    }

    /// How many rows a group usually has, which decides the configuration, and where weights are decoded whether A is arranged in scratch memory (above 16; E4M3 codes: 64); never the bits of one launch of ours (of [cuBLASLt's own](Self::by_cublaslt) it decides the algorithm), nor how many rows a group may have. Of slots of rows with block scales those of up to 128 usual rows are multiplied
    /// in one launch, others are one product a slot. Unless told, all that a slot holds, or an equal share of A's rows, padding included: for decode tell it.
    pub fn expected_rows(self, rows: usize) -> Self {
        Self { expected_rows: Some(rows), ..self }
    }

    /// This configuration of `sm90` and no other, of those whose [`Sm90Config::k_parts`] is 1 and that do not [end plainly](Sm90Config::ends_plainly), and with 1x128 scales on both sides or E5M2 codes on one 256x128, 128x128, 64x128 or 64x64-two; others are refused. Results are the same in every bit. Only for operands that `sm90` multiplies: not of a
    /// plain A, nor of block scales.
    pub fn config(self, config: Sm90Config) -> Self {
        Self { config: Some(config), ..self }
    }

    /// One product a slot, also where one launch would take all of them: by the plan of a slot's product, whose choice a record or a tuning table decides
    /// ([`Handle::set_tuning`](crate::Handle::set_tuning)), to compare the two or where it was measured as faster. Counts are not read then, and an empty slot takes as long as a full one. Of slots
    /// of a multiple of 128 rows, quantized, not by 1x128 scales on either side, without a [configuration](Self::config); others are refused.
    pub fn product_a_slot(self) -> Self {
        Self { a_product_a_slot: true, ..self }
    }

    /// cuBLASLt's own product of groups, experimental there, and that alone: never taken unless it is asked for, to compare, or on GPUs for which this crate has no kernels of groups. Counts and starts are read on the device, rows of
    /// no group are not written. `fp8-tensor` operands, also with a [scale for each group](Self::scales_of_a) (sm_90, sm_10x, sm_110); `mxfp8` and `nvfp4` ones with k a multiple of 32, whose groups begin at multiples of 128 rows (sm_10x, sm_110); no
    /// bias, no activation. Versions that are not known to err: on sm_90 13.6.2 and its later patches, and 13.8 on; on sm_10x and sm_110 all of 13.2 and 13.3, 13.4.2 and 13.6.2 and their later patches, and none from 13.7 on. Others are refused with what is known of
    /// them. D in BF16, F16 or F32, sums in FP32: results are within the bound of [`reference::gemm_bound`](crate::reference::gemm_bound), and not bit for bit those of the groups one by one. A launch before it writes 72 bytes for each group into scratch memory, which the first call or a plan reserves. An algorithm is asked for at each call, which a capture refuses, unless a [plan](crate::Handle::plan_grouped) has one. It was run with 13.10 on sm_90, and nowhere else.
    ///
    /// [`Handle::grouped_gemm`](crate::Handle::grouped_gemm) gives [`Error::Unsupported`](crate::Error::Unsupported) with the reason where it is not to be had, or with another choice beside it, and [`Error::Library`](crate::Error::Library) without cuBLASLt.
    pub fn by_cublaslt(self) -> Self {
        Self { asks_cublaslt: true, ..self }
    }

    /// On how many streams the products run where each slot is one, 1 to 8, others are refused; of more than there are slots as many as those are taken. The first is the handle's, the others it makes, with the priority of that one, and
    /// keeps: they begin behind what the handle's stream has, and that goes on behind them, also in a captured graph, so that whoever waits for the handle's stream waits for all. Results are the same in every bit.
    ///
    /// Unless told, as many as such products fill the GPU together, 8 at the most, and one where a product alone fills it ([`GroupedGemmArgs::explain`] says how many and why). Ask for 1 where memory is short, or
    /// where work on other streams of yours should run beside this.
    ///
    /// Each further stream costs scratch memory of the handle's, as much as a product needs, and the workspace that its algorithm takes (`docs/memory.md` has the sum). The first call on so many streams
    /// allocates both, and is refused in a capture; those after it allocate nothing. The host waits for no call. One launch of all groups runs on the handle's stream, whatever is said here.
    pub fn streams(self, streams: usize) -> Self {
        Self { streams: Some(streams), ..self }
    }

    /// `clamped`, 4 bytes of device memory, receives how many groups were not taken as their numbers say, as a `u32`: a count below 0, or above the rows that
    /// lie there; rows that begin outside of A, before an earlier group, or at no multiple of 4; groups without rows count as taken. Of slots that are one product each, too, whose
    /// counts nobody else reads. What it held is overwritten, by a launch of its own behind the product. 4-byte aligned, apart from all that is read, and from D.
    pub fn clamped(self, clamped: DeviceBytesMut<'a>) -> Self {
        Self { clamped: Some(clamped), ..self }
    }

    /// The problem these operands pose, after checking that they fit together.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) naming the operand that does not fit; [`Error::DType`](crate::Error::DType) for a bias of other than wide numbers;
    /// [`Error::Unsupported`](crate::Error::Unsupported) if A and B are in different bases, if the codes of A are repacked, or for a grouped tensor in the other's place.
    pub fn desc(&self) -> Result<GroupedGemmDesc> {
        let Self { a, b, groups, rows, d, bias, .. } = self;
        if let GroupedA::Quantized(a) = a {
            a.check_published("A of a grouped product")?;
        }
        pair::check_basis(a.basis(), b.basis())?;
        check_members(self.tensors, *groups, rows)?;
        let bias: Option<(DType, usize)> = bias.as_ref().map(|bias| (bias.dtype(), bias.len()));
        Fit {
            a: [a.rows(), a.cols()],
            b: [b.rows(), b.cols()],
            d: [d.rows(), d.cols()],
            groups: Some((*groups, rows.slot_rows())),
            matrices: 1,
            bias,
        }
        .check()?;
        Ok(GroupedGemmDesc {
            groups: *groups,
            slot_rows: rows.slot_rows(),
            rows: a.rows(),
            n: d.cols(),
            k: a.cols(),
            a: a.operand(),
            a_stride: a.row_stride(),
            b: b.scheme(),
            b_order: b.code_order(),
            out: d.dtype(),
            out_stride: d.row_stride(),
            bias: bias.map(|(dtype, _)| dtype),
            activation: self.activation,
            scales_of_groups: self.scales.each_ref().map(Option::is_some),
            clamped: self.clamped.is_some(),
            expected_rows: self.expected_rows,
            config: self.config,
            product_a_slot: self.a_product_a_slot,
            by_cublaslt: self.asks_cublaslt,
            streams: self.streams,
        })
    }

    /// Which way the products go, what it costs in memory, and why; of products of slots also on how many streams. Those it plans, which may reserve the scratch memory of one
    /// ([`Handle::plan`]): not for graph capture.
    ///
    /// # Errors
    /// As [`Handle::grouped_gemm`].
    pub fn explain(&mut self, handle: &Handle) -> Result<String> {
        let desc = self.desc()?;
        let way = desc.way(handle.device())?;
        Ok(way.explain(handle, &desc, &way.make(handle, &desc)?))
    }
}
