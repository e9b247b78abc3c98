#!/usr/bin/env python3
"""DeepGEMM beside the plan's choice and cuBLASLt, in turns: 1x128 x 128x128 to BF16, over the 17 published (n, k) and m from 128 to 8192, and two landmarks outside of those.

  scripts/beside-deepgemm.py BENCH [--seconds S] [--shapes NxK,...] [--rows M,...] [--rounds R] [--configs MOST] > record
  scripts/beside-deepgemm.py --summary RECORD

BENCH is the executable of `cargo bench --bench beside`, which runs as a process of its own and works only when it is asked to; this process has DeepGEMM. torch and deep_gemm must be
importable; DeepGEMM compiles its kernels before anything is timed, in 16 processes with one cache (DG_JIT_CACHE_DIR).

For each (m, n, k) and cadence the sides (DeepGEMM, and each formulation of ours) take turns for R rounds, every other round in the reverse order, and the median of a side's rounds counts.
A turn is the same for all: three calls, a graph of so many calls as take 300 us at the peak of the GPU or longer (2 at least with pauses, 12 sustained, whole rounds over operands that
exceed the L2 cache three times), untimed launches for 50 or 100 ms, then 7 launches with a pause after each or 9 back to back. A formulation of cuBLASLt that is 15 % behind its best
one after the first round has that round alone. With --configs the configurations of sm90 have a line each problem up to that m, in turns with one another and sm90, with pauses.

Clock and power are nvidia-smi's during the last two thirds of a side's turns, each the median. After S seconds no new problem begins. The summary ends the record, and is made again by --summary, of
records from before there were turns as well (until 2026-11-26; there DeepGEMM's times of an (n, k) came first, from a cooler GPU). The exit code is 1 where a side failed,
2 where nothing could begin."""

import argparse, gc, importlib, math, os, re, signal, statistics, subprocess, sys, threading, time

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
# Calls in a graph at least, timed launches, milliseconds of warm-up.
CADENCES = {"pauses": (2, 7, 50), "sustained": (12, 9, 100)}
# A formulation this much slower than cuBLASLt's best is timed once.
BEHIND = 1.15
LARGEST = 1 << 40
WORKERS = 16


class Clock:
    """Clock and power now and then."""

    def __init__(self):
        self.seen, self.process = [], None
        words = lambda power: ["nvidia-smi", f"--query-gpu=clocks.sm,{power}", "--format=csv,noheader,nounits"]
        try:
            # What it calls power is an average over a second, longer than a turn, where it has the other, too.
            power = "power.draw.instant"
            if not parse_clock(subprocess.run(words(power), stdout=subprocess.PIPE, text=True).stdout.split("\n")[0]):
                power = "power.draw"
            self.process = subprocess.Popen(words(power) + ["-lms", "25"], stdout=subprocess.PIPE, text=True)
            self.what = power
            threading.Thread(target=self.read, daemon=True).start()
        except OSError as error:
            self.what = f"nothing: {error}"

    def read(self):
        for line in self.process.stdout:
            if found := parse_clock(line):
                self.seen.append((time.time(), *found))

    def during(self, turns):
        """Of turns, each from a time to a time."""
        # A turn begins with a capture, and what is read lags.
        seen = [s for s in self.seen if any(start + (end - start) / 3 <= s[0] <= end for start, end in turns)]
        if not seen:
            return "clock unknown"
        clocks = sorted(s[1] for s in seen)
        return f"SM {statistics.median(clocks):.0f} MHz ({clocks[0]}-{clocks[-1]}), {statistics.median(s[2] for s in seen):.0f} W"

    def stop(self):
        if self.process:
            self.process.terminate()


def parse_clock(line):
    """Of `1395, 688.21`."""
    found = re.fullmatch(r"\s*(\d+)\s*,\s*([\d.]+)\s*", line)
    return found and (int(found[1]), float(found[2]))


def problems_of(shapes, rows):
    """(m, n, k) by (n, k): all, or those that were asked for."""
    found = [(m, n, k) for n, k in shapes or SHAPES for m in rows or ROWS if m * n * k <= LARGEST]
    return found if shapes or rows else [problem for problem in LANDMARKS if problem not in found] + found


def calls_of(m, n, k, sets, cadence):
    """Calls in a graph: 300 us at least on any GPU of 2 petaflops and 4.8 TB/s, in whole rounds over the sets."""
    shortest = max(2 * m * n * k / 2e9, (m * k + n * k + 2 * m * n) / 4.8e6, 4)
    rounds = -(-max(CADENCES[cadence][0], math.ceil(300 / shortest)) // sets)
    return sets * max(1, min(rounds, 1024 // sets))


class Failed(Exception):
    pass


class Bench:
    """Our side: see `obey` in benches/beside.rs."""

    def __init__(self, path, configs, say):
        self.say = say  # what is no answer
        environment = dict(os.environ, **({"SCALED_GEMM_CONFIGS": configs} if configs else {}))
        self.process = subprocess.Popen([path, "--bench", "--requests"], env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)

    def ask(self, request, answer):
        try:
            self.process.stdin.write(request + "\n")
            self.process.stdin.flush()
        except OSError:
            pass  # it ended: so do its lines
        for line in self.process.stdout:
            if line.startswith(answer + " "):
                return line[len(answer):].strip()
            self.pass_on(line)
        raise Failed(f"the bench ended with {self.process.wait()} on `{request}`")

    def pass_on(self, line):
        if line.strip():
            self.say(line.rstrip())

    def problem(self, m, n, k):
        """Sets of operands, the plan's formulation, and the ways."""
        sets, plan, *ways = self.ask(f"problem {m} {n} {k}", "ready").split(" | ")
        return int(sets), plan, ways

    def time(self, ways, calls, cadence):
        _, launches, warm_up = CADENCES[cadence]
        times = self.ask(f"time {cadence} {calls} {launches} {warm_up} {','.join(map(str, ways))}", "times").split()
        return [float(us) for us in times]

    def stop(self):
        try:
            self.process.stdin.close()
        except OSError:
            pass
        for line in self.process.stdout:
            self.pass_on(line)
        self.process.stdout.close()
        self.process.wait()


class DeepGemm:
    """The other side."""

    def __init__(self):
        self.shape, self.weights = None, []

    def problem(self, m, n, k, sets):
        """Prepares this product and returns the error of one call."""
        import torch
        self.xs = self.ds = None
        if self.shape != (n, k):
            self.weights = []
            torch.cuda.empty_cache()
        self.shape = n, k
        while len(self.weights) < sets:
            self.weights.append(weight(n, k))
        self.xs = [tokens(m, k) for _ in range(sets)]
        self.ds = [torch.zeros(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
        self.call(0)
        error = error_of(self.xs[0], self.weights[0], self.ds[0])
        # Half a unit of BF16 is 4e-3 of a number.
        if not error < 1e-2:
            raise Failed(f"wrong by {error:.1e}")
        return error

    def call(self, i):
        import deep_gemm
        i %= len(self.xs)
        deep_gemm.fp8_gemm_nt(self.xs[i], self.weights[i], self.ds[i])

    def time(self, calls, cadence):
        return time_of(self.call, calls, cadence)


def tokens(m, k):
    import torch, deep_gemm
    x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
    groups = x.view(m, k // 128, 128).float()
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448
    codes = (groups / scale).to(torch.float8_e4m3fn).view(m, k)
    return codes, deep_gemm.get_mn_major_tma_aligned_tensor(scale.squeeze(-1))


def weight(n, k):
    import torch
    tall = -(-n // 128)  # tiles, of which the last may lack rows
    w = torch.zeros(tall * 128, k, device="cuda", dtype=torch.bfloat16)
    w[:n] = torch.randn(n, k, device="cuda", dtype=torch.bfloat16)
    w = w.view(tall, 128, k // 128, 128)
    codes = torch.empty_like(w, dtype=torch.float8_e4m3fn)
    scales = torch.empty(tall, k // 128, device="cuda")
    for i in range(0, tall, 64):  # as FP32, a part at a time
        part = w[i:i + 64].float()
        scale = part.abs().amax((1, 3), keepdim=True).clamp(min=1e-4) / 448
        codes[i:i + 64] = (part / scale).to(torch.float8_e4m3fn)
        scales[i:i + 64] = scale.view(-1, k // 128)
    return codes.view(-1, k)[:n], scales


def prewarm(part, problems):
    """Every kernel of this part of all problems: one call of each."""
    import torch
    for m, n, k in problems[part::WORKERS]:
        side = DeepGemm()
        side.problem(m, n, k, 1)
        torch.cuda.synchronize()
        del side
        torch.cuda.empty_cache()


def error_of(x, w, d):
    """Of some rows and columns, relative to the largest."""
    (a, sa), (b, sb) = x, w
    rows, cols, k = slice(0, 64), slice(0, 128), a.shape[1]
    a = a[rows].float().view(-1, k // 128, 128) * sa[rows].float().unsqueeze(-1)
    b = b[cols].float().view(-1, k // 128, 128) * sb[0].view(1, -1, 1)
    exact = a.reshape(-1, k) @ b.reshape(-1, k).t()
    return ((exact - d[rows, cols].float()).abs().max() / exact.abs().max()).item()


def time_of(call, calls, cadence):
    """Microseconds of a call, as Timing of the crate: see its docs."""
    import torch
    _, launches, warm_up = CADENCES[cadence]
    small = torch.zeros(1 << 16, device="cuda", dtype=torch.uint8)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()

    def graph_of(count, work):
        # Not by torch.cuda.graph, which collects garbage first: the GPU would idle. Nor during it, since a capture forbids what frees memory.
        graph = torch.cuda.CUDAGraph()
        gc.disable()
        try:
            graph.capture_begin()
            for i in range(count):
                work(i)
            graph.capture_end()
        finally:
            gc.enable()
        return graph

    with torch.cuda.stream(stream):
        for i in range(3):
            call(i)
        torch.cuda.synchronize()
        lead, graph = graph_of(48, lambda _: small.zero_()), graph_of(calls, call)

        def launch(with_lead):
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            if with_lead:
                lead.replay()
            start.record(stream)
            graph.replay()
            end.record(stream)
            return start, end

        def us(events):
            events[1].synchronize()
            return events[0].elapsed_time(events[1]) * 1e3

        def paused():
            time_ = us(launch(True))
            time.sleep(max(2e-3, 4e-6 * time_))
            return time_

        us(launch(True))
        us(launch(True))
        begin = time.time()
        while time.time() - begin < warm_up / 1e3:
            if cadence == "pauses":
                paused()
            else:
                us(launch(False))
        if cadence == "pauses":
            times = [paused() for _ in range(launches)]
        else:
            lead.replay()
            times = [us(events) for events in [launch(False) for _ in range(launches)]]
        torch.cuda.synchronize()
    return statistics.median(times) / calls


def rounds_of(cadence, calls, ways, plan, bench, deepgemm, rounds):
    """Turns of all sides, round after round: {side: [(microseconds, start, end)]}. `ways` are names by number; no DeepGEMM where that failed."""
    sides = ["deepgemm"] * (deepgemm is not None) + list(ways.values())
    number = {name: way for way, name in ways.items()}
    turns = {side: [] for side in sides}
    for i in range(rounds):
        least = min((turns[side][0][0] for side in LIBRARY if turns.get(side)), default=math.inf)
        for side in sides if i % 2 == 0 else sides[::-1]:
            if i and side in LIBRARY and side != plan and turns[side][0][0] > BEHIND * least:
                continue
            start = time.time()
            us = deepgemm.time(calls, cadence) if side == "deepgemm" else bench.time([number[side]], calls, cadence)[0]
            turns[side].append((us, start, time.time()))
    return turns


def line_of(problem, cadence, turns, plan, error, clock):
    """The line of the record. `summary` reads its beginning."""
    median = {side: statistics.median(us for us, *_ in seen) for side, seen in turns.items()}
    best = min((us for side, us in median.items() if side in LIBRARY), default=math.nan)
    ratios = f"cuBLASLt / plan {best / median[plan]:.3f}"
    if "deepgemm" in median:
        ratios = f"plan / DeepGEMM {median[plan] / median['deepgemm']:.3f}, {ratios}"
    each = "; ".join(f"{side} " + " ".join(f"{us:.2f}" for us, *_ in seen) for side, seen in turns.items())
    clocks = "; ".join(f"{side} {clock.during([turn[1:] for turn in turns[side]])}" for side in ("deepgemm", plan) if side in turns)
    times = ", ".join(f"{side} {us:.2f}" for side, us in median.items())
    error = f"error {error:.1e}" if error is not None else "no DeepGEMM"
    return f"| {' | '.join(map(str, problem))} | {cadence} | {times} | plan {plan} | {ratios} | {each} | {clocks} | {error} |"


def measure(problem, bench, deepgemm, clock, rounds, say):
    """Lines of one problem; whether both sides were there."""
    sets, plan, names = bench.problem(*problem)
    formulations = {i: name for i, name in enumerate(names) if " " not in name}
    error = None
    try:
        error = deepgemm.problem(*problem, sets)
    except Exception as failure:
        say(f"# DeepGEMM {problem}: {type(failure).__name__}: {str(failure)[:300]}")
    for cadence in CADENCES:
        calls = calls_of(*problem, sets, cadence)
        turns = rounds_of(cadence, calls, formulations, plan, bench, deepgemm if error is not None else None, rounds)
        say(line_of(problem, cadence, turns, plan, error, clock))
    configs = [i for i, name in enumerate(names) if name.startswith("sm90")]
    if len(configs) > 1:
        times = bench.time(configs, calls_of(*problem, sets, "pauses"), "pauses")
        say(f"| {' | '.join(map(str, problem))} | configurations | {', '.join(f'{names[i]} {us:.2f}' for i, us in zip(configs, times))} |")
    return error is not None


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
        for cadence in CADENCES:
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


def compare(problems, start_bench, deepgemm, clock, seconds, rounds, begin, say):
    """Lines of all problems while there is time; how many lack a side."""
    bench, failures, in_a_row = None, 0, 0
    for i, problem in enumerate(problems):
        if time.time() - begin > seconds:
            say(f"# no time for {problems[i:]}")
            break
        bench = bench or start_bench()
        try:
            failures += not measure(problem, bench, deepgemm, clock, rounds, say)
            in_a_row = 0
        except Exception as failure:
            say(f"# {problem}: {type(failure).__name__}: {str(failure)[:300]}")
            bench.stop()
            bench, failures, in_a_row = None, failures + 1, in_a_row + 1
            if in_a_row == 3:
                say("# three failures one after the other: no more is tried")
                break
        if i + 1 == len(problems) or problems[i + 1][1:] != problem[1:]:
            say(f"# {problem[1]}x{problem[2]}: {time.time() - begin:.0f} s")
    if bench:
        bench.stop()
    return failures


def numbers_of(parser, option, text, form, what):
    """Tuples of the numbers of `text`, separated by commas, or None where there is no text."""
    words = text.split(",") if text is not None else []
    if wrong := [word for word in words if not re.fullmatch(form, word)]:
        parser.error(f"{option}: {wrong[0]!r} is not {what}")
    return [tuple(map(int, word.split("x"))) for word in words] or None


def summary_of(parser, path):
    try:
        with open(path) as record:
            lines = record.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"--summary {path}: {error}")
    if not read(lines):
        parser.error(f"no lines of a record in {path}")
    return summary(lines)


def check_sides(parser, bench):
    """Refuses what would fail after minutes."""
    if not (os.path.isfile(bench) and os.access(bench, os.X_OK)):
        parser.error(f"BENCH: {bench} is not an executable; `cargo bench --bench beside --no-run` builds and names it")
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
        return summary_of(parser, args.summary)
    shapes = numbers_of(parser, "--shapes", args.shapes, "[1-9][0-9]*x[1-9][0-9]*", "NxK, as 4096x7168")
    rows = numbers_of(parser, "--rows", args.rows, "[1-9][0-9]*", "a number of rows")
    problems = problems_of(shapes, [m for m, in rows] if rows else None)
    if args.prewarm is not None:
        return prewarm(args.prewarm, problems)
    if not args.bench:
        parser.error("BENCH or --summary RECORD")
    check_sides(parser, args.bench)
    begin = time.time()
    passed = [word for option, value in (("--shapes", args.shapes), ("--rows", args.rows)) if value for word in (option, value)]
    workers = [subprocess.Popen([sys.executable, __file__, "--prewarm", str(i), *passed], stderr=subprocess.PIPE, text=True) for i in range(WORKERS)]
    said = [(worker.communicate()[1].strip() or "nothing").splitlines()[-1][:300] for worker in workers]
    for error in {error for error, worker in zip(said, workers) if worker.returncode}:
        print("# prewarm:", error)
    print(f"# DeepGEMM's kernels compiled after {time.time() - begin:.0f} s", flush=True)
    clock, lines = Clock(), []

    def say(line):
        lines.append(line)
        print(line, flush=True)

    say(f"# {args.rounds} rounds of turns; clocks: {clock.what}")
    failures = compare(problems, lambda: Bench(args.bench, args.configs, say), DeepGemm(), clock, args.seconds, args.rounds, begin, say)
    clock.stop()
    summary(lines)
    return 1 if failures else 0


if __name__ == "__main__":
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:
        # Who reads has enough, as `head` has: nothing more is said, not by the end of the interpreter either.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 128 + signal.SIGPIPE
    sys.exit(status)
