//! Casts of slots of rows, each to a transpose of its own, as gradients one a group read them: by a recipe, or with given scales.

use crate::error::{Error, Result};
use crate::format::{Fp8Format, GivenScale, Recipe};
use crate::gpu::cast::quantize::QuantizeTo;
use crate::gpu::device::memory::DeviceBytes;
use crate::gpu::handle::Handle;
use crate::gpu::matrix::{MatRef, QuantMatrix};

/// Rows of each slot, if X has those of all.
fn slot_rows(x: &MatRef<'_>, into: &[QuantMatrix]) -> Result<usize> {
    let slot = into.first().map_or(0, QuantMatrix::cols);
    if into.iter().any(|q| q.cols() != slot) || slot.checked_mul(into.len()).is_none_or(|all| all > x.rows()) {
        return Err(Error::shape(
            "X",
            format!("{} rows for {} slots of {slot}", x.rows(), into.len()),
            "must hold every slot, all of the same rows",
            "pass an X of all slots",
        ));
    }
    Ok(slot)
}

/// Refuses other than one FP32 number for each slot.
fn check_scales(bytes: usize, slots: usize) -> Result<()> {
    if Some(bytes) == slots.checked_mul(4) {
        return Ok(());
    }
    Err(Error::shape(
        "given scales of slots",
        format!("{bytes} bytes"),
        format!("must be 4 for each of {slots} slots"),
        "pass an FP32 number for each slot, those without rows too",
    ))
}

impl Handle {
    /// Casts each slot of X, as many rows as there are columns of each result, to its transpose. Allocates nothing and waits for nothing, once the
    /// kernels are loaded; safe inside graph capture.
    ///
    /// # Errors
    /// [`Error::Shape`] unless X has the rows of all slots; those of [`Handle::quantize_into`] for each slot.
    pub fn quantize_slots_transposed_into(
        &self,
        x: &MatRef<'_>,
        recipe: impl Into<Recipe>,
        into: &mut [QuantMatrix],
    ) -> Result<()> {
        let (recipe, slot) = (recipe.into(), slot_rows(x, into)?);
        into.iter_mut().enumerate().try_for_each(|(g, to)| {
            self.quantize_into(&x.rows_part(g * slot..(g + 1) * slot)?, recipe, QuantizeTo::Transposed(to))
        })
    }

    /// The same with a given scale for each slot: delayed scaling of what gradients of the matrices of experts read. `code[j, i] = sat(fl(x[i, j] * encode[g]))` of the rows i of slot g, and the scale of each result: of encode and decode factor one
    /// is given, the other is `fl(1 / given)`. The bytes are those of [`Handle::quantize_tensor_into`] of the transpose of that slot alone, with its number.
    ///
    /// X: BF16, F16 or F32, rows at any stride, a slot as many as there are columns of each result, a multiple of 16; columns a multiple of 16. Scales: FP32, 4-byte aligned, one for each slot, those without rows too; each launch of a captured graph reads them
    /// anew. Results: `fp8-tensor` of `format`, X's columns by the rows of a slot. The input is read once. No amax is raised here: that of the same numbers the cast of the forward pass raises
    /// ([`Handle::quantize_grouped_with_scales_into`]), or [`Handle::group_amax_into`] finds it, for [`Handle::delayed_update_grouped_into`].
    ///
    /// One launch a slot. Allocates nothing and waits for nothing, once the kernels are loaded; safe inside graph capture.
    ///
    /// ```no_run
    /// # use scaled_gemm::{DeviceBuffer, Fp8Format, GivenScale, GroupedWeightGradient, Handle, MatMut, MatRef, QuantMatrix, Result};
    /// # fn gradients(
    /// #     handle: &Handle, dy: &MatRef<'_>, x: &MatRef<'_>, factors: [&DeviceBuffer; 2], dy_t: &mut [QuantMatrix], x_t: &mut [QuantMatrix], dw: MatMut<'_>,
    /// # ) -> Result<()> {
    /// // Factors of each expert, of the steps before: one for its gradients, one for its tokens.
    /// let [of_dy, of_x] = factors.map(|factors| GivenScale::Encode(factors.view()));
    /// handle.quantize_slots_transposed_with_scales_into(dy, Fp8Format::E5M2, &of_dy, dy_t)?;
    /// handle.quantize_slots_transposed_with_scales_into(x, Fp8Format::E4M3, &of_x, x_t)?;
    /// handle.grouped_weight_gradient(GroupedWeightGradient::new(dy_t, x_t, dw))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    /// [`Error::Shape`] unless X has the rows of all slots, there are as many scales as slots, and results are of that scheme and shape, and where one overlaps X or its scale; [`Error::DType`] for another X; [`Error::Alignment`]; [`Error::Unsupported`] if
    /// scales are given as amax. What the slots share is looked at first; where one of them alone does not fit, those before it are written.
    pub fn quantize_slots_transposed_with_scales_into(
        &self,
        x: &MatRef<'_>,
        format: Fp8Format,
        scales: &GivenScale<DeviceBytes<'_>>,
        into: &mut [QuantMatrix],
    ) -> Result<()> {
        if matches!(scales, GivenScale::Amax(_)) {
            return Err(scales.needs_recipe());
        }
        let slot = slot_rows(x, into)?;
        check_scales(scales.number().len(), into.len())?;
        into.iter_mut().enumerate().try_for_each(|(g, to)| {
            let own = scales.with_number(scales.number().part(g * 4..(g + 1) * 4)?);
            self.quantize_tensor_transposed_into(&x.rows_part(g * slot..(g + 1) * slot)?, format, &own, to, None)
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scales_are_one_for_each_slot() {
        check_scales(0, 0).unwrap();
        check_scales(12, 3).unwrap();
        for (bytes, slots) in [(8, 3), (16, 3), (13, 3), (4, 0), (0, usize::MAX / 2 + 1)] {
            let said = check_scales(bytes, slots).unwrap_err().to_string();
            assert!(said.contains(&format!("{bytes} bytes")) && said.contains("each of"), "{said}");
        }
    }
}
