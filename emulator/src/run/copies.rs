//! Copies that a thread asks for and waits for later (cp.async), which are made as late as they may be, and those of the copy engine,
//! which are made at once.

use super::block::Block;
use super::warp::{LANES, Pending, Warp};
use crate::ptx::operation::{Address, S32, S64, Source, Space, Type};
use crate::tensor_map::TensorMap;

/// The place in shared memory of a box's byte that would lie at `address` without a swizzle.
fn swizzled(map: &TensorMap, address: u64) -> u64 {
    // 16 bytes each, by the number of their 128 bytes.
    let of = match map.swizzle {
        1 => 1,
        2 => 3,
        3 => 7,
        _ => 0,
    };
    address ^ (address >> 7 & of) << 4
}

/// Where a row of a matrix begins; `None` outside.
fn row_of(map: &TensorMap, row: i64) -> Option<u64> {
    (row >= 0 && (row as u64) < map.dims[1]).then(|| map.address + row as u64 * map.strides[0])
}

impl Warp {
    pub(super) fn copy_async(&mut self, mask: u32, to: Address, from: Address, bytes: u32, read: Option<S32>) {
        let (to, from) = (self.addresses(to), self.addresses(from));
        let read = read.map(|r| self.get32(r));
        for l in (0..LANES).filter(|l| mask >> l & 1 != 0) {
            let read = read.map_or(bytes, |r| r[l].min(bytes));
            self.copies[l].push_back(Pending { group: self.groups[l], to: to[l], from: from[l], bytes, read });
        }
    }

    /// Makes what a wait for all but the last `pending` groups waits for.
    pub(super) fn finish_copies(&mut self, mask: u32, pending: u32, block: &mut Block<'_>) -> Result<(), String> {
        for l in (0..LANES).filter(|l| mask >> l & 1 != 0) {
            while let Some(copy) = self.copies[l].front() {
                // Those that no group has are not waited for.
                if copy.group.saturating_add(pending) >= self.groups[l] {
                    break;
                }
                let copy = self.copies[l].pop_front().expect("it was there");
                self.copy(l, &copy, block)?;
            }
        }
        Ok(())
    }

    /// Makes all copies of these lanes.
    pub(super) fn finish_all_copies(&mut self, mask: u32, block: &mut Block<'_>) -> Result<(), String> {
        for l in (0..LANES).filter(|l| mask >> l & 1 != 0) {
            while let Some(copy) = self.copies[l].pop_front() {
                self.copy(l, &copy, block)?;
            }
        }
        Ok(())
    }

    fn copy(&mut self, lane: usize, copy: &Pending, block: &mut Block<'_>) -> Result<(), String> {
        let bytes = copy.bytes as usize;
        let (rank, at) = block.own_place(copy.to, bytes)?;
        if copy.read == 0 {
            block.cluster.shared[rank][at..at + bytes].fill(0);
            return Ok(());
        }
        if !copy.from.is_multiple_of(u64::from(copy.bytes)) {
            return Err(format!("a copy of {bytes} bytes from {:#x}, which is no multiple of them", copy.from));
        }
        for part in 0..bytes {
            let value = if (part as u32) < copy.read {
                let from = self.bytes_at(block, lane, Space::Global, copy.from + part as u64, 1)?;
                self.read(block, &from, 1) as u8
            } else {
                0
            };
            block.cluster.shared[rank][at + part] = value;
        }
        Ok(())
    }

    pub(super) fn store_async(
        &mut self,
        mask: u32,
        block: &mut Block<'_>,
        at: Address,
        of: Type,
        a: &[Source],
        barrier: S32,
    ) -> Result<(), String> {
        self.store(mask, block, Space::SharedCluster, at, of, a)?;
        let barrier = self.get32(barrier);
        for l in (0..LANES).filter(|l| mask >> l & 1 != 0) {
            block.barrier_complete(barrier[l].into(), (of.bytes() * a.len()) as u32)?;
        }
        Ok(())
    }

    pub(super) fn copy_bulk(
        &mut self,
        mask: u32,
        block: &mut Block<'_>,
        to: Address,
        from: Address,
        bytes: S32,
        barrier: Address,
    ) -> Result<(), String> {
        let (to, from, bytes, barrier) =
            (self.addresses(to), self.addresses(from), self.get32(bytes), self.addresses(barrier));
        for l in (0..LANES).filter(|l| mask >> l & 1 != 0) {
            if bytes[l] % 16 != 0 || from[l] % 16 != 0 || to[l] % 16 != 0 {
                return Err(format!(
                    "a bulk copy of {} bytes from {:#x} to {:#x}: no multiples of 16",
                    bytes[l], from[l], to[l]
                ));
            }
            for part in (0..u64::from(bytes[l])).step_by(8) {
                let source = self.bytes_at(block, l, Space::Global, from[l] + part, 8)?;
                let value = self.read(block, &source, 8);
                let target = self.bytes_at(block, l, Space::SharedCluster, to[l] + part, 8)?;
                self.write(block, &target, 8, value)?;
            }
            block.barrier_complete(barrier[l], bytes[l])?;
        }
        Ok(())
    }

    /// The tensor map at an address, which may be one of parameters.
    fn map(&mut self, block: &Block<'_>, lane: usize, address: u64) -> Result<TensorMap, String> {
        let mut bytes = [0u8; 128];
        for (n, part) in bytes.chunks_exact_mut(8).enumerate() {
            let from = self.bytes_at(block, lane, Space::Generic, address + 8 * n as u64, 8)?;
            part.copy_from_slice(&self.read(block, &from, 8).to_le_bytes());
        }
        let map = TensorMap::from_bytes(&bytes).ok_or_else(|| format!("there is no tensor map at {address:#x}"))?;
        map.plain_matrix()?;
        Ok(map)
    }

    pub(super) fn copy_box(
        &mut self,
        mask: u32,
        block: &mut Block<'_>,
        (to, barrier, blocks): (Address, Address, Option<S32>),
        map: S64,
        at: [S32; 2],
    ) -> Result<(), String> {
        let (to, barrier, map) = (self.addresses(to), self.addresses(barrier), self.get64(map));
        let (x, y) = (self.get32(at[0]), self.get32(at[1]));
        let blocks = blocks.map(|b| self.get32(b));
        for l in (0..LANES).filter(|l| mask >> l & 1 != 0) {
            let map = self.map(block, l, map[l])?;
            let bytes = self.boxed(block, l, &map, x[l] as i32, y[l] as i32)?;
            let ranks: Vec<u64> = match blocks {
                Some(blocks) => (0..16).filter(|r| blocks[l] >> r & 1 != 0).collect(),
                None => vec![block.rank as u64],
            };
            for rank in ranks {
                // The same place in each block.
                let place =
                    |address: u64| if blocks.is_some() { address & 0x00FF_FFFF | (rank + 1) << 24 } else { address };
                let first = place(to[l]);
                if first & 127 != 0 {
                    return Err(format!(
                        "a box to shared address {:#x}, which is no multiple of 128",
                        first & 0x00FF_FFFF
                    ));
                }
                for (n, word) in bytes.chunks(16).enumerate() {
                    let (rank, at) = block.shared_place(swizzled(&map, first + 16 * n as u64), word.len())?;
                    block.cluster.shared[rank][at..at + word.len()].copy_from_slice(word);
                }
                block.barrier_complete(place(barrier[l]), bytes.len() as u32)?;
            }
        }
        Ok(())
    }

    /// The bytes of a box, row by row; zeros where the matrix has none.
    fn boxed(&mut self, block: &Block<'_>, lane: usize, map: &TensorMap, x: i32, y: i32) -> Result<Vec<u8>, String> {
        let size = map.element_bytes().ok_or("a tensor map of less than a byte an element")?;
        let (wide, high) = (map.box_dims[0] as usize, map.box_dims[1] as usize);
        let mut bytes = vec![0; wide * high * size];
        for row in 0..high {
            let Some(address) = row_of(map, i64::from(y) + row as i64) else { continue };
            for column in 0..wide {
                let at = i64::from(x) + column as i64;
                if at < 0 || at as u64 >= map.dims[0] {
                    continue;
                }
                let from = self.bytes_at(block, lane, Space::Global, address + at as u64 * size as u64, size)?;
                let value = self.read(block, &from, size).to_le_bytes();
                bytes[(row * wide + column) * size..][..size].copy_from_slice(&value[..size]);
            }
        }
        Ok(bytes)
    }

    pub(super) fn store_box(
        &mut self,
        mask: u32,
        block: &mut Block<'_>,
        map: S64,
        at: [S32; 2],
        from: Address,
    ) -> Result<(), String> {
        let (from, map, x, y) = (self.addresses(from), self.get64(map), self.get32(at[0]), self.get32(at[1]));
        for l in (0..LANES).filter(|l| mask >> l & 1 != 0) {
            let map = self.map(block, l, map[l])?;
            let size = map.element_bytes().ok_or("a tensor map of less than a byte an element")?;
            let (wide, high) = (map.box_dims[0] as usize, map.box_dims[1] as usize);
            for row in 0..high {
                let Some(address) = row_of(&map, i64::from(y[l] as i32) + row as i64) else { continue };
                for column in 0..wide {
                    let at = i64::from(x[l] as i32) + column as i64;
                    let place = swizzled(&map, from[l] + ((row * wide + column) * size) as u64);
                    let source = self.bytes_at(block, l, Space::Shared, place, size)?;
                    if at < 0 || at as u64 >= map.dims[0] {
                        continue;
                    }
                    let value = self.read(block, &source, size);
                    let target = self.bytes_at(block, l, Space::Global, address + at as u64 * size as u64, size)?;
                    self.write(block, &target, size, value)?;
                }
            }
        }
        Ok(())
    }
}
