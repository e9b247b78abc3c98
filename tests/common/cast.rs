//! What the suites of casts share: schemes, data, targets that no cast has written, and the comparison with the reference, padding
//! included.
//!
//! Not a module of `common`: the other suites compile without it.
#![allow(dead_code)]

use crate::common::{Noise, round_to};
use ndarray::Array2;
use scaled_gemm::reference::{self, CastInput};
use scaled_gemm::{
    CastGroup, CastMatrix, CastRecipe, CastScales, CastScheme, CastSource, CodeFormat, DType, Handle, HostCastMatrix,
};

pub const INPUTS: [DType; 3] = [DType::Bf16, DType::F16, DType::F32];

/// A target that no cast has written: codes and scales are wrong, padding is zero.
pub fn poisoned_cast(handle: &Handle, scheme: CastScheme, rows: usize, cols: usize) -> CastMatrix {
    let [r, c] = scheme.group().grid(rows, cols);
    let codes = vec![0xA5; scheme.code_bytes(rows, cols)];
    let host = HostCastMatrix::from_logical(scheme, rows, cols, codes, vec![1024.0; r * c]).unwrap();
    CastMatrix::from_host(handle, &host).unwrap()
}

/// Panics with the first difference, if a byte of codes or scales, padding included, is not that of the host matrix.
pub fn assert_cast(handle: &Handle, got: &CastMatrix, want: &HostCastMatrix, context: &str) {
    let (codes, scales) = (handle.read_bytes(&got.codes()).unwrap(), handle.read_bytes(&got.scales()).unwrap());
    let first = |a: &[u8], b: &[u8]| (a != b).then(|| (0..b.len()).find(|i| a[*i] != b[*i])).flatten();
    let right = want.device_scales();
    assert_eq!((codes.len(), scales.len()), (want.codes().len(), right.len()), "{context}");
    if let Some(at) = first(&codes, want.codes()) {
        panic!("{context}: code byte {at} is {:#04x}, must be {:#04x}", codes[at], want.codes()[at]);
    }
    if let Some(at) = first(&scales, &right) {
        panic!("{context}: scale byte {at} is {:#04x}, must be {:#04x}", scales[at], right[at]);
    }
}

/// Panics unless more than this share of what the codes stand for is finite, so that a wrong scale would show.
pub fn assert_finite(q: &HostCastMatrix, share: f32) {
    let values = reference::cast_back(q, DType::F32);
    let finite = values.iter().filter(|v| v.is_finite()).count();
    assert!(
        values.is_empty() || finite as f32 > share * values.len() as f32,
        "{finite} of {} are finite",
        values.len()
    );
}

/// The same with every other NaN among E4M3 codes negative: 0xFF, which no cast writes.
pub fn with_negative_nan(q: &HostCastMatrix) -> HostCastMatrix {
    let mut codes = q.codes().to_vec();
    if q.scheme().format() == CodeFormat::E4M3 {
        codes.iter_mut().filter(|code| **code == 0x7F).step_by(2).for_each(|code| *code = 0xFF);
    }
    HostCastMatrix::from_logical(q.scheme(), q.rows(), q.cols(), codes, q.scales().to_vec()).unwrap()
}

/// The same with rows of groups of many sizes, so that no other's scale will do, nor the floor of E4M3.
pub fn of_many_sizes(mut x: Array2<f32>, group: CastGroup) -> Array2<f32> {
    let height = group.extents()[0].size(x.nrows());
    for (i, mut row) in x.rows_mut().into_iter().enumerate() {
        row.mapv_inplace(|v| v * 2f32.powi(-((i / height % 13) as i32)));
    }
    x
}

pub const FORMATS: [CodeFormat; 2] = [CodeFormat::E4M3, CodeFormat::E2M1];

pub fn scheme(format: CodeFormat, group: CastGroup) -> CastScheme {
    CastScheme::new(format, group).unwrap()
}

/// Every scheme there is; transposed ones where the rows allow them.
pub fn schemes(rows: usize) -> Vec<CastScheme> {
    let mut all = Vec::new();
    for format in FORMATS {
        for group in CastGroup::ALL {
            for scales in CastScales::ALL {
                let plain = scheme(format, group).with_scales(scales);
                all.push(plain);
                if group.is_per_channel() && rows.is_multiple_of(16) {
                    all.push(plain.transposed().unwrap());
                }
            }
        }
    }
    all
}

/// Numbers of a kind, in groups of different sizes.
pub fn of_kind(rng: &mut Noise, kind: &str, rows: usize, cols: usize, dtype: DType) -> Array2<f32> {
    let specials = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, 0.0, -0.0, f32::from_bits(1), -1e-40, 3.3e38, -65504.0];
    let mut draw = |i: usize, j: usize| match kind {
        "zeros" => {
            if (i + j).is_multiple_of(2) {
                0.0
            } else {
                -0.0
            }
        }
        "subnormal" => rng.normal() * f32::from_bits(1 + (rng.bits() % 0x80_0000) as u32),
        "normal" => rng.normal(),
        "tiny" => rng.normal() * 1e-30,
        "huge" => rng.normal() * 1e37,
        "negative" => -rng.normal().abs() - 1e-3,
        "powers" => (if rng.bits().is_multiple_of(2) { 1.0 } else { -1.0 }) * ((rng.bits() % 40) as f32 - 20.0).exp2(),
        // Halves of the steps of both formats where the largest of a group is 448 or 6 times a power of two.
        "ties" => match (i * 7 + j) % 16 {
            0 => 448.0,
            1 => 6.0 * 64.0,
            k => (rng.bits() % 64) as f32 * 0.25 * (k as f32 - 8.0),
        },
        // Not so many that a group has nothing else.
        "nan" => {
            if rng.bits().is_multiple_of(37) {
                f32::NAN
            } else {
                rng.normal() * 3.0
            }
        }
        "outliers" => rng.normal() * if rng.bits().is_multiple_of(97) { 1e4 } else { 1.0 },
        _ => match rng.bits() % 61 {
            k @ 0..=8 => specials[k as usize],
            _ => rng.normal(),
        },
    };
    Array2::from_shape_fn((rows, cols), |(i, j)| round_to(dtype, draw(i, j)))
}

/// The same of so many rows that drawing them all would take longer than the casts: 127 of them again and again, so that no two tiles are alike.
pub fn tall_of_kind(rng: &mut Noise, kind: &str, rows: usize, cols: usize, dtype: DType) -> Array2<f32> {
    const DRAWN: usize = 127;
    let drawn = of_kind(rng, kind, rows.min(DRAWN), cols, dtype);
    if rows <= DRAWN { drawn } else { Array2::from_shape_fn((rows, cols), |(i, j)| drawn[(i % DRAWN, j)]) }
}

/// Rows, and columns, of the shapes that every cast and producer meets.
pub const SHAPE_ROWS: [usize; 5] = [0, 1, 127, 129, 4001];
pub const SHAPE_COLS: [usize; 4] = [64, 576, 7168, 18944];

/// Every pair of these.
pub fn all_shapes() -> impl Iterator<Item = (usize, usize)> {
    SHAPE_ROWS.into_iter().flat_map(|rows| SHAPE_COLS.map(|cols| (rows, cols)))
}

/// The kinds of data of [`of_kind`] that every shape is met with.
pub const KINDS: [&str; 8] = ["normal", "outliers", "subnormal", "zeros", "nan", "specials", "powers", "ties"];

/// Kinds and types of data for a matrix of so many elements: each with each; each kind with one type where that would take long; and few where it
/// would take longer still, others for each `turn`.
pub fn kinds_and_types(elements: usize, turn: usize) -> Vec<(&'static str, DType)> {
    let all = KINDS.into_iter().enumerate().flat_map(|(k, kind)| {
        let types = if elements < 1 << 20 { 0..3 } else { k + turn..k + turn + 1 };
        types.map(move |at| (kind, INPUTS[at % 3]))
    });
    let most = if elements < 1 << 24 { usize::MAX } else { ((3 << 26) / elements).max(1) };
    let mut all: Vec<_> = all.collect();
    let count = all.len();
    all.rotate_left(turn * 3 % count);
    all.truncate(most);
    all
}

/// Exact and powers of two of every scheme that rows allow.
pub fn recipes_of(rows: usize) -> Vec<CastRecipe> {
    let kinds = |scheme: CastScheme| {
        let exact = CastRecipe::new(scheme);
        if scheme.scales() == CastScales::Ue8m0 { vec![exact] } else { vec![exact, exact.power_of_two()] }
    };
    schemes(rows).into_iter().flat_map(kinds).collect()
}

/// A few of a list at a time, so that all of it are met in the end: others at each call.
#[derive(Default)]
pub struct InTurns(usize);

impl InTurns {
    /// So many of a list whose length is no multiple of 7, each 7 places behind the one before, and one more after all of them.
    pub fn some<T: Copy>(&mut self, all: &[T], count: usize) -> Vec<T> {
        assert!(!all.len().is_multiple_of(7), "{} are met in part", all.len());
        let from = self.0;
        self.0 += count;
        (from..self.0).map(|at| all[(at * 7 + at / all.len()) % all.len()]).collect()
    }
}

/// Casts by a recipe, and compares every byte.
pub fn check_cast(handle: &Handle, source: CastSource<'_>, input: &CastInput<'_>, recipe: CastRecipe, context: &str) {
    let context = format!("{context} to {} {:?}", recipe.scheme(), recipe.numbers());
    let want = reference::cast(input, recipe).unwrap();
    let mut got = poisoned_cast(handle, recipe.scheme(), source.rows(), source.cols());
    handle.cast_into(source, recipe, &mut got).unwrap();
    assert_cast(handle, &got, &want, &context);
}

/// Codes by scales that are there, and scales alone.
pub fn check_parts_of<'a>(
    handle: &Handle,
    rng: &mut Noise,
    source: &dyn Fn() -> CastSource<'a>,
    input: &CastInput<'_>,
    schemes: &[CastScheme],
    context: &str,
) {
    let (rows, cols) = (input.rows(), input.cols());
    for &scheme in schemes {
        let context = format!("{context} to {scheme}");
        let [r, c] = scheme.group().grid(rows, cols);
        let bytes = scheme.scales() == CastScales::Ue8m0;
        let given: Vec<f32> = (0..r * c)
            .map(|_| (rng.uniform() * 8.0 - 6.0).exp2())
            .map(|s| if bytes { s.log2().ceil().exp2() } else { s })
            .collect();
        let want = reference::cast_with_scales(input, scheme, &given).unwrap();
        let mut got = poisoned_cast(handle, scheme, rows, cols);
        handle.write(&mut got.scales_mut(), &want.device_scales()).unwrap();
        handle.cast_with_scales_into(source(), &mut got).unwrap();
        assert_cast(handle, &got, &want, &format!("{context}, given"));

        let recipe = CastRecipe::new(scheme);
        let scales = reference::cast_scales(input, recipe).unwrap();
        let codes = vec![0xA5; scheme.code_bytes(rows, cols)];
        let want = HostCastMatrix::from_logical(scheme, rows, cols, codes, scales).unwrap();
        let mut got = poisoned_cast(handle, scheme, rows, cols);
        handle.cast_scales_into(source(), recipe, &mut got).unwrap();
        assert_cast(handle, &got, &want, &format!("{context}, scales alone"));
    }
}
