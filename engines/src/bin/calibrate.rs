//! Calibration: the largest magnitude that enters each linear layer while candle runs a small Llama over some text, written as
//! `scaled-gemm quantize --input-scales FILE` takes it; then what the program makes of it, in every dialect that has such scales.
//!
//! At last the model is run with them, on text that calibration did not see: NVFP4 weights, and activations rounded to NVFP4 with the
//! scale of the file.

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use candle_core::Tensor;
use clap::Parser;
use ndarray::ArrayView2;
use scaled_gemm::{DType, GivenScale, Nvfp4Recipe, model_folder, reference};
use scaled_gemm_engines::gguf::Gguf;
use scaled_gemm_engines::llama::{self, Llama};
use scaled_gemm_engines::options::Options;
use scaled_gemm_engines::program::Program;
use scaled_gemm_engines::record::{Record, exit};
use scaled_gemm_engines::score::logs;
use scaled_gemm_engines::weights::{Kept, fused_group, read};
use scaled_gemm_engines::{Outcome, ensure, text};

/// Collects the amax of every layer's input, and shows that scaled-gemm quantize takes it.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,
    /// Where the amax of every layer goes; if left out, nowhere that stays.
    #[arg(short, long)]
    output: Option<PathBuf>,
}

/// Recipe, dialect, the scale of activations in the file, and what it is of an amax.
type Dialect = (&'static str, &'static str, &'static str, fn(f32) -> f32);

const DIALECTS: [Dialect; 4] = [
    ("nvfp4", "modelopt", "input_scale", |amax| amax / (6.0 * 448.0)),
    ("nvfp4", "compressed-tensors", "input_global_scale", |amax| 6.0 * 448.0 / amax),
    ("fp8-tensor", "modelopt", "input_scale", |amax| amax / 448.0),
    ("fp8-tensor", "compressed-tensors", "input_scale", |amax| amax / 448.0),
];

/// A matrix of candle as the reference takes one.
fn rows(x: &Tensor) -> candle_core::Result<(Vec<f32>, usize, usize)> {
    let (m, k) = x.dims2()?;
    Ok((x.flatten_all()?.to_vec1()?, m, k))
}

/// The amax of what enters each layer.
fn calibrate(model: &Llama, windows: &[Vec<u32>]) -> Outcome<BTreeMap<String, f32>> {
    let mut largest: BTreeMap<String, f32> = BTreeMap::new();
    for window in windows {
        model.forward(window, &mut |name, x| {
            let found = reference::amax(&rows(&x)?.0);
            largest.entry(name.to_string()).and_modify(|amax| *amax = amax.max(found)).or_insert(found);
            Ok(x)
        })?;
    }
    Ok(largest)
}

/// The one amax of layers that are fused: the largest.
fn shared(amax: &BTreeMap<String, f32>) -> BTreeMap<String, f32> {
    let group =
        |name: &str| fused_group(name).map_or_else(|| name.to_string(), |(parent, list)| format!("{parent}/{list}"));
    let mut groups: BTreeMap<String, f32> = BTreeMap::new();
    for (name, value) in amax {
        groups.entry(group(name)).and_modify(|most| *most = most.max(*value)).or_insert(*value);
    }
    amax.keys().map(|name| (name.clone(), groups[&group(name)])).collect()
}

/// The scales of activations that a folder has, by layer.
fn input_scales(folder: &Path, suffix: &str) -> Outcome<BTreeMap<String, f32>> {
    let (checkpoint, _) = model_folder::open(folder)?;
    let mut found = BTreeMap::new();
    for tensor in checkpoint.tensors() {
        if let Some(layer) = tensor.name.strip_suffix(&format!(".{suffix}")) {
            let (values, _) = checkpoint.values(&tensor.name)?;
            ensure(values.len() == 1, || format!("{} has {} numbers, and one was to be", tensor.name, values.len()))?;
            found.insert(layer.to_string(), values[0]);
        }
    }
    Ok(found)
}

/// Rounds activations to NVFP4 with a scale from calibration, as an engine does before the product.
fn rounded(x: &Tensor, scale: f32) -> candle_core::Result<Tensor> {
    let (values, m, k) = rows(x)?;
    let view = ArrayView2::from_shape((m, k), &values).map_err(candle_core::Error::wrap)?;
    let codes = reference::quantize_with_scale(view, DType::F32, Nvfp4Recipe::TENSOR, GivenScale::Decode(scale))
        .map_err(candle_core::Error::wrap)?;
    let back = reference::dequantize(&codes, DType::F32).into_raw_vec_and_offset().0;
    Tensor::from_vec(back, (m, k), x.device())
}

fn run(arguments: &Arguments) -> Outcome<ExitCode> {
    let options = &arguments.options;
    let program = Program::find(options.program.as_deref())?;
    let scratch = tempfile::tempdir()?;
    let plain = scratch.path().join("model");
    let mut gguf = Gguf::open(&options.model)?;
    gguf.write_folder(&plain)?;
    // As many windows again are held out.
    let windows = text::windows(&gguf.tokenizer()?, &text::prose(&options.docs())?, 2 * options.windows)?;
    let (seen, unseen) = windows.split_at(options.windows);

    let config = llama::config(&plain)?;
    let model = Llama::new(config.clone(), read(&plain, Kept::Own)?);
    let amax = calibrate(&model, seen)?;
    let file = arguments.output.clone().unwrap_or_else(|| scratch.path().join("amax.json"));
    let write = |path: &Path, amax: &BTreeMap<String, f32>| -> Outcome<()> {
        fs::write(path, serde_json::to_string_pretty(amax)? + "\n")
            .map_err(|e| format!("{}: {e}", path.display()).into())
    };
    write(&file, &amax)?;

    let command = format!("scaled-gemm-engines, calibrate --windows {}", options.windows);
    let mut record = Record::new("Calibration in candle", &command, &["candle-core", "candle-nn"])?;
    let (low, high) = amax.values().fold((f32::INFINITY, 0.0_f32), |(low, high), a| (low.min(*a), high.max(*a)));
    record.line(format!(
        "{} in BF16; {} windows of {} tokens of docs. The inputs of {} layers, amax {low} to {high}.",
        options.model_name(),
        seen.len(),
        text::WINDOW,
        amax.len()
    ));
    record.head(&["folder", "scale of activations", "layers", "as calibrated, by bits"]);
    let quantize = |recipe: &str, dialect: &str, to: &Path, file: &Path| {
        let words = ["--recipe", recipe, "--dialect", dialect, "--input-scales"].map(OsStr::new);
        program.quantize(&plain, to, &[words.as_slice(), &[file.as_os_str()]].concat())
    };
    let expected = shared(&amax);
    for (recipe, dialect, suffix, rule) in DIALECTS {
        let to = scratch.path().join(format!("{recipe}-{dialect}"));
        quantize(recipe, dialect, &to, &file)?;
        let found = input_scales(&to, suffix)?;
        let equal =
            |(name, amax): &(&String, &f32)| found.get(*name).is_some_and(|s| s.to_bits() == rule(**amax).to_bits());
        let same = expected.iter().filter(equal).count();
        record.row(&[format!("{recipe}, {dialect}"), suffix.into(), found.len().to_string(), same.to_string()]);
        record.must(found.len() == amax.len() && same == amax.len(), || {
            format!("{recipe}, {dialect}: {same} of {} scales are what calibration gives", amax.len())
        });
    }
    // A layer without its amax must be refused by name: an engine would take what it finds there for a scale.
    let mut fewer = amax.clone();
    let missing = fewer.pop_last().map(|(name, _)| name).unwrap_or_default();
    let broken = scratch.path().join("fewer.json");
    write(&broken, &fewer)?;
    let refused = quantize("nvfp4", "modelopt", &scratch.path().join("refused"), &broken).err().map(|e| e.to_string());
    // What it says after the file's name, which is another in every run.
    let said = refused.as_ref().and_then(|words| words.rsplit_once("fewer.json: ")).map_or("taken", |(_, rest)| rest);
    record.line("");
    record.line(format!("Without `{missing}` in the file: \"{said}\"."));
    record.must(said.contains(&missing), || {
        format!("{missing} was left out of the file, and the program says: {refused:?}")
    });

    record.head(&["on as many windows that were not seen", "perplexity", "%", "KL to bf16", "must be"]);
    let logs = logs(&model, unseen)?;
    let base = logs.score(unseen)?;
    record.row(&["bf16".into(), format!("{:.2}", base.perplexity()), String::new(), String::new(), String::new()]);
    let folder = scratch.path().join("nvfp4-modelopt");
    let quantized = Llama::new(config, read(&folder, Kept::Own)?);
    let scales = input_scales(&folder, "input_scale")?;
    let mut note = |what: &str, score: scaled_gemm_engines::score::Score, [least, most]: [f64; 2]| {
        let percent = score.percent(&base);
        let numbers = [format!("{:.2}", score.perplexity()), format!("{percent:+.1}"), format!("{:.4}", score.kl())];
        let [perplexity, change, kl] = numbers;
        record.row(&[what.into(), perplexity, change, kl, format!("{least:+} to {most:+} %")]);
        record.must((least..=most).contains(&percent), || {
            format!("{what}: {percent:+.1} %, and {least:+} to {most:+} was to be")
        });
    };
    note("NVFP4 weights", logs.compare(&quantized, unseen, &mut |_, x| Ok(x))?, [12.0, 35.0]);
    let both = logs.compare(&quantized, unseen, &mut |name, x| rounded(&x, scales[name]))?;
    // The same model and recipe, on another text: +45.7.
    note("NVFP4 weights, NVFP4 activations by `input_scale`", both, [25.0, 70.0]);
    record.finish(options)
}

fn main() -> ExitCode {
    exit(run(&Arguments::parse()))
}
