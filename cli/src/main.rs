//! `scaled-gemm`: quantize, multiply, verify and benchmark FP8, MXFP8 and NVFP4 matrices.
//!
//! Exit codes: 0 done, 1 a check or the machine failed, 2 wrong use or input.

mod args;
mod commands;
mod data;
mod device;
mod output;
mod plot;
mod recipes;
mod shapes;

use std::process::ExitCode;

use clap::Parser;

use args::{Cli, Command};
use output::{Failure, Outcome, one_line};

fn main() -> ExitCode {
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => {
            output::print(&error.render().to_string());
            return ExitCode::SUCCESS;
        }
        Err(error) => return fail(&Failure::Use(one_line(&error.render().to_string()))),
    };
    match run(cli) {
        Ok(outcome) => {
            output::print(&outcome.shown());
            match outcome.failed {
                None => ExitCode::SUCCESS,
                Some(reason) => fail(&Failure::Check(reason)),
            }
        }
        Err(failure) => fail(&failure),
    }
}

fn run(cli: Cli) -> Result<Outcome, Failure> {
    match cli.command {
        None => commands::bench::quick(cli.device),
        Some(Command::Info(args)) => commands::info::run(&args, cli.device),
        Some(Command::Verify(args)) => commands::verify::run(&args, cli.device),
        Some(Command::Bench(args)) => commands::bench::run(&args, cli.device),
        Some(Command::Quantize(args)) => commands::quantize::run(&args, cli.device),
        Some(Command::Dequantize(args)) => commands::dequantize::run(&args, cli.device),
        Some(Command::Gemm(args)) => commands::gemm::run(&args, cli.device),
        Some(Command::Tune(args)) => commands::tune::run(&args, cli.device),
    }
}

fn fail(failure: &Failure) -> ExitCode {
    let (code, message) = match failure {
        Failure::Check(message) => (1, message),
        Failure::Use(message) => (2, message),
    };
    eprintln!("scaled-gemm: {message}");
    ExitCode::from(code)
}
