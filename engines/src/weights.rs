//! A folder's tensors in F32 for candle, the quantized ones read by this crate.

use std::collections::{BTreeMap, HashMap, HashSet};
use std::path::Path;

use candle_core::{Device, Tensor};
use scaled_gemm::{DType, HostQuantMatrix, Scheme, model_folder, reference};

use crate::{Outcome, ensure};

/// Layers of a Llama that engines compute as one, by the last part of their names. Not from the crate: its list is judged here too.
const FUSED: [&[&str]; 2] = [&["q_proj", "k_proj", "v_proj"], &["gate_proj", "up_proj"]];

/// Which second-level scale the NVFP4 matrices of a fused layer are read with.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kept {
    /// Each its own, as the file has them.
    Own,
    /// The largest of `weight_scale_2`: vLLM and SGLang with ModelOpt's files.
    Largest,
    /// The one of the largest divisor, which is the smallest: vLLM with compressed-tensors' files.
    Smallest,
}

/// The group of a weight that engines fuse with others: its layer, and which of the lists.
pub fn fused_group(name: &str) -> Option<(String, usize)> {
    let module = name.strip_suffix(".weight").unwrap_or(name);
    let (parent, last) = module.rsplit_once('.')?;
    let list = FUSED.iter().position(|list| list.contains(&last))?;
    Some((parent.to_string(), list))
}

/// Every tensor of a folder in F32.
///
/// # Errors
/// What [`model_folder::open`] and the checkpoint refuse; a folder without quantized matrices where `kept` asks for some.
pub fn read(folder: &Path, kept: Kept) -> Outcome<HashMap<String, Tensor>> {
    let (checkpoint, _) = model_folder::open(folder)?;
    let (mut tensors, mut matrices, mut parts) = (HashMap::new(), BTreeMap::new(), HashSet::new());
    for name in checkpoint.quantized() {
        matrices.insert(name.to_string(), checkpoint.quant_matrix(name)?);
        parts.extend(checkpoint.tensors_of(name)?);
    }
    for tensor in checkpoint.tensors() {
        let of_activations = [".input_scale", ".input_global_scale"].iter().any(|end| tensor.name.ends_with(end));
        if !(parts.contains(&tensor.name) || of_activations) {
            let (values, _) = checkpoint.values(&tensor.name)?;
            tensors.insert(tensor.name.clone(), Tensor::from_vec(values, tensor.shape.as_slice(), &Device::Cpu)?);
        }
    }
    if kept != Kept::Own {
        keep_one_scale(&mut matrices, kept)?;
    }
    for (name, matrix) in matrices {
        tensors.insert(name, dequantized(&matrix)?);
    }
    Ok(tensors)
}

/// A matrix in F32.
///
/// # Errors
/// None for shapes that a file can have.
pub fn dequantized(matrix: &HostQuantMatrix) -> Outcome<Tensor> {
    let values = reference::dequantize(matrix, DType::F32);
    Ok(Tensor::from_vec(values.into_raw_vec_and_offset().0, (matrix.rows(), matrix.cols()), &Device::Cpu)?)
}

/// Reads every matrix of a fused layer with the one scale that an engine keeps of them.
fn keep_one_scale(matrices: &mut BTreeMap<String, HostQuantMatrix>, kept: Kept) -> Outcome<()> {
    let mut scales: HashMap<(String, usize), f32> = HashMap::new();
    for (name, matrix) in &*matrices {
        ensure(matrix.scheme() == Scheme::Nvfp4, || {
            format!("{name} is {}, which has no second-level scale to keep", matrix.scheme())
        })?;
        if let Some(group) = fused_group(name) {
            let own = matrix.scale_at(0, 0);
            let scale = scales.entry(group).or_insert(own);
            *scale = if kept == Kept::Largest { scale.max(own) } else { scale.min(own) };
        }
    }
    ensure(!scales.is_empty(), || "no matrix of the folder is fused with others: is it quantized?".into())?;
    for (name, matrix) in matrices.iter_mut() {
        let Some(scale) = fused_group(name).and_then(|group| scales.get(&group)) else { continue };
        let mut parts = matrix.clone().into_parts();
        parts.scales.fill(*scale);
        *matrix = HostQuantMatrix::from_parts(matrix.scheme(), matrix.rows(), matrix.cols(), parts)?;
    }
    Ok(())
}

/// True if both have the same tensors with the same bits.
///
/// # Errors
/// Tensors that are not F32.
pub fn same_bits(a: &HashMap<String, Tensor>, b: &HashMap<String, Tensor>) -> Outcome<bool> {
    if a.len() != b.len() {
        return Ok(false);
    }
    for (name, tensor) in a {
        let Some(other) = b.get(name).filter(|other| other.dims() == tensor.dims()) else { return Ok(false) };
        let bits = |t: &Tensor| -> Outcome<Vec<u32>> {
            Ok(t.flatten_all()?.to_vec1::<f32>()?.into_iter().map(f32::to_bits).collect())
        };
        if bits(tensor)? != bits(other)? {
            return Ok(false);
        }
    }
    Ok(true)
}
