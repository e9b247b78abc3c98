//! `bench`: quantized products against the unquantized one on the same shapes, in one run; or what quantizes, against a copy; or decoding.

mod decode;
mod quantizers;

use std::path::Path;

use scaled_gemm::checkpoint::OutputFile;
use scaled_gemm::{DType, Error};
use serde_json::{Value, json};

use crate::args::{BenchArgs, DeviceChoice, scheme_names};
use crate::device::{self, Device, Pair, PairTime};
use crate::files;
use crate::output::{Failure, Form, Outcome, number, step_bar, table};
use crate::plot::{self, Chart};
use crate::shapes::{Shape, ShapeList};
use crate::sources;

/// One line of the result.
struct Line {
    mnk: [usize; 3],
    pair: Pair,
    time: PairTime,
}

impl Line {
    fn tflops(&self, us: f64) -> f64 {
        2.0 * self.mnk.iter().map(|&d| d as f64).product::<f64>() / us * 1e-6
    }

    /// Times faster than the baseline: without and with the quantization of A.
    fn ratios(&self) -> [f64; 2] {
        [self.time.baseline_us / self.time.gemm_us, self.time.baseline_us / self.time.both_us]
    }
}

/// What was measured, and under which conditions.
struct Run<'a> {
    device: &'a dyn Device,
    request: &'a Request<'a>,
    /// Bytes a second of a large copy.
    copy: f64,
    lines: &'a [Line],
    skipped: &'a [String],
}

/// m, n, k, and what is multiplied.
type Problem = ([usize; 3], Pair);

/// What to measure.
struct Request<'a> {
    shapes: &'a ShapeList,
    ms: Vec<usize>,
    pairs: Vec<Pair>,
    out: DType,
}

pub fn run(args: &BenchArgs, choice: DeviceChoice) -> Result<Outcome, Failure> {
    args.shapes.check_ms(&args.m)?;
    let record = args.json.as_ref().filter(|path| path.as_os_str() != "-");
    if let (Some(record), Some(plot)) = (record, &args.plot)
        && sources::is_same(record, plot)
    {
        return Err(Failure::Use(format!("{}: --json and --plot name one file; give two", plot.display())));
    }
    for output in record.into_iter().chain(&args.plot) {
        sources::refuse_output(output, &[], &[("--tuning", args.tuning.as_ref())])?;
    }
    let record = record.map(|path| open(path)).transpose()?;
    let plot = args.plot.as_ref().map(|path| open(path)).transpose()?;
    let mut device = device::open(choice)?;
    device.set_accumulation(args.accumulation)?;
    if let Some(path) = &args.tuning {
        files::require_regular(path)?;
        device.use_tuning(path)?;
    }
    if args.quantizers || args.decode {
        let (text, value, failed) = match args.decode {
            true => decode::run(args, device.as_mut())?,
            false => {
                let (text, value) = quantizers::run(args, device.as_mut())?;
                (text, value, None)
            }
        };
        let notes = record.map(|record| write_record(record, &value)).transpose()?;
        let form = Form::from_flag(args.json.as_ref().is_some_and(|path| path.as_os_str() == "-"));
        let outcome = Outcome { failed, ..Outcome::new(device.as_ref(), form, text, value) };
        return Ok(outcome.with_notes(notes));
    }
    let ms = if args.m.is_empty() { device.default_ms() } else { args.m.iter().map(|&m| m as usize).collect() };
    let schemes = if args.schemes.is_empty() { scheme_names() } else { args.schemes.clone() };
    let pairs = Pair::of_schemes(&schemes, &args.activations);
    let request = Request { shapes: &args.shapes, ms, pairs, out: args.out_dtype };
    let (lines, text, value) = measure(device.as_mut(), &request)?;
    let mut notes = Vec::new();
    if let Some((path, file)) = plot {
        let svg = plot::svg(&charts(&lines, device.name())).map_err(|e| Failure::Check(format!("plot: {e}")))?;
        files::finish(file, &svg)?;
        notes.push(format!("plot written to {}", path.display()));
    }
    notes.extend(record.map(|record| write_record(record, &value)).transpose()?);
    let form = Form::from_flag(args.json.as_ref().is_some_and(|path| path.as_os_str() == "-"));
    let outcome = finished(device.as_ref(), &lines, form, text, value);
    Ok(outcome.with_notes(notes))
}

/// Writes a record, and says where.
fn write_record((path, file): (&Path, OutputFile), value: &Value) -> Result<String, Failure> {
    files::finish(file, &format!("{value:#}\n"))?;
    Ok(format!("record written to {}", path.display()))
}

/// What the device is, a line for each fact.
fn facts(device: &dyn Device) -> String {
    device.facts().into_iter().map(|(name, value)| format!("{name:<13} {value}\n")).collect()
}

fn facts_value(device: &dyn Device) -> Value {
    device.facts().into_iter().map(|(name, value)| (name.to_string(), Value::from(value))).collect()
}

/// An output file with the name it will have.
fn open(path: &Path) -> Result<(&Path, OutputFile), Failure> {
    Ok((path, files::create(path)?))
}

/// The bench without a command: one layer, few rows, sized so that it takes seconds on either device.
pub fn quick(choice: DeviceChoice) -> Result<Outcome, Failure> {
    let mut device = device::open(choice)?;
    let on_cpu = device.name() == "cpu";
    let (n, k) = if on_cpu { (1024, 1024) } else { (4096, 7168) };
    let ms = if on_cpu { vec![1, 64, 512] } else { vec![16, 128, 4096] };
    let shapes = ShapeList(vec![Shape { m: None, n, k }]);
    let request = Request { shapes: &shapes, ms, pairs: Pair::of_schemes(&scheme_names(), &[]), out: DType::Bf16 };
    let (lines, text, value) = measure(device.as_mut(), &request)?;
    let more = "\nscaled-gemm --help lists the commands; scaled-gemm bench --help the shapes and schemes.\n";
    Ok(finished(device.as_ref(), &lines, Form::Text, text + more, value))
}

/// A result out of its bound makes the run fail, whatever its speed.
fn finished(device: &dyn Device, lines: &[Line], form: Form, text: String, value: Value) -> Outcome {
    let mut outcome = Outcome::new(device, form, text, value);
    outcome.failed = lines.iter().find(|l| l.time.error.is_nan() || l.time.error > 1.0).map(|l| {
        let [m, n, k] = l.mnk;
        format!(
            "{} at m {m}, n {n}, k {k} is wrong: error {} of its bound; please report it",
            l.pair.name(),
            l.time.error
        )
    });
    outcome
}

fn measure(device: &mut dyn Device, request: &Request<'_>) -> Result<(Vec<Line>, String, Value), Failure> {
    let problems = request.shapes.problems(&request.ms);
    for mnk in &problems {
        device.check_memory(*mnk, request.out)?;
    }
    let (runs, skipped) = choose(device, request, &problems)?;
    if runs.is_empty() {
        let others = match skipped.len() {
            0 | 1 => String::new(),
            many => format!(" (and {} more)", many - 1),
        };
        let first = skipped.first().map_or("no shape and no scheme was given", String::as_str);
        return Err(Failure::Use(format!("bench: nothing to measure: {first}{others}")));
    }
    let bar = step_bar(device, 1 + runs.len());
    let copy = device.copy_rate()?;
    bar.inc(1);
    let mut lines = Vec::new();
    for (mnk, pair) in runs {
        let [m, n, k] = mnk;
        bar.set_message(format!("{m} x {n} x {k}"));
        let times = device.time_pair(mnk, pair, request.out)?;
        lines.extend(times.into_iter().map(|time| Line { mnk, pair, time }));
        bar.inc(1);
    }
    bar.finish_and_clear();
    let run = Run { device, request, copy, lines: &lines, skipped: &skipped };
    let (text, value) = (run.describe(), run.record());
    Ok((lines, text, value))
}

/// What can be measured, and why the rest cannot; found out before the work.
fn choose(
    device: &mut dyn Device,
    request: &Request<'_>,
    problems: &[[usize; 3]],
) -> Result<(Vec<Problem>, Vec<String>), Failure> {
    let (mut runs, mut skipped) = (Vec::new(), Vec::new());
    for &mnk in problems {
        let [m, n, k] = mnk;
        match device.check_baseline(mnk) {
            Err(error @ (Error::Unsupported { .. } | Error::Shape { .. })) => {
                skipped.push(format!("{m} x {n} x {k}: no baseline: {error}"));
                continue;
            }
            result => result?,
        }
        for &pair in &request.pairs {
            let support = device.support(mnk, pair.a.operand(), pair.b.scheme(), request.out);
            match support.refused.first() {
                Some((_, why)) if support.ways.is_empty() => {
                    skipped.push(format!("{m} x {n} x {k} {}: {why}", pair.name()));
                }
                _ => runs.push((mnk, pair)),
            }
        }
    }
    Ok((runs, skipped))
}

impl Run<'_> {
    fn describe(&self) -> String {
        let mut text = facts(self.device);
        text += &format!(
            "baseline      {}\ncopy          {} GB/s read + write\n",
            self.device.baseline(),
            number(self.copy * 1e-9)
        );
        text += &format!(
            "data          standard normal, BF16; output {}\ntimes         {}\n\n",
            self.request.out,
            self.device.method()
        );
        let header = [
            "m",
            "n",
            "k",
            "A x B",
            "cadence",
            "by",
            "baseline us",
            "TFLOP/s",
            "gemm us",
            "TFLOP/s",
            "x",
            "quantize us",
            "both us",
            "x both",
            "error",
        ];
        let rows: Vec<[String; 15]> = self
            .lines
            .iter()
            .map(|l| {
                let [m, n, k] = l.mnk;
                let [alone, with] = l.ratios();
                [
                    m.to_string(),
                    n.to_string(),
                    k.to_string(),
                    l.pair.name(),
                    l.time.cadence.to_string(),
                    l.time.formulation.clone(),
                    number(l.time.baseline_us),
                    number(l.tflops(l.time.baseline_us)),
                    number(l.time.gemm_us),
                    number(l.tflops(l.time.gemm_us)),
                    number(alone),
                    number(l.time.quantize_us),
                    number(l.time.both_us),
                    number(with),
                    number(l.time.error),
                ]
            })
            .collect();
        text += &table(header, 0, &rows);
        text += "\nboth us: quantization of A and product. x, x both: times faster than the baseline, without and with that quantization. error: largest error of checked elements, as a fraction of its bound.\n";
        for line in self.lines.iter().filter(|l| !l.time.clock.is_empty()) {
            let [m, n, k] = line.mnk;
            text += &format!("{m} x {n} x {k} {}, {}: {}\n", line.pair.name(), line.time.cadence, line.time.clock);
        }
        for line in self.skipped {
            text += &format!("not run: {line}\n");
        }
        text
    }

    fn record(&self) -> Value {
        let rows: Vec<Value> = self.lines
        .iter()
        .map(|l| {
            let [alone, with] = l.ratios();
            json!({
                "m": l.mnk[0], "n": l.mnk[1], "k": l.mnk[2],
                "a": l.pair.a.operand().to_string(), "b": l.pair.b.scheme().to_string(), "cadence": l.time.cadence,
                "formulation": l.time.formulation, "clock": l.time.clock,
                "baseline_us": l.time.baseline_us, "baseline_tflops": l.tflops(l.time.baseline_us),
                "gemm_us": l.time.gemm_us, "gemm_tflops": l.tflops(l.time.gemm_us), "ratio": alone,
                "quantize_us": l.time.quantize_us, "both_us": l.time.both_us, "ratio_with_quantize": with, "error_of_bound": l.time.error,
            })
        })
        .collect();
        json!({
            "device": self.device.name(), "title": self.device.title(), "facts": facts_value(self.device), "baseline": self.device.baseline(),
            "method": self.device.method(),
            "copy_bytes_per_second": self.copy, "out_dtype": self.request.out.name(),
            "data": "standard normal, bf16", "rows": rows, "not_run": self.skipped,
            "command": std::env::args().collect::<Vec<_>>().join(" "),
        })
    }
}

/// m, microseconds, TFLOP/s.
type Point = [f64; 3];

/// One chart of time and one of TFLOP/s for each weight shape, over m.
fn charts(lines: &[Line], device: &str) -> Vec<Chart> {
    let baseline = if device == "cpu" { "f32" } else { "bf16" };
    let lines: Vec<&Line> = lines.iter().filter(|l| l.time.cadence != "pauses").collect();
    let mut shapes: Vec<&[usize]> = lines.iter().map(|l| &l.mnk[1..]).collect();
    shapes.dedup();
    let mut charts = Vec::new();
    for shape in shapes {
        let mut series: Vec<(String, Vec<Point>)> = Vec::new();
        for line in lines.iter().filter(|l| &l.mnk[1..] == shape) {
            let mut add = |name: String, us: f64| {
                let point = [line.mnk[0] as f64, us, line.tflops(us)];
                match series.iter_mut().find(|(n, _)| *n == name) {
                    Some((_, points)) => points.push(point),
                    None => series.push((name, vec![point])),
                }
            };
            add(baseline.into(), line.time.baseline_us);
            add(line.pair.name(), line.time.gemm_us);
        }
        for (_, points) in &mut series {
            points.sort_by(|a, b| a[0].total_cmp(&b[0]));
            points.dedup_by(|a, b| a[0] == b[0]);
        }
        for (at, unit) in [(1, "microseconds"), (2, "TFLOP/s")] {
            let series = series.iter().map(|(name, p)| (name.clone(), p.iter().map(|x| (x[0], x[at])).collect()));
            let title = format!("n = {}, k = {}: {unit}", shape[0], shape[1]);
            charts.push(Chart { title, series: series.collect() });
        }
    }
    charts
}
