//! Products of slots, and gradients one a group, on several streams of one call: the bits of one stream, in order with what comes before and behind, in graphs. Those of others are in `gpu_foreign_captures`.

use scaled_gemm::{
    Accumulate, Activation, DType, DeviceBuffer, Epilogue, Fp8Format, GemmDesc, GroupedGemmArgs, GroupedRows,
    GroupedWeightGradient, Handle, MatMut, MatRef, PlanOptions, QuantMatrix, QuantizeTo, Recipe, Result, Scheme,
    Sm90Config, TuneTable, VecRef,
};

use crate::common::*;

const SLOT: usize = 128;
const OUT: usize = 128;
/// Long, so that cuBLASLt divides k, and takes workspace.
const K: usize = 1024;
const MOST: usize = 70;
/// Columns of D that belong to nobody.
const GAP: usize = 8;
const E4M3: Fp8Format = Fp8Format::E4M3;

/// Numbers of all slots, those of fewer in front.
struct Numbers {
    x: DeviceBuffer,
    w: DeviceBuffer,
    bias: DeviceBuffer,
    counts: DeviceBuffer,
}

impl Numbers {
    fn new(handle: &Handle) -> Self {
        let mut rng = Noise::new(83);
        let mut upload = |count: usize| handle.upload(&rng.bf16(count, 1.0)).unwrap();
        let (x, w) = (upload(MOST * SLOT * K), upload(MOST * OUT * K));
        let bias: Vec<f32> = (0..MOST * OUT).map(|j| j as f32 * 0.03 - 7.0).collect();
        Self { x, w, bias: handle.upload(&bias).unwrap(), counts: handle.upload(&[5i64; MOST]).unwrap() }
    }

    fn quantized(&self, handle: &Handle, [a, b]: [Scheme; 2], groups: usize) -> [QuantMatrix; 2] {
        let of = |x: &DeviceBuffer, rows: usize, scheme| {
            if rows == 0 {
                return QuantMatrix::zeros(handle, scheme, 0, K).unwrap();
            }
            handle.quantize(&MatRef::new(x, DType::Bf16, rows, K).unwrap(), Recipe::new(scheme)).unwrap()
        };
        [of(&self.x, groups * SLOT, a), of(&self.w, groups * OUT, b)]
    }

    fn args<'a>(
        &'a self,
        [a, b]: &'a [QuantMatrix; 2],
        groups: usize,
        d: &'a mut DeviceBuffer,
        streams: usize,
    ) -> Result<GroupedGemmArgs<'a>> {
        let rows = GroupedRows::Masked { slot_rows: SLOT, counts: self.counts.view() };
        let d = MatMut::new(d, DType::Bf16, groups * SLOT, OUT)?.with_row_stride(OUT + GAP)?;
        let bias = VecRef::new(&self.bias, DType::F32, groups * OUT)?;
        let args = GroupedGemmArgs::new(a, b, groups, rows, d).bias(bias).activation(Activation::Silu).alpha(0.5);
        Ok(args.product_a_slot().streams(streams))
    }
}

/// Bytes of D, nobody's among them.
fn d_bytes(groups: usize) -> usize {
    groups * SLOT * (OUT + GAP) * 2
}

fn poisoned_d(handle: &Handle, groups: usize) -> DeviceBuffer {
    handle.upload(&vec![0xFFu8; d_bytes(groups)]).unwrap()
}

/// The problem of a slot.
fn desc([a, b]: [Scheme; 2]) -> GemmDesc {
    let epilogue = Epilogue { bias: Some(DType::F32), activation: Activation::Silu, ..Epilogue::default() };
    GemmDesc::new(SLOT, OUT, K, a, b, DType::Bf16).with_epilogue(epilogue).with_out_stride(OUT + GAP)
}

fn pairs() -> [[Scheme; 2]; 8] {
    [
        [Scheme::Fp8Tensor(E4M3); 2],
        [Scheme::Fp8Tensor(Fp8Format::E5M2), Scheme::Fp8Tensor(E4M3)],
        [Scheme::Fp8Row(E4M3); 2],
        [Scheme::Mxfp8(E4M3); 2],
        [Scheme::Mxfp8(E4M3), Scheme::Mxfp8(Fp8Format::E5M2)],
        [Scheme::Mxfp4; 2],
        [Scheme::Nvfp4; 2],
        [Scheme::Nvfp4Row, Scheme::Nvfp4],
    ]
}

/// Calls `each` with every pair and every formulation that it has here, which the handle then plans.
fn by_every_way(handle: &Handle, mut each: impl FnMut([Scheme; 2], &str)) {
    let mut posed = 0;
    for pair in pairs() {
        for formulation in handle.supports(&desc(pair)).unwrap_or_default() {
            let options = PlanOptions::default().with_formulation(formulation);
            let plan = handle.plan_with(&desc(pair), &options).unwrap();
            let mut table = TuneTable::default();
            table.insert(plan.record().unwrap());
            handle.set_tuning(table);
            assert_eq!(handle.plan(&desc(pair)).unwrap().formulation(), formulation, "the record is taken");
            each(pair, &format!("{} x {} by {formulation}", pair[0], pair[1]));
            posed += 1;
        }
    }
    handle.set_tuning(TuneTable::default());
    assert!(posed >= 4, "NVFP4 and MXFP8 are multiplied everywhere");
}

#[test]
fn several_streams_give_the_bits_of_one() {
    let Some(handle) = handle() else { return };
    let numbers = Numbers::new(&handle);
    by_every_way(&handle, |pair, what| {
        for groups in [0, 1, 3, MOST] {
            let operands = numbers.quantized(&handle, pair, groups);
            let run = |streams| {
                let mut d = poisoned_d(&handle, groups);
                handle.grouped_gemm(numbers.args(&operands, groups, &mut d, streams).unwrap()).unwrap();
                handle.read_bytes(&d.view()).unwrap()
            };
            let mut d = poisoned_d(&handle, groups);
            let said = numbers.args(&operands, groups, &mut d, 4).unwrap().explain(&handle).unwrap();
            let by = what.rsplit(' ').next().unwrap();
            assert!(groups == 0 || said.contains(&format!("\n  {by}, ")), "{what}: {said}");
            let want = run(1);
            for (row, bytes) in want.chunks((OUT + GAP) * 2).enumerate() {
                assert!(bytes[OUT * 2..].iter().all(|byte| *byte == 0xFF), "{what}: behind row {row}");
                assert!(bytes[..OUT * 2].iter().any(|byte| *byte != 0xFF), "{what}: row {row} is stored");
            }
            // Slots differ, so that one in the place of another would be seen.
            let slots: Vec<_> = want.chunks(d_bytes(1)).collect();
            assert!(slots.windows(2).all(|two| two[0] != two[1]), "{what}");
            for streams in [2, 3, 4, 8] {
                assert!(run(streams) == want, "{what}, {groups} groups on {streams} streams");
            }
        }
    });
}

/// One graph of a cast, products on several streams, and a cast of what they stored: each launch finds other numbers and counts, begins behind what wrote them, and is waited for.
#[test]
fn graphs_fork_behind_what_they_read_and_join_before_it_is_used() {
    let Some(handle) = handle() else { return };
    let groups = 7;
    let mut numbers = Numbers::new(&handle);
    let mut clamped = handle.alloc(4).unwrap();
    by_every_way(&handle, |pair, what| {
        let mut operands = numbers.quantized(&handle, pair, groups);
        let mut alone = numbers.quantized(&handle, pair, groups);
        let (mut d, mut want) = (poisoned_d(&handle, groups), poisoned_d(&handle, groups));
        let row = Scheme::Fp8Row(E4M3);
        let mut after = QuantMatrix::zeros(&handle, row, groups * SLOT, OUT).unwrap();
        for streams in [2, 4, 8] {
            let mut step = || {
                let x = MatRef::new(&numbers.x, DType::Bf16, groups * SLOT, K)?;
                handle.quantize_into(&x, Recipe::new(pair[0]), QuantizeTo::Plain(&mut operands[0]))?;
                let args = numbers.args(&operands, groups, &mut d, streams)?;
                handle.grouped_gemm(args.clamped(clamped.view_mut()))?;
                let d = MatRef::new(&d, DType::Bf16, groups * SLOT, OUT)?.with_row_stride(OUT + GAP)?;
                handle.quantize_into(&d, Recipe::new(row), QuantizeTo::Plain(&mut after))
            };
            step().unwrap();
            let graph = capture_owned(&handle, &mut step).unwrap();
            // All inside of a chain is in order, too.
            let chained = capture_owned(&handle, || handle.chain(&mut step)).unwrap();
            for (launch, (counts, bad)) in
                [([0i64; 7], 0), ([128, 1, 0, 70, 3, 128, 5], 0), ([-1, 129, 0, 0, 3, 4, i64::MAX], 3)]
                    .into_iter()
                    .enumerate()
            {
                let mut rng = Noise::new(90 + launch as u64);
                handle.write(&mut numbers.x.view_mut(), &rng.bf16(groups * SLOT * K, 1.0 + launch as f32)).unwrap();
                handle.write(&mut numbers.counts.view_mut(), &counts).unwrap();
                let x = MatRef::new(&numbers.x, DType::Bf16, groups * SLOT, K).unwrap();
                handle.quantize_into(&x, Recipe::new(pair[0]), QuantizeTo::Plain(&mut alone[0])).unwrap();
                handle.grouped_gemm(numbers.args(&alone, groups, &mut want, 1).unwrap()).unwrap();
                let want_d = handle.read_bytes(&want.view()).unwrap();
                let whole = MatRef::new(&want, DType::Bf16, groups * SLOT, OUT).unwrap();
                let whole = whole.with_row_stride(OUT + GAP).unwrap();
                let want_after = handle.quantize(&whole, Recipe::new(row)).unwrap().to_host(&handle).unwrap();
                for (graph, kind) in [(&graph, "a graph"), (&chained, "a chain")] {
                    let what = format!("{what}, {streams} streams, {kind}, launch {launch}");
                    handle.write(&mut d.view_mut(), &vec![0xFFu8; d_bytes(groups)]).unwrap();
                    // Two of them: the second begins when the first has ended.
                    (0..2).for_each(|_| handle.launch(graph).unwrap());
                    assert!(handle.read_bytes(&d.view()).unwrap() == want_d, "{what}");
                    assert_device_bits(&handle, &after, &want_after, &what);
                    assert_eq!(handle.read::<u32>(&clamped.view()).unwrap(), [bad], "{what}");
                }
            }
        }
    });
}

/// Without captures, too: who else uses the memory, on another stream, waits for all streams of the call, and the call for it.
#[test]
fn other_handles_wait_for_all_streams() {
    let (Some(handle), Some(other)) = (handle(), handle()) else { return };
    let groups = 8;
    let numbers = Numbers::new(&handle);
    let pair = [Scheme::Nvfp4; 2];
    let mut operands = numbers.quantized(&handle, pair, groups);
    let mut d = poisoned_d(&handle, groups);
    let row = Scheme::Fp8Row(E4M3);
    let inputs: Vec<_> =
        (0..3).map(|i| handle.upload(&Noise::new(200 + i).bf16(groups * SLOT * K, 1.0 + i as f32)).unwrap()).collect();
    let mut turn = |who: &Handle, input: usize, streams: usize, after: &mut QuantMatrix| {
        let x = MatRef::new(&inputs[input], DType::Bf16, groups * SLOT, K).unwrap();
        who.quantize_into(&x, Recipe::new(pair[0]), QuantizeTo::Plain(&mut operands[0])).unwrap();
        handle.grouped_gemm(numbers.args(&operands, groups, &mut d, streams).unwrap()).unwrap();
        let d = MatRef::new(&d, DType::Bf16, groups * SLOT, OUT).unwrap().with_row_stride(OUT + GAP).unwrap();
        who.quantize_into(&d, Recipe::new(row), QuantizeTo::Plain(after)).unwrap();
    };
    let zeros = || QuantMatrix::zeros(&handle, row, groups * SLOT, OUT).unwrap();
    let want: Vec<_> = (0..inputs.len())
        .map(|input| {
            let mut after = zeros();
            turn(&handle, input, 1, &mut after);
            after.to_host(&handle).unwrap()
        })
        .collect();
    assert!(want.windows(2).all(|two| two[0].codes() != two[1].codes()));
    let mut found: Vec<_> = (0..60).map(|_| zeros()).collect();
    // Nothing waits on the host in between.
    for (round, after) in found.iter_mut().enumerate() {
        turn(&other, round % inputs.len(), [2, 4, 8][round % 3], after);
    }
    for (round, after) in found.iter().enumerate() {
        assert_device_bits(&other, after, &want[round % inputs.len()], &format!("round {round}"));
    }
}

/// Two handles, each with streams of its own, and a third on the stream of the first.
#[test]
fn two_plans_run_at_once() {
    let (Some(first), Some(second)) = (handle(), handle()) else { return };
    let third = required(Handle::from_stream(first.stream().clone())).unwrap();
    let handles = [&first, &second, &third];
    let groups = 12;
    let numbers = Numbers::new(&first);
    let shared = [[Scheme::Nvfp4; 2], [Scheme::Mxfp8(E4M3); 2], [Scheme::Nvfp4Row, Scheme::Nvfp4]]
        .map(|pair| numbers.quantized(&first, pair, groups));
    let want = shared.each_ref().map(|operands| {
        let mut d = poisoned_d(&first, groups);
        first.grouped_gemm(numbers.args(operands, groups, &mut d, 1).unwrap()).unwrap();
        first.read_bytes(&d.view()).unwrap()
    });
    let mut results: Vec<_> = handles.iter().map(|handle| poisoned_d(handle, groups)).collect();
    let graphs: Vec<_> = handles
        .iter()
        .zip(&shared)
        .zip(&mut results)
        .map(|((handle, operands), d)| {
            let mut run = || handle.grouped_gemm(numbers.args(operands, groups, d, 4)?);
            run().unwrap();
            capture_owned(handle, run).unwrap()
        })
        .collect();
    for round in 0..40 {
        for ((handle, graph), d) in handles.iter().zip(&graphs).zip(&mut results) {
            handle.write(&mut d.view_mut(), &vec![0xFFu8; d_bytes(groups)]).unwrap();
            handle.launch(graph).unwrap();
        }
        for (((handle, operands), d), at) in handles.iter().zip(&shared).zip(&mut results).zip(0..) {
            assert!(handle.read_bytes(&d.view()).unwrap() == want[at], "round {round}, handle {at}");
            // And without graphs.
            handle.grouped_gemm(numbers.args(operands, groups, d, 3).unwrap()).unwrap();
        }
        for ((handle, d), want) in handles.iter().zip(&results).zip(&want) {
            assert!(handle.read_bytes(&d.view()).unwrap() == *want, "round {round}, without a graph");
        }
    }
    // Graphs outlive what they were captured from, streams beside the handle's among it.
    drop((graphs, second, third));
    first.synchronize().unwrap();
}

/// What is said of streams and memory is what is there, and what cannot be is refused.
#[test]
fn streams_are_explained_and_refused() {
    let Some(handle) = handle() else { return };
    let groups = 9;
    let numbers = Numbers::new(&handle);
    let operands = numbers.quantized(&handle, [Scheme::Nvfp4; 2], groups);
    let mut d = poisoned_d(&handle, groups);
    for streams in [1, 2, 8] {
        let fresh = required(Handle::new(0)).unwrap();
        let said = numbers.args(&operands, groups, &mut d, streams).unwrap().explain(&fresh).unwrap();
        assert!(said.contains("one product a slot, 9 of them") && said.contains("empty groups take as long"), "{said}");
        assert!(said.contains(&format!("streams: {streams}: as asked;")), "{said}");
        let (before, _) = said.split_once(" bytes of the handle's scratch memory").expect("memory");
        let bytes: usize = before.rsplit(' ').next().unwrap().parse().unwrap();
        fresh.grouped_gemm(numbers.args(&operands, groups, &mut d, streams).unwrap()).unwrap();
        assert_eq!(fresh.scratch_bytes(), bytes.next_multiple_of(2 << 20), "{said}");
        if streams == 2 {
            // More streams than it has, or memory, it makes in no capture.
            let more = fresh.capture(|| fresh.grouped_gemm(numbers.args(&operands, groups, &mut d, 8)?));
            let text = more.map(drop).unwrap_err().to_string();
            assert!(
                text.contains("making streams")
                    && text.contains("(7 beside the handle's; there are 1)")
                    && text.contains("once before the capture"),
                "{text}"
            );
            fresh.trim_scratch().unwrap();
            let less = fresh.capture(|| fresh.grouped_gemm(numbers.args(&operands, groups, &mut d, 2)?));
            let text = less.map(drop).unwrap_err().to_string();
            assert!(text.contains("reserving scratch memory"), "{text}");
            fresh.grouped_gemm(numbers.args(&operands, groups, &mut d, 2).unwrap()).unwrap();
            capture_owned(&fresh, || fresh.grouped_gemm(numbers.args(&operands, groups, &mut d, 2)?)).unwrap();
        }
    }
    let refused = |result: Result<()>, words: &[&str]| {
        let text = result.unwrap_err().to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    };
    for streams in [0, 9] {
        let words = format!("{streams} streams");
        refused(handle.grouped_gemm(numbers.args(&operands, groups, &mut d, streams).unwrap()), &[&words, "1 to 8"]);
        let mut dw = handle.alloc(0).unwrap();
        let of = GroupedWeightGradient::new(&[], &[], MatMut::new(&mut dw, DType::F32, 0, 0).unwrap());
        refused(handle.grouped_weight_gradient(of.streams(streams)), &[&words, "1 to 8"]);
    }
    let [a, b] = &operands;
    let contiguous = || GroupedRows::Contiguous { starts: numbers.counts.view(), counts: numbers.counts.view() };
    let target = MatMut::new(&mut d, DType::Bf16, groups * SLOT, OUT).unwrap();
    refused(
        handle.grouped_gemm(GroupedGemmArgs::new(a, b, groups, contiguous(), target).product_a_slot()),
        &["one product a slot of nvfp4 x nvfp4", "the device alone knows", "slots", "leave product_a_slot out"],
    );
    let config = Sm90Config::ALL[0];
    refused(
        handle.grouped_gemm(numbers.args(&operands, groups, &mut d, 2).unwrap().config(config)),
        &["one product a slot", &config.to_string(), "leave one of the two out"],
    );
    let x = MatRef::new(&numbers.x, DType::Bf16, groups * SLOT, K).unwrap();
    let target = MatMut::new(&mut d, DType::Bf16, groups * SLOT, OUT).unwrap();
    refused(
        handle.grouped_gemm(GroupedGemmArgs::weight_only(x, b, groups, contiguous(), target).product_a_slot()),
        &["one product a slot of a plain A", "leave product_a_slot out"],
    );
}

/// Gradients of groups: added to what dW holds, with the bits of one stream, also where each B has scales or values of its own beside its codes.
#[test]
fn gradients_on_several_streams_have_the_bits_of_one() {
    let Some(handle) = handle() else { return };
    let (groups, slot, features) = (7, 256, 384);
    let mut rng = Noise::new(87);
    let mut upload = |rows: usize, cols: usize| handle.upload(&rng.bf16(rows * cols, 1.0)).unwrap();
    let (dy, x) = (upload(groups * slot, OUT), upload(groups * slot, features));
    let old: Vec<f32> = (0..groups * OUT * features).map(|i| (i % 97) as f32 - 48.0).collect();
    let (vectors, tiles) = (Scheme::Fp8Group1x128(E4M3), Scheme::Fp8Group128x128(E4M3));
    let mut posed = 0;
    for (pair, kept) in [
        ([vectors, vectors], false),
        ([vectors, tiles], false),
        ([Scheme::Fp8Row(E4M3); 2], false),
        ([Scheme::Nvfp4Row; 2], false),
        ([Scheme::Nvfp4Row; 2], true),
    ] {
        let desc = GemmDesc::new(OUT, features, slot, pair[0], pair[1], DType::F32);
        let ways = handle.supports(&desc.with_accumulate(Accumulate::Add)).unwrap_or_default();
        for formulation in ways {
            let what = format!("{} x {} by {formulation}, kept {kept}", pair[0], pair[1]);
            let cast = |x: &DeviceBuffer, cols: usize, scheme| -> Vec<QuantMatrix> {
                let mut into: Vec<_> =
                    (0..groups).map(|_| QuantMatrix::zeros(&handle, scheme, cols, slot).unwrap()).collect();
                let x = MatRef::new(x, DType::Bf16, groups * slot, cols).unwrap();
                handle.quantize_slots_transposed_into(&x, Recipe::new(scheme), &mut into).unwrap();
                into
            };
            let (dy_t, x_t) = (cast(&dy, OUT, pair[0]), cast(&x, features, pair[1]));
            let keep = |x: &QuantMatrix| {
                if kept {
                    x.keep_dequantized(&handle, DType::Bf16).unwrap()
                }
            };
            x_t.iter().for_each(keep);
            let desc = desc.with_accumulate(Accumulate::Add).with_kept(x_t[0].kept());
            let Ok(plan) = handle.plan_with(&desc, &PlanOptions::default().with_formulation(formulation)) else {
                // With values that are kept others are offered.
                assert!(kept, "{what}");
                continue;
            };
            let mut table = TuneTable::default();
            table.insert(plan.record().unwrap());
            handle.set_tuning(table);
            let mut dw = handle.alloc(old.len() * 4).unwrap();
            let mut run = |streams: usize, captured: bool| -> Vec<u32> {
                handle.write(&mut dw.view_mut(), &old).unwrap();
                let mut add = || {
                    let to = MatMut::new(&mut dw, DType::F32, groups * OUT, features)?;
                    handle.grouped_weight_gradient(GroupedWeightGradient::new(&dy_t, &x_t, to).streams(streams))
                };
                match captured {
                    false => add().unwrap(),
                    true => handle.launch(&capture_owned(&handle, add).unwrap()).unwrap(),
                }
                handle.read::<f32>(&dw.view()).unwrap().into_iter().map(f32::to_bits).collect()
            };
            let want = run(1, false);
            let kept_old = want.iter().zip(&old).filter(|(new, old)| **new == old.to_bits()).count();
            assert!(kept_old * 100 < old.len(), "{what}: added to");
            for streams in [2, 4, 8] {
                assert!(run(streams, false) == want && run(streams, true) == want, "{what}, {streams} streams");
            }
            let to = MatMut::new(&mut dw, DType::F32, groups * OUT, features).unwrap();
            let said = GroupedWeightGradient::new(&dy_t, &x_t, to).streams(3).explain(&handle).unwrap();
            assert!(said.contains("in turns on 3 streams") && said.contains(&formulation.to_string()), "{said}");
            posed += 1;
        }
    }
    handle.set_tuning(TuneTable::default());
    assert!(posed >= 2, "NVFP4 is multiplied everywhere");
    // One that keeps values among others that do not: each has a plan of its own, on the handle's stream.
    let scheme = Scheme::Nvfp4Row;
    let cast = |x: &DeviceBuffer, cols: usize| -> Vec<QuantMatrix> {
        let mut into: Vec<_> = (0..groups).map(|_| QuantMatrix::zeros(&handle, scheme, cols, slot).unwrap()).collect();
        let x = MatRef::new(x, DType::Bf16, groups * slot, cols).unwrap();
        handle.quantize_slots_transposed_into(&x, Recipe::new(scheme), &mut into).unwrap();
        into
    };
    let (dy_t, x_t) = (cast(&dy, OUT), cast(&x, features));
    x_t[3].keep_dequantized(&handle, DType::Bf16).unwrap();
    let mut dw = handle.upload(&old).unwrap();
    let mut of = || {
        let to = MatMut::new(&mut dw, DType::F32, groups * OUT, features)?;
        let mut of = GroupedWeightGradient::new(&dy_t, &x_t, to).streams(4);
        let said = of.explain(&handle)?;
        handle.grouped_weight_gradient(of).map(|()| said)
    };
    let said = of().unwrap();
    assert!(said.contains("one after the other") && said.contains("a plan of its own"), "{said}");
}
