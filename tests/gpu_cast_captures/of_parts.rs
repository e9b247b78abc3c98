//! Graphs whose rows are chosen by numbers that change between launches, of every kind of source; parts of casts of what is computed; gradients of codes; ways back.

use std::sync::Arc;

use crate::cast::*;
use crate::common::*;
use crate::producers::*;
use crate::targets::few;
use crate::{SHAPE, casts, poisoned_targets, write, write_cast};
use ndarray::Array2;
use scaled_gemm::cudarc::driver::DevicePtr;
use scaled_gemm::reference::{self, CastInput, ClampCounts, RmsNorm, Swiglu};
use scaled_gemm::{
    CastGroup, CastMatrix, CastRecipe, CastScales, CastSource, CodeFormat, DType, DeviceBuffer, Fp8Format,
    Fp8Granularity, Fp8Recipe, Fp8Rule, Handle, HostCastMatrix, KernelFamily, MatMut, MatRef, QuantMatrix, RmsNormArgs,
    RowIndex, SourceActivation, SwigluGradientsInto, SwigluSource, VecRef,
};

/// An index in memory that a graph reads, and who writes there.
fn shared_index(handle: &Handle, rows: usize) -> (RowIndex, DeviceBuffer) {
    let memory = Arc::new(handle.stream().alloc_zeros::<u8>(4 * rows).unwrap());
    let address = memory.device_ptr(handle.stream()).0;
    // SAFETY: each is all of `memory`, which it keeps alive; all uses of both are on this handle's stream, in its order.
    let part = || unsafe { DeviceBuffer::from_raw(handle.stream(), address, 4 * rows, memory.clone()) }.unwrap();
    (RowIndex::from_device(part()).unwrap(), part())
}

/// Writes so many numbers: rows, some twice; negative ones, and such as no row has. As the reference takes them.
fn draw_index(handle: &Handle, rng: &mut Noise, to: &mut DeviceBuffer, of: usize, none: bool) -> Vec<i32> {
    let mut draw = || match rng.below(8) {
        _ if none => -1 - rng.below(1 << 20) as i32,
        0 => -1 - rng.below(1 << 20) as i32,
        1 => (of + rng.below(9)) as i32,
        _ => rng.below(of) as i32,
    };
    let numbers: Vec<i32> = (0..to.len() / 4).map(|_| draw()).collect();
    let words: Vec<u32> = numbers.iter().map(|number| number.cast_unsigned()).collect();
    handle.write(&mut to.view_mut(), &words).unwrap();
    numbers.into_iter().map(|number| if number < of as i32 { number } else { -1 }).collect()
}

/// Rows of a matrix by an index, zeros for none.
fn rows_of(values: &Array2<f32>, index: &[i32]) -> Array2<f32> {
    let at = |(i, j): (usize, usize)| usize::try_from(index[i]).map_or(0.0, |row| values[(row, j)]);
    Array2::from_shape_fn((index.len(), values.ncols()), at)
}

/// What is computed of a plain matrix, by name: SwiGLU of its halves with all that goes with its rows, activations, a norm by known factors, and a norm that finds them.
const COMPUTED: [&str; 6] = ["SwiGLU", "silu", "gelu", "gelu-tanh", "normed", "norm"];

/// A plain matrix with what is computed of it, on both sides.
struct Computed {
    gated: Gated,
    columns: Vec<f32>,
    columns_there: DeviceBuffer,
    factors_there: DeviceBuffer,
    /// Received: a factor of each row for each target, and counts of each.
    found: Vec<DeviceBuffer>,
    counts: Vec<DeviceBuffer>,
}

impl Computed {
    fn new(handle: &Handle, rng: &mut Noise, rows: usize, half: usize, calls: usize) -> Self {
        let columns: Vec<f32> = (0..2 * half).map(|_| rng.normal()).collect();
        let gated = Gated::new(handle, rng, rows, half, DType::Bf16);
        Self {
            columns_there: handle.upload(&columns).unwrap(),
            factors_there: handle.upload(&gated.weights).unwrap(),
            gated,
            columns,
            found: (0..calls).map(|_| handle.alloc(4 * rows).unwrap()).collect(),
            counts: (0..calls).map(|_| handle.alloc(24).unwrap()).collect(),
        }
    }

    fn cols(&self, name: &str) -> usize {
        self.gated.x.ncols() / if name == "SwiGLU" { 2 } else { 1 }
    }

    /// A source of call `at`, without chosen rows.
    fn with<T>(&mut self, name: &str, at: usize, then: impl FnOnce(CastSource<'_>) -> T) -> T {
        let Self { gated, columns, columns_there, factors_there, found, counts } = self;
        let matrix = gated.matrix();
        let of_columns = VecRef::new(&*columns_there, DType::F32, columns.len()).unwrap();
        match name {
            "SwiGLU" => then(gated.source(&matrix, true, &mut counts[at]).into()),
            "normed" => {
                let factors = VecRef::new(&*factors_there, DType::F32, gated.weights.len()).unwrap();
                then(CastSource::normed(&matrix, factors, of_columns).unwrap())
            }
            "norm" => {
                let norm = RmsNormArgs::new(&matrix, of_columns, 1e-6).unwrap();
                then(norm.with_rstd(&mut found[at]).unwrap().into())
            }
            name => then(CastSource::activated(&matrix, name.parse::<SourceActivation>().unwrap())),
        }
    }

    /// Its values, as a cast to this grouping reads them.
    fn values(&self, name: &str, group: CastGroup) -> Array2<f32> {
        let x = &self.gated.x;
        match name {
            "SwiGLU" => self.gated.values(true, group).0,
            "silu" => reference::silu(x.view()),
            "gelu" => reference::gelu(x.view()),
            "gelu-tanh" => reference::gelu_tanh(x.view()),
            "normed" => Array2::from_shape_fn(x.dim(), |(i, j)| x[(i, j)] * self.gated.weights[i] * self.columns[j]),
            _ => {
                let options = RmsNorm::new(&self.columns, 1e-6, DType::Bf16);
                reference::rms_norm(x.view(), &options).unwrap().values
            }
        }
    }

    /// New numbers, factors and experts.
    fn renew(&mut self, handle: &Handle, rng: &mut Noise) {
        let (rows, cols) = self.gated.x.dim();
        let other = Gated::new(handle, rng, rows, cols / 2, DType::Bf16);
        write(handle, &mut self.gated.data, &other.x);
        self.gated.x = other.x;
        self.gated.weights = (0..rows).map(|_| rng.uniform() + 0.25).collect();
        self.gated.experts = (0..rows).map(|_| rng.below(6) as i32 - 1).collect();
        let words: Vec<u32> = self.gated.experts.iter().map(|expert| expert.cast_unsigned()).collect();
        handle.write(&mut self.gated.weights_there.view_mut(), &self.gated.weights).unwrap();
        handle.write(&mut self.factors_there.view_mut(), &self.gated.weights).unwrap();
        handle.write(&mut self.gated.experts_there.view_mut(), &words).unwrap();
    }

    /// What the clamp changes in these rows.
    fn changed(&self, index: &[i32]) -> ClampCounts {
        let rows: Vec<_> = index.iter().filter_map(|row| usize::try_from(*row).ok()).collect();
        let numbers: Vec<_> = rows.iter().map(|row| *row as i32).collect();
        let experts: Vec<_> = rows.iter().map(|row| self.gated.experts[*row]).collect();
        let options = Swiglu { clamp: Some(10.0), experts: Some(&experts), ..Swiglu::default() };
        reference::swiglu(rows_of(&self.gated.x, &numbers).view(), &options).unwrap().1
    }
}

fn plus(a: ClampCounts, b: ClampCounts) -> ClampCounts {
    ClampCounts {
        left_above: a.left_above + b.left_above,
        right_above: a.right_above + b.right_above,
        right_below: a.right_below + b.right_below,
    }
}

/// Of numbers, codes and all that is computed, to casts and to what products read; other data at the first launch, other rows at each, and at the last none.
#[test]
fn chosen_rows_that_change() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(936);
    let (rows, half, count) = (50, 144, 144);
    handle.load_kernels(&[KernelFamily::Cast, KernelFamily::Fused]).unwrap();
    let recipes = casts();
    let mut computed = Computed::new(&handle, &mut rng, rows, half, recipes.len() + few().len());
    let (chosen, mut numbers) = shared_index(&handle, count);
    let from = CastRecipe::new(scheme(CodeFormat::E4M3, CastGroup::Tile32x32).with_scales(CastScales::ColumnMajor));
    let mut q = CastMatrix::zeros(&handle, from.scheme(), rows, 2 * half).unwrap();
    let [mut plain, mut coded] = [(); 2].map(|()| poisoned_targets(&handle, (count, 2 * half)));
    let mut of_computed = COMPUTED.map(|name| poisoned_targets(&handle, (count, computed.cols(name))));
    let deepseek = |of| Fp8Recipe::new(of, Fp8Format::E4M3).with_rule(Fp8Rule::DeepSeek);
    let read = [Fp8Granularity::Row, Fp8Granularity::Group1x128].map(deepseek);
    let mut read_by_products = read.map(|to| QuantMatrix::zeros(&handle, to.scheme(), count, 2 * half).unwrap());
    let given: Vec<_> = few().iter().map(|to| to.number(&handle)).collect();
    let mut for_products: Vec<_> = few().iter().map(|to| poisoned_matrix(&handle, to.scheme(), count, half)).collect();
    let graph = capture_owned(&handle, || {
        for (at, recipe) in recipes.iter().copied().enumerate() {
            let matrix = computed.gated.matrix();
            handle.cast_into(CastSource::from(&matrix).gathered(&chosen)?, recipe, &mut plain[at])?;
            handle.cast_into(CastSource::from(&q).gathered(&chosen)?, recipe, &mut coded[at])?;
            for (name, out) in COMPUTED.into_iter().zip(&mut of_computed) {
                computed.with(name, at, |source| handle.cast_into(source.gathered(&chosen)?, recipe, &mut out[at]))?;
            }
        }
        let matrix = computed.gated.matrix();
        for (to, out) in read.into_iter().zip(&mut read_by_products) {
            handle.quantize_source_into(CastSource::from(&matrix).gathered(&chosen)?, to, out)?;
        }
        for (at, to) in few().into_iter().enumerate() {
            let out = &mut for_products[at];
            computed.with("SwiGLU", recipes.len() + at, |source| {
                to.run(&handle, source.gathered(&chosen)?, &given[at], out)
            })?;
        }
        Ok(())
    })
    .unwrap();
    let (mut host, mut changed) = (None, ClampCounts::default());
    for launch in 0..4 {
        if launch == 0 {
            computed.renew(&handle, &mut rng);
            let x = of_kind(&mut rng, "nan", rows, 2 * half, DType::Bf16);
            let codes = reference::cast(&x.view().into(), from).unwrap();
            write_cast(&handle, &mut q, &codes);
            host = Some(codes);
        }
        let index = draw_index(&handle, &mut rng, &mut numbers, rows, launch == 3);
        handle.launch(&graph).unwrap();
        changed = plus(changed, computed.changed(&index));
        for (at, recipe) in recipes.iter().copied().enumerate() {
            let context = format!("launch {launch}, chosen rows to {}", recipe.scheme());
            let want = |x: &Array2<f32>| reference::cast(&rows_of(x, &index).view().into(), recipe).unwrap();
            assert_cast(&handle, &plain[at], &want(&computed.gated.x), &context);
            let input = CastInput::from(host.as_ref().unwrap()).gathered(&index).unwrap();
            let wanted = reference::cast(&input, recipe).unwrap();
            assert_cast(&handle, &coded[at], &wanted, &format!("{context}, of codes"));
            for (name, out) in COMPUTED.into_iter().zip(&of_computed) {
                let values = computed.values(name, recipe.scheme().group());
                assert_cast(&handle, &out[at], &want(&values), &format!("{context}, {name}"));
            }
            assert_eq!(read_counts(&handle, &computed.counts[at]), changed, "{context}");
        }
        let picked = rows_of(&computed.gated.x, &index);
        for (to, out) in read.into_iter().zip(&read_by_products) {
            let want = reference::quantize(picked.view(), DType::Bf16, to).unwrap();
            assert_device_bits(&handle, out, &want, &format!("launch {launch}, chosen rows to {to:?}"));
        }
        let picked = rows_of(&computed.values("SwiGLU", CastGroup::Row), &index);
        for (at, to) in few().into_iter().enumerate() {
            let context = format!("launch {launch}, chosen rows to {to:?}");
            assert_device_bits(&handle, &for_products[at], &to.want(picked.view()), &context);
            assert_eq!(read_counts(&handle, &computed.counts[recipes.len() + at]), changed, "{context}");
        }
    }
}

/// Scales alone, and codes by scales that are others at each launch, of all that is computed.
#[test]
fn parts_of_what_is_computed() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(937);
    let (rows, half) = (SHAPE.0, 144);
    handle.load_kernels(&[KernelFamily::Cast, KernelFamily::Fused]).unwrap();
    let recipes = casts();
    let mut computed = Computed::new(&handle, &mut rng, rows, half, 2 * recipes.len());
    let [mut scales, mut codes] =
        [(); 2].map(|()| COMPUTED.map(|name| poisoned_targets(&handle, (rows, computed.cols(name)))));
    let graph = capture_owned(&handle, || {
        for (at, recipe) in recipes.iter().copied().enumerate() {
            for (place, name) in COMPUTED.into_iter().enumerate() {
                let out = &mut scales[place][at];
                computed.with(name, at, |source| handle.cast_scales_into(source, recipe, out))?;
                let out = &mut codes[place][at];
                computed.with(name, recipes.len() + at, |source| handle.cast_with_scales_into(source, out))?;
            }
        }
        Ok(())
    })
    .unwrap();
    let (all, mut changed) = ((0..rows as i32).collect::<Vec<_>>(), ClampCounts::default());
    for launch in 0..3 {
        computed.renew(&handle, &mut rng);
        changed = plus(changed, computed.changed(&all));
        let mut wanted = Vec::new();
        for (at, recipe) in recipes.iter().copied().enumerate() {
            for (place, name) in COMPUTED.into_iter().enumerate() {
                let (to, cols) = (recipe.scheme(), computed.cols(name));
                let values = computed.values(name, to.group());
                let [r, c] = to.group().grid(rows, cols);
                let bytes = to.scales() == CastScales::Ue8m0;
                let mut draw = || (rng.uniform() * 6.0 - 4.0).exp2();
                let given = (0..r * c).map(|_| if bytes { draw().log2().ceil().exp2() } else { draw() });
                let given: Vec<f32> = given.collect();
                let by_given = reference::cast_with_scales(&values.view().into(), to, &given).unwrap();
                handle.write(&mut codes[place][at].scales_mut(), &by_given.device_scales()).unwrap();
                let found = reference::cast_scales(&values.view().into(), recipe).unwrap();
                let untouched = vec![0xA5; to.code_bytes(rows, cols)];
                let alone = HostCastMatrix::from_logical(to, rows, cols, untouched, found).unwrap();
                wanted.push((at, place, alone, by_given));
            }
        }
        handle.launch(&graph).unwrap();
        for (at, place, alone, by_given) in &wanted {
            let context = format!("launch {launch}, {} to {}", COMPUTED[*place], alone.scheme());
            assert_cast(&handle, &scales[*place][*at], alone, &format!("{context}, scales alone"));
            assert_cast(&handle, &codes[*place][*at], by_given, &format!("{context}, by given scales"));
        }
        for counts in &computed.counts {
            assert_eq!(read_counts(&handle, counts), changed, "launch {launch}");
        }
    }
}

/// Codes, their scales, g, weights and experts are others at each launch.
#[test]
fn gradients_of_codes() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(938);
    let (rows, half) = (130, 128);
    handle.load_kernels(&[KernelFamily::Cast, KernelFamily::Fused]).unwrap();
    let e4m3 = |group| scheme(CodeFormat::E4M3, group);
    let ways = [
        (e4m3(CastGroup::Group1x128), e4m3(CastGroup::Group1x32)),
        (e4m3(CastGroup::Tile32x128).with_scales(CastScales::Ue8m0), e4m3(CastGroup::Group1x128)),
        (
            e4m3(CastGroup::Group32x1).with_scales(CastScales::ColumnMajor),
            e4m3(CastGroup::Group1x32).with_scales(CastScales::Ue8m0),
        ),
    ];
    let mut q = ways.map(|(from, _)| CastMatrix::zeros(&handle, from, rows, 2 * half).unwrap());
    let mut g = handle.alloc(rows * half * 2).unwrap();
    let [mut weights, mut experts] = [(); 2].map(|()| handle.alloc(4 * rows).unwrap());
    let mut dx = ways.map(|(_, to)| poisoned_cast(&handle, to, rows, 2 * half));
    let beside = |cols: usize| [(); 3].map(|()| handle.alloc(rows * cols * 2).unwrap());
    let (mut wide, mut out) = (beside(2 * half), beside(half));
    let mut dw = [(); 3].map(|()| handle.alloc(4 * rows).unwrap());
    let graph = capture_owned(&handle, || {
        let gradient = MatRef::new(&g, DType::Bf16, rows, half)?;
        for (way, (_, to)) in ways.into_iter().enumerate() {
            let forward = SwigluSource::of_codes(&q[way])?.with_clamp(10.0)?;
            let forward = forward.with_weights(VecRef::new(&weights, DType::F32, rows)?)?.with_experts(&experts)?;
            let into = SwigluGradientsInto {
                x: Some((CastRecipe::new(to), &mut dx[way]).into()),
                x_bf16: Some(MatMut::new(&mut wide[way], DType::Bf16, rows, 2 * half)?),
                out: Some(MatMut::new(&mut out[way], DType::Bf16, rows, half)?),
                weights: Some((&mut dw[way]).into()),
            };
            handle.swiglu_backward(forward, &gradient, into)?;
        }
        Ok(())
    })
    .unwrap();
    for launch in 0..3 {
        let gradient = of_kind(&mut rng, "outliers", rows, half, DType::Bf16);
        write(&handle, &mut g, &gradient);
        let factors: Vec<f32> = (0..rows).map(|_| rng.uniform() + 0.25).collect();
        let of_rows: Vec<i32> = (0..rows).map(|_| rng.below(6) as i32 - 1).collect();
        let words: Vec<u32> = of_rows.iter().map(|expert| expert.cast_unsigned()).collect();
        handle.write(&mut weights.view_mut(), &factors).unwrap();
        handle.write(&mut experts.view_mut(), &words).unwrap();
        let x = of_kind(&mut rng, "outliers", rows, 2 * half, DType::F32).mapv(|v| v * 4.0);
        let codes = ways.map(|(from, _)| {
            let x = of_many_sizes(x.clone(), from.group());
            reference::cast(&x.view().into(), CastRecipe::new(from)).unwrap()
        });
        q.iter_mut().zip(&codes).for_each(|(q, codes)| write_cast(&handle, q, codes));
        handle.launch(&graph).unwrap();
        let options = Swiglu { clamp: Some(10.0), weights: Some(&factors), experts: Some(&of_rows) };
        for (way, (from, to)) in ways.into_iter().enumerate() {
            let context = format!("launch {launch}, gradients of {from} to {to}");
            let x = reference::cast_back(&codes[way], DType::F32);
            let want = reference::swiglu_backward(x.view(), gradient.view(), &options).unwrap();
            let wanted = reference::cast(&want.x.view().into(), CastRecipe::new(to)).unwrap();
            assert_cast(&handle, &dx[way], &wanted, &context);
            let rounded = reference::round_values(want.x, DType::Bf16);
            for (got, want, cols) in [(&wide[way], &rounded, 2 * half), (&out[way], &want.out, half)] {
                let got = values_of(DType::Bf16, &handle.read_bytes(&got.view()).unwrap());
                assert_same_values(&got, want.as_slice().unwrap(), cols, &format!("{context}, in BF16"));
            }
            let got = handle.read::<f32>(&dw[way].view()).unwrap();
            assert_same_values(&got, &want.weights, 1, &format!("{context}, of the weights"));
        }
    }
}

/// To each type, rows side by side and apart; codes and scales are others at each launch.
#[test]
fn back_to_each_type() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(939);
    let (rows, cols) = SHAPE;
    let mut sources = casts();
    sources.push(CastRecipe::new(scheme(CodeFormat::E2M1, CastGroup::Group128x1).transposed().unwrap()));
    sources.push(CastRecipe::new(scheme(CodeFormat::E2M1, CastGroup::Group1x16).with_scales(CastScales::ColumnMajor)));
    let ways: Vec<_> = INPUTS.into_iter().flat_map(|dtype| [(dtype, cols), (dtype, cols + 3)]).collect();
    let zeros = |recipe: &CastRecipe| CastMatrix::zeros(&handle, recipe.scheme(), rows, cols).unwrap();
    let mut q: Vec<_> = sources.iter().map(zeros).collect();
    let unwritten =
        |&(dtype, stride): &(DType, usize)| handle.upload(&vec![0xFFu8; rows * stride * dtype.bytes()]).unwrap();
    let mut back: Vec<Vec<DeviceBuffer>> = q.iter().map(|_| ways.iter().map(unwritten).collect()).collect();
    let graph = capture_owned(&handle, || {
        for (q, back) in q.iter().zip(&mut back) {
            for ((dtype, stride), y) in ways.iter().copied().zip(back) {
                handle.cast_back_into(q, &mut MatMut::new(y, dtype, rows, cols)?.with_row_stride(stride)?)?;
            }
        }
        Ok(())
    })
    .unwrap();
    for launch in 0..3 {
        let x = of_kind(&mut rng, "nan", rows, cols, DType::F32);
        let codes: Vec<_> = sources
            .iter()
            .map(|recipe| {
                let x = of_many_sizes(x.clone(), recipe.scheme().group());
                with_negative_nan(&reference::cast(&x.view().into(), *recipe).unwrap())
            })
            .collect();
        q.iter_mut().zip(&codes).for_each(|(q, codes)| write_cast(&handle, q, codes));
        handle.launch(&graph).unwrap();
        for (codes, back) in codes.iter().zip(&back) {
            for ((dtype, stride), y) in ways.iter().copied().zip(back) {
                let context = format!("launch {launch}, {} back to {dtype}, stride {stride}", codes.scheme());
                let got = values_of(dtype, &handle.read_bytes(&y.view()).unwrap());
                let got = Array2::from_shape_vec((rows, stride), got).unwrap();
                assert!(got.slice(ndarray::s![.., cols..]).iter().all(|v| v.is_nan()), "{context}: between rows");
                let got = got.slice(ndarray::s![.., ..cols]).as_standard_layout().into_owned();
                let want = reference::cast_back(codes, dtype);
                assert_same_values(got.as_slice().unwrap(), want.as_slice().unwrap(), cols, &context);
            }
        }
    }
}
