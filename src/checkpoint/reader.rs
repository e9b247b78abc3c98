//! [`Checkpoint`]: a safetensors file opened for reading; one tensor at a time is in memory.

use std::collections::BTreeMap;
use std::fs::{self, File, FileType};
use std::io::{self, Read, Seek, SeekFrom};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use half::{bf16, f16};
use ndarray::Array2;
use safetensors::Dtype;

use super::NibbleOrder;
use super::foreign::{BEGINNING, kind};
use super::header::{Fault, Header, TensorInfo, header_len};
use super::listing::Listing;
use super::names::wide_dtype;
use crate::error::{Error, Result};
use crate::format::DType;

/// A safetensors file, its header read and checked.
///
/// Tensors are read when asked for. Any bytes are safe to open: what is wrong is said with the tensor's name.
#[derive(Debug)]
pub struct Checkpoint {
    pub(super) listing: Listing,
    file: Mutex<File>,
    data_start: u64,
}

impl Checkpoint {
    /// Opens a file and checks its header: every tensor's size, no overlap, no hole, nothing missing at the end.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read; [`Error::File`] if it is not a regular file, or not a whole safetensors file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_path_buf();
        let io = |source| Error::Io { path: path.clone(), source };
        let broken = |fault: Fault| Error::File {
            path: path.clone(),
            tensor: fault.tensor.as_deref().map(printable),
            reason: printable(&fault.reason),
            remedy: "fetch or write the file again".into(),
        };
        let mut file = open_regular(&path, "give a safetensors file on a disk")?;
        let file_len = file.metadata().map_err(io)?.len();
        let mut beginning = Vec::new();
        (&mut file).take(BEGINNING).read_to_end(&mut beginning).map_err(io)?;
        let Some(first) = beginning.first_chunk::<8>() else {
            let reason = format!("it is not a safetensors file: it has {file_len} bytes, fewer than 8");
            return Err(broken(Fault { tensor: None, reason }));
        };
        if let Some((reason, remedy)) = kind(&beginning) {
            return Err(refuse_file(&path, reason, remedy));
        }
        let header_len = header_len(*first, file_len).map_err(broken)?;
        file.seek(SeekFrom::Start(8)).map_err(io)?;
        let mut json = vec![0; header_len];
        file.read_exact(&mut json).map_err(io)?;
        let data_start = 8 + header_len as u64;
        let header = Header::parse(&json, file_len - data_start).map_err(broken)?;
        let listing = Listing { path, header, nibble_order: None };
        Ok(Self { listing, file: Mutex::new(file), data_start })
    }

    /// The same file, its NVFP4 codes read in this order; without it as the metadata say, else low first.
    ///
    /// Reading a matrix whose metadata say another order is then an error.
    pub fn with_nibble_order(mut self, order: NibbleOrder) -> Self {
        self.listing.nibble_order = Some(order);
        self
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.listing.path
    }

    /// Every tensor, in the order of the data.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.listing.header.tensors
    }

    /// The file's metadata.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.listing.header.metadata
    }

    /// The tensor of this name, if there is one.
    pub fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.listing.get(name)
    }

    /// The tensor of this name.
    ///
    /// # Errors
    /// [`Error::File`] naming a few tensors that are there.
    pub fn info(&self, name: &str) -> Result<&TensorInfo> {
        self.listing.info(name)
    }

    /// The bytes of a tensor, as they lie in the file. Allocates.
    ///
    /// # Errors
    /// [`Error::File`] for an unknown name, [`Error::Io`] if the file cannot be read.
    pub fn bytes(&self, name: &str) -> Result<Vec<u8>> {
        let info = self.info(name)?;
        let len = usize::try_from(info.bytes()).map_err(|_| {
            self.listing.refuse(
                name,
                format!("takes {} bytes", info.bytes()),
                "read it on a machine with a larger address space",
            )
        })?;
        let mut bytes = Vec::new();
        // A header may promise more than any machine has.
        bytes.try_reserve_exact(len).map_err(|_| Error::Io {
            path: self.listing.path.clone(),
            source: io::Error::new(
                io::ErrorKind::OutOfMemory,
                format!("no memory for the {len} bytes of {}", printable(name)),
            ),
        })?;
        bytes.resize(len, 0);
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(self.data_start + info.start))
            .and_then(|_| file.read_exact(&mut bytes))
            .map_err(|source| Error::Io { path: self.listing.path.clone(), source })?;
        Ok(bytes)
    }

    /// The values of a BF16, F16 or F32 tensor of any shape, widened to FP32 (exact), and the type they had.
    ///
    /// # Errors
    /// [`Error::File`] for an unknown name or another type.
    pub fn values(&self, name: &str) -> Result<(Vec<f32>, DType)> {
        let info = self.info(name)?;
        let Some(dtype) = wide_dtype(info.dtype) else {
            let remedy = "BF16, F16 and F32 are read as plain values; quantized matrices with their scales";
            return Err(self.listing.refuse(name, format!("has dtype {}", info.dtype), remedy));
        };
        Ok((widen(info.dtype, &self.bytes(name)?), dtype))
    }

    /// A BF16, F16 or F32 matrix, widened to FP32 (exact), and the type it had.
    ///
    /// # Errors
    /// As [`Checkpoint::values`], and [`Error::File`] for a tensor that is not 2-D.
    pub fn matrix(&self, name: &str) -> Result<(Array2<f32>, DType)> {
        let [rows, cols] = self.listing.two_dimensions(name)?;
        let (values, dtype) = self.values(name)?;
        let matrix = Array2::from_shape_vec((rows, cols), values)
            .map_err(|e| self.listing.refuse(name, format!("has shape [{rows}, {cols}]: {e}"), "write it again"))?;
        Ok((matrix, dtype))
    }
}

/// Text of a file as it may go to a terminal, on one line: control characters and those that turn the direction of what
/// follows are escaped, `\u{1b}`.
pub fn printable(text: &str) -> String {
    let hidden = |c: char| {
        c.is_control() || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
    };
    let mut shown = String::with_capacity(text.len());
    for c in text.chars() {
        if hidden(c) { shown.extend(c.escape_default()) } else { shown.push(c) }
    }
    shown
}

/// An [`Error::File`] about a file as a whole.
pub(super) fn refuse_file(path: &Path, reason: impl Into<String>, remedy: impl Into<String>) -> Error {
    Error::File { path: path.to_path_buf(), tensor: None, reason: reason.into(), remedy: remedy.into() }
}

/// Opens a file for reading. Not a pipe, which would wait for its writer, and nothing else without a length and places.
pub(crate) fn open_regular(path: &Path, remedy: &str) -> Result<File> {
    let io = |source| Error::Io { path: path.to_path_buf(), source };
    let kind = fs::metadata(path).map_err(io)?.file_type();
    if !kind.is_file() {
        let reason = format!("is {}, not a regular file", file_kind(kind));
        return Err(refuse_file(path, reason, remedy));
    }
    File::open(path).map_err(io)
}

/// What something is that is no regular file.
pub(super) fn file_kind(kind: FileType) -> &'static str {
    #[cfg(unix)]
    {
        use std::os::unix::fs::FileTypeExt;
        if kind.is_fifo() {
            return "a pipe";
        }
        if kind.is_char_device() || kind.is_block_device() {
            return "a device";
        }
        if kind.is_socket() {
            return "a socket";
        }
    }
    if kind.is_dir() { "a folder" } else { "a special file" }
}

/// Little-endian BF16, F16 or F32 values as FP32.
pub(super) fn widen(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    let pairs = || bytes.as_chunks::<2>().0.iter();
    match dtype {
        Dtype::BF16 => pairs().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
        Dtype::F16 => pairs().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        _ => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
    }
}
