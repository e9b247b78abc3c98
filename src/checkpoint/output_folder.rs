//! [`OutputFolder`]: a folder that appears under its name whole or not at all.

use std::fs::{self, File, OpenOptions, TryLockError};
use std::io::{self, ErrorKind, Write};
use std::path::{Path, PathBuf};

use super::output::{folder_of, follow_links, require_folder, unnamed, whole_in};
use super::source::{file_kind, refuse_file};
use crate::error::{Error, Result};

/// Marks a folder as one that is being written. Whoever writes it holds the lock of this file, which ends with the process. It is empty
/// until the folder is whole.
pub(super) const MARK: &str = ".scaled-gemm-is-writing";

/// True for the mark of a folder that is whole, which could not be removed or whose folder could not be given its name: it says so.
pub(super) fn is_of_whole(mark: &fs::Metadata) -> bool {
    mark.is_file() && mark.len() > 0
}

/// A folder being written: a hidden one beside its target, `.NAME.partial`, which takes the target's name in
/// [`OutputFolder::finish`].
///
/// Dropped before that, it is removed. One that a killed process left behind is taken by the next that writes the same target,
/// and emptied: [`OutputFolder::starts_over`].
#[derive(Debug)]
pub struct OutputFolder {
    /// As the caller named it.
    path: PathBuf,
    /// Where its links lead.
    target: PathBuf,
    partial: PathBuf,
    starts_over: bool,
    /// Locked until the folder has its name.
    mark: Option<File>,
}

/// How often a folder is emptied anew which its writer goes on filling meanwhile.
const MOST_ROUNDS: usize = 1000;

/// Removes an [`OutputFolder`] while another thread writes it: what a handler of signals keeps, from [`OutputFolder::removal`].
#[derive(Debug)]
pub struct FolderRemoval {
    partial: PathBuf,
    mark: File,
}

impl FolderRemoval {
    /// [`OutputFolder::temporary`] of its folder.
    pub fn temporary(&self) -> &Path {
        &self.partial
    }

    /// Removes the folder with all that is in it, its mark last: whatever ends the process meanwhile, the next run takes what is left.
    /// Leaves everything as it is where the mark is gone, as in a folder that is whole, and where it is that of another process.
    ///
    /// Not to be called while [`OutputFolder::finish`] runs.
    ///
    /// # Errors
    /// What the system says if it does not remove something, or if there is no end to what is written. The next run takes what is left
    /// then: a folder with its mark, or an empty one.
    pub fn remove(&self) -> io::Result<()> {
        remove_marked(&self.partial, &self.mark)
    }
}

impl OutputFolder {
    /// Starts a folder that will be `path`. Whether it may be written is found out here, before the work for it is done.
    ///
    /// # Errors
    /// [`Error::File`] if `path` is there and no empty folder, if the folder around it is not there or may not be written to, or if
    /// another process is writing it; [`Error::Io`] if the system refuses, or fails.
    pub fn create(path: impl AsRef<Path>) -> Result<Self> {
        let place = Place::of(path.as_ref())?;
        let Place { path, target, partial } = place;
        let io = |source| Error::Io { path: path.clone(), source };
        let starts_over = match fs::create_dir(&partial) {
            Ok(()) => false,
            Err(e) if e.kind() == ErrorKind::AlreadyExists => true,
            Err(e) if matches!(e.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {
                return Err(refuse_around(&path, &target, e.kind()));
            }
            Err(e) => return Err(io(e)),
        };
        let mark = lock(&path, &partial, starts_over)?;
        let folder = Self { path, target, partial, starts_over, mark: Some(mark) };
        if starts_over {
            // What an earlier process left.
            empty(&folder.partial).map_err(|source| Error::Io { path: folder.partial.clone(), source })?;
        }
        Ok(folder)
    }

    /// Refuses what [`OutputFolder::create`] refuses, and leaves everything as it is.
    ///
    /// # Errors
    /// As [`OutputFolder::create`].
    pub fn check(path: impl AsRef<Path>) -> Result<()> {
        let Place { path, target, partial } = Place::of(path.as_ref())?;
        if partial.exists() {
            refuse_foreign(&path, &partial)?;
            let mark = OpenOptions::new().write(true).open(partial.join(MARK));
            return mark.map_or(Ok(()), |mark| take(&path, &partial, &mark));
        }
        // Asked of the system: what permissions say is not all that it goes by.
        match tempfile::Builder::new().prefix(".").suffix(".partial").tempdir_in(folder_of(&target)) {
            Ok(_) => Ok(()),
            Err(e) if matches!(e.kind(), ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem) => {
                Err(refuse_around(&path, &target, e.kind()))
            }
            Err(e) => Err(Error::Io { path, source: e.kind().into() }),
        }
    }

    /// The name it was created for.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Where its files are until [`OutputFolder::finish`]. A handler of signals removes it by [`OutputFolder::removal`].
    pub fn temporary(&self) -> &Path {
        &self.partial
    }

    /// What removes it from another thread. Kept no longer than the folder is written: the folder counts as being written until then.
    ///
    /// # Errors
    /// [`Error::Io`] if the system opens no more files.
    pub fn removal(&self) -> Result<FolderRemoval> {
        let io = |source| Error::Io { path: self.path.clone(), source };
        let mark = self.mark.as_ref().map(File::try_clone).unwrap_or_else(|| Err(ErrorKind::NotFound.into()));
        Ok(FolderRemoval { partial: self.partial.clone(), mark: mark.map_err(io)? })
    }

    /// Where the files of a folder `path` would be until it is whole. Nothing else may be there.
    ///
    /// # Errors
    /// [`Error::File`] if no new folder can have that name; [`Error::Io`].
    pub fn temporary_of(path: impl AsRef<Path>) -> Result<PathBuf> {
        Place::of(path.as_ref()).map(|place| place.partial)
    }

    /// True if a process that was killed had begun to write this folder; what it left is gone.
    pub fn starts_over(&self) -> bool {
        self.starts_over
    }

    /// A new file of the folder.
    ///
    /// # Errors
    /// [`Error::File`] if `name` is no name of a file; [`Error::Io`], also if it is there.
    pub(super) fn file(&self, name: &str) -> Result<File> {
        let path = self.place(name)?;
        let made = OpenOptions::new().read(true).write(true).create_new(true).open(path);
        made.map_err(|source| self.io(name, source))
    }

    /// A file of the folder that [`OutputFolder::file`] made.
    pub(super) fn reopen(&self, name: &str) -> Result<File> {
        let opened = OpenOptions::new().read(true).write(true).open(self.place(name)?);
        opened.map_err(|source| self.io(name, source))
    }

    /// Writes a whole file.
    ///
    /// # Errors
    /// [`Error::File`] if `name` is no name of a file; [`Error::Io`], also if it is there.
    pub fn write(&self, name: &str, bytes: &[u8]) -> Result<()> {
        let mut file = self.file(name)?;
        file.write_all(bytes).and_then(|()| file.sync_all()).map_err(|source| self.io(name, source))
    }

    /// Copies a file into the folder, under its name. Links are followed.
    ///
    /// # Errors
    /// [`Error::File`] if it has no name; [`Error::Io`].
    pub fn copy(&self, from: &Path) -> Result<()> {
        let Some(name) = from.file_name() else {
            return Err(refuse_file(from, "has no name", "copy files only"));
        };
        let to = self.partial.join(name);
        let copied = fs::copy(from, &to).and_then(|_| File::open(&to)?.sync_all());
        copied.map_err(|source| Error::Io { path: from.to_path_buf(), source })
    }

    /// Gives the folder its name, after its bytes have reached the disk.
    ///
    /// # Errors
    /// [`Error::File`] if somebody else has made a file or a folder of that name meanwhile; [`Error::Io`], also if the system does not give
    /// it the name for another reason: in both cases what was written stays, under the name that the error says. [`Error::File`] too if
    /// it was removed while it was written, and another process writes it anew: that one's is left as it is.
    pub fn finish(mut self) -> Result<()> {
        // Hours of work may be in it: it stays from here on, whatever the system says, and ours until it has its name.
        let mut held = self.mark.take();
        if held.as_ref().is_some_and(|mark| is_of_another(&self.partial, mark)) {
            return Err(in_use(&self.path));
        }
        // By what is open: whoever meets a mark that cannot be removed is told by it. No right to the folder is asked for.
        let told = held.as_mut().map_or(Ok(()), |mark| mark.write_all(b"whole\n").and_then(|()| mark.sync_all()));
        let unmarked = match fs::remove_file(self.partial.join(MARK)) {
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
            Err(e) if told.is_err() => Err(io::Error::other(format!(
                "{e}; nor can it be marked as whole, and the next run that writes {} empties it",
                self.path.display()
            ))),
            done => done,
        };
        unmarked.and_then(|()| sync_folder(&self.partial)).map_err(|e| self.unnamed(&e))?;
        self.rename().map_err(|e| match e.kind() {
            ErrorKind::DirectoryNotEmpty | ErrorKind::NotADirectory | ErrorKind::AlreadyExists
                if self.partial.is_dir() =>
            {
                let reason = "was made by somebody else while it was being written";
                refuse_file(&self.path, reason, whole_in(&self.partial))
            }
            _ => self.unnamed(&e),
        })?;
        sync_folder(folder_of(&self.target)).map_err(|source| Error::Io { path: self.path.clone(), source })
    }

    /// An empty folder of that name is replaced.
    fn rename(&self) -> io::Result<()> {
        if cfg!(windows) && self.target.is_dir() {
            fs::remove_dir(&self.target)?;
        }
        fs::rename(&self.partial, &self.target)
    }

    /// What the system says of a folder that has not got its name.
    fn unnamed(&self, refused: &io::Error) -> Error {
        unnamed(&self.path, refused, &self.partial, self.partial.is_dir())
    }

    fn place(&self, name: &str) -> Result<PathBuf> {
        let mut parts = Path::new(name).components();
        match (parts.next(), parts.next()) {
            (Some(std::path::Component::Normal(only)), None) if only == name && !name.contains('\0') => {
                Ok(self.partial.join(name))
            }
            _ => Err(refuse_file(&self.path.join(name), "is no name of a file", "give a name without folders")),
        }
    }

    pub(super) fn io(&self, name: &str, source: io::Error) -> Error {
        Error::Io { path: self.path.join(name), source }
    }
}

/// Where a folder will be, and where it is until then.
struct Place {
    path: PathBuf,
    target: PathBuf,
    partial: PathBuf,
}

impl Place {
    /// Refuses names that no new folder can have.
    fn of(path: &Path) -> Result<Self> {
        let path = path.to_path_buf();
        let io = |source| Error::Io { path: path.clone(), source };
        // Without the end of `x/.`, which is no name to rename to.
        let target = follow_links(&path.components().collect::<PathBuf>())?;
        match fs::read_dir(&target) {
            Ok(mut entries) => {
                if is_mount(&target) {
                    let reason = "is a place where a file system is mounted, which cannot be given to a new folder";
                    return Err(refuse_file(&path, reason, "give the name of a new folder in it"));
                }
                if entries.next().is_some() {
                    let reason = "is there, and not empty";
                    return Err(refuse_file(&path, reason, "give the name of a new folder, or of an empty one"));
                }
            }
            Err(_) if target.exists() => {
                let kind = fs::metadata(&target).map_err(io)?.file_type();
                let what = if kind.is_file() { "a file" } else { file_kind(kind) };
                return Err(refuse_file(&path, format!("is {what}"), "give the name of a new folder"));
            }
            Err(e) if matches!(e.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {}
            Err(e) => return Err(io(e)),
        }
        let around = folder_of(&target);
        require_folder(&path, around)?;
        // `..` has no name, and a folder cannot take that of one it is in.
        let Some(name) = target.file_name() else {
            return Err(refuse_file(&path, "has no name of its own", "give the name of a new folder"));
        };
        let mut partial = std::ffi::OsString::from(".");
        partial.push(name);
        partial.push(".partial");
        let partial = around.join(partial);
        match fs::symlink_metadata(&partial) {
            Err(e) if e.kind() == ErrorKind::InvalidFilename => {
                let long = name.len();
                let reason = format!(
                    "has a name of {long} bytes, and until it is whole it is written as .NAME.partial, whose {} bytes are more than the \
                     file system has for a name",
                    long + ".partial".len() + 1
                );
                return Err(refuse_file(&path, reason, "give a shorter name"));
            }
            Ok(_) if !partial.is_dir() => {
                let reason = format!("cannot be written by way of {}, which is there and no folder", partial.display());
                return Err(refuse_file(&path, reason, "move it away, or give another name"));
            }
            _ => {}
        }
        Ok(Self { path, target, partial })
    }
}

fn refuse_around(path: &Path, target: &Path, kind: ErrorKind) -> Error {
    let reason = format!("no folder can be made in {}: {}", folder_of(target).display(), io::Error::from(kind));
    refuse_file(path, reason, "give a name in a folder that you may write to")
}

impl Drop for OutputFolder {
    fn drop(&mut self) {
        if let Some(mark) = &self.mark {
            // The mark is locked until this is over.
            let _ = remove_marked(&self.partial, mark);
        }
    }
}

/// Removes what a folder holds, all but the mark. What is gone by then is as good as removed: two threads may be at it.
fn empty(partial: &Path) -> io::Result<()> {
    for entry in fs::read_dir(partial)? {
        let entry = entry?;
        if entry.file_name() == MARK {
            continue;
        }
        let is_folder = entry.file_type()?.is_dir();
        gone(if is_folder { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) })?;
    }
    Ok(())
}

/// Removes a folder with this mark: see [`FolderRemoval::remove`].
fn remove_marked(partial: &Path, mark: &File) -> io::Result<()> {
    let name = partial.join(MARK);
    if !is_at(mark, &name)? {
        return Ok(());
    }
    // Its writer may make another file between the last look and the end of the folder.
    for _ in 0..MOST_ROUNDS {
        // Without the mark, another process may take the folder in a moment when it is empty.
        if is_of_another(partial, mark) {
            return Ok(());
        }
        gone(empty(partial))?;
        if is_at(mark, &name)? {
            gone(fs::remove_file(&name))?;
        }
        match gone(fs::remove_dir(partial)) {
            Err(e) if e.kind() == ErrorKind::DirectoryNotEmpty => {}
            done => return done,
        }
    }
    Err(ErrorKind::DirectoryNotEmpty.into())
}

/// What is not there need not be removed.
fn gone(removed: io::Result<()>) -> io::Result<()> {
    removed.or_else(|e| if e.kind() == ErrorKind::NotFound { Ok(()) } else { Err(e) })
}

/// True if a folder has a mark that another process made, and not this one.
fn is_of_another(partial: &Path, mark: &File) -> bool {
    let name = partial.join(MARK);
    fs::symlink_metadata(&name).is_ok_and(|found| found.is_file()) && !is_at(mark, &name).unwrap_or(true)
}

/// True for a folder whose file system is another one than that around it.
fn is_mount(folder: &Path) -> bool {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let device = |path: &Path| fs::metadata(path).map(|found| found.dev()).ok();
        device(folder) != device(folder_of(folder))
    }
    #[cfg(not(unix))]
    {
        let _ = folder;
        false
    }
}

/// The lock of a folder that is being written, which was `there` already or was made just now.
fn lock(path: &Path, partial: &Path, there: bool) -> Result<File> {
    let io = |source| Error::Io { path: partial.to_path_buf(), source };
    if there {
        refuse_foreign(path, partial)?;
    }
    let holds = || fs::read_dir(partial).map(Iterator::count);
    // In what holds something no mark is made: it was removed then by another process, which has finished, and what is there is whole.
    let is_new = !there || holds().map_err(io)? == 0;
    let name = partial.join(MARK);
    let file = OpenOptions::new().write(true).create_new(is_new).open(&name).map_err(|e| match e.kind() {
        ErrorKind::NotFound | ErrorKind::AlreadyExists => in_use(path),
        _ => io(e),
    })?;
    take(path, partial, &file)?;
    // Another may have begun and finished since.
    if is_new && holds().map_err(io)? != 1 {
        let _ = fs::remove_file(name);
        return Err(in_use(path));
    }
    Ok(file)
}

/// Refuses a folder without the mark of this crate: nobody else's is emptied.
fn refuse_foreign(path: &Path, partial: &Path) -> Result<()> {
    let io = |source| Error::Io { path: partial.to_path_buf(), source };
    if !partial.join(MARK).exists() && fs::read_dir(partial).map_err(io)?.next().is_some() {
        let reason = format!("cannot be written by way of {}, which is there and not ours", partial.display());
        return Err(refuse_file(path, reason, "move that folder away"));
    }
    Ok(())
}

/// Locks the mark of a folder. Refuses one that another process holds or has removed, and that of a whole folder.
fn take(path: &Path, partial: &Path, mark: &File) -> Result<()> {
    let io = |source| Error::Io { path: partial.to_path_buf(), source };
    match mark.try_lock() {
        Ok(()) if !is_at(mark, &partial.join(MARK)).map_err(io)? => Err(in_use(path)),
        Ok(()) if is_of_whole(&mark.metadata().map_err(io)?) => {
            let folder = partial.display();
            let reason = format!(
                "cannot be written by way of {folder}, which holds what an earlier run wrote, whole, and could not be given its name"
            );
            Err(refuse_file(
                path,
                reason,
                format!("remove {MARK} in that folder and give it a name that is free, or remove it all"),
            ))
        }
        Ok(()) => Ok(()),
        Err(TryLockError::WouldBlock) => Err(in_use(path)),
        Err(TryLockError::Error(source)) => Err(io(source)),
    }
}

fn in_use(path: &Path) -> Error {
    refuse_file(path, "is being written by another process", "wait for it, or give another name")
}

/// True if an open file has this name still. Elsewhere than on Unix it keeps that as long as it is there, and another one cannot have it.
fn is_at(file: &File, name: &Path) -> io::Result<bool> {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        let own = file.metadata()?;
        Ok(fs::symlink_metadata(name).is_ok_and(|found| (found.dev(), found.ino()) == (own.dev(), own.ino())))
    }
    #[cfg(not(unix))]
    {
        let _ = file;
        Ok(fs::symlink_metadata(name).is_ok())
    }
}

/// Names of a folder reach the disk with it, where the system knows how.
fn sync_folder(folder: &Path) -> io::Result<()> {
    if cfg!(unix) { File::open(folder)?.sync_all() } else { Ok(()) }
}
