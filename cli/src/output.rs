//! What the user sees: tables or JSON on standard output, progress and errors on standard error.

use std::io::{self, ErrorKind, Write};
use std::path::Path;

use comfy_table::{CellAlignment, ContentArrangement, Table, presets};
use indicatif::{ProgressBar, ProgressFinish, ProgressStyle};
use scaled_gemm::Error;
use scaled_gemm::checkpoint::printable;
use serde_json::Value;

use crate::device::Device;

/// Why a command did not succeed; the message is one line.
#[derive(Debug)]
pub enum Failure {
    /// A check failed, or the machine did: exit code 1.
    Check(String),
    /// Wrong use or input: exit code 2.
    Use(String),
}

/// The remedy of a machine without a usable GPU, which is none where the CPU cannot do it.
pub const OR_CPU: &str = ", or use --device cpu";

impl Failure {
    /// The same without these words, where they are no remedy.
    pub fn without(self, words: &str) -> Self {
        match self {
            Self::Check(message) => Self::Check(message.replace(words, "")),
            Self::Use(message) => Self::Use(message.replace(words, "")),
        }
    }

    /// Without its kind.
    pub fn into_message(self) -> String {
        match self {
            Self::Check(message) | Self::Use(message) => message,
        }
    }
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        let message = error.to_string().split_whitespace().collect::<Vec<_>>().join(" ");
        // The library has no options.
        let message = message.replace(", or use the cpu", OR_CPU);
        match error {
            Error::Cublas { .. } | Error::Driver { .. } | Error::Kernel { .. } => Self::Check(message),
            Error::Io { source, .. } if !is_wrong_name(source.kind()) => Self::Check(message),
            _ => Self::Use(message),
        }
    }
}

/// Whether the system refused what was asked for, rather than failed to do it (a full disk, a broken one).
fn is_wrong_name(kind: ErrorKind) -> bool {
    use ErrorKind::{
        AlreadyExists, InvalidData, InvalidFilename, InvalidInput, IsADirectory, NotADirectory, NotFound,
        PermissionDenied, ReadOnlyFilesystem,
    };
    // Of the system's text, a file that is no UTF-8 is InvalidData; too many links are Other, refused before the work.
    matches!(
        kind,
        AlreadyExists
            | InvalidData
            | InvalidFilename
            | InvalidInput
            | IsADirectory
            | NotADirectory
            | NotFound
            | PermissionDenied
            | ReadOnlyFilesystem
    )
}

/// What a command has to say.
pub struct Outcome {
    /// For people.
    pub text: String,
    /// For programs; shown in place of the text with `--json`.
    pub value: Value,
    /// Which of the two.
    pub form: Form,
    /// Said on standard error beside a result that did not fail: the device, and what was written.
    pub notes: Vec<String>,
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

    /// The value, where it is shown: one of a file with very many tensors takes twenty times their names.
    pub fn value(self, make: impl FnOnce() -> Value) -> Value {
        match self {
            Self::Text => Value::Null,
            Self::Json => make(),
        }
    }
}

impl Outcome {
    /// An outcome where nothing failed, found on this device.
    pub fn new(device: &dyn Device, form: Form, text: String, value: Value) -> Self {
        Self { text, value, form, notes: vec![format!("device {}", device.described())], failed: None }
    }

    /// The same with more to say beside it. Programs get it as `notes` of the value, too: they need not read what is said to people.
    pub fn with_notes(mut self, notes: impl IntoIterator<Item = String>) -> Self {
        let notes: Vec<String> = notes.into_iter().collect();
        if let Value::Object(value) = &mut self.value {
            value.insert("notes".into(), notes.iter().map(String::as_str).collect());
        }
        self.notes.extend(notes);
        self
    }

    /// What goes to standard output.
    pub fn shown(&self) -> String {
        match self.form {
            Form::Text => self.text.clone(),
            // What a terminal would obey is written as JSON writes it; only strings hold it.
            Form::Json => format!("{:#}", self.value).chars().fold(String::new(), |mut text, c| {
                if c.is_ascii() || printable(c.encode_utf8(&mut [0; 4])).starts_with(c) {
                    text.push(c);
                } else {
                    text += &format!("\\u{:04x}", u32::from(c));
                }
                text
            }),
        }
    }
}

/// Prints to standard output. A reader that went away (`| head`) is no error.
///
/// # Errors
/// [`Failure::Check`] if it cannot be written: a full disk, a device that takes nothing.
pub fn print(text: &str) -> Result<(), Failure> {
    let text: Vec<_> = text.trim_end().lines().map(printable).collect();
    let mut out = io::stdout().lock();
    match writeln!(out, "{}", text.join("\n")).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::Check(format!("standard output: {e}; give it a file or a pipe that can be written to")))
        }
        _ => Ok(()),
    }
}

/// Says something beside the result, on one line of standard error. Nobody is left to hear of a failure there.
pub fn note(text: &str) {
    let _ = writeln!(io::stderr(), "scaled-gemm: {}", printable(text));
}

/// A table with a header; all columns but the first `left` are aligned to the right. Rows are as long as the header by their
/// type: a header over another column says something that is not so.
pub fn table<const COLUMNS: usize>(header: [&str; COLUMNS], left: usize, rows: &[[String; COLUMNS]]) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_content_arrangement(ContentArrangement::Disabled);
    table.set_header(header);
    for row in rows {
        // A cell is one line, whatever a tensor is called.
        table.add_row(row.iter().map(|cell| shortened(printable(cell))));
    }
    for column in table.column_iter_mut().skip(left) {
        column.set_cell_alignment(CellAlignment::Right);
    }
    table.lines().map(|line| line.trim_end().to_string() + "\n").collect()
}

/// Most characters of a cell: a name may have as many as a header, and all rows are as wide as the widest.
const CELL: usize = 160;
/// Characters of a longer one that are shown at its end, where names of a model differ.
const CELL_END: usize = 60;

/// The beginning and the end of a text that is too long for a cell.
fn shortened(cell: String) -> String {
    let number = cell.chars().count();
    if number <= CELL {
        return cell;
    }
    let beginning: String = cell.chars().take(CELL - CELL_END - 3).collect();
    beginning + "..." + &cell.chars().skip(number - CELL_END).collect::<String>()
}

/// Matrices from which on those that differ in a number are one line.
pub const MANY: usize = 40;

/// The name of a tensor as it may stand in a line: one without a letter is a name, too.
pub fn named(name: &str) -> String {
    if name.is_empty() { "\"\"".into() } else { printable(name) }
}

/// `model.layers.*.mlp.up_proj.weight`; of a tensor without a name, quotes without one.
pub fn starred(name: &str) -> String {
    if name.is_empty() {
        return "\"\"".into();
    }
    let part = |part: &str| match !part.is_empty() && part.bytes().all(|b| b.is_ascii_digit()) {
        true => "*".to_string(),
        false => part.to_string(),
    };
    name.split('.').map(part).collect::<Vec<_>>().join(".")
}

/// `4096 x 7168`.
pub fn product(shape: &[usize]) -> String {
    shape.iter().map(usize::to_string).collect::<Vec<_>>().join(" x ")
}

/// The name of a file as it may stand in a line.
pub fn shown(path: &Path) -> String {
    printable(&path.display().to_string())
}

/// A regular expression for tensors of these names and no others, as a word for a shell.
pub fn exactly<'a>(names: impl IntoIterator<Item = &'a str>) -> String {
    // A shell ends a word at an apostrophe, whatever stands before it.
    let escaped = |name: &str| printable(&regex::escape(name)).replace('\'', r"\x27");
    let names: Vec<_> = names.into_iter().map(escaped).collect();
    match &*names {
        [one] => format!("'^{one}$'"),
        all => format!("'^({})$'", all.join("|")),
    }
}

/// A number as it is, and a long one by its power of ten: `65504`, `1e30`.
pub fn float(value: f32) -> String {
    let size = value.abs();
    if size.is_finite() && size != 0.0 && !(1e-4..1e7).contains(&size) {
        format!("{value:e}")
    } else {
        value.to_string()
    }
}

/// `1 matrix`, `2 matrices`.
pub fn count(number: usize, one: &str, many: &str) -> String {
    format!("{number} {}", of_number(number, one, many))
}

/// The word for one, or for so many: `it is`, `they are`.
pub fn of_number<'a>(number: usize, one: &'a str, many: &'a str) -> &'a str {
    if number == 1 { one } else { many }
}

/// A bar on standard error, hidden where that is not a terminal. Lengths in bytes.
pub fn byte_bar(device: &dyn Device, total: u64) -> ProgressBar {
    bar(device, total, "{prefix} {bar:30} {bytes}/{total_bytes} {bytes_per_sec} {eta} {wide_msg}")
}

/// A bar on standard error that counts steps.
pub fn step_bar(device: &dyn Device, total: usize) -> ProgressBar {
    bar(device, total as u64, "{prefix} {bar:30} {pos}/{len} {elapsed} {wide_msg}")
}

/// Says from the beginning where the work is done, and goes away with it, also if it fails.
fn bar(device: &dyn Device, total: u64, template: &str) -> ProgressBar {
    let bar = ProgressBar::new(total).with_finish(ProgressFinish::AndClear).with_prefix(device.name());
    if let Ok(style) = ProgressStyle::with_template(template) {
        bar.set_style(style);
    }
    bar
}

/// clap's message on one line: what is wrong, its tips, and whose help to read; without the usage.
pub fn one_line(message: &str, command: Option<&str>) -> String {
    let kept: Vec<_> = message
        .lines()
        .map(str::trim)
        .take_while(|line| !line.starts_with("Usage:"))
        .filter(|line| !line.is_empty() && !line.starts_with("For more information"))
        .collect();
    let text = kept.join(" ");
    let command = command.map(|name| format!("{name} ")).unwrap_or_default();
    format!("{}; see scaled-gemm {command}--help", text.trim_start_matches("error: "))
}

/// Three significant digits, plain; whole numbers below a million whole.
pub fn number(value: f64) -> String {
    if !value.is_finite() || (value.fract() == 0.0 && value.abs() < 1e6) {
        return format!("{value}");
    }
    let digits = 2 - value.abs().log10().floor() as i32;
    if (-3..7).contains(&digits) { format!("{value:.*}", digits.max(0) as usize) } else { format!("{value:.2e}") }
}

/// The words for one thing, or for several.
pub struct Pronouns {
    pub it: &'static str,
    pub its: &'static str,
    pub as_it_is: &'static str,
}

impl Pronouns {
    pub fn of(number: usize) -> Self {
        match number {
            1 => Self { it: "it", its: "its", as_it_is: "as it is" },
            _ => Self { it: "them", its: "their", as_it_is: "as they are" },
        }
    }
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

    /// What a shell makes of the word matches these names and no others.
    #[test]
    fn excluded_names_are_words_of_a_shell() {
        let names = ["a'b", r"a\'b", "a.b", "a\nb", "a$(b)"];
        let in_apostrophes = |word: String| {
            let inner = word.strip_prefix('\'').and_then(|word| word.strip_suffix('\'')).unwrap().to_string();
            assert!(!inner.contains(['\'', '\n']), "{inner}");
            regex::Regex::new(&inner).unwrap()
        };
        for name in names {
            let one = in_apostrophes(exactly([name]));
            assert_eq!(names.map(|other| one.is_match(other)), names.map(|other| other == name), "{one}");
        }
        let two = in_apostrophes(exactly([names[0], names[3]]));
        assert_eq!(names.map(|name| two.is_match(name)), [true, false, false, true, false]);
        assert!(!two.is_match("xa'b") && !two.is_match("a'bx"));
    }

    #[test]
    fn cells_are_one_line_without_control_characters() {
        let text = table(["name", "n"], 1, &[["a\n\u{1b}[2Jb".into(), "1".into()]]);
        assert_eq!(text.lines().count(), 2, "{text:?}");
        assert!(text.contains(r"a\n\u{1b}[2Jb") && !text.contains('\u{1b}'), "{text:?}");
    }

    #[test]
    fn numbers_are_starred_and_nothing_else() {
        for (name, shown) in [("a.0.b", "a.*.b"), ("../../evil.1", "../../evil.*"), ("a..b.", "a..b."), ("", "\"\"")] {
            assert_eq!(starred(name), shown);
        }
    }

    #[test]
    fn what_is_not_shown_is_not_made() {
        assert_eq!(Form::Text.value(|| panic!("made for nobody")), Value::Null);
        assert_eq!(Form::Json.value(|| 1.into()), 1);
    }

    #[test]
    fn counts_have_their_plural() {
        assert_eq!([count(1, "matrix", "matrices"), count(0, "check", "checks")], ["1 matrix", "0 checks"]);
    }

    #[test]
    fn what_the_machine_failed_to_do_is_no_wrong_use() {
        let failure = |kind: ErrorKind| Failure::from(Error::Io { path: "x".into(), source: kind.into() });
        for kind in [ErrorKind::NotFound, ErrorKind::PermissionDenied, ErrorKind::IsADirectory] {
            assert!(matches!(failure(kind), Failure::Use(_)), "{kind:?}");
        }
        for kind in [ErrorKind::StorageFull, ErrorKind::QuotaExceeded, ErrorKind::FileTooLarge, ErrorKind::Other] {
            assert!(matches!(failure(kind), Failure::Check(_)), "{kind:?}");
        }
    }

    #[test]
    fn messages_of_clap_become_one_line() {
        let message =
            "error: invalid value\n  [possible values: a, b]\n\nUsage: x\n\nFor more information, try '--help'.\n";
        assert_eq!(one_line(message, None), "invalid value [possible values: a, b]; see scaled-gemm --help");
        assert!(one_line(message, Some("bench")).ends_with("; see scaled-gemm bench --help"));
    }
}
