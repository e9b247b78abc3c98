//! Which tensors belong together, and which scheme they are.

use std::borrow::Cow;

use safetensors::Dtype;

use crate::format::layout::ScaleLayout;
use crate::format::{BlockScaleFormat, CodeFormat, DType, Extent, Fp8Format, Scheme};

/// Endings of the names that scales are found under, for a matrix `NAME`.
pub(super) const SCALE_SUFFIXES: [&str; 2] = ["_scale", "_scale_inv"];
/// Ending of ModelOpt's second-level scale, which multiplies.
pub(super) const SECOND_SUFFIX: &str = "_scale_2";
/// Endings of compressed-tensors' codes and of its second-level scale, which divides.
pub(super) const PACKED_SUFFIX: &str = "_packed";
pub(super) const DIVISOR_SUFFIX: &str = "_global_scale";
/// Endings of the codes and scales of gpt-oss's experts in MXFP4: blocks of 16 bytes, rows of all experts.
pub(super) const BLOCKS_SUFFIX: &str = "_blocks";
pub(super) const BLOCK_SCALES_SUFFIX: &str = "_scales";
/// The name of the scale of `weight` in ComfyUI's older files.
pub(super) const OLD_COMFY_SCALE: &str = "scale_weight";

/// How the names of scales go on after that of their matrix, in all dialects but gpt-oss's: readers ask for one after the other. The longest
/// first, since `_global_scale` ends in `_scale`, too.
pub const SCALE_ENDINGS: [&str; 4] = [DIVISOR_SUFFIX, SCALE_SUFFIXES[1], SECOND_SUFFIX, SCALE_SUFFIXES[0]];

/// How the names of codes go on after that of their matrix, in every dialect.
pub const CODES_ENDINGS: [&str; 3] = ["", PACKED_SUFFIX, BLOCKS_SUFFIX];

/// How the names go on of the codes that scales with such an ending are of.
pub(super) fn codes_of(ending: &str) -> &'static [&'static str] {
    match ending {
        DIVISOR_SUFFIX => &[PACKED_SUFFIX],
        ending if ending == SCALE_SUFFIXES[0] => &["", PACKED_SUFFIX],
        _ => &[""],
    }
}

/// The name of the matrix that a tensor is a scale of by its own name, where codes of it are there.
pub(super) fn scaled_beside(name: &str, is_there: impl Fn(&str) -> bool) -> Option<&str> {
    let has_codes = |base: &str, ending: &str| codes_of(ending).iter().any(|codes| is_there(&[base, codes].concat()));
    SCALE_ENDINGS.iter().find_map(|ending| name.strip_suffix(ending).filter(|base| has_codes(base, ending)))
}

/// True for a scale by its name, but for those of gpt-oss's blocks, where codes that it may be of are there.
pub(super) fn is_scale_beside(name: &str, is_there: impl Fn(&str) -> bool) -> bool {
    scaled_beside(name, &is_there).is_some() || scaled_by_old_comfy(name).is_some_and(|matrix| is_there(&matrix))
}

/// The matrix that a tensor is the scale of by its name in ComfyUI's older files.
pub(super) fn scaled_by_old_comfy(name: &str) -> Option<String> {
    name.strip_suffix(OLD_COMFY_SCALE).map(|layer| [layer, "weight"].concat())
}

/// The name of the scale of a matrix in ComfyUI's older files: of a layer's `weight` alone.
pub(super) fn old_comfy_scale(name: &str) -> Option<String> {
    name.strip_suffix("weight").map(|layer| [layer, OLD_COMFY_SCALE].concat())
}

/// The matrices that a tensor would be a scale of by its name alone, in every dialect, whether they are there or not: of `x.weight_scale_2`
/// `x.weight`, of `x.scale_weight` (ComfyUI's older files) `x.weight`, of what ends in no such way none.
pub fn scaled_by_name(name: &str) -> impl Iterator<Item = Cow<'_, str>> {
    let endings = SCALE_ENDINGS.into_iter().chain([BLOCK_SCALES_SUFFIX]);
    let matrices = endings.filter_map(move |ending| name.strip_suffix(ending).map(Cow::Borrowed));
    matrices.chain(scaled_by_old_comfy(name).map(Cow::Owned))
}

/// True if a reader takes a tensor with this ending for a scale of such a matrix, its own or not: of bytes that are FP8 it asks for all that
/// multiplies, and a divisor makes NVFP4 of packed codes.
pub(super) fn is_read_as_scale(dialect: Dialect, scheme: Scheme, ending: &str) -> bool {
    let is_divisor = ending == DIVISOR_SUFFIX;
    match (scheme.spec().format, dialect) {
        (CodeFormat::E4M3 | CodeFormat::E5M2, _) => !is_divisor,
        (CodeFormat::E2M1, Dialect::GptOss) => false,
        (CodeFormat::E2M1, Dialect::CompressedTensors) => is_divisor || ending == SCALE_SUFFIXES[0],
        (CodeFormat::E2M1, _) => ending == SCALE_SUFFIXES[0] || ending == SECOND_SUFFIX && scheme.is_nvfp4(),
    }
}

/// In which half of a byte the code of the even column lies.
///
/// Published NVFP4 files have it in the low half, as the hardware reads it; a few writers swap the halves. Nothing in the
/// bytes tells the two apart, so it has to be said.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum NibbleOrder {
    /// Even columns in bits 0 to 3.
    #[default]
    LowFirst,
    /// Even columns in bits 4 to 7.
    HighFirst,
}

named!(NibbleOrder, "nibble order", LowFirst => "low-first", HighFirst => "high-first");

/// The code format that a file's dtype names.
pub(super) fn code_format(dtype: Dtype) -> Option<Fp8Format> {
    match dtype {
        Dtype::F8_E4M3 => Some(Fp8Format::E4M3),
        Dtype::F8_E5M2 => Some(Fp8Format::E5M2),
        _ => None,
    }
}

/// The type that codes are stored in.
pub(super) fn code_dtype(format: CodeFormat) -> Dtype {
    match format {
        CodeFormat::E4M3 => Dtype::F8_E4M3,
        CodeFormat::E5M2 => Dtype::F8_E5M2,
        CodeFormat::E2M1 => Dtype::U8,
    }
}

/// The wide type that a file's dtype names.
pub(super) fn wide_dtype(dtype: Dtype) -> Option<DType> {
    match dtype {
        Dtype::BF16 => Some(DType::Bf16),
        Dtype::F16 => Some(DType::F16),
        Dtype::F32 => Some(DType::F32),
        _ => None,
    }
}

/// True for the types that values of a matrix that is not quantized are stored in.
pub(super) fn is_wide(dtype: Dtype) -> bool {
    wide_dtype(dtype).is_some() || dtype == Dtype::F64
}

/// True for the dtypes that MX scale bytes are found as.
pub(super) fn is_e8m0(dtype: Dtype) -> bool {
    matches!(dtype, Dtype::U8 | Dtype::F8_E8M0)
}

/// A tensor as written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tensor {
    /// Ending of its name.
    pub(super) suffix: &'static str,
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
}

/// Under whose names the tensors of a matrix are written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Dialect {
    /// Those of the table of [`checkpoint`](crate::checkpoint): every scheme has them.
    #[default]
    Plain,
    /// DeepSeek's FP8 (`quant_method` `fp8`).
    Fp8,
    /// llm-compressor's (`compressed-tensors`).
    CompressedTensors,
    /// NVIDIA ModelOpt's (`modelopt`).
    ModelOpt,
    /// Those of gpt-oss's experts in MXFP4: `NAME_blocks` `[experts, rows, k/32, 16]` and `NAME_scales` `[experts, rows, k/32]`.
    GptOss,
    /// ComfyUI's, in one file: block scales in tiles, even columns in the high half of a byte.
    ComfyUi,
}

named!(
    Dialect, "dialect", Plain => "plain", Fp8 => "fp8", CompressedTensors => "compressed-tensors", ModelOpt => "modelopt", GptOss => "gpt-oss", ComfyUi => "comfyui",
);

/// What an FP32 scale does to the codes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum ScaleMeaning {
    Multiplies,
    Divides,
}

impl ScaleMeaning {
    /// The number that is stored for a factor of the codes.
    pub(super) fn stored(self, scale: f32) -> f32 {
        match self {
            Self::Multiplies => scale,
            Self::Divides => 1.0 / scale,
        }
    }
}

/// All tensors of a matrix, as written.
pub(super) fn tensors_of(dialect: Dialect, scheme: Scheme, rows: usize, cols: usize) -> Vec<Tensor> {
    let codes = code_tensor(dialect, scheme, rows, cols);
    let scales = scale_tensor(dialect, scheme, rows, cols).map(|(tensor, _)| tensor);
    let block_scales = block_scale_tensor(dialect, scheme, rows, cols);
    [Some(codes), block_scales, scales].into_iter().flatten().collect()
}

/// The codes, as written.
pub(super) fn code_tensor(dialect: Dialect, scheme: Scheme, rows: usize, cols: usize) -> Tensor {
    let (dtype, width) = match scheme.spec().format {
        CodeFormat::E4M3 => (Dtype::F8_E4M3, cols),
        CodeFormat::E5M2 => (Dtype::F8_E5M2, cols),
        CodeFormat::E2M1 => (Dtype::U8, cols / 2),
    };
    if of_blocks(dialect, scheme) {
        return Tensor { suffix: BLOCKS_SUFFIX, dtype, shape: vec![rows, cols / 32, 16] };
    }
    let packed = dialect == Dialect::CompressedTensors && scheme.spec().format == CodeFormat::E2M1;
    Tensor { suffix: if packed { PACKED_SUFFIX } else { "" }, dtype, shape: vec![rows, width] }
}

/// The block scales, as written; `None` where the scheme has none.
pub(super) fn block_scale_tensor(dialect: Dialect, scheme: Scheme, rows: usize, cols: usize) -> Option<Tensor> {
    let dtype = match scheme.spec().block?.format {
        BlockScaleFormat::Ue4m3 => Dtype::F8_E4M3,
        BlockScaleFormat::Ue8m0 => Dtype::U8,
    };
    let [rows, blocks] = scheme.block_grid(rows, cols);
    let shape = match dialect {
        Dialect::ComfyUi => vec![rows.next_multiple_of(128), blocks.next_multiple_of(4)],
        _ => vec![rows, blocks],
    };
    let suffix = if of_blocks(dialect, scheme) { BLOCK_SCALES_SUFFIX } else { SCALE_SUFFIXES[0] };
    Some(Tensor { suffix, dtype, shape })
}

/// True for MXFP4 as gpt-oss has it. The first dimension is still that of all rows.
pub(super) fn of_blocks(dialect: Dialect, scheme: Scheme) -> bool {
    dialect == Dialect::GptOss && scheme == Scheme::Mxfp4
}

/// The FP32 scales, as written; `None` where the scheme has none.
pub(super) fn scale_tensor(
    dialect: Dialect,
    scheme: Scheme,
    rows: usize,
    cols: usize,
) -> Option<(Tensor, ScaleMeaning)> {
    let spec = scheme.spec();
    let grid = scheme.scale_grid(rows, cols);
    let compressed = dialect == Dialect::CompressedTensors;
    let (suffix, shape) = match (spec.block.is_some(), spec.group_rows, spec.group_cols) {
        _ if spec.scale_layout == ScaleLayout::Absent => return None,
        (true, Extent::All, _) if compressed => (DIVISOR_SUFFIX, vec![1]),
        (true, Extent::All, _) if dialect == Dialect::ComfyUi => (SECOND_SUFFIX, vec![]),
        (false, Extent::All, _) if dialect == Dialect::ComfyUi => (SCALE_SUFFIXES[0], vec![]),
        (true, Extent::All, _) => (SECOND_SUFFIX, vec![1]),
        (true, ..) => (SECOND_SUFFIX, vec![rows]),
        (false, Extent::All, _) => (SCALE_SUFFIXES[0], vec![1]),
        (false, _, Extent::All) => (SCALE_SUFFIXES[0], grid.to_vec()),
        (false, ..) if compressed => (SCALE_SUFFIXES[0], grid.to_vec()),
        (false, ..) => (SCALE_SUFFIXES[1], grid.to_vec()),
    };
    let divides = suffix == DIVISOR_SUFFIX;
    let meaning = if divides { ScaleMeaning::Divides } else { ScaleMeaning::Multiplies };
    Some((Tensor { suffix, dtype: Dtype::F32, shape }, meaning))
}

/// The scale of activations, as written; its name follows that of the layer.
pub(super) fn input_scale_tensor(dialect: Dialect, nvfp4: bool) -> (Tensor, ScaleMeaning) {
    let shape = if dialect == Dialect::ComfyUi { vec![] } else { vec![1] };
    let (suffix, meaning) = match dialect {
        Dialect::CompressedTensors if nvfp4 => ("input_global_scale", ScaleMeaning::Divides),
        _ => ("input_scale", ScaleMeaning::Multiplies),
    };
    (Tensor { suffix, dtype: Dtype::F32, shape }, meaning)
}

/// The scheme of an `rows x cols` matrix of this format whose FP32 scales have this name ending and shape; NVFP4 if the
/// format is E2M1.
///
/// The module's rule for shapes that fit several schemes; `Err` lists the shapes that would have fitted.
pub(super) fn recognise(
    format: CodeFormat,
    [rows, cols]: [usize; 2],
    suffix: &str,
    shape: &[usize],
    metadata: Option<Scheme>,
) -> Result<Scheme, String> {
    let written = |scheme| scale_tensor(Dialect::Plain, scheme, rows, cols).map(|(t, _)| (t.suffix, t.shape));
    let schemes = || Scheme::ALL.into_iter().filter(|s| s.spec().format == format && written(*s).is_some());
    if let Some(scheme) = metadata {
        check_format(scheme, format)?;
        if !fits(scheme, rows, cols, shape) {
            return Err(match written(scheme) {
                Some((_, own)) => format!(
                    "the metadata says {scheme}, whose scales for {rows} x {cols} have shape {own:?}, but NAME{suffix} has {shape:?}"
                ),
                None => format!("the metadata says {scheme}, whose scales are bytes, but NAME{suffix} holds floats"),
            });
        }
        return Ok(scheme);
    }
    let rank = |scheme: &Scheme| {
        let own = written(*scheme);
        (
            own.as_ref().is_some_and(|(s, _)| *s == suffix),
            own.is_some_and(|(_, s)| s == shape),
            *scheme == Scheme::Nvfp4 || (rows == 1 && matches!(scheme, Scheme::Fp8Group1x128(_))),
        )
    };
    // `max_by_key` takes the last of equals, and `Scheme::ALL` goes from small groups to larger ones among the blocks.
    schemes().filter(|s| fits(*s, rows, cols, shape)).max_by_key(rank).ok_or_else(|| {
        let shapes: Vec<_> = schemes().filter_map(|s| Some(format!("{s} {:?}", written(s)?.1))).collect();
        format!(
            "its scale NAME{suffix} has shape {shape:?}, which for {rows} x {cols} is none of {}",
            shapes.join(", ")
        )
    })
}

/// The scheme of an `rows x cols` FP8 matrix whose scales are E8M0 bytes of this shape: MXFP8, or blocks of 128 x 128 with scales that
/// are powers of two (DeepSeek-V3.1's `ue8m0`).
pub(super) fn recognise_e8m0(
    format: Fp8Format,
    shape_of: [usize; 2],
    suffix: &str,
    shape: &[usize],
    metadata: Option<Scheme>,
) -> Result<Scheme, String> {
    let tiles = Scheme::Fp8Group128x128(format);
    let [rows, cols] = shape_of;
    let mx = Scheme::Mxfp8(format).block_grid(rows, cols);
    // One row of one block is both, and both read it alike.
    if shape == tiles.scale_grid(rows, cols) && shape != mx && metadata.is_none_or(|scheme| scheme == tiles) {
        return Ok(tiles);
    }
    recognise_mx(format, shape_of, suffix, shape, metadata)
}

/// The scheme of an `rows x cols` FP8 matrix whose scales are bytes of this shape.
fn recognise_mx(
    format: Fp8Format,
    [rows, cols]: [usize; 2],
    suffix: &str,
    shape: &[usize],
    metadata: Option<Scheme>,
) -> Result<Scheme, String> {
    let scheme = Scheme::Mxfp8(format);
    if let Some(other) = metadata.filter(|s| *s != scheme) {
        check_format(other, format.into())?;
        return Err(format!("the metadata says {other}, whose scales are floats, but NAME{suffix} holds bytes"));
    }
    let want = scheme.block_grid(rows, cols);
    if shape == want {
        return Ok(scheme);
    }
    Err(format!("its scale NAME{suffix} has shape {shape:?}, but {scheme} of {rows} x {cols} has {want:?}"))
}

fn check_format(scheme: Scheme, format: CodeFormat) -> Result<(), String> {
    if scheme.spec().format == format {
        return Ok(());
    }
    Err(format!("the metadata says {scheme}, but its codes are {}", format.name()))
}

/// True if FP32 scales of this shape can be those of the scheme: the written shape, or one that publishers use for it.
fn fits(scheme: Scheme, rows: usize, cols: usize, shape: &[usize]) -> bool {
    let spec = scheme.spec();
    let grid = scheme.scale_grid(rows, cols);
    let one = spec.group_rows == Extent::All && matches!(shape, [] | [1]);
    let one_a_row = spec.group_cols == Extent::All && spec.group_rows != Extent::All && shape == [rows];
    spec.scale_layout != ScaleLayout::Absent && (one || one_a_row || shape == grid)
}

#[cfg(test)]
mod tests {
    use super::*;
    use Fp8Format::E4M3;

    const CODES: CodeFormat = CodeFormat::E4M3;

    fn scheme(rows: usize, cols: usize, suffix: &str, shape: &[usize]) -> Option<&'static str> {
        recognise(CODES, [rows, cols], suffix, shape, None).ok().map(|s| s.spec().name)
    }

    fn nvfp4(rows: usize, shape: &[usize], metadata: Option<Scheme>) -> Option<&'static str> {
        recognise(CodeFormat::E2M1, [rows, 64], "_scale_2", shape, metadata).ok().map(|s| s.spec().name)
    }

    #[test]
    fn names_say_of_which_matrix_a_scale_is() {
        let of = |name| scaled_by_name(name).map(Cow::into_owned).collect::<Vec<_>>();
        for name in ["x.weight_scale", "x.weight_scale_inv", "x.weight_scale_2", "x.weight_scales", "x.scale_weight"] {
            assert_eq!(of(name), ["x.weight"], "{name}");
        }
        // compressed-tensors' ending ends as plain scales do, so that it may be one of either.
        assert_eq!(of("x.weight_global_scale"), ["x.weight", "x.weight_global"]);
        for name in ["x.weight", "x.weight_packed", "x.scale", "scales", ""] {
            assert_eq!(of(name), [""; 0], "{name}");
        }
    }

    #[test]
    fn published_shapes() {
        assert_eq!(scheme(256, 384, "_scale", &[]), Some("fp8-tensor"));
        assert_eq!(scheme(256, 384, "_scale", &[1]), Some("fp8-tensor"));
        assert_eq!(scheme(256, 384, "_scale_inv", &[]), Some("fp8-tensor"));
        assert_eq!(scheme(256, 384, "_scale", &[256]), Some("fp8-row"));
        assert_eq!(scheme(256, 384, "_scale", &[256, 1]), Some("fp8-row"));
        assert_eq!(scheme(256, 384, "_scale_inv", &[256, 3]), Some("fp8-1x128"));
        assert_eq!(scheme(256, 384, "_scale_inv", &[2, 3]), Some("fp8-128x128"));
        assert_eq!(scheme(256, 384, "_scale", &[2, 3]), Some("fp8-128x128"));
        assert_eq!(scheme(257, 400, "_scale_inv", &[3, 4]), Some("fp8-128x128"));
        for wrong in [&[2usize][..], &[3, 2], &[384], &[1, 256], &[256, 4], &[2, 3, 1]] {
            assert_eq!(scheme(256, 384, "_scale_inv", wrong), None, "{wrong:?}");
        }
        for (shape, name) in
            [(&[][..], "nvfp4"), (&[1], "nvfp4"), (&[1, 1], "nvfp4"), (&[5], "nvfp4-row"), (&[5, 1], "nvfp4-row")]
        {
            assert_eq!(nvfp4(5, shape, None), Some(name), "{shape:?}");
        }
        for wrong in [&[4usize][..], &[1, 5], &[5, 4], &[64], &[0]] {
            assert_eq!(nvfp4(5, wrong, None), None, "{wrong:?}");
        }
        let mx = |cols, shape: &[usize]| recognise_mx(E4M3, [3, cols], "_scale", shape, None);
        assert_eq!(mx(48, &[3, 2]), Ok(Scheme::Mxfp8(E4M3)));
        assert!(mx(64, &[3, 3]).is_err() && mx(64, &[2, 3]).is_err() && mx(64, &[6]).is_err());
    }

    #[test]
    fn ambiguous_shapes_follow_the_rule_and_the_metadata_wins() {
        assert_eq!(scheme(1, 384, "_scale", &[1]), Some("fp8-tensor"));
        assert_eq!(scheme(1, 384, "_scale", &[1, 1]), Some("fp8-row"));
        // A row of 1x128 multiplies weights of 128x128; two matrices of 128x128 do not multiply.
        assert_eq!(scheme(1, 384, "_scale_inv", &[1, 3]), Some("fp8-1x128"));
        assert_eq!(scheme(1, 128, "_scale_inv", &[1, 1]), Some("fp8-1x128"));
        assert_eq!(scheme(2, 384, "_scale_inv", &[1, 3]), Some("fp8-128x128"));
        assert_eq!(scheme(64, 128, "_scale", &[64, 1]), Some("fp8-row"));
        assert_eq!(scheme(64, 128, "_scale_inv", &[64, 1]), Some("fp8-1x128"));
        assert_eq!(scheme(64, 128, "_scale_inv", &[1, 1]), Some("fp8-128x128"));
        assert_eq!(scheme(64, 128, "_scale", &[1, 1]), Some("fp8-tensor"));
        for s in [Scheme::Fp8Group1x128(E4M3), Scheme::Fp8Group128x128(E4M3)] {
            assert_eq!(recognise(CODES, [1, 384], "_scale_inv", &[1, 3], Some(s)), Ok(s));
        }
        let row = Some(Scheme::Fp8Row(E4M3));
        assert!(recognise(CODES, [256, 384], "_scale_inv", &[2, 3], row).is_err());
        assert!(recognise(CodeFormat::E5M2, [256, 384], "_scale", &[256, 1], row).is_err());
        assert!(recognise(CODES, [256, 384], "_scale", &[1], Some(Scheme::Mxfp8(E4M3))).is_err());
        assert!(recognise_mx(E4M3, [256, 384], "_scale", &[256, 12], row).is_err());
        // One row: a scale of the matrix and a scale of its row are the same number.
        for shape in [&[1usize][..], &[1, 1]] {
            assert_eq!(nvfp4(1, shape, None), Some("nvfp4"));
            assert_eq!(nvfp4(1, shape, Some(Scheme::Nvfp4Row)), Some("nvfp4-row"));
        }
        assert_eq!(nvfp4(1, &[], Some(Scheme::Nvfp4Row)), None);
        assert_eq!(nvfp4(2, &[1], Some(Scheme::Nvfp4Row)), None);
    }
}
