//! What a run reads, and what lies beside it: none of it may be the output.

use std::collections::HashSet;
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::{fs, iter};

use serde_json::{Map, Value};

use crate::folder;
use crate::output::{Failure, shown};

/// The configs of a model's folder.
const CONFIGS: [&str; 2] = ["config.json", "hf_quant_config.json"];

/// Most bytes of an index beside a file: ten times those of the largest models.
const MOST_INDEX_BYTES: u64 = 16 << 20;

/// Most bytes of a name that systems take: no file has a longer one.
const MOST_NAME_BYTES: usize = 4096;

/// Links followed from a name before they are taken for a circle, as by Linux.
const MOST_LINKS: usize = 40;

/// Refuses an output that would replace one of these checkpoints (each a file, an index or a folder), a file of the models that they
/// belong to, or what these options name: before any work, also where it lies behind a link. (Files of tensors are known by
/// [`CheckpointLayout::create_in`](scaled_gemm::checkpoint::CheckpointLayout::create_in), too, which hears of them late.)
pub fn refuse_output(
    output: &Path,
    checkpoints: &[&Path],
    options: &[(&str, Option<&PathBuf>)],
) -> Result<(), Failure> {
    let place = Place::of(output);
    let refuse_or = |what: String, or: &str| {
        Err(Failure::Use(format!("{}: {what}; give another name for the output{or}", shown(output))))
    };
    let refuse = |what: String| refuse_or(what, "");
    for (option, file) in options {
        if file.is_some_and(|file| place.is(file)) {
            return refuse(format!("it is the file of {option}"));
        }
    }
    if checkpoints.iter().any(|path| place.is(path)) {
        return refuse("it is the input".into());
    }
    for folder in folders(checkpoints) {
        if CONFIGS.iter().any(|name| place.is(&folder.join(name))) {
            let is = if place.file.is_some() { "is" } else { "would become" };
            return refuse(format!("it {is} the config of the model in {}", shown(&folder)));
        }
        let indices = indices(&folder);
        if indices.iter().any(|index| place.is(index)) {
            return refuse(format!("it is the index of the shards in {}", shown(&folder)));
        }
        let too_long = indices.iter().find_map(|index| Some((index, too_long(index)?)));
        if let Some((index, bytes)) = too_long.filter(|_| place.may_be_shard_in(&folder)) {
            return refuse(format!(
                "it may be one of the shards of {}, which has {bytes} bytes, and {MOST_INDEX_BYTES} are read",
                shown(index)
            ));
        }
        if let Some(index) = indices.iter().find(|index| place.is_shard_of(index, &folder)) {
            let shard = format!("it is one of the shards of {}", shown(index));
            return match place.file {
                Some(_) => refuse(shard),
                // Still to be fetched, or named by an index of another model.
                None => refuse_or(format!("{shard}, which is not there"), ", or remove the index"),
            };
        }
    }
    Ok(())
}

/// The folders that these checkpoints are, or are in, each once: of a link those of all names that it leads over, as an index may be in
/// any of them alone.
fn folders(checkpoints: &[&Path]) -> Vec<PathBuf> {
    let (mut known, mut folders) = (HashSet::new(), Vec::new());
    for path in checkpoints {
        let around = |name: &PathBuf| Some(folder::of_file(name)?.to_path_buf());
        let of_path =
            if path.is_dir() { vec![path.to_path_buf()] } else { names(path).iter().filter_map(around).collect() };
        folders.extend(of_path.into_iter().filter(|folder| identity(folder).is_some_and(|id| known.insert(id))));
    }
    folders
}

/// A name, and those that it leads over as a link, as far as the system would follow them.
fn names(path: &Path) -> Vec<PathBuf> {
    let next = |name: &PathBuf| Some(name.parent()?.join(fs::read_link(name).ok()?));
    iter::successors(Some(path.to_path_buf()), next).take(MOST_LINKS + 1).collect()
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

/// The bytes of an index that is not read for its length.
fn too_long(index: &Path) -> Option<u64> {
    fs::metadata(index)
        .ok()
        .filter(fs::Metadata::is_file)
        .map(|found| found.len())
        .filter(|len| *len > MOST_INDEX_BYTES)
}

/// True for names of one file. What is not there yet has the place of its name.
pub fn is_same(a: &Path, b: &Path) -> bool {
    Place::of(a).is(b) || Place::of(b).is(a)
}

/// A file that is to be written, looked up once for all that it is held against.
struct Place {
    /// What it is, if it is there.
    file: Option<Identity>,
    /// The folders that it will be in, or its link's next name, and the names in them.
    names: Vec<(Identity, OsString)>,
}

impl Place {
    fn of(path: &Path) -> Self {
        let names = match path.canonicalize() {
            Ok(real) => vec![real],
            Err(_) => names(path),
        };
        let names = names.iter().filter_map(|name| Some((around(name)?, name.file_name()?.to_os_string())));
        Self { file: identity(path), names: names.collect() }
    }

    /// True for a name of this file, in the folder that it is in, and for a link that would lead to what is not there yet. Outputs are
    /// given their names, and nothing is written into a file that is there: one of two names in two folders goes on being that of what
    /// it was.
    fn is(&self, path: &Path) -> bool {
        if self.file.is_none() {
            let is_known = |path: &PathBuf| {
                let is = |(folder, name): &(Identity, OsString)| {
                    path.file_name() == Some(name) && around(path).as_ref() == Some(folder)
                };
                self.names.iter().any(is)
            };
            return names(path).iter().any(is_known);
        }
        let folder = || path.canonicalize().ok().as_deref().and_then(around);
        identity(path) == self.file && folder().is_some_and(|found| self.names.iter().any(|(known, _)| *known == found))
    }

    /// True for a file with the name of a shard that is there in this folder.
    fn may_be_shard_in(&self, folder: &Path) -> bool {
        let folder = identity(folder);
        let is_one = |(known, name): &(Identity, OsString)| {
            folder.as_ref() == Some(known) && name.to_string_lossy().ends_with(".safetensors")
        };
        self.file.is_some() && self.names.iter().any(is_one)
    }

    /// True for a file that an index names. Each of its names is one question to the system, whatever it is made of.
    fn is_shard_of(&self, index: &Path, folder: &Path) -> bool {
        let map = weight_map(index).unwrap_or_default();
        // Most tensors have that of the one before.
        let shards: HashSet<_> =
            map.values().filter_map(Value::as_str).filter(|name| name.len() <= MOST_NAME_BYTES).collect();
        shards.into_iter().any(|shard| self.is(&folder.join(shard)))
    }
}

/// The folder of a name, by what the system knows it by.
fn around(path: &Path) -> Option<Identity> {
    identity(folder::of_file(path)?)
}

/// What the system knows a file by: its device and number there, which are those of all its names.
#[cfg(unix)]
type Identity = (u64, u64);

#[cfg(unix)]
fn identity(path: &Path) -> Option<Identity> {
    use std::os::unix::fs::MetadataExt;
    fs::metadata(path).ok().map(|found| (found.dev(), found.ino()))
}

/// Elsewhere its name without links.
#[cfg(not(unix))]
type Identity = PathBuf;

#[cfg(not(unix))]
fn identity(path: &Path) -> Option<Identity> {
    path.canonicalize().ok()
}
