//! The descriptor's attributes: each has one type, which also gives its size, and a version gate.

use cublaslt_sys::cublasLtMatmulDescAttributes_t as Desc;

use super::types::*;
use crate::gpu::lt::quirks::{self, Version};

/// A number that attributes are made of: every bit pattern is a value.
pub(crate) trait Plain: Copy + Default {}
impl Plain for u8 {}
impl Plain for u16 {}
impl Plain for u32 {}
impl Plain for i32 {}
impl Plain for u64 {}

/// From which version on an attribute's value means something.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Gate {
    Always,
    /// Refused before.
    Since(Version),
    /// The only behaviour before, so that there is nothing to set.
    ImpliedBefore(Version),
}

/// A typed attribute of [`MatmulDesc`]: its size is that of `Raw`.
pub(crate) trait Attribute {
    type Value: Copy;
    type Raw: Plain;
    const ID: Desc;
    const NAME: &'static str;
    fn raw(value: Self::Value) -> Self::Raw;
    fn gate(_value: Self::Value) -> Gate {
        Gate::Always
    }
    fn remember(_facts: &mut Facts, _value: Self::Value) {}
}

/// What the descriptor was told, as far as lengths depend on it.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Facts {
    pub(super) transposes: [Transpose; 2],
    pub(super) scale_modes: [ScaleMode; 2],
    pub(super) pointer_mode: PointerMode,
    pub(super) epilogue: EpilogueKind,
    pub(super) bias: Option<DataType>,
}

fn scale_mode_gate(mode: ScaleMode) -> Gate {
    match mode {
        ScaleMode::Scalar => Gate::ImpliedBefore(quirks::SCALE_MODE_ATTRIBUTES),
        ScaleMode::Vector16Ue4m3 | ScaleMode::Vector32Ue8m0 => Gate::Since(quirks::SCALE_MODE_ATTRIBUTES),
        ScaleMode::OuterVector | ScaleMode::Group1x128 | ScaleMode::Block128 => Gate::Since(quirks::BLOCK_SCALES),
        ScaleMode::EachGroup => Gate::Since(quirks::GROUPED),
    }
}

macro_rules! attributes {
    ($($name:ident: $value:ty => $raw:ty, $id:ident $(, gate $gate:expr)? $(, remember |$facts:ident, $given:ident| $remember:expr)?;)*) => {
        /// The attributes, as words for [`MatmulDesc::set`].
        pub(crate) mod attr {
            $(#[derive(Clone, Copy, Debug)] pub(crate) struct $name;)*
        }
        $(impl Attribute for attr::$name {
            type Value = $value;
            type Raw = $raw;
            const ID: Desc = Desc::$id;
            const NAME: &'static str = stringify!($name);
            fn raw(value: $value) -> $raw {
                value as $raw
            }
            $(fn gate(value: $value) -> Gate {
                $gate(value)
            })?
            $(fn remember($facts: &mut Facts, $given: $value) {
                $remember;
            })?
        })*
    };
}

attributes! {
    TransA: Transpose => u32, CUBLASLT_MATMUL_DESC_TRANSA, remember |facts, value| facts.transposes[0] = value;
    TransB: Transpose => u32, CUBLASLT_MATMUL_DESC_TRANSB, remember |facts, value| facts.transposes[1] = value;
    Epilogue: EpilogueKind => u32, CUBLASLT_MATMUL_DESC_EPILOGUE, remember |facts, value| facts.epilogue = value;
    AlphaBetaPlace: PointerMode => u32, CUBLASLT_MATMUL_DESC_POINTER_MODE, remember |facts, value| facts.pointer_mode = value;
    FastAccum: FastAccumulation => u8, CUBLASLT_MATMUL_DESC_FAST_ACCUM;
    AScaleMode: ScaleMode => u32, CUBLASLT_MATMUL_DESC_A_SCALE_MODE, gate scale_mode_gate, remember |facts, value| facts.scale_modes[0] = value;
    BScaleMode: ScaleMode => u32, CUBLASLT_MATMUL_DESC_B_SCALE_MODE, gate scale_mode_gate, remember |facts, value| facts.scale_modes[1] = value;
    BiasDataType: DataType => u32, CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, remember |facts, value| facts.bias = Some(value);
}

pub(super) const fn pointer_id(pointer: PointerAttr) -> Desc {
    match pointer {
        PointerAttr::AScale => Desc::CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
        PointerAttr::BScale => Desc::CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
        PointerAttr::DScale => Desc::CUBLASLT_MATMUL_DESC_D_SCALE_POINTER,
        PointerAttr::AmaxD => Desc::CUBLASLT_MATMUL_DESC_AMAX_D_POINTER,
        PointerAttr::Bias => Desc::CUBLASLT_MATMUL_DESC_BIAS_POINTER,
    }
}
