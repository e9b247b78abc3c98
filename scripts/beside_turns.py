"""How sides take turns on a problem, and how each of their turns is timed: ours in a process of its own, the others in this one. For beside-deepgemm.py, beside-grouped.py, beside-decode.py and beside-casts.py."""

import collections, contextlib, gc, math, os, re, signal, statistics, subprocess, sys, tempfile, threading, time

# How a side's turn is timed: calls in a graph at least, timed launches, milliseconds of warm-up.
Timing = collections.namedtuple("Timing", "cadence least launches warm_up")
WORKERS = 16


class Failed(Exception):
    pass


class Refused(Exception):
    """What our side does not do, in its words; it goes on."""


def said(main):
    """What the program ends with. Who reads its output may have enough, as `head` has: then nothing more is said, not by the end of the interpreter either."""
    try:
        status = main()
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        status = 128 + signal.SIGPIPE
    return status


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


def calls_of(shortest, sets, timing):
    """Calls in a graph: 300 us at least where one takes `shortest` or longer, in whole rounds over the sets."""
    rounds = -(-max(timing.least, math.ceil(300 / shortest)) // sets)
    return sets * max(1, min(rounds, 1024 // sets))


class Bench:
    """Our side: see `obey` in benches/beside.rs, benches/beside_grouped.rs and benches/beside_casts.rs."""

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
            if line.startswith("refused "):
                raise Refused(line[len("refused "):].strip())
            self.pass_on(line)
        raise Failed(f"the bench ended with {self.process.wait()} on `{request}`")

    def pass_on(self, line):
        if line.strip():
            self.say(line.rstrip())

    def ready(self, request):
        """Sets of operands, the plan's formulation or what else is told of all ways, and the ways."""
        sets, plan, *ways = self.ask(request, "ready").split(" | ")
        return int(sets), plan, ways

    def time(self, ways, calls, timing):
        request = f"time {timing.cadence} {calls} {timing.launches} {timing.warm_up} {','.join(map(str, ways))}"
        return [float(us) for us in self.ask(request, "times").split()]

    def stop(self):
        try:
            self.process.stdin.close()
        except OSError:
            pass
        for line in self.process.stdout:
            self.pass_on(line)
        self.process.stdout.close()
        self.process.wait()


def time_of(call, calls, timing):
    """Microseconds of a call, as Timing of the crate: see its docs."""
    import torch
    small = torch.zeros(1 << 16, device="cuda", dtype=torch.uint8)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()

    def graph_of(count, work):
        # Not by torch.cuda.graph, which collects garbage first: the GPU would idle. Nor during it, since a capture forbids what frees memory.
        graph = torch.cuda.CUDAGraph()
        gc.disable()
        try:
            graph.capture_begin()
            try:
                for i in range(count):
                    work(i)
            except Exception:
                # What a failed capture leaves open fails the turns of others.
                with contextlib.suppress(Exception):
                    graph.capture_end()
                raise
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
        while time.time() - begin < timing.warm_up / 1e3:
            if timing.cadence == "pauses":
                paused()
            else:
                us(launch(False))
        if timing.cadence == "pauses":
            times = [paused() for _ in range(timing.launches)]
        else:
            lead.replay()
            times = [us(events) for events in [launch(False) for _ in range(timing.launches)]]
        torch.cuda.synchronize()
    return statistics.median(times) / calls


def rounds_of(ours, others, rounds, lost, behind=lambda side, turns: False, backwards=False):
    """Turns of all sides, round after round, every other one backwards: {side: [(microseconds, start, end)]}. A side is a name and a call that times it; the others come first, or last where the first round
    is `backwards`. `behind` says of one of ours that its first turn was enough. What one of the others fails with goes to `lost`, and it has no more turns; ours is the caller's."""
    sides = {**others, **ours}
    turns = {side: [] for side in sides}
    for i in range(rounds):
        done = {side for side in ours if i and behind(side, turns)}
        for side in list(sides)[::-1 if (i + backwards) % 2 else 1]:
            if side in done or side not in turns:
                continue
            start = time.time()
            try:
                us = sides[side]()
            except Exception as failure:
                if side in ours:
                    raise
                lost(side, failure)
                del turns[side]
                continue
            turns[side].append((us, start, time.time()))
    return turns


def medians(turns):
    return {side: statistics.median(us for us, *_ in seen) for side, seen in turns.items()}


def microseconds(turns):
    """Of every turn, in words."""
    return "; ".join(f"{side} " + " ".join(f"{us:.2f}" for us, *_ in seen) for side, seen in turns.items())


def clocks(turns, sides, clock):
    return "; ".join(f"{side} {clock.during([turn[1:] for turn in turns[side]])}" for side in sides if side in turns)


def words_of(failure):
    return f"{type(failure).__name__}: {' '.join(str(failure).split())[:300]}"


def compare(problems, start_bench, measure, seconds, begin, say):
    """What `measure(problem, bench)` says of each problem while there is time; how many lack a side, by its answer, or 1 where there was time for none."""
    bench, failures, in_a_row = None, 0, 0
    for i, problem in enumerate(problems):
        if time.time() - begin > seconds:
            say(f"# no time for {problems[i:]}")
            failures += i == 0
            break
        try:
            bench = bench or start_bench()
            failures += not measure(problem, bench)
            in_a_row = 0
        except Refused as why:
            say(f"# {problem}: {why}")
            failures, in_a_row = failures + 1, 0
        except Exception as failure:
            say(f"# {problem}: {words_of(failure)}")
            if bench:
                bench.stop()
            bench, failures, in_a_row = None, failures + 1, in_a_row + 1
            if in_a_row == 3:
                say("# three failures one after the other: no more is tried")
                break
        if i + 1 == len(problems) or problems[i + 1][1:3] != problem[1:3]:
            say(f"# {problem[1]}x{problem[2]}: {time.time() - begin:.0f} s")
    if bench:
        bench.stop()
    return failures


def prewarm(script, words, say):
    """Starts `script --prewarm PART WORDS...` for all parts, which compile what is timed later, each its own part. What is returned waits for them, until that time at the longest, and says
    what failed."""
    workers = []
    for part in range(WORKERS):
        errors = tempfile.TemporaryFile("w+")
        command = [sys.executable, script, "--prewarm", str(part), *words]
        workers.append((subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors, text=True), errors))

    def wait(until=math.inf):
        said = set()
        for worker, errors in workers:
            try:
                if worker.wait(None if until == math.inf else max(0, until - time.time())):
                    said.add(last_line(errors))
            except subprocess.TimeoutExpired:
                worker.kill()
                worker.wait()
                said.add("not done in time")
            errors.close()
        for error in sorted(said):
            say(f"# prewarm: {error}")
    return wait


def record(args, begin, prewarmed, load, measure, problems, summary):
    """The record of all problems on standard output, and the exit code. `prewarmed`: the script and its words for processes that compile; `load(say)`: who has turns, and whether that is all who should."""
    lines = []

    def say(line):
        lines.append(line)
        print(line, flush=True)

    wait = prewarm(*prewarmed, say)
    peers, whole = load(say)
    wait(begin + args.seconds)
    say(f"# the peers' kernels compiled after {time.time() - begin:.0f} s")
    clock = Clock()
    say(f"# {args.rounds} rounds of turns; clocks: {clock.what}")
    one = lambda problem, bench: measure(problem, bench, peers, clock, args.rounds, say)
    failures = compare(problems, lambda: Bench(args.bench, getattr(args, "configs", None), say), one, args.seconds, begin, say)
    clock.stop()
    summary(lines)
    return 0 if whole and not failures else 1


def last_line(errors):
    errors.seek(0)
    return (errors.read().strip() or "nothing").splitlines()[-1][:300]


def numbers_of(parser, option, text, form, what):
    """Tuples of the numbers of `text`, separated by commas, or None where there is no text."""
    words = text.split(",") if text is not None else []
    if wrong := [word for word in words if not re.fullmatch(form, word)]:
        parser.error(f"{option}: {wrong[0]!r} is not {what}")
    return [tuple(map(int, word.split("x"))) for word in words] or None


def summary_of(parser, path, read, summary):
    """What `summary` makes of a record, of which `read` finds lines."""
    try:
        with open(path) as record:
            lines = record.read().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        parser.error(f"--summary {path}: {error}")
    said = []
    try:
        if not read(lines):
            parser.error(f"no lines of a record in {path}")
        status = summary(lines, said.append)
    except (ValueError, KeyError, ZeroDivisionError) as error:
        parser.error(f"--summary {path}: a line of it is broken: {words_of(error)}")
    print("\n".join(said))
    return status


def check_turns(parser, args, name="beside"):
    """Refuses what would fail after minutes, or measure nothing."""
    if args.rounds < 1:
        parser.error(f"--rounds: {args.rounds} is not a number of turns")
    if not 0 < args.seconds < math.inf:
        parser.error(f"--seconds: {args.seconds:g} is no time; give a number above 0, as 200")
    bench = args.bench
    if not (os.path.isfile(bench) and os.access(bench, os.X_OK)):
        parser.error(f"BENCH: {bench} is not an executable; `cargo bench --bench {name} --no-run` builds and names it")
