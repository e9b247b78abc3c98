//! [`FileLayout`] says what a file will hold; [`CheckpointWriter`] fills it, one tensor at a time.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use safetensors::Dtype;

use super::header::{Header, TensorInfo, data_bytes};
use super::listing::Listing;
use super::names::{block_scale_tensor, code_tensor, not_in_files, scale_tensor};
use super::reader::{printable, refuse_file};
use super::recipe::WrittenRecipe;
use super::{Checkpoint, OutputFile};
use crate::error::{Error, Result};
use crate::format::{Basis, BlockScaleFormat, HostQuantMatrix, Scheme};

/// The tensors and metadata of a file to be written.
///
/// Data go in the order of the calls, wider elements first (as safetensors itself writes), so that every tensor is
/// aligned to its elements.
#[derive(Debug, Clone, Default)]
pub struct FileLayout {
    tensors: Vec<TensorInfo>,
    metadata: BTreeMap<String, String>,
    matrices: HashMap<String, (Scheme, Basis)>,
}

impl FileLayout {
    /// An empty file.
    pub fn new() -> Self {
        Self::default()
    }

    /// Adds a metadata entry, in place of an older one of the same key.
    pub fn metadata(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.metadata.insert(key.into(), value.into());
    }

    /// Adds a tensor whose bytes will be given to [`CheckpointWriter::write`].
    pub fn tensor(&mut self, name: impl Into<String>, dtype: Dtype, shape: &[usize]) {
        self.tensors.push(TensorInfo { name: name.into(), dtype, shape: shape.to_vec(), start: 0, end: 0 });
    }

    /// Adds a quantized matrix: its codes, its scales under the published names, and its recipe in the metadata.
    pub fn quantized(&mut self, name: &str, rows: usize, cols: usize, written: WrittenRecipe) {
        let scheme = written.recipe.scheme();
        let scales = [block_scale_tensor(scheme, rows, cols), scale_tensor(scheme, rows, cols)];
        for tensor in [code_tensor(scheme, rows, cols)].into_iter().chain(scales.into_iter().flatten()) {
            self.tensor(format!("{name}{}", tensor.suffix), tensor.dtype, &tensor.shape);
        }
        self.metadata(format!("scaled_gemm.{name}"), written.to_json());
        self.matrices.insert(name.to_string(), (scheme, written.recipe.basis()));
    }

    /// Starts the file `path`: [`FileLayout::create_in`] of an [`OutputFile`].
    ///
    /// # Errors
    /// As [`OutputFile::create`] and [`FileLayout::create_in`].
    pub fn create(self, path: impl AsRef<Path>, sources: &[&Checkpoint]) -> Result<CheckpointWriter> {
        self.create_in(OutputFile::create(path)?, sources)
    }

    /// Starts the file, which appears under its name in [`CheckpointWriter::finish`]. What was written to `output` before goes.
    ///
    /// # Errors
    /// [`Error::File`] for a name given twice, a size that overflows, an output that is one of `sources`, or a quantized matrix
    /// (of the layout, or one that is read in `sources`) that would be another one, or none, beside the tensors there;
    /// [`Error::Io`].
    pub fn create_in(mut self, mut output: OutputFile, sources: &[&Checkpoint]) -> Result<CheckpointWriter> {
        let path = output.path().to_path_buf();
        let refuse = |tensor: &str, reason: String, remedy: &str| Error::File {
            path: path.clone(),
            tensor: Some(printable(tensor)),
            reason,
            remedy: remedy.into(),
        };
        let is_input = |target| sources.iter().any(|s| s.path().canonicalize().is_ok_and(|source| source == target));
        if path.canonicalize().is_ok_and(is_input) {
            return Err(refuse_file(&path, "it is the input", "give another name for the output"));
        }
        if let Some((name, why)) = self.matrices.iter().find_map(|(name, (s, _))| Some((name, not_in_files(*s)?))) {
            return Err(refuse(name, why.into(), "quantize it as nvfp4 or mxfp8"));
        }
        self.tensors.sort_by_key(|t| std::cmp::Reverse(t.dtype.bitsize()));
        let mut at = 0u64;
        for t in &mut self.tensors {
            let end = data_bytes(t.dtype, &t.shape).and_then(|bytes| at.checked_add(bytes));
            let Some(end) = end else {
                return Err(refuse(&t.name, format!("{} {:?} is too large", t.dtype, t.shape), "split it"));
            };
            (t.start, t.end) = (at, end);
            at = end;
        }
        let header = Header::new(self.tensors, self.metadata)
            .map_err(|name| refuse(&name, "would be in the file twice".into(), "rename or leave out the one there"))?;
        let planned = Listing { path: path.clone(), header, nibble_order: None };
        unreadable(&planned, &self.matrices, sources)
            .map_or(Ok(()), |(name, why)| Err(refuse(name, why, "rename or leave out the one there")))?;
        let header = planned.header;
        let bytes = header.to_bytes();
        output.clear()?;
        output.write(&bytes)?;
        Ok(CheckpointWriter {
            data_start: bytes.len() as u64,
            done: vec![false; header.tensors.len()],
            header,
            matrices: self.matrices,
            output,
        })
    }
}

/// The first quantized matrix that the reader would not find again in the planned file, and why: a name may belong to a matrix
/// that is not its own.
fn unreadable<'a>(
    planned: &'a Listing,
    matrices: &'a HashMap<String, (Scheme, Basis)>,
    sources: &[&'a Checkpoint],
) -> Option<(&'a str, String)> {
    let found: HashSet<&str> = planned.quantized().into_iter().collect();
    let why = |reason: String| format!("would not be read again beside the tensors there: it {}", printable(&reason));
    let reason = |error: Error| match error {
        Error::File { reason, .. } => why(reason),
        other => why(other.to_string()),
    };
    let stays = |source: &Checkpoint, tensor: &String| {
        let same = |a: &TensorInfo, b: &TensorInfo| (a.dtype, &a.shape) == (b.dtype, &b.shape);
        planned.get(tensor).zip(source.get(tensor)).is_some_and(|(a, b)| same(a, b))
    };
    // What a source can read and the layout takes over.
    let copied = sources.iter().flat_map(|source| {
        let whole = |name: &&str| source.tensors_of(name).is_ok_and(|all| all.iter().all(|t| stays(source, t)));
        source.quantized().into_iter().filter(whole).filter(|name| source.scheme(name).is_ok())
    });
    let mut promised: Vec<&str> = matrices.keys().map(String::as_str).chain(copied).collect();
    promised.sort_unstable();
    promised.into_iter().find_map(|name| match planned.scheme(name) {
        Err(error) => Some((name, reason(error))),
        Ok(_) if !found.contains(name) => Some((name, why(planned.taken_as(name)))),
        Ok(_) => None,
    })
}

/// A safetensors file being written; nothing is seen under its name until [`CheckpointWriter::finish`].
#[derive(Debug)]
pub struct CheckpointWriter {
    output: OutputFile,
    data_start: u64,
    header: Header,
    matrices: HashMap<String, (Scheme, Basis)>,
    done: Vec<bool>,
}

impl CheckpointWriter {
    /// Writes the bytes of a tensor of the layout, in any order of tensors.
    ///
    /// # Errors
    /// [`Error::File`] for a name that is not in the layout, a second write, or a wrong length; [`Error::Io`].
    pub fn write(&mut self, name: &str, bytes: &[u8]) -> Result<()> {
        let Some(i) = self.header.position(name) else {
            return Err(self.refuse(name, "is not in the layout".into()));
        };
        let (start, expected) = (self.header.tensors[i].start, self.header.tensors[i].bytes());
        if self.done[i] {
            return Err(self.refuse(name, "was written before".into()));
        }
        if bytes.len() as u64 != expected {
            return Err(self.refuse(name, format!("got {} bytes where the layout says {expected}", bytes.len())));
        }
        self.output.write_at(self.data_start + start, bytes)?;
        self.done[i] = true;
        Ok(())
    }

    /// Writes a quantized matrix of the layout: codes and scales.
    ///
    /// # Errors
    /// As [`CheckpointWriter::write`], and [`Error::File`] for another scheme or basis than the layout says, and for a scale
    /// that is not finite, which no reader accepts.
    pub fn write_quantized(&mut self, name: &str, matrix: &HostQuantMatrix) -> Result<()> {
        let (scheme, rows, cols) = (matrix.scheme(), matrix.rows(), matrix.cols());
        match self.matrices.get(name) {
            None => return Err(self.refuse(name, "is no quantized matrix of the layout".into())),
            Some((s, basis)) if (*s, *basis) != (scheme, matrix.basis()) => {
                let found = format!("is {scheme} ({:?}) where the layout says {s} ({basis:?})", matrix.basis());
                return Err(self.refuse(name, found));
            }
            Some(_) => {}
        }
        let (scales, block_scales) = (matrix.logical_scales(), matrix.logical_block_scales());
        if let Some(at) = scales.iter().position(|s| !s.is_finite()) {
            return Err(self.not_finite(name, scheme, format!("scale {at} is {}", scales[at])));
        }
        let nan = |byte: &u8| match scheme.spec().block.map(|b| b.format) {
            Some(BlockScaleFormat::Ue8m0) => *byte == 0xFF,
            _ => *byte >= 0x7F,
        };
        if let Some(at) = block_scales.iter().position(nan) {
            return Err(self.not_finite(name, scheme, format!("block scale {at} is byte {:#04x}", block_scales[at])));
        }
        self.write(name, matrix.logical_codes())?;
        if let Some(tensor) = block_scale_tensor(scheme, rows, cols) {
            self.write(&format!("{name}{}", tensor.suffix), &block_scales)?;
        }
        if let Some(tensor) = scale_tensor(scheme, rows, cols) {
            let bytes: Vec<u8> = scales.iter().flat_map(|s| s.to_le_bytes()).collect();
            self.write(&format!("{name}{}", tensor.suffix), &bytes)?;
        }
        Ok(())
    }

    /// Gives the file its name, after its bytes have reached the disk. An older file of that name is replaced.
    ///
    /// # Errors
    /// [`Error::File`] if a tensor of the layout was not written; [`Error::Io`].
    pub fn finish(self) -> Result<()> {
        if let Some(i) = self.done.iter().position(|done| !done) {
            return Err(self.refuse(&self.header.tensors[i].name, "was not written".into()));
        }
        self.output.finish()
    }

    fn not_finite(&self, tensor: &str, scheme: Scheme, found: String) -> Error {
        let remedy = match scheme.spec().block {
            None => {
                "quantize smaller values, all finite, or with the preset transformer-engine, which gives such groups scale 1"
            }
            Some(_) => "quantize smaller values, all finite",
        };
        Error::File {
            path: self.output.path().to_path_buf(),
            tensor: Some(printable(tensor)),
            reason: format!(
                "{found}, because its group holds an infinity, NaN, or values so large that the scale is beyond its format"
            ),
            remedy: remedy.into(),
        }
    }

    fn refuse(&self, tensor: &str, reason: String) -> Error {
        Error::File {
            path: self.output.path().to_path_buf(),
            tensor: Some(printable(tensor)),
            reason,
            remedy: "write each tensor of the layout once".into(),
        }
    }
}
