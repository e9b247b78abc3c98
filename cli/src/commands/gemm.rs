//! `gemm`: D = activation(A Bᵀ + bias) of quantized matrices in files; D is the tensor `d` of a new file. A may be plain where
//! only the weights are quantized.

use std::path::{Path, PathBuf};

use scaled_gemm::checkpoint::{Checkpoint, CheckpointLayout, Dtype, NibbleOrder, StoredScheme, printable};
use scaled_gemm::codec::round_to;
use scaled_gemm::model_folder;
use scaled_gemm::reference::GemmInputs;
use scaled_gemm::{DType, HostQuantMatrix, Operand, Scheme};
use serde_json::json;

use super::dequantize::file_dtype;
use crate::args::{DeviceChoice, GemmArgs};
use crate::data::to_bytes;
use crate::device::{self, HostA};
use crate::file_tensor::FileTensor;
use crate::files;
use crate::folder::module;
use crate::memory;
use crate::odd_scales::{self, OddScales};
use crate::output::{Failure, Form, Outcome, count, shown};
use crate::sources;
use crate::unread::Beside;

/// Name of the result in the file.
const RESULT: &str = "d";

pub fn run(args: &GemmArgs, choice: DeviceChoice) -> Result<Outcome, Failure> {
    let places = [Some(&args.a), Some(&args.b), args.bias.as_ref()].into_iter().flatten();
    let read = places.map(|place| Ok(place.find()?.0)).collect::<Result<Vec<_>, Failure>>()?;
    let read: Vec<&Path> = read.iter().map(PathBuf::as_path).collect();
    sources::refuse_output(&args.output, &read, &[("--tuning", args.tuning.as_ref())])?;
    let output = files::create(&args.output)?;
    let (file_a, a) = activations(&args.a, args.a_nibble_order.or(args.nibble_order))?;
    let (file_b, b) = quantized(&args.b, args.b_nibble_order.or(args.nibble_order))?;
    check_nibble_orders(args, a.operand().operand(), b.scheme())?;
    let bias = match &args.bias {
        Some(place) => Some(vector(place, b.rows())?),
        None => None,
    };
    let mut inputs = GemmInputs::new(a.operand(), &b, args.out_dtype);
    inputs.activation = args.activation;
    inputs.bias = bias.as_ref().map(|(_, values, dtype)| (values.as_slice(), *dtype));
    // The result itself, in FP32 and as it is written: files may hold few columns of very many rows.
    let (m, n) = (inputs.a.rows(), b.rows());
    let need = (4 + args.out_dtype.bytes() as u64).saturating_mul(m as u64).saturating_mul(n as u64);
    memory::require(&format!("d = {m} x {n}"), need, memory::available(), "this machine")?;
    let mut layout = CheckpointLayout::new();
    layout.tensor(RESULT, file_dtype(args.out_dtype), &[m, n]);
    let mut sources = vec![&file_a, &file_b];
    sources.extend(bias.as_ref().map(|(file, ..)| file));
    let writer = layout.create_in(output, &sources)?;

    let mut device = device::open(choice)?;
    device.set_accumulation(args.accumulation)?;
    if args.batch_invariant {
        device.set_batch_invariant()?;
    }
    if let Some(path) = &args.tuning {
        files::require_regular(path)?;
        device.use_tuning(path)?;
    }
    let d = device.gemm(&inputs)?;
    writer.write(RESULT, &to_bytes(&d, args.out_dtype))?;
    files::finish_checkpoint(writer)?;

    let (k, operand) = (b.cols(), a.operand().operand());
    let infinite = d.iter().filter(|v| round_to(args.out_dtype, **v).is_infinite()).count();
    let nan = d.iter().filter(|v| v.is_nan()).count();
    let mut text = format!(
        "{}: d = {m} x {n} {}, from {m} x {k} {} and {n} x {k} {} on {}\n",
        shown(&args.output),
        args.out_dtype,
        operand,
        b.scheme(),
        device.name()
    );
    if infinite > 0 {
        let many = count(infinite, "value is", "values are");
        text += &format!("d: {many} infinite: beyond the range of {}, or from infinite operands\n", args.out_dtype);
    }
    if nan > 0 {
        text += &format!("d: {} NaN: from NaN or infinite operands\n", count(nan, "value is", "values are"));
    }
    let plan = device.explained();
    text += plan.unwrap_or_default();
    let odd_a = match &a {
        HostA::Quantized(codes) => odd(&args.a, &file_a, codes)?,
        HostA::Plain(..) => Vec::new(),
    };
    let odd = odd_a.into_iter().chain(odd(&args.b, &file_b, &b)?);
    let notes = beside(&args.a, &file_a)?.into_iter().chain(beside(&args.b, &file_b)?).chain(odd);
    let value = json!({
        "device": device.name(), "output": args.output.display().to_string(), "tensor": RESULT,
        "m": m, "n": n, "k": k, "a": operand.to_string(), "b": b.scheme().to_string(),
        "out_dtype": args.out_dtype.name(), "bias": bias.is_some(), "activation": args.activation.name(),
        "nan": nan, "infinite": infinite, "plan": plan,
    });
    Ok(Outcome::new(device.as_ref(), Form::from_flag(args.json), text, value).with_notes(notes))
}

/// What a layer has beside its matrix, and the product has not.
fn beside(place: &FileTensor, file: &Checkpoint) -> Result<Vec<String>, Failure> {
    let (_, tensor) = place.find()?;
    let line = |beside: Beside| {
        let tensors = beside.of(file, |layer| layer == module(&tensor))?;
        let [whose, what] = beside.words();
        Some(format!("{}: {tensors} {whose} {what}; d is the product without them", printable(&tensor)))
    };
    Ok(Beside::ALL.into_iter().filter_map(line).collect())
}

/// What an operand's scales did that no quantizer writes.
fn odd(place: &FileTensor, file: &Checkpoint, codes: &HostQuantMatrix) -> Result<Vec<String>, Failure> {
    let (_, tensor) = place.find()?;
    Ok(odd_scales::in_words(file, std::iter::once((tensor.as_str(), OddScales::of(codes)))))
}

/// Refuses an order for bytes that hold one code.
fn check_nibble_orders(args: &GemmArgs, a: Operand, b: Scheme) -> Result<(), Failure> {
    let packed_a = matches!(a, Operand::Quantized(scheme) if scheme.is_nvfp4());
    let packed_b = b.is_nvfp4();
    for (given, applies, option, found) in [
        (
            args.nibble_order,
            packed_a || packed_b,
            "--nibble-order",
            format!("neither A nor B is nvfp4, but {a} and {b}"),
        ),
        (args.a_nibble_order, packed_a, "--a-nibble-order", format!("A is {a}, not nvfp4")),
        (args.b_nibble_order, packed_b, "--b-nibble-order", format!("B is {b}, not nvfp4")),
    ] {
        if given.is_some() && !applies {
            return Err(Failure::Use(format!("{option}: {found}; leave it out")));
        }
    }
    Ok(())
}

fn open(path: &Path, order: Option<NibbleOrder>) -> Result<Checkpoint, Failure> {
    let (file, _) = model_folder::open(path)?;
    Ok(match order {
        Some(order) => file.with_nibble_order(order),
        None => file,
    })
}

/// A matrix that products read. Casts are to be dequantized first: what would end that is said in its place.
fn matrix(file: &Checkpoint, tensor: &str) -> Result<HostQuantMatrix, Failure> {
    if matches!(file.stored_scheme(tensor), Ok(StoredScheme::Cast(_))) {
        file.check_scales(tensor)?;
    }
    Ok(file.quant_matrix(tensor)?)
}

fn quantized(place: &FileTensor, order: Option<NibbleOrder>) -> Result<(Checkpoint, HostQuantMatrix), Failure> {
    let (path, tensor) = place.find()?;
    let file = open(&path, order)?;
    let matrix = matrix(&file, &tensor)?;
    Ok((file, matrix))
}

/// A: plain if its tensor is BF16, F16 or F32 (the pair's rules say which of them multiply), else quantized.
fn activations(place: &FileTensor, order: Option<NibbleOrder>) -> Result<(Checkpoint, HostA), Failure> {
    let (path, tensor) = place.find()?;
    let file = open(&path, order)?;
    if file.get(&tensor).is_some_and(|t| matches!(t.dtype, Dtype::BF16 | Dtype::F16 | Dtype::F32)) {
        let (values, dtype) = file.matrix(&tensor)?;
        return Ok((file, HostA::Plain(values, dtype)));
    }
    let matrix = matrix(&file, &tensor)?;
    Ok((file, HostA::Quantized(matrix)))
}

/// A bias of n values: of the shape [n], or of the one row [1, n], and not n values of another shape, which are another thing.
fn vector(place: &FileTensor, n: usize) -> Result<(Checkpoint, Vec<f32>, DType), Failure> {
    let (path, tensor) = place.find()?;
    let file = Checkpoint::open(&path)?;
    let (values, dtype) = file.values(&tensor)?;
    let shape = &file.info(&tensor)?.shape;
    if !matches!(shape[..], [len] | [1, len] if len == n) {
        return Err(Failure::Use(format!(
            "{}: tensor {}: has shape {shape:?}, but a bias has one value for each of the n = {n} columns of D; give one of \
             shape [{n}] or [1, {n}]",
            path.display(),
            printable(&tensor)
        )));
    }
    Ok((file, values, dtype))
}
