//! Where NVIDIA's libraries are found at run time, and how a missing one is told.
//!
//! Order: the file named by an environment variable (and nothing else then), a library that this process has already, the
//! loader's own search by versioned name, `CUDA_HOME` and `CUDA_PATH`, `/usr/local/cuda`, and Python packages.

use std::collections::HashSet;
use std::ffi::OsStr;
use std::fmt;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// One thing to try.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Candidate {
    /// A library of this name that is loaded already.
    Resident(&'static str),
    /// A name for the system's loader.
    Name(String),
    /// A file.
    File(PathBuf),
}

impl fmt::Display for Candidate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Resident(name) => write!(f, "{name}, already loaded"),
            Self::Name(name) => write!(f, "{name}, found by the system's loader"),
            Self::File(path) => write!(f, "{}", path.display()),
        }
    }
}

/// How one library is looked for.
pub(crate) struct Search {
    /// What people call it.
    pub(crate) library: &'static str,
    /// The environment variable that names its file.
    pub(crate) variable: &'static str,
    /// File names, the preferred one first.
    pub(crate) names: &'static [&'static str],
    /// Its folders under `site-packages/nvidia`.
    pub(crate) wheels: &'static [&'static str],
    pub(crate) remedy: &'static str,
}

/// cuBLASLt.
pub(crate) const CUBLASLT: Search = Search {
    library: "cuBLASLt",
    variable: "SCALED_GEMM_CUBLASLT",
    names: if cfg!(windows) {
        &["cublasLt64_13.dll", "cublasLt64_12.dll"]
    } else {
        &["libcublasLt.so.13", "libcublasLt.so.12"]
    },
    wheels: &["cu13/lib", "cublas/lib"],
    remedy: "install CUDA 12.4 or newer, `pip install nvidia-cublas`, or name the file in SCALED_GEMM_CUBLASLT",
};

impl Search {
    /// Tries one place after another, and says what opened and where it was.
    pub(crate) fn find<T>(
        &self,
        mut open: impl FnMut(&Candidate) -> std::result::Result<T, String>,
    ) -> Result<(T, String)> {
        let fail = |reason| Error::Library { library: self.library.into(), reason, remedy: self.remedy.into() };
        if let Some(file) = std::env::var_os(self.variable).filter(|file| !file.is_empty()) {
            let candidate = Candidate::File(file.into());
            return match open(&candidate) {
                Ok(opened) => Ok((opened, format!("named by {}", self.variable))),
                Err(reason) => Err(fail(format!("{} = {candidate} does not load: {reason}", self.variable))),
            };
        }
        let mut failures = Vec::new();
        for candidate in self.candidates() {
            match open(&candidate) {
                Ok(opened) => return Ok((opened, candidate.to_string())),
                Err(reason) if matches!(candidate, Candidate::File(_)) => failures.push(reason),
                Err(_) => {}
            }
        }
        let broken = failures.first().map(|reason| format!(" ({reason})")).unwrap_or_default();
        Err(fail(format!("{} not found{broken}", self.names.join(" and "))))
    }

    fn candidates(&self) -> Vec<Candidate> {
        let mut list: Vec<_> = self.names.iter().map(|name| Candidate::Resident(name)).collect();
        list.extend(self.names.iter().map(|name| Candidate::Name(name.to_string())));
        let folders = toolkit_folders().into_iter().chain(self.wheel_folders(&site_packages()));
        let files = folders.flat_map(|folder| self.names.iter().map(move |name| folder.join(name)));
        list.extend(files.filter(|file| file.is_file()).map(Candidate::File));
        list
    }

    fn wheel_folders(&self, sites: &[PathBuf]) -> Vec<PathBuf> {
        let under =
            |site: &PathBuf| self.wheels.iter().map(|wheel| site.join("nvidia").join(wheel)).collect::<Vec<_>>();
        sites.iter().flat_map(under).collect()
    }
}

/// Library folders of CUDA toolkits, the user's choice first.
fn toolkit_folders() -> Vec<PathBuf> {
    let named = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(std::env::var_os).map(PathBuf::from);
    let roots = named.chain([PathBuf::from("/usr/local/cuda")]);
    roots.flat_map(|root| ["lib64", "lib", "targets/x86_64-linux/lib", "bin"].map(|sub| root.join(sub))).collect()
}

/// Folders where Python packages lie: of the active environment, of each `python` on the PATH, of the user, of the system.
fn site_packages() -> Vec<PathBuf> {
    let variable = |name| std::env::var_os(name).map(PathBuf::from);
    let mut roots: Vec<PathBuf> = ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(variable).collect();
    let path = std::env::var_os("PATH").unwrap_or_default();
    roots.extend(std::env::split_paths(&path).filter_map(|bin| bin.parent().map(Path::to_path_buf)));
    roots.extend(variable("HOME").map(|home| home.join(".local")));
    roots.extend(["/usr", "/usr/local"].map(PathBuf::from));
    let mut seen = HashSet::new();
    roots.retain(|root| seen.insert(root.clone()));
    roots.iter().flat_map(|root| sites_under(root)).collect()
}

/// `ROOT/lib/python3*/{site,dist}-packages`, the newest Python first.
fn sites_under(root: &Path) -> Vec<PathBuf> {
    let Ok(entries) = root.join("lib").read_dir() else { return Vec::new() };
    let is_python = |name: &OsStr| name.to_str().is_some_and(|name| name.starts_with("python3"));
    let entries = entries.filter_map(|entry| entry.ok());
    let mut pythons: Vec<_> = entries.filter(|e| is_python(&e.file_name())).map(|e| e.path()).collect();
    pythons.sort();
    pythons.reverse();
    pythons.iter().flat_map(|python| ["site-packages", "dist-packages"].map(|sub| python.join(sub))).collect()
}

/// The file that the code at `address` comes from, where the system tells (Linux).
pub(crate) fn file_of_address(address: usize) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    mapped_files(&maps).find(|(range, _)| range.contains(&address)).map(|(_, file)| file.to_path_buf())
}

/// The file loaded under a name that starts with `name`, where the system tells (Linux).
pub(crate) fn file_of_name(name: &str) -> Option<PathBuf> {
    let maps = std::fs::read_to_string("/proc/self/maps").ok()?;
    let is_named = |file: &Path| file.file_name().and_then(OsStr::to_str).is_some_and(|file| file.starts_with(name));
    mapped_files(&maps).find(|(_, file)| is_named(file)).map(|(_, file)| file.to_path_buf())
}

/// Address ranges and files of lines such as `7f00-7f80 r-xp 00001000 08:01 42   /usr/lib/libm.so.6`.
fn mapped_files(maps: &str) -> impl Iterator<Item = (std::ops::Range<usize>, &Path)> {
    maps.lines().filter_map(|line| {
        let (range, _) = line.split_once(' ')?;
        let (from, until) = range.split_once('-')?;
        let file = Path::new(&line[line.find('/')?..]);
        Some((usize::from_str_radix(from, 16).ok()?..usize::from_str_radix(until, 16).ok()?, file))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn maps_are_read() {
        let maps = "55d0-55e0 r-xp 00000000 08:01 12 /usr/bin/prog\n\
                    7f00-7f80 r-xp 00001000 08:01 42                 /opt/with space/libcublasLt.so.13.1.0.3\n\
                    7ffc-7ffd rw-p 00000000 00:00 0                  [stack]\n\
                    garbage";
        let found = |address: usize| {
            mapped_files(maps).find(|(range, _)| range.contains(&address)).map(|(_, file)| file.to_path_buf())
        };
        assert_eq!(found(0x7f10), Some("/opt/with space/libcublasLt.so.13.1.0.3".into()));
        assert_eq!(found(0x55df), Some("/usr/bin/prog".into()));
        assert_eq!(found(0x55e0), None);
        assert_eq!(found(0x7ffc), None);
    }

    #[test]
    fn this_very_code_has_a_file() {
        let file = file_of_address(this_very_code_has_a_file as *const () as usize);
        if cfg!(target_os = "linux") {
            assert_eq!(file, std::env::current_exe().ok());
        }
    }

    #[test]
    fn loaded_libraries_come_first_and_13_before_12() {
        let candidates = CUBLASLT.candidates();
        let shown: Vec<_> = candidates.iter().take(4).map(ToString::to_string).collect();
        assert_eq!(shown[0], format!("{}, already loaded", CUBLASLT.names[0]));
        assert_eq!(shown[1], format!("{}, already loaded", CUBLASLT.names[1]));
        assert!(shown[2].starts_with(CUBLASLT.names[0]) && shown[3].starts_with(CUBLASLT.names[1]), "{shown:?}");
    }

    #[test]
    fn python_packages_are_found_newest_first() {
        let root = std::env::temp_dir().join(format!("scaled-gemm-sites-{}", std::process::id()));
        for python in ["python3.9", "python3.12", "perl5"] {
            std::fs::create_dir_all(root.join("lib").join(python).join("site-packages")).expect("a temporary folder");
        }
        let sites = sites_under(&root);
        std::fs::remove_dir_all(&root).expect("our own folder");
        let site = |python: &str| root.join("lib").join(python).join("site-packages");
        assert!(sites.contains(&site("python3.9")) && sites.contains(&site("python3.12")));
        assert!(!sites.iter().any(|path| path.starts_with(root.join("lib/perl5"))));
        let folders = CUBLASLT.wheel_folders(&[site("python3.12")]);
        assert_eq!(folders[0], site("python3.12").join("nvidia/cu13/lib"));
        assert_eq!(folders[1], site("python3.12").join("nvidia/cublas/lib"));
    }

    #[test]
    fn a_library_that_is_nowhere_is_an_error_with_a_remedy() {
        const NOWHERE: Search = Search {
            library: "nowhere",
            variable: "SCALED_GEMM_NO_SUCH_VARIABLE",
            names: &["libnowhere.so.13"],
            wheels: &[],
            remedy: "nothing helps",
        };
        let error = NOWHERE.find(|_| Err::<(), String>("no".into())).unwrap_err().to_string();
        assert_eq!(error, "nowhere: libnowhere.so.13 not found; nothing helps");
        let (_, found_by) = NOWHERE.find(|c| matches!(c, Candidate::Name(_)).then_some(()).ok_or("no".into())).unwrap();
        assert_eq!(found_by, "libnowhere.so.13, found by the system's loader");
    }
}
