//! What a product of few rows needs where its blocks do not meet in a cluster: parts of sums lie in memory, and `kernels/gemm/small_m_join.cu` adds them.

use super::Kernels;
use super::launch::{Blocks, THREADS, enqueue};
use super::operand::{check_aligned, check_bytes};
use super::small_m_codes::SmallMWeights;
use super::small_m_weights::{SmallMWeightsCall, SmallMWeightsProblem};
use crate::error::{Error, Result};
use crate::format::DType;
use crate::gpu::device::stream::Queue;

impl Kernels {
    /// Enqueues the sum of parts that the kernel before left in memory, and the end of the product.
    pub(super) fn join_parts(
        &self,
        stream: &Queue,
        call: &SmallMWeightsCall<'_>,
        problem: SmallMWeightsProblem,
    ) -> Result<()> {
        let grid = Blocks::new((call.n.div_ceil(THREADS as usize), call.m), THREADS);
        enqueue!(stream, self.small_m_weights(stream)?.join, grid, problem, call.unit())
    }
}

impl SmallMWeightsCall<'_> {
    /// Of a GPU with clusters or without: the configuration, and memory for its parts of sums.
    pub(super) fn check_parts(&self, clusters: bool) -> Result<()> {
        let (config, bytes) = (self.config, self.config.parts_bytes(clusters, [self.m, self.n]));
        if !clusters && config.needs_clusters() {
            return Err(Error::unsupported(
                format!("a small-m product in {config}"),
                "its blocks meet in a cluster, which GPUs have since sm_90",
                "choose a split of 1, or blocks that are tiles",
            ));
        }
        match self.scratch {
            Some(parts) if bytes > 0 => {
                check_bytes("parts of sums", parts, bytes)?;
                check_aligned("parts of sums", parts, 4)
            }
            None if bytes > 0 => Err(Error::shape(
                "parts of sums",
                "no memory",
                format!("{bytes} bytes for {config}"),
                "report it: a launch of this crate forgot it",
            )),
            _ => Ok(()),
        }
    }

    /// What the sum of products is multiplied by: `Unit` of `kernels/gemm/small_m_e2m1.cuh`.
    pub(super) fn unit(&self) -> f32 {
        match (self.weights, self.a_type) {
            (SmallMWeights::Nvfp4 | SmallMWeights::Nvfp4Repacked, DType::F16) => 16384.0,
            (SmallMWeights::Nvfp4 | SmallMWeights::Nvfp4Repacked, _) => 256.0,
            _ => 1.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::epilogue::Activation;
    use crate::gpu::device::memory::Span;
    use crate::gpu::kernels::small_m_config::{SmallMBlock, SmallMConfig};
    use crate::gpu::kernels::small_m_end::SmallMEnd;

    #[test]
    fn parts_need_memory_where_there_are_no_clusters() {
        let some = Span::unguarded(0x7F00_0000_0000, 1 << 20);
        let check = |block, split, parts: Option<&Span<'_>>, clusters| {
            let end = SmallMEnd {
                alpha: 1.0,
                beta: 0.0,
                bias: None,
                activation: Activation::None,
                residual: None,
                d: &some,
                d_stride: 64,
                d_type: DType::Bf16,
            };
            let call = SmallMWeightsCall {
                config: SmallMConfig::new(block, split).unwrap(),
                m: 3,
                n: 64,
                k: 256,
                a: &some,
                a_stride: 256,
                a_type: DType::Bf16,
                a_is_made: false,
                weights: SmallMWeights::Nvfp4,
                codes: &some,
                scales: Some(&some),
                outer: [None; 2],
                scratch: parts,
                end,
            };
            call.check_parts(clusters).err().map_or(String::new(), |error| error.to_string())
        };
        use SmallMBlock::{Eight, Tile};
        let bytes = 4 * 3 * 64 * 4;
        let parts = |more: i64| Span::unguarded(0x7F00_0000_0000, (bytes + more) as usize);
        assert_eq!(check(Tile, 4, Some(&parts(0)), false), "");
        assert!(check(Tile, 4, Some(&parts(-1)), false).contains("parts of sums"));
        let odd = Span::unguarded(0x7F00_0000_0002, bytes as usize);
        assert!(check(Tile, 4, Some(&odd), false).contains("4-byte aligned"));
        assert!(check(Tile, 4, None, false).contains("3072 bytes"));
        assert_eq!(
            [check(Tile, 4, None, true), check(Eight, 4, None, true), check(Eight, 1, None, false)],
            ["", "", ""]
        );
        assert!(check(Eight, 2, Some(&parts(0)), false).contains("sm_90"));
    }
}
