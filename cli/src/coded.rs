//! A matrix of codes in host memory, of either kind: what products read, or a cast.

use std::ops::Range;

use scaled_gemm::checkpoint::{Checkpoint, PlainRows, StoredScheme};
use scaled_gemm::{Basis, CodeFormat, DType, HostCastMatrix, HostQuantMatrix, Result};

use crate::device::Caster;

/// Codes with their scales.
pub enum Coded {
    Quantized(HostQuantMatrix),
    Cast(HostCastMatrix),
}

impl Coded {
    /// Some rows of a matrix of a file, by how it is read.
    pub fn read(input: &Checkpoint, name: &str, scheme: StoredScheme, rows: Range<usize>) -> Result<Self> {
        match scheme {
            StoredScheme::Product(_) => input.quant_rows(name, rows).map(Self::Quantized),
            StoredScheme::Cast(_) => input.cast_rows(name, rows).map(Self::Cast),
        }
    }

    pub fn rows(&self) -> usize {
        match self {
            Self::Quantized(q) => q.rows(),
            Self::Cast(q) => q.rows(),
        }
    }

    pub fn cols(&self) -> usize {
        match self {
            Self::Quantized(q) => q.cols(),
            Self::Cast(q) => q.cols(),
        }
    }

    /// In the order of its elements.
    pub fn codes(&self) -> &[u8] {
        match self {
            Self::Quantized(q) => q.logical_codes(),
            Self::Cast(q) => q.codes(),
        }
    }

    /// Bytes of its codes.
    pub fn code_bytes(&self) -> u64 {
        self.codes().len() as u64
    }

    pub fn format(&self) -> CodeFormat {
        match self {
            Self::Quantized(q) => q.scheme().spec().format,
            Self::Cast(q) => q.scheme().format(),
        }
    }

    pub fn basis(&self) -> Basis {
        match self {
            Self::Quantized(q) => q.basis(),
            Self::Cast(_) => Basis::Plain,
        }
    }

    /// The values of the codes of a row, without their scales.
    pub fn decode_row(&self, row: usize, values: &mut [f32]) {
        match self {
            Self::Quantized(q) => q.decode_row(row, values),
            Self::Cast(q) => values.iter_mut().enumerate().for_each(|(col, value)| *value = q.code_value(row, col)),
        }
    }

    /// The values rounded to `out`, in `buffer`, whose bytes are replaced.
    pub fn dequantize(&self, caster: &mut dyn Caster, out: DType, buffer: Vec<u8>) -> Result<PlainRows> {
        match self {
            Self::Quantized(q) => caster.dequantize(q, out, buffer),
            Self::Cast(q) => caster.cast_back(q, out, buffer),
        }
    }
}
