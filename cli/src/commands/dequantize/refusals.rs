//! What is refused before the work: matrices that a plain weight cannot stand for, and codes that are not read.

use std::path::Path;

use scaled_gemm::checkpoint::Checkpoint;
use scaled_gemm::model_folder::ModelConfig;

use crate::foreign;
use crate::output::{Failure, shown};
use crate::readable::Readable;
use crate::remains::{self, Remains};
use crate::unread::{self, Beside, Unread};

/// All that is refused by what is in the headers, and of scales, whatever the options: for whoever would advise to dequantize a model.
pub fn all(input: &Checkpoint, config: Option<&ModelConfig>) -> Result<(), Failure> {
    let remains = remains::find(input, config);
    remains::refuse(&remains)?;
    let mut names = input.quantized();
    names.retain(|name| !remains.of_head.contains(name));
    if names.is_empty() {
        none(input, config, &remains)?;
    }
    names.iter().try_for_each(|name| input.quant_info(name).map(drop))?;
    unread(input, config, &remains)?;
    beside(input)?;
    // Scales that are no numbers `dequantize` meets in its work.
    let mut readable = Readable::new(input);
    Ok(names.iter().try_for_each(|name| readable.check(name))?)
}

/// In words, for whoever would advise it. `path`: of the model, which is named already.
pub fn why(failure: Failure, path: &Path) -> String {
    let (why, path) = (failure.into_message(), format!("{}: ", shown(path)));
    format!("dequantize refuses it: {}", why.strip_prefix(&path).unwrap_or(&why))
}

/// Refuses a checkpoint without a matrix to dequantize.
pub fn none(input: &Checkpoint, config: Option<&ModelConfig>, remains: &Remains<'_>) -> Result<(), Failure> {
    unread(input, config, remains)?;
    foreign::refuse_codes(input)?;
    let rest = unread::lost_casts(&input.lost_casts()).unwrap_or_else(|| {
        let what = match input.tensors() {
            [] => "it holds no tensor at all",
            _ => "what is plain needs no dequantize",
        };
        format!("{what}: give a file or a folder that quantize wrote, or a quantized model")
    });
    Err(Failure::Use(format!(
        "{}: holds no quantized matrix (F8_E4M3, F8_E5M2, U8 with scales of NVFP4 or MXFP4, or a cast); {rest}",
        shown(input.path())
    )))
}

/// Refuses matrices that are not the weights of their layers: plain ones have no place for what is beside them.
pub fn beside(input: &Checkpoint) -> Result<(), Failure> {
    let found = Beside::ALL.into_iter().find_map(|beside| Some((beside, beside.of_all(input)?)));
    let Some((beside, tensors)) = found else { return Ok(()) };
    let (what, knows) = match beside {
        Beside::PreScale => ("its columns would have to be multiplied by them", "knows pre_quant_scale"),
        Beside::LowRank => ("their product would have to be added to it", "adds svdquant_lora_b times svdquant_lora_a"),
    };
    let [whose, does] = beside.words();
    Err(Failure::Use(format!(
        "{}: holds {tensors} {whose}, which {does}, and a plain matrix without them is wrong: {what}, which is not done here; leave \
         the model quantized and run it in an engine that {knows}, or dequantize it with what wrote it",
        shown(input.path())
    )))
}

/// Refuses codes that would be copied beside a config that no longer speaks of them.
pub fn unread(input: &Checkpoint, config: Option<&ModelConfig>, remains: &Remains<'_>) -> Result<(), Failure> {
    let Some(folder) = input.folder().filter(|folder| unread::says_quantized(folder, config)) else { return Ok(()) };
    let Unread { codes, lost, are_casts } = Unread::find(input, config, &remains.tensors);
    if let Some(codes) = unread::named(&codes) {
        return Err(Failure::Use(format!(
            "{}: is quantized, and the codes of {codes} are in a format that is not read here; {}",
            shown(folder),
            foreign::REMEDY
        )));
    }
    match unread::lost_casts(&lost).filter(|_| are_casts) {
        None => Ok(()),
        Some(lost) => Err(Failure::Use(format!(
            "{}: {lost}; if not, its config, which dequantize takes away, says what they are: {}",
            shown(folder),
            foreign::REMEDY
        ))),
    }
}
