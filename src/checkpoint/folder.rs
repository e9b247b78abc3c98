//! Which files a checkpoint is made of: one, those that an index names, or those of a folder.

use std::collections::HashMap;
use std::fs;
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};

use serde::de::{Deserialize, Deserializer};

use super::entries::{Words, each_entry};
use super::foreign::{BEGINNING, is_object};
use super::printable;
use super::source::{open_regular, refuse_file};
use super::unfinished::{refuse_links, refuse_unfinished};
use crate::error::{Error, Result};

/// How the name of an index ends.
const INDEX: &str = ".safetensors.index.json";
const SHARD: &str = ".safetensors";
/// Longest index accepted: that of a million tensors.
const MOST_BYTES: u64 = 256 << 20;

/// The files of a checkpoint.
#[derive(Debug, Default)]
pub(super) struct Files {
    /// In the order of their names.
    pub(super) paths: Vec<PathBuf>,
    /// Where an index says that each tensor is, as places in `paths`.
    pub(super) index: Option<Index>,
    /// The folder, where it is one that was given, or an index in it.
    pub(super) folder: Option<PathBuf>,
}

/// An index of shards: which tensor is in which file.
#[derive(Debug)]
pub(super) struct Index {
    pub(super) path: PathBuf,
    pub(super) tensors: Vec<(String, usize)>,
}

/// The files that `path` stands for.
pub(super) fn files_of(path: &Path) -> Result<Files> {
    refuse_unfinished(path)?;
    let files = found_files(path)?;
    let index = files.index.iter().map(|index| index.path.as_path());
    refuse_links(files.paths.iter().map(PathBuf::as_path).chain(index))?;
    Ok(files)
}

fn found_files(path: &Path) -> Result<Files> {
    if path.is_dir() {
        return of_folder(path);
    }
    let mut beginning = Vec::new();
    let file = open_regular(path, "give a safetensors file, an index of shards or a folder on a disk")?;
    file.take(BEGINNING)
        .read_to_end(&mut beginning)
        .map_err(|source| Error::Io { path: path.to_path_buf(), source })?;
    if is_object(&beginning) {
        let folder = path.parent().unwrap_or(Path::new("")).to_path_buf();
        return of_index(path, &folder);
    }
    Ok(Files { paths: vec![path.to_path_buf()], ..Files::default() })
}

fn of_folder(folder: &Path) -> Result<Files> {
    let io = |source| Error::Io { path: folder.to_path_buf(), source };
    let mut names = Vec::new();
    for entry in fs::read_dir(folder).map_err(io)? {
        // A name that is no Unicode is none of those looked for.
        if let Ok(name) = entry.map_err(io)?.file_name().into_string() {
            names.push(name);
        }
    }
    names.sort_unstable();
    let mut indices: Vec<_> = names.iter().filter(|name| name.ends_with(INDEX)).collect();
    if indices.len() > 1 {
        indices.retain(|name| *name == "model.safetensors.index.json");
        if indices.is_empty() {
            let reason = "holds several indices of shards, and none is model.safetensors.index.json";
            return Err(refuse_file(folder, reason, "give the one that is meant"));
        }
    }
    if let [index] = *indices {
        return of_index(&folder.join(index), folder);
    }
    let mut shards: Vec<_> = names.iter().filter(|name| name.ends_with(SHARD)).collect();
    if shards.len() > 1 && shards.iter().any(|name| *name == "model.safetensors") {
        shards.retain(|name| *name == "model.safetensors");
    }
    if shards.is_empty() {
        let reason = "holds no safetensors file";
        return Err(refuse_file(folder, reason, "give a folder with model.safetensors, or shards and their index"));
    }
    // Their names say how many there are.
    for name in &shards {
        let Some((stem, count)) = numbered(name) else { continue };
        let missing = (1..=count).map(|i| format!("{stem}-{i:05}-of-{count:05}{SHARD}"));
        if let Some(missing) = missing.into_iter().find(|name| !shards.contains(&name)) {
            let reason = format!("holds {name}, and not {missing}");
            return Err(refuse_file(folder, printable(&reason), "fetch the shards that are missing"));
        }
    }
    let paths = shards.into_iter().map(|name| folder.join(name)).collect();
    Ok(Files { paths, index: None, folder: Some(folder.to_path_buf()) })
}

/// `model` and 3 of `model-00001-of-00003.safetensors`.
fn numbered(name: &str) -> Option<(&str, u32)> {
    let (rest, count) = name.strip_suffix(SHARD)?.rsplit_once("-of-")?;
    let (stem, number) = rest.rsplit_once('-')?;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    (is_number(count) && is_number(number)).then(|| Some((stem, count.parse().ok()?)))?
}

fn of_index(path: &Path, folder: &Path) -> Result<Files> {
    let refuse = |reason: String| refuse_file(path, printable(&reason), "fetch or write the index again");
    let io = |source| Error::Io { path: path.to_path_buf(), source };
    let file = open_regular(path, "give the index of a model's shards")?;
    // Not grown step by step, which would take twice the text.
    let len = file.metadata().map_err(io)?.len().min(MOST_BYTES);
    let mut text = Vec::with_capacity(len as usize + 1);
    file.take(MOST_BYTES + 1).read_to_end(&mut text).map_err(io)?;
    if text.len() as u64 > MOST_BYTES {
        return Err(refuse(format!("is longer than {MOST_BYTES} bytes, the most for an index of shards")));
    }
    // Of a list the fields would be taken in their order.
    if !text.trim_ascii_start().starts_with(b"{") {
        let reason = "is no index of shards, which is a JSON object with a weight_map of tensors and their files";
        return Err(refuse(reason.into()));
    }
    let mut reader = serde_json::Deserializer::from_slice(&text);
    let parsed = Parsed::deserialize(&mut reader).and_then(|parsed| reader.end().map(|()| parsed));
    let Parsed { weight_map: Some(WeightMap { tensors, shards }) } =
        parsed.map_err(|e| refuse(format!("is no index of shards: {e}")))?
    else {
        return Err(refuse("is no index of shards: it has no weight_map (of a model give the folder)".into()));
    };
    if let Some(shard) = shards.iter().find(|name| !is_shard_name(name)) {
        return Err(refuse(format!(
            "names the shard {shard:?}, which is no name of a safetensors file in the folder of the index"
        )));
    }
    if shards.is_empty() {
        return Err(refuse("names no shard".into()));
    }
    let is_missing = |name: &&String| fs::metadata(folder.join(name)).is_err_and(|e| e.kind() == ErrorKind::NotFound);
    let mut missing: Vec<&String> = shards.iter().filter(is_missing).collect();
    missing.sort_unstable();
    if let Some(first) = missing.first() {
        let (number, are) = (missing.len(), if missing.len() == 1 { "is" } else { "are" });
        let reason = format!("names {first}, which is not there ({number} of {} shards {are} missing)", shards.len());
        let remedy = "fetch what is missing, or the index that belongs to the shards that are there";
        return Err(refuse_file(path, printable(&reason), remedy));
    }
    let mut order: Vec<usize> = (0..shards.len()).collect();
    order.sort_unstable_by_key(|&i| &shards[i]);
    let mut place = vec![0; shards.len()];
    order.iter().enumerate().for_each(|(to, &from)| place[from] = to);
    let tensors = tensors.into_iter().map(|(name, shard)| (name, place[shard])).collect();
    let paths = order.into_iter().map(|i| folder.join(&shards[i])).collect();
    Ok(Files {
        paths,
        index: Some(Index { path: path.to_path_buf(), tensors }),
        folder: Some(if folder.as_os_str().is_empty() { ".".into() } else { folder.to_path_buf() }),
    })
}

/// True for what is a name and no path: an index must not lead out of its folder.
fn is_shard_name(name: &str) -> bool {
    name.ends_with(SHARD)
        && name.len() > SHARD.len()
        && name.len() <= 255
        && !name.chars().any(|c| matches!(c, '/' | '\\' | ':') || c.is_control())
}

#[derive(serde::Deserialize)]
struct Parsed {
    weight_map: Option<WeightMap>,
}

/// Tensors with places in the list of shards: each shard's name is held once.
#[derive(Default)]
struct WeightMap {
    tensors: Vec<(String, usize)>,
    shards: Vec<String>,
}

impl<'de> Deserialize<'de> for WeightMap {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> std::result::Result<Self, D::Error> {
        let mut found = WeightMap::default();
        let mut places: HashMap<String, usize> = HashMap::new();
        let words =
            Words { object: "an object of tensors and their files", key: "tensor", value: "the name of a file" };
        each_entry(deserializer, words, |name, shard: String| {
            let place = *places.entry(shard).or_insert_with_key(|shard| {
                found.shards.push(shard.clone());
                found.shards.len() - 1
            });
            found.tensors.push((name, place));
            Ok(())
        })?;
        Ok(found)
    }
}
