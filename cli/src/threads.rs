//! Threads: made where it can be said that the system has none left, and not where it would be a panic.

use std::error::Error;
use std::io;
use std::thread::{Builder, Scope, ScopedJoinHandle};

use crate::output::Failure;

/// What helps where a thread cannot be made. The system says the same of a stack that finds no memory.
pub const REMEDY: &str =
    "raise the limit of the user (ulimit -u), of the container (pids) or of memory (ulimit -v), or end other programs";

/// What the system said of a thread, with the remedy.
pub fn refused(what: &str, error: &io::Error, remedy: &str) -> Failure {
    Failure::Check(format!("{what}: no thread can be made: {error}; {remedy}"))
}

/// Makes those that the work on the CPU is spread over, all cores or so many: asked for once, before any work. Later they would be made
/// where they are first needed, and what the system refuses would be a panic.
pub fn make(jobs: Option<u16>) -> Result<(), Failure> {
    let threads = jobs.map_or(0, usize::from);
    let Err(error) = rayon::ThreadPoolBuilder::new().num_threads(threads).build_global() else { return Ok(()) };
    // Else they are there already.
    let Some(source) = error.source().and_then(|source| source.downcast_ref::<io::Error>()) else { return Ok(()) };
    let (what, remedy) = match jobs {
        Some(jobs) => (format!("the threads of --jobs {jobs}"), format!("give fewer, {REMEDY}")),
        None => ("the threads for the work on the CPU".into(), REMEDY.into()),
    };
    Err(refused(&what, source, &remedy))
}

/// Starts a part of the work on a thread of its own.
pub fn spawn<'scope, T: Send + 'scope>(
    scope: &'scope Scope<'scope, '_>,
    work: impl FnOnce() -> T + Send + 'scope,
) -> Result<ScopedJoinHandle<'scope, T>, Failure> {
    Builder::new().spawn_scoped(scope, work).map_err(|e| refused("the threads that read and write", &e, REMEDY))
}
