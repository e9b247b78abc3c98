//! [`Handle::quantize_nvfp4_groups_into`]: rows of groups as NVFP4, by a second level of each group that is given; [`Handle::group_amax_into`] finds one.

use super::GroupedRows;
use super::rows::check_slots;
use crate::error::Result;
use crate::format::{GivenScale, Recipe, Scheme};
use crate::gpu::cast::apart::Quantizing;
use crate::gpu::cast::quantize::{check_input, check_target, input, output, read_of};
use crate::gpu::device::memory::{DeviceBytes, DeviceBytesMut, Span, check_apart};
use crate::gpu::handle::Handle;
use crate::gpu::kernels::{Factor, GROUP_AMAX, GroupPlaces, KernelFamily};
use crate::gpu::matrix::{MatRef, QuantMatrix, QuantSpans};

/// What messages call the levels.
const LEVELS: &str = "second levels of groups";

impl Handle {
    /// Quantizes the rows of groups as NVFP4 with a second level for each group that the caller brings, as published experts have an `input_scale` each (a decode factor): the
    /// rows of group g have the codes and block scales of [`Handle::quantize_nvfp4_into`] of them alone by `scales[g]`, and all of them its decode factor. `out` is `nvfp4-row`, so that whatever multiplies it multiplies by that; the recipe is one of that scheme.
    /// Rows of no group, and of one that is left out as it lies badly, read as zeros: their scale is 0. [`Handle::group_amax_into`] finds levels from the rows, as [`GivenScale::Amax`].
    ///
    /// X: BF16, F16 or F32, the rows of all groups by a multiple of 16 columns; `out` has its shape.
    ///
    /// `scales`: as many FP32 numbers as groups, 4-byte aligned. Where groups lie ([`GroupedRows`], as [`Handle::grouped_gemm`] takes them) and their levels each launch reads anew. Values above what a level was made for saturate. A launch before the quantizer's gives
    /// each row its level, in 4 bytes a row of scratch memory. Once that is there, by a first call of as many rows, and the kernels are loaded ([`KernelFamily::Grouped`], [`KernelFamily::Nvfp4`]), it allocates nothing and waits for nothing: safe inside graph capture.
    ///
    /// ```no_run
    /// # use scaled_gemm::{DType, DeviceBuffer, GivenScale, GroupedGemmArgs, GroupedRows, Handle, MatMut, MatRef, QuantMatrix, Recipe, Result, Scheme};
    /// /// `weights`: the codes and block scales of all experts, rows upon rows, as published; `weight_scales` and `input_scales`: what a checkpoint has of each expert.
    /// fn experts(
    ///     handle: &Handle,
    ///     x: &MatRef<'_>,
    ///     [weight_scales, input_scales]: [&DeviceBuffer; 2],
    ///     weights: &QuantMatrix,
    ///     places: impl Fn() -> GroupedRows<'static>,
    ///     d: MatMut<'_>,
    /// ) -> Result<()> {
    ///     let mut a = QuantMatrix::zeros(handle, Scheme::Nvfp4Row, x.rows(), x.cols())?;
    ///     let scales = GivenScale::Decode(input_scales.view());
    ///     handle.quantize_nvfp4_groups_into(x, Recipe::new(Scheme::Nvfp4Row), &scales, 8, &places(), &mut a)?;
    ///     handle.grouped_gemm(GroupedGemmArgs::new(&a, weights, 8, places(), d).scales_of_b(weight_scales.view()))
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType), [`Error::Alignment`](crate::Error::Alignment) if X, `out`, the levels or slots do not fit, or what is written overlaps what is read; [`Error::Unsupported`](crate::Error::Unsupported) for another scheme, and in a capture for scratch memory that no earlier call
    /// made; [`Error::Kernel`](crate::Error::Kernel) if kernels cannot be loaded; [`Error::Driver`](crate::Error::Driver) if a launch fails.
    pub fn quantize_nvfp4_groups_into(
        &self,
        x: &MatRef<'_>,
        recipe: impl Into<Recipe>,
        scales: &GivenScale<DeviceBytes<'_>>,
        groups: usize,
        rows: &GroupedRows<'_>,
        out: &mut QuantMatrix,
    ) -> Result<()> {
        let recipe = recipe.into();
        check_input(x)?;
        let nvfp4 = recipe.of_row_levels()?;
        check_target("target", out, Scheme::Nvfp4Row, x.rows(), x.cols())?;
        check_slots(rows.slot_rows(), groups, x.rows())?;
        self.check_basis(recipe.basis(), out)?;
        let (queue, kernels) = (self.queue(), self.kernels());
        kernels.load(queue, KernelFamily::Grouped)?;
        kernels.load_casts(queue, Scheme::Nvfp4Row)?;
        self.reserve_scratch(x.rows() * 4)?;
        // No launch of another thread comes between the codes and what is derived from them.
        let _turn = queue.turn();
        {
            let order = queue.order();
            let source = x.data().at(&order)?;
            let parts = out.write(&order)?;
            let of_groups = scales.number().at(&order)?;
            let levels = self.scratch(x.rows() * 4)?;
            rows.with_places(groups, &order, |places| {
                check_levels_apart(read_of(x, &source), &of_groups, &places, &parts)?;
                let (of_none, levels_of_rows) = match scales {
                    GivenScale::Amax(_) => (0.0, Factor::RowAmax(&levels)),
                    GivenScale::Encode(_) => (f32::INFINITY, Factor::RowEncode(&levels)),
                    GivenScale::Decode(_) => (0.0, Factor::RowDecode(&levels)),
                };
                kernels.spread_over_groups(queue, (&of_groups, of_none), &levels, x.rows(), &places)?;
                if x.rows() == 0 || x.cols() == 0 {
                    // As of rows without elements whose levels are found.
                    return kernels.zero(queue, &parts.scales, x.rows() * 4);
                }
                let (input, given) = (input(x, &source), [Some(levels_of_rows), None]);
                kernels.quantize_nvfp4(queue, &input, nvfp4, given, false, Some(&output(&parts)), None)
            })?;
        }
        self.rewritten(recipe, [Some(out), None])
    }
}

impl Handle {
    /// `amax[g] = max |x[i, j]|` over the rows i of group g and all columns, NaN ignored, an infinity where one is, 0 for a group without rows and for one that is left out as it lies badly: for each group the number of [`Handle::amax_into`] of its rows alone. Rows of no group count
    /// nowhere. As [`GivenScale::Amax`] of [`Handle::quantize_nvfp4_groups_into`] it gives the rows of each group the codes and scales that [`Handle::quantize_into`] gives them alone as `nvfp4` by a recipe with the same options, the
    /// second level being found on the device at each launch.
    ///
    /// X: BF16, F16 or F32, the rows of all groups by a multiple of 16 columns, at any stride. `amax`: as many FP32 numbers as groups, 4-byte aligned; what lies behind them is not written.
    ///
    /// Where groups lie ([`GroupedRows`], clamped as [`Handle::grouped_gemm`] does) each launch reads anew. A launch before finds the amax of each row, in 4 bytes a row of scratch memory. Once that is there, by a first call of as many rows,
    /// and the kernels are loaded ([`KernelFamily::Grouped`], [`KernelFamily::Fp8`]), it allocates nothing and waits for nothing: safe inside graph capture.
    ///
    /// ```no_run
    /// # use scaled_gemm::{DeviceBuffer, GivenScale, GroupedRows, Handle, MatRef, QuantMatrix, Recipe, Result, Scheme};
    /// /// Rows of eight experts, each with the second level of what it has at this launch.
    /// fn tokens(handle: &Handle, x: &MatRef<'_>, places: &GroupedRows<'_>, amax: &mut DeviceBuffer, a: &mut QuantMatrix) -> Result<()> {
    ///     handle.group_amax_into(x, 8, places, &mut amax.view_mut())?;
    ///     let found = GivenScale::Amax(amax.view());
    ///     handle.quantize_nvfp4_groups_into(x, Recipe::new(Scheme::Nvfp4Row), &found, 8, places, a)
    /// }
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape), [`Error::DType`](crate::Error::DType), [`Error::Alignment`](crate::Error::Alignment) if X, `amax`, slots or the numbers that say where groups lie do not fit, or `amax` overlaps what is read; [`Error::Unsupported`](crate::Error::Unsupported) in a capture for kernels
    /// and scratch memory that no earlier call made; [`Error::Kernel`](crate::Error::Kernel) if kernels cannot be loaded; [`Error::Driver`](crate::Error::Driver) if a launch fails.
    pub fn group_amax_into(
        &self,
        x: &MatRef<'_>,
        groups: usize,
        rows: &GroupedRows<'_>,
        amax: &mut DeviceBytesMut<'_>,
    ) -> Result<()> {
        check_input(x)?;
        check_slots(rows.slot_rows(), groups, x.rows())?;
        let (queue, kernels) = (self.queue(), self.kernels());
        [KernelFamily::Grouped, KernelFamily::Fp8].into_iter().try_for_each(|family| kernels.load(queue, family))?;
        // Without columns X may have any number of rows.
        let bytes = if x.cols() == 0 { 0 } else { x.rows() * 4 };
        self.reserve_scratch(bytes)?;
        let order = queue.order();
        let source = x.data().at(&order)?;
        let amax = amax.at(&order)?;
        let of_rows = self.scratch(bytes)?;
        rows.with_places(groups, &order, |places| {
            check_amax_apart(read_of(x, &source), &places, &amax)?;
            kernels.amax_over_groups(queue, &input(x, &source), &of_rows, &places, &amax)
        })
    }
}

/// That an amax of each group lies apart from X and where groups lie.
fn check_amax_apart(x: Span<'_>, places: &GroupPlaces<'_>, amax: &Span<'_>) -> Result<()> {
    let written = [(GROUP_AMAX, amax.slice(0, places.groups.saturating_mul(4)))];
    check_apart(places.read().chain([("x", x)]), written.into_iter())
}

/// That what is written lies apart from X, levels and where groups lie, and from what else is written.
fn check_levels_apart(x: Span<'_>, levels: &Span<'_>, places: &GroupPlaces<'_>, out: &QuantSpans<'_>) -> Result<()> {
    Quantizing { out: Some(out), ..Quantizing::of(x) }.check()?;
    let read = places.read().chain([(LEVELS, levels.slice(0, places.groups.saturating_mul(4)))]);
    let written = [("codes", out.codes), ("scales", out.scales), ("block scales", out.block_scales)];
    check_apart(read, written.into_iter())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::device::memory::assert_apart;

    #[test]
    fn codes_and_scales_lie_apart_from_levels_and_where_groups_lie() {
        let names = ["x", LEVELS, "counts of groups", "starts of groups", "codes", "scales", "block scales"];
        assert_apart(&names, 3, 24, |at| {
            let places = GroupPlaces { groups: 3, starts: Some(&at[3]), slot_rows: 0, counts: &at[2] };
            let out = QuantSpans { codes: at[4], scales: at[5], block_scales: at[6] };
            check_levels_apart(at[0], &at[1].slice(0, 24), &places, &out)
        });
    }

    #[test]
    fn an_amax_of_each_group_lies_apart_from_rows_and_where_groups_lie() {
        assert_apart(&["x", "counts of groups", "starts of groups", GROUP_AMAX], 1, 24, |at| {
            let places = GroupPlaces { groups: 3, starts: Some(&at[2]), slot_rows: 0, counts: &at[1] };
            check_amax_apart(at[0], &places, &at[3])
        });
        // Memory behind the numbers of groups is no part of them.
        let (counts, amax) = (Span::unguarded(4096, 64), Span::unguarded(4096 + 24, 64));
        let places = GroupPlaces { groups: 3, starts: None, slot_rows: 8, counts: &counts };
        check_amax_apart(Span::unguarded(4096 + 36, 64), &places, &amax).unwrap();
        let said = check_amax_apart(Span::unguarded(4096 + 35, 64), &places, &amax).unwrap_err().to_string();
        assert!(said.contains("amax of groups: 12 bytes at 0x1018") && said.contains("the x, 64 bytes"), "{said}");
    }
}
