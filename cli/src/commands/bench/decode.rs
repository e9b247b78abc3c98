//! `bench --decode`: the products of a model when it makes one token for each of m sequences: every way, in turns, and what all of its linear
//! layers come to.

mod models;

use std::collections::BTreeMap;

use scaled_gemm::Error;
use scaled_gemm::models::WeightShape;
use serde_json::{Value, json};

use self::models::{Estimate, Key, MODELS, OF_EXPERTS, estimates, products};
use super::{facts, facts_value};
use crate::args::BenchArgs;
use crate::device::{DecodeTime, Device, Pair, PlainChained};
use crate::output::{Failure, note, number, step_bar, table};

/// Rows of A where none are asked for.
const ROWS: [usize; 3] = [1, 8, 16];
/// Schemes of weights where none are asked for.
const SCHEMES: [&str; 3] = ["fp8-128x128", "fp8-row", "nvfp4"];

/// A product that is to be measured.
type Wanted = (usize, WeightShape, Pair);

/// Text and JSON, and what failed.
pub fn run(args: &BenchArgs, device: &mut dyn Device) -> Result<(String, Value, Option<String>), Failure> {
    let ms: Vec<usize> = if args.m.is_empty() { ROWS.to_vec() } else { args.m.iter().map(|&m| m as usize).collect() };
    let schemes = if args.schemes.is_empty() { SCHEMES.to_vec() } else { args.schemes.clone() };
    let pairs = Pair::of_schemes(&schemes, &args.activations);
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
            bar.suspend(|| note(&format!("{m} x {n} x {k} {}: {by} {} us", pair.name(), number(us[0]))));
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

/// What was found of a product beside its microseconds.
struct Ratios {
    /// Bytes of weights a second, in parts of those of the copy.
    of_copy: PlainChained,
    /// Times faster than BF16.
    x_bf16: PlainChained,
    /// The best other way, and times faster than it; `None` where there is no other.
    best_other: [Option<(String, f64)>; 2],
}

impl Ratios {
    fn new(time: &DecodeTime, copy: f64) -> Self {
        let us = time.ways[0].1;
        let best = |i: usize| {
            let (name, other) = time.ways[1..].iter().min_by(|a, b| a.1[i].total_cmp(&b.1[i]))?;
            Some((name.clone(), other[i] / us[i]))
        };
        Self {
            of_copy: us.map(|us| time.weight_bytes as f64 / us * 1e6 / copy),
            x_bf16: [0, 1].map(|i| time.baseline_us[i] / us[i]),
            best_other: [0, 1].map(best),
        }
    }

    /// The name of the best other way, of both where another is the best in a chain.
    fn other(&self) -> String {
        match &self.best_other {
            [Some((plain, _)), Some((chained, _))] if plain != chained => format!("{plain}; chained: {chained}"),
            [Some((name, _)), _] => name.clone(),
            [None, _] => "none".into(),
        }
    }
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
        "chained",
        "x best other",
        "chained",
        "best other",
    ];
    let rows: Vec<[String; 19]> = times
        .iter()
        .map(|((m, (n, k), pair), time)| {
            let repacked = |i: usize| time.repacked.map_or_else(String::new, |repacked| number(repacked.us[i]));
            let ratios = Ratios::new(time, copy);
            let x_other = |i: usize| ratios.best_other[i].as_ref().map_or_else(String::new, |(_, x)| number(*x));
            let (by, us) = &time.ways[0];
            [
                m.to_string(),
                n.to_string(),
                k.to_string(),
                pair.clone(),
                by.clone(),
                number(us[0]),
                number(us[1]),
                number(time.both_us[0]),
                number(time.both_us[1]),
                repacked(0),
                repacked(1),
                number(ratios.of_copy[0] * copy * 1e-12),
                number(ratios.of_copy[0]),
                number(ratios.of_copy[1]),
                number(ratios.x_bf16[0]),
                number(ratios.x_bf16[1]),
                x_other(0),
                x_other(1),
                ratios.other(),
            ]
        })
        .collect();
    text += &table(header, 0, &rows);
    text += "\nx: times faster, without quantization of A; chained: than BF16, or the best other way, in a chain, too. Weights are cold; calls follow one another as in a \
             captured graph, chained: in a scope of Handle::chain, planned for it (GemmDesc::chained), in the same formulation; repacked: \
             the planned product with QuantMatrix::repack; empty where the weights have no such order.\n\n";
    text += &format!(
        "Linear layers of models, added up from the products above, with quantization of A, and again from repacked weights where they have such an order (attention, \
         norms, router and head not counted; {OF_EXPERTS}):\n\n"
    );
    let header = [
        "model",
        "tokens at once",
        "A x B",
        "weights",
        "ms",
        "chained",
        "tokens/s",
        "chained",
        "bf16 tokens/s",
        "chained",
        "x bf16",
        "chained",
    ];
    let rows: Vec<[String; 12]> = models
        .iter()
        .map(|e| {
            let [ms, ours, bf16, x] =
                [e.us.map(|us| us * 1e-3), e.tokens_per_second(), e.baseline_tokens_per_second(), e.x_bf16()]
                    .map(|both| both.map(number));
            let [[ms, ms_chained], [ours, ours_chained], [bf16, bf16_chained], [x, x_chained]] = [ms, ours, bf16, x];
            [
                e.model.into(),
                e.m.to_string(),
                e.pair.clone(),
                e.order().into(),
                ms,
                ms_chained,
                ours,
                ours_chained,
                bf16,
                bf16_chained,
                x,
                x_chained,
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
            let way = |(way, us): &(String, PlainChained)| json!({"way": way, "us": us[0], "chained_us": us[1]});
            let ratios = Ratios::new(time, copy);
            let other = ratios.best_other.map(|other| other.map(|(way, x)| json!({"way": way, "x": x})));
            json!({
                "m": m, "n": n, "k": k, "pair": pair, "baseline_us": time.baseline_us[0], "baseline_chained_us": time.baseline_us[1],
                "both_us": time.both_us[0], "chained_us": [time.ways[0].1[1], time.both_us[1]],
                "ways": time.ways.iter().map(way).collect::<Vec<_>>(),
                "repacked_us": time.repacked.map(|repacked| repacked.us), "repacked_both_us": time.repacked.map(|repacked| repacked.both_us),
                "of_copy_rate": ratios.of_copy, "x_bf16": ratios.x_bf16, "best_other": other,
                "weight_bytes": time.weight_bytes, "error_of_bound": time.error,
            })
        })
        .collect();
    let models: Vec<Value> = models
        .iter()
        .map(|e| {
            json!({
                "model": e.model, "m": e.m, "pair": e.pair, "weights": e.order(), "baseline_us": e.baseline_us[0], "baseline_chained_us": e.baseline_us[1],
                "us": e.us[0], "chained_us": e.us[1], "tokens_per_second": e.tokens_per_second(), "x_bf16": e.x_bf16(),
            })
        })
        .collect();
    json!({
        "device": device.name(), "title": device.title(), "facts": facts_value(device), "baseline": device.baseline(),
        "method": device.method(), "copy_bytes_per_second": copy, "rows": rows, "models": models, "experts": OF_EXPERTS, "not_run": skipped,
        "command": std::env::args().collect::<Vec<_>>().join(" "),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::args::DeviceChoice;
    use crate::device::{self, RepackedTime};

    fn time() -> DecodeTime {
        DecodeTime {
            baseline_us: [20.0, 18.0],
            both_us: [12.0, 9.0],
            ways: vec![
                ("small-m fused".into(), [10.0, 8.0]),
                ("native fused".into(), [15.0, 16.0]),
                ("dequantized-bf16 fused, weights kept dequantized".into(), [25.0, 14.0]),
            ],
            repacked: Some(RepackedTime { us: [7.0, 5.0], both_us: [8.5, 6.5] }),
            weight_bytes: 40_000_000,
            error: 0.5,
        }
    }

    /// Bytes a second of the copy.
    const COPY: f64 = 4e12;

    /// One product with all that can be said of one, one by the one way that there is, and an estimate of each kind.
    fn found() -> (BTreeMap<Key, DecodeTime>, Vec<Estimate>) {
        let alone = DecodeTime { ways: vec![("small-m fused".into(), [10.0, 8.0])], repacked: None, ..time() };
        let times = [
            ((1, (4096, 7168), "bf16 x nvfp4".to_string()), time()),
            ((8, (4096, 7168), "bf16 x fp8-row".to_string()), alone),
        ];
        let estimate = |repacked, us| Estimate {
            model: "Llama-3-70B",
            pair: "bf16 x nvfp4".into(),
            m: 2,
            repacked,
            baseline_us: [4000.0, 3600.0],
            us,
        };
        (times.into(), vec![estimate(false, [2000.0, 1600.0]), estimate(true, [1000.0, 800.0])])
    }

    /// The cells of a line that are not empty.
    fn cells(line: &str) -> Vec<&str> {
        line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
    }

    #[test]
    fn ratios_are_of_both_ways_to_call() {
        let ratios = Ratios::new(&time(), COPY);
        assert_eq!((ratios.of_copy, ratios.x_bf16), ([1.0, 1.25], [2.0, 2.25]));
        let [Some((plain, x)), Some((chained, x_chained))] = &ratios.best_other else { panic!("there are others") };
        assert_eq!((plain.as_str(), *x), ("native fused", 1.5));
        assert_eq!((chained.as_str(), *x_chained), ("dequantized-bf16 fused, weights kept dequantized", 1.75));
        assert_eq!(ratios.other(), "native fused; chained: dequantized-bf16 fused, weights kept dequantized");
        let mut two = time();
        two.ways.truncate(2);
        assert_eq!(Ratios::new(&two, COPY).other(), "native fused");
        two.ways.truncate(1);
        let alone = Ratios::new(&two, COPY);
        assert!(alone.best_other.iter().all(Option::is_none) && alone.other() == "none");
    }

    #[test]
    fn the_tables_say_what_was_measured() {
        let device = device::open(DeviceChoice::Cpu).ok().unwrap();
        let (times, models) = found();
        let text = describe(device.as_ref(), COPY, &times, &models, &["1 x 2 x 3: too large".into()]);
        let mut lines = text.lines().skip_while(|line| !line.contains("best other"));
        let header = cells(lines.next().unwrap());
        let row = cells(lines.next().unwrap());
        assert_eq!(row[..5], ["1", "4096", "7168", "bf16 x nvfp4", "small-m fused"]);
        // Alone, with A quantized, repacked; then bytes and their part of the copy, x bf16, x best other.
        assert_eq!(row[5..11], ["10", "8", "12", "9", "7", "5"]);
        assert_eq!(row[11..18], ["4", "1", "1.25", "2", "2.25", "1.50", "1.75"]);
        assert_eq!(header.len(), row.len());
        for (name, at) in [("x bf16", 14), ("x best other", 16)] {
            assert_eq!((header[at], header[at + 1]), (name, "chained"));
        }
        // Neither repacked nor another way: empty cells.
        let alone = cells(lines.next().unwrap());
        assert_eq!((alone.len(), alone[3], alone[alone.len() - 1]), (15, "bf16 x fp8-row", "none"));
        let mut lines = text.lines().skip_while(|line| !line.contains("tokens at once"));
        let header = cells(lines.next().unwrap());
        assert_eq!(header[8..], ["bf16 tokens/s", "chained", "x bf16", "chained"]);
        let model = ["Llama-3-70B", "2", "bf16 x nvfp4"];
        let published = ["published", "2", "1.60", "1000", "1250", "500", "556", "2", "2.25"];
        let repacked = ["repacked", "1", "0.800", "2000", "2500", "500", "556", "4", "4.50"];
        for want in [published, repacked] {
            assert_eq!(cells(lines.next().unwrap()), [&model[..], &want].concat());
        }
        assert!(text.contains(OF_EXPERTS) && text.ends_with("not run: 1 x 2 x 3: too large\n"), "{text}");
    }

    #[test]
    fn the_record_holds_what_the_tables_say() {
        let device = device::open(DeviceChoice::Cpu).ok().unwrap();
        let (times, models) = found();
        let value = record(device.as_ref(), COPY, &times, &models, &["one".into()]);
        let row = &value["rows"][0];
        for (key, want) in [
            ("baseline_us", json!(20.0)),
            ("baseline_chained_us", json!(18.0)),
            ("both_us", json!(12.0)),
            ("chained_us", json!([8.0, 9.0])),
            ("repacked_us", json!([7.0, 5.0])),
            ("repacked_both_us", json!([8.5, 6.5])),
            ("of_copy_rate", json!([1.0, 1.25])),
            ("x_bf16", json!([2.0, 2.25])),
            ("error_of_bound", json!(0.5)),
        ] {
            assert_eq!(row[key], want, "{key}");
        }
        assert_eq!(row["ways"][1], json!({"way": "native fused", "us": 15.0, "chained_us": 16.0}));
        assert_eq!(row["best_other"][0], json!({"way": "native fused", "x": 1.5}));
        assert_eq!(row["best_other"][1]["x"], 1.75);
        let alone = &value["rows"][1];
        assert!(alone["repacked_us"].is_null() && alone["best_other"] == json!([null, null]), "{alone:#}");
        let [published, repacked] = [0, 1].map(|at| &value["models"][at]);
        assert_eq!((&published["weights"], &repacked["weights"]), (&json!("published"), &json!("repacked")));
        assert_eq!((&published["us"], &published["chained_us"]), (&json!(2000.0), &json!(1600.0)));
        assert_eq!(
            (&repacked["tokens_per_second"], &repacked["x_bf16"]),
            (&json!([2000.0, 2500.0]), &json!([4.0, 4.5]))
        );
        assert_eq!((&value["experts"], &value["not_run"]), (&json!(OF_EXPERTS), &json!(["one"])));
        assert_eq!((&value["device"], &value["copy_bytes_per_second"]), (&json!("cpu"), &json!(COPY)));
    }

    #[test]
    fn what_fails_loses_nothing_of_what_was_measured() {
        let pair = Pair::of_schemes(&["fp8-row"], &[])[0];
        let wanted: Vec<Wanted> = (1..=4).map(|m| (m, (64, 32), pair)).collect();
        let time = |error| Ok(DecodeTime { error, ..time() });
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
}
