//! A tensor in a file, written `FILE:TENSOR`.

use std::path::{Path, PathBuf};

use crate::output::Failure;

/// What was typed. Either name may hold colons: the files that are there decide where the one ends, in [`FileTensor::find`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FileTensor(String);

/// Takes what has a name on both sides of a colon.
pub fn parse(text: &str) -> Result<FileTensor, String> {
    match splits(text).next() {
        Some(_) => Ok(FileTensor(text.into())),
        None => Err("write FILE:TENSOR, e.g. model.safetensors:layer.weight".into()),
    }
}

impl FileTensor {
    /// File and tensor: divided at the colon behind the name of a file that is there, at the last one if none is.
    pub fn find(&self) -> Result<(PathBuf, String), Failure> {
        let there: Vec<_> = splits(&self.0).filter(|(file, _)| Path::new(file).exists()).collect();
        match there.as_slice() {
            [] => splits(&self.0).last(),
            [one] => Some(*one),
            [first, second, ..] => {
                return Err(Failure::Use(format!(
                    "{}: {} and {} are both files, and either could be meant; rename one of them",
                    self.0, first.0, second.0
                )));
            }
        }
        .map(|(file, tensor)| (file.into(), tensor.into()))
        .ok_or_else(|| Failure::Use(format!("{}: write FILE:TENSOR", self.0)))
    }
}

/// Every way to divide the text at a colon into two names.
fn splits(text: &str) -> impl Iterator<Item = (&str, &str)> {
    let at_colons = text.match_indices(':').map(|(at, _)| (&text[..at], &text[at + 1..]));
    at_colons.filter(|(file, tensor)| !file.is_empty() && !tensor.is_empty())
}
