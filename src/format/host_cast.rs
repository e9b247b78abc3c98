//! [`HostCastMatrix`]: the result of a cast in host memory.

use super::cast::{CastScales, CastScheme};
use super::codec;
use super::scheme::CodeFormat;
use crate::error::{Error, Result, number};

/// Codes, scales and how both are read, byte for byte what a device holds.
///
/// Code (i, j) is number `i * cols + j`, transposed `j * rows + i`: a byte, or for E2M1 half of one, the low half where the number is
/// even. Padding among the scales is zero.
#[derive(Debug, Clone, PartialEq)]
pub struct HostCastMatrix {
    scheme: CastScheme,
    rows: usize,
    cols: usize,
    codes: Vec<u8>,
    /// In logical order, row-major.
    scales: Vec<f32>,
}

impl HostCastMatrix {
    /// A matrix from its codes and its scales in logical order (`[row groups][column groups]`).
    ///
    /// # Errors
    /// [`Error::Shape`] for wrong lengths, or a shape that the scheme refuses; [`Error::Unsupported`] for a scale that is stored as a byte and
    /// that no byte is: neither a power of two from 2^-127 to 2^127 nor NaN. It would be rounded, and the codes mean something else.
    pub fn from_logical(
        scheme: CastScheme,
        rows: usize,
        cols: usize,
        codes: Vec<u8>,
        scales: Vec<f32>,
    ) -> Result<Self> {
        let found = scales.iter().position(|scale| !scale.is_nan() && of_byte(*scale) != *scale);
        let found = found.map(|at| (at, scales[at]));
        let made = Self::from_computed(scheme, rows, cols, codes, scales)?;
        let Some((at, scale)) = found.filter(|_| scheme.scales() == CastScales::Ue8m0) else { return Ok(made) };
        let [_, groups] = scheme.group().grid(rows, cols);
        Err(Error::unsupported(
            format!("scale ({}, {}) of a quantized input, {}", at / groups, at % groups, number(scale)),
            format!("{BYTES}, or NaN"),
            "pass such scales, with codes that are cast by them, or a scheme whose scales are FP32",
        ))
    }

    /// A matrix from what a cast computes: [`HostCastMatrix::from_logical`], but scales of bytes are rounded to what a byte says by dropping the
    /// mantissa; 0 becomes the least, 2^-127, and infinity NaN.
    pub(crate) fn from_computed(
        scheme: CastScheme,
        rows: usize,
        cols: usize,
        codes: Vec<u8>,
        mut scales: Vec<f32>,
    ) -> Result<Self> {
        // Before lengths, which are computed without a check.
        scheme.check_shape(rows, cols)?;
        let [r, c] = scheme.group().grid(rows, cols);
        check_lengths(scheme, rows, cols, [codes.len(), scales.len()], [scheme.code_bytes(rows, cols), r * c])?;
        if scheme.scales() == CastScales::Ue8m0 {
            scales.iter_mut().for_each(|scale| *scale = of_byte(*scale));
        }
        Ok(Self { scheme, rows, cols, codes, scales })
    }

    /// A matrix from the bytes of a device, scales in the scheme's order. What padding holds is dropped.
    ///
    /// # Errors
    /// [`Error::Shape`] for wrong lengths, or a shape that the scheme refuses.
    pub fn from_parts(scheme: CastScheme, rows: usize, cols: usize, codes: Vec<u8>, scales: &[u8]) -> Result<Self> {
        scheme.check_shape(rows, cols)?;
        let wanted = [scheme.code_bytes(rows, cols), scheme.scale_bytes(rows, cols)];
        check_lengths(scheme, rows, cols, [codes.len(), scales.len()], wanted)?;
        Ok(Self { scheme, rows, cols, codes, scales: logical_scales(scheme, rows, cols, scales) })
    }

    /// That every scale is one that a cast writes of numbers: neither NaN, which would hide from every amax, nor negative, which would turn the
    /// sign of codes. Casts on the CPU refuse a source with others.
    ///
    /// # Errors
    /// [`Error::Unsupported`], which names the first one that is not.
    pub fn check_scales(&self) -> Result<()> {
        check_scales(self.scheme, self.rows, self.cols, &self.scales)
    }

    /// How it is read.
    pub fn scheme(&self) -> CastScheme {
        self.scheme
    }

    /// Logical rows.
    pub fn rows(&self) -> usize {
        self.rows
    }

    /// Logical columns.
    pub fn cols(&self) -> usize {
        self.cols
    }

    /// The codes.
    pub fn codes(&self) -> &[u8] {
        &self.codes
    }

    /// The scales in logical order.
    pub fn scales(&self) -> &[f32] {
        &self.scales
    }

    /// The scales as a device holds them. Allocates.
    pub fn device_scales(&self) -> Vec<u8> {
        let mut bytes = vec![0; self.scheme.scale_bytes(self.rows, self.cols)];
        let [r, c] = self.scheme.group().grid(self.rows, self.cols);
        for (at, scale) in self.scales.iter().enumerate() {
            let place = self.scheme.scales().index(r, c, at / c, at % c);
            match self.scheme.scales() {
                // 2^-127, the least, is a subnormal number whose exponent field says 0 as well; NaN says 255.
                CastScales::Ue8m0 => bytes[place] = (scale.to_bits() >> 23) as u8,
                _ => bytes[4 * place..4 * place + 4].copy_from_slice(&scale.to_le_bytes()),
            }
        }
        bytes
    }

    /// The scale of an element.
    ///
    /// # Panics
    /// Outside the matrix.
    pub fn scale_at(&self, row: usize, col: usize) -> f32 {
        assert!(row < self.rows && col < self.cols, "({row}, {col}) of {} x {}", self.rows, self.cols);
        let [r, c] = self.scheme.group().extents();
        let groups = c.groups(self.cols);
        self.scales[row / r.size(self.rows) * groups + col / c.size(self.cols)]
    }

    /// The value of a code, without its scale.
    ///
    /// # Panics
    /// Outside the matrix.
    pub fn code_value(&self, row: usize, col: usize) -> f32 {
        assert!(row < self.rows && col < self.cols, "({row}, {col}) of {} x {}", self.rows, self.cols);
        let at = if self.scheme.is_transposed() { col * self.rows + row } else { row * self.cols + col };
        match self.scheme.format() {
            CodeFormat::E2M1 => codec::decode_e2m1(self.codes[at / 2] >> (at % 2 * 4)),
            CodeFormat::Fp8(format) => codec::decode(format, self.codes[at]),
        }
    }
}

/// Scales in logical order, from the bytes of a device, as many as the scheme says.
pub(crate) fn logical_scales(scheme: CastScheme, rows: usize, cols: usize, bytes: &[u8]) -> Vec<f32> {
    let [r, c] = scheme.group().grid(rows, cols);
    let read = |at: usize| {
        let place = scheme.scales().index(r, c, at / c, at % c);
        match scheme.scales() {
            CastScales::Ue8m0 => codec::decode_e8m0(bytes[place]),
            _ => f32::from_le_bytes(*bytes[4 * place..].first_chunk().expect("four bytes, by the length")),
        }
    };
    (0..r * c).map(read).collect()
}

/// [`HostCastMatrix::check_scales`] of scales in logical order.
pub(crate) fn check_scales(scheme: CastScheme, rows: usize, cols: usize, scales: &[f32]) -> Result<()> {
    let [_, groups] = scheme.group().grid(rows, cols);
    let Some(at) = scales.iter().position(|scale| scale.is_nan() || *scale < 0.0) else { return Ok(()) };
    let remedy = match scheme.scales() {
        CastScales::Ue8m0 => "mend it in the input; a cast of infinities writes such a byte",
        _ => "mend it in the input, or cast again from finite values",
    };
    Err(Error::unsupported(
        format!("scale ({}, {}) of a quantized input, {}", at / groups, at % groups, scales[at]),
        format!("scales of {scheme} are numbers from 0 on"),
        remedy,
    ))
}

/// What a given scale is, in words.
const FACTOR: &str = "pass the factor that codes are multiplied by";
/// What a byte holds, in words.
const BYTES: &str = "scales of ue8m0 are powers of two from 2^-127 to 2^127";
/// The largest scale that a byte holds, 2^127.
const LARGEST: f32 = f32::from_bits(0x7F00_0000);

/// That codes can be cast by scales in logical order: by their inverses.
pub(crate) fn check_given_scales(scheme: CastScheme, rows: usize, cols: usize, scales: &[f32]) -> Result<()> {
    let [_, groups] = scheme.group().grid(rows, cols);
    let bytes = scheme.scales() == CastScales::Ue8m0;
    let fits = |scale: f32| scale > 0.0 && scale.is_finite() && (!bytes || of_byte(scale) == scale);
    let Some(at) = scales.iter().position(|scale| !fits(*scale)) else { return Ok(()) };
    let (rule, remedy) = match scheme.scales() {
        CastScales::Ue8m0 => {
            let remedy = match scales[at] {
                // What is rounded up beyond the largest is none.
                scale if scale > LARGEST && scale.is_finite() => "pass 2^127, or a smaller one",
                scale if scale > 0.0 && scale < f32::MIN_POSITIVE / 2.0 => "pass 2^-127, or a larger one",
                scale if scale > 0.0 && scale.is_finite() => "round it up to a power of two",
                _ => FACTOR,
            };
            (BYTES, remedy)
        }
        _ => ("scales are finite numbers above 0", FACTOR),
    };
    let what = format!("given scale ({}, {}), {}", at / groups, at % groups, number(scales[at]));
    Err(Error::unsupported(what, rule, remedy))
}

/// What the byte of a scale says: infinity, which no byte is, is NaN.
pub(crate) fn of_byte(scale: f32) -> f32 {
    codec::decode_e8m0((scale.to_bits() >> 23) as u8)
}

fn check_lengths(scheme: CastScheme, rows: usize, cols: usize, found: [usize; 2], wanted: [usize; 2]) -> Result<()> {
    for ((what, found), wanted) in ["codes", "scales"].into_iter().zip(found).zip(wanted) {
        if found != wanted {
            return Err(Error::shape(
                format!("{what} of a {rows} x {cols} matrix cast to {scheme}"),
                found.to_string(),
                format!("must be {wanted}"),
                "pass the whole array, in the order of the scheme",
            ));
        }
    }
    Ok(())
}
