//! The `scaled-gemm` program, run as its users run it.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::{Outcome, ensure};

/// Where the program is.
pub struct Program(PathBuf);

impl Program {
    /// The program at this path, else the one beside this program.
    ///
    /// # Errors
    /// If it is not there.
    pub fn find(given: Option<&Path>) -> Outcome<Self> {
        let beside = || Ok::<_, std::io::Error>(std::env::current_exe()?.with_file_name("scaled-gemm"));
        let path = given.map_or_else(beside, |path| Ok(path.to_path_buf()))?;
        ensure(path.is_file(), || {
            format!("{} is not there: cargo build --release -p scaled-gemm-cli, or say --program", path.display())
        })?;
        Ok(Self(path))
    }

    /// Quantizes a folder on the CPU into a new one.
    ///
    /// # Errors
    /// What the program says on standard error.
    pub fn quantize(&self, from: &Path, to: &Path, options: &[&OsStr]) -> Outcome<()> {
        let mut command = Command::new(&self.0);
        command.args(["--device", "cpu", "quantize"]).arg(from).arg("-o").arg(to).args(options);
        let done = command.output().map_err(|e| format!("{}: {e}", self.0.display()))?;
        ensure(done.status.success(), || {
            format!("scaled-gemm quantize {options:?}: {}", String::from_utf8_lossy(&done.stderr).trim())
        })
    }
}
