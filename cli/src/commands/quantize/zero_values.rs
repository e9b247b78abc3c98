//! Values whose codes are zero, and that are none: beside a much larger one of their group nothing is left of them.

use scaled_gemm::checkpoint::PlainRows;
use scaled_gemm::{Basis, CodeFormat, DType, Fp8Format};

use super::zero_groups::MX_BLOCK;
use crate::coded::Coded;

/// How many values became zero, and of how many that are not zero.
#[derive(Debug, Clone, Copy, Default)]
pub struct ZeroValues {
    pub zeros: usize,
    pub not_zero: usize,
    /// Those that MXFP8 would make zeros of too, of E4M3 and of E5M2 codes; at most so many.
    in_blocks: [usize; 2],
}

impl ZeroValues {
    /// Of rows and what was made of them, by their codes: a zero has the code of one. Of rows in another basis nothing is known.
    pub fn of(x: &PlainRows, part: &Coded) -> Self {
        if part.basis() != Basis::Plain {
            return Self::default();
        }
        let number = x.rows() * x.cols();
        let not_zero = number - zeros(x);
        let zeros = (zero_codes(part) + not_zero).saturating_sub(number);
        let found = Self { zeros, not_zero, in_blocks: [zeros; 2] };
        // What another recipe would do is asked where there is something to say alone: it takes longer than all else.
        Self { in_blocks: if found.are_most() { in_blocks(x) } else { found.in_blocks }, ..found }
    }

    /// With those of rows that come after.
    pub fn with(self, later: Self) -> Self {
        let [e4m3, e5m2] = self.in_blocks;
        Self {
            zeros: self.zeros + later.zeros,
            not_zero: self.not_zero + later.not_zero,
            in_blocks: [e4m3 + later.in_blocks[0], e5m2 + later.in_blocks[1]],
        }
    }

    /// More than half of them, as where an amax was given.
    pub fn are_most(&self) -> bool {
        self.zeros > self.not_zero / 2
    }

    /// Whether they are no more in MXFP8.
    pub fn are_few_in(&self, format: Fp8Format) -> bool {
        self.in_blocks[usize::from(format == Fp8Format::E5M2)] <= self.not_zero / 2
    }
}

/// Values that are zero.
fn zeros(x: &PlainRows) -> usize {
    let is_zero =
        |value: &[u8]| value.iter().rev().enumerate().all(|(i, byte)| byte & if i == 0 { 0x7F } else { 0xFF } == 0);
    match x.dtype() {
        // A sum that processors make of many at once.
        DType::Bf16 | DType::F16 => {
            let pairs = x.bytes().as_chunks::<2>().0;
            pairs.iter().map(|pair| usize::from(u16::from_le_bytes(*pair) & 0x7FFF == 0)).sum()
        }
        dtype => x.bytes().chunks_exact(dtype.bytes()).filter(|value| is_zero(value)).count(),
    }
}

fn zero_codes(part: &Coded) -> usize {
    let codes = part.codes();
    match part.format() {
        CodeFormat::E2M1 => {
            let zeros: usize =
                codes.iter().map(|byte| usize::from(byte & 0x07 == 0) + usize::from(byte & 0x70 == 0)).sum();
            // A line of an odd number of codes ends with half a byte that is none.
            zeros - (2 * codes.len()).saturating_sub(part.rows() * part.cols()).min(zeros)
        }
        CodeFormat::Fp8(_) => codes.iter().map(|byte| usize::from(byte & 0x7F == 0)).sum(),
    }
}

/// Values that are too small for codes of E4M3 and of E5M2 beside the largest of their block, whose scale is rounded up to a power of two.
fn in_blocks(x: &PlainRows) -> [usize; 2] {
    // Half of the least code, over the largest, and twice that: the scale may be rounded up.
    const REACH: [f32; 2] = [2.0 / 1024.0 / 448.0, 2.0 / 131072.0 / 57344.0];
    let (mut found, mut values) = ([0; 2], Vec::new());
    for row in 0..x.rows() {
        x.row_into(row, &mut values);
        for block in values.chunks(MX_BLOCK) {
            let most = block.iter().fold(0.0f32, |most, value| most.max(value.abs()));
            for (found, reach) in found.iter_mut().zip(REACH) {
                let least = most * reach;
                *found += block.iter().filter(|value| **value != 0.0 && value.abs() <= least).count();
            }
        }
    }
    found
}
