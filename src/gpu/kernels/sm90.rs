//! Launches of `kernels/gemm/sm90_block.cu`, `sm90_plain.cu`, `sm90_outer_plain.cu`, `sm90_outer_fp32.cu`, `sm90_vector.cu`, `sm90_vector_fp32.cu`, `sm90_block_a.cu`, `sm90_outer.cu` and `sm90_cast.cu`: products on Hopper of FP8 codes, with 1x128 and 128x128
//! scales, whole or of groups of rows, with 1x128 scales on both sides, whole or of groups of rows or k, with 128x128 and 1x128 scales, whole, and with scales of rows or whole matrices; what they store are
//! numbers, or codes with 1x128 scales, or either of SwiGLU of two products. Codes are E4M3; of products that store numbers also E5M2 on one side (`sm90_e5m2_a.cu`,
//! `sm90_e5m2_b.cu`).

use super::Kernels;
use super::epilogue::{activation_code, wide_code};
use super::launch::{Blocks, enqueue};
use super::operand::address;
use super::scale_rule::ScaleRule;
use super::sm90_call::{Sm90Call, Sm90Scales, k_blocks};
use super::sm90_config::{E4M3_PAIR, Sm90Tile};
use super::sm90_groups::Sm90Rows;
use super::sm90_maps::Sm90Maps;
use crate::error::Result;
use crate::format::{DType, Fp8Format, Fp8Granularity, Fp8Recipe};
use crate::gpu::device::stream::Queue;

/// Mirror of `Sm90Problem` in `kernels/gemm/sm90_config.cuh`.
#[repr(C)]
#[derive(Clone, Copy)]
struct Sm90Problem {
    m: u32,
    n: u32,
    k: u32,
    raster: u32,
    scales_a: u64,
    scales_b: u64,
    pitch_a: u32,
    pitch_b: u32,
    d: u64,
    stride_d: u64,
    starts: u64,
    counts: u64,
    groups: u32,
    slot_rows: u32,
    group_b: u32,
    group_tiles: u32,
    alpha: f32,
    beta: f32,
    plain: u32,
    d_type: u32,
    activation: u32,
    bias_type: u32,
    residual_type: u32,
    a_step: u32,
    b_step: u32,
    group_bias: u32,
    bias: u64,
    residual: u64,
    stride_residual: u64,
    scales_d: u64,
    pitch_d: u32,
    rule: ScaleRule,
}

impl Sm90Call<'_> {
    fn problem(&self, tile: Sm90Tile) -> Result<Sm90Problem> {
        let &Self {
            config: _,
            stand_in: _,
            formats: _,
            m,
            n,
            k,
            a,
            b,
            layout,
            d,
            d_stride,
            d_type,
            alpha,
            beta,
            bias,
            activation,
            residual,
            groups,
            end: _,
        } = self;
        let (parts, codes) = (self.parts(), self.codes());
        // Of numbers the rule has no part in it.
        let recipe = codes.map_or(Fp8Recipe::new(Fp8Granularity::Group1x128, Fp8Format::E4M3), |codes| codes.recipe);
        let each = match layout {
            Sm90Scales::Blocks | Sm90Scales::Vectors | Sm90Scales::BlocksOfA => [false; 2],
            Sm90Scales::Outer { each } => each,
        };
        let of_groups = self.scales_of_groups();
        let starts = groups.and_then(|groups| match groups.rows {
            Sm90Rows::Starts(starts) => Some(starts),
            Sm90Rows::Slots(_) => None,
        });
        let slot_rows = groups.map_or(0, |groups| match groups.rows {
            Sm90Rows::Starts(_) => 0,
            Sm90Rows::Slots(rows) => rows,
        });
        Ok(Sm90Problem {
            m: m as u32,
            n: n as u32,
            k: k as u32,
            raster: tile.raster(),
            scales_a: a.scales.address,
            scales_b: b.scales.address,
            pitch_a: match layout {
                Sm90Scales::Outer { .. } => u32::from(of_groups[0]),
                Sm90Scales::BlocksOfA => k_blocks(k).next_multiple_of(4) as u32,
                Sm90Scales::Blocks | Sm90Scales::Vectors => m.next_multiple_of(4) as u32,
            },
            pitch_b: match layout {
                Sm90Scales::Outer { .. } => u32::from(of_groups[1]),
                Sm90Scales::Vectors | Sm90Scales::BlocksOfA => (self.matrices()[0] * n).next_multiple_of(4) as u32,
                Sm90Scales::Blocks => k_blocks(k).next_multiple_of(4) as u32,
            },
            d: d.address,
            stride_d: d_stride as u64,
            starts: address(starts),
            counts: address(groups.map(|groups| groups.counts)),
            groups: groups.map_or(0, |groups| groups.count) as u32,
            slot_rows: slot_rows as u32,
            // Of groups of k, which share B, none.
            group_b: if self.matrices()[0] == 1 { 0 } else { (parts * n) as u32 },
            group_tiles: (parts * n.div_ceil(128)) as u32,
            alpha,
            beta,
            plain: u32::from(!self.has_more()),
            d_type: if codes.is_some() { 0 } else { wide_code(d_type)? },
            activation: activation_code(activation),
            bias_type: bias.map_or(Ok(0), |bias| wide_code(bias.1))?,
            residual_type: residual.map_or(Ok(0), |residual| wide_code(residual.2))?,
            a_step: u32::from(each[0]),
            b_step: u32::from(each[1]),
            group_bias: n as u32,
            bias: address(bias.map(|bias| bias.0)),
            residual: address(residual.map(|residual| residual.0)),
            stride_residual: residual.map_or(0, |residual| residual.1) as u64,
            scales_d: address(codes.map(|codes| codes.scales)),
            pitch_d: m.next_multiple_of(4) as u32,
            rule: ScaleRule::new(recipe, DType::F32),
        })
    }

    fn blocks(&self, tile: Sm90Tile, sm_count: usize) -> Blocks {
        let at_once = tile.blocks_at_once(sm_count);
        let tiles = tile.tiles(self.m, self.n);
        // How many tiles groups have, the device alone knows. Clusters that divide k have one tile each.
        let grid = match self.groups {
            Some(_) => at_once,
            None if tile.split > 1 => tiles,
            None => at_once.min(tiles),
        };
        Blocks::new((grid, 1), 128 * (tile.warpgroups + 1)).clusters(tile.cluster() as u32).shared(tile.shared)
    }
}

impl Kernels {
    /// Enqueues one product. The order of sums depends on k and [`Sm90Config::k_parts`] alone: equal rows of A have equal results, whatever m, the place of the row,
    /// and what stands beside it.
    pub(crate) fn sm90_product(&self, stream: &Queue, call: &Sm90Call<'_>, maps: &mut Sm90Maps) -> Result<()> {
        call.check()?;
        if call.m == 0 || call.n == 0 || call.group_count() == 0 {
            return Ok(());
        }
        let (kind, config, formats) = (call.kind(), call.config_with_the_end(), call.formats);
        let kernels = if formats == E4M3_PAIR { self.sm90(stream)? } else { self.sm90_e5m2(stream)? };
        let found = config.tile_of(kind, formats).zip(kernels.of_call(formats, kind, config));
        let (tile, kernel) = found.ok_or_else(|| config.has_none(kind, formats))?;
        let [a, b, d, a_edge, b_edge] = maps.on(stream, call, tile)?;
        enqueue!(stream, kernel, call.blocks(tile, self.sm_count), a, b, d, a_edge, b_edge, call.problem(tile)?)
    }
}

#[cfg(test)]
mod tests;
