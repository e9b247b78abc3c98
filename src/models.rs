//! The linear layers of published models: what benches, measured choices and the program's `--shapes` mean by a name.

/// (n, k) of a weight: out-features and in-features, as B of a product is stored.
pub type WeightShape = (usize, usize);

/// Names of models with the shapes of their weights. `qwen3` is the experts of Qwen3-30B-A3B, then Qwen3-32B.
pub const MODELS: [(&str, &[WeightShape]); 3] = [
    (
        "deepseek-v3",
        &[(2112, 7168), (576, 7168), (24576, 1536), (32768, 512), (7168, 16384), (4096, 7168), (7168, 2048)],
    ),
    ("llama3-70b", &[(10240, 8192), (8192, 8192), (57344, 8192), (8192, 28672)]),
    ("qwen3", &[(1536, 2048), (2048, 768), (10240, 5120), (5120, 8192), (51200, 5120), (5120, 25600)]),
];

/// Every shape of every model, in order.
pub fn weight_shapes() -> impl Iterator<Item = WeightShape> {
    MODELS.iter().flat_map(|(_, shapes)| shapes.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::{DType, pair::check_shape};

    #[test]
    fn every_shape_can_be_multiplied_and_stands_once() {
        let mut shapes: Vec<_> = weight_shapes().collect();
        assert_eq!(shapes.len(), 17);
        shapes.iter().for_each(|&(n, k)| check_shape(1, n, k, DType::Bf16).unwrap());
        shapes.sort_unstable();
        shapes.dedup();
        assert_eq!(shapes.len(), 17);
    }
}
