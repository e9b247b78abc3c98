//! Recipes in JSON.

use scaled_gemm::{Basis, BlockScaleRule, BlockShape, CodeRounding, Error, Mxfp4Recipe, Mxfp8Recipe, Recipe, Result};
use serde_json::{Map, Value, json};

use crate::target::Target;

/// Whose rule it is: a project's name, or null where rules have other names.
pub fn preset(target: Target) -> Value {
    match target {
        Target::Recipe(Recipe::Fp8(recipe)) => recipe.rule.name().into(),
        Target::Recipe(Recipe::Nvfp4(recipe)) => recipe.options().rule.name().into(),
        Target::Recipe(Recipe::Mxfp8(_) | Recipe::Mxfp4(_)) | Target::Cast(_) => Value::Null,
    }
}

/// The name of the scheme: `cast` for groupings, which are among the options.
pub fn scheme(target: Target) -> &'static str {
    target.product().map_or("cast", |scheme| scheme.spec().name)
}

/// The options of the command line that belong to the scheme, with what they were.
pub fn options(target: Target) -> Value {
    let mut options = Map::new();
    let mut put = |key: &str, value: Value| options.insert(key.to_string(), value);
    let recipe = match target {
        Target::Recipe(recipe) => recipe,
        Target::Cast(recipe) => {
            let scheme = recipe.scheme();
            put("group", scheme.group().name().into());
            put("scales", scheme.scales().name().into());
            put("transposed", scheme.is_transposed().into());
            put("rounding", recipe.numbers().name().into());
            return Value::Object(options);
        }
    };
    if let Recipe::Mxfp8(Mxfp8Recipe { rule, .. }) | Recipe::Mxfp4(Mxfp4Recipe { rule }) = recipe {
        put("mx_rounding", rule.name().into());
    }
    if let Recipe::Nvfp4(recipe) = recipe {
        let recipe = recipe.options();
        let (metric, math) = match recipe.block_scale {
            BlockScaleRule::FourOverSix { metric, math } => (Some(metric.name()), Some(math.name())),
            BlockScaleRule::Plain => (None, None),
        };
        put("four_over_six", json!(metric));
        put("error_math", json!(math));
        put("e4m3_max", json!(recipe.bound.value() as u32));
        put("tile_16x16", json!(recipe.shape == BlockShape::Tile16x16));
        put("hadamard", json!(recipe.basis == Basis::Hadamard16));
        put(
            "stochastic",
            match recipe.rounding {
                CodeRounding::Stochastic { seed, .. } => seed.into(),
                CodeRounding::Nearest => Value::Null,
            },
        );
    }
    Value::Object(options)
}

/// Refuses what no project computes, as the library would, in the words of the options: before anything is read.
///
/// # Errors
/// [`Error::Unsupported`].
pub fn check_published(recipe: Recipe) -> Result<()> {
    if matches!(recipe, Recipe::Fp8(fp8) if !fp8.rule.has(fp8.format)) {
        return Err(Error::unsupported(
            format!("the preset deepgemm with {}", recipe.scheme()),
            "DeepGEMM has E4M3 codes only",
            "leave --format out, or use another preset",
        ));
    }
    Ok(())
}
