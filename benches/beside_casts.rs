//! Our part of `scripts/beside-casts.py`, in which casts and producers take turns with other libraries' own and with a copy.
//!
//! It only works when it is asked to: `cargo bench --bench beside_casts -- --requests` obeys lines on standard input ([`obey`]). `cast` measures the same rows alone.

mod common;

use std::rc::Rc;

use common::requests::parsed;
use common::*;
use scaled_gemm::cudarc::driver::CudaSlice;
use scaled_gemm::{
    CastBytes, CastGroup, CastMatrix, CastRecipe, CastScales, CastScheme, CodeFormat, DType, Handle, MatMut, MatRef,
    Result, RmsNormArgs, SwigluGradientsInto, SwigluSource, VecRef, cast_bytes,
};

fn main() {
    main_with_gpu(|handle, _| {
        head(handle, "Casts and producers, asked for a row at a time");
        match requests::asked() {
            true => obey(handle),
            false => println!("nothing was asked for: scripts/beside-casts.py starts this with --requests"),
        }
    });
}

/// Answers requests until there are no more, a line each; it works only between a request and its answer.
///
/// - `cast ROWS COLS LABEL`: prepares this row of `benches/cast.rs`, called once. `ready SETS | BYTES | ours`: sets of operands, and the bytes that a call reads and writes.
/// - `time CADENCE CALLS LAUNCHES MILLISECONDS 0`: times it, graphs of so many calls, after so long a warm-up. `times MICROSECONDS`: the median.
///
/// A label that there is not, and what the library refuses, is `refused WHY`, and nothing is ready.
fn obey(handle: &Handle) {
    let mut inputs = Inputs::default();
    let mut row: Option<Row> = None;
    for line in requests::lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["cast", rows, cols, ..] => {
                // Memory of the last one first.
                drop(row.take());
                let [rows, cols] = [rows, cols].map(parsed);
                let made = What::of(&words[3..].join(" ")).and_then(|what| {
                    Row::new(handle, &mut inputs, what, rows, cols).map_err(|error| error.to_string())
                });
                match made {
                    Ok(made) => {
                        println!("ready {} | {} | ours", made.sets, made.bytes);
                        row = Some(made);
                    }
                    Err(why) => requests::refuse(&why),
                }
            }
            ["time", cadence, calls, launches, milliseconds, "0"] => {
                let Some(Row { sets, call, .. }) = &mut row else { panic!("{line}: nothing is ready") };
                let timing = borrowing(requests::timing([cadence, calls, launches, milliseconds])).over(*sets);
                let times = timing.time(handle, |i| call(i % *sets)).unwrap();
                requests::say_times([times.median()]);
            }
            _ => panic!("{line}: neither `cast ROWS COLS LABEL` nor `time CADENCE CALLS LAUNCHES MILLISECONDS 0`"),
        }
    }
}

/// A row, by what its label says.
enum What {
    Copy,
    Plain(CastScheme),
    Coded(CastScheme, CastScheme),
    Lossless(CastScheme, CastScheme),
    Back(CastScheme),
    Swiglu(CastScheme),
    /// Of codes in the scheme that gradients are cast to.
    Gradients(CastScheme),
    Norm(CastScheme),
}

impl What {
    fn of(label: &str) -> std::result::Result<Self, String> {
        let pair = |text: &str| {
            let (from, to) = text.split_once(" to ").ok_or_else(|| format!("{label:?} is no row"))?;
            Ok::<_, String>((scheme(from)?, scheme(to)?))
        };
        if label == "copy" {
            return Ok(Self::Copy);
        }
        if let Some(to) = label.strip_prefix("swiglu to ") {
            return Ok(Self::Swiglu(scheme(to)?));
        }
        if let Some(to) = label.strip_prefix("norm with residual to ") {
            return Ok(Self::Norm(scheme(to)?));
        }
        if let Some(to) = label.strip_prefix("swiglu backward of codes to ") {
            return Ok(Self::Gradients(scheme(to.strip_suffix(" and BF16").unwrap_or(to))?));
        }
        if let Some(from) = label.strip_suffix(" back to bf16") {
            return Ok(Self::Back(scheme(from)?));
        }
        if let Some(text) = label.strip_suffix(", lossless") {
            return pair(text).map(|(from, to)| Self::Lossless(from, to));
        }
        match label.contains(" to ") {
            true => pair(label).map(|(from, to)| Self::Coded(from, to)),
            false => scheme(label).map(Self::Plain),
        }
    }

    /// What a call reads and writes.
    fn bytes(&self, rows: usize, cols: usize) -> usize {
        let (elements, codes) =
            (rows * cols, |of: CastScheme, cols: usize| of.code_bytes(rows, cols) + of.scale_bytes(rows, cols));
        match *self {
            Self::Copy => elements * 4,
            Self::Plain(to) => cast_bytes(CastBytes::Plain(DType::Bf16), to, rows, cols),
            Self::Coded(from, to) | Self::Lossless(from, to) => cast_bytes(CastBytes::Coded(from), to, rows, cols),
            Self::Back(from) => codes(from, cols) + elements * 2,
            Self::Swiglu(to) => elements * 4 + codes(to, cols),
            // Codes and the gradient; codes of both gradients, those in BF16, the forward values, and the weights' gradient.
            Self::Gradients(to) => 2 * codes(to, 2 * cols) + elements * 8 + rows * 4,
            Self::Norm(to) => elements * 6 + codes(to, cols),
        }
    }
}

/// The scheme of these words, as [`CastScheme`] writes itself.
fn scheme(text: &str) -> std::result::Result<CastScheme, String> {
    let words: Vec<&str> = text.split(' ').collect();
    let (["transposed"] | []) = words.get(3..).unwrap_or(&["none"]) else {
        return Err(format!("{text:?} is not FORMAT GROUP SCALES [transposed]"));
    };
    let format: CodeFormat = words[0].parse().map_err(|error| format!("{error}"))?;
    let group: CastGroup = words[1].parse().map_err(|error| format!("{error}"))?;
    let scales: CastScales = words[2].parse().map_err(|error| format!("{error}"))?;
    let scheme = CastScheme::new(format, group).map_err(|error| error.to_string())?.with_scales(scales);
    match words.len() {
        4 => scheme.transposed().map_err(|error| error.to_string()),
        _ => Ok(scheme),
    }
}

/// Random BF16 matrices of so many elements, kept from row to row.
#[derive(Default)]
struct Inputs {
    elements: usize,
    matrices: Vec<Rc<CudaSlice<u8>>>,
}

impl Inputs {
    fn take(&mut self, handle: &Handle, sets: usize, elements: usize) -> Vec<Rc<CudaSlice<u8>>> {
        if self.elements != elements {
            self.matrices.clear();
            self.elements = elements;
        }
        for i in self.matrices.len()..sets {
            self.matrices.push(Rc::new(random(handle, i as u64, elements, DType::Bf16)));
        }
        self.matrices[..sets].to_vec()
    }
}

/// Operands of a row, and the call that reads and writes those of a set.
struct Row<'h> {
    sets: usize,
    bytes: usize,
    call: Call<'h>,
}

type Call<'h> = Box<dyn FnMut(usize) -> Result<()> + 'h>;

impl<'h> Row<'h> {
    fn new(handle: &'h Handle, inputs: &mut Inputs, what: What, rows: usize, cols: usize) -> Result<Self> {
        let bytes = what.bytes(rows, cols);
        let sets = rotation(handle, bytes);
        let wide = matches!(what, What::Swiglu(_) | What::Gradients(_));
        let width = if wide { 2 * cols } else { cols };
        let x = inputs.take(handle, sets, rows * width);
        let coded = |recipe: CastRecipe| -> Result<Vec<CastMatrix>> {
            x.iter().map(|x| handle.cast(&bf16(x, rows, width)?, recipe)).collect()
        };
        let targets = |to: CastScheme, cols: usize| -> Result<Vec<CastMatrix>> {
            (0..sets).map(|_| CastMatrix::zeros(handle, to, rows, cols)).collect()
        };
        let sources = |from: CastScheme| coded(CastRecipe::new(from).power_of_two());
        let elements = rows * cols;
        let mut call: Call<'h> = match what {
            What::Copy => {
                let mut out = outputs(handle, sets, elements * 2);
                Box::new(move |i| scaled_gemm::copy(handle, &x[i], &mut out[i]))
            }
            What::Plain(to) => {
                let mut out = targets(to, cols)?;
                Box::new(move |i| handle.cast_into(&bf16(&x[i], rows, width)?, CastRecipe::new(to), &mut out[i]))
            }
            What::Coded(from, to) => {
                let (q, mut out) = (sources(from)?, targets(to, cols)?);
                Box::new(move |i| handle.cast_into(&q[i], CastRecipe::new(to), &mut out[i]))
            }
            What::Lossless(from, to) => {
                let (q, mut out) = (sources(from)?, targets(to, cols)?);
                Box::new(move |i| handle.fp4_to_fp8_into(&q[i], &mut out[i], None))
            }
            What::Back(from) => {
                let (q, mut out) = (sources(from)?, outputs(handle, sets, elements * 2));
                Box::new(move |i| handle.cast_back_into(&q[i], &mut MatMut::new(&mut out[i], DType::Bf16, rows, cols)?))
            }
            What::Swiglu(to) => {
                let mut out = targets(to, cols)?;
                Box::new(move |i| {
                    let x = bf16(&x[i], rows, width)?;
                    handle.cast_into(SwigluSource::new(&x)?, CastRecipe::new(to), &mut out[i])
                })
            }
            What::Gradients(to) => {
                let (q, mut dx) = (coded(CastRecipe::new(to))?, targets(to, 2 * cols)?);
                let mut wide = outputs(handle, sets, elements * 4);
                let mut out = outputs(handle, sets, elements * 2);
                let mut of_weights = outputs(handle, sets, rows * 4);
                Box::new(move |i| {
                    let into = SwigluGradientsInto {
                        x: Some((CastRecipe::new(to), &mut dx[i]).into()),
                        x_bf16: Some(MatMut::new(&mut wide[i], DType::Bf16, rows, 2 * cols)?),
                        out: Some(MatMut::new(&mut out[i], DType::Bf16, rows, cols)?),
                        weights: Some((&mut of_weights[i]).into()),
                    };
                    let g = bf16(&x[i], rows, cols)?;
                    handle.swiglu_backward(SwigluSource::of_codes(&q[i])?, &g, into)
                })
            }
            What::Norm(to) => {
                let mut out = targets(to, cols)?;
                let mut sums = outputs(handle, sets, elements * 2);
                let weight = random(handle, 1, cols, DType::Bf16);
                Box::new(move |i| {
                    let residual = MatMut::new(&mut sums[i], DType::Bf16, rows, cols)?;
                    let x = bf16(&x[i], rows, width)?;
                    let norm = RmsNormArgs::new(&x, VecRef::new(&weight, DType::Bf16, cols)?, 1e-6)?;
                    handle.rms_norm_cast_into(norm.with_updated_residual(residual)?, CastRecipe::new(to), &mut out[i])
                })
            }
        };
        call(0)?;
        handle.synchronize()?;
        Ok(Self { sets, bytes, call })
    }
}

fn bf16(data: &CudaSlice<u8>, rows: usize, cols: usize) -> Result<MatRef<'_>> {
    MatRef::new(data, DType::Bf16, rows, cols)
}
