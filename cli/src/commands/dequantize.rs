//! `dequantize`: every quantized matrix of a file becomes a plain one; its scales go, the rest is copied.

use scaled_gemm::checkpoint::{Checkpoint, Dtype, FileLayout};
use scaled_gemm::{DType, Result};
use serde_json::{Value, json};

use crate::args::{DequantizeArgs, DeviceChoice};
use crate::data::to_bytes;
use crate::device;
use crate::output::{Failure, Form, Outcome, byte_bar, table};

pub fn run(args: &DequantizeArgs, choice: DeviceChoice) -> std::result::Result<Outcome, Failure> {
    let input = Checkpoint::open(&args.input)?;
    let names = input.quantized();
    if names.is_empty() {
        return Err(Failure::Use(format!(
            "{}: holds no quantized matrix (2-D, F8_E4M3 or F8_E5M2); nothing to do",
            args.input.display()
        )));
    }
    let scales = names.iter().map(|n| input.scale_name(n)).collect::<Result<Vec<_>>>()?;
    let mut layout = FileLayout::new();
    for (key, value) in input.metadata() {
        if !key.strip_prefix("scaled_gemm.").is_some_and(|name| names.contains(&name)) {
            layout.metadata(key, value);
        }
    }
    for tensor in input.tensors() {
        if names.contains(&tensor.name.as_str()) {
            // Refuses what cannot be read before a byte is written.
            input.scheme(&tensor.name)?;
            layout.tensor(&tensor.name, file_dtype(args.dtype), &tensor.shape);
        } else if !scales.contains(&tensor.name) {
            layout.tensor(&tensor.name, tensor.dtype, &tensor.shape);
        }
    }
    let mut device = device::open(choice)?;
    let mut writer = layout.create(&args.output, &[&input])?;
    let bar = byte_bar(input.tensors().iter().map(|t| t.bytes()).sum());
    let mut rows = Vec::new();
    let mut done = Vec::new();
    for tensor in input.tensors() {
        bar.set_message(tensor.name.clone());
        if names.contains(&tensor.name.as_str()) {
            let matrix = input.quant_matrix(&tensor.name)?;
            let values = device.dequantize(&matrix, args.dtype)?;
            writer.write(&tensor.name, &to_bytes(&values, args.dtype))?;
            let (scheme, shape) = (matrix.scheme().to_string(), format!("{} x {}", matrix.rows(), matrix.cols()));
            done.push(json!({"tensor": tensor.name, "scheme": scheme, "shape": tensor.shape}));
            rows.push(vec![tensor.name.clone(), scheme, shape]);
        } else if !scales.contains(&tensor.name) {
            writer.write(&tensor.name, &input.bytes(&tensor.name)?)?;
        }
        bar.inc(tensor.bytes());
    }
    writer.finish()?;
    bar.finish_and_clear();
    let text = format!(
        "{}\n{} matrices to {} in {}\n",
        table(&["tensor", "scheme", "shape"], 2, &rows),
        rows.len(),
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
