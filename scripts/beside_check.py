#!/usr/bin/env python3
"""Checks beside-deepgemm.py without a GPU: both sides are stand-ins, which write down when they work.

usage: scripts/beside_check.py"""

import importlib.util, os, signal, stat, subprocess, sys, tempfile, time, unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
specification = importlib.util.spec_from_file_location("beside", HERE / "beside-deepgemm.py")
beside = importlib.util.module_from_spec(specification)
specification.loader.exec_module(beside)

# Speaks as benches/beside.rs does. A problem of 13 rows kills it.
BENCH = """#!{python}
import os, sys
ways = ["sm90", "native", "repeated-scales", "sm90 of-one-kind", "sm90 of-another"]
us = [9.0, 10.0, 14.0, 8.5, 9.5]
print("# the head")
log = open("{log}", "a")
log.write("started " + " ".join(sys.argv[1:]) + " " + os.environ.get("SCALED_GEMM_CONFIGS", "-") + "\\n")
for line in sys.stdin:
    log.write("ours " + line)
    log.flush()
    words = line.split()
    if words[0] == "problem":
        if words[1] == "13":
            print("13 rows panic")
            sys.exit(101)
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
        return 3e-3

    def time(self, calls, cadence):
        self.write(f"theirs time {cadence} {calls}")
        self.turn += 1
        return [10.0, 9.5, 11.0][self.turn % 3]

    def write(self, line):
        with open(self.log, "a") as log:
            log.write(line + "\n")


class Clock:
    def during(self, turns):
        assert all(start <= end for start, end in turns)
        return f"{len(turns)} turns"


class Turns(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.log = os.path.join(self.folder.name, "log")
        self.bench = os.path.join(self.folder.name, "bench")
        Path(self.bench).write_text(BENCH.format(python=sys.executable, log=self.log))
        os.chmod(self.bench, stat.S_IRWXU)

    def compare(self, problems, configs=None, seconds=60.0):
        said = []
        start = lambda: beside.Bench(self.bench, configs, said.append)
        failures = beside.compare(problems, start, Other(self.log), Clock(), seconds, 3, time.time(), said.append)
        return failures, said, Path(self.log).read_text().splitlines() if os.path.exists(self.log) else []

    def test_sides_take_turns_and_each_turn_is_alike(self):
        failures, said, log = self.compare([(128, 4096, 7168)])
        self.assertEqual(failures, 0)
        self.assertEqual(log[:3], ["started --bench --requests -", "ours problem 128 4096 7168", "theirs problem 128 4096 7168 3"])
        # 31.6 MB a call: 6.6 us at the least, 46 of them 300 us, in whole rounds over three sets.
        theirs = lambda cadence: f"theirs time {cadence} 48"
        ours = lambda cadence, way: f"ours time {cadence} 48 {'7 50' if cadence == 'pauses' else '9 100'} {way}"
        expected = []
        for cadence in ("pauses", "sustained"):
            expected += [theirs(cadence)] + [ours(cadence, way) for way in (0, 1, 2)]
            # Every other round backwards, without the formulation that is far behind.
            expected += [ours(cadence, 1), ours(cadence, 0), theirs(cadence)]
            expected += [theirs(cadence), ours(cadence, 0), ours(cadence, 1)]
        self.assertEqual(log[3:], expected)
        self.assertEqual(said[0], "# the head")
        self.assertEqual(said[-1], "the end")
        self.assertEqual(said[1], "| 128 | 4096 | 7168 | pauses | deepgemm 10.00, sm90 9.00, native 10.00, repeated-scales 14.00 | plan sm90 | plan / DeepGEMM 0.900, cuBLASLt / plan 1.111 "
                                  "| deepgemm 9.50 11.00 10.00; sm90 9.00 9.00 9.00; native 10.00 10.00 10.00; repeated-scales 14.00 | deepgemm 3 turns; sm90 3 turns | error 3.0e-03 |")

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
        self.assertIn("| 14 | 4096 | 7168 | pauses | sm90 9.00, native 10.00, repeated-scales 14.00 | plan sm90 | cuBLASLt / plan 1.111 | sm90 9.00 9.00 9.00; native 10.00 10.00 10.00; repeated-scales 14.00 "
                      "| sm90 3 turns | no DeepGEMM |", said)
        self.assertEqual(log.count("started --bench --requests -"), 2)
        whole = {problem for problem, ways in beside.read(said).items() if "deepgemm" in ways}
        self.assertEqual(whole, {((128, 4096, 7168), "pauses"), ((128, 4096, 7168), "sustained")})
        self.assertEqual(self.compare([(13, 8, 128)] * 5)[0], 3)

    def test_no_problem_begins_after_the_time(self):
        failures, said, log = self.compare([(128, 4096, 7168), (256, 4096, 7168)], seconds=-1.0)
        self.assertEqual((failures, said, log), (0, ["# no time for [(128, 4096, 7168), (256, 4096, 7168)]"], []))


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
                for cadence, (least, *_) in beside.CADENCES.items():
                    calls = beside.calls_of(*problem, sets, cadence)
                    self.assertEqual(calls % sets, 0)
                    self.assertTrue(least <= calls <= 1024)
        self.assertEqual(beside.calls_of(8192, 8192, 8192, 2, "pauses"), 2)
        self.assertEqual(beside.calls_of(8192, 8192, 8192, 2, "sustained"), 12)

    def test_clocks_are_of_the_side_that_worked(self):
        clock = beside.Clock.__new__(beside.Clock)
        clock.seen = [(0.5, 1980, 100.0), (1.9, 1500, 600.0), (2.5, 1980, 300.0), (3.8, 1470, 610.0), (3.9, 1440, 620.0)]
        self.assertEqual(clock.during([(1.0, 2.0), (3.0, 4.0)]), "SM 1470 MHz (1440-1500), 610 W")
        self.assertEqual(clock.during([(5.0, 6.0)]), "clock unknown")
        self.assertEqual(beside.parse_clock("1395, 688.21\n"), (1395, 688.21))
        self.assertIsNone(beside.parse_clock("[N/A], 688.21"))


class WrongUse(unittest.TestCase):
    def run_with(self, *options, path=None):
        environment = dict(os.environ, **({"PYTHONPATH": path} if path else {}))
        done = subprocess.run([sys.executable, HERE / "beside-deepgemm.py", *options], env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    def refused(self, words, *options, path=None):
        code, out, error = self.run_with(*options, path=path)
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
            self.refused("--rows: '0' is not a number of rows", sys.executable, "--rows", "8,0")
            self.refused(f"--summary {folder}/none: ", "--summary", f"{folder}/none")
            self.refused(f"no lines of a record in {file}", "--summary", str(file))

    def test_a_reader_that_has_enough_costs_no_traceback(self):
        # More than a pipe holds is said to one that nobody reads.
        record = HERE.parent / "benches/record/2026-11-26-nvidia-h200-sm90/beside.md"
        reading, writing = os.pipe()
        os.close(reading)
        with os.fdopen(writing, "wb") as nobody:
            done = subprocess.run([sys.executable, HERE / "beside-deepgemm.py", "--summary", record], stdout=nobody, stderr=subprocess.PIPE, text=True)
        self.assertEqual((done.returncode, done.stderr), (128 + signal.SIGPIPE, ""))

    def test_help_names_what_is_to_be_used(self):
        code, out, _ = self.run_with("--help")
        self.assertEqual(code, 0)
        self.assertNotIn("--prewarm", out)


if __name__ == "__main__":
    unittest.main()
