//! What the bytes mean: schemes, recipes, codecs, scale layouts, host matrices. No GPU needed.

pub mod codec;
mod dtype;
mod host;
pub mod layout;
pub mod pair;
mod recipe;
mod scheme;

pub use dtype::DType;
pub use host::HostQuantMatrix;
pub use recipe::{GroupScale, Preset, Recipe, ScaleRounding, TensorScale};
pub use scheme::{Extent, Fp8Format, Scheme, SchemeSpec};
