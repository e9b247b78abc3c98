//! Philox4x32 with ten rounds: random words as a function of a key and a counter, so that no state is kept.
//!
//! Mirrored by `philox` in `kernels/cast/nvfp4.cuh`.

const MULTIPLIERS: [u32; 2] = [0xD251_1F53, 0xCD9E_8D57];
const KEY_STEPS: [u32; 2] = [0x9E37_79B9, 0xBB67_AE85];

/// Four random words: Philox4x32-10 (Salmon et al., Random123) with key `seed` and counter `(offset, subsequence)`.
///
/// Each 64-bit number is two words, the low one first. NVFP4's stochastic rounding takes one call for each block of 16
/// elements ([`CodeRounding::Stochastic`](crate::format::CodeRounding::Stochastic)): element e uses byte `e % 4`, lowest
/// first, of word `e / 4`. Allocates nothing.
pub fn philox4x32_10(seed: u64, offset: u64, subsequence: u64) -> [u32; 4] {
    let halves = |v: u64| (v as u32, (v >> 32) as u32);
    let (c0, c1) = halves(offset);
    let (c2, c3) = halves(subsequence);
    let (mut k0, mut k1) = halves(seed);
    let mut counter = [c0, c1, c2, c3];
    for _ in 0..10 {
        let [c0, c1, c2, c3] = counter;
        let (low0, high0) = halves(u64::from(MULTIPLIERS[0]) * u64::from(c0));
        let (low1, high1) = halves(u64::from(MULTIPLIERS[1]) * u64::from(c2));
        counter = [high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0];
        k0 = k0.wrapping_add(KEY_STEPS[0]);
        k1 = k1.wrapping_add(KEY_STEPS[1]);
    }
    counter
}
