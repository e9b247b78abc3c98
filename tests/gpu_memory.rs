//! `execute`, the `*_into` calls and products of groups allocate nothing, and layers hold what they say. Alone in its process: other tests allocate while they run.
#![cfg(feature = "cuda")]

mod common;

use common::gemm::*;
use common::*;
use scaled_gemm::cudarc::driver::sys;
use scaled_gemm::{
    Activation, ActivationGradient, AmaxHistory, CastGroup, CastMatrix, CastRecipe, CastScales, CastScheme, CastSource,
    CodeFormat, DType, DelayedScaling, DeviceBytes, Fp8Format, Fp8Granularity, Fp8Recipe, Fp8Rule, GivenScale,
    GroupedDeviceLayout, GroupedGemmArgs, GroupedGemmDesc, GroupedGemmPlan, GroupedLayout, GroupedRecipe, GroupedRows,
    GroupedScheme, GroupedSource, GroupedTensor, GroupedTo, GroupedWeightGradient, Handle, KeptInput, KernelFamily,
    Linear, LinearGradientsInto, LinearRecipe, MatMut, MatRef, Operand, OutAmax, PlanOptions, QuantMatrix, QuantizeTo,
    Recipe, RescaleArgs, RmsNormArgs, RowIndex, Scheme, SwigluGradientsInto, SwigluSource, VecRef,
};

/// The driver's pool of stream-ordered memory, from which cudarc allocates: bytes in use now, and the most so far.
struct Pool(sys::CUmemoryPool);

impl Pool {
    fn of(handle: &Handle) -> Option<Self> {
        let context = handle.stream().context();
        if !context.has_async_alloc() {
            return None;
        }
        let mut pool = std::ptr::null_mut();
        // SAFETY: the device exists (a handle is on it) and the driver writes one pointer.
        unsafe { sys::cuDeviceGetDefaultMemPool(&mut pool, context.cu_device()) }.result().unwrap();
        Some(Self(pool))
    }

    fn read(&self, attribute: sys::CUmemPool_attribute) -> u64 {
        let mut bytes = 0u64;
        // SAFETY: the default pool lives as long as the device, and these attributes are one u64, which the driver writes.
        unsafe { sys::cuMemPoolGetAttribute(self.0, attribute, (&raw mut bytes).cast()) }.result().unwrap();
        bytes
    }

    /// Bytes in use, and the largest number of them since the last reset.
    fn used(&self) -> (u64, u64) {
        use sys::CUmemPool_attribute::{CU_MEMPOOL_ATTR_USED_MEM_CURRENT, CU_MEMPOOL_ATTR_USED_MEM_HIGH};
        (self.read(CU_MEMPOOL_ATTR_USED_MEM_CURRENT), self.read(CU_MEMPOOL_ATTR_USED_MEM_HIGH))
    }

    fn reset(&self) {
        let mut zero = 0u64;
        let attribute = sys::CUmemPool_attribute::CU_MEMPOOL_ATTR_USED_MEM_HIGH;
        // SAFETY: as above; the driver reads one u64, and zero is the value it accepts here.
        unsafe { sys::cuMemPoolSetAttribute(self.0, attribute, (&raw mut zero).cast()) }.result().unwrap();
    }
}

/// Runs `call` a hundred times and panics if the pool or the device has less memory afterwards, or had in between.
fn allocates_nothing(handle: &Handle, pool: Option<&Pool>, words: &str, mut call: impl FnMut()) {
    // The first calls load kernels, which takes device memory once.
    (0..3).for_each(|_| call());
    handle.synchronize().unwrap();
    let context = handle.stream().context();
    let mut free = Vec::new();
    for _ in 0..3 {
        if let Some(pool) = pool {
            pool.reset();
        }
        let (free_before, before) = (context.mem_get_info().unwrap().0, pool.map(Pool::used));
        (0..100).for_each(|_| call());
        handle.synchronize().unwrap();
        assert_eq!(pool.map(Pool::used), before, "bytes of the pool in use, and the most of them\n{words}");
        free.push((free_before, context.mem_get_info().unwrap().0));
        // The driver, or another process, may take memory once for itself; calls that take some do so every time.
        if free.last().is_some_and(|(before, after)| before == after) {
            return;
        }
    }
    panic!("free bytes of the device before and after a hundred calls, three times: {free:?}\n{words}");
}

/// NVFP4, MXFP8 and weight-only products: operands are dequantized, and alpha formed, in scratch memory.
fn block_products(handle: &Handle, pool: Option<&Pool>, rng: &mut Noise) {
    let (m, n, k) = (17, 528, 576);
    let (nv, row, mx) = (Scheme::Nvfp4, Scheme::Nvfp4Row, Scheme::Mxfp8(Fp8Format::E4M3));
    let silu = Case { activation: Activation::Silu, alpha: 0.5, ..Case::new(DType::F32) };
    let layer = Case { bias: Some(DType::F32), residual: Some(DType::Bf16), beta: Some(0.5), ..silu };
    let extras = Extras::new(handle, rng, m, n, &[0]);
    for keep in [false, true] {
        for (a, b) in [(nv, nv), (row, nv), (row, row), (mx, mx)] {
            let ops = Operands::new(handle, rng, [m, n, k], (a, b));
            every_way(handle, pool, &ops, &extras, &[Case::new(DType::Bf16), layer], keep);
        }
        for (dtype, b) in [(DType::F16, nv), (DType::Bf16, row), (DType::Bf16, mx)] {
            let ops = PlainOperands::of(handle, &tiled(rng, m, k), dtype, 8, quantized(&tiled(rng, n, k), b));
            every_way(handle, pool, &ops, &extras, &[Case::new(dtype), layer], keep);
        }
    }
}

fn every_way(handle: &Handle, pool: Option<&Pool>, ops: &impl Product, extras: &Extras, cases: &[Case], keep: bool) {
    if keep {
        let dtype = if ops.problem(DType::F32).a == Operand::Plain(DType::F16) { DType::F16 } else { DType::Bf16 };
        ops.b().keep_dequantized(handle, dtype).unwrap();
    }
    for case in cases {
        for formulation in offered(handle, &case.desc(ops)) {
            let mut plan = plan(handle, &case.desc(ops), formulation);
            plan.prepare(handle, ops.b()).unwrap();
            let words = plan.explain();
            let mut output = Output::new(handle, ops, extras, case);
            allocates_nothing(handle, pool, &words, || {
                plan.execute(handle, output.args(ops, extras, case)).unwrap();
            });
            allocates_nothing(handle, pool, &format!("scaled_gemm: {words}"), || {
                handle.scaled_gemm(output.args(ops, extras, case)).unwrap();
            });
        }
    }
}

/// A training step of every kind of layer, once its products are planned.
fn layers(handle: &Handle, pool: Option<&Pool>) {
    let (tokens, features, out, dtype) = (100, 272, 144, DType::Bf16);
    let zeros = |elements: usize, dtype: DType| handle.alloc(elements * dtype.bytes()).unwrap();
    let (x, w, dy) = (zeros(tokens * features, dtype), zeros(out * features, dtype), zeros(tokens * out, dtype));
    let (mut y, mut dx) = (zeros(tokens * out, dtype), zeros(tokens * features, dtype));
    let (mut dw, mut db) = (zeros(out * features, DType::F32), zeros(out, DType::F32));
    let bias = zeros(out, dtype);
    for (recipe, kept) in LinearRecipe::all().into_iter().flat_map(|recipe| KeptInput::ALL.map(|kept| (recipe, kept))) {
        let weight = MatRef::new(&w, dtype, out, features).unwrap();
        let bias = VecRef::new(&bias, dtype, out).unwrap();
        let layer = Linear::new(handle, &weight, recipe, 128).unwrap().with_bias(handle, &bias).unwrap();
        let mut layer = layer.with_kept_input(handle, kept).unwrap();
        layer.prepare(handle, tokens).unwrap();
        let mut saved = layer.saved_input(handle).unwrap();
        allocates_nothing(handle, pool, &format!("a step of a layer of {recipe}, kept {kept}"), || {
            layer.update_scales(handle).unwrap();
            layer.refresh(handle, &weight).unwrap();
            layer.refresh_bias(handle, &bias).unwrap();
            let x = MatRef::new(&x, dtype, tokens, features).unwrap();
            let y = MatMut::new(&mut y, dtype, tokens, out).unwrap();
            layer.forward_saving_into(handle, &x, y, &mut saved).unwrap();
            let dy = MatRef::new(&dy, dtype, tokens, out).unwrap();
            let dx = MatMut::new(&mut dx, dtype, tokens, features).unwrap();
            let weight = MatMut::new(&mut dw, DType::F32, out, features).unwrap();
            let gradients = LinearGradientsInto { weight, bias: Some(db.view_mut()) };
            layer.backward_into(handle, &dy, &saved, dx, gradients).unwrap();
        });
    }
}

/// What layers, and what they keep of X, say that they hold is what they take of the pool, but for what the pool rounds up.
fn what_layers_hold(handle: &Handle, pool: Option<&Pool>) {
    let (tokens, features, out) = (304, 528, 400);
    let used = || {
        handle.synchronize().unwrap();
        pool.map(|pool| pool.used().0)
    };
    // By how much the pool rounds up.
    let rounded = |bytes: usize| {
        let none = used();
        let some = handle.alloc(bytes).unwrap();
        let more = used().zip(none).map_or(0, |(after, before)| after - before - bytes as u64);
        drop(some);
        more
    };
    let step = [1, 70_001, 900_001].map(rounded).into_iter().max().unwrap_or(0);
    for (dtype, recipe, kept) in [DType::Bf16, DType::F32]
        .into_iter()
        .flat_map(|dtype| LinearRecipe::all().into_iter().map(move |recipe| (dtype, recipe)))
        .flat_map(|(dtype, recipe)| KeptInput::ALL.map(|kept| (dtype, recipe, kept)))
    {
        let what = format!("{recipe} {dtype}, kept {kept}");
        let (w, bias) =
            (handle.alloc(out * features * dtype.bytes()).unwrap(), handle.alloc(out * dtype.bytes()).unwrap());
        let make = || {
            let layer = Linear::new(handle, &MatRef::new(&w, dtype, out, features).unwrap(), recipe, tokens).unwrap();
            let layer = layer.with_bias(handle, &VecRef::new(&bias, dtype, out).unwrap()).unwrap();
            layer.with_kept_input(handle, kept).unwrap()
        };
        // The first loads kernels, and makes what the handle keeps.
        drop(make());
        let before = used();
        let layer = make();
        let made = used();
        let mut saved = layer.saved_input(handle).unwrap();
        let with_saved = used();
        // Each of a few buffers is rounded up.
        let check = |before: Option<u64>, after: Option<u64>, says: usize, buffers: u64, what: &str| {
            let Some((before, after)) = before.zip(after) else { return };
            let (taken, says) = (after - before, says as u64);
            assert!(
                (says..=says + buffers * (step + 512)).contains(&taken),
                "{what}: {says} bytes, {taken} in use, steps of {step}"
            );
        };
        // Parts of one allocation begin at multiples of 256 bytes, too.
        check(before, made, layer.device_bytes(), 24, &format!("a layer of {what}"));
        check(made, with_saved, saved.bytes(), 4, &format!("X of {what}, before a pass"));

        let x = handle.alloc(tokens * features * dtype.bytes()).unwrap();
        let mut y = handle.alloc(tokens * out * dtype.bytes()).unwrap();
        let mut layer = layer;
        let x = MatRef::new(&x, dtype, tokens, features).unwrap();
        layer.forward_saving_into(handle, &x, MatMut::new(&mut y, dtype, tokens, out).unwrap(), &mut saved).unwrap();
        let factor = if recipe.delayed().is_some() && kept == KeptInput::HighPrecision { 4 } else { 0 };
        let says = match (kept, recipe.weight_gradient()) {
            (KeptInput::HighPrecision, _) => tokens * features * dtype.bytes(),
            (KeptInput::Quantized, None) => tokens * features * 2,
            (KeptInput::Quantized, Some([_, x])) => {
                let scheme = x.scheme();
                let blocks = scheme.block_scale_len(features, tokens);
                scheme.code_bytes(features, tokens) + 4 * scheme.scale_len(features, tokens) + blocks
            }
        };
        assert_eq!(saved.bytes(), says + factor, "X of {what}");
    }
}

/// Casts from every kind of source to every kind of target, parts of casts, producers with results beside a cast.
fn casts(handle: &Handle, pool: Option<&Pool>, rng: &mut Noise) {
    let (rows, cols) = (144, 256);
    let x = upload(handle, &bytes_of(DType::Bf16, tiled(rng, rows, 2 * cols).iter()));
    let gated = MatRef::new(&x, DType::Bf16, rows, 2 * cols).unwrap();
    let matrix = MatRef::new(&x, DType::Bf16, rows, cols).unwrap();
    let scheme = |format, group| CastScheme::new(format, group).unwrap();
    let codes = handle.cast(&matrix, CastRecipe::new(scheme(CodeFormat::E4M3, CastGroup::Group1x128))).unwrap();
    let index: Vec<i32> = (0..rows as i32).map(|i| if i % 9 == 4 { -1 } else { i * 7 % rows as i32 }).collect();
    let index = RowIndex::new(handle, &index, rows).unwrap();
    for group in CastGroup::ALL {
        for format in [CodeFormat::E4M3, CodeFormat::E2M1] {
            let recipe = CastRecipe::new(scheme(format, group));
            let mut out = CastMatrix::zeros(handle, recipe.scheme(), rows, cols).unwrap();
            let mut y = poisoned(handle, rows * cols * 2);
            allocates_nothing(handle, pool, &format!("casts to {}", recipe.scheme()), || {
                handle.cast_into(&matrix, recipe, &mut out).unwrap();
                handle.cast_into(&codes, recipe, &mut out).unwrap();
                handle.cast_into(CastSource::from(&codes).gathered(&index).unwrap(), recipe, &mut out).unwrap();
                handle.cast_into(SwigluSource::new(&gated).unwrap(), recipe, &mut out).unwrap();
                handle.cast_scales_into(&matrix, recipe, &mut out).unwrap();
                handle.cast_with_scales_into(&matrix, &mut out).unwrap();
                handle.cast_back_into(&out, &mut MatMut::new(&mut y, DType::Bf16, rows, cols).unwrap()).unwrap();
            });
        }
    }
    let bytes = |scheme: CastScheme| scheme.with_scales(CastScales::Ue8m0);
    let narrow = bytes(scheme(CodeFormat::E2M1, CastGroup::Group1x32));
    let fp4 = handle.cast(&matrix, CastRecipe::new(narrow)).unwrap();
    let wide = bytes(scheme(CodeFormat::E4M3, CastGroup::Group1x128));
    let mut fp8 = CastMatrix::zeros(handle, wide, rows, cols).unwrap();
    allocates_nothing(handle, pool, "fp4_to_fp8_into", || handle.fp4_to_fp8_into(&fp4, &mut fp8, None).unwrap());

    let ones = upload(handle, &bytes_of(DType::F32, [1.0f32; 256].iter()));
    let columns = || VecRef::new(&ones, DType::F32, cols).unwrap();
    let group = CastRecipe::new(scheme(CodeFormat::E4M3, CastGroup::Group1x128));
    let read = Fp8Recipe::new(Fp8Granularity::Group1x128, Fp8Format::E4M3).with_rule(Fp8Rule::DeepSeek);
    let (mxfp8, tensor) = (Recipe::new(Scheme::Mxfp8(Fp8Format::E4M3)), Scheme::Fp8Tensor(Fp8Format::E4M3));
    let mut normed = CastMatrix::zeros(handle, group.scheme(), rows, cols).unwrap();
    let mut products = [Recipe::Fp8(read), mxfp8].map(|recipe| poisoned_matrix(handle, recipe.scheme(), rows, cols));
    let mut rstd = handle.alloc(4 * rows).unwrap();
    let mut dx = CastMatrix::zeros(handle, group.scheme(), rows, 2 * cols).unwrap();
    let [mut again, mut wide] = [1, 2].map(|halves| poisoned(handle, halves * rows * cols * 2));
    let mut dw = handle.alloc(4 * rows).unwrap();
    allocates_nothing(handle, pool, "norms and gradients", || {
        let norm = || RmsNormArgs::new(&matrix, columns(), 1e-6).unwrap();
        handle.rms_norm_cast_into(norm(), group, &mut normed).unwrap();
        handle.rms_norm_quantize_into(norm(), read, &mut products[0]).unwrap();
        handle.rms_norm(norm().with_rstd(&mut rstd).unwrap()).unwrap();
        let source = CastSource::normed(&matrix, VecRef::new(&rstd, DType::F32, rows).unwrap(), columns()).unwrap();
        handle.quantize_source_into(source, mxfp8, &mut products[1]).unwrap();
        let into = SwigluGradientsInto {
            x: Some((group, &mut dx).into()),
            x_bf16: Some(MatMut::new(&mut wide, DType::Bf16, rows, 2 * cols).unwrap()),
            out: Some(MatMut::new(&mut again, DType::Bf16, rows, cols).unwrap()),
            weights: Some((&mut dw).into()),
        };
        handle.swiglu_backward(SwigluSource::new(&gated).unwrap(), &matrix, into).unwrap();
    });
    let of_two = [mxfp8, Recipe::new(Scheme::Nvfp4Row), Recipe::new(Scheme::Nvfp4), Recipe::new(tensor)];
    let mut of_two = of_two.map(|recipe| (recipe, poisoned_matrix(handle, recipe.scheme(), rows, cols)));
    let mut gradients = [Recipe::Fp8(read), mxfp8].map(|of| (of, poisoned_matrix(handle, of.scheme(), rows, 2 * cols)));
    let tile = CastRecipe::new(scheme(CodeFormat::E4M3, CastGroup::Tile128x128));
    let mut tiles = CastMatrix::zeros(handle, tile.scheme(), rows, cols).unwrap();
    let one = handle.upload(&[1.0f32]).unwrap();
    let number = || DeviceBytes::from(&one);
    let mut amax = handle.alloc(4).unwrap();
    allocates_nothing(handle, pool, "norms of two launches, and gradients for products", || {
        let mut norm = |cast: &mut dyn FnMut(RmsNormArgs<'_>)| {
            let norm = RmsNormArgs::new(&matrix, columns(), 1e-6).unwrap().with_rstd(&mut rstd).unwrap();
            let residual = MatMut::new(&mut again, DType::Bf16, rows, cols).unwrap();
            cast(norm.with_updated_residual(residual).unwrap());
        };
        for (recipe, out) in &mut of_two {
            norm(&mut |norm| match recipe.scheme() {
                Scheme::Nvfp4 => {
                    let given = GivenScale::Amax(number());
                    handle.quantize_source_nvfp4_into(norm, *recipe, &given, out).unwrap();
                }
                Scheme::Fp8Tensor(format) => {
                    let (given, amax) = (GivenScale::Encode(number()), Some(&mut (&mut amax).into()));
                    handle.quantize_source_tensor_into(norm, format, &given, out, amax).unwrap();
                }
                _ => handle.quantize_source_into(norm, *recipe, out).unwrap(),
            });
        }
        norm(&mut |norm| handle.rms_norm_cast_into(norm, tile, &mut tiles).unwrap());
        for (recipe, out) in &mut gradients {
            let into = SwigluGradientsInto { x: Some((*recipe, out).into()), ..Default::default() };
            handle.swiglu_backward(SwigluSource::new(&gated).unwrap(), &matrix, into).unwrap();
        }
    });
}

/// Grouped tensors: their casts, by current and by given scales, of gradients too, and the way back; of few members and of so many that a plan goes before.
fn grouped_tensors(handle: &Handle, pool: Option<&Pool>) {
    for count in [70, 600] {
        let layout = GroupedLayout::packed(&vec![[3, 16]; count]).unwrap();
        let places = GroupedDeviceLayout::from_host(handle, &layout).unwrap();
        let length = layout.buffer_len();
        let [g, x] = [(); 2].map(|()| handle.alloc(length * 2).unwrap());
        let mut y = handle.alloc(length * 2).unwrap();
        for scheme in [GroupedScheme::new(Fp8Format::E4M3), GroupedScheme::new(Fp8Format::E5M2).shared()] {
            let scales = scheme.scales().count(count);
            let tensor = |scheme| GroupedTensor::zeros(handle, scheme, places.share().unwrap()).unwrap();
            let (mut rows, mut cols) = (tensor(scheme), tensor(scheme.transposed()));
            let (mut history, mut encode) = (handle.alloc(3 * scales * 4).unwrap(), handle.alloc(scales * 4).unwrap());
            let scaling = DelayedScaling::new(3, 0, AmaxHistory::Max).unwrap();
            let recipe = GroupedRecipe::new(scheme);
            allocates_nothing(handle, pool, &format!("grouped tensors of {count} members, {scheme}"), || {
                let plain = || GroupedSource::new(&g, DType::Bf16).unwrap();
                let of_gelu = plain().of_activation(ActivationGradient::Gelu, &x, DType::Bf16, &places).unwrap();
                for source in [&plain(), &of_gelu] {
                    let both = GroupedTo::Both(&mut rows, &mut cols);
                    handle.quantize_grouped_into(source, recipe, both, Some(&mut encode.view_mut())).unwrap();
                    let mut past = history.view_mut();
                    let mut raised = past.part(0..4 * scales).unwrap();
                    let given = GivenScale::Encode(encode.view());
                    let amax = Some(&mut raised);
                    handle.quantize_grouped_with_scales_into(source, scheme, &given, &mut rows, amax).unwrap();
                }
                let (mut past, mut now) = (history.view_mut(), encode.view_mut());
                handle.delayed_update_grouped_into(&mut past, &mut now, scheme.format(), scaling).unwrap();
                handle.dequantize_grouped_into(&rows, &mut y.view_mut(), DType::Bf16).unwrap();
                handle.dequantize_grouped_into(&cols, &mut y.view_mut(), DType::Bf16).unwrap();
            });
        }
    }
}

/// Products of groups by each way that they go, the gradients of their matrices, and what is done to rows before.
fn experts(handle: &Handle, pool: Option<&Pool>) {
    let (groups, slot, n, k) = (3, 256, 256, 384);
    let (rows, e4m3, dtype) = (groups * slot, Fp8Format::E4M3, DType::Bf16);
    let counts = handle.upload(&[100i64, 0, 300]).unwrap();
    let places = |slot_rows| GroupedRows::Masked { slot_rows, counts: counts.view() };
    let mut clamped = handle.alloc(4).unwrap();
    let mut x = handle.alloc(rows * k * 2).unwrap();
    let mut d = handle.alloc(rows * n * 2).unwrap();
    allocates_nothing(handle, pool, "zeros between groups", || {
        let mut x = MatMut::new(&mut x, dtype, rows, k).unwrap();
        handle.clear_between_groups(&mut x, groups, &places(slot), Some(&mut clamped.view_mut())).unwrap();
    });
    let zeros = |scheme, rows, cols| QuantMatrix::zeros(handle, scheme, rows, cols).unwrap();
    let (blocks, tiles, row) = (Scheme::Fp8Group1x128(e4m3), Scheme::Fp8Group128x128(e4m3), Scheme::Fp8Row(e4m3));
    let mut amax = handle.alloc(groups * 4).unwrap();
    let mut a = zeros(Scheme::Nvfp4Row, rows, k);
    allocates_nothing(handle, pool, "levels of groups, found", || {
        let x = MatRef::new(&x, dtype, rows, k).unwrap();
        handle.group_amax_into(&x, groups, &places(slot), &mut amax.view_mut()).unwrap();
        let found = GivenScale::Amax(amax.view());
        let recipe = Recipe::new(Scheme::Nvfp4Row);
        handle.quantize_nvfp4_groups_into(&x, recipe, &found, groups, &places(slot), &mut a).unwrap();
    });
    let hopper = KernelFamily::Sm90.runs_on(handle.device().compute_capability);
    // In one launch, behind one that dequantizes, and one product a slot.
    for (a, b, usual) in [
        (blocks, tiles, slot),
        (row, row, slot),
        (Scheme::Nvfp4Row, Scheme::Nvfp4, 64),
        (Scheme::Mxfp8(e4m3), Scheme::Mxfp8(e4m3), slot),
        (Scheme::Nvfp4, Scheme::Nvfp4, slot),
    ] {
        // Another GPU has no way for a scale of 1x128: its rows cannot be cut out.
        if a == blocks && !hopper {
            continue;
        }
        let (a, b) = (zeros(a, rows, k), zeros(b, groups * n, k));
        allocates_nothing(handle, pool, &format!("{} x {}, {usual} rows", a.scheme(), b.scheme()), || {
            let d = MatMut::new(&mut d, dtype, rows, n).unwrap();
            let args = GroupedGemmArgs::new(&a, &b, groups, places(slot), d).expected_rows(usual);
            handle.grouped_gemm(args.clamped(clamped.view_mut())).unwrap();
        });
    }
    let (a, b) = (zeros(Scheme::Nvfp4, rows, k), zeros(Scheme::Nvfp4, groups * n, k));
    allocates_nothing(handle, pool, "slots on several streams", || {
        let d = MatMut::new(&mut d, dtype, rows, n).unwrap();
        handle
            .grouped_gemm(GroupedGemmArgs::new(&a, &b, groups, places(slot), d).product_a_slot().streams(groups))
            .unwrap();
    });
    if hopper {
        let b = zeros(Scheme::Nvfp4, groups * n, k);
        allocates_nothing(handle, pool, "plain rows", || {
            let x = MatRef::new(&x, dtype, rows, k).unwrap();
            let d = MatMut::new(&mut d, dtype, rows, n).unwrap();
            handle.grouped_gemm(GroupedGemmArgs::weight_only(x, &b, groups, places(slot), d)).unwrap();
        });
    }
    // The first call of a plan takes what that reserved.
    let launch = |scheme| GroupedGemmDesc::slots(groups, slot, n, k, scheme, scheme, dtype).with_clamped(true);
    let in_slots = |scheme| launch(scheme).with_product_a_slot(true).with_streams(groups);
    let mut asked = vec![launch(Scheme::Mxfp8(e4m3)), in_slots(Scheme::Nvfp4)];
    if hopper {
        asked.push(in_slots(row));
    }
    if has_cublaslts_groups(handle) {
        asked.push(launch(Scheme::Fp8Tensor(e4m3)).with_by_cublaslt(true));
    }
    for desc in asked {
        let (a, b) = (zeros(desc.b, rows, k), zeros(desc.b, groups * n, k));
        let fresh = Handle::new(0).unwrap();
        let mut plan = fresh.plan_grouped(&desc.with_expected_rows(64)).unwrap();
        fresh.synchronize().unwrap();
        let words = plan.explain().to_string();
        let held = fresh.scratch_bytes();
        if let Some(pool) = pool {
            pool.reset();
        }
        let before = pool.map(Pool::used);
        let to = MatMut::new(&mut d, dtype, rows, n).unwrap();
        plan.execute(&fresh, GroupedGemmArgs::new(&a, &b, groups, places(slot), to).clamped(clamped.view_mut()))
            .unwrap();
        fresh.synchronize().unwrap();
        assert_eq!((pool.map(Pool::used), fresh.scratch_bytes()), (before, held), "the first call of a plan\n{words}");
    }
    let mut dw = handle.alloc(groups * n * k * 4).unwrap();
    let dy = handle.alloc(rows * n * 2).unwrap();
    let (dy, x) = (MatRef::new(&dy, dtype, rows, n).unwrap(), MatRef::new(&x, dtype, rows, k).unwrap());
    for scheme in [blocks, row, Scheme::Nvfp4Row].into_iter().filter(|scheme| *scheme != blocks || hopper) {
        let slots = |rows| -> Vec<_> { (0..groups).map(|_| zeros(scheme, rows, slot)).collect() };
        let (mut dy_t, mut x_t) = (slots(n), slots(k));
        let [mut all_dy, mut all_x] = [n, k].map(|features| zeros(scheme, features, rows));
        allocates_nothing(handle, pool, &format!("gradients of {scheme}"), || {
            handle.quantize_slots_transposed_into(&dy, Recipe::new(scheme), &mut dy_t).unwrap();
            handle.quantize_slots_transposed_into(&x, Recipe::new(scheme), &mut x_t).unwrap();
            let target = MatMut::new(&mut dw, DType::F32, groups * n, k).unwrap();
            handle.grouped_weight_gradient(GroupedWeightGradient::new(&dy_t, &x_t, target)).unwrap();
            let target = MatMut::new(&mut dw, DType::F32, groups * n, k).unwrap();
            handle.grouped_weight_gradient(GroupedWeightGradient::new(&dy_t, &x_t, target).streams(2)).unwrap();
            if scheme == blocks {
                handle.quantize_into(&dy, Recipe::new(scheme), QuantizeTo::Transposed(&mut all_dy)).unwrap();
                handle.quantize_into(&x, Recipe::new(scheme), QuantizeTo::Transposed(&mut all_x)).unwrap();
                let target = MatMut::new(&mut dw, DType::F32, groups * n, k).unwrap();
                let of = GroupedWeightGradient::whole(&all_dy, &all_x, groups, places(slot), target);
                handle.grouped_weight_gradient(of.clamped(clamped.view_mut())).unwrap();
            }
        });
    }
}

/// cuBLASLt's own product of groups: a plan takes as much of the pool as the scratch memory that it says, which is what `docs/memory.md` says, and no call takes more, planned or not.
fn cublaslts_groups(handle: &Handle, pool: Option<&Pool>) {
    if !has_cublaslts_groups(handle) {
        return;
    }
    let (n, k, dtype, scheme) = (128, 144, DType::Bf16, Scheme::Fp8Tensor(Fp8Format::E4M3));
    // The last number of groups is odd, and so many that each array of theirs is longer than a page.
    for (groups, slot, each) in [(3, 256, false), (1001, 4, true)] {
        let rows = groups * slot;
        let [a, b] = [rows, groups * n].map(|rows| QuantMatrix::zeros(handle, scheme, rows, k).unwrap());
        let (scales, counts) =
            (handle.upload(&vec![1.0f32; groups]).unwrap(), handle.upload(&vec![3i64; groups]).unwrap());
        let mut d = handle.alloc(rows * n * 2).unwrap();
        let mut multiply = |on: &Handle, plan: Option<&mut GroupedGemmPlan>| {
            let places = GroupedRows::Masked { slot_rows: slot, counts: counts.view() };
            let d = MatMut::new(&mut d, dtype, rows, n).unwrap();
            let args = GroupedGemmArgs::new(&a, &b, groups, places, d).by_cublaslt();
            let args = if each { args.scales_of_a(scales.view()) } else { args };
            match plan {
                Some(plan) => plan.execute(on, args),
                None => on.grouped_gemm(args),
            }
            .unwrap();
        };
        let fresh = Handle::new(0).unwrap();
        // What the first plan of a handle loads and makes is there by then.
        assert!(has_cublaslts_groups(&fresh));
        fresh.trim_scratch().unwrap();
        let used = || {
            handle.synchronize().unwrap();
            fresh.synchronize().unwrap();
            pool.map(|pool| pool.used().0)
        };
        let before = used();
        let desc = GroupedGemmDesc::slots(groups, slot, n, k, scheme, scheme, dtype).with_by_cublaslt(true);
        let mut plan = fresh.plan_grouped(&desc.with_scales_of_groups([each, false])).unwrap();
        let planned = used();
        let (words, says, scratch) = (plan.explain().to_string(), plan.scratch_bytes(), fresh.scratch_bytes());
        assert_eq!(says, 72 * groups.next_multiple_of(2) + 16, "{words}");
        assert!(words.contains(&format!("{says} bytes of scratch memory")), "{words}");
        assert_eq!(scratch, says.next_multiple_of(2 << 20), "{words}");
        // The pool rounds both up.
        let as_much = fresh.alloc(scratch).unwrap();
        let [planned, more] = [planned.zip(before), used().zip(planned)].map(|two| two.map(|(now, then)| now - then));
        assert_eq!(planned, more, "bytes of the pool of a plan, and of memory as large as its scratch\n{words}");
        drop(as_much);
        allocates_nothing(&fresh, pool, &format!("planned: {words}"), || multiply(&fresh, Some(&mut plan)));
        allocates_nothing(&fresh, pool, &format!("without a plan: {words}"), || multiply(&fresh, None));
        assert_eq!(fresh.scratch_bytes(), scratch, "{words}");
    }
}

/// One test, so that nothing else runs beside it.
#[test]
fn execute_and_the_into_calls_allocate_nothing() {
    let Some(handle) = handle() else { return };
    let pool = Pool::of(&handle);
    let pool = pool.as_ref();
    let mut rng = Noise::new(71);
    let (n, k) = (528, 576);
    for pair in pairs() {
        for m in [17, 64] {
            let mut ops = Operands::new(&handle, &mut rng, [m, n, k], pair);
            let extras = Extras::new(&handle, &mut rng, m, n, &[0]);
            let mut cases = vec![Case::new(DType::Bf16)];
            let silu = Case { activation: Activation::Silu, ..Case::new(DType::F32) };
            cases.push(Case { bias: Some(DType::F32), residual: Some(DType::Bf16), beta: Some(0.5), ..silu });
            if is_tensor(pair.0) {
                cases.push(Case { amax: OutAmax::Store, encode: 0.1, ..Case::new(DType::E4M3) });
            }
            for case in cases {
                for formulation in offered(&handle, &case.desc(&ops)) {
                    let options = PlanOptions::default().with_formulation(formulation);
                    let mut plan = handle.plan_with(&case.desc(&ops), &options).unwrap();
                    plan.prepare(&handle, &ops.b).unwrap();
                    let words = plan.explain();
                    let mut output = Output::new(&handle, &ops, &extras, &case);
                    allocates_nothing(&handle, pool, &words, || {
                        plan.execute(&handle, output.args(&ops, &extras, &case)).unwrap();
                    });
                    // A plan that is cached costs no more than one that the caller keeps.
                    allocates_nothing(&handle, pool, &format!("scaled_gemm: {words}"), || {
                        handle.scaled_gemm(output.args(&ops, &extras, &case)).unwrap();
                    });
                }
            }
            let x = upload(&handle, &bytes_of(DType::F32, tiled(&mut rng, m, k).iter()));
            let words = format!("quantize_into {m} x {k} {}", pair.0);
            allocates_nothing(&handle, pool, &words, || {
                let x = MatRef::new(&x, DType::F32, m, k).unwrap();
                handle.quantize_into(&x, Recipe::new(pair.0), QuantizeTo::Plain(&mut ops.a)).unwrap();
            });
            let mut y = poisoned(&handle, m * k * 4);
            allocates_nothing(&handle, pool, &format!("dequantize_into {}", pair.0), || {
                handle.dequantize_into(&ops.a, &mut MatMut::new(&mut y, DType::F32, m, k).unwrap()).unwrap();
            });
        }
    }
    for scheme in Scheme::ALL {
        let (rows, cols) = (144, 272);
        let x = upload(&handle, &bytes_of(DType::F32, tiled(&mut rng, rows, cols).iter()));
        let mut plain = poisoned_matrix(&handle, scheme, rows, cols);
        let mut transposed = poisoned_matrix(&handle, scheme, cols, rows);
        allocates_nothing(&handle, pool, &format!("quantize_into, both, {scheme}"), || {
            let x = MatRef::new(&x, DType::F32, rows, cols).unwrap();
            let to = QuantizeTo::Both(&mut plain, &mut transposed);
            handle.quantize_into(&x, Recipe::new(scheme), to).unwrap();
        });
    }
    block_products(&handle, pool, &mut rng);
    layers(&handle, pool);
    what_layers_hold(&handle, pool);
    casts(&handle, pool, &mut rng);
    grouped_tensors(&handle, pool);
    experts(&handle, pool);
    cublaslts_groups(&handle, pool);
    let (acc, mut d) = (poisoned(&handle, 64 * 520 * 4), poisoned(&handle, 64 * 520 * 2));
    allocates_nothing(&handle, pool, "rescale_into", || {
        let acc = MatRef::new(&acc, DType::F32, 64, 520).unwrap();
        handle.rescale_into(RescaleArgs::new(acc, MatMut::new(&mut d, DType::Bf16, 64, 520).unwrap())).unwrap();
    });
}
