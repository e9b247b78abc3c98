//! The metadata entry `scaled_gemm.NAME`: how a matrix was quantized, in JSON.

use std::str::FromStr;

use serde_json::{Map, Value, json};

use super::cast_recipe::CAST;
use super::fused::FusedRows;
use super::{Dialect, NibbleOrder};
use crate::format::{
    Basis, BlockScaleRule, CastScheme, CodeFormat, CodeRounding, DType, E4m3Bound, Mxfp4Recipe, Mxfp8Recipe,
    Nvfp4Options, Nvfp4Recipe, Recipe, Scheme,
};
use crate::names::UnknownName;

/// How a matrix of a file was quantized: the metadata entry `scaled_gemm.NAME`.
///
/// In JSON every entry has `scheme` (`fp8-1x128`), `format` (`e4m3`, `e5m2`, `e2m1`), `source` (the type the matrix had
/// before, `bf16`), `dialect` (`plain`, `modelopt`: under whose names; older files lack it) and `writer`. FP8 adds `preset` and `rounding` (`exact`, `power-of-two`), MXFP8 `mx_rounding`, NVFP4
/// `preset`, `nibble_order` (`low-first`), `block_scale` (`plain`, or `four-over-six` with `error_metric` and `error_math`),
/// `e4m3_max` (448, 256), `block_shape` (`1x16`, `16x16`), `basis` (`plain`, `hadamard16`) and `code_rounding` (`nearest`, or
/// `stochastic` with `seed` and `offset`).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrittenRecipe {
    /// Scheme and rule.
    pub recipe: Recipe,
    /// Element type of the matrix that was quantized.
    pub source: DType,
}

impl WrittenRecipe {
    pub(super) fn to_json(self, nibble_order: NibbleOrder, dialect: Dialect) -> String {
        let recipe = self.recipe;
        let spec = recipe.scheme().spec();
        let mut entry = Map::new();
        let mut put = |key: &str, value: Value| entry.insert(key.to_string(), value);
        put("scheme", spec.name.into());
        put("format", spec.format.name().into());
        match recipe {
            Recipe::Fp8(recipe) => {
                put("preset", recipe.rule.name().into());
                put("rounding", recipe.scales.name().into());
            }
            Recipe::Mxfp8(Mxfp8Recipe { rule, .. }) | Recipe::Mxfp4(Mxfp4Recipe { rule }) => {
                put("mx_rounding", rule.name().into());
            }
            Recipe::Nvfp4(recipe) => {
                let options = recipe.options();
                put("preset", options.rule.name().into());
                put("nibble_order", nibble_order.name().into());
                match options.block_scale {
                    BlockScaleRule::Plain => put("block_scale", PLAIN.into()),
                    BlockScaleRule::FourOverSix { metric, math } => {
                        put("error_metric", metric.name().into());
                        put("error_math", math.name().into());
                        put("block_scale", FOUR_OVER_SIX.into())
                    }
                };
                put("e4m3_max", json!(options.bound.value() as u32));
                put("block_shape", options.shape.name().into());
                put("basis", options.basis.name().into());
                match options.rounding {
                    CodeRounding::Nearest => put("code_rounding", NEAREST.into()),
                    CodeRounding::Stochastic { seed, offset } => {
                        put("seed", seed.into());
                        put("offset", offset.into());
                        put("code_rounding", STOCHASTIC.into())
                    }
                };
            }
        }
        put("source", self.source.name().into());
        put("dialect", dialect.name().into());
        put("writer", concat!("scaled-gemm ", env!("CARGO_PKG_VERSION")).into());
        Value::Object(entry).to_string()
    }

    /// Parses the entry; the error is the reason, to follow the tensor's name.
    pub(super) fn from_json(text: &str) -> Result<Self, String> {
        let value = parse(text)?;
        let mut recipe = Recipe::new(scheme_of(&value)?);
        match &mut recipe {
            Recipe::Fp8(recipe) => {
                recipe.rule = word(&value, "preset")?;
                recipe.scales = word(&value, "rounding")?;
            }
            Recipe::Mxfp8(Mxfp8Recipe { rule, .. }) | Recipe::Mxfp4(Mxfp4Recipe { rule }) => {
                *rule = word(&value, "mx_rounding")?;
            }
            Recipe::Nvfp4(recipe) => {
                let options = nvfp4_options(&value)?;
                let with = if recipe.scheme() == Scheme::Nvfp4 { Nvfp4Recipe::tensor } else { Nvfp4Recipe::rows };
                *recipe = with(options).map_err(|e| format!("its recipe in the metadata: {e}"))?;
            }
        }
        Ok(Self { recipe, source: word(&value, "source")? })
    }
}

/// What a reader needs of the entry, so that a rule this version does not know does not stop it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Reading {
    pub(super) scheme: Scheme,
    pub(super) basis: Basis,
    /// `None` where codes are bytes.
    pub(super) nibble_order: Option<NibbleOrder>,
    /// Block scales lie in tiles of 128 x 4.
    pub(super) tiled: bool,
    /// Rows of each matrix that was fused, where each has one scale of the file.
    pub(super) fused_rows: Option<FusedRows>,
}

impl Reading {
    /// Parses the entry; the error is the reason, to follow the tensor's name.
    pub(super) fn from_json(text: &str) -> Result<Self, String> {
        let value = parse(text)?;
        let scheme = scheme_of(&value)?;
        // A transformed matrix or swapped halves would be read as plausible numbers: both must be said, and understood.
        let (basis, nibble_order) = match scheme.spec().format {
            // It has one order and no transform.
            _ if scheme == Scheme::Mxfp4 => (Basis::Plain, Some(NibbleOrder::LowFirst)),
            CodeFormat::E2M1 => (word(&value, "basis")?, Some(word(&value, "nibble_order")?)),
            _ => (Basis::Plain, None),
        };
        Ok(Self { scheme, basis, nibble_order, tiled: false, fused_rows: None })
    }
}

/// The dialect that an entry says; nothing where it says none that is known.
pub(super) fn dialect(text: &str) -> Option<Dialect> {
    parse(text).ok()?.get("dialect")?.as_str()?.parse().ok()
}

pub(super) fn parse(text: &str) -> Result<Value, String> {
    let value: Value = serde_json::from_str(text)
        .map_err(|e| format!("its recipe in the metadata is no JSON: {e} (JSON has no NaN and no infinity)"))?;
    if !value.is_object() {
        return Err(format!("its recipe in the metadata is {}, and an object is expected", short(&value)));
    }
    Ok(value)
}

/// The beginning of a value, as JSON.
fn short(value: &Value) -> String {
    value.to_string().chars().take(40).collect()
}

fn scheme_of(value: &Value) -> Result<Scheme, String> {
    let format: CodeFormat = word(value, "format")?;
    let name = text(value, "scheme")?;
    let known = || Scheme::ALL.into_iter().filter(|scheme| scheme.spec().format == format);
    Scheme::from_name(name, format).ok_or_else(|| {
        let cast = CastScheme::all().any(|cast| cast.format() == format).then_some(CAST);
        let names: Vec<&str> = known().map(|scheme| scheme.spec().name).chain(cast).collect();
        unknown(&format!("scheme of {format}"), name, &names)
    })
}

fn nvfp4_options(value: &Value) -> Result<Nvfp4Options, String> {
    let block_scale = match one_of(value, "block_scale", [PLAIN, FOUR_OVER_SIX])? {
        FOUR_OVER_SIX => {
            BlockScaleRule::FourOverSix { metric: word(value, "error_metric")?, math: word(value, "error_math")? }
        }
        _ => BlockScaleRule::Plain,
    };
    let rounding = match one_of(value, "code_rounding", [NEAREST, STOCHASTIC])? {
        STOCHASTIC => CodeRounding::Stochastic { seed: whole(value, "seed")?, offset: whole(value, "offset")? },
        _ => CodeRounding::Nearest,
    };
    let max = whole(value, "e4m3_max")?;
    let bound = E4m3Bound::ALL.into_iter().find(|b| b.value() as u64 == max);
    let known = E4m3Bound::ALL.map(|bound| bound.value().to_string());
    Ok(Nvfp4Options {
        rule: word(value, "preset")?,
        block_scale,
        bound: bound.ok_or_else(|| unknown("e4m3_max", &max.to_string(), &known))?,
        shape: word(value, "block_shape")?,
        basis: word(value, "basis")?,
        rounding,
    })
}

pub(super) fn text<'a>(value: &'a Value, key: &str) -> Result<&'a str, String> {
    typed(value, key, "a string", Value::as_str)
}

/// An entry as what it has to be. `null` is as good as none.
pub(super) fn typed<'a, T>(
    value: &'a Value,
    key: &str,
    what: &str,
    read: impl Fn(&'a Value) -> Option<T>,
) -> Result<T, String> {
    match value.get(key).filter(|entry| !entry.is_null()) {
        None => Err(format!("its recipe in the metadata has no {key}")),
        Some(entry) => read(entry)
            .ok_or_else(|| format!("its recipe in the metadata has {key} {}, and {what} is expected", short(entry))),
    }
}

pub(super) fn unknown(key: &str, text: &str, known: &[impl AsRef<str>]) -> String {
    let known: Vec<&str> = known.iter().map(AsRef::as_ref).collect();
    format!("its recipe in the metadata has the unknown {key} {text:?}; known are {}", known.join(", "))
}

pub(super) fn word<T: FromStr<Err = UnknownName>>(value: &Value, key: &str) -> Result<T, String> {
    let text = text(value, key)?;
    text.parse().map_err(|e: UnknownName| unknown(key, text, &e.known))
}

fn one_of<const N: usize>(value: &Value, key: &str, known: [&'static str; N]) -> Result<&'static str, String> {
    let text = text(value, key)?;
    known.into_iter().find(|k| *k == text).ok_or_else(|| unknown(key, text, &known))
}

fn whole(value: &Value, key: &str) -> Result<u64, String> {
    typed(value, key, "a whole number", Value::as_u64)
}

const PLAIN: &str = "plain";
const FOUR_OVER_SIX: &str = "four-over-six";
const NEAREST: &str = "nearest";
const STOCHASTIC: &str = "stochastic";

#[cfg(test)]
mod tests {
    use super::*;

    fn recipes() -> Vec<Recipe> {
        Recipe::all(CodeRounding::Stochastic { seed: u64::MAX, offset: 7 })
    }

    #[test]
    fn recipes_round_trip() {
        for recipe in recipes() {
            let written = WrittenRecipe { recipe, source: DType::Bf16 };
            let text = written.to_json(NibbleOrder::LowFirst, Dialect::ModelOpt);
            assert_eq!(WrittenRecipe::from_json(&text), Ok(written), "{text}");
            assert_eq!(dialect(&text), Some(Dialect::ModelOpt));
            let nibble_order = (recipe.format() == CodeFormat::E2M1).then_some(NibbleOrder::LowFirst);
            let reading = Reading {
                scheme: recipe.scheme(),
                basis: recipe.basis(),
                nibble_order,
                tiled: false,
                fused_rows: None,
            };
            assert_eq!(Reading::from_json(&text), Ok(reading), "{text}");
        }
    }

    #[test]
    fn unknown_words_are_refused_where_they_matter() {
        for recipe in recipes() {
            let text = WrittenRecipe { recipe, source: DType::F32 }.to_json(NibbleOrder::LowFirst, Dialect::Plain);
            let value: Value = serde_json::from_str(&text).unwrap();
            for key in value.as_object().unwrap().keys().filter(|k| !["writer", "dialect"].contains(&k.as_str())) {
                for wrong in [Some(json!("of-next-year")), Some(json!(3.5)), None] {
                    let mut other = value.clone();
                    match wrong {
                        Some(wrong) => other[key] = wrong,
                        None => drop(other.as_object_mut().unwrap().remove(key)),
                    }
                    let other = other.to_string();
                    // The nibble order is the reader's business, not the recipe's.
                    let refused = WrittenRecipe::from_json(&other);
                    assert!(key == "nibble_order" || refused.as_ref().is_err_and(|e| e.contains(key)), "{refused:?}");
                    let matters = ["scheme", "format", "basis", "nibble_order"].contains(&key.as_str());
                    assert_eq!(Reading::from_json(&other).is_err(), matters, "{other}");
                }
            }
        }
        let torn = r#"{"scheme":"nvfp4","format":"e2m1","preset":"deepseek","nibble_order":"low-first","block_scale":"plain",
            "e4m3_max":448,"block_shape":"1x16","basis":"plain","code_rounding":"nearest","source":"bf16"}"#;
        assert!(WrittenRecipe::from_json(torn).is_err_and(|e| e.contains("unknown preset \"deepseek\"")));
        for bad in ["", "[]", "{}", r#"{"scheme":"fp8-cube","format":"e4m3"}"#, r#"{"scheme":7,"format":"e4m3"}"#] {
            assert!(Reading::from_json(bad).is_err(), "{bad}");
        }
        assert!(Reading::from_json(r#"{"scheme":"nvfp4","format":"e4m3"}"#).is_err());
    }
}
