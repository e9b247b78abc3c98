//! A folder: shards under any names, and an index that may name anything.
#![no_main]

use std::cell::OnceCell;
use std::fs;

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use libfuzzer_sys::fuzz_target;
use scaled_gemm::checkpoint::Checkpoint;
use scaled_gemm_fuzz::limits::Limits;
use scaled_gemm_fuzz::scratch::Scratch;
use scaled_gemm_fuzz::{ask, make};
use serde_json::{Map, Value, json};

const CONSTANT: usize = 128 << 10;
const ASKING: usize = 64 << 20;

/// Names that files have.
const FILES: [&str; 7] = [
    "model.safetensors",
    "model-00001-of-00002.safetensors",
    "model-00002-of-00002.safetensors",
    "model-00001-of-99999.safetensors",
    "a.safetensors",
    "b.safetensors",
    "\u{1b}[2J.safetensors",
];
/// Names that an index may give them besides.
const HOSTILE: [&str; 11] = [
    "../outside.safetensors",
    "../case/a.safetensors",
    "/etc/passwd",
    "/dev/zero.safetensors",
    "./a.safetensors",
    "a.safetensors/",
    "..\\outside.safetensors",
    "\0.safetensors",
    ".safetensors",
    "",
    "C:a.safetensors",
];

/// Files with names, and how long their headers are together.
fn files(u: &mut Unstructured<'_>) -> Result<(Vec<(String, Vec<u8>)>, usize)> {
    let raw_index =
        if u.ratio(1, 4)? { Some(String::from_utf8_lossy(u.arbitrary::<&[u8]>()?).into_owned()) } else { None };
    let (mut files, mut headers, mut map) = (Vec::new(), 0, Map::new());
    for _ in 0..u.int_in_range(1..=3)? {
        let name = u.choose(&FILES)?.to_string();
        // Each is made of its own part of the bytes.
        let len = u.int_in_range(0..=u.len().min(400))?;
        let made = make::file(&mut Unstructured::new(u.bytes(len)?))?;
        headers += made.header;
        map.extend(made.names.into_iter().map(|tensor| (tensor, Value::from(name.as_str()))));
        files.push((name, made.bytes));
    }
    while !u.is_empty() && u.ratio(1, 4)? {
        let shard = match u.int_in_range(0..=3)? {
            0 => u.choose(&HOSTILE)?.to_string(),
            1 => make::name(u)? + ".safetensors",
            _ => u.choose(&FILES)?.to_string(),
        };
        map.insert(make::name(u)?, shard.into());
    }
    if u.ratio(3, 4)? {
        let index = raw_index.unwrap_or_else(|| json!({"metadata": {}, "weight_map": map}).to_string());
        headers += index.len();
        files.push(("model.safetensors.index.json".into(), index.into_bytes()));
    }
    Ok((files, headers))
}

thread_local! {
    static SCRATCH: OnceCell<Scratch> = const { OnceCell::new() };
}

fuzz_target!(|bytes: &[u8]| {
    let Ok((files, headers)) = files(&mut Unstructured::new(bytes)) else { return };
    SCRATCH.with(|scratch| {
        let scratch = scratch.get_or_init(Scratch::new);
        scratch.clear();
        for (name, bytes) in &files {
            fs::write(scratch.case().join(name), bytes).unwrap();
        }
        let index = scratch.case().join("model.safetensors.index.json");
        for path in [scratch.case(), index] {
            let limits = Limits::begin();
            let opened = Checkpoint::open(&path);
            limits.check("opening", 4 * headers + CONSTANT);
            let Ok(file) = opened else { continue };
            scratch.check_read(&file);
            let limits = Limits::begin();
            ask::everything(&file, "LlamaForCausalLM");
            limits.check("asking", ASKING);
        }
        scratch.check_written();
    });
});
