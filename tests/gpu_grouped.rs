//! Grouped tensors on the device equal the reference byte for byte: members of any shapes and places, every scheme, type and rule, both
//! orders, gradients of activations; gaps are neither read nor written; what a device's numbers may say, and launches that find others.
#![cfg(feature = "cuda")]

mod common;

use common::*;
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::reference::{self, GroupedView, dequantize_grouped, quantize_grouped, quantize_grouped_with_scales};
use scaled_gemm::{
    ActivationGradient, DType, DeviceBytes, Fp8Format, Fp8Rule, GivenScale, GroupedDeviceLayout, GroupedLayout,
    GroupedRecipe, GroupedScheme, GroupedSource, GroupedTensor, GroupedTo, Handle, HostGroupedTensor, KernelFamily,
};

const TYPES: [DType; 3] = [DType::Bf16, DType::F16, DType::F32];
/// What no kernel may read: larger than all values, and a number, since a maximum ignores NaN.
const GAP: f32 = 57344.0;
/// What codes and values hold before, and gaps afterwards.
const POISON: u8 = 0xAA;

/// Ragged rows, ragged columns, both, one row, one column, members without elements, and one of several chunks and tiles.
const SHAPES: [[usize; 2]; 12] =
    [[0, 16], [3, 16], [5, 7], [1, 1], [0, 0], [130, 48], [7, 0], [1, 33], [40, 1], [67, 129], [16, 32], [4, 0]];

/// T matrices, every seventh without elements.
fn many(count: usize) -> Vec<[usize; 2]> {
    (0..count).map(|t| if t % 7 == 3 { [0, 16] } else { [1 + t % 5, [16, 1, 32, 7][t % 4]] }).collect()
}

/// With gaps of all lengths before, between and behind members that begin anywhere.
fn with_gaps(shapes: &[[usize; 2]], first: usize) -> GroupedLayout {
    let (mut offsets, mut end) = (Vec::new(), first);
    for (t, [rows, cols]) in shapes.iter().enumerate() {
        offsets.push(end);
        end += rows * cols + t * 3 % 11;
    }
    GroupedLayout::new(shapes, &offsets, end + 3).unwrap()
}

fn layouts(shapes: &[[usize; 2]]) -> [GroupedLayout; 3] {
    let [packed, aligned] = [1, 64].map(|alignment| GroupedLayout::aligned(shapes, alignment).unwrap());
    [packed, aligned, with_gaps(shapes, 5)]
}

/// Normal numbers, each member of another magnitude, some of its values special.
fn values(layout: &GroupedLayout, dtype: DType, seed: u64) -> Vec<f32> {
    let mut noise = Noise::new(seed);
    let mut values = vec![round_to(dtype, GAP); layout.buffer_len()];
    for (t, member) in layout.members().iter().enumerate() {
        let magnitude = 2f32.powi((t as i32 * 5) % 19 - 9);
        for (at, v) in values[member.range()].iter_mut().enumerate() {
            *v = match (noise.below(61), at) {
                (0, 1..) => f32::NAN,
                (1, _) => -0.0,
                (2, _) if t % 9 == 5 => f32::NEG_INFINITY,
                _ => round_to(dtype, noise.normal() * magnitude),
            };
        }
    }
    values
}

/// Values on the device, which begin so many elements behind an allocation.
struct Values {
    data: CudaSlice<u8>,
    dtype: DType,
    skip: usize,
}

impl Values {
    fn new(handle: &Handle, values: &[f32], dtype: DType, skip: usize) -> Self {
        let lead = vec![round_to(dtype, GAP); skip];
        Self { data: upload(handle, &bytes_of(dtype, lead.iter().chain(values))), dtype, skip }
    }

    fn bytes(&self) -> DeviceBytes<'_> {
        self.data.slice(self.skip * self.dtype.bytes()..).into()
    }

    fn source(&self) -> GroupedSource<'_> {
        GroupedSource::new(self.bytes(), self.dtype).unwrap()
    }
}

/// A tensor that no correct one looks like, in this layout.
fn poisoned_grouped(handle: &Handle, scheme: GroupedScheme, layout: &GroupedDeviceLayout) -> GroupedTensor {
    let codes = handle.upload(&vec![POISON; layout.buffer_len()]).unwrap();
    let scales = handle.upload(&vec![f32::NAN; scheme.scales().count(layout.members())]).unwrap();
    GroupedTensor::from_parts(scheme, layout.share().unwrap(), codes, scales).unwrap()
}

/// `got` of members and poison elsewhere, `size` bytes an element, or a panic that says where not.
#[track_caller]
fn assert_members(got: &[u8], want: &[u8], layout: &GroupedLayout, size: usize, what: &str) {
    let mut expected = vec![POISON; got.len()];
    for member in layout.members() {
        let range = member.range().start * size..member.range().end * size;
        expected[range.clone()].copy_from_slice(&want[range]);
    }
    if let Some(at) = (0..got.len()).find(|at| got[*at] != expected[*at]) {
        let t = layout.members().iter().position(|member| member.range().contains(&(at / size)));
        panic!("{what}: byte {at}, member {t:?}, is {:#04x}, must be {:#04x}", got[at], expected[at]);
    }
}

#[track_caller]
fn assert_floats(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    let wrong = (0..got.len()).find(|t| got[*t].to_bits() != want[*t].to_bits());
    assert!(wrong.is_none(), "{what}: {wrong:?}: {:e}, must be {:e}", got[wrong.unwrap()], want[wrong.unwrap()]);
}

/// Codes of members, gaps, and scales.
#[track_caller]
fn assert_tensor(handle: &Handle, got: &GroupedTensor, want: &HostGroupedTensor, what: &str) {
    assert_eq!(got.scheme(), want.scheme(), "{what}");
    assert_members(&handle.read_bytes(&got.codes()).unwrap(), want.codes(), want.layout(), 1, what);
    assert_floats(&handle.read::<f32>(&got.scales()).unwrap(), want.scales(), &format!("scales, {what}"));
}

/// What a quantization is of: how the device is told, and the reference.
struct Case<'a> {
    layout: &'a GroupedLayout,
    places: &'a GroupedDeviceLayout,
    input: reference::GroupedInput<'a>,
    source: &'a dyn Fn() -> GroupedSource<'a>,
}

impl Case<'_> {
    /// Current scaling by one recipe, into one tensor, or two if its scheme is by rows.
    fn current(&self, handle: &Handle, recipe: GroupedRecipe, what: &str) {
        let what = format!("{what}, {} members, {}, current", self.layout.members().len(), recipe.scheme());
        let scheme = recipe.scheme();
        let (want, want_amax) = quantize_grouped(&self.input, recipe).unwrap();
        let mut amax = handle.upload(&vec![7e30f32; want_amax.len()]).unwrap();
        let mut got = poisoned_grouped(handle, scheme, self.places);
        handle.quantize_grouped_into(&(self.source)(), recipe, &mut got, Some(&mut amax.view_mut())).unwrap();
        assert_tensor(handle, &got, &want, &what);
        assert_floats(&handle.read::<f32>(&amax.view()).unwrap(), &want_amax, &format!("amax, {what}"));
        assert_eq!(self.places.clamped(handle).unwrap(), 0, "{what}");
        if !scheme.is_transposed() {
            let mut got = [scheme, scheme.transposed()].map(|scheme| poisoned_grouped(handle, scheme, self.places));
            let [rows, cols] = &mut got;
            handle.quantize_grouped_into(&(self.source)(), recipe, GroupedTo::Both(rows, cols), None).unwrap();
            assert_tensor(handle, rows, &want, &format!("{what}, both"));
            assert_tensor(handle, cols, &want.transpose(), &format!("{what}, both, transposed"));
        }
    }

    /// Given scales, of both kinds; a running amax of which some numbers are larger than what is found.
    fn given(&self, handle: &Handle, scheme: GroupedScheme, what: &str) -> HostGroupedTensor {
        let count = scheme.scales().count(self.layout.members().len());
        let numbers: Vec<f32> = (0..count).map(|t| 1.5 + 0.5 * (t % 100) as f32).collect();
        let device = handle.upload(&numbers).unwrap();
        let mut last = None;
        for decode in [true, false] {
            let what = format!("{what}, {} members, {scheme}, decode {decode}", self.layout.members().len());
            let (given, on_device) = match decode {
                true => (GivenScale::Decode(&numbers[..]), GivenScale::Decode(device.view())),
                false => (GivenScale::Encode(&numbers[..]), GivenScale::Encode(device.view())),
            };
            let (want, found) = quantize_grouped_with_scales(&self.input, scheme, given).unwrap();
            let mut running: Vec<f32> = (0..count).map(|t| if t % 3 == 1 { 1e5 } else { 0.0 }).collect();
            let mut amax = handle.upload(&running).unwrap();
            let mut got = poisoned_grouped(handle, scheme, self.places);
            let raised = Some(&mut amax.view_mut());
            handle.quantize_grouped_with_scales_into(&(self.source)(), scheme, &on_device, &mut got, raised).unwrap();
            assert_tensor(handle, &got, &want, &what);
            reference::raise_amax(&mut running, &found).unwrap();
            assert_floats(&handle.read::<f32>(&amax.view()).unwrap(), &running, &format!("amax, {what}"));
            last = Some(want);
        }
        last.unwrap()
    }
}

/// Back to each type, into memory that begins anywhere.
fn check_back(handle: &Handle, q: &HostGroupedTensor, what: &str) {
    let device = GroupedTensor::from_host(handle, q).unwrap();
    for (dtype, skip) in TYPES.into_iter().flat_map(|dtype| [(dtype, 0), (dtype, 1)]) {
        let what = format!("{what}, {}, back to {dtype}, {skip} behind", q.scheme());
        let lead = skip * dtype.bytes();
        let bytes = q.layout().buffer_len() * dtype.bytes();
        let mut y = upload(handle, &vec![POISON; lead + bytes + 32]);
        handle.dequantize_grouped_into(&device, &mut (&mut y.slice_mut(lead..)).into(), dtype).unwrap();
        let got = handle.stream().clone_dtoh(&y).unwrap();
        let want = dequantize_grouped(q, dtype);
        let expected = bytes_of(dtype, &want);
        // The payload of a NaN is the device's own.
        let mut got_values = got[lead..lead + bytes].to_vec();
        for (at, _) in want.iter().enumerate().filter(|(_, v)| v.is_nan()) {
            let range = at * dtype.bytes()..(at + 1) * dtype.bytes();
            assert!(values_of(dtype, &got_values[range.clone()])[0].is_nan(), "{what}: {at} must be NaN");
            got_values[range.clone()].copy_from_slice(&expected[range]);
        }
        assert_members(&got_values, &expected, q.layout(), dtype.bytes(), &what);
        let outside = got[..lead].iter().chain(&got[lead + bytes..]);
        assert!(outside.into_iter().all(|byte| *byte == POISON), "{what}: written outside");
    }
}

/// Plain values by these recipes, from memory that begins so many elements behind an allocation.
fn check_plain(handle: &Handle, layout: &GroupedLayout, dtype: DType, skip: usize, recipes: &[GroupedRecipe]) {
    let x = values(layout, dtype, 61 + skip as u64);
    let data = Values::new(handle, &x, dtype, skip);
    let places = GroupedDeviceLayout::from_host(handle, layout).unwrap();
    assert_eq!(&places.to_host(handle).unwrap(), layout);
    let input = GroupedView::new(layout, &x).unwrap().into();
    let case = Case { layout, places: &places, input, source: &|| data.source() };
    let what = format!("{dtype}, {skip} behind");
    for recipe in recipes {
        case.current(handle, *recipe, &format!("{what}, {recipe:?}"));
    }
    for scheme in GroupedScheme::all() {
        let q = case.given(handle, scheme, &what);
        check_back(handle, &q, &what);
    }
}

fn plain_recipes() -> Vec<GroupedRecipe> {
    GroupedScheme::all().map(GroupedRecipe::new).collect()
}

const GRADIENTS: [ActivationGradient; 5] = ActivationGradient::ALL;

/// A gradient and x of types, offsets and gaps of their own.
fn check_gradient(
    handle: &Handle,
    of: ActivationGradient,
    shapes: &[[usize; 2]],
    [g_type, x_type]: [DType; 2],
    skips: [usize; 2],
    schemes: &[GroupedScheme],
) {
    for (layout, x_layout) in [(0, 0), (0, 1), (2, 1), (2, 2), (1, 2)].map(|(g, x)| {
        let all = layouts(shapes);
        (all[g].clone(), all[x].clone())
    }) {
        let (g, mut x) = (values(&layout, g_type, 71), values(&x_layout, x_type, 72));
        // Where slopes change, and where exponentials leave FP32.
        for (at, v) in x.iter_mut().enumerate().filter(|(at, _)| at % 5 == 0) {
            let special = [0.0, -0.0, 0.75, -0.6, 5.0, -90.0, 95.0, -200.0, f32::INFINITY, 30.0, 3e4];
            *v = round_to(x_type, special[at / 5 % special.len()]);
        }
        let (g_data, x_data) = (Values::new(handle, &g, g_type, skips[0]), Values::new(handle, &x, x_type, skips[1]));
        let places = GroupedDeviceLayout::from_host(handle, &layout).unwrap();
        let x_places = GroupedDeviceLayout::from_host(handle, &x_layout).unwrap();
        let views = [GroupedView::new(&layout, &g).unwrap(), GroupedView::new(&x_layout, &x).unwrap()];
        let input = reference::GroupedInput::activation_gradient(of, views[0], views[1]).unwrap();
        let source = || g_data.source().of_activation(of, x_data.bytes(), x_type, &x_places).unwrap();
        let case = Case { layout: &layout, places: &places, input, source: &source };
        let what = format!("gradient of {of}, {g_type} and {x_type}, {skips:?} behind");
        for scheme in schemes {
            case.current(handle, GroupedRecipe::new(*scheme), &what);
            case.given(handle, *scheme, &what);
        }
    }
}

/// Small, for runs under a sanitizer: each kernel.
#[test]
fn each_kernel_once() {
    let Some(handle) = handle() else { return };
    let shapes = &SHAPES[..9];
    for (dtype, skip) in TYPES.into_iter().flat_map(|dtype| [(dtype, 0), (dtype, 3)]) {
        check_plain(&handle, &with_gaps(shapes, 5), dtype, skip, &plain_recipes()[..2]);
        let schemes = [GroupedScheme::new(Fp8Format::E4M3), GroupedScheme::new(Fp8Format::E5M2).transposed()];
        check_gradient(&handle, ActivationGradient::Silu, &shapes[..6], [dtype, DType::Bf16], [skip, 0], &schemes);
    }
}

#[test]
fn members_of_any_number_and_place() {
    let Some(handle) = handle() else { return };
    for shapes in [vec![], vec![[3, 16]], vec![[0, 7]], SHAPES.to_vec(), many(70), many(1000), many(2049)] {
        for layout in layouts(&shapes) {
            for (dtype, skip) in [(DType::Bf16, 0), (DType::F32, 0), (DType::F16, 8), (DType::Bf16, 1)] {
                check_plain(&handle, &layout, dtype, skip, &plain_recipes());
            }
        }
    }
}

#[test]
fn every_rule() {
    let Some(handle) = handle() else { return };
    let of = |recipe: GroupedRecipe| {
        let rules = Fp8Rule::ALL.into_iter().filter(move |rule| rule.has(recipe.scheme().format()));
        rules.map(move |rule| recipe.with_rule(rule))
    };
    let exact: Vec<_> = plain_recipes().into_iter().flat_map(of).collect();
    let recipes: Vec<_> = exact.iter().flat_map(|recipe| [*recipe, recipe.power_of_two()]).collect();
    check_plain(&handle, &with_gaps(&SHAPES, 5), DType::Bf16, 0, &recipes);
}

/// More than blocks have parts, members that many blocks share, and a maximum at either end of one.
#[test]
fn large_members() {
    let Some(handle) = handle() else { return };
    let shapes = [[1, 5], [3001, 1000], [0, 3], [777, 2048], [1, 3_000_001], [600_000, 1], [64, 64]];
    for layout in [with_gaps(&shapes, 3), GroupedLayout::aligned(&shapes, 128).unwrap()] {
        let mut x = values(&layout, DType::Bf16, 5);
        for (t, member) in layout.members().iter().enumerate().filter(|(_, member)| member.elements() > 0) {
            let at = if t % 2 == 0 { member.range().end - 1 } else { member.offset() };
            x[at] = 8192.0 * (1 + t % 4) as f32;
        }
        let data = Values::new(&handle, &x, DType::Bf16, 0);
        let places = GroupedDeviceLayout::from_host(&handle, &layout).unwrap();
        let input = GroupedView::new(&layout, &x).unwrap().into();
        let case = Case { layout: &layout, places: &places, input, source: &|| data.source() };
        let scheme = GroupedScheme::new(Fp8Format::E4M3);
        for scheme in [scheme, scheme.shared()] {
            case.current(&handle, GroupedRecipe::new(scheme), "large");
            check_back(&handle, &case.given(&handle, scheme.transposed(), "large"), "large");
            check_back(&handle, &case.given(&handle, scheme, "large"), "large");
        }
    }
}

/// The plan takes a thousand rounds.
#[test]
fn a_million_members() {
    let Some(handle) = handle() else { return };
    let shapes: Vec<_> = (0..1 << 20).map(|t| if t % 5 == 0 { [0, 4] } else { [1 + t % 2, 1 + t % 3] }).collect();
    let layout = GroupedLayout::packed(&shapes).unwrap();
    check_plain(&handle, &layout, DType::Bf16, 0, &plain_recipes()[..1]);
}

#[test]
fn gradients_of_every_activation_and_type() {
    let Some(handle) = handle() else { return };
    let e4m3 = GroupedScheme::new(Fp8Format::E4M3);
    for of in GRADIENTS {
        for g_type in TYPES {
            for x_type in TYPES {
                check_gradient(&handle, of, &SHAPES, [g_type, x_type], [0, 0], &[e4m3, e4m3.transposed()]);
            }
        }
        let schemes: Vec<_> = GroupedScheme::all().collect();
        check_gradient(&handle, of, &many(70), [DType::Bf16, DType::F32], [1, 3], &schemes);
    }
}

/// What the device is to make of any numbers: shapes and offsets that a layout may have, and how many were not taken as they are.
fn planned(numbers: &[[i64; 3]], length: usize) -> (GroupedLayout, usize) {
    let (mut shapes, mut offsets, mut clamped) = (Vec::new(), Vec::new(), 0);
    let (mut largest, length_i) = (0, length as i64);
    for (t, [rows, cols, offset]) in numbers.iter().copied().enumerate() {
        let end = numbers.get(t + 1).map_or(length_i, |next| next[2].clamp(0, length_i));
        let valid = rows >= 0 && cols >= 0 && (largest..=length_i).contains(&offset);
        largest = largest.max(offset.clamp(0, length_i));
        let fitting = match valid && rows > 0 && cols > 0 {
            true => rows.min((end - offset).max(0) / cols),
            false => 0,
        };
        clamped += usize::from(!valid || (rows > 0 && cols > 0 && fitting < rows));
        shapes.push(if fitting > 0 { [fitting as usize, cols as usize] } else { [0, 0] });
        offsets.push(largest as usize);
    }
    (GroupedLayout::new(&shapes, &offsets, length).unwrap(), clamped)
}

fn column(numbers: &[[i64; 3]], at: usize) -> Vec<i64> {
    numbers.iter().map(|member| member[at]).collect()
}

#[test]
fn any_numbers_on_the_device() {
    let Some(handle) = handle() else { return };
    const M: i64 = i64::MAX;
    let length = 4000;
    let cases: &[&[[i64; 3]]] = &[
        &[[3, 16, 0], [4, 10, 48], [2, 5, 88]],
        // Past the end, past the next, longer than all, and products that no 64 bits hold.
        &[[10, 500, 0]],
        &[[10, 10, 0], [5, 10, 50], [3, 7, 100]],
        &[[M, 1, 0], [M, M, 3000], [1, M, 3001], [M, 0, 3002], [0, M, 3003], [M, 7, 3004]],
        &[[1 << 32, 1 << 32, 0], [1 << 62, 4, 1000], [2, 3, 2000]],
        // Negative, also where the product is not.
        &[[-1, -1, 0], [-3, 5, 10], [5, i64::MIN, 20], [2, 5, 30], [2, 5, -40], [2, 5, 60], [i64::MIN, i64::MIN, 70]],
        // Below earlier ones: [50, 200) would be in the first.
        &[[10, 10, 0], [1, 1, 100], [15, 10, 50], [2, 3, 200]],
        &[[1, 1, M], [5, 5, 0], [1, 1, 3999]],
        &[[0, 5, 4000], [0, 5, 4001], [1, 1, 4000]],
        &[[2, 5, 3990], [1, 1, 4000]],
        &[[i64::MIN, M, i64::MIN], [M, M, M]],
    ];
    let many = (0..3000usize).map(|t| [[1, 3, -2, M][t % 4], [1, 2, 5][t % 3], t as i64 * 2 - (t % 11) as i64]);
    for numbers in cases.iter().map(|case| case.to_vec()).chain([many.collect::<Vec<[i64; 3]>>()]) {
        let (layout, clamped) = planned(&numbers, length);
        let upload_column = |at| handle.upload(&column(&numbers, at)).unwrap();
        let [rows, cols, offsets] = [0, 1, 2].map(upload_column);
        let places = GroupedDeviceLayout::from_parts(&handle, rows, cols, offsets, length).unwrap();
        assert_eq!(places.to_host(&handle).is_err(), clamped > 0, "{numbers:?}");
        let x = values(&layout, DType::Bf16, 9);
        let data = Values::new(&handle, &x, DType::Bf16, 0);
        let input = GroupedView::new(&layout, &x).unwrap().into();
        for scheme in GroupedScheme::all() {
            let what = format!("{:?}, {scheme}", &numbers[..numbers.len().min(9)]);
            let (want, want_amax) = quantize_grouped(&input, GroupedRecipe::new(scheme)).unwrap();
            let mut amax = handle.alloc(want_amax.len() * 4).unwrap();
            let mut got = poisoned_grouped(&handle, scheme, &places);
            let recipe = GroupedRecipe::new(scheme);
            handle.quantize_grouped_into(&data.source(), recipe, &mut got, Some(&mut amax.view_mut())).unwrap();
            assert_tensor(&handle, &got, &want, &what);
            assert_floats(&handle.read::<f32>(&amax.view()).unwrap(), &want_amax, &what);
            assert_eq!(places.clamped(&handle).unwrap(), clamped, "{what}");

            let mut y = handle.upload(&vec![POISON; length * 4]).unwrap();
            handle.dequantize_grouped_into(&got, &mut y.view_mut(), DType::F32).unwrap();
            let back = handle.read::<f32>(&y.view()).unwrap();
            let poison = f32::from_le_bytes([POISON; 4]);
            let mut expected = vec![poison; length];
            let want_back = dequantize_grouped(&want, DType::F32);
            layout.members().iter().for_each(|m| expected[m.range()].copy_from_slice(&want_back[m.range()]));
            assert_same_values(&back, &expected, 1, &what);
        }
    }
}

/// Rows that the second input has no room for are left out.
#[test]
fn any_numbers_of_a_second_input() {
    let Some(handle) = handle() else { return };
    let (shapes, offsets) = ([[4, 10], [4, 10], [4, 10], [4, 10]], [0, 40, 80, 120]);
    let layout = GroupedLayout::new(&shapes, &offsets, 200).unwrap();
    let places = GroupedDeviceLayout::from_host(&handle, &layout).unwrap();
    // Room for two rows and a part of one, for none, before the start, for one row.
    let x_offsets: [i64; 4] = [0, 25, 20, 85];
    let x_rows = handle.upload(&[-1i64; 4]).unwrap();
    let x_cols = handle.upload(&[i64::MAX; 4]).unwrap();
    let x_places =
        GroupedDeviceLayout::from_parts(&handle, x_rows, x_cols, handle.upload(&x_offsets).unwrap(), 100).unwrap();
    // Rows of each: to 25, to 20 (none), to 85 (all four), to 100.
    let taken = GroupedLayout::new(&[[2, 10], [0, 10], [4, 10], [1, 10]], &offsets, 200).unwrap();
    let x_taken = GroupedLayout::new(&[[2, 10], [0, 10], [4, 10], [1, 10]], &[0, 20, 20, 85], 100).unwrap();
    let (g, x) = (values(&taken, DType::Bf16, 1), values(&x_taken, DType::F16, 2));
    let (g_data, x_data) = (Values::new(&handle, &g, DType::Bf16, 0), Values::new(&handle, &x, DType::F16, 0));
    let views = [GroupedView::new(&taken, &g).unwrap(), GroupedView::new(&x_taken, &x).unwrap()];
    for of in GRADIENTS {
        let input = reference::GroupedInput::activation_gradient(of, views[0], views[1]).unwrap();
        for scheme in GroupedScheme::all() {
            let recipe = GroupedRecipe::new(scheme);
            let (want, _) = quantize_grouped(&input, recipe).unwrap();
            let mut got = poisoned_grouped(&handle, scheme, &places);
            let source = g_data.source().of_activation(of, x_data.bytes(), DType::F16, &x_places).unwrap();
            handle.quantize_grouped_into(&source, recipe, &mut got, None).unwrap();
            assert_tensor(&handle, &got, &want, &format!("{of}, {scheme}"));
            assert_eq!(places.clamped(&handle).unwrap(), 3, "{of}, {scheme}");
        }
    }
}

/// One graph, launched with members of other shapes and places each time.
#[test]
fn captured() {
    let Some(handle) = handle() else { return };
    handle.load_kernels(&[KernelFamily::Grouped]).unwrap();
    let (count, length) = (70, 40_000);
    let planned = GroupedLayout::new(&vec![[0, 0]; count], &vec![0; count], length).unwrap();
    let mut places = GroupedDeviceLayout::from_host(&handle, &planned).unwrap();
    let scheme = GroupedScheme::new(Fp8Format::E4M3);
    let mut got = [scheme, scheme.transposed()].map(|scheme| poisoned_grouped(&handle, scheme, &places));
    let mut given = poisoned_grouped(&handle, scheme.shared(), &places);
    let mut data = handle.alloc(length * 2).unwrap();
    let scale = handle.upload(&[3.0f32]).unwrap();
    let (mut amax, mut y) = (handle.alloc(count * 4).unwrap(), handle.alloc(length * 4).unwrap());
    let graph = capture_owned(&handle, || {
        let source = GroupedSource::new(&data, DType::Bf16)?;
        let [rows, cols] = &mut got;
        let both = GroupedTo::Both(rows, cols);
        handle.quantize_grouped_into(&source, GroupedRecipe::new(scheme), both, Some(&mut amax.view_mut()))?;
        let scale = GivenScale::Encode(scale.view());
        handle.quantize_grouped_with_scales_into(&source, scheme.shared(), &scale, &mut given, None)?;
        handle.dequantize_grouped_into(&got[1], &mut y.view_mut(), DType::F32)
    });
    let graph = graph.unwrap();
    for (round, shapes) in [many(count), vec![[0, 5]; count], vec![[13, 41]; count], many(count)].iter().enumerate() {
        let layout = with_gaps(shapes, 1 + 6 * round);
        let layout =
            GroupedLayout::new(shapes, &layout.members().iter().map(|m| m.offset()).collect::<Vec<_>>(), length)
                .unwrap();
        places.write(&handle, &layout).unwrap();
        let x = values(&layout, DType::Bf16, round as u64);
        handle.write(&mut data.view_mut(), &bytes_of(DType::Bf16, &x)).unwrap();
        for tensor in got.iter_mut().chain([&mut given]) {
            handle.write(&mut tensor.codes_mut(), &vec![POISON; length]).unwrap();
        }
        handle.write(&mut y.view_mut(), &vec![POISON; length * 4]).unwrap();
        handle.launch(&graph).unwrap();
        let input = GroupedView::new(&layout, &x).unwrap().into();
        let (want, want_amax) = quantize_grouped(&input, GroupedRecipe::new(scheme)).unwrap();
        let what = format!("launch {round}");
        assert_tensor(&handle, &got[0], &want, &what);
        assert_tensor(&handle, &got[1], &want.transpose(), &what);
        assert_floats(&handle.read::<f32>(&amax.view()).unwrap(), &want_amax, &what);
        let (shared, _) = quantize_grouped_with_scales(&input, scheme.shared(), GivenScale::Encode(&[3.0])).unwrap();
        assert_tensor(&handle, &given, &shared, &what);
        assert_eq!(&got[0].to_host(&handle).unwrap(), &want, "{what}");
        let back = handle.read::<f32>(&y.view()).unwrap();
        let want_back = dequantize_grouped(&want, DType::F32);
        for member in layout.members() {
            assert_same_values(&back[member.range()], &want_back[member.range()], 1, &what);
        }
    }
}

#[test]
fn refusals() {
    let Some(handle) = handle() else { return };
    let layout = with_gaps(&SHAPES, 5);
    let (length, count) = (layout.buffer_len(), layout.members().len());
    let places = GroupedDeviceLayout::from_host(&handle, &layout).unwrap();
    let scheme = GroupedScheme::new(Fp8Format::E4M3);
    let zeros = |scheme| GroupedTensor::zeros(&handle, scheme, places.share().unwrap()).unwrap();
    let (mut out, mut transposed) = (zeros(scheme), zeros(scheme.transposed()));
    let data = handle.alloc(length * 4).unwrap();
    let source = GroupedSource::new(&data, DType::F32).unwrap();
    let recipe = GroupedRecipe::new(scheme);
    let fails = |result: scaled_gemm::Result<()>, says: &[&str]| {
        let said = result.unwrap_err().to_string();
        assert!(says.iter().all(|part| said.contains(part)), "{said:?} lacks one of {says:?}");
    };

    fails(GroupedSource::new(&data, DType::E4M3).map(drop), &["e4m3", "bf16"]);
    let short = handle.alloc(length * 2 - 1).unwrap();
    let half = GroupedSource::new(&short, DType::Bf16).unwrap();
    fails(handle.quantize_grouped_into(&half, recipe, &mut out, None), &["input", "bytes"]);
    fails(handle.quantize_grouped_into(&source, recipe, &mut transposed, None), &["transposed"]);
    let other = GroupedRecipe::new(GroupedScheme::new(Fp8Format::E5M2));
    fails(handle.quantize_grouped_into(&source, other, &mut out, None), &["e4m3", "e5m2"]);
    let other_places = GroupedDeviceLayout::from_host(&handle, &layout).unwrap();
    let mut apart = GroupedTensor::zeros(&handle, scheme.transposed(), other_places).unwrap();
    fails(handle.quantize_grouped_into(&source, recipe, GroupedTo::Both(&mut out, &mut apart), None), &["share"]);
    let mut amax = handle.alloc(count * 4 - 4).unwrap();
    fails(handle.quantize_grouped_into(&source, recipe, &mut out, Some(&mut amax.view_mut())), &["11", "12"]);
    let few = GivenScale::Encode(amax.view());
    fails(handle.quantize_grouped_with_scales_into(&source, scheme, &few, &mut out, None), &["11", "12"]);
    let found = GivenScale::Amax(data.view());
    fails(handle.quantize_grouped_with_scales_into(&source, scheme, &found, &mut out, None), &["amax"]);
    let mut y = handle.alloc(length * 2 - 2).unwrap();
    fails(handle.dequantize_grouped_into(&out, &mut y.view_mut(), DType::Bf16), &["output", "bytes"]);

    let numbers = |count: usize| handle.alloc(count * 8).unwrap();
    let parts = |rows, cols, offsets, length| {
        GroupedDeviceLayout::from_parts(&handle, numbers(rows), numbers(cols), numbers(offsets), length).map(drop)
    };
    fails(parts(3, 2, 3, 16), &["columns", "16 bytes", "24"]);
    fails(parts(3, 3, 4, 16), &["offsets", "32 bytes"]);
    fails(parts(3, 3, 3, usize::MAX), &["buffer"]);
    let longer =
        GroupedLayout::new(&SHAPES, &layout.members().iter().map(|m| m.offset()).collect::<Vec<_>>(), length + 1);
    let mut places = places;
    fails(places.write(&handle, &longer.unwrap()), &["at most"]);
    fails(places.write(&handle, &GroupedLayout::packed(&SHAPES[1..]).unwrap()), &["11 members", "12 members"]);
    let (codes, scales) = (handle.alloc(length - 1).unwrap(), handle.alloc(count * 4).unwrap());
    let shared = places.share().unwrap();
    fails(GroupedTensor::from_parts(scheme, shared, codes, scales).map(drop), &["codes", "elements of its layout"]);
    handle.synchronize().unwrap();
}
