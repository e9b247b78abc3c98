//! What the GPU benchmarks share: random device data, rotation past the L2 cache, the record's head, and the checks of what
//! was timed. How they time is [`scaled_gemm::Timing`]: one method for all of them.
#![allow(dead_code)]

pub mod check;
pub mod requests;

use std::time::Instant;

use half::bf16;
use ndarray::Array2;
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::reference::Noise;
use scaled_gemm::{
    Bf16Gemm, Cadence, ClockWatch, Clocks, DType, Handle, MatMut, MatRef, QuantMatrix, Recipe, Scheme, Times, Timing,
};

#[path = "../../tests/common/mod.rs"]
pub mod testing;
pub use testing::borrowing;

/// The shapes that `SCALED_GEMM_SHAPES=quick` takes; without it, all of [`scaled_gemm::models`].
pub const QUICK: [(usize, usize); 3] = [(4096, 7168), (7168, 2048), (24576, 1536)];

/// (n, k) to measure.
pub fn shapes() -> Vec<(usize, usize)> {
    match std::env::var("SCALED_GEMM_SHAPES") {
        Ok(value) if value == "quick" => QUICK.to_vec(),
        Ok(value) if !value.is_empty() => {
            let shape = |text: &str| text.split_once('x').and_then(|(n, k)| Some((n.parse().ok()?, k.parse().ok()?)));
            value
                .split(',')
                .map(|text| shape(text).unwrap_or_else(|| panic!("SCALED_GEMM_SHAPES={value}: {text} is no n x k")))
                .collect()
        }
        _ => scaled_gemm::models::weight_shapes().collect(),
    }
}

/// The largest product that is measured, m n k: one and a half milliseconds in BF16 on an H200.
pub const LARGEST: usize = 1 << 40;

/// Random normal numbers as `dtype`, `elements` of them: a block of four million, repeated.
pub fn random(handle: &Handle, seed: u64, elements: usize, dtype: DType) -> CudaSlice<u8> {
    let mut noise = Noise::new(seed);
    let values: Vec<f32> = (0..elements.min(4 << 20)).map(|_| noise.normal()).collect();
    let bytes = testing::bytes_of(dtype, &values);
    let total = elements * dtype.bytes();
    let mut out = handle.stream().alloc_zeros::<u8>(total).unwrap();
    let source = handle.stream().clone_htod(&bytes).unwrap();
    for start in (0..total).step_by(bytes.len()) {
        let len = bytes.len().min(total - start);
        handle.stream().memcpy_dtod(&source.slice(..len), &mut out.slice_mut(start..start + len)).unwrap();
    }
    out
}

/// Random BF16 that matrices are cut from, at different places.
pub struct Pool {
    data: CudaSlice<u8>,
    elements: usize,
}

/// Where the pool's A matrices begin; B's begin at 0.
const A_PLACE: usize = 100;

impl Pool {
    pub fn new(handle: &Handle) -> Self {
        let elements = 1 << 30;
        Self { data: random(handle, 1, elements, DType::Bf16), elements }
    }

    fn start(&self, index: usize, rows: usize, cols: usize) -> usize {
        (index * 7_340_033 * 8) % (self.elements - rows * cols)
    }

    fn matrix(&self, index: usize, rows: usize, cols: usize) -> MatRef<'_> {
        let start = self.start(index, rows, cols);
        MatRef::new(self.data.slice(2 * start..), DType::Bf16, rows, cols).unwrap()
    }

    /// A of set `set`.
    pub fn a(&self, set: usize, m: usize, k: usize) -> MatRef<'_> {
        self.matrix(A_PLACE + set, m, k)
    }

    /// B of set `set`.
    pub fn b(&self, set: usize, n: usize, k: usize) -> MatRef<'_> {
        self.matrix(set, n, k)
    }

    /// Some rows of the first A, on the host.
    pub fn rows_of_a(&self, handle: &Handle, (m, k): (usize, usize), start: usize, rows: usize) -> Array2<f32> {
        self.rows(handle, self.start(A_PLACE, m, k) + start * k, rows.min(m - start), k)
    }

    /// Some rows of the first B, on the host.
    pub fn rows_of_b(&self, handle: &Handle, (n, k): (usize, usize), start: usize, rows: usize) -> Array2<f32> {
        self.rows(handle, self.start(0, n, k) + start * k, rows.min(n - start), k)
    }

    fn rows(&self, handle: &Handle, start: usize, rows: usize, cols: usize) -> Array2<f32> {
        Array2::from_shape_vec((rows, cols), bf16_values(handle, &self.data, start, rows * cols)).unwrap()
    }

    /// A of every set, quantized.
    pub fn tokens(&self, handle: &Handle, scheme: Scheme, sets: usize, (m, k): (usize, usize)) -> Vec<QuantMatrix> {
        (0..sets).map(|set| handle.quantize(&self.a(set, m, k), Recipe::new(scheme)).unwrap()).collect()
    }

    /// B of every set, quantized.
    pub fn weights(&self, handle: &Handle, scheme: Scheme, sets: usize, (n, k): (usize, usize)) -> Vec<QuantMatrix> {
        (0..sets).map(|set| handle.quantize(&self.b(set, n, k), Recipe::new(scheme)).unwrap()).collect()
    }
}

/// Number of buffer sets to rotate over so that `bytes` a set together exceed the L2 cache three times.
pub fn rotation(handle: &Handle, bytes: usize) -> usize {
    (3 * handle.device().l2_bytes).div_ceil(bytes).clamp(2, 64)
}

/// D of every set.
pub fn outputs(handle: &Handle, sets: usize, bytes: usize) -> Vec<CudaSlice<u8>> {
    (0..sets).map(|_| handle.stream().alloc_zeros::<u8>(bytes).unwrap()).collect()
}

/// The time of one cast or copy: back to back, over `sets` sets.
pub fn time(handle: &Handle, sets: usize, enqueue: impl FnMut(usize) -> scaled_gemm::Result<()>) -> Times {
    time_at(handle, Cadence::Sustained, sets, enqueue)
}

/// The same in a cadence.
pub fn time_at(
    handle: &Handle,
    cadence: Cadence,
    sets: usize,
    mut enqueue: impl FnMut(usize) -> scaled_gemm::Result<()>,
) -> Times {
    borrowing(Timing::of(cadence)).over(sets).time(handle, |call| enqueue(call % sets)).unwrap()
}

/// Median microseconds of the copy of `bytes` bytes to as many, cold: the roof for `2 * bytes` of traffic.
pub fn copy_time(handle: &Handle, bytes: usize) -> f64 {
    copy_time_at(handle, Cadence::Sustained, bytes)
}

/// The same in a cadence.
pub fn copy_time_at(handle: &Handle, cadence: Cadence, bytes: usize) -> f64 {
    let sets = rotation(handle, 2 * bytes);
    let sources: Vec<_> = (0..sets).map(|i| random(handle, i as u64, bytes / 2, DType::Bf16)).collect();
    let mut targets = outputs(handle, sets, bytes);
    time_at(handle, cadence, sets, |set| scaled_gemm::copy(handle, &sources[set], &mut targets[set])).median()
}

/// The BF16 product of one problem over the pool's sets: the baseline.
pub struct Baseline<'a> {
    handle: &'a Handle,
    pool: &'a Pool,
    shape: [usize; 3],
    plan: Bf16Gemm,
}

impl<'a> Baseline<'a> {
    pub fn new(handle: &'a Handle, pool: &'a Pool, shape: [usize; 3]) -> Self {
        let [m, n, k] = shape;
        Self { handle, pool, shape, plan: Bf16Gemm::new(handle, m, n, k, 8).unwrap() }
    }

    /// Takes the fastest algorithm in this cadence; short graphs suffice to tell.
    pub fn choose_fastest(&mut self, timing: Timing, d: &mut [CudaSlice<u8>]) {
        let (handle, pool, shape, sets) = (self.handle, self.pool, self.shape, d.len());
        let timing = timing.with_calls(4).with_launches(3).over(sets);
        let run = |plan: &mut Bf16Gemm, call: usize| execute(handle, plan, pool, shape, call % sets, d);
        self.plan.choose_fastest(handle, &timing, run).unwrap();
    }

    pub fn execute(&mut self, set: usize, d: &mut [CudaSlice<u8>]) -> scaled_gemm::Result<()> {
        execute(self.handle, &mut self.plan, self.pool, self.shape, set, d)
    }

    /// Which of cuBLASLt's algorithms it is.
    pub fn how(&self) -> String {
        format!("number {} of {}", self.plan.chosen() + 1, self.plan.candidates())
    }
}

fn execute(
    handle: &Handle,
    plan: &mut Bf16Gemm,
    pool: &Pool,
    [m, n, k]: [usize; 3],
    set: usize,
    d: &mut [CudaSlice<u8>],
) -> scaled_gemm::Result<()> {
    let mut d = MatMut::new(&mut d[set], DType::Bf16, m, n)?;
    plan.execute(handle, &pool.a(set, m, k), &pool.b(set, n, k), &mut d)
}

/// From this m on the cadence matters.
pub const LARGE_ROWS: usize = 1024;

/// What one cadence gave.
pub struct AgainstBf16 {
    pub cadence: Cadence,
    /// BF16 first.
    pub times: Vec<Times>,
    /// Which algorithm of BF16's.
    pub how: String,
    pub clocks: Clocks,
}

/// BF16's times and those of `others` products in turns, sustained and, where it matters, with pauses; with the clock
/// meanwhile. `call(who, set, d)` enqueues product `who`.
pub fn against_bf16(
    handle: &Handle,
    watch: &ClockWatch,
    baseline: &mut Baseline<'_>,
    d: &mut [CudaSlice<u8>],
    others: usize,
    mut call: impl FnMut(usize, usize, &mut [CudaSlice<u8>]) -> scaled_gemm::Result<()>,
) -> Vec<AgainstBf16> {
    let (sets, m) = (d.len(), baseline.shape[0]);
    let cadences = Cadence::ALL.into_iter().filter(|c| *c == Cadence::Sustained || m >= LARGE_ROWS);
    let mut measured = Vec::new();
    for cadence in cadences {
        let timing = borrowing(Timing::of(cadence)).over(sets);
        baseline.choose_fastest(timing, d);
        let start = Instant::now();
        let times = timing.in_turns(handle, 1 + others, |who, i| match who.checked_sub(1) {
            None => baseline.execute(i % sets, d),
            Some(who) => call(who, i % sets, d),
        });
        let (times, how) = (times.unwrap(), baseline.how());
        let clocks = watch.since(start);
        measured.push(AgainstBf16 { cadence, times, how, clocks });
    }
    measured
}

/// The head of a record: what was measured where, and how.
pub fn head(handle: &Handle, what: &str) {
    let library = handle.library().unwrap();
    println!("# {what}");
    println!(
        "{}, {} SMs, L2 {} MiB; driver for CUDA {}; cuBLASLt {} ({})",
        handle.device().name,
        handle.device().sm_count,
        handle.device().l2_bytes >> 20,
        handle.device().driver,
        library.version_text,
        library.path.map_or("path unknown".into(), |p| p.display().to_string()),
    );
    for (label, variable) in [("commit", "SCALED_GEMM_COMMIT"), ("command", "SCALED_GEMM_COMMAND")] {
        if let Ok(value) = std::env::var(variable) {
            println!("{label}: {value}");
        }
    }
    let Timing { calls, launches, .. } = Timing::SUSTAINED;
    println!("kernels: {:?}; random normal data; A, B and D rotated past the L2 cache", handle.kernel_source());
    if requests::asked() {
        // Who asks says how long.
        return;
    }
    println!(
        "times in microseconds: median (quartiles) of graph launches, competitors in turns; sustained: {calls} calls a graph \
         or more, {launches} launches back to back; pauses: {} and {}, a pause after each",
        Timing::PAUSES.calls,
        Timing::PAUSES.launches
    );
}

/// Runs `body` with a handle, or says why there is none; fails without one if `SCALED_GEMM_REQUIRE_GPU=1`. Ends with the time
/// it took, and clock and power over the whole run.
pub fn main_with_gpu(body: impl FnOnce(&Handle, &ClockWatch)) {
    // `cargo test --benches` and `cargo bench` pass flags of libtest; `--test` means: run nothing long.
    if std::env::args().any(|a| a == "--test") {
        println!("skipped: benchmarks run under cargo bench");
        return;
    }
    if let Some(handle) = testing::handle() {
        let (watch, start) = (ClockWatch::start(&handle), Instant::now());
        body(&handle, &watch);
        println!("\n{:.0} s in all; {}", start.elapsed().as_secs_f64(), watch.since(start));
    }
}

/// Whether a row is wanted: `cargo bench --bench cast -- WORDS...` asks for those whose section and label, `section: label`, have one
/// of the words; without words, all.
pub fn wanted(section: &str, label: &str) -> bool {
    let mut words = std::env::args().skip(1).filter(|word| !word.starts_with("--")).peekable();
    words.peek().is_none() || words.any(|word| format!("{section}: {label}").contains(&word))
}

/// Bytes and times of casts against the copy of the same run.
pub fn report_rate(label: &str, time: &Times, bytes: usize, roof: f64, note: &str) {
    let rate = bytes as f64 / time.median();
    println!("| {label} | {time} | {:.3} | {:.3} |{note}", rate / 1e6, rate / roof);
}

/// BF16 numbers of a device buffer.
pub fn bf16_values(handle: &Handle, data: &CudaSlice<u8>, start: usize, count: usize) -> Vec<f32> {
    let bytes = handle.stream().clone_dtoh(&data.slice(2 * start..2 * (start + count))).unwrap();
    handle.synchronize().unwrap();
    bytes.as_chunks::<2>().0.iter().map(|b| bf16::from_le_bytes(*b).to_f32()).collect()
}
