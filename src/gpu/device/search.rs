//! Where NVIDIA's libraries are found at run time, and how a missing one is told.
//!
//! Order: the file named by an environment variable (and nothing else then), a library that this process has already, the
//! loader's own search by versioned name, `CUDA_HOME` and `CUDA_PATH`, `/usr/local/cuda`, and Python packages.

use std::collections::HashSet;
use std::ffi::{OsStr, OsString};
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

/// What a variable says instead of a file where the library is not to be looked for.
const OFF: &str = "off";

impl Search {
    /// Whether the user names a file, which must load then.
    pub(crate) fn is_named(&self) -> bool {
        std::env::var_os(self.variable).is_some_and(|file| !file.is_empty() && file != OFF)
    }

    /// Tries one place after another, and says what opened and where it was.
    pub(crate) fn find<T>(
        &self,
        mut open: impl FnMut(&Candidate) -> std::result::Result<T, String>,
    ) -> Result<(T, String)> {
        let fail = |reason| Error::Library { library: self.library.into(), reason, remedy: self.remedy.into() };
        if let Some(file) = std::env::var_os(self.variable).filter(|file| !file.is_empty()) {
            if file == OFF {
                return Err(fail(format!("{} is {OFF}", self.variable)));
            }
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
        let folders = toolkit_folders(&environment).into_iter().chain(self.wheel_folders(&site_packages(&environment)));
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

/// Looks a variable of the environment up.
type Lookup<'a> = &'a dyn Fn(&str) -> Option<OsString>;

fn environment(name: &str) -> Option<OsString> {
    std::env::var_os(name)
}

/// The folder that a variable names. Empty and relative ones would look in whatever folder the program was started in, and
/// load what anybody put there: they count as not set.
fn named_folder(variable: Lookup<'_>, name: &str) -> Option<PathBuf> {
    variable(name).map(PathBuf::from).filter(|folder| folder.is_absolute())
}

/// Library folders of CUDA toolkits, the user's choice first.
fn toolkit_folders(variable: Lookup<'_>) -> Vec<PathBuf> {
    let named = ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(|name| named_folder(variable, name));
    let roots = named.chain([PathBuf::from("/usr/local/cuda")]);
    roots.flat_map(|root| ["lib64", "lib", "targets/x86_64-linux/lib", "bin"].map(|sub| root.join(sub))).collect()
}

/// Folders where Python packages lie: of the active environment, of each `python` on the PATH, of the user, of the system.
fn site_packages(variable: Lookup<'_>) -> Vec<PathBuf> {
    python_roots(variable).iter().flat_map(|root| sites_under(root)).collect()
}

fn python_roots(variable: Lookup<'_>) -> Vec<PathBuf> {
    let mut roots: Vec<PathBuf> =
        ["VIRTUAL_ENV", "CONDA_PREFIX"].into_iter().filter_map(|name| named_folder(variable, name)).collect();
    let path = variable("PATH").unwrap_or_default();
    let bins = std::env::split_paths(&path).filter(|bin| bin.is_absolute());
    roots.extend(bins.filter_map(|bin| bin.parent().map(Path::to_path_buf)));
    roots.extend(named_folder(variable, "HOME").map(|home| home.join(".local")));
    roots.extend(["/usr", "/usr/local"].map(PathBuf::from));
    let mut seen = HashSet::new();
    roots.retain(|root| seen.insert(root.clone()));
    roots
}

/// `ROOT/lib/python3*/{site,dist}-packages`, the newest Python first: 3.12, 3.9, and then Debian's folder for all, `python3`.
fn sites_under(root: &Path) -> Vec<PathBuf> {
    let Ok(entries) = root.join("lib").read_dir() else { return Vec::new() };
    let mut pythons: Vec<(Vec<u32>, PathBuf)> = entries
        .filter_map(|entry| entry.ok())
        .filter_map(|entry| Some((python_version(entry.file_name().to_str()?)?, entry.path())))
        .collect();
    pythons.sort_by(|a, b| b.cmp(a));
    pythons.iter().flat_map(|(_, python)| ["site-packages", "dist-packages"].map(|sub| python.join(sub))).collect()
}

/// `[3, 12]` of `python3.12` and of `python3.12t`, `[3]` of `python3`, nothing of other names.
fn python_version(folder: &str) -> Option<Vec<u32>> {
    let numbers = folder.strip_prefix("python")?.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let version: Vec<u32> = numbers.split('.').map(|part| part.parse().ok()).collect::<Option<_>>()?;
    (version[0] == 3).then_some(version)
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

    /// An environment with these variables only.
    fn only<'a>(set: &'a [(&'a str, &'a str)]) -> impl Fn(&str) -> Option<OsString> + 'a {
        |name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| OsString::from(value))
    }

    #[test]
    fn the_current_folder_is_never_searched() {
        for value in ["", ".", "..", "here", "./here", "cuda/../cuda"] {
            let path = format!("{value}:/opt/python/bin::.:bin");
            let set = ["CUDA_HOME", "CUDA_PATH", "VIRTUAL_ENV", "CONDA_PREFIX", "HOME"].map(|name| (name, value));
            let set: Vec<_> = set.into_iter().chain([("PATH", path.as_str())]).collect();
            let environment = only(&set);
            let folders = toolkit_folders(&environment);
            assert!(folders.iter().all(|folder| folder.starts_with("/usr/local/cuda")), "{value:?}: {folders:?}");
            let roots = python_roots(&environment);
            assert_eq!(roots, ["/opt/python", "/usr", "/usr/local"].map(PathBuf::from), "{value:?}");
        }
    }

    #[test]
    fn folders_of_the_environment_come_first() {
        let set = [("CUDA_PATH", "/opt/b"), ("CUDA_HOME", "/opt/a"), ("VIRTUAL_ENV", "/venv"), ("HOME", "/home/her")];
        let environment = only(&set);
        let folders = toolkit_folders(&environment);
        assert_eq!(folders[0], Path::new("/opt/a/lib64"));
        assert_eq!(folders[4], Path::new("/opt/b/lib64"));
        assert_eq!(folders[8], Path::new("/usr/local/cuda/lib64"));
        assert_eq!(python_roots(&environment), ["/venv", "/home/her/.local", "/usr", "/usr/local"].map(PathBuf::from));
    }

    #[test]
    fn python_packages_are_found_newest_first() {
        let root = tempfile::tempdir().expect("a temporary folder");
        for python in ["python3.9", "python3.12", "python3", "python3.13t", "perl5", "python2.7", "python3.x"] {
            std::fs::create_dir_all(root.path().join("lib").join(python)).expect("a folder in it");
        }
        let site = |python: &str, sub: &str| root.path().join("lib").join(python).join(sub);
        let wanted: Vec<_> = ["python3.13t", "python3.12", "python3.9", "python3"]
            .iter()
            .flat_map(|python| ["site-packages", "dist-packages"].map(|sub| site(python, sub)))
            .collect();
        assert_eq!(sites_under(root.path()), wanted);
        let folders = CUBLASLT.wheel_folders(&wanted[..1]);
        assert_eq!(folders[0], wanted[0].join("nvidia/cu13/lib"));
        assert_eq!(folders[1], wanted[0].join("nvidia/cublas/lib"));
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
