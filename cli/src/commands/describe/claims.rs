//! What configs say of the scheme of the weights, against the tensors.

use std::collections::BTreeMap;

use scaled_gemm::checkpoint::{Checkpoint, StoredScheme, printable};
use serde_json::{Map, Value};

use super::configs::{Method, Said};
use super::{Matrix, formats, groups, layers};
use crate::by_parts::ByParts;
use crate::folder::module;
use crate::output::of_number;

/// Where `config.json` or `hf_quant_config.json` says another scheme, or other groups, than the tensors have. `plain`: modules that are
/// not quantized.
pub fn problems(said: &[Said<'_>], matrices: &[&Matrix<'_>], plain: &[&str]) -> Vec<String> {
    if !said.iter().any(is_mixed) {
        return said.iter().flat_map(|said| against(said, matrices)).collect();
    }
    // Where one says that layers differ, the other names what most of them are.
    said.iter()
        .filter_map(|said| Some((said, algorithms(said)?)))
        .flat_map(|(s, a)| by_layer(s, a, matrices, plain))
        .collect()
}

/// Layers without the scales of activations that their algorithm has in the file.
pub fn activations(input: &Checkpoint, said: &[Said<'_>], matrices: &[&Matrix<'_>]) -> Vec<String> {
    let mixed = said.iter().any(is_mixed);
    let named = said.iter().find_map(algorithms).map(Algorithms::new);
    let whole = said.iter().find_map(|said| said.word("quant_algo"));
    let mut found = Vec::new();
    for (algorithm, scheme, remedy) in [
        ("NVFP4", "nvfp4", "quantize with --input-scales, or name W4A16_NVFP4"),
        ("FP8", "fp8-tensor", "quantize with --input-scales, or in the dialect fp8, which finds them while it runs"),
    ] {
        let lacks = |m: &&&Matrix<'_>| {
            let module = module(m.name);
            let says = if mixed { named.as_ref().and_then(|named| named.of_layer(module)) } else { whole };
            // The names of experts in one tensor differ from engine to engine.
            says.is_some_and(|says| says.eq_ignore_ascii_case(algorithm))
                && m.found.as_ref().is_ok_and(|(found, _)| found.name() == scheme)
                && input.get(&format!("{module}.weight")).is_some()
                && input.get(&format!("{module}.input_scale")).is_none()
        };
        let lacking: Vec<&str> = matrices.iter().filter(lacks).map(|m| module(m.name)).collect();
        if let Some(names) = layers(&lacking) {
            found.push(format!("{names} without input_scale, which quant_algo {algorithm} promises; {remedy}"));
        }
    }
    found
}

/// The algorithm of each layer, where a file has that.
fn algorithms<'a>(said: &Said<'a>) -> Option<&'a Map<String, Value>> {
    said.get("quantized_layers")?.as_object()
}

/// What is said of each layer.
struct Algorithms<'a>(ByParts<'a, &'a Value>);

impl<'a> Algorithms<'a> {
    fn new(layers: &'a Map<String, Value>) -> Self {
        Self(ByParts::new(layers.iter().map(|(name, value)| (name.as_str(), value))))
    }

    /// What is said of a layer, by its name or that of the next module around it.
    fn entry(&self, module: &str) -> Option<&'a Value> {
        self.0.around(module).last().map(|(_, value)| *value)
    }

    /// The algorithm of a layer.
    fn of_layer(&self, module: &str) -> Option<&'a str> {
        self.entry(module)?.get("quant_algo")?.as_str()
    }
}

fn by_layer(said: &Said<'_>, algorithms: &Map<String, Value>, matrices: &[&Matrix<'_>], plain: &[&str]) -> Vec<String> {
    let file = said.file;
    let (mut found, mut missing) = (Vec::new(), Vec::new());
    let by_name = Algorithms::new(algorithms);
    let mut others: BTreeMap<(&str, &str), Vec<&str>> = BTreeMap::new();
    for matrix in matrices {
        let (Ok((scheme, _)), module) = (&matrix.found, module(matrix.name)) else { continue };
        match by_name.of_layer(module) {
            None if by_name.entry(module).is_some() => {}
            None => missing.push(module),
            Some(algorithm) => {
                let claim = of_algorithm(algorithm);
                if claim.is_some_and(|claim| !fits(&claim, matrix, *scheme)) {
                    others.entry((algorithm, scheme.name())).or_default().push(module);
                }
            }
        }
    }
    for ((algorithm, scheme), others) in others {
        if let Some(names) = layers(&others) {
            let [they_are, them] = they(others.len());
            found.push(format!(
                "{file} says quant_algo {} of {names}, and {they_are} {scheme}: engines read {them} by what it says; mend it, or quantize the \
                 model again",
                printable(algorithm)
            ));
        }
    }
    if let Some(names) = layers(&missing) {
        let [they_are, _] = they(missing.len());
        found.push(format!(
            "quantized_layers of {file} does not name {names}, and {they_are} quantized: engines take the codes for plain weights; mend \
             it, or quantize the model again"
        ));
    }
    let named: Vec<&str> = plain.iter().copied().filter(|module| algorithms.contains_key(*module)).collect();
    if let Some(names) = layers(&named) {
        let [they_are, _] = they(named.len());
        found.push(format!(
            "quantized_layers of {file} names {names}, and {they_are} plain: engines take plain weights for codes; mend it, or quantize the \
             model again"
        ));
    }
    found
}

/// The words for so many layers.
pub fn they(number: usize) -> [&'static str; 2] {
    [of_number(number, "it is", "they are"), of_number(number, "it", "them")]
}

/// What the schemes of a config are called here, and in which words it says so.
#[derive(Clone)]
struct Claim {
    words: String,
    schemes: &'static [&'static str],
    /// Schemes of which nothing is said beside these: models of FP8 may have experts in MXFP4.
    beside: &'static [&'static str],
}

fn against(said: &Said<'_>, matrices: &[&Matrix<'_>]) -> Vec<String> {
    let file = said.file;
    let read = || matrices.iter().filter_map(|m| Some((m, m.found.as_ref().ok()?.0)));
    let mut found = Vec::new();
    if let Some(mut claim) = claim(said) {
        // Where none is what was claimed, none is beside it.
        if !read().any(|(m, scheme)| fits(&Claim { beside: &[], ..claim.clone() }, m, scheme)) {
            claim.beside = &[];
        }
        let others: Vec<_> = read().filter(|(m, scheme)| !fits(&claim, m, *scheme)).collect();
        let names: Vec<&str> = others.iter().map(|(m, _)| module(m.name)).collect();
        if let (Some(names), Some((_, scheme))) = (layers(&names), others.first()) {
            let (are, [_, them]) = (of_number(others.len(), "is", "are"), they(others.len()));
            found.push(format!(
                "{file} says {}, which is {}, and {names} {are} {scheme}: engines read {them} by what it says; mend it, or quantize the \
                 model again",
                claim.words,
                claim.schemes.join(" or ")
            ));
        }
    }
    // What is of another format is said of that.
    if found.is_empty() {
        found.extend(groups::problems(said, matrices));
    }
    found.extend(sizes_that_differ(said));
    let sizes = group_sizes(said);
    for scheme in ["nvfp4", "mxfp8", "mxfp4"] {
        let of = |found: StoredScheme| found.name() == scheme;
        let names: Vec<&str> = read().filter(|(_, found)| of(*found)).map(|(m, _)| module(m.name)).collect();
        let size = if scheme == "nvfp4" { 16 } else { 32 };
        let are = of_number(names.len(), "is", "are");
        if let Some(names) = layers(&names).filter(|_| !sizes.is_empty() && !sizes.contains(&size)) {
            let said: Vec<_> = sizes.iter().map(u64::to_string).collect();
            found.push(format!(
                "{file} says group_size {}, and {names} {are} {scheme}, with a scale for {size} columns; mend it, or quantize the model again",
                said.join(" and ")
            ));
        }
    }
    found
}

/// True if a matrix is what was claimed. Of one row, or one tile, several schemes have the same scales, and so have matrices that
/// were fused with a scale for each.
fn fits(claim: &Claim, matrix: &Matrix<'_>, scheme: StoredScheme) -> bool {
    let name = scheme.name();
    let is_fp8 = name.starts_with("fp8-");
    let one = |shape: &[usize]| shape.first() == Some(&1) || (is_fp8 && shape.iter().all(|n| *n <= 128));
    let shape = matrix.found.as_ref().map(|(_, shape)| shape.as_slice()).unwrap_or_default();
    let fused = is_fp8 && matrix.parts.get(1).is_some_and(|scale| matches!(*scale.shape, [2] | [3]));
    claim.schemes.contains(&name)
        || claim.beside.contains(&name)
        || (one(shape) && is_fp8 == claim.schemes[0].starts_with("fp8-"))
        || fused
}

/// True if a matrix may be of one of these schemes.
pub fn is_of(matrix: &Matrix<'_>, schemes: &'static [&'static str]) -> bool {
    let claim = Claim { words: String::new(), schemes, beside: &[] };
    matrix.found.as_ref().is_ok_and(|(scheme, _)| fits(&claim, matrix, *scheme))
}

/// True where a config says that layers differ: for all of ModelOpt's, or by the formats of groups.
pub fn is_mixed(said: &Said<'_>) -> bool {
    said.word("quant_algo").is_some_and(|algorithm| algorithm.eq_ignore_ascii_case("MIXED_PRECISION"))
        || formats::differ(said)
}

/// True if some weights have a scale for so many columns of a row.
fn has_column_groups(said: &Said<'_>) -> bool {
    formats::groups(said).any(|(_, group)| group["weights"]["strategy"] == "group")
}

/// What a config says of all weights; nothing where it says several things, or what is not known here.
fn claim(said: &Said<'_>) -> Option<Claim> {
    if said.method() == Method::ModelOpt {
        return of_algorithm(said.word("quant_algo")?);
    }
    let (method, format) = (said.word("quant_method")?, formats::of_all(said));
    if method == "fp8" {
        // vLLM 0.33.0, Q/fp8.py:158: tiles where there is a size of them, else a scale for each matrix.
        let tile = said.get("weight_block_size").unwrap_or(&Value::Null);
        let schemes: &[&str] = match tile {
            Value::Null => &["fp8-tensor"],
            tile if *tile == serde_json::json!([128, 128]) => &["fp8-128x128"],
            // SGLang reads MXFP8 so.
            tile if *tile == serde_json::json!([1, 32]) => &["mxfp8"],
            _ => &["fp8-tiles of another size"],
        };
        let short: String = tile.to_string().chars().take(40).collect();
        let words = format!("quant_method fp8 with weight_block_size {}", printable(&short));
        return Some(Claim { words, schemes, beside: &["mxfp4"] });
    }
    if UNREAD.contains(&method) {
        let schemes = &["in codes that are not read here"];
        return Some(Claim { words: format!("quant_method {method}"), schemes, beside: &[] });
    }
    let schemes: &[&str] = match (method, format) {
        ("compressed-tensors", Some("nvfp4-pack-quantized")) => &["nvfp4"],
        ("compressed-tensors", Some("mxfp4-pack-quantized")) => &["mxfp4"],
        ("compressed-tensors", Some("mxfp8-quantized")) => &["mxfp8"],
        // With groups of columns: scales for 128 columns of a row are what it says too.
        ("compressed-tensors", Some("float-quantized")) if has_column_groups(said) => {
            &["fp8-tensor", "fp8-row", "fp8-128x128", "fp8-1x128"]
        }
        ("compressed-tensors", Some("float-quantized")) => &["fp8-tensor", "fp8-row", "fp8-128x128"],
        // compressed-tensors 0.20.0, compressors: what each of these is of.
        ("compressed-tensors", Some("int-quantized" | "pack-quantized" | "marlin-24")) => &["of integers"],
        ("compressed-tensors", Some("dense")) => &["of plain weights"],
        ("mxfp4", _) => &["mxfp4"],
        ("mxfp8", _) => &["mxfp8"],
        _ => return None,
    };
    let words = match format {
        Some(format) => format!("format {format}"),
        None => format!("quant_method {method}"),
    };
    Some(Claim { words, schemes, beside: &[] })
}

/// Methods whose codes are integers, or of types that are not read here.
const UNREAD: [&str; 8] = ["gptq", "awq", "bitsandbytes", "hqq", "aqlm", "vptq", "higgs", "eetq"];

/// What ModelOpt calls an algorithm; nothing where it is not known here. vLLM 0.33.0, docs/features/quantization/modelopt.md, and
/// ModelOpt 0.47.0, torch/export/quant_utils.py.
fn of_algorithm(algorithm: &str) -> Option<Claim> {
    let schemes: &[&str] = match algorithm.to_ascii_uppercase().as_str() {
        "FP8" => &["fp8-tensor"],
        "FP8_PER_CHANNEL_PER_TOKEN" => &["fp8-row"],
        "FP8_PB_WO" => &["fp8-128x128"],
        "NVFP4" | "W4A16_NVFP4" | "NVFP4_AWQ" | "NVFP4_SVDQUANT" | "NVFP4_SVD" | "NVFP4_ARC" | "W4A8_NVFP4_FP8" => {
            &["nvfp4"]
        }
        "MXFP8" => &["mxfp8"],
        "W4A8_MXFP4_FP8" => &["mxfp4"],
        _ => return None,
    };
    Some(Claim { words: format!("quant_algo {}", printable(algorithm)), schemes, beside: &[] })
}

/// The sizes of groups that a config has for weights, each once.
fn group_sizes(said: &Said<'_>) -> Vec<u64> {
    sorted(sizes_of_all(said).chain(sizes_of_groups(said)))
}

/// The sizes that a config has for the weights of groups of layers.
fn sizes_of_groups(said: &Said<'_>) -> impl Iterator<Item = u64> {
    formats::groups(said).filter_map(|(_, group)| group.get("weights")?.get("group_size")?.as_u64())
}

/// Those that it has for all.
fn sizes_of_all(said: &Said<'_>) -> impl Iterator<Item = u64> {
    let outer = [Some(said.top), said.top.get("quantization")].into_iter().flatten();
    outer.filter_map(|value| value.get("group_size")?.as_u64())
}

fn sorted(sizes: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut sizes: Vec<u64> = sizes.collect();
    sizes.sort_unstable();
    sizes.dedup();
    sizes
}

/// That a config has one size for all weights and another for all groups of layers, or two for all.
fn sizes_that_differ(said: &Said<'_>) -> Option<String> {
    let (all, groups) = (sorted(sizes_of_all(said)), sorted(sizes_of_groups(said)));
    let words = |sizes: &[u64]| sizes.iter().map(u64::to_string).collect::<Vec<_>>().join(" and ");
    let of_groups = match all.as_slice() {
        [] => return None,
        [one] if groups.is_empty() || groups.contains(one) => return None,
        [_] => format!(" {} of the weights of config_groups, and", words(&groups)),
        _ => String::new(),
    };
    Some(format!(
        "{} says group_size{of_groups} {} of all: engines go by one or the other; mend it, or quantize the model again",
        said.file,
        words(&all)
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn layers(names: &[&str]) -> Map<String, Value> {
        names.iter().map(|name| (name.to_string(), serde_json::json!({"quant_algo": name}))).collect()
    }

    #[test]
    fn algorithms_are_those_of_the_next_module_around() {
        let names = ["", "a", "a.b", "a.b.c.d", "a..b", ".x", "b.c.", "ab"];
        let map = layers(&names);
        let by_name = Algorithms::new(&map);
        for module in
            ["a.b.c", "a.b.c.d.e", "a", "ab.c", "a.", "a..b", "a..", ".x.y", ".z", "b.c", "b.c..d", "", "c.a.b"]
        {
            let around = module.rmatch_indices('.').map(|(at, _)| &module[..at]);
            let found = std::iter::once(module).chain(around).find(|name| names.contains(name));
            assert_eq!(by_name.of_layer(module), found, "{module:?}");
            assert_eq!(by_name.entry(module), found.and_then(|name| map.get(name)), "{module:?}");
        }
        assert_eq!(Algorithms::new(&layers(&[])).entry("a.b"), None);
    }

    /// Time of a processor that this thread has had: by the clock it takes longer on a machine that does other things too.
    #[cfg(target_os = "linux")]
    fn seconds_worked() -> f64 {
        let text = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
        // Fields from the third on; the 14th and the 15th are hundredths of a second in the program and in the system.
        let (_, fields) = text.rsplit_once(") ").unwrap();
        fields.split(' ').skip(11).take(2).map(|ticks| ticks.parse::<f64>().unwrap()).sum::<f64>() / 100.0
    }

    /// (Each module around a layer was looked up by its whole name: minutes where both names are long.)
    #[test]
    #[cfg(target_os = "linux")]
    fn names_of_a_megabyte_take_no_time() {
        let (around, start) = ("a.".repeat(1 << 19), seconds_worked());
        let map = layers(&["a.a", &format!("{around}x")]);
        let by_name = Algorithms::new(&map);
        assert_eq!(by_name.of_layer(&format!("{around}o_proj")), Some("a.a"));
        // A debug build takes half a second; looking each part up from the start took 7.
        let worked = seconds_worked() - start;
        assert!(worked < 4.0, "{worked} s");
    }
}
