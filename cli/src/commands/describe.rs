//! `info FILE|FOLDER`: what a checkpoint holds, how it is read, and what is wrong with it.

mod claims;
mod config;
mod scales;

use std::collections::{BTreeMap, HashSet};
use std::path::Path;

use scaled_gemm::Scheme;
use scaled_gemm::checkpoint::{Checkpoint, StoredScheme, TensorInfo, printable};
use scaled_gemm::model_folder::{self, ModelConfig, fused_groups};
use serde_json::{Value, json};

use crate::folder;
use crate::output::{Failure, Form, Outcome, bytes, count, product, starred, table};
use crate::unread;

/// One matrix, or what the matter with it is.
struct Matrix<'a> {
    name: &'a str,
    /// With its dimensions: rows and columns, or of experts in one tensor more.
    found: Result<(StoredScheme, Vec<usize>), String>,
    /// Its tensors, where none is missing.
    parts: Vec<&'a TensorInfo>,
    bytes: u64,
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
    let matrices: Vec<Matrix<'_>> = input.quantized().into_iter().map(|name| matrix(&input, name)).collect();
    let plain = plain(&input, &matrices);
    let problems = problems(&input, config.as_ref(), &matrices);
    let notes = match input.folder() {
        Some(_) if config.is_none() => vec!["no config.json: engines load no folder without one"],
        _ => Vec::new(),
    };
    let total: u64 = input.tensors().iter().map(|tensor| tensor.bytes()).sum();
    let quantization = config.as_ref().and_then(ModelConfig::quantization);
    let dialect = quantization.and_then(|q| q.get("quant_method")).and_then(Value::as_str);

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
        text += &format!("quant_method  {}\n", printable(dialect.unwrap_or("none")));
    }
    notes.iter().for_each(|note| text += &format!("{note}\n"));
    text.push('\n');
    text += &tables(&plain, &matrices);
    text += &match problems.as_slice() {
        [] => String::new(),
        all => format!("\nWhat is wrong:\n{}", all.iter().map(|p| format!("  {p}\n")).collect::<String>()),
    };
    let failed = (!problems.is_empty())
        .then(|| format!("{}: {} wrong with it", path.display(), count(problems.len(), "thing is", "things are")));
    Ok(Outcome { text, value, form, notes: Vec::new(), failed })
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
    Matrix { name, found, parts, bytes }
}

/// The tensors that belong to no quantized matrix.
fn plain<'a>(input: &'a Checkpoint, matrices: &[Matrix<'_>]) -> Vec<&'a TensorInfo> {
    let parts: HashSet<&str> =
        matrices.iter().flat_map(|matrix| &matrix.parts).map(|part| part.name.as_str()).collect();
    let is_part = |name: &str| parts.contains(name) || input.is_scale(name);
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
    let rows: Vec<_> =
        lines.into_iter().map(|([name, what, shape], n, b)| [name, what, n.to_string(), shape, bytes(b)]).collect();
    table(["tensor", "scheme or type", "number", "shape", "bytes"], 2, &rows)
}

/// What engines would stumble over, or read wrongly.
fn problems(input: &Checkpoint, config: Option<&ModelConfig>, matrices: &[Matrix<'_>]) -> Vec<String> {
    let mut found: Vec<String> = matrices.iter().filter_map(|m| m.found.as_ref().err().cloned()).collect();
    found.extend(matrices.iter().filter_map(|m| scales::problem(input, m)));
    let scaled: Vec<&Matrix<'_>> = matrices.iter().filter(|m| m.has_whole()).collect();
    let modules: Vec<&str> = scaled.iter().map(|m| module(m.name)).collect();
    let architecture = config.map(ModelConfig::architecture).unwrap_or_default();
    for group in fused_groups(&modules, architecture, |_| None) {
        // The first rows have the scale of the whole.
        let scales: Vec<Option<f32>> = group
            .iter()
            .map(|&at| input.quant_rows(scaled[at].name, 0..1).ok().and_then(|q| q.scales().first().copied()))
            .collect();
        // One that is not read was said above.
        let read: Option<Vec<u32>> = scales.iter().map(|scale| scale.map(f32::to_bits)).collect();
        if read.is_some_and(|bits| bits.windows(2).any(|pair| pair[0] != pair[1])) {
            let names: Vec<_> = group.iter().map(|&at| printable(modules[at])).collect();
            found.push(format!(
                "{}: engines that fuse these keep one scale of them all, and theirs differ; quantize them again, without --no-fuse",
                names.join(", ")
            ));
        }
    }
    if let Some(config) = config.filter(|config| config.quantization().is_some()) {
        found.extend(config::problems(input, config, matrices));
    }
    found.extend(claims::problems(input, config, matrices));
    found.extend(folder::not_in_index(input).map(|text| format!("{text}; fetch or write the index again")));
    let says = input.folder().is_some_and(|folder| unread::says_quantized(folder, config));
    if input.folder().is_some() && !matrices.is_empty() && config.is_some() && !says {
        found.push("config.json has no quantization_config: engines take the weights for plain ones".into());
    }
    match unread::named(&unread::unread_codes(input)).filter(|_| says) {
        Some(codes) => found
            .push(format!("it is quantized, and the codes of {codes} are in a format that this program does not read")),
        None if says && matrices.is_empty() => {
            found.push("its config says that it is quantized, and no quantized matrix is there".into());
        }
        None => {}
    }
    found
}

/// The module of a weight.
fn module(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}
