//! Casts to groupings that no product reads: device time and bandwidth against the copy of the same run.
//!
//! `cargo bench --bench cast [-- WORDS...]`, words of the rows that are wanted; on a machine without a toolchain, the runner that `scripts/bundle.sh` packs.

mod common;

use common::*;
use scaled_gemm::{
    CastBytes, CastGroup, CastMatrix, CastRecipe, CastScales, CastScheme, CastSource, CodeFormat, DType, Handle,
    MatMut, MatRef, SourceActivation, SwigluSource, Times, cast_bytes,
};

/// Rows and columns: two that targets are set for, and a small one.
const SHAPES: [(usize, usize); 3] = [(16384, 6144), (4096, 7168), (128, 7168)];
const FORMATS: [CodeFormat; 2] = [CodeFormat::E4M3, CodeFormat::E2M1];

fn main() {
    main_with_gpu(|handle, _| {
        head(handle, "Casts, BF16 in unless said otherwise");
        for (rows, cols) in SHAPES {
            let section = Section::begin(handle, format!("{rows} x {cols}"), rows * cols);
            let sets = rotation(handle, rows * cols * 3);
            let inputs: Vec<_> = (0..sets).map(|i| random(handle, i as u64, rows * cols, DType::Bf16)).collect();
            let inputs: Vec<_> = inputs.iter().map(|x| MatRef::new(x, DType::Bf16, rows, cols).unwrap()).collect();
            for recipe in recipes() {
                plain(handle, &inputs, recipe, &section);
            }
            for (from, to) in requantized() {
                coded(handle, &inputs, from, to, &section);
            }
            for scheme in
                [scheme(CodeFormat::E4M3, CastGroup::Group1x128), scheme(CodeFormat::E2M1, CastGroup::Group1x32)]
            {
                back(handle, &inputs, scheme, &section);
            }
            lossless(handle, &inputs, &section);
        }
        for (rows, half) in [(16384, 7168), (4096, 7168), (128, 7168)] {
            producers(handle, rows, half);
        }
    });
}

/// A table of casts, and the rate of a copy that they are compared with.
struct Section {
    name: String,
    roof: f64,
}

impl Section {
    /// Prints the head; the copy is of so many BF16 numbers.
    fn begin(handle: &Handle, name: String, elements: usize) -> Self {
        let copied = copy_time(handle, elements * 2);
        let roof = (4 * elements) as f64 / copied;
        println!("\n## {name}");
        println!("copy BF16: {copied:.2} us, {:.3} TB/s", roof / 1e6);
        println!("| cast | us | TB/s | of the copy rate |\n|---|---|---|---|");
        Self { name, roof }
    }

    fn row(&self, label: &str, bytes: usize, time: impl FnOnce() -> Times) {
        if wanted(&self.name, label) {
            report_rate(label, &time(), bytes, self.roof, "");
        }
    }
}

/// SwiGLU of rows x 2 half, and activations of rows x half, cast without being stored.
fn producers(handle: &Handle, rows: usize, half: usize) {
    let section = Section::begin(handle, format!("producers of {rows} x {half}"), rows * half);
    let sets = rotation(handle, rows * half * 5);
    let data: Vec<_> = (0..sets).map(|i| random(handle, i as u64, rows * 2 * half, DType::Bf16)).collect();
    let gated: Vec<_> = data.iter().map(|x| MatRef::new(x, DType::Bf16, rows, 2 * half).unwrap()).collect();
    let single: Vec<_> = data.iter().map(|x| MatRef::new(x, DType::Bf16, rows, half).unwrap()).collect();
    for group in [CastGroup::Group1x128, CastGroup::Row, CastGroup::Group128x1] {
        let to = scheme(CodeFormat::E4M3, group).with_scales(CastScales::ColumnMajor);
        let mut out = targets(handle, to, &single);
        let (recipe, written) = (CastRecipe::new(to), to.code_bytes(rows, half) + to.scale_bytes(rows, half));
        section.row(&format!("plain to {to}"), rows * half * 2 + written, || {
            time(handle, sets, |i| handle.cast_into(&single[i], recipe, &mut out[i]))
        });
        section.row(&format!("swiglu to {to}"), rows * half * 4 + written, || {
            time(handle, sets, |i| handle.cast_into(SwigluSource::new(&gated[i])?, recipe, &mut out[i]))
        });
        for activation in SourceActivation::ALL {
            section.row(&format!("{activation} to {to}"), rows * half * 2 + written, || {
                time(handle, sets, |i| {
                    handle.cast_into(CastSource::activated(&single[i], activation), recipe, &mut out[i])
                })
            });
        }
    }
}

fn scheme(format: CodeFormat, group: CastGroup) -> CastScheme {
    CastScheme::new(format, group).unwrap()
}

fn recipes() -> Vec<CastRecipe> {
    let mut all = Vec::new();
    for format in FORMATS {
        for group in CastGroup::ALL {
            let one = scheme(format, group);
            all.push(one);
            if group.is_per_channel() {
                all.push(one.transposed().unwrap());
            }
            if matches!(group, CastGroup::Group1x32 | CastGroup::Group1x128) {
                all.push(one.with_scales(CastScales::ColumnMajor));
                all.push(one.with_scales(CastScales::Ue8m0));
            }
        }
    }
    all.into_iter().map(CastRecipe::new).collect()
}

fn requantized() -> Vec<(CastScheme, CastScheme)> {
    let (e4m3, e2m1) = (|group| scheme(CodeFormat::E4M3, group), |group| scheme(CodeFormat::E2M1, group));
    vec![
        (e4m3(CastGroup::Group1x128), e4m3(CastGroup::Group1x32)),
        (e4m3(CastGroup::Group1x128), e4m3(CastGroup::Group128x1)),
        (e4m3(CastGroup::Group1x128), e2m1(CastGroup::Group1x32)),
        (e2m1(CastGroup::Group1x32), e4m3(CastGroup::Group1x128)),
    ]
}

fn targets(handle: &Handle, scheme: CastScheme, inputs: &[MatRef<'_>]) -> Vec<CastMatrix> {
    inputs.iter().map(|x| CastMatrix::zeros(handle, scheme, x.rows(), x.cols()).unwrap()).collect()
}

fn plain(handle: &Handle, inputs: &[MatRef<'_>], recipe: CastRecipe, section: &Section) {
    let mut out = targets(handle, recipe.scheme(), inputs);
    let bytes = cast_bytes(CastBytes::Plain(DType::Bf16), recipe.scheme(), inputs[0].rows(), inputs[0].cols());
    section.row(&recipe.scheme().to_string(), bytes, || {
        time(handle, inputs.len(), |i| handle.cast_into(&inputs[i], recipe, &mut out[i]))
    });
}

fn sources(handle: &Handle, inputs: &[MatRef<'_>], scheme: CastScheme) -> Vec<CastMatrix> {
    inputs.iter().map(|x| handle.cast(x, CastRecipe::new(scheme).power_of_two()).unwrap()).collect()
}

fn coded(handle: &Handle, inputs: &[MatRef<'_>], from: CastScheme, to: CastScheme, section: &Section) {
    let (q, mut out) = (sources(handle, inputs, from), targets(handle, to, inputs));
    let recipe = CastRecipe::new(to);
    let bytes = cast_bytes(CastBytes::Coded(from), to, inputs[0].rows(), inputs[0].cols());
    section.row(&format!("{from} to {to}"), bytes, || {
        time(handle, inputs.len(), |i| handle.cast_into(&q[i], recipe, &mut out[i]))
    });
}

fn back(handle: &Handle, inputs: &[MatRef<'_>], from: CastScheme, section: &Section) {
    let (rows, cols) = (inputs[0].rows(), inputs[0].cols());
    let q = sources(handle, inputs, from);
    let mut y = outputs(handle, inputs.len(), rows * cols * 2);
    let bytes = from.code_bytes(rows, cols) + from.scale_bytes(rows, cols) + rows * cols * 2;
    section.row(&format!("{from} back to bf16"), bytes, || {
        time(handle, inputs.len(), |i| {
            handle.cast_back_into(&q[i], &mut MatMut::new(&mut y[i], DType::Bf16, rows, cols)?)
        })
    });
}

fn lossless(handle: &Handle, inputs: &[MatRef<'_>], section: &Section) {
    let from = scheme(CodeFormat::E2M1, CastGroup::Group1x32).with_scales(CastScales::Ue8m0);
    let to = scheme(CodeFormat::E4M3, CastGroup::Group1x128).with_scales(CastScales::Ue8m0);
    let (q, mut out) = (sources(handle, inputs, from), targets(handle, to, inputs));
    let bytes = cast_bytes(CastBytes::Coded(from), to, inputs[0].rows(), inputs[0].cols());
    section.row(&format!("{from} to {to}, lossless"), bytes, || {
        time(handle, inputs.len(), |i| handle.fp4_to_fp8_into(&q[i], &mut out[i], None))
    });
}
