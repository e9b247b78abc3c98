//! Conversions.

use super::body::Operand;
use super::decode::kind;
use super::operation::*;

/// Pairs of numbers to pairs of codes and back, and single numbers.
pub(super) fn convert(mods: &[&str], operands: &[Operand]) -> Option<Op> {
    let at = |n: usize| operands.get(n);
    let has = |word: &str| mods.contains(&word);
    let [.., to, from] = mods else { return None };
    let pair = match (*to, *from) {
        ("bf16x2", "f32") => Some(K32::PairBf16),
        ("f16x2", "f32") => Some(K32::PairF16),
        ("e4m3x2", "f32") => Some(K32::PairE4m3),
        ("e5m2x2", "f32") => Some(K32::PairE5m2),
        ("e2m1x2", "f32") => Some(K32::PairE2m1),
        ("ue8m0x2", "f32") if has("rp") => Some(K32::PairUe8m0),
        ("f16x2", "e4m3x2") => Some(K32::F16x2OfE4m3),
        ("f16x2", "e5m2x2") => Some(K32::F16x2OfE5m2),
        ("f16x2", "e2m1x2") => Some(K32::F16x2OfE2m1),
        ("bf16x2", "ue8m0x2") => Some(K32::Bf16x2OfUe8m0),
        _ => None,
    };
    if let Some(k) = pair {
        if has("relu") || has("rz") {
            return None;
        }
        let second = at(2).map_or(Some(S32::I(0)), Operand::s32)?;
        return Some(Op::A32 {
            k,
            d: at(0)?.r32()?,
            s: [at(1)?.s32()?, second, S32::I(0), S32::I(0)],
            small: 0,
            signed: false,
            flush: false,
        });
    }
    let (to, from) = (kind(to)?, kind(from)?);
    let single = |of: Type| !matches!(of, Type::F16x2 | Type::Bf16x2 | Type::U16x2 | Type::S16x2 | Type::Pred);
    if !single(to) || !single(from) {
        return None;
    }
    let rounding = mods.iter().find_map(|word| {
        Some(match *word {
            "rn" => Rounding::Nearest,
            "rz" => Rounding::Zero,
            "rp" => Rounding::Up,
            "rm" => Rounding::Down,
            "rni" => Rounding::IntegerNearest,
            "rzi" => Rounding::IntegerZero,
            "rpi" => Rounding::IntegerUp,
            "rmi" => Rounding::IntegerDown,
            _ => return None,
        })
    });
    let rounding = rounding.unwrap_or(Rounding::Nearest);
    Some(Op::Convert {
        to,
        from,
        rounding,
        saturate: has("sat"),
        d: at(0)?.register()?,
        a: at(1)?.source(from.wide())?,
    })
}
