//! `scaled-gemm`: quantize, multiply, verify and benchmark FP8, MXFP8 and NVFP4 matrices.
//!
//! Exit codes: 0 done, 1 a check or the machine failed, 2 wrong use or input, or a device that is not there. An error is one line on
//! standard error.

mod activations;
mod args;
mod by_parts;
mod coded;
mod commands;
mod copied;
mod data;
mod device;
mod experts;
mod file_tensor;
mod files;
mod folder;
mod foreign;
mod memory;
mod non_finite;
mod odd_scales;
mod orphans;
mod output;
mod pipeline;
mod plot;
mod produced;
mod quantizers;
mod readable;
mod recipes;
mod remains;
mod shapes;
mod sources;
mod target;
mod threads;
mod unread;

use std::process::ExitCode;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};

use args::{Cli, Command};
use output::{Failure, Outcome, note, one_line, print};

fn main() -> ExitCode {
    let result = match Cli::try_parse() {
        Ok(cli) => {
            let writes = !matches!(cli.command, None | Some(Command::Info(_) | Command::Verify(_)));
            run(cli).and_then(|outcome| show(&outcome, writes))
        }
        Err(text) if !text.use_stderr() => print(&text.render().to_string()),
        // clap does not say which.
        Err(error) if error.kind() == ErrorKind::InvalidUtf8 => Err(Failure::Use(no_utf8())),
        Err(error) => Err(Failure::Use(one_line(&error.render().to_string(), typed_command().as_deref()))),
    };
    let (code, message) = match result {
        Ok(()) => return ExitCode::SUCCESS,
        Err(Failure::Check(message)) => (1, message),
        Err(Failure::Use(message)) => (2, message),
    };
    files::wait_for_signal();
    note(&message);
    ExitCode::from(code)
}

/// The command that was typed, where the rest of the line could not be read.
fn typed_command() -> Option<String> {
    let commands = Cli::command();
    let typed = std::env::args_os().skip(1).filter_map(|word| word.into_string().ok());
    typed.into_iter().find(|word| commands.find_subcommand(word).is_some())
}

/// The arguments that are no text, where one of them has to be.
fn no_utf8() -> String {
    let words = std::env::args_os().filter_map(|word| word.into_string().err());
    let words: Vec<_> = words.map(|word| word.to_string_lossy().into_owned()).collect();
    format!("{}: is no UTF-8, as arguments are; rename the file, or make a link to it", words.join(", "))
}

/// The result on standard output, and on standard error what belongs beside it. `writes`: whether the command writes files, which it has
/// done by then.
fn show(outcome: &Outcome, writes: bool) -> Result<(), Failure> {
    print(&outcome.shown()).map_err(|failure| match writes {
        true => Failure::Check(failure.into_message() + "; what the command wrote to files is whole"),
        false => failure,
    })?;
    match &outcome.failed {
        None => outcome.notes.iter().for_each(|text| note(text)),
        Some(reason) => return Err(Failure::Check(reason.clone())),
    }
    Ok(())
}

fn run(cli: Cli) -> Result<Outcome, Failure> {
    files::remove_on_signals()?;
    match cli.command {
        // They say when: what they refuse is refused without threads.
        Some(Command::Info(_) | Command::Quantize(_) | Command::Dequantize(_)) => {}
        _ => threads::make(None)?,
    }
    match cli.command {
        None => commands::bench::quick(cli.device),
        Some(Command::Info(args)) => match &args.path {
            Some(path) => commands::describe::run(path, args.json),
            None => commands::info::run(&args, cli.device),
        },
        Some(Command::Verify(args)) => commands::verify::run(&args, cli.device),
        Some(Command::Bench(args)) => commands::bench::run(&args, cli.device),
        Some(Command::Quantize(args)) => commands::quantize::run(&args, cli.device),
        Some(Command::Dequantize(args)) => commands::dequantize::run(&args, cli.device),
        Some(Command::Gemm(args)) => commands::gemm::run(&args, cli.device),
        Some(Command::Tune(args)) => commands::tune::run(&args, cli.device),
    }
}
