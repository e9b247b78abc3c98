//! [`PlainRows`]: rows of a plain matrix with the bytes that a file has of them.

use half::f16;
use half::slice::HalfFloatSliceExt;
use multiversion::multiversion;
use ndarray::{Array2, ArrayView2};

use crate::error::{Error, Result};
use crate::format::DType;
use crate::format::codec::round_bf16;

/// Rows of a BF16, F16 or F32 matrix: little-endian values, row-major, without gaps. What goes from a file to a device, and back,
/// passes through this and is never widened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlainRows {
    dtype: DType,
    rows: usize,
    cols: usize,
    bytes: Vec<u8>,
}

impl PlainRows {
    /// Takes the bytes of `rows x cols` values.
    ///
    /// # Errors
    /// [`Error::DType`] for another type than BF16, F16 and F32; [`Error::Shape`] for another number of bytes.
    pub fn new(dtype: DType, rows: usize, cols: usize, bytes: Vec<u8>) -> Result<Self> {
        if !dtype.is_wide() {
            return Err(Error::dtype("x", dtype, "is no type of plain rows", "pass bf16, f16 or f32"));
        }
        let need = rows.checked_mul(cols).and_then(|n| n.checked_mul(dtype.bytes()));
        // Without a row, too, a row must be one that memory could hold.
        let row = cols.checked_mul(dtype.bytes().max(4)).filter(|row| isize::try_from(*row).is_ok());
        if need != Some(bytes.len()) || row.is_none() {
            let found = format!("{} bytes for {rows} x {cols} of {dtype}", bytes.len());
            return Err(Error::shape("x", found, "must have those of every value", "pass the bytes of whole rows"));
        }
        Ok(Self { dtype, rows, cols, bytes })
    }

    /// The values rounded to `dtype`, to nearest even, in `bytes`, which are replaced. Allocates where their room is too small.
    ///
    /// # Errors
    /// [`Error::DType`] for another type than BF16, F16 and F32.
    pub fn from_f32(values: ArrayView2<'_, f32>, dtype: DType, mut bytes: Vec<u8>) -> Result<Self> {
        let (rows, cols) = values.dim();
        bytes.clear();
        bytes.reserve_exact(values.len() * dtype.bytes());
        match values.as_slice() {
            Some(values) => narrow(dtype, values, &mut bytes),
            None => values.outer_iter().for_each(|row| narrow(dtype, &row.to_vec(), &mut bytes)),
        }
        Self::new(dtype, rows, cols, bytes)
    }

    /// The type of the values.
    pub fn dtype(&self) -> DType {
        self.dtype
    }

    /// Number of rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Number of columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The values as they lie in files.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes
    }

    /// The same, without the shape.
    pub fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }

    /// The values in FP32, which is exact; a signalling NaN of 16 bits becomes a quiet one.
    pub fn to_f32(&self) -> Array2<f32> {
        Array2::from_shape_vec((self.rows, self.cols), widen(self.dtype, &self.bytes))
            .expect("the bytes of every value")
    }

    /// The same in `values`, which are replaced. Allocates where their room is too small.
    pub fn widen_into(&self, values: &mut Vec<f32>) {
        values.clear();
        widen_into(self.dtype, &self.bytes, values);
    }

    /// The first rows in FP32, or all where there are not so many.
    pub fn first_rows(&self, rows: usize) -> Array2<f32> {
        let rows = rows.min(self.rows);
        let bytes = &self.bytes[..rows * self.cols * self.dtype.bytes()];
        Array2::from_shape_vec((rows, self.cols), widen(self.dtype, bytes)).expect("the bytes of every value")
    }

    /// One row in FP32, in `values`, which are replaced.
    ///
    /// # Panics
    /// If `row` is not below [`PlainRows::rows`].
    pub fn row_into(&self, row: usize, values: &mut Vec<f32>) {
        let len = self.cols * self.dtype.bytes();
        values.clear();
        widen_into(self.dtype, &self.bytes[row * len..][..len], values);
    }

    /// Whether no value is NaN or infinite.
    pub fn is_finite(&self) -> bool {
        match self.dtype {
            DType::Bf16 => largest_of_16(&self.bytes, u16::MAX) < BF16_INFINITY,
            DType::F16 => largest_of_16(&self.bytes, u16::MAX) < F16_INFINITY,
            _ => largest_of_32(&self.bytes, u32::MAX) < F32_INFINITY,
        }
    }

    /// The largest magnitude; NaN ignored, 0 if there is nothing else.
    pub fn amax(&self) -> f32 {
        match self.dtype {
            DType::Bf16 => f32::from_bits(u32::from(largest_of_16(&self.bytes, BF16_INFINITY)) << 16),
            DType::F16 => f16::from_bits(largest_of_16(&self.bytes, F16_INFINITY)).to_f32(),
            _ => f32::from_bits(largest_of_32(&self.bytes, F32_INFINITY)),
        }
    }
}

const BF16_INFINITY: u16 = 0x7F80;
const F16_INFINITY: u16 = 0x7C00;
const F32_INFINITY: u32 = 0x7F80_0000;

/// The largest bits without the sign that are not above `most`: the order of bits is that of magnitudes, NaN above all.
#[multiversion(targets("x86_64+avx2+fma"))]
fn largest_of_16(bytes: &[u8], most: u16) -> u16 {
    let magnitudes = bytes.as_chunks().0.iter().map(|b| u16::from_le_bytes(*b) & 0x7FFF);
    magnitudes.fold(0, |largest, bits| largest.max(if bits > most { 0 } else { bits }))
}

#[multiversion(targets("x86_64+avx2+fma"))]
fn largest_of_32(bytes: &[u8], most: u32) -> u32 {
    let magnitudes = bytes.as_chunks().0.iter().map(|b| u32::from_le_bytes(*b) & 0x7FFF_FFFF);
    magnitudes.fold(0, |largest, bits| largest.max(if bits > most { 0 } else { bits }))
}

/// Little-endian BF16, F16 or F32 values as FP32; a signalling NaN becomes a quiet one on the way from 16 bits.
pub(super) fn widen(dtype: DType, bytes: &[u8]) -> Vec<f32> {
    let mut values = Vec::new();
    widen_into(dtype, bytes, &mut values);
    values
}

/// Appends them.
fn widen_into(dtype: DType, bytes: &[u8], values: &mut Vec<f32>) {
    /// Values at a time, which stay in the nearest cache: the result is written once, and not zeroed before.
    const PIECE: usize = 1024;
    let size = dtype.bytes();
    values.reserve_exact(bytes.len() / size);
    let (mut piece, mut halves) = ([0.0; PIECE], [f16::ZERO; PIECE]);
    for bytes in bytes.chunks(PIECE * size) {
        let (piece, halves) = (&mut piece[..bytes.len() / size], &mut halves[..bytes.len() / size]);
        match dtype {
            DType::Bf16 => widen_bf16(bytes, piece),
            DType::F16 => {
                halves.iter_mut().zip(bytes.as_chunks().0).for_each(|(h, b)| *h = f16::from_le_bytes(*b));
                // The crate's conversion of slices uses the CPU's.
                halves.convert_to_f32_slice(piece);
            }
            _ => piece.iter_mut().zip(bytes.as_chunks().0).for_each(|(v, b)| *v = f32::from_le_bytes(*b)),
        }
        values.extend_from_slice(piece);
    }
}

/// `bf16::to_f32` of each, without a branch.
#[multiversion(targets("x86_64+avx2+fma"))]
fn widen_bf16(bytes: &[u8], values: &mut [f32]) {
    for (value, bytes) in values.iter_mut().zip(bytes.as_chunks().0) {
        let bits = u16::from_le_bytes(*bytes);
        let quiet = if bits & 0x7FFF > BF16_INFINITY { bits | 0x0040 } else { bits };
        *value = f32::from_bits(u32::from(quiet) << 16);
    }
}

/// Appends little-endian BF16, F16 or F32 values, rounded to nearest even.
fn narrow(dtype: DType, values: &[f32], bytes: &mut Vec<u8>) {
    const PIECE: usize = 1024;
    let mut halves = [f16::ZERO; PIECE];
    for values in values.chunks(PIECE) {
        match dtype {
            DType::Bf16 => {
                let mut piece = [0; 2 * PIECE];
                let piece = &mut piece[..2 * values.len()];
                narrow_bf16(values, piece);
                bytes.extend_from_slice(piece);
            }
            DType::F16 => {
                let halves = &mut halves[..values.len()];
                halves.convert_from_f32_slice(values);
                bytes.extend(halves.iter().flat_map(|h| h.to_le_bytes()));
            }
            _ => bytes.extend(values.iter().flat_map(|v| v.to_le_bytes())),
        }
    }
}

#[multiversion(targets("x86_64+avx2+fma"))]
fn narrow_bf16(values: &[f32], bytes: &mut [u8]) {
    for (bytes, value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
        *bytes = ((round_bf16(*value).to_bits() >> 16) as u16).to_le_bytes();
    }
}

#[cfg(test)]
mod tests {
    use half::bf16;
    use ndarray::{Axis, s};

    use super::*;
    use crate::codec::round_to;
    use crate::reference::amax;

    /// All patterns of 16 bits, of an odd number, from an odd address on.
    fn every_16_bits() -> Vec<u8> {
        [0].into_iter().chain((0..=u16::MAX).flat_map(u16::to_le_bytes)).chain([1, 2]).collect()
    }

    #[test]
    fn every_16_bits_widen_as_one_number_does() {
        // A length that is no multiple of a piece.
        let bytes = every_16_bits();
        for (dtype, one) in [
            (DType::Bf16, (|b| bf16::from_bits(b).to_f32()) as fn(u16) -> f32),
            (DType::F16, |b| f16::from_bits(b).to_f32()),
        ] {
            let values = widen(dtype, &bytes[1..]);
            assert_eq!(values.len(), (1 << 16) + 1);
            for (bits, value) in (0..=u16::MAX).chain([0x0201]).zip(values) {
                assert_eq!(value.to_bits(), one(bits).to_bits(), "{dtype:?} {bits:#x}");
            }
        }
        let signalling = f32::from_bits(0x7F80_0001);
        assert_eq!(widen(DType::F32, &signalling.to_le_bytes())[0].to_bits(), signalling.to_bits());
    }

    #[test]
    fn what_is_narrowed_is_what_the_codec_rounds() {
        // Ties, subnormals, the largest, beyond it, and NaN: every exponent with some mantissas.
        let some = [0, 1, 0xFFF, 0x1000, 0x1001, 0x3000, 0x7FFF, 0x8000, 0x8001, 0x0001_8000, 0x007F_FFFF];
        let bits = (0..512u32).flat_map(|e| some.map(|m| e << 23 | m));
        let values: Vec<f32> = bits.map(f32::from_bits).collect();
        let x = ArrayView2::from_shape((values.len() / 4, 4), &values).unwrap();
        for dtype in [DType::Bf16, DType::F16, DType::F32] {
            let rows = PlainRows::from_f32(x, dtype, vec![7]).unwrap();
            for (value, back) in values.iter().zip(rows.to_f32()) {
                let want = round_to(dtype, *value);
                assert!(want.to_bits() == back.to_bits() || (want.is_nan() && back.is_nan()), "{dtype} {value:e}");
            }
            // Columns that are not adjacent.
            let turned = PlainRows::from_f32(x.t(), dtype, vec![7]).unwrap();
            assert_eq!((turned.rows(), turned.cols()), (4, values.len() / 4));
            // One row, and the first of them.
            let (all, mut row) = (turned.to_f32(), vec![7.0; 2]);
            let bits = |values: ArrayView2<'_, f32>| values.iter().map(|v| v.to_bits()).collect::<Vec<_>>();
            for (at, want) in all.outer_iter().enumerate() {
                turned.row_into(at, &mut row);
                assert_eq!(
                    bits(ArrayView2::from_shape((1, row.len()), &row).unwrap()),
                    bits(want.insert_axis(Axis(0)))
                );
            }
            for rows in [0, 1, 3, 4, 5] {
                assert_eq!(bits(turned.first_rows(rows).view()), bits(all.slice(s![..rows.min(4), ..])));
            }
            for (one, other) in turned.to_f32().t().iter().zip(rows.to_f32().iter()) {
                assert_eq!(one.to_bits(), other.to_bits(), "{dtype}");
            }
        }
        assert!(PlainRows::from_f32(x, DType::E4M3, vec![7]).is_err());
    }

    #[test]
    fn largest_and_finite_are_those_of_the_values() {
        let [nan, infinity] = [f32::NAN, f32::INFINITY];
        for dtype in [DType::Bf16, DType::F16, DType::F32] {
            for special in [0.0, -0.0, 1.5, nan, -nan, infinity, -infinity, -60000.0, 6e-8, 1e-38] {
                // Every place, also in what a vector leaves over.
                for at in 0..67 {
                    let mut x = Array2::from_shape_fn((1, 67), |(_, j)| j as f32 * -0.01);
                    x[(0, at)] = special;
                    let rows = PlainRows::from_f32(x.view(), dtype, vec![7]).unwrap();
                    let values = rows.to_f32();
                    assert_eq!(
                        rows.amax().to_bits(),
                        amax(values.as_slice().unwrap()).to_bits(),
                        "{dtype} {special} {at}"
                    );
                    assert_eq!(rows.is_finite(), special.is_finite(), "{dtype} {special} {at}");
                }
            }
        }
        let none = PlainRows::new(DType::Bf16, 0, 16, Vec::new()).unwrap();
        assert!(none.is_finite() && none.amax() == 0.0);
    }

    #[test]
    fn other_sizes_are_refused() {
        for (rows, cols, bytes) in [(1, 16, 31), (2, 16, 32), (usize::MAX, 16, 32), (0, 16, 1), (0, usize::MAX / 2, 0)]
        {
            assert!(PlainRows::new(DType::Bf16, rows, cols, vec![0; bytes]).is_err());
        }
        assert!(PlainRows::new(DType::E4M3, 1, 16, vec![0; 16]).is_err());
        let all = PlainRows::new(DType::F16, 4, 16384, every_16_bits()[1..=1 << 17].to_vec()).unwrap();
        assert!(!all.is_finite() && all.amax() == f32::INFINITY);
    }
}
