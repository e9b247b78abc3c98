//! Weight and bias that are refreshed in place, by themselves and in a captured graph.

use ndarray::{Array2, s};
use scaled_gemm::{DType, Handle, KeptInput, Linear, QuantizedGradient, Result, VecRef};

use super::{SHAPES, Target, Uploaded, layer, stateless};
use crate::common::*;
use crate::linear::Data;

/// Y and dX of a layer, which read both forms of the weight.
struct Passes<'d> {
    x: &'d Uploaded,
    dy: &'d Uploaded,
    y: Target,
    dx: Target,
}

impl Passes<'_> {
    fn enqueue(&mut self, handle: &Handle, layer: &mut Linear, quantized: &mut QuantizedGradient) -> Result<()> {
        layer.forward_into(handle, &self.x.matrix(), self.y.matrix())?;
        layer.quantize_gradient_into(handle, &self.dy.matrix(), quantized)?;
        layer.input_gradient_into(handle, quantized, self.dx.matrix())
    }

    fn read(&self, handle: &Handle) -> [Array2<f32>; 2] {
        [self.y.read(handle), self.dx.read(handle)]
    }
}

/// The GPU's counterpart of the test of this name in tests/linear_reference.rs.
#[test]
fn a_refreshed_layer_is_one_made_of_the_new_weight() {
    let Some(handle) = handle() else { return };
    let (tokens, [out, features], dtype) = (100, SHAPES[0], DType::Bf16);
    for recipe in stateless() {
        let old = Data::new(dtype, [out, features], tokens, false);
        let mut new = Data::new(dtype, [out, features], tokens, false);
        // Other codes in each tile, and other scales.
        new.w = old.w.slice(s![..;-1, ..]).mapv(|v| round_to(dtype, -1.7 * v));
        new.bias = old.bias.iter().map(|v| round_to(dtype, 2.0 - v)).collect();
        let [x, dy] = [&old.x, &old.dy].map(|x| Uploaded::new(&handle, x, dtype, 0));
        let passes = || {
            let [y, dx] = [out, features].map(|cols| Target::new(&handle, dtype, tokens, cols, 0));
            Passes { x: &x, dy: &dy, y, dx }
        };
        let by_layer_of = |data: &Data| {
            let mut layer = layer(&handle, data, recipe, KeptInput::HighPrecision);
            let (mut passes, mut quantized) = (passes(), layer.quantized_gradient(&handle).unwrap());
            passes.enqueue(&handle, &mut layer, &mut quantized).unwrap();
            passes.read(&handle)
        };
        let [before, want] = [&old, &new].map(by_layer_of);
        assert!(before.iter().zip(&want).all(|(before, want)| before != want), "{recipe}: nothing to see");

        for captured in [false, true] {
            let what = format!("{recipe}, captured: {captured}");
            let mut refreshed = layer(&handle, &old, recipe, KeptInput::HighPrecision);
            refreshed.prepare(&handle, tokens).unwrap();
            let (mut passes, mut quantized) = (passes(), refreshed.quantized_gradient(&handle).unwrap());
            passes.enqueue(&handle, &mut refreshed, &mut quantized).unwrap();
            assert!(passes.read(&handle) == before, "{what}, before");
            let mut w = Uploaded::new(&handle, &old.w, dtype, 8);
            let mut bias = Uploaded::vector(&handle, &old.bias, dtype);
            let mut step = |w: &Uploaded, bias: &scaled_gemm::DeviceBuffer, passes: &mut Passes<'_>| {
                refreshed.refresh(&handle, &w.matrix())?;
                refreshed.refresh_bias(&handle, &VecRef::new(bias, dtype, out)?)?;
                passes.enqueue(&handle, &mut refreshed, &mut quantized)
            };
            let graph = captured.then(|| capture_owned(&handle, || step(&w, &bias, &mut passes)).unwrap());
            let rows = Uploaded::new(&handle, &new.w, dtype, 8);
            handle.write(&mut w.buffer.view_mut(), &handle.read_bytes(&rows.buffer.view()).unwrap()).unwrap();
            handle.write(&mut bias.view_mut(), &bytes_of(dtype, &new.bias)).unwrap();
            match &graph {
                Some(graph) => handle.launch(graph).unwrap(),
                None => step(&w, &bias, &mut passes).unwrap(),
            }
            assert!(passes.read(&handle) == want, "{what}");
        }
    }
}
