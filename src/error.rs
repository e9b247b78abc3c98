//! What can go wrong, said so that the reader can mend it: operand, numbers, rule, remedy.

use std::fmt;
use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use crate::format::{Operand, Scheme};
use crate::names::UnknownName;

/// The result of every fallible call of this crate.
pub type Result<T> = std::result::Result<T, Error>;

/// A refused call or a failed library.
///
/// Refusals come from this crate's own tables before any library is asked, so a bare
/// `CUBLAS_STATUS_NOT_SUPPORTED` never reaches a user.
#[derive(thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// A dimension, length or stride breaks a rule.
    #[error("{operand}: {found} {rule}; {remedy}")]
    Shape {
        /// Which operand, as the caller knows it ("A", "codes of B", "bias").
        operand: String,
        /// The numbers that were found, e.g. `k = 4100`.
        found: String,
        /// The rule they break, e.g. `must be a multiple of 16 (FP8 operands, cuBLASLt)`.
        rule: String,
        /// What to do about it.
        remedy: String,
    },
    /// A device address is less aligned than the hardware needs.
    #[error("{operand}: address {address:#x} must be {required}-byte aligned; {remedy}")]
    Alignment {
        /// Which operand.
        operand: String,
        /// Its address.
        address: u64,
        /// The alignment needed, in bytes.
        required: u64,
        /// What to do about it.
        remedy: String,
    },
    /// An element type that this operand cannot have.
    #[error("{operand}: element type {found} {rule}; {remedy}")]
    DType {
        /// Which operand.
        operand: String,
        /// The type that was found.
        found: String,
        /// The rule it breaks.
        rule: String,
        /// What to do about it.
        remedy: String,
    },
    /// Two schemes that cannot be multiplied here.
    #[error("{a} x {b} is not supported on {device}: {reason}; {remedy}")]
    Pair {
        /// A: its scheme, or its element type.
        a: Operand,
        /// Scheme of B.
        b: Scheme,
        /// The GPU, or `cpu`.
        device: String,
        /// Why not.
        reason: String,
        /// What to do about it.
        remedy: String,
    },
    /// Something valid that this device or library version does not offer, or options that exclude each other.
    #[error("{what} is not supported: {reason}; {remedy}")]
    Unsupported {
        /// What was asked for.
        what: String,
        /// Why it is refused, with the numbers (GPU, version) that decide it.
        reason: String,
        /// What to do about it.
        remedy: String,
    },
    /// A word that names nothing.
    #[error(transparent)]
    Name(#[from] UnknownName),
    /// No usable GPU.
    #[error("no usable GPU: {reason}; {remedy}")]
    NoGpu {
        /// What the driver said.
        reason: String,
        /// What to do about it.
        remedy: String,
    },
    /// A shared library is missing, too old, or lacks a function.
    #[error("{library}: {reason}; {remedy}")]
    Library {
        /// The library, with its path and version where known.
        library: String,
        /// What is wrong with it.
        reason: String,
        /// What to do about it.
        remedy: String,
    },
    /// cuBLASLt failed where this crate's tables said it would not: a bug or a broken installation.
    #[error("{call} returned {status} ({name}) for {problem}")]
    Cublas {
        /// The C function.
        call: &'static str,
        /// Its status.
        status: u32,
        /// The status's name.
        name: String,
        /// The problem in words: shapes, schemes, GPU, library version.
        problem: String,
    },
    /// The CUDA driver failed.
    #[error("CUDA driver: {call}: {reason}")]
    Driver {
        /// What was being done.
        call: String,
        /// The driver's code and text.
        reason: String,
    },
    /// A kernel could not be compiled, loaded or found.
    #[error("kernel {kernel}: {reason}; {remedy}")]
    Kernel {
        /// The kernel or its file.
        kernel: String,
        /// The compiler's or loader's words.
        reason: String,
        /// What to do about it.
        remedy: String,
    },
    /// A file that is broken, or not what it says it is.
    #[error("{path}: {tensor}{reason}; {remedy}", path = shown(path), tensor = tensor.as_ref().map(|t| format!("tensor {t}: ")).unwrap_or_default())]
    File {
        /// The file.
        path: PathBuf,
        /// The tensor in it, where one is to blame.
        tensor: Option<String>,
        /// What is wrong.
        reason: String,
        /// What to do about it.
        remedy: String,
    },
    /// The operating system refused a file operation.
    #[error("{path}: {source}{remedy}", path = shown(path), remedy = remedy(source.kind()))]
    Io {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: std::io::Error,
    },
    /// A tuning record that does not belong to this GPU, library or problem.
    #[error("tuning record refused: {reason}; {remedy}")]
    Record {
        /// The field that differs, with both values.
        reason: String,
        /// What to do about it.
        remedy: String,
    },
}

/// The sentence of `Display`: `main` prints an error that it returns by `Debug`, and so does `unwrap`.
impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

impl Error {
    /// A [`Error::Shape`] from anything printable.
    pub fn shape(
        operand: impl Into<String>,
        found: impl Into<String>,
        rule: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::Shape { operand: operand.into(), found: found.into(), rule: rule.into(), remedy: remedy.into() }
    }

    /// A [`Error::DType`] from anything printable.
    pub fn dtype(
        operand: impl Into<String>,
        found: impl fmt::Display,
        rule: impl Into<String>,
        remedy: impl Into<String>,
    ) -> Self {
        Self::DType { operand: operand.into(), found: found.to_string(), rule: rule.into(), remedy: remedy.into() }
    }

    /// A [`Error::Unsupported`] from anything printable.
    pub fn unsupported(what: impl Into<String>, reason: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self::Unsupported { what: what.into(), reason: reason.into(), remedy: remedy.into() }
    }
}

/// A number in a message as people write it, and a long one by its power of ten: `3`, `0.75`, `1e30`.
pub(crate) fn number(value: f32) -> String {
    let size = value.abs();
    let is_long = size.is_finite() && size != 0.0 && !(1e-4..1e7).contains(&size);
    if is_long { format!("{value:e}") } else { value.to_string() }
}

/// Text of a file as it may go to a terminal, on one line: control characters and those that turn the direction of what
/// follows are escaped, `\u{1b}`.
pub fn printable(text: &str) -> String {
    let hidden = |c: char| {
        c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if hidden(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

/// What to do about what the system refused, in whose words there is none.
fn remedy(kind: ErrorKind) -> &'static str {
    match kind {
        ErrorKind::NotFound => "; give a file or folder that is there",
        ErrorKind::PermissionDenied => "; give a file that you may use",
        ErrorKind::InvalidFilename => "; give a shorter name, of at most 255 bytes on most file systems",
        ErrorKind::ReadOnlyFilesystem => "; give a name on a file system that can be written to",
        ErrorKind::OutOfMemory => "; give the process more memory (ulimit -v, a limit of its container)",
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => "; make room there, or write to another disk",
        ErrorKind::FileTooLarge => {
            "; raise the limit of the shell (ulimit -f), or write to a file system that has such files"
        }
        _ => "",
    }
}

/// A path as it may go to a terminal: that of a shard is whatever a folder has.
fn shown(path: &Path) -> String {
    printable(&path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_that_main_returns_is_a_sentence() {
        let error: Box<dyn std::error::Error> =
            Error::shape("B", "n = 250", "must be a multiple of 8", "pad it").into();
        assert_eq!(format!("{error:?}"), "B: n = 250 must be a multiple of 8; pad it");
    }

    #[test]
    fn a_file_that_is_not_there_has_a_remedy() {
        let error = crate::checkpoint::Checkpoint::open("/no/such.safetensors").unwrap_err().to_string();
        assert!(
            error.starts_with("/no/such.safetensors: ") && error.ends_with("; give a file or folder that is there"),
            "{error}"
        );
    }

    /// (Both were without one.)
    #[test]
    fn what_the_system_refuses_of_a_disk_or_of_memory_has_a_remedy() {
        for (kind, words) in [
            (ErrorKind::ReadOnlyFilesystem, "; give a name on a file system that can be written to"),
            (ErrorKind::OutOfMemory, "; give the process more memory (ulimit -v, a limit of its container)"),
        ] {
            let error = Error::Io { path: "x".into(), source: kind.into() }.to_string();
            assert!(error.ends_with(words), "{error}");
        }
    }
}
