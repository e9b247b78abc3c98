//! What entries of a `quantization_config` are, where engines expect something else.

use scaled_gemm::checkpoint::printable;
use serde_json::Value;

use super::configs::Said;

/// The lists of layers that are not quantized, under all names that engines have for them.
pub const LISTS: [&str; 4] = ["modules_to_not_convert", "ignored_layers", "ignore", "exclude_modules"];

/// True for a list of strings.
pub fn is_names(value: &Value) -> bool {
    value.as_array().is_some_and(|list| list.iter().all(Value::is_string))
}

/// What an entry has to be; `null` is as good as none.
#[derive(Clone, Copy)]
enum Is {
    Word,
    Number,
    Names,
    Sizes,
    Object,
}

impl Is {
    fn fits(self, value: &Value) -> bool {
        match self {
            _ if value.is_null() => true,
            Self::Word => value.is_string(),
            Self::Number => value.is_i64() || value.is_u64(),
            Self::Names => is_names(value),
            Self::Sizes => value.as_array().is_some_and(|list| list.len() == 2 && list.iter().all(Value::is_u64)),
            Self::Object => value.is_object(),
        }
    }

    fn words(self) -> &'static str {
        match self {
            Self::Word => "a string",
            Self::Number => "a whole number",
            Self::Names => "a list of strings",
            Self::Sizes => "a list of two sizes",
            Self::Object => "an object",
        }
    }
}

const ENTRIES: [(&str, Is); 14] = [
    ("quant_method", Is::Word),
    ("quant_algo", Is::Word),
    ("format", Is::Word),
    ("fmt", Is::Word),
    ("activation_scheme", Is::Word),
    ("kv_cache_quant_algo", Is::Word),
    ("quantization_status", Is::Word),
    ("group_size", Is::Number),
    ("weight_block_size", Is::Sizes),
    ("config_groups", Is::Object),
    ("modules_to_not_convert", Is::Names),
    ("ignored_layers", Is::Names),
    ("ignore", Is::Names),
    ("exclude_modules", Is::Names),
];

/// Entries of other types than engines expect, each in a line.
pub fn problems(said: &Said<'_>) -> Vec<String> {
    let Said { file, top, .. } = *said;
    let mut check = Check { file, found: Vec::new() };
    if !check.is(top, said.name, Is::Object) {
        return check.found;
    }
    let nested = top.get("quantization").unwrap_or(&Value::Null);
    if !check.is(nested, "quantization", Is::Object) {
        return check.found;
    }
    for (key, is) in ENTRIES {
        for (value, around) in [(top, ""), (nested, "quantization.")] {
            check.entry(value, around, key, is);
        }
    }
    for (name, group) in each(top.get("config_groups")) {
        let name = format!("config_groups.{}", printable(name));
        if check.is(group, &name, Is::Object) {
            check.entry(group, &format!("{name}."), "targets", Is::Names);
            check.entry(group, &format!("{name}."), "format", Is::Word);
            for operand in ["weights", "input_activations"] {
                if check.entry(group, &format!("{name}."), operand, Is::Object) {
                    let around = format!("{name}.{operand}.");
                    for (key, is) in [
                        ("group_size", Is::Number),
                        ("num_bits", Is::Number),
                        ("strategy", Is::Word),
                        ("type", Is::Word),
                    ] {
                        check.entry(&group[operand], &around, key, is);
                    }
                }
            }
        }
    }
    for (value, around) in [(top, ""), (nested, "quantization.")] {
        if check.entry(value, around, "quantized_layers", Is::Object) {
            let layers = each(value.get("quantized_layers"));
            // One says how the others are.
            let odd = layers.into_iter().find(|(_, layer)| !layer["quant_algo"].is_string());
            if let Some((name, layer)) = odd {
                let path = format!("{around}quantized_layers.{}", printable(name));
                match layer.get("quant_algo") {
                    Some(algorithm) => check.refuse(algorithm, &format!("{path}.quant_algo"), Is::Word),
                    None => check.refuse(layer, &path, "an object with a quant_algo"),
                }
            }
        }
    }
    if said.needs_method && nested.is_null() && top.get("quant_method").is_none_or(Value::is_null) {
        check.found.push(format!(
            "{file}: {} has no quant_method, by which engines know how to read it; give it one, or quantize the model \
             again",
            said.name
        ));
    }
    check.found
}

/// The entries of an object, where it is one.
fn each(value: Option<&Value>) -> Vec<(&str, &Value)> {
    value.and_then(Value::as_object).map(|map| map.iter().map(|(k, v)| (k.as_str(), v)).collect()).unwrap_or_default()
}

struct Check<'a> {
    file: &'a str,
    found: Vec<String>,
}

impl Check<'_> {
    fn is(&mut self, value: &Value, path: &str, is: Is) -> bool {
        let fits = is.fits(value);
        if !fits {
            self.refuse(value, path, is);
        }
        fits
    }

    fn entry(&mut self, value: &Value, around: &str, key: &str, is: Is) -> bool {
        self.is(&value[key], &format!("{around}{key}"), is)
    }

    fn refuse(&mut self, value: &Value, path: &str, is: impl Into<&'static str>) {
        let short: String = value.to_string().chars().take(40).collect();
        let (short, what) = (printable(&short), is.into());
        self.found.push(format!(
            "{}: {path} is {short}, and engines expect {what}; mend it, or quantize the model again",
            self.file
        ));
    }
}

impl From<Is> for &'static str {
    fn from(is: Is) -> Self {
        is.words()
    }
}
