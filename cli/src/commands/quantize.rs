//! `quantize`: the 2-D weights of a file become quantized ones; everything else is copied as it is.

use std::collections::HashSet;

use scaled_gemm::checkpoint::{Checkpoint, CheckpointLayout, Dtype, TensorInfo, WrittenRecipe, printable};
use scaled_gemm::pair::check_quantize_cols;
use scaled_gemm::{DType, Recipe};
use serde_json::{Value, json};

use crate::args::{DeviceChoice, QuantizeArgs};
use crate::device;
use crate::files;
use crate::non_finite::NonFinite;
use crate::output::{Failure, Form, Outcome, byte_bar, bytes, count, shown, table};
use crate::recipes::{options, preset};

/// What happens to a tensor.
enum Plan {
    Quantize(DType, Recipe),
    /// Copied, and why.
    Copy(&'static str),
}

/// Why a tensor is copied that was not asked for.
const NOT_ASKED_FOR: &str = "not matched by --only";

pub fn run(args: &QuantizeArgs, choice: DeviceChoice) -> Result<Outcome, Failure> {
    let first = args.recipe(0)?;
    let input = Checkpoint::open(&args.input)?;
    let codes = codes(&input);
    let mut matrices = 0..;
    let mut plans = Vec::new();
    for tensor in input.tensors() {
        plans.push(match plan(args, &input, &codes, tensor, first) {
            // Each matrix rounds with random bytes of its own.
            Plan::Quantize(source, _) => Plan::Quantize(source, args.recipe(matrices.next().unwrap_or_default())?),
            other => other,
        });
    }
    if !plans.iter().any(|p| matches!(p, Plan::Quantize(..))) {
        return Err(Failure::Use(nothing_to_do(args, input.tensors(), &plans)));
    }
    let mut layout = CheckpointLayout::new();
    for (key, value) in input.metadata() {
        layout.metadata(key, value);
    }
    for (tensor, plan) in input.tensors().iter().zip(&plans) {
        match (plan, tensor.shape.as_slice()) {
            (Plan::Quantize(source, recipe), &[n, k]) => {
                layout.quantized(&tensor.name, n, k, WrittenRecipe { recipe: *recipe, source: *source });
            }
            _ => layout.tensor(&tensor.name, tensor.dtype, &tensor.shape),
        }
    }
    let writer = layout.create_in(files::create(&args.output)?, &[&input])?;
    let mut device = device::open(choice)?;
    let bar = byte_bar(device.as_ref(), input.tensors().iter().map(TensorInfo::bytes).sum());
    let (mut rows, mut done, mut copied) = (Vec::new(), Vec::new(), Vec::new());
    let (mut before, mut after, mut text) = (0, 0, String::new());
    for (tensor, plan) in input.tensors().iter().zip(&plans) {
        bar.set_message(printable(&tensor.name));
        match plan {
            Plan::Quantize(source, recipe) => {
                let (x, _) = input.matrix(&tensor.name)?;
                let found = NonFinite::of(&x);
                found.check(&tensor.name, args.allow_non_finite, *recipe, *source)?;
                if let Some(line) = found.describe(&tensor.name) {
                    text += &line;
                }
                let q = device.quantize(x.view(), *source, *recipe)?;
                writer.write_quantized(&tensor.name, &q)?;
                let size =
                    (q.logical_codes().len() + q.logical_block_scales().len() + 4 * q.logical_scales().len()) as u64;
                before += tensor.bytes();
                after += size;
                rows.push([
                    tensor.name.clone(),
                    format!("{} x {}", q.rows(), q.cols()),
                    source.to_string(),
                    bytes(tensor.bytes()),
                    bytes(size),
                ]);
                done.push(json!({
                    "tensor": tensor.name, "shape": tensor.shape, "source": source.name(),
                    "bytes_before": tensor.bytes(), "bytes_after": size, "nan": found.nan, "infinite": found.infinite,
                }));
            }
            Plan::Copy(reason) => {
                writer.write(&tensor.name, &input.bytes(&tensor.name)?)?;
                copied.push((tensor, *reason));
            }
        }
        bar.inc(tensor.bytes());
    }
    writer.finish()?;
    bar.finish_and_clear();

    let table = table(["tensor", "shape", "from", "before", "after"], 1, &rows);
    text = format!(
        "{table}\n{text}{} to {} ({}), {} to {}, in {}\n",
        count(rows.len(), "matrix", "matrices"),
        first.scheme(),
        first,
        bytes(before),
        bytes(after),
        shown(&args.output)
    );
    text += &copied_lines(&copied);
    let form = Form::from_flag(args.json);
    let value = form.value(|| {
        let copied = copied
            .iter()
            .map(|(tensor, reason)| json!({"tensor": tensor.name, "shape": tensor.shape, "reason": reason}));
        json!({
            "device": device.name(), "output": args.output.display().to_string(),
            "scheme": first.scheme().spec().name, "format": first.format().name(), "preset": preset(first),
            "power_of_two": args.power_of_two, "options": options(first), "quantized": done,
            "copied": Value::from_iter(copied),
        })
    });
    Ok(Outcome::new(device.as_ref(), form, text, value))
}

fn plan(args: &QuantizeArgs, input: &Checkpoint, codes: &HashSet<String>, tensor: &TensorInfo, recipe: Recipe) -> Plan {
    if input.is_scale(&tensor.name) {
        return Plan::Copy("scales of another tensor");
    }
    if args.only.as_ref().is_some_and(|regex| !regex.is_match(&tensor.name)) {
        return Plan::Copy(NOT_ASKED_FOR);
    }
    let source = match tensor.dtype {
        Dtype::BF16 => DType::Bf16,
        Dtype::F16 => DType::F16,
        Dtype::F32 => DType::F32,
        Dtype::F8_E4M3 | Dtype::F8_E5M2 => return Plan::Copy("FP8 already"),
        Dtype::U8 if codes.contains(&tensor.name) => return Plan::Copy("NVFP4 already"),
        Dtype::F64 => return Plan::Copy("F64, which is not quantized: convert it to F32 first"),
        _ => return Plan::Copy("neither BF16 nor F16 nor F32"),
    };
    // The one rule of a recipe that concerns rows: the sums of a tile are defined for 16 of them.
    match *tensor.shape.as_slice() {
        [n, k] if n > 0 && k > 0 => match check_quantize_cols(&tensor.name, k) {
            Ok(()) if !n.is_multiple_of(recipe.row_multiple()) => {
                Plan::Copy("rows not a multiple of 16, which 4over6 in 16x16 tiles needs")
            }
            Ok(()) => Plan::Quantize(source, recipe),
            Err(_) => Plan::Copy("columns not a multiple of 16"),
        },
        [_, _] => Plan::Copy("without an element"),
        _ => Plan::Copy("not a matrix"),
    }
}

/// The tensors that hold codes of quantized matrices, whatever those are called.
fn codes(input: &Checkpoint) -> HashSet<String> {
    input.quantized().into_iter().flat_map(|name| [name.to_string(), format!("{name}_packed")]).collect()
}

/// Why there is nothing to do: each reason with its number of tensors and an example.
fn nothing_to_do(args: &QuantizeArgs, tensors: &[TensorInfo], plans: &[Plan]) -> String {
    let copied: Vec<_> = tensors
        .iter()
        .zip(plans)
        .filter_map(|(tensor, plan)| match plan {
            // The filter is named already.
            Plan::Copy(reason) if *reason != NOT_ASKED_FOR => Some((tensor, *reason)),
            _ => None,
        })
        .collect();
    let reasons: Vec<_> = by_reason(&copied).iter().map(|(reason, list)| format!("; {reason}: {list}")).collect();
    let filter = args.only.as_ref().map(|r| format!(" that --only {r} matches")).unwrap_or_default();
    format!(
        "{}: no matrix to quantize{filter} among its {}{}",
        args.input.display(),
        count(tensors.len(), "tensor", "tensors"),
        reasons.concat()
    )
}

/// One line for each reason, with the first few tensors: models have hundreds of biases.
fn copied_lines(copied: &[(&TensorInfo, &'static str)]) -> String {
    by_reason(copied).iter().map(|(reason, list)| format!("copied as they are, {reason}: {list}\n")).collect()
}

/// Each reason with how many tensors it holds for, and the first few of them.
fn by_reason(copied: &[(&TensorInfo, &'static str)]) -> Vec<(&'static str, String)> {
    let mut reasons: Vec<_> = copied.iter().map(|(_, reason)| *reason).collect();
    reasons.sort_unstable();
    reasons.dedup();
    let list = |reason: &str| {
        let tensors: Vec<_> = copied.iter().filter(|(_, r)| *r == reason).map(|(t, _)| t).collect();
        let mut names: Vec<_> =
            tensors.iter().take(3).map(|t| format!("{} {:?}", printable(&t.name), t.shape)).collect();
        if tensors.len() > names.len() {
            names.push("...".into());
        }
        format!("{} ({})", tensors.len(), names.join(", "))
    };
    reasons.into_iter().map(|reason| (reason, list(reason))).collect()
}
