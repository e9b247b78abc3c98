//! [`Sm90Maps`]: tensor maps of a product for Hopper, kept as long as its operands stay where they are; [`Sm90MapsKey`]: of which product.

use cudarc::driver::sys::CUtensorMap;

use super::sm90_call::{Sm90Call, Sm90End};
use super::sm90_config::{Kind, Sm90Config, Sm90Tile};
use super::sm90_groups::{Sm90Along, Sm90Groups};
use super::tensor_map::{MapElement, MatrixMap, Swizzle};
use crate::error::Result;
use crate::format::DType;
use crate::gpu::device::memory::{Span, driver};
use crate::gpu::device::stream::Queue;

/// What a map is made of: the matrix, its address and length.
type MapKey = (MatrixMap, u64, usize);

/// The tensor maps of A and B of the last launch, of D where it is stored in boxes, and of A and B with the boxes of a last tile that is cut, to be used again as long as they stay where they are.
#[derive(Default)]
pub(crate) struct Sm90Maps([Option<(MapKey, CUtensorMap)>; 5]);

impl Sm90Maps {
    /// Those of a call on this stream.
    pub(super) fn on(&mut self, stream: &Queue, call: &Sm90Call<'_>, tile: Sm90Tile) -> Result<[CUtensorMap; 5]> {
        self.of(call, tile, |name, matrix, span| {
            tracing::trace!(operand = name, ?matrix, "a tensor map is encoded");
            stream.context().bind_to_thread().map_err(|e| driver("binding the context", e))?;
            matrix.encode(name, span)
        })
    }

    /// Those of a call, as `encode` makes what is not kept. Empty where there is no matrix.
    pub(crate) fn of(
        &mut self,
        call: &Sm90Call<'_>,
        tile: Sm90Tile,
        mut encode: impl FnMut(&str, &MatrixMap, &Span<'_>) -> Result<CUtensorMap>,
    ) -> Result<[CUtensorMap; 5]> {
        let ([a, b], [a_edge, b_edge]) = (call.maps(tile), call.edge_maps(tile));
        let operands = [
            ("A", Some(a), call.a.codes),
            ("B", Some(b), call.b.codes),
            ("D", call.map_d(tile), call.d),
            ("the edge of A", a_edge, call.a.codes),
            ("the edge of B", b_edge, call.b.codes),
        ];
        let mut maps = [CUtensorMap { opaque: [0; 16] }; 5];
        for ((kept, map), (name, matrix, span)) in self.0.iter_mut().zip(&mut maps).zip(operands) {
            let Some(matrix) = matrix else { continue };
            let key = (matrix, span.address, span.bytes);
            *map = match kept.filter(|(made_of, _)| *made_of == key) {
                Some((_, map)) => map,
                None => encode(name, &matrix, span)?,
            };
            *kept = Some((key, *map));
        }
        Ok(maps)
    }

    /// Whether there are none yet.
    pub(crate) fn is_empty(&self) -> bool {
        self.0.iter().all(Option::is_none)
    }
}

/// What of a call decides its maps, but for where A and D lie, which [`Sm90Maps`] compares: for whoever keeps the maps of many calls. Weights stay where they are, and
/// layers of one shape, each with its own, come in turns: so B's address is part of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Sm90MapsKey {
    kind: Kind,
    config: Sm90Config,
    mnk: [usize; 3],
    /// Row stride and type.
    d: (usize, DType),
    groups: Option<usize>,
    b: u64,
}

impl Sm90Call<'_> {
    pub(crate) fn maps_key(&self) -> Sm90MapsKey {
        Sm90MapsKey {
            kind: self.kind_with_all_ends(),
            config: self.config,
            mnk: [self.m, self.n, self.k],
            d: (self.d_stride, self.d_type),
            groups: self.groups.map(|groups| groups.count),
            b: self.b.codes.address,
        }
    }

    /// A's and B's boxes: of A the part of a block of a cluster, of B the rows of one matrix.
    pub(super) fn maps(&self, tile: Sm90Tile) -> [MatrixMap; 2] {
        let map = |rows, box_rows| MatrixMap {
            element: MapElement::U8,
            rows,
            cols: self.k,
            row_stride: self.k,
            box_rows,
            box_cols: 128,
            swizzle: Swizzle::Bytes128,
        };
        [map(self.m, tile.rows / tile.sharers), map(self.matrices()[0] * self.parts() * self.n, tile.cols)]
    }

    /// Likewise with the boxes of a last tile that is cut, where the kernel asks for them: `EDGE_A`, `EDGE_B` of `Sm90Boxes` in `kernels/gemm/sm90_produce.cuh`.
    fn edge_maps(&self, tile: Sm90Tile) -> [Option<MatrixMap>; 2] {
        let [a, b] = self.maps(tile);
        let of_rows = matches!(self.groups, Some(Sm90Groups { along: Sm90Along::Rows, .. }));
        let cut = |map: MatrixMap, rows: usize, has_edge: bool| {
            let box_rows = rows % map.box_rows;
            (has_edge && box_rows > 0).then_some(MatrixMap { box_rows, ..map })
        };
        [cut(a, self.m, !of_rows), cut(b, self.n, matches!(self.end, Sm90End::Numbers))]
    }

    /// D's boxes, where its kernel stores them: of 16-bit numbers.
    pub(super) fn map_d(&self, tile: Sm90Tile) -> Option<MatrixMap> {
        let element = match self.d_type {
            _ if !tile.boxes || matches!(self.end, Sm90End::Codes(_)) => return None,
            DType::Bf16 => MapElement::Bf16,
            DType::F16 => MapElement::F16,
            _ => return None,
        };
        let rows = self.m * self.matrices()[1];
        Some(MatrixMap {
            element,
            rows,
            cols: self.n,
            // Of one row the next one's place does not matter, and may be anywhere.
            row_stride: if rows == 1 { self.n } else { self.d_stride },
            box_rows: tile.rows / tile.warpgroups as usize,
            box_cols: 64,
            swizzle: Swizzle::Bytes128,
        })
    }
}

/// A BF16 product of 1x128 and 128x128 scales, which are not in its maps.
#[cfg(test)]
pub(crate) fn call_of<'a>([a, b, d]: [&'a Span<'a>; 3], [m, n, k]: [usize; 3]) -> Sm90Call<'a> {
    use super::sm90_call::{Sm90Operand, Sm90Scales};
    Sm90Call {
        config: Sm90Config::Tile128x128,
        stand_in: None,
        formats: super::sm90_config::E4M3_PAIR,
        m,
        n,
        k,
        a: Sm90Operand { codes: a, scales: a },
        b: Sm90Operand { codes: b, scales: b },
        layout: Sm90Scales::Blocks,
        d,
        d_stride: n,
        d_type: DType::Bf16,
        alpha: 1.0,
        beta: 0.0,
        bias: None,
        activation: crate::epilogue::Activation::None,
        residual: None,
        groups: None,
        end: Sm90End::Numbers,
    }
}

#[cfg(test)]
mod tests {
    use super::super::sm90_groups::Sm90Rows;
    use super::*;

    const MNK: [usize; 3] = [256, 384, 512];

    /// What was encoded for a call.
    fn encoded(maps: &mut Sm90Maps, call: &Sm90Call<'_>) -> Vec<String> {
        let mut encoded = Vec::new();
        let made = maps.of(call, call.config.tile(), |name, matrix, span| {
            encoded.push(name.to_string());
            Ok(CUtensorMap { opaque: [span.address + matrix.rows as u64; 16] })
        });
        let made = made.unwrap().map(|map| map.opaque[0]);
        let d = call.map_d(call.config.tile()).map_or(0, |map| call.d.address + map.rows as u64);
        let [a, b] = call.maps(call.config.tile());
        let [of_a, of_b] = [call.a.codes.address + a.rows as u64, call.b.codes.address + b.rows as u64];
        let [a_edge, b_edge] = call.edge_maps(call.config.tile());
        assert_eq!(made, [of_a, of_b, d, a_edge.map_or(0, |_| of_a), b_edge.map_or(0, |_| of_b)]);
        encoded
    }

    #[test]
    fn boxes_at_edges_end_with_their_matrix() {
        let span = Span::unguarded(0x1000, 1 << 20);
        let boxes = |call: Sm90Call<'_>| call.edge_maps(call.config.tile()).map(|map| map.map(|map| map.box_rows));
        let call = |mnk| call_of([&span; 3], mnk);
        assert_eq!(boxes(call([256, 384, 512])), [None, None]);
        assert_eq!(boxes(call([200, 328, 512])), [Some(72), Some(72)]);
        // Each block of a pair brings half of its tile's rows.
        let wide = Sm90Call { config: Sm90Config::Tile256x128, ..call([129, 136, 512]) };
        assert_eq!(boxes(wide), [Some(1), Some(8)]);
        assert_eq!(boxes(Sm90Call { config: Sm90Config::Tile128x144, ..call([64, 576, 512]) }), [Some(64), None]);
        // Rows of A behind those of a group are the next one's; of codes and of two matrices B's whole boxes are asked for.
        let groups =
            |along| Some(Sm90Groups { count: 2, along, rows: Sm90Rows::Slots(100), counts: &span, scales: [false; 2] });
        assert_eq!(boxes(Sm90Call { groups: groups(Sm90Along::Rows), ..call([200, 328, 512]) }), [None, Some(72)]);
        assert_eq!(boxes(Sm90Call { groups: groups(Sm90Along::K), ..call([200, 328, 512]) }), [Some(72), Some(72)]);
        assert_eq!(boxes(Sm90Call { end: Sm90End::Swiglu(None), ..call([200, 328, 512]) }), [Some(72), None]);
    }

    #[test]
    fn only_what_moved_or_changed_is_encoded() {
        let [m, n, k] = MNK;
        let [a, b, d] = [(0x1000, m * k), (0x10_0000, n * k), (0x20_0000, m * n * 2)]
            .map(|(address, bytes)| Span::unguarded(address, bytes));
        let (mut maps, call) = (Sm90Maps::default(), call_of([&a, &b, &d], MNK));
        assert!(maps.is_empty());
        assert_eq!(encoded(&mut maps, &call), ["A", "B", "D"]);
        assert!(!maps.is_empty());
        assert!(encoded(&mut maps, &call).is_empty());
        let moved = Span::unguarded(0x30_0000, m * n * 2);
        assert_eq!(encoded(&mut maps, &call_of([&a, &b, &moved], MNK)), ["D"]);
        assert_eq!(encoded(&mut maps, &call), ["D"], "back again");
        // Memory that was given back, and holds another matrix now.
        let fewer = [128, n, k];
        assert_eq!(encoded(&mut maps, &call_of([&a, &b, &d], fewer)), ["A", "D"]);
        assert_eq!(encoded(&mut maps, &call_of([&a, &b, &d], [128, n, 256])), ["A", "B"]);
        // Tiles that are cut.
        assert_eq!(encoded(&mut maps, &call_of([&a, &b, &d], [200, n, k])), ["A", "B", "D", "the edge of A"]);
        assert_eq!(encoded(&mut maps, &call_of([&a, &b, &d], [200, 320, k])), ["B", "D", "the edge of B"]);
        assert_eq!(encoded(&mut maps, &call), ["A", "B", "D"], "whole again");
        // FP32 is not stored in boxes.
        let call = Sm90Call { d_type: DType::F32, ..call_of([&a, &b, &d], fewer) };
        assert_eq!(encoded(&mut maps, &call), ["A"]);
    }
}
