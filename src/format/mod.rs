//! What the bytes mean: schemes, recipes, codecs, scale layouts, host matrices. No GPU needed.

mod cast;
mod code_order;
pub mod codec;
mod delayed;
mod dtype;
mod fp8;
mod given;
mod grouped;
mod host;
mod host_cast;
mod host_grouped;
pub mod layout;
mod linear;
mod mx;
pub(crate) mod nvfp4;
mod operand;
pub mod pair;
mod recipe;
mod scheme;

pub use cast::{CastGroup, CastRecipe, CastScales, CastScheme};
pub use code_order::CodeOrder;
pub use delayed::{AmaxHistory, DelayedScaling, DelayedState};
pub use dtype::DType;
pub use fp8::{Fp8Recipe, Fp8Rule, Fp8Scales};
pub use given::{GivenScale, GroupScale};
pub use grouped::{GroupedLayout, GroupedMember, GroupedRecipe, GroupedScales, GroupedScheme};
pub use host::{HostParts, HostQuantMatrix};
pub(crate) use host::{check_dims, check_extents};
pub use host_cast::HostCastMatrix;
pub(crate) use host_cast::{check_given_scales, of_byte};
#[cfg(feature = "cuda")]
pub(crate) use host_cast::{check_scales, logical_scales};
pub use host_grouped::HostGroupedTensor;
pub use linear::{KeptInput, LinearRecipe, TensorScaling};
pub use mx::{MxScaleRule, Mxfp4Recipe, Mxfp8Recipe};
pub use nvfp4::{
    Basis, BlockScaleRule, BlockShape, CodeRounding, E4m3Bound, ErrorMath, ErrorMetric, Nvfp4Options, Nvfp4Rule,
    SecondLevel, TorchDevice,
};
pub use operand::Operand;
pub use recipe::{Nvfp4Recipe, Recipe};
pub use scheme::{BlockScaleFormat, BlockSpec, CodeFormat, Extent, Fp8Format, Fp8Granularity, Scheme, SchemeSpec};
