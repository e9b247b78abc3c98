//! What is right: quantizers, dequantizer and scaled product on the CPU, and how far a correct result may be off.
//!
//! The quantizers give the GPU's bytes. The product runs where no GPU is, on all cores. [`definition`] says all of it once more
//! in the plainest words, to compare with; [`gemm_bound`] says how far a correct product may be off. Both are for tests.
//!
//! Some names are those of the GPU's types at the root ([`Linear`], [`SavedInput`]): import what you need by name, not both by `*`.

mod blocks;
mod bound;
mod cast;
pub mod definition;
mod delayed;
mod gemm;
mod grouped;
mod hadamard;
mod linear;
mod metrics;
mod mx;
mod noise;
pub mod nvfp4;
mod operand;
mod parallel;
mod philox;
mod producers;
mod quantize;
mod sample;
mod tensor_core;
pub mod transformer_engine;

pub use bound::{Accumulator, Bound, Gelu, SumBound, gemm_bound};
pub use cast::{CastInput, CastValues, cast, cast_back, cast_scales, cast_with_scales, fp4_to_fp8};
pub use delayed::delayed_update;
pub use gemm::{
    GemmInputs, Promotion, promote, promote_unfused, scaled_gemm, scaled_gemm_amax, scaled_gemm_quantizing,
};
pub use grouped::{
    GroupedInput, GroupedView, delayed_update_grouped, dequantize_grouped, quantize_grouped,
    quantize_grouped_with_scales, raise_amax,
};
pub use hadamard::{hadamard16, hadamard16_amax, hadamard16_inverse};
pub use linear::{Linear, LinearGradients, QuantizedGradient, SavedInput};
pub use metrics::{calc_diff, median, quantile, sqnr_db};
pub use noise::Noise;
pub use operand::HostOperand;
pub use philox::philox4x32_10;
pub use producers::{
    ClampCounts, RmsNorm, RmsNormed, Swiglu, SwigluGradients, gelu, gelu_tanh, rms_norm, round_values, silu, swiglu,
    swiglu_backward,
};
pub use quantize::{
    amax, dequantize, quantize, quantize_part, quantize_rows, quantize_tensor, quantize_transposed,
    quantize_transposed_with_scale, quantize_with_row_scales, quantize_with_scale,
};
pub use sample::rows_of;
