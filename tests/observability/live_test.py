"""A real Prometheus scrapes a real daemon under load: every expression of dashboards, rules and documentation has data."""

import contextlib
import json
import math
import pathlib
import re
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.error
import urllib.parse
import urllib.request

import expressions

sys.path.insert(0, str(expressions.ROOT / "tests/e2e"))
import harness  # noqa: E402  pylint: disable=wrong-import-position

CLIENTS = 2
PROMPT_TOKENS = 400  # more than ranks compute replicated, so that the ring has rounds
GENERATED_TOKENS = 6
REQUESTS = 4  # that have ended before anything is asked
WINDOW = "1m"  # of rates, over what was scraped so far
PATIENCE_S = 90
# Expressions that no healthy run gives data for, and why.
WITHOUT_DATA = {}

CONFIG = """
global: {scrape_interval: 200ms, evaluation_interval: 500ms}
rule_files: [rules.yaml]
scrape_configs:
  - job_name: ringfill
    static_configs: [{targets: ['%s'], labels: {namespace: test, pod: test-0}}]
"""


class Prometheus:
    """A server that scrapes `address`; leaving the context ends it."""

    def __init__(self, address):
        self.address = address

    def __enter__(self):
        self._stack = contextlib.ExitStack()
        folder = pathlib.Path(self._stack.enter_context(tempfile.TemporaryDirectory()))
        (folder / "prometheus.yaml").write_text(CONFIG % self.address, encoding="utf-8")
        rules = expressions.ALERTS.read_text(encoding="utf-8")
        (folder / "rules.yaml").write_text(expressions.with_window(rules, WINDOW), encoding="utf-8")
        self.log = self._stack.enter_context((folder / "log").open("w+"))
        self.process = subprocess.Popen(
            ["prometheus", f"--config.file={folder}/prometheus.yaml", f"--storage.tsdb.path={folder}/data",
             "--web.listen-address=127.0.0.1:0"], stdin=subprocess.DEVNULL, stdout=self.log, stderr=self.log)
        self._stack.callback(self.process.wait)
        self._stack.callback(self.process.kill)
        self.url = f"http://{self.wait_for_address()}"
        return self

    def __exit__(self, kind, value, trace):
        if kind is not None:
            self.log.seek(0)
            print(self.log.read()[-4000:], file=sys.stderr)
        self._stack.close()

    def wait_for_address(self):
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self.process.poll() is None:
            self.log.seek(0)
            if match := re.search(r'msg="Listening on" address=(\S+)', self.log.read()):
                return match[1]
            time.sleep(0.1)
        raise AssertionError("Prometheus does not start")

    def get(self, path, **arguments):
        url = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(arguments)}"
        try:
            with urllib.request.urlopen(url, timeout=30) as response:
                return json.load(response)["data"]
        except urllib.error.HTTPError as error:
            if error.code == 503:  # it starts
                return None
            raise AssertionError(f"{arguments}: {error.read().decode()}") from error

    def values(self, expression):
        """Of an instant query, without what is no number."""
        data = self.get("query", query=expression)
        values = [float(sample["value"][1]) for sample in data["result"]] if data else []
        return [value for value in values if math.isfinite(value)]


class Load:
    """Clients that generate until the context is left."""

    def __init__(self, daemon):
        self.daemon = daemon
        self.ids = harness.document_tokens(daemon.client, CLIENTS * PROMPT_TOKENS)
        self.ended = 0
        self.stopping = False
        self.failures = []

    def __enter__(self):
        self.threads = [threading.Thread(target=self.run, args=(i,)) for i in range(CLIENTS)]
        for thread in self.threads:
            thread.start()
        return self

    def __exit__(self, *_):
        self.stopping = True
        for thread in self.threads:
            thread.join()

    def run(self, client):
        prompt = self.ids[client * PROMPT_TOKENS:(client + 1) * PROMPT_TOKENS]
        while not self.stopping:
            try:
                self.daemon.client.generate_ids(prompt, GENERATED_TOKENS, logprobs=1)
            except AssertionError as error:
                self.failures.append(error)
                return
            self.ended += 1


def asked():
    """(where, expression) of all that Prometheus is asked for."""
    found = expressions.panel_expressions()
    found += [(f"rule {rule['name']}", expressions.without_thresholds(rule["expr"])) for rule in expressions.rules()]
    found += [(f"docs/metrics.md: {question}", expressions.without_thresholds(expression))
              for question, expression in expressions.documented_expressions()]
    found = [(where, expression.replace("$namespace", ".*").replace("$instance", ".*"))
             for where, expression in found]
    return [(where, expressions.with_window(expression, WINDOW)) for where, expression in found]


class Live(unittest.TestCase):
    def test_every_expression_has_data(self):
        questions = asked()
        self.assertGreater(len(questions), 100)
        with harness.Daemon("ranks.count=2", "ranks.backend=cpu") as daemon, \
                Prometheus(daemon.metrics_address) as prometheus, Load(daemon) as load:
            deadline = time.monotonic() + PATIENCE_S
            while load.ended < REQUESTS and not load.failures and time.monotonic() < deadline:
                time.sleep(0.1)
            self.assertEqual(load.failures, [])
            self.assertGreaterEqual(load.ended, REQUESTS)
            empty = [question for question in questions if question[0] not in WITHOUT_DATA]
            while True:
                empty = [(where, expression) for where, expression in empty if not prometheus.values(expression)]
                if not empty or time.monotonic() > deadline:
                    break
                time.sleep(1)
            self.assertEqual(empty, [], "no data")
            for group in prometheus.get("rules")["groups"]:
                for rule in group["rules"]:
                    self.assertEqual(rule["health"], "ok", rule)
            self.check_exposition(daemon)

    def check_exposition(self, daemon):
        with urllib.request.urlopen(f"http://{daemon.metrics_address}/metrics", timeout=10) as response:
            text = response.read()
        result = subprocess.run(["promtool", "check", "metrics"], input=text, capture_output=True, timeout=60,
                                check=False)
        self.assertEqual((result.returncode, result.stdout.decode(), result.stderr.decode()), (0, "", ""))


if __name__ == "__main__":
    expressions.need("prometheus", "promtool")
    harness.main()
