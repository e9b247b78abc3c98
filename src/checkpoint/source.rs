//! One safetensors file, opened: its header read and checked, its data read by place.

use std::fs::{self, File, FileType, Metadata};
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use super::foreign::{BEGINNING, kind};
use super::header::{Fault, Header, header_len};
use super::printable;
use crate::error::{Error, Result};

/// A file whose data lie from `data_start` on. It may be closed between two reads.
#[derive(Debug)]
pub(super) struct Source {
    pub(super) path: PathBuf,
    identity: Identity,
    data_start: u64,
}

/// What tells a file from another of its name, and from itself after a write.
#[derive(Debug, PartialEq)]
struct Identity {
    len: u64,
    /// Nothing where the system does not say.
    modified: Option<SystemTime>,
    /// Device and number; 0 where the system has none.
    inode: (u64, u64),
}

impl Identity {
    fn of(found: &Metadata) -> Self {
        #[cfg(unix)]
        let inode = {
            use std::os::unix::fs::MetadataExt;
            (found.dev(), found.ino())
        };
        #[cfg(not(unix))]
        let inode = (0, 0);
        Self { len: found.len(), modified: found.modified().ok(), inode }
    }
}

impl Source {
    /// Opens a file and checks its header: every tensor's size, no overlap, no hole, nothing missing at the end.
    pub(super) fn open(path: &Path) -> Result<(Self, File, Header)> {
        let io = |source| Error::Io { path: path.to_path_buf(), source };
        let broken = |fault: Fault| Error::File {
            path: path.to_path_buf(),
            tensor: fault.tensor.as_deref().map(printable),
            reason: printable(&fault.reason),
            remedy: "fetch or write the file again".into(),
        };
        let file = open_regular(path, "give a safetensors file on a disk")?;
        let identity = Identity::of(&file.metadata().map_err(io)?);
        let file_len = identity.len;
        let mut beginning = Vec::new();
        (&file).take(BEGINNING).read_to_end(&mut beginning).map_err(io)?;
        let Some(first) = beginning.first_chunk::<8>() else {
            let bytes = if file_len == 1 { "byte" } else { "bytes" };
            let reason = format!("it is not a safetensors file: it has {file_len} {bytes}, fewer than 8");
            return Err(broken(Fault { tensor: None, reason }));
        };
        if let Some((reason, remedy)) = kind(&beginning) {
            return Err(refuse_file(path, reason, remedy));
        }
        let header_len = header_len(*first, file_len).map_err(broken)?;
        let mut json = vec![0; header_len];
        read_at(&file, &mut json, 8).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => {
                let reason =
                    format!("was cut off while its header of {header_len} bytes was read: it had {file_len} bytes");
                broken(Fault { tensor: None, reason })
            }
            _ => io(e),
        })?;
        let data_start = 8 + header_len as u64;
        let header = Header::parse(&json, file_len - data_start).map_err(broken)?;
        Ok((Self { path: path.to_path_buf(), identity, data_start }, file, header))
    }

    /// Opens the file again.
    ///
    /// # Errors
    /// [`Error::File`] if another one has its name now, or it was written to: the header that was read is not its own.
    pub(super) fn reopen(&self) -> Result<File> {
        let file = open_regular(&self.path, "give a safetensors file on a disk")?;
        let found = file.metadata().map_err(|source| Error::Io { path: self.path.clone(), source })?;
        if Identity::of(&found) != self.identity {
            let reason = "was replaced or written to while it was being read";
            return Err(refuse_file(&self.path, reason, "start again when nobody writes it"));
        }
        Ok(file)
    }

    /// Fills `bytes` from this place of the data of the file, which was opened here. Several threads may read at once.
    pub(super) fn read(&self, file: &File, at: u64, bytes: &mut [u8]) -> io::Result<()> {
        read_at(file, bytes, self.data_start + at)
    }

    /// What there is to say where the file ended before `len` bytes from this place of its data were read.
    pub(super) fn cut_off(&self, file: &File, at: u64, len: usize) -> String {
        let had = file.metadata().map_or(0, |found| found.len());
        format!(
            "the file was cut off while it was being read: {len} bytes from byte {} of the file on were to be read, and it has {had}, \
             where it had {}",
            self.data_start + at,
            self.identity.len
        )
    }
}

#[cfg(unix)]
fn read_at(file: &File, bytes: &mut [u8], at: u64) -> io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, at)
}

#[cfg(windows)]
fn read_at(file: &File, mut bytes: &mut [u8], mut at: u64) -> io::Result<()> {
    use std::os::windows::fs::FileExt;
    while !bytes.is_empty() {
        match file.seek_read(bytes, at)? {
            0 => return Err(io::ErrorKind::UnexpectedEof.into()),
            read => {
                at += read as u64;
                bytes = &mut bytes[read..];
            }
        }
    }
    Ok(())
}

/// An [`Error::File`] about a file as a whole.
pub(super) fn refuse_file(path: &Path, reason: impl Into<String>, remedy: impl Into<String>) -> Error {
    Error::File { path: path.to_path_buf(), tensor: None, reason: reason.into(), remedy: remedy.into() }
}

/// Opens a file for reading. Not a pipe, which would wait for its writer, and nothing else without a length and places.
pub(crate) fn open_regular(path: &Path, remedy: &str) -> Result<File> {
    let io = |source| Error::Io { path: path.to_path_buf(), source };
    let kind = fs::metadata(path).map_err(io)?.file_type();
    if !kind.is_file() {
        let reason = format!("is {}, not a regular file", file_kind(kind));
        return Err(refuse_file(path, reason, remedy));
    }
    File::open(path).map_err(io)
}

/// What something is that is no regular file.
pub(super) fn file_kind(kind: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_fifo() {
            return "a pipe";
        }
        if kind.is_char_device() || kind.is_block_device() {
            return "a device";
        }
        if kind.is_socket() {
            return "a socket";
        }
    }
    if kind.is_dir() { "a folder" } else { "a special file" }
}
