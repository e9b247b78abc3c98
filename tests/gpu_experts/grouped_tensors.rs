//! Tokens and matrices of experts that are quantized on the device, each expert with the scale of its own largest number, and multiplied there: nothing comes to the host between the
//! values and D.

use scaled_gemm::{
    DType, Formulation, Fp8Format, GemmArgs, GemmDesc, GroupedDeviceLayout, GroupedGemmArgs, GroupedLayout,
    GroupedMatrix, GroupedRecipe, GroupedRows, GroupedScheme, GroupedSource, GroupedTensor, Handle, HostGroupedTensor,
    KernelFamily, MatMut, PlanOptions, QuantMatrix, Result, Scheme,
};

use crate::common::*;

const GROUPS: usize = 3;
const SLOT: usize = 256;
const OUT: usize = 256;
const K: usize = 400;
const SCHEME: GroupedScheme = GroupedScheme::new(Fp8Format::E4M3);

/// Members in slots, with so many rows each.
fn in_slots(counts: [usize; GROUPS]) -> GroupedLayout {
    let offsets: [usize; GROUPS] = std::array::from_fn(|g| g * SLOT * K);
    GroupedLayout::new(&counts.map(|count| [count, K]), &offsets, GROUPS * SLOT * K).unwrap()
}

fn tensor(handle: &Handle, scheme: GroupedScheme, layout: &GroupedLayout) -> GroupedTensor {
    GroupedTensor::zeros(handle, scheme, GroupedDeviceLayout::from_host(handle, layout).unwrap()).unwrap()
}

/// BF16 numbers, those of each of the groups of another magnitude.
fn values(rng: &mut Noise, rows: usize) -> Vec<u8> {
    let groups = (0..GROUPS).flat_map(|g| {
        let magnitude = [0.25, 1.0, 60.0][g];
        rng.matrix(rows, K, DType::Bf16)
            .into_iter()
            .map(move |v| round_to(DType::Bf16, v * magnitude))
            .collect::<Vec<_>>()
    });
    let all: Vec<f32> = groups.collect();
    bytes_of(DType::Bf16, &all)
}

/// D of a group by a plan for its rows alone, of the order of sums that groups have.
fn alone(handle: &Handle, a: &HostGroupedTensor, b: &HostGroupedTensor, g: usize) -> Vec<u8> {
    let scheme = Scheme::Fp8Tensor(Fp8Format::E4M3);
    let [a, b] = [a, b].map(|all| QuantMatrix::from_host(handle, &all.matrix(g).unwrap()).unwrap());
    let (m, n, k) = (a.rows(), b.rows(), a.cols());
    let options = PlanOptions::default().with_formulation(Formulation::Sm90);
    let desc = GemmDesc::new(m, n, k, scheme, scheme, DType::F32).with_batch_invariant(true);
    let mut d = handle.alloc(m * n * 4).unwrap();
    let args = GemmArgs::new(&a, &b, MatMut::new(&mut d, DType::F32, m, n).unwrap()).batch_invariant(true);
    handle.plan_with(&desc, &options).unwrap().execute(handle, args).unwrap();
    handle.read_bytes(&d.view()).unwrap()
}

#[track_caller]
fn assert_groups(d: &[u8], want: impl Fn(usize) -> Vec<u8>, counts: [usize; GROUPS], what: &str) {
    for (g, count) in counts.into_iter().enumerate().filter(|(_, count)| *count > 0) {
        let bytes = count * OUT * 4;
        assert!(d[g * SLOT * OUT * 4..][..bytes] == want(g)[..bytes], "{what}, group {g} of {counts:?}");
    }
}

/// Both casts and the product in one graph, whose launches find other tokens, matrices and counts.
#[test]
fn grouped_tensors_are_multiplied_where_they_were_quantized() {
    let Some(handle) = handle_with(KernelFamily::Sm90) else { return };
    let mut rng = Noise::new(71);
    let counts = [[70, 0, SLOT], [1, 130, 4], [0, 0, 0], [SLOT; 3]];
    for scheme in [SCHEME, SCHEME.shared()] {
        let recipe = GroupedRecipe::new(scheme);
        let mut tokens = handle.alloc(GROUPS * SLOT * K * 2).unwrap();
        let mut weights = handle.alloc(GROUPS * OUT * K * 2).unwrap();
        let mut a = tensor(&handle, scheme, &in_slots(counts[0]));
        let mut b = tensor(&handle, scheme, &GroupedLayout::packed(&[[OUT, K]; GROUPS]).unwrap());
        let mut d = handle.alloc(GROUPS * SLOT * OUT * 4).unwrap();
        handle.load_kernels(&[KernelFamily::Sm90, KernelFamily::Grouped]).unwrap();
        let graph = capture_owned(&handle, || {
            handle.quantize_grouped_into(&GroupedSource::new(&tokens, DType::Bf16)?, recipe, &mut a, None)?;
            handle.quantize_grouped_into(&GroupedSource::new(&weights, DType::Bf16)?, recipe, &mut b, None)?;
            let (x, w) = (a.padded_rows()?, b.stacked()?);
            assert_eq!([x.rows(), x.cols(), w.rows(), w.cols()], [GROUPS * SLOT, K, GROUPS * OUT, K]);
            assert_eq!(x.scales().is_some(), scheme == SCHEME);
            let rows = GroupedRows::Masked { slot_rows: SLOT, counts: a.layout().rows() };
            let d = MatMut::new(&mut d, DType::F32, GROUPS * SLOT, OUT)?;
            handle.grouped_gemm(GroupedGemmArgs::new(&x, &w, GROUPS, rows, d))
        });
        let graph = graph.unwrap();
        for (turn, counts) in counts.into_iter().enumerate() {
            handle.write(&mut tokens.view_mut(), &values(&mut rng, SLOT)).unwrap();
            handle.write(&mut weights.view_mut(), &values(&mut rng, OUT)).unwrap();
            match turn {
                // As a kernel of others would: the host knows no rows from here on.
                3 => handle.write(&mut a.layout_mut().rows_mut(), &counts.map(|count| count as i64)).unwrap(),
                _ => a.layout_mut().write(&handle, &in_slots(counts)).unwrap(),
            }
            handle.launch(&graph).unwrap();
            let found = handle.read_bytes(&d.view()).unwrap();
            let (x, w) = (a.to_host(&handle).unwrap(), b.to_host(&handle).unwrap());
            if scheme == SCHEME {
                assert!(w.scales().windows(2).all(|two| two[0] != two[1]), "{:?}", w.scales());
            }
            assert_groups(&found, |g| alone(&handle, &x, &w, g), counts, &format!("{scheme}"));
        }
        // The places of columns are still the host's, and one more launch is like the graph's.
        assert!(a.padded_rows().is_ok());
    }
}

/// The transposes of the matrices, as the gradient of the input reads them, and rows that begin elsewhere than slots do.
#[test]
fn transposed_members_and_rows_between_slots_are_operands() {
    let Some(handle) = handle_with(KernelFamily::Sm90) else { return };
    let mut rng = Noise::new(72);
    // dY of OUT features times the transposes of OUT x WIDE matrices.
    const WIDE: usize = 384;
    let counts = [100, 128, 3];
    let offsets = [0, 128 * OUT, 384 * OUT];
    let layout = GroupedLayout::new(&counts.map(|count| [count, OUT]), &offsets, 512 * OUT).unwrap();
    let mut a = tensor(&handle, SCHEME, &layout);
    let turned = SCHEME.transposed();
    let mut b = tensor(&handle, turned, &GroupedLayout::packed(&[[OUT, WIDE]; GROUPS]).unwrap());
    let mut of =
        |rows: usize, cols: usize| handle.upload(&bytes_of(DType::Bf16, &rng.matrix(rows, cols, DType::Bf16))).unwrap();
    let (dy, w) = (of(512, OUT), of(GROUPS * OUT, WIDE));
    handle
        .quantize_grouped_into(&GroupedSource::new(&dy, DType::Bf16).unwrap(), GroupedRecipe::new(SCHEME), &mut a, None)
        .unwrap();
    handle
        .quantize_grouped_into(&GroupedSource::new(&w, DType::Bf16).unwrap(), GroupedRecipe::new(turned), &mut b, None)
        .unwrap();
    let mut d = handle.alloc(512 * WIDE * 4).unwrap();
    let starts = handle.upload(&[0i64, 128, 384]).unwrap();
    {
        let rows = GroupedRows::Contiguous { starts: starts.view(), counts: a.layout().rows() };
        let (x, w) = (a.padded_rows().unwrap(), b.stacked().unwrap());
        let d = MatMut::new(&mut d, DType::F32, 512, WIDE).unwrap();
        handle.grouped_gemm(GroupedGemmArgs::new(&x, &w, GROUPS, rows, d)).unwrap();
    }
    let found = handle.read_bytes(&d.view()).unwrap();
    let (x, w) = (a.to_host(&handle).unwrap(), b.to_host(&handle).unwrap());
    for (g, start) in [0, 128, 384].into_iter().enumerate() {
        let want = alone(&handle, &x, &w, g);
        assert!(found[start * WIDE * 4..][..want.len()] == want, "group {g}");
    }
}

/// Starts and counts that the device alone chooses, others at each launch of one graph, among them some that make no sense: the rows of each group by the scale that is found for it, and no others.
#[test]
fn members_that_begin_where_the_device_says_are_multiplied() {
    let Some(handle) = handle_with(KernelFamily::Sm90) else { return };
    const ROWS: usize = GROUPS * SLOT;
    const POISON: u8 = 0xA5;
    let mut rng = Noise::new(73);
    // Starts, counts, what is taken of them, and how many groups are not taken as told.
    let launches = [
        ([0i64, 128, 640], [70i64, 500, 128], [(0, 70), (128, 500), (640, 128)], 0u32),
        ([0, 0, 384], [0, 384, 300], [(0, 0), (0, 384), (384, 300)], 0),
        ([-128, 256, i64::MAX], [5, 100, 7], [(0, 0), (256, 100), (512, 0)], 2),
        ([0, 256, 256], [768, 0, 512], [(0, 256), (256, 0), (256, 512)], 1),
        ([0, 128, 640], [1, 130, 4], [(0, 1), (128, 130), (640, 4)], 0),
    ];
    // The host wrote columns, or the caller says them.
    for told in [false, true] {
        let layout = match told {
            false => GroupedDeviceLayout::from_host(&handle, &in_slots([1; GROUPS])).unwrap(),
            true => {
                let [rows, cols, offsets] = [0, K as i64, 0].map(|number| handle.upload(&[number; GROUPS]).unwrap());
                GroupedDeviceLayout::from_parts(&handle, rows, cols, offsets, ROWS * K).unwrap()
            }
        };
        let mut a = GroupedTensor::zeros(&handle, SCHEME, layout).unwrap();
        drop(a.layout_mut().offsets_mut());
        let mut b = tensor(&handle, SCHEME, &GroupedLayout::packed(&[[OUT, K]; GROUPS]).unwrap());
        let [mut tokens, weights] = [SLOT, OUT].map(|rows| handle.upload(&values(&mut rng, rows)).unwrap());
        let mut starts = handle.upload(&[0i64; GROUPS]).unwrap();
        let (mut d, mut clamped) = (handle.alloc(ROWS * OUT * 4).unwrap(), handle.upload(&[77u32]).unwrap());
        handle.load_kernels(&[KernelFamily::Sm90, KernelFamily::Grouped]).unwrap();
        let recipe = GroupedRecipe::new(SCHEME);
        let graph = capture_owned(&handle, || {
            handle.quantize_grouped_into(&GroupedSource::new(&tokens, DType::Bf16)?, recipe, &mut a, None)?;
            handle.quantize_grouped_into(&GroupedSource::new(&weights, DType::Bf16)?, recipe, &mut b, None)?;
            let (x, w) = (if told { a.padded_rows_of(K)? } else { a.padded_rows()? }, b.stacked()?);
            assert_eq!([x.rows(), x.cols(), x.members()], [ROWS, K, GROUPS]);
            let rows = GroupedRows::Contiguous { starts: starts.view(), counts: a.layout().rows() };
            let d = MatMut::new(&mut d, DType::F32, ROWS, OUT)?;
            let args = GroupedGemmArgs::new(&x, &w, GROUPS, rows, d);
            handle.grouped_gemm(args.clamped(clamped.view_mut()))
        });
        let graph = graph.unwrap();
        for (told_starts, counts, taken, bad) in launches {
            handle.write(&mut tokens.view_mut(), &values(&mut rng, SLOT)).unwrap();
            handle.write(&mut starts.view_mut(), &told_starts).unwrap();
            handle.write(&mut a.layout_mut().rows_mut(), &counts).unwrap();
            let offsets = told_starts.map(|start| start.saturating_mul(K as i64));
            handle.write(&mut a.layout_mut().offsets_mut(), &offsets).unwrap();
            handle.write(&mut d.view_mut(), &vec![POISON; ROWS * OUT * 4]).unwrap();
            handle.launch(&graph).unwrap();
            let mut found = handle.read_bytes(&d.view()).unwrap();
            assert_eq!(handle.read::<u32>(&clamped.view()).unwrap(), [bad], "starts {told_starts:?}");
            // Members as they are taken: of what the device has no layout may be made.
            let layout =
                GroupedLayout::new(&taken.map(|(_, count)| [count, K]), &taken.map(|(start, _)| start * K), ROWS * K);
            let (codes, scales) = (handle.read(&a.codes()).unwrap(), handle.read(&a.scales()).unwrap());
            let x = HostGroupedTensor::from_parts(SCHEME, layout.unwrap(), codes, scales).unwrap();
            let w = b.to_host(&handle).unwrap();
            for (g, (start, count)) in taken.into_iter().enumerate().filter(|(_, (_, count))| *count > 0) {
                let part = &mut found[start * OUT * 4..(start + count) * OUT * 4];
                assert!(
                    part[..] == alone(&handle, &x, &w, g)[..],
                    "starts {told_starts:?}, counts {counts:?}, group {g}"
                );
                part.fill(POISON);
            }
            assert!(found.iter().all(|byte| *byte == POISON), "starts {told_starts:?}: rows of no group were written");
        }
    }
}

/// Layouts of which the device alone knows, members that are not the groups, and operands in each other's place.
#[test]
fn tensors_that_are_no_operands_are_refused() {
    let Some(handle) = handle() else { return };
    let refused = |result: Result<()>, words: &[&str]| {
        let said = result.map_or_else(|refused| refused.to_string(), |()| "taken".to_string());
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    };
    let view = |result: Result<GroupedMatrix<'_>>| result.map(drop);
    let packed = GroupedLayout::packed(&[[OUT, K]; GROUPS]).unwrap();
    let mut b = tensor(&handle, SCHEME, &packed);
    let mut a = tensor(&handle, SCHEME, &in_slots([1; GROUPS]));
    let mut d = handle.alloc(GROUPS * SLOT * OUT * 4).unwrap();
    let counts = handle.upload(&[1i64; GROUPS]).unwrap();
    if KernelFamily::Sm90.runs_on(handle.device().compute_capability) {
        let (rows, matrices) = (a.padded_rows().unwrap(), b.stacked().unwrap());
        let mut ask = |a: &GroupedMatrix<'_>, b: &GroupedMatrix<'_>, groups: usize, slot_rows: usize| {
            let places = GroupedRows::Masked { slot_rows, counts: counts.view() };
            let d = MatMut::new(&mut d, DType::F32, GROUPS * SLOT, OUT).unwrap();
            handle.grouped_gemm(GroupedGemmArgs::new(a, b, groups, places, d))
        };
        ask(&rows, &matrices, GROUPS, SLOT).unwrap();
        refused(ask(&rows, &rows, GROUPS, SLOT), &["grouped tensor as B", "rows of groups", "stacked"]);
        refused(ask(&matrices, &matrices, GROUPS, SLOT), &["grouped tensor as A", "padded_rows"]);
        refused(ask(&rows, &matrices, 2, SLOT), &["3 members", "2 groups"]);
        refused(ask(&rows, &matrices, GROUPS, 128), &["member 1 at row 256", "1 * 128", "Contiguous"]);
    }
    // By rows_mut a layout that shares the numbers, too.
    let mut shared = a.layout().share().unwrap();
    drop(shared.rows_mut());
    refused(view(a.stacked()), &["as B", "rows of its layout", "nobody reads them back"]);
    view(a.padded_rows()).unwrap();
    // Where rows begin the device may choose.
    drop(shared.offsets_mut());
    view(a.padded_rows()).unwrap();
    refused(view(a.padded_rows_of(K + 16)), &["member 0, 1 x 400", "must have 416 columns"]);
    drop(shared.cols_mut());
    refused(view(a.padded_rows()), &["as A", "columns of its layout", "to_host", "padded_rows_of"]);
    a.layout_mut().write(&handle, &in_slots([2; GROUPS])).unwrap();
    refused(view(a.padded_rows()), &["columns of its layout"]);
    view(a.padded_rows_of(K)).unwrap();
    refused(view(a.padded_rows_of(K + 16)), &["307200 elements", "128 rows of 416 columns"]);
    // Another layout may be written, and what is no operand then is refused.
    b.layout_mut().write(&handle, &GroupedLayout::packed(&[[128, K], [OUT, K], [OUT, K]]).unwrap()).unwrap();
    refused(view(b.stacked()), &["member 1", "128 x 400, as member 0"]);
    b.layout_mut().write(&handle, &packed).unwrap();
    view(b.stacked()).unwrap();
    // Numbers that came from the device, until the host writes some.
    let number = |n: i64| handle.upload(&[n]).unwrap();
    let parts = [number(128), number(16), number(0)];
    let [rows, cols, offsets] = parts;
    let layout = GroupedDeviceLayout::from_parts(&handle, rows, cols, offsets, 2048).unwrap();
    let mut q = GroupedTensor::zeros(&handle, SCHEME, layout).unwrap();
    refused(view(q.stacked()), &["the device alone knows", "from_host"]);
    refused(view(q.padded_rows()), &["the device alone knows", "padded_rows_of"]);
    view(q.padded_rows_of(16)).unwrap();
    q.layout_mut().write(&handle, &GroupedLayout::packed(&[[128, 16]]).unwrap()).unwrap();
    view(q.stacked()).unwrap();
    let turned = tensor(&handle, SCHEME.transposed(), &packed);
    refused(view(turned.padded_rows()), &["as A", "do not lie together", "by_rows"]);
    refused(view(turned.stacked()), &["400 x 256", "multiple of 128 rows"]);
}
