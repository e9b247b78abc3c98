//! Grouped tensors, element by element; derivatives of activations in f64.

use super::amax;
use crate::epilogue::ActivationGradient;
use crate::error::Result;
use crate::format::{
    DType, GivenScale, GroupedLayout, GroupedRecipe, GroupedScales, GroupedScheme, HostGroupedTensor, codec,
};
use crate::reference::grouped::{GroupedInput, given_factors};

/// What [`reference::quantize_grouped`](crate::reference::quantize_grouped) must give.
///
/// # Errors
/// As there.
pub fn quantize_grouped(input: &GroupedInput<'_>, recipe: GroupedRecipe) -> Result<(HostGroupedTensor, Vec<f32>)> {
    let all = every_amax(input, recipe.scheme());
    let factors: Vec<_> = all.iter().map(|amax| super::fp8_scale(*amax, DType::F32, recipe.member())).collect();
    Ok((write(input, recipe.scheme(), &factors)?, all))
}

/// What [`reference::quantize_grouped_with_scales`](crate::reference::quantize_grouped_with_scales) must give.
///
/// # Errors
/// As there.
pub fn quantize_grouped_with_scales(
    input: &GroupedInput<'_>,
    scheme: GroupedScheme,
    scales: GivenScale<&[f32]>,
) -> Result<(HostGroupedTensor, Vec<f32>)> {
    given_factors(input.layout(), scheme, scales)?;
    let encode = matches!(scales, GivenScale::Encode(_));
    let factor = |given: &f32| if encode { (*given, 1.0 / given) } else { (1.0 / given, *given) };
    let factors: Vec<_> = scales.number().iter().map(factor).collect();
    Ok((write(input, scheme, &factors)?, every_amax(input, scheme)))
}

/// What [`reference::dequantize_grouped`](crate::reference::dequantize_grouped) must give.
pub fn dequantize_grouped(q: &HostGroupedTensor, out: DType) -> Vec<f32> {
    let mut values = vec![0.0; q.layout().buffer_len()];
    for_each_element(q.layout(), q.scheme(), |t, by_rows, stored| {
        let scale = if q.scheme().scales() == GroupedScales::Shared { q.scales()[0] } else { q.scales()[t] };
        let start = q.layout().members()[t].offset();
        values[start + by_rows] = codec::round_to(out, codec::decode(q.scheme().format(), q.codes()[stored]) * scale);
    });
    values
}

/// The derivative that [`ActivationGradient::apply`] is near to.
pub fn activation_gradient(of: ActivationGradient, x: f64) -> f64 {
    // Of x * sigmoid(z): s + x z' s (1 - s), and 1 - s is the sigmoid of -z.
    let gated = |z: f64, slope: f64| super::producers::sigmoid(z) * (1.0 + x * slope * super::producers::sigmoid(-z));
    match of {
        ActivationGradient::Relu => f64::from(u8::from(x > 0.0)),
        ActivationGradient::SquaredRelu => 2.0 * x.max(0.0),
        ActivationGradient::Silu => gated(x, 1.0),
        ActivationGradient::QuickGelu => gated(1.702 * x, 1.702),
        ActivationGradient::Gelu => {
            let root = (8.0 / std::f64::consts::PI).sqrt();
            gated(root * (x + 0.044715 * x.powi(3)), root * (1.0 + 3.0 * 0.044715 * x * x))
        }
    }
}

fn every_amax(input: &GroupedInput<'_>, scheme: GroupedScheme) -> Vec<f32> {
    let of_member = |t: usize| {
        let values: Vec<f32> = (0..input.layout().members()[t].elements()).map(|at| input.value(t, at)).collect();
        amax(&values)
    };
    let all: Vec<f32> = (0..input.layout().members().len()).map(of_member).collect();
    if scheme.scales() == GroupedScales::Shared { vec![amax(&all)] } else { all }
}

/// Codes with these factors for the data, and what is stored.
fn write(input: &GroupedInput<'_>, scheme: GroupedScheme, factors: &[(f32, f32)]) -> Result<HostGroupedTensor> {
    let mut codes = vec![0; input.layout().buffer_len()];
    for_each_element(input.layout(), scheme, |t, by_rows, stored| {
        let (encode, _) = factors[if scheme.scales() == GroupedScales::Shared { 0 } else { t }];
        codes[stored] = codec::encode(scheme.format(), input.value(t, by_rows) * encode);
    });
    let scales = factors.iter().map(|(_, scale)| *scale).collect();
    HostGroupedTensor::from_parts(scheme, input.layout().clone(), codes, scales)
}

/// The member, the number of each of its elements by rows, and where in the buffer its code is.
fn for_each_element(layout: &GroupedLayout, scheme: GroupedScheme, mut work: impl FnMut(usize, usize, usize)) {
    for (t, member) in layout.members().iter().enumerate().filter(|(_, member)| member.elements() > 0) {
        for i in 0..member.rows() {
            for j in 0..member.cols() {
                let by_rows = i * member.cols() + j;
                let stored = if scheme.is_transposed() { j * member.rows() + i } else { by_rows };
                work(t, by_rows, member.offset() + stored);
            }
        }
    }
}
