//! The device's E2M1 conversion over all 2^32 FP32 numbers, if `SCALED_GEMM_EXHAUSTIVE=1` asks for it (a minute or two);
//! otherwise over every number within two units of a boundary, and one of every 2^16 numbers.
//!
//! With encode 448 the scale of every block that holds a 6 saturates at 448, and the multiplier is exactly 1: the codes of
//! the block are those of its values. 4over6 then has equal candidates, and takes the second.
#![cfg(feature = "cuda")]

mod common;
#[path = "common/quantize.rs"]
mod quantize;

use std::thread;

use common::*;
use quantize::{GivenNumber, four_over_six, nvfp4, options_of};
use scaled_gemm::codec::encode_e2m1;
use scaled_gemm::{
    BlockShape, DType, GivenScale, Handle, MatRef, Nvfp4Options, QuantMatrix, QuantizeTo, Recipe, Scheme,
};

/// Columns of the matrices: 1024 blocks of one anchor and fifteen values.
const COLS: usize = 16384;
/// Rows at the most: 256 MiB of values.
const ROWS: usize = 4096;
/// Values that a full matrix tests.
const CHUNK: usize = ROWS * COLS / 16 * 15;
const THREADS: usize = 16;

/// One for each way in which kernels convert: plain, tiles, and every error of 4over6.
fn recipes() -> Vec<Recipe> {
    let tiles = Nvfp4Options { shape: BlockShape::Tile16x16, ..Nvfp4Options::default() };
    let four_over_six = four_over_six().into_iter().filter(|r| r.scheme() == Scheme::Nvfp4);
    let of_448 = four_over_six.filter(|r| options_of(*r).bound == Default::default());
    [Recipe::new(Scheme::Nvfp4), nvfp4(Scheme::Nvfp4, tiles)].into_iter().chain(of_448).collect()
}

/// Quantizes matrices of `value(0..count)`, and compares every code with the scalar encoder's.
fn check(handle: &Handle, count: usize, value: impl Fn(usize) -> f32 + Sync) {
    let mut values = vec![0.0f32; ROWS * COLS];
    let mut codes = vec![0u8; ROWS * COLS / 2];
    let mut buffer = handle.stream().alloc_zeros::<f32>(ROWS * COLS).unwrap();
    let mut out = QuantMatrix::zeros(handle, Scheme::Nvfp4, ROWS, COLS).unwrap();
    let encode = GivenNumber::new(handle, GivenScale::Encode(448.0));
    for start in (0..count).step_by(CHUNK) {
        // The anchor's place goes through the block; what is missing in the last matrix is zero.
        let per_thread = ROWS * COLS / THREADS;
        thread::scope(|scope| {
            let parts = values.chunks_mut(per_thread).zip(codes.chunks_mut(per_thread / 2));
            for (t, (values, codes)) in parts.enumerate() {
                let value = &value;
                scope.spawn(move || {
                    for (b, block) in values.chunks_mut(16).enumerate() {
                        let b = t * per_thread / 16 + b;
                        let mut next = start + b * 15;
                        for (i, v) in block.iter_mut().enumerate() {
                            if i == b % 16 {
                                *v = 6.0;
                                continue;
                            }
                            *v = if next < count { value(next) } else { 0.0 };
                            next += 1;
                        }
                    }
                    for (code, pair) in codes.iter_mut().zip(values.chunks(2)) {
                        *code = encode_e2m1(pair[0]) | encode_e2m1(pair[1]) << 4;
                    }
                });
            }
        });
        handle.stream().memcpy_htod(&values, &mut buffer).unwrap();
        for recipe in recipes() {
            let x = MatRef::new(&buffer, DType::F32, ROWS, COLS).unwrap();
            handle.quantize_nvfp4_into(&x, recipe, &encode.borrow(), QuantizeTo::Plain(&mut out)).unwrap();
            let got = handle.read_bytes(&out.codes()).unwrap();
            if got != codes {
                let at = (0..codes.len()).find(|at| got[*at] != codes[*at]).unwrap();
                let pair = [2 * at, 2 * at + 1].map(|i| format!("{:e} ({:#010x})", values[i], values[i].to_bits()));
                panic!("{recipe:?}: {pair:?} give {:#04x}, must be {:#04x}", got[at], codes[at]);
            }
            let scales = handle.read_bytes(&out.block_scales()).unwrap();
            assert!(scales.iter().all(|s| *s == 0x7E), "{recipe:?}: the anchors do not fix the scale");
        }
        if start / CHUNK % 16 == 15 {
            println!("{} of {count} numbers", start + CHUNK);
        }
    }
}

#[test]
fn every_boundary_and_every_bf16_number() {
    let Some(handle) = handle() else { return };
    let mut values: Vec<f32> = (0..=u16::MAX).map(|high| f32::from_bits(u32::from(high) << 16)).collect();
    for edge in [0.25f32, 0.5, 0.75, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0, 3.5, 4.0, 5.0, 6.0, f32::MAX] {
        values.extend(quantize::around(edge));
    }
    values.extend([f32::from_bits(1), -f32::from_bits(1), f32::from_bits(0x7F80_0001), f32::from_bits(0xFFFF_FFFF)]);
    check(&handle, values.len(), |i| values[i]);
}

#[test]
fn exhaustive() {
    let asked = std::env::var("SCALED_GEMM_EXHAUSTIVE").is_ok_and(|v| v == "1");
    if !asked {
        println!("not asked: SCALED_GEMM_EXHAUSTIVE=1 runs all 2^32 numbers; the boundaries run always");
        return;
    }
    let Some(handle) = handle() else { return };
    check(&handle, 1 << 32, |i| f32::from_bits(i as u32));
}
