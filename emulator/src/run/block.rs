//! What a block has beside its warps: shared memory of its cluster, barriers, its place, and what it may touch.

use std::collections::HashMap;
use std::time::Instant;

use crate::launch::Launch;
use crate::ptx::{Kernel, SHARED_FIRST};

/// A barrier of a block.
#[derive(Default, Clone, Debug)]
pub(super) struct Meeting {
    /// How often all have come.
    pub(super) phase: u64,
    /// Threads that have come since, those that did not stay among them.
    pub(super) arrived: u32,
    /// How many it waits for, where an instruction says so.
    pub(super) threads: Option<u32>,
    /// Of those that say something, how many there are and of how many it holds.
    asked: u32,
    set: u32,
    /// The same of phases that are over, for those that wait behind them.
    over: Vec<(u64, [u32; 2])>,
}

impl Meeting {
    /// All are there.
    pub(super) fn complete(&mut self) {
        self.over.push((self.phase, [self.asked, self.set]));
        (self.arrived, self.threads, self.asked, self.set) = (0, None, 0, 0);
        self.phase += 1;
    }

    /// What those said who met in a phase.
    pub(super) fn said(&self, phase: u64) -> [u32; 2] {
        self.over.iter().find(|(over, _)| *over == phase).map_or([0; 2], |(_, said)| *said)
    }

    /// Nobody waits behind a phase that is over.
    pub(super) fn forget(&mut self) {
        self.over.clear();
    }
}

/// What the blocks of a cluster share.
pub(super) struct Cluster {
    /// Each block's bytes, from address 0 on.
    pub(super) shared: Vec<Vec<u8>>,
    pub(super) phase: u64,
    /// Warps that have arrived in this phase.
    pub(super) arrived: u32,
}

/// One block, as its warps see it.
pub(super) struct Block<'a> {
    pub(super) kernel: &'a Kernel,
    pub(super) launch: &'a Launch,
    /// Allocations by address: begin and length.
    pub(super) memory: &'a [(u64, u64)],
    pub(super) cluster: &'a mut Cluster,
    pub(super) meetings: &'a mut HashMap<u32, Meeting>,
    /// In the cluster.
    pub(super) rank: usize,
    /// In the grid.
    pub(super) place: [u32; 3],
    pub(super) began: Instant,
}

impl Cluster {
    pub(super) fn new(kernel: &Kernel, launch: &Launch) -> Self {
        let bytes = (SHARED_FIRST + kernel.shared + launch.dynamic_shared) as usize;
        Self {
            // What was never written is NaN.
            shared: vec![vec![0xFF; bytes]; launch.cluster as usize],
            phase: 0,
            arrived: 0,
        }
    }
}

impl Block<'_> {
    /// Nanoseconds.
    pub(super) fn time(&self) -> u64 {
        self.began.elapsed().as_nanos() as u64
    }

    /// The phase in which a warp arrived.
    pub(super) fn cluster_arrive(&mut self) -> u64 {
        self.cluster.arrived += 1;
        self.cluster.phase
    }

    /// A warp comes to a barrier, of whose threads so many say something, which holds of so many. Where that is the last that it waits
    /// for all have met: who comes next comes for the next time. Gives the phase in which it came.
    pub(super) fn arrive(&mut self, id: u32, threads: Option<u32>, [asked, set]: [u32; 2]) -> u64 {
        let meeting = self.meetings.entry(id).or_default();
        let phase = meeting.phase;
        meeting.arrived += 32;
        meeting.asked += asked;
        meeting.set += set;
        if threads.is_some() {
            meeting.threads = threads;
        }
        if meeting.threads.is_some_and(|threads| meeting.arrived >= threads) {
            meeting.complete();
        }
        phase
    }

    /// Which block's shared memory an address of it names, and the place there.
    pub(super) fn shared_place(&self, address: u64, bytes: usize) -> Result<(usize, usize), String> {
        let rank = match address >> 24 {
            0 => self.rank,
            n => n as usize - 1,
        };
        let at = (address & 0x00FF_FFFF) as usize;
        let Some(shared) = self.cluster.shared.get(rank) else {
            return Err(format!(
                "shared address {address:#x} is of block {rank} of a cluster of {}",
                self.launch.cluster
            ));
        };
        if !at.is_multiple_of(bytes.next_power_of_two()) {
            return Err(format!("shared address {at:#x} is no multiple of {bytes}"));
        }
        if at < SHARED_FIRST as usize || at + bytes > shared.len() {
            let (from, to) = (SHARED_FIRST, shared.len());
            return Err(format!("{bytes} bytes at shared address {at:#x}, of a block that has {from:#x} to {to:#x}"));
        }
        Ok((rank, at))
    }

    /// As [`Self::shared_place`], of this block alone.
    pub(super) fn own_place(&self, address: u64, bytes: usize) -> Result<(usize, usize), String> {
        let (rank, at) = self.shared_place(address, bytes)?;
        if rank != self.rank {
            return Err(format!("shared address {address:#x} is another block's, whose memory is only the cluster's"));
        }
        Ok((rank, at))
    }

    /// The barrier of the block that an instruction names.
    pub(super) fn numbered(&self, id: u32) -> Result<u32, String> {
        if id < 16 { Ok(id) } else { Err(format!("barrier {id} of a block that has 16")) }
    }

    /// The allocation that holds these bytes.
    pub(super) fn allocation(&self, address: u64, bytes: usize) -> Result<(u64, u64), String> {
        let after = self.memory.partition_point(|&(start, _)| start <= address);
        if let Some(&(start, length)) = after.checked_sub(1).and_then(|n| self.memory.get(n))
            && length >= bytes as u64
            && address - start <= length - bytes as u64
        {
            return Ok((start, length));
        }
        let near = |n: Option<usize>| n.and_then(|n| self.memory.get(n));
        let before = near(after.checked_sub(1)).map_or(String::new(), |&(start, length)| {
            format!(
                "; the allocation before has {length} bytes from {start:#x}, which is {} bytes before",
                address - start
            )
        });
        Err(format!("{bytes} bytes at {address:#x}, which no allocation has{before}"))
    }
}
