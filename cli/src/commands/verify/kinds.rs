//! The data of `verify`: matrices whose bytes say most about a rule, an edge of a format, or an index.

use ndarray::Array2;
use scaled_gemm::codec::{decode, decode_e2m1, round_to};
use scaled_gemm::reference::Noise;
use scaled_gemm::{CodeFormat, DType};

use super::test_matrix;

/// What the data are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Normal,
    /// A hundredth a thousand times as large.
    Outliers,
    /// Of both signs.
    Zeros,
    /// Below the normal numbers of their type.
    Subnormal,
    /// Among normal numbers of the upper half of the rows: a row, a column, and here and there.
    Nan,
    /// Of both signs, here and there among normal numbers of the upper half of the rows.
    Infinities,
    /// Of both signs and many sizes.
    PowersOfTwo,
    /// Halfway between neighbouring codes: each group has the format's largest number, times a power of two, so that dividing by a scale is exact.
    Ties,
}

/// What a matrix of some kind is drawn for.
#[derive(Debug, Clone, Copy)]
pub struct Draw {
    pub shape: [usize; 2],
    pub dtype: DType,
    /// Whose codes ties lie between.
    pub format: CodeFormat,
    pub seed: u64,
}

impl Kind {
    /// One of each residue class of three says much of the data that it is among: what takes every third kind has such a one.
    pub const ALL: [Self; 8] = [
        Self::Normal,
        Self::Outliers,
        Self::Zeros,
        Self::Subnormal,
        Self::Nan,
        Self::Infinities,
        Self::PowersOfTwo,
        Self::Ties,
    ];

    /// Those whose codes and scales differ from place to place.
    pub const TELLING: [Self; 6] =
        [Self::Normal, Self::Outliers, Self::Nan, Self::Infinities, Self::PowersOfTwo, Self::Ties];

    pub const fn name(self) -> &'static str {
        match self {
            Self::Normal => "normal",
            Self::Outliers => "outliers",
            Self::Zeros => "zeros",
            Self::Subnormal => "subnormal",
            Self::Nan => "NaN",
            Self::Infinities => "infinities",
            Self::PowersOfTwo => "powers of two",
            Self::Ties => "ties",
        }
    }

    /// A matrix of them, as their type holds them.
    pub fn matrix(self, draw: Draw) -> Array2<f32> {
        let Draw { shape: [rows, cols], dtype, seed, .. } = draw;
        if self == Self::Ties {
            return ties(draw);
        }
        let mut x = test_matrix(rows, cols, dtype, seed);
        let mut random = Noise::new(seed ^ 0xB175);
        let least = if dtype == DType::F16 { 2f32.powi(-17) } else { 2f32.powi(-129) };
        for ((i, j), v) in x.indexed_iter_mut() {
            let (upper, spread) = (i < rows / 2, 13 * i + 7 * j);
            let value = match self {
                Self::Outliers if (i * cols + j) % 97 == 5 => *v * 1000.0,
                Self::Zeros => *v * 0.0,
                Self::Subnormal => *v * least,
                Self::Nan if upper && (i == 5 || j == 7 || spread % 31 == 3) => f32::NAN,
                Self::Infinities if upper && spread % 101 == 3 => f32::INFINITY.copysign(*v),
                Self::PowersOfTwo => 2f32.powi((random.bits() % 25) as i32 - 12).copysign(*v),
                _ => continue,
            };
            *v = round_to(dtype, value);
        }
        x
    }
}

/// Each row of another size, powers of two apart; in each 16 neighbours of a row or a column the format's largest number.
fn ties(draw: Draw) -> Array2<f32> {
    let Draw { shape: [rows, cols], dtype, format, seed } = draw;
    let between = halfway(format);
    let mut random = Noise::new(seed ^ 0x71E5);
    Array2::from_shape_fn((rows, cols), |(i, j)| {
        let bits = random.bits() as usize;
        let size = 2f32.powi(-((i % 5) as i32));
        let value = match (i + j).is_multiple_of(16) {
            true => format.max(),
            false => between[bits / 2 % between.len()] * if bits.is_multiple_of(2) { 1.0 } else { -1.0 },
        };
        round_to(dtype, value * size)
    })
}

/// The numbers halfway between neighbouring codes.
fn halfway(format: CodeFormat) -> Vec<f32> {
    let value = |code: u8| match format {
        CodeFormat::E2M1 => decode_e2m1(code),
        CodeFormat::Fp8(format) => decode(format, code),
    };
    // Codes of positive numbers have their order.
    let below: Vec<f32> = (0..).map(value).take_while(|v| *v < format.max()).collect();
    let above = below.iter().copied().skip(1).chain([format.max()]);
    below.iter().zip(above).map(|(a, b)| (a + b) / 2.0).collect()
}
