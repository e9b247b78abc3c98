//! [`Checkpoint`]: a safetensors file opened for reading; one tensor at a time is in memory.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

use half::{bf16, f16};
use ndarray::Array2;
use safetensors::Dtype;

use super::header::{Fault, Header, TensorInfo, header_len};
use super::names::{SCALE_SUFFIXES, WrittenRecipe, code_format, recognise, scheme_in_metadata, wide_dtype};
use crate::error::{Error, Result};
use crate::format::{DType, HostQuantMatrix, Scheme};

/// A safetensors file, its header read and checked.
///
/// Tensors are read when asked for. Any bytes are safe to open: what is wrong is said with the tensor's name.
#[derive(Debug)]
pub struct Checkpoint {
    path: PathBuf,
    file: Mutex<File>,
    data_start: u64,
    tensors: Vec<TensorInfo>,
    index: HashMap<String, usize>,
    metadata: BTreeMap<String, String>,
}

impl Checkpoint {
    /// Opens a file and checks its header: every tensor's size, no overlap, no hole, nothing missing at the end.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read; [`Error::File`] if it is not a whole safetensors file.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref().to_path_buf();
        let io = |source| Error::Io { path: path.clone(), source };
        let broken = |fault: Fault| Error::File {
            path: path.clone(),
            tensor: fault.tensor.map(printable),
            reason: fault.reason,
            remedy: "fetch or write the file again".into(),
        };
        let mut file = File::open(&path).map_err(io)?;
        let file_len = file.metadata().map_err(io)?.len();
        let mut first = [0; 8];
        if file_len < 8 {
            let reason = format!("it is not a safetensors file: it has {file_len} bytes, fewer than 8");
            return Err(broken(Fault { tensor: None, reason }));
        }
        file.read_exact(&mut first).map_err(io)?;
        let header_len = header_len(first, file_len).map_err(broken)?;
        let mut json = vec![0; header_len];
        file.read_exact(&mut json).map_err(io)?;
        let data_start = 8 + header_len as u64;
        let Header { tensors, metadata } = Header::parse(&json, file_len - data_start).map_err(broken)?;
        let index = tensors.iter().enumerate().map(|(i, t)| (t.name.clone(), i)).collect();
        Ok(Self { path, file: Mutex::new(file), data_start, tensors, index, metadata })
    }

    /// Where the file is.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Every tensor, in the order of the data.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.tensors
    }

    /// The file's metadata.
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.metadata
    }

    /// The tensor of this name, if there is one.
    pub fn get(&self, name: &str) -> Option<&TensorInfo> {
        self.index.get(name).map(|&i| &self.tensors[i])
    }

    /// The tensor of this name.
    ///
    /// # Errors
    /// [`Error::File`] naming a few tensors that are there.
    pub fn info(&self, name: &str) -> Result<&TensorInfo> {
        self.get(name).ok_or_else(|| {
            let mut some: Vec<_> = self.tensors.iter().take(5).map(|t| printable(t.name.clone())).collect();
            if self.tensors.len() > some.len() {
                some.push("...".into());
            }
            self.refuse(
                name,
                "is not in the file",
                format!("its {} tensors are {}", self.tensors.len(), some.join(", ")),
            )
        })
    }

    /// The bytes of a tensor, as they lie in the file. Allocates.
    ///
    /// # Errors
    /// [`Error::File`] for an unknown name, [`Error::Io`] if the file cannot be read.
    pub fn bytes(&self, name: &str) -> Result<Vec<u8>> {
        let info = self.info(name)?;
        let len = usize::try_from(info.bytes()).map_err(|_| {
            self.refuse(
                name,
                format!("takes {} bytes", info.bytes()),
                "read it on a machine with a larger address space",
            )
        })?;
        let mut bytes = vec![0; len];
        let mut file = self.file.lock().unwrap_or_else(PoisonError::into_inner);
        file.seek(SeekFrom::Start(self.data_start + info.start))
            .and_then(|_| file.read_exact(&mut bytes))
            .map_err(|source| Error::Io { path: self.path.clone(), source })?;
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
            return Err(self.refuse(name, format!("has dtype {}", info.dtype), remedy));
        };
        Ok((widen(info.dtype, &self.bytes(name)?), dtype))
    }

    /// A BF16, F16 or F32 matrix, widened to FP32 (exact), and the type it had.
    ///
    /// # Errors
    /// As [`Checkpoint::values`], and [`Error::File`] for a tensor that is not 2-D.
    pub fn matrix(&self, name: &str) -> Result<(Array2<f32>, DType)> {
        let [rows, cols] = self.two_dimensions(name)?;
        let (values, dtype) = self.values(name)?;
        let matrix = Array2::from_shape_vec((rows, cols), values)
            .map_err(|e| self.refuse(name, format!("has shape [{rows}, {cols}]: {e}"), "write it again"))?;
        Ok((matrix, dtype))
    }

    /// Names of the tensors that are quantized matrices: 2-D, FP8, and not the scale of another tensor.
    ///
    /// A matrix whose scale is missing is among them; reading it is then refused.
    pub fn quantized(&self) -> Vec<&str> {
        self.tensors
            .iter()
            .filter(|t| code_format(t.dtype).is_some() && t.shape.len() == 2 && !self.is_scale(&t.name))
            .map(|t| t.name.as_str())
            .collect()
    }

    /// True for the scale of another tensor of the file.
    pub fn is_scale(&self, name: &str) -> bool {
        SCALE_SUFFIXES.iter().any(|s| name.strip_suffix(s).is_some_and(|base| self.get(base).is_some()))
    }

    /// The name of the scales of a quantized matrix.
    ///
    /// # Errors
    /// [`Error::File`] if there is none, or more than one.
    pub fn scale_name(&self, name: &str) -> Result<String> {
        let found: Vec<_> =
            SCALE_SUFFIXES.iter().map(|s| format!("{name}{s}")).filter(|n| self.get(n).is_some()).collect();
        match <[String; 1]>::try_from(found) {
            Ok([scale]) => Ok(scale),
            Err(found) if found.is_empty() => Err(self.refuse(
                name,
                format!("is FP8 but has no scale: neither {name}_scale nor {name}_scale_inv is in the file"),
                "use a file that carries its scales; none is ever assumed",
            )),
            Err(found) => Err(self.refuse(
                name,
                format!("has two scales, {}", found.join(" and ")),
                "keep the one that multiplies its codes",
            )),
        }
    }

    /// How a quantized matrix is read, by the rules of this module.
    ///
    /// # Errors
    /// [`Error::File`] if it is not FP8 and 2-D, or its scale is missing or fits no scheme.
    pub fn scheme(&self, name: &str) -> Result<Scheme> {
        let info = self.info(name)?;
        let Some(format) = code_format(info.dtype) else {
            let remedy = "FP8 matrices have dtype F8_E4M3 or F8_E5M2; quantize plain ones first";
            return Err(self.refuse(name, format!("has dtype {}", info.dtype), remedy));
        };
        let [rows, cols] = self.two_dimensions(name)?;
        if rows == 0 || cols == 0 {
            return Err(self.refuse(name, format!("has shape [{rows}, {cols}]"), "an empty matrix has no scheme"));
        }
        let scale = self.info(&self.scale_name(name)?)?;
        let written = match self.metadata.get(&format!("scaled_gemm.{name}")) {
            Some(text) => Some(scheme_in_metadata(text).map_err(|e| self.refuse(name, e, "quantize it again"))?),
            None => None,
        };
        let suffix = &scale.name[name.len()..];
        recognise(format, [rows, cols], suffix, &scale.shape, written)
            .map_err(|e| self.refuse(name, e.replace("NAME", &printable(name.into())), "a scale is never reshaped"))
    }

    /// The recipe a matrix was written with; `None` where the file does not say.
    ///
    /// # Errors
    /// [`Error::File`] if the metadata entry is broken or names an unknown rule.
    pub fn recipe(&self, name: &str) -> Result<Option<WrittenRecipe>> {
        self.info(name)?;
        match self.metadata.get(&format!("scaled_gemm.{name}")) {
            Some(text) => WrittenRecipe::from_json(text)
                .map(Some)
                .map_err(|e| self.refuse(name, e, "read it with the version that wrote it")),
            None => Ok(None),
        }
    }

    /// A quantized matrix with its scales. Allocates.
    ///
    /// # Errors
    /// As [`Checkpoint::scheme`], and [`Error::File`] for scales that are not F32, BF16 or F16, or not finite.
    pub fn quant_matrix(&self, name: &str) -> Result<HostQuantMatrix> {
        let scheme = self.scheme(name)?;
        let [rows, cols] = self.two_dimensions(name)?;
        let scale_name = self.scale_name(name)?;
        let scale = self.info(&scale_name)?;
        if wide_dtype(scale.dtype).is_none() {
            let remedy = "FP8 schemes have F32 scales (BF16 and F16 are widened)";
            return Err(self.refuse(&scale_name, format!("has dtype {}", scale.dtype), remedy));
        }
        let scales = widen(scale.dtype, &self.bytes(&scale_name)?);
        if let Some(at) = scales.iter().position(|s| !s.is_finite()) {
            let found = format!("holds {} at element {at}: every scale must be finite", scales[at]);
            return Err(self.refuse(&scale_name, found, "quantize the matrix again from finite values"));
        }
        HostQuantMatrix::from_logical(scheme, rows, cols, self.bytes(name)?, &scales)
            .map_err(|e| self.refuse(name, format!("cannot be used: {e}"), "quantize it again"))
    }

    fn two_dimensions(&self, name: &str) -> Result<[usize; 2]> {
        let info = self.info(name)?;
        <[usize; 2]>::try_from(info.shape.as_slice())
            .map_err(|_| self.refuse(name, format!("has shape {:?}", info.shape), "a matrix has two dimensions"))
    }

    fn refuse(&self, tensor: &str, reason: impl Into<String>, remedy: impl Into<String>) -> Error {
        Error::File {
            path: self.path.clone(),
            tensor: Some(printable(tensor.into())),
            reason: reason.into(),
            remedy: remedy.into(),
        }
    }
}

/// Names come from files and go into one-line messages.
fn printable(name: String) -> String {
    name.escape_debug().to_string()
}

/// Little-endian BF16, F16 or F32 values as FP32.
fn widen(dtype: Dtype, bytes: &[u8]) -> Vec<f32> {
    let pairs = || bytes.as_chunks::<2>().0.iter();
    match dtype {
        Dtype::BF16 => pairs().map(|b| bf16::from_le_bytes(*b).to_f32()).collect(),
        Dtype::F16 => pairs().map(|b| f16::from_le_bytes(*b).to_f32()).collect(),
        _ => bytes.as_chunks::<4>().0.iter().map(|b| f32::from_le_bytes(*b)).collect(),
    }
}
