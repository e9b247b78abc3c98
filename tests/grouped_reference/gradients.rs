//! Quantizing the gradient of an activation, and the derivatives themselves.

use scaled_gemm::reference::{GroupedInput, GroupedView, definition, quantize_grouped, quantize_grouped_with_scales};
use scaled_gemm::{ActivationGradient, DType, GivenScale, GroupedLayout, GroupedRecipe, GroupedScheme};

use crate::{E4M3, SHAPES, bits, encode_one, encodes, input, layouts, many, moved, same, values};

/// (d) and (e): extents are the gradient's, x lies elsewhere and is of another type; the codes are those of the FP32 product.
#[test]
fn gradients_lie_as_the_gradient_does_whatever_x_does() {
    for shapes in [vec![], vec![[3, 16]], SHAPES.to_vec(), many(70)] {
        let all = layouts(&shapes);
        let (g, x) = (values(&all[0], DType::Bf16, 65), values(&all[0], DType::F32, 66));
        for of in ActivationGradient::ALL {
            let product: Vec<f32> = g.iter().zip(&x).map(|(g, x)| of.apply(*x) * g).collect();
            for scheme in GroupedScheme::all() {
                let recipe = GroupedRecipe::new(scheme);
                let (want, want_amax) = quantize_grouped(&input(&all[0], &product), recipe).unwrap();
                let encode = encodes(scheme, shapes.len());
                let encode = GivenScale::Encode(&encode[..]);
                let (given, _) = quantize_grouped_with_scales(&input(&all[0], &product), scheme, encode).unwrap();
                for (of_g, of_x) in [(0, 0), (0, 2), (2, 1), (1, 2)] {
                    let (g, x) = (moved(&all[0], &g, &all[of_g]), moved(&all[0], &x, &all[of_x]));
                    let [g, x] = [(of_g, &g), (of_x, &x)].map(|(i, v)| GroupedView::new(&all[i], v).unwrap());
                    let both = GroupedInput::activation_gradient(of, g, x).unwrap();
                    let (got, amax) = quantize_grouped(&both, recipe).unwrap();
                    assert_eq!(got, want.in_layout(all[of_g].clone()).unwrap(), "{of}, {scheme}");
                    assert_eq!(bits(&amax), bits(&want_amax));
                    let (got, _) = quantize_grouped_with_scales(&both, scheme, encode).unwrap();
                    assert_eq!(got, given.in_layout(all[of_g].clone()).unwrap(), "{of}, {scheme}");
                    let naive = definition::quantize_grouped(&both, recipe);
                    same(&Ok((want.in_layout(all[of_g].clone()).unwrap(), amax)), &naive, &format!("{of}, {scheme}"));
                }
            }
        }
    }
}

/// `f = s q`, `q = 1 + w r`, s the sigmoid of z and `r = 1 - s`. To first order, u = 6e-8 being half an ulp of 1:
///
/// * s is off by 3e-7 of itself (a unit test of `sigmoid`), so that r is by `3e-7 s + u r`, and q by `|w|` times that and `u |q|`. With the
///   last product, f is off by at most `s ((3e-7 + 2u) (1 + |w| r) + |w| (3e-7 s + u r))`.
/// * w is a product of at most seven rounded factors, `s |w| r 7u`. Both are below `9e-7 s (1 + |w|)`, as `s + r = 1`.
/// * z has as many. `df / dz = s r (1 + w (r - s))`, at most `s r (1 + |w|)`, times `7u |z|`.
///
/// Where exp(-z) is beyond FP32, f is below 1e-34.
#[test]
fn derivatives_are_near_their_definition() {
    let points = (-240_000..=240_000)
        .map(|i| i as f32 * 5e-4)
        .chain((-40..40).flat_map(|e| [1.0, -1.0, 1.7, -1.7].map(|m| m * 2f32.powi(3 * e))));
    let mut worst = [0.0f64; 5];
    for x in points {
        let v = f64::from(x);
        for (of, worst) in ActivationGradient::ALL.into_iter().zip(&mut worst) {
            let (got, want) = (f64::from(of.apply(x)), definition::activation_gradient(of, v));
            let root = (8.0 / std::f64::consts::PI).sqrt();
            let (z, w) = match of {
                ActivationGradient::Silu => (v, v),
                ActivationGradient::QuickGelu => (1.702 * v, 1.702 * v),
                ActivationGradient::Gelu => {
                    (root * (v + 0.044715 * v.powi(3)), root * (v + 3.0 * 0.044715 * v.powi(3)))
                }
                _ => {
                    assert_eq!(got, want, "{of} at {x:e}");
                    continue;
                }
            };
            let (s, rest) = (1.0 / (1.0 + (-z).exp()), 1.0 / (1.0 + z.exp()));
            let far = z.abs() > 300.0;
            let bound = if far { 1e-30 } else { s * (1.0 + w.abs()) * (1e-6 + 5e-7 * z.abs() * rest) + 1e-34 };
            let want = if far { f64::from(u8::from(x > 0.0)) } else { want };
            assert!((got - want).abs() <= bound, "{of} at {x:e}: {got:e}, {want:e}, bound {bound:e}");
            *worst = worst.max((got - want).abs() / bound);
        }
    }
    println!("largest error, of the bound: {worst:?}");
    assert!(worst[1..4].iter().all(|worst| *worst > 0.05), "a bound that says nothing: {worst:?}");
}

/// The definition of each derivative is what differences of the activation are.
#[test]
fn the_definition_of_derivatives_is_one() {
    let sigmoid = |v: f64| 1.0 / (1.0 + (-v).exp());
    for of in ActivationGradient::ALL {
        let activation = |x: f64| match of {
            ActivationGradient::Relu => x.max(0.0),
            ActivationGradient::SquaredRelu => x.max(0.0).powi(2),
            ActivationGradient::Silu => x * sigmoid(x),
            ActivationGradient::QuickGelu => x * sigmoid(1.702 * x),
            _ => 0.5 * x * (1.0 + ((2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3))).tanh()),
        };
        // Never at 0, where that of ReLU jumps.
        for x in (-400..400).map(|i| (f64::from(i) + 0.5) / 32.0) {
            let step = 1e-5;
            let want = (activation(x + step) - activation(x - step)) / (2.0 * step);
            let got = definition::activation_gradient(of, x);
            assert!((got - want).abs() < 1e-8 * (1.0 + x.abs()), "{of} at {x}: {got} {want}");
        }
    }
}

#[test]
fn special_values_have_their_derivatives() {
    use ActivationGradient as Of;
    for of in ActivationGradient::ALL {
        let at = |x: f32| of.apply(x);
        let squared = of == Of::SquaredRelu;
        let limit = if squared { f32::INFINITY } else { 1.0 };
        assert_eq!([at(f32::INFINITY), at(f32::NEG_INFINITY), at(-3e38)], [limit, 0.0, 0.0], "{of}");
        assert_eq!(at(3e38), if squared { f32::INFINITY } else { 1.0 }, "{of}");
        // Zeros are positive: the sign of a code is then the gradient's.
        assert!([at(f32::NEG_INFINITY), at(-1e20), at(-200.0)].iter().all(|v| v.to_bits() == 0), "{of}");
        let [zero, nan] = match of {
            Of::Relu | Of::SquaredRelu => [0.0, 0.0],
            _ => [0.5, f32::NAN],
        };
        assert_eq!(bits(&[at(0.0), at(-0.0), at(f32::NAN)]), bits(&[zero, zero, nan]), "{of}");
    }
    // The golden's zero: -2 * 0 is -0, code 0x80. An infinite gradient times 0 is NaN, which is no amax.
    let layout = GroupedLayout::packed(&[[1, 4]]).unwrap();
    let [g, x] = [[-2.0, f32::INFINITY, f32::NAN, 3.0], [0.0, -1.0, 1.0, 1.0]];
    let [g, x] = [&g, &x].map(|v| GroupedView::new(&layout, v).unwrap());
    let gradient = GroupedInput::activation_gradient(Of::Relu, g, x).unwrap();
    let (q, amax) = quantize_grouped_with_scales(&gradient, E4M3, GivenScale::Encode(&[1.0])).unwrap();
    assert_eq!((q.codes(), &amax[..]), (&[0x80, 0x7F, 0x7F, encode_one(3.0)][..], &[3.0][..]));
}
