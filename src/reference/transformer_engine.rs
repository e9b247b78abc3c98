//! TransformerEngine's own order of the NVFP4 numbers that come after the bytes: dequantize, the factor of a product, and the
//! output of a product with row scales.
//!
//! It stores the largest magnitude, we store the decode factor `fl(amax / (6 E))`. The bytes of codes and block scales
//! agree; these FP32 numbers agree but for the last bits, because they are rounded in other places. They are here so that
//! results of both can be compared bit for bit in either order.

use crate::format::{E4m3Bound, Fp8Format, codec};

/// `fl(code * fl(fl(s * amax) * fl(1 / (6 E))))`: the FP32 value of an E2M1 code whose block scale is the byte `s`.
///
/// `amax` is that of the matrix, or of the row with row scaling. Allocates nothing.
pub fn dequantize(code: u8, s: u8, amax: f32, bound: E4m3Bound) -> f32 {
    let s = codec::decode(Fp8Format::E4M3, s);
    let factor = s * amax * (1.0 / (6.0 * bound.value()));
    codec::decode_e2m1(code) * factor
}

/// `fl(fl(fl(alpha * amax_a) * amax_b) * fl(1 / (36 E_a E_b)))`: what multiplies the sum of codes times block scales.
///
/// Overflows to infinity for products of amax beyond FP32. Allocates nothing.
pub fn alpha(alpha: f32, [amax_a, amax_b]: [f32; 2], [bound_a, bound_b]: [E4m3Bound; 2]) -> f32 {
    alpha * amax_a * amax_b * (1.0 / (36.0 * bound_a.value() * bound_b.value()))
}

/// `fl(fl(fl(sum * f) * fl(row_amax * b_amax)) + bias)`, `f` being [`alpha`] of 1 with both amax 1: an FP32 output of a
/// product whose A has row scales.
///
/// `sum` is the FP32 sum of codes times block scales. Allocates nothing.
pub fn row_scaled_output(sum: f32, row_amax: f32, b_amax: f32, bounds: [E4m3Bound; 2], bias: f32) -> f32 {
    sum * alpha(1.0, [1.0, 1.0], bounds) * (row_amax * b_amax) + bias
}
