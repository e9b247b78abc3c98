//! Quantizers, casts and dequantizers.

pub(crate) mod apart;
pub(crate) mod backward;
pub(crate) mod grouped;
pub(crate) mod groups;
pub(crate) mod norm;
pub(crate) mod quantize;
pub(crate) mod source;
pub(crate) mod targets;
