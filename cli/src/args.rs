//! What can be typed. The names are those of the library.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand, ValueEnum};
use scaled_gemm::{Activation, DType, Fp8Format, Preset, Recipe, Scheme};

use crate::shapes::{ShapeList, parse_shapes};

/// FP8 block-scaled matrix products: quantize, multiply, verify, benchmark.
///
/// D = A B^T of quantized matrices: A is m x k, B is n x k, D is m x n. Without a command: a short bench.
#[derive(Debug, Parser)]
#[command(name = "scaled-gemm", version)]
pub struct Cli {
    #[command(subcommand)]
    pub command: Option<Command>,
    /// Where to run.
    #[arg(long, value_enum, default_value_t, global = true)]
    pub device: DeviceChoice,
}

#[derive(Debug, Subcommand)]
pub enum Command {
    /// GPU, driver, libraries, and which schemes run here and how.
    Info(InfoArgs),
    /// Every scheme and recipe against the reference: codes equal, GEMM error within its bound, SQNR.
    Verify(VerifyArgs),
    /// Time against BF16 (on the CPU: F32) on the same shapes, quantization included and excluded.
    Bench(BenchArgs),
    /// Quantize the 2-D weights of a safetensors file.
    Quantize(QuantizeArgs),
    /// Turn the quantized matrices of a safetensors file back into plain ones.
    Dequantize(DequantizeArgs),
    /// D = A B^T (+ bias) of quantized matrices in files.
    Gemm(GemmArgs),
    /// Time every formulation and algorithm for these shapes and keep the best (GPU only).
    Tune(TuneArgs),
}

/// Where to run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum DeviceChoice {
    /// The GPU if one answers, else the CPU; says which.
    #[default]
    Auto,
    Cpu,
    Cuda,
}

/// How precisely the GPU keeps sums of products without 128-blocks. The CPU always keeps FP32.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, ValueEnum)]
pub enum AccumulationChoice {
    /// Promoted to FP32 as the GPU offers it.
    #[default]
    Precise,
    /// At tensor-core precision: faster, errors near 1e-3.
    Fast,
}

#[derive(Debug, Args)]
pub struct InfoArgs {
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
    #[arg(long, default_value_t = 1)]
    pub seed: u64,
}

#[derive(Debug, Args)]
pub struct BenchArgs {
    /// Shapes: deepseek-v3, llama3-70b, qwen3, or MxNxK and NxK (all of --m); comma-separated.
    #[arg(long, value_parser = parse_shapes, default_value = "4096x7168")]
    pub shapes: ShapeList,
    /// Rows of A for shapes that do not give them.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub m: Vec<u32>,
    /// Schemes of the weights; activations follow (fp8-128x128 weights multiply fp8-1x128 activations).
    #[arg(long, value_delimiter = ',', value_parser = parse_scheme_name)]
    pub schemes: Vec<&'static str>,
    /// Element type of the output.
    #[arg(long, value_parser = parse_wide, default_value = "bf16")]
    pub out_dtype: DType,
    /// How precisely the GPU keeps sums of products without 128-blocks.
    #[arg(long, value_enum, default_value_t)]
    pub accumulation: AccumulationChoice,
    /// Measured choices to use: a file that `tune` wrote.
    #[arg(long, value_name = "FILE")]
    pub tuning: Option<PathBuf>,
    /// Print JSON, or write it to this file and print the tables.
    #[arg(long, value_name = "FILE", num_args = 0..=1, default_missing_value = "-")]
    pub json: Option<PathBuf>,
    /// Draw time and TFLOP/s over m as SVG.
    #[arg(long, value_name = "FILE")]
    pub plot: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct QuantizeArgs {
    /// Safetensors file to read.
    pub input: PathBuf,
    /// Safetensors file to write.
    #[arg(short, long)]
    pub output: PathBuf,
    /// fp8-tensor, fp8-row, fp8-1x128 or fp8-128x128.
    #[arg(long, value_parser = parse_scheme_name)]
    pub recipe: &'static str,
    /// Code format: e4m3 or e5m2.
    #[arg(long, value_parser = parse_format, default_value = "e4m3")]
    pub format: Fp8Format,
    /// Rule for the scales: torchao, transformer-engine, deepseek or deepgemm.
    #[arg(long, value_parser = parse_preset, default_value = "torchao")]
    pub preset: Preset,
    /// Round scales to powers of two.
    #[arg(long)]
    pub power_of_two: bool,
    /// Quantize only the tensors whose name matches this regular expression.
    #[arg(long, value_name = "REGEX")]
    pub only: Option<regex::Regex>,
    /// Quantize weights that hold NaN or infinities all the same.
    #[arg(long)]
    pub allow_non_finite: bool,
    /// Print JSON instead of tables.
    #[arg(long)]
    pub json: bool,
}

impl QuantizeArgs {
    /// The recipe that the options describe.
    pub fn recipe(&self) -> Recipe {
        let recipe = Recipe::new(scheme(self.recipe, self.format)).with_preset(self.preset);
        if self.power_of_two { recipe.power_of_two() } else { recipe }
    }
}

#[derive(Debug, Args)]
pub struct DequantizeArgs {
    /// Safetensors file to read.
    pub input: PathBuf,
    /// Safetensors file to write.
    #[arg(short, long)]
    pub output: PathBuf,
    /// Element type of the result: bf16, f16 or f32.
    #[arg(long, value_parser = parse_wide, default_value = "bf16")]
    pub dtype: DType,
    /// Print JSON instead of tables.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct GemmArgs {
    /// A, m x k: FILE:TENSOR.
    #[arg(long, value_parser = parse_file_tensor)]
    pub a: FileTensor,
    /// B, n x k: FILE:TENSOR.
    #[arg(long, value_parser = parse_file_tensor)]
    pub b: FileTensor,
    /// Bias of n values, BF16, F16 or F32: FILE:TENSOR.
    #[arg(long, value_parser = parse_file_tensor)]
    pub bias: Option<FileTensor>,
    /// Function applied after the bias: none, relu, gelu or silu.
    #[arg(long, value_parser = parse_activation, default_value = "none")]
    pub activation: Activation,
    /// Element type of D: bf16, f16 or f32.
    #[arg(long, value_parser = parse_wide, default_value = "bf16")]
    pub out_dtype: DType,
    /// How precisely the GPU keeps sums of products without 128-blocks.
    #[arg(long, value_enum, default_value_t)]
    pub accumulation: AccumulationChoice,
    /// Measured choices to use: a file that `tune` wrote.
    #[arg(long, value_name = "FILE")]
    pub tuning: Option<PathBuf>,
    /// Safetensors file to write; D is the tensor `d` in it.
    #[arg(short, long)]
    pub output: PathBuf,
    /// Print JSON instead of text.
    #[arg(long)]
    pub json: bool,
}

#[derive(Debug, Args)]
pub struct TuneArgs {
    /// Shapes: deepseek-v3, llama3-70b, qwen3, or MxNxK and NxK (all of --m); comma-separated.
    #[arg(long, value_parser = parse_shapes)]
    pub shapes: ShapeList,
    /// Rows of A for shapes that do not give them.
    #[arg(long, value_delimiter = ',', value_parser = clap::value_parser!(u32).range(1..=1 << 20))]
    pub m: Vec<u32>,
    /// Schemes of the weights; activations follow.
    #[arg(long, value_delimiter = ',', value_parser = parse_scheme_name)]
    pub schemes: Vec<&'static str>,
    /// Element type of the output.
    #[arg(long, value_parser = parse_wide, default_value = "bf16")]
    pub out_dtype: DType,
    /// How precisely the GPU keeps sums of products without 128-blocks.
    #[arg(long, value_enum, default_value_t)]
    pub accumulation: AccumulationChoice,
    /// JSON file of records to write.
    #[arg(short, long)]
    pub output: PathBuf,
    /// Print JSON instead of tables.
    #[arg(long)]
    pub json: bool,
}

/// A tensor in a file, written `FILE:TENSOR`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileTensor {
    pub file: PathBuf,
    pub tensor: String,
}

fn parse_file_tensor(text: &str) -> Result<FileTensor, String> {
    match text.rsplit_once(':') {
        Some((file, tensor)) if !file.is_empty() && !tensor.is_empty() => {
            Ok(FileTensor { file: file.into(), tensor: tensor.into() })
        }
        _ => Err("write FILE:TENSOR, e.g. model.safetensors:layer.weight".into()),
    }
}

/// Scheme names without the code format, each once, in the order of the table.
pub fn scheme_names() -> Vec<&'static str> {
    let mut names: Vec<_> = Scheme::ALL.iter().map(|s| s.spec().name).collect();
    let mut seen = std::collections::HashSet::new();
    names.retain(|n| seen.insert(*n));
    names
}

/// The scheme of a name that [`parse_scheme_name`] let through.
pub fn scheme(name: &str, format: Fp8Format) -> Scheme {
    Scheme::from_name(name, format).unwrap_or(Scheme::Fp8Tensor(format))
}

fn parse_scheme_name(text: &str) -> Result<&'static str, String> {
    known("recipe", text, scheme_names(), |name| name)
}

fn parse_format(text: &str) -> Result<Fp8Format, String> {
    known("format", text, [Fp8Format::E4M3, Fp8Format::E5M2], Fp8Format::name)
}

fn parse_preset(text: &str) -> Result<Preset, String> {
    known("preset", text, Preset::ALL, Preset::name)
}

fn parse_activation(text: &str) -> Result<Activation, String> {
    known("activation", text, Activation::ALL, Activation::name)
}

fn parse_wide(text: &str) -> Result<DType, String> {
    known("type", text, [DType::Bf16, DType::F16, DType::F32], DType::name)
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
