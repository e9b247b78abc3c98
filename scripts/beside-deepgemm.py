#!/usr/bin/env python3
"""DeepGEMM beside the plan's choice and cuBLASLt: 1x128 x 128x128 to BF16, over the 17 published (n, k) and m from 128 to 8192.

  scripts/beside-deepgemm.py BENCH [--seconds S] [--shapes NxK,...] [--rows M,...] [--configs MOST] > record
  scripts/beside-deepgemm.py --summary RECORD

BENCH is the executable of `cargo bench --bench beside`. torch and deep_gemm must be importable; DeepGEMM compiles its kernels before anything is timed, in 16 processes with one
cache (DG_JIT_CACHE_DIR). Then for each (n, k) DeepGEMM's times of all m, and ours. Both by one method: a graph of 2 or 12 calls or more (300 us at least) over operands that
are rotated past the L2 cache, 100 ms of warm-up, small writes before a timed launch with a pause after it, or launches back to back; medians.
Stops beginning new shapes after S seconds. The summary ends the record, and is made of a record again by --summary."""

import argparse, math, os, re, subprocess, sys, threading, time

SHAPES = [(4096, 7168), (24576, 1536), (7168, 2048), (7168, 16384), (2112, 7168), (576, 7168), (32768, 512), (8192, 8192), (10240, 8192), (1536, 2048),
          (2048, 768), (5120, 8192), (10240, 5120), (5120, 25600), (8192, 28672), (51200, 5120), (57344, 8192)]
ROWS = [128, 256, 512, 1024, 2048, 4096, 8192]
L2 = 60 << 20
LARGEST = 1 << 40
WORKERS = 16


class Clock:
    """Clock and power now and then."""

    def __init__(self):
        self.seen = []
        try:
            words = ["nvidia-smi", "--query-gpu=clocks.sm,power.draw", "--format=csv,noheader,nounits", "-lms", "50"]
            self.process = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
            threading.Thread(target=self.read, daemon=True).start()
        except OSError:
            self.process = None

    def read(self):
        for line in self.process.stdout:
            try:
                clock, power = line.split(",")
                self.seen.append((time.time(), int(clock), float(power)))
            except ValueError:
                pass

    def since(self, start):
        seen = [s for s in self.seen if s[0] >= start] or self.seen[-1:]
        if not seen:
            return "clock unknown"
        clocks = sorted(s[1] for s in seen)
        return f"SM {clocks[len(clocks) // 2]} MHz ({clocks[0]}-{clocks[-1]}), {max(s[2] for s in seen):.0f} W"


def rows_of(asked, n, k):
    return [m for m in asked if m * n * k <= LARGEST]


def operands(m, n, k, sets, weights=None):
    import torch, deep_gemm

    def tokens():
        x = torch.randn(m, k, device="cuda", dtype=torch.bfloat16)
        groups = x.view(m, k // 128, 128).float()
        scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448
        codes = (groups / scale).to(torch.float8_e4m3fn).view(m, k)
        return codes, deep_gemm.get_mn_major_tma_aligned_tensor(scale.squeeze(-1))

    def weight():
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

    return [tokens() for _ in range(sets)], weights or [weight() for _ in range(sets)]


def sets_of(m, n, k):
    return max(2, min(64, -(-3 * L2 // (m * k + n * k + 2 * m * n))))


def call_of(xs, ws, ds):
    import deep_gemm
    return lambda i: deep_gemm.fp8_gemm_nt(xs[i % len(xs)], ws[i % len(xs)], ds[i % len(xs)])


def prewarm(part, shapes, asked):
    """Every kernel of this part of all problems: one call of each."""
    import torch
    problems = [(m, n, k) for n, k in shapes for m in rows_of(asked, n, k)]
    for m, n, k in problems[part::WORKERS]:
        xs, ws = operands(m, n, k, 1)
        call_of(xs, ws, [torch.empty(m, n, device="cuda", dtype=torch.bfloat16)])(0)
        torch.cuda.synchronize()
        del xs, ws
        torch.cuda.empty_cache()


def error_of(x, w, d):
    """Of some rows and columns, relative to the largest."""
    (a, sa), (b, sb) = x, w
    rows, cols, k = slice(0, 64), slice(0, 128), a.shape[1]
    a = a[rows].float().view(64, k // 128, 128) * sa[rows].float().unsqueeze(-1)
    b = b[cols].float().view(128, k // 128, 128) * sb[0].view(1, -1, 1)
    exact = a.reshape(64, k) @ b.reshape(128, k).t()
    return ((exact - d[rows, cols].float()).abs().max() / exact.abs().max()).item()


def time_of(call, sets, cadence):
    """As Timing of the crate: see its docs. Microseconds of a call."""
    import torch
    calls, launches = {"pauses": (2, 7), "sustained": (12, 9)}[cadence]
    calls = -(-max(calls, sets) // sets) * sets
    small = torch.zeros(1 << 16, device="cuda", dtype=torch.uint8)
    stream = torch.cuda.Stream()
    torch.cuda.synchronize()

    def graph_of(count, work):
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, stream=stream):
            for i in range(count):
                work(i)
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

        us(launch(True))
        rounds = min(math.ceil(300 / us(launch(True))), 1024 // calls)
        if rounds > 1:
            calls *= rounds
            graph = graph_of(calls, call)

        def paused():
            time_ = us(launch(True))
            time.sleep(max(2e-3, 4e-6 * time_))
            return time_

        begin = time.time()
        while time.time() - begin < 0.1:
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
    return sorted(times)[launches // 2] / calls


def measure(n, k, asked, clock):
    import torch
    all_rows = rows_of(asked, n, k)
    weights = operands(128, n, k, sets_of(min(all_rows), n, k))[1]
    for m in all_rows:
        sets = min(sets_of(m, n, k), len(weights))
        xs, ws = operands(m, n, k, sets, weights)
        ds = [torch.zeros(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
        call = call_of(xs, ws, ds)
        call(0)
        error = error_of(xs[0], ws[0], ds[0])
        for cadence in ("pauses", "sustained"):
            start = time.time()
            us = time_of(call, sets, cadence)
            print(f"| {m} | {n} | {k} | {cadence} | deepgemm {us:.2f} | error {error:.1e} | {clock.since(start)} |", flush=True)
        del xs, ws, ds
    del weights
    torch.cuda.empty_cache()


def summary(lines):
    """Shares of DeepGEMM's time and of cuBLASLt's best, by the classes of the project's targets."""
    times = {}
    for line in lines:
        found = re.match(r"\| (\d+) \| (\d+) \| (\d+) \| (pauses|sustained) \| ([^|]*) \|(?: plan (\S+) \|)?", line)
        if not found:
            continue
        cell = tuple(int(x) for x in found.groups()[:3])
        ways = times.setdefault((cell, found[4]), {})
        for way in found[5].split(", "):
            name, us = way.rsplit(" ", 1)
            ways[name] = float(us)
        if found[6]:
            ways["plan"] = ways[found[6]]
    classes = [("all", lambda m, n, k: True), ("k >= 7168, m >= 1024", lambda m, n, k: k >= 7168 and m >= 1024), ("k <= 2048", lambda m, n, k: k <= 2048), ("m <= 512", lambda m, n, k: m <= 512)]
    library = ("native", "repeated-scales")
    print("\n## Share of DeepGEMM's time, and of cuBLASLt's best formulation\n| class | cadence | cells | plan / DeepGEMM | sm90 / DeepGEMM | plan / cuBLASLt |\n|---|---|---|---|---|---|")
    mean = lambda values: f"{math.exp(sum(map(math.log, values)) / len(values)):.3f}" if values else "-"
    whole = {key: ways for key, ways in times.items() if "deepgemm" in ways and "plan" in ways}
    best = lambda ways: min(us for name, us in ways.items() if name in library)
    for name, inside in classes:
        for cadence in ("pauses", "sustained"):
            cells = [ways for (cell, c), ways in whole.items() if c == cadence and inside(*cell)]
            beside = lambda who, other: mean([ways[who] / other(ways) for ways in cells if who in ways])
            dg = lambda ways: ways["deepgemm"]
            print(f"| {name} | {cadence} | {len(cells)} | {beside('plan', dg)} | {beside('sm90', dg)} | {beside('plan', best)} |")
    print("\n| m | n | k | cadence | plan, us | / DeepGEMM | / cuBLASLt | sm90 / DeepGEMM | best of ours and cuBLASLt / DeepGEMM |\n|---|---|---|---|---|---|---|---|---|")
    rows = sorted(whole.items(), key=lambda item: -item[1]["plan"] / min(item[1]["deepgemm"], best(item[1])))
    for (cell, cadence), ways in rows:
        dg = ways["deepgemm"]
        least = min(us for name, us in ways.items() if name not in ("plan", "deepgemm"))
        print(f"| {cell[0]} | {cell[1]} | {cell[2]} | {cadence} | {ways['plan']:.2f} | {ways['plan'] / dg:.3f} | {ways['plan'] / best(ways):.3f} | {ways.get('sm90', math.nan) / dg:.3f} | {least / dg:.3f} |")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bench", nargs="?")
    parser.add_argument("--seconds", type=float, default=600)
    parser.add_argument("--shapes")
    parser.add_argument("--rows")
    parser.add_argument("--configs")
    parser.add_argument("--prewarm", type=int)
    parser.add_argument("--summary")
    args = parser.parse_args()
    if args.summary:
        return summary(open(args.summary))
    shapes = [tuple(map(int, s.split("x"))) for s in args.shapes.split(",")] if args.shapes else SHAPES
    asked = [int(m) for m in args.rows.split(",")] if args.rows else ROWS
    if args.prewarm is not None:
        return prewarm(args.prewarm, shapes, asked)
    begin = time.time()
    passed = [word for option, value in (("--shapes", args.shapes), ("--rows", args.rows)) if value for word in (option, value)]
    workers = [subprocess.Popen([sys.executable, __file__, "--prewarm", str(i), *passed], stderr=subprocess.PIPE, text=True) for i in range(WORKERS)]
    for worker in workers:
        error = worker.communicate()[1]
        if worker.returncode:
            print("# prewarm:", error.strip().splitlines()[-1][:300] if error.strip() else worker.returncode)
    print(f"# DeepGEMM's kernels compiled after {time.time() - begin:.0f} s", flush=True)
    clock = Clock()
    seen = []
    for n, k in shapes:
        if time.time() - begin > args.seconds:
            print(f"# no time for {n}x{k}", flush=True)
            continue
        try:
            measure(n, k, asked, clock)
        except Exception as error:
            print(f"# DeepGEMM {n}x{k}: {type(error).__name__}: {str(error)[:300]}", flush=True)
        rows = ",".join(str(m) for m in rows_of(asked, n, k))
        environment = dict(os.environ, SCALED_GEMM_SHAPES=f"{n}x{k}", SCALED_GEMM_ROWS=rows, **({"SCALED_GEMM_CONFIGS": args.configs} if args.configs else {}))
        ours = subprocess.run([args.bench, "--bench"], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        # The head once.
        for line in ours.stdout.splitlines():
            if line.strip() and not (seen and line in seen):
                print(line, flush=True)
        seen = seen or [line for line in ours.stdout.splitlines() if not line.startswith("|")]
        print(f"# {n}x{k}: {time.time() - begin:.0f} s", flush=True)
    if clock.process:
        clock.process.terminate()


if __name__ == "__main__":
    main()
