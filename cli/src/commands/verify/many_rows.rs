//! Casts, producers and norms of so many rows that a GPU has other kernels for them than for those of [`SHAPE`](super::sources::SHAPE), against their
//! definition. A device that has not, as the CPU, is not asked. Each is met by one kind of data, those that tell most in turns.

use scaled_gemm::codec::round_to;
use scaled_gemm::reference::{self, RmsNorm, definition};
use scaled_gemm::{CastRecipe, CastScales, CodeFormat};

use super::kinds::{Draw, Kind};
use super::producers::{Beside, matrix, ways};
use super::sources::{Turn, coded, codes_of};
use super::tally::Tally;
use super::{Findings, WIDE, lossless, test_matrix};
use crate::device::sources::{HostValues, Part, Sources, Wide};
use crate::output::Failure;
use crate::quantizers::cast_schemes;

/// Whole groups of every width, where a GPU casts a matrix as one row, and none of 32 or more.
pub(super) const COLS: [usize; 2] = [256, 176];

/// Every cast by every order of scales; kinds and types of data, exact scales and powers of two in turns.
fn turns(shape: [usize; 2], shift: usize) -> impl Iterator<Item = Turn> {
    let orders = CastScales::ALL.into_iter().enumerate();
    let all =
        cast_schemes().into_iter().enumerate().flat_map(move |(s, scheme)| orders.clone().map(move |o| (s, scheme, o)));
    all.map(move |(s, scheme, (o, order))| {
        let recipe = CastRecipe::new(scheme.with_scales(order));
        let recipe = if (s / 2 + o + shift).is_multiple_of(2) { recipe.power_of_two() } else { recipe };
        let at = 4 * s + o + shift;
        Turn { shape, recipe, kind: Kind::TELLING[at % Kind::TELLING.len()], dtype: WIDE[(s + at / 3) % 3], at }
    })
}

/// The same by one order each, others for each `shift`.
fn turns_by_one_order(shape: [usize; 2], shift: usize) -> impl Iterator<Item = Turn> {
    turns(shape, shift).enumerate().filter(move |(n, _)| n % 3 == (n / 3 + shift) % 3).map(|(_, turn)| turn)
}

pub(super) fn check(device: &mut dyn Sources, seed: u64, found: &mut Findings<9>) -> Result<(), Failure> {
    let Some(rows) = device.many_rows() else { return Ok(()) };
    plain(device, rows, seed, found)?;
    codes(device, rows, seed, found)?;
    produced(device, rows, seed, found)?;
    norms(device, rows, seed, found)
}

fn plain(device: &mut dyn Sources, rows: usize, seed: u64, found: &mut Findings<9>) -> Result<(), Failure> {
    let mut tally = Tally::default();
    for turn in COLS.into_iter().enumerate().flat_map(|(shift, cols)| turns([rows, cols], shift)) {
        let (x, dtype) = (turn.matrix(seed), turn.dtype);
        let want = definition::cast(&x.view().into(), turn.recipe)?;
        let source = HostValues::Plain(Wide { values: &x, dtype }).into();
        tally.cast(&want, &device.cast_source(&source, Part::Whole, turn.recipe)?.0, turn.kind);
    }
    tally.finish("many rows", "casts", found);
    Ok(())
}

/// Of each format, from its groupings in turns; and E2M1 as E4M3.
fn codes(device: &mut dyn Sources, rows: usize, seed: u64, found: &mut Findings<9>) -> Result<(), Failure> {
    for format in [CodeFormat::E4M3, CodeFormat::E2M1] {
        let sources: Vec<_> = coded().into_iter().filter(|scheme| scheme.format() == format).collect();
        let mut tally = Tally::default();
        for turn in COLS.into_iter().enumerate().flat_map(|(shift, cols)| turns([rows, cols], shift)) {
            let q = codes_of(turn, sources[turn.at * 5 % sources.len()], seed)?;
            let want = definition::cast(&(&q).into(), turn.recipe)?;
            let (got, _) = device.cast_source(&HostValues::Coded(&q).into(), Part::Whole, turn.recipe)?;
            tally.cast(&want, &got, turn.kind);
        }
        tally.finish(&format!("many rows of codes of {format}"), "casts", found);
    }
    lossless::check_many_rows(device, COLS.map(|cols| [rows, cols]), seed, found)
}

fn produced(device: &mut dyn Sources, rows: usize, seed: u64, found: &mut Findings<9>) -> Result<(), Failure> {
    for (at, (name, way)) in ways().enumerate() {
        let mut tally = Tally::default();
        for turn in turns_by_one_order([rows, COLS[at % COLS.len()]], at) {
            let Turn { shape, recipe, kind, dtype, .. } = turn;
            let (beside, format) = (Beside::new(shape, kind), recipe.scheme().format());
            let x = matrix(way, kind, Draw { shape, dtype, format, seed: seed.wrapping_add(at as u64) });
            let values = beside.values(way, Wide { values: &x, dtype });
            let (read, counts) = values.read_by(recipe.scheme())?;
            let (got, counted) = device.cast_source(&values.into(), Part::Whole, recipe)?;
            tally.cast(&definition::cast(&read.view().into(), recipe)?, &got, kind);
            if way.counts() {
                tally.counts(counts, counted, kind);
            }
        }
        tally.finish(&format!("many rows of {name}"), "casts", found);
    }
    Ok(())
}

/// RMSNorm, with and without a residual.
fn norms(device: &mut dyn Sources, rows: usize, seed: u64, found: &mut Findings<9>) -> Result<(), Failure> {
    for (shift, name) in ["rms norm", "rms norm of x and a residual"].into_iter().enumerate() {
        let mut tally = Tally::default();
        for turn in turns_by_one_order([rows, COLS[shift]], shift) {
            let Turn { shape, recipe, kind, dtype, .. } = turn;
            let weight = Beside::new(shape, kind).columns;
            let x = turn.matrix(seed);
            let residual = test_matrix(shape[0], shape[1], dtype, seed.wrapping_add(1));
            let residual = (shift == 1).then(|| residual.view());
            let norm = RmsNorm { weight: &weight, epsilon: 1e-6, residual, dtype };
            let want = reference::rms_norm(x.view(), &norm)?;
            let got = device.rms_norm_cast(Wide { values: &x, dtype }, &norm, recipe)?;
            tally.cast(&definition::cast(&want.values.view().into(), recipe)?, &got.cast, kind);
            tally.floats(&want.rstd, &got.rstd, "the factors of rows", kind);
            if let Some(residual) = residual {
                let sum: Vec<f32> = x.iter().zip(&residual).map(|(x, r)| round_to(dtype, x + r)).collect();
                let got: Vec<f32> = got.sum.iter().flatten().copied().collect();
                tally.floats(&sum, &got, "the sum", kind);
            }
        }
        tally.finish(&format!("many rows of {name}"), "casts", found);
    }
    Ok(())
}
