//! Safetensors files made of a fuzzer's bytes: most of them well-formed, so that what comes after the header is reached.

use libfuzzer_sys::arbitrary::{Result, Unstructured};
use serde_json::{Value, json};

/// Most bytes of data of a file.
const MOST_DATA: u64 = 1 << 16;

/// Names of layers, and what is hostile in their place.
const LAYERS: [&str; 14] = [
    "l.q_proj.weight",
    "l.k_proj.weight",
    "l.v_proj.weight",
    "l.mlp.gate_proj.weight",
    "l.mlp.up_proj.weight",
    "l.experts.gate_up_proj",
    "w",
    "",
    "../x",
    "/tmp/x",
    "a\u{1b}[2J\u{202e}\0",
    "__metadata__",
    "scaled_gemm.w",
    "lm_head.weight",
];
const ENDINGS: [&str; 15] = [
    "",
    "_scale",
    "_scale_inv",
    "_scale_2",
    "_packed",
    "_global_scale",
    "_blocks",
    "_scales",
    "_bias",
    ".comfy_quant",
    ".input_scale",
    ".scale_weight",
    ".scaled_fp8",
    "_scale_scale",
    "_packed_packed",
];
const DTYPES: [&str; 18] = [
    "F8_E4M3", "F8_E5M2", "F8_E8M0", "U8", "F32", "BF16", "F16", "F4", "F6_E2M3", "F6_E3M2", "I8", "BOOL", "I64",
    "F64", "U16", "C64", "F7", "f32",
];
const SIZES: [u64; 18] = [0, 1, 2, 3, 4, 5, 7, 8, 16, 17, 32, 64, 128, 129, 256, 1 << 32, 1 << 63, u64::MAX];

/// A tensor of a header to be.
struct Tensor {
    name: String,
    dtype: &'static str,
    shape: Vec<u64>,
}

/// A safetensors file and the length of its header.
pub struct File {
    pub bytes: Vec<u8>,
    pub header: usize,
    /// Names of the tensors that were put in.
    pub names: Vec<String>,
}

/// A file: as the bytes say, of a header in their words, or of matrices as they are published, with some of it changed.
pub fn file(u: &mut Unstructured<'_>) -> Result<File> {
    match u.arbitrary::<u8>()? {
        0 => {
            let bytes = u.bytes(u.len())?.to_vec();
            Ok(File { header: bytes.len(), bytes, names: Vec::new() })
        }
        1 => {
            let rest = u.bytes(u.len())?;
            let (text, data) = rest.split_at(rest.iter().position(|b| *b == 0).unwrap_or(rest.len()));
            Ok(joined(text, data, Vec::new()))
        }
        _ => built(u),
    }
}

fn joined(text: &[u8], data: &[u8], names: Vec<String>) -> File {
    let bytes = [&(text.len() as u64).to_le_bytes()[..], text, data].concat();
    File { bytes, header: text.len(), names }
}

fn built(u: &mut Unstructured<'_>) -> Result<File> {
    let (mut tensors, mut metadata) = (Vec::new(), serde_json::Map::new());
    for _ in 0..u.int_in_range(0..=6)? {
        match u.int_in_range(0..=4)? {
            0 => tensors.push(any_tensor(u)?),
            _ => matrix(u, &mut tensors, &mut metadata)?,
        }
    }
    while !u.is_empty() && !tensors.is_empty() && u.ratio(1, 4)? {
        let at = u.choose_index(tensors.len())?;
        match u.int_in_range(0..=4)? {
            0 => drop(tensors.remove(at)),
            1 => tensors[at].dtype = u.choose(&DTYPES)?,
            2 => tensors[at].shape = shape(u)?,
            3 => tensors[at].name += u.choose(&ENDINGS)?,
            _ => {
                let other = u.choose_index(tensors.len())?;
                tensors.swap(at, other);
            }
        }
    }
    if u.ratio(1, 8)? {
        metadata.insert(name(u)?, u.arbitrary::<String>()?.into());
    }
    let mut text = String::from("{");
    if !metadata.is_empty() {
        text += &format!("\"__metadata__\":{},", Value::Object(metadata));
    }
    let mut at = 0u64;
    for tensor in &tensors {
        let mut end = at.saturating_add(bytes_of(tensor).unwrap_or(u64::MAX));
        if u.ratio(1, 64)? {
            end = *u.choose(&SIZES)?;
        }
        let (dtype, shape) = (tensor.dtype, &tensor.shape);
        let entry = json!({"dtype": dtype, "shape": shape, "data_offsets": [at, end]});
        text += &format!("{}:{entry},", Value::from(tensor.name.as_str()));
        at = end;
    }
    text.pop();
    text += if tensors.is_empty() { "{}" } else { "}" };
    let len = if at <= MOST_DATA { at as usize } else { 0 };
    let rest = u.bytes(u.len())?;
    let data: Vec<u8> =
        if rest.is_empty() { vec![0x38; len] } else { rest.iter().copied().cycle().take(len).collect() };
    Ok(joined(text.as_bytes(), &data, tensors.into_iter().map(|tensor| tensor.name).collect()))
}

/// A name that may be hostile.
pub fn name(u: &mut Unstructured<'_>) -> Result<String> {
    Ok(match u.int_in_range(0..=15)? {
        0 => u.arbitrary()?,
        1 => "x".repeat(1 << u.int_in_range(0..=16)?),
        _ => format!("{}{}", u.choose(&LAYERS)?, u.choose(&ENDINGS)?),
    })
}

fn any_tensor(u: &mut Unstructured<'_>) -> Result<Tensor> {
    Ok(Tensor { name: name(u)?, dtype: u.choose(&DTYPES)?, shape: shape(u)? })
}

fn shape(u: &mut Unstructured<'_>) -> Result<Vec<u64>> {
    let rank = if u.ratio(1, 32)? { 70 } else { u.int_in_range(0..=4)? };
    (0..rank).map(|_| u.choose(&SIZES).copied()).collect()
}

/// Bytes of a tensor, by the bits that its type has.
fn bytes_of(tensor: &Tensor) -> Option<u64> {
    let bits = match tensor.dtype {
        "F4" => 4,
        "F6_E2M3" | "F6_E3M2" => 6,
        "BF16" | "F16" | "U16" => 16,
        "F32" => 32,
        "I64" | "F64" | "C64" => 64,
        _ => 8,
    };
    let elements = tensor.shape.iter().try_fold(1u64, |product, n| product.checked_mul(*n))?;
    Some(elements.checked_mul(bits)?.div_ceil(8))
}

/// The tensors of a quantized matrix, under one of the published namings, and what its metadata may say.
fn matrix(
    u: &mut Unstructured<'_>,
    tensors: &mut Vec<Tensor>,
    metadata: &mut serde_json::Map<String, Value>,
) -> Result<()> {
    let base = u.choose(&LAYERS)?.to_string();
    let rows = *u.choose(&[1u64, 2, 3, 5, 8, 129, 256])?;
    let cols = *u.choose(&[16u64, 32, 48, 64, 128, 144, 256])?;
    let fp8 = *u.choose(&["F8_E4M3", "F8_E5M2"])?;
    let float = *u.choose(&["F32", "BF16", "F16"])?;
    let byte = *u.choose(&["U8", "F8_E8M0"])?;
    let (wide, high) = (cols.div_ceil(128), rows.div_ceil(128));
    let ending = *u.choose(&["_scale", "_scale_inv"])?;
    let kind = u.int_in_range(0..=14)?;
    let mut put = |ending: &str, dtype: &'static str, shape: &[u64]| {
        tensors.push(Tensor { name: format!("{base}{ending}"), dtype, shape: shape.to_vec() });
    };
    let tile = |blocks: u64| [rows.next_multiple_of(128), blocks.next_multiple_of(4)];
    match kind {
        0 => (put("", fp8, &[rows, cols]), put(ending, float, &[])).1,
        1 => (put("", fp8, &[rows, cols]), put(ending, float, &[rows, 1])).1,
        2 => (put("", fp8, &[rows, cols]), put(ending, float, &[rows, wide])).1,
        3 => (put("", fp8, &[rows, cols]), put(ending, float, &[high, wide])).1,
        4 => (put("", fp8, &[rows, cols]), put(ending, byte, &[high, wide])).1,
        5 | 6 => {
            put("", fp8, &[rows, cols]);
            put("_scale", byte, &if kind == 5 { [rows, cols.div_ceil(32)] } else { tile(cols.div_ceil(32)) });
        }
        7..=9 => {
            put("", "U8", &[rows, cols / 2]);
            put("_scale", "F8_E4M3", &if kind == 9 { tile(cols / 16) } else { [rows, cols / 16] });
            put("_scale_2", float, &[if kind == 8 { rows } else { 1 }]);
        }
        10 => {
            put("_packed", "U8", &[rows, cols / 2]);
            put("_scale", "F8_E4M3", &[rows, cols / 16]);
            put("_global_scale", float, &[1]);
        }
        11 => (put("_packed", "U8", &[rows, cols / 2]), put("_scale", byte, &[rows, cols / 32])).1,
        12 => (put("_blocks", "U8", &[2, rows, cols / 32, 16]), put("_scales", "U8", &[2, rows, cols / 32])).1,
        13 => (put("", "U8", &[rows, cols / 2]), put("_scale", "U8", &[rows, cols / 32])).1,
        _ => put("", float, &[rows, cols]),
    }
    if u.ratio(1, 3)? {
        let scheme = *u.choose(&[
            "nvfp4",
            "nvfp4-row",
            "mxfp4",
            "mxfp8",
            "fp8-tensor",
            "fp8-row",
            "fp8-1x128",
            "fp8-128x128",
            "mxfp9",
        ])?;
        let recipe = json!({
            "scheme": scheme, "format": u.choose(&["e2m1", "e4m3", "e5m2"])?, "source": "bf16", "preset": "torchao",
            "rounding": "exact", "mx_rounding": "floor", "nibble_order": u.choose(&["low-first", "high-first"])?,
            "block_scale": "plain", "e4m3_max": 448, "block_shape": "1x16", "basis": u.choose(&["plain", "hadamard16"])?,
            "code_rounding": "nearest",
        });
        metadata.insert(format!("scaled_gemm.{base}"), recipe.to_string().into());
    }
    if matches!(kind, 6 | 9) || u.ratio(1, 16)? {
        let layer = base.strip_suffix(".weight").unwrap_or(&base);
        let format = *u.choose(&["nvfp4", "mxfp8", "float8_e4m3fn"])?;
        let layers = json!({"layers": {layer: {"format": format}}});
        metadata.insert("_quantization_metadata".into(), layers.to_string().into());
    }
    Ok(())
}
