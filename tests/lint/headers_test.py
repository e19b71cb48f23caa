"""Every header compiles alone.

A header that is the first include of the .cc file of its name is proven by the build; the others are
compiled here. Usage: headers_test.py COMPILER GENERATED_DIR
"""

import concurrent.futures
import os
import subprocess
import sys

import sources

FOLDERS = ("base", "kvcache", "engine", "server", "cli", "tests", "bench")


def proven_by_build(header):
    source = header.with_suffix(".cc")
    if not source.exists():
        return False
    first = next(iter(sources.includes(source)), None)
    return first is not None and first[1] == header.relative_to(sources.ROOT).as_posix()


def compile_alone(compiler, generated, header):
    """Empty when it compiles, else what the compiler said."""
    name = header.relative_to(sources.ROOT).as_posix()
    # Included twice, so that it must also guard itself.
    source = f'#include "{name}"\n#include "{name}"\n'
    # CUDA's headers are the stand-ins, also where the real ones are installed.
    emulation = sources.ROOT / "tests/cuda_emulation"
    stand_ins = [f"-I{emulation / folder}" for folder in ("include", "cublaslt/include",
                                                          "nccl/include")]
    result = subprocess.run(
        [compiler, "-std=c++20", "-fsyntax-only", "-x", "c++", f"-I{sources.ROOT}", *stand_ins,
         "-isystem", generated, "-Wall", "-Wextra", "-Werror", "-"],
        input=source, capture_output=True, text=True, check=False)
    return "" if result.returncode == 0 else f"{name}:\n{result.stderr}"


def main():
    compiler, generated = sys.argv[1:3]
    # Highway's -inl.h files are meant to be included once for each target; device_ptx.h needs nvcc.
    headers = [header for header in sources.files(".h", folders=FOLDERS)
               if not header.name.endswith(("-inl.h", "device_ptx.h"))]
    rest = [header for header in headers if not proven_by_build(header)]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        errors = list(filter(None, pool.map(
            lambda header: compile_alone(compiler, generated, header), rest)))
    print("\n".join(errors))
    print(f"{len(headers)} headers, {len(rest)} of them compiled here, {len(errors)} do not compile")
    sys.exit(1 if errors or not headers else 0)


if __name__ == "__main__":
    main()
