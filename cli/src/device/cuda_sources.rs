//! Casts from every source on a GPU, matrices in host memory.

use ndarray::Array2;
use scaled_gemm::checkpoint::PlainRows;
use scaled_gemm::reference::{ClampCounts, RmsNorm, Swiglu};
use scaled_gemm::{
    CastGroup, CastMatrix, CastRecipe, CastScales, CastScheme, CastSource, CodeFormat, DType, DeviceBuffer,
    DeviceBytes, DeviceBytesMut, GivenScale, Handle, HostCastMatrix, HostQuantMatrix, MatMut, MatRef, QuantMatrix,
    Recipe, Result, RmsNormArgs, RowIndex, SourceActivation, SwigluGradientsInto, SwigluSource, VecRef,
};

use super::sources::{Counting, GatedInput, Gradients, HostSource, HostValues, Inexact, NormCast, Part, Sources, Wide};
use crate::data::to_bytes;
use crate::quantizers::Function;

/// The options of SwiGLU on the device.
struct Options {
    clamp: Option<f32>,
    weights: Option<DeviceBuffer>,
    experts: Option<DeviceBuffer>,
}

impl Options {
    fn upload(handle: &Handle, options: &Swiglu<'_>) -> Result<Self> {
        let words = |experts: &[i32]| experts.iter().map(|e| e.cast_unsigned()).collect::<Vec<u32>>();
        Ok(Self {
            clamp: options.clamp,
            weights: options.weights.map(|weights| handle.upload(weights)).transpose()?,
            experts: options.experts.map(|experts| handle.upload(&words(experts))).transpose()?,
        })
    }

    fn set<'a>(&'a self, source: SwigluSource<'a>) -> Result<SwigluSource<'a>> {
        let mut source = source;
        if let Some(clamp) = self.clamp {
            source = source.with_clamp(clamp)?;
        }
        if let Some(weights) = &self.weights {
            source = source.with_weights(VecRef::new(weights, DType::F32, weights.len() / 4)?)?;
        }
        if let Some(experts) = &self.experts {
            source = source.with_experts(experts)?;
        }
        Ok(source)
    }
}

/// A handle, for casts from every source.
pub struct OnGpu<'a>(pub &'a Handle);

impl OnGpu<'_> {
    fn upload(&self, x: Wide<'_>) -> Result<DeviceBuffer> {
        self.0.upload(&to_bytes(x.values, x.dtype))
    }

    fn download(&self, data: &DeviceBuffer, (rows, cols): (usize, usize), dtype: DType) -> Result<Array2<f32>> {
        Ok(PlainRows::new(dtype, rows, cols, self.0.read_bytes(&data.view())?)?.to_f32())
    }

    fn floats(&self, data: &DeviceBuffer) -> Result<Vec<f32>> {
        self.0.read::<f32>(&data.view())
    }

    /// Calls `run` with the source on the device; says what a clamp has changed.
    fn with_source<T>(
        &self,
        source: &HostSource<'_>,
        run: impl FnOnce(CastSource<'_>) -> Result<T>,
    ) -> Result<(T, ClampCounts)> {
        let handle = self.0;
        let there = match source.values {
            HostValues::Coded(q) => q.rows(),
            HostValues::Plain(x)
            | HostValues::Swiglu(x, ..)
            | HostValues::Activated(x, _)
            | HostValues::Normed(x, ..) => x.values.nrows(),
        };
        let rows = source.rows.map(|rows| RowIndex::new(handle, rows, there)).transpose()?;
        let gathered = |source: CastSource<'_>| match &rows {
            Some(rows) => source.gathered(rows).and_then(run),
            None => run(source),
        };
        let none = ClampCounts::default();
        let (x, dims) = match source.values {
            HostValues::Coded(q) => {
                let q = CastMatrix::from_host(handle, q)?;
                return Ok((gathered((&q).into())?, none));
            }
            HostValues::Plain(x)
            | HostValues::Swiglu(x, ..)
            | HostValues::Activated(x, _)
            | HostValues::Normed(x, ..) => (x, x.values.dim()),
        };
        let data = self.upload(x)?;
        let matrix = MatRef::new(&data, x.dtype, dims.0, dims.1)?;
        match source.values {
            HostValues::Swiglu(_, options, counting) => {
                let options = Options::upload(handle, &options)?;
                let mut counts = handle.upload(&[0u32; 6])?;
                let swiglu = options.set(SwigluSource::new(&matrix)?)?;
                let swiglu = if counting == Counting::Counted { swiglu.with_counts(&mut counts)? } else { swiglu };
                let done = gathered(swiglu.into())?;
                let words = handle.read::<u32>(&counts.view())?;
                let number = |at: usize| u64::from(words[2 * at]) | u64::from(words[2 * at + 1]) << 32;
                let [left_above, right_above, right_below] = [0, 1, 2].map(number);
                Ok((done, ClampCounts { left_above, right_above, right_below }))
            }
            HostValues::Activated(_, function) => {
                Ok((gathered(CastSource::activated(&matrix, activation(function)))?, none))
            }
            HostValues::Normed(_, of_rows, of_columns) => {
                let (of_rows, of_columns) = (handle.upload(of_rows)?, handle.upload(of_columns)?);
                let rstd = VecRef::new(&of_rows, DType::F32, dims.0)?;
                let weight = VecRef::new(&of_columns, DType::F32, dims.1)?;
                Ok((gathered(CastSource::normed(&matrix, rstd, weight)?)?, none))
            }
            HostValues::Plain(_) | HostValues::Coded(_) => Ok((gathered((&matrix).into())?, none)),
        }
    }

    /// Quantizes a source with the scale of the whole matrix; gives the largest magnitude where that of FP8 is given as an encode factor.
    fn quantize_with_scale(
        &self,
        source: CastSource<'_>,
        recipe: Recipe,
        given: GivenScale,
        out: &mut QuantMatrix,
    ) -> Result<Option<f32>> {
        let number = self.0.upload(&[*given.number()])?;
        let wanted = matches!(given, GivenScale::Encode(_));
        let given = given.with_number(DeviceBytes::from(&number));
        let Recipe::Fp8(fp8) = recipe else {
            self.0.quantize_source_nvfp4_into(source, recipe, &given, out)?;
            return Ok(None);
        };
        let mut amax = self.0.upload(&[0.0f32])?;
        let mut bytes = DeviceBytesMut::from(&mut amax);
        self.0.quantize_source_tensor_into(source, fp8.format, &given, out, wanted.then_some(&mut bytes))?;
        Ok(if wanted { self.floats(&amax)?.first().copied() } else { None })
    }

    /// Calls `run` with a norm; gives what it wrote beside the cast.
    fn with_norm(
        &self,
        x: Wide<'_>,
        norm: &RmsNorm<'_>,
        run: impl FnOnce(RmsNormArgs<'_>) -> Result<()>,
    ) -> Result<(Option<Array2<f32>>, Vec<f32>)> {
        let (rows, cols) = x.values.dim();
        let (data, weight) = (self.upload(x)?, self.0.upload(norm.weight)?);
        let matrix = MatRef::new(&data, x.dtype, rows, cols)?;
        let mut rstd = self.0.alloc(4 * rows)?;
        let weight = VecRef::new(&weight, DType::F32, cols)?;
        let args = RmsNormArgs::new(&matrix, weight, norm.epsilon)?.with_rstd(&mut rstd)?;
        let Some(residual) = norm.residual else {
            run(args)?;
            return Ok((None, self.floats(&rstd)?));
        };
        let mut sum = self.0.upload(&to_bytes(residual, x.dtype))?;
        run(args.with_updated_residual(MatMut::new(&mut sum, x.dtype, rows, cols)?)?)?;
        Ok((Some(self.download(&sum, (rows, cols), x.dtype)?), self.floats(&rstd)?))
    }
}

pub(super) fn activation(function: Function) -> SourceActivation {
    match function {
        Function::Silu => SourceActivation::Silu,
        Function::Gelu => SourceActivation::Gelu,
        Function::GeluTanh => SourceActivation::GeluTanh,
    }
}

impl OnGpu<'_> {
    /// The gradients of SwiGLU, into what is there.
    fn backward(
        &self,
        x: GatedInput<'_>,
        gradient: Wide<'_>,
        options: &Swiglu<'_>,
        into: SwigluGradientsInto<'_>,
    ) -> Result<()> {
        let handle = self.0;
        let (rows, half) = gradient.values.dim();
        let options = Options::upload(handle, options)?;
        let g = self.upload(gradient)?;
        let g = MatRef::new(&g, gradient.dtype, rows, half)?;
        match x {
            GatedInput::Plain(x) => {
                let data = self.upload(x)?;
                let matrix = MatRef::new(&data, x.dtype, rows, 2 * half)?;
                handle.swiglu_backward(options.set(SwigluSource::new(&matrix)?)?, &g, into)
            }
            GatedInput::Coded(q) => {
                let q = CastMatrix::from_host(handle, q)?;
                handle.swiglu_backward(options.set(SwigluSource::of_codes(&q)?)?, &g, into)
            }
        }
    }
}

impl Sources for OnGpu<'_> {
    fn cast_source(
        &mut self,
        source: &HostSource<'_>,
        part: Part<'_>,
        recipe: CastRecipe,
    ) -> Result<(HostCastMatrix, ClampCounts)> {
        let (handle, scheme) = (self.0, recipe.scheme());
        self.with_source(source, |source| {
            let (rows, cols) = (source.rows(), source.cols());
            let mut out = CastMatrix::zeros(handle, scheme, rows, cols)?;
            match part {
                Part::Whole => handle.cast_into(source, recipe, &mut out)?,
                Part::Scales => handle.cast_scales_into(source, recipe, &mut out)?,
                Part::Codes(scales) => {
                    let codes = vec![0; scheme.code_bytes(rows, cols)];
                    let given = HostCastMatrix::from_logical(scheme, rows, cols, codes, scales.to_vec())?;
                    handle.write(&mut out.scales_mut(), &given.device_scales())?;
                    handle.cast_with_scales_into(source, &mut out)?;
                }
            }
            out.to_host(handle)
        })
    }

    fn quantize_source(
        &mut self,
        source: &HostSource<'_>,
        recipe: Recipe,
        given: Option<GivenScale>,
    ) -> Result<(HostQuantMatrix, Option<f32>)> {
        let handle = self.0;
        let (made, _) = self.with_source(source, |source| {
            let mut out = QuantMatrix::zeros(handle, recipe.scheme(), source.rows(), source.cols())?;
            let amax = match given {
                Some(given) => self.quantize_with_scale(source, recipe, given, &mut out)?,
                None => {
                    handle.quantize_source_into(source, recipe, &mut out)?;
                    None
                }
            };
            Ok((out.to_host(handle)?, amax))
        })?;
        Ok(made)
    }

    fn refuses_recipes(&self) -> bool {
        true
    }

    // As `Kernels::are_few` of the library says: four blocks for each multiprocessor, one for each row.
    fn many_rows(&self) -> Option<usize> {
        Some((4 * self.0.device().sm_count as usize).next_multiple_of(32) + 16)
    }

    fn fp4_to_fp8(&mut self, q: &HostCastMatrix, count: Inexact) -> Result<(HostCastMatrix, Option<u32>)> {
        let handle = self.0;
        let there = CastMatrix::from_host(handle, q)?;
        let to = CastScheme::new(CodeFormat::E4M3, CastGroup::Group1x128)?;
        let mut out = CastMatrix::zeros(handle, to.with_scales(CastScales::Ue8m0), q.rows(), q.cols())?;
        if count == Inexact::Uncounted {
            handle.fp4_to_fp8_into(&there, &mut out, None)?;
            return Ok((out.to_host(handle)?, None));
        }
        let mut counted = handle.upload(&[0u32])?;
        handle.fp4_to_fp8_into(&there, &mut out, Some(&mut DeviceBytesMut::from(&mut counted)))?;
        Ok((out.to_host(handle)?, handle.read::<u32>(&counted.view())?.first().copied()))
    }

    fn rms_norm_cast(&mut self, x: Wide<'_>, norm: &RmsNorm<'_>, recipe: CastRecipe) -> Result<NormCast> {
        let (rows, cols) = x.values.dim();
        let mut out = CastMatrix::zeros(self.0, recipe.scheme(), rows, cols)?;
        let (sum, rstd) = self.with_norm(x, norm, |args| self.0.rms_norm_cast_into(args, recipe, &mut out))?;
        Ok(NormCast { cast: out.to_host(self.0)?, sum, rstd })
    }

    fn rms_norm_quantize(
        &mut self,
        x: Wide<'_>,
        norm: &RmsNorm<'_>,
        recipe: Recipe,
        given: Option<GivenScale>,
    ) -> Result<HostQuantMatrix> {
        let (rows, cols) = x.values.dim();
        let mut out = QuantMatrix::zeros(self.0, recipe.scheme(), rows, cols)?;
        self.with_norm(x, norm, |args| match given {
            Some(given) => self.quantize_with_scale(args.into(), recipe, given, &mut out).map(drop),
            None => self.0.rms_norm_quantize_into(args, recipe, &mut out),
        })?;
        out.to_host(self.0)
    }

    fn swiglu_backward(
        &mut self,
        x: GatedInput<'_>,
        gradient: Wide<'_>,
        options: &Swiglu<'_>,
        recipe: CastRecipe,
    ) -> Result<Gradients> {
        let handle = self.0;
        let (rows, half) = gradient.values.dim();
        let mut dx = CastMatrix::zeros(handle, recipe.scheme(), rows, 2 * half)?;
        let (mut wide, mut out) = (handle.alloc(4 * rows * half)?, handle.alloc(2 * rows * half)?);
        let mut weights = handle.alloc(4 * rows)?;
        let into = SwigluGradientsInto {
            x: Some((recipe, &mut dx).into()),
            x_bf16: Some(MatMut::new(&mut wide, DType::Bf16, rows, 2 * half)?),
            out: Some(MatMut::new(&mut out, DType::Bf16, rows, half)?),
            weights: Some((&mut weights).into()),
        };
        self.backward(x, gradient, options, into)?;
        Ok(Gradients {
            x: dx.to_host(handle)?,
            x_bf16: self.download(&wide, (rows, 2 * half), DType::Bf16)?,
            out: self.download(&out, (rows, half), DType::Bf16)?,
            weights: self.floats(&weights)?,
        })
    }
    fn swiglu_backward_quantize(
        &mut self,
        x: GatedInput<'_>,
        gradient: Wide<'_>,
        options: &Swiglu<'_>,
        recipe: Recipe,
    ) -> Result<HostQuantMatrix> {
        let (rows, half) = gradient.values.dim();
        let mut dx = QuantMatrix::zeros(self.0, recipe.scheme(), rows, 2 * half)?;
        self.backward(
            x,
            gradient,
            options,
            SwigluGradientsInto { x: Some((recipe, &mut dx).into()), ..Default::default() },
        )?;
        dx.to_host(self.0)
    }
}
