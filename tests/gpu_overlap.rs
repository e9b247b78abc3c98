//! What is written must lie apart from all that is read and from what else is written, for every quantizer, cast, way back and grouped product: one that is given where another lies is
//! refused by both names, and has written nothing.
#![cfg(feature = "cuda")]

mod common;
#[path = "common/refusals.rs"]
mod refusals;

use common::*;
use refusals::refusals;
use scaled_gemm::cudarc::driver::DevicePtr;
use scaled_gemm::{
    CastGroup, CastMatrix, CastRecipe, CastScales, CastScheme, CastSource, CodeFormat, DType, DeviceBuffer,
    DeviceBytesMut, Error, Fp8Format, Fp8Rule, GivenScale, GroupedDeviceLayout, GroupedGemmArgs, GroupedLayout,
    GroupedRows, GroupedScheme, GroupedSource, GroupedTensor, GroupedWeightGradient, MatMut, MatRef, QuantMatrix,
    QuantizeTo, Recipe, Result, RmsNormArgs, RowIndex, Scheme, SwigluGradientsInto, SwigluSource, VecRef,
};

const F: Fp8Format = Fp8Format::E4M3;

/// That of a source: groups of 128 are cast by DeepSeek's rule alone.
fn recipe(scheme: Scheme) -> Recipe {
    match Recipe::new(scheme) {
        Recipe::Fp8(fp8) if scheme == Scheme::Fp8Group1x128(F) => fp8.with_rule(Fp8Rule::DeepSeek).into(),
        other => other,
    }
}

fn along(format: CodeFormat, group: CastGroup) -> CastScheme {
    CastScheme::new(format, group).unwrap()
}

/// Of memory for its codes and its scales.
fn cast_matrix(
    at: &dyn Fn(usize, usize) -> DeviceBuffer,
    [codes, scales]: [usize; 2],
    scheme: CastScheme,
    [rows, cols]: [usize; 2],
) -> CastMatrix {
    let (codes, scales) = (at(codes, scheme.code_bytes(rows, cols)), at(scales, scheme.scale_bytes(rows, cols)));
    CastMatrix::from_parts(scheme, rows, cols, codes, scales).unwrap()
}

/// The same, with FP32 scales and with block scales where the scheme has some.
fn quant_matrix(
    at: &dyn Fn(usize, usize) -> DeviceBuffer,
    places: &[usize],
    scheme: Scheme,
    [rows, cols]: [usize; 2],
) -> QuantMatrix {
    let codes = at(places[0], scheme.code_bytes(rows, cols));
    let mut others = places[1..].iter();
    let mut of = |bytes: usize| (bytes > 0).then(|| at(*others.next().unwrap(), bytes));
    let (scales, block_scales) = (of(scheme.scale_len(rows, cols) * 4), of(scheme.block_scale_len(rows, cols)));
    QuantMatrix::from_parts(scheme, rows, cols, codes, scales, block_scales).unwrap()
}

const TARGET: [&str; 2] = ["codes of the target", "scales of the target"];

#[test]
fn casts_lie_apart_from_what_they_read() {
    let Some(handle) = handle() else { return };
    let shape @ [rows, cols] = [16, 128];
    let e4m3 = along(CodeFormat::E4M3, CastGroup::Group1x128);
    refusals(&handle, &["source", "row index", TARGET[0], TARGET[1]], 2, |at| {
        let (x, index) = (at(0, rows * cols * 2), RowIndex::from_device(at(1, rows * 4)).unwrap());
        let x = MatRef::new(&x, DType::Bf16, rows, cols)?;
        let mut out = cast_matrix(at, [2, 3], e4m3, shape);
        handle.cast_into(CastSource::from(&x).gathered(&index)?, CastRecipe::new(e4m3), &mut out)
    });
    let e2m1 = along(CodeFormat::E2M1, CastGroup::Group1x32);
    let to = e4m3.with_scales(CastScales::Ue8m0);
    let names = ["source", "scales of the source", TARGET[0], TARGET[1], "count of inexact groups"];
    refusals(&handle, &names, 3, |at| {
        let (q, mut inexact) = (cast_matrix(at, [0, 1], e2m1, shape), at(4, 4));
        handle.fp4_to_fp8_into(&q, &mut cast_matrix(at, [2, 3], to, shape), Some(&mut inexact.view_mut()))
    });
}

/// Both forms at once, by scales that are found; by a given scale with an amax, or a given second level; and what is found alone.
#[test]
fn quantizers_lie_apart_from_what_they_read() {
    let Some(handle) = handle() else { return };
    let (shape @ [rows, cols], turned) = ([16, 128], [128, 16]);
    let x = |at: &dyn Fn(usize, usize) -> DeviceBuffer| at(0, rows * cols * 2);
    fn of(data: &DeviceBuffer) -> Result<MatRef<'_>> {
        MatRef::new(data, DType::Bf16, 16, 128)
    }
    for scheme in Scheme::ALL {
        let has_blocks = scheme.block_scale_len(rows, cols) > 0;
        let has_scales = scheme.scale_len(rows, cols) > 0;
        let parts = [("codes", true), ("scales", has_scales), ("block scales", has_blocks)];
        let parts: Vec<_> = parts.into_iter().filter(|(_, there)| *there).map(|(name, _)| name).collect();
        let count = parts.len();
        let names: Vec<String> = parts.iter().map(|name| format!("{name} of the transpose")).collect();
        let written: Vec<&str> = parts.iter().copied().chain(names.iter().map(String::as_str)).collect();
        refusals(&handle, &[&["x"][..], &written].concat(), 2 * count, |at| {
            let [own, other] = [1, 1 + count].map(|first| (first..first + count).collect::<Vec<_>>());
            let (mut out, mut out_t) =
                (quant_matrix(at, &own, scheme, shape), quant_matrix(at, &other, scheme, turned));
            let (x, to) = (x(at), QuantizeTo::Both(&mut out, &mut out_t));
            handle.quantize_into(&of(&x)?, Recipe::new(scheme), to)
        });
        refusals(&handle, &[&parts[..], &["dequantized matrix"]].concat(), 1, |at| {
            let q = quant_matrix(at, &(0..count).collect::<Vec<_>>(), scheme, shape);
            let mut y = at(count, rows * cols * 2);
            handle.dequantize_into(&q, &mut MatMut::new(&mut y, DType::Bf16, rows, cols)?)
        });
    }
    let tensor = Scheme::Fp8Tensor(F);
    refusals(&handle, &["x", "given scale", "codes", "scales", "amax"], 3, |at| {
        let (number, mut amax, mut out) = (at(1, 4), at(4, 4), quant_matrix(at, &[2, 3], tensor, shape));
        let (x, given) = (x(at), GivenScale::Encode(number.view()));
        handle.quantize_tensor_into(&of(&x)?, F, &given, &mut out, Some(&mut amax.view_mut()))
    });
    refusals(&handle, &["x", "given scale", "codes of the transpose", "scales of the transpose"], 2, |at| {
        let (number, mut out) = (at(1, 4), quant_matrix(at, &[2, 3], tensor, turned));
        let (x, given) = (x(at), GivenScale::Encode(number.view()));
        handle.quantize_slots_transposed_with_scales_into(&of(&x)?, F, &given, std::slice::from_mut(&mut out))
    });
    let nvfp4 = Scheme::Nvfp4;
    refusals(&handle, &["x", "given scale", "codes", "scales", "block scales"], 3, |at| {
        let (number, mut out) = (at(1, 4), quant_matrix(at, &[2, 3, 4], nvfp4, shape));
        let (x, given) = (x(at), GivenScale::Amax(number.view()));
        handle.quantize_nvfp4_into(&of(&x)?, Recipe::new(nvfp4), &given, QuantizeTo::Plain(&mut out))
    });
    refusals(&handle, &["x", "amax"], 1, |at| {
        let (x, mut amax) = (x(at), at(1, 4));
        handle.amax_into(&of(&x)?, &mut amax.view_mut())
    });
    refusals(&handle, &["x", "amax"], 1, |at| {
        let (x, mut amax) = (x(at), at(1, rows * 4));
        handle.row_amax_into(&of(&x)?, &mut amax.view_mut())
    });
}

/// In one pass, in two launches, and without a cast.
#[test]
fn norms_lie_apart_from_what_they_read_and_write() {
    let Some(handle) = handle() else { return };
    let shape @ [rows, cols] = [16, 128];
    let names = ["x of a norm", "weight of a norm", "residual of a norm", "sum of a norm", "factors of a norm"];
    let with = |others: &[&'static str]| [&names[..], others].concat();
    // A residual that lies where its sum does is one that is replaced, unless its stride is another.
    let stride = cols + 16;
    let norm = |at: &dyn Fn(usize, usize) -> DeviceBuffer, then: &mut dyn FnMut(RmsNormArgs<'_>) -> Result<()>| {
        let (x, weight, residual) = (at(0, rows * cols * 2), at(1, cols * 4), at(2, rows * stride * 2));
        let (mut sum, mut rstd) = (at(3, rows * cols * 2), at(4, rows * 4));
        let (x, residual) = (
            MatRef::new(&x, DType::Bf16, rows, cols)?,
            MatRef::new(&residual, DType::Bf16, rows, cols)?.with_row_stride(stride)?,
        );
        let norm = RmsNormArgs::new(&x, VecRef::new(&weight, DType::F32, cols)?, 1e-6)?;
        then(norm.with_residual(&residual, MatMut::new(&mut sum, DType::Bf16, rows, cols)?)?.with_rstd(&mut rstd)?)
    };
    refusals(&handle, &names, 2, |at| norm(at, &mut |norm| handle.rms_norm(norm)));
    let group = along(CodeFormat::E4M3, CastGroup::Group1x32);
    refusals(&handle, &with(&TARGET), 4, |at| {
        let mut out = cast_matrix(at, [5, 6], group, shape);
        norm(at, &mut |norm| handle.rms_norm_cast_into(norm, CastRecipe::new(group), &mut out))
    });
    let tile = along(CodeFormat::E4M3, CastGroup::Tile32x32);
    refusals(&handle, &[""; 7], 4, |at| {
        let mut out = cast_matrix(at, [5, 6], tile, shape);
        norm(at, &mut |norm| handle.rms_norm_cast_into(norm, CastRecipe::new(tile), &mut out))
    });
    let vectors = Scheme::Fp8Group1x128(F);
    refusals(&handle, &with(&TARGET), 4, |at| {
        let mut out = quant_matrix(at, &[5, 6], vectors, shape);
        norm(at, &mut |norm| handle.rms_norm_quantize_into(norm, recipe(vectors), &mut out))
    });
    let mx = Scheme::Mxfp8(F);
    refusals(&handle, &[""; 7], 4, |at| {
        let mut out = quant_matrix(at, &[5, 6], mx, shape);
        norm(at, &mut |norm| handle.rms_norm_quantize_into(norm, Recipe::new(mx), &mut out))
    });
    // A residual in place is its sum, and no overlap; x is none.
    refusals(&handle, &["x of a norm", "weight of a norm", "sum of a norm", "factors of a norm"], 2, |at| {
        let (x, weight) = (at(0, rows * cols * 2), at(1, cols * 4));
        let (mut both, mut rstd) = (at(2, rows * cols * 2), at(3, rows * 4));
        let x = MatRef::new(&x, DType::Bf16, rows, cols)?;
        let norm = RmsNormArgs::new(&x, VecRef::new(&weight, DType::F32, cols)?, 1e-6)?;
        let both = MatMut::new(&mut both, DType::Bf16, rows, cols)?;
        handle.rms_norm(norm.with_updated_residual(both)?.with_rstd(&mut rstd)?)
    });
}

/// With everything that may be written, to a cast and to what a product reads.
#[test]
fn gradients_of_swiglu_lie_apart_from_what_they_read_and_write() {
    let Some(handle) = handle() else { return };
    let shape @ [rows, cols] = [16, 256];
    let names = [
        "source",
        "gradient of SwiGLU",
        "weights of SwiGLU",
        "experts of SwiGLU",
        "gradient of x in BF16",
        "result of SwiGLU in BF16",
        "gradient of the weights",
        TARGET[0],
        TARGET[1],
    ];
    let scheme = along(CodeFormat::E4M3, CastGroup::Group1x32);
    for mx in [false, true] {
        refusals(&handle, &names, 5, |at| {
            let (x, g) = (at(0, rows * cols * 2), at(1, rows * cols));
            let (weights, experts) = (at(2, rows * 4), at(3, rows * 4));
            let (mut wide, mut out, mut dw) = (at(4, rows * cols * 2), at(5, rows * cols), at(6, rows * 4));
            let (x, g) = (MatRef::new(&x, DType::Bf16, rows, cols)?, MatRef::new(&g, DType::Bf16, rows, cols / 2)?);
            let forward = SwigluSource::new(&x)?.with_weights(VecRef::new(&weights, DType::F32, rows)?)?;
            let (mut cast, mut product);
            let to = match mx {
                false => {
                    cast = cast_matrix(at, [7, 8], scheme, shape);
                    (CastRecipe::new(scheme), &mut cast).into()
                }
                true => {
                    product = quant_matrix(at, &[7, 8], Scheme::Mxfp8(F), shape);
                    (Recipe::new(Scheme::Mxfp8(F)), &mut product).into()
                }
            };
            let into = SwigluGradientsInto {
                x: Some(to),
                x_bf16: Some(MatMut::new(&mut wide, DType::Bf16, rows, cols)?),
                out: Some(MatMut::new(&mut out, DType::Bf16, rows, cols / 2)?),
                weights: Some((&mut dw).into()),
            };
            handle.swiglu_backward(forward.with_experts(&experts)?, &g, into)
        });
    }
}

/// SwiGLU with all that goes with its rows, whose clamp counts: to what a cast writes, and to what a kernel of its own does.
#[test]
fn sources_lie_apart_from_what_is_made_of_them() {
    let Some(handle) = handle() else { return };
    let shape @ [rows, cols] = [16, 128];
    let source = |at: &dyn Fn(usize, usize) -> DeviceBuffer,
                  [w, e, c]: [usize; 3],
                  then: &mut dyn FnMut(SwigluSource<'_>) -> Result<()>| {
        let (x, weights, experts, mut counts) = (at(0, rows * cols * 4), at(w, rows * 4), at(e, rows * 4), at(c, 24));
        let x = MatRef::new(&x, DType::Bf16, rows, 2 * cols)?;
        let source = SwigluSource::new(&x)?.with_clamp(10.0)?.with_weights(VecRef::new(&weights, DType::F32, rows)?)?;
        then(source.with_experts(&experts)?.with_counts(&mut counts)?)
    };
    const SOURCE: [&str; 3] = ["source", "weights of rows", "experts of rows"];
    const COUNTS: &str = "counts of the clamp";
    let names = |written: &[&'static str]| [&SOURCE[..], written, &[COUNTS]].concat();
    let (vectors, mx) = (Scheme::Fp8Group1x128(F), Scheme::Mxfp8(F));
    for (scheme, names) in [(vectors, names(&TARGET)), (mx, names(&["codes", "block scales"]))] {
        refusals(&handle, &names, 3, |at| {
            let mut out = quant_matrix(at, &[3, 4], scheme, shape);
            source(at, [1, 2, 5], &mut |source| handle.quantize_source_into(source, recipe(scheme), &mut out))
        });
    }
    let tensor = Scheme::Fp8Tensor(F);
    let written = ["codes", "scales", "amax", COUNTS];
    refusals(&handle, &[&SOURCE[..], &["given scale"], &written].concat(), 4, |at| {
        let (number, mut amax) = (at(3, 4), at(6, 4));
        let mut out = quant_matrix(at, &[4, 5], tensor, shape);
        let given = GivenScale::Decode(number.view());
        source(at, [1, 2, 7], &mut |source| {
            handle.quantize_source_tensor_into(source, F, &given, &mut out, Some(&mut amax.view_mut()))
        })
    });
    let nvfp4 = Scheme::Nvfp4;
    let written = ["codes", "scales", "block scales", COUNTS];
    refusals(&handle, &[&SOURCE[..], &["given scale"], &written].concat(), 4, |at| {
        let number = at(3, 4);
        let mut out = quant_matrix(at, &[4, 5, 6], nvfp4, shape);
        let given = GivenScale::Decode(number.view());
        source(at, [1, 2, 7], &mut |source| {
            handle.quantize_source_nvfp4_into(source, Recipe::new(nvfp4), &given, &mut out)
        })
    });
}

#[test]
fn rows_that_are_cleared_lie_apart_from_where_groups_lie() {
    let Some(handle) = handle() else { return };
    let names = ["counts of groups", "starts of groups", "rows of groups", "count of clamped groups"];
    let (groups, rows, cols) = (3, 24, 32);
    refusals(&handle, &names, 2, |at| {
        let (counts, starts) = (at(0, groups * 8), at(1, groups * 8));
        let (mut x, mut clamped) = (at(2, rows * cols * 2), at(3, 4));
        let places = GroupedRows::Contiguous { starts: starts.view(), counts: counts.view() };
        let mut x = MatMut::new(&mut x, DType::Bf16, rows, cols)?;
        handle.clear_between_groups(&mut x, groups, &places, Some(&mut clamped.view_mut()))
    });
}

#[test]
fn an_amax_of_groups_lies_apart_from_rows_and_where_groups_lie() {
    let Some(handle) = handle() else { return };
    let (groups, rows, cols) = (3, 24, 32);
    refusals(&handle, &["x", "counts of groups", "starts of groups", "amax of groups"], 1, |at| {
        let (x, counts, starts) = (at(0, rows * cols * 2), at(1, groups * 8), at(2, groups * 8));
        let places = GroupedRows::Contiguous { starts: starts.view(), counts: counts.view() };
        let mut amax = at(3, groups * 4);
        handle.group_amax_into(&MatRef::new(&x, DType::Bf16, rows, cols)?, groups, &places, &mut amax.view_mut())
    });
}

/// D, and the count of clamped groups, of products in one launch, with codes and with plain rows of A, and of slots that are products of their own.
#[test]
fn results_of_grouped_products_lie_apart_from_what_they_read() {
    let Some(handle) = handle() else { return };
    let (groups, slot, n, k) = (2, 128, 128, 128);
    let [rows, of_b] = [groups * slot, groups * n];
    let e5m2 = Fp8Format::E5M2;
    for [a, b] in [
        [Scheme::Fp8Group1x128(F), Scheme::Fp8Group128x128(F)],
        [Scheme::Fp8Row(F), Scheme::Fp8Row(F)],
        [Scheme::Fp8Row(e5m2), Scheme::Fp8Row(F)],
        [Scheme::Fp8Tensor(e5m2), Scheme::Fp8Tensor(F)],
    ] {
        let call = |at: &dyn Fn(usize, usize) -> DeviceBuffer, counted: bool| {
            let (a, b) = (quant_matrix(at, &[0, 1], a, [rows, k]), quant_matrix(at, &[2, 3], b, [of_b, k]));
            let (bias, counts, mut d) = (at(4, of_b * 2), at(5, groups * 8), at(6, rows * n * 2));
            let mut clamped = if counted { at(7, 4) } else { handle.alloc(4)? };
            let places = GroupedRows::Masked { slot_rows: slot, counts: counts.view() };
            let d = MatMut::new(&mut d, DType::Bf16, rows, n)?;
            let args = GroupedGemmArgs::new(&a, &b, groups, places, d);
            let args = args.bias(VecRef::new(&bias, DType::Bf16, of_b)?);
            handle.grouped_gemm(args.clamped(clamped.view_mut()))
        };
        refusals(&handle, &[""; 7], 1, |at| call(at, false));
        let names = [
            "codes of A",
            "scales of A",
            "codes of B",
            "scales of B",
            "bias",
            "counts of groups",
            "D",
            "count of clamped groups",
        ];
        refusals(&handle, &names, 1, |at| call(at, true));
    }
    let nvfp4 = Scheme::Nvfp4Row;
    let names = [
        "A",
        "codes of B",
        "scales of B",
        "block scales of B",
        "counts of groups",
        "starts of groups",
        "D",
        "count of clamped groups",
    ];
    refusals(&handle, &names, 1, |at| {
        let (x, b) = (at(0, rows * k * 2), quant_matrix(at, &[1, 2, 3], nvfp4, [of_b, k]));
        let (counts, starts) = (at(4, groups * 8), at(5, groups * 8));
        let (mut d, mut clamped) = (at(6, rows * n * 2), at(7, 4));
        let places = GroupedRows::Contiguous { starts: starts.view(), counts: counts.view() };
        let (x, d) = (MatRef::new(&x, DType::Bf16, rows, k)?, MatMut::new(&mut d, DType::Bf16, rows, n)?);
        let args = GroupedGemmArgs::weight_only(x, &b, groups, places, d);
        handle.grouped_gemm(args.clamped(clamped.view_mut()))
    });
}

/// The same of scales of groups, in one launch of plain rows and of slots that are products of their own; what lies behind those that are read is no matter.
#[test]
fn results_of_grouped_products_lie_apart_from_scales_of_groups() {
    let Some(handle) = handle() else { return };
    let (groups, slot, n, k) = (2, 128, 128, 128);
    let [rows, of_b] = [groups * slot, groups * n];
    let counts = handle.upload(&[slot as i64; 2]).unwrap();
    let places = || GroupedRows::Masked { slot_rows: slot, counts: counts.view() };
    refusals(&handle, &["A", "B", "B", "B", "scales of groups", "D"], 1, |at| {
        let (x, b) = (at(0, rows * k * 2), quant_matrix(at, &[1, 2, 3], Scheme::Nvfp4, [of_b, k]));
        let (levels, mut d) = (at(4, groups * 4), at(5, rows * n * 2));
        let (x, d) = (MatRef::new(&x, DType::Bf16, rows, k)?, MatMut::new(&mut d, DType::Bf16, rows, n)?);
        let args = GroupedGemmArgs::weight_only(x, &b, groups, places(), d);
        handle.grouped_gemm(args.scales_of_b(levels.view()))
    });
    let tensor = Scheme::Fp8Tensor(F);
    refusals(&handle, &["", "", "", "", "scales of groups", "scales of groups", "D"], 1, |at| {
        let (a, b) = (quant_matrix(at, &[0, 1], tensor, [rows, k]), quant_matrix(at, &[2, 3], tensor, [of_b, k]));
        let ([of_a, of_b], mut d) = ([at(4, groups * 4), at(5, groups * 4)], at(6, rows * n * 2));
        let d = MatMut::new(&mut d, DType::Bf16, rows, n)?;
        let args = GroupedGemmArgs::new(&a, &b, groups, places(), d).product_a_slot();
        handle.grouped_gemm(args.scales_of_a(of_a.view()).scales_of_b(of_b.view()))
    });
    // One piece of memory: scales, and D behind them.
    let memory = handle.stream().alloc_zeros::<u8>(512 + rows * n * 2).unwrap();
    let (base, _guard) = memory.device_ptr(handle.stream());
    // SAFETY: parts of `memory`, which lives to the end, on this handle's stream; nobody else knows them.
    let part = |from: usize, bytes: usize| unsafe {
        DeviceBuffer::from_raw(handle.stream(), base + from as u64, bytes, ()).unwrap()
    };
    let (levels, mut d) = (part(0, 512 + rows * n * 2), part(512, rows * n * 2));
    let x = handle.alloc(rows * k * 2).unwrap();
    let b = QuantMatrix::zeros(&handle, Scheme::Nvfp4, of_b, k).unwrap();
    let d = MatMut::new(&mut d, DType::Bf16, rows, n).unwrap();
    let args = GroupedGemmArgs::weight_only(MatRef::new(&x, DType::Bf16, rows, k).unwrap(), &b, groups, places(), d);
    match handle.grouped_gemm(args.scales_of_b(levels.view())) {
        Err(Error::Pair { reason, .. }) => println!("skipped: {reason}"),
        done => done.unwrap(),
    }
    handle.synchronize().unwrap();
}

/// The same of cuBLASLt's own product, by starts and scales of groups: the library itself checks nothing that lies on the device.
#[test]
fn results_of_cublaslts_groups_lie_apart_from_what_they_read() {
    let Some(handle) = handle().filter(has_cublaslts_groups) else { return };
    let (groups, slot, n, k, tensor) = (2, 128, 128, 128, Scheme::Fp8Tensor(F));
    let [rows, of_b] = [groups * slot, groups * n];
    let call = |at: &dyn Fn(usize, usize) -> DeviceBuffer, counted: bool| {
        let (a, b) = (quant_matrix(at, &[0, 1], tensor, [rows, k]), quant_matrix(at, &[2, 3], tensor, [of_b, k]));
        let ([of_a, of_b], [counts, starts]) = ([4, 5].map(|i| at(i, groups * 4)), [6, 7].map(|i| at(i, groups * 8)));
        let mut d = at(8, rows * n * 2);
        let places = GroupedRows::Contiguous { starts: starts.view(), counts: counts.view() };
        let args = GroupedGemmArgs::new(&a, &b, groups, places, MatMut::new(&mut d, DType::Bf16, rows, n)?);
        let args = args.by_cublaslt().scales_of_a(of_a.view()).scales_of_b(of_b.view());
        if !counted {
            return handle.grouped_gemm(args);
        }
        handle.grouped_gemm(args.clamped(at(9, 4).view_mut()))
    };
    let (scales, places) = ("scales of groups", "where groups lie");
    refusals(&handle, &["A", "A", "B", "B", scales, scales, places, places, "D"], 1, |at| call(at, false));
    let names = [
        "codes of A",
        "scales of A",
        "codes of B",
        "scales of B",
        "scales of the groups of A",
        "scales of the groups of B",
        "counts of groups",
        "starts of groups",
        "D",
        "count of clamped groups",
    ];
    refusals(&handle, &names, 1, |at| call(at, true));
}

/// dW, and the count, of gradients in one launch.
#[test]
fn gradients_of_groups_lie_apart_from_what_they_read() {
    let Some(handle) = handle() else { return };
    let (groups, slot, out, features) = (2, 128, 128, 128);
    let scheme = Scheme::Fp8Group1x128(F);
    let rows = groups * slot;
    let call = |at: &dyn Fn(usize, usize) -> DeviceBuffer, counted: bool| {
        let dy = quant_matrix(at, &[0, 1], scheme, [out, rows]);
        let x = quant_matrix(at, &[2, 3], scheme, [features, rows]);
        let (counts, mut dw) = (at(4, groups * 8), at(5, groups * out * features * 4));
        let mut clamped = if counted { at(6, 4) } else { handle.alloc(4)? };
        let places = GroupedRows::Masked { slot_rows: slot, counts: counts.view() };
        let dw = MatMut::new(&mut dw, DType::F32, groups * out, features)?;
        let of = GroupedWeightGradient::whole(&dy, &x, groups, places, dw);
        handle.grouped_weight_gradient(of.clamped(clamped.view_mut()))
    };
    refusals(&handle, &[""; 6], 1, |at| call(at, false));
    let names = [
        "codes of dY",
        "scales of dY",
        "codes of X",
        "scales of X",
        "counts of groups",
        "dW",
        "count of clamped groups",
    ];
    refusals(&handle, &names, 1, |at| call(at, true));
}

/// dW of one product a group, which runs beside those of other groups: apart from what all of them read.
#[test]
fn gradients_one_a_group_lie_apart_from_what_every_group_reads() {
    let Some(handle) = handle() else { return };
    let (slot, out, features) = (128, 128, 128);
    let scheme = Scheme::Fp8Group1x128(F);
    for streams in [1, 2] {
        refusals(&handle, &["dY", "dY", "dY", "dY", "X", "X", "X", "X", "D"], 1, |at| {
            let dy = [[0, 1], [2, 3]].map(|places| quant_matrix(at, &places, scheme, [out, slot]));
            let x = [[4, 5], [6, 7]].map(|places| quant_matrix(at, &places, scheme, [features, slot]));
            let mut dw = at(8, dy.len() * out * features * 4);
            let dw = MatMut::new(&mut dw, DType::F32, dy.len() * out, features)?;
            handle.grouped_weight_gradient(GroupedWeightGradient::new(&dy, &x, dw).streams(streams))
        });
    }
}

/// No address is needed for this: two who share the numbers of a layout may both write them.
#[test]
fn shared_numbers_of_layouts_are_written_by_one() {
    let Some(handle) = handle() else { return };
    let members = 64;
    let layout = GroupedLayout::packed(&vec![[1, 16]; members]).unwrap();
    let mut one = GroupedDeviceLayout::from_host(&handle, &layout).unwrap();
    let mut other = one.share().unwrap();
    let said = |result: Result<()>, words: &[&str]| {
        let text = result.unwrap_err().to_string();
        assert!(text.contains("must not overlap") && words.iter().all(|word| text.contains(word)), "{text}");
    };
    let counts = handle.upload(&[1i64]).unwrap();
    let places = GroupedRows::Masked { slot_rows: 4, counts: counts.view() };
    let mut x = MatMut::new(one.rows_mut(), DType::Bf16, 4, 64).unwrap();
    let clamped = handle.clear_between_groups_at(4, &mut x, 1, &places, Some(&mut other.rows_mut()));
    said(clamped, &["count of clamped groups", "rows of groups"]);

    let tokens = handle.alloc(4 * 64 * 2).unwrap();
    let weight = handle.alloc(64 * 4).unwrap();
    let x = MatRef::new(&tokens, DType::Bf16, 4, 64).unwrap();
    let norm = RmsNormArgs::new(&x, VecRef::new(&weight, DType::F32, 64).unwrap(), 1e-6).unwrap();
    let sum = MatMut::new(one.rows_mut(), DType::Bf16, 4, 64).unwrap();
    let residual = MatRef::new(&tokens, DType::Bf16, 4, 64).unwrap();
    let mut shared = other.rows_mut();
    let norm = norm.with_residual(&residual, sum).unwrap().with_rstd(shared.part(0..16).unwrap()).unwrap();
    said(handle.rms_norm(norm), &["factors of a norm", "sum of a norm"]);

    // The count of members that were clamped, as the scale of the one member.
    let single = GroupedDeviceLayout::from_host(&handle, &GroupedLayout::packed(&[[4, 64]]).unwrap()).unwrap();
    let counter = single.share().unwrap();
    let scheme = GroupedScheme::new(F);
    let mut q = GroupedTensor::zeros(&handle, scheme, single).unwrap();
    let given = GivenScale::Decode(counter.clamped_count());
    let source = GroupedSource::new(&tokens, DType::Bf16).unwrap();
    let quantized = handle.quantize_grouped_with_scales_into(&source, scheme, &given, &mut q, None);
    said(quantized, &["count of clamped members", "given scales"]);
    handle.synchronize().unwrap();
}

/// D must lie apart from all that is read, in one launch and with a product for each slot.
#[test]
fn a_d_that_overlaps_is_refused() {
    const GROUPS: usize = 3;
    const SLOT: usize = 256;
    const OUT: usize = 256;
    const K: usize = 400;
    let Some(handle) = handle() else { return };
    let counts = handle.upload(&[4i64; GROUPS]).unwrap();
    let memory = handle.stream().alloc_zeros::<u8>(2 << 20).unwrap();
    let (base, _guard) = memory.device_ptr(handle.stream());
    for (a, b) in [(Scheme::Fp8Group1x128(F), Scheme::Fp8Group128x128(F)), (Scheme::Nvfp4, Scheme::Nvfp4)] {
        // Codes of A at the beginning, those of B from 1 MiB on.
        let at = |scheme: Scheme, rows: usize, from: u64| {
            let bytes = scheme.code_bytes(rows, K);
            // SAFETY: `memory` lives to the end of the test, and nobody writes it.
            let codes = unsafe { DeviceBuffer::from_raw(handle.stream(), base + from, bytes, ()) }.unwrap();
            let zeros = |bytes: usize| (bytes > 0).then(|| handle.alloc(bytes).unwrap());
            let (scales, blocks) = (zeros(scheme.scale_len(rows, K) * 4), zeros(scheme.block_scale_len(rows, K)));
            QuantMatrix::from_parts(scheme, rows, K, codes, scales, blocks).unwrap()
        };
        let (x, w) = (at(a, GROUPS * SLOT, 0), at(b, GROUPS * OUT, 1 << 20));
        let ask = |d: DeviceBytesMut<'_>| {
            let d = MatMut::new(d, DType::F32, GROUPS * SLOT, OUT).unwrap();
            let rows = GroupedRows::Masked { slot_rows: SLOT, counts: counts.view() };
            handle.grouped_gemm(GroupedGemmArgs::new(&x, &w, GROUPS, rows, d))
        };
        let mut own = handle.alloc(GROUPS * SLOT * OUT * 4).unwrap();
        match ask(own.view_mut()) {
            Err(Error::Pair { .. }) => {
                println!("skipped: {a} x {b} on {}", handle.device());
                continue;
            }
            done => done.unwrap(),
        }
        for (name, from) in [("A", 0), ("B", 1 << 20)] {
            // SAFETY: it is refused before anything is enqueued.
            let d = unsafe { DeviceBytesMut::from_raw(base + from, GROUPS * SLOT * OUT * 4) };
            let error = ask(d).unwrap_err().to_string();
            assert!(error.contains(&format!("must not overlap {name}")), "{a} x {b}: {error}");
        }
    }
    handle.synchronize().unwrap();
}
