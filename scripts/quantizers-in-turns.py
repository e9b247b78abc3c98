#!/usr/bin/env python3
"""Times kernels of quantizers, compiled from several states of kernels/, in turns in one run, beside a copy of BF16; compares what they write.

Each state is a folder with images, as nvcc makes them in its kernels/ with the flags of build.rs, and copies are another:

    for f in cast/nvfp4 cast/mxfp4 cast/mxfp8 cast/fp8_group cast/fp8_row; do
        nvcc -std=c++17 --fmad=false --ftz=false --prec-div=true -I. -arch=sm_90a -cubin -o STATE/$(basename $f).cubin $f.cu
    done
    nvcc -std=c++17 -Ikernels -arch=sm_90a -cubin -o cast-copies.cubin scripts/cast-copies.cu
    python3 quantizers-in-turns.py cast-copies.cubin STATE[:COLUMNS]...

COLUMNS: those of a warp of MXFP4 along rows, 256 unless said; 128 in states before 2026-11-30. Needs an NVIDIA GPU of the images' kind, and PyTorch. The structs are those of src/gpu/kernels as they are: images of a
state with other structs would read wrong memory. What a state has no image of is left out; a state without any is refused. A differing byte is an error; MX are compared by all five rules and timed by the upward one. A share
is of the rate of the copy, of the bytes that the quantizer moves.
"""
import struct
import sys
from pathlib import Path

from image_turns import Operands, function, launch, load, timed, torch

FILES = ("nvfp4", "mxfp4", "mxfp8", "fp8_group", "fp8_row")
SHAPES = ((16384, 6144), (4096, 7168), (4096, 2048), (1024, 7168), (144, 7168))
UP, RULES = 0, 5  # MxScaleRule, as kernels/cast/mx.cuh has it

word = lambda number: struct.pack("<I", number)
wide = lambda number: struct.pack("<Q", number)
place = lambda tensor: wide(tensor.data_ptr())
tiles = lambda rows, cols: -(-rows // 128) * -(-cols // 128)


# Mirrors of Nvfp4Rule, MxRule and ScaleRule.
NVFP4 = struct.pack("<f7I2Q", 2688.0, *[0] * 9)
FP8 = struct.pack("<ffIII", 448.0, 3.4e38, 0, 0, 0)


def mx_rule(rule, to_e2m1):
    return struct.pack("<IIfiI", rule, *((2, 1 / 6, 2, 1 << 21) if to_e2m1 else (0, 1 / 448, 8, 1 << 19)))


class Matrix:
    """Sets of operands of one shape; the last has what is rare, and is compared and not timed."""

    def __init__(self, rows, cols):
        self.rows, self.cols, self.many = rows, cols, rows * cols
        o = Operands(rows, cols, "bf16")
        self.sets, self.x = o.sets, {"bf16": o.x, "f16": o.x, "f32": [x.float() for x in o.x[:4] + o.x[-1:]], "bf16_unaligned": o.x}
        self.written = [o.codes, o.new_scales, *([torch.empty_like(t) for t in of] for of in (o.codes, o.new_scales))]
        self.copied = o

    def head(self, i, dtype):
        x = self.x[dtype]
        return [place(x[i % len(x) if i >= 0 else -1]), wide(self.cols), word(self.rows), word(self.cols)]

    def out(self, i, both):
        codes, scales, codes_t, scales_t = (place(of[i]) for of in self.written)
        return (codes + scales if both else bytes(16)) + codes_t + scales_t


class Bench:
    def __init__(self, copies, states):
        self.copies, self.states, self.of_warp = copies, {}, {}
        for word in states:
            state, _, columns = word.partition(":")
            self.states[state] = {f: load(Path(state, f"{f}.cubin")) for f in FILES}
            self.of_warp[state] = int(columns or 256)
            if not any(self.states[state].values()):
                print(f"{state}: holds none of {', '.join(FILES)} as .cubin; compile them, as --help says", file=sys.stderr)
                sys.exit(2)
        print(f"{torch.cuda.get_device_name()}; microseconds, and of the rate of a copy of BF16\n")
        print(f"| quantizer | copy of BF16 | {' | '.join(self.states)} |\n|---|---|{'---|' * len(states)}")

    def case(self, label, m, image, name, moved, call, timed=True):
        """`call(launch, state, i)` launches for set i of the matrix."""
        calls, seen = {}, {}
        for state, images in self.states.items():
            kernel = images[image] and function(images[image], name)
            if not kernel:
                continue
            begin = lambda grid, threads, arguments, kernel=kernel: launch(kernel, grid, threads, arguments)
            calls[state] = lambda i, begin=begin, state=state: call(begin, state, i)
            for of in m.written:
                of[-1].zero_()
            calls[state](-1)
            torch.cuda.synchronize()
            seen[state] = [of[-1].clone() for of in m.written]
        first = next(iter(seen), None)
        for state, got in seen.items():
            if not all(map(torch.equal, got, seen[first])):
                sys.exit(f"{label}: the bytes of {state} are not those of {first}")
            if not any(of.any() for of in got):
                sys.exit(f"{label}: nothing was written")
        if not timed or not calls:
            return
        copies = {"copy": self.copies_of(m)}
        times = timed(copies | calls, m.sets)
        share = lambda us: f"{us:.2f} ({moved / us / (4 * m.many / times['copy']):.3f})"
        cells = [share(times[state]) if state in times else "" for state in self.states]
        print(f"| {label}, {m.rows} x {m.cols} | {times['copy']:.2f} | {' | '.join(cells)} |", flush=True)

    def copies_of(self, m):
        kernel, pieces, o = function(self.copies, "copy_16_16_1"), m.many // 8, m.copied
        return lambda i: launch(kernel, (-(-pieces // 256), 1, 1), 256, [place(o.x[i]), place(o.scales[i]), word(0), place(o.codes[i]), place(o.new_scales[i]), word(0), word(pieces)])


def nvfp4(bench, m):
    given, levels = torch.full((1,), 6.0, device="cuda"), torch.zeros(m.rows, device="cuda")
    moved = 2.5 * m.many + m.many / 16
    columns, down = max(1, -(-m.cols // 512)), -(-m.rows // 128)
    steps = min(8, max(1, columns * 16 * down // (132 * 5 * 3)))
    out = lambda i: [place(m.written[0][i]), place(m.written[1][i]), place(levels)]
    bench.case("nvfp4, given second level", m, "nvfp4", "quantize_nvfp4_plain_bf16", moved,
               lambda begin, _, i: begin((columns, 16 * -(-down // steps), 1), 256, [*m.head(i, "bf16"), NVFP4, place(given), word(0), *out(i)]))
    threads = max(64, -(-m.cols // 32 // 32) * 32)
    bench.case("nvfp4-row", m, "nvfp4", "quantize_nvfp4_row_plain_held_bf16", moved,
               lambda begin, _, i: begin((down * 32, 1, 1), threads, [*m.head(i, "bf16"), NVFP4, word(4), *out(i)]))


def mx(bench, m):
    for image, to_e2m1, of_code in (("mxfp4", True, 0.5), ("mxfp8", False, 1)):
        for rule in range(RULES):
            mirror, timed = mx_rule(rule, to_e2m1), rule == UP

            def rows(begin, state, i):
                of_warp = bench.of_warp[state] if to_e2m1 else 128
                begin((-(-(-(-m.rows // 128) * 32 * -(-m.cols // of_warp)) // 8), 1, 1), 256, [*m.head(i, "bf16"), mirror, place(m.written[0][i]), place(m.written[1][i])])

            bench.case(f"{image}, rows", m, image, f"quantize_{image}_bf16", (2 + of_code + 1 / 32) * m.many, rows, timed)
            for both, dtype in ((False, "bf16"), (True, "bf16"), (True, "f32"), (True, "bf16_unaligned"), (False, "f16")):
                moved = ((4 if dtype == "f32" else 2) + (1 + both) * (of_code + 1 / 32)) * m.many
                bench.case(f"{image}, {'both directions' if both else 'columns'}, {dtype}", m, image, f"quantize_{image}_tile_{dtype}", moved,
                           lambda begin, _, i, both=both, dtype=dtype: begin((tiles(m.rows, m.cols), 1, 1), 256, [*m.head(i, dtype), mirror, m.out(i, both)]), timed)


def fp8(bench, m):
    for grouping in ("1x128", "128x128"):
        bench.case(f"fp8-{grouping}, both directions", m, "fp8_group", f"quantize_fp8_{grouping}_transposed_bf16", 4 * m.many,
                   lambda begin, _, i: begin((tiles(m.rows, m.cols), 1, 1), 256, [*m.head(i, "bf16"), FP8, bytes(32), m.out(i, True)]))
    strips = -(-m.rows // 128) * -(-m.cols // 256)
    bench.case("amax of rows and columns", m, "fp8_row", "amax_row_column_bf16", 2 * m.many,
               lambda begin, _, i: begin((strips, 1, 1), 256, [*m.head(i, "bf16"), place(m.written[1][i]), place(m.written[3][i])]))


def main():
    torch.zeros(1, device="cuda")
    copies = load(sys.argv[1]) or sys.exit(f"no {sys.argv[1]}")
    bench = Bench(copies, sys.argv[2:])
    for shape in SHAPES:
        m = Matrix(*shape)
        for part in (nvfp4, mx, fp8):
            part(bench, m)


if __name__ == "__main__":
    main()
