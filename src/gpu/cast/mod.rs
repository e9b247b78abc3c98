//! Quantizers and dequantizers.

pub(crate) mod quantize;
