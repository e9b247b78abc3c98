//! `Handle::rescale_into` byte for byte against a scalar loop over the operations of `Epilogue`.
#![cfg(feature = "cuda")]

mod common;

use common::*;
use ndarray::Array2;
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::{Activation, DType, Error, Handle, MatMut, MatRef, RescaleArgs, VecRef};

const TYPES: [DType; 3] = [DType::Bf16, DType::F16, DType::F32];
const COLUMNS: [usize; 4] = [8, 24, 520, 2112];

/// Which scales are given.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Scales {
    None,
    Rows,
    Columns,
    Both,
}

const SCALES: [Scales; 4] = [Scales::None, Scales::Rows, Scales::Columns, Scales::Both];

#[derive(Clone, Copy, Debug)]
struct Case {
    out: DType,
    scales: Scales,
    bias: Option<DType>,
    activation: Activation,
    residual: Option<DType>,
    /// Elements beyond n from row to row, and elements before the first one, of every operand.
    gap: usize,
    offset: usize,
}

/// The operands on the host; bias and residual are numbers that BF16 and F16 share.
struct Data {
    acc: Array2<f32>,
    row_scale: Vec<f32>,
    col_scale: Vec<f32>,
    bias: Vec<f32>,
    residual: Array2<f32>,
}

impl Data {
    fn new(rng: &mut Noise, m: usize, n: usize) -> Self {
        let wide = |rng: &mut Noise| rng.normal() * 10f32.powf(rng.uniform() * 4.0 - 2.0);
        let shared = |rng: &mut Noise| round_to(DType::F16, round_to(DType::Bf16, wide(rng)));
        Self {
            acc: Array2::from_shape_fn((m, n), |_| wide(rng)),
            row_scale: (0..m).map(|_| wide(rng)).collect(),
            col_scale: (0..n).map(|_| wide(rng)).collect(),
            bias: (0..n).map(|_| shared(rng)).collect(),
            residual: Array2::from_shape_fn((m, n), |_| shared(rng)),
        }
    }

    /// The operations in the documented order, each one rounded FP32 operation.
    fn want(&self, case: &Case) -> Array2<f32> {
        Array2::from_shape_fn(self.acc.dim(), |(i, j)| {
            let mut v = self.acc[[i, j]];
            if matches!(case.scales, Scales::Rows | Scales::Both) {
                v *= self.row_scale[i];
            }
            if matches!(case.scales, Scales::Columns | Scales::Both) {
                v *= self.col_scale[j];
            }
            if case.bias.is_some() {
                v += self.bias[j];
            }
            v = case.activation.apply(v);
            if case.residual.is_some() {
                v += self.residual[[i, j]];
            }
            round_to(case.out, v)
        })
    }
}

fn check(handle: &Handle, data: &Data, case: &Case) {
    let (m, n) = data.acc.dim();
    let (stride, offset) = (n + case.gap, case.offset);
    // A vector behind `offset` elements of NaN.
    let vector =
        |values: &[f32], dtype| upload(handle, &bytes_of(dtype, std::iter::repeat_n(&f32::NAN, offset).chain(values)));
    let acc = upload_strided(handle, &data.acc, DType::F32, stride, offset);
    let (rows, cols) = (vector(&data.row_scale, DType::F32), vector(&data.col_scale, DType::F32));
    let bias = case.bias.map(|dtype| (vector(&data.bias, dtype), dtype));
    let residual = case.residual.map(|dtype| (upload_strided(handle, &data.residual, dtype, stride, offset), dtype));
    let size = case.out.bytes();
    let mut d = poisoned(handle, (offset + m * stride) * size + 256);

    let mut view = d.slice_mut(offset * size..);
    let acc = MatRef::new(acc.slice(offset * 4..), DType::F32, m, n).unwrap().with_row_stride(stride).unwrap();
    let target = MatMut::new(&mut view, case.out, m, n).unwrap().with_row_stride(stride).unwrap();
    let mut args = RescaleArgs::new(acc, target).activation(case.activation);
    if matches!(case.scales, Scales::Rows | Scales::Both) {
        args = args.row_scale(VecRef::new(rows.slice(offset * 4..), DType::F32, m).unwrap());
    }
    if matches!(case.scales, Scales::Columns | Scales::Both) {
        args = args.col_scale(VecRef::new(cols.slice(offset * 4..), DType::F32, n).unwrap());
    }
    if let Some((bias, dtype)) = &bias {
        args = args.bias(VecRef::new(bias.slice(offset * dtype.bytes()..), *dtype, n).unwrap());
    }
    if let Some((residual, dtype)) = &residual {
        let matrix = MatRef::new(residual.slice(offset * dtype.bytes()..), *dtype, m, n).unwrap();
        args = args.residual(matrix.with_row_stride(stride).unwrap());
    }
    handle.rescale_into(args).unwrap();

    let context = format!("{m} x {n} {case:?}");
    let all = handle.stream().clone_dtoh(&d).unwrap();
    let (before, body) = all.split_at(offset * size);
    let mut packed = Vec::with_capacity(m * n * size);
    let mut outside: Vec<&[u8]> = vec![before, &body[m * stride * size..]];
    for row in body[..m * stride * size].chunks(stride * size) {
        packed.extend_from_slice(&row[..n * size]);
        outside.push(&row[n * size..]);
    }
    assert!(outside.iter().all(|bytes| bytes.iter().all(|b| *b == 0xFF)), "{context}: written outside the rows");
    let want = data.want(case);
    assert_same_values(&values_of(case.out, &packed), want.as_slice().unwrap(), n, &context);
}

fn optional_types() -> impl Iterator<Item = Option<DType>> {
    [None].into_iter().chain(TYPES.map(Some))
}

/// Every combination of types, scales, bias, activation and residual.
fn every_combination(handle: &Handle, data: &Data, gap: usize, offset: usize) {
    for out in TYPES {
        for scales in SCALES {
            for bias in optional_types() {
                for activation in Activation::ALL {
                    for residual in optional_types() {
                        check(handle, data, &Case { out, scales, bias, activation, residual, gap, offset });
                    }
                }
            }
        }
    }
}

#[test]
fn every_combination_of_operands() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(31);
    for ((m, n), (gap, offset)) in [((3, 24), (0, 0)), ((17, 520), (8, 0)), ((5, 40), (3, 1))] {
        every_combination(&handle, &Data::new(&mut rng, m, n), gap, offset);
    }
}

#[test]
fn every_shape_stride_and_alignment() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(32);
    for m in ROWS {
        for n in COLUMNS {
            let data = Data::new(&mut rng, m, n);
            for (at, out) in TYPES.into_iter().enumerate() {
                let full = Case {
                    out,
                    scales: Scales::Both,
                    bias: Some(TYPES[(at + 1) % 3]),
                    activation: Activation::Gelu,
                    residual: Some(TYPES[(at + 2) % 3]),
                    gap: 0,
                    offset: 0,
                };
                let plain =
                    Case { scales: Scales::None, bias: None, activation: Activation::None, residual: None, ..full };
                for (gap, offset) in [(0, 0), (8, 0), (0, 1), (1, 0), (4, 4), (3, 5), (0, 8)] {
                    check(&handle, &data, &Case { gap, offset, ..full });
                    check(&handle, &data, &Case { gap, offset, ..plain });
                }
            }
        }
    }
}

/// More elements than one wave of blocks has, and more rows than a grid's second axis.
#[test]
fn large_outputs() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(33);
    for (m, n) in [(2049, 1032), (300_001, 8)] {
        let data = Data::new(&mut rng, m, n);
        for out in [DType::Bf16, DType::F32] {
            let (bias, residual) = (Some(DType::F32), Some(DType::Bf16));
            let case =
                Case { out, scales: Scales::Both, bias, activation: Activation::Silu, residual, gap: 0, offset: 0 };
            check(&handle, &data, &case);
        }
    }
}

/// NaN, infinities, zeros of both signs, subnormals and numbers near the limits, in every operand.
#[test]
fn special_values() {
    let Some(handle) = handle() else { return };
    let specials = [
        f32::NAN,
        f32::INFINITY,
        f32::NEG_INFINITY,
        0.0,
        -0.0,
        f32::from_bits(1),
        -f32::from_bits(0x007F_FFFF),
        f32::MIN_POSITIVE,
        1e-40,
        -1e-20,
        6e-8,
        65504.0,
        65519.9,
        65520.0,
        -1e20,
        3.3e38,
        f32::MAX,
        -f32::MAX,
        88.7,
        -103.5,
        -5.0,
        10.0,
    ];
    let n = specials.len().next_multiple_of(8);
    let m = 2 * specials.len();
    let at = |i: usize| specials[i % specials.len()];
    let mut data = Data::new(&mut Noise::new(34), m, n);
    // The upper half has specials in the sum and common scales, the lower half special scales too.
    data.acc = Array2::from_shape_fn((m, n), |(i, j)| at(i + j));
    data.row_scale = (0..m).map(|i| if i < specials.len() { 1.0 } else { at(i) }).collect();
    for operands in 0..4 {
        let (special_columns, special_rest) = (operands & 1 != 0, operands & 2 != 0);
        data.col_scale = (0..n).map(|j| if special_columns { at(j + 3) } else { 1.0 }).collect();
        // Every type must hold bias and residual: rounded to F16, some become infinite or zero.
        let shared = |v: f32| round_to(DType::F16, round_to(DType::Bf16, v));
        if special_rest {
            data.bias = (0..n).map(|j| shared(at(j + 5))).collect();
            data.residual = Array2::from_shape_fn((m, n), |(i, j)| shared(at(i * 7 + j)));
        }
        every_combination(&handle, &data, 0, 0);
    }
}

/// Each activation over the whole range of FP32, a number from each 2^18: rounding in the exponential would show.
#[test]
fn activations_over_all_magnitudes() {
    let Some(handle) = handle() else { return };
    let n = 1024;
    let values: Vec<f32> =
        (0..1u32 << 14).map(|i| f32::from_bits((i << 18) | (i.wrapping_mul(40503) & 0x3FFFF))).collect();
    let mut data = Data::new(&mut Noise::new(35), values.len() / n, n);
    data.acc = Array2::from_shape_vec((values.len() / n, n), values).unwrap();
    // And densely where the activations bend.
    let mut bend = Data::new(&mut Noise::new(36), 128, n);
    bend.acc = Array2::from_shape_fn((128, n), |(i, j)| ((i * n + j) as f32 - 65536.0) * 2.5e-4);
    for data in [data, bend] {
        for out in TYPES {
            for activation in Activation::ALL {
                let (scales, gap, offset) = (Scales::None, 0, 0);
                check(&handle, &data, &Case { out, scales, bias: None, activation, residual: None, gap, offset });
            }
        }
    }
}

#[test]
fn refusals_name_operand_numbers_and_rule() {
    let Some(handle) = handle() else { return };
    let (m, n) = (4, 16);
    let bytes = poisoned(&handle, 4096);
    let mut target = poisoned(&handle, 4096);
    let acc = |dtype| MatRef::new(&bytes, dtype, m, n).unwrap();
    let vector = |dtype, len| VecRef::new(&bytes, dtype, len).unwrap();
    let mut refuse = |words: &[&str], call: &dyn Fn(&mut CudaSlice<u8>) -> Error| {
        let error = call(&mut target).to_string();
        words.iter().for_each(|w| assert!(error.contains(w), "{w:?} is not in {error:?}"));
    };
    fn d(target: &mut CudaSlice<u8>, dtype: DType, cols: usize) -> MatMut<'_> {
        MatMut::new(target, dtype, 4, cols).unwrap()
    }
    let call = |args: RescaleArgs<'_>| handle.rescale_into(args).unwrap_err();
    refuse(&["acc", "4 x 16", "must be 4 x 24"], &|t| call(RescaleArgs::new(acc(DType::F32), d(t, DType::Bf16, 24))));
    refuse(&["acc", "bf16", "must be f32"], &|t| call(RescaleArgs::new(acc(DType::Bf16), d(t, DType::Bf16, n))));
    refuse(&["D", "e4m3", "bf16, f16 or f32"], &|t| call(RescaleArgs::new(acc(DType::F32), d(t, DType::E4M3, n))));
    refuse(&["row scale", "5 values", "must have 4", "4 x 16"], &|t| {
        call(RescaleArgs::new(acc(DType::F32), d(t, DType::F32, n)).row_scale(vector(DType::F32, 5)))
    });
    refuse(&["column scale", "f16", "must be f32"], &|t| {
        call(RescaleArgs::new(acc(DType::F32), d(t, DType::F32, n)).col_scale(vector(DType::F16, n)))
    });
    refuse(&["bias", "15 values", "must have 16"], &|t| {
        call(RescaleArgs::new(acc(DType::F32), d(t, DType::F32, n)).bias(vector(DType::F16, 15)))
    });
    refuse(&["bias", "e5m2", "bf16, f16, f32"], &|t| {
        call(RescaleArgs::new(acc(DType::F32), d(t, DType::F32, n)).bias(vector(DType::E5M2, n)))
    });
    refuse(&["residual", "4 x 24", "must be 4 x 16"], &|t| {
        let residual = MatRef::new(&bytes, DType::F32, m, 24).unwrap();
        call(RescaleArgs::new(acc(DType::F32), d(t, DType::F32, n)).residual(residual))
    });
    refuse(&["D", "4 x 12", "multiple of 8"], &|t| {
        let acc = MatRef::new(&bytes, DType::F32, m, 12).unwrap();
        call(RescaleArgs::new(acc, d(t, DType::F32, 12)))
    });
    let nothing = RescaleArgs::new(
        MatRef::new(&bytes, DType::F32, 0, n).unwrap(),
        MatMut::new(&mut target, DType::F32, 0, n).unwrap(),
    );
    handle.rescale_into(nothing).unwrap();
}
