//! Whether a candidate's D is right: sampled elements against the f64 bound, which no GPU has a part in, and all elements
//! against those of a candidate that has passed.

use ndarray::{Array2, s};

use crate::error::Result;
use crate::format::{DType, HostQuantMatrix};
use crate::reference::{self, Accumulator, Gelu, GemmInputs, HostOperand, SumBound, rows_of};

use crate::gpu::gemm::args::{ArgA, GemmArgs};
use crate::gpu::gemm::desc::{Accumulate, Accumulation, GemmDesc};
use crate::gpu::gemm::formulation::{Finish, Formulation};
use crate::gpu::handle::Handle;
use crate::gpu::matrix::MatRef;

/// Rows of A and rows of B (a tile) in one sample.
const ROWS: usize = 8;
const COLS: usize = 128;

/// A in host memory.
enum HostA {
    Quantized(HostQuantMatrix),
    Plain(Array2<f32>, DType),
}

/// A part of the problem on the host: up to eight rows of A by a tile of B.
struct Sample {
    row: usize,
    col: usize,
    a: HostA,
    b: HostQuantMatrix,
    bias: Option<(Vec<f32>, DType)>,
    residual: Option<(Array2<f32>, DType)>,
    /// For each accumulator that a formulation added by.
    sums: Vec<(Accumulator, SumBound)>,
}

/// Judges every candidate of one problem.
pub(super) struct Judge {
    desc: GemmDesc,
    alpha: f32,
    beta: f32,
    encode: f32,
    samples: Vec<Sample>,
    /// D of the first candidate that passed.
    accepted: Option<Vec<u8>>,
}

/// What adds the products.
fn accumulator(desc: &GemmDesc, formulation: Formulation) -> Accumulator {
    match (desc.b.spec().block, formulation, desc.accumulation) {
        (Some(_), Formulation::DequantizedBf16 | Formulation::SmallM, _) => Accumulator::TensorCoreWide,
        _ if desc.a.scheme().is_none() => Accumulator::TensorCoreWide,
        // How the tensor cores of sm_100 add block-scaled products is not known here: the widest bound.
        (Some(_), ..) | (None, _, Accumulation::Fast) => Accumulator::TensorCoreFast,
        (None, _, Accumulation::Precise) => Accumulator::TensorCorePromoted,
    }
}

impl Judge {
    /// Reads the operands: A and B whole, of the others what the samples need. Allocates and waits.
    pub(super) fn new(handle: &Handle, desc: &GemmDesc, args: &GemmArgs<'_>) -> Result<Self> {
        let b = args.b.to_host(handle)?;
        let whole_a = match &args.a {
            ArgA::Quantized(a) => Ok(a.to_host(handle)?),
            ArgA::Quantize(x, recipe, scale) => {
                let values = read_rows(handle, x, 0, desc.m)?;
                Ok(match scale {
                    None => reference::quantize(values.view(), x.dtype(), *recipe)?,
                    Some(scale) => {
                        let number = self::values(DType::F32, &handle.read_bytes(scale.number())?)[0];
                        reference::quantize_tensor(values.view(), recipe.format, scale.with_number(number))?.0
                    }
                })
            }
            ArgA::Plain(a) => Err(a),
        };
        let bias = match &args.bias {
            Some(bias) => Some((values(bias.dtype(), &handle.read_bytes(bias.data())?), bias.dtype())),
            None => None,
        };
        let encode = match &args.out_encode {
            Some(encode) => values(DType::F32, &handle.read_bytes(encode)?)[0],
            None => 1.0,
        };
        let mut samples = Vec::new();
        for (row, col) in corners(desc.m, desc.n) {
            let (rows, cols) = (ROWS.min(desc.m - row), COLS.min(desc.n - col));
            let a = match whole_a {
                Ok(ref a) => HostA::Quantized(rows_of(a, row, rows)?),
                Err(a) => HostA::Plain(read_rows(handle, a, row, rows)?, a.dtype()),
            };
            let residual = match &args.residual {
                Some(residual) => {
                    let rows = read_rows(handle, residual, row, rows)?;
                    Some((rows.slice(s![.., col..col + cols]).to_owned(), residual.dtype()))
                }
                None => None,
            };
            let bias = bias.as_ref().map(|(values, dtype)| (values[col..col + cols].to_vec(), *dtype));
            samples.push(Sample { row, col, a, b: rows_of(&b, col, cols)?, bias, residual, sums: Vec::new() });
        }
        Ok(Self { desc: *desc, alpha: args.alpha, beta: args.beta.unwrap_or(0.0), encode, samples, accepted: None })
    }

    /// What is wrong with the packed rows of D, in words; `None` if nothing is.
    pub(super) fn fault(&mut self, formulation: Formulation, finish: Finish, d: Vec<u8>) -> Result<Option<String>> {
        let Self { desc, alpha, beta, encode, samples, accepted } = self;
        let accumulator = accumulator(desc, formulation);
        // Ours is exact; cuBLASLt's is not.
        let ours = finish == Finish::EpilogueKernel || formulation == Formulation::SmallM;
        let gelu = if ours { Gelu::Ieee } else { Gelu::Approximate };
        for Sample { row, col, a, b, bias, residual, sums } in samples {
            let at = match sums.iter().position(|(by, _)| *by == accumulator) {
                Some(at) => at,
                None => {
                    sums.push((accumulator, SumBound::new(a.operand(), b, accumulator)));
                    sums.len() - 1
                }
            };
            let old = Array2::zeros((a.operand().rows(), b.rows()));
            let inputs = GemmInputs {
                alpha: *alpha,
                // D was cleared.
                accumulate: (desc.accumulate == Accumulate::Add).then(|| (*beta, old.view())),
                bias: bias.as_ref().map(|(values, dtype)| (&values[..], *dtype)),
                activation: desc.epilogue.activation,
                residual: residual.as_ref().map(|(values, dtype)| (values.view(), *dtype)),
                out_encode: *encode,
                ..GemmInputs::new(a.operand(), b, desc.out)
            };
            let part = Array2::from_shape_fn(old.dim(), |(i, j)| {
                decode(desc.out, &d[((*row + i) * desc.n + *col + j) * desc.out.bytes()..]) as f32
            });
            if let Err(fault) = sums[at].1.with(&inputs, gelu)?.check(part.view()) {
                return Ok(Some(format!("beyond the f64 bound: {fault}, counted from row {row}, column {col}")));
            }
        }
        let difference = match accepted {
            Some(accepted) if desc.batch_invariant => other_bits(accepted, &d, desc.out, desc.n),
            Some(accepted) => difference(accepted, &d, desc.out, desc.n, desc.accumulation),
            None => {
                *accepted = Some(d);
                None
            }
        };
        Ok(difference)
    }
}

/// Where samples begin: the first rows by the last tile, and the first rows of the last tile by the first.
fn corners(m: usize, n: usize) -> [(usize, usize); 2] {
    let last = |len: usize| (len - 1) / COLS * COLS;
    [(0, last(n)), (last(m), 0)]
}

impl HostA {
    fn operand(&self) -> HostOperand<'_> {
        match self {
            Self::Quantized(a) => a.into(),
            Self::Plain(values, dtype) => HostOperand::Plain(values.view(), *dtype),
        }
    }
}

/// Some rows of a plain matrix, on the host.
fn read_rows(handle: &Handle, x: &MatRef<'_>, start: usize, rows: usize) -> Result<Array2<f32>> {
    let size = x.dtype().bytes();
    let (row_bytes, stride) = (x.cols() * size, x.row_stride() * size);
    let order = handle.queue().order();
    let span = x.data().at(&order)?;
    let bytes = handle.read_rows(&span.slice(start * stride, span.bytes), rows, row_bytes, stride)?;
    let values = values(x.dtype(), &bytes);
    Ok(Array2::from_shape_fn((rows, x.cols()), |(i, j)| values[i * x.cols() + j]))
}

/// Numbers of this type.
fn values(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(dtype.bytes()).map(|b| decode(dtype, b) as f32).collect()
}

/// Relative distance up to which two candidates' outputs count as equal, in the 2-norm of a tile.
///
/// Derived: two orders of summation differ by a part e of the norm: 2^-10 with fast accumulation, 2^-11 otherwise (tensor
/// cores keep partial sums of sm_90 to about 2^-13; a few dozen of them add up as a random walk). Rounding to D's type,
/// steps of u, turns such a difference into a whole step with probability e / u: a norm of sqrt(e * u). Four times the sum
/// covers tiles of few elements. For E4M3, the coarsest, that is 0.048; a wrong scale order shows as 0.08 and more
/// (observed by others), a lost partial sum of a split k as 0.1 and more.
fn tolerance(out: DType, accumulation: Accumulation) -> f64 {
    let order = match accumulation {
        Accumulation::Fast => 2f64.powi(-10),
        Accumulation::Precise => 2f64.powi(-11),
    };
    let step = 2f64.powi(match out {
        DType::Bf16 => -7,
        DType::F16 => -10,
        DType::F32 => -23,
        DType::E4M3 => -3,
        DType::E5M2 => -2,
    });
    4.0 * (order + (order * step).sqrt())
}

/// Rows and columns of a tile: small enough that one wrong tile of a large D is not lost in the norm of the rest.
const TILE: usize = 64;

/// What differs between two outputs of `cols` columns, in words; `None` if they agree to [`tolerance`] tile by tile.
///
/// A tile of small values (an edge, a cancellation) is held against the mean norm of all tiles.
fn difference(want: &[u8], found: &[u8], out: DType, cols: usize, accumulation: Accumulation) -> Option<String> {
    let size = out.bytes();
    let rows = found.len() / (size * cols).max(1);
    if want.len() != found.len() {
        return Some(format!("{} bytes instead of {}", found.len(), want.len()));
    }
    let value = |bytes: &[u8], row: usize, col: usize| decode(out, &bytes[(row * cols + col) * size..]);
    let tolerance = tolerance(out, accumulation);
    let mut tiles = Vec::new();
    for row in (0..rows).step_by(TILE) {
        for col in (0..cols).step_by(TILE) {
            let (mut norm, mut distance, mut count) = (0f64, 0f64, 0usize);
            for i in row..rows.min(row + TILE) {
                for j in col..cols.min(col + TILE) {
                    let (a, b) = (value(want, i, j), value(found, i, j));
                    if a.is_finite() != b.is_finite() || a.is_nan() != b.is_nan() {
                        return Some(format!("{b} instead of {a} at row {i}, column {j}"));
                    }
                    if a.is_finite() {
                        norm += a * a;
                        distance += (a - b) * (a - b);
                        count += 1;
                    }
                }
            }
            tiles.push((row, col, norm, distance, count));
        }
    }
    let total: (f64, usize) = tiles.iter().fold((0.0, 0), |(norm, count), t| (norm + t.2, count + t.4));
    let mean = total.0 / (total.1.max(1)) as f64;
    tiles.into_iter().find_map(|(row, col, norm, distance, count)| {
        let reference = norm.max(mean * count as f64).sqrt();
        (distance.sqrt() > tolerance * reference).then(|| {
            format!(
                "relative distance {:.2e} above {tolerance:.2e} in the tile at row {row}, column {col}",
                distance.sqrt() / reference
            )
        })
    })
}

/// Where the bits of two batch-invariant outputs differ, in words: which of them is taken must not show.
fn other_bits(want: &[u8], found: &[u8], out: DType, cols: usize) -> Option<String> {
    let at = want.iter().zip(found).position(|(a, b)| a != b)? / out.bytes();
    let value = |bytes: &[u8]| decode(out, &bytes[at * out.bytes()..]);
    let (row, col) = (at / cols, at % cols);
    Some(format!("{} with other bits than {} at row {row}, column {col}", value(found), value(want)))
}

/// One element as f64.
fn decode(out: DType, bytes: &[u8]) -> f64 {
    match (out, bytes) {
        (DType::Bf16, [a, b, ..]) => half::bf16::from_ne_bytes([*a, *b]).to_f64(),
        (DType::F16, [a, b, ..]) => half::f16::from_ne_bytes([*a, *b]).to_f64(),
        (DType::F32, [a, b, c, d, ..]) => f64::from(f32::from_ne_bytes([*a, *b, *c, *d])),
        (DType::E4M3, [code, ..]) => float8::F8E4M3::from_bits(*code).to_f64(),
        (DType::E5M2, [code, ..]) => float8::F8E5M2::from_bits(*code).to_f64(),
        _ => f64::NAN,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    use crate::format::{Fp8Format, Recipe, Scheme};
    use crate::reference::{self, Noise};

    fn noise(i: usize) -> f32 {
        2.0 * Noise::new(i as u64).uniform() - 1.0
    }

    fn bf16(values: impl Iterator<Item = f32>) -> Vec<u8> {
        values.flat_map(|v| half::bf16::from_f32(v).to_ne_bytes()).collect()
    }

    /// The judge of a product in host memory.
    fn judge(a: &HostQuantMatrix, b: &HostQuantMatrix) -> Judge {
        let (m, n) = (a.rows(), b.rows());
        let samples = corners(m, n).map(|(row, col)| Sample {
            row,
            col,
            a: HostA::Quantized(rows_of(a, row, ROWS).unwrap()),
            b: rows_of(b, col, COLS).unwrap(),
            bias: None,
            residual: None,
            sums: Vec::new(),
        });
        let desc = GemmDesc::new(m, n, a.cols(), a.scheme(), b.scheme(), DType::Bf16);
        Judge { desc, alpha: 1.0, beta: 0.0, encode: 1.0, samples: samples.into(), accepted: None }
    }

    #[test]
    fn a_wrong_first_candidate_does_not_become_the_truth() {
        let scheme = Scheme::Fp8Row(Fp8Format::E4M3);
        let matrix = |seed, rows| {
            let x = Noise::new(seed).matrix(rows, 256, DType::Bf16);
            reference::quantize(x.view(), DType::Bf16, Recipe::new(scheme)).unwrap()
        };
        let (a, b) = (matrix(1, 200), matrix(2, 264));
        let d = reference::scaled_gemm(&GemmInputs::new(&a, &b, DType::Bf16)).unwrap();
        let mut judge = judge(&a, &b);
        let mut fault =
            |d: &Array2<f32>| judge.fault(Formulation::Native, Finish::Fused, bf16(d.iter().copied())).unwrap();
        // All of it off by 8 %, as by a wrong scale.
        let words = fault(&d.mapv(|v| v * 1.08)).unwrap();
        assert!(words.contains("beyond the f64 bound"), "{words}");
        assert_eq!(fault(&d), None);
        // A tile that no sample reaches.
        let mut tile = d.clone();
        tile.slice_mut(s![64..128, 128..192]).mapv_inplace(|v| v * 1.08);
        let words = fault(&tile).unwrap();
        assert!(words.contains("row 64, column 128"), "{words}");
        assert_eq!(fault(&d), None);
    }

    #[test]
    fn batch_invariant_candidates_agree_bit_for_bit() {
        let scheme = Scheme::Fp8Row(Fp8Format::E4M3);
        let matrix = |rows| {
            let x = Noise::new(rows as u64).matrix(rows, 256, DType::Bf16);
            reference::quantize(x.view(), DType::Bf16, Recipe::new(scheme)).unwrap()
        };
        let (a, b) = (matrix(130), matrix(264));
        let d = reference::scaled_gemm(&GemmInputs::new(&a, &b, DType::Bf16)).unwrap();
        for invariant in [false, true] {
            let mut judge = judge(&a, &b);
            judge.desc.batch_invariant = invariant;
            let mut d = bf16(d.iter().copied());
            let mut fault = |d: &[u8]| judge.fault(Formulation::Sm90, Finish::Fused, d.to_vec()).unwrap();
            assert_eq!((fault(&d), fault(&d)), (None, None));
            // The last bit of an element that no sample reaches.
            d[2 * (70 * 264 + 200)] ^= 1;
            let words = fault(&d);
            assert_eq!(words.is_some(), invariant, "{words:?}");
            assert!(
                words
                    .is_none_or(|words| words.contains("with other bits than") && words.contains("row 70, column 200"))
            );
        }
    }

    #[test]
    fn another_order_of_summation_agrees_and_another_scale_does_not() {
        let (rows, cols) = (130, 200);
        let exact = || (0..rows * cols).map(noise);
        let want = bf16(exact());
        let close = bf16(exact().enumerate().map(|(i, v)| v + 2e-4 * noise(i + 7_777_777)));
        assert_eq!(difference(&want, &close, DType::Bf16, cols, Accumulation::Precise), None);
        // One tile of six scaled wrongly by 8 %.
        let wrong = bf16(exact().enumerate().map(|(i, v)| if i / cols >= 128 && i % cols < 64 { v * 1.08 } else { v }));
        let words = difference(&want, &wrong, DType::Bf16, cols, Accumulation::Precise).unwrap();
        assert!(words.contains("row 128, column 0"), "{words}");
        // A poisoned element that was never written.
        let mut hole = want.clone();
        hole[2 * (cols + 3)..][..2].copy_from_slice(&half::bf16::NAN.to_ne_bytes());
        let words = difference(&want, &hole, DType::Bf16, cols, Accumulation::Precise).unwrap();
        assert!(words.contains("NaN") && words.contains("row 1, column 3"), "{words}");
    }

    #[test]
    fn the_tolerance_is_tighter_for_finer_types_and_stays_below_a_wrong_layout() {
        for accumulation in [Accumulation::Precise, Accumulation::Fast] {
            let of = |out| tolerance(out, accumulation);
            assert!(of(DType::F32) < of(DType::F16) && of(DType::F16) < of(DType::Bf16));
            assert!(of(DType::Bf16) < of(DType::E4M3) && of(DType::E4M3) < 0.05, "{}", of(DType::E4M3));
        }
    }

    #[test]
    fn zeros_equal_zeros_and_nothing_else() {
        let zeros = bf16((0..64).map(|_| 0.0));
        assert_eq!(difference(&zeros, &zeros, DType::Bf16, 8, Accumulation::Precise), None);
        let one = bf16((0..64).map(|i| if i == 9 { 1e-6 } else { 0.0 }));
        assert!(difference(&zeros, &one, DType::Bf16, 8, Accumulation::Precise).is_some());
    }
}
