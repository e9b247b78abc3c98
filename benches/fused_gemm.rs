//! Products with the pass behind them in one kernel against the product and that pass: SwiGLU of two products to codes and to BF16, and codes of a product.
//!
//! `cargo bench --bench fused_gemm`; the runner that `scripts/bundle.sh` packs on a machine without a toolchain. `SCALED_GEMM_SHAPES=MxNxK,...` takes other
//! shapes: m tokens, n features of the hidden layer, k of the input. About a minute on an H200. What is timed is checked by `gpu_fused_gemm`.

mod common;

use std::time::Instant;

use common::*;
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::{
    Cadence, ClockWatch, DType, Fp8Format, Fp8Granularity, Fp8Recipe, Fp8Rule, FusedGemmArgs, GemmArgs, GemmDesc,
    GemmPlan, Handle, KernelFamily, MatMut, MatRef, QuantMatrix, Result, Scheme, Sm90Config, SwigluSource, Timing,
};

const A: Scheme = Scheme::Fp8Group1x128(Fp8Format::E4M3);
const B: Scheme = Scheme::Fp8Group128x128(Fp8Format::E4M3);
/// Hidden layers of an expert and a dense layer of DeepSeek-V3 and of a layer of Llama-3-70B.
const LAYERS: [[usize; 2]; 3] = [[2048, 7168], [18432, 7168], [28672, 8192]];
/// Alpha with SwiGLU: sums of some thousands of products of normal numbers become as large as one of them, as gates are. Larger ones than 80 go a slower way.
const SMALL: f32 = 1.0 / 64.0;
const TOKENS: [usize; 8] = [1, 8, 16, 32, 64, 256, 1024, 4096];

enum Way {
    /// Both products, stored in BF16 side by side.
    Products(Box<GemmPlan>),
    /// And SwiGLU and cast of them.
    ThenSwiglu(Box<GemmPlan>),
    Swiglu(Sm90Config),
    /// To codes, by the kernel that is chosen.
    Chosen,
    SwigluBf16,
    Codes(Sm90Config),
}

struct Memory {
    d: CudaSlice<u8>,
    hidden: QuantMatrix,
    both: QuantMatrix,
}

fn recipe() -> Fp8Recipe {
    Fp8Recipe::new(Fp8Granularity::Group1x128, Fp8Format::E4M3).with_rule(Fp8Rule::DeepSeek)
}

impl Way {
    fn name(&self) -> String {
        match self {
            Self::Products(plan) => format!("2n columns to BF16, {}", plan.formulation()),
            Self::ThenSwiglu(_) => "and SwiGLU + cast".to_string(),
            Self::Swiglu(config) => format!("SwiGLU to codes, {config}"),
            Self::Chosen => "SwiGLU to codes, as chosen".to_string(),
            Self::SwigluBf16 => "SwiGLU to BF16, as chosen".to_string(),
            Self::Codes(config) => format!("2n columns to codes, {config}"),
        }
    }

    fn call(&mut self, handle: &Handle, (a, b): (&QuantMatrix, &QuantMatrix), to: &mut Memory) -> Result<()> {
        let (m, both) = (a.rows(), b.rows());
        match self {
            Self::Products(plan) => {
                plan.execute(handle, GemmArgs::new(a, b, MatMut::new(&mut to.d, DType::Bf16, m, both)?))
            }
            Self::ThenSwiglu(plan) => {
                plan.execute(handle, GemmArgs::new(a, b, MatMut::new(&mut to.d, DType::Bf16, m, both)?).alpha(SMALL))?;
                let x = MatRef::new(&to.d, DType::Bf16, m, both)?;
                handle.quantize_source_into(SwigluSource::new(&x)?, recipe(), &mut to.hidden)
            }
            Self::Swiglu(config) => handle
                .fused_gemm(FusedGemmArgs::swiglu(a, b, &mut to.hidden).alpha(SMALL).recipe(recipe()).config(*config)),
            Self::Chosen => {
                handle.fused_gemm(FusedGemmArgs::swiglu(a, b, &mut to.hidden).alpha(SMALL).recipe(recipe()))
            }
            Self::SwigluBf16 => {
                let d = MatMut::new(&mut to.d, DType::Bf16, m, both / 2)?;
                handle.fused_gemm(FusedGemmArgs::swiglu(a, b, d).alpha(SMALL))
            }
            Self::Codes(config) => {
                handle.fused_gemm(FusedGemmArgs::quantized(a, b, &mut to.both).recipe(recipe()).config(*config))
            }
        }
    }
}

fn shapes_of_products() -> Vec<[usize; 3]> {
    let Ok(list) = std::env::var("SCALED_GEMM_SHAPES") else {
        return LAYERS.iter().flat_map(|[n, k]| TOKENS.map(|m| [m, *n, *k])).collect();
    };
    let shape = |text: &str| {
        let numbers: Vec<usize> = text.split('x').map(|n| n.parse().expect("a number")).collect();
        numbers.try_into().expect("MxNxK")
    };
    list.split(',').map(shape).collect()
}

fn main() {
    main_with_gpu(|handle, watch| {
        head(handle, "Products with the pass behind them, E4M3 1x128 x 128x128");
        if !KernelFamily::Sm90.runs_on(handle.device().compute_capability) {
            println!("\n{} has no such product", handle.device());
            return;
        }
        handle.load_kernels(&[KernelFamily::Sm90, KernelFamily::Fused, KernelFamily::SmallM]).unwrap();
        let pool = Pool::new(handle);
        for shape in shapes_of_products() {
            measure(handle, watch, &pool, shape);
        }
    });
}

fn measure(handle: &Handle, watch: &ClockWatch, pool: &Pool, [m, n, k]: [usize; 3]) {
    println!("\n## m = {m}, n = {n}, k = {k}");
    let start = Instant::now();
    let sets = rotation(handle, m * k + 2 * n * k + 4 * m * n);
    let (a, b) = (pool.tokens(handle, A, sets, (m, k)), pool.weights(handle, B, sets, (2 * n, k)));
    let mut to: Vec<_> = (0..sets)
        .map(|_| Memory {
            d: handle.stream().alloc_zeros::<u8>(m * 2 * n * 2).unwrap(),
            hidden: QuantMatrix::zeros(handle, A, m, n).unwrap(),
            both: QuantMatrix::zeros(handle, A, m, 2 * n).unwrap(),
        })
        .collect();
    let plan = || {
        let mut plan = handle.plan(&GemmDesc::new(m, 2 * n, k, A, B, DType::Bf16)).unwrap();
        b.iter().for_each(|b| plan.prepare(handle, b).unwrap());
        Box::new(plan)
    };
    let mut ways = vec![Way::Products(plan()), Way::ThenSwiglu(plan()), Way::Chosen, Way::SwigluBf16];
    ways.extend([Sm90Config::Tile128x128, Sm90Config::Tile64x128].map(Way::Swiglu));
    ways.extend([Sm90Config::Tile256x128, Sm90Config::Tile128x128, Sm90Config::Tile64x128].map(Way::Codes));
    let chosen = FusedGemmArgs::swiglu(&a[0], &b[0], &mut to[0].hidden).explain(handle).unwrap();
    println!(
        "{}\n\n| cadence | way | us | of the products |\n|---|---|---|---|",
        chosen.lines().nth(1).unwrap_or("").trim()
    );
    for cadence in Cadence::ALL {
        let timing = match cadence {
            Cadence::Sustained => Timing::SUSTAINED.with_calls(12).with_launches(7),
            Cadence::Pauses => Timing::PAUSES.with_calls(2).with_launches(9),
        };
        let times = borrowing(timing).over(sets).in_turns(handle, ways.len(), |who, call| {
            let set = call % sets;
            ways[who].call(handle, (&a[set], &b[set]), &mut to[set])
        });
        let times = times.unwrap();
        for (way, time) in ways.iter().zip(&times) {
            println!("| {cadence} | {} | {time} | {:.3} |", way.name(), time.median() / times[0].median());
        }
    }
    println!("\n{:.0} s; {}", start.elapsed().as_secs_f64(), watch.since(start));
}
