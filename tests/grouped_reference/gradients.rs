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

/// `f = s q`, `q = 1 + w r`, s the sigmoid of z and `r = 1 - s`, which is `e s` of `e = exp(-z)`. To first order, `u = 2^-24`:
///
/// * e is off by `4u` of itself (2 ulp), `1 + e` by `4u r + u`, s by `u (2 + 4r)`, and `r = e s` by `u (3 + 4s)`: an error of e moves it by s
///   of that.
/// * q is off by `|w| r u (3 + 4s) + u |q|`. With the last product and `|q| <= 1 + |w| r`, f is off by at most
///   `s u (|q| (4 + 4r) + |w| r (3 + 4s)) <= s u (4 + 4r + 11 |w| r)`, as `r + s = 1`.
/// * w is a product of k rounded factors, constants among them: k is 0 for SiLU, 2 for QuickGELU, 7 for GELU. `s |w| r k u`.
/// * z has as many. `df / dz = s r (1 + w (r - s))`, at most `s r (1 + |w|)`, times `k u |z|`.
///
/// Where exp(-z) is beyond FP32, z being below -88.7, the result is 0 and f below `(1 + |w|) exp(z) <= 1e-36`; just above it s is
/// subnormal, which is worth less than that.
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
            let (z, w, k) = match of {
                ActivationGradient::Silu => (v, v, 0.0),
                ActivationGradient::QuickGelu => (1.702 * v, 1.702 * v, 2.0),
                ActivationGradient::Gelu => {
                    (root * (v + 0.044715 * v.powi(3)), root * (v + 3.0 * 0.044715 * v.powi(3)), 7.0)
                }
                _ => {
                    assert_eq!(got, want, "{of} at {x:e}");
                    continue;
                }
            };
            let (s, r) = (1.0 / (1.0 + (-z).exp()), 1.0 / (1.0 + z.exp()));
            let far = z.abs() > 300.0;
            let want = if far { f64::from(u8::from(x > 0.0)) } else { want };
            let sum =
                if far { 0.0 } else { 4.0 + 4.0 * r + ((11.0 + k) + k * z.abs()) * r * w.abs() + k * z.abs() * r };
            let bound = s * sum * 2f64.powi(-24) + 1e-36;
            assert!((got - want).abs() <= bound, "{of} at {x:e}: {got:e}, {want:e}, bound {bound:e}");
            if s > 1e-20 {
                *worst = worst.max((got - want).abs() / bound);
            }
            // For positive x in units of the last place: 3.02 at most of three million numbers up to 21.
            if x > 0.0 {
                let unit = f64::from((got as f32).next_up()) - got;
                assert!((got - want).abs() < 4.0 * unit, "{of} at {x:e}: {got:e}, {want:e}");
            }
        }
    }
    println!("largest error, of the bound: {worst:?}");
    assert!(worst[1..4].iter().all(|worst| *worst > 0.2), "a bound that says nothing: {worst:?}");
}

/// The order of operations, which no bound can tell: folded bits over every BF16 number, and over numbers with all their digits. Made by a program
/// that shares nothing with the crate (numpy's FP32, and fused multiply-adds by exact fractions).
#[test]
fn derivatives_are_these_bits() {
    let points = || {
        let all = (0..=0xFFFFu32).map(|pattern| f32::from_bits(pattern << 16));
        all.chain((-12_000..=12_000).map(|i| i as f32 * 0.00137))
    };
    let near = [-4.0, -1.278_464_5, -0.7, 0.3, 1.0, 5.5];
    for (of, fold, patterns) in [
        (
            ActivationGradient::Relu,
            0x38bf_b8a5_2000_0000,
            [0x0000_0000, 0x0000_0000, 0x0000_0000, 0x3f80_0000, 0x3f80_0000, 0x3f80_0000],
        ),
        (
            ActivationGradient::Gelu,
            0x5fcf_8dd9_5676_bd1a,
            [0xb9af_b373, 0xbdff_253b, 0x3cc1_ae83, 0x3f3b_77b8, 0x3f8a_9e92, 0x3f80_0000],
        ),
        (
            ActivationGradient::Silu,
            0xc599_39a9_4d91_6c81,
            [0xbd57_b6d9, 0xb13e_f43e, 0x3e34_da18, 0x3f25_d4e8, 0x3f6d_7bd1, 0x3f82_552e],
        ),
        (
            ActivationGradient::QuickGelu,
            0xaf05_5366_1a9e_0e18,
            [0xbbd1_c6e9, 0xbdc7_2f13, 0x3ca4_8d2a, 0x3f3e_9fcb, 0x3f88_ad00, 0x3f80_178f],
        ),
        (
            ActivationGradient::SquaredRelu,
            0xb022_4b6e_58f0_149a,
            [0x0000_0000, 0x0000_0000, 0x0000_0000, 0x3f19_999a, 0x4000_0000, 0x4130_0000],
        ),
    ] {
        assert_eq!(near.map(|x| of.apply(x).to_bits()), patterns, "{of}");
        let bits = points().map(|x| bits(&[of.apply(x)])[0]);
        let got = bits.fold(0u64, |h, b| h.wrapping_mul(1_000_003).wrapping_add(u64::from(b)));
        assert_eq!(got, fold, "{of}: {got:#018x}");
    }
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
