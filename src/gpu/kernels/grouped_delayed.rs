//! The launch that ends a step of delayed scaling of grouped tensors: `kernels/cast/grouped_delayed.cu`.

use std::iter::empty;

use super::Kernels;
use super::launch::{Blocks, enqueue};
use super::operand::check_floats;
use crate::error::{Error, Result};
use crate::format::{AmaxHistory, DelayedScaling, Fp8Format};
use crate::gpu::device::memory::{Span, check_apart};
use crate::gpu::device::stream::Queue;

/// Scales of a block.
const SCALES: usize = 32;

/// How factors follow from past amax. Mirror of `GroupedDelayed` in `kernels/cast/grouped_delayed.cu`.
#[repr(C)]
#[derive(Debug, Clone, Copy, PartialEq)]
struct GroupedDelayed {
    range: f32,
    window: u32,
    most_recent: u32,
    scales: u32,
}

impl GroupedDelayed {
    fn checked(
        (scaling, format): (DelayedScaling, Fp8Format),
        scales: usize,
        history: &Span<'_>,
        encode: &Span<'_>,
    ) -> Result<Self> {
        if scales >= 1 << 31 {
            let rule = "must be fewer than 2^31";
            return Err(Error::shape("scales of a grouped tensor", scales.to_string(), rule, "split the tensor"));
        }
        check_floats("amax history", history, scaling.window() * scales)?;
        check_floats("encode factors", encode, scales)?;
        // Both are read and written.
        check_apart(empty(), [("amax history", *history), ("encode factors", *encode)].into_iter())?;
        Ok(Self {
            range: format.max() * 2f32.powi(-scaling.margin()),
            window: scaling.window() as u32,
            most_recent: u32::from(scaling.rule() == AmaxHistory::MostRecent),
            scales: scales as u32,
        })
    }
}

impl Kernels {
    /// The factors of the next step, of so many scales: `history` is `[window][scales]`, the step that ends in front.
    pub(crate) fn delayed_update_grouped(
        &self,
        stream: &Queue,
        rule: (DelayedScaling, Fp8Format),
        scales: usize,
        history: &Span<'_>,
        encode: &Span<'_>,
    ) -> Result<()> {
        let rule = GroupedDelayed::checked(rule, scales, history, encode)?;
        if scales == 0 {
            return Ok(());
        }
        let (kernel, blocks) = (self.grouped(stream)?.delayed_update, Blocks::new((scales.div_ceil(SCALES), 1), 1024));
        enqueue!(stream, kernel, blocks, rule, history.address, encode.address)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn history_and_factors_are_as_long_as_the_scales_ask_and_lie_apart() {
        let scaling = DelayedScaling::new(4, 1, AmaxHistory::MostRecent).unwrap();
        let rule = (scaling, Fp8Format::E5M2);
        let (history, encode) = (Span::unguarded(4096, 4 * 7 * 4), Span::unguarded(8192, 7 * 4));
        let mirror = GroupedDelayed { range: 28672.0, window: 4, most_recent: 1, scales: 7 };
        assert_eq!(size_of::<GroupedDelayed>(), 16);
        assert_eq!(GroupedDelayed::checked(rule, 7, &history, &encode).unwrap(), mirror);
        let said = |scales, address, bytes| {
            GroupedDelayed::checked(rule, scales, &history, &Span::unguarded(address, bytes)).unwrap_err().to_string()
        };
        assert!(said(8, 8192, 32).contains("amax history"));
        assert!(said(1 << 31, 8192, 32).contains("2^31"));
        assert!(said(7, 8192, 27).contains("encode factors"));
        assert!(said(7, 8194, 28).contains("encode factors"));
        assert!(said(7, 4096 + 4 * 7 * 4 - 4, 28).contains("overlap"));
    }
}
