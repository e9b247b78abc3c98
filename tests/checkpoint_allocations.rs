//! What opening a checkpoint of 100,000 tensors allocates. Alone in its program: the allocator counts for all threads.

#[path = "common/allocations.rs"]
mod allocations;

use std::fs;
use std::path::Path;
use std::sync::atomic::Ordering::Relaxed;

use allocations::{MOST, NOW};
use scaled_gemm::checkpoint::Checkpoint;
use scaled_gemm::model_folder::InputScales;

const TENSORS: usize = 100_000;
const SHARDS: usize = 50;

fn name(i: usize) -> String {
    format!("model.layers.{}.mlp.experts.{}.down_proj.weight", i / 256, i % 256)
}

/// A file of tensors of these names; the length of its header.
fn write(path: &Path, names: impl Iterator<Item = String>) -> usize {
    let entry = r#"{"dtype":"BF16","shape":[0,7168],"data_offsets":[0,0]}"#;
    let entries: Vec<_> = names.map(|name| format!("\"{name}\":{entry}")).collect();
    let header = format!("{{{}}}", entries.join(","));
    fs::write(path, [&(header.len() as u64).to_le_bytes()[..], header.as_bytes()].concat()).unwrap();
    header.len()
}

/// Opens it within four times the text that it reads.
fn open(path: &Path, text: usize) {
    let before = NOW.load(Relaxed);
    MOST.store(before, Relaxed);
    let opened = Checkpoint::open(path).unwrap();
    let (most, kept) = (MOST.load(Relaxed) - before, NOW.load(Relaxed) - before);
    println!("{text} bytes of text took {most} at once, and {kept} stay");
    assert!(most < 4 * text, "{text} bytes of text took {most}");
    assert_eq!(opened.tensors().len(), TENSORS);
    let last = &opened.tensors()[TENSORS - 1].name;
    assert!(opened.get(last).is_some() && opened.get(&format!("{last}_")).is_none());
}

#[test]
fn opening_100000_tensors_takes_less_than_four_times_their_headers() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("one.safetensors");
    open(&path, write(&path, (0..TENSORS).map(name)));
    // The least text that a tensor can have.
    open(&path, write(&path, (0..TENSORS).map(|i| format!("{i:x}"))));
    fs::remove_file(path).unwrap();

    let (mut headers, mut pairs) = (0, Vec::new());
    for shard in 0..SHARDS {
        let file = format!("model-{:05}-of-{SHARDS:05}.safetensors", shard + 1);
        let tensors = shard * TENSORS / SHARDS..(shard + 1) * TENSORS / SHARDS;
        headers += write(&folder.path().join(&file), tensors.clone().map(name));
        pairs.extend(tensors.map(|i| format!("\"{}\":\"{file}\"", name(i))));
    }
    let index = format!("{{\"weight_map\":{{{}}}}}", pairs.join(","));
    fs::write(folder.path().join("model.safetensors.index.json"), &index).unwrap();
    open(folder.path(), headers + index.len());
    calibration(folder.path());
}

/// (Values were read as trees before they were found to be no numbers: thirty times the text.)
fn calibration(folder: &Path) {
    let path = folder.join("amax.json");
    let read = |text: &str| {
        fs::write(&path, text).unwrap();
        let before = NOW.load(Relaxed);
        MOST.store(before, Relaxed);
        let read = InputScales::read(&path);
        (read, MOST.load(Relaxed) - before)
    };
    let (refused, most) = read(&format!(r#"{{"a": [{}0]}}"#, "0,".repeat(4 << 20)));
    assert!(refused.is_err_and(|e| e.to_string().contains("\"a\" is not a number")));
    assert!(most < 1 << 20, "{most}");
    let entries: Vec<_> = (0..TENSORS).map(|i| format!("\"{}\":1", name(i))).collect();
    let text = format!("{{{}}}", entries.join(","));
    let (scales, most) = read(&text);
    assert_eq!(scales.unwrap().amax(&name(7).replace(".weight", "")), Some(1.0));
    assert!(most < 4 * text.len(), "{} bytes of text took {most}", text.len());
}
