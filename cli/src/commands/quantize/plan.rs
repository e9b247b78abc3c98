//! What becomes of each tensor: which are quantized, by which recipe, and which share a scale.

use std::collections::{BTreeMap, HashSet};

use scaled_gemm::checkpoint::{Checkpoint, Dialect, Dtype, TensorInfo};
use scaled_gemm::model_folder::{ModelConfig, QuantizationConfig, fused_groups, left_alone};
use scaled_gemm::pair::check_quantize_cols;
use scaled_gemm::{DType, Recipe, Scheme};

use crate::args::QuantizeArgs;
use crate::output::Failure;

/// What happens to a tensor.
#[derive(Debug, Clone, PartialEq)]
pub enum Plan {
    Quantize(Weight),
    /// Copied, and why.
    Copy(&'static str),
}

/// A matrix to be quantized.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weight {
    pub rows: usize,
    pub cols: usize,
    pub source: DType,
    pub recipe: Recipe,
    /// Its place in [`Plans::groups`], where it shares its scale.
    pub group: Option<usize>,
}

impl Weight {
    /// Bytes of its codes and scales in a file.
    pub fn bytes(&self) -> u64 {
        let scheme = self.recipe.scheme();
        let ([r, c], [b, s]) = (scheme.scale_grid(self.rows, self.cols), scheme.block_grid(self.rows, self.cols));
        (self.rows * self.cols * scheme.spec().code_bits / 8 + 4 * r * c + b * s) as u64
    }
}

/// What happens to every tensor of a checkpoint.
pub struct Plans {
    /// One for each tensor.
    pub tensors: Vec<Plan>,
    /// Places of tensors that share one scale.
    pub groups: Vec<Vec<usize>>,
    pub quantization: QuantizationConfig,
}

/// Why a tensor is copied that was not asked for.
pub const NOT_ASKED_FOR: &str = "not matched by --only";

impl Plans {
    /// The places of all that share the scale of the tensor at this place, itself among them.
    pub fn sharing(&self, at: usize) -> Vec<usize> {
        match &self.tensors[at] {
            Plan::Quantize(Weight { group: Some(group), .. }) => self.groups[*group].clone(),
            _ => vec![at],
        }
    }

    pub fn new(
        args: &QuantizeArgs,
        input: &Checkpoint,
        config: Option<&ModelConfig>,
        dialect: Dialect,
    ) -> Result<Self, Failure> {
        let first = args.recipe(0)?;
        let quantization = QuantizationConfig::new(dialect, first, args.input_scales.is_some())?;
        let codes = codes(input);
        let mut tensors: Vec<_> =
            input.tensors().iter().map(|tensor| plan(args, input, config, dialect, &codes, tensor, first)).collect();
        // Engines fuse what they do not quantize, too: a group is quantized whole or not at all.
        let linear: Vec<usize> = (0..tensors.len()).filter(|&at| is_linear(&input.tensors()[at])).collect();
        let modules: Vec<&str> = linear.iter().map(|&at| module(&input.tensors()[at].name)).collect();
        let architecture = config.map(ModelConfig::architecture).unwrap_or_default();
        let own = |module: &str| args.fuse.iter().find_map(|fuse| own_group(fuse, module));
        let fused = if args.no_fuse { Vec::new() } else { fused_groups(&modules, architecture, own) };
        let mut groups = Vec::new();
        for fused in fused {
            let members: Vec<usize> = fused.into_iter().map(|at| linear[at]).collect();
            let quantized = |at: &&usize| matches!(tensors[**at], Plan::Quantize(_));
            let count = members.iter().filter(quantized).count();
            if dialect != Dialect::Plain {
                if count > 0 && count < members.len() {
                    let reason = "engines fuse it with a layer that is left alone: quantize that too, or write plain";
                    leave(&mut tensors, &members, reason);
                }
                // A block of one layer would hold rows of the next.
                let ragged = |at: &usize| !input.tensors()[*at].shape[0].is_multiple_of(128);
                if matches!(first.scheme(), Scheme::Fp8Group128x128(_)) && members.iter().any(ragged) {
                    leave(&mut tensors, &members, "engines fuse it, and 128 does not divide the rows of its group");
                }
            }
            let shared = has_whole(first);
            let quantized: Vec<usize> =
                members.into_iter().filter(|at| matches!(tensors[*at], Plan::Quantize(_))).collect();
            if shared && quantized.len() > 1 {
                groups.push(quantized);
            }
        }
        if dialect != Dialect::Plain {
            leave_torn_experts(input, &mut tensors, &linear);
            groups.retain(|group: &Vec<usize>| matches!(tensors[group[0]], Plan::Quantize(_)));
        }
        // When no more is left alone: places in the list are final.
        for (place, group) in groups.iter().enumerate() {
            for at in group {
                if let Plan::Quantize(weight) = &mut tensors[*at] {
                    weight.group = Some(place);
                }
            }
        }
        // Each matrix rounds with random bytes of its own.
        let mut matrices = 0..;
        for plan in &mut tensors {
            if let Plan::Quantize(weight) = plan {
                weight.recipe = args.recipe(matrices.next().unwrap_or_default())?;
            }
        }
        Ok(Self { tensors, groups, quantization })
    }

    /// The matrices to be quantized, with their places.
    pub fn weights(&self) -> impl Iterator<Item = (usize, &Weight)> {
        self.tensors.iter().enumerate().filter_map(|(at, plan)| match plan {
            Plan::Quantize(weight) => Some((at, weight)),
            Plan::Copy(_) => None,
        })
    }

    /// The linear layers that are left alone, each in full: how every engine reads the list. An output head is named also where it
    /// is tied to the embeddings and has no tensor.
    pub fn ignored(&self, input: &Checkpoint) -> Vec<String> {
        let left = input.tensors().iter().zip(&self.tensors).filter(|(tensor, plan)| {
            let embedding = left_alone(module(&tensor.name)) == Some("an embedding");
            matches!(plan, Plan::Copy(_)) && is_linear(tensor) && !embedding
        });
        let mut modules: Vec<String> = left.map(|(tensor, _)| module(&tensor.name).to_string()).collect();
        // Experts in one tensor are a layer of their own.
        let experts = input.tensors().iter().filter(|tensor| is_of_experts(tensor));
        let mut layers: Vec<String> =
            experts.filter_map(|t| Some(t.name[..t.name.find(EXPERTS)? + EXPERTS.len()].to_string())).collect();
        layers.dedup();
        modules.extend(layers);
        let head = "lm_head".to_string();
        if input.get("lm_head.weight").is_none() && !modules.contains(&head) {
            modules.push(head);
        }
        modules
    }
}

/// True if parts of a matrix can be quantized one by one: not where a part would round with other random bytes, nor where the largest
/// value is that of transformed rows.
pub fn is_divisible(recipe: Recipe) -> bool {
    match recipe {
        Recipe::Nvfp4(nv) => {
            let options = nv.options();
            options.basis == scaled_gemm::Basis::Plain && options.rounding == scaled_gemm::CodeRounding::Nearest
        }
        _ => true,
    }
}

/// True for schemes with one scale for the matrix, which is to be known before the first part. Of transformed rows it is another one.
pub fn has_whole(recipe: Recipe) -> bool {
    matches!(recipe.scheme(), Scheme::Nvfp4 | Scheme::Fp8Tensor(_)) && recipe.basis() == scaled_gemm::Basis::Plain
}

/// How the names of a layer's experts go on.
const EXPERTS: &str = ".experts";

/// True for the weights of all experts in one tensor.
fn is_of_experts(tensor: &TensorInfo) -> bool {
    tensor.shape.len() == 3 && tensor.name.contains(EXPERTS) && source(tensor.dtype).is_some()
}

/// Engines run the experts of a layer as one: where some are left alone, all are.
fn leave_torn_experts(input: &Checkpoint, tensors: &mut [Plan], linear: &[usize]) {
    let mut layers: BTreeMap<&str, Vec<usize>> = BTreeMap::new();
    for &at in linear {
        let name = &input.tensors()[at].name;
        if let Some(found) = name.find(".experts.") {
            layers.entry(&name[..found]).or_default().push(at);
        }
    }
    for members in layers.values() {
        if members.iter().any(|at| matches!(tensors[*at], Plan::Copy(_))) {
            leave(
                tensors,
                members,
                "engines run it with experts that are left alone: quantize those too, or write plain",
            );
        }
    }
}

/// The name of the layer that a weight belongs to.
pub fn module(name: &str) -> &str {
    name.strip_suffix(".weight").unwrap_or(name)
}

fn is_linear(tensor: &TensorInfo) -> bool {
    tensor.name.ends_with(".weight") && tensor.shape.len() == 2 && source(tensor.dtype).is_some()
}

fn leave(tensors: &mut [Plan], members: &[usize], reason: &'static str) {
    for at in members {
        if matches!(tensors[*at], Plan::Quantize(_)) {
            tensors[*at] = Plan::Copy(reason);
        }
    }
}

/// The group of a module by a pattern of the caller's: what the pattern matches may differ within a group.
fn own_group(fuse: &regex::Regex, module: &str) -> Option<String> {
    let found = fuse.find(module)?;
    Some(format!("{}\0{}\0{}", fuse.as_str(), &module[..found.start()], &module[found.end()..]))
}

fn source(dtype: Dtype) -> Option<DType> {
    match dtype {
        Dtype::BF16 => Some(DType::Bf16),
        Dtype::F16 => Some(DType::F16),
        Dtype::F32 => Some(DType::F32),
        _ => None,
    }
}

fn plan(
    args: &QuantizeArgs,
    input: &Checkpoint,
    config: Option<&ModelConfig>,
    dialect: Dialect,
    codes: &HashSet<String>,
    tensor: &TensorInfo,
    recipe: Recipe,
) -> Plan {
    if input.is_scale(&tensor.name) {
        return Plan::Copy("scales of another tensor");
    }
    let module = module(&tensor.name);
    if args.only.as_ref().is_some_and(|regex| !regex.is_match(&tensor.name)) {
        return Plan::Copy(NOT_ASKED_FOR);
    }
    if args.exclude.iter().any(|regex| regex.is_match(&tensor.name)) {
        return Plan::Copy("matched by --exclude");
    }
    let source = match tensor.dtype {
        Dtype::F8_E4M3 | Dtype::F8_E5M2 => return Plan::Copy("FP8 already"),
        Dtype::U8 if codes.contains(&tensor.name) => return Plan::Copy("NVFP4 already"),
        Dtype::F64 => return Plan::Copy("F64, which is not quantized: convert it to F32 first"),
        dtype => match source(dtype) {
            Some(source) => source,
            None => return Plan::Copy("neither BF16 nor F16 nor F32"),
        },
    };
    let [rows, cols] = match *tensor.shape.as_slice() {
        [rows, cols] if rows > 0 && cols > 0 => [rows, cols],
        [_, _] => return Plan::Copy("without an element"),
        _ if is_of_experts(tensor) => {
            return Plan::Copy("experts in one tensor, of which the axis to quantize is not known");
        }
        _ => return Plan::Copy("not a matrix"),
    };
    if args.only.is_none() {
        if let Some(reason) = left_alone(module) {
            return Plan::Copy(reason);
        }
        if config.is_some_and(|config| config.ignores(module)) {
            return Plan::Copy("left alone by config.json");
        }
    }
    if dialect != Dialect::Plain && !tensor.name.ends_with(".weight") {
        return Plan::Copy("not the weight of a layer by its name");
    }
    let padded = match recipe.scheme() {
        _ if dialect != Dialect::ComfyUi => 1,
        Scheme::Nvfp4 => 16,
        Scheme::Mxfp8(_) => 32,
        _ => 1,
    };
    if !rows.is_multiple_of(padded) {
        return Plan::Copy("rows that ComfyUI would pad, not a multiple of 16 (nvfp4) or 32 (mxfp8)");
    }
    // The one rule of a recipe that concerns rows: the sums of a tile are defined for 16 of them.
    match check_quantize_cols(&tensor.name, cols) {
        Ok(()) if !rows.is_multiple_of(recipe.row_multiple()) => {
            Plan::Copy("rows not a multiple of 16, which 4over6 in 16x16 tiles needs")
        }
        Ok(())
            if dialect != Dialect::Plain
                && matches!(recipe.scheme(), Scheme::Mxfp8(_) | Scheme::Mxfp4)
                && !cols.is_multiple_of(32) =>
        {
            Plan::Copy("columns not a multiple of 32, which engines need for MX")
        }
        Ok(()) => Plan::Quantize(Weight { rows, cols, source, recipe, group: None }),
        Err(_) => Plan::Copy("columns not a multiple of 16"),
    }
}

/// The tensors that hold codes of quantized matrices, whatever those are called.
fn codes(input: &Checkpoint) -> HashSet<String> {
    input.quantized().into_iter().flat_map(|name| [name.to_string(), format!("{name}_packed")]).collect()
}
