//! Random matrices, the same on every machine.

use half::{bf16, f16};
use ndarray::Array2;
use scaled_gemm::DType;
use scaled_gemm::codec::round_to;
use scaled_gemm::reference::{Noise, hadamard16_inverse};

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
    let mut random = Noise::new(seed);
    (0..POOL.min(len)).map(|_| round_to(dtype, random.normal())).collect()
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
