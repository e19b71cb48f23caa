"""Killed clients, many clients, and SIGTERM under load: the daemon goes on and no KV page stays."""

import json
import pathlib
import signal
import time
import unittest

import harness

GPL3 = pathlib.Path("/usr/share/common-licenses/GPL-3")
# Small chunks make a long prefill of many steps on any machine.
SETTINGS = ("ranks.count=2", "prefill.chunk_tokens=256")


class Survival(unittest.TestCase):
    def kill_and_expect_idle(self, daemon, client):
        self.assertGreater(daemon.used_pages(), 0)
        client.kill()
        start = time.monotonic()
        daemon.wait_idle()
        print(f"pages free {time.monotonic() - start:.2f} s after the client was killed")
        client.communicate()

    def test_client_killed_in_prefill(self):
        with harness.Daemon(*SETTINGS) as daemon:
            client = daemon.client.start("generate", "--prompt-file", str(GPL3), "--progress")
            line = harness.read_line(client.stderr, 60)
            self.assertRegex(line, r"^prefill .* (10|[1-8]\d) %", "in the middle of the prompt")
            self.kill_and_expect_idle(daemon, client)
            self.assertIsNone(daemon.process.poll())
            self.assertEqual(daemon.client.run("generate", "--prompt", "Hi").returncode, 0)

    def test_client_killed_while_streaming(self):
        with harness.Daemon(*SETTINGS) as daemon:
            client = daemon.client.start("generate", "--prompt", "Once upon a time", "--ignore-eos",
                                         "--max-tokens", "4000")
            self.assertTrue(client.stdout.read(1))
            self.kill_and_expect_idle(daemon, client)
            self.assertEqual(daemon.client.run("generate", "--prompt", "Hi").returncode, 0)

    def test_fifty_clients_at_once(self):
        prompts = [f"{animal} number {i} lives in"
                   for i in range(10) for animal in ("The cat", "A dog", "My fish", "One bird",
                                                     "Her horse")]
        arguments = ("--max-tokens", "12", "--ignore-eos", "--logprobs", "2", "--json")
        with harness.Daemon(*SETTINGS, "compute.dtype=f32") as daemon:
            alone = [daemon.client.json("generate", "--prompt", prompt, *arguments[:-1])
                     for prompt in prompts[:5]]
            clients = [daemon.client.start("generate", "--prompt", prompt, *arguments)
                       for prompt in prompts]
            for i, client in enumerate(clients):
                out, err = client.communicate(timeout=120)
                self.assertEqual(client.returncode, 0, err)
                result = json.loads(out)
                self.assertEqual(result["usage"]["completion_tokens"], 12)
                if i < len(alone):  # neighbours do not change an answer
                    self.assertEqual(result["logprobs"][0]["token_id"],
                                     alone[i]["logprobs"][0]["token_id"])
                    self.assertAlmostEqual(result["logprobs"][0]["logprob"],
                                           alone[i]["logprobs"][0]["logprob"], delta=0.001)
            daemon.wait_idle()

    def test_sigterm_lets_running_requests_finish(self):
        with harness.Daemon(*SETTINGS, "server.drain_timeout_s=60") as daemon:
            clients = self.start_streams(daemon, 4, "60")
            self.assertEqual(daemon.stop(), 0)
            for client in clients:
                _, err = client.communicate(timeout=30)
                self.assertEqual(client.returncode, 0, err)

    def test_sigterm_ends_what_exceeds_the_drain_timeout(self):
        with harness.Daemon(*SETTINGS, "server.drain_timeout_s=0.5") as daemon:
            clients = self.start_streams(daemon, 4, "6000")
            start = time.monotonic()
            self.assertEqual(daemon.stop(), 0)
            took = time.monotonic() - start
            print(f"stopped {took:.2f} s after SIGTERM")
            self.assertLess(took, 8)
            for client in clients:
                _, err = client.communicate(timeout=30)
                self.assertEqual(client.returncode, 1)
                self.assertRegex(err.decode(), r"^ringfill: [A-Z_]+: .")

    def test_a_second_signal_stops_at_once(self):
        with harness.Daemon(*SETTINGS, "server.drain_timeout_s=60") as daemon:
            clients = self.start_streams(daemon, 1, "6000")
            daemon.process.send_signal(signal.SIGINT)
            daemon.wait_until(lambda: "stopping" in daemon.log(), "the first signal is logged")
            start = time.monotonic()
            self.assertEqual(daemon.stop(), 0)
            self.assertLess(time.monotonic() - start, 8)
            for client in clients:
                client.communicate(timeout=30)
                self.assertEqual(client.returncode, 1)

    def start_streams(self, daemon, count, max_tokens):
        """Clients that have all received their first text."""
        clients = [daemon.client.start("generate", "--prompt", "Once upon a time", "--ignore-eos",
                                       "--max-tokens", max_tokens) for _ in range(count)]
        for client in clients:
            self.assertTrue(client.stdout.read(1))
        return clients


if __name__ == "__main__":
    harness.main()
