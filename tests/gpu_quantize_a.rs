//! Products that quantize A themselves: the bits of the quantizer and the product behind it, for every scheme, element type, formulation and m; in graphs,
//! which follow A and its given scale; records and autotuning; refusals.
#![cfg(feature = "cuda")]

mod common;

use common::gemm::*;
use common::*;
use ndarray::Array2;
use scaled_gemm::cudarc::driver::{CudaSlice, DevicePtr};
use scaled_gemm::reference::HostOperand;
use scaled_gemm::{
    DType, DeviceBytes, Error, Fp8Format, Fp8Granularity, Fp8Recipe, Fp8Rule, Fp8Scales, GemmArgs, GemmDesc,
    GivenScale, Handle, HostQuantMatrix, MatMut, MatRef, OutAmax, PlanOptions, QuantMatrix, QuantizeA, Recipe, Scheme,
    TuneOptions, TuneRecord,
};

const E4M3: Fp8Format = Fp8Format::E4M3;
const BLOCKS: (Scheme, Scheme) = (Scheme::Fp8Group1x128(E4M3), Scheme::Fp8Group128x128(E4M3));

fn recipe(scheme: Scheme) -> Fp8Recipe {
    match Recipe::new(scheme) {
        Recipe::Fp8(recipe) => recipe,
        other => panic!("{other:?}"),
    }
}

/// A product of an A as it is given, and of the same A quantized before.
struct Quantizing {
    /// Quantized by the quantizer.
    ops: Operands,
    x: CudaSlice<u8>,
    gap: usize,
    quantize: QuantizeA,
    given: Option<GivenScale<CudaSlice<f32>>>,
}

impl Quantizing {
    /// `x` in rows `gap` elements apart.
    fn new(
        handle: &Handle,
        (x, dtype, gap): (&Array2<f32>, DType, usize),
        recipe: Fp8Recipe,
        given: Option<GivenScale>,
        host_b: HostQuantMatrix,
    ) -> Self {
        let (m, k) = x.dim();
        let bytes = upload_strided(handle, x, dtype, k + gap, 0);
        let matrix = MatRef::new(&bytes, dtype, m, k).unwrap().with_row_stride(k + gap).unwrap();
        let given = given.map(|scale| scale.with_number(handle.stream().clone_htod(&[*scale.number()]).unwrap()));
        let a = match &given {
            None => handle.quantize(&matrix, recipe).unwrap(),
            Some(scale) => {
                let mut a = QuantMatrix::zeros(handle, recipe.scheme(), m, k).unwrap();
                let scale = scale.with_number(DeviceBytes::from(scale.number()));
                handle.quantize_tensor_into(&matrix, recipe.format, &scale, &mut a, None).unwrap();
                a
            }
        };
        let b = QuantMatrix::from_host(handle, &host_b).unwrap();
        let quantize = match &given {
            None => QuantizeA::new(dtype, recipe),
            Some(_) => QuantizeA::with_given_scale(dtype, recipe.format),
        };
        let host_a = a.to_host(handle).unwrap();
        Self { ops: Operands { host_a, host_b, a, b }, x: bytes, gap, quantize, given }
    }

    /// Other numbers at the same addresses, and of A quantized before.
    fn rewrite(&mut self, handle: &Handle, x: &Array2<f32>, scale: f32) {
        let given = self.given.as_ref().map(|given| given.with_number(scale));
        let other =
            Self::new(handle, (x, self.quantize.dtype, self.gap), self.quantize.recipe, given, self.ops.host_b.clone());
        handle.stream().memcpy_dtod(&other.x, &mut self.x).unwrap();
        if let Some(GivenScale::Encode(place) | GivenScale::Decode(place)) = &mut self.given {
            handle.stream().memcpy_htod(&[scale], place).unwrap();
        }
        (self.ops.a, self.ops.host_a) = (other.ops.a, other.ops.host_a);
    }
}

impl Product for Quantizing {
    fn shape(&self) -> [usize; 3] {
        self.ops.shape()
    }

    fn host_a(&self) -> HostOperand<'_> {
        self.ops.host_a()
    }

    fn host_b(&self) -> &HostQuantMatrix {
        self.ops.host_b()
    }

    fn b(&self) -> &QuantMatrix {
        &self.ops.b
    }

    fn problem(&self, out: DType) -> GemmDesc {
        self.ops.problem(out).with_quantize_a(self.quantize).with_a_stride(self.ops.a.cols() + self.gap)
    }

    fn call<'a>(&'a self, d: MatMut<'a>) -> GemmArgs<'a> {
        let [m, _, k] = self.shape();
        let a = MatRef::new(&self.x, self.quantize.dtype, m, k).unwrap().with_row_stride(k + self.gap).unwrap();
        match &self.given {
            None => GemmArgs::quantize_a(a, self.quantize.recipe, &self.ops.b, d),
            Some(scale) => {
                let scale = scale.with_number(DeviceBytes::from(scale.number()));
                GemmArgs::quantize_a_by(a, self.quantize.recipe.format, scale, &self.ops.b, d)
            }
        }
    }
}

/// [`tiled`] with what quantizers treat apart: NaN, an infinity, a negative zero, numbers out of all proportion, a group of zeros.
fn peculiar(rng: &mut Noise, rows: usize, cols: usize) -> Array2<f32> {
    let mut x = tiled(rng, rows, cols);
    for (i, j, v) in [(0, 3, f32::NAN), (1, 130, f32::INFINITY), (2, 5, -0.0), (3, 140, 6e4), (4, 9, 1e-7)] {
        if i < rows && j < cols {
            x[(i, j)] = v;
        }
    }
    x.row_mut(rows / 2).iter_mut().skip(128).take(128).for_each(|v| *v = 0.0);
    x
}

/// Every formulation that is offered gives the bits that it gives of the same A quantized before. How many there were.
fn check(handle: &Handle, given: &Quantizing, case: Case) -> usize {
    let [m, n, k] = given.shape();
    let extras = Extras::new(handle, &mut Noise::new(7), m, n, &[case.gap]);
    let desc = case.desc(given);
    let formulations = offered(handle, &desc);
    assert_eq!(formulations, offered(handle, &case.desc(&given.ops)), "{desc}");
    for &formulation in &formulations {
        let mut before = plan(handle, &case.desc(&given.ops), formulation);
        let want = execute(handle, &mut before, &given.ops, &extras, &case);
        let mut own = plan(handle, &desc, formulation);
        let scheme = given.quantize.recipe.scheme();
        let held = scheme.code_bytes(m, k) + scheme.scale_len(m, k) * 4;
        let words = format!("A quantized in each call ({})", given.quantize);
        assert!(own.explain().contains(&words) && own.scratch_bytes() >= before.scratch_bytes(), "{}", own.explain());
        assert!(own.scratch_bytes() < before.scratch_bytes() + held + 1024, "{}", own.explain());
        let found = execute(handle, &mut own, given, &extras, &case);
        assert!(found == want, "differs from the quantizer and its product\n{}", own.explain());
        assert!(execute(handle, &mut own, given, &extras, &case) == want, "a second run\n{}", own.explain());
    }
    formulations.len()
}

/// Small, for runs under a sanitizer: every scheme and type.
#[test]
fn each_scheme_once() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(171);
    for (i, family) in FAMILIES.into_iter().enumerate() {
        let (a, b) = mixes(family)[0];
        for (j, dtype) in WIDE.into_iter().enumerate() {
            let x = peculiar(&mut rng, [1, 5, 17][(i + j) % 3], 400);
            let b = quantized(&tiled(&mut rng, 136, 400), b);
            let given = Quantizing::new(&handle, (&x, dtype, [0, 8][j % 2]), recipe(a), None, b);
            check(&handle, &given, Case::new(WIDE[(i + j) % 3]));
        }
    }
}

#[test]
fn the_bits_of_quantizer_and_product() {
    let Some(handle) = handle() else { return };
    let (mut rng, mut count, mut turn) = (Noise::new(172), 0, 0);
    for family in FAMILIES {
        for (a, b) in mixes(family) {
            let rules: Vec<_> = Fp8Rule::ALL.into_iter().filter(|rule| rule.has(recipe(a).format)).collect();
            for k in [16, 144, 1168] {
                let weights = quantized(&tiled(&mut rng, 272, k), b);
                for m in [1, 3, 8, 16, 17, 32, 33, 130] {
                    turn += 1;
                    let (dtype, rule) = (WIDE[turn % 3], rules[turn % rules.len()]);
                    let scales = [Fp8Scales::Exact, Fp8Scales::PowerOfTwo][turn % 2];
                    let recipe = Fp8Recipe { scales, ..recipe(a).with_rule(rule) };
                    let x = peculiar(&mut rng, m, k);
                    let gap = [0, 8, 40][turn % 3];
                    let given = Quantizing::new(&handle, (&x, dtype, gap), recipe, None, weights.clone());
                    let bias = [None, Some(WIDE[turn % 3])][turn % 2];
                    let case = Case { bias, alpha: 0.75, gap: [8, 0][turn % 2], ..Case::new(WIDE[(turn / 3) % 3]) };
                    count += check(&handle, &given, case);
                    if m == 17 && k == 144 {
                        count += check(&handle, &given, layer());
                        if is_tensor(a) {
                            let e4m3 = Case { encode: 0.25, amax: OutAmax::Store, ..Case::new(DType::E4M3) };
                            count += check(&handle, &given, e4m3);
                        }
                    }
                }
            }
        }
    }
    println!("{count} products");
}

#[test]
fn given_scales() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(173);
    for (i, (a, b)) in mixes(FAMILIES[0]).into_iter().enumerate() {
        for (j, m) in [1, 9, 33, 130].into_iter().enumerate() {
            let (x, weights) = (peculiar(&mut rng, m, 400), quantized(&tiled(&mut rng, 272, 400), b));
            let scale = [GivenScale::Encode(13.7), GivenScale::Decode(0.031)][(i + j) % 2];
            let given = Quantizing::new(&handle, (&x, WIDE[(i + j) % 3], 8), recipe(a), Some(scale), weights);
            check(&handle, &given, Case::new(WIDE[j % 3]));
        }
    }
}

/// A captured call follows A and its scale; nothing is allocated in it.
#[test]
fn graphs_follow_a_and_its_scale() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(174);
    let scales = [Some(GivenScale::Encode(13.7)), Some(GivenScale::Decode(0.031)), None];
    for (i, family) in FAMILIES.into_iter().chain([FAMILIES[0], FAMILIES[0]]).enumerate() {
        let (a, b) = mixes(family)[0];
        let scale = if is_tensor(a) { scales[i % 3] } else { None };
        for m in [3, 65] {
            let (x, weights) = (tiled(&mut rng, m, 656), quantized(&tiled(&mut rng, 272, 656), b));
            let mut given = Quantizing::new(&handle, (&x, DType::Bf16, 8), recipe(a), scale, weights);
            let case = Case { gap: 8, ..Case::new(DType::Bf16) };
            let extras = Extras::new(&handle, &mut rng, m, 272, &[8]);
            for formulation in offered(&handle, &case.desc(&given)) {
                let mut own = plan(&handle, &case.desc(&given), formulation);
                let want = execute(&handle, &mut own, &given, &extras, &case);
                let mut output = Output::new(&handle, &given, &extras, &case);
                let held = handle.scratch_bytes();
                let graph = capture_among_others(&handle, || own.execute(&handle, output.args(&given, &extras, &case)));
                let graph = graph.unwrap();
                let replay = |output: &mut Output| {
                    output.reset(&handle);
                    handle.launch(&graph).unwrap();
                    output.read(&handle, "replay")
                };
                assert!(replay(&mut output) == want && replay(&mut output) == want, "{}", own.explain());
                given.rewrite(&handle, &tiled(&mut rng, m, 656), 0.5);
                let follows = execute(&handle, &mut own, &given, &extras, &case);
                assert!(follows != want && replay(&mut output) == follows, "{}", own.explain());
                assert_eq!(handle.scratch_bytes(), held);
            }
        }
    }
}

#[test]
fn planned_by_the_handle_tuned_and_recorded() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(175);
    let (x, weights) = (tiled(&mut rng, 16, 1024), quantized(&tiled(&mut rng, 512, 1024), BLOCKS.1));
    let given = Quantizing::new(&handle, (&x, DType::Bf16, 0), recipe(BLOCKS.0), None, weights);
    let case = Case::new(DType::Bf16);
    if offered(&handle, &case.desc(&given)).is_empty() {
        return;
    }
    let extras = Extras::new(&handle, &mut rng, 16, 512, &[]);
    let mut output = Output::new(&handle, &given, &extras, &case);
    let desc = output.args(&given, &extras, &case).desc().unwrap();
    assert_eq!(desc, case.desc(&given));
    let mut planned = handle.plan(&desc).unwrap();
    let want = execute(&handle, &mut planned, &given, &extras, &case);
    handle.clear_plans();
    for _ in 0..2 {
        handle.scaled_gemm(output.args(&given, &extras, &case)).unwrap();
        assert!(output.read(&handle, "scaled_gemm") == want);
    }
    assert_eq!(handle.cached_plans(), 1);
    let options = TuneOptions::default().with_repetitions(2).with_candidates(2);
    let report = {
        let args = output.args(&given, &extras, &case);
        // The operands live to the end of this test.
        planned.autotune(&handle, args, &options).unwrap()
    };
    let wrong = report.trials.iter().find(|t| !matches!(t.verdict, scaled_gemm::Verdict::Timed(_)));
    assert!(wrong.is_none(), "{wrong:?}");
    let text = report.record.to_json().unwrap();
    assert!(text.contains("\"quantize_a\": \"bf16, torchao, exact scales\""), "{text}");
    let record = TuneRecord::from_json(&text).unwrap();
    let again = handle.plan_with(&desc, &PlanOptions::default().with_record(record.clone())).unwrap();
    assert!(again.explain().contains("A quantized in each call"), "{}", again.explain());
    // For another recipe, and for an A that is quantized before, it is no record.
    let deepseek = QuantizeA::new(DType::Bf16, recipe(BLOCKS.0).with_rule(Fp8Rule::DeepSeek));
    for (other, words) in [
        (desc.with_quantize_a(deepseek), "quantize_a is bf16, torchao, exact scales in the record and bf16, deepseek"),
        (case.desc(&given.ops), "quantize_a is bf16, torchao, exact scales in the record and none here"),
    ] {
        refused(handle.plan_with(&other, &PlanOptions::default().with_record(record.clone())), &[words]);
    }
}

#[test]
fn what_cannot_be_is_refused_with_a_remedy() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(176);
    let weights = QuantMatrix::from_host(&handle, &quantized(&tiled(&mut rng, 64, 256), BLOCKS.1)).unwrap();
    let tensor =
        QuantMatrix::from_host(&handle, &quantized(&tiled(&mut rng, 64, 256), Scheme::Fp8Tensor(E4M3))).unwrap();
    let memory = upload(&handle, &vec![0u8; 1 << 16]);
    let call = |dtype: DType, recipe: Fp8Recipe, b: &QuantMatrix, stride: usize| {
        let mut d = handle.alloc(3 * 64 * 2).unwrap();
        let a = MatRef::new(&memory, dtype, 3, 256).unwrap().with_row_stride(stride).unwrap();
        handle.scaled_gemm(GemmArgs::quantize_a(a, recipe, b, MatMut::new(&mut d, DType::Bf16, 3, 64).unwrap()))
    };
    let (vector, row) = (recipe(BLOCKS.0), recipe(Scheme::Fp8Row(E4M3)));
    refused(call(DType::E4M3, vector, &weights, 256), &["A", "e4m3", "cannot be quantized", "bf16, f16 or f32"]);
    refused(call(DType::Bf16, row, &weights, 256), &["fp8-row:e4m3 x fp8-128x128:e4m3", "fp8-1x128"]);
    refused(
        call(DType::Bf16, vector, &weights, 260),
        &["A", "row stride 260", "multiple of 16 bytes", "multiple of 8"],
    );
    let e5m2 = Fp8Recipe { format: Fp8Format::E5M2, ..vector.with_rule(Fp8Rule::DeepGemm) };
    refused(call(DType::Bf16, e5m2, &weights, 256), &["the rule deepgemm with e5m2"]);
    // Scales that are given.
    let given = |scale: GivenScale<DeviceBytes<'_>>, b: &QuantMatrix| {
        let mut d = handle.alloc(3 * 64 * 2).unwrap();
        let a = MatRef::new(&memory, DType::Bf16, 3, 256).unwrap();
        let d = MatMut::new(&mut d, DType::Bf16, 3, 64).unwrap();
        handle.scaled_gemm(GemmArgs::quantize_a_by(a, E4M3, scale, b, d))
    };
    let number = upload(&handle, &1f32.to_le_bytes());
    let number = || DeviceBytes::from(&number);
    refused(given(GivenScale::Amax(number()), &tensor), &["a given amax", "group_scale"]);
    refused(given(GivenScale::Encode(DeviceBytes::from(memory.slice(..3))), &tensor), &["scale of A", "3 bytes"]);
    refused(given(GivenScale::Encode(number()), &weights), &["fp8-tensor:e4m3 x fp8-128x128:e4m3"]);
    given(GivenScale::Encode(number()), &tensor).unwrap();
    let desc = GemmDesc::new(3, 64, 256, BLOCKS.0, BLOCKS.1, DType::Bf16);
    let mut many = QuantizeA::with_given_scale(DType::Bf16, E4M3);
    many.recipe = Fp8Recipe::new(Fp8Granularity::Group1x128, E4M3);
    refused(handle.plan(&desc.with_quantize_a(many)), &["a given scale", "fp8-1x128", "quantize A as fp8-tensor"]);
    let mut other = desc.with_quantize_a(QuantizeA::new(DType::Bf16, vector));
    other.a = Scheme::Fp8Row(E4M3).into();
    refused(handle.plan(&other), &["fp8-row:e4m3", "fp8-1x128:e4m3", "with_quantize_a"]);
    // D where A lies.
    let (address, _guard) = memory.device_ptr(handle.stream());
    // SAFETY: `memory` is alive to the end of this test, and nothing is enqueued: the call is refused.
    let (a, d) = unsafe {
        (DeviceBytes::from_raw(address, 3 * 512), scaled_gemm::DeviceBytesMut::from_raw(address + 1024, 3 * 128))
    };
    let a = MatRef::new(a, DType::Bf16, 3, 256).unwrap();
    let d = MatMut::new(d, DType::Bf16, 3, 64).unwrap();
    let error = refused(
        handle.scaled_gemm(GemmArgs::quantize_a(a, vector, &weights, d)),
        &["D", "must not overlap A", "memory of its own"],
    );
    assert!(matches!(error, Error::Shape { .. }));
    // Where only memory behind A's rows overlaps D.
    let (address, _guard) = memory.device_ptr(handle.stream());
    // SAFETY: `memory` is alive to the end of this test, which waits for the call.
    let (a, d) =
        unsafe { (DeviceBytes::from_raw(address, 1536), scaled_gemm::DeviceBytesMut::from_raw(address + 1024, 256)) };
    let a = MatRef::new(a, DType::Bf16, 2, 256).unwrap();
    let d = MatMut::new(d, DType::Bf16, 2, 64).unwrap();
    handle.scaled_gemm(GemmArgs::quantize_a(a, vector, &weights, d)).unwrap();
    handle.synchronize().unwrap();
}
