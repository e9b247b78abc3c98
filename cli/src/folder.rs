//! Outputs that are files or folders, as the input is one, and what a folder has beside its tensors.

use std::fs;
use std::path::{Path, PathBuf};

use scaled_gemm::Error;
use scaled_gemm::checkpoint::{Checkpoint, CheckpointLayout, CheckpointWriter, OutputFolder, printable};

use crate::files;
use crate::output::{Failure, count, named, shown};

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

/// The folder that a file is in.
pub fn of_file(file: &Path) -> Option<&Path> {
    file.parent().map(|folder| if folder.as_os_str().is_empty() { Path::new(".") } else { folder })
}

/// Most bytes of tensors in a file of a folder, where nobody says.
const SHARD_BYTES: u64 = 5_000_000_000;

/// Refuses a size of shards where there are none.
pub fn refuse_idle(input: &Checkpoint, shard_bytes: Option<u64>) -> Result<(), Failure> {
    match shard_bytes {
        Some(_) if input.folder().is_none() => Err(Failure::Use(format!(
            "--shard-size: {} is one file, and so is what is written; leave it out",
            input.path().display()
        ))),
        _ => Ok(()),
    }
}

/// Refuses an output that is the folder that is read, or in it, or around it: before any work, and before a reader of that folder could
/// meet the new one.
pub fn refuse_overlap(input: &Checkpoint, output: &Path) -> Result<(), Failure> {
    let Some(folder) = input.folder() else { return Ok(()) };
    let (from, to) = (real(folder), real(output));
    let read = format!(
        "the folder that is read, {}",
        shown(if folder.as_os_str().is_empty() { Path::new(".") } else { folder })
    );
    let place = |to: &Path| match (to.starts_with(&from), from.starts_with(to)) {
        (true, true) => Some("is"),
        (true, false) => Some("is in"),
        (false, true) => Some("holds"),
        (false, false) => None,
    };
    // Whatever else is wrong with the name is said where the output is made. In a folder, what is written is in it too.
    if let Ok(partial) = OutputFolder::temporary_of(output)
        && let Some(place) = place(&real(&partial)).filter(|place| *place != "is in" || !to.starts_with(&from))
    {
        return Err(Failure::Use(format!(
            "-o {}: would be written as {} until it is whole, which {place} {read}; give another name",
            shown(output),
            shown(&partial)
        )));
    }
    match place(&to) {
        None => Ok(()),
        Some(place) => {
            Err(Failure::Use(format!("-o {}: {place} {read}; give the name of a new folder beside it", shown(output))))
        }
    }
}

/// A name without links, as far as it is there.
fn real(path: &Path) -> PathBuf {
    let path = std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf());
    let found = path.ancestors().find_map(|part| Some((part.canonicalize().ok()?, path.strip_prefix(part).ok()?)));
    // Joining nothing would add a separator.
    let joined = found.map(|(part, rest)| if rest.as_os_str().is_empty() { part } else { part.join(rest) });
    joined.unwrap_or(path.clone())
}

/// Refuses an output as [`create`] does, and leaves everything as it is. Says where there is something that would go.
pub fn check(layout: CheckpointLayout, input: &Checkpoint, output: &Path) -> Result<Option<String>, Failure> {
    match input.folder() {
        None => drop(files::create(output)?),
        Some(_) => OutputFolder::check(output)?,
    }
    layout.check(output, &[input])?;
    let is_replaced = input.folder().is_none() && output.exists();
    Ok(is_replaced.then(|| format!("{}: is there, and would be replaced", shown(output))))
}

/// What there is to say of tensors that the index of an input does not name.
pub fn not_in_index(input: &Checkpoint) -> Option<String> {
    let names = input.not_in_index();
    let first = some(names.iter().map(String::as_str))?;
    Some(format!(
        "{}: its index does not name {} of its shards ({first}), which engines that go by the index do not see",
        input.path().display(),
        count(names.len(), "tensor", "tensors")
    ))
}

/// What there is to say of metadata in which the shards of an input differ. `what`: what becomes of them.
pub fn differing_metadata(input: &Checkpoint, what: &str) -> Option<String> {
    let keys = input.differing_metadata();
    let first = some(keys.iter().map(String::as_str))?;
    Some(format!(
        "{}: its shards differ in {} of the metadata ({first}){what}",
        shown(input.path()),
        count(keys.len(), "entry", "entries")
    ))
}

/// The same where it is written.
pub fn written_metadata(input: &Checkpoint) -> Option<String> {
    let what = ": that of the first shard that has it is written, of every file; make them alike, or keep the others elsewhere";
    differing_metadata(input, what)
}

/// ComfyUI's mark of a layer, a tensor `X.comfy_quant`, and the entry of a file's metadata that has those of all.
pub const COMFY_MARK: &str = "comfy_quant";
pub const COMFY_MARKS: &str = "_quantization_metadata";

/// Files whose list of such marks is broken, a line for each.
pub fn broken_marks(input: &Checkpoint) -> impl Iterator<Item = String> {
    input.broken_marks().map(|file| {
        format!("{}: {COMFY_MARKS} of the metadata is no JSON object of layers; write the file again", shown(file))
    })
}

/// Says in the metadata of a model's folder whose tensors they are, PyTorch's: transformers refuses files that do not say it. Before what the input
/// says, which stands: weights of `tf`, `flax` and `mlx` have other names or shapes.
pub fn say_format(layout: &mut CheckpointLayout, input: &Checkpoint) {
    if input.folder().is_some() {
        layout.metadata("format", "pt");
    }
}

/// The layer that a weight belongs to.
pub fn module(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

/// The first few of these names, as they may stand in a line; nothing where there are none.
pub fn some<'a>(names: impl ExactSizeIterator<Item = &'a str>) -> Option<String> {
    let number = names.len();
    let mut first: Vec<_> = names.take(3).map(named).collect();
    if number > first.len() {
        first.push("...".into());
    }
    (number > 0).then(|| first.join(", "))
}

/// Starts a file, or a folder where the input is one. With what there is to say of it.
pub fn create(
    layout: CheckpointLayout,
    input: &Checkpoint,
    output: &Path,
    shard_bytes: Option<u64>,
) -> Result<(CheckpointWriter, Vec<String>), Failure> {
    if input.folder().is_none() {
        let file = files::create(output)?;
        let left = file.left_behind().iter();
        let left = left.map(|path| format!("{}: was left by a run that was killed; it may be removed", shown(path)));
        let notes = left.collect();
        return Ok((layout.create_in(file, &[input])?, notes));
    }
    let folder = files::create_folder(output)?;
    let over =
        format!("{}: an earlier run was interrupted; what it left is gone, and the work starts over", output.display());
    let notes = if folder.starts_over() { vec![over] } else { Vec::new() };
    Ok((layout.create_folder(folder, shard_bytes.unwrap_or(SHARD_BYTES), &[input])?, notes))
}

/// What a folder has beside its tensors and configs: files that are copied, and names of what is not.
fn others(input: &Checkpoint, from: &Path) -> Result<(Vec<PathBuf>, Vec<String>), Failure> {
    let io = |source| Failure::from(Error::Io { path: from.to_path_buf(), source });
    let (mut files, mut left) = (Vec::new(), Vec::new());
    let mut entries = fs::read_dir(from).map_err(io)?.collect::<Result<Vec<_>, _>>().map_err(io)?;
    entries.sort_by_key(fs::DirEntry::file_name);
    for entry in entries {
        let name = entry.file_name();
        let text = name.to_string_lossy();
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
        files.push(entry.path());
    }
    Ok((files, left))
}

/// Refuses files that [`copy_others`] could not read, and ModelOpt's config where it `stays`; copies nothing.
pub fn check_others(input: &Checkpoint, stays: bool) -> Result<(), Failure> {
    let Some(from) = input.folder() else { return Ok(()) };
    let open = |path: PathBuf| fs::File::open(&path).map(drop).map_err(|source| Error::Io { path, source }.into());
    let config = Some(from.join("hf_quant_config.json")).filter(|path| stays && path.is_file());
    config.into_iter().chain(others(input, from)?.0).try_for_each(open)
}

/// Copies config, tokenizer and whatever else is no tensor. Says what was left behind.
pub fn copy_others(input: &Checkpoint, from: &Path, to: &OutputFolder) -> Result<Option<String>, Failure> {
    let (files, mut left) = others(input, from)?;
    files.iter().try_for_each(|file| to.copy(file))?;
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
