//! 32 lanes: their registers, where each stands, and which of them run together.

use std::collections::VecDeque;

use super::block::Block;
use crate::ptx::Kernel;
use crate::ptx::operation::{Guard, Instruction, Op, Register, S32, S64, Source, Vote};

pub(super) const LANES: usize = 32;
/// Turns after which lanes that go round let others of their warp run.
const ALONE: u32 = 16;
pub(super) type Lanes32 = [u32; LANES];
pub(super) type Lanes64 = [u64; LANES];

/// A copy that a lane asked for and has not waited for.
pub(super) struct Pending {
    pub(super) group: u32,
    pub(super) to: u64,
    pub(super) from: u64,
    pub(super) bytes: u32,
    pub(super) read: u32,
}

/// Why a warp runs no further for now.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Stop {
    /// Others should have a turn.
    Turn,
    /// Nothing was done but asking for what is not yet there.
    Asks,
    /// All lanes are at a barrier of the block.
    Barrier {
        id: u32,
        phase: u64,
    },
    /// All lanes wait for the cluster.
    Cluster,
    Done,
}

/// What an instruction leads to.
pub(super) enum Flow {
    Next,
    /// Lanes of this mask go on at another place.
    Branch {
        taken: u32,
        to: u32,
    },
    /// These lanes have ended.
    Exit,
    /// These lanes came back from a function, each to its own place, which is set.
    Placed,
    /// The instruction wants lanes that are not here yet.
    Absent,
    /// Done, and nothing was there: let others run.
    Asks,
    Stop(Stop),
}

pub(super) struct Warp {
    pub(super) r32: Vec<Lanes32>,
    pub(super) r64: Vec<Lanes64>,
    pub(super) preds: Vec<u32>,
    pub(super) places: [u32; LANES],
    /// Lanes that have not ended.
    pub(super) live: u32,
    /// Lanes that stand at an instruction that all lanes of a mask run together.
    waiting: u32,
    /// Lanes that asked in vain, or went round for long: others first, until those wait or have had a turn.
    asked: u32,
    /// Turns in a row that ended while other lanes could have run.
    alone: u32,
    pub(super) local: Vec<u8>,
    pub(super) local_bytes: usize,
    /// For each function, where each lane came from.
    pub(super) returns: Vec<Lanes32>,
    pub(super) copies: [VecDeque<Pending>; LANES],
    pub(super) groups: Lanes32,
    /// Number in the block.
    pub(super) number: u32,
    /// The cluster's phase at this warp's arrival.
    pub(super) arrived: Option<u64>,
    /// What it learns behind the barrier where it is, and where that is kept.
    pub(super) learns: Option<(Vote, Register)>,
    /// The allocation that was touched last.
    pub(super) last: (u64, u64),
}

/// The first instruction that a block of `threads` gives to warp `number`.
impl Warp {
    pub(super) fn new(kernel: &Kernel, number: u32, threads: u32) -> Self {
        let lanes = (threads - number * 32).min(32);
        Self {
            // What was never written is seen: no kernel may count on zeros.
            r32: vec![[0xFFFF_FFFF; LANES]; kernel.registers.r32 as usize],
            r64: vec![[u64::MAX; LANES]; kernel.registers.r64 as usize],
            preds: vec![0xAAAA_AAAA; kernel.registers.pred as usize],
            places: [kernel.begin; LANES],
            live: if lanes == 32 { u32::MAX } else { (1 << lanes) - 1 },
            waiting: 0,
            asked: 0,
            alone: 0,
            local: vec![0xFF; kernel.local as usize * LANES],
            local_bytes: kernel.local as usize,
            returns: vec![[0; LANES]; kernel.functions as usize],
            copies: Default::default(),
            groups: [0; LANES],
            number,
            arrived: None,
            learns: None,
            last: (0, 0),
        }
    }

    pub(super) fn get32(&self, source: S32) -> Lanes32 {
        match source {
            S32::R(n) => self.r32[n as usize],
            S32::I(value) => [value; LANES],
        }
    }

    pub(super) fn get64(&self, source: S64) -> Lanes64 {
        match source {
            S64::R(n) => self.r64[n as usize],
            S64::I(value) => [value; LANES],
        }
    }

    /// Of either width; what is dropped is 0.
    pub(super) fn get(&self, source: Source) -> Lanes64 {
        match source {
            Source::Narrow(source) => self.get32(source).map(u64::from),
            Source::Wide(source) => self.get64(source),
            Source::Sink => [0; LANES],
        }
    }

    pub(super) fn set32(&mut self, mask: u32, d: u32, value: &Lanes32) {
        let to = &mut self.r32[d as usize];
        if mask == u32::MAX {
            *to = *value;
        } else {
            for l in 0..LANES {
                if mask >> l & 1 != 0 {
                    to[l] = value[l];
                }
            }
        }
    }

    pub(super) fn set64(&mut self, mask: u32, d: u32, value: &Lanes64) {
        let to = &mut self.r64[d as usize];
        if mask == u32::MAX {
            *to = *value;
        } else {
            for l in 0..LANES {
                if mask >> l & 1 != 0 {
                    to[l] = value[l];
                }
            }
        }
    }

    pub(super) fn set_pred(&mut self, mask: u32, d: u32, value: u32) {
        let to = &mut self.preds[d as usize];
        *to = *to & !mask | value & mask;
    }

    pub(super) fn set(&mut self, mask: u32, d: Register, value: &Lanes64) {
        match d {
            Register::R32(n) => self.set32(mask, n, &value.map(|v| v as u32)),
            Register::R64(n) => self.set64(mask, n, value),
            Register::Pred(n) => {
                let bits = (0..LANES).fold(0, |bits, l| bits | u32::from(value[l] != 0) << l);
                self.set_pred(mask, n, bits);
            }
            Register::Sink => {}
        }
    }

    pub(super) fn guard(&self, guard: Guard) -> u32 {
        let value = self.preds[guard.pred as usize];
        if guard.negated { !value } else { value }
    }

    /// Lanes that stand lowest, of those that may run: they come together again where ways join.
    fn choose(&mut self) -> Option<(u32, u32)> {
        let ready = self.live & !self.waiting;
        if ready & !self.asked == 0 {
            self.asked = 0;
        }
        let of = ready & !self.asked;
        let lowest = (0..LANES).filter(|l| of >> l & 1 != 0).map(|l| self.places[l]).min()?;
        let mask = (0..LANES).filter(|&l| ready >> l & 1 != 0 && self.places[l] == lowest).fold(0, |m, l| m | 1 << l);
        self.asked &= !mask;
        Some((lowest, mask))
    }

    /// These lanes have had a turn. Lanes that stand lowest come first, as they may join those above; but not for ever, as they may
    /// wait for what those do.
    fn turned(&mut self, mask: u32) -> Stop {
        let others = self.live & !self.waiting & !mask;
        self.alone = if others == 0 { 0 } else { self.alone + 1 };
        if others != 0 && (self.asked != 0 || self.alone >= ALONE) {
            self.asked = mask;
            self.alone = 0;
        }
        Stop::Turn
    }

    fn put(&mut self, mask: u32, place: u32) {
        for l in 0..LANES {
            if mask >> l & 1 != 0 {
                self.places[l] = place;
            }
        }
    }

    /// Runs until something must be waited for, or `budget` instructions. The error says where.
    pub(super) fn run(&mut self, block: &mut Block<'_>, budget: u32) -> Result<Stop, String> {
        let mut left = budget;
        let code = &block.kernel.code;
        loop {
            let Some((mut place, mut mask)) = self.choose() else {
                if self.live == 0 {
                    return Ok(Stop::Done);
                }
                let at = &code[self.places[self.live.trailing_zeros() as usize] as usize];
                return Err(format!(
                    "line {}: lanes {:#x} wait for others of their warp that are not there",
                    at.line, self.waiting
                ));
            };
            if left == 0 {
                return Ok(self.turned(mask));
            }
            // The lowest place of others: whoever reaches it waits for them.
            let others = |warp: &Self, mask: u32| {
                let rest = warp.live & !warp.waiting & !warp.asked & !mask;
                (0..LANES).filter(|l| rest >> l & 1 != 0).map(|l| warp.places[l]).min().unwrap_or(u32::MAX)
            };
            let mut meet = others(self, mask);
            loop {
                let instruction: &Instruction = &code[place as usize];
                let run = match instruction.guard {
                    Some(guard) => mask & self.guard(guard),
                    None => mask,
                };
                let flow = if let Op::Bra { to } = instruction.op {
                    Flow::Branch { taken: run, to }
                } else if run == 0 {
                    Flow::Next
                } else {
                    // Lanes that wait here already are run with these.
                    let here = if self.waiting == 0 { 0 } else { self.waiting_at(place) };
                    let flow = self.step(instruction, run | here, block);
                    let flow = flow.map_err(|fault| {
                        format!("line {}: {} (warp {}, lanes {run:#x})", instruction.line, fault, self.number)
                    })?;
                    if here != 0 && !matches!(flow, Flow::Absent) {
                        self.waiting &= !here;
                        mask |= here;
                    }
                    flow
                };
                left = left.saturating_sub(1);
                match flow {
                    Flow::Next => place += 1,
                    Flow::Branch { taken, to } => {
                        if taken == mask {
                            place = to;
                        } else if taken == 0 {
                            place += 1;
                        } else {
                            self.put(mask & !taken, place + 1);
                            self.put(taken, to);
                            break;
                        }
                    }
                    Flow::Placed => {
                        // Those that the guard left out go on behind it.
                        self.put(mask & !run, place + 1);
                        break;
                    }
                    Flow::Exit => {
                        self.put(mask & !run, place + 1);
                        self.live &= !run;
                        // Nobody waits for those that have ended.
                        self.waiting = 0;
                        break;
                    }
                    Flow::Absent => {
                        self.put(mask & !run, place + 1);
                        self.put(run, place);
                        self.waiting |= run;
                        break;
                    }
                    Flow::Asks => {
                        self.put(mask, place + 1);
                        self.asked |= mask;
                        return Ok(Stop::Asks);
                    }
                    Flow::Stop(stop) => {
                        self.put(mask, place + 1);
                        return Ok(stop);
                    }
                }
                if place >= meet {
                    self.put(mask, place);
                    break;
                }
                if left == 0 {
                    self.put(mask, place);
                    return Ok(self.turned(mask));
                }
                if self.waiting != 0 || meet != u32::MAX {
                    meet = others(self, mask);
                }
            }
        }
    }

    /// Behind a barrier: of how many threads something holds.
    pub(super) fn learn(&mut self, [asked, set]: [u32; 2]) {
        if let Some((k, d)) = self.learns.take() {
            let value = match k {
                Vote::All => u64::from(set == asked),
                Vote::Any => u64::from(set > 0),
                Vote::Uni => u64::from(set == 0 || set == asked),
                Vote::Ballot => u64::from(set),
            };
            self.set(self.live, d, &[value; LANES]);
        }
    }

    fn waiting_at(&self, place: u32) -> u32 {
        (0..LANES).filter(|&l| self.waiting >> l & 1 != 0 && self.places[l] == place).fold(0, |m, l| m | 1 << l)
    }
}
