//! The formats of compressed-tensors: of the whole, and of groups of layers.

use std::collections::BTreeSet;

use scaled_gemm::checkpoint::printable;
use serde_json::Value;

use super::configs::{Method, Said};

/// What the whole has where groups have formats of their own (compressed-tensors 0.20.0, config/base.py). It is none of codes.
pub const MIXED: &str = "mixed-precision";

/// The groups of layers, with their names.
pub fn groups<'a>(said: &Said<'a>) -> impl Iterator<Item = (&'a str, &'a Value)> {
    let groups = said.get("config_groups").and_then(Value::as_object).into_iter().flatten();
    groups.map(|(name, group)| (name.as_str(), group))
}

/// The format of each group: its own, else that of the whole. So has vLLM it (`_quantization_scheme_map_from_config` of
/// compressed_tensors.py, 0.33.0), and compressed-tensors.
fn of_groups<'a>(said: &Said<'a>) -> impl Iterator<Item = (&'a str, Option<&'a str>)> {
    let whole = said.word("format").filter(|format| *format != MIXED);
    groups(said).map(move |(name, group)| (name, group.get("format").and_then(Value::as_str).or(whole)))
}

/// The one format of all layers; nothing where groups differ, or none is said.
pub fn of_all<'a>(said: &Said<'a>) -> Option<&'a str> {
    let mut all = of_groups(said).map(|(_, format)| format);
    match all.next() {
        None => said.word("format"),
        Some(first) => first.filter(|_| all.all(|format| format == first)),
    }
}

/// True where groups have several formats, or some have one and others none.
pub fn differ(said: &Said<'_>) -> bool {
    of_groups(said).map(|(_, format)| format).collect::<BTreeSet<_>>().len() > 1
}

/// That there are no groups, or that some have no format. vLLM knows FP8 by the format alone (`_get_scheme_from_parts`, 0.33.0), SGLang
/// and mistral.rs NVFP4 too, and the default of compressed-tensors is none of codes.
pub fn problems(said: &Said<'_>) -> Vec<String> {
    if said.method() != Method::CompressedTensors {
        return Vec::new();
    }
    let file = said.file;
    let mut found = Vec::new();
    let plain =
        "engines quantize no layer by it, and take codes for plain weights; mend it, or quantize the model again";
    match said.get("config_groups") {
        None => found.push(format!("{file}: {} has no config_groups: {plain}", said.name)),
        Some(Value::Object(groups)) if groups.is_empty() => {
            found.push(format!("{file}: config_groups has no group: {plain}"));
        }
        Some(_) => {}
    }
    let lacking: Vec<&str> = of_groups(said).filter(|(_, format)| format.is_none()).map(|(name, _)| name).collect();
    let whole = match said.get("format") {
        None if lacking.len() == of_groups(said).count() => {
            // As in a config put together from two.
            let foreign = said.word("quant_algo");
            let foreign = foreign.map(|name| format!(" (quant_algo {} beside it is ModelOpt's)", printable(name)));
            found.push(format!(
                "{file} says quant_method compressed-tensors and no format, which engines ask for{}; mend it, or quantize the model again",
                foreign.unwrap_or_default()
            ));
            return found;
        }
        None => "the whole has none".to_string(),
        Some(format) if *format == MIXED => format!("that of the whole, {MIXED}, is none of codes"),
        // Said of its type.
        Some(_) => return found,
    };
    if let Some(first) = lacking.first() {
        let more = match lacking.len() - 1 {
            0 => String::new(),
            1 => " (nor has 1 other)".into(),
            others => format!(" (nor have {others} others)"),
        };
        found.push(format!(
            "{file}: config_groups.{} has no format{more}, and {whole}: engines do not know how to read its codes; give it one, or \
             quantize the model again",
            printable(first)
        ));
    }
    found
}
