//! The same of products with the pass behind them: SwiGLU, to numbers and to codes, results in codes, and SwiGLU of plain rows.

use scaled_gemm::{FusedGemmArgs, FusedOut};

use super::*;

/// What a call makes of a batch.
#[derive(Clone, Copy, Debug)]
enum Asked {
    Swiglu(DType),
    SwigluCodes,
    Codes,
}

/// Rows of A by number, B and a bias; plain rows where the weights are decoded.
struct Rows {
    whole: Whole,
    x: Array2<f32>,
}

impl Rows {
    /// Each row of D, in the order of `rows`: numbers, or codes with their scales behind them; and what explains it.
    fn product(&self, handle: &Handle, asked: Asked, rows: &[usize], batch_invariant: bool) -> (Vec<Vec<u8>>, String) {
        let of = &self.whole;
        let (m, n) = (rows.len(), of.b.rows() / if matches!(asked, Asked::Codes) { 1 } else { 2 });
        let BatchA::Quantized(a) = of.matrix(handle, m, of.rows(rows)) else { unreachable!() };
        let bias = upload(handle, &bytes_of(DType::F32, &of.bias));
        match asked {
            Asked::Swiglu(out) => {
                let mut d = poisoned(handle, m * n * out.bytes());
                let to = MatMut::new(&mut d, out, m, n).unwrap();
                let args = FusedGemmArgs::swiglu(&a, &of.b, to).alpha(0.5).batch_invariant(batch_invariant);
                let text = args.explain(handle).unwrap();
                handle.fused_gemm(args).unwrap();
                let bytes = handle.stream().clone_dtoh(&d).unwrap();
                (bytes.chunks(n * out.bytes()).map(<[u8]>::to_vec).collect(), text)
            }
            Asked::SwigluCodes | Asked::Codes => {
                let mut d = QuantMatrix::zeros(handle, VEC, m, n).unwrap();
                let to: FusedOut<'_> = (&mut d).into();
                let args = match (asked, to) {
                    (Asked::Codes, FusedOut::Quantized(d)) => {
                        let args = FusedGemmArgs::quantized(&a, &of.b, d).activation(Activation::Gelu);
                        args.bias(VecRef::new(&bias, DType::F32, n).unwrap())
                    }
                    (_, to) => FusedGemmArgs::swiglu(&a, &of.b, to),
                };
                let args = args.alpha(0.5).batch_invariant(batch_invariant);
                let text = args.explain(handle).unwrap();
                handle.fused_gemm(args).unwrap();
                let d = d.to_host(handle).unwrap();
                let scales = d.logical_scales();
                let each = scales.len() / m;
                let row = |i: usize| {
                    let mut row = d.logical_codes()[i * n..(i + 1) * n].to_vec();
                    row.extend(bytes_of(DType::F32, &scales[i * each..(i + 1) * each]));
                    row
                };
                ((0..m).map(row).collect(), text)
            }
        }
    }

    /// SwiGLU of plain rows of this type.
    fn weight_only(&self, handle: &Handle, dtype: DType, out: DType, rows: &[usize]) -> (Vec<Vec<u8>>, String) {
        let (m, n, k) = (rows.len(), self.whole.b.rows() / 2, self.whole.k);
        let x = gathered(self.x.as_slice().unwrap(), k, rows);
        let x = upload(handle, &bytes_of(dtype, &x.iter().map(|x| round_to(dtype, *x)).collect::<Vec<_>>()));
        let mut d = poisoned(handle, m * n * out.bytes());
        let (a, to) = (MatRef::new(&x, dtype, m, k).unwrap(), MatMut::new(&mut d, out, m, n).unwrap());
        let args = FusedGemmArgs::swiglu_weight_only(a, &self.whole.b, to).alpha(0.5).batch_invariant(true);
        let text = args.explain(handle).unwrap();
        handle.fused_gemm(args).unwrap();
        let bytes = handle.stream().clone_dtoh(&d).unwrap();
        (bytes.chunks(n * out.bytes()).map(<[u8]>::to_vec).collect(), text)
    }
}

/// Panics with the first row that is not as among all.
fn assert_same(found: &[Vec<u8>], all: &[Vec<u8>], rows: &[usize], words: &str) {
    let wrong = found.iter().zip(rows).position(|(found, row)| *found != all[*row]);
    assert_eq!(wrong, None, "of {} rows, which has other bits: {words}", rows.len());
    assert!(found.iter().all(|row| row.iter().any(|byte| *byte != 0xFF)), "{words}");
}

#[test]
fn a_row_with_a_pass_behind_it_has_the_same_bits_for_every_m() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(196);
    let every = [Asked::Swiglu(DType::Bf16), Asked::Swiglu(DType::F32), Asked::SwigluCodes, Asked::Codes];
    let mut ways = BTreeSet::new();
    // Rows of B: those of two matrices of 128, of 1408 and of 2048 columns, which take one kernel at some m, and two steps at others.
    for (n, k, most) in [(256, 400, 8192), (2816, 1168, 4097), (4096, 2064, 1024)] {
        for (pair, asked) in
            [(VEC, BLK), ROW_PAIR, TENSOR_PAIR].into_iter().flat_map(|pair| every.map(|asked| (pair, asked)))
        {
            if pair != (VEC, BLK) && (matches!(asked, Asked::Codes) || most > 4097) {
                continue;
            }
            let of = Rows { whole: Whole::new(&handle, &mut rng, [most, n, k], pair), x: Array2::zeros((0, k)) };
            let all: Vec<usize> = (0..most).collect();
            let (want, _) = of.product(&handle, asked, &all, true);
            for m in MS.into_iter().filter(|m| *m <= most) {
                for rows in batches(m, most) {
                    let (found, text) = of.product(&handle, asked, &rows, true);
                    assert_same(&found, &want, &rows, &format!("{asked:?}\n{text}"));
                    assert!(!text.contains("small-m"), "{text}");
                    ways.insert(text.contains("a pass over them"));
                }
                // From 33 rows on nobody needs to ask.
                if m > 32 {
                    let rows = &batches(m, most)[0];
                    let (found, text) = of.product(&handle, asked, rows, false);
                    assert_same(&found, &want, rows, &format!("{asked:?}, unasked\n{text}"));
                }
            }
        }
    }
    assert!(handle.device().sm_count != 132 || ways.len() == 2, "in two steps and in one: {ways:?}");
}

#[test]
fn a_plain_row_with_swiglu_has_the_same_bits_for_every_m() {
    let Some(handle) = handle_with(scaled_gemm::KernelFamily::SmallMGroups) else { return };
    let mut rng = Noise::new(197);
    let most = 64;
    for (i, (dtype, scheme)) in [
        (DType::Bf16, Scheme::Nvfp4),
        (DType::F16, Scheme::Nvfp4Row),
        (DType::Bf16, Scheme::Mxfp4),
        (DType::Bf16, Scheme::Mxfp8(E4M3)),
        (DType::Bf16, BLK),
        (DType::F16, ROW_PAIR.1),
    ]
    .into_iter()
    .enumerate()
    {
        // One part of k, two and four.
        for (n, k) in [(256, 416), (4096, 3616), (512, 7200)] {
            // A of a whole product is not read here.
            let whole = Whole::new(&handle, &mut rng, [most, 16, 16], (VEC, BLK));
            let b = QuantMatrix::from_host(&handle, &quantized(&tiled(&mut rng, n, k), scheme)).unwrap();
            let of = Rows { whole: Whole { b, k, ..whole }, x: tiled(&mut rng, most, k) };
            for out in [WIDE[i % 3], WIDE[(i + 1) % 3]] {
                let all: Vec<usize> = (0..most).collect();
                let (want, _) = of.weight_only(&handle, dtype, out, &all);
                for m in [1, 2, 3, 7, 8, 9, 15, 16, 17, 24, 31, 32, 33, 48, 63] {
                    for rows in batches(m, most) {
                        let (found, text) = of.weight_only(&handle, dtype, out, &rows);
                        let words = format!("{dtype} x {scheme}, n {n}, k {k}, {out}\n{text}");
                        assert_same(&found, &want, &rows, &words);
                    }
                }
            }
        }
    }
}
