//! Casts per channel of codes: which kernel of `kernels/cast/cast_channel.cuh` has the tiles of a matrix.

use super::cast_call::{CastFrom, CastTo, CastValues};
use super::launch::Kernel;
use super::module::Module;
use crate::error::Result;
use crate::format::{CastScales, CastScheme, CodeFormat, Extent};

/// Kernels per channel, not transposed, of codes whose scales are FP32 and no channel's own. A block has a tile of 128 x 128.
pub(super) struct ChannelKernels {
    /// Eight rows a thread; to E4M3 and to E2M1.
    many: [Kernel; 2],
    /// Four, whose products are kept.
    few: Kernel,
}

impl ChannelKernels {
    /// Of codes of a format, as kernels name it.
    pub(super) fn of(tile: &Module, from: &str) -> Result<Self> {
        let kernel = |name: &str| tile.kernel(&format!("cast_channel_{name}"));
        let many = |to: &str| kernel(&format!("wide_{from}_{to}"));
        Ok(Self { many: [many("e4m3")?, many("e2m1")?], few: kernel(&format!("few_{from}"))? })
    }

    /// The kernel for so many tiles, and the threads of its blocks: of `few` two blocks share a multiprocessor (H200, 2026-12, the record of channels).
    pub(super) fn of_tiles(&self, tiles: usize, to: CodeFormat, sm_count: usize) -> (Kernel, u32) {
        if tiles <= 2 * sm_count { (self.few, 256) } else { (self.many[usize::from(to == CodeFormat::E2M1)], 128) }
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
