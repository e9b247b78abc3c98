//! How much signal the products keep, beside f64 sums and the layer on the CPU.

use ndarray::Array2;
use scaled_gemm::reference::{self, sqnr_db};
use scaled_gemm::{DType, DelayedScaling, Handle, Linear, LinearRecipe, TensorScaling};

use super::SHAPES;
use crate::common::*;
use crate::linear::{Data, Gradients, Target, Uploaded};

const MANY: usize = 512;

const CURRENT: LinearRecipe = LinearRecipe::Fp8Tensor(TensorScaling::Current);

/// Y, dX and dW of a pass, the second of a layer with delayed scaling, whose factors then come from the same data.
fn passed(handle: &Handle, recipe: LinearRecipe, data: &Data) -> [Array2<f32>; 3] {
    let w = Uploaded::new(handle, &data.w, data.dtype, 0);
    let mut layer = Linear::new(handle, &w.matrix(), recipe, MANY).unwrap();
    let (x, dy) = (Uploaded::new(handle, &data.x, data.dtype, 0), Uploaded::new(handle, &data.dy, data.dtype, 0));
    let [mut y, mut dx] = [&data.dy, &data.x].map(|like| Target::new(handle, data.dtype, MANY, like.ncols(), 0));
    let mut saved = layer.saved_input(handle).unwrap();
    let mut gradients = Gradients::new(handle, &layer, false, 0);
    for _ in 0..=usize::from(recipe.delayed().is_some()) {
        layer.update_scales(handle).unwrap();
        layer.refresh(handle, &w.matrix()).unwrap();
        layer.zero_gradients(handle, gradients.views()).unwrap();
        layer.forward_saving_into(handle, &x.matrix(), y.matrix(), &mut saved).unwrap();
        layer.backward_into(handle, &dy.matrix(), &saved, dx.matrix(), gradients.views()).unwrap();
    }
    [y.read(handle), dx.read(handle), gradients.read(handle).0]
}

/// The same products of the same codes on the CPU: what they keep is no matter of the GPU.
fn passed_on_the_cpu(recipe: LinearRecipe, data: &Data) -> [Array2<f32>; 3] {
    let mut layer = reference::Linear::new(data.w.view(), data.dtype, recipe).unwrap();
    let (y, saved) = layer.forward_saving(data.x.view()).unwrap();
    let mut gradients = layer.zero_gradients();
    let dx = layer.backward(data.dy.view(), &saved, &mut gradients).unwrap();
    [y, dx, gradients.weight]
}

/// The bounds of issue and reference: 28 dB for E4M3 pairs on normal data, 25 with outliers.
#[test]
fn products_keep_the_signal_that_their_codes_allow() {
    let Some(handle) = handle() else { return };
    let asked = [
        (LinearRecipe::Bf16, [48.0, 48.0, 100.0], [48.0, 48.0, 100.0]),
        (LinearRecipe::Fp8Blockwise, [28.0; 3], [25.0; 3]),
        (LinearRecipe::Fp8Row, [28.0; 3], [25.0; 3]),
        (CURRENT, [28.0, 24.0, 24.0], [25.0, 23.0, 23.0]),
        (LinearRecipe::Nvfp4Row, [17.0, 48.0, 100.0], [13.0, 48.0, 100.0]),
    ];
    // Delayed scaling keeps what current scaling does: below.
    let is_asked = |recipe| asked.iter().any(|(asked, ..)| *asked == recipe);
    assert!(LinearRecipe::all().into_iter().all(|recipe| recipe.delayed().is_some() || is_asked(recipe)));
    for (recipe, normal, outliers) in asked {
        for (kind, least) in [(false, normal), (true, outliers)] {
            let data = Data::new(DType::Bf16, SHAPES[0], MANY, kind);
            let wide = |x: &Array2<f32>| x.mapv(f64::from);
            let [x, w, dy] = [&data.x, &data.w, &data.dy].map(wide);
            let exact = [x.dot(&w.t()), dy.dot(&w), dy.t().dot(&x)];
            let of = |found: [Array2<f32>; 3]| -> Vec<f64> {
                let db = |(exact, found): (&Array2<f64>, Array2<f32>)| {
                    let exact: Vec<f64> = exact.iter().copied().collect();
                    sqnr_db(&exact, found.as_slice().unwrap())
                };
                exact.iter().zip(found).map(db).collect()
            };
            let (got, on_cpu) = (of(passed(&handle, recipe, &data)), of(passed_on_the_cpu(recipe, &data)));
            for (got, cpu) in got.iter().zip(on_cpu) {
                // Of exact operands only the order of FP32 sums is left.
                assert!((got - cpu).abs() < 0.1 || got.min(cpu) > 100.0, "{recipe}: {got:.2} dB, {cpu:.2} on the CPU");
            }
            println!("{recipe}, outliers {kind}: {got:.1?} dB");
            assert!(got.iter().zip(&least).all(|(got, least)| got >= least), "{recipe}: {got:.1?}, least {least:?}");
        }
    }
}

/// So it keeps as much: a step that saw the same data gives the factors that current scaling finds.
#[test]
fn delayed_scaling_is_current_scaling_of_what_it_saw() {
    let Some(handle) = handle() else { return };
    let delayed = LinearRecipe::Fp8Tensor(TensorScaling::Delayed(DelayedScaling::default()));
    for outliers in [false, true] {
        let data = Data::new(DType::Bf16, SHAPES[0], MANY, outliers);
        let [found, want] = [delayed, CURRENT].map(|recipe| passed(&handle, recipe, &data));
        assert!(found == want, "outliers {outliers}");
    }
}
