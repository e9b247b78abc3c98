//! [`Handle::quantize_stacked_transposed_into`]: the transposes of all matrices of groups, rows upon rows, as the gradient of the input reads them.

use crate::error::{Error, Result};
use crate::format::layout::ScaleLayout;
use crate::format::{Recipe, Scheme};
use crate::gpu::cast::quantize::QuantizeTo;
use crate::gpu::handle::Handle;
use crate::gpu::matrix::{MatRef, QuantMatrix, rows_lie_together};

/// Rows at which a part of a matrix may begin.
const STEP: usize = 128;

/// Why transposes of this scheme do not lie upon each other in one matrix.
fn why_not(scheme: Scheme) -> Option<(&'static str, &'static str)> {
    if !rows_lie_together(scheme) {
        return Some((
            "its scales lie by columns, across all matrices",
            "take fp8-128x128 or fp8-row, or transpose the numbers and quantize all of them at once",
        ));
    }
    (scheme.spec().scale_layout == ScaleLayout::Scalar).then_some((
        "it has one scale for all matrices, and each cast would make its own",
        "take a GroupedTensor of transposes for fp8-tensor (GroupedTensor::stacked), and nvfp4-row for nvfp4",
    ))
}

/// Rows of each matrix and of each transpose, if they fit: `[groups * n, k]` to `[groups * k, n]`.
fn fit(w: [usize; 2], groups: usize, into: [usize; 2]) -> Result<[usize; 2]> {
    let ([rows, k], [all, n]) = (w, into);
    if groups.checked_mul(n) != Some(rows) || groups.checked_mul(k) != Some(all) {
        return Err(Error::shape(
            "the transposes",
            format!("{all} x {n} of {groups} matrices in {rows} x {k}"),
            "must be groups * k x n of groups * n x k".to_string(),
            "pass a target of that shape",
        ));
    }
    if groups > 1 && !k.is_multiple_of(STEP) {
        return Err(Error::shape(
            "the transposes",
            format!("k = {k}"),
            format!("must be a multiple of {STEP}, at which parts of a matrix begin"),
            "pad the matrices with columns of zeros",
        ));
    }
    Ok([n, k])
}

impl Handle {
    /// Casts every matrix of groups to its transpose: W has `groups * n` rows of k columns, those of group 0 first, and `into` `groups * k` rows of n, likewise: B of the gradient of the input,
    /// `dX_g = dY_g W_g`, which is a product of groups of dY with it ([`Handle::grouped_gemm`]). Each has the bytes of [`Handle::quantize_into`] of its matrix alone
    /// ([`QuantizeTo::Transposed`]). One launch a group, or two; allocates nothing and waits for nothing, once the kernels are loaded: safe inside graph capture, so that an optimizer step may refresh them there.
    ///
    /// W: BF16, F16 or F32, n and k multiples of 16, k of 128 where there are several matrices, and for the product that follows, whose n it is; no groups is no work. `into`: of the recipe's scheme, whose scales follow rows: `fp8-row`, `fp8-128x128`, `mxfp8`, `mxfp4`, `nvfp4-row`.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for a scheme with one scale for all, or with scales by columns, for repacked codes, and for another basis than a graph knows; [`Error::Shape`] unless both fit; those of [`Handle::quantize_into`], by the first group: then later ones are not written.
    pub fn quantize_stacked_transposed_into(
        &self,
        w: &MatRef<'_>,
        groups: usize,
        recipe: impl Into<Recipe>,
        into: &mut QuantMatrix,
    ) -> Result<()> {
        let recipe = recipe.into();
        let scheme = recipe.scheme();
        if let Some((reason, remedy)) = why_not(scheme) {
            return Err(Error::unsupported(format!("transposes of groups as {scheme} in one matrix"), reason, remedy));
        }
        if into.scheme() != scheme {
            return Err(Error::unsupported(
                format!("a recipe of {scheme} for transposes in {}", into.scheme()),
                "a target has the scheme of its recipe",
                "pass a target of the recipe's scheme",
            ));
        }
        let [n, k] = fit([w.rows(), w.cols()], groups, [into.rows(), into.cols()])?;
        into.check_published("transposes of groups")?;
        self.check_basis(recipe.basis(), into)?;
        // No launch of another thread comes between the parts and what is derived of the whole.
        let _turn = self.queue().turn();
        for g in 0..groups {
            let part = into.rows_part(g * k..(g + 1) * k);
            let mut part =
                part.ok_or_else(|| super::slots::bug(format!("rows of {scheme}"), "they do not lie together"))??;
            self.quantize_into(&w.rows_part(g * n..(g + 1) * n)?, recipe, QuantizeTo::Transposed(&mut part))?;
        }
        self.rewritten(recipe, [Some(into), None])
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::Fp8Format;

    #[test]
    fn shapes_and_schemes_that_do_not_fit_are_refused() {
        assert_eq!(fit([3 * 256, 384], 3, [3 * 384, 256]).unwrap(), [256, 384]);
        assert_eq!(fit([256, 48], 1, [48, 256]).unwrap(), [256, 48]);
        let text = |w, groups, into| fit(w, groups, into).map(drop).unwrap_err().to_string();
        assert!(text([3 * 256, 384], 3, [2 * 384, 256]).contains("768 x 256 of 3 matrices in 768 x 384"));
        assert!(text([2 * 256, 200], 2, [2 * 200, 256]).contains("k = 200 must be a multiple of 128"));
        assert!(text([256, 128], usize::MAX, [128, 256]).contains("must be groups * k x n"));
        let refused = |scheme: Scheme| why_not(scheme).map(|(reason, _)| reason);
        let f = Fp8Format::E4M3;
        for taken in [Scheme::Fp8Row(f), Scheme::Fp8Group128x128(f), Scheme::Mxfp8(f), Scheme::Mxfp4, Scheme::Nvfp4Row]
        {
            assert_eq!(refused(taken), None, "{taken}");
        }
        assert!(refused(Scheme::Fp8Group1x128(f)).unwrap().contains("by columns"));
        assert!(refused(Scheme::Fp8Tensor(f)).unwrap().contains("one scale for all"));
        assert!(refused(Scheme::Nvfp4).unwrap().contains("one scale for all"));
    }
}
