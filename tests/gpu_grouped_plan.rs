//! Plans of products of groups: by each way the first call is that of a capture, on a handle that has multiplied nothing before, and has the bits of `Handle::grouped_gemm`, also with
//! other counts at each launch; another problem is refused by what differs, and then nothing is written.
#![cfg(feature = "cuda")]

mod common;

use common::gemm::refused;
use common::*;
use scaled_gemm::{
    Activation, CodeOrder, DType, DeviceBuffer, Fp8Format, GemmDesc, GroupedDeviceLayout, GroupedGemmArgs,
    GroupedGemmDesc, GroupedLayout, GroupedMatrix, GroupedRecipe, GroupedRows, GroupedScheme, GroupedSource,
    GroupedTensor, Handle, KernelFamily, MatMut, MatRef, Operand, QuantMatrix, Recipe, Result, Scheme, Sm90Config,
    VecRef,
};

const E4M3: Fp8Format = Fp8Format::E4M3;
const GROUPS: usize = 4;
/// Rows that a group has at the most.
const ROOM: usize = 128;
const N: usize = 256;
const K: usize = 512;
const ALPHA: f32 = 0.5;

/// One way to multiply groups, what is said of it, and what a call without a plan is refused for in a capture; `None` where that depends on kernels that other tests load.
struct Way {
    desc: GroupedGemmDesc,
    says: &'static str,
    first: Option<&'static str>,
}

fn slots(slot_rows: usize, a: impl Into<Operand>, b: Scheme) -> GroupedGemmDesc {
    GroupedGemmDesc::slots(GROUPS, slot_rows, N, K, a, b, DType::Bf16)
}

/// One product a slot, with all that there may be besides. Every GPU has it.
fn in_slots() -> GroupedGemmDesc {
    slots(ROOM, Scheme::Nvfp4, Scheme::Nvfp4)
        .with_product_a_slot(true)
        .with_streams(3)
        .with_scales_of_groups([true; 2])
        .with_bias(DType::Bf16)
        .with_activation(Activation::Silu)
        .with_clamped(true)
}

/// Those of this GPU. What an earlier one loads stays in the process: so those come first whose kernels others share.
fn ways(handle: &Handle) -> Vec<Way> {
    let (vectors, tiles, rows) = (Scheme::Fp8Group1x128(E4M3), Scheme::Fp8Group128x128(E4M3), Scheme::Fp8Row(E4M3));
    let mut ways = Vec::new();
    if KernelFamily::Sm90.runs_on(handle.device().compute_capability) {
        let launch = GroupedGemmDesc::contiguous(GROUPS, GROUPS * ROOM + 40, N, K, vectors, tiles, DType::Bf16);
        let launch = launch.with_bias(DType::F32).with_activation(Activation::Gelu).with_clamped(true);
        let plain = Operand::Plain(DType::Bf16);
        let few = GroupedGemmDesc::slots(GROUPS, 16, N, K, plain, Scheme::Nvfp4, DType::F32);
        let dequantized = slots(ROOM, Scheme::Mxfp8(E4M3), Scheme::Mxfp8(E4M3)).with_clamped(true);
        ways.extend([
            Way { desc: launch, says: "because our kernels for sm_90 serve this pair", first: None },
            Way {
                desc: few.with_scales_of_groups([false, true]).with_expected_rows(5),
                says: "one launch of small-m",
                first: None,
            },
            Way {
                desc: dequantized,
                says: "behind a launch that dequantizes all of A to bf16",
                first: Some("reserving scratch memory"),
            },
        ]);
    }
    let first = Some("the first product of a problem");
    for desc in [in_slots(), in_slots().with_b_order(CodeOrder::Repacked)] {
        ways.push(Way { desc, says: "one product a slot, 4 of them in turns on 3 streams", first });
    }
    if handle.supports(&GemmDesc::new(ROOM, N, K, rows, rows, DType::Bf16)).is_ok_and(|ways| !ways.is_empty()) {
        let desc = slots(ROOM, rows, rows).with_product_a_slot(true).with_streams(2).with_out_stride(N + 8);
        ways.push(Way { desc, says: "one product a slot, 4 of them in turns on two streams", first });
    }
    let tensor = Scheme::Fp8Tensor(E4M3);
    let library = GroupedGemmDesc::contiguous(GROUPS, GROUPS * ROOM + 40, N, K, tensor, tensor, DType::Bf16);
    let library = library.with_by_cublaslt(true).with_clamped(true).with_scales_of_groups([true, false]);
    if has_cublaslts_groups(handle) {
        ways.push(Way {
            desc: library,
            says: "cuBLASLt's own product of groups",
            first: Some("reserving scratch memory"),
        });
    }
    ways
}

/// The operands of a problem.
struct Experts {
    desc: GroupedGemmDesc,
    x: DeviceBuffer,
    a: Option<QuantMatrix>,
    b: QuantMatrix,
    bias: Option<DeviceBuffer>,
    scales: [DeviceBuffer; 2],
    starts: DeviceBuffer,
    counts: DeviceBuffer,
}

impl Experts {
    fn new(handle: &Handle, rng: &mut Noise, desc: GroupedGemmDesc) -> Self {
        let GroupedGemmDesc { groups, rows, n, k, .. } = desc;
        let mut numbers = |rows: usize| handle.upload(&rng.bf16(rows * k, 1.0)).unwrap();
        let (x, w) = (numbers(rows), numbers(groups * n));
        let quantized = |x: &DeviceBuffer, rows: usize, scheme: Scheme| {
            handle.quantize(&MatRef::new(x, DType::Bf16, rows, k).unwrap(), Recipe::new(scheme)).unwrap()
        };
        let (a, mut b) = (desc.a.scheme().map(|a| quantized(&x, rows, a)), quantized(&w, groups * n, desc.b));
        b.repack(handle, desc.b_order).unwrap();
        let bias: Vec<f32> = (0..groups * n).map(|j| (j % 61) as f32 * 0.25 - 7.0).collect();
        let bias = desc.bias.map(|dtype| handle.upload(&bytes_of(dtype, &bias)).unwrap());
        let scales = [0.25f32, 0.5].map(|one| {
            let all: Vec<f32> = (0..groups).map(|g| one * (g + 1) as f32).collect();
            handle.upload(&all).unwrap()
        });
        let starts: Vec<i64> = (0..groups).map(|g| (g * ROOM) as i64).collect();
        let (starts, counts) = (handle.upload(&starts).unwrap(), handle.upload(&vec![3i64; groups]).unwrap());
        handle.synchronize().unwrap();
        Self { desc, x, a, b, bias, scales, starts, counts }
    }

    /// D as nobody wrote it.
    fn d(&self, handle: &Handle) -> DeviceBuffer {
        handle.upload(&self.poison()).unwrap()
    }

    fn poison(&self) -> Vec<u8> {
        vec![0xFF; self.desc.rows * self.desc.out_stride * self.desc.out.bytes()]
    }

    /// All but the choices.
    fn args<'a>(&'a self, d: &'a mut DeviceBuffer, clamped: &'a mut DeviceBuffer) -> Result<GroupedGemmArgs<'a>> {
        let Self { desc, x, a, b, bias, scales, starts, counts } = self;
        let rows = match desc.slot_rows {
            Some(slot_rows) => GroupedRows::Masked { slot_rows, counts: counts.view() },
            None => GroupedRows::Contiguous { starts: starts.view(), counts: counts.view() },
        };
        let d = MatMut::new(d, desc.out, desc.rows, desc.n)?.with_row_stride(desc.out_stride)?;
        let args = match a {
            Some(a) => GroupedGemmArgs::new(a, b, desc.groups, rows, d),
            None => {
                let x = MatRef::new(x, DType::Bf16, desc.rows, desc.k)?;
                GroupedGemmArgs::weight_only(x, b, desc.groups, rows, d)
            }
        };
        let mut args = args.alpha(ALPHA).activation(desc.activation);
        if let Some((bias, dtype)) = bias.as_ref().zip(desc.bias) {
            args = args.bias(VecRef::new(bias, dtype, desc.groups * desc.n)?);
        }
        let [of_a, of_b] = desc.scales_of_groups;
        args = if of_a { args.scales_of_a(scales[0].view()) } else { args };
        args = if of_b { args.scales_of_b(scales[1].view()) } else { args };
        Ok(if desc.clamped { args.clamped(clamped.view_mut()) } else { args })
    }

    /// With them.
    fn asked<'a>(&'a self, d: &'a mut DeviceBuffer, clamped: &'a mut DeviceBuffer) -> Result<GroupedGemmArgs<'a>> {
        let (desc, args) = (&self.desc, self.args(d, clamped)?);
        let args = if desc.product_a_slot { args.product_a_slot() } else { args };
        let args = if desc.by_cublaslt { args.by_cublaslt() } else { args };
        let args = if let Some(rows) = desc.expected_rows { args.expected_rows(rows) } else { args };
        let args = if let Some(config) = desc.config { args.config(config) } else { args };
        Ok(if let Some(streams) = desc.streams { args.streams(streams) } else { args })
    }
}

/// Handles of a way of their own each, whose first product is captured.
#[test]
fn the_first_call_may_be_that_of_a_capture() {
    let Some(maker) = handle() else { return };
    let mut rng = Noise::new(401);
    let ways = ways(&maker);
    let hopper = KernelFamily::Sm90.runs_on(maker.device().compute_capability);
    let own = ways.iter().filter(|way| !way.desc.by_cublaslt).count();
    assert!(own == 6 || !hopper, "{own} ways");
    for Way { desc, says, first } in ways {
        let mut experts = Experts::new(&maker, &mut rng, desc);
        let (mut d, mut want_d) = (experts.d(&maker), experts.d(&maker));
        let [mut clamped, mut want_clamped] = [(); 2].map(|()| maker.upload(&[77u32]).unwrap());
        assert_eq!(experts.asked(&mut d, &mut clamped).unwrap().desc().unwrap(), desc);
        maker.synchronize().unwrap();

        let fresh = required(Handle::new(0)).unwrap();
        if let Some(words) = first {
            // Else the kernel that counts would be what is missing.
            maker.load_kernels(&[KernelFamily::Grouped]).unwrap();
            let unplanned = capture_owned(&fresh, || fresh.grouped_gemm(experts.asked(&mut d, &mut clamped)?));
            refused(unplanned.map(drop), &[words, "capture"]);
        }
        let mut plan = fresh.plan_grouped(&desc).unwrap();
        assert_eq!(*plan.desc(), desc);
        assert!(plan.explain().contains(says), "{says:?} is not in {}", plan.explain());
        let scratch = fresh.scratch_bytes();
        assert!(plan.scratch_bytes() <= scratch, "{} of {scratch} bytes: {}", plan.scratch_bytes(), plan.explain());
        // What is chosen is the plan's.
        let graph = capture_owned(&fresh, || plan.execute(&fresh, experts.args(&mut d, &mut clamped)?)).unwrap();
        let said = experts.asked(&mut d, &mut clamped).unwrap().explain(&fresh).unwrap();
        assert_eq!(plan.explain(), said);

        let mut results = Vec::new();
        for counts in [[3i64, 0, 16, 1], [0; GROUPS], [ROOM as i64, 5, -1, 4000], [16, 15, 14, 13]] {
            let what = format!("{desc}, counts {counts:?}");
            maker.write(&mut experts.counts.view_mut(), &counts).unwrap();
            maker.write(&mut want_d.view_mut(), &experts.poison()).unwrap();
            maker.grouped_gemm(experts.asked(&mut want_d, &mut want_clamped).unwrap()).unwrap();
            let want = maker.read_bytes(&want_d.view()).unwrap();
            let want_count: Vec<u32> = maker.read(&want_clamped.view()).unwrap();
            let check = |d: &DeviceBuffer, clamped: &DeviceBuffer, how: &str| {
                assert!(fresh.read_bytes(&d.view()).unwrap() == want, "{what}, {how}");
                assert_eq!(fresh.read::<u32>(&clamped.view()).unwrap(), want_count, "{what}, {how}");
            };
            for how in ["a graph", "a call", "a call with choices"] {
                fresh.write(&mut d.view_mut(), &experts.poison()).unwrap();
                fresh.write(&mut clamped.view_mut(), &[if desc.clamped { 99u32 } else { 77 }]).unwrap();
                match how {
                    "a graph" => fresh.launch(&graph).unwrap(),
                    "a call" => plan.execute(&fresh, experts.args(&mut d, &mut clamped).unwrap()).unwrap(),
                    _ => plan.execute(&fresh, experts.asked(&mut d, &mut clamped).unwrap()).unwrap(),
                }
                check(&d, &clamped, how);
            }
            assert_eq!(want_count, [if !desc.clamped { 77 } else { u32::from(counts[3] == 4000) * 2 }], "{what}");
            results.push(want);
        }
        // Slots are multiplied whole, other ways read counts.
        let (nothing, some) = (&results[1], &results[0]);
        assert!(some.iter().any(|byte| *byte != 0xFF), "{desc}: something is stored");
        match desc.product_a_slot {
            true => assert!(nothing == some, "{desc}: slots are multiplied whole"),
            false => assert!(nothing.iter().all(|byte| *byte == 0xFF), "{desc}: groups without rows"),
        }
        assert_eq!(fresh.scratch_bytes(), scratch, "{desc}: planned for the most rows");
        // A graph needs the plan no more.
        drop(plan);
        fresh.write(&mut d.view_mut(), &experts.poison()).unwrap();
        fresh.launch(&graph).unwrap();
        assert!(fresh.read_bytes(&d.view()).unwrap() == results[3], "{desc}: a graph without its plan");
    }
}

#[test]
fn another_problem_is_refused_by_what_differs() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(402);
    let planned = in_slots();
    let experts = Experts::new(&handle, &mut rng, planned);
    let mut clamped = handle.upload(&[77u32]).unwrap();
    let mut d = experts.d(&handle);
    handle.grouped_gemm(experts.asked(&mut d, &mut clamped).unwrap()).unwrap();
    let want = handle.read_bytes(&d.view()).unwrap();
    handle.write(&mut clamped.view_mut(), &[77u32]).unwrap();

    refused(
        capture_owned(&handle, || handle.plan_grouped(&planned).map(drop)).map(drop),
        &["planning a product of groups", "capture"],
    );
    let mut plan = handle.plan_grouped(&planned).unwrap();
    let rule = ["operands of groups: ", "must be as in GroupedGemmPlan::desc", "or call Handle::grouped_gemm"];
    let with = |change: fn(&mut GroupedGemmDesc)| {
        let mut other = planned;
        change(&mut other);
        other
    };
    for (other, found) in [
        (with(|it| (it.groups, it.rows) = (5, 5 * ROOM)), "groups = 5 where 4 was planned"),
        (with(|it| it.slot_rows = None), "place of groups = where the device says where in slots of 128 rows"),
        (with(|it| it.slot_rows = Some(64)), "place of groups = in slots of 64 rows where in slots of 128 rows"),
        (with(|it| it.rows += 128), "rows of A and D = 640 where 512 was planned"),
        (with(|it| (it.n, it.out_stride) = (128, 128)), "n = 128 where 256 was planned"),
        (with(|it| (it.k, it.a_stride) = (256, 256)), "k = 256 where 512 was planned"),
        (with(|it| it.a = Scheme::Nvfp4Row.into()), "A = nvfp4-row where nvfp4 was planned"),
        (with(|it| it.a = Operand::Plain(DType::Bf16)), "A = bf16 where nvfp4 was planned"),
        (with(|it| it.b = Scheme::Nvfp4Row), "scheme of B = nvfp4-row where nvfp4 was planned"),
        (planned.with_b_order(CodeOrder::Repacked), "order of the codes of B = repacked where published was planned"),
        (with(|it| it.out = DType::F32), "type of D = f32 where bf16 was planned"),
        (planned.with_out_stride(N + 8), "row stride of D = 264 where 256 was planned"),
        (with(|it| it.bias = None), "bias = None where Some(Bf16) was planned"),
        (planned.with_bias(DType::F32), "bias = Some(F32) where Some(Bf16) was planned"),
        (planned.with_activation(Activation::Relu), "activation = relu where silu was planned"),
        (
            planned.with_scales_of_groups([true, false]),
            "scales of the groups of A and of B = [true, false] where [true, true] was planned",
        ),
        (planned.with_clamped(false), "count of clamped groups = false where true was planned"),
        (planned.with_expected_rows(8), "expected rows = Some(8) where None was planned"),
        (planned.with_config(Sm90Config::Tile128x128), "configuration = Some(Tile128x128) where None was planned"),
        (planned.with_streams(2), "streams = Some(2) where Some(3) was planned"),
    ] {
        let others = Experts::new(&handle, &mut rng, other);
        let mut d = others.d(&handle);
        let args = others.asked(&mut d, &mut clamped).unwrap();
        refused(plan.execute(&handle, args), &[rule[0], found, rule[1], rule[2]]);
        assert!(handle.read_bytes(&d.view()).unwrap() == others.poison(), "{found}: written although refused");
        assert_eq!(handle.read::<u32>(&clamped.view()).unwrap(), [77], "{found}: counted although refused");
    }
    // One product a slot may be left open, and is asked for where it was not planned.
    let launched = with(|it| (it.product_a_slot, it.streams) = (false, None));
    if KernelFamily::SmallMGroups.runs_on(handle.device().compute_capability) {
        let mut one_launch = handle.plan_grouped(&launched).unwrap();
        let args = experts.asked(&mut d, &mut clamped).unwrap().streams(1);
        refused(one_launch.execute(&handle, args), &["one product a slot = true where false was planned"]);
        assert_eq!(handle.read::<u32>(&clamped.view()).unwrap(), [77], "counted although refused");
        // As many usual rows as the plan has anyway are none of another plan.
        let args = experts.args(&mut d, &mut clamped).unwrap().expected_rows(ROOM);
        one_launch.execute(&handle, args).unwrap();
    }
    handle.write(&mut clamped.view_mut(), &[77u32]).unwrap();
    // Operands that do not fit together are refused as anywhere.
    let of_five = Experts::new(&handle, &mut rng, with(|it| (it.groups, it.rows) = (5, 5 * ROOM)));
    let mut none = handle.upload(&experts.poison()).unwrap();
    let rows = || GroupedRows::Masked { slot_rows: ROOM, counts: experts.counts.view() };
    let to = MatMut::new(&mut none, DType::Bf16, GROUPS * ROOM, N).unwrap();
    let a = experts.a.as_ref().unwrap();
    refused(
        plan.execute(&handle, GroupedGemmArgs::new(a, &of_five.b, GROUPS, rows(), to)),
        &["B: 1280 x 512", "must be 4 * 256 x 512"],
    );
    let other = required(Handle::new(0)).unwrap();
    let args = experts.args(&mut none, &mut clamped).unwrap();
    refused(plan.execute(&other, args), &["executing a plan on another handle than its own"]);
    assert!(handle.read_bytes(&none.view()).unwrap() == experts.poison(), "written although refused");
    assert_eq!(handle.read::<u32>(&clamped.view()).unwrap(), [77], "counted although refused");

    // Scratch memory that was given back it does not allocate again.
    assert!(handle.scratch_bytes() > 0);
    handle.trim_scratch().unwrap();
    let args = experts.args(&mut none, &mut clamped).unwrap();
    refused(plan.execute(&handle, args), &["scratch memory", "holds 0", "plan a grouped product again"]);
    assert!(handle.read_bytes(&none.view()).unwrap() == experts.poison(), "written although refused");
    assert_eq!(handle.read::<u32>(&clamped.view()).unwrap(), [77], "counted although refused");
    let mut again = handle.plan_grouped(&planned).unwrap();
    for plan in [&mut plan, &mut again] {
        handle.write(&mut d.view_mut(), &experts.poison()).unwrap();
        plan.execute(&handle, experts.args(&mut d, &mut clamped).unwrap()).unwrap();
        assert!(handle.read_bytes(&d.view()).unwrap() == want, "after all refusals");
    }
}

/// No groups, no rows, and no columns, by each way: planned, and nothing is done.
#[test]
fn nothing_is_planned_too() {
    let Some(handle) = handle() else { return };
    let counts = handle.upload(&[0i64; GROUPS]).unwrap();
    let x = handle.alloc(GROUPS * ROOM * K * 2).unwrap();
    let mut d = handle.alloc(0).unwrap();
    let (vectors, tiles) = (Scheme::Fp8Group1x128(E4M3), Scheme::Fp8Group128x128(E4M3));
    let ways: [(Operand, Scheme, &str); 4] = [
        (Scheme::Nvfp4.into(), Scheme::Nvfp4, "one product a slot"),
        (vectors.into(), tiles, "because our kernels for sm_90 serve this pair"),
        (Operand::Plain(DType::Bf16), Scheme::Nvfp4, "because A is plain"),
        (Scheme::Nvfp4.into(), Scheme::Nvfp4, "behind a launch that dequantizes all of A"),
    ];
    let hopper = KernelFamily::Sm90.runs_on(handle.device().compute_capability);
    for (at, (a, b, says)) in ways.into_iter().enumerate().take(if hopper { 4 } else { 1 }) {
        for (groups, slot_rows, n) in [(0, ROOM, N), (GROUPS, 0, N), (GROUPS, ROOM, 0)] {
            let desc = GroupedGemmDesc::slots(groups, slot_rows, n, K, a, b, DType::Bf16).with_product_a_slot(at == 0);
            let mut plan = handle.plan_grouped(&desc).unwrap();
            assert!(plan.explain().contains(says), "{says:?} is not in {}", plan.explain());
            let zeros = |scheme, rows| QuantMatrix::zeros(&handle, scheme, rows, K).unwrap();
            let (quantized, b) = (a.scheme().map(|a| zeros(a, desc.rows)), zeros(b, groups * n));
            let rows = GroupedRows::Masked { slot_rows, counts: counts.view() };
            let to = MatMut::new(&mut d, DType::Bf16, desc.rows, n).unwrap();
            let args = match &quantized {
                Some(a) => GroupedGemmArgs::new(a, &b, groups, rows, to),
                None => {
                    let x = MatRef::new(&x, DType::Bf16, desc.rows, K).unwrap();
                    GroupedGemmArgs::weight_only(x, &b, groups, rows, to)
                }
            };
            plan.execute(&handle, args).unwrap_or_else(|error| panic!("{desc}: {error}"));
        }
    }
    handle.synchronize().unwrap();
}

/// Plans of different ways on one handle, of which later ones move the scratch memory while a graph of the first is there: calls and graph in turns.
#[test]
fn plans_share_a_handle_in_turns() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(404);
    let hopper = KernelFamily::Sm90.runs_on(handle.device().compute_capability);
    let scheme = Scheme::Mxfp8(E4M3);
    let descs = match hopper {
        // Numbers of A of 64 KiB, and of 8 MiB: scratch memory grows in steps of 2 MiB.
        true => vec![
            slots(16, scheme, scheme),
            in_slots(),
            GroupedGemmDesc::slots(GROUPS, 8 * ROOM, 2 * N, 2 * K, scheme, scheme, DType::Bf16).with_expected_rows(4),
        ],
        false => vec![in_slots(), in_slots().with_streams(2).with_bias(DType::F32)],
    };
    let mut clamped = handle.upload(&[77u32]).unwrap();
    let all: Vec<Experts> = descs.into_iter().map(|desc| Experts::new(&handle, &mut rng, desc)).collect();
    let mut wanted = |experts: &Experts| {
        let mut d = experts.d(&handle);
        handle.grouped_gemm(experts.asked(&mut d, &mut clamped).unwrap()).unwrap();
        let want = handle.read_bytes(&d.view()).unwrap();
        assert!(want.iter().any(|byte| *byte != 0xFF), "{}: something is stored", experts.desc);
        want
    };
    let want: Vec<_> = all.iter().map(&mut wanted).collect();

    let fresh = required(Handle::new(0)).unwrap();
    let mut d: Vec<_> = all.iter().map(|experts| experts.d(&handle)).collect();
    let mut of_graph = all[0].d(&handle);
    handle.synchronize().unwrap();
    let mut plans = vec![fresh.plan_grouped(&all[0].desc).unwrap()];
    let graph = capture_owned(&fresh, || plans[0].execute(&fresh, all[0].args(&mut of_graph, &mut clamped)?)).unwrap();
    let before = fresh.scratch_bytes();
    plans.extend(all[1..].iter().map(|experts| fresh.plan_grouped(&experts.desc).unwrap()));
    assert!(fresh.scratch_bytes() > before || !hopper, "{before} bytes before, {} now", fresh.scratch_bytes());
    let calls = plans.len() + 1;
    for first in 0..calls {
        for (experts, d) in all.iter().zip(&mut d).chain([(&all[0], &mut of_graph)]) {
            fresh.write(&mut d.view_mut(), &experts.poison()).unwrap();
        }
        // Nothing waits between them: what one leaves in scratch memory the next overwrites.
        for at in (first..first + calls).map(|at| at % calls) {
            match plans.get_mut(at) {
                Some(plan) => plan.execute(&fresh, all[at].args(&mut d[at], &mut clamped).unwrap()).unwrap(),
                None => fresh.launch(&graph).unwrap(),
            }
        }
        for (at, (d, want)) in d.iter().zip(&want).chain([(&of_graph, &want[0])]).enumerate() {
            assert!(
                fresh.read_bytes(&d.view()).unwrap() == *want,
                "{first} first: {at} of {} and a graph",
                plans.len()
            );
        }
    }
}

/// Grouped tensors as operands, with the scale of each member or one of all, which are two problems.
#[test]
fn grouped_tensors_are_operands_of_plans() {
    let Some(handle) = handle_with(KernelFamily::Sm90) else { return };
    let mut rng = Noise::new(403);
    let mut numbers = |rows: usize| handle.upload(&rng.bf16(rows * K, 1.0)).unwrap();
    let (x, w) = (numbers(GROUPS * ROOM), numbers(GROUPS * N));
    let counts = handle.upload(&[7i64, 0, 128, 33]).unwrap();
    let each = GroupedScheme::new(E4M3);
    let [of_members, shared] = [each, each.shared()].map(|scheme| {
        let [a, b] = [(&x, ROOM), (&w, N)].map(|(numbers, rows)| {
            let layout = GroupedLayout::packed(&[[rows, K]; GROUPS]).unwrap();
            let layout = GroupedDeviceLayout::from_host(&handle, &layout).unwrap();
            let mut tensor = GroupedTensor::zeros(&handle, scheme, layout).unwrap();
            let source = GroupedSource::new(numbers, DType::Bf16).unwrap();
            handle.quantize_grouped_into(&source, GroupedRecipe::new(scheme), &mut tensor, None).unwrap();
            tensor
        });
        (a, b)
    });
    let scheme = Scheme::Fp8Tensor(E4M3);
    let desc = |scales| {
        GroupedGemmDesc::slots(GROUPS, ROOM, N, K, scheme, scheme, DType::F32).with_scales_of_groups([scales; 2])
    };
    let [mut found, mut want] = [(); 2].map(|()| handle.alloc(GROUPS * ROOM * N * 4).unwrap());
    for ((a, b), scales, (other_a, other_b)) in [(&of_members, true, &shared), (&shared, false, &of_members)] {
        let mut plan = handle.plan_grouped(&desc(scales)).unwrap();
        let (tokens, matrices) = (a.padded_rows().unwrap(), b.stacked().unwrap());
        for d in [&mut found, &mut want] {
            handle.write(&mut d.view_mut(), &vec![0xFFu8; GROUPS * ROOM * N * 4]).unwrap();
        }
        plan.execute(&handle, of_tensors(&tokens, &matrices, &counts, &mut found)).unwrap();
        handle.grouped_gemm(of_tensors(&tokens, &matrices, &counts, &mut want)).unwrap();
        let [got, want] = [&found, &want].map(|d| handle.read_bytes(&d.view()).unwrap());
        assert!(got == want && got[..N * 4].iter().any(|byte| *byte != 0xFF), "a scale for each member: {scales}");
        let (tokens, matrices) = (other_a.padded_rows().unwrap(), other_b.stacked().unwrap());
        let words = format!("scales of the groups of A and of B = {:?} where {:?}", [!scales; 2], [scales; 2]);
        refused(plan.execute(&handle, of_tensors(&tokens, &matrices, &counts, &mut found)), &[&words]);
    }
}

fn of_tensors<'a>(
    a: &'a GroupedMatrix<'_>,
    b: &'a GroupedMatrix<'_>,
    counts: &'a DeviceBuffer,
    d: &'a mut DeviceBuffer,
) -> GroupedGemmArgs<'a> {
    let rows = GroupedRows::Masked { slot_rows: ROOM, counts: counts.view() };
    GroupedGemmArgs::new(a, b, GROUPS, rows, MatMut::new(d, DType::F32, GROUPS * ROOM, N).unwrap())
}
