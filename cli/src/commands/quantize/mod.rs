//! `quantize`: the weights of a file or of a model's folder become quantized ones; everything else is copied as it is.

mod items;
mod plan;
mod report;
mod rows;
mod stream;

use std::path::Path;

use scaled_gemm::checkpoint::{
    Checkpoint, CheckpointLayout, CheckpointWriter, Dialect, Dtype, TensorInfo, WrittenRecipe, printable,
};
use scaled_gemm::model_folder::{InputScales, ModelConfig, default_dialect};
use scaled_gemm::{Recipe, Scheme};

use crate::args::{DeviceChoice, QuantizeArgs};
use crate::device;
use crate::folder;
use crate::output::{Failure, Form, Outcome, byte_bar};
use plan::{Given, Plan, Plans, module};
use report::Report;
use stream::Work;

pub fn run(args: &QuantizeArgs, choice: DeviceChoice) -> Result<Outcome, Failure> {
    let first = args.recipe(0)?;
    let input = Checkpoint::open(&args.input)?;
    let config = input.folder().map(ModelConfig::read).transpose()?.flatten();
    let beside = config.is_none().then(|| config_beside(&args.input)).flatten();
    let model = config.as_ref().or(beside.as_ref());
    let dialect = dialect(args, first, &input, model)?;
    refuse_quantized(&input, config.as_ref(), dialect)?;
    let given = Given { args, input: &input, config: config.as_ref(), model, dialect };
    let plans = Plans::new(given)?;
    if plans.weights().next().is_none() {
        return Err(Failure::Use(report::nothing_to_do(args, &plans.items, &plans.tensors)));
    }
    let scales = args.input_scales.as_ref().map(InputScales::read).transpose()?;
    let inputs = scales.as_ref().map(|scales| activations(args, &input, &plans, scales, dialect)).transpose()?;
    if let Some(threads) = args.jobs {
        // Asked for once, before any work.
        let _ = rayon::ThreadPoolBuilder::new().num_threads(threads.into()).build_global();
    }
    let report = Report { args, first, dialect, input: &input, config: config.as_ref(), plans: &plans };
    let form = Form::from_flag(args.json);
    let device = device::open(choice);
    if args.dry_run {
        let device = device?;
        let value = form.value(|| report.value(device.name(), None));
        return Ok(Outcome::new(device.as_ref(), form, report.text(None), value));
    }
    let layout = layout(&input, &plans, dialect, inputs.as_deref());
    let (writer, notes) = folder::create(layout, &input, args.output()?, args.shard_size)?;
    let mut device = device?;
    let bar = byte_bar(device.as_ref(), input.tensors().iter().map(TensorInfo::bytes).sum());
    let mut step = |name: &str, bytes: u64| {
        bar.set_message(printable(name));
        bar.inc(bytes);
    };
    write_inputs(&writer, inputs.as_deref())?;
    let work = Work { input: &input, plans: &plans, dialect, allow_non_finite: args.allow_non_finite };
    // Before the long work: a file that cannot be copied is found now.
    let copied = write_folder(given, &plans, &writer)?;
    let found = stream::run(work, &writer, device.as_mut(), &mut step)?;
    let replaced = config.as_ref().filter(|config| config.quantization().is_some() && dialect != Dialect::Plain);
    let replaced = replaced.map(|config| format!("{}: its quantization_config is replaced", config.path().display()));
    writer.finish()?;
    bar.finish_and_clear();
    let value = form.value(|| report.value(device.name(), Some(&found)));
    let outcome = Outcome::new(device.as_ref(), form, report.text(Some(&found)), value);
    Ok(notes.into_iter().chain(replaced).chain(copied).fold(outcome, Outcome::note))
}

/// The dialect asked for; else, for a folder, the one that most engines load.
fn dialect(
    args: &QuantizeArgs,
    recipe: Recipe,
    input: &Checkpoint,
    model: Option<&ModelConfig>,
) -> Result<Dialect, Failure> {
    let experts = model.map(ModelConfig::expert_tensors).unwrap_or_default();
    let is_gpt_oss = experts.iter().any(|tensor| tensor.is_read_in(Dialect::GptOss));
    let dialect = args.dialect.unwrap_or_else(|| match input.folder() {
        Some(_) if is_gpt_oss && recipe.scheme() == Scheme::Mxfp4 => Dialect::GptOss,
        // With calibrated activations fp8-tensor is what ModelOpt writes, too; the names are those of fp8.
        Some(_) => default_dialect(recipe),
        None => Dialect::Plain,
    });
    if dialect == Dialect::GptOss && !is_gpt_oss {
        let found = model.and_then(|model| model.model_types().next()).unwrap_or("none");
        return Err(Failure::Use(format!(
            "{}: the dialect gpt-oss is for the model_type gpt_oss, and its config.json names {}; choose another dialect",
            args.input.display(),
            printable(found)
        )));
    }
    Ok(dialect)
}

/// The config of the model that a file is of, which names its architecture. Nothing else is taken from it.
fn config_beside(file: &Path) -> Option<ModelConfig> {
    let folder = file.parent()?;
    let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
    ModelConfig::read(folder).ok().flatten()
}

/// Refuses a model of which the config says that it is quantized: there is one such entry, and engines read one dialect at a time.
fn refuse_quantized(input: &Checkpoint, config: Option<&ModelConfig>, dialect: Dialect) -> Result<(), Failure> {
    let Some(folder) = input.folder().filter(|_| dialect != Dialect::Plain) else { return Ok(()) };
    let quantization = config.and_then(ModelConfig::quantization);
    let says = quantization.is_some() || folder.join("hf_quant_config.json").exists();
    // Of methods that are not read here: their codes are integers.
    let integers = |tensor: &TensorInfo| {
        tensor.shape.len() > 1 && !matches!(tensor.dtype, Dtype::BF16 | Dtype::F16 | Dtype::F32 | Dtype::F64)
    };
    if input.quantized().is_empty() && !(says && input.tensors().iter().any(integers)) {
        return Ok(());
    }
    let method = quantization.and_then(|q| q.get("quant_method")?.as_str()).unwrap_or("no method named");
    Err(Failure::Use(format!(
        "{}: is quantized already ({}); dequantize it first, or write --dialect plain",
        folder.display(),
        printable(method)
    )))
}

fn layout(
    input: &Checkpoint,
    plans: &Plans,
    dialect: Dialect,
    inputs: Option<&[(usize, String, f32)]>,
) -> CheckpointLayout {
    let mut layout = CheckpointLayout::of_dialect(dialect);
    if input.folder().is_some() {
        // Readers of models ask for it.
        layout.metadata("format", "pt");
    }
    for (key, value) in input.metadata() {
        layout.metadata(key, value);
    }
    for (at, (item, plan)) in plans.items.iter().zip(&plans.tensors).enumerate() {
        match plan {
            Plan::Quantize(weight) => {
                let written = WrittenRecipe { recipe: weight.recipe, source: weight.source };
                let experts = item.slice.map_or(1, |slice| slice.experts[1]);
                layout.quantized_experts(&item.name, [experts, weight.rows / experts, weight.cols], written);
                // In the order of the tensors.
                if inputs.is_some_and(|inputs| inputs.binary_search_by_key(&at, |(which, ..)| *which).is_ok()) {
                    layout.input_scale(&item.name);
                }
            }
            Plan::Copy(_) => layout.tensor(&item.name, item.dtype, &item.shape),
        }
    }
    layout
}

/// The scales of activations: the tensor whose layer they meet, the name of theirs, the number that is stored.
fn activations(
    args: &QuantizeArgs,
    input: &Checkpoint,
    plans: &Plans,
    scales: &InputScales,
    dialect: Dialect,
) -> Result<Vec<(usize, String, f32)>, Failure> {
    let mut stored = Vec::new();
    for (at, weight) in plans.weights() {
        let alone = [at];
        let members = weight.group.map_or(&alone[..], |group| &plans.groups[group]);
        let mut largest = 0.0f32;
        // Layers that are fused have one input, of which engines keep one scale.
        for member in members {
            let item = &plans.items[*member];
            let module = module(&item.name);
            // Of experts in one tensor, whose inputs are those of a layer, one amax may stand for all.
            let whole = self::module(&input.tensors()[item.tensor].name);
            let amax = scales.amax(module).or_else(|| scales.amax(whole)).ok_or_else(|| {
                Failure::Use(format!(
                    "{}: has no amax for {}, which is quantized; calibrate it, or leave it out with --exclude",
                    args.input_scales.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
                    printable(module)
                ))
            })?;
            largest = largest.max(amax);
        }
        let name = &plans.items[at].name;
        let (suffix, number) = match (weight.recipe.scheme(), dialect) {
            (Scheme::Nvfp4, Dialect::CompressedTensors) => ("input_global_scale", 2688.0 / largest),
            (Scheme::Nvfp4, _) => ("input_scale", largest / 2688.0),
            _ => ("input_scale", largest / 448.0),
        };
        if !(number.is_finite() && number > 0.0) {
            return Err(Failure::Use(format!(
                "{}: the amax {largest} of {} has no FP32 scale; give one nearer to 1",
                args.input_scales.as_ref().map(|path| path.display().to_string()).unwrap_or_default(),
                printable(name)
            )));
        }
        stored.push((at, format!("{}.{suffix}", module(name)), number));
    }
    Ok(stored)
}

fn write_inputs(writer: &CheckpointWriter, inputs: Option<&[(usize, String, f32)]>) -> Result<(), Failure> {
    for (_, name, number) in inputs.unwrap_or_default() {
        writer.write(name, &number.to_le_bytes())?;
    }
    Ok(())
}

/// The other files of a folder. Says what was not copied.
fn write_folder(given: Given<'_>, plans: &Plans, writer: &CheckpointWriter) -> Result<Option<String>, Failure> {
    let Given { input, config, .. } = given;
    let Some(from) = input.folder() else { return Ok(None) };
    let (to, ignored) = (writer.folder()?, plans.ignored(given));
    let quantization = plans.quantization.value(&ignored);
    if let Some(config) = config {
        to.write("config.json", config.with_quantization(quantization).as_bytes())?;
    }
    if let Some(value) = plans.quantization.hf_quant_config(&ignored) {
        to.write("hf_quant_config.json", format!("{value:#}\n").as_bytes())?;
    }
    folder::copy_others(input, from, to)
}
