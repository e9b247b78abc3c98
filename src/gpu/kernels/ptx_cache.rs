//! The folder where kernels compiled by NVRTC are kept: ours alone, and every entry is checked when it is read.
//!
//! An entry's name holds the SHA-256 of everything it was made from; its first line is the SHA-256 of the PTX behind it, which
//! finds what a full disk or a failing one left. Against people there is the folder: what lies in it runs on the GPU with
//! the rights of this process, so nobody else may write there.

use std::ffi::OsString;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::{env, fs, io};

use sha2::{Digest, Sha256};

use crate::error::Result;

/// The line above the PTX, before the 64 digits.
const HEAD: &str = "// sha256 ";

/// A folder that passed the checks.
pub(super) struct PtxCache {
    folder: PathBuf,
}

impl PtxCache {
    /// The folder that the environment names; `None` where it names none, or, with a warning, where the folder is not safe.
    pub(super) fn from_env() -> Option<Self> {
        let folder = folder(|variable| env::var_os(variable))?;
        match Self::open(&folder) {
            Ok(cache) => Some(cache),
            Err(reason) => {
                tracing::warn!(folder = %folder.display(), reason, "kernels are compiled without the cache");
                None
            }
        }
    }

    /// Makes the folder where it is missing, and refuses one that others own or enter.
    fn open(folder: &Path) -> std::result::Result<Self, String> {
        let mut builder = fs::DirBuilder::new();
        builder.recursive(true);
        #[cfg(unix)]
        std::os::unix::fs::DirBuilderExt::mode(&mut builder, 0o700);
        builder.create(folder).map_err(|e| format!("it cannot be made: {e}"))?;
        // Of the name itself: a link may point elsewhere by the time the folder is used.
        let found = fs::symlink_metadata(folder).map_err(|e| format!("it cannot be looked at: {e}"))?;
        if !found.is_dir() {
            return Err("it is a link or a file; name the folder itself in SCALED_GEMM_CACHE".into());
        }
        #[cfg(unix)]
        {
            use std::os::unix::fs::MetadataExt;
            let (owner, user) = (found.uid(), rustix::process::geteuid().as_raw());
            if owner != user {
                return Err(format!(
                    "it belongs to user {owner} and this process is user {user}; name a folder of your own in SCALED_GEMM_CACHE"
                ));
            }
            let mode = found.mode() & 0o777;
            if mode & 0o077 != 0 {
                return Err(format!(
                    "its mode is {mode:03o} and must be 700, so that nobody else can put kernels there; \
                     if nobody did, `chmod 700` it"
                ));
            }
        }
        Ok(Self { folder: folder.to_path_buf() })
    }

    /// The PTX of this name made from these `parts`, from the folder, or else from `compile`, whose result is kept.
    pub(super) fn get_or(
        &self,
        name: &str,
        parts: &[&str],
        compile: impl FnOnce() -> Result<String>,
    ) -> Result<String> {
        let path = self.folder.join(format!("{name}-{}.ptx", key(parts)));
        match fs::read(&path).map(|bytes| verified(&bytes)) {
            Ok(Some(ptx)) => return Ok(ptx),
            Ok(None) => tracing::warn!(path = %path.display(), "a damaged entry of the kernel cache: compiling again"),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(path = %path.display(), %error, "kernel cache not read"),
        }
        let ptx = compile()?;
        // A cache that cannot be written is only slower.
        if let Err(error) = self.store(&path, &ptx) {
            tracing::warn!(path = %path.display(), %error, "kernel cache not written");
        }
        Ok(ptx)
    }

    /// Written beside its place, under a name that nobody can know, and renamed: a reader never sees half a file.
    fn store(&self, path: &Path, ptx: &str) -> io::Result<()> {
        let mut file = tempfile::NamedTempFile::new_in(&self.folder)?;
        writeln!(file, "{HEAD}{}", hex(&Sha256::digest(ptx)))?;
        file.write_all(ptx.as_bytes())?;
        file.persist(path)?;
        Ok(())
    }
}

/// `SCALED_GEMM_CACHE`, else `XDG_CACHE_HOME/scaled-gemm`, else `HOME/.cache/scaled-gemm`. The last two count only as absolute
/// paths: a relative one means another folder wherever the program starts.
fn folder(variable: impl Fn(&str) -> Option<OsString>) -> Option<PathBuf> {
    let named = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let absolute = |name| named(name).filter(|path| path.is_absolute());
    named("SCALED_GEMM_CACHE")
        .or_else(|| absolute("XDG_CACHE_HOME").map(|folder| folder.join("scaled-gemm")))
        .or_else(|| absolute("HOME").map(|folder| folder.join(".cache").join("scaled-gemm")))
}

/// The SHA-256 of the parts, each behind its length, so that no two lists run together into one text.
fn key(parts: &[&str]) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update((part.len() as u64).to_le_bytes());
        hash.update(part);
    }
    hex(&hash.finalize())
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// The PTX of an entry, if it is what its first line says.
fn verified(entry: &[u8]) -> Option<String> {
    let (head, ptx) = std::str::from_utf8(entry).ok()?.split_once('\n')?;
    let whole = head.strip_prefix(HEAD)? == hex(&Sha256::digest(ptx));
    whole.then(|| ptx.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::Error;

    const PTX: &str = ".version 9.0\n.entry kernel() { ret; }\n";

    fn private(folder: &tempfile::TempDir) -> PtxCache {
        PtxCache::open(&folder.path().join("below").join("cache")).unwrap()
    }

    fn never() -> Result<String> {
        panic!("compiled although the entry is good")
    }

    fn entries(cache: &PtxCache) -> Vec<PathBuf> {
        fs::read_dir(&cache.folder).unwrap().map(|entry| entry.unwrap().path()).collect()
    }

    #[test]
    fn an_entry_is_compiled_once_for_each_key() {
        let folder = tempfile::tempdir().unwrap();
        let cache = private(&folder);
        assert_eq!(cache.get_or("nvfp4", &["source", "90a"], || Ok(PTX.into())).unwrap(), PTX);
        assert_eq!(cache.get_or("nvfp4", &["source", "90a"], never).unwrap(), PTX);
        // No temporary file is left, and another key is another entry.
        assert_eq!(entries(&cache).len(), 1);
        for parts in [["sourc", "e90a"], ["source", "90"], ["", "source90a"]] {
            assert_eq!(cache.get_or("nvfp4", &parts, || Ok("other".into())).unwrap(), "other");
        }
        assert_eq!(entries(&cache).len(), 4);
    }

    #[test]
    fn a_failed_compilation_leaves_nothing() {
        let folder = tempfile::tempdir().unwrap();
        let cache = private(&folder);
        let failed = cache.get_or("nvfp4", &["source"], || Err(Error::unsupported("this", "a test", "nothing")));
        assert!(failed.is_err() && entries(&cache).is_empty());
    }

    #[test]
    fn damaged_entries_are_compiled_again_and_mended() {
        let folder = tempfile::tempdir().unwrap();
        let cache = private(&folder);
        cache.get_or("nvfp4", &["source"], || Ok(PTX.into())).unwrap();
        let path = entries(&cache).remove(0);
        let good = fs::read(&path).unwrap();
        let cut = good[..good.len() - 3].to_vec();
        let with_nuls = [good.as_slice(), &[0, 0]].concat();
        let mut flipped = good.clone();
        flipped[HEAD.len() + 70] ^= 1;
        for bad in
            [cut, with_nuls, flipped, Vec::new(), vec![0; 4096], vec![0xFF; 99], b"// sha256 \n}".to_vec(), PTX.into()]
        {
            fs::write(&path, &bad).unwrap();
            assert_eq!(cache.get_or("nvfp4", &["source"], || Ok(PTX.into())).unwrap(), PTX);
            assert_eq!(fs::read(&path).unwrap(), good, "not mended after {:?}", String::from_utf8_lossy(&bad));
        }
        assert_eq!(cache.get_or("nvfp4", &["source"], never).unwrap(), PTX);
    }

    #[test]
    fn a_folder_in_the_place_of_an_entry_is_no_failure() {
        let folder = tempfile::tempdir().unwrap();
        let cache = private(&folder);
        fs::create_dir_all(cache.folder.join(format!("nvfp4-{}.ptx", key(&["source"]))).join("full")).unwrap();
        for _ in 0..2 {
            assert_eq!(cache.get_or("nvfp4", &["source"], || Ok(PTX.into())).unwrap(), PTX);
        }
        assert_eq!(entries(&cache).len(), 1);
    }

    #[cfg(unix)]
    #[test]
    fn only_a_folder_of_our_own_serves() {
        use std::os::unix::fs::{PermissionsExt, symlink};
        let mode = |path: &Path| fs::symlink_metadata(path).unwrap().permissions().mode() & 0o777;
        let refused =
            |path: &Path| PtxCache::open(path).err().unwrap_or_else(|| panic!("{} was taken", path.display()));
        let folder = tempfile::tempdir().unwrap();
        let own = private(&folder).folder;
        assert_eq!(mode(&own), 0o700);
        for open in [0o777, 0o755, 0o770, 0o701] {
            fs::set_permissions(&own, fs::Permissions::from_mode(open)).unwrap();
            let reason = refused(&own);
            assert!(reason.contains(&format!("{open:o}")) && reason.contains("chmod 700"), "{reason}");
            assert_eq!(mode(&own), open, "changed what is not ours to change");
        }
        fs::set_permissions(&own, fs::Permissions::from_mode(0o700)).unwrap();
        let link = folder.path().join("link");
        symlink(&own, &link).unwrap();
        assert!(refused(&link).contains("link"));
        let file = folder.path().join("file");
        fs::write(&file, "").unwrap();
        assert!(refused(&file).contains("cannot be made"));
        // /proc belongs to root, and root may not enter a folder that is somebody else's either.
        if rustix::process::geteuid().is_root() {
            let theirs = folder.path().join("theirs");
            fs::create_dir(&theirs).unwrap();
            std::os::unix::fs::chown(&theirs, Some(12345), None).unwrap();
            assert!(refused(&theirs).contains("belongs to user 12345"));
        } else {
            assert!(refused(Path::new("/proc")).contains("belongs to user 0"));
        }
    }

    #[test]
    fn the_environment_names_the_folder() {
        let found = |set: &[(&str, &str)]| {
            folder(|name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value)))
        };
        let home = ("HOME", "/home/her");
        assert_eq!(found(&[home]), Some("/home/her/.cache/scaled-gemm".into()));
        assert_eq!(found(&[home, ("XDG_CACHE_HOME", "/var/her")]), Some("/var/her/scaled-gemm".into()));
        assert_eq!(
            found(&[home, ("SCALED_GEMM_CACHE", "/kernels"), ("XDG_CACHE_HOME", "/x")]),
            Some("/kernels".into())
        );
        // Empty and relative ones are none.
        assert_eq!(
            found(&[home, ("XDG_CACHE_HOME", ""), ("SCALED_GEMM_CACHE", "")]),
            Some("/home/her/.cache/scaled-gemm".into())
        );
        assert_eq!(found(&[home, ("XDG_CACHE_HOME", "here")]), Some("/home/her/.cache/scaled-gemm".into()));
        assert_eq!(found(&[("HOME", "")]), None);
        assert_eq!(found(&[("HOME", ".")]), None);
        assert_eq!(found(&[]), None);
    }
}
