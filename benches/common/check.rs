//! Whether what was timed is right: a few elements of D against the f64 bound.

use ndarray::Array2;
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::reference::{Accumulator, Gelu, GemmInputs, HostOperand, SumBound, rows_of};
use scaled_gemm::{Activation, DType, Handle, HostQuantMatrix, QuantMatrix};

use super::Pool;
use super::testing::values_of;

/// Rows and columns of D in one corner.
const ROWS: usize = 4;
const COLS: usize = 16;

/// A part of A.
enum HostA {
    Quantized(HostQuantMatrix),
    Plain(Array2<f32>),
}

struct Corner {
    row: usize,
    col: usize,
    a: HostA,
    b: HostQuantMatrix,
}

/// The first rows by the last tile of D, and the first rows of the last tile by the first.
fn corners(m: usize, n: usize) -> [[usize; 2]; 2] {
    let last = |len: usize| (len - 1) / 128 * 128;
    [[0, last(n)], [last(m), 0]]
}

/// Two corners of D of one product, for one way of adding.
pub struct Check {
    n: usize,
    corners: Vec<(Corner, SumBound)>,
}

impl Check {
    /// Of a quantized A.
    pub fn new(handle: &Handle, a: &QuantMatrix, b: &HostQuantMatrix, accumulator: Accumulator) -> Self {
        let a = a.to_host(handle).unwrap();
        Self::of(a.rows(), b, accumulator, |row| HostA::Quantized(rows_of(&a, row, ROWS).unwrap()))
    }

    /// Of the pool's A, as it is.
    pub fn plain(handle: &Handle, pool: &Pool, (m, k): (usize, usize), b: &HostQuantMatrix) -> Self {
        Self::of(m, b, Accumulator::TensorCoreWide, |row| HostA::Plain(pool.rows_of_a(handle, (m, k), row, ROWS)))
    }

    fn of(m: usize, b: &HostQuantMatrix, accumulator: Accumulator, a: impl Fn(usize) -> HostA) -> Self {
        let corner = |[row, col]: [usize; 2]| {
            let corner = Corner { row, col, a: a(row), b: rows_of(b, col, COLS).unwrap() };
            let sums = SumBound::new(corner.a(), &corner.b, accumulator);
            (corner, sums)
        };
        Self { n: b.rows(), corners: corners(m, b.rows()).map(corner).into() }
    }

    /// Panics if D, packed rows of type `out`, is not the product with this activation.
    pub fn assert(&self, handle: &Handle, d: &CudaSlice<u8>, out: DType, activation: Activation, words: &str) {
        for (corner, sums) in &self.corners {
            let inputs = GemmInputs { activation, ..GemmInputs::new(corner.a(), &corner.b, out) };
            let bound = sums.with(&inputs, Gelu::Approximate).unwrap();
            let (rows, cols) = bound.exact.dim();
            let mut found = Vec::with_capacity(rows * cols);
            for row in corner.row..corner.row + rows {
                let start = (row * self.n + corner.col) * out.bytes();
                let bytes = handle.stream().clone_dtoh(&d.slice(start..start + cols * out.bytes())).unwrap();
                handle.synchronize().unwrap();
                found.extend(values_of(out, &bytes));
            }
            let found = Array2::from_shape_vec((rows, cols), found).unwrap();
            if let Err(error) = bound.check(found.view()) {
                panic!("{words}: {error}, counted from row {}, column {}", corner.row, corner.col);
            }
        }
    }
}

impl Corner {
    fn a(&self) -> HostOperand<'_> {
        match &self.a {
            HostA::Quantized(a) => a.into(),
            HostA::Plain(a) => HostOperand::Plain(a.view(), DType::Bf16),
        }
    }
}

/// The BF16 product within half a unit of its type, and 2^-14 of the sum of magnitudes for its FP32 sums.
pub fn assert_bf16(handle: &Handle, pool: &Pool, [m, n, k]: [usize; 3], d: &CudaSlice<u8>) {
    for [row, col] in corners(m, n) {
        let (rows, cols) = (ROWS.min(m - row), COLS.min(n - col));
        let a = pool.rows_of_a(handle, (m, k), row, rows);
        let b = pool.rows_of_b(handle, (n, k), col, cols);
        for i in 0..rows {
            let found = super::bf16_values(handle, d, (row + i) * n + col, cols);
            for (j, got) in found.into_iter().enumerate() {
                let products = a.row(i).into_iter().zip(b.row(j)).map(|(x, y)| f64::from(*x) * f64::from(*y));
                let (sum, size) = products.fold((0.0, 0.0), |(sum, size), p| (sum + p, size + p.abs()));
                let error = (f64::from(got) - sum).abs();
                assert!(error <= sum.abs() / 256.0 + size / 16384.0, "BF16 {m} x {n} x {k}: {got} for {sum}");
            }
        }
    }
}
