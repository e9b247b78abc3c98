#!/usr/bin/env python3
"""Times kernels of casts, compiled from several states of kernels/, in turns in one run, and compares their bytes.

Each state is a folder with three images, as nvcc makes them in its kernels/ with the flags of build.rs:

    for f in cast/cast_rows cast/cast_tile fused/produced; do
        nvcc -std=c++17 --fmad=false --ftz=false --prec-div=true -I. -arch=sm_90a -cubin -o STATE/$(basename $f).cubin $f.cu
    done
    python3 casts-in-turns.py STATE...

Needs an NVIDIA GPU of the images' kind, and PyTorch. The structs are those of src/gpu/kernels/cast_args.rs as it is: images of a state with other
structs would read wrong memory. A differing byte is an error. Operands are four sets; small ones stay in the L2 cache, so only columns compare.
"""
import ctypes
import statistics
import struct
import sys
from pathlib import Path

import torch

E4M3, E2M1 = 0, 2  # kernels/base/codec.cuh
ROW_MAJOR, COLUMN_MAJOR, UE8M0 = 0, 1, 2  # kernels/cast/cast.cuh
SWIGLU, SILU, GELU = 0, 1, 2  # kernels/fused/produced.cuh
SETS, CALLS, GRAPHS, ROUNDS = 4, 24, 6, 7
LAUNCH_OVERLAP = 6  # CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION

driver = ctypes.CDLL("libcuda.so.1")


class Attribute(ctypes.Structure):
    _fields_ = [("id", ctypes.c_int), ("pad", ctypes.c_int), ("value", ctypes.c_byte * 64)]


class Config(ctypes.Structure):
    _fields_ = [("grid", ctypes.c_uint * 3), ("block", ctypes.c_uint * 3), ("shared", ctypes.c_uint),
                ("stream", ctypes.c_void_p), ("attributes", ctypes.POINTER(Attribute)), ("number", ctypes.c_uint)]


def check(status, what):
    if status:
        sys.exit(f"{what}: CUDA error {status}")


def load(state, image):
    module = ctypes.c_void_p()
    check(driver.cuModuleLoad(ctypes.byref(module), str(Path(state, f"{image}.cubin")).encode()), f"{state}/{image}.cubin")
    return module


def function(module, name):
    found = ctypes.c_void_p()
    check(driver.cuModuleGetFunction(ctypes.byref(found), module, name.encode()), name)
    return found


def launch(kernel, grid, threads, arguments, stream):
    attribute = Attribute(id=LAUNCH_OVERLAP)
    attribute.value[0] = 1
    config = Config(grid=grid, block=(threads, 1, 1), stream=stream, attributes=ctypes.pointer(attribute), number=1)
    buffers = [ctypes.create_string_buffer(argument, len(argument)) for argument in arguments]
    pointers = (ctypes.c_void_p * len(buffers))(*[ctypes.cast(buffer, ctypes.c_void_p) for buffer in buffers])
    check(driver.cuLaunchKernelEx(ctypes.byref(config), kernel, pointers, None), "launch")


# Mirrors of CastGrid, CastSource with its Producer, CastRule and CastOut.
def cast_grid(rows, cols, row_shift, col_shift, order):
    return struct.pack("<5I", rows, cols, row_shift, col_shift, order)


def cast_source(x, scales, stride, rows, cols, groups, kind):
    grid = cast_grid(rows, groups, 0, 7, ROW_MAJOR) if scales else bytes(20)
    steps = [4 * groups, 4 * groups, 4] if scales else [0, 0, 0]
    head = struct.pack("<4Q2I", x, scales, 0, stride, rows, cols)
    return head + grid + bytes(4) + struct.pack("<3Q", *steps) + struct.pack("<4Q4I", 0, 0, 0, 0, kind, 0, 0, 0)


def cast_rule(code_format, order):
    return struct.pack("<fII", 1e-4, order == UE8M0, code_format)


def cast_out(codes, scales, grid, transposed):
    return struct.pack("<2Q", codes, scales) + grid + struct.pack("<3I", 0, transposed, 0)


def line(rows, cols, elements):
    """A block for each row of at most 8192 columns, so many elements a thread."""
    parts = -(-cols // 8192)
    threads = -(-cols // (elements * parts))
    return (rows, parts, 1), -(-threads // 32) * 32


def square(rows, cols):
    return (-(-rows // 8), -(-cols // 1024), 1), 256


def tiles(rows, cols):
    return (-(-rows // 128) * -(-cols // 128), 1, 1), 256


def case(states, label, image, kernel, rows, cols, code_format, shift, order, shape, coded=False, kind=None, channel=False, transposed=False):
    """Groups of 2^shift columns, or of a channel's rows."""
    gated = kind == SWIGLU
    width = cols * 2 if gated else cols
    inputs, scales, codes, out_scales = [], [], [], []
    for _ in range(SETS):
        if coded:
            numbers = torch.randn(rows, cols, device="cuda").mul_(100).clamp_(-448, 448)
            inputs.append(numbers.to(torch.float8_e4m3fn).view(torch.uint8))
            scales.append(torch.rand(rows, cols // 128, device="cuda") + 0.01)
        else:
            inputs.append(torch.randn(rows, width, device="cuda", dtype=torch.bfloat16))
        codes.append(torch.empty(rows * cols, device="cuda", dtype=torch.uint8))
        out_scales.append(torch.empty(rows * cols // 4 + 4096, device="cuda", dtype=torch.uint8))
    stream, graphs, bytes_of = torch.cuda.Stream(), {}, {}
    for state, images in states.items():
        found = function(images[image], kernel)

        def call(i):
            scale = scales[i].data_ptr() if coded else 0
            source = cast_source(inputs[i].data_ptr(), scale, width, rows, cols, cols // 128, kind or 0)
            grid = (rows >> shift, cols, shift, 0) if channel else (rows, cols >> shift, 0, shift)
            out = cast_out(codes[i].data_ptr(), out_scales[i].data_ptr(), cast_grid(*grid, order), transposed)
            sizes = [struct.pack("<I", rows), struct.pack("<I", cols)]
            launch(found, *shape, [source, *sizes, cast_rule(code_format, order), out], stream.cuda_stream)

        with torch.cuda.stream(stream):
            for buffer in codes + out_scales:
                buffer.zero_()
            call(0)
            torch.cuda.synchronize()
            bytes_of[state] = (codes[0].clone(), out_scales[0].clone())
            graphs[state] = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graphs[state], stream=stream):
                for k in range(CALLS):
                    call(k % SETS)
    first = next(iter(states))
    for state, (got, got_scales) in bytes_of.items():
        if not (torch.equal(got, bytes_of[first][0]) and torch.equal(got_scales, bytes_of[first][1])):
            sys.exit(f"{label}: the bytes of {state} are not those of {first}")
    if not bytes_of[first][0].any():
        sys.exit(f"{label}: all codes are zero")
    times = {state: [] for state in states}
    with torch.cuda.stream(stream):
        for _ in range(ROUNDS):
            for state in states:
                begin, end = torch.cuda.Event(True), torch.cuda.Event(True)
                graphs[state].replay()
                begin.record(stream)
                for _ in range(GRAPHS):
                    graphs[state].replay()
                end.record(stream)
                end.synchronize()
                times[state].append(begin.elapsed_time(end) * 1000 / (GRAPHS * CALLS))
    medians = [statistics.median(times[state]) for state in states]
    cells = " | ".join(f"{median:.2f} ({median / medians[0]:.3f})" for median in medians)
    print(f"| {label}, {rows} x {cols} | {cells} |", flush=True)


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    torch.zeros(1, device="cuda")
    states = {state: {image: load(state, image) for image in ("cast_rows", "cast_tile", "produced")} for state in sys.argv[1:]}
    print(f"{torch.cuda.get_device_name()}; microseconds, and of the first's\n\n| cast | {' | '.join(states)} |")
    print("|---|" + "---|" * len(states))
    for rows, cols in ((16384, 6144), (4096, 7168)):
        large = rows == 16384
        to_e2m1, elements = ("cast_groups_large_bf16", 64) if large else ("cast_groups_e2m1_bf16", 32)
        rows_of = lambda label, kernel, code_format, shift, elements, coded=False: case(
            states, label, "cast_rows", kernel, rows, cols, code_format, shift, ROW_MAJOR, line(rows, cols, elements), coded)
        rows_of("bf16 to e2m1 1x32", to_e2m1, E2M1, 5, elements)
        rows_of("bf16 to e2m1 1x128", to_e2m1, E2M1, 7, elements)
        rows_of("bf16 to e4m3 1x128", "cast_groups_e4m3_bf16", E4M3, 7, 32)
        rows_of("bf16 to e4m3 1x16", "cast_groups_e4m3_bf16", E4M3, 4, 32)
        for name, code_format in (("e2m1", E2M1), ("e4m3", E4M3)):
            case(states, f"bf16 to {name} 1x128 column-major", "cast_rows", "cast_groups_square_bf16", rows, cols,
                 code_format, 7, COLUMN_MAJOR, square(rows, cols))
        rows_of("e4m3 1x128 to e2m1 1x32", "cast_groups_e2m1_e4m3", E2M1, 5, 64, True)
        rows_of("e4m3 1x128 to e4m3 1x32", "cast_groups_e4m3_e4m3", E4M3, 5, 64, True)
        for source, coded in (("bf16", False), ("e4m3", True)):
            for name, code_format in (("e4m3", E4M3), ("e2m1", E2M1)):
                case(states, f"{source} to {name} 128x1", "cast_tile", f"cast_channel_{source}", rows, cols, code_format, 7, ROW_MAJOR,
                     tiles(rows, cols), coded, channel=True)
        case(states, "bf16 to e4m3 128x1 transposed", "cast_tile", "cast_channel_bf16", rows, cols, E4M3, 7, ROW_MAJOR, tiles(rows, cols),
             channel=True, transposed=True)
    for rows in (16384, 4096):
        for name, order in (("column-major", COLUMN_MAJOR), ("row-major", ROW_MAJOR)):
            case(states, f"swiglu to e4m3 1x128 {name}", "produced", "cast_groups_e4m3_bare_bf16", rows, 7168, E4M3, 7, order,
                 line(rows, 7168, 32), kind=SWIGLU)
        for name, kind in (("silu", SILU), ("gelu", GELU)):
            case(states, f"{name} to e4m3 1x128", "produced", "cast_groups_e4m3_single_bf16", rows, 7168, E4M3, 7, ROW_MAJOR,
                 line(rows, 7168, 32), kind=kind)
        case(states, "swiglu to e4m3 128x1", "produced", "cast_channel_bare_bf16", rows, 7168, E4M3, 7, ROW_MAJOR, tiles(rows, 7168),
             kind=SWIGLU, channel=True)


main()
