//! Casts per channel of codes: which kernel of `kernels/cast/cast_channel.cuh` has the tiles of a matrix.

use super::cast_call::{CastFrom, CastTo, CastValues};
use super::launch::Kernel;
use super::module::Module;
use crate::error::Result;
use crate::format::{CastScales, CastScheme, CodeFormat, Extent};

/// Kernels per channel, not transposed, of codes whose scales are FP32 and no channel's own. A block has a tile of 128 x 128.
pub(super) struct ChannelKernels {
    /// Eight rows a thread.
    many: Kernel,
    /// Four, to E2M1 alone.
    some: Kernel,
    /// Four, whose products are kept.
    few: Kernel,
}

impl ChannelKernels {
    /// Of codes of a format, as kernels name it.
    pub(super) fn of(tile: &Module, from: &str) -> Result<Self> {
        let kernel = |name: &str| tile.kernel(&format!("cast_channel_{name}_{from}"));
        Ok(Self { many: kernel("wide")?, some: kernel("four")?, few: kernel("few")? })
    }

    /// The kernel for so many tiles, and the threads of its blocks (H200, 2026-11, the records of channels and of E2M1): of `few` two blocks share a multiprocessor; `many` to E2M1 has so much code that it pays from
    /// some 1600 tiles of an H200 on.
    pub(super) fn of_tiles(&self, tiles: usize, to: CodeFormat, sm_count: usize) -> (Kernel, u32) {
        let (few, many) = (2 * sm_count, if to == CodeFormat::E2M1 { 12 * sm_count } else { 0 });
        if tiles <= few {
            (self.few, 256)
        } else if tiles >= many {
            (self.many, 128)
        } else {
            (self.some, 256)
        }
    }
}

/// Whether they serve this cast.
pub(super) fn are_channels_wide(from: &CastFrom<'_>, to: &CastTo<'_>) -> bool {
    let codes = matches!(from.values, CastValues::Coded { scheme, .. }
        if !is_channel(scheme) && scheme.scales() != CastScales::Ue8m0);
    codes && is_channel(to.scheme) && from.index.is_none() && !to.scheme.is_transposed()
}

/// Whether each column of a group has a scale of its own.
pub(super) fn is_channel(scheme: CastScheme) -> bool {
    scheme.group().extents()[1] == Extent::Elements(1)
}
