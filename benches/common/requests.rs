//! What benchmarks that work when they are asked to (`--requests`) understand alike: `scripts/beside_turns.py` is who asks.

use std::str::FromStr;
use std::time::Duration;

use scaled_gemm::{Cadence, Timing};

/// Whether this process was started to be asked.
pub fn asked() -> bool {
    std::env::args().any(|word| word == "--requests")
}

/// Lines of standard input, until there are no more.
pub fn lines() -> impl Iterator<Item = String> {
    std::io::stdin().lines().map_while(|line| line.ok())
}

/// `CADENCE CALLS LAUNCHES MILLISECONDS` of a request to time.
pub fn timing([cadence, calls, launches, milliseconds]: [&str; 4]) -> Timing {
    let timing = Timing::of(parsed::<Cadence>(cadence)).with_calls(parsed(calls));
    timing.with_launches(parsed(launches)).with_warm_up(Duration::from_millis(parsed(milliseconds)))
}

/// Its answer.
pub fn say_times(times: impl IntoIterator<Item = f64>) {
    let times: Vec<String> = times.into_iter().map(|us| format!("{us:.3}")).collect();
    println!("times {}", times.join(" "));
}

/// The answer to what cannot be done.
pub fn refuse(why: &str) {
    println!("refused {}", why.replace('\n', " "));
}

pub fn parsed<T: FromStr<Err: std::fmt::Debug>>(word: &str) -> T {
    word.parse().unwrap_or_else(|error| panic!("{word}: {error:?}"))
}
