#!/usr/bin/env python3
"""Turns records of `cargo bench --bench formulations` into the tables and rules of src/gpu/gemm/measured.rs.

usage: scripts/measured-choices.py RECORD...      rows and rules on standard output, how good they are on standard error

Several records of one kind of GPU are averaged. Each problem (pair of schemes, accumulation, type of D, activation) has a table and
a rule of its own; nothing is said of problems that no record holds.

Table: for each shape the one range of m in which the alternative to the native formulation is worth taking, made from the
m that are powers of two: the range with the largest sum of log(native / alternative) - log(1.02) that begins and ends with a
win of 2 %. So a smaller win counts as none, and a single m that noise turns breaks no range. It makes one only where there
are several records and each says so. Judged at the other m of the records, which had no part in it.

Rule: m <= small or m * k_per_m <= k or (k >= least_k and tiles of tile x 128 <= percent of the multiprocessors). Fitted on
two thirds of the shapes (all but every third), judged on the third kept out.
"""
import collections
import itertools
import math
import re
import sys

# By how much a choice may be behind to be called good, and what the alternative has to win by to be taken.
MARGIN, WIN = 1.03, 1.02
ALTERNATIVES = {"1x128 x 128x128": "repeated-scales", "row x row": "rescaled"}
TABLES = {"1x128 x 128x128": "REPEATED_SCALES", "row x row": "RESCALED"}
POWERS = [1 << i for i in range(14)]
# The names that records of benches/gemm.rs before 2026-12 have; they hold one problem for each pair.
OLD_NAMES = {"RepeatedScales": "repeated-scales", "Rescaled": "rescaled", "Native": "native"}
OLD_PROBLEM = {"1x128 x 128x128": ("precise", "bf16", "none"), "row x row": ("fast", "bf16", "none")}
RULES = list(itertools.product(
    [0, 1, 2, 4, 8, 16, 32, 64, 128],       # small
    [0, 80, 160, 320, 640, 1280],           # k_per_m; 0: never
    [0, 1024, 2048, 4096, 6144],            # least_k
    [64, 128],                              # tile
    [0, 25, 50, 75, 100],                   # percent: the native tiles leave a part of the GPU idle
))


def read(paths):
    """The number of multiprocessors, and {(pair, problem): {(n, k, m): {formulation: [microseconds]}}}."""
    sms, lists = set(), collections.defaultdict(list)
    for path in paths:
        shape = None
        for line in open(path, encoding="utf-8"):
            if found := re.match(r".*, (\d+) SMs, ", line):
                sms.add(int(found[1]))
            if found := re.match(r"## n = (\d+), k = (\d+)", line):
                shape = int(found[1]), int(found[2])
            cells = [cell.strip() for cell in line.split("|")]
            if not shape or len(cells) < 6 or not cells[1].isdigit():
                continue
            if cells[2] in ALTERNATIVES:
                pair, problem, times = cells[2], tuple(cells[3].split(", ")), cells[4]
            elif cells[3] in ALTERNATIVES:
                pair, problem, times = cells[3], OLD_PROBLEM[cells[3]], cells[4]
            else:
                continue
            for part in times.split(", "):
                name, microseconds = part.split()
                lists[pair, problem, (*shape, int(cells[1])), OLD_NAMES.get(name, name)].append(float(microseconds))
    if len(sms) != 1:
        sys.exit(f"the records are of GPUs with {sorted(sms)} multiprocessors; give those of one GPU")
    problems = collections.defaultdict(lambda: collections.defaultdict(dict))
    for (pair, problem, place, name), values in lists.items():
        problems[pair, problem][place][name] = values
    return sms.pop(), problems


def gain(times, alternative):
    """log(native / alternative), at most 1; where one of the two is not offered, 1 or -1."""
    native, other = (sum(times[name]) / len(times[name]) if name in times else math.inf for name in ("native", alternative))
    if math.isinf(native) or math.isinf(other):
        return 1.0 if native > other else -1.0
    return max(-1.0, min(1.0, math.log(native / other)))


def is_repeated(times, alternative):
    """Whether there are several records and the alternative wins in each of them."""
    records = list(zip(times.get("native", []), times.get(alternative, [])))
    return len(records) > 1 and all(native >= WIN * other for native, other in records)


def best_range(gains, repeated):
    """(from, to) among the m of `gains`, which are in order; None if no range is worth it. `repeated`: m that may be alone."""
    places, best = list(gains), (0.0, None)
    for i in range(len(places)):
        total = 0.0
        for j in range(i, len(places)):
            total += gains[places[j]] - math.log(WIN)
            ends = min(gains[places[i]], gains[places[j]])
            if (j > i or places[i] in repeated) and ends >= math.log(WIN) and total > best[0]:
                best = total, (places[i], places[j])
    return best[1]


def in_range(chosen, m):
    place = min(1 << (m - 1).bit_length(), POWERS[-1])
    return chosen is not None and chosen[0] <= place <= chosen[1]


def by_rule(rule, sms, n, k, m):
    small, k_per_m, least_k, tile, percent = rule
    tiles = -(-n // 128) * -(-m // tile)
    return m <= small or m * k_per_m <= k and k_per_m > 0 or k >= least_k and 100 * tiles <= percent * sms


def loss(gain, takes):
    """log(time taken / best time)."""
    return max(0.0, -gain if takes else gain)


def words(losses):
    if not losses:
        return "nothing to judge by"
    good = sum(value <= math.log(MARGIN) for value in losses)
    mean, worst = math.expm1(sum(losses) / len(losses)), math.expm1(max(losses))
    return f"{good} of {len(losses)} within {MARGIN - 1:.0%} of the best, on average {mean:.1%} behind, at worst {worst:.0%}"


def fit(gains, shapes, sms):
    """The rule with the least loss beyond the margin; of equals the one with the smallest numbers."""
    training = [(n, k, m, g) for (n, k, m), g in gains.items() if (n, k) in shapes]

    def cost(rule):
        losses = (loss(g, by_rule(rule, sms, n, k, m)) for n, k, m, g in training)
        return round(sum(value for value in losses if value > math.log(MARGIN)), 6), rule
    return min(RULES, key=cost)


def choose(pair, problem, places, sms):
    """Says how good table and rule are; gives the text of the `Measured`."""
    gains = {place: gain(times, ALTERNATIVES[pair]) for place, times in places.items()}
    shapes = list(dict.fromkeys((n, k) for n, k, _ in gains))
    repeated = {place for place, times in places.items() if is_repeated(times, ALTERNATIVES[pair])}

    def table_of(n, k):
        measured = [m for m in POWERS if (n, k, m) in gains]
        return best_range({m: gains[n, k, m] for m in measured}, {m for m in measured if (n, k, m) in repeated})
    chosen = {(n, k): table_of(n, k) for n, k in shapes}
    kept_out = shapes[2::3]
    rule = fit(gains, [shape for shape in shapes if shape not in kept_out], sms)

    def say(what, takes, where):
        losses = [loss(g, takes(n, k, m)) for (n, k, m), g in gains.items() if where(n, k, m)]
        print(f"  {what}: {words(losses)}", file=sys.stderr)

    def table(n, k, m):
        return in_range(chosen[n, k], m)

    def follow(n, k, m):
        return by_rule(rule, sms, n, k, m)
    print(f"{pair}, {', '.join(problem)}: {len(shapes)} shapes, {len(gains)} problems", file=sys.stderr)
    say("table, at the m it was made from", table, lambda n, k, m: m in POWERS)
    say("table, at other m", table, lambda n, k, m: m not in POWERS)
    say("rule, at the shapes it was fitted to", follow, lambda n, k, m: (n, k) not in kept_out)
    say("rule, at shapes kept out", follow, lambda n, k, m: (n, k) in kept_out)
    say("always native, at shapes kept out", lambda n, k, m: False, lambda n, k, m: (n, k) in kept_out)

    accumulation, out, activation = problem
    fields = ("small", "k_per_m", "least_k", "tile", "percent")
    yield "    Measured {"
    yield f"        fast: {'true' if accumulation == 'fast' else 'false'},"
    yield f"        out: DType::{out.title()},"
    yield f"        activation: Activation::{activation.title()},"
    yield f"        rule: Rule {{ {', '.join(f'{name}: {value}' for name, value in zip(fields, rule))} }},"
    yield "        rows: &["
    for (n, k), found in chosen.items():
        wins = f"[{found[0]}, {found[1]}]" if found else "NEVER"
        yield f"            Row {{ n: {n}, k: {k}, wins: {wins} }},"
    yield "        ],"
    yield "    },"


def main():
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    sms, problems = read(sys.argv[1:])
    for pair, table in TABLES.items():
        print(f"pub(super) const {table}: &[Measured] = &[")
        for (of, problem), places in problems.items():
            if of == pair:
                print("\n".join(choose(pair, problem, places, sms)))
        print("];")


if __name__ == "__main__":
    main()
