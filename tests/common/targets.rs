//! What products read, as targets of a source: by which call, and what the quantizer of the stored values gives.
//!
//! Not a module of `common`: the other suites compile without it.
#![allow(dead_code)]

use ndarray::{Array2, ArrayView2};
use scaled_gemm::reference;
use scaled_gemm::{
    BlockScaleRule, CastSource, DType, DeviceBuffer, DeviceBytes, ErrorMath, ErrorMetric, Fp8Format, Fp8Granularity,
    GivenScale, Handle, HostQuantMatrix, Nvfp4Options, Nvfp4Recipe, QuantMatrix, Recipe, Result, Scheme,
};

use crate::common::{assert_device_bits, poisoned_matrix};

/// What a source is quantized to, and by which call.
#[derive(Clone, Copy, Debug)]
pub enum Target {
    Found(Recipe),
    /// With a given second level.
    Level(Recipe, GivenScale),
    /// FP8 with a given scale.
    Scale(Fp8Format, GivenScale),
}

impl Target {
    pub fn scheme(self) -> Scheme {
        match self {
            Self::Found(recipe) | Self::Level(recipe, _) => recipe.scheme(),
            Self::Scale(format, _) => Scheme::Fp8Tensor(format),
        }
    }

    /// What the quantizer of the stored values gives, in FP32 as they are.
    pub fn want(self, values: ArrayView2<f32>) -> HostQuantMatrix {
        match self {
            Self::Found(recipe) => reference::quantize(values, DType::F32, recipe).unwrap(),
            Self::Level(recipe, given) => reference::quantize_with_scale(values, DType::F32, recipe, given).unwrap(),
            Self::Scale(format, given) => reference::quantize_tensor(values, format, given).unwrap().0,
        }
    }

    /// The number that it takes, on the device.
    pub fn number(self, handle: &Handle) -> DeviceBuffer {
        let number = match self {
            Self::Found(_) => 0.0,
            Self::Level(_, given) | Self::Scale(_, given) => *given.number(),
        };
        handle.upload(&[number]).unwrap()
    }

    pub fn run<'a>(
        self,
        handle: &Handle,
        source: impl Into<CastSource<'a>>,
        number: &DeviceBuffer,
        out: &mut QuantMatrix,
    ) -> Result<()> {
        match self {
            Self::Found(recipe) => handle.quantize_source_into(source, recipe, out),
            Self::Level(recipe, given) => {
                let given = given.with_number(DeviceBytes::from(number));
                handle.quantize_source_nvfp4_into(source, recipe, &given, out)
            }
            Self::Scale(format, given) => {
                let given = given.with_number(DeviceBytes::from(number));
                handle.quantize_source_tensor_into(source, format, &given, out, None)
            }
        }
    }

    /// Every byte, padding included, is that of the quantizer.
    pub fn check<'a>(self, handle: &Handle, source: impl Into<CastSource<'a>>, values: ArrayView2<f32>, context: &str) {
        let (rows, cols) = values.dim();
        let context = format!("{rows} x {cols} {context} to {self:?}");
        let mut out = match self {
            // Written by a cast, which leaves padding, zero before it.
            Self::Found(Recipe::Fp8(recipe)) if recipe.granularity == Fp8Granularity::Group1x128 => {
                let others = Array2::from_elem((rows, cols), -1e30);
                QuantMatrix::from_host(handle, &reference::quantize(others.view(), DType::F32, recipe).unwrap())
                    .unwrap()
            }
            _ => poisoned_matrix(handle, self.scheme(), rows, cols),
        };
        let number = self.number(handle);
        self.run(handle, source, &number, &mut out).unwrap_or_else(|e| panic!("{context}: {e}"));
        assert_device_bits(handle, &out, &self.want(values), &context);
    }
}

pub fn nvfp4(scheme: Scheme, options: Nvfp4Options) -> Recipe {
    match scheme {
        Scheme::Nvfp4Row => Nvfp4Recipe::rows(options),
        _ => Nvfp4Recipe::tensor(options),
    }
    .unwrap()
    .into()
}

/// One for each way through a kernel.
pub fn few() -> Vec<Target> {
    let strict = BlockScaleRule::FourOverSix { metric: ErrorMetric::Mse, math: ErrorMath::Strict };
    let fast = BlockScaleRule::FourOverSix { metric: ErrorMetric::Mae, math: ErrorMath::Fast };
    let mut all = vec![
        Target::Scale(Fp8Format::E4M3, GivenScale::Encode(3.7)),
        Target::Scale(Fp8Format::E5M2, GivenScale::Decode(0.11)),
        Target::Found(Recipe::new(Scheme::Mxfp8(Fp8Format::E4M3))),
        Target::Found(Recipe::new(Scheme::Mxfp8(Fp8Format::E5M2))),
        Target::Found(Recipe::new(Scheme::Mxfp4)),
    ];
    for block_scale in [BlockScaleRule::Plain, strict, fast] {
        let options = Nvfp4Options { block_scale, ..Nvfp4Options::PLAIN };
        all.push(Target::Found(nvfp4(Scheme::Nvfp4Row, options)));
        all.push(Target::Level(nvfp4(Scheme::Nvfp4, options), GivenScale::Amax(90.0)));
    }
    all
}
