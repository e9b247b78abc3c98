//! A CUDA driver on the CPU, for tests: `libcuda.so` with the functions that scaled-gemm calls, whose kernels are interpreted from PTX.
//!
//! It tells what kernels compute, not how fast, and stands for no GPU: what it runs has still to run on one. See `docs/testing.md`.

pub mod driver;
pub mod launch;
pub mod memory;
pub mod ptx;
mod run;
pub mod tensor_map;
