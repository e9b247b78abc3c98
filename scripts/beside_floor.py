"""The floor of a product of few rows: a kernel that reads the bytes of the weights and does nothing else (read-floor.cu), plain and in a chain. It takes turns as a peer does (beside_peers.py)."""

import ctypes, os, shutil, subprocess, tempfile
from pathlib import Path

from beside_turns import Failed, Timing, time_of

HERE = Path(__file__).resolve().parent
# To choose among blocks an SM, threads of a block, and pieces of 16 bytes in flight a thread: 32 to 128 KiB an SM.
CHOICES = [(1, 512, 4), (1, 512, 8), (1, 512, 16), (2, 256, 8), (2, 512, 4), (2, 512, 8), (3, 256, 8), (4, 128, 8)]
CHOOSING = Timing("sustained", 12, 3, 2)


class ReadFloor:
    name = "the floor"
    sides = ("read", "read chained")

    def __init__(self, bytes_of):
        """Of weights of so many bytes, by n and k."""
        self.bytes_of, self.shape, self.weights = bytes_of, None, []

    def problem(self, m, n, k, sets):
        import torch
        self.size = self.bytes_of(n, k) // 16 * 16
        if self.shape == (n, k) and len(self.weights) >= sets:
            self.sets = sets
            return self.note
        self.shape, self.weights = None, []
        torch.cuda.empty_cache()
        self.weights = [torch.randint(-1 << 31, (1 << 31) - 1, (self.size // 4,), dtype=torch.int32, device="cuda") for _ in range(sets)]
        self.sets = sets
        self.sms = torch.cuda.get_device_properties(0).multi_processor_count
        self.sums = torch.zeros(self.sms * max(blocks for blocks, *_ in CHOICES), dtype=torch.int32, device="cuda")
        self.check(torch)
        calls = -(-max(12, 300 * 4_800_000 // self.size) // sets) * sets
        self.chosen = {side: min(CHOICES, key=lambda choice: time_of(self.call_by(choice, side), calls, CHOOSING)) for side in self.sides}
        self.note = "; ".join(f"{side} by {blocks} x {threads} threads an SM, {loads} loads" for side, (blocks, threads, loads) in self.chosen.items())
        self.shape = n, k
        return self.note

    def call_by(self, choice, side):
        import torch
        blocks, threads, loads = choice
        chained = side == "read chained"

        def call(i):
            stream = ctypes.c_void_p(torch.cuda.current_stream().cuda_stream)
            weight = ctypes.c_void_p(self.weights[i % self.sets].data_ptr())
            sums = ctypes.c_void_p(self.sums.data_ptr())
            if error := library()(weight, ctypes.c_ulonglong(self.size), sums, blocks * self.sms, threads, loads, chained, stream):
                raise Failed(f"CUDA error {error}")
        return call

    def check(self, torch):
        """Every choice reads every word."""
        exact = self.weights[0].sum(dtype=torch.int64).item() % (1 << 32)
        for choice in CHOICES:
            for side in self.sides:
                self.sums.zero_()
                self.call_by(choice, side)(0)
                found = self.sums.sum(dtype=torch.int64).item() % (1 << 32)
                if found != exact:
                    raise Failed(f"{side} by {choice} added up to {found} in the place of {exact}")

    def time(self, side, calls, timing):
        return time_of(self.call_by(self.chosen[side], side), calls, timing)


BUILT = []


def library():
    """`read_floor`, built once."""
    if not BUILT:
        BUILT.append(build())
    return BUILT[0]


def build():
    import torch
    home = os.environ.get("CUDA_HOME") or os.environ.get("CUDA_PATH") or "/usr/local/cuda"
    nvcc = shutil.which("nvcc") or shutil.which("nvcc", path=os.path.join(home, "bin"))
    if not nvcc:
        raise Failed("there is no nvcc")
    major, minor = torch.cuda.get_device_capability()
    with tempfile.TemporaryDirectory() as folder:
        built = os.path.join(folder, "floor.so")
        command = [nvcc, "-std=c++17", "-O3", f"-I{HERE.parent / 'kernels'}", f"-arch=sm_{major}{minor}", "-shared", "-Xcompiler", "-fPIC", "-o", built, str(HERE / "read-floor.cu")]
        done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        if done.returncode:
            raise Failed(f"nvcc: {done.stdout.strip()}")
        return ctypes.CDLL(built).read_floor
