//! Repacked NVFP4 codes: the order is the CPU's and goes back to the same bytes; products in every configuration have the bits of those of published codes, and meet
//! the f64 bound; dequantized values, kept ones, graphs and copies to the host do not change; everything else refuses them in words.
#![cfg(feature = "cuda")]

mod common;
#[path = "common/guarded.rs"]
mod guarded;
#[path = "common/guarded_weights.rs"]
mod guarded_weights;
#[path = "common/repacked.rs"]
mod repacked;
#[allow(dead_code, unused_imports, reason = "what is for other codes is the other suites'")]
#[path = "common/small_m_weights.rs"]
mod small_m_weights;

use common::gemm::*;
use common::*;
use guarded_weights::check_between_guards;
use repacked::repacked;
use scaled_gemm::{
    Accumulation, CodeOrder, DType, Formulation, GemmArgs, GemmDesc, Handle, HostQuantMatrix, MatMut, MatRef,
    Nvfp4Recipe, Operand, PlanOptions, QuantMatrix, QuantizeTo, Recipe, Scheme, SmallMBlock, SmallMConfig,
    SmallMOperands,
};
use small_m_weights::*;

const SCHEMES: [Scheme; 2] = [Scheme::Nvfp4, Scheme::Nvfp4Row];
const PAIRS: [Pair; 6] = [
    (BF16, Scheme::Nvfp4),
    (F16, Scheme::Nvfp4),
    (BF16, Scheme::Nvfp4Row),
    (F16, Scheme::Nvfp4Row),
    (Operand::Quantized(Scheme::Nvfp4), Scheme::Nvfp4),
    (Operand::Quantized(Scheme::Nvfp4Row), Scheme::Nvfp4Row),
];

/// Any bytes: every code beside every other, and every scale, NaN among them.
fn any(rng: &mut Noise, scheme: Scheme, rows: usize, cols: usize) -> HostQuantMatrix {
    let mut bytes = |count: usize| (0..count).map(|_| (rng.uniform() * 256.0) as u8).collect::<Vec<_>>();
    let (codes, block_scales) = (bytes(rows * cols / 2), bytes(rows * cols / 16));
    let [r, c] = scheme.scale_grid(rows, cols);
    let scales: Vec<f32> = (0..r * c).map(|i| 0.25 + i as f32).collect();
    HostQuantMatrix::from_block_logical(scheme, rows, cols, codes, &scales, &block_scales).unwrap()
}

#[test]
fn the_order_is_the_cpus_and_goes_back() {
    let Some(handle) = decoding() else { return };
    let mut rng = Noise::new(401);
    let shapes = [
        (8, 128),
        (16, 256),
        (264, 1536),
        (72, 384),
        (4104, 128),
        (24, 7168),
        (8, 16384),
        (16, 16512),
        (8, 32768),
        (0, 128),
    ];
    for (scheme, (rows, cols)) in SCHEMES.into_iter().flat_map(|scheme| shapes.map(|shape| (scheme, shape))) {
        let host = any(&mut rng, scheme, rows, cols);
        let mut matrix = QuantMatrix::from_host(&handle, &host).unwrap();
        assert_eq!(matrix.code_order(), CodeOrder::Published);
        let mut want = host.codes().to_vec();
        CodeOrder::Repacked.pack(scheme, rows, cols, &mut want).unwrap();
        let codes = |matrix: &QuantMatrix| handle.read_bytes(&matrix.codes()).unwrap();
        for _ in 0..2 {
            matrix.repack(&handle, CodeOrder::Repacked).unwrap();
            assert_eq!(matrix.code_order(), CodeOrder::Repacked);
            assert!(codes(&matrix) == want, "{scheme} {rows} x {cols}");
            assert_same_bits(&matrix.to_host(&handle).unwrap(), &host, "copied to the host");
        }
        for _ in 0..2 {
            matrix.repack(&handle, CodeOrder::Published).unwrap();
            assert_device_bits(&handle, &matrix, &host, "put back");
            assert!(codes(&matrix) == host.codes());
        }
    }
}

/// Products of repacked codes have the bits of those of published ones, in each of these configurations.
fn check_same(
    handle: &Handle,
    rng: &mut Noise,
    [m, n, k]: [usize; 3],
    pair: Pair,
    case: Case,
    configs: &[SmallMConfig],
) -> (Both, Extras) {
    let both = new(handle, rng, [m, n, k], pair);
    let extras = Extras::new(handle, rng, m, n, &[case.gap]);
    let run = |both: &Both| -> Vec<Stored> {
        with!(both, |ops| {
            let desc = case.desc(ops);
            let run =
                |config: &SmallMConfig| execute(handle, &mut planned(handle, &desc, *config), ops, &extras, &case);
            configs.iter().map(run).collect()
        })
    };
    let want = run(&both);
    let both = repacked(handle, both);
    for ((got, want), config) in run(&both).iter().zip(&want).zip(configs) {
        assert!(got == want, "{pair:?}, m {m}, n {n}, k {k}, {config}");
    }
    (both, extras)
}

/// Small, for runs under a sanitizer: each kernel that knows the order.
#[test]
fn each_kernel_once() {
    let Some(handle) = decoding() else { return };
    let mut rng = Noise::new(407);
    for (i, m) in [1, 16, 31, 48, 63].into_iter().enumerate() {
        for pair in [PAIRS[0], PAIRS[3]] {
            let configs: Vec<_> = one_of_each_of(SmallMOperands::E2m1Weights, m, i).collect();
            check_same(&handle, &mut rng, [m, 136, 1152], pair, Case { gap: 8, ..Case::new(DType::F32) }, &configs);
        }
    }
    // One row by kernels of its own, which want four steps of a warp.
    let own = [SmallMBlock::Four, SmallMBlock::Eight].map(|block| SmallMConfig::new(block, 1).unwrap());
    for pair in [PAIRS[0], PAIRS[3]] {
        check_same(&handle, &mut rng, [1, 40, 4096], pair, Case { gap: 8, ..Case::new(DType::F32) }, &own);
    }
    let host = any(&mut rng, Scheme::Nvfp4, 24, 32768);
    let mut matrix = QuantMatrix::from_host(&handle, &host).unwrap();
    for order in [CodeOrder::Repacked, CodeOrder::Published, CodeOrder::Repacked] {
        matrix.repack(&handle, order).unwrap();
        assert_same_bits(&matrix.to_host(&handle).unwrap(), &host, order.name());
    }
}

/// Every kernel and configuration, whatever it cuts: the bits of published codes, within the bound.
#[test]
fn products_have_the_bits_of_published_codes() {
    let Some(handle) = decoding() else { return };
    let mut rng = Noise::new(402);
    let shapes = [(8, 128), (72, 384), (136, 1536), (128, 256), (264, 2048), (72, 18944), (2112, 640)];
    for (i, (n, k)) in shapes.into_iter().enumerate() {
        for (j, pair) in PAIRS.into_iter().enumerate() {
            let turn = i + 2 * j;
            for m in [1 + turn % 8, 9 + turn % 8, [17, 24, 31, 32, 33, 48, 63, 64][turn % 8]] {
                let out = if k > 1536 { DType::F32 } else { [DType::Bf16, DType::F16, DType::F32][(turn + m) % 3] };
                let case = Case { gap: [0, 8][turn % 2], ..Case::new(out) };
                let configs: Vec<_> = all_of(SmallMOperands::E2m1Weights, m).collect();
                let (both, extras) = check_same(&handle, &mut rng, [m, n, k], pair, case, &configs);
                if i % 3 == 0 {
                    with!(&both, |ops| {
                        let sums = ops.sums(Accumulation::Precise);
                        check_with(&handle, ops, &extras, &sums, case, configs.iter().copied().take(3));
                    });
                }
            }
        }
    }
}

/// All operands in one allocation, 0xFF between them, where B is repacked, too: the bits of operands apart, and nothing but D is written.
#[test]
fn operands_between_guards() {
    let Some(handle) = decoding() else { return };
    let shapes = [[1, 8, 128], [1, 24, 4096], [9, 72, 384], [16, 136, 1152], [40, 264, 640]];
    let lay = |both| repacked(&handle, both);
    let configs = |m, turn| one_of_each_of(SmallMOperands::E2m1Weights, m, turn);
    check_between_guards(&handle, 408, &PAIRS, &shapes, lay, configs);
}

/// Any bytes: codes and scales of every kind, NaN among them.
#[test]
fn any_codes_and_scales_have_the_same_products() {
    let Some(handle) = decoding() else { return };
    let mut rng = Noise::new(403);
    // Long enough for one row's own kernels.
    let (n, k) = (520, 2048);
    for (a, scheme) in PAIRS.into_iter().take(4) {
        let host = any(&mut rng, scheme, n, k);
        for m in [1, 3, 16, 40] {
            let both = operands(&handle, &blocked(&mut rng, m, k), host.clone(), a);
            let (case, extras) = (Case::new(DType::F32), Extras::new(&handle, &mut rng, m, n, &[0]));
            let run = |both: &Both| -> Vec<Vec<u32>> {
                with!(both, |ops| one_of_each_of(SmallMOperands::E2m1Weights, m, 1)
                    .map(|config| {
                        let desc = case.desc(ops);
                        let stored = execute(&handle, &mut planned(&handle, &desc, config), ops, &extras, &case);
                        let values = stored.values(ops, &case);
                        values.iter().map(|v| if v.is_nan() { f32::NAN } else { *v }.to_bits()).collect()
                    })
                    .collect())
            };
            let want = run(&both);
            assert!(want.iter().flatten().any(|bits| !f32::from_bits(*bits).is_nan()));
            assert!(run(&repacked(&handle, both)) == want, "{a} x {scheme}, m {m}");
        }
    }
}

/// Values, also those that the matrix keeps, and the products that are made of them.
#[test]
fn dequantized_values_are_the_same() {
    let Some(handle) = decoding() else { return };
    let mut rng = Noise::new(404);
    for (scheme, (rows, cols)) in SCHEMES.into_iter().flat_map(|s| [(8, 128), (264, 640), (72, 2048)].map(|n| (s, n))) {
        let host = any(&mut rng, scheme, rows, cols);
        let mut matrix = QuantMatrix::from_host(&handle, &host).unwrap();
        let values = |matrix: &QuantMatrix, dtype: DType, gap: usize| {
            let mut y = poisoned(&handle, rows * (cols + gap) * dtype.bytes());
            let mut to = MatMut::new(&mut y, dtype, rows, cols).unwrap().with_row_stride(cols + gap).unwrap();
            handle.dequantize_into(matrix, &mut to).unwrap();
            handle.stream().clone_dtoh(&y).unwrap()
        };
        for (dtype, gap) in [DType::Bf16, DType::F16, DType::F32].into_iter().flat_map(|t| [(t, 0), (t, 3)]) {
            let want = values(&matrix, dtype, gap);
            matrix.repack(&handle, CodeOrder::Repacked).unwrap();
            assert!(values(&matrix, dtype, gap) == want, "{scheme} {rows} x {cols} to {dtype}, gap {gap}");
            matrix.repack(&handle, CodeOrder::Published).unwrap();
        }
    }
    // More rows than our kernels take, of values made in the call or kept: of a matrix kept before it is repacked, or after.
    for (a, scheme) in PAIRS {
        let mut both = new(&handle, &mut rng, [100, 136, 384], (a, scheme));
        let (case, extras) = (Case::new(DType::F32), Extras::new(&handle, &mut rng, 100, 136, &[0]));
        // Where there is a cuBLASLt.
        if !with!(&both, |ops| offered(&handle, &case.desc(ops))).contains(&Formulation::DequantizedBf16) {
            continue;
        }
        let run = |both: &Both| {
            with!(both, |ops| {
                let mut plan = handle.plan(&case.desc(ops)).unwrap();
                assert_eq!(plan.formulation(), Formulation::DequantizedBf16, "{}", plan.explain());
                execute(&handle, &mut plan, ops, &extras, &case)
            })
        };
        let want = run(&both);
        both = repacked(&handle, both);
        assert!(run(&both) == want, "{a} x {scheme}");
        with!(&both, |ops| ops.b().keep_dequantized(&handle, if a == F16 { DType::F16 } else { DType::Bf16 }).unwrap());
        assert!(run(&both) == want, "{a} x {scheme}, kept");
    }
}

/// Planned without a word, as calls do; in graphs, which then hold the matrix to its order.
#[test]
fn graphs_read_what_they_were_captured_with() {
    let Some(handle) = decoding() else { return };
    let mut rng = Noise::new(405);
    let (m, n, k) = (5, 264, 1024);
    let both = repacked(&handle, new(&handle, &mut rng, [m, n, k], (BF16, Scheme::Nvfp4)));
    let Both::Plain(mut ops) = both else { unreachable!() };
    let mut published = QuantMatrix::from_host(&handle, &ops.host_b).unwrap();
    let product = |ops: &PlainOperands, graph: bool| {
        let mut d = poisoned(&handle, m * n * 4);
        let call = |d: &mut _| handle.scaled_gemm(ops.call(MatMut::new(d, DType::F32, m, n).unwrap()));
        call(&mut d).unwrap();
        if graph {
            let captured = capture(&handle, || call(&mut d)).unwrap();
            handle.stream().memset_zeros(&mut d).unwrap();
            handle.launch(&captured).unwrap();
        }
        handle.stream().clone_dtoh(&d).unwrap()
    };
    let eager = product(&ops, false);
    assert!(product(&ops, true) == eager);
    let why = refused(
        ops.b.repack(&handle, CodeOrder::Published),
        &["264 x 1024 nvfp4", "captured graph uses it", "repacked"],
    );
    assert!(why.to_string().contains("before the capture"), "{why}");
    assert!(product(&ops, false) == eager);
    // Another matrix, which no graph knows, cannot change its order in one either.
    std::mem::swap(&mut ops.b, &mut published);
    let inside = capture(&handle, || ops.b.repack(&handle, CodeOrder::Repacked));
    refused(inside.map(drop), &["repacking a matrix"]);
    assert_eq!(ops.b.code_order(), CodeOrder::Published);
}

#[test]
fn who_does_not_know_the_order_refuses_it() {
    let Some(handle) = decoding() else { return };
    let mut rng = Noise::new(406);
    let (m, n, k) = (16, 128, 256);
    let host = quantized(&blocked(&mut rng, n, k), Scheme::Nvfp4);
    let mut b = QuantMatrix::from_host(&handle, &host).unwrap();
    // Shapes and schemes that have no such order.
    for (scheme, rows, cols, word) in
        [(Scheme::Nvfp4, 12, 128, "12 x 128"), (Scheme::Nvfp4, 8, 144, "8 x 144"), (Scheme::Mxfp4, 8, 128, "mxfp4")]
    {
        let mut other = QuantMatrix::zeros(&handle, scheme, rows, cols).unwrap();
        refused(other.repack(&handle, CodeOrder::Repacked), &[word, "published order"]);
    }
    b.repack(&handle, CodeOrder::Repacked).unwrap();
    let words = ["128 x 256 nvfp4", "codes are repacked", "QuantMatrix::repack with CodeOrder::Published"];
    refused(b.write_parts(&handle, |_| Ok(())), &words);
    // Quantizers write the published order, which plans and graphs for this one would not know.
    let x = upload_strided(&handle, &blocked(&mut rng, n, k), DType::Bf16, k, 0);
    let recipe = Recipe::Nvfp4(Nvfp4Recipe::TENSOR);
    let x = MatRef::new(&x, DType::Bf16, n, k).unwrap();
    refused(handle.quantize_into(&x, recipe, QuantizeTo::Plain(&mut b)), &words);
    // As A.
    let weights = QuantMatrix::from_host(&handle, &host).unwrap();
    let mut d = poisoned(&handle, n * n * 4);
    let args = |a, b, d| GemmArgs::new(a, b, MatMut::new(d, DType::F32, n, n).unwrap());
    refused(handle.scaled_gemm(args(&b, &weights, &mut d)), &words);
    // Plans and records for the other order.
    let a = upload_strided(&handle, &blocked(&mut rng, m, k), DType::Bf16, k, 0);
    let a = || MatRef::new(&a, DType::Bf16, m, k).unwrap();
    let desc = GemmDesc::new(m, n, k, Operand::Plain(DType::Bf16), Scheme::Nvfp4, DType::F32);
    let call = |plan: &mut scaled_gemm::GemmPlan, b: &QuantMatrix| {
        let mut d = poisoned(&handle, m * n * 4);
        plan.execute(&handle, GemmArgs::weight_only(a(), b, MatMut::new(&mut d, DType::F32, m, n).unwrap()))
    };
    let mut published = handle.plan(&desc).unwrap();
    let mut repacked = handle.plan(&desc.with_b_order(CodeOrder::Repacked)).unwrap();
    refused(call(&mut published, &b), &["order of the codes of B = repacked where published was planned"]);
    refused(call(&mut repacked, &weights), &["order of the codes of B = published where repacked was planned"]);
    refused(published.prepare(&handle, &b), &["codes that are repacked", "must be published"]);
    call(&mut published, &weights).unwrap();
    call(&mut repacked, &b).unwrap();
    let record = published.record().unwrap();
    let options = PlanOptions::default().with_record(record);
    refused(handle.plan_with(&desc.with_b_order(CodeOrder::Repacked), &options).map(drop), &["b_order", "repacked"]);
    // A way that reads codes itself, and shapes and schemes that cannot be.
    let both = GemmDesc::new(m, n, k, Scheme::Nvfp4, Scheme::Nvfp4, DType::Bf16).with_b_order(CodeOrder::Repacked);
    assert!(!handle.supports(&both).unwrap().contains(&Formulation::Native));
    let odd = GemmDesc::new(m, n, 144, Operand::Plain(DType::Bf16), Scheme::Nvfp4, DType::F32);
    refused(
        handle.plan(&odd.with_b_order(CodeOrder::Repacked)).map(drop),
        &["128 x 144", "a multiple of 8 rows and of 128"],
    );
}
