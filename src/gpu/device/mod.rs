//! The GPU and its memory: what lies below cuBLASLt, the kernels, and everything that uses them.

pub(crate) mod libraries;
pub(crate) mod memory;
