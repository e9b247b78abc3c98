//! [`ProblemRecord`]: the problem of a record, in the words of the command line.

use serde::{Deserialize, Serialize};

use crate::format::CodeOrder;
use crate::gpu::gemm::desc::GemmDesc;
use crate::gpu::matrix::derived::KeptWeights;

/// [`GemmDesc`] in the words of the command line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct ProblemRecord {
    m: usize,
    n: usize,
    k: usize,
    a: String,
    /// Where the rows of a plain A lie apart. Absent in older records, whose rows are packed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    a_stride: Option<usize>,
    /// How A is quantized in the call. Absent where it is given as it is multiplied.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    quantize_a: Option<String>,
    b: String,
    /// Order of its codes. Absent where they lie as published.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    b_order: Option<String>,
    /// Type of the values that B keeps. Absent in older records, where it keeps none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    kept: Option<String>,
    out: String,
    out_stride: usize,
    bias: Option<String>,
    activation: String,
    residual: Option<String>,
    accumulate: String,
    accumulation: String,
    out_amax: String,
    /// Absent where it is not asked for.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    batch_invariant: bool,
    /// The same.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    chained: bool,
}

impl From<&GemmDesc> for ProblemRecord {
    fn from(desc: &GemmDesc) -> Self {
        Self {
            m: desc.m,
            n: desc.n,
            k: desc.k,
            a: desc.a.to_string(),
            a_stride: (desc.a_stride != desc.k).then_some(desc.a_stride),
            quantize_a: desc.quantize_a.map(|quantize| quantize.to_string()),
            b: desc.b.to_string(),
            b_order: (desc.b_order != CodeOrder::Published).then(|| desc.b_order.to_string()),
            kept: match desc.kept {
                KeptWeights::Nothing => None,
                KeptWeights::Dequantized(dtype) => Some(dtype.to_string()),
            },
            out: desc.out.to_string(),
            out_stride: desc.out_stride,
            bias: desc.epilogue.bias.map(|t| t.to_string()),
            activation: desc.epilogue.activation.name().to_string(),
            residual: desc.epilogue.residual.map(|t| t.to_string()),
            accumulate: desc.accumulate.to_string(),
            accumulation: desc.accumulation.to_string(),
            out_amax: desc.out_amax.to_string(),
            batch_invariant: desc.batch_invariant,
            chained: desc.chained,
        }
    }
}

impl ProblemRecord {
    /// Every field by its name, in words: for refusals.
    pub(super) fn fields(&self) -> [(&'static str, String); 19] {
        let word = |o: &Option<String>| o.clone().unwrap_or_else(|| "none".to_string());
        [
            ("m", self.m.to_string()),
            ("n", self.n.to_string()),
            ("k", self.k.to_string()),
            ("a", self.a.clone()),
            ("a_stride", self.a_stride.unwrap_or(self.k).to_string()),
            ("quantize_a", word(&self.quantize_a)),
            ("b", self.b.clone()),
            ("b_order", word(&self.b_order)),
            ("kept", word(&self.kept)),
            ("out", self.out.clone()),
            ("out_stride", self.out_stride.to_string()),
            ("bias", word(&self.bias)),
            ("activation", self.activation.clone()),
            ("residual", word(&self.residual)),
            ("accumulate", self.accumulate.clone()),
            ("accumulation", self.accumulation.clone()),
            ("out_amax", self.out_amax.clone()),
            ("batch_invariant", self.batch_invariant.to_string()),
            ("chained", self.chained.to_string()),
        ]
    }
}
