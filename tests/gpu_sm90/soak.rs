//! A million products.

use super::*;

/// A product of one configuration with all that it needs.
enum Soaked {
    Whole {
        ops: Box<Operands>,
        extras: Box<Extras>,
        case: Case,
        plan: Box<scaled_gemm::GemmPlan>,
        output: Output,
        want: Vec<u8>,
    },
    Groups {
        of: Box<Groups>,
        counts: CudaSlice<i64>,
        config: Sm90Config,
        d: CudaSlice<u8>,
        want: Vec<u8>,
    },
}

const SLOT: usize = 68;
const COUNTS: [i64; 4] = [5, 0, 68, 33];

impl Soaked {
    fn whole(
        handle: &Handle,
        rng: &mut Noise,
        shape: [usize; 3],
        pair: (Scheme, Scheme),
        case: Case,
        config: Sm90Config,
    ) -> Self {
        let ops = Box::new(Operands::new(handle, rng, shape, pair));
        let extras = Box::new(Extras::new(handle, rng, shape[0], shape[1], &[case.gap]));
        let mut plan = planned(handle, &case.desc(&*ops), config);
        let want = execute(handle, &mut plan, &*ops, &extras, &case).bytes;
        let output = Output::new(handle, &*ops, &extras, &case);
        Self::Whole { ops, extras, case, plan: Box::new(plan), output, want }
    }

    fn groups(handle: &Handle, rng: &mut Noise, pair: (Scheme, Scheme), config: Sm90Config) -> Self {
        let m = SLOT * COUNTS.len();
        let of = Box::new(Groups::of(handle, rng, [m, 128, 1040], COUNTS.len(), DType::Bf16, pair));
        let places: Vec<_> = COUNTS.iter().enumerate().map(|(g, count)| ((g * SLOT) as i64, *count)).collect();
        let want = of.want(handle, 1.0, &places);
        let d = poisoned(handle, m * 128 * 2 + 1024);
        Self::Groups { counts: numbers(handle, &COUNTS), of, config, d, want }
    }

    fn enqueue(&mut self, handle: &Handle) {
        match self {
            Self::Whole { ops, extras, case, plan, output, .. } => {
                plan.execute(handle, output.args(&**ops, extras, case)).unwrap();
            }
            Self::Groups { of, counts, config, d, .. } => {
                let rows = GroupedRows::Masked { slot_rows: SLOT, counts: (&*counts).into() };
                of.enqueue(handle, COUNTS.len(), rows, d, 0, |args| args.config(*config)).unwrap();
            }
        }
    }

    /// One more call, into a D that holds nothing of the ones before it.
    fn check(&mut self, handle: &Handle, words: &str) {
        match self {
            Self::Whole { output, .. } => output.reset(handle),
            Self::Groups { d, .. } => handle.stream().memcpy_htod(&vec![0xFFu8; d.len()], d).unwrap(),
        }
        self.enqueue(handle);
        match self {
            Self::Whole { output, plan, want, .. } => {
                assert!(output.read(handle, words).bytes == *want, "{words}\n{}", plan.explain());
            }
            Self::Groups { of, d, config, want, .. } => {
                let found = rows_of_d(handle, d, of.x.nrows(), 2 * of.n, 0);
                assert!(found == *want, "{words}: groups in {config}");
            }
        }
    }
}

/// A million calls of small products, of every kind of scales in every configuration, whole and of groups, one behind the other without a wait: the bits of every thousandth call
/// are those of the first.
#[test]
#[ignore = "a million calls: a quarter of a minute on a GPU of its own"]
fn a_million_calls() {
    const CALLS: usize = 1_000_000;
    const EACH: usize = 1000;
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(160);
    let mut all = Vec::new();
    for (i, config) in Sm90Config::ALL.into_iter().enumerate() {
        for (j, pair) in [(VEC, BLK), VECTOR_PAIR, ROW_PAIR, TENSOR_PAIR, BLOCK_A_PAIR].into_iter().enumerate() {
            let shape = [[131, 136, 1168], [64, 264, 1040], [1, 8, 16], [257, 128, 144]][(i + j) % 4];
            let added = Case { beta: Some(1.0), alpha: -0.75, gap: 4, ..Case::new(DType::F32) };
            let plain = Case { gap: 8, ..Case::new(DType::Bf16) };
            let case = [plain, layer(), Case::new(DType::F16), added][(i + 2 * j) % 4];
            let case = if config.ends_plainly() { plain } else { case };
            if !serving(pair.0, pair.1, &case).contains(&config) {
                continue;
            }
            all.push(Soaked::whole(&handle, &mut rng, shape, pair, case, config));
            if of_groups().contains(&config) && ![VECTOR_PAIR, BLOCK_A_PAIR].contains(&pair) {
                all.push(Soaked::groups(&handle, &mut rng, pair, config));
            }
        }
    }
    let mut compared = vec![0; all.len()];
    let count = all.len();
    for call in 0..CALLS / EACH {
        // All products in turns, from another one on in each thousand, and in the end one of them in turn.
        for i in 0..EACH - 1 {
            all[(call * 31 + i) % count].enqueue(&handle);
        }
        let last = call % count;
        all[last].check(&handle, &format!("call {}", (call + 1) * EACH));
        compared[last] += 1;
    }
    let least = *compared.iter().min().unwrap();
    println!("{CALLS} calls of {count} products, of each of which at least {least} results were compared");
    assert!(least > 0, "{compared:?}");
}
