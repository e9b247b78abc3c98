//! Scales that no quantizer writes: what is read with them is no weight.

use scaled_gemm::checkpoint::{Checkpoint, Dtype, StoredScheme, TensorInfo, printable};
use scaled_gemm::{CodeFormat, Scheme};

use super::Matrix;
use crate::output::{bytes, count, shown};

/// Most bytes of FP32 scales that are looked at in a matrix, a million of them. Those of whole matrices, rows and tiles are fewer; of
/// small groups there is one in 128 codes, and whoever dequantizes hears of them.
const MOST_BYTES: u64 = 4 << 20;
/// Most bytes of block scales that are looked at in all: those of 9 GiB of NVFP4, or of 33 of MXFP8.
const MOST_BLOCKS: u64 = 1 << 30;
/// Bytes read at a time.
const PART: u64 = 1 << 20;

/// What is wrong with the scales of these matrices, and what there is to say of those that were not looked at.
pub fn problems(input: &Checkpoint, matrices: &[Matrix<'_>]) -> (Vec<String>, Option<String>) {
    let mut found: Vec<String> = matrices.iter().filter_map(|m| problem(input, m)).collect();
    let (mut read, mut left) = (0, 0);
    for matrix in matrices {
        let Some((scale, is_bad, what)) = blocks(matrix) else { continue };
        if read + scale.bytes() > MOST_BLOCKS {
            left += 1;
            continue;
        }
        read += scale.bytes();
        found.extend(bad_byte(input, matrix, scale, (is_bad, what)));
    }
    let most = bytes(MOST_BLOCKS);
    let note = format!(
        "the block scales of {} were not looked at, which are beyond {most} of them; dequantize reads them all",
        count(left, "matrix", "matrices")
    );
    (found, (left > 0).then_some(note))
}

/// Which bytes no scale of a block is.
type IsBad = fn(u8) -> bool;

/// The block scales of a matrix, and which bytes among them are none.
fn blocks<'a>(matrix: &Matrix<'a>) -> Option<(&'a TensorInfo, IsBad, &'static str)> {
    let scale = *matrix.parts.get(1)?;
    match matrix.found.as_ref().ok()?.0 {
        scheme if scheme.product().is_some_and(Scheme::is_nvfp4) => {
            Some((scale, |byte| byte >= 0x7F, "NaN or negative in E4M3"))
        }
        // Of MX, and of tiles whose scales are powers of two.
        _ if matches!(scale.dtype, Dtype::U8 | Dtype::F8_E8M0) => Some((scale, |byte| byte == 0xFF, "NaN in E8M0")),
        _ => None,
    }
}

/// The first byte that no scale is.
fn bad_byte(
    input: &Checkpoint,
    matrix: &Matrix<'_>,
    scale: &TensorInfo,
    (is_bad, what): (IsBad, &str),
) -> Option<String> {
    let mut at = 0;
    while at < scale.bytes() {
        let mut part = vec![0; (scale.bytes() - at).min(PART) as usize];
        if let Err(e) = input.read(&scale.name, at, &mut part) {
            return Some(e.to_string());
        }
        let said_of = |(place, byte): (usize, &u8)| {
            let element = at as usize + place;
            match of_cast(matrix, element) {
                Place::Element => Some(format!("byte {byte:#04x} at element {element}, which is {what}")),
                // The one byte that no scale of a cast is.
                Place::Scale(place) => Some(no_scale(f32::NAN, place)),
                Place::Padding => None,
            }
        };
        if let Some(found) = part.iter().enumerate().filter(|(_, byte)| is_bad(**byte)).find_map(said_of) {
            return Some(said(input, scale, &found));
        }
        at += part.len() as u64;
    }
    None
}

/// What an element of the scales of a matrix is.
enum Place {
    /// Of what products read: its number.
    Element,
    /// Of a cast, whose order is not that of rows and columns.
    Scale([usize; 2]),
    /// Read by nobody.
    Padding,
}

/// What is at this place of the stored scales.
fn of_cast(matrix: &Matrix<'_>, element: usize) -> Place {
    let Ok((StoredScheme::Cast(scheme), shape)) = &matrix.found else { return Place::Element };
    let [rows, cols] = *shape.as_slice() else { return Place::Element };
    let [r, c] = scheme.group().grid(rows, cols);
    scheme.scales().position(r, c, element).map_or(Place::Padding, Place::Scale)
}

/// In the words of whoever reads the cast.
fn no_scale(value: f32, [row, col]: [usize; 2]) -> String {
    format!("{value} as scale ({row}, {col}): every scale is finite, and not negative")
}

/// What is wrong with the FP32 scales of a matrix: the first that is no finite number above 0. Zero is right for codes of zero, but
/// for a divisor. Of a cast some may be zero, and all where its codes are.
fn problem(input: &Checkpoint, matrix: &Matrix<'_>) -> Option<String> {
    let scheme = matrix.found.as_ref().ok()?.0;
    let [codes, .., scale] = matrix.parts.as_slice() else { return None };
    let is_float = matches!(scale.dtype, Dtype::F32 | Dtype::F16 | Dtype::BF16);
    if !is_float || scale.bytes() > MOST_BYTES {
        return None;
    }
    let values = match input.values(&scale.name) {
        Ok((values, _)) => values,
        Err(e) => return Some(e.to_string()),
    };
    let no_number = |value: &f32| !(value.is_finite() && *value >= 0.0);
    if matches!(scheme, StoredScheme::Cast(_)) {
        let mut bad = values.iter().enumerate().filter(|(_, value)| no_number(value));
        let of = |(at, value): (usize, &f32)| match of_cast(matrix, at) {
            Place::Scale(place) => Some(said(input, scale, &no_scale(*value, place))),
            Place::Element | Place::Padding => None,
        };
        let is_none = |(at, value): (usize, &f32)| *value == 0.0 || matches!(of_cast(matrix, at), Place::Padding);
        let are_zero = || values.iter().enumerate().all(is_none) && holds_values(input, codes, scheme);
        let zero = || are_zero().then(|| said(input, scale, "0 as each of its scales, beside codes that are not 0"));
        return bad.find_map(of).or_else(zero);
    }
    let divides = scale.name.ends_with("_global_scale");
    let number = |(at, value): (usize, &f32)| {
        // Of groups of zeros a scale may be zero.
        let least = if divides || values.len() == 1 { "above 0" } else { "not negative" };
        said(input, scale, &format!("{value} at element {at}, and a scale is finite and {least}"))
    };
    let (at, value) = values.iter().enumerate().find(|(_, value)| !(value.is_finite() && **value > 0.0))?;
    // Of several, those of groups of zeros may be zero.
    if *value == 0.0 && !divides && (values.len() > 1 || !holds_values(input, codes, scheme)) {
        return values.iter().enumerate().find(|(_, value)| no_number(value)).map(number);
    }
    Some(number((at, value)))
}

fn said(input: &Checkpoint, scale: &TensorInfo, what: &str) -> String {
    let (path, name) = (shown(input.path()), printable(&scale.name));
    format!("{path}: tensor {name}: holds {what}; quantize the matrix again from finite values")
}

/// True if one of the codes is not zero.
fn holds_values(input: &Checkpoint, codes: &TensorInfo, scheme: StoredScheme) -> bool {
    // Without signs.
    let mask = if scheme.format() == CodeFormat::E2M1 { 0x77 } else { 0x7F };
    let mut at = 0;
    while at < codes.bytes() {
        let mut bytes = vec![0; (codes.bytes() - at).min(PART) as usize];
        if input.read(&codes.name, at, &mut bytes).is_err() || bytes.iter().any(|byte| byte & mask != 0) {
            return true;
        }
        at += bytes.len() as u64;
    }
    false
}
