//! What `quantize` says: which tensors became what, what shares a scale and what that costs, and what was copied, and why.

use std::collections::{BTreeMap, HashSet};

use scaled_gemm::checkpoint::{Checkpoint, Dialect, printable};
use scaled_gemm::model_folder::{ModelConfig, QuantizationConfig};
use scaled_gemm::reference::median;
use scaled_gemm::{Fp8Format, MxScaleRule, Mxfp8Recipe, Recipe};
use serde_json::{Value, json};

use super::super::dequantize::refusals;
use super::advice;
use super::given::{self, GivenAmax};
use super::items::Item;
use super::lost::Remedies;
use super::plan::{CODED, Given, LOST, NOT_ASKED_FOR, Plan, Plans, Weight, left_out};
use super::stream::Found;
use crate::args::QuantizeArgs;
use crate::folder::module;
use crate::non_finite::Others;
use crate::output::{MANY, Pronouns, bytes, count, named, shown, starred, table};
use crate::recipes::{options, preset, scheme};
use crate::target::Target;
use crate::unread::{self, Unread};

/// Most layers of a group that are named with each of them: of a hundred thousand that would be ten thousand million names.
const LISTED: usize = 64;

/// What there is to say of one run.
pub struct Report<'a> {
    pub args: &'a QuantizeArgs,
    pub first: Target,
    pub dialect: Dialect,
    pub input: &'a Checkpoint,
    pub config: Option<&'a ModelConfig>,
    pub plans: &'a Plans,
}

impl Report<'_> {
    /// For people. `found`: nothing before the work is done.
    pub fn text(&self, found: Option<&Found>) -> String {
        let tensors = &self.plans.items;
        let mut text = self.table();
        text.push('\n');
        for (at, counts) in found.iter().flat_map(|found| &found.non_finite) {
            text += &counts.describe(&tensors[*at].name).unwrap_or_default();
        }
        if let Some(found) = found {
            let name = |at: usize| tensors[at].name.as_str();
            let are_zeros_said = |at: usize| found.given.get(&at).is_some_and(GivenAmax::is_said_of_zeros);
            let remedies = self.remedies();
            for (at, weight) in self.plans.weights() {
                if let Some(lost) = found.lost.get(&at) {
                    text += &lost.describe(name(at), weight, &remedies, are_zeros_said(at));
                }
            }
            text += &given::losses(found.given.iter().map(|(at, given)| (name(*at), given)));
            text += &given::outweighed(found.outweighed.iter().map(|(at, idle)| (name(*at), idle, name(idle.of))));
        }
        let (before, after) = self.sizes();
        text += &format!(
            "{}{} to {} ({}), {} to {}, in {}\n",
            if found.is_some() { "" } else { "would quantize " },
            count(self.plans.weights().count(), "matrix", "matrices"),
            self.first.scheme(),
            self.first,
            bytes(before),
            bytes(after),
            self.args.output.as_deref().map_or("no file: a dry run".into(), shown)
        );
        if self.dialect != Dialect::Plain || self.input.folder().is_some() {
            let without = match (self.config, self.input.folder()) {
                (Some(_), _) => "",
                // Of a dialect for them.
                (None, Some(_)) if self.dialect != Dialect::Plain => {
                    ", without a config.json, and engines load no folder without one"
                }
                (None, _) => ", without a config.json",
            };
            text += &format!("dialect {}{without}\n", self.dialect);
        }
        text += &self.experts();
        text += &self.sharing(found);
        text + &lines(|number| format!("copied {}", Pronouns::of(number).as_it_is), &self.copied())
            + &lines(|_| "left out".into(), &self.plans.left_out().collect::<Vec<_>>())
    }

    /// What may be done about values that became zeros: where others are quantized, too, another recipe would be for all of them.
    fn remedies(&self) -> Remedies {
        match self.plans.others() {
            Others::Some => Remedies::Exclude,
            Others::None => {
                let formats = [(Fp8Format::E4M3, ""), (Fp8Format::E5M2, " --format e5m2")];
                let recipes = formats.map(|(format, option)| {
                    let recipe = Mxfp8Recipe { format, rule: MxScaleRule::default() };
                    let dialect = self.dialect_option(recipe.into())?;
                    Some((recipe, format!("--recipe mxfp8{option}{dialect}")))
                });
                Remedies::Recipes(recipes.into_iter().flatten().collect())
            }
        }
    }

    /// What has to be said of the dialect for a recipe of MXFP8 to take what is quantized; nothing where it does not.
    fn dialect_option(&self, recipe: Recipe) -> Option<&'static str> {
        let chosen = super::dialect(self.args, Target::Recipe(recipe), self.input, self.config).ok()?;
        let (dialect, option) = match (self.dialect, chosen) {
            (Dialect::Plain, Dialect::Plain) => (Dialect::Plain, ""),
            (Dialect::Plain, _) => (Dialect::Plain, " --dialect plain"),
            // No engine would read it any more.
            (_, Dialect::Plain) => return None,
            (_, chosen) => (chosen, ""),
        };
        QuantizationConfig::new(dialect, recipe, self.args.input_scales.is_some()).ok()?;
        let [rows, cols] = match dialect {
            Dialect::Plain => [1, 16],
            // It pads rows.
            Dialect::ComfyUi => [32, 32],
            _ => [1, 32],
        };
        let takes = |weight: &Weight| weight.rows.is_multiple_of(rows) && weight.cols.is_multiple_of(cols);
        self.plans.weights().all(|(_, weight)| takes(weight)).then_some(option)
    }

    /// For programs.
    pub fn value(&self, device: &str, found: Option<&Found>) -> Value {
        let tensors = &self.plans.items;
        let quantized = self.plans.weights().map(|(at, weight)| {
            let tensor = &tensors[at];
            let counts = found.and_then(|found| found.non_finite.get(&at));
            let mut value = json!({
                "tensor": tensor.name, "shape": tensor.shape, "source": weight.source.name(),
                "bytes_before": tensor.bytes(), "bytes_after": weight.bytes(),
                // A dry run reads no values.
                "nan": found.map(|_| counts.map_or(0, |c| c.nan)),
                "infinite": found.map(|_| counts.map_or(0, |c| c.infinite)),
            });
            if tensor.slice.is_some() {
                value["of"] = json!(self.input.tensors()[tensor.tensor].name);
            }
            if let Some(group) = weight.group {
                let members = &self.plans.groups[group];
                value["group"] = json!(group);
                if members.len() <= LISTED {
                    let others = members.iter().filter(|other| **other != at);
                    value["shares_its_scale_with"] = others.map(|other| tensors[*other].name.as_str()).collect();
                }
            }
            if let Some(given) = found.and_then(|found| found.given.get(&at)) {
                value["given_amax"] = given.value();
            }
            if let Some(idle) = found.and_then(|found| found.outweighed.get(&at)) {
                value["given_amax_outweighed"] = idle.value(&tensors[idle.of].name);
            }
            if let Some(lost) = found.and_then(|found| found.lost.get(&at)) {
                value["beyond_fp32"] = json!(lost.beyond);
                value["became_zeros"] = json!(lost.became_zeros());
                value["zero_groups"] = json!(lost.groups.zeros);
                value["zero_values"] = json!(lost.values.zeros);
            }
            if let Some([own, shared]) = found.and_then(|found| found.shared.get(&at)) {
                value["sqnr_db_own_scale"] = json!(own);
                value["sqnr_db_shared_scale"] = json!(shared);
            }
            value
        });
        let names = |group: &Vec<usize>| Value::from_iter(group.iter().map(|at| tensors[*at].name.as_str()));
        let groups = Value::from_iter(self.plans.groups.iter().map(names));
        let copied = self.copied();
        let copied = copied
            .iter()
            .map(|(tensor, reason)| json!({"tensor": tensor.name, "shape": tensor.shape, "reason": reason}));
        let options = options(self.first);
        // UE8M0 has no other scales, asked for or not.
        let power_of_two = self.args.power_of_two || options["rounding"] == "power-of-two";
        json!({
            "device": device, "output": self.args.output.as_ref().map(|path| path.display().to_string()),
            "scheme": scheme(self.first), "format": self.first.format().name(),
            "preset": preset(self.first), "power_of_two": power_of_two, "options": options,
            "dialect": self.dialect.name(), "dry_run": found.is_none(),
            "quantized": Value::from_iter(quantized), "groups": groups, "copied": Value::from_iter(copied),
            "left_out": Value::from_iter(self.plans.left_out().map(|(tensor, _)| tensor.name.as_str())),
        })
    }

    /// A line for each matrix; where there are many, one for all that differ in a number.
    fn table(&self) -> String {
        let tensors = &self.plans.items;
        let many = self.plans.weights().count() > MANY;
        // In the order of their first.
        let mut lines: Vec<([String; 3], [u64; 3])> = Vec::new();
        let mut places = BTreeMap::new();
        for (at, weight) in self.plans.weights() {
            let tensor = &tensors[at];
            let name = if many { starred(&tensor.name) } else { named(&tensor.name) };
            let key = [name, format!("{} x {}", weight.rows, weight.cols), weight.source.to_string()];
            let place = *places.entry(key.clone()).or_insert_with(|| {
                lines.push((key, [0; 3]));
                lines.len() - 1
            });
            let sums = &mut lines[place].1;
            for (sum, more) in sums.iter_mut().zip([1, tensor.bytes(), weight.bytes()]) {
                *sum += more;
            }
        }
        if many {
            let rows: Vec<_> = lines
                .into_iter()
                .map(|([name, shape, source], [n, before, after])| {
                    [name, n.to_string(), shape, source, bytes(before), bytes(after)]
                })
                .collect();
            return table(["tensor", "matrices", "shape", "from", "before", "after"], 1, &rows);
        }
        let rows: Vec<_> = lines
            .into_iter()
            .map(|([name, shape, source], [_, before, after])| [name, shape, source, bytes(before), bytes(after)])
            .collect();
        table(["tensor", "shape", "from", "before", "after"], 1, &rows)
    }

    /// Which tensors become several.
    fn experts(&self) -> String {
        let slices = self.plans.items.iter().filter(|item| item.slice.is_some_and(|slice| slice.experts[1] == 1));
        let (mut tensors, mut matrices) = (Vec::new(), 0);
        for item in slices {
            matrices += 1;
            if tensors.last() != Some(&item.tensor) {
                tensors.push(item.tensor);
            }
        }
        let Some(first) = tensors.first().map(|at| &self.input.tensors()[*at]) else { return String::new() };
        format!(
            "experts that are in one tensor are written one by one: {} ({} {:?}{}), {}\n",
            count(tensors.len(), "tensor", "tensors"),
            printable(&first.name),
            first.shape,
            if tensors.len() > 1 { ", ..." } else { "" },
            count(matrices, "matrix", "matrices")
        )
    }

    fn sizes(&self) -> (u64, u64) {
        let sizes = self.plans.weights().map(|(at, weight)| (self.plans.items[at].bytes(), weight.bytes()));
        sizes.fold((0, 0), |(before, after), (b, a)| (before + b, after + a))
    }

    /// What shares a scale, and what that cost.
    fn sharing(&self, found: Option<&Found>) -> String {
        let groups = &self.plans.groups;
        if groups.is_empty() {
            return String::new();
        }
        let names = |group: &Vec<usize>| {
            let last = |at: &usize| {
                let name = module(&self.plans.items[*at].name);
                printable(name.rsplit('.').next().unwrap_or(name))
            };
            // Layers of one name, as `--fuse` may join, are named once.
            let mut seen = HashSet::new();
            let mut named: Vec<_> = group.iter().map(last).filter(|name| seen.insert(name.clone())).collect();
            let number = if named.len() < group.len() { format!(" ({} layers)", group.len()) } else { String::new() };
            if named.len() > LISTED {
                named.truncate(LISTED);
                return format!("{}, ... ({} layers)", named.join(", "), group.len());
            }
            named.join(", ") + &number
        };
        let mut text = String::new();
        let whose = [
            (false, "share one scale, as engines that fuse them read it"),
            (true, "share one scale by --fuse, more than engines are known to fuse"),
        ];
        for (widened, words) in whose {
            let of: Vec<_> = groups.iter().zip(&self.plans.widened).filter(|(_, is)| **is == widened).collect();
            let mut kinds: BTreeMap<String, usize> = BTreeMap::new();
            of.iter().for_each(|(group, _)| *kinds.entry(names(group)).or_default() += 1);
            let kinds: Vec<_> = kinds.into_iter().map(|(kind, n)| format!("{n} of {kind}")).collect();
            if !of.is_empty() {
                text += &format!("{words}: {} ({})\n", count(of.len(), "group", "groups"), kinds.join("; "));
            }
        }
        let Some(found) = found else { return text };
        let mut costs: Vec<_> = found.shared.iter().map(|(at, [own, shared])| (own - shared, *at)).collect();
        costs.sort_by(|a, b| a.0.total_cmp(&b.0));
        let sorted: Vec<f64> = costs.iter().map(|(cost, _)| *cost).collect();
        if let (Some(median), Some((most, at))) = (median(&sorted), costs.last()) {
            text += &format!(
                "sharing {} dB of SQNR in the median of {}, {} dB in {} (first 128 rows)\n",
                change(median),
                count(costs.len(), "matrix whose scale it changed", "matrices whose scale it changed"),
                at_most(median, *most),
                printable(&self.plans.items[*at].name)
            );
        }
        text
    }

    fn copied(&self) -> Vec<(&Item, &'static str)> {
        let all = self.plans.items.iter().zip(&self.plans.tensors);
        all.filter_map(|(tensor, plan)| match plan {
            Plan::Copy(reason) => Some((tensor, *reason)),
            Plan::Quantize(_) | Plan::Drop(_) => None,
        })
        .collect()
    }
}

/// `cost 0.04`, or `gained 0.04`: sharing may gain a little. What rounds to zero is a cost of nothing.
fn change(cost: f64) -> String {
    let text = format!("{cost:.2}");
    match text.strip_prefix('-') {
        Some("0.00") => "cost 0.00".into(),
        Some(gain) => format!("gained {gain}"),
        None => format!("cost {text}"),
    }
}

/// The same of the largest cost, behind that of the median: where all gain, it is the least gain.
fn at_most(median: f64, most: f64) -> String {
    let [first, second] = [median, most].map(change);
    match (first.split_once(' '), second.split_once(' ')) {
        (Some(("gained", _)), Some(("gained", number))) => format!("at least {number}"),
        (Some(("gained", _)), Some((_, number))) => format!("and cost at most {number}"),
        (_, Some((_, number))) => format!("at most {number}"),
        _ => second,
    }
}

/// Why there is nothing to do: each reason with its number of tensors and an example.
pub fn nothing_to_do(of: Given<'_>, items: &[Item], plans: &[Plan]) -> String {
    let Given { args, input, config, .. } = of;
    let copied: Vec<_> = items
        .iter()
        .zip(plans)
        .filter_map(|(tensor, plan)| match plan {
            // The filter is named already.
            Plan::Copy(reason) if *reason != NOT_ASKED_FOR => Some((tensor, *reason)),
            _ => None,
        })
        .collect();
    let dropped: Vec<_> = left_out(items, plans).collect();
    let reasons = by_reason(&copied).into_iter().map(|(reason, list)| format!("; {reason}: {list}"));
    let gone = by_reason(&dropped).into_iter().map(|(reason, list)| format!("; to be left out, {reason}: {list}"));
    let reasons: String = reasons.chain(gone).collect();
    let only = args.only.as_ref().map(|regex| printable(regex.as_str()));
    let matches = items.iter().any(|item| args.only.as_ref().is_some_and(|regex| regex.is_match(&item.name)));
    let is = |which: &str| copied.iter().any(|(_, reason)| *reason == which);
    let remedy = advice::for_nothing(of, &copied, matches);
    let coded = match CODED.into_iter().any(is).then(|| refusals::all(input, config)) {
        None => String::new(),
        Some(Ok(())) => {
            "; dequantize first what is in codes already (dequantize --dtype f32 keeps every value)".to_string()
        }
        Some(Err(failure)) => {
            format!("; what is in codes already stays so: {}", refusals::why(failure, input.path()))
        }
    };
    // What `info` and `dequantize` say of them.
    let lost = is(LOST).then(|| unread::lost_casts(&Unread::find(input, config, &HashSet::new()).lost)).flatten();
    let lost = lost.map(|lost| format!("; {lost}")).unwrap_or_default();
    let filter = only.map(|regex| format!(" that --only {regex} matches")).unwrap_or_default();
    format!(
        "{}: no matrix to quantize{filter} among its {}{}; {remedy}{coded}{lost}",
        args.input.display(),
        count(items.len(), "tensor", "tensors"),
        reasons
    )
}

/// One line for each reason, with the first few tensors: models have hundreds of biases.
fn lines(what: impl Fn(usize) -> String, tensors: &[(&Item, &'static str)]) -> String {
    let line = |(reason, list): &(&str, String)| {
        let number = tensors.iter().filter(|(_, r)| r == reason).count();
        format!("{}, {reason}: {list}\n", what(number))
    };
    by_reason(tensors).iter().map(line).collect()
}

/// Each reason with how many tensors it holds for, and the first few of them.
fn by_reason(copied: &[(&Item, &'static str)]) -> Vec<(&'static str, String)> {
    let mut reasons: Vec<_> = copied.iter().map(|(_, reason)| *reason).collect();
    reasons.sort_unstable();
    reasons.dedup();
    let list = |reason: &str| {
        let tensors: Vec<_> = copied.iter().filter(|(_, r)| *r == reason).map(|(t, _)| t).collect();
        let mut names: Vec<_> = tensors.iter().take(3).map(|t| format!("{} {:?}", named(&t.name), t.shape)).collect();
        if tensors.len() > names.len() {
            names.push("...".into());
        }
        format!("{} ({})", tensors.len(), names.join(", "))
    };
    reasons.into_iter().map(|reason| (reason, list(reason))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_costs_no_less_than_nothing() {
        let all = [-0.0, -0.0049, 0.0049, -0.006, 0.256];
        assert_eq!(all.map(change), ["cost 0.00", "cost 0.00", "cost 0.00", "gained 0.01", "cost 0.26"]);
        let all = [(0.1, 0.2), (-0.03, 0.01), (-0.03, -0.02), (-0.03, -0.001)];
        let words = all.map(|(median, most)| format!("{}, {}", change(median), at_most(median, most)));
        assert_eq!(
            words,
            [
                "cost 0.10, at most 0.20",
                "gained 0.03, and cost at most 0.01",
                "gained 0.03, at least 0.02",
                "gained 0.03, and cost at most 0.00"
            ]
        );
    }
}
