//! Codes of every scheme as a source: to every recipe of every shape, and of every kind of data; and back to numbers.
//!
//! Every source with every target would take hours: each is met in each shape and with each kind, in pairs that differ. Tall matrices are of bands, so that the reference
//! of one band is that of all.

use std::collections::HashSet;

use crate::cast::*;
use crate::common::*;
use ndarray::{Array2, ArrayView2, s};
use scaled_gemm::reference;
use scaled_gemm::{
    CastGroup, CastMatrix, CastRecipe, CastScales, CastScheme, CodeFormat, DType, DeviceBuffer, Handle, HostCastMatrix,
    MatMut,
};

/// Rows of a band: of as many whole groups as there are.
const BAND: usize = 128;

/// Columns by which a band is turned against the one above: as many whole groups, too.
const TURN: usize = 128;

/// A matrix with more elements is one of bands.
const WHOLE: usize = 1 << 22;

fn turned<T: Copy>(row: &[T], by: usize) -> impl Iterator<Item = T> + '_ {
    row[by..].iter().chain(&row[..by]).copied()
}

/// So many rows: the first part again and again, each time turned by so many columns more, and the second one behind all whole bands. Groups are those of the parts at other
/// places, and no band lies as another. Of one part alone: itself.
fn whole(parts: &[HostCastMatrix], rows: usize) -> HostCastMatrix {
    let [band, end] = parts else { return parts[0].clone() };
    let (scheme, cols) = (band.scheme(), band.cols());
    assert!(band.rows() == BAND && end.rows() == rows % BAND && cols.is_multiple_of(TURN) && !scheme.is_transposed());
    let [_, width] = scheme.group().extents();
    let [r, groups] = scheme.group().grid(rows, cols);
    let (mut codes, mut scales) = (Vec::with_capacity(scheme.code_bytes(rows, cols)), Vec::with_capacity(r * groups));
    for (at, first) in (0..rows).step_by(BAND).enumerate() {
        let (part, by) = (if rows - first < BAND { end } else { band }, at * TURN % cols);
        for row in part.codes().chunks(scheme.code_bytes(1, cols)) {
            codes.extend(turned(row, scheme.code_bytes(1, by)));
        }
        part.scales().chunks(groups).for_each(|row| scales.extend(turned(row, by / width.size(cols))));
    }
    HostCastMatrix::from_logical(scheme, rows, cols, codes, scales).unwrap()
}

/// Rows of the parts of a matrix, so that [`whole`] makes it of them.
fn parts_of(rows: usize, cols: usize) -> Vec<usize> {
    if rows * cols > WHOLE { vec![BAND, rows % BAND] } else { vec![rows] }
}

/// Codes of a scheme whose values `fl(code * scale)` are of a kind of [`KINDS`]: `x`, numbers of that kind, cast; or codes and scales that no cast writes of them.
fn codes_of_kind(rng: &mut Noise, kind: &str, from: CastScheme, x: ArrayView2<'_, f32>, turn: usize) -> HostCastMatrix {
    let (rows, cols) = x.dim();
    let [r, c] = from.group().grid(rows, cols);
    let (e4m3, bytes) = (from.format() == CodeFormat::E4M3, from.scales() == CastScales::Ue8m0);
    let cast = |x: ArrayView2<'_, f32>| {
        let exact = CastRecipe::new(from);
        let recipe = if turn.is_multiple_of(3) { exact.power_of_two() } else { exact };
        reference::cast(&x.into(), recipe).unwrap()
    };
    let with =
        |codes: Vec<u8>, scales: Vec<f32>| HostCastMatrix::from_logical(from, rows, cols, codes, scales).unwrap();
    let mut drawn = |of: &dyn Fn(u8) -> u8| -> Vec<u8> {
        let words = from.code_bytes(rows, cols).div_ceil(8);
        let mut codes: Vec<u8> = (0..words).flat_map(|_| rng.bits().to_le_bytes()).map(of).collect();
        codes.truncate(from.code_bytes(rows, cols));
        codes
    };
    match kind {
        // Any codes but NaN under scales of zero, which no byte is; or zeros under any.
        "zeros" if !bytes && turn.is_multiple_of(2) => with(drawn(&|noise| noise & 0xFE), vec![0.0; r * c]),
        "zeros" => {
            let codes = drawn(&|noise| noise & if e4m3 { 0x80 } else { 0x88 });
            with(codes, (0..r * c).map(|at| 2f32.powi(at as i32 % 40 - 20)).collect())
        }
        // Codes below 1 or 2, by the least scales.
        "subnormal" => {
            let codes = drawn(&|noise| if e4m3 { ((noise & 0x7F) % 0x38) | (noise & 0x80) } else { noise & 0xBB });
            let least = |at: usize| f32::from_bits(1 + (at as u32).wrapping_mul(0x9E37_79B9) % 0x40_0000);
            with(codes, (0..r * c).map(|at| if bytes { 2f32.powi(-127) } else { least(at) }).collect())
        }
        // Some groups beyond all numbers: by their scale, of bytes by the largest.
        "specials" => {
            let q = cast(x.mapv(|v| if v.is_finite() { v.clamp(-4.0, 4.0) } else { 1.0 }).view());
            let beyond = if bytes { 2f32.powi(127) } else { f32::INFINITY };
            let mut scales = q.scales().to_vec();
            scales.iter_mut().skip(3).step_by(7).for_each(|scale| *scale = beyond);
            with(q.codes().to_vec(), scales)
        }
        // Codes of six sizes by scales of few digits: products that lie between two codes.
        "ties" => {
            let codes = drawn(&|noise| if e4m3 { (0x50 + (noise & 0x7F) % 0x2F) | (noise & 0x80) } else { noise });
            let digits = |at: usize| if bytes { 1.0 } else { [1.0, 1.5, 1.25, 1.75][at % 4] };
            with(codes, (0..r * c).map(|at| digits(at) * 2f32.powi(at as i32 % 3 - 1)).collect())
        }
        _ => with_negative_nan(&cast(x)),
    }
}

/// Codes on both sides, and the parts of which they are.
struct Coded {
    parts: Vec<HostCastMatrix>,
    rows: usize,
    there: CastMatrix,
}

impl Coded {
    fn new(handle: &Handle, rng: &mut Noise, kind: &str, from: CastScheme, x: &Parts, turn: usize) -> Self {
        let of = |x: &Array2<f32>| codes_of_kind(rng, kind, from, x.view(), turn);
        let parts: Vec<_> = x.parts.iter().map(of).collect();
        let there = CastMatrix::from_host(handle, &whole(&parts, x.rows)).unwrap();
        Self { parts, rows: x.rows, there }
    }

    /// Casts them, and compares every byte; where `poison` lies codes are wrong before.
    fn check(&self, handle: &Handle, to: CastRecipe, poison: &[u8], context: &str) {
        let parts: Vec<_> = self.parts.iter().map(|part| reference::cast(&part.into(), to).unwrap()).collect();
        self.compare(handle, to, &parts, poison, context);
    }

    /// The same with what the parts are to become.
    fn compare(&self, handle: &Handle, to: CastRecipe, parts: &[HostCastMatrix], poison: &[u8], context: &str) {
        let (rows, cols) = (self.rows, self.there.cols());
        let mut got = CastMatrix::zeros(handle, to.scheme(), rows, cols).unwrap();
        handle.write(&mut got.codes_mut(), &poison[..to.scheme().code_bytes(rows, cols)]).unwrap();
        handle.cast_into(&self.there, to, &mut got).unwrap();
        let context = format!("{rows} x {cols} of {}, {context}, to {to:?}", self.there.scheme());
        assert_cast(handle, &got, &whole(parts, rows), &context);
    }
}

/// Numbers of a kind, of the parts of a matrix.
struct Parts {
    parts: Vec<Array2<f32>>,
    rows: usize,
}

/// Of each kind; of those that are drawn as codes the shape alone counts.
fn numbers(rng: &mut Noise, (rows, cols): (usize, usize)) -> [Parts; 8] {
    KINDS.map(|kind| {
        let drawn = if ["zeros", "subnormal", "ties"].contains(&kind) { "zeros" } else { kind };
        let part = |rows: usize| of_kind(rng, drawn, rows, cols, DType::F32);
        Parts { parts: parts_of(rows, cols).into_iter().map(part).collect(), rows }
    })
}

/// A recipe for numbers of a kind: under its own floor E4M3 has zeros alone of subnormal ones.
fn of_floor(kind: &str, to: CastRecipe) -> CastRecipe {
    if kind != "subnormal" { to } else { to.with_floor(to.scheme().format().max() * f32::MIN_POSITIVE).unwrap() }
}

/// Every source once and every target once, in pairs that differ from turn to turn; `kind_of` a source: a number of [`KINDS`].
fn each_source_and_target(
    handle: &Handle,
    rng: &mut Noise,
    (rows, cols): (usize, usize),
    targets: &[CastRecipe],
    turn: usize,
    kind_of: impl Fn(usize) -> usize,
) {
    let (sources, x) = (schemes(1), numbers(rng, (rows, cols)));
    let poison = vec![0xA5; rows * cols];
    assert!(!targets.len().is_multiple_of(7), "{} targets are met in part", targets.len());
    for (at, from) in sources.iter().enumerate() {
        let kind = kind_of(at);
        let q = Coded::new(handle, rng, KINDS[kind], *from, &x[kind], at + turn);
        // All of them, 7 places behind one another; as there are more targets than sources some sources have two.
        for place in (at..targets.len().max(at + 1)).step_by(sources.len()) {
            let to = of_floor(KINDS[kind], targets[(place * 7 + turn * 3) % targets.len()]);
            q.check(handle, to, &poison, KINDS[kind]);
        }
    }
}

const LARGEST: (usize, usize) = (4001, 18944);

#[test]
fn codes_to_codes_in_each_shape() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(920);
    for (turn, (rows, cols)) in all_shapes().enumerate().filter(|(_, shape)| *shape != LARGEST) {
        each_source_and_target(&handle, &mut rng, (rows, cols), &recipes_of(rows), turn, |at| (at + turn) % 8);
    }
}

#[test]
fn codes_to_codes_in_the_largest_shape() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(932);
    each_source_and_target(&handle, &mut rng, LARGEST, &recipes_of(LARGEST.0), 1, |at| at % 8);
}

/// Of few rows and of many, which other kernels cast.
#[test]
fn codes_to_codes_of_each_kind() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(933);
    for (rows, cols) in [(144, 576), (4 * handle.device().sm_count as usize + 5, 576)] {
        for kind in 0..KINDS.len() {
            each_source_and_target(&handle, &mut rng, (rows, cols), &recipes_of(rows), kind, |_| kind);
        }
    }
}

/// Per channel other kernels cast few tiles and many.
#[test]
fn codes_to_channels_of_few_and_many_tiles() {
    let Some(handle) = handle() else { return };
    let (mut rng, multiprocessors) = (Noise::new(935), handle.device().sm_count as usize);
    let cols = 5 * TURN;
    let of_tiles = |tiles: usize| (tiles / 5 + 1) * BAND + 44;
    let sources = schemes(1).into_iter().filter(|from| !from.group().is_per_channel());
    let sources: Vec<_> = sources.filter(|from| from.scales() != CastScales::Ue8m0).collect();
    let channels = recipes_of(1).into_iter().filter(|to| to.scheme().group().is_per_channel());
    let channels: Vec<_> = channels.collect();
    // All sources with all kinds, and all targets of both formats.
    let half = sources.len() / 2;
    assert!(sources[..half].iter().all(|from| from.format() == sources[0].format()));
    for tiles in [15, 2 * multiprocessors] {
        let rows = of_tiles(tiles);
        let (x, poison) = (numbers(&mut rng, (rows, cols)), vec![0xA5; rows * cols]);
        let mut met = HashSet::new();
        for at in 0..8 * sources.len() {
            let (kind, of_format) = (at % 8, (at + at / 8) % 2);
            let from = sources[of_format * half + (at / 16 + at % 8) % half];
            let target = (at * 7 + at / 16) % channels.len();
            let to = of_floor(KINDS[kind], channels[target]);
            let q = Coded::new(&handle, &mut rng, KINDS[kind], from, &x[kind], at);
            q.check(&handle, to, &poison, KINDS[kind]);
            met.insert((of_format, target));
        }
        assert_eq!(met.len(), 2 * channels.len(), "pairs of a format and a target");
    }
}

/// The same of columns and rows that cut tiles, under scales of all signs and none, to scales in every order; and by scales that are there, and scales alone.
#[test]
fn codes_to_channels_that_cut_tiles() {
    let Some(handle) = handle() else { return };
    let (mut rng, multiprocessors) = (Noise::new(936), handle.device().sm_count as usize);
    let channels = schemes(1).into_iter().filter(|to| to.group().is_per_channel());
    let channels: Vec<_> = channels.collect();
    let numbers = [1.0, -0.5, f32::NAN, 0.25, -1.0 / 3.0, -f32::NAN, -0.0, 0.7, f32::NEG_INFINITY, -1e-42];
    for (tiles, cols) in [(6, 272), (2 * multiprocessors + 1, 144)] {
        let across = usize::div_ceil(cols, 128);
        let rows = usize::div_ceil(tiles, across) * 128 - 84;
        let sources = [
            (CodeFormat::E4M3, CastGroup::Group1x16),
            (CodeFormat::E2M1, CastGroup::Group1x128),
            (CodeFormat::E4M3, CastGroup::Tile32x32),
            (CodeFormat::E2M1, CastGroup::Row),
        ];
        for (at, (format, group)) in sources.into_iter().enumerate() {
            let from = scheme(format, group).with_scales(CastScales::ColumnMajor);
            let [r, c] = group.grid(rows, cols);
            let mut of = |scale: &dyn Fn(&mut Noise) -> f32| {
                let scales = (0..r * c).map(|_| scale(&mut rng)).collect();
                let codes = (0..from.code_bytes(rows, cols)).map(|_| rng.bits() as u8).collect();
                HostCastMatrix::from_logical(from, rows, cols, codes, scales).unwrap()
            };
            let context = format!("{rows} x {cols} of {from}");
            let q = of(&|rng| numbers[rng.below(numbers.len())]);
            let there = CastMatrix::from_host(&handle, &q).unwrap();
            let values = reference::cast_back(&q, DType::F32);
            for &to in &channels {
                check_cast(&handle, (&there).into(), &values.view().into(), CastRecipe::new(to), &context);
            }
            let q = of(&|rng| rng.uniform() + 0.01);
            let there = CastMatrix::from_host(&handle, &q).unwrap();
            // All of both formats, a half of each source.
            let some: Vec<_> = channels.iter().skip(at / 2).step_by(2).copied().collect();
            check_parts_of(&handle, &mut rng, &|| (&there).into(), &(&q).into(), &some, &context);
        }
    }
}

/// Under finite scales of which some have a sign, are too large to be multiplied by 2^14, or are tiny, where no code is NaN: blocks of many tiles know of none of these in advance.
#[test]
fn codes_to_channels_under_any_finite_scale() {
    let Some(handle) = handle() else { return };
    let (mut rng, multiprocessors) = (Noise::new(937), handle.device().sm_count as usize);
    let cols = 5 * TURN;
    let channels: Vec<_> = recipes_of(1).into_iter().filter(|to| to.scheme().group().is_per_channel()).collect();
    for (context, numbers) in [
        ("scales with signs", &[1.0, -0.5, 0.25, -1.0 / 3.0, -0.0, 0.7][..]),
        ("a scale with a sign", &[1.0, 0.5, 0.25, 1.0 / 3.0, 0.7, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8, 0.9, 1.1, -1.2]),
        ("huge scales", &[1e34, 2e34, 1.5e35, 3e37, 1.0, 5e37]),
        ("tiny scales", &[1e-44, 1e-45, 3e-40, 2e-38, 0.0]),
    ] {
        for tiles in [5, 2 * multiprocessors] {
            let rows = (tiles / 5 + 1) * BAND + 44;
            let poison = vec![0xA5; rows * cols];
            for from in FORMATS.map(|format| scheme(format, CastGroup::Group1x16)) {
                let mut part = |rows: usize| {
                    let [r, c] = from.group().grid(rows, cols);
                    let scales = (0..r * c).map(|_| numbers[rng.below(numbers.len())]).collect();
                    let code = |noise: u64| match from.format() {
                        CodeFormat::E4M3 if noise & 0x7F == 0x7F => 0x7E,
                        _ => noise as u8,
                    };
                    let codes = (0..from.code_bytes(rows, cols)).map(|_| code(rng.bits())).collect();
                    HostCastMatrix::from_logical(from, rows, cols, codes, scales).unwrap()
                };
                let parts: Vec<_> = parts_of(rows, cols).into_iter().map(&mut part).collect();
                let there = CastMatrix::from_host(&handle, &whole(&parts, rows)).unwrap();
                // As numbers: the reference takes no codes whose scales have a sign.
                let values: Vec<_> = parts.iter().map(|part| reference::cast_back(part, DType::F32)).collect();
                let q = Coded { parts, rows, there };
                for &to in &channels {
                    let parts = values.iter().map(|x| reference::cast(&x.view().into(), to).unwrap());
                    q.compare(&handle, to, &parts.collect::<Vec<_>>(), &poison, context);
                }
            }
        }
    }
}

/// Transposed codes want rows that are a multiple of 16, as those shapes have not.
#[test]
fn codes_to_transposed_codes() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(934);
    let all: Vec<_> = recipes_of(16).into_iter().filter(|recipe| recipe.scheme().is_transposed()).collect();
    let (sources, mut turns) = (schemes(1), InTurns::default());
    let shapes = [16, 128, 4000].into_iter().flat_map(|rows| SHAPE_COLS.map(|cols| (rows, cols)));
    for (turn, (rows, cols)) in shapes.enumerate() {
        let poison = vec![0xA5; rows * cols];
        // The reference of all of it takes its time.
        let count = if rows * cols > WHOLE { 4 } else { all.len() };
        for (at, to) in turns.some(&all, count).into_iter().enumerate() {
            let (from, kind) = (sources[(turn * 20 + at) * 7 % sources.len()], KINDS[(at + turn) % 8]);
            let x = Parts { parts: vec![tall_of_kind(&mut rng, kind, rows, cols, DType::F32)], rows };
            Coded::new(&handle, &mut rng, kind, from, &x, at).check(&handle, to, &poison, kind);
        }
    }
}

/// Panics unless these are the numbers of codes of these parts; any NaN equals any NaN.
fn assert_back(got: &[u8], parts: &[HostCastMatrix], rows: usize, dtype: DType, context: &str) {
    let (cols, size) = (parts[0].cols(), dtype.bytes());
    let parts: Vec<_> = parts.iter().map(|part| reference::cast_back(part, dtype)).collect();
    let bytes: Vec<_> = parts.iter().map(|part| bytes_of(dtype, part)).collect();
    assert_eq!(got.len(), rows * cols * size, "{context}");
    for (i, got) in got.chunks(cols * size).enumerate() {
        let (part, row, by) = match parts.len() {
            1 => (0, i, 0),
            _ => (usize::from(i / BAND == rows / BAND), i % BAND, i / BAND * TURN % cols),
        };
        let want = &bytes[part][row * cols * size..][..cols * size];
        let (right, left) = got.split_at((cols - by) * size);
        if right != &want[by * size..] || left != &want[..by * size] {
            let want: Vec<f32> = turned(parts[part].row(row).to_slice().unwrap(), by).collect();
            assert_same_values(&values_of(dtype, got), &want, cols, &format!("row {i} of {context}"));
        }
    }
}

/// Casts back, and compares every number; where `poison` lies all are wrong before.
fn check_back(handle: &Handle, q: &Coded, dtype: DType, y: &mut DeviceBuffer, poison: &[u8], kind: &str) {
    let (rows, cols) = (q.rows, q.there.cols());
    let mut got = vec![0; rows * cols * dtype.bytes()];
    handle.write(&mut y.view_mut(), &poison[..got.len()]).unwrap();
    handle.cast_back_into(&q.there, &mut MatMut::new(&mut *y, dtype, rows, cols).unwrap()).unwrap();
    handle.read_into(&y.view(), &mut got).unwrap();
    let context = format!("{rows} x {cols} of {}, {kind}, to {dtype}", q.there.scheme());
    assert_back(&got, &q.parts, rows, dtype, &context);
}

/// Every scheme in every shape, types and kinds of data in turns.
#[test]
fn back_in_each_shape() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(923);
    let most = LARGEST.0 * LARGEST.1 * 4;
    let (poison, mut y) = (vec![0xFF; most], handle.alloc(most).unwrap());
    for (turn, (rows, cols)) in all_shapes().enumerate() {
        let x = numbers(&mut rng, (rows, cols));
        for (at, from) in schemes(rows).into_iter().enumerate() {
            let (kind, dtype) = ((at + turn) % 8, INPUTS[(at / 3 + at + turn) % 3]);
            let q = Coded::new(&handle, &mut rng, KINDS[kind], from, &x[kind], at + turn);
            check_back(&handle, &q, dtype, &mut y, &poison, KINDS[kind]);
        }
    }
}

/// Every scheme, transposed ones, too, of every kind to every type.
#[test]
fn back_of_each_kind() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(935);
    let (rows, cols) = (144, 576);
    let (poison, mut y) = (vec![0xFF; rows * cols * 4], handle.alloc(rows * cols * 4).unwrap());
    let x = numbers(&mut rng, (rows, cols));
    for (kind, x) in KINDS.into_iter().zip(&x) {
        for (at, from) in schemes(rows).into_iter().enumerate() {
            let q = Coded::new(&handle, &mut rng, kind, from, x, at);
            INPUTS.into_iter().for_each(|dtype| check_back(&handle, &q, dtype, &mut y, &poison, kind));
        }
    }
}

/// On the CPU: what is made of bands has the reference of the numbers that it is of.
#[test]
fn bands_have_the_reference_of_all() {
    let mut rng = Noise::new(936);
    let (rows, cols) = (2 * BAND + 44, 3 * TURN);
    let x = of_kind(&mut rng, "outliers", rows - BAND, cols, DType::F32);
    let (band, end) = (x.slice(s![..BAND, ..]), x.slice(s![BAND.., ..]));
    let all = Array2::from_shape_fn((rows, cols), |(i, j)| {
        let part = if i < 2 * BAND { band } else { end };
        part[(i % BAND, (j + i / BAND * TURN) % cols)]
    });
    for recipe in recipes_of(1) {
        let parts = [band, end].map(|x| reference::cast(&x.into(), recipe).unwrap());
        let q = reference::cast(&all.view().into(), recipe).unwrap();
        assert!(whole(&parts, rows) == q, "{recipe:?}");
        for dtype in INPUTS {
            let values = bytes_of(dtype, &reference::cast_back(&q, dtype));
            assert_back(&values, &parts, rows, dtype, &format!("{recipe:?}"));
        }
    }
}

/// On the CPU: the values of codes are of the kind that they are called.
#[test]
fn codes_are_of_their_kind() {
    let mut rng = Noise::new(937);
    let (rows, cols) = (160, 576);
    let x = numbers(&mut rng, (rows, cols));
    for (at, from) in schemes(1).into_iter().enumerate() {
        let mut values = |kind: &str| {
            let place = KINDS.iter().position(|one| *one == kind).unwrap();
            let q = codes_of_kind(&mut rng, kind, from, x[place].parts[0].view(), at);
            q.check_scales().unwrap();
            reference::cast_back(&q, DType::F32)
        };
        let mut share = |kind: &str, is: &dyn Fn(f32) -> bool| {
            values(kind).iter().filter(|v| is(**v)).count() as f32 / (rows * cols) as f32
        };
        assert_eq!(share("zeros", &|v| v == 0.0), 1.0, "{from}");
        assert_eq!(share("subnormal", &|v| v.abs() < f32::MIN_POSITIVE), 1.0, "{from}");
        assert!(share("subnormal", &|v| v != 0.0) > 0.5, "{from}");
        let nan = share("nan", &|v| v.is_nan());
        assert!(if from.format() == CodeFormat::E4M3 { nan > 0.01 && nan < 0.1 } else { nan == 0.0 }, "{from}: {nan}");
        let beyond = share("specials", &|v| !v.is_finite());
        assert!(beyond > 0.01 && beyond < 0.5, "{from}: {beyond}");
        for (kind, least) in [("normal", 0.5), ("outliers", 0.005), ("powers", 0.01), ("ties", 0.5)] {
            let found = share(kind, &|v| v.is_finite() && v != 0.0);
            assert!(found > least, "{from}: {kind}, {found}");
        }
        // As far from one code as from the next, by powers of two.
        let values = values("ties");
        let halves = |format: CodeFormat| {
            let to = CastRecipe::new(scheme(format, scaled_gemm::CastGroup::Tile32x32)).power_of_two();
            let q = reference::cast(&values.view().into(), to).unwrap();
            let digits = if format == CodeFormat::E4M3 { 4 } else { 2 };
            let is_half = |((i, j), v): ((usize, usize), &f32)| {
                let y = v / q.scale_at(i, j);
                let least = if format == CodeFormat::E4M3 { 2f32.powi(-6) } else { 1.0 };
                let step = 2f32.powi(y.abs().max(least).log2().floor() as i32 + 1 - digits);
                (y / step).fract().abs() == 0.5
            };
            values.indexed_iter().filter(|one| is_half(*one)).count() as f32 / (rows * cols) as f32
        };
        // Without digits of a scale no product has more than its code.
        let digits = from.scales() != CastScales::Ue8m0;
        let found = [CodeFormat::E2M1, CodeFormat::E4M3].map(halves);
        assert!(found[0] > 0.01 || !digits && from.format() == CodeFormat::E2M1, "{from}: {found:?}");
        assert!(found[1] > 0.01 || !digits, "{from}: {found:?}");
    }
}
