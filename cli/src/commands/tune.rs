//! `tune`: times every formulation and algorithm for the shapes and writes the records of the best.

use serde_json::json;

use crate::args::{DeviceChoice, TuneArgs, scheme_names};
use crate::device::{self, Pair};
use crate::files;
use crate::output::{Failure, Form, OR_CPU, Outcome, count, shown, step_bar};

/// Rows of A where none are given: decode to prefill.
const MS: [usize; 14] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192];

pub fn run(args: &TuneArgs, choice: DeviceChoice) -> Result<Outcome, Failure> {
    args.shapes.check_ms(&args.m)?;
    let output = files::create(&args.output)?;
    // Elsewhere the CPU is a way out.
    let mut device = device::open(choice).map_err(|failure| failure.without(OR_CPU))?;
    device.set_accumulation(args.accumulation)?;
    if args.batch_invariant {
        device.set_batch_invariant()?;
    }
    if args.chained {
        device.set_chained();
    }
    let ms: Vec<usize> = if args.m.is_empty() { MS.to_vec() } else { args.m.iter().map(|&m| m as usize).collect() };
    let names = if args.schemes.is_empty() { scheme_names() } else { args.schemes.clone() };
    let pairs = Pair::of_schemes(&names, &args.activations);
    let shapes = args.shapes.problems(&ms);
    let problems: Vec<_> = shapes.into_iter().flat_map(|mnk| pairs.iter().map(move |pair| (mnk, *pair))).collect();
    for (mnk, _) in &problems {
        device.check_memory(*mnk, args.out_dtype)?;
    }
    let bar = step_bar(device.as_ref(), problems.len());
    let records = device.tune(&problems, args.out_dtype, &mut |message| {
        bar.println(&message);
        bar.inc(1);
    })?;
    bar.finish_and_clear();
    files::finish(output, &records)?;
    let tuned = count(problems.len(), "problem", "problems");
    let chained = if args.chained { " for chains" } else { "" };
    let text = format!("{tuned} tuned{chained}; records in {}\n", shown(&args.output));
    let value = json!({
        "device": device.title(), "output": args.output.display().to_string(), "problems": problems.len(), "chained": args.chained,
    });
    Ok(Outcome::new(device.as_ref(), Form::from_flag(args.json), text, value))
}
