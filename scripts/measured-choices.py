#!/usr/bin/env python3
"""Turns records of `cargo bench --bench formulations` into the tables and rules of src/gpu/gemm/measured*.rs.

usage: scripts/measured-choices.py RECORD...      rows and rules on standard output, how good they are on standard error

Several records of one kind of GPU are averaged; those of two are refused. Each problem (pair of schemes, accumulation, type of D, activation) has a
table and a rule of its own; nothing is said of problems that no record holds, nor of an alternative that none has a time of.

Table: for each shape the range of m in which the alternative is worth taking instead of the best of those that it is held against, made
from the powers of two and the m between them from 48 on: the range with the largest sum of log(best / alternative) - log(1.02) that begins and
ends with a win of 2 %. So a smaller win counts as none, and a single m that noise turns breaks no range. It makes one only where there
are several records and each says so. Two ranges, where each record says that the alternative loses between them, and they gain 10 % more than
the one does (sums of logarithms). Judged at the other m of the records, which had no part in it, and at those it was made from.

Rule: m <= small or m * k_per_m <= k or (k >= least_k and tiles of tile x 128 <= percent of the multiprocessors). Fitted on
two thirds of the shapes (all but every third), judged on the third kept out.

SM90 is held against the better of the others, and what it wins by changes from one wave of tiles to the next: no ranges, but each m at
which it is no more than 1 % behind, and a rule for every other m: m >= from and (tiles = 0 or tiles of 64 x 64 <= tiles for each multiprocessor).
Fitted and judged from 17 rows on: fewer are for the kernels of few rows.
"""
import collections
import itertools
import math
import re
import sys

USAGE = __doc__.splitlines()[2]
# By how much a choice may be behind to be called good, and what the alternative has to win by to be taken.
MARGIN, WIN = 1.03, 1.02
# What a second range of m has to gain.
SECOND = 1.10
PAIRS = ("1x128 x 128x128", "row x row")
# Table, pair, alternative, what it is held against.
TABLES = [
    ("REPEATED_SCALES", PAIRS[0], "repeated-scales", ("native",)),
    ("RESCALED", PAIRS[1], "rescaled", ("native",)),
    ("SM90", PAIRS[0], "sm90", ("native", "repeated-scales")),
    ("SM90_ROWS", PAIRS[1], "sm90", ("native", "rescaled")),
]
ALL_M = sorted([1 << i for i in range(14)] + [3, 12, 48, 192, 768, 3072])
# What tables of ranges are made from.
PLACES = [m for m in ALL_M if m not in (3, 12)]
# The names that records of benches/gemm.rs before 2026-12 have; they hold one problem for each pair.
OLD_NAMES = {"RepeatedScales": "repeated-scales", "Rescaled": "rescaled", "Native": "native"}
OLD_PROBLEM = {"1x128 x 128x128": ("precise", "bf16", "none"), "row x row": ("fast", "bf16", "none")}
FIELDS = ("small", "k_per_m", "least_k", "tile", "percent")
RULES = list(itertools.product(
    [0, 1, 2, 4, 8, 16, 32, 64, 128],       # small
    [0, 80, 160, 320, 640, 1280],           # k_per_m; 0: never
    [0, 1024, 2048, 4096, 6144],            # least_k
    [64, 128],                              # tile
    [0, 25, 50, 75, 100],                   # percent: the native tiles leave a part of the GPU idle
))
TILE_FIELDS = ("from", "tiles")
TILE_RULES = list(itertools.product([17, 33, 65, 129, 257], [0, 1, 2, 3, 4, 6, 8]))
# Where SM90 is judged, and by how much it may be behind to be taken.
LEAST_ROWS, BEHIND = 17, 1.01


def lines_of(path):
    try:
        with open(path, encoding="utf-8") as file:
            return file.read().splitlines()
    except UnicodeDecodeError:
        sys.exit(f"{path}: not a record, as it is no text; give what `cargo bench --bench formulations` wrote")
    except OSError as error:
        sys.exit(f"{path}: {error.strerror}; give records of `cargo bench --bench formulations`")


def row_of(cells):
    """(pair, problem, [(formulation, microseconds)]) of a line of a table, None if it is one of another table; ValueError if a part is missing or wrong."""
    pair = next((cell for cell in cells[2:4] if cell in PAIRS), None)
    if not pair:
        return None
    if len(cells) < 6:
        raise ValueError
    problem = tuple(cells[3].split(", ")) if cells[2] == pair else OLD_PROBLEM[pair]
    accumulation, _, _ = problem
    if accumulation not in ("fast", "precise"):
        raise ValueError
    times = [(name, float(microseconds)) for name, microseconds in map(str.split, cells[4].split(", "))]
    if not all(0 < microseconds < math.inf for _, microseconds in times):
        raise ValueError
    return pair, problem, times


def read(paths):
    """The number of multiprocessors, and {(pair, problem): {(n, k, m): {formulation: [microseconds]}}}."""
    gpus, lists = {}, collections.defaultdict(list)
    for path in paths:
        shape, gpu, rows = None, None, 0
        for number, line in enumerate(lines_of(path), 1):
            if found := re.match(r"(.*), (\d+) SMs, ", line):
                gpu = found[1], int(found[2])
            if found := re.match(r"## n = (\d+), k = (\d+)", line):
                shape = int(found[1]), int(found[2])
            cells = [cell.strip() for cell in line.split("|")]
            if not shape or len(cells) < 4 or not cells[1].isdigit():
                continue
            try:
                row = row_of(cells)
            except ValueError:
                sys.exit(f"{path}:{number}: a row of a pair is m, pair, problem, formulations with microseconds, and what was planned; this is {line!r}")
            if row:
                pair, problem, times = row
                rows += 1
                for name, microseconds in times:
                    lists[pair, problem, (*shape, int(cells[1])), OLD_NAMES.get(name, name)].append(microseconds)
        if not gpu or not rows:
            lacks = "no row of " + " or ".join(PAIRS) if gpu else "no line that names a GPU and its SMs"
            sys.exit(f"{path}: not a record, as it has {lacks}; give what `cargo bench --bench formulations` wrote")
        gpus.setdefault(gpu, path)
    if len(gpus) > 1:
        # By the name: an H200 and an H100 have as many multiprocessors.
        of = ", ".join(f"{name} with {sms} SMs ({path})" for (name, sms), path in gpus.items())
        sys.exit(f"the records are of several GPUs: {of}; give those of one")
    problems = collections.defaultdict(lambda: collections.defaultdict(dict))
    for (pair, problem, place, name), values in lists.items():
        problems[pair, problem][place][name] = values
    check_rows(problems)
    (_, sms), = gpus
    return sms, problems


def check_rows(problems):
    """SM90's rows say of each m up to the last one whether it wins: none of them may be missing."""
    for (pair, problem), places in problems.items():
        measured = collections.defaultdict(set)
        for n, k, m in places:
            measured[n, k].add(m)
        for (n, k), found in measured.items():
            expected = {m for m in ALL_M if m <= max(found)}
            wrong = [f"without m = {m}" for m in sorted(expected - found)] + [f"with m = {m}, which tables do not have" for m in sorted(found - expected)]
            if wrong and any(of == pair and name.startswith("SM90") for name, of, _, _ in TABLES) and any("sm90" in times for times in places.values()):
                sys.exit(f"{pair}, {', '.join(problem)}, {n} x {k}: {'; '.join(wrong)}; measure it with the m of {ALL_M}, or the first ones of them")


def gain(times, alternative, against):
    """log(best of those it is held against / alternative), at most 1; where one of the two is not offered, 1 or -1."""
    def mean(name):
        return sum(times[name]) / len(times[name]) if name in times else math.inf
    best, other = min(map(mean, against)), mean(alternative)
    if math.isinf(best) or math.isinf(other):
        return 1.0 if best > other else -1.0
    return max(-1.0, min(1.0, math.log(best / other)))


def is_repeated(times, alternative, against):
    """1 where there are several records and the alternative wins in each of them, -1 where it loses in each, else 0."""
    others = [times[name] for name in against if name in times]
    if not others:
        return 0
    records = [(min(best), other) for *best, other in zip(*others, times.get(alternative, []))]
    if len(records) < 2:
        return 0
    wins, loses = (all(a >= WIN * b for a, b in pairs) for pairs in (records, [(b, a) for a, b in records]))
    return wins - loses


def best_range(gains, repeated):
    """(gain, (from, to)) among the m of `gains`, which are in order; (0, None) if no range is worth it. `repeated`: m that may be alone."""
    places, best = list(gains), (0.0, None)
    for i in range(len(places)):
        total = 0.0
        for j in range(i, len(places)):
            total += gains[places[j]] - math.log(WIN)
            ends = min(gains[places[i]], gains[places[j]])
            if (j > i or places[i] in repeated) and ends >= math.log(WIN) and total > best[0]:
                best = total, (places[i], places[j])
    return best


def best_ranges(gains, repeated):
    """One range or two of the m of `gains`, as `best_range`. `repeated`: 1 or -1 at m that every record says the same of."""
    places, alone = list(gains), {m for m, sign in repeated.items() if sign > 0}
    gain, whole = best_range(gains, alone)
    best = gain + math.log(SECOND), [whole] if whole else []
    for cut in (m for m in places if repeated.get(m, 0) < 0):
        at = places.index(cut)
        (low, first), (high, second) = (best_range({m: gains[m] for m in part}, alone) for part in (places[:at], places[at + 1:]))
        if first and second and low + high > best[0]:
            best = low + high, [first, second]
    return best[1]


def in_range(chosen, m):
    place = next((place for place in PLACES if place >= m), PLACES[-1])
    return any(first <= place <= last for first, last in chosen)


def by_rule(rule, sms, n, k, m):
    small, k_per_m, least_k, tile, percent = rule
    tiles = -(-n // 128) * -(-m // tile)
    return m <= small or m * k_per_m <= k and k_per_m > 0 or k >= least_k and 100 * tiles <= percent * sms


def by_tiles(rule, sms, n, k, m):
    least, tiles = rule
    return m >= least and (tiles == 0 or -(-m // 64) * -(-n // 64) <= tiles * sms)


def loss(gain, takes):
    """log(time taken / best time)."""
    return max(0.0, -gain if takes else gain)


def words(losses):
    if not losses:
        return "nothing to judge by"
    good = sum(value <= math.log(MARGIN) for value in losses)
    mean, worst = math.expm1(sum(losses) / len(losses)), math.expm1(max(losses))
    return f"{good} of {len(losses)} within {MARGIN - 1:.0%} of the best, on average {mean:.1%} behind, at worst {worst:.0%}"


def fit(gains, shapes, sms, rules, follow, least):
    """The rule with the smallest sum of losses above `least`; of equals the first one."""
    training = [(n, k, m, g) for (n, k, m), g in gains.items() if (n, k) in shapes]

    def cost(rule):
        losses = (loss(g, follow(rule, sms, n, k, m)) for n, k, m, g in training)
        return round(sum(value for value in losses if value > least), 6), rule
    return min(rules, key=cost)


def choose(name, pair, problem, gains, repeated, sms):
    """Says how good table and rule are; gives the text of the `Measured`."""
    shapes = list(dict.fromkeys((n, k) for n, k, _ in gains))
    ours = name.startswith("SM90")
    judged = {place: g for place, g in gains.items() if not ours or place[2] >= LEAST_ROWS}

    def table_of(n, k):
        measured = [m for m in PLACES if (n, k, m) in gains]
        return best_ranges({m: gains[n, k, m] for m in measured}, {m: repeated[n, k, m] for m in measured})
    chosen = {(n, k): table_of(n, k) for n, k in shapes}
    kept_out = shapes[2::3]
    rules, takes = (TILE_RULES, by_tiles) if ours else (RULES, by_rule)
    rule = fit(judged, [shape for shape in shapes if shape not in kept_out], sms, rules, takes, 0 if ours else math.log(MARGIN))

    def say(what, takes, where):
        losses = [loss(g, takes(n, k, m)) for (n, k, m), g in judged.items() if where(n, k, m)]
        print(f"  {what}: {words(losses)}", file=sys.stderr)

    def table(n, k, m):
        return in_range(chosen[n, k], m)

    def follow(n, k, m):
        return takes(rule, sms, n, k, m)
    print(f"{name}, {', '.join(problem)}: {len(shapes)} shapes, {len(judged)} problems", file=sys.stderr)
    if not ours:
        say("table, at the m it was made from", table, lambda n, k, m: m in PLACES)
        say("table, at other m", table, lambda n, k, m: m not in PLACES)
    say("rule, at the shapes it was fitted to", follow, lambda n, k, m: (n, k) not in kept_out)
    say("rule, at shapes kept out", follow, lambda n, k, m: (n, k) in kept_out)
    say("never, at shapes kept out", lambda n, k, m: False, lambda n, k, m: (n, k) in kept_out)

    accumulation, out, activation = problem
    yield "    Measured {"
    yield f"        fast: {'true' if accumulation == 'fast' else 'false'},"
    yield f"        out: DType::{out.title()},"
    yield f"        activation: Activation::{activation.title()},"
    fields = zip(TILE_FIELDS if ours else FIELDS, rule)
    yield f"        rule: {'TileRule' if ours else 'SizeRule'} {{ {', '.join(f'{field}: {value}' for field, value in fields)} }},"
    yield "        rows: &["
    for (n, k), found in chosen.items():
        wins = "&" + str([list(pair) for pair in found])
        if ours:
            measured = sorted(m for rows, of, m in gains if (rows, of) == (n, k))
            wins = "&" + str([m for m in measured if gains[n, k, m] >= -math.log(BEHIND)])
        upto = f" upto: {measured[-1]}," if ours else ""
        yield f"            Row {{ n: {n}, k: {k},{upto} wins: {wins} }},"
    yield "        ],"
    yield "    },"


def main():
    words = sys.argv[1:]
    if "-h" in words or "--help" in words:
        print(__doc__)
        return
    if not words or any(word.startswith("-") for word in words):
        unknown = [f"{word} is no option" for word in words if word.startswith("-")]
        print("\n".join([*unknown, USAGE]), file=sys.stderr)
        sys.exit(2)
    sms, problems = read(words)
    for name, pair, alternative, against in TABLES:
        print(f"pub(super) const {name}: &[Measured<Row>] = &[")
        for (of, problem), places in problems.items():
            if of == pair and any(alternative in times for times in places.values()):
                gains = {place: gain(times, alternative, against) for place, times in places.items()}
                repeated = {place: is_repeated(times, alternative, against) for place, times in places.items()}
                print("\n".join(choose(name, pair, problem, gains, repeated, sms)))
        print("];")


if __name__ == "__main__":
    main()
