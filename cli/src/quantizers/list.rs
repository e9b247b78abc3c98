//! Which quantizers, casts and producers are timed: from the library's own lists, so that none that is new is forgotten.

use scaled_gemm::{
    Basis, BlockScaleRule, CastGroup, CastRecipe, CastScales, CastScheme, CodeFormat, CodeRounding, DType, ErrorMath,
    ErrorMetric, Fp8Format, Fp8Granularity, Fp8Recipe, Fp8Scales, Nvfp4Options, Nvfp4Recipe, Nvfp4Rule, Recipe, Result,
    Scheme,
};

use super::{Function, Gate, Producer, Quantizer, cast_schemes};
use crate::produced;
use crate::target::Target;

/// How much is timed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Coverage {
    /// Each cast, and each producer to each target.
    Usual,
    /// Also every combination of what these are made of: codes of every grouping to every other, every order of scales behind every producer,
    /// every rule.
    Everything,
}

impl Quantizer {
    /// Every scheme of products by its default recipe, other rules and roundings of NVFP4, FP8 in both directions; every cast in every order of scales, by given scales,
    /// scales alone, and back; of other types of elements; casts of codes, and of chosen rows; every producer to every cast and to all that products read, SwiGLU with what it
    /// takes beside; its gradients to all that they are written as.
    pub fn all(coverage: Coverage) -> Result<Vec<Self>> {
        let mut all = plain()?;
        all.extend(casts(coverage)?);
        all.extend(of_producers(coverage)?);
        all.extend(of_gradients(coverage)?);
        all.extend(of_codes(coverage)?);
        all.extend(of_chosen(coverage)?);
        let mut each = Vec::with_capacity(all.len());
        all.into_iter().for_each(|quantizer| {
            if !each.contains(&quantizer) {
                each.push(quantizer)
            }
        });
        Ok(each)
    }
}

impl Coverage {
    /// The orders of scales: one, or each.
    fn orders(self, usual: CastScales) -> Vec<CastScales> {
        match self {
            Self::Usual => vec![usual],
            Self::Everything => CastScales::ALL.to_vec(),
        }
    }

    /// What is usual of a list, or all of it.
    fn of<T>(self, all: Vec<T>, usual: impl Fn(&T) -> bool) -> Vec<T> {
        all.into_iter().filter(|one| self == Self::Everything || usual(one)).collect()
    }
}

fn cast(scheme: CastScheme) -> Target {
    Target::Cast(CastRecipe::new(scheme))
}

fn e4m3(group: CastGroup) -> Result<CastScheme> {
    CastScheme::new(CodeFormat::E4M3, group)
}

fn e2m1(group: CastGroup) -> Result<CastScheme> {
    CastScheme::new(CodeFormat::E2M1, group)
}

/// What is kept in codes: but for those that are stored transposed, which casts do not read.
fn kept() -> Vec<CastScheme> {
    cast_schemes().into_iter().filter(|scheme| !scheme.is_transposed()).collect()
}

/// Whether a recipe is that by which sources are usually quantized.
fn is_usual(recipe: &Recipe) -> bool {
    match recipe {
        Recipe::Fp8(fp8) => fp8.scales == Fp8Scales::Exact,
        other => *other == Recipe::new(other.scheme()),
    }
}

/// Plain matrices to what products read.
fn plain() -> Result<Vec<Quantizer>> {
    let options = Nvfp4Options::default();
    let random = CodeRounding::Stochastic { seed: 1, offset: 2 };
    let four_over_six = BlockScaleRule::FourOverSix { metric: ErrorMetric::Mae, math: ErrorMath::Strict };
    // Its transform, its random rounding, torchao's scales, and the two scales of 4over6, per row.
    let other_nvfp4 = [
        Nvfp4Recipe::tensor(Nvfp4Options { basis: Basis::Hadamard16, ..options })?,
        Nvfp4Recipe::tensor(Nvfp4Options { rounding: random, ..options })?,
        Nvfp4Recipe::tensor(Nvfp4Options { rule: Nvfp4Rule::TorchAo, ..options })?,
        Nvfp4Recipe::rows(Nvfp4Options { block_scale: four_over_six, ..options })?,
    ];
    let recipes = Scheme::ALL.into_iter().map(Recipe::new).chain(other_nvfp4.map(Recipe::Nvfp4));
    let fp8 = Fp8Granularity::ALL.map(|granularity| Recipe::from(Fp8Recipe::new(granularity, Fp8Format::E4M3)));
    let quantize = |recipe| Quantizer::Quantize(Producer::Plain, Target::Recipe(recipe));
    Ok(recipes.map(quantize).chain(fp8.map(Quantizer::Both)).collect())
}

/// Plain matrices to every cast, whole and in parts, and back.
fn casts(coverage: Coverage) -> Result<Vec<Quantizer>> {
    use CastGroup::{Group1x32, Group1x128, Group128x1, Row, Tile128x128};
    let mut all = Vec::new();
    for scheme in CastScheme::all() {
        all.push(Quantizer::Quantize(Producer::Plain, cast(scheme)));
    }
    for scheme in cast_schemes() {
        for order in coverage.orders(CastScales::RowMajor) {
            let scheme = scheme.with_scales(order);
            all.extend([Quantizer::Codes(scheme), Quantizer::Scales(scheme), Quantizer::Back(scheme, DType::Bf16)]);
        }
    }
    let of_types =
        [e4m3(Group1x128)?, e4m3(Row)?, e4m3(Tile128x128)?, e4m3(Group128x1)?, e2m1(Group1x32)?, e2m1(Group1x128)?];
    for scheme in coverage.of(cast_schemes(), |scheme| of_types.contains(scheme)) {
        for dtype in [DType::F16, DType::F32] {
            all.extend([Quantizer::Wide(dtype, scheme), Quantizer::Back(scheme, dtype)]);
        }
    }
    Ok(all)
}

/// Every producer to every cast, scales column-major as products read them, and to all that products read.
fn of_producers(coverage: Coverage) -> Result<Vec<Quantizer>> {
    use CastGroup::{Group1x128, Group128x1};
    let of_elements = Function::ALL.map(Producer::Activated);
    let norms = [false, true].map(|residual| Producer::Norm { residual });
    let recipes = coverage.of(produced::products(), is_usual);
    let mut all = Vec::new();
    for producer in [Producer::Swiglu(Gate::Plain)].into_iter().chain(of_elements).chain(norms) {
        for (order, scheme) in orders_of(&coverage.orders(CastScales::ColumnMajor), &cast_schemes()) {
            all.push(Quantizer::Quantize(producer, cast(scheme.with_scales(order))));
        }
        all.extend(recipes.iter().map(|recipe| Quantizer::Quantize(producer, Target::Recipe(*recipe))));
    }
    let beside = [e4m3(Group1x128)?, e4m3(Group128x1)?].map(|scheme| scheme.with_scales(CastScales::ColumnMajor));
    for gate in Gate::ALL {
        let schemes = coverage.of(cast_schemes(), |_| false).into_iter().chain(beside);
        all.extend(schemes.map(|scheme| Quantizer::Quantize(Producer::Swiglu(gate), cast(scheme))));
        let mx = Recipe::new(Scheme::Mxfp8(Fp8Format::E4M3));
        all.push(Quantizer::Quantize(Producer::Swiglu(gate), Target::Recipe(mx)));
    }
    Ok(all)
}

fn orders_of<'a>(
    orders: &'a [CastScales],
    schemes: &'a [CastScheme],
) -> impl Iterator<Item = (CastScales, CastScheme)> + 'a {
    orders.iter().flat_map(move |order| schemes.iter().map(move |scheme| (*order, *scheme)))
}

/// The gradients of SwiGLU, x plain or in codes, to all that they are written as, alone and with all that is written beside.
fn of_gradients(coverage: Coverage) -> Result<Vec<Quantizer>> {
    let usual = e4m3(CastGroup::Group1x128)?;
    let from = kept().into_iter().filter(|scheme| scheme.format() == CodeFormat::E4M3).collect();
    let from = coverage.of(from, |scheme| *scheme == usual).into_iter().map(Some);
    // Powers of two take what exact scales take.
    let casts = produced::gradient_casts().into_iter().filter(|recipe| *recipe == CastRecipe::new(recipe.scheme()));
    let recipes = coverage.of(produced::gradients(), is_usual);
    let to: Vec<_> = casts.map(Target::Cast).chain(recipes.into_iter().map(Target::Recipe)).collect();
    let mut all = Vec::new();
    for from in [None].into_iter().chain(from) {
        let backward = |gate, to, all| Quantizer::Backward { from, gate, to, all };
        all.extend(to.iter().flat_map(|to| [false, true].map(|beside| backward(Gate::Plain, *to, beside))));
        all.push(backward(Gate::All, cast(usual), true));
    }
    Ok(all)
}

/// Codes to every other cast, and FP4 to FP8 without loss.
fn of_codes(coverage: Coverage) -> Result<Vec<Quantizer>> {
    use CastGroup::{Group1x16, Group1x32, Group1x64, Group1x128};
    let usual = [e4m3(Group1x128)?, e2m1(Group1x32)?];
    let mut all = Vec::new();
    for from in coverage.of(kept(), |scheme| usual.contains(scheme)) {
        all.extend(cast_schemes().into_iter().map(|to| Quantizer::Again(from, to)));
    }
    // Powers of two as scales on both sides, as DeepGEMM reads them.
    for order in [CastScales::ColumnMajor, CastScales::Ue8m0] {
        all.push(Quantizer::Again(usual[0].with_scales(CastScales::Ue8m0), usual[0].with_scales(order)));
    }
    let to = e4m3(Group1x128)?.with_scales(CastScales::Ue8m0);
    for group in [Group1x16, Group1x32, Group1x64, Group1x128] {
        for order in coverage.orders(CastScales::Ue8m0) {
            let from = e2m1(group)?.with_scales(order);
            all.extend([Quantizer::Lossless(from, to), Quantizer::LosslessCounted(from, to)]);
        }
    }
    Ok(all)
}

/// Chosen rows of plain matrices, of producers and of codes.
fn of_chosen(coverage: Coverage) -> Result<Vec<Quantizer>> {
    use CastGroup::{Group1x32, Group1x128, Group128x1, Row};
    let usual = [e4m3(Group1x128)?, e4m3(Row)?, e4m3(Group128x1)?, e2m1(Group1x32)?];
    let to = coverage.of(cast_schemes(), |scheme| usual.contains(scheme));
    let mut all: Vec<_> = to.iter().map(|to| Quantizer::Chosen(Producer::Plain, *to)).collect();
    for producer in [Producer::Swiglu(Gate::Plain)].into_iter().chain(Function::ALL.map(Producer::Activated)) {
        let to = coverage.of(to.clone(), |scheme| *scheme == usual[0]);
        all.extend(to.into_iter().map(|to| Quantizer::Chosen(producer, to)));
    }
    for from in coverage.of(kept(), |scheme| *scheme == usual[0]) {
        all.extend(to.iter().map(|to| Quantizer::ChosenAgain(from, *to)));
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn each_is_there_once_by_its_name_and_everything_has_the_usual() {
        let [usual, every] = [Coverage::Usual, Coverage::Everything].map(|coverage| Quantizer::all(coverage).unwrap());
        let names: HashSet<_> = every.iter().map(|one| format!("{} to {}", one.reads(), one.makes())).collect();
        assert_eq!(names.len(), every.len());
        assert!(usual.iter().all(|one| every.contains(one)));
        // A table that can be read, and one that is complete.
        assert!((400..700).contains(&usual.len()), "{}", usual.len());
        // Codes of each grouping to each cast, every recipe behind every producer.
        let again = every.iter().filter(|one| matches!(one, Quantizer::Again(..))).count();
        assert_eq!(again, kept().len() * cast_schemes().len() + 2);
        let behind =
            |one: &&Quantizer| matches!(one, Quantizer::Quantize(Producer::Norm { residual: true }, Target::Recipe(_)));
        assert_eq!(every.iter().filter(behind).count(), produced::products().len());
    }

    /// Functions of elements are those that the library has on a GPU.
    #[cfg(feature = "cuda")]
    #[test]
    fn functions_are_the_library_s() {
        let names = scaled_gemm::SourceActivation::ALL.map(|function| function.to_string());
        assert_eq!(names.to_vec(), Function::ALL.map(|function| function.name().to_string()).to_vec());
    }
}
