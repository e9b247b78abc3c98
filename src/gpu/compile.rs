//! The kernel images: fatbins made by `build.rs` where it found nvcc, otherwise NVRTC at run time with an on-disk cache.

use std::collections::hash_map::DefaultHasher;
use std::hash::{Hash, Hasher};
use std::path::PathBuf;
use std::{env, fs};

use cudarc::nvrtc::{CompileOptions, Ptx, compile_ptx_with_opts};

use crate::error::{Error, Result};
use crate::gpu::kernels::nvrtc_version;

/// One `kernels/*.cu`: its name, its text with every include in place, and the image `build.rs` made (empty: none).
pub(crate) struct KernelFile {
    pub(crate) name: &'static str,
    source: &'static str,
    image: &'static [u8],
}

macro_rules! kernel_file {
    ($name:literal) => {
        KernelFile {
            name: $name,
            source: include_str!(concat!("../../kernels/", $name, ".cu")),
            image: include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".fatbin")),
        }
    };
}

pub(crate) const FP8_TENSOR: KernelFile = kernel_file!("fp8_tensor");
pub(crate) const FP8_ROW: KernelFile = kernel_file!("fp8_row");
pub(crate) const FP8_BLOCK: KernelFile = kernel_file!("fp8_block");
pub(crate) const NVFP4: KernelFile = kernel_file!("nvfp4");
pub(crate) const NVFP4_TILE: KernelFile = kernel_file!("nvfp4_tile");
pub(crate) const MXFP8: KernelFile = kernel_file!("mxfp8");
pub(crate) const EPILOGUE: KernelFile = kernel_file!("epilogue");
const ALL: [&KernelFile; 7] = [&FP8_TENSOR, &FP8_ROW, &FP8_BLOCK, &NVFP4, &NVFP4_TILE, &MXFP8, &EPILOGUE];

const HEADERS: [(&str, &str); 6] = [
    ("common.cuh", include_str!("../../kernels/common.cuh")),
    ("codec.cuh", include_str!("../../kernels/codec.cuh")),
    ("layout.cuh", include_str!("../../kernels/layout.cuh")),
    ("dequantize.cuh", include_str!("../../kernels/dequantize.cuh")),
    ("nvfp4.cuh", include_str!("../../kernels/nvfp4.cuh")),
    ("tile.cuh", include_str!("../../kernels/tile.cuh")),
];

/// Where kernel images come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KernelSource {
    /// Machine code made by nvcc when the crate was built.
    Embedded,
    /// Compiled by NVRTC when a handle is first made on a GPU, then kept on disk.
    Nvrtc,
}

impl KernelSource {
    /// What this build and the environment say: `SCALED_GEMM_KERNELS=nvrtc` forces NVRTC.
    pub(crate) fn from_env() -> Self {
        let forced = env::var("SCALED_GEMM_KERNELS").is_ok_and(|v| v == "nvrtc");
        if forced || ALL.iter().any(|f| f.image.is_empty()) {
            return Self::Nvrtc;
        }
        Self::Embedded
    }
}

impl KernelFile {
    /// A loadable image for a GPU of this compute capability.
    pub(crate) fn image(&self, source: KernelSource, (major, minor): (i32, i32)) -> Result<Ptx> {
        match source {
            KernelSource::Embedded => Ok(Ptx::from_binary(self.image.to_vec())),
            // The architecture's own features, E2M1 conversions among them, exist from sm_90 on under the suffix.
            KernelSource::Nvrtc => self.nvrtc(&format!("compute_{major}{minor}{}", if major >= 9 { "a" } else { "" })),
        }
    }

    /// The text with each `#include "..."` replaced by the header, once.
    fn flattened(&self) -> String {
        let mut seen = Vec::new();
        let mut out = String::new();
        flatten(self.source, &mut seen, &mut out);
        out
    }

    /// PTX for a virtual architecture, from the cache or from NVRTC. Needs no GPU.
    pub(crate) fn nvrtc(&self, arch: &str) -> Result<Ptx> {
        let source = self.flattened();
        let version = nvrtc_version()?;
        let mut hasher = DefaultHasher::new();
        (&source, arch, &version, env!("CARGO_PKG_VERSION")).hash(&mut hasher);
        let cached = cache_dir().map(|dir| dir.join(format!("{}-{arch}-{:016x}.ptx", self.name, hasher.finish())));
        if let Some(text) = cached.as_ref().and_then(|path| fs::read_to_string(path).ok()) {
            // A file cut short by a full disk lacks the closing brace of its last kernel: compile again.
            if text.trim_end_matches(['\0', '\n', ' ']).ends_with('}') {
                return Ok(Ptx::from_src(text));
            }
        }
        let options = CompileOptions {
            fmad: Some(false),
            ftz: Some(false),
            prec_div: Some(true),
            options: vec![format!("--gpu-architecture={arch}"), "--std=c++17".into()],
            name: Some(format!("{}.cu", self.name)),
            ..Default::default()
        };
        let ptx = compile_ptx_with_opts(&source, options).map_err(|e| Error::Kernel {
            kernel: format!("kernels/{}.cu for {arch}", self.name),
            reason: format!("NVRTC {version}: {e}"),
            remedy: "use an NVRTC that knows this GPU, or build with nvcc on the PATH".into(),
        })?;
        if let Some(path) = cached {
            store(&path, &ptx.to_src());
        }
        Ok(ptx)
    }
}

fn flatten(source: &'static str, seen: &mut Vec<&'static str>, out: &mut String) {
    for line in source.lines() {
        let header = line.strip_prefix("#include \"").and_then(|rest| rest.strip_suffix('"'));
        match header.and_then(|name| HEADERS.iter().find(|(header, _)| *header == name)) {
            Some((name, text)) if !seen.contains(name) => {
                seen.push(name);
                flatten(text, seen, out);
            }
            Some(_) => {}
            None if line == "#pragma once" => {}
            None => {
                out.push_str(line);
                out.push('\n');
            }
        }
    }
}

/// `SCALED_GEMM_CACHE`, else `XDG_CACHE_HOME/scaled-gemm`, else `HOME/.cache/scaled-gemm`; none: no cache.
fn cache_dir() -> Option<PathBuf> {
    let named = |variable| env::var_os(variable).filter(|v| !v.is_empty()).map(PathBuf::from);
    named("SCALED_GEMM_CACHE")
        .or_else(|| named("XDG_CACHE_HOME").map(|dir| dir.join("scaled-gemm")))
        .or_else(|| named("HOME").map(|dir| dir.join(".cache").join("scaled-gemm")))
}

/// Written beside its place and renamed, so that a reader never sees half a file. A cache that cannot be written is
/// only slower: the failure is logged and the compiled kernel is used.
fn store(path: &std::path::Path, text: &str) {
    let temporary = path.with_extension(format!("{}.tmp", std::process::id()));
    let written = path
        .parent()
        .map_or(Ok(()), fs::create_dir_all)
        .and_then(|()| fs::write(&temporary, text))
        .and_then(|()| fs::rename(&temporary, path));
    if let Err(error) = written {
        tracing::warn!(path = %path.display(), %error, "kernel cache not written");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Every kernel file compiles under NVRTC for every architecture, with no GPU.
    #[test]
    fn nvrtc_compiles_every_kernel() {
        if let Err(reason) = nvrtc_version() {
            assert!(env::var_os("SCALED_GEMM_REQUIRE_CUBLASLT").is_none(), "{reason}");
            println!("skipped: {reason}");
            return;
        }
        for file in ALL {
            for arch in ["compute_80", "compute_89", "compute_90a", "compute_100a", "compute_120a"] {
                let ptx = file.nvrtc(arch).unwrap().to_src();
                assert!(ptx.contains(".entry"), "{} for {arch}", file.name);
            }
        }
    }

    #[test]
    fn flattening_leaves_no_include() {
        for file in ALL {
            let text = file.flattened();
            assert!(!text.contains("#include"), "{}", file.name);
            assert_eq!(text.matches("struct ScaleRule {").count(), 1, "{}", file.name);
        }
    }
}
