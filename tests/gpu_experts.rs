//! Rows of experts on the GPU: one cast of the whole padded buffer and one grouped product, captured into one graph whose launches find other
//! tokens and counts, give what each expert gives alone, bit for bit.
#![cfg(feature = "cuda")]

mod common;

use common::*;
use ndarray::s;
use scaled_gemm::{
    DType, Formulation, Fp8Format, GemmArgs, GemmDesc, GroupedGemmArgs, GroupedRows, Handle, KernelFamily, MatMut,
    MatRef, PlanOptions, QuantMatrix, QuantizeTo, Recipe, Scheme,
};

const A: Scheme = Scheme::Fp8Group1x128(Fp8Format::E4M3);
const B: Scheme = Scheme::Fp8Group128x128(Fp8Format::E4M3);
const EXPERTS: usize = 5;
const N: usize = 256;
const K: usize = 400;
/// Room of each expert, a multiple of 128 rows.
const ROOM: [usize; EXPERTS] = [128, 256, 128, 384, 128];

fn starts() -> [usize; EXPERTS] {
    std::array::from_fn(|g| ROOM[..g].iter().sum())
}

/// D of one expert by a plan for its rows alone.
fn alone(handle: &Handle, x: &[u8], w: &[u8], rows: usize) -> Vec<u8> {
    let (x, w) = (upload(handle, x), upload(handle, w));
    let a = handle.quantize(&MatRef::new(&x, DType::Bf16, rows, K).unwrap(), Recipe::new(A)).unwrap();
    let b = handle.quantize(&MatRef::new(&w, DType::Bf16, N, K).unwrap(), Recipe::new(B)).unwrap();
    let options = PlanOptions::default().with_formulation(Formulation::Sm90);
    let mut plan = handle.plan_with(&GemmDesc::new(rows, N, K, A, B, DType::Bf16), &options).unwrap();
    let mut d = poisoned(handle, rows * N * 2);
    plan.execute(handle, GemmArgs::new(&a, &b, MatMut::new(&mut d, DType::Bf16, rows, N).unwrap())).unwrap();
    handle.stream().clone_dtoh(&d).unwrap()
}

#[test]
fn a_padded_buffer_gives_what_each_expert_gives_alone() {
    let Some(handle) = handle() else { return };
    if !KernelFamily::Sm90.runs_on(handle.device().compute_capability) {
        println!("skipped: {} has no grouped product", handle.device());
        return;
    }
    let (rows, starts) = (ROOM.iter().sum::<usize>(), starts());
    let mut rng = Noise::new(41);
    let w = spread(&mut rng, EXPERTS * N, K, DType::Bf16);
    let w_of = |g: usize| bytes_of(DType::Bf16, w.slice(s![g * N..(g + 1) * N, ..]).iter());
    let weights = upload(&handle, &bytes_of(DType::Bf16, w.iter()));
    let weights = MatRef::new(&weights, DType::Bf16, EXPERTS * N, K).unwrap();
    let b = handle.quantize(&weights, Recipe::new(B)).unwrap();

    let mut tokens = handle.alloc(rows * K * 2).unwrap();
    let mut a = QuantMatrix::zeros(&handle, A, rows, K).unwrap();
    let mut d = handle.alloc(rows * N * 2).unwrap();
    let places = handle.upload(&starts.map(|start| start as i64)).unwrap();
    let mut counts = handle.upload(&[0i64; EXPERTS]).unwrap();
    handle.load_kernels(&[KernelFamily::Sm90, KernelFamily::Fp8]).unwrap();
    let graph = capture_owned(&handle, || {
        let x = MatRef::new(&tokens, DType::Bf16, rows, K)?;
        handle.quantize_into(&x, Recipe::new(A), QuantizeTo::Plain(&mut a))?;
        let groups = GroupedRows::Contiguous { starts: places.view(), counts: counts.view() };
        let d = MatMut::new(&mut d, DType::Bf16, rows, N)?;
        handle.grouped_gemm(GroupedGemmArgs::new(&a, &b, EXPERTS, groups, d))
    });
    let graph = graph.unwrap();
    for found in [[100, 256, 0, 133, 1], [0; EXPERTS], ROOM, [1, 2, 128, 300, 77]] {
        let mut x = spread(&mut rng, rows, K, DType::Bf16);
        let mut want = vec![0xFF; rows * N * 2];
        for (g, (start, count)) in starts.into_iter().zip(found).enumerate() {
            // Between groups lies anything.
            x.slice_mut(s![start + count..start + ROOM[g], ..]).fill(f32::NAN);
            if count > 0 {
                let own = bytes_of(DType::Bf16, x.slice(s![start..start + count, ..]).iter());
                let d = alone(&handle, &own, &w_of(g), count);
                want[start * N * 2..(start + count) * N * 2].copy_from_slice(&d);
            }
        }
        handle.write(&mut tokens.view_mut(), &bytes_of(DType::Bf16, x.iter())).unwrap();
        handle.write(&mut counts.view_mut(), &found.map(|count| count as i64)).unwrap();
        handle.write(&mut d.view_mut(), &vec![0xFFu8; rows * N * 2]).unwrap();
        handle.launch(&graph).unwrap();
        let got = handle.read_bytes(&d.view()).unwrap();
        let wrong = (0..rows).find(|row| got[row * N * 2..][..N * 2] != want[row * N * 2..][..N * 2]);
        assert_eq!(wrong, None, "counts {found:?}: the first row that differs");
    }
}
