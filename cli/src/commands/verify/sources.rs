//! Casts of codes and of chosen rows, and parts of casts, against their definition, as producers are (`producers`). Data and types of
//! elements take turns over the targets.

use ndarray::Array2;
use scaled_gemm::codec::round_to;
use scaled_gemm::reference::{self, CastInput, ClampCounts, definition};
use scaled_gemm::{CastGroup, CastRecipe, CastScales, CastScheme, CodeFormat, DType, HostCastMatrix, HostQuantMatrix};
use serde_json::json;

use super::{Findings, WIDE, differences, producers, spell, test_matrix, verdict};
use crate::device::sources::{HostSource, HostValues, Part, Sources, Wide};
use crate::output::{Failure, number};
use crate::quantizers::cast_schemes;

/// Shape of what is made: more than a group of 128 rows, ragged columns, rows that can be stored as columns.
pub(super) const SHAPE: [usize; 2] = [144, 208];

/// What the data are.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    Normal,
    /// A hundredth a thousand times as large.
    Outliers,
    /// Of both signs.
    Zeros,
    /// Below the normal numbers of their type.
    Subnormal,
}

impl Kind {
    pub const ALL: [Self; 4] = [Self::Normal, Self::Outliers, Self::Zeros, Self::Subnormal];

    /// A matrix of them.
    pub fn matrix(self, rows: usize, cols: usize, dtype: DType, seed: u64) -> Array2<f32> {
        let mut x = test_matrix(rows, cols, dtype, seed);
        let least = if dtype == DType::F16 { 2f32.powi(-17) } else { 2f32.powi(-129) };
        for ((i, j), v) in x.indexed_iter_mut() {
            let factor = match self {
                Self::Normal => continue,
                Self::Outliers if (i * cols + j) % 97 == 5 => 1000.0,
                Self::Outliers => 1.0,
                Self::Zeros => 0.0,
                Self::Subnormal => least,
            };
            *v = round_to(dtype, *v * factor);
        }
        x
    }
}

/// What one check has found.
#[derive(Default)]
pub(super) struct Tally {
    codes: usize,
    scales: usize,
    /// Of what is written beside a cast, where there is such.
    beside: Option<usize>,
    /// The worst fraction of what a value may be off before the cast, where it is computed.
    off: Option<f64>,
    casts: usize,
    first: Option<String>,
}

impl Tally {
    fn note(&mut self, wrong: usize, what: impl FnOnce() -> String) {
        if wrong > 0 && self.first.is_none() {
            self.first = Some(what());
        }
    }

    pub(super) fn cast(&mut self, want: &HostCastMatrix, got: &HostCastMatrix, kind: Kind) {
        let codes = differences(want.codes(), got.codes(), |a, b| a == b);
        let scales = differences(&want.device_scales(), &got.device_scales(), |a, b| a == b);
        (self.codes, self.scales, self.casts) = (self.codes + codes, self.scales + scales, self.casts + 1);
        self.note(codes + scales, || format!("to {}, {kind:?} data", want.scheme()));
    }

    pub(super) fn product(&mut self, want: &HostQuantMatrix, got: &HostQuantMatrix, kind: Kind) {
        let codes = differences(want.codes(), got.codes(), |a, b| a == b);
        let bits = |a: &f32, b: &f32| a.to_bits() == b.to_bits();
        let scales = differences(want.scales(), got.scales(), bits)
            + differences(want.block_scales(), got.block_scales(), |a, b| a == b);
        (self.codes, self.scales, self.casts) = (self.codes + codes, self.scales + scales, self.casts + 1);
        self.note(codes + scales, || format!("to {}, {kind:?} data", want.scheme()));
    }

    fn beside(&mut self, wrong: usize, what: &str, kind: Kind) {
        self.beside = Some(self.beside.unwrap_or(0) + wrong);
        self.note(wrong, || format!("{what}, {kind:?} data"));
    }

    pub(super) fn counts(&mut self, want: ClampCounts, got: ClampCounts, kind: Kind) {
        self.beside(usize::from(want != got), "the counts of a clamp", kind);
    }

    pub(super) fn floats(&mut self, want: &[f32], got: &[f32], what: &str, kind: Kind) {
        self.beside(differences(want, got, |a, b| a.to_bits() == b.to_bits()), what, kind);
    }

    pub(super) fn off(&mut self, fraction: f64, kind: Kind) {
        self.off = Some(self.off.unwrap_or(0.0).max(fraction));
        self.note(usize::from(fraction > 1.0), || format!("values before the cast, {kind:?} data"));
    }

    pub(super) fn finish(self, source: &str, to: &str, found: &mut Findings<7>) {
        let wrong = self.codes + self.scales + self.beside.unwrap_or(0);
        let passed = wrong == 0 && self.off.is_none_or(|off| off <= 1.0);
        found.rows.push([
            source.into(),
            to.into(),
            spell(self.codes),
            spell(self.scales),
            self.beside.map_or("-".into(), spell),
            self.off.map_or("-".into(), number),
            verdict(passed),
        ]);
        found.values.push(json!({
            "source": source, "to": to, "casts": self.casts, "codes_different": self.codes,
            "scales_different": self.scales, "beside_different": self.beside, "error_of_bound": self.off,
            "passed": passed,
        }));
        if !passed {
            found.failed.push(format!("{source} to {to}: {}", self.first.unwrap_or_default()));
        }
    }
}

/// Some of the checks.
pub(super) type Check = fn(&mut dyn Sources, u64, &mut Findings<7>) -> Result<(), Failure>;

/// How many steps [`check`] takes.
pub const STEPS: usize = 9;

/// All of them; `step` hears of each.
pub fn check(
    device: &mut dyn Sources,
    seed: u64,
    found: &mut Findings<7>,
    step: &mut dyn FnMut(),
) -> Result<(), Failure> {
    let of_sources: [Check; 4] = [codes, parts, parts_of_codes, lossless];
    for check in of_sources.into_iter().chain(producers::CHECKS) {
        check(device, seed, found)?;
        step();
    }
    Ok(())
}

pub(super) fn e4m3(group: CastGroup) -> Result<CastScheme, Failure> {
    Ok(CastScheme::new(CodeFormat::E4M3, group)?)
}

pub(super) fn e2m1(group: CastGroup) -> Result<CastScheme, Failure> {
    Ok(CastScheme::new(CodeFormat::E2M1, group)?)
}

/// Every cast, exact scales and powers of two in turns, with data whose codes and scales differ, and for every second one also with data that
/// says little else: zeros, and numbers below every scale.
pub(super) fn turns(shift: usize) -> impl Iterator<Item = (CastRecipe, Kind, DType)> {
    cast_schemes().into_iter().enumerate().flat_map(move |(at, scheme)| {
        let recipe = CastRecipe::new(scheme.with_scales(CastScales::ALL[at % 3]));
        let recipe = if (at + shift).is_multiple_of(5) { recipe.power_of_two() } else { recipe };
        let turn = at + shift;
        let telling = [Kind::Normal, Kind::Outliers][turn / 2 % 2];
        let other = turn.is_multiple_of(2).then(|| [Kind::Zeros, Kind::Subnormal][turn / 2 % 2]);
        [Some(telling), other].into_iter().flatten().map(move |kind| (recipe, kind, WIDE[turn % 3]))
    })
}

/// Rows that are chosen: some twice, some not, some rows of zeros.
pub(super) fn chosen_rows() -> Vec<i32> {
    let rows = SHAPE[0] as i32;
    (0..rows + 16).map(|i| if i % 9 == 4 { -1 - i } else { i * 7 % rows }).collect()
}

/// What codes are cast again from: each grouping in both formats, but none whose codes are stored transposed, which casts refuse.
fn coded() -> impl Iterator<Item = CastScheme> {
    cast_schemes().into_iter().filter(|scheme| !scheme.is_transposed())
}

/// Codes of every grouping that are cast again, their scales in every order, and rows that are chosen of them and of plain matrices.
fn codes(device: &mut dyn Sources, seed: u64, found: &mut Findings<7>) -> Result<(), Failure> {
    use CastGroup::{Group1x32, Group1x128, Group32x1, Row, Tile128x128};
    let [rows, cols] = SHAPE;
    let chosen = chosen_rows();
    // What activations and weights are kept in goes to every cast, the others to every third.
    let all = [e4m3(Group1x128)?, e4m3(Row)?, e4m3(Tile128x128)?, e2m1(Group1x32)?, e2m1(Group32x1)?];
    let mut gathered = Tally::default();
    for (shift, from) in coded().enumerate() {
        let mut again = Tally::default();
        let every = if all.contains(&from) { 1 } else { 3 };
        for (at, (recipe, kind, dtype)) in turns(shift).enumerate().skip(shift % every).step_by(every) {
            let x = kind.matrix(rows, cols, dtype, seed.wrapping_add(shift as u64));
            let from = from.with_scales(CastScales::ALL[at / every % 3]);
            let q = reference::cast(&x.view().into(), CastRecipe::new(from))?;
            let source = HostSource::from(HostValues::Coded(&q));
            let want = definition::cast(&(&q).into(), recipe)?;
            again.cast(&want, &device.cast_source(&source, Part::Whole, recipe)?.0, kind);
            // Every second one of each.
            if (at / every + shift).is_multiple_of(2) {
                let source = HostSource { rows: Some(&chosen), ..source };
                let want = definition::cast(&CastInput::from(&q).gathered(&chosen)?, recipe)?;
                gathered.cast(&want, &device.cast_source(&source, Part::Whole, recipe)?.0, kind);
            }
        }
        again.finish(&format!("codes of {} {}", from.format(), from.group()), "casts", found);
    }
    gathered.finish("chosen rows of codes", "casts", found);
    let mut gathered = Tally::default();
    for (recipe, kind, dtype) in turns(0) {
        let x = kind.matrix(rows, cols, dtype, seed);
        let want = definition::cast(&CastInput::from(x.view()).gathered(&chosen)?, recipe)?;
        let source = HostSource { values: HostValues::Plain(Wide { values: &x, dtype }), rows: Some(&chosen) };
        gathered.cast(&want, &device.cast_source(&source, Part::Whole, recipe)?.0, kind);
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
        (recipe, kind): (CastRecipe, Kind),
    ) -> Result<[ClampCounts; 2], Failure> {
        let (scheme, rows, cols) = (recipe.scheme(), input.rows(), input.cols());
        let scales = definition::cast(input, recipe)?.scales().to_vec();
        let codes = vec![0; scheme.code_bytes(rows, cols)];
        let want = HostCastMatrix::from_logical(scheme, rows, cols, codes, scales)?;
        let (got, of_scales) = device.cast_source(source, Part::Scales, recipe)?;
        self.alone.cast(&want, &got, kind);
        let [r, c] = scheme.group().grid(rows, cols);
        // Some saturate, some leave little of the data.
        let factor = if scheme.scales() == CastScales::Ue8m0 { 1.0 } else { 1.37 };
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
    pub(super) fn finish(self, of: &str, found: &mut Findings<7>) {
        self.alone.finish(&format!("scales alone{of}"), "casts", found);
        self.given.finish(&format!("codes by given scales{of}"), "casts", found);
    }
}

/// Of plain matrices.
fn parts(device: &mut dyn Sources, seed: u64, found: &mut Findings<7>) -> Result<(), Failure> {
    let [rows, cols] = SHAPE;
    let mut parts = Parts::default();
    for (recipe, kind, dtype) in turns(1) {
        let x = kind.matrix(rows, cols, dtype, seed);
        let source = HostSource::from(HostValues::Plain(Wide { values: &x, dtype }));
        parts.check(device, &source, &x.view().into(), (recipe, kind))?;
    }
    parts.finish("", found);
    Ok(())
}

/// Of codes, whose groupings and orders of scales take turns.
fn parts_of_codes(device: &mut dyn Sources, seed: u64, found: &mut Findings<7>) -> Result<(), Failure> {
    let [rows, cols] = SHAPE;
    let mut parts = Parts::default();
    let sources: Vec<_> = coded().collect();
    for (at, (recipe, kind, dtype)) in turns(2).enumerate() {
        let x = kind.matrix(rows, cols, dtype, seed);
        let from = sources[at * 5 % sources.len()].with_scales(CastScales::ALL[at % 3]);
        let q = reference::cast(&x.view().into(), CastRecipe::new(from))?;
        let source = HostSource::from(HostValues::Coded(&q));
        parts.check(device, &source, &(&q).into(), (recipe, kind))?;
    }
    parts.finish(" of codes", found);
    Ok(())
}

fn lossless(device: &mut dyn Sources, seed: u64, found: &mut Findings<7>) -> Result<(), Failure> {
    use CastGroup::{Group1x16, Group1x32, Group1x64, Group1x128};
    let [rows, cols] = SHAPE;
    for group in [Group1x16, Group1x32, Group1x64, Group1x128] {
        let mut tally = Tally::default();
        // Outliers are more than 11 powers of two beyond their neighbours: those are refused.
        let kinds = [Kind::Normal, Kind::Zeros, Kind::Subnormal];
        for (kind, order) in kinds.into_iter().flat_map(|kind| CastScales::ALL.map(|order| (kind, order))) {
            let x = kind.matrix(rows, cols, DType::F32, seed);
            let recipe = CastRecipe::new(e2m1(group)?.with_scales(order)).power_of_two();
            let q = reference::cast(&x.view().into(), recipe)?;
            tally.cast(&definition::fp4_to_fp8(&q)?, &device.fp4_to_fp8(&q)?, kind);
        }
        tally.finish(&format!("codes of {}", e2m1(group)?), "e4m3 1x128 ue8m0, lossless", found);
    }
    Ok(())
}
