#!/usr/bin/env python3
"""Checks beside-grouped.py without a GPU: both sides are stand-ins, which write down when they work.

usage: scripts/beside_grouped_check.py"""

import os, re, subprocess, sys, tempfile, time, unittest
from pathlib import Path

import beside_check, beside_turns
from beside_check import Clock, script, stand_in

HERE = Path(__file__).resolve().parent
grouped = script("beside-grouped")
Case = grouped.Case
CASE = Case(1024, 4096, 7168, "contiguous", 2)
SLOTS = Case(20, 4096, 7168, "masked", 3)

# Speaks as benches/beside_grouped.rs does. Groups of one matrix of 256 rows kill it, and those of 384 it refuses.
BENCH = """#!{python}
import os, sys
ways = ["grouped", "grouped 256x128", "grouped 128x128"]
us = [9.0, 8.5, 9.5]
log = open("{log}", "a")
log.write("started " + " ".join(sys.argv[1:]) + " " + os.environ.get("SCALED_GEMM_CONFIGS", "-") + "\\n")
for line in sys.stdin:
    log.write("ours " + line)
    log.flush()
    words = line.split()
    if words[0] == "groups" and words[2] == "256":
        sys.exit(101)
    if words[0] == "groups" and words[2] == "384":
        print("refused 384 are too few", flush=True)
    elif words[0] == "groups":
        print("ready 3 | one launch of 256x128 | " + " | ".join(ways if "SCALED_GEMM_CONFIGS" in os.environ else ways[:1]), flush=True)
    else:
        print("times " + " ".join(str(us[int(way)]) for way in words[5].split(",")), flush=True)
"""


class Other(beside_check.Other):
    """In DeepGEMM's place, as fast as there. Groups of matrices of 512 rows it cannot."""

    def problem(self, case, rows, step, sets):
        self.write(f"theirs {case} {rows} {step} {sets}")
        if case.n == 512:
            raise ValueError("512 rows")
        return "error 3.0e-03"


class Turns(unittest.TestCase):
    def setUp(self):
        stand_in(self, BENCH)

    def compare(self, cases, configs=None):
        said = []
        measure = lambda case, bench: grouped.measure(case, bench, Other(self.log), Clock(), 3, said.append)
        failures = beside_turns.compare(cases, lambda: beside_turns.Bench(self.bench, configs, said.append), measure, 60.0, time.time(), said.append)
        return failures, said, Path(self.log).read_text().splitlines()

    def test_both_sides_have_the_same_groups_and_take_turns(self):
        failures, said, log = self.compare([CASE, SLOTS])
        self.assertEqual(failures, 0)
        rows = grouped.rows_of(CASE)
        self.assertEqual(log[:3], ["started --bench --requests -", f"ours groups contiguous 4096 7168 128 {rows[0]},{rows[1]}", f"theirs contiguous-2x1024-4096x7168 {rows} 128 3"])
        expected = []
        for cadence, rest in (("pauses", "7 50"), ("sustained", "9 300")):
            calls = beside_turns.calls_of(grouped.shortest(CASE), 3, grouped.TIMINGS[cadence == "sustained"])
            ours, theirs = f"ours time {cadence} {calls} {rest} 0", f"theirs time {cadence} {calls} {rest}"
            expected += [theirs, ours, ours, theirs, theirs, ours]
        self.assertEqual(log[3:15], expected)
        few = grouped.rows_of(SLOTS)
        self.assertEqual(log[15:17], [f"ours groups masked 4096 7168 4096 {','.join(map(str, few))}", f"theirs masked-3x20-4096x7168 {few} 4096 3"])
        self.assertEqual(said[0], f"| contiguous | 2 | {sum(rows)} | 4096 | 7168 | pauses | deepgemm 10.00, grouped 9.00 | one launch of 256x128 | grouped / DeepGEMM 0.900 "
                                  "| deepgemm 9.50 11.00 10.00; grouped 9.00 9.00 9.00 | deepgemm 3 turns; grouped 3 turns | error 3.0e-03 |")
        self.assertEqual(len(grouped.read(said)), 4)

    def test_whoever_is_told_begins(self):
        said, bench = [], beside_turns.Bench(self.bench, None, [].append)
        for backwards in (False, True):
            grouped.measure(CASE, bench, Other(self.log), Clock(), 1, said.append, backwards)
        bench.stop()
        turns = [line.split()[0] for line in Path(self.log).read_text().splitlines() if " time pauses" in line]
        self.assertEqual(turns, ["theirs", "ours", "ours", "theirs"])

    def test_configurations_have_a_line_that_no_summary_counts(self):
        _, said, log = self.compare([CASE], configs="1")
        self.assertEqual(log[0], "started --bench --requests 1")
        self.assertRegex(log[-1], r"^ours time pauses \d+ 7 50 1,2$")
        line = f"| contiguous | 2 | {sum(grouped.rows_of(CASE))} | 4096 | 7168 | configurations | 256x128 8.50, 128x128 9.50 |"
        self.assertIn(line, said)
        self.assertEqual(grouped.read([line]), {})

    def test_a_side_that_fails_is_said_and_costs_its_case_alone(self):
        cases = [CASE._replace(n=256), CASE._replace(n=384), CASE._replace(n=512), SLOTS]
        failures, said, log = self.compare(cases)
        self.assertEqual(failures, 3)
        self.assertTrue(any(line.startswith("# contiguous-2x1024-256x7168: ") and "the bench ended with 101" in line for line in said), said)
        self.assertTrue(any(line.startswith("# contiguous-2x1024-384x7168: ") and line.endswith(": 384 are too few") for line in said), said)
        self.assertIn("# DeepGEMM contiguous-2x1024-512x7168: ValueError: 512 rows", said)
        self.assertTrue(any("| nobody beside it | grouped 9.00 9.00 9.00 | grouped 3 turns | no DeepGEMM |" in line for line in said), said)
        self.assertEqual(log.count("started --bench --requests -"), 2)
        # Of the third ours alone, and of the last both.
        self.assertEqual([set(times) for times in grouped.read(said).values()], [{"grouped"}] * 2 + [{"deepgemm", "grouped"}] * 2)


class Alone(unittest.TestCase):
    def test_groups_are_the_same_in_every_run_and_about_as_large_as_usual(self):
        words = list(map(str, grouped.CASES))
        self.assertEqual(len(set(words)), len(words))
        for case in grouped.CASES:
            rows = grouped.rows_of(case)
            self.assertEqual(rows, grouped.rows_of(case))
            self.assertEqual(len(rows), case.groups)
            self.assertTrue(all(0.69 * case.usual - 1 <= count <= 1.3 * case.usual and count <= 4096 * 4 for count in rows))
            self.assertTrue(case.kind == "contiguous" or max(rows) <= grouped.STEPS["masked"])
        # As a record has them.
        self.assertEqual(sum(grouped.rows_of(grouped.CASES[0])), 36955)

    def test_the_summary_is_of_kinds_and_cadences(self):
        line = "| {} | 8 | {} | 4096 | 7168 | {} | deepgemm {}, grouped {} | one launch | whatever |"
        record = [line.format("contiguous", 8000, "pauses", 10.0, 8.0), line.format("contiguous", 128, "pauses", 10.0, 12.5), line.format("masked", 128, "sustained", 10.0, 9.0),
                  "| masked | 8 | 160 | 4096 | 7168 | pauses | grouped 9.00 | one launch | nobody beside it |"]
        said = []
        grouped.summary(record, said.append)
        said = "\n".join(said).splitlines()
        self.assertIn("| contiguous | pauses | 2 | 1.000 | 0.97 | 1.250, 8 x 128, 4096 x 7168 |", said)
        self.assertIn("| masked | sustained | 1 | 0.900 | 0.97 | 0.900, 8 x 128, 4096 x 7168 |", said)
        self.assertEqual(sum(row.startswith(("| contiguous", "| masked")) for row in said), 2)
        again = []
        grouped.summary(record + said, again.append)
        self.assertEqual("\n".join(again).splitlines(), said)

    def test_wrong_use_is_refused_before_anything_begins(self):
        with tempfile.TemporaryDirectory() as folder:
            def refused(words, *options):
                done = subprocess.run([sys.executable, HERE / "beside-grouped.py", *options], env=dict(os.environ, PYTHONPATH=folder, PYTHONDONTWRITEBYTECODE="1"), capture_output=True, text=True)
                self.assertEqual((done.returncode, done.stdout), (2, ""), done.stderr)
                self.assertIn(words, done.stderr)
                self.assertNotIn("Traceback", done.stderr)
            torch = Path(folder) / "torch.py"
            torch.write_text("raise ImportError('no such torch')")
            refused("BENCH or --summary RECORD")
            refused("`cargo bench --bench beside_grouped --no-run` builds and names it", str(torch))
            refused("torch cannot be imported: ImportError: no such torch", sys.executable)
            torch.write_text("")
            (Path(folder) / "deep_gemm.py").write_text("raise RuntimeError('no GPU')")
            refused("deep_gemm cannot be imported: RuntimeError: no GPU", sys.executable)
            refused("--cases: 'contiguous-8x1024' is not KIND-GxR-NxK", sys.executable, "--cases", "contiguous-8x1024")
            refused("--cases: '' is not KIND-GxR-NxK", sys.executable, "--cases", "")
            refused("--cases: masked-8x64-4096x100: n and k must be multiples of 128", sys.executable, "--cases", "masked-8x64-4096x100")
            refused("--cases: masked-8x4096-4096x128: 1.3 times as many rows do not fit in slots of 4096", sys.executable, "--cases", "masked-8x4096-4096x128")
            refused("--cases: contiguous-99999999999x1-128x128: more than 4194304 rows in all", sys.executable, "--cases", "contiguous-99999999999x1-128x128")
            refused("--rounds: 0 is not a number of turns", sys.executable, "--rounds", "0")
            refused(f"no lines of a record in {torch}", "--summary", str(torch))
            line = "| masked | 8 | 160 | 4096 | 7168 | pauses | deepgemm {}, grouped 9.00 | one launch | whatever |"
            for us in ("0.00", "x"):
                torch.write_text(line.format(us))
                refused(f"--summary {torch}: a line of it is broken: ", "--summary", str(torch))

    def test_help_names_what_is_to_be_used(self):
        done = subprocess.run([sys.executable, HERE / "beside-grouped.py", "--help"], capture_output=True, text=True)
        self.assertEqual(done.returncode, 0)
        self.assertNotIn("--prewarm", done.stdout)
        self.assertIn("contiguous-4x8192-4096x7168", re.sub(r"\s+", "", done.stdout))


if __name__ == "__main__":
    unittest.main()
