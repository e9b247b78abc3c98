//! `dequantize`: every quantized matrix of a file becomes a plain one; its scales go, the rest is copied. Rows in a Hadamard
//! basis are transformed back.

use std::collections::HashMap;

use scaled_gemm::checkpoint::{Checkpoint, Dtype, FileLayout};
use scaled_gemm::{Basis, DType};
use serde_json::{Value, json};

use crate::args::{DequantizeArgs, DeviceChoice};
use crate::data::{to_bytes, undo_hadamard};
use crate::device;
use crate::output::{Failure, Form, Outcome, byte_bar, table};

pub fn run(args: &DequantizeArgs, choice: DeviceChoice) -> Result<Outcome, Failure> {
    let mut input = Checkpoint::open(&args.input)?;
    if let Some(order) = args.nibble_order {
        input = input.with_nibble_order(order);
    }
    let names = input.quantized();
    if names.is_empty() {
        return Err(Failure::Use(format!(
            "{}: holds no quantized matrix (2-D, F8_E4M3, F8_E5M2, or U8 with NVFP4 scales); nothing to do",
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
    let mut device = device::open(choice)?;
    let mut writer = layout.create(&args.output, &[&input])?;
    let bar = byte_bar(input.tensors().iter().map(|t| t.bytes()).sum());
    let mut table_rows = Vec::new();
    let mut done = Vec::new();
    for tensor in input.tensors() {
        bar.set_message(tensor.name.clone());
        match parts.get(&tensor.name) {
            Some(Some(name)) => {
                let matrix = input.quant_matrix(name)?;
                let transformed = matrix.basis() != Basis::Plain;
                // The inverse transform is of FP32 values: nothing is rounded twice.
                let mut values = device.dequantize(&matrix, if transformed { DType::F32 } else { args.dtype })?;
                if transformed {
                    undo_hadamard(&mut values);
                }
                writer.write(name, &to_bytes(&values, args.dtype))?;
                let (rows, cols) = (matrix.rows(), matrix.cols());
                let (scheme, shape) = (matrix.scheme().to_string(), format!("{rows} x {cols}"));
                let transform = if transformed { "inverse of hadamard16" } else { "" };
                done.push(json!({
                    "tensor": name, "scheme": scheme, "shape": [rows, cols], "inverse_hadamard": transformed,
                }));
                table_rows.push(vec![name.to_string(), scheme, transform.to_string(), shape]);
            }
            Some(None) => {}
            None => writer.write(&tensor.name, &input.bytes(&tensor.name)?)?,
        }
        bar.inc(tensor.bytes());
    }
    writer.finish()?;
    bar.finish_and_clear();
    let text = format!(
        "{}\n{} matrices to {} in {}\n",
        table(&["tensor", "scheme", "transform", "shape"], 3, &table_rows),
        table_rows.len(),
        args.dtype,
        args.output.display()
    );
    let value = json!({
        "device": device.name(), "output": args.output.display().to_string(), "dtype": args.dtype.name(),
        "dequantized": Value::from(done),
    });
    Ok(Outcome::new(Form::from_flag(args.json), text, value))
}

/// The name of a wide type in files.
pub fn file_dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::Bf16 => Dtype::BF16,
        DType::F16 => Dtype::F16,
        _ => Dtype::F32,
    }
}
