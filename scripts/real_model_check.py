"""Reads quantized files with Python's safetensors and checks them against the model: another reader, other codecs.

    real_model_check.py MODEL.safetensors FOLDER

FOLDER holds the files and the report.json that tests/real_model.rs wrote. For every matrix of every file: codes and
scales lie under the published names with the published types and shapes, the values decoded with ml_dtypes have the SQNR
that Rust reported, and the metadata name the recipe.
"""

import json
import sys
from pathlib import Path

import ml_dtypes
import numpy as np
import safetensors

CODES = {"F8_E4M3": ml_dtypes.float8_e4m3fn, "F8_E5M2": ml_dtypes.float8_e5m2}
PLAIN = {"F32": np.float32, "F16": np.float16, "BF16": ml_dtypes.bfloat16, "U8": np.uint8}
FORMATS = {"e4m3": "F8_E4M3", "e5m2": "F8_E5M2", "e2m1": "U8"}


def tensors(path):
    """Name -> (dtype name, array) of the tensors that are floating point or bytes, and the metadata."""
    data = path.read_bytes()
    arrays = {}
    for name, tensor in safetensors.deserialize(data):
        kind = CODES.get(tensor["dtype"]) or PLAIN.get(tensor["dtype"])
        if kind is not None:
            arrays[name] = (tensor["dtype"], np.frombuffer(tensor["data"], kind).reshape(tensor["shape"]))
    length = int.from_bytes(data[:8], "little")
    return arrays, json.loads(data[8 : 8 + length]).get("__metadata__", {})


def scale_tensors(scheme, rows, cols):
    """Suffix, dtype name and shape of each scale tensor, as published; block scales first."""
    blocks = -(-cols // 128)
    return {
        "fp8-tensor": [("_scale", "F32", (1,))],
        "fp8-row": [("_scale", "F32", (rows, 1))],
        "fp8-1x128": [("_scale_inv", "F32", (rows, blocks))],
        "fp8-128x128": [("_scale_inv", "F32", (-(-rows // 128), blocks))],
        "mxfp8": [("_scale", "U8", (rows, -(-cols // 32)))],
        "nvfp4": [("_scale", "F8_E4M3", (rows, cols // 16)), ("_scale_2", "F32", (1,))],
        "nvfp4-row": [("_scale", "F8_E4M3", (rows, cols // 16)), ("_scale_2", "F32", (rows,))],
    }[scheme]


def spread(scheme, scale, rows, cols):
    """One FP32 scale for each element."""
    if scheme in ("fp8-tensor", "nvfp4"):
        return np.broadcast_to(scale.reshape(1, 1), (rows, cols))
    if scheme in ("fp8-row", "nvfp4-row"):
        return np.broadcast_to(scale.reshape(rows, 1), (rows, cols))
    if scheme == "fp8-128x128":
        scale = np.repeat(scale, 128, axis=0)[:rows]
    return np.repeat(scale, 128, axis=1)[:, :cols]


def decode(where, recipe, codes, scales):
    """The values: FP32 products, scales first. `scales` are those of scale_tensors."""
    scheme = recipe["scheme"]
    if recipe["format"] == "e2m1":
        # Two codes a byte, the even column in the low half; ml_dtypes keeps one a byte.
        assert recipe["nibble_order"] == "low-first" and recipe["basis"] == "plain", f"{where}: {recipe}"
        halves = np.stack([codes & 15, codes >> 4], axis=-1).reshape(codes.shape[0], -1)
        codes = halves.astype(np.uint8).view(ml_dtypes.float4_e2m1fn)
    rows, cols = codes.shape
    codes = codes.astype(np.float32)
    if scheme == "mxfp8":
        assert np.all(scales[0] != 255), f"{where}: a scale is NaN"
        blocks = scales[0].view(ml_dtypes.float8_e8m0fnu).astype(np.float32)
        return codes * np.repeat(blocks, 32, axis=1)[:, :cols]
    for scale in scales:
        values = scale.astype(np.float32)
        assert np.all(np.isfinite(values)) and np.all(values >= 0), f"{where}: a scale is not a positive number"
    factors = spread(scheme, scales[-1], rows, cols)
    if len(scales) == 2:
        factors = np.repeat(scales[0].astype(np.float32), 16, axis=1) * factors
    else:
        assert np.all(scales[0] > 0), f"{where}: a scale is zero"
    if recipe.get("rounding") == "power-of-two":
        assert np.all(np.frexp(scales[0])[0] == 0.5), f"{where}: a scale is not a power of two"
    return codes * factors


def sqnr_db(want, got):
    want, got = want.astype(np.float64), got.astype(np.float64)
    return 10 * np.log10(np.sum(want**2) / np.sum((want - got) ** 2))


def main(model_path, folder):
    model, _ = tensors(Path(model_path))
    report = json.loads((Path(folder) / "report.json").read_text())
    assert report, "the report names no file"
    checked = 0
    for file_name, noises in sorted(report.items()):
        arrays, metadata = tensors(Path(folder) / file_name)
        least = np.inf
        found_tensors = 0
        for name, expected in noises.items():
            recipe = json.loads(metadata[f"scaled_gemm.{name}"])
            dtype, codes = arrays[name]
            where = f"{file_name}: {name}"
            assert dtype == FORMATS[recipe["format"]], f"{where}: {dtype}"
            rows, cols = codes.shape
            cols *= 2 if recipe["format"] == "e2m1" else 1
            scales = []
            for suffix, scale_dtype, shape in scale_tensors(recipe["scheme"], rows, cols):
                found_dtype, scale = arrays[name + suffix]
                assert (found_dtype, scale.shape) == (scale_dtype, shape), f"{where}{suffix}: {found_dtype} {scale.shape}"
                scales.append(scale)
            found_tensors += 1 + len(scales)
            values = decode(where, recipe, codes, scales)
            original = model[name][1]
            assert original.shape == values.shape, f"{where}: {original.shape} became {values.shape}"
            found = sqnr_db(original, values)
            assert abs(found - expected) < 1e-6, f"{where}: {found} dB here, {expected} dB in Rust"
            least = min(least, found)
            checked += 1
        assert len(arrays) == found_tensors, f"{file_name}: {len(arrays)} tensors, {found_tensors} of them known"
        print(f"{file_name:<56} {len(noises)} matrices, at least {least:.2f} dB")
    print(f"{checked} matrices agree")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit("usage: real_model_check.py MODEL.safetensors FOLDER")
    main(sys.argv[1], sys.argv[2])
