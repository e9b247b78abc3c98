//! The layer of experts of docs/training.md, line by line: what readers copy runs, captured, with counts that change, and keeps the signal that is told there.
//! `house` looks at each line being the same.

use ndarray::{Array2, s};
use scaled_gemm::reference::sqnr_db;
use scaled_gemm::{
    DType, DeviceBuffer, Fp8Format, GroupedGemmArgs, GroupedRows, GroupedWeightGradient, Handle, KernelFamily, MatMut,
    MatRef, QuantMatrix, QuantizeTo, Recipe, Scheme,
};

use crate::common::*;

const COUNTS: [[usize; 8]; 2] = [[256; 8], [256, 0, 1, 100, 255, 7, 128, 31]];

fn on_the_host(handle: &Handle, buffer: &DeviceBuffer, dtype: DType, cols: usize) -> Array2<f32> {
    let all = values_of(dtype, &handle.read_bytes(&buffer.view()).unwrap());
    Array2::from_shape_vec((all.len() / cols, cols), all).unwrap()
}

#[test]
fn the_layer_of_the_documentation_trains() -> scaled_gemm::Result<()> {
    let Some(handle) = handle() else { return Ok(()) };
    if !KernelFamily::Sm90.runs_on(handle.device().compute_capability) {
        println!("skipped: {} has no grouped product", handle.device());
        return Ok(());
    }
    drop(handle);
    let (experts, slot_rows, out, features, dtype) = (8, 256, 2048, 4096, DType::Bf16);
    let rows = experts * slot_rows;
    let (of_rows, of_blocks) = (Scheme::Fp8Group1x128(Fp8Format::E4M3), Scheme::Fp8Group128x128(Fp8Format::E4M3));
    let handle = Handle::new(0)?;
    let counts = handle.alloc(experts * 8)?;
    let (mut x, mut dy) = (handle.alloc(rows * features * 2)?, handle.alloc(rows * out * 2)?);
    let (mut y, mut dx) = (handle.alloc(rows * out * 2)?, handle.alloc(rows * features * 2)?);
    let (weights, mut dw) = (handle.alloc(experts * out * features * 2)?, handle.alloc(experts * out * features * 4)?);
    let zeros = |scheme, rows, cols| QuantMatrix::zeros(&handle, scheme, rows, cols);
    let (mut xq, mut xt) = (zeros(of_rows, rows, features)?, zeros(of_rows, features, rows)?);
    let (mut dyq, mut dyt) = (zeros(of_rows, rows, out)?, zeros(of_rows, out, rows)?);
    let (mut w, mut wt) = (zeros(of_blocks, experts * out, features)?, zeros(of_blocks, experts * features, out)?);

    // What a router and an optimizer would have written; behind the tokens of a slot lies anything.
    let mut rng = Noise::new(83);
    let (mut counts, mut weights) = (counts, weights);
    let write_weights = |rng: &mut Noise, weights: &mut DeviceBuffer| {
        let matrix: Array2<f32> = rng.matrix(experts * out, features, dtype);
        handle.write(&mut weights.view_mut(), &bytes_of(dtype, matrix.iter())).unwrap();
        matrix
    };
    write_weights(&mut rng, &mut weights);
    let write = |rng: &mut Noise,
                 counts: &mut DeviceBuffer,
                 x: &mut DeviceBuffer,
                 dy: &mut DeviceBuffer,
                 found: &[usize; 8]| {
        handle.write(&mut counts.view_mut(), &found.map(|count| count as i64)).unwrap();
        [(x, features), (dy, out)].map(|(to, cols)| {
            let mut all: Array2<f32> = rng.matrix(rows, cols, dtype);
            for (g, count) in found.iter().enumerate() {
                all.slice_mut(s![g * slot_rows + count..(g + 1) * slot_rows, ..]).fill(f32::NAN);
            }
            handle.write(&mut to.view_mut(), &bytes_of(dtype, all.iter())).unwrap();
            all.mapv(f64::from)
        })
    };
    write(&mut rng, &mut counts, &mut x, &mut dy, &COUNTS[0]);

    let places = || GroupedRows::Masked { slot_rows, counts: counts.view() };
    let mut step = || -> scaled_gemm::Result<()> {
        let weights = MatRef::new(&weights, dtype, experts * out, features)?;
        handle.quantize_into(&weights, Recipe::new(of_blocks), QuantizeTo::Plain(&mut w))?;
        handle.quantize_stacked_transposed_into(&weights, experts, Recipe::new(of_blocks), &mut wt)?;
        handle.clear_between_groups(&mut MatMut::new(&mut x, dtype, rows, features)?, experts, &places(), None)?;
        handle.quantize_into(
            &MatRef::new(&x, dtype, rows, features)?,
            Recipe::new(of_rows),
            QuantizeTo::Both(&mut xq, &mut xt),
        )?;
        let y = MatMut::new(&mut y, dtype, rows, out)?;
        handle.grouped_gemm(GroupedGemmArgs::new(&xq, &w, experts, places(), y))?;
        handle.clear_between_groups(&mut MatMut::new(&mut dy, dtype, rows, out)?, experts, &places(), None)?;
        handle.quantize_into(
            &MatRef::new(&dy, dtype, rows, out)?,
            Recipe::new(of_rows),
            QuantizeTo::Both(&mut dyq, &mut dyt),
        )?;
        let dx = MatMut::new(&mut dx, dtype, rows, features)?;
        handle.grouped_gemm(GroupedGemmArgs::new(&dyq, &wt, experts, places(), dx))?;
        let mut dw = MatMut::new(&mut dw, DType::F32, experts * out, features)?;
        handle.zero(&mut dw)?;
        handle.grouped_weight_gradient(GroupedWeightGradient::whole(&dyt, &xt, experts, places(), dw))
    };
    step()?;
    let step = capture_owned(&handle, step)?;
    let [tokens, gradients] = write(&mut rng, &mut counts, &mut x, &mut dy, &COUNTS[1]);
    let matrix = write_weights(&mut rng, &mut weights);
    handle.launch(&step)?;

    let [y, dx] = [(&y, out), (&dx, features)].map(|(of, cols)| on_the_host(&handle, of, dtype, cols));
    let dw = on_the_host(&handle, &dw, DType::F32, features);
    for (g, count) in COUNTS[1].into_iter().enumerate() {
        let of_rows = s![g * slot_rows..g * slot_rows + count, ..];
        let of_matrix = s![g * out..(g + 1) * out, ..];
        let (x, dy) = (tokens.slice(of_rows), gradients.slice(of_rows));
        let w = matrix.slice(of_matrix).mapv(f64::from);
        if count == 0 {
            assert!(dw.slice(of_matrix).iter().all(|v| *v == 0.0), "dW of expert {g}, which has no tokens");
            continue;
        }
        for (what, found, exact) in [
            ("Y", y.slice(of_rows), x.dot(&w.t())),
            ("dX", dx.slice(of_rows), dy.dot(&w)),
            ("dW", dw.slice(of_matrix), dy.t().dot(&x)),
        ] {
            let (exact, found): (Vec<f64>, Vec<f32>) = (exact.into_iter().collect(), found.iter().copied().collect());
            let kept = sqnr_db(&exact, &found);
            assert!(kept >= 28.0, "{what} of expert {g}, {count} tokens: {kept:.2} dB");
        }
    }
    Ok(())
}
