"""Kernels of images in turns, for casts-in-turns.py, quantizers-in-turns.py and sm90-in-turns.py: what they are launched with, their operands, and how they are timed. Whoever imports this says its use first, by its docstring, where it is not
used as that says: PyTorch and the driver are not everywhere."""

import ctypes
import os
import statistics
import struct
import sys
from pathlib import Path

USE = sys.modules["__main__"].__doc__
if "-h" in sys.argv[1:] or "--help" in sys.argv[1:]:
    print(USE)
    sys.exit(0)
if len(sys.argv) < 3:
    print(USE, file=sys.stderr)
    sys.exit(2)

try:
    import torch

    driver = ctypes.CDLL("libcuda.so.1")
except (ImportError, OSError) as error:
    sys.exit(f"needs PyTorch and an NVIDIA GPU with its driver: {error}")

GRAPHS, ROUNDS = 5, 7
LAUNCH_OVERLAP = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION
LAUNCH_CLUSTER = 4  # CU_LAUNCH_ATTRIBUTE_CLUSTER_DIMENSION
L2 = 60 << 20
PROFILE = "PROFILE" in os.environ


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_byte * 64)]


class Config(ctypes.Structure):
    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
                ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(Attribute)), ("number", ctypes.c_uint)]


def check(status, what):
    if status:
        sys.exit(f"{what}: CUDA error {status}")


def load(path):
    if not Path(path).exists():
        return None
    module = ctypes.c_void_p()
    check(driver.cuModuleLoad(ctypes.byref(module), str(path).encode()), path)
    return module


def function(module, name):
    found = ctypes.c_void_p()
    return None if driver.cuModuleGetFunction(ctypes.byref(found), module, name.encode()) else found


def most_threads(kernel):
    number = ctypes.c_int()
    check(driver.cuFuncGetAttribute(ctypes.byref(number), 0, kernel), "attribute")
    return number.value


def launch(kernel, grid, threads, arguments, shared=0, cluster=1):
    """As src/gpu/kernels/launch.rs does: with the attribute of clusters where there are some alone, as with it blocks are placed otherwise."""
    attributes = (Attribute * 2)(Attribute(id=LAUNCH_OVERLAP), Attribute(id=LAUNCH_CLUSTER))
    attributes[0].value[0] = 1
    struct.pack_into("<3I", attributes[1].value, 0, cluster, 1, 1)
    config = Config(grid=grid, block=(threads, 1, 1), shared=shared, stream=torch.cuda.current_stream().cuda_stream,
                    attributes=attributes, number=1 + (cluster > 1))
    buffers = [ctypes.create_string_buffer(argument, len(argument)) for argument in arguments]
    pointers = (ctypes.c_void_p * len(buffers))(*[ctypes.cast(buffer, ctypes.c_void_p) for buffer in buffers])
    check(driver.cuLaunchKernelEx(ctypes.byref(config), kernel, pointers, None), "launch")


class Operands:
    """Sets of them, of one shape."""

    def __init__(self, rows, cols, source):
        self.rows, self.cols, self.source = rows, cols, source
        n = rows * cols
        self.sets = max(4, 3 * L2 // (2 * n) + 1)
        some = range(self.sets + 1)  # the last: what is compared, with what is rare among it, and not timed
        if source == "e2m1":
            self.x = [torch.randint(0, 256, (n // 2,), device="cuda", dtype=torch.uint8) for _ in some]
        else:
            width = 2 * cols if source == "gated" else cols
            self.x = [torch.randn(rows, width, device="cuda", dtype=torch.bfloat16) for _ in some]
            if source == "e4m3":
                self.x = [x.float().mul_(100).clamp_(-448, 448).to(torch.float8_e4m3fn).view(torch.uint8) for x in self.x]
            if source == "bf16" and rows > 8:
                for x in self.x[-1:]:  # ties, numbers near the ends of the range, zeros, infinity, NaN
                    x[1] = torch.arange(cols, device="cuda").remainder(97).sub(48).div(8)
                    x[2] *= 1e-38
                    x[3] *= 1e38
                    x[4] = 0
                    x[5, ::2] = -0.0
                    x[6, 77], x[7, 5] = float("inf"), float("nan")
            if source == "gated":  # far from zero, NaN, infinities
                self.x[-1][5] *= 60
                self.x[-1][6, 77], self.x[-1][7, 5], self.x[-1][8, 9 + cols] = float("nan"), float("inf"), float("-inf")
        self.scales = [torch.rand(n // 16, device="cuda") + 0.01 for _ in some]
        if source == "e4m3" and rows > 8:
            for x, scales in [(self.x[-1], self.scales[-1])]:  # all codes, NaN among them, codes that tie by scales that are powers of two, zeros, subnormals
                x[1] = torch.arange(cols, device="cuda").remainder(256)
                x[2] = torch.arange(cols, device="cuda").remainder(61).add(60)
                x[3] = 0
                x[4] = torch.arange(cols, device="cuda").remainder(9)
                scales[: 5 * cols // 128 : 2] = 0.25
                scales[n // 256 :: 64], scales[n // 256 + 1 :: 64] = 0.0, 1e-36
        if source == "e2m1" and rows > 8:  # scales that are zero, have a sign, and are too large for what is quick
            scales = self.scales[-1]
            scales[::61], scales[1::67], scales[2::997] = 0.0, 1e-36, 3e37
            scales[n // 64 :: 4001], scales[n // 48 :: 4001] = -0.5, float("inf")
        self.codes = [torch.empty(2 * n, device="cuda", dtype=torch.uint8) for _ in some]
        self.new_scales = [torch.empty(n // 4 + 4096, device="cuda", dtype=torch.uint8) for _ in some]


def timed(calls, sets):
    """Medians in microseconds of f(set) for each, in turns."""
    if PROFILE:
        for call in calls.values():
            call(0), call(1)
        return dict.fromkeys(calls, float("nan"))
    many = max(24, sets)
    stream, graphs, times = torch.cuda.Stream(), {}, {label: [] for label in calls}
    with torch.cuda.stream(stream):
        for label, call in calls.items():
            call(0)
            torch.cuda.synchronize()
            graphs[label] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[label], stream=stream):
                for i in range(many):
                    call(i % sets)
        for _ in range(ROUNDS):
            for label in calls:
                begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
                graphs[label].replay()
                begin.record(stream)
                for _ in range(GRAPHS):
                    graphs[label].replay()
                end.record(stream)
                end.synchronize()
                times[label].append(begin.elapsed_time(end) * 1000 / (GRAPHS * many))
    return {label: statistics.median(of) for label, of in times.items()}
