//! What a checkpoint holds, by its headers alone: of files that are there, or that are to be written.

use std::collections::HashMap;
use std::path::PathBuf;

use super::header::{Header, TensorInfo};
use super::names::scaled_beside;
use super::{Heads, NibbleOrder};
use crate::error::{Error, Result, printable};

/// The tensors and metadata of a checkpoint, without their data. The rules by which matrices are found are in `quantized`; a writer
/// asks them before it writes.
#[derive(Debug)]
pub(super) struct Listing {
    /// What was opened, or is to be written.
    pub(super) path: PathBuf,
    /// The files that tensors are in.
    pub(super) files: Vec<PathBuf>,
    pub(super) header: Header,
    /// What the caller said; `None`: what the metadata say, else low first.
    pub(super) nibble_order: Option<NibbleOrder>,
    /// Layers that ComfyUI's marks describe, with their formats.
    pub(super) comfy: HashMap<String, String>,
    /// Places of files whose list of such marks is broken.
    pub(super) broken_marks: Vec<usize>,
    /// The heads of queries, keys and values, if the caller said them.
    pub(super) heads: Option<Heads>,
}

impl Listing {
    pub(super) fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.header.get(name)
    }

    /// The tensor of a name with this ending.
    pub(super) fn ending(&self, name: &str, ending: &str) -> Option<&TensorInfo> {
        // Not `format!`, which takes twice as long, and is what a listing of a hundred thousand matrices would wait for.
        self.get(&[name, ending].concat())
    }

    /// The tensor of this name, or a refusal naming a few that are there.
    pub(super) fn info(&self, name: &str) -> Result<&TensorInfo> {
        self.get(name).ok_or_else(|| {
            let tensors = &self.header.tensors;
            // Matrices before their scales: those may be asked for.
            let is_scale = |t: &&TensorInfo| scaled_beside(&t.name, |name| self.get(name).is_some()).is_some();
            let names = tensors.iter().filter(|t| !is_scale(t)).chain(tensors.iter().filter(is_scale));
            let mut some: Vec<_> = names.take(5).map(|t| t.name.as_str()).collect();
            if tensors.len() > some.len() {
                some.push("...");
            }
            let are = if tensors.len() == 1 { "tensor is" } else { "tensors are" };
            let place = if self.files.len() == 1 { "is not in the file" } else { "is in none of the files" };
            self.refuse(name, place, format!("its {} {are} {}: give one that is there", tensors.len(), some.join(", ")))
        })
    }

    pub(super) fn two_dimensions(&self, name: &str) -> Result<[usize; 2]> {
        let info = self.info(name)?;
        <[usize; 2]>::try_from(info.shape.as_slice()).map_err(|_| {
            self.refuse(
                name,
                format!("has shape {:?}", info.shape),
                "a matrix has two dimensions, rows and columns: give one that has, or reshape it",
            )
        })
    }

    pub(super) fn refuse(&self, tensor: &str, reason: impl Into<String>, remedy: impl Into<String>) -> Error {
        Error::File {
            path: self.get(tensor).map_or(&self.path, |found| &self.files[found.file]).clone(),
            // One without a letter is a name, too.
            tensor: Some(if tensor.is_empty() { "\"\"".into() } else { printable(tensor) }),
            reason: printable(&reason.into()),
            remedy: printable(&remedy.into()),
        }
    }
}
