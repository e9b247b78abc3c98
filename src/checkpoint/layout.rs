//! [`CheckpointLayout`]: what the files of a checkpoint will hold.

use std::cell::LazyCell;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::{Path, PathBuf};

use safetensors::Dtype;

use super::cast_recipe::{WrittenCast, cast_codes, cast_scales};
use super::cast_writer::PlannedCast;
use super::comfy;
use super::header::{Header, METADATA, RECIPE_KEY, TensorInfo, data_bytes};
use super::listing::Listing;
use super::names::{
    Dialect, NibbleOrder, OLD_COMFY_SCALE, SCALE_ENDINGS, SCALE_SUFFIXES, ScaleMeaning, code_format,
    input_scale_tensor, is_read_as_scale, is_scale_beside, scaled_by_old_comfy, tensors_of, tensors_of_experts,
};
use super::recipe::WrittenRecipe;
use super::source::refuse_file;
use super::writer::{CheckpointWriter, Target};
use super::{Checkpoint, OutputFile, OutputFolder, printable};
use crate::error::{Error, Result};
use crate::format::pair::check_quantize_cols;
use crate::format::{Basis, CodeFormat, Scheme};

/// The tensors and metadata of files to be written.
///
/// Tensors go in the order of the calls to one file after another; those of a matrix stay together. Within a file wider
/// elements come first (as safetensors itself writes), so that every tensor is aligned to its elements.
#[derive(Debug, Clone, Default)]
pub struct CheckpointLayout {
    tensors: Vec<TensorInfo>,
    /// Where tensors begin that may be the first of a file.
    units: Vec<usize>,
    metadata: BTreeMap<String, String>,
    planned: PlannedMatrices,
    dialect: Dialect,
}

/// What is to be written by rows, by name.
#[derive(Debug, Clone, Default)]
pub(super) struct PlannedMatrices {
    pub(super) matrices: HashMap<String, Planned>,
    pub(super) casts: HashMap<String, PlannedCast>,
}

/// A matrix as it is to be written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Planned {
    pub(super) scheme: Scheme,
    pub(super) basis: Basis,
    pub(super) rows: usize,
    pub(super) cols: usize,
    pub(super) dialect: Dialect,
}

impl CheckpointLayout {
    /// No tensor; matrices under the names of [`Dialect::Plain`].
    pub fn new() -> Self {
        Self::default()
    }

    /// No tensor; matrices under the names of this dialect.
    pub fn of_dialect(dialect: Dialect) -> Self {
        Self { dialect, ..Self::default() }
    }

    /// Adds a metadata entry, in place of an older one of the same key. Each file gets it.
    pub fn metadata(&mut self, key: impl Into<String>, value: impl Into<String>) {
        self.metadata.insert(key.into(), value.into());
    }

    /// Adds a tensor whose bytes will be given to [`CheckpointWriter::write`].
    pub fn tensor(&mut self, name: impl Into<String>, dtype: Dtype, shape: &[usize]) {
        self.units.push(self.tensors.len());
        self.push(name.into(), dtype, shape);
    }

    /// The names of the tensors, in the order of the calls.
    pub fn names(&self) -> impl ExactSizeIterator<Item = &str> {
        self.tensors.iter().map(|tensor| tensor.name.as_str())
    }

    /// Tensors with the name of a scale of a quantized matrix of the layout, and that are none of its own: with the name of the matrix, and
    /// whether they must not be there, as a reader would take them for a scale of it, or, being FP8, for codes of their own.
    /// [`CheckpointLayout::create_in`] refuses those alone with which this crate would not read the matrix again.
    pub fn scales_of_others(&self) -> Vec<(&str, &str, bool)> {
        let is_own = |matrix: &Planned, ending: &str| {
            let own = tensors_of(matrix.dialect, matrix.scheme, matrix.rows, matrix.cols);
            own.iter().any(|tensor| tensor.suffix == ending)
        };
        // A cast is read by its metadata, and has one scale.
        let of = |name: &str, ending: &str| match self.planned.matrices.get_key_value(name) {
            Some((name, matrix)) if !is_own(matrix, ending) => {
                Some((name.as_str(), is_read_as_scale(matrix.dialect, matrix.scheme, ending)))
            }
            Some(_) => None,
            None if ending == SCALE_SUFFIXES[0] => None,
            None => self.planned.casts.get_key_value(name).map(|(name, _)| (name.as_str(), false)),
        };
        // The older name of ComfyUI, which gives it to the scale of whatever is there.
        let old = |name: &str| {
            let (matrix, is_read) = of(&scaled_by_old_comfy(name)?, OLD_COMFY_SCALE)?;
            Some((matrix, is_read || self.dialect == Dialect::ComfyUi))
        };
        let of_name = |name: &str| {
            let endings = || SCALE_ENDINGS.iter().filter_map(|ending| of(name.strip_suffix(ending)?, ending));
            // Of two, the one that reads it.
            endings().find(|(_, is_read)| *is_read).or_else(|| endings().next()).or_else(|| old(name))
        };
        // Asked of few: what is FP8, and no scale to a reader, is codes to it.
        let names = LazyCell::new(|| self.names().collect::<HashSet<_>>());
        let is_codes = |tensor: &TensorInfo| {
            code_format(tensor.dtype).is_some() && !is_scale_beside(&tensor.name, |name| names.contains(name))
        };
        let found = self.tensors.iter().filter_map(|tensor| Some((tensor, of_name(&tensor.name)?)));
        found.map(|(tensor, (matrix, is_read))| (tensor.name.as_str(), matrix, is_read || is_codes(tensor))).collect()
    }

    fn push(&mut self, name: String, dtype: Dtype, shape: &[usize]) {
        self.tensors.push(TensorInfo { name, dtype, shape: shape.to_vec(), start: 0, end: 0, file: 0 });
    }

    /// Adds a quantized matrix: its codes, its scales under the names of the dialect, and its recipe in the metadata.
    pub fn quantized(&mut self, name: &str, rows: usize, cols: usize, written: WrittenRecipe) {
        self.quantized_experts(name, [1, rows, cols], written);
    }

    /// The same for the matrices of several experts, `[experts, rows, cols]`, whose rows follow one another: one matrix to all
    /// readers. [`Dialect::GptOss`] has the experts as a dimension of its own.
    pub fn quantized_experts(&mut self, name: &str, [experts, each, cols]: [usize; 3], written: WrittenRecipe) {
        let rows = experts.saturating_mul(each);
        let dialect = self.dialect;
        let scheme = written.recipe.scheme();
        self.units.push(self.tensors.len());
        for tensor in tensors_of_experts(dialect, scheme, [experts, each, cols]) {
            self.push(format!("{name}{}", tensor.suffix), tensor.dtype, &tensor.shape);
        }
        if self.dialect == Dialect::ComfyUi {
            let mark = comfy::tensor(dialect_format(scheme));
            self.push(format!("{}{}", comfy::layer(name), comfy::SUFFIX), Dtype::U8, &[mark.len()]);
        }
        let order = if self.dialect == Dialect::ComfyUi { NibbleOrder::HighFirst } else { NibbleOrder::LowFirst };
        self.metadata(format!("{RECIPE_KEY}{name}"), written.to_json(order, dialect));
        let basis = written.recipe.basis();
        self.planned.matrices.insert(name.to_string(), Planned { scheme, basis, rows, cols, dialect });
    }

    /// Adds a matrix that was cast to a grouping that no product reads: its codes, its scales as `NAME_scale` in the order of its
    /// scheme, and its recipe in the metadata. The names are those in every dialect: no engine has such tensors.
    pub fn cast(&mut self, name: &str, rows: usize, cols: usize, written: WrittenCast) {
        let scheme = written.recipe.scheme();
        self.units.push(self.tensors.len());
        for tensor in [cast_codes(scheme, rows, cols), cast_scales(scheme, rows, cols)] {
            self.push(format!("{name}{}", tensor.suffix), tensor.dtype, &tensor.shape);
        }
        self.metadata(format!("{RECIPE_KEY}{name}"), written.to_json());
        self.planned.casts.insert(name.to_string(), PlannedCast { scheme, rows, cols });
    }

    /// Adds the scale of activations of this amax that meet the matrix added last. Gives back its name and its number, as the dialect
    /// has them: the four bytes that will be given to [`CheckpointWriter::write`]. The number is infinite, or 0, for an amax that has
    /// no such scale.
    pub fn input_scale(&mut self, name: &str, amax: f32) -> (String, f32) {
        let nvfp4 = self.planned.matrices.get(name).is_some_and(|planned| planned.scheme.is_nvfp4());
        let (tensor, meaning) = input_scale_tensor(self.dialect, nvfp4);
        let full = format!("{}.{}", comfy::layer(name), tensor.suffix);
        self.push(full.clone(), tensor.dtype, &tensor.shape);
        let largest = if nvfp4 { 6.0 * 448.0 } else { 448.0 };
        let number = match meaning {
            ScaleMeaning::Multiplies => amax / largest,
            ScaleMeaning::Divides => largest / amax,
        };
        (full, number)
    }

    /// Starts the file `path`: [`CheckpointLayout::create_in`] of an [`OutputFile`].
    ///
    /// # Errors
    /// As [`OutputFile::create`] and [`CheckpointLayout::create_in`].
    pub fn create(self, path: impl AsRef<Path>, sources: &[&Checkpoint]) -> Result<CheckpointWriter> {
        self.create_in(OutputFile::create(path)?, sources)
    }

    /// Starts one file, which appears under its name in [`CheckpointWriter::finish`]. What was written to `output` before goes.
    ///
    /// # Errors
    /// [`Error::File`] for a name given twice, a size that overflows, a shape that its cast or scheme cannot have, an output that is one of `sources`, or a quantized matrix
    /// (of the layout, or one that is read in `sources`) that would be another one, or none, beside the tensors there;
    /// [`Error::Io`], also where the disk has no room for the file.
    pub fn create_in(self, output: OutputFile, sources: &[&Checkpoint]) -> Result<CheckpointWriter> {
        let path = output.path().to_path_buf();
        refuse_source(&path, sources)?;
        let (header, matrices) = self.plan(path.clone(), vec![path], u64::MAX, sources)?;
        CheckpointWriter::start(Target::File(output), header, matrices)
    }

    /// Starts the files of a model: `model.safetensors`, or several of at most `shard_bytes` bytes of tensors, where no single one
    /// is larger, and `model.safetensors.index.json`. The folder appears under its name in [`CheckpointWriter::finish`].
    ///
    /// # Errors
    /// As [`CheckpointLayout::create_in`].
    pub fn create_folder(
        self,
        output: OutputFolder,
        shard_bytes: u64,
        sources: &[&Checkpoint],
    ) -> Result<CheckpointWriter> {
        let path = output.path().to_path_buf();
        let (header, matrices) = self.plan(path, Vec::new(), shard_bytes, sources)?;
        CheckpointWriter::start(Target::Folder(output), header, matrices)
    }

    /// Refuses what [`CheckpointLayout::create_in`] and [`CheckpointLayout::create_folder`] refuse of an output of this name, but for
    /// what the system says, and writes nothing.
    ///
    /// # Errors
    /// As [`CheckpointLayout::create_in`].
    pub fn check(self, path: impl AsRef<Path>, sources: &[&Checkpoint]) -> Result<()> {
        let path = path.as_ref().to_path_buf();
        refuse_source(&path, sources)?;
        self.plan(path.clone(), vec![path], u64::MAX, sources).map(drop)
    }

    /// Places of all tensors; `files` are named by number where none are given.
    fn plan(
        mut self,
        path: PathBuf,
        mut files: Vec<PathBuf>,
        shard_bytes: u64,
        sources: &[&Checkpoint],
    ) -> Result<(Header, PlannedMatrices)> {
        // What is in the way is in the input, where it has the name.
        let of =
            |tensor: &str| sources.iter().find_map(|source| Some(source.files()[source.get(tensor)?.file].as_path()));
        let refuse = |tensor: &str, reason: String, remedy: &str| Error::File {
            path: of(tensor).unwrap_or(&path).to_path_buf(),
            tensor: Some(printable(tensor)),
            reason,
            remedy: remedy.into(),
        };
        // Of a cast without an element, the file would be refused by its reader.
        let empty = self.planned.casts.iter().find(|(_, cast)| cast.rows == 0 || cast.cols == 0);
        if let Some((name, PlannedCast { rows, cols, .. })) = empty {
            let reason = format!("would be a cast of {rows} x {cols}, which holds nothing, and which no reader takes");
            return Err(refuse(name, reason, "leave it out, or write it as a plain tensor"));
        }
        // Whatever is beside it. (A matrix without an element has no scheme.)
        let casts = self.planned.casts.iter().map(|(name, cast)| (name, cast.scheme.check_shape(cast.rows, cast.cols)));
        // A byte a code takes any number of columns; two codes a byte, whole blocks.
        let halves = |matrix: &Planned| matrix.scheme.spec().format == CodeFormat::E2M1;
        let matrices = self.planned.matrices.iter().filter(|(_, m)| m.rows > 0 && m.cols > 0 && halves(m));
        let matrices = matrices.map(|(name, matrix)| (name, check_quantize_cols("matrix", matrix.cols)));
        let refused = casts.chain(matrices).filter_map(|(name, checked)| match checked {
            Err(Error::Shape { operand, found, rule, remedy }) => {
                Some((name, format!("{operand}: {found} {rule}"), remedy))
            }
            _ => None,
        });
        if let Some((name, reason, remedy)) = refused.min() {
            return Err(refuse(name, reason, &remedy));
        }
        let too_large = |t: &TensorInfo| refuse(&t.name, format!("{} {:?} is too large", t.dtype, t.shape), "split it");
        let (mut file, mut used) = (0, 0u64);
        let ends: Vec<usize> = self.units.iter().copied().skip(1).chain([self.tensors.len()]).collect();
        for (&begin, end) in self.units.iter().zip(ends) {
            let unit = &mut self.tensors[begin..end];
            let sum = |sum: u64, t: &TensorInfo| sum.checked_add(data_bytes(t.dtype, &t.shape)?);
            let bytes = unit.iter().try_fold(0, sum).ok_or_else(|| too_large(&unit[0]))?;
            if used > 0 && used.saturating_add(bytes) > shard_bytes {
                (file, used) = (file + 1, 0);
            }
            used = used.checked_add(bytes).ok_or_else(|| too_large(&unit[0]))?;
            unit.iter_mut().for_each(|t| t.file = file);
        }
        self.tensors.sort_by_key(|t| (t.file, std::cmp::Reverse(t.dtype.bitsize())));
        let (mut file, mut at) = (0, 0);
        for t in &mut self.tensors {
            if t.file != file {
                (file, at) = (t.file, 0);
            }
            // The sum was checked.
            t.start = at;
            at += data_bytes(t.dtype, &t.shape).unwrap_or(0);
            t.end = at;
        }
        if files.is_empty() {
            files = shard_names(file + 1).iter().map(|name| path.join(name)).collect();
        }
        let header = Header::new(self.tensors, self.metadata).map_err(|name| match name == METADATA {
            true => refuse(&name, "has the name that safetensors keeps for its metadata".into(), "rename it"),
            false => {
                let place = if files.len() > 1 { "files" } else { "file" };
                refuse(&name, format!("would be in the {place} twice"), "rename or leave out the one there")
            }
        })?;
        let comfy = self.planned.matrices.iter().filter(|(_, planned)| planned.dialect == Dialect::ComfyUi);
        let comfy =
            comfy.map(|(name, planned)| (comfy::layer(name).into(), dialect_format(planned.scheme).into())).collect();
        let planned = Listing {
            path: path.clone(),
            files,
            header,
            nibble_order: None,
            comfy,
            broken_marks: Vec::new(),
            heads: None,
        };
        unreadable(&planned, &self.planned, sources)
            .map_or(Ok(()), |(name, why)| Err(refuse(name, why, "rename or leave out one of the two")))?;
        Ok((planned.header, self.planned))
    }
}

/// Refuses an output that is one of the files read for it, their index among them.
fn refuse_source(path: &Path, sources: &[&Checkpoint]) -> Result<()> {
    let files = |source: &&Checkpoint| {
        let files = source.files().iter().chain(&source.index);
        files.filter_map(|f| f.canonicalize().ok()).collect::<Vec<_>>()
    };
    match path.canonicalize() {
        Ok(target) if sources.iter().flat_map(files).any(|source| source == target) => {
            Err(refuse_file(path, "it is the input", "give another name for the output"))
        }
        _ => Ok(()),
    }
}

/// What ComfyUI calls a scheme.
pub(super) fn dialect_format(scheme: Scheme) -> &'static str {
    match scheme {
        Scheme::Nvfp4 => "nvfp4",
        Scheme::Mxfp8(_) => "mxfp8",
        _ => "float8_e4m3fn",
    }
}

/// The names of so many shards, as published models have them.
pub(super) fn shard_names(count: usize) -> Vec<String> {
    match count {
        1 => vec!["model.safetensors".into()],
        _ => (1..=count).map(|i| format!("model-{i:05}-of-{count:05}.safetensors")).collect(),
    }
}

/// The first quantized matrix that the reader would not find again in the planned file, and why: a name may belong to a matrix
/// that is not its own.
fn unreadable<'a>(
    planned: &'a Listing,
    matrices: &'a PlannedMatrices,
    sources: &[&'a Checkpoint],
) -> Option<(&'a str, String)> {
    let found: HashSet<&str> = planned.quantized().into_iter().collect();
    let output = planned.path.display().to_string();
    let why = |reason: String| {
        let [output, reason] = [&output, &reason].map(|text| printable(text));
        // Reasons follow a name. Those of an entry begin with their own subject.
        let it = if reason.starts_with("its ") { "" } else { "it " };
        format!("would not be read again as it would be written to {output}, beside the tensors there: {it}{reason}")
    };
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
        source.quantized().into_iter().filter(whole).filter(|name| source.stored_scheme(name).is_ok())
    });
    // A matrix without an element has no scheme, and a reader says so.
    let products = matrices.matrices.iter().map(|(name, m)| (name, m.rows, m.cols));
    let casts = matrices.casts.iter().map(|(name, m)| (name, m.rows, m.cols));
    let all = products.chain(casts).filter(|(_, rows, cols)| *rows > 0 && *cols > 0).map(|(name, ..)| name.as_str());
    let mut promised: Vec<&str> = all.chain(copied).collect();
    promised.sort_unstable();
    promised.into_iter().find_map(|name| match planned.stored_scheme(name) {
        Err(error) => Some((name, reason(error))),
        Ok(_) if !found.contains(name) => Some((name, why(planned.taken_as(name)))),
        Ok(_) => None,
    })
}
