//! The steps of [`nvfp4`](super::nvfp4) for many blocks of rows at once.
//!
//! Every function has its loops written so that they vectorise, and is compiled for newer CPUs, too: neither changes a bit,
//! for every element goes through the same operations, and nothing is contracted.

use std::ops::Range;

use multiversion::multiversion;

use super::philox::philox4x32_10;
use crate::format::{BlockScaleRule, E4m3Bound, ErrorMath, ErrorMetric, Nvfp4Recipe, SecondLevel, TorchDevice, codec};

/// Blocks that are handled together: what is known of them stays in the nearest cache.
pub(super) const AT_ONCE: usize = 64;

type Block = [f32; 16];

/// Steps 3 and 4, and the choice of 4over6, for some of the blocks of a row or of the rows of a tile.
pub(super) fn scales(
    rows: &[&[Block]],
    some: Range<usize>,
    level: &SecondLevel,
    recipe: Nvfp4Recipe,
    s: &mut [u8],
    inv: &mut [f32],
) {
    let options = recipe.options();
    let mut largest = [0.0; AT_ONCE];
    let largest = &mut largest[..some.len()];
    for row in rows {
        amaxes(&row[some.clone()], largest);
    }
    match (recipe.torchao(), options.block_scale) {
        (Some(device), _) => torchao_scales(largest, level, device, s, inv),
        (None, BlockScaleRule::Plain) => plain_scales(largest, level, s, inv),
        (None, BlockScaleRule::FourOverSix { metric, math }) => {
            let (mut other, mut other_inv) = ([0; AT_ONCE], [0.0; AT_ONCE]);
            let (other, other_inv) = (&mut other[..some.len()], &mut other_inv[..some.len()]);
            four_over_six_scales(largest, level, [&mut *other, &mut *s], [&mut *other_inv, &mut *inv]);
            let (mut errors4, mut errors6) = ([0.0; AT_ONCE], [0.0; AT_ONCE]);
            for (errors, s, inv) in [(&mut errors4, &*other, &*other_inv), (&mut errors6, &*s, &*inv)] {
                let mut line_errors = vec![[0.0; AT_ONCE]; rows.len()];
                for (line, row) in line_errors.iter_mut().zip(rows) {
                    let line = &mut line[..some.len()];
                    self::errors(&row[some.clone()], s, inv, level, options.bound, (metric, math), line);
                }
                *errors = sum_of_lines(&mut line_errors);
            }
            for b in 0..some.len() {
                // A tie or a NaN leaves 6.
                if errors4[b] < errors6[b] {
                    (s[b], inv[b]) = (other[b], other_inv[b]);
                }
            }
        }
    }
}

/// Step 8 for many blocks: the tree of [`tree_sum`](super::nvfp4::tree_sum), or the one line.
fn sum_of_lines(lines: &mut [[f32; AT_ONCE]]) -> [f32; AT_ONCE] {
    let mut width = lines.len();
    while width > 1 {
        width /= 2;
        let (low, high) = lines.split_at_mut(width);
        for (low, high) in low.iter_mut().flatten().zip(high.as_flattened()) {
            *low += *high;
        }
    }
    lines[0]
}

/// Raises each of `amaxes` to the amax of its block.
#[multiversion(targets("x86_64+avx2+fma"))]
fn amaxes(blocks: &[Block], amaxes: &mut [f32]) {
    for (a, block) in amaxes.iter_mut().zip(blocks) {
        // Patterns of non-negative numbers are ordered like the numbers; an integer maximum vectorises within a block.
        let mut largest = a.to_bits();
        for v in block {
            let abs = v.to_bits() & 0x7FFF_FFFF;
            largest = largest.max(if abs > 0x7F80_0000 { 0 } else { abs });
        }
        *a = f32::from_bits(largest);
    }
}

#[multiversion(targets("x86_64+avx2+fma"))]
fn plain_scales(amaxes: &[f32], level: &SecondLevel, s: &mut [u8], inv: &mut [f32]) {
    for ((a, s), inv) in amaxes.iter().zip(s).zip(inv) {
        *s = level.plain_scale(*a);
        *inv = level.multiplier(*s);
    }
}

#[multiversion(targets("x86_64+avx2+fma"))]
fn torchao_scales(amaxes: &[f32], level: &SecondLevel, device: TorchDevice, s: &mut [u8], inv: &mut [f32]) {
    for ((a, s), inv) in amaxes.iter().zip(s).zip(inv) {
        (*s, *inv) = level.torchao_block(*a, device);
    }
}

/// Both candidates: that of 4, that of 6.
#[multiversion(targets("x86_64+avx2+fma"))]
fn four_over_six_scales(amaxes: &[f32], level: &SecondLevel, [s4, s6]: [&mut [u8]; 2], [inv4, inv6]: [&mut [f32]; 2]) {
    for ((a, (s4, s6)), (inv4, inv6)) in amaxes.iter().zip(s4.iter_mut().zip(s6)).zip(inv4.iter_mut().zip(inv6)) {
        [*s4, *s6] = level.four_over_six_scales(*a);
        [*inv4, *inv6] = [level.multiplier(*s4), level.multiplier(*s6)];
    }
}

/// Steps 5 to 7: the error of each block with its candidate `s`.
#[multiversion(targets("x86_64+avx2+fma"))]
pub(super) fn errors(
    blocks: &[Block],
    s: &[u8],
    inv: &[f32],
    level: &SecondLevel,
    bound: E4m3Bound,
    by: (ErrorMetric, ErrorMath),
    errors: &mut [f32],
) {
    let (amax, six_e, encode) = (level.amax, 6.0 * bound.value(), level.encode);
    let strict = |x: f32, q: f32, s: f32| q * s * amax / six_e - x;
    let fast = |x: f32, q: f32, s: f32| q * s - x * encode;
    match by {
        (ErrorMetric::Mae, ErrorMath::Strict) => sums(blocks, s, inv, errors, |x, q, s| strict(x, q, s).abs()),
        (ErrorMetric::Mae, ErrorMath::Fast) => sums(blocks, s, inv, errors, |x, q, s| fast(x, q, s).abs()),
        (ErrorMetric::Mse, ErrorMath::Strict) => sums(blocks, s, inv, errors, |x, q, s| square(strict(x, q, s))),
        (ErrorMetric::Mse, ErrorMath::Fast) => sums(blocks, s, inv, errors, |x, q, s| square(fast(x, q, s))),
    }
}

#[inline(always)]
fn square(d: f32) -> f32 {
    d * d
}

/// The sum over each block's elements, in order, of `term(x, q, s)`, `q` being the value of the code of `x`.
#[inline(always)]
fn sums(blocks: &[Block], s: &[u8], inv: &[f32], sums: &mut [f32], term: impl Fn(f32, f32, f32) -> f32) {
    /// Blocks whose sums, each a chain of additions, run side by side.
    const ABREAST: usize = 8;
    let chunks = blocks.chunks(ABREAST).zip(s.chunks(ABREAST)).zip(inv.chunks(ABREAST));
    for (((blocks, s), inv), sums) in chunks.zip(sums.chunks_mut(ABREAST)) {
        let mut terms = [[0.0; 16]; ABREAST];
        for (((terms, block), s), inv) in terms.iter_mut().zip(blocks).zip(s).zip(inv) {
            let s = codec::decode_e4m3(*s);
            for (t, x) in terms.iter_mut().zip(block) {
                *t = term(*x, codec::round_e2m1(x * inv), s);
            }
        }
        let mut totals = [0.0; ABREAST];
        for i in 0..16 {
            for (total, terms) in totals.iter_mut().zip(&terms) {
                *total += terms[i];
            }
        }
        sums.copy_from_slice(&totals[..sums.len()]);
    }
}

/// Step 5 by rounding to the nearest code.
#[multiversion(targets("x86_64+avx2+fma"))]
pub(super) fn nearest(blocks: &[Block], inv: &[f32], codes: &mut [[u8; 8]]) {
    let mut bytes = [[0; 16]; AT_ONCE];
    for ((bytes, block), inv) in bytes.iter_mut().zip(blocks).zip(inv) {
        for (byte, x) in bytes.iter_mut().zip(block) {
            *byte = codec::encode_e2m1(x * inv);
        }
    }
    pack(bytes.as_flattened(), codes.as_flattened_mut());
}

/// Step 5 with random bytes: seed, offset, and the number of the first block in the matrix.
#[multiversion(targets("x86_64+avx2+fma"))]
pub(super) fn stochastic(blocks: &[Block], inv: &[f32], [seed, offset, first]: [u64; 3], codes: &mut [[u8; 8]]) {
    for (index, ((codes, block), inv)) in codes.iter_mut().zip(blocks).zip(inv).enumerate() {
        let words = philox4x32_10(seed, offset, first + index as u64);
        let mut random = [[0; 4]; 4];
        random.iter_mut().zip(words).for_each(|(bytes, word)| *bytes = word.to_le_bytes());
        let mut bytes = [0; 16];
        for ((byte, x), random) in bytes.iter_mut().zip(block).zip(random.as_flattened()) {
            *byte = codec::encode_e2m1_stochastic(x * inv, *random);
        }
        pack(&bytes, codes);
    }
}

/// Two codes a byte, the one of the even column in the low half.
#[inline(always)]
fn pack(codes: &[u8], bytes: &mut [u8]) {
    for (byte, pair) in bytes.iter_mut().zip(codes.as_chunks().0) {
        let pair = u16::from_le_bytes(*pair);
        *byte = (pair | pair >> 4) as u8;
    }
}
