//! Where operands of groups lie: between guards, and in slots of weights that are repacked.

use std::ops::Range;

use scaled_gemm::{Activation, CodeOrder};

use super::*;
use crate::guarded::{Arena, gathered_bytes, places_of_rows};

const COUNTS: [usize; 4] = [7, 0, 33, 12];
const N: usize = 128;
const GAP: usize = 4;

/// A, B, a bias, where groups lie and D in one allocation, 0xFF between them and in rows of no group, D and the bias at no more than their own size: the bits of operands
/// apart, and only rows of groups are written.
#[test]
fn operands_between_guards() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(310);
    let (starts, rows) = starts_of(&COUNTS);
    let mut tried = std::collections::BTreeSet::new();
    for (i, pair) in PAIRS.into_iter().enumerate() {
        for (j, gated) in [false, true].into_iter().enumerate() {
            // Up to four parts of k, and codes in either order.
            let k = [384, 3584, 7168][(i + j) % 3];
            let (usual, out) = (WIDTHS[(i + 2 * j) % WIDTHS.len()], WIDE[(i + j) % 3]);
            let each = if gated { 2 * N } else { N };
            let x = Array2::from_shape_fn((rows, k), |(row, _)| {
                let inside = starts
                    .iter()
                    .zip(COUNTS)
                    .any(|(from, count)| (*from as usize..*from as usize + count).contains(&row));
                if inside { round_to(pair.0, 0.25 * rng.normal()) } else { f32::NAN }
            });
            let w = quantized(&blocked(&mut rng, COUNTS.len() * each, k), pair.1);
            let bias: Vec<f32> = (0..COUNTS.len() * N).map(|_| round_to(DType::Bf16, rng.normal())).collect();
            let counts: Vec<i64> = COUNTS.iter().map(|count| *count as i64).collect();
            let stride = N + GAP;
            let d_bytes = ((rows - 1) * stride + N) * out.bytes();
            let call = |a: &DeviceBuffer,
                        b: &QuantMatrix,
                        places: &[DeviceBuffer; 2],
                        bias: &DeviceBuffer,
                        d: &mut DeviceBuffer| {
                let a = MatRef::new(a, pair.0, rows, k).unwrap().with_row_stride(k + 8).unwrap();
                let d = MatMut::new(d, out, rows, N).unwrap().with_row_stride(stride).unwrap();
                let where_rows = GroupedRows::Contiguous { starts: places[0].view(), counts: places[1].view() };
                if gated {
                    let args = FusedGemmArgs::swiglu_weight_only(a, b, d).alpha(ALPHA);
                    let args = args.groups(COUNTS.len(), where_rows).expected_rows(usual);
                    let text = args.explain(&handle).unwrap();
                    handle.fused_gemm(args).unwrap();
                    text
                } else {
                    let args = GroupedGemmArgs::weight_only(a, b, COUNTS.len(), where_rows, d).alpha(ALPHA);
                    let bias = VecRef::new(bias, DType::Bf16, COUNTS.len() * N).unwrap();
                    let mut args = args.bias(bias).activation(Activation::Silu).expected_rows(usual);
                    let text = args.explain(&handle).unwrap();
                    handle.grouped_gemm(args).unwrap();
                    text
                }
            };
            let orders = [CodeOrder::Published, CodeOrder::Repacked];
            for order in orders.into_iter().filter(|order| order.check(pair.1, w.rows(), k).is_ok()) {
                let words = format!("{pair:?}, {order}, k = {k}, {usual} rows, {out}, gated {gated}");
                let mut apart = handle.upload(&vec![0xFFu8; d_bytes]).unwrap();
                {
                    let mut b = QuantMatrix::from_host(&handle, &w).unwrap();
                    b.repack(&handle, order).unwrap();
                    let a = handle.upload(&strided(&x, pair.0, 8)).unwrap();
                    let places = [&starts, &counts].map(|numbers| handle.upload(numbers).unwrap());
                    let bias = handle.upload(&bytes_of(DType::Bf16, &bias)).unwrap();
                    let text = call(&a, &b, &places, &bias, &mut apart);
                    let by_warpgroups = usual > few_rows(pair.1);
                    assert_eq!(text.contains("by warpgroup products"), by_warpgroups, "{words}: {text}");
                    tried.insert((is_e2m1(pair.1), gated, by_warpgroups));
                }
                let want = handle.read_bytes(&apart.view()).unwrap();
                let mut arena = Arena::new(&handle, 2 * (rows + COUNTS.len() * each + 256) * (k + 256) + (4 << 20));
                let mut d = arena.place(&handle, &vec![0xFF; d_bytes], out.bytes());
                let at = arena.last().start;
                let a = arena.rows(&handle, x.view(), pair.0, k + 8, 16);
                let mut b = arena.matrix(&handle, &w);
                b.repack(&handle, order).unwrap();
                let places = [&starts, &counts].map(|numbers| arena.numbers(&handle, numbers));
                let bias = arena.place(&handle, &bytes_of(DType::Bf16, &bias), 2);
                let pitch = stride * out.bytes();
                let of_group = |(from, count): (&i64, usize)| {
                    places_of_rows(at + *from as usize * pitch, count, N * out.bytes(), pitch)
                };
                let written: Vec<Range<usize>> = starts.iter().zip(COUNTS).flat_map(of_group).collect();
                let before = arena.ready(&handle);
                call(&a, &b, &places, &bias, &mut d);
                let after = arena.read_behind(&handle, &before, &written, &words);
                assert!(after[at..at + d_bytes] == want, "other bits than of operands apart: {words}");
                let stored = values_of(out, &gathered_bytes(&after, &written));
                assert!(stored.iter().all(|v| v.is_finite()), "{words}");
            }
        }
    }
    assert_eq!(tried.len(), 8, "kernels of either kind, of both kinds of weights, gated and not: {tried:?}");
}

/// Slots of NVFP4 rows whose weights are repacked: the bits of published codes, in one launch and in one product a slot.
#[test]
fn slots_of_quantized_rows_and_repacked_weights() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(311);
    let (groups, n) = (3, 256);
    for (scheme, k) in [(Scheme::Nvfp4, 640), (Scheme::Nvfp4Row, 1152)] {
        let w = quantized(&blocked(&mut rng, groups * n, k), scheme);
        for (slot_rows, usual, counts, way) in [
            (36, 8, [5i64, 0, 36], "one launch of small-m"),
            (128, 128, [128, 1, 77], "one launch of small-m"),
            (256, 256, [256, 0, 100], "one product a slot"),
        ] {
            let rows = groups * slot_rows;
            let x = quantized(&blocked(&mut rng, rows, k), scheme);
            let a = QuantMatrix::from_host(&handle, &x).unwrap();
            let mut b = QuantMatrix::from_host(&handle, &w).unwrap();
            let counts_there = handle.upload(&counts).unwrap();
            for out in [DType::Bf16, DType::F32] {
                let stored = |b: &QuantMatrix| {
                    let mut d = handle.upload(&vec![0xFFu8; rows * n * out.bytes()]).unwrap();
                    let to = MatMut::new(&mut d, out, rows, n).unwrap();
                    let places = GroupedRows::Masked { slot_rows, counts: counts_there.view() };
                    let mut args = GroupedGemmArgs::new(&a, b, groups, places, to).alpha(ALPHA).expected_rows(usual);
                    let text = args.explain(&handle).unwrap();
                    assert!(text.contains(way), "{way:?} is not in {text}");
                    handle.grouped_gemm(args).unwrap();
                    handle.read_bytes(&d.view()).unwrap()
                };
                b.repack(&handle, CodeOrder::Published).unwrap();
                let want = stored(&b);
                b.repack(&handle, CodeOrder::Repacked).unwrap();
                let found = stored(&b);
                let words = format!("{scheme}, slots of {slot_rows}, {out}");
                let wrong = found.chunks(n * out.bytes()).zip(want.chunks(n * out.bytes())).position(|(a, b)| a != b);
                assert_eq!(wrong, None, "the first row with other bits than of published codes: {words}");
                assert!(values_of(out, &want[..n * out.bytes()]).iter().all(|v| v.is_finite()), "{words}");
            }
        }
    }
}
