//! Threads that the system does not give. (It was a panic.)
#![cfg(target_os = "linux")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use common::*;

/// Cores that the work is spread over, whatever the machine has: the numbers below are enough for so many.
const CORES: &str = "4";

/// The program as a user who may have so many threads; `None`, and a line that says so, where this user cannot become another, and has them without limit.
fn run_with(threads: u32, args: &[&str]) -> Option<Output> {
    let uid = 54_321 + std::process::id() % 1_000_000;
    let user = [&format!("--reuid={uid}"), "--clear-groups", "prlimit", &format!("--nproc={threads}")];
    let mut limited = Command::new("setpriv");
    limited.args(user).arg(program()).args(args).args(["--device", "cpu"]).env("RAYON_NUM_THREADS", CORES);
    let ran = limited.output().map_err(|e| format!("setpriv: {e}")).and_then(|output| {
        // What setpriv and prlimit say of themselves.
        let error = String::from_utf8_lossy(&output.stderr);
        match error.starts_with("setpriv: ") || error.starts_with("prlimit: ") {
            true => Err(error.trim_end().to_string()),
            false => Ok(output),
        }
    });
    ran.inspect_err(|e| println!("skipped: no limit of threads can be set: {e}")).ok()
}

/// Whatever the number is at which they end, there is one line with the remedy, and no file; with all that are needed, there is the whole work.
/// (The numbers after the first that is not refused were not tried, what that run said was not looked at, and what was multiplied was refused.)
#[test]
fn threads_that_cannot_be_made_are_an_error_with_a_remedy() {
    let folder = Folder::new();
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o777)).unwrap();
    let [input, q, y] = ["in", "q", "y"].map(|name| folder.file(&format!("{name}.safetensors")));
    let amax = folder.file("amax.json");
    fs::write(&amax, r#"{"a": 0.5}"#).unwrap();
    write(&input, &[f32_tensor("a.weight", [64, 64], 1), f32_tensor("b.weight", [64, 64], 2)]);
    good(&["quantize", &input, "-o", &q, "--recipe", "fp8-row"]);
    // (The scale that an amax makes was looked at before the threads were made.)
    let given = ["quantize", &input, "-o", &y, "--recipe", "fp8-tensor", "--weight-amax", &amax];
    let runs: [&[&str]; 7] = [
        &["quantize", &input, "-o", &y, "--group", "32x32"],
        &["quantize", &input, "-o", &y, "--recipe", "fp8-tensor", "--jobs", "3"],
        &given,
        &[&given[..], &["--dry-run"]].concat(),
        &["dequantize", &q, "-o", &y],
        &["gemm", "--a", &format!("{q}:a.weight"), "--b", &format!("{q}:b.weight"), "-o", &y],
        &["info", &q],
    ];
    for args in runs {
        let (mut refused, mut whole) = (0, 0);
        let writes = args.contains(&"-o") && !args.contains(&"--dry-run");
        for threads in 1..24 {
            let Some(output) = run_with(threads, args) else { return };
            if output.status.code() == Some(0) {
                whole += 1;
                assert_eq!(fs::exists(&y).unwrap(), writes, "{args:?} {threads}");
                let _ = fs::remove_file(&y);
                continue;
            }
            refused += 1;
            assert_words(
                &error_of(&output, 1),
                &["no thread can be made", "(os error 11); ", "ulimit -u", "(pids)", "ulimit -v"],
            );
            assert!(!fs::exists(&y).unwrap(), "{args:?} {threads}");
            assert_eq!(folder.names(), ["amax.json", "in.safetensors", "q.safetensors"], "{args:?} {threads}");
        }
        assert!(refused > 0 && whole > 0, "{args:?}: {refused} refused, {whole} whole");
    }
    let Some(output) = run_with(2, &["verify"]) else { return };
    assert_words(
        &error_of(&output, 1),
        &["the threads for the work on the CPU: no thread can be made", "; raise the limit"],
    );
    for args in [&["quantize", &input, "-o", &y, "--group", "32x32"][..], &given] {
        let Some(output) = run_with(2, &[args, &["--jobs", "700"]].concat()) else { return };
        assert_words(
            &error_of(&output, 1),
            &["the threads of --jobs 700: no thread can be made", "; give fewer, raise the limit"],
        );
    }
    // A plan alone takes no thread, but that of signals.
    for recipe in ["fp8-tensor", "nvfp4"] {
        let args = ["quantize", &input, "-o", &y, "--recipe", recipe, "--weight-amax", &amax, "--dry-run"];
        let Some(output) = run_with(2, &args) else { return };
        let text = String::from_utf8_lossy(&output.stderr).into_owned();
        assert_eq!(output.status.code(), Some(0), "{recipe}: {text}");
    }
}

/// A stack that finds no memory is the same error to the system: the remedy names memory, too.
#[test]
fn threads_whose_stacks_find_no_memory_are_told_of_its_limit() {
    let folder = Folder::new();
    let [input, y] = ["in", "y"].map(|name| folder.file(&format!("{name}.safetensors")));
    write(&input, &[f32_tensor("a.weight", [64, 64], 1)]);
    // Where below this the program has its code, but no stacks, depends on how it was built.
    let mut refused = 0;
    for mib in 16..80 {
        let mut limited = Command::new("prlimit");
        limited.arg(format!("--as={}", mib << 20)).arg(program());
        limited.args(["quantize", &input, "-o", &y, "--group", "32x32", "--device", "cpu"]);
        let output = match limited.output() {
            Ok(output) => output,
            Err(e) => return println!("skipped: no limit of memory can be set: prlimit: {e}"),
        };
        if output.status.code() == Some(1) && String::from_utf8_lossy(&output.stderr).contains("no thread can be made")
        {
            assert_words(&error_of(&output, 1), &["(os error 11); ", "of memory (ulimit -v)"]);
            refused += 1;
        }
    }
    if refused == 0 {
        println!("skipped: no limit of memory left the program without a stack alone");
    }
}
