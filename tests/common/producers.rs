//! What the suites of producers share: a gated matrix with all that goes with its rows.
//!
//! Not a module of `common`: the other suites compile without it.
#![allow(dead_code)]

use ndarray::Array2;
use scaled_gemm::reference::{self, ClampCounts, Swiglu};
use scaled_gemm::{CastGroup, DType, DeviceBuffer, Handle, MatRef, SourceActivation, SwigluSource, VecRef};

use crate::common::{Noise, bytes_of, round_to};

/// A gated matrix on both sides, with what goes with its rows.
pub struct Gated {
    pub x: Array2<f32>,
    pub dtype: DType,
    pub data: DeviceBuffer,
    pub stride: usize,
    pub weights: Vec<f32>,
    pub weights_there: DeviceBuffer,
    pub experts: Vec<i32>,
    pub experts_there: DeviceBuffer,
}

impl Gated {
    pub fn new(handle: &Handle, rng: &mut Noise, rows: usize, half: usize, dtype: DType) -> Self {
        Self::strided(handle, rng, (rows, half), dtype, 2 * half)
    }

    /// Rows so many elements apart, NaN between them.
    pub fn strided(
        handle: &Handle,
        rng: &mut Noise,
        (rows, half): (usize, usize),
        dtype: DType,
        stride: usize,
    ) -> Self {
        let specials = [f32::NAN, f32::INFINITY, f32::NEG_INFINITY, -0.0, 10.0, -10.0, 88.5, -104.5, 3e38, 1e-40];
        let x = Array2::from_shape_fn((rows, 2 * half), |_| {
            let v = match rng.bits() % 211 {
                k @ 0..=9 => specials[k as usize],
                _ => rng.normal() * 6.0,
            };
            round_to(dtype, v)
        });
        Self::of(handle, rng, x, dtype, stride)
    }

    /// Of these numbers, rows so many elements apart.
    pub fn of(handle: &Handle, rng: &mut Noise, x: Array2<f32>, dtype: DType, stride: usize) -> Self {
        let (rows, cols) = x.dim();
        let weights: Vec<f32> = (0..rows).map(|_| rng.uniform() + 0.25).collect();
        let experts: Vec<i32> = (0..rows).map(|i| if i % 7 == 3 { -1 } else { (i % 5) as i32 }).collect();
        let words: Vec<u32> = experts.iter().map(|e| e.cast_unsigned()).collect();
        Self {
            data: {
                let apart = |(i, j)| if j < cols { x[(i, j)] } else { f32::NAN };
                handle.upload(&bytes_of(dtype, &Array2::from_shape_fn((rows, stride), apart))).unwrap()
            },
            stride,
            weights_there: handle.upload(&weights).unwrap(),
            experts_there: handle.upload(&words).unwrap(),
            x,
            dtype,
            weights,
            experts,
        }
    }

    pub fn matrix(&self) -> MatRef<'_> {
        let (rows, cols) = self.x.dim();
        MatRef::new(&self.data, self.dtype, rows, cols).unwrap().with_row_stride(self.stride).unwrap()
    }

    /// With everything, or nothing.
    pub fn options(&self, all: bool) -> Swiglu<'_> {
        match all {
            false => Swiglu::default(),
            true => Swiglu { clamp: Some(10.0), weights: Some(&self.weights), experts: Some(&self.experts) },
        }
    }

    pub fn source<'a>(&'a self, matrix: &'a MatRef<'a>, all: bool, counts: &'a mut DeviceBuffer) -> SwigluSource<'a> {
        let source = SwigluSource::new(matrix).unwrap();
        if !all {
            return source;
        }
        let weights = VecRef::new(&self.weights_there, DType::F32, self.weights.len()).unwrap();
        let source = source.with_clamp(10.0).unwrap().with_weights(weights).unwrap();
        source.with_experts(&self.experts_there).unwrap().with_counts(counts).unwrap()
    }

    /// The values that a cast to this grouping reads.
    pub fn values(&self, all: bool, group: CastGroup) -> (Array2<f32>, ClampCounts) {
        let (values, counts) = reference::swiglu(self.x.view(), &self.options(all)).unwrap();
        let rounded = if group.is_per_channel() { reference::round_values(values, DType::Bf16) } else { values };
        (rounded, counts)
    }
}

/// Every activation of matrices of every type: matrix and activation, the values, and what they are called.
pub fn each_activation(
    handle: &Handle,
    seed: u64,
    mut check: impl FnMut((&MatRef<'_>, SourceActivation), &Array2<f32>, &str),
) {
    let mut rng = Noise::new(seed);
    for dtype in [DType::Bf16, DType::F16, DType::F32] {
        for (rows, cols) in [(33, 288), (144, 64), (2, 16400)] {
            let gated = Gated::new(handle, &mut rng, rows, cols / 2, dtype);
            let matrix = gated.matrix();
            for activation in SourceActivation::ALL {
                let values = match activation {
                    SourceActivation::Silu => reference::silu(gated.x.view()),
                    SourceActivation::Gelu => reference::gelu(gated.x.view()),
                    SourceActivation::GeluTanh => reference::gelu_tanh(gated.x.view()),
                };
                check((&matrix, activation), &values, &format!("{activation} of {dtype}"));
            }
        }
    }
}

/// The three numbers of a clamp.
pub fn read_counts(handle: &Handle, counts: &DeviceBuffer) -> ClampCounts {
    let words = handle.read::<u32>(&counts.view()).unwrap();
    let number = |at: usize| u64::from(words[2 * at]) | u64::from(words[2 * at + 1]) << 32;
    ClampCounts { left_above: number(0), right_above: number(1), right_below: number(2) }
}
