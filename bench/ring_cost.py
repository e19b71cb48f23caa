#!/usr/bin/env python3
"""What sharing one prompt over ranks costs on one machine: N ranks against one rank, same cores.

Interleaved: each turn prefills the same number of tokens once with every number of ranks, in
alternating order, each in a process of its own that has warmed up. A ratio is the time of one rank
over that of N ranks, within a turn; 1.0 means that the ring is free. The verdict is "inconclusive"
when one rank by itself wanders by more than 10 %.

    bench/ring_cost.py --tokens 8192 --ranks 2 4 --pairs 7
"""

import argparse
import json
import os
import pathlib
import statistics
import subprocess

ROOT = pathlib.Path(__file__).resolve().parents[1]
DEFAULT_MODEL = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"),
                             "ringfill/SmolLM2-135M-Instruct.Q4_1.gguf")
WANDER_LIMIT = 0.10


def run(options, ranks):
    """(seconds, hidden share of transfers) of one warm prefill."""
    command = [options.bench, options.model, "--ranks", str(ranks), "--threads",
               str(max(options.threads, ranks)), "--tokens", str(options.tokens), "--decode", "1",
               "--repeats", "1", "--warmup-tokens", "512", "--json"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=600, check=True)
    line = json.loads(result.stdout.strip().splitlines()[-1])
    return line["prefill_ms"] / 1e3, line["hidden_share"]


def spread(values):
    return (max(values) - min(values)) / statistics.median(values)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--bench", default=str(ROOT / "build/release/bench/engine_bench"))
    parser.add_argument("--model", default=str(DEFAULT_MODEL))
    parser.add_argument("--tokens", type=int, default=8192)
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4])
    parser.add_argument("--pairs", type=int, default=7)
    options = parser.parse_args()

    everyone = [1, *options.ranks]
    seconds = {ranks: [] for ranks in everyone}
    hidden = {ranks: [] for ranks in everyone}
    for turn in range(options.pairs):
        for ranks in everyone if turn % 2 == 0 else reversed(everyone):
            took, share = run(options, ranks)
            seconds[ranks].append(took)
            hidden[ranks].append(share)
        print(f"  turn {turn + 1}: " +
              ", ".join(f"{ranks} ranks {seconds[ranks][-1]:.3f} s" for ranks in everyone),
              flush=True)

    calm = spread(seconds[1]) <= WANDER_LIMIT
    print(f"{options.tokens} tokens, {options.threads} threads; one rank "
          f"{statistics.median(seconds[1]):.3f} s (spread {spread(seconds[1]):.1%})")
    print("| ranks | seconds (spread) | speed against one rank (range) | transfer hidden |")
    print("|---|---|---|---|")
    for ranks in options.ranks:
        ratios = [one / many for one, many in zip(seconds[1], seconds[ranks])]
        print(f"| {ranks} | {statistics.median(seconds[ranks]):.3f} ({spread(seconds[ranks]):.1%}) "
              f"| {statistics.median(ratios):.3f} ({min(ratios):.3f} to {max(ratios):.3f}) "
              f"| {statistics.median(hidden[ranks]):.0%} |"
              + ("" if calm else " inconclusive: one rank itself wanders |"))


if __name__ == "__main__":
    main()
