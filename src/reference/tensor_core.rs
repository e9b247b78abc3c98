//! The model of a tensor core that adds products, as far as [`gemm_bound`](super::gemm_bound) is concerned: 2. and 3. there.

use super::gemm::SLICE;

/// How a kind of tensor core adds, as far as the bound is concerned.
#[derive(Clone, Copy)]
pub(super) struct Adder {
    /// Products of one step of the model.
    pub(super) step: usize,
    /// Fraction bits that are kept below the largest exponent.
    kept: i32,
    /// How often the accumulator is aligned and truncated in one step, at most.
    additions: u32,
}

/// Hopper's FP8 instruction: 2. of [`gemm_bound`].
pub(super) const FP8: Adder = Adder { step: 32, kept: 13, additions: 1 };
/// BF16 and F16 with FP32 sums: 3. of [`gemm_bound`].
pub(super) const WIDE: Adder = Adder { step: 16, kept: 23, additions: 16 };

/// The model of one accumulator: exact partial sums, their range, and the error so far.
#[derive(Default)]
pub(super) struct TensorCore {
    pub(super) sum: f64,
    low: f64,
    high: f64,
    pub(super) error: f64,
}

impl TensorCore {
    /// Adds up to `STEP` products of this many significant bits; gives the sum of their magnitudes.
    pub(super) fn step<const STEP: usize>(&mut self, adder: Adder, significant: i32, a: &[f32], b: &[f32]) -> f64 {
        // Eight independent lanes throughout, so that the loops vectorise; missing products are zero.
        const LANES: usize = 8;
        let mut products = [0.0f32; STEP];
        products.iter_mut().zip(a).zip(b).for_each(|((p, a), b)| *p = a * b);
        let mut largest = [0.0f32; LANES];
        let mut absolute = [0.0f32; LANES];
        let mut sum = [0.0f64; LANES];
        for chunk in products.chunks_exact(LANES) {
            for lane in 0..LANES {
                let magnitude = chunk[lane].abs();
                largest[lane] = if magnitude > largest[lane] { magnitude } else { largest[lane] };
                absolute[lane] += magnitude;
                sum[lane] += f64::from(chunk[lane]);
            }
        }
        let total = |lanes: [f32; LANES]| lanes.into_iter().map(f64::from).sum::<f64>() * 1.001;
        let largest = f64::from(largest.into_iter().fold(0.0, f32::max));
        let absolute = total(absolute);
        let size = self.high - self.low + self.error;
        // With one addition a step, only the terms are aligned; with more, also what lies between, off by the step's errors.
        let reach = if adder.additions > 1 { (size + absolute) * 1.001 } else { largest.max(size) };
        let unit = power(exponent(reach) - adder.kept);
        let (exact_from, unit32) = ((unit * power(significant - 1)) as f32, unit as f32);
        let mut lost = [0.0f32; LANES];
        for chunk in products.chunks_exact(LANES) {
            for lane in 0..LANES {
                let magnitude = chunk[lane].abs();
                let loss = if magnitude < unit32 { magnitude } else { unit32 };
                lost[lane] += if magnitude < exact_from { loss } else { 0.0 };
            }
        }
        self.sum += sum.into_iter().sum::<f64>();
        self.low = self.low.min(self.sum);
        self.high = self.high.max(self.sum);
        // The accumulator, for being aligned and, with several additions, for each of their results.
        let truncations = if adder.additions > 1 { 2.0 * f64::from(adder.additions) } else { 1.0 };
        let idle = if adder.additions > 1 { absolute == 0.0 } else { size == 0.0 };
        let accumulator = if idle { 0.0 } else { truncations * unit };
        self.error += total(lost) + accumulator;
        if adder.additions == 1 {
            self.error += (self.high - self.low + self.error) * power(-adder.kept);
        }
        absolute
    }
}

/// Which four of eight neighbouring columns one step of `small-m` takes; the next step takes the others.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fours {
    /// The first two, and the fifth and sixth: E2M1 codes.
    Apart,
    /// The first four: E4M3 codes.
    Neighbours,
}

/// Up to 128 columns in the order in which `small-m` multiplies weights as 16-bit numbers, sixteen at a time: a lane has 32 neighbours, and takes them by eights
/// (`kernels/gemm/small_m_e2m1.cuh`, `small_m_tile.cuh`).
pub(super) fn interleaved(columns: &[f32], fours: Fours) -> [f32; SLICE] {
    let mut steps = [0.0; SLICE];
    for (i, value) in columns.iter().enumerate() {
        let (lane, eight, at) = (i / 32, i % 32 / 8, i % 8);
        let (step, place) = match fours {
            Fours::Apart => (at / 2 % 2, at / 4 * 2 + at % 2),
            Fours::Neighbours => (at / 4, at % 4),
        };
        steps[(2 * eight + step) * WIDE.step + lane * 4 + place] = *value;
    }
    steps
}

/// `floor(log2 x)` of a normal positive f64; at least -900.
pub(super) fn exponent(x: f64) -> i32 {
    (((x.to_bits() >> 52) & 0x7FF) as i32 - 1023).clamp(-900, 1000)
}

/// `2^e` for `-1000 < e < 1000`.
pub(super) fn power(e: i32) -> f64 {
    f64::from_bits(((e + 1023) as u64) << 52)
}
#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exponents_and_powers() {
        assert_eq!((exponent(1.0), exponent(1.99), exponent(0.25), exponent(448.0)), (0, 0, -2, 8));
        assert_eq!((power(-13), power(3)), (1.0 / 8192.0, 8.0));
    }

    /// Adversarial for the alignment: magnitudes over 20 binades, and an accumulator much larger than later products.
    struct Random(u32, u64);

    impl Random {
        fn next(&mut self) -> u32 {
            self.1 = self.1.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (self.1 >> 33) as u32
        }

        /// A number of `self.0` significant bits.
        fn value(&mut self) -> f32 {
            let (bits, half) = (self.next(), 1u32 << (self.0 - 1));
            let sign = if bits & 1 == 0 { 1.0 } else { -1.0 };
            sign * (half + (bits >> 1) % half) as f32 * 2f32.powi((bits >> 8) as i32 % 12 - 8)
        }
    }

    /// Aligns terms to the largest exponent and truncates them, then the sum.
    fn add_truncated(terms: &[f64], kept: i32) -> f64 {
        let truncate = |x: f64, exponent: i32| {
            let unit = power(exponent - kept);
            (x / unit).trunc() * unit
        };
        let largest = exponent(terms.iter().fold(0.0f64, |m, t| m.max(t.abs())));
        let sum: f64 = terms.iter().map(|t| truncate(*t, largest)).sum();
        truncate(sum, exponent(sum.abs()))
    }

    #[test]
    fn a_simulated_fp8_tensor_core_stays_within_its_model() {
        let mut random = Random(4, 1);
        for _ in 0..200 {
            let (mut core, mut simulated) = (TensorCore::default(), 0.0f64);
            for step in 0..18 {
                let a: Vec<f32> = (0..FP8.step).map(|_| random.value()).collect();
                let b: Vec<f32> = (0..FP8.step).map(|_| if step < 4 { random.value() } else { 0.125 }).collect();
                core.step::<{ FP8.step }>(FP8, 8, &a, &b);
                let terms: Vec<f64> = a.iter().zip(&b).map(|(a, b)| f64::from(a * b)).chain([simulated]).collect();
                simulated = add_truncated(&terms, FP8.kept);
                assert!((simulated - core.sum).abs() <= core.error, "{simulated} {} {}", core.sum, core.error);
            }
        }
    }

    #[test]
    fn simulated_wide_tensor_cores_stay_within_their_model() {
        // However many products one addition takes, in whatever order inside a step; NVFP4 and BF16 x NVFP4.
        for (bits_a, bits_b) in [(6, 6), (8, 6)] {
            for group in [1, 2, 4, 8, 16] {
                let (mut a_random, mut b_random) = (Random(bits_a, 1), Random(bits_b, 7));
                for turn in 0..100 {
                    let (mut core, mut simulated) = (TensorCore::default(), 0.0f64);
                    let mut worst = 0.0f64;
                    for step in 0..64 {
                        let a: Vec<f32> = (0..WIDE.step).map(|_| a_random.value()).collect();
                        let small = |r: &mut Random| if step < 4 { r.value() } else { 0.001953125 * r.value() };
                        let b: Vec<f32> = (0..WIDE.step).map(|_| small(&mut b_random)).collect();
                        core.step::<{ WIDE.step }>(WIDE, (bits_a + bits_b) as i32, &a, &b);
                        let mut products: Vec<f64> = a.iter().zip(&b).map(|(a, b)| f64::from(a * b)).collect();
                        if turn % 2 == 1 {
                            products.sort_by(f64::total_cmp);
                        }
                        for chunk in products.chunks(group) {
                            let terms: Vec<f64> = chunk.iter().copied().chain([simulated]).collect();
                            simulated = add_truncated(&terms, WIDE.kept);
                        }
                        let off = (simulated - core.sum).abs();
                        assert!(off <= core.error, "{group}: {simulated} {} {}", core.sum, core.error);
                        worst = worst.max(off / core.error);
                    }
                    assert!(core.error < 1e-3 * (core.high - core.low), "{} {}", core.error, core.high - core.low);
                    assert!(worst > 0.001, "the model is far from what it models: {worst}");
                }
            }
        }
    }
}
