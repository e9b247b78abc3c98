//! How far a correct result may be from the exact one: f64 values and a rigorous tolerance for each element. For tests.
//!
//! `exact` is the product of the dequantized operands with the epilogue, in f64 (products of codes are exact in FP32,
//! their f64 sums are off by less than 2^-40 of `S`, below). `tolerance` adds, with `u = 2^-24`:
//!
//! 1. **FP32 sum.** Any order of at most `t` roundings errs by at most `t u S`, `S = |alpha| sum |a_k b_k| |scales|`.
//!    Here `t = min(k, 128) + blocks + 8`: inside a block, one for each block, and the scales and alpha.
//! 2. **Hopper's FP8 tensor cores** (`Accumulator::TensorCore*`). One instruction adds 32 products to its accumulator.
//!    All 33 terms are aligned to the largest exponent e among them and truncated to 13 fraction bits, the result again
//!    (observed by several authors on H100; not documented by NVIDIA). So a term loses at most `2^(e-13)`, and at most
//!    itself; a product has 8 significant bits, so it loses nothing if its exponent is at least `e - 6`; the result
//!    loses at most `2^-13` of itself. The accumulator's size is bounded by the range (largest minus smallest) of the
//!    exact partial sums so far plus the error so far, which also covers sums that are split along k. With block
//!    scales, or precise accumulation, the accumulator starts anew for every 128 columns and 1. covers the rest;
//!    with fast accumulation it runs over the whole of k.
//! 3. **Epilogue.** Every addition rounds by `2u` of its result (one `u`, and one for an FP32 operand's own error);
//!    an activation multiplies the error so far by its Lipschitz constant (GELU 1.13, SiLU 1.10, ReLU 1) and adds
//!    `32 u |v|` for its own arithmetic; a GELU fused by cuBLASLt may use an approximate tanh: `2^-10 |v|` more.
//! 4. **Output.** Half a unit in the last place of the output type at the largest possible magnitude.
//!
//! Scales are taken to be such that `scale_a * scale_b` neither overflows nor is subnormal.

use ndarray::{Array2, ArrayView2};

use super::gemm::{BLOCK, GemmInputs, has_blocks};
use super::parallel;
use crate::epilogue::Activation;
use crate::error::{Error, Result};
use crate::format::{DType, HostQuantMatrix, codec};

/// Unit roundoff of FP32.
const U: f64 = 1.0 / (1u64 << 24) as f64;
/// Products added by one tensor core instruction.
const STEP: usize = 32;
/// Fraction bits that a tensor core keeps below the largest exponent.
const KEPT: i32 = 13;

/// What adds the products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Accumulator {
    /// FP32 throughout: the CPU.
    Fp32,
    /// Tensor cores, added to an FP32 sum every 128 columns: block scales, and precise accumulation.
    TensorCorePromoted,
    /// Tensor cores over the whole of k: fast accumulation (block scales are promoted all the same).
    TensorCoreFast,
}

/// Who computes a GELU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gelu {
    /// This crate: IEEE operations as in [`crate::epilogue`].
    Ieee,
    /// cuBLASLt's epilogue, perhaps with an approximate tanh.
    Approximate,
}

/// The exact result and how far a correct one may be from it.
#[derive(Debug, Clone)]
pub struct Bound {
    /// The exact result, not rounded to the output type (clamped to its range for E4M3).
    pub exact: Array2<f64>,
    /// The largest allowed distance.
    pub tolerance: Array2<f64>,
    out: DType,
}

/// The bound for a product: see the module's doc. Runs on all cores; allocates both matrices and decoded operands.
///
/// # Errors
/// As [`scaled_gemm`](super::scaled_gemm).
pub fn gemm_bound(inputs: &GemmInputs<'_>, accumulator: Accumulator, gelu: Gelu) -> Result<Bound> {
    inputs.check()?;
    SumBound::new(inputs.a, inputs.b, accumulator).with(inputs, gelu)
}

/// The bound for the sum alone: the slow half of [`gemm_bound`], made once for many epilogues and outputs.
#[derive(Debug, Clone)]
pub struct SumBound {
    /// Exact sum and error for each element of D, without alpha.
    cells: Vec<(f64, f64)>,
    shape: [usize; 3],
}

impl SumBound {
    /// The exact sums of `A Bᵀ` and the errors of computed ones. Runs on all cores; allocates.
    ///
    /// # Panics
    /// If A and B do not have the same number of columns.
    pub fn new(a: &HostQuantMatrix, b: &HostQuantMatrix, accumulator: Accumulator) -> Self {
        assert_eq!(a.cols(), b.cols(), "A and B share k");
        let shape = [a.rows(), b.rows(), a.cols()];
        let [m, n, k] = shape;
        let whole = accumulator == Accumulator::TensorCoreFast && !has_blocks(a);
        let (a, b) = (Operand::new(a), Operand::new(b));
        let mut cells = vec![(0.0f64, 0.0f64); m * n];
        const PIECE: usize = 64;
        parallel::for_each_piece(&mut cells, PIECE, k, |piece, cells| {
            for (at, cell) in cells.iter_mut().enumerate() {
                let (i, j) = ((piece * PIECE + at) / n, (piece * PIECE + at) % n);
                *cell = sum(&a, i, &b, j, accumulator, whole);
            }
        });
        Self { cells, shape }
    }

    /// The bound for these inputs, whose A and B must be those of [`SumBound::new`].
    ///
    /// # Errors
    /// As [`scaled_gemm`](super::scaled_gemm); [`Error::Shape`] if A and B have other shapes than those of the sum.
    pub fn with(&self, inputs: &GemmInputs<'_>, gelu: Gelu) -> Result<Bound> {
        let shape = inputs.check()?;
        if shape != self.shape {
            return Err(Error::shape(
                "A and B",
                format!("m, n, k = {shape:?}"),
                format!("must be {:?}, as in the sum", self.shape),
                "make a SumBound of these operands",
            ));
        }
        let [m, n, _] = shape;
        let mut exact = Array2::zeros((m, n));
        let mut tolerance = Array2::zeros((m, n));
        for (at, (sum, error)) in self.cells.iter().enumerate() {
            let (i, j) = (at / n, at % n);
            let alpha = f64::from(inputs.alpha);
            (exact[[i, j]], tolerance[[i, j]]) = finish(inputs, gelu, i, j, sum * alpha, error * alpha.abs());
        }
        Ok(Bound { exact, tolerance, out: inputs.out })
    }
}

impl Bound {
    /// Checks a result; gives the largest error as a fraction of its tolerance.
    ///
    /// Where the exact value, or one within the tolerance, is beyond the output type, infinity of the same sign is right
    /// too; where the exact value is NaN, NaN is.
    ///
    /// # Errors
    /// A line for the first wrong element: place, both values, tolerance. Also if the shapes differ.
    pub fn check(&self, d: ArrayView2<'_, f32>) -> std::result::Result<f64, String> {
        if d.dim() != self.exact.dim() {
            return Err(format!("the result is {:?}, the bound {:?}", d.dim(), self.exact.dim()));
        }
        let mut worst = 0.0f64;
        for (at, got) in d.indexed_iter() {
            let (exact, tolerance) = (self.exact[at], self.tolerance[at]);
            let got = f64::from(*got);
            let right = if exact.is_nan() {
                got.is_nan()
            } else if got.is_infinite() {
                let reachable = exact.is_infinite() || exact.abs() + tolerance >= range(self.out).max;
                reachable && got.signum() == exact.signum()
            } else if exact.is_infinite() {
                false
            } else {
                let ratio = (got - exact).abs() / tolerance.max(f64::MIN_POSITIVE);
                worst = worst.max(ratio);
                ratio <= 1.0
            };
            if !right {
                let (i, j) = at;
                return Err(format!("D[{i}, {j}] = {got:e}, exactly {exact:e}, tolerance {tolerance:e}"));
            }
        }
        Ok(worst)
    }
}

/// A decoded operand with the scale of every row and block.
struct Operand {
    values: Vec<f32>,
    cols: usize,
    scales: Vec<f32>,
    group_rows: usize,
    col_groups: usize,
}

impl Operand {
    fn new(q: &HostQuantMatrix) -> Self {
        let spec = q.scheme().spec();
        let table = codec::values_of(spec.format.fp8().unwrap_or_default());
        let [_, col_groups] = q.scheme().scale_grid(q.rows(), q.cols());
        Self {
            values: q.logical_codes().iter().map(|c| table[usize::from(*c)]).collect(),
            cols: q.cols(),
            scales: q.logical_scales(),
            group_rows: spec.group_rows.size(q.rows()).max(1),
            col_groups,
        }
    }

    fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.cols..][..self.cols]
    }

    /// The scale of row `i` in block `block`; one for all blocks if the scheme has no blocks.
    fn scale(&self, i: usize, block: usize) -> f64 {
        f64::from(self.scales[i / self.group_rows * self.col_groups + block.min(self.col_groups - 1)])
    }
}

/// The exact scaled sum and the error of a computed one (1. and 2. of the module's doc), without alpha.
fn sum(a: &Operand, i: usize, b: &Operand, j: usize, accumulator: Accumulator, whole: bool) -> (f64, f64) {
    let (row_a, row_b) = (a.row(i), b.row(j));
    let (mut value, mut magnitude, mut error) = (0.0, 0.0, 0.0);
    let mut core = TensorCore::default();
    for (block, (xa, xb)) in row_a.chunks(BLOCK).zip(row_b.chunks(BLOCK)).enumerate() {
        if !whole {
            core = TensorCore::default();
        }
        let (sum_before, error_before) = (core.sum, core.error);
        let mut absolute = 0.0;
        for (xa, xb) in xa.chunks(STEP).zip(xb.chunks(STEP)) {
            absolute += core.step(xa, xb);
        }
        let scale = a.scale(i, block) * b.scale(j, block);
        value += (core.sum - sum_before) * scale;
        magnitude += absolute * scale.abs();
        error += (core.error - error_before) * scale.abs();
    }
    if accumulator == Accumulator::Fp32 {
        error = 0.0;
    }
    let roundings = (a.cols.min(BLOCK) + a.cols.div_ceil(BLOCK) + 8) as f64;
    (value, error + roundings * U * 1.001 * magnitude)
}

/// The exact result and the tolerance after the epilogue and the cast (3. and 4. of the module's doc).
fn finish(inputs: &GemmInputs<'_>, gelu: Gelu, i: usize, j: usize, sum: f64, error: f64) -> (f64, f64) {
    // The last term: products of scales and sums may pass through FP32 subnormals.
    let (mut v, mut tol) = (sum, error + power(-140));
    let mut add = |v: &mut f64, x: f64| {
        *v += x;
        tol += 2.0 * U * (v.abs() + x.abs() + tol);
    };
    if let Some((beta, c)) = &inputs.accumulate {
        add(&mut v, f64::from(*beta) * f64::from(c[[i, j]]));
    }
    if let Some((bias, _)) = inputs.bias {
        add(&mut v, f64::from(bias[j]));
    }
    let (activated, lipschitz) = match inputs.activation {
        Activation::None => (v, 1.0),
        Activation::Relu => (if v < 0.0 { 0.0 } else { v }, 1.0),
        Activation::Gelu => {
            let inner = (2.0 / std::f64::consts::PI).sqrt() * (v + 0.044715 * v * v * v);
            (v / (1.0 + (-2.0 * inner).exp()), 1.13)
        }
        Activation::Silu => (v / (1.0 + (-v).exp()), 1.10),
    };
    tol *= lipschitz;
    tol += match (inputs.activation, gelu) {
        (Activation::None | Activation::Relu, _) => 0.0,
        (Activation::Gelu, Gelu::Approximate) => (32.0 * U + power(-10)) * v.abs(),
        (Activation::Gelu | Activation::Silu, _) => 32.0 * U * v.abs(),
    };
    v = activated;
    if let Some((residual, _)) = &inputs.residual {
        let x = f64::from(residual[[i, j]]);
        v += x;
        tol += 2.0 * U * (v.abs() + x.abs() + tol);
    }
    let range = range(inputs.out);
    if inputs.out == DType::E4m3 {
        let encode = f64::from(inputs.out_encode);
        v = (v * encode).clamp(-range.max, range.max);
        tol = tol * encode.abs() + 2.0 * U * v.abs();
    }
    let largest = (v.abs() + tol).min(range.max);
    (v, tol + power(exponent(largest).max(range.min_exponent) - range.fraction_bits - 1))
}

/// The model of one accumulator: exact partial sums, their range, and the error so far.
#[derive(Default)]
struct TensorCore {
    sum: f64,
    low: f64,
    high: f64,
    error: f64,
}

impl TensorCore {
    /// Adds up to 32 products; gives the sum of their magnitudes.
    fn step(&mut self, a: &[f32], b: &[f32]) -> f64 {
        // Eight independent lanes throughout, so that the loops vectorise; missing products are zero.
        const LANES: usize = 8;
        let mut products = [0.0f32; STEP];
        products.iter_mut().zip(a).zip(b).for_each(|((p, a), b)| *p = a * b);
        let mut largest = [0.0f32; LANES];
        let mut sum = [0.0f64; LANES];
        for chunk in products.chunks_exact(LANES) {
            for lane in 0..LANES {
                let magnitude = chunk[lane].abs();
                largest[lane] = if magnitude > largest[lane] { magnitude } else { largest[lane] };
                sum[lane] += f64::from(chunk[lane]);
            }
        }
        let largest = largest.into_iter().fold(0.0, f32::max);
        let size = self.high - self.low + self.error;
        let unit = power(exponent(f64::from(largest).max(size)) - KEPT);
        let (exact_from, unit32) = ((unit * 128.0) as f32, unit as f32);
        let (mut absolute, mut lost) = ([0.0f32; LANES], [0.0f32; LANES]);
        for chunk in products.chunks_exact(LANES) {
            for lane in 0..LANES {
                let magnitude = chunk[lane].abs();
                absolute[lane] += magnitude;
                let loss = if magnitude < unit32 { magnitude } else { unit32 };
                lost[lane] += if magnitude < exact_from { loss } else { 0.0 };
            }
        }
        let total = |lanes: [f32; LANES]| lanes.into_iter().map(f64::from).sum::<f64>() * 1.001;
        self.sum += sum.into_iter().sum::<f64>();
        self.low = self.low.min(self.sum);
        self.high = self.high.max(self.sum);
        let accumulator = if size > 0.0 { unit } else { 0.0 };
        self.error += total(lost) + accumulator;
        self.error += (self.high - self.low + self.error) * power(-KEPT);
        total(absolute)
    }
}

/// Where a type's numbers lie.
struct Range {
    fraction_bits: i32,
    min_exponent: i32,
    max: f64,
}

fn range(dtype: DType) -> Range {
    let (fraction_bits, min_exponent, max) = match dtype {
        DType::Bf16 => (7, -126, f64::from(half::bf16::MAX.to_f32())),
        DType::F16 => (10, -14, 65504.0),
        DType::F32 => (23, -126, f64::from(f32::MAX)),
        DType::E4m3 => (3, -6, 448.0),
        DType::E5m2 => (2, -14, 57344.0),
    };
    Range { fraction_bits, min_exponent, max }
}

/// `floor(log2 x)` of a normal positive f64; at least -900.
fn exponent(x: f64) -> i32 {
    (((x.to_bits() >> 52) & 0x7FF) as i32 - 1023).clamp(-900, 1000)
}

/// `2^e` for `-1000 < e < 1000`.
fn power(e: i32) -> f64 {
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

    #[test]
    fn a_simulated_tensor_core_stays_within_its_model() {
        // Adversarial for the alignment: magnitudes over 20 binades, and an accumulator much larger than later products.
        let mut state = 1u64;
        let mut next = || {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as u32
        };
        for _ in 0..200 {
            let mut core = TensorCore::default();
            let mut simulated = 0.0f64;
            for step in 0..18 {
                let value = |bits: u32| {
                    let sign = if bits & 1 == 0 { 1.0 } else { -1.0 };
                    sign * (8 + (bits >> 1) % 8) as f32 * 2f32.powi((bits >> 8) as i32 % 12 - 8)
                };
                let a: Vec<f32> = (0..STEP).map(|_| value(next())).collect();
                let b: Vec<f32> = (0..STEP).map(|_| if step < 4 { value(next()) } else { 0.125 }).collect();
                core.step(&a, &b);
                let terms: Vec<f64> = a.iter().zip(&b).map(|(a, b)| f64::from(a * b)).chain([simulated]).collect();
                let unit = power(exponent(terms.iter().fold(0.0f64, |m, t| m.max(t.abs()))) - KEPT);
                let sum: f64 = terms.iter().map(|t| (t / unit).trunc() * unit).sum();
                let unit = power(exponent(sum.abs()) - KEPT);
                simulated = (sum / unit).trunc() * unit;
                assert!((simulated - core.sum).abs() <= core.error, "{simulated} {} {}", core.sum, core.error);
            }
        }
    }
}
