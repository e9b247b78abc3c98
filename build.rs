//! Compiles `kernels/*/*.cu` to one fatbin each where an nvcc is found; otherwise writes empty files, and the library
//! compiles the embedded sources with NVRTC at run time. Either way nothing of CUDA is linked.
//!
//! `NVCC` names the compiler; else `CUDA_HOME` or `CUDA_PATH`, then `PATH`. `SCALED_GEMM_NVCC=off` skips the search.
//! `SCALED_GEMM_GPUS=90a` (or more, with commas) compiles for these GPUs only, in a fraction of the time.

use std::ops::RangeInclusive;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::{env, fs, thread};

/// GPUs with machine code in the fatbins: compute capability, nvcc's virtual and its real architecture.
const TARGETS: [(u32, &str, &str); 5] = [
    (80, "compute_80", "sm_80"),
    (89, "compute_89", "sm_89"),
    (90, "compute_90a", "sm_90a"),
    (100, "compute_100a", "sm_100a"),
    (120, "compute_120a", "sm_120a"),
];
/// PTX for every later GPU, compiled by the driver when the module is loaded. From 90 on kernels wait for the one before
/// them (`begin` in kernels/base/launch.cuh); every GPU below that may need it has machine code of its own.
const FORWARD: (u32, &str) = (90, "compute_90");

/// How ptxas begins what it tells of warpgroup products that it waited for where the source does not, or did one after the other (C7508 to
/// C7519). It calls that information, no warning, so that `-Werror` does not see it; such a kernel may take twice its time.
const WGMMA_REWRITTEN: &str = "(C75";

macro_rules! kernel_files {
    ($($family:ident, $file:literal, $gpus:expr;)+) => {
        const FILES: &[(&str, RangeInclusive<u32>)] = &[$(($file, $gpus)),+];
    };
}
include!("kernels/files.rs");

fn main() {
    println!("cargo:rerun-if-changed=kernels");
    for variable in
        ["NVCC", "CUDA_HOME", "CUDA_PATH", "PATH", "SCALED_GEMM_NVCC", "SCALED_GEMM_GPUS", "NVCC_APPEND_FLAGS"]
    {
        println!("cargo:rerun-if-env-changed={variable}");
    }
    let Some(out) = env::var_os("OUT_DIR").map(PathBuf::from) else { return };
    let nvcc = if env::var_os("CARGO_FEATURE_CUDA").is_some() { find_nvcc() } else { None };
    let images = match nvcc.map(Nvcc::new).transpose() {
        Ok(nvcc) => compile_all(nvcc.as_ref(), &out),
        Err(reason) => return println!("cargo::error={reason}"),
    };
    for (file, image) in images {
        if let Err(reason) = image {
            println!("cargo:warning=kernels/{file}.cu: {reason}; it will be compiled by NVRTC at run time");
        }
    }
}

/// Every file, as many at once as cargo allows, the longest first. A file that gives no image gets an empty one, which tells the
/// library to use NVRTC.
fn compile_all(nvcc: Option<&Nvcc>, out: &Path) -> Vec<(&'static str, Result<(), String>)> {
    let jobs = env::var("NUM_JOBS").ok().and_then(|jobs| jobs.parse().ok()).unwrap_or(1).max(1);
    let mut files: Vec<_> = FILES.iter().collect();
    files.sort_by_key(|(file, _)| length(&format!("{file}.cu"), &mut Vec::new()));
    let threads = usize::div_ceil(jobs, files.len());
    let (queue, done) = (Mutex::new(files), Mutex::new(Vec::new()));
    let work = || {
        while let Some((file, gpus)) = queue.lock().ok().and_then(|mut queue| queue.pop()) {
            let image = out.join(format!("{file}.fatbin"));
            let made = image.parent().map_or(Ok(()), fs::create_dir_all).and_then(|()| fs::write(&image, []));
            let made = made.map_err(|e| format!("{}: {e}", image.display()));
            let compiled = made.and_then(|()| nvcc.map_or(Ok(()), |nvcc| nvcc.compile(file, gpus, threads, &image)));
            if let Ok(mut done) = done.lock() {
                done.push((*file, compiled));
            }
        }
    };
    thread::scope(|scope| (0..jobs.min(FILES.len())).for_each(|_| drop(scope.spawn(work))));
    done.into_inner().unwrap_or_default()
}

/// Characters of a source with all that it includes of ours, each once. The products for Hopper take longest, minutes each, and are tables of a few lines and headers.
fn length(file: &str, seen: &mut Vec<String>) -> usize {
    if seen.iter().any(|one| one == file) {
        return 0;
    }
    seen.push(file.to_string());
    let text = fs::read_to_string(format!("kernels/{file}")).unwrap_or_default();
    let included = text.lines().filter_map(|line| line.strip_prefix("#include \"")?.split('"').next());
    text.len() + included.map(|header| length(header, seen)).sum::<usize>()
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

/// A compiler, and what it is to make: `-gencode` values, each with the compute capability that can run it.
struct Nvcc {
    path: PathBuf,
    targets: Vec<(u32, String)>,
    /// For all later GPUs; none where `SCALED_GEMM_GPUS` asks for a few.
    forward: Option<(u32, String)>,
}

impl Nvcc {
    fn new(path: PathBuf) -> Result<Self, String> {
        let known = Command::new(&path).arg("--list-gpu-arch").output();
        let known = known.map_err(|e| format!("{}: {e}", path.display()))?;
        let known = String::from_utf8_lossy(&known.stdout).into_owned();
        let machine_code = |&(gpu, virtual_arch, real_arch): &(u32, &str, &str)| {
            (gpu, format!("arch={virtual_arch},code={real_arch}"))
        };
        let wanted = env::var("SCALED_GEMM_GPUS").unwrap_or_default();
        if !wanted.is_empty() {
            let target = |name: &str| {
                let name = name.trim();
                TARGETS.iter().find(|(_, _, real)| real.strip_prefix("sm_") == Some(name)).ok_or_else(|| {
                    let names: Vec<_> = TARGETS.iter().filter_map(|(_, _, real)| real.strip_prefix("sm_")).collect();
                    format!("SCALED_GEMM_GPUS={wanted}: {name:?} is not one of {}", names.join(", "))
                })
            };
            let targets =
                wanted.split(',').map(target).map(|found| found.map(machine_code)).collect::<Result<_, _>>()?;
            return Ok(Self { path, targets, forward: None });
        }
        // An older nvcc simply gives code for fewer GPUs; the PTX covers the others.
        let is_known = |virtual_arch: &str| known.lines().any(|line| line.trim() == virtual_arch.trim_end_matches('a'));
        let targets = TARGETS.iter().filter(|(_, virtual_arch, _)| is_known(virtual_arch)).map(machine_code).collect();
        let (gpu, arch) = FORWARD;
        Ok(Self { path, targets, forward: Some((gpu, format!("arch={arch},code={arch}"))) })
    }

    /// Quantizers and epilogues are compiled without fast math and without contraction: bytes must equal the reference's.
    fn compile(&self, file: &str, gpus: &RangeInclusive<u32>, threads: usize, image: &Path) -> Result<(), String> {
        let mut codes: Vec<_> =
            self.targets.iter().filter(|(gpu, _)| gpus.contains(gpu)).map(|(_, code)| code).collect();
        // PTX is for GPUs that come later: not for a file that its own few can run.
        codes.extend(
            self.forward.iter().filter(|(gpu, _)| gpus.contains(gpu) && *gpus.end() == u32::MAX).map(|(_, code)| code),
        );
        if codes.is_empty() {
            return Ok(());
        }
        let mut command = Command::new(&self.path);
        command.args(["-fatbin", "-std=c++17", "--fmad=false", "--ftz=false", "--prec-div=true", "-Ikernels"]);
        command.args(["-Werror", "all-warnings"]).arg(format!("--threads={threads}"));
        command.args(codes.iter().map(|code| format!("-gencode={code}")));
        // Several images of one source compress well; the driver unpacks the one it loads.
        command.arg("-Xfatbin=-compress-all");
        command.arg("-o").arg(image).arg(format!("kernels/{file}.cu"));
        let output = command.output().map_err(|e| format!("{}: {e}", self.path.display()))?;
        let said = [output.stdout, output.stderr].concat();
        let said = String::from_utf8_lossy(&said);
        let rewritten = said.lines().find(|line| line.contains(WGMMA_REWRITTEN));
        let reason = match rewritten {
            _ if !output.status.success() => format!("nvcc failed: {}", said.trim()),
            Some(line) => format!("ptxas changed the order of warpgroup products: {line}"),
            None => return Ok(()),
        };
        // nvcc may leave half an image.
        fs::write(image, []).map_err(|e| format!("{}: {e}", image.display()))?;
        Err(reason)
    }
}
