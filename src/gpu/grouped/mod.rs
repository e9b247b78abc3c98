//! [`Handle::grouped_gemm`]: products of groups of rows, each with a matrix of its own: the experts of a layer.
//!
//! One launch of our kernels for sm_90, which read on the device where groups lie (`rows`): of FP8 operands those of `sm90`, of plain rows those that decode weights
//! (`few`), behind one that dequantizes rows with block scales. Of other pairs, and on other GPUs, one product a slot (`slots`). Where it is asked for, cuBLASLt's own (`library`). `way` chooses, by shapes and types (`desc`); `plan`: all made ready before the first call. `weight`: gradients of the matrices, one product a group, or in one launch of all (`whole`); `slot_casts`: the transposes that those read. `between`: what lies between groups becomes zeros. `levels`: rows as NVFP4 by a second level of each group, given or by the amax of its rows. `fit`: what operands must have in
//! common. `clamped`: how many groups were not taken as their numbers say, and `apart`: in memory that nobody else reads or writes. `operand`: matrices, and grouped tensors as such.

mod apart;
mod args;
mod between;
mod clamped;
mod desc;
pub(crate) mod few;
pub(crate) mod fit;
mod levels;
mod library;
mod operand;
mod plan;
mod rows;
mod slot_casts;
mod slots;
mod transposed;
mod way;
mod weight;
mod whole;

pub(crate) use args::GroupedA;
pub use args::GroupedGemmArgs;
pub use desc::GroupedGemmDesc;
pub use operand::GroupedOperand;
pub use plan::GroupedGemmPlan;
pub use rows::GroupedRows;
pub use weight::GroupedWeightGradient;

use crate::error::{Error, Result};
use crate::format::DType;
use crate::gpu::gemm::our_pairs::Sm90Pair;
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{Sm90Call, Sm90Config, Sm90End, Sm90Groups, Sm90Operand, SmallMGroupsConfig, SmallMWeights};
use crate::gpu::matrix::QuantMatrix;
use clamped::check_clamped;
use fit::{check_apart, check_places_apart};
use library::LibraryProduct;
use way::{Made, Way};

impl Handle {
    /// `D_g = activation(alpha * A_g B_gᵀ + bias_g)` for every group g, in one launch where our kernels for sm_90 serve the pair: then rows of D that belong to
    /// no group are not touched, and equal rows have equal results, whatever else is multiplied. D must not overlap what is read. Of block scales on both sides a launch that dequantizes A goes before. Other pairs, in slots, take one product a slot, on one stream or
    /// [several](GroupedGemmArgs::streams), which begin behind what the handle's stream has and which that waits for ([`GroupedGemmArgs::explain`], which also says why they are not cuBLASLt's own grouped products).
    ///
    /// In one launch groups without rows take no time. **One product a slot runs for all rows of every slot**, so that empty slots take as long as full ones: on sm_90 with block scales on both sides where a slot usually has more than 128 rows, with
    /// MXFP8 whose B is E5M2, and where it is [asked for](GroupedGemmArgs::product_a_slot); on other GPUs with every pair. So do [gradients of the matrices](GroupedWeightGradient::new) of all operands but `fp8-1x128`, `fp8-row` and `fp8-tensor` on both sides on sm_90
    /// ([`GroupedWeightGradient::whole`]). Conditional nodes of graphs, which could skip empty slots, are not used.
    ///
    /// The gradient of the input is such a product, too: A is dY, and B the transposes of the matrices, `groups * k` rows ([`Handle::quantize_stacked_transposed_into`], of `fp8-tensor` [`GroupedTensor::stacked`](crate::GroupedTensor::stacked)).
    /// [`GroupedWeightGradient`] is that of the matrices.
    ///
    /// Once its kernels are loaded (by the first call, or [`Handle::load_kernels`] of [`KernelFamily::Sm90`](crate::KernelFamily::Sm90), [`KernelFamily::Sm90E5m2`](crate::KernelFamily::Sm90E5m2) for E5M2 codes on one side, or [`KernelFamily::SmallMGroups`](crate::KernelFamily::SmallMGroups) for a plain A or one with block scales, and [`KernelFamily::Grouped`](crate::KernelFamily::Grouped) where
    /// [`GroupedGemmArgs::clamped`] is given) one launch for which [`GroupedGemmArgs::explain`] names no scratch memory allocates nothing and waits for nothing: then it is safe inside graph capture. Groups may have other places and
    /// counts at each launch. The first call with an A that is dequantized, or that is arranged for weights that are decoded ([`GroupedGemmArgs::weight_only`]), may allocate scratch memory
    /// and load its scheme's family, and products of slots are planned at theirs, as those of [`Handle::scaled_gemm`] are, and their streams made: call it once before a capture, with the same operands' shapes and expected rows, and as many groups and [streams](GroupedGemmArgs::streams). Then these allocate nothing and wait for nothing, too.
    /// A plan has all of that made by shapes and types alone, before the first call ([`Handle::plan_grouped`]).
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
    /// [`Error::Pair`] for pairs that neither way takes on this GPU; [`Error::Shape`], [`Error::DType`], [`Error::Alignment`] for what does not fit together, or overlaps;
    /// [`Error::Unsupported`] for operands of two bases or of another GPU, for other than 1 to 8 [streams](GroupedGemmArgs::streams), for [one product a slot](GroupedGemmArgs::product_a_slot) that cannot be, and in a capture for kernels that are not loaded, borrowed memory, and a plan, streams
    /// or scratch memory that an earlier call did not make;
    /// [`Error::Kernel`] and [`Error::Library`] if they cannot be loaded; [`Error::Driver`] if the launch fails.
    #[doc(alias = "grouped_mm")]
    #[doc(alias = "dgrad")]
    pub fn grouped_gemm(&self, mut args: GroupedGemmArgs<'_>) -> Result<()> {
        let desc = args.desc()?;
        let way = desc.way(self.device())?;
        way.make_ready(self, &desc)?;
        args.multiply(self, &desc, &way, None)
    }
}

impl GroupedGemmArgs<'_> {
    /// Enqueues the product of these operands, whose problem this is, the way that was made ready, by what was made for it; else where each slot is a product by the plan that the handle keeps, and
    /// by an algorithm of cuBLASLt's that it is asked for now.
    fn multiply(&mut self, handle: &Handle, desc: &GroupedGemmDesc, way: &Way, made: Option<&mut Made>) -> Result<()> {
        check_clamped(handle, self.clamped.as_mut())?;
        self.check_count_apart(handle)?;
        match (way, self.a.quantized()) {
            (Way::FewRows(weights, config, dtype), _) => self.multiply_few_rows(handle, *weights, *config, *dtype)?,
            (Way::Launch(pair, config), Some(a)) => self.launch(handle, a, *pair, *config)?,
            (Way::Slots(_), Some(a)) => {
                let plan = if let Some(Made::Slot(plan)) = made { plan.as_deref_mut() } else { None };
                slots::multiply(handle, self, desc, a, plan)?;
            }
            (Way::Library(scales), Some(a)) => match made {
                Some(Made::Library(product)) => product.multiply(handle, self, desc, a)?,
                _ => LibraryProduct::ask(handle, desc, a.scheme(), *scales)?.multiply(handle, self, desc, a)?,
            },
            (Way::Launch(..) | Way::Slots(_) | Way::Library(_), None) => return Err(slots::of_plain_a()),
        }
        self.count_clamped(handle, way.step())
    }

    /// One launch of the kernels for sm_90.
    fn launch(&mut self, handle: &Handle, a: &QuantMatrix, pair: Sm90Pair, config: Sm90Config) -> Result<()> {
        let Self { b, groups, rows, d, alpha, bias, activation, scales, .. } = self;
        let (m, n, k, d_stride, d_type) = (a.rows(), d.cols(), a.cols(), d.row_stride(), d.dtype());
        let d_bytes = d.extent_bytes();
        let order = handle.queue().order();
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
                stand_in: None,
                formats: pair.formats,
                m,
                n,
                k,
                a: Sm90Operand { codes: &a.codes, scales: scales_a.as_ref().unwrap_or(&a.scales) },
                b: Sm90Operand { codes: &b.codes, scales: scales_b.as_ref().unwrap_or(&b.scales) },
                layout: pair.scales,
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
            handle.sm90_product(&call)
        })
    }

    fn multiply_few_rows(
        &mut self,
        handle: &Handle,
        weights: SmallMWeights,
        config: SmallMGroupsConfig,
        dtype: DType,
    ) -> Result<()> {
        let Self { a, b, groups, rows, d, alpha, bias, activation, scales, .. } = self;
        let a = few::RowsOfA::of(a, dtype);
        let (alpha, bias, activation, groups) = (*alpha, bias.as_ref(), *activation, Some((*groups, &*rows)));
        let d = few::FewOut::Numbers(d);
        let scales = scales.each_ref().map(Option::as_ref);
        few::FewRows { weights, a, b, groups, d, alpha, bias, activation, scales, way: few::FewWay::Plain(config) }
            .multiply_ready(handle)
    }
}
