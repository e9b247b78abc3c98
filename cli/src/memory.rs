//! Whether a problem fits in memory: asked before anything is allocated, since a failed allocation ends a program.

use std::fs;

use crate::output::{Failure, bytes};

/// Bytes that this program may still take: what the system has free, or what its group of processes may have. `None` where the
/// system does not say.
pub fn available() -> Option<u64> {
    let free = fs::read_to_string("/proc/meminfo").ok().and_then(|text| {
        let line = text.lines().find_map(|line| line.strip_prefix("MemAvailable:"))?;
        Some(line.split_whitespace().next()?.parse::<u64>().ok()? * 1024)
    });
    let limit = fs::read_to_string("/sys/fs/cgroup/memory.max").ok().and_then(|text| text.trim().parse::<u64>().ok());
    free.into_iter().chain(limit).min()
}

/// Refuses what needs more bytes than there are. `what` is the problem, `place` whose memory it is.
pub fn require(what: &str, need: u64, have: Option<u64>, place: &str) -> Result<(), Failure> {
    match have {
        Some(have) if need > have => Err(Failure::Use(format!(
            "{what} takes at least {}, and {place} has {}; choose a smaller problem",
            bytes(need),
            bytes(have)
        ))),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn too_much_is_refused_with_both_numbers() {
        assert!(require("x", 10, Some(10), "this machine").is_ok() && require("x", 10, None, "this machine").is_ok());
        let Err(Failure::Use(message)) = require("1 x 2 x 3", 3 << 40, Some(5 << 30), "this machine") else {
            panic!("3 TiB fit in 5 GiB");
        };
        assert_eq!(
            message,
            "1 x 2 x 3 takes at least 3.00 TiB, and this machine has 5.00 GiB; choose a smaller problem"
        );
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn this_machine_has_some_memory() {
        let bytes = available().unwrap();
        assert!((1 << 20..1 << 50).contains(&bytes), "{bytes}");
    }
}
