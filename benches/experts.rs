//! The experts of a layer at decode: BF16 rows with quantized weights, in one launch, against one product an expert; both matrices of a gated MLP side by
//! side against their products; and FP8 rows with FP8 weights by `sm90`, beside them.
//!
//! `cargo bench --bench experts`; the runner that `scripts/bundle.sh` packs on a machine without a toolchain. The layer is DeepSeek-V3's: 256 experts,
//! 2 x 2048 x 7168 and 7168 x 2048, of which each token has eight, chosen at random. Which they are changes from call to call, so that weights are cold.
//! `SCALED_GEMM_SHAPES=1,16` takes these batches alone. Bytes are those of the experts that have rows. What is timed is checked by `gpu_small_m_groups`.

mod common;

use common::*;
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::reference::Noise;
use scaled_gemm::{
    Cadence, ClockWatch, DType, DeviceBuffer, Fp8Format, FusedGemmArgs, GemmArgs, GemmDesc, GemmPlan, GroupedGemmArgs,
    GroupedRows, Handle, KernelFamily, MatMut, MatRef, Operand, QuantMatrix, Result, Scheme, Timing,
};

const EXPERTS: usize = 256;
const EACH_TOKEN: usize = 8;
const HIDDEN: usize = 2048;
const MODEL: usize = 7168;
const BATCHES: [usize; 6] = [1, 4, 8, 16, 32, 64];
/// Choices of experts that calls take in turns.
const SETS: usize = 8;
const F: Fp8Format = Fp8Format::E4M3;
const WEIGHTS: [Scheme; 2] = [Scheme::Nvfp4Row, Scheme::Fp8Group128x128(F)];
/// Of gates: see `fused_gemm`.
const SMALL: f32 = 1.0 / 64.0;

/// Random codes, and scales of one.
fn matrix(handle: &Handle, scheme: Scheme, rows: usize, cols: usize) -> QuantMatrix {
    let mut noise = Noise::new(7);
    // No NaN of E4M3.
    let block: Vec<u8> = (0..8 << 20).map(|_| noise.bits() as u8 & 0xF7).collect();
    let source = handle.stream().clone_htod(&block).unwrap();
    let total = scheme.code_bytes(rows, cols);
    let mut codes = handle.stream().alloc_zeros::<u8>(total).unwrap();
    for start in (0..total).step_by(block.len()) {
        let len = block.len().min(total - start);
        handle.stream().memcpy_dtod(&source.slice(..len), &mut codes.slice_mut(start..start + len)).unwrap();
    }
    let scales = vec![1.0f32; scheme.scale_len(rows, cols)];
    let block_scales = vec![0x38u8; scheme.block_scale_len(rows, cols)];
    let scales = (!scales.is_empty()).then(|| handle.upload(&scales).unwrap());
    let block_scales = (!block_scales.is_empty()).then(|| handle.upload(&block_scales).unwrap());
    let codes = DeviceBuffer::from_slice(codes).unwrap();
    QuantMatrix::from_parts(scheme, rows, cols, codes, scales, block_scales).unwrap()
}

/// Where the tokens of a batch go: rows of each expert, each group at a multiple of four.
struct Routing {
    counts: Vec<usize>,
    starts: Vec<usize>,
    rows: usize,
    on_device: [DeviceBuffer; 2],
}

impl Routing {
    fn new(handle: &Handle, seed: u64, batch: usize, most: usize) -> Self {
        let mut noise = Noise::new(seed);
        let mut counts = vec![0; EXPERTS];
        for _ in 0..batch {
            let mut chosen: Vec<usize> = Vec::new();
            while chosen.len() < EACH_TOKEN {
                let expert = noise.below(EXPERTS);
                if !chosen.contains(&expert) {
                    chosen.push(expert);
                }
            }
            chosen.iter().for_each(|expert| counts[*expert] += 1);
        }
        let mut rows = 0;
        let starts: Vec<usize> = counts
            .iter()
            .map(|count: &usize| {
                rows += count.next_multiple_of(4);
                rows - count.next_multiple_of(4)
            })
            .collect();
        assert!(rows <= most, "{rows} rows");
        let numbers = |of: &[usize]| handle.upload(&of.iter().map(|x| *x as i64).collect::<Vec<_>>()).unwrap();
        Self { on_device: [numbers(&starts), numbers(&counts)], counts, starts, rows: most }
    }

    fn groups(&self) -> GroupedRows<'_> {
        let [starts, counts] = &self.on_device;
        GroupedRows::Contiguous { starts: starts.view(), counts: counts.view() }
    }

    fn active(&self) -> impl Iterator<Item = (usize, usize, usize)> {
        (0..EXPERTS).filter(|g| self.counts[*g] > 0).map(|g| (g, self.starts[g], self.counts[g]))
    }
}

/// The experts' matrices, together and one by one; plans by the rows of an expert.
struct Experts {
    scheme: Scheme,
    /// Rows of B of an expert, and columns.
    shape: [usize; 2],
    all: QuantMatrix,
    each: Vec<QuantMatrix>,
    plans: Vec<Option<GemmPlan>>,
}

impl Experts {
    fn new(handle: &Handle, scheme: Scheme, [n, k]: [usize; 2]) -> Self {
        let all = matrix(handle, scheme, EXPERTS * n, k);
        // Enough of them that none is in L2 when its turn comes.
        let each = (0..32).map(|_| matrix(handle, scheme, n, k)).collect();
        Self { scheme, shape: [n, k], all, each, plans: Vec::new() }
    }

    fn plan(&mut self, handle: &Handle, rows: usize) {
        let [n, k] = self.shape;
        while self.plans.len() <= rows {
            self.plans.push(None);
        }
        if self.plans[rows].is_none() {
            let desc = GemmDesc::new(rows, n, k, Operand::Plain(DType::Bf16), self.scheme, DType::Bf16);
            let mut plan = handle.plan(&desc).unwrap();
            self.each.iter().for_each(|b| plan.prepare(handle, b).unwrap());
            self.plans[rows] = Some(plan);
        }
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Way {
    OneByOne,
    Grouped,
    /// Of the first half: with SwiGLU in the kernel.
    Gated,
}

impl Way {
    fn name(self) -> &'static str {
        match self {
            Self::OneByOne => "one by one",
            Self::Grouped => "one launch",
            Self::Gated => "one launch, gated",
        }
    }

    fn call(
        self,
        handle: &Handle,
        of: &mut Experts,
        to: &Routing,
        call: usize,
        x: &CudaSlice<u8>,
        d: &mut CudaSlice<u8>,
    ) -> Result<()> {
        let [n, k] = of.shape;
        match self {
            Self::OneByOne => to.active().enumerate().try_for_each(|(i, (_, start, count))| {
                let x = MatRef::new(x.slice(start * k * 2..), DType::Bf16, count, k)?;
                let mut part = d.slice_mut(start * n * 2..);
                let d = MatMut::new(&mut part, DType::Bf16, count, n)?;
                let b = &of.each[(call * 5 + i) % of.each.len()];
                let plan = of.plans[count].as_mut().expect("planned");
                plan.execute(handle, GemmArgs::weight_only(x, b, d))
            }),
            Self::Grouped => {
                let x = MatRef::new(x, DType::Bf16, to.rows, k)?;
                let d = MatMut::new(d, DType::Bf16, to.rows, n)?;
                handle.grouped_gemm(
                    GroupedGemmArgs::weight_only(x, &of.all, EXPERTS, to.groups(), d).expected_rows(usual(to)),
                )
            }
            Self::Gated => {
                let x = MatRef::new(x, DType::Bf16, to.rows, k)?;
                let d = MatMut::new(d, DType::Bf16, to.rows, n / 2)?;
                let args = FusedGemmArgs::swiglu_weight_only(x, &of.all, d).alpha(SMALL);
                handle.fused_gemm(args.groups(EXPERTS, to.groups()).expected_rows(usual(to)))
            }
        }
    }
}

/// The most rows of an expert.
fn usual(to: &Routing) -> usize {
    to.counts.iter().copied().max().unwrap_or(1)
}

fn batches() -> Vec<usize> {
    match std::env::var("SCALED_GEMM_SHAPES") {
        Ok(list) => list.split(',').map(|m| m.parse().expect("a batch")).collect(),
        Err(_) => BATCHES.to_vec(),
    }
}

fn main() {
    main_with_gpu(|handle, watch| {
        head(handle, "Experts at decode");
        if !KernelFamily::SmallMGroups.runs_on(handle.device().compute_capability) {
            println!("\n{} has no such product", handle.device());
            return;
        }
        handle.load_kernels(&[KernelFamily::SmallM, KernelFamily::SmallMGroups, KernelFamily::Sm90]).unwrap();
        let copy = 256 << 20;
        let us = copy_time_at(handle, Cadence::Pauses, copy);
        let tbs = 2.0 * copy as f64 / us / 1e6;
        println!("\ncopy of {copy} bytes: {us:.1} us, {tbs:.2} TB/s");
        for scheme in WEIGHTS {
            for (what, shape) in [("gate and up", [2 * HIDDEN, MODEL]), ("down", [MODEL, HIDDEN])] {
                measure(handle, watch, scheme, what, shape, tbs);
            }
        }
        for (what, shape) in [("gate and up", [2 * HIDDEN, MODEL]), ("down", [MODEL, HIDDEN])] {
            measure_fp8(handle, what, shape);
        }
        measure_whole(handle);
    });
}

fn timing() -> Timing {
    borrowing(Timing::PAUSES.with_calls(SETS).with_launches(7)).over(SETS)
}

fn measure(handle: &Handle, watch: &ClockWatch, scheme: Scheme, what: &str, [n, k]: [usize; 2], copy: f64) {
    let start = std::time::Instant::now();
    println!("\n## {what}, BF16 x {scheme}, {n} x {k}, {EACH_TOKEN} of {EXPERTS} experts a token\n");
    println!("| batch | experts, most rows | way | us | TB/s of weights | of the copy |\n|---|---|---|---|---|---|");
    let mut of = Experts::new(handle, scheme, [n, k]);
    let bytes = scheme.code_bytes(n, k) + scheme.scale_len(n, k) * 4 + scheme.block_scale_len(n, k);
    let most = 64 * EACH_TOKEN * 4;
    let x = random(handle, 3, most * k, DType::Bf16);
    let mut d = handle.stream().alloc_zeros::<u8>(most * n * 2).unwrap();
    for batch in batches() {
        let rows = batch * EACH_TOKEN * 4;
        let sets: Vec<_> = (0..SETS).map(|set| Routing::new(handle, set as u64 + 11, batch, rows)).collect();
        sets.iter().flat_map(|to| to.counts.clone()).filter(|c| *c > 0).for_each(|count| of.plan(handle, count));
        let mut ways = vec![Way::OneByOne, Way::Grouped];
        ways.extend((n == 2 * HIDDEN).then_some(Way::Gated));
        let times = timing().in_turns(handle, ways.len(), |who, call| {
            ways[who].call(handle, &mut of, &sets[call % SETS], call, &x, &mut d)
        });
        let active = sets.iter().map(|to| to.active().count()).sum::<usize>() as f64 / SETS as f64;
        let largest = sets.iter().map(usual).max().unwrap_or(0);
        for (way, time) in ways.iter().zip(times.unwrap()) {
            let tbs = active * bytes as f64 / time.median() / 1e6;
            println!("| {batch} | {active:.1}, {largest} | {} | {time} | {tbs:.2} | {:.2} |", way.name(), tbs / copy);
        }
    }
    println!("\n{:.0} s; {}", start.elapsed().as_secs_f64(), watch.since(start));
}

/// FP8 rows and weights, by `sm90`: what a layer of quantized activations takes.
fn measure_fp8(handle: &Handle, what: &str, [n, k]: [usize; 2]) {
    let (a, b) = (Scheme::Fp8Group1x128(F), Scheme::Fp8Group128x128(F));
    println!("\n## {what}, {a} x {b} by sm90, one launch\n\n| batch | us | TB/s of weights |\n|---|---|---|");
    let (all, most) = (matrix(handle, b, EXPERTS * n, k), 64 * EACH_TOKEN * 4);
    let mut d = handle.stream().alloc_zeros::<u8>(most * n * 2).unwrap();
    for batch in batches() {
        let rows = batch * EACH_TOKEN * 4;
        let x = matrix(handle, a, rows, k);
        let sets: Vec<_> = (0..SETS).map(|set| Routing::new(handle, set as u64 + 11, batch, rows)).collect();
        let times = timing().time(handle, |call| {
            let to = &sets[call % SETS];
            let d = MatMut::new(&mut d, DType::Bf16, rows, n)?;
            handle.grouped_gemm(GroupedGemmArgs::new(&x, &all, EXPERTS, to.groups(), d).expected_rows(usual(to)))
        });
        let (time, active) =
            (times.unwrap(), sets.iter().map(|to| to.active().count()).sum::<usize>() as f64 / SETS as f64);
        println!("| {batch} | {time} | {:.2} |", active * (n * k) as f64 / time.median() / 1e6);
    }
}

/// One gated MLP: its two products in BF16, and SwiGLU of them in the kernel.
fn measure_whole(handle: &Handle) {
    println!(
        "\n## Both matrices of a gated MLP, BF16 rows\n\n| weights | m, n, k | both products | gated | of the products |\n|---|---|---|---|---|"
    );
    for scheme in WEIGHTS {
        for [n, k] in [[2048, 7168], [18432, 7168], [28672, 8192]] {
            let bytes = scheme.code_bytes(2 * n, k);
            let sets = rotation(handle, bytes);
            let b: Vec<_> = (0..sets).map(|_| matrix(handle, scheme, 2 * n, k)).collect();
            let x = random(handle, 5, 64 * k, DType::Bf16);
            let mut d = handle.stream().alloc_zeros::<u8>(64 * 2 * n * 2).unwrap();
            for m in [1, 8, 16, 32, 64] {
                let desc = GemmDesc::new(m, 2 * n, k, Operand::Plain(DType::Bf16), scheme, DType::Bf16);
                let mut plan = handle.plan(&desc).unwrap();
                b.iter().for_each(|b| plan.prepare(handle, b).unwrap());
                let timing = borrowing(Timing::PAUSES.with_calls(4).with_launches(9)).over(sets);
                let times = timing.in_turns(handle, 2, |who, call| {
                    let (x, b) = (MatRef::new(&x, DType::Bf16, m, k)?, &b[call % sets]);
                    match who {
                        0 => plan
                            .execute(handle, GemmArgs::weight_only(x, b, MatMut::new(&mut d, DType::Bf16, m, 2 * n)?)),
                        _ => {
                            let d = MatMut::new(&mut d, DType::Bf16, m, n)?;
                            handle.fused_gemm(FusedGemmArgs::swiglu_weight_only(x, b, d).alpha(SMALL))
                        }
                    }
                });
                let times = times.unwrap();
                let ratio = times[1].median() / times[0].median();
                println!(
                    "| {scheme} | {m}, {n}, {k} | {} ({}) | {} | {ratio:.3} |",
                    times[0],
                    plan.formulation(),
                    times[1]
                );
            }
        }
    }
}
