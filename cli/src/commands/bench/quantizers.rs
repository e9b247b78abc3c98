//! `bench --quantizers`: each quantizer, cast and producer against a copy, in one run.

use scaled_gemm::Error;
use serde_json::{Value, json};

use super::{facts, facts_value};
use crate::args::BenchArgs;
use crate::device::Device;
use crate::memory;
use crate::output::{Failure, number, step_bar, table};
use crate::quantizers::{Coverage, Quantizer};

/// Rows where none are asked for.
const ROWS: [usize; 2] = [128, 4096];
/// Bytes of an element in host memory, at most: what SwiGLU reads, in BF16 and FP32.
const HOST_BYTES: u64 = 16;

/// What was measured of one.
struct Line {
    shape: [usize; 2],
    quantizer: Quantizer,
    us: f64,
}

impl Line {
    fn bytes_per_second(&self) -> f64 {
        let [rows, cols] = self.shape;
        self.quantizer.bytes(rows, cols) as f64 / self.us * 1e6
    }
}

/// Text and JSON.
pub fn run(args: &BenchArgs, device: &mut dyn Device) -> Result<(String, Value), Failure> {
    let ms: Vec<usize> = match args.m.as_slice() {
        [] if device.name() == "cpu" => ROWS[..1].to_vec(),
        [] => ROWS.to_vec(),
        ms => ms.iter().map(|&m| m as usize).collect(),
    };
    // What is quantized is A: n is that of the products.
    let mut shapes: Vec<[usize; 2]> = args.shapes.problems(&ms).into_iter().map(|[m, _, k]| [m, k]).collect();
    shapes.sort_unstable();
    shapes.dedup();
    for [rows, cols] in &shapes {
        let need = HOST_BYTES * *rows as u64 * *cols as u64;
        memory::require(&format!("{rows} x {cols}"), need, memory::available(), "this machine")?;
    }
    let all = chosen(args)?;
    let bar = step_bar(device, 1 + shapes.len() * all.len());
    let copy = device.copy_rate()?;
    bar.inc(1);
    let (mut lines, mut skipped) = (Vec::new(), Vec::new());
    for shape in shapes {
        let [rows, cols] = shape;
        bar.set_message(format!("{rows} x {cols}"));
        let times = device.time_quantizers(shape, &all, &mut || bar.inc(1))?;
        for (quantizer, time) in all.iter().copied().zip(times) {
            match time {
                Ok(us) => lines.push(Line { shape, quantizer, us }),
                Err(error @ (Error::Unsupported { .. } | Error::Shape { .. })) => {
                    let (from, to) = (quantizer.reads(), quantizer.makes());
                    skipped.push(format!("{rows} x {cols} {from} to {to}: {}", with_options(error, args)));
                }
                Err(error) => return Err(error.into()),
            }
        }
    }
    bar.finish_and_clear();
    if lines.is_empty() {
        let first = skipped.first().map_or("no shape was given", String::as_str);
        return Err(Failure::Use(format!("bench --quantizers: nothing to measure: {first}")));
    }
    Ok((describe(device, copy, &lines, &skipped), record(device, copy, &lines, &skipped)))
}

/// The error with a remedy that can be taken here: there is no matrix to pad, but numbers that were given.
fn with_options(error: Error, args: &BenchArgs) -> Error {
    let remedy = match args.m.is_empty() {
        true => "give other numbers with --shapes (MxNxK: m rows, k columns)",
        false => "give other numbers with --shapes (NxK: k columns) or --m (rows)",
    };
    match error {
        Error::Shape { operand, found, rule, .. } => Error::Shape { operand, found, rule, remedy: remedy.into() },
        Error::Unsupported { what, reason, remedy: pads } if pads.contains("pad ") => {
            Error::Unsupported { what, reason, remedy: remedy.into() }
        }
        other => other,
    }
}

/// What is to be timed: of the usual, or of everything, what the pattern names.
fn chosen(args: &BenchArgs) -> Result<Vec<Quantizer>, Failure> {
    let coverage = if args.all { Coverage::Everything } else { Coverage::Usual };
    let mut all = Quantizer::all(coverage)?;
    let Some(only) = &args.only else { return Ok(all) };
    let names: Vec<String> = all.iter().map(|one| format!("{} to {}", one.reads(), one.makes())).collect();
    let example = names.first().cloned().unwrap_or_default();
    let mut named = names.iter().map(|name| only.is_match(name));
    all.retain(|_| named.next() == Some(true));
    if all.is_empty() {
        let more = if args.all { "" } else { ", or say --all, which times more" };
        return Err(Failure::Use(format!(
            "--only '{only}': none of the {} lines matches, which are such as \"{example}\"; leave it out to see them{more}",
            names.len()
        )));
    }
    Ok(all)
}

fn describe(device: &dyn Device, copy: f64, lines: &[Line], skipped: &[String]) -> String {
    let rows: Vec<[String; 6]> = lines
        .iter()
        .map(|line| {
            let [rows, cols] = line.shape;
            [
                line.quantizer.reads(),
                line.quantizer.makes(),
                format!("{rows} x {cols}"),
                number(line.us),
                number(line.bytes_per_second() * 1e-9),
                number(line.bytes_per_second() / copy),
            ]
        })
        .collect();
    let mut text = facts(device);
    text += &format!("copy          {} GB/s read + write\n", number(copy * 1e-9));
    text += &format!("data          standard normal, BF16\ntimes         {}\n\n", device.method());
    text += &table(["from", "to", "shape", "us", "GB/s", "of the copy rate"], 3, &rows);
    text +=
        "\nGB/s: each element, code and scale read or written once. Schemes of products have their default recipe.\n";
    skipped.iter().for_each(|line| text += &format!("not run: {line}\n"));
    text
}

fn record(device: &dyn Device, copy: f64, lines: &[Line], skipped: &[String]) -> Value {
    let rows = lines.iter().map(|line| {
        let [rows, cols] = line.shape;
        json!({
            "rows": rows, "cols": cols, "from": line.quantizer.reads(), "to": line.quantizer.makes(), "us": line.us,
            "bytes": line.quantizer.bytes(rows, cols), "bytes_per_second": line.bytes_per_second(),
            "of_copy_rate": line.bytes_per_second() / copy,
        })
    });
    json!({
        "device": device.name(), "title": device.title(), "facts": facts_value(device), "method": device.method(),
        "copy_bytes_per_second": copy, "data": "standard normal, bf16", "rows": Value::from_iter(rows), "not_run": skipped,
        "command": std::env::args().collect::<Vec<_>>().join(" "),
    })
}
