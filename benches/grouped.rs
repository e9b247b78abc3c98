//! Products of groups of rows, each with a matrix of its own, as experts are: 1x128 x 128x128 to BF16 by one launch of our kernels for sm_90, in every
//! configuration, against one product a group, and against one BF16 product a group; likewise 1x128 x 1x128, rows in E5M2, as gradients are, and whole matrices with a scale each, of these also by cuBLASLt's own product of groups where it has one. Then gradients of these matrices, 1x128 scales on both sides, of rows, and of whole matrices, added to
//! FP32: one launch, in two configurations and as chosen, against one product a group; of dY in E4M3 and E5M2.
//!
//! `cargo bench --bench grouped`; the runner that `scripts/bundle.sh` packs on a machine without a toolchain. Elements of the last group of every
//! way are checked against the f64 bound. The target is 1.4 times BF16. `SCALED_GEMM_SHAPES=8x1024,64x16` takes these groups x rows alone,
//! `vectors-8x1024`, `e5m2-8x1024` and `tensor-8x1024` those of the other pairs, `dw-8x1024`, `dw-e5m2-8x1024`, `dw-tensor-8x1024` (dY in E5M2) and `dw-row-8x1024` these of gradients.

mod common;

use common::check::Check;
use common::*;
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::reference::Accumulator;
use scaled_gemm::{
    Activation, Bf16Gemm, Cadence, ClockWatch, DType, DeviceBuffer, Formulation, Fp8Format, GemmArgs, GemmDesc,
    GemmPlan, GroupedGemmArgs, GroupedGemmDesc, GroupedGemmPlan, GroupedRows, GroupedWeightGradient, Handle,
    HostQuantMatrix, KernelFamily, MatMut, MatRef, PlanOptions, QuantMatrix, QuantizeTo, Recipe, Result, Scheme,
    Sm90Config, Timing,
};

const A: Scheme = Scheme::Fp8Group1x128(Fp8Format::E4M3);
const B: Scheme = Scheme::Fp8Group128x128(Fp8Format::E4M3);
const WIDE: Scheme = Scheme::Fp8Group1x128(Fp8Format::E5M2);
const TENSOR: Scheme = Scheme::Fp8Tensor(Fp8Format::E4M3);
/// What is multiplied, with the beginning of its name.
const PAIRS: [(&str, [Scheme; 2]); 4] =
    [("", [A, B]), ("vectors-", [A, A]), ("e5m2-", [WIDE, B]), ("tensor-", [TENSOR, TENSOR])];
/// Those that have kernels for all of them.
const COMMON: [Sm90Config; 4] =
    [Sm90Config::Tile256x128, Sm90Config::Tile128x128, Sm90Config::Tile64x128, Sm90Config::Tile64x64Two];
const N: usize = 4096;
const K: usize = 7168;
const TARGET: f64 = 1.4;

/// Groups, rows of each, and rows from one to the next.
const CASES: [[usize; 3]; 3] = [[8, 1024, 1024], [4, 8192, 8192], [64, 16, 128]];

/// Groups, and rows of a slot of each, of gradients.
const GRADIENTS: [[usize; 2]; 3] = [[8, 1024], [64, 128], [4, 8192]];

/// What is multiplied, together and group by group.
struct Operands {
    groups: usize,
    rows: usize,
    step: usize,
    x: CudaSlice<u8>,
    w: CudaSlice<u8>,
    a: QuantMatrix,
    b: QuantMatrix,
    alone: Vec<(QuantMatrix, QuantMatrix)>,
    starts: DeviceBuffer,
    counts: DeviceBuffer,
}

impl Operands {
    fn new(handle: &Handle, [groups, rows, step]: [usize; 3], pair: [Scheme; 2]) -> Self {
        let x = random(handle, 1, groups * step * K, DType::Bf16);
        let w = random(handle, 2, groups * N * K, DType::Bf16);
        let quantized = |x: &MatRef<'_>, scheme| handle.quantize(x, Recipe::new(scheme)).unwrap();
        let (a, b) =
            (quantized(&rows_of(&x, 0, groups * step), pair[0]), quantized(&rows_of(&w, 0, groups * N), pair[1]));
        // A scale of the whole is that of its parts.
        let whole = [&a, &b].map(|all| (all.scheme() == TENSOR).then(|| all.to_host(handle).unwrap()));
        let part = |side: usize, x: &CudaSlice<u8>, start: usize, rows: usize| match &whole[side] {
            Some(all) => {
                let codes = all.logical_codes()[start * K..(start + rows) * K].to_vec();
                let own = HostQuantMatrix::from_logical(TENSOR, rows, K, codes, &all.logical_scales()).unwrap();
                QuantMatrix::from_host(handle, &own).unwrap()
            }
            None => quantized(&rows_of(x, start, rows), pair[side]),
        };
        let one = |g: usize| (part(0, &x, g * step, rows), part(1, &w, g * N, N));
        let starts: Vec<i64> = (0..groups).map(|g| (g * step) as i64).collect();
        Self {
            alone: (0..groups).map(one).collect(),
            a,
            b,
            starts: handle.upload(&starts).unwrap(),
            counts: handle.upload(&vec![rows as i64; groups]).unwrap(),
            groups,
            rows,
            step,
            x,
            w,
        }
    }

    /// Where D of a group begins, in bytes.
    fn place(&self, g: usize) -> usize {
        g * self.step * N * 2
    }
}

fn rows_of(x: &CudaSlice<u8>, start: usize, rows: usize) -> MatRef<'_> {
    MatRef::new(x.slice(2 * start * K..), DType::Bf16, rows, K).unwrap()
}

/// How groups are multiplied.
enum Way {
    Bf16(Box<Bf16Gemm>),
    OneByOne(Box<GemmPlan>),
    Contiguous(Option<Sm90Config>),
    Masked,
    /// cuBLASLt's own.
    Library(Box<GroupedGemmPlan>),
}

impl Way {
    fn name(&self) -> String {
        match self {
            Self::Bf16(_) => "BF16, one by one".to_string(),
            Self::OneByOne(plan) => format!("one by one, {}", plan.formulation()),
            Self::Contiguous(Some(config)) => format!("grouped, {config}"),
            Self::Contiguous(None) => "grouped, as chosen".to_string(),
            Self::Masked => "grouped, in slots, as chosen".to_string(),
            Self::Library(_) => "cuBLASLt's own".to_string(),
        }
    }

    fn call(&mut self, handle: &Handle, of: &Operands, d: &mut CudaSlice<u8>) -> Result<()> {
        let config = match self {
            Self::Bf16(product) => {
                return (0..of.groups).try_for_each(|g| {
                    let mut part = d.slice_mut(of.place(g)..);
                    let mut d = MatMut::new(&mut part, DType::Bf16, of.rows, N)?;
                    let (x, w) = (rows_of(&of.x, g * of.step, of.rows), rows_of(&of.w, g * N, N));
                    product.execute(handle, &x, &w, &mut d)
                });
            }
            Self::OneByOne(plan) => {
                return of.alone.iter().enumerate().try_for_each(|(g, (a, b))| {
                    let mut part = d.slice_mut(of.place(g)..);
                    let d = MatMut::new(&mut part, DType::Bf16, of.rows, N)?;
                    plan.execute(handle, GemmArgs::new(a, b, d))
                });
            }
            Self::Contiguous(config) => *config,
            Self::Masked | Self::Library(_) => None,
        };
        let counts = of.counts.view();
        let rows = match self {
            Self::Masked => GroupedRows::Masked { slot_rows: of.step, counts },
            _ => GroupedRows::Contiguous { starts: of.starts.view(), counts },
        };
        let d = MatMut::new(d, DType::Bf16, of.groups * of.step, N)?;
        let args = GroupedGemmArgs::new(&of.a, &of.b, of.groups, rows, d).expected_rows(of.rows);
        if let Self::Library(plan) = self {
            return plan.execute(handle, args);
        }
        handle.grouped_gemm(match config {
            Some(config) => args.config(config),
            None => args,
        })
    }
}

fn main() {
    main_with_gpu(|handle, watch| {
        head(handle, "Products of groups of rows, 1x128 x 128x128 and 1x128 x 1x128 to BF16");
        if !KernelFamily::Sm90.runs_on(handle.device().compute_capability) {
            println!("\n{} has no grouped product", handle.device());
            return;
        }
        let wanted = std::env::var("SCALED_GEMM_SHAPES").ok();
        let is_wanted = |name: String| wanted.as_ref().is_none_or(|list| list.split(',').any(|wanted| wanted == name));
        for (name, pair) in PAIRS {
            for case in CASES.into_iter().filter(|[groups, rows, _]| is_wanted(format!("{name}{groups}x{rows}"))) {
                measure(handle, watch, case, pair);
            }
        }
        let tensor = Scheme::Fp8Tensor;
        let kinds = [
            ("dw-", [A, A]),
            ("dw-e5m2-", [WIDE, A]),
            ("dw-tensor-", [tensor(Fp8Format::E5M2), tensor(Fp8Format::E4M3)]),
            ("dw-row-", [Scheme::Fp8Row(Fp8Format::E4M3); 2]),
        ];
        for (name, schemes) in kinds {
            for case in GRADIENTS.into_iter().filter(|[groups, rows]| is_wanted(format!("{name}{groups}x{rows}"))) {
                measure_gradients(handle, watch, case, schemes);
            }
        }
    });
}

fn measure(handle: &Handle, watch: &ClockWatch, case: [usize; 3], pair: [Scheme; 2]) {
    let of = Operands::new(handle, case, pair);
    let Operands { groups, rows, step, .. } = of;
    let [a, b] = pair;
    println!("\n## {a} x {b}: {groups} groups of {rows} rows, {step} from one to the next, n = {N}, k = {K}");
    let mut ways = vec![Way::Bf16(Box::new(Bf16Gemm::new(handle, rows, N, K, 8).unwrap()))];
    let desc = GemmDesc::new(rows, N, K, a, b, DType::Bf16);
    for options in [PlanOptions::default(), PlanOptions::default().with_formulation(Formulation::Sm90)] {
        let mut plan = handle.plan_with(&desc, &options).unwrap();
        of.alone.iter().for_each(|(_, b)| plan.prepare(handle, b).unwrap());
        ways.push(Way::OneByOne(Box::new(plan)));
    }
    let is_first = pair == PAIRS[0].1;
    let of_groups = Sm90Config::ALL.into_iter().filter(|config| config.k_parts() == 1 && !config.ends_plainly());
    let of_groups = of_groups.filter(|config| is_first || a != TENSOR && COMMON.contains(config));
    ways.extend(of_groups.map(|config| Way::Contiguous(Some(config))));
    ways.extend([Way::Contiguous(None), Way::Masked]);
    if a == TENSOR {
        let desc = GroupedGemmDesc::contiguous(groups, groups * step, N, K, a, b, DType::Bf16).with_expected_rows(rows);
        match handle.plan_grouped(&desc.with_by_cublaslt(true)) {
            Ok(plan) => ways.push(Way::Library(Box::new(plan))),
            Err(error) => println!("\nWithout cuBLASLt's own: {error}"),
        }
    }

    let mut d = handle.stream().alloc_zeros::<u8>(groups * step * N * 2).unwrap();
    let (a, b) = &of.alone[groups - 1];
    let check = Check::new(handle, a, &b.to_host(handle).unwrap(), Accumulator::TensorCorePromoted);
    // BF16 is another product: of values before they were quantized.
    for way in ways.iter_mut().skip(1) {
        handle.stream().memset_zeros(&mut d).unwrap();
        way.call(handle, &of, &mut d).unwrap();
        let last = d.slice(of.place(groups - 1)..of.place(groups - 1) + rows * N * 2);
        let last = handle.stream().clone_dtod(&last).unwrap();
        check.assert(handle, &last, DType::Bf16, Activation::None, &way.name());
    }
    println!("| cadence | way | us | x | TFLOP/s | TB/s of B |\n|---|---|---|---|---|---|");
    for cadence in Cadence::ALL {
        let start = std::time::Instant::now();
        let timing = borrowing(Timing::of(cadence));
        if let Some(Way::Bf16(product)) = ways.first_mut() {
            let short = timing.with_calls(4).with_launches(3);
            let (x, w) = (rows_of(&of.x, 0, rows), rows_of(&of.w, 0, N));
            let run = |product: &mut Bf16Gemm, _: usize| {
                product.execute(handle, &x, &w, &mut MatMut::new(&mut d, DType::Bf16, rows, N)?)
            };
            product.choose_fastest(handle, &short, run).unwrap();
        }
        let times = timing.in_turns(handle, ways.len(), |who, _| ways[who].call(handle, &of, &mut d)).unwrap();
        let bf16 = times[0].median();
        for (way, time) in ways.iter().zip(&times) {
            let us = time.median();
            let (flop, bytes) = (2 * groups * rows * N * K, groups * N * K);
            let (tflops, tbs) = (flop as f64 / us / 1e6, bytes as f64 / us / 1e6);
            println!("| {cadence} | {} | {time} | {:.2} | {tflops:.0} | {tbs:.2} |", way.name(), bf16 / us);
            if matches!(way, Way::Contiguous(None)) && bf16 / us < TARGET {
                println!("| | below the target of {TARGET} | | | | |");
            }
        }
        println!("{}", watch.since(start));
    }
}

/// The transposes of dY and X, together and group by group: N and K are what features a layer has.
struct Transposes {
    whole: [QuantMatrix; 2],
    alone: [Vec<QuantMatrix>; 2],
}

impl Transposes {
    fn new(handle: &Handle, [groups, slot]: [usize; 2], schemes: [Scheme; 2]) -> Self {
        let of = |seed, cols: usize, scheme: Scheme| {
            let x = random(handle, seed, groups * slot * cols, DType::Bf16);
            let x = MatRef::new(&x, DType::Bf16, groups * slot, cols).unwrap();
            let mut whole = QuantMatrix::zeros(handle, scheme, cols, groups * slot).unwrap();
            handle.quantize_into(&x, Recipe::new(scheme), QuantizeTo::Transposed(&mut whole)).unwrap();
            let mut alone: Vec<_> =
                (0..groups).map(|_| QuantMatrix::zeros(handle, scheme, cols, slot).unwrap()).collect();
            handle.quantize_slots_transposed_into(&x, Recipe::new(scheme), &mut alone).unwrap();
            (whole, alone)
        };
        let ((dy, dy_alone), (x, x_alone)) = (of(3, N, schemes[0]), of(4, K, schemes[1]));
        Self { whole: [dy, x], alone: [dy_alone, x_alone] }
    }
}

/// These columns of a transpose, with their scales.
fn columns_of(handle: &Handle, of: &QuantMatrix, start: usize, count: usize) -> QuantMatrix {
    let host = of.to_host(handle).unwrap();
    let (rows, cols) = (host.rows(), host.cols());
    let codes = host.logical_codes().chunks(cols).flat_map(|row| &row[start..start + count]).copied().collect();
    // Those of blocks are cut as columns are; others are of rows or the matrix.
    let scales: Vec<f32> = match host.scheme() {
        Scheme::Fp8Group1x128(_) => {
            let blocks = start / 128..(start + count) / 128;
            host.logical_scales().chunks(cols / 128).flat_map(|row| &row[blocks.clone()]).copied().collect()
        }
        _ => host.logical_scales(),
    };
    let part = HostQuantMatrix::from_logical(host.scheme(), rows, count, codes, &scales).unwrap();
    QuantMatrix::from_host(handle, &part).unwrap()
}

/// How gradients are computed.
enum GradientWay {
    OneByOne,
    Whole(Option<Sm90Config>),
}

impl GradientWay {
    const ALL: [Self; 4] = [
        Self::OneByOne,
        Self::Whole(None),
        Self::Whole(Some(Sm90Config::Tile256x128)),
        Self::Whole(Some(Sm90Config::Tile128x128)),
    ];

    fn name(&self) -> String {
        match self {
            Self::OneByOne => "one by one".to_string(),
            Self::Whole(Some(config)) => format!("one launch, {config}"),
            Self::Whole(None) => "one launch, as chosen".to_string(),
        }
    }

    fn call(
        &self,
        handle: &Handle,
        of: &Transposes,
        slot_rows: usize,
        counts: &DeviceBuffer,
        dw: &mut CudaSlice<u8>,
    ) -> Result<()> {
        let groups = of.alone[0].len();
        let dw = MatMut::new(dw, DType::F32, groups * N, K)?;
        let gradients = match self {
            Self::OneByOne => GroupedWeightGradient::new(&of.alone[0], &of.alone[1], dw),
            Self::Whole(config) => {
                let rows = GroupedRows::Masked { slot_rows, counts: counts.view() };
                let gradients = GroupedWeightGradient::whole(&of.whole[0], &of.whole[1], groups, rows, dw);
                match config {
                    Some(config) => gradients.config(*config),
                    None => gradients,
                }
            }
        };
        handle.grouped_weight_gradient(gradients)
    }
}

fn measure_gradients(handle: &Handle, watch: &ClockWatch, [groups, slot]: [usize; 2], schemes: [Scheme; 2]) {
    let of = Transposes::new(handle, [groups, slot], schemes);
    let [dy, x] = schemes;
    let mut dw = handle.stream().alloc_zeros::<u8>(groups * N * K * 4).unwrap();
    for filled in [groups, groups / 2] {
        println!(
            "\n## {dy} x {x}: gradients of {groups} matrices of {N} x {K}, slots of {slot} rows, {filled} of them full, the others empty"
        );
        // Every second one empty, or none.
        let counts: Vec<i64> =
            (0..groups).map(|g| if filled == groups || g % 2 == 1 { slot as i64 } else { 0 }).collect();
        let counts = handle.upload(&counts).unwrap();
        let last = groups - 1;
        // Of rows and matrices all groups share a scale in one launch, and have their own one by one.
        let check = |dy: &QuantMatrix, x: &QuantMatrix| {
            Check::new(handle, dy, &x.to_host(handle).unwrap(), Accumulator::TensorCorePromoted)
        };
        let alone = check(&of.alone[0][last], &of.alone[1][last]);
        let whole = of.whole.each_ref().map(|whole| columns_of(handle, whole, last * slot, slot));
        let whole = check(&whole[0], &whole[1]);
        for way in &GradientWay::ALL {
            handle.stream().memset_zeros(&mut dw).unwrap();
            way.call(handle, &of, slot, &counts, &mut dw).unwrap();
            let own = handle.stream().clone_dtod(&dw.slice(last * N * K * 4..groups * N * K * 4)).unwrap();
            let check = if matches!(way, GradientWay::OneByOne) { &alone } else { &whole };
            check.assert(handle, &own, DType::F32, Activation::None, &way.name());
        }
        println!("| cadence | way | us | x | TFLOP/s | TB/s of dW, read and written |\n|---|---|---|---|---|---|");
        for cadence in Cadence::ALL {
            let start = std::time::Instant::now();
            let timing = borrowing(Timing::of(cadence));
            let run = |who: usize, _: usize| GradientWay::ALL[who].call(handle, &of, slot, &counts, &mut dw);
            let times = timing.in_turns(handle, GradientWay::ALL.len(), run).unwrap();
            for (way, time) in GradientWay::ALL.iter().zip(&times) {
                let us = time.median();
                let (flop, bytes) = (2 * filled * slot * N * K, 8 * filled * N * K);
                let (tflops, tbs) = (flop as f64 / us / 1e6, bytes as f64 / us / 1e6);
                println!(
                    "| {cadence} | {} | {time} | {:.2} | {tflops:.0} | {tbs:.2} |",
                    way.name(),
                    times[0].median() / us
                );
            }
            println!("{}", watch.since(start));
        }
    }
}
