#!/usr/bin/env python3
"""Quantizes a tiny Llama folder in every dialect and compares what other readers make of it with `dequantize`, bit for bit.

usage: scripts/check-with-engines.py [--program PATH] [--numpy-only] [--record FILE] [--keep FOLDER]

Two parts, both on the CPU:

- Reading rules of engines (vLLM, SGLang, ModelOpt, ComfyUI), done again in numpy from their source: what they keep of the scales
  of layers that they fuse, those of experts too (engine_rules.py). Needs numpy alone; `--numpy-only` runs just this. Folders
  written with `--no-fuse` must come out wrong here, or this part could not see anything.
- Readers that run on a CPU: compressed-tensors' decompressors, and transformers with the whole model (engine_readers.py). Needs
  torch, transformers, accelerate and compressed-tensors; a venv outside the repository will do. ModelOpt's own tensor classes, if
  it is installed.

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

import engine_readers as readers
import engine_rules as engines
from engine_files import (
    EXPERT, EXPERTS, GPT_OSS_PARTS, GROUPS, HEADS, HIDDEN, INNER, KV_HEADS, LAYERS, MODULES, Difference, read_folder, write_experts,
    write_gpt_oss, write_model,
)
from engine_rules import EXPERT_RULES, RULES, VLLM_MAX, fp8_tensor, nvfp4_compressed_tensors, nvfp4_modelopt, scalar

ROOT = pathlib.Path(__file__).resolve().parent.parent


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

    def quantized(self, recipe, dialect, *options, of=None):
        """The folder or file of codes, and that of `dequantize --dtype f32`."""
        key = of, recipe, dialect, *map(str, options)
        if key not in self.made:
            of, end = of or self.model, ".safetensors" if of and of.is_file() else ""
            to = self.folder / f"q{len(self.made)}{end}"
            back = self.folder / f"q{len(self.made)}-back{end}"
            self.run("quantize", of, "-o", to, "--recipe", recipe, "--dialect", dialect, *options)
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

    def experts(self):
        """Experts one by one, of which gate and up are fused; those of gpt-oss in one tensor."""
        model, parts = self.folder / "experts", [["gate_proj", "up_proj"], ["down_proj"]]
        write_experts(model)
        for recipe, dialect, read, whose in EXPERT_RULES:
            for options in [], ["--no-fuse"]:
                to, back = self.quantized(recipe, dialect, *options, of=model)
                tensors, plain, total = read_folder(to), read_folder(back), Difference()
                for names in ([f"{EXPERT.format(e)}.{part}" for part in group] for e in range(EXPERTS) for group in parts):
                    layers = [{n[len(m) + 1 :]: t for n, t in tensors.items() if n.startswith(f"{m}.")} for m in names]
                    for name, value in zip(names, read(layers)[0]):
                        total.add(name, value, plain[f"{name}.weight"][1])
                what = ", ".join([recipe, dialect, "experts", *options])
                self.add(what, whose, "f32", total, differs=bool(options))
        to, back = self.gpt_oss()
        tensors, plain, total = read_folder(to), read_folder(back), Difference()
        for name in GPT_OSS_PARTS:
            total.add(name, engines.gpt_oss(tensors, name), plain[name][1])
        self.add("mxfp4, gpt-oss", "transformers: convert_moe_packed_tensors; vLLM", "f32", total)

    def gpt_oss(self):
        model = self.folder / "gpt-oss"
        if not model.exists():
            write_gpt_oss(model)
        return self.quantized("mxfp4", "gpt-oss", of=model)

    def comfyui(self):
        """ComfyUI reads single files."""
        for recipe in engines.COMFYUI:
            to, back = self.quantized(recipe, "comfyui", of=next(self.model.glob("*.safetensors")))
            tensors, plain, total = read_folder(to), read_folder(back), Difference()
            for module in MODULES:
                layer = {n[len(module) + 1 :]: t for n, t in tensors.items() if n.startswith(f"{module}.")}
                total.add(module, engines.comfyui(layer), plain[f"{module}.weight"][1])
            self.add(f"{recipe}, comfyui", "ComfyUI: comfy-kitchen's eager backend", "f32", total)

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


# --- The record --------------------------------------------------------------------------------------------------------------


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
            check.experts()
            check.comfyui()
        else:
            packages += ["torch", "transformers", "compressed-tensors", "safetensors", "accelerate"]
            readers.write_llama(check.model)
            check.rules()
            check.experts()
            check.comfyui()
            readers.compressed_tensors(check)
            readers.transformers(check)
            readers.gpt_oss(check)
            try:
                packages.append("nvidia-modelopt")
                importlib.metadata.version("nvidia-modelopt")
            except importlib.metadata.PackageNotFoundError:
                packages.pop()
            else:
                readers.modelopt(check)
        text = record(check, packages)
    if args.record:
        args.record.parent.mkdir(parents=True, exist_ok=True)
        args.record.write_text(text)
    print(f"\n{text}")
    return 1 if check.failures else 0


if __name__ == "__main__":
    sys.exit(main())
