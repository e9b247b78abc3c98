//! [`GroupedWeightGradient`]: gradients of the matrices of groups, whose rows are summed over.

use crate::error::{Error, Result};
use crate::format::{DType, Recipe};
use crate::gpu::cast::quantize::QuantizeTo;
use crate::gpu::gemm::args::GemmArgs;
use crate::gpu::handle::Handle;
use crate::gpu::matrix::{MatMut, MatRef, QuantMatrix};

/// `dW_g += dY_gᵀ X_g` of every group g, FP32: groups along k. dY and X lie in slots of equal length, a multiple of 16 rows; each slot is cast to the transpose
/// that the product reads ([`Handle::quantize_slots_transposed_into`]), and is summed over whole. Rows of no group must be zeros in both, which
/// [`Handle::clear_between_groups`] sees to, whatever the counts are by then: they add nothing, and so one captured graph of clearing, casts and
/// products takes any counts.
///
/// One product a group, one after the other on the handle's stream, each of all rows of a slot: there is no kernel for all of them yet, and an empty
/// group takes as long as a full one.
pub struct GroupedWeightGradient<'a> {
    dy: &'a [QuantMatrix],
    x: &'a [QuantMatrix],
    dw: MatMut<'a>,
}

impl<'a> GroupedWeightGradient<'a> {
    /// dY transposed, out x slot rows, and X transposed, features x slot rows, of each group; dW F32, `groups * out` rows of features.
    pub fn new(dy: &'a [QuantMatrix], x: &'a [QuantMatrix], dw: MatMut<'a>) -> Self {
        Self { dy, x, dw }
    }

    /// Which way the products go, what it costs in memory, and why.
    ///
    /// # Errors
    /// As [`Handle::grouped_weight_gradient`].
    pub fn explain(&mut self, handle: &Handle) -> Result<String> {
        let out = self.check()?;
        let groups = self.dy.len();
        let Some(desc) = (0..groups.min(1)).map(|g| self.one(g, out)?.desc()).next().transpose()? else {
            return Ok("no groups: nothing to do".to_string());
        };
        Ok(format!(
            "{groups} groups along k\n  one product a group, one after the other on the handle's stream, each of all rows of a slot: empty groups take as long\n  because there is no kernel for all of them\n{}",
            handle.plan(&desc)?.explain()
        ))
    }

    /// Rows of dW of each group.
    fn check(&self) -> Result<usize> {
        let Self { dy, x, dw } = self;
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
        if Some(dw.rows()) != dy.len().checked_mul(first_dy.rows()) || dw.cols() != first_x.rows() {
            return Err(Error::shape(
                "dW",
                format!("{} x {}", dw.rows(), dw.cols()),
                format!(
                    "must be {} * {} x {}: as many rows for each group as dY has features",
                    dy.len(),
                    first_dy.rows(),
                    first_x.rows()
                ),
                "pass the gradients of all groups, rows upon rows",
            ));
        }
        if dw.dtype() != DType::F32 {
            return Err(Error::dtype("dW", dw.dtype(), "is not f32", "add gradients up in f32"));
        }
        Ok(first_dy.rows())
    }

    fn one(&mut self, g: usize, out: usize) -> Result<GemmArgs<'_>> {
        let dw = self.dw.rows_part(g * out..(g + 1) * out)?;
        Ok(GemmArgs::new(&self.dy[g], &self.x[g], dw).accumulate(1.0))
    }
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
        let recipe = recipe.into();
        let slot = into.first().map_or(0, QuantMatrix::cols);
        if into.iter().any(|q| q.cols() != slot) || slot.checked_mul(into.len()).is_none_or(|all| all > x.rows()) {
            return Err(Error::shape(
                "X",
                format!("{} rows for {} slots of {slot}", x.rows(), into.len()),
                "must hold every slot, all of the same rows",
                "pass an X of all slots",
            ));
        }
        into.iter_mut().enumerate().try_for_each(|(g, to)| {
            self.quantize_into(&x.rows_part(g * slot..(g + 1) * slot)?, recipe, QuantizeTo::Transposed(to))
        })
    }

    /// The gradients of all groups, added to dW, by the plan that [`Handle::scaled_gemm`] makes of one, in the first call. Allocates nothing and waits for
    /// nothing after that; safe inside graph capture then. The handle keeps its 64 last used plans: where as many others came between, run it once more
    /// before a capture, which is refused otherwise.
    ///
    /// # Errors
    /// [`Error::Shape`], [`Error::DType`] for what does not fit together, and another number of groups; those of [`Handle::scaled_gemm`].
    pub fn grouped_weight_gradient(&self, mut of: GroupedWeightGradient<'_>) -> Result<()> {
        let out = of.check()?;
        (0..of.dy.len()).try_for_each(|g| self.scaled_gemm(of.one(g, out)?))
    }
}
