//! What the suites of casts share: targets that no cast has written, and the comparison with the reference, padding included.
//!
//! Not a module of `common`: the other suites compile without it.
#![allow(dead_code)]

use scaled_gemm::{CastMatrix, CastScheme, DType, Handle, HostCastMatrix};

pub const INPUTS: [DType; 3] = [DType::Bf16, DType::F16, DType::F32];

/// A target that no cast has written: codes and scales are wrong, padding is zero.
pub fn poisoned_cast(handle: &Handle, scheme: CastScheme, rows: usize, cols: usize) -> CastMatrix {
    let [r, c] = scheme.group().grid(rows, cols);
    let codes = vec![0xA5; scheme.code_bytes(rows, cols)];
    let host = HostCastMatrix::from_logical(scheme, rows, cols, codes, vec![1024.0; r * c]).unwrap();
    CastMatrix::from_host(handle, &host).unwrap()
}

/// Panics with the first difference, if a byte of codes or scales, padding included, is not that of the host matrix.
pub fn assert_cast(handle: &Handle, got: &CastMatrix, want: &HostCastMatrix, context: &str) {
    let (codes, scales) = (handle.read_bytes(&got.codes()).unwrap(), handle.read_bytes(&got.scales()).unwrap());
    let first = |a: &[u8], b: &[u8]| (0..b.len()).find(|i| a[*i] != b[*i]);
    let right = want.device_scales();
    assert_eq!((codes.len(), scales.len()), (want.codes().len(), right.len()), "{context}");
    if let Some(at) = first(&codes, want.codes()) {
        panic!("{context}: code byte {at} is {:#04x}, must be {:#04x}", codes[at], want.codes()[at]);
    }
    if let Some(at) = first(&scales, &right) {
        panic!("{context}: scale byte {at} is {:#04x}, must be {:#04x}", scales[at], right[at]);
    }
}
