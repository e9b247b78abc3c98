//! The CPU: the library's reference, on all cores.

use std::ops::Range;
use std::path::Path;
use std::time::{Duration, Instant};

use ndarray::{Array2, ArrayView2, s};
use scaled_gemm::checkpoint::PlainRows;
use scaled_gemm::pair::{check_output, check_pair, check_shape};
use scaled_gemm::reference::{self, Accumulator, CastInput, Gelu, GemmInputs, HostOperand, RmsNorm, Swiglu, rows_of};
use scaled_gemm::{
    CastRecipe, DType, Error, GivenScale, HostCastMatrix, HostQuantMatrix, Operand, Recipe, Result, Scheme,
};

use super::check::sampled_error;
use super::sources::{OnCpu, Sources};
use super::{Activations, Caster, DecodeTime, Device, HostA, Pair, PairTime, Support};
use crate::args::AccumulationChoice;
use crate::data::normal;
use crate::memory;
use crate::output::{Failure, OR_CPU, count};
use crate::quantizers::{Gate, Producer, Quantizer, chosen_rows, experts, has_one_scale};
use crate::target::Target;

/// Bytes of the buffer whose copy is the roof: larger than the caches of most machines.
const COPY_BYTES: usize = 128 << 20;

struct Cpu {
    cores: usize,
    /// Why no GPU, where one was looked for.
    because: Option<String>,
}

pub fn open(because: Option<String>) -> Box<dyn Device> {
    Box::new(Cpu { cores: std::thread::available_parallelism().map_or(1, |n| n.get()), because })
}

/// Median microseconds of at least three runs, and of more where they are short.
fn median_us<T>(mut run: impl FnMut() -> Result<T>) -> Result<f64> {
    run()?;
    let mut times = Vec::new();
    let begin = Instant::now();
    while times.len() < 3 || (times.len() < 50 && begin.elapsed() < Duration::from_millis(300)) {
        let start = Instant::now();
        std::hint::black_box(run()?);
        times.push(start.elapsed().as_secs_f64() * 1e6);
    }
    times.sort_by(f64::total_cmp);
    Ok(reference::median(&times).unwrap_or(f64::NAN))
}

impl Device for Cpu {
    fn name(&self) -> &'static str {
        "cpu"
    }

    fn title(&self) -> String {
        format!("cpu, {}", count(self.cores, "core", "cores"))
    }

    fn described(&self) -> String {
        let because = self.because.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
        format!("{}{because}", self.title())
    }

    fn check_memory(&self, [m, n, k]: [usize; 3], out: DType) -> std::result::Result<(), Failure> {
        // The operands in FP32 and as codes, and D twice.
        let [m, n, k] = [m, n, k].map(|d| d as u64);
        let need = 5 * (m + n) * k + 8 * m * n;
        memory::require(&format!("{m} x {n} x {k} to {out}"), need, memory::available(), "this machine")
    }

    fn facts(&self) -> Vec<(&'static str, String)> {
        vec![
            ("cores", self.cores.to_string()),
            ("architecture", std::env::consts::ARCH.into()),
            ("program", concat!("scaled-gemm ", env!("CARGO_PKG_VERSION")).into()),
        ]
    }

    fn set_accumulation(&mut self, accumulation: AccumulationChoice) -> Result<()> {
        match accumulation {
            AccumulationChoice::Precise => Ok(()),
            AccumulationChoice::Fast => Err(Error::unsupported(
                "--accumulation fast on the CPU",
                "its sums are FP32",
                "leave it out, or use --device cuda",
            )),
        }
    }

    fn set_batch_invariant(&mut self) -> Result<()> {
        Err(Error::unsupported(
            "--batch-invariant on the CPU",
            "only kernels for GPUs promise it",
            "leave it out, or use --device cuda: on an sm_90 for FP8 operands, on an sm_80 or newer for weights that are decoded",
        ))
    }

    /// For `tune` alone, which has nothing to tune here and says so.
    fn set_chained(&mut self) {}

    fn use_tuning(&mut self, _path: &Path) -> Result<()> {
        Err(Error::unsupported(
            "a tuning file on the CPU",
            "it holds GPU algorithms",
            "leave it out, or use --device cuda",
        ))
    }

    fn part_bytes(&self) -> usize {
        2 << 20
    }

    fn divides_stochastic(&self) -> bool {
        true
    }

    /// One: it takes all cores for each part.
    fn casters(&self) -> Vec<Box<dyn Caster>> {
        vec![self.caster()]
    }

    fn caster(&self) -> Box<dyn Caster> {
        Box::new(CpuCaster::default())
    }

    fn sources(&self) -> Box<dyn Sources + '_> {
        Box::new(OnCpu)
    }

    fn gemm(&mut self, inputs: &GemmInputs<'_>) -> Result<Array2<f32>> {
        reference::scaled_gemm(inputs)
    }

    fn explained(&self) -> Option<&str> {
        None
    }

    fn arithmetic(&self, _a: Operand, _b: Scheme) -> (Accumulator, Gelu) {
        (Accumulator::Fp32, Gelu::Ieee)
    }

    fn support(&mut self, [m, n, k]: [usize; 3], a: Operand, b: Scheme, out: DType) -> Support {
        let checked = check_pair(a, b, "cpu").and(check_output(a, b, out)).and(check_shape(m, n, k, out));
        match checked {
            Ok(()) => Support { ways: vec!["reference".into()], refused: Vec::new() },
            Err(e) => Support { ways: Vec::new(), refused: vec![("reference".into(), e.to_string())] },
        }
    }

    fn baseline(&self) -> String {
        "F32 product of ndarray (matrixmultiply), one thread".into()
    }

    fn method(&self) -> String {
        "median of at least 3 runs, operands as the last run left them in the caches".into()
    }

    fn check_baseline(&mut self, _mnk: [usize; 3]) -> Result<()> {
        Ok(())
    }

    fn time_pair(&mut self, [m, n, k]: [usize; 3], pair: Pair, out: DType) -> Result<Vec<PairTime>> {
        let (x, w) = (normal(m, k, DType::Bf16, 1), normal(n, k, DType::Bf16, 2));
        let b = reference::quantize(w.view(), DType::Bf16, pair.b)?;
        let quantize = |recipe| reference::quantize(x.view(), DType::Bf16, recipe);
        let a = match pair.a {
            Activations::Quantized(recipe) => HostA::Quantized(quantize(recipe)?),
            Activations::Plain(dtype) => HostA::Plain(x.clone(), dtype),
        };
        let gemm = |a: HostOperand<'_>| reference::scaled_gemm(&GemmInputs::new(a, &b, out));
        let d = gemm(a.operand())?;
        let rows_of_a = |rows: Range<usize>| {
            Ok(match &a {
                HostA::Quantized(q) => HostA::Quantized(rows_of(q, rows.start, rows.len())?),
                HostA::Plain(x, dtype) => HostA::Plain(x.slice(s![rows, ..]).to_owned(), *dtype),
            })
        };
        let rows_of_d = |rows| Ok(d.slice(s![rows, ..]).to_owned());
        let arithmetic = self.arithmetic(pair.a.operand(), pair.b.scheme());
        let error = sampled_error(m, rows_of_a, &b, out, arithmetic, rows_of_d)?;
        let baseline_us = median_us(|| Ok(x.dot(&w.t())))?;
        let gemm_us = median_us(|| gemm(a.operand()))?;
        let (quantize_us, both_us) = match pair.a {
            Activations::Quantized(recipe) => {
                (median_us(|| quantize(recipe))?, median_us(|| gemm((&quantize(recipe)?).into()))?)
            }
            Activations::Plain(_) => (0.0, gemm_us),
        };
        let (formulation, clock) = ("reference".into(), String::new());
        let cadence = "sustained";
        Ok(vec![PairTime { cadence, baseline_us, gemm_us, quantize_us, both_us, formulation, error, clock }])
    }

    fn time_quantizers(
        &mut self,
        [rows, cols]: [usize; 2],
        all: &[Quantizer],
        step: &mut dyn FnMut(),
    ) -> Result<Vec<Result<f64>>> {
        let gated = normal(rows, 2 * cols, DType::Bf16, 1);
        let x = gated.slice(s![.., ..cols]).to_owned();
        let cast = |y: ArrayView2<'_, f32>, recipe| reference::cast(&y.into(), recipe);
        let coded = |scheme| cast(x.view(), CastRecipe::new(scheme).power_of_two());
        let weight = vec![1.0f32; cols];
        let norm = |residual: bool| RmsNorm {
            weight: &weight,
            epsilon: 1e-6,
            residual: residual.then(|| gated.slice(s![.., cols..])),
            dtype: DType::Bf16,
        };
        let (weights, experts, chosen) = (vec![0.5f32; rows], experts(rows), chosen_rows(rows));
        let swiglu = |gate: Gate| Swiglu {
            clamp: gate.clamp(),
            weights: gate.weights().then_some(&weights[..]),
            experts: gate.experts().then_some(&experts[..]),
        };
        // Per channel SwiGLU is read in BF16.
        let produced = |producer, channels: bool| -> Result<Array2<f32>> {
            Ok(match producer {
                Producer::Plain => x.clone(),
                Producer::Activated(function) => function.of(x.view()),
                Producer::Norm { residual } => reference::rms_norm(x.view(), &norm(residual))?.values,
                Producer::Swiglu(gate) => {
                    let (y, _) = reference::swiglu(gated.view(), &swiglu(gate))?;
                    if channels { reference::round_values(y, DType::Bf16) } else { y }
                }
            })
        };
        let time = |quantizer: &Quantizer| match *quantizer {
            Quantizer::Quantize(Producer::Plain, Target::Recipe(recipe)) => {
                median_us(|| reference::quantize(x.view(), DType::Bf16, recipe))
            }
            Quantizer::Both(recipe) => median_us(|| {
                let plain = reference::quantize(x.view(), DType::Bf16, recipe)?;
                Ok((plain, reference::quantize_transposed(x.view(), DType::Bf16, recipe)?))
            }),
            Quantizer::Quantize(Producer::Plain, Target::Cast(recipe)) => median_us(|| cast(x.view(), recipe)),
            Quantizer::Quantize(producer, Target::Recipe(recipe)) => median_us(|| {
                let y = produced(producer, false)?;
                match recipe {
                    Recipe::Fp8(fp8) if has_one_scale(recipe) => {
                        Ok(reference::quantize_tensor(y.view(), fp8.format, GivenScale::Encode(64.0))?.0)
                    }
                    _ if has_one_scale(recipe) => {
                        reference::quantize_with_scale(y.view(), DType::F32, recipe, GivenScale::Amax(8.0))
                    }
                    _ => reference::quantize(y.view(), DType::F32, recipe),
                }
            }),
            Quantizer::Quantize(producer, Target::Cast(recipe)) => {
                median_us(|| cast(produced(producer, recipe.scheme().group().is_per_channel())?.view(), recipe))
            }
            Quantizer::Codes(scheme) => {
                let scales = reference::cast_scales(&x.view().into(), CastRecipe::new(scheme))?;
                median_us(|| reference::cast_with_scales(&x.view().into(), scheme, &scales))
            }
            Quantizer::Scales(scheme) => {
                median_us(|| reference::cast_scales(&x.view().into(), CastRecipe::new(scheme)))
            }
            Quantizer::Again(from, to) => {
                let q = coded(from)?;
                median_us(|| reference::cast(&(&q).into(), CastRecipe::new(to)))
            }
            Quantizer::Chosen(Producer::Plain, to) => {
                let input = CastInput::from(x.view()).gathered(&chosen)?;
                median_us(|| reference::cast(&input, CastRecipe::new(to)))
            }
            // The CPU computes all rows, whichever are chosen.
            Quantizer::Chosen(producer, to) => median_us(|| {
                let y = produced(producer, to.group().is_per_channel())?;
                reference::cast(&CastInput::from(y.view()).gathered(&chosen)?, CastRecipe::new(to))
            }),
            Quantizer::ChosenAgain(from, to) => {
                let q = coded(from)?;
                let input = CastInput::from(&q).gathered(&chosen)?;
                median_us(|| reference::cast(&input, CastRecipe::new(to)))
            }
            Quantizer::Back(from, out) => {
                let q = coded(from)?;
                median_us(|| Ok(reference::cast_back(&q, out)))
            }
            Quantizer::Wide(dtype, to) => {
                let x = normal(rows, cols, dtype, 1);
                median_us(|| cast(x.view(), CastRecipe::new(to)))
            }
            Quantizer::Lossless(from, _) | Quantizer::LosslessCounted(from, _) => {
                let q = coded(from)?;
                median_us(|| reference::fp4_to_fp8(&q))
            }
            // The CPU writes all that there is, whatever is wanted of it.
            Quantizer::Backward { from, gate, to, .. } => {
                quantizer.check_cols(cols)?;
                let q = from.map(|from| cast(gated.view(), CastRecipe::new(from))).transpose()?;
                median_us(|| {
                    let read = q.as_ref().map(|q| reference::cast_back(q, DType::F32));
                    let read = read.as_ref().map_or(gated.view(), |read| read.view());
                    let gradients = reference::swiglu_backward(read, x.view(), &swiglu(gate))?;
                    match to {
                        Target::Cast(recipe) => drop(cast(gradients.x.view(), recipe)?),
                        Target::Recipe(recipe) => drop(reference::quantize(gradients.x.view(), DType::F32, recipe)?),
                    }
                    Ok(())
                })
            }
        };
        Ok(all.iter().map(|quantizer| (time(quantizer), step()).0).collect())
    }

    fn time_decode(&mut self, _: [usize; 3], _: Pair, _: DType) -> Result<DecodeTime> {
        let why = self.because.as_ref().map_or(String::new(), |why| why.replace(OR_CPU, ""));
        let (reason, remedy) = match why.as_str() {
            "" => ("it compares ways of a GPU".to_string(), "use --device cuda, or bench without --decode"),
            why => (
                format!("it compares ways of a GPU, and there is none: {why}"),
                "run it on a machine with a GPU, or bench without --decode",
            ),
        };
        Err(Error::unsupported("bench --decode on the CPU", reason, remedy))
    }

    fn copy_rate(&mut self) -> Result<f64> {
        let source = vec![1u8; COPY_BYTES];
        let mut target = vec![0u8; COPY_BYTES];
        let us = median_us(|| {
            std::hint::black_box(&mut target).copy_from_slice(std::hint::black_box(&source));
            Ok(())
        })?;
        Ok(2.0 * COPY_BYTES as f64 / us * 1e6)
    }

    fn default_ms(&self) -> Vec<usize> {
        vec![1, 16, 128, 512]
    }

    fn tune(
        &mut self,
        _problems: &[([usize; 3], Pair)],
        _out: DType,
        _step: &mut dyn FnMut(String),
    ) -> std::result::Result<String, Failure> {
        let because = self.because.as_ref().map(|why| format!(" ({why})")).unwrap_or_default();
        let because = because.replace(OR_CPU, "");
        Err(Failure::Use(format!(
            "tune chooses among GPU algorithms and the CPU has one; run it on a machine with a GPU{because}"
        )))
    }
}

#[derive(Default)]
struct CpuCaster {
    /// Of the part at hand: kept, since new memory is pages that the system first has to clear.
    values: Vec<f32>,
}

impl CpuCaster {
    fn widen(&mut self, x: &PlainRows) -> ArrayView2<'_, f32> {
        x.widen_into(&mut self.values);
        ArrayView2::from_shape((x.rows(), x.cols()), &self.values).expect("as many values as there are")
    }
}

impl Caster for CpuCaster {
    fn quantize_part(
        &mut self,
        x: &PlainRows,
        recipe: Recipe,
        whole: Option<(GivenScale, usize)>,
        _buffer: Vec<u8>,
    ) -> Result<HostQuantMatrix> {
        let values = self.widen(x);
        match whole {
            Some((whole, first_row)) => reference::quantize_rows(values, x.dtype(), recipe, whole, first_row),
            None => reference::quantize(values, x.dtype(), recipe),
        }
    }

    fn dequantize(&mut self, q: &HostQuantMatrix, out: DType, buffer: Vec<u8>) -> Result<PlainRows> {
        PlainRows::from_f32(reference::dequantize(q, out).view(), out, buffer)
    }

    fn cast(&mut self, x: &PlainRows, recipe: CastRecipe) -> Result<HostCastMatrix> {
        reference::cast(&self.widen(x).into(), recipe)
    }

    fn cast_back(&mut self, q: &HostCastMatrix, out: DType, buffer: Vec<u8>) -> Result<PlainRows> {
        PlainRows::from_f32(reference::cast_back(q, out).view(), out, buffer)
    }
}
