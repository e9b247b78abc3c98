//! What sources are quantized to for products, from the library's list of recipes: one that is new is verified and timed, or
//! named here as refused.

use scaled_gemm::{
    Basis, BlockShape, CastGroup, CastRecipe, CastScales, CastScheme, CodeFormat, CodeRounding, Fp8Format,
    Fp8Granularity, Fp8Rule, Nvfp4Options, Nvfp4Rule, Recipe, Scheme,
};

/// Why no producer is quantized by a recipe.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Refused {
    /// Tiles are for weights.
    Tiles,
    /// FP8 of rows and of groups is written by casts, which have one rule.
    OtherRule,
    /// A given scale for the whole matrix has no rule: it is checked once for a format.
    SameAsGiven,
    /// A transform, random rounding, torchao's rule.
    OtherOptions,
}

/// Whether the values of a producer are quantized by a recipe.
pub fn of_producers(recipe: Recipe) -> Result<(), Refused> {
    match recipe {
        Recipe::Fp8(fp8) => match fp8.granularity {
            Fp8Granularity::Group128x128 => Err(Refused::Tiles),
            Fp8Granularity::Tensor if recipe == Recipe::new(Scheme::Fp8Tensor(fp8.format)) => Ok(()),
            Fp8Granularity::Tensor => Err(Refused::SameAsGiven),
            Fp8Granularity::Row | Fp8Granularity::Group1x128 => match (fp8.rule, fp8.format) {
                (Fp8Rule::DeepSeek, Fp8Format::E4M3) => Ok(()),
                _ => Err(Refused::OtherRule),
            },
        },
        Recipe::Mxfp8(_) | Recipe::Mxfp4(_) => Ok(()),
        Recipe::Nvfp4(nvfp4) => {
            // Every field is looked at: one that is new is to be decided here.
            let Nvfp4Options { rule, block_scale: _, bound: _, shape, basis, rounding } = nvfp4.options();
            match (rule, shape, basis, rounding) {
                (_, BlockShape::Tile16x16, ..) => Err(Refused::Tiles),
                (Nvfp4Rule::TransformerEngine, BlockShape::Row1x16, Basis::Plain, CodeRounding::Nearest) => Ok(()),
                _ => Err(Refused::OtherOptions),
            }
        }
    }
}

/// Whether the gradient of x of SwiGLU is written by a recipe.
pub fn of_gradients(recipe: Recipe) -> bool {
    match recipe {
        Recipe::Fp8(fp8) => fp8.granularity == Fp8Granularity::Group1x128 && of_producers(recipe).is_ok(),
        Recipe::Mxfp8(_) => true,
        Recipe::Mxfp4(_) | Recipe::Nvfp4(_) => false,
    }
}

/// Every recipe of the library.
fn all() -> Vec<Recipe> {
    Recipe::all(CodeRounding::Stochastic { seed: 1, offset: 1 })
}

/// All that producers are quantized by.
pub fn products() -> Vec<Recipe> {
    all().into_iter().filter(|recipe| of_producers(*recipe).is_ok()).collect()
}

/// What they are not quantized by, but for what is the same as another.
pub fn refused() -> Vec<Recipe> {
    let others = |recipe: &Recipe| of_producers(*recipe).is_err_and(|why| why != Refused::SameAsGiven);
    all().into_iter().filter(others).collect()
}

/// All that gradients are quantized by.
pub fn gradients() -> Vec<Recipe> {
    all().into_iter().filter(|recipe| of_gradients(*recipe)).collect()
}

/// All that gradients are cast by: E4M3 in groups of 1x32 and 1x128, scales in every order, exact and powers of two.
pub fn gradient_casts() -> Vec<CastRecipe> {
    let taken = |scheme: &CastScheme| {
        scheme.format() == CodeFormat::E4M3 && matches!(scheme.group(), CastGroup::Group1x32 | CastGroup::Group1x128)
    };
    let of = |scheme: CastScheme| {
        let exact = CastRecipe::new(scheme);
        if scheme.scales() == CastScales::Ue8m0 { vec![exact] } else { vec![exact, exact.power_of_two()] }
    };
    CastScheme::all().filter(taken).flat_map(of).collect()
}

/// A recipe in words: scheme, rule, options.
pub fn name(recipe: Recipe) -> String {
    format!("{} {recipe}", recipe.scheme())
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Each recipe of the library is verified, or known to be refused for a reason; each kind of reason has as many as are counted here.
    #[test]
    fn every_recipe_is_verified_or_refused_for_a_reason() {
        let why = |refused| all().into_iter().filter(|recipe| of_producers(*recipe) == Err(refused)).count();
        let [tiles, rule, given, options] =
            [Refused::Tiles, Refused::OtherRule, Refused::SameAsGiven, Refused::OtherOptions].map(why);
        // FP8 in two formats (two rules of DeepGEMM have E4M3 alone), exact and powers of two; NVFP4 4over6 in eight modes.
        assert_eq!((tiles, rule, given, options), (16 + 1 + 8, 2 * (16 - 2), 16 - 2, 2 + 3));
        assert_eq!(refused().len() + given, tiles + rule + given + options);
        let count = |scheme: fn(Scheme) -> bool| products().iter().filter(|recipe| scheme(recipe.scheme())).count();
        assert_eq!(count(|s| matches!(s, Scheme::Fp8Row(_) | Scheme::Fp8Group1x128(_) | Scheme::Fp8Tensor(_))), 6);
        assert_eq!(count(|s| matches!(s, Scheme::Mxfp8(_) | Scheme::Mxfp4)), 15);
        assert_eq!(count(|s| matches!(s, Scheme::Nvfp4 | Scheme::Nvfp4Row)), 18);
        assert_eq!(products().len(), all().len() - tiles - rule - given - options);
        let formats = |format| gradients().iter().filter(|recipe| recipe.scheme() == Scheme::Mxfp8(format)).count();
        assert_eq!((gradients().len(), formats(Fp8Format::E4M3), formats(Fp8Format::E5M2)), (12, 5, 5));
        assert_eq!(gradient_casts().len(), 2 * (2 + 2 + 1));
        // Two recipes of one name would be counted as one.
        let names: std::collections::HashSet<_> = all().into_iter().map(name).collect();
        assert_eq!(names.len(), all().len());
    }
}
