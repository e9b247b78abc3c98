//! Scales that no quantizer writes: what is read with them is no weight.

use scaled_gemm::CodeFormat;
use scaled_gemm::checkpoint::{Checkpoint, Dtype, StoredScheme, TensorInfo, printable};

use super::Matrix;
use crate::output::shown;

/// Most bytes of scales that are looked at in a matrix, a million of them. Those of whole matrices, rows and tiles are fewer; of
/// small groups there is one in 128 codes, and whoever dequantizes hears of them.
const MOST_BYTES: u64 = 4 << 20;
/// Bytes of codes read at a time.
const PART: u64 = 1 << 20;

/// What is wrong with the FP32 scales of a matrix: the first that is no finite number above 0. Zero is right for codes of zero, but
/// for a divisor.
pub fn problem(input: &Checkpoint, matrix: &Matrix<'_>) -> Option<String> {
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
    let divides = scale.name.ends_with("_global_scale");
    let (at, value) = values.iter().enumerate().find(|(_, value)| !(value.is_finite() && **value > 0.0))?;
    // Of several, those of groups of zeros may be zero.
    if *value == 0.0 && !divides && (values.len() > 1 || !holds_values(input, codes, scheme)) {
        return values.iter().enumerate().find(|(_, v)| !(v.is_finite() && **v >= 0.0)).map(said(input, scale));
    }
    Some(said(input, scale)((at, value)))
}

fn said(input: &Checkpoint, scale: &TensorInfo) -> impl Fn((usize, &f32)) -> String {
    move |(at, value)| {
        format!(
            "{}: tensor {}: holds {value} at element {at}, and a scale is finite and above 0; quantize the matrix again from finite \
             values",
            shown(input.path()),
            printable(&scale.name)
        )
    }
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
