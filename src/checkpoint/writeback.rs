//! [`Writeback`]: bytes go to the disk while more are made, so that little is left to wait for at the end.

use std::fs::File;
use std::io;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::JoinHandle;

/// Bytes written before a file is synced again.
pub(super) const STEP: u64 = 128 << 20;

/// A thread that syncs files. Without it, where none can be had, all is synced at the end.
#[derive(Debug)]
pub(super) struct Writeback {
    worker: Option<Worker>,
}

#[derive(Debug)]
struct Worker {
    files: SyncSender<(usize, Arc<File>)>,
    thread: JoinHandle<Result<(), Failed>>,
}

/// The place of a file in the owner's list, and why its bytes did not reach the disk. A later sync of it would say nothing.
pub(super) type Failed = (usize, io::Error);

impl Writeback {
    pub(super) fn start() -> Self {
        let (files, from) = sync_channel(0);
        let thread = std::thread::Builder::new().name("writeback".into()).spawn(|| sync_all(from));
        Self { worker: thread.ok().map(|thread| Worker { files, thread }) }
    }

    /// Has a file synced, if no other one is at the moment: the next time will do.
    pub(super) fn begin(&self, place: usize, file: &Arc<File>) {
        if let Some(worker) = &self.worker {
            let _ = worker.files.try_send((place, file.clone()));
        }
    }

    /// True once a file could not be synced.
    #[cfg(test)]
    pub(super) fn is_over(&self) -> bool {
        self.worker.as_ref().is_none_or(|worker| worker.thread.is_finished())
    }

    /// Waits for what was begun.
    pub(super) fn finish(&mut self) -> Result<(), Failed> {
        let Some(Worker { files, thread }) = self.worker.take() else { return Ok(()) };
        drop(files);
        thread.join().unwrap_or_else(|_| Err((0, io::Error::other("the thread that syncs panicked; report it"))))
    }
}

fn sync_all(files: Receiver<(usize, Arc<File>)>) -> Result<(), Failed> {
    for (place, file) in files {
        file.sync_data().map_err(|e| (place, e))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_cannot_be_synced_is_said_with_its_place() {
        let mut writeback = Writeback::start();
        let file = Arc::new(tempfile::tempfile().unwrap());
        writeback.begin(0, &file);
        writeback.finish().unwrap();
        // A device has nothing to sync, and says so.
        #[cfg(target_os = "linux")]
        {
            let mut writeback = Writeback::start();
            let device = Arc::new(File::open("/dev/null").unwrap());
            // Taken once the thread waits for one.
            while Arc::strong_count(&device) == 1 && writeback.worker.as_ref().is_some_and(|w| !w.thread.is_finished())
            {
                writeback.begin(7, &device);
                std::thread::yield_now();
            }
            let (place, error) = writeback.finish().unwrap_err();
            assert_eq!((place, error.kind()), (7, io::ErrorKind::InvalidInput));
        }
    }
}
