//! Random numbers, the same on every machine: the data of tests, benches, examples and the program.

use half::bf16;
use ndarray::Array2;

use crate::format::{DType, codec};

/// A generator that depends on its seed alone (SplitMix64). Not for secrets.
#[derive(Debug, Clone)]
pub struct Noise(u64);

impl Noise {
    /// The generator of this seed.
    pub const fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A whole number below `end`; 0 if there is none.
    pub fn below(&mut self, end: usize) -> usize {
        (self.bits() % end.max(1) as u64) as usize
    }

    /// Uniform in (0, 1), in steps of 2^-24.
    pub fn uniform(&mut self) -> f32 {
        ((self.bits() >> 40) as f32 + 0.5) / (1u64 << 24) as f32
    }

    /// Standard normal, by Box and Muller.
    pub fn normal(&mut self) -> f32 {
        let (u, v) = (self.uniform(), self.uniform());
        (-2.0 * u.ln()).sqrt() * (std::f32::consts::TAU * v).cos()
    }

    /// A matrix of standard normal numbers, rounded to `dtype`. Allocates.
    pub fn matrix(&mut self, rows: usize, cols: usize, dtype: DType) -> Array2<f32> {
        Array2::from_shape_simple_fn((rows, cols), || codec::round_to(dtype, self.normal()))
    }

    /// Normal numbers with this standard deviation, rounded to BF16. Allocates.
    pub fn bf16(&mut self, count: usize, deviation: f32) -> Vec<bf16> {
        (0..count).map(|_| bf16::from_f32(deviation * self.normal())).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_numbers_are_those_of_splitmix64_and_look_normal() {
        // The reference implementation's first outputs for seed 1234567 (Vigna, splitmix64.c).
        let mut noise = Noise::new(1234567);
        assert_eq!([noise.bits(), noise.bits()], [6457827717110365317, 3203168211198807973]);
        let values = Noise::new(1).matrix(100, 1000, DType::F32);
        let (mean, square) = values.iter().fold((0.0, 0.0), |(m, s), v| (m + f64::from(*v), s + f64::from(v * v)));
        assert!((mean / 1e5).abs() < 0.02 && (square / 1e5 - 1.0).abs() < 0.02, "{mean} {square}");
        assert!((0..1000).all(|_| (0.0..1.0).contains(&noise.uniform()) && noise.below(7) < 7));
        assert_eq!(noise.below(0), 0);
        let halves = Noise::new(3).bf16(4, 0.5);
        let floats = Noise::new(3).matrix(1, 4, DType::F32);
        assert!(halves.iter().zip(&floats).all(|(h, f)| *h == bf16::from_f32(0.5 * f)));
    }
}
