//! `dequantize`: every quantized matrix of a file becomes a plain one; its scales go, the rest is copied. Rows in a Hadamard
//! basis are transformed back. Codes that are no matrix are refused rather than copied, and so are values that the type asked for
//! would turn into infinities.

use std::collections::HashMap;

use ndarray::ArrayView2;
use scaled_gemm::checkpoint::{Checkpoint, Dtype, FileLayout, printable};
use scaled_gemm::{Basis, DType, HostQuantMatrix};
use serde_json::{Value, json};

use crate::args::{DequantizeArgs, DeviceChoice};
use crate::data::{round_to, to_bytes, undo_hadamard};
use crate::device;
use crate::files;
use crate::output::{Failure, Form, Outcome, byte_bar, count, table};

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
    // The tensors that go, with the matrix that stands in the place of its codes.
    let mut parts: HashMap<String, Option<&str>> = HashMap::new();
    for name in &names {
        for (i, tensor) in input.tensors_of(name)?.into_iter().enumerate() {
            parts.insert(tensor, (i == 0).then_some(*name));
        }
    }
    let mut layout = FileLayout::new();
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
    let mut writer = layout.create_in(files::create(&args.output)?, &[&input])?;
    let mut device = device::open(choice)?;
    let bar = byte_bar(device.as_ref(), input.tensors().iter().map(|t| t.bytes()).sum());
    let mut table_rows = Vec::new();
    let mut done = Vec::new();
    for tensor in input.tensors() {
        bar.set_message(printable(&tensor.name));
        match parts.get(&tensor.name) {
            Some(Some(name)) => {
                let matrix = input.quant_matrix(name)?;
                let transformed = matrix.basis() != Basis::Plain;
                // The inverse transform is of FP32 values: nothing is rounded twice.
                let mut values = device.dequantize(&matrix, if transformed { DType::F32 } else { args.dtype })?;
                if transformed {
                    undo_hadamard(&mut values);
                    values.mapv_inplace(|v| round_to(v, args.dtype));
                }
                refuse_overflow(name, &matrix, values.view(), args)?;
                writer.write(name, &to_bytes(&values, args.dtype))?;
                let (rows, cols) = (matrix.rows(), matrix.cols());
                let (scheme, shape) = (matrix.scheme().to_string(), format!("{rows} x {cols}"));
                let transform = if transformed { "inverse of hadamard16" } else { "" };
                done.push(json!({
                    "tensor": name, "scheme": scheme, "shape": [rows, cols], "inverse_hadamard": transformed,
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
        "{}\n{} to {} in {}\n",
        table(["tensor", "scheme", "transform", "shape"], 3, &table_rows),
        count(table_rows.len(), "matrix", "matrices"),
        args.dtype,
        args.output.display()
    );
    let value = json!({
        "device": device.name(), "output": args.output.display().to_string(), "dtype": args.dtype.name(),
        "dequantized": Value::from(done),
    });
    Ok(Outcome::new(device.as_ref(), Form::from_flag(args.json), text, value))
}

/// Refuses infinities that the codes do not hold: a finite code times its scales left the range of the type.
fn refuse_overflow(
    name: &str,
    matrix: &HostQuantMatrix,
    values: ArrayView2<'_, f32>,
    args: &DequantizeArgs,
) -> Result<(), Failure> {
    let mut codes = vec![0.0; matrix.cols()];
    let (mut overflows, mut first) = (0, None);
    for (row, values) in values.outer_iter().enumerate().filter(|(_, values)| values.iter().any(|v| v.is_infinite())) {
        matrix.decode_row(row, &mut codes);
        for (column, (value, code)) in values.iter().zip(&codes).enumerate() {
            if value.is_infinite() && code.is_finite() {
                overflows += 1;
                first.get_or_insert((row, column));
            }
        }
    }
    let Some((row, column)) = first else { return Ok(()) };
    let remedy = match args.dtype {
        DType::F16 => "choose --dtype bf16 or f32",
        DType::Bf16 => "choose --dtype f32",
        _ => "its scales are too large for plain numbers; quantize it again",
    };
    Err(Failure::Use(format!(
        "{}: tensor {}: {} beyond the range of {}, the first at row {row}, column {column}; {remedy}",
        args.input.display(),
        printable(name),
        count(overflows, "value is", "values are"),
        args.dtype
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
