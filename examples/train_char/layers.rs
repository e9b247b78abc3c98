//! What a block is made of besides linear layers: a norm, attention, and the gated MLP's function; and the optimizer. All of it on the CPU.

use ndarray::{Array2, Axis, s};
use scaled_gemm::reference::{RmsNorm, Swiglu, rms_norm, swiglu, swiglu_backward};
use scaled_gemm::{DType, Result};

/// FP32 numbers that Adam trains.
pub struct Weights {
    pub value: Array2<f32>,
    pub gradient: Array2<f32>,
    mean: Array2<f32>,
    square: Array2<f32>,
    steps: i32,
}

impl Weights {
    pub fn new(value: Array2<f32>) -> Self {
        let zeros = Array2::zeros(value.dim());
        Self { gradient: zeros.clone(), mean: zeros.clone(), square: zeros, value, steps: 0 }
    }

    /// Adam's step against the gradient, which is zero afterwards.
    pub fn step(&mut self, rate: f32) {
        let (b1, b2) = (0.9f32, 0.95f32);
        self.steps += 1;
        let [c1, c2] = [b1, b2].map(|b| 1.0 - b.powi(self.steps));
        ndarray::Zip::from(&mut self.value).and(&mut self.mean).and(&mut self.square).and(&mut self.gradient).for_each(
            |value, mean, square, gradient| {
                *mean = b1 * *mean + (1.0 - b1) * *gradient;
                *square = b2 * *square + (1.0 - b2) * *gradient * *gradient;
                *value -= rate * (*mean / c1) / ((*square / c2).sqrt() + 1e-8);
                *gradient = 0.0;
            },
        );
    }
}

/// RMSNorm along rows.
pub struct Norm {
    pub gain: Weights,
    saved: Option<(Array2<f32>, Vec<f32>)>,
}

impl Norm {
    pub fn new(features: usize) -> Self {
        Self { gain: Weights::new(Array2::ones((1, features))), saved: None }
    }

    pub fn forward(&mut self, x: &Array2<f32>) -> Result<Array2<f32>> {
        let weight = self.gain.value.row(0).to_vec();
        let normed =
            rms_norm(x.view(), &RmsNorm { weight: &weight, epsilon: 1e-6, residual: None, dtype: DType::F32 })?;
        self.saved = Some((x.clone(), normed.rstd));
        Ok(normed.values)
    }

    pub fn backward(&mut self, dy: &Array2<f32>) -> Array2<f32> {
        let (x, rstd) = self.saved.take().expect("a backward pass follows a forward pass");
        let cols = x.ncols() as f32;
        let mut dx = Array2::zeros(x.dim());
        for (i, mut dx) in dx.rows_mut().into_iter().enumerate() {
            let (x, dy, r) = (x.row(i), dy.row(i), rstd[i]);
            let along = x.iter().zip(&dy).zip(self.gain.value.row(0)).map(|((x, dy), g)| x * dy * g).sum::<f32>();
            for (j, dx) in dx.iter_mut().enumerate() {
                self.gain.gradient[[0, j]] += dy[j] * x[j] * r;
                *dx = r * (self.gain.value[[0, j]] * dy[j] - x[j] * r * r * along / cols);
            }
        }
        dx
    }
}

/// Causal attention of stretches of `len` tokens; `[q | k | v]` in, each `heads` heads wide.
pub struct Attention {
    pub len: usize,
    pub heads: usize,
    saved: Option<(Array2<f32>, Vec<Array2<f32>>)>,
}

impl Attention {
    pub fn new(len: usize, heads: usize) -> Self {
        Self { len, heads, saved: None }
    }

    /// Rows and the columns of q, k and v of every stretch and head.
    fn parts(&self, qkv: &Array2<f32>) -> impl Iterator<Item = (std::ops::Range<usize>, [std::ops::Range<usize>; 3])> {
        let (len, heads, width) = (self.len, self.heads, qkv.ncols() / 3);
        let head = width / heads;
        (0..qkv.nrows() / len * heads).map(move |at| {
            let (first, col) = (at / heads * len, at % heads * head);
            (first..first + len, [0, 1, 2].map(|i| i * width + col..i * width + col + head))
        })
    }

    pub fn forward(&mut self, qkv: Array2<f32>) -> Array2<f32> {
        let mut out = Array2::zeros((qkv.nrows(), qkv.ncols() / 3));
        let mut weights = Vec::new();
        for (rows, [q, k, v]) in self.parts(&qkv) {
            let scale = 1.0 / (q.len() as f32).sqrt();
            let at = |cols| qkv.slice(s![rows.clone(), cols]);
            let to = q.clone();
            let mut scores = at(q).dot(&at(k).t()) * scale;
            for (i, mut row) in scores.rows_mut().into_iter().enumerate() {
                let largest = row.iter().take(i + 1).copied().fold(f32::NEG_INFINITY, f32::max);
                row.iter_mut().enumerate().for_each(|(j, p)| *p = if j > i { 0.0 } else { (*p - largest).exp() });
                let sum = row.sum();
                row /= sum;
            }
            out.slice_mut(s![rows.clone(), to]).assign(&scores.dot(&at(v)));
            weights.push(scores);
        }
        self.saved = Some((qkv, weights));
        out
    }

    pub fn backward(&mut self, d_out: &Array2<f32>) -> Array2<f32> {
        let (qkv, weights) = self.saved.take().expect("a backward pass follows a forward pass");
        let mut gradient = Array2::zeros(qkv.dim());
        for ((rows, [q, k, v]), p) in self.parts(&qkv).zip(&weights) {
            let scale = 1.0 / (q.len() as f32).sqrt();
            let at = |cols: &std::ops::Range<usize>| qkv.slice(s![rows.clone(), cols.clone()]);
            let d_out = d_out.slice(s![rows.clone(), q.clone()]);
            let dp = d_out.dot(&at(&v).t());
            let along = (&dp * p).sum_axis(Axis(1)).insert_axis(Axis(1));
            let d_scores = (dp - along) * p * scale;
            let [dq, dk, dv] = [d_scores.dot(&at(&k)), d_scores.t().dot(&at(&q)), p.t().dot(&d_out)];
            for (cols, d) in [(q, dq), (k, dk), (v, dv)] {
                gradient.slice_mut(s![rows.clone(), cols]).assign(&d);
            }
        }
        gradient
    }
}

/// `silu(gate) * up` of `[gate | up]`.
#[derive(Default)]
pub struct Gate {
    saved: Option<Array2<f32>>,
}

impl Gate {
    pub fn forward(&mut self, x: Array2<f32>) -> Result<Array2<f32>> {
        let (y, _) = swiglu(x.view(), &Swiglu::default())?;
        self.saved = Some(x);
        Ok(y)
    }

    pub fn backward(&mut self, dy: &Array2<f32>) -> Result<Array2<f32>> {
        let x = self.saved.take().expect("a backward pass follows a forward pass");
        Ok(swiglu_backward(x.view(), dy.view(), &Swiglu::default())?.x)
    }
}
