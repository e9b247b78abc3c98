//! MXFP4 by hand: the scale byte of every rule, codes, every value there is, and what products make of the ends of the range.

use ndarray::Array2;
use scaled_gemm::codec::round_to;
use scaled_gemm::pair::multiplied_in;
use scaled_gemm::reference::{
    Accumulator, Gelu, GemmInputs, HostOperand, Noise, definition, dequantize, gemm_bound, quantize, scaled_gemm,
};
use scaled_gemm::{CodeFormat, DType, HostQuantMatrix, MxScaleRule, Mxfp4Recipe, Mxfp8Recipe, Operand, Recipe, Scheme};

const VALUES: [f32; 8] = [0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0];

fn codes(q: &HostQuantMatrix, row: usize) -> Vec<u8> {
    q.row_codes(row).iter().flat_map(|byte| [byte & 15, byte >> 4]).collect()
}

fn of(x: &[f32], rule: MxScaleRule) -> HostQuantMatrix {
    let x = Array2::from_shape_vec((1, x.len()), x.to_vec()).unwrap();
    quantize(x.view(), DType::F32, Mxfp4Recipe { rule }).unwrap()
}

/// Rows of these codes under these scale bytes, one byte a row.
fn rows_of(bytes: &[u8], cols: usize, code: impl Fn(usize) -> u8) -> HostQuantMatrix {
    let codes = (0..bytes.len() * cols / 2).map(|at| code(2 * at) | code(2 * at + 1) << 4).collect();
    let scales: Vec<u8> = bytes.iter().flat_map(|byte| vec![*byte; cols.div_ceil(32)]).collect();
    HostQuantMatrix::from_block_logical(Scheme::Mxfp4, bytes.len(), cols, codes, &[], &scales).unwrap()
}

/// In the order of `MxScaleRule::ALL`: up, floor, ceil, even, rceil.
#[test]
fn the_scale_byte_of_every_rule() {
    assert_eq!(MxScaleRule::ALL.map(MxScaleRule::name), ["up", "floor", "ceil", "even", "rceil"]);
    let cases = [
        // 4 = 2^2 is what floor maps a power of two to; 4 / 6 is rounded up to 1.
        (4.0, [127, 127, 127, 127, 127]),
        (1.0, [125, 125, 125, 125, 125]),
        // 6 is the largest code at scale 1. It is no power of two, so ceil takes 2; 1.5 has the one mantissa bit of a code.
        (6.0, [127, 127, 128, 127, 127]),
        (3.0, [126, 126, 127, 126, 126]),
        (f32::from_bits(6f32.to_bits() + 1), [128, 127, 128, 127, 128]),
        // 7 = 1.75 * 4 is half-way to 8 in one mantissa bit, and counts as 8; what is below does not.
        (f32::from_bits(7f32.to_bits() - 1), [128, 127, 128, 127, 128]),
        (7.0, [128, 127, 128, 128, 128]),
        (8.0, [128, 128, 128, 128, 128]),
        // Nothing, and subnormal numbers: byte 0.
        (0.0, [0; 5]),
        (f32::from_bits(1), [0; 5]),
        (f32::from_bits(0x007F_FFFF), [0; 5]),
        // 2^-125 is 4 * 2^-127. A sixth of 3 * 2^-126 is 2^-127, and so is that of the next number, rounded to 2^-149.
        (2f32.powi(-125), [0; 5]),
        (f32::from_bits(0x0140_0000), [0, 0, 1, 0, 0]),
        (f32::from_bits(0x0140_0001), [0, 0, 1, 0, 0]),
        (f32::from_bits(0x0140_0002), [1, 0, 1, 0, 1]),
        (2f32.powi(-124), [1; 5]),
        // A little less than 2^128: floor 2^(127 - 2); the others count it as 2^128.
        (f32::MAX, [253, 252, 253, 253, 253]),
        (f32::INFINITY, [254, 255, 255, 255, 255]),
        (f32::NAN, [255; 5]),
    ];
    for (amax, want) in cases {
        assert_eq!(MxScaleRule::ALL.map(|rule| rule.byte(amax, CodeFormat::E2M1)), want, "{amax:e}");
    }
}

#[test]
fn codes_of_a_block() {
    let mut x = [0.0f32; 32];
    x[..9].copy_from_slice(&[7.0, -6.0, 5.0, 4.0, 3.0, 2.5, 1.75, 0.25, -0.2]);
    // Scale 1: 7 saturates; 5, 2.5, 1.75 and 0.25 are ties and go to 4, 2, 2 and 0, whose mantissa bit is 0.
    let at_one = [7, 15, 6, 6, 5, 4, 4, 0, 8];
    // Scale 2: 3.5, 2.5, 1.25 are ties of half the numbers.
    let at_two = [6, 13, 4, 4, 3, 2, 2, 0, 8];
    for rule in MxScaleRule::ALL {
        let q = of(&x, rule);
        let (byte, want) = if rule == MxScaleRule::Floor { (127, at_one) } else { (128, at_two) };
        assert_eq!((q.block_scale_at(0, 0), &codes(&q, 0)[..9]), (byte, &want[..]), "{rule}");
        // The even column's code is in the low half.
        assert_eq!(q.row_codes(0)[0], want[0] | want[1] << 4, "{rule}");
        let values: Vec<f32> =
            want.iter().map(|c| VALUES[usize::from(c & 7)] * if *c < 8 { 1.0 } else { -1.0 }).collect();
        let scale = f32::from(byte - 126);
        let got = dequantize(&q, DType::F32);
        assert!(values.iter().zip(&got).all(|(v, got)| (v * scale).to_bits() == got.to_bits()), "{rule}: {got}");
    }
}

/// What no byte can tell: the other elements of the block are as if NaN were 0, and NaN is code 7. Infinity is the largest code
/// where the rule has a scale for it, and all codes are 7 where it has none.
#[test]
fn nan_infinity_and_the_last_short_block() {
    let mut x = [1.0f32; 48];
    (x[3], x[5]) = (f32::NAN, -f32::NAN);
    x[40] = f32::NEG_INFINITY;
    for rule in MxScaleRule::ALL {
        let q = of(&x, rule);
        assert_eq!(q.logical_block_scales(), [125, if rule == MxScaleRule::Up { 254 } else { 255 }], "{rule}");
        let codes = codes(&q, 0);
        let first: Vec<u8> = (0..32).map(|j| if j == 3 || j == 5 { 7 } else { 6 }).collect();
        assert_eq!(codes[..32], first, "{rule}");
        let last: Vec<u8> = match rule {
            MxScaleRule::Up => (0..16).map(|j| if j == 8 { 15 } else { 0 }).collect(),
            _ => vec![7; 16],
        };
        assert_eq!(codes[32..], last, "{rule}");
        let values = dequantize(&q, DType::F32);
        assert_eq!([values[[0, 3]], values[[0, 5]], values[[0, 0]]], [1.5, 1.5, 1.0], "{rule}");
        match rule {
            MxScaleRule::Up => assert_eq!([values[[0, 40]], values[[0, 41]]], [f32::NEG_INFINITY, 0.0]),
            _ => assert!(values.iter().skip(32).all(|v| v.is_nan()), "{rule}"),
        }
    }
}

/// All codes under all bytes are the numbers that they stand for: in FP32, in BF16 just as well, in F16 for bytes 104 to 140.
#[test]
fn every_code_and_scale_dequantizes_exactly() {
    let bytes: Vec<u8> = (0..=255).collect();
    let q = rows_of(&bytes, 16, |at| (at % 16) as u8);
    let [f32s, bf16s, f16s] = [DType::F32, DType::Bf16, DType::F16].map(|dtype| dequantize(&q, dtype));
    let mut exact_in_f16 = Vec::new();
    for byte in 0..=254usize {
        let mut all = true;
        for code in 0..16 {
            let sign = if code < 8 { 1.0 } else { -1.0 };
            let exact = sign * f64::from(VALUES[code % 8]) * 2f64.powi(byte as i32 - 127);
            let got = [&f32s, &bf16s, &f16s].map(|values| f64::from(values[[byte, code]]));
            assert_eq!(
                got[0].to_bits(),
                if exact.abs() < 2f64.powi(128) { exact } else { sign * f64::INFINITY }.to_bits()
            );
            assert_eq!(got[1].to_bits(), got[0].to_bits(), "BF16 has FP32's range: byte {byte}, code {code}");
            assert_eq!(got[0].is_infinite(), (byte == 253 && code % 8 >= 6) || (byte == 254 && code % 8 >= 4));
            all &= got[2].to_bits() == exact.to_bits();
        }
        if all {
            exact_in_f16.push(byte);
        }
    }
    assert_eq!(exact_in_f16, (104..=140).collect::<Vec<_>>());
    assert!([f32s, bf16s, f16s].iter().all(|values| values.row(255).iter().all(|v| v.is_nan())));
}

/// A matrix that was MXFP4 is the same MXFP4 again, whatever the block's size: by all rules but ceil, which wants the largest code to
/// be 4 and so loses a bit of what has a 6.
#[test]
fn values_come_back_as_the_same_bytes() {
    let bytes: Vec<u8> = (0..=252).collect();
    let q = rows_of(&bytes, 64, |at| (at % 16) as u8);
    let fours = rows_of(&bytes, 64, |at| (at % 7) as u8 | (at % 2 * 8) as u8);
    let again = |q, rule| quantize(dequantize(q, DType::F32).view(), DType::F32, Mxfp4Recipe { rule }).unwrap();
    for rule in MxScaleRule::ALL {
        assert_eq!(again(&q, rule) == q, rule != MxScaleRule::Ceil, "{rule}");
        assert!(again(&fours, rule) == fours, "{rule}");
    }
}

#[test]
fn lengths_are_those_of_half_bytes_and_blocks_of_32() {
    // A projection of gpt-oss-20b: 2880 columns are 90 blocks.
    let scheme = Scheme::Mxfp4;
    assert_eq!(scheme.code_bytes(5760, 2880), 5760 * 1440);
    assert_eq!((scheme.block_grid(5760, 2880), scheme.scale_len(5760, 2880)), ([5760, 90], 0));
    assert_eq!(scheme.block_scale_len(5760, 2880), 5760 * 92);
    assert_eq!((scheme.to_string(), "mxfp4".parse()), ("mxfp4".into(), Ok(scheme)));
    assert_eq!(
        (Recipe::new(scheme), Recipe::new(scheme).to_string()),
        (Mxfp4Recipe::default().into(), "scales rounded up".into())
    );
}

/// The reference within both bounds, and near the definition wherever that is finite.
#[track_caller]
fn check(a: HostOperand<'_>, b: &HostQuantMatrix) -> Array2<f32> {
    let inputs = GemmInputs::new(a, b, DType::F32);
    let d = scaled_gemm(&inputs).unwrap();
    let defined = definition::scaled_gemm(&inputs).unwrap();
    for accumulator in [Accumulator::Fp32, Accumulator::TensorCoreWide] {
        let bound = gemm_bound(&inputs, accumulator, Gelu::Ieee).unwrap();
        bound.check(d.view()).unwrap();
        for ((at, exact), defined) in bound.exact.indexed_iter().zip(&defined) {
            let same = exact == defined || (exact.is_nan() && defined.is_nan());
            assert!(same || (exact - defined).abs() <= 1e-4 * bound.tolerance[at], "{at:?}: {exact} {defined}");
        }
    }
    d
}

/// With a plain F16 A, B is what F16 makes of it: exact to byte 140, infinite where codes are too large from 141 on, rounded to
/// multiples of 2^-24 below 104. With BF16 every byte is exact.
#[test]
fn f16_activations_take_weights_as_f16() {
    let bytes = [90, 100, 102, 103, 104, 120, 140, 141];
    let b = rows_of(&bytes, 64, |at| (at * 5 % 16) as u8);
    let ones = Array2::from_shape_fn((3, 64), |(i, j)| if j == 9 * i { 1.0f32 } else { 0.0 });
    let noise = Noise::new(3).matrix(5, 64, DType::F16);
    assert_eq!(multiplied_in(Operand::Plain(DType::F16), Scheme::Mxfp4), Some(DType::F16));
    for (a, b) in [
        (Operand::Plain(DType::Bf16), Scheme::Mxfp4),
        (Operand::Plain(DType::F16), Scheme::Nvfp4),
        (Scheme::Mxfp4.into(), Scheme::Mxfp4),
    ] {
        assert_eq!(multiplied_in(a, b), None, "{a} x {b}");
    }
    let finite = rows_of(&bytes.map(|b| b.min(140)), 64, |at| (at * 5 % 16) as u8);
    let values = dequantize(&finite, DType::F32);
    let d = check(HostOperand::Plain(ones.view(), DType::F16), &finite);
    let exact = check(HostOperand::Plain(ones.view(), DType::Bf16), &finite);
    let mut rounded = 0;
    for ((i, n), got) in d.indexed_iter() {
        let value = values[[n, 9 * i]];
        assert_eq!((*got, exact[[i, n]]), (round_to(DType::F16, value), value));
        rounded += u32::from(*got != value);
    }
    assert!(rounded > 3, "nothing was rounded");
    check(HostOperand::Plain(noise.view(), DType::F16), &finite);
    // The largest codes of byte 141 are infinite; times 0 they are NaN, as on a GPU.
    let d = check(HostOperand::Plain(noise.view(), DType::F16), &b);
    let exact = check(HostOperand::Plain(noise.view(), DType::Bf16), &b);
    assert!(d.column(7).iter().all(|v| !v.is_finite()) && d.column(6).iter().all(|v| v.is_finite()), "{d}");
    assert!(exact.iter().all(|v| v.is_finite()), "{exact}");
}

/// Bytes 0 and 1 have values below 2^-126, which a tensor core may take for zero: the wide bound knows.
#[test]
fn the_smallest_scales_are_within_the_bound() {
    let a = rows_of(&[0, 1, 2, 3], 64, |at| (at * 3 % 16) as u8);
    let b = rows_of(&[252; 8], 64, |at| (at * 7 % 16) as u8);
    let d = check((&a).into(), &b);
    assert!(d.row(0).iter().any(|v| *v != 0.0), "{d}");
    let flushed = {
        let values =
            |q| dequantize(q, DType::F32).mapv(|v| f64::from(if v.abs() < f32::MIN_POSITIVE { 0.0 } else { v }));
        values(&a).dot(&values(&b).t()).mapv(|v| v as f32)
    };
    assert_ne!(flushed, d);
    let inputs = GemmInputs::new(&a, &b, DType::F32);
    gemm_bound(&inputs, Accumulator::TensorCoreWide, Gelu::Ieee).unwrap().check(flushed.view()).unwrap();
    assert!(gemm_bound(&inputs, Accumulator::Fp32, Gelu::Ieee).unwrap().check(flushed.view()).is_err());
}

/// Activations in MXFP8 and weights in MXFP4 (W4A8), checked with a scale of either moved by a step.
#[test]
fn mxfp8_activations_multiply_mxfp4_weights() {
    let x = Noise::new(11).matrix(9, 144, DType::F32);
    let w = Noise::new(12).matrix(16, 144, DType::F32);
    let b = quantize(w.view(), DType::F32, Recipe::new(Scheme::Mxfp4)).unwrap();
    for format in [CodeFormat::E4M3, CodeFormat::E5M2].map(|f| f.fp8().unwrap()) {
        let a = quantize(x.view(), DType::F32, Mxfp8Recipe { format, rule: MxScaleRule::Up }).unwrap();
        let d = check((&a).into(), &b);
        let mut bytes = b.logical_block_scales();
        bytes[5 * 5 + 4] += 1;
        let codes = b.logical_codes().to_vec();
        let wrong = HostQuantMatrix::from_block_logical(Scheme::Mxfp4, 16, 144, codes, &[], &bytes).unwrap();
        let bound = gemm_bound(&GemmInputs::new(&a, &wrong, DType::F32), Accumulator::TensorCoreWide, Gelu::Ieee);
        assert!(bound.unwrap().check(d.view()).unwrap_err().contains(", 5]"), "{format}");
    }
}
