//! [`OpenFiles`]: a few of many files are open. A process may have 1024, and large models have more shards.

use std::fs::File;
use std::sync::{Arc, Mutex, PoisonError};

use crate::error::Result;

/// Most files that are open at once. Tensors are read and written in the order of the files: more would be open for nothing.
const MOST: usize = 16;

/// The files that are open, of a list that the owner has.
#[derive(Debug, Default)]
pub(super) struct OpenFiles {
    /// With their places in the list; the one that was used last is the last.
    open: Mutex<Vec<(usize, Arc<File>)>>,
}

impl OpenFiles {
    /// The file at this place of the list, opened if it is not open. `close` is told which file is closed for it.
    pub(super) fn get(
        &self,
        place: usize,
        open: impl FnOnce() -> Result<File>,
        close: impl FnOnce(usize, &File) -> Result<()>,
    ) -> Result<Arc<File>> {
        let mut files = self.open.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = files.iter().position(|(which, _)| *which == place) {
            files[at..].rotate_left(1);
            return Ok(files[files.len() - 1].1.clone());
        }
        if files.len() >= MOST {
            // Whoever still reads it holds it open for so long.
            let (which, file) = files.remove(0);
            close(which, &file)?;
        }
        let file = Arc::new(open()?);
        files.push((place, file.clone()));
        Ok(file)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_file_used_longest_ago_is_closed() {
        let (files, mut opened, mut closed) = (OpenFiles::default(), Vec::new(), Vec::new());
        let folder = tempfile::tempdir().unwrap();
        let mut get = |place: usize| {
            let path = folder.path().join(place.to_string());
            let open = || {
                opened.push(place);
                Ok(File::create(path).unwrap())
            };
            let close = |which, _: &File| {
                closed.push(which);
                Ok(())
            };
            files.get(place, open, close).unwrap();
        };
        (0..MOST).for_each(&mut get);
        get(0);
        get(MOST);
        get(0);
        get(1);
        assert_eq!(opened, (0..=MOST).chain([1]).collect::<Vec<_>>());
        assert_eq!(closed, [1, 2]);
    }
}
