//! The gradient of a bias: every kernel of it once, and no pass over dY of its own where dY is cast.

use scaled_gemm::cudarc::driver::sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL as THREAD_LOCAL;
use scaled_gemm::{DType, KeptInput, Linear, LinearRecipe, VecRef};

use super::{MOST, SHAPES, Uploaded, check_layer, stateless};
use crate::common::*;
use crate::foreign::{foreign, nodes};
use crate::hazards::alone;
use crate::linear::Data;

/// Types of a layer whose dY becomes an operand in other ways: where gradients are products of BF16, that of BF16 is read as it is, others are rounded.
fn types(recipe: LinearRecipe) -> &'static [DType] {
    match recipe.weight_gradient() {
        Some(_) => &[DType::Bf16],
        None => &[DType::Bf16, DType::F16, DType::F32],
    }
}

/// Small, for runs under a sanitizer: each kernel of a layer, of tokens that fill no strip of 128, at two strides.
#[test]
fn each_kernel_once() {
    let Some(handle) = handle() else { return };
    for (i, recipe) in stateless().enumerate() {
        for (j, dtype) in types(recipe).iter().enumerate() {
            let (kept, gap) = (KeptInput::ALL[(i + j) % 2], 8 * ((i + j) % 2));
            check_layer(&handle, recipe, kept, &Data::new(*dtype, SHAPES[0], 129, false), gap);
        }
    }
}

/// By the nodes of graphs: beside the cast of dY there is the sum of the strips alone; where nothing casts dY, the strips' own pass, too.
#[test]
fn the_gradient_of_a_bias_comes_with_the_cast_of_dy() {
    alone(|| {
        let Some(handle) = handle() else { return };
        for recipe in LinearRecipe::all() {
            for dtype in types(recipe) {
                let what = format!("{recipe} in {dtype}");
                let data = Data::new(*dtype, SHAPES[0], 100, false);
                let (w, dy) = (Uploaded::new(&handle, &data.w, *dtype, 0), Uploaded::new(&handle, &data.dy, *dtype, 0));
                let bias = Uploaded::vector(&handle, &data.bias, *dtype);
                let enqueued = |has_bias: bool| {
                    let mut layer = Linear::new(&handle, &w.matrix(), recipe, MOST).unwrap();
                    if has_bias {
                        let bias = VecRef::new(&bias, *dtype, data.bias.len()).unwrap();
                        layer = layer.with_bias(&handle, &bias).unwrap();
                    }
                    let mut into = layer.quantized_gradient(&handle).unwrap();
                    // What the first call loads is there by then.
                    layer.quantize_gradient_into(&handle, &dy.matrix(), &mut into).unwrap();
                    let call = || layer.quantize_gradient_into(&handle, &dy.matrix(), &mut into);
                    nodes(&foreign(&handle, THREAD_LOCAL, call))
                };
                match (recipe.weight_gradient(), dtype) {
                    (None, DType::Bf16) => assert_eq!(enqueued(true), 2, "{what}: strips and their sum"),
                    _ => {
                        let [with, without] = [true, false].map(enqueued);
                        assert!(without > 0 && with == without + 1, "{what}: {with} with a bias, {without} without");
                    }
                }
            }
        }
    });
}
