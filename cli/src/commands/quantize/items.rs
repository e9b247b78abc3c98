//! What is quantized or copied: the tensors of the input, but for those of experts, of which each matrix is an item of its own.

use std::collections::HashMap;

use scaled_gemm::checkpoint::{Checkpoint, Dialect, Dtype, TensorInfo};
use scaled_gemm::model_folder::{ExpertTensor, ModelConfig};

/// A tensor of the input, or a matrix within one.
pub struct Item {
    pub name: String,
    pub dtype: Dtype,
    pub shape: Vec<usize>,
    /// Its place in the input.
    pub tensor: usize,
    /// Where it lies in a tensor of experts.
    pub slice: Option<Slice>,
}

/// The matrices `[rows, cols]` of some experts in a tensor of rank 3, one after the other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Slice {
    /// The first expert, and how many.
    pub experts: [usize; 2],
    /// The first of its rows among those of an expert, the distance from one to the next, and their number.
    pub rows: [usize; 3],
    /// Rows of an expert, and columns.
    pub all: [usize; 2],
    /// The tensor is `[experts, columns, rows]`.
    pub transposed: bool,
}

impl Item {
    /// Bytes in the input.
    pub fn bytes(&self) -> u64 {
        self.shape.iter().product::<usize>() as u64 * self.dtype.bitsize() as u64 / 8
    }

    /// Rows and columns, where it is a matrix.
    pub fn matrix(&self) -> Option<[usize; 2]> {
        match (self.slice, self.shape.as_slice()) {
            (Some(Slice { experts, rows, all, .. }), _) => Some([experts[1] * rows[2], all[1]]),
            (None, [rows, cols]) => Some([*rows, *cols]),
            _ => None,
        }
    }

    fn of_tensor(at: usize, tensor: &TensorInfo) -> Self {
        let TensorInfo { name, dtype, shape, .. } = tensor;
        Self { name: name.clone(), dtype: *dtype, shape: shape.clone(), tensor: at, slice: None }
    }
}

/// Why the experts of a tensor are copied with it, by its place in the input.
pub type Whole = HashMap<usize, &'static str>;

/// The kind of a tensor of experts, by the architecture that the config names.
fn expert_tensor(config: Option<&ModelConfig>, tensor: &TensorInfo) -> Option<ExpertTensor> {
    let known = config.map(ModelConfig::expert_tensors).unwrap_or_default();
    known.iter().find(|known| tensor.shape.len() == 3 && known.is(&tensor.name)).copied()
}

/// The items of an input. Tensors of experts that are to be copied are whole, with the reason.
pub fn items(input: &Checkpoint, config: Option<&ModelConfig>, dialect: Dialect, whole: &mut Whole) -> Vec<Item> {
    let mut items = Vec::with_capacity(input.tensors().len());
    for (at, tensor) in input.tensors().iter().enumerate() {
        let kind = expert_tensor(config, tensor).filter(|_| !whole.contains_key(&at));
        match kind.map(|kind| matrices(at, tensor, kind, dialect)) {
            Some(Ok(matrices)) => items.extend(matrices),
            Some(Err(reason)) => {
                whole.insert(at, reason);
                items.push(Item::of_tensor(at, tensor));
            }
            None => items.push(Item::of_tensor(at, tensor)),
        }
    }
    items
}

/// The matrices of a tensor of experts, or why there are none.
fn matrices(at: usize, tensor: &TensorInfo, kind: ExpertTensor, dialect: Dialect) -> Result<Vec<Item>, &'static str> {
    if !kind.is_read_in(dialect) {
        return Err("experts in one tensor, which no engine reads quantized in this dialect: write plain");
    }
    let Some([experts, rows, cols]) = kind.matrices(&tensor.shape).filter(|sizes| !sizes.contains(&0)) else {
        return Err("experts in one tensor without an element");
    };
    let item = |name: String, experts: [usize; 2], rows_of: [usize; 3]| {
        let slice = Slice { experts, rows: rows_of, all: [rows, cols], transposed: kind.is_transposed() };
        let shape = match dialect {
            Dialect::GptOss => vec![experts[1], rows_of[2], cols],
            _ => vec![rows_of[2], cols],
        };
        Item { name, dtype: tensor.dtype, shape, tensor: at, slice: Some(slice) }
    };
    if dialect == Dialect::GptOss {
        return Ok(vec![item(tensor.name.clone(), [0, experts], [0, 1, rows])]);
    }
    let mut items = Vec::with_capacity(experts * kind.parts().len());
    for expert in 0..experts {
        for part in 0..kind.parts().len() {
            let found = kind.rows_of(part, rows).zip(kind.matrix(&tensor.name, expert, part));
            let (rows, name) = found.ok_or("experts in one tensor, of which gate and up are not halves")?;
            items.push(item(name, [expert, 1], rows));
        }
    }
    Ok(items)
}
