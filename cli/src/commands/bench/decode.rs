//! `bench --decode`: the products of a model when it makes one token for each of m sequences: every way, in turns, and what all of its linear
//! layers come to.

use std::collections::BTreeMap;

use scaled_gemm::Error;
use scaled_gemm::models::WeightShape;
use serde_json::{Value, json};

use super::{facts, facts_value};
use crate::args::BenchArgs;
use crate::device::{DecodeTime, Device, Pair};
use crate::output::{Failure, note, number, step_bar, table};

/// Rows of A where none are asked for.
const ROWS: [usize; 3] = [1, 8, 16];
/// Schemes of weights where none are asked for.
const SCHEMES: [&str; 3] = ["fp8-128x128", "fp8-row", "nvfp4"];

/// A linear layer: its weight, and how many of them each token passes.
struct Layer {
    shape: WeightShape,
    count: usize,
    /// Each is one of so many experts, of which a token takes one.
    experts: usize,
}

/// The linear layers of a model, but for embedding, router and head.
struct Model {
    name: &'static str,
    layers: &'static [Layer],
}

const fn dense(shape: WeightShape, count: usize) -> Layer {
    Layer { shape, count, experts: 1 }
}

/// DeepSeek-V3: 61 layers of attention, 3 of them with a dense MLP, 58 with a shared expert and 8 of 256.
const MODELS: [Model; 3] = [
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
fn products(layer: &Layer, m: usize) -> (usize, f64) {
    if layer.experts == 1 {
        return (m, layer.count as f64);
    }
    // Tokens choose 8 of the experts of a block, evenly and each for itself: so many are chosen by one or more, with so many rows each.
    let (experts, chosen) = (layer.experts as f64, 8.0);
    let met = experts * (1.0 - (1.0 - chosen / experts).powi(m as i32));
    let rows = (m as f64 * chosen / met).ceil() as usize;
    (rows, layer.count as f64 / chosen * met)
}

/// A product: rows of A, the weight, the pair.
type Key = (usize, WeightShape, String);

/// A product that is to be measured.
type Wanted = (usize, WeightShape, Pair);

/// Text and JSON, and what failed.
pub fn run(args: &BenchArgs, device: &mut dyn Device) -> Result<(String, Value, Option<String>), Failure> {
    let ms: Vec<usize> = if args.m.is_empty() { ROWS.to_vec() } else { args.m.iter().map(|&m| m as usize).collect() };
    let schemes = if args.schemes.is_empty() { SCHEMES.to_vec() } else { args.schemes.clone() };
    let pairs: Vec<Pair> = schemes.iter().flat_map(|name| Pair::of_weights(name)).collect();
    let mut wanted: Vec<Wanted> = Vec::new();
    for model in &MODELS {
        for layer in model.layers {
            for &m in &ms {
                let (rows, _) = products(layer, m);
                wanted.extend(pairs.iter().map(|&pair| (rows, layer.shape, pair)));
            }
        }
    }
    // What is made of one weight is measured together.
    wanted.sort_by_key(|&(rows, shape, pair)| (shape, rows, pair.name()));
    wanted.dedup();
    let bar = step_bar(device, 1 + wanted.len());
    let copy = device.copy_rate()?;
    bar.inc(1);
    let mut skipped = Vec::new();
    wanted.retain(|&(m, (n, k), pair)| match device.check_memory([m, n, k], args.out_dtype) {
        Ok(()) => true,
        Err(failure) => {
            skipped.push(format!("{m} x {n} x {k} {}: {}", pair.name(), failure.into_message()));
            bar.inc(1);
            false
        }
    });
    let (times, failed) = measure(&wanted, &mut skipped, |(m, (n, k), pair)| {
        bar.set_message(format!("{m} x {n} x {k} {}", pair.name()));
        let time = device.time_decode([m, n, k], pair, args.out_dtype);
        if let Ok(DecodeTime { ways, .. }) = &time {
            // A run of minutes may be ended from outside: what was found is on standard error by then.
            let (by, us) = &ways[0];
            bar.suspend(|| note(&format!("{m} x {n} x {k} {}: {by} {} us", pair.name(), number(*us))));
        }
        bar.inc(1);
        time
    })?;
    bar.finish_and_clear();
    let models = estimates(&ms, &pairs, &times);
    let text = describe(device, copy, &times, &models, &skipped);
    Ok((text, record(device, copy, &times, &models, &skipped), failed))
}

/// Measures each product. What is refused, and what does not fit beside others in the GPU's memory, is skipped; another failure of the driver ends the
/// run with what was measured before it, and is given back, as a wrong product is. One before anything was measured is an error of its own kind.
fn measure(
    wanted: &[Wanted],
    skipped: &mut Vec<String>,
    mut time: impl FnMut(Wanted) -> scaled_gemm::Result<DecodeTime>,
) -> Result<(BTreeMap<Key, DecodeTime>, Option<String>), Failure> {
    let (mut times, mut failed) = (BTreeMap::<Key, DecodeTime>::new(), None);
    for &(m, (n, k), pair) in wanted {
        let what = format!("{m} x {n} x {k} {}", pair.name());
        if failed.is_some() {
            skipped.push(format!("{what}: the run ended before it"));
            continue;
        }
        match time((m, (n, k), pair)) {
            Ok(found) => {
                if found.error.is_nan() || found.error > 1.0 {
                    failed = Some(format!("{what} is wrong: error {} of its bound; please report it", found.error));
                }
                times.insert((m, (n, k), pair.name()), found);
            }
            Err(error) => {
                let goes_on = match &error {
                    Error::Shape { .. } | Error::Pair { .. } => true,
                    Error::Driver { reason, .. } => reason.contains("OUT_OF_MEMORY"),
                    _ => false,
                };
                if !goes_on && times.is_empty() {
                    return Err(error.into());
                }
                let message = Failure::from(error).into_message();
                if !goes_on {
                    failed = Some(format!("{what}: {message}"));
                }
                skipped.push(format!("{what}: {message}"));
            }
        }
    }
    Ok((times, failed))
}

/// All linear layers of a model for m tokens: microseconds by BF16 and by the pair, with quantization of A, plain and chained.
struct Estimate {
    model: &'static str,
    pair: String,
    m: usize,
    us: [f64; 3],
}

impl Estimate {
    fn tokens_per_second(&self) -> [f64; 3] {
        self.us.map(|us| self.m as f64 / us * 1e6)
    }
}

fn estimates(ms: &[usize], pairs: &[Pair], times: &BTreeMap<Key, DecodeTime>) -> Vec<Estimate> {
    let mut found = Vec::new();
    for model in &MODELS {
        for pair in pairs.iter().map(Pair::name) {
            for &m in ms {
                let mut us = [0.0; 3];
                let all = model.layers.iter().all(|layer| {
                    let (rows, count) = products(layer, m);
                    let time = times.get(&(rows, layer.shape, pair.clone()));
                    let add = |sum: f64, one: f64| sum + count * one;
                    let each = |time: &DecodeTime| [time.baseline_us, time.both_us, time.chained_us[1]];
                    time.map(|time| us = std::array::from_fn(|i| add(us[i], each(time)[i]))).is_some()
                });
                if all {
                    found.push(Estimate { model: model.name, pair: pair.clone(), m, us });
                }
            }
        }
    }
    found
}

fn describe(
    device: &dyn Device,
    copy: f64,
    times: &BTreeMap<Key, DecodeTime>,
    models: &[Estimate],
    skipped: &[String],
) -> String {
    let mut text = facts(device);
    text += &format!("baseline      {}\ncopy          {} GB/s read + write\n", device.baseline(), number(copy * 1e-9));
    text += &format!("times         {}\n\n", device.method());
    let header = [
        "m",
        "n",
        "k",
        "A x B",
        "by",
        "us",
        "chained",
        "with A quantized",
        "chained",
        "us repacked",
        "chained",
        "weights TB/s",
        "of the copy",
        "chained",
        "x bf16",
        "x best other",
        "best other",
    ];
    let rows: Vec<[String; 17]> = times
        .iter()
        .map(|((m, (n, k), pair), time)| {
            let repacked = |i: usize| time.repacked_us.map_or_else(String::new, |us| number(us[i]));
            let (by, us) = &time.ways[0];
            let rate = time.weight_bytes as f64 / us * 1e6;
            let other = time.ways[1..].iter().min_by(|a, b| a.1.total_cmp(&b.1));
            [
                m.to_string(),
                n.to_string(),
                k.to_string(),
                pair.clone(),
                by.clone(),
                number(*us),
                number(time.chained_us[0]),
                number(time.both_us),
                number(time.chained_us[1]),
                repacked(0),
                repacked(1),
                number(rate * 1e-12),
                number(rate / copy),
                number(rate / copy * us / time.chained_us[0]),
                number(time.baseline_us / us),
                other.map_or_else(String::new, |(_, other)| number(other / us)),
                other.map_or_else(|| "none".into(), |(name, _)| name.clone()),
            ]
        })
        .collect();
    text += &table(header, 0, &rows);
    text += "\nx: times faster, without quantization of A. Weights are cold; calls follow one another as in a captured graph, \
             chained: in a scope of Handle::chain; repacked: \
             the planned product with QuantMatrix::repack; empty where the weights have no such order.\n\n";
    text += "Linear layers of models, added up from the products above, with quantization of A (attention, norms, router and head not counted; \
             experts chosen evenly):\n\n";
    let header = ["model", "tokens at once", "A x B", "ms", "tokens/s", "chained", "bf16 tokens/s", "x bf16"];
    let rows: Vec<[String; 8]> = models
        .iter()
        .map(|e| {
            let [plain, ours, chained] = e.tokens_per_second();
            let number = |v: f64| number(v);
            [
                e.model.into(),
                e.m.to_string(),
                e.pair.clone(),
                number(e.us[1] * 1e-3),
                number(ours),
                number(chained),
                number(plain),
                number(e.us[0] / e.us[1]),
            ]
        })
        .collect();
    text += &table(header, 0, &rows);
    for line in skipped {
        text += &format!("not run: {line}\n");
    }
    text
}

fn record(
    device: &dyn Device,
    copy: f64,
    times: &BTreeMap<Key, DecodeTime>,
    models: &[Estimate],
    skipped: &[String],
) -> Value {
    let rows: Vec<Value> = times
        .iter()
        .map(|((m, (n, k), pair), time)| {
            let ways: Vec<Value> = time.ways.iter().map(|(way, us)| json!({"way": way, "us": us})).collect();
            json!({
                "m": m, "n": n, "k": k, "pair": pair, "baseline_us": time.baseline_us, "both_us": time.both_us, "chained_us": time.chained_us,
                "ways": ways, "repacked_us": time.repacked_us,
                "weight_bytes": time.weight_bytes, "error_of_bound": time.error,
            })
        })
        .collect();
    let models: Vec<Value> = models
        .iter()
        .map(|e| json!({"model": e.model, "m": e.m, "pair": e.pair, "baseline_us": e.us[0], "us": e.us[1], "chained_us": e.us[2]}))
        .collect();
    json!({
        "device": device.name(), "title": device.title(), "facts": facts_value(device), "baseline": device.baseline(),
        "method": device.method(), "copy_bytes_per_second": copy, "rows": rows, "models": models, "not_run": skipped,
        "command": std::env::args().collect::<Vec<_>>().join(" "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn what_fails_loses_nothing_of_what_was_measured() {
        let pair = Pair::of_weights("fp8-row")[0];
        let wanted: Vec<Wanted> = (1..=4).map(|m| (m, (64, 32), pair)).collect();
        let time = |error| {
            Ok(DecodeTime {
                baseline_us: 1.0,
                both_us: 1.0,
                chained_us: [1.0; 2],
                ways: Vec::new(),
                repacked_us: None,
                weight_bytes: 0,
                error,
            })
        };
        let driver = |reason: &str| Err(Error::Driver { call: "allocating".into(), reason: reason.into() });
        let run = |of_second: &dyn Fn() -> scaled_gemm::Result<DecodeTime>| {
            let mut skipped = Vec::new();
            let (times, failed) =
                measure(&wanted, &mut skipped, |(m, ..)| if m == 2 { of_second() } else { time(0.5) }).ok().unwrap();
            (times.keys().map(|key| key.0).collect::<Vec<_>>(), skipped, failed)
        };
        let (times, skipped, failed) = run(&|| driver("CUDA_ERROR_OUT_OF_MEMORY: out of memory"));
        assert_eq!((times, skipped.len(), failed), (vec![1, 3, 4], 1, None));
        assert!(skipped[0].starts_with("2 x 64 x 32 fp8-row x fp8-row: ") && skipped[0].contains("OUT_OF_MEMORY"));
        let (times, skipped, failed) = run(&|| driver("CUDA_ERROR_ILLEGAL_ADDRESS"));
        assert_eq!((times, skipped.len()), (vec![1], 3));
        assert!(failed.unwrap().contains("ILLEGAL_ADDRESS") && skipped[2].contains("ended before it"));
        let (times, skipped, failed) = run(&|| time(1.5));
        assert_eq!((times, skipped.len()), (vec![1, 2], 2));
        assert!(failed.unwrap().contains("error 1.5 of its bound"));
    }

    #[test]
    fn a_model_adds_up_its_layers() {
        let pair = Pair::of_weights("fp8-row")[0];
        let mut times = BTreeMap::new();
        let model = &MODELS[1];
        for (i, layer) in model.layers.iter().enumerate() {
            let us = (i + 1) as f64;
            let time = DecodeTime {
                baseline_us: 2.0 * us,
                both_us: us,
                chained_us: [us; 2],
                ways: Vec::new(),
                repacked_us: None,
                weight_bytes: 0,
                error: 0.0,
            };
            times.insert((1, layer.shape, pair.name()), time);
        }
        let found = estimates(&[1, 2], &[pair], &times);
        // What was not measured is not estimated.
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].model, found[0].m, found[0].us), ("Llama-3-70B", 1, [1600.0, 800.0, 800.0]));
        assert_eq!(found[0].tokens_per_second(), [625.0, 1250.0, 1250.0]);
    }
}
