//! A thousand slots, each a product of its own, on one stream and dealt out to eight: the bits of each alone. Rows, columns and matrices repeat with other periods, so that a slot that reads or writes another one's place shows.

use scaled_gemm::{
    DType, Fp8Format, GemmArgs, GemmDesc, GroupedGemmArgs, GroupedRows, MatMut, MatRef, QuantMatrix, Recipe, Scheme,
};

use crate::common::*;

const GROUPS: usize = 1000;
const SLOT: usize = 128;
const OUT: usize = 128;
const K: usize = 128;
const SCHEME: Scheme = Scheme::Fp8Row(Fp8Format::E4M3);
/// So many slots of rows, and so many matrices, are different.
const ROWS: usize = 7;
const MATRICES: usize = 11;

#[test]
fn a_thousand_products_of_slots_are_what_each_is_alone() {
    let Some(handle) = handle() else { return };
    let desc = GemmDesc::new(SLOT, OUT, K, SCHEME, SCHEME, DType::Bf16);
    if handle.supports(&desc).is_ok_and(|ways| ways.is_empty()) {
        println!("skipped: {SCHEME} x {SCHEME} on {}", handle.device());
        return;
    }
    let mut rng = Noise::new(97);
    // Bytes of BF16 numbers, of one matrix behind another.
    let parts = |rng: &mut Noise, count: usize, rows: usize| -> Vec<Vec<u8>> {
        (0..count).map(|_| bytes_of(DType::Bf16, rng.matrix(rows, K, DType::Bf16).iter())).collect()
    };
    let (x, w) = (parts(&mut rng, ROWS, SLOT), parts(&mut rng, MATRICES, OUT));
    let quantized = |bytes: &[u8]| -> QuantMatrix {
        let on = upload(&handle, bytes);
        let rows = bytes.len() / (2 * K);
        handle.quantize(&MatRef::new(&on, DType::Bf16, rows, K).unwrap(), Recipe::new(SCHEME)).unwrap()
    };
    let all =
        |parts: &[Vec<u8>]| quantized(&(0..GROUPS).flat_map(|g| &parts[g % parts.len()]).copied().collect::<Vec<_>>());
    let (a, b) = (all(&x), all(&w));
    let alone = |x: &[u8], w: &[u8]| {
        let (a, b) = (quantized(x), quantized(w));
        let mut d = poisoned(&handle, SLOT * OUT * 2);
        handle.scaled_gemm(GemmArgs::new(&a, &b, MatMut::new(&mut d, DType::Bf16, SLOT, OUT).unwrap())).unwrap();
        handle.stream().clone_dtoh(&d).unwrap()
    };
    let want: Vec<Vec<u8>> = (0..ROWS * MATRICES).map(|g| alone(&x[g % ROWS], &w[g % MATRICES])).collect();
    // Which nobody reads.
    let counts = handle.upload(&[0i64; GROUPS]).unwrap();
    for streams in [None, Some(1), Some(8)] {
        let mut d = handle.upload(&vec![0xFFu8; GROUPS * SLOT * OUT * 2]).unwrap();
        let rows = GroupedRows::Masked { slot_rows: SLOT, counts: counts.view() };
        let to = MatMut::new(&mut d, DType::Bf16, GROUPS * SLOT, OUT).unwrap();
        let mut args = GroupedGemmArgs::new(&a, &b, GROUPS, rows, to).product_a_slot();
        args = if let Some(streams) = streams { args.streams(streams) } else { args };
        let text = args.explain(&handle).unwrap();
        assert!(text.contains("one product a slot, 1000 of them"), "{text}");
        handle.grouped_gemm(args).unwrap();
        let found = handle.read_bytes(&d.view()).unwrap();
        let wrong = found.chunks(SLOT * OUT * 2).zip(0..).find(|(slot, g)| *slot != want[g % want.len()]);
        assert_eq!(wrong.map(|(_, g)| g), None, "streams {streams:?}: the first slot that differs");
    }
}
