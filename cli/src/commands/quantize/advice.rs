//! What would not be refused: other options are planned with, before they are advised.

use regex::Regex;
use scaled_gemm::checkpoint::Dialect;
use scaled_gemm::model_folder::left_alone;

use super::items::{Item, RAGGED};
use super::plan::{BY_CONFIG, EXCLUDED, Given, Plans, RAGGED_MX, TRANSPOSED};
use super::{checks, fuse};
use crate::args::QuantizeArgs;
use crate::folder::{module, some};
use crate::output::Failure;

/// Whether something would be quantized with such options, as far as plans say it.
pub fn works(of: Given<'_>, change: impl FnOnce(&mut QuantizeArgs)) -> bool {
    let mut args = of.args.clone();
    change(&mut args);
    planned(of, &args).unwrap_or(false)
}

/// The same of `--dialect plain`.
pub fn works_plain(of: Given<'_>) -> bool {
    works(of, |args| args.dialect = Some(Dialect::Plain))
}

fn planned(of: Given<'_>, args: &QuantizeArgs) -> Result<bool, Failure> {
    let first = args.target(0)?;
    let dialect = super::dialect(args, first, of.input, of.model)?;
    checks::refuse_idle(args, of.input, dialect, first)?;
    let of = Given { args, dialect, ..of };
    let plans = Plans::new(of)?;
    let names: Vec<&str> = plans.items.iter().map(|item| item.name.as_str()).collect();
    fuse::check(of, &plans, &names)?;
    checks::unusual(of, &plans, &names)?;
    checks::refuse_shapes(of.input, &plans, first)?;
    Ok(plans.weights().next().is_some())
}

/// What may be done where nothing is to be quantized. `copied`: tensors, and why each is copied; `matches`: whether `--only` selects one.
pub fn for_nothing(of: Given<'_>, copied: &[(&Item, &'static str)], matches: bool) -> String {
    let is = |which: &str| copied.iter().any(|(_, reason)| *reason == which);
    if of.args.only.is_some() {
        let or_without = if works(of, |args| args.only = None) { ", or leave it out" } else { "" };
        return match () {
            () if !matches => format!("mend the pattern, which info has the names for{or_without}"),
            () if is(RAGGED) || is(RAGGED_MX) => match or_without {
                "" => "pad their columns with zeros, or give a file with other matrices".into(),
                _ => format!("pad their columns with zeros, name others with --only{or_without}"),
            },
            () if or_without.is_empty() => "give a file with other matrices".into(),
            () => format!("name others with --only{or_without}"),
        };
    }
    // What helps with one of them at least.
    let by_name = by_name(of, copied);
    let more = match by_name {
        Some(only) => only,
        None if is(EXCLUDED) && works(of, |args| args.exclude.clear()) => ", or narrow --exclude".into(),
        None if is(RAGGED) => ", or pad their columns with zeros".into(),
        None if is(RAGGED_MX) && works_plain(of) => {
            ", pad their columns with zeros, or write what no engine reads (--dialect plain)".into()
        }
        None if is(RAGGED_MX) => ", or pad their columns with zeros".into(),
        None => String::new(),
    };
    format!("give a file with other matrices{more}")
}

/// How what is left alone by default is quantized all the same; nothing where there is none, or it is refused by name too.
fn by_name(of: Given<'_>, copied: &[(&Item, &'static str)]) -> Option<String> {
    let left = |item: &Item| left_alone(module(&item.name));
    let is_left = |(item, reason): &&(&Item, &'static str)| {
        [TRANSPOSED, BY_CONFIG].contains(reason) || left(item) == Some(*reason)
    };
    let all: Vec<&str> = copied.iter().filter(is_left).map(|(item, _)| item.name.as_str()).collect();
    // What engines read quantized in a dialect.
    let is_read = |(item, reason): &&(&Item, &'static str)| {
        *reason != TRANSPOSED && (left(item) != Some("an embedding") || of.dialect == Dialect::ComfyUi)
    };
    let is_named = |both: &&(&Item, &'static str)| is_left(both) && (of.dialect == Dialect::Plain || is_read(both));
    let named: Vec<&str> = copied.iter().filter(is_named).map(|(item, _)| item.name.as_str()).collect();
    let only = |names: &[&str]| {
        let names: Vec<_> = names.iter().map(|name| regex::escape(name)).collect();
        Regex::new(&format!("^({})$", names.join("|"))).ok().filter(|_| !names.is_empty())
    };
    let words = ", or name with --only what is left alone by default";
    if let Some(pattern) = only(&named)
        && works(of, |args| args.only = Some(pattern))
    {
        let which = some(named.iter().copied()).filter(|_| named.len() < all.len());
        return Some(which.map_or_else(|| words.into(), |names| format!("{words} ({names})")));
    }
    let pattern = only(&all).filter(|_| of.dialect != Dialect::Plain)?;
    let plain = works(of, |args| (args.only, args.dialect) = (Some(pattern), Some(Dialect::Plain)));
    plain.then(|| format!("{words}, and write --dialect plain"))
}
