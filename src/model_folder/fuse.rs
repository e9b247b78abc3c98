//! Which layers engines compute as one, and keep one second-level scale for.

use std::collections::HashMap;

/// Layers of one parent that engines fuse, by the last part of their names. vLLM: `packed_modules_mapping` of its models (0.33.0);
/// llm-compressor and ModelOpt share scales among the first, second, third and fifth of these.
const GROUPS: [&[&str]; 11] = [
    &["q_proj", "k_proj", "v_proj"],
    &["gate_proj", "up_proj"],
    &["w1", "w3"],
    &["wq", "wk", "wv"],
    &["q_a_proj", "kv_a_proj_with_mqa"],
    &["query", "key", "value"],
    &["in_proj_qkv", "in_proj_z"],
    &["in_proj_b", "in_proj_a"],
    &["c_fc_0", "c_fc_1"],
    &["wq_a", "wkv"],
    &["fc1", "fc3"],
];

/// More of them that a group has in some architectures: the beginning of the architecture's name, one of the group, the others.
const WIDER: [(&str, &str, &[&str]); 4] = [
    ("KimiLinear", "q_proj", &["b_proj", "f_a_proj", "g_proj"]),
    ("KimiLinear", "q_a_proj", &["g_proj"]),
    ("BailingMoeV3", "q_proj", &["b_proj"]),
    ("OlmoHybrid", "q_proj", &["g_proj"]),
];

/// The groups among these modules (names of weights without `.weight`) that engines fuse: places in `modules`, in their order, two
/// or more in each.
///
/// An engine that fuses such layers keeps one scale for all of them: the largest of ModelOpt's, or the smallest divisor's of
/// compressed-tensors'. Where they differ, all weights but those of one layer are read wrongly. `architecture` is that of
/// [`ModelConfig`](super::ModelConfig), and may be empty. `own` gives names to groups that the caller knows besides; groups with a
/// module in common are one.
pub fn fused_groups(modules: &[&str], architecture: &str, own: impl Fn(&str) -> Option<String>) -> Vec<Vec<usize>> {
    let mut first: HashMap<(String, usize), usize> = HashMap::new();
    // Each module points at one before it in its group, the first at itself.
    let mut before: Vec<usize> = (0..modules.len()).collect();
    // Each step skips one of the way: groups that meet one after the other would make a way of all modules.
    let root = |before: &mut [usize], mut at: usize| {
        while before[at] != at {
            before[at] = before[before[at]];
            at = before[at];
        }
        at
    };
    for (at, module) in modules.iter().enumerate() {
        let (parent, last) = module.rsplit_once('.').unwrap_or(("", module));
        let known = group_of(last, architecture).map(|group| (parent.to_string(), group));
        for key in known.into_iter().chain(own(module).map(|name| (name, usize::MAX))) {
            let other = *first.entry(key).or_insert(at);
            let (a, b) = (root(&mut before, at), root(&mut before, other));
            before[a.max(b)] = a.min(b);
        }
    }
    let mut places: HashMap<usize, usize> = HashMap::new();
    let mut groups: Vec<Vec<usize>> = Vec::new();
    for at in 0..modules.len() {
        let place = *places.entry(root(&mut before, at)).or_insert_with(|| {
            groups.push(Vec::new());
            groups.len() - 1
        });
        groups[place].push(at);
    }
    groups.retain(|group| group.len() > 1);
    groups
}

fn group_of(last: &str, architecture: &str) -> Option<usize> {
    let known = |name: &str| GROUPS.iter().position(|group| group.contains(&name));
    known(last).or_else(|| {
        let wider =
            WIDER.iter().find(|(beginning, _, more)| architecture.starts_with(beginning) && more.contains(&last));
        known(wider?.1)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn groups(modules: &[&str], architecture: &str) -> Vec<Vec<usize>> {
        fused_groups(modules, architecture, |_| None)
    }

    #[test]
    fn layers_of_one_parent_are_fused() {
        let modules = [
            "model.layers.0.self_attn.q_proj",
            "model.layers.0.self_attn.k_proj",
            "model.layers.1.self_attn.q_proj",
            "model.layers.0.self_attn.o_proj",
            "model.layers.0.self_attn.v_proj",
            "model.layers.0.mlp.up_proj",
            "model.layers.0.mlp.gate_proj",
            "model.layers.0.mlp.experts.0.w1",
            "model.layers.0.mlp.experts.1.w3",
            "model.layers.0.mlp.experts.0.w3",
            "q_proj",
        ];
        assert_eq!(groups(&modules, "LlamaForCausalLM"), [vec![0, 1, 4], vec![5, 6], vec![7, 9]]);
        assert!(groups(&[], "").is_empty());
    }

    #[test]
    fn some_architectures_fuse_more() {
        let modules = ["l.q_proj", "l.k_proj", "l.g_proj"];
        assert_eq!(groups(&modules, "LlamaForCausalLM"), [vec![0, 1]]);
        assert_eq!(groups(&modules, "OlmoHybridForCausalLM"), [vec![0, 1, 2]]);
    }

    #[test]
    fn a_callers_groups_widen_those_of_engines() {
        let modules = ["a.q_proj", "a.k_proj", "b.x", "b.y"];
        let own = |name: &str| (name.starts_with('b') || name == "a.q_proj").then(|| "mine".to_string());
        assert_eq!(fused_groups(&modules, "", own), [vec![0, 1, 2, 3]]);
        // Two groups that meet late.
        let modules = ["a.x", "b.q_proj", "b.k_proj", "a.y"];
        let own = |name: &str| ["a.x", "b.k_proj"].contains(&name).then(|| "mine".to_string());
        assert_eq!(fused_groups(&modules, "", own), [vec![0, 1, 2]]);
    }

    /// Groups that meet in the worst order: each of the second half joins its group to the one before, from the last on.
    #[test]
    #[cfg(target_os = "linux")]
    fn a_hundred_thousand_modules_take_no_time_whatever_joins_them() {
        use crate::model_folder::worked::seconds_worked;

        let number = 50_000;
        let first = (0..number).map(|i| format!("l.{i}.q_proj"));
        let names: Vec<String> = first.chain((0..number).rev().map(|i| format!("l.{i}.k_proj"))).collect();
        let modules: Vec<&str> = names.iter().map(String::as_str).collect();
        let own = |module: &str| {
            let (layer, last) = module.strip_prefix("l.")?.split_once('.')?;
            let layer: usize = layer.parse().ok()?;
            // The first has none before it.
            Some(if last == "k_proj" { layer.checked_sub(1)? } else { layer }.to_string())
        };
        let start = seconds_worked();
        assert_eq!(fused_groups(&modules, "", own), [(0..2 * number).collect::<Vec<_>>()]);
        let worked = seconds_worked() - start;
        assert!(worked < 1.0, "{worked} s");
    }
}
