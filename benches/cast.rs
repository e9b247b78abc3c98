//! Casts to groupings that no product reads, and producers, to what products read too: device time and bandwidth against the copy of the same run.
//!
//! `cargo bench --bench cast [-- WORDS...]`, words of the rows that are wanted; on a machine without a toolchain, the runner that `scripts/bundle.sh` packs.

mod common;

use common::*;
use scaled_gemm::{
    BlockScaleRule, Cadence, CastBytes, CastGroup, CastMatrix, CastRecipe, CastScales, CastScheme, CastSource,
    CodeFormat, DType, DelayedScaling, DeviceBuffer, DeviceBytes, ErrorMath, ErrorMetric, Fp8Format, Fp8Granularity,
    Fp8Recipe, Fp8Rule, GivenScale, GroupedDeviceLayout, GroupedLayout, GroupedRecipe, GroupedScheme, GroupedSource,
    GroupedTensor, GroupedTo, Handle, MatMut, MatRef, Nvfp4Options, Nvfp4Recipe, QuantMatrix, QuantizeTo, Recipe,
    RmsNormArgs, Scheme, SourceActivation, SwigluGradientsInto, SwigluSource, Times, VecRef, cast_bytes,
    quantize_bytes,
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
            products_read(handle, rows, half);
            with_results(handle, rows, half);
        }
        grouped(handle);
    });
}

/// A table of casts, and the rates of a copy that they are compared with, by cadence: casts to few bits take instructions, and so power, that a
/// copy does not, and some are faster with pauses than back to back.
struct Section {
    name: String,
    roofs: Vec<(Cadence, f64)>,
}

impl Section {
    /// Prints the head; the copy is of so many BF16 numbers, and large ones are timed in both cadences.
    fn begin(handle: &Handle, name: String, elements: usize) -> Self {
        let cadences: &[Cadence] =
            if elements >= 1 << 24 { &[Cadence::Sustained, Cadence::Pauses] } else { &[Cadence::Sustained] };
        println!("\n## {name}");
        let mut roofs = Vec::new();
        for &cadence in cadences {
            let copied = copy_time_at(handle, cadence, elements * 2);
            let roof = (4 * elements) as f64 / copied;
            println!("copy BF16, {cadence}: {copied:.2} us, {:.3} TB/s", roof / 1e6);
            roofs.push((cadence, roof));
        }
        let columns = |of: &str| roofs.iter().map(|(cadence, _)| format!(" {of}{cadence} |")).collect::<String>();
        println!("| cast |{}{}", columns("us, "), columns("of the copy rate, "));
        println!("|---|{}", "---|".repeat(2 * roofs.len()));
        Self { name, roofs }
    }

    fn row(&self, label: &str, bytes: usize, mut time: impl FnMut(Cadence) -> Times) {
        if !wanted(&self.name, label) {
            return;
        }
        let times: Vec<_> = self.roofs.iter().map(|(cadence, _)| time(*cadence)).collect();
        let shares = self.roofs.iter().zip(&times).map(|((_, roof), time)| bytes as f64 / time.median() / roof);
        let shares: String = shares.map(|share| format!(" {share:.3} |")).collect();
        println!("| {label} |{}{shares}", times.iter().map(|time| format!(" {time} |")).collect::<String>());
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
        section.row(&format!("plain to {to}"), rows * half * 2 + written, |cadence| {
            time_at(handle, cadence, sets, |i| handle.cast_into(&single[i], recipe, &mut out[i]))
        });
        section.row(&format!("swiglu to {to}"), rows * half * 4 + written, |cadence| {
            time_at(handle, cadence, sets, |i| handle.cast_into(SwigluSource::new(&gated[i])?, recipe, &mut out[i]))
        });
        for activation in SourceActivation::ALL {
            section.row(&format!("{activation} to {to}"), rows * half * 2 + written, |cadence| {
                time_at(handle, cadence, sets, |i| {
                    handle.cast_into(CastSource::activated(&single[i], activation), recipe, &mut out[i])
                })
            });
        }
    }
}

/// SwiGLU to what products read, against the quantizer of values that are stored in BF16.
fn products_read(handle: &Handle, rows: usize, half: usize) {
    let section = Section::begin(handle, format!("swiglu of {rows} x {half} to what products read"), rows * half);
    let sets = rotation(handle, rows * half * 5);
    let data: Vec<_> = (0..sets).map(|i| random(handle, i as u64, rows * 2 * half, DType::Bf16)).collect();
    let gated: Vec<_> = data.iter().map(|x| MatRef::new(x, DType::Bf16, rows, 2 * half).unwrap()).collect();
    let single: Vec<_> = data.iter().map(|x| MatRef::new(x, DType::Bf16, rows, half).unwrap()).collect();
    // An amax that no value of SwiGLU passes: blocks beyond it take the path of what is out of range, and 4 was passed in most warps.
    let (amax, factor) = (handle.upload(&[32.0f32]).unwrap(), handle.upload(&[4.0f32]).unwrap());
    let given = GivenScale::Amax(DeviceBytes::from(&amax));
    let encode = GivenScale::Encode(DeviceBytes::from(&factor));
    let four_over_six = BlockScaleRule::FourOverSix { metric: ErrorMetric::Mae, math: ErrorMath::Strict };
    let options = Nvfp4Options { block_scale: four_over_six, ..Nvfp4Options::PLAIN };
    let row = Fp8Recipe::new(Fp8Granularity::Row, Fp8Format::E4M3).with_rule(Fp8Rule::DeepSeek);
    let group = Fp8Recipe { granularity: Fp8Granularity::Group1x128, ..row };
    for recipe in [
        row.into(),
        group.into(),
        Recipe::new(Scheme::Fp8Tensor(Fp8Format::E4M3)),
        Recipe::new(Scheme::Mxfp8(Fp8Format::E4M3)),
        Recipe::new(Scheme::Mxfp4),
        Recipe::new(Scheme::Nvfp4),
        Nvfp4Recipe::tensor(options).unwrap().into(),
        Recipe::new(Scheme::Nvfp4Row),
        Nvfp4Recipe::rows(options).unwrap().into(),
    ] {
        let scheme = recipe.scheme();
        let mut out: Vec<_> = single.iter().map(|_| QuantMatrix::zeros(handle, scheme, rows, half).unwrap()).collect();
        let bytes = quantize_bytes(recipe, DType::Bf16, rows, half, false);
        section.row(&format!("plain to {scheme}, {recipe}"), bytes, |cadence| {
            time_at(handle, cadence, sets, |i| match scheme {
                Scheme::Fp8Tensor(format) => {
                    handle.quantize_tensor_into(&single[i], format, &encode, &mut out[i], None)
                }
                Scheme::Nvfp4 => handle.quantize_nvfp4_into(&single[i], recipe, &given, QuantizeTo::Plain(&mut out[i])),
                _ => handle.quantize_into(&single[i], recipe, QuantizeTo::Plain(&mut out[i])),
            })
        });
        section.row(&format!("swiglu to {scheme}, {recipe}"), bytes + rows * half * 2, |cadence| {
            time_at(handle, cadence, sets, |i| {
                let source = SwigluSource::new(&gated[i])?;
                match scheme {
                    Scheme::Fp8Tensor(format) => {
                        handle.quantize_source_tensor_into(source, format, &encode, &mut out[i], None)
                    }
                    Scheme::Nvfp4 => handle.quantize_source_nvfp4_into(source, recipe, &given, &mut out[i]),
                    _ => handle.quantize_source_into(source, recipe, &mut out[i]),
                }
            })
        });
    }
}

/// Grouped tensors against the cast of one matrix of as many elements, which has no members to find: 256 ragged members, and 1000 of ten rows.
fn grouped(handle: &Handle) {
    let cols = 7168;
    // 36 rows each on average: from 2 to 70, in an order without a pattern.
    let ragged: Vec<_> = (0..256).map(|t| [2 + t * 97 % 256 * 69 / 256, cols]).collect();
    for (name, shapes) in [("256 ragged members", ragged), ("1000 members of 10 rows", vec![[10, cols]; 1000])] {
        let layout = GroupedLayout::packed(&shapes).unwrap();
        let (elements, scheme) = (layout.buffer_len(), GroupedScheme::new(Fp8Format::E4M3));
        let section = Section::begin(handle, format!("grouped, {name} of {cols} columns"), elements);
        let sets = rotation(handle, elements * 3);
        let data: Vec<_> = (0..sets).map(|i| random(handle, i as u64, elements, DType::Bf16)).collect();
        let places = GroupedDeviceLayout::from_host(handle, &layout).unwrap();
        let tensors = |scheme| -> Vec<_> {
            (0..sets).map(|_| GroupedTensor::zeros(handle, scheme, places.share().unwrap()).unwrap()).collect()
        };
        let (mut out, mut turned) = (tensors(scheme), tensors(scheme.transposed()));
        let source = |i: usize| GroupedSource::new(&data[i], DType::Bf16);
        let numbers = handle.upload(&vec![4.0f32; shapes.len()]).unwrap();
        let given = GivenScale::Encode(DeviceBytes::from(&numbers));

        let rows = elements / cols;
        let plain: Vec<_> = data.iter().map(|x| MatRef::new(x, DType::Bf16, rows, cols).unwrap()).collect();
        let tensor = Scheme::Fp8Tensor(Fp8Format::E4M3);
        let mut one: Vec<_> = (0..sets).map(|_| QuantMatrix::zeros(handle, tensor, rows, cols).unwrap()).collect();
        section.row("one matrix, given scale", elements * 3, |cadence| {
            time_at(handle, cadence, sets, |i| {
                handle.quantize_tensor_into(&plain[i], Fp8Format::E4M3, &given_one(&numbers), &mut one[i], None)
            })
        });
        section.row("given scales", elements * 3, |cadence| {
            time_at(handle, cadence, sets, |i| {
                handle.quantize_grouped_with_scales_into(&source(i)?, scheme, &given, &mut out[i], None)
            })
        });
        section.row("given scales, transposed", elements * 3, |cadence| {
            time_at(handle, cadence, sets, |i| {
                let scheme = scheme.transposed();
                handle.quantize_grouped_with_scales_into(&source(i)?, scheme, &given, &mut turned[i], None)
            })
        });
        section.row("given scales, both", elements * 4, |cadence| {
            time_at(handle, cadence, sets, |i| {
                let both = GroupedTo::Both(&mut out[i], &mut turned[i]);
                handle.quantize_grouped_with_scales_into(&source(i)?, scheme, &given, both, None)
            })
        });
        let (delayed, row) = (DelayedScaling::default(), shapes.len() * 4);
        let mut history: Vec<_> = (0..sets).map(|_| handle.alloc(delayed.window() * row).unwrap()).collect();
        let mut next = handle.upload(&vec![4.0f32; shapes.len()]).unwrap();
        let label = format!("given scales, amax, and the update of {} steps", delayed.window());
        section.row(&label, elements * 3 + delayed.window() * row * 2, |cadence| {
            time_at(handle, cadence, sets, |i| {
                let mut past = history[i].view_mut();
                let mut amax = past.part(0..row)?;
                handle.quantize_grouped_with_scales_into(&source(i)?, scheme, &given, &mut out[i], Some(&mut amax))?;
                drop(amax);
                handle.delayed_update_grouped_into(&mut past, &mut next.view_mut(), Fp8Format::E4M3, delayed)
            })
        });
        section.row("one matrix, current scaling", elements * 5, |cadence| {
            time_at(handle, cadence, sets, |i| {
                handle.quantize_into(&plain[i], Recipe::new(tensor), QuantizeTo::Plain(&mut one[i]))
            })
        });
        section.row("current scaling", elements * 5, |cadence| {
            time_at(handle, cadence, sets, |i| {
                handle.quantize_grouped_into(&source(i)?, GroupedRecipe::new(scheme), &mut out[i], None)
            })
        });
        // With given scales one matrix has no cast to both in the public interface, and one to the transpose of rows that are a multiple of 16 alone: with current scaling any rows have both.
        let mut one_t: Vec<_> =
            (0..sets).map(|_| QuantMatrix::zeros(handle, tensor, cols, rows.next_multiple_of(16)).unwrap()).collect();
        section.row("one matrix, current scaling, transposed", elements * 5, |cadence| {
            time_at(handle, cadence, sets, |i| {
                handle.quantize_into(&plain[i], Recipe::new(tensor), QuantizeTo::Transposed(&mut one_t[i]))
            })
        });
        section.row("current scaling, transposed", elements * 5, |cadence| {
            time_at(handle, cadence, sets, |i| {
                let recipe = GroupedRecipe::new(scheme.transposed());
                handle.quantize_grouped_into(&source(i)?, recipe, &mut turned[i], None)
            })
        });
        section.row("one matrix, current scaling, both", elements * 6, |cadence| {
            time_at(handle, cadence, sets, |i| {
                let both = QuantizeTo::Both(&mut one[i], &mut one_t[i]);
                handle.quantize_into(&plain[i], Recipe::new(tensor), both)
            })
        });
        section.row("current scaling, both", elements * 6, |cadence| {
            time_at(handle, cadence, sets, |i| {
                let both = GroupedTo::Both(&mut out[i], &mut turned[i]);
                handle.quantize_grouped_into(&source(i)?, GroupedRecipe::new(scheme), both, None)
            })
        });
        // Without the last rows, of which a slot has none: fewer than 16.
        let whole = rows / 16 * 16;
        let mut slot: Vec<_> = (0..sets).map(|_| [QuantMatrix::zeros(handle, tensor, cols, whole).unwrap()]).collect();
        let first = handle.upload(&[4.0f32]).unwrap();
        section.row("one matrix, given scale, transposed", whole * cols * 3, |cadence| {
            time_at(handle, cadence, sets, |i| {
                let (x, into) = (&plain[i], &mut slot[i][..]);
                handle.quantize_slots_transposed_with_scales_into(x, Fp8Format::E4M3, &given_one(&first), into)
            })
        });
        let mut back = outputs(handle, sets, elements * 2);
        section.row("dequantized", elements * 3, |cadence| {
            time_at(handle, cadence, sets, |i| {
                handle.dequantize_grouped_into(&out[i], &mut (&mut back[i]).into(), DType::Bf16)
            })
        });
    }
}

/// The first of these numbers as the encode factor of a whole matrix.
fn given_one(numbers: &DeviceBuffer) -> GivenScale<DeviceBytes<'_>> {
    GivenScale::Encode(DeviceBytes::from(numbers))
}

/// The backward pass of SwiGLU, and RMSNorm with a residual, whose sum replaces it.
fn with_results(handle: &Handle, rows: usize, half: usize) {
    let section = Section::begin(handle, format!("with results beside, {rows} x {half}"), rows * half);
    let sets = rotation(handle, rows * half * 12);
    let to = scheme(CodeFormat::E4M3, CastGroup::Group1x128).with_scales(CastScales::ColumnMajor);
    let recipe = CastRecipe::new(to);
    let data: Vec<_> = (0..sets).map(|i| random(handle, i as u64, rows * 2 * half, DType::Bf16)).collect();
    let x: Vec<_> = data.iter().map(|x| MatRef::new(x, DType::Bf16, rows, 2 * half).unwrap()).collect();
    let g: Vec<_> = data.iter().map(|x| MatRef::new(x, DType::Bf16, rows, half).unwrap()).collect();
    let coded: Vec<_> = x.iter().map(|x| handle.cast(x, recipe).unwrap()).collect();
    let mut dx = targets(handle, to, &x);
    let (mut wide, mut out) = (outputs(handle, sets, rows * half * 4), outputs(handle, sets, rows * half * 2));
    let mut of_weights = outputs(handle, sets, rows * 4);
    let codes = |cols: usize| to.code_bytes(rows, cols) + to.scale_bytes(rows, cols);
    let written = codes(2 * half) + rows * half * 6 + rows * 4;
    for from_codes in [false, true] {
        let label = if from_codes { "swiglu backward of codes" } else { "swiglu backward" };
        let read = rows * half * 2 + if from_codes { codes(2 * half) } else { rows * half * 4 };
        section.row(&format!("{label} to {to} and BF16"), read + written, |cadence| {
            time_at(handle, cadence, sets, |i| {
                let forward = if from_codes { SwigluSource::of_codes(&coded[i])? } else { SwigluSource::new(&x[i])? };
                let into = SwigluGradientsInto {
                    x: Some((recipe, &mut dx[i]).into()),
                    x_bf16: Some(MatMut::new(&mut wide[i], DType::Bf16, rows, 2 * half)?),
                    out: Some(MatMut::new(&mut out[i], DType::Bf16, rows, half)?),
                    weights: Some((&mut of_weights[i]).into()),
                };
                handle.swiglu_backward(forward, &g[i], into)
            })
        });
    }
    let weight = random(handle, 1, half, DType::Bf16);
    let mut normed = targets(handle, to, &g);
    section.row(&format!("norm with residual to {to}"), rows * half * 6 + codes(half), |cadence| {
        time_at(handle, cadence, sets, |i| {
            let residual = MatMut::new(&mut out[i], DType::Bf16, rows, half)?;
            let norm = RmsNormArgs::new(&g[i], VecRef::new(&weight, DType::Bf16, half)?, 1e-6)?;
            handle.rms_norm_cast_into(norm.with_updated_residual(residual)?, recipe, &mut normed[i])
        })
    });
    section.row(&format!("norm to {to}"), rows * half * 2 + codes(half), |cadence| {
        time_at(handle, cadence, sets, |i| {
            let norm = RmsNormArgs::new(&g[i], VecRef::new(&weight, DType::Bf16, half)?, 1e-6)?;
            handle.rms_norm_cast_into(norm, recipe, &mut normed[i])
        })
    });
    // What one pass does not write: the factors of rows first, then the norm as a source. The bytes are those of one pass.
    let mut factors: Vec<_> = g.iter().map(|_| handle.alloc(4 * rows).unwrap()).collect();
    let number = handle.upload(&[8.0f32]).unwrap();
    let given = GivenScale::Amax(DeviceBytes::from(&number));
    for read in [Recipe::new(Scheme::Mxfp8(Fp8Format::E4M3)), Recipe::new(Scheme::Nvfp4)] {
        let scheme = read.scheme();
        let mut product: Vec<_> = g.iter().map(|_| QuantMatrix::zeros(handle, scheme, rows, half).unwrap()).collect();
        let bytes = quantize_bytes(read, DType::Bf16, rows, half, false);
        section.row(&format!("norm to {scheme}, two passes"), bytes, |cadence| {
            time_at(handle, cadence, sets, |i| {
                let columns = || VecRef::new(&weight, DType::Bf16, half);
                handle.rms_norm(RmsNormArgs::new(&g[i], columns()?, 1e-6)?.with_rstd(&mut factors[i])?)?;
                let source = CastSource::normed(&g[i], VecRef::new(&factors[i], DType::F32, rows)?, columns()?)?;
                match scheme {
                    Scheme::Nvfp4 => handle.quantize_source_nvfp4_into(source, read, &given, &mut product[i]),
                    _ => handle.quantize_source_into(source, read, &mut product[i]),
                }
            })
        });
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
    use CastGroup::{Group1x16, Group1x32, Group1x64, Group1x128, Group32x1, Group128x1};
    let to_e4m3 = [Group1x32, Group32x1, Group128x1].map(e4m3);
    let to_e2m1 = [Group1x16, Group1x32, Group1x64, Group1x128, Group32x1, Group128x1].map(e2m1);
    let of_e4m3 = to_e4m3.into_iter().chain(to_e2m1).map(|to| (e4m3(Group1x128), to));
    of_e4m3.chain([Group1x128, Group128x1].map(|to| (e2m1(Group1x32), e4m3(to)))).collect()
}

fn targets(handle: &Handle, scheme: CastScheme, inputs: &[MatRef<'_>]) -> Vec<CastMatrix> {
    inputs.iter().map(|x| CastMatrix::zeros(handle, scheme, x.rows(), x.cols()).unwrap()).collect()
}

fn plain(handle: &Handle, inputs: &[MatRef<'_>], recipe: CastRecipe, section: &Section) {
    let mut out = targets(handle, recipe.scheme(), inputs);
    let bytes = cast_bytes(CastBytes::Plain(DType::Bf16), recipe.scheme(), inputs[0].rows(), inputs[0].cols());
    section.row(&recipe.scheme().to_string(), bytes, |cadence| {
        time_at(handle, cadence, inputs.len(), |i| handle.cast_into(&inputs[i], recipe, &mut out[i]))
    });
}

fn sources(handle: &Handle, inputs: &[MatRef<'_>], scheme: CastScheme) -> Vec<CastMatrix> {
    inputs.iter().map(|x| handle.cast(x, CastRecipe::new(scheme).power_of_two()).unwrap()).collect()
}

fn coded(handle: &Handle, inputs: &[MatRef<'_>], from: CastScheme, to: CastScheme, section: &Section) {
    let (q, mut out) = (sources(handle, inputs, from), targets(handle, to, inputs));
    let recipe = CastRecipe::new(to);
    let bytes = cast_bytes(CastBytes::Coded(from), to, inputs[0].rows(), inputs[0].cols());
    section.row(&format!("{from} to {to}"), bytes, |cadence| {
        time_at(handle, cadence, inputs.len(), |i| handle.cast_into(&q[i], recipe, &mut out[i]))
    });
}

fn back(handle: &Handle, inputs: &[MatRef<'_>], from: CastScheme, section: &Section) {
    let (rows, cols) = (inputs[0].rows(), inputs[0].cols());
    let q = sources(handle, inputs, from);
    let mut y = outputs(handle, inputs.len(), rows * cols * 2);
    let bytes = from.code_bytes(rows, cols) + from.scale_bytes(rows, cols) + rows * cols * 2;
    section.row(&format!("{from} back to bf16"), bytes, |cadence| {
        time_at(handle, cadence, inputs.len(), |i| {
            handle.cast_back_into(&q[i], &mut MatMut::new(&mut y[i], DType::Bf16, rows, cols)?)
        })
    });
}

fn lossless(handle: &Handle, inputs: &[MatRef<'_>], section: &Section) {
    let from = scheme(CodeFormat::E2M1, CastGroup::Group1x32).with_scales(CastScales::Ue8m0);
    let to = scheme(CodeFormat::E4M3, CastGroup::Group1x128).with_scales(CastScales::Ue8m0);
    let (q, mut out) = (sources(handle, inputs, from), targets(handle, to, inputs));
    let bytes = cast_bytes(CastBytes::Coded(from), to, inputs[0].rows(), inputs[0].cols());
    section.row(&format!("{from} to {to}, lossless"), bytes, |cadence| {
        time_at(handle, cadence, inputs.len(), |i| handle.fp4_to_fp8_into(&q[i], &mut out[i], None))
    });
}
