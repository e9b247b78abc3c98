//! `--no-fuse` in a dialect: what engines fuse is quantized in part, and no engine reads it so.

use scaled_gemm::checkpoint::{Dialect, printable};
use scaled_gemm::model_folder::{ModelConfig, fused_groups};

use super::plan::{Given, Plan, Plans, is_linear};
use crate::folder::module;
use crate::output::count;

/// What there is to say of groups of which some are quantized and some are not.
pub fn without_fuse(given: Given<'_>, plans: &Plans) -> Option<String> {
    if !given.args.no_fuse || given.dialect == Dialect::Plain {
        return None;
    }
    let linear: Vec<usize> = (0..plans.items.len()).filter(|&at| is_linear(&plans.items[at])).collect();
    let modules: Vec<&str> = linear.iter().map(|&at| module(&plans.items[at].name)).collect();
    let architecture = given.config.map(ModelConfig::architecture).unwrap_or_default();
    let is_quantized = |at: &&usize| matches!(plans.tensors[linear[**at]], Plan::Quantize(_));
    let groups = fused_groups(&modules, architecture, |_| None);
    // One of each kind is named.
    let both =
        |group: &Vec<usize>| Some([*group.iter().find(is_quantized)?, *group.iter().find(|at| !is_quantized(at))?]);
    let torn: Vec<[usize; 2]> = groups.iter().filter_map(both).collect();
    let [quantized, plain] = torn.first()?.map(|at| printable(modules[at]));
    Some(format!(
        "--no-fuse: of {} that engines fuse, a part is quantized ({quantized} is, {plain} is not), and engines read all or none; let \
         --only and --exclude take all of each, or leave the option out, and none of it is quantized",
        count(torn.len(), "group of layers", "groups of layers")
    ))
}
