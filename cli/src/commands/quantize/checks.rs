//! What is refused or warned of before the work: options that would do nothing, models that are quantized already, tensors that
//! engines do not read quantized.

use std::collections::HashSet;

use regex::Regex;
use scaled_gemm::Recipe;
use scaled_gemm::checkpoint::{Checkpoint, Dialect, printable};
use scaled_gemm::model_folder::{InputScales, ModelConfig, left_alone};
use serde_json::Value;

use super::plan::{Plans, has_whole, module};
use crate::args::QuantizeArgs;
use crate::folder::{self, some};
use crate::output::{Failure, count, shown};
use crate::unread::{says_quantized, unread_codes};

/// Refuses options that would do nothing, and a dialect that nobody reads so.
pub fn refuse_idle(args: &QuantizeArgs, input: &Checkpoint, dialect: Dialect, recipe: Recipe) -> Result<(), Failure> {
    folder::refuse_idle(input, args.shard_size)?;
    if let Some(folder) = input.folder().filter(|_| dialect == Dialect::ComfyUi) {
        return Err(Failure::Use(format!(
            "{}: ComfyUI reads single files, and no folder; give one of its files, or choose another dialect",
            folder.display()
        )));
    }
    if args.weight_amax.is_some() && !has_whole(recipe) {
        return Err(Failure::Use(format!(
            "--weight-amax: {recipe} in {} has no scale of the whole that an amax decides; leave it out, or use nvfp4 or fp8-tensor",
            recipe.scheme()
        )));
    }
    // In a dialect, what engines fuse is quantized together or not at all, whatever the recipe.
    let option = if args.no_fuse { "--no-fuse" } else { "--fuse" };
    if (args.no_fuse || !args.fuse.is_empty()) && dialect == Dialect::Plain && !has_whole(recipe) {
        return Err(Failure::Use(format!(
            "{option}: matrices in {} have no scale of the whole ({recipe}) that they could share; leave it out",
            recipe.scheme()
        )));
    }
    Ok(())
}

/// Refuses regular expressions that match none of these tensors. (Where `--only` matches none there is nothing to quantize.)
pub fn refuse_unmatched(args: &QuantizeArgs, names: &[&str]) -> Result<(), Failure> {
    let refuse = |option: &str, regex: &Regex, what: &str| {
        let (regex, path) = (printable(regex.as_str()), shown(&args.input));
        Err(Failure::Use(format!("{option} {regex}: matches no {what} of {path}; mend it, or leave it out")))
    };
    if let Some(regex) = args.exclude.iter().find(|regex| !names.iter().any(|name| regex.is_match(name))) {
        return refuse("--exclude", regex, "tensor");
    }
    let fuses = |regex: &Regex| names.iter().any(|name| name.ends_with(".weight") && regex.is_match(module(name)));
    match args.fuse.iter().find(|regex| !fuses(regex)) {
        Some(regex) => refuse("--fuse", regex, "layer"),
        None => Ok(()),
    }
}

/// Refuses a model of which the config says that it is quantized: there is one such entry, and engines read one dialect at a time.
pub fn refuse_quantized(input: &Checkpoint, config: Option<&ModelConfig>, dialect: Dialect) -> Result<(), Failure> {
    let Some(folder) = input.folder().filter(|_| dialect != Dialect::Plain && is_quantized(input, config)) else {
        return Ok(());
    };
    let quantization = config.and_then(ModelConfig::quantization);
    let method = quantization.and_then(|q| q.get("quant_method")).and_then(Value::as_str);
    Err(Failure::Use(format!(
        "{}: is quantized already ({}); dequantize it first, or write --dialect plain",
        folder.display(),
        printable(method.unwrap_or("no method named"))
    )))
}

/// True if matrices are quantized already, in formats that are read here or of which the config speaks.
pub fn is_quantized(input: &Checkpoint, config: Option<&ModelConfig>) -> bool {
    let says = || input.folder().is_some_and(|folder| says_quantized(folder, config));
    !input.quantized().is_empty() || (says() && !unread_codes(input).is_empty())
}

/// What there is to say of tensors that are left alone by default, and that `--only` selects. `names`: one for each place of the
/// plans.
///
/// # Errors
/// [`Failure::Use`] for embeddings: engines replace linear layers by quantized ones, and look embeddings up in plain tables.
pub fn unusual(
    args: &QuantizeArgs,
    config: Option<&ModelConfig>,
    dialect: Dialect,
    plans: &Plans,
    names: &[&str],
) -> Result<Option<String>, Failure> {
    if args.only.is_none() || dialect == Dialect::Plain {
        return Ok(None);
    }
    let weights = || plans.weights().map(|(at, _)| names[at]);
    let embeddings: Vec<&str> = weights().filter(|name| left_alone(module(name)) == Some("an embedding")).collect();
    if let Some(first) = some(embeddings.iter().copied()).filter(|_| dialect != Dialect::ComfyUi) {
        return Err(Failure::Use(format!(
            "--only: selects {} ({first}), and no engine reads embeddings quantized in the dialect {dialect}; leave them out, or write \
             --dialect plain",
            count(embeddings.len(), "embedding", "embeddings")
        )));
    }
    let left = |name: &&str| {
        let module = module(name);
        left_alone(module).is_some() || config.is_some_and(|config| config.ignores(module))
    };
    let unusual: Vec<&str> = weights().filter(left).collect();
    Ok(some(unusual.iter().copied()).map(|first| {
        format!(
            "--only: selects {} that {} left alone by default ({first}); engines may not read that quantized",
            count(unusual.len(), "tensor", "tensors"),
            if unusual.len() == 1 { "is" } else { "are" }
        )
    }))
}

/// What there is to say of scales of layers that the model does not have.
pub fn unknown_layers(args: &QuantizeArgs, scales: &InputScales, names: &[&str]) -> Option<String> {
    let modules: HashSet<&str> = names.iter().map(|name| module(name)).collect();
    let mut unknown: Vec<&str> = scales.modules().filter(|name| !modules.contains(name)).collect();
    unknown.sort_unstable();
    let first = some(unknown.iter().copied())?;
    Some(format!(
        "{}: {} that {} does not have, and that nothing is written for ({first})",
        args.input_scales.as_deref().map(shown).unwrap_or_default(),
        count(unknown.len(), "layer", "layers"),
        shown(&args.input)
    ))
}
