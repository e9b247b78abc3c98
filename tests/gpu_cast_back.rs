//! Casts back to plain numbers, and E2M1 codes as E4M3 codes, on the device equal the reference byte for byte.
#![cfg(feature = "cuda")]

#[path = "common/cast.rs"]
mod cast;
mod common;

use cast::*;
use common::*;
use scaled_gemm::reference;
use scaled_gemm::{
    CastGroup, CastMatrix, CastRecipe, CastScales, CastScheme, CodeFormat, DType, Handle, HostCastMatrix, MatMut,
};

#[test]
fn back() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(907);
    for (rows, cols) in [(144, 272), (3, 16400), (129, 16), (0, 64)] {
        // Infinities leave large groups nothing that says which scale was taken.
        let (numbers, specials) =
            (of_kind(&mut rng, "nan", rows, cols, DType::F32), of_kind(&mut rng, "specials", rows, cols, DType::F32));
        for (scheme, x) in schemes(rows).into_iter().flat_map(|scheme| [(scheme, &numbers), (scheme, &specials)]) {
            let q = with_negative_nan(&reference::cast(&x.view().into(), CastRecipe::new(scheme)).unwrap());
            if std::ptr::eq(x, &numbers) {
                assert_finite(&q, 0.9);
            }
            let matrix = CastMatrix::from_host(&handle, &q).unwrap();
            for dtype in INPUTS {
                for stride in [cols, cols + 3] {
                    let want = reference::cast_back(&q, dtype);
                    let mut y = poisoned(&handle, rows.max(1) * stride * dtype.bytes());
                    let mut target = MatMut::new(&mut y, dtype, rows, cols).unwrap().with_row_stride(stride).unwrap();
                    handle.cast_back_into(&matrix, &mut target).unwrap();
                    let bytes = handle.stream().clone_dtoh(&y).unwrap();
                    let got = values_of(dtype, &bytes);
                    let rows_of =
                        got.chunks(stride).take(rows).flat_map(|row| row[..cols].to_vec()).collect::<Vec<_>>();
                    let context = format!("{scheme} to {dtype}, stride {stride}");
                    assert_same_values(&rows_of, want.as_slice().unwrap(), cols, &context);
                    // A NaN that is written would be another than the poison.
                    let width = dtype.bytes();
                    let gaps = bytes.chunks(stride * width).flat_map(|row| &row[cols * width..]);
                    assert!(gaps.copied().all(|byte| byte == 0xFF), "{context}: written between rows");
                }
            }
        }
    }
}

#[test]
fn fp4_to_fp8_without_loss() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(908);
    let sms = handle.device().sm_count as usize;
    // The last two have rows enough for threads that take more of them.
    for (rows, cols) in [(5, 144), (130, 1024), (1, 16), (3, 9216), (4 * sms + 3, 2000), (2 * sms + 1, 8208)] {
        for group in [CastGroup::Group1x16, CastGroup::Group1x32, CastGroup::Group1x64, CastGroup::Group1x128] {
            for scales in CastScales::ALL {
                let from = scheme(CodeFormat::E2M1, group).with_scales(scales);
                draw_and_check(&handle, &mut rng, from, rows, cols);
            }
        }
    }
}

/// The same of the shapes that every cast meets; groups and orders of scales in turns where a matrix is large.
#[test]
fn fp4_to_fp8_of_every_shape() {
    let Some(handle) = handle() else { return };
    let (mut rng, mut turns) = (Noise::new(913), InTurns::default());
    let groups = [CastGroup::Group1x16, CastGroup::Group1x32, CastGroup::Group1x64, CastGroup::Group1x128];
    let all: Vec<_> = groups
        .into_iter()
        .flat_map(|group| CastScales::ALL.map(|scales| scheme(CodeFormat::E2M1, group).with_scales(scales)))
        .collect();
    for (rows, cols) in all_shapes() {
        let count = if rows * cols > 1 << 24 { 1 } else { 4 };
        for from in turns.some(&all, count) {
            draw_and_check(&handle, &mut rng, from, rows, cols);
        }
    }
}

/// Codes of every kind, and scales whose exponents in each group of 128 are within 11 of one another, or further apart; near the least, too.
fn draw_and_check(handle: &Handle, rng: &mut Noise, from: CastScheme, rows: usize, cols: usize) {
    let group = from.group();
    let [r, c] = group.grid(rows, cols);
    let codes = |rng: &mut Noise| (0..from.code_bytes(rows, cols)).map(|_| rng.bits() as u8).collect();
    let base: Vec<i32> = (0..r * cols.div_ceil(128)).map(|_| (rng.bits() % 228) as i32 - 127).collect();
    for apart in [12, 16] {
        let width = group.extents()[1].size(cols);
        let exponents =
            (0..r * c).map(|at| base[at / c * cols.div_ceil(128) + at % c * width / 128] + (rng.bits() % apart) as i32);
        let scales: Vec<f32> = exponents.map(|e| f64::from(e).exp2() as f32).collect();
        check_lossless(handle, from, rows, cols, codes(rng), scales, apart == 12);
    }
}

/// Where nothing is lost the bytes are those of the reference; where the reference refuses, the groups are counted.
fn check_lossless(
    handle: &Handle,
    from: CastScheme,
    rows: usize,
    cols: usize,
    codes: Vec<u8>,
    scales: Vec<f32>,
    fits: bool,
) {
    let wanted = scheme(CodeFormat::E4M3, CastGroup::Group1x128).with_scales(CastScales::Ue8m0);
    let q = HostCastMatrix::from_logical(from, rows, cols, codes, scales).unwrap();
    let matrix = CastMatrix::from_host(handle, &q).unwrap();
    let mut got = poisoned_cast(handle, wanted, rows, cols);
    let mut inexact = handle.upload(&[0u32]).unwrap();
    handle.fp4_to_fp8_into(&matrix, &mut got, Some(&mut inexact.view_mut())).unwrap();
    let count = handle.read::<u32>(&inexact.view()).unwrap()[0] as usize;
    assert_same_uncounted(handle, &matrix, &got);
    match reference::fp4_to_fp8(&q) {
        Ok(want) => {
            assert_cast(handle, &got, &want, &format!("{rows} x {cols} {from}"));
            assert_eq!(count, 0);
            assert_eq!(reference::cast_back(&want, DType::F32), reference::cast_back(&q, DType::F32));
        }
        Err(_) => {
            assert!(!fits, "{rows} x {cols} {from}");
            // By the words of the rule: the least scale of codes that are not zero against the largest of 128 columns.
            let byte = |i: usize, j: usize| q.scale_at(i, j).log2().round() as i32 + 127;
            let lost = (0..rows).flat_map(|i| (0..cols).step_by(128).map(move |j| (i, j))).filter(|(i, first)| {
                let columns = || *first..(*first + 128).min(cols);
                let out = (columns().map(|j| byte(*i, j)).max().unwrap() - 6).max(0);
                columns().any(|j| q.code_value(*i, j) != 0.0 && byte(*i, j) - out < -5)
            });
            assert_eq!(count, lost.count(), "{rows} x {cols} {from}");
        }
    }
}

/// Without a count there may be another kernel: its bytes are the same, also where something is lost.
fn assert_same_uncounted(handle: &Handle, matrix: &CastMatrix, counted: &CastMatrix) {
    let (rows, cols) = (matrix.rows(), matrix.cols());
    let mut got = poisoned_cast(handle, counted.scheme(), rows, cols);
    handle.fp4_to_fp8_into(matrix, &mut got, None).unwrap();
    let bytes = |q: &CastMatrix| [q.codes(), q.scales()].map(|bytes| handle.read_bytes(&bytes).unwrap());
    for (what, (got, want)) in ["code", "scale"].into_iter().zip(bytes(&got).into_iter().zip(bytes(counted))) {
        let first = (0..want.len()).find(|i| got[*i] != want[*i]);
        assert_eq!(first, None, "{rows} x {cols} {}: {what} bytes without a count", matrix.scheme());
    }
}

/// Every byte of a scale, NaN among them, in groups that the matrix cuts. What a group becomes hangs on nothing outside it: each is held to the reference
/// of it alone, its codes and scale where nothing is lost, and the count where the reference refuses it.
#[test]
fn fp4_to_fp8_of_every_scale_byte() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(917);
    let wanted = scheme(CodeFormat::E4M3, CastGroup::Group1x128).with_scales(CastScales::Ue8m0);
    let many = 4 * handle.device().sm_count as usize;
    for (rows, cols) in [(many, 16), (many + 5, 272), (many + 1, 1136), (many + 7, 2016)] {
        let from = scheme(CodeFormat::E2M1, CastGroup::Group1x32).with_scales(CastScales::Ue8m0);
        let [r, c] = from.group().grid(rows, cols);
        // Of each group of 128 the scales lie near one another, or anywhere; one of many is NaN.
        let bases: Vec<i32> = (0..r * cols.div_ceil(128)).map(|_| (rng.bits() % 255) as i32 - 127).collect();
        let scales = (0..r * c).map(|at| {
            let base = bases[at / c * cols.div_ceil(128) + at % c / 4];
            match rng.bits() % 24 {
                0 => f32::NAN,
                1 => f64::from((rng.bits() % 255) as i32 - 127).exp2() as f32,
                _ => f64::from((base + (rng.bits() % 12) as i32).min(127)).exp2() as f32,
            }
        });
        let scales: Vec<f32> = scales.collect();
        let codes = (0..from.code_bytes(rows, cols)).map(|_| rng.bits() as u8).collect();
        let q = HostCastMatrix::from_logical(from, rows, cols, codes, scales).unwrap();
        let matrix = CastMatrix::from_host(&handle, &q).unwrap();
        let mut got = poisoned_cast(&handle, wanted, rows, cols);
        let mut inexact = handle.upload(&[0u32]).unwrap();
        handle.fp4_to_fp8_into(&matrix, &mut got, Some(&mut inexact.view_mut())).unwrap();
        let there = got.to_host(&handle).unwrap();
        let (mut exact, mut lost) = (0, 0);
        for (i, first) in (0..rows).flat_map(|i| (0..cols).step_by(128).map(move |first| (i, first))) {
            let end = (first + 128).min(cols);
            let codes = q.codes()[(i * cols + first) / 2..(i * cols + end) / 2].to_vec();
            let scales = (first..end).step_by(32).map(|j| q.scale_at(i, j)).collect();
            let alone = HostCastMatrix::from_logical(from, 1, end - first, codes, scales).unwrap();
            let Ok(want) = reference::fp4_to_fp8(&alone) else {
                lost += 1;
                continue;
            };
            exact += 1;
            assert_eq!(there.codes()[i * cols + first..i * cols + end], *want.codes(), "{rows} x {cols}: {i}, {first}");
            assert_eq!(there.scale_at(i, first), want.scale_at(0, 0), "{rows} x {cols}: {i}, {first}");
        }
        assert!(exact > rows / 4 && lost > 0, "{exact} exact, {lost} lost: the data say little");
        assert_eq!(handle.read::<u32>(&inexact.view()).unwrap(), [lost], "{rows} x {cols}");
        assert_same_uncounted(&handle, &matrix, &got);
    }
}

/// Scales that are no powers of two are counted, whatever else they are.
#[test]
fn fp4_to_fp8_counts_scales_that_it_cannot_take() {
    let Some(handle) = handle() else { return };
    let from = scheme(CodeFormat::E2M1, CastGroup::Group1x32);
    let wanted = scheme(CodeFormat::E4M3, CastGroup::Group1x128).with_scales(CastScales::Ue8m0);
    let wrong =
        [1.5, -1.0, 0.0, -0.0, f32::NAN, -f32::NAN, f32::INFINITY, f32::from_bits(1), f32::from_bits(0x40_0001)];
    let (rows, cols) = (wrong.len() + 2, 256);
    let mut scales = vec![1.0; rows * 8];
    wrong.iter().enumerate().for_each(|(i, scale)| scales[i * 8 + i % 4] = *scale);
    scales[wrong.len() * 8] = f32::from_bits(0x40_0000) * 4.0;
    let q = HostCastMatrix::from_logical(from, rows, cols, vec![0x21; rows * cols / 2], scales).unwrap();
    let matrix = CastMatrix::from_host(&handle, &q).unwrap();
    let mut got = CastMatrix::zeros(&handle, wanted, rows, cols).unwrap();
    let mut inexact = handle.upload(&[0u32]).unwrap();
    handle.fp4_to_fp8_into(&matrix, &mut got, Some(&mut inexact.view_mut())).unwrap();
    // And 2^-125 beside ones.
    assert_eq!(handle.read::<u32>(&inexact.view()).unwrap()[0] as usize, wrong.len() + 1);
}
