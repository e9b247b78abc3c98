//! Matrices on the device: borrowed plain ones, quantized ones, and what is derived from these.

pub(crate) mod derived;
mod plain;
mod quantized;

pub use derived::KeptWeights;
pub use plain::{MatMut, MatRef, VecRef};
pub(crate) use quantized::QuantSpans;
pub use quantized::{Parts, QuantMatrix};
