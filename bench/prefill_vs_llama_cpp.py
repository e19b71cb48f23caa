#!/usr/bin/env python3
"""Prefill speed of ringfilld against llama.cpp: same model file, same threads, interleaved pairs.

Both sides stay warm. A pair is one prompt on each side, in alternating order, a different text each
time. Our time is the prefill time that the daemon reports over gRPC; the peer's is the wall time of
its eval call, with flash attention, logits of the last token only, and the fastest of a few batch
sizes. The verdict is "inconclusive" when the peer itself wanders by more than 10 %.

Needs: a built ringfilld and ringfill, and a Python that has llama-cpp-python (--peer-python).

    bench/prefill_vs_llama_cpp.py --peer-python venv/bin/python --tokens 2048 8000

To compare on AVX2 alone, give --isa avx2 and a peer that was built without AVX-512
(CMAKE_ARGS="-DGGML_NATIVE=OFF -DGGML_AVX2=ON -DGGML_FMA=ON -DGGML_F16C=ON").
"""

import argparse
import json
import os
import pathlib
import re
import signal
import statistics
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[1]
DEFAULT_MODEL = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"),
                             "ringfill/SmolLM2-135M-Instruct.Q4_1.gguf")
TEXT = pathlib.Path("/usr/share/common-licenses/GPL-3")
CONTEXT = 8192
PEER_BATCHES = ((512, 512), (2048, 512), (2048, 1024), (2048, 2048))
TUNING_TOKENS = 2048
WANDER_LIMIT = 0.10
ISA_FLAGS = ("avx2", "fma", "avx_vnni", "avx512f", "avx512bw", "avx512_vnni", "avx512_bf16",
             "amx_bf16")

# Reads {"batch": [n_batch, n_ubatch]} (opens the model) and {"ids": [...]} (times one prefill), one
# a line; answers {"seconds": X}.
PEER_PROGRAM = """
import json, sys, time
import llama_cpp
model, threads, context = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
llama = None
for line in sys.stdin:
    command = json.loads(line)
    seconds = 0.0
    if "batch" in command:
        llama = None
        llama = llama_cpp.Llama(model, n_ctx=context, n_batch=command["batch"][0],
                                n_ubatch=command["batch"][1], n_threads=threads,
                                n_threads_batch=threads, flash_attn=True, logits_all=False,
                                verbose=False)
    else:
        llama.reset()
        start = time.perf_counter()
        llama.eval(command["ids"])
        seconds = time.perf_counter() - start
    print(json.dumps({"seconds": seconds, "version": llama_cpp.__version__}), flush=True)
"""


class Peer:
    """llama.cpp in a child process that lives as long as this object."""

    def __init__(self, python, model, threads):
        self.process = subprocess.Popen(
            [python, "-c", PEER_PROGRAM, model, str(threads), str(CONTEXT)], stdin=subprocess.PIPE,
            stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        self.version = ""
        self.batch = None

    def ask(self, command):
        self.process.stdin.write(json.dumps(command) + "\n")
        self.process.stdin.flush()
        line = self.process.stdout.readline()
        if not line:
            sys.exit("the peer ended; does its Python have llama-cpp-python?")
        answer = json.loads(line)
        self.version = answer["version"]
        return answer["seconds"]

    def tune(self, ids):
        """Settles on the fastest of the batch sizes."""
        seconds = {}
        for batch in PEER_BATCHES:
            self.ask({"batch": batch})
            self.prefill(ids[:64])
            seconds[batch] = self.prefill(ids)
            print(f"  tuning llama.cpp: n_batch, n_ubatch = {batch}: {seconds[batch]:.3f} s",
                  file=sys.stderr)
        self.batch = min(seconds, key=seconds.get)
        self.ask({"batch": self.batch})

    def prefill(self, ids):
        return self.ask({"ids": ids})

    def close(self):
        self.process.stdin.close()
        self.process.wait(60)


class Ours:
    """ringfilld, asked through the ringfill command."""

    def __init__(self, options):
        settings = ["server.listen=127.0.0.1:0", "metrics.listen=127.0.0.1:0",
                    f"model.path={options.model}", f"ranks.count={options.ranks}",
                    f"compute.threads={options.threads}", f"compute.dtype={options.dtype}",
                    f"model.max_context_tokens={CONTEXT}", *options.set]
        environment = dict(os.environ)
        if options.isa:
            settings.append(f"compute.isa={options.isa}")
        if options.isa == "avx2":
            environment["ONEDNN_MAX_CPU_ISA"] = "AVX2"
        arguments = [str(options.bin_dir / "ringfilld"), "--config",
                     str(ROOT / "config/default.yaml")]
        for setting in settings:
            arguments += ["--set", setting]
        self.process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, text=True,
                                        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        env=environment)
        ready = re.match(r"ready grpc=(\S+)", self.process.stdout.readline())
        if ready is None:
            sys.exit(f"ringfilld did not start:\n{self.process.stderr.read()}")
        self.command = [str(options.bin_dir / "ringfill"), "--address", ready[1]]
        self.status = self.run("status", "--json")

    def run(self, *arguments, stdin=""):
        result = subprocess.run([*self.command, *arguments], input=stdin, capture_output=True,
                                text=True, check=False)
        if result.returncode != 0:
            sys.exit(f"ringfill {arguments[0]} failed: {result.stderr}")
        return json.loads(result.stdout)

    def prefill(self, ids):
        result = self.run("generate", "--token-ids-file", "-", "--max-tokens", "1", "--json",
                          stdin=json.dumps(ids))
        assert result["usage"]["prompt_tokens"] == len(ids)
        assert result["usage"]["cached_tokens"] == 0
        return result["timings"]["prefill_ms"] / 1e3

    def close(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=60)


def machine():
    info = pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8")
    flags = re.search(r"^flags\s*:\s*(.*)$", info, re.M)
    flags = flags[1].split() if flags else []
    name = re.search(r"^model name\s*:\s*(.*)$", info, re.M)
    return {"cpu": name[1] if name else "unknown", "cores": os.cpu_count(),
            "flags": [flag for flag in ISA_FLAGS if flag in flags],
            "avx512_bf16": "avx512_bf16" in flags, "load_at_start": os.getloadavg()[0]}


def spread(values):
    """Interquartile range over the median."""
    low, _, high = statistics.quantiles(values, n=4)
    return (high - low) / statistics.median(values)


def drift(values):
    """How far the median of the second half lies from that of the first."""
    half = len(values) // 2
    first, second = statistics.median(values[:half]), statistics.median(values[half:])
    return abs(second / first - 1)


def measure(ours, peer, corpus, tokens, pairs):
    def prompt(number):
        start = number * 137 % len(corpus)
        return (corpus[start:] + corpus)[:tokens]

    times = {"ours": [], "peer": []}
    sides = (("ours", ours), ("peer", peer))
    for _, side in sides:
        side.prefill(prompt(0))
    for pair in range(pairs):
        for name, side in sides if pair % 2 == 0 else reversed(sides):
            times[name].append(side.prefill(prompt(pair + 1)))
        print(f"  {tokens} tokens, pair {pair + 1}: ours {times['ours'][-1]:.3f} s, "
              f"llama.cpp {times['peer'][-1]:.3f} s", file=sys.stderr)
    ratios = [theirs / our for our, theirs in zip(times["ours"], times["peer"])]
    steady = max(spread(times["peer"]), drift(times["peer"])) <= WANDER_LIMIT
    return {"tokens": tokens, "pairs": pairs, "ours_s": times["ours"], "peer_s": times["peer"],
            "ours_median_s": statistics.median(times["ours"]),
            "peer_median_s": statistics.median(times["peer"]),
            "ours_spread": spread(times["ours"]), "peer_spread": spread(times["peer"]),
            "peer_drift": drift(times["peer"]), "ratio": statistics.median(ratios),
            "ratio_min": min(ratios), "ratio_max": max(ratios), "conclusive": steady}


def print_table(report):
    this = report["machine"]
    print(f"machine    {this['cpu']}, {this['cores']} cores, {' '.join(this['flags'])}; "
          f"AVX-512 bf16: {'yes' if this['avx512_bf16'] else 'no'}; load {this['load_at_start']:.1f}")
    print(f"ringfill   {report['ours']['compute_dtype']} on {report['ours']['isa']}, "
          f"{report['ranks']} ranks, {report['threads']} threads")
    print(f"llama.cpp  llama-cpp-python {report['peer']['version']}, flash attention, "
          f"{report['threads']} threads, n_batch {report['peer']['batch'][0]}, "
          f"n_ubatch {report['peer']['batch'][1]}")
    print("tokens   ringfill tok/s (spread)   llama.cpp tok/s (spread)   times as fast (range)")
    for row in report["rows"]:
        verdict = "" if row["conclusive"] else "  inconclusive: the peer itself wanders"
        print(f"{row['tokens']:6d}   {row['tokens'] / row['ours_median_s']:9.0f} "
              f"({row['ours_spread']:5.1%})   {row['tokens'] / row['peer_median_s']:12.0f} "
              f"({row['peer_spread']:5.1%})   {row['ratio']:12.2f} "
              f"({row['ratio_min']:.2f} to {row['ratio_max']:.2f}){verdict}")


def parse_options():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peer-python", required=True, help="a Python with llama-cpp-python")
    parser.add_argument("--model", default=str(DEFAULT_MODEL))
    parser.add_argument("--bin-dir", type=pathlib.Path, default=ROOT / "build/release/bin")
    parser.add_argument("--tokens", type=int, nargs="+", default=[2048, 8000])
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=os.cpu_count(), help="on both sides")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--dtype", default="auto", help="compute.dtype of our side")
    parser.add_argument("--isa", help="compute.isa of our side, for example avx2")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE",
                        help="another setting of our side; may be repeated")
    parser.add_argument("--json", type=pathlib.Path, help="also write every number there")
    options = parser.parse_args()
    if options.pairs < 4:
        parser.error("--pairs must be at least 4")
    if not all(0 < tokens < CONTEXT for tokens in options.tokens):
        parser.error(f"--tokens must be from 1 to {CONTEXT - 1}")
    return options


def main():
    options = parse_options()
    report = {"machine": machine(), "ranks": options.ranks, "threads": options.threads}
    ours = Ours(options)
    peer = Peer(options.peer_python, options.model, options.threads)
    try:
        corpus = ours.run("tokenize", "--file", str(TEXT), "--json")["token_ids"]
        peer.tune(corpus[:min(TUNING_TOKENS, max(options.tokens))])
        report["rows"] = [measure(ours, peer, corpus, tokens, options.pairs)
                          for tokens in options.tokens]
    finally:
        ours.close()
        peer.close()
    report["ours"] = ours.status
    report["peer"] = {"version": peer.version, "batch": peer.batch}
    print_table(report)
    if options.json:
        options.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
