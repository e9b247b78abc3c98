//! Recipes in words and in JSON, and those that `verify` checks.

use scaled_gemm::{
    Basis, BlockScaleRule, BlockShape, CodeFormat, CodeRounding, E4m3Bound, Error, ErrorMath, ErrorMetric, Fp8Format,
    MxRounding, Nvfp4Options, Preset, Recipe, Result, ScaleRounding, Scheme,
};
use serde_json::{Map, Value, json};

/// The rule and every option of the scheme's family: `transformer-engine, 4over6 mae strict, bound 256, 16x16 tiles`.
pub fn describe(recipe: Recipe) -> String {
    let mut words = Vec::new();
    if matches!(recipe.scheme, Scheme::Mxfp8(_)) {
        words.push(format!("scales rounded {}", recipe.mx.name()));
    } else {
        words.push(recipe.preset.name().to_string());
    }
    if recipe.scheme.spec().block.is_none() {
        words.push(match recipe.rounding {
            ScaleRounding::Exact => "exact scales".into(),
            ScaleRounding::PowerOfTwo => "power-of-two scales".into(),
        });
    }
    let options = recipe.nvfp4;
    if let BlockScaleRule::FourOverSix { metric, math } = options.block_scale {
        words.push(format!("4over6 {} {}, bound {}", metric.name(), math.name(), options.bound.value()));
    }
    if options.shape == BlockShape::Tile16x16 {
        words.push("16x16 tiles".into());
    }
    if options.basis == Basis::Hadamard16 {
        words.push("hadamard".into());
    }
    if let CodeRounding::Stochastic { seed, .. } = options.rounding {
        words.push(format!("stochastic, seed {seed}"));
    }
    words.join(", ")
}

/// The same for programs: the options of the command line that belong to the scheme, with what they were.
pub fn options(recipe: Recipe) -> Value {
    let mut options = Map::new();
    let mut put = |key: &str, value: Value| options.insert(key.to_string(), value);
    if let Scheme::Mxfp8(_) = recipe.scheme {
        put("mx_rounding", recipe.mx.name().into());
    }
    if recipe.scheme.is_nvfp4() {
        let (metric, math) = match recipe.nvfp4.block_scale {
            BlockScaleRule::FourOverSix { metric, math } => (Some(metric.name()), Some(math.name())),
            BlockScaleRule::Plain => (None, None),
        };
        put("four_over_six", json!(metric));
        put("error_math", json!(math));
        put("e4m3_max", json!(recipe.nvfp4.bound.value() as u32));
        put("tile_16x16", json!(recipe.nvfp4.shape == BlockShape::Tile16x16));
        put("hadamard", json!(recipe.nvfp4.basis == Basis::Hadamard16));
        put(
            "stochastic",
            match recipe.nvfp4.rounding {
                CodeRounding::Stochastic { seed, .. } => seed.into(),
                CodeRounding::Nearest => Value::Null,
            },
        );
    }
    Value::Object(options)
}

/// Refuses what the library would compute and no project does: a file is to say what its preset's project writes.
///
/// # Errors
/// [`Error::Unsupported`].
pub fn check_published(recipe: Recipe) -> Result<()> {
    if recipe.preset == Preset::DeepGemm && recipe.format() == CodeFormat::E5M2 {
        return Err(Error::unsupported(
            format!("the preset deepgemm with {}", recipe.scheme),
            "DeepGEMM has E4M3 codes only",
            "leave --format out, or use another preset",
        ));
    }
    Ok(())
}

/// Every recipe with every option: each FP8 rule, each MX rounding, and all that NVFP4 allows.
pub fn variants(seed: u64) -> Vec<Recipe> {
    let mut recipes = Vec::new();
    for scheme in Scheme::FP8 {
        for preset in Preset::FP8 {
            let recipe = Recipe::new(scheme).with_preset(preset);
            recipes.extend([recipe, recipe.power_of_two()]);
        }
    }
    for format in [Fp8Format::E4M3, Fp8Format::E5M2] {
        recipes.extend(MxRounding::ALL.map(|mx| Recipe::new(Scheme::Mxfp8(format)).with_mx(mx)));
    }
    recipes.extend([Preset::TorchAo, Preset::TorchAoCpu].map(|p| Recipe::new(Scheme::Nvfp4).with_preset(p)));
    // The rules of `Recipe::check` choose among all combinations.
    let mut sixes = vec![BlockScaleRule::Plain];
    for metric in [ErrorMetric::Mae, ErrorMetric::Mse] {
        sixes.extend([ErrorMath::Strict, ErrorMath::Fast].map(|math| BlockScaleRule::FourOverSix { metric, math }));
    }
    for scheme in [Scheme::Nvfp4, Scheme::Nvfp4Row] {
        for block_scale in sixes.iter().copied() {
            for bound in [E4m3Bound::Max448, E4m3Bound::Max256] {
                for shape in [BlockShape::Row1x16, BlockShape::Tile16x16] {
                    for basis in [Basis::Plain, Basis::Hadamard16] {
                        for rounding in [CodeRounding::Nearest, CodeRounding::Stochastic { seed, offset: 1 }] {
                            let options = Nvfp4Options { block_scale, bound, shape, basis, rounding };
                            recipes.push(Recipe::new(scheme).with_nvfp4(options));
                        }
                    }
                }
            }
        }
    }
    recipes.retain(|r| r.check().and(check_published(*r)).is_ok());
    recipes
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_is_there_once() {
        let all = variants(1);
        let count = |scheme: Scheme| all.iter().filter(|r| r.scheme == scheme).count();
        assert_eq!(count(Scheme::Fp8Row(Fp8Format::E4M3)), 10);
        // DeepGEMM has none.
        assert_eq!(count(Scheme::Fp8Row(Fp8Format::E5M2)), 6);
        assert_eq!(count(Scheme::Mxfp8(Fp8Format::E5M2)), 5);
        // torchao's two; plain, Hadamard, stochastic, both, tiles; 4over6 in 8 modes, rows and tiles.
        assert_eq!(count(Scheme::Nvfp4), 2 + 5 + 16);
        assert_eq!(count(Scheme::Nvfp4Row), 1 + 8);
        let words: std::collections::HashSet<_> =
            all.iter().map(|r| format!("{} {}", r.scheme, describe(*r))).collect();
        assert_eq!(words.len(), all.len());
    }
}
