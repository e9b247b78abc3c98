//! What the suite of the linear layer has beside its tests: data, operands and results in buffers of this crate with guards around them,
//! and the products that the layer must give.

use ndarray::{Array2, ArrayView2, Axis, concatenate};
use scaled_gemm::reference::{Accumulator, Gelu, GemmInputs, Noise, gemm_bound, quantize, quantize_transposed};
use scaled_gemm::{
    DType, DeviceBuffer, Handle, HostQuantMatrix, Linear, LinearGradientsInto, LinearRecipe, MatMut, MatRef,
};

use super::common::{bytes_of, round_to, values_of};
use super::guarded::Arena;

/// Bytes of an operand by itself between guards, and the arena where it lies.
fn between_guards(handle: &Handle, bytes: &[u8], alignment: usize) -> (DeviceBuffer, Arena) {
    let mut arena = Arena::new(handle, bytes.len() + 2048);
    (arena.place(handle, bytes, alignment), arena)
}

/// X, W, dY and bias, numbers of one type.
pub struct Data {
    pub dtype: DType,
    pub x: Array2<f32>,
    pub w: Array2<f32>,
    pub dy: Array2<f32>,
    pub bias: Vec<f32>,
}

impl Data {
    pub fn new(dtype: DType, [out, features]: [usize; 2], tokens: usize, outliers: bool) -> Self {
        // That of tests/linear_reference.rs, for the same tokens and shape.
        let mut noise = Noise::new(1000 + tokens as u64);
        let mut matrix = |rows, cols| {
            let mut x: Array2<f32> = noise.matrix(rows, cols, dtype);
            if outliers {
                for v in x.iter_mut() {
                    *v *= if noise.below(512) == 0 { 100.0 } else { 1.0 };
                }
                x.mapv_inplace(|v| round_to(dtype, v));
            }
            x
        };
        let [x, w, dy] = [matrix(tokens, features), matrix(out, features), matrix(tokens, out)];
        Self { dtype, x, w, dy, bias: matrix(1, out).into_raw_vec_and_offset().0 }
    }

    pub fn shape(&self) -> [usize; 2] {
        [self.w.nrows(), self.w.ncols()]
    }
}

/// A matrix in a buffer of this crate, at no more than the alignment that is asked of it, rows apart by `gap` elements of NaN, which lie before the first row and behind the last one too.
pub struct Uploaded {
    pub buffer: DeviceBuffer,
    pub dtype: DType,
    pub shape: (usize, usize),
    stride: usize,
}

impl Uploaded {
    pub fn new(handle: &Handle, x: &Array2<f32>, dtype: DType, gap: usize) -> Self {
        let (rows, cols) = x.dim();
        let mut values = Vec::new();
        for row in x.rows() {
            values.extend(row.iter());
            values.resize(values.len() + gap, f32::NAN);
        }
        values.resize(values.len() + 64, f32::NAN);
        let buffer = between_guards(handle, &bytes_of(dtype, &values), 16).0;
        Self { buffer, dtype, shape: (rows, cols), stride: cols + gap }
    }

    /// A bias.
    pub fn vector(handle: &Handle, x: &[f32], dtype: DType) -> DeviceBuffer {
        between_guards(handle, &bytes_of(dtype, x), dtype.bytes()).0
    }

    pub fn matrix(&self) -> MatRef<'_> {
        MatRef::new(&self.buffer, self.dtype, self.shape.0, self.shape.1).unwrap().with_row_stride(self.stride).unwrap()
    }
}

/// A result on the device, rows apart, with bytes of 0xFF wherever nothing may be written.
pub struct Target {
    pub buffer: DeviceBuffer,
    arena: Arena,
    pub dtype: DType,
    pub shape: (usize, usize),
    stride: usize,
}

impl Target {
    pub fn new(handle: &Handle, dtype: DType, rows: usize, cols: usize, gap: usize) -> Self {
        let (buffer, arena) = between_guards(handle, &vec![0xFF; rows * (cols + gap) * dtype.bytes() + 1024], 16);
        Self { buffer, arena, dtype, shape: (rows, cols), stride: cols + gap }
    }

    pub fn matrix(&mut self) -> MatMut<'_> {
        let (rows, cols) = self.shape;
        MatMut::new(&mut self.buffer, self.dtype, rows, cols).unwrap().with_row_stride(self.stride).unwrap()
    }

    /// The values; panics if anything was written beside them.
    pub fn read(&self, handle: &Handle) -> Array2<f32> {
        let ((rows, cols), size) = (self.shape, self.dtype.bytes());
        let bytes = &self.arena.read(handle, "a result of a layer")[self.arena.last()];
        let mut inside = Vec::new();
        for (i, row) in bytes.chunks(self.stride * size).take(rows).enumerate() {
            let (values, gap) = row.split_at(cols * size);
            inside.extend_from_slice(values);
            assert!(gap.iter().all(|b| *b == 0xFF), "written behind row {i}");
        }
        assert!(bytes[rows * self.stride * size..].iter().all(|b| *b == 0xFF), "written behind the last row");
        Array2::from_shape_vec(self.shape, values_of(self.dtype, &inside)).unwrap()
    }
}

/// dW and the gradient of the bias, in memory of the test.
pub struct Gradients {
    pub weight: Target,
    pub bias: Option<(DeviceBuffer, Arena)>,
}

impl Gradients {
    /// Of zeros.
    pub fn new(handle: &Handle, layer: &Linear, has_bias: bool, gap: usize) -> Self {
        let (out, features) = (layer.out_features(), layer.in_features());
        let weight = Target::new(handle, DType::F32, out, features, gap);
        let bias = has_bias.then(|| between_guards(handle, &bytes_of(DType::F32, &vec![f32::NAN; out]), 4));
        let mut new = Self { weight, bias };
        layer.zero_gradients(handle, new.views()).unwrap();
        new
    }

    pub fn views(&mut self) -> LinearGradientsInto<'_> {
        LinearGradientsInto { weight: self.weight.matrix(), bias: self.bias.as_mut().map(|bias| bias.0.view_mut()) }
    }

    pub fn read(&self, handle: &Handle) -> (Array2<f32>, Vec<f32>) {
        let numbers = |(_, arena): &(DeviceBuffer, Arena)| {
            values_of(DType::F32, &arena.read(handle, "the gradient of a bias")[arena.last()])
        };
        (self.weight.read(handle), self.bias.as_ref().map_or(Vec::new(), numbers))
    }
}

/// The operands of one product.
pub enum Pair {
    Quantized(HostQuantMatrix, HostQuantMatrix),
    Bf16(Array2<f32>, Array2<f32>),
}

pub fn padded(x: &Array2<f32>) -> Array2<f32> {
    let rest = x.nrows().next_multiple_of(16) - x.nrows();
    concatenate![Axis(0), x.view(), Array2::<f32>::zeros((rest, x.ncols()))]
}

/// Y, dX and dW by operands that the CPU quantizes.
pub fn pairs(recipe: LinearRecipe, data: &Data) -> [Pair; 3] {
    let plain = |x: &Array2<f32>, recipe| quantize(x.view(), data.dtype, recipe).unwrap();
    let turned = |x: &Array2<f32>, recipe| quantize_transposed(padded(x).view(), data.dtype, recipe).unwrap();
    let bf16 = |x: ArrayView2<f32>| x.mapv(|v| round_to(DType::Bf16, v)).as_standard_layout().into_owned();
    let Data { x, w, dy, .. } = data;
    [
        match recipe.forward() {
            Some([a, b]) => Pair::Quantized(plain(x, a), plain(w, b)),
            None => Pair::Bf16(bf16(x.view()), bf16(w.view())),
        },
        match recipe.input_gradient() {
            Some([a, b]) => Pair::Quantized(plain(dy, a), turned(w, b)),
            None => Pair::Bf16(bf16(dy.view()), bf16(w.t())),
        },
        match recipe.weight_gradient() {
            Some([a, b]) => Pair::Quantized(turned(dy, a), turned(x, b)),
            None => Pair::Bf16(bf16(dy.t()), bf16(x.t())),
        },
    ]
}

/// `got` is the product of the pair, plus C and bias, within the bound.
pub fn assert_product(
    pair: &Pair,
    got: &Array2<f32>,
    out: DType,
    c: Option<&Array2<f32>>,
    bias: Option<(&[f32], DType)>,
    context: &str,
) {
    match pair {
        Pair::Quantized(a, b) => {
            let wide = a.scheme().spec().block.is_some();
            let accumulator = if wide { Accumulator::TensorCoreWide } else { Accumulator::TensorCorePromoted };
            let inputs = GemmInputs { accumulate: c.map(|c| (1.0, c.view())), bias, ..GemmInputs::new(a, b, out) };
            let bound = gemm_bound(&inputs, accumulator, Gelu::Ieee).unwrap();
            bound.check(got.view()).unwrap_or_else(|e| panic!("{context}: {e}"));
        }
        Pair::Bf16(a, b) => {
            let wide = |x: &Array2<f32>| x.mapv(f64::from);
            let (a, b) = (wide(a), wide(b));
            let (mut exact, mut size) = (a.dot(&b.t()), a.mapv(f64::abs).dot(&b.t().mapv(f64::abs)));
            for ((i, j), exact) in exact.indexed_iter_mut() {
                let added = [c.map_or(0.0, |c| c[[i, j]].into()), bias.map_or(0.0, |(bias, _)| bias[j].into())];
                *exact += added.iter().sum::<f64>();
                size[[i, j]] += added.iter().map(|v| v.abs()).sum::<f64>();
            }
            // Products are exact. Each of k + 2 additions truncates at worst what it aligns and what it gives, 2^-23 of the sum of
            // magnitudes each; then the output's own rounding.
            let unit =
                [(DType::F32, -24), (DType::F16, -11), (DType::Bf16, -8)].iter().find(|(t, _)| *t == out).unwrap().1;
            let terms = (a.ncols() + 2) as f64 * 2f64.powi(-22);
            for ((at, got), exact) in got.indexed_iter().zip(&exact) {
                let (off, sum) = ((f64::from(*got) - exact).abs(), terms * size[[at.0, at.1]]);
                let tolerance = sum + 2f64.powi(unit) * (exact.abs() + sum) + 2f64.powi(-25);
                assert!(off <= tolerance, "{context}: {at:?}: {got}, {exact}, off {off:e} of {tolerance:e}");
            }
        }
    }
}
