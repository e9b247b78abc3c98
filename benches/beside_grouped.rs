//! Our part of `scripts/beside-grouped.py`, in which products of groups of rows (1x128 x 128x128 to BF16, as experts are) take turns with DeepGEMM's, contiguous and in slots.
//!
//! It only works when it is asked to: `cargo bench --bench beside_grouped -- --requests` obeys lines on standard input ([`obey`]). `grouped` measures alone, beside BF16.
//! `SCALED_GEMM_CONFIGS=1` adds each configuration that groups have. Elements of the first and the last group with rows are checked against the f64 bound before anything is timed.

mod common;

use common::check::Check;
use common::requests::parsed;
use common::*;
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::reference::Accumulator;
use scaled_gemm::{
    Activation, DType, DeviceBuffer, Fp8Format, GroupedGemmArgs, GroupedRows, Handle, KernelFamily, MatMut, MatRef,
    QuantMatrix, Recipe, Result, Scheme, Sm90Config, Timing,
};

const A: Scheme = Scheme::Fp8Group1x128(Fp8Format::E4M3);
const B: Scheme = Scheme::Fp8Group128x128(Fp8Format::E4M3);

fn main() {
    main_with_gpu(|handle, _| {
        head(handle, "Products of groups of rows, 1x128 x 128x128 to BF16, asked for one at a time");
        if !KernelFamily::Sm90.runs_on(handle.device().compute_capability) {
            println!("\n{} has no grouped product", handle.device());
        } else if requests::asked() {
            obey(handle);
        } else {
            println!("nothing was asked for: scripts/beside-grouped.py starts this with --requests");
        }
    });
}

/// Answers requests until there are no more, a line each; it works only between a request and its answer.
///
/// - `groups KIND N K STEP ROWS,ROWS,...`: prepares and checks a product of groups of so many rows. `contiguous` groups begin at multiples of STEP, one behind the other; those of `masked` lie in slots of STEP
///   rows. `ready SETS | HOW | WAY...`: sets of operands, how groups are multiplied as chosen, and the ways, from number 0: as chosen, and where they are asked for configurations.
/// - `time CADENCE CALLS LAUNCHES MILLISECONDS WAY,WAY...`: times ways of it in turns, graphs of so many calls, after so long a warm-up. `times MICROSECONDS...`: the median of each.
///
/// What the library refuses is `refused WHY`, and nothing is ready.
fn obey(handle: &Handle) {
    let mut product: Option<Product> = None;
    for line in requests::lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["groups", kind, n, k, step, rows] => {
                // Memory of the last one first.
                drop(product.take());
                let rows = rows.split(',').map(parsed).collect();
                match Product::new(handle, Places::new(kind, parsed(step), rows), parsed(n), parsed(k)) {
                    Ok(new) => {
                        let names: Vec<String> = new.ways.iter().map(name_of).collect();
                        println!("ready {} | {} | {}", new.sets.len(), new.chosen, names.join(" | "));
                        product = Some(new);
                    }
                    Err(error) => requests::refuse(&error.to_string()),
                }
            }
            ["time", cadence, calls, launches, milliseconds, ways] => {
                let Some(product) = &mut product else { panic!("{line}: nothing is ready") };
                let ways: Vec<usize> = ways.split(',').map(parsed).collect();
                let timing = requests::timing([cadence, calls, launches, milliseconds]);
                requests::say_times(product.time(handle, &ways, timing));
            }
            _ => panic!(
                "{line}: neither `groups KIND N K STEP ROWS,...` nor `time CADENCE CALLS LAUNCHES MILLISECONDS WAY,...`"
            ),
        }
    }
}

/// Where groups lie in A and D.
struct Places {
    masked: bool,
    step: usize,
    starts: Vec<usize>,
    rows: Vec<usize>,
    /// Of A and D.
    all: usize,
}

impl Places {
    fn new(kind: &str, step: usize, rows: Vec<usize>) -> Self {
        let masked = match kind {
            "masked" => true,
            "contiguous" => false,
            _ => panic!("{kind}: neither contiguous nor masked"),
        };
        let mut all = 0;
        let mut starts = Vec::with_capacity(rows.len());
        for rows in &rows {
            starts.push(all);
            all += if masked { step } else { rows.next_multiple_of(step) };
        }
        Self { masked, step, starts, rows, all }
    }

    fn usual(&self) -> usize {
        self.rows.iter().sum::<usize>() / self.rows.len()
    }
}

/// A configuration, or none: as chosen.
type Way = Option<Sm90Config>;

fn name_of(way: &Way) -> String {
    way.map_or("grouped".to_string(), |config| format!("grouped {config}"))
}

struct Set {
    a: QuantMatrix,
    b: QuantMatrix,
    d: CudaSlice<u8>,
}

/// Operands of one product, each way checked.
struct Product {
    places: Places,
    n: usize,
    sets: Vec<Set>,
    starts: DeviceBuffer,
    counts: DeviceBuffer,
    ways: Vec<Way>,
    /// What is launched by the first of them, in the library's words.
    chosen: String,
}

impl Product {
    fn new(handle: &Handle, places: Places, n: usize, k: usize) -> Result<Self> {
        let groups = places.rows.len();
        let x = random(handle, 1, places.all * k, DType::Bf16);
        let w = random(handle, 2, groups * n * k, DType::Bf16);
        let quantized = |of: &CudaSlice<u8>, start: usize, rows: usize, scheme| {
            let part = MatRef::new(of.slice(2 * start * k..), DType::Bf16, rows, k)?;
            handle.quantize(&part, Recipe::new(scheme))
        };
        let filled = |g: &usize| places.rows[*g] > 0;
        let ends = [(0..groups).find(filled), (0..groups).rfind(filled)];
        let mut checks = Vec::new();
        for g in ends.into_iter().flatten() {
            let a = quantized(&x, places.starts[g], places.rows[g], A)?;
            let b = quantized(&w, g * n, n, B)?.to_host(handle)?;
            checks.push((g, Check::new(handle, &a, &b, Accumulator::TensorCorePromoted)));
        }
        let set = || {
            let (a, b) = (quantized(&x, 0, places.all, A)?, quantized(&w, 0, groups * n, B)?);
            Ok(Set { a, b, d: outputs(handle, 1, places.all * n * 2).remove(0) })
        };
        // What a call touches: of slots their rows.
        let bytes = groups * n * k + places.rows.iter().sum::<usize>() * (k + 2 * n);
        let sets = (0..rotation(handle, bytes)).map(|_| set()).collect::<Result<Vec<_>>>()?;
        let numbers = |of: &[usize]| handle.upload(&of.iter().map(|x| *x as i64).collect::<Vec<_>>());
        let (starts, counts) = (numbers(&places.starts)?, numbers(&places.rows)?);
        let configs = Sm90Config::ALL.into_iter().filter(|config| config.k_parts() == 1 && !config.ends_plainly());
        let asked = std::env::var("SCALED_GEMM_CONFIGS").is_ok();
        let ways = std::iter::once(None).chain(configs.filter(|_| asked).map(Some)).collect();
        let mut new = Self { places, n, sets, starts, counts, ways, chosen: String::new() };
        let explained = new.args(None, 0)?.explain(handle)?;
        new.chosen = explained.lines().nth(1).and_then(|line| line.split(',').next()).unwrap_or("").trim().to_string();
        for way in new.ways.clone() {
            handle.stream().memset_zeros(&mut new.sets[0].d).unwrap();
            handle.grouped_gemm(new.args(way, 0)?)?;
            for (g, check) in &checks {
                let (start, rows) = (new.places.starts[*g], new.places.rows[*g]);
                let part = new.sets[0].d.slice(start * n * 2..(start + rows) * n * 2);
                let part = handle.stream().clone_dtod(&part).unwrap();
                check.assert(handle, &part, DType::Bf16, Activation::None, &format!("group {g}, {}", name_of(&way)));
            }
        }
        Ok(new)
    }

    fn args(&mut self, way: Way, set: usize) -> Result<GroupedGemmArgs<'_>> {
        let Self { places, n, sets, starts, counts, .. } = self;
        let counts = counts.view();
        let rows = match places.masked {
            true => GroupedRows::Masked { slot_rows: places.step, counts },
            false => GroupedRows::Contiguous { starts: starts.view(), counts },
        };
        let Set { a, b, d } = &mut sets[set];
        let d = MatMut::new(d, DType::Bf16, places.all, *n)?;
        let args = GroupedGemmArgs::new(&*a, &*b, places.rows.len(), rows, d).expected_rows(places.usual());
        Ok(match way {
            Some(config) => args.config(config),
            None => args,
        })
    }

    /// Median microseconds of these ways, in turns.
    fn time(&mut self, handle: &Handle, ways: &[usize], timing: Timing) -> Vec<f64> {
        let sets = self.sets.len();
        let call = |who: usize, call: usize| {
            let way = self.ways[ways[who]];
            handle.grouped_gemm(self.args(way, call % sets)?)
        };
        let times = borrowing(timing).over(sets).in_turns(handle, ways.len(), call).unwrap();
        times.iter().map(|times| times.median()).collect()
    }
}
