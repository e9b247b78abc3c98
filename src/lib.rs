//! Block-scaled FP8, MXFP8, MXFP4 and NVFP4 matrix products on NVIDIA GPUs, and on the CPU with the same bytes.
//!
//! ```text
//! D = epilogue( alpha * sum_k a[i,k] * b[j,k]  +  beta * C )        a = code_a * scales_a,  b = code_b * scales_b
//! ```
//!
//! A is `m x k`, B is `n x k` (the weight of a linear layer), C and D are `m x n`, all row-major; on a GPU C is what D held before, in F32. Scales multiply codes: FP8 has
//! FP32 scales, MXFP8 and MXFP4 a power of two for each 32 codes, NVFP4 an E4M3 scale for each 16 and an FP32 one above it
//! ([`Scheme`]). A may be plain where only the weights are quantized ([`Operand`]).
//!
#![cfg_attr(
    feature = "cuda",
    doc = "On a GPU: [`Handle`] is a stream with all that work on it needs, [`Handle::quantize`] makes a [`QuantMatrix`] by a \
           [`Recipe`], and [`Handle::scaled_gemm`] or a [`GemmPlan`] multiplies. [`Linear`] is a layer that trains."
)]
#![cfg_attr(
    not(feature = "cuda"),
    doc = "On a GPU (feature `cuda`, which this build lacks): `Handle::quantize` makes a `QuantMatrix` by a [`Recipe`], and \
           `Handle::scaled_gemm` or a `GemmPlan` multiplies."
)]
//!
#![cfg_attr(feature = "cuda", doc = "```no_run")]
#![cfg_attr(not(feature = "cuda"), doc = "```text")]
//! use half::bf16;
//! use scaled_gemm::{Activation, DType, Fp8Format, GemmArgs, Handle, MatMut, MatRef, Recipe, Scheme};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let (m, n, k) = (256, 4096, 7168);
//! let handle = Handle::new(0)?;
//! let x = handle.stream().clone_htod(&vec![bf16::ONE; m * k])?;
//! let w = handle.stream().clone_htod(&vec![bf16::ONE; n * k])?;
//! let mut y = handle.stream().alloc_zeros::<bf16>(m * n)?;
//!
//! // Activations: a scale for each 128 features of a token. Weights: a scale for each tile of 128 x 128.
//! let x = handle.quantize(&MatRef::new(&x, DType::Bf16, m, k)?, Recipe::new(Scheme::Fp8Group1x128(Fp8Format::E4M3)))?;
//! let w = handle.quantize(&MatRef::new(&w, DType::Bf16, n, k)?, Recipe::new(Scheme::Fp8Group128x128(Fp8Format::E4M3)))?;
//! let call = GemmArgs::new(&x, &w, MatMut::new(&mut y, DType::Bf16, m, n)?).activation(Activation::Silu);
//! handle.scaled_gemm(call)?;
//! let y: Vec<bf16> = handle.stream().clone_dtoh(&y)?;
//! # Ok(())
//! # }
//! ```
//!
//! On the CPU, with [`mod@reference`]:
//!
//! ```
//! use ndarray::Array2;
//! use scaled_gemm::reference::{GemmInputs, quantize, scaled_gemm};
//! use scaled_gemm::{DType, Fp8Format, Recipe, Scheme};
//!
//! let x = Array2::from_shape_fn((3, 256), |(i, j)| (i + j) as f32 / 256.0);
//! let w = Array2::from_elem((8, 256), 0.5f32);
//! let x = quantize(x.view(), DType::F32, Recipe::new(Scheme::Fp8Row(Fp8Format::E4M3)))?;
//! let w = quantize(w.view(), DType::F32, Recipe::new(Scheme::Fp8Row(Fp8Format::E4M3)))?;
//! let y = scaled_gemm(&GemmInputs::new(&x, &w, DType::F32))?;
//! assert_eq!(y.dim(), (3, 8));
//! assert!((y[[0, 0]] - 63.75).abs() < 0.3);
//! # Ok::<(), scaled_gemm::Error>(())
//! ```
//!
//! | A x B | GPU: formulations |
//! |---|---|
//! | `fp8-tensor` x `fp8-tensor` | sm_89 and newer: native; sm_90: sm90 and, in E4M3 for m up to 32, small-m |
//! | `fp8-row` x `fp8-row` | sm_90: native, rescaled, sm90 and, in E4M3 for m up to 32, small-m; other GPUs from sm_89 on: rescaled |
//! | `fp8-1x128` x `fp8-128x128` | sm_90: native, repeated scales, sm90 and, in E4M3 for m up to 32, small-m |
//! | `fp8-128x128` x `fp8-1x128`, `fp8-1x128` x `fp8-1x128` | sm_90: native, and sm90 (planned without cuBLASLt and for batch-invariant products, of the second also where large products add to an F32 D) |
//! | `nvfp4` or `nvfp4-row` x either | sm_100 and newer: native (never run); sm_80 and newer: dequantized BF16 or F16; few rows: small-m |
//! | `mxfp8` x `mxfp8` | sm_100 and newer: native (never run); sm_80 and newer: dequantized BF16; few rows, B in E4M3: small-m |
//! | `mxfp4` or `mxfp8` x `mxfp4` | sm_80 and newer: dequantized BF16; few rows: small-m |
//! | BF16 or F16 x `nvfp4`, `nvfp4-row` or `mxfp4`; BF16 x `mxfp8` | sm_80 and newer: dequantized; few rows, of `mxfp8` E4M3: small-m |
//! | BF16 or F16 x `fp8-tensor`, `fp8-row`, `fp8-1x128` or `fp8-128x128`, E4M3 | sm_80 and newer: small-m, made for few rows |
//!
//! `small-m` of weights that it decodes takes up to 64 rows of A in a pass over B, of NVFP4 and MXFP4 k a multiple of 32, and is planned up to 16, and where B keeps no
//! dequantized values for more; FP8 weights and batch-invariant products have as many passes as it takes (docs/products.md).
//!
//! Beside products: casts to groupings that no product reads ([`CastScheme`], [`HostCastMatrix`]; docs/casts.md), producers that are cast unstored (SwiGLU, norms,
//! activations: [`reference::swiglu`], [`reference::rms_norm`]), many matrices in one buffer ([`GroupedScheme`], [`HostGroupedTensor`]), rows of experts (docs/numerics.md), a
//! layer that trains ([`reference::Linear`]; docs/training.md), and files ([`checkpoint`], [`model_folder`]).
//!
#![cfg_attr(
    feature = "cuda",
    doc = "Their calls on a GPU are [`Handle::cast`], [`Handle::quantize_source_into`], [`Handle::rms_norm_cast_into`], [`Handle::swiglu_backward`], \
           [`Handle::quantize_grouped_into`], [`Handle::grouped_gemm`] and [`Linear`].\n\n"
)]
//!
//! FP8 and MXFP8 codes are E4M3 x E4M3, or E4M3 with E5M2 on either side. D is BF16, F16 or F32, and E4M3 for tensor x tensor.
//! The CPU has every pair. Quantizers run on sm_80 and newer. Any m; k a multiple of 16; n of 8, and of 16 for E4M3 output. Feature `cuda` (default) is
//! the GPU half: it needs nothing of CUDA to build and loads the libraries at run time.

#[macro_use]
mod names;

pub mod checkpoint;
mod epilogue;
mod error;
mod format;
#[cfg(feature = "cuda")]
mod gpu;
pub mod model_folder;
pub mod models;
pub mod reference;

// Each item has one name: in the root, or in a module that is public and not passed on.
#[cfg(feature = "cuda")]
pub use cudarc;
pub use epilogue::{Activation, ActivationGradient, Epilogue};
pub use error::{Error, Result};
pub use format::*;
#[cfg(feature = "cuda")]
pub use gpu::*;
pub use names::UnknownName;

/// The examples of README.md and of docs/, compiled with the documentation tests.
#[cfg(all(doctest, feature = "cuda"))]
#[doc = include_str!("../README.md")]
#[doc = include_str!("../docs/memory.md")]
#[doc = include_str!("../docs/recipes.md")]
#[doc = include_str!("../docs/casts.md")]
#[doc = include_str!("../docs/training.md")]
pub struct Examples;
