#!/usr/bin/env python3
"""Peak memory of each rank process, by prompt length and number of ranks.

Starts a daemon with ranks as processes for every (ranks, tokens), prefills one prompt, reads each
worker's peak resident memory, and fits peak = constant + c * tokens / ranks for each number of
ranks. A sharded KV cache and ring show as one c for all of them; a replicated cache would show as a
c that grows with the ranks.

    bench/rank_memory.py --model SmolLM2-cut20.gguf --ranks 1 2 4 --tokens 1024 8192 32768
"""

import argparse
import json
import pathlib
import random
import statistics
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT / "tests/e2e"))
import harness  # noqa: E402

VOCABULARY = 40000


def workers(daemon):
    pids = pathlib.Path(f"/proc/{daemon.process.pid}/task").glob("*/children")
    return sorted({int(pid) for path in pids for pid in path.read_text().split()})


def peak_mib(pid):
    for line in pathlib.Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) / 1024
    raise AssertionError(f"no VmHWM of {pid}")


def measure(options, ranks, tokens):
    """The largest peak of any rank, in MiB."""
    ids = [random.Random(tokens).randrange(VOCABULARY) for _ in range(tokens)]
    settings = ["ring.transport=processes", f"ranks.count={ranks}", f"compute.threads={ranks}",
                f"model.max_context_tokens={max(options.tokens) + 64}",
                f"model.path={options.model}", "ring.strategy=pass-kv", "ring.mode=home"]
    with harness.Daemon(*settings) as daemon:
        result = daemon.client.run("generate", "--token-ids-file", "-", "--max-tokens", "1",
                                   "--json", stdin=json.dumps(ids), timeout_s=600)
        assert result.returncode == 0, result.stderr
        pids = workers(daemon)
        assert len(pids) == ranks, f"{len(pids)} workers for {ranks} ranks"
        return max(peak_mib(pid) for pid in pids)


def slope(points):
    """Least squares of (x, y): slope and intercept."""
    mean_x = statistics.mean(x for x, _ in points)
    mean_y = statistics.mean(y for _, y in points)
    c = (sum((x - mean_x) * (y - mean_y) for x, y in points)
         / sum((x - mean_x) ** 2 for x, _ in points))
    return c, mean_y - c * mean_x


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", required=True)
    parser.add_argument("--ranks", type=int, nargs="+", default=[1, 2, 4])
    parser.add_argument("--tokens", type=int, nargs="+", default=[1024, 8192, 32768])
    options = parser.parse_args()

    print("| ranks | " + " | ".join(f"{tokens} tokens" for tokens in options.tokens)
          + " | c, bytes a token of the rank | constant, MiB |")
    print("|" + "---|" * (len(options.tokens) + 3))
    slopes = []
    for ranks in options.ranks:
        peaks = [measure(options, ranks, tokens) for tokens in options.tokens]
        c, constant = slope([(tokens / ranks, peak)
                             for tokens, peak in zip(options.tokens, peaks)])
        slopes.append(c)
        print(f"| {ranks} | " + " | ".join(f"{peak:.1f} MiB" for peak in peaks)
              + f" | {c * 2**20:.0f} | {constant:.1f} |", flush=True)
    apart = max(slopes) / min(slopes) - 1
    print(f"c differs by {apart:.1%} between numbers of ranks")


if __name__ == "__main__":
    main()
