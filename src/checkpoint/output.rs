//! [`OutputFile`]: a file that appears under its name whole or not at all.

#[cfg(unix)]
use std::fs::TryLockError;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};
#[cfg(unix)]
use std::time::Duration;

use tempfile::{Builder, NamedTempFile};

use super::source::{file_kind, refuse_file};
use crate::error::{Error, Result};

/// Links followed from a name before they are taken for a circle, as on Linux.
const MOST_LINKS: usize = 40;

/// Times that a file of ours is tried to be locked, a millisecond apart.
#[cfg(unix)]
const MOST_LOCKS: usize = 100;

/// How long a file may be there before its writer holds it.
#[cfg(unix)]
const YOUNG: Duration = Duration::from_millis(50);

/// A file being written: a temporary one in the folder of its target, which it replaces in [`OutputFile::finish`].
///
/// Dropped before that, it leaves what was there before. The name of the temporary file is random, so that what a killed
/// process left behind is in nobody's way. Links are followed: the file they lead to is written, and they stay.
#[derive(Debug)]
pub struct OutputFile {
    /// As the caller named it.
    path: PathBuf,
    /// Where its links lead.
    target: PathBuf,
    file: NamedTempFile,
    left_behind: Vec<PathBuf>,
    /// A sync failed: bytes may be lost, of which the system tells once.
    is_lost: bool,
}

impl OutputFile {
    /// Starts a file that will be `path`. Whether it may be written is found out here, before the work for it is done.
    ///
    /// # Errors
    /// [`Error::File`] for a folder, a device or a pipe of that name, for links that never end, for a place in `/proc`, and for
    /// a folder that does not exist or may not be written to, or a file that is there and may not; [`Error::Io`] if the system
    /// fails to open that, or to make one.
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_path_buf();
        let io = |source| Error::Io { path: path.clone(), source };
        let target = follow_links(&path)?;
        let old = match fs::metadata(&target) {
            Ok(old) if !old.is_file() => {
                let reason = format!("is {}, not a regular file", file_kind(old.file_type()));
                return Err(refuse_file(&path, reason, "give the name of a file to be made or replaced"));
            }
            Ok(old) => {
                // Replacing needs no right to the file itself; whoever took that right away meant it.
                OpenOptions::new().write(true).open(&target).map_err(|e| match e.kind() {
                    ErrorKind::PermissionDenied => refuse_file(
                        &path,
                        format!("is there and may not be written: {e}"),
                        "give another name, or the right to write to it",
                    ),
                    _ => io(e),
                })?;
                Some(old)
            }
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => None,
            Err(e) => return Err(io(e)),
        };
        // `x/` and `x/.` have the name `x` by their parts, which a file could not be given in the end.
        let text = target.to_string_lossy();
        if text.ends_with(std::path::is_separator)
            || text.strip_suffix('.').is_some_and(|t| t.ends_with(std::path::is_separator))
        {
            return Err(refuse_file(
                &path,
                "is the name of a folder",
                "give the name of a file to be made or replaced",
            ));
        }
        let folder = folder_of(&target);
        require_folder(&path, folder)?;
        let Some(name) = target.file_name() else {
            return Err(refuse_file(&path, "is no name of a file", "give the name of a file to be made or replaced"));
        };
        let prefix = format!(".{}.", name.to_string_lossy().chars().take(64).collect::<String>());
        let mut builder = Builder::new();
        builder.prefix(&prefix).suffix(".tmp");
        #[cfg(unix)]
        {
            // A temporary file is for its owner alone by default. This one is to be like any other, as the umask says.
            use std::os::unix::fs::PermissionsExt;
            builder.permissions(fs::Permissions::from_mode(0o666));
        }
        let file = builder.tempfile_in(folder).map_err(|e| match e.kind() {
            // The system's word without the temporary name that tempfile adds to it.
            kind @ (ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem | ErrorKind::NotFound) => {
                let reason =
                    format!("no file can be made in the folder {}: {}", folder.display(), io::Error::from(kind));
                refuse_file(&path, reason, "give a name in a folder that you may write to")
            }
            kind => io(kind.into()),
        })?;
        if let Some(old) = old {
            fs::set_permissions(file.path(), old.permissions()).map_err(io)?;
        }
        // Held until the file has its name: the writer of one that nobody holds is gone. Elsewhere such a lock shuts out writes, too.
        #[cfg(unix)]
        hold(file.as_file());
        let left_behind = left_behind(folder, &prefix, file.path());
        Ok(Self { path, target, file, left_behind, is_lost: false })
    }

    /// Temporary files of this target that processes left which were killed, as far as the system tells. They stay: whoever knows that
    /// nobody writes them may remove them.
    pub fn left_behind(&self) -> &[PathBuf] {
        &self.left_behind
    }

    /// The name it was created for.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where its bytes are until [`OutputFile::finish`]: what a handler of signals removes.
    pub fn temporary(&self) -> &Path {
        self.file.path()
    }

    /// Writes bytes at the end.
    ///
    /// # Errors
    /// [`Error::Io`].
    pub fn write(&mut self, bytes: &[u8]) -> Result<()> {
        self.file.as_file_mut().write_all(bytes).map_err(|source| self.io(source))
    }

    /// The file itself, to be written by place.
    pub(super) fn file(&self) -> &fs::File {
        self.file.as_file()
    }

    /// Waits until the bytes written so far have reached the disk. [`OutputFile::finish`] does it too, and has little to wait for then.
    ///
    /// # Errors
    /// [`Error::Io`], and from then on at each further call: what did not reach the disk is told once by the system.
    pub fn sync(&mut self) -> Result<()> {
        if self.is_lost {
            return Err(self.io(lost()));
        }
        self.file.as_file().sync_all().map_err(|source| {
            self.is_lost = true;
            self.io(source)
        })
    }

    /// Gives the file its name, after its bytes have reached the disk. An older file of that name is replaced.
    ///
    /// # Errors
    /// [`Error::Io`]. Where the system does not give it that name, what was written stays, under the name that the error says, unless somebody
    /// has removed it.
    pub fn finish(mut self) -> Result<()> {
        self.sync()?;
        let path = self.path;
        self.file.persist(&self.target).map(drop).map_err(|e| {
            let refused = e.error;
            match e.file.keep() {
                Ok((_, temporary)) => {
                    let place = told_apart(temporary);
                    unnamed(&path, &refused, &place, place.is_file())
                }
                Err(_) => Error::Io { path, source: refused },
            }
        })
    }

    fn io(&self, source: io::Error) -> Error {
        Error::Io { path: self.path.clone(), source }
    }
}

/// What there is to say of bytes of which the system said that they did not reach the disk, and says no more.
pub(super) fn lost() -> io::Error {
    io::Error::other(
        "bytes of it did not reach the disk when it was synced before; write it again, on a disk that is sound",
    )
}

/// Locks a file of ours. Whoever looks at it just then has it for a moment; on a file system without locks, nobody holds it.
#[cfg(unix)]
fn hold(file: &fs::File) {
    for _ in 0..MOST_LOCKS {
        match file.try_lock() {
            Err(TryLockError::WouldBlock) => std::thread::sleep(Duration::from_millis(1)),
            _ => return,
        }
    }
}

/// Temporary files with this beginning that no process holds, in the order of their names; `own` is none of them.
#[cfg(unix)]
fn left_behind(folder: &Path, prefix: &str, own: &Path) -> Vec<PathBuf> {
    // Shared by all who look. What is gone by now has got its name, or was removed by its writer.
    let is_free = |path: &PathBuf| {
        fs::File::open(path).is_ok_and(|file| file.try_lock_shared().is_ok() && fs::symlink_metadata(path).is_ok())
    };
    let is_one = |entry: &fs::DirEntry| {
        let name = entry.file_name();
        let name = name.to_string_lossy();
        let random = name.strip_prefix(prefix).and_then(|rest| rest.strip_suffix(".tmp"));
        random.is_some_and(|random| random.len() == 6 && random.bytes().all(|b| b.is_ascii_alphanumeric()))
            && entry.file_type().is_ok_and(|kind| kind.is_file())
            && Some(&*name) != own.file_name().map(|own| own.to_string_lossy()).as_deref()
    };
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(io::Result::ok);
    let mut found: Vec<_> = entries.filter(is_one).map(|entry| entry.path()).filter(is_free).collect();
    if !found.is_empty() {
        // One that was made just now is not held yet.
        std::thread::sleep(YOUNG);
        found.retain(is_free);
    }
    found.sort_unstable();
    found
}

#[cfg(not(unix))]
fn left_behind(_folder: &Path, _prefix: &str, _own: &Path) -> Vec<PathBuf> {
    Vec::new()
}

/// Another name for a whole file, as far as it can have one: what is called as a temporary one is taken for what a killed process left.
fn told_apart(temporary: PathBuf) -> PathBuf {
    let whole = temporary.with_extension("whole");
    // Nothing is replaced: the name is as random as the other.
    if fs::rename(&temporary, &whole).is_ok() { whole } else { temporary }
}

/// What the system says of a name that it does not give to what is whole, and where that is. `is_there`: unless somebody removed it.
pub(super) fn unnamed(path: &Path, refused: &io::Error, place: &Path, is_there: bool) -> Error {
    let what_is_left = match is_there {
        true => whole_in(place),
        false => {
            format!(
                "what was written is no more in {}: it was removed or moved meanwhile; write it again",
                place.display()
            )
        }
    };
    let message = format!("cannot be given its name: {refused}; {what_is_left}");
    // Of no kind: the remedies of kinds are not those of it.
    Error::Io { path: path.to_path_buf(), source: io::Error::other(message) }
}

/// The remedy where something whole has not got its name.
pub(super) fn whole_in(place: &Path) -> String {
    format!("what was written is whole in {}: give it a name that is free", place.display())
}

/// Refuses an output whose folder is not there.
pub(super) fn require_folder(path: &Path, folder: &Path) -> Result<()> {
    if folder.is_dir() {
        return Ok(());
    }
    match folder.ancestors().find(|part| part.exists()).filter(|part| !part.is_dir()) {
        Some(file) => {
            let reason = format!("cannot be in {}, which is a file", file.display());
            Err(refuse_file(path, reason, "give a name in a folder"))
        }
        None => {
            let reason = format!("there is no folder {}", folder.display());
            Err(refuse_file(path, reason, "make it first, or give another name"))
        }
    }
}

/// Where a name leads: itself, if it is no link. Its last part need not exist.
pub(super) fn follow_links(path: &Path) -> Result<PathBuf> {
    let mut target = path.to_path_buf();
    for _ in 0..MOST_LINKS {
        // `/dev/stdout` and `/dev/fd/N` lead through it: what is open there has no name that a file could be given.
        if folder_of(&target).canonicalize().is_ok_and(|folder| folder.starts_with("/proc")) {
            let reason = "leads into /proc, where no file can be made";
            return Err(refuse_file(path, reason, "give the name of a file on a disk"));
        }
        match fs::read_link(&target) {
            // An absolute target takes the place of the folder.
            Ok(next) => target = target.parent().unwrap_or(Path::new("")).join(next),
            Err(_) => return Ok(target),
        }
    }
    let reason = format!("too many links: more than {MOST_LINKS}, or a circle");
    Err(refuse_file(path, reason, "give the name of the file itself"))
}

/// The folder that a name is in.
pub(super) fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    /// (The second time, of which the system says nothing, it was whole.)
    #[test]
    fn bytes_that_did_not_reach_the_disk_are_not_forgotten() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("out");
        let mut output = OutputFile::create(&path).unwrap();
        output.write(b"bytes").unwrap();
        let (good, temporary) = output.file.into_parts();
        // A device has nothing to sync, and says so.
        output.file = NamedTempFile::from_parts(fs::File::open("/dev/null").unwrap(), temporary);
        output.sync().unwrap_err();
        let (_, temporary) = output.file.into_parts();
        output.file = NamedTempFile::from_parts(good, temporary);
        for error in [output.sync().unwrap_err(), output.finish().unwrap_err()] {
            let error = error.to_string();
            assert!(error.contains("out") && error.contains("did not reach the disk"), "{error}");
        }
        assert!(!path.exists());
    }

    #[test]
    fn a_file_that_may_not_be_written_is_named_with_what_to_do() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("kept");
        fs::write(&path, b"bytes").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o444)).unwrap();
        if OpenOptions::new().write(true).open(&path).is_ok() {
            return println!("skipped: root may write to any file");
        }
        let error = OutputFile::create(&path).err().unwrap();
        assert!(matches!(error, Error::File { .. }), "{error:?}");
        let error = error.to_string();
        assert!(["kept", "may not be written", "another name"].iter().all(|word| error.contains(word)), "{error}");
        assert_eq!(fs::read(&path).unwrap(), b"bytes");
    }
}
