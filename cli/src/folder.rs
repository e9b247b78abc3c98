//! Outputs that are files or folders, as the input is one, and what a folder has beside its tensors.

use std::fs;
use std::path::Path;

use scaled_gemm::Error;
use scaled_gemm::checkpoint::{Checkpoint, CheckpointLayout, CheckpointWriter, OutputFolder, printable};

use crate::files;
use crate::output::{Failure, count};

/// Files that are written anew, or belong to the tensors that were replaced.
const REPLACED: [&str; 2] = ["config.json", "hf_quant_config.json"];
/// Endings of weights in other formats, which would be those of another model now.
const WEIGHTS: [&str; 14] = [
    "safetensors",
    "bin",
    "pt",
    "pth",
    "ckpt",
    "gguf",
    "ggml",
    "onnx",
    "onnx_data",
    "h5",
    "msgpack",
    "ot",
    "npz",
    "tflite",
];

/// Starts a file, or a folder where the input is one. With what there is to say of it.
pub fn create(
    layout: CheckpointLayout,
    input: &Checkpoint,
    output: &Path,
    shard_bytes: u64,
) -> Result<(CheckpointWriter, Vec<String>), Failure> {
    if input.folder().is_none() {
        return Ok((layout.create_in(files::create(output)?, &[input])?, Vec::new()));
    }
    let folder = files::create_folder(output)?;
    let over =
        format!("{}: an earlier run was interrupted; what it left is gone, and the work starts over", output.display());
    let notes = if folder.starts_over() { vec![over] } else { Vec::new() };
    Ok((layout.create_folder(folder, shard_bytes, &[input])?, notes))
}

/// Copies config, tokenizer and whatever else is no tensor. Says what was left behind.
pub fn copy_others(input: &Checkpoint, from: &Path, to: &OutputFolder) -> Result<Option<String>, Failure> {
    let io = |source| Failure::from(Error::Io { path: from.to_path_buf(), source });
    let mut left = Vec::new();
    let mut entries = fs::read_dir(from).map_err(io)?.collect::<Result<Vec<_>, _>>().map_err(io)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        let text = name.to_string_lossy();
        // The folder that is being written may be in the one that is read.
        if to.temporary().file_name() == Some(&name) {
            continue;
        }
        let is_read = input.files().iter().any(|file| file.file_name() == Some(&name));
        if is_read || REPLACED.contains(&&*text) || text.ends_with(".safetensors.index.json") {
            continue;
        }
        let ending = Path::new(&name).extension().map(|e| e.to_string_lossy().to_ascii_lowercase()).unwrap_or_default();
        // Links are followed: caches of models are made of them.
        let is_file = fs::metadata(entry.path()).is_ok_and(|found| found.is_file());
        if !is_file || text.starts_with('.') || WEIGHTS.contains(&ending.as_str()) || text.ends_with(".index.json") {
            left.push(printable(&text));
            continue;
        }
        to.copy(&entry.path())?;
    }
    if left.is_empty() {
        return Ok(None);
    }
    let number = count(left.len(), "entry", "entries");
    left.truncate(8);
    Ok(Some(format!(
        "not copied, being folders, hidden, or other weights: {number} of {} ({})",
        from.display(),
        left.join(", ")
    )))
}
