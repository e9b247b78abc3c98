//! How it runs: quantizers, plans and products on NVIDIA GPUs, with CUDA's libraries loaded at run time.
//!
//! Bottom to top: [`Handle`] (one stream and what work on it needs), [`QuantMatrix`], the quantizers
//! ([`Handle::quantize`]), then [`GemmDesc`] and [`GemmPlan`].

mod cache;
mod clocks;
mod compile;
mod dequantized;
mod formulation;
mod gemm;
mod gemm_args;
mod gemm_call;
mod gemm_core;
mod gemm_desc;
mod handle;
mod judge;
mod kernels;
mod libraries;
mod lt;
mod matrix;
mod measure;
mod measured;
mod memory;
mod prepare;
mod quantize;
mod quirks;
mod record;
mod rescale;
mod tune;

pub use cache::PlanCache;
pub use clocks::{ClockWatch, Clocks};
pub use compile::KernelSource;
pub use formulation::{Finish, Formulation};
pub use gemm::{GemmPlan, Offer, PlanOptions};
pub use gemm_args::GemmArgs;
pub use gemm_desc::{Accumulate, Accumulation, GemmDesc, KeptWeights, OutAmax};
pub use handle::{DeviceInfo, Handle, LibraryInfo};
pub use matrix::{MatMut, MatRef, Parts, QuantMatrix, VecRef};
pub use measure::{Bf16Gemm, Cadence, Times, Timing, capture, copy};
pub use memory::{DeviceBytes, DeviceBytesMut};
pub use quantize::{GivenGlobal, GivenScale, QuantizeTo, quantize_bytes};
pub use record::{Environment, TuneRecord, TuneTable};
pub use rescale::RescaleArgs;
pub use tune::{CacheState, Trial, TuneOptions, TuneReport, Verdict};
