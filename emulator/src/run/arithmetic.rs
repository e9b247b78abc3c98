//! Work that each lane does alone, on all lanes of a warp.

use super::numbers::*;
use super::warp::{LANES, Lanes32, Lanes64};
use crate::ptx::operation::{Comparison, K32, K64, Rounding, Type};

fn one(a: &Lanes32, work: impl Fn(u32) -> u32) -> Lanes32 {
    std::array::from_fn(|l| work(a[l]))
}
fn two(s: &[Lanes32; 4], work: impl Fn(u32, u32) -> u32) -> Lanes32 {
    std::array::from_fn(|l| work(s[0][l], s[1][l]))
}
fn three(s: &[Lanes32; 4], work: impl Fn(u32, u32, u32) -> u32) -> Lanes32 {
    std::array::from_fn(|l| work(s[0][l], s[1][l], s[2][l]))
}
fn floats(s: &[Lanes32; 4], work: impl Fn(f32, f32) -> f32) -> Lanes32 {
    two(s, |a, b| bits(work(f(a), f(b))))
}

/// Subnormal numbers as zeros of their sign.
pub(super) fn flushed(s: &Lanes32) -> Lanes32 {
    one(s, |a| if a & 0x7F80_0000 == 0 { a & 0x8000_0000 } else { a })
}

/// How many of the four sources count.
pub(super) fn sources(k: K32) -> usize {
    use K32::*;
    match k {
        Mov | Not | Neg | AbsS | Popc | Clz | Brev | Bfind | BfindShift | BfindS | BfindShiftS | FAbs | FNeg | FRcp
        | FSqrt | FRsqrt | FEx2 | FLg2 | FTanh | F16x2OfE4m3 | F16x2OfE5m2 | F16x2OfE2m1 | Bf16x2OfUe8m0 => 1,
        Mad | MadWide16U | MadWide16S | ShfLWrap | ShfRWrap | ShfLClamp | ShfRClamp | Prmt | BfeU | BfeS | FFma
        | HFma2 | BFma2 | HFma | BFma => 3,
        Bfi | Lop3 => 4,
        _ => 2,
    }
}

fn prmt(a: u32, b: u32, selector: u32) -> u32 {
    let bytes = u64::from(a) | u64::from(b) << 32;
    (0..4).fold(0, |word, n| {
        let choice = selector >> (4 * n) & 15;
        let byte = (bytes >> (8 * (choice & 7))) as u32 & 0xFF;
        let byte = if choice & 8 != 0 { if byte & 0x80 != 0 { 0xFF } else { 0 } } else { byte };
        word | byte << (8 * n)
    })
}

fn field(value: u32, from: u32, count: u32, signed: bool) -> u32 {
    let (from, count) = (from & 0xFF, count & 0xFF);
    if count == 0 {
        return 0;
    }
    let bit = |n: u32| if n > 31 { if signed { value >> 31 } else { 0 } } else { value >> n & 1 };
    let sign = if signed { bit((from + count - 1).min(31)) } else { 0 };
    (0..32).fold(0, |word, n| word | (if n < count { bit(from + n) } else { sign }) << n)
}

/// The bits that differ from the sign.
fn magnitude(a: u32) -> u32 {
    a ^ ((a as i32) >> 31) as u32
}

fn lop3(a: u32, b: u32, c: u32, table: u32) -> u32 {
    (0..8).filter(|n| table >> n & 1 != 0).fold(0, |word, n| {
        let pick = |value: u32, set: bool| if set { value } else { !value };
        word | pick(a, n & 4 != 0) & pick(b, n & 2 != 0) & pick(c, n & 1 != 0)
    })
}

pub(super) fn work32(k: K32, s: &[Lanes32; 4]) -> Lanes32 {
    use K32::*;
    match k {
        Mov => s[0],
        Add => two(s, u32::wrapping_add),
        Sub => two(s, u32::wrapping_sub),
        MulLo => two(s, u32::wrapping_mul),
        MulHiU => two(s, |a, b| ((u64::from(a) * u64::from(b)) >> 32) as u32),
        MulHiS => two(s, |a, b| ((i64::from(a as i32) * i64::from(b as i32)) >> 32) as u32),
        Mad => three(s, |a, b, c| a.wrapping_mul(b).wrapping_add(c)),
        MulWide16U => two(s, |a, b| (a & 0xFFFF) * (b & 0xFFFF)),
        MulWide16S => two(s, |a, b| (i32::from(a as i16) * i32::from(b as i16)) as u32),
        MadWide16U => three(s, |a, b, c| ((a & 0xFFFF) * (b & 0xFFFF)).wrapping_add(c)),
        MadWide16S => three(s, |a, b, c| ((i32::from(a as i16) * i32::from(b as i16)) as u32).wrapping_add(c)),
        DivU => two(s, |a, b| a.checked_div(b).unwrap_or(u32::MAX)),
        DivS => two(s, |a, b| if b == 0 { u32::MAX } else { (a as i32).wrapping_div(b as i32) as u32 }),
        RemU => two(s, |a, b| a.checked_rem(b).unwrap_or(a)),
        RemS => two(s, |a, b| (a as i32).checked_rem(b as i32).unwrap_or(0) as u32),
        MinU => two(s, u32::min),
        MaxU => two(s, u32::max),
        MinS => two(s, |a, b| (a as i32).min(b as i32) as u32),
        MaxS => two(s, |a, b| (a as i32).max(b as i32) as u32),
        And => two(s, |a, b| a & b),
        Or => two(s, |a, b| a | b),
        Xor => two(s, |a, b| a ^ b),
        Not => one(&s[0], |a| !a),
        Neg => one(&s[0], u32::wrapping_neg),
        AbsS => one(&s[0], |a| (a as i32).wrapping_abs() as u32),
        Shl => two(s, |a, by| if by > 31 { 0 } else { a << by }),
        ShrU => two(s, |a, by| if by > 31 { 0 } else { a >> by }),
        ShrS => two(s, |a, by| ((a as i32) >> by.min(31)) as u32),
        ShfLWrap => three(s, |low, high, by| shift_pair(low, high, by & 31, true)),
        ShfRWrap => three(s, |low, high, by| shift_pair(low, high, by & 31, false)),
        ShfLClamp => three(s, |low, high, by| shift_pair(low, high, by.min(32), true)),
        ShfRClamp => three(s, |low, high, by| shift_pair(low, high, by.min(32), false)),
        Popc => one(&s[0], u32::count_ones),
        Clz => one(&s[0], u32::leading_zeros),
        Brev => one(&s[0], u32::reverse_bits),
        Bfind => one(&s[0], |a| a.checked_ilog2().unwrap_or(u32::MAX)),
        BfindShift => one(&s[0], |a| a.checked_ilog2().map_or(u32::MAX, |at| 31 - at)),
        BfindS => one(&s[0], |a| magnitude(a).checked_ilog2().unwrap_or(u32::MAX)),
        BfindShiftS => one(&s[0], |a| magnitude(a).checked_ilog2().map_or(u32::MAX, |at| 31 - at)),
        Prmt => three(s, prmt),
        BfeU => three(s, |v, from, count| field(v, from, count, false)),
        BfeS => three(s, |v, from, count| field(v, from, count, true)),
        Bfi => std::array::from_fn(|l| insert(u64::from(s[0][l]), u64::from(s[1][l]), s[2][l], s[3][l], 32) as u32),
        Lop3 => std::array::from_fn(|l| lop3(s[0][l], s[1][l], s[2][l], s[3][l])),
        MinU16x2 => two(s, |a, b| halves(a, b, 0, |a, b, _| a.min(b))),
        MaxU16x2 => two(s, |a, b| halves(a, b, 0, |a, b, _| a.max(b))),
        FAdd => floats(s, |a, b| a + b),
        FAddRz => floats(s, add_toward_zero),
        FSub => floats(s, |a, b| a - b),
        FMul => floats(s, |a, b| a * b),
        FFma => three(s, |a, b, c| bits(f(a).mul_add(f(b), f(c)))),
        FMin => floats(s, min),
        FMax => floats(s, max),
        FMinNan => floats(s, |a, b| if a.is_nan() || b.is_nan() { f32::NAN } else { min(a, b) }),
        FMaxNan => floats(s, |a, b| if a.is_nan() || b.is_nan() { f32::NAN } else { max(a, b) }),
        FAbs => one(&s[0], |a| a & 0x7FFF_FFFF),
        FNeg => one(&s[0], |a| a ^ 0x8000_0000),
        FDiv => floats(s, |a, b| a / b),
        // `rcp.approx` stands here, too, which a GPU gives within a unit of the last place: kernels correct it.
        FRcp => one(&s[0], |a| bits(1.0 / f(a))),
        FSqrt => one(&s[0], |a| bits(f(a).sqrt())),
        FRsqrt => one(&s[0], |a| bits((1.0 / f64::from(f(a)).sqrt()) as f32)),
        FEx2 => one(&s[0], |a| bits(f64::from(f(a)).exp2() as f32)),
        FLg2 => one(&s[0], |a| bits(f64::from(f(a)).log2() as f32)),
        FTanh => one(&s[0], |a| bits(f64::from(f(a)).tanh() as f32)),
        FCopySign => two(s, |a, b| b & 0x7FFF_FFFF | a & 0x8000_0000),
        HAdd2 => two(s, |a, b| halves(a, b, 0, |a, b, _| f16_fma(a, 0x3C00, b))),
        HMul2 => two(s, |a, b| halves(a, b, 0, |a, b, _| f16_mul(a, b))),
        HFma2 => three(s, |a, b, c| halves(a, b, c, f16_fma)),
        BAdd2 => two(s, |a, b| halves(a, b, 0, |a, b, _| bf16_fma(a, 0x3F80, b))),
        BMul2 => two(s, |a, b| halves(a, b, 0, |a, b, _| bf16_mul(a, b))),
        BFma2 => three(s, |a, b, c| halves(a, b, c, bf16_fma)),
        HAdd => two(s, |a, b| f16_fma(a & 0xFFFF, 0x3C00, b & 0xFFFF)),
        HMul => two(s, |a, b| f16_mul(a & 0xFFFF, b & 0xFFFF)),
        HFma => three(s, |a, b, c| f16_fma(a & 0xFFFF, b & 0xFFFF, c & 0xFFFF)),
        BMul => two(s, |a, b| bf16_mul(a & 0xFFFF, b & 0xFFFF)),
        BFma => three(s, |a, b, c| bf16_fma(a & 0xFFFF, b & 0xFFFF, c & 0xFFFF)),
        PairBf16 => two(s, |high, low| bf16_of(f(high)) << 16 | bf16_of(f(low))),
        PairF16 => two(s, |high, low| f16_of(f(high)) << 16 | f16_of(f(low))),
        PairE4m3 => two(s, |high, low| e4m3(f(high)) << 8 | e4m3(f(low))),
        PairE5m2 => two(s, |high, low| e5m2(f(high)) << 8 | e5m2(f(low))),
        PairE2m1 => two(s, |high, low| e2m1(f(high)) << 4 | e2m1(f(low))),
        PairUe8m0 => two(s, |high, low| ue8m0_up(f(high)) << 8 | ue8m0_up(f(low))),
        F16x2OfE4m3 => one(&s[0], |a| f16_of(of_e4m3(a >> 8 & 0xFF)) << 16 | f16_of(of_e4m3(a & 0xFF))),
        F16x2OfE5m2 => one(&s[0], |a| f16_of(of_e5m2(a >> 8 & 0xFF)) << 16 | f16_of(of_e5m2(a & 0xFF))),
        F16x2OfE2m1 => one(&s[0], |a| f16_of(of_e2m1(a >> 4 & 15)) << 16 | f16_of(of_e2m1(a & 15))),
        Bf16x2OfUe8m0 => one(&s[0], |a| bf16_of_exponent(a >> 8 & 0xFF) << 16 | bf16_of_exponent(a & 0xFF)),
    }
}

fn bf16_of_exponent(code: u32) -> u32 {
    match code {
        0 => 0x0040,
        255 => 0x7FFF,
        _ => code << 7,
    }
}

fn shift_pair(low: u32, high: u32, by: u32, left: bool) -> u32 {
    let pair = u64::from(high) << 32 | u64::from(low);
    if left { if by == 32 { low } else { (pair << by >> 32) as u32 } } else { (pair >> by) as u32 }
}

fn f16_mul(a: u32, b: u32) -> u32 {
    f16_of_f64(f64::from(of_f16(a)) * f64::from(of_f16(b)))
}
fn f16_fma(a: u32, b: u32, c: u32) -> u32 {
    f16_of_f64(fma_f64_odd(of_f16(a).into(), of_f16(b).into(), of_f16(c).into()))
}
fn bf16_mul(a: u32, b: u32) -> u32 {
    bf16_of_f64(f64::from(of_bf16(a)) * f64::from(of_bf16(b)))
}
fn bf16_fma(a: u32, b: u32, c: u32) -> u32 {
    bf16_of_f64(fma_f64_odd(of_bf16(a).into(), of_bf16(b).into(), of_bf16(c).into()))
}

/// `count` bits of `a` in the place of those of `b` from `from` on.
fn insert(a: u64, b: u64, from: u32, count: u32, width: u32) -> u64 {
    let (from, count) = (from & 0xFF, (count & 0xFF).min(64));
    if from >= width || count == 0 {
        return b;
    }
    let mask = (if count >= 64 { u64::MAX } else { (1 << count) - 1 }) << from;
    (b & !mask | a << from & mask) & if width == 32 { 0xFFFF_FFFF } else { u64::MAX }
}

pub(super) fn work64(k: K64, s: &[Lanes64; 3], place: &[Lanes32; 2]) -> Lanes64 {
    use K64::*;
    let two = |work: &dyn Fn(u64, u64) -> u64| -> Lanes64 { std::array::from_fn(|l| work(s[0][l], s[1][l])) };
    let doubles = |work: &dyn Fn(f64, f64) -> f64| -> Lanes64 {
        std::array::from_fn(|l| bits64(work(f64::from_bits(s[0][l]), f64::from_bits(s[1][l]))))
    };
    match k {
        Mov => s[0],
        Add => std::array::from_fn(|l| s[0][l].wrapping_add(s[1][l])),
        Sub => std::array::from_fn(|l| s[0][l].wrapping_sub(s[1][l])),
        MulLo => std::array::from_fn(|l| s[0][l].wrapping_mul(s[1][l])),
        MulHiU => two(&|a, b| ((u128::from(a) * u128::from(b)) >> 64) as u64),
        Mad => std::array::from_fn(|l| s[0][l].wrapping_mul(s[1][l]).wrapping_add(s[2][l])),
        DivU => two(&|a, b| a.checked_div(b).unwrap_or(u64::MAX)),
        DivS => two(&|a, b| if b == 0 { u64::MAX } else { (a as i64).wrapping_div(b as i64) as u64 }),
        RemU => two(&|a, b| a.checked_rem(b).unwrap_or(a)),
        RemS => two(&|a, b| (a as i64).checked_rem(b as i64).unwrap_or(0) as u64),
        MinU => two(&u64::min),
        MaxU => two(&u64::max),
        MinS => two(&|a, b| (a as i64).min(b as i64) as u64),
        MaxS => two(&|a, b| (a as i64).max(b as i64) as u64),
        And => two(&|a, b| a & b),
        Or => two(&|a, b| a | b),
        Xor => two(&|a, b| a ^ b),
        Not => two(&|a, _| !a),
        Neg => two(&|a, _| a.wrapping_neg()),
        Abs => two(&|a, _| (a as i64).wrapping_abs() as u64),
        Bfi => std::array::from_fn(|l| insert(s[0][l], s[1][l], place[0][l], place[1][l], 64)),
        DAdd => doubles(&|a, b| a + b),
        DSub => doubles(&|a, b| a - b),
        DMul => doubles(&|a, b| a * b),
        DDiv => doubles(&|a, b| a / b),
        DNeg => two(&|a, _| a ^ 1 << 63),
        DAbs => two(&|a, _| a & !(1 << 63)),
        DMin => doubles(&f64::min),
        DMax => doubles(&f64::max),
        DFma => std::array::from_fn(|l| {
            bits64(f64::from_bits(s[0][l]).mul_add(f64::from_bits(s[1][l]), f64::from_bits(s[2][l])))
        }),
    }
}

/// The value of a source of this type in as many bits as it has, extended by its sign.
pub(super) fn extended(of: Type, value: u64) -> u64 {
    match of {
        Type::U8 => value & 0xFF,
        Type::S8 => value as i8 as u64,
        Type::U16 => value & 0xFFFF,
        Type::S16 => value as i16 as u64,
        Type::U32 => value & 0xFFFF_FFFF,
        Type::S32 => value as i32 as u64,
        _ => value,
    }
}

fn float_of(of: Type, value: u64) -> f64 {
    match of {
        Type::F16 => of_f16(value as u32 & 0xFFFF).into(),
        Type::Bf16 => of_bf16(value as u32 & 0xFFFF).into(),
        Type::F32 => f(value as u32).into(),
        Type::F64 => f64::from_bits(value),
        _ if of.signed() => extended(of, value) as i64 as f64,
        _ => extended(of, value) as f64,
    }
}

/// Of two sources; `float_of` is exact for floats.
pub(super) fn compare(cmp: Comparison, of: Type, a: u64, b: u64) -> bool {
    use Comparison::*;
    if of.float() {
        let (a, b) = (float_of(of, a), float_of(of, b));
        let unordered = a.is_nan() || b.is_nan();
        return match cmp {
            Eq => a == b,
            Ne => a != b && !unordered,
            Lt => a < b,
            Le => a <= b,
            Gt => a > b,
            Ge => a >= b,
            Equ => unordered || a == b,
            Neu => a != b,
            Ltu => unordered || a < b,
            Leu => unordered || a <= b,
            Gtu => unordered || a > b,
            Geu => unordered || a >= b,
            Num => !unordered,
            Nan => unordered,
        };
    }
    let (a, b) = (extended(of, a), extended(of, b));
    let order = if of.signed() { (a as i64).cmp(&(b as i64)) } else { a.cmp(&b) };
    match cmp {
        Eq | Equ => order.is_eq(),
        Ne | Neu => order.is_ne(),
        Lt | Ltu => order.is_lt(),
        Le | Leu => order.is_le(),
        Gt | Gtu => order.is_gt(),
        Ge | Geu => order.is_ge(),
        Num | Nan => false,
    }
}

/// `None`: a conversion that is not known.
pub(super) fn convert(to: Type, from: Type, rounding: Rounding, saturate: bool, value: u64) -> Option<u64> {
    use Rounding::*;
    if !from.float() && !to.float() {
        let value = extended(from, value);
        if !saturate {
            // Registers that are wider are filled with the sign; who reads fewer bits takes only those.
            return Some(extended(to, value));
        }
        let (low, high): (i128, i128) = match to.signed() {
            true => (-(1 << (8 * to.bytes() - 1)), (1 << (8 * to.bytes() - 1)) - 1),
            false => (0, (1i128 << (8 * to.bytes())) - 1),
        };
        let value = if from.signed() { i128::from(value as i64) } else { i128::from(value) };
        return Some(value.clamp(low, high) as u64);
    }
    if from.float() && !to.float() {
        let value = float_of(from, value);
        let rounded = match rounding {
            IntegerNearest | Nearest => value.round_ties_even(),
            IntegerZero | Zero => value.trunc(),
            IntegerUp | Up => value.ceil(),
            IntegerDown | Down => value.floor(),
        };
        // As the hardware: to the nearest that there is, NaN to 0.
        return Some(match to {
            Type::S32 => rounded as i32 as u64,
            Type::U32 => u64::from(rounded as u32),
            Type::S64 => rounded as i64 as u64,
            Type::U64 => rounded as u64,
            Type::S16 => rounded as i16 as u64,
            Type::U16 => u64::from(rounded as u16),
            Type::U8 => u64::from(rounded as u8),
            Type::S8 => rounded as i8 as u64,
            _ => return None,
        });
    }
    // Integers of 64 bits are rounded once, by their own conversion, which is to the nearest; a double keeps all others whole.
    if !from.float() && from.wide() && (rounding != Nearest || to == Type::Bf16) {
        return None;
    }
    let exact = float_of(from, value);
    let integer = |value: f64| match rounding {
        IntegerNearest => value.round_ties_even(),
        IntegerZero => value.trunc(),
        IntegerUp => value.ceil(),
        IntegerDown => value.floor(),
        _ => value,
    };
    let clamp = |value: f64| {
        if saturate && value.is_nan() {
            0.0
        } else if saturate {
            value.clamp(0.0, 1.0)
        } else {
            value
        }
    };
    match to {
        Type::F32 => {
            if !from.float() {
                let wide = extended(from, value);
                let nearest = if from.signed() { wide as i64 as f32 } else { wide as f32 };
                return directed(nearest, exact, rounding).map(|v| u64::from(bits(clamp(v.into()) as f32)));
            }
            let value = clamp(integer(exact));
            directed(value as f32, value, rounding).map(|v| u64::from(bits(v)))
        }
        Type::F64 => Some(bits64(clamp(integer(exact)))),
        Type::F16 if matches!(rounding, Nearest) => Some(f16_of_f64(clamp(exact)).into()),
        Type::Bf16 if matches!(rounding, Nearest) => Some(bf16_of_f64(clamp(exact)).into()),
        _ => None,
    }
}

/// The float beside the nearest one that the rounding asks for.
fn directed(nearest: f32, exact: f64, rounding: Rounding) -> Option<f32> {
    let value = f64::from(nearest);
    Some(match rounding {
        Rounding::Zero if value.abs() > exact.abs() => f32::from_bits(nearest.to_bits() - 1),
        Rounding::Up if value < exact => nearest.next_up(),
        Rounding::Down if value > exact => nearest.next_down(),
        _ => nearest,
    })
}

/// All lanes to their low bits, by sign.
pub(super) fn shortened(s: &Lanes32, small: u8, signed: bool) -> Lanes32 {
    let of = match (small, signed) {
        (8, false) => Type::U8,
        (8, true) => Type::S8,
        (_, false) => Type::U16,
        (_, true) => Type::S16,
    };
    let mut out = [0; LANES];
    for (to, &value) in out.iter_mut().zip(s) {
        *to = extended(of, u64::from(value)) as u32;
    }
    out
}
