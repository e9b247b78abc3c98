//! The linear layers of models, and what they come to for one token of each sequence.

use std::collections::BTreeMap;

use scaled_gemm::models::WeightShape;

use crate::device::{DecodeTime, Pair, PlainChained};

/// A linear layer: its weight, and how many of them each token passes.
pub struct Layer {
    pub shape: WeightShape,
    count: usize,
    /// Each is one of so many experts, of which a token takes one.
    experts: usize,
}

/// The linear layers of a model, but for embedding, router and head.
pub struct Model {
    name: &'static str,
    pub layers: &'static [Layer],
}

const fn dense(shape: WeightShape, count: usize) -> Layer {
    Layer { shape, count, experts: 1 }
}

/// DeepSeek-V3: 61 layers of attention, 3 of them with a dense MLP, 58 with a shared expert and 8 of 256.
pub const MODELS: [Model; 3] = [
    Model {
        name: "DeepSeek-V3",
        layers: &[
            dense((2112, 7168), 61),
            dense((24576, 1536), 61),
            dense((32768, 512), 61),
            dense((7168, 16384), 61),
            dense((36864, 7168), 3),
            dense((7168, 18432), 3),
            dense((4096, 7168), 58),
            dense((7168, 2048), 58),
            Layer { shape: (4096, 7168), count: 58 * 8, experts: 256 },
            Layer { shape: (7168, 2048), count: 58 * 8, experts: 256 },
        ],
    },
    Model {
        name: "Llama-3-70B",
        layers: &[
            dense((10240, 8192), 80),
            dense((8192, 8192), 80),
            dense((57344, 8192), 80),
            dense((8192, 28672), 80),
        ],
    },
    Model {
        name: "Qwen3-32B",
        layers: &[
            dense((10240, 5120), 64),
            dense((5120, 8192), 64),
            dense((51200, 5120), 64),
            dense((5120, 25600), 64),
        ],
    },
];

/// Of a token's `count` layers for m tokens: rows of A of one product, and how many products there are.
pub fn products(layer: &Layer, m: usize) -> (usize, f64) {
    if layer.experts == 1 {
        return (m, layer.count as f64);
    }
    // Tokens choose 8 of the experts of a block, evenly and each for itself: so many are chosen by one or more, with so many rows each.
    let (experts, chosen) = (layer.experts as f64, 8.0);
    let met = experts * (1.0 - (1.0 - chosen / experts).powi(m as i32));
    let rows = (m as f64 * chosen / met).ceil() as usize;
    (rows, layer.count as f64 / chosen * met)
}

/// How the estimate counts experts, which is not how they are multiplied fastest.
pub const OF_EXPERTS: &str = "experts are chosen evenly and counted as one product each; GroupedGemmArgs multiplies all of a layer's in one launch, which is not in these \
                              sums: cargo bench --bench experts times it";

/// A product: rows of A, the weight, the pair.
pub type Key = (usize, WeightShape, String);

/// All linear layers of a model for m tokens, with quantization of A.
pub struct Estimate {
    pub model: &'static str,
    pub pair: String,
    pub m: usize,
    /// From weights that are repacked, in every layer that has such an order.
    pub repacked: bool,
    /// Microseconds by BF16.
    pub baseline_us: PlainChained,
    /// Microseconds by the pair.
    pub us: PlainChained,
}

impl Estimate {
    pub fn tokens_per_second(&self) -> PlainChained {
        self.us.map(|us| self.rate(us))
    }

    pub fn baseline_tokens_per_second(&self) -> PlainChained {
        self.baseline_us.map(|us| self.rate(us))
    }

    fn rate(&self, us: f64) -> f64 {
        self.m as f64 / us * 1e6
    }

    /// Times faster than BF16.
    pub fn x_bf16(&self) -> PlainChained {
        [0, 1].map(|i| self.baseline_us[i] / self.us[i])
    }

    /// How the codes of the weights lie.
    pub fn order(&self) -> &'static str {
        if self.repacked { "repacked" } else { "published" }
    }
}

/// Each model of which all layers were measured, for each pair and m: as weights are published, then repacked, where any of them can be.
pub fn estimates(ms: &[usize], pairs: &[Pair], times: &BTreeMap<Key, DecodeTime>) -> Vec<Estimate> {
    let mut found = Vec::new();
    for model in &MODELS {
        for pair in pairs.iter().map(Pair::name) {
            for &m in ms {
                let layers: Option<Vec<_>> = model
                    .layers
                    .iter()
                    .map(|layer| {
                        let (rows, count) = products(layer, m);
                        times.get(&(rows, layer.shape, pair.clone())).map(|time| (count, time))
                    })
                    .collect();
                let Some(layers) = layers else { continue };
                let sum = |of: &dyn Fn(&DecodeTime) -> PlainChained| {
                    [0, 1].map(|i| layers.iter().map(|(count, time)| count * of(time)[i]).sum())
                };
                let baseline_us = sum(&|time| time.baseline_us);
                let mut add = |repacked, us| {
                    found.push(Estimate { model: model.name, pair: pair.clone(), m, repacked, baseline_us, us });
                };
                add(false, sum(&|time| time.both_us));
                if layers.iter().any(|(_, time)| time.repacked.is_some()) {
                    add(true, sum(&|time| time.repacked.map_or(time.both_us, |repacked| repacked.both_us)));
                }
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::RepackedTime;

    #[test]
    fn experts_are_met_as_often_as_tokens_choose_them() {
        let dense = dense((8, 32), 3);
        assert_eq!(products(&dense, 16), (16, 3.0));
        let expert = Layer { shape: (8, 32), count: 8, experts: 256 };
        assert_eq!(products(&expert, 1), (1, 8.0), "one token meets its eight");
        let (rows, count) = products(&expert, 8);
        // 256 (1 - (31/32)^8) = 57.4 experts share 64 rows.
        assert!(rows == 2 && (57.0..58.0).contains(&count), "{rows} {count}");
        // So many tokens that all are met.
        let (rows, count) = products(&expert, 4096);
        assert!(rows == 128 && (255.9..=256.0).contains(&count), "{rows} {count}");
    }

    /// Every layer of the second model: the first takes 1 us of quantization and product, the next 2, and so on.
    fn times(pair: &str, repacked: impl Fn(usize) -> Option<RepackedTime>) -> BTreeMap<Key, DecodeTime> {
        let layer = |(at, layer): (usize, &Layer)| {
            let us = (at + 1) as f64;
            let time = DecodeTime {
                baseline_us: [2.0 * us, 1.6 * us],
                both_us: [us, us / 2.0],
                ways: vec![("small-m fused".into(), [us / 4.0, us / 8.0])],
                repacked: repacked(at),
                weight_bytes: 0,
                error: 0.0,
            };
            ((1, layer.shape, pair.to_string()), time)
        };
        MODELS[1].layers.iter().enumerate().map(layer).collect()
    }

    #[test]
    fn a_model_adds_up_its_layers() {
        let pairs = Pair::of_schemes(&["fp8-row"], &[]);
        let found = estimates(&[1, 2], &pairs, &times("fp8-row x fp8-row", |_| None));
        // What was not measured is not estimated, and weights without another order have one estimate.
        let [one] = &found[..] else { panic!("{} estimates", found.len()) };
        assert_eq!(
            (one.model, one.pair.as_str(), one.m, one.order()),
            ("Llama-3-70B", "fp8-row x fp8-row", 1, "published")
        );
        // 80 layers of (1 + 2 + 3 + 4) us.
        assert_eq!((one.baseline_us, one.us), ([1600.0, 1280.0], [800.0, 400.0]));
        assert_eq!((one.tokens_per_second(), one.baseline_tokens_per_second()), ([1250.0, 2500.0], [625.0, 781.25]));
        assert_eq!(one.x_bf16(), [2.0, 3.2]);
    }

    #[test]
    fn repacked_weights_have_an_estimate_of_their_own() {
        let pairs = Pair::of_schemes(&["nvfp4"], &[]);
        // The last layer has no such order: it counts as published.
        let repacked = |at: usize| (at < 3).then_some(RepackedTime { us: [0.25, 0.125], both_us: [0.5, 0.25] });
        let found = estimates(&[1], &pairs, &times("bf16 x nvfp4", repacked));
        let [published, repacked] = &found[..] else { panic!("{} estimates", found.len()) };
        assert_eq!((published.order(), published.us), ("published", [800.0, 400.0]));
        assert_eq!((repacked.order(), repacked.us), ("repacked", [80.0 * (1.5 + 4.0), 80.0 * (0.75 + 2.0)]));
        assert_eq!((repacked.model, repacked.m, repacked.baseline_us), ("Llama-3-70B", 1, published.baseline_us));
    }

    #[test]
    fn tokens_are_counted_for_all_sequences() {
        let [baseline_us, us] = [[4000.0, 2000.0], [2000.0, 1000.0]];
        let one = Estimate { model: "any", pair: "any".into(), m: 16, repacked: false, baseline_us, us };
        assert_eq!((one.tokens_per_second(), one.baseline_tokens_per_second()), ([8000.0, 16000.0], [4000.0, 8000.0]));
    }
}
