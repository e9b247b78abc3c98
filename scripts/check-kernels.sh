#!/usr/bin/env bash
# Compiles every kernel for every GPU with build.rs's own flags, under which warnings and register spills are errors, and
# looks into the images: one for each kernels/*/*.cu, machine code for every GPU of build.rs that can run it, and PTX for later ones,
# compiled for 90 or above: below, kernels do not wait for the one before them (kernels/base/launch.cuh). No machine code may have
# a maximum of packed 16-bit floats: amax is exact, in FP32 or by integers; that the search finds one, a kernel that has it says. None may touch memory
# before it waits for the kernel before (ptxas moves `ld.global.nc` over the wait), but for products that are links of chains, which load weights.
# Of products whose order ptxas changes build.rs makes no image; that it is told of one, a kernel that has it says.
# In products for Hopper no warp may give a stage back while scales that it loaded from there are on their way (Sm90Math::give_back in sm90.cuh).
# Needs nvcc and cuobjdump, e.g. after: eval "$(scripts/cuda-toolchain.sh)"
set -euo pipefail
cd "$(dirname "$0")/.."
if [ $# -gt 0 ]; then
    echo "usage: scripts/check-kernels.sh" >&2
    exit 2
fi

# nvcc reads it: a spilled register becomes a warning, and warnings are errors. As .ci/run has it.
export NVCC_APPEND_FLAGS="-Xptxas --warn-on-spills"
unset SCALED_GEMM_GPUS
# The crate is not compiled, beside its build script, but checked with these images, as tests have it: other features of dependencies would make all of them anew.
messages=$(cargo check --quiet --lib --profile test --message-format=json-render-diagnostics)
python3 - <(printf '%s\n' "$messages") <<'PY'
import concurrent.futures
import json
import multiprocessing
import os
import pathlib
import re
import struct
import subprocess
import sys
import tempfile

out = None
for line in open(sys.argv[1]):
    message = json.loads(line)
    if message["reason"] == "build-script-executed" and list(pathlib.Path(message["out_dir"]).glob("*/*.fatbin")):
        out = pathlib.Path(message["out_dir"])
if out is None:
    sys.exit("check-kernels.sh: cargo ran no build script that makes images")

targets = {int(n) for n in re.findall(r'"sm_(\d+)a?"', pathlib.Path("build.rs").read_text())}
# file: the first and the last GPU that can run it
table = re.findall(r'^ +\w+, "(\S+)", (\d+)\.\.=(\S+);$', pathlib.Path("kernels/files.rs").read_text(), re.MULTILINE)
LATER = "u32::MAX"
table = {name: (int(first), LATER if last == LATER else int(last)) for name, first, last in table}
PTX, MACHINE_CODE = 1, 2


def contents(image):
    """Kind and GPU of every entry of a fatbin: a 16-byte header, then entries with headers of their own."""
    magic, _, header, size = struct.unpack_from("<IHHQ", image, 0)
    if magic != 0xBA55ED50 or header + size > len(image):
        raise ValueError("not a fatbin")
    at = header
    while at < header + size:
        kind, _, head, payload = struct.unpack_from("<HHIQ", image, at)
        yield kind, struct.unpack_from("<I", image, at + 28)[0]
        at += head + payload


# Products that are told where they may load their weights before their wait; they store nothing there. As in src/gpu/kernels/image.rs.
LINK = re.compile(r"gemm_small_m_\w+_(one|one_deep|two|four|four_3|eight|sixteen|narrow|1_(four|eight|narrow)_[234]) ")
# Products behind the kernel that arranges A, which copy weights there, and read nothing else.
BEHIND = re.compile(r"gemm_small_m_\w+_wgmma ")


def overtaken(lines):
    """Products for Hopper in which an arrival at a barrier that math warps tell does not wait for loads from shared memory that were issued before it: those whose scoreboard nobody has
    waited for since. Loads behind the last wait for a barrier may be of the next stage, and on their way where the arrival goes to an address that follows from loads before that wait. Of two vectors
    of scales, or 128x128 scales of A and 1x128 scales of B, single loads (scales of A) behind the last wait are of the next stage wherever the arrival goes; pairs are scales of B. Of each instruction's second word the upper bits are
    the scoreboard that it sets (7: none, the next load's tells, as loads return in order) and those that it waits for."""
    found, arrivals, function, text = set(), {}, None, None
    for line in lines:
        if name := FUNCTION.match(line):
            # Of a scoreboard, of loads whose scoreboard is the next one's, and of registers: after how many waits for a barrier the loads were issued. Of loads also their names.
            function, waits_seen, waited_for, loose, of_registers = name[1], 0, {}, [], {}
            two_vectors = re.search("_vector_|_block_a_", function)
        elif first := INSTRUCTION.match(line):
            text = first[2]
        elif text and (second := re.match(r"\s*/\* 0x([0-9a-f]{16}) \*/", line)):
            control = int(second[1], 16) >> 41
            sets, waits = control >> 5 & 7, control >> 11 & 63
            waited_for = {board: asked for board, asked in waited_for.items() if not waits >> board & 1}
            name = next(word for word in text.split() if not word.startswith("@"))
            registers = re.findall(r"\bU?R\d+", text)
            follows_from = min((of_registers[register] for register in registers[not name.startswith("SYNCS") :] if register in of_registers), default=None)
            if name.startswith("SYNCS.ARRIVE") and "A1T0" in name:
                arrivals[function] = arrivals.get(function, 0) + 1
                loads = loose + sum(waited_for.values(), [])
                on_their_way = [issued for issued, load in loads if not two_vectors or load.startswith("LDS.64") or issued < waits_seen]
                of_next = follows_from is not None and follows_from < waits_seen and all(issued == waits_seen for issued in on_their_way)
                if on_their_way and not of_next:
                    found.add(function)
            elif "PHASECHK" in name:
                waits_seen += 1
            elif name.startswith("LDS"):
                loose = loose + [(waits_seen, name)]
                if sets != 7:
                    waited_for[sets] = waited_for.get(sets, []) + loose
                    loose = []
                follows_from = waits_seen
            if registers and not name.startswith(("SYNCS", "ST")):
                if follows_from is not None:
                    of_registers[registers[0]] = follows_from
                elif not text.startswith("@"):
                    of_registers.pop(registers[0], None)
            text = None
    return found, arrivals


def before_wait(lines, allowed):
    """What of a function's accesses of memory a path leads to from its beginning past no wait: in a kernel that has a wait for each kind of warp, or on each of two branches, the first in the
    listing is not before all that comes behind it. `allowed`: kinds of access that may be there."""
    waits = next((i for i, line in enumerate(lines) if WAIT.search(line)), len(lines))
    if not any(JUMP.search(line) or ACCESS.search(line) for line in lines[:waits]):
        # Nothing was touched, and nothing leads around the first wait: so it is in most.
        return set()
    code = {}
    for line in lines:
        if first := INSTRUCTION.match(line):
            code[int(first[1], 16)] = first[2]
    places = list(code)
    behind, seen, next_ones, found = dict(zip(places, places[1:])), set(), places[:1], set()
    while next_ones:
        at = next_ones.pop()
        if at is None or at in seen:
            continue
        seen.add(at)
        text = code[at]
        name = next(word for word in text.split() if not word.startswith("@"))
        always = not text.startswith("@")
        if name == "ACQBULK" and always:
            continue
        if (access := ACCESS.search(text)) and access[1] not in allowed:
            found.add(access[1])
        if name.startswith(("BRA", "CALL", "BRX", "JMP", "JMX")):
            target = re.search(r" 0x([0-9a-f]+)\s*$", text)
            if target and int(target[1], 16) in code:
                next_ones.append(int(target[1], 16))
            else:
                found.add("a jump to a place that is not read")
            # A branch that some lanes may not take says so by a register or predicate of its own, too.
            always = always and name in ("BRA", "CALL.REL.NOINC") and len(text.split()) == 2 and not name.startswith("CALL")
        if not (always and name.startswith(("BRA", "EXIT", "RET"))):
            next_ones.append(behind.get(at))
    return found


FUNCTION = re.compile(r"\s+Function : (\S+)")
# Its address and text, before the first of its two words.
INSTRUCTION = re.compile(r"\s*/\*([0-9a-f]{4,})\*/\s+(.*?)\s*;\s*/\* 0x[0-9a-f]{16} \*/")
# Products for Hopper (kernels/gemm/sm90_*.cu), and kernels of CONTROL.
RING = re.compile(r"(gemm_(fp8|e5m2_e4m3|e4m3_e5m2)|control)_(block|plain|vector|outer|codes|swiglu)_")
MACHINE = re.compile(r"arch = sm_(\d+)|\s*code for sm_(\d+)")
NARROW = re.compile(r"\bV?HMNMX2?\b")
ACCESS = re.compile(r"\b(LDG|LDGMC|STG|LDGSTS|ATOMG|REDG|LD|ST|ATOM|RED|UBLKCP|UBLKRED|UBLKPF|UTMALDG|UTMASTG|UTMAREDG|UTMAPF)\b")
WAIT = re.compile(r"\*/\s+ACQBULK")
JUMP = re.compile(r"\b(BRA|CALL|BRXU?|JMP|JMXU?)\b")


def faults(image):
    """Functions of machine code by GPU, those of them with a maximum of two 16-bit floats, and those that touch memory before they wait; and what is overtaken."""
    gpu, function, functions, narrow, early, ring, rings, lines = None, None, {}, set(), {}, False, [], []

    def ends():
        if lines:
            allowed = ("LDG", "LDGSTS") if LINK.match(function) else ("LDGSTS",) if BEHIND.match(function) else ()
            if touched := before_wait(lines, allowed):
                early[function] = sorted(touched)
        lines.clear()

    disassembler = subprocess.Popen(["cuobjdump", "-sass", image], stdout=subprocess.PIPE, text=True)
    # Millions of lines: an expression is asked of those alone that have the word.
    for line in disassembler.stdout:
        # An image of several GPUs says the one; that of one alone the other.
        if "sm_" in line and (found := MACHINE.match(line)):
            gpu = int(found[1] or found[2])
        elif "Function : " in line and (found := FUNCTION.match(line)):
            ends()
            function = f"{found[1]} for sm_{gpu}"
            functions.setdefault(gpu, []).append(found[1])
            ring = RING.match(found[1])
        elif "HMNMX" in line and NARROW.search(line):
            narrow.add(function)
        if function and gpu >= 90:
            lines.append(line)
        if ring:
            rings.append(line)
    ends()
    if disassembler.wait() != 0:
        raise subprocess.CalledProcessError(disassembler.returncode, disassembler.args)
    return functions, narrow, early, *overtaken(rings)


# That a maximum of packed 16-bit floats is found where there is one, on every GPU, and what comes before a wait: of links what they store.
CONTROL = """#include <cuda_bf16.h>
#include <cuda_fp16.h>
extern "C" __global__ void largest_bf16(__nv_bfloat162 *x) { x[0] = __hmax2(x[1], x[2]); }
extern "C" __global__ void largest_f16(__half2 *x) { x[0] = __hmax2(x[1], x[2]); }
extern "C" __global__ void hasty(float *x) {
    x[0] = 1;
#if __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
    x[1] = 1;
}
#if __CUDA_ARCH__ >= 900
#define LOADS(name)                                                                    \\
    extern "C" __global__ void name(volatile float *x) {                               \\
        float early = x[0];                                                            \\
        asm volatile("griddepcontrol.wait;" ::: "memory");                             \\
        x[1] = early;                                                                  \\
    }
LOADS(gemm_small_m_block_8_one)
LOADS(gemm_small_m_fp8_bf16_8_tile_e4m3)
LOADS(gemm_small_m_end_of_chain)
extern "C" __global__ void gemm_small_m_block_8_two(float *x) {
    x[0] = 1;
    asm volatile("griddepcontrol.wait;" ::: "memory");
    x[1] = 1;
}
#endif
#if __CUDA_ARCH__ == 900
// One kind of warp waits before it touches memory, the other behind that.
extern "C" __global__ void control_block_one_path(volatile float *x) {
    if (threadIdx.x >= 32) {
        x[threadIdx.x] = x[0];
        asm volatile("griddepcontrol.wait;" ::: "memory");
    } else {
        asm volatile("griddepcontrol.wait;" ::: "memory");
        x[threadIdx.x] = 1;
    }
}
// The same, by the copy engine.
#define ONE_PATH(name, asks)                                                                                              \\
    extern "C" __global__ void name(volatile float *x, const __grid_constant__ TensorMap map) {                           \\
        __shared__ __align__(128) unsigned long long room[32];                                                            \\
        const unsigned at = (unsigned)__cvta_generic_to_shared(room);                                                     \\
        if (threadIdx.x >= 32) {                                                                                          \\
            if (threadIdx.x == 32) asks                                                                                   \\
            asm volatile("griddepcontrol.wait;" ::: "memory");                                                            \\
        } else {                                                                                                          \\
            asm volatile("griddepcontrol.wait;" ::: "memory");                                                            \\
            x[threadIdx.x] = 1;                                                                                           \\
        }                                                                                                                 \\
    }
struct alignas(64) TensorMap { unsigned long long opaque[16]; };
ONE_PATH(control_block_one_path_bulk, asm volatile("cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], 16, [%2];" ::"r"(at), "l"(x), "r"(at + 128) : "memory");)
ONE_PATH(control_block_one_path_box, asm volatile("cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%2, %2}], [%3];" ::"r"(at), "l"(&map), "r"(0), "r"(at + 128) : "memory");)
ONE_PATH(control_block_one_path_store, asm volatile("cp.async.bulk.tensor.2d.global.shared::cta.bulk_group [%0, {%1, %1}], [%2];" ::"l"(&map), "r"(0), "r"(at) : "memory");)
// Arrives at once, and when what it loaded was there: as its condition has it, or where it arrives.
#define ARRIVES(name, type, load, registers, between, condition, place)                                                   \\
    extern "C" __global__ void name(float *x, unsigned zero) {                                                            \\
        asm volatile("griddepcontrol.wait;" ::: "memory");                                                                \\
        __shared__ unsigned long long barrier;                                                                            \\
        __shared__ type of_lane[32];                                                                                      \\
        const unsigned at = (unsigned)__cvta_generic_to_shared(&barrier);                                                 \\
        of_lane[threadIdx.x].x = x[0];                                                                                    \\
        if (threadIdx.x == 0) asm volatile("mbarrier.init.shared::cta.b64 [%0], 1;" ::"r"(at) : "memory");                \\
        __syncthreads();                                                                                                  \\
        float2 v = {0, 0};                                                                                                \\
        const unsigned from = (unsigned)__cvta_generic_to_shared(of_lane + 31 - threadIdx.x);                             \\
        asm volatile(load : registers : "r"(from) : "memory");                                                            \\
        between                                                                                                           \\
        if (condition) asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];" ::"r"(place) : "memory");                   \\
        x[threadIdx.x] = v.x;                                                                                             \\
        x[threadIdx.x + 32] = v.y;                                                                                        \\
    }
#define ARRIVES_PAIR(name, condition) ARRIVES(name, float2, "ld.shared.v2.f32 {%0, %1}, [%2];", "=f"(v.x) COMMA "=f"(v.y), , condition, at)
#define ARRIVES_ONE(name, between, place) ARRIVES(name, float1, "ld.shared.f32 %0, [%1];", "=f"(v.x), between, threadIdx.x == 0, place)
// Waits for a barrier, and loads what may be of the next stage.
#define NEXT                                                                                                              \\
    asm volatile("{.reg .pred done; again: mbarrier.try_wait.parity.shared::cta.b64 done, [%0], 1; @!done bra again;}" ::"r"(at) : "memory"); \\
    asm volatile("ld.shared.f32 %0, [%1];" : "=f"(v.y) : "r"(from) : "memory");
// Asks a barrier once: before a branch ptxas waits for all loads.
#define ASKS asm volatile("{.reg .pred done; mbarrier.test_wait.parity.shared::cta.b64 done, [%0], 1;}" ::"r"(at) : "memory");
#define COMMA ,
ARRIVES_PAIR(control_vector_overtaken, threadIdx.x == 0)
ARRIVES_PAIR(control_vector_waits, threadIdx.x == (v.x == 1.0f))
ARRIVES_ONE(control_vector_one_of_next, , at)
ARRIVES_ONE(control_vector_one_overtaken, ASKS, at)
ARRIVES_ONE(control_vector_one_waits, ASKS, at + (__float_as_uint(v.x) & zero))
ARRIVES_ONE(control_block_overtaken, , at)
ARRIVES_ONE(control_block_waits, , at + (__float_as_uint(v.x) & zero))
ARRIVES_ONE(control_block_next_overtaken, NEXT, at)
ARRIVES_ONE(control_block_next_waits, NEXT, at + (__float_as_uint(v.x) & zero))
#endif
"""
# Those of them that touch memory before they wait; the two of maxima never wait.
EARLY = {
    "largest_bf16", "largest_f16", "hasty", "gemm_small_m_fp8_bf16_8_tile_e4m3", "gemm_small_m_end_of_chain", "gemm_small_m_block_8_two",
}


def control(source, gpu):
    """What `faults` finds in CONTROL, compiled for a GPU."""
    image = source.with_name(f"{gpu}.cubin")
    subprocess.run([os.environ.get("NVCC", "nvcc"), "-std=c++17", f"-arch={gpu}", "-cubin", "-o", image, source], check=True)
    return faults(image)


# ptxas waits for products whose registers the source touches too early, and says so as information. build.rs gives such a kernel no image.
REWRITTEN = """extern "C" __global__ void rewritten(float *d, unsigned long long a, unsigned long long b, int n) {
    float x[4] = {0, 0, 0, 0};
    for (int i = 0; i < n; ++i) {
        asm volatile("wgmma.mma_async.sync.aligned.m64n8k32.f32.e4m3.e4m3 {%0, %1, %2, %3}, %4, %5, 1, 1, 1;"
                     : "+f"(x[0]), "+f"(x[1]), "+f"(x[2]), "+f"(x[3])
                     : "l"(a), "l"(b));
        x[0] *= 2;
    }
    for (int i = 0; i < 4; ++i) d[threadIdx.x * 4 + i] = x[i];
}
"""


def tells_what_is_rewritten(source):
    """Whether nvcc says of REWRITTEN what build.rs looks for."""
    source.write_text(REWRITTEN)
    words = re.search(r'WGMMA_REWRITTEN: &str = "(.+)";', pathlib.Path("build.rs").read_text())[1]
    command = [os.environ.get("NVCC", "nvcc"), "-std=c++17", "-arch=sm_90a", "-cubin", "-o", source.with_suffix(".cubin"), source]
    said = subprocess.run(command, check=True, capture_output=True, text=True)
    return words in said.stdout + said.stderr


failed = False
sources = sorted(pathlib.Path("kernels").glob("*/*.cu"))
images = {source: out / source.relative_to("kernels").with_suffix(".fatbin") for source in sources}
images = {source: image for source, image in images.items() if image.exists() and image.stat().st_size > 0}
# By all cores, the longest first. All is asked for before the first line is printed: processes that begin later would print it once more.
with tempfile.TemporaryDirectory() as folder, concurrent.futures.ProcessPoolExecutor(mp_context=multiprocessing.get_context("fork")) as pool:
    source = pathlib.Path(folder) / "control.cu"
    source.write_text(CONTROL)
    if not tells_what_is_rewritten(source.with_name("rewritten.cu")):
        print("sm_90a: ptxas says nothing that build.rs looks for of products that it changes: that check sees nothing")
        failed = True
    controls = {gpu: pool.submit(control, source, gpu) for gpu in sorted(set(re.findall(r'"(sm_\d+a?)"', pathlib.Path("build.rs").read_text())))}
    found = {source: pool.submit(faults, image) for source, image in sorted(images.items(), key=lambda of: -of[1].stat().st_size)}
    for gpu, job in controls.items():
        functions, narrow, early, hasty, arrivals = job.result()
        if gpu.startswith("sm_90") and (hasty != {f"control_{name}_overtaken" for name in ("vector", "vector_one", "block", "block_next")} or len(arrivals) != 9):
            print(f"{gpu}: arrivals that overtake loads were found in {sorted(hasty)} of {sorted(arrivals)}: this check sees nothing there")
            failed = True
        of_two = {name.split()[0] for name in narrow}
        if of_two != {"largest_bf16", "largest_f16"}:
            print(f"{gpu}: the maximum of packed 16-bit floats was found in {sorted(of_two)} of largest_bf16 and largest_f16: this check sees nothing there")
            failed = True
        hurried = EARLY | ({"control_block_one_path" + asks for asks in ("", "_bulk", "_box", "_store")} if gpu.startswith("sm_90") else set())
        if int(re.search(r"\d+", gpu)[0]) >= 90 and {name.split()[0] for name in early} != hurried:
            print(f"{gpu}: what touches memory before it waits was not found: {sorted(early)}, for {sorted(hurried)}")
            failed = True

for source in sources:
    if source not in images:
        print(f"{source}: no image")
        failed = True
        continue
    first, last = table[str(source.relative_to("kernels").with_suffix(""))]
    wanted = {gpu for gpu in targets if gpu >= first and (last == LATER or gpu <= last)}
    image = images[source].read_bytes()
    entries = list(contents(image))
    code = {gpu for kind, gpu in entries if kind == MACHINE_CODE}
    ptx = [gpu for kind, gpu in entries if kind == PTX]
    good = code == wanted and bool(ptx) == (last == LATER) and all(gpu >= 90 for gpu in ptx)
    names = " ".join(f"sm_{gpu}" for gpu in sorted(code)) + "".join(f" + PTX {gpu}" for gpu in ptx)
    print(f"{source}: {len(image)} bytes, {names}" + ("" if good else f"; wanted {sorted(wanted)}" + " and PTX for 90 or above" * (last == LATER)))
    failed = failed or not good
    functions, narrow, early, hasty, arrivals = found[source].result()
    # Each of them has math warps that give stages back.
    silent = {name for names in functions.values() for name in names if RING.match(name) and name not in arrivals}
    for name in sorted(hasty | silent):
        print(f"{source}: {name} gives a stage back while scales that it loaded from there may be on their way, or nothing of it was seen")
        failed = True
    if set(functions) != code or len({len(names) for names in functions.values()}) != 1:
        print(f"{source}: functions were disassembled for {sorted(functions)}, not for each of {sorted(code)}, or not as many")
        failed = True
    for name in sorted(narrow):
        print(f"{source}: {name} has a maximum of packed 16-bit floats")
        failed = True
    for name in sorted(early):
        print(f"{source}: {name} touches memory before it waits for the kernel before it ({', '.join(early[name])}): not by ld.global.nc, __ldg or const __restrict__")
        failed = True
if failed:
    # What nvcc said, which the build only warns of: NVRTC would take over at run time.
    for line in (out.parent / "output").read_text().splitlines():
        if not line.startswith("cargo:rerun"):
            print(line.removeprefix("cargo:warning="))
    sys.exit("check-kernels.sh: not every kernel compiles for every GPU")
PY
