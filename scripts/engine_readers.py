"""Readers of quantized folders that run on a CPU: the torch half of `check-with-engines.py`."""
import json

import numpy as np

from engine_files import (
    GPT_OSS_PARTS, HEADS, HIDDEN, INNER, KV_HEADS, LAYERS, MODULES, SIZES, VOCABULARY, Difference, read_folder,
)
from engine_rules import RULES

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
        made = torch.bfloat16 if what.startswith(("nvfp4", "mxfp")) else dtype
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
            if dtype == torch.float32 and recipe in ("nvfp4", "mxfp8", "mxfp4"):
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


def gpt_oss(check):
    """transformers' own decoder of the MXFP4 of gpt-oss, in BF16."""
    import torch
    from safetensors.torch import load_file
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    to, back = check.gpt_oss()
    tensors, plain, total = load_file(to / "model.safetensors"), read_folder(back), Difference()
    for name in GPT_OSS_PARTS:
        read = convert_moe_packed_tensors(tensors[f"{name}_blocks"], tensors[f"{name}_scales"], dtype=torch.bfloat16)
        total.add(name, as_f32(read), rounded(plain[name][1], torch.bfloat16))
    check.add("mxfp4, gpt-oss", "transformers: convert_moe_packed_tensors", "bf16", total)


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
