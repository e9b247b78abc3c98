//! Transposes of all matrices of groups, made on the device: the bytes of the turned numbers cast at once, and nothing but parts of a matrix.

use ndarray::{Array2, s};
use scaled_gemm::{DType, Fp8Format, MatRef, QuantMatrix, Recipe, Scheme};

use crate::common::gemm::refused;
use crate::common::*;

const F: Fp8Format = Fp8Format::E4M3;

#[test]
fn transposes_of_all_matrices_are_those_of_each() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(48);
    for (i, scheme) in
        [Scheme::Fp8Row(F), Scheme::Fp8Group128x128(F), Scheme::Mxfp8(F), Scheme::Mxfp4, Scheme::Nvfp4Row]
            .into_iter()
            .enumerate()
    {
        for (j, (groups, n, k)) in
            [(3, 256, 384), (5, 144, 128), (1, 272, 48), (70, 16, 128), (0, 16, 128)].into_iter().enumerate()
        {
            let dtype = [DType::Bf16, DType::F16, DType::F32][(i + j) % 3];
            let w = rng.matrix(groups * n, k, dtype);
            let mut turned = Array2::zeros((groups * k, n));
            for g in 0..groups {
                turned.slice_mut(s![g * k..(g + 1) * k, ..]).assign(&w.slice(s![g * n..(g + 1) * n, ..]).t());
            }
            let cast = |x: &Array2<f32>| {
                let on = handle.upload(&bytes_of(dtype, x.iter())).unwrap();
                handle.quantize(&MatRef::new(&on, dtype, x.nrows(), x.ncols()).unwrap(), Recipe::new(scheme)).unwrap()
            };
            let want = cast(&turned).to_host(&handle).unwrap();
            let mut got = poisoned_matrix(&handle, scheme, groups * k, n);
            let on = handle.upload(&bytes_of(dtype, w.iter())).unwrap();
            let from = MatRef::new(&on, dtype, groups * n, k).unwrap();
            handle.quantize_stacked_transposed_into(&from, groups, Recipe::new(scheme), &mut got).unwrap();
            assert_device_bits(&handle, &got, &want, &format!("{scheme}, {groups} of {n} x {k}, {dtype}"));
        }
    }
    let on = handle.upload(&vec![0u8; 2 * 256 * 128 * 2]).unwrap();
    let w = MatRef::new(&on, DType::Bf16, 2 * 256, 128).unwrap();
    for (scheme, words) in [
        (Scheme::Fp8Tensor(F), ["one scale for all matrices", "GroupedTensor"]),
        (Scheme::Fp8Group1x128(F), ["lie by columns", "take fp8-128x128"]),
        (Scheme::Nvfp4, ["one scale for all matrices", "nvfp4-row"]),
    ] {
        let mut to = QuantMatrix::zeros(&handle, scheme, 2 * 128, 256).unwrap();
        refused(handle.quantize_stacked_transposed_into(&w, 2, Recipe::new(scheme), &mut to), &words);
    }
    let mut to = QuantMatrix::zeros(&handle, Scheme::Fp8Row(F), 128, 256).unwrap();
    let words = ["128 x 256 of 2 matrices in 512 x 128", "must be groups * k x n"];
    refused(handle.quantize_stacked_transposed_into(&w, 2, Recipe::new(Scheme::Fp8Row(F)), &mut to), &words);
}
