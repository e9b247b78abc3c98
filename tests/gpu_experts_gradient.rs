//! Gradients of the matrices of experts in one launch, groups along k: the bits of one product a group of the rows that it has, in every configuration, in
//! slots and one behind the other, a thousand too, whatever numbers the device finds; a captured graph takes any counts. One product a group of every pair of schemes, within the bound.
#![cfg(feature = "cuda")]

#[path = "gpu_experts_gradient/changing.rs"]
mod changing;
mod common;
#[path = "common/guarded.rs"]
mod guarded;
#[path = "gpu_experts_gradient/slots_in_graphs.rs"]
mod slots_in_graphs;
#[path = "gpu_experts_gradient/thousand.rs"]
mod thousand;

use common::*;
use guarded::{Arena, places_of_rows};
use ndarray::{Array2, s};
use scaled_gemm::reference::{self, Accumulator, Gelu, GemmInputs, gemm_bound};
use scaled_gemm::{
    Accumulate, DType, DeviceBuffer, Formulation, Fp8Format, GemmArgs, GemmDesc, GroupedRows, GroupedWeightGradient,
    Handle, HostQuantMatrix, KernelFamily, MatMut, MatRef, PlanOptions, QuantMatrix, QuantizeTo, Recipe, Result,
    Scheme, Sm90Config,
};

const SCHEME: Scheme = Scheme::Fp8Group1x128(Fp8Format::E4M3);
/// No multiples of a tile in either direction.
const OUT: usize = 336;
const FEATURES: usize = 272;
/// Columns of dW from one row to the next, and those between rows.
const STRIDE: usize = FEATURES + GAP;
const GAP: usize = 4;
const SLOT: usize = 384;
const GROUPS: usize = 6;

/// The transpose that the product reads.
fn turned(handle: &Handle, x: &Array2<f32>, scheme: Scheme) -> QuantMatrix {
    let (rows, cols) = x.dim();
    let on = upload(handle, &bytes_of(DType::Bf16, x.iter()));
    let mut q = QuantMatrix::zeros(handle, scheme, cols, rows).unwrap();
    let x = MatRef::new(&on, DType::Bf16, rows, cols).unwrap();
    handle.quantize_into(&x, Recipe::new(scheme), QuantizeTo::Transposed(&mut q)).unwrap();
    q
}

/// dY and X, and what dW holds before.
struct Experts {
    dy: Array2<f32>,
    x: Array2<f32>,
    dw: Vec<f32>,
    /// Rows and columns of dW of a group.
    shape: [usize; 2],
    /// Of dY and X transposed.
    schemes: [Scheme; 2],
}

impl Experts {
    fn new(seed: u64, rows: usize, groups: usize) -> Self {
        Self::of_shape(seed, rows, groups, [OUT, FEATURES])
    }

    fn of_shape(seed: u64, rows: usize, groups: usize, shape: [usize; 2]) -> Self {
        let mut rng = Noise::new(seed);
        let [dy, x] = shape.map(|cols| spread(&mut rng, rows, cols, DType::Bf16));
        let dw = (0..groups * shape[0] * (shape[1] + GAP)).map(|i| (i % 1009) as f32 - 504.0).collect();
        Self { dy, x, dw, shape, schemes: [SCHEME; 2] }
    }

    /// dY and X of these rows, with zeros for all others.
    fn cleared(&self, taken: &[(usize, usize)]) -> [Array2<f32>; 2] {
        [&self.dy, &self.x].map(|all| {
            let mut cleared = Array2::zeros(all.raw_dim());
            for (start, count) in taken {
                let part = s![*start..start + count, ..];
                cleared.slice_mut(part).assign(&all.slice(part));
            }
            cleared
        })
    }

    /// Whether all groups do, as those of rows and matrices: scales of k-blocks are those of a group's own rows.
    fn share_scales(&self) -> bool {
        self.schemes.iter().any(|scheme| !matches!(scheme, Scheme::Fp8Group1x128(_)))
    }

    /// dW of each group by a product of its own, of its rows and zeros up to a multiple of 128.
    fn one_by_one(&self, handle: &Handle, taken: &[(usize, usize)]) -> Vec<f32> {
        let (mut want, [out, features]) = (self.dw.clone(), self.shape);
        let whole = self.share_scales().then(|| {
            let mut of = self.schemes.into_iter();
            self.cleared(taken).map(|x| {
                let recipe = Recipe::new(of.next().unwrap());
                reference::quantize_transposed(x.view(), DType::Bf16, recipe).unwrap()
            })
        });
        let stride = features + GAP;
        for (g, &(start, count)) in taken.iter().enumerate().filter(|(_, (_, count))| *count > 0) {
            let rows = count.next_multiple_of(128);
            let [dy_t, x_t] = [0, 1].map(|i| match &whole {
                Some(whole) => columns_of(handle, &whole[i], start, rows),
                None => {
                    let all = [&self.dy, &self.x][i];
                    let mut own = Array2::zeros((rows, all.ncols()));
                    own.slice_mut(s![..count, ..]).assign(&all.slice(s![start..start + count, ..]));
                    turned(handle, &own, self.schemes[i])
                }
            });
            let own = &mut want[g * out * stride..(g + 1) * out * stride];
            let packed: Vec<f32> = own.chunks(stride).flat_map(|row| &row[..features]).copied().collect();
            let mut d = handle.upload(&packed).unwrap();
            let desc = GemmDesc::new(out, features, rows, self.schemes[0], self.schemes[1], DType::F32)
                .with_accumulate(Accumulate::Add)
                .with_batch_invariant(true);
            let options = PlanOptions::default().with_formulation(Formulation::Sm90);
            let mut plan = handle.plan_with(&desc, &options).unwrap();
            let target = MatMut::new(&mut d, DType::F32, out, features).unwrap();
            plan.execute(handle, GemmArgs::new(&dy_t, &x_t, target).accumulate(1.0).batch_invariant(true)).unwrap();
            let found = handle.read::<f32>(&d.view()).unwrap();
            own.chunks_mut(stride)
                .zip(found.chunks(features))
                .for_each(|(to, row)| to[..features].copy_from_slice(row));
        }
        want
    }

    /// In one launch of all rows, by the numbers that the device finds, so many of which it does not take as they say.
    fn in_one(
        &self,
        handle: &Handle,
        taken: &[(usize, usize)],
        starts: Option<&[i64]>,
        (counts, clamped): (&[i64], u32),
        configs: &[Option<Sm90Config>],
    ) {
        let [dy, x] = self.cleared(taken);
        let (dy_t, x_t) = (turned(handle, &dy, self.schemes[0]), turned(handle, &x, self.schemes[1]));
        let want = self.one_by_one(handle, taken);
        let counts_on = handle.upload(counts).unwrap();
        let starts_on = starts.map(|starts| handle.upload(starts).unwrap());
        for config in configs {
            let mut dw = handle.upload(&self.dw).unwrap();
            let mut counter = handle.upload(&[77u32]).unwrap();
            let rows = match &starts_on {
                Some(starts) => GroupedRows::Contiguous { starts: starts.view(), counts: counts_on.view() },
                None => GroupedRows::Masked { slot_rows: self.x.nrows() / counts.len(), counts: counts_on.view() },
            };
            let to = target_of(&mut dw, counts.len(), self.shape);
            let of = GroupedWeightGradient::whole(&dy_t, &x_t, counts.len(), rows, to);
            let of = if let Some(config) = config { of.config(*config) } else { of };
            handle.grouped_weight_gradient(of.clamped(counter.view_mut())).unwrap();
            let found = handle.read::<f32>(&dw.view()).unwrap();
            assert_eq!(handle.read::<u32>(&counter.view()).unwrap(), [clamped], "{config:?}, counts {counts:?}");
            let wrong = found.iter().zip(&want).position(|(found, want)| found.to_bits() != want.to_bits());
            let (out, stride) = (self.shape[0], self.shape[1] + GAP);
            let place = wrong.map(|at| [at / stride / out, at / stride % out, at % stride]);
            assert_eq!(place, None, "{config:?}, counts {counts:?}: the first group, row and column that differs");
        }
    }
}

/// Columns of a whole transpose under its scales, of a matrix or of rows, with zeros behind its end.
fn columns_of(handle: &Handle, whole: &HostQuantMatrix, start: usize, count: usize) -> QuantMatrix {
    let codes = whole.logical_codes().chunks(whole.cols()).flat_map(|row| {
        let end = (start + count).min(row.len());
        let zeros = std::iter::repeat_n(0, start + count - end);
        row[start..end].iter().copied().chain(zeros)
    });
    let (scheme, rows, codes) = (whole.scheme(), whole.rows(), codes.collect());
    let part = HostQuantMatrix::from_logical(scheme, rows, count, codes, &whole.logical_scales()).unwrap();
    QuantMatrix::from_host(handle, &part).unwrap()
}

fn target(dw: &mut DeviceBuffer, groups: usize) -> MatMut<'_> {
    target_of(dw, groups, [OUT, FEATURES])
}

fn target_of(dw: &mut DeviceBuffer, groups: usize, [out, features]: [usize; 2]) -> MatMut<'_> {
    MatMut::new(dw, DType::F32, groups * out, features).unwrap().with_row_stride(features + GAP).unwrap()
}

/// A handle, if there are kernels for its GPU.
fn hopper() -> Option<Handle> {
    handle_with(KernelFamily::Sm90)
}

/// No configuration, and each that has kernels.
fn chosen_and_asked() -> Vec<Option<Sm90Config>> {
    let of_groups = Sm90Config::ALL.into_iter().filter(|config| config.k_parts() == 1 && !config.ends_plainly());
    [None].into_iter().chain(of_groups.map(Some)).collect()
}

/// Slots that are empty, full, and all that lies beside a multiple of 128, in every configuration; counts that make no sense.
#[test]
fn slots_give_what_each_group_gives_alone() {
    let Some(handle) = hopper() else { return };
    let of = Experts::new(61, GROUPS * SLOT, GROUPS);
    let all = chosen_and_asked();
    let taken = |counts: [usize; GROUPS]| -> Vec<_> {
        counts.into_iter().enumerate().map(|(g, count)| (g * SLOT, count)).collect()
    };
    of.in_one(&handle, &taken([0, 1, 127, 128, 129, SLOT]), None, (&[0, 1, 127, 128, 129, SLOT as i64], 0), &all);
    of.in_one(&handle, &taken([SLOT, 0, 256, 0, 0, 5]), None, (&[i64::MAX, -1, 256, i64::MIN, 0, 5], 3), &all[..2]);
    of.in_one(&handle, &taken([0; GROUPS]), None, (&[0; GROUPS], 0), &all);
}

/// One behind the other with gaps, the last up to the end, which is no multiple of 128; starts that make no sense leave their groups out.
#[test]
fn starts_give_what_each_group_gives_alone() {
    let Some(handle) = hopper() else { return };
    let of = Experts::new(67, 1040, GROUPS);
    let (starts, counts) = ([0, 256, 256, 384, 896, 1024], [200, 0, 128, 300, 1, 99]);
    let taken = [(0, 200), (256, 0), (256, 128), (384, 300), (896, 1), (1024, 16)];
    of.in_one(
        &handle,
        &taken,
        Some(&starts),
        (&counts, 1),
        &[None, Some(Sm90Config::Tile256x128), Some(Sm90Config::Tile64x64)],
    );
    // Up to the next one's start; at no multiple of 128, before an earlier one, behind the end, below 0.
    let (starts, counts) = ([-128, 0, 128, 388, 256, 1152], [100, 300, 200, 100, 100, 100]);
    let taken = [(0, 0), (0, 128), (128, 200), (0, 0), (0, 0), (0, 0)];
    of.in_one(&handle, &taken, Some(&starts), (&counts, 5), &[None]);
}

/// E5M2 on one side: dY, as gradients are, and X. In slots and by starts, empty and full, in every configuration that has kernels for it.
#[test]
fn gradients_in_e5m2_give_what_each_group_gives_alone() {
    let Some(handle) = handle_with(KernelFamily::Sm90E5m2) else { return };
    use Sm90Config::{Tile64x64Two, Tile64x128, Tile128x128, Tile256x128};
    let configs = [None, Some(Tile256x128), Some(Tile128x128), Some(Tile64x128), Some(Tile64x64Two)];
    let wide = Scheme::Fp8Group1x128(Fp8Format::E5M2);
    for (i, schemes) in [[wide, SCHEME], [SCHEME, wide]].into_iter().enumerate() {
        let of = Experts { schemes, ..Experts::new(83 + i as u64, GROUPS * SLOT, GROUPS) };
        let counts = [0, 1, 127, 128, 129, SLOT];
        let taken: Vec<_> = counts.into_iter().enumerate().map(|(g, count)| (g * SLOT, count)).collect();
        of.in_one(&handle, &taken, None, (&counts.map(|count| count as i64), 0), &configs);
        let of = Experts { schemes, ..Experts::new(87 + i as u64, 1040, GROUPS) };
        let (starts, counts) = ([0, 256, 256, 384, 896, 1024], [200, 0, 128, 300, 1, 99]);
        let taken = [(0, 200), (256, 0), (256, 128), (384, 300), (896, 1), (1024, 16)];
        of.in_one(&handle, &taken, Some(&starts), (&counts, 1), &configs);
    }
}

/// Scales of rows and of matrices, which all groups share, in E4M3 and with E5M2 on one side: in slots and by starts, empty and full, in every configuration that has kernels for it.
#[test]
fn scales_that_groups_share_give_what_each_group_gives_alone() {
    use Sm90Config::{Tile64x64Two, Tile64x128, Tile128x128, Tile256x128};
    let (e4m3, e5m2) = (Fp8Format::E4M3, Fp8Format::E5M2);
    let wide = vec![None, Some(Tile256x128), Some(Tile128x128), Some(Tile64x128), Some(Tile64x64Two)];
    let mut seed = 211;
    for (family, formats) in [
        (KernelFamily::Sm90, [e4m3, e4m3]),
        (KernelFamily::Sm90E5m2, [e5m2, e4m3]),
        (KernelFamily::Sm90E5m2, [e4m3, e5m2]),
    ] {
        let Some(handle) = handle_with(family) else { return };
        let configs = if family == KernelFamily::Sm90 { chosen_and_asked() } else { wide.clone() };
        for schemes in [formats.map(Scheme::Fp8Tensor), formats.map(Scheme::Fp8Row)] {
            seed += 2;
            let of = Experts { schemes, ..Experts::new(seed, GROUPS * SLOT, GROUPS) };
            let counts = [0, 1, 127, 128, 129, SLOT];
            let taken: Vec<_> = counts.into_iter().enumerate().map(|(g, count)| (g * SLOT, count)).collect();
            of.in_one(&handle, &taken, None, (&counts.map(|count| count as i64), 0), &configs);
            let of = Experts { schemes, ..Experts::new(seed + 1, 1040, GROUPS) };
            let (starts, counts) = ([0, 256, 256, 384, 896, 1024], [200, 0, 128, 300, 1, 99]);
            let taken = [(0, 200), (256, 0), (256, 128), (384, 300), (896, 1), (1024, 16)];
            of.in_one(&handle, &taken, Some(&starts), (&counts, 1), &configs);
        }
    }
}

/// E4M3 on both sides, with scales of each kind.
const KINDS: [Scheme; 3] = [SCHEME, Scheme::Fp8Row(Fp8Format::E4M3), Scheme::Fp8Tensor(Fp8Format::E4M3)];

/// More than a warp has lanes, of so many tiles that blocks take several.
#[test]
fn many_groups() {
    let Some(handle) = hopper() else { return };
    let groups = 70;
    let count = |g: usize| [0, 128, 0, 77, 1][g % 5] * usize::from(!(32..64).contains(&g));
    let taken: Vec<_> = (0..groups).map(|g| (g * 128, count(g))).collect();
    let counts: Vec<_> = (0..groups).map(|g| count(g) as i64).collect();
    for scheme in KINDS {
        let of = Experts { schemes: [scheme; 2], ..Experts::new(71, groups * 128, groups) };
        of.in_one(&handle, &taken, None, (&counts, 0), &chosen_and_asked());
    }
}

/// All operands in one allocation, 0xFF between them and between rows of dW: the bits of one product a group, and no more than dW of groups that have rows is written.
#[test]
fn operands_between_guards() {
    let Some(handle) = hopper() else { return };
    KINDS.into_iter().for_each(|scheme| check_between_guards(&handle, scheme));
}

fn check_between_guards(handle: &Handle, scheme: Scheme) {
    let (rows, starts, counts) = (1040, [0, 256, 256, 384, 896, 1024], [200, 0, 128, 300, 1, 99]);
    let taken = [(0, 200), (256, 0), (256, 128), (384, 300), (896, 1), (1024, 16)];
    let mut of = Experts { schemes: [scheme; 2], ..Experts::new(89, rows, GROUPS) };
    of.dw.chunks_mut(STRIDE).for_each(|row| row[FEATURES..].fill(f32::NAN));
    // Up to the end of the last row.
    let upto = GROUPS * OUT * STRIDE - (STRIDE - FEATURES);
    let want = bytes_of(DType::F32, &of.one_by_one(handle, &taken)[..upto]);
    let [dy_t, x_t] =
        of.cleared(&taken).map(|x| reference::quantize_transposed(x.view(), DType::Bf16, Recipe::new(scheme)).unwrap());
    for config in chosen_and_asked() {
        let mut arena = Arena::new(handle, 8 << 20);
        let mut dw = arena.place(handle, &bytes_of(DType::F32, &of.dw[..upto]), 16);
        let at = arena.last();
        let written: Vec<_> = (0..GROUPS)
            .filter(|g| taken[*g].1 > 0)
            .flat_map(|g| places_of_rows(at.start + g * OUT * STRIDE * 4, OUT, FEATURES * 4, STRIDE * 4))
            .collect();
        let [dy_t, x_t] = [&dy_t, &x_t].map(|host| arena.matrix(handle, host));
        let [starts, counts] = [&starts, &counts].map(|numbers| arena.numbers(handle, numbers));
        let before = arena.ready(handle);
        let rows = GroupedRows::Contiguous { starts: starts.view(), counts: counts.view() };
        let to = GroupedWeightGradient::whole(&dy_t, &x_t, GROUPS, rows, target(&mut dw, GROUPS));
        let to = if let Some(config) = config { to.config(config) } else { to };
        handle.grouped_weight_gradient(to).unwrap();
        let after = arena.read_behind(handle, &before, &written, &format!("{scheme}, {config:?}"));
        assert!(after[at.clone()] == want, "{scheme}, {config:?}: other bits than one by one");
    }
}

/// Zeros between groups, casts and gradients in one graph.
#[test]
fn a_captured_graph_takes_any_counts() {
    let Some(handle) = hopper() else { return };
    handle.load_kernels(&[KernelFamily::Sm90, KernelFamily::Fp8, KernelFamily::Grouped]).unwrap();
    let rows = GROUPS * SLOT;
    let of = Experts::new(73, rows, GROUPS);
    let mut counts = handle.upload(&[0i64; GROUPS]).unwrap();
    let mut on = [OUT, FEATURES].map(|cols| handle.alloc(rows * cols * 2).unwrap());
    let [mut dy_t, mut x_t] = [OUT, FEATURES].map(|cols| QuantMatrix::zeros(&handle, SCHEME, cols, rows).unwrap());
    let mut dw = handle.upload(&of.dw).unwrap();
    let graph = capture_owned(&handle, || {
        let places = || GroupedRows::Masked { slot_rows: SLOT, counts: counts.view() };
        for (on, to) in on.iter_mut().zip([&mut dy_t, &mut x_t]) {
            let cols = to.rows();
            handle.clear_between_groups(
                &mut MatMut::new(&mut *on, DType::Bf16, rows, cols)?,
                GROUPS,
                &places(),
                None,
            )?;
            let x = MatRef::new(&*on, DType::Bf16, rows, cols)?;
            handle.quantize_into(&x, Recipe::new(SCHEME), QuantizeTo::Transposed(to))?;
        }
        let of = GroupedWeightGradient::whole(&dy_t, &x_t, GROUPS, places(), target(&mut dw, GROUPS));
        handle.grouped_weight_gradient(of.expected_rows(100))
    });
    let graph = graph.unwrap();
    for found in [[0, 1, 127, 128, 129, SLOT], [SLOT; GROUPS], [0; GROUPS], [300, 0, 0, 0, 0, 7]] {
        let taken: Vec<_> = found.into_iter().enumerate().map(|(g, count)| (g * SLOT, count)).collect();
        for (on, all) in on.iter_mut().zip([&of.dy, &of.x]) {
            // Between groups lies anything.
            let mut all = all.clone();
            for (start, count) in &taken {
                all.slice_mut(s![start + count..start + SLOT, ..]).fill(f32::NAN);
            }
            handle.write(&mut on.view_mut(), &bytes_of(DType::Bf16, all.iter())).unwrap();
        }
        handle.write(&mut counts.view_mut(), &found.map(|count| count as i64)).unwrap();
        handle.write(&mut dw.view_mut(), &of.dw).unwrap();
        handle.launch(&graph).unwrap();
        let (found_dw, want) = (handle.read::<f32>(&dw.view()).unwrap(), of.one_by_one(&handle, &taken));
        let same = found_dw.iter().zip(&want).all(|(found, want)| found.to_bits() == want.to_bits());
        assert!(same, "counts {found:?}");
    }
}

/// One product a group of slots of every pair of schemes that is multiplied: added to what dW holds, within the bound of the codes that the CPU makes of each slot;
/// captured. Pairs that no product has are refused.
#[test]
fn one_product_a_group_of_every_pair() {
    let Some(handle) = handle() else { return };
    let (groups, slot, [e4m3, e5m2]) = (3, 256, [Fp8Format::E4M3, Fp8Format::E5M2]);
    let of = Experts::new(79, groups * slot, groups);
    let [dy_on, x_on] = [&of.dy, &of.x].map(|x| handle.upload(&bytes_of(DType::Bf16, x)).unwrap());
    let on = |on, cols| MatRef::new(on, DType::Bf16, groups * slot, cols).unwrap();
    let (dy, x) = (on(&dy_on, OUT), on(&x_on, FEATURES));
    let before = Array2::from_shape_vec((groups * OUT, STRIDE), of.dw.clone()).unwrap();
    let mut multiplied = 0;
    for (dy_scheme, x_scheme) in [
        (Scheme::Fp8Tensor(e4m3), Scheme::Fp8Tensor(e4m3)),
        (Scheme::Fp8Tensor(e5m2), Scheme::Fp8Tensor(e4m3)),
        (Scheme::Fp8Row(e4m3), Scheme::Fp8Row(e4m3)),
        (Scheme::Fp8Row(e5m2), Scheme::Fp8Row(e4m3)),
        (Scheme::Fp8Group1x128(e5m2), Scheme::Fp8Group1x128(e4m3)),
        (Scheme::Fp8Group1x128(e4m3), Scheme::Fp8Group128x128(e4m3)),
        (Scheme::Mxfp8(e4m3), Scheme::Mxfp8(e4m3)),
        (Scheme::Mxfp8(e5m2), Scheme::Mxfp8(e4m3)),
        (Scheme::Mxfp4, Scheme::Mxfp4),
        (Scheme::Nvfp4, Scheme::Nvfp4),
        (Scheme::Nvfp4Row, Scheme::Nvfp4Row),
        (Scheme::Nvfp4Row, Scheme::Nvfp4),
        // Of two matrices in E5M2, of scales that do not go together, and of tiles on both sides there is no product.
        (Scheme::Fp8Tensor(e5m2), Scheme::Fp8Tensor(e5m2)),
        (Scheme::Fp8Row(e4m3), Scheme::Fp8Tensor(e4m3)),
        (Scheme::Fp8Group128x128(e4m3), Scheme::Fp8Group128x128(e4m3)),
        (Scheme::Nvfp4, Scheme::Mxfp8(e4m3)),
    ] {
        let what = format!("{dy_scheme} x {x_scheme}");
        let slots =
            |scheme, rows| -> Vec<_> { (0..groups).map(|_| poisoned_matrix(&handle, scheme, rows, slot)).collect() };
        let (mut dy_t, mut x_t) = (slots(dy_scheme, OUT), slots(x_scheme, FEATURES));
        let mut dw = handle.upload(&of.dw).unwrap();
        let step = |dw: &mut DeviceBuffer, dy_t: &mut [QuantMatrix], x_t: &mut [QuantMatrix]| {
            handle.quantize_slots_transposed_into(&dy, Recipe::new(dy_scheme), dy_t)?;
            handle.quantize_slots_transposed_into(&x, Recipe::new(x_scheme), x_t)?;
            handle.grouped_weight_gradient(GroupedWeightGradient::new(dy_t, x_t, target(dw, groups)))
        };
        let desc = GemmDesc::new(OUT, FEATURES, slot, dy_scheme, x_scheme, DType::F32);
        let served = handle.supports(&desc.with_accumulate(Accumulate::Add));
        let done = step(&mut dw, &mut dy_t, &mut x_t);
        if served.is_err() {
            let text = done.unwrap_err().to_string();
            assert!(text.contains(&what), "{what}: {text}");
            assert!(handle.read::<f32>(&dw.view()).unwrap() == of.dw, "{what}: a refused product was stored");
            println!("refused: {text}");
            continue;
        }
        done.unwrap_or_else(|e| panic!("{what}: {e}"));
        multiplied += 1;
        let found = handle.read::<f32>(&dw.view()).unwrap();
        let all = Array2::from_shape_vec((groups * OUT, STRIDE), found.clone()).unwrap();
        assert!(all.slice(s![.., FEATURES..]) == before.slice(s![.., FEATURES..]), "{what}: written between rows");
        for g in 0..groups {
            let rows = s![g * slot..(g + 1) * slot, ..];
            let cast = |x: &Array2<f32>, scheme| {
                reference::quantize_transposed(x.slice(rows), DType::Bf16, Recipe::new(scheme)).unwrap()
            };
            let (a, b) = (cast(&of.dy, dy_scheme), cast(&of.x, x_scheme));
            assert_device_bits(&handle, &dy_t[g], &a, &format!("{what}: dY of group {g}"));
            assert_device_bits(&handle, &x_t[g], &b, &format!("{what}: X of group {g}"));
            let part = s![g * OUT..(g + 1) * OUT, ..FEATURES];
            let wide = dy_scheme.spec().block.is_some();
            let accumulator = if wide { Accumulator::TensorCoreWide } else { Accumulator::TensorCorePromoted };
            let old = before.slice(part).to_owned();
            let inputs = GemmInputs { accumulate: Some((1.0, old.view())), ..GemmInputs::new(&a, &b, DType::F32) };
            let bound = gemm_bound(&inputs, accumulator, Gelu::Ieee).unwrap();
            bound.check(all.slice(part).to_owned().view()).unwrap_or_else(|e| panic!("{what}, group {g}: {e}"));
        }
        // Planned by then.
        let graph = capture_owned(&handle, || step(&mut dw, &mut dy_t, &mut x_t)).unwrap();
        handle.write(&mut dw.view_mut(), &of.dw).unwrap();
        handle.launch(&graph).unwrap();
        assert!(handle.read::<f32>(&dw.view()).unwrap() == found, "{what}, captured");
    }
    let hopper = KernelFamily::Sm90.runs_on(handle.device().compute_capability);
    assert!(!hopper || multiplied == 12, "{multiplied} pairs are multiplied, and twelve were");
}

#[test]
fn what_does_not_fit_together_is_refused() {
    let Some(handle) = handle() else { return };
    let zeros = |scheme, rows, cols| QuantMatrix::zeros(&handle, scheme, rows, cols).unwrap();
    let [dy_t, x_t] = [OUT, FEATURES].map(|rows| zeros(SCHEME, rows, 2 * SLOT));
    let numbers = handle.upload(&[0i64, 0]).unwrap();
    let slots = |slot_rows| GroupedRows::Masked { slot_rows, counts: numbers.view() };
    let mut dw = handle.alloc(3 * OUT * STRIDE * 4).unwrap();
    let mut of = |dy: &QuantMatrix, x: &QuantMatrix, groups, rows, [dw_rows, dw_cols]: [usize; 2], dtype| {
        let dw = MatMut::new(&mut dw, dtype, dw_rows, dw_cols)?;
        let mut of = GroupedWeightGradient::whole(dy, x, groups, rows, dw).config(Sm90Config::Tile64x64);
        let text = of.explain(&handle)?;
        handle.grouped_weight_gradient(of).map(|()| text)
    };
    let refused = |result: Result<String>, words: &[&str]| {
        let text = result.unwrap_err().to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
    };
    let (shape, f32) = ([2 * OUT, FEATURES], DType::F32);
    if !KernelFamily::Sm90.runs_on(handle.device().compute_capability) {
        refused(of(&dy_t, &x_t, 2, slots(SLOT), shape, f32), &["for sm_90", "GroupedWeightGradient::new"]);
        return;
    }
    let text = of(&dy_t, &x_t, 2, slots(SLOT), shape, f32).unwrap();
    assert!(text.contains("one launch of 64x64") && text.contains("2 groups along k of 768 rows"), "{text}");
    of(&dy_t, &x_t, 0, slots(SLOT), [0, FEATURES], f32).unwrap();
    refused(of(&dy_t, &x_t, 2, slots(192), shape, f32), &["768 rows for 2 slots of 192", "multiple of 128"]);
    refused(of(&dy_t, &x_t, 2, slots(512), shape, f32), &["768 rows for 2 slots of 512"]);
    refused(of(&dy_t, &x_t, 3, slots(128), [3 * OUT, FEATURES], f32), &["counts of groups", "16 bytes", "24"]);
    refused(of(&dy_t, &x_t, 2, slots(SLOT), [OUT, FEATURES], f32), &["dW: 336 x 272", "2 * 336 x 272"]);
    refused(of(&dy_t, &x_t, 2, slots(SLOT), shape, DType::Bf16), &["dW", "bf16", "is not f32"]);
    let short = zeros(SCHEME, FEATURES, SLOT);
    refused(of(&dy_t, &short, 2, slots(SLOT), shape, f32), &["X of a grouped weight gradient", "768 columns"]);
    // Each has one scale for each row, or one.
    for scheme in [Scheme::Fp8Tensor(Fp8Format::E4M3), Scheme::Fp8Row(Fp8Format::E4M3)] {
        let [dy_t, x_t] = [OUT, FEATURES].map(|rows| zeros(scheme, rows, 2 * SLOT));
        let text = of(&dy_t, &x_t, 2, slots(SLOT), shape, f32).unwrap();
        assert!(text.contains(&format!("our kernels for sm_90 serve {scheme} x {scheme}")), "{text}");
    }
    let mixed = [
        zeros(Scheme::Fp8Row(Fp8Format::E4M3), OUT, 2 * SLOT),
        zeros(Scheme::Fp8Tensor(Fp8Format::E4M3), FEATURES, 2 * SLOT),
    ];
    refused(
        of(&mixed[0], &mixed[1], 2, slots(SLOT), shape, f32),
        &["fp8-row:e4m3", "fp8-tensor:e4m3", "on both sides"],
    );
    let wide = Scheme::Fp8Group1x128(Fp8Format::E5M2);
    let [wide_dy_t, wide_x_t] = [OUT, FEATURES].map(|rows| zeros(wide, rows, 2 * SLOT));
    for (dy, x) in [(&wide_dy_t, &wide_x_t), (&dy_t, &zeros(Scheme::Mxfp8(Fp8Format::E4M3), FEATURES, 2 * SLOT))] {
        let words = [
            "fp8-1x128, fp8-row or fp8-tensor on both sides, with e5m2 on at most one",
            "quantize_slots_transposed_into",
        ];
        refused(of(dy, x, 2, slots(SLOT), shape, f32), &words);
    }
    // `of` asks for 64x64.
    refused(of(&wide_dy_t, &x_t, 2, slots(SLOT), shape, f32), &["64x64 of a product of e5m2 codes (A)", "of groups"]);
    // A configuration is for one launch.
    let alone = [zeros(SCHEME, OUT, SLOT), zeros(SCHEME, FEATURES, SLOT)];
    let mut d = handle.alloc(OUT * FEATURES * 4).unwrap();
    let d = MatMut::new(&mut d, DType::F32, OUT, FEATURES).unwrap();
    let of = GroupedWeightGradient::new(&alone[..1], &alone[1..], d).config(Sm90Config::Tile64x64);
    let text = handle.grouped_weight_gradient(of).unwrap_err().to_string();
    assert!(text.contains("64x64 of one product a group") && text.contains("GroupedWeightGradient::whole"), "{text}");
    // Counts are read by one launch.
    let mut counter = handle.alloc(4).unwrap();
    let mut d = handle.alloc(OUT * FEATURES * 4).unwrap();
    let d = MatMut::new(&mut d, DType::F32, OUT, FEATURES).unwrap();
    let of = GroupedWeightGradient::new(&alone[..1], &alone[1..], d).clamped(counter.view_mut());
    let text = handle.grouped_weight_gradient(of).unwrap_err().to_string();
    assert!(text.contains("clamped groups with one product") && text.contains("clear_between_groups"), "{text}");
    let rows = slots(SLOT);
    let mut dw = handle.alloc(2 * OUT * FEATURES * 4).unwrap();
    let dw = MatMut::new(&mut dw, DType::F32, 2 * OUT, FEATURES).unwrap();
    let mut all = counter.view_mut();
    let of = GroupedWeightGradient::whole(&dy_t, &x_t, 2, rows, dw).clamped(all.part(0..2).unwrap());
    let text = handle.grouped_weight_gradient(of).unwrap_err().to_string();
    assert!(text.contains("count of clamped groups") && text.contains("2 bytes"), "{text}");
    // Refused before the product: gradients that were added could not be taken back.
    let rows = slots(SLOT);
    let mut dw = handle.upload(&vec![f32::NAN; 2 * OUT * FEATURES]).unwrap();
    let mut two = handle.alloc(8).unwrap();
    let mut all = two.view_mut();
    let d = MatMut::new(&mut dw, DType::F32, 2 * OUT, FEATURES).unwrap();
    let of = GroupedWeightGradient::whole(&dy_t, &x_t, 2, rows, d).clamped(all.part(2..6).unwrap());
    let text = handle.grouped_weight_gradient(of).unwrap_err().to_string();
    assert!(text.contains("count of clamped groups") && text.contains("4-byte aligned"), "{text}");
    let left: Vec<f32> = handle.read(&dw.view()).unwrap();
    assert!(left.iter().all(|v| v.is_nan()), "a refused product was stored");
}
