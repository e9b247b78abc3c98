//! The kernel images: fatbins made by `build.rs` where it found nvcc, otherwise NVRTC at run time with an on-disk cache.

use std::borrow::Cow;
use std::env;

use cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};

use super::ptx_cache::PtxCache;
use crate::error::{Error, Result};
use crate::gpu::kernels::nvrtc_version;

/// One `kernels/*/*.cu`: its name, its text with every include in place, and the image `build.rs` made (empty: none).
pub(crate) struct KernelFile {
    pub(crate) name: &'static str,
    source: &'static str,
    image: &'static [u8],
}

macro_rules! kernel_file {
    ($name:literal) => {
        KernelFile {
            name: $name,
            source: include_str!(concat!("../../../kernels/", $name, ".cu")),
            image: include_bytes!(concat!(env!("OUT_DIR"), "/", $name, ".fatbin")),
        }
    };
}

pub(crate) const FP8_TENSOR: KernelFile = kernel_file!("cast/fp8_tensor");
pub(crate) const FP8_ROW: KernelFile = kernel_file!("cast/fp8_row");
pub(crate) const FP8_BLOCK: KernelFile = kernel_file!("cast/fp8_block");
pub(crate) const NVFP4: KernelFile = kernel_file!("cast/nvfp4");
pub(crate) const NVFP4_TILE: KernelFile = kernel_file!("cast/nvfp4_tile");
pub(crate) const MXFP8: KernelFile = kernel_file!("cast/mxfp8");
pub(crate) const EPILOGUE: KernelFile = kernel_file!("gemm/epilogue");
const ALL: [&KernelFile; 7] = [&FP8_TENSOR, &FP8_ROW, &FP8_BLOCK, &NVFP4, &NVFP4_TILE, &MXFP8, &EPILOGUE];

const HEADERS: [(&str, &str); 6] = [
    ("base/types.cuh", include_str!("../../../kernels/base/types.cuh")),
    ("base/codec.cuh", include_str!("../../../kernels/base/codec.cuh")),
    ("base/layout.cuh", include_str!("../../../kernels/base/layout.cuh")),
    ("cast/dequantize.cuh", include_str!("../../../kernels/cast/dequantize.cuh")),
    ("cast/nvfp4.cuh", include_str!("../../../kernels/cast/nvfp4.cuh")),
    ("cast/tile.cuh", include_str!("../../../kernels/cast/tile.cuh")),
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
    /// What the driver loads on a GPU of this compute capability: a fatbin, or PTX with the NUL that ends it.
    pub(crate) fn image(&self, source: KernelSource, (major, minor): (i32, i32)) -> Result<Cow<'static, [u8]>> {
        match source {
            KernelSource::Embedded => Ok(Cow::Borrowed(self.image)),
            // The architecture's own features, E2M1 conversions among them, exist from sm_90 on under the suffix.
            KernelSource::Nvrtc => {
                let mut ptx = self.nvrtc(&format!("compute_{major}{minor}{}", if major >= 9 { "a" } else { "" }))?;
                ptx.push('\0');
                Ok(Cow::Owned(ptx.into_bytes()))
            }
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
    pub(crate) fn nvrtc(&self, arch: &str) -> Result<String> {
        let source = self.flattened();
        let version = nvrtc_version()?;
        let arch_option = format!("--gpu-architecture={arch}");
        let options = ["--fmad=false", "--ftz=false", "--prec-div=true", "--std=c++17", &arch_option];
        let compile = || self.compile(&source, arch, &options, &version);
        let mut parts = vec![source.as_str(), &version];
        parts.extend(options);
        match PtxCache::from_env() {
            Some(cache) => cache.get_or(&format!("{}-{arch}", self.name.replace('/', "-")), &parts, compile),
            None => compile(),
        }
    }

    fn compile(&self, source: &str, arch: &str, options: &[&str], version: &str) -> Result<String> {
        let options = CompileOptions {
            options: options.iter().map(ToString::to_string).collect(),
            name: Some(format!("{}.cu", self.name)),
            ..Default::default()
        };
        let ptx = compile_ptx_with_opts(source, options).map_err(|e| Error::Kernel {
            kernel: format!("kernels/{}.cu for {arch}", self.name),
            reason: format!("NVRTC {version}: {e}"),
            remedy: "use an NVRTC that knows this GPU, or build with nvcc on the PATH".into(),
        })?;
        Ok(ptx.to_src())
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
                let ptx = file.nvrtc(arch).unwrap();
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
