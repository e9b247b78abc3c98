//! What is right: quantizers, dequantizer and scaled product on the CPU, and how far a correct result may be off.
//!
//! The quantizers give the GPU's bytes. The product runs where no GPU is, on all cores. [`bound`] is for tests.

pub mod bound;
mod delayed;
mod gemm;
mod metrics;
mod parallel;
mod quantize;

pub use bound::{Accumulator, Bound, Gelu, SumBound, gemm_bound};
pub use delayed::{AmaxHistory, delayed_update};
pub use gemm::{BlockSum, GemmInputs, promote, promote_unfused, scaled_gemm, scaled_gemm_amax};
pub use metrics::{calc_diff, sqnr_db};
pub use quantize::{amax, dequantize, quantize, quantize_tensor, quantize_transposed};
