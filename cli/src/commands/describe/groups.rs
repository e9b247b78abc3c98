//! What the groups of compressed-tensors say of the numbers of weights, against the tensors.

use scaled_gemm::checkpoint::printable;
use serde_json::Value;

use super::configs::{Method, Said};
use super::{Matrix, claims, formats, layers};
use crate::folder::module;
use crate::output::of_number;

/// Groups whose `num_bits`, `type` or `strategy` is not that of the matrices. Of groups that differ nothing is said.
pub fn problems(said: &Said<'_>, matrices: &[&Matrix<'_>]) -> Vec<String> {
    if said.method() != Method::CompressedTensors {
        return Vec::new();
    }
    let weights: Vec<&Value> = formats::groups(said).map(|(_, group)| &group["weights"]).collect();
    let same = |key: &str| {
        let first = weights.first()?.get(key).filter(|value| !value.is_null())?;
        weights.iter().all(|other| other.get(key) == Some(first)).then_some(first)
    };
    let line = |words: String, is_so: &dyn Fn(&Matrix<'_>, &str) -> bool| {
        let read = matrices.iter().filter_map(|m| Some((m, m.found.as_ref().ok()?.0)));
        let others: Vec<_> = read.filter(|(m, scheme)| !is_so(m, scheme.name())).collect();
        let names: Vec<&str> = others.iter().map(|(m, _)| module(m.name)).collect();
        let (are, [_, them]) = (of_number(names.len(), "is", "are"), claims::they(names.len()));
        let (names, (_, scheme)) = (layers(&names)?, others.first()?);
        Some(format!(
            "{} says {words} of weights, and {names} {are} {scheme}: engines read {them} by what it says; mend it, or quantize the model again",
            said.file
        ))
    };
    let bits = same("num_bits").and_then(Value::as_u64).and_then(|bits| {
        line(format!("num_bits {bits}"), &|_, scheme| bits == if scheme.ends_with("fp4") { 4 } else { 8 })
    });
    let kind = same("type").and_then(Value::as_str).filter(|kind| *kind != "float");
    let kind = kind.and_then(|kind| line(format!("type {}", printable(kind)), &|_, _| false));
    let strategy = same("strategy").and_then(Value::as_str).and_then(|strategy| {
        let schemes: &[&str] = match strategy {
            "tensor" => &["fp8-tensor"],
            "channel" => &["fp8-row"],
            "block" => &["fp8-128x128"],
            _ => return None,
        };
        let is_so = |matrix: &Matrix<'_>, scheme: &str| !scheme.starts_with("fp8-") || claims::is_of(matrix, schemes);
        line(format!("strategy {}", printable(strategy)), &is_so)
    });
    bits.into_iter().chain(kind).chain(strategy).collect()
}
