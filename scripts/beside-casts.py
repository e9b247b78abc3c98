#!/usr/bin/env python3
"""Casts and producers beside TileKernels, torchao and PyTorch's copy, in turns: each row of `benches/cast.rs` that another library has, too, at the shapes that targets are set for.

  scripts/beside-casts.py BENCH [--seconds S] [--casts WORD,...] [--shapes RxC,...] [--rounds R] [--tile-kernels-1 FOLDER] > record
  scripts/beside-casts.py --summary RECORD
  scripts/beside-casts.py --list

BENCH is the executable of `cargo bench --bench beside_casts`, a process of its own that works only when it is asked to; this process has the others. torch must be importable; without another
package a line says so and the rest goes on. TileKernels 1.0, which has what 2.x dropped, is taken of --tile-kernels-1, a folder with its `tile_kernels`. What TileKernels compiles is compiled before
anything is timed, in 16 processes. TransformerEngine has no part: its wheel has 276 MB.

The sides of each row, all on cold operands, rotated past the L2 cache, results too, in captured graphs: `copy` (PyTorch's, of the BF16 matrix), `tilekernels`, `tilekernels-1` (where 2.x has none, and
gradients), `torchao`, and `ours`. They take turns for R rounds, every other round in the reverse order, and the median of a side's rounds counts. A turn is timed as in beside-deepgemm.py, with pauses
and sustained, after 15 and 25 ms of untimed launches: casts are bound by memory. What another side writes is compared with what is to be written, once. A line has the sides' times, ours as a share
of each peer's, the rates as a share of the copy's in these turns, for the bytes that ours reads and writes, and each turn.

After S seconds, compiling included, no new row begins. Tables end the record, and are made again by --summary. The exit code is 1 where a side failed, 2 where nothing could begin."""

import argparse, importlib, math, re, sys, time

import beside_turns
from beside_casts_peers import Copy, Inputs, TileKernels, TileKernels1, TorchAo, row_of
from beside_turns import Timing, calls_of, check_turns, clocks, medians, microseconds, numbers_of, rounds_of, words_of

E4M3, E2M1 = [
    *(f"1x{columns} row-major" for columns in (16, 32, 64, 128)), *(f"1x{columns} {order}" for columns in (32, 128) for order in ("column-major", "ue8m0")),
    "row row-major", "32x32 row-major", "32x128 row-major", "128x32 row-major", "128x128 row-major",
    *(f"{rows}x1 row-major{order}" for rows in (32, 128) for order in ("", " transposed")),
], [
    *(f"1x{columns} row-major" for columns in (16, 32, 64, 128)), *(f"1x{columns} {order}" for columns in (32, 128) for order in ("column-major", "ue8m0")),
    "row row-major", "32x32 row-major", "128x128 row-major",
]
CASTS = [
    "copy", *(f"e4m3 {words}" for words in E4M3), *(f"e2m1 {words}" for words in E2M1),
    *(f"e4m3 1x128 row-major to {to} row-major" for to in ("e4m3 1x32", "e4m3 32x1", "e4m3 128x1", "e2m1 1x16", "e2m1 1x32", "e2m1 1x128")),
    "e2m1 1x32 row-major to e4m3 1x128 row-major", "e4m3 1x128 row-major back to bf16", "e2m1 1x32 row-major back to bf16", "e2m1 1x32 ue8m0 to e4m3 1x128 ue8m0, lossless",
]
PRODUCERS = [
    *(f"swiglu to e4m3 {words}" for words in ("1x128 row-major", "1x128 column-major", "1x128 ue8m0", "1x32 ue8m0", "128x1 row-major", "128x1 row-major transposed")),
    *(f"swiglu backward of codes to e4m3 1x128 {order} and BF16" for order in ("row-major", "column-major")), "norm with residual to e4m3 1x32 row-major",
]
SHAPES = [(16384, 6144), (4096, 7168), (128, 7168)]
# Hidden sizes of producers, whose SwiGLU reads twice as many columns.
PRODUCED = [(16384, 7168), (4096, 7168), (128, 7168)]
TIMINGS = [Timing("pauses", 4, 7, 15), Timing("sustained", 12, 9, 25)]
# What a GPU reads and writes in a microsecond, at the most.
BYTES_A_US = 4.8e6
OURS = "ours"


def problems_of(words, shapes):
    """(label, rows, columns), casts first, those of a shape together; `words` are looked for in labels."""
    wanted = lambda label: not words or any(word in label for word in words)
    return [(label, *shape) for labels, all_shapes in ((CASTS, shapes or SHAPES), (PRODUCERS, shapes or PRODUCED)) for shape in all_shapes for label in labels if wanted(label)]


def peers_of(folder):
    inputs = Inputs()
    return [Copy(Inputs()), TileKernels(inputs), TileKernels1(inputs, folder), TorchAo(inputs)]


def prewarm(part, problems, peers):
    """Every kernel of TileKernels of this part: one call each. Says what fails, and whether anything did."""
    import torch
    # A kernel is of its columns, and of more than 4096 rows or not: no more are needed.
    tasks = list(dict.fromkeys((label, 4224 if rows > 4096 else 128, cols) for label, rows, cols in problems))
    failed = False
    peers = [peer for peer in peers if isinstance(peer, TileKernels)]
    for peer in list(peers):
        try:
            peer.load()
        except Exception:
            peers.remove(peer)  # as the one that measures says
    for label, rows, cols in tasks[part::beside_turns.WORKERS]:
        for peer in peers:
            try:
                peer.problem(row_of(label), rows, cols, 1)
                torch.cuda.synchronize()
            except Exception as failure:
                failed = True
                print(f"{peer.name} {label}: {words_of(failure)}", file=sys.stderr)
    return 1 if failed else 0


def line_of(problem, timing, bytes_, turns, notes, clock):
    """The line of the record. `read` reads its beginning."""
    label, rows, cols = problem
    median = medians(turns)
    times = ", ".join(f"{side} {us:.2f}" for side, us in median.items())
    ratios = ", ".join(f"ours / {side} {median[OURS] / us:.3f}" for side, us in median.items() if side not in (OURS, "copy"))
    rates = ", ".join(f"{side} {share:.3f}" for side, share in shares(median, rows, cols, bytes_).items())
    cells = [label, f"{rows} x {cols}", timing.cadence, times, f"{bytes_} bytes", ratios or "nobody beside it", rates or "no copy", microseconds(turns), clocks(turns, [OURS], clock), "; ".join(notes)]
    return f"| {' | '.join(map(str, cells))} |"


def shares(times, rows, cols, bytes_):
    """Of the copy's rate."""
    roof = 4 * rows * cols / times["copy"] if "copy" in times else None
    return {side: bytes_ / us / roof for side, us in times.items() if side != "copy"} if roof else {}


def measure(problem, bench, peers, clock, rounds, say):
    """Lines of one row; whether all sides were there."""
    label, rows, cols = problem
    sets, bytes_, _ = bench.ready(f"cast {rows} {cols} {label}")
    bytes_ = int(bytes_)
    there, notes, lost = {}, [], set()

    def lose(name, failure):
        lost.add(name)
        say(f"# {name} {problem}: {words_of(failure)}")

    for peer in peers:
        try:
            note = peer.problem(row_of(label), rows, cols, sets)
        except Exception as failure:
            lose(peer.name, failure)
            continue
        if note is not None:
            notes.append(note)
            there.update({side: peer for side in peer.sides})
    for timing in TIMINGS:
        calls = calls_of(max(bytes_ / BYTES_A_US, 1), sets, timing)
        ours = {OURS: lambda: bench.time([0], calls, timing)[0]}
        others = {side: lambda side=side, peer=peer: peer.time(side, calls, timing) for side, peer in there.items() if side not in lost}
        turns = rounds_of(ours, others, rounds, lose)
        say(line_of(problem, timing, bytes_, turns, notes or ["no peers"], clock))
    return not lost


def read(lines):
    """{((label, rows, columns), cadence): ({side: microseconds}, bytes)}."""
    times = {}
    for line in lines:
        found = re.match(r"\| ([^|]+) \| (\d+) x (\d+) \| (pauses|sustained) \| ([^|]+) \| (\d+) bytes \|", line)
        if found:
            sides = (side.rsplit(" ", 1) for side in found[5].split(", "))
            times[(found[1], int(found[2]), int(found[3])), found[4]] = {side: float(us) for side, us in sides}, int(found[6])
    return times


def summary(lines, say=print):
    """A table of each shape and cadence, and geometric means."""
    sections, ratios = {}, {}
    for ((label, rows, cols), cadence), (times, bytes_) in read(lines).items():
        sections.setdefault((rows, cols, cadence), []).append((label, times, bytes_))
        for side, us in times.items():
            if side not in (OURS, "copy") and OURS in times:
                ratios.setdefault((rows, cadence, side), []).append((times[OURS] / us, label))
    for (rows, cols, cadence), found in sections.items():
        sides = [side for side in ("tilekernels", "tilekernels-1", "torchao") if any(side in times for _, times, _ in found)]
        say(f"\n## {rows} x {cols}, {cadence}: us (share of the copy rate in these turns)\n| row | copy | ours | {''.join(f'{side} | ' for side in sides)}ours / the fastest |\n|{'---|' * (4 + len(sides))}")
        for label, times, bytes_ in found:
            share = shares(times, rows, cols, bytes_)
            cell = lambda side: f"{times[side]:.2f}" + (f" ({share[side]:.3f})" if side in share else "") if side in times else ""
            peers = [times[side] for side in sides if side in times]
            fastest = f"{times[OURS] / min(peers):.3f}" if peers and OURS in times else ""
            say(f"| {' | '.join([label, cell('copy'), cell(OURS), *map(cell, sides), fastest])} |")
    say("\n## Our time by a peer's: geometric means\n| rows | cadence | peer | casts | mean | least, at | most, at |\n|---|---|---|---|---|---|---|")
    for (rows, cadence, side), found in ratios.items():
        mean = math.exp(sum(math.log(ratio) for ratio, _ in found) / len(found))
        at = lambda one: f"{one[0]:.3f}, {one[1]}"
        say(f"| {rows} | {cadence} | {side} | {len(found)} | {mean:.3f} | {at(min(found))} | {at(max(found))} |")


def loaded(peers, say):
    """Those that can be there, and whether those are all."""
    there = []
    for peer in peers:
        try:
            say(f"# {peer.load()}")
            there.append(peer)
        except Exception as failure:
            say(f"# {peer.name} has no turns: {words_of(failure)}")
    say("# TransformerEngine has no turns: its wheel (transformer_engine_cu13 2.20.2) has 276.5 MB")
    return there, len(there) == len(peers)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", nargs="?", metavar="BENCH", help="the executable of `cargo bench --bench beside_casts`")
    parser.add_argument("--seconds", type=float, default=200, metavar="S", help="after so many no new row begins (200)")
    parser.add_argument("--casts", metavar="WORD,...", help="rows with one of these words alone, as `swiglu,lossless`")
    parser.add_argument("--shapes", metavar="RxC,...", help="these rows and columns in the place of 16384x6144 (producers: 16384x7168), 4096x7168 and 128x7168")
    parser.add_argument("--rounds", type=int, default=2, metavar="R", help="turns of each side (2)")
    parser.add_argument("--tile-kernels-1", metavar="FOLDER", help="where TileKernels 1.0 is")
    parser.add_argument("--prewarm", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--list", action="store_true", help="print the rows, and measure nothing")
    parser.add_argument("--summary", metavar="RECORD", help="print the tables of this record, and measure nothing")
    args = parser.parse_args()
    if args.summary is not None:
        return beside_turns.summary_of(parser, args.summary, read, summary)
    shapes = numbers_of(parser, "--shapes", args.shapes, "[1-9][0-9]*x[1-9][0-9]*", "RxC, as 4096x7168")
    problems = problems_of(args.casts.split(",") if args.casts is not None else None, shapes)
    if args.casts is not None:
        # An empty word would be in every row.
        wrong = [word for word in args.casts.split(",") if not word or not problems_of([word], shapes)]
        if wrong:
            parser.error(f"--casts: {wrong[0]!r} is in no row; --list prints them")
    if args.list:
        print("\n".join(f"{rows} x {cols}: {label}" for label, rows, cols in problems))
        return 0
    if args.prewarm is not None:
        return prewarm(args.prewarm, problems, peers_of(args.tile_kernels_1))
    if not args.bench:
        parser.error("give BENCH, --summary RECORD or --list")
    check_turns(parser, args, "beside_casts")
    begin = time.time()
    try:
        importlib.import_module("torch")
    except Exception as error:
        parser.error(f"torch cannot be imported: {words_of(error)}; install it, or take a python that has it")
    passed = [word for option, value in (("--casts", args.casts), ("--shapes", args.shapes), ("--tile-kernels-1", args.tile_kernels_1)) if value for word in (option, value)]
    # 1.0 first: it leaves no module of its name behind.
    load = lambda say: loaded(peers_of(args.tile_kernels_1), say)
    return beside_turns.record(args, begin, (__file__, passed), load, measure, problems, summary)


if __name__ == "__main__":
    sys.exit(beside_turns.said(main))
