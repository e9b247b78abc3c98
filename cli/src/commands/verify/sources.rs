//! Casts of codes and of chosen rows, and parts of casts, against their definition, as producers are (`producers`). Types of elements and
//! orders of scales take turns.

use ndarray::Array2;
use scaled_gemm::reference::{self, CastInput, ClampCounts, definition};
use scaled_gemm::{CastRecipe, CastScales, CastScheme, DType, HostCastMatrix};

use super::kinds::{Draw, Kind};
use super::tally::Tally;
use super::{Findings, WIDE, lossless, many_rows, producers};
use crate::device::sources::{HostSource, HostValues, Part, Sources, Wide};
use crate::output::Failure;
use crate::quantizers::cast_schemes;

/// Shape of what is made, but for [`many_rows`]: more than a group of 128 rows, ragged columns, rows that can be stored as columns.
pub(super) const SHAPE: [usize; 2] = [144, 176];

/// Some of the checks.
pub(super) type Check = fn(&mut dyn Sources, u64, &mut Findings<9>) -> Result<(), Failure>;

/// All of them.
pub(super) fn checks() -> Vec<Check> {
    let of_sources: [Check; 4] = [codes, chosen, parts, lossless::check];
    of_sources.into_iter().chain(producers::CHECKS).chain([many_rows::check as Check]).collect()
}

/// What one turn casts by, and of what.
#[derive(Debug, Clone, Copy)]
pub(super) struct Turn {
    pub shape: [usize; 2],
    pub recipe: CastRecipe,
    pub kind: Kind,
    pub dtype: DType,
    /// Its number among the turns.
    pub at: usize,
}

/// Every cast of this kind of data, exact scales and powers of two, orders and types in turns.
pub(super) fn turns(kind: Kind, shift: usize) -> impl Iterator<Item = Turn> {
    let of_kind = Kind::ALL.iter().position(|other| *other == kind).unwrap_or(0);
    cast_schemes().into_iter().enumerate().map(move |(at, scheme)| {
        let turn = at + of_kind + shift;
        let recipe = CastRecipe::new(scheme.with_scales(CastScales::ALL[(turn + of_kind) % 3]));
        let recipe = if turn.is_multiple_of(5) { recipe.power_of_two() } else { recipe };
        Turn { shape: SHAPE, recipe, kind, dtype: WIDE[(turn + at / 3) % 3], at: turn }
    })
}

impl Turn {
    /// A matrix that it casts.
    pub(super) fn matrix(self, seed: u64) -> Array2<f32> {
        self.kind.matrix(Draw { shape: self.shape, dtype: self.dtype, format: self.recipe.scheme().format(), seed })
    }
}

/// Rows that are chosen: some twice, some not, some rows of zeros.
pub(super) fn chosen_rows() -> Vec<i32> {
    let rows = SHAPE[0] as i32;
    (0..rows + 16).map(|i| if i % 9 == 4 { -1 - i } else { i * 7 % rows }).collect()
}

/// What codes are cast again from: each grouping in both formats, but none whose codes are stored transposed, which casts refuse.
pub(super) fn coded() -> Vec<CastScheme> {
    cast_schemes().into_iter().filter(|scheme| !scheme.is_transposed()).collect()
}

/// The codes that a turn casts again, of data of its kind: ties by powers of two, since they come through those alone, and infinities not by
/// bytes, of which that for an infinite scale is NaN, which is refused.
pub(super) fn codes_of(turn: Turn, from: CastScheme, seed: u64) -> Result<HostCastMatrix, Failure> {
    let order = match CastScales::ALL[turn.at / 2 % 3] {
        CastScales::Ue8m0 if turn.kind == Kind::Infinities => CastScales::ColumnMajor,
        order => order,
    };
    let recipe = CastRecipe::new(from.with_scales(order));
    let recipe = if turn.kind == Kind::Ties { recipe.power_of_two() } else { recipe };
    Ok(reference::cast(&turn.matrix(seed).view().into(), recipe)?)
}

/// Codes of every grouping that are cast to every other, their scales in every order, and rows that are chosen of them. Each source meets
/// each cast, and each of both each kind of data.
fn codes(device: &mut dyn Sources, seed: u64, found: &mut Findings<9>) -> Result<(), Failure> {
    let chosen = chosen_rows();
    let mut gathered = Tally::default();
    for (shift, from) in coded().into_iter().enumerate() {
        let mut again = Tally::default();
        for (k, kind) in Kind::ALL.into_iter().enumerate() {
            for turn in turns(kind, shift) {
                let to = turn.at - k - shift;
                // A kind that says much for each pair, and zeros or subnormal numbers for some.
                let told = Kind::TELLING[(to + shift) % Kind::TELLING.len()] == kind;
                if !told && (Kind::TELLING.contains(&kind) || !(to + shift + k).is_multiple_of(8)) {
                    continue;
                }
                let q = codes_of(turn, from, seed.wrapping_add(shift as u64))?;
                let source = HostSource::from(HostValues::Coded(&q));
                let want = definition::cast(&(&q).into(), turn.recipe)?;
                again.cast(&want, &device.cast_source(&source, Part::Whole, turn.recipe)?.0, kind);
                // Every third one of each.
                if (to + 2 * shift).is_multiple_of(3) {
                    let source = HostSource { rows: Some(&chosen), ..source };
                    let want = definition::cast(&CastInput::from(&q).gathered(&chosen)?, turn.recipe)?;
                    gathered.cast(&want, &device.cast_source(&source, Part::Whole, turn.recipe)?.0, kind);
                }
            }
        }
        again.finish(&format!("codes of {} {}", from.format(), from.group()), "casts", found);
    }
    gathered.finish("chosen rows of codes", "casts", found);
    Ok(())
}

/// Chosen rows of plain matrices.
fn chosen(device: &mut dyn Sources, seed: u64, found: &mut Findings<9>) -> Result<(), Failure> {
    let chosen = chosen_rows();
    let mut gathered = Tally::default();
    for turn in Kind::ALL.into_iter().flat_map(|kind| turns(kind, 0)) {
        let (x, dtype) = (turn.matrix(seed), turn.dtype);
        let want = definition::cast(&CastInput::from(x.view()).gathered(&chosen)?, turn.recipe)?;
        let source = HostSource { values: HostValues::Plain(Wide { values: &x, dtype }), rows: Some(&chosen) };
        gathered.cast(&want, &device.cast_source(&source, Part::Whole, turn.recipe)?.0, turn.kind);
    }
    gathered.finish("chosen rows", "casts", found);
    Ok(())
}

/// Scales alone, and codes by scales that are given.
#[derive(Default)]
pub(super) struct Parts {
    alone: Tally,
    given: Tally,
}

impl Parts {
    /// Both of a source, whose values a cast reads as `input`; gives what a clamp has changed in either.
    pub(super) fn check(
        &mut self,
        device: &mut dyn Sources,
        source: &HostSource<'_>,
        input: &CastInput<'_>,
        Turn { recipe, kind, .. }: Turn,
    ) -> Result<[ClampCounts; 2], Failure> {
        let (scheme, rows, cols) = (recipe.scheme(), input.rows(), input.cols());
        let scales = definition::cast(input, recipe)?.scales().to_vec();
        let codes = vec![0; scheme.code_bytes(rows, cols)];
        let want = HostCastMatrix::from_logical(scheme, rows, cols, codes, scales)?;
        let (got, of_scales) = device.cast_source(source, Part::Scales, recipe)?;
        self.alone.cast(&want, &got, kind);
        let [r, c] = scheme.group().grid(rows, cols);
        // Some saturate, some leave little of the data. Ties stay such by powers of two.
        let factor = if scheme.scales() == CastScales::Ue8m0 || kind == Kind::Ties { 1.0 } else { 1.37 };
        let scales: Vec<f32> = (0..r * c).map(|i| 2f32.powi((i % 9) as i32 - 6) * factor).collect();
        let want = definition::cast_with_scales(input, scheme, &scales)?;
        let (got, of_codes) = device.cast_source(source, Part::Codes(&scales), recipe)?;
        self.given.cast(&want, &got, kind);
        Ok([of_scales, of_codes])
    }

    /// What a clamp has changed in either.
    pub(super) fn counts(&mut self, want: ClampCounts, [of_scales, of_codes]: [ClampCounts; 2], kind: Kind) {
        self.alone.counts(want, of_scales, kind);
        self.given.counts(want, of_codes, kind);
    }

    /// `of` follows the name of the part.
    pub(super) fn finish(self, of: &str, found: &mut Findings<9>) {
        self.alone.finish(&format!("scales alone{of}"), "casts", found);
        self.given.finish(&format!("codes by given scales{of}"), "casts", found);
    }
}

/// Of plain matrices, and of codes, whose groupings and orders of scales take turns.
fn parts(device: &mut dyn Sources, seed: u64, found: &mut Findings<9>) -> Result<(), Failure> {
    let (mut plain, mut of_codes, sources) = (Parts::default(), Parts::default(), coded());
    for turn in Kind::ALL.into_iter().flat_map(|kind| turns(kind, 1)) {
        let (x, dtype) = (turn.matrix(seed), turn.dtype);
        let source = HostSource::from(HostValues::Plain(Wide { values: &x, dtype }));
        plain.check(device, &source, &x.view().into(), turn)?;
        let q = codes_of(turn, sources[turn.at * 5 % sources.len()], seed)?;
        of_codes.check(device, &HostValues::Coded(&q).into(), &(&q).into(), turn)?;
    }
    plain.finish("", found);
    of_codes.finish(" of codes", found);
    Ok(())
}

#[cfg(test)]
mod tests {
    use scaled_gemm::reference::RmsNorm;
    use scaled_gemm::{GivenScale, HostQuantMatrix, Recipe, Result};

    use super::*;
    use crate::device::sources::{GatedInput, Gradients, Inexact, NormCast, OnCpu};

    /// The CPU, but for one thing.
    enum Wrong {
        /// A code of what is cast from data with a NaN.
        Code,
        /// What a clamp has changed, and the largest magnitude.
        Beside,
        /// That lossy groups are lost: it counts none.
        Lost,
        /// It takes recipes that are to be refused.
        Recipes,
        /// A gradient in BF16.
        Gradient,
        /// A code of what has this many rows, for which it has other kernels.
        ManyRows(usize),
    }

    impl Sources for Wrong {
        fn cast_source(
            &mut self,
            source: &HostSource<'_>,
            part: Part<'_>,
            recipe: CastRecipe,
        ) -> Result<(HostCastMatrix, ClampCounts)> {
            let (q, mut counts) = OnCpu.cast_source(source, part, recipe)?;
            let mut codes = q.codes().to_vec();
            match (&self, source.values) {
                (Self::Code, HostValues::Plain(x)) if x.values.iter().any(|v| v.is_nan()) => codes[77] ^= 1,
                (Self::Beside, _) if counts.right_below > 0 => counts.right_below -= 1,
                (Self::ManyRows(rows), _) if q.rows() == *rows => codes[77] ^= 1,
                _ => {}
            }
            Ok((HostCastMatrix::from_logical(q.scheme(), q.rows(), q.cols(), codes, q.scales().to_vec())?, counts))
        }

        fn quantize_source(
            &mut self,
            source: &HostSource<'_>,
            recipe: Recipe,
            given: Option<GivenScale>,
        ) -> Result<(HostQuantMatrix, Option<f32>)> {
            let (q, amax) = OnCpu.quantize_source(source, recipe, given)?;
            Ok((q, amax.map(|amax| if matches!(self, Self::Beside) { amax + 1.0 } else { amax })))
        }

        fn refuses_recipes(&self) -> bool {
            matches!(self, Self::Recipes)
        }

        fn many_rows(&self) -> Option<usize> {
            if let Self::ManyRows(rows) = self { Some(*rows) } else { None }
        }

        fn fp4_to_fp8(&mut self, q: &HostCastMatrix, count: Inexact) -> Result<(HostCastMatrix, Option<u32>)> {
            match self {
                Self::Lost => Ok((definition::fp4_to_fp8(q)?, Some(0))),
                _ => OnCpu.fp4_to_fp8(q, count),
            }
        }

        fn rms_norm_cast(&mut self, x: Wide<'_>, norm: &RmsNorm<'_>, recipe: CastRecipe) -> Result<NormCast> {
            OnCpu.rms_norm_cast(x, norm, recipe)
        }

        fn rms_norm_quantize(
            &mut self,
            x: Wide<'_>,
            norm: &RmsNorm<'_>,
            recipe: Recipe,
            given: Option<GivenScale>,
        ) -> Result<HostQuantMatrix> {
            OnCpu.rms_norm_quantize(x, norm, recipe, given)
        }

        fn swiglu_backward(
            &mut self,
            x: GatedInput<'_>,
            gradient: Wide<'_>,
            options: &reference::Swiglu<'_>,
            recipe: CastRecipe,
        ) -> Result<Gradients> {
            let mut gradients = OnCpu.swiglu_backward(x, gradient, options, recipe)?;
            if matches!(self, Self::Gradient) {
                gradients.x_bf16[[3, 5]] += 1.0;
            }
            Ok(gradients)
        }

        fn swiglu_backward_quantize(
            &mut self,
            x: GatedInput<'_>,
            gradient: Wide<'_>,
            options: &reference::Swiglu<'_>,
            recipe: Recipe,
        ) -> Result<HostQuantMatrix> {
            OnCpu.swiglu_backward_quantize(x, gradient, options, recipe)
        }
    }

    /// Each fault is found by one of the checks, which says where.
    #[test]
    fn a_device_that_is_wrong_in_one_place_is_found() {
        let produced = producers::CHECKS[0];
        let [gradients, refused] = [producers::CHECKS[2], producers::CHECKS[3]];
        for (mut wrong, check, words) in [
            (Wrong::Code, chosen as Check, &["chosen rows to casts: to e4m3 1x16"][..]),
            (
                Wrong::Beside,
                produced,
                &[
                    "swiglu, clamp and counts to casts: the counts of a clamp",
                    "silu to what products read: the largest magnitude",
                ],
            ),
            (Wrong::Lost, lossless::check, &["the same, groups that are lost: groups that are lost"]),
            (Wrong::Recipes, refused, &["producers to what is refused: what is not refused"]),
            (Wrong::Gradient, gradients, &["gradients in BF16, normal data"]),
            (
                Wrong::ManyRows(16),
                many_rows::check,
                &[
                    "many rows to casts: to e4m3 1x16",
                    "many rows of codes of e4m3 to casts: to e4m3 1x16",
                    "many rows of codes of e2m1 to casts: to e4m3 1x16",
                    "many rows of swiglu, clamp and counts to casts: to e4m3 1x16",
                    "many rows of gelu to casts: to e4m3 1x16",
                ],
            ),
        ] {
            let mut found = Findings::default();
            check(&mut wrong, 1, &mut found).unwrap();
            for words in words {
                assert!(found.failed.iter().any(|line| line.contains(words)), "{words}: {:?}", found.failed);
            }
            if matches!(wrong, Wrong::Code) {
                assert!(found.failed[0].ends_with("NaN data"), "{:?}", found.failed);
            }
        }
    }
}
