//! Random matrices, the same on every machine.

use half::{bf16, f16};
use ndarray::Array2;
use scaled_gemm::reference::hadamard16_inverse;
use scaled_gemm::{DType, Error, HostQuantMatrix, Result};

/// SplitMix64.
pub struct Random(u64);

impl Random {
    /// A generator that depends on the seed alone.
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    /// 64 random bits.
    pub fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
        z ^ (z >> 31)
    }

    /// A number in (0, 1].
    fn unit(&mut self) -> f64 {
        ((self.bits() >> 11) + 1) as f64 / (1u64 << 53) as f64
    }

    /// A standard normal number (Box and Muller).
    pub fn normal(&mut self) -> f32 {
        ((-2.0 * self.unit().ln()).sqrt() * (std::f64::consts::TAU * self.unit()).cos()) as f32
    }
}

/// Numbers drawn before a matrix repeats them: a prime, so that rows differ.
const POOL: usize = 1_048_573;

/// Standard normal numbers rounded to `dtype`. Beyond about a million they repeat, shifted from row to row.
pub fn normal(rows: usize, cols: usize, dtype: DType, seed: u64) -> Array2<f32> {
    let pool = pool(rows * cols, dtype, seed);
    Array2::from_shape_fn((rows, cols), |(i, j)| pool[(i * cols + j) % pool.len()])
}

/// The bytes of [`normal`], at the speed of a copy.
#[cfg(feature = "cuda")]
pub fn normal_bytes(rows: usize, cols: usize, dtype: DType, seed: u64) -> Vec<u8> {
    let pool = to_bytes(&pool(rows * cols, dtype, seed), dtype);
    let len = rows * cols * dtype.bytes();
    let mut bytes = Vec::with_capacity(len);
    while bytes.len() < len {
        bytes.extend_from_slice(&pool[..pool.len().min(len - bytes.len())]);
    }
    bytes
}

fn pool(len: usize, dtype: DType, seed: u64) -> Vec<f32> {
    let mut random = Random::new(seed);
    (0..POOL.min(len)).map(|_| round_to(random.normal(), dtype)).collect()
}

/// The nearest value of a wide type.
pub fn round_to(value: f32, dtype: DType) -> f32 {
    match dtype {
        DType::Bf16 => bf16::from_f32(value).to_f32(),
        DType::F16 => f16::from_f32(value).to_f32(),
        _ => value,
    }
}

/// Little-endian bytes of values that a wide type holds exactly.
pub fn to_bytes<'a>(values: impl IntoIterator<Item = &'a f32>, dtype: DType) -> Vec<u8> {
    let values = values.into_iter();
    match dtype {
        DType::Bf16 => values.flat_map(|v| bf16::from_f32(*v).to_le_bytes()).collect(),
        DType::F16 => values.flat_map(|v| f16::from_f32(*v).to_le_bytes()).collect(),
        _ => values.flat_map(|v| v.to_le_bytes()).collect(),
    }
}

/// Values of little-endian bytes of a wide type.
#[cfg(feature = "cuda")]
pub fn from_bytes(bytes: &[u8], dtype: DType) -> Vec<f32> {
    let pairs = || bytes.as_chunks::<2>().0.iter();
    match dtype {
        DType::Bf16 => pairs().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
        DType::F16 => pairs().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        _ => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
    }
}

/// Up to `len` rows from `start` on, which is a multiple of 128 so that no tile is cut.
pub fn rows_of(q: &HostQuantMatrix, start: usize, len: usize) -> Result<HostQuantMatrix> {
    if !start.is_multiple_of(128) || start >= q.rows().max(1) {
        return Err(Error::shape("rows", format!("start {start}"), "must be a multiple of 128 inside", "move it"));
    }
    let (scheme, cols) = (q.scheme(), q.cols());
    let len = len.min(q.rows() - start);
    let [_, col_groups] = scheme.scale_grid(q.rows(), cols);
    let [row_groups, _] = scheme.scale_grid(len, cols);
    let first = match scheme.spec().group_rows {
        scaled_gemm::Extent::All => 0,
        scaled_gemm::Extent::Elements(size) => start / size,
    };
    let scales: Vec<f32> =
        (0..row_groups * col_groups).map(|i| q.scale_at(first + i / col_groups, i % col_groups)).collect();
    let [block_rows, blocks] = scheme.block_grid(len, cols);
    let block_scales: Vec<u8> =
        (0..block_rows * blocks).map(|i| q.block_scale_at(start + i / blocks, i % blocks)).collect();
    let codes = (start..start + len).flat_map(|row| q.row_codes(row)).copied().collect();
    HostQuantMatrix::from_block_logical(scheme, len, cols, codes, &scales, &block_scales)
        .map(|m| m.assume_basis(q.basis()))
}

/// The values of the data whose transform these are: [`hadamard16_inverse`] of each 16 columns.
pub fn undo_hadamard(values: &mut Array2<f32>) {
    for mut row in values.rows_mut() {
        for mut block in row.exact_chunks_mut(16) {
            let mut sixteen = [0.0; 16];
            sixteen.iter_mut().zip(&block).for_each(|(to, from)| *to = *from);
            block.iter_mut().zip(hadamard16_inverse(&sixteen)).for_each(|(to, from)| *to = from);
        }
    }
}
