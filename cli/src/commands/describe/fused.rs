//! Layers that engines fuse: they keep one scale of them, and read all quantized or none.

use std::collections::HashSet;

use scaled_gemm::checkpoint::{Checkpoint, printable};
use scaled_gemm::model_folder::fused_groups;

use super::Matrix;
use crate::experts;
use crate::folder::module;

/// Groups whose scales differ.
pub fn scales(input: &Checkpoint, architecture: &str, matrices: &[&Matrix<'_>]) -> Vec<String> {
    let scaled: Vec<&str> = matrices.iter().filter(|m| m.has_whole()).map(|m| m.name).collect();
    let modules: Vec<&str> = scaled.iter().map(|name| module(name)).collect();
    let mut found = Vec::new();
    for group in fused_groups(&modules, architecture, |_| None) {
        // The first rows have the scale of the whole.
        let scale = |at: &usize| input.quant_rows(scaled[*at], 0..1).ok().and_then(|q| q.scales().first().copied());
        // One that is not read was said above.
        let read: Option<Vec<u32>> = group.iter().map(|at| scale(at).map(f32::to_bits)).collect();
        if read.is_some_and(|bits| bits.windows(2).any(|pair| pair[0] != pair[1])) {
            let names: Vec<_> = group.iter().map(|&at| printable(modules[at])).collect();
            found.push(format!(
                "{}: engines that fuse these keep one scale of them all, and theirs differ; quantize them again, without --no-fuse",
                names.join(", ")
            ));
        }
    }
    found
}

/// Layers that all engines fuse and that are quantized in part, in words, with all that are plain of them.
pub fn divided<'a>(quantized: &[&'a str], plain: &[&'a str]) -> (Vec<String>, HashSet<&'a str>) {
    let is_fused = |module: &&&str| {
        let last = module.rsplit('.').next().unwrap_or(module);
        ["q_proj", "k_proj", "v_proj", "gate_proj", "up_proj", "w1", "w3"].contains(&last)
    };
    let all = quantized;
    let quantized: Vec<&str> = quantized.iter().filter(is_fused).copied().collect();
    let known: HashSet<&str> = quantized.iter().copied().collect();
    let others = plain.iter().filter(is_fused).copied().filter(|module| !known.contains(module));
    let modules: Vec<&str> = quantized.iter().copied().chain(others).collect();
    let (mut found, mut torn) = (Vec::new(), HashSet::new());
    for group in fused_groups(&modules, "", |_| None) {
        // Quantized ones are before the others, in each group too.
        if let (Some(&first), Some(&last)) = (group.first(), group.last())
            && first < quantized.len()
            && last >= quantized.len()
        {
            found.push(format!(
                "{}: quantized, and {} is not: engines that fuse these read all or none; quantize the model again",
                printable(modules[first]),
                printable(modules[last])
            ));
            torn.extend(group.iter().filter(|at| **at >= quantized.len()).map(|at| modules[*at]));
        }
    }
    // They run the experts of a layer as one, too.
    let spoken: HashSet<&str> = torn.iter().filter_map(|module| Some(experts::of_one(module)?.0)).collect();
    let divided: Vec<_> = experts::divided(all, plain).into_iter().filter(|of| !spoken.contains(of[0])).collect();
    for [_, first, last] in &divided {
        found.push(format!(
            "{}: quantized, and {} is not: engines run the experts of a layer as one, and read all or none; quantize the model again",
            printable(first),
            printable(last)
        ));
    }
    let layers: HashSet<&str> = divided.iter().map(|of| of[0]).collect();
    torn.extend(plain.iter().filter(|module| experts::of_one(module).is_some_and(|of| layers.contains(of.0))));
    (found, torn)
}
