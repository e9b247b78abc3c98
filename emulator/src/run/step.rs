//! One instruction, of the lanes of a mask.

use super::arithmetic::{compare, convert, flushed, shortened, sources, work32, work64};
use super::block::Block;
use super::warp::{Flow, LANES, Lanes64, Stop, Warp};
use crate::ptx::operation::*;
use crate::ptx::{LOCAL_BASE, SHARED_BASE};

impl Warp {
    /// The error says what is wrong, without where.
    pub(super) fn step(&mut self, instruction: &Instruction, mask: u32, block: &mut Block<'_>) -> Result<Flow, String> {
        if self.wanted(&instruction.op, mask) & !mask != 0 {
            return Ok(Flow::Absent);
        }
        match &instruction.op {
            Op::A32 { k, d, s, small, signed, flush } => {
                let mut all = [[0; LANES]; 4];
                for (to, source) in all.iter_mut().zip(s).take(sources(*k)) {
                    *to = self.get32(*source);
                }
                if *small != 0 {
                    // The number of bits of a shift is one of 32.
                    let extended = if matches!(k, K32::Shl | K32::ShrU | K32::ShrS) { 1 } else { sources(*k) };
                    for values in all.iter_mut().take(extended) {
                        *values = shortened(values, *small, *signed);
                    }
                    let result = work32(*k, &all);
                    self.set32(mask, *d, &shortened(&result, *small, false));
                } else if *flush {
                    all = all.map(|source| flushed(&source));
                    self.set32(mask, *d, &flushed(&work32(*k, &all)));
                } else {
                    self.set32(mask, *d, &work32(*k, &all));
                }
            }
            Op::A64 { k, d, s, place } => {
                let all = [self.get64(s[0]), self.get64(s[1]), self.get64(s[2])];
                let place = [self.get32(place[0]), self.get32(place[1])];
                self.set64(mask, *d, &work64(*k, &all, &place));
            }
            Op::Shift64 { k, d, a, by } => {
                let (a, by) = (self.get64(*a), self.get32(*by));
                let work = |l: usize| match (k, by[l]) {
                    (Shift::RightS, by) => ((a[l] as i64) >> by.min(63)) as u64,
                    (_, 64..) => 0,
                    (Shift::Left, by) => a[l] << by,
                    (Shift::RightU, by) => a[l] >> by,
                };
                self.set64(mask, *d, &std::array::from_fn(work));
            }
            Op::MulWide { d, a, b, add, signed } => {
                let (a, b) = (self.get32(*a), self.get32(*b));
                let add = add.map_or([0; LANES], |c| self.get64(c));
                let work = |l: usize| {
                    let product = if *signed {
                        (i64::from(a[l] as i32) * i64::from(b[l] as i32)) as u64
                    } else {
                        u64::from(a[l]) * u64::from(b[l])
                    };
                    product.wrapping_add(add[l])
                };
                self.set64(mask, *d, &std::array::from_fn(work));
            }
            Op::Count64 { d, a, leading } => {
                let count = self.get64(*a).map(|v| if *leading { v.leading_zeros() } else { v.count_ones() });
                self.set32(mask, *d, &count);
            }
            Op::Convert { to, from, rounding, saturate, d, a } => {
                let a = self.get(*a);
                let mut out = [0; LANES];
                for l in 0..LANES {
                    out[l] = convert(*to, *from, *rounding, *saturate, a[l]).ok_or_else(|| {
                        format!("conversion from {from:?} to {to:?} by {rounding:?} is not known here")
                    })?;
                }
                // 64 bits of a sign in a register of 32 are cut there.
                self.set(mask, *d, &out);
            }
            Op::Setp { cmp, of, d, other, a, b, with } => {
                let mut holds = self.compared(*cmp, *of, *a, *b);
                let mut opposite = !holds;
                if let Some((k, guard)) = with {
                    let with = self.guard(*guard);
                    holds = joined(*k, holds, with);
                    opposite = joined(*k, opposite, with);
                }
                self.set_pred(mask, *d, holds);
                if let Some(q) = other {
                    self.set_pred(mask, *q, opposite);
                }
            }
            Op::Set { cmp, of, d, float, a, b } => {
                let holds = self.compared(*cmp, *of, *a, *b);
                let one = if *float { 1.0f32.to_bits() } else { u32::MAX };
                self.set32(mask, *d, &std::array::from_fn(|l| if holds >> l & 1 != 0 { one } else { 0 }));
            }
            Op::Selp { d, a, b, p } => {
                let p = self.guard(*p);
                match (*d, *a, *b) {
                    (Register::R32(d), Source::Narrow(a), Source::Narrow(b)) => {
                        let (a, b) = (self.get32(a), self.get32(b));
                        self.set32(mask, d, &std::array::from_fn(|l| if p >> l & 1 != 0 { a[l] } else { b[l] }));
                    }
                    _ => {
                        let (a, b) = (self.get(*a), self.get(*b));
                        self.set(mask, *d, &std::array::from_fn(|l| if p >> l & 1 != 0 { a[l] } else { b[l] }));
                    }
                }
            }
            Op::Logic { k, d, a, b } => {
                let (a, b) = (self.guard(*a), self.guard(*b));
                self.set_pred(mask, *d, k.map_or(a, |k| joined(k, a, b)));
            }
            Op::PredImmediate { d, value } => self.set_pred(mask, *d, if *value { u32::MAX } else { 0 }),
            Op::Special { d, which } => {
                let value = self.special(*which, block);
                self.set(mask, *d, &value);
            }
            Op::Unpack { d, a, bits } => {
                let value = self.get(*a);
                for (n, &part) in d.iter().enumerate() {
                    let shift = n as u32 * bits;
                    let low = if *bits == 64 { u64::MAX } else { (1 << bits) - 1 };
                    self.set(mask, part, &value.map(|v| v >> shift & low));
                }
            }
            Op::Pack { d, a, bits } => {
                let mut value = [0u64; LANES];
                for (n, &part) in a.iter().enumerate() {
                    let low = if *bits == 64 { u64::MAX } else { (1 << bits) - 1 };
                    let part = self.get(part);
                    for l in 0..LANES {
                        value[l] |= (part[l] & low) << (n as u32 * bits);
                    }
                }
                self.set(mask, *d, &value);
            }
            Op::Load { space, at, of, d } => self.load(mask, block, *space, *at, *of, d)?,
            Op::Store { space, at, of, a } => self.store(mask, block, *space, *at, *of, a)?,
            Op::Atom { space, at, of, k, d, a } => self.atomic(mask, block, (*space, *at, *of, *k), *d, a)?,
            Op::Cvta { space, to_space, d, a } => {
                let base = match space {
                    Space::Shared | Space::SharedCluster => SHARED_BASE,
                    Space::Local => LOCAL_BASE,
                    _ => 0,
                };
                let value = self.get(*a);
                let moved = |v: u64| match (to_space, *space) {
                    // Parameters have generic addresses from the start.
                    (_, Space::Param | Space::Global | Space::Generic) => v,
                    (true, _) => v.wrapping_sub(base),
                    (false, _) => v.wrapping_add(base),
                };
                self.set(mask, *d, &value.map(moved));
            }
            Op::MapRank { d, a, rank } => {
                let (a, rank) = (self.get32(*a), self.get32(*rank));
                self.set32(mask, *d, &std::array::from_fn(|l| a[l] & 0x00FF_FFFF | (rank[l].min(254) + 1) << 24));
            }
            Op::Bra { .. } => return Err("a branch".into()),
            Op::Call { to, back, function, copies } => {
                for l in (0..LANES).filter(|l| mask >> l & 1 != 0) {
                    self.returns[*function as usize][l] = *back;
                    self.places[l] = *to;
                }
                self.copy_local(mask, copies);
                return Ok(Flow::Placed);
            }
            Op::Given { copies } => self.copy_local(mask, copies),
            Op::Ret { function } => {
                for l in (0..LANES).filter(|l| mask >> l & 1 != 0) {
                    self.places[l] = self.returns[*function as usize][l];
                }
                return Ok(Flow::Placed);
            }
            Op::Exit => {
                // What was asked for is done all the same.
                self.finish_copies(mask, 0, block)?;
                return Ok(Flow::Exit);
            }
            Op::Trap => return Err("trap".into()),
            Op::Bar { id, threads, arrive } => {
                let (id, threads) = self.named(block, *id, *threads)?;
                if *arrive && threads.is_none() {
                    return Err("bar.arrive without a number of threads".into());
                }
                let phase = block.arrive(id, threads, [0; 2]);
                return Ok(if *arrive { Flow::Next } else { Flow::Stop(Stop::Barrier { id, phase }) });
            }
            Op::BarReduce { k, d, id, threads, a } => {
                let (id, threads) = self.named(block, *id, *threads)?;
                let set = (self.guard(*a) & mask).count_ones();
                let phase = block.arrive(id, threads, [mask.count_ones(), set]);
                self.learns = Some((*k, *d));
                return Ok(Flow::Stop(Stop::Barrier { id, phase }));
            }
            Op::ClusterArrive => {
                if self.arrived.is_some() {
                    return Err("a warp arrives twice at the cluster's barrier".into());
                }
                self.arrived = Some(block.cluster_arrive());
            }
            Op::ClusterWait => {
                if self.arrived.is_none() {
                    return Err("a warp waits for the cluster without having arrived".into());
                }
                return Ok(Flow::Stop(Stop::Cluster));
            }
            Op::ActiveMask { d } => self.set32(mask, *d, &[mask; LANES]),
            Op::Shuffle { .. } | Op::Vote { .. } | Op::Redux { .. } | Op::Elect { .. } => {
                return self.together(mask, &instruction.op);
            }
            Op::Mma { of, d, a, b, c } => {
                self.mma(*of, d, a, b, c);
            }
            Op::Wgmma { of, columns, d, a, b, add } => {
                self.wgmma(block, *of, *columns, d, a, *b, *add)?;
            }
            Op::LoadMatrix { d, at, transposed } => {
                self.load_matrices(block, d, *at, *transposed)?;
            }
            Op::StoreMatrix { a, at, transposed } => {
                self.store_matrices(block, a, *at, *transposed)?;
            }
            Op::CopyAsync { to, from, bytes, read } => self.copy_async(mask, *to, *from, *bytes, *read),
            Op::CopyCommit => {
                for l in (0..LANES).filter(|l| mask >> l & 1 != 0) {
                    self.groups[l] += 1;
                }
            }
            Op::CopyWait { pending } => self.finish_copies(mask, *pending, block)?,
            Op::CopyWaitAll => self.finish_all_copies(mask, block)?,
            Op::CopyArrive { at } => {
                self.finish_all_copies(mask, block)?;
                self.barrier_arrive(mask, block, *at, false, None)?;
            }
            Op::BarrierInit { at, count } => self.barrier_init(mask, block, *at, *count)?,
            Op::BarrierArrive { at, cluster, expect } => self.barrier_arrive(mask, block, *at, *cluster, *expect)?,
            Op::BarrierTest { at, parity, p } => {
                if !self.barrier_test(mask, block, *at, *parity, *p)? {
                    return Ok(Flow::Asks);
                }
            }
            Op::StoreAsync { at, of, a, barrier } => self.store_async(mask, block, *at, *of, a, *barrier)?,
            Op::CopyBulk { to, from, bytes, barrier } => self.copy_bulk(mask, block, *to, *from, *bytes, *barrier)?,
            Op::CopyBox { to, map, at, barrier, blocks } => {
                self.copy_box(mask, block, (*to, *barrier, *blocks), *map, *at)?
            }
            Op::StoreBox { map, at, from } => self.store_box(mask, block, *map, *at, *from)?,
            Op::BarWarp { .. } | Op::Nop => {}
            Op::Unknown(text) => return Err(format!("{text}: this is not known here")),
        }
        Ok(Flow::Next)
    }

    fn copy_local(&mut self, mask: u32, copies: &[(u32, u32, u32)]) {
        for l in (0..LANES).filter(|l| mask >> l & 1 != 0) {
            let own = l * self.local_bytes;
            for &(from, to, bytes) in copies {
                let (from, to) = (own + from as usize, own + to as usize);
                self.local.copy_within(from..from + bytes as usize, to);
            }
        }
    }

    fn compared(&self, cmp: Comparison, of: Type, a: Source, b: Source) -> u32 {
        // The most frequent ones without a walk over types.
        if let (Source::Narrow(a), Source::Narrow(b)) = (a, b) {
            let (a, b) = (self.get32(a), self.get32(b));
            let bits =
                |holds: &dyn Fn(u32, u32) -> bool| (0..LANES).fold(0, |m, l| m | u32::from(holds(a[l], b[l])) << l);
            match (of, cmp) {
                (Type::U32 | Type::S32, Comparison::Eq) => return bits(&|a, b| a == b),
                (Type::U32 | Type::S32, Comparison::Ne) => return bits(&|a, b| a != b),
                (Type::U32, Comparison::Lt) => return bits(&|a, b| a < b),
                (Type::U32, Comparison::Ge) => return bits(&|a, b| a >= b),
                _ => {}
            }
        }
        let (a, b) = (self.get(a), self.get(b));
        (0..LANES).fold(0, |m, l| m | u32::from(compare(cmp, of, a[l], b[l])) << l)
    }

    fn special(&self, which: Special, block: &Block<'_>) -> Lanes64 {
        let size = block.launch.block;
        let thread = |l: usize| self.number * 32 + l as u32;
        let all = |value: u32| [u64::from(value); LANES];
        match which {
            Special::Tid(0) => std::array::from_fn(|l| u64::from(thread(l) % size[0])),
            Special::Tid(1) => std::array::from_fn(|l| u64::from(thread(l) / size[0] % size[1])),
            Special::Tid(_) => std::array::from_fn(|l| u64::from(thread(l) / size[0] / size[1])),
            Special::Ntid(axis) => all(size[axis]),
            Special::Ctaid(axis) => all(block.place[axis]),
            Special::Nctaid(axis) => all(block.launch.grid[axis]),
            Special::Lane => std::array::from_fn(|l| l as u64),
            Special::Warp => all(self.number),
            Special::ClusterRank => all(block.rank as u32),
            Special::ClusterSize => all(block.launch.cluster),
            Special::ClusterId => all(block.place[0] / block.launch.cluster),
            Special::Clusters => all(block.launch.grid[0] / block.launch.cluster),
            Special::Sm => all(block.place[0] % 132),
            Special::Sms => all(132),
            Special::Timer => [block.time(); LANES],
            Special::LanesBelow => std::array::from_fn(|l| (1u64 << l) - 1),
            Special::DynamicShared => all(block.launch.dynamic_shared),
        }
    }

    /// The barrier of the block that an instruction names, and the threads that it says.
    fn named(&self, block: &Block<'_>, id: S32, threads: Option<S32>) -> Result<(u32, Option<u32>), String> {
        let first = self.live.trailing_zeros() as usize;
        Ok((block.numbered(self.get32(id)[first])?, threads.map(|threads| self.get32(threads)[first])))
    }

    /// The lanes that run an instruction together; none where each runs it alone.
    fn wanted(&self, op: &Op, mask: u32) -> u32 {
        match op {
            Op::Bar { .. } | Op::BarReduce { .. } | Op::ClusterArrive | Op::ClusterWait => self.live,
            Op::Mma { .. } | Op::Wgmma { .. } | Op::LoadMatrix { .. } | Op::StoreMatrix { .. } => u32::MAX,
            Op::BarWarp { mask: members }
            | Op::Shuffle { mask: members, .. }
            | Op::Vote { mask: members, .. }
            | Op::Redux { mask: members, .. }
            | Op::Elect { mask: members, .. } => self.get32(*members)[mask.trailing_zeros() as usize] & self.live,
            _ => 0,
        }
    }

    fn together(&mut self, mask: u32, op: &Op) -> Result<Flow, String> {
        match op {
            Op::Shuffle { k, d, valid, a, b, c, .. } => {
                let (a, b, c) = (self.get32(*a), self.get32(*b), self.get32(*c));
                let (mut out, mut inside) = ([0; LANES], 0u32);
                for l in 0..LANES {
                    let lane = l as i32;
                    let (by, clamp, segment) = ((b[l] & 31) as i32, (c[l] & 31) as i32, (c[l] >> 8 & 31) as i32);
                    let most = lane & segment | clamp & !segment;
                    let (from, holds) = match k {
                        Shuffle::Up => (lane - by, lane - by >= most),
                        Shuffle::Down => (lane + by, lane + by <= most),
                        Shuffle::Bfly => (lane ^ by, lane ^ by <= most),
                        Shuffle::Idx => {
                            let from = lane & segment | by & !segment;
                            (from, from <= most)
                        }
                    };
                    let from = if holds { from as usize & 31 } else { l };
                    inside |= u32::from(holds) << l;
                    // What a lane has that does not take part is anything.
                    out[l] = if mask >> from & 1 != 0 { a[from] } else { u32::MAX };
                }
                self.set32(mask, *d, &out);
                if let Some(p) = valid {
                    self.set_pred(mask, *p, inside);
                }
            }
            Op::Vote { k, d, a, mask: members } => {
                let all = self.get32(*members)[mask.trailing_zeros() as usize] & mask;
                let set = self.guard(*a) & all;
                let value = match k {
                    Vote::Ballot => u64::from(set),
                    Vote::All => u64::from(set == all),
                    Vote::Any => u64::from(set != 0),
                    Vote::Uni => u64::from(set == all || set == 0),
                };
                self.set(mask, *d, &[value; LANES]);
            }
            Op::Redux { k, d, a, .. } => {
                let a = self.get32(*a);
                let mut lanes = (0..LANES).filter(|l| mask >> l & 1 != 0);
                let first = a[lanes.next().ok_or("no lane")?];
                let all =
                    lanes.fold(first, |sum, l| work32(*k, &[[sum; LANES], [a[l]; LANES], [0; LANES], [0; LANES]])[0]);
                self.set32(mask, *d, &[all; LANES]);
            }
            Op::Elect { d, p, .. } => {
                let first = mask.trailing_zeros();
                self.set(mask, *d, &[u64::from(first); LANES]);
                self.set_pred(mask, *p, 1 << first);
            }
            _ => return Err("no work of a warp".into()),
        }
        Ok(Flow::Next)
    }
}

fn joined(k: Bool, a: u32, b: u32) -> u32 {
    match k {
        Bool::And => a & b,
        Bool::Or => a | b,
        Bool::Xor => a ^ b,
    }
}
