//! Folders that hold the mark of [`OutputFolder`](super::OutputFolder): they look like a model's, and their tensors may be zeros still.

use std::fs;
use std::path::Path;

use super::output::folder_of;
use super::output_folder::{MARK, is_of_whole};
use super::source::refuse_file;
use crate::error::Result;

/// Nothing tells a run that is alive from one that was killed: removing the folder comes last.
const REMEDY: &str = "wait for it if it still runs; else run the command that wrote it again, or remove the folder";

/// Refuses a folder that is being written, or that a killed run left, and what is in it: also by way of links, and under another name.
pub(super) fn refuse_unfinished(path: &Path) -> Result<()> {
    // Of a name that is not there, that is what there is to say.
    if !path.exists() {
        return Ok(());
    }
    let folder = |path: &Path| if path.is_dir() { path.to_path_buf() } else { folder_of(path).to_path_buf() };
    let folders = [Some(folder(path)), path.canonicalize().ok().as_deref().map(folder)];
    let Some(folder) = folders.into_iter().flatten().find(|folder| folder.join(MARK).exists()) else { return Ok(()) };
    // Who could not remove the mark of what was whole wrote into it.
    if fs::metadata(folder.join(MARK)).is_ok_and(|mark| is_of_whole(&mark)) {
        let reason = format!("holds the mark {MARK}, which could not be removed; what was written is whole");
        return Err(refuse_file(&folder, reason, format!("remove {MARK} from it, and it is a model's folder")));
    }
    let reason = format!("holds the mark {MARK}: the run that wrote it did not finish, or has not yet");
    Err(refuse_file(&folder, reason, REMEDY))
}

/// Refuses the same of shards, and of an index, that are links: the folder that holds the links need not be the one that is written.
pub(super) fn refuse_links<'a>(mut paths: impl Iterator<Item = &'a Path>) -> Result<()> {
    paths.try_for_each(|path| if path.is_symlink() { refuse_unfinished(path) } else { Ok(()) })
}
