//! `--fuse`: layers whose names differ in what a pattern matches alone are one group, besides what engines are known to fuse.

use std::collections::HashSet;

use regex::Regex;
use scaled_gemm::checkpoint::printable;
use scaled_gemm::model_folder::{ModelConfig, fused_groups};

use super::plan::{Given, Plans, is_linear};
use crate::folder::module;
use crate::output::{Failure, shown};

/// The group of a module by the first of these patterns that matches it.
pub fn group(patterns: &[Regex], module: &str) -> Option<String> {
    patterns.iter().find_map(|pattern| {
        let found = pattern.find(module)?;
        Some(format!("{}\0{}\0{}", pattern.as_str(), &module[..found.start()], &module[found.end()..]))
    })
}

/// Refuses patterns that match no layer, or join none. `names`: all tensors, those of experts also one by one. Gives back what there is
/// to say of those that join what is joined without them.
pub fn check(given: Given<'_>, plans: &Plans, names: &[&str]) -> Result<Vec<String>, Failure> {
    let patterns = &given.args.fuse;
    if patterns.is_empty() {
        return Ok(Vec::new());
    }
    let modules: Vec<&str> = plans.items.iter().filter(|item| is_linear(item)).map(|item| module(&item.name)).collect();
    let refuse = |pattern: &Regex, reason: String| {
        Err(Failure::Use(format!("--fuse {}: {reason}; mend it, or leave it out", printable(pattern.as_str()))))
    };
    let path = shown(&given.args.input);
    for pattern in patterns {
        if !names.iter().any(|name| name.ends_with(".weight") && pattern.is_match(module(name))) {
            return refuse(pattern, format!("matches no layer of {path}"));
        }
        let mut seen = HashSet::new();
        let alone = std::slice::from_ref(pattern);
        if modules.iter().filter_map(|module| group(alone, module)).all(|name| seen.insert(name)) {
            let why = "no names of its linear layers differ in what it matches alone";
            return refuse(pattern, format!("joins no layers of {path}: {why}"));
        }
    }
    let architecture = given.config.map(ModelConfig::architecture).unwrap_or_default();
    let groups = |patterns: &[Regex]| fused_groups(&modules, architecture, |module| group(patterns, module));
    let all = groups(patterns);
    // Of two that do the same one is needed.
    let (mut needed, mut idle) = (patterns.clone(), Vec::new());
    for pattern in patterns.iter().rev() {
        let Some(at) = needed.iter().rposition(|other| other.as_str() == pattern.as_str()) else { continue };
        let removed = needed.remove(at);
        if groups(&needed) != all {
            needed.insert(at, removed);
            continue;
        }
        idle.push(format!(
            "--fuse {}: changes nothing: engines fuse what it joins, or another --fuse joins it; leave it out",
            printable(pattern.as_str())
        ));
    }
    Ok(idle)
}
