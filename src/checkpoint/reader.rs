//! [`Checkpoint`]: safetensors files opened for reading; what is asked for is read.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};

use ndarray::Array2;

use super::comfy;
use super::folder::{Files, Index, files_of};
use super::header::{Clash, Header, RECIPE_KEY, TensorInfo};
use super::listing::Listing;
use super::names::wide_dtype;
use super::open_files::OpenFiles;
use super::plain_rows::{PlainRows, widen};
use super::said_codes;
use super::source::Source;
use super::{Heads, NibbleOrder};
use crate::error::{Error, Result, printable};
use crate::format::DType;

/// A safetensors file, or the several that a model is in, headers read and checked.
///
/// Tensors are read when asked for. Any bytes are safe to open: what is wrong is said with the tensor's name.
#[derive(Debug)]
pub struct Checkpoint {
    pub(super) listing: Listing,
    sources: Vec<Source>,
    open: OpenFiles,
    folder: Option<PathBuf>,
    /// The index that its files were found by.
    pub(super) index: Option<PathBuf>,
    not_in_index: Vec<String>,
    differing_metadata: Vec<String>,
    /// Tensors that mark layers for ComfyUI.
    pub(super) marks: HashSet<String>,
}

impl Checkpoint {
    /// Opens a checkpoint and checks its headers: every tensor's size, no overlap, no hole, nothing missing at the end.
    ///
    /// `path` is a safetensors file; an index of shards (`model.safetensors.index.json`); or a folder, of which the index is
    /// taken, else `model.safetensors`, else every safetensors file.
    ///
    /// # Errors
    /// [`Error::Io`] if it cannot be read; [`Error::File`] if a file is not regular, or not whole, if a tensor is in two files, or
    /// not where the index says, or if the index names what is no file of its folder; and for a folder, or what is in one, that an
    /// [`OutputFolder`](super::OutputFolder) is writing, or did not finish.
    pub fn open(path: impl AsRef<Path>) -> Result<Self> {
        let path = path.as_ref();
        let Files { paths, index, folder } = files_of(path)?;
        let (mut sources, mut headers) = (Vec::<Source>::new(), Vec::new());
        let open = OpenFiles::default();
        for (place, path) in paths.iter().enumerate() {
            let (source, file, header) = Source::open(path)?;
            open.get(place, || Ok(file), |_, _| Ok(()))?;
            sources.push(source);
            headers.push(header);
        }
        // Each file marks its own layers.
        let mut comfy: HashMap<String, String> = HashMap::new();
        for (layer, format) in headers.iter().flat_map(|header| comfy::of_metadata(&header.metadata)) {
            if let Some(other) = comfy.insert(layer.clone(), format.clone()).filter(|other| *other != format) {
                return Err(Error::File {
                    path: path.to_path_buf(),
                    tensor: Some(printable(&layer)),
                    reason: printable(&format!("is {format} by the metadata of one file, and {other} by another's")),
                    remedy: "take the layer out of _quantization_metadata of the file that does not hold its weight"
                        .into(),
                });
            }
        }
        let is_broken = |(_, header): &(usize, &Header)| comfy::is_broken(&header.metadata);
        let broken_marks = headers.iter().enumerate().filter(is_broken).map(|(place, _)| place).collect();
        let (header, differing_metadata) = Header::merge(headers, said_codes::is_recipe).map_err(|clash| {
            let (name, reason, files): (_, _, Vec<&Source>) = match &clash {
                Clash::Recipes { matrix, files, .. } => {
                    (matrix, "has different recipes in the metadata of two files", files.map(|at| &sources[at]).into())
                }
                Clash::Tensor(name) => {
                    let has =
                        |source: &&Source| Source::open(&source.path).is_ok_and(|(_, _, h)| h.get(name).is_some());
                    (name, "is in two files", sources.iter().filter(has).collect())
                }
            };
            let remedy = match (&clash, &index) {
                // Either may hold other tensors of the model, whatever an index says.
                (Clash::Recipes { matrix, files, codes }, _) => {
                    let others: Vec<_> = files.iter().filter(|at| Some(**at) != *codes).collect();
                    let whose = match *others.as_slice() {
                        [other] => format!("{}, which does not hold its codes", sources[*other].path.display()),
                        _ => "both, which do not hold its codes".into(),
                    };
                    format!("remove {RECIPE_KEY}{} from the metadata of {}", printable(matrix), printable(&whose))
                }
                (Clash::Tensor(_), Some(_)) => {
                    "remove the one that does not belong to the model, or fetch the shards and their index again".into()
                }
                (Clash::Tensor(_), None) => {
                    "remove the one that does not belong to the model, or give the index of its shards".into()
                }
            };
            let places: Vec<_> = files.into_iter().map(|source| source.path.display().to_string()).collect();
            Error::File {
                path: path.to_path_buf(),
                tensor: Some(printable(name)),
                reason: format!("{reason}: {}", printable(&places.join(" and "))),
                remedy,
            }
        })?;
        let path_of = path.to_path_buf();
        let index_path = index.as_ref().map(|index| index.path.clone());
        let listing =
            Listing { path: path_of, files: paths, header, nibble_order: None, comfy, broken_marks, heads: None };
        let not_in_index = index.map(|index| check_index(&listing, index)).transpose()?.unwrap_or_default();
        let differing_metadata = differing_metadata.into_iter().collect();
        let mut checkpoint = Self {
            listing,
            sources,
            open,
            folder,
            index: index_path,
            not_in_index,
            differing_metadata,
            marks: HashSet::new(),
        };
        checkpoint.read_marks()?;
        Ok(checkpoint)
    }

    /// What ComfyUI's tensors say of their layers.
    fn read_marks(&mut self) -> Result<()> {
        let tensors = self.listing.header.tensors.iter();
        let named = tensors.filter_map(|tensor| Some((comfy::layer_by_name(tensor)?, tensor)));
        let (mut found, mut marks) = (Vec::new(), HashSet::new());
        for (layer, tensor) in named {
            let bytes = self.part(&tensor.name, 0, tensor.bytes())?;
            if comfy::is_mark(tensor, &bytes) {
                marks.insert(tensor.name.clone());
            }
            found.extend(comfy::of_tensor(&bytes).map(|format| (layer.to_string(), format)));
        }
        self.listing.comfy.extend(found);
        self.marks = marks;
        Ok(())
    }

    /// The same, its NVFP4 codes read in this order; without it as the metadata say, else low first.
    ///
    /// Reading a matrix whose metadata say another order is then an error.
    pub fn with_nibble_order(mut self, order: NibbleOrder) -> Self {
        self.listing.nibble_order = Some(order);
        self
    }

    /// The same, of a model that has these heads: the rows of a fused `qkv_proj`, of which q, k and v may each have a scale, go by
    /// them. [`model_folder::open`](crate::model_folder::open) says it where `config.json` does.
    pub fn with_heads(mut self, heads: Heads) -> Self {
        self.listing.heads = Some(heads);
        self
    }

    /// What was opened: a file, an index or a folder.
    pub fn path(&self) -> &Path {
        &self.listing.path
    }

    /// The files that the tensors are in, in the order of their names.
    pub fn files(&self) -> &[PathBuf] {
        &self.listing.files
    }

    /// The folder of a model, where that or the index in it was opened.
    pub fn folder(&self) -> Option<&Path> {
        self.folder.as_deref()
    }

    /// Tensors that the files hold and their index does not name, which are read here all the same: engines that go by the index
    /// do not see them. Sorted; none where there is no index.
    pub fn not_in_index(&self) -> &[String] {
        &self.not_in_index
    }

    /// Every tensor, in the order of the files and of the data.
    pub fn tensors(&self) -> &[TensorInfo] {
        &self.listing.header.tensors
    }

    /// The metadata; of several files, where they differ ([`Checkpoint::differing_metadata`]), that of the first. Lists of ComfyUI's marks are one list, without those that are broken
    /// ([`Checkpoint::broken_marks`]).
    pub fn metadata(&self) -> &BTreeMap<String, String> {
        &self.listing.header.metadata
    }

    /// The keys of metadata of which several files have different values, sorted. (But for lists of ComfyUI's marks; recipes are refused
    /// there.)
    pub fn differing_metadata(&self) -> &[String] {
        &self.differing_metadata
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
        let len = self.info(name)?.bytes();
        self.part(name, 0, len)
    }

    /// `len` bytes of a tensor, from byte `at` on.
    pub(super) fn part(&self, name: &str, at: u64, len: u64) -> Result<Vec<u8>> {
        let mut bytes = Vec::new();
        self.fill(name, at, len, &mut bytes)?;
        Ok(bytes)
    }

    /// The same in a buffer that may have been used before.
    fn fill(&self, name: &str, at: u64, len: u64, bytes: &mut Vec<u8>) -> Result<()> {
        let len = usize::try_from(len).map_err(|_| {
            self.listing.refuse(
                name,
                format!("{len} bytes of it were to be read"),
                "read it on a machine with a larger address space",
            )
        })?;
        // A header may promise more than any machine has.
        bytes.try_reserve_exact(len.saturating_sub(bytes.len())).map_err(|_| Error::Io {
            path: self.listing.path.clone(),
            source: io::Error::new(
                io::ErrorKind::OutOfMemory,
                format!("no memory for the {len} bytes of {}", printable(name)),
            ),
        })?;
        bytes.resize(len, 0);
        self.read(name, at, bytes)
    }

    /// Fills `bytes` from byte `at` of a tensor on. Allocates nothing, unless the file is opened again: of many a few are open.
    /// Several threads may read at once.
    ///
    /// # Errors
    /// [`Error::File`] for an unknown name, a part that does not lie in the tensor, or a file that was replaced since the checkpoint
    /// was opened, or cut off; [`Error::Io`] if the file cannot be read.
    pub fn read(&self, name: &str, at: u64, bytes: &mut [u8]) -> Result<()> {
        let info = self.info(name)?;
        if at.checked_add(bytes.len() as u64).is_none_or(|end| end > info.bytes()) {
            let found = format!("has {} bytes, and {} from byte {at} on were to be read", info.bytes(), bytes.len());
            return Err(self.listing.refuse(name, found, "read what is there"));
        }
        let source = &self.sources[info.file];
        let file = self.open.get(info.file, || source.reopen(), |_, _| Ok(()))?;
        let place = info.start + at;
        source.read(&file, place, bytes).map_err(|e| match e.kind() {
            io::ErrorKind::UnexpectedEof => {
                let found = source.cut_off(&file, place, bytes.len());
                self.listing.refuse(name, found, "fetch or write the file again, and start again when nobody writes it")
            }
            _ => Error::Io { path: source.path.clone(), source: e },
        })
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
        Ok((widen(dtype, &self.bytes(name)?), dtype))
    }

    /// A BF16, F16 or F32 matrix, widened to FP32 (exact), and the type it had.
    ///
    /// # Errors
    /// As [`Checkpoint::values`], and [`Error::File`] for a tensor that is not 2-D.
    pub fn matrix(&self, name: &str) -> Result<(Array2<f32>, DType)> {
        let [rows, _] = self.listing.two_dimensions(name)?;
        let matrix = self.plain_rows(name, 0..rows, Vec::new())?;
        Ok((matrix.to_f32(), matrix.dtype()))
    }
}

impl Checkpoint {
    /// Some rows of a BF16, F16 or F32 matrix, widened to FP32 (exact). Allocates them; several threads may read at once.
    ///
    /// # Errors
    /// As [`Checkpoint::matrix`], and [`Error::File`] for rows that are not there.
    pub fn matrix_rows(&self, name: &str, rows: Range<usize>) -> Result<Array2<f32>> {
        Ok(self.plain_rows(name, rows, Vec::new())?.to_f32())
    }

    /// The same as they lie in the file, in `buffer`, whose bytes are replaced. Allocates where its room is too small.
    ///
    /// # Errors
    /// As [`Checkpoint::matrix_rows`].
    pub fn plain_rows(&self, name: &str, rows: Range<usize>, mut buffer: Vec<u8>) -> Result<PlainRows> {
        let [all, cols] = self.listing.two_dimensions(name)?;
        let info = self.info(name)?;
        let Some(dtype) = wide_dtype(info.dtype) else {
            let remedy = "BF16, F16 and F32 are read as plain values; quantized matrices with their scales";
            return Err(self.listing.refuse(name, format!("has dtype {}", info.dtype), remedy));
        };
        if rows.start > rows.end || rows.end > all {
            let found = format!("has {all} rows, and {} to {} were to be read", rows.start, rows.end);
            return Err(self.listing.refuse(name, found, "read what is there"));
        }
        // Without a row, a shape may say what no number holds.
        let row = (cols as u64).saturating_mul(dtype.bytes() as u64);
        self.fill(name, rows.start as u64 * row, rows.len() as u64 * row, &mut buffer)?;
        PlainRows::new(dtype, rows.len(), cols, buffer)
            .map_err(|e| self.listing.refuse(name, format!("has {all} x {cols} elements: {e}"), "write it again"))
    }
}

/// Refuses an index that is of other files than those that are there. Gives the tensors that it does not name.
fn check_index(listing: &Listing, index: Index) -> Result<Vec<String>> {
    for (name, file) in &index.tensors {
        let there = listing.get(name).map(|tensor| tensor.file);
        if there == Some(*file) {
            continue;
        }
        let found = match there {
            Some(other) => format!("is in {}", listing.files[other].display()),
            None => "is in none of its files".into(),
        };
        return Err(Error::File {
            path: index.path.clone(),
            tensor: Some(printable(name)),
            reason: printable(&format!("should be in {}, but {found}", listing.files[*file].display())),
            remedy: "fetch the index and its shards again".into(),
        });
    }
    let mut named: Vec<&str> = index.tensors.iter().map(|(name, _)| name.as_str()).collect();
    named.sort_unstable();
    let names = listing.header.tensors.iter().map(|tensor| &tensor.name);
    let mut others: Vec<String> = names.filter(|name| named.binary_search(&name.as_str()).is_err()).cloned().collect();
    others.sort_unstable();
    Ok(others)
}
