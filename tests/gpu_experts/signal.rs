//! How much signal the three products of experts keep, by every kind of scales: as much as the CPU's of the same codes, and as is asked of them.

use ndarray::{Array2, s};
use scaled_gemm::{
    DType, DeviceBuffer, Fp8Format, GroupedDeviceLayout, GroupedGemmArgs, GroupedLayout, GroupedRecipe, GroupedRows,
    GroupedScheme, GroupedSource, GroupedTensor, GroupedWeightGradient, Handle, KernelFamily, MatMut, MatRef,
    QuantMatrix, QuantizeTo, Recipe, Scheme,
};

use crate::common::*;
use crate::experts_signal::{Asked, COUNTS, FEATURES, GROUPS, OUT, SLOT, Tokens, asked, assert_kept, kept_on_the_cpu};

const ROWS: usize = GROUPS * SLOT;

/// Counts on the device, and X and dY of all slots, NaN behind the rows of each until they are cleared.
struct OnDevice {
    counts: DeviceBuffer,
    x: DeviceBuffer,
    dy: DeviceBuffer,
}

impl OnDevice {
    fn new(handle: &Handle, tokens: &Tokens) -> Self {
        let counts = handle.upload(&COUNTS.map(|count| count as i64)).unwrap();
        let cleared = |all: &Array2<f32>| {
            let mut all = all.clone();
            for (g, count) in COUNTS.into_iter().enumerate() {
                all.slice_mut(s![g * SLOT + count..(g + 1) * SLOT, ..]).fill(f32::NAN);
            }
            let mut on = handle.upload(&bytes_of(DType::Bf16, all.iter())).unwrap();
            let places = GroupedRows::Masked { slot_rows: SLOT, counts: counts.view() };
            let mut rows = MatMut::new(&mut on, DType::Bf16, ROWS, all.ncols()).unwrap();
            handle.clear_between_groups(&mut rows, GROUPS, &places, None).unwrap();
            on
        };
        let [x, dy] = [&tokens.x, &tokens.dy].map(cleared);
        Self { counts, x, dy }
    }

    fn places(&self) -> GroupedRows<'_> {
        GroupedRows::Masked { slot_rows: SLOT, counts: self.counts.view() }
    }

    /// Rows of all groups by a matrix of each, in one launch: `fp8-tensor` operands have a scale for each group.
    fn rows_by_matrices(
        &self,
        handle: &Handle,
        x: &DeviceBuffer,
        b: &Array2<f32>,
        [of_a, of_b]: [Scheme; 2],
    ) -> Array2<f32> {
        let (n, k) = (b.nrows() / GROUPS, b.ncols());
        let b_on = handle.upload(&bytes_of(DType::Bf16, b.iter())).unwrap();
        let mut d = handle.upload(&vec![0xFFu8; ROWS * n * 2]).unwrap();
        let to = MatMut::new(&mut d, DType::Bf16, ROWS, n).unwrap();
        match (of_a, of_b) {
            (Scheme::Fp8Tensor(a), Scheme::Fp8Tensor(b)) => {
                let offsets: [usize; GROUPS] = std::array::from_fn(|g| g * SLOT * k);
                let in_slots = GroupedLayout::new(&COUNTS.map(|count| [count, k]), &offsets, ROWS * k).unwrap();
                let stacked = GroupedLayout::packed(&[[n, k]; GROUPS]).unwrap();
                let cast = |x: &DeviceBuffer, format: Fp8Format, layout: &GroupedLayout| {
                    let scheme = GroupedScheme::new(format);
                    let layout = GroupedDeviceLayout::from_host(handle, layout).unwrap();
                    let mut q = GroupedTensor::zeros(handle, scheme, layout).unwrap();
                    let source = GroupedSource::new(x, DType::Bf16).unwrap();
                    handle.quantize_grouped_into(&source, GroupedRecipe::new(scheme), &mut q, None).unwrap();
                    q
                };
                let (a, b) = (cast(x, a, &in_slots), cast(&b_on, b, &stacked));
                let (a, b) = (a.padded_rows().unwrap(), b.stacked().unwrap());
                handle.grouped_gemm(GroupedGemmArgs::new(&a, &b, GROUPS, self.places(), to)).unwrap();
            }
            _ => {
                let cast = |x: &DeviceBuffer, rows, scheme| {
                    handle.quantize(&MatRef::new(x, DType::Bf16, rows, k).unwrap(), Recipe::new(scheme)).unwrap()
                };
                let (a, b) = (cast(x, ROWS, of_a), cast(&b_on, GROUPS * n, of_b));
                handle.grouped_gemm(GroupedGemmArgs::new(&a, &b, GROUPS, self.places(), to)).unwrap();
            }
        }
        let d = values_of(DType::Bf16, &handle.read_bytes(&d.view()).unwrap());
        Array2::from_shape_vec((ROWS, n), d).unwrap()
    }

    /// dW of all groups, one product a group, and where one launch takes them all by that, too.
    fn gradients(&self, handle: &Handle, [of_dy, of_x]: [Scheme; 2]) -> Vec<Array2<f32>> {
        let mut dw = handle.upload(&vec![0f32; GROUPS * OUT * FEATURES]).unwrap();
        let of = |x, cols| MatRef::new(x, DType::Bf16, ROWS, cols).unwrap();
        let (dy, x) = (of(&self.dy, OUT), of(&self.x, FEATURES));
        let slots = |x: &MatRef<'_>, scheme| {
            let mut slots: Vec<_> = (0..GROUPS).map(|_| poisoned_matrix(handle, scheme, x.cols(), SLOT)).collect();
            handle.quantize_slots_transposed_into(x, Recipe::new(scheme), &mut slots).unwrap();
            slots
        };
        let (dy_t, x_t) = (slots(&dy, of_dy), slots(&x, of_x));
        let to = MatMut::new(&mut dw, DType::F32, GROUPS * OUT, FEATURES).unwrap();
        handle.grouped_weight_gradient(GroupedWeightGradient::new(&dy_t, &x_t, to)).unwrap();
        let read = |dw: &DeviceBuffer| {
            Array2::from_shape_vec((GROUPS * OUT, FEATURES), handle.read::<f32>(&dw.view()).unwrap()).unwrap()
        };
        let mut found = vec![read(&dw)];
        if let (Scheme::Fp8Group1x128(_), Scheme::Fp8Group1x128(_)) = (of_dy, of_x) {
            let whole = |x: &MatRef<'_>, scheme| {
                let mut q = QuantMatrix::zeros(handle, scheme, x.cols(), ROWS).unwrap();
                handle.quantize_into(x, Recipe::new(scheme), QuantizeTo::Transposed(&mut q)).unwrap();
                q
            };
            let (dy_t, x_t) = (whole(&dy, of_dy), whole(&x, of_x));
            handle.write(&mut dw.view_mut(), &vec![0f32; GROUPS * OUT * FEATURES]).unwrap();
            let to = MatMut::new(&mut dw, DType::F32, GROUPS * OUT, FEATURES).unwrap();
            let of = GroupedWeightGradient::whole(&dy_t, &x_t, GROUPS, self.places(), to);
            handle.grouped_weight_gradient(of).unwrap();
            found.push(read(&dw));
        }
        found
    }
}

/// 28 dB on normal numbers, 25 with outliers, where codes have as many digits: forward and both gradients.
#[test]
fn products_of_experts_keep_the_signal_that_their_codes_allow() {
    let Some(handle) = handle_with(KernelFamily::Sm90) else { return };
    for (asked, outliers) in asked().iter().flat_map(|asked| [(asked, false), (asked, true)]) {
        let tokens = Tokens::new(outliers);
        check(&handle, asked, &tokens, outliers);
    }
}

fn check(handle: &Handle, asked: &Asked, tokens: &Tokens, outliers: bool) {
    let on = OnDevice::new(handle, tokens);
    let mut turned = Array2::zeros((GROUPS * FEATURES, OUT));
    for g in 0..GROUPS {
        let own = tokens.w.slice(s![g * OUT..(g + 1) * OUT, ..]);
        turned.slice_mut(s![g * FEATURES..(g + 1) * FEATURES, ..]).assign(&own.t());
    }
    let y = on.rows_by_matrices(handle, &on.x, &tokens.w, asked.pairs[0]);
    let dx = on.rows_by_matrices(handle, &on.dy, &turned, asked.pairs[1]);
    for (dw, g) in on.gradients(handle, asked.pairs[2]).iter().flat_map(|dw| (0..GROUPS).map(move |g| (dw, g))) {
        let rows = s![g * SLOT..g * SLOT + COUNTS[g], ..];
        let found = [y.slice(rows), dx.slice(rows), dw.slice(s![g * OUT..(g + 1) * OUT, ..])].map(|d| d.to_owned());
        let (kept, on_cpu) = (tokens.kept(g, found), kept_on_the_cpu(asked, tokens, g));
        let what = format!("{:?}, outliers {outliers}, group {g}", asked.pairs);
        assert_kept(asked, outliers, kept, &what);
        for ((kept, cpu), pair) in kept.into_iter().zip(on_cpu).zip(asked.pairs) {
            // One second level of all groups: other block scales than each group's alone.
            let is_shared = pair.contains(&Scheme::Nvfp4);
            assert!(is_shared || (kept - cpu).abs() < 0.1, "{what}: {kept:.2} dB, {cpu:.2} on the CPU");
        }
    }
}
