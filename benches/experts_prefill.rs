//! The experts of a layer at prefill: BF16 rows with quantized weights, in one launch by groups that the device knows, against one product an expert, whose rows the
//! host must know; and quantized rows in slots, one product a slot, on one stream and on several.
//!
//! `cargo bench --bench experts_prefill`; the runner that `scripts/bundle.sh` packs on a machine without a toolchain. Eight experts of 4096 x 7168, each with as many rows; what
//! is timed is checked by `gpu_small_m_groups` and `gpu_experts`. `SCALED_GEMM_SHAPES=64,1024` takes these rows alone, `slots` the slots.

mod common;

use common::*;
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::{
    DType, DeviceBuffer, Formulation, Fp8Format, GemmArgs, GemmDesc, GroupedGemmArgs, GroupedRows, Handle,
    KernelFamily, MatMut, MatRef, Operand, PlanOptions, QuantMatrix, Recipe, Scheme, Timing, TuneTable,
};

const EXPERTS: usize = 8;
const N: usize = 4096;
const K: usize = 7168;
const ROWS: [usize; 6] = [32, 64, 96, 128, 256, 1024];
const WEIGHTS: [Scheme; 3] = [Scheme::Nvfp4Row, Scheme::Mxfp4, Scheme::Fp8Group128x128(Fp8Format::E4M3)];
/// Of slots, by cuBLASLt: as on a GPU that has no launch for all of them.
const SLOTS: [(Scheme, Formulation); 3] = [
    (Scheme::Fp8Tensor(Fp8Format::E4M3), Formulation::Native),
    (Scheme::Fp8Row(Fp8Format::E4M3), Formulation::Native),
    (Scheme::Nvfp4, Formulation::DequantizedBf16),
];
const STREAMS: [usize; 4] = [1, 2, 4, 8];
/// Usual rows that are told, of which each has kernels of its own.
const USUAL: [usize; 3] = [16, 32, 97];

/// What `SCALED_GEMM_SHAPES` asks for; `None`: all.
fn asked() -> Option<String> {
    std::env::var("SCALED_GEMM_SHAPES").ok().filter(|list| !list.is_empty())
}

fn takes(part: &str) -> bool {
    asked().is_none_or(|list| list.split(',').any(|word| word == part))
}

fn rows() -> Vec<usize> {
    let words = |list: String| -> Vec<usize> {
        list.split(',').filter(|word| *word != "slots").map(|m| m.parse().expect("rows, or slots")).collect()
    };
    asked().map_or(ROWS.to_vec(), words)
}

fn main() {
    main_with_gpu(|handle, watch| {
        head(handle, "Experts at prefill");
        if !KernelFamily::SmallMGroups.runs_on(handle.device().compute_capability) {
            println!("\n{} has no such product", handle.device());
            return;
        }
        handle.load_kernels(&[KernelFamily::SmallMGroups]).unwrap();
        for scheme in WEIGHTS.into_iter().filter(|_| !rows().is_empty()) {
            weight_only(handle, scheme);
        }
        let start = std::time::Instant::now();
        if !takes("slots") {
            return;
        }
        println!(
            "\n## Slots: one product each, on 1 to 8 streams of one call, and one launch of all, us of all (in turns)\n"
        );
        println!(
            "| pair, formulation | slots, rows, n, k | waves of a product | streams by rule | 1 | 2 | 4 | 8 | one launch, all rows | 16 rows each |"
        );
        println!("|---|---|---|---|---|---|---|---|---|---|");
        let source = random(handle, 1, 64 * N * K, DType::Bf16);
        for way in SLOTS {
            for shape in [[8, 128, N, K], [64, 128, N, K], [8, 256, N, K], [8, 1024, N, K], [64, 128, 2048, 2048]] {
                match slots(handle, &source, way, shape) {
                    Some(row) => println!("{row}"),
                    None => {
                        println!("| {}, {} | {} | not offered |", way.0, way.1, shape.map(|x| x.to_string()).join(", "))
                    }
                }
            }
        }
        println!("\n{}", watch.since(start));
    });
}

/// One launch of each kernel, and a product for each expert.
fn weight_only(handle: &Handle, scheme: Scheme) {
    println!("\n## BF16 x {scheme}, {EXPERTS} experts of {N} x {K}\n");
    println!(
        "| rows each | one by one | {} |",
        USUAL.map(|rows| format!("one launch, of {rows} usual rows")).join(" | ")
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
        let times = timing.in_turns(handle, alone + USUAL.len(), |who, _| match who.checked_sub(alone) {
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
                handle.grouped_gemm(args.expected_rows(USUAL[who]))
            }
        });
        let times = times.unwrap();
        let launches = times[alone..].iter().map(|time| time.to_string()).collect::<Vec<_>>();
        let alone = plan.map_or("-".to_string(), |plan| format!("{} ({})", times[0], plan.formulation()));
        println!("| {m} | {alone} | {} |", launches.join(" | "));
    }
}

/// Numbers from the first on, quantized.
fn matrix(handle: &Handle, source: &CudaSlice<u8>, scheme: Scheme, [rows, k]: [usize; 2]) -> QuantMatrix {
    let x = MatRef::new(source, DType::Bf16, rows, k).unwrap();
    handle.quantize(&x, Recipe::new(scheme)).unwrap()
}

fn of_slots<'a>(
    a: &'a QuantMatrix,
    b: &'a QuantMatrix,
    [slots, m, n, _]: [usize; 4],
    counts: &'a DeviceBuffer,
    d: &'a mut DeviceBuffer,
) -> GroupedGemmArgs<'a> {
    let rows = GroupedRows::Masked { slot_rows: m, counts: counts.view() };
    GroupedGemmArgs::new(a, b, slots, rows, MatMut::new(d, DType::Bf16, slots * m, n).unwrap())
}

/// Slots as one product each, on more and more streams, and in one launch of all of them, in turns: a row of the table. `None`: no such product here.
fn slots(
    handle: &Handle,
    source: &CudaSlice<u8>,
    (scheme, formulation): (Scheme, Formulation),
    shape: [usize; 4],
) -> Option<String> {
    let [slots, m, n, k] = shape;
    let desc = GemmDesc::new(m, n, k, scheme, scheme, DType::Bf16);
    let plan = handle.plan_with(&desc, &PlanOptions::default().with_formulation(formulation)).ok()?;
    let mut table = TuneTable::default();
    table.insert(plan.record()?);
    handle.set_tuning(table);
    let (a, b) = (matrix(handle, source, scheme, [slots * m, k]), matrix(handle, source, scheme, [slots * n, k]));
    let mut d = handle.alloc(slots * m * n * 2).unwrap();
    let [all, few] = [m, 16].map(|count| handle.upload(&vec![count as i64; slots]).unwrap());
    let said = of_slots(&a, &b, shape, &all, &mut d).product_a_slot().explain(handle).unwrap();
    let by_rule = said.lines().find_map(|line| line.trim().strip_prefix("streams: ")).unwrap();
    let streams = by_rule.split(':').next().unwrap().to_string();
    let ways = STREAMS.len() + 2;
    let timing = Timing::PAUSES.with_calls(1).with_launches(11);
    let times = timing.in_turns(handle, ways, |who, _| {
        handle.grouped_gemm(match STREAMS.get(who) {
            Some(streams) => of_slots(&a, &b, shape, &all, &mut d).product_a_slot().streams(*streams),
            None if who == STREAMS.len() => of_slots(&a, &b, shape, &all, &mut d).expected_rows(m.min(128)),
            None => of_slots(&a, &b, shape, &few, &mut d).expected_rows(16),
        })
    });
    let times = times.unwrap().iter().map(|time| time.to_string()).collect::<Vec<_>>();
    handle.set_tuning(TuneTable::default());
    let shape = shape.map(|x| x.to_string()).join(", ");
    let waves = said.lines().find_map(|line| line.split(", ").find(|part| part.contains(" waves"))).unwrap_or("-");
    let waves = waves.split(" waves").next().unwrap_or("-");
    Some(format!("| {scheme}, {formulation} | {shape} | {waves} | {streams} | {} |", times.join(" | ")))
}
