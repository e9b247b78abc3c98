#!/usr/bin/env python3
"""A cuBLASLt that keeps the machine code of one GPU alone, in parts that travel: to try a version on a GPU machine that has another and no network.

  scripts/shrink-cublaslt.py libcublasLt.so.13 OUT [--sm 90] [--part-mib 44]
  there: cat OUT/part* | xz -dc > libcublasLt.so.13, and SCALED_GEMM_CUBLASLT names it

The library is that of a wheel of nvidia-cublas, which pip downloads. What other GPUs run is overwritten with zeros, in place, so that nothing moves, and zeros compress to nothing: 13.10.0 takes 180 MB of 550, most of the rest being tables by which it
chooses algorithms. A GPU without its code is told so by the library (no kernel image). For measuring only: nothing of it is to be committed or passed on.
"""

import argparse
import collections
import lzma
import pathlib
import struct
import sys

MAGIC = struct.pack("<I", 0xBA55ED50)  # of a fatbin: a 16-byte header, then entries with headers of their own
PTX = 1


def shrink(library, sm):
    """Overwrites what is not for this GPU, PTX too; bytes kept and overwritten by GPU."""
    kept, cleared = collections.Counter(), collections.Counter()
    at = 0
    while (at := library.find(MAGIC, at)) >= 0:
        _, version, header, size = struct.unpack_from("<IHHQ", library, at)
        entry, end = at + header, at + header + size
        if version != 1 or header != 16 or end > len(library):
            at += len(MAGIC)  # the same four bytes elsewhere
            continue
        while entry < end:
            kind, _, head, payload = struct.unpack_from("<HHIQ", library, entry)
            gpu = struct.unpack_from("<I", library, entry + 28)[0]
            if gpu == sm and kind != PTX:
                kept[gpu] += payload
            else:
                library[entry + head : entry + head + payload] = bytes(payload)
                cleared[gpu] += payload
            entry += head + payload
        at = end
    return kept, cleared


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("library", type=pathlib.Path)
    parser.add_argument("out", type=pathlib.Path, help="a folder that is made, for part00, part01, ...")
    parser.add_argument("--sm", type=int, default=90, metavar="N", help="the GPU whose code stays (90)")
    parser.add_argument("--part-mib", type=int, default=44, metavar="MIB", help="the most of a part (44)")
    asked = parser.parse_args()
    if asked.part_mib < 1:
        parser.error(f"--part-mib {asked.part_mib}: at least 1")
    try:
        library = bytearray(asked.library.read_bytes())
    except OSError as error:
        sys.exit(f"shrink-cublaslt.py: {error}")
    kept, cleared = shrink(library, asked.sm)
    if not kept:
        found = ", ".join(f"sm_{gpu}" for gpu in sorted(cleared)) or "no machine code at all"
        sys.exit(f"shrink-cublaslt.py: {asked.library} has nothing for sm_{asked.sm}: {found}")
    step = asked.part_mib << 20
    try:
        asked.out.mkdir(parents=True)
        packed = lzma.compress(library, preset=6)
        for number, start in enumerate(range(0, len(packed), step)):
            (asked.out / f"part{number:02}").write_bytes(packed[start : start + step])
    except OSError as error:
        sys.exit(f"shrink-cublaslt.py: {error}")
    print(f"kept {sum(kept.values()) >> 20} MiB of code, overwrote {sum(cleared.values()) >> 20}; {len(packed) >> 20} MiB in {-(-len(packed) // step)} parts")


if __name__ == "__main__":
    main()
