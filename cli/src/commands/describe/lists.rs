//! Lists of layers that are not quantized: what engines make of their entries, against what the tensors are.
//!
//! Engines read entries in different ways (docs/models.md). What the rules of a method have as a match is one, what no rule has is none;
//! of what is between nothing is said.

use std::collections::HashSet;

use regex::{Regex, RegexBuilder};
use scaled_gemm::checkpoint::{Checkpoint, Dtype, TensorInfo};
use scaled_gemm::model_folder::{ModelConfig, left_alone};
use serde_json::Value;

use super::configs::{CONFIG, HF, Method, Said};
use super::entries::{LISTS, is_names};
use super::{Findings, layers};
use crate::folder::some;
use crate::output::{Pronouns, of_number};

/// Patterns looked at, and their bytes together: as many as a config may have. What they may become together, and one of them.
const MOST_PATTERNS: usize = 256;
const MOST_PATTERN_BYTES: usize = 16 << 10;
const MOST_PROGRAM_BYTES: usize = 64 << 20;
const MOST_BYTES_OF_ONE: usize = 4 << 20;

/// Parts of a name whose runs are looked at: their number grows with its square, and no model has names of so many.
const MOST_PARTS: usize = 64;

/// Entries of a list that are named in a line; one more than are written out.
const MOST_NAMED: usize = 4;

/// Last parts of names that are linear layers in every model.
const LINEAR: [&str; 15] = [
    "q_proj",
    "k_proj",
    "v_proj",
    "o_proj",
    "qkv_proj",
    "gate_proj",
    "up_proj",
    "down_proj",
    "gate_up_proj",
    "w1",
    "w2",
    "w3",
    "query_key_value",
    "dense_h_to_4h",
    "dense_4h_to_h",
];

struct List<'a> {
    said: Said<'a>,
    method: Method,
    keys: Vec<&'static str>,
    names: HashSet<&'a str>,
    /// The same without [`AROUND`].
    bare: HashSet<&'a str>,
    /// With what is a match by the rules of the method, and what may be one.
    patterns: Vec<(&'a str, [Regex; 2])>,
    /// Entries whose matches are not known here.
    unclear: Vec<&'a str>,
    /// Classes of layers are entries too, and which layers are of them is not known; nor what a list is that is none.
    is_open: bool,
    /// What compressed-tensors quantizes; nothing where it is all linear layers, or other methods.
    targets: Option<Vec<Regex>>,
}

impl<'a> List<'a> {
    fn new(said: Said<'a>) -> Self {
        let method = said.method();
        let keys: Vec<&str> = LISTS.into_iter().filter(|key| said.get(key).is_some()).collect();
        let (names, bare, patterns, unclear) = Default::default();
        let targets = targets(said, method);
        let mut list = Self { said, method, keys, names, bare, patterns, unclear, is_open: false, targets };
        list.is_open =
            !said.top.is_object() || list.keys.iter().any(|key| said.get(key).is_some_and(|value| !is_names(value)));
        let texts = LISTS.iter().filter_map(|key| said.get(key)?.as_array()).flatten().filter_map(Value::as_str);
        let number = texts.clone().filter(|text| pattern(text).is_some()).count();
        let most = MOST_BYTES_OF_ONE.min(MOST_PROGRAM_BYTES / (2 * number).max(1));
        let mut bytes = 0;
        for text in texts {
            let Some([strict, loose]) = pattern(text) else {
                list.names.insert(text);
                list.bare.insert(self::bare(text));
                list.is_open |= text.starts_with(|c: char| c.is_ascii_uppercase());
                continue;
            };
            bytes += loose.len();
            let is_few = list.patterns.len() < MOST_PATTERNS && bytes <= MOST_PATTERN_BYTES;
            match is_few.then(|| pattern_of(&strict, most).zip(pattern_of(&loose, most))).flatten() {
                Some((strict, loose)) => list.patterns.push((text, [strict, loose])),
                None => list.unclear.push(text),
            }
        }
        list
    }

    /// Its name in words: `ignore of config.json`.
    fn words(&self) -> String {
        match self.keys.as_slice() {
            [] => format!("no list of {}", self.said.file),
            keys => format!("{} of {}", keys.join(" and "), self.said.file),
        }
    }

    /// The entry by which an engine that is known leaves a module alone, of those that have this method.
    fn entry(&self, module: &str) -> Option<&'a str> {
        let name = |text: &str| self.names.get(text).copied();
        // vLLM's and mistral.rs' lists of FP8 have names alone, and ModelOpt's have no regular expressions.
        let is_known = |entry: &str| match self.method {
            Method::CompressedTensors => true,
            Method::ModelOpt => !entry.starts_with("re:"),
            Method::Fp8 | Method::Other => false,
        };
        let by_pattern = || {
            let mut patterns = self.patterns.iter().filter(|(entry, _)| is_known(entry));
            patterns.find(|(_, [regex, _])| regex.is_match(module)).map(|(entry, _)| *entry)
        };
        let around = || match self.method {
            // A part of the name: vLLM's ModelOptQuantConfigBase.is_layer_excluded. One that ends within a part matches there too.
            Method::ModelOpt => runs(module).find_map(|(_, run)| name(run)),
            // The modules around one: transformers' should_convert_module.
            Method::Fp8 => runs(module).filter(|(start, _)| *start == 0).find_map(|(_, run)| name(run)),
            Method::CompressedTensors | Method::Other => None,
        };
        name(module).or_else(by_pattern).or_else(around)
    }

    /// True if no engine that is known leaves a module alone by this list.
    fn lacks(&self, module: &str) -> bool {
        if !self.unclear.is_empty() || self.is_open || module.split('.').nth(MOST_PARTS).is_some() {
            return false;
        }
        let matches = |name: &str| self.patterns.iter().any(|(_, [_, regex])| regex.is_match(name));
        let is_in = |run: &str| self.names.contains(run) || self.bare.contains(run) || matches(run);
        let rest = bare(module);
        let renamed = AROUND.iter().any(|around| matches(&format!("{around}{rest}")));
        !renamed && !runs(module).any(|(_, run)| is_in(run))
    }

    /// True if the config quantizes all linear layers that its list does not have, and this is one of them.
    fn is_quantized(&self, module: &str) -> bool {
        let targeted = self.targets.as_ref().is_none_or(|targets| targets.iter().any(|target| target.is_match(module)));
        self.method != Method::Other && targeted && self.lacks(module)
    }
}

/// What an entry is that is no name: a regular expression of what it matches, and one of what it may match.
fn pattern(text: &str) -> Option<[String; 2]> {
    if let Some(pattern) = text.strip_prefix("re:") {
        // Python's re.match.
        let pattern = format!("^(?:{pattern})");
        return Some([pattern.clone(), pattern]);
    }
    if !text.contains(['*', '?', '[']) {
        return None;
    }
    let globbed = |text: &str| -> String {
        let part = |c: char| match c {
            '*' => ".*".into(),
            '?' => ".".into(),
            '[' | ']' => c.to_string(),
            c => regex::escape(c.encode_utf8(&mut [0; 4])),
        };
        text.chars().map(part).collect()
    };
    let loose = format!("^(?:{})$", globbed(text));
    // `X*` is X and what is in it to vLLM, and all that begins so to SGLang: `layers.1*` may be layer 10, too. A star
    // alone is everything to both.
    let strict = text.strip_suffix('*').filter(|rest| !rest.is_empty() && !rest.ends_with(['.', '*']));
    let strict = strict.map(|rest| format!("^(?:{}(?:\\..*)?)$", globbed(rest)));
    Some([strict.unwrap_or_else(|| loose.clone()), loose])
}

fn pattern_of(pattern: &str, most: usize) -> Option<Regex> {
    RegexBuilder::new(pattern).size_limit(most).build().ok()
}

/// What compressed-tensors quantizes, where it is less than all linear layers and known: names and regular expressions.
fn targets(said: Said<'_>, method: Method) -> Option<Vec<Regex>> {
    let groups =
        said.get("config_groups").and_then(Value::as_object).filter(|_| method == Method::CompressedTensors)?;
    let lists = groups.values().filter_map(|group| group.get("targets")?.as_array());
    let texts: Vec<&str> = lists.flatten().filter_map(Value::as_str).take(MOST_PATTERNS).collect();
    if texts.contains(&"Linear") {
        return None;
    }
    let of = |text: &&str| pattern(text).map_or_else(|| format!("^(?:{})$", regex::escape(text)), |[_, loose]| loose);
    Some(texts.iter().map(of).filter_map(|text| pattern_of(&text, MOST_PROGRAM_BYTES / MOST_PATTERNS)).collect())
}

/// What names of a text model begin with, which configs and files have in different orders.
const AROUND: [&str; 4] = ["model.", "language_model.", "model.language_model.", "language_model.model."];

/// A name without [`AROUND`].
fn bare(mut module: &str) -> &str {
    while let Some(rest) = ["model.", "language_model."].iter().find_map(|around| module.strip_prefix(around)) {
        module = rest;
    }
    module
}

/// The runs of whole parts of a name, with where each begins; none of a name of more than [`MOST_PARTS`].
fn runs(module: &str) -> impl Iterator<Item = (usize, &str)> {
    let is_short = module.split('.').nth(MOST_PARTS).is_none();
    let dots = || module.match_indices('.').map(|(at, _)| at);
    let starts = std::iter::once(0).chain(dots().map(|at| at + 1)).filter(move |_| is_short);
    starts.flat_map(move |start| {
        let ends = dots().filter(move |end| *end > start).chain([module.len()]);
        ends.map(move |end| (start, &module[start..end]))
    })
}

/// Modules of plain matrices that may be linear layers.
pub fn plain_modules(input: &Checkpoint) -> Vec<&str> {
    let is_plain = |t: &&TensorInfo| t.shape.len() == 2 && matches!(t.dtype, Dtype::BF16 | Dtype::F16 | Dtype::F32);
    let modules = input.tensors().iter().filter(is_plain).filter_map(|t| t.name.strip_suffix(".weight"));
    modules.filter(|module| left_alone(module) != Some("an embedding")).collect()
}

/// Where the lists say otherwise than the tensors, or than each other. `quantized` and `plain`: modules; `torn`: plain ones that were
/// spoken of.
pub fn problems(
    said: &[Said<'_>],
    config: Option<&ModelConfig>,
    [quantized, plain]: [&[&str]; 2],
    torn: &HashSet<&str>,
    found: &mut Findings,
) {
    if quantized.is_empty() {
        return;
    }
    let lists: Vec<List<'_>> = said.iter().map(|said| List::new(*said)).collect();
    let mut spoken: HashSet<&str> = torn.clone();
    for list in &lists {
        let words = list.words();
        if let Some(entries) = some(list.unclear.iter().copied()) {
            found.notes.push(format!(
                "{words}: entries that are not understood here, and not compared with the tensors: {entries}"
            ));
        }
        let by_part =
            |module: &str| list.said.file == CONFIG && config.is_some_and(|config| config.ignores_by_name(module));
        let mut entries: Vec<&str> = Vec::new();
        let mut ignored: Vec<&str> = Vec::new();
        for module in quantized {
            match list.entry(module) {
                Some(entry) => {
                    ignored.push(module);
                    if entry != *module && entries.len() < MOST_NAMED && !entries.contains(&entry) {
                        entries.push(entry);
                    }
                }
                None if by_part(module) => ignored.push(module),
                None => {}
            }
        }
        if let Some(names) = layers(&ignored) {
            let by = some(entries.iter().copied()).map(|entries| format!(" by {entries}")).unwrap_or_default();
            let what = if entries.is_empty() { "the names" } else { "that" };
            let are = of_number(ignored.len(), "is", "are");
            found.problems.push(format!(
                "{names} that {words} says {are} not quantized{by}: engines take the codes for plain weights; take {what} out of its \
                 list, or quantize the model again"
            ));
        }
        spoken.extend(ignored);
    }
    if said.iter().any(super::claims::is_mixed) {
        return;
    }
    let last = |module: &'_ str| module.rsplit('.').next().unwrap_or(module).to_string();
    let known: HashSet<String> = quantized.iter().map(|module| last(module)).collect();
    for list in &lists {
        let missing = plain.iter().copied().filter(|module| list.is_quantized(module) && !torn.contains(module));
        let (mut wrong, mut unknown) = (Vec::new(), Vec::new());
        for module in missing {
            match left_alone(module) {
                // vLLM's FP8 is of linear layers alone, and transformers leaves the head out by itself.
                Some("an output head") if list.method != Method::Fp8 && last(module) == "lm_head" => wrong.push(module),
                Some(_) => {}
                None if LINEAR.contains(&last(module).as_str()) || known.contains(&last(module)) => wrong.push(module),
                None => unknown.push(module),
            }
        }
        let words = list.words();
        let words = if list.keys.is_empty() { format!("in {words}") } else { format!("not in {words}") };
        if let Some(names) = layers(&wrong) {
            found.problems.push(format!(
                "{names} plain, and {words}: engines take plain weights for codes; add the names to the list, or quantize the model again"
            ));
        }
        if let Some(names) = layers(&unknown) {
            let Pronouns { it, .. } = Pronouns::of(unknown.len());
            let layers = of_number(unknown.len(), "a linear layer", "linear layers");
            found.notes.push(format!(
                "{names} plain, and {words}: engines take {it} for quantized where their own code has {it} as {layers}"
            ));
        }
        spoken.extend(wrong);
    }
    let [Some(config), Some(hf)] = [CONFIG, HF].map(|file| lists.iter().find(|list| list.said.file == file)) else {
        return;
    };
    let is_layer = |name: &&str| left_alone(name) != Some("an embedding") && (name.contains('.') || *name == "lm_head");
    let names = config.names.iter().chain(&hf.names).copied().filter(is_layer);
    let all: HashSet<&str> = quantized.iter().chain(plain).copied().chain(names).collect();
    let in_one = |a: &List<'_>, b: &List<'_>, module: &str| a.entry(module).is_some() && b.lacks(module);
    let differs =
        |module: &&str| !spoken.contains(module) && (in_one(config, hf, module) || in_one(hf, config, module));
    let mut differing: Vec<&str> = all.into_iter().filter(differs).collect();
    differing.sort_unstable();
    if let Some(names) = layers(&differing) {
        let [first, second] = [config, hf].map(List::words);
        found.problems.push(format!(
            "{first} and {second} differ in {names}, and engines read one or the other; make the lists equal, or quantize the model \
             again"
        ));
    }
}
