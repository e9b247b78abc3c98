//! Quantizers, casts and dequantizers.

pub(crate) mod groups;
pub(crate) mod quantize;
pub(crate) mod source;
pub(crate) mod targets;
