#!/usr/bin/env python3
"""Times kernels of casts, compiled from several states of kernels/, in turns in one run, beside copies of the same bytes; compares what they write.

Each state is a folder with images, as nvcc makes them in its kernels/ with the flags of build.rs, and copies are another:

    for f in cast/cast_rows cast/cast_tile fused/produced; do
        nvcc -std=c++17 --fmad=false --ftz=false --prec-div=true -I. -arch=sm_90a -cubin -o STATE/$(basename $f).cubin $f.cu
    done
    nvcc -std=c++17 -Ikernels -arch=sm_90a -cubin -o cast-copies.cubin scripts/cast-copies.cu
    python3 casts-in-turns.py cast-copies.cubin STATE...

Needs an NVIDIA GPU of the images' kind, and PyTorch. The structs are those of src/gpu/kernels/cast_args.rs as it is: images of a state with other
structs would read wrong memory. Of a state whose blocks of tiles are numbered in one row, as they were before 2026-12 (it has no `cast_channel_wide_e4m3_e4m3`), so they are launched. Of each state the first kernel that it has is launched; without an image, its casts are left out. A differing byte is an
error. PROFILE=1 launches each kernel twice and times nothing, for ncu. Operands are sets that are together larger than the L2 cache. A share is of the rate of a copy of BF16, as
`bench cast` says it.
"""
import struct
import sys
from pathlib import Path

from image_turns import PROFILE, Operands, function, launch, load, most_threads, timed, torch

E4M3, E2M1 = 0, 2  # kernels/base/codec.cuh
BF16 = None  # cast back: of these there is the copy alone
ROW_MAJOR, COLUMN_MAJOR, UE8M0 = 0, 1, 2  # kernels/cast/cast.cuh
SWIGLU = 0  # kernels/fused/produced.cuh


# Mirrors of CastGrid, CastSource with its Producer, CastRule and CastOut.
def cast_grid(rows, cols, row_shift, col_shift, order):
    return struct.pack("<5I", rows, cols, row_shift, col_shift, order)


def cast_source(x, scales, stride, rows, cols, shift):
    groups = cols >> shift if scales else 0
    grid = cast_grid(rows, groups, 0, shift, ROW_MAJOR) if scales else bytes(20)
    steps = [4 * groups, 4 * groups, 4] if scales else [0, 0, 0]
    return struct.pack("<4Q2I", x, scales, 0, stride, rows, cols) + grid + bytes(4) + struct.pack("<3Q", *steps) + bytes(48)


def cast_rule(code_format, order):
    return struct.pack("<fII", 1e-4, order == UE8M0, code_format)


def cast_out(codes, scales, grid, transposed):
    return struct.pack("<2Q", codes, scales) + grid + struct.pack("<3I", 0, transposed, 0)


# Kernels with their grids and threads, of which a state has one; `flat`: all of the matrix as one row.
def line(kernel, rows, cols, elements, parts=None):
    parts = parts or -(-cols // 8192)
    threads = -(-cols // (elements * parts))
    return "cast_rows", kernel, (rows, parts, 1), -(-threads // 32) * 32, False


def few(kernel, rows, cols):
    return "cast_rows", kernel, (-(-rows // 4), -(-cols // 1024), 1), 256, False


def flat(kernel, rows, cols, elements):
    return "cast_rows", kernel, (-(-rows * cols // (128 * elements)), 1, 1), 128, True


def square(kernel, rows, cols, warps, across):
    right, down = -(-cols // (128 * warps)), -(-rows // 8)
    return "cast_rows", kernel, (right, down, 1) if across else (down, right, 1), 32 * warps, False


def tiles(kernel, rows, cols, threads=256):
    return "cast_tile", kernel, (-(-cols // 128), -(-rows // 128), 1), threads, False


class Bench:
    def __init__(self, copies, states):
        for state in states:
            if not Path(state).is_dir():
                sys.exit(f"{state}: no folder of images: make them as this script's use says (-h)")
        self.copies = copies
        # Blocks to the one whose tile kernels of cast_channel.cuh ask for.
        self.ahead = 2 * torch.cuda.get_device_properties(0).multi_processor_count
        self.states = {state: {image: load(Path(state, f"{image}.cubin")) for image in ("cast_rows", "cast_tile", "produced")} for state in states}
        self.in_one_row = {state for state, images in self.states.items() if images["cast_tile"] and not function(images["cast_tile"], "cast_channel_wide_e4m3_e4m3")}
        print(f"{torch.cuda.get_device_name()}; microseconds, and of the rate of a copy of BF16\n")
        print(f"| cast | copy of BF16 | copy of its bytes | {' | '.join(states)} |\n|---|---|---|{'---|' * len(states)}")

    def copy(self, operands, name, loads, threads, pieces, read=0, written=0):
        kernel = function(self.copies, f"{name}_{loads}")
        grid = (-(-pieces // (loads * threads)), 1, 1)

        def call(i):
            o = operands
            numbers = [struct.pack("<Q", o.x[i].data_ptr()), struct.pack("<Q", o.scales[i].data_ptr()), struct.pack("<I", read),
                       struct.pack("<Q", o.codes[i].data_ptr()), struct.pack("<Q", o.new_scales[i].data_ptr()), struct.pack("<I", written), struct.pack("<I", pieces)]
            launch(kernel, grid, threads, numbers)

        return call

    def case(self, label, operands, to, groups, kernels, copy, order=ROW_MAJOR, of_shift=7, transposed=False):
        """`groups`: log2 of rows and of columns of one. `copy`: name, elements of a piece, lanes of a scale that is read and written."""
        o, (row_shift, col_shift) = operands, groups
        rows, cols, n = o.rows, o.cols, o.rows * o.cols
        grid_rows, grid_cols = -(-rows >> row_shift), 1 if col_shift == 31 else cols >> col_shift
        name, elements, read, written = copy
        calls = {"bf16": self.copy(o, "copy_16_16", 1, 256, n // 8) if o.source in ("bf16", "gated") else None}
        shapes = ((1, 256), (2, 256), (2, 512), (4, 128))
        calls |= {f"copy {shape}": self.copy(o, name, *shape, n // elements, read, written) for shape in shapes}
        if transposed and to == E2M1:
            calls["copy transposed"] = self.copy_transposed(o)
        written_by = {}
        for state, images in self.states.items():
            found = ((of, function(images[of], kernel), *rest) for of, kernel, *rest in kernels if images[of])
            chosen = next((one for one in found if one[1]), None)
            if not chosen:
                continue
            of, kernel, grid, threads, is_flat = chosen
            if threads > most_threads(kernel):  # blocks per channel of 64 columns
                grid, threads = (-(-cols // 64), *grid[1:]), threads // 2
            # What these kernels take behind the parameters of all: rows and columns of tiles, or blocks.
            ahead = [self.ahead // grid[0], self.ahead % grid[0]]
            if state in self.in_one_row and of == "cast_tile":
                grid, ahead = (grid[0] * grid[1], 1, 1), [self.ahead]
            r, c, g = (1, n, (1, grid_rows * grid_cols)) if is_flat else (rows, cols, (grid_rows, grid_cols))

            def call(i, kernel=kernel, grid=grid, threads=threads, r=r, c=c, g=g, is_flat=is_flat, ahead=ahead):
                scales = o.scales[i].data_ptr() if o.source in ("e4m3", "e2m1") else 0
                source = cast_source(o.x[i].data_ptr(), scales, 0 if is_flat else 2 * cols if o.source == "gated" else cols, r, c, of_shift)
                out = cast_out(o.codes[i].data_ptr(), o.new_scales[i].data_ptr(), cast_grid(*g, row_shift, col_shift, order), transposed)
                launch(kernel, grid, threads, [source, struct.pack("<I", r), struct.pack("<I", c), cast_rule(to, order), out, *(struct.pack("<I", number) for number in ahead)])

            calls[state] = call
            o.codes[-1].zero_(), o.new_scales[-1].zero_()
            call(-1)
            torch.cuda.synchronize()
            written_by[state] = o.codes[-1].clone(), o.new_scales[-1].clone()
        for state, got in written_by.items():
            first = next(iter(written_by))
            if not all(map(torch.equal, got, written_by[first])):
                sys.exit(f"{label}: the bytes of {state} are not those of {first}")
            if not got[0].any():
                sys.exit(f"{label}: all codes are zero")
        if kernels and not written_by:
            return
        if calls["bf16"] is None:
            calls["bf16"] = self.bf16
        times = timed(calls, o.sets)
        size = {"bf16": 16, "gated": 32, "e4m3": 8, "e2m1": 4}[o.source] * n // 8 + {E2M1: n // 2, E4M3: n, BF16: 2 * n}[to]
        size += 0 if to == BF16 else grid_rows * grid_cols * (1 if order == UE8M0 else 4)
        size += 4 * (n >> of_shift) if o.source in ("e4m3", "e2m1") else 0
        share = lambda time: f"{time:.2f} ({size / time / (4 * n / times['bf16']):.3f})"
        best = min(times[k] for k in times if k.startswith("copy"))
        cells = [share(times[state]) if state in times else "" for state in self.states]
        print(f"| {label}, {rows} x {cols} | {times['bf16']:.2f} | {share(best)} | {' | '.join(cells)} |", flush=True)

    def copy_transposed(self, o):
        kernel = function(self.copies, "copy_transposed")
        return lambda i: launch(kernel, (o.rows * o.cols >> 14, 1, 1), 256, [struct.pack("<Q", o.x[i].data_ptr()), struct.pack("<Q", o.codes[i].data_ptr()),
                                                                              struct.pack("<I", o.rows), struct.pack("<I", o.cols)])


def plain(bench, rows, cols, small):
    o = Operands(rows, cols, "bf16")
    bench.bf16 = bench.copy(o, "copy_16_16", 1, 256, rows * cols // 8)
    for to, name, copy in ((E2M1, "e2m1", "copy_16_4"), (E4M3, "e4m3", "copy_16_8")):
        for shift in (4, 5, 7):
            kernels = [flat(f"cast_groups_flat_few_{name}_bf16", rows, cols, 8)] * (small and shift == 7)
            kernels += [few("cast_groups_few_bf16", rows, cols)] if small else []
            if to == E2M1:
                kernels += [flat("cast_groups_flat_bf16", rows, cols, 32)] + [line("cast_groups_large_bf16", rows, cols, 64)] * (rows * cols > 1 << 26)
            kernels.append(line(f"cast_groups_{name}_bf16", rows, cols, 32))
            bench.case(f"bf16 to {name} 1x{1 << shift}", o, to, (0, shift), kernels, (copy, 8, 0, 1 << shift >> 3))
        if small:
            continue
        old = square(f"cast_groups_square_{name}_bf16", rows, cols, 8, to == E4M3)
        for order, label in ((COLUMN_MAJOR, "by columns"), (UE8M0, "ue8m0")):
            for shift in (5, 7):
                kernels = [square("cast_groups_wide_across_bf16", rows, cols, 4, True)] if to == E2M1 else []
                bench.case(f"bf16 to {name} 1x{1 << shift} {label}", o, to, (0, shift), [*kernels, old], (copy, 8, 0, (1 << shift >> 3) * (4 if order == UE8M0 else 1)), order)
        kernels = [line("cast_row_wide_bf16", rows, cols, 64)] if to == E2M1 else []
        bench.case(f"bf16 to {name} row", o, to, (0, 31), [*kernels, line("cast_row_4_bf16", rows, cols, 32)], (copy, 8, 0, 0))
        for label, kernel, groups in (("32x32", "tile", (5, 5)), ("128x128", "tile", (7, 7)), ("32x1", "channel", (5, 0)), ("128x1", "channel", (7, 0))):
            lanes = 1 << sum(groups) >> 3
            bench.case(f"bf16 to {name} {label}", o, to, groups, [tiles(f"cast_{kernel}_bf16", rows, cols)], (copy, 8, 0, lanes))
            if kernel == "channel":
                bench.case(f"bf16 to {name} {label} transposed", o, to, groups, [tiles("cast_channel_bf16", rows, cols)], (copy, 8, 0, lanes), transposed=True)
    return o


def coded(bench, rows, cols, small, back=True):
    operands = {source: Operands(rows, cols, source) for source in ("e4m3", "e2m1")}
    for source, to, name, groups, of_shift, copy in (
        ("e4m3", E2M1, "e2m1", (0, 5), 7, ("copy_16_8", 16, 8, 2)),
        ("e4m3", E2M1, "e2m1", (0, 6), 7, ("copy_16_8", 16, 8, 4)),
        ("e4m3", E2M1, "e2m1", (0, 7), 7, ("copy_16_8", 16, 8, 8)),
        ("e4m3", E4M3, "e4m3", (0, 5), 7, ("copy_16_16", 16, 8, 2)),
        ("e4m3", E4M3, "e4m3", (7, 0), 7, ("copy_16_16", 16, 8, 8)),
        ("e4m3", E4M3, "e4m3", (5, 0), 7, ("copy_16_16", 16, 8, 2)),
        ("e4m3", E2M1, "e2m1", (7, 0), 7, ("copy_16_8", 16, 8, 8)),
        ("e4m3", E2M1, "e2m1", (5, 0), 7, ("copy_16_8", 16, 8, 2)),
        ("e2m1", E4M3, "e4m3", (0, 7), 5, ("copy_8_16", 16, 2, 8)),
        ("e2m1", E4M3, "e4m3", (7, 0), 5, ("copy_8_16", 16, 2, 8)),
        ("e2m1", E4M3, "e4m3", (5, 0), 5, ("copy_8_16", 16, 2, 2)),
        ("e2m1", E2M1, "e2m1", (7, 0), 5, ("copy_8_8", 16, 2, 8)),
    ):
        o = operands[source]
        if groups[1] == 0:
            wide = [tiles(f"cast_channel_{kind}", rows, cols, threads) for kind, threads in ((f"wide_{source}_{name}", 128), (f"wide_{source}", 128), (f"few_{source}", 256))]
            kernels = [*wide[2 if small else 0:], tiles(f"cast_channel_{source}", rows, cols)]
            label = f"{1 << groups[0]}x1"
        else:
            old = few(f"cast_groups_few_{source}", rows, cols) if small else line(f"cast_groups_{name}_{source}", rows, cols, 64)
            kernels = [old] if small else [flat(f"cast_groups_flat_{name}_{source}", rows, cols, 64 if "e2m1" in (source, name) else 32), old]
            if not small and (source, to) == ("e4m3", E2M1):
                kernels = [flat(f"cast_steps_{groups[1]}_e4m3", rows, cols, 64), *kernels]
            label = f"1x{1 << groups[1]}"
        bench.case(f"{source} 1x{1 << of_shift} to {name} {label}", o, to, groups, kernels, copy, of_shift=of_shift)
    if not back:
        return
    for source, of_shift, copy in (("e4m3", 7, ("copy_8_16", 8, 16, 0)), ("e2m1", 5, ("copy_4_16", 8, 4, 0))):
        bench.case(f"{source} 1x{1 << of_shift} back to bf16", Operands(rows, cols, source), BF16, (0, 7), [], copy, of_shift=of_shift)


def gated(bench, rows, cols):
    o = Operands(rows, cols, "gated")
    as_produced = lambda shape: ("produced", *shape[1:])
    kernels = [as_produced(line("cast_groups_e4m3_bare_bf16", rows, cols, 32))]
    bench.case("swiglu to e4m3 1x128 by columns", o, E4M3, (0, 7), kernels, ("copy_32_8", 8, 0, 16), COLUMN_MAJOR)


def main():
    torch.zeros(1, device="cuda")
    copies = load(sys.argv[1]) or sys.exit(f"no {sys.argv[1]}")
    bench = Bench(copies, sys.argv[2:])
    for rows, cols in ((4096, 7168),) if PROFILE else ((16384, 6144), (4096, 7168), (128, 7168)):
        small = rows == 128
        keep = plain(bench, rows, cols, small)  # the copy of BF16 that casts of codes are compared with is of these
        coded(bench, rows, cols, small)
        del keep
    for rows in () if PROFILE else (16384, 4096):
        gated(bench, rows, 7168)


if __name__ == "__main__":
    main()
