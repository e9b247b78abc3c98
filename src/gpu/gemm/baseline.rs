//! [`Bf16Gemm`]: the BF16 product that every comparison has as its baseline.

use crate::error::{Error, Result};
use crate::format::DType;
use crate::gpu::gemm::call::ALIGNMENT;
use crate::gpu::handle::Handle;
use crate::gpu::lt::{
    self, Algo, Compute, DataType, Factors, Heuristic, Layouts, MatmulCall, MatmulDesc, MatrixLayout, Operand,
    Pointers, Preference, Transpose, attr,
};
use crate::gpu::matrix::{MatMut, MatRef};
use crate::gpu::measure::{Times, Timing};

/// `D = A Bᵀ` in BF16 with FP32 sums through cuBLASLt: A `m x k`, B `n x k`, D `m x n`, all packed row-major BF16.
///
/// The baseline of every comparison: the fastest of cuBLASLt's algorithms, after [`Bf16Gemm::choose_fastest`].
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
        // As for the products that are compared with it; the library would take 256 for granted.
        for operand in [Operand::A, Operand::B, Operand::C, Operand::D] {
            preference.alignment(operand, ALIGNMENT)?;
        }
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
        let stream = handle.queue();
        let order = stream.order();
        let (a, b, d) = (a.data().at(&order)?, b.data().at(&order)?, d.data_mut().at(&order)?);
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

    /// Times every algorithm in turns and takes the fastest from now on. `enqueue` calls [`Bf16Gemm::execute`] with the
    /// buffers of call `i`, as in [`Timing::in_turns`]. Gives the times in the order of cuBLASLt's preference. Waits.
    ///
    /// # Errors
    /// As [`Timing::in_turns`].
    pub fn choose_fastest(
        &mut self,
        handle: &Handle,
        timing: &Timing,
        mut enqueue: impl FnMut(&mut Self, usize) -> Result<()>,
    ) -> Result<Vec<Times>> {
        let times = timing.in_turns(handle, self.candidates(), |who, call| {
            self.choose(who);
            enqueue(self, call)
        })?;
        let fastest = (0..times.len()).min_by(|i, j| times[*i].median().total_cmp(&times[*j].median()));
        self.choose(fastest.unwrap_or(0));
        Ok(times)
    }

    /// The place of the algorithm in use.
    pub fn chosen(&self) -> usize {
        self.chosen
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
