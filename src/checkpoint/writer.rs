//! [`CheckpointWriter`] fills the files of a [`CheckpointLayout`](super::CheckpointLayout), several tensors at once if need be.

use std::collections::HashMap;
use std::fs::File;
use std::io;
use std::path::Path;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};

use super::cast_writer::PlannedCast;
use super::header::{Header, TensorInfo};
use super::layout::{Planned, PlannedMatrices, shard_names};
use super::matrix_writer::MatrixWriter;
use super::open_files::OpenFiles;
use super::output::lost;
use super::writeback::{STEP, Writeback};
use super::{OutputFile, OutputFolder, printable};
use crate::error::{Error, Result};
use crate::format::HostQuantMatrix;

/// Where the files go.
#[derive(Debug)]
pub(super) enum Target {
    File(OutputFile),
    Folder(OutputFolder),
}

/// Safetensors files being written; nothing is seen under their names until [`CheckpointWriter::finish`].
#[derive(Debug)]
pub struct CheckpointWriter {
    target: Target,
    shards: Vec<Shard>,
    open: OpenFiles,
    writeback: Writeback,
    /// Bytes since the last sync was begun.
    unsynced: AtomicU64,
    pub(super) header: Header,
    pub(super) matrices: HashMap<String, Planned>,
    pub(super) casts: HashMap<String, PlannedCast>,
    /// One for each tensor of the header.
    states: Vec<AtomicU8>,
    /// Every tensor is written, and has reached the disk.
    is_synced: bool,
    /// The first shard of which bytes did not reach the disk: the system tells it once.
    lost: OnceLock<usize>,
}

#[derive(Debug)]
struct Shard {
    name: String,
    data_start: u64,
}

/// Remedies.
const ONCE: &str = "write each tensor of the layout once";
const UNFINISHED: &str = "finish it once, or, where a part of it was refused, begin a new CheckpointWriter";
const LENGTH: &str = "write all bytes that a tensor of this type and shape has, or give the layout another shape";
pub(super) const SCHEME: &str = "quantize it as the layout says, or give the layout the recipe that it has";
pub(super) const ROWS: &str =
    "write all rows of the layout once, in order and in whole groups, or give the layout another shape";

/// What has become of a tensor.
const UNTOUCHED: u8 = 0;
const BEGUN: u8 = 1;
const DONE: u8 = 2;

impl CheckpointWriter {
    /// Opens the files and writes their headers. The disk keeps room for the whole, where it knows how.
    pub(super) fn start(target: Target, header: Header, planned: PlannedMatrices) -> Result<Self> {
        let count = header.tensors.iter().map(|t| t.file + 1).max().unwrap_or(1);
        let states = header.tensors.iter().map(|_| AtomicU8::new(UNTOUCHED)).collect();
        let mut data_bytes = vec![0; count];
        header.tensors.iter().for_each(|t| data_bytes[t.file] = t.end);
        let (shards, open) = (Vec::with_capacity(count), OpenFiles::default());
        let (writeback, unsynced) = (Writeback::start(), AtomicU64::new(0));
        let PlannedMatrices { matrices, casts } = planned;
        let (is_synced, lost) = (false, OnceLock::new());
        let mut writer =
            Self { target, shards, open, writeback, unsynced, header, matrices, casts, states, is_synced, lost };
        for (i, name) in shard_names(count).into_iter().enumerate() {
            let bytes = writer.header.to_bytes(i);
            let data_start = bytes.len() as u64;
            if let Target::Folder(folder) = &writer.target {
                folder.file(&name)?;
            }
            writer.shards.push(Shard { name, data_start });
            let file = writer.file(i)?;
            let io = |source| writer.io(i, source);
            // Those that follow need room, too.
            let rest: u64 = data_bytes[i..].iter().sum();
            let made = file.set_len(0).and_then(|()| reserve(&file, data_start + data_bytes[i], rest));
            made.map_err(io)?;
            write_at(&file, &bytes, 0).map_err(io)?;
        }
        Ok(writer)
    }

    /// A handle of a shard. What is closed for it reaches the disk first: a later handle would not hear of a write that failed.
    fn file(&self, shard: usize) -> Result<Arc<File>> {
        let open = || match &self.target {
            Target::File(output) => output.file().try_clone().map_err(|source| self.io(shard, source)),
            Target::Folder(folder) => folder.reopen(&self.shards[shard].name),
        };
        self.open.get(shard, open, |other, file| file.sync_all().map_err(|source| self.failed(other, source)))
    }

    fn io(&self, shard: usize, source: io::Error) -> Error {
        match &self.target {
            Target::File(file) => Error::Io { path: file.path().to_path_buf(), source },
            Target::Folder(folder) => folder.io(&self.shards[shard].name, source),
        }
    }

    /// A sync that failed.
    fn failed(&self, shard: usize, source: io::Error) -> Error {
        let _ = self.lost.set(shard);
        self.io(shard, source)
    }

    /// Begins a tensor of the layout, in any order of tensors. Several may be under way, also on several threads.
    ///
    /// # Errors
    /// [`Error::File`] for a name that is not in the layout, and for one that was begun before.
    pub fn tensor(&self, name: &str) -> Result<TensorWriter<'_>> {
        let Some(place) = self.header.position(name) else {
            return Err(self.refuse(name, "is not in the layout".into(), "add it to the layout, or leave it out"));
        };
        // What is whole stays so.
        match self.states[place].compare_exchange(UNTOUCHED, BEGUN, Ordering::AcqRel, Ordering::Acquire) {
            Ok(_) => {}
            Err(BEGUN) => return Err(self.refuse(name, "was begun before, and is not whole".into(), UNFINISHED)),
            Err(_) => return Err(self.refuse(name, "was written before".into(), ONCE)),
        }
        Ok(TensorWriter { writer: self, place, written: 0, done: false })
    }

    /// Writes the bytes of a tensor of the layout, in any order of tensors.
    ///
    /// # Errors
    /// As [`CheckpointWriter::tensor`], and [`Error::File`] for a wrong length; [`Error::Io`].
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        if let Some(info) = self.header.get(name)
            && bytes.len() as u64 != info.bytes()
        {
            let found = format!("got {} bytes where the layout says {}", bytes.len(), info.bytes());
            return Err(self.refuse(name, found, LENGTH));
        }
        let mut tensor = self.tensor(name)?;
        tensor.append(bytes)?;
        tensor.finish()
    }

    /// Begins a quantized matrix of the layout, to be written by rows.
    ///
    /// # Errors
    /// As [`CheckpointWriter::tensor`], and [`Error::File`] for a name that is no matrix of the layout.
    pub fn matrix(&self, name: &str) -> Result<MatrixWriter<'_>> {
        MatrixWriter::begin(self, name)
    }

    /// Writes a quantized matrix of the layout: codes and scales.
    ///
    /// # Errors
    /// As [`CheckpointWriter::matrix`] and [`MatrixWriter::append`].
    pub fn write_quantized(&self, name: &str, matrix: &HostQuantMatrix) -> Result<()> {
        let Some(planned) = self.matrices.get(name) else { return self.matrix(name).map(drop) };
        // Before a tensor is begun, which it is once: after a refusal the right matrix can be written.
        let rows = planned.check_part(self, name, 0, matrix)?;
        if rows.end != planned.rows {
            return Err(self.too_few_rows(name, rows.end, planned.rows));
        }
        let mut writer = self.matrix(name)?;
        writer.append_checked(rows)?;
        writer.finish()
    }

    /// A further file of the folder of a model: its config, its tokenizer.
    ///
    /// # Errors
    /// [`Error::Unsupported`] where one file is written; as [`OutputFolder::write`].
    pub fn folder(&self) -> Result<&OutputFolder> {
        match &self.target {
            Target::Folder(folder) => Ok(folder),
            Target::File(file) => Err(Error::unsupported(
                format!("a further file beside {}", file.path().display()),
                "one safetensors file is written, and no folder",
                "write a folder",
            )),
        }
    }

    /// Where what is written is until [`CheckpointWriter::finish`]: a file, or a folder.
    pub fn temporary(&self) -> &Path {
        match &self.target {
            Target::File(file) => file.temporary(),
            Target::Folder(folder) => folder.temporary(),
        }
    }

    /// Waits until the tensors have reached the disk, all of which must be written, and their index, where there are several shards.
    /// [`CheckpointWriter::finish`] does so too, and does not wait for them again: the rest of it is quick, as it must be under a lock that a
    /// handler of signals takes.
    ///
    /// # Errors
    /// [`Error::File`] if a tensor of the layout was not written; [`Error::Io`], and from then on at each further call: what did not
    /// reach the disk is told once by the system.
    pub fn sync(&mut self) -> Result<()> {
        // No tensor is written twice: nothing was written since.
        if self.is_synced {
            return Ok(());
        }
        if let Some(shard) = self.lost.get() {
            return Err(self.io(*shard, lost()));
        }
        let missing = |state: &AtomicU8| state.load(Ordering::Acquire) != DONE;
        if let Some(i) = self.states.iter().position(missing) {
            let (found, remedy) = match self.states[i].load(Ordering::Acquire) {
                UNTOUCHED => ("was not written", ONCE),
                _ => ("was begun, and is not whole", UNFINISHED),
            };
            return Err(self.refuse(&self.header.tensors[i].name, found.into(), remedy));
        }
        self.writeback.finish().map_err(|(shard, source)| self.failed(shard, source))?;
        for shard in 0..self.shards.len() {
            self.file(shard)?.sync_all().map_err(|source| self.failed(shard, source))?;
        }
        if let Target::Folder(folder) = &self.target
            && self.shards.len() > 1
        {
            let names: Vec<_> = self.shards.iter().map(|shard| shard.name.as_str()).collect();
            folder.write("model.safetensors.index.json", index(&self.header, &names).as_bytes())?;
        }
        self.is_synced = true;
        Ok(())
    }

    /// Gives the files their names, after their bytes have reached the disk. An older file of that name is replaced.
    ///
    /// # Errors
    /// As [`CheckpointWriter::sync`].
    pub fn finish(mut self) -> Result<()> {
        self.sync()?;
        match self.target {
            Target::File(output) => output.finish(),
            Target::Folder(folder) => folder.finish(),
        }
    }

    pub(super) fn too_few_rows(&self, name: &str, found: usize, rows: usize) -> Error {
        self.refuse(name, format!("got {found} rows where the layout says {rows}"), ROWS)
    }

    pub(super) fn refuse(&self, tensor: &str, reason: String, remedy: &str) -> Error {
        let path = match &self.target {
            Target::File(file) => file.path(),
            Target::Folder(folder) => folder.path(),
        };
        Error::File { path: path.to_path_buf(), tensor: Some(printable(tensor)), reason, remedy: remedy.into() }
    }
}

/// One tensor being written, from its beginning to its end.
#[derive(Debug)]
pub struct TensorWriter<'w> {
    writer: &'w CheckpointWriter,
    place: usize,
    written: u64,
    done: bool,
}

impl TensorWriter<'_> {
    fn info(&self) -> &TensorInfo {
        &self.writer.header.tensors[self.place]
    }

    /// Writes the next bytes.
    ///
    /// # Errors
    /// [`Error::File`] for more bytes than the layout says; [`Error::Io`].
    pub fn append(&mut self, bytes: &[u8]) -> Result<()> {
        let (info, len) = (self.info(), bytes.len() as u64);
        if self.written + len > info.bytes() {
            let found = format!("got {} bytes where the layout says {}", self.written + len, info.bytes());
            return Err(self.writer.refuse(&info.name, found, LENGTH));
        }
        let (writer, shard) = (self.writer, info.file);
        let file = writer.file(shard)?;
        write_at(&file, bytes, writer.shards[shard].data_start + info.start + self.written)
            .map_err(|source| writer.io(shard, source))?;
        self.written += len;
        if writer.unsynced.fetch_add(len, Ordering::Relaxed) + len >= STEP {
            writer.unsynced.store(0, Ordering::Relaxed);
            writer.writeback.begin(shard, &file);
        }
        Ok(())
    }

    /// Ends the tensor.
    ///
    /// # Errors
    /// [`Error::File`] if bytes are missing.
    pub fn finish(mut self) -> Result<()> {
        let info = self.info();
        if self.written != info.bytes() {
            let found = format!("got {} bytes where the layout says {}", self.written, info.bytes());
            return Err(self.writer.refuse(&info.name, found, LENGTH));
        }
        self.writer.states[self.place].store(DONE, Ordering::Release);
        self.done = true;
        Ok(())
    }
}

impl Drop for TensorWriter<'_> {
    fn drop(&mut self) {
        // What was refused before its first byte may be written yet.
        if !self.done && self.written == 0 {
            self.writer.states[self.place].store(UNTOUCHED, Ordering::Release);
        }
    }
}

/// The index of shards, as published models have it.
fn index(header: &Header, names: &[&str]) -> String {
    let quoted = |text: &str| serde_json::Value::from(text).to_string();
    let total: u64 = header.tensors.iter().map(TensorInfo::bytes).sum();
    let mut lines: Vec<_> =
        header.tensors.iter().map(|t| format!("    {}: {}", quoted(&t.name), quoted(names[t.file]))).collect();
    lines.sort_unstable();
    format!(
        "{{\n  \"metadata\": {{\n    \"total_size\": {total}\n  }},\n  \"weight_map\": {{\n{}\n  }}\n}}\n",
        lines.join(",\n")
    )
}

/// Makes a file so long, and asks the disk for all of it: that there is no room is found before the work. `rest`: what is still to be
/// written there, this file included.
fn reserve(file: &File, bytes: u64, rest: u64) -> io::Result<()> {
    #[cfg(target_os = "linux")]
    {
        use rustix::fs::{FallocateFlags, fallocate, fstatvfs};
        use rustix::io::Errno;
        let free = fstatvfs(file).ok().map(|found| found.f_bfree.saturating_mul(found.f_frsize));
        // The disk is not filled to find out. (Some file systems do not say.)
        if let Some(free) = free.filter(|free| *free > 0 && *free < rest) {
            return Err(no_room(rest, free));
        }
        match fallocate(file, FallocateFlags::empty(), 0, bytes) {
            Ok(()) => return Ok(()),
            Err(Errno::NOSPC) if free.is_some() => return Err(no_room(rest, free.unwrap_or_default())),
            // Not every file system can.
            Err(Errno::OPNOTSUPP | Errno::NOSYS | Errno::INVAL) => {}
            Err(e) => return Err(e.into()),
        }
    }
    #[cfg(not(target_os = "linux"))]
    let _ = rest;
    file.set_len(bytes)
}

/// What there is to say where a disk has no room. `free`: what it had before it was asked.
#[cfg(target_os = "linux")]
fn no_room(rest: u64, free: u64) -> io::Error {
    let had = match free < rest {
        true => format!("and {free} were free"),
        // Others wrote meanwhile, or some of it is kept for root.
        false => format!("and of {free} that were free when the run began not as many can be had any more"),
    };
    io::Error::new(
        io::ErrorKind::StorageFull,
        format!("No space left on device: {rest} bytes are to be written, {had}"),
    )
}

#[cfg(unix)]
fn write_at(file: &File, bytes: &[u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::write_all_at(file, bytes, at)
}

#[cfg(windows)]
fn write_at(file: &File, mut bytes: &[u8], mut at: u64) -> io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !bytes.is_empty() {
        let wrote = file.seek_write(bytes, at)?;
        (at, bytes) = (at + wrote as u64, &bytes[wrote..]);
    }
    Ok(())
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// (`146270208 bytes are to be written, and 167772160 were free`)
    #[test]
    fn a_disk_without_room_does_not_have_more_than_is_to_be_written() {
        assert!(no_room(2, 1).to_string().ends_with("2 bytes are to be written, and 1 were free"));
        let text = no_room(146_270_208, 167_772_160).to_string();
        assert!(
            text.ends_with(", and of 167772160 that were free when the run began not as many can be had any more"),
            "{text}"
        );
    }

    /// A device has nothing to sync, and says so. It is taken for this shard once the thread waits for one.
    fn lose(writer: &CheckpointWriter, shard: usize) {
        let device = Arc::new(File::open("/dev/null").unwrap());
        for _ in 0..1000 {
            writer.writeback.begin(shard, &device);
            std::thread::sleep(std::time::Duration::from_millis(1));
            if writer.writeback.is_over() {
                break;
            }
        }
    }

    /// (The second time, of which the system says nothing, it was whole.)
    #[test]
    fn what_did_not_reach_the_disk_is_not_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let mut layout = super::super::CheckpointLayout::new();
        layout.tensor("a", safetensors::Dtype::U8, &[2]);
        let mut writer = layout.create(&path, &[]).unwrap();
        // What is missing is said, and may be written yet.
        assert!(writer.sync().unwrap_err().to_string().contains("was not written"));
        writer.write("a", &[1, 2]).unwrap();
        lose(&writer, 0);
        writer.sync().unwrap_err();
        for error in [writer.sync().unwrap_err(), writer.finish().unwrap_err()] {
            let error = error.to_string();
            assert!(error.contains("out") && error.contains("did not reach the disk"), "{error}");
        }
        assert!(!path.exists());
    }

    #[test]
    fn the_shard_that_did_not_reach_the_disk_is_named_each_time() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let mut layout = super::super::CheckpointLayout::new();
        ["a", "b", "c"].iter().for_each(|name| layout.tensor(*name, safetensors::Dtype::U8, &[2]));
        let output = OutputFolder::create(&path).unwrap();
        let mut writer = layout.create_folder(output, 2, &[]).unwrap();
        ["a", "b", "c"].iter().for_each(|name| writer.write(name, &[1, 2]).unwrap());
        lose(&writer, 1);
        for error in [writer.sync().unwrap_err(), writer.sync().unwrap_err(), writer.finish().unwrap_err()] {
            let error = error.to_string();
            assert!(error.contains("model-00002-of-00003.safetensors"), "{error}");
        }
        assert!(!path.exists());
    }
}
