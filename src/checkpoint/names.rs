//! Which tensors belong together, which scheme they are, and the recipe in the metadata.

use safetensors::Dtype;
use serde_json::Value;

use crate::format::{DType, Extent, Fp8Format, Preset, Recipe, ScaleRounding, Scheme};

/// Endings of the names that scales are found under, for a matrix `NAME`.
pub(super) const SCALE_SUFFIXES: [&str; 2] = ["_scale", "_scale_inv"];

/// How a matrix of a file was quantized: the metadata entry `scaled_gemm.NAME`.
///
/// In JSON: `{"scheme": "fp8-1x128", "format": "e4m3", "preset": "torchao", "rounding": "exact" | "power-of-two",
/// "source": "bf16", "writer": "scaled-gemm 0.1.0"}`. `source` is the type the matrix had before.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WrittenRecipe {
    /// Scheme and rule.
    pub recipe: Recipe,
    /// Element type of the matrix that was quantized.
    pub source: DType,
}

impl WrittenRecipe {
    pub(super) fn to_json(self) -> String {
        let spec = self.recipe.scheme.spec();
        serde_json::json!({
            "scheme": spec.name,
            "format": spec.format.name(),
            "preset": self.recipe.preset.name(),
            "rounding": rounding_name(self.recipe.rounding),
            "source": self.source.name(),
            "writer": concat!("scaled-gemm ", env!("CARGO_PKG_VERSION")),
        })
        .to_string()
    }

    /// Parses the entry; the error is the reason, to follow the tensor's name.
    pub(super) fn from_json(text: &str) -> Result<Self, String> {
        let value: Value = serde_json::from_str(text).map_err(|e| format!("its recipe in the metadata: {e}"))?;
        let scheme = scheme_of(&value)?;
        let preset = word(&value, "preset", Preset::from_name)?;
        let rounding = word(&value, "rounding", |name| {
            [ScaleRounding::Exact, ScaleRounding::PowerOfTwo].into_iter().find(|r| rounding_name(*r) == name)
        })?;
        let source = word(&value, "source", DType::from_name)?;
        Ok(Self { recipe: Recipe { preset, rounding, ..Recipe::new(scheme) }, source })
    }
}

/// The scheme alone: all that reading needs, so that a rule this version does not know does not stop it.
pub(super) fn scheme_in_metadata(text: &str) -> Result<Scheme, String> {
    let value: Value = serde_json::from_str(text).map_err(|e| format!("its recipe in the metadata: {e}"))?;
    scheme_of(&value)
}

fn scheme_of(value: &Value) -> Result<Scheme, String> {
    let format = word(value, "format", Fp8Format::from_name)?;
    word(value, "scheme", |name| Scheme::from_name(name, format))
}

fn word<T>(value: &Value, key: &str, parse: impl Fn(&str) -> Option<T>) -> Result<T, String> {
    match value.get(key).and_then(Value::as_str) {
        Some(text) => parse(text).ok_or_else(|| format!("its recipe in the metadata has the unknown {key} {text:?}")),
        None => Err(format!("its recipe in the metadata has no {key}")),
    }
}

fn rounding_name(rounding: ScaleRounding) -> &'static str {
    match rounding {
        ScaleRounding::Exact => "exact",
        ScaleRounding::PowerOfTwo => "power-of-two",
    }
}

/// The code format that a file's dtype names.
pub(super) fn code_format(dtype: Dtype) -> Option<Fp8Format> {
    match dtype {
        Dtype::F8_E4M3 => Some(Fp8Format::E4M3),
        Dtype::F8_E5M2 => Some(Fp8Format::E5M2),
        _ => None,
    }
}

/// The dtype that codes of this format have in a file.
pub(super) fn code_dtype(format: Fp8Format) -> Dtype {
    match format {
        Fp8Format::E4M3 => Dtype::F8_E4M3,
        Fp8Format::E5M2 => Dtype::F8_E5M2,
    }
}

/// The wide type that a file's dtype names.
pub(super) fn wide_dtype(dtype: Dtype) -> Option<DType> {
    match dtype {
        Dtype::BF16 => Some(DType::Bf16),
        Dtype::F16 => Some(DType::F16),
        Dtype::F32 => Some(DType::F32),
        _ => None,
    }
}

/// Ending of the scale's name and its shape, as written.
pub(super) fn scale_tensor(scheme: Scheme, rows: usize, cols: usize) -> (&'static str, Vec<usize>) {
    let spec = scheme.spec();
    let grid = scheme.scale_grid(rows, cols);
    let shape = if spec.group_rows == Extent::All { vec![1] } else { grid.to_vec() };
    let suffix = if spec.group_cols == Extent::All { SCALE_SUFFIXES[0] } else { SCALE_SUFFIXES[1] };
    (suffix, shape)
}

/// The scheme of an `rows x cols` matrix of this format whose scale has this name ending and shape.
///
/// The module's rule for shapes that fit several schemes; `Err` lists the shapes that would have fitted.
pub(super) fn recognise(
    format: Fp8Format,
    [rows, cols]: [usize; 2],
    suffix: &str,
    shape: &[usize],
    metadata: Option<Scheme>,
) -> Result<Scheme, String> {
    let schemes = || Scheme::ALL.into_iter().filter(|s| s.spec().format == format);
    if let Some(scheme) = metadata {
        if scheme.spec().format != format {
            return Err(format!("the metadata says {scheme}, but its codes are {}", format.name()));
        }
        if !fits(scheme, rows, cols, shape) {
            return Err(format!(
                "the metadata says {scheme}, whose scales for {rows} x {cols} have shape {:?}, but NAME{suffix} has {shape:?}",
                scale_tensor(scheme, rows, cols).1
            ));
        }
        return Ok(scheme);
    }
    let rank = |scheme: &Scheme| {
        let (own_suffix, own_shape) = scale_tensor(*scheme, rows, cols);
        (own_suffix == suffix, own_shape == shape)
    };
    // `max_by_key` takes the last of equals, and `Scheme::ALL` goes from small groups to larger ones among the blocks.
    schemes().filter(|s| fits(*s, rows, cols, shape)).max_by_key(rank).ok_or_else(|| {
        let shapes: Vec<_> = schemes().map(|s| format!("{s} {:?}", scale_tensor(s, rows, cols).1)).collect();
        format!(
            "its scale NAME{suffix} has shape {shape:?}, which for {rows} x {cols} is none of {}",
            shapes.join(", ")
        )
    })
}

/// True if scales of this shape can be those of the scheme: the written shape, or one that publishers use for it.
fn fits(scheme: Scheme, rows: usize, cols: usize, shape: &[usize]) -> bool {
    let spec = scheme.spec();
    let grid = scheme.scale_grid(rows, cols);
    let one = spec.group_rows == Extent::All && matches!(shape, [] | [1]);
    let one_a_row = spec.group_cols == Extent::All && spec.group_rows != Extent::All && shape == [rows];
    one || one_a_row || shape == grid
}

#[cfg(test)]
mod tests {
    use super::*;
    use Fp8Format::E4M3;

    fn scheme(rows: usize, cols: usize, suffix: &str, shape: &[usize]) -> Option<&'static str> {
        recognise(E4M3, [rows, cols], suffix, shape, None).ok().map(|s| s.spec().name)
    }

    #[test]
    fn published_shapes() {
        assert_eq!(scheme(256, 384, "_scale", &[]), Some("fp8-tensor"));
        assert_eq!(scheme(256, 384, "_scale", &[1]), Some("fp8-tensor"));
        assert_eq!(scheme(256, 384, "_scale_inv", &[]), Some("fp8-tensor"));
        assert_eq!(scheme(256, 384, "_scale", &[256]), Some("fp8-row"));
        assert_eq!(scheme(256, 384, "_scale", &[256, 1]), Some("fp8-row"));
        assert_eq!(scheme(256, 384, "_scale_inv", &[256, 3]), Some("fp8-1x128"));
        assert_eq!(scheme(256, 384, "_scale_inv", &[2, 3]), Some("fp8-128x128"));
        assert_eq!(scheme(256, 384, "_scale", &[2, 3]), Some("fp8-128x128"));
        assert_eq!(scheme(257, 400, "_scale_inv", &[3, 4]), Some("fp8-128x128"));
        for wrong in [&[2usize][..], &[3, 2], &[384], &[1, 256], &[256, 4], &[2, 3, 1]] {
            assert_eq!(scheme(256, 384, "_scale_inv", wrong), None, "{wrong:?}");
        }
    }

    #[test]
    fn ambiguous_shapes_follow_the_rule_and_the_metadata_wins() {
        assert_eq!(scheme(1, 384, "_scale", &[1]), Some("fp8-tensor"));
        assert_eq!(scheme(1, 384, "_scale", &[1, 1]), Some("fp8-row"));
        assert_eq!(scheme(1, 384, "_scale_inv", &[1, 3]), Some("fp8-128x128"));
        assert_eq!(scheme(64, 128, "_scale", &[64, 1]), Some("fp8-row"));
        assert_eq!(scheme(64, 128, "_scale_inv", &[64, 1]), Some("fp8-1x128"));
        assert_eq!(scheme(64, 128, "_scale_inv", &[1, 1]), Some("fp8-128x128"));
        assert_eq!(scheme(64, 128, "_scale", &[1, 1]), Some("fp8-tensor"));
        for s in [Scheme::Fp8Block1x128(E4M3), Scheme::Fp8Block128x128(E4M3)] {
            assert_eq!(recognise(E4M3, [1, 384], "_scale_inv", &[1, 3], Some(s)), Ok(s));
        }
        let row = Some(Scheme::Fp8Row(E4M3));
        assert!(recognise(E4M3, [256, 384], "_scale_inv", &[2, 3], row).is_err());
        assert!(recognise(Fp8Format::E5M2, [256, 384], "_scale", &[256, 1], row).is_err());
    }

    #[test]
    fn recipes_round_trip_and_unknown_words_are_refused() {
        for scheme in Scheme::ALL {
            for preset in Preset::ALL {
                for recipe in [Recipe::new(scheme).with_preset(preset), Recipe::new(scheme).power_of_two()] {
                    let written = WrittenRecipe { recipe, source: DType::Bf16 };
                    assert_eq!(WrittenRecipe::from_json(&written.to_json()), Ok(written));
                }
            }
        }
        let newer =
            r#"{"scheme":"fp8-row","format":"e4m3","preset":"of-next-year","rounding":"exact","source":"bf16"}"#;
        assert!(WrittenRecipe::from_json(newer).is_err_and(|e| e.contains("of-next-year")));
        assert_eq!(scheme_in_metadata(newer), Ok(Scheme::Fp8Row(E4M3)));
        for bad in ["", "[]", "{}", r#"{"scheme":"fp8-cube","format":"e4m3"}"#, r#"{"scheme":7,"format":"e4m3"}"#] {
            assert!(scheme_in_metadata(bad).is_err(), "{bad}");
        }
    }
}
