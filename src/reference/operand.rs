//! [`HostOperand`]: A of a CPU product, and the FP32 values of an operand as products add them up.

use ndarray::{ArrayBase, Ix2, ViewRepr, s};

use crate::format::{Basis, BlockSpec, CodeFormat, DType, HostQuantMatrix, Operand, Scheme, codec};

/// `ArrayView2<f32>`, written out: ndarray's alias names an associated type, which would make a struct that holds it
/// invariant in `'a`, and rustc 1.95 stops on closures that capture its fields.
pub(super) type View<'a> = ArrayBase<ViewRepr<&'a f32>, Ix2, f32>;

/// A of a CPU product: a quantized matrix, or a plain one where only the weights are quantized.
#[derive(Debug, Clone, Copy)]
pub enum HostOperand<'a> {
    /// A quantized matrix.
    Quantized(&'a HostQuantMatrix),
    /// `m x k` values and the type they were widened from, BF16 or F16 (F32 for [`scaled_gemm_quantizing`](super::scaled_gemm_quantizing)). A value that is not of that type is rounded to
    /// it, as it would be on its way to a GPU. Any strides. The view is an [`ArrayView2<f32>`](ndarray::ArrayView2).
    Plain(View<'a>, DType),
}

impl<'a> From<&'a HostQuantMatrix> for HostOperand<'a> {
    fn from(matrix: &'a HostQuantMatrix) -> Self {
        Self::Quantized(matrix)
    }
}

impl<'a> HostOperand<'a> {
    /// Rows.
    pub fn rows(&self) -> usize {
        match self {
            Self::Quantized(matrix) => matrix.rows(),
            Self::Plain(values, _) => values.nrows(),
        }
    }

    /// Columns.
    pub fn cols(&self) -> usize {
        match self {
            Self::Quantized(matrix) => matrix.cols(),
            Self::Plain(values, _) => values.ncols(),
        }
    }

    /// Scheme or element type.
    pub fn operand(&self) -> Operand {
        match self {
            Self::Quantized(matrix) => Operand::Quantized(matrix.scheme()),
            Self::Plain(_, dtype) => Operand::Plain(*dtype),
        }
    }

    /// The quantized matrix; `None` if A is plain.
    pub fn quantized(&self) -> Option<&'a HostQuantMatrix> {
        match self {
            Self::Quantized(matrix) => Some(matrix),
            Self::Plain(..) => None,
        }
    }

    /// The scheme; `None` if A is plain.
    pub fn scheme(&self) -> Option<Scheme> {
        self.operand().scheme()
    }

    /// The basis of the rows; [`Basis::Plain`] if A is plain.
    pub fn basis(&self) -> Basis {
        self.quantized().map_or(Basis::Plain, HostQuantMatrix::basis)
    }

    /// Appends `depth` values of row `row` from column `k0` on, a multiple of 32: `code * block_scale`, or the plain value; rounded
    /// to the type that the product takes them in, if one is given ([`multiplied_in`](crate::pair::multiplied_in)).
    pub(super) fn decode(&self, row: usize, k0: usize, depth: usize, dtype: Option<DType>, values: &mut Vec<f32>) {
        let first = values.len();
        match self {
            Self::Quantized(matrix) => decode_codes(matrix, row, k0, depth, values),
            Self::Plain(plain, dtype) => {
                values.extend(plain.slice(s![row, k0..k0 + depth]).iter().map(|v| codec::round_to(*dtype, *v)));
            }
        }
        if let Some(dtype) = dtype {
            values[first..].iter_mut().for_each(|v| *v = codec::round_to(dtype, *v));
        }
    }
}

fn decode_codes(q: &HostQuantMatrix, row: usize, k0: usize, depth: usize, values: &mut Vec<f32>) {
    let spec = q.scheme().spec();
    let codes = &q.row_codes(row)[k0 * spec.code_bits / 8..(k0 + depth) * spec.code_bits / 8];
    // Without block scales: one block.
    let width = spec.block.map_or(depth, |block| block.cols).max(1);
    let scale = |at| spec.block.map_or(1.0, |block| block_scale(q, block, row, k0 / width + at));
    match spec.format {
        CodeFormat::E2M1 => {
            for (at, codes) in codes.chunks(width / 2).enumerate() {
                let scale = scale(at);
                values.extend(codes.iter().flat_map(|c| E2M1_PAIRS[usize::from(*c)].map(|v| v * scale)));
            }
        }
        CodeFormat::Fp8(format) => {
            let table = codec::values_of(format);
            for (at, codes) in codes.chunks(width).enumerate() {
                let scale = scale(at);
                values.extend(codes.iter().map(|c| table[usize::from(*c)] * scale));
            }
        }
    }
}

fn block_scale(q: &HostQuantMatrix, block: BlockSpec, row: usize, at: usize) -> f32 {
    codec::decode_block_scale(block.format, q.block_scale_at(row, at))
}

/// The two values of each byte of E2M1 codes, the low half first.
static E2M1_PAIRS: [[f32; 2]; 256] = {
    let mut pairs = [[0.0; 2]; 256];
    let mut byte = 0;
    while byte < 256 {
        pairs[byte] = [codec::E2M1_VALUES[byte & 15], codec::E2M1_VALUES[byte >> 4]];
        byte += 1;
    }
    pairs
};
