//! From an opcode and its operands to what is run.

use super::body::Operand;
use super::decode_async::asynchronous;
use super::decode_convert::convert;
use super::modifiers::known;
use super::operation::*;

/// A type by its name in an opcode.
pub(super) fn kind(name: &str) -> Option<Type> {
    Some(match name {
        "u8" | "b8" => Type::U8,
        "s8" => Type::S8,
        "u16" | "b16" => Type::U16,
        "s16" => Type::S16,
        "u32" | "b32" => Type::U32,
        "s32" => Type::S32,
        "u64" | "b64" => Type::U64,
        "s64" => Type::S64,
        "f16" => Type::F16,
        "bf16" => Type::Bf16,
        "f32" => Type::F32,
        "f64" => Type::F64,
        "f16x2" => Type::F16x2,
        "bf16x2" => Type::Bf16x2,
        "u16x2" => Type::U16x2,
        "s16x2" => Type::S16x2,
        "pred" => Type::Pred,
        _ => return None,
    })
}

impl Operand {
    pub(super) fn s32(&self) -> Option<S32> {
        match *self {
            Self::Register(Register::R32(n)) => Some(S32::R(n)),
            Self::Literal(value) | Self::Place(value) => Some(S32::I(value as u32)),
            _ => None,
        }
    }

    pub(super) fn s64(&self) -> Option<S64> {
        match *self {
            Self::Register(Register::R64(n)) => Some(S64::R(n)),
            Self::Literal(value) | Self::Place(value) => Some(S64::I(value)),
            _ => None,
        }
    }

    pub(super) fn source(&self, wide: bool) -> Option<Source> {
        match *self {
            Self::Register(Register::Sink) => Some(Source::Sink),
            _ if wide => self.s64().map(Source::Wide),
            _ => self.s32().map(Source::Narrow),
        }
    }

    /// As wide as the register is.
    fn any(&self) -> Option<Source> {
        match *self {
            Self::Register(Register::R64(_)) => self.source(true),
            _ => self.source(false),
        }
    }

    pub(super) fn r32(&self) -> Option<u32> {
        match *self {
            Self::Register(Register::R32(n)) => Some(n),
            _ => None,
        }
    }

    fn r64(&self) -> Option<u32> {
        match *self {
            Self::Register(Register::R64(n)) => Some(n),
            _ => None,
        }
    }

    pub(super) fn register(&self) -> Option<Register> {
        match *self {
            Self::Register(register) => Some(register),
            Self::Pred(guard) if !guard.negated => Some(Register::Pred(guard.pred)),
            _ => None,
        }
    }

    pub(super) fn guard(&self) -> Option<Guard> {
        match *self {
            Self::Pred(guard) => Some(guard),
            _ => None,
        }
    }

    pub(super) fn address(&self) -> Option<Address> {
        match self {
            Self::Address(base, offset) => {
                let base = match **base {
                    // A place may be an address of the host.
                    Self::Place(value) | Self::Literal(value) => Source::Wide(S64::I(value)),
                    _ => base.any()?,
                };
                Some(Address { base, offset: *offset })
            }
            _ => None,
        }
    }

    pub(super) fn parts(&self) -> Vec<Operand> {
        match self {
            Self::Vector(parts) => parts.clone(),
            other => vec![other.clone()],
        }
    }
}

pub(super) fn space(mods: &[&str]) -> Space {
    for m in mods {
        match *m {
            "global" | "const" => return Space::Global,
            "shared" | "shared::cta" => return Space::Shared,
            "shared::cluster" => return Space::SharedCluster,
            "local" => return Space::Local,
            "param" | "param::entry" | "param::func" => return Space::Param,
            _ => {}
        }
    }
    Space::Generic
}

fn comparison(name: &str) -> Option<Comparison> {
    Some(match name {
        "eq" => Comparison::Eq,
        "ne" => Comparison::Ne,
        "lt" | "lo" => Comparison::Lt,
        "le" | "ls" => Comparison::Le,
        "gt" | "hi" => Comparison::Gt,
        "ge" | "hs" => Comparison::Ge,
        "equ" => Comparison::Equ,
        "neu" => Comparison::Neu,
        "ltu" => Comparison::Ltu,
        "leu" => Comparison::Leu,
        "gtu" => Comparison::Gtu,
        "geu" => Comparison::Geu,
        "num" => Comparison::Num,
        "nan" => Comparison::Nan,
        _ => return None,
    })
}

fn logic(name: &str) -> Option<Bool> {
    Some(match name {
        "and" => Bool::And,
        "or" => Bool::Or,
        "xor" => Bool::Xor,
        _ => return None,
    })
}

fn special(name: &str) -> Option<Special> {
    let axis = |name: &str| match name.rsplit_once('.')?.1 {
        "x" => Some(0),
        "y" => Some(1),
        "z" => Some(2),
        _ => None,
    };
    Some(match name {
        _ if name.starts_with("%tid.") => Special::Tid(axis(name)?),
        _ if name.starts_with("%ntid.") => Special::Ntid(axis(name)?),
        _ if name.starts_with("%ctaid.") => Special::Ctaid(axis(name)?),
        _ if name.starts_with("%nctaid.") => Special::Nctaid(axis(name)?),
        "%laneid" => Special::Lane,
        "%warpid" => Special::Warp,
        "%cluster_ctarank" | "%cluster_ctaid.x" => Special::ClusterRank,
        "%cluster_nctarank" | "%cluster_nctaid.x" => Special::ClusterSize,
        "%clusterid.x" => Special::ClusterId,
        "%nclusterid.x" => Special::Clusters,
        "%smid" => Special::Sm,
        "%nsmid" => Special::Sms,
        "%globaltimer" | "%clock64" | "%clock" | "%globaltimer_lo" => Special::Timer,
        "%lanemask_lt" => Special::LanesBelow,
        "%dynamic_smem_size" => Special::DynamicShared,
        _ => return None,
    })
}

/// Work of 32 bits and less, by the words of the opcode.
fn narrow(base: &str, mods: &[&str], of: Type) -> Option<K32> {
    let has = |word: &str| mods.contains(&word);
    let signed = of.signed();
    if of == Type::F32 {
        return Some(match base {
            "mov" => K32::Mov,
            "add" if has("rz") => K32::FAddRz,
            "add" => K32::FAdd,
            "sub" => K32::FSub,
            "mul" => K32::FMul,
            "fma" | "mad" => K32::FFma,
            "min" if has("NaN") => K32::FMinNan,
            "max" if has("NaN") => K32::FMaxNan,
            "min" => K32::FMin,
            "max" => K32::FMax,
            "abs" => K32::FAbs,
            "neg" => K32::FNeg,
            "div" => K32::FDiv,
            "rcp" => K32::FRcp,
            "sqrt" => K32::FSqrt,
            "rsqrt" => K32::FRsqrt,
            "ex2" => K32::FEx2,
            "lg2" => K32::FLg2,
            "tanh" => K32::FTanh,
            "copysign" => K32::FCopySign,
            _ => return None,
        });
    }
    Some(match (base, of) {
        ("add", Type::F16x2) => K32::HAdd2,
        ("mul", Type::F16x2) => K32::HMul2,
        ("fma", Type::F16x2) => K32::HFma2,
        ("add", Type::Bf16x2) => K32::BAdd2,
        ("mul", Type::Bf16x2) => K32::BMul2,
        ("fma", Type::Bf16x2) => K32::BFma2,
        ("add", Type::F16) => K32::HAdd,
        ("mul", Type::F16) => K32::HMul,
        ("fma", Type::F16) => K32::HFma,
        ("mul", Type::Bf16) => K32::BMul,
        ("fma", Type::Bf16) => K32::BFma,
        ("min", Type::U16x2) => K32::MinU16x2,
        ("max", Type::U16x2) => K32::MaxU16x2,
        ("mov", _) => K32::Mov,
        (_, Type::F16 | Type::Bf16 | Type::F16x2 | Type::Bf16x2 | Type::U16x2 | Type::S16x2) => return None,
        ("add", _) => K32::Add,
        ("sub", _) => K32::Sub,
        ("mul", _) if has("hi") && of.bytes() == 4 => {
            if signed {
                K32::MulHiS
            } else {
                K32::MulHiU
            }
        }
        ("mul", _) if has("lo") => K32::MulLo,
        ("mad", _) if has("lo") => K32::Mad,
        ("div", _) => {
            if signed {
                K32::DivS
            } else {
                K32::DivU
            }
        }
        ("rem", _) => {
            if signed {
                K32::RemS
            } else {
                K32::RemU
            }
        }
        ("min", _) => {
            if signed {
                K32::MinS
            } else {
                K32::MinU
            }
        }
        ("max", _) => {
            if signed {
                K32::MaxS
            } else {
                K32::MaxU
            }
        }
        ("and", _) => K32::And,
        ("or", _) => K32::Or,
        ("xor", _) => K32::Xor,
        ("not", _) => K32::Not,
        ("neg", _) => K32::Neg,
        ("abs", _) => K32::AbsS,
        ("shl", _) => K32::Shl,
        ("shr", _) => {
            if signed {
                K32::ShrS
            } else {
                K32::ShrU
            }
        }
        ("shf", _) => match (has("l"), has("wrap")) {
            (true, true) => K32::ShfLWrap,
            (true, false) => K32::ShfLClamp,
            (false, true) => K32::ShfRWrap,
            (false, false) => K32::ShfRClamp,
        },
        ("popc", _) => K32::Popc,
        ("clz", _) => K32::Clz,
        ("brev", _) => K32::Brev,
        ("bfind", _) => match (has("shiftamt"), signed) {
            (false, false) => K32::Bfind,
            (true, false) => K32::BfindShift,
            (false, true) => K32::BfindS,
            (true, true) => K32::BfindShiftS,
        },
        ("prmt", _) if mods.len() == 1 => K32::Prmt,
        ("bfe", _) => {
            if signed {
                K32::BfeS
            } else {
                K32::BfeU
            }
        }
        ("bfi", _) => K32::Bfi,
        ("lop3", _) => K32::Lop3,
        _ => return None,
    })
}

fn wide(base: &str, mods: &[&str], of: Type) -> Option<K64> {
    let (signed, float) = (of.signed(), of == Type::F64);
    Some(match base {
        "mov" => K64::Mov,
        "add" if float => K64::DAdd,
        "sub" if float => K64::DSub,
        "mul" if float => K64::DMul,
        "fma" if float => K64::DFma,
        "div" if float => K64::DDiv,
        "neg" if float => K64::DNeg,
        "abs" if float => K64::DAbs,
        "min" if float => K64::DMin,
        "max" if float => K64::DMax,
        _ if float => return None,
        "add" => K64::Add,
        "sub" => K64::Sub,
        "mul" if mods.contains(&"hi") && !signed => K64::MulHiU,
        "mul" if mods.contains(&"lo") => K64::MulLo,
        "mad" if mods.contains(&"lo") => K64::Mad,
        "div" => {
            if signed {
                K64::DivS
            } else {
                K64::DivU
            }
        }
        "rem" => {
            if signed {
                K64::RemS
            } else {
                K64::RemU
            }
        }
        "min" => {
            if signed {
                K64::MinS
            } else {
                K64::MinU
            }
        }
        "max" => {
            if signed {
                K64::MaxS
            } else {
                K64::MaxU
            }
        }
        "and" => K64::And,
        "or" => K64::Or,
        "xor" => K64::Xor,
        "not" => K64::Not,
        "neg" => K64::Neg,
        "abs" => K64::Abs,
        "bfi" => K64::Bfi,
        _ => return None,
    })
}

/// How many numbers a load or a store has.
fn parts_of(mods: &[&str]) -> usize {
    if mods.contains(&"v4") { 4 } else { 1 + usize::from(mods.contains(&"v2")) }
}

/// `None`: not known.
pub(super) fn decode(opcode: &str, operands: &[Operand], function: u32) -> Option<Op> {
    let words: Vec<&str> = opcode.split('.').collect();
    let (base, mods) = (words[0], &words[1..]);
    if !known(base, mods) {
        return None;
    }
    if let Some(op) = asynchronous(base, mods, operands) {
        return Some(op);
    }
    let of = mods.iter().rev().find_map(|word| kind(word));
    let at = |n: usize| operands.get(n);
    match base {
        "ret" if function == u32::MAX => return Some(Op::Exit),
        "ret" => return Some(Op::Ret { function }),
        "exit" => return Some(Op::Exit),
        "trap" | "brkpt" => return Some(Op::Trap),
        "nanosleep" | "membar" | "fence" | "prefetch" | "prefetchu" | "discard" | "applypriority" => {
            return Some(Op::Nop);
        }
        "ld" | "ldu" => {
            let d = at(0)?.parts().iter().map(Operand::register).collect::<Option<Vec<_>>>()?;
            if d.len() != parts_of(mods) {
                return None;
            }
            return Some(Op::Load { space: space(mods), at: at(1)?.address()?, of: of?, d });
        }
        // One that came by [`asynchronous`].
        "st" if mods.contains(&"async") => return None,
        "st" => {
            if at(1)?.parts().len() != parts_of(mods) {
                return None;
            }
            let wide = of?.wide();
            let a = at(1)?.parts().iter().map(|o| o.source(wide)).collect::<Option<_>>()?;
            return Some(Op::Store { space: space(mods), at: at(0)?.address()?, of: of?, a });
        }
        "atom" | "red" => {
            let k = mods.iter().find_map(|word| {
                Some(match *word {
                    "add" => Atomic::Add,
                    "min" => Atomic::Min,
                    "max" => Atomic::Max,
                    "and" => Atomic::And,
                    "or" => Atomic::Or,
                    "xor" => Atomic::Xor,
                    "exch" => Atomic::Exch,
                    "cas" => Atomic::Cas,
                    "inc" => Atomic::Inc,
                    "dec" => Atomic::Dec,
                    _ => return None,
                })
            })?;
            let first = usize::from(base == "atom");
            let d = if first == 1 { Some(at(0)?.register()?) } else { None };
            let wide = of?.wide();
            let parts = operands[first + 1..].iter().flat_map(Operand::parts);
            let a = parts.map(|o| o.source(wide)).collect::<Option<Vec<_>>>()?;
            if a.len() != if k == Atomic::Cas { 2 } else { parts_of(mods) } {
                return None;
            }
            return Some(Op::Atom { space: space(mods), at: at(first)?.address()?, of: of?, k, d, a });
        }
        "cvta" => {
            let to_space = mods[0] == "to";
            return Some(Op::Cvta {
                space: space(mods),
                to_space,
                d: at(0)?.register()?,
                a: at(1)?.source(of?.wide())?,
            });
        }
        "mapa" => return Some(Op::MapRank { d: at(0)?.r32()?, a: at(1)?.s32()?, rank: at(2)?.s32()? }),
        "setp" => {
            let cmp = comparison(mods[0])?;
            let (d, other) = match at(0)? {
                Operand::Pair(Register::Pred(p), Register::Pred(q)) => (*p, Some(*q)),
                Operand::Pred(p) => (p.pred, None),
                _ => return None,
            };
            let of = of?;
            let with = match logic(mods[1]) {
                Some(k) => Some((k, at(3)?.guard()?)),
                None => None,
            };
            let (a, b) = (at(1)?.source(of.wide())?, at(2)?.source(of.wide())?);
            return Some(Op::Setp { cmp, of, d, other, a, b, with });
        }
        "set" => {
            let of = of?;
            let (a, b) = (at(1)?.source(of.wide())?, at(2)?.source(of.wide())?);
            return Some(Op::Set { cmp: comparison(mods[0])?, of, d: at(0)?.r32()?, float: mods[1] == "f32", a, b });
        }
        "selp" => {
            let wide = of?.wide();
            let (a, b) = (at(1)?.source(wide)?, at(2)?.source(wide)?);
            return Some(Op::Selp { d: at(0)?.register()?, a, b, p: at(3)?.guard()? });
        }
        "cvt" => return convert(mods, operands),
        _ => {}
    }
    let of = of?;
    if of == Type::Pred {
        let Register::Pred(d) = at(0)?.register()? else { return None };
        return Some(match (base, at(1)?) {
            ("mov", Operand::Literal(value)) => Op::PredImmediate { d, value: *value != 0 },
            ("mov", a) => Op::Logic { k: None, d, a: a.guard()?, b: a.guard()? },
            ("not", a) => {
                let a = Guard { negated: !a.guard()?.negated, ..a.guard()? };
                Op::Logic { k: None, d, a, b: a }
            }
            (_, a) => Op::Logic { k: Some(logic(base)?), d, a: a.guard()?, b: at(2)?.guard()? },
        });
    }
    if base == "mov" {
        let bits = of.bytes() as u32 * 8;
        match (at(0)?, at(1)?) {
            (Operand::Vector(parts), _) | (_, Operand::Vector(parts)) if parts.is_empty() => return None,
            (Operand::Vector(parts), a) => {
                let d = parts.iter().map(Operand::register).collect::<Option<Vec<_>>>()?;
                return Some(Op::Unpack { bits: bits / d.len() as u32, d, a: a.source(of.wide())? });
            }
            (d, Operand::Vector(parts)) => {
                let bits = bits / parts.len() as u32;
                let a = parts.iter().map(|o| o.source(bits == 64)).collect::<Option<Vec<_>>>()?;
                return Some(Op::Pack { d: d.register()?, a, bits });
            }
            (d, Operand::Special(name)) => return Some(Op::Special { d: d.register()?, which: special(name)? }),
            _ => {}
        }
    }
    if matches!(base, "popc" | "clz") && of.wide() {
        return Some(Op::Count64 { d: at(0)?.r32()?, a: at(1)?.s64()?, leading: base == "clz" });
    }
    if mods.contains(&"wide") {
        let (a, b) = (at(1)?.s32()?, at(2)?.s32()?);
        if of.bytes() == 2 {
            let k = match (base, of.signed()) {
                ("mad", false) => K32::MadWide16U,
                ("mad", true) => K32::MadWide16S,
                (_, false) => K32::MulWide16U,
                (_, true) => K32::MulWide16S,
            };
            let c = if base == "mad" { at(3)?.s32()? } else { S32::I(0) };
            return Some(Op::A32 {
                k,
                d: at(0)?.r32()?,
                s: [a, b, c, S32::I(0)],
                small: 0,
                signed: false,
                flush: false,
            });
        }
        let add = if base == "mad" { Some(at(3)?.s64()?) } else { None };
        return Some(Op::MulWide { d: at(0)?.r64()?, a, b, add, signed: of.signed() });
    }
    if of.wide() {
        let d = at(0)?.r64()?;
        if matches!(base, "shl" | "shr") {
            let k = match (base, of.signed()) {
                ("shl", _) => Shift::Left,
                (_, false) => Shift::RightU,
                (_, true) => Shift::RightS,
            };
            return Some(Op::Shift64 { k, d, a: at(1)?.s64()?, by: at(2)?.s32()? });
        }
        let k = wide(base, mods, of)?;
        let mut s = [S64::I(0); 3];
        for (n, source) in s.iter_mut().enumerate().take(operands.len() - 1) {
            *source = if k == K64::Bfi && n == 2 { S64::I(0) } else { at(n + 1)?.s64()? };
        }
        let place = if k == K64::Bfi { [at(3)?.s32()?, at(4)?.s32()?] } else { [S32::I(0); 2] };
        return Some(Op::A64 { k, d, s, place });
    }
    let k = narrow(base, mods, of)?;
    let d = at(0)?.r32()?;
    let mut s = [S32::I(0); 4];
    for (n, source) in s.iter_mut().enumerate().take(operands.len() - 1) {
        *source = at(n + 1)?.s32()?;
    }
    let small = if of.bytes() < 4 && !matches!(k, K32::HAdd | K32::HMul | K32::HFma | K32::BMul | K32::BFma) {
        of.bytes() as u8 * 8
    } else {
        0
    };
    if k == K32::Lop3 {
        // The table is the fifth operand; three sources, and this in the place of a fourth.
        s[3] = at(4)?.s32()?;
    }
    Some(Op::A32 { k, d, s, small, signed: of.signed(), flush: mods.contains(&"ftz") })
}
