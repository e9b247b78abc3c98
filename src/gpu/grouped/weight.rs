//! [`GroupedWeightGradient`]: gradients of the matrices of groups, whose rows are summed over.

use super::GroupedRows;
use super::clamped::{check_clamped, count_clamped};
use super::fit::check_apart;
use super::whole::Whole;
use crate::error::{Error, Result};
use crate::format::DType;
use crate::gpu::device::memory::{DeviceBytesMut, Span};
use crate::gpu::gemm::args::GemmArgs;
use crate::gpu::gemm::call::Spans;
use crate::gpu::gemm::desc::GemmDesc;
use crate::gpu::gemm::lanes::{Lanes, check_streams};
use crate::gpu::gemm::many::{Many, Member};
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{Sm90Along, Sm90Config};
use crate::gpu::lt::NO_GRADIENTS;
use crate::gpu::matrix::{MatMut, QuantMatrix};

/// `dW_g += dY_gᵀ X_g` of every group g, FP32: groups along k, of one of two forms.
///
/// [`GroupedWeightGradient::whole`]: one launch of our kernels for sm_90, of the transposes of all rows, `fp8-1x128`, `fp8-row` or `fp8-tensor` on both sides in E4M3, or in E5M2 on one. It reads counts on the device:
/// empty groups are free, others take as long as their rows do.
///
/// [`GroupedWeightGradient::new`]: one product a group, on one stream or [several](GroupedWeightGradient::streams), of every pair that [`Handle::scaled_gemm`] multiplies.
/// dY and X lie in slots of equal length, a multiple of 16 rows; each slot is cast to the transpose that the product reads
/// ([`Handle::quantize_slots_transposed_into`], with given scales [`Handle::quantize_slots_transposed_with_scales_into`]), and is summed over whole: an empty group takes as long as a full one.
///
/// Rows of no group must be zeros in dY and X before they are cast, which [`Handle::clear_between_groups`] sees to (of slots of no multiple of 128 rows [`Handle::clear_between_groups_at`]), whatever the counts are by then: they share
/// scales with rows of groups and are summed over with them, in the one form up to the next multiple of 128, in the other all of a slot's. So one captured graph of
/// clearing, casts and products takes any counts.
///
/// Neither form takes a [`GroupedTensor`](crate::GroupedTensor): its members stored transposed ([`GroupedTo::Both`](crate::GroupedTo::Both)), which TransformerEngine calls columnwise and multiplies for these gradients, lie one behind the other, and not as rows
/// of one matrix. X and dY are cast once more, from the numbers in high precision and behind that clearing: all rows at once ([`Handle::quantize_into`] to [`QuantizeTo::Transposed`](crate::QuantizeTo::Transposed)) for the first form, where an `fp8-tensor` has one scale for all groups, or
/// each slot with the scale of its expert ([`Handle::quantize_slots_transposed_with_scales_into`]) for the second.
#[doc(alias = "GroupedLinear")]
#[doc(alias = "wgrad")]
pub struct GroupedWeightGradient<'a> {
    of: Of<'a>,
    dw: MatMut<'a>,
    config: Option<Sm90Config>,
    expected_rows: Option<usize>,
    streams: Option<usize>,
    clamped: Option<DeviceBytesMut<'a>>,
}

enum Of<'a> {
    Slots(Slots<'a>),
    Whole(Whole<'a>),
}

/// A transpose of each group.
struct Slots<'a> {
    dy: &'a [QuantMatrix],
    x: &'a [QuantMatrix],
}

impl<'a> GroupedWeightGradient<'a> {
    /// One product a group, of all rows of its slot: an empty slot takes as long as a full one. dY transposed, out x slot rows, and X transposed, features x slot rows, of each group; dW F32, `groups * out` rows of features.
    pub fn new(dy: &'a [QuantMatrix], x: &'a [QuantMatrix], dw: MatMut<'a>) -> Self {
        Self::of(Of::Slots(Slots { dy, x }), dw)
    }

    /// One launch. dY transposed, out x rows, and X transposed, features x rows, each in one piece as [`QuantizeTo::Transposed`](crate::QuantizeTo::Transposed) makes it of the rows of all
    /// groups, both `fp8-1x128`, `fp8-row` or `fp8-tensor`, in E4M3, or one of the two (dY, as gradients are) in E5M2; dW F32, `groups * out` rows of features. All groups share the scales of rows and
    /// matrices: that of a tensor, by the amax of all rows or given ([`Handle::quantize_slots_transposed_with_scales_into`] of one slot of all rows), or those of each feature. (A scale for each group is what [`GroupedWeightGradient::new`] takes.) Rows of no group would have a part in
    /// such scales, too: clear them by [`Handle::clear_between_groups`], not by a smaller step. The order of sums is that of a batch-invariant plan (`sm90` where no blocks divide k) of each group's rows alone; they are added to dW by the L2 cache, for which subnormal numbers are 0.
    ///
    /// Groups begin at multiples of 128 rows, for the kernels take k in blocks of 128, of which none belongs to two groups: slots are of such a length, and a group that starts elsewhere is left out (one
    /// before it that reaches into its first 128 rows takes what lies there); all else is as [`GroupedRows`] has it. dW of a group without rows is not touched.
    ///
    /// Rows of the last 128 that a group has not are multiplied with it: they must be zeros in dY and X, as below, or zeros in one of the two and finite numbers in the other. Zero times a NaN
    /// code, a NaN scale or an infinity of E5M2 is NaN, for all of that group's dW.
    ///
    /// ```no_run
    /// # use scaled_gemm::{DType, DeviceBuffer, Fp8Format, GroupedRows, GroupedWeightGradient, Handle, MatMut, MatRef, QuantizeTo};
    /// # use scaled_gemm::{QuantMatrix, Recipe, Result, Scheme};
    /// # fn gradients(handle: &Handle, dy: &mut DeviceBuffer, x: &mut DeviceBuffer, dw: &mut DeviceBuffer) -> Result<()> {
    /// // Two experts of 256 x 512 weights, with 100 and 30 tokens in slots of 128.
    /// let (groups, slot_rows, rows, out, features) = (2, 128, 256, 256, 512);
    /// let counts = handle.upload(&[100i64, 30])?;
    /// let places = || GroupedRows::Masked { slot_rows, counts: counts.view() };
    /// handle.clear_between_groups(&mut MatMut::new(&mut *dy, DType::Bf16, rows, out)?, groups, &places(), None)?;
    /// handle.clear_between_groups(&mut MatMut::new(&mut *x, DType::Bf16, rows, features)?, groups, &places(), None)?;
    /// let scheme = Scheme::Fp8Group1x128(Fp8Format::E4M3);
    /// let mut dy_t = QuantMatrix::zeros(handle, scheme, out, rows)?;
    /// let mut x_t = QuantMatrix::zeros(handle, scheme, features, rows)?;
    /// let (dy, x) = (MatRef::new(&*dy, DType::Bf16, rows, out)?, MatRef::new(&*x, DType::Bf16, rows, features)?);
    /// handle.quantize_into(&dy, Recipe::new(scheme), QuantizeTo::Transposed(&mut dy_t))?;
    /// handle.quantize_into(&x, Recipe::new(scheme), QuantizeTo::Transposed(&mut x_t))?;
    /// let dw = MatMut::new(dw, DType::F32, groups * out, features)?;
    /// handle.grouped_weight_gradient(GroupedWeightGradient::whole(&dy_t, &x_t, groups, places(), dw))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn whole(
        dy: &'a QuantMatrix,
        x: &'a QuantMatrix,
        groups: usize,
        rows: GroupedRows<'a>,
        dw: MatMut<'a>,
    ) -> Self {
        Self::of(Of::Whole(Whole { dy, x, groups, rows }), dw)
    }

    fn of(of: Of<'a>, dw: MatMut<'a>) -> Self {
        Self { of, dw, config: None, expected_rows: None, streams: None, clamped: None }
    }

    /// How many rows a group usually has, which decides the configuration of one launch and nothing else. Unless told, all that a slot holds, or an equal share.
    pub fn expected_rows(self, rows: usize) -> Self {
        Self { expected_rows: Some(rows), ..self }
    }

    /// One launch in this configuration and no other, of those whose [`Sm90Config::k_parts`] is 1 and that do not [end plainly](Sm90Config::ends_plainly), and with E5M2 codes 256x128, 128x128, 64x128 or 64x64-two; others are refused. Results are the same in every bit.
    pub fn config(self, config: Sm90Config) -> Self {
        Self { config: Some(config), ..self }
    }

    /// On how many streams the products of groups run where each is one, as [`GroupedGemmArgs::streams`](crate::GroupedGemmArgs::streams) says of slots: 1 to 8, as many as fill the GPU unless told. On the
    /// handle's alone run, whatever is said here, one launch, and products of which some X [keeps values](QuantMatrix::keep_dequantized) or lies in an [order](QuantMatrix::repack), as others do not.
    pub fn streams(self, streams: usize) -> Self {
        Self { streams: Some(streams), ..self }
    }

    /// `clamped`, 4 bytes of device memory, receives how many groups of one launch were not taken as their numbers say, as a `u32`: a count below 0, or above the
    /// rows that lie there; rows that begin outside of dY and X, before an earlier group, or at no multiple of 128; groups without rows count as taken. What it held is
    /// overwritten, by a launch of its own behind the product ([`KernelFamily::Grouped`](crate::KernelFamily)). 4-byte aligned, apart from all that is read, and from dW. One product a group reads no counts.
    pub fn clamped(self, clamped: DeviceBytesMut<'a>) -> Self {
        Self { clamped: Some(clamped), ..self }
    }

    /// Which way the products go, what it costs in memory, and why; of one product a group also on how many streams. It plans one of those, which may reserve its scratch memory
    /// ([`Handle::plan`]): not for graph capture.
    ///
    /// # Errors
    /// As [`Handle::grouped_weight_gradient`].
    pub fn explain(&mut self, handle: &Handle) -> Result<String> {
        let Self { of, dw, config, expected_rows, streams, clamped } = self;
        check_streams(*streams)?;
        let slots = match of {
            Of::Slots(slots) => slots,
            Of::Whole(whole) => return whole.explain(handle, dw, *config, *expected_rows),
        };
        let out = slots.check(dw, *config, clamped.is_some())?;
        let groups = slots.dy.len();
        if groups == 0 {
            return Ok("no groups: nothing to do".to_string());
        }
        let plan = handle.plan(&slots.one(dw, 0, out)?.desc()?)?;
        let (how, why) = match slots.desc_of_all(dw, out)? {
            Some(_) => {
                let lanes = Lanes::of(&plan, groups, *streams);
                (lanes.how(), lanes.explain())
            }
            None => (
                "one after the other on the handle's stream".to_string(),
                format!(
                    "streams: 1: some matrices keep values or lie in an order that others do not, so that each has a plan of its own; {} bytes of the handle's scratch memory for the first",
                    plan.scratch_bytes()
                ),
            ),
        };
        Ok(format!(
            "{groups} groups along k\n  one product a group, {how}, each of all rows of a slot: empty groups take as long, since conditional nodes of graphs, which could skip them, are not used\n  because each group has transposes of its own: one launch is for those of all rows (GroupedWeightGradient::whole), of fp8-1x128, fp8-row or fp8-tensor on both sides, on sm_90; {}\n  {why}\n{}",
            NO_GRADIENTS,
            plan.explain()
        ))
    }
}

/// Refuses a dW that is not that of so many matrices.
pub(super) fn check_dw(dw: &MatMut<'_>, groups: usize, out: usize, features: usize) -> Result<()> {
    if Some(dw.rows()) != groups.checked_mul(out) || dw.cols() != features {
        return Err(Error::shape(
            "dW",
            format!("{} x {}", dw.rows(), dw.cols()),
            format!("must be {groups} * {out} x {features}: as many rows for each group as dY has features"),
            "pass the gradients of all groups, rows upon rows",
        ));
    }
    if dw.dtype() != DType::F32 {
        return Err(Error::dtype("dW", dw.dtype(), "is not f32", "add gradients up in f32"));
    }
    Ok(())
}

/// Refuses a dW that overlaps what the product of another group still reads.
fn check_apart_from_all(dw: &Span<'_>, dy: &[Spans<'_>], x: &[Spans<'_>]) -> Result<()> {
    for (operand, all) in [("dY", dy), ("X", x)] {
        for Spans { numbers, block_scales, scales } in all {
            let read = [Some(numbers), block_scales.as_ref(), scales.as_ref()];
            read.into_iter().flatten().try_for_each(|read| check_apart(operand, &[read], dw))?;
        }
    }
    Ok(())
}

impl Slots<'_> {
    /// Rows of dW of each group.
    fn check(&self, dw: &MatMut<'_>, config: Option<Sm90Config>, counts: bool) -> Result<usize> {
        let Self { dy, x } = self;
        if counts {
            return Err(Error::unsupported(
                "a count of clamped groups with one product a group",
                "it takes all rows of each slot, and no counts",
                "ask Handle::clear_between_groups_at for it, or pass the transposes of all rows to GroupedWeightGradient::whole",
            ));
        }
        if let Some(config) = config {
            return Err(Error::unsupported(
                format!("the configuration {config} of one product a group"),
                "each is planned",
                "ask for none, or pass the transposes of all rows to GroupedWeightGradient::whole",
            ));
        }
        if dy.len() != x.len() {
            return Err(Error::shape(
                "X of a grouped weight gradient",
                format!("{} groups", x.len()),
                format!("must have the {} groups of dY", dy.len()),
                "pass one transpose of X for each of dY",
            ));
        }
        let Some((first_dy, first_x)) = dy.first().zip(x.first()) else { return Ok(0) };
        for (operand, all, first) in [("dY", dy, first_dy), ("X", x, first_x)] {
            let differs =
                |q: &&QuantMatrix| (q.scheme(), q.rows(), q.cols()) != (first.scheme(), first.rows(), first.cols());
            if let Some(other) = all.iter().find(differs) {
                return Err(Error::shape(
                    format!("{operand} of a grouped weight gradient"),
                    format!("{} x {} {}", other.rows(), other.cols(), other.scheme()),
                    format!("must be {} x {} {}, as of the first group", first.rows(), first.cols(), first.scheme()),
                    "pass slots of equal length, cast alike",
                ));
            }
        }
        check_dw(dw, dy.len(), first_dy.rows(), first_x.rows())?;
        Ok(first_dy.rows())
    }

    /// The problem of each group, where it is one for all: what matrices keep, and the order of their codes, may differ.
    fn desc_of_all(&self, dw: &mut MatMut<'_>, out: usize) -> Result<Option<GemmDesc>> {
        let mut all = None;
        for g in 0..self.dy.len() {
            let desc = self.one(dw, g, out)?.desc()?;
            if *all.get_or_insert(desc) != desc {
                return Ok(None);
            }
        }
        Ok(all)
    }

    /// One product a group.
    fn enqueue(&self, handle: &Handle, dw: &mut MatMut<'_>, out: usize, streams: Option<usize>) -> Result<()> {
        let Self { dy, x } = self;
        let Some(desc) = self.desc_of_all(dw, out)? else {
            self.check_dw_apart(handle, dw)?;
            return (0..dy.len()).try_for_each(|g| handle.scaled_gemm(self.one(dw, g, out)?));
        };
        let many = Many { count: dy.len(), streams, alpha: 1.0, beta: 1.0, beside: 0 };
        handle.with_many(&desc, &x[0], many, |plan| {
            let Some(outline) = plan.outline() else { return Ok(()) };
            x.iter().try_for_each(|x| plan.make_ready(handle, x))?;
            let order = handle.queue().order();
            if outline.reads_derived() {
                x.iter().try_for_each(|x| x.freshen(handle))?;
            }
            let (slot_bytes, used_bytes) =
                (out * dw.row_stride() * dw.dtype().bytes(), dw.bytes_of_rows(&(0..out)).len());
            let (dy, x) = (
                dy.iter().map(|dy| Spans::of_codes(dy, &order)).collect::<Result<Vec<_>>>()?,
                x.iter().map(|x| Spans::of_b(x, &outline, &order)).collect::<Result<Vec<_>>>()?,
            );
            let dw_bytes = dw.extent_bytes();
            let dw = dw.data_mut().at(&order)?;
            check_apart_from_all(&dw.slice(0, dw_bytes), &dy, &x)?;
            plan.enqueue(handle, |g| {
                Ok(Member { a: dy[g], b: x[g], d: dw.slice(g * slot_bytes, used_bytes), bias: None })
            })
        })
    }

    /// Before products that have a plan each, and look at nothing of it.
    fn check_dw_apart(&self, handle: &Handle, dw: &mut MatMut<'_>) -> Result<()> {
        let (order, bytes) = (handle.queue().order(), dw.extent_bytes());
        let (mut dy, mut x) = (Vec::new(), Vec::new());
        for (all, spans) in [(self.dy, &mut dy), (self.x, &mut x)] {
            for q in all {
                spans.push(Spans::from(q.read_in_order(&order)?));
            }
        }
        check_apart_from_all(&dw.data_mut().at(&order)?.slice(0, bytes), &dy, &x)
    }

    fn one<'b>(&'b self, dw: &'b mut MatMut<'_>, g: usize, out: usize) -> Result<GemmArgs<'b>> {
        let dw = dw.rows_part(g * out..(g + 1) * out)?;
        Ok(GemmArgs::new(&self.dy[g], &self.x[g], dw).accumulate(1.0))
    }
}

impl Handle {
    /// The gradients of all groups, added to dW: in one launch, or by the plan that [`Handle::scaled_gemm`] makes of one group, in the first call. Allocates
    /// nothing and waits for nothing after that, on as many [streams](GroupedWeightGradient::streams) or fewer; safe inside graph capture then. One launch needs its kernels loaded and no more ([`Handle::load_kernels`] of
    /// [`KernelFamily::Sm90`](crate::KernelFamily::Sm90), with E5M2 codes [`KernelFamily::Sm90E5m2`](crate::KernelFamily::Sm90E5m2)). Of plans the handle keeps its 64 last used: where as many others came between, run it once more
    /// before a capture, which is refused otherwise.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`], [`Error::Alignment`] for what does not fit together, another number of groups, and a dW or count that overlaps what is read; [`Error::Pair`] for one launch on another
    /// GPU or of other schemes; [`Error::Unsupported`] for a configuration of one product a group, or a count of clamped ones, for other than 1 to 8 [streams](GroupedWeightGradient::streams), and in a capture for a plan, streams or memory that an earlier call did not make; those of [`Handle::scaled_gemm`].
    pub fn grouped_weight_gradient(&self, of: GroupedWeightGradient<'_>) -> Result<()> {
        let GroupedWeightGradient { of, mut dw, config, expected_rows, streams, mut clamped } = of;
        check_streams(streams)?;
        match of {
            Of::Slots(slots) => {
                let out = slots.check(&dw, config, clamped.is_some())?;
                slots.enqueue(self, &mut dw, out, streams)
            }
            Of::Whole(whole) => {
                check_clamped(self, clamped.as_mut())?;
                whole.check_count_apart(self, &mut dw, clamped.as_mut())?;
                whole.enqueue(self, &mut dw, config, expected_rows)?;
                let held = (Sm90Along::K.step(), whole.dy.cols());
                count_clamped(self, (whole.groups, &whole.rows), held, clamped.as_mut())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::device::memory::assert_apart;

    /// On several streams the product of one group reads while that of another stores.
    #[test]
    fn dw_lies_apart_from_what_every_group_reads() {
        let names: Vec<_> = [["dY"; 6], ["X"; 6]].concat().into_iter().chain(["D"]).collect();
        assert_apart(&names, 1, 64, |at| {
            let spans = |i| Spans { numbers: at[i], block_scales: Some(at[i + 1]), scales: Some(at[i + 2]) };
            check_apart_from_all(&at[12], &[spans(0), spans(3)], &[spans(6), spans(9)])
        });
    }
}
