//! [`Epilogue`]: what happens to the FP32 sum before it is stored. [`ActivationGradient`]: the way back through an activation.

use crate::format::DType;

/// The function applied after the bias.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[non_exhaustive]
pub enum Activation {
    /// `v`.
    #[default]
    None,
    /// `max(v, 0)`; NaN stays NaN.
    Relu,
    /// GELU in its tanh form: `v * sigmoid(2u)`, `u = 0.7978846 * (v + 0.044715 v^3)`; NaN at minus infinity.
    Gelu,
    /// SiLU: `v * sigmoid(v)`; NaN at minus infinity.
    Silu,
}

/// What a GEMM does after the sum. `Default` is nothing: store the sum.
///
/// In operation order, each step one rounded FP32 operation:
///
/// ```text
/// v = acc                                the FP32 sum, block scales and alpha applied
/// v = fl(v * row_scale[i])               where A is scaled by rows and the GEMM did not do it
/// v = fl(v * col_scale[j])               where B is scaled by rows and the GEMM did not do it
/// v = fl(fl(beta * c[i, j]) + v)         Accumulate::Add; with beta = 0 C is not read
/// v = fl(v + bias[j])
/// v = activation(v)
/// v = fl(v + residual[i, j])
/// d = round(v)                           nearest even; E4M3 output: saturate(fl(v * out_encode))
/// ```
///
/// Mirrored by `kernels/gemm/epilogue.cu`; the activations use only IEEE operations, also
/// for the exponential (error below 2 ulp), so the bytes are equal. One exception: where nothing but `c` with beta = 1 follows the sum, our product of two
/// 1x128 operands for sm_90 lets the L2 cache add, for which numbers below 2^-126 (subnormal ones) count as 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct Epilogue {
    /// Element type of the bias, one value for each column of D.
    pub bias: Option<DType>,
    /// Function applied after the bias.
    pub activation: Activation,
    /// Element type of the residual, added after the activation; same shape as D.
    pub residual: Option<DType>,
}

impl Epilogue {
    /// True if the sum is stored as it is.
    pub fn is_none(&self) -> bool {
        *self == Self::default()
    }
}

named!(Activation, "activation", None => "none", Relu => "relu", Gelu => "gelu", Silu => "silu");

impl Activation {
    /// The activation of `v`, operation by operation as on the device.
    pub fn apply(self, v: f32) -> f32 {
        match self {
            Self::None => v,
            Self::Relu => {
                if v < 0.0 {
                    0.0
                } else {
                    v
                }
            }
            Self::Gelu => v * sigmoid(2.0 * gelu_tanh_argument(v)),
            Self::Silu => v * sigmoid(v),
        }
    }
}

/// The derivative of an activation, which the gradient of its result is multiplied by.
///
/// In operation order, each step one rounded FP32 operation:
///
/// ```text
/// relu    1 if x > 0, else 0                                   0 at 0
/// srelu   fl(2 x) if x > 0, else 0                             of max(x, 0)^2, squared ReLU
/// silu    z = w = x
/// qgelu   z = w = fl(1.702 x)                                  of x * sigmoid(1.702 x), QuickGELU
/// gelu    c = fl(fl(x * x) * x)                                of GELU in its tanh form
///         z = fl(2 fl(0.7978846 * fl(x + fl(0.044715 * c))))
///         w = fl(2 fl(0.7978846 * fl(x + fl(0.134145 * c))))   x * dz/dx
///         e = exp(-z), s = fl(1 / fl(1 + e))
///         s if s or e is 0, else fl(s * fma(w, fl(e * s), 1))  all of the last three
/// ```
///
/// NaN gives 0 in `relu` and `srelu`, as in TransformerEngine, and NaN in the others. Infinities give the limits, 0 or 1, but for `srelu`.
///
/// `e s` is the `1 - s` of an exact sigmoid, with all its digits. Of the last three the error is below
/// `2^-24 s (4 + 4r + (11 + k) r |w| + k r |z| (1 + |w|)) + 1e-36`, `r = 1 - s`, k being 0 (`silu`), 2 (`qgelu`) or 7 (`gelu`): 3.02 ulp
/// is the most found for positive x. Where `exp(-z)` is beyond FP32 (z below -88.7) the result is 0, and the derivative nearer to it than
/// 1e-36. Where e is 0 (z above 104) it is 1, to the last bit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[doc(alias = "dact")]
pub enum ActivationGradient {
    /// Of `max(x, 0)`.
    #[doc(alias = "drelu")]
    Relu,
    /// Of GELU in its tanh form, [`Activation::Gelu`].
    #[doc(alias = "dgelu")]
    Gelu,
    /// Of `x * sigmoid(x)`.
    #[doc(alias = "dsilu")]
    Silu,
    /// Of `x * sigmoid(1.702 x)`.
    #[doc(alias = "dqgelu")]
    QuickGelu,
    /// Of `max(x, 0)^2`.
    #[doc(alias = "dsrelu")]
    SquaredRelu,
}

named!(
    ActivationGradient, "activation gradient", Relu => "relu", Gelu => "gelu", Silu => "silu", QuickGelu => "qgelu",
    SquaredRelu => "srelu",
);

impl ActivationGradient {
    /// The derivative at `x`, in the order of operations above.
    pub fn apply(self, x: f32) -> f32 {
        let gated = |z: f32, w: f32| {
            let e = exp(-z);
            let s = 1.0 / (1.0 + e);
            // w may be infinite here, and the other factor is infinity times 0, or 0.
            if s == 0.0 || e == 0.0 { s } else { s * w.mul_add(e * s, 1.0) }
        };
        match self {
            Self::Relu if x > 0.0 => 1.0,
            Self::SquaredRelu if x > 0.0 => 2.0 * x,
            Self::Relu | Self::SquaredRelu => 0.0,
            Self::Silu => gated(x, x),
            Self::QuickGelu => gated(1.702 * x, 1.702 * x),
            Self::Gelu => {
                let cube = x * x * x;
                gated(2.0 * gelu_tanh_argument(x), 2.0 * (0.797_884_6 * (x + 0.134_145 * cube)))
            }
        }
    }
}

/// `fl(1 / fl(1 + exp(-x)))`: what SiLU, SwiGLU and GELU in its tanh form multiply by, within 3e-7 of the sigmoid while the result is
/// a normal number.
///
/// A product with the rounded inverse is what a GPU does in half the steps of a division, and off by half an ulp more.
pub(crate) fn sigmoid(x: f32) -> f32 {
    1.0 / (1.0 + exp(-x))
}

/// u of GELU in its tanh form, `v * (1 + tanh(u)) / 2 = v * sigmoid(2u)`.
fn gelu_tanh_argument(v: f32) -> f32 {
    let cube = v * v * v;
    0.797_884_6 * (v + 0.044_715 * cube)
}

/// `e^x` in FP32 from IEEE operations alone, so that CPU and GPU agree in every bit; error below 2 ulp.
///
/// `x = n ln2 + r` with `|r| <= ln2 / 2` (Cody and Waite's two-part ln2), the polynomial `1 + r + r^2 q(r)` of degree 6 whose
/// relative error there is the least (3.6e-9) by Horner's rule with fused multiply-adds, then two exact-power scalings so that
/// results near the limits round once. Below -104 the result is 0, above 89 infinity; NaN stays NaN.
pub(crate) fn exp(x: f32) -> f32 {
    if x > 89.0 {
        return f32::INFINITY;
    }
    if x < -104.0 {
        return 0.0;
    }
    // Adding and subtracting 1.5 * 2^23 rounds to the nearest integer in FP32.
    let n = x.mul_add(std::f32::consts::LOG2_E, 12_582_912.0) - 12_582_912.0;
    let r = n.mul_add(-0.693_145_75, x);
    let r = n.mul_add(-1.428_606_8e-6, r);
    let mut p = 1.381_454e-3_f32;
    for c in [8.368_745e-3, 4.166_839e-2, 1.666_652_1e-1, 4.999_999_4e-1, 1.0, 1.0] {
        p = p.mul_add(r, c);
    }
    let n = n as i32;
    let half = n >> 1;
    let power = |e: i32| f32::from_bits(((e + 127) as u32) << 23);
    p * power(half) * power(n - half)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exp_is_within_two_ulp_of_f64() {
        let (mut worst, mut relative) = (0.0f64, 0.0f64);
        for i in -104_000..=88_700 {
            let x = i as f32 * 1e-3;
            let want = f64::from(x).exp();
            let ulp = (f64::from(f32::from_bits((want as f32).to_bits() + 1)) - f64::from(want as f32)).max(1.5e-45);
            let off = (f64::from(exp(x)) - want).abs();
            worst = worst.max(off / ulp);
            if want >= f64::from(f32::MIN_POSITIVE) {
                relative = relative.max(off / want);
            }
        }
        assert!(worst < 2.0, "{worst} ulp");
        // Of all arguments beyond 2^-32 whose result is a normal number 1.293 * 2^-24 is the worst (a run of the same operations over all
        // of them): what the bounds of the producers are derived from.
        assert!(relative < 1.3 / 2f64.powi(24), "{relative:e}");
        assert!(exp(f32::NAN).is_nan());
        assert_eq!((exp(200.0), exp(-200.0), exp(0.0)), (f32::INFINITY, 0.0, 1.0));
    }

    #[test]
    fn sigmoid_is_within_3e_7() {
        let mut worst = 0.0f64;
        for i in -88_000..=88_000 {
            let x = i as f32 * 1e-3;
            let want = 1.0 / (1.0 + f64::from(-x).exp());
            worst = worst.max((f64::from(sigmoid(x)) - want).abs() / want);
        }
        assert!(worst < 3e-7, "{worst:e}");
        assert_eq!((sigmoid(0.0), sigmoid(f32::INFINITY), sigmoid(f32::NEG_INFINITY)), (0.5, 1.0, 0.0));
        assert!(sigmoid(f32::NAN).is_nan());
    }

    #[test]
    fn activations_meet_their_definitions() {
        for i in -4000..4000 {
            let v = i as f32 * 5e-3;
            let x = f64::from(v);
            let close = |got: f32, want: f64| {
                assert!((f64::from(got) - want).abs() <= 1e-6 * want.abs().max(1e-3), "{v}: {got} {want}")
            };
            close(Activation::Silu.apply(v), x / (1.0 + (-x).exp()));
            let u = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x * x * x);
            close(Activation::Gelu.apply(v), 0.5 * x * (1.0 + u.tanh()));
            close(Activation::Relu.apply(v), x.max(0.0));
        }
        assert!(Activation::Relu.apply(f32::NAN).is_nan());
        assert!(Activation::Gelu.apply(f32::NEG_INFINITY).is_nan());
    }
}
