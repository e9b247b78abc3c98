#!/usr/bin/env python3
"""Checks beside-deepgemm.py and beside-decode.py without a GPU: all sides are stand-ins, which write down when they work. And the use of casts-in-turns.py.

usage: scripts/beside_check.py"""

import importlib.util, json, os, re, signal, stat, struct, subprocess, sys, tempfile, time, unittest
from pathlib import Path
from unittest import mock

import beside_turns

HERE = Path(__file__).resolve().parent


def script(name):
    specification = importlib.util.spec_from_file_location(name.replace("-", "_"), HERE / f"{name}.py")
    module = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(module)
    return module


beside, decode = script("beside-deepgemm"), script("beside-decode")

# Speaks as benches/beside.rs does. A problem of 13 rows kills it, and one of 15 it refuses.
BENCH = """#!{python}
import os, sys
ways = ["sm90", "native", "repeated-scales", "sm90 of-one-kind", "sm90 of-another"]
planned = ["small-m", "small-m repacked", "small-m chained", "small-m repacked chained"]
us = [9.0, 10.0, 14.0, 8.5, 9.5]
print("# the head")
log = open("{log}", "a")
log.write("started " + " ".join(sys.argv[1:]) + " " + os.environ.get("SCALED_GEMM_CONFIGS", "-") + "\\n")
for line in sys.stdin:
    log.write("ours " + line)
    log.flush()
    words = line.split()
    if words[0] != "time" and words[1] == "13":
        print("13 rows panic")
        sys.exit(101)
    if words[0] != "time" and words[1] == "15":
        print("refused 15 rows are odd", flush=True)
    elif words[0] == "decode":
        print("ready 3 | small-m | " + " | ".join(planned if words[5] == "nvfp4" else planned[::2]), flush=True)
    elif words[0] == "problem":
        print("ready 3 | sm90 | " + " | ".join(ways if "SCALED_GEMM_CONFIGS" in os.environ else ways[:3]), flush=True)
    else:
        print("times " + " ".join(str(us[int(way)]) for way in words[5].split(",")), flush=True)
print("the end")
"""


class Other:
    """In DeepGEMM's place: 9.5, 10, 11 us. Problems of 14 rows it cannot."""

    def __init__(self, log):
        self.log, self.turn = log, 0

    def problem(self, m, n, k, sets):
        self.write(f"theirs problem {m} {n} {k} {sets}")
        if m == 14:
            raise ValueError("14 rows")
        return "error 3.0e-03"

    def time(self, side, calls, timing):
        self.write(f"theirs time {timing.cadence} {calls} {timing.launches} {timing.warm_up}")
        self.turn += 1
        return [10.0, 9.5, 11.0][self.turn % 3]

    def write(self, line):
        with open(self.log, "a") as log:
            log.write(line + "\n")


def stand_in(test, bench):
    """Gives a test a folder, a log in it, and this script there in the bench's place, which writes to the log."""
    test.folder = tempfile.TemporaryDirectory()
    test.addCleanup(test.folder.cleanup)
    test.log = os.path.join(test.folder.name, "log")
    test.bench = os.path.join(test.folder.name, "bench")
    Path(test.bench).write_text(bench.format(python=sys.executable, log=test.log))
    os.chmod(test.bench, stat.S_IRWXU)


class Clock:
    def during(self, turns):
        assert all(start <= end for start, end in turns)
        return f"{len(turns)} turns"


class Turns(unittest.TestCase):
    def setUp(self):
        stand_in(self, BENCH)

    def compare(self, problems, configs=None, seconds=60.0):
        said = []
        start = lambda: beside.Bench(self.bench, configs, said.append)
        other = Other(self.log)
        measure = lambda problem, bench: beside.measure(problem, bench, other, Clock(), 3, said.append)
        failures = beside.compare(problems, start, measure, seconds, time.time(), said.append)
        return failures, said, Path(self.log).read_text().splitlines() if os.path.exists(self.log) else []

    def test_sides_take_turns_and_each_turn_is_alike(self):
        failures, said, log = self.compare([(128, 4096, 7168)])
        self.assertEqual(failures, 0)
        self.assertEqual(log[:3], ["started --bench --requests -", "ours problem 128 4096 7168", "theirs problem 128 4096 7168 3"])
        # 31.6 MB a call: 6.6 us at the least, 46 of them 300 us, in whole rounds over three sets.
        turn = lambda cadence: f"time {cadence} 48 {'7 50' if cadence == 'pauses' else '9 100'}"
        theirs = lambda cadence: f"theirs {turn(cadence)}"
        ours = lambda cadence, way: f"ours {turn(cadence)} {way}"
        expected = []
        for cadence in ("pauses", "sustained"):
            expected += [theirs(cadence)] + [ours(cadence, way) for way in (1, 2, 0)]
            # Every other round backwards, so that the plan's begins, without the formulation that is far behind.
            expected += [ours(cadence, 0), ours(cadence, 1), theirs(cadence)]
            expected += [theirs(cadence), ours(cadence, 1), ours(cadence, 0)]
        self.assertEqual(log[3:], expected)
        self.assertEqual(said[0], "# the head")
        self.assertEqual(said[-1], "the end")
        self.assertEqual(said[1], "| 128 | 4096 | 7168 | pauses | deepgemm 10.00, native 10.00, repeated-scales 14.00, sm90 9.00 | plan sm90 | plan / DeepGEMM 0.900, cuBLASLt / plan 1.111 "
                                  "| deepgemm 9.50 11.00 10.00; native 10.00 10.00 10.00; repeated-scales 14.00; sm90 9.00 9.00 9.00 | deepgemm 3 turns; sm90 3 turns | error 3.0e-03 |")

    def test_whoever_is_told_begins(self):
        bench = beside.Bench(self.bench, None, [].append)
        for backwards in (True, False):
            beside.measure((256, 4096, 7168), bench, Other(self.log), Clock(), 3, [].append, backwards)
        bench.stop()
        log = Path(self.log).read_text().splitlines()
        # Ways of ours by their number: the plan's is 0.
        turns = "".join("t" if line[0] == "t" else line[-1] for line in log if " time pauses" in line)
        self.assertEqual(turns, "021t" + "t10" + "01t" + "t120" + "01t" + "t10")

    def test_configurations_have_a_line_that_no_summary_counts(self):
        _, said, log = self.compare([(128, 4096, 7168)], configs="1024")
        self.assertEqual(log[0], "started --bench --requests 1024")
        self.assertEqual(log[-1], "ours time pauses 48 7 50 0,3,4")
        line = "| 128 | 4096 | 7168 | configurations | sm90 9.00, sm90 of-one-kind 8.50, sm90 of-another 9.50 |"
        self.assertIn(line, said)
        self.assertEqual(beside.read([line]), {})

    def test_a_side_that_fails_is_said_and_costs_its_problem_alone(self):
        failures, said, log = self.compare([(13, 4096, 7168), (14, 4096, 7168), (128, 4096, 7168)])
        self.assertEqual(failures, 2)
        self.assertIn("13 rows panic", said)
        self.assertIn("# (13, 4096, 7168): Failed: the bench ended with 101 on `problem 13 4096 7168`", said)
        self.assertIn("# DeepGEMM (14, 4096, 7168): ValueError: 14 rows", said)
        self.assertIn("| 14 | 4096 | 7168 | pauses | native 10.00, repeated-scales 14.00, sm90 9.00 | plan sm90 | cuBLASLt / plan 1.111 | native 10.00 10.00 10.00; repeated-scales 14.00; sm90 9.00 9.00 9.00 "
                      "| sm90 3 turns | no DeepGEMM |", said)
        self.assertEqual(log.count("started --bench --requests -"), 2)
        whole = {problem for problem, ways in beside.read(said).items() if "deepgemm" in ways}
        self.assertEqual(whole, {((128, 4096, 7168), "pauses"), ((128, 4096, 7168), "sustained")})
        self.assertEqual(self.compare([(13, 8, 128)] * 5)[0], 3)

    def test_no_problem_begins_after_the_time(self):
        failures, said, log = self.compare([(128, 4096, 7168), (256, 4096, 7168)], seconds=-1.0)
        self.assertEqual((failures, said, log), (1, ["# no time for [(128, 4096, 7168), (256, 4096, 7168)]"], []))


class Peer:
    """In the place of a peer of decode, with a time for each side; a side without one cannot be timed, and 14 rows cannot be prepared."""

    def __init__(self, log, name, **us):
        self.log, self.name, self.us, self.sides = log, name, us, tuple(side.replace("_", " ") for side in us)

    def problem(self, m, n, k, sets):
        self.write(f"{self.name} problem {m} {n} {k} {sets}")
        if m == 14:
            raise ValueError("14 rows")
        return f"{self.name} noted"

    def time(self, side, calls, timing):
        self.write(f"{side} {timing.cadence} {calls} {timing.launches} {timing.warm_up}")
        us = self.us[side.replace(" ", "_")]
        if us is None:
            raise RuntimeError(f"no\nkernel of {side}")
        return us

    def write(self, line):
        with open(self.log, "a") as log:
            log.write(line + "\n")


FP8, NVFP4 = decode.PAIRS[:2]


class Decode(unittest.TestCase):
    setUp = Turns.setUp

    def compare(self, problems, peers, rounds=2):
        said = []
        measure = lambda problem, bench: decode.measure(problem, bench, peers, Clock(), rounds, said.append)
        failures = beside_turns.compare(problems, lambda: beside_turns.Bench(self.bench, None, said.append), measure, 60.0, time.time(), said.append)
        return failures, said, Path(self.log).read_text().splitlines()

    def test_all_sides_take_turns_and_each_turn_is_alike(self):
        peers = {NVFP4: [Peer(self.log, "Humming", humming=12.0), Peer(self.log, "the floor", read=6.0, read_chained=4.0)]}
        failures, said, log = self.compare([(8, 4096, 7168, NVFP4)], peers)
        self.assertEqual(failures, 0)
        self.assertEqual(log[:4], ["started --bench --requests -", "ours decode 8 4096 7168 bf16 nvfp4", "Humming problem 8 4096 7168 3", "the floor problem 8 4096 7168 3"])
        # 16.5 MB a call: 3.4 us at the least, 88 of them 300 us, in whole rounds over three sets.
        expected = []
        for cadence, launches, warm_up in (("pauses", 7, 15), ("sustained", 9, 25)):
            like = f"{cadence} 90 {launches} {warm_up}"
            once = [f"humming {like}", f"read {like}", f"read chained {like}"] + [f"ours time {like} {way}" for way in range(4)]
            expected += once + once[::-1]
        self.assertEqual(log[4:], expected)
        self.assertEqual(said[1], f"| 8 | 4096 | 7168 | {NVFP4} | pauses | humming 12.00, read 6.00, read chained 4.00, small-m 9.00, small-m repacked 10.00, small-m chained 14.00, small-m repacked chained 8.50 "
                                  "| small-m / humming 0.750, small-m repacked / humming 0.833, small-m chained / humming 1.167, small-m repacked chained / humming 0.708, "
                                  "read / small-m 0.667, read / small-m repacked 0.600, read chained / small-m chained 0.286, read chained / small-m repacked chained 0.471 "
                                  "| humming 12.00 12.00; read 6.00 6.00; read chained 4.00 4.00; small-m 9.00 9.00; small-m repacked 10.00 10.00; small-m chained 14.00 14.00; small-m repacked chained 8.50 8.50 "
                                  "| small-m 2 turns | Humming noted; the floor noted |")
        self.assertEqual(len(decode.read(said)), 2)

    def test_the_fastest_peer_is_no_read(self):
        peers = {FP8: [Peer(self.log, "DeepGEMM", deepgemm=12.0, deepgemm_pdl=11.0), Peer(self.log, "the floor", read=6.0, read_chained=4.0)]}
        _, said, _ = self.compare([(1, 4096, 7168, FP8)], peers, 1)
        self.assertIn("| small-m / deepgemm pdl 0.818, small-m chained / deepgemm pdl 0.909, read / small-m 0.667, read chained / small-m chained 0.400 |", said[1])

    def test_a_peer_that_fails_loses_its_turns_alone(self):
        peers = {FP8: [Peer(self.log, "DeepGEMM", deepgemm=12.0, deepgemm_pdl=None), Peer(self.log, "the floor", read=6.0, read_chained=4.0)]}
        failures, said, log = self.compare([(1, 4096, 7168, FP8), (14, 4096, 7168, FP8), (8, 4096, 7168, FP8)], peers)
        self.assertEqual(failures, 3)
        self.assertEqual(sum(line.startswith("deepgemm pdl") for line in log), 2)
        self.assertIn(f"# deepgemm pdl (1, 4096, 7168, '{FP8}'): RuntimeError: no kernel of deepgemm pdl", said)
        self.assertIn(f"# DeepGEMM (14, 4096, 7168, '{FP8}'): ValueError: 14 rows", said)
        times = decode.read(said)
        sides = {"deepgemm", "read", "read chained", "small-m", "small-m chained"}
        self.assertEqual(set(times[(1, 4096, 7168, FP8), "pauses"]), sides)
        # Neither peer prepared 14 rows: ours alone.
        self.assertEqual(set(times[(14, 4096, 7168, FP8), "sustained"]), {"small-m", "small-m chained"})
        self.assertTrue(any("| nobody beside it |" in line and line.endswith("| no peers |") for line in said))
        self.assertEqual(set(times[(8, 4096, 7168, FP8), "sustained"]), sides)
        self.assertEqual(log.count("started --bench --requests -"), 1)

    def test_what_is_refused_costs_its_problem_alone(self):
        failures, said, log = self.compare([(15, 100, 100, FP8)] * 4 + [(13, 4096, 7168, FP8), (1, 4096, 7168, FP8)], {FP8: []})
        self.assertEqual(failures, 5)
        self.assertEqual(said.count(f"# (15, 100, 100, '{FP8}'): 15 rows are odd"), 4)
        self.assertIn(f"# (13, 4096, 7168, '{FP8}'): Failed: the bench ended with 101 on `decode 13 4096 7168 fp8-1x128 fp8-128x128`", said)
        self.assertEqual(log.count("started --bench --requests -"), 2)
        self.assertEqual(len(decode.read(said)), 2)

    def test_the_summary_is_of_pairs_cadences_and_ways(self):
        line = "| {} | 4096 | 7168 | {} | pauses | {} | whatever |"
        record = [
            line.format(1, FP8, "deepgemm 20.00, deepgemm pdl 16.00, read 8.00, read chained 6.00, small-m 10.00, small-m chained 8.00"),
            line.format(64, FP8, "deepgemm 10.00, deepgemm pdl 11.00, read 8.00, read chained 6.00, native 16.00, native chained 8.00"),
            # Without a peer: of the read's mean alone.
            line.format(8, FP8, "read 9.00, small-m 16.00"),
            line.format(1, NVFP4, "read 4.00, small-m 5.00, small-m repacked 4.50"),
        ]
        said = []
        decode.summary(record, said.append)
        said = "\n".join(said).splitlines()
        self.assertIn(f"| {FP8} | pauses | planned | 2 | 1.000 | 1.600, 64 x 4096 x 7168 | 1 | 3 | 0.608 | 0.500, 64 x 4096 x 7168 |", said)
        self.assertIn(f"| {FP8} | pauses | planned chained | 2 | 0.632 | 0.800, 64 x 4096 x 7168 | 0 | 2 | 0.750 | 0.750, 1 x 4096 x 7168 |", said)
        self.assertIn(f"| {NVFP4} | pauses | planned repacked | 0 | - | - | 0 | 1 | 0.889 | 0.889, 1 x 4096 x 7168 |", said)
        again = []
        decode.summary(record + said, again.append)
        self.assertEqual("\n".join(again).splitlines(), said)

    def test_problems_bytes_and_calls(self):
        problems = decode.problems_of(None, None, None)
        self.assertEqual((len(problems), len(set(problems))), (60, 60))
        self.assertEqual(decode.problems_of([NVFP4], [(4096, 7168)], [1, 64]), [(1, 4096, 7168, NVFP4), (64, 4096, 7168, NVFP4)])
        self.assertEqual([decode.weight_bytes(pair, 4096, 7168) for pair in (FP8, NVFP4)], [29_360_128 + 32 * 56 * 4, 16_515_072])
        for m, n, k, pair in problems:
            shortest = decode.weight_bytes(pair, n, k) / decode.BYTES_A_US
            for timing in decode.TIMINGS:
                calls = decode.calls_of(shortest, 7, timing)
                # No shorter than benches/beside.rs makes its graphs longer by itself.
                self.assertTrue(calls % 7 == 0 and calls <= 1024 and calls * shortest >= 300)


class DecodeAlone(unittest.TestCase):
    """beside-decode.py as it is run, with a torch that has nothing, and neither package."""

    setUp = Turns.setUp

    def test_missing_packages_are_said_and_ours_goes_on(self):
        Path(self.folder.name, "torch.py").write_text("")
        Path(self.folder.name, "deep_gemm.py").write_text("raise RuntimeError('no GPU')")
        command = [sys.executable, HERE / "beside-decode.py", self.bench, "--shapes", "4096x7168", "--rows", "1,15", "--rounds", "1"]
        done = subprocess.run(command, env=dict(os.environ, PYTHONPATH=self.folder.name, PYTHONDONTWRITEBYTECODE="1"), capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (1, ""), done.stdout)
        said = done.stdout.splitlines()
        self.assertIn("# DeepGEMM has no turns: RuntimeError: no GPU", said)
        self.assertIn("# Humming has no turns: ModuleNotFoundError: No module named 'humming'", said)
        self.assertTrue(any(line.startswith("# the floor has no turns: ") for line in said), said)
        self.assertTrue(any(line.startswith("# prewarm: ") for line in said), said)
        self.assertEqual(len(decode.read(said)), 6)
        self.assertEqual(sum("15 rows are odd" in line for line in said), 3)
        self.assertTrue(any(line.startswith(f"| {NVFP4} | sustained | planned repacked chained | 0 | - | - | 0 | 0 | - ") for line in said), said)

    def test_what_compiles_too_long_is_ended(self):
        Path(self.folder.name, "torch.py").write_text("import sys, time\nif '--prewarm' in sys.argv: time.sleep(100)\n")
        command = [sys.executable, HERE / "beside-decode.py", self.bench, "--rows", "1", "--seconds", "2"]
        begin = time.time()
        done = subprocess.run(command, env=dict(os.environ, PYTHONPATH=self.folder.name, PYTHONDONTWRITEBYTECODE="1"), capture_output=True, text=True)
        self.assertLess(time.time() - begin, 60)
        said = done.stdout.splitlines()
        self.assertIn("# prewarm: not done in time", said)
        self.assertTrue(any(line.startswith("# no time for [(1, 4096, 7168, ") for line in said), said)


class Summary(unittest.TestCase):
    def summary(self, lines):
        said = []
        beside.summary(lines, said.append)
        return "\n".join(said).splitlines()

    def test_classes_counts_and_landmarks(self):
        line = "| {} | {} | {} | pauses | deepgemm {}, sm90 {}, native {} | plan sm90 | whatever |"
        said = self.summary([
            line.format(4096, 4096, 7168, 166.0, 83.0, 83.83),
            line.format(128, 7168, 2048, 10.0, 20.0, 19.0),
            # Outside of the published shapes: a landmark alone.
            line.format(96, 18432, 7168, 38.0, 36.1, 40.0),
        ])
        self.assertIn("| all | pauses | 2 | 1.000 | 0.95 | 1.000 | 0.980 | 1 | 1 |", said)
        self.assertIn("| k >= 7168, m >= 1024 | pauses | 1 | 0.500 | 0.98 | 0.500 | 1.010 | 0 | 0 |", said)
        self.assertIn("| m <= 512 | pauses | 1 | 2.000 | 0.94 | 2.000 | 0.950 | 1 | 1 |", said)
        self.assertIn("| all | sustained | 0 | - | 0.95 | - | - | 0 | 0 |", said)
        self.assertIn("| 96 x 18432 x 7168 | 36.10 | 36 | 38.00 | 38.3 | 0.950 |", said)
        # The worst first.
        self.assertTrue(said[-3].startswith("| 128 | 7168 | 2048 | pauses | 20.00 | 2.000 | 0.950 | 2.000 | 1.900 |"), said[-3])

    def test_records_of_before_are_read(self):
        record = HERE.parent / "benches/record/2026-11-26-nvidia-h200-sm90/beside.md"
        said = self.summary(record.read_text().splitlines())
        # As its README has it.
        self.assertTrue(any(line.startswith("| all | pauses | 56 | 0.991 |") for line in said))
        self.assertTrue(any(line.startswith("| all | sustained | 56 | 1.009 |") for line in said))

    def test_a_record_ends_with_its_summary(self):
        record = (HERE.parent / "benches/record/2026-11-26-nvidia-h200-sm90/beside.md").read_text().splitlines()
        said = self.summary(record)
        self.assertTrue(len(said) > 100)
        self.assertEqual(self.summary(record + said), said)

    def test_problems_and_calls(self):
        problems = beside.problems_of(None, None)
        self.assertEqual((len(problems), len(set(problems))), (117, 117))
        self.assertTrue(set(beside.LANDMARKS) <= set(problems))
        self.assertEqual(beside.problems_of([(4096, 7168)], [128, 8192]), [(128, 4096, 7168), (8192, 4096, 7168)])
        for problem in problems:
            for sets in (2, 7, 64):
                for timing in beside.TIMINGS.values():
                    calls = beside.calls_of(beside.shortest(*problem), sets, timing)
                    self.assertEqual(calls % sets, 0)
                    self.assertTrue(timing.least <= calls <= 1024)
        calls = {cadence: beside.calls_of(beside.shortest(8192, 8192, 8192), 2, timing) for cadence, timing in beside.TIMINGS.items()}
        self.assertEqual(calls, {"pauses": 2, "sustained": 12})

    def test_clocks_are_of_the_side_that_worked(self):
        clock = beside.Clock.__new__(beside.Clock)
        clock.seen = [(0.5, 1980, 100.0), (1.9, 1500, 600.0), (2.5, 1980, 300.0), (3.8, 1470, 610.0), (3.9, 1440, 620.0)]
        self.assertEqual(clock.during([(1.0, 2.0), (3.0, 4.0)]), "SM 1470 MHz (1440-1500), 610 W")
        self.assertEqual(clock.during([(5.0, 6.0)]), "clock unknown")
        self.assertEqual(beside_turns.parse_clock("1395, 688.21\n"), (1395, 688.21))
        self.assertIsNone(beside_turns.parse_clock("[N/A], 688.21"))


class WrongUse(unittest.TestCase):
    def run_with(self, *options, path=None, script="beside-deepgemm.py"):
        environment = dict(os.environ, **({"PYTHONPATH": path} if path else {}))
        done = subprocess.run([sys.executable, HERE / script, *options], env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    def refused(self, words, *options, path=None, script="beside-deepgemm.py"):
        code, out, error = self.run_with(*options, path=path, script=script)
        self.assertEqual((code, out), (2, ""), error)
        self.assertIn(words, error)
        self.assertNotIn("Traceback", error)

    def test_is_refused_before_anything_begins(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "torch.py"
            file.write_text("raise ImportError('no such torch')")
            self.refused("BENCH or --summary RECORD")
            self.refused(f"BENCH: {folder}/none is not an executable", f"{folder}/none")
            self.refused("is not an executable", str(file))
            self.refused("torch cannot be imported: ImportError: no such torch", sys.executable, path=folder)
            file.write_text("")
            (Path(folder) / "deep_gemm.py").write_text("raise RuntimeError('no GPU')")
            self.refused("deep_gemm cannot be imported: RuntimeError: no GPU", sys.executable, path=folder)
            self.refused("--shapes: 'foo' is not NxK", sys.executable, "--shapes", "8x8,foo")
            self.refused("--shapes: '8x8x8' is not NxK", sys.executable, "--shapes", "8x8x8")
            self.refused("--shapes: '' is not NxK", sys.executable, "--shapes", "")
            self.refused("--rounds: 0 is not a number of turns", sys.executable, "--rounds", "0")
            self.refused("--seconds: -1 is no time", sys.executable, "--seconds", "-1")
            self.refused("--rows: '0' is not a number of rows", sys.executable, "--rows", "8,0")
            self.refused("--configs: 'abc' is not a number of rows", sys.executable, "--configs", "abc")
            self.refused("none of these has an m n k of 1099511627776 or less", sys.executable, "--shapes", "1000000x1000000", "--rows", "10000000")
            self.refused(f"--summary {folder}/none: ", "--summary", f"{folder}/none")
            self.refused(f"no lines of a record in {file}", "--summary", str(file))

    def test_decode_is_refused_likewise(self):
        with tempfile.TemporaryDirectory() as folder:
            refused = lambda words, *options, path=None: self.refused(words, *options, path=path, script="beside-decode.py")
            file = Path(folder) / "torch.py"
            file.write_text("raise ImportError('no such torch')")
            refused("BENCH or --summary RECORD")
            refused("is not an executable", str(file))
            refused("torch cannot be imported: ImportError: no such torch", sys.executable, path=folder)
            refused("--pairs: 'nvfp4' is none of fp8-1x128xfp8-128x128, bf16xnvfp4, bf16xfp8-128x128", sys.executable, "--pairs", "nvfp4")
            refused("--shapes: '4096' is not NxK", sys.executable, "--shapes", "4096")
            refused("--rows: '' is not a number of rows", sys.executable, "--rows", "")
            refused("--rounds: 0 is not a number of turns", sys.executable, "--rounds", "0")
            refused("--seconds: nan is no time", sys.executable, "--seconds", "nan")
            refused(f"no lines of a record in {file}", "--summary", str(file))

    def test_a_reader_that_has_enough_costs_no_traceback(self):
        # More than a pipe holds is said to one that nobody reads.
        record = HERE.parent / "benches/record/2026-11-26-nvidia-h200-sm90/beside.md"
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "wb") as nobody:
            done = subprocess.run([sys.executable, HERE / "beside-deepgemm.py", "--summary", record], stdout=nobody, stderr=subprocess.PIPE, text=True)
        self.assertEqual((done.returncode, done.stderr), (128 + signal.SIGPIPE, ""))

    def test_help_names_what_is_to_be_used(self):
        for script in ("beside-deepgemm.py", "beside-decode.py"):
            code, out, _ = self.run_with("--help", script=script)
            self.assertEqual(code, 0)
            self.assertNotIn("--prewarm", out)
            self.assertNotIn("issue", out)
        self.assertIn("in the place of 4096x7168, 7168x2048, 2112x7168, 57344x8192", " ".join(out.split()))

    def test_casts_in_turns_say_their_use_without_torch(self):
        with tempfile.TemporaryDirectory() as folder:
            (Path(folder) / "torch.py").write_text("raise ImportError('no such torch')")
            code, out, error = self.run_with("--help", path=folder, script="casts-in-turns.py")
            self.assertEqual((code, error), (0, ""))
            self.assertIn("python3 casts-in-turns.py cast-copies.cubin STATE...", out)
            self.refused("python3 casts-in-turns.py cast-copies.cubin STATE...", "cast-copies.cubin", path=folder, script="casts-in-turns.py")
            code, out, error = self.run_with("--help", path=folder, script="quantizers-in-turns.py")
            self.assertEqual((code, error), (0, ""))
            self.refused("python3 quantizers-in-turns.py cast-copies.cubin STATE[:COLUMNS]...", "cast-copies.cubin", path=folder, script="quantizers-in-turns.py")
            code, out, error = self.run_with("--help", path=folder, script="sm90-in-turns.py")
            self.assertEqual((code, error), (0, ""))
            self.refused("python3 sm90-in-turns.py PROBLEMS STATE...", "512x4096x7168:128x128", path=folder, script="sm90-in-turns.py")
            for script in ("casts-in-turns.py", "quantizers-in-turns.py", "sm90-in-turns.py"):
                code, _, error = self.run_with("cast-copies.cubin", "state", path=folder, script=script)
                self.assertEqual((code, error), (1, "needs PyTorch and an NVIDIA GPU with its driver: no such torch\n"))

    def test_few_rows_in_turns_say_their_use_without_a_gpu(self):
        with tempfile.TemporaryDirectory() as folder:
            refused = lambda words, *options: self.refused(words, *options, path=folder, script="few-rows-in-turns.py")
            code, out, error = self.run_with("--help", path=folder, script="few-rows-in-turns.py")
            self.assertEqual((code, error), (0, ""))
            self.assertIn("A STATE is a folder with images", out)
            refused("holds none of small_m_repacked, small_m_e2m1, small_m_fp8, small_m_one_row as .cubin or .ptx; compile them", folder)
            (Path(folder) / "small_m_fp8.cubin").write_bytes(b"none")
            refused("two states have folders of one name", folder, folder)
            said = {"label": "one", "name": "k", "weights": "fp8", "least": 1, "tokens": 8, "warpgroups": 1, "steps": 1, "stages": 4, "splits": [1]}
            for wrong, words in (({"paced": "yes"}, "paced must be true or false"), ({"keeps_a": 3}, "keeps_a must be true or false"), ({"paced": None}, "paced must be true or false"),
                                 ({"slack": "x"}, "slack must be a number"), ({"slack": -1}, "slack must be a number"), ({"pased": True}, "pased is known to no one")):
                table = Path(folder) / "few-rows.json"
                table.write_text(json.dumps([{"image": "small_m_fp8", "kernels": [said | wrong]}]))
                code, out, error = self.run_with(folder, path=folder, script="few-rows-in-turns.py")
                self.assertEqual((code, out), (1, ""))
                self.assertIn(words, error)
                table.unlink()
            for shape in ("foo", "4096", "8x8x8", "", "12x128", "0x16"):
                refused("argument --shapes", "--shapes", shape, folder)
            for option in ("--rows", "--splits", "--layers"):
                refused(f"argument {option}: '0' is no number above 0", option, "0", folder)
            with mock.patch.dict(os.environ, SCALED_GEMM_LIBCUDA=f"{folder}/none.so"):
                code, out, error = self.run_with(folder, path=folder, script="few-rows-in-turns.py")
            self.assertEqual((code, out), (1, ""))
            self.assertIn("this wants a machine with an NVIDIA GPU", error)
            self.assertNotIn("Traceback", error)

    def test_few_rows_mirror_the_structs_and_tables_of_the_kernels(self):
        root = HERE.parent
        script = (HERE / "few-rows-in-turns.py").read_text()
        for rust, name, ours in (("small_m.rs", "SmallMProblem", "FP8_PROBLEM"), ("small_m_weights.rs", "SmallMWeightsProblem", "WEIGHTS_PROBLEM")):
            text = (root / "src/gpu/kernels" / rust).read_text()
            types = re.findall(r": (u32|f32|u64),", re.search(rf"struct {name} \{{(.*?)\n\}}", text, re.S)[1])
            layout = "".join({"u32": "I", "f32": "f", "u64": "Q"}[t] for t in types)
            # As C lays them out, which aligns what has eight bytes to eight.
            form = re.search(rf'^{ours} = "(.*)"', script, re.M)
            self.assertEqual(struct.calcsize("@" + layout), struct.calcsize(form[1]), name)
            self.assertRegex(layout, "^I{13}ffQ+$")
        kernels = {image["image"]: image["kernels"] for image in json.loads((HERE / "few-rows.json").read_text())}
        for image, keys in (("small_m_fp8", "warpgroups steps stages"), ("small_m_e2m1", "pairs warps stages"), ("small_m_repacked", "pairs warps stages")):
            source = (root / f"kernels/gemm/{image}.cu").read_text()
            table = {name: [int(number) for number in rest.split(", ")] for name, rest in re.findall(r"^SMALL_M(?:_LINK)?\((\w+), ([\d, ]+)\)", source, re.M)}
            widths = (8, 16, 32) if image == "small_m_fp8" else (8, 16)
            self.assertEqual(sorted(said["name"].split("_8_" if said["tokens"] == 8 else f"_{said['tokens']}_")[1] for said in kernels[image]), sorted(len(widths) * list(table)))
            for said in kernels[image]:
                first, second, *stages = table[said["name"].split(f"_{said['tokens']}_")[1]]
                # Of FP8 those with up to eight rows of A, then those with more; of others what follows is no stage.
                of_width = stages[image == "small_m_fp8" and said["tokens"] > 8]
                self.assertIn(said["tokens"], widths)
                self.assertEqual(tuple(said[key] for key in keys.split()), (first, second, of_width), said["name"])
        source = (root / "kernels/gemm/small_m_one_row.cu").read_text()
        rows = re.findall(r"^SMALL_M(_REPACKED)?\((\w+), (\d+), (\d+), (\d+)", source, re.M)
        table = [(f"gemm_small_m_nvfp4{order.lower()}_bf16_1_{name}_{stages}", int(pairs), int(warps), int(stages)) for order, name, pairs, warps, stages in rows]
        self.assertEqual([(said["name"], said["pairs"], said["warps"], said["stages"]) for said in kernels["small_m_one_row"]], table)
        self.assertTrue(all(said["keeps_a"] and said["tokens"] == 1 for said in kernels["small_m_one_row"]))


if __name__ == "__main__":
    unittest.main()
