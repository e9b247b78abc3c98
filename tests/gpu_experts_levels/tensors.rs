//! Grouped tensors, whose members have a scale each, in products of slots.

use scaled_gemm::{
    DType, Fp8Format, GemmArgs, GemmDesc, GroupedDeviceLayout, GroupedGemmArgs, GroupedLayout, GroupedRecipe,
    GroupedRows, GroupedScheme, GroupedSource, GroupedTensor, KernelFamily, MatMut, QuantMatrix, Scheme,
};

use crate::common::*;

const GROUPS: usize = 3;
const SLOT: usize = 256;
const OUT: usize = 128;
const K: usize = 400;

/// Tokens and matrices that were quantized on the device: each slot has the bits of its members alone, and a graph of casts and products those of what it finds.
#[test]
fn members_of_grouped_tensors_have_their_scales_in_slots() {
    let Some(handle) = handle() else { return };
    let scheme = Scheme::Fp8Tensor(Fp8Format::E4M3);
    let desc = GemmDesc::new(SLOT, OUT, K, scheme, scheme, DType::F32);
    if handle.supports(&desc).map_or(true, |ways| ways.is_empty()) {
        println!("skipped: {scheme} on {}", handle.device());
        return;
    }
    let recipe = GroupedRecipe::new(GroupedScheme::new(Fp8Format::E4M3));
    let mut rng = Noise::new(621);
    let mut values = |rows: usize| {
        let of_group = |g: usize| rng.matrix(rows, K, DType::Bf16).mapv(|v| v * [0.25, 2.0, 64.0][g]);
        let all: Vec<f32> = (0..GROUPS).flat_map(of_group).collect();
        bytes_of(DType::Bf16, &all)
    };
    let tensor = |rows: usize| {
        let layout = GroupedLayout::packed(&[[rows, K]; GROUPS]).unwrap();
        let layout = GroupedDeviceLayout::from_host(&handle, &layout).unwrap();
        GroupedTensor::zeros(&handle, GroupedScheme::new(Fp8Format::E4M3), layout).unwrap()
    };
    let (mut a, mut b) = (tensor(SLOT), tensor(OUT));
    let (mut tokens, mut weights) = (handle.upload(&values(SLOT)).unwrap(), handle.upload(&values(OUT)).unwrap());
    let counts = handle.upload(&[SLOT as i64; GROUPS]).unwrap();
    let mut d = handle.alloc(GROUPS * SLOT * OUT * 4).unwrap();
    handle.load_kernels(&[KernelFamily::Grouped]).unwrap();
    let mut step = || {
        handle.quantize_grouped_into(&GroupedSource::new(&tokens, DType::Bf16)?, recipe, &mut a, None)?;
        handle.quantize_grouped_into(&GroupedSource::new(&weights, DType::Bf16)?, recipe, &mut b, None)?;
        let (x, w) = (a.padded_rows()?, b.stacked()?);
        let rows = GroupedRows::Masked { slot_rows: SLOT, counts: counts.view() };
        let d = MatMut::new(&mut d, DType::F32, GROUPS * SLOT, OUT)?;
        handle.grouped_gemm(GroupedGemmArgs::new(&x, &w, GROUPS, rows, d).product_a_slot())
    };
    // Plans, streams and scratch memory.
    step().unwrap();
    let graph = capture_owned(&handle, &mut step).unwrap();
    for turn in 0..2 {
        handle.write(&mut tokens.view_mut(), &values(SLOT)).unwrap();
        handle.write(&mut weights.view_mut(), &values(OUT)).unwrap();
        handle.launch(&graph).unwrap();
        let found = handle.read_bytes(&d.view()).unwrap();
        let (x, w) = (a.to_host(&handle).unwrap(), b.to_host(&handle).unwrap());
        for all in [&x, &w] {
            assert!(all.scales().windows(2).all(|two| two[0] != two[1]), "{:?}", all.scales());
        }
        for g in 0..GROUPS {
            let [a, b] = [&x, &w].map(|all| QuantMatrix::from_host(&handle, &all.matrix(g).unwrap()).unwrap());
            let mut d = handle.alloc(SLOT * OUT * 4).unwrap();
            handle.scaled_gemm(GemmArgs::new(&a, &b, MatMut::new(&mut d, DType::F32, SLOT, OUT).unwrap())).unwrap();
            let want = handle.read_bytes(&d.view()).unwrap();
            assert!(found[g * SLOT * OUT * 4..][..SLOT * OUT * 4] == want, "group {g}, turn {turn}");
        }
    }
}
