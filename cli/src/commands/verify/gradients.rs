//! The gradients of SwiGLU against their definition: x plain or in codes of every grouping, to every cast and recipe, with what is written
//! beside them.

use ndarray::Array2;
use scaled_gemm::codec::round_to;
use scaled_gemm::reference::{self, SwigluGradients, definition};
use scaled_gemm::{CastRecipe, CastScales, CastScheme, CodeFormat, DType, HostCastMatrix};

use super::kinds::{Draw, Kind};
use super::producers::Beside;
use super::sources::{SHAPE, coded};
use super::tally::Tally;
use super::{Findings, WIDE, near};
use crate::device::sources::{GatedInput, Gradients, Sources, Wide};
use crate::output::Failure;
use crate::produced;
use crate::quantizers::Gate;

/// Columns of a half: whole groups of 128.
const HALF: usize = 256;

/// Data of a kind in x with normal gradients, and the other way round.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Where {
    X,
    Gradient,
}

/// x plain, and in codes.
pub(super) fn check(device: &mut dyn Sources, seed: u64, found: &mut Findings<9>) -> Result<(), Failure> {
    let of_codes: Vec<_> = coded().into_iter().filter(|scheme| scheme.format() == CodeFormat::E4M3).collect();
    for (name, coded) in [("gradients of swiglu", false), ("gradients of swiglu, x in codes", true)] {
        let (mut casts, mut products) = (Tally::default(), Tally::default());
        for (k, kind) in Kind::ALL.into_iter().enumerate() {
            for (w, place) in [Where::X, Where::Gradient].into_iter().enumerate() {
                // Types, what SwiGLU takes, and what is made take turns; each kind meets each of what is made in one of both places at least.
                for turn in 0..6 {
                    let at = 2 * turn + w + k;
                    let (dtype, gate) = (WIDE[at % 3], Gate::ALL[(turn + k) % Gate::ALL.len()]);
                    let (x, gradient) = data(kind, place, dtype, seed);
                    let q = in_codes(&x, kind, of_codes[at % of_codes.len()], CastScales::ALL[at / 2 % 3])?;
                    let x = if coded { GatedInput::Coded(&q) } else { GatedInput::Plain(Wide { values: &x, dtype }) };
                    let (beside, g) = (Beside::new([SHAPE[0], HALF], kind), Wide { values: &gradient, dtype });
                    let options = beside.swiglu(gate);
                    let want = reference::swiglu_backward(x.values().view(), gradient.view(), &options)?;
                    casts.off(near::of_gradients(x, &gradient, &options, (&want.x, &want.weights)), kind);
                    let mine = |n: usize| n % 6 == turn && (n / 6 % 2 == w || n < 6);
                    for (_, recipe) in produced::gradient_casts().into_iter().enumerate().filter(|(n, _)| mine(*n)) {
                        let got = device.swiglu_backward(x, g, &options, recipe)?;
                        compare(&want, &got, (recipe, kind), &mut casts)?;
                    }
                    for (_, recipe) in produced::gradients().into_iter().enumerate().filter(|(n, _)| mine(*n)) {
                        let got = device.swiglu_backward_quantize(x, g, &options, recipe)?;
                        let named = (produced::name(recipe), kind);
                        products.product(&definition::quantize(want.x.view(), DType::F32, recipe)?, &got, named);
                    }
                }
            }
        }
        casts.finish(name, "1x32 and 1x128", found);
        products.finish(name, "what products read", found);
    }
    Ok(())
}

/// x and the gradient of the result. Ties are those of the gradient, which comes through where `l = 32`, whose sigmoid is 1, and `r = 1`.
fn data(kind: Kind, place: Where, dtype: DType, seed: u64) -> (Array2<f32>, Array2<f32>) {
    let rows = SHAPE[0];
    let draw =
        |kind: Kind, cols, seed| kind.matrix(Draw { shape: [rows, cols], dtype, format: CodeFormat::E4M3, seed });
    let [of_x, of_gradient] = match (kind, place) {
        (Kind::Ties, _) => {
            let x = Array2::from_shape_fn((rows, 2 * HALF), |(_, j)| if j < HALF { 32.0 } else { 1.0 });
            return (x, draw(kind, HALF, seed.wrapping_add(1)));
        }
        (_, Where::X) => [kind, Kind::Normal],
        (_, Where::Gradient) => [Kind::Normal, kind],
    };
    (draw(of_x, 2 * HALF, seed), draw(of_gradient, HALF, seed.wrapping_add(1)))
}

/// x as it was kept. Of infinities no byte is a scale, and of ties only powers of two leave x as it is.
fn in_codes(x: &Array2<f32>, kind: Kind, from: CastScheme, order: CastScales) -> Result<HostCastMatrix, Failure> {
    let order = if kind == Kind::Infinities && order == CastScales::Ue8m0 { CastScales::RowMajor } else { order };
    let recipe = CastRecipe::new(from.with_scales(order));
    let recipe = if kind == Kind::Ties { recipe.power_of_two() } else { recipe };
    Ok(reference::cast(&x.view().into(), recipe)?)
}

/// The gradient of x, cast, and all that is written beside it.
fn compare(
    want: &SwigluGradients,
    got: &Gradients,
    (recipe, kind): (CastRecipe, Kind),
    tally: &mut Tally,
) -> Result<(), Failure> {
    tally.cast(&definition::cast(&want.x.view().into(), recipe)?, &got.x, kind);
    let flat = |m: &Array2<f32>| m.iter().copied().collect::<Vec<_>>();
    let rounded: Vec<f32> = want.x.iter().map(|v| round_to(DType::Bf16, *v)).collect();
    tally.floats(&rounded, &flat(&got.x_bf16), "gradients in BF16", kind);
    tally.floats(&flat(&want.out), &flat(&got.out), "the forward pass again", kind);
    tally.floats(&want.weights, &got.weights, "gradients of the weights", kind);
    Ok(())
}
