//! FP4 with a power of two for each group, as FP8 with one for each 128 elements: without loss.

use super::{encode, parallel};
use crate::error::{Error, Result, number};
use crate::format::{CastGroup, CastScales, CastScheme, CodeFormat, HostCastMatrix, of_byte};

/// Columns of a group of the result.
const WIDTH: usize = 128;

/// The same values as E4M3 in groups of 1x128 with bytes as scales.
///
/// ```text
/// out  = max(max_k in_k - 6, 0)          in_k, out: bytes of the scales, in_k those of the groups within 128 columns
/// code = e4m3(code_in * 2^(in_k - out))  exact for -5 <= in_k - out <= 6: 0.5 to 6 become 2^-6 to 384, normal numbers
/// ```
///
/// Takes E2M1 in groups of 1x16, 1x32, 1x64 or 1x128 whose scales are powers of two, in any order. A group of zeros may lie below
/// the range: it stays zero. Runs on all cores; allocates the result.
///
/// # Errors
/// [`Error::Unsupported`] for another format or grouping, for a scale that is no power of two from 2^-127 to 2^127, and for a group
/// whose scale is more than 11 powers of two below the largest of its 128 columns.
pub fn fp4_to_fp8(q: &HostCastMatrix) -> Result<HostCastMatrix> {
    use CastGroup::{Group1x16, Group1x32, Group1x64, Group1x128};
    let (from, rows, cols) = (q.scheme(), q.rows(), q.cols());
    if from.format() != CodeFormat::E2M1 || !matches!(from.group(), Group1x16 | Group1x32 | Group1x64 | Group1x128) {
        return Err(Error::unsupported(
            format!("{from} as e4m3 without loss"),
            "it is made from e2m1 in groups of 16, 32, 64 or 128 columns",
            "cast the matrix, which quantizes it again",
        ));
    }
    let [[_, groups], [_, wide]] = [from.group(), Group1x128].map(|group| group.grid(rows, cols));
    let width = from.group().extents()[1].size(cols);
    let bytes = scale_bytes(q, groups)?;
    // 6 becomes 384 at the largest scale of a block.
    let mut out = Vec::with_capacity(rows * wide);
    for i in 0..rows {
        for (block, bytes) in bytes[i * groups..][..groups].chunks(WIDTH / width).enumerate() {
            let largest = *bytes.iter().max().expect("a group at least");
            let first = block * WIDTH / width;
            for (k, byte) in bytes.iter().enumerate() {
                let mut columns = (first + k) * width..((first + k + 1) * width).min(cols);
                if i32::from(*byte) - i32::from(largest.saturating_sub(6)) < -5
                    && columns.any(|j| q.code_value(i, j) != 0.0)
                {
                    return Err(Error::unsupported(
                        format!("group ({i}, {}) of e2m1 as e4m3 without loss", first + k),
                        format!(
                            "its scale 2^{} is more than 11 powers of two below 2^{}, the largest of its {WIDTH} columns",
                            i32::from(*byte) - 127,
                            i32::from(largest) - 127,
                        ),
                        "cast the matrix, which quantizes it again",
                    ));
                }
            }
            out.push(largest.saturating_sub(6));
        }
    }
    let mut codes = vec![0u8; rows * cols];
    parallel::for_each_piece(&mut codes, cols, 4, |i, codes| {
        for (j, code) in codes.iter_mut().enumerate() {
            let power = i32::from(bytes[i * groups + j / width]) - i32::from(out[i * wide + j / WIDTH]);
            // Below the range there are zeros only.
            *code = encode(CodeFormat::E4M3, q.code_value(i, j) * f32::from_bits(((power.max(-5) + 127) as u32) << 23));
        }
    });
    let scheme = CastScheme::new(CodeFormat::E4M3, Group1x128)?.with_scales(CastScales::Ue8m0);
    let scales = out.iter().map(|byte| of_byte(f32::from_bits(u32::from(*byte) << 23))).collect();
    HostCastMatrix::from_logical(scheme, rows, cols, codes, scales)
}

/// The exponents of the scales, plus 127.
fn scale_bytes(q: &HostCastMatrix, groups: usize) -> Result<Vec<u8>> {
    let byte = |(at, scale): (usize, &f32)| {
        let sound = *scale > 0.0 && scale.is_finite() && of_byte(*scale) == *scale;
        sound.then_some((scale.to_bits() >> 23) as u8).ok_or_else(|| {
            Error::unsupported(
                format!("scale ({}, {}) of e2m1 as e4m3, {}", at / groups, at % groups, number(*scale)),
                "without loss scales are powers of two from 2^-127 to 2^127",
                "cast the matrix, which quantizes it again",
            )
        })
    };
    q.scales().iter().enumerate().map(byte).collect()
}
