//! What is quantized or copied: the tensors of the input, but for those of experts, of which each matrix is an item of its own.

use std::collections::HashMap;

use scaled_gemm::checkpoint::{Checkpoint, Dialect, Dtype, TensorInfo};
use scaled_gemm::model_folder::{ExpertTensor, ModelConfig};
use scaled_gemm::pair::check_quantize_cols;

/// Why matrices are copied, and experts in one tensor.
pub const RAGGED: &str = "columns not a multiple of 16";

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
    let layers = Layers::new(input, config, dialect);
    for (at, tensor) in input.tensors().iter().enumerate() {
        let kind = expert_tensor(config, tensor).filter(|_| !whole.contains_key(&at));
        match kind.map(|kind| layers.check(tensor, kind).and_then(|()| matrices(at, tensor, kind, dialect))) {
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

/// The names of the experts of all tensors that are whole among these items, where they could have been taken apart. (Of the others
/// the items have them: there may be hundreds of thousands.)
pub fn left_whole(input: &Checkpoint, config: Option<&ModelConfig>, dialect: Dialect, items: &[Item]) -> Vec<String> {
    let whole = items.iter().filter(|item| item.slice.is_none()).map(|item| item.tensor);
    let kinds = whole.filter_map(|at| Some((at, expert_tensor(config, &input.tensors()[at])?)));
    let matrices = kinds.filter_map(|(at, kind)| matrices(at, &input.tensors()[at], kind, dialect).ok());
    matrices.flatten().map(|item| item.name).collect()
}

/// The sizes of a layer's experts.
#[derive(Default)]
struct Layer {
    /// Experts, and what goes into them and between their matrices: once for each tensor.
    sizes: Vec<[usize; 3]>,
    parts: usize,
}

/// The layers of experts that are in tensors of rank 3, by name.
struct Layers {
    layers: HashMap<String, Layer>,
    /// Parts that a layer must have: in the plain dialect each tensor stands for itself.
    parts: usize,
    dialect: Dialect,
}

impl Layers {
    fn new(input: &Checkpoint, config: Option<&ModelConfig>, dialect: Dialect) -> Self {
        let known = config.map(ModelConfig::expert_tensors).unwrap_or_default();
        let mut layers: HashMap<String, Layer> = HashMap::new();
        for tensor in input.tensors() {
            if let Some(kind) = expert_tensor(config, tensor)
                && let Some(layer) = kind.layer(&tensor.name)
            {
                let layer = layers.entry(layer).or_default();
                layer.sizes.extend(sizes(tensor, kind));
                layer.parts += kind.parts().len();
            }
        }
        let parts = known.iter().map(|kind| kind.parts().len()).sum();
        Self { layers, parts: if dialect == Dialect::Plain { 0 } else { parts }, dialect }
    }

    /// Refuses a tensor that does not fit the others of its layer: it lies in another way than is known of its architecture, and what
    /// was made of it would be of wrong rows.
    fn check(&self, tensor: &TensorInfo, kind: ExpertTensor) -> Result<(), &'static str> {
        // Where no engine reads them at all, that is the reason.
        let name = kind.layer(&tensor.name).filter(|_| kind.is_read_in(self.dialect));
        let Some(layer) = name.and_then(|name| self.layers.get(&name)) else { return Ok(()) };
        if layer.sizes.windows(2).any(|two| two[0] != two[1]) {
            return Err("experts in one tensor, of which the sizes do not fit those in the other tensors of the layer");
        }
        if layer.parts < self.parts {
            return Err("experts in one tensor, without the other tensors of gate, up and down of the layer");
        }
        Ok(())
    }
}

/// Experts, the inputs of gate and up, and those of down. Nothing of what has a reason of its own to be copied.
fn sizes(tensor: &TensorInfo, kind: ExpertTensor) -> Option<[usize; 3]> {
    let [experts, rows, cols] = kind.matrices(&tensor.shape)?;
    let [_, _, rows] = kind.rows_of(0, rows)?;
    Some(if kind.parts().contains(&"down_proj") { [experts, rows, cols] } else { [experts, cols, rows] })
}

/// Most experts of a tensor that are listed one by one; models have some hundreds.
const MOST_EXPERTS: usize = 65_536;

/// The matrices of a tensor of experts, or why there are none.
fn matrices(at: usize, tensor: &TensorInfo, kind: ExpertTensor, dialect: Dialect) -> Result<Vec<Item>, &'static str> {
    if !kind.is_read_in(dialect) {
        return Err(match kind.is_read_in(Dialect::GptOss) {
            true => {
                "experts in one tensor, which no engine reads quantized in this dialect: use --recipe mxfp4 with --dialect gpt-oss, or \
                 write plain"
            }
            false => "experts in one tensor, which no engine reads quantized in this dialect: write plain",
        });
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
    // Before they are listed: a file of some bytes may have millions.
    if check_quantize_cols(&tensor.name, cols).is_err() {
        return Err(RAGGED);
    }
    if experts > MOST_EXPERTS {
        return Err("more than 65536 experts in one tensor");
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
