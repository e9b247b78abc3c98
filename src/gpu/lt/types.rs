//! The words of cuBLASLt's vocabulary that this crate uses, as types; their numbers are checked against the bindings.

use std::fmt;

use crate::format::DType;

/// Element type of a matrix, of alpha and beta, or of a bias.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub(crate) enum DataType {
    F32 = 0,
    F16 = 2,
    Bf16 = 14,
    E4m3 = 28,
    E5m2 = 29,
    /// Four bits; two elements a byte, the even one in the low half.
    E2m1 = 33,
}

impl DataType {
    pub(crate) const fn bits(self) -> usize {
        match self {
            Self::F32 => 32,
            Self::F16 | Self::Bf16 => 16,
            Self::E4m3 | Self::E5m2 => 8,
            Self::E2m1 => 4,
        }
    }

    /// Bytes of this many elements in a row.
    pub(crate) const fn bytes_of(self, elements: usize) -> Option<usize> {
        match elements.checked_mul(self.bits()) {
            Some(bits) => Some(bits.div_ceil(8)),
            None => None,
        }
    }
}

impl From<DType> for DataType {
    fn from(dtype: DType) -> Self {
        match dtype {
            DType::F32 => Self::F32,
            DType::F16 => Self::F16,
            DType::Bf16 => Self::Bf16,
            DType::E4M3 => Self::E4m3,
            DType::E5M2 => Self::E5m2,
        }
    }
}

/// What the products are accumulated in.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub(crate) enum Compute {
    F32 = 68,
}

/// Whether an operand is read transposed.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub(crate) enum Transpose {
    No = 0,
    Yes = 1,
}

/// What is done to the accumulator before D is written. GELU is the tanh approximation.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub(crate) enum EpilogueKind {
    Default = 1,
    Relu = 2,
    Bias = 4,
    ReluBias = 6,
    Gelu = 32,
    GeluBias = 36,
}

impl EpilogueKind {
    pub(crate) const fn has_bias(self) -> bool {
        matches!(self, Self::Bias | Self::ReluBias | Self::GeluBias)
    }
}

/// How the scales of an operand lie in memory.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub(crate) enum ScaleMode {
    /// One number.
    Scalar = 0,
    /// One E4M3 byte per 16 along K, in tiles of 128 rows by 4 bytes.
    Vector16Ue4m3 = 1,
    /// One E8M0 byte per 32 along K, in the same tiles.
    Vector32Ue8m0 = 2,
    /// One number per row of A (column of B).
    OuterVector = 3,
    /// One per 128 along K and row: `[ceil(K/128)][rows]`.
    Group1x128 = 4,
    /// One per 128x128: `[ceil(rows/128)][ceil(K/128) rounded up to 4]`.
    Block128 = 5,
    /// Of products of groups: one number for each, whose addresses lie together.
    EachGroup = 6,
}

impl ScaleMode {
    /// Bytes of the scales of an operand with `outer` rows and `k` columns, padding included.
    pub(crate) fn bytes(self, outer: usize, k: usize) -> usize {
        let blocks = k.div_ceil(128);
        let tiled = |cols: usize| outer.next_multiple_of(128) * k.div_ceil(cols).next_multiple_of(4);
        match self {
            Self::Scalar => 4,
            Self::Vector16Ue4m3 => tiled(16),
            Self::Vector32Ue8m0 => tiled(32),
            Self::OuterVector => 4 * outer,
            Self::Group1x128 => 4 * blocks * outer,
            Self::Block128 => 4 * blocks.next_multiple_of(4) * outer.div_ceil(128),
            // Of a product that has no groups: none.
            Self::EachGroup => 0,
        }
    }
}

/// Where alpha and beta are read from.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub(crate) enum PointerMode {
    /// Host memory, before the call returns.
    Host = 0,
    /// Device memory, when the product runs.
    Device = 1,
}

/// Whether partial sums may stay at tensor-core precision (sm_89 and sm_90 only).
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u8)]
pub(crate) enum FastAccumulation {
    Off = 0,
    On = 1,
}

/// Which of the four matrices.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Operand {
    A,
    B,
    C,
    D,
}

/// In what the partial results of a split K may be added. (The library also offers D's type, which loses precision.)
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[repr(u32)]
pub(crate) enum Reduction {
    /// FP32, or no split at all.
    ComputeType = 2,
}

/// Which device pointer of a descriptor.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum PointerAttr {
    AScale,
    BScale,
    DScale,
    AmaxD,
    Bias,
}

impl PointerAttr {
    pub(crate) const ALL: [Self; 5] = [Self::AScale, Self::BScale, Self::DScale, Self::AmaxD, Self::Bias];

    pub(crate) const fn words(self) -> &'static str {
        match self {
            Self::AScale => "scales of cuBLASLt's A",
            Self::BScale => "scales of cuBLASLt's B",
            Self::DScale => "encode factor of D",
            Self::AmaxD => "amax of D",
            Self::Bias => "bias",
        }
    }
}

/// A status of the library.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Status(pub(crate) u32);

impl Status {
    pub(crate) const SUCCESS: Self = Self(0);
    pub(crate) const NOT_INITIALIZED: Self = Self(1);
    pub(crate) const INVALID_VALUE: Self = Self(7);
    pub(crate) const ARCH_MISMATCH: Self = Self(8);
    pub(crate) const NOT_SUPPORTED: Self = Self(15);

    /// The name in the header.
    pub(crate) const fn name(self) -> &'static str {
        match self.0 {
            0 => "CUBLAS_STATUS_SUCCESS",
            1 => "CUBLAS_STATUS_NOT_INITIALIZED",
            3 => "CUBLAS_STATUS_ALLOC_FAILED",
            7 => "CUBLAS_STATUS_INVALID_VALUE",
            8 => "CUBLAS_STATUS_ARCH_MISMATCH",
            11 => "CUBLAS_STATUS_MAPPING_ERROR",
            13 => "CUBLAS_STATUS_EXECUTION_FAILED",
            14 => "CUBLAS_STATUS_INTERNAL_ERROR",
            15 => "CUBLAS_STATUS_NOT_SUPPORTED",
            16 => "CUBLAS_STATUS_LICENSE_ERROR",
            _ => "a status this crate does not know",
        }
    }

    /// True if the heuristic's answer means "not this problem" and not "something is broken".
    pub(crate) const fn is_refusal(self) -> bool {
        matches!(self, Self::INVALID_VALUE | Self::ARCH_MISMATCH | Self::NOT_SUPPORTED)
    }
}

impl fmt::Display for Status {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.0, self.name())
    }
}

/// What an algorithm is made of, for people and for the bug ledger.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct AlgoConfig {
    pub(crate) id: u32,
    pub(crate) tile: u32,
    pub(crate) stages: u32,
    pub(crate) split_k: i32,
    pub(crate) reduction: u32,
    pub(crate) swizzle: u32,
    pub(crate) custom: u32,
    pub(crate) inner_shape: u16,
    pub(crate) cluster_shape: u16,
}

impl fmt::Display for AlgoConfig {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, tile, stages, split_k, reduction, swizzle, custom, inner_shape, cluster_shape } = self;
        write!(
            f,
            "algorithm {id}, tile {tile}, stages {stages}, split-K {split_k} (reduction {reduction}), swizzle {swizzle}, \
             custom {custom}, inner shape {inner_shape}, cluster {cluster_shape}"
        )
    }
}
