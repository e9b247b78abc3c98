//! `info FILE|FOLDER`: what a checkpoint holds, how it is read, and what is wrong with it.

mod activations;
mod claims;
mod configs;
mod entries;
mod formats;
mod fused;
mod groups;
mod lists;
mod marks;
mod names;
mod scales;
mod words;

use std::borrow::Cow;
use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use scaled_gemm::Scheme;
use scaled_gemm::checkpoint::{Checkpoint, Dialect, RECIPE_KEY, StoredScheme, TensorInfo, printable, scaled_by_name};
use scaled_gemm::model_folder::{self, ModelConfig};
use serde_json::{Value, json};

use crate::experts;
use crate::folder::{self, module};
use crate::foreign;
use crate::orphans::{self, Fate};
use crate::output::{Failure, Form, Outcome, bytes, count, of_number, product, shown, starred, table};
use crate::remains::{self, Remains};
use crate::unread::{self, Beside, Unread};

/// One matrix, or what the matter with it is.
struct Matrix<'a> {
    name: &'a str,
    /// With its dimensions: rows and columns, or of experts in one tensor more.
    found: Result<(StoredScheme, Vec<usize>), String>,
    /// Its tensors, where none is missing.
    parts: Vec<&'a TensorInfo>,
    bytes: u64,
    /// Written for this program: no engine reads it, and no config speaks of it.
    is_plain: bool,
}

/// What there is to say.
#[derive(Default)]
struct Findings {
    /// What engines would stumble over, or read wrongly.
    problems: Vec<String>,
    notes: Vec<String>,
}

impl Matrix<'_> {
    /// Whether all of it has one scale, of which engines that fuse it with others keep one.
    fn has_whole(&self) -> bool {
        let scheme = self.found.as_ref().ok().and_then(|(scheme, _)| scheme.product());
        matches!(scheme, Some(Scheme::Nvfp4 | Scheme::Fp8Tensor(_)))
    }
}

pub fn run(path: &Path, json: bool) -> Result<Outcome, Failure> {
    let (input, config) = model_folder::open(path)?;
    if input.tensors().is_empty() {
        return Err(Failure::Use(format!(
            "{}: holds no tensor; give a safetensors file or a model's folder that holds the weights of a model",
            shown(path)
        )));
    }
    // One that is there under two names is one.
    let mut seen = HashSet::new();
    let remains = remains::find(&input, config.as_ref());
    // Scales in FP8 look like codes.
    let names = input.quantized().into_iter().filter(|name| seen.insert(*name) && !remains.of_head.contains(name));
    let matrices: Vec<Matrix<'_>> = names.map(|name| matrix(&input, name)).collect();
    let plain = plain(&input, &matrices);
    let Findings { problems, notes } = findings(&input, config.as_ref(), &matrices, remains);
    let total: u64 = input.tensors().iter().map(|tensor| tensor.bytes()).sum();
    let (dialect, file) = method(&input, config.as_ref()).unzip();
    let dialect = dialect.as_deref();
    let by = file.filter(|file| *file != configs::CONFIG).map(|file| format!(", by {file}")).unwrap_or_default();

    let form = Form::from_flag(json);
    let value = form.value(|| {
        let matrices = matrices.iter().map(|m| match &m.found {
            Ok((scheme, shape)) => {
                json!({"tensor": m.name, "scheme": scheme.to_string(), "shape": shape, "bytes": m.bytes})
            }
            Err(reason) => json!({"tensor": m.name, "problem": reason, "bytes": m.bytes}),
        });
        json!({
            "path": path.display().to_string(), "files": input.files().len(), "bytes": total,
            "architecture": config.as_ref().map(ModelConfig::architecture), "quant_method": dialect,
            "quantized": Value::from_iter(matrices),
            "tensors": Value::from_iter(plain.iter().map(|t| json!({
                "tensor": t.name, "dtype": t.dtype.to_string(), "shape": t.shape, "bytes": t.bytes(),
            }))),
            "problems": problems, "notes": notes,
        })
    });
    let mut text = format!(
        "{}: {} in {}, {}\n",
        path.display(),
        count(input.tensors().len(), "tensor", "tensors"),
        count(input.files().len(), "file", "files"),
        bytes(total)
    );
    if let Some(config) = &config {
        let architecture = Some(config.architecture()).filter(|name| !name.is_empty());
        text += &format!("architecture  {}\n", printable(architecture.unwrap_or("not said")));
        text += &format!("quant_method  {}\n", printable(dialect.unwrap_or("none")) + &by);
    }
    notes.iter().for_each(|note| text += &format!("{note}\n"));
    let tables = tables(&plain, &matrices);
    if !tables.is_empty() {
        text += &format!("\n{tables}");
    }
    text += &match problems.as_slice() {
        [] => String::new(),
        all => format!("\nWhat is wrong:\n{}", all.iter().map(|p| format!("  {p}\n")).collect::<String>()),
    };
    let failed = (!problems.is_empty())
        .then(|| format!("{}: {} wrong with it", path.display(), count(problems.len(), "thing is", "things are")));
    Ok(Outcome { text, value, form, notes: Vec::new(), failed })
}

/// The method that the config of a model names, and in which file: ModelOpt's own has an algorithm alone.
pub fn method(input: &Checkpoint, config: Option<&ModelConfig>) -> Option<(String, &'static str)> {
    let configs = configs::Configs::read(input, config);
    let (named, by_algorithm) = (configs.said(), configs.said());
    let named = named.iter().find_map(|said| Some((said.word("quant_method")?.to_string(), said.file)));
    let is_modelopt = |said: &&configs::Said<'_>| said.method() == configs::Method::ModelOpt;
    named.or_else(|| by_algorithm.iter().find(is_modelopt).map(|said| ("modelopt".into(), said.file)))
}

fn matrix<'a>(input: &'a Checkpoint, name: &'a str) -> Matrix<'a> {
    let (found, parts) = match input.quant_info(name) {
        Ok((scheme, shape, parts)) => (Ok((scheme, shape)), parts),
        Err(e) => {
            let parts = input.tensors_of(name).unwrap_or_default();
            (Err(e.to_string()), parts.iter().filter_map(|part| input.get(part)).collect())
        }
    };
    let bytes = parts.iter().map(|tensor| tensor.bytes()).sum();
    let is_cast = matches!(found, Ok((StoredScheme::Cast(_), _)));
    let is_plain = is_cast || input.written_dialect(name) == Some(Dialect::Plain);
    Matrix { name, found, parts, bytes, is_plain }
}

/// The tensors that belong to no quantized matrix.
fn plain<'a>(input: &'a Checkpoint, matrices: &[Matrix<'_>]) -> Vec<&'a TensorInfo> {
    let parts: HashSet<&str> =
        matrices.iter().flat_map(|matrix| &matrix.parts).map(|part| part.name.as_str()).collect();
    // Of a matrix that is broken the scales are not listed, either. What only has the name of a scale, of one that is whole or plain, is
    // a tensor like others.
    let broken: HashSet<&str> = matrices.iter().filter(|matrix| matrix.found.is_err()).map(|m| m.name).collect();
    let is_of_broken = |name: &str| scaled_by_name(name).any(|matrix| broken.contains(&*matrix));
    let is_part = |name: &str| parts.contains(name) || (input.is_scale(name) && is_of_broken(name));
    input.tensors().iter().filter(|tensor| !is_part(&tensor.name)).collect()
}

/// Matrices and tensors, those together that differ in a number alone.
fn tables(plain: &[&TensorInfo], matrices: &[Matrix<'_>]) -> String {
    let mut lines: Vec<([String; 3], u64, u64)> = Vec::new();
    let mut places = BTreeMap::new();
    let mut add = |key: [String; 3], bytes: u64| {
        let place = *places.entry(key.clone()).or_insert_with(|| {
            lines.push((key, 0, 0));
            lines.len() - 1
        });
        lines[place].1 += 1;
        lines[place].2 += bytes;
    };
    for matrix in matrices {
        if let Ok((scheme, shape)) = &matrix.found {
            add([starred(matrix.name), scheme.to_string(), product(shape)], matrix.bytes);
        }
    }
    for tensor in plain {
        add([starred(&tensor.name), tensor.dtype.to_string(), product(&tensor.shape)], tensor.bytes());
    }
    // Where all is broken nothing is listed.
    if lines.is_empty() {
        return String::new();
    }
    let rows: Vec<_> =
        lines.into_iter().map(|([name, what, shape], n, b)| [name, what, n.to_string(), shape, bytes(b)]).collect();
    table(["tensor", "scheme or type", "number", "shape", "bytes"], 2, &rows)
}

/// What engines would stumble over, or read wrongly, and what there is to say besides.
fn findings(
    input: &Checkpoint,
    config: Option<&ModelConfig>,
    matrices: &[Matrix<'_>],
    remains: Remains<'_>,
) -> Findings {
    let mut found = Findings::default();
    if input.folder().is_some() && config.is_none() {
        found.notes.push("no config.json: engines load no folder without one".into());
    }
    found.notes.extend(remains.of_head_in_words(input));
    found.notes.extend(folder::differing_metadata(input, "; quantize and dequantize keep that of the first"));
    // Of what is left of a matrix it is said once what is missing.
    let broken = matrices.iter().filter(|m| m.found.is_err() && !remains.tensors.contains(m.name));
    let (stacked, broken): (Vec<_>, Vec<_>) = broken.partition(|m| foreign::is_stacked(input, m.name));
    found.problems.extend(broken.into_iter().filter_map(|m| m.found.as_ref().err().cloned()));
    found.problems.extend(foreign::stacked_in_words(&stacked.iter().map(|m| m.name).collect::<Vec<_>>()));
    let says = input.folder().is_some_and(|folder| unread::says_quantized(folder, config));
    if says || !matrices.is_empty() {
        found.problems.extend(remains.problems);
        let missing = experts::missing_in_words(input);
        found.problems.extend(missing.map(|text| format!("{text}; fetch or write the model again")));
    } else {
        found.notes.extend(remains.problems.into_iter().map(|text| format!("{text}, unless it is meant so")));
    }
    found.problems.extend(foreign::plain_too(input).map(|(text, _)| text));
    if let Some(tensors) = orphans::in_words(&orphans::beside_plain(input)) {
        let what = format!("{}: {tensors} beside weights that are plain", shown(input.path()));
        // A plain model may have learned them.
        match says || !matrices.is_empty() {
            true => found.problems.push(format!(
                "{what}: engines that go by names take the weights for codes; fetch or write the model again"
            )),
            false => found.notes.push(format!("{what}, in a model of which nothing else is quantized")),
        }
    }
    found.notes.extend(orphans::of_others_in_words(input, input.scales_of_others().into_iter(), Fate::There));
    found.notes.extend(of_nothing(input, &remains.tensors));
    let (scales, not_read) = scales::problems(input, matrices);
    found.problems.extend(scales);
    found.notes.extend(not_read);
    found.problems.extend(activations::values(input, matrices));
    found.problems.extend(marks::problems(input, matrices));
    let engines: Vec<&Matrix<'_>> = matrices.iter().filter(|m| !m.is_plain).collect();
    found.problems.extend(fused::scales(input, config.map(ModelConfig::architecture).unwrap_or_default(), &engines));
    found.of_configs(input, config, &engines);
    found.problems.extend(folder::not_in_index(input).map(|text| format!("{text}; fetch or write the index again")));
    if input.folder().is_some() && !engines.is_empty() && config.is_some() && !says {
        found.problems.push(
            "config.json has no quantization_config: engines take the weights for plain ones; fetch the config of the \
             quantized model, or quantize the model again"
                .into(),
        );
    }
    for (beside, tensors) in Beside::ALL.into_iter().filter_map(|beside| Some((beside, beside.of_all(input)?))) {
        let [whose, what] = beside.words();
        found.notes.push(format!(
            "{tensors} {whose} {what}: its product is right only in engines that know them, and dequantize refuses such matrices"
        ));
    }
    let own: Vec<&str> = matrices.iter().filter(|m| m.is_plain).map(|m| module(m.name)).collect();
    if let Some(names) = layers(&own).filter(|_| input.folder().is_some()) {
        found.notes.push(format!("{names} in the dialect plain, which this program reads, and no engine"));
    }
    let Unread { codes, lost, are_casts } = Unread::find(input, config, &remains.tensors);
    if are_casts { &mut found.problems } else { &mut found.notes }.extend(unread::lost_casts(&lost));
    match unread::named(&codes) {
        Some(codes) => found
            .problems
            .push(format!(
                "it is quantized, and the codes of {codes} are in a format that this program does not read; run it in an engine that does, \
                 or {}", foreign::REMEDY)),
        None if says && matrices.is_empty() && remains.tensors.len() == remains.of_head.len() && lost.is_empty() => {
            found.problems.push(
                "its config says that it is quantized, and no quantized matrix is there: take the quantization_config \
                 (and hf_quant_config.json) out of the folder, or fetch the weights again"
                    .into(),
            );
        }
        None if !says => {
            found.notes.extend(foreign::not_read(input, &lost, &remains.tensors).map(|(text, _)| text));
        }
        None => {}
    }
    found
}

/// What there is to say of matrices of which the metadata alone are there: not of those of which something `remains`, which is told so.
fn of_nothing(input: &Checkpoint, remains: &HashSet<&str>) -> Option<String> {
    let told: HashSet<Cow<'_, str>> = remains.iter().flat_map(|tensor| scaled_by_name(tensor)).collect();
    let names: Vec<&str> = input.said_of_nothing().filter(|name| !told.contains(*name)).collect();
    Some(format!(
        "{}: the metadata say how {} ({}) {} quantized, of which no codes are there; take the {} {RECIPE_KEY}NAME out of them, or fetch \
         what is missing",
        shown(input.path()),
        count(names.len(), "matrix", "matrices"),
        folder::some(names.iter().copied())?,
        of_number(names.len(), "was", "were"),
        of_number(names.len(), "entry", "entries")
    ))
}

impl Findings {
    /// Where configs and tensors differ, or the two configs of a folder.
    fn of_configs(&mut self, input: &Checkpoint, config: Option<&ModelConfig>, engines: &[&Matrix<'_>]) {
        let configs = configs::Configs::read(input, config);
        let said = configs.said();
        self.problems.extend(configs.problem.clone());
        self.problems.extend(said.iter().flat_map(entries::problems));
        self.problems.extend(said.iter().flat_map(words::problems));
        if said.is_empty() {
            return;
        }
        let read = engines.iter().filter(|m| m.found.is_ok());
        let quantized: Vec<&str> = read.map(|m| module(m.name)).collect();
        let plain = lists::plain_modules(input);
        let (divided, torn) = fused::divided(&quantized, &plain);
        self.problems.extend(divided);
        if !quantized.is_empty() {
            self.problems.extend(said.iter().flat_map(formats::problems));
            self.problems.extend(said.iter().filter_map(words::missing_algorithm));
        }
        self.problems.extend(said.iter().flat_map(|said| names::problems(input, said, engines)));
        self.problems.extend(claims::activations(input, &said, engines));
        self.problems.extend(said.iter().flat_map(|said| activations::missing(input, said, engines)));
        self.problems.extend(claims::problems(&said, engines, &plain));
        lists::problems(&said, config, [&quantized, &plain], &torn, self);
    }
}

/// `3 layers (a, b, c)`; nothing where there are none.
fn layers(names: &[&str]) -> Option<String> {
    let first = folder::some(names.iter().copied())?;
    Some(format!("{} ({first})", count(names.len(), "layer", "layers")))
}
