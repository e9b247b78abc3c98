//! A table of figures as Markdown, with what they were made by, and whether all are as they must be.

use std::fs;
use std::process::{Command, ExitCode};

use crate::Outcome;
use crate::options::{Options, root};

/// Lines of a record, and what is wrong with its figures.
pub struct Record {
    lines: Vec<String>,
    failures: Vec<String>,
}

impl Record {
    /// A record with its title, the command that made it, and the versions of these packages.
    ///
    /// # Errors
    /// A repository without `Cargo.lock`, in which nothing can have been built.
    pub fn new(title: &str, command: &str, packages: &[&str]) -> Outcome<Self> {
        let lock = fs::read_to_string(root().join("Cargo.lock")).map_err(|e| format!("Cargo.lock: {e}"))?;
        let versions = packages.iter().map(|name| {
            let entry = lock.split_once(&format!("name = \"{name}\"\nversion = \"")).map_or("?", |(_, rest)| rest);
            format!("{name} {}", entry.split('"').next().unwrap_or("?"))
        });
        let made = format!("`{command}` at {}; {}.", commit(), versions.collect::<Vec<_>>().join(", "));
        Ok(Self { lines: vec![format!("# {title}"), String::new(), made], failures: Vec::new() })
    }

    /// A line of text.
    pub fn line(&mut self, text: impl Into<String>) {
        self.lines.push(text.into());
    }

    /// The head of a table.
    pub fn head(&mut self, cells: &[&str]) {
        self.line("");
        self.line(format!("| {} |", cells.join(" | ")));
        self.line(format!("|{}", "---|".repeat(cells.len())));
    }

    /// A row of a table, which is printed at once: the next may take a while.
    pub fn row(&mut self, cells: &[String]) {
        let row = format!("| {} |", cells.join(" | "));
        eprintln!("{row}");
        self.line(row);
    }

    /// Notes what must hold, and fails at the end where it does not.
    pub fn must(&mut self, holds: bool, what: impl FnOnce() -> String) {
        if !holds {
            self.failures.push(what());
        }
    }

    /// Prints the record, writes it where the options say, and gives the exit code.
    ///
    /// # Errors
    /// A file that cannot be written.
    pub fn finish(mut self, options: &Options) -> Outcome<ExitCode> {
        self.line("");
        match self.failures.as_slice() {
            [] => self.line("All is as it must be."),
            failures => self.lines.extend(failures.iter().map(|failure| format!("- WRONG: {failure}"))),
        }
        let text = self.lines.join("\n") + "\n";
        print!("{text}");
        if let Some(path) = &options.record {
            fs::write(path, text).map_err(|e| format!("{}: {e}", path.display()))?;
        }
        Ok(if self.failures.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
    }
}

/// The end of every program: an error is a line for people.
pub fn exit(outcome: Outcome<ExitCode>) -> ExitCode {
    outcome.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        ExitCode::FAILURE
    })
}

fn commit() -> String {
    let git = |arguments: &[&str]| {
        let done = Command::new("git").args(arguments).current_dir(root()).output().ok()?;
        done.status.success().then(|| String::from_utf8_lossy(&done.stdout).trim().to_string())
    };
    let Some(head) = git(&["rev-parse", "--short", "HEAD"]) else { return "an unknown commit".into() };
    let clean = git(&["status", "--porcelain", "--untracked-files=no"]).is_some_and(|changes| changes.is_empty());
    if clean { head } else { format!("{head} and changes") }
}
