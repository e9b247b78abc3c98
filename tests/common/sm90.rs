//! What the suites of our product for sm_90 share: plans in a configuration, and checks of all of them.
#![allow(dead_code)]

use scaled_gemm::reference::Gelu;
use scaled_gemm::{
    Accumulation, Activation, DType, Finish, Formulation, Fp8Format, GemmDesc, GemmPlan, Handle, HostQuantMatrix,
    KernelFamily, PlanOptions, Scheme, Sm90Config, TuneRecord,
};

use crate::common::gemm::*;
use crate::common::*;

pub const E4M3: Fp8Format = Fp8Format::E4M3;
pub const VEC: Scheme = Scheme::Fp8Group1x128(E4M3);
pub const BLK: Scheme = Scheme::Fp8Group128x128(E4M3);
/// 1x128 x 1x128.
pub const VECTOR_PAIR: (Scheme, Scheme) = (VEC, VEC);
/// 128x128 x 1x128.
pub const BLOCK_A_PAIR: (Scheme, Scheme) = (BLK, VEC);
pub const ROW_PAIR: (Scheme, Scheme) = (Scheme::Fp8Row(E4M3), Scheme::Fp8Row(E4M3));
pub const TENSOR_PAIR: (Scheme, Scheme) = (Scheme::Fp8Tensor(E4M3), Scheme::Fp8Tensor(E4M3));

/// A long k, and many rows, at the edges of tiles: with the lists of the suites every m, n and k that the issue names.
pub const LONG_OR_TALL: [[usize; 3]; 13] = [
    [1, 136, 8192],
    [63, 120, 8192],
    [65, 8, 8192],
    [127, 136, 8192],
    [129, 120, 8192],
    [129, 8, 8192],
    [4097, 8, 8192],
    [4097, 8, 16],
    [4097, 120, 112],
    [4097, 136, 128],
    [4097, 120, 144],
    [4097, 136, 144],
    [4097, 136, 16],
];

/// A handle on an sm_90.
pub fn hopper() -> Option<Handle> {
    handle_with(KernelFamily::Sm90)
}

/// A plan in this configuration, by way of a record.
pub fn planned(handle: &Handle, desc: &GemmDesc, config: Sm90Config) -> GemmPlan {
    let text = plan(handle, desc, Formulation::Sm90).record().unwrap().to_json().unwrap();
    let (before, rest) = text.split_once("\"sm90\": \"").unwrap_or_else(|| panic!("no configuration in {text}"));
    let (_, after) = rest.split_once('"').unwrap();
    let record = TuneRecord::from_json(&format!("{before}\"sm90\": \"{config}\"{after}")).unwrap();
    let plan = handle.plan_with(desc, &PlanOptions::default().with_record(record)).unwrap();
    assert!(plan.explain().contains(&format!("algorithm: sm90 {config}, ")), "{}", plan.explain());
    plan
}

/// Those that have kernels for groups.
pub fn of_groups() -> Vec<Sm90Config> {
    Sm90Config::ALL.into_iter().filter(|config| config.k_parts() == 1 && !config.ends_plainly()).collect()
}

/// Those with kernels of every kind: for E5M2 codes on one side, for 128x128 scales of A, and for groups of rows with 1x128 scales on both.
pub const COMMON: [Sm90Config; 4] =
    [Sm90Config::Tile256x128, Sm90Config::Tile128x128, Sm90Config::Tile64x128, Sm90Config::Tile64x64Two];

/// Those that have kernels for whole products of these operands, whatever follows the sums.
pub fn of_whole(a: Scheme, b: Scheme) -> Vec<Sm90Config> {
    let all = if (a, b) == BLOCK_A_PAIR || has_e5m2((a, b)) { &COMMON[..] } else { &Sm90Config::ALL };
    all.iter().copied().filter(|config| !config.ends_plainly()).collect()
}

/// Those, and where D is BF16 and nothing follows the sums, but for alpha, those that have no other end.
pub fn serving(a: Scheme, b: Scheme, case: &Case) -> Vec<Sm90Config> {
    let follows = case.beta.is_some() || case.bias.is_some() || case.residual.is_some();
    let plain = !follows && case.activation == Activation::None && case.out == DType::Bf16;
    if plain && (a, b) == (VEC, BLK) { Sm90Config::ALL.to_vec() } else { of_whole(a, b) }
}

/// Those that have kernels for groups of rows of these operands.
pub fn of_groups_with(pair: (Scheme, Scheme)) -> Vec<Sm90Config> {
    if pair == VECTOR_PAIR || has_e5m2(pair) { COMMON.to_vec() } else { of_groups() }
}

fn has_e5m2((a, b): (Scheme, Scheme)) -> bool {
    [a, b].iter().any(|scheme| scheme.to_string().contains("e5m2"))
}

/// Rows of a quantized matrix as one of their own.
pub fn rows_of(of: &HostQuantMatrix, rows: std::ops::Range<usize>) -> HostQuantMatrix {
    let (k, scales) = (of.cols(), of.logical_scales());
    let groups = of.scheme().spec().group_rows.size(of.rows());
    let each = scales.len() / of.rows().div_ceil(groups);
    // One scale of all rows is that of any of them.
    let scales = &scales[rows.start / groups * each..rows.end.div_ceil(groups) * each];
    HostQuantMatrix::from_logical(
        of.scheme(),
        rows.len(),
        k,
        of.logical_codes()[rows.start * k..rows.end * k].to_vec(),
        scales,
    )
    .unwrap()
}

/// Every configuration gives D within the bound, and all that divide k alike the same bits.
pub fn check(handle: &Handle, rng: &mut Noise, shape: [usize; 3], pair: (Scheme, Scheme), case: Case) -> f64 {
    let ops = Operands::new(handle, rng, shape, pair);
    let extras = Extras::new(handle, rng, shape[0], shape[1], &[case.gap]);
    check_operands(handle, &ops, &extras, case)
}

pub fn check_operands(handle: &Handle, ops: &Operands, extras: &Extras, case: Case) -> f64 {
    let desc = case.desc(ops);
    let bound = ops.sums(Accumulation::Precise).with(&extras.inputs(ops, &case), Gelu::Ieee).unwrap();
    let mut firsts = std::collections::HashMap::new();
    let mut worst = 0f64;
    for config in serving(ops.host_a.scheme(), ops.host_b.scheme(), &case) {
        let mut plan = planned(handle, &desc, config);
        assert_eq!(plan.finish(), Finish::Fused, "{}", plan.explain());
        let stored = execute(handle, &mut plan, ops, extras, &case);
        let found = bound.check(stored.values(ops, &case).view());
        worst = worst.max(found.unwrap_or_else(|e| panic!("{e}; alpha {}\n{}", case.alpha, plan.explain())));
        let again = execute(handle, &mut plan, ops, extras, &case);
        assert!(again == stored, "a second run differs\n{}", plan.explain());
        let (name, first) = firsts.entry(config.k_parts()).or_insert_with(|| (config, stored.clone()));
        assert!(*first == stored, "{config} differs from {name}\n{}", plan.explain());
    }
    worst
}
