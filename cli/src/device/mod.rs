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

use crate::args::{AccumulationChoice, ActivationsChoice, DeviceChoice, scheme};
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
    /// The pairs that weights of these scheme names belong to, with the activations that are asked for.
    pub fn of_schemes(names: &[&str], asked: &[ActivationsChoice]) -> Vec<Self> {
        names.iter().flat_map(|name| Self::of_weights(name, asked)).collect()
    }

    /// Those of one name. Quantized activations are like the weights, or 1x128 where two alike cannot be, or MXFP8 with MXFP4 weights; row scales of
    /// NVFP4 are then for activations, with `nvfp4` weights. Plain BF16 ones multiply weights of every scheme; where nothing is asked for,
    /// those of `nvfp4` and `mxfp4` alone: of FP8 they are for few rows, and each list has many.
    fn of_weights(name: &str, asked: &[ActivationsChoice]) -> Vec<Self> {
        let alike = scheme(name, Fp8Format::E4M3);
        let (a, b) = match alike {
            Scheme::Nvfp4Row => (alike, Scheme::Nvfp4),
            Scheme::Mxfp4 => (Scheme::Mxfp8(Fp8Format::E4M3), alike),
            _ if check_pair(alike, alike, "cpu").is_ok() => (alike, alike),
            _ => (Scheme::Fp8Group1x128(Fp8Format::E4M3), alike),
        };
        let quantized = Self { a: Activations::Quantized(Recipe::new(a)), b: Recipe::new(b) };
        let plain = Self { a: Activations::Plain(DType::Bf16), b: Recipe::new(alike) };
        let of = |choice: &ActivationsChoice| match choice {
            ActivationsChoice::Quantized => quantized,
            ActivationsChoice::Bf16 => plain,
        };
        match (asked, alike) {
            ([], Scheme::Nvfp4 | Scheme::Mxfp4) => vec![quantized, plain],
            ([], _) => vec![quantized],
            // Each once, however often it is asked for.
            _ => {
                let mut pairs: Vec<_> = asked.iter().map(of).collect();
                pairs.dedup_by_key(|pair| pair.name());
                pairs
            }
        }
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

/// Microseconds of a call: behind others as in a captured graph, and as a link of a chain.
pub type PlainChained = [f64; 2];

/// What was measured of one product of few rows, all in turns.
#[derive(Debug, Clone)]
pub struct DecodeTime {
    /// The unquantized product.
    pub baseline_us: PlainChained,
    /// The quantization of A and the product as it is planned; the product where A is plain.
    pub both_us: PlainChained,
    /// Each way that serves; the planned one first.
    pub ways: Vec<(String, PlainChained)>,
    /// Of weights whose codes are repacked, where there is such an order.
    pub repacked: Option<RepackedTime>,
    /// Bytes of the weights: codes and scales.
    pub weight_bytes: usize,
    /// Largest error of checked elements as a fraction of the f64 bound; above 1 is wrong.
    pub error: f64,
}

/// The planned product of repacked weights.
#[derive(Debug, Clone, Copy)]
pub struct RepackedTime {
    /// By itself.
    pub us: PlainChained,
    /// Behind the quantization of A.
    pub both_us: PlainChained,
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

    /// Products are planned as links of chains from now on.
    fn set_chained(&mut self);

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

    /// How the last product was computed and why, where measured choices are in use.
    fn explained(&self) -> Option<&str>;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::scheme_names;

    #[test]
    fn plain_activations_of_fp8_weights_are_there_where_they_are_asked_for() {
        use ActivationsChoice::{Bf16, Quantized};
        let names = |schemes: &[&str], asked: &[ActivationsChoice]| -> Vec<String> {
            Pair::of_schemes(schemes, asked).iter().map(Pair::name).collect()
        };
        let fp8 = ["fp8-row", "fp8-128x128"];
        assert_eq!(names(&fp8, &[]), ["fp8-row x fp8-row", "fp8-1x128 x fp8-128x128"]);
        assert_eq!(names(&fp8, &[Quantized]), names(&fp8, &[]));
        assert_eq!(names(&fp8, &[Bf16]), ["bf16 x fp8-row", "bf16 x fp8-128x128"]);
        assert_eq!(names(&["mxfp8"], &[Quantized, Bf16]), ["mxfp8 x mxfp8", "bf16 x mxfp8"]);
        assert_eq!(names(&["nvfp4"], &[]), ["nvfp4 x nvfp4", "bf16 x nvfp4"]);
        assert_eq!(names(&["nvfp4", "mxfp4"], &[Quantized]), ["nvfp4 x nvfp4", "mxfp8 x mxfp4"]);
        assert_eq!(names(&["nvfp4-row"], &[Quantized, Bf16]), ["nvfp4-row x nvfp4", "bf16 x nvfp4-row"]);
        // All of them multiply, and nothing is there twice.
        let all = Pair::of_schemes(&scheme_names(), &[Quantized, Bf16]);
        for (at, pair) in all.iter().enumerate() {
            check_pair(pair.a.operand(), pair.b.scheme(), "cpu").unwrap();
            assert!(!all[..at].contains(pair), "{}", pair.name());
        }
        assert_eq!(all.len(), 2 * scheme_names().len());
        assert_eq!(Pair::of_schemes(&scheme_names(), &[]).len(), scheme_names().len() + 2);
    }
}
