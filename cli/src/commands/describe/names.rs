//! Names of the tensors of matrices, against those that engines look for by the method of a config.

use std::collections::BTreeMap;

use scaled_gemm::checkpoint::{Checkpoint, printable};

use super::configs::{Method, Said};
use super::{Matrix, layers};
use crate::activations::{ACTIVATIONS, experts, is_scale};
use crate::folder::{COMFY_MARK, COMFY_MARKS, module};

/// What is done about names that are ComfyUI's, in the place of a method.
const COMFY_REMEDY: &str = "write them to a single file for ComfyUI, which reads no config";

/// How a config has the names: its method, and of FP8 whether tiles have a scale each, or may have by its algorithm.
#[derive(Clone, Copy)]
enum Names {
    CompressedTensors,
    ModelOpt { tiles: bool },
    Fp8 { tiles: bool },
    Mxfp4,
    Mxfp8,
}

impl Names {
    fn of(said: &Said<'_>) -> Option<Self> {
        match (said.method(), said.word("quant_method")) {
            (Method::CompressedTensors, _) => Some(Self::CompressedTensors),
            (Method::ModelOpt, _) => {
                let algorithm = said.word("quant_algo").unwrap_or_default().to_ascii_uppercase();
                Some(Self::ModelOpt { tiles: ["FP8_BLOCK_SCALES", "MIXED_PRECISION"].contains(&algorithm.as_str()) })
            }
            (Method::Fp8, _) => Some(Self::Fp8 { tiles: said.get("weight_block_size").is_some() }),
            (Method::Other, Some("mxfp4")) => Some(Self::Mxfp4),
            (Method::Other, Some("mxfp8")) => Some(Self::Mxfp8),
            (Method::Other, _) => None,
        }
    }

    /// How the names of the codes and scales of a scheme end: several where engines differ, none where the method does not have it. By
    /// vLLM 0.33.0, SGLang 0.5.23, transformers 5.23.0 and mistral.rs 0a29442, as in docs/models.md.
    fn endings(self, scheme: &str) -> &'static [&'static [&'static str]] {
        let is_fp8 = scheme.starts_with("fp8-");
        match (self, scheme) {
            (Self::CompressedTensors, "nvfp4") => &[&["_packed", "_scale", "_global_scale"]],
            (Self::CompressedTensors, "mxfp4") => &[&["_packed", "_scale"]],
            (Self::CompressedTensors, "mxfp8") => &[&["", "_scale"]],
            (Self::ModelOpt { .. }, "nvfp4") => &[&["", "_scale", "_scale_2"]],
            // TensorRT-LLM's FP8_BLOCK_SCALES: `weight_scale_inv` first, then the other (main, _torch/modules/linear.py).
            (Self::ModelOpt { tiles: true }, "fp8-128x128") => &[&["", "_scale_inv"], &["", "_scale"]],
            (Self::CompressedTensors | Self::ModelOpt { .. }, _) if is_fp8 => &[&["", "_scale"]],
            (Self::Fp8 { tiles: true }, "fp8-128x128") => &[&["", "_scale_inv"]],
            // vLLM looks for the first, transformers for the second; of MXFP8 SGLang does.
            (Self::Fp8 { tiles: false }, "fp8-tensor" | "fp8-row") => &[&["", "_scale"], &["", "_scale_inv"]],
            (Self::ModelOpt { .. } | Self::Fp8 { .. } | Self::Mxfp8, "mxfp8") => {
                &[&["", "_scale"], &["", "_scale_inv"]]
            }
            (Self::Mxfp4, "mxfp4") => &[&["_blocks", "_scales"]],
            _ => &[],
        }
    }

    /// The names of scales of activations.
    fn activations(self, scheme: &str) -> &'static [&'static str] {
        match self {
            Self::CompressedTensors if scheme == "nvfp4" => &["input_global_scale"],
            Self::Fp8 { .. } => &["input_scale", "activation_scale"],
            _ => &["input_scale"],
        }
    }
}

/// Matrices whose tensors have other names than the engines of this config look for.
pub fn problems(input: &Checkpoint, said: &Said<'_>, matrices: &[&Matrix<'_>]) -> Vec<String> {
    let Some(names) = Names::of(said) else { return Vec::new() };
    let mut wrong: BTreeMap<[String; 3], Vec<&str>> = BTreeMap::new();
    for matrix in matrices {
        let Ok((scheme, _)) = &matrix.found else { continue };
        let (scheme, endings) = (scheme.name(), names.endings(scheme.name()));
        // What the scheme is not of is said of the scheme.
        if endings.is_empty() {
            continue;
        }
        let own: Vec<&str> = matrix.parts.iter().map(|tensor| last(&tensor.name)).collect();
        let looked_for = |names: &[&str]| {
            let base = last(matrix.name);
            names.iter().map(|ending| format!("{base}{ending}")).collect::<Vec<_>>()
        };
        if !endings.iter().any(|names| looked_for(names) == own) {
            let wanted = endings.iter().map(|names| match **names {
                // Beside a layer, and not in it.
                ["_blocks", ..] => listed(&names.iter().map(|ending| format!("X{ending}")).collect::<Vec<_>>(), "and"),
                _ => listed(&looked_for(names), "and"),
            });
            let wanted: Vec<_> = wanted.collect();
            let what = format!("its engines look for {}", wanted.join(", or "));
            wrong
                .entry([listed(&own, "and"), what, written_by(scheme, matrix.name, &own)])
                .or_default()
                .push(module(matrix.name));
            continue;
        }
        let (module, known) = (module(matrix.name), names.activations(scheme));
        let is_there = |name: &&str| input.get(&[module, ".", name].concat()).is_some();
        let experts = experts(input, matrix.name);
        let is_scale_there =
            |name: &&str| input.get(&[module, ".", name].concat()).is_some_and(|tensor| is_scale(tensor, experts));
        // Scales without blocks have one order, and a mark that is left of what a layer was says nothing of it.
        if input.is_tiled(matrix.name) {
            let mark = if is_there(&COMFY_MARK) { COMFY_MARK } else { COMFY_MARKS };
            let what = "its engines know no such mark, and take block scales in tiles for scales in rows";
            wrong.entry([mark.into(), what.into(), COMFY_REMEDY.into()]).or_default().push(module);
            continue;
        }
        let there: Vec<&str> =
            ACTIVATIONS.into_iter().filter(|name| !known.contains(name)).filter(is_scale_there).collect();
        if !there.is_empty() && !known.iter().any(is_there) {
            let what = format!("its engines look for {}", listed(known, "or"));
            wrong.entry([listed(&there, "and"), what, String::new()]).or_default().push(module);
        }
    }
    let says = match said.word("quant_method") {
        Some(method) => format!("quant_method {}", printable(method)),
        None => format!("quant_algo {}", printable(said.word("quant_algo").unwrap_or_default())),
    };
    let line = |([own, what, whose], modules): ([String; 3], Vec<&str>)| {
        let remedy = match whose.as_str() {
            "" => "mend it".into(),
            COMFY_REMEDY => COMFY_REMEDY.into(),
            whose => format!("name the method that these are of ({whose})"),
        };
        let layers = layers(&modules)?;
        let found = match own.as_str() {
            // An entry for all layers, and no tensor.
            COMFY_MARKS => format!("the metadata marks {layers} for ComfyUI by {COMFY_MARKS}"),
            own => format!("tensors of {layers} are called {}", printable(own)),
        };
        Some(format!(
            "{} says {says}, and {found}: {}; {remedy}, or quantize the model again",
            said.file,
            printable(&what)
        ))
    };
    wrong.into_iter().filter_map(line).collect()
}

/// The methods that have a scheme under these names, or what is to be done where no config has them.
fn written_by(scheme: &str, matrix: &str, own: &[&str]) -> String {
    let all = [
        ("compressed-tensors", Names::CompressedTensors),
        ("modelopt", Names::ModelOpt { tiles: false }),
        ("fp8", Names::Fp8 { tiles: scheme == "fp8-128x128" }),
        ("mxfp4", Names::Mxfp4),
    ];
    let base = last(matrix);
    let is_so = |names: &&[&str]| {
        let mut parts = names.iter().zip(own);
        names.len() == own.len() && parts.all(|(ending, name)| name.strip_prefix(base) == Some(ending))
    };
    let fit = all.into_iter().filter(|(_, names)| names.endings(scheme).iter().any(is_so));
    let found: Vec<&str> = fit.map(|(name, _)| name).collect();
    match own.contains(&"scale_weight") {
        true => COMFY_REMEDY.into(),
        false => listed(&found, "or"),
    }
}

/// The last part of a name.
fn last(name: &str) -> &str {
    name.rsplit('.').next().unwrap_or(name)
}

/// `a, b and c`.
fn listed(names: &[impl AsRef<str>], and: &str) -> String {
    let names: Vec<&str> = names.iter().map(AsRef::as_ref).collect();
    match names.as_slice() {
        [rest @ .., last] if !rest.is_empty() => format!("{} {and} {last}", rest.join(", ")),
        all => all.concat(),
    }
}
