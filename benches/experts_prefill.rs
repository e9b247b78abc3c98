//! The experts of a layer at prefill: BF16 rows with quantized weights, in one launch by groups that the device knows, against one product an expert, whose rows the
//! host must know; and quantized rows in slots, one product a slot, on one stream and on several.
//!
//! `cargo bench --bench experts_prefill`; the runner that `scripts/bundle.sh` packs on a machine without a toolchain. Eight experts of 4096 x 7168, each with as many rows; what
//! is timed is checked by `gpu_small_m_groups` and `gpu_experts`. `SCALED_GEMM_SHAPES=64,1024` takes these rows alone.

mod common;

use common::*;
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::{
    CapturedGraph, DType, Fp8Format, GemmArgs, GemmDesc, GroupedGemmArgs, GroupedRows, Handle, KernelFamily, MatMut,
    MatRef, Operand, QuantMatrix, Recipe, Scheme, Timing,
};

const EXPERTS: usize = 8;
const N: usize = 4096;
const K: usize = 7168;
const ROWS: [usize; 6] = [32, 64, 96, 128, 256, 1024];
const WEIGHTS: [Scheme; 3] = [Scheme::Nvfp4Row, Scheme::Mxfp4, Scheme::Fp8Group128x128(Fp8Format::E4M3)];
/// Usual rows, of which each has kernels of its own, and as many columns as those have.
const WIDTHS: [(usize, usize); 3] = [(16, 16), (32, 32), (97, 64)];

fn rows() -> Vec<usize> {
    match std::env::var("SCALED_GEMM_SHAPES") {
        Ok(list) => list.split(',').map(|m| m.parse().expect("rows")).collect(),
        Err(_) => ROWS.to_vec(),
    }
}

fn main() {
    main_with_gpu(|handle, watch| {
        head(handle, "Experts at prefill");
        if !KernelFamily::SmallMGroups.runs_on(handle.device().compute_capability) {
            println!("\n{} has no such product", handle.device());
            return;
        }
        handle.load_kernels(&[KernelFamily::SmallMGroups]).unwrap();
        for scheme in WEIGHTS {
            weight_only(handle, scheme);
        }
        let start = std::time::Instant::now();
        println!(
            "\n## Slots of `nvfp4` x `nvfp4`: one product a slot, and one launch, us of all (graphs, back to back)\n"
        );
        println!("| slots, rows, n, k | one stream | two | three | four | one launch, all rows | 16 rows each |");
        println!("|---|---|---|---|---|---|---|");
        let source = random(handle, 1, 64 * N * K, DType::Bf16);
        for shape in [[8, 1024, N, K], [8, 256, N, K], [64, 128, N, K], [64, 128, 2048, 2048]] {
            let streams = [1, 2, 3, 4].map(|streams| slots_on(handle, &source, shape, streams));
            let launches = [shape[1], 16].map(|count| in_one_launch(handle, &source, shape, count));
            let times = streams.into_iter().chain(launches).map(|us| format!("{us:.0}")).collect::<Vec<_>>();
            println!("| {} | {} |", shape.map(|x| x.to_string()).join(", "), times.join(" | "));
        }
        println!("\n{}", watch.since(start));
    });
}

/// One launch of each width, and a product for each expert.
fn weight_only(handle: &Handle, scheme: Scheme) {
    println!("\n## BF16 x {scheme}, {EXPERTS} experts of {N} x {K}\n");
    println!(
        "| rows each | one by one | {} |",
        WIDTHS.map(|(_, width)| format!("one launch, {width} at a time")).join(" | ")
    );
    println!("|---|---|---|---|---|");
    let weights = random(handle, 1, EXPERTS * N * K, DType::Bf16);
    let part = |from: usize, rows: usize| MatRef::new(weights.slice(from * K * 2..), DType::Bf16, rows, K).unwrap();
    let all = handle.quantize(&part(0, EXPERTS * N), Recipe::new(scheme)).unwrap();
    let each: Vec<_> = (0..EXPERTS).map(|g| handle.quantize(&part(g * N, N), Recipe::new(scheme)).unwrap()).collect();
    let most = EXPERTS * rows().into_iter().max().unwrap_or(0);
    let x = random(handle, 2, most * K, DType::Bf16);
    let mut d = handle.stream().alloc_zeros::<u8>(most * N * 2).unwrap();
    for m in rows() {
        let starts: Vec<_> = (0..EXPERTS).map(|g| (g * m) as i64).collect();
        let (starts, counts) = (handle.upload(&starts).unwrap(), handle.upload(&[m as i64; EXPERTS]).unwrap());
        let desc = GemmDesc::new(m, N, K, Operand::Plain(DType::Bf16), scheme, DType::Bf16);
        // FP8 weights multiply no more than 64 plain rows by themselves.
        let mut plan = handle.plan(&desc).ok();
        if let Some(plan) = &mut plan {
            each.iter().for_each(|b| plan.prepare(handle, b).unwrap());
        }
        let timing = borrowing(Timing::PAUSES.with_calls(1).with_launches(9));
        let alone = usize::from(plan.is_some());
        let times = timing.in_turns(handle, alone + WIDTHS.len(), |who, _| match who.checked_sub(alone) {
            None => each.iter().enumerate().try_for_each(|(g, b)| {
                let x = MatRef::new(x.slice(g * m * K * 2..), DType::Bf16, m, K)?;
                let mut d = d.slice_mut(g * m * N * 2..);
                let d = MatMut::new(&mut d, DType::Bf16, m, N)?;
                plan.as_mut().expect("a competitor").execute(handle, GemmArgs::weight_only(x, b, d))
            }),
            Some(who) => {
                let rows = GroupedRows::Contiguous { starts: starts.view(), counts: counts.view() };
                let x = MatRef::new(&x, DType::Bf16, EXPERTS * m, K)?;
                let d = MatMut::new(&mut d, DType::Bf16, EXPERTS * m, N)?;
                let args = GroupedGemmArgs::weight_only(x, &all, EXPERTS, rows, d);
                handle.grouped_gemm(args.expected_rows(WIDTHS[who].0))
            }
        });
        let times = times.unwrap();
        let launches = times[alone..].iter().map(|time| time.to_string()).collect::<Vec<_>>();
        let alone = plan.map_or("-".to_string(), |plan| format!("{} ({})", times[0], plan.formulation()));
        println!("| {m} | {alone} | {} |", launches.join(" | "));
    }
}

/// Part number `at` of the numbers, quantized.
fn matrix(handle: &Handle, source: &CudaSlice<u8>, [rows, k]: [usize; 2], at: usize) -> QuantMatrix {
    let x = MatRef::new(source.slice(at * rows * k * 2..), DType::Bf16, rows, k).unwrap();
    handle.quantize(&x, Recipe::new(Scheme::Nvfp4)).unwrap()
}

/// The products of slots, dealt out to as many handles with a stream each, which wait for the first and are waited for by it. Microseconds.
fn slots_on(first: &Handle, source: &CudaSlice<u8>, [slots, m, n, k]: [usize; 4], streams: usize) -> f64 {
    let others: Vec<_> = (1..streams).map(|_| Handle::new(first.device().ordinal).unwrap()).collect();
    let handles: Vec<&Handle> = std::iter::once(first).chain(&others).collect();
    let graphs: Vec<CapturedGraph> = handles
        .iter()
        .enumerate()
        .map(|(who, handle)| {
            let own: Vec<usize> = (who..slots).step_by(streams).collect();
            let a: Vec<_> = own.iter().map(|g| matrix(handle, source, [m, k], *g)).collect();
            let b: Vec<_> = own.iter().map(|g| matrix(handle, source, [n, k], *g)).collect();
            let mut d: Vec<_> = own.iter().map(|_| handle.alloc(m * n * 2).unwrap()).collect();
            let mut run = || {
                a.iter().zip(&b).zip(&mut d).try_for_each(|((a, b), d)| {
                    handle.scaled_gemm(GemmArgs::new(a, b, MatMut::new(d, DType::Bf16, m, n)?))
                })
            };
            run().unwrap();
            handle.capture(run).unwrap()
        })
        .collect();
    back_to_back(&handles, &graphs)
}

/// The same slots in one launch, of which each has so many rows.
fn in_one_launch(handle: &Handle, source: &CudaSlice<u8>, [slots, m, n, k]: [usize; 4], count: usize) -> f64 {
    let (a, b) = (matrix(handle, source, [slots * m, k], 0), matrix(handle, source, [slots * n, k], 0));
    let mut d = handle.alloc(slots * m * n * 2).unwrap();
    let counts = handle.upload(&vec![count as i64; slots]).unwrap();
    let mut run = || {
        let rows = GroupedRows::Masked { slot_rows: m, counts: counts.view() };
        let d = MatMut::new(&mut d, DType::Bf16, slots * m, n)?;
        handle.grouped_gemm(GroupedGemmArgs::new(&a, &b, slots, rows, d).expected_rows(count.min(128)))
    };
    run().unwrap();
    back_to_back(&[handle], &[handle.capture(run).unwrap()])
}

/// Microseconds of one launch of each graph on its handle: the others' streams wait for the first, and it for them.
fn back_to_back(handles: &[&Handle], graphs: &[CapturedGraph]) -> f64 {
    let (first, others) = (handles[0], &handles[1..]);
    let mut times: Vec<f64> = (0..7)
        .map(|turn| {
            let launches = if turn == 0 { 3 } else { 10 };
            handles.iter().for_each(|handle| handle.synchronize().unwrap());
            let start = std::time::Instant::now();
            for _ in 0..launches {
                for (handle, graph) in handles.iter().zip(graphs) {
                    handle.stream().join(first.stream()).unwrap();
                    handle.launch(graph).unwrap();
                }
                others.iter().for_each(|other| first.stream().join(other.stream()).unwrap());
            }
            first.synchronize().unwrap();
            start.elapsed().as_secs_f64() * 1e6 / launches as f64
        })
        .skip(1)
        .collect();
    times.sort_by(f64::total_cmp);
    times[times.len() / 2]
}
