#!/usr/bin/env python3
"""How long `quantize` and `dequantize` of a model's folder take, beside `cp -r` of the same folder, and how much memory.

usage: scripts/measure-folders.py --program PROGRAM --folder SCRATCH [--gib 16] [--rounds 3] [--device cpu|cuda]

Makes a folder of BF16 weights of that size below SCRATCH, of noise in shards of 5 GB, the shapes of Llama-3-8B repeated, and
removes it and all that was written at the end. The commands take turns. Before each the page cache is dropped, where that is
allowed; the first line says whether. `cp` is timed without and with the `sync` that gets its bytes to the disk; the program's own
times have that always. With `--device cuda` the bytes that a command moves are also copied to the GPU and back, from pageable and from
page-locked memory, without any file. The record is Markdown, on standard output.
"""

import argparse
import array
import ctypes
import json
import os
import random
import shutil
import statistics
import struct
import subprocess
import sys
import time

HIDDEN, INTERMEDIATE, VOCABULARY = 4096, 14336, 32000
SHARD = 5_000_000_000
RECIPES = ["fp8-128x128", "nvfp4"]
PART = 32 << 20


def make(folder, gib):
    """Noise of normal size in every matrix; gives the bytes of all tensors."""
    generator = random.Random(1)
    exponent = lambda: 121 - min(int(generator.expovariate(1)), 6)
    bits = lambda: generator.getrandbits(1) << 15 | exponent() << 7 | generator.getrandbits(7)
    # An odd length: rows differ.
    pool = array.array("H", (bits() for _ in range((1 << 20) + 7))).tobytes()
    h, i = HIDDEN, INTERMEDIATE
    layer = {
        "input_layernorm": [h], "self_attn.q_proj": [h, h], "self_attn.k_proj": [h // 4, h], "self_attn.v_proj": [h // 4, h],
        "self_attn.o_proj": [h, h], "post_attention_layernorm": [h], "mlp.gate_proj": [i, h], "mlp.up_proj": [i, h],
        "mlp.down_proj": [h, i],
    }
    count = lambda shape: 2 * (shape[0] * shape[1] if len(shape) == 2 else shape[0])
    tensors = [("model.embed_tokens.weight", [VOCABULARY, h])]
    layers, of_layer = 0, sum(map(count, layer.values()))
    while 4 * VOCABULARY * h + layers * of_layer < gib * 2**30:
        tensors += [(f"model.layers.{layers}.{name}.weight", shape) for name, shape in layer.items()]
        layers += 1
    tensors += [("model.norm.weight", [h]), ("lm_head.weight", [VOCABULARY, h])]
    shards = [[]]
    for name, shape in tensors:
        if sum(count(s) for _, s in shards[-1]) + count(shape) > SHARD:
            shards.append([])
        shards[-1].append((name, shape))
    os.makedirs(folder)
    files, total = {}, 0
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05}-of-{len(shards):05}.safetensors"
        header, place = {"__metadata__": {"format": "pt"}}, 0
        for name, shape in shard:
            header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [place, place + count(shape)]}
            place += count(shape)
            files[name] = file
        total += place
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with open(os.path.join(folder, file), "wb") as out:
            out.write(struct.pack("<Q", len(text)) + text)
            while place > 0:
                place -= out.write(pool[:place])
    write = lambda name, value: json.dump(value, open(os.path.join(folder, name), "w"))
    write("model.safetensors.index.json", {"metadata": {"total_size": total}, "weight_map": files})
    write("config.json", {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": h, "num_hidden_layers": layers,
        "torch_dtype": "bfloat16",
    })
    return total


def drop_cache():
    os.sync()
    try:
        with open("/proc/sys/vm/drop_caches", "w") as knob:
            knob.write("3")
        return True
    except OSError:
        return False


def timed(command):
    """Seconds, seconds of user and system, and the largest resident set in MiB."""
    begin = time.monotonic()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    said = process.stderr.read().decode()
    _, status, usage = os.wait4(process.pid, 0)
    taken = time.monotonic() - begin
    if status != 0:
        sys.exit(f"{' '.join(command)}: {said}")
    return taken, usage.ru_utime, usage.ru_stime, usage.ru_maxrss / 1024


def size(folder):
    return sum(os.path.getsize(os.path.join(folder, name)) for name in os.listdir(folder))


class Gpu:
    """Copies by the driver, of buffers of a part."""

    def __init__(self):
        self.cuda = ctypes.CDLL("libcuda.so.1")
        context = ctypes.c_void_p()
        self.call("cuInit", 0)
        self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self.call("cuCtxSetCurrent", context)
        self.device, self.locked = ctypes.c_uint64(), ctypes.c_void_p()
        self.call("cuMemAlloc_v2", ctypes.byref(self.device), ctypes.c_size_t(PART))
        self.call("cuMemHostAlloc", ctypes.byref(self.locked), ctypes.c_size_t(PART), 0)
        self.pageable = ctypes.create_string_buffer(os.urandom(1 << 20) * (PART >> 20), PART)

    def call(self, name, *args):
        status = getattr(self.cuda, name)(*args)
        if status != 0:
            sys.exit(f"{name}: error {status} of the CUDA driver")

    def seconds(self, there, back, locked):
        """Of so many bytes to the device, and from it, one after the other."""
        host = self.locked if locked else ctypes.addressof(self.pageable)
        host = ctypes.c_void_p(host if isinstance(host, int) else host.value)
        begin = time.monotonic()
        for all_bytes, to_device in [(there, True), (back, False)]:
            while all_bytes > 0:
                now = ctypes.c_size_t(min(all_bytes, PART))
                if to_device:
                    self.call("cuMemcpyHtoD_v2", self.device, host, now)
                else:
                    self.call("cuMemcpyDtoH_v2", host, self.device, now)
                all_bytes -= now.value
        return time.monotonic() - begin

    def through(self, folder, out, written):
        """Reads the files of a folder, copies parts to the device, and back as many bytes in all as are to be written; writes them."""
        files = [os.path.join(folder, name) for name in sorted(os.listdir(folder))]
        ratio, host = written / sum(map(os.path.getsize, files)), ctypes.addressof(self.pageable)
        view = memoryview(self.pageable).cast("B")
        for number, path in enumerate(files):
            with open(path, "rb", buffering=0) as source, open(f"{out}.{number}", "wb", buffering=0) as target:
                while got := source.readinto(view):
                    self.call("cuMemcpyHtoD_v2", self.device, ctypes.c_void_p(host), ctypes.c_size_t(got))
                    back = int(got * ratio)
                    while back > 0:
                        now = min(back, PART)
                        self.call("cuMemcpyDtoH_v2", ctypes.c_void_p(host), self.device, ctypes.c_size_t(now))
                        target.write(view[:now])
                        back -= now
                os.fsync(target.fileno())
            os.remove(f"{out}.{number}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--program", required=True)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--gib", type=float, default=16)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--through", nargs=3, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.through:
        folder, out, written = args.through
        return Gpu().through(folder, out, int(written))
    scratch = os.path.join(args.folder, "measure-folders")
    os.makedirs(scratch)
    place = lambda name: os.path.join(scratch, name)
    try:
        total = make(place("model"), args.gib)
        runs, sizes = {}, {}

        def run(name, made, command):
            dropped = drop_cache()
            runs.setdefault(name, []).append(timed(command))
            begin = time.monotonic()
            os.sync()
            runs.setdefault(name + ", and sync", []).append((runs[name][-1][0] + time.monotonic() - begin, 0, 0, 0))
            sizes[name] = size(place(made))
            return dropped

        for _ in range(args.rounds):
            dropped = run("cp -r", "copy", ["cp", "-r", place("model"), place("copy")])
            shutil.rmtree(place("copy"))
            for recipe in RECIPES:
                device = ["--device", args.device]
                run(f"quantize {recipe}", "q", [args.program, "quantize", place("model"), "-o", place("q"), "--recipe", recipe, *device])
                run(f"dequantize {recipe}", "back", [args.program, "dequantize", place("q"), "-o", place("back"), *device])
                if args.device != "cpu":
                    for verb, of, made in [("quantize", "model", "q"), ("dequantize", "q", "back")]:
                        through = ["--through", place(of), place("through"), str(size(place(made)))]
                        command = [sys.executable, __file__, "--program", "", "--folder", "", *through]
                        run(f"files to the GPU and back, as {verb} {recipe}", made, command)
                shutil.rmtree(place("q"))
                shutil.rmtree(place("back"))
        print(f"{total / 2**30:.2f} GiB of BF16 weights, {args.rounds} rounds in turns, {os.cpu_count()} cores; page cache "
              f"{'dropped before each' if dropped else 'warm: dropping it is not allowed here'}; device {args.device}\n")
        print("| command | seconds, median (all) | of the rate of cp | with sync | user | system | memory, MiB | bytes written |")
        print("|---|---|---|---|---|---|---|---|")
        median = lambda name, at=0: statistics.median(run[at] for run in runs[name])
        for name in [name for name in runs if not name.endswith("sync")]:
            each = ", ".join(f"{run[0]:.1f}" for run in runs[name])
            peak = max(run[3] for run in runs[name])
            share, synced = median("cp -r") / median(name), median("cp -r, and sync") / median(name + ", and sync")
            print(f"| {name} | {median(name):.1f} ({each}) | {share:.2f} | {synced:.2f} | {median(name, 1):.1f} | {median(name, 2):.1f} "
                  f"| {peak:.0f} | {sizes[name]} |")
        if args.device != "cpu":
            gpu = Gpu()
            print("\n| the same bytes to the GPU and back, without files | pageable, s | page-locked, s |\n|---|---|---|")
            for recipe in RECIPES:
                for name, there, back in [("quantize", total, sizes[f"quantize {recipe}"]), ("dequantize", sizes[f"quantize {recipe}"], total)]:
                    seconds = [gpu.seconds(there, back, locked) for locked in (False, True)]
                    print(f"| {name} {recipe} | {seconds[0]:.2f} | {seconds[1]:.2f} |")
    finally:
        shutil.rmtree(scratch)


if __name__ == "__main__":
    main()
