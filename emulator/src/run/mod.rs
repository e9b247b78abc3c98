//! A launch: blocks one cluster after the other, or all at once where each may wait for all; in a block warps in turns.

mod access;
mod arithmetic;
mod barriers;
mod block;
mod copies;
mod matrix;
mod numbers;
mod step;
mod warp;

use std::collections::HashMap;
use std::time::Instant;

use block::{Block, Cluster, Meeting};
use warp::{Stop, Warp};

use crate::launch::Launch;
use crate::ptx::Kernel;

/// Instructions of a warp's turn.
const TURN: u32 = 4096;
/// Rounds in which every warp asked in vain, after which it is clear that nothing will come.
const IN_VAIN: u32 = 10_000;

enum State {
    Ready,
    /// Which, and in which phase.
    AtBarrier(u32, u64),
    AtCluster,
    Done,
}

/// The blocks of a cluster at work.
struct Running {
    cluster: Cluster,
    blocks: Vec<RunningBlock>,
}

struct RunningBlock {
    place: [u32; 3],
    warps: Vec<(Warp, State)>,
    meetings: HashMap<u32, Meeting>,
}

/// Runs a kernel to its end.
pub(crate) fn run(kernel: &Kernel, launch: &Launch, memory: &[(u64, u64)]) -> Result<(), String> {
    let [x, y, z] = launch.grid;
    let clusters: Vec<[u32; 3]> = (0..z)
        .flat_map(|z| (0..y).flat_map(move |y| (0..x).step_by(launch.cluster as usize).map(move |x| [x, y, z])))
        .collect();
    let began = Instant::now();
    let at_once = if launch.cooperative { clusters.len() } else { 1 };
    for group in clusters.chunks(at_once.max(1)) {
        let mut running: Vec<Running> = group.iter().map(|&first| Running::new(kernel, launch, first)).collect();
        let mut vain = 0;
        loop {
            let (mut worked, mut alive) = (false, false);
            for cluster in &mut running {
                let (moved, left) = cluster.round(kernel, launch, memory, began)?;
                worked |= moved;
                alive |= left;
            }
            if !alive {
                break;
            }
            vain = if worked { 0 } else { vain + 1 };
            if vain > IN_VAIN {
                return Err(running.iter().map(|cluster| cluster.stuck(kernel)).collect::<Vec<_>>().join("; "));
            }
        }
    }
    Ok(())
}

impl Running {
    fn new(kernel: &Kernel, launch: &Launch, first: [u32; 3]) -> Self {
        let threads = launch.block.iter().product::<u32>();
        let block = |rank: u32| RunningBlock {
            place: [first[0] + rank, first[1], first[2]],
            warps: (0..threads.div_ceil(32)).map(|n| (Warp::new(kernel, n, threads), State::Ready)).collect(),
            meetings: HashMap::new(),
        };
        Self { cluster: Cluster::new(kernel, launch), blocks: (0..launch.cluster).map(block).collect() }
    }

    /// A turn for each warp that may run: whether anything was done, and whether any is left.
    fn round(
        &mut self,
        kernel: &Kernel,
        launch: &Launch,
        memory: &[(u64, u64)],
        began: Instant,
    ) -> Result<(bool, bool), String> {
        let (mut worked, mut alive) = (false, false);
        for (rank, running) in self.blocks.iter_mut().enumerate() {
            for n in 0..running.warps.len() {
                let (warp, state) = &mut running.warps[n];
                if !matches!(state, State::Ready) {
                    continue;
                }
                let place = running.place;
                let mut block = Block {
                    kernel,
                    launch,
                    memory,
                    cluster: &mut self.cluster,
                    meetings: &mut running.meetings,
                    rank,
                    place,
                    began,
                };
                let stop =
                    warp.run(&mut block, TURN).map_err(|fault| format!("{}, block {place:?}, {fault}", kernel.name))?;
                worked |= stop != Stop::Asks;
                match stop {
                    Stop::Turn | Stop::Asks => {}
                    Stop::Done => *state = State::Done,
                    Stop::Cluster => *state = State::AtCluster,
                    Stop::Barrier { id, phase } => *state = State::AtBarrier(id, phase),
                }
            }
            running.meet();
            alive |= running.warps.iter().any(|(_, state)| !matches!(state, State::Done));
        }
        self.meet();
        Ok((worked, alive))
    }

    /// Those that wait for the cluster go on once all have arrived, or ended.
    fn meet(&mut self) {
        // Those that arrived before they ended are counted already.
        let phase = self.cluster.phase;
        let ended = |(warp, state): &&(Warp, State)| matches!(state, State::Done) && warp.arrived != Some(phase);
        let ended = self.blocks.iter().flat_map(|b| &b.warps).filter(ended).count() as u32;
        let all = self.blocks.iter().map(|b| b.warps.len() as u32).sum::<u32>();
        if self.cluster.arrived > 0 && self.cluster.arrived + ended >= all {
            self.cluster.phase += 1;
            self.cluster.arrived = 0;
        }
        let phase = self.cluster.phase;
        for (warp, state) in self.blocks.iter_mut().flat_map(|b| &mut b.warps) {
            if matches!(state, State::AtCluster) && warp.arrived.is_some_and(|at| at < phase) {
                warp.arrived = None;
                *state = State::Ready;
            }
        }
    }

    /// Where each warp stands that waits for what does not come.
    fn stuck(&self, kernel: &Kernel) -> String {
        let mut lines: Vec<String> = Vec::new();
        for block in &self.blocks {
            for (warp, state) in &block.warps {
                let what = match state {
                    State::Done => continue,
                    State::Ready => "asks".to_string(),
                    State::AtBarrier(id, _) => format!("is at barrier {id} ({:?})", block.meetings.get(id)),
                    State::AtCluster => "waits for the cluster".to_string(),
                };
                let lane = warp.live.trailing_zeros().min(31) as usize;
                let line = kernel.code.get(warp.places[lane] as usize).map_or(0, |i| i.line);
                lines.push(format!("block {:?} warp {} {what} at line {line}", block.place, warp.number));
            }
        }
        lines.truncate(24);
        format!("{}: nothing goes on: {}", kernel.name, lines.join(", "))
    }
}

impl RunningBlock {
    /// Those at a barrier go on once all are there that it waits for.
    fn meet(&mut self) {
        let ended = self.warps.iter().filter(|(_, state)| matches!(state, State::Done)).count() as u32;
        let all = 32 * (self.warps.len() as u32 - ended);
        for (&id, meeting) in &mut self.meetings {
            if meeting.arrived > 0 && meeting.arrived >= meeting.threads.unwrap_or(all) {
                meeting.complete();
            }
            for (warp, state) in &mut self.warps {
                if let State::AtBarrier(at, phase) = *state
                    && at == id
                    && phase < meeting.phase
                {
                    *state = State::Ready;
                    warp.learn(meeting.said(phase));
                }
            }
            meeting.forget();
        }
    }
}
