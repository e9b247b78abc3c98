//! What the bytes mean: schemes, recipes, codecs, scale layouts, host matrices. No GPU needed.

pub mod codec;
mod dtype;
mod given;
mod host;
pub mod layout;
pub mod mx;
pub mod nvfp4;
mod operand;
pub mod pair;
mod recipe;
mod scheme;

pub use dtype::DType;
pub use given::{GivenScale, GroupScale};
pub use host::{HostParts, HostQuantMatrix};
pub use mx::MxRounding;
pub use nvfp4::{
    Basis, BlockScaleRule, BlockShape, CodeRounding, E4m3Bound, ErrorMath, ErrorMetric, Nvfp4Options, SecondLevel,
    TorchDevice,
};
pub use operand::Operand;
pub use recipe::{Preset, Recipe, ScaleRounding};
pub use scheme::{BlockScaleFormat, BlockSpec, CodeFormat, Extent, Fp8Format, Scheme, SchemeSpec};
