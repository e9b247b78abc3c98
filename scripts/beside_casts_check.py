#!/usr/bin/env python3
"""Checks beside-casts.py without a GPU: all sides are stand-ins, which write down when they work.

usage: scripts/beside_casts_check.py"""

import os, subprocess, sys, tempfile, time, unittest
from pathlib import Path

import beside_casts_peers as peers
import beside_turns
from beside_check import script, stand_in

HERE = Path(__file__).resolve().parent
casts = script("beside-casts")

# Speaks as benches/beside_casts.rs does: 9 us. 13 rows kill it, and 15 it refuses.
BENCH = """#!{python}
import sys
print("# the head")
log = open("{log}", "a")
log.write("started " + " ".join(sys.argv[1:]) + "\\n")
for line in sys.stdin:
    log.write("ours " + line)
    log.flush()
    words = line.split()
    if words[0] == "cast" and words[1] == "13":
        sys.exit(101)
    if words[0] == "cast" and words[1] == "15":
        print("refused 15 rows are odd", flush=True)
    elif words[0] == "cast":
        print("ready 3 | 88080384 | ours", flush=True)
    else:
        assert words[5] == "0", line
        print("times 9.0", flush=True)
print("the end")
"""


class Side:
    """In a peer's place: so many us, of rows that have one of these words. Without a time it fails when it is timed, and 14 rows it cannot prepare."""

    def __init__(self, log, name, us, words=("",)):
        self.log, self.name, self.us, self.words, self.sides = log, name, us, words, (name,)

    def problem(self, row, rows, cols, sets):
        if not any(word in str(row) for word in self.words):
            return None
        self.write(f"{self.name} problem {row.kind} {rows} {cols} {sets}")
        if rows == 14:
            raise ValueError("14 rows")
        return f"{self.name} noted"

    def time(self, side, calls, timing):
        self.write(f"{side} {timing.cadence} {calls} {timing.launches} {timing.warm_up}")
        if self.us is None:
            raise RuntimeError("no\nkernel")
        return self.us

    def write(self, line):
        with open(self.log, "a") as log:
            log.write(line + "\n")


class Clock:
    def during(self, turns):
        return f"{len(turns)} turns"


PLAIN, BACK = "e4m3 1x128 row-major", "e4m3 1x128 row-major back to bf16"


class Turns(unittest.TestCase):
    def setUp(self):
        stand_in(self, BENCH)

    def compare(self, problems, sides, rounds=2):
        said = []
        measure = lambda problem, bench: casts.measure(problem, bench, sides, Clock(), rounds, said.append)
        failures = beside_turns.compare(problems, lambda: beside_turns.Bench(self.bench, None, said.append), measure, 60.0, time.time(), said.append)
        return failures, said, Path(self.log).read_text().splitlines()

    def test_all_sides_take_turns_and_each_turn_is_alike(self):
        sides = [Side(self.log, "copy", 12.0), Side(self.log, "tilekernels", 10.0), Side(self.log, "torchao", 18.0, ["plain"])]
        failures, said, log = self.compare([(PLAIN, 4096, 7168)], sides)
        self.assertEqual(failures, 0)
        self.assertEqual(log[:5], ["started --bench --requests", f"ours cast 4096 7168 {PLAIN}"] + [f"{side} problem plain 4096 7168 3" for side in ("copy", "tilekernels", "torchao")])
        expected = []
        # 88 MB a call: 18.4 us at the least, 17 of them 300 us, in whole rounds over three sets.
        for cadence, launches, warm_up in (("pauses", 7, 15), ("sustained", 9, 25)):
            like = f"{cadence} 18 {launches} {warm_up}"
            once = [f"{side} {like}" for side in ("copy", "tilekernels", "torchao")] + [f"ours time {like} 0"]
            expected += once + once[::-1]
        self.assertEqual(log[5:], expected)
        # Of the copy, 4 bytes an element in 12 us, 0.75 of the bytes in 0.75 of the time.
        self.assertEqual(said[1], f"| {PLAIN} | 4096 x 7168 | pauses | copy 12.00, tilekernels 10.00, torchao 18.00, ours 9.00 | 88080384 bytes | ours / tilekernels 0.900, ours / torchao 0.500 "
                                  "| tilekernels 0.900, torchao 0.500, ours 1.000 | copy 12.00 12.00; tilekernels 10.00 10.00; torchao 18.00 18.00; ours 9.00 9.00 | ours 2 turns "
                                  "| copy noted; tilekernels noted; torchao noted |")
        self.assertEqual(len(casts.read(said)), 2)

    def test_who_has_no_such_cast_has_no_turns_and_costs_nothing(self):
        sides = [Side(self.log, "copy", 12.0), Side(self.log, "torchao", 18.0, ["plain"])]
        failures, said, log = self.compare([(BACK, 4096, 7168)], sides, 1)
        self.assertEqual(failures, 0)
        self.assertFalse(any(line.startswith("torchao") for line in log))
        self.assertIn("| nobody beside it | ours 1.000 |", said[1])

    def test_a_side_that_fails_is_said_and_loses_its_turns_alone(self):
        sides = [Side(self.log, "copy", 12.0, ["plain"]), Side(self.log, "tilekernels", None), Side(self.log, "torchao", 18.0)]
        failures, said, log = self.compare([(PLAIN, 4096, 7168), (PLAIN, 14, 7168), (BACK, 4096, 7168)], sides)
        self.assertEqual(failures, 3)
        self.assertEqual(sum(line.startswith("tilekernels pauses") for line in log), 2)
        self.assertIn(f"# tilekernels ('{PLAIN}', 4096, 7168): RuntimeError: no kernel", said)
        self.assertIn(f"# torchao ('{PLAIN}', 14, 7168): ValueError: 14 rows", said)
        times = casts.read(said)
        self.assertEqual(set(times[(PLAIN, 4096, 7168), "pauses"][0]), {"copy", "torchao", "ours"})
        self.assertEqual(set(times[(PLAIN, 14, 7168), "pauses"][0]), {"ours"})
        self.assertTrue(any("| nobody beside it | no copy |" in line for line in said))
        self.assertEqual(set(times[(BACK, 4096, 7168), "sustained"][0]), {"torchao", "ours"})
        self.assertEqual(log.count("started --bench --requests"), 1)

    def test_our_side_refuses_a_row_or_ends_on_it(self):
        failures, said, log = self.compare([(PLAIN, 15, 7168), (PLAIN, 13, 7168), (PLAIN, 4096, 7168)], [])
        self.assertEqual(failures, 2)
        self.assertIn(f"# ('{PLAIN}', 15, 7168): 15 rows are odd", said)
        self.assertIn(f"# ('{PLAIN}', 13, 7168): Failed: the bench ended with 101 on `cast 13 7168 {PLAIN}`", said)
        self.assertEqual(log.count("started --bench --requests"), 2)
        self.assertTrue(said[-2].endswith("| no peers |") or any(line.endswith("| no peers |") for line in said))

    def test_as_it_is_run_missing_packages_are_said_and_ours_goes_on(self):
        Path(self.folder.name, "torch.py").write_text("")
        Path(self.folder.name, "torchao.py").write_text("raise RuntimeError('no GPU')")
        command = [sys.executable, HERE / "beside-casts.py", self.bench, "--casts", "lossless", "--shapes", "4096x7168,15x7168", "--rounds", "1"]
        done = subprocess.run(command, env=dict(os.environ, PYTHONPATH=self.folder.name, PYTHONDONTWRITEBYTECODE="1"), capture_output=True, text=True)
        self.assertEqual((done.returncode, done.stderr), (1, ""), done.stdout)
        said = done.stdout.splitlines()
        self.assertIn("# TileKernels has no turns: ModuleNotFoundError: No module named 'tile_kernels'", said)
        self.assertIn("# TileKernels 1 has no turns: Failed: --tile-kernels-1 was not given", said)
        self.assertIn("# torchao has no turns: RuntimeError: no GPU", said)
        self.assertTrue(any(line.startswith("# PyTorch has no turns: ") for line in said), said)
        self.assertTrue(any(line.startswith("# TransformerEngine has no turns: ") for line in said), said)
        self.assertEqual(len(casts.read(said)), 2)
        self.assertIn("| e2m1 1x32 ue8m0 to e4m3 1x128 ue8m0, lossless |  | 9.00 |  |", said)


class Tables(unittest.TestCase):
    LINE = "| {} | {} x 7168 | {} | {} | {} bytes | whatever |"

    def summary(self, lines):
        said = []
        casts.summary(lines, said.append)
        return "\n".join(said).splitlines()

    def test_shares_means_and_who_is_fastest(self):
        record = [
            # 4 x 4096 x 7168 bytes in 40 us; ours 3 bytes an element in 30.
            self.LINE.format(PLAIN, 4096, "sustained", "copy 40.00, tilekernels 32.00, torchao 60.00, ours 30.00", 88080384),
            self.LINE.format("swiglu to e4m3 row row-major", 4096, "sustained", "copy 40.00, tilekernels-1 50.00, ours 60.00", 146800640),
            self.LINE.format("e4m3 1x16 row-major", 4096, "sustained", "copy 40.00, tilekernels 20.00, ours 30.00", 88080384),
            self.LINE.format(PLAIN, 128, "pauses", "ours 2.00", 2752512),
        ]
        said = self.summary(record)
        self.assertIn("| row | copy | ours | tilekernels | tilekernels-1 | torchao | ours / the fastest |", said)
        self.assertIn(f"| {PLAIN} | 40.00 | 30.00 (1.000) | 32.00 (0.938) |  | 60.00 (0.500) | 0.938 |", said)
        self.assertIn("| swiglu to e4m3 row row-major | 40.00 | 60.00 (0.833) |  | 50.00 (1.000) |  | 1.200 |", said)
        self.assertIn("| row | copy | ours | ours / the fastest |", said)
        self.assertIn(f"| {PLAIN} |  | 2.00 |  |", said)
        self.assertIn(f"| 4096 | sustained | tilekernels | 2 | 1.186 | 0.938, {PLAIN} | 1.500, e4m3 1x16 row-major |", said)
        # Made again of a record with its own tables, they are the same.
        self.assertEqual(self.summary(record + said), said)

    def test_rows(self):
        problems = casts.problems_of(None, None)
        self.assertEqual((len(problems), len(set(problems))), (144, 144))
        self.assertEqual({problem[1:] for problem in problems if problem[0].startswith(("swiglu", "norm"))}, set(casts.PRODUCED))
        self.assertEqual({problem[1:] for problem in problems if problem[0] == "copy"}, set(casts.SHAPES))
        self.assertEqual(casts.problems_of(["lossless"], [(256, 512)]), [("e2m1 1x32 ue8m0 to e4m3 1x128 ue8m0, lossless", 256, 512)])
        for label, *_ in problems:
            kind, source, to = peers.row_of(label)
            words = lambda scheme: f"{scheme.format} {peers.words_of(scheme)}"
            made = {"copy": lambda: "copy", "plain": lambda: words(to), "coded": lambda: f"{words(source)} to {words(to)}", "lossless": lambda: f"{words(source)} to {words(to)}, lossless",
                    "back": lambda: f"{words(source)} back to bf16", "swiglu": lambda: f"swiglu to {words(to)}", "gradients": lambda: f"swiglu backward of codes to {words(to)} and BF16",
                    "norm": lambda: f"norm with residual to {words(to)}"}[kind]()
            self.assertEqual(made, label)

    def test_who_serves_what(self):
        inputs = peers.Inputs()
        two, one, ao = peers.TileKernels(inputs), peers.TileKernels1(inputs, ""), peers.TorchAo(inputs)
        labels = casts.CASTS + casts.PRODUCERS
        served = lambda peer: {label for label in labels if label != "copy" and peer.serves(peers.row_of(label))}
        # Every row but the copy has somebody beside it.
        self.assertEqual(served(two) | served(one) | served(ao), set(labels) - {"copy"})
        # The two versions both have the gradients alone.
        self.assertEqual(served(two) & served(one), {"swiglu backward of codes to e4m3 1x128 row-major and BF16"})
        self.assertEqual(served(one) - served(two), {"e4m3 row row-major", "e2m1 row row-major", "e4m3 32x1 row-major transposed", "e4m3 128x1 row-major transposed", "swiglu to e4m3 128x1 row-major",
                                                     "swiglu to e4m3 128x1 row-major transposed"})
        self.assertEqual(served(ao), {f"e4m3 {words}" for words in peers.TorchAo.SERVED})


class WrongUse(unittest.TestCase):
    def run_with(self, *options, path=None):
        environment = dict(os.environ, **({"PYTHONPATH": path} if path else {}))
        done = subprocess.run([sys.executable, HERE / "beside-casts.py", *options], env=environment, capture_output=True, text=True)
        return done.returncode, done.stdout, done.stderr

    def test_is_refused_before_anything_begins(self):
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "torch.py"
            file.write_text("raise ImportError('no such torch')")
            for words, *options in (
                ("give BENCH, --summary RECORD or --list",),
                ("cargo bench --bench beside_casts --no-run", str(file)),
                ("torch cannot be imported: ImportError: no such torch", sys.executable),
                ("--shapes: '8' is not RxC", sys.executable, "--shapes", "8"),
                ("--casts: 'nvfp4' is in no row", sys.executable, "--casts", "nvfp4"),
                ("--casts: '' is in no row", sys.executable, "--casts", ""),
                ("--casts: '' is in no row", sys.executable, "--casts", "swiglu,"),
                ("--casts: 'nvfp4' is in no row; --list", sys.executable, "--casts", "swiglu,nvfp4"),
                ("--rounds: 0 is not a number of turns", sys.executable, "--rounds", "0"),
                ("--seconds: -1 is no time", sys.executable, "--seconds", "-1"),
                ("--seconds: nan is no time", sys.executable, "--seconds", "nan"),
                (f"no lines of a record in {file}", "--summary", str(file)),
            ):
                code, out, error = self.run_with(*options, path=folder)
                self.assertEqual((code, out), (2, ""), error)
                self.assertIn(words, error)
                self.assertNotIn("Traceback", error)

    def test_help_and_list(self):
        code, out, _ = self.run_with("--help")
        self.assertEqual(code, 0)
        self.assertNotIn("--prewarm", out)
        code, out, _ = self.run_with("--list", "--casts", "swiglu,lossless")
        self.assertEqual((code, len(out.splitlines())), (0, 27))


if __name__ == "__main__":
    unittest.main()
