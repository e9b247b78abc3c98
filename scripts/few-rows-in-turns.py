#!/usr/bin/env python3
"""Times kernels of few rows (`small-m`), compiled from several states of kernels/, in turns in one run, and compares the bits of what they write.

A STATE is a folder with images, as nvcc makes them with the flags of build.rs:

    for f in small_m_fp8 small_m_e2m1 small_m_repacked small_m_one_row; do
        nvcc -std=c++17 --fmad=false --ftz=false --prec-div=true -Ikernels -arch=sm_90a -cubin -o STATE/$f.cubin kernels/gemm/$f.cu
    done

(for the emulator -ptx -o STATE/$f.ptx in the place of -cubin and its file; of both the .cubin is taken)

and, where its kernels are others, a few-rows.json in the form of the one beside this script, which counts else: of each image its kernels, with the weights that they multiply, the `least` and most rows of A
(`tokens`), the `splits` of k that are tried, and their template's numbers: of `nvfp4` and `nvfp4-repacked` (with BF16 rows) `pairs`, `warps` and `stages`, of `fp8` (1x128 x 128x128) `warpgroups`, `steps` and `stages`.
What the script cannot know is whether these numbers are those of the kernels: too large ones take more shared memory than is needed, and so time something else; too small ones end in an error of the driver, or wrong bits.
`slack`: bytes of shared memory beside those that this script counts, as FP8 kernels had 1024 until 2026-11-30.
`keeps_a`: the one row of A lies behind all else in shared memory, in 256 bytes for each 128 of k. `early`: with how many stages left an FP8 kernel of a chain releases the next, each of which is timed.
`paced`, true or false: in a chain its first weights are asked for one step behind the other, as the library has it of kernels of links, and of others by `SmallMConfig::in_chain` (kernels that keep the row, and of FP8, see to it themselves).
Images that are not there are left out. Kernels that cut k into as many parts add in the same order, and must write the same bits: D is compared in FP32, in which another order shows.

Needs Python alone, and an NVIDIA GPU of the images' kind. With --check, which times nothing, the driver of emulator/ will do (SCALED_GEMM_LIBCUDA says where it is), of images in PTX (.ptx). The structs are those of
src/gpu/kernels/small_m.rs and small_m_weights.rs as they are: kernels with others would read wrong memory. Operands are at most 64 layers, together ten times as large as the L2 cache (layers of less than
10 MB: 64 of them), or --layers of them: one stays in the cache, and shows what a product takes whose memory is no limit. All have the same A, which is in the cache, as what the kernel before has just written is (until 2026-11-30 each had its own, from memory). Figures are microseconds a product into BF16, the lesser of two medians of seven graphs: outside of
chains, and in one, where weights are loaded before the wait. (The library's chains may take another configuration for a link, and release nothing where the next kernel finds no room: `SmallMConfig::in_chain`, `OneRow::link`.)
"""
import argparse
import ctypes
import json
import math
import os
import re
import statistics
import struct
import sys
from pathlib import Path

GRAPHS, ROUNDS = 7, 2
SETS_BYTES, MOST_SETS = 640 << 20, 64
CLUSTER, OVERLAP = 4, 6  # CUlaunchAttributeID
MOST_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
GPU_SHARED = 227 << 10
MULTIPLES = {"fp8": 16, "nvfp4": 32, "nvfp4-repacked": 128}  # of k
BF16, F32 = 0, 2  # types of D, kernels/gemm/finish.cuh
# SmallMProblem and SmallMWeightsProblem.
FP8_PROBLEM = "<13I2f4x9Q"
WEIGHTS_PROBLEM = "<13I2f4x12Q"

u64, pointer = ctypes.c_uint64, ctypes.c_void_p


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16)]


class Config(ctypes.Structure):
    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint), ("stream", pointer),
                ("attributes", ctypes.POINTER(Attribute)), ("number", ctypes.c_uint)]


class Gpu:
    last = None  # what was launched

    def __init__(self):
        library = os.environ.get("SCALED_GEMM_LIBCUDA", "libcuda.so.1")
        try:
            self.driver = ctypes.CDLL(library)
        except OSError as error:
            sys.exit(f"{library}: {error}; this wants a machine with an NVIDIA GPU, or, with --check, SCALED_GEMM_LIBCUDA")
        if not hasattr(self.driver, "cuInit"):
            sys.exit(f"{library}: is no driver of CUDA; SCALED_GEMM_LIBCUDA must be that of emulator/, or not be set")
        self("cuInit", 0)
        context = pointer()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self("cuCtxSetCurrent", context)
        self.stream = pointer()
        self("cuStreamCreate", ctypes.byref(self.stream), 1)

    def __call__(self, name, *arguments, what=None):
        status = getattr(self.driver, name)(*arguments)
        self.last = what or self.last
        if status:
            behind = f" (at or behind {self.last}: are the numbers in few-rows.json those of its kernels?)" if self.last else ""
            sys.exit(f"{name}: CUDA error {status}{behind}")

    def memory(self, size):
        at = u64()
        self("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
        return at.value

    def free(self, at):
        self("cuMemFree_v2", u64(at))

    def write(self, at, data):
        self("cuMemcpyHtoD_v2", u64(at), data, ctypes.c_size_t(len(data)))
        # It may return while the last bytes are on their way, which the stream does not wait for.
        self("cuCtxSynchronize")

    def read(self, at, size):
        data = ctypes.create_string_buffer(size)
        self.wait()
        self("cuMemcpyDtoH_v2", data, u64(at), ctypes.c_size_t(size))
        return data.raw

    def wait(self):
        self("cuStreamSynchronize", self.stream)

    def module(self, path):
        found = pointer()
        try:
            image = path.read_bytes()
        except OSError as error:
            sys.exit(str(error))
        if not image.strip(b"\0\n "):
            sys.exit(f"{path}: is empty; compile it anew")
        status = self.driver.cuModuleLoadData(ctypes.byref(found), image + b"\0")
        if status:
            sys.exit(f"{path}: the driver does not load it (CUDA error {status}); compile it for the GPU that is here")
        return found

    def kernel(self, path, module, name):
        found = pointer()
        status = self.driver.cuModuleGetFunction(ctypes.byref(found), module, name.encode())
        if status:
            sys.exit(f"{path}: has no kernel {name} (CUDA error {status}); give the state the few-rows.json of its kernels")
        return found

    def launch(self, kernel, grid, threads, cluster, shared, problem, what):
        attributes = (Attribute * 2)()
        attributes[0].id, attributes[0].value[0] = OVERLAP, 1
        attributes[1].id, attributes[1].value[:3] = CLUSTER, (cluster, 1, 1)
        config = Config(grid=(grid, 1, 1), block=(threads, 1, 1), shared=shared, stream=self.stream, attributes=attributes, number=1 + (cluster > 1))
        argument = ctypes.create_string_buffer(problem, len(problem))
        self("cuLaunchKernelEx", ctypes.byref(config), kernel, (pointer * 1)(ctypes.cast(argument, pointer)), None, what=what)

    def graph(self, calls):
        self("cuStreamBeginCapture_v2", self.stream, 1)
        for call in calls:
            call()
        graph, made = pointer(), pointer()
        self("cuStreamEndCapture", self.stream, ctypes.byref(graph))
        self("cuGraphInstantiateWithFlags", ctypes.byref(made), graph, u64(0))
        self("cuGraphDestroy", graph)
        return made

    def event(self):
        made = pointer()
        self("cuEventCreate", ctypes.byref(made), 0)
        return made


def some_bytes(count, keep=None):
    """Random, each byte by `keep`, a table of 256."""
    data = os.urandom(count)
    return data.translate(keep) if keep else data


# High bytes of BF16 numbers of both signs within 2^9: sums are inexact in FP32, and show their order.
EXPONENTS = bytes(0x3B + i % 8 | i & 0x80 for i in range(256))
# E4M3: none that is NaN, and scales within some powers of two.
NO_NAN = bytes(i & 0xFE if i & 0x7F == 0x7F else i for i in range(256))
SCALES = bytes(0x28 + i % 32 for i in range(256))


def bf16(count):
    data = bytearray(2 * count)
    data[0::2], data[1::2] = some_bytes(count), some_bytes(count, EXPONENTS)
    return bytes(data)


def floats(count):
    data = bytearray(4 * count)
    data[2::4], data[3::4] = some_bytes(count), bytes([0x3B]) * count
    return bytes(data)


class Layer:
    """Operands of one product."""

    def __init__(self, gpu, weights, m, n, k, pool):
        self.gpu, self.m, self.n, self.k = gpu, m, n, k
        self.is_fp8 = weights == "fp8"
        up = lambda x, to: -(-x // to) * to
        self.code_bytes = n * k if self.is_fp8 else n * k // 2
        blocks = -(-k // 128)
        # Of scales of B: numbers from 128 rows to the next, or tiles along k.
        self.pitch = up(blocks, 4) if self.is_fp8 else up(k // 16, 4) // 4
        self.scale_bytes = up(n, 128) // 128 * self.pitch * (4 if self.is_fp8 else 512)
        self.codes, self.scales = gpu.memory(self.code_bytes), gpu.memory(self.scale_bytes)
        for at in range(0, self.code_bytes, len(pool)):
            gpu.write(self.codes + at, pool[: self.code_bytes - at])
        gpu.write(self.scales, floats(self.scale_bytes // 4) if self.is_fp8 else some_bytes(self.scale_bytes, SCALES))
        self.a, self.d = gpu.memory(2 * m * k + 16), gpu.memory(4 * m * n)
        gpu.write(self.a, some_bytes(m * k, NO_NAN) if self.is_fp8 else bf16(m * k))
        self.pitch_a = up(m, 4)
        self.scales_a = gpu.memory(4 * self.pitch_a * blocks) if self.is_fp8 else 0
        if self.is_fp8:
            gpu.write(self.scales_a, floats(self.pitch_a * blocks))

    def problem(self, split, releases, paced, d_type):
        """`releases`: None outside of chains."""
        m, n, k = self.m, self.n, self.k
        links = (0, 0) if releases is None else (releases, 2 if paced else 1)
        if self.is_fp8:
            return struct.pack(FP8_PROBLEM, m, n, k, 0, 0, self.pitch_a, self.pitch, 0, 0, d_type, 0, *links, 1, 0,
                               self.a, self.codes, self.scales_a, self.scales, 0, 0, self.d, 0, n)
        return struct.pack(WEIGHTS_PROBLEM, m, n, k, 0, 0, 0, 0, d_type, 0, *links, self.pitch, split, 1, 0,
                           self.a, self.codes, self.scales, 0, 0, 0, 0, self.d, 0, k, 0, n)

    def free(self):
        for at in (self.codes, self.scales, self.a, self.d, self.scales_a):
            if at:
                self.gpu.free(at)


class Shape:
    """What follows from the numbers of a kernel's template: as in `SmallMBlock` of src/gpu/kernels/small_m_config.rs."""

    def __init__(self, said):
        # Columns of the tensor core's product.
        tokens, stages = max(said["tokens"], 8), said["stages"]
        self.keeps_a = said.get("keeps_a", False)
        if said["weights"] == "fp8":
            groups, step = said["warpgroups"], (64 + tokens) * 128 + tokens * 4 + 16
            self.rows, self.parts, self.threads = 64, groups, 128 * groups
            self.bytes = said.get("slack", 0) + groups * (stages * said["steps"] * step + 64 * tokens * 4) + 16
        else:
            rows, warps = 16 * said["pairs"], said["warps"]
            self.rows, self.parts, self.threads = rows, warps, 32 * warps
            self.bytes = 128 + warps * (stages * rows * 80 + rows * tokens * 4) + 16

    def shared(self, k, split):
        if not self.keeps_a:
            return self.bytes
        # Where the parts of k are uneven a block's has the more steps of both.
        return 128 + -(-(self.bytes - 128) // 128) * 128 + -(-(-(-k // 128)) // split) * 256

    def blocks(self, n):
        # Blocks of decoded weights have eight of each 32 of the 128 rows that share a tile of block scales.
        return -(-n // 64) if self.rows == 64 else -(-n // (4 * self.rows)) * 4


class Kernel:
    def __init__(self, gpu, state, path, module, said):
        self.gpu, self.said, self.label, self.shape = gpu, said, f"{state}: {said['label']}", Shape(said)
        self.kernel, self.most = gpu.kernel(path, module, said["name"]), 0
        self.early, self.paced = said.get("early", [1]), said.get("paced", False)

    def serves(self, weights, m, n, k, split):
        said, multiple = self.said, MULTIPLES[weights]
        served = said["weights"] == weights and k % multiple == 0 and said["least"] <= m <= said["tokens"] and split in said["splits"]
        return served and -(-k // 128) >= split * self.shape.parts // 4 and self.shape.shared(k, split) <= GPU_SHARED

    def launch(self, layer, split, releases=None, d_type=BF16):
        shared = self.shape.shared(layer.k, split)
        if shared > self.most:
            self.gpu("cuFuncSetAttribute", self.kernel, MOST_SHARED, shared)
            self.most = shared
        self.gpu.launch(self.kernel, self.shape.blocks(layer.n) * split, self.shape.threads, split, shared, layer.problem(split, releases, self.paced, d_type),
                        f"{self.label}, split {split}, {layer.m} x {layer.n} x {layer.k}, {shared} bytes of shared memory")


def number(text):
    if not re.fullmatch("[1-9][0-9]{0,8}", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no number above 0")
    return int(text)


def numbers(text):
    return [number(x) for x in text.split(",")]


def shapes(text):
    if not re.fullmatch("[0-9]+x[0-9]+(,[0-9]+x[0-9]+)*", text):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of n x k as 4096x7168,7168x2048")
    found = [[number(x) for x in shape.split("x")] for shape in text.split(",")]
    if any(n % 8 or k % 16 for n, k in found):
        raise argparse.ArgumentTypeError(f"{text!r} is no list of n x k as 4096x7168, n a multiple of 8 and k of 16")
    return found


def kernels_of(state):
    own = state / "few-rows.json"
    path = own if own.exists() else Path(__file__).with_name("few-rows.json")
    try:
        table = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        sys.exit(f"{path}: {error}")
    if wrong := wrong_in(table):
        sys.exit(f"{path}: {wrong}; {Path(__file__).with_name('few-rows.json')} has the form")
    return table


NUMBERS = {"fp8": ["warpgroups", "steps", "stages"]} | dict.fromkeys(("nvfp4", "nvfp4-repacked"), ["pairs", "warps", "stages"])


def wrong_in(table):
    """What is wrong in a few-rows.json, if anything."""
    if not isinstance(table, list) or not table or not all(isinstance(image, dict) and isinstance(image.get("image"), str) and isinstance(image.get("kernels"), list) for image in table):
        return 'is no list of {"image": NAME, "kernels": [...]}'
    count = lambda x: type(x) is int and 0 < x < 1 << 20
    for image, said in ((image["image"], said) for image in table for said in image["kernels"]):
        if not isinstance(said, dict) or not all(isinstance(said.get(key), str) for key in ("label", "name")):
            return f"a kernel of {image} has no label or no name"
        if said.get("weights") not in NUMBERS:
            return f"{said['name']}: weights are none of {', '.join(NUMBERS)}"
        needed = ["least", "tokens", *NUMBERS[said["weights"]]]
        if missing := [key for key in needed if not count(said.get(key))]:
            return f"{said['name']}: {', '.join(missing)} must be a number above 0"
        lists = {"splits": said.get("splits"), "early": said.get("early", [1])}
        if wrong := [key for key, found in lists.items() if not isinstance(found, list) or not found or not all(x == 0 and key == "early" or count(x) for x in found)]:
            return f"{said['name']}: {', '.join(wrong)} must be a list of numbers"
        if any(split not in (1, 2, 4, 8) for split in said["splits"]):
            return f"{said['name']}: splits are of 1, 2, 4 and 8"
        if wrong := [key for key in ("paced", "keeps_a") if not isinstance(said.get(key, False), bool)]:
            return f"{said['name']}: {', '.join(wrong)} must be true or false"
        slack = said.get("slack", 0)
        if type(slack) is not int or not 0 <= slack < 1 << 20:
            return f"{said['name']}: slack must be a number of bytes, 0 or more"
        if unknown := set(said) - {"label", "name", "weights", "splits", "early", "paced", "slack", "keeps_a", *needed}:
            return f"{said['name']}: {', '.join(sorted(unknown))} is known to no one"
    return None


def image_of(state, name):
    return next((path for path in (state / f"{name}.cubin", state / f"{name}.ptx") if path.exists()), None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare what kernels write, and time nothing")
    parser.add_argument("--rows", type=numbers, default=[1, 2, 8])
    parser.add_argument("--shapes", type=shapes, default="4096x7168,7168x2048,2112x7168")
    parser.add_argument("--splits", type=numbers, default=[1, 2, 4, 8])
    parser.add_argument("--layers", type=number, help="in the place of as many as pass the cache")
    parser.add_argument("states", nargs="+", type=Path, metavar="STATE")
    options = parser.parse_args()
    if os.environ.get("SCALED_GEMM_EMULATED") and not options.check:
        parser.error("an emulated GPU (SCALED_GEMM_EMULATED) has no times; --check compares what kernels write")
    tables = [(state, kernels_of(state)) for state in options.states]
    for state, table in tables:
        named = [image["image"] for image in table]
        if not any(image_of(state, image) for image in named):
            parser.error(f"{state}: holds none of {', '.join(named)} as .cubin or .ptx; compile them, as is said above")
    if len({state.name for state in options.states}) < len(options.states):
        parser.error("two states have folders of one name, by which they are told")
    gpu, kernels = Gpu(), []
    for state, table in tables:
        for image in table:
            if path := image_of(state, image["image"]):
                module = gpu.module(path)
                kernels += [Kernel(gpu, state.name, path, module, said) for said in image["kernels"]]
    pool = some_bytes(16 << 20 if not options.check else 1 << 16, NO_NAN)
    weights = list(dict.fromkeys(kernel.said["weights"] for kernel in kernels))
    if not options.check:
        print("| m x n x k | weights | kernel, split | shared memory | outside | in a chain |\n|---|---|---|---|---|---|")
    compared, alone = 0, []
    for n, k in options.shapes:
        for m in options.rows:
            for of in weights:
                ways = [(kernel, split) for kernel in kernels for split in options.splits if kernel.serves(of, m, n, k, split)]
                if not ways:
                    rows = [(kernel.said["least"], kernel.said["tokens"]) for kernel in kernels if kernel.said["weights"] == of]
                    splits = sorted({split for kernel in kernels if kernel.said["weights"] == of for split in kernel.said["splits"]})
                    print(f"{m} x {n} x {k} of {of}: no kernel serves it (of {min(rows)[0]} to {max(b for _, b in rows)} rows, splits {splits}, where k is a multiple of"
                          f" {MULTIPLES[of]} with a step for each part, in {GPU_SHARED} bytes of shared memory)", file=sys.stderr)
                    continue
                equal = case(gpu, options, pool, of, (m, n, k), ways)
                compared += equal
                if not equal:
                    alone.append(f"{m} x {n} x {k} of {of}")
    if alone:
        print(f"no two kernels add in the same order, and nothing was compared: {', '.join(alone)}", file=sys.stderr)
    if options.check and (alone or not compared):
        sys.exit(1)
    print(f"{compared} times the same bits as another kernel that cuts k into as many parts", file=sys.stderr)


def compare(gpu, layer, ways):
    """How many kernels wrote the bits of another; wrong ones end the run."""
    first, compared = {}, 0
    for kernel, split in ways:
        parts = kernel.shape.parts * split
        for releases in (None, kernel.early[0]):
            gpu.write(layer.d, b"\xff" * (4 * layer.m * layer.n))
            kernel.launch(layer, split, releases, F32)
            got = gpu.read(layer.d, 4 * layer.m * layer.n)
            whose, bits = first.setdefault(parts, (kernel, got))
            words = f"{kernel.label}, split {split}, {layer.m} x {layer.n} x {layer.k}"
            # All operands are finite, and what is not written is none: kernels that all read before their copies have come agree in NaN.
            if not any(got) or not all(map(math.isfinite, memoryview(got).cast("f"))):
                sys.exit(f"{words}: D is not all written, not finite, or zero")
            if bits != got:
                sys.exit(f"{words}: other bits than {whose.label}, in {parts} parts of k")
        compared += whose is not kernel
    return compared


def case(gpu, options, pool, weights, shape, ways):
    m, n, k = shape
    probe = Layer(gpu, weights, m, n, k, pool)
    compared = compare(gpu, probe, ways)
    if options.check:
        probe.free()
        return compared
    sets = options.layers or max(4, min(MOST_SETS, SETS_BYTES // probe.code_bytes + 1))
    layers = [probe] + [Layer(gpu, weights, m, n, k, pool) for _ in range(sets - 1)]
    own = [(layer.a, layer.scales_a) for layer in layers]
    for layer in layers:
        layer.a, layer.scales_a = own[0]
    many = max(sets, 64 if probe.code_bytes < 100 << 20 else 16)
    graphs = {}
    for kernel, split in ways:
        for releases in (None, *kernel.early):
            calls = [lambda layer=layers[i % sets]: kernel.launch(layer, split, releases) for i in range(many)]
            graphs[kernel, split, releases] = gpu.graph(calls)
    begin, end = gpu.event(), gpu.event()
    medians = {way: [] for way in graphs}
    for _ in range(ROUNDS):
        times = {way: [] for way in graphs}
        for _ in range(GRAPHS):
            for way, graph in graphs.items():
                gpu("cuGraphLaunch", graph, gpu.stream)
                gpu("cuEventRecord", begin, gpu.stream)
                gpu("cuGraphLaunch", graph, gpu.stream)
                gpu("cuEventRecord", end, gpu.stream)
                gpu("cuEventSynchronize", end)
                took = ctypes.c_float()
                gpu("cuEventElapsedTime", ctypes.byref(took), begin, end)
                times[way].append(took.value * 1000 / many)
        for way, took in times.items():
            medians[way].append(statistics.median(took))
    for kernel, split in ways:
        outside = min(medians[kernel, split, None])
        chained = [(min(medians[kernel, split, early]), early) for early in kernel.early]
        cell = ", ".join(f"{time:.2f}" + (f" ({early} left)" if len(chained) > 1 else "") for time, early in chained)
        print(f"| {m} x {n} x {k} | {weights} | {kernel.label}, {split} | {kernel.shape.shared(k, split)} | {outside:.2f} | {cell} |", flush=True)
    for graph in graphs.values():
        gpu("cuGraphExecDestroy", graph)
    for layer, (layer.a, layer.scales_a) in zip(layers, own):
        layer.free()
    return compared


if __name__ == "__main__":
    main()
