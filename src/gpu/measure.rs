//! Timing on the device, and the BF16 product to compare with.
//!
//! A figure is the median over replays of a captured graph of many calls, divided by the calls: launch gaps as in an
//! engine that replays graphs, host time left out. Cold operands are the caller's business: rotate over buffers that
//! together exceed the L2 cache ([`DeviceInfo::l2_bytes`](super::DeviceInfo)).

use cudarc::driver::CudaSlice;
use cudarc::driver::sys::CUevent_flags_enum::CU_EVENT_DEFAULT;

use crate::error::{Error, Result};
use crate::format::DType;
use crate::gpu::device::memory::driver;
use crate::gpu::handle::Handle;
use crate::gpu::lt::{
    self, Algo, Compute, DataType, Factors, Heuristic, Layouts, MatmulCall, MatmulDesc, MatrixLayout, Pointers,
    Preference, Transpose, attr,
};
use crate::gpu::matrix::{MatMut, MatRef};

/// Median microseconds of one of `calls` calls; `enqueue(i)` puts call `i` on the handle's stream.
///
/// Runs `enqueue` once outside the graph to warm up, captures all calls, then times `replays` launches. Waits.
///
/// # Errors
/// As [`capture`].
pub fn time_calls(
    handle: &Handle,
    calls: usize,
    replays: usize,
    mut enqueue: impl FnMut(usize) -> Result<()>,
) -> Result<f64> {
    for i in 0..calls.min(3) {
        enqueue(i)?;
    }
    // What `enqueue` borrows lives as long as `enqueue`, which outlives the graph.
    let graph = handle.launch_stream().capture(true, || (0..calls).try_for_each(&mut enqueue))?;
    let launch = || handle.launch(&graph);
    launch()?;
    handle.synchronize()?;
    let event =
        || handle.stream().context().new_event(Some(CU_EVENT_DEFAULT)).map_err(|e| driver("creating an event", e));
    let (start, end) = (event()?, event()?);
    let mut times = Vec::with_capacity(replays);
    for _ in 0..replays.max(1) {
        start.record(handle.stream()).map_err(|e| driver("recording an event", e))?;
        launch()?;
        end.record(handle.stream()).map_err(|e| driver("recording an event", e))?;
        handle.synchronize()?;
        let milliseconds = start.elapsed_ms(&end).map_err(|e| driver("reading the time", e))?;
        times.push(f64::from(milliseconds) * 1e3 / calls as f64);
    }
    times.sort_by(f64::total_cmp);
    Ok(times[times.len() / 2])
}

/// Copies one device buffer to another of the same length: the roof that bandwidth is compared with. Enqueues only.
///
/// # Errors
/// [`Error::Shape`] if the lengths differ.
pub fn copy(handle: &Handle, from: &CudaSlice<u8>, to: &mut CudaSlice<u8>) -> Result<()> {
    let stream = handle.launch_stream();
    let (source, mut target) = (super::DeviceBytes::from(from), super::DeviceBytesMut::from(to));
    let order = stream.order();
    let (bytes, source, target) = (source.len(), source.at(order)?, target.at(order)?);
    handle.kernels().copy_2d(stream, &source, bytes, &target, bytes, 1, bytes)
}

/// `D = A Bᵀ` in BF16 with FP32 sums through cuBLASLt: A `m x k`, B `n x k`, D `m x n`, all packed row-major BF16.
///
/// The baseline of every comparison. The first of cuBLASLt's candidates, or the fastest after [`Bf16Gemm::choose`].
pub struct Bf16Gemm {
    desc: MatmulDesc,
    layouts: Layouts,
    algos: Vec<Algo>,
    chosen: usize,
    shape: (usize, usize, usize),
    handle_id: u64,
}

impl Bf16Gemm {
    /// Plans the product; asks cuBLASLt for up to `candidates` algorithms.
    ///
    /// # Errors
    /// [`Error::Unsupported`] if cuBLASLt offers none.
    pub fn new(handle: &Handle, m: usize, n: usize, k: usize, candidates: usize) -> Result<Self> {
        let mut desc = MatmulDesc::new(Compute::F32, DataType::F32)?;
        // cuBLASLt is column-major: it sees Dᵀ = B Aᵀ, so B goes first and m, n swap.
        desc.set(attr::TransA, Transpose::Yes)?;
        desc.set(attr::TransB, Transpose::No)?;
        let layouts = Layouts {
            a: MatrixLayout::new(DataType::Bf16, k, n, k)?,
            b: MatrixLayout::new(DataType::Bf16, k, m, k)?,
            c: MatrixLayout::new(DataType::Bf16, n, m, n)?,
            d: MatrixLayout::new(DataType::Bf16, n, m, n)?,
        };
        let mut preference = Preference::new()?;
        preference.workspace_bytes(handle.workspace().bytes)?;
        match lt::heuristic(handle.lt(), &desc, &layouts, &preference, candidates.max(1))? {
            Heuristic::Offered(algos) => {
                Ok(Self { desc, layouts, algos, chosen: 0, shape: (m, n, k), handle_id: handle.id() })
            }
            Heuristic::Refused(status) => Err(Error::unsupported(
                format!("the BF16 product {m} x {n} x {k}"),
                format!("cuBLASLt offers no algorithm: {status}"),
                "use n and k that are multiples of 8",
            )),
        }
    }

    /// Enqueues the product. Allocates nothing and waits for nothing.
    ///
    /// # Errors
    /// [`Error::Shape`] if an operand is not as planned; [`Error::Unsupported`] on another handle than the one it was made for.
    pub fn execute(&mut self, handle: &Handle, a: &MatRef<'_>, b: &MatRef<'_>, d: &mut MatMut<'_>) -> Result<()> {
        handle.check_own(self.handle_id, "running a BF16 product")?;
        let (m, n, k) = self.shape;
        let operands = [
            ("A", a.rows(), a.cols(), a.row_stride(), a.dtype(), m, k),
            ("B", b.rows(), b.cols(), b.row_stride(), b.dtype(), n, k),
            ("D", d.rows(), d.cols(), d.row_stride(), d.dtype(), m, n),
        ];
        for (operand, rows, cols, stride, dtype, want_rows, want_cols) in operands {
            if (rows, cols, stride, dtype) != (want_rows, want_cols, want_cols, DType::Bf16) {
                return Err(Error::shape(
                    operand,
                    format!("{rows} x {cols} {dtype}, row stride {stride}"),
                    format!("must be {want_rows} x {want_cols} bf16, packed"),
                    "plan the product for these operands",
                ));
            }
        }
        let stream = handle.launch_stream();
        let order = stream.order();
        let (a, b, d) = (a.data().at(order)?, b.data().at(order)?, d.data_mut().at(order)?);
        lt::matmul(MatmulCall {
            handle: handle.lt(),
            desc: &mut self.desc,
            layouts: &self.layouts,
            algo: &self.algos[self.chosen],
            factors: Factors::Host { alpha: 1.0, beta: 0.0 },
            a: &b,
            b: &a,
            c: None,
            d: &d,
            pointers: Pointers::default(),
            workspace: &handle.workspace(),
            stream,
        })
    }

    /// Number of algorithms cuBLASLt offered.
    pub fn candidates(&self) -> usize {
        self.algos.len()
    }

    /// Takes candidate `index` from now on (counted modulo [`Bf16Gemm::candidates`]).
    pub fn choose(&mut self, index: usize) {
        self.chosen = index % self.algos.len();
    }
}
