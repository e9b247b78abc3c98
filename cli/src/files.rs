//! Output files: opened before the work, and removed by a signal that ends it.

use std::fs;
use std::path::{Path, PathBuf};
#[cfg(unix)]
use std::sync::Arc;
use std::sync::{Mutex, PoisonError};

use scaled_gemm::checkpoint::{CheckpointWriter, FolderRemoval, OutputFile, OutputFolder};
use scaled_gemm::{Error, Result};

use crate::output::Failure;
#[cfg(unix)]
use crate::threads;

/// What a signal removes.
enum Temporary {
    File(PathBuf),
    Folder(FolderRemoval),
}

impl Temporary {
    fn path(&self) -> &Path {
        match self {
            Self::File(path) => path,
            Self::Folder(folder) => folder.temporary(),
        }
    }

    /// What failed meanwhile is not there any more. The name of such a file was random; a folder of that name may be another run's by now,
    /// and has another mark then.
    fn remove(&self) {
        let _ = match self {
            Self::File(path) => fs::remove_file(path),
            Self::Folder(folder) => folder.remove(),
        };
    }
}

/// The temporary files and folders of this run. Those that were finished are not among them: a folder keeps its files under the new name.
static TEMPORARY: Mutex<Vec<Temporary>> = Mutex::new(Vec::new());

/// Starts an output file; a signal removes it until it is finished.
pub fn create(path: &Path) -> Result<OutputFile> {
    if path.as_os_str() == "-" {
        return Err(Error::File {
            path: path.into(),
            tensor: None,
            reason: "standard output takes no files, which appear whole under their name".into(),
            remedy: "give the name of a file, or ./- for one of that name".into(),
        });
    }
    // Held while the file is made, so that no signal comes between it and its entry.
    let mut temporary = TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner);
    let file = OutputFile::create(path)?;
    temporary.push(Temporary::File(file.temporary().to_path_buf()));
    Ok(file)
}

/// Starts an output folder; a signal removes it until it is finished.
pub fn create_folder(path: &Path) -> Result<OutputFolder> {
    let mut temporary = TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner);
    let folder = OutputFolder::create(path)?;
    temporary.push(Temporary::Folder(folder.removal()?));
    Ok(folder)
}

/// Writes the whole text and gives the file its name.
pub fn finish(mut file: OutputFile, text: &str) -> Result<()> {
    file.write(text.as_bytes())?;
    let temporary = file.temporary().to_path_buf();
    finish_as(&temporary, file, OutputFile::sync, OutputFile::finish)
}

/// Gives what was written its name.
pub fn finish_checkpoint(writer: CheckpointWriter) -> Result<()> {
    let temporary = writer.temporary().to_path_buf();
    finish_as(&temporary, writer, CheckpointWriter::sync, CheckpointWriter::finish)
}

/// A signal that comes while the disk is waited for removes what was written. Later ones wait until it has its name, which takes no time
/// then, and remove nothing of it: neither what is whole, nor what could not be given its name and stays. After a signal, this waits for
/// the end of the process: what is being removed does not get a name.
fn finish_as<T>(
    name: &Path,
    mut written: T,
    sync: impl FnOnce(&mut T) -> Result<()>,
    finish: impl FnOnce(T) -> Result<()>,
) -> Result<()> {
    sync(&mut written)?;
    let mut temporary = TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner);
    let done = finish(written);
    temporary.retain(|one| one.path() != name);
    done
}

/// Waits for the end of the process after a signal: that files are gone then is not an error of the work.
pub fn wait_for_signal() {
    drop(TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner));
}

/// Refuses what would wait for a writer or never end. Safetensors files are checked where they are opened.
pub fn require_regular(path: &Path) -> std::result::Result<(), Failure> {
    match fs::metadata(path) {
        Ok(found) if !found.is_file() => {
            Err(Failure::Use(format!("{}: is not a regular file; give a file on a disk", path.display())))
        }
        _ => Ok(()),
    }
}

/// From here on, signals that end the program remove its temporary files first. Those that are ignored, as `nohup` and shells in
/// the background have it, stay ignored. A file beyond the limit of the shell (`ulimit -f`) is an error of the write and no signal.
#[cfg(unix)]
pub fn remove_on_signals() -> std::result::Result<(), Failure> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXCPU, SIGXFSZ};

    // Nobody asks for the flag: with a handler in place, the system refuses the write instead.
    let cannot = |e: std::io::Error| Failure::Check(format!("catching signals: {e}"));
    signal_hook::flag::register(SIGXFSZ, Arc::default()).map_err(cannot)?;
    let wanted = [SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGXCPU].into_iter().filter(|signal| !is_ignored(*signal));
    let mut signals = signal_hook::iterator::Signals::new(wanted).map_err(cannot)?;
    let waiting = move || {
        let Some(signal) = signals.forever().next() else { return };
        // Not given back until the process has died: no file is made or finished from now on.
        let temporary = TEMPORARY.lock().unwrap_or_else(PoisonError::into_inner);
        temporary.iter().for_each(Temporary::remove);
        // The caller sees which signal it was. The first process of a container does not die of its own.
        if std::process::id() != 1 {
            let _ = signal_hook::low_level::emulate_default_handler(signal);
        }
        std::process::exit(128 + signal);
    };
    let made = std::thread::Builder::new().name("signals".into()).spawn(waiting);
    made.map(drop).map_err(|e| threads::refused("catching signals", &e, threads::REMEDY))
}

/// Whether the program was started with this signal ignored; `false` where the system does not say.
#[cfg(unix)]
fn is_ignored(signal: i32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0);
    mask >> (signal - 1) & 1 == 1
}

#[cfg(not(unix))]
pub fn remove_on_signals() -> std::result::Result<(), Failure> {
    Ok(())
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::time::Duration;

    use super::*;

    /// (It waited until shards of gigabytes were on the disk.)
    #[test]
    fn a_signal_does_not_wait_for_the_disk() {
        let (free, is_free) = channel();
        let sync = |_: &mut ()| {
            // What the handler of signals does.
            std::thread::spawn(move || {
                drop(TEMPORARY.lock());
                free.send(())
            });
            assert!(
                is_free.recv_timeout(Duration::from_secs(20)).is_ok(),
                "the lock is held while the disk is waited for"
            );
            Ok(())
        };
        let finish = |()| {
            assert!(TEMPORARY.try_lock().is_err(), "a signal may come while it gets its name");
            Ok(())
        };
        finish_as(Path::new("x"), (), sync, finish).unwrap();
    }
}
