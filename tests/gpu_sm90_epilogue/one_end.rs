//! Kernels that have one end alone, by what it is: D of BF16 as the sums are, with scales of rows and matrices; D of FP32, as they are or added to D, with 1x128 scales on both
//! sides. (Those of 1x128 x 128x128: `gpu_sm90`.) What decides is alpha 1 and no bias, activation and residual; with 1x128 x 128x128 in the largest tiles also eight k-blocks.

use super::*;

/// Of BF16, rows apart.
fn plain() -> Case {
    Case { gap: 8, ..Case::new(DType::Bf16) }
}

/// Of FP32, rows apart: stored, by either word for that, and added to D.
fn wide() -> [Case; 3] {
    [None, Some(0.0), Some(1.0)].map(|beta| Case { beta, gap: 4, ..Case::new(DType::F32) })
}

/// One k-block and less, whole loops' bodies and what is left of them, and more stages than any ring has; m and n that cut tiles, of which there are several along both.
const SHAPES: [[usize; 3]; 6] =
    [[1, 8, 16], [65, 120, 128], [131, 136, 912], [259, 200, 1024], [300, 584, 1168], [259, 392, 2064]];

/// More tiles than blocks, whose last ones have no rows or columns for some warpgroups.
fn many_tiles(handle: &Handle) -> [usize; 3] {
    let [m, n, k] = [2150, 2312, 1168usize];
    let pairs = usize::div_ceil(m, 256) * usize::div_ceil(n, 256);
    assert!(pairs > handle.device().sm_count as usize / 2, "{pairs} pairs of the largest tiles");
    [m, n, k]
}

/// Whatever precision of sums is asked for: those of this product are FP32 from one k-block to the next.
#[test]
fn rows_and_matrices_into_bf16_alone() {
    let Some(handle) = hopper() else { return };
    let (mut rng, mut worst) = (Noise::new(301), 0f64);
    for pair in [ROW_PAIR, TENSOR_PAIR] {
        for (i, shape) in SHAPES.into_iter().chain([many_tiles(&handle)]).enumerate() {
            let accumulation = [Accumulation::Fast, Accumulation::Precise][i % 2];
            worst = worst.max(check(&handle, &mut rng, shape, pair, Case { accumulation, ..plain() }));
        }
    }
    println!("largest error {worst:.3} of its tolerance");
}

#[test]
fn vectors_into_fp32_alone() {
    let Some(handle) = hopper() else { return };
    let (mut rng, mut worst) = (Noise::new(302), 0f64);
    for shape in SHAPES.into_iter().chain([many_tiles(&handle)]) {
        let ops = Operands::new(&handle, &mut rng, shape, VECTOR_PAIR);
        let extras = Extras::new(&handle, &mut rng, shape[0], shape[1], &[]);
        for case in wide() {
            worst = worst.max(check_operands(&handle, &ops, &extras, case));
        }
    }
    println!("largest error {worst:.3} of its tolerance");
}

/// Loops whose body goes round the ring of stages whole times: tiles of whole rounds, of which each begins at the first stage, by rings of five, four, six, eight and twelve; and of what leaves the next tile in the middle of a ring.
#[test]
fn bodies_that_go_round_their_rings() {
    let Some(handle) = hopper() else { return };
    let (mut rng, mut worst) = (Noise::new(306), 0f64);
    let [m, n] = [1500, 2312];
    assert!(
        usize::div_ceil(m, 128) * usize::div_ceil(n, 192) > handle.device().sm_count as usize,
        "several tiles a block"
    );
    for k in [640, 1536, 1920, 3072] {
        for (pair, cases) in [(ROW_PAIR, vec![plain(), wide()[0]]), (VECTOR_PAIR, vec![plain(), wide()[0], wide()[2]])]
        {
            let ops = Operands::new(&handle, &mut rng, [m, n, k], pair);
            let extras = Extras::new(&handle, &mut rng, m, n, &[]);
            for case in cases {
                worst = worst.max(check_operands(&handle, &ops, &extras, case));
            }
        }
    }
    println!("largest error {worst:.3} of its tolerance");
}

/// Bit for bit: the sums of a kernel with one end are those of the kernel with all ends in the same configuration, rounded once more where that stores BF16, and what is added to D is
/// one addition.
#[test]
fn bits_are_those_of_kernels_with_all_ends() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(303);
    let [stored, never_read, added] = wide();
    for pair in [(VEC, BLK), ROW_PAIR, TENSOR_PAIR, VECTOR_PAIR] {
        for shape in SHAPES {
            let ops = Operands::new(&handle, &mut rng, shape, pair);
            let extras = Extras::new(&handle, &mut rng, shape[0], shape[1], &[]);
            for config in of_whole(pair.0, pair.1) {
                let run = |case: Case| {
                    execute(&handle, &mut planned(&handle, &case.desc(&ops), config), &ops, &extras, &case)
                };
                // Of vectors of scales on both sides the first is that of one end, of others the second.
                let (sums, rounded) = (run(stored), run(plain()));
                let sums_of = sums.values(&ops, &stored);
                assert!(sums_of.iter().any(|v| *v != 0.0), "{config}, {pair:?}, {shape:?}");
                assert!(bytes_of(DType::Bf16, &sums_of) == rounded.bytes, "{config}, {pair:?}, {shape:?}");
                if pair != VECTOR_PAIR {
                    continue;
                }
                assert!(run(never_read) == sums, "{config}, beta 0, {shape:?}");
                let want = &sums_of + &extras.old;
                assert!(bytes_of(DType::F32, &want) == run(added).bytes, "{config}, added to D, {shape:?}");
            }
        }
    }
}

/// In every configuration: the bits of operands apart, and nothing but D is written.
#[test]
fn operands_between_guards_of_one_end() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(304);
    let [stored, _, added] = wide();
    for (pair, cases) in [(ROW_PAIR, vec![plain()]), (TENSOR_PAIR, vec![plain()]), (VECTOR_PAIR, vec![stored, added])] {
        for [m, n, k] in SHAPES {
            let ops = Operands::new(&handle, &mut rng, [m, n, k], pair);
            let extras = Extras::new(&handle, &mut rng, m, n, &[]);
            for (case, config) in
                cases.iter().flat_map(|case| of_whole(pair.0, pair.1).into_iter().map(move |c| (case, c)))
            {
                check_guarded(&handle, &mut planned(&handle, &case.desc(&ops), config), &ops, &extras, case);
            }
        }
    }
}

/// A captured product gives the eager bits, follows A, and adds to what D holds by then.
#[test]
fn graphs_of_one_end() {
    let Some(handle) = hopper() else { return };
    let mut rng = Noise::new(305);
    let (m, n, k) = (300, 520, 1168);
    let [stored, _, added] = wide();
    for (pair, case) in [(ROW_PAIR, plain()), (TENSOR_PAIR, plain()), (VECTOR_PAIR, stored), (VECTOR_PAIR, added)] {
        for config in of_whole(pair.0, pair.1) {
            check_graph(&handle, &mut rng, [m, n, k], pair, case, config);
        }
    }
}
