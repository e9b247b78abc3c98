//! The producers on the CPU: near their definition in f64, codes that differ only at a rounding boundary, and what is exact exactly.

use ndarray::{Array2, ArrayView2, s};
use scaled_gemm::codec::{encode_e2m1, encode_e4m3, round_to};
use scaled_gemm::reference::{
    ClampCounts, Noise, RmsNorm, Swiglu, cast, definition, gelu, gelu_tanh, rms_norm, round_values, silu, swiglu,
    swiglu_backward,
};
use scaled_gemm::{Activation, CastGroup, CastRecipe, CastScheme, CodeFormat, DType, Error};

/// numerics.md 1.7: how far values before a cast may be off, relative.
const NEAR: f64 = 4e-7;

/// A view without elements may have any number of rows or columns. (The factors of the rows were made before they were counted: a panic.)
#[test]
fn more_rows_than_a_matrix_has_are_refused_before_any_work() {
    for dim in [(1 << 61, 0), (1 << 33, 0), (0, 1 << 61)] {
        let x = ArrayView2::from_shape(dim, &[]).unwrap();
        let half = ArrayView2::from_shape((dim.0, dim.1 / 2), &[]).unwrap();
        let norm = RmsNorm { weight: &[], epsilon: 1e-6, residual: None, dtype: DType::Bf16 };
        let said = [
            swiglu(x, &Swiglu::default()).unwrap_err(),
            swiglu_backward(x, half, &Swiglu::default()).unwrap_err(),
            rms_norm(x, &norm).unwrap_err(),
        ];
        for (error, operand) in said.iter().zip(["x of SwiGLU", "x of SwiGLU", "x of a norm"]) {
            let said = error.to_string();
            let words = [operand, &format!("{} x {}", dim.0, dim.1), "at most 2147483647 rows and columns", "split it"];
            assert!(matches!(error, Error::Shape { .. }) && words.iter().all(|word| said.contains(word)), "{said}");
        }
        // One number an element needs no memory for none.
        [silu, gelu, gelu_tanh].into_iter().for_each(|f| assert_eq!(f(x).dim(), dim));
        assert_eq!(round_values(silu(x), DType::Bf16).dim(), dim);
    }
}

/// Nor more elements, all of which may be one number of a view. (Memory for all of them was asked for: a panic.)
#[test]
fn more_elements_than_memory_can_have_are_refused_before_any_work() {
    let (one, rows, cols) = (Array2::<f32>::ones((1, 1)), (1 << 31) - 16, (1 << 31) - 32);
    let (x, half) = (one.broadcast((rows, cols)).unwrap(), one.broadcast((rows, cols / 2)).unwrap());
    for (operand, error) in [
        ("x of SwiGLU", swiglu(x, &Swiglu::default()).unwrap_err()),
        ("x of SwiGLU", swiglu_backward(x, half, &Swiglu::default()).unwrap_err()),
        (
            "x of a norm",
            rms_norm(x, &RmsNorm { weight: &[], epsilon: 1e-6, residual: None, dtype: DType::Bf16 }).unwrap_err(),
        ),
    ] {
        let said = error.to_string();
        let words = [operand, &format!("{rows} x {cols}"), "at most 1152921504606846975 elements", "split it"];
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }
}

/// Every way to call SwiGLU on `rows` rows.
fn options<'a>(weights: &'a [f32], experts: &'a [i32]) -> Vec<Swiglu<'a>> {
    let mut all = Vec::new();
    for clamp in [None, Some(10.0), Some(0.75), Some(0.0)] {
        for weights in [None, Some(weights)] {
            for experts in [None, Some(experts)] {
                all.push(Swiglu { clamp, weights, experts });
            }
        }
    }
    all
}

/// x of several magnitudes, w, experts of which a third is negative, and g.
fn operands(rows: usize, half: usize) -> (Array2<f32>, Vec<f32>, Vec<i32>, Array2<f32>) {
    let mut noise = Noise::new(51);
    let mut x = noise.matrix(rows, 2 * half, DType::Bf16);
    x.rows_mut()
        .into_iter()
        .enumerate()
        .for_each(|(i, mut row)| row.mapv_inplace(|v| v * [1.0, 8.0, 0.01, 40.0][i % 4]));
    let weights = (0..rows).map(|_| noise.uniform()).collect();
    let experts = (0..rows as i32).map(|i| if i % 3 == 1 { -1 - i } else { i }).collect();
    (x, weights, experts, noise.matrix(rows, half, DType::Bf16))
}

/// Beside [`NEAR`]: where exp(-l) is beyond FP32, l being below -88.7, the sigmoid becomes zero, which is below 1 / 3.4e38.
const LEAST_SIGMOID: f64 = 3e-39;
/// Beside it where a result is subnormal: half a step of 2^-149 for each rounding.
const STEPS: f64 = 6e-45;

/// What one rounding to FP32 may be off, of a normal result; and of a subnormal one, half a step of 2^-149.
const ROUNDING: f64 = 1.0 / 16_777_216.0;
const HALF_STEP: f64 = 8e-46;

/// 1 / (1 + exp(-l)).
fn sigmoid(l: f64) -> f64 {
    1.0 / (1.0 + (-l).exp())
}

/// What `fl(1 / fl(1 + exp(-l)))` may be off of its value s: exp(-l), which is off by 1.3 roundings (a unit test of `exp` says so), is the part
/// `1 - s` of the sum, which is rounded, as the quotient is.
fn off_of_sigmoid(s: f64) -> f64 {
    (1.3 * (1.0 - s) + 2.0) * ROUNDING
}

/// l and r of an element as SwiGLU reads them, whether the clamp has changed either, and the row's weight; none if the row is skipped.
fn element(x: &Array2<f32>, options: &Swiglu<'_>, (i, j): (usize, usize)) -> Option<([f64; 2], [bool; 2], f64)> {
    if options.experts.is_some_and(|experts| experts[i] < 0) {
        return None;
    }
    let [l, r] = [x[[i, j]], x[[i, x.ncols() / 2 + j]]].map(f64::from);
    let c = options.clamp.map_or(f64::INFINITY, f64::from);
    let weight = options.weights.map_or(1.0, |weights| f64::from(weights[i]));
    Some(([l.min(c), r.clamp(-c, c)], [l > c, r.abs() > c], weight))
}

/// What the gradients of x may be off, with y = g w:
///
/// ```text
/// dr = y s l          fl(g w), s, t and the product: 3 roundings and the sigmoid's 3.3, which is NEAR of its own value
/// dl = y s r q        5 roundings (fl(g w), t, fl(t r), q, the product) and the sigmoid's 3.3, of its own value, and what q is off beside:
/// q  = 1 + l (1 - s)  cancels for l below 0. s is off by s off_of_sigmoid(s), and 1 - s is rounded where s is below 1/2, to steps of
///                     2^-24; q is off by |l| times both, however small q is
/// ```
///
/// Beside that the least sigmoid, and half a step for each result that is subnormal, times what it is multiplied by. Of skipped rows and
/// clamped elements nothing: they are zeros.
fn off_of_gradients<'a>(
    x: &'a Array2<f32>,
    gradient: &'a Array2<f32>,
    options: Swiglu<'a>,
) -> impl Fn((usize, usize), f64) -> f64 + 'a {
    move |(i, j), want| {
        let half = gradient.ncols();
        let Some(([l, r], beyond, weight)) = element(x, &options, (i, j % half)) else { return 0.0 };
        let (s, y) = (sigmoid(l), (f64::from(gradient[[i, j % half]]) * weight).abs());
        let (l_abs, r) = (l.abs(), r.abs());
        if beyond[usize::from(j >= half)] {
            return 0.0;
        }
        if j >= half {
            return NEAR * want.abs() + LEAST_SIGMOID * y * l_abs + HALF_STEP * (1.0 + l_abs * (1.0 + s));
        }
        let q = (1.0 + l * (1.0 - s)).abs();
        let off_of_q = l_abs * (s * off_of_sigmoid(s) + if s < 0.5 { ROUNDING / 2.0 } else { 0.0 });
        let subnormal = HALF_STEP * (1.0 + q * (1.0 + r * (1.0 + s)));
        (5.0 * ROUNDING + off_of_sigmoid(s)) * want.abs()
            + y * r * (s * off_of_q + LEAST_SIGMOID * (1.0 + l_abs))
            + subnormal
    }
}

/// What GELU in its tanh form, `v s` with s the sigmoid of z, may be off: the sigmoid and a rounding, and `|z| (1 - s)` times what z is off of
/// its own value, which is by how much the sigmoid follows. `z = 2 * 0.7978846 * (v + 0.044715 v^3)` is off by 2.5 roundings (the sum, the
/// product, and its constant, by 0.48), and by 3.6 of the part that the cube is of the sum (three, and its constant, by 0.58).
///
/// That is below [`NEAR`] for all v from 0 on, where `|z| (1 - s)` is at most 0.28, and down to -0.8. Below, `|z| (1 - s)` grows as |z|, and an argument in
/// FP32 allows no more: at -5, where GELU is -2e-7, it is 5e-6 of that.
fn off_of_gelu_tanh(v: f32, want: f64) -> f64 {
    let v = f64::from(v);
    let z = definition::gelu_tanh_argument(v);
    let (s, cube) = (sigmoid(z), 0.044_715 * v * v);
    let off_of_z = (2.5 + 3.6 * cube / (1.0 + cube)) * ROUNDING;
    let relative = off_of_sigmoid(s) + ROUNDING + z.abs() * (1.0 - s) * off_of_z;
    NEAR.max(relative) * want.abs() + LEAST_SIGMOID * v.abs() + STEPS
}

/// What SwiGLU may lose beside [`NEAR`]: the least sigmoid times what it is multiplied by.
fn lost_of_swiglu<'a>(x: &'a Array2<f32>, options: &Swiglu<'a>) -> impl Fn((usize, usize)) -> f64 + 'a {
    let (weights, experts) = (options.weights, options.experts);
    move |(i, j)| {
        if experts.is_some_and(|experts| experts[i] < 0) {
            return 0.0;
        }
        let [l, r] = [x[[i, j]], x[[i, x.ncols() / 2 + j]]].map(|v| f64::from(v.abs()));
        LEAST_SIGMOID * l * r * weights.map_or(1.0, |weights| f64::from(weights[i].abs())) + STEPS
    }
}

/// Within [`NEAR`] of `want`, and what is lost beside.
#[track_caller]
fn near(got: &Array2<f32>, want: &Array2<f64>, lost: impl Fn((usize, usize)) -> f64) {
    assert_eq!(got.dim(), want.dim());
    for ((at, got), want) in got.indexed_iter().zip(want) {
        let off = (f64::from(*got) - want).abs();
        assert!(off <= NEAR * want.abs() + lost(at), "{at:?}: {got:e}, {want:e}, off {:e}", off / want.abs());
    }
}

/// Every group is cast as it is, in FP32.
fn in_f32(_: CastGroup) -> Option<DType> {
    Some(DType::F32)
}

/// A cast of SwiGLU per channel reads BF16.
fn as_swiglu(group: CastGroup) -> Option<DType> {
    Some(if group.is_per_channel() { DType::Bf16 } else { DType::F32 })
}

/// Gradients are cast to groups of columns alone.
fn as_gradients(group: CastGroup) -> Option<DType> {
    (!group.is_per_channel()).then_some(DType::F32)
}

/// Scales and codes of `values` differ from those of their definition `want` only at a rounding boundary, in every scheme whose groups are read as
/// some type: casts do not decrease, so that what is made lies between what is made of both ends of what the value may be, `off` from `want`.
///
/// Scales: of both ends of the group's amax. Codes: under the factor of the group's amax, which is as near to its definition as the values are; both ends
/// are one code, but for a few. The sign is that of the definition, where that is further from zero than it may be off, and the value's own otherwise.
#[track_caller]
fn codes_differ_at_boundaries(
    values: &Array2<f32>,
    want: &Array2<f64>,
    off: impl Fn((usize, usize), f64) -> f64,
    read_as: impl Fn(CastGroup) -> Option<DType>,
) {
    // The magnitude that the definition allows at the least, and at the most.
    let ends = Array2::from_shape_fn(want.dim(), |at| {
        let off = off(at, want[at]);
        [(want[at].abs() - off).max(0.0), want[at].abs() + off]
    });
    for scheme in CastScheme::all() {
        let Some(dtype) = read_as(scheme.group()) else { continue };
        let read = |v: f64| round_to(dtype, v as f32);
        let x = values.mapv(|v| read(f64::from(v)));
        let recipe = CastRecipe::new(scheme);
        let q = cast(&x.view().into(), recipe).unwrap();
        let [height, width] = scheme.group().extents();
        let [height, width] = [height.size(x.nrows()), width.size(x.ncols())];
        let encodes = Array2::from_shape_fn(scheme.group().grid(x.nrows(), x.ncols()), |(a, b)| {
            let (top, left) = (a * height, b * width);
            let group = s![top..(top + height).min(x.nrows()), left..(left + width).min(x.ncols())];
            let largest = |end: usize| ends.slice(group).iter().fold(0.0, |a: f64, ends| a.max(ends[end]));
            let [least, most] = [0, 1].map(|end| recipe.group_scale(read(largest(end))).scale);
            let scale = q.scale_at(top, left);
            assert!(
                (least..=most).contains(&scale),
                "({a}, {b}) of {scheme}: {scale:e} is not of {least:e} to {most:e}"
            );
            recipe.group_scale(x.slice(group).iter().fold(0.0f32, |a, v| a.max(v.abs()))).encode
        });
        let (format, mut open) = (scheme.format(), 0);
        let sign = if format == CodeFormat::E2M1 { 8 } else { 0x80 };
        for ((at, want), ends) in want.indexed_iter().zip(&ends) {
            let (i, j) = at;
            let encode = encodes[[i / height, j / width]];
            let [low, high] = ends.map(|v| match format {
                CodeFormat::E2M1 => encode_e2m1(read(v) * encode),
                _ => encode_e4m3(read(v) * encode),
            });
            let number = if scheme.is_transposed() { j * x.nrows() + i } else { i * x.ncols() + j };
            let code = match format {
                CodeFormat::E2M1 => q.codes()[number / 2] >> (number % 2 * 4) & 15,
                _ => q.codes()[number],
            };
            let magnitude = code & !sign;
            assert!((low..=high).contains(&magnitude), "{at:?} to {scheme}: {magnitude} is not of {want:e}");
            let negative = if ends[0] > 0.0 { *want < 0.0 } else { x[at].is_sign_negative() };
            assert_eq!(code & sign != 0, negative, "{at:?} to {scheme}: the sign of {want:e}");
            open += usize::from(low != high);
        }
        assert!(open * 100 <= want.len(), "{open} of {} codes to {scheme} are open", want.len());
    }
}

#[test]
fn swiglu_is_near_its_definition_and_counts_what_it_clamps() {
    for (rows, half) in [(0, 32), (1, 16), (37, 160), (8, 1)] {
        let (x, weights, experts, _) = operands(rows, half);
        for options in options(&weights, &experts) {
            let (values, counts) = swiglu(x.view(), &options).unwrap();
            let (want, want_counts) = definition::swiglu(x.view(), &options);
            near(&values, &want, lost_of_swiglu(&x, &options));
            assert_eq!(counts, want_counts, "{options:?}");
        }
    }
}

#[test]
fn what_lies_at_the_bound_is_not_counted_and_nan_stays() {
    let x = ndarray::arr2(&[[2.0f32, 2.5, f32::NAN, 1.0, 2.0, -2.0, 1.0, f32::NAN]]);
    let (values, counts) = swiglu(x.view(), &Swiglu { clamp: Some(2.0), ..Swiglu::default() }).unwrap();
    assert_eq!(counts, ClampCounts { left_above: 1, right_above: 0, right_below: 0 });
    assert_eq!(values.mapv(f32::is_nan), ndarray::arr2(&[[false, false, true, true]]));
    assert_eq!(values[[0, 0]], -values[[0, 1]]);
}

#[test]
fn codes_differ_only_where_a_value_is_at_a_boundary() {
    // Of SwiGLU per channel both ends may be two numbers of BF16.
    let (x, weights, experts, _) = operands(32, 160);
    for clamp in [None, Some(10.0)] {
        let options = Swiglu { clamp, weights: Some(&weights), experts: Some(&experts) };
        let values = swiglu(x.view(), &options).unwrap().0;
        let (want, lost) = (definition::swiglu(x.view(), &options).0, lost_of_swiglu(&x, &options));
        codes_differ_at_boundaries(&values, &want, |at, want| NEAR * want.abs() + lost(at), as_swiglu);
    }
    let lost = |at| LEAST_SIGMOID * f64::from(x[at].abs()) + STEPS;
    codes_differ_at_boundaries(
        &silu(x.view()),
        &definition::silu(x.view()),
        |at, want| NEAR * want.abs() + lost(at),
        in_f32,
    );
    codes_differ_at_boundaries(
        &gelu(x.view()),
        &definition::gelu(x.view()),
        |_, want| NEAR * want.abs() + STEPS,
        in_f32,
    );
    codes_differ_at_boundaries(
        &gelu_tanh(x.view()),
        &definition::gelu_tanh(x.view()),
        |at, want| off_of_gelu_tanh(x[at], want),
        in_f32,
    );
    let weight: Vec<f32> = (0..320).map(|j| 0.5 + j as f32 / 320.0).collect();
    let norm = RmsNorm::new(&weight, 1e-6, DType::Bf16).with_residual(x.view());
    let values = rms_norm(x.view(), &norm).unwrap().values;
    let want = definition::rms_norm(x.view(), &norm);
    codes_differ_at_boundaries(&values, &want, |_, want| NEAR * want.abs() + STEPS, in_f32);
}

#[test]
fn codes_of_gradients_differ_only_where_a_value_is_at_a_boundary() {
    // Halves of whole groups, as the cast of gradients has them.
    let (x, weights, experts, gradient) = operands(32, 128);
    for options in options(&weights, &experts) {
        let values = swiglu_backward(x.view(), gradient.view(), &options).unwrap().x;
        let want = definition::swiglu_backward(x.view(), gradient.view(), &options).0;
        codes_differ_at_boundaries(&values, &want, off_of_gradients(&x, &gradient, options), as_gradients);
    }
}

/// The definition's gradients are those that differences of the definition's values have.
#[test]
fn the_definition_of_gradients_is_one() {
    let (x, weights, _, gradient) = operands(4, 16);
    let x = x.mapv(|v| (v * 4.0).round() / 16.0);
    let options = Swiglu { clamp: Some(1.03), weights: Some(&weights), experts: None };
    let (of_x, of_w) = definition::swiglu_backward(x.view(), gradient.view(), &options);
    let loss = |x: &Array2<f32>| {
        let (values, _) = definition::swiglu(x.view(), &options);
        values.iter().zip(&gradient).map(|(y, g)| y * f64::from(*g)).sum::<f64>()
    };
    // Exact in FP32 beside the sixteenths above, and never across the clamp.
    let step = 1.0f32 / 1024.0;
    for (at, got) in of_x.indexed_iter() {
        let [up, down] = [step, -step].map(|step| {
            let mut x = x.clone();
            x[at] += step;
            loss(&x)
        });
        let want = (up - down) / (2.0 * f64::from(step));
        assert!((got - want).abs() < 1e-5 * (1.0 + want.abs()), "{at:?}: {got} {want}");
    }
    for (i, got) in of_w.iter().enumerate() {
        let own = Swiglu { weights: None, ..options };
        let (values, _) = definition::swiglu(x.view(), &own);
        let want: f64 = values.row(i).iter().zip(gradient.row(i)).map(|(y, g)| y * f64::from(*g)).sum();
        assert!((got - want).abs() < 1e-9);
    }
}

#[test]
fn gradients_are_near_their_definition() {
    for (rows, half) in [(0, 32), (1, 16), (37, 160), (5, 4096)] {
        let (mut x, weights, experts, gradient) = operands(rows, half);
        // Gates from -100 to 2, where the sigmoid is any number that FP32 has.
        if half == 4096 {
            x.slice_mut(s![.., ..half])
                .indexed_iter_mut()
                .for_each(|((_, j), l)| *l = j as f32 * (102.0 / 4096.0) - 100.0);
        }
        for options in options(&weights, &experts) {
            let got = swiglu_backward(x.view(), gradient.view(), &options).unwrap();
            let (of_x, of_w) = definition::swiglu_backward(x.view(), gradient.view(), &options);
            assert_eq!(got.x.dim(), (rows, 2 * half));
            let off = off_of_gradients(&x, &gradient, options);
            for ((at, got), want) in got.x.indexed_iter().zip(&of_x) {
                assert!((f64::from(*got) - want).abs() <= off(at, *want), "{options:?} {at:?} {got:e} {want:e}");
            }
            // The forward pass again, rounded.
            let forward = swiglu(x.view(), &options).unwrap().0;
            assert_eq!(got.out, round_values(forward.clone(), DType::Bf16));
            for (i, (got, want)) in got.weights.iter().zip(&of_w).enumerate() {
                // Of what is summed: sums round up as often as down, or their order would allow some 20 roundings beside those of the terms.
                let term = |j: usize| {
                    let Some(([l, r], ..)) = element(&x, &options, (i, j)) else { return 0.0 };
                    (NEAR * sigmoid(l) + LEAST_SIGMOID) * (l * r * f64::from(gradient[[i, j]])).abs() + STEPS
                };
                let bound: f64 = (0..half).map(term).sum();
                assert!((f64::from(*got) - want).abs() <= bound, "{i}: {got:e} {want:e}");
            }
            for i in (0..rows).filter(|i| options.experts.is_some_and(|experts| experts[*i] < 0)) {
                assert!(got.x.row(i).iter().chain(got.out.row(i)).all(|v| v.to_bits() == 0) && got.weights[i] == 0.0);
                assert!(forward.row(i).iter().all(|v| v.to_bits() == 0));
            }
        }
    }
}

#[test]
fn strided_operands_give_what_copies_give() {
    let (x, weights, experts, gradient) = operands(24, 64);
    let options = Swiglu { clamp: Some(1.0), weights: Some(&weights), experts: Some(&experts) };
    let [x_t, g_t] = [&x, &gradient].map(|m| m.t().as_standard_layout().to_owned());
    assert_eq!(swiglu(x.view(), &options).unwrap(), swiglu(x_t.t(), &options).unwrap());
    let of = |x, g| swiglu_backward(x, g, &options).unwrap();
    assert_eq!(of(x.view(), gradient.view()), of(x_t.t(), g_t.t()));
    let norm = RmsNorm { weight: &[1.5; 128], epsilon: 1e-6, residual: Some(x.view()), dtype: DType::Bf16 };
    let turned = RmsNorm { residual: Some(x_t.t()), ..norm };
    assert_eq!(rms_norm(x.view(), &norm).unwrap(), rms_norm(x_t.t(), &turned).unwrap());
    assert_eq!(
        (silu(x.view()), round_values(x.clone().reversed_axes(), DType::E4M3)),
        (silu(x_t.t()), round_values(x_t.clone(), DType::E4M3))
    );
}

#[test]
fn norms_are_near_their_definition() {
    let mut noise = Noise::new(52);
    for (rows, cols) in [(0, 64), (1, 1), (19, 576), (3, 7168)] {
        for dtype in [DType::Bf16, DType::F16, DType::F32] {
            let x = noise.matrix(rows, cols, dtype).mapv(|v| round_to(dtype, v * 3.0));
            let residual = noise.matrix(rows, cols, dtype);
            let weight: Vec<f32> = (0..cols).map(|_| 0.5 + noise.uniform()).collect();
            for residual in [None, Some(residual.view())] {
                for epsilon in [0.0, 1e-6, 0.1] {
                    let options = RmsNorm { weight: &weight, epsilon, residual, dtype };
                    let got = rms_norm(x.view(), &options).unwrap();
                    near(&got.values, &definition::rms_norm(x.view(), &options), |_| STEPS);
                    let sum = residual.map(|residual| (&x + &residual).mapv(|v| round_to(dtype, v)));
                    assert_eq!(got.sum, sum);
                    // What is written is what the next step reads: a norm of the sum is the same bytes.
                    let again = RmsNorm { residual: None, ..options };
                    let again = rms_norm(sum.as_ref().unwrap_or(&x).view(), &again).unwrap();
                    assert_eq!((again.values, again.rstd), (got.values, got.rstd));
                }
            }
        }
    }
}

#[test]
fn a_norm_of_zeros_is_zero_and_large_numbers_do_not_overflow() {
    let norm = RmsNorm { weight: &[2.0; 64], epsilon: 1e-6, residual: None, dtype: DType::F32 };
    let got = rms_norm(Array2::zeros((2, 64)).view(), &norm).unwrap();
    assert!(
        got.values.iter().all(|v| *v == 0.0)
            && got.sum.is_none()
            && got.rstd == [1000.0; 2].map(|_| 1.0 / 1e-6f32.sqrt())
    );
    let got = rms_norm(Array2::from_elem((1, 64), 1e15).view(), &norm).unwrap();
    assert!(got.values.iter().all(|v| (v - 2.0).abs() < 1e-6));
}

#[test]
fn activations_are_near_their_definition() {
    let x = Array2::from_shape_fn((64, 512), |(i, j)| (i as f32 * 512.0 + j as f32 - 16384.0) * 2f32.powi(-10));
    near(&silu(x.view()), &definition::silu(x.view()), |at| LEAST_SIGMOID * f64::from(x[at].abs()) + STEPS);
    near(&gelu(x.view()), &definition::gelu(x.view()), |_| STEPS);
    let want = definition::gelu_tanh(x.view());
    for ((v, got), want) in x.iter().zip(&gelu_tanh(x.view())).zip(&want) {
        let off = (f64::from(*got) - want).abs();
        assert!(off <= off_of_gelu_tanh(*v, *want), "{v}: {got:e}, {want:e}, off {:e}", off / want.abs());
        assert!(*v < 0.0 || off_of_gelu_tanh(*v, *want) <= NEAR * want + LEAST_SIGMOID * f64::from(*v) + STEPS);
    }
    // Another function than the exact form, though not by much.
    for (tanh, exact) in want.iter().zip(&definition::gelu(x.view())) {
        assert!((tanh - exact).abs() < 5e-4);
    }
    let bits = |x: &Array2<f32>| x.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
    assert_eq!(bits(&gelu_tanh(x.view())), bits(&x.mapv(|v| Activation::Gelu.apply(v))));
    let special = ndarray::arr2(&[[f32::INFINITY, f32::NAN, f32::NEG_INFINITY, -0.0, -200.0]]);
    for f in [silu, gelu, gelu_tanh] {
        let y = f(special.view());
        assert!(y[[0, 0]] == f32::INFINITY && y[[0, 1]].is_nan());
        assert!(y.slice(s![0, 3..]).iter().all(|v| v.to_bits() == 1 << 31));
    }
    assert!(silu(special.view())[[0, 2]].is_nan() && gelu_tanh(special.view())[[0, 2]].is_nan());
    // The limit.
    assert_eq!(gelu(special.view())[[0, 2]].to_bits(), 1 << 31);
}

#[test]
fn refusals_name_operand_number_rule_and_remedy() {
    let x = Array2::<f32>::ones((3, 32));
    let says = |error: scaled_gemm::Error, words: &[&str]| {
        let text = error.to_string();
        words.iter().for_each(|word| assert!(text.contains(word), "{text}: {word}"));
    };
    let none = Swiglu::default();
    says(swiglu(x.slice(s![.., ..31]), &none).unwrap_err(), &["x of SwiGLU", "31", "even"]);
    says(
        swiglu(x.view(), &Swiglu { weights: Some(&[1.0]), ..none }).unwrap_err(),
        &["weights", "1 must be the 3 rows"],
    );
    says(
        swiglu(x.view(), &Swiglu { experts: Some(&[1; 4]), ..none }).unwrap_err(),
        &["experts", "4 must be the 3 rows"],
    );
    for c in [-1.0, f32::NAN] {
        let options = Swiglu { clamp: Some(c), ..none };
        says(swiglu(x.view(), &options).unwrap_err(), &["clamp", &c.to_string(), "at least 0"]);
        says(swiglu_backward(x.view(), x.slice(s![.., ..16]), &options).unwrap_err(), &["clamp"]);
    }
    says(swiglu_backward(x.view(), x.view(), &none).unwrap_err(), &["gradient", "3 x 32 must be 3 x 16"]);
    let norm = RmsNorm { weight: &[1.0; 32], epsilon: 1e-6, residual: None, dtype: DType::Bf16 };
    says(rms_norm(x.view(), &RmsNorm { weight: &[1.0; 31], ..norm }).unwrap_err(), &["weight", "31", "32 columns"]);
    let short = x.slice(s![..2, ..]);
    says(
        rms_norm(x.view(), &RmsNorm { residual: Some(short), ..norm }).unwrap_err(),
        &["residual", "2 x 32 must be 3 x 32"],
    );
    says(rms_norm(x.view(), &RmsNorm { dtype: DType::E4M3, ..norm }).unwrap_err(), &["e4m3", "bf16"]);
    for epsilon in [-1.0, f32::NAN, f32::INFINITY] {
        says(rms_norm(x.view(), &RmsNorm { epsilon, ..norm }).unwrap_err(), &["epsilon", "at least 0"]);
    }
}
