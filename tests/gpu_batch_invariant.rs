//! Batch-invariant products: a row of D has the same bits for every m, at any place and beside any rows, whatever the scales, the epilogue and the
//! configuration that is chosen for m; what cannot give that is refused; plans, records and autotuning of other products have no part in it.
#![cfg(feature = "cuda")]

mod common;
#[path = "gpu_batch_invariant/fused.rs"]
mod fused;
#[path = "common/sm90.rs"]
mod sm90;

use std::collections::BTreeSet;

use common::gemm::*;
use common::*;
use ndarray::Array2;
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::{
    Activation, DType, Finish, Formulation, Fp8Format, Fp8Granularity, Fp8Recipe, GemmArgs, GemmDesc, GemmPlan,
    GivenScale, Handle, HostQuantMatrix, MatMut, MatRef, Operand, PlanOptions, QuantMatrix, QuantizeA, Recipe, Scheme,
    Sm90Config, TuneOptions, TuneRecord, TuneTable, VecRef, Verdict,
};
use sm90::*;

const PAIRS: [(Scheme, Scheme); 4] = [(VEC, BLK), VECTOR_PAIR, ROW_PAIR, TENSOR_PAIR];

const MS: [usize; 22] =
    [1, 2, 3, 7, 8, 16, 31, 33, 64, 65, 127, 128, 129, 192, 256, 320, 513, 1000, 1024, 2048, 4097, 8192];

/// n, k and how many rows at the most: for these and the rows above the planner takes every configuration (132 multiprocessors).
const SHAPES: [(usize, usize, usize); 6] =
    [(16, 16, 8192), (576, 1040, 8192), (2112, 1168, 8192), (264, 4112, 8192), (1544, 2064, 8192), (18440, 144, 300)];

/// What all batches are taken from: rows of A, each with a row of a matrix that is its residual or its old D.
struct Whole {
    pair: (Scheme, Scheme),
    k: usize,
    codes: Vec<u8>,
    /// In logical order.
    scales: Vec<f32>,
    b: QuantMatrix,
    bias: Vec<f32>,
    beside: Array2<f32>,
}

/// A of one batch.
enum BatchA {
    Quantized(QuantMatrix),
    /// BF16, to be quantized in the call: by this recipe, or this scale.
    Quantize(CudaSlice<u8>, Fp8Recipe),
    QuantizeBy(CudaSlice<u8>, CudaSlice<f32>),
}

/// Rows of `each` elements.
fn gathered<T: Copy>(from: &[T], each: usize, rows: &[usize]) -> Vec<T> {
    let mut all = Vec::with_capacity(rows.len() * each);
    rows.iter().for_each(|row| all.extend_from_slice(&from[row * each..][..each]));
    all
}

impl Whole {
    fn new(handle: &Handle, rng: &mut Noise, [most, n, k]: [usize; 3], pair: (Scheme, Scheme)) -> Self {
        let a = quantized(&tiled(rng, most, k), pair.0);
        let b = QuantMatrix::from_host(handle, &quantized(&tiled(rng, n, k), pair.1)).unwrap();
        let bias = (0..n).map(|_| round_to(DType::Bf16, rng.normal())).collect();
        let beside = Array2::from_shape_simple_fn((most, n), || round_to(DType::Bf16, 4.0 * rng.normal()));
        Self { pair, k, codes: a.logical_codes().to_vec(), scales: a.logical_scales(), b, bias, beside }
    }

    /// These rows of A: their codes and scales, or the scale of all rows.
    fn rows(&self, rows: &[usize]) -> (Vec<u8>, Vec<f32>) {
        let each = self.scales.len() / self.beside.nrows();
        let scales = if each == 0 { self.scales.clone() } else { gathered(&self.scales, each, rows) };
        (gathered(&self.codes, self.k, rows), scales)
    }

    fn matrix(&self, handle: &Handle, m: usize, (codes, scales): (Vec<u8>, Vec<f32>)) -> BatchA {
        let host = HostQuantMatrix::from_logical(self.pair.0, m, self.k, codes, &scales).unwrap();
        BatchA::Quantized(QuantMatrix::from_host(handle, &host).unwrap())
    }

    /// D of the batch of these rows, packed, and its plan.
    fn product(&self, handle: &Handle, case: &Case, rows: &[usize]) -> (Vec<u8>, GemmPlan) {
        self.product_of(handle, case, rows, &self.matrix(handle, rows.len(), self.rows(rows)), true)
    }

    /// The same of this A.
    fn product_of(
        &self,
        handle: &Handle,
        case: &Case,
        rows: &[usize],
        a: &BatchA,
        batch_invariant: bool,
    ) -> (Vec<u8>, GemmPlan) {
        let (m, n, k) = (rows.len(), self.bias.len(), self.k);
        let beside = |dtype| upload(handle, &bytes_of(dtype, &gathered(self.beside.as_slice().unwrap(), n, rows)));
        let bias = case.bias.map(|dtype| (upload(handle, &bytes_of(dtype, &self.bias)), dtype));
        let residual = case.residual.map(|dtype| (beside(dtype), dtype));
        let encode = handle.stream().clone_htod(&[case.encode]).unwrap();
        let mut buffer =
            if case.beta.is_some() { beside(case.out) } else { poisoned(handle, m * n * case.out.bytes()) };
        let d = MatMut::new(&mut buffer, case.out, m, n).unwrap();
        let args = match a {
            BatchA::Quantized(a) => GemmArgs::new(a, &self.b, d),
            BatchA::Quantize(x, recipe) => {
                GemmArgs::quantize_a(MatRef::new(x, DType::Bf16, m, k).unwrap(), *recipe, &self.b, d)
            }
            BatchA::QuantizeBy(x, scale) => {
                let (x, scale) = (MatRef::new(x, DType::Bf16, m, k).unwrap(), GivenScale::Decode(scale.into()));
                GemmArgs::quantize_a_by(x, E4M3, scale, &self.b, d)
            }
        };
        let mut args = args.batch_invariant(batch_invariant).alpha(case.alpha).activation(case.activation);
        if let Some(beta) = case.beta {
            args = args.accumulate(beta);
        }
        if let Some((bias, dtype)) = &bias {
            args = args.bias(VecRef::new(bias, *dtype, n).unwrap());
        }
        if let Some((residual, dtype)) = &residual {
            args = args.residual(MatRef::new(residual, *dtype, m, n).unwrap());
        }
        if case.out == DType::E4M3 {
            args = args.out_encode(&encode);
        }
        let desc = args.desc().unwrap();
        assert_eq!(desc.batch_invariant, batch_invariant);
        let mut plan = match batch_invariant {
            true => handle.plan(&desc).unwrap(),
            false => plan(handle, &desc, Formulation::Sm90),
        };
        plan.execute(handle, args).unwrap();
        let bytes = handle.stream().clone_dtoh(&buffer).unwrap();
        handle.synchronize().unwrap();
        (bytes, plan)
    }
}

/// Panics with where the bytes of these rows are not as among all.
fn assert_rows(found: &[u8], all: &[u8], rows: &[usize], plan: &GemmPlan) {
    let each = found.len() / rows.len();
    let want = gathered(all, each, rows);
    if let Some(words) = difference(found, &want, each) {
        panic!("of {} rows {words}\n{}", rows.len(), plan.explain());
    }
}

/// Where bytes differ, in rows of `each`: which of them, and what stands there. That tells what failed: a tile, a box of B, a line of memory.
fn difference(found: &[u8], want: &[u8], each: usize) -> Option<String> {
    let at: Vec<usize> = (0..want.len()).filter(|i| found[*i] != want[*i]).collect();
    let first = *at.first()?;
    let places = |of: fn(usize, usize) -> usize| -> BTreeSet<usize> { at.iter().map(|i| of(*i, each)).collect() };
    let (rows, bytes) = (places(|i, each| i / each), places(|i, each| i % each));
    let ends =
        |all: &BTreeSet<usize>| format!("{} from {} to {}", all.len(), all.first().unwrap(), all.last().unwrap());
    let word = |of: &[u8]| of[first / 4 * 4..].iter().take(16).map(|byte| format!("{byte:02x}")).collect::<String>();
    Some(format!(
        "{} bytes differ, in rows {}, at bytes {} of {each}; found {}, wanted {}",
        at.len(),
        ends(&rows),
        ends(&bytes),
        word(found),
        word(want)
    ))
}

fn configuration(plan: &GemmPlan) -> Sm90Config {
    let words = plan.explain();
    let (_, rest) = words.split_once("algorithm: sm90 ").unwrap_or_else(|| panic!("no configuration in {words}"));
    rest.split_once(',').unwrap().0.parse().unwrap()
}

/// Neighbours from some row on, and rows from all over, in another order.
fn batches(m: usize, most: usize) -> [Vec<usize>; 2] {
    let start = (most - m) / 3;
    [(start..start + m).collect(), (0..m).map(|i| (i * 4099 + 5 * m) % most).collect()]
}

/// Sums alone, all that may follow them, an old D; E4M3 where it can be.
fn cases((a, b): (Scheme, Scheme), n: usize) -> Vec<Case> {
    let gelu = Case { bias: Some(DType::F32), activation: Activation::Gelu, alpha: -0.001, ..Case::new(DType::F16) };
    let added =
        Case { beta: Some(0.5), bias: Some(DType::Bf16), activation: Activation::Silu, ..Case::new(DType::F32) };
    let mut cases = vec![
        Case::new(DType::Bf16),
        Case { residual: Some(DType::F16), ..gelu },
        Case { residual: Some(DType::F32), ..added },
        // By the L2 cache.
        Case { beta: Some(1.0), alpha: -0.75, ..Case::new(DType::F32) },
    ];
    if (a, b) == VECTOR_PAIR {
        // The same by kernels that have no other end.
        cases.push(Case { beta: Some(1.0), ..Case::new(DType::F32) });
    }
    if is_tensor(a) && n.is_multiple_of(16) {
        let relu = Case { bias: Some(DType::Bf16), activation: Activation::Relu, ..Case::new(DType::E4M3) };
        cases.push(Case { residual: Some(DType::Bf16), encode: 0.25, ..relu });
    }
    cases
}

#[test]
fn a_row_has_the_same_bits_for_every_m() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(191);
    let (mut configurations, mut products) = (BTreeSet::new(), 0);
    for pair in PAIRS {
        for (n, k, most) in SHAPES {
            let of = Whole::new(&handle, &mut rng, [most, n, k], pair);
            for case in cases(pair, n) {
                let every: Vec<usize> = (0..most).collect();
                let (all, base) = of.product(&handle, &case, &every);
                // What gpu_sm90 and gpu_sm90_epilogue hold against the f64 bound.
                let matrix = of.matrix(&handle, most, of.rows(&every));
                let (unasked, _) = of.product_of(&handle, &case, &every, &matrix, false);
                assert_rows(&all, &unasked, &every, &base);
                for m in MS.into_iter().filter(|m| *m <= most) {
                    for rows in batches(m, most) {
                        let (found, plan) = of.product(&handle, &case, &rows);
                        assert_rows(&found, &all, &rows, &plan);
                        let finish = if case.out == DType::E4M3 { Finish::EpilogueKernel } else { Finish::Fused };
                        assert_eq!((plan.formulation(), plan.finish()), (Formulation::Sm90, finish));
                        configurations.insert(configuration(&plan));
                        products += 1;
                    }
                }
            }
        }
    }
    println!("{products} products, {configurations:?}");
    let least = if handle.device().sm_count == 132 { 6 } else { 3 };
    assert!(configurations.len() >= least, "{configurations:?}: of one configuration little is seen");
}

/// Many launches of one product, each with a plan, maps and memory of its own, and then many with the same: what a copy that is read too early would change once in thousands.
/// As many processes at once as the GPU has room for find more.
#[test]
#[ignore = "a minute, to look for a race"]
fn many_launches_give_the_same_bits() {
    let Some(handle) = hopper() else { return };
    let seconds = std::env::var("SCALED_GEMM_HUNT").map_or(20, |text| text.parse().unwrap());
    // Fewer blocks of k than a loop's body has, and bodies with a rest.
    // Of alpha 1 by kernels that have no other end.
    let added = |alpha| Case { beta: Some(1.0), alpha, ..Case::new(DType::F32) };
    for (k, alpha) in [(144, -0.75), (1168, 1.0)] {
        hunt(&handle, [300, 18440, k], VECTOR_PAIR, added(alpha), None, seconds / 4);
    }
    // The loop of plain products, whose blocks take several tiles.
    for config in [Sm90Config::Tile256x128, Sm90Config::Tile128x128] {
        hunt(&handle, [2150, 4360, 1168], (VEC, BLK), Case::new(DType::Bf16), Some(config), seconds / 4);
    }
}

/// In this configuration, or as chosen. Of rows of D that are added to, each element gets its sums in the order of launches.
fn hunt(
    handle: &Handle,
    [most, n, k]: [usize; 3],
    pair: (Scheme, Scheme),
    case: Case,
    config: Option<Sm90Config>,
    seconds: u64,
) {
    let row = n * case.out.bytes();
    let of = Whole::new(handle, &mut Noise::new(191), [most, n, k], pair);
    let every: Vec<usize> = (0..most).collect();
    handle.set_tuning(TuneTable::default());
    let (_, chosen) = of.product(handle, &case, &every);
    if let Some(config) = config {
        let mut table = TuneTable::default();
        table.insert(planned(handle, chosen.desc(), config).record().unwrap());
        handle.set_tuning(table);
    }
    let (want, plan) = of.product(handle, &case, &every);
    assert!(config.is_none_or(|config| configuration(&plan) == config), "{}", plan.explain());
    let (start, mut cold) = (std::time::Instant::now(), 0);
    let mut wrong = vec![];
    while start.elapsed().as_secs() < seconds {
        let (found, _) = of.product(handle, &case, &every);
        wrong.extend(difference(&found, &want, row).map(|words| format!("launch {cold}: {words}")));
        cold += 1;
    }
    let BatchA::Quantized(a) = of.matrix(handle, most, of.rows(&every)) else { unreachable!() };
    let old = bytes_of(case.out, of.beside.as_slice().unwrap());
    let (mut first, mut warm, mut plan_of_all) = (None, 0, None);
    while start.elapsed().as_secs() < 2 * seconds {
        let mut d = upload(handle, &old);
        for _ in 0..500 {
            let args = GemmArgs::new(&a, &of.b, MatMut::new(&mut d, case.out, most, n).unwrap());
            let args = args.batch_invariant(true).alpha(case.alpha);
            let args = if let Some(beta) = case.beta { args.accumulate(beta) } else { args };
            let plan = plan_of_all.get_or_insert_with(|| handle.plan(&args.desc().unwrap()).unwrap());
            plan.execute(handle, args).unwrap();
        }
        let found = handle.stream().clone_dtoh(&d).unwrap();
        handle.synchronize().unwrap();
        let want: &Vec<u8> = first.get_or_insert(found.clone());
        wrong.extend(difference(&found, want, row).map(|words| format!("launches {warm} to {}: {words}", warm + 500)));
        warm += 500;
    }
    println!("{cold} launches with maps of their own, {warm} others");
    assert!(wrong.is_empty(), "{}\n{}", wrong.join("\n"), plan.explain());
}

/// NaN in every other row of the batch, in codes and in scales of rows.
#[test]
fn what_stands_beside_a_row_does_not_touch_it() {
    let Some(handle) = hopper() else { return };
    let (mut rng, [most, n, k]) = (Noise::new(192), [300, 136, 400]);
    for pair in PAIRS {
        let of = Whole::new(&handle, &mut rng, [most, n, k], pair);
        let every: Vec<usize> = (0..most).collect();
        for case in cases(pair, n) {
            let (all, _) = of.product(&handle, &case, &every);
            for kept in [0, 63, 64, 129, 256, 299] {
                let (mut codes, mut scales) = of.rows(&every);
                let each = scales.len() / most;
                for row in (0..most).filter(|row| *row != kept) {
                    codes[row * k..][..k].fill(0x7F);
                    scales[row * each..][..each].fill(f32::NAN);
                }
                let a = of.matrix(&handle, most, (codes, scales));
                let (found, plan) = of.product_of(&handle, &case, &every, &a, true);
                let row = n * case.out.bytes();
                assert_rows(&found[kept * row..][..row], &all, &[kept], &plan);
                assert!(found != all, "the other rows are NaN");
            }
        }
    }
}

/// Rows that the call quantizes: each with its own scales, or all with a given one.
#[test]
fn a_row_that_is_quantized_in_the_call_has_the_same_bits() {
    let Some(handle) = hopper() else { return };
    let (mut rng, [most, n, k]) = (Noise::new(193), [1200, 520, 1168]);
    let x = tiled(&mut rng, most, k);
    let case = Case { bias: Some(DType::F32), activation: Activation::Silu, ..Case::new(DType::F32) };
    for (pair, granularity) in [
        ((VEC, BLK), Some(Fp8Granularity::Group1x128)),
        (VECTOR_PAIR, Some(Fp8Granularity::Group1x128)),
        (ROW_PAIR, Some(Fp8Granularity::Row)),
        (TENSOR_PAIR, None),
    ] {
        let of = Whole::new(&handle, &mut rng, [most, n, k], pair);
        let product = |rows: &[usize]| {
            let x = upload(&handle, &bytes_of(DType::Bf16, &gathered(x.as_slice().unwrap(), k, rows)));
            let a = match granularity {
                Some(granularity) => BatchA::Quantize(x, Fp8Recipe::new(granularity, E4M3)),
                None => BatchA::QuantizeBy(x, handle.stream().clone_htod(&[0.01f32]).unwrap()),
            };
            of.product_of(&handle, &case, rows, &a, true)
        };
        let (all, _) = product(&(0..most).collect::<Vec<_>>());
        for m in MS.into_iter().filter(|m| *m <= most) {
            for rows in batches(m, most) {
                let (found, plan) = product(&rows);
                assert_rows(&found, &all, &rows, &plan);
            }
        }
    }
}

/// The same problem, asked so and not, on one handle: two plans, and nothing of one in the other.
#[test]
fn other_plans_stay_as_they_are() {
    let (Some(fresh), Some(handle)) = (hopper(), hopper()) else { return };
    let mut rng = Noise::new(194);
    for (pair, m, way) in [
        ((VEC, BLK), 4, Formulation::SmallM),
        (ROW_PAIR, 2, Formulation::SmallM),
        (TENSOR_PAIR, 64, Formulation::Native),
    ] {
        let (n, k) = (2112, 1168);
        let of = Whole::new(&handle, &mut rng, [m, n, k], pair);
        let unasked = GemmDesc::new(m, n, k, pair.0, pair.1, DType::Bf16);
        let asked = unasked.with_batch_invariant(true);
        let words = fresh.plan(&unasked).unwrap().explain();
        handle.clear_plans();
        let BatchA::Quantized(a) = of.matrix(&handle, m, of.rows(&(0..m).collect::<Vec<_>>())) else {
            panic!("quantized")
        };
        let mut d = [0; 3].map(|_| poisoned(&handle, m * n * 2));
        for (i, batch_invariant) in [true, false, true].into_iter().enumerate() {
            let d = MatMut::new(&mut d[i], DType::Bf16, m, n).unwrap();
            handle.scaled_gemm(GemmArgs::new(&a, &of.b, d).batch_invariant(batch_invariant)).unwrap();
            assert_eq!(handle.cached_plans(), 1 + i.min(1), "{unasked}");
        }
        let [first, _, third] = d.map(|d| handle.stream().clone_dtoh(&d).unwrap());
        assert!(first == third, "{asked}: the plan of the other was taken");
        let plan = handle.plan(&unasked).unwrap();
        assert_eq!((plan.explain(), plan.formulation()), (words, way));
        let words = handle.plan(&asked).unwrap().explain();
        for said in [
            "batch-invariant on",
            "sm90, fused: the one way",
            "not taken: native: it is not batch-invariant",
            "not taken: small-m: it",
        ] {
            assert!(words.contains(said), "{said:?} is not in {words}");
        }
        let mut other = handle.plan(&unasked).unwrap();
        let mut d = poisoned(&handle, m * n * 2);
        let args = GemmArgs::new(&a, &of.b, MatMut::new(&mut d, DType::Bf16, m, n).unwrap()).batch_invariant(true);
        refused(other.execute(&handle, args), &["batch invariance = true where false was planned"]);
    }
}

/// Autotune has the configurations of sm90 to choose from, whose bits agree, and records are of one kind of product.
#[test]
fn autotune_and_records_keep_to_it() {
    let Some(handle) = hopper() else { return };
    let (mut rng, [m, n, k]) = (Noise::new(195), [64, 512, 1168]);
    for (pair, out) in [((VEC, BLK), DType::Bf16), (ROW_PAIR, DType::F32), (TENSOR_PAIR, DType::E4M3)] {
        let of = Whole::new(&handle, &mut rng, [m, n, k], pair);
        let rows: Vec<usize> = (0..m).collect();
        let (want, mut plan) = of.product(&handle, &Case::new(out), &rows);
        let asked = *plan.desc();
        let BatchA::Quantized(a) = of.matrix(&handle, m, of.rows(&rows)) else { panic!("quantized") };
        let mut d = poisoned(&handle, m * n * out.bytes());
        let one = handle.stream().clone_htod(&[1.0f32]).unwrap();
        let mut args = GemmArgs::new(&a, &of.b, MatMut::new(&mut d, out, m, n).unwrap()).batch_invariant(true);
        if out == DType::E4M3 {
            args = args.out_encode(&one);
        }
        let report =
            plan.autotune(&handle, args, &TuneOptions::default().with_candidates(16).with_repetitions(3)).unwrap();
        let mut all = serving(pair.0, pair.1, &Case::new(out));
        all.retain(|config| config.k_parts() == 1);
        assert_eq!(report.trials.len(), all.len());
        for trial in &report.trials {
            assert!(trial.formulation == Formulation::Sm90 && matches!(trial.verdict, Verdict::Timed(_)), "{trial}");
        }
        // Whichever it is.
        let unasked = asked.with_batch_invariant(false);
        for config in all {
            let mut table = TuneTable::default();
            table.insert(planned(&handle, &asked, config).record().unwrap());
            handle.set_tuning(table);
            let (found, tuned) = of.product(&handle, &Case::new(out), &rows);
            assert!(found == want && configuration(&tuned) == config, "{config}\n{}", tuned.explain());
            assert!(!handle.plan(&unasked).unwrap().explain().contains("a record says so"));
        }
        handle.set_tuning(TuneTable::default());

        let by =
            |desc: &GemmDesc, record: TuneRecord| handle.plan_with(desc, &PlanOptions::default().with_record(record));
        refused(by(&unasked, report.record.clone()), &["batch_invariant is true in the record and false here"]);
        let library = plan_of(&handle, &unasked, Formulation::Native);
        refused(by(&asked, library.clone()), &["batch_invariant is false in the record and true here"]);
        // Records that claim what their algorithm does not give.
        let forged = |record: &TuneRecord, from: &str, to: &str| {
            let text = record.to_json().unwrap();
            assert!(text.contains(from), "{from} is not in {text}");
            TuneRecord::from_json(&text.replacen(from, to, 1)).unwrap()
        };
        let claims =
            forged(&library, "\"out_amax\": \"ignore\"", "\"out_amax\": \"ignore\", \"batch_invariant\": true");
        refused(by(&asked, claims.clone()), &["native with cuBLASLt", "not batch-invariant", "measure again"]);
        let mut table = TuneTable::default();
        table.insert(claims);
        handle.set_tuning(table);
        let (found, passed_over) = of.product(&handle, &Case::new(out), &rows);
        assert!(found == want && passed_over.explain().contains("tuning record: native"), "{}", passed_over.explain());
        handle.set_tuning(TuneTable::default());
        let mut divided = report.record.to_json().unwrap();
        let (before, rest) = divided.split_once("\"sm90\": \"").unwrap();
        let (_, after) = rest.split_once('"').unwrap();
        divided = format!("{before}\"sm90\": \"64x64-k2\"{after}");
        refused(by(&asked, TuneRecord::from_json(&divided).unwrap()), &["sm90 has no such algorithm"]);
        if out != DType::E4M3 {
            let elsewhere = forged(&report.record, "\"finish\": \"fused\"", "\"finish\": \"epilogue-kernel\"");
            refused(by(&asked, elsewhere), &["stores D itself", "whatever m is"]);
        }
    }
}

fn plan_of(handle: &Handle, desc: &GemmDesc, formulation: Formulation) -> TuneRecord {
    plan(handle, desc, formulation).record().unwrap()
}

#[test]
fn what_is_not_batch_invariant_is_refused_with_the_reason() {
    let Some(handle) = handle() else { return };
    let asked = |m, a: Operand, b| GemmDesc::new(m, 512, 1024, a, b, DType::Bf16).with_batch_invariant(true);
    let remedy = "quantize both operands to FP8 in schemes that sm90 serves and multiply on an sm_90; or do not ask";
    // Weights that are decoded have such products (`gpu_small_m_passes`), in E4M3 and for k that is a multiple of 32.
    let ragged = |a: Operand, b| GemmDesc::new(7, 512, 1040, a, b, DType::Bf16).with_batch_invariant(true);
    let (plain, wide) = (Operand::Plain(DType::Bf16), Scheme::Mxfp8(Fp8Format::E5M2));
    for desc in [
        asked(7, plain, wide),
        asked(7, Scheme::Mxfp8(E4M3).into(), wide),
        ragged(Scheme::Nvfp4.into(), Scheme::Nvfp4),
        ragged(plain, Scheme::Nvfp4Row),
    ] {
        let (a, b) = (desc.a, desc.b);
        let (pair, problem) = (format!("{a} x {b}"), desc.to_string());
        let words = [&pair[..], &problem[..], "sm90: ", remedy];
        refused(handle.plan(&desc), &words);
        refused(handle.supports(&desc), &words);
    }
    let tensor = QuantizeA::new(DType::Bf16, Fp8Recipe::new(Fp8Granularity::Tensor, E4M3));
    let desc = asked(7, TENSOR_PAIR.0.into(), TENSOR_PAIR.1).with_quantize_a(tensor);
    refused(handle.plan(&desc), &["A of 7 rows", "fp8-tensor:e4m3", "found from other rows", "fp8-row or fp8-1x128"]);

    let rows = asked(7, ROW_PAIR.0.into(), ROW_PAIR.1);
    if handle.device().compute_capability != (9, 0) {
        refused(handle.plan(&rows), &["fp8-row:e4m3", "batch-invariant", remedy]);
        return;
    }
    for served in [rows, asked(7, BLK.into(), VEC)] {
        assert_eq!(handle.supports(&served).unwrap(), [Formulation::Sm90], "{served}");
    }
    let by = |way| handle.plan_with(&rows, &PlanOptions::default().with_formulation(way));
    for (way, why) in [
        (Formulation::Native, "chooses its algorithm for m = 7"),
        (Formulation::Rescaled, "chooses its algorithm for m = 7"),
        (Formulation::SmallM, "at most 32 rows of A, and the parts in which it sums k follow m"),
    ] {
        refused(by(way), &[way.name(), "batch-invariant", why, "leave the choice to plan"]);
    }
    assert_eq!(by(Formulation::Sm90).unwrap().formulation(), Formulation::Sm90);
    // Recipes of the schemes that are served are those that quantize rows apart.
    let Recipe::Fp8(recipe) = Recipe::new(ROW_PAIR.0) else { panic!("FP8") };
    assert!(handle.plan(&rows.with_quantize_a(QuantizeA::new(DType::F32, recipe))).is_ok());
}
