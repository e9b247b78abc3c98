#!/usr/bin/env python3
"""Products of groups of rows beside DeepGEMM's, in turns: 1x128 x 128x128 to BF16, as experts are, contiguous (m_grouped_fp8_gemm_nt_contiguous) and in slots (m_grouped_fp8_gemm_nt_masked).

  scripts/beside-grouped.py BENCH [--seconds S] [--cases KIND-GxR-NxK,...] [--rounds R] [--configs] > record
  scripts/beside-grouped.py --summary RECORD

BENCH is the executable of `cargo bench --bench beside_grouped` (`--no-run` names it), which runs as a process of its own and works only when it is asked to; this process has DeepGEMM. torch and deep_gemm must be
importable; DeepGEMM compiles its kernels before anything is timed, in 16 processes with one cache (DG_JIT_CACHE_DIR).

A case is G groups of 0.7 to 1.3 times R rows, the same numbers for both sides and in every run, each with a matrix of N x K. Contiguous groups begin at multiples of 128 rows; those of masked ones lie in slots of
4096. Both sides know where groups begin and how many rows they have from the device, and are told how many are usual (DeepGEMM of slots alone). The sides take turns for R rounds, every other round in the reverse
order (each second case begins in that one), and the median of a side's rounds counts; a turn is timed as in beside-deepgemm.py, back to back after 300 ms whatever it takes. With --configs each configuration of sm90 that groups have has a line, with pauses, in turns with one another.

Clock and power are nvidia-smi's during the last two thirds of a side's turns, each the median. After S seconds, compiling included, no new case begins. The summary ends the record, and is made again by --summary. The exit code is 1
where a side failed or there was time for nothing, 2 where nothing could begin."""

import argparse, collections, importlib, itertools, math, random, re, sys, time

import beside_turns
from beside_peers import DeepGemmGroups
from beside_turns import Timing, calls_of, check_turns, clocks, medians, microseconds, rounds_of, words_of


class Case(collections.namedtuple("Case", "usual n k kind groups")):
    """`usual`: rows of a group. Its words are those of --cases."""

    def __repr__(self):
        return f"{self.kind}-{self.groups}x{self.usual}-{self.n}x{self.k}"

    __str__ = __repr__


CASES = [Case(8192, 4096, 7168, "contiguous", 4), Case(4096, 4096, 7168, "contiguous", 8), Case(4096, 7168, 2048, "contiguous", 8), Case(1024, 4096, 7168, "contiguous", 8), Case(16, 4096, 7168, "contiguous", 64),
         Case(192, 4096, 7168, "masked", 32), Case(1024, 4096, 7168, "masked", 6), Case(20, 4096, 7168, "masked", 32), Case(20, 7168, 2048, "masked", 32)]
ASKED = 0.97
STEPS = {"contiguous": 128, "masked": 4096}
TIMINGS = [Timing("pauses", 2, 7, 50), Timing("sustained", 12, 9, 300)]
FORM = r"(contiguous|masked)-([1-9]\d*)x([1-9]\d*)-([1-9]\d*)x([1-9]\d*)"


def rows_of(case):
    """Rows of each group: random, but the same for a case."""
    chance = random.Random(str(case))
    return [max(1, int(case.usual * chance.uniform(0.7, 1.3))) for _ in range(case.groups)]


def shortest(case):
    """Microseconds on any GPU of 2 petaflops and 4.8 TB/s, at the least."""
    rows = sum(rows_of(case))
    return max(2 * rows * case.n * case.k / 2e9, (case.groups * case.n * case.k + rows * (case.k + 2 * case.n)) / 4.8e6, 4)


def prewarm(part, cases):
    """Every kernel of this part of the cases: one call of each."""
    import torch
    for case in cases[part::beside_turns.WORKERS]:
        peer = DeepGemmGroups()
        peer.problem(case, rows_of(case), STEPS[case.kind], 1)
        torch.cuda.synchronize()
        del peer
        torch.cuda.empty_cache()


def line_of(case, timing, turns, how, note, clock):
    """The line of the record. `summary` reads its beginning."""
    median = medians(turns)
    ratio = f"grouped / DeepGEMM {median['grouped'] / median['deepgemm']:.3f}" if "deepgemm" in median else "nobody beside it"
    times = ", ".join(f"{side} {us:.2f}" for side, us in median.items())
    cells = [case.kind, case.groups, sum(rows_of(case)), case.n, case.k, timing.cadence, times, how, ratio, microseconds(turns), clocks(turns, ("deepgemm", "grouped"), clock), note or "no DeepGEMM"]
    return f"| {' | '.join(map(str, cells))} |"


def measure(case, bench, peer, clock, rounds, say, backwards=False):
    """Lines of one case; whether both sides were there. Who is first finds a cooler GPU: ours, where the first round is `backwards`."""
    rows, step = rows_of(case), STEPS[case.kind]
    sets, how, names = bench.ready(f"groups {case.kind} {case.n} {case.k} {step} {','.join(map(str, rows))}")
    note, lost = None, []

    def lose(side, failure):
        lost.append(side)
        say(f"# DeepGEMM {case}: {words_of(failure)}")

    try:
        note = peer.problem(case, rows, step, sets)
    except Exception as failure:
        lose("deepgemm", failure)
    for timing in TIMINGS:
        calls = calls_of(shortest(case), sets, timing)
        others = {} if lost else {"deepgemm": lambda: peer.time("deepgemm", calls, timing)}
        turns = rounds_of({"grouped": lambda: bench.time([0], calls, timing)[0]}, others, rounds, lose, backwards=backwards)
        say(line_of(case, timing, turns, how, note, clock))
    if len(names) > 1:
        timing = TIMINGS[0]
        times = bench.time(list(range(1, len(names))), calls_of(shortest(case), sets, timing), timing)
        listed = ", ".join(f"{name.removeprefix('grouped ')} {us:.2f}" for name, us in zip(names[1:], times))
        say(f"| {case.kind} | {case.groups} | {sum(rows)} | {case.n} | {case.k} | configurations | {listed} |")
    return not lost


def read(lines):
    """{((kind, groups, rows, n, k), cadence): {side: microseconds}}."""
    times = {}
    for line in lines:
        found = re.match(r"\| (contiguous|masked) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (pauses|sustained) \| ([^|]*grouped [^|]*) \|", line)
        if found:
            sides = (side.rsplit(" ", 1) for side in found[7].split(", "))
            times[(found[1], *map(int, found.groups()[1:5])), found[6]] = {side: float(us) for side, us in sides}
    return times


def summary(lines, say=print):
    """Of each cadence and kind the share of DeepGEMM's time: geometric means, and the worst."""
    say("\n## Share of DeepGEMM's time: geometric means\n| kind | cadence | cases | grouped / DeepGEMM | asked | most, at groups x rows in all, n x k |\n|---|---|---|---|---|---|")
    found = read(lines)
    for kind in STEPS:
        for timing in TIMINGS:
            shares = [(times["grouped"] / times["deepgemm"], case) for (case, cadence), times in found.items() if case[0] == kind and cadence == timing.cadence and "deepgemm" in times]
            if shares:
                mean = math.exp(sum(math.log(share) for share, _ in shares) / len(shares))
                most, (_, groups, rows, n, k) = max(shares)
                say(f"| {kind} | {timing.cadence} | {len(shares)} | {mean:.3f} | {ASKED} | {most:.3f}, {groups} x {rows}, {n} x {k} |")


def cases_of(parser, text):
    words = text.split(",") if text is not None else []
    if wrong := [word for word in words if not re.fullmatch(FORM, word)]:
        parser.error(f"--cases: {wrong[0]!r} is not KIND-GxR-NxK, as contiguous-8x1024-4096x7168")
    found = (re.fullmatch(FORM, word).groups() for word in words)
    cases = [Case(int(usual), int(n), int(k), kind, int(groups)) for kind, groups, usual, n, k in found]
    if wrong := [case for case in cases if case.n % 128 or case.k % 128]:
        parser.error(f"--cases: {wrong[0]}: n and k must be multiples of 128")
    if wrong := [case for case in cases if case.groups * case.usual > 1 << 22]:
        parser.error(f"--cases: {wrong[0]}: more than {1 << 22} rows in all")
    if wrong := [case for case in cases if case.kind == "masked" and case.usual * 1.3 >= STEPS["masked"]]:
        parser.error(f"--cases: {wrong[0]}: 1.3 times as many rows do not fit in slots of {STEPS['masked']}")
    return cases


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", nargs="?", metavar="BENCH", help="the executable of `cargo bench --bench beside_grouped`")
    parser.add_argument("--seconds", type=float, default=300, metavar="S", help="after so many no new case begins (300)")
    parser.add_argument("--cases", metavar="KIND-GxR-NxK,...", help=f"these in the place of {', '.join(map(str, CASES))}")
    parser.add_argument("--rounds", type=int, default=3, metavar="R", help="turns of each side (3)")
    parser.add_argument("--configs", action="store_true", help="time the configurations of sm90, too")
    parser.add_argument("--prewarm", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--summary", metavar="RECORD", help="print the summary of this record, and measure nothing")
    args = parser.parse_args()
    if args.summary is not None:
        return beside_turns.summary_of(parser, args.summary, read, summary)
    cases = cases_of(parser, args.cases) or CASES
    if args.prewarm is not None:
        return prewarm(args.prewarm, cases)
    if not args.bench:
        parser.error("BENCH or --summary RECORD")
    check_turns(parser, args, "beside_grouped")
    begin = time.time()
    for module in ("torch", "deep_gemm"):
        try:
            importlib.import_module(module)
        except Exception as error:
            parser.error(f"{module} cannot be imported: {words_of(error)}")
    args.configs = "1" if args.configs else None
    passed = ["--cases", args.cases] if args.cases else []
    turn = itertools.count()
    one = lambda *of: measure(*of, backwards=next(turn) % 2 == 1)
    return beside_turns.record(args, begin, (__file__, passed), lambda say: (DeepGemmGroups(), True), one, cases, summary)


if __name__ == "__main__":
    sys.exit(beside_turns.said(main))
