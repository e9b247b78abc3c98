//! The linear layer on the CPU: its three products against operands quantized by hand and f64 sums, tokens that are no multiple of
//! anything, both forms of a kept input, delayed scaling step by step, and what it refuses.

use ndarray::{Array2, ArrayView2, Axis, concatenate, s};
use scaled_gemm::codec::round_to;
use scaled_gemm::reference::{
    Accumulator, Gelu, GemmInputs, Linear, Noise, SavedInput, amax, delayed_update, gemm_bound, quantize,
    quantize_tensor, quantize_transposed, sqnr_db,
};
use scaled_gemm::{
    AmaxHistory, DType, DelayedScaling, Error, Fp8Format, Fp8Granularity, Fp8Recipe, Fp8Rule, GivenScale,
    HostQuantMatrix, KeptInput, LinearRecipe, Nvfp4Recipe, Recipe, TensorScaling,
};

const IN: usize = 272;
const OUT: usize = 144;
const DTYPE: DType = DType::Bf16;

/// X, W and dY: normal numbers, or with a few that are a hundred times larger.
struct Data {
    x: Array2<f32>,
    w: Array2<f32>,
    dy: Array2<f32>,
    bias: Vec<f32>,
}

fn data(tokens: usize, outliers: bool) -> Data {
    let mut noise = Noise::new(1000 + tokens as u64);
    let mut matrix = |rows, cols| {
        let mut x = noise.matrix(rows, cols, DTYPE);
        if outliers {
            // One number in 512, as activations of trained models have them.
            for v in x.iter_mut() {
                *v *= if noise.below(512) == 0 { 100.0 } else { 1.0 };
            }
            x.mapv_inplace(|v| round_to(DTYPE, v));
        }
        x
    };
    let [x, w, dy] = [matrix(tokens, IN), matrix(OUT, IN), matrix(tokens, OUT)];
    Data { x, w, dy, bias: matrix(1, OUT).into_raw_vec_and_offset().0 }
}

/// The operands of one product, made by hand.
enum Pair {
    Quantized(HostQuantMatrix, HostQuantMatrix),
    Bf16(Array2<f32>, Array2<f32>),
}

/// The recipes of `Y = X W^T`, `dX = dY W` and `dW = dY^T X`, written out: numerics.md 2.4 and 4.
fn recipes(recipe: LinearRecipe) -> [Option<[Recipe; 2]>; 3] {
    let torchao = |granularity| Recipe::from(Fp8Recipe::new(granularity, Fp8Format::E4M3));
    let te =
        |format| Recipe::from(Fp8Recipe::new(Fp8Granularity::Tensor, format).with_rule(Fp8Rule::TransformerEngine));
    let [vector, tile] = [Fp8Granularity::Group1x128, Fp8Granularity::Group128x128].map(torchao);
    // torchao's recipe `rowwise` rounds scales to powers of two.
    let row = Recipe::from(Fp8Recipe::new(Fp8Granularity::Row, Fp8Format::E4M3).power_of_two());
    match recipe {
        LinearRecipe::Bf16 => [None; 3],
        LinearRecipe::Fp8Blockwise => [Some([vector, tile]), Some([vector, tile]), Some([vector, vector])],
        LinearRecipe::Fp8Row => [Some([row, row]); 3],
        LinearRecipe::Fp8Tensor(_) => {
            let backward = Some([te(Fp8Format::E5M2), te(Fp8Format::E4M3)]);
            [Some([te(Fp8Format::E4M3); 2]), backward, backward]
        }
        LinearRecipe::Nvfp4Row => [Some([Nvfp4Recipe::ROWS.into(), Nvfp4Recipe::TENSOR.into()]), None, None],
        other => panic!("{other} has no line here"),
    }
}

/// Rows of zeros up to a multiple of 16.
fn padded(x: &Array2<f32>) -> Array2<f32> {
    let rest = x.nrows().next_multiple_of(16) - x.nrows();
    concatenate![Axis(0), x.view(), Array2::<f32>::zeros((rest, x.ncols()))]
}

fn pairs(recipe: LinearRecipe, data: &Data) -> [Pair; 3] {
    let plain = |x: ArrayView2<f32>, recipe| quantize(x, DTYPE, recipe).unwrap();
    let turned = |x: &Array2<f32>, recipe| quantize_transposed(padded(x).view(), DTYPE, recipe).unwrap();
    let Data { x, w, dy, .. } = data;
    let owned = |x: ArrayView2<f32>| x.as_standard_layout().into_owned();
    let [forward, input, weight] = recipes(recipe);
    [
        forward.map_or_else(
            || Pair::Bf16(x.clone(), w.clone()),
            |[a, b]| Pair::Quantized(plain(x.view(), a), plain(w.view(), b)),
        ),
        input.map_or_else(
            || Pair::Bf16(dy.clone(), owned(w.t())),
            |[a, b]| Pair::Quantized(plain(dy.view(), a), turned(w, b)),
        ),
        weight.map_or_else(
            || Pair::Bf16(owned(dy.t()), owned(x.t())),
            |[a, b]| Pair::Quantized(turned(dy, a), turned(x, b)),
        ),
    ]
}

/// `got` is the product of the pair, plus C and bias, within the bound.
#[track_caller]
fn assert_product(pair: &Pair, got: &Array2<f32>, out: DType, c: Option<&Array2<f32>>, bias: Option<&[f32]>) {
    match pair {
        Pair::Quantized(a, b) => {
            let accumulate = c.map(|c| (1.0, c.view()));
            let bias = bias.map(|bias| (bias, DTYPE));
            let inputs = GemmInputs { accumulate, bias, ..GemmInputs::new(a, b, out) };
            let bound = gemm_bound(&inputs, Accumulator::Fp32, Gelu::Ieee).unwrap();
            for ((at, got), (exact, tolerance)) in got.indexed_iter().zip(bound.exact.iter().zip(&bound.tolerance)) {
                let off = (f64::from(*got) - exact).abs();
                assert!(off <= *tolerance, "{at:?}: {got}, {exact}, off {off:e} of {tolerance:e}");
            }
        }
        Pair::Bf16(a, b) => {
            assert_eq!(got.dim(), (a.nrows(), b.nrows()));
            // k products and their sums, C and bias: each of k + 2 roundings errs by at most u of the sum of magnitudes; then
            // the output's own, of 24 or 8 significant bits.
            let unit = if out == DType::F32 { 2f64.powi(-24) } else { 2f64.powi(-8) };
            for ((i, j), got) in got.indexed_iter() {
                let terms = || a.row(i).into_iter().zip(b.row(j)).map(|(a, b)| f64::from(*a) * f64::from(*b));
                let added = [c.map_or(0.0, |c| c[[i, j]].into()), bias.map_or(0.0, |bias| bias[j].into())];
                let exact = terms().chain(added).sum::<f64>();
                let size = terms().chain(added).map(f64::abs).sum::<f64>();
                let sum = (a.ncols() + 2) as f64 * 2f64.powi(-24) * size;
                let off = (f64::from(*got) - exact).abs();
                assert!(off <= sum + unit * (exact.abs() + sum), "{i}, {j}: {got}, {exact}, off {off:e}");
            }
        }
    }
}

fn layer(recipe: LinearRecipe, data: &Data) -> Linear {
    Linear::new(data.w.view(), DTYPE, recipe).unwrap().with_bias(data.bias.clone()).unwrap()
}

/// All but delayed scaling, whose scales depend on the steps before.
fn stateless() -> impl Iterator<Item = LinearRecipe> {
    LinearRecipe::all().into_iter().filter(|recipe| recipe.delayed().is_none())
}

#[test]
fn all_three_products_are_those_of_operands_quantized_by_hand() {
    for recipe in stateless() {
        for tokens in [1, 127, 128, 200] {
            let data = data(tokens, false);
            let [forward, input, weight] = pairs(recipe, &data);
            let mut layer = layer(recipe, &data);
            let (y, saved) = layer.forward_saving(data.x.view()).unwrap();
            assert_product(&forward, &y, DTYPE, None, Some(&data.bias));
            assert_eq!(layer.forward(data.x.view()).unwrap(), y, "{recipe}");

            let mut gradients = layer.zero_gradients();
            let dx = layer.backward(data.dy.view(), &saved, &mut gradients).unwrap();
            assert_product(&input, &dx, DTYPE, None, None);
            assert_product(&weight, &gradients.weight, DType::F32, None, None);

            // A second micro-batch is added.
            let first = gradients.clone();
            layer.backward(data.dy.view(), &saved, &mut gradients).unwrap();
            assert_product(&weight, &gradients.weight, DType::F32, Some(&first.weight), None);
            for (j, ((sum, first), col)) in gradients.bias.iter().zip(&first.bias).zip(data.dy.columns()).enumerate() {
                let exact = col.iter().map(|v| f64::from(*v)).sum::<f64>();
                // Token after token in f64, rounded once.
                assert_eq!(*first, exact as f32, "{j}");
                assert_eq!(*sum, first + exact as f32, "{j}");
            }
        }
    }
}

/// Signal to noise of Y, dX and dW beside f64 sums of the data as they came.
fn sqnr(recipe: LinearRecipe, outliers: bool) -> [f64; 3] {
    let data = data(512, outliers);
    let mut layer = Linear::new(data.w.view(), DTYPE, recipe).unwrap();
    let (y, saved) = layer.forward_saving(data.x.view()).unwrap();
    let mut gradients = layer.zero_gradients();
    let dx = layer.backward(data.dy.view(), &saved, &mut gradients).unwrap();
    let wide = |x: ArrayView2<f32>| x.mapv(f64::from);
    let [x, w, dy] = [&data.x, &data.w, &data.dy].map(|x| wide(x.view()));
    let db = |exact: Array2<f64>, got: &Array2<f32>| {
        let exact: Vec<f64> = exact.iter().copied().collect();
        sqnr_db(&exact, got.as_slice().unwrap())
    };
    [db(x.dot(&w.t()), &y), db(dy.dot(&w), &dx), db(dy.t().dot(&x), &gradients.weight)]
}

/// E4M3 has 3 bits after the leading one: the error of a code is uniform in half a step of 2^-3 of a binade, 31.6 dB below numbers that
/// are uniform in a binade, and two operands are 28.6. E5M2 has a bit less: 25.5 beside its operand's 31.6 is 24.6. E2M1 in blocks
/// has 20.5 for normal numbers, so 17.5.
#[test]
fn products_keep_the_signal_that_their_codes_allow() {
    let asked = [
        (LinearRecipe::Bf16, [48.0, 48.0, 100.0], [48.0, 48.0, 100.0]),
        (LinearRecipe::Fp8Blockwise, [28.0; 3], [25.0; 3]),
        (LinearRecipe::Fp8Row, [28.0; 3], [25.0; 3]),
        (LinearRecipe::Fp8Tensor(TensorScaling::Current), [28.0, 24.0, 24.0], [25.0, 23.0, 23.0]),
        (LinearRecipe::Nvfp4Row, [17.0, 48.0, 100.0], [13.0, 48.0, 100.0]),
    ];
    // Delayed scaling keeps what current scaling does: below.
    let is_asked = |recipe| asked.iter().any(|(asked, ..)| *asked == recipe);
    assert!(LinearRecipe::all().into_iter().all(|recipe| recipe.delayed().is_some() || is_asked(recipe)));
    for (recipe, normal, outliers) in asked {
        for (kind, least) in [(false, normal), (true, outliers)] {
            let got = sqnr(recipe, kind);
            println!("{recipe}, outliers {kind}: {got:.1?} dB");
            assert!(got.iter().zip(&least).all(|(got, least)| got >= least), "{recipe}: {got:.1?}, least {least:?}");
        }
    }
}

/// So it keeps as much signal: a step that saw the same data gives the factors that current scaling finds.
#[test]
fn delayed_scaling_is_current_scaling_of_what_it_saw() {
    let scalings = [TensorScaling::Delayed(DelayedScaling::default()), TensorScaling::Current];
    for outliers in [false, true] {
        let data = data(200, outliers);
        let [delayed, current] = scalings.map(|scaling| {
            let mut layer = layer(LinearRecipe::Fp8Tensor(scaling), &data);
            layer.forward_saving(data.x.view()).unwrap();
            layer.quantize_gradient(data.dy.view()).unwrap();
            layer.update_scales();
            layer.refresh(data.w.view()).unwrap();
            let (y, saved) = layer.forward_saving(data.x.view()).unwrap();
            let mut gradients = layer.zero_gradients();
            let dx = layer.backward(data.dy.view(), &saved, &mut gradients).unwrap();
            (y, dx, gradients)
        });
        assert_eq!(delayed, current, "outliers {outliers}");
    }
}

#[test]
fn a_kept_input_gives_the_same_gradient_in_either_form() {
    for recipe in LinearRecipe::all() {
        let data = data(129, true);
        let [high, quantized] = KeptInput::ALL.map(|kept| {
            let mut layer = layer(recipe, &data).with_kept_input(kept);
            // With delayed scaling, a step that has factors of its own.
            layer.forward_saving(data.x.view()).unwrap();
            layer.quantize_gradient(data.dy.view()).unwrap();
            layer.update_scales();
            let (_, saved) = layer.forward_saving(data.x.view()).unwrap();
            // Scales that change between the two passes do not change what the forward pass has read.
            layer.update_scales();
            let mut gradients = layer.zero_gradients();
            layer.backward(data.dy.view(), &saved, &mut gradients).unwrap();
            (gradients, saved.bytes(), saved.tokens())
        });
        assert_eq!(high.0, quantized.0, "{recipe}");
        assert_eq!((high.1, high.2), (129 * IN * 2, 129), "{recipe}");
        let recipe_of_dw = recipes(recipe)[2];
        let padded = 144 * IN;
        match recipe_of_dw {
            None => assert_eq!(quantized.1, padded * 2),
            Some(_) => assert!(quantized.1 >= padded && quantized.1 < padded + padded / 8, "{recipe}: {}", quantized.1),
        }
    }
}

#[test]
fn tokens_are_padded_inside_and_none_is_no_error() {
    for recipe in LinearRecipe::all() {
        let whole = data(160, false);
        for tokens in [0, 1, 15, 129, 145] {
            let cut = |x: &Array2<f32>| {
                let mut x = x.clone();
                x.slice_mut(s![tokens.., ..]).fill(0.0);
                x
            };
            let (x, dy) = (cut(&whole.x), cut(&whole.dy));
            let run = |x: ArrayView2<f32>, dy: ArrayView2<f32>| {
                let mut layer = layer(recipe, &whole);
                let (y, saved) = layer.forward_saving(x).unwrap();
                let mut gradients = layer.zero_gradients();
                let dx = layer.backward(dy, &saved, &mut gradients).unwrap();
                (y, dx, gradients)
            };
            let (y, dx, gradients) = run(x.slice(s![..tokens, ..]), dy.slice(s![..tokens, ..]));
            let (want_y, want_dx, want) = run(x.view(), dy.view());
            assert_eq!(y, want_y.slice(s![..tokens, ..]), "{recipe} {tokens}");
            assert_eq!(dx, want_dx.slice(s![..tokens, ..]), "{recipe} {tokens}");
            assert_eq!(gradients.bias, want.bias);
            // Sums over other numbers of zeros may be in another order.
            let size = x.mapv(f32::abs).t().dot(&dy.mapv(f32::abs));
            for ((at, got), want) in gradients.weight.indexed_iter().zip(&want.weight) {
                // Both err by at most t u S, with t of gemm_bound: 128 + 2 + 8.
                let bound = 2.0 * 138.0 * 2f32.powi(-24) * 1.2 * size[[at.1, at.0]];
                assert!((got - want).abs() <= bound, "{recipe} {tokens} {at:?}: {got} {want}");
            }
        }
    }
}

#[test]
fn a_refreshed_layer_is_one_made_of_the_new_weight() {
    for recipe in stateless() {
        let [old, new] = [data(40, false), data(41, false)];
        let mut refreshed = layer(recipe, &old);
        refreshed.refresh(new.w.view()).unwrap();
        refreshed.refresh_bias(&new.bias).unwrap();
        let mut made = layer(recipe, &new);
        assert_eq!(refreshed.forward(new.x.view()).unwrap(), made.forward(new.x.view()).unwrap(), "{recipe}");
        let [dx, want] = [&mut refreshed, &mut made].map(|layer| {
            let dy = layer.quantize_gradient(new.dy.view()).unwrap();
            layer.input_gradient(&dy).unwrap()
        });
        assert_eq!(dx, want, "{recipe}");
    }
}

/// Codes and scales of the transposed weight are those of the weight, transposed: what a GPU may rely on.
#[test]
fn tiles_of_a_weight_are_the_same_in_both_forms() {
    let data = data(1, true);
    let [_, tile] = recipes(LinearRecipe::Fp8Blockwise)[0].unwrap();
    let [w, t] =
        [quantize(data.w.view(), DTYPE, tile).unwrap(), quantize_transposed(data.w.view(), DTYPE, tile).unwrap()];
    for i in 0..OUT {
        for j in 0..IN {
            assert_eq!(w.row_codes(i)[j], t.row_codes(j)[i]);
        }
    }
    for r in 0..OUT.div_ceil(128) {
        for c in 0..IN.div_ceil(128) {
            assert_eq!(w.scale_at(r, c), t.scale_at(c, r));
        }
    }
}

/// X, W and dY by hand: the factor, and the history with the running step in front.
struct Past {
    format: Fp8Format,
    encode: f32,
    history: [f32; 3],
}

impl Past {
    fn cast(&self, x: ArrayView2<f32>) -> HostQuantMatrix {
        quantize_tensor(x.as_standard_layout().view(), self.format, GivenScale::Encode(self.encode)).unwrap().0
    }

    fn saw(&mut self, x: &Array2<f32>) {
        self.history[0] = self.history[0].max(amax(x.as_slice().unwrap()));
    }

    /// The end of a step. Without an amax nothing moves, as in TransformerEngine's update of a whole model.
    fn update(&mut self, rule: AmaxHistory) {
        if self.history[0] > 0.0 {
            self.encode = delayed_update(&mut self.history, self.encode, self.format, 1, rule).unwrap().encode;
        }
    }
}

#[test]
fn delayed_scaling_takes_the_factors_of_past_steps() {
    for rule in AmaxHistory::ALL {
        let recipe = LinearRecipe::Fp8Tensor(TensorScaling::Delayed(DelayedScaling::new(3, 1, rule).unwrap()));
        let data = data(32, false);
        let mut layer = Linear::new(data.w.view(), DTYPE, recipe).unwrap();
        let past = |format| Past { format, encode: 1.0, history: [0.0; 3] };
        let [mut of_x, mut of_w, mut of_dy] = [Fp8Format::E4M3, Fp8Format::E4M3, Fp8Format::E5M2].map(past);
        let mut w = data.w.clone();
        of_w.saw(&w);
        let (mut w_codes, mut w_turned) = (of_w.cast(w.view()), of_w.cast(w.t()));
        for step in 0..12 {
            let growth = [1.0, 32.0, 0.5, 0.0078125, 0.0078125, 2.0][step % 6];
            let (x, dy) = (&data.x * growth, &data.dy * (1.0 / growth));
            // Evaluation of something else leaves no trace.
            layer.forward((&data.x * 1024.0).view()).unwrap();
            // Some steps have no tokens: an expert that none was sent to.
            if step % 4 != 3 {
                let (y, saved) = layer.forward_saving(x.view()).unwrap();
                // A smaller micro-batch in the same step: the step's amax is that of both.
                layer.forward_saving((&x * 0.125).view()).unwrap();
                let forward = Pair::Quantized(of_x.cast(x.view()), w_codes.clone());
                assert_product(&forward, &y, DTYPE, None, None);
                let quantized = layer.quantize_gradient(dy.view()).unwrap();
                let dx = layer.input_gradient(&quantized).unwrap();
                assert_product(&Pair::Quantized(of_dy.cast(dy.view()), w_turned.clone()), &dx, DTYPE, None, None);
                let mut gradients = layer.zero_gradients();
                layer.weight_gradient(&quantized, &saved, &mut gradients).unwrap();
                let weight = Pair::Quantized(of_dy.cast(dy.t()), of_x.cast(x.t()));
                assert_product(&weight, &gradients.weight, DType::F32, None, None);
                of_x.saw(&x);
                of_dy.saw(&dy);
            }
            layer.update_scales();
            [&mut of_x, &mut of_w, &mut of_dy].into_iter().for_each(|past| past.update(rule));
            // Some steps leave the weight as it is: frozen.
            if step % 3 != 2 {
                w = (&w * 1.5).mapv(|v| round_to(DTYPE, v));
                layer.refresh(w.view()).unwrap();
                (w_codes, w_turned) = (of_w.cast(w.view()), of_w.cast(w.t()));
                of_w.saw(&w);
            }
        }
        assert!([&of_x, &of_w, &of_dy].iter().all(|past| past.encode != 1.0), "no factor has changed");
    }
}

/// A training that is broken off goes on with the saved state as if it had not been.
#[test]
fn delayed_scaling_goes_on_from_a_saved_state() {
    let rule = DelayedScaling::new(4, 0, AmaxHistory::Max).unwrap();
    let recipe = LinearRecipe::Fp8Tensor(TensorScaling::Delayed(rule));
    let data = data(16, false);
    let step = |layer: &mut Linear| {
        let (y, saved) = layer.forward_saving(data.x.view()).unwrap();
        let dx = layer.backward(data.dy.view(), &saved, &mut layer.zero_gradients()).unwrap();
        layer.update_scales();
        layer.refresh(data.w.view()).unwrap();
        (y, dx)
    };
    let mut layer = Linear::new(data.w.view(), DTYPE, recipe).unwrap();
    let first = step(&mut layer);
    let states = layer.delayed_states().unwrap();
    let mut other = Linear::new(data.w.view(), DTYPE, recipe).unwrap();
    other.set_delayed_states(states.clone()).unwrap();
    other.refresh(data.w.view()).unwrap();
    let (want, got) = (step(&mut layer), step(&mut other));
    assert_eq!(want, got);
    assert_ne!(want, first, "factors have not changed");
    assert_eq!(layer.delayed_states(), other.delayed_states());

    let mut bad = states.clone();
    bad[2].history.pop();
    refused(other.set_delayed_states(bad), &["amax history of dY: 3 steps", "4 of the recipe's window"]);
    for (place, number) in [(0, 0.0), (0, 1e-40), (0, f32::NAN), (0, f32::INFINITY), (1, -1.0), (1, f32::NAN)] {
        let mut bad = states.clone();
        *(if place == 0 { &mut bad[1].encode } else { &mut bad[1].history[3] }) = number;
        refused(other.set_delayed_states(bad), &["delayed state of W", "delayed_states"]);
    }
    assert_eq!(layer.delayed_states(), other.delayed_states(), "a refused state changes nothing");
    let mut plain = Linear::new(data.w.view(), DTYPE, LinearRecipe::Fp8Row).unwrap();
    assert_eq!(plain.delayed_states(), None);
    refused(plain.set_delayed_states(states), &["fp8-row", "leave it out"]);
}

/// Numbers that are not of the layer's type are rounded to it first, whatever they are for; what comes out is of it.
#[test]
fn everything_is_of_the_type_of_the_layer() {
    let mut noise = Noise::new(77);
    let mut matrix = |rows, cols| noise.matrix(rows, cols, DType::F32);
    let [x, w, dy] = [matrix(33, IN), matrix(OUT, IN), matrix(33, OUT)];
    let bias = matrix(1, OUT).into_raw_vec_and_offset().0;
    for dtype in DType::WIDE {
        for recipe in LinearRecipe::all() {
            let run = |x: &Array2<f32>, w: &Array2<f32>, dy: &Array2<f32>, bias: &[f32]| {
                let mut layer = Linear::new(w.view(), dtype, recipe).unwrap().with_bias(bias.to_vec()).unwrap();
                layer.refresh(w.view()).unwrap();
                layer.refresh_bias(bias).unwrap();
                let (y, saved) = layer.forward_saving(x.view()).unwrap();
                let mut gradients = layer.zero_gradients();
                let dx = layer.backward(dy.view(), &saved, &mut gradients).unwrap();
                assert_eq!(layer.forward(x.view()).unwrap(), y);
                (y, dx, gradients, layer.bias().unwrap().to_vec())
            };
            let round = |x: &Array2<f32>| x.mapv(|v| round_to(dtype, v));
            let rounded: Vec<f32> = bias.iter().map(|v| round_to(dtype, *v)).collect();
            let got = run(&x, &w, &dy, &bias);
            assert_eq!(got, run(&round(&x), &round(&w), &round(&dy), &rounded), "{recipe} {dtype}");
            assert_eq!((&got.0, &got.1), (&round(&got.0), &round(&got.1)), "{recipe} {dtype}");
            // BF16 operands are BF16 numbers in any layer.
            if recipe == LinearRecipe::Bf16 {
                let bf16 = |x: &Array2<f32>| round(x).mapv(|v| round_to(DType::Bf16, v));
                let pair = Pair::Bf16(bf16(&dy).t().to_owned(), bf16(&x).t().to_owned());
                assert_product(&pair, &got.2.weight, DType::F32, None, None);
            }
        }
    }
    // Y in FP32 is finer than BF16, or the layer rounds to what it should not.
    let layer = Linear::new(w.view(), DType::F32, LinearRecipe::Fp8Blockwise).unwrap();
    let y = layer.forward(x.view()).unwrap();
    assert!(y.iter().any(|v| round_to(DType::Bf16, *v) != *v));
}

/// A refused backward pass, and one that follows, are that one alone.
#[test]
fn a_refused_backward_pass_leaves_no_trace() {
    let rule = DelayedScaling::new(2, 0, AmaxHistory::Max).unwrap();
    let data = data(8, false);
    let run = |refuse: bool| {
        let recipe = LinearRecipe::Fp8Tensor(TensorScaling::Delayed(rule));
        let mut layer = Linear::new(data.w.view(), DTYPE, recipe).unwrap();
        let (_, saved) = layer.forward_saving(data.x.view()).unwrap();
        let mut gradients = layer.zero_gradients();
        if refuse {
            let huge = Array2::from_elem((9, OUT), 1e30f32);
            refused(layer.backward(huge.view(), &saved, &mut gradients), &["saved X: 8 x", "9 x"]);
            refused(layer.refresh(huge.view()), &["9 x 144"]);
        }
        layer.backward(data.dy.view(), &saved, &mut gradients).unwrap();
        layer.update_scales();
        layer.refresh(data.w.view()).unwrap();
        let dx = layer.backward(data.dy.view(), &saved, &mut gradients).unwrap();
        (dx, gradients)
    };
    assert_eq!(run(true), run(false));
}

/// numerics.md 2.5, through the layer.
#[test]
fn torchaos_constant_layer_gives_192() {
    let x = Array2::from_shape_fn((1, 256), |(_, j)| if j < 128 { 2.0 } else { -1.0 });
    let w = Array2::from_shape_fn((16, 256), |(_, j)| if j < 128 { 1.0 } else { 0.5 });
    let layer = Linear::new(w.view(), DTYPE, LinearRecipe::Fp8Blockwise).unwrap();
    assert!(layer.forward(x.view()).unwrap().iter().all(|y| *y == 192.0));
}

#[track_caller]
fn refused<T>(result: Result<T, Error>, words: &[&str]) {
    let text = match result {
        Ok(_) => panic!("not refused"),
        Err(error) => error.to_string(),
    };
    assert!(words.iter().all(|word| text.contains(word)), "{text}");
}

#[test]
fn what_does_not_fit_is_refused_and_gradients_stay() {
    let matrix = |rows, cols| Array2::<f32>::ones((rows, cols));
    let recipe = LinearRecipe::Fp8Blockwise;
    let new = |rows, cols, recipe| Linear::new(matrix(rows, cols).view(), DTYPE, recipe);
    refused(new(24, 32, recipe), &["weight of a linear layer: 24 x 32", "multiples of 16", "pad"]);
    for (out, features) in [(0, 16), (16, 0), (0, 0)] {
        for recipe in LinearRecipe::all() {
            refused(new(out, features, recipe), &["weight of a linear layer", "positive multiples of 16"]);
        }
    }
    refused(new(32, 24, LinearRecipe::Bf16), &["32 x 24", "multiples of 16"]);
    refused(Linear::new(matrix(16, 16).view(), DType::E4M3, recipe), &["e4m3", "bf16"]);
    for (window, margin, words) in [
        (0, 0, ["window of 0 steps", "1 to 1048576"]),
        (usize::MAX, 0, ["window of 18446744073709551615", "current scaling"]),
        (1024, 9, ["margin of 9", "beyond 8"]),
        (1024, i32::MIN, ["margin of -2147483648", "beyond 8"]),
    ] {
        refused(DelayedScaling::new(window, margin, AmaxHistory::Max), &words);
    }
    for margin in [-8, 8] {
        assert!(DelayedScaling::new(1 << 20, margin, AmaxHistory::MostRecent).is_ok());
        for (format, amax) in Fp8Format::ALL.into_iter().flat_map(|f| [1e-45, 1.0, f32::MAX].map(|amax| (f, amax))) {
            let next = delayed_update(&mut [amax], 1.0, format, margin, AmaxHistory::Max).unwrap();
            assert!([next.encode, next.scale].iter().all(|v| *v > 0.0 && v.is_finite()), "{format} {amax:e}: {next:?}");
        }
    }
    refused(new(32, 48, recipe).unwrap().with_bias(vec![0.0; 48]), &["bias: length 48", "must be 32"]);

    let mut layer = new(32, 48, recipe).unwrap();
    refused(layer.refresh(matrix(48, 32).view()), &["48 x 32", "32 x 48"]);
    refused(layer.refresh_bias(&[0.0; 32]), &["made without one", "with_bias"]);
    refused(layer.refresh_bias(&[0.0; 31]), &["length 31"]);
    refused(layer.forward(matrix(5, 32).view()), &["X: 5 x 32", "48 in features"]);
    refused(layer.forward_saving(matrix(5, 32).view()).map(drop), &["X: 5 x 32"]);
    refused(layer.quantize_gradient(matrix(5, 48).view()), &["dY: 5 x 48", "32 out features"]);

    let saved = |layer: &mut Linear, tokens| -> SavedInput {
        let x = matrix(tokens, layer.in_features());
        layer.forward_saving(x.view()).unwrap().1
    };
    let (five, six) = (saved(&mut layer, 5), saved(&mut layer, 6));
    let dy = layer.quantize_gradient(matrix(5, 32).view()).unwrap();
    let mut gradients = layer.zero_gradients();
    layer.weight_gradient(&dy, &five, &mut gradients).unwrap();
    let before = gradients.clone();
    refused(layer.weight_gradient(&dy, &six, &mut gradients), &["saved X: 6 x 48", "5 x 48"]);
    let mut other = new(64, 48, recipe).unwrap();
    let foreign = other.quantize_gradient(matrix(5, 64).view()).unwrap();
    refused(layer.weight_gradient(&foreign, &five, &mut gradients), &["dY: 5 x 64", "32 out features"]);
    refused(layer.input_gradient(&foreign), &["dY: 5 x 64"]);
    // The same shapes and another recipe or type, also without tokens.
    let others = [(DTYPE, LinearRecipe::Bf16), (DTYPE, LinearRecipe::Fp8Row), (DType::F16, recipe)];
    for (tokens, kept) in [(5, KeptInput::HighPrecision), (5, KeptInput::Quantized), (0, KeptInput::Quantized)] {
        for (dtype, recipe) in others {
            let other = Linear::new(matrix(32, 48).view(), dtype, recipe).unwrap();
            let mut other = other.with_kept_input(kept);
            let own = layer.quantize_gradient(matrix(tokens, 32).view()).unwrap();
            let (saved_here, saved_there) = (saved(&mut layer, tokens), saved(&mut other, tokens));
            let words = [&*format!("of a layer of {recipe} in {dtype}"), "fp8-blockwise in bf16"];
            refused(layer.weight_gradient(&own, &saved_there, &mut gradients), &words);
            let foreign = other.quantize_gradient(matrix(tokens, 32).view()).unwrap();
            refused(layer.weight_gradient(&foreign, &saved_here, &mut gradients), &words);
            refused(layer.input_gradient(&foreign), &words);
        }
    }
    assert_eq!(gradients, before);
    let mut narrow = other.zero_gradients();
    refused(layer.weight_gradient(&dy, &five, &mut narrow), &["gradients: 64 x 48", "32 x 48"]);
    let mut biased = new(32, 48, recipe).unwrap().with_bias(vec![0.0; 32]).unwrap().zero_gradients();
    refused(layer.weight_gradient(&dy, &five, &mut biased), &["32 of a bias", "zero_gradients"]);
    // Of another layer without bias, of the same shape: nothing for the bias would be added.
    let mut with_bias = new(32, 48, recipe).unwrap().with_bias(vec![0.0; 32]).unwrap();
    let mut gradients = with_bias.zero_gradients();
    refused(with_bias.weight_gradient(&dy, &five, &mut gradients), &["bias"]);
    let own = with_bias.quantize_gradient(matrix(5, 32).view()).unwrap();
    with_bias.weight_gradient(&own, &five, &mut gradients).unwrap();
    assert_eq!(gradients.bias, [5.0; 32]);
}
