//! Where commands run: the CPU reference or a GPU, behind one trait, so that each command is written once.

mod check;
mod cpu;
#[cfg(feature = "cuda")]
mod cuda;
#[cfg(feature = "cuda")]
mod cuda_caster;
#[cfg(feature = "cuda")]
mod cuda_decode;
#[cfg(feature = "cuda")]
mod cuda_quantizers;
#[cfg(feature = "cuda")]
mod cuda_sources;
pub mod sources;

use std::path::Path;

use ndarray::Array2;
use scaled_gemm::checkpoint::PlainRows;
use scaled_gemm::pair::check_pair;
use scaled_gemm::reference::{Accumulator, Gelu, GemmInputs, HostOperand};
use scaled_gemm::{
    CastRecipe, DType, Fp8Format, GivenScale, HostCastMatrix, HostQuantMatrix, Operand, Recipe, Result, Scheme,
};

use crate::args::{AccumulationChoice, DeviceChoice, scheme};
use crate::output::Failure;
use crate::quantizers::Quantizer;
use sources::Sources;

/// How A comes to a product.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Activations {
    /// Quantized by this recipe.
    Quantized(Recipe),
    /// As it is.
    Plain(DType),
}

impl Activations {
    /// Scheme or element type.
    pub fn operand(self) -> Operand {
        match self {
            Self::Quantized(recipe) => recipe.scheme().into(),
            Self::Plain(dtype) => Operand::Plain(dtype),
        }
    }
}

/// How both operands are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Pair {
    pub a: Activations,
    pub b: Recipe,
}

impl Pair {
    /// The pairs that weights of this scheme name belong to: both alike, or 1x128 activations where two alike cannot be;
    /// plain BF16 activations too for NVFP4 weights, and with MXFP8 ones for MXFP4 weights. Row scales of NVFP4 are for activations, with `nvfp4` weights.
    pub fn of_weights(name: &str) -> Vec<Self> {
        let alike = scheme(name, Fp8Format::E4M3);
        let recipe = |a: Scheme| Activations::Quantized(Recipe::new(a));
        let (activations, b) = if alike == Scheme::Nvfp4Row {
            (vec![recipe(alike)], Scheme::Nvfp4)
        } else if alike == Scheme::Nvfp4 {
            (vec![recipe(alike), Activations::Plain(DType::Bf16)], alike)
        } else if alike == Scheme::Mxfp4 {
            (vec![recipe(Scheme::Mxfp8(Fp8Format::E4M3)), Activations::Plain(DType::Bf16)], alike)
        } else if check_pair(alike, alike, "cpu").is_ok() {
            (vec![recipe(alike)], alike)
        } else {
            (vec![recipe(Scheme::Fp8Group1x128(Fp8Format::E4M3))], alike)
        };
        activations.into_iter().map(|a| Self { a, b: Recipe::new(b) }).collect()
    }

    /// `fp8-1x128 x fp8-128x128`.
    pub fn name(&self) -> String {
        let a = match self.a {
            Activations::Quantized(recipe) => recipe.scheme().spec().name,
            Activations::Plain(dtype) => dtype.name(),
        };
        format!("{a} x {}", self.b.scheme().spec().name)
    }
}

/// A in host memory.
pub enum HostA {
    Quantized(HostQuantMatrix),
    /// Values that the type holds exactly.
    Plain(Array2<f32>, DType),
}

impl HostA {
    /// What the reference multiplies.
    pub fn operand(&self) -> HostOperand<'_> {
        match self {
            Self::Quantized(matrix) => matrix.into(),
            Self::Plain(values, dtype) => HostOperand::Plain(values.view(), *dtype),
        }
    }
}

/// What was measured for one pair and shape in one cadence.
#[derive(Debug, Clone)]
pub struct PairTime {
    /// How runs followed one another: `pauses`, `sustained`, which is the one way of the CPU.
    pub cadence: &'static str,
    /// Microseconds of the unquantized product, in turns with the others.
    pub baseline_us: f64,
    /// Microseconds of the product of quantized operands.
    pub gemm_us: f64,
    /// Microseconds of the quantization of A; 0 if it is plain.
    pub quantize_us: f64,
    /// Microseconds of the one after the other.
    pub both_us: f64,
    /// How it was computed.
    pub formulation: String,
    /// Largest error of checked elements as a fraction of the f64 bound; above 1 is wrong.
    pub error: f64,
    /// Clock and power meanwhile, in words; empty where nobody says.
    pub clock: String,
}

/// What was measured of one product of few rows.
#[derive(Debug, Clone)]
pub struct DecodeTime {
    /// Microseconds of the unquantized product, in turns with the others.
    pub baseline_us: f64,
    /// Microseconds of the quantization of A and the product as it is planned; of the product where A is plain.
    pub both_us: f64,
    /// Microseconds of the planned product, and of quantization and product, as links of a chain.
    pub chained_us: [f64; 2],
    /// Each way that serves, and its microseconds; the planned one first.
    pub ways: Vec<(String, f64)>,
    /// Microseconds of the product with weights whose codes are repacked, by itself and as links of a chain, where there is such an order.
    pub repacked_us: Option<[f64; 2]>,
    /// Bytes of the weights: codes and scales.
    pub weight_bytes: usize,
    /// Largest error of checked elements as a fraction of the f64 bound; above 1 is wrong.
    pub error: f64,
}

/// How a pair runs, or why not.
#[derive(Debug, Clone)]
pub struct Support {
    /// Formulations that run, best first.
    pub ways: Vec<String>,
    /// What does not run, and why.
    pub refused: Vec<(String, String)>,
}

/// Quantizes and dequantizes matrices, or parts of them, in host memory.
pub trait Caster: Send {
    /// Quantizes some rows of a matrix, or all; `whole` is the scale of all of it, where its scheme has one that is not found from
    /// these rows, with the number of the first of them. See [`quantize_rows`](scaled_gemm::reference::quantize_rows). The result may
    /// take the memory of `buffer`.
    fn quantize_part(
        &mut self,
        x: &PlainRows,
        recipe: Recipe,
        whole: Option<(GivenScale, usize)>,
        buffer: Vec<u8>,
    ) -> Result<HostQuantMatrix>;

    /// The values of a quantized matrix, rounded to `out`, in `buffer`, whose bytes are replaced. Rows in a Hadamard basis stay in it.
    fn dequantize(&mut self, q: &HostQuantMatrix, out: DType, buffer: Vec<u8>) -> Result<PlainRows>;

    /// Casts to a grouping that no product reads.
    fn cast(&mut self, x: &PlainRows, recipe: CastRecipe) -> Result<HostCastMatrix>;

    /// The values of the result of a cast, rounded to `out`, in `buffer`, whose bytes are replaced.
    fn cast_back(&mut self, q: &HostCastMatrix, out: DType, buffer: Vec<u8>) -> Result<PlainRows>;
}

/// One place to run on. Matrices come and go in host memory.
pub trait Device {
    /// `cpu` or `cuda`.
    fn name(&self) -> &'static str;

    /// What it is, on one line.
    fn title(&self) -> String;

    /// The same, and why it is not a GPU where one was looked for.
    fn described(&self) -> String {
        self.title()
    }

    /// Refuses a problem of `bench` or `tune` that cannot fit in memory, before anything is allocated.
    fn check_memory(&self, mnk: [usize; 3], out: DType) -> std::result::Result<(), Failure>;

    /// Names and values for `info` and records: GPU, driver, libraries.
    fn facts(&self) -> Vec<(&'static str, String)>;

    /// How precisely sums are kept. Precise until this is called; refused where the device has no choice.
    fn set_accumulation(&mut self, accumulation: AccumulationChoice) -> Result<()>;

    /// Products whose rows have the same bits whatever their number is, from now on; refused where none are promised.
    fn set_batch_invariant(&mut self) -> Result<()>;

    /// Takes measured choices from a file that `tune` wrote.
    fn use_tuning(&mut self, path: &Path) -> Result<()>;

    /// Bytes of the parts that it takes of a matrix, about: enough that its work is worth passing on.
    fn part_bytes(&self) -> usize;

    /// True if it rounds parts of a matrix at random one by one; else it takes the matrix whole.
    fn divides_stochastic(&self) -> bool;

    /// What quantizes and dequantizes here, as many as do so side by side; each is for a thread of its own.
    fn casters(&self) -> Vec<Box<dyn Caster>>;

    /// One of them.
    fn caster(&self) -> Box<dyn Caster>;

    /// Casts from every source.
    fn sources(&self) -> Box<dyn Sources + '_>;

    /// The scaled product. Takes pair, output type, bias and activation from `inputs`.
    fn gemm(&mut self, inputs: &GemmInputs<'_>) -> Result<Array2<f32>>;

    /// What adds the products of this pair here, and who computes a GELU: which bound applies.
    fn arithmetic(&self, a: Operand, b: Scheme) -> (Accumulator, Gelu);

    /// How this pair runs at this shape.
    fn support(&mut self, mnk: [usize; 3], a: Operand, b: Scheme, out: DType) -> Support;

    /// What the unquantized product of [`Device::time_pair`] is, in words.
    fn baseline(&self) -> String;

    /// How times are taken, in words.
    fn method(&self) -> String;

    /// Refuses a shape that has no unquantized product.
    fn check_baseline(&mut self, mnk: [usize; 3]) -> Result<()>;

    /// The unquantized product, and quantization and product together and apart, timed in turns; checked. One for each
    /// cadence that matters at this shape, the sustained one last.
    fn time_pair(&mut self, mnk: [usize; 3], pair: Pair, out: DType) -> Result<Vec<PairTime>>;

    /// Every way to a product of few rows, the unquantized one, and quantization and product together, timed in turns; checked. Weights are cold.
    fn time_decode(&mut self, mnk: [usize; 3], pair: Pair, out: DType) -> Result<DecodeTime>;

    /// Microseconds of each of these on a BF16 matrix whose result has so many rows and columns (of gradients that of the forward pass),
    /// or why there are none. `step` hears of each.
    fn time_quantizers(
        &mut self,
        shape: [usize; 2],
        all: &[Quantizer],
        step: &mut dyn FnMut(),
    ) -> Result<Vec<Result<f64>>>;

    /// Bytes read and written in a second by a large copy, now.
    fn copy_rate(&mut self) -> Result<f64>;

    /// Rows of A to measure where none are asked for.
    fn default_ms(&self) -> Vec<usize>;

    /// Finds the best formulation and algorithm for each shape and gives the file of records as JSON.
    fn tune(
        &mut self,
        problems: &[([usize; 3], Pair)],
        out: DType,
        step: &mut dyn FnMut(String),
    ) -> std::result::Result<String, Failure>;
}

/// Opens the device that was asked for; where nothing was, the CPU if no GPU answers.
pub fn open(choice: DeviceChoice) -> std::result::Result<Box<dyn Device>, Failure> {
    match choice {
        DeviceChoice::Cpu => Ok(cpu::open(None)),
        DeviceChoice::Cuda(ordinal) => open_cuda(ordinal),
        DeviceChoice::Auto => Ok(open_cuda(0).unwrap_or_else(|reason| cpu::open(Some(reason.into_message())))),
    }
}

#[cfg(feature = "cuda")]
fn open_cuda(ordinal: usize) -> std::result::Result<Box<dyn Device>, Failure> {
    Ok(cuda::open(ordinal)?)
}

#[cfg(not(feature = "cuda"))]
fn open_cuda(_ordinal: usize) -> std::result::Result<Box<dyn Device>, Failure> {
    Err(Failure::Use("this program was built without the feature `cuda`; build it with default features".into()))
}
