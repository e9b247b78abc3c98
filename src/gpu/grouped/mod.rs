//! [`Handle::grouped_gemm`]: products of groups of rows, each with a matrix of its own: the experts of a layer.
//!
//! One launch of our kernels for sm_90, which read on the device where groups lie; of other pairs, and on other GPUs, one product a slot (`slots`). `weight`:
//! gradients of the matrices, one product a group, or in one launch of all (`whole`). `between`: what lies between groups becomes zeros.

mod between;
mod slots;
mod weight;
mod whole;

pub use weight::GroupedWeightGradient;

use crate::epilogue::Activation;
use crate::error::{Error, Result};
use crate::format::{DType, Operand, pair};
use crate::gpu::device::memory::{DeviceBytes, DeviceBytesMut};
use crate::gpu::device::stream::Order;
use crate::gpu::gemm::formulation::{HOPPER, grouped_scales};
use crate::gpu::gemm::sm90_rules;
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{
    GroupPlaces, KernelFamily, Sm90Along, Sm90Call, Sm90Config, Sm90End, Sm90Maps, Sm90Operand, Sm90Scales,
};
use crate::gpu::matrix::{MatMut, QuantMatrix, VecRef};

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

/// The operands of one grouped product `D_g = activation(alpha * A_g B_gᵀ + bias_g)`, sums in FP32, each step rounded to FP32 as
/// [`Epilogue`](crate::Epilogue) says.
pub struct GroupedGemmArgs<'a> {
    a: &'a QuantMatrix,
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
}

impl<'a> GroupedGemmArgs<'a> {
    /// A: the rows of all groups, k columns, `fp8-1x128:e4m3` where B is `fp8-128x128:e4m3`, else `fp8-row:e4m3` or `fp8-tensor:e4m3`, as B is. B: `groups * n`
    /// rows, those of group 0 first; n a multiple of 128. Of `fp8-tensor` one scale is that of all groups. D: BF16, F16 or F32, A's rows by n. In slots also
    /// any other pair that [`Handle::scaled_gemm`] multiplies, but for an A with 1x128 scales: E5M2, MXFP8, MXFP4 and NVFP4.
    pub fn new(a: &'a QuantMatrix, b: &'a QuantMatrix, groups: usize, rows: GroupedRows<'a>, d: MatMut<'a>) -> Self {
        let (bias, activation) = (None, Activation::None);
        Self { a, b, groups, rows, d, alpha: 1.0, bias, activation, expected_rows: None, config: None, clamped: None }
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

    /// How many rows a group usually has, which decides the configuration and nothing else. Unless told, all that a slot holds, or an
    /// equal share of A's rows.
    pub fn expected_rows(self, rows: usize) -> Self {
        Self { expected_rows: Some(rows), ..self }
    }

    /// This configuration and no other. Results are the same in every bit.
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
    fn way(&self, handle: &Handle) -> Result<Way> {
        let Self { a, b, .. } = self;
        let (major, minor) = handle.device().compute_capability;
        let reason = match grouped_scales(a.scheme(), b.scheme()) {
            Ok(scales) if (major, minor) == HOPPER => {
                self.check()?;
                return Ok(Way::Launch(scales));
            }
            Ok(_) => format!("the grouped product is for sm_90, and this GPU is sm_{major}{minor}"),
            Err(reason) => format!("the grouped product is ours for sm_90: {reason}"),
        };
        // A pair that nobody multiplies has a reason of its own.
        let device = handle.device().to_string();
        pair::check_pair(a.scheme(), b.scheme(), &device)?;
        match slots::why_not(self) {
            None => {
                self.check()?;
                Ok(Way::Slots(reason))
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

    /// Refuses operands that do not fit together.
    fn check(&self) -> Result<()> {
        let Self { a, b, groups, d, .. } = self;
        pair::check_basis(a.basis(), b.basis())?;
        let (n, k) = (d.cols(), a.cols());
        if b.cols() != k {
            return Err(Error::shape(
                "B",
                format!("{} x {}", b.rows(), b.cols()),
                format!("must have A's {k} columns"),
                "pass A and B of the same k",
            ));
        }
        if !n.is_multiple_of(128) {
            return Err(Error::shape(
                "D",
                format!("{} x {n}", d.rows()),
                "must have a multiple of 128 columns: no 128x128 scale of B belongs to two groups",
                "pad the rows of each group's B with zeros, and D's columns",
            ));
        }
        if Some(b.rows()) != groups.checked_mul(n) {
            return Err(Error::shape(
                "B",
                format!("{} x {k}", b.rows()),
                format!("must be {groups} * {n} x {k}: as many rows for each group as D has columns"),
                "stack the matrices of all groups, rows upon rows, and pass D of their columns",
            ));
        }
        if !matches!(d.dtype(), DType::Bf16 | DType::F16 | DType::F32) {
            return Err(Error::dtype("D", d.dtype(), "is not bf16, f16 or f32", "store one of them"));
        }
        if let Some(bias) = &self.bias {
            if !matches!(bias.dtype(), DType::Bf16 | DType::F16 | DType::F32) {
                return Err(Error::dtype("bias", bias.dtype(), "is not bf16, f16 or f32", "convert it first"));
            }
            if bias.len() != b.rows() {
                return Err(Error::shape(
                    "bias",
                    format!("{} numbers", bias.len()),
                    format!("must have {groups} * {n}, one for each row of B"),
                    "pass the biases of all groups, one behind the other",
                ));
            }
        }
        self.rows.check_slots(*groups, a.rows())?;
        if d.rows() != a.rows() {
            return Err(Error::shape(
                "D",
                format!("{} x {n}", d.rows()),
                format!("must have A's {} rows, those between groups too", a.rows()),
                "pass D of that shape",
            ));
        }
        Ok(())
    }

    /// The configuration asked for, or the one that should be fastest.
    fn chosen(&self, sm_count: usize) -> Sm90Config {
        let expected = self.expected_rows.unwrap_or_else(|| self.rows.expected(self.groups, self.a.rows()));
        let mnk = [expected.clamp(1, self.a.rows().max(1)), self.d.cols(), self.a.cols()];
        self.config.unwrap_or_else(|| sm90_rules::order(self.groups, mnk, sm_count)[0])
    }
}

/// How groups are multiplied.
enum Way {
    /// One launch of our kernels for sm_90, which read scales so.
    Launch(Sm90Scales),
    /// One product a slot, and why not the other.
    Slots(String),
}

impl GroupedGemmArgs<'_> {
    /// Which way the products go, what it costs in memory, and why.
    ///
    /// # Errors
    /// As [`Handle::grouped_gemm`].
    pub fn explain(&mut self, handle: &Handle) -> Result<String> {
        let (groups, n, k) = (self.groups, self.d.cols(), self.a.cols());
        let what = format!("{groups} groups of {} x {}, n = {n}, k = {k}", self.a.scheme(), self.b.scheme());
        match self.way(handle)? {
            Way::Launch(_) => Ok(format!(
                "{what}\n  one launch of {}, by groups that the device knows; no scratch memory; empty groups take no time\n  because our kernels for sm_90 serve this pair",
                self.chosen(handle.device().sm_count as usize)
            )),
            Way::Slots(reason) => Ok(format!(
                "{what}\n  one product a slot, {groups} of them one after the other on the handle's stream, each of all rows of a slot: counts are not read, empty groups take as long\n  because {reason}\n{}",
                slots::explain(handle, self)?
            )),
        }
    }
}

impl Handle {
    /// `D_g = activation(alpha * A_g B_gᵀ + bias_g)` for every group g, in one launch where our kernels for sm_90 serve the pair: then rows of D that belong to
    /// no group are not touched, and equal rows have equal results, whatever else is multiplied. Other pairs, in slots, take one product a slot
    /// ([`GroupedGemmArgs::explain`]; cuBLASLt's own grouped products, experimental and known to hang on Hopper before 13.6.2, are not used).
    ///
    /// The gradient of the input is such a product, too: A is dY, and B the transposes of the matrices, `groups * k` rows.
    /// [`GroupedWeightGradient`] is that of the matrices.
    ///
    /// Once its kernels are loaded (by the first call, or [`Handle::load_kernels`] of [`KernelFamily::Sm90`], and [`KernelFamily::Grouped`] where
    /// [`GroupedGemmArgs::clamped`] is given) one launch allocates nothing and waits for nothing: then it is safe inside graph capture. Groups may have other places and
    /// counts at each launch. Products of slots are planned at the first call, as those of [`Handle::scaled_gemm`] are, which may allocate scratch memory and load other
    /// families: call it once before a capture, with the same operands' shapes.
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
        if let Some(clamped) = &args.clamped {
            if clamped.len() < 4 {
                return Err(Error::shape(
                    "count of clamped groups",
                    format!("{} bytes", clamped.len()),
                    "must be 4",
                    "pass memory of a u32",
                ));
            }
            kernels.load(queue, KernelFamily::Grouped)?;
        }
        let layout = match way {
            Way::Launch(scales) => scales,
            Way::Slots(_) => {
                slots::multiply(self, &mut args)?;
                return self.count_clamped(&mut args);
            }
        };
        let config = args.chosen(self.device().sm_count as usize);
        let GroupedGemmArgs { a, b, groups, rows, d, alpha, bias, activation, .. } = &mut args;
        let (m, n, k, d_stride, d_type) = (a.rows(), d.cols(), a.cols(), d.row_stride(), d.dtype());
        kernels.load(queue, KernelFamily::Sm90)?;
        let order = queue.order();
        let (a, b) = (a.read(&order)?, b.read(&order)?);
        let d = d.data_mut().at(&order)?;
        let bias = bias.as_ref().map(|v| Ok::<_, Error>((v.data().at(&order)?, v.dtype()))).transpose()?;
        rows.with_places(*groups, &order, |places| {
            let call = Sm90Call {
                config,
                m,
                n,
                k,
                a: Sm90Operand { codes: &a.codes, scales: &a.scales },
                b: Sm90Operand { codes: &b.codes, scales: &b.scales },
                layout,
                d: &d,
                d_stride,
                d_type,
                alpha: *alpha,
                beta: 0.0,
                bias: bias.as_ref().map(|(span, dtype)| (span, *dtype)),
                activation: *activation,
                residual: None,
                groups: Some(places.into()),
                end: Sm90End::Numbers,
            };
            kernels.sm90_product(queue, &call, &mut Sm90Maps::default())
        })?;
        drop(order);
        self.count_clamped(&mut args)
    }

    /// Behind the product, so that one that is refused leaves no count.
    fn count_clamped(&self, args: &mut GroupedGemmArgs<'_>) -> Result<()> {
        let Some(clamped) = &mut args.clamped else { return Ok(()) };
        let (queue, kernels) = (self.queue(), self.kernels());
        let order = queue.order();
        let clamped = clamped.at(&order)?;
        args.rows.with_places(args.groups, &order, |places| {
            kernels.count_clamped_groups(queue, args.a.rows(), &places, &clamped)
        })
    }
}
