//! The 16-point Hadamard transform with signs of [`Basis::Hadamard16`](crate::format::Basis::Hadamard16).
//!
//! ```text
//! v_i = x_i, negated where bit i of 0xD7E8 is set
//! for stride in 1, 2, 4, 8, for each i with bit `stride` clear:
//!     (v_i, v_{i + stride}) = (fl(v_i + v_{i + stride}), fl(v_i - v_{i + stride}))
//! y_j = BF16(fl(v_j * 1/4))
//! ```
//!
//! Each `fl(.)` is one FP32 operation rounded to nearest even; the last product is exact but for subnormals. Mirrored by
//! `hadamard` in `kernels/cast/nvfp4.cuh`, byte for byte. TransformerEngine sums in the tensor core in an unknown order: its
//! results may differ from these by one unit of BF16.

use multiversion::multiversion;

use super::quantize::amax;
use crate::format::codec;
use crate::format::nvfp4::HADAMARD_SIGNS;

/// `y_j = BF16(1/4 sum_i sign_i (-1)^popcount(i & j) x_i)`, the sums as a butterfly in the order this module gives.
///
/// NaN and infinity spread over all sixteen. Allocates nothing.
pub fn hadamard16(x: &[f32; 16]) -> [f32; 16] {
    let mut y = [[0.0; 16]];
    hadamard16_all(std::slice::from_ref(x), &mut y);
    y[0]
}

/// The largest magnitude of these elements in the basis [`Basis::Hadamard16`](crate::format::Basis::Hadamard16), each 16 of them
/// transformed on their own; NaN ignored, 0 if there is nothing else. Elements after the last whole 16 have no part in it.
///
/// The amax that [`quantize_rows`](super::quantize_rows) wants of a matrix for a Hadamard recipe. Allocates nothing.
pub fn hadamard16_amax(x: &[f32]) -> f32 {
    let mut y = [[0.0; 16]; 64];
    let parts = x.as_chunks().0.chunks(y.len());
    let amaxes = parts.map(|part| {
        let y = &mut y[..part.len()];
        hadamard16_all(part, y);
        amax(y.as_flattened())
    });
    amaxes.fold(0.0, f32::max)
}

/// [`hadamard16`] of each.
#[multiversion(targets("x86_64+avx2+fma"))]
pub(super) fn hadamard16_all(x: &[[f32; 16]], y: &mut [[f32; 16]]) {
    /// Blocks whose butterflies run abreast, an element of each side by side.
    const ABREAST: usize = 8;
    for (x, y) in x.chunks(ABREAST).zip(y.chunks_mut(ABREAST)) {
        let mut v = [[0.0; ABREAST]; 16];
        for (b, x) in x.iter().enumerate() {
            for (v, x) in v.iter_mut().zip(x) {
                v[b] = *x;
            }
        }
        for (i, v) in v.iter_mut().enumerate() {
            let sign = u32::from(HADAMARD_SIGNS >> i & 1) << 31;
            v.iter_mut().for_each(|v| *v = f32::from_bits(v.to_bits() ^ sign));
        }
        for stride in [1, 2, 4, 8] {
            for i in (0..16).filter(|i| i & stride == 0) {
                let (front, back) = v.split_at_mut(i + stride);
                for (low, high) in front[i].iter_mut().zip(&mut back[0]) {
                    (*low, *high) = (*low + *high, *low - *high);
                }
            }
        }
        for (b, y) in y.iter_mut().enumerate() {
            for (y, v) in y.iter_mut().zip(&v) {
                *y = codec::round_bf16(v[b] * 0.25);
            }
        }
    }
}

/// `x_i = sign_i 1/4 sum_j (-1)^popcount(i & j) y_j` in FP32, the sums in the same order: the inverse of [`hadamard16`] but for
/// rounding. Allocates nothing.
pub fn hadamard16_inverse(y: &[f32; 16]) -> [f32; 16] {
    let mut v = *y;
    butterfly(&mut v);
    let mut x = v.map(|v| v * 0.25);
    flip_signs(&mut x);
    x
}

fn flip_signs(v: &mut [f32; 16]) {
    for (i, v) in v.iter_mut().enumerate() {
        if HADAMARD_SIGNS >> i & 1 == 1 {
            *v = -*v;
        }
    }
}

fn butterfly(v: &mut [f32; 16]) {
    for stride in [1, 2, 4, 8] {
        for i in (0..16).filter(|i| i & stride == 0) {
            let (a, b) = (v[i], v[i + stride]);
            (v[i], v[i + stride]) = (a + b, a - b);
        }
    }
}
