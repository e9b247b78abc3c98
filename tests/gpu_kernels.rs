//! Kernels are loaded when the first of a family is used, and never inside a capture. One test, in a process of its own: what
//! is loaded stays loaded.
#![cfg(feature = "cuda")]

mod common;

use common::*;
use scaled_gemm::{
    DType, DeviceBytesMut, Error, Fp8Format, KernelFamily, MatRef, QuantMatrix, QuantizeTo, Recipe, Scheme,
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
