//! What the tests of the program share: folders, small models, another reader of files.

#![allow(dead_code)] // Each test program uses a part.

pub mod quantized;

use std::cell::Cell;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::atomic::{AtomicU32, Ordering};

use safetensors::tensor::{Dtype, SafeTensors, TensorView};
use serde_json::Value;

/// The program: where cargo built it, or in the working folder (`scripts/bundle.sh` carries both there).
pub fn program() -> PathBuf {
    let built = Path::new(env!("CARGO_BIN_EXE_scaled-gemm"));
    if built.exists() { built.to_path_buf() } else { PathBuf::from("./scaled-gemm") }
}

thread_local! {
    /// What [`within_seconds`] allows.
    static SECONDS: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Runs the program on a device.
pub fn run_on(device: &str, args: &[&str]) -> Output {
    let Some(seconds) = SECONDS.get() else {
        return Command::new(program()).args(args).args(["--device", device]).output().unwrap();
    };
    let script = format!("ulimit -t {seconds} && exec \"$0\" \"$@\"");
    let mut limited = Command::new("sh");
    let output = limited.args(["-c", &script]).arg(program()).args(args).args(["--device", device]).output().unwrap();
    assert!(output.status.code().is_some(), "{args:?}: {}, {seconds} s of processors allowed", output.status);
    output
}

/// Each run of the program in this work may take so many seconds of processors, then the system ends it. (By the clock it takes longer
/// on a machine that does other things too.)
pub fn within_seconds<T>(seconds: u64, work: impl FnOnce() -> T) -> T {
    SECONDS.set(Some(seconds));
    let result = work();
    SECONDS.set(None);
    result
}

/// Standard output of a run on the CPU that must succeed.
pub fn good(args: &[&str]) -> String {
    let output = run_on("cpu", args);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{args:?}: {error}");
    String::from_utf8(output.stdout).unwrap()
}

/// Standard error of a run on the CPU that must succeed: what it had to say beside its result.
pub fn said(args: &[&str]) -> String {
    let output = run_on("cpu", args);
    let error = String::from_utf8(output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(0), "{args:?}: {error}");
    error
}

/// Standard output and error of a run on the CPU that found something wrong: exit code 1.
pub fn wrong(args: &[&str]) -> (String, String) {
    let output = run_on("cpu", args);
    let [text, error] = [output.stdout, output.stderr].map(|text| String::from_utf8(text).unwrap());
    assert_eq!(output.status.code(), Some(1), "{args:?}: {text}{error}");
    (text, error)
}

/// The JSON of a run on the CPU that must succeed.
pub fn json(args: &[&str]) -> Value {
    serde_json::from_str(&good(args)).unwrap()
}

/// What a run on the CPU says that must end with this code.
pub fn bad(code: i32, args: &[&str]) -> String {
    error_of(&run_on("cpu", args), code)
}

/// The error of a run that must end with this code: one line on standard error, nothing on standard output.
pub fn error_of(output: &Output, code: i32) -> String {
    let error = std::str::from_utf8(&output.stderr).unwrap();
    assert_eq!(output.status.code(), Some(code), "{error}");
    assert_eq!(output.stdout, b"", "{error}");
    assert_eq!(error.lines().count(), 1, "the message is not one line: {error}");
    error.trim_end().to_string()
}

/// Runs the program with these arguments alone.
pub fn run_bare(args: &[&str]) -> Output {
    Command::new(program()).args(args).output().unwrap()
}

/// A folder that goes away with the test.
pub struct Folder(pub PathBuf);

impl Folder {
    pub fn new() -> Self {
        static COUNTER: AtomicU32 = AtomicU32::new(0);
        let name = format!("scaled-gemm-cli-{}-{}", std::process::id(), COUNTER.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        fs::create_dir_all(&path).unwrap();
        Self(path)
    }

    /// Names of what is in it, sorted.
    pub fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.0).unwrap();
        let mut names: Vec<_> = entries.map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
        names.sort();
        names
    }

    pub fn file(&self, name: &str) -> String {
        self.0.join(name).to_str().unwrap().to_string()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

pub fn assert_words(text: &str, words: &[&str]) {
    for word in words {
        assert!(text.contains(word), "{text:?} lacks {word:?}");
    }
}

pub fn values(n: usize, seed: u32) -> Vec<f32> {
    let mut state = seed.wrapping_mul(2_654_435_761).wrapping_add(1);
    let step = |state: &mut u32| {
        *state ^= *state << 13;
        *state ^= *state >> 17;
        *state ^= *state << 5;
        *state as f32 / u32::MAX as f32 - 0.5
    };
    (0..n).map(|_| step(&mut state) + step(&mut state) + step(&mut state)).collect()
}

pub fn f32_bytes(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|v| v.to_le_bytes()).collect()
}

pub type Tensor<'a> = (&'a str, Dtype, Vec<usize>, Vec<u8>);

pub fn write(path: &str, tensors: &[Tensor]) {
    let views: Vec<_> = tensors
        .iter()
        .map(|(name, dtype, shape, bytes)| (name.to_string(), TensorView::new(*dtype, shape.clone(), bytes).unwrap()))
        .collect();
    let metadata = HashMap::from([("format".to_string(), "pt".to_string())]);
    fs::write(path, safetensors::serialize(views, Some(metadata)).unwrap()).unwrap();
}

pub fn f32_tensor<'a>(name: &'a str, shape: [usize; 2], seed: u32) -> Tensor<'a> {
    (name, Dtype::F32, shape.to_vec(), f32_bytes(&values(shape[0] * shape[1], seed)))
}

/// A folder with these tensors, and with this config if there is one.
pub fn model_folder(path: &str, tensors: &[Tensor], config: Option<Value>) {
    fs::create_dir(path).unwrap();
    write(&format!("{path}/model.safetensors"), tensors);
    if let Some(config) = config {
        fs::write(format!("{path}/config.json"), config.to_string()).unwrap();
    }
}

/// A small model: two weights, one with odd columns, a bias, and indices.
pub fn model(path: &str) {
    let bias: Vec<u8> = values(40, 3).iter().flat_map(|v| half::bf16::from_f32(*v).to_le_bytes()).collect();
    write(
        path,
        &[
            f32_tensor("layer.weight", [40, 272], 1),
            f32_tensor("other.weight", [8, 32], 2),
            f32_tensor("odd.weight", [4, 30], 4),
            ("layer.bias", Dtype::BF16, vec![40], bias),
            ("ids", Dtype::I64, vec![2], vec![9; 16]),
        ],
    );
}

pub fn read_f32(path: &str, name: &str) -> (Vec<usize>, Vec<f32>) {
    let bytes = fs::read(path).unwrap();
    let file = SafeTensors::deserialize(&bytes).unwrap();
    let tensor = file.tensor(name).unwrap();
    assert_eq!(tensor.dtype(), Dtype::F32);
    let values = tensor.data().chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    (tensor.shape().to_vec(), values)
}

pub fn sqnr_db(want: &[f32], got: &[f32]) -> f64 {
    assert_eq!(want.len(), got.len());
    let power = |x: f64| x * x;
    let signal: f64 = want.iter().map(|&w| power(w.into())).sum();
    let noise: f64 = want.iter().zip(got).map(|(&w, &g)| power(f64::from(w) - f64::from(g))).sum();
    10.0 * (signal / noise).log10()
}
