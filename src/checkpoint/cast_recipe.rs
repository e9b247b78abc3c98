//! How a matrix of a file is read, as what products take or as a cast; and what the metadata say of a cast.

use std::fmt;

use safetensors::Dtype;
use serde_json::{Value, json};

use super::names::{SCALE_SUFFIXES, Tensor};
use super::recipe::{parse, text, typed, unknown, word};
use crate::format::{CastRecipe, CastScales, CastScheme, CodeFormat, DType, Fp8Scales, Scheme};

/// The `scheme` of such an entry: readers that do not know casts refuse it.
pub(super) const CAST: &str = "cast";

/// How a quantized matrix of a file is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum StoredScheme {
    /// As what products read.
    Product(Scheme),
    /// As the result of a cast to a grouping that no product reads.
    Cast(CastScheme),
}

impl StoredScheme {
    /// The scheme without the format of its codes; `cast` for all casts.
    pub fn name(self) -> &'static str {
        match self {
            Self::Product(scheme) => scheme.spec().name,
            Self::Cast(_) => CAST,
        }
    }

    /// What the codes are.
    pub fn format(self) -> CodeFormat {
        match self {
            Self::Product(scheme) => scheme.spec().format,
            Self::Cast(scheme) => scheme.format(),
        }
    }

    /// The scheme that products read, where they read it.
    pub fn product(self) -> Option<Scheme> {
        match self {
            Self::Product(scheme) => Some(scheme),
            Self::Cast(_) => None,
        }
    }
}

impl fmt::Display for StoredScheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Product(scheme) => scheme.fmt(f),
            Self::Cast(scheme) => f.pad(&format!("cast to {scheme}")),
        }
    }
}

/// How a matrix of a file was cast to a grouping that no product reads: the metadata entry `scaled_gemm.NAME`.
///
/// In JSON: `scheme` (`cast`), `format` (`e4m3`, `e2m1`), `group` (`1x32`), `scales` (`row-major`, `column-major`, `ue8m0`),
/// `transposed` (true or false), `rounding` of the scales (`exact`, `power-of-two`), `floor` (the least amax), `source` (the type
/// the matrix had before, `bf16`) and `writer`. Rows and columns are those of the tensors.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct WrittenCast {
    /// Scheme and rule.
    pub recipe: CastRecipe,
    /// Element type of the matrix that was cast.
    pub source: DType,
}

impl WrittenCast {
    pub(super) fn to_json(self) -> String {
        let (recipe, scheme) = (self.recipe, self.recipe.scheme());
        json!({
            "scheme": CAST, "format": scheme.format().name(), "group": scheme.group().name(), "scales": scheme.scales().name(),
            "transposed": scheme.is_transposed(), "rounding": recipe.numbers().name(), "floor": recipe.floor(),
            "source": self.source.name(), "writer": concat!("scaled-gemm ", env!("CARGO_PKG_VERSION")),
        })
        .to_string()
    }

    /// Parses the entry; the error is the reason, to follow the tensor's name.
    pub(super) fn from_json(text: &str) -> Result<Self, String> {
        let value = parse(text)?;
        let scheme = scheme_of(&value)?;
        let recipe = floor_of(&value, scheme)?;
        let recipe = if rounding_of(&value, scheme)? == Fp8Scales::PowerOfTwo { recipe.power_of_two() } else { recipe };
        Ok(Self { recipe, source: word(&value, "source")? })
    }
}

/// The recipe with its floor.
fn floor_of(value: &Value, scheme: CastScheme) -> Result<CastRecipe, String> {
    let floor = typed(value, "floor", "a number", Value::as_f64)?;
    CastRecipe::new(scheme).with_floor(floor as f32).map_err(|_| {
        // As it is written there.
        let (text, least) = (&value["floor"], CastRecipe::least_floor(scheme.format()));
        format!(
            "its recipe in the metadata has the unknown floor {text}; known are finite numbers of at least {least:e}"
        )
    })
}

/// What numbers its scales are.
fn rounding_of(value: &Value, scheme: CastScheme) -> Result<Fp8Scales, String> {
    let rounding: Fp8Scales = word(value, "rounding")?;
    match (rounding, CastRecipe::new(scheme).numbers()) {
        (Fp8Scales::Exact, Fp8Scales::PowerOfTwo) => {
            let key = format!("rounding for scales in {}", scheme.scales());
            Err(unknown(&key, rounding.name(), &[Fp8Scales::PowerOfTwo.name()]))
        }
        _ => Ok(rounding),
    }
}

/// What a reader needs of the entry; `None` for one of another scheme. A rounding and a floor, which it does not need, are what is known
/// where they are there: an entry with others was written by nothing that is known here.
pub(super) fn cast_scheme(text: &str) -> Option<Result<CastScheme, String>> {
    // Asked of every matrix, of which few are casts.
    if !text.contains(CAST) {
        return None;
    }
    let value = parse(text).ok()?;
    (value.get("scheme").and_then(Value::as_str) == Some(CAST)).then(|| {
        let scheme = scheme_of(&value)?;
        let is_there = |key: &str| value.get(key).is_some();
        is_there("rounding").then(|| rounding_of(&value, scheme)).transpose()?;
        is_there("floor").then(|| floor_of(&value, scheme)).transpose()?;
        Ok(scheme)
    })
}

fn scheme_of(value: &Value) -> Result<CastScheme, String> {
    match text(value, "scheme")? {
        CAST => {}
        other => return Err(unknown("scheme", other, &[CAST])),
    }
    let scheme = CastScheme::new(word(value, "format")?, word(value, "group")?).map_err(in_words)?;
    let scheme = scheme.with_scales(word(value, "scales")?);
    // It would be read as plausible numbers: it must be said.
    match value.get("transposed").is_none_or(Value::is_null) {
        true => Err("its recipe in the metadata does not say whether it is transposed".into()),
        false if typed(value, "transposed", "true or false", Value::as_bool)? => scheme.transposed().map_err(in_words),
        false => Ok(scheme),
    }
}

fn in_words(error: crate::error::Error) -> String {
    format!("its recipe in the metadata: {error}")
}

/// The codes of a cast, as written: `[rows, columns]`, or transposed `[columns, rows]`; two E2M1 codes a byte.
pub(super) fn cast_codes(scheme: CastScheme, rows: usize, cols: usize) -> Tensor {
    let [lines, length] = if scheme.is_transposed() { [cols, rows] } else { [rows, cols] };
    let (dtype, width) = match scheme.format() {
        CodeFormat::E2M1 => (Dtype::U8, length / 2),
        CodeFormat::Fp8(_) => (Dtype::F8_E4M3, length),
    };
    Tensor { suffix: "", dtype, shape: vec![lines, width] }
}

/// Its scales, as written: the bytes that a device holds, padding included.
pub(super) fn cast_scales(scheme: CastScheme, rows: usize, cols: usize) -> Tensor {
    let [r, c] = scheme.group().grid(rows, cols);
    let padded = padded(r);
    let (dtype, shape) = match scheme.scales() {
        CastScales::RowMajor => (Dtype::F32, vec![r, c]),
        CastScales::ColumnMajor => (Dtype::F32, vec![c, padded]),
        CastScales::Ue8m0 => (Dtype::U8, vec![c.div_ceil(4), padded, 4]),
    };
    Tensor { suffix: SCALE_SUFFIXES[0], dtype, shape }
}

/// Rows of scales with those that padding adds; of no number that overflows.
pub(super) fn padded(rows: usize) -> usize {
    rows.div_ceil(4).saturating_mul(4)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{CastGroup, Fp8Format};

    fn recipes() -> Vec<CastRecipe> {
        let of = |scheme| {
            let recipe = CastRecipe::new(scheme);
            [recipe, recipe.power_of_two(), recipe.with_floor(0.3).unwrap()]
        };
        CastScheme::all().flat_map(of).collect()
    }

    #[test]
    fn recipes_of_casts_round_trip() {
        for recipe in recipes() {
            let written = WrittenCast { recipe, source: DType::F16 };
            let text = written.to_json();
            assert_eq!(WrittenCast::from_json(&text), Ok(written), "{text}");
            assert_eq!(cast_scheme(&text), Some(Ok(recipe.scheme())), "{text}");
        }
        let other = r#"{"scheme":"fp8-1x128","format":"e4m3","source":"broadcast"}"#;
        assert_eq!(cast_scheme(other), None);
        assert!(WrittenCast::from_json(other).is_err_and(|e| e.contains("unknown scheme \"fp8-1x128\"")));
    }

    #[test]
    fn what_a_reader_needs_of_a_cast_must_be_said_and_known() {
        for recipe in recipes() {
            let text = WrittenCast { recipe, source: DType::Bf16 }.to_json();
            let value: Value = serde_json::from_str(&text).unwrap();
            for key in value.as_object().unwrap().keys().filter(|key| *key != "writer") {
                for wrong in [Some(json!("of-next-year")), Some(json!(-3.5)), Some(Value::Null), None] {
                    let mut other = value.clone();
                    match wrong {
                        Some(wrong) => other[key] = wrong,
                        None => drop(other.as_object_mut().unwrap().remove(key)),
                    }
                    let other = other.to_string();
                    assert!(WrittenCast::from_json(&other).is_err(), "{other}");
                    // Of what is not needed to read it, what is there must be known.
                    let (is_rule, is_there) = (["rounding", "floor"].contains(&key.as_str()), other.contains(key));
                    let matters =
                        ["format", "group", "scales", "transposed"].contains(&key.as_str()) || is_rule && is_there;
                    match (key.as_str(), cast_scheme(&other)) {
                        ("scheme", found) => assert_eq!(found, None, "{other}"),
                        (_, found) => assert_eq!(found.map(|f| f.is_err()), Some(matters), "{other}"),
                    }
                }
            }
        }
        for (key, value) in [("format", "e5m2"), ("group", "1x32")] {
            let scheme = CastScheme::new(CodeFormat::Fp8(Fp8Format::E4M3), CastGroup::Group128x1).unwrap();
            let recipe = CastRecipe::new(scheme.transposed().unwrap());
            let mut entry: Value =
                serde_json::from_str(&WrittenCast { recipe, source: DType::Bf16 }.to_json()).unwrap();
            entry[key] = value.into();
            // Codes of rows are never transposed, and no rule has E5M2.
            assert!(cast_scheme(&entry.to_string()).is_some_and(|found| found.is_err()), "{entry}");
        }
    }

    #[test]
    fn tensors_of_casts_are_as_long_as_a_device_has_them() {
        for scheme in CastScheme::all() {
            for (rows, cols) in [(16, 16), (48, 272), (160, 400), (128, 128)] {
                let bytes = |t: Tensor| t.shape.iter().product::<usize>() * t.dtype.bitsize() / 8;
                assert_eq!(bytes(cast_codes(scheme, rows, cols)), scheme.code_bytes(rows, cols), "{scheme}");
                assert_eq!(bytes(cast_scales(scheme, rows, cols)), scheme.scale_bytes(rows, cols), "{scheme}");
            }
        }
        assert_eq!(padded(usize::MAX), usize::MAX);
    }
}
