#!/usr/bin/env python3
"""Kills worker processes of a real ringfilld at random moments of a long prompt, again and again.

Run by hand (docs/ARCHITECTURE.md lists it); with the whole model it takes some hours, with a cut of it
(tools/ makes one) about one:
  RINGFILL_BIN_DIR=build/release/bin RINGFILL_TEST_MODEL=cut6.gguf tests/stress/kill_ranks.py
Reports how many requests finished with the right tokens, how many ended UNAVAILABLE, how long the
ring took to form anew, and how many tokens were computed again. Exits with 1 when fewer than 80 %
finished, a token was wrong, an outcome took longer than 5 s, or the next request was not served.
"""

import argparse
import json
import os
import pathlib
import random
import signal
import sys
import threading
import time

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "e2e"))
import harness  # noqa: E402

NEW_TOKENS = 32
OUTCOME_SECONDS = 5
HANG_SECONDS = 600


def workers(daemon):
    """Pids of the daemon's workers that live."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            stat = (entry / "stat").read_text()
        except OSError:
            continue
        state, parent = stat[stat.rindex(")") + 2:].split()[:2]
        if int(parent) == daemon.process.pid and state != "Z":
            found.append(int(entry.name))
    return sorted(found)


def prompt_ids(client, count):
    """`count` token ids of a real text, repeated where it is too short."""
    text = pathlib.Path("/usr/share/common-licenses/GPL-3").read_text(encoding="utf-8")
    ids = client.json("tokenize", "--text", text)["token_ids"]
    return (ids * (count // len(ids) + 1))[:count]


class Reformed(threading.Thread):
    """Notes when the daemon's epoch leaves `epoch`."""

    def __init__(self, daemon, epoch):
        super().__init__(daemon=True)
        self.source, self.epoch, self.at = daemon, epoch, None

    def run(self):
        deadline = time.monotonic() + HANG_SECONDS
        while self.at is None and time.monotonic() < deadline:
            if self.source.metric("ringfill_epoch") > self.epoch:
                self.at = time.monotonic()
            time.sleep(0.02)


class Run:
    def __init__(self, daemon, arguments):
        self.daemon, self.arguments = daemon, arguments
        self.ids = prompt_ids(daemon.client, arguments.tokens)
        start = time.monotonic()
        self.expected = self.tokens(daemon.client.generate_ids(self.ids, NEW_TOKENS))
        self.seconds = time.monotonic() - start
        self.right = self.unavailable = self.wrong = self.unserved = self.after_end = 0
        self.formed, self.recomputed, self.over = [], [], 0

    @staticmethod
    def tokens(result):
        return [entry["token_id"] for entry in result["logprobs"]]

    def start_request(self):
        return self.daemon.client.start(
            "generate", "--token-ids-file", "-", "--temperature", "0", "--ignore-eos",
            "--max-tokens", str(NEW_TOKENS), "--logprobs", "1", "--json",
            stdin=json.dumps(self.ids))

    def once(self):
        daemon = self.daemon
        daemon.wait_until(lambda: len(workers(daemon)) >= 2, "two workers", 120)
        daemon.client.run("generate", "--prompt", "Hi", "--max-tokens", "1")  # lets newcomers in
        ranks = int(daemon.metric("ringfill_ring_ranks"))
        before = daemon.metric("ringfill_recomputed_tokens_total")
        epoch = daemon.metric("ringfill_epoch")
        client = self.start_request()
        time.sleep(random.random() * self.seconds)
        reformed = Reformed(daemon, epoch)
        ended = client.poll() is not None
        killed = time.monotonic()
        os.kill(random.choice(workers(daemon)), signal.SIGKILL)
        reformed.start()
        out, err = client.communicate(timeout=HANG_SECONDS)
        end = time.monotonic()
        # How long a request takes changes with what else the machine does.
        self.seconds *= 0.9 if ended else 1.03
        if ended:
            self.after_end += 1
        elif client.returncode == 0:
            same = self.tokens(json.loads(out)) == self.expected
            self.right += same
            self.wrong += not same
            if reformed.at is not None:
                self.formed.append(reformed.at - killed)
            again = daemon.metric("ringfill_recomputed_tokens_total") - before
            self.recomputed.append(again)
            self.over += again > (len(self.ids) + NEW_TOKENS) / ranks + self.arguments.chunk
        elif b"unavailable" in err.lower():
            self.unavailable += 1
            self.formed.append(end - killed)
        else:
            self.wrong += 1
            print(err.decode(errors="replace"), file=sys.stderr)
        after = daemon.client.run("generate", "--prompt", "Hi", "--max-tokens", "2")
        self.unserved += after.returncode != 0

    def done(self):
        """Kills while their request ran."""
        return self.right + self.unavailable + self.wrong

    def report(self):
        done = self.done()
        slowest = max(self.formed, default=0.0)
        print(f"{done + self.after_end} kills, {self.after_end} after the request's end; of {done}: "
              f"{self.right} right, {self.unavailable} unavailable, {self.wrong} wrong; "
              f"next request unserved {self.unserved} times; outcome within {slowest:.2f} s; "
              f"recomputed at most {max(self.recomputed, default=0):.0f} of {len(self.ids)} tokens, "
              f"{self.over} times over the bound", flush=True)
        return (done > 0 and self.right >= 0.8 * done and self.wrong == 0 and self.unserved == 0 and
                self.over == 0 and slowest <= OUTCOME_SECONDS)


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--count", type=int, default=500)
    parser.add_argument("--tokens", type=int, default=8000)
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--chunk", type=int, default=1024, help="prefill.chunk_tokens")
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    random.seed(arguments.seed)
    if harness.model_path() is None:
        sys.exit("the model is missing; tools/fetch_model.sh fetches it")
    settings = (f"ranks.count={arguments.ranks}", "ring.transport=processes",
                "ring.max_restart_pause_s=0.2", "compute.dtype=f32", f"prefill.chunk_tokens={arguments.chunk}")
    with harness.Daemon(*settings) as daemon:
        run = Run(daemon, arguments)
        print(f"undisturbed: {run.seconds:.1f} s", flush=True)
        while run.done() < arguments.count:
            before = run.done()
            run.once()
            if run.done() > before and run.done() % 10 == 0:
                run.report()
        good = run.report()
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
