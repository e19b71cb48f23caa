"""What nvcc makes of the kernels, without a GPU.

Usage: machine_code_test.py NVCC [CUOBJDUMP]

No kernel spills, and each stays within its line of kernel_budgets.txt; attention multiplies on
tensor cores, loads their operands by ldmatrix and fills its tiles by asynchronous copies.
Exits with 77 (skipped) where a tool is missing.
"""

import concurrent.futures
import os
import pathlib
import re
import shutil
import site
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parents[4]
KERNELS = ROOT / "engine/compute/cuda/kernels"
TABLE = pathlib.Path(__file__).with_name("kernel_budgets.txt")
ARCHITECTURES = ("80", "90a", "100")
SKIPPED = 77
# What must be found in every kernel of these files: tensor-core products, ldmatrix, cp.async.
INSTRUCTIONS = {
    "attention_prefill": ("HMMA.16816.F32", "LDSM.16", "LDGSTS"),
    "attention_decode": ("HMMA.16816.F32", "LDSM.16", "LDGSTS"),
}
WITHOUT_PRODUCTS = ("MergePartsKernel",)


def skip(why):
    print(f"SKIPPED: {why}")
    sys.exit(SKIPPED)


def short_name(symbol):
    """PrefillKernel<Bf16, 64> of a mangled kernel."""
    name = subprocess.run(["c++filt", symbol], capture_output=True, text=True,
                          check=True).stdout.strip()
    name = re.sub(r"\(anonymous namespace\)::|ringfill::|gpu::|^void ", "", name)
    depth = 0
    for i, character in enumerate(name):
        depth += (character == "<") - (character == ">")
        if character == "(" and depth == 0:
            return name[:i]
    return name


def compile_kernels(nvcc, source, architecture, folder):
    """The cubin's path and what ptxas said."""
    cubin = pathlib.Path(folder) / f"{source.stem}.sm_{architecture}.cubin"
    result = subprocess.run(
        [nvcc, "-std=c++20", "-O3", f"-I{ROOT}", "-cubin", "-Xptxas", "-v",
         f"-gencode=arch=compute_{architecture},code=sm_{architecture}", "-o", cubin, source],
        capture_output=True, text=True, check=False)
    if result.returncode != 0:
        sys.exit(f"{source.name} for sm_{architecture}:\n{result.stdout}{result.stderr}")
    return cubin, result.stdout + result.stderr


def used(architecture, log):
    """(kernel, architecture, registers, static shared bytes, spilled bytes) of each kernel."""
    out = []
    for part in re.split(r"(?=ptxas info\s*: Compiling entry function)", log)[1:]:
        symbol = re.search(r"Compiling entry function '([^']+)'", part)[1]
        registers = int(re.search(r"Used (\d+) registers", part)[1])
        shared = re.search(r"(\d+) bytes smem", part)
        spilled = sum(int(n) for n in re.findall(r"(\d+) bytes spill (?:stores|loads)", part))
        out.append((short_name(symbol), architecture, registers, int(shared[1]) if shared else 0,
                    spilled))
    return out


def dynamic_shared_bytes():
    """{(kernel, head size): bytes} as the header has it."""
    program = ('#include <cstdio>\n#include "engine/compute/cuda/kernels/attention.h"\n'
               'int main() { for (int d = 1; d <= 512; ++d) '
               'if (ringfill::gpu::AttentionTakesHeadDim(d)) '
               'std::printf("PrefillKernel %d %d\\nDecodeKernel %d %d\\n", '
               'd, ringfill::gpu::PrefillSharedBytes(d), d, ringfill::gpu::DecodeSharedBytes(d)); }')
    with tempfile.TemporaryDirectory() as folder:
        binary = f"{folder}/sizes"
        subprocess.run(["c++", "-std=c++20", f"-I{ROOT}", "-x", "c++", "-o", binary, "-"],
                       input=program, text=True, check=True)
        lines = subprocess.run([binary], capture_output=True, text=True, check=True).stdout.split("\n")
    return {(kernel, dim): int(size) for kernel, dim, size in (line.split() for line in lines if line)}


def read_table():
    """[(pattern, registers, shared bytes)]"""
    out = []
    for line in TABLE.read_text(encoding="utf-8").splitlines():
        if line and not line.startswith("#"):
            pattern, registers, shared = line.rsplit(None, 2)
            out.append((pattern.strip(), int(registers), int(shared)))
    return out


def matches(pattern, kernel):
    return re.fullmatch(re.escape(pattern).replace(r"\*", ".*"), kernel) is not None


def check_budgets(rows):
    table = read_table()
    dynamic = dynamic_shared_bytes()
    problems, seen = [], set()
    for kernel, architecture, registers, shared, spilled in sorted(rows):
        key = re.fullmatch(r"(\w+)<\w+, (\d+)>", kernel)
        if key:
            shared += dynamic.get((key[1], key[2]), 0)
        print(f"{kernel:40} sm_{architecture:4} {registers:4} registers {shared:7} shared bytes")
        line = next((entry for entry in table if matches(entry[0], kernel)), None)
        if spilled:
            problems.append(f"{kernel} sm_{architecture}: spills {spilled} bytes")
        if line is None:
            problems.append(f"{kernel}: no line in {TABLE.name}")
            continue
        seen.add(line)
        if registers > line[1]:
            problems.append(f"{kernel} sm_{architecture}: {registers} registers, at most {line[1]}")
        if shared > line[2]:
            problems.append(f"{kernel} sm_{architecture}: {shared} shared bytes, at most {line[2]}")
    problems += [f"{TABLE.name}: no kernel {entry[0]}" for entry in table if entry not in seen]
    return problems


def disassemble(cuobjdump, cubin):
    """{kernel: machine code}"""
    folder = str(pathlib.Path(cuobjdump).resolve().parent)
    environment = dict(os.environ, PATH=folder + os.pathsep + os.environ["PATH"])
    result = subprocess.run([cuobjdump, "-sass", cubin], capture_output=True, text=True, check=True,
                            env=environment)
    parts = re.split(r"Function : (\S+)", result.stdout)
    return {short_name(symbol): code for symbol, code in zip(parts[1::2], parts[2::2])}


def find_cuobjdump(given):
    """As given, else from the Python package nvidia-cuda-cuobjdump."""
    if given and shutil.which(given):
        return given
    for folder in (*site.getsitepackages(), site.getusersitepackages()):
        for path in pathlib.Path(folder).glob("nvidia/*/bin/cuobjdump"):
            return str(path)
    return None


def check_instructions(stem, architecture, kernels):
    problems = [] if kernels else [f"{stem} sm_{architecture}: no machine code"]
    for kernel, code in kernels.items():
        if kernel in WITHOUT_PRODUCTS:
            continue
        counts = {name: len(re.findall(re.escape(name), code)) for name in INSTRUCTIONS[stem]}
        print(f"{kernel:40} sm_{architecture:4} {counts}")
        problems += [f"{kernel} sm_{architecture}: no {name}"
                     for name, count in counts.items() if count == 0]
        if re.search(r"\b(STL|LDL)\b", code):
            problems.append(f"{kernel} sm_{architecture}: touches local memory")
    return problems


def check(nvcc, cuobjdump):
    """What is wrong, in lines; without cuobjdump of the budgets alone."""
    sources = sorted(KERNELS.glob("*.cu"))
    if not {path.stem for path in sources} >= INSTRUCTIONS.keys():
        return [f"no attention kernels in {KERNELS}"]

    def look_at(job):
        source, architecture = job
        cubin, log = compile_kernels(nvcc, source, architecture, folder)
        problems = []
        if cuobjdump and source.stem in INSTRUCTIONS:
            problems = check_instructions(source.stem, architecture, disassemble(cuobjdump, cubin))
        return used(architecture, log), problems

    with (tempfile.TemporaryDirectory() as folder,
          concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool):
        parts = list(pool.map(look_at, [(s, a) for s in sources for a in ARCHITECTURES]))
    problems = check_budgets([row for rows, _ in parts for row in rows])
    return problems + [problem for _, found in parts for problem in found]


def main():
    nvcc = sys.argv[1]
    if not shutil.which(nvcc):
        skip("no nvcc")
    cuobjdump = find_cuobjdump(sys.argv[2] if len(sys.argv) > 2 else None)
    problems = check(nvcc, cuobjdump)
    print("\n".join(problems))
    if problems:
        sys.exit(1)
    if cuobjdump is None:
        skip("instructions not looked at: no cuobjdump (in the CUDA toolkit, or "
             "pip install nvidia-cuda-cuobjdump nvidia-cuda-nvdisasm)")


if __name__ == "__main__":
    main()
