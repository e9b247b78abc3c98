//! Slots cast to transposes of their own with a given scale for each, as delayed scaling has them: the bytes of each slot alone, in a graph whose scales change, too.

use ndarray::Array2;
use scaled_gemm::{DeviceBuffer, Handle};

use super::*;

const SLOT: usize = 144;
const SLOTS: usize = 4;
const COLS: usize = 272;

/// Some numbers saturate by these, others are lost; the last is a power of two.
const NUMBERS: [f32; SLOTS] = [3.7, 0.011, 900.0, 0.25];

/// Each slot alone: transposed on the host, and cast with its number by the call that takes one.
fn alone(handle: &Handle, x: &Array2<f32>, dtype: DType, format: Fp8Format, given: GivenScale) -> HostQuantMatrix {
    let turned = handle.upload(&bytes_of(dtype, x.t().iter())).unwrap();
    let number = handle.upload(&[*given.number()]).unwrap();
    let mut q = QuantMatrix::zeros(handle, Scheme::Fp8Tensor(format), COLS, SLOT).unwrap();
    let x = MatRef::new(&turned, dtype, COLS, SLOT).unwrap();
    handle.quantize_tensor_into(&x, format, &given.with_number(number.view()), &mut q, None).unwrap();
    q.to_host(handle).unwrap()
}

#[track_caller]
fn assert_slots(
    handle: &Handle,
    slots: &[QuantMatrix],
    x: &Array2<f32>,
    (dtype, format): (DType, Fp8Format),
    given: impl Fn(usize) -> GivenScale,
    what: &str,
) {
    for (g, got) in slots.iter().enumerate() {
        let own = x.slice(s![g * SLOT..(g + 1) * SLOT, ..]);
        let want = alone(handle, &own.to_owned(), dtype, format, given(g));
        assert_device_bits(handle, got, &want, &format!("{what}, slot {g}, one by one"));
        let (want, _) = reference::quantize_tensor(own.t().as_standard_layout().view(), format, given(g)).unwrap();
        assert_device_bits(handle, got, &want, &format!("{what}, slot {g}, the reference"));
    }
}

#[test]
fn slots_are_cast_to_transposes_with_scales_that_are_given() {
    let Some(handle) = handle() else { return };
    let mut rng = Noise::new(61);
    // Rows lie apart, and one more than the slots have.
    let (rows, stride) = (SLOTS * SLOT + 1, COLS + 16);
    for (dtype, format) in
        [DType::Bf16, DType::F16, DType::F32].into_iter().flat_map(|t| Fp8Format::ALL.map(|f| (t, f)))
    {
        let mut draw = || {
            let x = spread(&mut rng, rows, COLS, dtype);
            let mut apart = Array2::zeros((rows, stride));
            apart.slice_mut(s![.., ..COLS]).assign(&x);
            (bytes_of(dtype, apart.iter()), x)
        };
        let (bytes, x) = draw();
        let mut on = handle.upload(&bytes).unwrap();
        let mut factors = handle.upload(&NUMBERS).unwrap();
        for decode in [false, true] {
            let kind = if decode { GivenScale::Decode(()) } else { GivenScale::Encode(()) };
            let mut slots: Vec<_> =
                (0..SLOTS).map(|_| poisoned_matrix(&handle, Scheme::Fp8Tensor(format), COLS, SLOT)).collect();
            let step = |on: &DeviceBuffer, factors: &DeviceBuffer, slots: &mut [QuantMatrix]| {
                let x = MatRef::new(on, dtype, rows, COLS)?.with_row_stride(stride)?;
                handle.quantize_slots_transposed_with_scales_into(&x, format, &kind.with_number(factors.view()), slots)
            };
            let what = format!("{dtype} to {format}, decode factors {decode}");
            handle.write(&mut on.view_mut(), &bytes).unwrap();
            handle.write(&mut factors.view_mut(), &NUMBERS).unwrap();
            step(&on, &factors, &mut slots).unwrap();
            assert_slots(&handle, &slots, &x, (dtype, format), |g| kind.with_number(NUMBERS[g]), &what);
            let graph = capture_owned(&handle, || step(&on, &factors, &mut slots)).unwrap();
            for turn in 1..3 {
                let (bytes, x) = draw();
                let numbers: [f32; SLOTS] = std::array::from_fn(|g| NUMBERS[(g + turn) % SLOTS]);
                handle.write(&mut on.view_mut(), &bytes).unwrap();
                handle.write(&mut factors.view_mut(), &numbers).unwrap();
                handle.launch(&graph).unwrap();
                let what = format!("{what}, launch {turn}");
                assert_slots(&handle, &slots, &x, (dtype, format), |g| kind.with_number(numbers[g]), &what);
            }
        }
    }
}

#[test]
fn scales_and_slots_that_do_not_fit_are_refused() {
    let Some(handle) = handle() else { return };
    let format = Fp8Format::E4M3;
    let on = handle.alloc(2 * SLOT * COLS * 2).unwrap();
    let x = MatRef::new(&on, DType::Bf16, 2 * SLOT, COLS).unwrap();
    let numbers = handle.upload(&NUMBERS).unwrap();
    let two = handle.upload(&NUMBERS[..2]).unwrap();
    let of =
        |scheme, count: usize| -> Vec<_> { (0..count).map(|_| poisoned_matrix(&handle, scheme, COLS, SLOT)).collect() };
    let tensor = Scheme::Fp8Tensor(format);
    let refused = |given: GivenScale<&DeviceBuffer>, into: &mut [QuantMatrix], words: &[&str]| {
        let given = given.with_number(given.number().view());
        let text = handle.quantize_slots_transposed_with_scales_into(&x, format, &given, into);
        let text = text.unwrap_err().to_string();
        assert!(words.iter().all(|word| text.contains(word)), "{text}");
        for q in into {
            let [codes, scales] = [q.codes(), q.scales()].map(|bytes| handle.read_bytes(&bytes).unwrap());
            assert!(codes.iter().chain(&scales).all(|byte| *byte == 0xFF), "{text}: a refused target was written");
        }
    };
    refused(
        GivenScale::Encode(&numbers),
        &mut of(tensor, 2),
        &["given scales of slots", "16 bytes", "each of 2 slots"],
    );
    refused(GivenScale::Decode(&numbers), &mut of(tensor, 1), &["16 bytes", "each of 1 slots"]);
    refused(GivenScale::Amax(&two), &mut of(tensor, 2), &["given amax", "GivenScale::Encode"]);
    refused(GivenScale::Encode(&two), &mut of(Scheme::Fp8Row(format), 2), &["transposed target", "fp8-tensor"]);
    refused(GivenScale::Encode(&two), &mut of(Scheme::Fp8Tensor(Fp8Format::E5M2), 2), &["transposed target", "e5m2"]);
    refused(GivenScale::Encode(&numbers), &mut of(tensor, 4), &["288 rows", "4 slots of 144"]);
    // No slots have no scales.
    let none = handle.alloc(0).unwrap();
    handle.quantize_slots_transposed_with_scales_into(&x, format, &GivenScale::Encode(none.view()), &mut []).unwrap();
    handle.synchronize().unwrap();
}
