//! Scaled FP8 matrix products: `D = epilogue(alpha * A Bᵀ + beta * C)` with `a = code_a * scale_a`, `b = code_b * scale_b`.

pub mod checkpoint;
pub mod epilogue;
pub mod error;
pub mod format;
#[cfg(feature = "cuda")]
pub mod gpu;
pub mod reference;

pub use epilogue::{Activation, Epilogue};
pub use error::{Error, Result};
pub use format::*;
