//! Kernels are loaded when the first of a family is used, and never inside a capture. One test, in a process of its own: what
//! is loaded stays loaded.
#![cfg(feature = "cuda")]

mod common;

use common::*;
use scaled_gemm::{
    DType, DeviceBuffer, DeviceBytesMut, Error, Fp8Format, GroupedGemmArgs, GroupedGemmDesc, GroupedRows, Handle,
    KernelFamily, MatMut, MatRef, Operand, QuantMatrix, QuantizeTo, Recipe, Result, Scheme,
};

#[test]
fn families_are_loaded_outside_of_captures() {
    let Some(handle) = handle() else { return };
    let (rows, cols) = (16, 256);
    let x =
        upload(&handle, &bytes_of(DType::F32, (0..rows * cols).map(|i| i as f32 - 100.0).collect::<Vec<_>>().iter()));
    let input = MatRef::new(&x, DType::F32, rows, cols).unwrap();
    let mut amax = handle.stream().alloc_zeros::<f32>(1).unwrap();
    let mut in_graph = || {
        let graph = capture(&handle, || handle.amax_into(&input, &mut DeviceBytesMut::from(&mut amax)));
        graph.map(|graph| {
            handle.launch(&graph).unwrap();
            handle.stream().clone_dtoh(&amax).unwrap()[0]
        })
    };

    // The first use of all: nothing is loaded yet.
    let refused = in_graph().expect_err("loaded inside a capture");
    let text = refused.to_string();
    assert!(matches!(refused, Error::Unsupported { .. }), "{text}");
    assert!(text.contains("loading the fp8 kernels") && text.contains("Handle::load_kernels"), "{text}");
    handle.load_kernels(&[KernelFamily::Fp8]).unwrap();
    assert_eq!(in_graph().unwrap(), (rows * cols) as f32 - 101.0);

    // Allocating a matrix loads what fills it.
    let scheme = Scheme::Mxfp8(Fp8Format::E4M3);
    let mut q = QuantMatrix::zeros(&handle, scheme, rows, cols).unwrap();
    let graph =
        capture(&handle, || handle.quantize_into(&input, Recipe::new(scheme), QuantizeTo::Plain(&mut q))).unwrap();
    handle.launch(&graph).unwrap();
    let eager = handle.quantize(&input, Recipe::new(scheme)).unwrap();
    assert_same_bits(&q.to_host(&handle).unwrap(), &eager.to_host(&handle).unwrap(), "in a graph");

    // Loaded already is no reason to refuse; not loaded is.
    let mut results = Vec::new();
    let graph = capture(&handle, || {
        results.push(handle.load_kernels(&[KernelFamily::Fp8, KernelFamily::Mxfp8]));
        results.push(handle.load_kernels(&[KernelFamily::Nvfp4]));
        handle.amax_into(&input, &mut DeviceBytesMut::from(&mut amax))
    });
    graph.expect("the capture was harmed");
    assert!(matches!(results[..], [Ok(()), Err(Error::Unsupported { .. })]), "{results:?}");
    plans_of_groups_load_theirs(&handle);
    plans_of_slots_load_theirs(&handle);
    // Each that this GPU can run; the others say so.
    for family in KernelFamily::ALL {
        let loaded = handle.load_kernels(&[family]);
        if family.runs_on(handle.device().compute_capability) {
            loaded.unwrap();
        } else {
            let text = loaded.unwrap_err().to_string();
            assert!(text.contains("it runs on sm_"), "{family}: {text}");
        }
    }
}

/// One launch of each kind: what a capture refuses to load, a plan has loaded.
fn plans_of_groups_load_theirs(handle: &Handle) {
    if !KernelFamily::Sm90.runs_on(handle.device().compute_capability) {
        println!("skipped: {} has no grouped product", handle.device());
        return;
    }
    let (groups, room, n, k) = (2, 128, 128, 256);
    let counts = handle.upload(&[5i64, -1]).unwrap();
    let x = handle.alloc(groups * room * k * 2).unwrap();
    let zeros = |scheme, rows| QuantMatrix::zeros(handle, scheme, rows, k).unwrap();
    let (vectors, tiles) = (Scheme::Fp8Group1x128(Fp8Format::E4M3), Scheme::Fp8Group128x128(Fp8Format::E4M3));
    let quantized = zeros(vectors, groups * room);
    let poison = vec![0xFFu8; groups * room * n * 2];
    let mut d = handle.upload(&poison).unwrap();
    let mut clamped = handle.alloc(4).unwrap();
    for (scheme, counts_too, family) in [(tiles, false, "sm90"), (Scheme::Nvfp4, true, "grouped")] {
        let (b, plain) = (zeros(scheme, groups * n), Operand::Plain(DType::Bf16));
        let a = if counts_too { plain } else { vectors.into() };
        let desc = GroupedGemmDesc::slots(groups, room, n, k, a, scheme, DType::Bf16).with_clamped(counts_too);
        let operands = (&x, &quantized, &b);
        let unplanned =
            capture_owned(handle, || handle.grouped_gemm(args(&desc, operands, &counts, &mut d, &mut clamped)?));
        let text = unplanned.map(drop).expect_err("loaded inside a capture").to_string();
        assert!(text.contains(&format!("loading the {family} kernels")), "{text}");
        let mut plan = handle.plan_grouped(&desc).unwrap();
        let graph =
            capture_owned(handle, || plan.execute(handle, args(&desc, operands, &counts, &mut d, &mut clamped)?))
                .unwrap();
        handle.write(&mut d.view_mut(), &poison).unwrap();
        handle.launch(&graph).unwrap();
        let (of_group, others) = poison.split_at(5 * n * 2);
        let found = handle.read_bytes(&d.view()).unwrap();
        assert!(found[..of_group.len()].iter().all(|byte| *byte == 0), "zeros times zeros, {scheme}");
        assert!(found[of_group.len()..] == *others, "rows of no group, {scheme}");
        assert_eq!(handle.read::<u32>(&clamped.view()).unwrap(), [u32::from(counts_too)], "{scheme}");
    }
}

/// The kernels of a slot's product: those that dequantize, which nothing before has used.
fn plans_of_slots_load_theirs(handle: &Handle) {
    if !KernelFamily::Sm90.runs_on(handle.device().compute_capability) {
        println!("skipped: what {} loads for a product depends on what cuBLASLt multiplies", handle.device());
        return;
    }
    let (groups, room, n, k, scheme) = (2, 128, 128, 256, Scheme::Mxfp4);
    let counts = handle.upload(&[5i64, 128]).unwrap();
    let desc = GroupedGemmDesc::slots(groups, room, n, k, scheme, scheme, DType::Bf16).with_product_a_slot(true);
    let load = || {
        // What becomes of a graph of nothing is no part of this.
        let mut loaded = None;
        drop(handle.capture(|| {
            loaded = Some(handle.load_kernels(&[KernelFamily::Mxfp4]));
            Ok(())
        }));
        loaded.expect("the stream takes a capture")
    };
    let text = load().expect_err("loaded before").to_string();
    assert!(text.contains("loading the mxfp4 kernels"), "{text}");
    let mut plan = handle.plan_grouped(&desc).unwrap();
    load().unwrap_or_else(|error| panic!("not loaded by the plan: {error}\n{}", plan.explain()));
    let zeros = |rows| QuantMatrix::zeros(handle, scheme, rows, k).unwrap();
    let (x, a, b) = (handle.alloc(0).unwrap(), zeros(groups * room), zeros(groups * n));
    let (mut d, mut clamped) = (handle.upload(&vec![0xFFu8; groups * room * n * 2]).unwrap(), handle.alloc(4).unwrap());
    let operands = (&x, &a, &b);
    let graph = capture_owned(handle, || {
        let args = args(&desc, operands, &counts, &mut d, &mut clamped)?;
        plan.execute(handle, args.product_a_slot())
    });
    handle.launch(&graph.unwrap()).unwrap();
    assert!(handle.read_bytes(&d.view()).unwrap().iter().all(|byte| *byte == 0), "zeros times zeros");
}

fn args<'a>(
    desc: &GroupedGemmDesc,
    (x, quantized, b): (&'a DeviceBuffer, &'a QuantMatrix, &'a QuantMatrix),
    counts: &'a DeviceBuffer,
    d: &'a mut DeviceBuffer,
    clamped: &'a mut DeviceBuffer,
) -> Result<GroupedGemmArgs<'a>> {
    let rows = GroupedRows::Masked { slot_rows: desc.slot_rows.unwrap_or(0), counts: counts.view() };
    let d = MatMut::new(d, desc.out, desc.rows, desc.n)?;
    let args = match desc.a.scheme() {
        Some(_) => GroupedGemmArgs::new(quantized, b, desc.groups, rows, d),
        None => GroupedGemmArgs::weight_only(MatRef::new(x, DType::Bf16, desc.rows, desc.k)?, b, desc.groups, rows, d),
    };
    Ok(if desc.clamped { args.clamped(clamped.view_mut()) } else { args })
}
