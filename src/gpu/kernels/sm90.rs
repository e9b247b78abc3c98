//! Launches of `kernels/gemm/sm90_block.cu`: products on Hopper of E4M3 codes with 1x128 and 128x128 scales, whole or of groups of rows.

use cudarc::driver::sys::CUtensorMap;
use serde::{Deserialize, Serialize};

use super::Kernels;
use super::launch::{Blocks, Kernel, enqueue};
use super::module::Modules;
use super::operand::{address, check_aligned, check_bytes, extent};
use super::tensor_map::{MapElement, MatrixMap, Swizzle};
use crate::error::{Error, Result};
use crate::format::DType;
use crate::format::layout::ScaleLayout;
use crate::gpu::device::memory::{Span, driver};
use crate::gpu::device::stream::Queue;

/// A configuration of the `sm90` product, by the tile of D of a thread block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[non_exhaustive]
pub enum Sm90Config {
    /// 256 x 128, two neighbours share A: for thousands of rows.
    #[serde(rename = "256x128")]
    Tile256x128,
    /// 128 x 128, two neighbours share A.
    #[serde(rename = "128x128")]
    Tile128x128,
    /// 64 x 128, half of the columns for each warpgroup.
    #[serde(rename = "64x128")]
    Tile64x128,
    /// 64 x 64, one block on a multiprocessor: few rows, long k.
    #[serde(rename = "64x64")]
    Tile64x64,
    /// 64 x 64, two blocks on a multiprocessor.
    #[serde(rename = "64x64-two")]
    Tile64x64Two,
}

named!(
    Sm90Config, "configuration of the sm90 product", Tile256x128 => "256x128", Tile128x128 => "128x128", Tile64x128 => "64x128",
    Tile64x64 => "64x64", Tile64x64Two => "64x64-two",
);

/// What a launch must know of a configuration. Mirror of the table in `kernels/gemm/sm90_block.cu`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Sm90Tile {
    pub(crate) rows: usize,
    pub(crate) cols: usize,
    /// Warpgroups that multiply; one more copies.
    warpgroups: u32,
    /// Neighbours along n that form a cluster, each with its part of A's rows: 2, or 1 for none.
    pub(crate) cluster: usize,
    /// Blocks on a multiprocessor.
    pub(crate) residents: usize,
    /// Dynamic shared memory in bytes.
    shared: u32,
}

impl Sm90Config {
    /// Tile, threads and memory.
    pub(crate) fn tile(self) -> Sm90Tile {
        let of = |rows, cols, warpgroups, cluster, residents, shared| Sm90Tile {
            rows,
            cols,
            warpgroups,
            cluster,
            residents,
            shared,
        };
        match self {
            Self::Tile256x128 => of(256, 128, 2, 2, 1, 201_920),
            Self::Tile128x128 => of(128, 128, 2, 2, 1, 217_376),
            Self::Tile64x128 => of(64, 128, 2, 1, 1, 216_448),
            Self::Tile64x64 => of(64, 64, 1, 1, 1, 209_472),
            Self::Tile64x64Two => of(64, 64, 1, 1, 2, 109_344),
        }
    }

    /// `gemm_fp8_block_<configuration>`; with `_grouped` behind it for groups of rows.
    fn kernel(self) -> String {
        format!("gemm_fp8_block_{}", self.name().replace('-', "_"))
    }
}

impl Sm90Tile {
    /// Blocks that run at once: whole clusters.
    pub(crate) fn blocks_at_once(&self, sm_count: usize) -> usize {
        (sm_count * self.residents / self.cluster * self.cluster).max(self.cluster)
    }

    /// Tiles of an m x n product, counted as blocks take them: clusters are whole.
    pub(crate) fn tiles(&self, m: usize, n: usize) -> usize {
        m.div_ceil(self.rows) * n.div_ceil(self.cols * self.cluster) * self.cluster
    }

    /// Tiles along m that are walked before the next along n, so that what blocks of a moment read stays in L2 (measured: 8 and 16 are
    /// equal, 4 is slower; H200, 2026-11).
    fn raster(&self) -> u32 {
        if self.rows >= 256 { 8 } else { 16 }
    }
}

/// The kernels of the family.
pub(super) struct Sm90Kernels {
    /// By configuration, in the order of [`Sm90Config::ALL`]: whole, then grouped.
    kernels: Vec<[Kernel; 2]>,
}

impl Sm90Kernels {
    pub(super) fn of(modules: &Modules) -> Result<Self> {
        let file = modules.file("gemm/sm90_block")?;
        let both = |config: Sm90Config| {
            let (name, shared) = (config.kernel(), config.tile().shared);
            Ok([file.kernel_with_shared(&name, shared)?, file.kernel_with_shared(&format!("{name}_grouped"), shared)?])
        };
        Ok(Self { kernels: Sm90Config::ALL.into_iter().map(both).collect::<Result<_>>()? })
    }
}

/// Codes and FP32 scales of an operand, as [`QuantMatrix`](crate::QuantMatrix) has them.
#[derive(Clone, Copy)]
pub(crate) struct Sm90Operand<'a> {
    pub(crate) codes: &'a Span<'a>,
    pub(crate) scales: &'a Span<'a>,
}

/// Where groups of rows lie in A and D. Counts are 64-bit integers on the device; no more rows are taken than lie there.
#[derive(Clone, Copy)]
pub(crate) struct Sm90Groups<'a> {
    pub(crate) count: usize,
    pub(crate) rows: Sm90Rows<'a>,
    pub(crate) counts: &'a Span<'a>,
}

/// Where a group of rows begins.
#[derive(Clone, Copy)]
pub(crate) enum Sm90Rows<'a> {
    /// At a row that the device says, 64-bit integers. A group is left out whose row is negative, beyond A, or no multiple of 4.
    Starts(&'a Span<'a>),
    /// At the group's number times this many rows, of which it has no more.
    Slots(usize),
}

/// One product: `D = alpha * A B^T`, or for groups `D_g = alpha * A_g B_g^T`.
pub(crate) struct Sm90Call<'a> {
    pub(crate) config: Sm90Config,
    /// Rows of A and D, those of all groups and between them.
    pub(crate) m: usize,
    /// Rows of B, of each group.
    pub(crate) n: usize,
    pub(crate) k: usize,
    /// E4M3 `[m][k]`, scales [`ScaleLayout::Vec128`].
    pub(crate) a: Sm90Operand<'a>,
    /// E4M3 `[n][k]`, one group after the other, scales [`ScaleLayout::Blk128`].
    pub(crate) b: Sm90Operand<'a>,
    /// `[m][n]`, BF16 or F32.
    pub(crate) d: &'a Span<'a>,
    pub(crate) d_stride: usize,
    pub(crate) d_type: DType,
    pub(crate) alpha: f32,
    pub(crate) groups: Option<Sm90Groups<'a>>,
}

/// Mirror of `Sm90Problem` in `kernels/gemm/sm90.cuh`.
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
    wide: u32,
}

/// What maps were made of: matrices, addresses and lengths.
type MapKey = [(MatrixMap, u64, usize); 2];

/// The tensor maps of A and B of the last launch, to be used again as long as the operands stay where they are.
#[derive(Default)]
pub(crate) struct Sm90Maps(Option<(MapKey, [CUtensorMap; 2])>);

impl Sm90Maps {
    fn of(&mut self, stream: &Queue, key: MapKey, a: &Span<'_>, b: &Span<'_>) -> Result<[CUtensorMap; 2]> {
        if let Some((_, maps)) = self.0.filter(|(made_of, _)| *made_of == key) {
            return Ok(maps);
        }
        stream.context().bind_to_thread().map_err(|e| driver("binding the context", e))?;
        let maps = [key[0].0.encode("A", a)?, key[1].0.encode("B", b)?];
        self.0 = Some((key, maps));
        Ok(maps)
    }
}

/// Blocks of 128 along k.
fn k_blocks(k: usize) -> usize {
    k.div_ceil(128)
}

impl Sm90Call<'_> {
    fn group_count(&self) -> usize {
        self.groups.map_or(1, |groups| groups.count)
    }

    /// Every length and alignment against what the kernel touches. Scales are copied 16 bytes at a time: of A as far as the rows of
    /// [`ScaleLayout::Vec128`] are padded, of B those of four k-blocks, as [`ScaleLayout::Blk128`] is padded: all of it lies inside.
    fn check(&self) -> Result<()> {
        let Self { m, n, k, .. } = *self;
        let groups = self.group_count();
        let shape = || format!("m = {m}, n = {n}, k = {k}, {groups} groups");
        if k == 0 || !k.is_multiple_of(16) || !n.is_multiple_of(8) {
            let rule = "k must be a multiple of 16 above 0, n a multiple of 8";
            return Err(Error::shape("A and B", shape(), rule, "pad k with zeros, and the rows of B"));
        }
        // Coordinates of the copy engine, and places in the grid, have 31 bits.
        let fits = |count: Option<usize>| count.is_some_and(|count| count < 1 << 31);
        let tile = Sm90Config::Tile64x64.tile();
        let tiles = || m.div_ceil(tile.rows).checked_mul(n.div_ceil(tile.cols))?.checked_mul(groups);
        if ![Some(m), Some(k), Some(groups), n.checked_mul(groups), tiles()].into_iter().all(fits) {
            return Err(Error::shape(
                "A and B",
                shape(),
                "m, k, the groups, the rows of B and the tiles of 64 x 64 of all groups must be below 2^31",
                "split the product",
            ));
        }
        self.groups.map_or(Ok(()), |groups| groups.check(m, n))?;
        self.check_operand(["A", "scales of A"], self.a, m, ScaleLayout::Vec128.len(m, k_blocks(k)))?;
        let b_scales = groups * ScaleLayout::Blk128.len(n.div_ceil(128), k_blocks(k));
        self.check_operand(["B", "scales of B"], self.b, groups * n, b_scales)?;
        if !matches!(self.d_type, DType::Bf16 | DType::F32) {
            return Err(Error::dtype("D", self.d_type, "is not bf16 or f32", "store one of them"));
        }
        if self.d_stride < n || !self.d_stride.is_multiple_of(16 / self.d_type.bytes()) {
            return Err(Error::shape(
                "D",
                format!("row stride {} ({}) for n = {n}", self.d_stride, self.d_type),
                "must be a multiple of 16 bytes, no shorter than a row",
                "pad the rows of D",
            ));
        }
        check_bytes("D", self.d, extent(m, n, self.d_stride) * self.d_type.bytes())?;
        check_aligned("D", self.d, 16)
    }

    fn check_operand(
        &self,
        [codes, scales]: [&str; 2],
        operand: Sm90Operand<'_>,
        rows: usize,
        scale_count: usize,
    ) -> Result<()> {
        check_bytes(codes, operand.codes, rows * self.k)?;
        check_aligned(codes, operand.codes, 16)?;
        check_bytes(scales, operand.scales, scale_count * 4)?;
        check_aligned(scales, operand.scales, 16)
    }

    /// A's and B's boxes.
    fn maps(&self) -> [MatrixMap; 2] {
        let tile = self.config.tile();
        let map = |rows, box_rows| MatrixMap {
            element: MapElement::U8,
            rows,
            cols: self.k,
            row_stride: self.k,
            box_rows,
            box_cols: 128,
            swizzle: Swizzle::Bytes128,
        };
        [map(self.m, tile.rows / tile.cluster), map(self.group_count() * self.n, tile.cols)]
    }

    fn problem(&self) -> Sm90Problem {
        let &Self { config, m, n, k, a, b, d, d_stride, d_type, alpha, groups } = self;
        let starts = groups.and_then(|groups| match groups.rows {
            Sm90Rows::Starts(starts) => Some(starts),
            Sm90Rows::Slots(_) => None,
        });
        let slot_rows = groups.map_or(0, |groups| match groups.rows {
            Sm90Rows::Starts(_) => 0,
            Sm90Rows::Slots(rows) => rows,
        });
        Sm90Problem {
            m: m as u32,
            n: n as u32,
            k: k as u32,
            raster: config.tile().raster(),
            scales_a: a.scales.address,
            scales_b: b.scales.address,
            pitch_a: m.next_multiple_of(4) as u32,
            pitch_b: k_blocks(k).next_multiple_of(4) as u32,
            d: d.address,
            stride_d: d_stride as u64,
            starts: address(starts),
            counts: address(groups.map(|groups| groups.counts)),
            groups: groups.map_or(0, |groups| groups.count) as u32,
            slot_rows: slot_rows as u32,
            group_b: n as u32,
            group_tiles: n.div_ceil(128) as u32,
            alpha,
            wide: u32::from(d_type == DType::F32),
        }
    }

    fn blocks(&self, sm_count: usize) -> Blocks {
        let tile = self.config.tile();
        let at_once = tile.blocks_at_once(sm_count);
        // How many tiles groups have, the device alone knows.
        let grid = if self.groups.is_some() { at_once } else { at_once.min(tile.tiles(self.m, self.n)) };
        Blocks::new((grid, 1), 128 * (tile.warpgroups + 1)).clusters(tile.cluster as u32).shared(tile.shared)
    }
}

impl Sm90Groups<'_> {
    fn check(&self, m: usize, n: usize) -> Result<()> {
        if !n.is_multiple_of(128) {
            return Err(Error::shape(
                "B",
                format!("n = {n} rows for each of {} groups", self.count),
                "must be a multiple of 128: no 128x128 scale belongs to two groups",
                "pad the rows of each group's B with zeros",
            ));
        }
        let numbers = [("counts of groups", Some(self.counts)), ("starts of groups", self.starts())];
        for (name, span) in numbers {
            let Some(span) = span else { continue };
            if span.bytes < self.count * 8 {
                return Err(Error::shape(
                    name,
                    format!("{} bytes for {} groups", span.bytes, self.count),
                    format!("must be at least {}: one 64-bit integer for each group", self.count * 8),
                    "pass as many numbers as there are groups",
                ));
            }
            check_aligned(name, span, 8)?;
        }
        match self.rows {
            Sm90Rows::Slots(rows)
                if !rows.is_multiple_of(4) || rows.checked_mul(self.count).is_none_or(|all| all > m) =>
            {
                Err(Error::shape(
                    "rows of A",
                    format!("{m} rows for {} slots of {rows}", self.count),
                    "must hold every slot, each of a multiple of 4 rows",
                    "pass slots of a multiple of 4 rows (casts begin groups at multiples of 128), and an A of all slots",
                ))
            }
            _ => Ok(()),
        }
    }

    fn starts(&self) -> Option<&Span<'_>> {
        match self.rows {
            Sm90Rows::Starts(starts) => Some(starts),
            Sm90Rows::Slots(_) => None,
        }
    }
}

impl Kernels {
    /// Enqueues one product. The order of sums depends on k alone: equal rows of A have equal results, whatever m, the place of the row,
    /// and what stands beside it.
    pub(crate) fn sm90_product(&self, stream: &Queue, call: &Sm90Call<'_>, maps: &mut Sm90Maps) -> Result<()> {
        call.check()?;
        if call.m == 0 || call.n == 0 || call.group_count() == 0 {
            return Ok(());
        }
        let [a, b] = call.maps();
        let key = [(a, call.a.codes.address, call.a.codes.bytes), (b, call.b.codes.address, call.b.codes.bytes)];
        let [map_a, map_b] = maps.of(stream, key, call.a.codes, call.b.codes)?;
        let place = Sm90Config::ALL.iter().position(|config| *config == call.config).unwrap_or(0);
        let kernel = self.sm90(stream)?.kernels[place][usize::from(call.groups.is_some())];
        enqueue!(stream, kernel, call.blocks(self.sm_count), map_a, map_b, call.problem())
    }
}

#[cfg(test)]
mod tests;
