//! The kernel images: fatbins made by `build.rs` where it found nvcc, otherwise NVRTC at run time with an on-disk cache.

use std::borrow::Cow;
use std::env;
use std::ops::RangeInclusive;

use cudarc::nvrtc::{CompileOptions, compile_ptx_with_opts};

use super::ptx_cache::PtxCache;
use crate::error::{Error, Result};
use crate::gpu::device::info::AS_OLDER;
use crate::gpu::kernels::nvrtc_version;

/// One `kernels/*/*.cu`: a row of `kernels/files.rs`, with its text and the image that `build.rs` made (empty: none).
pub(super) struct KernelFile {
    /// The path below `kernels/`, without `.cu`.
    pub(super) name: &'static str,
    /// Compute capabilities that can run it, major * 10 + minor.
    pub(super) gpus: RangeInclusive<u32>,
    pub(super) family: KernelFamily,
    source: &'static str,
    image: &'static [u8],
}

/// Kernels that are loaded together, when the first of them is used: see [`Handle::load_kernels`](crate::gpu::Handle::load_kernels).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum KernelFamily {
    /// Quantizers and dequantizers with FP32 scales, and the maxima that NVFP4 needs too.
    Fp8,
    /// Quantizers and dequantizers of grouped tensors.
    Grouped,
    /// Casts to groupings that no product reads, and back.
    Cast,
    /// What is computed before it is cast: gated MLPs, activations.
    Fused,
    /// Quantizers and dequantizer of MXFP8.
    Mxfp8,
    /// Quantizers and dequantizer of MXFP4.
    Mxfp4,
    /// Quantizers and dequantizer of NVFP4.
    Nvfp4,
    /// What a linear layer that trains needs beside casts and products.
    Linear,
    /// What follows a product: the FP32 epilogue, and what prepares factors and scales for cuBLASLt.
    Epilogue,
    /// Products of our own on sm_90, and on no other GPU.
    Sm90,
    /// The same of E5M2 codes on one side and E4M3 codes on the other.
    Sm90E5m2,
    /// Products of few rows of FP8 codes on sm_90, and on no other GPU, also with SwiGLU in the kernel, and those of 9 to 64 rows with weights that are decoded, which [`Self::SmallMWeights`] has there, too.
    SmallM,
    /// Products of few rows of BF16 or F16 numbers with weights that are decoded.
    SmallMWeights,
    /// Products of groups of plain rows, of rows with block scales, and SwiGLU of few plain rows, on sm_90, and on no other GPU.
    SmallMGroups,
}

impl KernelFamily {
    /// Whether a GPU of this compute capability (major, minor) can run every kernel of the family; others are refused when it is loaded.
    pub fn runs_on(self, (major, minor): (u32, u32)) -> bool {
        FILES.iter().filter(|file| file.family == self).all(|file| file.gpus.contains(&(major * 10 + minor)))
    }
}

named!(
    KernelFamily, "kernel family", Fp8 => "fp8", Grouped => "grouped", Cast => "cast", Fused => "fused", Mxfp8 => "mxfp8", Mxfp4 => "mxfp4", Nvfp4 => "nvfp4",
    Linear => "linear", Epilogue => "epilogue", Sm90 => "sm90", Sm90E5m2 => "sm90-e5m2", SmallM => "small-m",
    SmallMWeights => "small-m-weights", SmallMGroups => "small-m-groups",
);

macro_rules! kernel_files {
    ($($family:ident, $file:literal, $gpus:expr;)+) => {
        /// Every file, in the order of the table.
        pub(super) static FILES: &[KernelFile] = &[$(KernelFile {
            name: $file,
            gpus: $gpus,
            family: KernelFamily::$family,
            source: include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/kernels/", $file, ".cu")),
            image: include_bytes!(concat!(env!("OUT_DIR"), "/", $file, ".fatbin")),
        }),+];
    };
}
include!("../../../kernels/files.rs");

const HEADERS: [(&str, &str); 52] = [
    ("base/launch.cuh", include_str!("../../../kernels/base/launch.cuh")),
    ("base/types.cuh", include_str!("../../../kernels/base/types.cuh")),
    ("base/codec.cuh", include_str!("../../../kernels/base/codec.cuh")),
    ("base/exchange.cuh", include_str!("../../../kernels/base/exchange.cuh")),
    ("base/e2m1.cuh", include_str!("../../../kernels/base/e2m1.cuh")),
    ("base/repacked.cuh", include_str!("../../../kernels/base/repacked.cuh")),
    ("base/layout.cuh", include_str!("../../../kernels/base/layout.cuh")),
    ("base/delayed.cuh", include_str!("../../../kernels/base/delayed.cuh")),
    ("base/sum.cuh", include_str!("../../../kernels/base/sum.cuh")),
    ("base/activation.cuh", include_str!("../../../kernels/base/activation.cuh")),
    ("base/activation_gradient.cuh", include_str!("../../../kernels/base/activation_gradient.cuh")),
    ("cast/grouped.cuh", include_str!("../../../kernels/cast/grouped.cuh")),
    ("cast/cast.cuh", include_str!("../../../kernels/cast/cast.cuh")),
    ("cast/source.cuh", include_str!("../../../kernels/cast/source.cuh")),
    ("cast/line_maxima.cuh", include_str!("../../../kernels/cast/line_maxima.cuh")),
    ("cast/maximum.cuh", include_str!("../../../kernels/cast/maximum.cuh")),
    ("cast/tile_place.cuh", include_str!("../../../kernels/cast/tile_place.cuh")),
    ("cast/cast_channel.cuh", include_str!("../../../kernels/cast/cast_channel.cuh")),
    ("cast/thresholds.cuh", include_str!("../../../kernels/cast/thresholds.cuh")),
    ("cast/cast_steps.cuh", include_str!("../../../kernels/cast/cast_steps.cuh")),
    ("cast/cast_rows.cuh", include_str!("../../../kernels/cast/cast_rows.cuh")),
    ("cast/cast_tile.cuh", include_str!("../../../kernels/cast/cast_tile.cuh")),
    ("fused/produced.cuh", include_str!("../../../kernels/fused/produced.cuh")),
    ("cast/dequantize.cuh", include_str!("../../../kernels/cast/dequantize.cuh")),
    ("cast/dequantize_blocks.cuh", include_str!("../../../kernels/cast/dequantize_blocks.cuh")),
    ("cast/mx.cuh", include_str!("../../../kernels/cast/mx.cuh")),
    ("cast/nvfp4.cuh", include_str!("../../../kernels/cast/nvfp4.cuh")),
    ("cast/nvfp4_rows.cuh", include_str!("../../../kernels/cast/nvfp4_rows.cuh")),
    ("cast/tile.cuh", include_str!("../../../kernels/cast/tile.cuh")),
    ("fused/swiglu_backward.cuh", include_str!("../../../kernels/fused/swiglu_backward.cuh")),
    ("gemm/async_copy.cuh", include_str!("../../../kernels/gemm/async_copy.cuh")),
    ("gemm/pipeline.cuh", include_str!("../../../kernels/gemm/pipeline.cuh")),
    ("gemm/wgmma.cuh", include_str!("../../../kernels/gemm/wgmma.cuh")),
    ("gemm/finish.cuh", include_str!("../../../kernels/gemm/finish.cuh")),
    ("gemm/sm90_loop.cuh", include_str!("../../../kernels/gemm/sm90_loop.cuh")),
    ("gemm/sm90_config.cuh", include_str!("../../../kernels/gemm/sm90_config.cuh")),
    ("gemm/sm90_produce.cuh", include_str!("../../../kernels/gemm/sm90_produce.cuh")),
    ("gemm/sm90_store.cuh", include_str!("../../../kernels/gemm/sm90_store.cuh")),
    ("gemm/sm90_cast.cuh", include_str!("../../../kernels/gemm/sm90_cast.cuh")),
    ("gemm/sm90.cuh", include_str!("../../../kernels/gemm/sm90.cuh")),
    ("gemm/sm90_e5m2.cuh", include_str!("../../../kernels/gemm/sm90_e5m2.cuh")),
    ("gemm/sm90_table.cuh", include_str!("../../../kernels/gemm/sm90_table.cuh")),
    ("gemm/small_m.cuh", include_str!("../../../kernels/gemm/small_m.cuh")),
    ("gemm/small_m_e2m1.cuh", include_str!("../../../kernels/gemm/small_m_e2m1.cuh")),
    ("gemm/small_m_e4m3.cuh", include_str!("../../../kernels/gemm/small_m_e4m3.cuh")),
    ("gemm/small_m_tile.cuh", include_str!("../../../kernels/gemm/small_m_tile.cuh")),
    ("gemm/small_m_wgmma.cuh", include_str!("../../../kernels/gemm/small_m_wgmma.cuh")),
    ("gemm/small_m_one_row.cuh", include_str!("../../../kernels/gemm/small_m_one_row.cuh")),
    ("gemm/wgmma_16bit.cuh", include_str!("../../../kernels/gemm/wgmma_16bit.cuh")),
    ("gemm/groups.cuh", include_str!("../../../kernels/gemm/groups.cuh")),
    ("gemm/small_m_groups.cuh", include_str!("../../../kernels/gemm/small_m_groups.cuh")),
    ("gemm/small_m_groups_wgmma.cuh", include_str!("../../../kernels/gemm/small_m_groups_wgmma.cuh")),
];

/// Where kernel images come from.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum KernelSource {
    /// Machine code made by nvcc when the crate was built. A file that it could not compile comes from NVRTC.
    Embedded,
    /// Compiled by NVRTC at the first use on a GPU, then kept on disk.
    Nvrtc,
}

named!(KernelSource, "source of kernels", Embedded => "embedded", Nvrtc => "nvrtc");

impl KernelSource {
    /// What this build and the environment say: `SCALED_GEMM_KERNELS=nvrtc` forces NVRTC, and so does `SCALED_GEMM_SM`, as a GPU
    /// takes machine code of its own first.
    pub(super) fn from_env() -> Self {
        let forced = env::var("SCALED_GEMM_KERNELS").is_ok_and(|v| v == "nvrtc") || env::var_os(AS_OLDER).is_some();
        if forced || FILES.iter().all(|file| file.image.is_empty()) {
            return Self::Nvrtc;
        }
        Self::Embedded
    }
}

impl KernelFile {
    /// What the driver loads on a GPU of this compute capability (major * 10 + minor): a fatbin, or PTX with the NUL that ends it.
    pub(super) fn image(&self, source: KernelSource, gpu: u32) -> Result<Cow<'static, [u8]>> {
        match source {
            KernelSource::Embedded if !self.image.is_empty() => Ok(Cow::Borrowed(self.image)),
            _ => {
                let mut ptx = self.nvrtc(&architecture(gpu))?;
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
    fn nvrtc(&self, arch: &str) -> Result<String> {
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

/// NVRTC's name for a GPU. The architecture's own features, E2M1 conversions among them, exist from sm_90 on under the suffix.
fn architecture(gpu: u32) -> String {
    format!("compute_{gpu}{}", if gpu >= 90 { "a" } else { "" })
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
    use std::collections::BTreeMap;
    use std::mem::replace;

    use rayon::prelude::*;

    use super::*;

    /// The text of each kernel of a PTX file, by its name.
    fn entries(ptx: &str) -> Vec<(&str, &str)> {
        let bodies = ptx.split(".entry ").skip(1);
        bodies.map(|body| (body.split('(').next().unwrap_or(""), body.split("\n}").next().unwrap_or(body))).collect()
    }

    /// The words of a kernel that a path leads to from its beginning past no wait: where each kind of warp has a wait of its own, the first in the text is not before all that comes behind it. As `scripts/check-kernels.sh`
    /// finds them in machine code.
    fn before_wait(body: &str) -> Vec<&str> {
        let lines: Vec<_> = body.lines().map(str::trim).collect();
        let labels: BTreeMap<_, _> =
            lines.iter().enumerate().filter_map(|(at, line)| Some((line.strip_suffix(':')?, at))).collect();
        let (mut seen, mut next_ones, mut found) = (vec![false; lines.len()], vec![0], Vec::new());
        while let Some(at) = next_ones.pop() {
            if at >= lines.len() || replace(&mut seen[at], true) {
                continue;
            }
            let mut words = lines[at].split(|c: char| c.is_whitespace() || ";{}".contains(c)).filter(|w| !w.is_empty());
            let first = words.clone().next().unwrap_or("");
            let always = !first.starts_with('@');
            let name = if always { first } else { words.clone().nth(1).unwrap_or("") };
            if always && name.starts_with("griddepcontrol.wait") {
                continue;
            }
            found.extend(words.clone());
            if name.starts_with("brx") {
                found.push("a jump to a place that is not read");
            } else if name.starts_with("bra") {
                let target = words.next_back().and_then(|to| labels.get(to));
                next_ones.push(*target.unwrap_or_else(|| panic!("{}: no such label", lines[at])));
            }
            if !(always && ["bra", "brx", "ret", "exit"].iter().any(|end| name.starts_with(end))) {
                next_ones.push(at + 1);
            }
        }
        found
    }

    /// A kernel launched with programmatic serialization runs beside the one before it, and may touch memory only after that
    /// one's end. What is for GPUs from 90 on must therefore wait first, in every kernel; `prefetch` alone may come before, and in products that are
    /// links of chains loads of weights, where the launch says that nobody writes them (`src/gpu/device/chain.rs`).
    fn assert_waits_before_memory(name: &str, body: &str) {
        assert!(body.contains("griddepcontrol.wait"), "{name} never waits");
        let loads = if is_link(name) {
            &[][..]
        } else if is_wgmma(name) {
            &["ld.global", "ld.v", "cp.async.bulk"]
        } else {
            &["ld.global", "cp.async", "ld.v"]
        };
        let before = before_wait(body);
        for access in ["st.global", "atom.", "red.", "st.v", "a jump"].iter().chain(loads) {
            // A word's beginning: copies say `cp.async.ca.shared.global`.
            assert!(
                !before.iter().any(|word| word.starts_with(access)),
                "{name}: {access} comes before griddepcontrol.wait"
            );
        }
        // A kernel that releases its successor has waited: what that one loads at once is then written by nobody but this kernel. Quantizers between
        // products tell what else is written beside it.
        let between = ["quantize_fp8_1x128_small_", "quantize_fp8_row_"].iter().any(|start| name.starts_with(start));
        let releases = before.contains(&"griddepcontrol.launch_dependents");
        assert!(between || !releases, "{name}: griddepcontrol.launch_dependents comes before griddepcontrol.wait");
    }

    /// Whether these words begin with the name of a product that is told where it may load before its wait, in blocks that are links of chains. As
    /// `scripts/check-kernels.sh` has it.
    fn is_link(words: &str) -> bool {
        let name = words.split(' ').next().unwrap_or(words);
        // Kernels of one row end with the steps on their way behind the block.
        let one_row = name.rsplit_once('_').filter(|(block, _)| block.contains("_1_"));
        let name = one_row.filter(|(_, steps)| ["2", "3", "4"].contains(steps)).map_or(name, |(block, _)| block);
        name.starts_with("gemm_small_m_")
            && ["_one", "_one_deep", "_two", "_four", "_four_3", "_eight", "_sixteen", "_narrow"]
                .iter()
                .any(|block| name.ends_with(block))
    }

    /// Likewise of a product behind the kernel that arranges A, which copies weights before its wait, and reads nothing else there.
    fn is_wgmma(words: &str) -> bool {
        let name = words.split(' ').next().unwrap_or(words);
        name.starts_with("gemm_small_m_") && name.ends_with("_wgmma")
    }

    #[test]
    fn the_reader_of_waits_can_fail() {
        let ptx = ".visible .entry good(\n)\n{\nprefetch.global.L2 [a];\ngriddepcontrol.wait;\nld.global.u8 x, [a];\n}\n\n\
                   .visible .entry early(\n)\n{\nld.global.u8 x, [a];\ngriddepcontrol.wait;\n}\n\n\
                   .visible .entry never(\n)\n{\nret;\n}\n\n\
                   .visible .entry hasty(\n)\n{\ngriddepcontrol.launch_dependents;\ngriddepcontrol.wait;\n}\n\n\
                   .visible .entry stores(\n)\n{\nst.global.u8 [a], x;\ngriddepcontrol.wait;\n}\n\n\
                   .visible .entry copies(\n)\n{\ncp.async.ca.shared.global [s], [a], 8;\ngriddepcontrol.wait;\n}\n\n\
                   .visible .entry bulk(\n)\n{\ncp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [s], [a], 16, [b];\ngriddepcontrol.wait;\n}\n\n\
                   .visible .entry both_paths(\n)\n{\n\t@%p1 bra \t$L_1;\n\tgriddepcontrol.wait;\n\tld.global.u8 x, [a];\n\tbra.uni \t$L_2;\n$L_1:\n\tgriddepcontrol.wait;\n$L_2:\n\tst.global.u8 [a], x;\n\tret;\n}\n\n\
                   .visible .entry one_path(\n)\n{\n\t@%p1 bra \t$L_1;\n\tgriddepcontrol.wait;\n\tbra.uni \t$L_2;\n$L_1:\n\tld.global.u8 x, [a];\n\tgriddepcontrol.wait;\n$L_2:\n\tret;\n}\n\n\
                   .visible .entry around(\n)\n{\n\t@!%p1 bra \t$L_1;\n\tgriddepcontrol.wait;\n$L_1:\n\tst.global.u8 [a], x;\n\tret;\n}\n\n\
                   .visible .entry sometimes(\n)\n{\n\t@%p1 griddepcontrol.wait;\n\tst.global.u8 [a], x;\n\tret;\n}\n\n\
                   .visible .entry anywhere(\n)\n{\n\tbrx.idx %r1, $L_1;\n$L_1:\n\tgriddepcontrol.wait;\n\tret;\n}\n";
        let [good, early, never, hasty, stores, copies, bulk, both_paths, one_path, around, sometimes, anywhere] =
            entries(ptx)[..]
        else {
            panic!("twelve kernels were written")
        };
        assert_waits_before_memory(good.0, good.1);
        assert_waits_before_memory(both_paths.0, both_paths.1);
        let link = "gemm_small_m_block_8_one of gemm/small_m_fp8 for compute_90a";
        assert_waits_before_memory(link, early.1);
        for block in ["sixteen", "narrow"] {
            assert_waits_before_memory(&format!("gemm_small_m_nvfp4_bf16_8_{block}"), early.1);
        }
        for block in ["four_2", "eight_3", "four_4", "narrow_2"] {
            assert_waits_before_memory(&format!("gemm_small_m_nvfp4_bf16_1_{block} of gemm/small_m_one_row"), copies.1);
        }
        assert_eq!((good.0, early.0, never.0, hasty.0), ("good", "early", "never", "hasty"));
        let wgmma = "gemm_small_m_nvfp4_bf16_32_wgmma of gemm/small_m_wgmma for compute_90a";
        assert_waits_before_memory(wgmma, copies.1);
        let of_wgmma = [early, bulk, never, hasty, stores].map(|(_, body)| (wgmma, body));
        // Kernels of tiles, and the end of a chain, are no links. (Every product of few rows was let off.)
        let others = [
            "gemm_small_m_fp8_bf16_8_tile_e4m3",
            "gemm_small_m_nvfp4_bf16_16_tile",
            "gemm_small_m_end_of_chain",
            "gemm_small_m_nvfp4_bf16_8_four_2",
        ];
        let wrong = [early, never, hasty, copies, (link, never.1), (link, hasty.1), (link, stores.1)];
        let others = others.map(|name| (name, early.1)).into_iter().chain([("gemm_small_m_arrange", copies.1)]);
        let paths = [one_path, around, sometimes, anywhere];
        for (name, body) in wrong.into_iter().chain(of_wgmma).chain(others).chain(paths) {
            assert!(std::panic::catch_unwind(|| assert_waits_before_memory(name, body)).is_err(), "{name}");
        }
    }

    /// The first instruction that takes a maximum of floating-point numbers of 16 bits, one or two at a time.
    fn narrow_maximum(body: &str) -> Option<&str> {
        let narrow = |word: &str| {
            let mut parts = word.split('.');
            parts.next() == Some("max") && parts.any(|part| ["f16", "bf16", "f16x2", "bf16x2"].contains(&part))
        };
        body.lines().find(|line| line.split([' ', '\t', '{']).any(narrow))
    }

    #[test]
    fn a_narrow_maximum_is_found_in_any_spelling() {
        for line in [
            "max.bf16x2 \t%r1, %r2, %r3;",
            "@%p1 max.NaN.xorsign.abs.bf16x2 %r1, %r2, %r3;",
            "{max.ftz.f16 %h1, %h2, %h3;\n}",
        ] {
            let body = format!("add.f32 %f1, %f2, %f3;\n\t{line}");
            assert!(narrow_maximum(&body).is_some(), "{line}");
        }
        let other = "max.f32 %f1, %f2, %f3;\nmax.u16x2 %r1, %r2, %r3;\ncvt.rn.bf16x2.f32 %r1, %f1, %f2;\nredux.sync.max.u32 %r1, %r2, %r3;";
        assert_eq!(narrow_maximum(other), None);
    }

    /// As CI asks.
    fn everything() -> bool {
        env::var_os("SCALED_GEMM_REQUIRE_CUBLASLT").is_some()
    }

    /// Those that the sources tell apart. Older ones of NVRTC, which all else here takes, know no Blackwell.
    fn kinds() -> &'static [u32] {
        if everything() { &[80, 89, 90, 100, 120] } else { &[80, 89, 90] }
    }

    /// Tables of the same templates as other files', that are minutes of a core and are not compiled here.
    const TABLES: [&str; 6] = [
        "gemm/sm90_block",
        "gemm/sm90_vector",
        "gemm/sm90_plain",
        "gemm/sm90_outer",
        "gemm/sm90_e5m2_a",
        "gemm/sm90_e5m2_b",
    ];

    /// NVRTC takes every kernel, for each kind of architecture, with no GPU.
    ///
    /// All of them take minutes, and belong to CI, which sets the variable. Elsewhere, on GPU machines above all, one small
    /// file says whether NVRTC works; `run.sh nvrtc` of the bundle runs suites on kernels that it compiled.
    #[test]
    fn nvrtc_compiles_every_kernel() {
        let everything = everything();
        let version = match nvrtc_version() {
            Ok(version) => version,
            Err(reason) => {
                assert!(!everything, "{reason}");
                println!("skipped: {reason}");
                return;
            }
        };
        assert!(TABLES.iter().all(|name| FILES.iter().any(|file| file.name == *name)), "{TABLES:?}");
        let files = FILES.iter().filter(|file| everything || file.family == KernelFamily::Epilogue);
        let mut all: Vec<_> = files.collect();
        // The longest texts first, and one at a time: some files take half a minute, for which all cores but one waited at the end.
        all.sort_by_cached_key(|file| std::cmp::Reverse(file.flattened().len()));
        // Most of the time of this step: on all cores, but not on the threads that other tests wait for.
        let threads = rayon::ThreadPoolBuilder::new().build().unwrap();
        threads.install(|| all.into_par_iter().with_max_len(1).for_each(|file| assert_compiles(file, &version)));
    }

    /// Asks NVRTC for no code: whether it takes the text for such a GPU.
    fn read_text(file: &KernelFile, source: &str, gpu: u32, version: &str) -> Result<String> {
        let arch = architecture(gpu);
        let arch_option = format!("--gpu-architecture={arch}");
        file.compile(source, &arch, &["--std=c++17", "--fdevice-syntax-only", &arch_option], version)
    }

    /// That NVRTC takes the text for every kind of GPU that can run it, and what it makes for one. What differs by GPU is what the text says, not what the
    /// compiler makes of it: that is nvcc's, too, whose machine code `scripts/check-kernels.sh` looks into for each of them.
    fn assert_compiles(file: &KernelFile, version: &str) {
        let source = file.flattened();
        for gpu in kinds().iter().copied().filter(|gpu| file.gpus.contains(gpu)) {
            let made = read_text(file, &source, gpu, version).unwrap();
            assert!(entries(&made).is_empty(), "{} for {gpu}: more than the text was compiled", file.name);
        }
        if TABLES.contains(&file.name) {
            return;
        }
        // Of what every GPU can run the forward image, as build.rs makes it.
        let arch = if *file.gpus.end() == u32::MAX { "compute_90".to_string() } else { architecture(90) };
        let ptx = file.nvrtc(&arch).unwrap();
        let entries = entries(&ptx);
        assert!(!entries.is_empty(), "{} for {arch}", file.name);
        for (name, body) in entries {
            let name = format!("{name} of {} for {arch}", file.name);
            assert_eq!(narrow_maximum(body), None, "{name}: no amax is taken by 16-bit floats");
            assert_waits_before_memory(&name, body);
        }
    }

    /// A text of which NVRTC makes nothing is not taken for one that it has seen: a branch for one kind of GPU that does not compile is told.
    #[test]
    fn the_text_of_each_gpu_is_read() {
        let Ok(version) = nvrtc_version() else { return println!("skipped: no NVRTC") };
        let file = &FILES[0];
        for &gpu in kinds() {
            let source =
                format!("#if __CUDA_ARCH__ == {gpu}0\n__device__ int f(int x) {{ return nowhere(x); }}\n#endif\n");
            for &other in kinds() {
                let made = read_text(file, &source, other, &version);
                assert_eq!(made.is_err(), gpu == other, "{gpu} {other}: {made:?}");
            }
        }
    }

    #[test]
    fn flattening_leaves_no_include() {
        for file in FILES {
            let text = file.flattened();
            assert!(!text.contains("#include"), "{}", file.name);
            assert_eq!(text.matches("struct ScaleRule {").count(), 1, "{}", file.name);
        }
    }

    /// No file of `kernels/` is forgotten in the table, and its rows are what they seem.
    #[test]
    fn the_table_lists_every_file() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("kernels");
        for file in FILES {
            assert!(file.gpus.contains(&90), "{} would not run where it was measured", file.name);
            let of_few_rows = file.family == KernelFamily::SmallMWeights && file.name.starts_with("gemm/small_m_");
            assert!(
                of_few_rows || file.name.contains(&file.family.to_string().replace('-', "_")),
                "{} is of another family than {}",
                file.name,
                file.family
            );
        }
        if !folder.is_dir() {
            println!("skipped: no sources here");
            return;
        }
        let below = |folder: &std::path::Path| {
            std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()).collect::<Vec<_>>()
        };
        let files = below(&folder).into_iter().filter(|path| path.is_dir()).flat_map(|folder| below(&folder));
        let (mut sources, mut headers) = (0, 0);
        for path in files {
            let name = path.strip_prefix(&folder).unwrap().to_str().unwrap().replace('\\', "/");
            if let Some(name) = name.strip_suffix(".cu") {
                assert!(FILES.iter().any(|file| file.name == name), "{name}.cu is not in kernels/files.rs");
                sources += 1;
            } else {
                assert!(HEADERS.iter().any(|(header, _)| *header == name), "{name} is not in HEADERS");
                headers += 1;
            }
        }
        assert_eq!((sources, headers), (FILES.len(), HEADERS.len()));
    }
}
