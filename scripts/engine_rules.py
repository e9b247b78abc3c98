"""How engines that need a GPU read quantized layers, done again in numpy from their published source: `check-with-engines.py`."""
import json

import numpy as np

from engine_files import E2M1, E4M3, to_e4m3, unpack

# Each takes the layers of one fused group (each: suffix -> (type, array)) and gives back their weights as the engine computes
# with them, and the scale of activations that it keeps for each of them (None without). A layer on its own is a group of one.
# What an engine asserts of types and shapes is asserted here. "Q/" is vllm/model_executor/layers/quantization/ of vLLM 0.33.0,
# "sgl" the same of SGLang 0.5.23.


def scalar(layer, suffix):
    dtype, array = layer[suffix]
    # Q/../parameter.py:86 and :294 take [] and [1] of F32.
    assert dtype == "F32" and array.shape in [(), (1,)], (suffix, dtype, array.shape)
    return np.float32(array.reshape(-1)[0])


def weights(layer, dtype, suffix="weight"):
    found, array = layer[suffix]
    assert found == dtype, (suffix, found)
    return array


def inputs(layers, suffix):
    if suffix not in layers[0]:
        return None
    return [max(scalar(layer, suffix) for layer in layers)] * len(layers)


def split(values, layers):
    ends = np.cumsum([layer["weight"][1].shape[0] for layer in layers])
    return np.split(values, ends[:-1])


def powers_of_two(scales):
    return np.ldexp(np.float32(1), scales.astype(np.int32) - 127).astype(np.float32)


def fp8_tensor(layers):
    """requantize_with_max_scale, Q/utils/w8a8_utils.py:75, which runs also where all scales are equal; sgl modelopt_quant.py:619.

    The product of FP16 codes and a scalar stays FP16 in torch; scaled_fp8_quant multiplies by 1 / scale or divides by it, as the
    kernel has it: both must give the same. Input scales: the largest (Q/fp8.py:405).
    """
    scales = [scalar(layer, "weight_scale") for layer in layers]
    kept, read = max(scales), []
    for layer, scale in zip(layers, scales):
        plain = (E4M3[weights(layer, "F8_E4M3")] * scale).astype(np.float16).astype(np.float32)
        by_product, by_division = to_e4m3(plain * (np.float32(1) / kept)), to_e4m3(plain / kept)
        # One value that is wrong is enough.
        own = E4M3[weights(layer, "F8_E4M3")]
        codes = np.where(by_product.view(np.uint32) != own.view(np.uint32), by_product, by_division)
        read.append(codes * kept)
    return read, inputs(layers, "input_scale")


def fp8_row(layers):
    """Rows are stacked, Q/utils/fp8_utils.py:1408; weight_scale is [n, 1]."""
    for layer in layers:
        n = layer["weight"][1].shape[0]
        assert layer["weight_scale"][0] == "F32" and layer["weight_scale"][1].shape == (n, 1)
    codes = np.concatenate([weights(layer, "F8_E4M3") for layer in layers])
    scales = np.concatenate([layer["weight_scale"][1] for layer in layers])
    return split(E4M3[codes] * scales, layers), None


def fp8_block(suffix):
    def read(layers):
        """Rows and blocks are stacked; blocks start at the first row of the fused layer, so all but the last layer must have a
        multiple of 128 rows (Q/utils/fp8_utils.py:1329-1344)."""
        assert all(layer["weight"][1].shape[0] % 128 == 0 for layer in layers[:-1])
        assert all(layer[suffix][0] == "F32" for layer in layers)
        codes = np.concatenate([weights(layer, "F8_E4M3") for layer in layers])
        scales = np.concatenate([layer[suffix][1] for layer in layers])
        n, k = codes.shape
        wide = scales.repeat(128, axis=0)[:n].repeat(128, axis=1)[:, :k]
        return split(E4M3[codes] * wide, layers), None

    return read


def mxfp8(layers):
    """Rows are stacked; scales are U8, 2^(b - 127): CT schemes/compressed_tensors_w8a8_mxfp8.py:302-324 and Q/modelopt.py:2335 of
    vLLM. Scales of type F8_E8M0 would be cast to U8 as numbers there, so the type is asserted."""
    codes = np.concatenate([weights(layer, "F8_E4M3") for layer in layers])
    scales = np.concatenate([weights(layer, "U8", "weight_scale") for layer in layers])
    assert scales.shape == (codes.shape[0], codes.shape[1] // 32)
    return split(E4M3[codes] * powers_of_two(scales).repeat(32, axis=1), layers), None


def mxfp4(layers):
    """Rows are stacked; U8 codes, even columns low, and U8 scales, 2^(b - 127), of 32: Q/compressed_tensors/schemes/
    compressed_tensors_w4a16_mxfp4.py, create_weights (read at 1a6da54); compressed-tensors ac8e2ba, compressors/mxfp4/base.py:53
    and compressors/nvfp4/base.py:108-128."""
    codes = np.concatenate([weights(layer, "U8", "weight_packed") for layer in layers])
    scales = np.concatenate([weights(layer, "U8", "weight_scale") for layer in layers])
    assert scales.shape == (codes.shape[0], codes.shape[1] // 16)
    wide = powers_of_two(scales).repeat(32, axis=1)
    ends = np.cumsum([layer["weight_packed"][1].shape[0] for layer in layers])
    return np.split(unpack(codes) * wide, ends[:-1]), None


def nvfp4(layers, codes, scales):
    """code * (block scale * second-level scale), as the program has it: engines fold the last into the product's alpha."""
    read = []
    for layer, scale in zip(layers, scales):
        packed, blocks = weights(layer, "U8", codes), weights(layer, "F8_E4M3", "weight_scale")
        assert blocks.shape == (packed.shape[0], packed.shape[1] // 8)
        read.append(unpack(packed) * (E4M3[blocks] * scale).repeat(16, axis=1))
    return read


def nvfp4_modelopt(layers):
    """weight_scale_2.max() and input_scale.max(), Q/modelopt.py:2085-2133; sgl modelopt_quant.py:1887."""
    kept = max(scalar(layer, "weight_scale_2") for layer in layers)
    return nvfp4(layers, "weight", [kept] * len(layers)), inputs(layers, "input_scale")


def nvfp4_compressed_tensors(layers):
    """1 / max of the divisors, which is the scale of the smallest weights; the same of the activations' divisors:
    Q/compressed_tensors/schemes/compressed_tensors_w4a4_nvfp4.py:101-129."""
    kept = np.float32(1) / max(scalar(layer, "weight_global_scale") for layer in layers)
    return nvfp4(layers, "weight_packed", [kept] * len(layers)), inputs(layers, "input_global_scale")


VLLM_REQUANTIZES = "vLLM, SGLang: requantize_with_max_scale"
VLLM_MAX = "vLLM, SGLang: weight_scale_2.max()"
VLLM_STACKS = "vLLM, SGLang: stacked rows"
# Recipe, dialect, with input scales, rule, whose it is.
RULES = [
    ("fp8-tensor", "fp8", False, fp8_tensor, VLLM_REQUANTIZES),
    ("fp8-tensor", "compressed-tensors", False, fp8_tensor, VLLM_REQUANTIZES),
    ("fp8-tensor", "compressed-tensors", True, fp8_tensor, VLLM_REQUANTIZES),
    ("fp8-tensor", "modelopt", True, fp8_tensor, VLLM_REQUANTIZES),
    ("fp8-128x128", "fp8", False, fp8_block("weight_scale_inv"), VLLM_STACKS),
    ("fp8-128x128", "compressed-tensors", False, fp8_block("weight_scale"), VLLM_STACKS),
    ("fp8-row", "compressed-tensors", False, fp8_row, VLLM_STACKS),
    ("mxfp8", "compressed-tensors", False, mxfp8, "vLLM: stacked rows"),
    ("mxfp8", "modelopt", False, mxfp8, VLLM_STACKS),
    ("mxfp4", "compressed-tensors", False, mxfp4, "vLLM: stacked rows"),
    ("nvfp4", "modelopt", False, nvfp4_modelopt, VLLM_MAX),
    ("nvfp4", "modelopt", True, nvfp4_modelopt, VLLM_MAX),
    ("nvfp4", "compressed-tensors", False, nvfp4_compressed_tensors, "vLLM: 1 / max of the divisors"),
    ("nvfp4", "compressed-tensors", True, nvfp4_compressed_tensors, "vLLM: 1 / max of the divisors"),
]


# --- Experts -------------------------------------------------------------------------------------------------------------------
#
# The same for gate and up of one expert, which engines keep as one w13 (and for down, which is a group of one).


def nvfp4_modelopt_experts(layers):
    """The scale of gate, `w13_weight_scale_2[:, 0]`, for both, and a warning if that of up is not close: Q/modelopt.py,
    ModelOptNvFp4FusedMoE.process_weights_after_loading; sgl modelopt_quant.py, ModelOptNvFp4FusedMoEMethod."""
    return nvfp4(layers, "weight", [scalar(layers[0], "weight_scale_2")] * len(layers)), None


def nvfp4_compressed_tensors_experts(layers):
    """1 / `w13_weight_global_scale[:, 0]`, the divisor of gate: Q/compressed_tensors/compressed_tensors_moe/
    compressed_tensors_moe_w4a4_nvfp4.py, process_weights_after_loading (read at 08f95fe)."""
    kept = np.float32(1) / scalar(layers[0], "weight_global_scale")
    return nvfp4(layers, "weight_packed", [kept] * len(layers)), None


def fp8_tensor_experts(layers):
    """process_fp8_weight_tensor_strategy_moe, Q/utils/fp8_utils.py: gate and up by way of FP16 to the larger of their scales, as
    `fp8_tensor`; down keeps its own."""
    if len(layers) == 1:
        return [E4M3[weights(layers[0], "F8_E4M3")] * scalar(layers[0], "weight_scale")], None
    return fp8_tensor(layers)


# Recipe, dialect, rule, whose it is.
EXPERT_RULES = [
    ("nvfp4", "modelopt", nvfp4_modelopt_experts, "vLLM, SGLang: w13_weight_scale_2[:, 0]"),
    ("nvfp4", "compressed-tensors", nvfp4_compressed_tensors_experts, "vLLM: w13_weight_global_scale[:, 0]"),
    ("fp8-tensor", "fp8", fp8_tensor_experts, "vLLM: process_fp8_weight_tensor_strategy_moe"),
    ("fp8-tensor", "compressed-tensors", fp8_tensor_experts, "vLLM: process_fp8_weight_tensor_strategy_moe"),
]


def gpt_oss(tensors, name):
    """All experts of a layer, `[E, in, out]`: transformers integrations/mxfp4.py:270, convert_moe_packed_tensors: the even column
    in the low half, times 2^(scale - 127), then the last two axes in turn. vLLM takes both as they lie, Q/mxfp4.py,
    Mxfp4MoEMethod.create_weights (read at 007d500): `w13_weight` U8 `[E, 2 n, k / 2]`, `w13_weight_scale` U8 `[E, 2 n, k / 32]`."""
    (of_blocks, blocks), (of_scales, scales) = tensors[f"{name}_blocks"], tensors[f"{name}_scales"]
    assert of_blocks == of_scales == "U8" and blocks.shape == (*scales.shape, 16)
    values = E2M1[np.stack([blocks & 15, blocks >> 4], axis=-1).reshape(*scales.shape, 32)]
    values = values * powers_of_two(scales)[..., None]
    return values.reshape(*scales.shape[:2], -1).transpose(0, 2, 1)


# --- ComfyUI -------------------------------------------------------------------------------------------------------------------
#
# "C/" is comfy_kitchen/ of Comfy-Org/comfy-kitchen, read at 0935c34. Its layers are not fused.


def from_blocked(scales, rows, cols):
    """C/float_utils.py, from_blocked: tiles of 128 x 4 in turn, in each row r % 32 holds four of r // 32 one after the other."""
    tall, wide = -(-rows // 128), -(-cols // 4)
    assert scales.shape == (tall * 128, wide * 4), scales.shape
    tiles = scales.reshape(tall, wide, 32, 4, 4).transpose(0, 3, 2, 1, 4)
    return tiles.reshape(tall * 128, wide * 4)[:rows, :cols]


def comfyui(layer):
    """C/backends/eager/quantization.py: dequantize_nvfp4 (hi_first), dequantize_mxfp8, dequantize_per_tensor_fp8, in FP32."""
    format = json.loads(weights(layer, "U8", "comfy_quant").tobytes())["format"]
    if format == "float8_e4m3fn":
        return E4M3[weights(layer, "F8_E4M3")] * scalar(layer, "weight_scale")
    if format == "mxfp8":
        codes = E4M3[weights(layer, "F8_E4M3")]
        rows, cols = codes.shape
        return codes * powers_of_two(from_blocked(weights(layer, "U8", "weight_scale"), rows, cols // 32)).repeat(32, axis=1)
    assert format == "nvfp4", format
    packed = weights(layer, "U8")
    codes = unpack(packed << 4 | packed >> 4)
    rows, cols = codes.shape
    blocks = E4M3[from_blocked(weights(layer, "F8_E4M3", "weight_scale"), rows, cols // 16)]
    return codes * (scalar(layer, "weight_scale_2") * blocks).repeat(16, axis=1)


COMFYUI = ["nvfp4", "mxfp8", "fp8-tensor"]
