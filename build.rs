//! Compiles `kernels/*/*.cu` to one fatbin each where an nvcc is found; otherwise writes empty files, and the library
//! compiles the embedded sources with NVRTC at run time. Either way nothing of CUDA is linked.
//!
//! `NVCC` names the compiler; else `CUDA_HOME` or `CUDA_PATH`, then `PATH`. `SCALED_GEMM_NVCC=off` skips the search.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::{env, fs};

/// GPUs with machine code in the fatbins: the first member is nvcc's virtual, the second its real architecture.
const TARGETS: [(&str, &str); 5] = [
    ("compute_80", "sm_80"),
    ("compute_89", "sm_89"),
    ("compute_90a", "sm_90a"),
    ("compute_100a", "sm_100a"),
    ("compute_120a", "sm_120a"),
];
/// PTX for every later GPU, compiled by the driver when the module is loaded.
const FORWARD: &str = "compute_89";
const FILES: [&str; 7] = [
    "cast/fp8_tensor",
    "cast/fp8_row",
    "cast/fp8_block",
    "cast/nvfp4",
    "cast/nvfp4_tile",
    "cast/mxfp8",
    "gemm/epilogue",
];

fn main() {
    println!("cargo:rerun-if-changed=kernels");
    for variable in ["NVCC", "CUDA_HOME", "CUDA_PATH", "PATH", "SCALED_GEMM_NVCC"] {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let Some(out) = env::var_os("OUT_DIR").map(PathBuf::from) else { return };
    let nvcc = if env::var_os("CARGO_FEATURE_CUDA").is_some() { find_nvcc() } else { None };
    for file in FILES {
        let fatbin = out.join(format!("{file}.fatbin"));
        if let Some(folder) = fatbin.parent() {
            let _ = fs::create_dir_all(folder);
        }
        let image = nvcc.as_deref().and_then(|nvcc| match compile(nvcc, file, &fatbin) {
            Ok(()) => Some(()),
            Err(reason) => {
                println!("cargo:warning=kernels/{file}.cu: {reason}; it will be compiled by NVRTC at run time");
                None
            }
        });
        if image.is_none() {
            // An empty image tells the library to use NVRTC.
            if let Err(error) = fs::write(&fatbin, []) {
                println!("cargo:warning={}: {error}", fatbin.display());
            }
        }
    }
}

fn find_nvcc() -> Option<PathBuf> {
    if env::var("SCALED_GEMM_NVCC").is_ok_and(|v| v == "off") {
        return None;
    }
    if let Some(path) = env::var_os("NVCC").filter(|path| !path.is_empty()) {
        return Some(path.into());
    }
    let homes =
        ["CUDA_HOME", "CUDA_PATH"].into_iter().filter_map(env::var_os).map(|home| PathBuf::from(home).join("bin"));
    let path = env::var_os("PATH").unwrap_or_default();
    // An empty variable and a relative folder of the PATH mean the current folder: what lies there is nobody's choice.
    let folders = homes.chain(env::split_paths(&path)).filter(|folder| folder.is_absolute());
    folders.map(|folder| folder.join("nvcc")).find(|nvcc| nvcc.is_file())
}

/// Quantizers and epilogues are compiled without fast math and without contraction: bytes must equal the reference's.
fn compile(nvcc: &Path, file: &str, fatbin: &Path) -> Result<(), String> {
    let known = Command::new(nvcc).arg("--list-gpu-arch").output().map_err(|e| format!("{}: {e}", nvcc.display()))?;
    let known = String::from_utf8_lossy(&known.stdout).into_owned();
    let mut command = Command::new(nvcc);
    command.args(["-fatbin", "-std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "--threads=2"]);
    command.args(["-Werror", "all-warnings", "-Ikernels"]);
    for (virtual_arch, real_arch) in TARGETS {
        // An older nvcc simply gives code for fewer GPUs; the PTX below covers the others.
        if known.lines().any(|line| line.trim() == virtual_arch.trim_end_matches('a')) {
            command.arg(format!("-gencode=arch={virtual_arch},code={real_arch}"));
        }
    }
    command.arg(format!("-gencode=arch={FORWARD},code={FORWARD}"));
    // Six images of one source compress well; the driver unpacks the one it loads.
    command.arg("-Xfatbin=-compress-all");
    command.arg("-o").arg(fatbin).arg(format!("kernels/{file}.cu"));
    let output = command.output().map_err(|e| format!("{}: {e}", nvcc.display()))?;
    if output.status.success() {
        return Ok(());
    }
    Err(format!("nvcc failed: {}", String::from_utf8_lossy(&output.stderr).trim()))
}
