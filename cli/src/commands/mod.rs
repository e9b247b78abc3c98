//! One file for each command. Each gives an `Outcome`; nothing is printed but notes and progress.

pub mod bench;
pub mod dequantize;
pub mod describe;
pub mod gemm;
pub mod info;
pub mod quantize;
pub mod tune;
pub mod verify;
