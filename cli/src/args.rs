//! What can be typed. The names are those of the library.

use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args, Parser, Subcommand, ValueEnum};
use scaled_gemm::checkpoint::{Dialect, NibbleOrder};
use scaled_gemm::{
    Activation, Basis, BlockScaleRule, BlockShape, CastGroup, CastScales, CodeFormat, CodeRounding, DType, E4m3Bound,
    Error, ErrorMath, ErrorMetric, Fp8Format, Fp8Rule, Fp8Scales, MxScaleRule, Nvfp4Options, Nvfp4Recipe, Nvfp4Rule,
    Recipe, Scheme,
};

use crate::file_tensor::{self, FileTensor};
use crate::output::Failure;
use crate::shapes::{ShapeList, parse_m, parse_shapes};

/// Scaled FP8, MXFP8 and NVFP4 matrix products: quantize, multiply, verify, benchmark.
///
/// D = A B^T: A is m x k, quantized or plain, B is n x k, quantized, D is m x n. Without a command: a short bench.
///
/// Results go to standard output, the rest to standard error. Files appear whole or not at all.
/// Exit codes: 0 done, 1 a check or the machine failed (a full disk), 2 wrong use or input, or a device that is not there (one line
/// on standard error says what).
#[derive(Debug, Parser)]
#[command(name = "scaled-gemm", version)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Where to run: auto (the first GPU if one answers, else the CPU; says which), cpu, cuda, or cuda:N for the GPU at place
    /// N of the driver's list, from 0.
    #[arg(long, value_parser = parse_device, default_value = "auto", global = true)]
    pub device: DeviceChoice,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// The device, its libraries, and which pairs of schemes run there and how; or what a file or a model's folder holds.
    Info(InfoArgs),
    /// Every scheme, recipe, cast and producer on this device, of every kind of data (NaN, infinities and rounding ties too): codes and scales as defined, products within
    /// their bound, SQNR. On a GPU casts and producers of many rows, too, which other kernels cast. On the CPU it is the reference that is checked.
    Verify(VerifyArgs),
    /// Time of quantized products against plain ones (GPU: BF16, CPU: F32), without and with quantizing A.
    Bench(BenchArgs),
    /// Quantize the BF16, F16 and F32 weights of a safetensors file or of a model's folder; the rest is copied.
    Quantize(QuantizeArgs),
    /// Turn the quantized matrices of a safetensors file or of a model's folder back into plain ones. Scales of the activations that they are multiplied with are left out; the rest is copied.
    Dequantize(DequantizeArgs),
    /// D = activation(A B^T + bias) of matrices in safetensors files; B is quantized, A may be plain.
    Gemm(GemmArgs),
    /// Time formulations, cuBLASLt's algorithms and our own configurations for these shapes and write down the fastest (GPU only).
    Tune(TuneArgs),
}

/// Where to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DeviceChoice {
    /// The first GPU if one answers, else the CPU.
    Auto,
    Cpu,
    /// The GPU at this place of the driver's list.
    Cuda(usize),
}

fn parse_device(text: &str) -> Result<DeviceChoice, String> {
    let ordinal = text.strip_prefix("cuda:").map(str::parse);
    match (text, ordinal) {
        ("auto", _) => Ok(DeviceChoice::Auto),
        ("cpu", _) => Ok(DeviceChoice::Cpu),
        ("cuda", _) => Ok(DeviceChoice::Cuda(0)),
        (_, Some(Ok(ordinal))) => Ok(DeviceChoice::Cuda(ordinal)),
        _ => Err("known are auto, cpu, cuda and cuda:N".into()),
    }
}

/// How precisely the GPU keeps sums of products without groups of 128. The CPU always keeps FP32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum AccumulationChoice {
    /// Promoted to FP32 as the GPU offers it.
    #[default]
    Precise,
    /// At tensor-core precision: faster, errors near 1e-3.
    Fast,
}

/// How A comes to the products that are measured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum ActivationsChoice {
    /// By the scheme that goes with that of the weights.
    Quantized,
    /// Plain, in BF16: only the weights are quantized.
    Bf16,
}

#[derive(Debug, Args)]
pub struct InfoArgs {
    /// A safetensors file, a model's folder, or the index of its shards: what it holds, how that is read, and what is wrong with
    /// it. Exit code 1 if what can be read is wrong, 2 if it cannot be read; a missing config.json is only said. Without it: this machine.
    pub path: Option<PathBuf>,
    /// List every pair with the formulations that it does not run by, and why.
    #[arg(long, conflicts_with = "path")]
    pub reasons: bool,
    /// Print JSON instead of tables.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct VerifyArgs {
    /// Print JSON instead of tables.
    #[arg(long)]
    pub json: bool,
    /// Seed of the random matrices.
    #[arg(long, value_parser = parse_seed, default_value_t = 1, allow_negative_numbers = true)]
    pub seed: u64,
}

#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Shapes: deepseek-v3, llama3-70b, qwen3, or MxNxK and NxK (all of --m); comma-separated.
    #[arg(long, value_parser = parse_shapes, default_value = "4096x7168")]
    pub shapes: ShapeList,
    /// Rows of A for shapes that do not give them; if left out, 1 to 8192 on a GPU and 1, 16, 128 and 512 on the CPU.
    #[arg(long, value_delimiter = ',', value_parser = parse_m, allow_negative_numbers = true)]
    pub m: Vec<u32>,
    /// Schemes of the weights; activations follow: fp8-1x128 for fp8-128x128 weights; nvfp4 and plain bf16 for nvfp4
    /// weights; mxfp8 and plain bf16 for mxfp4 weights. nvfp4-row is that of activations, with nvfp4 weights. Of fp8-tensor,
    /// fp8-row, fp8-1x128, fp8-128x128, mxfp8, mxfp4, nvfp4 and nvfp4-row; all if left out.
    #[arg(long, value_delimiter = ',', value_parser = parse_scheme)]
    pub schemes: Vec<&'static str>,
    /// Activations of each scheme, in the place of those above: quantized, bf16 (plain: weight-only products, also of FP8, mxfp8 and nvfp4-row
    /// weights, which are multiplied so only where that is asked for), or quantized,bf16 for both.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub activations: Vec<ActivationsChoice>,
    /// Element type of the output.
    #[arg(long, value_parser = parse_wide, default_value = "bf16")]
    pub out_dtype: DType,
    /// How precisely the GPU keeps sums of products without groups of 128; the CPU keeps FP32.
    #[arg(long, value_enum, default_value_t)]
    pub accumulation: AccumulationChoice,
    /// Measured choices to use: a file that `tune` wrote.
    #[arg(long, value_name = "FILE")]
    pub tuning: Option<PathBuf>,
    /// Time quantizers, casts and producers (SwiGLU, SiLU, GELU, RMSNorm before a cast, gradients of SwiGLU) instead of products: each on an m x k matrix in BF16,
    /// with its share of the rate of a copy in the same run. Every cast in every order of scales, every producer to every cast and to all that products read: more
    /// than 500 lines a shape, in minutes. m is 128 and 4096 if left out, on the CPU 128; n is not used.
    /// Not with --schemes, --activations, --out-dtype, --accumulation, --tuning and --plot, which are of products, nor with --decode.
    #[arg(long, conflicts_with_all = ["schemes", "activations", "out_dtype", "accumulation", "tuning", "plot"])]
    pub quantizers: bool,
    /// With --quantizers: also codes of every grouping to every other, every order of scales behind every producer, every rule: some 3000 lines a shape, in many minutes.
    #[arg(long, requires = "quantizers")]
    pub all: bool,
    /// With --quantizers: time only the lines whose text, "FROM to TO" as the table has them, matches this regular expression, such as '^swiglu' or 'ue8m0$'; (?i) in front of it takes either case.
    #[arg(long, value_name = "REGEX", requires = "quantizers")]
    pub only: Option<regex::Regex>,
    /// Time products of few rows (m of 1, 8 and 16 if left out) of the linear layers of DeepSeek-V3, Llama-3-70B and Qwen3-32B by every way that serves them (GPU only):
    /// bytes of weights a second against a copy, against BF16 and the best other way, plain and chained, and tokens a second of each model's linear layers. Schemes are
    /// fp8-128x128, fp8-row and nvfp4 if left out, NVFP4 weights also repacked; weight-only FP8 by --activations quantized,bf16. It takes minutes.
    /// Not with --shapes, since those layers are its shapes, nor with --quantizers and --plot.
    #[arg(long, conflicts_with_all = ["quantizers", "shapes", "plot"])]
    pub decode: bool,
    /// Print JSON; or with a name, write it to this file and print the tables.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
    /// Draw time and TFLOP/s over m as SVG.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

#[derive(Debug, Clone, Args)]
#[command(group(ArgGroup::new("target").required(true).multiple(true).args(["recipe", "group"])))]
#[command(group(ArgGroup::new("where").required(true).multiple(true).args(["output", "dry_run"])))]
pub struct QuantizeArgs {
    /// What to read: a safetensors file, a model's folder, or the index of its shards.
    pub input: PathBuf,
    /// What to write: a file (one that is there is replaced), or for a folder or an index a new folder, with config, tokenizer and
    /// what else is no tensor.
    #[arg(short, long)]
    pub output: Option<PathBuf>,
    /// fp8-tensor, fp8-row, fp8-1x128, fp8-128x128, mxfp8, mxfp4, nvfp4 or nvfp4-row.
    #[arg(long, value_parser = parse_recipe)]
    pub recipe: Option<&'static str>,
    /// Instead of a recipe: a cast to a grouping that no product and no engine reads, rows x columns that share a scale: 1x16, 1x32,
    /// 1x64, 1x128, row, 32x32, 32x128, 128x32, 128x128, 32x1 or 128x1. Columns must be a multiple of 16, and with --transposed rows, too. Written so that dequantize and info read it.
    #[arg(long, value_name = "GROUP", value_parser = parse_group)]
    pub group: Option<CastGroup>,
    /// With --group, order of the scales: row-major (FP32, default), column-major (FP32, as TMA reads it) or ue8m0 (powers of two, a
    /// byte each, packed by four).
    #[arg(long, value_name = "ORDER", value_parser = parse_scales)]
    pub scales: Option<CastScales>,
    /// With --group 32x1 or 128x1: codes stored transposed. Their scales stay where they are.
    #[arg(long)]
    pub transposed: bool,
    /// Code format: e4m3 (default) or e5m2 for fp8 and mxfp8, e2m1 for nvfp4 and mxfp4; e4m3 (default) or e2m1 with --group.
    #[arg(long)]
    pub format: Option<CodeFormat>,
    /// Rule for the scales: torchao (default for fp8), transformer-engine (default for nvfp4), deepseek, deepgemm (e4m3
    /// only, as on a GPU) or deepgemm-cpu; nvfp4: torchao-cpu too.
    #[arg(long, value_parser = parse_preset)]
    pub preset: Option<String>,
    /// fp8 and --group: round scales to powers of two.
    #[arg(long)]
    pub power_of_two: bool,
    /// mxfp8 and mxfp4: rule for the scales: up (default), floor, ceil, even or rceil.
    #[arg(long, value_name = "RULE")]
    pub mx_rounding: Option<MxScaleRule>,
    /// nvfp4: scale each block to 6 or to 4, whichever has the smaller error: mae or mse.
    #[arg(long, value_name = "ERROR")]
    pub four_over_six: Option<ErrorMetric>,
    /// nvfp4 with --four-over-six: how errors are computed: strict (default) or fast.
    #[arg(long, value_name = "MATH")]
    pub error_math: Option<ErrorMath>,
    /// nvfp4: largest block scale aimed at: 448 (default, with --four-over-six too) or 256, which needs --four-over-six.
    #[arg(long, value_name = "MAX")]
    pub e4m3_max: Option<E4m3Bound>,
    /// nvfp4: one block scale for each 16 x 16 tile.
    #[arg(long = "tile-16x16")]
    pub tile_16x16: bool,
    /// nvfp4: transform each 16 columns before quantizing; such matrices multiply such matrices only.
    #[arg(long)]
    pub hadamard: bool,
    /// nvfp4: round codes at random, reproducibly for a seed; the n-th matrix of the file uses offset n.
    #[arg(long, value_name = "SEED", value_parser = parse_seed, allow_negative_numbers = true)]
    pub stochastic: Option<u64>,
    /// Quantize only the tensors whose name matches this regular expression, whatever they are. Without it the matrices, but for
    /// embeddings, output heads, norms, routers, convolutions, gates of linear attention, layers for images or sound,
    /// multi-token prediction, and what config.json names. Those are quantized in a dialect with a warning, since engines may not
    /// read them so; embeddings, which no engine reads so, are refused there. Experts that are in one tensor are written one by one
    /// where the model_type of config.json says how they lie there (of a file the config.json beside it), and else left alone.
    #[arg(long, value_name = "REGEX")]
    pub only: Option<regex::Regex>,
    /// Leave the tensors whose name matches alone; may be given several times. One that matches none is refused. Experts in one
    /// tensor go by its name and by those that they are written under.
    #[arg(long, value_name = "REGEX")]
    pub exclude: Vec<regex::Regex>,
    /// Names, types and config.json: fp8, compressed-tensors, modelopt, gpt-oss (the experts of that model in mxfp4), comfyui
    /// (files) or plain (this program's own, for every recipe). For a folder, if left out: fp8 for fp8-128x128 and fp8-tensor,
    /// modelopt for nvfp4 and mxfp8, compressed-tensors for fp8-row and mxfp4, gpt-oss for that model in mxfp4, plain for what
    /// no engine reads; for a file plain.
    #[arg(long)]
    pub dialect: Option<Dialect>,
    /// nvfp4 and fp8-tensor: matrices whose names differ only in what this matches share one scale, besides those that engines
    /// are known to fuse (q, k and v; gate and up; and so on); may be given several times. In a dialect, of other recipes too: what
    /// is quantized together or not at all. One that joins no layers is refused.
    #[arg(long, value_name = "REGEX")]
    pub fuse: Vec<regex::Regex>,
    /// nvfp4 and fp8-tensor: each matrix has a scale of its own. Engines that fuse such matrices read them wrongly. In a dialect of
    /// other recipes: quantize also where engines fuse a matrix with one that is left alone, which they refuse.
    #[arg(long, conflicts_with = "fuse")]
    pub no_fuse: bool,
    /// nvfp4 and fp8-tensor: amax of the inputs of each layer, from calibration: JSON {"LAYER": AMAX} or a safetensors file of
    /// scalars. Written beside the weights as input_scale. Layers that are not quantized, or lie in other shards, are
    /// named, and names of none refused.
    #[arg(long, value_name = "FILE")]
    pub input_scales: Option<PathBuf>,
    /// nvfp4 and fp8-tensor: for layers, the largest magnitude of a weight that its one scale is made for, in the place of the
    /// largest that the weight has: in the numbers of the weight as it is in the input, neither a scale nor a part of the largest.
    /// In the same formats. Values beyond it become the largest code, which is said where they are many, as is one so large that
    /// few bits are left. Layers that share a scale get the largest.
    #[arg(long, value_name = "FILE")]
    pub weight_amax: Option<PathBuf>,
    /// Say what would be done, and write nothing. Whether the output may be written is found out, and what the names, types and
    /// shapes of the tensors forbid; their values are not read (a NaN is not found), and the disk is not asked for room.
    #[arg(long)]
    pub dry_run: bool,
    /// Most bytes of tensors in a file of a folder: 500MB, 2GiB or a number; 5GB if left out. A tensor is never divided.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, allow_negative_numbers = true)]
    pub shard_size: Option<u64>,
    /// Threads for the work on the CPU; all cores if left out.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024), allow_negative_numbers = true)]
    pub jobs: Option<u16>,
    /// Quantize matrices that hold NaN or infinities all the same. NaN does not count in the scales; it stays NaN in fp8 and
    /// mxfp8, and becomes 6 times its scales in nvfp4 and mxfp4, which have no NaN (with --hadamard the 16 columns it is mixed with
    /// too). Infinities become the largest code where the rule has a scale for them: fp8 with --preset transformer-engine (its group
    /// gets scale 1), mxfp8 and mxfp4 with --mx-rounding up, the default (scale 2^127). Under the other rules the scale of their group
    /// would be infinite or NaN, and they are refused; so they are with --group, where NaN stays NaN in e4m3 and becomes 6 times its
    /// scale in e2m1.
    #[arg(long)]
    pub allow_non_finite: bool,
    /// Print JSON instead of tables, with what is said on standard error as `notes`.
    #[arg(long)]
    pub json: bool,
}

/// A seed of random numbers.
fn parse_seed(text: &str) -> Result<u64, String> {
    text.parse().map_err(|_| format!("write a whole number from 0 to {}", u64::MAX))
}

/// A number of bytes, with or without a unit.
fn parse_bytes(text: &str) -> Result<u64, String> {
    let rule = || "write a whole number above 0 of B, KB, MB, GB, KiB, MiB or GiB, such as 5GB".to_string();
    let at = text.find(|c: char| !c.is_ascii_digit()).unwrap_or(text.len());
    let unit: u64 = match text[at..].trim().to_ascii_lowercase().as_str() {
        "" | "b" => 1,
        "kb" => 1000,
        "mb" => 1_000_000,
        "gb" => 1_000_000_000,
        "kib" => 1 << 10,
        "mib" => 1 << 20,
        "gib" => 1 << 30,
        _ => return Err(rule()),
    };
    let number = text[..at].parse::<u64>().ok().and_then(|number| number.checked_mul(unit));
    if at > 0 && number.is_none() {
        return Err(format!("{}; this is more than {} bytes, the most that can be counted", rule(), u64::MAX));
    }
    number.filter(|bytes| *bytes > 0).ok_or_else(rule)
}

impl QuantizeArgs {
    /// Where the result goes.
    ///
    /// # Errors
    /// [`Failure::Use`] where nothing was given, which the parser lets pass for dry runs alone.
    pub fn output(&self) -> Result<&Path, Failure> {
        self.output.as_deref().ok_or_else(|| Failure::Use("give the output with -o".into()))
    }

    /// The recipe that the options describe, for the n-th matrix of a file.
    ///
    /// # Errors
    /// [`Error::Unsupported`] for options that exclude each other.
    pub fn recipe(&self, matrix: u64) -> scaled_gemm::Result<Recipe> {
        let name = self.recipe_name();
        let mut recipe = Recipe::new(self.recipe_scheme()?);
        let refuse = |what: &str, reason: &str, remedy: &str| {
            Err(Error::unsupported(format!("{what} with {name}"), reason, remedy))
        };
        if self.power_of_two && !matches!(recipe, Recipe::Fp8(_)) {
            let reason = "its block scales have a format of their own";
            return refuse("rounding scales to powers of two", reason, "leave it out");
        }
        if self.mx_rounding.is_some() && !matches!(recipe, Recipe::Mxfp8(_) | Recipe::Mxfp4(_)) {
            let remedy = "leave it out, or quantize as mxfp8 or mxfp4";
            return refuse("a rule for MX scales", "they belong to mxfp8 and mxfp4", remedy);
        }
        let options = self.nvfp4_options(matrix);
        if options != Nvfp4Options::default() && !matches!(recipe, Recipe::Nvfp4(_)) {
            return refuse(
                "an NVFP4 option (4over6, bound, 16x16 tiles, Hadamard, stochastic rounding)",
                "they belong to nvfp4 and nvfp4-row",
                "leave it out, or quantize as nvfp4",
            );
        }
        if self.error_math.is_some() && self.four_over_six.is_none() {
            let remedy = match recipe {
                Recipe::Nvfp4(_) => "leave it out, or say --four-over-six mae or mse too",
                _ => "leave it out, or quantize as nvfp4, with --four-over-six",
            };
            return refuse("--error-math without --four-over-six", "it is of the errors that 4over6 compares", remedy);
        }
        match &mut recipe {
            Recipe::Fp8(recipe) => {
                if let Some(preset) = &self.preset {
                    let Ok(rule) = preset.parse() else {
                        let reason = "torchao's FP8 kernels give the same bytes on the CPU and on a GPU";
                        return refuse("the preset torchao-cpu", reason, "use the preset torchao");
                    };
                    recipe.rule = rule;
                }
                if self.power_of_two {
                    recipe.scales = Fp8Scales::PowerOfTwo;
                }
            }
            Recipe::Mxfp8(_) | Recipe::Mxfp4(_) if self.preset.is_some() => {
                let reason = "its rules are told apart by the rounding of the scale, not by a project";
                return refuse("a preset", reason, "choose an MX rounding instead");
            }
            Recipe::Mxfp8(recipe) => recipe.rule = self.mx_rounding.unwrap_or_default(),
            Recipe::Mxfp4(recipe) => recipe.rule = self.mx_rounding.unwrap_or_default(),
            Recipe::Nvfp4(recipe) => {
                let Ok(rule) = self.preset.as_deref().map_or(Ok(Nvfp4Rule::default()), str::parse) else {
                    let reason = "that project has no NVFP4 rule with two levels of scales";
                    let preset = format!("the preset {}", self.preset.as_deref().unwrap_or_default());
                    return refuse(&preset, reason, "use the preset transformer-engine or torchao");
                };
                let options = Nvfp4Options { rule, ..options };
                let rows = recipe.scheme() == Scheme::Nvfp4Row;
                *recipe = if rows { Nvfp4Recipe::rows(options)? } else { Nvfp4Recipe::tensor(options)? };
            }
        }
        crate::recipes::check_published(recipe)?;
        Ok(recipe)
    }

    fn nvfp4_options(&self, matrix: u64) -> Nvfp4Options {
        Nvfp4Options {
            rule: Nvfp4Rule::default(),
            block_scale: match self.four_over_six {
                Some(metric) => BlockScaleRule::FourOverSix { metric, math: self.error_math.unwrap_or_default() },
                None => BlockScaleRule::Plain,
            },
            bound: self.e4m3_max.unwrap_or_default(),
            shape: if self.tile_16x16 { BlockShape::Tile16x16 } else { BlockShape::Row1x16 },
            basis: if self.hadamard { Basis::Hadamard16 } else { Basis::Plain },
            rounding: match self.stochastic {
                Some(seed) => CodeRounding::Stochastic { seed, offset: matrix },
                None => CodeRounding::Nearest,
            },
        }
    }

    /// The name of the recipe; nothing where there is none, which the parser lets pass with a grouping alone.
    pub fn recipe_name(&self) -> &'static str {
        self.recipe.unwrap_or_default()
    }

    fn recipe_scheme(&self) -> scaled_gemm::Result<Scheme> {
        let name = self.recipe_name();
        let default = scheme(name, Fp8Format::E4M3);
        let Some(format) = self.format else { return Ok(default) };
        Scheme::from_name(name, format).ok_or_else(|| {
            let formats: Vec<_> =
                Scheme::ALL.iter().map(|s| s.spec()).filter(|s| s.name == name).map(|s| s.format.name()).collect();
            Error::unsupported(
                format!("{name} with the code format {}", format.name()),
                format!("its codes are {}", formats.join(" or ")),
                "choose one of these, or leave --format out",
            )
        })
    }
}

#[derive(Debug, Args)]
pub struct DequantizeArgs {
    /// What to read: a safetensors file, a model's folder, or the index of its shards.
    pub input: PathBuf,
    /// What to write: a file (one that is there is replaced), or for a folder or an index a new folder, in which the experts of a
    /// layer are one tensor again where they are in the checkpoints of this model_type. The metadata of the files are kept, but for
    /// recipes and ComfyUI's list of layers; in a folder without a `format` among them it is `pt`, which transformers asks for.
    #[arg(short, long)]
    pub output: PathBuf,
    /// Most bytes of tensors in a file of a folder: 500MB, 2GiB or a number; 5GB if left out. A tensor is never divided.
    #[arg(long, value_name = "BYTES", value_parser = parse_bytes, allow_negative_numbers = true)]
    pub shard_size: Option<u64>,
    /// Element type of the result: bf16, f16 or f32. Values beyond its range are refused.
    #[arg(long, value_parser = parse_wide, default_value = "bf16")]
    pub dtype: DType,
    /// Write the NaN and infinities that the codes hold as they are, and values beyond FP32, which no element type holds, as
    /// infinities: what mxfp8 makes of an infinity. Without it they are refused, as quantize does. Values that another type
    /// holds are refused all the same.
    #[arg(long)]
    pub allow_non_finite: bool,
    /// Where nvfp4 bytes hold the even column: low-first (in the low half, default) or high-first.
    #[arg(long, value_name = "ORDER")]
    pub nibble_order: Option<NibbleOrder>,
    /// Print JSON instead of tables, with what is said on standard error as `notes`.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct GemmArgs {
    /// A, m x k: FILE:TENSOR. Quantized, or plain bf16 or f16 where B is nvfp4, mxfp4 or fp8, bf16 where it is mxfp8.
    #[arg(long, value_parser = file_tensor::parse)]
    pub a: FileTensor,
    /// B, n x k: FILE:TENSOR.
    #[arg(long, value_parser = file_tensor::parse)]
    pub b: FileTensor,
    /// Where nvfp4 bytes of both files hold the even column: low-first (in the low half, default) or high-first.
    #[arg(long, value_name = "ORDER")]
    pub nibble_order: Option<NibbleOrder>,
    /// The same for A's file alone.
    #[arg(long, value_name = "ORDER")]
    pub a_nibble_order: Option<NibbleOrder>,
    /// The same for B's file alone.
    #[arg(long, value_name = "ORDER")]
    pub b_nibble_order: Option<NibbleOrder>,
    /// Bias of n values, [n] or [1, n], BF16, F16 or F32: FILE:TENSOR.
    #[arg(long, value_parser = file_tensor::parse)]
    pub bias: Option<FileTensor>,
    /// Function applied after the bias: none, relu, gelu or silu.
    #[arg(long, default_value = "none")]
    pub activation: Activation,
    /// Element type of D: bf16, f16 or f32. Values beyond its range become infinities, which are
    /// counted, as NaN are.
    #[arg(long, value_parser = parse_wide, default_value = "bf16")]
    pub out_dtype: DType,
    /// How precisely the GPU keeps sums of products without groups of 128; the CPU keeps FP32.
    #[arg(long, value_enum, default_value_t)]
    pub accumulation: AccumulationChoice,
    /// Rows of D with the same bits whatever the number of rows of A and whichever rows stand beside
    /// them: on sm_90 FP8 codes (E5M2 on one side at most) with scales of 1x128 x 128x128, 1x128 x 1x128,
    /// 128x128 x 1x128, rows or matrices, and on sm_80 and newer weights that are decoded; refused elsewhere.
    #[arg(long)]
    pub batch_invariant: bool,
    /// Measured choices to use: a file that `tune` wrote. What was chosen and why is said, also where no
    /// record of the file is of this product.
    #[arg(long, value_name = "FILE")]
    pub tuning: Option<PathBuf>,
    /// Safetensors file to write (one that is there is replaced); D is the tensor `d` in it.
    #[arg(short, long)]
    pub output: PathBuf,
    /// Print JSON instead of text, with what is said on standard error as `notes`.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TuneArgs {
    /// Shapes: deepseek-v3, llama3-70b, qwen3, or MxNxK and NxK (all of --m); comma-separated.
    #[arg(long, value_parser = parse_shapes)]
    pub shapes: ShapeList,
    /// Rows of A for shapes that do not give them; if left out, the powers of two from 1 to 8192.
    #[arg(long, value_delimiter = ',', value_parser = parse_m, allow_negative_numbers = true)]
    pub m: Vec<u32>,
    /// Schemes of the weights, as in bench; activations follow.
    #[arg(long, value_delimiter = ',', value_parser = parse_scheme)]
    pub schemes: Vec<&'static str>,
    /// Activations of each scheme, as in bench: quantized, bf16 (weight-only products), or quantized,bf16 for both.
    #[arg(long, value_enum, value_delimiter = ',')]
    pub activations: Vec<ActivationsChoice>,
    /// Element type of the output.
    #[arg(long, value_parser = parse_wide, default_value = "bf16")]
    pub out_dtype: DType,
    /// How precisely the GPU keeps sums of products without groups of 128; the CPU keeps FP32.
    #[arg(long, value_enum, default_value_t)]
    pub accumulation: AccumulationChoice,
    /// Measure what products with --batch-invariant take, whose records serve no others; give
    /// --schemes that have such products (fp8-tensor, fp8-row, fp8-1x128, fp8-128x128,
    /// nvfp4, nvfp4-row, mxfp4, mxfp8).
    #[arg(long, requires = "schemes")]
    pub batch_invariant: bool,
    /// Measure products that are links of chains (Handle::chain), as engines ask for them by
    /// GemmArgs::chained; such records serve no others. Of up to 16 rows: of more, records of
    /// calls alone serve them, too.
    #[arg(long)]
    pub chained: bool,
    /// JSON file of records to write; one that is there is replaced.
    #[arg(short, long)]
    pub output: PathBuf,
    /// Print JSON instead of tables.
    #[arg(long)]
    pub json: bool,
}

/// Scheme names without the code format, each once, in the order of the table.
pub fn scheme_names() -> Vec<&'static str> {
    let mut names: Vec<_> = Scheme::ALL.iter().map(|s| s.spec().name).collect();
    let mut seen = std::collections::HashSet::new();
    names.retain(|n| seen.insert(*n));
    names
}

/// The scheme of a name that [`parse_recipe`] let through, in this format if it has a choice.
pub fn scheme(name: &str, format: Fp8Format) -> Scheme {
    let named = || Scheme::ALL.into_iter().filter(|s| s.spec().name == name);
    let chosen = named().find(|s| s.spec().format == format).or_else(|| named().next());
    chosen.unwrap_or(Scheme::Fp8Tensor(format))
}

/// A name of a rule for FP8 or NVFP4.
fn parse_preset(text: &str) -> Result<String, String> {
    let mut names: Vec<_> =
        Fp8Rule::ALL.map(Fp8Rule::name).into_iter().chain(Nvfp4Rule::ALL.map(Nvfp4Rule::name)).collect();
    let mut seen = std::collections::HashSet::new();
    names.retain(|name| seen.insert(*name));
    known("preset", text, names, |name| name).map(str::to_string)
}

fn parse_scheme(text: &str) -> Result<&'static str, String> {
    known("scheme", text, scheme_names(), |name| name)
}

fn parse_recipe(text: &str) -> Result<&'static str, String> {
    let is_group = CastGroup::ALL.into_iter().any(|group| group.name() == text);
    let hint = if is_group { format!("; casts have it: --group {text}") } else { String::new() };
    known("recipe", text, scheme_names(), |name| name).map_err(|e| e + &hint)
}

/// A name of a group. Recipes have some of them, too.
fn parse_group(text: &str) -> Result<CastGroup, String> {
    let hint =
        if scheme_names().contains(&text) { format!("; it is a recipe: --recipe {text}") } else { String::new() };
    known("group", text, CastGroup::ALL, CastGroup::name).map_err(|e| e + &hint)
}

/// A name of an order of scales. E8M0 is what other formats call the bytes.
fn parse_scales(text: &str) -> Result<CastScales, String> {
    let hint = if text == "e8m0" { "; such bytes are written in the order ue8m0" } else { "" };
    known("order of scales", text, CastScales::ALL, CastScales::name).map_err(|e| e + hint)
}

fn parse_wide(text: &str) -> Result<DType, String> {
    known("type", text, DType::WIDE, DType::name)
}

/// The item of this name, or the list of what is known.
fn known<T: Copy>(
    what: &str,
    text: &str,
    items: impl IntoIterator<Item = T>,
    name: impl Fn(T) -> &'static str,
) -> Result<T, String> {
    let items: Vec<T> = items.into_iter().collect();
    items.iter().copied().find(|item| name(*item) == text).ok_or_else(|| {
        let names: Vec<_> = items.iter().map(|item| name(*item)).collect();
        format!("unknown {what}; known are {}", names.join(", "))
    })
}
