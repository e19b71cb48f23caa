"""Starts the real ringfilld and ringfill on the real model, for the end-to-end tests beside it.

ctest sets RINGFILL_BIN_DIR. A test whose model is missing exits with SKIPPED, which ctest shows.
"""

import json
import os
import pathlib
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.request

SKIPPED = 77  # SKIP_RETURN_CODE in CMakeLists.txt
SOURCE_DIR = pathlib.Path(__file__).resolve().parents[2]
BIN_DIR = pathlib.Path(os.environ.get("RINGFILL_BIN_DIR", SOURCE_DIR / "build/release/bin"))
RINGFILLD = str(BIN_DIR / "ringfilld")
RINGFILL = str(BIN_DIR / "ringfill")


def model_path():
    """The model's path, or None when it has not been fetched."""
    default = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache"))
    default = default / "ringfill/SmolLM2-135M-Instruct.Q4_1.gguf"
    path = pathlib.Path(os.environ.get("RINGFILL_TEST_MODEL", default))
    return str(path) if path.is_file() else None


def main():
    """Runs the caller's tests; every test file ends with it."""
    if model_path() is None:
        print("SKIPPED: the model is missing; tools/fetch_model.sh fetches it")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)


def document_tokens(client, count):
    """The first `count` token ids of a long real text."""
    text = pathlib.Path("/usr/share/common-licenses/GPL-3").read_text(encoding="utf-8")
    ids = client.json("tokenize", "--text", text)["token_ids"]
    assert len(ids) >= count, f"the text has only {len(ids)} tokens"
    return ids[:count]


class Client:
    """The ringfill command for one daemon."""

    def __init__(self, address):
        self.address = address

    def command(self, *arguments):
        return [RINGFILL, "--address", self.address, *arguments]

    def run(self, *arguments, stdin="", timeout_s=120):
        return subprocess.run(self.command(*arguments), input=stdin, capture_output=True,
                              text=True, timeout=timeout_s, check=False)

    def json(self, *arguments, stdin="", timeout_s=120):
        """The object that a successful command prints with --json."""
        result = self.run(*arguments, "--json", stdin=stdin, timeout_s=timeout_s)
        if result.returncode != 0:
            raise AssertionError(f"ringfill {arguments[0]} exited with {result.returncode}: "
                                 f"{result.stderr}")
        return json.loads(result.stdout)

    def generate_ids(self, ids, max_tokens, logprobs=8):
        """Greedy generation from token ids, past end tokens."""
        return self.json("generate", "--token-ids-file", "-", "--temperature", "0", "--ignore-eos",
                         "--max-tokens", str(max_tokens), "--logprobs", str(logprobs),
                         stdin=json.dumps(ids))

    def start(self, *arguments, stdin=""):
        """A running command; its standard output and error are pipes."""
        with tempfile.TemporaryFile("w+") as file:
            file.write(stdin)
            file.seek(0)
            return subprocess.Popen(self.command(*arguments), stdin=file, stdout=subprocess.PIPE,
                                    stderr=subprocess.PIPE)


def start_daemon(settings, model=None):
    """ringfilld on free ports; `settings` are key=value. Returns the process and its log file."""
    log = tempfile.NamedTemporaryFile(prefix="ringfilld-", suffix=".log")
    arguments = [RINGFILLD, "--config", str(SOURCE_DIR / "config/default.yaml"),
                 "--set", "server.listen=127.0.0.1:0", "--set", "metrics.listen=127.0.0.1:0",
                 "--set", f"model.path={model or model_path()}"]
    for setting in settings:
        arguments += ["--set", setting]
    process = subprocess.Popen(arguments, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                               stderr=log, text=True)
    return process, log


class Daemon:
    """A ready ringfilld; leaving the context stops it with SIGTERM and checks that it exits with 0."""

    def __init__(self, *settings):
        self.settings = settings

    def __enter__(self):
        self.process, self._log = start_daemon(self.settings)
        ready = read_line(self.process.stdout, 60)
        match = re.fullmatch(r"ready grpc=(\S+) metrics=(\S+)\n", ready)
        if match is None:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"no ready line but {ready!r}; log:\n{self.log()}")
        self.client = Client(match[1])
        self.metrics_address = match[2]
        return self

    def __exit__(self, kind, value, trace):
        if self.process.poll() is None:
            code = self.stop()
            if kind is None:
                assert code == 0, f"exit code {code} after SIGTERM; log:\n{self.log()}"
        if kind is not None:
            print(self.log()[-4000:], file=sys.stderr)
        self.process.stdout.close()
        self._log.close()

    def stop(self, timeout_s=60):
        """SIGTERM; returns the exit code."""
        self.process.send_signal(signal.SIGTERM)
        try:
            return self.process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
            raise AssertionError(f"still up {timeout_s} s after SIGTERM; log:\n{self.log()}")

    def log(self):
        return pathlib.Path(self._log.name).read_text(encoding="utf-8", errors="replace")

    def metric(self, name, **labels):
        """The sum over all series of that name with these labels."""
        url = f"http://{self.metrics_address}/metrics"
        with urllib.request.urlopen(url, timeout=10) as response:
            text = response.read().decode()
        wanted = [f'{key}="{value}"' for key, value in labels.items()]
        values = [float(line.rsplit(" ", 1)[1]) for line in text.splitlines()
                  if re.match(re.escape(name) + r"[{ ]", line) and all(w in line for w in wanted)]
        assert values, f"no metric {name} with {labels}"
        return sum(values)

    def used_pages(self):
        return self.metric("ringfill_kv_pages", state="used")

    def wait_until(self, condition, what, timeout_s=30):
        """Polls: what is waited for happens in another process."""
        deadline = time.monotonic() + timeout_s
        while not condition():
            assert time.monotonic() < deadline, f"not within {timeout_s} s: {what}"
            time.sleep(0.02)

    def wait_idle(self):
        self.wait_until(lambda: self.used_pages() == 0, "every KV page free")
        self.wait_until(lambda: self.metric("ringfill_running_requests") == 0, "no request runs")


def read_line(stream, timeout_s):
    """One line of a pipe, or what came until the timeout."""
    deadline = time.monotonic() + timeout_s
    text = ""
    while not text.endswith("\n"):
        left = deadline - time.monotonic()
        if left <= 0 or not select.select([stream], [], [], left)[0]:
            return text
        byte = os.read(stream.fileno(), 1).decode(errors="replace")
        if not byte:
            return text
        text += byte
    return text
