//! Barriers in shared memory (mbarrier), kept in their own 64 bits: the phase, arrivals that are wanted and missing, bytes that are missing.

use super::block::Block;
use super::warp::{LANES, Warp};
use crate::ptx::operation::{Address, S32};

/// An mbarrier's word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Barrier {
    phase: u64,
    wanted: u32,
    missing: u32,
    bytes: i64,
}

const MOST: u32 = (1 << 20) - 1;

impl Barrier {
    fn of(word: u64) -> Self {
        Self {
            phase: word >> 63,
            wanted: (word & u64::from(MOST)) as u32,
            missing: (word >> 20 & u64::from(MOST)) as u32,
            bytes: ((word >> 40 & 0x7F_FFFF) as i64) - (1 << 22),
        }
    }

    fn word(self) -> u64 {
        self.phase << 63
            | ((self.bytes + (1 << 22)) as u64) << 40
            | u64::from(self.missing) << 20
            | u64::from(self.wanted)
    }

    fn moved(mut self) -> Self {
        if self.missing == 0 && self.bytes == 0 {
            self.phase ^= 1;
            self.missing = self.wanted;
        }
        self
    }
}

impl Block<'_> {
    /// The barrier at an address, the block that has it, and its place there.
    fn barrier_at(&self, address: u64) -> Result<(usize, usize, Barrier), String> {
        let (rank, at) = self.shared_place(address, 8)?;
        let word = &self.cluster.shared[rank][at..at + 8];
        let barrier = Barrier::of(u64::from_le_bytes(word.try_into().expect("eight bytes")));
        if barrier.wanted == 0 || barrier.wanted == MOST {
            return Err(format!("the barrier at {at:#x} is not initialized"));
        }
        Ok((rank, at, barrier))
    }

    fn barrier(&mut self, address: u64, change: impl FnOnce(Barrier) -> Result<Barrier, String>) -> Result<(), String> {
        let (rank, at, before) = self.barrier_at(address)?;
        let after = change(before)?;
        if after.bytes.unsigned_abs() >= 1 << 20 {
            return Err(format!("the barrier at {at:#x} waits for {} bytes: it can for less than 2^20", after.bytes));
        }
        self.cluster.shared[rank][at..at + 8].copy_from_slice(&after.moved().word().to_le_bytes());
        Ok(())
    }

    /// Bytes have come.
    pub(super) fn barrier_complete(&mut self, address: u64, bytes: u32) -> Result<(), String> {
        self.barrier(address, |b| Ok(Barrier { bytes: b.bytes - i64::from(bytes), ..b }))
    }
}

impl Warp {
    pub(super) fn barrier_init(
        &mut self,
        mask: u32,
        block: &mut Block<'_>,
        at: Address,
        count: S32,
    ) -> Result<(), String> {
        let (addresses, count) = (self.addresses(at), self.get32(count));
        for l in (0..LANES).filter(|l| mask >> l & 1 != 0) {
            let (rank, place) = block.own_place(addresses[l], 8)?;
            if count[l] == 0 || count[l] >= MOST {
                return Err(format!("a barrier of {} arrivals", count[l]));
            }
            let word = Barrier { phase: 0, wanted: count[l], missing: count[l], bytes: 0 }.word();
            block.cluster.shared[rank][place..place + 8].copy_from_slice(&word.to_le_bytes());
        }
        Ok(())
    }

    pub(super) fn barrier_arrive(
        &mut self,
        mask: u32,
        block: &mut Block<'_>,
        at: Address,
        cluster: bool,
        expect: Option<S32>,
    ) -> Result<(), String> {
        let (addresses, expect) = (self.addresses(at), expect.map(|e| self.get32(e)));
        for l in (0..LANES).filter(|l| mask >> l & 1 != 0) {
            if !cluster && addresses[l] >> 24 != 0 {
                return Err("an arrival at another block's barrier that is not of the cluster".into());
            }
            let bytes = expect.map_or(0, |e| i64::from(e[l]));
            block.barrier(addresses[l], |b| {
                let missing = b.missing.checked_sub(1).ok_or("more arrivals than the barrier waits for")?;
                Ok(Barrier { missing, bytes: b.bytes + bytes, ..b })
            })?;
        }
        Ok(())
    }

    /// Whether any lane's phase has come.
    pub(super) fn barrier_test(
        &mut self,
        mask: u32,
        block: &Block<'_>,
        at: Address,
        parity: S32,
        p: u32,
    ) -> Result<bool, String> {
        let (addresses, parity) = (self.addresses(at), self.get32(parity));
        let mut done = 0;
        for l in (0..LANES).filter(|l| mask >> l & 1 != 0) {
            let (.., barrier) = block.barrier_at(addresses[l])?;
            done |= u32::from(barrier.phase != u64::from(parity[l] & 1)) << l;
        }
        self.set_pred(mask, p, done);
        Ok(done != 0)
    }
}
