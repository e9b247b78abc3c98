//! `tune`: times every formulation and algorithm for the shapes and writes the records of the best.

use scaled_gemm::{Error, Result};
use serde_json::json;

use crate::args::{DeviceChoice, TuneArgs, scheme_names};
use crate::device::{self, Pair};
use crate::output::{Failure, Form, Outcome, step_bar};

/// Rows of A where none are given: decode to prefill.
const MS: [usize; 14] = [1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096, 8192];

pub fn run(args: &TuneArgs, choice: DeviceChoice) -> std::result::Result<Outcome, Failure> {
    let mut device = device::open(choice)?;
    device.set_accumulation(args.accumulation);
    let ms: Vec<usize> = if args.m.is_empty() { MS.to_vec() } else { args.m.iter().map(|&m| m as usize).collect() };
    let names = if args.schemes.is_empty() { scheme_names() } else { args.schemes.clone() };
    let problems: Vec<_> = args
        .shapes
        .problems(&ms)
        .into_iter()
        .flat_map(|mnk| names.iter().flat_map(|name| Pair::of_weights(name)).map(move |pair| (mnk, pair)))
        .collect();
    let bar = step_bar(problems.len());
    let records = device.tune(&problems, args.out_dtype, &mut |message| {
        bar.println(&message);
        bar.inc(1);
    })?;
    bar.finish_and_clear();
    write(args, &records)?;
    let text = format!("{} problems tuned; records in {}\n", problems.len(), args.output.display());
    let value = json!({
        "device": device.title(), "output": args.output.display().to_string(), "problems": problems.len(),
    });
    Ok(Outcome::new(Form::from_flag(args.json), text, value))
}

fn write(args: &TuneArgs, text: &str) -> Result<()> {
    std::fs::write(&args.output, text).map_err(|source| Error::Io { path: args.output.clone(), source })
}
