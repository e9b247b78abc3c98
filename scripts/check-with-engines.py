#!/usr/bin/env python3
"""Quantizes a tiny Llama folder in every dialect and compares what other readers make of it with `dequantize`, bit for bit.

usage: scripts/check-with-engines.py [--program PATH] [--numpy-only] [--record FILE] [--keep FOLDER]

Two parts, both on the CPU:

- Reading rules of engines that need a GPU (vLLM, SGLang, ModelOpt), done again in numpy from their source: what they keep of
  the scales of layers that they fuse. Needs numpy alone; `--numpy-only` runs just this. Folders written with `--no-fuse` must
  come out wrong here, or this part could not see anything.
- Readers that run on a CPU: compressed-tensors' decompressors, and transformers with the whole model. Needs torch, transformers,
  accelerate and compressed-tensors; a venv outside the repository will do. ModelOpt's own tensor classes, if it is installed.

The exit code is 0 only if all agree. `--record` writes the table to a file.
"""
import argparse
import importlib.metadata
import json
import pathlib
import platform
import subprocess
import sys
import tempfile

import numpy as np

ROOT = pathlib.Path(__file__).resolve().parent.parent

HIDDEN, INNER, VOCABULARY, LAYERS, HEADS, KV_HEADS = 256, 384, 128, 2, 4, 2
# Members of a group must not have one scale by luck. The smallest is that of real models: FP16 has no fine steps there.
SIZES = {"q_proj": 1.0, "k_proj": 3.1, "v_proj": 0.3, "o_proj": 0.7, "gate_proj": 1.0, "up_proj": 2.3, "down_proj": 0.6}
GROUPS = [
    ["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"],
    ["self_attn.o_proj"],
    ["mlp.gate_proj", "mlp.up_proj"],
    ["mlp.down_proj"],
]
MODULES = [f"model.layers.{layer}.{module}" for layer in range(LAYERS) for group in GROUPS for module in group]


# --- Files ---------------------------------------------------------------------------------------------------------------------

DTYPES = {"F32": "<f4", "BF16": "<u2", "U8": "u1", "F8_E4M3": "u1", "I64": "<i8"}


def read_folder(folder):
    """Name -> (type, array) of all tensors; BF16, E4M3 and E8M0 as bits. A reader of its own: the format is part of the check."""
    tensors = {}
    for path in sorted(pathlib.Path(folder).glob("*.safetensors")):
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
    folder.mkdir()
    random = np.random.default_rng(1)
    shapes = {f"{name}.weight": (VOCABULARY, HIDDEN) for name in ("model.embed_tokens", "lm_head")}
    shapes["model.norm.weight"] = (HIDDEN,)
    kv = HIDDEN * KV_HEADS // HEADS
    for module in MODULES:
        rows = {"k_proj": kv, "v_proj": kv, "gate_proj": INNER, "up_proj": INNER}.get(module.rsplit(".", 1)[1], HIDDEN)
        shapes[f"{module}.weight"] = rows, INNER if module.endswith("down_proj") else HIDDEN
    for layer in range(LAYERS):
        for norm in ("input_layernorm", "post_attention_layernorm"):
            shapes[f"model.layers.{layer}.{norm}.weight"] = (HIDDEN,)
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
    config = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": HIDDEN, "torch_dtype": "bfloat16"}
    (folder / "config.json").write_text(json.dumps(config))


# --- Numbers -------------------------------------------------------------------------------------------------------------------


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


# --- Reading rules -------------------------------------------------------------------------------------------------------------
#
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
    wide = np.ldexp(np.float32(1), scales.astype(np.int32) - 127).astype(np.float32).repeat(32, axis=1)
    return split(E4M3[codes] * wide, layers), None


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
    ("nvfp4", "modelopt", False, nvfp4_modelopt, VLLM_MAX),
    ("nvfp4", "modelopt", True, nvfp4_modelopt, VLLM_MAX),
    ("nvfp4", "compressed-tensors", False, nvfp4_compressed_tensors, "vLLM: 1 / max of the divisors"),
    ("nvfp4", "compressed-tensors", True, nvfp4_compressed_tensors, "vLLM: 1 / max of the divisors"),
]


# --- The check -----------------------------------------------------------------------------------------------------------------


class Check:
    def __init__(self, program, folder):
        self.program, self.folder = program, folder
        self.model = folder / "model"
        self.made = {}
        self.rows, self.failures = [], []

    def run(self, *args):
        done = subprocess.run([self.program, "--device", "cpu", *map(str, args)], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{' '.join(map(str, args))}: {done.returncode}\n{done.stderr}")

    def quantized(self, recipe, dialect, *options):
        """The folder of codes, and that of `dequantize --dtype f32`."""
        key = recipe, dialect, *map(str, options)
        if key not in self.made:
            to = self.folder / f"q{len(self.made)}"
            back = self.folder / f"{to.name}-back"
            self.run("quantize", self.model, "-o", to, "--recipe", recipe, "--dialect", dialect, *options)
            self.run("dequantize", to, "-o", back, "--dtype", "f32")
            self.made[key] = to, back
        return self.made[key]

    def calibration(self):
        """Another amax for each layer, and of no shape that a scale would hold exactly."""
        path = self.folder / "amax.json"
        path.write_text(json.dumps({module: 3.7 + 1.3 * i for i, module in enumerate(MODULES)}))
        return path

    def rule(self, recipe, dialect, with_inputs, read, *options):
        """(matrices, elements, differing, largest difference) of a reading rule against `dequantize`."""
        if with_inputs:
            options = *options, "--input-scales", self.calibration()
        to, back = self.quantized(recipe, dialect, *options)
        tensors, plain = read_folder(to), read_folder(back)
        total = Difference()
        for layer in range(LAYERS):
            for group in GROUPS:
                names = [f"model.layers.{layer}.{module}" for module in group]
                layers = [{n[len(m) + 1 :]: t for n, t in tensors.items() if n.startswith(f"{m}.")} for m in names]
                values, kept = read(layers)
                for name, value in zip(names, values):
                    total.add(name, value, plain[f"{name}.weight"][1])
                assert (kept is not None) == with_inputs, (recipe, dialect)
                for member, scale in zip(layers, kept or []):
                    own = scalar(member, next(suffix for suffix in member if suffix.startswith("input_")))
                    total.inputs += 1
                    total.other_inputs += scale != own
        return total

    def rules(self):
        for recipe, dialect, with_inputs, read, whose in RULES:
            what = f"{recipe}, {dialect}" + (", input scales" if with_inputs else "")
            self.add(what, whose, "f32", self.rule(recipe, dialect, with_inputs, read))
        # 4over6 has smaller scales; they are shared by the same rule.
        for options in (["--four-over-six", "mse"], ["--four-over-six", "mae", "--e4m3-max", "256"]):
            what = " ".join(["nvfp4, modelopt,", *options])
            self.add(what, VLLM_MAX, "f32", self.rule("nvfp4", "modelopt", False, nvfp4_modelopt, *options))
        # Where each layer has its own scale these rules must see it.
        for recipe, dialect, with_inputs, read, whose in RULES:
            if read in (fp8_tensor, nvfp4_modelopt, nvfp4_compressed_tensors) and not with_inputs:
                found = self.rule(recipe, dialect, False, read, "--no-fuse")
                self.add(f"{recipe}, {dialect}, --no-fuse", whose, "f32", found, differs=True)

    def add(self, what, whose, dtype, found, differs=False):
        """A row of the table, and a failure where it is not as it must be."""
        good = found.differing > 0 if differs else found.differing == 0 and found.other_inputs == 0
        verdict = ("differs, as it must" if good else "AGREES, AND MUST NOT") if differs else ("same bits" if good else "DIFFERS")
        self.note(what, whose, dtype, found, verdict)
        if not good:
            first = f"; the first in {found.first}" if found.first else ""
            other = f"; {found.other_inputs} of {found.inputs} input scales" if found.other_inputs else ""
            self.failures.append(f"{what}: {whose}: {verdict}: {found.differing} of {found.elements} elements{first}{other}")

    def note(self, what, whose, dtype, found, verdict):
        """A row of the table."""
        self.rows.append([what, whose, dtype, found.matrices, found.elements, found.differing, f"{found.largest:.3g}", verdict])
        print(f"{verdict:<20} {what} | {whose} | {found.differing} of {found.elements}, at most {found.largest:.3g}", flush=True)


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


# --- Readers that run on a CPU -------------------------------------------------------------------------------------------------


def write_llama(folder):
    """The model as transformers writes it."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(1)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=HIDDEN, intermediate_size=INNER, num_hidden_layers=LAYERS, num_attention_heads=HEADS,
        num_key_value_heads=KV_HEADS, max_position_embeddings=128, tie_word_embeddings=False,
    )
    model = LlamaForCausalLM(config)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if parameter.dim() == 2:
                parameter.normal_(0, 0.02 * SIZES.get(name.split(".")[-2], 1.0))
    model.to(torch.bfloat16).save_pretrained(folder)


def as_f32(theirs):
    return np.ascontiguousarray(theirs.detach().to("cpu").float().numpy())


def rounded(ours, dtype):
    """Our FP32 values in the type that the other reader gives back."""
    import torch

    return torch.from_numpy(np.array(ours)).to(dtype).float().numpy()


def decompressed(folder, scale_dtype=None):
    """The compressor's class and its weights, by module, from the tensors of the file: compressed_tensors.compressors."""
    import torch
    from compressed_tensors.compressors import BaseCompressor
    from compressed_tensors.quantization import QuantizationConfig
    from safetensors.torch import load_file

    config = QuantizationConfig.model_validate(json.loads((folder / "config.json").read_text())["quantization_config"])
    (scheme,) = config.config_groups.values()
    compressor = BaseCompressor.get_value_from_registry(config.format)
    # What the package itself would write for this scheme.
    assert compressor.can_compress(torch.nn.Linear, scheme), (folder, config.format)
    tensors, read = load_file(folder / "model.safetensors"), {}
    for module in MODULES:
        state = {n[len(module) + 1 :]: t for n, t in tensors.items() if n.startswith(f"{module}.")}
        known = set(compressor.compression_param_names(scheme)) | {"input_scale", "input_global_scale"}
        assert set(state) <= known, (set(state), known)
        if scale_dtype:
            state["weight_scale"] = state["weight_scale"].to(scale_dtype)
        read[module] = compressor.decompress(state, scheme)["weight"]
    return compressor, read


def compared(read, back, dtype=None, signed_zeros=True):
    """Weights of torch against those of a plain folder, rounded to their type (or the one given), which is given back too."""
    plain, total = read_folder(back), Difference()
    for module, weight in read.items():
        ours = rounded(plain[f"{module}.weight"][1], dtype or weight.dtype)
        total.add(module, as_f32(weight), ours if signed_zeros else ours + np.float32(0))
    return short(dtype or weight.dtype), total


def cases(check):
    for recipe, dialect, with_inputs, *_ in RULES:
        if dialect == "compressed-tensors":
            options = ["--input-scales", check.calibration()] if with_inputs else []
            what = f"{recipe}, {dialect}" + (", input scales" if with_inputs else "")
            yield recipe, what, *check.quantized(recipe, dialect, *options)


def compressed_tensors(check):
    for _, what, to, back in cases(check):
        compressor, read = decompressed(to)
        check.add(what, f"compressed-tensors: {compressor.__name__}.decompress", *compared(read, back))


def short(dtype):
    return {"torch.float32": "f32", "torch.bfloat16": "bf16"}[str(dtype)]


def transformers(check):
    """The whole model by from_pretrained; the logits against those of the plain folder."""
    import torch
    from transformers import AutoModelForCausalLM, CompressedTensorsConfig, FineGrainedFP8Config

    # oneDNN's products of BF16 die of an illegal instruction on some virtual machines; speed is of no matter here.
    torch.backends.mkldnn.enabled = False
    tokens = torch.from_numpy(np.random.default_rng(2).integers(0, VOCABULARY, (2, 48)))

    def load(folder, dtype, **options):
        model, said = AutoModelForCausalLM.from_pretrained(folder, dtype=dtype, output_loading_info=True, **options)
        # Where it dequantizes it has no place for scales of activations, and says so.
        no_place = "input_scale", "input_global_scale"
        said["unexpected_keys"] = {key for key in said["unexpected_keys"] if not key.endswith(no_place)}
        wrong = {key: value for key, value in said.items() if value}
        assert not wrong, (folder, wrong)
        quantization = json.loads((folder / "config.json").read_text()).get("quantization_config", {})
        if quantization.get("quant_method") == "fp8" and dtype == torch.float32:
            # transformers 5.23.0 leaves what is not FP8 in the type of the file, and such a model cannot be run. Not in BF16,
            # where it would round the frequencies of positions, too.
            model.float()
        with torch.no_grad():
            logits = model(tokens).logits
        assert logits.dtype == dtype and torch.isfinite(logits).all()
        return model, logits

    def weights_of(model):
        return {module: model.get_submodule(module).weight for module in MODULES}

    def dequantized(what, whose, folder, back, dtype, **options):
        """Weights and logits of a model that is dequantized while it is loaded."""
        model, logits = load(folder, dtype, **options)
        # Two decompressors give BF16 whatever the model's type.
        made = torch.bfloat16 if what.startswith(("nvfp4", "mxfp8")) else dtype
        check.add(what, f"{whose}, {short(dtype)} model", *compared(weights_of(model), back, made))
        plain, _ = load(back, dtype)
        with torch.no_grad():
            for weight in weights_of(plain).values():
                weight.copy_(weight.to(made))
            expected = plain(tokens).logits
        total = Difference()
        total.add("logits", as_f32(logits), as_f32(expected))
        check.add(f"{what}: logits", f"{whose}, {short(dtype)} model", short(dtype), total)

    for recipe, what, to, back in cases(check):
        for dtype in (torch.float32, torch.bfloat16):
            config = CompressedTensorsConfig(dequantize=True)
            dequantized(what, "transformers: dequantize=True", to, back, dtype, quantization_config=config)
            if dtype == torch.float32 and recipe in ("nvfp4", "mxfp8"):
                # The weights become BF16, which a model of F32 cannot multiply: transformers 5.23.0 fails for any such file.
                continue
            # Codes are kept until the first forward pass, which has been by now.
            model, _ = load(to, dtype)
            whose, read = f"transformers: first forward pass, {short(dtype)} model", weights_of(model)
            found = compared(read, back)
            if dtype == torch.bfloat16 and recipe.startswith("fp8"):
                # The parameters of scales have the type of the model: F32 scales lose bits there, whoever wrote them.
                # (vLLM's are F32.) So it must be what the scales make of it when they are rounded first, to the bit.
                _, expected = decompressed(to, torch.bfloat16)
                total = Difference()
                for module, weight in read.items():
                    total.add(module, as_f32(weight), as_f32(expected[module]))
                check.add(what, f"{whose}, against scales in BF16", "bf16", total)
                check.note(what, whose, *found, "it rounds scales to BF16")
            else:
                check.add(what, whose, *found)
    to, back = check.quantized("fp8-128x128", "fp8")
    for dtype in (torch.float32, torch.bfloat16):
        what, whose, config = "fp8-128x128, fp8", "transformers: FineGrainedFP8", FineGrainedFP8Config(dequantize=True)
        dequantized(what, f"{whose}, dequantize=True", to, back, dtype, quantization_config=config)
        # Without a GPU it dequantizes by itself.
        dequantized(what, whose, to, back, dtype)


def modelopt(check):
    """The decoders of ModelOpt: modelopt.torch.quantization.qtensor."""
    import torch
    from modelopt.torch.quantization.qtensor import FP8QTensor, MXFP8QTensor, NVFP4QTensor
    from safetensors.torch import load_file

    classes = {"fp8-tensor": FP8QTensor, "mxfp8": MXFP8QTensor, "nvfp4": NVFP4QTensor}
    for recipe, dialect, with_inputs, *_ in RULES:
        if dialect != "modelopt":
            continue
        options = ["--input-scales", check.calibration()] if with_inputs else []
        to, back = check.quantized(recipe, dialect, *options)
        tensors, read, which = load_file(to / "model.safetensors"), {}, classes[recipe]
        for module in MODULES:
            weight = tensors[f"{module}.weight"]
            scales = {"scale": tensors[f"{module}.weight_scale"]}
            shape = weight.shape
            if recipe == "nvfp4":
                shape = torch.Size([shape[0], shape[1] * 2])
                scales |= {"double_scale": tensors[f"{module}.weight_scale_2"], "block_sizes": {-1: 16}}
            read[module] = which(shape, torch.float32, weight).dequantize(torch.float32, **scales)
        what = f"{recipe}, {dialect}" + (", input scales" if with_inputs else "")
        # Code 8 is +0 in its table (nvfp4_tensor.py:27 of 0.47.0), and -0 elsewhere.
        zeros = ", -0 is 0" if recipe == "nvfp4" else ""
        check.add(what, f"ModelOpt: {which.__name__}.dequantize{zeros}", *compared(read, back, signed_zeros=not zeros))


# --- The record ----------------------------------------------------------------------------------------------------------------


def commit():
    git = lambda *args: subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True).stdout.strip()
    return git("rev-parse", "--short", "HEAD") + (" and changes" if git("status", "--porcelain", "--untracked-files=no") else "")


def record(check, packages):
    lines = [
        "# What other readers make of quantized folders",
        "",
        f"`scripts/check-with-engines.py` at {commit()}; Python {platform.python_version()}, {platform.machine()}; "
        + ", ".join(f"{package} {importlib.metadata.version(package)}" for package in packages)
        + ".",
        "",
        f"A Llama of {LAYERS} layers, hidden {HIDDEN}, {HEADS} heads ({KV_HEADS} of k and v), inner {INNER}, random BF16 "
        "weights. Rules of vLLM and SGLang are done again in numpy; the others are the packages themselves. "
        "Each matrix against `dequantize --dtype f32`, rounded to the type in the third column, by bits.",
        "",
        "| folder | reader | type | matrices | elements | differing | largest difference | |",
        "|---|---|---|---|---|---|---|---|",
    ]
    lines += ["| " + " | ".join(map(str, row)) + " |" for row in check.rows]
    lines += ["", *([f"- {failure}" for failure in check.failures] or ["All agree, but for what a row says of its reader."]), ""]
    return "\n".join(lines)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target/release/scaled-gemm")
    parser.add_argument("--numpy-only", action="store_true", help="only the reading rules, which need numpy alone")
    parser.add_argument("--record", type=pathlib.Path)
    parser.add_argument("--keep", type=pathlib.Path, help="a new folder for the models, to look at")
    args = parser.parse_args()
    packages = ["numpy"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = args.keep or pathlib.Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        check = Check(args.program.resolve(), folder)
        if args.numpy_only:
            write_model(check.model)
            check.rules()
        else:
            packages += ["torch", "transformers", "compressed-tensors", "safetensors", "accelerate"]
            write_llama(check.model)
            check.rules()
            compressed_tensors(check)
            transformers(check)
            try:
                packages.append("nvidia-modelopt")
                importlib.metadata.version("nvidia-modelopt")
            except importlib.metadata.PackageNotFoundError:
                packages.pop()
            else:
                modelopt(check)
        text = record(check, packages)
    if args.record:
        args.record.parent.mkdir(parents=True, exist_ok=True)
        args.record.write_text(text)
    print(f"\n{text}")
    return 1 if check.failures else 0


if __name__ == "__main__":
    sys.exit(main())
