//! [`Bf16Gemm`]: the BF16 product that every comparison has as its baseline.

use crate::error::Result;
use crate::gpu::gemm::bf16::{Bf16Desc, Bf16Product};
use crate::gpu::handle::Handle;
use crate::gpu::matrix::{MatMut, MatRef};
use crate::gpu::measure::{Times, Timing};

/// `D = A Bᵀ` in BF16 with FP32 sums through cuBLASLt: A `m x k`, B `n x k`, D `m x n`, all packed row-major BF16.
///
/// The baseline of every comparison: the fastest of cuBLASLt's algorithms, after [`Bf16Gemm::choose_fastest`].
pub struct Bf16Gemm(Bf16Product);

impl Bf16Gemm {
    /// Plans the product; asks cuBLASLt for up to `candidates` algorithms. Allocates on the host alone, and waits for nothing.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) if cuBLASLt offers none; [`Error::Shape`](crate::Error::Shape) for sizes or bytes of a
    /// row that 31 bits do not hold.
    pub fn new(handle: &Handle, m: usize, n: usize, k: usize, candidates: usize) -> Result<Self> {
        Ok(Self(Bf16Product::new(handle, &Bf16Desc::packed(m, n, k), candidates, None)?))
    }

    /// Enqueues the product. Allocates nothing and waits for nothing.
    ///
    /// # Errors
    /// [`Error::Shape`](crate::Error::Shape) if an operand is not as planned; [`Error::Unsupported`](crate::Error::Unsupported) on
    /// another handle than the one it was made for.
    pub fn execute(&mut self, handle: &Handle, a: &MatRef<'_>, b: &MatRef<'_>, d: &mut MatMut<'_>) -> Result<()> {
        self.0.execute(handle, a, b, d, None)
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
        self.0.chosen()
    }

    /// Number of algorithms cuBLASLt offered.
    pub fn candidates(&self) -> usize {
        self.0.candidates()
    }

    /// Takes candidate `index` from now on (counted modulo [`Bf16Gemm::candidates`]).
    pub fn choose(&mut self, index: usize) {
        self.0.choose(index);
    }
}
