//! [`GroupedForward`]: the second input of the gradient of an activation, and what is asked of the buffer of either input.

use super::operand::{check_aligned, check_bytes};
use crate::epilogue::ActivationGradient;
use crate::error::{Error, Result};
use crate::format::DType;
use crate::gpu::device::memory::Span;

/// The second input of an activation's gradient: what the activation was given in the forward pass, members of the same shapes.
#[derive(Clone, Copy)]
pub(crate) struct GroupedForward<'a> {
    pub(crate) of: ActivationGradient,
    pub(crate) x: &'a Span<'a>,
    pub(crate) dtype: DType,
    /// Where members begin in it, and its length in elements.
    pub(crate) offsets: &'a Span<'a>,
    pub(crate) length: usize,
}

/// What messages call it, and where its members begin.
pub(super) const SECOND_INPUT: &str = "x of an activation gradient";
pub(super) const SECOND_OFFSETS: &str = "offsets of x";

/// Mirror of `GroupedForward` in `kernels/cast/grouped_gradient.cu`; where its members begin is among [`Members`](super::grouped_members::Members).
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Forward {
    x: u64,
    dtype: u32,
    of: u32,
    aligned: u32,
}

impl GroupedForward<'_> {
    /// The same as the kernels take it, of a tensor of so many members.
    pub(super) fn checked(&self, members: usize) -> Result<Forward> {
        let dtype = match self.dtype {
            DType::Bf16 => 0,
            DType::F16 => 1,
            DType::F32 => 2,
            other => return Err(Error::dtype("x", other, "is not one of bf16, f16, f32", "convert it first")),
        };
        check_buffer(SECOND_INPUT, self.x, self.length, self.dtype)?;
        check_bytes(SECOND_OFFSETS, self.offsets, members * 8)?;
        check_aligned(SECOND_OFFSETS, self.offsets, 8)?;
        let of = match self.of {
            ActivationGradient::Relu => 0,
            ActivationGradient::Gelu => 1,
            ActivationGradient::Silu => 2,
            ActivationGradient::QuickGelu => 3,
            ActivationGradient::SquaredRelu => 4,
        };
        let aligned = u32::from(is_buffer_aligned(self.x));
        Ok(Forward { x: self.x.address, dtype, of, aligned })
    }
}

/// A buffer of so many elements.
pub(super) fn check_buffer(operand: &str, x: &Span<'_>, length: usize, dtype: DType) -> Result<()> {
    check_bytes(operand, x, length * dtype.bytes())?;
    check_aligned(operand, x, dtype.bytes() as u64)
}

/// Whether eight elements at a multiple of eight begin at a multiple of 16 bytes, of every type.
pub(super) fn is_buffer_aligned(x: &Span<'_>) -> bool {
    x.address.is_multiple_of(16)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_mirror_has_the_size_of_what_it_mirrors() {
        assert_eq!(size_of::<Forward>(), 24);
    }
}
