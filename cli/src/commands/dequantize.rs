//! `dequantize`: every quantized matrix of a file becomes a plain one; its scales go, and those of the activations that it is multiplied with, the rest is copied. Rows in a Hadamard
//! basis are transformed back, and the experts of a folder become one tensor where they are in the checkpoints of its model_type.
//! Codes that are no matrix are refused rather than copied, and so are values that the type asked for would turn into infinities.
//! Those beyond FP32, and codes that are NaN or infinite, are refused too unless they are allowed.

mod experts;
mod notes;
pub mod refusals;
mod vanished;

use std::collections::{HashMap, HashSet};
use std::ops::Range;

use ndarray::{Array2, ArrayView2};
use scaled_gemm::checkpoint::{
    Checkpoint, CheckpointLayout, CheckpointWriter, Dtype, PlainRows, RECIPE_KEY, StoredScheme, TensorInfo, printable,
};
use scaled_gemm::model_folder::{self, ModelConfig};
use scaled_gemm::{Basis, DType, Scheme};
use serde_json::{Value, json};

use crate::activations::{ACTIVATIONS, experts, is_scale};
use crate::args::{DequantizeArgs, DeviceChoice};
use crate::coded::Coded;
use crate::copied;
use crate::data::undo_hadamard;
use crate::device::{self, Caster, Device};
use crate::files;
use crate::folder;
use crate::foreign;
use crate::non_finite::NonFinite;
use crate::odd_scales::{self, OddScales};
use crate::output::{Failure, Form, Outcome, byte_bar, count, float, named, product, shown, table};
use crate::pipeline::{self, Buffers, Part, Sent, Turns};
use crate::remains::{self, Remains};
use crate::sources;
use crate::threads;
use crate::unread::{self, Unread};
use experts::Experts;
use vanished::Vanished;

/// A quantized matrix, in the place of its codes.
struct Matrix {
    name: String,
    scheme: StoredScheme,
    rows: usize,
    cols: usize,
    /// Rows and columns, or more where experts are in one tensor.
    shape: Vec<usize>,
    /// The matrices that it is made of, where it is a tensor of experts.
    experts: Option<Box<Experts>>,
}

impl Matrix {
    fn experts(&self) -> Option<&Experts> {
        self.experts.as_deref()
    }

    fn read(&self, input: &Checkpoint, rows: Range<usize>) -> scaled_gemm::Result<Coded> {
        Coded::read(input, &self.name, self.scheme, rows)
    }
}

/// What is left out.
const ACTIVATION_SCALES: &str = "scales of activations";
const MARKS: &str = "ComfyUI's marks of quantized layers";
const MARKS_LIST: &str = "ComfyUI's list of quantized layers in the metadata";

/// What becomes of a tensor.
enum Plan {
    Dequantize(Matrix),
    /// The scale of a matrix: goes with it.
    Drop,
    /// What has no meaning beside plain values, and what that is.
    LeaveOut(&'static str),
    Copy,
}

pub fn run(args: &DequantizeArgs, choice: DeviceChoice) -> Result<Outcome, Failure> {
    let (mut input, config) = model_folder::open(&args.input)?;
    if let Some(order) = args.nibble_order {
        input = input.with_nibble_order(order);
    }
    folder::refuse_idle(&input, args.shard_size)?;
    folder::refuse_overlap(&input, &args.output)?;
    sources::refuse_output(&args.output, &[&args.input], &[])?;
    let remains = remains::find(&input, config.as_ref());
    // Before a scale in FP8 whose codes are lost is read as codes.
    remains::refuse(&remains)?;
    input.check_marks()?;
    let plans = plan(args, &input, config.as_ref(), &remains)?;
    refusals::unread(&input, config.as_ref(), &remains)?;
    refusals::beside(&input)?;
    threads::make(None)?;
    let (writer, notes) = folder::create(layout(args, &input, &plans), &input, &args.output, args.shard_size)?;
    let device = device::open(choice)?;
    let bar = byte_bar(device.as_ref(), input.tensors().iter().map(TensorInfo::bytes).sum());
    let mut step = |name: &str, bytes: u64| {
        bar.set_message(printable(name));
        bar.inc(bytes);
    };
    let found = work(args, &input, &plans, &writer, device.as_ref(), &mut step)?;
    let says = input.folder().is_some_and(|folder| unread::says_quantized(folder, config.as_ref()));
    let stay = notes::scales_that_stay(&input, says);
    let lost = Unread::find(&input, config.as_ref(), &remains.tensors).lost;
    let foreign = foreign::not_read(&input, &lost, &remains.tensors);
    let lost = unread::lost_casts(&lost).map(|text| copied::told(lost.len(), &text));
    let foreign = foreign.map(|(text, number)| copied::told(number, &text));
    let others = match input.folder() {
        Some(from) => {
            if let Some(config) = config {
                let text = config.with_dtype(args.dtype).with_quantization(None);
                writer.folder()?.write("config.json", text.as_bytes())?;
            }
            folder::copy_others(&input, from, writer.folder()?)?
        }
        None => None,
    };
    files::finish_checkpoint(writer)?;
    bar.finish_and_clear();
    let names = plans.iter().enumerate().filter_map(|(at, plan)| Some((at, plan.matrix()?.name.as_str())));
    let found_in = names.filter_map(|(at, name)| Some((name, found.get(&at)?)));
    let vanished = vanished::in_words(&input, args.dtype, found_in.clone().map(|(name, found)| (name, found.vanished)));
    let odd = found_in.map(|(name, found)| (name, found.scales));
    let odd = odd_scales::in_words(&input, odd);
    let (mut rows, mut said, mut done) = (Vec::new(), String::new(), Vec::new());
    let none = Found::default();
    for (at, matrix) in plans.iter().enumerate().filter_map(|(at, plan)| plan.matrix().map(|matrix| (at, matrix))) {
        let Matrix { name, scheme, shape, .. } = matrix;
        let found = found.get(&at).unwrap_or(&none);
        said += &found.describe(name);
        done.push(json!({
            "tensor": name, "scheme": scheme.to_string(), "shape": shape, "inverse_hadamard": found.transformed,
            "nan": found.codes.nan, "infinite": found.codes.infinite, "beyond_fp32": found.beyond.count,
        }));
        let transform = if found.transformed { "inverse of hadamard16" } else { "" };
        rows.push([named(name), scheme.to_string(), transform.to_string(), product(shape)]);
    }
    let text = format!(
        "{}\n{said}{} to {} in {}\n",
        table(["tensor", "scheme", "transform", "shape"], 3, &rows),
        count(rows.len(), "matrix", "matrices"),
        args.dtype,
        shown(&args.output)
    );
    let left_out = |what: &str| -> Vec<&str> {
        let all = input.tensors().iter().zip(&plans);
        let left = all.filter(|(_, plan)| matches!(plan, Plan::LeaveOut(is) if *is == what));
        left.map(|(tensor, _)| tensor.name.as_str()).collect()
    };
    let list = input.metadata().contains_key(folder::COMFY_MARKS).then_some(folder::COMFY_MARKS);
    let [scales, marks] = [ACTIVATION_SCALES, MARKS].map(|what| (what, left_out(what)));
    let left_out = [scales, marks, (MARKS_LIST, list.into_iter().collect())];
    let left_in_words = left_out.iter().filter_map(|(what, names)| {
        Some(format!("left out, {what}: {} ({})", names.len(), folder::some(names.iter().copied())?))
    });
    let value = json!({
        "device": device.name(), "output": args.output.display().to_string(), "dtype": args.dtype.name(),
        "dequantized": Value::from(done), "left_out": left_out.iter().flat_map(|(_, names)| names).collect::<Vec<_>>(),
    });
    let outcome = Outcome::new(device.as_ref(), Form::from_flag(args.json), text, value);
    let notes = notes
        .into_iter()
        .chain(others)
        .chain(lost)
        .chain(foreign::plain_too(&input).map(|(text, number)| copied::told(number, &text)))
        .chain(foreign)
        .chain(notes::missing_experts(&input))
        .chain(odd)
        .chain(vanished)
        .chain(left_in_words)
        .chain(stay)
        .chain(remains.of_head_in_words(&input).map(|scales| format!("{scales}: left out")))
        .chain(folder::not_in_index(&input))
        .chain(folder::written_metadata(&input))
        .chain(folder::broken_marks(&input));
    Ok(outcome.with_notes(notes))
}

impl Plan {
    fn matrix(&self) -> Option<&Matrix> {
        match self {
            Self::Dequantize(matrix) => Some(matrix),
            Self::Drop | Self::LeaveOut(_) | Self::Copy => None,
        }
    }
}

/// What becomes of each tensor. Refuses what cannot be read before a byte is written.
fn plan(
    args: &DequantizeArgs,
    input: &Checkpoint,
    config: Option<&ModelConfig>,
    remains: &Remains<'_>,
) -> Result<Vec<Plan>, Failure> {
    let mut names = input.quantized();
    // Scales in FP8 look like codes.
    names.retain(|name| !remains.of_head.contains(name));
    if names.is_empty() {
        refusals::none(input, config, remains)?;
    }
    if args.nibble_order.is_some() && !names.iter().any(|name| input.scheme(name).is_ok_and(Scheme::is_nvfp4)) {
        // What is wrong with a matrix is worth more than the option.
        names.iter().try_for_each(|name| input.stored_scheme(name).map(drop))?;
        return Err(Failure::Use(format!(
            "--nibble-order: {} holds no nvfp4 matrix, of which alone the order may be in doubt: that of mxfp4 and of casts is known, and other codes \
             have a byte each; leave it out",
            args.input.display()
        )));
    }
    // The tensors that go, with the matrix that stands in the place of its codes.
    let mut parts: HashMap<String, Option<&str>> = HashMap::new();
    for name in names {
        for (i, tensor) in input.tensors_of(name)?.into_iter().enumerate() {
            parts.insert(tensor, (i == 0).then_some(name));
        }
    }
    // By the first of their matrices, in whose place the tensor stands; the others go with it.
    let mut gathered: HashMap<String, Option<Experts>> = HashMap::new();
    for experts in experts::find(input, config) {
        gathered.extend(experts.matrices.iter().skip(1).map(|name| (name.clone(), None)));
        gathered.extend(experts.matrices.first().cloned().map(|name| (name, Some(experts))));
    }
    let plan = |tensor: &TensorInfo| {
        Ok(match parts.get(&tensor.name) {
            Some(Some(name)) if gathered.contains_key(*name) => match gathered.remove(*name).flatten() {
                Some(experts) => {
                    let ([count, rows, cols], scheme) = (experts.sizes, input.stored_scheme(name)?);
                    let (name, shape) = (experts.name.clone(), experts.shape());
                    Plan::Dequantize(Matrix {
                        name,
                        scheme,
                        rows: count * rows,
                        cols,
                        shape,
                        experts: Some(experts.into()),
                    })
                }
                None => Plan::Drop,
            },
            Some(Some(name)) => {
                let (rows, cols) = input.quant_shape(name)?;
                let (scheme, shape) = (input.stored_scheme(name)?, input.quant_dimensions(name)?);
                Plan::Dequantize(Matrix { name: name.to_string(), scheme, rows, cols, shape, experts: None })
            }
            Some(None) => Plan::Drop,
            // The scales of activations are those of products that are no more.
            None if is_input_scale(input, tensor) => Plan::LeaveOut(ACTIVATION_SCALES),
            None if input.is_mark(&tensor.name) => Plan::LeaveOut(MARKS),
            None if remains.of_head.contains(&tensor.name.as_str()) => Plan::Drop,
            None => Plan::Copy,
        })
    };
    input.tensors().iter().map(plan).collect()
}

/// True for the scale of the activations that meet a quantized matrix. What only has the name of one stays, and what is beside a cast, which no product reads.
fn is_input_scale(input: &Checkpoint, tensor: &TensorInfo) -> bool {
    let layer = ACTIVATIONS.iter().find_map(|suffix| tensor.name.strip_suffix(suffix));
    let weight = layer.map(|layer| format!("{layer}weight"));
    weight.is_some_and(|weight| input.scheme(&weight).is_ok() && is_scale(tensor, experts(input, &weight)))
}

fn layout(args: &DequantizeArgs, input: &Checkpoint, plans: &[Plan]) -> CheckpointLayout {
    let mut layout = CheckpointLayout::new();
    let matrices = plans.iter().filter_map(Plan::matrix);
    let of_experts = |matrix| Matrix::experts(matrix).map(|experts| &experts.matrices).into_iter().flatten();
    let names = matrices.clone().map(|matrix| matrix.name.as_str());
    let names: HashSet<&str> = names.chain(matrices.flat_map(of_experts).map(String::as_str)).collect();
    let gone = |name: &str| names.contains(name);
    folder::say_format(&mut layout, input);
    for (key, value) in input.metadata() {
        // ComfyUI's list of quantized layers.
        if key != folder::COMFY_MARKS && !key.strip_prefix(RECIPE_KEY).is_some_and(gone) {
            layout.metadata(key, value);
        }
    }
    for (tensor, plan) in input.tensors().iter().zip(plans) {
        match plan {
            Plan::Dequantize(Matrix { name, shape, .. }) => layout.tensor(name, file_dtype(args.dtype), shape),
            Plan::Drop | Plan::LeaveOut(_) => {}
            Plan::Copy => layout.tensor(&tensor.name, tensor.dtype, &tensor.shape),
        }
    }
    layout
}

/// What a lane is to do. Of a matrix, which it is, and its rows.
enum Task<'a> {
    /// What was read of them already.
    Rows(usize, &'a Matrix, Range<usize>, Option<Coded>),
    /// An expert.
    Expert(usize, &'a Matrix, &'a Experts, Range<usize>, usize),
    Bytes(usize, Vec<u8>),
}

/// What a lane has done.
enum Done<'a> {
    Rows(usize, &'a Matrix, Range<usize>, Box<Values>),
    Bytes(usize, Vec<u8>),
}

/// Plain values of some rows.
struct Values {
    /// Bytes of codes that they were.
    codes: u64,
    found: Found,
    bytes: Vec<u8>,
}

/// By tensor, what was found in its matrix.
fn work(
    args: &DequantizeArgs,
    input: &Checkpoint,
    plans: &[Plan],
    writer: &CheckpointWriter,
    device: &dyn Device,
    step: &mut dyn FnMut(&str, u64),
) -> Result<HashMap<usize, Found>, Failure> {
    let mut found: HashMap<usize, Found> = HashMap::new();
    let casters = device.casters();
    let stream = Stream {
        dtype: args.dtype,
        input,
        plans,
        part_bytes: device.part_bytes(),
        buffers: &Buffers::of_lanes(casters.len()),
        reads_ahead: casters.len() == 1,
    };
    let collect = |done| {
        let (at, matrix, rows, values) = match done {
            Done::Bytes(at, bytes) => {
                let name = &input.tensors()[at].name;
                step(name, bytes.len() as u64);
                return Ok(Some(Part::Bytes(name.as_str(), bytes)));
            }
            Done::Rows(at, matrix, rows, values) => (at, matrix, rows, values),
        };
        step(&matrix.name, values.codes);
        let found = found.entry(at).or_default();
        found.add_all(values.found);
        if rows.end == matrix.rows {
            found.refuse(&matrix.name, args)?;
        }
        Ok((!found.is_refused(args)).then_some(Part::Bytes(matrix.name.as_str(), values.bytes)))
    };
    let lane = |mut caster: Box<dyn Caster>| move |task| stream.dequantize(task, caster.as_mut());
    let lanes = casters.into_iter().map(lane).collect();
    pipeline::run(|to| stream.tasks(to), lanes, collect, writer, stream.buffers)?;
    Ok(found)
}

/// What all threads of the work share.
#[derive(Clone, Copy)]
struct Stream<'a> {
    dtype: DType,
    input: &'a Checkpoint,
    plans: &'a [Plan],
    part_bytes: usize,
    buffers: &'a Buffers,
    /// Whether parts are read for the lanes: several read for themselves, as reading takes longer than all else.
    reads_ahead: bool,
}

impl<'a> Stream<'a> {
    /// Says what is to be done, in the order of the input.
    fn tasks(&self, to: &Turns<Task<'a>>) -> Result<Sent, Failure> {
        let Self { input, plans, part_bytes, buffers, reads_ahead, .. } = *self;
        for (at, (tensor, plan)) in input.tensors().iter().zip(plans).enumerate() {
            let matrix = match plan {
                Plan::Drop | Plan::LeaveOut(_) => continue,
                Plan::Copy => match pipeline::copy(input, tensor, buffers, |bytes| to.send(Task::Bytes(at, bytes)))? {
                    Sent::All => continue,
                    Sent::NotAll => return Ok(Sent::NotAll),
                },
                Plan::Dequantize(matrix) => matrix,
            };
            if let Some(experts) = matrix.experts() {
                for (number, rows) in pipeline::parts(matrix.rows, experts.sizes[1]).enumerate() {
                    if !to.send(Task::Expert(at, matrix, experts, rows, number)) {
                        return Ok(Sent::NotAll);
                    }
                }
                continue;
            }
            for rows in pipeline::parts(matrix.rows, pipeline::part_rows(part_bytes, matrix.cols * 2)) {
                let part = reads_ahead.then(|| matrix.read(input, rows.clone())).transpose()?;
                if !to.send(Task::Rows(at, matrix, rows, part)) {
                    return Ok(Sent::NotAll);
                }
            }
        }
        Ok(Sent::All)
    }

    /// What a lane does.
    fn dequantize(&self, task: Task<'a>, caster: &mut dyn Caster) -> Result<Done<'a>, Failure> {
        let Self { dtype, input, buffers, .. } = *self;
        let mut found = Found::default();
        Ok(match task {
            Task::Bytes(at, bytes) => Done::Bytes(at, bytes),
            Task::Rows(at, matrix, rows, part) => {
                let part = part.map_or_else(|| matrix.read(input, rows.clone()), Ok)?;
                let codes = part.code_bytes();
                let values = plain(caster, &part, dtype, rows.start, &mut found, buffers.take())?;
                Done::Rows(at, matrix, rows, Box::new(Values { codes, found, bytes: values.into_bytes() }))
            }
            Task::Expert(at, matrix, experts, rows, number) => {
                let parts = experts.read(input, matrix.scheme, number)?;
                let codes = parts.iter().map(Coded::code_bytes).sum();
                let (mut first, mut values) = (rows.start, Vec::with_capacity(parts.len()));
                for part in &parts {
                    values.push(plain(caster, part, dtype, first, &mut found, Vec::new())?.to_f32());
                    first += part.rows();
                }
                let values = PlainRows::from_f32(experts.gather(values).view(), dtype, buffers.take())?;
                Done::Rows(at, matrix, rows, Box::new(Values { codes, found, bytes: values.into_bytes() }))
            }
        })
    }
}

/// The values of the data in the type asked for, in `buffer`; `found` gets which of them are not finite. `first` is the first row.
fn plain(
    caster: &mut dyn Caster,
    part: &Coded,
    dtype: DType,
    first: usize,
    found: &mut Found,
    buffer: Vec<u8>,
) -> Result<PlainRows, Failure> {
    found.transformed = part.basis() != Basis::Plain;
    found.scales = found.scales.with(match part {
        Coded::Quantized(codes) => OddScales::of(codes),
        Coded::Cast(codes) => OddScales::of_cast(codes),
    });
    // The inverse transform is of FP32 values: nothing is rounded twice.
    let values = match found.transformed {
        false => part.dequantize(caster, dtype, buffer)?,
        true => PlainRows::from_f32(exact(caster, part)?.view(), dtype, buffer)?,
    };
    found.vanished = found.vanished.with(Vanished::of(part, &values, || exact(caster, part))?);
    if !values.is_finite() {
        let exact = exact(caster, part)?;
        found.add(part, values.to_f32().view(), exact.view(), first);
    }
    Ok(values)
}

/// The values of a matrix that are not finite in FP32, or in the type asked for.
#[derive(Default)]
struct Found {
    /// NaN, and the infinities of FP8 codes.
    codes: NonFinite,
    /// Finite codes with values beyond FP32 (what MXFP8 makes of an infinity): every plain type has an infinity there.
    beyond: Places,
    /// Values beyond the range of the type asked for.
    lost: Places,
    /// Values too small for it.
    vanished: Vanished,
    scales: OddScales,
    transformed: bool,
}

/// How many there are, the first (row, column and value) and the largest.
#[derive(Default)]
struct Places {
    count: usize,
    first: Option<(usize, usize, f32)>,
    largest: f32,
}

impl Places {
    fn add(&mut self, row: usize, column: usize, value: f32) {
        self.count += 1;
        self.first.get_or_insert((row, column, value));
        self.largest = self.largest.max(value.abs());
    }

    fn add_all(&mut self, later: &Self) {
        self.count += later.count;
        self.first = self.first.or(later.first);
        self.largest = self.largest.max(later.largest);
    }
}

impl Found {
    /// Adds a part of which the first row is row `first` of the matrix.
    fn add(&mut self, part: &Coded, values: ArrayView2<'_, f32>, exact: ArrayView2<'_, f32>, first: usize) {
        let mut codes = vec![0.0; part.cols()];
        for (row, (values, exact)) in values.outer_iter().zip(exact.outer_iter()).enumerate() {
            part.decode_row(row, &mut codes);
            for (column, ((value, exact), code)) in values.iter().zip(exact).zip(&codes).enumerate() {
                let row = first + row;
                if value.is_infinite() && exact.is_finite() {
                    self.lost.add(row, column, *exact);
                } else if exact.is_finite() {
                    continue;
                } else if code.is_finite() && !exact.is_nan() {
                    // What is written counts: an infinity times a scale of 0 is NaN, and so are two that an inverse transform adds.
                    self.beyond.add(row, column, *exact);
                } else {
                    self.codes.add((row, column), *exact);
                }
            }
        }
    }

    /// Adds what was found in rows that come after.
    fn add_all(&mut self, later: Self) {
        self.codes.add_all(&later.codes);
        self.beyond.add_all(&later.beyond);
        self.lost.add_all(&later.lost);
        self.vanished = self.vanished.with(later.vanished);
        self.scales = self.scales.with(later.scales);
        self.transformed |= later.transformed;
    }

    fn is_refused(&self, args: &DequantizeArgs) -> bool {
        let any = self.beyond.count > 0 || self.codes.first().is_some();
        self.lost.count > 0 || (any && !args.allow_non_finite)
    }

    fn refuse(&self, name: &str, args: &DequantizeArgs) -> Result<(), Failure> {
        let place = format!("{}: tensor {}", args.input.display(), named(name));
        if let Some((row, column, value)) = self.lost.first {
            return Err(Failure::Use(format!(
                "{place}: {} beyond the range of {}, the first {} at row {row}, column {column}; choose --dtype {}",
                count(self.lost.count, "value is", "values are"),
                args.dtype,
                float(value),
                vanished::wider(self.lost.largest)
            )));
        }
        if args.allow_non_finite {
            return Ok(());
        }
        if let Some((row, column, _)) = self.beyond.first {
            return Err(Failure::Use(format!(
                "{place}: {} beyond FP32, which every type would make infinite, the first at row {row}, column {column}: what \
                 was quantized was infinite, or so near the largest number that it was rounded up beyond it; quantize smaller \
                 values, or say --allow-non-finite",
                count(self.beyond.count, "value is", "values are"),
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
            Some(_) => format!("{}: {} of its codes written as they are\n", named(name), self.codes.both()),
            None => String::new(),
        };
        if self.beyond.count > 0 {
            let many = count(self.beyond.count, "value is", "values are");
            text += &format!("{}: {many} beyond FP32 and written as infinite\n", named(name));
        }
        text
    }
}

/// The values in FP32, of the data where the rows are in a Hadamard basis.
fn exact(caster: &mut dyn Caster, matrix: &Coded) -> Result<Array2<f32>, Failure> {
    let mut values = matrix.dequantize(caster, DType::F32, Vec::new())?.to_f32();
    if matrix.basis() != Basis::Plain {
        undo_hadamard(&mut values);
    }
    Ok(values)
}

/// The name of a wide type in files.
pub fn file_dtype(dtype: DType) -> Dtype {
    match dtype {
        DType::Bf16 => Dtype::BF16,
        DType::F16 => Dtype::F16,
        _ => Dtype::F32,
    }
}
