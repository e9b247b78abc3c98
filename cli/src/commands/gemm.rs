//! `gemm`: D = activation(A Bᵀ + bias) of quantized matrices in files; D is the tensor `d` of a new file. A may be plain where
//! only the weights are quantized.

use scaled_gemm::checkpoint::{Checkpoint, Dtype, FileLayout, NibbleOrder};
use scaled_gemm::reference::GemmInputs;
use scaled_gemm::{DType, HostQuantMatrix};
use serde_json::json;

use super::dequantize::file_dtype;
use crate::args::{DeviceChoice, FileTensor, GemmArgs};
use crate::data::to_bytes;
use crate::device::{self, HostA};
use crate::output::{Failure, Form, Outcome};

/// Name of the result in the file.
const RESULT: &str = "d";

pub fn run(args: &GemmArgs, choice: DeviceChoice) -> Result<Outcome, Failure> {
    let (file_a, a) = activations(&args.a, args.a_nibble_order.or(args.nibble_order))?;
    let (file_b, b) = quantized(open(&args.b, args.b_nibble_order.or(args.nibble_order))?, &args.b)?;
    let bias = match &args.bias {
        Some(place) => Some(vector(place)?),
        None => None,
    };
    let mut inputs = GemmInputs::new(a.operand(), &b, args.out_dtype);
    inputs.activation = args.activation;
    inputs.bias = bias.as_ref().map(|(_, values, dtype)| (values.as_slice(), *dtype));
    let mut device = device::open(choice)?;
    device.set_accumulation(args.accumulation);
    if let Some(path) = &args.tuning {
        device.use_tuning(path)?;
    }
    let d = device.gemm(&inputs)?;
    let (m, n) = d.dim();

    let mut layout = FileLayout::new();
    layout.tensor(RESULT, file_dtype(args.out_dtype), &[m, n]);
    let mut sources = vec![&file_a, &file_b];
    sources.extend(bias.as_ref().map(|(file, ..)| file));
    let mut writer = layout.create(&args.output, &sources)?;
    writer.write(RESULT, &to_bytes(&d, args.out_dtype))?;
    writer.finish()?;

    let (k, operand) = (b.cols(), a.operand().operand());
    let text = format!(
        "{}: d = {m} x {n} {}, from {m} x {k} {} and {n} x {k} {} on {}\n",
        args.output.display(),
        args.out_dtype,
        operand,
        b.scheme(),
        device.name()
    );
    let value = json!({
        "device": device.name(), "output": args.output.display().to_string(), "tensor": RESULT,
        "m": m, "n": n, "k": k, "a": operand.to_string(), "b": b.scheme().to_string(),
        "out_dtype": args.out_dtype.name(), "bias": bias.is_some(), "activation": args.activation.name(),
    });
    Ok(Outcome::new(Form::from_flag(args.json), text, value))
}

fn open(place: &FileTensor, order: Option<NibbleOrder>) -> Result<Checkpoint, Failure> {
    let file = Checkpoint::open(&place.file)?;
    Ok(match order {
        Some(order) => file.with_nibble_order(order),
        None => file,
    })
}

fn quantized(file: Checkpoint, place: &FileTensor) -> Result<(Checkpoint, HostQuantMatrix), Failure> {
    let matrix = file.quant_matrix(&place.tensor)?;
    Ok((file, matrix))
}

/// A: plain if its tensor is BF16, F16 or F32 (the pair's rules say which of them multiply), else quantized.
fn activations(place: &FileTensor, order: Option<NibbleOrder>) -> Result<(Checkpoint, HostA), Failure> {
    let file = open(place, order)?;
    if file.get(&place.tensor).is_some_and(|t| matches!(t.dtype, Dtype::BF16 | Dtype::F16 | Dtype::F32)) {
        let (values, dtype) = file.matrix(&place.tensor)?;
        return Ok((file, HostA::Plain(values, dtype)));
    }
    let (file, matrix) = quantized(file, place)?;
    Ok((file, HostA::Quantized(matrix)))
}

fn vector(place: &FileTensor) -> Result<(Checkpoint, Vec<f32>, DType), Failure> {
    let file = Checkpoint::open(&place.file)?;
    let (values, dtype) = file.values(&place.tensor)?;
    Ok((file, values, dtype))
}
