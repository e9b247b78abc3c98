#!/usr/bin/env python3
"""Times our products for Hopper to a plain D, compiled from several states of kernels/, in turns in one run; compares what they write, bit for bit.

Each state is a folder with an image, as nvcc makes it in its kernels/ with the flags of build.rs:

    nvcc -std=c++17 --fmad=false --ftz=false --prec-div=true -I. -arch=sm_90a -cubin -o STATE/sm90_plain.cubin gemm/sm90_plain.cu
    python3 sm90-in-turns.py PROBLEMS STATE... [--kernels plain|vector|vector_fp32|outer_plain] [--settled SECONDS] [--rounds R] [--deepgemm]

(Of --kernels X the image is sm90_X.cubin, of gemm/sm90_X.cu.)

PROBLEMS: MxNxK:CONFIG+CONFIG..., separated by commas, as 512x4096x7168:128x128+128x160-k2; k is a multiple of 128. The configurations are those of kernels/gemm/sm90_table.cuh of the folder above the script. --kernels names the image and its
kernels: sm90_plain (1x128 x 128x128), sm90_vector (1x128 x 1x128), sm90_vector_fp32 (the same to an FP32 D) or sm90_outer_plain (scales of rows); D is BF16 but there. Needs an H100 or H200 and PyTorch, --deepgemm, beside `plain` alone, DeepGEMM too. What the launch is given is as src/gpu/kernels/sm90.rs has it: images of a state with other structs or maps would read wrong memory.

Microseconds with pauses, the median of R rounds (5) of which every other one is backwards, and the share of the first state's time; with --settled also back to back after so many seconds, twice, with millijoules of a call, the mean
power and the clock by NVML. The order of sums is the same in all configurations that do not divide k, and in those that divide it alike: a D that differs from the first of these is an error.
"""
import argparse
import ctypes
import re
import statistics
import struct
import sys
import time
from pathlib import Path

from image_turns import check, driver, function, launch, load, torch

from beside_peers import DeepGemm, weight
from beside_turns import Timing, calls_of, time_of

L2, SMS = 60 << 20, 132
ALL_OF_ONE, HALF = 232448, 115712  # bytes of dynamic shared memory: of a multiprocessor's one block, of each of two
UINT8, BFLOAT16 = 0, 9
SWIZZLED, L2_256 = 3, 3
MAX_DYNAMIC_SHARED = 8  # CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
GRAPHS, TWICE = 8, 2

up = lambda a, b: -(-a // b)


def configs():
    """Of the table: {name: (rows, columns, threads, sharers of A, boxes, residents, parts of k)}."""
    table = (Path(__file__).resolve().parent.parent / "kernels/gemm/sm90_table.cuh").read_text()
    found = {}
    for row in re.findall(r"^SM90\w*\((.*)\)$", table, re.MULTILINE):
        name, rows, cols, groups, share, _, _, _, _, store, residents, _, *split = (cell.strip() for cell in row.split(","))
        found[name.replace("_", "-")] = int(rows), int(cols), 128 * (int(groups) + 1), 1 + (share == "SHARE_A"), store == "STORE_BOXES", int(residents), int(split[0]) if split else 1
    return found


def tensor_map(tensor, element, size, rows, cols, box_rows, box_cols):
    """128 bytes."""
    raw = (ctypes.c_uint64 * 24)()
    at = ctypes.addressof(raw)
    at += -at % 64
    numbers = lambda kind, *values: (kind * len(values))(*values)
    check(driver.cuTensorMapEncodeTiled(ctypes.c_void_p(at), element, 2, ctypes.c_void_p(tensor.data_ptr()), numbers(ctypes.c_uint64, cols, rows), numbers(ctypes.c_uint64, cols * size),
                                        numbers(ctypes.c_uint32, box_cols, box_rows), numbers(ctypes.c_uint32, 1, 1), 0, SWIZZLED, L2_256, 0), "tensor map")
    return ctypes.string_at(at, 128)


class Operands:
    """Sets of A, B and D of one problem, which exceed the L2 cache three times."""

    def __init__(self, kernels, m, n, k):
        self.m, self.n, self.k = m, n, k
        self.sets = max(2, 3 * L2 // (m * k + n * k + 2 * m * n) + 1)
        of_a = self.rows if kernels == "outer_plain" else self.groups
        of_b = self.tiles if kernels == "plain" else of_a
        d_type = torch.float32 if kernels == "vector_fp32" else torch.bfloat16
        self.a, self.b, self.d = ([make() for _ in range(self.sets)] for make in (lambda: of_a(m), lambda: of_b(n), lambda: torch.zeros(m, n, device="cuda", dtype=d_type)))

    def groups(self, rows):
        """1x128, with scales as vec128."""
        x = torch.randn(rows, self.k, device="cuda", dtype=torch.bfloat16)
        groups = x.view(rows, -1, 128).float()
        scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448
        scales = torch.zeros(self.k // 128, up(rows, 4) * 4, device="cuda")
        scales[:, :rows] = scale.squeeze(-1).t()
        return (groups / scale).to(torch.float8_e4m3fn).view(rows, self.k), scales

    def rows(self, rows):
        """A scale for each row, in a row."""
        x = torch.randn(rows, self.k, device="cuda", dtype=torch.bfloat16).float()
        scale = x.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448
        return (x / scale).to(torch.float8_e4m3fn), scale.view(1, rows).contiguous()

    def tiles(self, _):
        """128x128, with scales as blk128."""
        codes, scales = weight(self.n, self.k)
        padded = torch.zeros(scales.shape[0], up(scales.shape[1], 4) * 4, device="cuda")
        padded[:, : scales.shape[1]] = scales
        return codes, padded


class Product:
    """One kernel on the operands."""

    def __init__(self, kernel, config, o, kernels):
        rows, cols, self.threads, sharers, boxes, residents, split = config
        self.kernel, self.cluster, self.shared = kernel, sharers * split, HALF if residents > 1 else ALL_OF_ONE
        check(driver.cuFuncSetAttribute(kernel, MAX_DYNAMIC_SHARED, self.shared), "shared memory")
        tiles = up(o.m, rows) * up(o.n, cols * sharers) * self.cluster
        self.grid = tiles if split > 1 else min(SMS * residents // sharers * sharers, tiles)
        m, n, k = o.m, o.n, o.k
        self.arguments = []
        for (a, scales_a), (b, scales_b), d in zip(o.a, o.b, o.d):
            of_a = lambda box: tensor_map(a, UINT8, 1, m, k, box, 128)
            of_b = lambda box: tensor_map(b, UINT8, 1, n, k, box, 128)
            raster, d_type = 8 if rows >= 256 else 16, 2 if d.dtype == torch.float32 else 0
            edge_a, edge_b = m % (rows // sharers), n % cols
            maps = [of_a(rows // sharers), of_b(cols), tensor_map(d, BFLOAT16, 2, m, n, rows // (self.threads // 128 - 1), 64) if boxes and d_type == 0 else bytes(128),
                    of_a(edge_a) if edge_a else bytes(128), of_b(edge_b) if edge_b else bytes(128)]
            problem = struct.pack("<4I2Q2I4Q4I2f8I4Q6I", m, n, k, raster, scales_a.data_ptr(), scales_b.data_ptr(), scales_a.shape[1], scales_b.shape[1], d.data_ptr(), n, 0, 0, 0, 0, 0, up(n, 128), 1.0, 0.0,
                                  1, d_type, 0, 0, 0, *[int(kernels == "outer_plain")] * 2, n, 0, 0, 0, 0, *[0] * 6)
            self.arguments.append([*maps, problem])

    def call(self, i):
        launch(self.kernel, (self.grid, 1, 1), self.threads, self.arguments[i % len(self.arguments)], self.shared, self.cluster)


class Energy:
    """NVML's counters of the first GPU."""

    def __init__(self):
        self.library, self.device = ctypes.CDLL("libnvidia-ml.so.1"), ctypes.c_void_p()
        check(self.library.nvmlInit_v2(), "NVML")
        check(self.library.nvmlDeviceGetHandleByIndex_v2(0, ctypes.byref(self.device)), "NVML")

    def joules(self):
        number = ctypes.c_ulonglong()
        check(self.library.nvmlDeviceGetTotalEnergyConsumption(self.device, ctypes.byref(number)), "energy")
        return number.value / 1e3

    def mhz(self):
        number = ctypes.c_uint()
        check(self.library.nvmlDeviceGetClockInfo(self.device, 1, ctypes.byref(number)), "clock")
        return number.value


def settled(call, calls, seconds, energy):
    """Microseconds, millijoules, watts and the clock of the second half."""
    stream, graph = torch.cuda.Stream(), torch.cuda.CUDAGraph()
    with torch.cuda.stream(stream):
        call(0)
        torch.cuda.synchronize()
        graph.capture_begin()
        for i in range(calls):
            call(i)
        graph.capture_end()
        begin, first, seen = time.time(), None, []
        # At least one replay behind the first half, however long one takes.
        while time.time() - begin < seconds or not (first and seen):
            if first is None and time.time() - begin > seconds / 2:
                first, seen = (energy.joules(), time.time()), []
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(GRAPHS):
                graph.replay()
            end.record()
            end.synchronize()
            seen.append(start.elapsed_time(end) * 1e3 / (GRAPHS * calls))
        joules, passed = energy.joules() - first[0], time.time() - first[1]
    return statistics.median(seen), joules * 1e3 / (len(seen) * GRAPHS * calls), joules / passed, energy.mhz()


def products(o, states, names, table, kernels):
    """{side: call} of all that there are, with equal D."""
    sides, right = {}, {}
    for name in names:
        for state, image in states.items():
            kernel = function(image, f"gemm_fp8_{kernels}_{name.replace('-', '_')}")
            if kernel is None:
                print(f"{name} of {state}: no such kernel in the image", flush=True)
                continue
            product, parts = Product(kernel, table[name], o, kernels), table[name][-1]
            o.d[0].fill_(7)
            product.call(0)
            torch.cuda.synchronize()
            first, d = right.setdefault(parts, (f"{name} of {state}", o.d[0].clone()))
            if not torch.equal(d, o.d[0]):
                sys.exit(f"{o.m} x {o.n} x {o.k}: D of {name} of {state} is not that of {first}")
            sides[f"{name} {state}"] = product.call
    return sides


def measure(problem, states, table, args, energy):
    (m, n, k), names = problem
    o = Operands(args.kernels, m, n, k)
    sides = products(o, states, names, table, args.kernels)
    if not sides:
        return
    if args.deepgemm:
        peer = DeepGemm()
        peer.problem(m, n, k, o.sets)
        sides["deepgemm"] = peer.call
    shortest = max(2 * m * n * k / 2e9, (m * k + n * k + 2 * m * n) / 4.8e6, 4)
    timing, turns = Timing("pauses", 2, 7, 20), {side: [] for side in sides}
    for i in range(args.rounds):
        for side in list(sides)[:: 1 if i % 2 == 0 else -1]:
            turns[side].append(time_of(sides[side], calls_of(shortest, o.sets, timing), timing))
    us = {side: statistics.median(seen) for side, seen in turns.items()}
    for name in names:
        of = {state: us[f"{name} {state}"] for state in states if f"{name} {state}" in us}
        first = next(iter(of.values()), None)
        cells = [f"{of[state]:.2f} ({of[state] / first:.3f})" if state in of else "" for state in states]
        if args.deepgemm:
            cells.append(f"{us['deepgemm']:.2f}")
        print(f"| {m} x {n} x {k} | {name} | {' | '.join(cells)} |", flush=True)
    if args.settled:
        calls = calls_of(shortest / 4, o.sets, Timing("sustained", 12, 9, 0))
        settled(next(iter(sides.values())), calls, 0.4, energy)
        seen = {side: [] for side in sides}
        for i in range(TWICE):
            for side in list(sides)[:: 1 if i % 2 == 0 else -1]:
                seen[side].append(settled(sides[side], calls, args.settled, energy))
        for side, of in seen.items():
            print(f"{m} x {n} x {k}, {side}, back to back: " + "; ".join(f"{us:.2f} us, {mj:.2f} mJ, {watts:.0f} W, {mhz} MHz" for us, mj, watts, mhz in of), flush=True)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("problems")
    parser.add_argument("states", nargs="+")
    parser.add_argument("--kernels", choices=("plain", "vector", "vector_fp32", "outer_plain"), default="plain")
    parser.add_argument("--settled", type=float, default=0)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--deepgemm", action="store_true")
    args = parser.parse_args()
    if args.deepgemm and args.kernels != "plain":
        parser.error(f"--deepgemm: beside `plain` alone, not {args.kernels}")
    if args.rounds < 1 or not 0 <= args.settled < 3600:
        parser.error(f"--rounds {args.rounds}, --settled {args.settled}: 1 or more, and seconds from 0 to an hour")
    table, problems = configs(), []
    for word in args.problems.split(","):
        found = re.fullmatch(r"([1-9]\d*)x([1-9]\d*)x([1-9]\d*):(\S+)", word)
        names = found[4].split("+") if found else []
        if not found or int(found[3]) % 128 or int(found[2]) % 8 or any(name not in table for name in names):
            parser.error(f"{word!r} is not MxNxK:CONFIG+... with k a multiple of 128, n of 8, and configurations of {', '.join(table)}")
        # The body of the only loop over k of those that store boxes of 128 columns.
        short = [name for name in names if args.kernels == "plain" and int(found[3]) < 1024 and table[name][1] == 128 and table[name][4]]
        if short:
            parser.error(f"{word!r}: k of {' and '.join(short)} must be 1024 or more")
        problems.append((tuple(map(int, found.groups()[:3])), names))
    torch.zeros(1, device="cuda")  # the context that images are loaded into
    states = {}
    for state in args.states:
        states[state] = load(Path(state, f"sm90_{args.kernels}.cubin"))
        if states[state] is None:
            parser.error(f"{state} holds no sm90_{args.kernels}.cubin; compile it, as --help says")
    print(f"sm90_{args.kernels}: {torch.cuda.get_device_name()}; microseconds with pauses, and of the time of {args.states[0]}\n")
    print(f"| problem | configuration | {' | '.join(states)} |{' deepgemm |' if args.deepgemm else ''}\n|---|---|{'---|' * (len(states) + args.deepgemm)}")
    energy = Energy() if args.settled else None
    for problem in problems:
        measure(problem, states, table, args, energy)
        torch.cuda.empty_cache()


if __name__ == "__main__":
    main()
