//! What quantizers, casts and producers take on a GPU.

use scaled_gemm::{
    CastMatrix, CastRecipe, CastSource, DType, DeviceBuffer, DeviceBytes, DeviceBytesMut, Extent, GivenScale,
    GradientInto, Handle, KernelFamily, MatMut, MatRef, QuantMatrix, QuantizeTo, Recipe, Result, RmsNormArgs, RowIndex,
    SwigluGradientsInto, SwigluSource, Timing, VecRef,
};

use super::cuda::{Cuda, borrowing};
use super::cuda_sources::activation;
use crate::data::normal_bytes;
use crate::quantizers::{Gate, Producer, Quantizer, chosen_rows, experts, has_one_scale};
use crate::target::Target;

/// What goes with rows: what SwiGLU takes, and which are chosen.
struct OfRows {
    weights: DeviceBuffer,
    experts: DeviceBuffer,
    chosen: RowIndex,
}

impl OfRows {
    fn upload(handle: &Handle, rows: usize) -> Result<Self> {
        let experts: Vec<u32> = experts(rows).into_iter().map(i32::cast_unsigned).collect();
        Ok(Self {
            weights: handle.upload(&vec![0.5f32; rows])?,
            experts: handle.upload(&experts)?,
            chosen: RowIndex::new(handle, &chosen_rows(rows), rows)?,
        })
    }

    /// With what the gate takes; it counts where there are counts.
    fn gate<'a>(
        &'a self,
        source: SwigluSource<'a>,
        gate: Gate,
        counts: Option<&'a mut DeviceBuffer>,
    ) -> Result<SwigluSource<'a>> {
        let mut source = source;
        if let Some(clamp) = gate.clamp() {
            source = source.with_clamp(clamp)?;
        }
        if gate.weights() {
            source = source.with_weights(VecRef::new(&self.weights, DType::F32, self.weights.len() / 4)?)?;
        }
        if gate.experts() {
            source = source.with_experts(&self.experts)?;
        }
        match counts {
            Some(counts) if gate.counts() => source.with_counts(counts),
            _ => Ok(source),
        }
    }
}

/// A producer of a plain matrix, or of a gated one.
fn produced<'a>(
    producer: Producer,
    [plain, gated]: [&'a MatRef<'a>; 2],
    of_rows: &'a OfRows,
    counts: &'a mut DeviceBuffer,
) -> Result<CastSource<'a>> {
    Ok(match producer {
        Producer::Plain | Producer::Norm { .. } => plain.into(),
        Producer::Swiglu(gate) => of_rows.gate(SwigluSource::new(gated)?, gate, Some(counts))?.into(),
        Producer::Activated(function) => CastSource::activated(plain, activation(function)),
    })
}

/// Microseconds of each, or why there are none; see `Device::time_quantizers`.
pub fn time(
    cuda: &Cuda,
    [rows, cols]: [usize; 2],
    all: &[Quantizer],
    step: &mut dyn FnMut(),
) -> Result<Vec<Result<f64>>> {
    let handle = &cuda.handle;
    handle.load_kernels(&[KernelFamily::Fused])?;
    let element = DType::Bf16.bytes();
    // What SwiGLU reads; the others read a part of it.
    let sets = cuda.sets(rows * cols * 3);
    let data = cuda.duplicates(cuda.upload(&normal_bytes(rows, 2 * cols, DType::Bf16, 1))?, sets)?;
    let matrices = |cols| data.iter().map(|x| MatRef::new(x, DType::Bf16, rows, cols)).collect::<Result<Vec<_>>>();
    let (plain, gated) = (matrices(cols)?, matrices(2 * cols)?);
    let number = handle.upload(&[8.0f32])?;
    // Numbers that a norm multiplies columns by, and those of rows.
    let weight = cuda.upload(&normal_bytes(1, cols, DType::Bf16, 2))?;
    let timing = borrowing(Timing::SUSTAINED).over(sets);
    let casts_of = |scheme, cols| -> Result<Vec<CastMatrix>> {
        plain.iter().map(|_| CastMatrix::zeros(handle, scheme, rows, cols)).collect()
    };
    let casts = |scheme| casts_of(scheme, cols);
    // In the basis of the recipe from the start: the graphs that are timed change none.
    let matrices_of = |recipe: Recipe, rows, cols| -> Result<Vec<QuantMatrix>> {
        let zeros = || Ok(QuantMatrix::zeros(handle, recipe.scheme(), rows, cols)?.assume_basis(recipe.basis()));
        plain.iter().map(|_| zeros()).collect()
    };
    let products_of = |recipe, cols| matrices_of(recipe, rows, cols);
    let products = |recipe| products_of(recipe, cols);
    let buffers = |bytes| plain.iter().map(|_| cuda.zeros(bytes)).collect::<Result<Vec<_>>>();
    let coded = |scheme| -> Result<Vec<CastMatrix>> {
        let recipe = CastRecipe::new(scheme).power_of_two();
        plain.iter().map(|x| handle.cast(x, recipe)).collect()
    };
    let of_rows = OfRows::upload(handle, rows)?;
    let counts = || handle.upload(&[0u32; 6]);
    let quantize_source = |source: CastSource<'_>, recipe: Recipe, out: &mut QuantMatrix| match recipe {
        Recipe::Fp8(fp8) if has_one_scale(recipe) => {
            let given = GivenScale::Encode(DeviceBytes::from(&number));
            handle.quantize_source_tensor_into(source, fp8.format, &given, out, None)
        }
        _ if has_one_scale(recipe) => {
            let given = GivenScale::Amax(DeviceBytes::from(&number));
            handle.quantize_source_nvfp4_into(source, recipe, &given, out)
        }
        _ => handle.quantize_source_into(source, recipe, out),
    };
    let norm = |residual: bool, target: Target| {
        let columns = || VecRef::new(&weight, DType::Bf16, cols);
        let mut sums = buffers(if residual { rows * cols * element } else { 0 })?;
        // The sum goes elsewhere: in the residual's place it would grow from call to call.
        let residuals = buffers(if residual { rows * cols * element } else { 0 })?;
        let mut factors = buffers(4 * rows)?;
        match target {
            Target::Cast(recipe) => {
                let mut out = casts(recipe.scheme())?;
                // To tiles and channels it takes a second launch, which reads the factors of rows.
                let one_pass = recipe.scheme().group().extents()[0] == Extent::Elements(1);
                let mut run = |at: usize| {
                    let args = RmsNormArgs::new(&plain[at], columns()?, 1e-6)?;
                    let read = residual.then(|| MatRef::new(&residuals[at], DType::Bf16, rows, cols)).transpose()?;
                    let args = match &read {
                        Some(read) => args.with_residual(read, MatMut::new(&mut sums[at], DType::Bf16, rows, cols)?)?,
                        None => args,
                    };
                    let args = if one_pass { args } else { args.with_rstd(&mut factors[at])? };
                    handle.rms_norm_cast_into(args, recipe, &mut out[at])
                };
                timing.time(handle, |call| run(call % sets))
            }
            Target::Recipe(recipe) => {
                let mut out = products(recipe)?;
                let mut run = |at: usize| {
                    let args = RmsNormArgs::new(&plain[at], columns()?, 1e-6)?;
                    let read = residual.then(|| MatRef::new(&residuals[at], DType::Bf16, rows, cols)).transpose()?;
                    let args = match &read {
                        Some(read) => args.with_residual(read, MatMut::new(&mut sums[at], DType::Bf16, rows, cols)?)?,
                        None => args,
                    };
                    quantize_source(args.with_rstd(&mut factors[at])?.into(), recipe, &mut out[at])
                };
                timing.time(handle, |call| run(call % sets))
            }
        }
    };
    let backward = |from: Option<_>, gate: Gate, to: Target, all: bool| {
        let half = cols;
        let read = from.map(|from| {
            let recipe = CastRecipe::new(from).power_of_two();
            gated.iter().map(|x| handle.cast(x, recipe)).collect::<Result<Vec<_>>>()
        });
        let read = read.transpose()?;
        let (mut dx, mut dx_read) = match to {
            Target::Cast(recipe) => (casts_of(recipe.scheme(), 2 * cols)?, Vec::new()),
            Target::Recipe(recipe) => (Vec::new(), products_of(recipe, 2 * cols)?),
        };
        let beside = usize::from(all);
        let mut wide = buffers(beside * rows * 2 * half * element)?;
        let mut again = buffers(beside * rows * half * element)?;
        let mut weights = buffers((beside * 4 * rows).max(1))?;
        let mut run = |at: usize| {
            let forward = match &read {
                Some(read) => SwigluSource::of_codes(&read[at])?,
                None => SwigluSource::new(&gated[at])?,
            };
            let forward = of_rows.gate(forward, gate, None)?;
            let x: GradientInto<'_> = match to {
                Target::Cast(recipe) => (recipe, &mut dx[at]).into(),
                Target::Recipe(recipe) => (recipe, &mut dx_read[at]).into(),
            };
            let mut into = SwigluGradientsInto { x: Some(x), ..Default::default() };
            if all {
                into.x_bf16 = Some(MatMut::new(&mut wide[at], DType::Bf16, rows, 2 * half)?);
                into.out = Some(MatMut::new(&mut again[at], DType::Bf16, rows, half)?);
                into.weights = Some((&mut weights[at]).into());
            }
            handle.swiglu_backward(forward, &plain[at], into)
        };
        timing.time(handle, |call| run(call % sets))
    };
    let time = |quantizer: &Quantizer| {
        let times = match *quantizer {
            Quantizer::Quantize(Producer::Plain, Target::Recipe(recipe)) => {
                let mut out = products(recipe)?;
                let mut run = |at: usize| handle.quantize_into(&plain[at], recipe, QuantizeTo::Plain(&mut out[at]));
                timing.time(handle, |call| run(call % sets))?
            }
            Quantizer::Both(recipe) => {
                let (mut out, mut turned) = (products(recipe)?, matrices_of(recipe, cols, rows)?);
                let mut run = |at: usize| {
                    handle.quantize_into(&plain[at], recipe, QuantizeTo::Both(&mut out[at], &mut turned[at]))
                };
                timing.time(handle, |call| run(call % sets))?
            }
            Quantizer::Quantize(Producer::Norm { residual }, target) => norm(residual, target)?,
            Quantizer::Quantize(producer, Target::Recipe(recipe)) => {
                let (mut out, mut counts) = (products(recipe)?, counts()?);
                let mut run = |at: usize| {
                    let source = produced(producer, [&plain[at], &gated[at]], &of_rows, &mut counts)?;
                    quantize_source(source, recipe, &mut out[at])
                };
                timing.time(handle, |call| run(call % sets))?
            }
            Quantizer::Quantize(producer, Target::Cast(recipe)) => {
                let (mut out, mut counts) = (casts(recipe.scheme())?, counts()?);
                let mut run = |at: usize| {
                    let source = produced(producer, [&plain[at], &gated[at]], &of_rows, &mut counts)?;
                    handle.cast_into(source, recipe, &mut out[at])
                };
                timing.time(handle, |call| run(call % sets))?
            }
            Quantizer::Codes(scheme) => {
                let mut out: Vec<_> =
                    plain.iter().map(|x| handle.cast(x, CastRecipe::new(scheme))).collect::<Result<_>>()?;
                let mut run = |at: usize| handle.cast_with_scales_into(&plain[at], &mut out[at]);
                timing.time(handle, |call| run(call % sets))?
            }
            Quantizer::Scales(scheme) => {
                let mut out = casts(scheme)?;
                let mut run = |at: usize| handle.cast_scales_into(&plain[at], CastRecipe::new(scheme), &mut out[at]);
                timing.time(handle, |call| run(call % sets))?
            }
            Quantizer::Again(from, to) => {
                let (q, mut out) = (coded(from)?, casts(to)?);
                let mut run = |at: usize| handle.cast_into(&q[at], CastRecipe::new(to), &mut out[at]);
                timing.time(handle, |call| run(call % sets))?
            }
            Quantizer::Chosen(producer, to) => {
                let (mut out, mut counts) = (casts(to)?, counts()?);
                let mut run = |at: usize| {
                    let source = produced(producer, [&plain[at], &gated[at]], &of_rows, &mut counts)?;
                    handle.cast_into(source.gathered(&of_rows.chosen)?, CastRecipe::new(to), &mut out[at])
                };
                timing.time(handle, |call| run(call % sets))?
            }
            Quantizer::ChosenAgain(from, to) => {
                let (q, mut out) = (coded(from)?, casts(to)?);
                let mut run = |at: usize| {
                    let source = CastSource::from(&q[at]).gathered(&of_rows.chosen)?;
                    handle.cast_into(source, CastRecipe::new(to), &mut out[at])
                };
                timing.time(handle, |call| run(call % sets))?
            }
            Quantizer::Back(from, dtype) => {
                let q = coded(from)?;
                let mut y = buffers(rows * cols * dtype.bytes())?;
                let mut run =
                    |at: usize| handle.cast_back_into(&q[at], &mut MatMut::new(&mut y[at], dtype, rows, cols)?);
                timing.time(handle, |call| run(call % sets))?
            }
            Quantizer::Lossless(from, to) => {
                let (q, mut out) = (coded(from)?, casts(to)?);
                timing.time(handle, |call| handle.fp4_to_fp8_into(&q[call % sets], &mut out[call % sets], None))?
            }
            Quantizer::LosslessCounted(from, to) => {
                let (q, mut out) = (coded(from)?, casts(to)?);
                let mut lost = handle.upload(&[0u32])?;
                timing.time(handle, |call| {
                    let at = call % sets;
                    handle.fp4_to_fp8_into(&q[at], &mut out[at], Some(&mut DeviceBytesMut::from(&mut lost)))
                })?
            }
            Quantizer::Wide(dtype, to) => {
                let data = cuda.duplicates(cuda.upload(&normal_bytes(rows, cols, dtype, 1))?, sets)?;
                let x = data.iter().map(|x| MatRef::new(x, dtype, rows, cols)).collect::<Result<Vec<_>>>()?;
                let mut out = casts(to)?;
                let mut run = |at: usize| handle.cast_into(&x[at], CastRecipe::new(to), &mut out[at]);
                timing.time(handle, |call| run(call % sets))?
            }
            Quantizer::Backward { from, gate, to, all } => {
                quantizer.check_cols(cols)?;
                backward(from, gate, to, all)?
            }
        };
        Ok(times.median())
    };
    Ok(all.iter().map(|quantizer| (time(quantizer), step()).0).collect())
}
