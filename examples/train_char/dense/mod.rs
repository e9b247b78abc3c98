//! `scaled_gemm`'s linear layer with its FP32 master weight, on the GPU or on the CPU.

mod cpu;
#[cfg(feature = "cuda")]
mod gpu;

use std::fmt;
#[cfg(feature = "cuda")]
use std::rc::Rc;

use ndarray::Array2;
use scaled_gemm::reference::Noise;
use scaled_gemm::{DType, LinearRecipe, Result};
#[cfg(feature = "cuda")]
use scaled_gemm::{Error, Handle};

use crate::layers::Weights;

/// What enters and leaves a linear layer is BF16. Master weights, norms and the residual stream are FP32.
const DTYPE: DType = DType::Bf16;

/// Where linear layers compute; all else is plain code on the CPU.
pub enum Device {
    Cpu,
    #[cfg(feature = "cuda")]
    Gpu(Rc<Handle>),
}

impl Device {
    /// A GPU, or why there is none.
    #[cfg(feature = "cuda")]
    pub fn gpu() -> Result<Self> {
        Ok(Self::Gpu(Rc::new(Handle::new(0)?)))
    }

    /// A GPU where one answers, else the CPU, and why.
    pub fn found() -> Result<(Self, Option<String>)> {
        #[cfg(feature = "cuda")]
        return match Self::gpu() {
            Ok(gpu) => Ok((gpu, None)),
            Err(error @ (Error::NoGpu { .. } | Error::Library { .. })) => Ok((Self::Cpu, Some(error.to_string()))),
            Err(error) => Err(error),
        };
        #[cfg(not(feature = "cuda"))]
        Ok((Self::Cpu, Some("built without the feature \"cuda\"".into())))
    }
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cpu => f.write_str("the CPU"),
            #[cfg(feature = "cuda")]
            Self::Gpu(handle) => handle.device().fmt(f),
        }
    }
}

/// The library's layer, with what it keeps of the forward pass and its gradient.
enum Layer {
    Cpu(Box<cpu::OnCpu>),
    #[cfg(feature = "cuda")]
    Gpu(Box<gpu::OnGpu>),
}

/// `Y = X W^T` with gradients.
pub struct Dense {
    weight: Weights,
    layer: Layer,
}

impl Dense {
    /// For at most so many tokens, of which the CPU need not know.
    #[cfg_attr(not(feature = "cuda"), allow(unused_variables))]
    pub fn new(
        [out, features]: [usize; 2],
        tokens: usize,
        recipe: LinearRecipe,
        noise: &mut Noise,
        device: &Device,
    ) -> Result<Self> {
        let weight = noise.matrix(out, features, DType::F32) / (features as f32).sqrt();
        let layer = match device {
            Device::Cpu => Layer::Cpu(Box::new(cpu::OnCpu::new(&weight, recipe)?)),
            #[cfg(feature = "cuda")]
            Device::Gpu(handle) => Layer::Gpu(Box::new(gpu::OnGpu::new(handle.clone(), &weight, recipe, tokens)?)),
        };
        Ok(Self { layer, weight: Weights::new(weight) })
    }

    pub fn forward(&mut self, x: &Array2<f32>) -> Result<Array2<f32>> {
        match &mut self.layer {
            Layer::Cpu(layer) => layer.forward(x),
            #[cfg(feature = "cuda")]
            Layer::Gpu(layer) => layer.forward(x),
        }
    }

    /// dX of the last forward pass; dW is added up.
    pub fn backward(&mut self, dy: &Array2<f32>) -> Result<Array2<f32>> {
        match &mut self.layer {
            Layer::Cpu(layer) => layer.backward(dy),
            #[cfg(feature = "cuda")]
            Layer::Gpu(layer) => layer.backward(dy),
        }
    }

    /// An optimizer step of the master weight, which the layer takes then.
    pub fn step(&mut self, rate: f32) -> Result<()> {
        self.weight.gradient.assign(&match &mut self.layer {
            Layer::Cpu(layer) => layer.take_gradient(),
            #[cfg(feature = "cuda")]
            Layer::Gpu(layer) => layer.take_gradient()?,
        });
        self.weight.step(rate);
        match &mut self.layer {
            Layer::Cpu(layer) => layer.refresh(&self.weight.value),
            #[cfg(feature = "cuda")]
            Layer::Gpu(layer) => layer.refresh(&self.weight.value),
        }
    }
}
