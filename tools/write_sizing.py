#!/usr/bin/env python3
"""Writes the tables of docs/SIZING.md, and the memory plans of GPUs that a test holds the engine to.

Usage: tools/write_sizing.py [--check]

With --check nothing is written; exits with 1 when a file is not what would be written. The functions are the formulas
of docs/SIZING.md; tests/docs/sizing_test.py holds kv_bytes_per_token, cpu_pages and largest_request to a running
daemon, tests/engine/cuda/memory_plan_test.cc holds gpu_plan to the engine's own.
"""

import dataclasses
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
DOCUMENT = ROOT / "docs/SIZING.md"
GPU_PLANS = ROOT / "tests/data/gpu_memory_plans.txt"
GIB = 1 << 30
MIB = 1 << 20

BYTES = {"f32": 4, "bf16": 2}
# A block of 32 weights in bytes, as in engine/compute/products/weight_type.cc.
STORED = {"BF16": 64, "Q8_0": 34, "Q4_0": 18}


@dataclasses.dataclass(frozen=True)
class Model:
    name: str
    layers: int
    width: int
    heads: int
    kv_heads: int
    head_size: int
    ffn: int
    vocab: int
    context: int  # that it was trained for
    tied: bool = False  # the embedding is the output head too

    @property
    def q_width(self):
        return self.heads * self.head_size

    @property
    def kv_width(self):
        return self.kv_heads * self.head_size

    def matrices(self):
        """(rows, columns) of a layer's."""
        return [(self.q_width, self.width), (self.kv_width, self.width), (self.kv_width, self.width),
                (self.width, self.q_width), (self.ffn, self.width), (self.ffn, self.width), (self.width, self.ffn)]

    def layer_weights(self):
        return sum(rows * columns for rows, columns in self.matrices())

    def file_bytes(self, stored):
        """Of all weights; norms are float32."""
        matrices = self.layers * self.layer_weights() + (1 if self.tied else 2) * self.vocab * self.width
        return matrices * STORED[stored] // 32 + (2 * self.layers + 1) * self.width * 4


MODELS = (
    Model("SmolLM2 135M", 30, 576, 9, 3, 64, 1536, 49152, 8192, tied=True),
    Model("Llama 3.2 1B", 16, 2048, 32, 8, 64, 8192, 128256, 131072, tied=True),
    Model("SmolLM2 1.7B", 24, 2048, 32, 32, 64, 8192, 49152, 8192, tied=True),
    Model("Llama 3.2 3B", 28, 3072, 24, 8, 128, 8192, 128256, 131072, tied=True),
    Model("Llama 2 7B", 32, 4096, 32, 32, 128, 11008, 32000, 4096),
    Model("Mistral 7B v0.3", 32, 4096, 32, 8, 128, 14336, 32768, 32768),
    Model("Llama 3.1 8B", 32, 4096, 32, 8, 128, 14336, 128256, 131072),
    Model("Llama 3.1 70B", 80, 8192, 64, 8, 128, 28672, 128256, 131072),
    Model("Llama 3.1 405B", 126, 16384, 128, 8, 128, 53248, 128256, 131072),
)


# KV.

def kv_bytes_per_token(model, kv_dtype="bf16"):
    return 2 * model.layers * model.kv_heads * model.head_size * BYTES[kv_dtype]


def cpu_pages(model, ranks, *, memory_bytes=0, machine_bytes=0, context=0, running=64, kv_dtype="bf16",
              page_tokens=64):
    """Pages of a rank: kv.memory_bytes over the ranks, or what the daemon takes where that is 0."""
    page = page_tokens * kv_bytes_per_token(model, kv_dtype)
    if memory_bytes == 0:
        context_pages = (context or model.context) // page_tokens + ranks
        memory_bytes = min((4 * context_pages + running * ranks) * page, machine_bytes // 4)
    return memory_bytes // ranks // page


def largest_request(pages, ranks, *, page_tokens=64, stripe_tokens=64):
    """Most tokens of one request with its decode reserve: whole stripes on each rank, and a part of one more."""
    stripes, rest = divmod(pages * page_tokens, stripe_tokens)
    return stripes * stripe_tokens * ranks + rest


# CPUs.

TILE_ROWS = 256  # kMaxProductRows


def cpu_fixed_bytes(model, *, threads, stored="Q8_0", dtype="bf16", chunk_tokens=2048):
    """All but KV, of ranks that are threads of one process."""
    element = BYTES[dtype]
    expanded = 2 * model.layer_weights() * element
    rows = chunk_tokens * (4 * model.width + 4 * model.head_size + model.q_width * element
                           + 4 * model.heads * (model.head_size + 2))
    tile = TILE_ROWS * (model.width * (element + 4) + model.q_width * (element + 4) + 2 * 4 * model.kv_width
                        + 2 * element * model.ffn)
    return model.file_bytes(stored) + expanded + rows + threads * tile


def cpu_context(model, memory_bytes, *, ranks=1, threads=16, kv_dtype="bf16"):
    """Tokens of KV that fit beside all else when a tenth of the memory is left."""
    room = memory_bytes * 9 // 10 - cpu_fixed_bytes(model, threads=threads)
    token = kv_bytes_per_token(model, kv_dtype)
    if ranks > 1:
        token += 2 * token // model.layers  # two shards of a layer on their way
    return max(0, room // (64 * token * ranks)) * 64 * ranks


# GPUs, as engine/compute/cuda/memory_plan.cc and workspace.cc do it.

@dataclasses.dataclass(frozen=True)
class GpuPlan:
    weight_bytes: int
    workspace_bytes: int
    library_bytes: int
    pages: int  # of a rank


def aligned(size):
    return (size + 255) // 256 * 256


def workspace_bytes(model):
    rows, bf16, f32 = 2048, 2, 4
    entries = max(4, min(32, 1 << (max(1, 256 // model.kv_heads).bit_length() - 1)))
    fused = entries * model.kv_heads * 256 * (2 * model.head_size * bf16 + f32) + entries * (1 << 16) * 4
    return (rows * model.width * (bf16 + f32) + rows * (model.q_width + 2 * model.kv_width) * f32
            + rows * 2 * model.ffn * bf16 + max(8 << 20, model.vocab) * f32 + 8192 * model.width * bf16
            + 32 * MIB + fused + 64 * MIB + 64 * MIB)


def step_bytes(model, ranks, chunk_tokens, gather_bytes, page_tokens):
    rows = chunk_tokens // ranks + 2 * page_tokens
    row = (4 * model.width + 4 * model.head_size + 4 * model.q_width + 4 * model.heads * (2 + model.head_size)
           + 8 * model.kv_width)
    token = max(model.q_width + 2 * model.kv_width, model.width, model.heads * (2 + model.head_size))
    return (int(3.5 * row * rows) + rows * model.q_width * 2 + 256 * token * (ranks + 2) * 4
            + (gather_bytes if ranks > 1 else 0))


def library_bytes(ranks):
    return 512 * MIB + (GIB + min(ranks - 1, 7) * 384 * MIB if ranks > 1 else 0)


def weight_bytes(model, most, stored):
    """With as many layers, and the output head, in bf16 as `most` allows, or the smallest."""
    as_stored = sum(aligned(rows * columns * STORED[stored] // 32) for rows, columns in model.matrices())
    expanded = aligned(2 * model.layer_weights())
    head = model.vocab * model.width
    stored_head = aligned(head * STORED[stored] // 32)
    norms = (2 * model.layers + 1) * model.width * 4

    def total(places, expanded_output):
        kept = 0 if places == model.layers else model.layers - (places - 2)
        output = aligned(2 * head) if expanded_output else 0 if model.tied else stored_head
        return places * expanded + kept * as_stored + stored_head + norms + output

    least = min(2, model.layers)
    for expanded_output in (True, False):
        for places in range(model.layers, least - 1, -1):
            if total(places, expanded_output) <= most:
                return total(places, expanded_output)
    return total(least, False)


def gpu_plan(model, free_bytes, ranks, *, stored="Q8_0", fraction=0.9, chunk_tokens=2048, gather_bytes=256 * MIB,
             page_tokens=64):
    workspace = workspace_bytes(model) + step_bytes(model, ranks, chunk_tokens, gather_bytes, page_tokens)
    fixed = workspace + library_bytes(ranks)
    weights = weight_bytes(model, int(0.6 * max(0, free_bytes - fixed)), stored)
    page = page_tokens * kv_bytes_per_token(model)
    with_shards = page + (2 * page // model.layers if ranks > 1 else 0)
    room = max(0, free_bytes - weights - fixed) // with_shards
    return GpuPlan(weights, workspace, library_bytes(ranks), int(fraction * room))


# Tables.

MEMORIES_GIB = (16, 32, 64, 128, 256, 512)
GPUS = ((23, 1), (44, 1), (79, 1), (79, 4), (79, 8), (139, 1), (139, 8))


def tokens(count):
    """Rounded down; K is 1,024 and M 1,024 K."""
    if count < 1024:
        return "-"
    if count < 10 << 20:
        return f"{count >> 10:,}K"
    return f"{count >> 20:,}M"


def size(count):
    return f"{count / GIB:,.1f} GiB" if count >= GIB else f"{count / MIB:,.0f} MiB"


def row(*cells):
    return "| " + " | ".join(str(cell) for cell in cells) + " |\n"


def head(*names):
    return row(*names) + "|---" * len(names) + "|\n"


def models_table():
    out = head("model", "layers x KV heads x size", "trained for", "weights, Q8_0", "Q4_0", "KV bytes a token",
               "KV of 32K", "128K", "1M")
    for model in MODELS:
        kv = kv_bytes_per_token(model)
        out += row(model.name, f"{model.layers} x {model.kv_heads} x {model.head_size}", tokens(model.context),
                   size(model.file_bytes("Q8_0")), size(model.file_bytes("Q4_0")), f"{kv:,}",
                   *(size(kv << power) for power in (15, 17, 20)))
    return out


def cpu_table():
    out = head("model", *(f"{memory} GiB" for memory in MEMORIES_GIB))
    for model in MODELS:
        out += row(model.name, *(tokens(cpu_context(model, memory * GIB)) for memory in MEMORIES_GIB))
    return out


def gpu_table():
    out = head("model", *(f"{count} x {free} GiB" for free, count in GPUS))
    for model in MODELS:
        out += row(model.name, *(tokens(gpu_plan(model, free * GIB, count).pages * 64 * count) for free, count in GPUS))
    return out


def time_table():
    out = head("model", "attention costs as much as all else at", "at 32K", "at 128K", "at 1M")
    for model in MODELS:
        even = model.layer_weights() / model.q_width
        out += row(model.name, f"{even:,.0f} tokens",
                   *(f"{(1 << power) / even:,.1f} x" for power in (15, 17, 20)))
    return out


TABLES = {"models": models_table, "cpu": cpu_table, "gpu": gpu_table, "time": time_table}


def marks(name):
    return f"<!-- {name}: written by tools/write_sizing.py -->\n", f"<!-- end of {name} -->\n"


def with_tables(text):
    for name, table in TABLES.items():
        begin, end = marks(name)
        if text.count(begin) != 1 or text.count(end) != 1:
            raise ValueError(f"{DOCUMENT}: the marks of the table {name} must be there once")
        before, rest = text.split(begin)
        text = before + begin + table() + end + rest.split(end)[1]
    return text


def gpu_plans():
    out = ("# Written by tools/write_sizing.py, read by tests/engine/cuda/memory_plan_test.cc. Q8_0, pages of 64.\n"
           "# layers width heads kv_heads head_size ffn vocab tied; free bytes, ranks;"
           " bytes of weights, workspace, libraries; pages\n")
    for model in MODELS:
        for free, count in GPUS:
            plan = gpu_plan(model, free * GIB, count)
            if plan.pages == 0:
                continue
            out += " ".join(str(int(value)) for value in (
                model.layers, model.width, model.heads, model.kv_heads, model.head_size, model.ffn, model.vocab,
                model.tied, free * GIB, count, plan.weight_bytes, plan.workspace_bytes, plan.library_bytes,
                plan.pages)) + "\n"
    return out


def main():
    if sys.argv[1:] not in ([], ["--check"]):
        sys.exit(__doc__)
    for path, wanted in ((DOCUMENT, with_tables(DOCUMENT.read_text(encoding="utf-8"))), (GPU_PLANS, gpu_plans())):
        if not sys.argv[1:]:
            path.write_text(wanted, encoding="utf-8")
        elif not path.exists() or path.read_text(encoding="utf-8") != wanted:
            sys.exit(f"{path} is not current; run tools/write_sizing.py")


if __name__ == "__main__":
    main()
