#!/usr/bin/env python3
"""Times kernels of few rows (`small-m`), compiled from several states of kernels/, in turns in one run, and compares the bits of what they write.

A STATE is a folder with images, as nvcc makes them with the flags of build.rs:

    for f in small_m_fp8 small_m_e2m1 small_m_repacked; do
        nvcc -std=c++17 --fmad=false --ftz=false --prec-div=true -Ikernels -arch=sm_90a -cubin -o STATE/$f.cubin kernels/gemm/$f.cu
    done

and, where its kernels are others, a few-rows.json in the form of the one beside this script, which counts else: of each image its kernels, with the weights that they multiply (`nvfp4`, `nvfp4-repacked`: of BF16
rows; `fp8`: 1x128 x 128x128), `rows` of B and `parts` of k of a block, the `least` and most rows of A (`tokens`), dynamic `shared` memory, and the `splits` of k that are tried. `keeps_a`: how much comes
before all rows of A there, of which each takes 256 bytes for each 128 of k, and 64. `early`: with how many stages left an FP8 kernel of a chain releases the next. Images that are not there are left out.
Kernels with the same weights, parts and split add in the same order, and must write the same bits.

Needs Python alone, and an NVIDIA GPU of the images' kind. With --check, which times nothing, the driver of emulator/ will do (SCALED_GEMM_LIBCUDA says where it is), of images in PTX (.ptx). The structs are those of
src/gpu/kernels/small_m.rs and small_m_weights.rs as they are: kernels with others would read wrong memory. Operands are layers that are together ten times as large as the L2 cache, or --layers of them: one stays in
the cache, and shows what a product takes whose memory is no limit. Figures are microseconds a product, the lesser of two medians of seven graphs: outside of chains, and in one, where weights are loaded before the wait.
"""
import argparse
import ctypes
import json
import os
import statistics
import struct
import sys
from pathlib import Path

GRAPHS, ROUNDS = 7, 2
SETS_BYTES = 640 << 20
CLUSTER, OVERLAP = 4, 6  # CUlaunchAttributeID
MOST_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
MOST_THREADS = 0
GPU_SHARED = 227 << 10

u64, pointer = ctypes.c_uint64, ctypes.c_void_p


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_uint * 16)]


class Config(ctypes.Structure):
    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint), ("stream", pointer),
                ("attributes", ctypes.POINTER(Attribute)), ("number", ctypes.c_uint)]


class Gpu:
    def __init__(self):
        self.driver = ctypes.CDLL(os.environ.get("SCALED_GEMM_LIBCUDA", "libcuda.so.1"))
        self("cuInit", 0)
        context = pointer()
        self("cuDevicePrimaryCtxRetain", ctypes.byref(context), 0)
        self("cuCtxSetCurrent", context)
        self.stream = pointer()
        self("cuStreamCreate", ctypes.byref(self.stream), 1)

    def __call__(self, name, *arguments):
        status = getattr(self.driver, name)(*arguments)
        if status:
            sys.exit(f"{name}: CUDA error {status}")

    def memory(self, size):
        at = u64()
        self("cuMemAlloc_v2", ctypes.byref(at), ctypes.c_size_t(size))
        return at.value

    def free(self, at):
        self("cuMemFree_v2", u64(at))

    def write(self, at, data):
        self("cuMemcpyHtoD_v2", u64(at), data, ctypes.c_size_t(len(data)))

    def read(self, at, size):
        data = ctypes.create_string_buffer(size)
        self.wait()
        self("cuMemcpyDtoH_v2", data, u64(at), ctypes.c_size_t(size))
        return data.raw

    def wait(self):
        self("cuStreamSynchronize", self.stream)

    def module(self, path):
        found = pointer()
        self("cuModuleLoadData", ctypes.byref(found), path.read_bytes() + b"\0")
        return found

    def kernel(self, module, name):
        found = pointer()
        self("cuModuleGetFunction", ctypes.byref(found), module, name.encode())
        return found

    def most_threads(self, kernel):
        number = ctypes.c_int()
        self("cuFuncGetAttribute", ctypes.byref(number), MOST_THREADS, kernel)
        return number.value

    def launch(self, kernel, grid, threads, cluster, shared, problem):
        attributes = (Attribute * 2)()
        attributes[0].id, attributes[0].value[0] = OVERLAP, 1
        attributes[1].id, attributes[1].value[:3] = CLUSTER, (cluster, 1, 1)
        config = Config(grid=(grid, 1, 1), block=(threads, 1, 1), shared=shared, stream=self.stream, attributes=attributes, number=1 + (cluster > 1))
        argument = ctypes.create_string_buffer(problem, len(problem))
        self("cuLaunchKernelEx", ctypes.byref(config), kernel, (pointer * 1)(ctypes.cast(argument, pointer)), None)

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


EXPONENTS = bytes((0x3F, 0xBF, 0x40, 0xC0)[i % 4] for i in range(256))
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
        self.pitch = up(n, 128) // 128 * 4 if self.is_fp8 else up(k // 16, 4) // 4
        blocks = -(-k // 128)
        self.scale_bytes = 4 * up(n, 128) // 128 * up(blocks, 4) if self.is_fp8 else up(n, 128) * up(k // 16, 4)
        self.codes, self.scales = gpu.memory(self.code_bytes), gpu.memory(self.scale_bytes)
        for at in range(0, self.code_bytes, len(pool)):
            gpu.write(self.codes + at, pool[: self.code_bytes - at])
        gpu.write(self.scales, floats(self.scale_bytes // 4) if self.is_fp8 else some_bytes(self.scale_bytes, SCALES))
        self.a, self.d = gpu.memory(2 * m * k + 16), gpu.memory(2 * m * n)
        gpu.write(self.a, some_bytes(m * k, NO_NAN) if self.is_fp8 else bf16(m * k))
        self.pitch_a = up(m, 4)
        self.scales_a = gpu.memory(4 * self.pitch_a * blocks) if self.is_fp8 else 0
        if self.is_fp8:
            gpu.write(self.scales_a, floats(self.pitch_a * blocks))

    def problem(self, split, in_chain, early):
        m, n, k = self.m, self.n, self.k
        early, loads = (early, 1) if in_chain else (0, 0)
        if self.is_fp8:
            pitch_b = -(-(-(-k // 128)) // 4) * 4
            return struct.pack("<13I2f4x9Q", m, n, k, 0, 0, self.pitch_a, pitch_b, 0, 0, 0, 0, early, loads, 1, 0,
                               self.a, self.codes, self.scales_a, self.scales, 0, 0, self.d, 0, n)
        return struct.pack("<13I2f4x12Q", m, n, k, 0, 0, 0, 0, 0, 0, early, loads, self.pitch, split, 1, 0,
                           self.a, self.codes, self.scales, 0, 0, 0, 0, self.d, 0, k, 0, n)

    def free(self):
        for at in (self.codes, self.scales, self.a, self.d, self.scales_a):
            if at:
                self.gpu.free(at)


class Kernel:
    def __init__(self, gpu, state, module, said):
        self.gpu, self.said, self.label = gpu, said, f"{state}: {said['label']}"
        self.kernel = gpu.kernel(module, said["name"])
        self.threads, self.most = gpu.most_threads(self.kernel), 0

    def shared(self, layer, split):
        said = self.said
        if not said.get("keeps_a"):
            return said["shared"]
        steps = -(-layer.k // 128)
        # A block's part of k has the most steps where they do not divide.
        return said["keeps_a"] + layer.m * (-(-steps // split) * 256 + 64)

    def serves(self, weights, m, n, k, split):
        said = self.said
        multiple = {"fp8": 16, "nvfp4": 32, "nvfp4-repacked": 128}[weights]
        return (said["weights"] == weights and k % multiple == 0 and n % 8 == 0 and said.get("least", 1) <= m <= said["tokens"] and split in said["splits"] and -(-k // 128) >= split * said["parts"] // 4)

    def launch(self, layer, split, in_chain):
        shared = self.shared(layer, split)
        if shared > self.most:
            self.gpu("cuFuncSetAttribute", self.kernel, MOST_SHARED, shared)
            self.most = shared
        problem = layer.problem(split, in_chain, self.said.get("early", 1))
        # Blocks of decoded weights share the 128 rows of a tile of block scales.
        rows = self.said["rows"]
        blocks = -(-layer.n // rows) if layer.is_fp8 else -(-layer.n // 128) * (128 // rows)
        self.gpu.launch(self.kernel, blocks * split, self.threads, split, shared, problem)


def numbers(text):
    return [int(x) for x in text.split(",")]


def kernels_of(state):
    own = state / "few-rows.json"
    return own if own.exists() else Path(__file__).with_suffix("").with_name("few-rows.json")


def images(state, name):
    return next((path for path in (state / f"{name}.cubin", state / f"{name}.ptx") if path.exists()), None)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare what kernels write, and time nothing")
    parser.add_argument("--rows", type=numbers, default=[1, 2, 8])
    parser.add_argument("--shapes", default="4096x7168,7168x2048,2112x7168")
    parser.add_argument("--splits", type=numbers, default=[1, 2, 4, 8])
    parser.add_argument("--layers", type=int, help="in the place of as many as pass the cache")
    parser.add_argument("states", nargs="+", type=Path, metavar="STATE")
    options = parser.parse_args()
    for state in options.states:
        named = [image["image"] for image in json.loads(kernels_of(state).read_text())]
        if not any(images(state, image) for image in named):
            parser.error(f"{state}: holds none of {', '.join(named)} as .cubin or .ptx; compile them, as is said above")
    gpu, kernels = Gpu(), []
    for state in options.states:
        found = [(images(state, image["image"]), image["kernels"]) for image in json.loads(kernels_of(state).read_text())]
        kernels += [Kernel(gpu, state.name, gpu.module(path), said) for path, all_said in found if path for said in all_said]
    pool = some_bytes(16 << 20 if not options.check else 1 << 16, NO_NAN)
    weights = list(dict.fromkeys(kernel.said["weights"] for kernel in kernels))
    if not options.check:
        print("| m x n x k | weights | kernel, split | shared memory | outside | in a chain |\n|---|---|---|---|---|---|")
    compared = 0
    for n, k in (numbers(shape.replace("x", ",")) for shape in options.shapes.split(",")):
        for m in options.rows:
            for of in weights:
                ways = [(kernel, split) for kernel in kernels for split in options.splits if kernel.serves(of, m, n, k, split)]
                compared += case(gpu, options, pool, of, (m, n, k), ways)
    if not compared:
        sys.exit("no two kernels add in the same order: nothing was compared")
    print(f"\n{compared} times the same bits as the first kernel of the same order of sums", file=sys.stderr)


def case(gpu, options, pool, weights, shape, ways):
    m, n, k = shape
    probe = Layer(gpu, weights, m, n, k, pool)
    ways = [(kernel, split) for kernel, split in ways if kernel.shared(probe, split) <= GPU_SHARED]
    first, compared = {}, 0
    for kernel, split in ways:
        for in_chain in (False, True):
            gpu.write(probe.d, b"\xff" * (2 * m * n))
            kernel.launch(probe, split, in_chain)
            got = gpu.read(probe.d, 2 * m * n)
            order = kernel.said["parts"], split
            if not any(got) or 0xFFFF in memoryview(got).cast("H"):
                sys.exit(f"{kernel.label}, {split}, {shape}: D is not all written, or zero")
            if first.setdefault(order, got) != got:
                sys.exit(f"{kernel.label}, {split}, {shape}: other bits than the first kernel of {order[0]} parts a block")
            compared += got is not first[order]
    if options.check:
        probe.free()
        return compared
    sets = options.layers or max(4, min(64, SETS_BYTES // probe.code_bytes + 1))
    layers = [probe] + [Layer(gpu, weights, m, n, k, pool) for _ in range(sets - 1)]
    many = max(sets, 64 if probe.code_bytes < 100 << 20 else 16)
    graphs = {}
    for kernel, split in ways:
        for in_chain in (False, True):
            calls = [lambda layer=layers[i % sets]: kernel.launch(layer, split, in_chain) for i in range(many)]
            graphs[kernel, split, in_chain] = gpu.graph(calls)
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
        plain, chained = (min(medians[kernel, split, in_chain]) for in_chain in (False, True))
        print(f"| {m} x {n} x {k} | {weights} | {kernel.label}, {split} | {kernel.shared(probe, split)} | {plain:.2f} | {chained:.2f} |", flush=True)
    for graph in graphs.values():
        gpu("cuGraphExecDestroy", graph)
    for layer in layers:
        layer.free()
    return compared


if __name__ == "__main__":
    main()
