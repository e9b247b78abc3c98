"""The others of beside-casts.py: TileKernels of two versions, torchao, and PyTorch's copy. Each is called as its users call it; torch and the packages are imported when they are loaded.

A peer has `sides`, names of what takes turns; `load` imports it and says its version, `problem` prepares a row and returns what to note of it, or None where it has no such cast, and `time` the
microseconds of a call. Every call's results are kept until those of the same set are made again: a graph that frees them at once would write one and the same memory in all calls."""

import collections, contextlib, importlib, importlib.metadata, sys

from beside_turns import Failed, time_of

Scheme = collections.namedtuple("Scheme", "format group scales transposed")
# What a label says: `kind`, and the schemes that are read and written.
Row = collections.namedtuple("Row", "kind source to")
PREFIXES = {"swiglu backward of codes to ": "gradients", "swiglu to ": "swiglu", "norm with residual to ": "norm"}


def scheme_of(text):
    format_, group, scales, *transposed = text.split(" ")
    return Scheme(format_, group, scales, transposed == ["transposed"])


def row_of(label):
    """Of a label of benches/cast.rs."""
    if label == "copy":
        return Row("copy", None, None)
    for prefix, kind in PREFIXES.items():
        if label.startswith(prefix):
            return Row(kind, None, scheme_of(label.removeprefix(prefix).removesuffix(" and BF16")))
    if label.endswith(" back to bf16"):
        return Row("back", scheme_of(label.removesuffix(" back to bf16")), None)
    source, _, to = label.removesuffix(", lossless").rpartition(" to ")
    kind = "lossless" if label.endswith(", lossless") else "coded" if source else "plain"
    return Row(kind, source and scheme_of(source) or None, scheme_of(to))


def extents(group, cols):
    """Rows and columns that share a scale."""
    return (1, cols) if group == "row" else tuple(map(int, group.split("x")))


class Inputs:
    """BF16 matrices of one shape, kept from row to row, for all peers."""

    def __init__(self):
        self.shape, self.matrices = None, []

    def take(self, sets, rows, cols):
        import torch
        if self.shape != (rows, cols):
            self.matrices = []
            torch.cuda.empty_cache()
        self.shape = rows, cols
        while len(self.matrices) < sets:
            self.matrices.append(torch.randn(rows, cols, device="cuda", dtype=torch.bfloat16))
        return self.matrices[:sets]


class Peer:
    """`make` is what a peer has of its own: the call of a set and the result that is looked at, or None."""

    def __init__(self, inputs):
        self.inputs, self.call, self.kept = inputs, None, []

    def problem(self, row, rows, cols, sets):
        self.call, self.kept = None, []
        if not self.serves(row):
            return None
        xs = self.inputs.take(sets, rows, 2 * cols if row.kind in ("swiglu", "gradients") else cols)
        self.call, result = self.make(row, rows, cols, xs)
        self.kept = [None] * sets
        return f"{self.name} {checked(row, rows, cols, xs[0], result(self.call(0)))}"

    def time(self, side, calls, timing):
        def call(i):
            i %= len(self.kept)
            self.kept[i] = None
            self.kept[i] = self.call(i)

        try:
            return time_of(call, calls, timing)
        finally:
            self.kept = [None] * len(self.kept)
            # Each turn has a stream of its own, and PyTorch would keep the memory of each.
            empty_cache()


class Copy(Peer):
    """PyTorch's copy of the BF16 matrix, of rows x cols for every row, over sets of its own: a row of many bytes has few."""

    name, sides = "PyTorch", ("copy",)

    def load(self):
        import torch
        return f"PyTorch {torch.__version__}, CUDA {torch.version.cuda}, {torch.cuda.get_device_name()}"

    def problem(self, row, rows, cols, sets):
        import torch
        of = torch.cuda.get_device_properties(0)
        sets = min(max(2, -(-3 * of.L2_cache_size // (rows * cols * 4))), 64)
        self.xs = Inputs.take(self.inputs, sets, rows, cols)
        if len(self.kept) != sets or self.kept[0].shape != (rows, cols):
            self.kept = [torch.empty_like(x) for x in self.xs]
        return f"copies of {sets} sets"

    def time(self, side, calls, timing):
        sets = len(self.xs)
        return time_of(lambda i: self.kept[i % sets].copy_(self.xs[i % sets]), -(-calls // sets) * sets, timing)


ORDERS = {"row-major": {}, "column-major": {"use_tma_aligned_col_major_sf": True},
          "ue8m0": {"use_tma_aligned_col_major_sf": True, "round_sf": True, "use_packed_ue8m0": True}}


class TileKernels(Peer):
    """2.x: casts of BF16 and of codes, back, SwiGLU and its gradients, the norm."""

    name, sides = "TileKernels", ("tilekernels",)

    def load(self):
        self.quant = importlib.import_module("tile_kernels.quant")
        return f"TileKernels {version('tile_kernels')}, tilelang {version('tilelang')}"

    def serves(self, row):
        kind, source, to = row
        if to is None or to.group == "row":
            return kind == "back"
        tall, wide = extents(to.group, 0)
        by_row, eight = tall == 1, to.format == "e4m3" and (source is None or source.format == "e4m3")
        per_channel = wide == 1 and eight and to.scales == "row-major" and not to.transposed
        if kind in ("plain", "coded"):
            return by_row or per_channel or (kind == "plain" and wide > 1)
        return kind == "lossless" or (by_row and eight and wide in {"swiglu": (32, 128), "gradients": (32, 128), "norm": (32,)}[kind])

    def sources(self, row, xs):
        """Codes with scales that are powers of two, as ours."""
        wide = extents(row.source.group, 0)[1]
        return [self.quant.per_token_cast(x, row.source.format, wide, **dict(ORDERS[row.source.scales], round_sf=True)) for x in xs]

    def make(self, row, rows, cols, xs):
        quant, (kind, source, to) = self.quant, row
        same = lambda result: result
        orders = ORDERS[to.scales] if to else {}
        tall, wide = extents(to.group, cols) if to else (None, None)
        if kind == "plain":
            if wide == 1:
                return (lambda i: quant.per_channel_cast(xs[i], to.format, tall)), same
            if tall == 1:
                return (lambda i: quant.per_token_cast(xs[i], to.format, wide, **orders)), same
            return (lambda i: quant.per_block_cast(xs[i], to.format, (tall, wide), **orders)), same
        if kind == "swiglu":
            return (lambda i: quant.swiglu_forward_and_per_token_cast(xs[i], to.format, wide, **orders)), same
        if kind == "gradients":
            # It reads codes with scales by rows alone.
            qs = [quant.per_token_cast(x, "e4m3", wide) for x in xs]
            gs, weights = [half(x) for x in xs], ones(rows)
            call = lambda i: quant.swiglu_backward_and_per_token_cast(qs[i], gs[i], to.format, wide, topk_weights=weights, do_recompute=True, **orders)
            return call, lambda result: result[0]
        if kind == "norm":
            weight = xs[0][0].clone()
            sums = [x.clone() for x in xs]
            return (lambda i: quant.norm_forward_and_per_token_cast(xs[i], weight, 1e-6, to.format, wide, residual=sums[i], **orders)), lambda result: result[0]
        qs, block = self.sources(row, xs), extents(source.group, cols)
        if kind == "back":
            return (lambda i: quant.cast_back(qs[i], "bf16", block)), same
        if kind == "lossless":
            return (lambda i: quant.per_block_cast_lossless(qs[i], to.format, block, (tall, wide), **orders)), same
        if wide == 1:
            return (lambda i: quant.per_channel_cast(qs[i], to.format, tall, num_per_channels=block[1])), same
        return (lambda i: quant.per_token_cast(qs[i], to.format, wide, x_block_size=block, **orders)), same


class TileKernels1(TileKernels):
    """1.0: what 2.x dropped (whole rows, transposed, SwiGLU per channel), and the gradients, which it computes in less time. Made for tilelang 0.1.9: one name that it imports has moved since, and its
    SwiGLU to whole rows is not compiled by 0.1.15."""

    name, sides = "TileKernels 1", ("tilekernels-1",)

    def __init__(self, inputs, folder):
        super().__init__(inputs)
        self.folder = folder

    def load(self):
        if not self.folder:
            raise Failed("--tile-kernels-1 was not given")
        importlib.import_module("tilelang")
        with contextlib.suppress(ImportError):
            sys.modules.setdefault("tilelang.utils.target", importlib.import_module("tilelang.backend.target"))
        # Both versions have one name: this one's modules are known to nobody but itself.
        others = {name: sys.modules.pop(name) for name in list(sys.modules) if name.split(".")[0] == "tile_kernels"}
        sys.path.insert(0, self.folder)
        try:
            self.quant = importlib.import_module("tile_kernels.quant")
            return f"TileKernels {getattr(sys.modules['tile_kernels'], '__version__', '1.0')} of {self.folder}"
        finally:
            sys.path.remove(self.folder)
            for name in [name for name in sys.modules if name.split(".")[0] == "tile_kernels"]:
                del sys.modules[name]
            sys.modules.update(others)

    def serves(self, row):
        kind, _, to = row
        if kind not in ("plain", "swiglu", "gradients") or to.scales != "row-major" or (to.format != "e4m3" and to.group != "row"):
            return False
        return {"plain": to.group == "row" or (to.transposed and to.group in ("32x1", "128x1")), "swiglu": to.group == "128x1", "gradients": to.group in ("1x32", "1x128")}[kind]

    def make(self, row, rows, cols, xs):
        quant, (kind, _, to) = self.quant, row
        tall, wide = extents(to.group, cols)
        same = lambda result: result
        if kind == "swiglu":
            return (lambda i: quant.swiglu_forward_and_per_channel_cast_and_transpose(xs[i], to.format, tall, without_transpose=not to.transposed)), same
        if kind == "gradients":
            import torch
            qs = [quant.per_token_cast(x, "e4m3", wide) for x in xs]
            gs, weights, order = [half(x) for x in xs], ones(rows).view(rows, 1), torch.arange(rows, device="cuda", dtype=torch.int32)
            return (lambda i: quant.swiglu_backward_and_per_token_cast(qs[i], gs[i], weights, order, order.view(rows, 1), wide)), lambda result: result[2]
        if tall > 1:
            return (lambda i: quant.per_channel_cast_and_transpose(xs[i], to.format, tall)), same
        return (lambda i: quant.per_token_cast(xs[i], to.format, wide)), same


class TorchAo(Peer):
    """Its kernels in Triton that run on Hopper."""

    name, sides = "torchao", ("torchao",)
    SERVED = {"1x128 row-major": "fp8_blockwise_act_quant", "128x128 row-major": "fp8_blockwise_weight_quant", "1x128 column-major": "triton_fp8_blockwise_act_quant_lhs",
              "128x1 row-major transposed": "triton_fp8_blockwise_act_quant_transposed_lhs"}

    def load(self):
        plain = importlib.import_module("torchao.kernel.blockwise_quantization")
        training = importlib.import_module("torchao.prototype.blockwise_fp8_training.kernels")
        self.calls = {words: getattr(plain, name, None) or getattr(training, name) for words, name in self.SERVED.items()}
        return f"torchao {version('torchao')}"

    def serves(self, row):
        return row.kind == "plain" and row.to.format == "e4m3" and words_of(row.to) in self.SERVED

    def make(self, row, rows, cols, xs):
        cast = self.calls[words_of(row.to)]
        return (lambda i: cast(xs[i])), lambda result: (result[0], result[1].t() if row.to.transposed else result[1])


def empty_cache():
    import torch
    torch.cuda.empty_cache()


def words_of(scheme):
    return " ".join([scheme.group, scheme.scales] + ["transposed"] * scheme.transposed)


def version(package):
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return "of unknown version"


def half(x):
    """As many rows of half the columns, in one piece."""
    rows, cols = x.shape
    return x.view(-1)[:rows * cols // 2].view(rows, cols // 2)


def ones(rows):
    import torch
    return torch.ones(rows, device="cuda")


# Rows that are looked at: they have whole groups of every kind.
LOOKED_AT = 128


def checked(row, rows, cols, x, result):
    """The error of the first rows of a result, relative to the largest number of them."""
    n = min(rows, LOOKED_AT)
    found = result[:n].float() if row.kind in ("back", "gradients") else decoded(*result, row.to, n, cols)
    exact = expected(row, x, n, cols)
    error = ((exact - found).abs().max() / exact.abs().max()).item()
    # Half a step between codes, of scales that are powers of two: of the largest, a 14th of E4M3's and a quarter of E2M1's; twice where codes are read.
    few = "e2m1" in (row.source and row.source.format, row.to and row.to.format)
    if not error < (0.3 if few else 0.1) * (2 if row.kind in ("coded", "gradients") else 1):
        raise Failed(f"wrong by {error:.1e}")
    return f"error {error:.1e}"


def expected(row, x, n, cols):
    import torch
    first = x[:n].float()
    if row.kind == "norm":
        total = (2 * first).bfloat16().float()
        return total * torch.rsqrt(total.square().mean(-1, keepdim=True) + 1e-6) * x[0].float()
    if row.kind not in ("swiglu", "gradients"):
        return first
    gate, up = first[:, :cols], first[:, cols:]
    share = torch.sigmoid(gate)
    if row.kind == "swiglu":
        return gate * share * up
    g = half(x)[:n].float()
    return torch.cat((g * up * share * (1 + gate * (1 - share)), g * gate * share), 1)


def decoded(codes, scales, to, n, cols):
    """Numbers of the first n rows."""
    import torch
    tall, wide = extents(to.group, cols)
    codes = (codes.t() if to.transposed else codes)[:n]
    if to.format == "e2m1":
        magnitudes = [0, 0.5, 1, 1.5, 2, 3, 4, 6]
        values = torch.tensor(magnitudes + [-value for value in magnitudes], device=codes.device)
        codes = codes.contiguous().view(torch.uint8)
        # The even column in the low half.
        numbers = values[torch.stack((codes & 15, codes >> 4), -1).long()].view(n, cols)
    else:
        numbers = codes.float()
    if to.scales == "ue8m0":
        # Four of a row in an int32, the first in the lowest byte.
        exponents = torch.stack([scales[:n] >> 8 * i & 255 for i in range(4)], -1).view(n, -1)[:, :-(-cols // wide)]
        scales = torch.exp2(exponents.float() - 127)
    scales = scales[:-(-n // tall)].float()
    return numbers * scales.repeat_interleave(tall, 0)[:n].repeat_interleave(wide, 1)[:, :cols]
