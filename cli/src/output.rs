//! What the user sees: tables or JSON on standard output, progress and errors on standard error.

use std::fmt;
use std::io::Write;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressStyle};
use scaled_gemm::Error;
use serde_json::Value;

/// Why a command did not succeed; the message is one line.
#[derive(Debug)]
pub enum Failure {
    /// A check failed, or the machine did: exit code 1.
    Check(String),
    /// Wrong use or input: exit code 2.
    Use(String),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let message = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        match error {
            Error::Cublas { .. } | Error::Driver { .. } | Error::Kernel { .. } => Self::Check(message),
            _ => Self::Use(message),
        }
    }
}

/// What a command has to say.
pub struct Outcome {
    /// For people.
    pub text: String,
    /// For programs; shown in place of the text with `--json`.
    pub value: Value,
    /// Which of the two.
    pub form: Form,
    /// The reason, where a check failed.
    pub failed: Option<String>,
}

/// How an outcome is printed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    Text,
    Json,
}

impl Form {
    /// JSON if the option was given.
    pub fn from_flag(json: bool) -> Self {
        if json { Self::Json } else { Self::Text }
    }
}

impl Outcome {
    /// An outcome where nothing failed.
    pub fn new(form: Form, text: String, value: Value) -> Self {
        Self { text, value, form, failed: None }
    }

    /// What goes to standard output.
    pub fn shown(&self) -> String {
        match self.form {
            Form::Text => self.text.clone(),
            Form::Json => format!("{:#}", self.value),
        }
    }
}

/// Prints to standard output. A reader that went away (`| head`) is no error.
pub fn print(text: &str) {
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{}", text.trim_end());
}

/// Says something beside the result.
pub fn note(text: impl fmt::Display) {
    eprintln!("scaled-gemm: {text}");
}

/// A table with a header; all columns but the first `left` are aligned to the right.
pub fn table(header: &[&str], left: usize, rows: &[Vec<String>]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    for row in rows {
        table.add_row(row);
    }
    for column in table.column_iter_mut().skip(left) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.lines().map(|line| line.trim_end().to_string() + "\n").collect()
}

/// A bar on standard error, hidden where that is not a terminal. Lengths in bytes.
pub fn byte_bar(total: u64) -> ProgressBar {
    bar(total, "{bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta} {wide_msg}")
}

/// A bar on standard error that counts steps.
pub fn step_bar(total: usize) -> ProgressBar {
    bar(total as u64, "{bar:30} {pos}/{len} {elapsed} {wide_msg}")
}

fn bar(total: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(total);
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// clap's message on one line: what is wrong, its tips, and where to read more; without the usage.
pub fn one_line(message: &str) -> String {
    let kept: Vec<_> = message
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:"))
        .filter(|line| !line.is_empty() && !line.starts_with("For more information"))
        .collect();
    let text = kept.join(" ");
    format!("{}; see scaled-gemm --help", text.trim_start_matches("error: "))
}

/// Three significant digits, plain; whole numbers below a million whole.
pub fn number(value: f64) -> String {
    if !value.is_finite() || (value.fract() == 0.0 && value.abs() < 1e6) {
        return format!("{value}");
    }
    let digits = 2 - value.abs().log10().floor() as i32;
    if (-3..7).contains(&digits) { format!("{value:.*}", digits.max(0) as usize) } else { format!("{value:.2e}") }
}

/// Bytes with a unit.
pub fn bytes(value: u64) -> String {
    indicatif::HumanBytes(value).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_keep_three_digits() {
        for (value, text) in [(1234.5, "1234"), (12.345, "12.3"), (0.012345, "0.0123"), (0.0, "0"), (1e-9, "1.00e-9")] {
            assert_eq!(number(value), text);
        }
    }

    #[test]
    fn messages_of_clap_become_one_line() {
        let message =
            "error: invalid value\n  [possible values: a, b]\n\nUsage: x\n\nFor more information, try '--help'.\n";
        assert_eq!(one_line(message), "invalid value [possible values: a, b]; see scaled-gemm --help");
    }
}
