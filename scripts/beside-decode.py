#!/usr/bin/env python3
"""Products of few rows beside DeepGEMM and Humming, in turns: m from 1 to 64 with weights in fp8-128x128 and nvfp4, as planned, plain and in a chain, and a pure read of the weights.

  scripts/beside-decode.py BENCH [--seconds S] [--pairs AxB,...] [--shapes NxK,...] [--rows M,...] [--rounds R] > record
  scripts/beside-decode.py --summary RECORD

BENCH is the executable of `cargo bench --bench beside`, a process of its own that works only when it is asked to; this process has the others. torch must be importable; without deep_gemm or
humming, or nvcc, which the read needs (read-floor.cu), a line says so and the rest goes on. What the packages compile is compiled before anything is timed, in 16 processes.

The sides of each (m, n, k), all on cold weights, rotated past the L2 cache, in captured graphs:
- fp8-1x128 x fp8-128x128: `deepgemm` (fp8_gemm_nt) and `deepgemm pdl` (its launches overlap); bf16 x fp8-128x128 and bf16 x nvfp4: `humming` (its launches always overlap).
- ours: what is planned, by the name of its formulation; nvfp4 with codes as published and `repacked`. `chained`: as links of a chain (Handle::chain).
- `read` and `read chained`: a kernel that reads the bytes of the weights and nothing else, with the blocks that were fastest.
They take turns for R rounds, every other round in the reverse order, and the median of a side's rounds counts. A turn is timed as in beside-deepgemm.py, with pauses and sustained, after 15 and
25 ms of untimed launches: these products are bound by memory, not by power. A line has the sides' times, ours as a share of the fastest peer's, the read's as a share of ours, and each turn.

After S seconds, compiling included, no new problem begins. The summary ends the record, and is made again by --summary. The exit code is 1 where a side failed, 2 where nothing could begin."""

import argparse, importlib, math, os, re, sys, time

import beside_turns
from beside_floor import ReadFloor, library
from beside_peers import DeepGemm, Humming
from beside_turns import Timing, calls_of, check_turns, clocks, medians, microseconds, numbers_of, rounds_of, words_of

SHAPES = [(4096, 7168), (7168, 2048), (2112, 7168), (57344, 8192)]
ROWS = [1, 8, 16, 32, 64]
PAIRS = ["fp8-1x128 x fp8-128x128", "bf16 x nvfp4", "bf16 x fp8-128x128"]
TIMINGS = [Timing("pauses", 2, 7, 15), Timing("sustained", 12, 9, 25)]
# What a GPU reads in a microsecond, at the most.
BYTES_A_US = 4.8e6


def weight_bytes(pair, n, k):
    return n * k // 2 + n * k // 16 if pair.endswith("nvfp4") else n * k + -(-n // 128) * -(-k // 128) * 4


def peers_of(pair):
    """Those of other libraries, then the floor, with operands of this pair."""
    a, b = pair.split(" x ")
    library_ = Humming(b) if a == "bf16" else DeepGemm(("deepgemm", "deepgemm pdl"))
    return [library_, ReadFloor(lambda n, k: weight_bytes(pair, n, k))]


def problems_of(pairs, shapes, rows):
    """(m, n, k, pair) by weights."""
    return [(m, n, k, pair) for n, k in shapes or SHAPES for pair in pairs or PAIRS for m in rows or ROWS]


def prewarm(part, problems):
    """Every kernel of this part: one call each. Says what fails, and whether anything did."""
    import torch
    # DeepGEMM has the same kernel for most m, which one process need not wait for in another; Humming has one for each.
    tasks = {}
    for m, n, k, pair in problems:
        tasks.setdefault((n, k, pair, None if pair.startswith("fp8") else m), []).append(m)
    failed = False
    for (n, k, pair, _), rows in list(tasks.items())[part::beside_turns.WORKERS]:
        peer = peers_of(pair)[0]
        for m in rows:
            try:
                peer.problem(m, n, k, 1)
                torch.cuda.synchronize()
            except Exception as failure:
                failed = True
                print(f"{peer.name}: {words_of(failure)}", file=sys.stderr)
        del peer
        torch.cuda.empty_cache()
    return 1 if failed else 0


def line_of(problem, timing, turns, ours, notes, clock):
    """The line of the record. `summary` reads its beginning."""
    m, n, k, pair = problem
    median = medians(turns)
    best = fastest(median, ours)
    ratios = [f"{side} / {best} {median[side] / median[best]:.3f}" for side in ours if best]
    ratios += [f"{read_of(side)} / {side} {median[read_of(side)] / median[side]:.3f}" for side in ours if read_of(side) in median]
    times = ", ".join(f"{side} {us:.2f}" for side, us in median.items())
    cells = [m, n, k, pair, timing.cadence, times, ", ".join(ratios) or "nobody beside it", microseconds(turns), clocks(turns, ours[:1], clock), "; ".join(notes) or "no peers"]
    return f"| {' | '.join(map(str, cells))} |"


def read_of(side):
    return "read chained" if side.endswith(" chained") else "read"


def fastest(times, ours):
    """The fastest peer, but for the read."""
    return min((side for side in times if side not in ours and side.split()[0] != "read"), key=times.get, default=None)


def measure(problem, bench, peers, clock, rounds, say):
    """Lines of one problem; whether all sides were there."""
    m, n, k, pair = problem
    a, b = pair.split(" x ")
    sets, _, names = bench.ready(f"decode {m} {n} {k} {a} {b}")
    there, notes, lost = {}, [], set()

    def lose(name, failure):
        lost.add(name)
        say(f"# {name} {problem}: {words_of(failure)}")

    for peer in peers[pair]:
        try:
            notes.append(peer.problem(m, n, k, sets))
            there.update({side: peer for side in peer.sides})
        except Exception as failure:
            lose(peer.name, failure)
    shortest = max(weight_bytes(pair, n, k) / BYTES_A_US, 1)
    for timing in TIMINGS:
        calls = calls_of(shortest, sets, timing)
        ours = {name: lambda way=way: bench.time([way], calls, timing)[0] for way, name in enumerate(names)}
        others = {side: lambda side=side, peer=peer: peer.time(side, calls, timing) for side, peer in there.items() if side not in lost}
        say(line_of(problem, timing, rounds_of(ours, others, rounds, lose), names, notes, clock))
    return not lost


def read(lines):
    """{((m, n, k, pair), cadence): {side: microseconds}}."""
    times = {}
    for line in lines:
        found = re.match(r"\| (\d+) \| (\d+) \| (\d+) \| ([^|]+ x [^|]+) \| (pauses|sustained) \| ([^|]+) \|", line)
        if not found:
            continue
        m, n, k = map(int, found.groups()[:3])
        sides = (side.rsplit(" ", 1) for side in found[6].split(", "))
        times[(m, n, k, found[4]), found[5]] = {side: float(us) for side, us in sides}
    return times


def ways_of(times):
    """Ours, by what is asked of them: {kind: side}, with `planned` for a formulation's name."""
    peers = ("deepgemm", "humming", "read")
    ours = [side for side in times if side.split()[0] not in peers]
    return {" ".join(["planned", *side.split()[1:]]): side for side in ours}


def summary(lines, say=print):
    """Of each pair, cadence and way the share of the fastest peer's time, and the read's share of ours: geometric means, each behind the number of problems that it is of, and the worst."""
    groups = {}
    for (problem, cadence), times in read(lines).items():
        for kind, side in ways_of(times).items():
            best, floor = fastest(times, ways_of(times).values()), times.get(read_of(side))
            groups.setdefault((problem[3], cadence, kind), []).append((problem[:3], best and times[side] / times[best], floor and floor / times[side]))
    mean = lambda values: f"{math.exp(sum(map(math.log, values)) / len(values)):.3f}" if values else "-"
    say("\n## Share of the fastest peer's time, and the pure read's share of ours: geometric means\n| A x B | cadence | way | with a peer | / fastest peer | most, at | above 1 | with a read | read / way | least, at |\n"
        "|---|---|---|---|---|---|---|---|---|---|")
    for (pair, cadence, kind), found in groups.items():
        beside = [(ratio, problem) for problem, ratio, _ in found if ratio]
        floors = [(share, problem) for problem, _, share in found if share]
        at = lambda found: f"{found[0]:.3f}, {' x '.join(map(str, found[1]))}" if found else "-"
        say(f"| {pair} | {cadence} | {kind} | {len(beside)} | {mean([ratio for ratio, _ in beside])} | {at(max(beside, default=None))} | {sum(ratio > 1 for ratio, _ in beside)} "
            f"| {len(floors)} | {mean([share for share, _ in floors])} | {at(min(floors, default=None))} |")


def pairs_of(parser, text):
    """The pairs of `text`, of which a word is as `bf16xnvfp4`."""
    known = {pair.replace(" ", ""): pair for pair in PAIRS}
    words = text.split(",") if text is not None else []
    if wrong := [word for word in words if word not in known]:
        parser.error(f"--pairs: {wrong[0]!r} is none of {', '.join(known)}")
    return [known[word] for word in words]


def sides_of(pairs, say):
    """The peers of each pair that can be there, and whether those are all."""
    missing = set()
    for name, load in (("DeepGEMM", lambda: importlib.import_module("deep_gemm")), ("Humming", lambda: importlib.import_module("humming.layer")), ("the floor", library)):
        try:
            load()
        except Exception as failure:
            missing.add(name)
            say(f"# {name} has no turns: {words_of(failure)}")
    peers = {pair: peers_of(pair) for pair in pairs}
    return {pair: [peer for peer in found if peer.name not in missing] for pair, found in peers.items()}, not missing


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", nargs="?", metavar="BENCH", help="the executable of `cargo bench --bench beside`")
    parser.add_argument("--seconds", type=float, default=150, metavar="S", help="after so many no new problem begins (150)")
    parser.add_argument("--pairs", metavar="AxB,...", help="these pairs alone, as bf16xnvfp4")
    parser.add_argument("--shapes", metavar="NxK,...", help=f"these (n, k) in the place of {', '.join(f'{n}x{k}' for n, k in SHAPES)}")
    parser.add_argument("--rows", metavar="M,...", help="these m in the place of 1, 8, 16, 32 and 64")
    parser.add_argument("--rounds", type=int, default=2, metavar="R", help="turns of each side (2)")
    parser.add_argument("--prewarm", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--summary", metavar="RECORD", help="print the summary of this record, and measure nothing")
    args = parser.parse_args()
    if args.summary is not None:
        return beside_turns.summary_of(parser, args.summary, read, summary)
    pairs = pairs_of(parser, args.pairs) or PAIRS
    shapes = numbers_of(parser, "--shapes", args.shapes, "[1-9][0-9]*x[1-9][0-9]*", "NxK, as 4096x7168")
    rows = numbers_of(parser, "--rows", args.rows, "[1-9][0-9]*", "a number of rows")
    problems = problems_of(pairs, shapes, [m for m, in rows] if rows else None)
    # Humming would compile with as many threads in each process, and in one more that it starts when it is imported.
    os.environ.setdefault("HUMMING_DISABLE_PARALLEL_BUILD", "1")
    if args.prewarm is not None:
        return prewarm(args.prewarm, problems)
    if not args.bench:
        parser.error("BENCH or --summary RECORD")
    check_turns(parser, args)
    begin = time.time()
    try:
        importlib.import_module("torch")
    except Exception as error:
        parser.error(f"torch cannot be imported: {words_of(error)}")
    passed = [word for option, value in (("--pairs", args.pairs), ("--shapes", args.shapes), ("--rows", args.rows)) if value for word in (option, value)]
    load = lambda say: sides_of(pairs, say)
    return beside_turns.record(args, begin, (__file__, passed), load, measure, problems, summary)


if __name__ == "__main__":
    sys.exit(beside_turns.said(main))
