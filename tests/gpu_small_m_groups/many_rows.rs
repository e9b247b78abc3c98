//! One group of more than 2^24 rows: panels of A, arranged, lie further apart than 32 bits have bytes for.

use super::*;

const ROWS: usize = (1 << 24) + 8;
/// Rows at both ends that are no zeros.
const ENDS: usize = 64;

#[test]
fn panels_beyond_2_to_the_32_bytes() {
    let Some(handle) = hopper() else { return };
    if !has_free(&handle, 12) {
        return;
    }
    let mut rng = Noise::new(315);
    let (n, k, pair) = (128, 32, (DType::Bf16, Scheme::Nvfp4));
    let of = Experts::new(&handle, &mut rng, 2 * ENDS, [1, n, k], pair);
    let mut a = handle.stream().alloc_zeros::<u8>(ROWS * k * 2).unwrap();
    let mut d = handle.stream().alloc_zeros::<u8>(ROWS * n * 2).unwrap();
    // As nobody wrote it, where rows are looked at.
    let poison = vec![0xFFu8; ENDS * n * 2];
    let between = || (ENDS..ROWS - ENDS).step_by(1 << 22);
    for from in between().chain([0, ROWS - ENDS]) {
        let mut to = d.slice_mut(from * n * 2..(from + ENDS) * n * 2);
        handle.stream().memcpy_htod(&poison, &mut to).unwrap();
    }
    // Where they lie, and which rows of X they are.
    let ends = [(0..ENDS, 0..ENDS), (ROWS - ENDS..ROWS, ENDS..2 * ENDS)];
    for (at, rows) in ends.clone() {
        let x = of.x.slice(ndarray::s![rows, ..]).to_owned();
        let mut to = a.slice_mut(at.start * k * 2..at.end * k * 2);
        handle.stream().memcpy_htod(&strided(&x, pair.0, 0), &mut to).unwrap();
    }
    let (starts, counts) = (handle.upload(&[0i64]).unwrap(), handle.upload(&[ROWS as i64]).unwrap());
    let x = MatRef::new(&a, pair.0, ROWS, k).unwrap();
    let places = GroupedRows::Contiguous { starts: starts.view(), counts: counts.view() };
    let to = MatMut::new(&mut d, DType::Bf16, ROWS, n).unwrap();
    let mut args = GroupedGemmArgs::weight_only(x, &of.b, 1, places, to).alpha(ALPHA);
    let text = args.explain(&handle).unwrap();
    assert!(text.contains("by warpgroup products"), "{text}");
    handle.grouped_gemm(args).unwrap();
    for (at, rows) in ends {
        let got = handle.stream().clone_dtoh(&d.slice(at.start * n * 2..at.end * n * 2)).unwrap();
        let want = of.alone(&handle, 0, rows, DType::Bf16, &End::default());
        let wrong = got.chunks(n * 2).zip(want.chunks(n * 2)).position(|(a, b)| a != b);
        assert_eq!(wrong, None, "the first wrong row from {} on", at.start);
    }
    // Between them are zeros.
    for from in between() {
        let got = handle.stream().clone_dtoh(&d.slice(from * n * 2..(from + ENDS) * n * 2)).unwrap();
        assert!(got.iter().all(|byte| byte & 0x7F == 0), "a row from {from} on");
    }
}
