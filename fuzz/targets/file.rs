//! One safetensors file: opened within four times its header, asked everything, written again.
#![no_main]

use std::cell::OnceCell;
use std::fs;

use libfuzzer_sys::arbitrary::Unstructured;
use libfuzzer_sys::fuzz_target;
use scaled_gemm::checkpoint::Checkpoint;
use scaled_gemm_fuzz::limits::Limits;
use scaled_gemm_fuzz::scratch::Scratch;
use scaled_gemm_fuzz::{ask, make};

/// What opening takes besides the header.
const CONSTANT: usize = 64 << 10;
/// What all the questions may take: data are 64 KiB at the most, and some FP32 copies of them.
const ASKING: usize = 16 << 20;

thread_local! {
    static SCRATCH: OnceCell<Scratch> = const { OnceCell::new() };
}

fuzz_target!(|bytes: &[u8]| {
    let mut u = Unstructured::new(bytes);
    let Ok(made) = make::file(&mut u) else { return };
    SCRATCH.with(|scratch| {
        let scratch = scratch.get_or_init(Scratch::new);
        scratch.clear();
        let path = scratch.case().join("model.safetensors");
        fs::write(&path, &made.bytes).unwrap();
        let limits = Limits::begin();
        let opened = Checkpoint::open(&path);
        limits.check("opening", 4 * made.header + CONSTANT);
        if let Ok(file) = opened {
            scratch.check_read(&file);
            let limits = Limits::begin();
            ask::everything(&file, "");
            limits.check("asking", ASKING + 64 * made.header);
            if file.tensors().len() <= 64 {
                ask::copied(&file, &scratch.out(), 1 << (bytes.len() % 20));
            }
            ask::swapped(file);
        }
        scratch.check_written();
    });
});
