//! The layer on the GPU. Numbers are copied there and back around each pass, since norms, attention and optimizer are plain code on the CPU; a
//! model that is on the GPU as a whole leaves them there, and captures a step into a graph (`examples/cuda_graph.rs`).

use std::rc::Rc;

use half::bf16;
use ndarray::Array2;
use scaled_gemm::{
    DeviceBuffer, Handle, KeptInput, Linear, LinearGradientsInto, LinearRecipe, MatMut, MatRef, Result, SavedInput,
};

use super::DTYPE;

pub struct OnGpu {
    handle: Rc<Handle>,
    layer: Linear,
    saved: SavedInput,
    /// Features of Y and of X.
    shape: [usize; 2],
    /// BF16, for the most tokens; W, which the layer reads in `refresh` alone.
    x: DeviceBuffer,
    y: DeviceBuffer,
    dy: DeviceBuffer,
    dx: DeviceBuffer,
    w: DeviceBuffer,
    /// FP32, out x in: added up by each backward pass.
    dw: DeviceBuffer,
}

impl OnGpu {
    pub fn new(handle: Rc<Handle>, weight: &Array2<f32>, recipe: LinearRecipe, tokens: usize) -> Result<Self> {
        let (out, features) = weight.dim();
        let w = handle.upload(&narrow(weight))?;
        let layer = Linear::new(&handle, &MatRef::new(&w, DTYPE, out, features)?, recipe, tokens)?;
        // X is written anew by the next forward pass: what dW needs of it, the layer keeps.
        let mut layer = layer.with_kept_input(&handle, KeptInput::Quantized)?;
        layer.prepare(&handle, tokens)?;
        let of = |features: usize| handle.alloc(tokens * features * DTYPE.bytes());
        let (x, y, dy, dx) = (of(features)?, of(out)?, of(out)?, of(features)?);
        let (saved, dw) = (layer.saved_input(&handle)?, handle.alloc(out * features * 4)?);
        Ok(Self { layer, saved, shape: [out, features], x, y, dy, dx, w, dw, handle })
    }

    pub fn forward(&mut self, x: &Array2<f32>) -> Result<Array2<f32>> {
        let (tokens, [out, features]) = (x.nrows(), self.shape);
        self.handle.write(&mut self.x.view_mut(), &narrow(x))?;
        let x = MatRef::new(&self.x, DTYPE, tokens, features)?;
        let y = MatMut::new(&mut self.y, DTYPE, tokens, out)?;
        self.layer.forward_saving_into(&self.handle, &x, y, &mut self.saved)?;
        widened(&self.handle, &self.y, tokens, out)
    }

    pub fn backward(&mut self, dy: &Array2<f32>) -> Result<Array2<f32>> {
        let (tokens, [out, features]) = (dy.nrows(), self.shape);
        self.handle.write(&mut self.dy.view_mut(), &narrow(dy))?;
        let dy = MatRef::new(&self.dy, DTYPE, tokens, out)?;
        let dx = MatMut::new(&mut self.dx, DTYPE, tokens, features)?;
        let gradients = gradients(&mut self.dw, self.shape)?;
        self.layer.backward_into(&self.handle, &dy, &self.saved, dx, gradients)?;
        widened(&self.handle, &self.dx, tokens, features)
    }

    /// dW, which is zero afterwards.
    pub fn take_gradient(&mut self) -> Result<Array2<f32>> {
        let dw = self.handle.read::<f32>(&self.dw.view())?;
        self.layer.zero_gradients(&self.handle, gradients(&mut self.dw, self.shape)?)?;
        Ok(matrix(dw, self.shape))
    }

    /// Takes the weight of an optimizer step.
    pub fn refresh(&mut self, weight: &Array2<f32>) -> Result<()> {
        let [out, features] = self.shape;
        self.handle.write(&mut self.w.view_mut(), &narrow(weight))?;
        self.layer.update_scales(&self.handle)?;
        self.layer.refresh(&self.handle, &MatRef::new(&self.w, DTYPE, out, features)?)
    }
}

fn gradients(dw: &mut DeviceBuffer, [out, features]: [usize; 2]) -> Result<LinearGradientsInto<'_>> {
    Ok(LinearGradientsInto { weight: MatMut::new(dw, scaled_gemm::DType::F32, out, features)?, bias: None })
}

fn narrow(values: &Array2<f32>) -> Vec<bf16> {
    values.iter().map(|v| bf16::from_f32(*v)).collect()
}

/// The first rows of what lies there in BF16.
fn widened(handle: &Handle, from: &DeviceBuffer, rows: usize, cols: usize) -> Result<Array2<f32>> {
    let mut values = vec![bf16::ZERO; rows * cols];
    handle.read_into(&from.view(), &mut values)?;
    Ok(matrix(values.iter().map(|v| v.to_f32()).collect(), [rows, cols]))
}

fn matrix(values: Vec<f32>, shape: [usize; 2]) -> Array2<f32> {
    Array2::from_shape_vec(shape, values).expect("as many numbers as the matrix has")
}
