//! E2M1 as E4M3 of the same values: exact where that can be, and groups where it cannot are counted or refused.

use scaled_gemm::reference::{self, definition};
use scaled_gemm::{CastGroup, CastRecipe, CastScales, CastScheme, CodeFormat, DType, Error, HostCastMatrix};

use super::Findings;
use super::kinds::{Draw, Kind};
use super::sources::SHAPE;
use super::tally::Tally;
use crate::device::sources::{Inexact, Sources};
use crate::output::Failure;

/// Columns of a group of the result.
const WIDTH: usize = 128;

/// Groups that are taken.
fn groups() -> impl Iterator<Item = CastGroup> {
    let along_rows = |group: &CastGroup| *group != CastGroup::Row && group.grid(WIDTH, WIDTH)[0] == WIDTH;
    CastGroup::ALL.into_iter().filter(along_rows)
}

/// What came through, and what could not.
#[derive(Default)]
struct Found {
    exact: Tally,
    lost: Tally,
}

/// Every grouping that is taken, of each kind of data.
pub(super) fn check(device: &mut dyn Sources, seed: u64, found: &mut Findings<9>) -> Result<(), Failure> {
    for group in groups() {
        let mut here = Found::default();
        for kind in Kind::ALL {
            here.check(device, group, SHAPE, kind, seed)?;
        }
        here.finish(&format!("codes of {} {group}", CodeFormat::E2M1), found);
    }
    Ok(())
}

/// The same of other shapes, all groupings together.
pub(super) fn check_many_rows(
    device: &mut dyn Sources,
    shapes: [[usize; 2]; 2],
    seed: u64,
    found: &mut Findings<9>,
) -> Result<(), Failure> {
    let mut all = Found::default();
    for (group, shape) in groups().flat_map(|group| shapes.map(|shape| (group, shape))) {
        all.check(device, group, shape, Kind::Normal, seed)?;
    }
    all.finish(&format!("many rows of codes of {}", CodeFormat::E2M1), found);
    Ok(())
}

impl Found {
    /// By every order of scales, counted and not; powers of two as scales, and exact ones, which are lost unless they happen to be such.
    fn check(
        &mut self,
        device: &mut dyn Sources,
        group: CastGroup,
        shape: [usize; 2],
        kind: Kind,
        seed: u64,
    ) -> Result<(), Failure> {
        let scheme = CastScheme::new(CodeFormat::E2M1, group)?;
        let x = kind.matrix(Draw { shape, dtype: DType::F32, format: CodeFormat::E2M1, seed });
        for recipe in CastScales::ALL.map(|order| CastRecipe::new(scheme.with_scales(order))) {
            for recipe in [recipe.power_of_two(), recipe] {
                let q = reference::cast(&x.view().into(), recipe)?;
                let groups = groups_lost(&q);
                if groups.iter().any(|lost| *lost) {
                    check_lost(device, &q, &groups, kind, &mut self.lost)?;
                    continue;
                }
                let want = definition::fp4_to_fp8(&q)?;
                for count in [Inexact::Uncounted, Inexact::Counted] {
                    let (got, counted) = device.fp4_to_fp8(&q, count)?;
                    self.exact.cast(&want, &got, kind);
                    if let Some(counted) = counted {
                        self.exact.beside(usize::from(counted != 0), "the count of groups that are lost", kind);
                    }
                }
            }
        }
        Ok(())
    }

    fn finish(self, from: &str, found: &mut Findings<9>) {
        self.exact.finish(from, "e4m3 1x128 ue8m0, lossless", found);
        self.lost.finish(from, "the same, groups that are lost", found);
    }
}

/// Which groups of 128 columns are no E4M3 of the same values, by rows: those with a scale that is no power of two from 2^-127 to 2^127, and those
/// with a code that is not zero and a scale 2^i of which the group's is more than 2^5 times as large.
fn groups_lost(q: &HostCastMatrix) -> Vec<bool> {
    let of_group = |i: usize, left: usize| {
        let columns = left..(left + WIDTH).min(q.cols());
        let power = |j: usize| {
            let power = f64::from(q.scale_at(i, j)).log2();
            (power.fract() == 0.0 && (-127.0..=127.0).contains(&power)).then_some(power)
        };
        let Some(powers) = columns.clone().map(power).collect::<Option<Vec<f64>>>() else { return true };
        let of_result = powers.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b)) - 6.0;
        let of_result = of_result.max(-127.0);
        columns.zip(powers).any(|(j, power)| q.code_value(i, j) != 0.0 && power - of_result < -5.0)
    };
    (0..q.rows()).flat_map(|i| (0..q.cols()).step_by(WIDTH).map(move |left| of_group(i, left))).collect()
}

/// That a device refuses it, or counts the groups that are lost and writes the others.
fn check_lost(
    device: &mut dyn Sources,
    q: &HostCastMatrix,
    groups: &[bool],
    kind: Kind,
    tally: &mut Tally,
) -> Result<(), Failure> {
    let wrong = match device.fp4_to_fp8(q, Inexact::Counted) {
        Err(Error::Unsupported { .. }) => 0,
        Err(error) => return Err(error.into()),
        Ok((got, counted)) => {
            let want = definition::fp4_to_fp8(q)?;
            let in_row = q.cols().div_ceil(WIDTH);
            let group = |at: usize| at / q.cols() * in_row + at % q.cols() / WIDTH;
            let codes = (0..q.rows() * q.cols()).filter(|at| !groups[group(*at)]);
            let codes = codes.filter(|at| want.codes()[*at] != got.codes()[*at]).count();
            let scales = (0..groups.len()).filter(|at| !groups[*at] && want.scales()[*at] != got.scales()[*at]).count();
            let count = groups.iter().filter(|lost| **lost).count() as u32;
            usize::from(counted != Some(count)) + codes + scales
        }
    };
    tally.lost(q.scheme(), wrong, kind);
    Ok(())
}
