//! [`gemm_bound`]: how far a correct result may be from the exact one. For tests.

use ndarray::{Array2, ArrayView2};

use super::gemm::{GemmInputs, SLICE, scales_slices};
use super::operand::HostOperand;
use super::parallel;
use super::tensor_core::{FP8, Fours, TensorCore, WIDE, exponent, interleaved, power};
use crate::epilogue::Activation;
use crate::error::{Error, Result};
use crate::format::{BlockScaleFormat, CodeFormat, DType, HostQuantMatrix, Operand, pair};

/// Unit roundoff of FP32.
const U: f64 = 1.0 / (1u64 << 24) as f64;

/// What adds the products.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Accumulator {
    /// FP32 throughout: the CPU.
    Fp32,
    /// FP8 tensor cores, added to an FP32 sum every 128 columns: 1x128 scales, and precise accumulation.
    TensorCorePromoted,
    /// FP8 tensor cores over the whole of k: fast accumulation (1x128 scales are promoted all the same).
    TensorCoreFast,
    /// BF16 or F16 tensor cores with FP32 sums over the whole of k: NVFP4, MXFP4, MXFP8 and weight-only products of a GPU that
    /// dequantizes before it multiplies, or decodes weights as it reads them. FP32 scales of 128 columns start a new sum for each.
    TensorCoreWide,
}

named!(
    Accumulator, "accumulator", Fp32 => "fp32", TensorCorePromoted => "tensor-core-promoted",
    TensorCoreFast => "tensor-core-fast", TensorCoreWide => "tensor-core-wide",
);

/// Who computes a GELU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Gelu {
    /// This crate: IEEE operations as in [`Epilogue`](crate::Epilogue).
    Ieee,
    /// cuBLASLt's epilogue, perhaps with an approximate tanh.
    Approximate,
}

named!(Gelu, "GELU", Ieee => "ieee", Approximate => "approximate");

/// The exact result and how far a correct one may be from it.
#[derive(Debug, Clone)]
pub struct Bound {
    /// The exact result, not rounded to the output type (clamped to its range for E4M3).
    pub exact: Array2<f64>,
    /// The largest allowed distance.
    pub tolerance: Array2<f64>,
    out: DType,
}

/// The bound for a product. Runs on all cores; allocates both matrices and decoded operands.
///
/// `exact` is the product of the dequantized operands with the epilogue, in f64 (products of operands are exact in FP32,
/// their f64 sums are off by less than 2^-40 of `S`, below). `tolerance` adds, with `u = 2^-24`:
///
/// 1. **FP32 sum.** Any order of at most `t` roundings errs by at most `t u S`, `S = |alpha| sum |a_k b_k| |scales|`.
///    Here `t = min(k, 128) + slices + 8`: inside a slice of 128, one for each slice, and the scales and alpha (at most three).
/// 2. **Hopper's FP8 tensor cores** (`TensorCorePromoted`, `TensorCoreFast`). One instruction adds 32 products to its
///    accumulator. All 33 terms are aligned to the largest exponent e among them and truncated to 13 fraction bits, the
///    result again (observed by several authors on H100; not documented by NVIDIA). So a term loses at most `2^(e-13)`,
///    and at most itself; a product of w significant bits loses nothing if its exponent is at least `e - 13 + w - 1` (w is
///    8 for FP8 codes); the result loses at most `2^-13` of itself. The accumulator's size is bounded by the range (largest
///    minus smallest) of the exact partial sums so far plus the error so far, which also covers sums that are split along
///    k. With 1x128 scales, or precise accumulation, the accumulator starts anew for every 128 columns and 1. covers the
///    rest; with fast accumulation it runs over the whole of k.
/// 3. **BF16 and F16 tensor cores** (`TensorCoreWide`), which multiply NVFP4, MXFP4, MXFP8 and plain operands. Assumed: products
///    are exact, and no intermediate result is worse than FP32 rounded in any direction; how many terms one step adds is
///    left open. So cut k into sixteens. Whatever the steps inside one are, each intermediate is at most
///    `M = range + error + sum of the sixteen |products|`, range as in 2. With `q = 2^(exponent(M) - 23)`, at least FP32's
///    unit at M, a product loses at most q where it is aligned to a larger term (or itself; nothing if its exponent allows,
///    as in 2. with 23 for 13), and the accumulator q for being aligned and q for the result, at most sixteen times: `32 q`
///    and the products, for sixteen columns. The sums are taken over consecutive stretches of k, which is how split-k
///    forms them; 1. covers the sum of the stretches. `small-m` takes the columns of each 128 in another order,
///    four of each 32 in one step (`interleaved` in `tensor_core.rs`): the stretches are the same, what lies between is not, and the error of 128 columns
///    is the larger one of both orders. FP32 scales of 128 columns multiply the sum over those, which starts anew for each: 1. covers the rest.
///    Operands or products below 2^-126 may count as zero; `small-m` multiplies by NVFP4 weights times 2^-8
///    (BF16; its products in F16 are 2^-48 at least), so that with them products below 2^-118 may; with MXFP8 so do
///    the roundings to BF16 of values below its subnormals, so the bound holds for every E8M0 byte. MXFP4 with a plain F16 A is
///    the product of the values in F16 ([`pair::multiplied_in`]), also where that rounds them or makes them infinite.
/// 4. **Epilogue.** Every addition rounds by `2u` of its result (one `u`, and one for an FP32 operand's own error);
///    an activation multiplies the error so far by its Lipschitz constant (GELU 1.13, SiLU 1.10, ReLU 1) and adds
///    `32 u |v|` for its own arithmetic; a GELU fused by cuBLASLt may use an approximate tanh: `2^-10 |v|` more. An old value of D may be
///    added by the L2 cache, to which subnormal numbers are 0: both operands and the sum may lose `2^-126`.
/// 5. **Output.** Half a unit in the last place of the output type at the largest possible magnitude.
///
/// Scales are taken to be such that products of alpha and scales neither overflow nor are subnormal, and sums to stay
/// in FP32's range.
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
    pub fn new<'a>(a: impl Into<HostOperand<'a>>, b: &'a HostQuantMatrix, accumulator: Accumulator) -> Self {
        let a = a.into();
        assert_eq!(a.cols(), b.cols(), "A and B share k");
        let shape = [a.rows(), b.rows(), a.cols()];
        let [m, n, k] = shape;
        let long = matches!(accumulator, Accumulator::TensorCoreFast | Accumulator::TensorCoreWide);
        let whole = long && !scales_slices(&b.scheme().spec());
        let wide = accumulator == Accumulator::TensorCoreWide;
        let b_type = pair::multiplied_in(a.operand(), b.scheme());
        let (a, b) = (Decoded::new(a, None, wide), Decoded::new(b.into(), b_type, wide));
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

/// A decoded operand, block scales included, with the FP32 scale of every row and block.
struct Decoded {
    values: Vec<f32>,
    /// What each value may be off by on a BF16 or F16 tensor core; empty if nothing.
    slack: Vec<f32>,
    /// Significant bits of a value.
    significant: i32,
    /// The order in which, as B, `small-m` takes the columns; `None` if it does not multiply such codes as 16-bit numbers.
    fours: Option<Fours>,
    /// Products with it, as B, of less than two to the power of this may count as zero.
    least: i32,
    cols: usize,
    scales: Vec<f32>,
    group_rows: usize,
    col_groups: usize,
}

impl Decoded {
    fn new(operand: HostOperand<'_>, dtype: Option<DType>, wide: bool) -> Self {
        let (rows, cols) = (operand.rows(), operand.cols());
        let mut values = Vec::with_capacity(rows * cols);
        (0..rows).for_each(|i| operand.decode(i, 0, cols, dtype, &mut values));
        let slack = if wide { slack(&values) } else { Vec::new() };
        let significant = match operand.operand() {
            Operand::Plain(DType::F16) => 11,
            Operand::Plain(_) => 8,
            Operand::Quantized(scheme) => match scheme.spec().block.map(|b| b.format) {
                // The scale is a power of two, which no rounding to fewer bits makes wider.
                Some(BlockScaleFormat::Ue8m0) if scheme.spec().format == CodeFormat::E2M1 => 2,
                // A code of two bits and a scale of four.
                Some(BlockScaleFormat::Ue4m3) => 6,
                Some(BlockScaleFormat::Ue8m0) | None => 4,
            },
        };
        let spec = operand.operand().scheme().map(|scheme| scheme.spec());
        let fours = match spec.map(|spec| spec.format) {
            Some(CodeFormat::E2M1) => Some(Fours::Apart),
            Some(CodeFormat::E4M3) => Some(Fours::Neighbours),
            _ => None,
        };
        let nvfp4 = spec.and_then(|spec| spec.block).is_some_and(|block| block.format == BlockScaleFormat::Ue4m3);
        let least = if nvfp4 { -118 } else { -126 };
        let one = || (vec![1.0], rows.max(1), 1);
        let (scales, group_rows, col_groups) = operand.quantized().map_or_else(one, |q| {
            let [row_groups, col_groups] = q.scheme().scale_grid(rows, cols);
            match [row_groups, col_groups] {
                [0, 0] => one(),
                _ => (q.logical_scales(), q.scheme().spec().group_rows.size(rows).max(1), col_groups),
            }
        });
        Self { values, slack, significant, fours, least, cols, scales, group_rows, col_groups }
    }

    fn row(&self, i: usize) -> &[f32] {
        &self.values[i * self.cols..][..self.cols]
    }

    fn slack(&self, i: usize) -> &[f32] {
        if self.slack.is_empty() { &[] } else { &self.slack[i * self.cols..][..self.cols] }
    }

    /// The scale of row `i` in slice `slice` of k; one for all slices if the scheme has none for each.
    fn scale(&self, i: usize, slice: usize) -> f64 {
        f64::from(self.scales[i / self.group_rows * self.col_groups + slice.min(self.col_groups - 1)])
    }
}

/// What a tensor core may lose of each value: all of one below 2^-126 (BF16's subnormals, and what lies between them).
/// Empty if there is none.
fn slack(values: &[f32]) -> Vec<f32> {
    let lost = |v: &f32| if v.abs() < f32::MIN_POSITIVE { v.abs() } else { 0.0 };
    if values.iter().any(|v| lost(v) > 0.0) { values.iter().map(lost).collect() } else { Vec::new() }
}

/// The most that slack changes a sum of products: `sum |a| da_b + |b| da_a`, the latter with what b may have lost.
fn slack_error(a: &Decoded, i: usize, b: &Decoded, j: usize) -> f64 {
    let at = |slack: &[f32], k: usize| slack.get(k).map_or(0.0, |s| f64::from(*s));
    if a.slack.is_empty() && b.slack.is_empty() {
        return 0.0;
    }
    let (slack_a, slack_b) = (a.slack(i), b.slack(j));
    let pairs = a.row(i).iter().zip(b.row(j)).enumerate();
    pairs.map(|(k, (x, y))| f64::from(x.abs()) * at(slack_b, k) + f64::from(y.abs()) * at(slack_a, k)).sum()
}

/// The exact scaled sum and the error of a computed one (1. to 3. of [`gemm_bound`]), without alpha.
fn sum(a: &Decoded, i: usize, b: &Decoded, j: usize, accumulator: Accumulator, whole: bool) -> (f64, f64) {
    let (row_a, row_b) = (a.row(i), b.row(j));
    let (mut value, mut magnitude, mut error, mut largest_scale) = (0.0, 0.0, 0.0, 0.0f64);
    let significant = a.significant + b.significant;
    let wide = accumulator == Accumulator::TensorCoreWide;
    let (mut core, mut mixed) = (TensorCore::default(), TensorCore::default());
    for (slice, (xa, xb)) in row_a.chunks(SLICE).zip(row_b.chunks(SLICE)).enumerate() {
        if !whole {
            (core, mixed) = (TensorCore::default(), TensorCore::default());
        }
        let (sum_before, error_before) = (core.sum, core.error);
        let mut absolute = 0.0;
        let mut other = 0.0;
        if let Some(fours) = b.fours.filter(|_| wide) {
            let before = mixed.error;
            let (xa, xb) = (interleaved(xa, fours), interleaved(xb, fours));
            for (xa, xb) in xa.chunks(WIDE.step).zip(xb.chunks(WIDE.step)) {
                mixed.step::<{ WIDE.step }>(WIDE, significant, xa, xb);
            }
            other = mixed.error - before;
        }
        if wide {
            for (xa, xb) in xa.chunks(WIDE.step).zip(xb.chunks(WIDE.step)) {
                absolute += core.step::<{ WIDE.step }>(WIDE, significant, xa, xb);
            }
        } else {
            for (xa, xb) in xa.chunks(FP8.step).zip(xb.chunks(FP8.step)) {
                absolute += core.step::<{ FP8.step }>(FP8, significant, xa, xb);
            }
        }
        let scale = a.scale(i, slice) * b.scale(j, slice);
        largest_scale = largest_scale.max(scale.abs());
        value += (core.sum - sum_before) * scale;
        magnitude += absolute * scale.abs();
        error += (core.error - error_before).max(other) * scale.abs();
    }
    match accumulator {
        Accumulator::Fp32 => error = 0.0,
        Accumulator::TensorCoreWide => {
            error += (slack_error(a, i, b, j) + a.cols as f64 * power(b.least)) * largest_scale;
        }
        Accumulator::TensorCorePromoted | Accumulator::TensorCoreFast => {}
    }
    let roundings = (a.cols.min(SLICE) + a.cols.div_ceil(SLICE) + 8) as f64;
    (value, error + roundings * U * 1.001 * magnitude)
}

/// The exact result and the tolerance after the epilogue and the cast (4. and 5. of [`gemm_bound`]).
fn finish(inputs: &GemmInputs<'_>, gelu: Gelu, i: usize, j: usize, sum: f64, error: f64) -> (f64, f64) {
    // The last terms: products of scales and sums may pass through FP32 subnormals, and the L2 cache takes those for 0.
    let flushed = if inputs.added().is_some() { 3.0 * power(-126) } else { 0.0 };
    let (mut v, mut tol) = (sum, error + power(-140) + flushed);
    let mut add = |v: &mut f64, x: f64| {
        *v += x;
        tol += 2.0 * U * (v.abs() + x.abs() + tol);
    };
    if let Some((beta, c)) = inputs.added() {
        add(&mut v, f64::from(beta) * f64::from(c[[i, j]]));
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
    if inputs.out == DType::E4M3 {
        let encode = f64::from(inputs.out_encode);
        v = (v * encode).clamp(-range.max, range.max);
        tol = tol * encode.abs() + 2.0 * U * v.abs();
    }
    let largest = (v.abs() + tol).min(range.max);
    (v, tol + power(exponent(largest).max(range.min_exponent) - range.fraction_bits - 1))
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
        DType::E4M3 => (3, -6, 448.0),
        DType::E5M2 => (2, -14, 57344.0),
    };
    Range { fraction_bits, min_exponent, max }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Sums that are small after sixteen neighbours and large after as many columns of the kernel's order, and the reverse.
    #[test]
    fn both_orders_of_weights_are_covered() {
        for (fours, first) in [
            (Fours::Apart, [0, 1, 4, 5, 32, 33, 36, 37, 64, 65, 68, 69, 96, 97, 100, 101, 2, 3, 6, 7]),
            (Fours::Neighbours, [0, 1, 2, 3, 32, 33, 34, 35, 64, 65, 66, 67, 96, 97, 98, 99, 4, 5, 6, 7]),
        ] {
            let mut all = interleaved(&std::array::from_fn::<_, SLICE, _>(|i| i as f32), fours);
            assert_eq!(all[..20], first.map(|i| i as f32));
            all.sort_by(f32::total_cmp);
            assert!(all.iter().enumerate().all(|(i, column)| *column == i as f32));
        }
        let signs: [fn(usize) -> bool; 2] = [|i| i % 32 < 16, |i| i < 64];
        for sign in signs {
            let x: Vec<f32> = (0..SLICE).map(|i| if sign(i) { 1.0 } else { -1.0 }).collect();
            let (b, a) = (
                ndarray::Array2::from_elem((1, SLICE), 1.0f32),
                ndarray::Array2::from_shape_vec((1, SLICE), x).unwrap(),
            );
            let decoded = |x: &Array2<f32>, scheme| {
                let q = crate::reference::quantize(x.view(), DType::F32, crate::format::Recipe::new(scheme)).unwrap();
                Decoded::new((&q).into(), None, true)
            };
            use crate::format::{Fp8Format, Scheme};
            let blocks = Scheme::Fp8Group128x128(Fp8Format::E4M3);
            for (scheme, fours, least) in [(Scheme::Nvfp4, Fours::Apart, -118), (blocks, Fours::Neighbours, -126)] {
                let (a, b) = (decoded(&a, scheme), decoded(&b, scheme));
                let error = sum(&a, 0, &b, 0, Accumulator::TensorCoreWide, true).1;
                let walk = |xa: &[f32], xb: &[f32]| {
                    let mut core = TensorCore::default();
                    for (xa, xb) in xa.chunks(16).zip(xb.chunks(16)) {
                        core.step::<16>(WIDE, a.significant + b.significant, xa, xb);
                    }
                    core.error * a.scale(0, 0) * b.scale(0, 0)
                };
                let mixed = |x: &[f32]| interleaved(x, fours);
                let orders = [walk(a.row(0), b.row(0)), walk(&mixed(a.row(0)), &mixed(b.row(0)))];
                assert!(orders[0] != orders[1] && orders.iter().all(|order| error >= *order), "{error} {orders:?}");
                // Of products, too, that may count as zero, of NVFP4 because the weights are smaller there.
                assert!(error >= SLICE as f64 * power(least) * a.scale(0, 0) * b.scale(0, 0));
            }
        }
        assert_eq!(
            [crate::format::Scheme::Nvfp4Row, crate::format::Scheme::Mxfp4].map(|scheme| {
                let q = crate::reference::quantize(
                    Array2::from_elem((1, 128), 1.0).view(),
                    DType::F32,
                    crate::format::Recipe::new(scheme),
                )
                .unwrap();
                Decoded::new((&q).into(), None, true).least
            }),
            [-118, -126]
        );
    }
}
