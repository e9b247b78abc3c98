//! NaN and infinities: how many and where; in data to be quantized, what a recipe can do with them, and what it refuses.

use std::path::Path;

use ndarray::Array2;
use scaled_gemm::reference;
use scaled_gemm::{DType, Result, Scheme};

use crate::output::{Failure, count, exactly, named, shown};
use crate::target::Target;

/// How many of each a matrix holds, and where the first ones are.
#[derive(Debug, Default)]
pub struct NonFinite {
    pub nan: usize,
    pub infinite: usize,
    first: Option<(usize, usize)>,
    first_infinite: Option<(usize, usize)>,
}

impl NonFinite {
    /// Adds those of some rows, of which the first is row `first` of the matrix.
    pub fn add_rows(&mut self, x: &Array2<f32>, first: usize) {
        for ((row, column), value) in x.indexed_iter().filter(|(_, value)| !value.is_finite()) {
            self.add((first + row, column), *value);
        }
    }

    /// Adds those of rows that come after.
    pub fn add_all(&mut self, later: &Self) {
        self.nan += later.nan;
        self.infinite += later.infinite;
        self.first = self.first.or(later.first);
        self.first_infinite = self.first_infinite.or(later.first_infinite);
    }

    /// One that is not finite.
    pub fn add(&mut self, at: (usize, usize), value: f32) {
        self.first.get_or_insert(at);
        if value.is_nan() {
            self.nan += 1;
        } else {
            self.infinite += 1;
            self.first_infinite.get_or_insert(at);
        }
    }

    /// Row and column of the first.
    pub fn first(&self) -> Option<(usize, usize)> {
        self.first
    }

    /// `2 non-finite values`.
    pub fn total(&self) -> String {
        count(self.nan + self.infinite, "non-finite value", "non-finite values")
    }

    /// `1 NaN and 2 infinities`.
    pub fn both(&self) -> String {
        format!("{} and {}", count(self.nan, "NaN", "NaN"), count(self.infinite, "infinity", "infinities"))
    }

    /// Refuses what was not allowed, and infinities where the recipe has no scale for them.
    ///
    /// # Errors
    /// [`Failure::Use`] with what is refused, how many there are, where the first is, and a remedy.
    pub fn check(
        &self,
        (file, name, others): (&Path, &str, Others),
        allowed: bool,
        target: Target,
        source: DType,
    ) -> std::result::Result<(), Failure> {
        let infinities = match (self.first_infinite, takes_infinities(target, source)?) {
            (Some(_), false) => Some(instead((name, others), target, allowed)),
            _ => None,
        };
        let (found, first, remedy) = match (self.first, self.first_infinite, infinities) {
            (None, ..) => return Ok(()),
            (Some(_), _, None) if allowed => return Ok(()),
            (_, Some(first), Some(instead)) if allowed => {
                let why = format!(
                    "under this recipe infinities would make the scale of their whole group infinite or NaN: {instead}"
                );
                (count(self.infinite, "infinity", "infinities"), first, why)
            }
            (Some(first), _, None) => {
                let remedy = match without(name, others) {
                    Some(without) => format!("repair the data, {without}, or say --allow-non-finite"),
                    None => "repair the data, or say --allow-non-finite".into(),
                };
                (self.total(), first, remedy)
            }
            (Some(first), _, Some(instead)) => (self.total(), first, instead),
        };
        Err(Failure::Use(format!(
            "{}: tensor {}: {found}, the first at row {}, column {}; {remedy}",
            shown(file),
            named(name),
            first.0,
            first.1
        )))
    }

    /// A line for the result, where there is something to say.
    pub fn describe(&self, name: &str) -> Option<String> {
        self.first?;
        Some(format!("{}: {} quantized as the recipe has it\n", named(name), self.both()))
    }
}

/// Whether a group with an infinity keeps a scale that a file can hold. The reference is asked: it is what every device does.
pub fn takes_infinities(target: Target, source: DType) -> Result<bool> {
    // The scale of a group with one is infinite.
    let Target::Recipe(recipe) = target else { return Ok(false) };
    // Rows of a tile, columns of the largest block.
    let mut x = Array2::zeros((16, 32));
    x[(0, 0)] = f32::INFINITY;
    let q = reference::quantize(x.view(), source, recipe)?;
    Ok(!reference::dequantize(&q, DType::F32).iter().any(|v| v.is_nan()))
}

/// Whether other matrices are quantized too: without them nothing would be left to do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Others {
    None,
    Some,
}

/// How the tensor is left out, and no other.
fn without(name: &str, others: Others) -> Option<String> {
    (others == Others::Some).then(|| format!("leave the tensor out with --exclude {}", exactly([name])))
}

/// What takes infinities in the recipe's place, and what else it needs. `allowed`: it was given already.
fn instead((name, others): (&str, Others), target: Target, allowed: bool) -> String {
    let without = without(name, others);
    let or_without = without.as_ref().map(|without| format!(", or {without}")).unwrap_or_default();
    let without = without.map(|without| format!(", {without}")).unwrap_or_default();
    let with = if allowed { "" } else { " with --allow-non-finite" };
    let refused = |rules: &str| {
        let too = if allowed { "" } else { " with --allow-non-finite too" };
        format!("repair the data{or_without}; no {rules} has a scale for infinities, so they are refused{too}")
    };
    match target.product() {
        None => refused("grouping of a cast"),
        Some(Scheme::Mxfp8(_) | Scheme::Mxfp4) => format!("repair the data{without}, or use --mx-rounding up{with}"),
        Some(scheme) if scheme.is_nvfp4() => refused("rule of nvfp4"),
        _ => format!("repair the data{without}, or use --preset transformer-engine{with}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use scaled_gemm::{CodeRounding, Fp8Rule, MxScaleRule, Mxfp4Recipe, Mxfp8Recipe, Recipe};

    /// The advice is true for every recipe there is.
    #[test]
    fn what_is_recommended_takes_infinities_and_nothing_else_does() {
        for recipe in Recipe::all(CodeRounding::Stochastic { seed: 1, offset: 1 }) {
            let takes = takes_infinities(Target::Recipe(recipe), DType::Bf16).unwrap();
            let advised = match recipe {
                Recipe::Mxfp8(Mxfp8Recipe { rule, .. }) | Recipe::Mxfp4(Mxfp4Recipe { rule }) => {
                    rule == MxScaleRule::Up
                }
                Recipe::Nvfp4(_) => false,
                Recipe::Fp8(fp8) => fp8.rule == Fp8Rule::TransformerEngine,
            };
            assert_eq!(takes, advised, "{recipe:?}");
        }
    }
}
