#!/usr/bin/env python3
"""DeepGEMM beside the plan's choice and cuBLASLt, in turns: 1x128 x 128x128 to BF16, over the 17 published (n, k) and m from 128 to 8192, and two landmarks outside of those.

  scripts/beside-deepgemm.py BENCH [--seconds S] [--shapes NxK,...] [--rows M,...] [--rounds R] [--configs MOST] > record
  scripts/beside-deepgemm.py --summary RECORD

BENCH is the executable of `cargo bench --bench beside` (`--no-run` names it), which runs as a process of its own and works only when it is asked to; this process has DeepGEMM. torch and deep_gemm must be
importable; DeepGEMM compiles its kernels before anything is timed, in 16 processes with one cache (DG_JIT_CACHE_DIR).

For each (m, n, k) and cadence the sides (DeepGEMM, and each formulation of ours) take turns for R rounds, every other round in the reverse order (each second problem begins in that one), and the median of a side's rounds counts.
A turn is the same for all: three calls, a graph of so many calls as take 300 us at the peak of the GPU or longer (2 at least with pauses, 12 sustained, whole rounds over operands that
exceed the L2 cache three times), untimed launches for 50 ms (back to back 100 ms, and 300 of products of 8 us or more, in which the limit of power settles: it takes a fourth of a second from a cool GPU), then 7 launches with a pause after each or 9 back to back. A formulation of cuBLASLt that is 15 % behind its best
one after the first round has that round alone. With --configs the configurations of sm90 have a line each problem up to that m, in turns with one another and sm90, with pauses.

Clock and power are nvidia-smi's during the last two thirds of a side's turns, each the median. After S seconds, compiling included, no new problem begins. The summary ends the record, and is made again by --summary, of
records from before there were turns as well (until 2026-11-26; there DeepGEMM's times of an (n, k) came first, from a cooler GPU). The exit code is 1 where a side failed
or there was time for nothing, 2 where nothing could begin."""

import argparse, importlib, itertools, math, re, sys, time

import beside_turns
from beside_peers import DeepGemm
from beside_turns import Bench, Clock, Timing, calls_of, check_turns, clocks, compare, medians, microseconds, numbers_of, rounds_of, words_of

SHAPES = [(4096, 7168), (24576, 1536), (7168, 2048), (7168, 16384), (2112, 7168), (576, 7168), (32768, 512), (8192, 8192), (10240, 8192), (1536, 2048),
          (2048, 768), (5120, 8192), (10240, 5120), (5120, 25600), (8192, 28672), (51200, 5120), (57344, 8192)]
ROWS = [128, 256, 512, 1024, 2048, 4096, 8192]
# m, n, k with what is asked of us, with pauses, and DeepGEMM's time when that was written down.
LANDMARKS = {(4096, 4096, 7168): (163, 166), (4096, 7168, 16384): (635, 646), (4096, 24576, 1536): (212, 231), (8192, 8192, 8192): (738, 749), (96, 18432, 7168): (36, 38.3),
             (640, 1408, 4096): (11.8, 12.6), (256, 4096, 7168): (15.6, 16.8)}
# Name, problems, and the share of DeepGEMM's time that is asked of us.
CLASSES = [("all", lambda m, n, k: True, 0.95), ("k >= 7168, m >= 1024", lambda m, n, k: k >= 7168 and m >= 1024, 0.98), ("k <= 2048", lambda m, n, k: k <= 2048, 0.92),
           ("m <= 512", lambda m, n, k: m <= 512, 0.94)]
LIBRARY = ("native", "repeated-scales")
TIMINGS = {timing.cadence: timing for timing in (Timing("pauses", 2, 7, 50), Timing("sustained", 12, 9, 100))}
# Milliseconds of warm-up of a product that takes at least so many microseconds, back to back.
SETTLES, SETTLED = 8, 300
# A formulation this much slower than cuBLASLt's best is timed once.
BEHIND = 1.15
LARGEST = 1 << 40


def problems_of(shapes, rows):
    """(m, n, k) by (n, k): all, or those that were asked for."""
    found = [(m, n, k) for n, k in shapes or SHAPES for m in rows or ROWS if m * n * k <= LARGEST]
    return found if shapes or rows else [problem for problem in LANDMARKS if problem not in found] + found


def shortest(m, n, k):
    """Microseconds of a product on any GPU of 2 petaflops and 4.8 TB/s, at the least."""
    return max(2 * m * n * k / 2e9, (m * k + n * k + 2 * m * n) / 4.8e6, 4)


def prewarm(part, problems):
    """Every kernel of this part of all problems: one call of each."""
    import torch
    for m, n, k in problems[part::beside_turns.WORKERS]:
        side = DeepGemm()
        side.problem(m, n, k, 1)
        torch.cuda.synchronize()
        del side
        torch.cuda.empty_cache()


def line_of(problem, timing, turns, plan, note, clock):
    """The line of the record. `summary` reads its beginning."""
    median = medians(turns)
    best = min((us for side, us in median.items() if side in LIBRARY), default=math.nan)
    ratios = f"cuBLASLt / plan {best / median[plan]:.3f}"
    if "deepgemm" in median:
        ratios = f"plan / DeepGEMM {median[plan] / median['deepgemm']:.3f}, {ratios}"
    times = ", ".join(f"{side} {us:.2f}" for side, us in median.items())
    note = note if "deepgemm" in median else "no DeepGEMM"
    return f"| {' | '.join(map(str, problem))} | {timing.cadence} | {times} | plan {plan} | {ratios} | {microseconds(turns)} | {clocks(turns, ('deepgemm', plan), clock)} | {note} |"


def measure(problem, bench, deepgemm, clock, rounds, say, backwards=False):
    """Lines of one problem; whether both sides were there. Who is first finds a cooler GPU: ours, where the first round is `backwards`."""
    sets, plan, names = bench.ready("problem {} {} {}".format(*problem))
    # The plan's last: in a reversed round it is the first, as DeepGEMM is in the others.
    formulations = {name: i for i, name in sorted(enumerate(names), key=lambda way: way[1] == plan) if " " not in name}
    note, lost = None, []

    def lose(side, failure):
        lost.append(side)
        say(f"# DeepGEMM {problem}: {words_of(failure)}")

    def behind(side, turns):
        least = min((turns[side][0][0] for side in LIBRARY if turns.get(side)), default=math.inf)
        return side in LIBRARY and side != plan and turns[side][0][0] > BEHIND * least

    try:
        note = deepgemm.problem(*problem, sets)
    except Exception as failure:
        lose("deepgemm", failure)
    for timing in TIMINGS.values():
        if timing.cadence == "sustained" and shortest(*problem) >= SETTLES:
            timing = timing._replace(warm_up=SETTLED)
        calls = calls_of(shortest(*problem), sets, timing)
        ours = {name: lambda way=way: bench.time([way], calls, timing)[0] for name, way in formulations.items()}
        others = {} if lost else {"deepgemm": lambda: deepgemm.time("deepgemm", calls, timing)}
        say(line_of(problem, timing, rounds_of(ours, others, rounds, lose, behind, backwards), plan, note, clock))
    configs = [i for i, name in enumerate(names) if name.startswith("sm90")]
    if len(configs) > 1:
        timing = TIMINGS["pauses"]
        times = bench.time(configs, calls_of(shortest(*problem), sets, timing), timing)
        say(f"| {' | '.join(map(str, problem))} | configurations | {', '.join(f'{names[i]} {us:.2f}' for i, us in zip(configs, times))} |")
    return not lost


def read(lines):
    """{((m, n, k), cadence): {side: microseconds}}, of lines of either form; `plan` has the time of the plan's formulation."""
    times = {}
    for line in lines:
        found = re.match(r"\| (\d+) \| (\d+) \| (\d+) \| (pauses|sustained) \| ([^|]*) \|(?: plan (\S+) \|)?", line)
        # A summary's lines begin alike, with a time that no side is named with.
        if not found or " " not in found[5]:
            continue
        problem = tuple(int(x) for x in found.groups()[:3])
        ways = times.setdefault((problem, found[4]), {})
        for way in found[5].split(", "):
            name, us = way.rsplit(" ", 1)
            ways[name] = float(us)
        if found[6]:
            ways["plan"] = ways[found[6]]
    return times


def library_of(ways):
    return min((us for name, us in ways.items() if name in LIBRARY), default=math.nan)


def summary(lines, say=print):
    """Shares of DeepGEMM's time and of cuBLASLt's best, by the classes of the project's targets; landmarks; every problem."""
    whole = {key: ways for key, ways in read(lines).items() if "deepgemm" in ways and "plan" in ways}
    published = lambda problem: problem[1:] in SHAPES and problem[0] in ROWS
    mean = lambda values: f"{math.exp(sum(map(math.log, values)) / len(values)):.3f}" if values else "-"
    better = lambda ways: min(us for us in (ways["deepgemm"], library_of(ways)) if not math.isnan(us))
    say("\n## Share of DeepGEMM's time, and of cuBLASLt's best formulation: geometric means\n| class | cadence | problems | plan / DeepGEMM | asked | sm90 / DeepGEMM | cuBLASLt / plan | plan above 1.03 of the better of both "
        "| plan above 1.01 of cuBLASLt |\n|---|---|---|---|---|---|---|---|---|")
    for name, inside, asked in CLASSES:
        for cadence in TIMINGS:
            cells = [ways for (problem, c), ways in whole.items() if c == cadence and published(problem) and inside(*problem)]
            with_library = [ways for ways in cells if not math.isnan(library_of(ways))]
            say(f"| {name} | {cadence} | {len(cells)} | {mean([w['plan'] / w['deepgemm'] for w in cells])} | {asked} | {mean([w['sm90'] / w['deepgemm'] for w in cells if 'sm90' in w])} "
                f"| {mean([library_of(w) / w['plan'] for w in with_library])} | {sum(w['plan'] > 1.03 * better(w) for w in cells)} | {sum(w['plan'] > 1.01 * library_of(w) for w in with_library)} |")
    landmarks = [(problem, whole[problem, "pauses"]) for problem in LANDMARKS if (problem, "pauses") in whole]
    if landmarks:
        say("\n| landmark, with pauses | plan, us | asked | DeepGEMM, us | it was | plan / DeepGEMM |\n|---|---|---|---|---|---|")
        for problem, ways in landmarks:
            asked, was = LANDMARKS[problem]
            say(f"| {' x '.join(map(str, problem))} | {ways['plan']:.2f} | {asked} | {ways['deepgemm']:.2f} | {was} | {ways['plan'] / ways['deepgemm']:.3f} |")
    say("\n| m | n | k | cadence | plan, us | / DeepGEMM | cuBLASLt / plan | sm90 / DeepGEMM | best of ours and cuBLASLt / DeepGEMM |\n|---|---|---|---|---|---|---|---|---|")
    for (problem, cadence), ways in sorted(whole.items(), key=lambda item: -item[1]["plan"] / better(item[1])):
        least = min(us for name, us in ways.items() if name != "deepgemm" and " " not in name)
        say(f"| {' | '.join(map(str, problem))} | {cadence} | {ways['plan']:.2f} | {ways['plan'] / ways['deepgemm']:.3f} | {library_of(ways) / ways['plan']:.3f} | {ways.get('sm90', math.nan) / ways['deepgemm']:.3f} "
            f"| {least / ways['deepgemm']:.3f} |")


def check_sides(parser, args):
    """Refuses what would fail after minutes."""
    check_turns(parser, args)
    for module in ("torch", "deep_gemm"):
        try:
            importlib.import_module(module)
        except Exception as error:
            parser.error(f"{module} cannot be imported: {type(error).__name__}: {error}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", nargs="?", metavar="BENCH", help="the executable of `cargo bench --bench beside`")
    parser.add_argument("--seconds", type=float, default=600, metavar="S", help="after so many no new problem begins (600)")
    parser.add_argument("--shapes", metavar="NxK,...", help="these (n, k) in the place of the published ones")
    parser.add_argument("--rows", metavar="M,...", help="these m in the place of 128 to 8192")
    parser.add_argument("--rounds", type=int, default=3, metavar="R", help="turns of each side (3)")
    parser.add_argument("--configs", metavar="MOST", help="time the configurations of sm90, too, up to this m")
    parser.add_argument("--prewarm", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--summary", metavar="RECORD", help="print the summary of this record, and measure nothing")
    args = parser.parse_args()
    if args.summary is not None:
        return beside_turns.summary_of(parser, args.summary, read, summary)
    shapes = numbers_of(parser, "--shapes", args.shapes, "[1-9][0-9]*x[1-9][0-9]*", "NxK, as 4096x7168")
    rows = numbers_of(parser, "--rows", args.rows, "[1-9][0-9]*", "a number of rows")
    problems = problems_of(shapes, [m for m, in rows] if rows else None)
    if args.prewarm is not None:
        return prewarm(args.prewarm, problems)
    if not args.bench:
        parser.error("BENCH or --summary RECORD")
    if not problems:
        parser.error(f"--shapes, --rows: none of these has an m n k of {LARGEST} or less, which is what is measured")
    numbers_of(parser, "--configs", args.configs, "[0-9]+", "a number of rows")
    check_sides(parser, args)
    begin = time.time()
    passed = [word for option, value in (("--shapes", args.shapes), ("--rows", args.rows)) if value for word in (option, value)]
    beside_turns.prewarm(__file__, passed, print)()
    print(f"# DeepGEMM's kernels compiled after {time.time() - begin:.0f} s", flush=True)
    clock, lines = Clock(), []

    def say(line):
        lines.append(line)
        print(line, flush=True)

    say(f"# {args.rounds} rounds of turns; clocks: {clock.what}")
    deepgemm = DeepGemm()
    turn = itertools.count()
    one = lambda problem, bench: measure(problem, bench, deepgemm, clock, args.rounds, say, next(turn) % 2 == 1)
    failures = compare(problems, lambda: Bench(args.bench, args.configs, say), one, args.seconds, begin, say)
    clock.stop()
    summary(lines)
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(beside_turns.said(main))
