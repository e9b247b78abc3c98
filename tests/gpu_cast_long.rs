//! Casts of matrices whose last elements are beyond 2^31 and 2^32, up to and beyond what kernels take as one row: the same rows again and again, whose codes and scales are those of these rows alone (which
//! other suites compare with the reference). They come again after no power of two of bytes, so that what is read, or written, at a place that lost its upper bits is another's. And rows so long that
//! the places of their block scales have more than 32 bits.
#![cfg(feature = "cuda")]

#[path = "common/cast.rs"]
mod cast;
mod common;

use std::ops::Range;
use std::sync::{Mutex, MutexGuard, PoisonError};

use cast::*;
use common::*;
use scaled_gemm::{
    CastGroup, CastMatrix, CastRecipe, CastScales, CastScheme, CastSource, CodeFormat, DType, DeviceBuffer,
    DeviceBytes, Handle, MatMut, MatRef, QuantMatrix, QuantizeTo, Recipe, Scheme, SourceActivation, SwigluSource,
};

/// Rows that come again and again: whole groups, whatever they are, and as many of 128 rows as scales by columns are padded to.
const SOME: usize = 1536;
const COLS: usize = 8192;
/// Below 2^31 elements, which are still taken as one row where that can be, a little more, and more than 2^32.
const TIMES: [usize; 3] = [170, 171, 342];
/// GiB that a test takes at the most, one at a time.
const FREE: usize = 32;
static TURN: Mutex<()> = Mutex::new(());

fn handle_with_memory() -> Option<(Handle, MutexGuard<'static, ()>)> {
    let handle = handle()?;
    let turn = TURN.lock().unwrap_or_else(PoisonError::into_inner);
    has_free(&handle, FREE).then_some((handle, turn))
}

/// What is looked at: the beginning, where a byte's place or an element's passes a power of two, and the end.
fn windows(bytes: usize) -> impl Iterator<Item = Range<usize>> {
    const WIDE: usize = 16 << 20;
    let middles = [1 << 30, 1 << 31, 1 << 32, 1 << 33];
    let starts = [0, bytes.saturating_sub(WIDE)].into_iter().chain(middles.map(|middle| middle - WIDE / 2));
    starts.filter(move |start| *start < bytes).map(move |start| start..(start + WIDE).min(bytes))
}

/// The first byte that is another than in `some`, which comes as often as it takes in each of `outer` pieces.
fn differs(handle: &Handle, all: &DeviceBytes<'_>, some: &[u8], outer: usize) -> Option<usize> {
    let (piece, short) = (all.len() / outer, some.len() / outer);
    assert!(piece > short && piece.is_multiple_of(short) && all.len().is_multiple_of(outer));
    windows(all.len()).find_map(|window| {
        let found = handle.read_bytes(&all.part(window.clone()).unwrap()).unwrap();
        let mut at = window.start;
        while at < window.end {
            let (from, inside) = (at / piece * short + at % piece % short, at % piece % short);
            let run = (short - inside).min(window.end - at);
            let part = &found[at - window.start..][..run];
            if part != &some[from..from + run] {
                return part.iter().zip(&some[from..]).position(|(a, b)| a != b).map(|i| at + i);
            }
            at += run;
        }
        None
    })
}

fn assert_repeats(handle: &Handle, all: &CastMatrix, some: &CastMatrix, context: &str) {
    let scheme = all.scheme();
    let [_, across] = scheme.group().grid(some.rows(), some.cols());
    let of_scales = match scheme.scales() {
        CastScales::RowMajor => 1,
        CastScales::ColumnMajor => across,
        CastScales::Ue8m0 => across.div_ceil(4),
    };
    let of_codes = if scheme.is_transposed() { some.cols() } else { 1 };
    for (what, all, some, outer) in
        [("codes", all.codes(), some.codes(), of_codes), ("scales", all.scales(), some.scales(), of_scales)]
    {
        let some = handle.read_bytes(&some).unwrap();
        assert!(some.iter().any(|byte| *byte != some[0]), "{context}: {what} of {scheme} are all one");
        assert_eq!(differs(handle, &all, &some, outer), None, "{context}: the first byte of the {what} of {scheme}");
    }
}

/// BF16 rows, and the same `times` as often.
fn rows(handle: &Handle, seed: u64, times: usize) -> [DeviceBuffer; 2] {
    let x = of_kind(&mut Noise::new(seed), "outliers", SOME, COLS, DType::Bf16);
    let bytes = bytes_of(DType::Bf16, &x);
    [handle.upload(&bytes.repeat(times)).unwrap(), handle.upload(&bytes).unwrap()]
}

fn of(data: &DeviceBuffer, rows: usize) -> MatRef<'_> {
    MatRef::new(data, DType::Bf16, rows, COLS).unwrap()
}

fn made_of(format: CodeFormat) -> Vec<CastScheme> {
    let plain = |group, scales| scheme(format, group).with_scales(scales);
    vec![
        plain(CastGroup::Group1x32, CastScales::RowMajor),
        plain(CastGroup::Group1x128, CastScales::ColumnMajor),
        plain(CastGroup::Row, CastScales::RowMajor),
        plain(CastGroup::Tile128x128, CastScales::Ue8m0),
        plain(CastGroup::Group128x1, CastScales::RowMajor),
        plain(CastGroup::Group32x1, CastScales::RowMajor).transposed().unwrap(),
    ]
}

#[test]
fn plain_numbers_and_back() {
    let Some((handle, _turn)) = handle_with_memory() else { return };
    for (turn, times) in TIMES.into_iter().enumerate() {
        let [all, some] = rows(&handle, 71, times);
        let (all, some) = (of(&all, times * SOME), of(&some, SOME));
        for (i, scheme) in made_of(CodeFormat::E4M3).into_iter().chain(made_of(CodeFormat::E2M1)).enumerate() {
            // Each with two of the three, the first with all.
            if i > 0 && (i + turn) % 3 == 0 {
                continue;
            }
            let recipe = CastRecipe::new(scheme);
            let [long, short] = [&all, &some].map(|x| handle.cast(x, recipe).unwrap());
            assert_repeats(&handle, &long, &short, &format!("{times} times"));
            let [long, short] = [&long, &short].map(|cast| {
                let mut y = handle.alloc(cast.rows() * COLS * 2).unwrap();
                let mut to = MatMut::new(&mut y, DType::Bf16, cast.rows(), COLS).unwrap();
                handle.cast_back_into(cast, &mut to).unwrap();
                y
            });
            let short = handle.read_bytes(&short.view()).unwrap();
            assert_eq!(differs(&handle, &long.view(), &short, 1), None, "{scheme}, {times} times, cast back");
        }
    }
}

/// Codes of one cast to another: by thresholds, which blocks that stay look up, by each number, and without loss.
#[test]
fn codes() {
    let Some((handle, _turn)) = handle_with_memory() else { return };
    use CastGroup::{Group1x16, Group1x32, Group1x128, Group128x1, Tile128x128};
    for times in TIMES {
        let [all, some] = rows(&handle, 73, times);
        let (all, some) = (of(&all, times * SOME), of(&some, SOME));
        let recipe = CastRecipe::new(scheme(CodeFormat::E4M3, Group1x128));
        let [long, short] = [&all, &some].map(|x| handle.cast(x, recipe).unwrap());
        for group in [Group1x16, Group1x32, Group1x128, Tile128x128, Group128x1] {
            if times == TIMES[2] && group == Group1x32 {
                continue;
            }
            let recipe = CastRecipe::new(scheme(CodeFormat::E2M1, group));
            let [long, short] = [&long, &short].map(|x| handle.cast(CastSource::from(x), recipe).unwrap());
            assert_repeats(&handle, &long, &short, &format!("e4m3 1x128, {times} times"));
            let recipe = CastRecipe::new(scheme(CodeFormat::E4M3, Group1x32));
            let [long, short] = [&long, &short].map(|x| handle.cast(CastSource::from(x), recipe).unwrap());
            assert_repeats(&handle, &long, &short, &format!("e2m1 {group}, {times} times"));
        }
        let from = scheme(CodeFormat::E2M1, Group1x32).with_scales(CastScales::Ue8m0);
        let to = scheme(CodeFormat::E4M3, Group1x128).with_scales(CastScales::Ue8m0);
        let [long, short] = [&all, &some].map(|x| {
            let q = handle.cast(x, CastRecipe::new(from)).unwrap();
            let mut wide = poisoned_cast(&handle, to, q.rows(), COLS);
            handle.fp4_to_fp8_into(&q, &mut wide, None).unwrap();
            wide
        });
        assert_repeats(&handle, &long, &short, &format!("without loss, {times} times"));
    }
}

/// Tiles and channels of more than 65535 rows of tiles, where columns of the grid begin anew: twice, in so odd a number of them that there are blocks past the last, and that rows come again in none that is at the same place.
#[test]
fn more_rows_of_tiles_than_a_grid_has() {
    let Some((handle, _turn)) = handle_with_memory() else { return };
    use CastGroup::{Group1x64, Group32x1, Group128x1, Tile32x32, Tile128x128};
    const SOME: usize = 13 * 128;
    const MANY: usize = 5043 * SOME;
    const WIDE: usize = 192;
    let x = bytes_of(DType::Bf16, &of_kind(&mut Noise::new(79), "outliers", SOME, WIDE, DType::Bf16));
    let (all, some) = (handle.upload(&x.repeat(MANY / SOME)).unwrap(), handle.upload(&x).unwrap());
    let of = |data, rows| MatRef::new(data, DType::Bf16, rows, WIDE).unwrap();
    let (all, some) = (of(&all, MANY), of(&some, SOME));
    let made = |format| {
        let plain = [Tile32x32, Tile128x128, Group32x1, Group128x1].map(|group| scheme(format, group));
        plain.into_iter().chain([scheme(format, Group128x1).transposed().unwrap()])
    };
    for to in made(CodeFormat::E4M3).chain(made(CodeFormat::E2M1)) {
        let [long, short] = [&all, &some].map(|x| handle.cast(x, CastRecipe::new(to)).unwrap());
        assert_repeats(&handle, &long, &short, &format!("{to} of numbers"));
    }
    for from in [CodeFormat::E4M3, CodeFormat::E2M1] {
        let recipe = CastRecipe::new(scheme(from, Group1x64));
        let [all, some] = [&all, &some].map(|x| handle.cast(x, recipe).unwrap());
        for to in made(CodeFormat::E4M3).chain(made(CodeFormat::E2M1)) {
            let [long, short] = [&all, &some].map(|x| handle.cast(CastSource::from(x), CastRecipe::new(to)).unwrap());
            assert_repeats(&handle, &long, &short, &format!("{to} of {from:?}"));
        }
    }
    for to in [Tile128x128, Group128x1].map(|group| scheme(CodeFormat::E4M3, group)) {
        let [long, short] =
            [&all, &some].map(|x| handle.cast(SwigluSource::new(x).unwrap(), CastRecipe::new(to)).unwrap());
        assert_repeats(&handle, &long, &short, &format!("{to} of SwiGLU"));
    }
}

#[test]
fn what_is_computed_before() {
    let Some((handle, _turn)) = handle_with_memory() else { return };
    for times in TIMES {
        let [all, some] = rows(&handle, 79, times);
        let (all, some) = (of(&all, times * SOME), of(&some, SOME));
        for group in [CastGroup::Group1x128, CastGroup::Group128x1] {
            let recipe = CastRecipe::new(scheme(CodeFormat::E4M3, group));
            let gated = [&all, &some].map(|x| handle.cast(SwigluSource::new(x).unwrap(), recipe).unwrap());
            assert_repeats(&handle, &gated[0], &gated[1], &format!("swiglu, {times} times"));
            let one = [&all, &some].map(|x| CastSource::activated(x, SourceActivation::Silu));
            let [long, short] = one.map(|source| handle.cast(source, recipe).unwrap());
            assert_repeats(&handle, &long, &short, &format!("silu, {times} times"));
        }
    }
}

/// One row of 2^29 + 128 columns, all zeros but for the last 64: their block scales lie 2^32 bytes behind others, which they must leave alone.
#[test]
fn block_scales_beyond_32_bits() {
    let Some((handle, _turn)) = handle_with_memory() else { return };
    let (cols, last) = ((1 << 29) + 128, 64);
    let x = of_kind(&mut Noise::new(83), "normal", 1, last, DType::Bf16);
    let end = bytes_of(DType::Bf16, &x);
    let mut row = vec![0u8; cols * 2];
    row[(cols - last) * 2..].copy_from_slice(&end);
    let (row, end) = (handle.upload(&row).unwrap(), handle.upload(&end).unwrap());
    let matrix = |data, cols| MatRef::new(data, DType::Bf16, 1, cols).unwrap();
    let (long, short) = (matrix(&row, cols), matrix(&end, last));
    let recipe = Recipe::new(Scheme::Nvfp4Row);
    let plain = |x: &MatRef<'_>, q: &mut QuantMatrix| handle.quantize_into(x, recipe, QuantizeTo::Plain(q)).unwrap();
    let silu = |x: &MatRef<'_>, q: &mut QuantMatrix| {
        handle.quantize_source_into(CastSource::activated(x, SourceActivation::Silu), recipe, q).unwrap();
    };
    for (name, quantize) in [("plain", &plain as &dyn Fn(&MatRef<'_>, &mut QuantMatrix)), ("silu", &silu)] {
        let [all, alone] = [&long, &short].map(|x| {
            let mut q = QuantMatrix::zeros(&handle, Scheme::Nvfp4Row, 1, x.cols()).unwrap();
            quantize(x, &mut q);
            q
        });
        // Four blocks of a row lie together, those of the next four 512 bytes further.
        let (first, at) = (cols - last, (cols - last) / 64 * 512);
        assert!(at >= 1 << 32);
        let want = handle.read_bytes(&alone.block_scales()).unwrap();
        let found = |at| handle.read_bytes(&all.block_scales().part(at..at + 4).unwrap()).unwrap();
        assert!(want[..4].iter().all(|scale| *scale != 0), "{name}: {:?}", &want[..4]);
        assert_eq!(found(at), want[..4], "{name}: the last blocks' scales");
        assert!(found(at - (1 << 32)) != want[..4], "{name}: other blocks have the last ones' scales");
        let [codes, alone_codes] = [&all, &alone].map(|q| handle.read_bytes(&q.codes()).unwrap());
        assert!(codes[first / 2..] == alone_codes && codes[..first / 2].iter().all(|pair| *pair == 0), "{name}: codes");
        let scales = [&all, &alone].map(|q| handle.read_bytes(&q.scales()).unwrap());
        assert_eq!(scales[0][..4], scales[1][..4], "{name}");
    }
}
