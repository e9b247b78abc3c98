"""The others: DeepGEMM (whole products and groups of rows) and Humming, which take turns with us (beside_turns.py). Each is called as its users call it; torch and the package itself are imported with the first operands.

A peer has `sides`, names of what takes turns; `problem` prepares operands and returns what to note of them, and `time` the microseconds of a call by a side."""

import json, math

from beside_turns import Failed, time_of


class DeepGemm:
    """`fp8_gemm_nt`: 1x128 x 128x128 to BF16, as it comes and, as the side `deepgemm pdl`, launched so that it overlaps the end of the call before (`set_pdl`)."""

    name = "DeepGEMM"

    def __init__(self, sides=("deepgemm",)):
        self.sides, self.shape, self.weights = sides, None, []

    def problem(self, m, n, k, sets):
        import torch
        self.xs = self.ds = None
        if self.shape != (n, k):
            self.weights = []
            torch.cuda.empty_cache()
        self.shape = n, k
        while len(self.weights) < sets:
            self.weights.append(weight(n, k))
        self.xs = [tokens(m, k) for _ in range(sets)]
        self.ds = [torch.zeros(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
        self.call(0)
        (a, scales), d = self.xs[0], self.ds[0]
        a = a[:64].float().view(-1, k // 128, 128) * scales[:64].float().unsqueeze(-1)
        return checked(a.reshape(-1, k), first_rows(*self.weights[0]), d)

    def call(self, i):
        import deep_gemm
        i %= len(self.xs)
        deep_gemm.fp8_gemm_nt(self.xs[i], self.weights[i], self.ds[i])

    def time(self, side, calls, timing):
        import deep_gemm
        if side != "deepgemm pdl":
            return time_of(self.call, calls, timing)
        was = deep_gemm.get_pdl()
        deep_gemm.set_pdl(True)
        try:
            return time_of(self.call, calls, timing)
        finally:
            deep_gemm.set_pdl(was)


class DeepGemmGroups:
    """`m_grouped_fp8_gemm_nt_contiguous` and `m_grouped_fp8_gemm_nt_masked`: groups of rows, 1x128 x 128x128 to BF16, each with a matrix of its own."""

    name, sides = "DeepGEMM", ("deepgemm",)

    def problem(self, case, rows, step, sets):
        """Groups of so many rows; contiguous ones begin at multiples of `step`, and masked ones have slots of so many."""
        import torch
        self.sets = []
        torch.cuda.empty_cache()
        masked, groups, n, k = case.kind == "masked", case.groups, case.n, case.k
        self.usual = sum(rows) // groups
        places = [step if masked else -(-count // step) * step for count in rows]
        weights = [tuple(torch.stack(part) for part in zip(*[weight(n, k) for _ in range(groups)])) for _ in range(sets)]
        if masked:
            self.where = torch.tensor(rows, device="cuda", dtype=torch.int32)
        else:
            self.where = torch.full((sum(places),), -1, device="cuda", dtype=torch.int32)
            for g, count in enumerate(rows):
                start = sum(places[:g])
                self.where[start:start + count] = g
        for w in weights:
            a = slots(groups, step, k) if masked else tokens(sum(places), k)
            self.sets.append((a, w, torch.zeros(*a[0].shape[:-1], n, device="cuda", dtype=torch.bfloat16)))
        self.masked = masked
        self.call(0)
        return max(self.check(0, 0, rows[0]), self.check(groups - 1, sum(places[:-1]), rows[-1]))

    def check(self, group, start, count):
        """Some rows of a group, which begin there where groups are contiguous."""
        (a, scales), (codes, of_codes), d = self.sets[0]
        at = (group, slice(0, min(count, 64))) if self.masked else slice(start, start + min(count, 64))
        k = a.shape[-1]
        a = (a[at].float().view(-1, k // 128, 128) * scales[at].float().unsqueeze(-1)).reshape(-1, k)
        return checked(a, first_rows(codes[group], of_codes[group]), d[at])

    def call(self, i):
        import deep_gemm
        a, w, d = self.sets[i % len(self.sets)]
        if self.masked:
            deep_gemm.m_grouped_fp8_gemm_nt_masked(a, w, d, self.where, self.usual)
        else:
            deep_gemm.m_grouped_fp8_gemm_nt_contiguous(a, w, d, self.where)

    def time(self, side, calls, timing):
        return time_of(self.call, calls, timing)


class Humming:
    """`HummingLayer`: BF16 activations and weights in `scheme`, which it puts into an order of its own. Its kernels for Hopper always overlap the end of the call before."""

    name = "Humming"
    sides = ("humming",)

    def __init__(self, scheme):
        self.scheme, self.shape, self.layers = scheme, None, []

    def problem(self, m, n, k, sets):
        import torch
        self.xs = self.ds = None
        if self.shape != (n, k):
            self.layers = []
            torch.cuda.empty_cache()
            self.shape = n, k
        while len(self.layers) < sets:
            layer, numbers = LAYERS[self.scheme](n, k)
            if not self.layers:
                self.numbers = numbers
            self.layers.append(layer)
        self.kernels = kernels_for(self.layers[0], m)
        self.xs = [torch.randn(m, k, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
        self.ds = [torch.zeros(m, n, device="cuda", dtype=torch.bfloat16) for _ in range(sets)]
        self.call(0)
        return checked(self.xs[0][:64].float(), self.numbers, self.ds[0])

    def call(self, i):
        i %= len(self.xs)
        self.layers[i](self.xs[i], outputs=self.ds[i], tuning_config=self.kernels)

    def time(self, side, calls, timing):
        return time_of(self.call, calls, timing)


def checked(a, b, d):
    """The error of some rows and columns of D, relative to the largest number of them."""
    exact = a @ b.t()
    error = ((exact - d[:len(a), :len(b)].float()).abs().max() / exact.abs().max()).item()
    # Half a unit of BF16 is 4e-3 of a number.
    if not error < 1e-2:
        raise Failed(f"wrong by {error:.1e}")
    return f"error {error:.1e}"


def quantized(x):
    """Codes with a scale for 128 columns of a row."""
    import torch
    m, k = x.shape
    groups = x.view(m, k // 128, 128).float()
    scale = groups.abs().amax(-1, keepdim=True).clamp(min=1e-4) / 448
    return (groups / scale).to(torch.float8_e4m3fn).view(m, k), scale.squeeze(-1)


def tokens(m, k):
    import torch, deep_gemm
    codes, scales = quantized(torch.randn(m, k, device="cuda", dtype=torch.bfloat16))
    return codes, deep_gemm.get_mn_major_tma_aligned_tensor(scales)


def slots(groups, rows, k):
    """Tokens in slots of so many rows, one slot a group."""
    import torch, deep_gemm
    parts = [quantized(torch.randn(rows, k, device="cuda", dtype=torch.bfloat16)) for _ in range(groups)]
    codes, scales = (torch.stack(part) for part in zip(*parts))
    return codes, deep_gemm.get_mn_major_tma_aligned_tensor(scales)


def weight(n, k):
    import torch
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


def first_rows(codes, scales):
    """The numbers of the first tile of a weight."""
    codes = codes[:128].float()
    rows, k = codes.shape
    return (codes.view(rows, k // 128, 128) * scales[0].view(1, -1, 1)).reshape(rows, k)


def kernels_for(layer, m):
    """The kernel that a Humming layer chooses for m rows, of the many that it would compile for all; None, which leaves the choice to it, where it does not tell. By itself, without its range of rows: one of a list
    is not found by its launcher (0.1.19) for 16 rows and more."""
    from humming.tune import get_heuristics_config
    try:
        return json.dumps(get_heuristics_config(layer.humming_config, shape_m=m))
    except (AttributeError, TypeError, ValueError):
        return None


def humming_layer(n, k, config, tensors):
    import torch
    from humming.layer import HummingLayer
    layer = HummingLayer(n, k, weight_config=config, torch_dtype=torch.bfloat16).to("cuda")
    layer.load_from_tensors(tensors)
    layer.transform()
    return layer


def nvfp4_layer(n, k):
    """A layer, and the numbers of its first rows."""
    import torch
    codes = torch.randint(0, 256, (n, k // 2), dtype=torch.uint8, device="cuda")
    scales = (torch.rand(n, k // 16, device="cuda") * 200 + 20).to(torch.float8_e4m3fn)
    second = 1e-4
    first = codes[:128]
    magnitudes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
    values = torch.tensor(magnitudes + [-x for x in magnitudes], device="cuda")
    # The even column in the low half.
    numbers = values[torch.stack((first & 15, first >> 4), -1).long()].view(len(first), k // 16, 16)
    numbers = (numbers * scales[:128].float().unsqueeze(-1) * second).reshape(len(first), k)
    tensors = {"weight": codes, "weight_scale": scales, "weight_scale_2": torch.tensor([second], device="cuda")}
    return humming_layer(n, k, {"quant_method": "modelopt", "quant_algo": "nvfp4"}, tensors), numbers


def fp8_layer(n, k):
    """Likewise. Humming's tiles must divide n; it multiplies by a scale of each row and 128 columns in any case, in BF16."""
    codes, scales = weight(n, k)
    tall = math.gcd(n, 128)
    numbers = first_rows(codes, scales)
    tensors = {"weight": codes, "weight_scale_inv": scales.repeat_interleave(128 // tall, 0)[:n // tall]}
    return humming_layer(n, k, {"quant_method": "fp8", "weight_block_size": [tall, 128]}, tensors), numbers


LAYERS = {"nvfp4": nvfp4_layer, "fp8-128x128": fp8_layer}
