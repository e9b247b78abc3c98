//! What the suite of grouped tensors compares with the reference: members of any shapes and places, values between gaps that no kernel may
//! read, quantizations by any recipe and scales, and the way back.
//!
//! Not a module of `common`: the other suites compile without it.
#![allow(dead_code)]

use crate::common::*;
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::reference::{self, GroupedView, dequantize_grouped, quantize_grouped, quantize_grouped_with_scales};
use scaled_gemm::{
    ActivationGradient, DType, DeviceBytes, GivenScale, GroupedDeviceLayout, GroupedLayout, GroupedRecipe,
    GroupedScheme, GroupedSource, GroupedTensor, GroupedTo, Handle, HostGroupedTensor,
};

pub const TYPES: [DType; 3] = [DType::Bf16, DType::F16, DType::F32];
/// What no kernel may read: larger than all values, and a number, since a maximum ignores NaN.
pub const GAP: f32 = 57344.0;
/// What codes and values hold before, and gaps afterwards.
pub const POISON: u8 = 0xAA;

/// Ragged rows, ragged columns, both, one row, one column, members without elements, and one of several chunks and tiles.
pub const SHAPES: [[usize; 2]; 12] =
    [[0, 16], [3, 16], [5, 7], [1, 1], [0, 0], [130, 48], [7, 0], [1, 33], [40, 1], [67, 129], [16, 32], [4, 0]];

/// T matrices, every seventh without elements.
pub fn many(count: usize) -> Vec<[usize; 2]> {
    (0..count).map(|t| if t % 7 == 3 { [0, 16] } else { [1 + t % 5, [16, 1, 32, 7][t % 4]] }).collect()
}

/// With gaps of all lengths before, between and behind members that begin anywhere.
pub fn with_gaps(shapes: &[[usize; 2]], first: usize) -> GroupedLayout {
    let (mut offsets, mut end) = (Vec::new(), first);
    for (t, [rows, cols]) in shapes.iter().enumerate() {
        offsets.push(end);
        end += rows * cols + t * 3 % 11;
    }
    GroupedLayout::new(shapes, &offsets, end + 3).unwrap()
}

pub fn layouts(shapes: &[[usize; 2]]) -> [GroupedLayout; 3] {
    let [packed, aligned] = [1, 64].map(|alignment| GroupedLayout::aligned(shapes, alignment).unwrap());
    [packed, aligned, with_gaps(shapes, 5)]
}

/// Normal numbers, each member of another magnitude, some of its values special.
pub fn values(layout: &GroupedLayout, dtype: DType, seed: u64) -> Vec<f32> {
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
pub struct Values {
    pub data: CudaSlice<u8>,
    pub dtype: DType,
    pub skip: usize,
}

impl Values {
    pub fn new(handle: &Handle, values: &[f32], dtype: DType, skip: usize) -> Self {
        let lead = vec![round_to(dtype, GAP); skip];
        Self { data: upload(handle, &bytes_of(dtype, lead.iter().chain(values))), dtype, skip }
    }

    pub fn bytes(&self) -> DeviceBytes<'_> {
        self.data.slice(self.skip * self.dtype.bytes()..).into()
    }

    pub fn source(&self) -> GroupedSource<'_> {
        GroupedSource::new(self.bytes(), self.dtype).unwrap()
    }
}

/// A tensor that no correct one looks like, in this layout.
pub fn poisoned_grouped(handle: &Handle, scheme: GroupedScheme, layout: &GroupedDeviceLayout) -> GroupedTensor {
    let codes = handle.upload(&vec![POISON; layout.buffer_len()]).unwrap();
    let scales = handle.upload(&vec![f32::NAN; scheme.scales().count(layout.members())]).unwrap();
    GroupedTensor::from_parts(scheme, layout.share().unwrap(), codes, scales).unwrap()
}

/// `got` of members and poison elsewhere, `size` bytes an element, or a panic that says where not.
#[track_caller]
pub fn assert_members(got: &[u8], want: &[u8], layout: &GroupedLayout, size: usize, what: &str) {
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
pub fn assert_floats(got: &[f32], want: &[f32], what: &str) {
    assert_eq!(got.len(), want.len(), "{what}");
    // A NaN is a NaN: which one `1 / NaN` is differs between processors.
    let same = |a: f32, b: f32| a.to_bits() == b.to_bits() || (a.is_nan() && b.is_nan());
    let wrong = (0..got.len()).find(|t| !same(got[*t], want[*t]));
    assert!(wrong.is_none(), "{what}: {wrong:?}: {:e}, must be {:e}", got[wrong.unwrap()], want[wrong.unwrap()]);
}

/// Codes of members, gaps, and scales.
#[track_caller]
pub fn assert_tensor(handle: &Handle, got: &GroupedTensor, want: &HostGroupedTensor, what: &str) {
    assert_eq!(got.scheme(), want.scheme(), "{what}");
    assert_members(&handle.read_bytes(&got.codes()).unwrap(), want.codes(), want.layout(), 1, what);
    assert_floats(&handle.read::<f32>(&got.scales()).unwrap(), want.scales(), &format!("scales, {what}"));
}

/// What a quantization is of: how the device is told, and the reference.
pub struct Case<'a> {
    pub layout: &'a GroupedLayout,
    pub places: &'a GroupedDeviceLayout,
    pub input: reference::GroupedInput<'a>,
    pub source: &'a dyn Fn() -> GroupedSource<'a>,
}

impl Case<'_> {
    /// Current scaling by one recipe, into one tensor, or two if its scheme is by rows.
    pub fn current(&self, handle: &Handle, recipe: GroupedRecipe, what: &str) {
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
    pub fn given(&self, handle: &Handle, scheme: GroupedScheme, what: &str) -> HostGroupedTensor {
        let count = scheme.scales().count(self.layout.members().len());
        let numbers: Vec<f32> = (0..count).map(|t| 1.5 + 0.5 * (t % 100) as f32).collect();
        self.given_numbers(handle, scheme, &numbers, what)
    }

    pub fn given_numbers(
        &self,
        handle: &Handle,
        scheme: GroupedScheme,
        numbers: &[f32],
        what: &str,
    ) -> HostGroupedTensor {
        let count = numbers.len();
        let device = handle.upload(numbers).unwrap();
        let mut last = None;
        for decode in [true, false] {
            let what = format!("{what}, {} members, {scheme}, decode {decode}", self.layout.members().len());
            let (given, on_device) = match decode {
                true => (GivenScale::Decode(numbers), GivenScale::Decode(device.view())),
                false => (GivenScale::Encode(numbers), GivenScale::Encode(device.view())),
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
            if !scheme.is_transposed() {
                let mut got = [scheme, scheme.transposed()].map(|scheme| poisoned_grouped(handle, scheme, self.places));
                let [rows, cols] = &mut got;
                let (source, both) = ((self.source)(), GroupedTo::Both(rows, cols));
                handle.quantize_grouped_with_scales_into(&source, scheme, &on_device, both, None).unwrap();
                assert_tensor(handle, rows, &want, &format!("{what}, both"));
                assert_tensor(handle, cols, &want.transpose(), &format!("{what}, both, transposed"));
            }
            last = Some(want);
        }
        last.unwrap()
    }
}

/// Back to each type, into memory that begins anywhere.
pub fn check_back(handle: &Handle, q: &HostGroupedTensor, what: &str) {
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
pub fn check_plain(handle: &Handle, layout: &GroupedLayout, dtype: DType, skip: usize, recipes: &[GroupedRecipe]) {
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

pub fn plain_recipes() -> Vec<GroupedRecipe> {
    GroupedScheme::all().map(GroupedRecipe::new).collect()
}

pub const GRADIENTS: [ActivationGradient; 5] = ActivationGradient::ALL;

/// A gradient and x of types, offsets and gaps of their own.
pub fn check_gradient(
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
