//! TileKernels' casts, element by element.

use ndarray::Array2;

use super::amax;
use crate::error::Result;
use crate::format::{
    CastGroup, CastRecipe, CastScales, CastScheme, CodeFormat, DType, Fp8Scales, HostCastMatrix, codec,
};
use crate::reference::cast::{CastInput, CastValues, check, check_given};

/// What [`reference::cast`](crate::reference::cast()) must give.
///
/// # Errors
/// As there.
pub fn cast(input: &CastInput<'_>, recipe: CastRecipe) -> Result<HostCastMatrix> {
    let scheme = recipe.scheme();
    check(input, scheme)?;
    let max: f32 = if scheme.format() == CodeFormat::E2M1 { 6.0 } else { 448.0 };
    by_groups(input, scheme, |_, amax| {
        let a = if amax > recipe.floor() { amax } else { recipe.floor() };
        if recipe.numbers() == Fp8Scales::Exact || a == f32::INFINITY {
            return (max / a, a / max);
        }
        let power = f64::from(a / max).log2().ceil();
        ((-power).exp2() as f32, power.exp2() as f32)
    })
}

/// What [`reference::cast_with_scales`](crate::reference::cast_with_scales) must give.
///
/// # Errors
/// As there.
pub fn cast_with_scales(input: &CastInput<'_>, scheme: CastScheme, scales: &[f32]) -> Result<HostCastMatrix> {
    check(input, scheme)?;
    check_given(input, scheme, scales)?;
    by_groups(input, scheme, |group, _| (1.0 / scales[group], scales[group]))
}

/// What [`reference::cast_back`](crate::reference::cast_back) must give.
pub fn cast_back(q: &HostCastMatrix, out: DType) -> Array2<f32> {
    values(&CastInput::from(q)).mapv(|v| codec::round_to(out, v))
}

/// Every element of the input.
fn values(input: &CastInput<'_>) -> Array2<f32> {
    Array2::from_shape_fn((input.rows(), input.cols()), |(i, j)| {
        let from = input.gather().map_or(i as i32, |rows| rows[i]);
        match input.values() {
            _ if from < 0 => 0.0,
            CastValues::Plain(x) => x[[from as usize, j]],
            CastValues::Quantized(q) => q.code_value(from as usize, j) * q.scale_at(from as usize, j),
        }
    })
}

/// Codes with the factors that `choose` gives for each group, by its number and amax: for the data, and what is stored.
fn by_groups(
    input: &CastInput<'_>,
    scheme: CastScheme,
    choose: impl Fn(usize, f32) -> (f32, f32),
) -> Result<HostCastMatrix> {
    let x = values(input);
    let (rows, cols) = x.dim();
    let [height, width] = match scheme.group() {
        CastGroup::Group1x16 => [1, 16],
        CastGroup::Group1x32 => [1, 32],
        CastGroup::Group1x64 => [1, 64],
        CastGroup::Group1x128 => [1, 128],
        CastGroup::Row => [1, cols],
        CastGroup::Tile32x32 => [32, 32],
        CastGroup::Tile32x128 => [32, 128],
        CastGroup::Tile128x32 => [128, 32],
        CastGroup::Tile128x128 => [128, 128],
        CastGroup::Group32x1 => [32, 1],
        CastGroup::Group128x1 => [128, 1],
    };
    let mut codes = vec![0; rows * cols * if scheme.format() == CodeFormat::E2M1 { 1 } else { 2 } / 2];
    let mut scales = Vec::new();
    for top in (0..rows).step_by(height) {
        // A row without columns is a group still.
        for left in (0..cols.max(usize::from(width == cols))).step_by(width.max(1)) {
            let [is, js] = [top..(top + height).min(rows), left..(left + width).min(cols)];
            let members = || is.clone().flat_map(|i| js.clone().map(move |j| (i, j)));
            let (encode, scale) = choose(scales.len(), amax(members().map(|at| &x[at])));
            for (i, j) in members() {
                let number = if scheme.is_transposed() { j * rows + i } else { i * cols + j };
                match scheme.format() {
                    CodeFormat::Fp8(format) => codes[number] = codec::encode(format, x[[i, j]] * encode),
                    CodeFormat::E2M1 if number % 2 == 0 => codes[number / 2] |= codec::encode_e2m1(x[[i, j]] * encode),
                    CodeFormat::E2M1 => codes[number / 2] |= codec::encode_e2m1(x[[i, j]] * encode) << 4,
                }
            }
            scales.push(scale);
        }
    }
    HostCastMatrix::from_computed(scheme, rows, cols, codes, scales)
}

/// What [`reference::fp4_to_fp8`](crate::reference::fp4_to_fp8) must give where it gives something: the largest power of two of each
/// 128 columns becomes 2^6, and every value is divided by what is left.
///
/// # Errors
/// None of its own.
pub fn fp4_to_fp8(q: &HostCastMatrix) -> Result<HostCastMatrix> {
    let (rows, cols) = (q.rows(), q.cols());
    let (mut codes, mut scales) = (Vec::new(), Vec::new());
    for i in 0..rows {
        for left in (0..cols).step_by(128) {
            let columns = left..(left + 128).min(cols);
            let largest = columns.clone().map(|j| q.scale_at(i, j)).fold(0.0, f32::max);
            let exponent = (f64::from(largest).log2() - 6.0).max(-127.0);
            // In f64: a quotient by the least scale is beyond FP32.
            let code = |j| f64::from(q.code_value(i, j)) * f64::from(q.scale_at(i, j)) / exponent.exp2();
            codes.extend(columns.map(|j| codec::encode_e4m3(code(j) as f32)));
            scales.push(exponent.exp2() as f32);
        }
    }
    let scheme = CastScheme::new(CodeFormat::E4M3, CastGroup::Group1x128)?.with_scales(CastScales::Ue8m0);
    // Beside blocks that have a result there may be others, whose scale is no byte.
    HostCastMatrix::from_computed(scheme, rows, cols, codes, scales)
}
