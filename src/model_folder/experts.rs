//! [`ExpertTensor`]: the weights of a layer's experts in one tensor of rank 3, as the checkpoints of an architecture have them.

use super::ModelConfig;
use crate::checkpoint::Dialect;

/// What engines that read experts one by one take them in: vLLM 0.33.0 makes every name `experts.E.gate_proj.X` a part of its own
/// (layers/fused_moe/routed_experts.py:1004 and :1151, and the hand-written loaders named below).
const ONE_BY_ONE: &[Dialect] = &[Dialect::Fp8, Dialect::CompressedTensors, Dialect::ModelOpt];

/// Gate and up, in this order wherever one tensor holds both.
const GATE_UP: &[&str] = &["gate_proj", "up_proj"];
const DOWN: &[&str] = &["down_proj"];

/// A tensor of rank 3 that holds a weight of every expert of a layer.
///
/// It is `[experts, in, out]` or `[experts, out, in]`; `in` is what a product sums over, and what quantized rows run along. The
/// rows of an expert's matrix `[out, in]` are one weight, or gate and up: halves, or in turn. The matrices of experts that are
/// written one by one are `LAYER.E.gate_proj.weight`, `LAYER.E.up_proj.weight` and `LAYER.E.down_proj.weight`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ExpertTensor {
    /// How the names of such tensors end.
    ending: &'static str,
    /// The same for the layer that its matrices belong to.
    layer: &'static str,
    parts: &'static [&'static str],
    transposed: bool,
    interleaved: bool,
    dialects: &'static [Dialect],
}

const fn tensor(ending: &'static str, layer: &'static str, parts: &'static [&'static str]) -> ExpertTensor {
    ExpertTensor { ending, layer, parts, transposed: false, interleaved: false, dialects: ONE_BY_ONE }
}

/// `[experts, in, out]`.
const fn transposed(ending: &'static str, layer: &'static str, parts: &'static [&'static str]) -> ExpertTensor {
    ExpertTensor { transposed: true, ..tensor(ending, layer, parts) }
}

/// Architectures by their `model_type`, and the tensors of their layers. Read in transformers 5.23.0, where a published tensor has
/// the shape of the class unless conversion_mapping.py says otherwise, and in the loaders of vLLM 0.33.0 and SGLang 0.5.23.
const KNOWN: [(&[&str], &[ExpertTensor]); 7] = [
    // transformers models/llama4/modeling_llama4.py:61, :70 (`x @ W`, halves); vLLM models/llama4.py:555 reads experts one by
    // one, SGLang models/mllama4.py:663; llm-compressor 0.14.0.1 modeling/moe/llama4.py writes them so.
    (
        &["llama4", "llama4_text"],
        &[transposed(".experts.gate_up_proj", ".experts", GATE_UP), transposed(".experts.down_proj", ".experts", DOWN)],
    ),
    // transformers conversion_mapping.py:1361: the files are transposed, the class is not; vLLM models/qwen3_vl_moe.py with
    // qwen3_moe.py, SGLang models/qwen3_vl_moe.py:228; ModelOpt 0.47.0 torch/export/moe_utils.py:47 writes them one by one.
    (
        &["qwen3_vl_moe", "qwen3_vl_moe_text"],
        &[transposed(".experts.gate_up_proj", ".experts", GATE_UP), transposed(".experts.down_proj", ".experts", DOWN)],
    ),
    // transformers models/qwen3_5_moe/modeling_qwen3_5_moe.py:840 and models/gemma4/modeling_gemma4.py:1271; SGLang
    // models/qwen3_5.py:2112 and models/gemma4_causal.py:1281 read both forms.
    (
        &["qwen3_5_moe", "qwen3_5_moe_text", "gemma4", "gemma4_text"],
        &[tensor(".experts.gate_up_proj", ".experts", GATE_UP), tensor(".experts.down_proj", ".experts", DOWN)],
    ),
    // transformers conversion_mapping.py:853, models/granitemoe/modeling_granitemoe.py:144; vLLM models/granitemoehybrid.py:406,
    // SGLang models/granitemoe.py:498.
    (
        &["granitemoe", "granitemoeshared", "granitemoehybrid"],
        &[
            tensor(".block_sparse_moe.input_linear.weight", ".block_sparse_moe.experts", GATE_UP),
            tensor(".block_sparse_moe.output_linear.weight", ".block_sparse_moe.experts", DOWN),
        ],
    ),
    // transformers conversion_mapping.py:843, models/aria/modeling_aria.py:284. vLLM's mapper of Llama (models/llama.py:354, taken
    // over in models/aria.py:272) makes `experts.E.gate_proj` half of a fused layer, and so misreads experts one by one.
    (
        &["aria", "aria_text"],
        &[
            ExpertTensor { dialects: &[], ..transposed(".experts.fc1.weight", ".experts", GATE_UP) },
            ExpertTensor { dialects: &[], ..transposed(".experts.fc2.weight", ".experts", DOWN) },
        ],
    ),
    // vLLM models/step3p5.py:600 (`[experts, out, in]`, gate and up apart) and :667 (one by one).
    (
        &["step3p5", "step3p7"],
        &[
            tensor(".moe.gate_proj.weight", ".moe.experts", &["gate_proj"]),
            tensor(".moe.up_proj.weight", ".moe.experts", &["up_proj"]),
            tensor(".moe.down_proj.weight", ".moe.experts", DOWN),
        ],
    ),
    // transformers models/gpt_oss/modeling_gpt_oss.py:74, :81 (even columns gate, odd ones up). vLLM models/gpt_oss.py:1285 and
    // :1346 and transformers integrations/mxfp4.py:228 read MXFP4 of all experts in one tensor, and no experts one by one.
    (
        &["gpt_oss"],
        &[
            ExpertTensor {
                interleaved: true,
                dialects: &[Dialect::GptOss],
                ..transposed(".experts.gate_up_proj", ".experts", GATE_UP)
            },
            ExpertTensor { dialects: &[Dialect::GptOss], ..transposed(".experts.down_proj", ".experts", DOWN) },
        ],
    ),
];

impl ExpertTensor {
    /// Those of gpt-oss, which alone has MXFP4 as `NAME_blocks` and `NAME_scales`: where no config names an architecture, this does.
    pub fn of_gpt_oss() -> &'static [ExpertTensor] {
        KNOWN.iter().find(|(types, _)| types.contains(&"gpt_oss")).map_or(&[], |(_, tensors)| tensors)
    }
}

impl ModelConfig {
    /// The tensors that hold weights of all experts in this architecture, by its `model_type`; none where it is not known.
    pub fn expert_tensors(&self) -> &'static [ExpertTensor] {
        let of = |model_type: &str| KNOWN.iter().find(|(types, _)| types.contains(&model_type));
        self.model_types().find_map(of).map_or(&[], |(_, tensors)| tensors)
    }
}

impl ExpertTensor {
    /// True for the name of such a tensor.
    pub fn is(&self, name: &str) -> bool {
        name.ends_with(self.ending)
    }

    /// The weights of an expert that it holds: `gate_proj` and `up_proj`, or one.
    pub fn parts(&self) -> &'static [&'static str] {
        self.parts
    }

    /// True for `[experts, in, out]`, false for `[experts, out, in]`.
    pub fn is_transposed(&self) -> bool {
        self.transposed
    }

    /// True if an engine reads quantized experts of this architecture in a dialect; every one is read here.
    pub fn is_read_in(&self, dialect: Dialect) -> bool {
        dialect == Dialect::Plain || self.dialects.contains(&dialect)
    }

    /// Experts, rows and columns of the matrices `[out, in]` of a tensor of this shape; `None` if it has another rank.
    pub fn matrices(&self, shape: &[usize]) -> Option<[usize; 3]> {
        let [experts, a, b] = *shape else { return None };
        Some(if self.transposed { [experts, b, a] } else { [experts, a, b] })
    }

    /// The shape of a tensor of so many matrices of `rows x cols`: what [`ExpertTensor::matrices`] undoes.
    pub fn shape(&self, [experts, rows, cols]: [usize; 3]) -> [usize; 3] {
        if self.transposed { [experts, cols, rows] } else { [experts, rows, cols] }
    }

    /// The rows of a part among `rows` rows of an expert: the first, the distance from one to the next, their number. `None` where
    /// the parts do not divide them.
    pub fn rows_of(&self, part: usize, rows: usize) -> Option<[usize; 3]> {
        let parts = self.parts.len();
        let count = rows / parts;
        (part < parts && rows.is_multiple_of(parts)).then_some(match self.interleaved {
            true => [part, parts, count],
            false => [part * count, 1, count],
        })
    }

    /// The layer of a tensor: what its matrices are parts of, and what lists of layers that are left alone name.
    pub fn layer(&self, name: &str) -> Option<String> {
        Some(format!("{}{}", name.strip_suffix(self.ending)?, self.layer))
    }

    /// The name of the matrix of one expert and part of a tensor.
    pub fn matrix(&self, name: &str, expert: usize, part: usize) -> Option<String> {
        Some(format!("{}.{expert}.{}.weight", self.layer(name)?, self.parts.get(part)?))
    }

    /// The tensor that a matrix of one expert is of, which expert, and which part: what [`ExpertTensor::matrix`] undoes.
    pub fn tensor_of(&self, matrix: &str) -> Option<(String, usize, usize)> {
        let (rest, part) = matrix.strip_suffix(".weight")?.rsplit_once('.')?;
        let part = self.parts.iter().position(|known| *known == part)?;
        let (layer, expert) = rest.rsplit_once('.')?;
        // `01` would be another name.
        let expert = expert.parse().ok().filter(|number: &usize| number.to_string() == expert)?;
        Some((format!("{}{}", layer.strip_suffix(self.layer)?, self.ending), expert, part))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(model_type: &str) -> &'static [ExpertTensor] {
        KNOWN.iter().find(|(types, _)| types.contains(&model_type)).unwrap().1
    }

    #[test]
    fn names_go_there_and_back() {
        for tensor in KNOWN.iter().flat_map(|(_, tensors)| *tensors) {
            let name = format!("model.layers.3.mlp{}", tensor.ending);
            assert!(tensor.is(&name));
            for (part, last) in tensor.parts().iter().enumerate() {
                let matrix = tensor.matrix(&name, 17, part).unwrap();
                assert!(matrix.ends_with(&format!("experts.17.{last}.weight")), "{matrix}");
                assert_eq!(tensor.tensor_of(&matrix), Some((name.clone(), 17, part)));
            }
            assert_eq!(tensor.shape(tensor.matrices(&[2, 3, 4]).unwrap()), [2, 3, 4]);
            assert_eq!(tensor.matrices(&[2, 3]), None);
        }
        let [gate_up, down] = known("llama4") else { panic!() };
        assert_eq!(gate_up.matrices(&[16, 5120, 16384]), Some([16, 16384, 5120]));
        for other in ["l.experts.01.gate_proj.weight", "l.experts.x.gate_proj.weight", "l.mlp.gate_proj.weight"] {
            assert_eq!(gate_up.tensor_of(other), None, "{other}");
        }
        assert_eq!(down.tensor_of("l.experts.1.gate_proj.weight"), None);
    }

    #[test]
    fn gate_and_up_lie_in_halves_or_in_turn() {
        let [llama, oss] = ["llama4", "gpt_oss"].map(|model_type| known(model_type)[0]);
        assert_eq!([llama.rows_of(0, 6), llama.rows_of(1, 6)], [Some([0, 1, 3]), Some([3, 1, 3])]);
        assert_eq!([oss.rows_of(0, 6), oss.rows_of(1, 6)], [Some([0, 2, 3]), Some([1, 2, 3])]);
        assert_eq!([llama.rows_of(0, 5), llama.rows_of(2, 6)], [None, None]);
        assert!(llama.is_read_in(Dialect::Fp8) && !llama.is_read_in(Dialect::ComfyUi));
        assert!(
            oss.is_read_in(Dialect::GptOss) && oss.is_read_in(Dialect::Plain) && !oss.is_read_in(Dialect::ModelOpt)
        );
    }
}
