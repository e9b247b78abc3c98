//! Algorithms as values: what the heuristic offers, and what a record keeps of it.

use cublaslt_sys::{
    cublasLtMatmulAlgo_t, cublasLtMatmulAlgoConfigAttributes_t as Config, cublasLtMatmulHeuristicResult_t,
};

use super::{AlgoConfig, Status};
use crate::error::Result;

/// An algorithm for one problem: 64 opaque bytes that hold for one library version and GPU, and what it needs.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Algo {
    words: [u64; 8],
    workspace_bytes: usize,
    waves: f32,
}

/// The heuristic's answer.
#[derive(Debug)]
pub(crate) enum Heuristic {
    /// Best first, at least one.
    Offered(Vec<Algo>),
    /// The library does not do this problem on this GPU.
    Refused(Status),
}

impl Algo {
    pub(crate) fn workspace_bytes(&self) -> usize {
        self.workspace_bytes
    }

    /// How often the GPU is filled by the thread blocks.
    pub(crate) fn waves(&self) -> f32 {
        self.waves
    }

    /// The 64 bytes, for a record. There is no way back: what the library is given, it has offered itself.
    pub(crate) fn to_words(&self) -> [u64; 8] {
        self.words
    }

    /// An algorithm that nobody offered.
    #[cfg(test)]
    pub(crate) fn from_words(words: [u64; 8]) -> Self {
        Self { words, workspace_bytes: 0, waves: 0.0 }
    }

    pub(super) fn opaque(&self) -> cublasLtMatmulAlgo_t {
        cublasLtMatmulAlgo_t { data: self.words }
    }

    pub(super) fn offered(result: &cublasLtMatmulHeuristicResult_t) -> Self {
        Self { words: result.algo.data, workspace_bytes: result.workspaceSize, waves: result.wavesCount }
    }

    /// What it is made of.
    pub(crate) fn config(&self) -> Result<AlgoConfig> {
        Ok(AlgoConfig {
            id: self.config_value(Config::CUBLASLT_ALGO_CONFIG_ID)?,
            tile: self.config_value(Config::CUBLASLT_ALGO_CONFIG_TILE_ID)?,
            stages: self.config_value(Config::CUBLASLT_ALGO_CONFIG_STAGES_ID)?,
            split_k: self.config_value(Config::CUBLASLT_ALGO_CONFIG_SPLITK_NUM)?,
            reduction: self.config_value(Config::CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME)?,
            swizzle: self.config_value(Config::CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING)?,
            custom: self.config_value(Config::CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION)?,
            inner_shape: self.config_value(Config::CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID)?,
            cluster_shape: self.config_value(Config::CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID)?,
        })
    }
}
