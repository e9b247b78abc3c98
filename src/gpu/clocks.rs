//! The clock and the power of the GPU while something is timed, as `nvidia-smi` tells them. For records only.
//!
//! Its clock is sampled and averaged: short launches run slower than it says (1540 to 1630 MHz where it says 1980, observed:
//! H200, 2026-11). Within one run it tells a GPU at its power limit from one that is not.

use std::fmt;
use std::io::{BufRead, BufReader};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Instant;

use crate::gpu::device::memory::driver;
use crate::gpu::handle::Handle;
use crate::reference::median;

/// Milliseconds between two readings.
const EVERY_MS: u32 = 50;

/// SM clock in MHz and power in watts, since an earlier moment.
#[derive(Debug, Clone, PartialEq)]
#[non_exhaustive]
pub enum Clocks {
    /// What was read.
    Read {
        /// Least, median and greatest SM clock.
        sm_mhz: [f64; 3],
        /// Median power.
        watts: f64,
    },
    /// Nothing was read, and why.
    NotRead(String),
}

impl Clocks {
    fn of(readings: &[(f64, f64)]) -> Option<Self> {
        let sorted = |mut values: Vec<f64>| {
            values.sort_by(f64::total_cmp);
            values
        };
        let clocks = sorted(readings.iter().map(|r| r.0).collect());
        let watts = sorted(readings.iter().map(|r| r.1).collect());
        let (least, greatest) = (*clocks.first()?, *clocks.last()?);
        Some(Self::Read { sm_mhz: [least, median(&clocks)?, greatest], watts: median(&watts)? })
    }
}

impl fmt::Display for Clocks {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Read { sm_mhz: [least, median, greatest], watts } => {
                write!(f, "SM {median:.0} MHz ({least:.0}-{greatest:.0}), {watts:.0} W")
            }
            Self::NotRead(reason) => write!(f, "clock not read: {reason}"),
        }
    }
}

#[derive(Default)]
struct Readings {
    taken: Vec<(Instant, (f64, f64))>,
    failure: Option<String>,
}

/// Reads clock and power of a handle's GPU twenty times a second until it is dropped.
pub struct ClockWatch {
    readings: Arc<Mutex<Readings>>,
    /// `nvidia-smi`; none where it did not start.
    program: Option<Child>,
}

impl ClockWatch {
    /// Starts `nvidia-smi` for the handle's GPU. Never fails: [`ClockWatch::since`] says why nothing was read.
    pub fn start(handle: &Handle) -> Self {
        let readings = Arc::new(Mutex::new(Readings::default()));
        let program = match spawn(handle, &readings) {
            Ok(program) => Some(program),
            Err(reason) => {
                lock(&readings).failure = Some(reason);
                None
            }
        };
        Self { readings, program }
    }

    /// What was read since `start`.
    pub fn since(&self, start: Instant) -> Clocks {
        let readings = lock(&self.readings);
        let taken: Vec<(f64, f64)> = readings.taken.iter().filter(|r| r.0 >= start).map(|r| r.1).collect();
        Clocks::of(&taken).unwrap_or_else(|| {
            let silent = || format!("nvidia-smi said nothing in {:.0} ms", start.elapsed().as_secs_f64() * 1e3);
            Clocks::NotRead(readings.failure.clone().unwrap_or_else(silent))
        })
    }
}

impl Drop for ClockWatch {
    fn drop(&mut self) {
        if let Some(program) = &mut self.program {
            // It may have ended by itself; nothing depends on it.
            let _ = program.kill();
            let _ = program.wait();
        }
    }
}

fn lock(readings: &Mutex<Readings>) -> MutexGuard<'_, Readings> {
    readings.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The GPU's name for NVIDIA's tools, whatever `CUDA_VISIBLE_DEVICES` hides.
fn uuid(handle: &Handle) -> Result<String, String> {
    let uuid = handle.stream().context().uuid().map_err(|e| driver("reading the GPU's UUID", e).to_string())?;
    let hex: String = uuid.bytes.iter().map(|b| format!("{:02x}", b.to_ne_bytes()[0])).collect();
    Ok(format!("GPU-{}-{}-{}-{}-{}", &hex[..8], &hex[8..12], &hex[12..16], &hex[16..20], &hex[20..]))
}

fn spawn(handle: &Handle, readings: &Arc<Mutex<Readings>>) -> Result<Child, String> {
    let mut program = Command::new("nvidia-smi")
        .args(["--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits"])
        .args(["-i", &uuid(handle)?, "-lms", &EVERY_MS.to_string()])
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .map_err(|e| format!("nvidia-smi does not start: {e}"))?;
    let lines = program.stdout.take().ok_or("nvidia-smi has no output")?;
    let readings = Arc::clone(readings);
    // Ends with the program, whose output it reads.
    let read = move || {
        for line in BufReader::new(lines).lines().map_while(Result::ok) {
            match parse(&line) {
                Some(reading) => lock(&readings).taken.push((Instant::now(), reading)),
                None => lock(&readings).failure = Some(format!("nvidia-smi says {line:?}")),
            }
        }
    };
    if let Err(e) = thread::Builder::new().spawn(read) {
        // Nobody would read what it says.
        let _ = program.kill().and_then(|()| program.wait());
        return Err(format!("no thread can be made that reads nvidia-smi: {e}"));
    }
    Ok(program)
}

/// `1395, 688.21`.
fn parse(line: &str) -> Option<(f64, f64)> {
    let (clock, power) = line.split_once(',')?;
    Some((clock.trim().parse().ok()?, power.trim().parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_nvidia_smi_and_what_is_said_of_them() {
        assert_eq!(parse("1395, 688.21"), Some((1395.0, 688.21)));
        assert_eq!(parse("[N/A], 688.21"), None);
        assert_eq!(parse("No devices were found"), None);
        let read = Clocks::of(&[(1980.0, 120.0), (1395.0, 690.0), (1410.0, 700.4)]).unwrap();
        assert_eq!(read.to_string(), "SM 1410 MHz (1395-1980), 690 W");
        // (Of an even number it was the upper of the two in the middle.)
        let even = Clocks::of(&[(1980.0, 120.0), (1395.0, 690.0), (1410.0, 700.0), (1400.0, 680.0)]).unwrap();
        assert_eq!(even, Clocks::Read { sm_mhz: [1395.0, 1405.0, 1980.0], watts: 685.0 });
        assert_eq!(Clocks::of(&[]), None);
    }

    #[test]
    fn a_missing_program_is_a_reason_and_no_failure() {
        let failure = Some("nvidia-smi does not start: No such file".to_string());
        let watch =
            ClockWatch { readings: Arc::new(Mutex::new(Readings { taken: Vec::new(), failure })), program: None };
        let words = watch.since(Instant::now()).to_string();
        assert_eq!(words, "clock not read: nvidia-smi does not start: No such file");
        let silent = ClockWatch { readings: Arc::default(), program: None };
        assert!(silent.since(Instant::now()).to_string().starts_with("clock not read: nvidia-smi said nothing in"));
    }
}
