//! What is computed right before a cast equals the reference byte for byte, for every grouping: SwiGLU with clamp, counts, weights and
//! experts, activations; rows that are gathered, matrices that products read, captures; what is refused.
#![cfg(feature = "cuda")]

#[path = "common/cast.rs"]
mod cast;
mod common;
#[path = "common/producers.rs"]
mod producers;

use cast::*;
use common::*;
use ndarray::Array2;
use producers::*;
use scaled_gemm::reference::{self, CastInput, ClampCounts, Swiglu};
use scaled_gemm::{
    CastGroup, CastMatrix, CastRecipe, CastScales, CastScheme, CastSource, CodeFormat, DType, Fp8Format,
    Fp8Granularity, Fp8Recipe, Fp8Rule, Handle, HostCastMatrix, MatRef, QuantMatrix, Recipe, RowIndex,
    SourceActivation, SwigluSource, VecRef,
};

fn recipes(rows: usize) -> Vec<CastRecipe> {
    let mut all = Vec::new();
    for format in [CodeFormat::E4M3, CodeFormat::E2M1] {
        for group in CastGroup::ALL {
            let scheme = CastScheme::new(format, group).unwrap();
            all.extend([CastRecipe::new(scheme), CastRecipe::new(scheme.with_scales(CastScales::Ue8m0))]);
            if group.is_per_channel() && rows.is_multiple_of(16) {
                all.push(CastRecipe::new(scheme.transposed().unwrap()));
            }
        }
    }
    all
}

fn check_swiglu(handle: &Handle, gated: &Gated, all: bool, recipe: CastRecipe) {
    let (rows, half) = (gated.x.nrows(), gated.x.ncols() / 2);
    let context = format!("{rows} x {half} {}, all {all}, to {}", gated.dtype, recipe.scheme());
    let (values, right) = gated.values(all, recipe.scheme().group());
    let want = reference::cast(&values.view().into(), recipe).unwrap();
    // They are raised, whatever they were: beyond 32 bits, too.
    let mut counts = handle.upload(&[u32::MAX, 0, 0, 0, 0, 1]).unwrap();
    let matrix = gated.matrix();
    let mut got = poisoned_cast(handle, recipe.scheme(), rows, half);
    handle.cast_into(gated.source(&matrix, all, &mut counts), recipe, &mut got).unwrap();
    assert_cast(handle, &got, &want, &context);
    let raised = if all { right } else { ClampCounts::default() };
    let found = read_counts(handle, &counts);
    let before = [u64::from(u32::MAX), 0, 1 << 32];
    assert_eq!(
        [found.left_above, found.right_above, found.right_below],
        [raised.left_above + before[0], raised.right_above, raised.right_below + before[2]],
        "{context}"
    );
}

/// Small, for runs under a sanitizer.
#[test]
fn each_kernel_once() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(950);
    for dtype in INPUTS {
        for (rows, half) in [(144, 272), (5, 48), (1, 16400)] {
            // Packed, apart but aligned, and not aligned.
            for stride in [2 * half, 2 * half + 8, 2 * half + 3] {
                let gated = Gated::strided(&handle, &mut rng, (rows, half), dtype, stride);
                for recipe in recipes(rows) {
                    // Without the options there are kernels that do not know them.
                    [true, false].into_iter().for_each(|all| check_swiglu(&handle, &gated, all, recipe));
                }
            }
        }
    }
}

/// Small, for runs under a sanitizer: every activation, of which the exact GELU has a polynomial of its own.
#[test]
fn each_activation_once() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(949);
    for (rows, cols, apart) in [(48, 288, 0), (5, 96, 3), (1, 16416, 0)] {
        let gated = Gated::strided(&handle, &mut rng, (rows, cols / 2), DType::Bf16, cols + apart);
        let (matrix, x) = (gated.matrix(), gated.x.view());
        for activation in SourceActivation::ALL {
            let values = match activation {
                SourceActivation::Silu => reference::silu(x),
                SourceActivation::Gelu => reference::gelu(x),
                SourceActivation::GeluTanh => reference::gelu_tanh(x),
            };
            for recipe in recipes(rows) {
                let want = reference::cast(&values.view().into(), recipe).unwrap();
                let got = handle.cast(CastSource::activated(&matrix, activation), recipe).unwrap();
                assert_cast(&handle, &got, &want, &format!("{activation} to {}", recipe.scheme()));
            }
        }
    }
}

#[test]
fn swiglu_shapes() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(951);
    // Rows of 16400 and more are computed twice; what the clamp changes counts once.
    for (rows, half) in [(0, 64), (1, 64), (127, 576), (129, 7168), (3, 16400), (1000, 1024)] {
        let gated = Gated::new(&handle, &mut rng, rows, half, DType::Bf16);
        for recipe in recipes(rows) {
            for all in [false, true] {
                check_swiglu(&handle, &gated, all, recipe);
            }
        }
    }
}

/// Rows enough for the kernels for many, with a value in each of a thread's vectors.
#[test]
fn many_rows() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(959);
    let (rows, half) = (4 * handle.device().sm_count as usize + 5, 2000);
    let mut recipes = Vec::new();
    for format in [CodeFormat::E4M3, CodeFormat::E2M1] {
        for group in [CastGroup::Group1x16, CastGroup::Group1x32, CastGroup::Group1x128] {
            let scheme = CastScheme::new(format, group).unwrap();
            recipes.extend(CastScales::ALL.map(|scales| CastRecipe::new(scheme.with_scales(scales))));
        }
    }
    let (of_rows, of_columns): (Vec<f32>, Vec<f32>) =
        ((0..rows).map(|_| rng.uniform() + 0.5).collect(), (0..2 * half).map(|_| rng.normal()).collect());
    let (rows_there, columns_there) = (handle.upload(&of_rows).unwrap(), handle.upload(&of_columns).unwrap());
    for dtype in INPUTS {
        for apart in [0, 3] {
            let gated = Gated::strided(&handle, &mut rng, (rows, half), dtype, 2 * half + apart);
            let matrix = gated.matrix();
            let factors = || VecRef::new(&rows_there, DType::F32, rows).unwrap();
            let columns = || VecRef::new(&columns_there, DType::F32, 2 * half).unwrap();
            let normed = Array2::from_shape_fn(gated.x.dim(), |(i, j)| gated.x[(i, j)] * of_rows[i] * of_columns[j]);
            let tanh = reference::gelu_tanh(gated.x.view());
            for recipe in &recipes {
                // With the options, and without them.
                [true, false].into_iter().for_each(|all| check_swiglu(&handle, &gated, all, *recipe));
                let context = format!("{rows} x {} {dtype}, {apart} apart, to {}", 2 * half, recipe.scheme());
                let experts = SwigluSource::new(&matrix).unwrap().with_experts(&gated.experts_there).unwrap();
                let got = handle.cast(experts, *recipe).unwrap();
                let options = reference::Swiglu { experts: Some(&gated.experts), ..reference::Swiglu::default() };
                let (values, _) = reference::swiglu(gated.x.view(), &options).unwrap();
                let want = reference::cast(&values.view().into(), *recipe).unwrap();
                assert_cast(&handle, &got, &want, &format!("experts alone, {context}"));
                let source = CastSource::activated(&matrix, SourceActivation::GeluTanh);
                let got = handle.cast(source, *recipe).unwrap();
                let want = reference::cast(&tanh.view().into(), *recipe).unwrap();
                assert_cast(&handle, &got, &want, &format!("gelu-tanh of {context}"));
                let got = handle.cast(CastSource::normed(&matrix, factors(), columns()).unwrap(), *recipe).unwrap();
                let want = reference::cast(&normed.view().into(), *recipe).unwrap();
                assert_cast(&handle, &got, &want, &format!("norm of {context}"));
            }
        }
    }
}

/// Scales alone and codes alone, which count as a whole cast does.
#[test]
fn parts_of_a_cast() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(958);
    for (rows, half) in [(144, 272), (2, 16400), (4 * handle.device().sm_count as usize + 5, 144)] {
        let gated = Gated::new(&handle, &mut rng, rows, half, DType::Bf16);
        let matrix = gated.matrix();
        for recipe in recipes(rows) {
            let scheme = recipe.scheme();
            let (values, right) = gated.values(true, scheme.group());
            let mut counts = handle.alloc(24).unwrap();
            let scales = reference::cast_scales(&values.view().into(), recipe).unwrap();
            let codes = vec![0xA5; scheme.code_bytes(rows, half)];
            let want = HostCastMatrix::from_logical(scheme, rows, half, codes, scales).unwrap();
            let mut got = poisoned_cast(&handle, scheme, rows, half);
            handle.cast_scales_into(gated.source(&matrix, true, &mut counts), recipe, &mut got).unwrap();
            assert_cast(&handle, &got, &want, &format!("scales alone, {scheme}"));
            assert_eq!(read_counts(&handle, &counts), right, "scales alone, {scheme}");

            let [r, c] = scheme.group().grid(rows, half);
            let given = vec![0.125; r * c];
            let want = reference::cast_with_scales(&values.view().into(), scheme, &given).unwrap();
            let mut got = poisoned_cast(&handle, scheme, rows, half);
            handle.write(&mut got.scales_mut(), &want.device_scales()).unwrap();
            let mut counts = handle.alloc(24).unwrap();
            handle.cast_with_scales_into(gated.source(&matrix, true, &mut counts), &mut got).unwrap();
            assert_cast(&handle, &got, &want, &format!("codes alone, {scheme}"));
            assert_eq!(read_counts(&handle, &counts), right, "codes alone, {scheme}");
        }
    }
}

#[test]
fn activations() {
    let Some(handle) = handle() else { return };
    each_activation(&handle, 952, |(matrix, activation), values, name| {
        for recipe in recipes(values.nrows()) {
            let want = reference::cast(&values.view().into(), recipe).unwrap();
            let got = handle.cast(CastSource::activated(matrix, activation), recipe).unwrap();
            assert_cast(&handle, &got, &want, &format!("{name} to {}", recipe.scheme()));
        }
    });
}

/// Every BF16 and F16 number, and FP32 numbers of every size, each the only one of its group that is not zero: the FP32 scale of the
/// group is then that of the function's value alone, and codes cannot hide its last bits. The least floor, or those below 1e-4 were hidden.
#[test]
fn every_value_to_the_last_bit() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(957);
    let recipe = CastRecipe::new(CastScheme::new(CodeFormat::E4M3, CastGroup::Group1x16).unwrap());
    let recipe = recipe.with_floor(448.0 * f32::MIN_POSITIVE).unwrap();
    for dtype in INPUTS {
        let numbers: Vec<f32> = match dtype {
            DType::F32 => (0..1 << 20)
                .map(|i| if i % 2 == 0 { rng.normal() * 30.0 } else { f32::from_bits(rng.bits() as u32) })
                .collect(),
            _ => values_of(dtype, &(0..=u16::MAX).flat_map(u16::to_le_bytes).collect::<Vec<_>>()),
        };
        let (rows, cols) = (numbers.len() / 256, 256 * 16);
        let x = Array2::from_shape_fn(
            (rows, cols),
            |(i, j)| if j % 16 == i % 16 { numbers[i * 256 + j / 16] } else { 0.0 },
        );
        let data = handle.upload(&bytes_of(dtype, &x)).unwrap();
        let matrix = MatRef::new(&data, dtype, rows, cols).unwrap();
        for activation in SourceActivation::ALL {
            let values = match activation {
                SourceActivation::Silu => reference::silu(x.view()),
                SourceActivation::Gelu => reference::gelu(x.view()),
                SourceActivation::GeluTanh => reference::gelu_tanh(x.view()),
            };
            let want = reference::cast(&values.view().into(), recipe).unwrap();
            let got = handle.cast(CastSource::activated(&matrix, activation), recipe).unwrap();
            assert_cast(&handle, &got, &want, &format!("{activation} of every {dtype}"));
        }
    }
}

#[test]
fn gathered_rows() {
    let Some(handle) = handle() else { return };
    let gated = Gated::new(&handle, &mut Noise::new(953), 40, 144, DType::Bf16);
    // Weights and experts are those of the rows that are read.
    let index: Vec<i32> = (0..64).map(|i| if i % 9 == 4 { -1 } else { (i * 7) % 40 }).collect();
    let rows_of = RowIndex::new(&handle, &index, 40).unwrap();
    let matrix = gated.matrix();
    // A row counts as often as it is read.
    let mut right = ClampCounts::default();
    for row in index.iter().filter_map(|row| usize::try_from(*row).ok()).filter(|row| gated.experts[*row] >= 0) {
        let one = gated.x.slice(ndarray::s![row..row + 1, ..]);
        let (_, found) = reference::swiglu(one, &Swiglu { clamp: Some(10.0), ..Swiglu::default() }).unwrap();
        right.left_above += found.left_above;
        right.right_above += found.right_above;
        right.right_below += found.right_below;
    }
    for recipe in recipes(64) {
        let (values, _) = gated.values(true, recipe.scheme().group());
        let want = reference::cast(&CastInput::from(values.view()).gathered(&index).unwrap(), recipe).unwrap();
        let mut counts = handle.alloc(24).unwrap();
        let source = CastSource::from(gated.source(&matrix, true, &mut counts)).gathered(&rows_of).unwrap();
        let got = handle.cast(source, recipe).unwrap();
        assert_cast(&handle, &got, &want, &format!("gathered to {}", recipe.scheme()));
        assert_eq!(read_counts(&handle, &counts), right, "gathered to {}", recipe.scheme());

        // Without clamp and weights, which kernels of their own do: experts alone.
        let alone = || SwigluSource::new(&matrix).unwrap().with_experts(&gated.experts_there).unwrap();
        let (values, _) =
            reference::swiglu(gated.x.view(), &Swiglu { experts: Some(&gated.experts), ..Swiglu::default() }).unwrap();
        let rounded = recipe.scheme().group().is_per_channel();
        let values = if rounded { reference::round_values(values, DType::Bf16) } else { values };
        let want = reference::cast(&CastInput::from(values.view()).gathered(&index).unwrap(), recipe).unwrap();
        let got = handle.cast(CastSource::from(alone()).gathered(&rows_of).unwrap(), recipe).unwrap();
        assert_cast(&handle, &got, &want, &format!("experts alone, gathered to {}", recipe.scheme()));
        // 40 rows have no transposed codes.
        if !recipe.scheme().is_transposed() {
            let want = reference::cast(&values.view().into(), recipe).unwrap();
            let got = handle.cast(alone(), recipe).unwrap();
            assert_cast(&handle, &got, &want, &format!("experts alone to {}", recipe.scheme()));
        }
    }
}

/// Into a matrix that products read: the bytes of the quantizer that reads stored FP32 values, padding included.
#[test]
fn what_products_read() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(954);
    for (rows, half) in [(1, 64), (127, 576), (130, 1040), (3, 16400)] {
        let gated = Gated::new(&handle, &mut rng, rows, half, DType::Bf16);
        let matrix = gated.matrix();
        let (values, _) = gated.values(true, CastGroup::Row);
        for granularity in [Fp8Granularity::Row, Fp8Granularity::Group1x128] {
            let exact = Fp8Recipe::new(granularity, Fp8Format::E4M3).with_rule(Fp8Rule::DeepSeek);
            for recipe in [exact, exact.power_of_two()] {
                let want = reference::quantize(values.view(), DType::F32, recipe).unwrap();
                let mut got = QuantMatrix::zeros(&handle, recipe.scheme(), rows, half).unwrap();
                let mut counts = handle.alloc(24).unwrap();
                handle.quantize_source_into(gated.source(&matrix, true, &mut counts), recipe, &mut got).unwrap();
                assert_device_bits(&handle, &got, &want, &format!("{rows} x {half} {recipe:?}"));
                // A plain matrix is a source too: the quantizer of its own kernels gives the same.
                let want = reference::quantize(gated.x.view(), gated.dtype, recipe).unwrap();
                let mut got = QuantMatrix::zeros(&handle, recipe.scheme(), rows, 2 * half).unwrap();
                handle.quantize_source_into(&matrix, recipe, &mut got).unwrap();
                assert_device_bits(&handle, &got, &want, "plain");
            }
        }
    }
}

#[test]
fn captured() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(955);
    let mut gated = Gated::new(&handle, &mut rng, 33, 144, DType::Bf16);
    let recipe = CastRecipe::new(CastScheme::new(CodeFormat::E4M3, CastGroup::Group1x128).unwrap());
    handle.load_kernels(&[scaled_gemm::KernelFamily::Fused]).unwrap();
    let mut got = CastMatrix::zeros(&handle, recipe.scheme(), 33, 144).unwrap();
    let mut counts = handle.alloc(24).unwrap();
    let read = Fp8Recipe::new(Fp8Granularity::Group1x128, Fp8Format::E4M3).with_rule(Fp8Rule::DeepSeek);
    let mut product = QuantMatrix::zeros(&handle, read.scheme(), 33, 144).unwrap();
    let graph = {
        let matrix = gated.matrix();
        let graph = capture_owned(&handle, || {
            handle.cast_into(gated.source(&matrix, true, &mut counts), recipe, &mut got)?;
            handle.quantize_source_into(SwigluSource::new(&matrix)?, read, &mut product)
        });
        graph.unwrap()
    };
    let mut launched = ClampCounts::default();
    for _ in 0..3 {
        let other = Gated::new(&handle, &mut rng, 33, 144, DType::Bf16);
        handle.write(&mut gated.data.view_mut(), &bytes_of(DType::Bf16, &other.x)).unwrap();
        gated.x = other.x;
        handle.launch(&graph).unwrap();
        let want = reference::cast(&gated.values(true, CastGroup::Group1x128).0.view().into(), recipe).unwrap();
        assert_cast(&handle, &got, &want, "captured");
        let right = gated.values(true, CastGroup::Group1x128).1;
        launched.left_above += right.left_above;
        launched.right_above += right.right_above;
        launched.right_below += right.right_below;
        assert_eq!(read_counts(&handle, &counts), launched);
        let values = gated.values(false, CastGroup::Group1x128).0;
        let want = reference::quantize(values.view(), DType::F32, read).unwrap();
        assert_device_bits(&handle, &product, &want, "captured, for a product");
    }
}

#[test]
fn refusals() {
    let Some(handle) = handle() else { return };
    let gated = Gated::new(&handle, &mut Noise::new(956), 16, 64, DType::Bf16);
    let matrix = gated.matrix();
    let says = |result: scaled_gemm::Result<()>, words: &[&str]| {
        let said = result.unwrap_err().to_string();
        assert!(words.iter().all(|word| said.contains(word)), "{said:?} lacks one of {words:?}");
    };
    let odd = MatRef::new(&gated.data, DType::Bf16, 16, 48).unwrap();
    says(SwigluSource::new(&odd).map(drop), &["48 columns", "32"]);
    let source = || SwigluSource::new(&matrix).unwrap();
    says(source().with_clamp(-1.0).map(drop), &["-1", "at least 0"]);
    says(source().with_clamp(f32::NAN).map(drop), &["NaN"]);
    let few = VecRef::new(&gated.weights_there, DType::F32, 15).unwrap();
    says(source().with_weights(few).map(drop), &["15", "16 rows"]);
    let narrow = VecRef::new(&gated.weights_there, DType::Bf16, 16).unwrap();
    says(source().with_weights(narrow).map(drop), &["bf16"]);
    let short = handle.alloc(60).unwrap();
    says(source().with_experts(&short).map(drop), &["60 bytes", "16 rows"]);
    let mut counts = handle.alloc(24).unwrap();
    says(source().with_counts(&mut counts).map(drop), &["without a clamp"]);
    let mut wrong = handle.alloc(12).unwrap();
    says(source().with_clamp(1.0).unwrap().with_counts(&mut wrong).map(drop), &["12 bytes", "three"]);

    for recipe in [
        Fp8Recipe::new(Fp8Granularity::Tensor, Fp8Format::E4M3).with_rule(Fp8Rule::DeepSeek),
        Fp8Recipe::new(Fp8Granularity::Row, Fp8Format::E4M3),
        Fp8Recipe::new(Fp8Granularity::Row, Fp8Format::E5M2).with_rule(Fp8Rule::DeepSeek),
    ] {
        let mut out = QuantMatrix::zeros(&handle, recipe.scheme(), 16, 64).unwrap();
        let said = handle.quantize_source_into(source(), recipe, &mut out).unwrap_err().to_string();
        assert!(said.contains("Handle::quantize"), "{said}");
        assert_eq!(Recipe::Fp8(recipe).scheme(), out.scheme());
    }
    let recipe = CastRecipe::new(CastScheme::new(CodeFormat::E4M3, CastGroup::Row).unwrap());
    let mut wide = CastMatrix::zeros(&handle, recipe.scheme(), 16, 128).unwrap();
    says(handle.cast_into(source(), recipe, &mut wide), &["16 x 128", "16 x 64"]);
    handle.synchronize().unwrap();
}
