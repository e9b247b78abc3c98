//! [`scaled_gemm`]: the scaled product on the CPU, in FP32, in slices of 128 along k.

use std::sync::Mutex;

use ndarray::linalg::general_mat_mul;
use ndarray::{Array2, ArrayView2, ArrayViewMut2, s};

use super::operand::{HostOperand, View};
use super::parallel;
use super::quantize::{quantize, quantize_tensor};
use crate::epilogue::{Activation, Epilogue};
use crate::error::{Error, Result};
use crate::format::{DType, Extent, GivenScale, HostQuantMatrix, Recipe, Scheme, SchemeSpec, codec, pair};

/// Columns of one slice of the sum: a 1x128 or 128x128 group.
pub(super) const SLICE: usize = 128;
/// Rows and columns of the tile of D that a core works on: its partial sums stay in the cache.
const TILE: [usize; 2] = [128, 256];

/// `fma(fl(p * first), second, sum)`: adds one slice's dot product to the sum.
#[inline]
pub fn promote(sum: f32, p: f32, first: f32, second: f32) -> f32 {
    (p * first).mul_add(second, sum)
}

/// `fl(sum + fl(fl(p * first) * second))`: the same without fusing, as torchao's kernels round.
#[inline]
pub fn promote_unfused(sum: f32, p: f32, first: f32, second: f32) -> f32 {
    sum + p * first * second
}

/// How the dot product of a slice of 128 along k is promoted: scaled and added to the FP32 sum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Promotion {
    /// [`promote`]: one rounding for the last multiplication and the addition.
    #[default]
    Fused,
    /// [`promote_unfused`].
    Unfused,
}

named!(Promotion, "promotion", Fused => "fused", Unfused => "unfused");

/// What [`scaled_gemm`] multiplies and does afterwards. Start from [`GemmInputs::new`] and set what differs.
#[derive(Debug, Clone, Copy)]
pub struct GemmInputs<'a> {
    /// A, `m x k`: quantized, or plain with quantized weights ([`pair::check_pair`]).
    pub a: HostOperand<'a>,
    /// B, `n x k`.
    pub b: &'a HostQuantMatrix,
    /// Type of D.
    pub out: DType,
    /// Factor of the sum.
    pub alpha: f32,
    /// `beta` and C, `m x n`: `beta * C` is added to the sum. F32 output only. With `beta = 0` C is not read.
    pub accumulate: Option<(f32, View<'a>)>,
    /// One value for each column of D, and the type it was widened from.
    pub bias: Option<(&'a [f32], DType)>,
    /// Function applied after the bias.
    pub activation: Activation,
    /// Added after the activation, `m x n`, and the type it was widened from.
    pub residual: Option<(View<'a>, DType)>,
    /// Factor applied before the cast to E4M3; 1 for other outputs.
    pub out_encode: f32,
    /// How slices with scales of their own are added up.
    pub promotion: Promotion,
}

impl<'a> GemmInputs<'a> {
    /// `D = A Bᵀ` as `out`, with no epilogue.
    pub fn new(a: impl Into<HostOperand<'a>>, b: &'a HostQuantMatrix, out: DType) -> Self {
        Self {
            a: a.into(),
            b,
            out,
            alpha: 1.0,
            accumulate: None,
            bias: None,
            activation: Activation::None,
            residual: None,
            out_encode: 1.0,
            promotion: Promotion::Fused,
        }
    }

    /// The epilogue as a plan names it.
    pub fn epilogue(&self) -> Epilogue {
        let (bias, residual) = (self.bias.map(|b| b.1), self.residual.as_ref().map(|r| r.1));
        Epilogue { bias, activation: self.activation, residual }
    }

    /// `beta` and C where C is read: not with `beta = 0`.
    pub(super) fn added(&self) -> Option<(f32, View<'a>)> {
        self.accumulate.filter(|(beta, _)| *beta != 0.0)
    }

    /// Checks pair, bases, types and shapes; gives m, n, k.
    pub(super) fn check(&self) -> Result<[usize; 3]> {
        let (a, b) = (self.a.operand(), self.b.scheme());
        let [m, n, k] = [self.a.rows(), self.b.rows(), self.a.cols()];
        pair::check_pair(a, b, "cpu")?;
        pair::check_basis(self.a.basis(), self.b.basis())?;
        pair::check_output(a, b, self.out)?;
        pair::check_columns(m, k)?;
        if self.b.cols() != k {
            return Err(Error::shape(
                "B",
                format!("{n} x {}", self.b.cols()),
                format!("must have the k = {k} columns of A ({m} x {k})"),
                "D = A Bᵀ: both operands are stored with k contiguous",
            ));
        }
        pair::check_shape(m, n, k, self.out)?;
        if self.accumulate.is_some() {
            pair::check_accumulate(self.out)?;
        }
        if self.out_encode != 1.0 && self.out != DType::E4M3 {
            return Err(Error::dtype("D", self.out, "takes no encode factor", "set it for E4M3 output only"));
        }
        if let Some((bias, dtype)) = self.bias {
            pair::check_epilogue_operand("bias", dtype)?;
            if bias.len() != n {
                let found = format!("length {}", bias.len());
                return Err(Error::shape("bias", found, format!("must be n = {n}"), "one value for each column of D"));
            }
        }
        let check_dim = |operand: &str, dim: (usize, usize)| {
            if dim == (m, n) {
                return Ok(());
            }
            let found = format!("{} x {}", dim.0, dim.1);
            Err(Error::shape(operand, found, format!("must be {m} x {n}"), "it has the shape of D"))
        };
        if let Some((residual, dtype)) = &self.residual {
            pair::check_epilogue_operand("residual", *dtype)?;
            check_dim("residual", residual.dim())?;
        }
        if let Some((_, c)) = &self.accumulate {
            check_dim("C", c.dim())?;
        }
        Ok([m, n, k])
    }
}

/// `D = cast(act(alpha * sum + beta * C + bias) + residual)`, `m x n`, as FP32 values rounded to `out`.
///
/// A is `m x k`, B `n x k`; any m, also 0; n a multiple of 8 (16 for E4M3 output); k a multiple of 16. E4M3 output: the
/// values of the codes `sat(fl(v * out_encode))`, which [`codec::encode_e4m3`] gives back. Runs on all cores; allocates D and a
/// few tiles.
///
/// For each slice of 128 columns, `p` is the FP32 dot product of the operands, in an order that is not specified. FP8
/// operands are codes; those of NVFP4, MXFP4 and MXFP8 are `code * block_scale`, exact in FP32 (but infinite beyond its range:
/// large codes with E8M0 bytes from 247 on, E5M2 from 240 on, E2M1 from 253 on); those of a plain A are its values. With a plain
/// F16 A those of MXFP4 are F16 numbers, rounded ([`pair::multiplied_in`]). Then
///
/// ```text
/// tensor x tensor      sum = fl(sum + p);  acc = fl(sum * fl(fl(scale_a * scale_b) * alpha))
/// row x row            sum = fl(sum + p);  acc = fl(sum * alpha), then row_scale and col_scale of the epilogue
/// 1x128 in a pair      sum = promote(sum, p, first, second);  acc = fl(sum * alpha)
/// nvfp4 x nvfp4        sum = fl(sum + p);  acc = fl(sum * fl(fl(alpha * scale_a) * scale_b))
/// nvfp4-row in a pair  sum = fl(sum + p);  acc = fl(fl(fl(sum * alpha) * scale_a[i]) * scale_b[j])
/// mx x mx              sum = fl(sum + p);  acc = fl(sum * alpha)
/// ```
///
/// `first` is the 1x128 scale (A's if both are), as in TransformerEngine, whose kernels and cuBLASLt round this way. With
/// nvfp4-row on one side, the one scale of an nvfp4 on the other counts for each of its rows. A plain A has no scale: its lines are those of B's
/// scheme, with 1 in the place of A's scales.
/// The epilogue follows in the order of [`Epilogue`].
///
/// # Errors
/// [`Error::Pair`], [`Error::Unsupported`] (bases that differ), [`Error::DType`] and [`Error::Shape`] as [`pair`] says.
pub fn scaled_gemm(inputs: &GemmInputs<'_>) -> Result<Array2<f32>> {
    scaled_gemm_amax(inputs).map(|(d, _)| d)
}

/// [`scaled_gemm`] of a plain A, `inputs.a`, that is quantized first: by [`quantize`], or to one given scale by [`quantize_tensor`].
///
/// # Errors
/// As those and [`scaled_gemm`]; [`Error::Unsupported`] if A is quantized already, or if a scale is given for another scheme than `fp8-tensor`.
pub fn scaled_gemm_quantizing(
    inputs: &GemmInputs<'_>,
    recipe: impl Into<Recipe>,
    scale: Option<GivenScale>,
) -> Result<Array2<f32>> {
    let recipe = recipe.into();
    let HostOperand::Plain(x, dtype) = inputs.a else {
        return Err(Error::unsupported(
            format!("quantizing an A of {}", inputs.a.operand()),
            "it is quantized already",
            "call scaled_gemm, or pass A as it was",
        ));
    };
    let x = x.mapv(|v| codec::round_to(dtype, v));
    let a = match (scale, recipe.scheme()) {
        (None, _) => quantize(x.view(), dtype, recipe)?,
        (Some(scale), Scheme::Fp8Tensor(format)) => quantize_tensor(x.view(), format, scale)?.0,
        (Some(_), scheme) => {
            return Err(Error::unsupported(
                format!("a given scale for an A quantized to {scheme}"),
                "one number is given, which is all scales of fp8-tensor alone",
                "quantize A as fp8-tensor, or let its scales be found",
            ));
        }
    };
    scaled_gemm(&GemmInputs { a: (&a).into(), ..*inputs })
}

/// [`scaled_gemm`], and the largest magnitude before `out_encode` and the cast (NaN ignored, 0 for an empty D).
///
/// # Errors
/// As [`scaled_gemm`].
pub fn scaled_gemm_amax(inputs: &GemmInputs<'_>) -> Result<(Array2<f32>, f32)> {
    let [m, n, k] = inputs.check()?;
    let grid = [m.div_ceil(TILE[0]), n.div_ceil(TILE[1])];
    let result = Mutex::new((Array2::zeros((m, n)), 0.0f32));
    parallel::for_each_task(grid[0] * grid[1], m.saturating_mul(n).saturating_mul(k.div_ceil(16)), |task| {
        let (i0, j0) = (task / grid[1] * TILE[0], task % grid[1] * TILE[1]);
        let (rows, cols) = (TILE[0].min(m - i0), TILE[1].min(n - j0));
        let mut tile = sum_tile(inputs, i0, rows, j0, cols, k);
        let amax = finish_tile(inputs, i0, j0, tile.view_mut());
        // A panic in another tile poisons the lock; it is raised again when the threads are joined.
        if let Ok(mut result) = result.lock() {
            result.0.slice_mut(s![i0..i0 + rows, j0..j0 + cols]).assign(&tile);
            result.1 = result.1.max(amax);
        }
    });
    Ok(result.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner))
}

/// The FP32 scales of one operand, looked up by element; 1 where there are none.
struct Scales<'a> {
    matrix: Option<&'a HostQuantMatrix>,
    group_rows: usize,
    grid: [usize; 2],
}

impl<'a> Scales<'a> {
    fn new(matrix: impl Into<HostOperand<'a>>) -> Self {
        let matrix = matrix.into().quantized();
        let grid = matrix.map_or([0, 0], |q| q.scheme().scale_grid(q.rows(), q.cols()));
        let group_rows = matrix.map_or(1, |q| q.scheme().spec().group_rows.size(q.rows()).max(1));
        Self { matrix: matrix.filter(|_| grid != [0, 0]), group_rows, grid }
    }

    fn get(&self, row: usize, slice: usize) -> f32 {
        let Some(matrix) = self.matrix else { return 1.0 };
        let layout = matrix.scheme().spec().scale_layout;
        matrix.scales()[layout.index(self.grid[0], self.grid[1], row / self.group_rows, slice)]
    }
}

/// True if the scheme has an FP32 scale for each slice of 128 along k.
pub(super) fn scales_slices(spec: &SchemeSpec) -> bool {
    spec.group_cols != Extent::All
}

/// How the FP32 scales of a pair are applied.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scaling {
    /// One factor for the whole sum, formed scales first: `fl(fl(scale_a * scale_b) * alpha)`.
    Factor,
    /// One factor, formed alpha first: `fl(fl(alpha * scale_a) * scale_b)`. So amax products do not overflow.
    AlphaFirst,
    /// After alpha, those of the rows of A, then those of the rows of B.
    Rows,
    /// For each slice along k; A's scale first if `true`.
    Slices { a_first: bool },
}

fn scaling(inputs: &GemmInputs<'_>) -> Scaling {
    let (a, b) = (inputs.a.scheme().map(|a| a.spec()), inputs.b.scheme().spec());
    let by_row = |spec: &SchemeSpec| spec.group_rows == Extent::Elements(1);
    if scales_slices(&b) {
        // A's scale is applied first if it is the 1x128 one, or both are.
        Scaling::Slices { a_first: a.as_ref().is_some_and(by_row) }
    } else if by_row(&b) || a.as_ref().is_some_and(by_row) {
        Scaling::Rows
    } else if b.block.is_some() {
        Scaling::AlphaFirst
    } else {
        Scaling::Factor
    }
}

/// `acc` of [`scaled_gemm`] for one tile of D, without the row and column scales.
fn sum_tile(inputs: &GemmInputs<'_>, i0: usize, rows: usize, j0: usize, cols: usize, k: usize) -> Array2<f32> {
    let (a, b) = (inputs.a, HostOperand::from(inputs.b));
    let (scales_a, scales_b) = (Scales::new(a), Scales::new(b));
    let scaling = scaling(inputs);
    let b_type = pair::multiplied_in(a.operand(), inputs.b.scheme());
    let mut sum = Array2::<f32>::zeros((rows, cols));
    let mut p = Array2::<f32>::zeros((rows, cols));
    let (mut panel_a, mut panel_b) = (Vec::new(), Vec::new());
    for (slice, k0) in (0..k).step_by(SLICE).enumerate() {
        let depth = SLICE.min(k - k0);
        let view_a = decode_panel(&a, [i0, rows], [k0, depth], None, &mut panel_a);
        let view_b = decode_panel(&b, [j0, cols], [k0, depth], b_type, &mut panel_b);
        general_mat_mul(1.0, &view_a, &view_b.t(), 0.0, &mut p);
        let Scaling::Slices { a_first } = scaling else {
            sum += &p;
            continue;
        };
        let col_scales: Vec<f32> = (j0..j0 + cols).map(|j| scales_b.get(j, slice)).collect();
        for (i, (mut sum, p)) in sum.rows_mut().into_iter().zip(p.rows()).enumerate() {
            let row_scale = scales_a.get(i0 + i, slice);
            for ((sum, p), col_scale) in sum.iter_mut().zip(&p).zip(&col_scales) {
                let (first, second) = if a_first { (row_scale, *col_scale) } else { (*col_scale, row_scale) };
                *sum = match inputs.promotion {
                    Promotion::Fused => promote(*sum, *p, first, second),
                    Promotion::Unfused => promote_unfused(*sum, *p, first, second),
                };
            }
        }
    }
    let factor = match scaling {
        Scaling::Factor => scales_a.get(0, 0) * scales_b.get(0, 0) * inputs.alpha,
        Scaling::AlphaFirst => inputs.alpha * scales_a.get(0, 0) * scales_b.get(0, 0),
        Scaling::Rows | Scaling::Slices { .. } => inputs.alpha,
    };
    if factor != 1.0 {
        sum *= factor;
    }
    sum
}

/// `depth` columns of `count` rows as FP32, `count x depth`; rounded to `dtype` if given.
fn decode_panel<'p>(
    operand: &HostOperand<'_>,
    [first, count]: [usize; 2],
    [k0, depth]: [usize; 2],
    dtype: Option<DType>,
    panel: &'p mut Vec<f32>,
) -> ArrayView2<'p, f32> {
    panel.clear();
    (first..first + count).for_each(|row| operand.decode(row, k0, depth, dtype, panel));
    ArrayView2::from_shape((count, depth), panel.as_slice()).expect("count * depth values were decoded")
}

/// Row and column scales and the epilogue, in place; gives the amax before the output's encode factor.
fn finish_tile(inputs: &GemmInputs<'_>, i0: usize, j0: usize, mut tile: ArrayViewMut2<'_, f32>) -> f32 {
    let per_row = scaling(inputs) == Scaling::Rows;
    let (scales_a, scales_b) = (Scales::new(inputs.a), Scales::new(inputs.b));
    let mut amax = 0.0f32;
    for (i, mut row) in tile.rows_mut().into_iter().enumerate() {
        let i = i0 + i;
        for (j, d) in row.iter_mut().enumerate() {
            let j = j0 + j;
            let mut v = *d;
            if per_row {
                v = v * scales_a.get(i, 0) * scales_b.get(j, 0);
            }
            if let Some((beta, c)) = inputs.added() {
                v += beta * c[[i, j]];
            }
            if let Some((bias, _)) = inputs.bias {
                v += bias[j];
            }
            v = inputs.activation.apply(v);
            if let Some((residual, _)) = &inputs.residual {
                v += residual[[i, j]];
            }
            amax = amax.max(v.abs());
            let v = if inputs.out == DType::E4M3 { v * inputs.out_encode } else { v };
            *d = codec::round_to(inputs.out, v);
        }
    }
    amax
}
