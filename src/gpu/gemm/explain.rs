//! [`GemmPlan::explain`]: a plan's choice in words.

use std::fmt::Write as _;

use crate::gpu::gemm::plan::GemmPlan;
use crate::gpu::gemm::record::Environment;
use crate::gpu::gemm::scratch::Scratch;
use crate::gpu::gemm::sum::{ValueSource, Values};
use crate::gpu::handle::WORKSPACE_BYTES;
use crate::gpu::lt::quirks::Version;
use crate::gpu::matrix::derived::KeptWeights;

impl GemmPlan {
    /// The choice in a few words.
    pub(super) fn headline(&self) -> String {
        match &self.candidate {
            None => "nothing to do".to_string(),
            Some(c) => format!("{}, {}", c.outline().formulation, c.outline().finish),
        }
    }

    /// What was chosen, from what, and why; what it costs in memory; and why the others were not taken.
    pub fn explain(&self) -> String {
        let Environment { gpu, compute_capability: (major, minor), cublaslt, .. } = &self.environment;
        let library = cublaslt.map_or("no cuBLASLt".to_string(), |raw| format!("cuBLASLt {}", Version::from_raw(raw)));
        let mut text = format!("{} on {gpu} (sm_{major}{minor}), {library}\n", self.desc);
        // Writing to a String cannot fail.
        let mut line = |words: std::fmt::Arguments<'_>| {
            let _ = writeln!(text, "  {words}");
        };
        line(format_args!("{}: {}", self.headline(), self.reason));
        if let Some(candidate) = &self.candidate {
            let outline = candidate.outline();
            if let Some(product) = candidate.product() {
                line(format_args!("algorithm: {}", product.describe()));
                if let Some(other) = product.with_other_alpha() {
                    line(format_args!("where alpha is not 1: {other}"));
                }
                line(format_args!(
                    "memory: {} bytes of scratch, shared by the handle's plans, {} of its {WORKSPACE_BYTES} bytes of workspace, \
                     {} bytes of repeated scales in each B",
                    self.scratch_bytes(),
                    product.workspace_bytes(),
                    self.repeated_scale_bytes(),
                ));
            }
            if let Some(quantize) = self.desc.quantize_a {
                let Scratch { codes, scales, .. } = outline.scratch;
                line(format_args!(
                    "A quantized in each call ({quantize}), in scratch: {codes} bytes of codes, {scales} of scales"
                ));
            }
            if let Some(Values { dtype, b: ValueSource::Codes, .. }) = outline.sum.values {
                if outline.scratch.a > 0 {
                    line(format_args!(
                        "A dequantized to {dtype} in each call, in scratch: {} bytes",
                        outline.scratch.a
                    ));
                }
                if self.desc.kept != KeptWeights::Nothing {
                    line(format_args!(
                        "B's codes are read, not the values that it keeps (QuantMatrix::forget_dequantized frees them)"
                    ));
                }
            } else if let Some(Values { dtype, .. }) = outline.sum.values {
                let Scratch { a, b, .. } = outline.scratch;
                line(format_args!("dequantized to {dtype} in each call, in scratch: {a} bytes of A, {b} bytes of B"));
                match self.desc.kept {
                    KeptWeights::Dequantized(kept) if kept != dtype => line(format_args!(
                        "the {kept} values that B keeps are of no use: keep {dtype} (QuantMatrix::keep_dequantized)"
                    )),
                    KeptWeights::Dequantized(_) => line(format_args!("B's own {dtype} values are used")),
                    KeptWeights::Nothing => {}
                }
            }
            if outline.sum.rows != self.desc.m {
                line(format_args!("m = {} is computed as {} rows", self.desc.m, outline.sum.rows));
            }
            for reason in &candidate.passed_over {
                line(format_args!("finish not taken: {reason}"));
            }
        }
        if let Some(us) = self.measured_us {
            line(format_args!("measured: {us:.2} us"));
        }
        for rejected in &self.rejected {
            line(format_args!("not taken: {rejected}"));
        }
        text
    }
}
