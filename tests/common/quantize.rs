//! What the quantizer suites share: an input on the device, compared with the reference in every direction; recipes.
//!
//! Not a module of `common`: the other suites compile without it.
#![allow(dead_code)]

use ndarray::{Array2, Axis};
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::{
    BlockScaleRule, BlockShape, CodeFormat, CodeRounding, DType, DeviceBytes, E4m3Bound, ErrorMath, ErrorMetric,
    GivenScale, Handle, HostQuantMatrix, MatMut, MatRef, Nvfp4Options, Nvfp4Recipe, QuantMatrix, QuantizeTo, Recipe,
    Result, Scheme, reference,
};

use crate::common::{
    Noise, assert_device_bits, assert_same_values, bytes_of, capture_among_others, poisoned, poisoned_matrix, round_to,
    spread, upload_strided, values_of,
};

pub const INPUTS: [DType; 3] = [DType::Bf16, DType::F16, DType::F32];

/// A matrix on the device and on the host.
pub struct Source {
    pub x: Array2<f32>,
    pub dtype: DType,
    pub stride: usize,
    pub offset: usize,
    pub buffer: CudaSlice<u8>,
}

impl Source {
    pub fn new(handle: &Handle, x: Array2<f32>, dtype: DType) -> Self {
        let stride = x.ncols();
        Self::strided(handle, x, dtype, stride, 0)
    }

    /// Rows `stride` elements apart, the first `offset` elements behind an aligned address, NaN around them.
    pub fn strided(handle: &Handle, x: Array2<f32>, dtype: DType, stride: usize, offset: usize) -> Self {
        let buffer = upload_strided(handle, &x, dtype, stride, offset);
        Self { x, dtype, stride, offset, buffer }
    }

    pub fn matrix(&self) -> MatRef<'_> {
        let view = self.buffer.slice(self.offset * self.dtype.bytes()..);
        let matrix = MatRef::new(view, self.dtype, self.x.nrows(), self.x.ncols()).unwrap();
        matrix.with_row_stride(self.stride).unwrap()
    }

    /// Quantizes in every direction; each must give the reference's bytes, or refuse where the reference refuses.
    pub fn check(&self, handle: &Handle, recipe: impl Into<Recipe>) {
        let recipe = recipe.into();
        // What is transposed to FP8 is filled up with rows of zeros.
        let mut filled = self.x.clone();
        let zeros = Array2::zeros((turned_cols(recipe, self.x.nrows()) - self.x.nrows(), self.x.ncols()));
        filled.append(Axis(0), zeros.view()).unwrap();
        let want = [
            reference::quantize(self.x.view(), self.dtype, recipe),
            reference::quantize_transposed(filled.view(), self.dtype, recipe),
        ];
        let input = self.matrix();
        self.compare(handle, recipe, "", want, |to| handle.quantize_into(&input, recipe, to));
    }

    /// The same with a given second level.
    pub fn check_given(&self, handle: &Handle, recipe: Recipe, given: GivenScale) {
        let want = [
            reference::quantize_with_scale(self.x.view(), self.dtype, recipe, given),
            reference::quantize_transposed_with_scale(self.x.view(), self.dtype, recipe, given),
        ];
        let input = self.matrix();
        let number = GivenNumber::new(handle, given);
        let words = format!("{given:?} ");
        self.compare(handle, recipe, &words, want, |to| {
            handle.quantize_nvfp4_into(&input, recipe, &number.borrow(), to)
        });
    }

    fn compare(
        &self,
        handle: &Handle,
        recipe: Recipe,
        words: &str,
        want: [Result<HostQuantMatrix>; 2],
        run: impl Fn(QuantizeTo<'_>) -> Result<()>,
    ) {
        let (rows, cols) = self.x.dim();
        let (stride, offset) = (self.stride, self.offset);
        let context = format!("{rows} x {cols} {} stride {stride} offset {offset} {words}{recipe:?}", self.dtype);
        let scheme = recipe.scheme();
        let plain = || poisoned_matrix(handle, scheme, rows, cols);
        // Rows of half-byte codes that are not whole blocks: there is no such matrix to write to.
        let half_bytes = scheme.spec().format == CodeFormat::E2M1;
        let turned = || match half_bytes && rows % 16 != 0 {
            true => {
                let refused = QuantMatrix::zeros(handle, scheme, cols, rows).map(|_| ()).unwrap_err().to_string();
                assert!(refused.contains("multiple of 16"), "{context}: {refused}");
                None
            }
            false => Some(poisoned_matrix(handle, scheme, cols, turned_cols(recipe, rows))),
        };
        let refused = |result: Result<()>, direction: &str| {
            let text = result.expect_err(&format!("{direction}: {context}: the reference refuses")).to_string();
            assert!(text.contains("16"), "{direction}: {context}: {text}");
        };
        let mut out = plain();
        let result = run(QuantizeTo::Plain(&mut out));
        match &want[0] {
            Ok(want) => {
                result.unwrap_or_else(|e| panic!("{context}: {e}"));
                assert_device_bits(handle, &out, want, &context);
            }
            Err(_) => refused(result, "plain"),
        }
        let Some(mut out) = turned() else { return };
        let result = run(QuantizeTo::Transposed(&mut out));
        match &want[1] {
            Ok(want) => {
                result.unwrap_or_else(|e| panic!("transposed: {context}: {e}"));
                assert_device_bits(handle, &out, want, &format!("transposed: {context}"));
            }
            Err(_) => refused(result, "transposed"),
        }
        let (mut out, Some(mut transposed)) = (plain(), turned()) else { return };
        let result = run(QuantizeTo::Both(&mut out, &mut transposed));
        match &want {
            [Ok(want), Ok(want_transposed)] => {
                result.unwrap_or_else(|e| panic!("both: {context}: {e}"));
                assert_device_bits(handle, &out, want, &format!("both, plain: {context}"));
                assert_device_bits(handle, &transposed, want_transposed, &format!("both, transposed: {context}"));
            }
            _ => refused(result, "both"),
        }
    }

    /// The bytes that the device gives for the plain direction.
    pub fn quantized(&self, handle: &Handle, recipe: Recipe) -> HostQuantMatrix {
        handle.quantize(&self.matrix(), recipe).unwrap().to_host(handle).unwrap()
    }
}

/// Columns of the quantized transpose of a matrix with so many rows.
pub fn turned_cols(recipe: Recipe, rows: usize) -> usize {
    if matches!(recipe, Recipe::Fp8(_)) { rows.next_multiple_of(16) } else { rows }
}

/// Every recipe on spread data of every type, for each of these shapes.
pub fn check_shapes(
    handle: &Handle,
    rng: &mut Noise,
    shapes: impl IntoIterator<Item = (usize, usize)>,
    recipes: &[Recipe],
) {
    for (rows, cols) in shapes {
        for dtype in INPUTS {
            let x = Source::new(handle, spread(rng, rows, cols, dtype), dtype);
            recipes.iter().for_each(|recipe| x.check(handle, *recipe));
        }
    }
}

/// The same for rows that lie apart, that begin at addresses of every alignment, and both.
pub fn check_strides(
    handle: &Handle,
    rng: &mut Noise,
    shapes: impl IntoIterator<Item = (usize, usize)>,
    recipes: &[Recipe],
) {
    for (rows, cols) in shapes {
        for dtype in INPUTS {
            let x = spread(rng, rows, cols, dtype);
            for (stride, offset) in [(cols + 64, 0), (cols + 1, 0), (cols, 1), (cols + 8, 3)] {
                let x = Source::strided(handle, x.clone(), dtype, stride, offset);
                recipes.iter().for_each(|recipe| x.check(handle, *recipe));
            }
        }
    }
}

/// Every recipe on matrices without rows and without columns, packed and at a stride, in every direction, and back: no code, but the scales that
/// the reference has.
pub fn check_empty(handle: &Handle, recipes: &[Recipe]) {
    for (rows, cols) in [(0, 64), (16, 0)] {
        for dtype in INPUTS {
            for (gap, offset) in [(0, 0), (16, 0), (16, 1)] {
                let x = Source::strided(handle, Array2::zeros((rows, cols)), dtype, cols + gap, offset);
                recipes.iter().for_each(|recipe| x.check(handle, *recipe));
            }
        }
        for scheme in Scheme::ALL {
            let (q, mut y) = (QuantMatrix::zeros(handle, scheme, rows, cols).unwrap(), poisoned(handle, 64));
            let mut y = MatMut::new(&mut y, DType::F32, rows, cols).unwrap();
            handle.dequantize_into(&q, &mut y).unwrap_or_else(|e| panic!("{rows} x {cols} {scheme}, back: {e}"));
        }
    }
}

/// Every recipe on aligned rows and others, in every direction, and back for the plain ones: small, for runs under a sanitizer.
pub fn check_once(handle: &Handle, rng: &mut Noise, recipes: &[Recipe], plain: &[Recipe]) {
    for (rows, cols) in [(48, 144), (3, 1040)] {
        for dtype in INPUTS {
            let x = spread(rng, rows, cols, dtype);
            for offset in [0, 1] {
                let x = Source::strided(handle, x.clone(), dtype, cols, offset);
                recipes.iter().for_each(|recipe| x.check(handle, *recipe));
            }
            for recipe in plain {
                check_dequantize(handle, &reference::quantize(x.view(), dtype, *recipe).unwrap());
            }
        }
    }
}

/// Every recipe on the matrices that `drawn` gives for a type and a tiny number of it, on zeros of both signs, on NaN alone, and on
/// one NaN among zeros.
pub fn check_specials(
    handle: &Handle,
    recipes: impl Fn() -> Vec<Recipe>,
    mut drawn: impl FnMut(DType, f32) -> Vec<Array2<f32>>,
) {
    let mut lone = Array2::zeros((16, 256));
    lone[[5, 77]] = f32::NAN;
    let same = |v: f32| Array2::from_elem((16, 256), v);
    let blank = [same(0.0), same(-0.0), same(f32::NAN), lone];
    for dtype in INPUTS {
        let tiny = if dtype == DType::F16 { 2e-6 } else { 1e-39 };
        for x in drawn(dtype, tiny).into_iter().chain(blank.clone()) {
            let x = Source::new(handle, x, dtype);
            recipes().into_iter().for_each(|recipe| x.check(handle, recipe));
        }
    }
}

/// Every BF16 or F16 number.
pub fn every_half(dtype: DType) -> Vec<f32> {
    values_of(dtype, &(0..=u16::MAX).flat_map(u16::to_le_bytes).collect::<Vec<u8>>())
}

/// As the largest magnitude of a block of 32: every exponent with these mantissas of FP32 and their neighbours, and every BF16 and
/// F16 number.
pub fn check_tops(handle: &Handle, rng: &mut Noise, mantissas: &[u32], recipes: impl Fn() -> Vec<Recipe>) {
    let mut singles = Vec::new();
    for exponent in 0..256u32 {
        for mantissa in mantissas {
            singles.extend((-2i32..=2).map(|d| {
                let bits = (exponent << 23 | (*mantissa).min(0x7F_FFFF)).saturating_add_signed(d);
                f32::from_bits(bits & 0x7FFF_FFFF)
            }));
        }
    }
    let halves = [DType::Bf16, DType::F16].map(|dtype| (dtype, every_half(dtype)));
    for (dtype, tops) in [(DType::F32, singles)].into_iter().chain(halves) {
        let blocks: Vec<_> = tops
            .into_iter()
            .map(|top| {
                let near = rng.uniform();
                (top, (0..31).map(|i| round_to(dtype, top * near * (i as f32 / 31.0))).collect())
            })
            .collect();
        let x = Source::new(handle, in_blocks(&blocks, 32, 32), dtype);
        recipes().into_iter().for_each(|recipe| x.check(handle, recipe));
    }
}

/// One largest element, in every place of a block of 32 in turn, along rows and along columns.
pub fn check_places(handle: &Handle, recipes: impl Fn() -> Vec<Recipe>) {
    for dtype in INPUTS {
        let mut x = Array2::from_elem((1024, 1040), 1.0f32);
        // The diagonal meets every place of a block in both directions, and crosses every tile of the transposing kernel.
        (0..1024).for_each(|i| x[[i, i]] = if i % 2 == 0 { 2.5 } else { -2.5 });
        let diagonal = Source::new(handle, x, dtype);
        let mut x = Array2::from_elem((64, 2048), 1.0f32);
        (0..64).for_each(|i| (0..64).for_each(|b| x[[i, 32 * b + (i + b) % 32]] = -2.5));
        let blocks = Source::new(handle, x, dtype);
        for recipe in recipes() {
            diagonal.check(handle, recipe);
            blocks.check(handle, recipe);
        }
    }
}

/// `v * 2^power`, in two steps: below 2^-126 a power of two is a subnormal number, and its inverse does not exist.
pub fn by_power(v: f32, power: i32) -> f32 {
    v * 2f32.powi(power / 2) * 2f32.powi(power - power / 2)
}

/// Rows each of another magnitude, some with NaN, infinity, or nothing but zeros.
pub fn rows_of_every_kind(rng: &mut Noise, rows: usize, cols: usize, dtype: DType) -> Array2<f32> {
    let mut x = rng.matrix(rows, cols, dtype);
    for (i, mut row) in x.rows_mut().into_iter().enumerate() {
        let power = if i % 2 == 0 { 0 } else { i as i32 % 275 - 148 };
        row.mapv_inplace(|v| round_to(dtype, by_power(v, power)));
        match i % 89 {
            7 => row[i % cols] = f32::NAN,
            23 => row[i % cols] = f32::NEG_INFINITY,
            61 => row.fill(-0.0),
            _ => {}
        }
    }
    x
}

/// Every row count with every column count.
pub fn grid<'a>(rows: &'a [usize], cols: &'a [usize]) -> impl Iterator<Item = (usize, usize)> + 'a {
    rows.iter().flat_map(move |rows| cols.iter().map(move |cols| (*rows, *cols)))
}

/// Captured casts write what the reference gives for whatever lies in the input at each launch, and in the second level
/// where one is given.
pub fn check_captured(handle: &Handle, rng: &mut Noise, recipes: impl IntoIterator<Item = Recipe>) {
    let (rows, cols) = (144, 1040);
    for recipe in recipes {
        let mut x = Source::new(handle, spread(rng, rows, cols, DType::Bf16), DType::Bf16);
        let mut number = handle.stream().clone_htod(&[5.0f32]).unwrap();
        let given = recipe.scheme() == Scheme::Nvfp4;
        let mut out = [
            poisoned_matrix(handle, recipe.scheme(), rows, cols).assume_basis(recipe.basis()),
            poisoned_matrix(handle, recipe.scheme(), cols, rows).assume_basis(recipe.basis()),
        ];
        // Memory that was given to a matrix loads no kernels; allocating one does.
        drop(QuantMatrix::zeros(handle, recipe.scheme(), rows, cols).unwrap());
        let [plain, turned] = &mut out;
        let mut again = poisoned_matrix(handle, recipe.scheme(), rows, cols).assume_basis(recipe.basis());
        let graph = capture_among_others(handle, || {
            handle.quantize_into(&x.matrix(), recipe, QuantizeTo::Both(plain, turned))?;
            if given {
                let amax = GivenScale::Amax(DeviceBytes::from(&number));
                handle.quantize_nvfp4_into(&x.matrix(), recipe, &amax, QuantizeTo::Plain(&mut again))?;
            }
            Ok(())
        })
        .unwrap();
        for amax in [5.0f32, 7.5] {
            x.x = spread(rng, rows, cols, DType::Bf16);
            handle.stream().memcpy_htod(&bytes_of(DType::Bf16, x.x.iter()), &mut x.buffer).unwrap();
            handle.stream().memcpy_htod(&[amax], &mut number).unwrap();
            handle.launch(&graph).unwrap();
            let want = reference::quantize(x.x.view(), DType::Bf16, recipe).unwrap();
            assert_device_bits(handle, &out[0], &want, &format!("graph, plain: {recipe:?}"));
            let want = reference::quantize_transposed(x.x.view(), DType::Bf16, recipe).unwrap();
            assert_device_bits(handle, &out[1], &want, &format!("graph, transposed: {recipe:?}"));
            if given {
                let amax = GivenScale::Amax(amax);
                let want = reference::quantize_with_scale(x.x.view(), DType::Bf16, recipe, amax).unwrap();
                assert_device_bits(handle, &again, &want, &format!("graph, given: {recipe:?}"));
            }
        }
    }
}

/// One FP32 on the device, with what it means.
pub struct GivenNumber {
    number: CudaSlice<f32>,
    given: GivenScale,
}

impl GivenNumber {
    pub fn new(handle: &Handle, given: GivenScale) -> Self {
        Self { number: handle.stream().clone_htod(&[*given.number()]).unwrap(), given }
    }

    pub fn borrow(&self) -> GivenScale<DeviceBytes<'_>> {
        self.given.with_number(DeviceBytes::from(&self.number))
    }
}

/// Dequantizes to every type, packed and with gaps, and compares with the reference; gaps stay as they were.
pub fn check_dequantize(handle: &Handle, q: &HostQuantMatrix) {
    let (rows, cols) = (q.rows(), q.cols());
    let device = QuantMatrix::from_host(handle, q).unwrap();
    for dtype in INPUTS {
        let want = reference::dequantize(q, dtype);
        for stride in [cols, cols + 8, cols + 3] {
            let mut y = poisoned(handle, rows * stride * dtype.bytes());
            let mut target = MatMut::new(&mut y, dtype, rows, cols).unwrap().with_row_stride(stride).unwrap();
            handle.dequantize_into(&device, &mut target).unwrap();
            let got = values_of(dtype, &handle.stream().clone_dtoh(&y).unwrap());
            let packed: Vec<f32> = (0..rows).flat_map(|i| got[i * stride..i * stride + cols].to_vec()).collect();
            let context = format!("{rows} x {cols} {} to {dtype} stride {stride}", q.scheme());
            assert_same_values(&packed, want.as_slice().unwrap(), cols, &context);
            // What lies between the rows is left alone: NaN bytes still.
            for i in 0..rows - 1 {
                assert!(got[i * stride + cols..(i + 1) * stride].iter().all(|v| v.is_nan()), "{context}");
            }
        }
    }
}

pub const METRICS: [ErrorMetric; 2] = [ErrorMetric::Mae, ErrorMetric::Mse];
pub const MATHS: [ErrorMath; 2] = [ErrorMath::Strict, ErrorMath::Fast];
pub const BOUNDS: [E4m3Bound; 2] = [E4m3Bound::Max448, E4m3Bound::Max256];

pub fn nvfp4(scheme: Scheme, options: Nvfp4Options) -> Recipe {
    let recipe = if scheme == Scheme::Nvfp4Row { Nvfp4Recipe::rows(options) } else { Nvfp4Recipe::tensor(options) };
    recipe.unwrap().into()
}

/// Of an NVFP4 recipe.
pub fn options_of(recipe: Recipe) -> Nvfp4Options {
    let Recipe::Nvfp4(recipe) = recipe else { panic!("{recipe:?} is not of NVFP4") };
    recipe.options()
}

/// 4over6 in every variant: metric x math x bound x {1x16, 16x16, per row}.
pub fn four_over_six() -> Vec<Recipe> {
    let mut recipes = Vec::new();
    for metric in METRICS {
        for math in MATHS {
            for bound in BOUNDS {
                let block_scale = BlockScaleRule::FourOverSix { metric, math };
                let options = Nvfp4Options { block_scale, bound, ..Nvfp4Options::default() };
                recipes.push(nvfp4(Scheme::Nvfp4, options));
                recipes.push(nvfp4(Scheme::Nvfp4, Nvfp4Options { shape: BlockShape::Tile16x16, ..options }));
                recipes.push(nvfp4(Scheme::Nvfp4Row, options));
            }
        }
    }
    recipes
}

/// 4over6 with tiles: defined for tiles of sixteen rows only.
pub fn is_tiled_four_over_six(recipe: Recipe) -> bool {
    recipe.row_multiple() != 1
}

pub fn stochastic(seed: u64, offset: u64) -> CodeRounding {
    CodeRounding::Stochastic { seed, offset }
}

/// Normal data, one special value in each of several rows, all of them in one row, and rows of one value.
pub fn with_specials(rng: &mut Noise, dtype: DType, magnitude: f32, specials: &[f32]) -> Array2<f32> {
    let mut x = rng.matrix(160, 400, dtype).mapv(|v| round_to(dtype, v * magnitude));
    for (i, v) in specials.iter().enumerate() {
        x[[3 * i, 37 * i % 400]] = round_to(dtype, *v);
        x[[150, 40 * i % 400]] = round_to(dtype, *v);
        x.row_mut(80 + i).fill(round_to(dtype, *v));
    }
    x.row_mut(40).fill(0.0);
    x.row_mut(41).fill(-0.0);
    x.column_mut(7).fill(0.0);
    x
}

/// FP32 neighbours of `v`: up to two units in the last place to either side, both signs.
pub fn around(v: f32) -> impl Iterator<Item = f32> {
    (-2i32..=2).flat_map(move |d| {
        let near = f32::from_bits(v.to_bits().saturating_add_signed(d));
        [near, -near]
    })
}

/// The same in a type: its neighbours of `v`.
pub fn around_in(dtype: DType, v: f32) -> Vec<f32> {
    let pattern = match dtype {
        DType::Bf16 => half::bf16::from_f32(v).to_bits(),
        DType::F16 => half::f16::from_f32(v).to_bits(),
        _ => return around(v).collect(),
    };
    let patterns = (-2i16..=2).flat_map(|d| {
        let near = pattern.saturating_add_signed(d);
        [near, near | 0x8000]
    });
    values_of(dtype, &patterns.flat_map(u16::to_le_bytes).collect::<Vec<u8>>())
}

/// Blocks of `size` that begin with an anchor: `blocks` in a row, filled up with zeros to a multiple of 16 rows.
pub fn in_blocks(anchored: &[(f32, Vec<f32>)], size: usize, blocks: usize) -> Array2<f32> {
    let mut values = Vec::new();
    for (anchor, members) in anchored {
        for part in members.chunks(size - 1) {
            values.push(*anchor);
            values.extend(part);
            values.resize(values.len().next_multiple_of(size), 0.0);
        }
    }
    let row = blocks * size;
    values.resize(values.len().next_multiple_of(16 * row), 0.0);
    Array2::from_shape_vec((values.len() / row, row), values).unwrap()
}
