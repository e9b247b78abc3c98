//! Whether the CUDA driver and NVRTC are here, asked before cudarc is: it panics without them.
//!
//! Loading a library runs its code: callers bring the function that does it, a [`Load`], from where such calls are allowed.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::OnceLock;

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

/// Every function of the driver that this crate calls, itself or through cudarc, which looks each up at its first call and
/// panics without it. All are in the driver of CUDA 12.4.
const DRIVER_FUNCTIONS: [&str; 54] = [
    "cuInit",
    "cuDriverGetVersion",
    "cuGetErrorName",
    "cuGetErrorString",
    "cuDeviceGet",
    "cuDeviceGetAttribute",
    "cuDeviceGetCount",
    "cuDeviceGetName",
    "cuDeviceTotalMem_v2",
    "cuDevicePrimaryCtxRelease_v2",
    "cuDevicePrimaryCtxRetain",
    "cuCtxGetCurrent",
    "cuCtxSetCurrent",
    "cuCtxSynchronize",
    "cuEventCreate",
    "cuEventDestroy_v2",
    "cuEventQuery",
    "cuEventRecord",
    "cuEventSynchronize",
    "cuFuncGetAttribute",
    "cuFuncSetAttribute",
    "cuGraphDestroy",
    "cuGraphExecDestroy",
    "cuGraphInstantiateWithFlags",
    "cuGraphLaunch",
    "cuGraphUpload",
    "cuLaunchKernelEx",
    "cuMemAllocAsync",
    "cuMemAlloc_v2",
    "cuMemFreeAsync",
    "cuMemFree_v2",
    "cuMemGetInfo_v2",
    "cuMemcpy2DAsync_v2",
    "cuMemcpyDtoDAsync_v2",
    "cuMemcpyDtoHAsync_v2",
    "cuMemcpyHtoDAsync_v2",
    "cuMemsetD2D8Async",
    "cuMemsetD8Async",
    "cuModuleGetFunction",
    "cuModuleLoadData",
    "cuModuleUnload",
    "cuPointerGetAttributes",
    "cuStreamBeginCapture_v2",
    "cuStreamCreate",
    "cuStreamCreateWithPriority",
    "cuStreamDestroy_v2",
    "cuStreamEndCapture",
    "cuStreamGetPriority",
    "cuStreamIsCapturing",
    "cuStreamSynchronize",
    "cuStreamWaitEvent",
    "cuTensorMapEncodeTiled",
    "cuThreadExchangeStreamCaptureMode",
    "cuGetProcAddress_v2",
];

/// What cudarc, as it was built, reads times of events with. The second is in drivers of CUDA 12.8 and newer only.
const TIMING_FUNCTIONS: [&str; 1] =
    [if cudarc::driver::sys::CUDA_VERSION < 13000 { "cuEventElapsedTime" } else { "cuEventElapsedTime_v2" }];

/// Loads a library for the whole life of the process, or says why not; gives the first of these functions that it lacks.
pub(crate) type Load = fn(&Candidate, &[&'static str]) -> std::result::Result<Option<&'static str>, String>;

/// `Err` with a remedy where there is no CUDA driver library that has what is called of it. Ask before any call of cudarc's
/// driver half, which panics without it.
pub(crate) fn driver_available(load: Load) -> Result<()> {
    static FOUND: OnceLock<()> = OnceLock::new();
    if FOUND.get().is_none() {
        require_in_driver(&DRIVER_FUNCTIONS, "driver of CUDA 12.4 or newer", load)?;
        FOUND.get_or_init(|| ());
    }
    Ok(())
}

/// The same for what times are read with.
pub(crate) fn timing_available(load: Load) -> Result<()> {
    static FOUND: OnceLock<()> = OnceLock::new();
    if FOUND.get().is_none() {
        require_in_driver(&TIMING_FUNCTIONS, "driver of CUDA 12.8 or newer, which times are read with", load)?;
        FOUND.get_or_init(|| ());
    }
    Ok(())
}

fn require_in_driver(functions: &[&'static str], needed: &str, load: Load) -> Result<()> {
    let no_gpu = |reason: String| Error::NoGpu { reason, remedy: "install NVIDIA's driver, or use the cpu".into() };
    // The first that loads is the one that cudarc will take.
    let first = || {
        let mut refused = None;
        for name in names_of("cuda") {
            match load(&Candidate::Name(name.clone()), functions) {
                Ok(lacking) => return Ok(lacking),
                // The loader blames the name itself where no file has it, and another one where a part is missing.
                Err(reason) if reason.contains(&format!("{name}: cannot open shared object file: No such file")) => {}
                Err(reason) => refused = refused.or(Some(reason)),
            }
        }
        Err(refused)
    };
    // Windows Subsystem for Linux keeps the driver outside the loader's folders.
    let beside = Candidate::File("/usr/lib/wsl/lib/libcuda.so.1".into());
    let found = first().or_else(|refused| if load(&beside, &[]).is_ok() { first() } else { Err(refused) });
    match found {
        Ok(None) => Ok(()),
        Ok(Some(function)) => {
            let file = file_of_name("libcuda.so").map_or_else(String::new, |file| format!(" {}", file.display()));
            Err(Error::Library {
                library: format!("the CUDA driver library{file}"),
                reason: format!("it lacks the function {function}"),
                remedy: format!("install NVIDIA's {needed}, take a stand-in out of LD_LIBRARY_PATH, or use the cpu"),
            })
        }
        Err(None) => Err(no_gpu("the CUDA driver library libcuda.so.1 is not on this machine".into())),
        Err(Some(reason)) => Err(no_gpu(format!("the CUDA driver library does not load: {reason}"))),
    }
}

/// Makes NVRTC loadable for cudarc, which panics without it, and says which file it is where the system tells.
pub(crate) fn nvrtc_available(load: Load) -> Result<Option<PathBuf>> {
    let is_named = std::env::var_os(NVRTC.variable).is_some_and(|file| !file.is_empty());
    if is_named || !by_name("nvrtc", load) {
        // A library stays loaded, and the loader then finds it by its own name wherever it lies.
        NVRTC.find(|candidate| match (load(candidate, &[]), by_name("nvrtc", load)) {
            (Ok(_), true) => Ok(()),
            (Ok(_), false) => Err("it loads, but not under a name that cudarc asks for".into()),
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
        if let Err(reason) = load(&Candidate::File(entry.path()), &[]) {
            tracing::warn!(file = %entry.path().display(), reason, "a part of NVRTC does not load");
        }
    }
}

/// Whether one of the names that cudarc will try loads.
fn by_name(library: &str, load: Load) -> bool {
    names_of(library).into_iter().map(Candidate::Name).any(|candidate| load(&candidate, &[]).is_ok())
}

/// The names that cudarc will try, in its order. (Its own list of them is not public in a program that links CUDA.)
fn names_of(library: &str) -> Vec<String> {
    match (cfg!(windows), library) {
        (true, "cuda") => vec!["nvcuda.dll".to_string()],
        (true, _) => NVRTC.names.iter().map(ToString::to_string).collect(),
        (false, "cuda") => vec!["libcuda.so".to_string(), "libcuda.so.1".to_string()],
        (false, _) => {
            let major = cudarc::driver::sys::CUDA_VERSION / 1000;
            vec!["libnvrtc.so".to_string(), format!("libnvrtc.so.{major}"), "libnvrtc.so.12".to_string()]
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::gpu::lt::keep_loaded;

    /// What this crate calls of the driver by itself is asked for beforehand.
    #[test]
    fn every_function_called_is_in_the_list() {
        let sources = [
            include_str!("memory/raw.rs"),
            include_str!("../kernels/launch.rs"),
            include_str!("../kernels/mod.rs"),
            include_str!("../kernels/module.rs"),
            include_str!("../kernels/tensor_map.rs"),
        ];
        let calls = sources.iter().flat_map(|source| source.split("sys::").skip(1)).filter_map(|rest| {
            let name = &rest[..rest.find(|c: char| !c.is_alphanumeric() && c != '_')?];
            (name.starts_with("cu") && rest[name.len()..].starts_with('(')).then_some(name)
        });
        let missing: Vec<_> = calls.filter(|name| !DRIVER_FUNCTIONS.contains(name)).collect();
        assert!(missing.is_empty(), "{missing:?}");
    }

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
