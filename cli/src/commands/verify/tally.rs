//! What one check has found, and of what.

use scaled_gemm::reference::ClampCounts;
use scaled_gemm::{CastScheme, HostCastMatrix, HostQuantMatrix};
use serde_json::json;

use super::kinds::Kind;
use super::{Findings, differences, spell, verdict};
use crate::output::number;

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
    /// What was made, each once, and of what data.
    made: Vec<String>,
    kinds: Vec<Kind>,
}

impl Tally {
    fn note(&mut self, wrong: usize, what: impl FnOnce() -> String) {
        if wrong > 0 && self.first.is_none() {
            self.first = Some(what());
        }
    }

    /// Something was made of data of this kind.
    fn made(&mut self, what: String, kind: Kind) {
        self.casts += 1;
        if !self.kinds.contains(&kind) {
            self.kinds.push(kind);
        }
        if !self.made.contains(&what) {
            self.made.push(what);
        }
    }

    pub(super) fn cast(&mut self, want: &HostCastMatrix, got: &HostCastMatrix, kind: Kind) {
        let codes = differences(want.codes(), got.codes(), |a, b| a == b);
        let scales = differences(&want.device_scales(), &got.device_scales(), |a, b| a == b);
        (self.codes, self.scales) = (self.codes + codes, self.scales + scales);
        self.made(cast_name(want.scheme()), kind);
        self.note(codes + scales, || format!("to {}, {} data", want.scheme(), kind.name()));
    }

    /// Of groups that cannot come through without loss: what is counted or written wrong.
    pub(super) fn lost(&mut self, from: CastScheme, wrong: usize, kind: Kind) {
        self.beside(wrong, "groups that are lost", kind);
        self.made(cast_name(from), kind);
    }

    /// A recipe that is to be refused, and was not.
    pub(super) fn refused(&mut self, recipe: String, wrong: usize) {
        self.beside(wrong, "what is not refused", Kind::Normal);
        self.made(recipe, Kind::Normal);
    }

    /// By a recipe that is named.
    pub(super) fn product(&mut self, want: &HostQuantMatrix, got: &HostQuantMatrix, (recipe, kind): (String, Kind)) {
        let codes = differences(want.codes(), got.codes(), |a, b| a == b);
        let bits = |a: &f32, b: &f32| a.to_bits() == b.to_bits();
        let scales = differences(want.scales(), got.scales(), bits)
            + differences(want.block_scales(), got.block_scales(), |a, b| a == b);
        (self.codes, self.scales) = (self.codes + codes, self.scales + scales);
        self.note(codes + scales, || format!("to {recipe}, {} data", kind.name()));
        self.made(recipe, kind);
    }

    pub(super) fn beside(&mut self, wrong: usize, what: &str, kind: Kind) {
        self.beside = Some(self.beside.unwrap_or(0) + wrong);
        self.note(wrong, || format!("{what}, {} data", kind.name()));
    }

    pub(super) fn counts(&mut self, want: ClampCounts, got: ClampCounts, kind: Kind) {
        self.beside(usize::from(want != got), "the counts of a clamp", kind);
    }

    /// Equal bits, or NaN on both sides: which one a computed NaN is differs between processors.
    pub(super) fn floats(&mut self, want: &[f32], got: &[f32], what: &str, kind: Kind) {
        self.beside(differences(want, got, same_number), what, kind);
    }

    pub(super) fn off(&mut self, fraction: f64, kind: Kind) {
        self.off = Some(self.off.unwrap_or(0.0).max(fraction));
        self.note(usize::from(fraction > 1.0), || format!("values before the cast, {} data", kind.name()));
    }

    pub(super) fn finish(self, source: &str, to: &str, found: &mut Findings<9>) {
        let wrong = self.codes + self.scales + self.beside.unwrap_or(0);
        let passed = wrong == 0 && self.off.is_none_or(|off| off <= 1.0);
        found.rows.push([
            source.into(),
            to.into(),
            self.made.len().to_string(),
            self.kinds.len().to_string(),
            spell(self.codes),
            spell(self.scales),
            self.beside.map_or("-".into(), spell),
            self.off.map_or("-".into(), number),
            verdict(passed),
        ]);
        let kinds: Vec<_> = Kind::ALL.into_iter().filter(|kind| self.kinds.contains(kind)).map(Kind::name).collect();
        found.values.push(json!({
            "source": source, "to": to, "casts": self.casts, "made": self.made, "data": kinds,
            "codes_different": self.codes, "scales_different": self.scales, "beside_different": self.beside,
            "error_of_bound": self.off, "passed": passed,
        }));
        if !passed {
            found.failed.push(format!("{source} to {to}: {}", self.first.unwrap_or_default()));
        }
    }
}

/// A cast without the order of its scales, which take turns.
pub(super) fn cast_name(scheme: CastScheme) -> String {
    format!("{} {}{}", scheme.format(), scheme.group(), if scheme.is_transposed() { " transposed" } else { "" })
}

/// Whether two FP32 numbers have the same bits, or are NaN both.
pub(super) fn same_number(a: &f32, b: &f32) -> bool {
    a.to_bits() == b.to_bits() || a.is_nan() && b.is_nan()
}
