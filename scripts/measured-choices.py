#!/usr/bin/env python3
"""Turns records of `cargo bench --bench gemm` into the table of src/gpu/gemm/measured.rs.

usage: scripts/measured-choices.py RECORD...      prints the rows; paste them over the old ones and run rustfmt

A row has a bit for each m = 2^i of the record: set where the alternative to the native formulation was the faster one,
or the only one. Several records of one GPU are averaged, so that near-ties do not turn with the noise.
"""
import collections
import re
import sys

PAIRS = {"1x128 x 128x128": ("BLOCKS", "RepeatedScales"), "row x row": ("ROWS", "Rescaled")}


def read(paths):
    times = collections.defaultdict(list)
    for path in paths:
        shape = None
        for line in open(path, encoding="utf-8"):
            if found := re.match(r"## n = (\d+), k = (\d+)", line):
                shape = int(found[1]), int(found[2])
            cells = [cell.strip() for cell in line.split("|")]
            if shape and len(cells) > 6 and cells[1].isdigit() and cells[3] in PAIRS:
                for part in cells[4].split(", "):
                    name, microseconds = part.split()
                    times[cells[3], *shape, int(cells[1]), name].append(float(microseconds))
    return {key: sum(values) / len(values) for key, values in times.items()}


def main():
    times = read(sys.argv[1:])
    for pair, (table, alternative) in PAIRS.items():
        print(f"const {table}: &[Row] = &[")
        shapes = dict.fromkeys((n, k) for p, n, k, _, _ in times if p == pair)
        for n, k in shapes:
            mask = 0
            for i in range(14):
                other = times.get((pair, n, k, 1 << i, alternative), float("inf"))
                native = times.get((pair, n, k, 1 << i, "Native"), float("inf"))
                mask |= (other < native) << i
            print(f"    Row {{ n: {n}, k: {k}, alternative: 0b{mask:014b} }},")
        print("];")


if __name__ == "__main__":
    main()
