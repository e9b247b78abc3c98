//! Experts that become one tensor again, as the checkpoints of their architecture have them.

use std::collections::BTreeMap;

use ndarray::{Array2, s};
use scaled_gemm::checkpoint::{Checkpoint, StoredScheme};
use scaled_gemm::model_folder::{ExpertTensor, ModelConfig};

use crate::coded::Coded;

/// The quantized matrices of one tensor of experts.
pub struct Experts {
    /// The name of the tensor.
    pub name: String,
    kind: ExpertTensor,
    /// Experts, rows of each, columns.
    pub sizes: [usize; 3],
    /// One for each expert and part, or one of all (gpt-oss), whose rows lie as in the tensor.
    pub matrices: Vec<String>,
}

impl Experts {
    /// The shape of the tensor.
    pub fn shape(&self) -> Vec<usize> {
        self.kind.shape(self.sizes).to_vec()
    }

    /// Reads the matrices of one expert.
    pub fn read(&self, input: &Checkpoint, scheme: StoredScheme, expert: usize) -> scaled_gemm::Result<Vec<Coded>> {
        let [experts, rows, _] = self.sizes;
        if let [all] = self.matrices.as_slice() {
            return Ok(vec![Coded::read(input, all, scheme, expert * rows..(expert + 1) * rows)?]);
        }
        let parts = self.matrices.len() / experts;
        let matrices = self.matrices.iter().skip(expert * parts).take(parts);
        matrices.map(|name| Coded::read(input, name, scheme, 0..input.quant_shape(name)?.0)).collect()
    }

    /// The values of one expert in the order of the tensor, from those of its matrices.
    pub fn gather(&self, matrices: Vec<Array2<f32>>) -> Array2<f32> {
        let [_, rows, cols] = self.sizes;
        let mut all = Array2::zeros(if self.kind.is_transposed() { (cols, rows) } else { (rows, cols) });
        let whole = self.matrices.len() == 1;
        for (part, values) in matrices.iter().enumerate() {
            let place = if whole { Some([0, 1, rows]) } else { self.kind.rows_of(part, rows) };
            // Sizes were compared when the matrices were found.
            let Some([start, step, count]) = place else { continue };
            let end = start + (count - 1) * step + 1;
            match self.kind.is_transposed() {
                true => all.slice_mut(s![.., start..end;step]).assign(&values.t()),
                false => all.slice_mut(s![start..end;step, ..]).assign(values),
            }
        }
        all
    }
}

/// The tensors of experts that a checkpoint has all matrices of, in the order of their names.
pub fn find(input: &Checkpoint, config: Option<&ModelConfig>) -> Vec<Experts> {
    let mut found = Vec::new();
    if config.is_none_or(|config| config.model_types().next().is_none()) {
        // A single file, say. The names of matrices of single experts are those of many architectures, which turn them or do not.
        let known = ExpertTensor::of_gpt_oss();
        let whole = |name: &&str| known.iter().find_map(|kind| Some((kind, of_all(input, kind, name)?)));
        let names = input.quantized().into_iter();
        let found = names.filter_map(|name| Some((name, whole(&name)?)));
        return found
            .map(|(name, (kind, sizes))| Experts { name: name.into(), kind: *kind, sizes, matrices: vec![name.into()] })
            .collect();
    }
    for kind in config.map(ModelConfig::expert_tensors).unwrap_or_default() {
        let mut tensors: BTreeMap<String, BTreeMap<(usize, usize), &str>> = BTreeMap::new();
        for name in input.quantized() {
            if let Some((tensor, expert, part)) = kind.tensor_of(name) {
                tensors.entry(tensor).or_default().insert((expert, part), name);
            } else if let Some(sizes) = of_all(input, kind, name) {
                found.push(Experts { name: name.into(), kind: *kind, sizes, matrices: vec![name.into()] });
            }
        }
        for (name, matrices) in tensors {
            let parts = kind.parts().len();
            let experts = matrices.len() / parts;
            let whole = matrices.keys().copied().eq((0..experts).flat_map(|e| (0..parts).map(move |p| (e, p))));
            let Some(sizes) = whole.then(|| same(input, matrices.values().copied(), parts)).flatten() else { continue };
            // Biases of single experts would be left without them.
            let layer = kind.layer(&name).unwrap_or_default();
            let biased = kind.parts().iter().any(|part| input.get(&format!("{layer}.0.{part}.bias")).is_some());
            if !biased && input.get(&name).is_none() {
                let matrices = matrices.into_values().map(str::to_string).collect();
                found.push(Experts { name, kind: *kind, sizes, matrices });
            }
        }
    }
    found
}

/// Experts, rows and columns of a matrix that holds all experts, as gpt-oss's does.
fn of_all(input: &Checkpoint, kind: &ExpertTensor, name: &str) -> Option<[usize; 3]> {
    let dimensions = kind.is(name).then(|| input.quant_dimensions(name).ok()).flatten()?;
    <[usize; 3]>::try_from(dimensions).ok()
}

/// Experts, rows of each and columns of matrices that are all of one shape and scheme.
fn same<'a>(input: &Checkpoint, names: impl Iterator<Item = &'a str>, parts: usize) -> Option<[usize; 3]> {
    let (mut first, mut count) = (None, 0);
    for name in names {
        let facts = (input.quant_shape(name).ok()?, input.stored_scheme(name).ok()?);
        if *first.get_or_insert(facts) != facts {
            return None;
        }
        count += 1;
    }
    let ((rows, cols), _) = first?;
    Some([count / parts, rows * parts, cols])
}
