//! Loads, stores and atomics: which bytes an address means, whether the kernel may touch them, and what is read.

use super::arithmetic::work32;
use super::block::Block;
use super::numbers::{bits, f};
use super::warp::{LANES, Lanes64, Warp};
use crate::ptx::operation::*;
use crate::ptx::{LOCAL_BASE, PARAM_BASE, SHARED_BASE};

/// Bytes that a lane may touch.
pub(super) enum Bytes {
    Memory(*mut u8),
    Shared { rank: usize, at: usize },
    Local(usize),
    Param(usize),
}

impl Warp {
    pub(super) fn addresses(&self, at: Address) -> Lanes64 {
        let wide = matches!(at.base, Source::Wide(_));
        self.get(at.base).map(|base| {
            let address = base.wrapping_add(at.offset as u64);
            if wide { address } else { address & 0xFFFF_FFFF }
        })
    }

    /// The bytes at a lane's address, checked.
    pub(super) fn bytes_at(
        &mut self,
        block: &Block<'_>,
        lane: usize,
        space: Space,
        address: u64,
        bytes: usize,
    ) -> Result<Bytes, String> {
        let space = match space {
            Space::Generic if address >> 52 == SHARED_BASE >> 52 => Space::SharedCluster,
            Space::Generic if address >> 52 == LOCAL_BASE >> 52 => Space::Local,
            Space::Generic if address >> 52 == PARAM_BASE >> 52 => Space::Param,
            Space::Generic => Space::Global,
            space => space,
        };
        let own = |at: u64| {
            if at.checked_add(bytes as u64).is_none_or(|end| end > self.local_bytes as u64) {
                return Err(format!("{bytes} bytes at {at:#x} of a thread's own memory of {} bytes", self.local_bytes));
            }
            if !at.is_multiple_of(bytes as u64) {
                return Err(format!("address {at:#x} of a thread's own memory is no multiple of {bytes}"));
            }
            Ok(Bytes::Local(lane * self.local_bytes + at as usize))
        };
        match space {
            Space::Shared | Space::SharedCluster => {
                let at = if address >> 52 == SHARED_BASE >> 52 { address - SHARED_BASE } else { address };
                let (rank, at) =
                    if space == Space::Shared { block.own_place(at, bytes) } else { block.shared_place(at, bytes) }?;
                Ok(Bytes::Shared { rank, at })
            }
            Space::Local => own(if address >= LOCAL_BASE { address - LOCAL_BASE } else { address }),
            // Parameters of functions lie in a thread's own memory.
            Space::Param if address < PARAM_BASE => own(address),
            Space::Param => {
                let at = (address - PARAM_BASE) as usize;
                if at + bytes > block.launch.parameters.len() || !at.is_multiple_of(bytes) {
                    return Err(format!(
                        "{bytes} bytes at {at} of {} bytes of parameters",
                        block.launch.parameters.len()
                    ));
                }
                Ok(Bytes::Param(at))
            }
            Space::Generic | Space::Global => {
                if !address.is_multiple_of(bytes as u64) {
                    return Err(format!("address {address:#x} is no multiple of {bytes}"));
                }
                let (start, length) = self.last;
                if address < start || length < bytes as u64 || address - start > length - bytes as u64 {
                    self.last = block.allocation(address, bytes)?;
                }
                Ok(Bytes::Memory(address as *mut u8))
            }
        }
    }

    /// Reads up to eight bytes that were found.
    pub(super) fn read(&self, block: &Block<'_>, from: &Bytes, bytes: usize) -> u64 {
        let mut word = [0u8; 8];
        match *from {
            // SAFETY: `bytes_at` found these bytes in a live allocation; the driver runs one launch at a time and frees none meanwhile.
            Bytes::Memory(at) => unsafe { at.copy_to_nonoverlapping(word.as_mut_ptr(), bytes) },
            Bytes::Shared { rank, at } => word[..bytes].copy_from_slice(&block.cluster.shared[rank][at..at + bytes]),
            Bytes::Local(at) => word[..bytes].copy_from_slice(&self.local[at..at + bytes]),
            Bytes::Param(at) => word[..bytes].copy_from_slice(&block.launch.parameters[at..at + bytes]),
        }
        u64::from_le_bytes(word)
    }

    pub(super) fn write(&mut self, block: &mut Block<'_>, to: &Bytes, bytes: usize, value: u64) -> Result<(), String> {
        let word = &value.to_le_bytes()[..bytes];
        match *to {
            // SAFETY: as for `read`.
            Bytes::Memory(at) => unsafe { at.copy_from_nonoverlapping(word.as_ptr(), bytes) },
            Bytes::Shared { rank, at } => block.cluster.shared[rank][at..at + bytes].copy_from_slice(word),
            Bytes::Local(at) => self.local[at..at + bytes].copy_from_slice(word),
            Bytes::Param(_) => return Err("a kernel's parameters are not written".into()),
        }
        Ok(())
    }

    pub(super) fn load(
        &mut self,
        mask: u32,
        block: &Block<'_>,
        space: Space,
        at: Address,
        of: Type,
        d: &[Register],
    ) -> Result<(), String> {
        let (addresses, size) = (self.addresses(at), of.bytes());
        let mut found = vec![[0u64; LANES]; d.len()];
        for l in (0..LANES).filter(|l| mask >> l & 1 != 0) {
            whole(addresses[l], d.len(), size)?;
            for (n, values) in found.iter_mut().enumerate() {
                let bytes = self.bytes_at(block, l, space, addresses[l] + (n * size) as u64, size)?;
                let value = self.read(block, &bytes, size);
                values[l] = match of {
                    Type::S8 => value as i8 as u64,
                    Type::S16 => value as i16 as u64,
                    Type::S32 => value as i32 as u64,
                    _ => value,
                };
            }
        }
        for (&register, values) in d.iter().zip(&found) {
            self.set(mask, register, values);
        }
        Ok(())
    }

    pub(super) fn store(
        &mut self,
        mask: u32,
        block: &mut Block<'_>,
        space: Space,
        at: Address,
        of: Type,
        a: &[Source],
    ) -> Result<(), String> {
        let (addresses, size) = (self.addresses(at), of.bytes());
        let values: Vec<Lanes64> = a.iter().map(|&source| self.get(source)).collect();
        for l in (0..LANES).filter(|l| mask >> l & 1 != 0) {
            whole(addresses[l], a.len(), size)?;
            for (n, values) in values.iter().enumerate() {
                let bytes = self.bytes_at(block, l, space, addresses[l] + (n * size) as u64, size)?;
                self.write(block, &bytes, size, values[l])?;
            }
        }
        Ok(())
    }

    /// Lanes one after the other.
    pub(super) fn atomic(
        &mut self,
        mask: u32,
        block: &mut Block<'_>,
        (space, at, of, k): (Space, Address, Type, Atomic),
        d: Option<Register>,
        a: &[Source],
    ) -> Result<(), String> {
        let (addresses, size) = (self.addresses(at), of.bytes());
        let values: Vec<Lanes64> = a.iter().map(|&source| self.get(source)).collect();
        let mut before = [0; LANES];
        // Of several numbers, each with the next address: an addition that gives nothing back.
        let numbers = if k == Atomic::Cas { 1 } else { values.len() };
        for l in (0..LANES).filter(|l| mask >> l & 1 != 0) {
            whole(addresses[l], numbers, size)?;
            for n in 0..numbers {
                let bytes = self.bytes_at(block, l, space, addresses[l] + (n * size) as u64, size)?;
                let old = self.read(block, &bytes, size);
                before[l] = old;
                let new = match k {
                    Atomic::Cas => {
                        if old == cut(values[0][l], size) {
                            values[1][l]
                        } else {
                            old
                        }
                    }
                    _ => combined(k, of, old, values[n][l])?,
                };
                self.write(block, &bytes, size, new)?;
            }
        }
        if let Some(d) = d {
            self.set(mask, d, &before);
        }
        Ok(())
    }
}

/// Refuses numbers side by side that do not begin at a multiple of all their bytes.
fn whole(address: u64, numbers: usize, size: usize) -> Result<(), String> {
    if numbers == 1 || address.is_multiple_of((size * numbers) as u64) {
        return Ok(());
    }
    Err(format!("address {address:#x} of {numbers} numbers of {size} bytes is no multiple of all"))
}

fn cut(value: u64, bytes: usize) -> u64 {
    if bytes == 8 { value } else { value & ((1 << (8 * bytes)) - 1) }
}

fn combined(k: Atomic, of: Type, old: u64, value: u64) -> Result<u64, String> {
    let words = |k: K32| u64::from(work32(k, &[[old as u32; LANES], [value as u32; LANES], [0; LANES], [0; LANES]])[0]);
    Ok(match (k, of) {
        (Atomic::Exch, _) => value,
        (Atomic::And, _) => old & value,
        (Atomic::Or, _) => old | value,
        (Atomic::Xor, _) => old ^ value,
        (Atomic::Add, Type::F32) => bits(f(old as u32) + f(value as u32)).into(),
        (Atomic::Add, Type::U32 | Type::S32) => u64::from((old as u32).wrapping_add(value as u32)),
        (Atomic::Add, Type::U64 | Type::S64) => old.wrapping_add(value),
        (Atomic::Min, Type::U32) => words(K32::MinU),
        (Atomic::Max, Type::U32) => words(K32::MaxU),
        (Atomic::Min, Type::S32) => words(K32::MinS),
        (Atomic::Max, Type::S32) => words(K32::MaxS),
        (Atomic::Max, Type::U64) => old.max(value),
        (Atomic::Min, Type::U64) => old.min(value),
        (Atomic::Max, Type::S64) => (old as i64).max(value as i64) as u64,
        (Atomic::Min, Type::S64) => (old as i64).min(value as i64) as u64,
        (Atomic::Inc, Type::U32) => {
            if old >= value {
                0
            } else {
                old + 1
            }
        }
        (Atomic::Dec, Type::U32) => {
            if old == 0 || old > value {
                value
            } else {
                old - 1
            }
        }
        _ => return Err(format!("atomic {k:?} of {of:?} is not known here")),
    })
}
