//! [`GroupedGemmPlan`]: a [`GroupedGemmDesc`] made ready once, and executed many times.

use super::way::{Made, Way};
use super::{GroupedGemmArgs, GroupedGemmDesc, slots};
use crate::error::{Error, Result};
use crate::gpu::handle::Handle;

/// One product of groups made ready on one handle: the way it goes and, where each slot is a product, the plan of that.
///
/// Made by [`Handle::plan_grouped`]. It owns no device memory and works on its own handle only, whose scratch memory, workspace and further streams all
/// plans share, in the order of the stream.
pub struct GroupedGemmPlan {
    desc: GroupedGemmDesc,
    handle_id: u64,
    way: Way,
    made: Made,
    explained: String,
}

impl Handle {
    /// Makes ready `D_g = activation(alpha * A_g B_gᵀ + bias_g)` for every group g: decides how it is computed, loads kernels, reserves scratch memory for the most rows that there may be,
    /// and where each slot is a product plans that (as [`Handle::plan`] does, so that a [tuning](Handle::set_tuning) counts that is set by then), runs it once on zeros and makes streams. [`GroupedGemmPlan::execute`] then allocates nothing, from its first call on, so that it may be that of a capture.
    ///
    /// Allocates where the handle has less scratch memory, and of products of slots the operands of one, which are freed in stream order; loads kernels at their first use; waits for nothing on the stream. Not for graph capture.
    ///
    /// ```no_run
    /// # use scaled_gemm::{CapturedGraph, DType, DeviceBuffer, Fp8Format, GroupedGemmArgs, GroupedGemmDesc, GroupedRows, Handle, MatMut, QuantMatrix, Result, Scheme};
    /// # fn step(handle: &Handle, x: &QuantMatrix, w: &QuantMatrix, counts: &DeviceBuffer, d: &mut DeviceBuffer) -> Result<CapturedGraph> {
    /// // 8 experts of 4096 x 7168 weights, in slots of 1024 tokens; the first call is captured.
    /// let (a, b) = (Scheme::Fp8Group1x128(Fp8Format::E4M3), Scheme::Fp8Group128x128(Fp8Format::E4M3));
    /// let mut plan = handle.plan_grouped(&GroupedGemmDesc::slots(8, 1024, 4096, 7168, a, b, DType::Bf16))?;
    /// handle.capture(|| {
    ///     let rows = GroupedRows::Masked { slot_rows: 1024, counts: counts.view() };
    ///     plan.execute(handle, GroupedGemmArgs::new(x, w, 8, rows, MatMut::new(d, DType::Bf16, 8 * 1024, 4096)?))
    /// })
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Pair`] for pairs that no way takes on this GPU; [`Error::Shape`] and [`Error::DType`] for what breaks a rule; [`Error::Unsupported`] for choices that cannot be, and inside graph capture;
    /// [`Error::Kernel`], [`Error::Library`], [`Error::Cublas`] and [`Error::Driver`] where kernels, streams or memory cannot be had.
    pub fn plan_grouped(&self, desc: &GroupedGemmDesc) -> Result<GroupedGemmPlan> {
        self.refuse_capture("planning a product of groups")?;
        let way = desc.way(self.device())?;
        way.make_ready(self, desc)?;
        let mut made = way.make(self, desc)?;
        if let Made::Slot(Some(plan)) = &mut made {
            slots::make_ready(self, desc, plan)?;
        }
        let explained = way.explain(self, desc, &made);
        Ok(GroupedGemmPlan { desc: *desc, handle_id: self.id(), way, made, explained })
    }
}

impl GroupedGemmPlan {
    /// The problem.
    pub fn desc(&self) -> &GroupedGemmDesc {
        &self.desc
    }

    /// Which way the products go, what it costs in memory, and why: what [`GroupedGemmArgs::explain`] says.
    pub fn explain(&self) -> &str {
        &self.explained
    }

    /// Bytes of the handle's scratch memory that a call uses ([`Handle::scratch_bytes`]), workspaces of further streams included.
    pub fn scratch_bytes(&self) -> usize {
        self.way.scratch_bytes(&self.desc, &self.made)
    }

    /// `D_g = activation(alpha * A_g B_gᵀ + bias_g)` of these operands, which are of [`GroupedGemmPlan::desc`]: the bits that [`Handle::grouped_gemm`], which says what is read and written, has with the [tuning](Handle::set_tuning) that was set when this was planned. Groups may have other places and counts at each launch.
    ///
    /// Expected rows, configuration, streams, one product a slot and cuBLASLt's own product are the plan's where the arguments leave them open, or ask for what it does anyway; others are refused.
    ///
    /// Enqueued on the handle's stream, and on those that the plan made: allocates nothing, waits for nothing; safe inside graph capture, which keeps the addresses and alpha it saw.
    ///
    /// # Errors
    /// Those of [`GroupedGemmArgs::desc`], first, for operands that do not fit together; [`Error::Shape`] if the problem is not as planned, another number of groups before all else, or what is written overlaps what is read; [`Error::Alignment`]; [`Error::Unsupported`] on another handle, for
    /// operands of another GPU, in a capture for borrowed memory, and after [`Handle::trim_scratch`], where the product takes scratch memory: plan again; [`Error::Cublas`] or [`Error::Driver`] if a launch fails.
    pub fn execute(&mut self, handle: &Handle, mut args: GroupedGemmArgs<'_>) -> Result<()> {
        handle.check_own(self.handle_id, "executing a plan")?;
        check_as_planned(&self.desc, &args.desc()?, &self.way)?;
        args.multiply(handle, &self.desc, &self.way, Some(&mut self.made))
    }
}

/// Refuses another problem. One product a slot may be asked for where that is the way anyway.
fn check_as_planned(planned: &GroupedGemmDesc, posed: &GroupedGemmDesc, way: &Way) -> Result<()> {
    let mut posed = posed.with_choices_of(planned);
    if matches!(way, Way::Slots(_)) {
        posed.product_a_slot = planned.product_a_slot;
    }
    match posed == *planned {
        true => Ok(()),
        false => Err(Error::shape(
            "operands of groups",
            planned.difference(&posed).unwrap_or_default(),
            "must be as in GroupedGemmPlan::desc",
            "make a plan for this problem, or call Handle::grouped_gemm",
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{DType, Fp8Format, Scheme};

    #[test]
    fn another_problem_is_refused_with_operand_numbers_rule_and_remedy() {
        let (a, b) = (Scheme::Fp8Group1x128(Fp8Format::E4M3), Scheme::Fp8Group128x128(Fp8Format::E4M3));
        let of = |groups| GroupedGemmDesc::slots(groups, 128, 256, 512, a, b, DType::Bf16);
        let planned = of(4).with_expected_rows(7);
        let slots = Way::Slots("a test".to_string());
        let launch = planned.way(&crate::gpu::grouped::way::tests::gpu((9, 0))).unwrap();
        for way in [&launch, &slots] {
            check_as_planned(&planned, &of(4), way).unwrap();
            check_as_planned(&planned, &of(4).with_expected_rows(7), way).unwrap();
        }
        check_as_planned(&planned, &of(4).with_product_a_slot(true), &slots).unwrap();
        for (posed, found) in [
            (of(5), "groups = 5 where 4 was planned"),
            (of(4).with_expected_rows(8), "expected rows = Some(8) where"),
            (of(4).with_product_a_slot(true), "one product a slot = true where false was planned"),
        ] {
            let text = check_as_planned(&planned, &posed, &launch).unwrap_err().to_string();
            for word in ["operands of groups", found, "GroupedGemmPlan::desc", "make a plan", "Handle::grouped_gemm"] {
                assert!(text.contains(word), "{text:?} lacks {word:?}");
            }
        }
    }
}
