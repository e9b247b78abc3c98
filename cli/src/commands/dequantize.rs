//! `dequantize`: every quantized matrix of a file becomes a plain one; its scales go, the rest is copied. Rows in a Hadamard
//! basis are transformed back. Codes that are no matrix are refused rather than copied, and so are values that the type asked for
//! would turn into infinities. Those beyond FP32, and codes that are NaN or infinite, are refused too unless they are allowed.

use std::collections::HashMap;

use ndarray::{Array2, ArrayView2};
use scaled_gemm::checkpoint::{Checkpoint, CheckpointLayout, Dtype, printable};
use scaled_gemm::codec::round_to;
use scaled_gemm::{Basis, DType, HostQuantMatrix, Scheme};
use serde_json::{Value, json};

use crate::args::{DequantizeArgs, DeviceChoice};
use crate::data::{to_bytes, undo_hadamard};
use crate::device::{self, Device};
use crate::files;
use crate::non_finite::NonFinite;
use crate::output::{Failure, Form, Outcome, byte_bar, count, shown, table};

pub fn run(args: &DequantizeArgs, choice: DeviceChoice) -> Result<Outcome, Failure> {
    let mut input = Checkpoint::open(&args.input)?;
    if let Some(order) = args.nibble_order {
        input = input.with_nibble_order(order);
    }
    let names = input.quantized();
    if names.is_empty() {
        return Err(Failure::Use(format!(
            "{}: holds no quantized matrix (F8_E4M3, F8_E5M2, or U8 with NVFP4 scales); nothing to do",
            args.input.display()
        )));
    }
    if args.nibble_order.is_some() && !names.iter().any(|name| input.scheme(name).is_ok_and(Scheme::is_nvfp4)) {
        // What is wrong with a matrix is worth more than the option.
        names.iter().try_for_each(|name| input.scheme(name).map(drop))?;
        return Err(Failure::Use(format!(
            "--nibble-order: {} holds no nvfp4 matrix, and a byte of the others is one code; leave it out",
            args.input.display()
        )));
    }
    // The tensors that go, with the matrix that stands in the place of its codes.
    let mut parts: HashMap<String, Option<&str>> = HashMap::new();
    for name in &names {
        for (i, tensor) in input.tensors_of(name)?.into_iter().enumerate() {
            parts.insert(tensor, (i == 0).then_some(*name));
        }
    }
    let mut layout = CheckpointLayout::new();
    for (key, value) in input.metadata() {
        if !key.strip_prefix("scaled_gemm.").is_some_and(|name| names.contains(&name)) {
            layout.metadata(key, value);
        }
    }
    for tensor in input.tensors() {
        match parts.get(&tensor.name) {
            Some(Some(name)) => {
                // Refuses what cannot be read before a byte is written.
                let scheme = input.scheme(name)?;
                let shape = tensor.shape.iter().enumerate();
                let per_byte = if scheme.is_nvfp4() { 2 } else { 1 };
                let shape: Vec<_> = shape.map(|(axis, &len)| if axis == 1 { len * per_byte } else { len }).collect();
                layout.tensor(*name, file_dtype(args.dtype), &shape);
            }
            Some(None) => {}
            None => layout.tensor(&tensor.name, tensor.dtype, &tensor.shape),
        }
    }
    let writer = layout.create_in(files::create(&args.output)?, &[&input])?;
    let mut device = device::open(choice)?;
    let bar = byte_bar(device.as_ref(), input.tensors().iter().map(|t| t.bytes()).sum());
    let (mut table_rows, mut said) = (Vec::new(), String::new());
    let mut done = Vec::new();
    for tensor in input.tensors() {
        bar.set_message(printable(&tensor.name));
        match parts.get(&tensor.name) {
            Some(Some(name)) => {
                let matrix = input.quant_matrix(name)?;
                let (values, found) = plain(device.as_mut(), name, &matrix, args)?;
                said += &found.describe(name);
                writer.write(name, &to_bytes(&values, args.dtype))?;
                let (rows, cols) = (matrix.rows(), matrix.cols());
                let (scheme, shape) = (matrix.scheme().to_string(), format!("{rows} x {cols}"));
                let transformed = matrix.basis() != Basis::Plain;
                let transform = if transformed { "inverse of hadamard16" } else { "" };
                done.push(json!({
                    "tensor": name, "scheme": scheme, "shape": [rows, cols], "inverse_hadamard": transformed,
                    "nan": found.codes.nan, "infinite": found.codes.infinite, "beyond_fp32": found.beyond.len(),
                }));
                table_rows.push([name.to_string(), scheme, transform.to_string(), shape]);
            }
            Some(None) => {}
            None => writer.write(&tensor.name, &input.bytes(&tensor.name)?)?,
        }
        bar.inc(tensor.bytes());
    }
    writer.finish()?;
    bar.finish_and_clear();
    let text = format!(
        "{}\n{said}{} to {} in {}\n",
        table(["tensor", "scheme", "transform", "shape"], 3, &table_rows),
        count(table_rows.len(), "matrix", "matrices"),
        args.dtype,
        shown(&args.output)
    );
    let value = json!({
        "device": device.name(), "output": args.output.display().to_string(), "dtype": args.dtype.name(),
        "dequantized": Value::from(done),
    });
    Ok(Outcome::new(device.as_ref(), Form::from_flag(args.json), text, value))
}

/// The values of the data in the type asked for, and which of them are not finite.
fn plain(
    device: &mut dyn Device,
    name: &str,
    matrix: &HostQuantMatrix,
    args: &DequantizeArgs,
) -> Result<(Array2<f32>, Found), Failure> {
    // The inverse transform is of FP32 values: nothing is rounded twice.
    let values = match matrix.basis() == Basis::Plain {
        true => device.dequantize(matrix, args.dtype)?,
        false => exact(device, matrix)?.mapv_into(|v| round_to(args.dtype, v)),
    };
    if values.iter().all(|v| v.is_finite()) {
        return Ok((values, Found::default()));
    }
    let exact = exact(device, matrix)?;
    refuse_overflow(name, values.view(), exact.view(), args)?;
    let found = Found::of(matrix, exact.view());
    if !args.allow_non_finite {
        found.refuse(name, args)?;
    }
    Ok((values, found))
}

/// The values of a matrix that are not finite in FP32.
#[derive(Default)]
struct Found {
    /// NaN, and the infinities of FP8 codes.
    codes: NonFinite,
    /// Where finite codes have values beyond FP32 (what MXFP8 makes of an infinity): every plain type has an infinity there.
    beyond: Vec<(usize, usize)>,
}

impl Found {
    fn of(matrix: &HostQuantMatrix, exact: ArrayView2<'_, f32>) -> Self {
        let mut codes = vec![0.0; matrix.cols()];
        let mut found = Self::default();
        for (row, values) in exact.outer_iter().enumerate() {
            matrix.decode_row(row, &mut codes);
            let pairs = values.iter().zip(&codes).enumerate();
            for (column, (value, code)) in pairs.filter(|(_, (value, _))| !value.is_finite()) {
                // What is written counts: an infinity times a scale of 0 is NaN, and so are two that an inverse transform adds.
                if code.is_finite() && !value.is_nan() {
                    found.beyond.push((row, column));
                } else {
                    found.codes.add((row, column), *value);
                }
            }
        }
        found
    }

    fn refuse(&self, name: &str, args: &DequantizeArgs) -> Result<(), Failure> {
        let place = format!("{}: tensor {}", args.input.display(), printable(name));
        if let Some((row, column)) = self.beyond.first() {
            return Err(Failure::Use(format!(
                "{place}: {} beyond FP32, which every type would make infinite, the first at row {row}, column {column}: what \
                 was quantized was infinite, or so near the largest number that it was rounded up beyond it; quantize smaller \
                 values, or say --allow-non-finite",
                count(self.beyond.len(), "value is", "values are"),
            )));
        }
        let Some((row, column)) = self.codes.first() else { return Ok(()) };
        Err(Failure::Use(format!(
            "{place}: {} among its codes, the first at row {row}, column {column}; quantize the matrix again from finite values, \
             or say --allow-non-finite",
            self.codes.total()
        )))
    }

    /// Lines for the result, where there is something to say.
    fn describe(&self, name: &str) -> String {
        let mut text = match self.codes.first() {
            Some(_) => format!("{}: {} of its codes written as they are\n", printable(name), self.codes.both()),
            None => String::new(),
        };
        if !self.beyond.is_empty() {
            let many = count(self.beyond.len(), "value is", "values are");
            text += &format!("{}: {many} beyond FP32 and written as infinite\n", printable(name));
        }
        text
    }
}

/// The values in FP32, of the data where the rows are in a Hadamard basis.
fn exact(device: &mut dyn Device, matrix: &HostQuantMatrix) -> Result<Array2<f32>, Failure> {
    let mut values = device.dequantize(matrix, DType::F32)?;
    if matrix.basis() != Basis::Plain {
        undo_hadamard(&mut values);
    }
    Ok(values)
}

/// Refuses infinities that are none in FP32: the type asked for has too small a range.
fn refuse_overflow(
    name: &str,
    values: ArrayView2<'_, f32>,
    exact: ArrayView2<'_, f32>,
    args: &DequantizeArgs,
) -> Result<(), Failure> {
    let pairs = values.indexed_iter().zip(exact);
    let mut lost = pairs.filter(|((_, value), exact)| value.is_infinite() && exact.is_finite());
    let Some((((row, column), _), value)) = lost.next() else { return Ok(()) };
    Err(Failure::Use(format!(
        "{}: tensor {}: {} beyond the range of {}, the first {value} at row {row}, column {column}; choose --dtype {}",
        args.input.display(),
        printable(name),
        count(1 + lost.count(), "value is", "values are"),
        args.dtype,
        if args.dtype == DType::F16 { "bf16 or f32" } else { "f32" }
    )))
}

/// The name of a wide type in files.
pub fn file_dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::Bf16 => Dtype::BF16,
        DType::F16 => Dtype::F16,
        _ => Dtype::F32,
    }
}
