//! Flags of `CUBLASLT_ALGO_CAP_NUMERICAL_IMPL_FLAGS` and `CUBLASLT_MATMUL_PREF_IMPL_MASK`.
//!
//! Written by hand: the header's macros have suffix `ull`, and bindgen makes `u32` of them.

/// The flags' type, as the library reads and writes it.
pub type Flags = u64;

/// Fused multiply-add on ordinary cores.
pub const FMA: Flags = 0x1;
/// Half-precision tensor cores.
pub const HMMA: Flags = 0x2;
/// Integer tensor cores.
pub const IMMA: Flags = 0x4;
/// Double-precision tensor cores.
pub const DMMA: Flags = 0x8;
/// All tensor core kinds.
pub const TENSOR_OP_MASK: Flags = 0xfe;
/// All operation kinds.
pub const OP_TYPE_MASK: Flags = 0xff;
/// Accumulates in binary16.
pub const ACCUMULATOR_16F: Flags = 0x1 << 8;
/// Accumulates in binary32.
pub const ACCUMULATOR_32F: Flags = 0x2 << 8;
/// Accumulates in binary64.
pub const ACCUMULATOR_64F: Flags = 0x4 << 8;
/// Accumulates in 32-bit integers.
pub const ACCUMULATOR_32I: Flags = 0x8 << 8;
/// All accumulator types.
pub const ACCUMULATOR_TYPE_MASK: Flags = 0xff << 8;
/// Reads binary16.
pub const INPUT_16F: Flags = 0x1 << 16;
/// Reads bfloat16.
pub const INPUT_16BF: Flags = 0x2 << 16;
/// Reads TF32.
pub const INPUT_TF32: Flags = 0x4 << 16;
/// Reads binary32.
pub const INPUT_32F: Flags = 0x8 << 16;
/// Reads binary64.
pub const INPUT_64F: Flags = 0x10 << 16;
/// Reads 8-bit integers.
pub const INPUT_8I: Flags = 0x20 << 16;
/// Reads E4M3.
pub const INPUT_8F_E4M3: Flags = 0x40 << 16;
/// Reads E5M2.
pub const INPUT_8F_E5M2: Flags = 0x80 << 16;
/// All input types.
pub const OP_INPUT_TYPE_MASK: Flags = 0xff << 16;
/// Complex products by three real ones.
pub const GAUSSIAN: Flags = 0x1 << 32;
