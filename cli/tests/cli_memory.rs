//! Memory of `quantize`: some parts of matrices on their way, whatever the size of these.

#![cfg(target_os = "linux")]

mod common;

use std::fs;

use common::{Folder, program, values, write};
use safetensors::tensor::Dtype;

/// Most memory that a run took, in KiB, as it was last seen.
fn most_memory(args: &[&str]) -> u64 {
    let none = std::process::Stdio::null;
    let mut run = std::process::Command::new(program());
    let mut child = run.args(args).args(["--device", "cpu"]).stdout(none()).stderr(none()).spawn().unwrap();
    let (place, mut most) = (format!("/proc/{}/status", child.id()), 0);
    let status = loop {
        let text = fs::read_to_string(&place).unwrap_or_default();
        let line = text.lines().find_map(|line| line.strip_prefix("VmHWM:")?.strip_suffix("kB"));
        most = line.and_then(|number| number.trim().parse().ok()).unwrap_or(most);
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        std::thread::sleep(std::time::Duration::from_millis(1));
    };
    assert!(status.success() && most > 0, "{args:?}");
    most
}

const RECIPES: [&[&str]; 5] = [
    &["--recipe", "nvfp4"],
    &["--recipe", "nvfp4", "--hadamard"],
    &["--recipe", "nvfp4", "--stochastic", "1"],
    &["--recipe", "nvfp4", "--hadamard", "--stochastic", "1"],
    &["--recipe", "fp8-tensor"],
];

/// Parts are of some megabytes, and of a bounded number: eight times the matrices take no more memory. (Where a matrix was
/// quantized as a whole it was there as it was read, as FP32 and, transformed, as FP32 again: 18 MiB and 144.)
#[test]
fn memory_does_not_grow_with_a_matrix() {
    let folder = Folder::new();
    let cols = 2048;
    let input = |name: &str, rows: usize| {
        let bytes: Vec<u8> =
            values(rows * cols, 3).iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
        let path = folder.file(name);
        let matrix = |name| (name, Dtype::BF16, vec![rows, cols], bytes.clone());
        write(&path, &[matrix("l.0.weight"), matrix("l.1.weight"), matrix("l.2.weight")]);
        path
    };
    // Of 6 and 48 MiB. The first are more than a part, so that as many are on their way.
    let (small, large, output) = (input("small", 1536), input("large", 8 * 1536), folder.file("out"));
    let mut wrong = Vec::new();
    for recipe in RECIPES {
        let run = |input: &str| {
            let most = most_memory(&[&["quantize", input, "-o", &output], recipe].concat());
            fs::remove_file(&output).unwrap();
            most
        };
        let (few, many) = (run(&small), run(&large));
        // What differs is how many parts meet by chance: half a matrix, where one as a whole would be five.
        if many > few + 24 * 1024 {
            wrong.push(format!("{recipe:?}: {few} KiB of small matrices, {many} of large ones"));
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
}

/// (It took four bytes for each value, of matrices that are quantized whole.)
#[test]
fn a_given_amax_takes_no_memory() {
    let folder = Folder::new();
    let (input, file, output) = (folder.file("in"), folder.file("amax"), folder.file("out"));
    let n = 3072;
    let bytes = values(n * n, 1).iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
    write(&input, &[("l.weight", Dtype::BF16, vec![n, n], bytes)]);
    fs::write(&file, r#"{"l": 1.5}"#).unwrap();
    let args = ["quantize", &input, "-o", &output, "--recipe", "nvfp4", "--stochastic", "1"];
    let without = most_memory(&args);
    fs::remove_file(&output).unwrap();
    let with = most_memory(&[&args[..], &["--weight-amax", &file]].concat());
    let four_bytes = (4 * n * n / 1024) as u64;
    assert!(with < without + four_bytes / 3, "{without} KiB without, {with} with");
}
