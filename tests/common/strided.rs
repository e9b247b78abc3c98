//! Matrices whose rows lie apart, on both sides, and their comparison.
//!
//! Not a module of `common`: the other suites compile without it.
#![allow(dead_code)]

use ndarray::Array2;
use scaled_gemm::{DType, DeviceBuffer, Handle, MatMut, MatRef};

use crate::common::{Noise, bytes_of, round_to, values_of};

/// A matrix on both sides, rows so many elements apart, NaN between them.
pub struct Both {
    pub values: Array2<f32>,
    pub dtype: DType,
    pub data: DeviceBuffer,
    pub stride: usize,
}

impl Both {
    pub fn new(handle: &Handle, dtype: DType, stride: usize, values: Array2<f32>) -> Self {
        let values = values.mapv(|v| round_to(dtype, v));
        let (rows, cols) = values.dim();
        let apart = Array2::from_shape_fn((rows, stride), |(i, j)| if j < cols { values[(i, j)] } else { f32::NAN });
        Self { data: handle.upload(&bytes_of(dtype, &apart)).unwrap(), values, dtype, stride }
    }

    pub fn matrix(&self) -> MatRef<'_> {
        let (rows, cols) = self.values.dim();
        MatRef::new(&self.data, self.dtype, rows, cols).unwrap().with_row_stride(self.stride).unwrap()
    }

    pub fn matrix_mut(&mut self) -> MatMut<'_> {
        let (rows, cols) = self.values.dim();
        MatMut::new(&mut self.data, self.dtype, rows, cols).unwrap().with_row_stride(self.stride).unwrap()
    }

    /// What lies on the device, without what lies between rows, which must be NaN still.
    pub fn read(&self, handle: &Handle) -> Array2<f32> {
        let (rows, cols) = self.values.dim();
        let all = values_of(self.dtype, &handle.read_bytes(&self.data.view()).unwrap());
        let all = Array2::from_shape_vec((rows, self.stride), all).unwrap();
        assert!(all.slice(ndarray::s![.., cols..]).iter().all(|v| v.is_nan()), "what lies between rows was written");
        all.slice(ndarray::s![.., ..cols]).to_owned()
    }
}

/// The values of a matrix as they lie on the device, with `between` rows.
pub fn apart_by(of: &Both, between: f32) -> Array2<f32> {
    let (rows, cols) = of.values.dim();
    Array2::from_shape_fn((rows, of.stride), |(i, j)| if j < cols { of.values[(i, j)] } else { between })
}

/// Numbers of many sizes, some special ones among them where they are wanted.
pub fn numbers(rng: &mut Noise, (rows, cols): (usize, usize), specials: bool) -> Array2<f32> {
    let special = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 10.0, -10.0, 88.5, -104.5, 3e38, 1e-40];
    Array2::from_shape_fn((rows, cols), |(i, _)| match rng.bits() % 509 {
        k @ 0..=9 if specials && i % 3 == 0 => special[k as usize],
        _ => rng.normal() * [1.0, 6.0, 0.01][i % 3],
    })
}

/// Equal bits, or NaN on both sides.
#[track_caller]
pub fn same<'a>(got: impl IntoIterator<Item = &'a f32>, want: impl IntoIterator<Item = &'a f32>, what: &str) {
    let (got, want): (Vec<_>, Vec<_>) = (got.into_iter().collect(), want.into_iter().collect());
    assert_eq!(got.len(), want.len(), "{what}");
    let bad = got.iter().zip(&want).position(|(a, b)| a.to_bits() != b.to_bits() && !(a.is_nan() && b.is_nan()));
    if let Some(at) = bad {
        panic!("{what}: element {at} is {:e}, must be {:e}", got[at], want[at]);
    }
}

pub fn floats(handle: &Handle, buffer: &DeviceBuffer) -> Vec<f32> {
    handle.read::<f32>(&buffer.view()).unwrap()
}
