//! Bad input of casts and producers is refused by operand, numbers, rule and remedy, each in its place, and nothing is written: targets that differ in the order of their scales alone, shapes
//! that a grouping refuses, rows and vectors that do not fit, gradients to what they are not cast to.
#![cfg(feature = "cuda")]

#[path = "common/cast.rs"]
mod cast;
mod common;

use cast::*;
use common::*;
use scaled_gemm::cudarc::driver::DevicePtr;
use scaled_gemm::{
    CastGroup, CastMatrix, CastRecipe, CastScales, CastScheme, CastSource, CodeFormat, DType, DeviceBuffer, Error,
    Fp8Format, Fp8Granularity, Fp8Recipe, Fp8Rule, Handle, HostCastMatrix, KernelFamily, MatMut, MatRef, QuantMatrix,
    Recipe, Result, RmsNormArgs, RowIndex, Scheme, SourceActivation, SwigluGradientsInto, SwigluSource, VecRef,
};

/// Operand, what was found, rule and remedy. What is not supported is an operand with its numbers.
fn parts_of(error: &Error) -> [String; 4] {
    match error {
        Error::Shape { operand, found, rule, remedy } | Error::DType { operand, found, rule, remedy } => {
            [operand, found, rule, remedy].map(String::clone)
        }
        Error::Alignment { operand, address, required, remedy } => {
            [operand.clone(), format!("{address:#x}"), format!("{required}-byte"), remedy.clone()]
        }
        Error::Unsupported { what, reason, remedy } => [what, what, reason, remedy].map(String::clone),
        other => panic!("{other}"),
    }
}

#[track_caller]
fn refused<T>(result: Result<T>, words: [&str; 4]) {
    let Err(error) = result else { panic!("taken, not refused by {words:?}") };
    for (part, word) in parts_of(&error).iter().zip(words) {
        assert!(!word.is_empty() && part.contains(word), "{error}: {part:?} lacks {word:?}");
    }
}

const ROWS: usize = 16;
const COLS: usize = 128;

/// Memory for every kind of source of 16 x 128.
struct Sources {
    x: DeviceBuffer,
    q: CastMatrix,
    ones: DeviceBuffer,
    rstd: DeviceBuffer,
    index: RowIndex,
}

impl Sources {
    fn new(handle: &Handle) -> Self {
        handle.load_kernels(&[KernelFamily::Cast, KernelFamily::Fused]).unwrap();
        Self {
            x: handle.alloc(ROWS * 2 * COLS * 2).unwrap(),
            q: CastMatrix::zeros(handle, scheme(CodeFormat::E4M3, CastGroup::Group1x64), ROWS, COLS).unwrap(),
            ones: handle.upload(&[1.0f32; 2 * COLS]).unwrap(),
            rstd: handle.alloc(4 * ROWS).unwrap(),
            index: RowIndex::new(handle, &[3; ROWS], ROWS).unwrap(),
        }
    }

    fn matrix(&self, cols: usize) -> MatRef<'_> {
        MatRef::new(&self.x, DType::Bf16, ROWS, cols).unwrap()
    }

    fn ones(&self, count: usize) -> VecRef<'_> {
        VecRef::new(&self.ones, DType::F32, count).unwrap()
    }

    fn each(&mut self, mut then: impl FnMut(&str, CastSource<'_>)) {
        let (x, gated) = (self.matrix(COLS), self.matrix(2 * COLS));
        then("numbers", (&x).into());
        then("chosen rows", CastSource::from(&x).gathered(&self.index).unwrap());
        then("codes", (&self.q).into());
        then("SwiGLU", SwigluSource::new(&gated).unwrap().into());
        then("silu", CastSource::activated(&x, SourceActivation::Silu));
        then("normed", CastSource::normed(&x, self.ones(ROWS), self.ones(COLS)).unwrap());
        then("norm", RmsNormArgs::new(&x, self.ones(COLS), 1e-6).unwrap().into());
        let Self { x, ones, rstd, .. } = self;
        let x = MatRef::new(&*x, DType::Bf16, ROWS, COLS).unwrap();
        let norm = RmsNormArgs::new(&x, VecRef::new(&*ones, DType::F32, COLS).unwrap(), 1e-6).unwrap();
        then("norm with factors", norm.with_rstd(rstd).unwrap().into());
    }
}

/// A target that is what it was, whatever is asked of it meanwhile.
fn untouched(handle: &Handle, scheme: CastScheme, cols: usize, ask: impl FnOnce(&mut CastMatrix)) {
    let mut target = poisoned_cast(handle, scheme, ROWS, cols);
    let bytes = |q: &CastMatrix| [q.codes(), q.scales()].map(|bytes| handle.read_bytes(&bytes).unwrap());
    let before = bytes(&target);
    ask(&mut target);
    assert!(bytes(&target) == before, "a target of {scheme} was written");
}

/// Each order for each other one, in each grouping, from each kind of source; and other formats, groupings and places of codes.
#[test]
fn targets_of_another_scheme() {
    let Some(handle) = handle() else { return };
    let mut sources = Sources::new(&handle);
    let mut pairs = Vec::new();
    for group in CastGroup::ALL {
        let of = |scales| scheme(CodeFormat::E4M3, group).with_scales(scales);
        let orders = CastScales::ALL.into_iter().flat_map(|a| CastScales::ALL.map(|b| (a, b)));
        pairs.extend(orders.filter(|(a, b)| a != b).map(|(a, b)| (of(a), of(b))));
        pairs.push((of(CastScales::RowMajor), scheme(CodeFormat::E2M1, group)));
        if group.is_per_channel() {
            pairs.push((of(CastScales::Ue8m0), of(CastScales::Ue8m0).transposed().unwrap()));
        }
    }
    // As many scales, in the same places.
    pairs.push((scheme(CodeFormat::E4M3, CastGroup::Row), scheme(CodeFormat::E4M3, CastGroup::Group1x128)));
    assert!(pairs.len() > 11 * 7, "{}", pairs.len());
    for (asked, there) in pairs {
        untouched(&handle, there, COLS, |target| {
            let (what, rule) = (format!("a target of {there}"), format!("the cast is to {asked}"));
            let words = [&*what, &*what, &*rule, "allocate it with CastMatrix::zeros for that scheme"];
            sources.each(|_, source| refused(handle.cast_into(source, CastRecipe::new(asked), target), words));
            sources.each(|_, source| refused(handle.cast_scales_into(source, CastRecipe::new(asked), target), words));
        });
    }
}

#[test]
fn targets_of_another_shape() {
    let Some(handle) = handle() else { return };
    let mut sources = Sources::new(&handle);
    for group in CastGroup::ALL {
        let recipe = CastRecipe::new(scheme(CodeFormat::E4M3, group));
        let words =
            ["target", "16 x 144", "must be 16 x 128, the shape of the source", "CastMatrix::zeros for that shape"];
        untouched(&handle, recipe.scheme(), COLS + 16, |target| {
            sources.each(|_, source| refused(handle.cast_into(source, recipe, target), words));
            sources.each(|_, source| refused(handle.cast_scales_into(source, recipe, target), words));
            sources.each(|_, source| refused(handle.cast_with_scales_into(source, target), words));
        });
    }
}

/// Columns, and rows that are stored as columns.
#[test]
fn shapes_that_a_grouping_refuses() {
    let Some(handle) = handle() else { return };
    let data = handle.alloc(1 << 16).unwrap();
    let of = |rows, cols| MatRef::new(&data, DType::Bf16, rows, cols).unwrap();
    for format in FORMATS {
        for group in CastGroup::ALL {
            let plain = scheme(format, group);
            for (cols, found) in [(8, "8"), (24, "24"), (100, "100")] {
                let words = ["columns of a cast", found, "must be a multiple of 16", "pad them with zeros"];
                refused(CastMatrix::zeros(&handle, plain, 4, cols), words);
                let x = of(4, cols);
                refused(handle.cast(&x, CastRecipe::new(plain)), words);
                let mut target = CastMatrix::zeros(&handle, plain, 4, 112).unwrap();
                refused(handle.cast_into(&x, CastRecipe::new(plain), &mut target), words);
            }
            let (rows, cols) = (1 << 31, 16);
            let words = ["matrix of a cast", "2147483648 x 16", "at most 2147483647 rows", "cast it in parts"];
            refused(CastMatrix::zeros(&handle, plain, rows, cols), words);
            let Ok(turned) = plain.transposed() else { continue };
            for (rows, found) in [(1, "1"), (40, "40"), (129, "129")] {
                let words = [
                    "rows of a transposed cast",
                    found,
                    "must be a multiple of 16",
                    "pad them with zeros, or store the codes untransposed",
                ];
                refused(CastMatrix::zeros(&handle, turned, rows, 32), words);
                let x = of(rows, 32);
                refused(handle.cast(&x, CastRecipe::new(turned)), words);
                let mut target = CastMatrix::zeros(&handle, turned, 160, 32).unwrap();
                refused(handle.cast_into(&x, CastRecipe::new(turned), &mut target), words);
            }
        }
    }
    let rule = "must be a multiple of 16";
    for granularity in [Fp8Granularity::Row, Fp8Granularity::Group1x128] {
        let recipe = Fp8Recipe::new(granularity, Fp8Format::E4M3).with_rule(Fp8Rule::DeepSeek);
        let mut target = QuantMatrix::zeros(&handle, recipe.scheme(), 4, 48).unwrap();
        let words = ["source", "40 elements along the quantized axis", rule, "pad them with zeros"];
        refused(handle.quantize_source_into(&of(4, 40), recipe, &mut target), words);
    }
    let halves = ["x of SwiGLU", "48 columns", "must be a multiple of 32: two halves", "padded with zeros"];
    refused(SwigluSource::new(&of(4, 48)), halves);
    let ones = handle.alloc(400).unwrap();
    let odd = ["x of a norm", "40 columns", "must be a multiple of 16", "pad rows with zeros"];
    refused(RmsNormArgs::new(&of(4, 40), VecRef::new(&ones, DType::F32, 40).unwrap(), 1e-6), odd);
}

/// On the CPU, too: a format, a place and a floor that no cast has; arrays of another order, where these have other lengths.
#[test]
fn schemes_floors_and_arrays() {
    let [what, rule] = ["a cast to e5m2", "the rule of these casts is for e4m3 and e2m1"];
    refused(CastScheme::new(CodeFormat::E5M2, CastGroup::Row), [what, what, rule, "take e4m3, or quantize"]);
    for group in CastGroup::ALL.into_iter().filter(|group| !group.is_per_channel()) {
        let what = format!("transposed codes in groups of {group}");
        let words = [&*what, &*what, "only groups along columns", "take 32x1 or 128x1"];
        refused(scheme(CodeFormat::E4M3, group).transposed(), words);
    }
    for (format, least) in [(CodeFormat::E4M3, 448.0 * f32::MIN_POSITIVE), (CodeFormat::E2M1, 6.0 * f32::MIN_POSITIVE)]
    {
        let recipe = CastRecipe::new(scheme(format, CastGroup::Row));
        assert_eq!(recipe.with_floor(least).unwrap().floor(), least);
        for floor in [0.0, -1.0, f32::NAN, f32::INFINITY, least * 0.999] {
            let (what, rule) = (format!("a floor of {floor:e} for {format}"), format!("finite and at least {least:e}"));
            refused(recipe.with_floor(floor), [&*what, &*what, &*rule, "leave it out, or take a larger one"]);
        }
    }
    let (rows, cols) = (3, 96);
    let handle = handle();
    for format in FORMATS {
        for (asked, there) in CastScales::ALL.into_iter().flat_map(|a| CastScales::ALL.map(|b| (a, b))) {
            let of = |scales| scheme(format, CastGroup::Group1x32).with_scales(scales);
            let (codes, bytes) = (of(asked).code_bytes(rows, cols), of(there).scale_bytes(rows, cols));
            let wanted = of(asked).scale_bytes(rows, cols);
            let host = HostCastMatrix::from_parts(of(asked), rows, cols, vec![0; codes], &vec![0; bytes]);
            if asked == there {
                host.unwrap();
                continue;
            }
            let operand = format!("scales of a 3 x 96 matrix cast to {}", of(asked));
            let (found, rule) = (bytes.to_string(), format!("must be {wanted}"));
            refused(host, [&*operand, &*found, &*rule, "pass the whole array, in the order of the scheme"]);
            let Some(handle) = &handle else { continue };
            let parts = [codes, bytes].map(|bytes| handle.alloc(bytes).unwrap());
            let [codes, scales] = parts;
            let words = [&*operand, &*format!("{found} bytes"), &*rule, "pass the whole buffer"];
            refused(CastMatrix::from_parts(of(asked), rows, cols, codes, scales), words);
        }
    }
    let Some(handle) = handle else { return };
    // Where codes and scales begin.
    let memory = handle.stream().alloc_zeros::<u8>(4096).unwrap();
    let address = memory.device_ptr(handle.stream()).0;
    // SAFETY: a part of `memory`, which lives to the end of the test, on this handle's stream.
    let part = |at: u64, bytes| unsafe { DeviceBuffer::from_raw(handle.stream(), address + at, bytes, ()) }.unwrap();
    let to = scheme(CodeFormat::E4M3, CastGroup::Group1x32);
    for (places, operand) in [([8, 1024], "codes of a 3 x 96 matrix"), ([0, 1028], "scales of a 3 x 96 matrix")] {
        let [codes, scales] = [(places[0], 288), (places[1], 36)].map(|(at, bytes)| part(at, bytes));
        let found = format!("{:#x}", address + if places[0] == 8 { 8 } else { 1028 });
        let words = [operand, &*found, "16-byte", "or at a multiple of 16 bytes"];
        refused(CastMatrix::from_parts(to, rows, cols, codes, scales), words);
    }
    let index = RowIndex::from_device(part(2, 8));
    refused(index, ["row index", &format!("{:#x}", address + 2), "4-byte", "at a multiple of 4 bytes"]);
    handle.synchronize().unwrap();
}

/// Indices that are no rows, as many as another target has rows, of another matrix.
#[test]
fn chosen_rows() {
    let Some(handle) = handle() else { return };
    let mut sources = Sources::new(&handle);
    for (numbers, found) in [(&[0, 16][..], "16 at place 1"), (&[-1, i32::MIN, i32::MAX], "2147483647 at place 2")] {
        let rule = "must be below 16, the rows of the matrix, or negative for a row of zeros";
        let words = ["row index", found, rule, "pass the index of that matrix"];
        refused(RowIndex::new(&handle, numbers, ROWS), words);
        let words_there: Vec<u32> = numbers.iter().map(|number| number.cast_unsigned()).collect();
        let there = RowIndex::from_device(handle.upload(&words_there).unwrap()).unwrap();
        refused(there.check(&handle, ROWS), words);
    }
    let whole = ["row index", "6 bytes", "must be whole 32-bit numbers", "pass the whole buffer"];
    refused(RowIndex::from_device(handle.alloc(6).unwrap()), whole);
    let taller = RowIndex::new(&handle, &[0; ROWS], ROWS + 1).unwrap();
    let longer = RowIndex::new(&handle, &[-1; ROWS + 1], ROWS).unwrap();
    let recipe = CastRecipe::new(scheme(CodeFormat::E4M3, CastGroup::Group1x32));
    untouched(&handle, recipe.scheme(), COLS, |target| {
        sources.each(|_, source| {
            let words =
                ["row index", "of a matrix of 17 rows", "must be of one of at most 16", "make it for this matrix"];
            refused(source.gathered(&taller), words);
        });
        sources.each(|_, source| {
            let words = ["target", "16 x 128", "must be 17 x 128, the shape of the source", "CastMatrix::zeros"];
            refused(handle.cast_into(source.gathered(&longer).unwrap(), recipe, target), words);
        });
    });
}

/// What goes with the rows and the columns of a source.
#[test]
fn vectors_and_options() {
    let Some(handle) = handle() else { return };
    let sources = Sources::new(&handle);
    let (x, gated) = (sources.matrix(COLS), sources.matrix(2 * COLS));
    let swiglu = || SwigluSource::new(&gated).unwrap();
    let one_each = "pass one for each row";
    refused(swiglu().with_weights(sources.ones(15)), ["weights of SwiGLU", "15", "the 16 rows of x", one_each]);
    let narrow = VecRef::new(&sources.ones, DType::Bf16, ROWS).unwrap();
    refused(swiglu().with_weights(narrow), ["weights of SwiGLU", "bf16", "is not f32", "one f32 for each row"]);
    let [few, mut counts] = [60, 12].map(|bytes| handle.alloc(bytes).unwrap());
    refused(swiglu().with_experts(&few), ["experts of SwiGLU", "60 bytes", "each of the 16 rows of x", one_each]);
    for (clamp, found) in [(-1.0, "a clamp of -1"), (f32::NAN, "a clamp of NaN")] {
        refused(swiglu().with_clamp(clamp), [found, "SwiGLU", "must be at least 0", "pass the model's bound"]);
    }
    let clamped = || swiglu().with_clamp(1.0).unwrap();
    let three = ["counts of SwiGLU", "12 bytes", "must be three 64-bit numbers", "pass 24 bytes"];
    refused(clamped().with_counts(&mut counts), three);
    let mut counts = handle.alloc(24).unwrap();
    let without = "counting in SwiGLU without a clamp";
    refused(swiglu().with_counts(&mut counts), [without, without, "what it changes", "set the clamp first"]);
    let normed = |rows, cols| CastSource::normed(&x, sources.ones(rows), sources.ones(cols));
    refused(normed(17, COLS), ["factors of a norm", "17", "must be the 16 rows of x", one_each]);
    let columns = ["weight of a norm", "127 elements", "must be the 128 columns of x", "a factor for each column"];
    refused(normed(ROWS, 127), columns);
    refused(RmsNormArgs::new(&x, sources.ones(127), 1e-6), columns);
    let halves = VecRef::new(&sources.ones, DType::F16, COLS).unwrap();
    let types = ["weight of a norm", "f16", "is neither f32 nor bf16, x's type", "convert it to one of them"];
    refused(RmsNormArgs::new(&x, halves, 1e-6), types);
    let factors = CastSource::normed(&x, VecRef::new(&sources.ones, DType::F16, ROWS).unwrap(), sources.ones(COLS));
    refused(factors, ["factors of a norm", "f16", "is not f32", "pass one f32 for each row"]);
    for (epsilon, found) in [(-1.0, "epsilon -1"), (f32::NAN, "epsilon NaN"), (f32::INFINITY, "epsilon inf")] {
        let words = [found, "of a norm", "must be finite and at least 0", "pass the model's, such as 1e-6"];
        refused(RmsNormArgs::new(&x, sources.ones(COLS), epsilon), words);
    }
    let norm = || RmsNormArgs::new(&x, sources.ones(COLS), 1e-6).unwrap();
    let mut memory = handle.alloc(60).unwrap();
    let bytes = ["factors of a norm", "60 bytes", "an f32 for each of the 16 rows of x", one_each];
    refused(norm().with_rstd(&mut memory), bytes);
    let mut memory = handle.alloc(ROWS * COLS * 4).unwrap();
    let residual = MatMut::new(&mut memory, DType::Bf16, ROWS, COLS - 16).unwrap();
    let words = ["residual of a norm", "16 x 112", "must be 16 x 128, as x", "pass a matrix of the same shape"];
    refused(norm().with_updated_residual(residual), words);
    let residual = MatMut::new(&mut memory, DType::F32, ROWS, COLS).unwrap();
    let words = ["residual of a norm", "f32", "must be bf16, as x", "convert it first"];
    refused(norm().with_updated_residual(residual), words);
    let sum = MatMut::new(&mut memory, DType::F32, ROWS, COLS).unwrap();
    refused(norm().with_residual(&x, sum), ["sum of a norm", "f32", "must be bf16, as x", "convert it first"]);
    let what = "a norm without a cast and without its factors";
    refused(handle.rms_norm(norm()), [what, what, "nothing that is new", "RmsNormArgs::with_rstd"]);
    // Two launches, the second of which reads what the first has no place for.
    for group in [CastGroup::Tile32x32, CastGroup::Group128x1] {
        untouched(&handle, scheme(CodeFormat::E4M3, group), COLS, |target| {
            let what = "a norm without memory for its factors";
            let words = [what, what, "the second launch reads the factors", "RmsNormArgs::with_rstd"];
            let recipe = CastRecipe::new(target.scheme());
            refused(handle.rms_norm_cast_into(norm(), recipe, target), words);
        });
    }
}

/// Codes where numbers are read, and codes that are read otherwise.
#[test]
fn codes_as_sources() {
    let Some(handle) = handle() else { return };
    let sources = Sources::new(&handle);
    let recipe = CastRecipe::new(scheme(CodeFormat::E4M3, CastGroup::Group1x32));
    untouched(&handle, recipe.scheme(), COLS, |target| {
        for dtype in [DType::E4M3, DType::E5M2] {
            let bare = |cols| MatRef::new(&sources.x, dtype, ROWS, cols).unwrap();
            let words = |operand| [operand, dtype.name(), "has no scales", "pass bf16, f16, f32, or a CastMatrix"];
            let (x, gated) = (bare(COLS), bare(2 * COLS));
            let activated = CastSource::activated(&x, SourceActivation::Gelu);
            let normed = CastSource::normed(&x, sources.ones(ROWS), sources.ones(COLS)).unwrap();
            let swiglu = SwigluSource::new(&gated).unwrap().into();
            for source in [CastSource::from(&x), activated, normed, swiglu] {
                refused(handle.cast_into(source, recipe, target), words("source of a cast"));
            }
            refused(RmsNormArgs::new(&x, sources.ones(COLS), 1e-6), words("x of a norm"));
        }
        let turned = scheme(CodeFormat::E4M3, CastGroup::Group32x1).transposed().unwrap();
        let turned = CastMatrix::zeros(&handle, turned, ROWS, COLS).unwrap();
        let what = "a cast of codes in e4m3 32x1 row-major transposed";
        let words = [what, what, "its rows do not lie together", "cast it back first (Handle::cast_back_into)"];
        refused(handle.cast_into(&turned, recipe, target), words);
        refused(handle.cast_scales_into(&turned, recipe, target), words);
        refused(handle.cast_with_scales_into(&turned, target), words);
        for q in [turned.scheme(), scheme(CodeFormat::E2M1, CastGroup::Group1x32)] {
            let coded = CastMatrix::zeros(&handle, q, ROWS, 2 * COLS).unwrap();
            let what = format!("x of SwiGLU in {q}");
            let words = [&*what, &*what, "it is read in e4m3, row by row", "cast it back (Handle::cast_back_into)"];
            refused(SwigluSource::of_codes(&coded), words);
        }
        let coded = CastMatrix::zeros(&handle, scheme(CodeFormat::E4M3, CastGroup::Row), ROWS, 2 * COLS).unwrap();
        let what = "SwiGLU of x in e4m3 row row-major, forward";
        let words = [what, what, "only the backward pass", "cast them back first (Handle::cast_back_into)"];
        refused(handle.cast_into(SwigluSource::of_codes(&coded).unwrap(), recipe, target), words);
    });
}

/// To formats, groupings, orders and shapes that gradients of SwiGLU are not cast to: E2M1 in every grouping, and what products read of it.
#[test]
fn gradients() {
    let Some(handle) = handle() else { return };
    let sources = Sources::new(&handle);
    let (x, g) = (sources.matrix(2 * COLS), handle.alloc(ROWS * COLS * 4).unwrap());
    let gradient = MatRef::new(&g, DType::Bf16, ROWS, COLS).unwrap();
    let run = |into: SwigluGradientsInto<'_>| handle.swiglu_backward(SwigluSource::new(&x).unwrap(), &gradient, into);
    let cast = |asked: CastScheme, there: CastScheme, words: [&str; 4]| {
        untouched(&handle, there, 2 * COLS, |dx| {
            let into = SwigluGradientsInto { x: Some((CastRecipe::new(asked), dx).into()), ..Default::default() };
            refused(run(into), words);
        });
    };
    for (format, group) in FORMATS.into_iter().flat_map(|format| CastGroup::ALL.map(|group| (format, group))) {
        let of = |order| scheme(format, group).with_scales(order);
        let is_cast = format == CodeFormat::E4M3 && [CastGroup::Group1x32, CastGroup::Group1x128].contains(&group);
        for order in CastScales::ALL {
            for other in CastScales::ALL.into_iter().filter(|other| *other != order) {
                let (what, rule) =
                    (format!("a gradient of x in {}", of(other)), format!("the cast is to {}", of(order)));
                let words = [&*what, &*what, &*rule, "allocate it with CastMatrix::zeros for that scheme"];
                cast(of(order), of(other), words);
            }
            if !is_cast {
                let what = format!("a gradient of x in {}", of(order));
                let rule = "it is cast to e4m3 in groups of 1x32 or 1x128";
                let remedy =
                    "take one of these, or have it in BF16 (SwigluGradientsInto::x_bf16) and use Handle::cast_into";
                cast(of(order), of(order), [&*what, &*what, rule, remedy]);
            }
        }
    }
    let fp8 = |granularity| Fp8Recipe::new(granularity, Fp8Format::E4M3).with_rule(Fp8Rule::DeepSeek);
    for recipe in [
        Recipe::new(Scheme::Mxfp4),
        Recipe::new(Scheme::Nvfp4),
        Recipe::new(Scheme::Nvfp4Row),
        fp8(Fp8Granularity::Row).into(),
        fp8(Fp8Granularity::Tensor).into(),
        fp8(Fp8Granularity::Group128x128).into(),
    ] {
        let mut dx = QuantMatrix::zeros(&handle, recipe.scheme(), ROWS, 2 * COLS).unwrap();
        let what = format!("a gradient of x in {}", recipe.scheme());
        let remedy =
            "take one of these, or have it in BF16 (SwigluGradientsInto::x_bf16) and use Handle::quantize_into";
        let words = [&*what, &*what, "written as fp8-1x128 or mxfp8", remedy];
        refused(run(SwigluGradientsInto { x: Some((recipe, &mut dx).into()), ..Default::default() }), words);
    }
    // A product's matrix of another scheme, and of another shape.
    let mxfp8 = Recipe::new(Scheme::Mxfp8(Fp8Format::E4M3));
    for (scheme, cols) in [(Scheme::Mxfp8(Fp8Format::E5M2), 2 * COLS), (mxfp8.scheme(), COLS)] {
        let mut dx = QuantMatrix::zeros(&handle, scheme, ROWS, cols).unwrap();
        let (found, rule) = (format!("16 x {cols} {scheme}"), format!("must be 16 x 256 {}", mxfp8.scheme()));
        let words = ["gradient of x", &*found, &*rule, "allocate it with QuantMatrix::zeros for that scheme and shape"];
        refused(run(SwigluGradientsInto { x: Some((mxfp8, &mut dx).into()), ..Default::default() }), words);
    }
    let group = scheme(CodeFormat::E4M3, CastGroup::Group1x32);
    untouched(&handle, group, COLS, |dx| {
        let into = SwigluGradientsInto { x: Some((CastRecipe::new(group), dx).into()), ..Default::default() };
        let rule = "must be 16 x 256, x being 16 x 256";
        refused(run(into), ["gradient of x", "16 x 128", rule, "pass a matrix of that shape"]);
    });
    // Halves that would share groups.
    let (narrow, of_narrow) = (sources.matrix(COLS), MatRef::new(&g, DType::Bf16, ROWS, COLS / 2).unwrap());
    let wide = scheme(CodeFormat::E4M3, CastGroup::Group1x128);
    untouched(&handle, wide, COLS, |dx| {
        let into = SwigluGradientsInto { x: Some((CastRecipe::new(wide), dx).into()), ..Default::default() };
        let rule = "must be a multiple of 128, so that no group of the gradient has columns of both";
        let words = ["x of SwiGLU", "halves of 64 columns", rule, "take groups of 1x32 or mxfp8"];
        refused(handle.swiglu_backward(SwigluSource::new(&narrow).unwrap(), &of_narrow, into), words);
    });
    // What is written beside.
    let mut memory = handle.alloc(ROWS * 2 * COLS * 4).unwrap();
    let f32 = MatMut::new(&mut memory, DType::F32, ROWS, 2 * COLS).unwrap();
    let into = SwigluGradientsInto { x_bf16: Some(f32), ..Default::default() };
    refused(run(into), ["gradient of x in BF16", "f32", "is not bf16", "pass a BF16 matrix"]);
    let narrow = MatMut::new(&mut memory, DType::Bf16, ROWS, 2 * COLS).unwrap();
    let into = SwigluGradientsInto { out: Some(narrow), ..Default::default() };
    let rule = "must be 16 x 128, x being 16 x 256";
    refused(run(into), ["result of SwiGLU in BF16", "16 x 256", rule, "pass a matrix of that shape"]);
    let mut few = handle.alloc(4 * ROWS - 4).unwrap();
    let into = SwigluGradientsInto { weights: Some((&mut few).into()), ..Default::default() };
    let rule = "must be an f32 for each of the 16 rows of x";
    refused(run(into), ["gradient of the weights", "60 bytes", rule, "pass one for each row"]);
    let other = MatRef::new(&g, DType::F16, ROWS, COLS).unwrap();
    let words = ["gradient of SwiGLU", "f16", "must be bf16, as x", "convert it first"];
    let none = SwigluGradientsInto::default;
    refused(handle.swiglu_backward(SwigluSource::new(&x).unwrap(), &other, none()), words);
    let words = ["gradient of SwiGLU", "16 x 256", "must be 16 x 128, x being 16 x 256", "pass a matrix of that shape"];
    refused(handle.swiglu_backward(SwigluSource::new(&x).unwrap(), &x, none()), words);
    let mut counts = handle.alloc(24).unwrap();
    let counting = SwigluSource::new(&x).unwrap().with_clamp(1.0).unwrap().with_counts(&mut counts).unwrap();
    let what = "counting in the backward pass of SwiGLU";
    let words = [what, what, "the forward pass has counted", "pass them there"];
    refused(handle.swiglu_backward(counting, &gradient, none()), words);
}

/// Ways back, and E2M1 to E4M3 without loss.
#[test]
fn ways_back() {
    let Some(handle) = handle() else { return };
    let q = poisoned_cast(&handle, scheme(CodeFormat::E4M3, CastGroup::Group1x32), ROWS, COLS);
    let mut y = handle.upload(&[0xFFu8; ROWS * COLS * 4]).unwrap();
    for (rows, cols, found) in [(ROWS, COLS - 16, "16 x 112"), (ROWS - 1, COLS, "15 x 128"), (0, COLS, "0 x 128")] {
        let mut y = MatMut::new(&mut y, DType::F32, rows, cols).unwrap();
        let rule = "must be 16 x 128, the shape of the codes";
        let words = ["matrix to cast back to", found, rule, "pass a matrix of that shape"];
        refused(handle.cast_back_into(&q, &mut y), words);
    }
    for dtype in [DType::E4M3, DType::E5M2] {
        let mut y = MatMut::new(&mut y, dtype, ROWS, COLS).unwrap();
        let words =
            ["matrix to cast back to", dtype.name(), "is not bf16, f16 or f32", "pass a matrix of one of these"];
        refused(handle.cast_back_into(&q, &mut y), words);
    }
    // More columns than a grid has blocks for, of which those of transposed codes have the fewest.
    let wide = 65_535 * 32 + 16;
    let turned = scheme(CodeFormat::E4M3, CastGroup::Group32x1).transposed().unwrap();
    let coded = CastMatrix::zeros(&handle, turned, ROWS, wide).unwrap();
    let mut of_wide = handle.upload(&vec![0xFFu8; ROWS * wide * 2]).unwrap();
    let words = ["matrix of a cast", "16 x 2097136", "at most 2097120 columns", "cast it in parts"];
    refused(handle.cast_back_into(&coded, &mut MatMut::new(&mut of_wide, DType::Bf16, ROWS, wide).unwrap()), words);
    for y in [&y, &of_wide] {
        assert!(handle.read_bytes(&y.view()).unwrap().iter().all(|byte| *byte == 0xFF), "a refused call has written");
    }

    let to = scheme(CodeFormat::E4M3, CastGroup::Group1x128).with_scales(CastScales::Ue8m0);
    let e2m1 = |group| scheme(CodeFormat::E2M1, group);
    let others = [CastGroup::Row, CastGroup::Tile32x32, CastGroup::Tile128x128, CastGroup::Group32x1];
    for from in others.map(e2m1).into_iter().chain([scheme(CodeFormat::E4M3, CastGroup::Group1x32)]) {
        let coded = CastMatrix::zeros(&handle, from, ROWS, COLS).unwrap();
        let what = format!("{from} to FP8 without loss");
        let words = [&*what, &*what, "it is for e2m1 codes in groups of 16 to 128 columns", "use Handle::cast"];
        untouched(&handle, to, COLS, |out| refused(handle.fp4_to_fp8_into(&coded, out, None), words));
    }
    let coded = CastMatrix::zeros(&handle, e2m1(CastGroup::Group1x32), ROWS, COLS).unwrap();
    for there in
        [to.with_scales(CastScales::RowMajor), to.with_scales(CastScales::ColumnMajor), e2m1(CastGroup::Group1x128)]
    {
        let what = format!("a target of {there}");
        let words = [&*what, &*what, "the cast is to e4m3 1x128 ue8m0", "CastMatrix::zeros for that scheme"];
        untouched(&handle, there, COLS, |out| refused(handle.fp4_to_fp8_into(&coded, out, None), words));
    }
    untouched(&handle, to, COLS + 16, |out| {
        let words = ["target", "16 x 144", "must be 16 x 128, the shape of the source", "CastMatrix::zeros"];
        refused(handle.fp4_to_fp8_into(&coded, out, None), words);
    });
    untouched(&handle, to, COLS, |out| {
        let mut short = handle.alloc(3).unwrap();
        let words = ["count of inexact groups", "3 bytes", "must be at least 4", "allocate the length"];
        refused(handle.fp4_to_fp8_into(&coded, out, Some(&mut short.view_mut())), words);
    });
}
