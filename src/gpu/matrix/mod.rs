//! Matrices on the device: borrowed plain ones, quantized ones, and what is derived from these.

mod cast;
pub(crate) mod derived;
mod grouped;
mod grouped_matrix;
mod plain;
mod quantized;
mod repack;
mod zero;

pub use cast::CastMatrix;
pub use derived::KeptWeights;
pub(crate) use grouped::GroupedPlaces;
pub use grouped::{GroupedDeviceLayout, GroupedTensor};
pub use grouped_matrix::GroupedMatrix;
pub use plain::{MatMut, MatRef, VecRef};
pub(crate) use plain::{SharedMatrix, check_strided};
pub use quantized::{Parts, QuantMatrix};
pub(crate) use quantized::{QuantSpans, check_size, rows_lie_together};
