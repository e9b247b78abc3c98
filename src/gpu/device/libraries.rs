//! Whether the CUDA driver and NVRTC are here, asked before cudarc is: it panics without them.
//!
//! Loading a library runs its code, which is unsafe, and unsafe lives elsewhere: callers bring [`Load`].

use std::ffi::OsStr;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};
use crate::gpu::device::search::{Candidate, Search, file_of_name};

const NVRTC: Search = Search {
    library: "NVRTC",
    variable: "SCALED_GEMM_NVRTC",
    names: if cfg!(windows) {
        &["nvrtc64_130_0.dll", "nvrtc64_120_0.dll"]
    } else {
        &["libnvrtc.so.13", "libnvrtc.so.12"]
    },
    wheels: &["cu13/lib", "cuda_nvrtc/lib"],
    remedy: "install CUDA 12.4 or newer, `pip install nvidia-cuda-nvrtc`, or name the file in SCALED_GEMM_NVRTC; \
             or build scaled-gemm where nvcc is, so that the kernels are compiled beforehand",
};

/// Loads a library for the whole life of the process, or says why not.
pub(crate) type Load = fn(&Candidate) -> std::result::Result<(), String>;

/// `Err` with a remedy where there is no CUDA driver library. Ask before any call of cudarc's driver half, which panics
/// without it.
pub(crate) fn driver_available(load: Load) -> Result<()> {
    // Windows Subsystem for Linux keeps the driver outside the loader's folders.
    let beside = Candidate::File("/usr/lib/wsl/lib/libcuda.so.1".into());
    if by_name("cuda", load) || (load(&beside).is_ok() && by_name("cuda", load)) {
        return Ok(());
    }
    Err(Error::NoGpu {
        reason: "the CUDA driver library libcuda.so.1 is not on this machine".into(),
        remedy: "install NVIDIA's driver, or use the cpu".into(),
    })
}

/// Makes NVRTC loadable for cudarc, which panics without it, and says which file it is where the system tells.
pub(crate) fn nvrtc_available(load: Load) -> Result<Option<PathBuf>> {
    let is_named = std::env::var_os(NVRTC.variable).is_some_and(|file| !file.is_empty());
    if is_named || !by_name("nvrtc", load) {
        // A library stays loaded, and the loader then finds it by its own name wherever it lies.
        NVRTC.find(|candidate| match (load(candidate), by_name("nvrtc", load)) {
            (Ok(()), true) => Ok(()),
            (Ok(()), false) => Err("it loads, but not under a name that cudarc asks for".into()),
            (Err(reason), _) => Err(reason),
        })?;
    }
    let file = file_of_name("libnvrtc.so");
    if let Some(folder) = file.as_deref().and_then(Path::parent) {
        load_builtins(folder, load);
    }
    Ok(file)
}

/// NVRTC opens its builtins by bare name while it compiles, and Python's packages do not tell the loader their folder
/// (observed with 13.0). A failure here shows itself there, in NVRTC's own words.
fn load_builtins(folder: &Path, load: Load) {
    let Ok(entries) = folder.read_dir() else { return };
    let is_builtins = |name: &OsStr| name.to_str().is_some_and(|name| name.starts_with("libnvrtc-builtins.so."));
    for entry in entries.filter_map(|entry| entry.ok()).filter(|entry| is_builtins(&entry.file_name())) {
        if let Err(reason) = load(&Candidate::File(entry.path())) {
            tracing::warn!(file = %entry.path().display(), reason, "a part of NVRTC does not load");
        }
    }
}

/// Whether one of the names that cudarc will try loads. (Its own list of them is not public in a program that links CUDA.)
fn by_name(library: &str, load: Load) -> bool {
    let names = match (cfg!(windows), library) {
        (true, "cuda") => vec!["nvcuda.dll".to_string()],
        (true, _) => NVRTC.names.iter().map(ToString::to_string).collect(),
        (false, "cuda") => vec!["libcuda.so".to_string(), "libcuda.so.1".to_string()],
        (false, _) => {
            let major = cudarc::driver::sys::CUDA_VERSION / 1000;
            vec!["libnvrtc.so".to_string(), format!("libnvrtc.so.{major}"), "libnvrtc.so.12".to_string()]
        }
    };
    names.into_iter().map(Candidate::Name).any(|candidate| load(&candidate).is_ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::lt::keep_loaded;

    #[test]
    fn a_missing_driver_is_no_gpu() {
        if let Err(error) = driver_available(keep_loaded) {
            assert!(matches!(error, Error::NoGpu { .. }) && error.to_string().contains("libcuda.so.1"), "{error}");
        }
    }

    #[test]
    fn nvrtc_is_found_or_missed_with_a_remedy() {
        match nvrtc_available(keep_loaded) {
            // A second look finds the resident one.
            Ok(file) => assert_eq!(nvrtc_available(keep_loaded).ok(), Some(file)),
            Err(error) => {
                assert!(matches!(error, Error::Library { .. }), "{error}");
                assert!(error.to_string().contains("SCALED_GEMM_NVRTC"), "{error}");
            }
        }
    }
}
