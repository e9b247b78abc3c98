//! Scales of activations: those that no calibration gives, and those that a config promises and that are not there.

use scaled_gemm::checkpoint::{Checkpoint, Dtype, TensorInfo};
use serde_json::Value;

use super::configs::{Method, Said};
use super::{Matrix, formats, layers};
use crate::activations::{ACTIVATIONS, experts, is_scale};
use crate::folder::{module, some};
use crate::output::{count, shown};

/// Most bytes of such a tensor that are looked at.
const MOST_BYTES: u64 = 1 << 20;

/// Scales that are not finite, or not above 0, in one line.
pub fn values(input: &Checkpoint, matrices: &[Matrix<'_>]) -> Option<String> {
    let mut bad: Vec<(String, f32)> = Vec::new();
    for matrix in matrices {
        for name in ACTIVATIONS.map(|name| format!("{}.{name}", module(matrix.name))) {
            let is_float = |dtype| matches!(dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16);
            let experts = experts(input, matrix.name);
            let is_read = |t: &TensorInfo| is_float(t.dtype) && t.bytes() <= MOST_BYTES && is_scale(t, experts);
            let is_read = input.get(&name).is_some_and(is_read);
            let values = if is_read { input.values(&name).ok() } else { None };
            let wrong = |values: Vec<f32>| values.into_iter().find(|value| !(value.is_finite() && *value > 0.0));
            bad.extend(values.and_then(|(values, _)| wrong(values)).map(|value| (name, value)));
        }
    }
    let (_, first) = bad.first()?;
    Some(format!(
        "{}: {} ({}) of activations not finite or not above 0, the first {first}; calibrate the model again",
        shown(input.path()),
        count(bad.len(), "scale", "scales"),
        some(bad.iter().map(|(name, _)| name.as_str()))?
    ))
}

/// Layers without the scales that are promised where engines do not find them while they run. (ModelOpt's algorithms promise theirs, of
/// which `claims` speaks.)
pub fn missing(input: &Checkpoint, said: &Said<'_>, matrices: &[&Matrix<'_>]) -> Vec<String> {
    let Some(promise) = promise(said) else { return Vec::new() };
    let mut found = Vec::new();
    for (schemes, name, remedy) in [
        (&["fp8-tensor", "fp8-row"][..], "input_scale", promise.dynamic),
        (&["nvfp4"][..], "input_global_scale", "name no input_activations"),
    ] {
        let lacks = |m: &&&Matrix<'_>| {
            let module = module(m.name);
            let is_there = |name: &str| input.get(&format!("{module}.{name}")).is_some();
            // The names of experts in one tensor differ from engine to engine.
            m.found.as_ref().is_ok_and(|(found, _)| schemes.contains(&found.name()))
                && (is_there("weight") || is_there("weight_packed"))
                && !ACTIVATIONS.iter().any(|name| is_there(name))
        };
        let lacking: Vec<&str> = matrices.iter().filter(lacks).map(|m| module(m.name)).collect();
        if let Some(names) = layers(&lacking) {
            found.push(format!(
                "{names} without {name}, which {} promises by {}; quantize with --input-scales, or {remedy}",
                said.file, promise.words
            ));
        }
    }
    found
}

/// What promises them, and what does not.
struct Promise {
    words: &'static str,
    dynamic: &'static str,
}

fn promise(said: &Said<'_>) -> Option<Promise> {
    match said.method() {
        Method::Fp8 => (said.word("activation_scheme") == Some("static"))
            .then_some(Promise { words: "activation_scheme static", dynamic: "name the activation_scheme dynamic" }),
        Method::CompressedTensors => {
            // `dynamic` is false where it is not said; local ones have one scale of the whole (compressed-tensors 0.20.0, quant_args.py).
            let is_static = |group: &Value| {
                let activations = group.get("input_activations").filter(|value| value.is_object());
                activations.is_some_and(|of| !matches!(of.get("dynamic"), Some(Value::Bool(true))))
            };
            let mut groups = formats::groups(said).peekable();
            let all = groups.peek().is_some() && groups.all(|(_, group)| is_static(group));
            all.then_some(Promise { words: "input_activations that are not dynamic", dynamic: "have them dynamic" })
        }
        Method::ModelOpt | Method::Other => None,
    }
}
