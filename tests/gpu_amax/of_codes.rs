//! The same of codes that are read along columns and by tiles: the largest code alone among those that are one step below, all under one scale. Casts per
//! channel have a kernel of their own where the source's scales are FP32 and codes stay in their place.

use super::{hidden_sizes, place};
use crate::cast::*;
use crate::common::*;
use scaled_gemm::reference;
use scaled_gemm::{CastGroup, CastMatrix, CastRecipe, CastScales, CastScheme, CodeFormat, HostCastMatrix};

/// Columns of a matrix that is as long as rows of models.
const COLS: usize = 32;

/// Rows and columns of one in tiles.
const TILED: [usize; 2] = [1024, 1024];

/// The largest code where it is asked for, and the one below elsewhere; every other column negative.
fn codes(from: CastScheme, [rows, cols]: [usize; 2], is_largest: impl Fn(usize, usize) -> bool) -> HostCastMatrix {
    let bytes = from.format() == CodeFormat::E4M3;
    let (below, sign) = if bytes { (0x7D, 0x80) } else { (0x6, 0x8) };
    let code = |i: usize, j: usize| (below + u8::from(is_largest(i, j))) | if j.is_multiple_of(2) { 0 } else { sign };
    let all = |step: usize| (0..rows).flat_map(move |i| (0..cols).step_by(step).map(move |j| (i, j)));
    let codes = match bytes {
        true => all(1).map(|(i, j)| code(i, j)).collect(),
        false => all(2).map(|(i, j)| code(i, j) | code(i, j + 1) << 4).collect(),
    };
    let [r, c] = from.group().grid(rows, cols);
    HostCastMatrix::from_logical(from, rows, cols, codes, vec![1.0; r * c]).unwrap()
}

/// One in each column.
fn in_columns(from: CastScheme, hidden: usize, most: bool) -> HostCastMatrix {
    codes(from, [hidden, COLS], |i, j| most && i == place(j, hidden))
}

/// One in each tile, of tile t at place 4099 t of its own: in all bands, lanes and registers.
fn in_tiles(from: CastScheme, tile: CastGroup, most: bool) -> HostCastMatrix {
    let [r, c] = tile.extents().map(|extent| extent.size(0));
    codes(from, TILED, |i, j| most && i % r * c + j % c == 4099 * (i / r * (TILED[1] / c) + j / c) % (r * c))
}

/// FP32 scales of groups of columns, bytes, and scales of channels.
fn sources(format: CodeFormat) -> [CastScheme; 3] {
    let bytes = scheme(format, CastGroup::Group1x32).with_scales(CastScales::Ue8m0);
    [scheme(format, CastGroup::Group1x16), bytes, scheme(format, CastGroup::Group128x1)]
}

fn tiles() -> impl Iterator<Item = CastGroup> {
    CastGroup::ALL.into_iter().filter(|group| group.extents()[0].size(128) >= 32 && !group.is_per_channel())
}

/// A kernel that misses the largest code of a group writes another scale, and none but such groups have one. Needs no GPU.
#[test]
fn the_data_decide() {
    let differ = |[with, without]: [HostCastMatrix; 2], to: CastScheme| {
        let scales = |q: &HostCastMatrix| reference::cast_scales(&q.into(), CastRecipe::new(to)).unwrap();
        scales(&with).iter().zip(scales(&without)).filter(|(a, b)| **a != *b).count()
    };
    for (of, to) in FORMATS.into_iter().flat_map(|of| FORMATS.map(|to| (of, to))) {
        let from = sources(of)[0];
        for hidden in hidden_sizes().step_by(16) {
            for group in [CastGroup::Group32x1, CastGroup::Group128x1] {
                let both = [true, false].map(|most| in_columns(from, hidden, most));
                assert_eq!(differ(both, scheme(to, group)), COLS, "{hidden} {of} to {to} {group}");
            }
        }
        for group in tiles() {
            let both = [true, false].map(|most| in_tiles(from, group, most));
            let [r, c] = group.grid(TILED[0], TILED[1]);
            assert_eq!(differ(both, scheme(to, group)), r * c, "{of} to {to} {group}");
        }
    }
}

/// Per channel, as codes lie and transposed.
#[test]
fn columns_of_codes() {
    let Some(handle) = handle() else { return };
    for hidden in hidden_sizes() {
        for from in FORMATS.into_iter().flat_map(sources) {
            let q = in_columns(from, hidden, true);
            let there = CastMatrix::from_host(&handle, &q).unwrap();
            for group in [CastGroup::Group32x1, CastGroup::Group128x1] {
                for plain in FORMATS.map(|format| scheme(format, group)) {
                    for to in [plain, plain.transposed().unwrap()] {
                        let context = format!("{hidden} x {COLS} of {from}");
                        check_cast(&handle, (&there).into(), &(&q).into(), CastRecipe::new(to), &context);
                    }
                }
            }
        }
    }
}

/// Each tile.
#[test]
fn tiles_of_codes() {
    let Some(handle) = handle() else { return };
    for from in FORMATS.into_iter().flat_map(sources) {
        for group in tiles() {
            let q = in_tiles(from, group, true);
            let there = CastMatrix::from_host(&handle, &q).unwrap();
            for to in FORMATS.map(|format| CastRecipe::new(scheme(format, group))) {
                check_cast(&handle, (&there).into(), &(&q).into(), to, &format!("one place of a tile of {from}"));
            }
        }
    }
}
