//! The linear layer on the GPU against the one on the CPU: bytes of quantized operands, products within their bounds, tokens that are no
//! multiple of anything, delayed scaling step by step, a captured training step, memory between guards, and what it refuses.
#![cfg(feature = "cuda")]

#[path = "gpu_linear/bias.rs"]
mod bias;
mod common;
#[path = "common/foreign.rs"]
mod foreign;
#[path = "common/guarded.rs"]
mod guarded;
#[path = "common/hazards.rs"]
mod hazards;
#[path = "gpu_linear/in_place.rs"]
mod in_place;
#[path = "common/linear.rs"]
mod linear;
#[path = "gpu_linear/refreshed.rs"]
mod refreshed;
#[path = "gpu_linear/signal.rs"]
mod signal;

use common::*;
use linear::*;
use ndarray::{Array2, ArrayView2};
use scaled_gemm::reference;
use scaled_gemm::{
    AmaxHistory, DType, DelayedScaling, DelayedState, DeviceBytesMut, Fp8Format, GivenScale, Handle, KeptInput, Linear,
    LinearGradientsInto, LinearRecipe, MatMut, MatRef, Result, SavedInput, TensorScaling, VecRef,
};

/// Multiples of 16, and not of 128; of both.
const SHAPES: [[usize; 2]; 2] = [[144, 272], [128, 256]];
const TOKENS: [usize; 7] = [1, 16, 100, 127, 128, 129, 200];
const MOST: usize = 208;

fn layer(handle: &Handle, data: &Data, recipe: LinearRecipe, kept: KeptInput) -> Linear {
    let w = Uploaded::new(handle, &data.w, data.dtype, 8);
    let bias = Uploaded::vector(handle, &data.bias, data.dtype);
    let bias = VecRef::new(&bias, data.dtype, data.bias.len()).unwrap();
    let layer = Linear::new(handle, &w.matrix(), recipe, MOST).unwrap();
    layer.with_bias(handle, &bias).unwrap().with_kept_input(handle, kept).unwrap()
}

fn stateless() -> impl Iterator<Item = LinearRecipe> {
    LinearRecipe::all().into_iter().filter(|recipe| recipe.delayed().is_none())
}

/// One forward and two backward passes, everything checked; gives dW's bits.
fn check_layer(handle: &Handle, recipe: LinearRecipe, kept: KeptInput, data: &Data, gap: usize) -> Vec<u32> {
    let (tokens, [out, features], dtype) = (data.x.nrows(), data.shape(), data.dtype);
    let context = format!("{recipe} {dtype}, {tokens} tokens, {features} -> {out}, kept {kept}");
    let [forward, input, weight] = pairs(recipe, data);
    let mut layer = layer(handle, data, recipe, kept);
    for (at, found) in layer.quantized_weight().into_iter().enumerate() {
        match ([&forward, &input][at], found) {
            (Pair::Quantized(_, want), Some(found)) => {
                assert_device_bits(handle, found, want, &format!("{context}: W {at}"));
            }
            (Pair::Bf16(..), None) => {}
            _ => panic!("{context}: W {at} is in another form"),
        }
    }
    let (x, dy) = (Uploaded::new(handle, &data.x, dtype, gap), Uploaded::new(handle, &data.dy, dtype, gap));
    let mut y = Target::new(handle, dtype, tokens, out, gap);
    let mut saved = layer.saved_input(handle).unwrap();
    layer.forward_saving_into(handle, &x.matrix(), y.matrix(), &mut saved).unwrap();
    let bias = Some((&data.bias[..], dtype));
    let found = y.read(handle);
    assert_product(&forward, &found, dtype, None, bias, &format!("{context}: Y"));
    let mut again = Target::new(handle, dtype, tokens, out, gap);
    layer.forward_into(handle, &x.matrix(), again.matrix()).unwrap();
    assert_eq!(again.read(handle), found, "{context}: Y once more");
    assert_eq!(saved.tokens(), tokens);
    match (&weight, saved.transposed().unwrap()) {
        (Pair::Quantized(_, want), Some(found)) => assert_device_bits(handle, &found, want, &format!("{context}: X^T")),
        (_, None) => assert!(kept == KeptInput::HighPrecision || matches!(weight, Pair::Bf16(..))),
        (Pair::Bf16(..), Some(_)) => panic!("{context}: X is quantized"),
    }

    let mut gradients = Gradients::new(handle, &layer, true, gap);
    let mut dx = Target::new(handle, dtype, tokens, features, gap);
    layer.backward_into(handle, &dy.matrix(), &saved, dx.matrix(), gradients.views()).unwrap();
    assert_product(&input, &dx.read(handle), dtype, None, None, &format!("{context}: dX"));
    let (first, first_bias) = gradients.read(handle);
    assert_product(&weight, &first, DType::F32, None, None, &format!("{context}: dW"));
    for (j, (found, col)) in first_bias.iter().zip(data.dy.columns()).enumerate() {
        let exact = col.iter().map(|v| f64::from(*v)).sum::<f64>();
        // A sum in f64 in some order, one rounding, and one of 0 + it.
        let size = col.iter().map(|v| f64::from(v.abs())).sum::<f64>();
        let tolerance = 2f64.powi(-24) * exact.abs() + tokens as f64 * 2f64.powi(-52) * size;
        assert!((f64::from(*found) - exact).abs() <= tolerance, "{context}: db {j}: {found}, {exact}");
    }

    // A second micro-batch, in parts, is added.
    let mut quantized = layer.quantized_gradient(handle).unwrap();
    layer.quantize_gradient_into(handle, &dy.matrix(), &mut quantized).unwrap();
    match (&input, &weight, quantized.operands().unwrap()) {
        (Pair::Quantized(rows, _), Pair::Quantized(turned, _), Some([found, found_turned])) => {
            assert_device_bits(handle, &found, rows, &format!("{context}: dY"));
            assert_device_bits(handle, &found_turned, turned, &format!("{context}: dY^T"));
        }
        (Pair::Bf16(..), Pair::Bf16(..), None) => {}
        _ => panic!("{context}: dY is in another form"),
    }
    layer.weight_gradient_into(handle, &quantized, &saved, gradients.views()).unwrap();
    let mut once_more = Target::new(handle, dtype, tokens, features, gap);
    layer.input_gradient_into(handle, &quantized, once_more.matrix()).unwrap();
    assert_eq!(once_more.read(handle), dx.read(handle), "{context}: dX once more");
    let (sum, sum_bias) = gradients.read(handle);
    assert_product(&weight, &sum, DType::F32, Some(&first), None, &format!("{context}: dW + dW"));
    assert!(sum_bias.iter().zip(&first_bias).all(|(sum, first)| *sum == first + first), "{context}: db + db");
    first.iter().map(|v| v.to_bits()).collect()
}

#[test]
fn each_recipe_gives_the_products_of_the_operands_of_the_cpu() {
    let Some(handle) = handle() else { return };
    for recipe in stateless() {
        for (shape, tokens) in SHAPES.into_iter().flat_map(|shape| TOKENS.map(|tokens| (shape, tokens))) {
            let data = Data::new(DType::Bf16, shape, tokens, false);
            let gap = if tokens % 2 == 0 { 0 } else { 8 };
            let [high, quantized] = KeptInput::ALL.map(|kept| check_layer(&handle, recipe, kept, &data, gap));
            assert!(high == quantized, "{recipe}, {tokens} tokens: dW depends on how X is kept");
        }
    }
}

#[test]
fn any_type_is_a_type_of_a_layer() {
    let Some(handle) = handle() else { return };
    for dtype in [DType::F16, DType::F32] {
        for recipe in stateless() {
            let data = Data::new(dtype, SHAPES[0], 100, false);
            for kept in KeptInput::ALL {
                check_layer(&handle, recipe, kept, &data, 8);
            }
        }
    }
}

fn delayed(rule: AmaxHistory) -> LinearRecipe {
    LinearRecipe::Fp8Tensor(TensorScaling::Delayed(DelayedScaling::new(3, 1, rule).unwrap()))
}

/// Factors and histories are the CPU layer's after every step, bit for bit, and products those of operands by these factors.
#[test]
fn delayed_scaling_is_that_of_the_cpu_step_by_step() {
    let Some(handle) = handle() else { return };
    for (rule, kept) in AmaxHistory::ALL.into_iter().flat_map(|rule| KeptInput::ALL.map(|kept| (rule, kept))) {
        let mut data = Data::new(DType::Bf16, SHAPES[0], 100, false);
        let mut gpu = layer(&handle, &data, delayed(rule), kept);
        gpu.prepare(&handle, 100).unwrap();
        let cpu = reference::Linear::new(data.w.view(), data.dtype, delayed(rule)).unwrap();
        let mut cpu = cpu.with_bias(data.bias.clone()).unwrap();
        let mut saved = gpu.saved_input(&handle).unwrap();
        let (original_x, original_dy) = (data.x.clone(), data.dy.clone());
        let mut weight_factor = 1.0;
        for step in 0..9 {
            let growth = [1.0, 32.0, 0.5, 0.0078125, 2.0][step % 5];
            (data.x, data.dy) = (&original_x * growth, &original_dy / growth);
            let states = gpu.delayed_states(&handle).unwrap().unwrap();
            assert_eq!(Some(&states), cpu.delayed_states().as_ref(), "step {step}");
            // Some steps have no tokens.
            if step % 4 != 3 {
                let [of_x, _, of_dy] = states.map(|state| GivenScale::Encode(state.encode));
                let of_w = GivenScale::Encode(weight_factor);
                let given = |x: ArrayView2<f32>, format, factor| {
                    reference::quantize_tensor(x.as_standard_layout().view(), format, factor).unwrap().0
                };
                let (e4m3, e5m2) = (Fp8Format::E4M3, Fp8Format::E5M2);
                let (x, dy) = (padded(&data.x), padded(&data.dy));
                let pairs = [
                    Pair::Quantized(given(data.x.view(), e4m3, of_x), given(data.w.view(), e4m3, of_w)),
                    Pair::Quantized(given(data.dy.view(), e5m2, of_dy), given(data.w.t(), e4m3, of_w)),
                    Pair::Quantized(given(dy.t(), e5m2, of_dy), given(x.t(), e4m3, of_x)),
                ];
                let (x, dy) =
                    (Uploaded::new(&handle, &data.x, data.dtype, 0), Uploaded::new(&handle, &data.dy, data.dtype, 0));
                let mut y = Target::new(&handle, data.dtype, 100, 144, 0);
                let mut dx = Target::new(&handle, data.dtype, 100, 272, 0);
                gpu.forward_saving_into(&handle, &x.matrix(), y.matrix(), &mut saved).unwrap();
                let bias = Some((&data.bias[..], data.dtype));
                assert_product(&pairs[0], &y.read(&handle), data.dtype, None, bias, &format!("step {step}: Y"));
                // Evaluation of something else leaves no trace.
                let large = Uploaded::new(&handle, &(&data.x * 1024.0), data.dtype, 0);
                gpu.forward_into(&handle, &large.matrix(), y.matrix()).unwrap();
                let mut gradients = Gradients::new(&handle, &gpu, true, 0);
                gpu.backward_into(&handle, &dy.matrix(), &saved, dx.matrix(), gradients.views()).unwrap();
                assert_product(&pairs[1], &dx.read(&handle), data.dtype, None, None, &format!("step {step}: dX"));
                let dw = gradients.read(&handle).0;
                assert_product(&pairs[2], &dw, DType::F32, None, None, &format!("step {step}: dW, kept {kept}"));
                cpu.forward_saving(data.x.view()).unwrap();
                cpu.quantize_gradient(data.dy.view()).unwrap();
            }
            gpu.update_scales(&handle).unwrap();
            cpu.update_scales();
            // Some steps leave the weight as it is.
            if step % 3 != 2 {
                data.w = (&data.w * 1.5).mapv(|v| round_to(data.dtype, v));
                weight_factor = cpu.delayed_states().unwrap()[1].encode;
                gpu.refresh(&handle, &Uploaded::new(&handle, &data.w, data.dtype, 8).matrix()).unwrap();
                cpu.refresh(data.w.view()).unwrap();
            }
        }
        // A saved state, on another layer.
        let states = gpu.delayed_states(&handle).unwrap().unwrap();
        let mut other = layer(&handle, &data, delayed(rule), kept);
        other.set_delayed_states(&handle, &states).unwrap();
        assert_eq!(other.delayed_states(&handle).unwrap().unwrap(), states);
    }
}

/// A backward pass that follows an update has the factor of its forward pass.
#[test]
fn scales_that_change_between_the_passes_change_no_gradient() {
    let Some(handle) = handle() else { return };
    let data = Data::new(DType::Bf16, SHAPES[0], 129, true);
    let [high, quantized] = KeptInput::ALL.map(|kept| {
        let mut layer = layer(&handle, &data, delayed(AmaxHistory::Max), kept);
        let (x, dy) = (Uploaded::new(&handle, &data.x, data.dtype, 0), Uploaded::new(&handle, &data.dy, data.dtype, 0));
        let mut saved = layer.saved_input(&handle).unwrap();
        let (mut y, mut dx) =
            (Target::new(&handle, data.dtype, 129, 144, 0), Target::new(&handle, data.dtype, 129, 272, 0));
        layer.forward_saving_into(&handle, &x.matrix(), y.matrix(), &mut saved).unwrap();
        layer.update_scales(&handle).unwrap();
        let mut gradients = Gradients::new(&handle, &layer, true, 0);
        layer.backward_into(&handle, &dy.matrix(), &saved, dx.matrix(), gradients.views()).unwrap();
        gradients.read(&handle)
    });
    assert!(high == quantized);
}

/// A training step in a graph, with a weight that changes between launches, gives the bits of eager steps.
#[test]
fn a_captured_step_is_the_eager_one() {
    let Some(handle) = handle() else { return };
    let tokens = 100;
    for (recipe, kept) in LinearRecipe::all().into_iter().flat_map(|recipe| KeptInput::ALL.map(|kept| (recipe, kept))) {
        let data = Data::new(DType::Bf16, SHAPES[0], tokens, false);
        let weights: Vec<_> = (1..4).map(|i| data.w.mapv(|v| round_to(data.dtype, v * i as f32))).collect();
        let run = |graphed: bool| {
            let mut layer = layer(&handle, &data, recipe, kept);
            layer.prepare(&handle, tokens).unwrap();
            let (x, dy) =
                (Uploaded::new(&handle, &data.x, data.dtype, 0), Uploaded::new(&handle, &data.dy, data.dtype, 0));
            let mut w = Uploaded::new(&handle, &data.w, data.dtype, 0);
            let mut y = Target::new(&handle, data.dtype, tokens, 144, 0);
            let mut dx = Target::new(&handle, data.dtype, tokens, 272, 0);
            let mut gradients = Gradients::new(&handle, &layer, true, 0);
            let mut saved = layer.saved_input(&handle).unwrap();
            let mut step = |w: &Uploaded, y: &mut Target, dx: &mut Target, gradients: &mut Gradients| {
                layer.update_scales(&handle)?;
                layer.refresh(&handle, &w.matrix())?;
                layer.zero_gradients(&handle, gradients.views())?;
                layer.forward_saving_into(&handle, &x.matrix(), y.matrix(), &mut saved)?;
                layer.backward_into(&handle, &dy.matrix(), &saved, dx.matrix(), gradients.views())
            };
            let graph = graphed.then(|| {
                capture_owned(&handle, || step(&w, &mut y, &mut dx, &mut gradients)).expect("a step is captured")
            });
            let mut results = Vec::new();
            for new in &weights {
                handle.write(&mut w.buffer.view_mut(), &bytes_of(data.dtype, new)).unwrap();
                match &graph {
                    Some(graph) => handle.launch(graph).unwrap(),
                    None => step(&w, &mut y, &mut dx, &mut gradients).unwrap(),
                }
                results.push((y.read(&handle), dx.read(&handle), gradients.read(&handle)));
            }
            (results, layer.delayed_states(&handle).unwrap())
        };
        assert!(run(false) == run(true), "{recipe}, kept {kept}");
    }
}

#[test]
fn no_tokens_are_no_error() {
    let Some(handle) = handle() else { return };
    for (recipe, kept) in LinearRecipe::all().into_iter().flat_map(|recipe| KeptInput::ALL.map(|kept| (recipe, kept))) {
        let data = Data::new(DType::Bf16, SHAPES[0], 0, false);
        let mut layer = layer(&handle, &data, recipe, kept);
        layer.prepare(&handle, 0).unwrap();
        let states = layer.delayed_states(&handle).unwrap();
        let (x, dy) = (Uploaded::new(&handle, &data.x, data.dtype, 0), Uploaded::new(&handle, &data.dy, data.dtype, 0));
        let (mut y, mut dx) =
            (Target::new(&handle, data.dtype, 0, 144, 0), Target::new(&handle, data.dtype, 0, 272, 0));
        let mut saved = layer.saved_input(&handle).unwrap();
        layer.forward_saving_into(&handle, &x.matrix(), y.matrix(), &mut saved).unwrap();
        let mut gradients = Gradients::new(&handle, &layer, true, 4);
        layer.backward_into(&handle, &dy.matrix(), &saved, dx.matrix(), gradients.views()).unwrap();
        let (weight, bias) = gradients.read(&handle);
        assert!(weight.iter().chain(&bias).all(|v| *v == 0.0), "{recipe}");
        assert_eq!((y.read(&handle).len(), dx.read(&handle).len()), (0, 0));
        assert_eq!(layer.delayed_states(&handle).unwrap(), states, "{recipe}");
    }
}

#[track_caller]
fn refused<T>(result: Result<T>, words: &[&str]) {
    let text = result.err().expect("not refused").to_string();
    assert!(words.iter().all(|word| text.contains(word)), "{words:?} in {text}");
}

/// What a pass of many tokens leaves behind is no part of a later one of few: neither codes of theirs, nor their scales (of a whole X, of rows, or the tail of a tile of block scales), which would show in the bits.
#[test]
fn fewer_tokens_after_more_read_nothing_of_those() {
    let Some(handle) = handle() else { return };
    for (recipe, kept) in LinearRecipe::all().into_iter().flat_map(|recipe| KeptInput::ALL.map(|kept| (recipe, kept))) {
        let shape = SHAPES[0];
        let many = Data::new(DType::Bf16, shape, TOKENS[6], true);
        let w = Uploaded::new(&handle, &many.w, many.dtype, 0);
        let make = || {
            let layer = Linear::new(&handle, &w.matrix(), recipe, MOST).unwrap();
            layer.with_kept_input(&handle, kept).unwrap()
        };
        let mut used = make();
        let mut saved = used.saved_input(&handle).unwrap();
        for tokens in TOKENS.into_iter().rev() {
            let data = Data::new(DType::Bf16, shape, tokens, true);
            let (x, dy) =
                (Uploaded::new(&handle, &data.x, data.dtype, 0), Uploaded::new(&handle, &data.dy, data.dtype, 0));
            let pass = |layer: &mut Linear, saved: &mut SavedInput| {
                let [mut y, mut dx] =
                    [&data.dy, &data.x].map(|like| Target::new(&handle, data.dtype, tokens, like.ncols(), 0));
                layer.forward_saving_into(&handle, &x.matrix(), y.matrix(), saved).unwrap();
                let mut gradients = Gradients::new(&handle, layer, false, 0);
                layer.backward_into(&handle, &dy.matrix(), saved, dx.matrix(), gradients.views()).unwrap();
                (y.read(&handle), dx.read(&handle), gradients.read(&handle).0)
            };
            let mut fresh = make();
            let mut fresh_saved = fresh.saved_input(&handle).unwrap();
            let (got, want) = (pass(&mut used, &mut saved), pass(&mut fresh, &mut fresh_saved));
            assert!(got == want, "{recipe}, kept {kept}, {tokens} tokens");
        }
    }
}

/// A layer keeps the plans that it was prepared with, for each number of tokens, whatever its handle forgets: then a capture still finds them.
#[test]
fn prepared_products_are_not_forgotten() {
    let Some(handle) = handle() else { return };
    for recipe in [LinearRecipe::Fp8Blockwise, LinearRecipe::Bf16] {
        // The second is no multiple of anything: its products go through scratch memory.
        let counts = [100, 101];
        let made = counts.map(|tokens| Data::new(DType::Bf16, SHAPES[0], tokens, false));
        let mut prepared = layer(&handle, &made[0], recipe, KeptInput::Quantized);
        counts.iter().for_each(|&tokens| prepared.prepare(&handle, tokens).unwrap());
        forget_products(&handle);
        for (data, tokens) in made.iter().zip(counts) {
            let what = format!("{recipe}, {tokens} tokens");
            let captured = pass_of(&handle, &mut prepared, data, true);
            assert_eq!(handle.cached_plans(), 0, "{what}");
            // Not prepared, from what the handle has.
            let mut plain = layer(&handle, &made[0], recipe, KeptInput::Quantized);
            assert!(captured == pass_of(&handle, &mut plain, data, false), "{what}");
            forget_products(&handle);
        }
        // Without scratch memory a capture finds none, if the product needs any, until the layer is prepared again.
        handle.trim_scratch().unwrap();
        counts.iter().for_each(|&tokens| prepared.prepare(&handle, tokens).unwrap());
        for data in &made {
            let captured = pass_of(&handle, &mut prepared, data, true);
            assert!(captured == pass_of(&handle, &mut prepared, data, false), "{recipe}, after trim_scratch");
        }
    }
}

type Passed = (Array2<f32>, Array2<f32>, (Array2<f32>, Vec<f32>));

/// Y, dX, dW and the gradient of the bias, of eager passes or of a graph of them.
fn pass_of(handle: &Handle, layer: &mut Linear, data: &Data, graphed: bool) -> Passed {
    let tokens = data.x.nrows();
    let (x, dy) = (Uploaded::new(handle, &data.x, data.dtype, 0), Uploaded::new(handle, &data.dy, data.dtype, 0));
    let [mut y, mut dx] = [&data.dy, &data.x].map(|like| Target::new(handle, data.dtype, tokens, like.ncols(), 0));
    let mut saved = layer.saved_input(handle).unwrap();
    let mut gradients = Gradients::new(handle, layer, true, 0);
    let mut pass = || {
        layer.forward_saving_into(handle, &x.matrix(), y.matrix(), &mut saved)?;
        layer.backward_into(handle, &dy.matrix(), &saved, dx.matrix(), gradients.views())
    };
    if graphed {
        let graph = capture_owned(handle, pass).unwrap();
        handle.launch(&graph).unwrap();
    } else {
        pass().unwrap();
    }
    (y.read(handle), dx.read(handle), gradients.read(handle))
}

/// The handle has planned as many other products as it remembers, and its plans of quantized ones are cleared.
fn forget_products(handle: &Handle) {
    let ones = |rows| Uploaded::new(handle, &Array2::ones((rows, 16)), DType::Bf16, 0);
    let mut other = Linear::new(handle, &ones(16).matrix(), LinearRecipe::Bf16, 70).unwrap();
    for tokens in 1..=70 {
        let mut y = Target::new(handle, DType::Bf16, tokens, 16, 0);
        other.forward_into(handle, &ones(tokens).matrix(), y.matrix()).unwrap();
    }
    handle.clear_plans();
}

/// An amax that a refused pass had found would decide scales for as long as the window is. Refused are rows, and a first one, that no product stores.
#[test]
fn a_refused_pass_leaves_no_amax() {
    let Some(handle) = handle() else { return };
    let dtype = DType::Bf16;
    let ones = |rows, cols| Uploaded::new(&handle, &Array2::ones((rows, cols)), dtype, 0);
    let target = |rows, cols| Target::new(&handle, dtype, rows, cols, 0);
    let mut layer = Linear::new(&handle, &ones(32, 48).matrix(), delayed(AmaxHistory::Max), 32).unwrap();
    let mut saved = layer.saved_input(&handle).unwrap();
    let (x, dy) = (ones(5, 48), ones(5, 32));
    let (mut y, mut dx, mut gradients) = (target(5, 49), target(5, 49), Gradients::new(&handle, &layer, false, 0));
    let before = layer.delayed_states(&handle).unwrap();
    let odd = MatMut::new(&mut y.buffer, dtype, 5, 32).unwrap().with_row_stride(49).unwrap();
    refused(layer.forward_saving_into(&handle, &x.matrix(), odd, &mut saved), &["Y", "row stride 49", "16 bytes"]);
    let mut whole = y.buffer.view_mut();
    let odd = MatMut::new(whole.part(8..512).unwrap(), dtype, 5, 32).unwrap();
    refused(layer.forward_saving_into(&handle, &x.matrix(), odd, &mut saved), &["Y", "16-byte aligned"]);
    assert_eq!(layer.delayed_states(&handle).unwrap(), before);
    layer.forward_saving_into(&handle, &x.matrix(), target(5, 32).matrix(), &mut saved).unwrap();
    let before = layer.delayed_states(&handle).unwrap();
    let odd = MatMut::new(&mut dx.buffer, dtype, 5, 48).unwrap().with_row_stride(49).unwrap();
    let odd = layer.backward_into(&handle, &dy.matrix(), &saved, odd, gradients.views());
    refused(odd, &["dX", "row stride 49", "16 bytes"]);
    let mut whole = dx.buffer.view_mut();
    let odd = MatMut::new(whole.part(8..512).unwrap(), dtype, 5, 48).unwrap();
    let odd = layer.backward_into(&handle, &dy.matrix(), &saved, odd, gradients.views());
    refused(odd, &["dX", "16-byte aligned"]);
    let mut whole = gradients.weight.buffer.view_mut();
    let weight = MatMut::new(whole.part(4..7000).unwrap(), DType::F32, 32, 48).unwrap();
    let odd = LinearGradientsInto { weight, bias: None };
    let odd = layer.backward_into(&handle, &dy.matrix(), &saved, target(5, 48).matrix(), odd);
    refused(odd, &["dW", "16-byte aligned"]);
    assert_eq!(layer.delayed_states(&handle).unwrap(), before);
}

#[test]
fn what_does_not_fit_is_refused_and_gradients_stay() {
    let Some(handle) = handle() else { return };
    let (dtype, recipe) = (DType::Bf16, LinearRecipe::Fp8Blockwise);
    let ones = |rows, cols| Uploaded::new(&handle, &Array2::ones((rows, cols)), dtype, 0);
    let target = |rows, cols| Target::new(&handle, dtype, rows, cols, 0);
    let new = |rows, cols, recipe| Linear::new(&handle, &ones(rows, cols).matrix(), recipe, 32);
    refused(new(24, 32, recipe), &["weight of a linear layer: 24 x 32", "multiples of 16", "pad"]);
    refused(new(0, 16, recipe), &["weight of a linear layer", "positive multiples of 16"]);
    let w = ones(32, 48);
    refused(Linear::new(&handle, &w.matrix(), recipe, usize::MAX), &["tokens of a linear layer", "at most"]);
    let bytes = MatRef::new(&w.buffer, DType::E4M3, 32, 48).unwrap();
    refused(Linear::new(&handle, &bytes, recipe, 32), &["e4m3", "bf16"]);

    let mut layer = new(32, 48, recipe).unwrap();
    let bias = ones(1, 48);
    let wrong = VecRef::new(&bias.buffer, dtype, 48).unwrap();
    refused(new(32, 48, recipe).unwrap().with_bias(&handle, &wrong), &["bias: length 48", "must be 32"]);
    let fitting = VecRef::new(&bias.buffer, dtype, 32).unwrap();
    refused(layer.refresh_bias(&handle, &fitting), &["made without one", "with_bias"]);
    refused(layer.refresh(&handle, &ones(48, 32).matrix()), &["48 x 32", "32 x 48"]);
    let f32s = Uploaded::new(&handle, &Array2::ones((32, 48)), DType::F32, 0);
    refused(layer.refresh(&handle, &f32s.matrix()), &["f32", "is not bf16", "master weight"]);
    refused(
        layer.forward_into(&handle, &ones(5, 32).matrix(), target(5, 32).matrix()),
        &["X: 5 x 32", "48 in features"],
    );
    refused(layer.forward_into(&handle, &ones(33, 48).matrix(), target(33, 32).matrix()), &["33 tokens", "at most 32"]);
    refused(
        layer.forward_into(&handle, &ones(5, 48).matrix(), target(6, 32).matrix()),
        &["Y: 6 tokens", "5 tokens of X"],
    );

    // A product that nobody has planned is not planned in a capture, and the capture is not harmed.
    let (x, mut y) = (ones(7, 48), target(7, 32));
    let mut inside = None;
    let captured = capture_owned(&handle, || {
        inside = Some(layer.forward_into(&handle, &x.matrix(), y.matrix()));
        layer.update_scales(&handle)?;
        handle.amax_into(&x.matrix(), &mut DeviceBytesMut::from(&mut y.buffer))
    });
    assert!(captured.is_ok());
    refused(inside.unwrap(), &["captured", "before"]);

    let mut saved = layer.saved_input(&handle).unwrap();
    let (mut dx, mut y) = (target(5, 48), target(5, 32));
    let (mut x, dy) = (ones(5, 48), ones(5, 32));
    let mut gradients = Gradients::new(&handle, &layer, false, 0);
    let unfilled = layer.backward_into(&handle, &dy.matrix(), &saved, dx.matrix(), gradients.views());
    refused(unfilled, &["saved X before anything", "forward_saving_into"]);
    // X in a cudarc slice would not live until the backward pass.
    let slice = upload(&handle, &bytes_of(dtype, &[1.0; 5 * 48]));
    let borrowed = MatRef::new(&slice, dtype, 5, 48).unwrap();
    refused(layer.forward_saving_into(&handle, &borrowed, y.matrix(), &mut saved), &["cudarc slice", "DeviceBuffer"]);
    layer.forward_saving_into(&handle, &x.matrix(), y.matrix(), &mut saved).unwrap();
    let six = layer.backward_into(&handle, &ones(6, 32).matrix(), &saved, target(6, 48).matrix(), gradients.views());
    refused(six, &["saved X: 5 x 48", "6 x 48"]);
    let mut other = new(32, 48, LinearRecipe::Fp8Row).unwrap();
    let theirs = other.backward_into(&handle, &dy.matrix(), &saved, dx.matrix(), gradients.views());
    refused(theirs, &["of a layer of fp8-blockwise in bf16", "fp8-row in bf16"]);
    refused(other.forward_saving_into(&handle, &x.matrix(), y.matrix(), &mut saved), &["fp8-blockwise", "saved_input"]);
    let mut small = target(1, 1536);
    let narrow = LinearGradientsInto { weight: f32s_of(&mut small), bias: None };
    refused(
        layer.backward_into(&handle, &dy.matrix(), &saved, dx.matrix(), narrow),
        &["gradients: 16 x 48", "32 x 48"],
    );
    // What is found wrong only where dX is written leaves them alone, too.
    let mut wide = target(5, 49);
    let odd = MatMut::new(&mut wide.buffer, dtype, 5, 48).unwrap().with_row_stride(49).unwrap();
    refused(layer.backward_into(&handle, &dy.matrix(), &saved, odd, gradients.views()), &["row stride 49"]);
    let over = MatMut::new(&mut x.buffer, dtype, 5, 48).unwrap();
    refused(
        layer.backward_into(&handle, &dy.matrix(), &saved, over, gradients.views()),
        &["dX", "overlap the saved X"],
    );
    assert!(gradients.read(&handle).0.iter().all(|v| *v == 0.0));
    // Nor may a dW lie where X does.
    let mut square = new(32, 16, recipe).unwrap();
    let mut saved = square.saved_input(&handle).unwrap();
    let (mut x, mut y, dy, mut dx) = (ones(32, 32), target(32, 32), ones(32, 32), target(32, 16));
    let seen = MatRef::new(&x.buffer, dtype, 32, 16).unwrap();
    square.forward_saving_into(&handle, &seen, y.matrix(), &mut saved).unwrap();
    let mut quantized = square.quantized_gradient(&handle).unwrap();
    square.quantize_gradient_into(&handle, &dy.matrix(), &mut quantized).unwrap();
    let over = LinearGradientsInto { weight: MatMut::new(&mut x.buffer, DType::F32, 32, 16).unwrap(), bias: None };
    refused(square.weight_gradient_into(&handle, &quantized, &saved, over), &["dW", "overlap the saved X"]);
    let over = LinearGradientsInto { weight: MatMut::new(&mut x.buffer, DType::F32, 32, 16).unwrap(), bias: None };
    refused(square.backward_into(&handle, &dy.matrix(), &saved, dx.matrix(), over), &["dW", "overlap the saved X"]);

    // Nor, where gradients are products of BF16, where dY does, which is read then.
    let mut plain = new(32, 16, LinearRecipe::Bf16).unwrap();
    let mut saved = plain.saved_input(&handle).unwrap();
    let (x, mut y, mut dy) = (ones(32, 16), target(32, 32), ones(32, 32));
    plain.forward_saving_into(&handle, &x.matrix(), y.matrix(), &mut saved).unwrap();
    let mut shared = plain.quantized_gradient(&handle).unwrap();
    plain.quantize_gradient_into(&handle, &dy.matrix(), &mut shared).unwrap();
    let over = LinearGradientsInto { weight: MatMut::new(&mut dy.buffer, DType::F32, 32, 16).unwrap(), bias: None };
    refused(plain.weight_gradient_into(&handle, &shared, &saved, over), &["dW", "overlap the dY"]);
    let over = MatMut::new(&mut dy.buffer, dtype, 32, 16).unwrap();
    refused(plain.input_gradient_into(&handle, &shared, over), &["dX", "overlap the dY"]);
    assert_eq!(handle.read::<u16>(&dy.buffer.view()).unwrap()[..1024], [0x3F80; 1024], "dY is as it was");

    // Each handle has a stream and a workspace of its own.
    let second = Handle::new(0).unwrap();
    let foreign = layer.forward_into(&second, &x.matrix(), y.matrix());
    refused(foreign, &["a linear layer on another handle", "made for handle"]);
    refused(layer.set_delayed_states(&handle, &std::array::from_fn(|_| state())), &["fp8-blockwise", "leave it out"]);
    assert!(layer.delayed_states(&handle).unwrap().is_none());
    let mut delayed = new(32, 48, delayed(AmaxHistory::Max)).unwrap();
    let before = delayed.delayed_states(&handle).unwrap();
    let short = delayed.set_delayed_states(&handle, &std::array::from_fn(|_| state()));
    refused(short, &["amax history of X: 2 steps", "3 of the recipe's window"]);
    assert_eq!(delayed.delayed_states(&handle).unwrap(), before);
}

fn state() -> DelayedState {
    DelayedState { encode: 1.0, history: vec![0.0; 2] }
}

/// 16 x 48 of FP32 in a target of BF16.
fn f32s_of(target: &mut Target) -> MatMut<'_> {
    MatMut::new(&mut target.buffer, DType::F32, 16, 48).unwrap()
}
