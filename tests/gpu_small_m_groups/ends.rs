//! Biases of groups and activations behind products with weights that are decoded, of plain rows and of rows with block scales, by starts and in slots: the bits of each group alone.

use scaled_gemm::{Activation, Epilogue};

use super::*;

const GROUPS: usize = 6;
const N: usize = 256;

/// Numbers that every type holds.
fn biases(rng: &mut Noise) -> Vec<f32> {
    (0..GROUPS * N).map(|_| round_to(DType::F16, round_to(DType::Bf16, rng.normal()))).collect()
}

/// A group of rows with block scales, alone in 64 rows at a time.
fn alone(
    handle: &Handle,
    [x, w]: [&HostQuantMatrix; 2],
    g: usize,
    rows: std::ops::Range<usize>,
    out: DType,
    end: Option<(&[f32], DType, Activation)>,
) -> Vec<u8> {
    let (k, b) = (x.cols(), QuantMatrix::from_host(handle, &rows_of(w, g * N, N)).unwrap());
    let bias = end.map(|(bias, dtype, _)| handle.upload(&bytes_of(dtype, &bias[g * N..(g + 1) * N])).unwrap());
    let activation = end.map_or(Activation::None, |(_, _, activation)| activation);
    let epilogue = Epilogue { bias: end.map(|(_, dtype, _)| dtype), activation, residual: None };
    let mut all = Vec::new();
    for start in rows.clone().step_by(64) {
        let m = (rows.end - start).min(64);
        let a = QuantMatrix::from_host(handle, &rows_of(x, start, m)).unwrap();
        let mut d = poisoned(handle, m * N * out.bytes());
        let mut args = GemmArgs::new(&a, &b, MatMut::new(&mut d, out, m, N).unwrap());
        args = args.alpha(ALPHA).activation(activation);
        if let (Some(bias), Some((_, dtype, _))) = (&bias, end) {
            args = args.bias(VecRef::new(bias, dtype, N).unwrap());
        }
        let desc = GemmDesc::new(m, N, k, x.scheme(), w.scheme(), out).with_epilogue(epilogue);
        planned(handle, &desc, tiles(w.scheme(), k)).execute(handle, args).unwrap();
        all.extend(handle.stream().clone_dtoh(&d).unwrap());
    }
    all
}

/// Every pair with block scales on both sides, in slots and by starts, with biases of each type and without: one launch behind the one that dequantizes, whose counts change from launch to
/// launch of a graph and make no sense in one of them.
#[test]
fn quantized_rows_have_biases_of_their_groups() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(312);
    let has_blocks = |s: &Scheme| matches!(s, Scheme::Nvfp4 | Scheme::Nvfp4Row | Scheme::Mxfp4 | Scheme::Mxfp8(_));
    let all: Vec<_> = Scheme::ALL.into_iter().filter(has_blocks).collect();
    handle.load_kernels(&[KernelFamily::Grouped]).unwrap();
    let mut tried = 0;
    for (i, (a, b)) in all.iter().flat_map(|a| all.iter().map(|b| (*a, *b))).enumerate() {
        let (out, k, slot_rows) = (WIDE[i % 3], [416, 1824, 3616][i % 3], [128, 36, 64][i % 3]);
        let served = handle.supports(&GemmDesc::new(64, N, k, a, b, out));
        if !served.is_ok_and(|ways| ways.contains(&Formulation::SmallM)) {
            continue;
        }
        let rows = GROUPS * slot_rows;
        let x = quantized(&blocked(&mut rng, rows, k), a);
        let w = quantized(&blocked(&mut rng, GROUPS * N, k), b);
        let [on_a, on_b] = [&x, &w].map(|host| QuantMatrix::from_host(&handle, host).unwrap());
        let own = biases(&mut rng);
        let starts: Vec<i64> = (0..GROUPS).map(|g| (g * slot_rows) as i64).collect();
        let starts = handle.upload(&starts).unwrap();
        let mut counts = handle.upload(&[0i64; GROUPS]).unwrap();
        let mut clamped = handle.upload(&[77u32]).unwrap();
        let mut d = handle.alloc(rows * N * out.bytes()).unwrap();
        let (dtype, activation) =
            (WIDE[tried % 3], [Activation::Silu, Activation::None, Activation::Gelu][tried / 3 % 3]);
        let bias_on = handle.upload(&bytes_of(dtype, &own)).unwrap();
        tried += 1;
        for (is_masked, end) in
            [(true, None), (true, Some((&own[..], dtype, activation))), (false, Some((&own[..], dtype, activation)))]
        {
            let what = format!("{a} x {b}, k {k}, {out}, masked {is_masked}, {dtype} {activation:?}");
            let mut call = |explains: bool| {
                let to = MatMut::new(&mut d, out, rows, N)?;
                let places = match is_masked {
                    true => GroupedRows::Masked { slot_rows, counts: counts.view() },
                    false => GroupedRows::Contiguous { starts: starts.view(), counts: counts.view() },
                };
                let mut args = GroupedGemmArgs::new(&on_a, &on_b, GROUPS, places, to).alpha(ALPHA);
                if end.is_some() {
                    args = args.bias(VecRef::new(&bias_on, dtype, GROUPS * N)?).activation(activation);
                }
                if explains {
                    let text = args.explain(&handle)?;
                    assert!(text.contains("one launch of small-m") && text.contains("dequantizes all of A"), "{text}");
                }
                handle.grouped_gemm(args.clamped(clamped.view_mut()))
            };
            call(true).unwrap();
            let graph = capture_owned(&handle, || call(false)).unwrap();
            let slot = slot_rows as i64;
            let odd = [slot + 1, -1, i64::MAX, i64::MIN, 3, 0];
            for (told, bad) in [([5, 0, slot, 1, slot - 1, 33], 0), ([0; GROUPS], 0), (odd, 4), ([slot; GROUPS], 0)] {
                handle.write(&mut counts.view_mut(), &told).unwrap();
                handle.write(&mut d.view_mut(), &vec![0xFFu8; rows * N * out.bytes()]).unwrap();
                handle.launch(&graph).unwrap();
                let row = N * out.bytes();
                let mut want = vec![0xFFu8; rows * row];
                for (g, count) in told.iter().map(|count| (*count).clamp(0, slot) as usize).enumerate() {
                    let start = g * slot_rows;
                    let own = alone(&handle, [&x, &w], g, start..start + count, out, end);
                    want[start * row..][..own.len()].copy_from_slice(&own);
                }
                let found = handle.read_bytes(&d.view()).unwrap();
                let wrong = found.chunks(row).zip(want.chunks(row)).position(|(found, want)| found != want);
                assert_eq!(wrong, None, "the first row that differs: {what}, counts {told:?}");
                assert_eq!(handle.read::<u32>(&clamped.view()).unwrap(), [bad], "{what}, counts {told:?}");
            }
        }
    }
    assert!(tried >= 5, "{tried} pairs");
}

/// Plain rows with every kind of weights, and biases of every type.
#[test]
fn plain_rows_have_biases_of_their_groups() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(313);
    let counts = [5usize, 0, 33, 1, 70, 8];
    let (starts, rows) = starts_of(&counts);
    for (i, pair) in PAIRS.into_iter().enumerate() {
        let k = [416, 1824, 3616][i % 3];
        let of = Experts::new(&handle, &mut rng, rows, [GROUPS, N, k], pair);
        let starts_on = handle.upload(&starts).unwrap();
        let counts_on = handle.upload(&counts.map(|count| count as i64)).unwrap();
        let taken: Vec<_> = starts.iter().zip(counts).map(|(start, count)| (*start as usize, count)).collect();
        for (j, dtype) in WIDE.into_iter().enumerate() {
            let (out, usual) = (WIDE[(i + j) % 3], WIDTHS[(i + j) % WIDTHS.len()]);
            let activation = [Activation::None, Activation::Silu, Activation::Gelu][(i + 2 * j) % 3];
            let end = End { bias: Some(biases(&mut rng)), activation };
            let starts = Some(&starts_on);
            let launch = Launch { of: &of, starts, slot_rows: 0, counts: &counts_on, usual, out, gap: 0 };
            let bias = handle.upload(&bytes_of(dtype, end.bias.as_ref().unwrap())).unwrap();
            let mut d = handle.upload(&vec![0xFFu8; launch.bytes(false)]).unwrap();
            let to = MatMut::new(&mut d, out, rows, N).unwrap();
            let args = GroupedGemmArgs::weight_only(of.a(), &of.b, GROUPS, launch.rows(), to).alpha(ALPHA);
            let args = args.bias(VecRef::new(&bias, dtype, GROUPS * N).unwrap()).activation(activation);
            handle.grouped_gemm(args.expected_rows(usual)).unwrap();
            let (found, want) = (handle.read_bytes(&d.view()).unwrap(), launch.want(&handle, &taken, false, &end));
            let row = N * out.bytes();
            let wrong = found.chunks(row).zip(want.chunks(row)).position(|(found, want)| found != want);
            assert_eq!(wrong, None, "the first row that differs: {pair:?}, {dtype}, {activation:?}, {usual} rows");
        }
    }
}
