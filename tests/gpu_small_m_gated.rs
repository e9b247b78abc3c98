//! SwiGLU of two products of few rows with FP8 operands, in one pass over both matrices: every configuration gives the bytes of the reference applied to what our
//! product of few rows stores in FP32, as numbers and as codes, also in graphs and chains; more rows and batch-invariant products are
//! `sm90`'s; bad input is refused.
#![cfg(feature = "cuda")]

mod common;
#[path = "common/guarded.rs"]
mod guarded;
#[allow(dead_code, unused_imports, reason = "what is for plain rows is the other suites'")]
#[path = "common/small_m_weights.rs"]
mod small_m_weights;

use common::gemm::*;
use common::*;
use guarded::{Arena, gathered_bytes, places_of_rows};
use ndarray::Array2;
use scaled_gemm::reference::{self, Swiglu};
use scaled_gemm::{
    DType, DeviceBuffer, Fp8Format, Fp8Granularity, Fp8Recipe, FusedGemmArgs, GemmArgs, GemmDesc, GroupedRows, Handle,
    HostQuantMatrix, KernelFamily, MatMut, QuantMatrix, Scheme, Sm90Config, SmallMBlock, SmallMConfig, SmallMOperands,
};
use small_m_weights::*;

const A: Scheme = Scheme::Fp8Group1x128(Fp8Format::E4M3);
const B: Scheme = Scheme::Fp8Group128x128(Fp8Format::E4M3);
const WIDE: [DType; 3] = [DType::Bf16, DType::F16, DType::F32];
const ALPHA: f32 = 0.75;

fn recipes() -> impl Iterator<Item = Fp8Recipe> {
    Fp8Recipe::all().filter(|r| (r.granularity, r.format) == (Fp8Granularity::Group1x128, Fp8Format::E4M3))
}

fn all() -> impl Iterator<Item = SmallMConfig> {
    SmallMConfig::all(SmallMOperands::Fp8)
}

struct Layer {
    a: QuantMatrix,
    b: QuantMatrix,
    m: usize,
    n: usize,
    k: usize,
}

impl Layer {
    fn new(handle: &Handle, rng: &mut Noise, [m, n, k]: [usize; 3], size: f32) -> Self {
        let a = quantized(&tiled(rng, m, k).mapv(|x| x * size), A);
        let b = quantized(&tiled(rng, 2 * n, k), B);
        let on_device = |host: &HostQuantMatrix| QuantMatrix::from_host(handle, host).unwrap();
        Self { a: on_device(&a), b: on_device(&b), m, n, k }
    }

    /// The reference of both products in FP32, in this configuration.
    fn hidden(&self, handle: &Handle, config: SmallMConfig) -> Array2<f32> {
        let Self { m, n, k, .. } = *self;
        let desc = GemmDesc::new(m, 2 * n, k, A, B, DType::F32);
        let mut both = poisoned(handle, m * 2 * n * 4);
        let args = GemmArgs::new(&self.a, &self.b, MatMut::new(&mut both, DType::F32, m, 2 * n).unwrap());
        planned(handle, &desc, config).execute(handle, args.alpha(ALPHA)).unwrap();
        let both = values_of(DType::F32, &handle.stream().clone_dtoh(&both).unwrap());
        let both = Array2::from_shape_vec((m, 2 * n), both).unwrap();
        reference::swiglu(both.view(), &Swiglu::default()).unwrap().0
    }

    fn check(&self, handle: &Handle, config: Option<SmallMConfig>, out: DType, recipe: Fp8Recipe) {
        let Self { m, n, .. } = *self;
        let with = |args: FusedGemmArgs<'_>| -> String {
            let args = args.alpha(ALPHA).recipe(recipe);
            let args = if let Some(config) = config { args.small_m_config(config) } else { args };
            let text = args.explain(handle).unwrap();
            handle.fused_gemm(args).unwrap();
            text
        };
        let mut d = handle.upload(&vec![0xFFu8; m * (n + 4) * out.bytes()]).unwrap();
        let to = MatMut::new(&mut d, out, m, n).unwrap().with_row_stride(n + 4).unwrap();
        let text = with(FusedGemmArgs::swiglu(&self.a, &self.b, to));
        let config = config.unwrap_or_else(|| named(&text));
        let hidden = self.hidden(handle, config);
        let mut want = vec![0xFF; m * (n + 4) * out.bytes()];
        for (row, to) in hidden.rows().into_iter().zip(want.chunks_mut((n + 4) * out.bytes())) {
            let bytes = bytes_of(out, row.mapv(|v| round_to(out, v)).iter());
            to[..bytes.len()].copy_from_slice(&bytes);
        }
        let what = format!("{config}, m {m}, n {n}, k {}, {out}\n{text}", self.k);
        assert!(handle.read_bytes(&d.view()).unwrap() == want, "{what}");
        let mut codes = QuantMatrix::zeros(handle, A, m, n).unwrap();
        let text = with(FusedGemmArgs::swiglu(&self.a, &self.b, &mut codes));
        let words =
            ["two launches: small-m, ".to_string(), format!(", and the quantizer behind it; {} bytes of", m * n * 4)];
        assert!(words.iter().all(|words| text.contains(words)), "{text}");
        let want = reference::quantize(hidden.view(), DType::F32, recipe).unwrap();
        assert_device_bits(handle, &codes, &want, &what);
    }
}

/// A handle on an sm_90.
fn hopper() -> Option<Handle> {
    handle_with(KernelFamily::SmallMGroups)
}

/// The configuration that the explanation names.
fn named(text: &str) -> SmallMConfig {
    let place = text.split("one launch of small-m, ").nth(1).unwrap_or_else(|| panic!("not small-m: {text}"));
    let (block, rest) = place.split_once(", k split by ").unwrap();
    SmallMConfig::new(block.parse().unwrap(), rest[..1].parse().unwrap()).unwrap()
}

/// Small, for runs under a sanitizer: each kernel.
#[test]
fn each_kernel_once() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(311);
    for (i, m) in [7, 15, 31].into_iter().enumerate() {
        let layer = Layer::new(&handle, &mut rng, [m, 128, 1040], 1.0);
        for config in all().skip(i % 2).step_by(2) {
            layer.check(&handle, Some(config), WIDE[i], recipes().nth(i).unwrap());
        }
    }
}

#[test]
fn every_configuration_gives_the_reference_of_its_products() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(312);
    let recipes: Vec<_> = recipes().collect();
    let mut turn = 0;
    for n in [128, 384] {
        for k in [16, 128, 400, 1536, 2064] {
            for m in [1, 8, 9, 16, 17, 32] {
                let layer = Layer::new(&handle, &mut rng, [m, n, k], 1.0);
                for config in all().skip(turn % 3).step_by(3) {
                    layer.check(&handle, Some(config), WIDE[turn % 3], recipes[turn % recipes.len()]);
                    turn += 1;
                }
                layer.check(&handle, None, WIDE[turn % 3], recipes[turn % recipes.len()]);
            }
        }
    }
    // Gates of any size.
    for size in [1e-12, 1e3, 1e8] {
        Layer::new(&handle, &mut rng, [11, 128, 544], size).check(&handle, None, DType::F32, recipes[0]);
    }
    // As wide as layers are.
    for shape in [[4, 2048, 1536], [16, 6400, 528]] {
        Layer::new(&handle, &mut rng, shape, 1.0).check(&handle, None, DType::Bf16, recipes[0]);
    }
}

/// A, B and D in one allocation, 0xFF between them, numbers of D at no more than their own size: the bits of operands apart, and nothing but D is written.
#[test]
fn operands_between_guards() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(314);
    for (i, [m, n, k]) in [[1, 128, 16], [9, 128, 400], [17, 256, 1040], [32, 128, 2064]].into_iter().enumerate() {
        let [a, b] = [(m, A), (2 * n, B)].map(|(rows, scheme)| quantized(&tiled(&mut rng, rows, k), scheme));
        let [apart_a, apart_b] = [&a, &b].map(|host| QuantMatrix::from_host(&handle, host).unwrap());
        let (out, stride) = (WIDE[i % 3], n + 8);
        let d_bytes = ((m - 1) * stride + n) * out.bytes();
        for config in all().skip(i % 2).step_by(2) {
            let words = format!("{config}, {m} x {n} x {k}, {out}");
            let call = |args: FusedGemmArgs<'_>| handle.fused_gemm(args.alpha(ALPHA).small_m_config(config)).unwrap();
            let numbers = |a: &QuantMatrix, b: &QuantMatrix, d: &mut DeviceBuffer| {
                call(FusedGemmArgs::swiglu(a, b, MatMut::new(d, out, m, n).unwrap().with_row_stride(stride).unwrap()));
            };
            let mut want = handle.upload(&vec![0xFFu8; d_bytes]).unwrap();
            numbers(&apart_a, &apart_b, &mut want);
            let want = handle.read_bytes(&want.view()).unwrap();
            let mut want_codes = poisoned_matrix(&handle, A, m, n);
            call(FusedGemmArgs::swiglu(&apart_a, &apart_b, &mut want_codes));

            let mut arena = Arena::new(&handle, 4 << 20);
            let mut d = arena.place(&handle, &vec![0xFF; d_bytes], out.bytes());
            let at = arena.last().start;
            let (mut codes, of_codes) = arena.target(&handle, A, [m, n]);
            let [a, b] = [&a, &b].map(|host| arena.matrix(&handle, host));
            let written = places_of_rows(at, m, n * out.bytes(), stride * out.bytes());
            let before = arena.ready(&handle);
            numbers(&a, &b, &mut d);
            let after = arena.read_behind(&handle, &before, &written, &words);
            assert!(after[at..at + d_bytes] == want, "other bits than of operands apart: {words}");
            let stored = values_of(out, &gathered_bytes(&after, &written));
            assert!(stored.iter().any(|v| v.is_finite() && *v != 0.0), "{words}");
            let before = arena.ready(&handle);
            call(FusedGemmArgs::swiglu(&a, &b, &mut codes));
            arena.read_behind(&handle, &before, &of_codes, &words);
            for (got, want) in [(codes.codes(), want_codes.codes()), (codes.scales(), want_codes.scales())] {
                let [got, want] = [got, want].map(|bytes| handle.read_bytes(&bytes).unwrap());
                assert!(got == want, "other codes or scales than of operands apart: {words}");
            }
        }
    }
}

/// Layers one behind the other, each reading the codes that the one before wrote, in a graph with and without a chain: the eager bits.
#[test]
fn graphs_and_chains_give_the_eager_bits() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(313);
    let (m, n, links) = (9, 2048, 6);
    let weights: Vec<_> = (0..links)
        .map(|_| QuantMatrix::from_host(&handle, &quantized(&tiled(&mut rng, 2 * n, n), B)).unwrap())
        .collect();
    let x = QuantMatrix::from_host(&handle, &quantized(&tiled(&mut rng, m, n), A)).unwrap();
    let mut hidden: Vec<_> = (0..links).map(|_| QuantMatrix::zeros(&handle, A, m, n).unwrap()).collect();
    let mut d = handle.alloc(m * n * 2).unwrap();
    // As planned for calls alone, and every second for links of chains.
    let run = |hidden: &mut [QuantMatrix], d: &mut DeviceBuffer| -> scaled_gemm::Result<()> {
        for (i, weights) in weights.iter().enumerate() {
            let (before, rest) = hidden.split_at_mut(i);
            let a = before.last().unwrap_or(&x);
            handle.fused_gemm(FusedGemmArgs::swiglu(a, weights, &mut rest[0]).alpha(0.125).chained(i % 2 == 1))?;
        }
        let d = MatMut::new(d, DType::Bf16, m, n)?;
        handle.fused_gemm(FusedGemmArgs::swiglu(&hidden[links - 1], &weights[0], d).alpha(0.125))
    };
    run(&mut hidden, &mut d).unwrap();
    let want = handle.read_bytes(&d.view()).unwrap();
    let codes: Vec<_> = hidden.iter().map(|q| handle.read_bytes(&q.codes()).unwrap()).collect();
    for chained in [false, true] {
        let graph = capture_owned(&handle, || match chained {
            true => handle.chain(|| run(&mut hidden, &mut d)),
            false => run(&mut hidden, &mut d),
        });
        let graph = graph.unwrap();
        // Poison before each launch, and behind some launches at once.
        for launches in [1; 40].into_iter().chain([300]) {
            handle.write(&mut d.view_mut(), &vec![0xFFu8; m * n * 2]).unwrap();
            for (q, codes) in hidden.iter_mut().zip(&codes) {
                q.write_parts(&handle, |mut parts| handle.write(&mut parts.codes, &vec![0xFFu8; codes.len()])).unwrap();
            }
            (0..launches).for_each(|_| handle.launch(&graph).unwrap());
            assert!(handle.read_bytes(&d.view()).unwrap() == want, "chained {chained}");
            for (q, want) in hidden.iter().zip(&codes) {
                assert!(handle.read_bytes(&q.codes()).unwrap() == *want, "chained {chained}");
            }
        }
    }
}

#[test]
fn others_are_of_sm90_or_refused() {
    let Some(handle) = hopper() else { return };
    let (n, k) = (128, 256);
    let matrix = |scheme, rows| QuantMatrix::zeros(&handle, scheme, rows, k).unwrap();
    let (a, many, b) = (matrix(A, 16), matrix(A, 33), matrix(B, 2 * n));
    let counts = handle.upload(&[16i64]).unwrap();
    let mut d = handle.alloc(64 * n * 4).unwrap();
    let mut text = |a: &QuantMatrix, change: fn(FusedGemmArgs<'_>) -> FusedGemmArgs<'_>| {
        let to = MatMut::new(&mut d, DType::Bf16, a.rows(), n).unwrap();
        change(FusedGemmArgs::swiglu(a, &b, to)).explain(&handle)
    };
    assert!(text(&a, |args| args).unwrap().contains("one launch of small-m, "));
    assert!(text(&many, |args| args).unwrap().contains("our kernels for sm_90 serve"));
    assert!(text(&a, |args| args.batch_invariant(true)).unwrap().contains("our kernels for sm_90 serve"));
    assert!(text(&a, |args| args.config(Sm90Config::Tile64x128)).unwrap().contains("64x128"));
    // Planned for chains, in other parts of k.
    let zeros = |scheme, rows| QuantMatrix::zeros(&handle, scheme, rows, 7168).unwrap();
    let (tokens, wide) = (zeros(A, 9), zeros(B, 4096));
    let mut hidden = handle.alloc(9 * 2048 * 2).unwrap();
    let mut words = |chained| {
        let to = MatMut::new(&mut hidden, DType::Bf16, 9, 2048).unwrap();
        FusedGemmArgs::swiglu(&tokens, &wide, to).chained(chained).explain(&handle).unwrap()
    };
    let [alone, chained] = [false, true].map(&mut words);
    assert!(chained.contains("one launch of small-m, "), "{chained}");
    assert!(handle.device().sm_count != 132 || alone != chained, "{alone}");
    fn forced(args: FusedGemmArgs<'_>) -> FusedGemmArgs<'_> {
        args.small_m_config(SmallMConfig::new(SmallMBlock::Two, 2).unwrap())
    }
    assert!(text(&a, forced).unwrap().contains("one launch of small-m, two, k split by 2"));
    refused(text(&many, forced), &["A: 33 x 256", "at most 32 rows"]);
    refused(text(&a, |args| forced(args).config(Sm90Config::Tile64x128)), &["two, k split by 2", "leave it out"]);
    refused(text(&a, |args| forced(args).batch_invariant(true)), &["two, k split by 2", "batch-invariant", "leave it"]);
    let tile = |args: FusedGemmArgs<'_>| {
        args.small_m_config(SmallMConfig::new(SmallMBlock::Tile, 2).unwrap()).explain(&handle)
    };
    let mut other = handle.alloc(64 * n * 4).unwrap();
    let to = MatMut::new(&mut other, DType::Bf16, 16, n).unwrap();
    refused(tile(FusedGemmArgs::swiglu(&a, &b, to)), &["tile, k split by 2", "SwiGLU of fp8-1x128 and fp8-128x128"]);
    let rows = GroupedRows::Masked { slot_rows: 16, counts: counts.view() };
    let to = MatMut::new(&mut other, DType::Bf16, 16, n).unwrap();
    let grouped = forced(FusedGemmArgs::swiglu(&a, &b, to)).groups(1, rows).explain(&handle);
    refused(grouped, &["two, k split by 2", "without groups"]);
    // Scratch memory cannot be made inside a capture: the call says so, once it has been made all is well.
    let handle = Handle::new(handle.device().ordinal).unwrap();
    handle.load_kernels(&[KernelFamily::SmallM, KernelFamily::Fp8]).unwrap();
    let matrix = |scheme, rows| QuantMatrix::zeros(&handle, scheme, rows, k).unwrap();
    let (a, b) = (matrix(A, 16), matrix(B, 2 * n));
    let mut hidden = QuantMatrix::zeros(&handle, A, 16, n).unwrap();
    let first = handle.capture(|| handle.fused_gemm(FusedGemmArgs::swiglu(&a, &b, &mut hidden)));
    refused(first.map(drop), &["scratch memory", "capture"]);
    handle.fused_gemm(FusedGemmArgs::swiglu(&a, &b, &mut hidden)).unwrap();
    capture_owned(&handle, || handle.fused_gemm(FusedGemmArgs::swiglu(&a, &b, &mut hidden))).map(drop).unwrap();
}
