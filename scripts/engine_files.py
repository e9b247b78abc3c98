"""Small models in BF16 that `check-with-engines.py` has quantized, a reader of safetensors of its own, and the numbers of codes."""
import json
import pathlib

import numpy as np

HIDDEN, INNER, VOCABULARY, LAYERS, HEADS, KV_HEADS = 256, 384, 128, 2, 4, 2
# Members of a group must not have one scale by luck. The smallest is that of real models: FP16 has no fine steps there.
SIZES = {"q_proj": 1.0, "k_proj": 3.1, "v_proj": 0.3, "o_proj": 0.7, "gate_proj": 1.0, "up_proj": 2.3, "down_proj": 0.6}
GROUPS = [
    ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    ["self_attn.o_proj"],
    ["mlp.gate_proj", "mlp.up_proj"],
    ["mlp.down_proj"],
]
# Of the models with experts.
EXPERTS, EXPERT = 3, "model.layers.0.mlp.experts.{}"
GPT_OSS_PARTS = {
    "model.layers.0.mlp.experts.gate_up_proj": (EXPERTS, HIDDEN, 2 * INNER),
    "model.layers.0.mlp.experts.down_proj": (EXPERTS, INNER, HIDDEN),
}
MODULES = [f"model.layers.{layer}.{module}" for layer in range(LAYERS) for group in GROUPS for module in group]


# --- Files -------------------------------------------------------------------------------------------------------------------

DTYPES = {"F32": "<f4", "BF16": "<u2", "U8": "u1", "F8_E4M3": "u1", "I64": "<i8"}


def read_folder(folder):
    """Name -> (type, array) of all tensors of a folder or a file; BF16, E4M3 and E8M0 as bits. A reader of its own: the format is
    part of the check."""
    tensors, place = {}, pathlib.Path(folder)
    for path in [place] if place.is_file() else sorted(place.glob("*.safetensors")):
        data = path.read_bytes()
        end = 8 + int.from_bytes(data[:8], "little")
        for name, entry in json.loads(data[8:end]).items():
            if name == "__metadata__":
                continue
            begin, stop = entry["data_offsets"]
            array = np.frombuffer(data[end + begin : end + stop], dtype=DTYPES[entry["dtype"]]).reshape(entry["shape"])
            assert name not in tensors, f"{name} twice"
            tensors[name] = entry["dtype"], array
    return tensors


def write_model(folder):
    """The model without torch: the names and shapes of LlamaForCausalLM, in BF16."""
    shapes = {f"{name}.weight": (VOCABULARY, HIDDEN) for name in ("model.embed_tokens", "lm_head")}
    shapes["model.norm.weight"] = (HIDDEN,)
    kv = HIDDEN * KV_HEADS // HEADS
    for module in MODULES:
        rows = {"k_proj": kv, "v_proj": kv, "gate_proj": INNER, "up_proj": INNER}.get(module.rsplit(".", 1)[1], HIDDEN)
        shapes[f"{module}.weight"] = rows, INNER if module.endswith("down_proj") else HIDDEN
    for layer in range(LAYERS):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"model.layers.{layer}.{norm}.weight"] = (HIDDEN,)
    write_folder(folder, shapes, {"architectures": ["LlamaForCausalLM"], "model_type": "llama"})


def write_experts(folder):
    """The experts of a Qwen3-MoE and its router; the smallest weights are half of those above."""
    shapes = {"model.layers.0.mlp.gate.weight": (EXPERTS, HIDDEN)}
    for expert in range(EXPERTS):
        for part, shape in [("gate_proj", (INNER, HIDDEN)), ("up_proj", (INNER, HIDDEN)), ("down_proj", (HIDDEN, INNER))]:
            shapes[f"{EXPERT.format(expert)}.{part}.weight"] = shape
    write_folder(folder, shapes, {"architectures": ["Qwen3MoeForCausalLM"], "model_type": "qwen3_moe"})


def write_gpt_oss(folder):
    """Experts as the BF16 files of gpt-oss have them: all in one tensor, `[E, in, out]`."""
    write_folder(folder, GPT_OSS_PARTS, {"architectures": ["GptOssForCausalLM"], "model_type": "gpt_oss"})


def write_folder(folder, shapes, config):
    """Random values; of one that is no matrix, ones."""
    folder.mkdir()
    random = np.random.default_rng(1)
    header, parts, at = {"__metadata__": {"format": "pt"}}, [], 0
    for name, shape in shapes.items():
        size = SIZES.get(name.split(".")[-2], 1.0) * 0.02
        values = np.ones(shape, np.float32) if len(shape) == 1 else random.standard_normal(shape, np.float32) * np.float32(size)
        bits = to_bf16_bits(values).tobytes()
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [at, at + len(bits)]}
        parts.append(bits)
        at += len(bits)
    text = json.dumps(header).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(len(text).to_bytes(8, "little") + text + b"".join(parts))
    (folder / "config.json").write_text(json.dumps({**config, "hidden_size": HIDDEN, "torch_dtype": "bfloat16"}))


# --- Numbers -----------------------------------------------------------------------------------------------------------------


def e4m3_table():
    codes = np.arange(256)
    exponent, mantissa = (codes >> 3) & 15, codes & 7
    values = np.where(exponent > 0, np.ldexp(1 + mantissa / 8, exponent - 7), np.ldexp(mantissa / 8, -6))
    values[(codes & 127) == 127] = np.nan
    return np.copysign(values, np.where(codes > 127, -1.0, 1.0)).astype(np.float32)


E4M3 = e4m3_table()
E2M1 = np.array([0, 0.5, 1, 1.5, 2, 3, 4, 6, -0.0, -0.5, -1, -1.5, -2, -3, -4, -6], np.float32)


def to_e4m3(values):
    """To nearest, ties to even, beyond 448 to 448: the decoded values."""
    positive = E4M3[:127].astype(np.float64)
    middle = (positive[1:] + positive[:-1]) / 2
    size = np.minimum(np.abs(values).astype(np.float64), 448.0)
    below, above = np.searchsorted(middle, size, "left"), np.searchsorted(middle, size, "right")
    code = np.where(below % 2 == 0, below, above)
    return np.copysign(positive[code], values).astype(np.float32)


def to_bf16_bits(values):
    bits = np.ascontiguousarray(values, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16).astype("<u2")


def unpack(codes):
    """Two codes a byte, the even column in the low half."""
    return E2M1[np.stack([codes & 15, codes >> 4], axis=-1).reshape(codes.shape[0], -1)]


# --- Comparison --------------------------------------------------------------------------------------------------------------


class Difference:
    """What differs between two readings, by bits: -0 is not 0."""

    def __init__(self):
        self.matrices = self.elements = self.differing = self.inputs = self.other_inputs = 0
        self.largest, self.first = 0.0, None

    def add(self, name, theirs, ours):
        assert theirs.shape == ours.shape and theirs.dtype == ours.dtype == np.float32, (name, theirs.shape, theirs.dtype)
        self.matrices += 1
        self.elements += ours.size
        other = np.ascontiguousarray(theirs).view(np.uint32) != np.ascontiguousarray(ours).view(np.uint32)
        if other.any():
            self.differing += int(other.sum())
            gap = np.abs(theirs.astype(np.float64) - ours)[other].max()
            self.largest = max(self.largest, float(gap))
            at = np.unravel_index(int(other.argmax()), other.shape)
            place = ", ".join(str(int(i)) for i in at)
            self.first = self.first or f"{name} [{place}]: {theirs[at]!r} there, {ours[at]!r} here"
