#!/usr/bin/env python3
"""Checks measured-choices.py: the committed tables are what it makes of the committed records, and what is no record is refused.

usage: scripts/measured_choices_check.py"""

import importlib.util, math, re, subprocess, sys, tempfile, unittest
from pathlib import Path

HERE = Path(__file__).resolve().parent
SCRIPT = HERE / "measured-choices.py"
RECORDS, TABLES = HERE.parent / "benches/record", HERE.parent / "src/gpu/gemm"
specification = importlib.util.spec_from_file_location("choices", SCRIPT)
choices = importlib.util.module_from_spec(specification)
specification.loader.exec_module(choices)

H100 = ("2026-11-27-nvidia-h100-formulations-2",)
H200 = ("2026-11-23-nvidia-h200", "2026-11-23-nvidia-h200-fea77ce", "2026-11-24-nvidia-h200-4259385")
H200_SM90 = ("2026-11-29-nvidia-h200-formulations",)
TABLE = re.compile(r"^pub\(super\) const (\w+): &\[Measured<Row>\] = &\[\n(.*?)^\];", re.MULTILINE | re.DOTALL)


def run(*paths):
    done = subprocess.run([sys.executable, SCRIPT, *paths], capture_output=True, text=True)
    return done.returncode, done.stdout, done.stderr


class Tables(unittest.TestCase):
    maxDiff = None

    def made_of(self, folders):
        code, out, error = run(*(RECORDS / folder / "formulations.md" for folder in folders))
        self.assertEqual(code, 0, error)
        return dict(TABLE.findall(out))

    def committed(self, file, names):
        found = dict(TABLE.findall((TABLES / file).read_text()))
        self.assertEqual(sorted(found), sorted(names))
        self.assertTrue(all(" Row { " in text for text in found.values()), file)
        return found

    def test_those_of_an_h100_are_of_its_record(self):
        made = self.made_of(H100)
        committed = self.committed("measured_h100.rs", ["REPEATED_SCALES", "RESCALED"]) | self.committed("measured_sm90_h100.rs", ["SM90", "SM90_ROWS"])
        self.assertEqual(sorted(made), sorted(committed))
        for name, text in committed.items():
            self.assertEqual(text, made[name], name)

    def test_those_of_an_h200_are_of_its_records(self):
        files = (("measured.rs", ["REPEATED_SCALES", "RESCALED"], H200), ("measured_sm90.rs", ["SM90", "SM90_ROWS"], H200_SM90))
        for file, names, records in files:
            made = self.made_of(records)
            for name, text in self.committed(file, names).items():
                self.assertEqual(text, made[name], name)


HEAD = "NVIDIA {} 80GB HBM3, {} SMs, L2 50 MiB; driver\n"
SHAPE = "\n## n = {}, k = {}\n| m | pair | accumulation, D, activation | formulation: us ... | planned |\n|---|---|---|---|---|\n"
ROW = "| {} | 1x128 x 128x128 | precise, bf16, none | {} | native |\n"


class StandIns(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)

    def file(self, content, name="record.md"):
        path = Path(self.folder.name) / name
        path.write_bytes(content) if isinstance(content, bytes) else path.write_text(content)
        return path

    def record(self, rows, name="record.md", gpu="H100", sms=132):
        return self.file(HEAD.format(gpu, sms) + SHAPE.format(4096, 7168) + "".join(ROW.format(m, times) for m, times in rows), name)

    def wins(self, *paths):
        code, out, error = run(*paths)
        self.assertEqual(code, 0, error)
        table = dict(TABLE.findall(out))["REPEATED_SCALES"]
        self.assertIn("out: DType::Bf16,", table)
        self.assertIn("fast: false,", table)
        return re.search(r"Row \{ n: 4096, k: 7168, wins: &(.*) \},", table)[1]

    def test_a_range_begins_and_ends_with_a_win_and_noise_does_not_break_it(self):
        us = {1: 10, 2: 10, 4: 8, 8: 10.1, 16: 8, 32: 9.9}
        self.assertEqual(self.wins(self.record([(m, f"repeated-scales {us[m]}, native 10") for m in us])), "[[4, 16]]")

    def test_one_m_is_a_range_where_every_record_says_so(self):
        one = [(m, f"repeated-scales {8 if m == 4 else 10}, native 10") for m in (1, 2, 4, 8)]
        none = [(m, "repeated-scales 10, native 10") for m in (1, 2, 4, 8)]
        first = self.record(one)
        self.assertEqual(self.wins(first), "[]")
        self.assertEqual(self.wins(first, self.record(one, "second.md")), "[[4, 4]]")
        # The mean wins, and one of the two does not.
        self.assertEqual(self.wins(first, self.record(none, "second.md")), "[]")

    def test_two_ranges_where_every_record_loses_between_them(self):
        us = {1: 8, 2: 8, 4: 30, 8: 8, 16: 8}
        rows = [(m, f"repeated-scales {us[m]}, native 10") for m in us]
        self.assertEqual(self.wins(self.record(rows), self.record(rows, "second.md")), "[[1, 2], [8, 16]]")

    def test_sm90_has_each_m_at_which_it_is_next_to_the_best(self):
        us = {1: 10.2, 2: 10.05, 3: 8}
        code, out, error = run(self.record([(m, f"sm90 {us[m]}, repeated-scales 10, native 30") for m in us]))
        self.assertEqual(code, 0, error)
        self.assertIn("Row { n: 4096, k: 7168, upto: 3, wins: &[2, 3] },", dict(TABLE.findall(out))["SM90"])

    def test_rules(self):
        rule = (64, 160, 2048, 128, 50)
        taken = lambda n, k, m: choices.by_rule(rule, 132, n, k, m)
        # By m alone; by k for each m; by few tiles of a long k.
        self.assertEqual([taken(8192, 128, 64), taken(8192, 128, 65)], [True, False])
        self.assertEqual([taken(128 * 67, 16000, 100), taken(128 * 67, 15984, 100)], [True, False])
        self.assertEqual([taken(66 * 128, 2048, 128), taken(66 * 128 + 1, 2048, 128), taken(66 * 128, 2047, 128)], [True, False, False])
        by_tiles = lambda rule, m: choices.by_tiles(rule, 132, 64 * 132, 128, m)
        self.assertEqual([by_tiles((17, 0), 16), by_tiles((17, 0), 8192)], [False, True])
        self.assertEqual([by_tiles((17, 2), 128), by_tiles((17, 2), 129)], [True, False])
        self.assertAlmostEqual(choices.gain({"a": [8.0, 12.0], "b": [20.0], "c": [30.0]}, "a", ("b", "c")), math.log(2))
        self.assertEqual([choices.gain({"a": [1.0]}, "a", ("b",)), choices.gain({"b": [1.0]}, "a", ("b",))], [1.0, -1.0])

    def refused(self, words, *paths):
        code, out, error = run(*paths)
        self.assertEqual((code, out), (1, ""), error)
        self.assertIn(words, error)
        self.assertNotIn("Traceback", error)

    def test_what_is_no_record_is_refused(self):
        good = self.record([(1, "repeated-scales 10, native 10")])
        self.wins(good)
        self.refused("none: No such file or directory", good, Path(self.folder.name) / "none")
        self.refused("not a record, as it is no text", self.file(b"\xff\xfe\x00", "binary"))
        self.refused("no line that names a GPU and its SMs", self.file("nothing", "empty"))
        self.refused("no row of 1x128 x 128x128 or row x row", self.file(HEAD.format("H100", 132), "head"))
        for wrong in ("native ten", "native 0", "native -1", "native nan", "native inf", "native", "native 10,"):
            self.refused(f"record.md:7: a row of a pair is m, pair, problem, formulations with microseconds", self.record([(1, "native 10"), (2, wrong)]))
        text = good.read_text()
        self.refused("a row of a pair is m", self.file(text.replace("precise, bf16, none", "rough, bf16, none")))
        self.refused("a row of a pair is m", self.file(text.replace("precise, bf16, none", "precise, bf16")))

    def test_use_is_said(self):
        usage = "usage: scripts/measured-choices.py RECORD..."
        record = self.record([(1, "repeated-scales 10, native 10")])
        for words in (["--help"], ["-h"], [record, "--help"]):
            code, out, error = run(*words)
            self.assertEqual((code, error), (0, ""))
            self.assertIn(usage, out)
        for words, wrong in (([], ""), (["--tables"], "--tables is no option\n"), ([record, "-x"], "-x is no option\n")):
            code, out, error = run(*words)
            self.assertEqual((code, out), (2, ""))
            self.assertTrue(error.startswith(wrong + usage) and "Traceback" not in error, error)

    def test_gpus_of_equal_size_are_told_apart(self):
        rows = [(1, "repeated-scales 10, native 10")]
        self.refused("the records are of several GPUs: NVIDIA H100 80GB HBM3 with 132 SMs", self.record(rows), self.record(rows, "other.md", "H200"))
        self.refused("with 114 SMs", self.record(rows), self.record(rows, "other.md", sms=114))

    def test_sm90_needs_every_m(self):
        times = "sm90 10, repeated-scales 10, native 10"
        self.refused("4096 x 7168: without m = 2; measure it", self.record([(1, times), (3, times), (4, times)]))
        self.refused("with m = 5, which tables do not have", self.record([(m, times) for m in (1, 2, 3, 4, 5, 8)]))


if __name__ == "__main__":
    unittest.main()
