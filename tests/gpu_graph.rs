//! `execute` and `quantize_into` inside CUDA graphs: replays follow their operands, bit for bit as eager calls do.
#![cfg(feature = "cuda")]

mod common;

use common::gemm::*;
use common::*;
use ndarray::Array2;
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::{
    Activation, DType, Error, Formulation, Fp8Format, Handle, MatMut, MatRef, OutAmax, QuantMatrix, QuantizeTo, Recipe,
    Scheme, TuneOptions,
};

fn upload_f32(handle: &Handle, x: &Array2<f32>) -> CudaSlice<u8> {
    upload(handle, &bytes_of(DType::F32, x.iter()))
}

/// A plain product, one with everything that our kernel adds, and one into E4M3 with amax where there is such a thing.
fn cases(a: Scheme) -> Vec<Case> {
    let fused = Case { bias: Some(DType::Bf16), activation: Activation::Relu, ..Case::new(DType::Bf16) };
    let e4m3 = Case { encode: 0.25, amax: OutAmax::Store, ..Case::new(DType::E4M3) };
    let mut cases = vec![Case::new(DType::Bf16), fused, layer()];
    if is_tensor(a) {
        cases.push(e4m3);
        cases.push(Case { residual: Some(DType::Bf16), ..e4m3 });
    }
    cases
}

#[test]
fn every_pair_and_formulation_is_captured_and_replayed() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(41);
    let (n, k) = (528, 400);
    for pair in pairs() {
        for m in [17, 64] {
            for case in cases(pair.0) {
                let mut ops = Operands::new(&handle, &mut rng, [m, n, k], pair);
                let extras = Extras::new(&handle, &mut rng, m, n, &[case.gap]);
                for formulation in offered(&handle, &case.desc(&ops)) {
                    let mut plan = plan(&handle, &case.desc(&ops), formulation);
                    let words = plan.explain();
                    let want = execute(&handle, &mut plan, &ops, &extras, &case);
                    let mut output = Output::new(&handle, &ops, &extras, &case);
                    let graph =
                        capture_among_others(&handle, || plan.execute(&handle, output.args(&ops, &extras, &case)))
                            .unwrap();
                    assert_untouched(&handle, &output, &case, &words);
                    let replay = |output: &mut Output| {
                        output.reset(&handle);
                        handle.launch(&graph).unwrap();
                        output.read(&handle, &words)
                    };
                    for i in 0..3 {
                        assert!(replay(&mut output) == want, "replay {i} differs from the eager call\n{words}");
                    }
                    // Other activations at the same address, with eager calls of the same plan in between.
                    rewrite(&handle, &tiled(&mut rng, m, k), &mut ops.a);
                    let follows = execute(&handle, &mut plan, &ops, &extras, &case);
                    assert!(follows != want, "other operands, same result\n{words}");
                    assert!(replay(&mut output) == follows, "the replay does not follow A\n{words}");
                    // B too, and what is derived from it.
                    rewrite(&handle, &tiled(&mut rng, n, k), &mut ops.b);
                    let follows = execute(&handle, &mut plan, &ops, &extras, &case);
                    assert!(replay(&mut output) == follows, "the replay does not follow B\n{words}");
                    if case.out == DType::E4M3 {
                        let other = Case { encode: 2.0 * case.encode, ..case };
                        let follows = execute(&handle, &mut plan, &ops, &extras, &other);
                        output.set_encode(&handle, other.encode);
                        assert!(replay(&mut output) == follows, "the replay does not follow the factor\n{words}");
                    }
                }
            }
        }
    }
}

/// Capturing computes nothing.
fn assert_untouched(handle: &Handle, output: &Output, case: &Case, words: &str) {
    if case.beta.is_none() {
        let bytes = output.read(handle, words).bytes;
        assert!(bytes.iter().all(|b| *b == 0xFF), "written during capture\n{words}");
    }
}

#[test]
fn quantize_and_multiply_in_one_graph() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(42);
    let (n, k) = (520, 400);
    for pair in pairs() {
        for m in [3, 130] {
            let mut ops = Operands::new(&handle, &mut rng, [m, n, k], pair);
            let extras = Extras::new(&handle, &mut rng, m, n, &[0]);
            let case = Case { bias: Some(DType::Bf16), ..Case::new(DType::Bf16) };
            if offered(&handle, &case.desc(&ops)).is_empty() {
                continue;
            }
            let mut plan = handle.plan(&case.desc(&ops)).unwrap();
            let words = plan.explain();
            plan.prepare(&handle, &ops.b).unwrap();
            let recipe = Recipe::new(pair.0);
            let mut x = upload_f32(&handle, &Array2::zeros((m, k)));
            let mut output = Output::new(&handle, &ops, &extras, &case);
            let graph = capture_among_others(&handle, || {
                handle.quantize_into(&MatRef::new(&x, DType::F32, m, k)?, recipe, QuantizeTo::Plain(&mut ops.a))?;
                plan.execute(&handle, output.args(&ops, &extras, &case))
            });
            let graph = graph.unwrap();
            let mut before = None;
            for _ in 0..3 {
                let values = tiled(&mut rng, m, k);
                handle.stream().memcpy_htod(&bytes_of(DType::F32, values.iter()), &mut x).unwrap();
                output.reset(&handle);
                handle.launch(&graph).unwrap();
                let got = output.read(&handle, &words);
                let fresh = handle.quantize(&MatRef::new(&x, DType::F32, m, k).unwrap(), recipe).unwrap();
                let mut eager = Output::new(&handle, &ops, &extras, &case);
                plan.execute(&handle, eager.args_of(&fresh, &ops.b, &extras, &case)).unwrap();
                assert!(got == eager.read(&handle, &words), "the graph differs from eager calls\n{words}");
                assert_same_bits(&ops.a.to_host(&handle).unwrap(), &fresh.to_host(&handle).unwrap(), &words);
                assert!(before.replace(got.clone()) != Some(got), "the graph does not follow x\n{words}");
            }
        }
    }
}

/// Two layers, each quantized and multiplied, as one graph launched many times without a wait in between.
#[test]
fn two_layers_in_one_graph() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(43);
    let (m, hidden, n, k) = (20, 528, 520, 400);
    for family in FAMILIES {
        let (sa, sb) = mixes(family)[0];
        let recipe = Recipe::new(sa);
        let mut first = Operands::new(&handle, &mut rng, [m, hidden, k], (sa, sb));
        let mut second = Operands::new(&handle, &mut rng, [m, n, hidden], (sa, sb));
        let extras = [hidden, n].map(|cols| Extras::new(&handle, &mut rng, m, cols, &[0]));
        let up = Case { bias: Some(DType::F16), activation: Activation::Gelu, ..Case::new(DType::F32) };
        let down = Case { residual: Some(DType::Bf16), ..Case::new(DType::Bf16) };
        if offered(&handle, &up.desc(&first)).is_empty() {
            continue;
        }
        let mut plans = [handle.plan(&up.desc(&first)).unwrap(), handle.plan(&down.desc(&second)).unwrap()];
        plans[0].prepare(&handle, &first.b).unwrap();
        plans[1].prepare(&handle, &second.b).unwrap();
        let mut x = upload_f32(&handle, &Array2::zeros((m, k)));
        let mut outputs =
            [Output::new(&handle, &first, &extras[0], &up), Output::new(&handle, &second, &extras[1], &down)];
        let mut layers = |x: &CudaSlice<u8>, outputs: &mut [Output; 2]| {
            let x = MatRef::new(x, DType::F32, m, k)?;
            handle.quantize_into(&x, recipe, QuantizeTo::Plain(&mut first.a))?;
            plans[0].execute(&handle, outputs[0].args(&first, &extras[0], &up))?;
            let y = MatRef::new(&outputs[0].buffer, DType::F32, m, hidden)?;
            handle.quantize_into(&y, recipe, QuantizeTo::Plain(&mut second.a))?;
            plans[1].execute(&handle, outputs[1].args(&second, &extras[1], &down))
        };
        let graph = capture_among_others(&handle, || layers(&x, &mut outputs)).unwrap();
        for _ in 0..3 {
            handle.stream().memcpy_htod(&bytes_of(DType::F32, tiled(&mut rng, m, k).iter()), &mut x).unwrap();
            layers(&x, &mut outputs).unwrap();
            let want = outputs[1].read(&handle, "eager");
            outputs.iter_mut().for_each(|output| output.reset(&handle));
            for _ in 0..20 {
                handle.launch(&graph).unwrap();
            }
            assert!(outputs[1].read(&handle, "graph") == want, "{family:?}");
        }
    }
}

/// What allocates, waits or plans is refused inside a capture in words, and neither the capture nor the stream suffers.
#[test]
fn what_cannot_be_captured_is_refused_and_does_no_harm() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(44);
    let (m, n, k) = (4, 128, 256);
    let (vec, tile) = (Scheme::Fp8Group1x128(Fp8Format::E4M3), Scheme::Fp8Group128x128(Fp8Format::E4M3));
    let tensor = Scheme::Fp8Tensor(Fp8Format::E4M3);
    let ops = Operands::new(&handle, &mut rng, [m, n, k], (tensor, tensor));
    let extras = Extras::new(&handle, &mut rng, m, n, &[0]);
    let case = Case::new(DType::Bf16);
    let desc = case.desc(&ops);
    if offered(&handle, &desc).is_empty() {
        println!("skipped: {} multiplies no FP8", handle.device());
        return;
    }
    let mut plan = handle.plan(&desc).unwrap();
    let words = plan.explain();
    let want = execute(&handle, &mut plan, &ops, &extras, &case);
    let blocks = Operands::new(&handle, &mut rng, [m, n, k], (vec, tile));
    let mut repeated = offered(&handle, &case.desc(&blocks))
        .contains(&Formulation::RepeatedScales)
        .then(|| common::gemm::plan(&handle, &case.desc(&blocks), Formulation::RepeatedScales));
    let values = tiled(&mut rng, m, k);
    let x = upload_f32(&handle, &values);
    let x = MatRef::new(&x, DType::F32, m, k).unwrap();
    let mut output = Output::new(&handle, &ops, &extras, &case);
    let mut other = Output::new(&handle, &ops, &extras, &case);
    let mut y = poisoned(&handle, m * k * 4);

    let mut refusals: Vec<(&str, Result<(), Error>)> = Vec::new();
    let graph = capture_among_others(&handle, || {
        let mut tried = |what, result| refusals.push((what, result));
        tried("planning", handle.plan(&desc).map(drop));
        tried("asking what is supported", handle.supports(&desc).map(drop));
        let args = other.args(&ops, &extras, &case);
        tried("autotuning", plan.autotune(&handle, args, &TuneOptions::default()).map(drop));
        tried("the first product", handle.scaled_gemm(other.args(&ops, &extras, &case)));
        tried("allocating a QuantMatrix", handle.quantize(&x, Recipe::new(vec)).map(drop));
        tried("allocating a QuantMatrix", QuantMatrix::from_host(&handle, &ops.host_a).map(drop));
        tried("reading device memory", ops.a.to_host(&handle).map(drop));
        if let Some(repeated) = &mut repeated {
            tried("making repeated scales", repeated.prepare(&handle, &blocks.b));
            let result = repeated.execute(&handle, other.args(&blocks, &extras, &case));
            tried("executing with the repeated-scales formulation", result);
        }
        plan.execute(&handle, output.args(&ops, &extras, &case))?;
        handle.dequantize_into(&ops.a, &mut MatMut::new(&mut y, DType::F32, m, k)?)
    });
    let graph = graph.unwrap();
    for (what, result) in refusals {
        let error = result.err().unwrap_or_else(|| panic!("{what} was not refused inside a capture"));
        let text = error.to_string();
        assert!(matches!(error, Error::Unsupported { .. }), "{text}");
        assert!(text.contains(what) && text.contains("capture"), "{what:?} is not in {text:?}");
    }
    handle.launch(&graph).unwrap();
    assert!(output.read(&handle, &words) == want, "the graph was harmed");
    let dequantized = scaled_gemm::reference::dequantize(&ops.host_a, DType::F32);
    let y = values_of(DType::F32, &handle.stream().clone_dtoh(&y).unwrap());
    assert_same_values(&y, dequantized.as_slice().unwrap(), k, "dequantize in the graph");
    assert!(other.read(&handle, "refused").bytes.iter().all(|b| *b == 0xFF), "written although refused");

    // A capture that fails gives its error, and the stream works on.
    let failed = capture(&handle, || handle.plan(&desc).map(drop)).map(drop).unwrap_err();
    assert!(failed.to_string().contains("planning while the stream is captured"), "{failed}");
    assert!(execute(&handle, &mut plan, &ops, &extras, &case) == want);
    let mut again = handle.plan(&desc).unwrap();
    assert!(execute(&handle, &mut again, &ops, &extras, &case) == want);
    assert_same_bits(
        &handle.quantize(&x, Recipe::new(vec)).unwrap().to_host(&handle).unwrap(),
        &quantized(&values, vec),
        "after the captures",
    );
}
