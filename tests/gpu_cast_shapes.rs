//! Casts over shapes and kinds of data, a few of all recipes at a time: of plain numbers and of codes, parts of casts, chosen rows, what products read, and casts
//! back. Up to 2^20 elements each shape meets each kind and type of data; larger ones are sampled (`kinds_and_types`): each kind with one type, and from 2^24 elements on
//! as many kinds as there is time for, others in each shape. Bytes equal the reference's. `gpu_producer_shapes` does the same of what is computed before a cast.
#![cfg(feature = "cuda")]

#[path = "common/cast.rs"]
mod cast;
mod common;
#[path = "gpu_cast_shapes/of_codes.rs"]
mod of_codes;
#[path = "common/quantize.rs"]
mod quantize;

use cast::*;
use common::*;
use quantize::Source;
use scaled_gemm::codec::decode_e8m0;
use scaled_gemm::reference::{self, CastInput};
use scaled_gemm::{
    CastGroup, CastMatrix, CastRecipe, CastScales, CastSource, CodeFormat, DType, HostCastMatrix, MatRef, Recipe,
    RowIndex, Scheme,
};

/// Each shape with the kinds and types of data that it meets, a few of all recipes at a time.
#[test]
fn plain() {
    let Some(handle) = handle() else { return };
    let (mut rng, mut turns) = (Noise::new(926), InTurns::default());
    for (turn, (rows, cols)) in all_shapes().enumerate() {
        for (kind, dtype) in kinds_and_types(rows * cols, turn) {
            let x = tall_of_kind(&mut rng, kind, rows, cols, dtype);
            let data = handle.upload(&bytes_of(dtype, &x)).unwrap();
            let matrix = MatRef::new(&data, dtype, rows, cols).unwrap();
            let context = format!("{kind}, {rows} x {cols} {dtype}");
            for recipe in turns.some(&recipes_of(rows), 3) {
                check_cast(&handle, (&matrix).into(), &x.view().into(), recipe, &context);
            }
        }
    }
}

/// Transposed codes want rows that are a multiple of 16, as none of those shapes has.
#[test]
fn transposed() {
    let Some(handle) = handle() else { return };
    let (mut rng, mut turns) = (Noise::new(927), InTurns::default());
    let all: Vec<_> = recipes_of(16).into_iter().filter(|recipe| recipe.scheme().is_transposed()).collect();
    let shapes = [16, 128, 4000].into_iter().flat_map(|rows| SHAPE_COLS.map(|cols| (rows, cols)));
    for (turn, (rows, cols)) in shapes.enumerate() {
        for (kind, dtype) in kinds_and_types(rows * cols, turn) {
            let x = tall_of_kind(&mut rng, kind, rows, cols, dtype);
            let data = handle.upload(&bytes_of(dtype, &x)).unwrap();
            let matrix = MatRef::new(&data, dtype, rows, cols).unwrap();
            let context = format!("{kind}, {rows} x {cols} {dtype}");
            for recipe in turns.some(&all, 2) {
                check_cast(&handle, (&matrix).into(), &x.view().into(), recipe, &context);
            }
        }
    }
}

/// Codes by given scales, scales alone, and rows that are chosen, of plain numbers and of codes.
#[test]
fn parts_and_chosen_rows() {
    let Some(handle) = handle() else { return };
    let (mut rng, mut turns) = (Noise::new(928), InTurns::default());
    let sources = recipes_of(1);
    for (turn, (rows, cols)) in all_shapes().enumerate() {
        let schemes = schemes(rows);
        // One kind and type of data for each of a few ways; one way where the matrix is large.
        let ways = if rows * cols > 1 << 22 { 1 } else { 4 };
        for way in 0..ways {
            let (kind, dtype) = (KINDS[(turn + 3 * way) % 8], INPUTS[(turn + way) % 3]);
            let x = tall_of_kind(&mut rng, kind, rows, cols, dtype);
            let data = handle.upload(&bytes_of(dtype, &x)).unwrap();
            let matrix = MatRef::new(&data, dtype, rows, cols).unwrap();
            let context = format!("{kind}, {rows} x {cols} {dtype}");
            let some = turns.some(&schemes, 2);
            check_parts_of(&handle, &mut rng, &|| (&matrix).into(), &x.view().into(), &some, &context);

            // Rows of zeros among them; of a matrix of fewer rows than are chosen, which for no rows are none.
            let of = 53.min(rows.max(1));
            let x = of_kind(&mut rng, kind, of, cols, dtype);
            let data = handle.upload(&bytes_of(dtype, &x)).unwrap();
            let matrix = MatRef::new(&data, dtype, of, cols).unwrap();
            let index: Vec<i32> =
                (0..rows).map(|i| if i % 5 == 3 { -1 - i as i32 } else { rng.below(of) as i32 }).collect();
            let chosen = RowIndex::new(&handle, &index, of).unwrap();
            let from = sources[(turn * 11 + way * 5) % sources.len()];
            // As a byte the scale of an infinity would be NaN, which no input may have.
            let finite = x.mapv(|v| if v.is_infinite() { 1.0 } else { v });
            let q = reference::cast(&finite.view().into(), from).unwrap();
            let coded = CastMatrix::from_host(&handle, &q).unwrap();
            for recipe in turns.some(&recipes_of(rows), 2) {
                let input = CastInput::from(x.view()).gathered(&index).unwrap();
                let source = CastSource::from(&matrix).gathered(&chosen).unwrap();
                check_cast(&handle, source, &input, recipe, &format!("rows chosen of {of}, {context}"));
                let input = CastInput::from(&q).gathered(&index).unwrap();
                let source = CastSource::from(&coded).gathered(&chosen).unwrap();
                check_cast(&handle, source, &input, recipe, &format!("rows chosen of {of} of {from:?}, {context}"));
            }
        }
    }
}

/// What products read, by the usual recipe of each scheme, as the matrix lies and transposed.
#[test]
fn what_products_read() {
    let Some(handle) = handle() else { return };
    let (mut rng, mut turns) = (Noise::new(929), InTurns::default());
    let recipes = Scheme::ALL.map(Recipe::new);
    for (turn, (rows, cols)) in all_shapes().enumerate() {
        for (kind, dtype) in kinds_and_types(rows * cols, turn) {
            let x = Source::new(&handle, tall_of_kind(&mut rng, kind, rows, cols, dtype), dtype);
            turns.some(&recipes, 1).into_iter().for_each(|recipe| x.check(&handle, recipe));
        }
    }
}

/// E4M3 codes to E2M1 in groups of 16 to 128 columns, which are found by thresholds (`kernels/cast/thresholds.cuh`): below each largest code of a group all that are
/// smaller, under scales of which many make ties, and such as thresholds do not serve, beside others that they do; groups of zeros; NaN in single elements, at every place of a group among
/// clean ones; least amax that count, and powers of two as well. (The reference refuses scales below 0.)
#[test]
fn every_code_below_every_largest() {
    let Some(handle) = handle() else { return };
    let cols = 640;
    let scales = [
        1.0,
        0.25,
        1.0 / 3.0,
        0.7,
        1.1e-30,
        9e-31,
        2f32.powi(-140),
        0.0,
        9e26,
        1.1e27,
        9e29,
        1.1e30,
        3e35,
        3.1e-5,
        -0.0,
        1.7,
        f32::INFINITY,
    ];
    let rows = 126 * scales.len() + 37;
    let mut rng = Noise::new(925);
    let code = |row: usize, col: usize, noise: u64| {
        let (largest, group, at) = (1 + row % 126, col / 32, col % 32);
        let magnitude = match row % 16 {
            // At one place of the row after the other, and so in each lane of a group.
            3 if col == row / 16 * 33 % cols => 0x7F,
            5 | 11 if col / 128 == 2 => 0,
            _ if at == group % 32 => largest,
            _ => (31 * group + at) % (largest + 1),
        };
        magnitude as u8 | if noise.is_multiple_of(2) { 0 } else { 0x80 }
    };
    let codes: Vec<u8> = (0..rows * cols).map(|i| code(i / cols, i % cols, rng.bits())).collect();
    for from in [CastGroup::Group1x128, CastGroup::Group1x32, CastGroup::Group1x64] {
        let from = scheme(CodeFormat::E4M3, from);
        let [_, groups] = from.group().grid(rows, cols);
        let of_groups: Vec<f32> = (0..rows * groups)
            .map(|i| scales[(i / groups / 126 + i % groups % 2 * (i / groups % 2)) % scales.len()])
            .collect();
        let q = HostCastMatrix::from_logical(from, rows, cols, codes.clone(), of_groups.clone()).unwrap();
        let there = CastMatrix::from_host(&handle, &q).unwrap();
        // The same rows again and again: more of them than blocks that stay have at once.
        let again = 2 + 30 * handle.device().sm_count as usize * 128 * 32 / (rows * cols);
        let tall = (from.group() == CastGroup::Group1x128).then(|| {
            let q =
                HostCastMatrix::from_logical(from, again * rows, cols, codes.repeat(again), of_groups.repeat(again));
            CastMatrix::from_host(&handle, &q.unwrap()).unwrap()
        });
        for to in [CastGroup::Group1x16, CastGroup::Group1x32, CastGroup::Group1x64, CastGroup::Group1x128] {
            let exact = CastRecipe::new(scheme(CodeFormat::E2M1, to));
            let floors = [30.0, 1.2e30, 4e30, 1e31, 3e38].map(|floor| exact.with_floor(floor).unwrap());
            for recipe in [exact, exact.power_of_two()].into_iter().chain(floors) {
                let want = reference::cast(&(&q).into(), recipe).unwrap();
                let mut got = poisoned_cast(&handle, recipe.scheme(), rows, cols);
                handle.cast_into(&there, recipe, &mut got).unwrap();
                assert_cast(&handle, &got, &want, &format!("{from} to {recipe:?}"));
                let Some(tall) = &tall else { continue };
                let mut got = poisoned_cast(&handle, recipe.scheme(), again * rows, cols);
                handle.cast_into(tall, recipe, &mut got).unwrap();
                let (bytes, scales) =
                    (handle.read_bytes(&got.codes()).unwrap(), handle.read_bytes(&got.scales()).unwrap());
                let context = format!("{again} times {from} to {recipe:?}");
                assert!(bytes.chunks(want.codes().len()).all(|one| one == want.codes()), "{context}: codes");
                let right = want.device_scales();
                assert!(scales.chunks(right.len()).all(|one| one == right), "{context}: scales");
            }
        }
    }
}

/// Scales of a source that the reference refuses, for a device does not look at them: those that turn signs and those that are NaN, in each kernel that opens codes. Bytes
/// are those of the values `fl(code * scale)`, as a plain matrix.
#[test]
fn scales_that_the_reference_refuses() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(931);
    let cols = 640;
    let numbers =
        [1.0, -0.5, f32::NAN, 0.25, -1.0 / 3.0, -f32::NAN, -0.0, 0.7, f32::NEG_INFINITY, -2f32.powi(-140), -3e35];
    let groups =
        [CastGroup::Group1x16, CastGroup::Group1x128, CastGroup::Row, CastGroup::Tile32x32, CastGroup::Group32x1];
    for rows in [16, 4 * handle.device().sm_count as usize + 16] {
        let targets = schemes(rows).into_iter().filter(|to| to.scales() == CastScales::RowMajor).map(CastRecipe::new);
        let targets: Vec<_> = targets.collect();
        for (format, group) in FORMATS.into_iter().flat_map(|format| groups.map(|group| (format, group))) {
            for order in CastScales::ALL {
                let from = scheme(format, group).with_scales(order);
                let [r, c] = group.grid(rows, cols);
                // A byte has no sign, and no digits.
                let stored = |v: f32| match order {
                    CastScales::Ue8m0 => decode_e8m0((v.to_bits() >> 23) as u8),
                    _ => v,
                };
                let scales = (0..r * c).map(|_| stored(numbers[rng.below(numbers.len())])).collect();
                let codes = (0..from.code_bytes(rows, cols)).map(|_| rng.bits() as u8).collect();
                let q = HostCastMatrix::from_logical(from, rows, cols, codes, scales).unwrap();
                let there = CastMatrix::from_host(&handle, &q).unwrap();
                let values = reference::cast_back(&q, DType::F32);
                for &to in &targets {
                    check_cast(&handle, (&there).into(), &values.view().into(), to, &format!("{rows} rows of {from}"));
                }
            }
        }
    }
}

/// To kernels whose lanes have sixteen neighbours, and those of matrices without gaps, few rows and many, the last block a part of one: numbers of every size that
/// their type has, so that factors of two are inside and outside of what products of 16 bits are found with; ties, and in some rows NaN.
#[test]
fn sixteen_neighbours_of_all_sizes() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(924);
    let groups =
        [CastGroup::Group1x16, CastGroup::Group1x32, CastGroup::Group1x64, CastGroup::Group1x128, CastGroup::Row];
    for (dtype, least, sizes) in [(DType::Bf16, -133, 255), (DType::F16, -26, 40)] {
        for rows in [5, 4 * handle.device().sm_count as usize + 5] {
            let cols = 17 * 128;
            let mut x = of_kind(&mut rng, "ties", rows, cols, DType::F32);
            for (i, mut row) in x.rows_mut().into_iter().enumerate() {
                let factor = 2f64.powi(least + (i * 7 % sizes) as i32);
                row.mapv_inplace(|v| round_to(dtype, (f64::from(v) / 448.0 * factor) as f32));
                if i % 5 == 4 {
                    row[i * 31 % cols] = f32::NAN;
                }
            }
            for stride in [cols, cols + 8] {
                let buffer = upload_strided(&handle, &x, dtype, stride, 0);
                let matrix = MatRef::new(&buffer, dtype, rows, cols).unwrap().with_row_stride(stride).unwrap();
                for recipe in recipes_of(1).into_iter().filter(|recipe| groups.contains(&recipe.scheme().group())) {
                    let want = reference::cast(&x.view().into(), recipe).unwrap();
                    let mut got = poisoned_cast(&handle, recipe.scheme(), rows, cols);
                    handle.cast_into(&matrix, recipe, &mut got).unwrap();
                    assert_cast(&handle, &got, &want, &format!("{rows} x {cols} {dtype}, stride {stride}, {recipe:?}"));
                }
            }
        }
    }
}
