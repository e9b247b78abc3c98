//! Captures: what frees or rewrites memory inside one leaves it whole, and products never read derived buffers of old weights.
//!
//! Each test runs in a process of its own (`hazards::alone`): a broken capture leaves errors behind.
#![cfg(feature = "cuda")]

mod common;
#[path = "common/hazards.rs"]
mod hazards;

use std::env;
use std::panic;

use common::gemm::*;
use common::*;
use hazards::*;
use scaled_gemm::{
    Basis, CapturedGraph, DType, Error, Formulation, GemmArgs, Handle, MatMut, MatRef, Nvfp4Options, Nvfp4Recipe,
    QuantMatrix, QuantizeTo, Recipe, Scheme, TuneTable,
};

fn whole<T>(what: &str, graph: Result<T, Error>) -> T {
    graph.unwrap_or_else(|error| panic!("{what} broke the capture: {error}"))
}

/// A graph that quantizes new weights into B, with and without a product behind it: products in the graph and outside see
/// the new weights, at every launch.
fn weights_quantized_in_a_graph(derived: Derived, product_in_graph: bool) {
    let Some(handle) = handle() else { return };
    let Some(mut layer) = Layer::new(&handle, derived) else { return };
    let (mut buffer, sets) = layer.weights(&handle);
    let recipe = Recipe::new(layer.ops.b.scheme());
    let (n, k) = (layer.ops.b.rows(), layer.ops.b.cols());
    let mut output = Output::new(&handle, &layer.ops, &layer.extras, &layer.case);
    // Everything that the graph launches is loaded before.
    let fresh = handle.quantize(&MatRef::new(&buffer, DType::F32, n, k).unwrap(), recipe).unwrap();
    layer.with(&handle, &fresh);
    let graph = capture(&handle, || {
        let x = MatRef::new(&buffer, DType::F32, n, k)?;
        handle.quantize_into(&x, recipe, QuantizeTo::Plain(&mut layer.ops.b))?;
        match product_in_graph {
            true => layer.plan.execute(&handle, output.args(&layer.ops, &layer.extras, &layer.case)),
            false => Ok(()),
        }
    });
    let graph = whole("quantize_into", graph);
    let mut before = None;
    for (launch, weights) in sets.iter().enumerate() {
        handle.stream().memcpy_htod(weights, &mut buffer).unwrap();
        let fresh = handle.quantize(&MatRef::new(&buffer, DType::F32, n, k).unwrap(), recipe).unwrap();
        let want = layer.with(&handle, &fresh);
        output.reset(&handle);
        handle.launch(&graph).unwrap();
        if product_in_graph {
            let got = output.read(&handle, "in the graph");
            assert!(got == want, "{derived:?}, launch {launch}: the product in the graph has old weights");
        }
        assert!(
            layer.eager(&handle) == want,
            "{derived:?}, launch {launch}: a product behind the graph has old weights"
        );
        assert!(before.replace(want.clone()) != Some(want), "other weights, same product");
    }
}

#[test]
fn repeated_scales_follow_weights_quantized_in_a_graph() {
    alone(|| weights_quantized_in_a_graph(Derived::Repeated, true));
}

#[test]
fn repeated_scales_follow_a_graph_that_only_quantizes() {
    alone(|| weights_quantized_in_a_graph(Derived::Repeated, false));
}

#[test]
fn kept_values_follow_weights_quantized_in_a_graph() {
    alone(|| weights_quantized_in_a_graph(Derived::Kept, true));
}

#[test]
fn kept_values_follow_a_graph_that_only_quantizes() {
    alone(|| weights_quantized_in_a_graph(Derived::Kept, false));
}

/// A graph made of a product alone, and weights quantized between its launches.
fn weights_quantized_between_launches(derived: Derived) {
    let Some(handle) = handle() else { return };
    let Some(mut layer) = Layer::new(&handle, derived) else { return };
    let (mut buffer, sets) = layer.weights(&handle);
    let recipe = Recipe::new(layer.ops.b.scheme());
    let (n, k) = (layer.ops.b.rows(), layer.ops.b.cols());
    let mut output = Output::new(&handle, &layer.ops, &layer.extras, &layer.case);
    let graph =
        capture(&handle, || layer.plan.execute(&handle, output.args(&layer.ops, &layer.extras, &layer.case))).unwrap();
    for (launch, weights) in sets.iter().enumerate() {
        handle.stream().memcpy_htod(weights, &mut buffer).unwrap();
        let x = MatRef::new(&buffer, DType::F32, n, k).unwrap();
        let fresh = handle.quantize(&x, recipe).unwrap();
        let want = layer.with(&handle, &fresh);
        handle.quantize_into(&x, recipe, QuantizeTo::Plain(&mut layer.ops.b)).unwrap();
        output.reset(&handle);
        handle.launch(&graph).unwrap();
        assert!(output.read(&handle, "graph") == want, "{derived:?}, launch {launch}: the graph has old weights");
    }
}

#[test]
fn a_graph_follows_repeated_scales_of_weights_quantized_between_launches() {
    alone(|| weights_quantized_between_launches(Derived::Repeated));
}

#[test]
fn a_graph_follows_kept_values_of_weights_quantized_between_launches() {
    alone(|| weights_quantized_between_launches(Derived::Kept));
}

/// A graph that writes B's scales through `write_parts`: one FP32 a tile, each the amax of a row.
fn scales_written_in_a_graph(product_in_graph: bool) {
    let Some(handle) = handle() else { return };
    let Some(mut layer) = Layer::new(&handle, Derived::Repeated) else { return };
    let scheme = layer.ops.b.scheme();
    let (n, k) = (layer.ops.b.rows(), layer.ops.b.cols());
    let tiles = scheme.scale_len(n, k);
    let rows = |seed: u64| {
        let mut rng = Noise::new(seed);
        let scales: Vec<f32> = (0..tiles).map(|_| 2f32.powf(rng.uniform() * 8.0 - 4.0)).collect();
        let x: Vec<f32> = scales.iter().flat_map(|scale| [*scale; 16]).collect();
        (scales, bytes_of(DType::F32, &x))
    };
    let mut buffer = upload(&handle, &rows(0).1);
    let mut loaded = handle.stream().alloc_zeros::<f32>(tiles).unwrap();
    let x = MatRef::new(&buffer, DType::F32, tiles, 16).unwrap();
    handle.row_amax_into(&x, &mut (&mut loaded).into()).unwrap();
    let mut output = Output::new(&handle, &layer.ops, &layer.extras, &layer.case);
    let graph = capture(&handle, || {
        let x = MatRef::new(&buffer, DType::F32, tiles, 16)?;
        layer.ops.b.write_parts(&handle, |mut parts| handle.row_amax_into(&x, &mut parts.scales))?;
        match product_in_graph {
            true => layer.plan.execute(&handle, output.args(&layer.ops, &layer.extras, &layer.case)),
            false => Ok(()),
        }
    });
    let graph = whole("write_parts", graph);
    for launch in 0..3 {
        let (scales, bytes) = rows(90 + launch);
        let (codes, scales) = (handle.upload(layer.ops.host_b.codes()).unwrap(), Some(handle.upload(&scales).unwrap()));
        let fresh = QuantMatrix::from_parts(scheme, n, k, codes, scales, None).unwrap();
        let want = layer.with(&handle, &fresh);
        handle.stream().memcpy_htod(&bytes, &mut buffer).unwrap();
        output.reset(&handle);
        handle.launch(&graph).unwrap();
        if product_in_graph {
            assert!(
                output.read(&handle, "in the graph") == want,
                "launch {launch}: the product in the graph, old scales"
            );
        }
        assert!(layer.eager(&handle) == want, "launch {launch}: a product behind the graph has old scales");
    }
}

#[test]
fn repeated_scales_follow_scales_written_in_a_graph() {
    alone(|| scales_written_in_a_graph(true));
}

#[test]
fn repeated_scales_follow_a_graph_that_only_writes_scales() {
    alone(|| scales_written_in_a_graph(false));
}

/// A matrix that a graph reads stays in its basis: the graph's product would be of operands in two. (It was taken, since only
/// graphs that write were asked.)
#[test]
fn the_basis_of_what_a_graph_reads_stays() {
    alone(|| {
        let Some(handle) = handle() else { return };
        let Some(mut layer) = Layer::new(&handle, Derived::Kept) else { return };
        let (mut buffer, [weights, ..]) = layer.weights(&handle);
        let (m, n, k) = (layer.ops.a.rows(), layer.ops.b.rows(), layer.ops.b.cols());
        handle.stream().memcpy_htod(&weights, &mut buffer).unwrap();
        let x = |rows| MatRef::new(&buffer, DType::F32, rows, k).unwrap();
        let options = Nvfp4Options { basis: Basis::Hadamard16, ..Nvfp4Options::default() };
        let hadamard: Recipe = Nvfp4Recipe::tensor(options).unwrap().into();
        let plain = Recipe::new(layer.ops.b.scheme());
        let want = layer.eager(&handle);
        let mut output = Output::new(&handle, &layer.ops, &layer.extras, &layer.case);
        // Before a graph reads them, A and B are taken in the other basis, and back.
        let host = [&layer.ops.host_a, &layer.ops.host_b].map(|host| QuantMatrix::from_host(&handle, host).unwrap());
        for (mut matrix, rows) in host.into_iter().zip([m, n]) {
            handle.quantize_into(&x(rows), hadamard, QuantizeTo::Plain(&mut matrix)).unwrap();
            handle.quantize_into(&x(rows), plain, QuantizeTo::Plain(&mut matrix)).unwrap();
        }
        let args = output.args(&layer.ops, &layer.extras, &layer.case);
        let graph = capture(&handle, || layer.plan.execute(&handle, args)).unwrap();
        for (matrix, rows) in [(&mut layer.ops.a, m), (&mut layer.ops.b, n)] {
            let cast = handle.quantize_into(&x(rows), hadamard, QuantizeTo::Plain(matrix));
            common::gemm::refused(cast, &["basis", "graph"]);
            assert_eq!(matrix.basis(), Basis::Plain, "a cast that was refused");
        }
        assert!(layer.eager(&handle) == want, "a cast that was refused has written");
        handle.launch(&graph).unwrap();
        assert!(output.read(&handle, "graph") == want, "a graph behind refused casts");
        // In its own basis it may be written.
        handle.quantize_into(&x(n), plain, QuantizeTo::Plain(&mut layer.ops.b)).unwrap();
        let want = layer.eager(&handle);
        output.reset(&handle);
        handle.launch(&graph).unwrap();
        assert!(output.read(&handle, "graph") == want, "a graph behind a cast that was taken");
    });
}

/// Does something that frees memory inside a capture: the graph holds the product beside it, and computes it.
fn harmless(handle: &Handle, what: &str, disturb: impl FnOnce()) {
    let Some(product) = RowProduct::new(handle, [16, 528, 400]) else { return disturb() };
    let RowProduct { ops, extras, case, mut plan, want } = product;
    let mut output = Output::new(handle, &ops, &extras, &case);
    let graph = capture(handle, || {
        disturb();
        plan.execute(handle, output.args(&ops, &extras, &case))
    });
    let graph = whole(what, graph);
    for launch in 0..3 {
        output.reset(handle);
        handle.launch(&graph).unwrap();
        assert!(output.read(handle, what) == want, "{what} in a capture: launch {launch} of the graph");
    }
}

/// The same with a layer whose B has a derived buffer, that is whole afterwards, and says the same as before.
fn harmless_to_a_layer(what: &str, derived: Derived, disturb: impl FnOnce(&Handle, &mut QuantMatrix)) {
    let Some(handle) = handle() else { return };
    let Some(mut layer) = Layer::new(&handle, derived) else { return };
    let want = layer.eager(&handle);
    harmless(&handle, what, || disturb(&handle, &mut layer.ops.b));
    assert!(layer.eager(&handle) == want, "{what} in a capture: a product with this B afterwards");
}

#[test]
fn forget_dequantized_in_a_capture() {
    alone(|| harmless_to_a_layer("forget_dequantized", Derived::Kept, |_, b| b.forget_dequantized()));
}

#[test]
fn write_parts_beside_kept_values_in_a_capture() {
    alone(|| harmless_to_a_layer("write_parts", Derived::Kept, |handle, b| b.write_parts(handle, |_| Ok(())).unwrap()));
}

#[test]
fn write_parts_in_a_capture() {
    alone(|| {
        harmless_to_a_layer("write_parts", Derived::Repeated, |handle, b| b.write_parts(handle, |_| Ok(())).unwrap())
    });
}

/// A cached plan that needs scratch memory is forgotten inside a capture, and made again after it.
fn cached_plans_forgotten(what: &str, forget: impl FnOnce(&Handle)) {
    let Some(handle) = handle() else { return };
    let Some(mut layer) = Layer::new(&handle, Derived::Kept) else { return };
    // Without kept values the plan dequantizes both operands into scratch.
    layer.ops.b.forget_dequantized();
    let want = layer.cached(&handle);
    assert_eq!(handle.cached_plans(), 1, "the plan is cached");
    harmless(&handle, what, || forget(&handle));
    assert_eq!(handle.cached_plans(), 0, "after {what}");
    assert!(layer.cached(&handle) == want, "after {what} in a capture");
}

#[test]
fn clear_plans_in_a_capture() {
    alone(|| cached_plans_forgotten("clear_plans", Handle::clear_plans));
}

#[test]
fn set_tuning_in_a_capture() {
    alone(|| cached_plans_forgotten("set_tuning", |handle| handle.set_tuning(TuneTable::default())));
}

#[test]
fn a_plan_dropped_in_a_capture() {
    alone(|| {
        let Some(handle) = handle() else { return };
        let Some(mut layer) = Layer::new(&handle, Derived::Kept) else { return };
        layer.ops.b.forget_dequantized();
        let mut plan = plan(&handle, &layer.case.desc(&layer.ops), Formulation::DequantizedBf16);
        assert!(plan.scratch_bytes() > 0, "{}", plan.explain());
        execute(&handle, &mut plan, &layer.ops, &layer.extras, &layer.case);
        harmless(&handle, "dropping a plan", || drop(plan));
    });
}

#[test]
fn a_matrix_dropped_in_a_capture() {
    alone(|| {
        let Some(handle) = handle() else { return };
        let Some(layer) = Layer::new(&handle, Derived::Kept) else { return };
        harmless(&handle, "dropping a matrix with kept values", || drop(layer.ops.b));
    });
}

fn graph_of(handle: &Handle, layer: &mut Layer, b: &QuantMatrix, output: &mut Output) -> CapturedGraph {
    let Layer { ops, extras, case, plan, .. } = layer;
    capture(handle, || plan.execute(handle, output.args_of(&ops.a, b, extras, case))).unwrap()
}

/// A graph captured on H2 reads a buffer derived from B that H1, which is late, is still making.
fn a_buffer_that_is_still_made(derived: Derived) {
    let Some(handle) = handle() else { return };
    let [late, early] = two_handles(handle);
    let Some(mut layer) = Layer::new(&early, derived) else { return };
    // The late handle's kernels are loaded, and the early one's plan has seen a B: neither prepares more than this B.
    let Some(mut other) = Layer::new(&late, derived) else { return };
    let want = layer.with(&early, &QuantMatrix::from_host(&early, &layer.ops.host_b).unwrap());
    let b = QuantMatrix::from_host(&late, &layer.ops.host_b).unwrap();
    let mut output = Output::new(&early, &layer.ops, &layer.extras, &layer.case);
    let derived_bytes = layer.ops.b.device_bytes() - b.device_bytes();
    assert!(derived_bytes > 0, "B has no derived buffer");
    // A first graph, so that nothing of graphs is loaded later.
    let fresh = QuantMatrix::from_host(&early, &layer.ops.host_b).unwrap();
    layer.with(&early, &fresh);
    let first = graph_of(&early, &mut layer, &fresh, &mut output);
    early.launch(&first).unwrap();
    assert!(output.read(&early, "a graph of a B that is whole") == want);
    output.reset(&early);
    late.synchronize().unwrap();
    early.synchronize().unwrap();
    // What the allocator gives next is no older derived buffer with the right content. No wait here: it would give the
    // memory back to the system.
    drop([(); 8].map(|()| poisoned(&late, derived_bytes)));
    let stall = Stall::on(&late);
    derive(&late, derived, &b);
    other.plan.prepare(&late, &b).unwrap();
    layer.plan.prepare(&early, &b).unwrap();
    let graph = graph_of(&early, &mut layer, &b, &mut output);
    early.launch(&graph).unwrap();
    stall.release();
    let got = output.read(&early, "graph");
    assert!(got == want, "{derived:?}: the graph did not wait for what H1 was making");
    drop(graph);
}

#[test]
fn a_graph_waits_for_repeated_scales_that_another_handle_makes() {
    alone(|| a_buffer_that_is_still_made(Derived::Repeated));
}

#[test]
fn a_graph_waits_for_kept_values_that_another_handle_makes() {
    alone(|| a_buffer_that_is_still_made(Derived::Kept));
}

/// A graph keeps its scratch memory when a later, larger product wants more of it.
#[test]
fn a_graph_outlives_larger_scratch() {
    alone(|| {
        let Some(handle) = handle() else { return };
        let Some(mut layer) = Layer::new(&handle, Derived::Kept) else { return };
        layer.ops.b.forget_dequantized();
        let mut plan = plan(&handle, &layer.case.desc(&layer.ops), Formulation::DequantizedBf16);
        let want = execute(&handle, &mut plan, &layer.ops, &layer.extras, &layer.case);
        let mut output = Output::new(&handle, &layer.ops, &layer.extras, &layer.case);
        let args = output.args(&layer.ops, &layer.extras, &layer.case);
        let graph = capture(&handle, || plan.execute(&handle, args)).unwrap();
        let (m, n, k) = (32, 8192, 8192);
        let zeros = |rows, cols| QuantMatrix::zeros(&handle, Scheme::Nvfp4, rows, cols).unwrap();
        let (a, b) = (zeros(m, k), zeros(n, k));
        let mut large = handle.stream().alloc_zeros::<u8>(m * n * 2).unwrap();
        handle.scaled_gemm(GemmArgs::new(&a, &b, MatMut::new(&mut large, DType::Bf16, m, n).unwrap())).unwrap();
        handle.synchronize().unwrap();
        let scratch = plan.scratch_bytes().max(1);
        let rest = [(); 8].map(|()| poisoned(&handle, scratch));
        for launch in 0..3 {
            output.reset(&handle);
            handle.launch(&graph).unwrap();
            assert!(output.read(&handle, "graph") == want, "launch {launch}");
        }
        assert!(rest.iter().all(|b| handle.stream().clone_dtoh(b).unwrap().iter().all(|b| *b == 0xFF)), "written");
    });
}

/// What was written before an error counts: the product has it, outside of graphs and in one that was captured before.
fn parts_written_before_an_error(derived: Derived) {
    let Some(handle) = handle() else { return };
    let Some(mut layer) = Layer::new(&handle, derived) else { return };
    let (mut buffer, [weights, ..]) = layer.weights(&handle);
    let (n, k) = (layer.ops.b.rows(), layer.ops.b.cols());
    let mut output = Output::new(&handle, &layer.ops, &layer.extras, &layer.case);
    let args = output.args(&layer.ops, &layer.extras, &layer.case);
    let graph = capture(&handle, || layer.plan.execute(&handle, args)).unwrap();
    handle.stream().memcpy_htod(&weights, &mut buffer).unwrap();
    let x = MatRef::new(&buffer, DType::F32, n, k).unwrap();
    let fresh = handle.quantize(&x, Recipe::new(layer.ops.b.scheme())).unwrap();
    let (old, want) = (layer.eager(&handle), layer.with(&handle, &fresh));
    assert!(old != want, "other weights, same product");
    let host = fresh.to_host(&handle).unwrap();
    let refused = layer.ops.b.write_parts(&handle, |mut parts| {
        handle.write(&mut parts.codes, host.codes())?;
        handle.write(&mut parts.scales, host.scales())?;
        handle.write(&mut parts.block_scales, host.block_scales())?;
        let bytes = parts.codes.len() + 1;
        handle.write(&mut parts.codes, &vec![0u8; bytes])
    });
    common::gemm::refused(refused, &["target of a copy from the host"]);
    assert!(layer.eager(&handle) == want, "{derived:?}: a product behind the error");
    output.reset(&handle);
    handle.launch(&graph).unwrap();
    assert!(output.read(&handle, "graph") == want, "{derived:?}: a graph behind the error");
}

#[test]
fn repeated_scales_follow_parts_written_before_an_error() {
    alone(|| parts_written_before_an_error(Derived::Repeated));
}

#[test]
fn kept_values_follow_parts_written_before_an_error() {
    alone(|| parts_written_before_an_error(Derived::Kept));
}

/// Without its mark the process in which no such test is would have passed.
#[test]
fn alone_needs_a_test_that_runs() {
    fn no_test_has_this_name() {
        alone(|| panic!("it ran"));
    }
    if env::var_os("SCALED_GEMM_TEST_ALONE").is_some() {
        return println!("skipped: every test runs in this process");
    }
    let words = panic::catch_unwind(no_test_has_this_name).expect_err("a process that ran nothing has passed");
    let words = words.downcast_ref::<String>().unwrap();
    assert!(words.contains("did not run it to its end"), "{words}");
}
