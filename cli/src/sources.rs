//! What a run reads, and what lies beside it: none of it may be the output.

use std::fs;
use std::path::{Path, PathBuf};

use serde_json::{Map, Value};

use crate::folder;
use crate::output::{Failure, shown};

/// The configs of a model's folder.
const CONFIGS: [&str; 2] = ["config.json", "hf_quant_config.json"];

/// Most bytes of an index beside a file: ten times those of the largest models.
const MOST_INDEX_BYTES: u64 = 16 << 20;

/// Refuses an output that would replace one of these checkpoints (each a file, an index or a folder), a file of the models that they
/// belong to, or what these options name: before any work, also where it lies behind a link. (Files of tensors are known by
/// [`CheckpointLayout::create_in`](scaled_gemm::checkpoint::CheckpointLayout::create_in), too, which hears of them late.)
pub fn refuse_output(
    output: &Path,
    checkpoints: &[&Path],
    options: &[(&str, Option<&PathBuf>)],
) -> Result<(), Failure> {
    let refuse = |what: String| {
        let remedy = "give another name for the output";
        Err(Failure::Use(format!("{}: it is {what}; {remedy}", shown(output))))
    };
    for (option, file) in options {
        if file.is_some_and(|file| is_same(file, output)) {
            return refuse(format!("the file of {option}"));
        }
    }
    if checkpoints.iter().any(|path| is_same(path, output)) {
        return refuse("the input".into());
    }
    let of_models = checkpoints.iter().flat_map(|path| folders(path)).find_map(|folder| of_model(&folder, output));
    of_models.map_or(Ok(()), refuse)
}

/// The folder that a checkpoint is, or is in; of a link also that of the file itself, whose index may be there alone.
fn folders(path: &Path) -> Vec<PathBuf> {
    if path.is_dir() {
        return vec![path.to_path_buf()];
    }
    let real = path.canonicalize().ok();
    let places = [folder::of_file(path), real.as_deref().and_then(folder::of_file)];
    places.into_iter().flatten().map(Path::to_path_buf).collect()
}

/// What a file of the model in a folder is.
fn of_model(folder: &Path, file: &Path) -> Option<String> {
    if CONFIGS.iter().any(|name| is_same(&folder.join(name), file)) {
        return Some(format!("the config of the model in {}", shown(folder)));
    }
    let indices = indices(folder);
    if indices.iter().any(|index| is_same(index, file)) {
        return Some(format!("the index of the shards in {}", shown(folder)));
    }
    indices.into_iter().find_map(|index| {
        let map = weight_map(&index)?;
        let mut shards: Vec<&str> = map.values().filter_map(Value::as_str).collect();
        shards.sort_unstable();
        shards.dedup();
        let is_one = shards.into_iter().any(|shard| is_same(&folder.join(shard), file));
        is_one.then(|| format!("one of the shards of {}", shown(&index)))
    })
}

/// The indices of a folder, in the order of their names.
pub fn indices(folder: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(folder).into_iter().flatten().filter_map(Result::ok).map(|entry| entry.path());
    let mut indices: Vec<_> = entries.filter(|path| path.to_string_lossy().ends_with(".index.json")).collect();
    indices.sort_unstable();
    indices
}

/// Which tensor is in which file by an index. What is no index is not asked for, and says nothing.
pub fn weight_map(index: &Path) -> Option<Map<String, Value>> {
    let found = fs::metadata(index).ok().filter(|found| found.is_file() && found.len() <= MOST_INDEX_BYTES);
    let value: Value = serde_json::from_slice(&found.and_then(|_| fs::read(index).ok())?).ok()?;
    match value {
        Value::Object(mut entries) => match entries.remove("weight_map")? {
            Value::Object(map) => Some(map),
            _ => None,
        },
        _ => None,
    }
}

/// True for names of one file. What is not there yet has the place of its name.
pub fn is_same(a: &Path, b: &Path) -> bool {
    folder::real(a) == folder::real(b) || identity(a).is_some_and(|found| identity(b) == Some(found))
}

/// Device and number of a file, where the system has them: those of all its names.
#[cfg(unix)]
fn identity(path: &Path) -> Option<(u64, u64)> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

#[cfg(not(unix))]
fn identity(_path: &Path) -> Option<(u64, u64)> {
    None
}
