//! One captured graph of zeros between groups, casts of slots and one product a group, of pairs that have no launch of all groups: its launches find other counts, and given scales.

use scaled_gemm::GivenScale;

use super::*;

const SLOTS: usize = 4;
const ROWS: usize = 160;
const SHAPE: [usize; 2] = [80, 48];
/// Factors of dY and X of each slot: some numbers saturate, others are lost.
const FACTORS: [[f32; SLOTS]; 2] = [[3.7, 40.0, 0.5, 1.0], [1.5, 0.02, 6.0, 300.0]];

/// A step: what it reads, and what it writes.
struct Step {
    schemes: [Scheme; 2],
    given: bool,
    counts: DeviceBuffer,
    factors: [DeviceBuffer; 2],
    on: [DeviceBuffer; 2],
    turned: [Vec<QuantMatrix>; 2],
    dw: DeviceBuffer,
}

fn format_of(scheme: Scheme) -> Fp8Format {
    match scheme {
        Scheme::Fp8Tensor(format) => format,
        _ => panic!("{scheme} has no one scale"),
    }
}

impl Step {
    fn new(handle: &Handle, schemes: [Scheme; 2], given: bool) -> Self {
        Self {
            schemes,
            given,
            counts: handle.upload(&[0i64; SLOTS]).unwrap(),
            factors: FACTORS.map(|factors| handle.upload(&factors).unwrap()),
            on: SHAPE.map(|cols| handle.alloc(SLOTS * ROWS * cols * 2).unwrap()),
            turned: [0, 1].map(|i| (0..SLOTS).map(|_| poisoned_matrix(handle, schemes[i], SHAPE[i], ROWS)).collect()),
            dw: handle.alloc(SLOTS * SHAPE[0] * (SHAPE[1] + GAP) * 4).unwrap(),
        }
    }

    fn run(&mut self, handle: &Handle) -> Result<()> {
        let Self { schemes, given, counts, factors, on, turned, dw } = self;
        for (i, (on, into)) in on.iter_mut().zip(turned.iter_mut()).enumerate() {
            let places = GroupedRows::Masked { slot_rows: ROWS, counts: counts.view() };
            let mut rows = MatMut::new(&mut *on, DType::Bf16, SLOTS * ROWS, SHAPE[i])?;
            handle.clear_between_groups_at(32, &mut rows, SLOTS, &places, None)?;
            let x = MatRef::new(&*on, DType::Bf16, SLOTS * ROWS, SHAPE[i])?;
            if *given {
                let scales = GivenScale::Encode(factors[i].view());
                handle.quantize_slots_transposed_with_scales_into(&x, format_of(schemes[i]), &scales, into)?;
            } else {
                handle.quantize_slots_transposed_into(&x, Recipe::new(schemes[i]), into)?;
            }
        }
        let [dy_t, x_t] = turned;
        handle.grouped_weight_gradient(GroupedWeightGradient::new(dy_t, x_t, target_of(dw, SLOTS, SHAPE)))
    }
}

/// The transpose of one slot by itself.
fn cast_alone(handle: &Handle, x: &Array2<f32>, scheme: Scheme, factor: Option<f32>) -> QuantMatrix {
    let Some(factor) = factor else { return turned(handle, x, scheme) };
    let (rows, cols) = x.dim();
    let on = handle.upload(&bytes_of(DType::Bf16, x.t().iter())).unwrap();
    let number = handle.upload(&[factor]).unwrap();
    let mut q = QuantMatrix::zeros(handle, scheme, cols, rows).unwrap();
    let x = MatRef::new(&on, DType::Bf16, cols, rows).unwrap();
    handle.quantize_tensor_into(&x, format_of(scheme), &GivenScale::Encode(number.view()), &mut q, None).unwrap();
    q
}

/// Bits of each group's product alone, of its rows and zeros behind them.
#[test]
fn a_captured_graph_of_one_product_a_group_takes_any_counts() {
    let Some(handle) = handle() else { return };
    handle.load_kernels(&[KernelFamily::Grouped]).unwrap();
    let of = Experts::of_shape(103, SLOTS * ROWS, SLOTS, SHAPE);
    let [e4m3, e5m2] = [Fp8Format::E4M3, Fp8Format::E5M2];
    let [tensor, wide, row] = [Scheme::Fp8Tensor(e4m3), Scheme::Fp8Tensor(e5m2), Scheme::Fp8Row(e4m3)];
    for (schemes, given) in [
        ([tensor; 2], false),
        ([tensor; 2], true),
        ([wide, tensor], false),
        ([wide, tensor], true),
        ([row; 2], false),
        ([Scheme::Fp8Row(e5m2), row], false),
        ([Scheme::Nvfp4; 2], false),
        ([Scheme::Nvfp4Row; 2], false),
    ] {
        let what = format!("{} x {}, given scales {given}", schemes[0], schemes[1]);
        let desc = GemmDesc::new(SHAPE[0], SHAPE[1], ROWS, schemes[0], schemes[1], DType::F32);
        if handle.supports(&desc.with_accumulate(Accumulate::Add)).is_ok_and(|ways| ways.is_empty()) {
            println!("skipped: {what} on {}", handle.device());
            continue;
        }
        let mut step = Step::new(&handle, schemes, given);
        // Plans.
        step.run(&handle).unwrap();
        let graph = capture_owned(&handle, || step.run(&handle)).unwrap();
        for (launch, counts) in
            [[ROWS, 0, 33, 1], [0; SLOTS], [16, ROWS, 128, 77], [ROWS; SLOTS]].into_iter().enumerate()
        {
            let told = format!("{what}, counts {counts:?}");
            let taken: Vec<_> = counts.into_iter().enumerate().map(|(g, count)| (g * ROWS, count)).collect();
            for (on, all) in step.on.iter_mut().zip([&of.dy, &of.x]) {
                // Between groups lies anything.
                let mut all = all.clone();
                for (start, count) in &taken {
                    all.slice_mut(s![start + count..start + ROWS, ..]).fill(f32::NAN);
                }
                handle.write(&mut on.view_mut(), &bytes_of(DType::Bf16, all.iter())).unwrap();
            }
            let factors = FACTORS.map(|all| std::array::from_fn::<f32, SLOTS, _>(|g| all[(g + launch) % SLOTS]));
            for (on, factors) in step.factors.iter_mut().zip(&factors) {
                handle.write(&mut on.view_mut(), factors).unwrap();
            }
            handle.write(&mut step.counts.view_mut(), &counts.map(|count| count as i64)).unwrap();
            handle.write(&mut step.dw.view_mut(), &of.dw).unwrap();
            handle.launch(&graph).unwrap();
            let found = handle.read::<f32>(&step.dw.view()).unwrap();
            let cleared = of.cleared(&taken);
            let own = SHAPE[0] * (SHAPE[1] + GAP);
            for (g, (found, before)) in found.chunks(own).zip(of.dw.chunks(own)).enumerate() {
                let rows = s![g * ROWS..(g + 1) * ROWS, ..];
                let [dy_t, x_t] = [0, 1].map(|i| {
                    let slot = cleared[i].slice(rows).to_owned();
                    cast_alone(&handle, &slot, schemes[i], given.then_some(factors[i][g]))
                });
                let mut alone = handle.upload(before).unwrap();
                let args = GemmArgs::new(&dy_t, &x_t, target_of(&mut alone, 1, SHAPE)).accumulate(1.0);
                handle.scaled_gemm(args).unwrap();
                let want = handle.read::<f32>(&alone.view()).unwrap();
                assert!(found.iter().zip(&want).all(|(a, b)| a.to_bits() == b.to_bits()), "{told}, group {g}");
                // Of one row a given scale may leave nothing.
                assert!(counts[g] == 1 || (found != before) == (counts[g] > 0), "{told}, group {g}: added to");
            }
        }
    }
}
