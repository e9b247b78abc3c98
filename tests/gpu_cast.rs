//! Casts on the device equal the reference byte for byte: every grouping, code format, order and kind of scales, kind of source and
//! shape; gathered rows, given scales, special values; a largest value at every place; what is refused.
#![cfg(feature = "cuda")]

#[path = "common/cast.rs"]
mod cast;
mod common;

use cast::*;
use common::*;
use ndarray::Array2;
use scaled_gemm::reference::{self, CastInput};
use scaled_gemm::{
    CastGroup, CastMatrix, CastRecipe, CastScales, CastScheme, CastSource, CodeFormat, DType, DeviceBuffer, Error,
    Handle, HostCastMatrix, MatMut, MatRef, RowIndex,
};

fn device(handle: &Handle, x: &Array2<f32>, dtype: DType) -> DeviceBuffer {
    handle.upload(&bytes_of(dtype, x)).unwrap()
}

/// A plain matrix by every recipe.
fn check_all(handle: &Handle, x: &Array2<f32>, dtype: DType, context: &str) {
    let (rows, cols) = x.dim();
    let data = device(handle, x, dtype);
    let matrix = MatRef::new(&data, dtype, rows, cols).unwrap();
    for recipe in recipes_of(rows) {
        check_cast(handle, (&matrix).into(), &x.view().into(), recipe, &format!("{context} {rows} x {cols} {dtype}"));
    }
}

/// Small, for runs under a sanitizer: each kernel, and rows and columns that end within a group.
#[test]
fn each_kernel_once() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(900);
    for (rows, cols) in [(144, 272), (5, 48), (1, 16400)] {
        for dtype in INPUTS {
            let x = spread(&mut rng, rows, cols, dtype);
            check_all(&handle, &x, dtype, "spread");
        }
    }
}

/// The same of codes: few rows, rows enough for kernels of many, whose columns are whole groups and are not, long ones, and more tiles than run at
/// once. Small for runs under a sanitizer, which takes it by its name.
#[test]
fn each_kernel_once_of_codes() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(913);
    let sms = handle.device().sm_count as usize;
    // No multiple of a tile's rows, but one that transposed codes may have.
    let many = (4 * sms).next_multiple_of(32) + 16;
    let every: Vec<_> = schemes(144).into_iter().filter(|to| to.scales() == CastScales::RowMajor).collect();
    let of = |group: fn(CastGroup) -> bool| every.iter().copied().filter(|to| group(to.group())).collect();
    // A block for each 128 rows, and kernels of channels look two blocks of each multiprocessor ahead.
    let tall = (2 * sms + 1) * 128 + 16;
    for (rows, cols, targets) in [
        (144, 272, every.clone()),
        (many, 128, along_rows()),
        (many, 144, along_rows()),
        (2, 16400, of(|group| group == CastGroup::Row)),
        (tall, 16, of(CastGroup::is_per_channel)),
    ] {
        let x = of_kind(&mut rng, "nan", rows, cols, DType::F32);
        for format in FORMATS {
            let wide = scheme(format, CastGroup::Group1x128);
            let bytes = scheme(format, CastGroup::Group1x32).with_scales(CastScales::Ue8m0);
            let from = [wide, bytes, scheme(format, CastGroup::Tile32x32), scheme(format, CastGroup::Group32x1)];
            for from in from {
                let q = with_negative_nan(&reference::cast(&x.view().into(), CastRecipe::new(from)).unwrap());
                let matrix = CastMatrix::from_host(&handle, &q).unwrap();
                let context = format!("{rows} x {cols} of {from}");
                for &to in &targets {
                    check_cast(&handle, (&matrix).into(), &(&q).into(), CastRecipe::new(to), &context);
                }
            }
        }
    }
}

#[test]
fn shapes() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(901);
    for rows in [0, 1, 127, 129, 4001] {
        for cols in [64, 576, 7168, 18944] {
            let x = spread(&mut rng, rows, cols, DType::Bf16);
            check_all(&handle, &x, DType::Bf16, "spread");
        }
    }
    // Rows that are read twice, no column, of few rows and of many.
    let many = 4 * handle.device().sm_count as usize + 5;
    for (rows, cols) in [(3, 16400), (2, 65536), (5, 0), (many, 0), (16, 16)] {
        let x = spread(&mut rng, rows, cols, DType::Bf16);
        check_all(&handle, &x, DType::Bf16, "spread");
    }
}

/// Groups of columns.
fn along_rows() -> Vec<CastScheme> {
    let groups = [CastGroup::Group1x16, CastGroup::Group1x32, CastGroup::Group1x64, CastGroup::Group1x128];
    schemes(1).into_iter().filter(|scheme| groups.contains(&scheme.group())).collect()
}

/// Rows enough that groups of columns are cast by the kernels for many: every type and kind of source, aligned and not, with a value in each of
/// a thread's vectors; parts of a row, gathered rows, given scales and scales alone.
#[test]
fn many_rows() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(910);
    let (rows, cols) = (4 * handle.device().sm_count as usize + 5, 2000);
    let exact = || along_rows().into_iter().map(CastRecipe::new);
    for dtype in INPUTS {
        for kind in ["nan", "specials", "ties"] {
            let x = of_kind(&mut rng, kind, rows, cols, dtype);
            // Not all of both, so that it can be run under a sanitizer.
            for (stride, offset) in [(cols, 0), (cols + 3, 1)] {
                if kind != "nan" && (dtype, stride) != (DType::Bf16, cols) {
                    continue;
                }
                let buffer = upload_strided(&handle, &x, dtype, stride, offset);
                let view = buffer.slice(offset * dtype.bytes()..);
                let matrix = MatRef::new(view, dtype, rows, cols).unwrap().with_row_stride(stride).unwrap();
                let context = format!("{kind} {rows} x {cols} {dtype}, stride {stride}");
                exact().for_each(|recipe| check_cast(&handle, (&matrix).into(), &x.view().into(), recipe, &context));
            }
        }
    }
    let x = of_kind(&mut rng, "nan", rows, cols, DType::F32);
    for format in FORMATS {
        let by_rows = CastScales::ALL.map(|scales| scheme(format, CastGroup::Group1x32).with_scales(scales));
        for from in by_rows.into_iter().chain([scheme(format, CastGroup::Group128x1)]) {
            let q = reference::cast(&x.view().into(), CastRecipe::new(from)).unwrap();
            let matrix = CastMatrix::from_host(&handle, &q).unwrap();
            let context = format!("{rows} x {cols} of {from}");
            exact().for_each(|recipe| check_cast(&handle, (&matrix).into(), &(&q).into(), recipe, &context));
        }
    }
    let long = of_kind(&mut rng, "nan", rows / 2, 8208, DType::Bf16);
    let data = device(&handle, &long, DType::Bf16);
    let matrix = MatRef::new(&data, DType::Bf16, rows / 2, 8208).unwrap();
    exact().for_each(|recipe| check_cast(&handle, (&matrix).into(), &long.view().into(), recipe, "in two parts"));
    check_gathered(&handle, &mut rng, (50, cols), rows, &along_rows());
    check_parts(&handle, &mut rng, (rows, cols), &along_rows());
}

/// Squares to E4M3 go down the second dimension of a grid, which ends at 65,535 of them: taller matrices go another way. Of both orders of scales that squares are
/// for, plain and of codes, with rows behind the last whole square.
#[test]
fn taller_than_a_grid_of_squares() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(911);
    let x = of_kind(&mut rng, "nan", 8 * 65_535 + 5, 32, DType::Bf16);
    let (rows, cols) = x.dim();
    let data = device(&handle, &x, DType::Bf16);
    let matrix = MatRef::new(&data, DType::Bf16, rows, cols).unwrap();
    let to = |group| scheme(CodeFormat::E4M3, group);
    let targets = [
        to(CastGroup::Group1x16).with_scales(CastScales::ColumnMajor),
        to(CastGroup::Group1x32).with_scales(CastScales::Ue8m0),
    ];
    for recipe in targets.map(CastRecipe::new) {
        check_cast(&handle, (&matrix).into(), &x.view().into(), recipe, "tall");
    }
    let q = reference::cast(&x.view().into(), CastRecipe::new(scheme(CodeFormat::E2M1, CastGroup::Group1x32))).unwrap();
    let coded = CastMatrix::from_host(&handle, &q).unwrap();
    check_cast(&handle, (&coded).into(), &(&q).into(), CastRecipe::new(targets[0]), "tall codes");
}

/// Codes of rows enough, long ones and ones in two parts, from every grouping whose scales lie along rows, infinite ones among them; gathered,
/// by given scales that overflow, saturate and vanish, and scales alone.
#[test]
fn codes_in_lines() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(912);
    let many = 4 * handle.device().sm_count as usize + 5;
    let groups = [CastGroup::Group1x16, CastGroup::Group1x32, CastGroup::Group1x64, CastGroup::Group1x128];
    let both = groups.into_iter().flat_map(|group| FORMATS.map(|format| scheme(format, group)));
    let bytes = [scheme(CodeFormat::E4M3, groups[1]), scheme(CodeFormat::E2M1, groups[3])];
    let targets: Vec<_> = both.chain(bytes.map(|to| to.with_scales(CastScales::Ue8m0))).collect();
    for format in FORMATS {
        for (rows, cols, group, scales) in [
            (many, 7168, CastGroup::Group1x16, CastScales::Ue8m0),
            (many / 2, 8208, CastGroup::Group1x64, CastScales::RowMajor),
            (many, 1040, CastGroup::Row, CastScales::RowMajor),
            (many, 1040, CastGroup::Tile32x32, CastScales::ColumnMajor),
            (many, 1040, CastGroup::Group1x16, CastScales::RowMajor),
            (many, 1040, CastGroup::Tile128x128, CastScales::Ue8m0),
        ] {
            // Infinities only in groups so small that most have none: the others' codes say nothing of their scales. As a byte such a scale is NaN,
            // which no input may have.
            let infinite = group == CastGroup::Group1x16 && scales != CastScales::Ue8m0;
            let x = of_kind(&mut rng, if infinite { "specials" } else { "nan" }, rows, cols, DType::F32);
            let x = of_many_sizes(x, group);
            let from = scheme(format, group).with_scales(scales);
            let q = with_negative_nan(&reference::cast(&x.view().into(), CastRecipe::new(from)).unwrap());
            assert_finite(&q, if infinite { 0.3 } else { 0.9 });
            let there = CastMatrix::from_host(&handle, &q).unwrap();
            let context = format!("{rows} x {cols} of {from}");
            for &to in &targets {
                check_cast(&handle, (&there).into(), &(&q).into(), CastRecipe::new(to), &context);
            }
            if cols > 2000 {
                continue;
            }
            check_parts_of(&handle, &mut rng, &|| (&there).into(), &(&q).into(), &targets, &context);
            let index: Vec<i32> = (0..many).map(|i| if i % 5 == 3 { -1 } else { (i * 7 % rows) as i32 }).collect();
            let rows_of = RowIndex::new(&handle, &index, rows).unwrap();
            for &to in &targets {
                let source = CastSource::from(&there).gathered(&rows_of).unwrap();
                let input = CastInput::from(&q).gathered(&index).unwrap();
                check_cast(&handle, source, &input, CastRecipe::new(to), &format!("gathered, {context}"));
            }
            for to in targets.iter().copied().filter(|to| to.scales() == CastScales::RowMajor) {
                let [r, c] = to.group().grid(rows, cols);
                let numbers = [0.125, 2f32.powi(-140), 1e-6, 3e38, 1.0];
                let given: Vec<f32> = (0..r * c).map(|i| numbers[i % numbers.len()]).collect();
                let want = reference::cast_with_scales(&(&q).into(), to, &given).unwrap();
                let mut got = poisoned_cast(&handle, to, rows, cols);
                handle.write(&mut got.scales_mut(), &want.device_scales()).unwrap();
                handle.cast_with_scales_into(CastSource::from(&there), &mut got).unwrap();
                assert_cast(&handle, &got, &want, &format!("{context} to {to}, by scales at the ends"));
            }
        }
    }
}

/// So large that each multiprocessor casts many blocks to E2M1: short rows, and one shape of long ones.
#[test]
fn large() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(911);
    // Seven times seven blocks of 128 threads for each multiprocessor; a warp, and three of them, for a row.
    let threads = 7 * 7 * 128 * handle.device().sm_count as usize;
    let groups = [CastGroup::Group1x16, CastGroup::Group1x32, CastGroup::Group1x64, CastGroup::Group1x128];
    for (cols, of_row, dtypes, groups) in
        [(144, 32, &[DType::Bf16, DType::F16][..], &groups[..]), (4112, 96, &[DType::Bf16], &[CastGroup::Group1x64])]
    {
        let rows = threads / of_row + 3;
        for &dtype in dtypes {
            let x = of_kind(&mut rng, "nan", rows, cols, dtype);
            let data = device(&handle, &x, dtype);
            let matrix = MatRef::new(&data, dtype, rows, cols).unwrap();
            for &group in groups {
                let scheme = scheme(CodeFormat::E2M1, group);
                let (context, input) = (format!("{rows} x {cols} {dtype}"), x.view().into());
                check_cast(&handle, (&matrix).into(), &input, CastRecipe::new(scheme), &context);
                if (cols, group) == (144, CastGroup::Group1x32) {
                    check_parts_of(&handle, &mut rng, &|| (&matrix).into(), &input, &[scheme], &context);
                    check_gathered(&handle, &mut rng, (50, cols), rows, &[scheme]);
                }
            }
        }
    }
}

#[test]
fn strided_and_unaligned_rows() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(902);
    for dtype in INPUTS {
        for (rows, cols, stride, offset) in
            [(33, 144, 152, 8), (130, 272, 275, 3), (16, 64, 64, 1), (2, 16400, 16401, 0)]
        {
            let x = spread(&mut rng, rows, cols, dtype);
            let buffer = upload_strided(&handle, &x, dtype, stride, offset);
            let view = buffer.slice(offset * dtype.bytes()..);
            let matrix = MatRef::new(view, dtype, rows, cols).unwrap().with_row_stride(stride).unwrap();
            for recipe in recipes_of(rows) {
                let context = format!("{rows} x {cols} {dtype}, stride {stride}, offset {offset}");
                check_cast(&handle, (&matrix).into(), &x.view().into(), recipe, &context);
            }
        }
    }
}

#[test]
fn special_values() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(903);
    let kinds = ["zeros", "subnormal", "tiny", "huge", "negative", "powers", "ties", "outliers", "nan", "specials"];
    for kind in kinds {
        for dtype in INPUTS {
            let x = of_kind(&mut rng, kind, 160, 576, dtype);
            check_all(&handle, &x, dtype, kind);
        }
    }
}

/// The largest element at every place of a group, in every lane and warp, negative; and rows of which all but one are a step smaller.
#[test]
fn the_largest_value_is_found_wherever_it_is() {
    let Some(handle) = handle() else { return };
    for places in [0, 1] {
        // Element (i, j) is the largest of its row, and of its column, where i + j is `places` modulo 128.
        let x = Array2::from_shape_fn((256, 256), |(i, j)| if (i + j) % 128 == places { -450.0 } else { 448.0 });
        check_all(&handle, &x, DType::Bf16, "diagonal");
    }
    let tiles =
        CastGroup::ALL.into_iter().filter(|group| group.extents()[0].size(128) >= 32 && !group.is_per_channel());
    for group in tiles {
        // Tile t has its largest element at place 4099 t of its own: in all bands, lanes and registers.
        let (rows, cols) = (32 * 128, 8 * 128);
        let [r, c] = group.extents().map(|extent| extent.size(0));
        let x = Array2::from_shape_fn((rows, cols), |(i, j)| {
            let tile = i / r * (cols / c) + j / c;
            if (i % r) * c + j % c == 4099 * tile % (r * c) { -450.0 } else { 448.0 }
        });
        let data = device(&handle, &x, DType::Bf16);
        let matrix = MatRef::new(&data, DType::Bf16, rows, cols).unwrap();
        for format in FORMATS {
            let recipe = CastRecipe::new(scheme(format, group)).power_of_two();
            check_cast(&handle, (&matrix).into(), &x.view().into(), recipe, "one place of a tile");
        }
    }
    // numerics.md 1.2: a maximum that is missed drops the exponent by one, in rows as long as those of models.
    for hidden in (2048..=16384).step_by(256) {
        let x = Array2::from_shape_fn((4, hidden), |(i, j)| {
            if j == (i * hidden / 4 + hidden - 168) % hidden { 450.0 } else { 448.0 }
        });
        let data = device(&handle, &x, DType::Bf16);
        let matrix = MatRef::new(&data, DType::Bf16, 4, hidden).unwrap();
        for group in [CastGroup::Row, CastGroup::Group1x128, CastGroup::Group1x32] {
            let recipe = CastRecipe::new(scheme(CodeFormat::E4M3, group)).power_of_two();
            check_cast(&handle, (&matrix).into(), &x.view().into(), recipe, "hidden");
        }
    }
}

/// Codes with scales as a source: amax and codes are of `fl(code * scale)`, which no 16-bit number holds. Infinite scales too, of groups so small
/// that others are finite: as a byte they would be NaN.
#[test]
fn requantizing() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(904);
    for (rows, cols) in [(144, 272), (129, 576), (2, 16400)] {
        let x = of_kind(&mut rng, "nan", rows, cols, DType::F32);
        let specials = of_kind(&mut rng, "specials", rows, cols, DType::F32);
        let small = |from: &CastScheme| [CastGroup::Group1x16, CastGroup::Group32x1].contains(&from.group());
        let plain = || schemes(rows).into_iter().filter(|scheme| !scheme.is_transposed());
        let infinite = plain().filter(|from| small(from) && from.scales() != CastScales::Ue8m0);
        for (from, x) in plain().map(|from| (from, &x)).chain(infinite.map(|from| (from, &specials))) {
            let q = with_negative_nan(&reference::cast(&x.view().into(), CastRecipe::new(from)).unwrap());
            assert_finite(&q, if std::ptr::eq(x, &specials) { 0.2 } else { 0.9 });
            let matrix = CastMatrix::from_host(&handle, &q).unwrap();
            let plain = CastGroup::ALL.into_iter().flat_map(|group| FORMATS.map(|format| scheme(format, group)));
            let transposed = schemes(rows).into_iter().filter(|scheme| scheme.is_transposed());
            for recipe in plain.chain(transposed).map(CastRecipe::new) {
                check_cast(&handle, (&matrix).into(), &(&q).into(), recipe, &format!("{rows} x {cols} of {from}"));
            }
        }
    }
}

/// So many rows of a matrix of this shape, plain and in codes, some of them rows of zeros.
fn check_gathered(
    handle: &Handle,
    rng: &mut Noise,
    (rows, cols): (usize, usize),
    count: usize,
    schemes: &[CastScheme],
) {
    let x = spread(rng, rows, cols, DType::Bf16);
    let data = device(handle, &x, DType::Bf16);
    let matrix = MatRef::new(&data, DType::Bf16, rows, cols).unwrap();
    let q =
        reference::cast(&x.view().into(), CastRecipe::new(scheme(CodeFormat::E4M3, CastGroup::Group1x128))).unwrap();
    let coded = CastMatrix::from_host(handle, &q).unwrap();
    let draw = |i: usize| if i % 5 == 3 { -1 - i as i32 } else { (rng.bits() % rows as u64) as i32 };
    let index: Vec<i32> = (0..count).map(draw).collect();
    let rows_of = RowIndex::new(handle, &index, rows).unwrap();
    for recipe in schemes.iter().copied().map(CastRecipe::new) {
        let plain = CastInput::from(x.view()).gathered(&index).unwrap();
        let source = CastSource::from(&matrix).gathered(&rows_of).unwrap();
        check_cast(handle, source, &plain, recipe, &format!("{count} rows of a plain matrix"));
        let input = CastInput::from(&q).gathered(&index).unwrap();
        let source = CastSource::from(&coded).gathered(&rows_of).unwrap();
        check_cast(handle, source, &input, recipe, &format!("{count} rows of codes"));
    }
}

#[test]
fn gathered_rows() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(905);
    let (rows, cols) = (50, 272);
    for count in [0usize, 1, 48, 160, 131] {
        check_gathered(&handle, &mut rng, (rows, cols), count, &schemes(count));
    }
    let x = spread(&mut rng, rows, cols, DType::Bf16);
    let data = device(&handle, &x, DType::Bf16);
    let matrix = MatRef::new(&data, DType::Bf16, rows, cols).unwrap();
    // Numbers that nobody checked: beyond the matrix there is nothing. Who asks is told, also once they are others.
    let rows_of = RowIndex::from_device(handle.upload(&[3u32, 50, i32::MAX as u32, 49]).unwrap()).unwrap();
    let said = |rows: usize| rows_of.check(&handle, rows).map_err(|error| error.to_string());
    assert!(said(50).unwrap_err().contains("50 at place 1 must be below 50"), "{:?}", said(50));
    assert!(said(51).unwrap_err().contains("2147483647 at place 2 must be below 51"), "{:?}", said(51));
    assert_eq!(said(1 << 31), Ok(()));
    let negative = RowIndex::from_device(handle.upload(&[49u32, u32::MAX, 1 << 31]).unwrap()).unwrap();
    negative.check(&handle, 50).unwrap();
    assert!(negative.check(&handle, 49).is_err());
    RowIndex::new(&handle, &[], 0).unwrap().check(&handle, 0).unwrap();
    let q = reference::cast(&x.view().into(), CastRecipe::new(scheme(CodeFormat::E2M1, CastGroup::Tile32x32))).unwrap();
    let coded = CastMatrix::from_host(&handle, &q).unwrap();
    for to in schemes(4).into_iter().map(CastRecipe::new) {
        let input = CastInput::from(x.view()).gathered(&[3, -1, -1, 49]).unwrap();
        check_cast(&handle, CastSource::from(&matrix).gathered(&rows_of).unwrap(), &input, to, "beyond the matrix");
        let input = CastInput::from(&q).gathered(&[3, -1, -1, 49]).unwrap();
        check_cast(&handle, CastSource::from(&coded).gathered(&rows_of).unwrap(), &input, to, "beyond the codes");
    }
}

/// Codes by scales that are there, and scales alone; of a plain matrix.
fn check_parts(handle: &Handle, rng: &mut Noise, (rows, cols): (usize, usize), schemes: &[CastScheme]) {
    let x = spread(rng, rows, cols, DType::Bf16);
    let data = device(handle, &x, DType::Bf16);
    let matrix = MatRef::new(&data, DType::Bf16, rows, cols).unwrap();
    check_parts_of(handle, rng, &|| (&matrix).into(), &x.view().into(), schemes, &format!("{rows} x {cols}"));
}

#[test]
fn given_scales_and_scales_alone() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(906);
    for (rows, cols) in [(144, 272), (2, 16400)] {
        check_parts(&handle, &mut rng, (rows, cols), &schemes(rows));
    }
    // Of codes, in groups along rows and per channel.
    let (rows, cols) = (144, 272);
    let x = of_kind(&mut rng, "nan", rows, cols, DType::F32);
    for format in FORMATS {
        for group in [CastGroup::Group1x32, CastGroup::Group32x1] {
            let from = scheme(format, group);
            let q = reference::cast(&x.view().into(), CastRecipe::new(from)).unwrap();
            let matrix = CastMatrix::from_host(&handle, &q).unwrap();
            let context = format!("{rows} x {cols} of {from}");
            check_parts_of(&handle, &mut rng, &|| (&matrix).into(), &(&q).into(), &schemes(rows), &context);
        }
    }
}

#[test]
fn captured() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(909);
    let (rows, cols) = (144, 272);
    let mut data = device(&handle, &spread(&mut rng, rows, cols, DType::Bf16), DType::Bf16);
    for recipe in schemes(rows).into_iter().map(CastRecipe::new) {
        let mut got = poisoned_cast(&handle, recipe.scheme(), rows, cols);
        let mut back = handle.alloc(rows * cols * 4).unwrap();
        let graph = {
            let matrix = MatRef::new(&data, DType::Bf16, rows, cols).unwrap();
            let graph = capture_owned(&handle, || {
                handle.cast_into(&matrix, recipe, &mut got)?;
                handle.cast_back_into(&got, &mut MatMut::new(&mut back, DType::F32, rows, cols)?)
            });
            graph.unwrap()
        };
        let x = spread(&mut rng, rows, cols, DType::Bf16);
        handle.write(&mut data.view_mut(), &bytes_of(DType::Bf16, &x)).unwrap();
        handle.launch(&graph).unwrap();
        let want = reference::cast(&x.view().into(), recipe).unwrap();
        assert_cast(&handle, &got, &want, &format!("captured, {}", recipe.scheme()));
        let values = values_of(DType::F32, &handle.read_bytes(&back.view()).unwrap());
        assert_same_values(
            &values,
            reference::cast_back(&want, DType::F32).as_slice().unwrap(),
            cols,
            "captured, back",
        );
    }
}

#[test]
fn refusals() {
    let Some(handle) = handle() else { return };
    let (rows, cols) = (32, 64);
    let group = scheme(CodeFormat::E4M3, CastGroup::Group1x32);
    let channels = scheme(CodeFormat::E4M3, CastGroup::Group32x1);
    let data = handle.alloc(rows * cols * 4).unwrap();
    let x = MatRef::new(&data, DType::Bf16, rows, cols).unwrap();
    let mut target = CastMatrix::zeros(&handle, group, rows, cols).unwrap();
    let words = |error: Error| error.to_string();
    let fails = |result: Result<(), Error>, says: &[&str]| {
        let said = words(result.unwrap_err());
        assert!(says.iter().all(|part| said.contains(part)), "{said:?} lacks one of {says:?}");
    };

    fails(CastMatrix::zeros(&handle, group, 3, 24).map(drop), &["24", "multiple of 16"]);
    fails(CastMatrix::zeros(&handle, channels.transposed().unwrap(), 24, 32).map(drop), &["24", "multiple of 16"]);
    fails(group.transposed().map(drop), &["1x32", "32x1"]);
    fails(CastScheme::new(CodeFormat::E5M2, CastGroup::Row).map(drop), &["e5m2"]);

    let codes = MatRef::new(&data, DType::E4M3, rows, cols).unwrap();
    fails(handle.cast(&codes, CastRecipe::new(group)).map(drop), &["has no scales"]);
    fails(handle.cast_into(&x, CastRecipe::new(channels), &mut target), &["1x32", "32x1"]);
    let mut small = CastMatrix::zeros(&handle, group, rows - 1, cols).unwrap();
    fails(handle.cast_into(&x, CastRecipe::new(group), &mut small), &["31 x 64", "32 x 64"]);

    let turned = CastMatrix::zeros(&handle, channels.transposed().unwrap(), rows, cols).unwrap();
    fails(handle.cast_into(&turned, CastRecipe::new(group), &mut target), &["transposed", "cast_back"]);
    let mut y = handle.alloc(rows * cols * 4).unwrap();
    let mut narrow = MatMut::new(&mut y, DType::F32, rows, cols - 16).unwrap();
    fails(handle.cast_back_into(&target, &mut narrow), &["32 x 48", "32 x 64"]);

    fails(RowIndex::new(&handle, &[0, 32], 32).map(drop), &["32 at place 1", "below 32"]);
    fails(RowIndex::from_device(handle.alloc(6).unwrap()).map(drop), &["6 bytes"]);
    let index = RowIndex::new(&handle, &[0, 32], 33).unwrap();
    fails(CastSource::from(&x).gathered(&index).map(drop), &["33", "32"]);

    fails(handle.fp4_to_fp8_into(&target, &mut small, None), &["e2m1"]);
    let fp4 = CastMatrix::zeros(&handle, scheme(CodeFormat::E2M1, CastGroup::Group1x32), rows, cols).unwrap();
    fails(handle.fp4_to_fp8_into(&fp4, &mut target, None), &["ue8m0"]);

    let (codes, scales) = (handle.alloc(rows * cols).unwrap(), handle.alloc(rows * 2 * 4 + 4).unwrap());
    fails(CastMatrix::from_parts(group, rows, cols, codes, scales).map(drop), &["260 bytes", "must be 256"]);
    handle.synchronize().unwrap();
}

/// Scales that no cast writes, wherever an order puts them, and what lies in padding, which is no scale.
#[test]
fn scales_from_elsewhere_are_checked() {
    let Some(handle) = handle() else { return };
    let (rows, cols) = (3, 96);
    for order in [CastScales::RowMajor, CastScales::ColumnMajor, CastScales::Ue8m0] {
        let scheme = scheme(CodeFormat::E4M3, CastGroup::Group1x32).with_scales(order);
        for bad in [None, Some(f32::NAN), Some(-1.0)] {
            // A byte has no sign.
            if order == CastScales::Ue8m0 && bad == Some(-1.0) {
                continue;
            }
            let scales = (0..9).map(|at| bad.filter(|_| at == 7).unwrap_or(1.0)).collect();
            let host = HostCastMatrix::from_logical(scheme, rows, cols, vec![0x38; rows * cols], scales).unwrap();
            let mut q = CastMatrix::from_host(&handle, &host).unwrap();
            let mut bytes = host.device_scales();
            // Row 3 of columns, and column 3 of bytes, are padding.
            match order {
                CastScales::ColumnMajor => bytes[12..16].copy_from_slice(&f32::NAN.to_le_bytes()),
                CastScales::Ue8m0 => bytes[3] = 255,
                _ => {}
            }
            handle.write(&mut q.scales_mut(), &bytes).unwrap();
            let said = |result: Result<(), Error>| result.err().map(|error| error.to_string());
            let (found, wanted) = (said(q.check_scales(&handle)), said(host.check_scales()));
            assert_eq!(found, wanted, "{order:?}");
            assert_eq!(found.is_some_and(|found| found.contains("scale (2, 1)")), bad.is_some(), "{order:?} {bad:?}");
        }
        // Those that are given have an inverse, too.
        for bad in [1.0, 2f32.powi(-127), f32::NAN, f32::INFINITY, 0.0, -1.0] {
            // A byte is neither of these.
            if order == CastScales::Ue8m0 && (bad <= 0.0 || bad == f32::INFINITY) {
                continue;
            }
            let scales = (0..9).map(|at| if at == 7 { bad } else { 1.0 }).collect();
            let host = HostCastMatrix::from_logical(scheme, rows, cols, vec![0; rows * cols], scales).unwrap();
            let q = CastMatrix::from_host(&handle, &host).unwrap();
            let x = Array2::<f32>::ones((rows, cols));
            let said = |error: Option<Error>| error.map(|error| error.to_string());
            let found = said(q.check_given_scales(&handle).err());
            let wanted = said(reference::cast_with_scales(&x.view().into(), scheme, host.scales()).err());
            assert_eq!(found, wanted, "{order:?} {bad}");
            assert_eq!(
                found.is_some_and(|found| found.contains("given scale (2, 1)")),
                !(bad > 0.0 && bad.is_finite())
            );
        }
    }
}

/// A source and a target that share memory through an address that was taken over.
#[test]
fn overlap_is_refused() {
    let Some(handle) = handle() else { return };
    let (rows, cols) = (32, 64);
    let group = scheme(CodeFormat::E4M3, CastGroup::Group1x32);
    let whole = handle.stream().alloc_zeros::<u8>(rows * cols * 2).unwrap();
    use scaled_gemm::cudarc::driver::DevicePtr;
    let address = whole.device_ptr(handle.stream()).0;
    // SAFETY: both buffers are parts of `whole`, which lives to the end of the test, on this handle's stream.
    let part =
        |at: u64, bytes: usize| unsafe { DeviceBuffer::from_raw(handle.stream(), address + at, bytes, ()) }.unwrap();
    let source = part(0, rows * cols * 2);
    let x = MatRef::new(&source, DType::Bf16, rows, cols).unwrap();
    let scales = handle.alloc(group.scale_bytes(rows, cols)).unwrap();
    let mut target =
        CastMatrix::from_parts(group, rows, cols, part((rows * cols) as u64, rows * cols), scales).unwrap();
    let said = handle.cast_into(&x, CastRecipe::new(group), &mut target).unwrap_err().to_string();
    assert!(said.contains("overlap"), "{said}");
    let mut y = part(0, rows * cols * 2);
    let said = handle.cast_back_into(&target, &mut MatMut::new(&mut y, DType::Bf16, rows, cols).unwrap()).unwrap_err();
    assert!(said.to_string().contains("overlap"), "{said}");
    handle.synchronize().unwrap();
    drop(whole);
}
