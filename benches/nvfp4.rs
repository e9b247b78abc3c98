//! NVFP4, MXFP8 and MXFP4 quantizers and dequantizers: device time and bandwidth against the copy of the same run.
//!
//! `cargo bench --bench nvfp4`; on a machine without a toolchain, the runner that `scripts/bundle.sh` packs.

mod common;

use common::*;
use scaled_gemm::{
    Basis, BlockScaleRule, BlockShape, CodeRounding, DType, DeviceBytes, E4m3Bound, ErrorMath, ErrorMetric, Fp8Format,
    GivenScale, Handle, MatMut, MatRef, Nvfp4Options, Nvfp4Recipe, Nvfp4Rule, QuantMatrix, QuantizeTo, Recipe, Scheme,
    Times, quantize_bytes,
};

/// Rows and columns: the one that targets are set for, a prefill, a decode step, an odd one.
const SHAPES: [(usize, usize); 4] = [(16384, 6144), (4096, 7168), (128, 7168), (4001, 2048)];
const TARGETED: (usize, usize) = SHAPES[0];
const MX: Scheme = Scheme::Mxfp8(Fp8Format::E4M3);

#[derive(Clone, Copy, PartialEq)]
enum Direction {
    Plain,
    Transposed,
    Both,
}

#[derive(Clone, Copy, PartialEq)]
enum Level {
    /// The second level is known.
    Given,
    /// The cast finds what it needs itself.
    Own,
}

/// What the issue asks for at [`TARGETED`] on an H200.
#[derive(Clone, Copy)]
enum Target {
    None,
    Microseconds(f64),
    OfCopy(f64),
}

struct Case {
    label: &'static str,
    recipe: Recipe,
    level: Level,
    direction: Direction,
    target: Target,
}

fn main() {
    main_with_gpu(|handle, _| {
        head(handle, "NVFP4, MXFP8 and MXFP4, BF16 in, and back to BF16");
        for (rows, cols) in SHAPES {
            let copied = copy_time(handle, rows * cols * 2);
            let roof = (4 * rows * cols) as f64 / copied;
            println!("\n## {rows} x {cols}");
            println!("copy BF16: {copied:.2} us, {:.3} TB/s", roof / 1e6);
            println!("| cast | us | TB/s | of the copy rate | target |\n|---|---|---|---|---|");
            quantizers(handle, rows, cols, roof);
            dequantizers(handle, rows, cols, roof);
        }
    });
}

fn cases() -> Vec<Case> {
    use Direction::{Both, Plain, Transposed};
    use Level::{Given, Own};
    let plain = Recipe::new(Scheme::Nvfp4);
    let row = Recipe::new(Scheme::Nvfp4Row);
    let (mx, mxfp4) = (Recipe::new(MX), Recipe::new(Scheme::Mxfp4));
    let options = Nvfp4Options::default();
    let with = |options| Recipe::Nvfp4(Nvfp4Recipe::tensor(options).unwrap());
    let tiles = with(Nvfp4Options { shape: BlockShape::Tile16x16, ..options });
    let hadamard = Nvfp4Options { basis: Basis::Hadamard16, ..options };
    let random = CodeRounding::Stochastic { seed: 1, offset: 2 };
    let stochastic = with(Nvfp4Options { rounding: random, ..options });
    let gradient = with(Nvfp4Options { rounding: random, ..hadamard });
    let hadamard = with(hadamard);
    let none = |label, recipe, level, direction| Case { label, recipe, level, direction, target: Target::None };
    let mut cases = vec![
        Case { target: Target::Microseconds(66.0), ..none("nvfp4", plain, Given, Plain) },
        Case { target: Target::Microseconds(120.0), ..none("nvfp4, amax and cast", plain, Own, Plain) },
        Case { target: Target::Microseconds(70.0), ..none("nvfp4-row", row, Own, Plain) },
        none("nvfp4, torchao, amax and cast", with(Nvfp4Options { rule: Nvfp4Rule::TorchAo, ..options }), Own, Plain),
        none("nvfp4, 16x16", tiles, Given, Plain),
        none("nvfp4, 16x16, amax and cast", tiles, Own, Plain),
    ];
    // TransformerEngine's defaults for 4over6: bound 256.
    for (math, target) in [(ErrorMath::Fast, 100.0), (ErrorMath::Strict, 200.0)] {
        for metric in [ErrorMetric::Mae, ErrorMetric::Mse] {
            let block_scale = BlockScaleRule::FourOverSix { metric, math };
            let options = Nvfp4Options { block_scale, bound: E4m3Bound::Max256, ..options };
            let (whole, row) = (with(options), Nvfp4Recipe::rows(options).unwrap().into());
            let tiles = with(Nvfp4Options { shape: BlockShape::Tile16x16, ..options });
            let label = match (math, metric) {
                (ErrorMath::Fast, ErrorMetric::Mae) => "nvfp4, 4over6 fast mae",
                (ErrorMath::Fast, ErrorMetric::Mse) => "nvfp4, 4over6 fast mse",
                (ErrorMath::Strict, ErrorMetric::Mae) => "nvfp4, 4over6 strict mae",
                (ErrorMath::Strict, ErrorMetric::Mse) => "nvfp4, 4over6 strict mse",
            };
            cases.push(Case { target: Target::Microseconds(target), ..none(label, whole, Given, Plain) });
            cases.push(none(label, whole, Own, Plain));
            cases.push(none(label, row, Own, Plain));
            cases.push(none(label, tiles, Given, Plain));
        }
    }
    cases.extend([
        none("nvfp4, transposed", plain, Given, Transposed),
        none("nvfp4, both directions", plain, Given, Both),
        none("nvfp4, amax and both directions", plain, Own, Both),
        none("nvfp4-row, transposed", row, Own, Transposed),
        none("nvfp4-row, both directions", row, Own, Both),
        none("nvfp4, 16x16, both directions", tiles, Given, Both),
        none("nvfp4, hadamard", hadamard, Given, Plain),
        none("nvfp4, hadamard, amax and cast", hadamard, Own, Plain),
        none("nvfp4, hadamard, transposed, amax and cast", hadamard, Own, Transposed),
        none("nvfp4, stochastic", stochastic, Given, Plain),
        none("nvfp4, stochastic, amax and cast", stochastic, Own, Plain),
        none("nvfp4, hadamard and stochastic, transposed", gradient, Given, Transposed),
        Case { target: Target::OfCopy(0.95), ..none("mxfp8, rows", mx, Own, Plain) },
        Case { target: Target::OfCopy(0.9), ..none("mxfp8, columns", mx, Own, Transposed) },
        none("mxfp8, both directions", mx, Own, Both),
        none("mxfp4, rows", mxfp4, Own, Plain),
        none("mxfp4, columns", mxfp4, Own, Transposed),
        none("mxfp4, both directions", mxfp4, Own, Both),
    ]);
    cases
}

/// Both targets of a cast, as often as the rotation wants. Captured casts change no basis, so that each basis has its own.
struct Outputs {
    scheme: Scheme,
    basis: Basis,
    plain: Vec<QuantMatrix>,
    turned: Vec<QuantMatrix>,
}

impl Outputs {
    fn new(handle: &Handle, (scheme, basis): (Scheme, Basis), rows: usize, cols: usize, sets: usize) -> Self {
        let make = |rows, cols| {
            let zeros = || QuantMatrix::zeros(handle, scheme, rows, cols).unwrap().assume_basis(basis);
            (0..sets).map(|_| zeros()).collect()
        };
        let turned = if rows.is_multiple_of(16) { make(cols, rows) } else { Vec::new() };
        Self { scheme, basis, plain: make(rows, cols), turned }
    }
}

fn quantizers(handle: &Handle, rows: usize, cols: usize, roof: f64) {
    // Two bytes in, and at least half a byte out.
    let sets = rotation(handle, rows * cols * 5 / 2);
    let inputs: Vec<_> = (0..sets).map(|i| random(handle, i as u64, rows * cols, DType::Bf16)).collect();
    let inputs: Vec<_> = inputs.iter().map(|x| MatRef::new(x, DType::Bf16, rows, cols).unwrap()).collect();
    let amax = handle.stream().clone_htod(&[5.5f32]).unwrap();
    let kinds = [
        (Scheme::Nvfp4, Basis::Plain),
        (Scheme::Nvfp4, Basis::Hadamard16),
        (Scheme::Nvfp4Row, Basis::Plain),
        (MX, Basis::Plain),
        (Scheme::Mxfp4, Basis::Plain),
    ];
    let mut outputs = kinds.map(|kind| Outputs::new(handle, kind, rows, cols, sets));
    for case in cases() {
        let multiple = if case.direction == Direction::Plain { case.recipe.row_multiple() } else { 16 };
        if !rows.is_multiple_of(multiple) {
            continue;
        }
        let kind = (case.recipe.scheme(), case.recipe.basis());
        let out = outputs.iter_mut().find(|o| (o.scheme, o.basis) == kind).expect("outputs for every case");
        let time = time(handle, sets, |i| {
            let to = match case.direction {
                Direction::Plain => QuantizeTo::Plain(&mut out.plain[i]),
                Direction::Transposed => QuantizeTo::Transposed(&mut out.turned[i]),
                Direction::Both => QuantizeTo::Both(&mut out.plain[i], &mut out.turned[i]),
            };
            match case.level {
                Level::Given => {
                    let amax = GivenScale::Amax(DeviceBytes::from(&amax));
                    handle.quantize_nvfp4_into(&inputs[i], case.recipe, &amax, to)
                }
                Level::Own => handle.quantize_into(&inputs[i], case.recipe, to),
            }
        });
        let bytes = |transposed| quantize_bytes(case.recipe, DType::Bf16, rows, cols, transposed);
        let moved = match case.direction {
            Direction::Plain => bytes(false),
            // The output along rows is not written.
            Direction::Transposed => bytes(true) - (bytes(false) - rows * cols * 2),
            Direction::Both => bytes(true),
        };
        // The amax of a whole matrix is a pass of its own over the input.
        let found = case.level == Level::Own && case.recipe.scheme() == Scheme::Nvfp4;
        let moved = moved + if found { rows * cols * 2 } else { 0 };
        report(&words(&case), &time, moved, roof, (rows, cols), case.target);
    }
}

/// The label, and for 4over6 which second level and shape.
fn words(case: &Case) -> String {
    let options = match case.recipe {
        Recipe::Nvfp4(recipe) if recipe.options().block_scale != BlockScaleRule::Plain => recipe.options(),
        _ => return case.label.to_string(),
    };
    let tiles = if options.shape == BlockShape::Tile16x16 { ", 16x16" } else { "" };
    let level = match (case.recipe.scheme(), case.level) {
        (Scheme::Nvfp4Row, _) => ", per row",
        (_, Level::Given) => "",
        (_, Level::Own) => ", amax and cast",
    };
    format!("{}{tiles}{level}", case.label)
}

fn dequantizers(handle: &Handle, rows: usize, cols: usize, roof: f64) {
    let sets = rotation(handle, rows * cols * 5 / 2);
    let x = random(handle, 1, rows * cols, DType::Bf16);
    let x = MatRef::new(&x, DType::Bf16, rows, cols).unwrap();
    let mut y = outputs(handle, sets, rows * cols * 2);
    for scheme in [Scheme::Nvfp4, Scheme::Nvfp4Row, MX, Scheme::Mxfp4] {
        let recipe = Recipe::new(scheme);
        let q: Vec<_> = (0..sets).map(|_| handle.quantize(&x, recipe).unwrap()).collect();
        let time = time(handle, sets, |i| {
            handle.dequantize_into(&q[i], &mut MatMut::new(&mut y[i], DType::Bf16, rows, cols)?)
        });
        let label = format!("dequantize {}", scheme.spec().name);
        let bytes = quantize_bytes(recipe, DType::Bf16, rows, cols, false);
        report(&label, &time, bytes, roof, (rows, cols), Target::OfCopy(0.95));
    }
}

fn report(label: &str, time: &Times, bytes: usize, roof: f64, shape: (usize, usize), target: Target) {
    let verdict = |met: bool| if met { "met" } else { "missed" };
    let target = match target {
        _ if shape != TARGETED => String::new(),
        Target::None => String::new(),
        Target::Microseconds(most) => format!("{most} us: {}", verdict(time.median() <= most)),
        Target::OfCopy(least) => {
            format!("{least} of copy: {}", verdict(bytes as f64 / time.median() / roof >= least))
        }
    };
    report_rate(label, time, bytes, roof, &format!(" {target} |"));
}
