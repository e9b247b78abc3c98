//! Instructions of warps, barriers, matrices and copies.

use super::body::Operand;
use super::decode::{kind, space};
use super::operation::*;

fn element(name: &str) -> Option<Element> {
    Some(match name {
        "f16" => Element::F16,
        "bf16" => Element::Bf16,
        "e4m3" => Element::E4m3,
        "e5m2" => Element::E5m2,
        _ => return None,
    })
}

fn all32(operand: &Operand) -> Option<Vec<S32>> {
    operand.parts().iter().map(Operand::s32).collect()
}

fn registers(operand: &Operand) -> Option<Vec<u32>> {
    operand.parts().iter().map(Operand::r32).collect()
}

/// `None`: another instruction, or one that is not known.
pub(super) fn asynchronous(base: &str, mods: &[&str], operands: &[Operand]) -> Option<Op> {
    let at = |n: usize| operands.get(n);
    let has = |word: &str| mods.contains(&word);
    match base {
        "bar" if has("warp") => Some(Op::BarWarp { mask: at(0)?.s32()? }),
        "bar" | "barrier" if has("cluster") => Some(if has("arrive") { Op::ClusterArrive } else { Op::ClusterWait }),
        "bar" | "barrier" if has("sync") || has("arrive") => {
            Some(Op::Bar { id: at(0)?.s32()?, threads: at(1).and_then(Operand::s32), arrive: has("arrive") })
        }
        "bar" | "barrier" if has("red") => {
            let k = if has("and") {
                Vote::All
            } else if has("or") {
                Vote::Any
            } else if has("popc") {
                Vote::Ballot
            } else {
                return None;
            };
            let threads = if operands.len() == 4 { Some(at(2)?.s32()?) } else { None };
            Some(Op::BarReduce { k, d: at(0)?.register()?, id: at(1)?.s32()?, threads, a: operands.last()?.guard()? })
        }
        "griddepcontrol" | "setmaxnreg" | "createpolicy" => Some(Op::Nop),
        "activemask" => Some(Op::ActiveMask { d: at(0)?.r32()? }),
        "shfl" => {
            let k = match mods[1] {
                "idx" => Shuffle::Idx,
                "up" => Shuffle::Up,
                "down" => Shuffle::Down,
                "bfly" => Shuffle::Bfly,
                _ => return None,
            };
            let (d, valid) = match at(0)? {
                Operand::Pair(Register::R32(d), Register::Pred(p)) => (*d, Some(*p)),
                d => (d.r32()?, None),
            };
            Some(Op::Shuffle { k, d, valid, a: at(1)?.s32()?, b: at(2)?.s32()?, c: at(3)?.s32()?, mask: at(4)?.s32()? })
        }
        "vote" => {
            let k = match mods[1] {
                "all" => Vote::All,
                "any" => Vote::Any,
                "uni" => Vote::Uni,
                "ballot" => Vote::Ballot,
                _ => return None,
            };
            Some(Op::Vote { k, d: at(0)?.register()?, a: at(1)?.guard()?, mask: at(2)?.s32()? })
        }
        "redux" => {
            let signed = has("s32");
            let k = match mods[1] {
                "add" => K32::Add,
                "min" => {
                    if signed {
                        K32::MinS
                    } else {
                        K32::MinU
                    }
                }
                "max" => {
                    if signed {
                        K32::MaxS
                    } else {
                        K32::MaxU
                    }
                }
                "and" => K32::And,
                "or" => K32::Or,
                "xor" => K32::Xor,
                _ => return None,
            };
            Some(Op::Redux { k, d: at(0)?.r32()?, a: at(1)?.s32()?, mask: at(2)?.s32()? })
        }
        "elect" => {
            let Operand::Pair(d, Register::Pred(p)) = at(0)? else { return None };
            Some(Op::Elect { d: *d, p: *p, mask: at(1)?.s32()? })
        }
        "mma" => {
            if !has("m16n8k16") || !has("row") || !has("col") || mods[mods.len() - 1] != "f32" {
                return None;
            }
            let of = element(mods[mods.len() - 3])?;
            let (d, a) = (registers(at(0)?)?.try_into().ok()?, all32(at(1)?)?.try_into().ok()?);
            Some(Op::Mma { of, d, a, b: all32(at(2)?)?.try_into().ok()?, c: all32(at(3)?)?.try_into().ok()? })
        }
        "wgmma" => wgmma(mods, operands),
        "ldmatrix" | "stmatrix" => {
            let numbers = if base == "ldmatrix" { at(0)? } else { at(1)? }.parts().len();
            let expected = [("x1", 1), ("x2", 2), ("x4", 4)].into_iter().find(|(word, _)| has(word))?.1;
            if numbers != expected {
                return None;
            }
            let transposed = has("trans");
            Some(if base == "ldmatrix" {
                Op::LoadMatrix { d: registers(at(0)?)?, at: at(1)?.address()?, transposed }
            } else {
                Op::StoreMatrix { a: all32(at(1)?)?, at: at(0)?.address()?, transposed }
            })
        }
        "cp" => copies(mods, operands),
        "mbarrier" => {
            if has("init") {
                return Some(Op::BarrierInit { at: at(0)?.address()?, count: at(1)?.s32()? });
            }
            if has("inval") {
                return Some(Op::Nop);
            }
            if has("arrive") {
                // A number of arrivals would be one more.
                if operands.len() != if has("expect_tx") { 3 } else { 2 } {
                    return None;
                }
                let expect = if has("expect_tx") { Some(at(2)?.s32()?) } else { None };
                return Some(Op::BarrierArrive { at: at(1)?.address()?, cluster: has("shared::cluster"), expect });
            }
            if (has("try_wait") || has("test_wait")) && has("parity") {
                let Register::Pred(p) = at(0)?.register()? else { return None };
                return Some(Op::BarrierTest { at: at(1)?.address()?, parity: at(2)?.s32()?, p });
            }
            None
        }
        "st" if has("async") => {
            let of = kind(mods.last()?)?;
            let a = at(1)?.parts().iter().map(|o| o.source(of.wide())).collect::<Option<_>>()?;
            let Operand::Address(barrier, 0) = at(2)? else { return None };
            Some(Op::StoreAsync { at: at(0)?.address()?, of, a, barrier: barrier.s32()? })
        }
        "prefetch" | "fence" => Some(Op::Nop),
        _ => None,
    }
}

fn wgmma(mods: &[&str], operands: &[Operand]) -> Option<Op> {
    let at = |n: usize| operands.get(n);
    if !mods.contains(&"mma_async") {
        // Each product is computed where it is asked for.
        return Some(Op::Nop);
    }
    let shape = mods.iter().find(|word| word.starts_with("m64n"))?;
    let (columns, depth) = shape.strip_prefix("m64n")?.split_once('k')?;
    let of = (element(mods[mods.len() - 2])?, element(mods[mods.len() - 1])?);
    let expected = if matches!(of.0, Element::F16 | Element::Bf16) { "16" } else { "32" };
    if depth != expected || mods[mods.len() - 3] != "f32" {
        return None;
    }
    // Signs of 1, and B along k.
    let mut signs = operands.get(4..)?.iter().map(|o| matches!(o, Operand::Literal(1)));
    if !(signs.next()? && signs.next()?) || operands.get(6).is_some_and(|o| !matches!(o, Operand::Literal(0))) {
        return None;
    }
    let a = match at(1)? {
        Operand::Vector(_) => Err(all32(at(1)?)?.try_into().ok()?),
        other => Ok(other.s64()?),
    };
    // With A in registers the one bit behind the signs is B's; with descriptors of 16-bit types there are A's and B's.
    if a.is_ok()
        && matches!(of.0, Element::F16 | Element::Bf16)
        && !matches!(operands.get(7), Some(Operand::Literal(0)))
    {
        return None;
    }
    let (columns, d) = (columns.parse().ok()?, registers(at(0)?)?);
    if !(8..=256).contains(&columns) || columns % 8 != 0 || d.len() != columns as usize / 2 {
        return None;
    }
    Some(Op::Wgmma { of, columns, d, a, b: at(2)?.s64()?, add: at(3)?.guard()? })
}

fn copies(mods: &[&str], operands: &[Operand]) -> Option<Op> {
    let at = |n: usize| operands.get(n);
    let has = |word: &str| mods.contains(&word);
    let literal = |operand: &Operand| match operand {
        Operand::Literal(value) => Some(*value as u32),
        _ => None,
    };
    if has("mbarrier") && has("arrive") {
        return has("noinc").then_some(()).and_then(|()| Some(Op::CopyArrive { at: at(0)?.address()? }));
    }
    if has("bulk") {
        if has("commit_group") || has("wait_group") {
            return Some(Op::Nop);
        }
        if has("tensor") {
            if !has("2d") {
                return None;
            }
            let of_map = |operand: &Operand| match operand {
                Operand::Box(map, coordinates) => {
                    let all: Option<Vec<S32>> = coordinates.iter().map(Operand::s32).collect();
                    Some((map.s64()?, <[S32; 2]>::try_from(all?).ok()?))
                }
                _ => None,
            };
            if mods.get(4) == Some(&"global") {
                let (map, coordinates) = of_map(at(0)?)?;
                return Some(Op::StoreBox { map, at: coordinates, from: at(1)?.address()? });
            }
            let (map, coordinates) = of_map(at(1)?)?;
            let blocks = if has("multicast::cluster") { Some(at(3)?.s32()?) } else { None };
            return Some(Op::CopyBox {
                to: at(0)?.address()?,
                map,
                at: coordinates,
                barrier: at(2)?.address()?,
                blocks,
            });
        }
        return Some(Op::CopyBulk {
            to: at(0)?.address()?,
            from: at(1)?.address()?,
            bytes: at(2)?.s32()?,
            barrier: at(3)?.address()?,
        });
    }
    if has("commit_group") {
        return Some(Op::CopyCommit);
    }
    if has("wait_group") {
        return Some(Op::CopyWait { pending: literal(at(0)?)? });
    }
    if has("wait_all") {
        return Some(Op::CopyWaitAll);
    }
    if space(mods) != Space::Shared {
        return None;
    }
    let read = match at(3) {
        Some(operand) => Some(operand.s32()?),
        None => None,
    };
    if !matches!(literal(at(2)?)?, 4 | 8 | 16) {
        return None;
    }
    Some(Op::CopyAsync { to: at(0)?.address()?, from: at(1)?.address()?, bytes: literal(at(2)?)?, read })
}
