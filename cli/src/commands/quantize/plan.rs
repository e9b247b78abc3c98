//! What becomes of each tensor: which are quantized, by which recipe, and which share a scale.

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet, VecDeque};

use regex::Regex;
use scaled_gemm::checkpoint::{CODES_ENDINGS, Checkpoint, Dialect, Dtype, RECIPE_KEY, StoredScheme, TensorInfo};
use scaled_gemm::model_folder::{ModelConfig, QuantizationConfig, TransposedLayers, fused_groups, left_alone};
use scaled_gemm::pair::check_quantize_cols;
use scaled_gemm::{CodeFormat, DType, Scheme};

use super::fuse;
use super::items::{Item, RAGGED, Whole, items};
use crate::args::QuantizeArgs;
use crate::folder::module;
use crate::foreign::ForeignLayers;
use crate::non_finite::Others;
use crate::output::Failure;
use crate::target::Target;

/// What happens to a tensor.
#[derive(Debug, Clone, PartialEq)]
pub enum Plan {
    Quantize(Weight),
    /// Copied, and why.
    Copy(&'static str),
    /// Left out, and why: what says or scales what a layer was before.
    Drop(&'static str),
}

/// A matrix to be quantized.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Weight {
    pub rows: usize,
    pub cols: usize,
    pub source: DType,
    pub target: Target,
    /// Its place in [`Plans::groups`], where it shares its scale.
    pub group: Option<usize>,
}

impl Weight {
    /// Bytes of its codes and scales in a file.
    pub fn bytes(&self) -> u64 {
        self.target.bytes(self.rows, self.cols)
    }
}

/// What happens to every tensor of a checkpoint.
pub struct Plans {
    /// Its tensors, and the matrices of experts, in its order. Places are those in this list.
    pub items: Vec<Item>,
    /// One for each item.
    pub tensors: Vec<Plan>,
    /// Places of items that share one scale.
    pub groups: Vec<Vec<usize>>,
    /// Of each, whether it is larger than what engines are known to fuse: `--fuse` has it so.
    pub widened: Vec<bool>,
    /// Nothing of casts, of which no config speaks.
    pub quantization: Option<QuantizationConfig>,
    /// Layers whose rows are no rows to quantize along.
    pub transposed: TransposedLayers,
    /// Of each item, one that stands for all that are quantized with it or not at all.
    together: Vec<usize>,
}

/// Why what belongs to codes that are not read is copied.
const FOREIGN: &str = "of layers whose codes are in a format that is not read here";
/// Why scales are whose codes are gone.
const ALONE: &str = "scales of a matrix by its entry in the metadata, whose codes are not there";
/// Why what belongs to what is left of casts is.
pub const LOST: &str = "of layers that may hold codes of casts, whose entries in the metadata are not in the file";
/// Why a tensor is copied that was not asked for.
pub const NOT_ASKED_FOR: &str = "not matched by --only";
/// Why tensors are copied by default that may be asked for.
pub const TRANSPOSED: &str = "Conv1D weights, [in, out], of which the rows are not what products sum over; no engine reads such layers quantized";
pub const BY_CONFIG: &str = "left alone by config.json";
/// Why codes are, which `quantize` does not read.
pub const CODED: [&str; 5] = [FP8, NVFP4, MXFP4, CAST, PACKED];
const FP8: &str = "FP8 already";
const NVFP4: &str = "NVFP4 already";
const MXFP4: &str = "MXFP4 already";
const CAST: &str = "a cast already";
const PACKED: &str = "two codes a byte already, with scales that fit neither NVFP4 nor MXFP4";
/// Why U8 is that the metadata speak of, and in another way.
const NO_RECIPE: &str = "U8 with an entry in the metadata that is no recipe of two codes a byte";
/// Why tensors are left out.
const MARK: &str = "ComfyUI's mark of a layer that is quantized now";
const OLD_MARK: &str =
    "ComfyUI's mark of a layer that is plain now, by an entry of the metadata, which is left out, too";
const OLD_SCALE: &str =
    "scales of what a matrix was that is plain now, by an entry of the metadata, which is left out, too";
/// Why others are.
pub const EXCLUDED: &str = "matched by --exclude";
pub const RAGGED_MX: &str = "columns not a multiple of 32, which engines need for MX";
const FUSED_RAGGED: &str = "engines fuse it, and 128 does not divide the rows of its group";
const FUSED_TORN: &str = "engines fuse it with a layer that is left alone: quantize that too, or write plain";
const JOINED_RAGGED: &str =
    "--fuse joins it with others, and 128 does not divide the rows of one of them: narrow the pattern";
const JOINED_TORN: &str =
    "--fuse joins it with a layer that is left alone: narrow the pattern, quantize that too, or write plain";
const TORN: &str = "experts in one tensor, of which some are left alone: quantize all of them or none";

/// What the plans are made from. `model`: the config that names the architecture, also where it is not read for anything else.
#[derive(Clone, Copy)]
pub struct Given<'a> {
    pub args: &'a QuantizeArgs,
    pub input: &'a Checkpoint,
    pub config: Option<&'a ModelConfig>,
    pub model: Option<&'a ModelConfig>,
    pub dialect: Dialect,
}

impl Plans {
    /// The group that the tensor at this place shares its scale with. What is asked of its members is asked once: a pattern of the
    /// caller's may make one group of a hundred thousand.
    pub fn group(&self, at: usize) -> Option<usize> {
        match &self.tensors[at] {
            Plan::Quantize(weight) => weight.group,
            Plan::Copy(_) | Plan::Drop(_) => None,
        }
    }

    /// The places of all that share the scale of the tensor at this place, itself among them.
    pub fn sharing(&self, at: usize) -> Cow<'_, [usize]> {
        self.group(at).map_or_else(|| vec![at].into(), |group| self.groups[group].as_slice().into())
    }

    pub fn new(given: Given<'_>) -> Result<Self, Failure> {
        let mut whole = Whole::new();
        loop {
            let plans = Self::of_items(given, &mut whole)?;
            // Where one expert of a tensor is copied, all are, with their tensor; what follows of that is seen then.
            let known = whole.len();
            for (item, plan) in plans.items.iter().zip(&plans.tensors).filter(|(item, _)| item.slice.is_some()) {
                if let Plan::Copy(reason) = plan {
                    whole.entry(item.tensor).or_insert(reason);
                }
            }
            for (at, reason) in &mut whole {
                let mut of_tensor = plans.items.iter().zip(&plans.tensors).filter(|(item, _)| item.tensor == *at);
                if of_tensor.any(|(item, plan)| item.slice.is_some() && *plan != Plan::Copy(reason)) {
                    *reason = TORN;
                }
            }
            if whole.len() == known {
                return Ok(plans);
            }
        }
    }

    fn of_items(given: Given<'_>, whole: &mut Whole) -> Result<Self, Failure> {
        let Given { args, input, config, model, dialect } = given;
        let first = args.target(0)?;
        let quantization = match first {
            Target::Recipe(recipe) => Some(QuantizationConfig::new(dialect, recipe, args.input_scales.is_some())?),
            Target::Cast(_) => None,
        };
        let codes = codes(input);
        let foreign = ForeignLayers::new(input, config);
        let items = items(input, model, dialect, whole);
        let transposed = TransposedLayers::new(model, input.tensors());
        let mut tensors: Vec<_> =
            items.iter().map(|item| plan(given, (whole, &codes, &foreign, &transposed), item, first)).collect();
        // Engines fuse what they do not quantize, too: a group is quantized whole or not at all.
        let linear: Vec<usize> = (0..tensors.len()).filter(|&at| is_linear(&items[at])).collect();
        let modules: Vec<&str> = linear.iter().map(|&at| module(&items[at].name)).collect();
        let architecture = config.map(ModelConfig::architecture).unwrap_or_default();
        let place = |groups: Vec<Vec<usize>>| -> Vec<Vec<usize>> {
            groups.into_iter().map(|members| members.into_iter().map(|at| linear[at]).collect()).collect()
        };
        let (fused, joined) = match args.no_fuse {
            true => Default::default(),
            false => (
                place(fused_groups(&modules, architecture, |_| None)),
                place(fused_groups(&modules, architecture, |module| fuse::group(&args.fuse, module))),
            ),
        };
        // What `--fuse` made larger, or anew.
        let engines: HashSet<&Vec<usize>> = fused.iter().collect();
        let own = || joined.iter().filter(|members| !engines.contains(members));
        let mut sets = Vec::new();
        if dialect != Dialect::Plain {
            // A block of one layer would hold rows of the next.
            let ragged = |at: &usize| !items[*at].shape[0].is_multiple_of(128);
            if matches!(first.product(), Some(Scheme::Fp8Group128x128(_))) {
                let fused = fused.iter().map(|members| (members, FUSED_RAGGED));
                for (members, reason) in fused.chain(own().map(|members| (members, JOINED_RAGGED))) {
                    if members.iter().any(ragged) {
                        leave(&mut tensors, members, reason);
                    }
                }
            }
            let torn = fused.iter().map(|members| (members.clone(), FUSED_TORN));
            let torn = torn.chain(layers_of_experts(model, &items, dialect));
            sets.extend(torn.chain(own().map(|m| (m.clone(), JOINED_TORN))));
            leave_torn(&mut tensors, &sets);
        }
        let together = together(&items, &sets);
        let sharing = |members: &Vec<usize>| {
            let members = quantized(&tensors, members.iter().copied());
            (first.has_whole() && members.len() > 1).then_some(members)
        };
        let as_fused: HashSet<Vec<usize>> = fused.iter().filter_map(sharing).collect();
        let groups: Vec<_> = joined.iter().filter_map(sharing).collect();
        let widened = groups.iter().map(|members| !as_fused.contains(members)).collect();
        // When no more is left alone: places in the list are final.
        for (place, group) in groups.iter().enumerate() {
            for at in group {
                if let Plan::Quantize(weight) = &mut tensors[*at] {
                    weight.group = Some(place);
                }
            }
        }
        // Of ComfyUI's layers; what is written now says itself what it is, and what is plain now is none of them.
        let layers: HashSet<&str> =
            quantized(&tensors, 0..tensors.len()).into_iter().map(|at| module(&items[at].name)).collect();
        let left: HashSet<&str> = left_layers(input).collect();
        for (item, plan) in items.iter().zip(&mut tensors) {
            match input.marked_layer(&item.name) {
                Some(layer) if layers.contains(layer) => *plan = Plan::Drop(MARK),
                Some(layer) if left.contains(layer) => *plan = Plan::Drop(OLD_MARK),
                _ => {}
            }
        }
        // Each matrix rounds with random bytes of its own.
        let mut matrices = 0..;
        for plan in &mut tensors {
            if let Plan::Quantize(weight) = plan {
                weight.target = args.target(matrices.next().unwrap_or_default())?;
            }
        }
        Ok(Self { items, tensors, groups, widened, quantization, transposed, together })
    }

    /// The matrices to be quantized, with their places.
    pub fn weights(&self) -> impl Iterator<Item = (usize, &Weight)> {
        self.tensors.iter().enumerate().filter_map(|(at, plan)| match plan {
            Plan::Quantize(weight) => Some((at, weight)),
            Plan::Copy(_) | Plan::Drop(_) => None,
        })
    }

    /// Whether others are still quantized where one of the matrices is left as it is, whichever.
    pub fn others(&self) -> Others {
        let mut sets = self.weights().map(|(at, _)| self.together[at]);
        let first = sets.next();
        if sets.any(|set| Some(set) != first) { Others::Some } else { Others::None }
    }

    /// Whether none is where all of these are.
    pub fn has_no_other(&self, names: &BTreeSet<&str>) -> bool {
        let is_one = |at: &usize| names.contains(self.items[*at].name.as_str());
        let left: HashSet<usize> =
            self.weights().map(|(at, _)| at).filter(is_one).map(|at| self.together[at]).collect();
        self.weights().all(|(at, _)| left.contains(&self.together[at]))
    }

    /// What is left out, and why.
    pub fn left_out(&self) -> impl Iterator<Item = (&Item, &'static str)> {
        left_out(&self.items, &self.tensors)
    }

    /// The linear layers that are left alone, each in full: how every engine reads the list. An output head is named also where it
    /// is tied to the embeddings and has no tensor.
    pub fn ignored(&self, given: Given<'_>) -> Vec<String> {
        let copied = self.items.iter().zip(&self.tensors).filter(|(_, plan)| matches!(plan, Plan::Copy(_)));
        let left = copied.clone().filter(|(item, _)| {
            let embedding = left_alone(module(&item.name)) == Some("an embedding");
            is_linear(item) && !embedding
        });
        let mut modules: Vec<String> = left.map(|(item, _)| module(&item.name).to_string()).collect();
        // Experts in one tensor are a layer of their own.
        let mut seen = HashSet::new();
        let experts = copied.filter(|(item, _)| is_of_experts(given.model, item));
        let layers = experts.filter_map(|(item, _)| layer_of_experts(given.model, item));
        modules.extend(layers.filter(|layer| seen.insert(layer.clone())));
        let head = "lm_head".to_string();
        if given.input.get("lm_head.weight").is_none() && !modules.contains(&head) {
            modules.push(head);
        }
        modules
    }
}

/// How the names of a layer's experts go on.
const EXPERTS: &str = ".experts";

/// True for the weights of all experts in one tensor.
fn is_of_experts(model: Option<&ModelConfig>, item: &Item) -> bool {
    item.shape.len() == 3 && source(item.dtype).is_some() && layer_of_experts(model, item).is_some()
}

/// The layer that is run with all its experts: `model.layers.0.mlp.experts`.
fn layer_of_experts(model: Option<&ModelConfig>, item: &Item) -> Option<String> {
    let known = model.map(ModelConfig::expert_tensors).unwrap_or_default().iter().find_map(|t| t.layer(&item.name));
    known.or_else(|| item.name.find(EXPERTS).map(|at| item.name[..at + EXPERTS.len()].to_string()))
}

/// Places of tensors of which engines read all quantized or none, and why.
type Together = (Vec<usize>, &'static str);

/// Engines run the experts of a layer as one: where some are left alone, all are. Those of gpt-oss are all in MXFP4.
fn layers_of_experts(model: Option<&ModelConfig>, items: &[Item], dialect: Dialect) -> Vec<Together> {
    let mut layers: BTreeMap<String, Vec<usize>> = BTreeMap::new();
    for (at, item) in items.iter().enumerate() {
        let of_one = is_linear(item) && item.name.contains(".experts.");
        if (of_one || is_of_experts(model, item))
            && let Some(layer) = layer_of_experts(model, item)
        {
            let layer = if dialect == Dialect::GptOss { String::new() } else { layer };
            layers.entry(layer).or_default().push(at);
        }
    }
    let reason = "engines run it with experts that are left alone: quantize those too, or write plain";
    layers.into_values().map(|members| (members, reason)).collect()
}

/// Leaves what is not whole. What is left of one set may tear another, and that the next: each is looked at when it may be torn,
/// and not all of them again, since a pattern of the caller's may make a chain of all layers.
fn leave_torn(tensors: &mut [Plan], sets: &[Together]) {
    let mut sets_of: HashMap<usize, Vec<usize>> = HashMap::new();
    for (set, (members, _)) in sets.iter().enumerate() {
        members.iter().for_each(|at| sets_of.entry(*at).or_default().push(set));
    }
    let mut left = vec![false; sets.len()];
    let mut next: VecDeque<usize> = (0..sets.len()).collect();
    while let Some(set) = next.pop_front() {
        let (members, reason) = &sets[set];
        if left[set] || quantized(tensors, members.iter().copied()).len() == members.len() {
            continue;
        }
        left[set] = true;
        for at in quantized(tensors, members.iter().copied()) {
            tensors[at] = Plan::Copy(reason);
            next.extend(sets_of.get(&at).into_iter().flatten().filter(|other| !left[**other]));
        }
    }
}

/// Of each item, one that stands for all of the sets that it is in, and of those that these tear. So do experts of one tensor.
fn together(items: &[Item], sets: &[Together]) -> Vec<usize> {
    let mut stand: Vec<usize> = (0..items.len()).collect();
    let find = |stand: &mut [usize], mut at: usize| {
        while stand[at] != at {
            stand[at] = stand[stand[at]];
            at = stand[at];
        }
        at
    };
    let mut tensors: HashMap<usize, usize> = HashMap::new();
    let of_sets = sets.iter().flat_map(|(members, _)| members.iter().map(|at| (*at, members[0])));
    let slices = items.iter().enumerate().filter(|(_, item)| item.slice.is_some());
    let of_tensors = slices.map(|(at, item)| (at, *tensors.entry(item.tensor).or_insert(at)));
    for (at, first) in of_sets.chain(of_tensors) {
        let (at, first) = (find(&mut stand, at), find(&mut stand, first));
        stand[at] = first;
    }
    (0..items.len()).map(|at| find(&mut stand, at)).collect()
}

/// Those of some places that are to be quantized.
fn quantized(tensors: &[Plan], places: impl Iterator<Item = usize>) -> Vec<usize> {
    places.filter(|at| matches!(tensors[*at], Plan::Quantize(_))).collect()
}

/// True for the weight of a linear layer, of whatever type: also what cannot be quantized is fused.
pub fn is_linear(item: &Item) -> bool {
    item.name.ends_with(".weight") && item.shape.len() == 2
}

fn leave(tensors: &mut [Plan], members: &[usize], reason: &'static str) {
    for at in members {
        if matches!(tensors[*at], Plan::Quantize(_)) {
            tensors[*at] = Plan::Copy(reason);
        }
    }
}

pub fn source(dtype: Dtype) -> Option<DType> {
    match dtype {
        Dtype::BF16 => Some(DType::Bf16),
        Dtype::F16 => Some(DType::F16),
        Dtype::F32 => Some(DType::F32),
        _ => None,
    }
}

/// What is left out of these, and why.
pub fn left_out<'a>(items: &'a [Item], plans: &'a [Plan]) -> impl Iterator<Item = (&'a Item, &'static str)> {
    items.iter().zip(plans).filter_map(|(item, plan)| match plan {
        Plan::Drop(reason) => Some((item, *reason)),
        Plan::Quantize(_) | Plan::Copy(_) => None,
    })
}

fn plan(
    given: Given<'_>,
    (whole, codes, foreign, transposed): (&Whole, &HashSet<String>, &ForeignLayers<'_>, &TransposedLayers),
    item: &Item,
    target: Target,
) -> Plan {
    let Given { args, input, config, model, dialect } = given;
    if input.is_left_scale(&input.tensors()[item.tensor]) {
        return Plan::Drop(OLD_SCALE);
    }
    if input.is_scale(&item.name) {
        return Plan::Copy("scales of another tensor");
    }
    if foreign.is_scale_alone(&item.name) {
        return Plan::Copy(ALONE);
    }
    // Whatever was asked for: quantized, their scales would be lost to the codes that they belong to.
    if foreign.is_lost(&item.name) {
        return Plan::Copy(LOST);
    }
    if foreign.has(&item.name) {
        return Plan::Copy(FOREIGN);
    }
    let module = module(&item.name);
    let reason = whole.get(&item.tensor).copied();
    if let Some(reason) = reason.filter(|reason| *reason == TORN) {
        return Plan::Copy(reason);
    }
    // Of experts the name in the input, or that of the matrix.
    let matches = |regex: &Regex| regex.is_match(&item.name) || regex.is_match(&input.tensors()[item.tensor].name);
    if args.only.as_ref().is_some_and(|regex| !matches(regex)) {
        return Plan::Copy(NOT_ASKED_FOR);
    }
    if args.exclude.iter().any(matches) {
        return Plan::Copy(EXCLUDED);
    }
    // Whatever else may be a reason to copy it is asked first: of what would be quantized a cast refuses such columns.
    let is_ragged = reason == Some(RAGGED);
    if let Some(reason) = reason.filter(|_| !is_ragged) {
        return Plan::Copy(reason);
    }
    let source = match item.dtype {
        Dtype::F8_E4M3 | Dtype::F8_E5M2 => return Plan::Copy(coded(input, &item.name, FP8)),
        Dtype::U8 if codes.contains(&item.name) => return Plan::Copy(coded(input, &item.name, NVFP4)),
        Dtype::F64 => return Plan::Copy("F64, which is not quantized: convert it to F32 first"),
        dtype => match source(dtype) {
            Some(source) => source,
            None => return Plan::Copy("neither BF16 nor F16 nor F32"),
        },
    };
    let [rows, cols] = match item.matrix() {
        Some([rows, cols]) if rows > 0 && cols > 0 => [rows, cols],
        Some(_) => return Plan::Copy("without an element"),
        None if is_ragged => [0, 0],
        None if is_of_experts(model, item) => {
            return Plan::Copy("experts in one tensor, of which the axis to quantize is not known for this model_type");
        }
        None => return Plan::Copy("not a matrix"),
    };
    if args.only.is_none() {
        if let Some(reason) = left_alone(module) {
            return Plan::Copy(reason);
        }
        if transposed.contains(module) {
            return Plan::Copy(TRANSPOSED);
        }
        let of = self::module(&input.tensors()[item.tensor].name);
        if config.is_some_and(|config| config.ignores(module) || config.ignores(of)) {
            return Plan::Copy(BY_CONFIG);
        }
    }
    if is_ragged {
        return Plan::Copy(RAGGED);
    }
    if dialect == Dialect::GptOss && item.slice.is_none() {
        return Plan::Copy("not of the experts, which alone engines read in the MXFP4 of gpt-oss");
    }
    if dialect != Dialect::Plain && item.slice.is_none() && !item.name.ends_with(".weight") {
        return Plan::Copy("not the weight of a layer by its name");
    }
    let padded = match target.product() {
        _ if dialect != Dialect::ComfyUi => 1,
        Some(Scheme::Nvfp4) => 16,
        Some(Scheme::Mxfp8(_)) => 32,
        _ => 1,
    };
    if !rows.is_multiple_of(padded) {
        return Plan::Copy("rows that ComfyUI would pad, not a multiple of 16 (nvfp4) or 32 (mxfp8)");
    }
    // The one rule of a recipe that concerns rows: the sums of a tile are defined for 16 of them.
    match check_quantize_cols(&item.name, cols) {
        // What a grouping cannot store is refused, and not left alone.
        _ if target.product().is_none() => Plan::Quantize(Weight { rows, cols, source, target, group: None }),
        Ok(()) if !rows.is_multiple_of(target.row_multiple()) => {
            Plan::Copy("rows not a multiple of 16, which 4over6 in 16x16 tiles needs")
        }
        Ok(())
            if dialect != Dialect::Plain
                && matches!(target.product(), Some(Scheme::Mxfp8(_) | Scheme::Mxfp4))
                && !cols.is_multiple_of(32) =>
        {
            Plan::Copy(RAGGED_MX)
        }
        Ok(()) => Plan::Quantize(Weight { rows, cols, source, target, group: None }),
        Err(_) => Plan::Copy(RAGGED),
    }
}

/// The layers that are plain, and of which an entry of the metadata was left.
pub fn left_layers(input: &Checkpoint) -> impl Iterator<Item = &str> {
    let names = input.metadata().keys().filter_map(|key| key.strip_prefix(RECIPE_KEY));
    names.filter(|name| input.is_left(name)).map(module)
}

/// The tensors that hold codes of quantized matrices, whatever those are called.
fn codes(input: &Checkpoint) -> HashSet<String> {
    input.quantized().into_iter().flat_map(|name| CODES_ENDINGS.map(|ending| [name, ending].concat())).collect()
}

/// Why these codes are copied; `usual` where nothing says what they are.
fn coded(input: &Checkpoint, tensor: &str, usual: &'static str) -> &'static str {
    // Longer endings are asked first: the matrix of `X_packed` is `X`, if one is read by that name.
    let names = || CODES_ENDINGS.iter().rev().filter_map(|ending| tensor.strip_suffix(ending));
    let read = names().find_map(|name| input.stored_scheme(name).ok());
    // Of what lacks its scales, what the metadata say that fits the type.
    let is_packed = usual == NVFP4;
    let said = || names().filter_map(|name| input.said_scheme(name));
    let said = || said().find(|scheme| (scheme.format() == CodeFormat::E2M1) == is_packed);
    match read.or_else(said) {
        None if is_packed && names().any(|name| input.metadata().contains_key(&[RECIPE_KEY, name].concat())) => {
            NO_RECIPE
        }
        Some(StoredScheme::Cast(_)) => CAST,
        Some(StoredScheme::Product(Scheme::Mxfp4)) => MXFP4,
        None if is_packed => packed(input, tensor),
        Some(StoredScheme::Product(_)) | None => usual,
    }
}

/// What two codes a byte are by their name and the scales beside them: of a matrix that is not read, since it is there plain, too, or
/// broken.
fn packed(input: &Checkpoint, tensor: &str) -> &'static str {
    let is_mx = |scale: &TensorInfo| matches!(scale.dtype, Dtype::U8 | Dtype::F8_E8M0);
    let get = |name: &str, ending: &str| input.get(&[name, ending].concat());
    if tensor.strip_suffix("_blocks").and_then(|name| get(name, "_scales")).is_some_and(is_mx) {
        return MXFP4;
    }
    let names = [tensor.strip_suffix("_packed"), Some(tensor)].into_iter().flatten();
    let has_second = names.clone().any(|name| ["_global_scale", "_scale_2"].iter().any(|end| get(name, end).is_some()));
    match names.clone().find_map(|name| get(name, "_scale")) {
        Some(scale) if is_mx(scale) => {
            if has_second {
                PACKED
            } else {
                MXFP4
            }
        }
        Some(scale) if scale.dtype == Dtype::F8_E4M3 => NVFP4,
        _ if has_second => NVFP4,
        _ => PACKED,
    }
}
