//! What the examples that compare with BF16 share: a problem, its buffers on the GPU, BF16's time, noise of results.
#![allow(dead_code)]

use half::bf16;
use ndarray::{Array2, s};
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::reference::{Noise, sqnr_db};
use scaled_gemm::{
    Bf16Gemm, BorrowsOutliveGraph, ClockWatch, DType, Error, Handle, MatMut, MatRef, Result, Times, Timing,
};

pub type Outcome<T> = std::result::Result<T, Box<dyn std::error::Error>>;

/// Rows of D on which noise is measured.
const ROWS: usize = 64;

/// `D = X Wᵀ` of BF16 numbers.
pub struct Problem {
    /// m, n, k.
    pub shape: [usize; 3],
    pub x: Array2<f32>,
    pub w: Array2<f32>,
    /// The first rows of D.
    exact: Array2<f32>,
}

/// The problem that the arguments name, and a handle if there is a GPU; says where it runs.
pub fn begin(name: &str) -> Outcome<(Option<Handle>, Problem)> {
    let usage = || format!("usage: {name} [M N K], three whole numbers");
    let arguments = std::env::args().skip(1).map(|a| a.parse().map_err(|_| usage()));
    let arguments = arguments.collect::<std::result::Result<Vec<usize>, _>>()?;
    let handle = match Handle::new(0) {
        Ok(handle) => Some(handle),
        Err(error @ (Error::NoGpu { .. } | Error::Library { .. })) => {
            println!("{error}\non the CPU, then:");
            None
        }
        Err(error) => return Err(error.into()),
    };
    let [m, n, k] = match (arguments.as_slice(), &handle) {
        (&[m, n, k], _) => [m, n, k],
        ([], Some(_)) => [4096, 4096, 7168],
        ([], None) => [256, 1024, 2048],
        _ => return Err(usage().into()),
    };
    let on = handle.as_ref().map_or("the CPU".to_string(), |handle| handle.device().to_string());
    println!("m = {m}, n = {n}, k = {k} on {on}");
    let (x, w) = (Noise::new(1).matrix(m, k, DType::Bf16), Noise::new(2).matrix(n, k, DType::Bf16));
    let exact = x.slice(s![..m.min(ROWS), ..]).dot(&w.t());
    Ok((handle, Problem { shape: [m, n, k], x, w, exact }))
}

impl Problem {
    /// Signal to noise of the first rows of D, in dB.
    pub fn sqnr(&self, d: &[bf16]) -> f64 {
        let d: Vec<f32> = d[..self.exact.len()].iter().map(|v| v.to_f32()).collect();
        let exact: Vec<f32> = self.exact.iter().copied().collect();
        sqnr_db(&exact, &d)
    }

    /// Signal to noise of a D that BF16's rounding alone has touched.
    pub fn rounded_sqnr(&self) -> f64 {
        self.sqnr(&narrow(&self.exact))
    }
}

/// BF16 numbers of values.
pub fn narrow(values: &Array2<f32>) -> Vec<bf16> {
    values.iter().map(|v| bf16::from_f32(*v)).collect()
}

/// X, W and D on the GPU, as often as it takes to exceed the L2 cache: each call finds cold ones, as in a model.
pub struct Sets {
    shape: [usize; 3],
    x: Vec<CudaSlice<bf16>>,
    w: Vec<CudaSlice<bf16>>,
    d: Vec<CudaSlice<bf16>>,
}

impl Sets {
    pub fn new(handle: &Handle, problem: &Problem) -> Outcome<Self> {
        let [m, n, k] = problem.shape;
        // The least that any product here reads and writes: codes of half a byte, and D.
        let least = (m * k + n * k) / 2 + 2 * m * n;
        let count = (3 * handle.device().l2_bytes).div_ceil(least).clamp(2, 64);
        let stream = handle.stream();
        let copies = |values: &Array2<f32>| -> Outcome<Vec<_>> {
            let first = stream.clone_htod(&narrow(values))?;
            let mut all = (1..count).map(|_| stream.clone_dtod(&first)).collect::<std::result::Result<Vec<_>, _>>()?;
            all.push(first);
            Ok(all)
        };
        let d = (0..count).map(|_| stream.alloc_zeros(m * n)).collect::<std::result::Result<_, _>>()?;
        Ok(Self { shape: problem.shape, x: copies(&problem.x)?, w: copies(&problem.w)?, d })
    }

    /// How many sets there are.
    pub fn count(&self) -> usize {
        self.d.len()
    }

    pub fn x(&self, set: usize) -> Result<MatRef<'_>> {
        MatRef::new(&self.x[set], DType::Bf16, self.shape[0], self.shape[2])
    }

    pub fn w(&self, set: usize) -> Result<MatRef<'_>> {
        MatRef::new(&self.w[set], DType::Bf16, self.shape[1], self.shape[2])
    }

    /// X to read and D to write.
    pub fn x_and_d(&mut self, set: usize) -> Result<(MatRef<'_>, MatMut<'_>)> {
        let [m, n, k] = self.shape;
        let x = MatRef::new(&self.x[set], DType::Bf16, m, k)?;
        Ok((x, MatMut::new(&mut self.d[set], DType::Bf16, m, n)?))
    }

    /// Signal to noise of what lies in the first D.
    pub fn sqnr(&self, handle: &Handle, problem: &Problem) -> Outcome<f64> {
        Ok(problem.sqnr(&handle.stream().clone_dtoh(&self.d[0])?))
    }

    /// Signal to noise of the product in BF16.
    pub fn bf16_sqnr(&mut self, handle: &Handle, problem: &Problem) -> Outcome<f64> {
        let [m, n, k] = self.shape;
        self.multiply(handle, &mut Bf16Gemm::new(handle, m, n, k, 1)?, 0)?;
        self.sqnr(handle, problem)
    }

    /// The product in BF16.
    fn multiply(&mut self, handle: &Handle, gemm: &mut Bf16Gemm, set: usize) -> Result<()> {
        let [m, n, k] = self.shape;
        let (x, w) = (&self.x[set], &self.w[set]);
        let (x, w) = (MatRef::new(x, DType::Bf16, m, k)?, MatRef::new(w, DType::Bf16, n, k)?);
        gemm.execute(handle, &x, &w, &mut MatMut::new(&mut self.d[set], DType::Bf16, m, n)?)
    }
}

/// BF16's times by the fastest of cuBLASLt's algorithms, then those of `others` products, all in turns. `enqueue(sets, who,
/// set)` enqueues product `who` on these buffers. Says at which clock.
pub fn times(
    handle: &Handle,
    timing: Timing,
    sets: &mut Sets,
    others: usize,
    mut enqueue: impl FnMut(&mut Sets, usize, usize) -> Result<()>,
) -> Result<Vec<Times>> {
    let [m, n, k] = sets.shape;
    // SAFETY: what is timed uses the slices of `sets` and of the caller, which neither closure drops or replaces.
    let timing = timing.borrowing(unsafe { BorrowsOutliveGraph::promise() });
    let (count, timing, watch) = (sets.count(), timing.over(sets.count()), ClockWatch::start(handle));
    let mut gemm = Bf16Gemm::new(handle, m, n, k, 8)?;
    let short = timing.with_calls(4).with_launches(3).over(count);
    gemm.choose_fastest(handle, &short, |gemm, call| sets.multiply(handle, gemm, call % count))?;
    let start = std::time::Instant::now();
    let times = timing.in_turns(handle, 1 + others, |who, call| match who.checked_sub(1) {
        None => sets.multiply(handle, &mut gemm, call % count),
        Some(who) => enqueue(sets, who, call % count),
    })?;
    println!("\n{}: {}", timing.cadence, watch.since(start));
    Ok(times)
}
