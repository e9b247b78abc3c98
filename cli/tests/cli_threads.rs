//! Threads that the system does not give. (It was a panic.)
#![cfg(target_os = "linux")]

mod common;

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::process::{Command, Output};

use common::*;

/// The program as a user who may have so many threads; `None` where this user cannot become another, and has them without limit.
fn run_with(threads: u32, args: &[&str]) -> Option<Output> {
    let uid = 54_321 + std::process::id() % 1_000_000;
    let user = [&format!("--reuid={uid}"), "--clear-groups", "prlimit", &format!("--nproc={threads}")];
    let mut limited = Command::new("setpriv");
    limited.args(user).arg(program()).args(args).args(["--device", "cpu"]);
    let output = limited.output().ok()?;
    // What setpriv and prlimit say of themselves.
    let error = String::from_utf8_lossy(&output.stderr);
    if error.starts_with("setpriv: ") || error.starts_with("prlimit: ") { None } else { Some(output) }
}

/// Whatever the number is at which they end, there is one line with the remedy, and no file.
#[test]
fn threads_that_cannot_be_made_are_an_error_with_a_remedy() {
    let folder = Folder::new();
    fs::set_permissions(&folder.0, fs::Permissions::from_mode(0o777)).unwrap();
    let [input, q, y] = ["in", "q", "y"].map(|name| folder.file(&format!("{name}.safetensors")));
    write(&input, &[f32_tensor("a.weight", [64, 64], 1), f32_tensor("b.weight", [64, 64], 2)]);
    good(&["quantize", &input, "-o", &q, "--group", "32x32"]);
    let runs: [&[&str]; 5] = [
        &["quantize", &input, "-o", &y, "--group", "32x32"],
        &["quantize", &input, "-o", &y, "--recipe", "fp8-tensor", "--jobs", "3"],
        &["dequantize", &q, "-o", &y],
        &["gemm", "--a", &format!("{input}:a.weight"), "--b", &format!("{q}:a.weight"), "-o", &y],
        &["info", &q],
    ];
    for args in runs {
        let mut refused = 0;
        for threads in 1..24 {
            let Some(output) = run_with(threads, args) else { return };
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            if !text.contains("no thread can be made") {
                assert!(!text.contains("panicked"), "{args:?} {threads}: {text}");
                // From here on there are enough: the rest is the work's own.
                break;
            }
            refused += 1;
            assert_words(&error_of(&output, 1), &["(os error 11); ", "ulimit -u", "(pids)"]);
            assert!(!fs::exists(&y).unwrap(), "{args:?} {threads}");
            assert_eq!(folder.names(), ["in.safetensors", "q.safetensors"], "{args:?} {threads}");
        }
        assert!(refused > 0, "{args:?}");
        let _ = fs::remove_file(&y);
    }
    let Some(output) = run_with(2, &["verify"]) else { return };
    assert_words(
        &error_of(&output, 1),
        &["the threads for the work on the CPU: no thread can be made", "; raise the limit"],
    );
    let Some(output) = run_with(2, &["quantize", &input, "-o", &y, "--group", "32x32", "--jobs", "700"]) else {
        return;
    };
    assert_words(
        &error_of(&output, 1),
        &["the threads of --jobs 700: no thread can be made", "; give fewer, raise the limit"],
    );
}
