//! [`Sm90Maps`]: tensor maps of a product for Hopper, kept as long as its operands stay where they are.

use cudarc::driver::sys::CUtensorMap;

use super::sm90_call::{Sm90Call, Sm90End};
use super::sm90_config::Sm90Tile;
use super::tensor_map::{MapElement, MatrixMap, Swizzle};
use crate::error::Result;
use crate::format::DType;
use crate::gpu::device::memory::driver;
use crate::gpu::device::stream::Queue;

/// What a map is made of: the matrix, its address and length.
type MapKey = (MatrixMap, u64, usize);

/// The tensor maps of A and B of the last launch, and of D where it is stored in boxes, to be used again as long as they stay where they are.
#[derive(Default)]
pub(crate) struct Sm90Maps([Option<(MapKey, CUtensorMap)>; 3]);

impl Sm90Maps {
    /// Empty where there is no matrix.
    pub(super) fn of(&mut self, stream: &Queue, call: &Sm90Call<'_>, tile: Sm90Tile) -> Result<[CUtensorMap; 3]> {
        let [a, b] = call.maps(tile);
        let operands = [("A", Some(a), call.a.codes), ("B", Some(b), call.b.codes), ("D", call.map_d(tile), call.d)];
        let mut maps = [CUtensorMap { opaque: [0; 16] }; 3];
        for ((kept, map), (name, matrix, span)) in self.0.iter_mut().zip(&mut maps).zip(operands) {
            let Some(matrix) = matrix else { continue };
            let key = (matrix, span.address, span.bytes);
            *map = match kept.filter(|(made_of, _)| *made_of == key) {
                Some((_, map)) => map,
                None => {
                    stream.context().bind_to_thread().map_err(|e| driver("binding the context", e))?;
                    matrix.encode(name, span)?
                }
            };
            *kept = Some((key, *map));
        }
        Ok(maps)
    }
}

impl Sm90Call<'_> {
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
