"""Ranks as processes: the answers of threads, workers started by hand, signals, exit codes."""

import pathlib
import signal
import socket
import subprocess
import tempfile
import time
import unittest

import harness

SETTINGS = ("ring.transport=processes", "compute.dtype=f32", "prefill.chunk_tokens=256")


def workers(daemon):
    """Pids of the daemon's workers that live, by rank."""
    found = {}
    for entry in pathlib.Path("/proc").iterdir():
        try:
            stat = (entry / "stat").read_text() if entry.name.isdigit() else ""
            words = (entry / "cmdline").read_text().split("\0") if stat else []
        except OSError:
            continue
        state, parent = stat[stat.rindex(")") + 2:].split()[:2] if stat else ("", "-1")
        if int(parent) == daemon.process.pid and state != "Z" and "--rank" in words:
            found[int(words[words.index("--rank") + 1])] = int(entry.name)
    return found


def token_ids(result):
    return [entry["token_id"] for entry in result["logprobs"]]


def worker_command(leader, rank, secret, *more):
    return [harness.RINGFILLD, "worker", "--leader", leader, "--rank", str(rank), "--secret-file",
            str(secret), "--model", harness.model_path(), *more]


def free_address():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return f"127.0.0.1:{probe.getsockname()[1]}"


class Processes(unittest.TestCase):
    def setUp(self):
        self.folder = tempfile.TemporaryDirectory()
        self.addCleanup(self.folder.cleanup)
        self.secret = pathlib.Path(self.folder.name) / "secret"
        self.secret.write_text("thirty-two bytes that nobody knows\n")
        self.secret.chmod(0o600)

    def start_worker(self, leader, rank, *more):
        worker = subprocess.Popen(worker_command(leader, rank, self.secret, *more),
                                  stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        self.addCleanup(worker.wait)
        self.addCleanup(worker.kill)
        return worker

    def test_answers_as_threads_do(self):
        with harness.Daemon("ranks.count=3", "compute.dtype=f32") as daemon:
            ids = harness.document_tokens(daemon.client, 700)
            expected = token_ids(daemon.client.generate_ids(ids, 24))
        with harness.Daemon("ranks.count=3", *SETTINGS) as daemon:
            self.assertEqual(sorted(workers(daemon)), [0, 1, 2])
            self.assertEqual(token_ids(daemon.client.generate_ids(ids, 24)), expected)
            self.assertEqual(daemon.metric("ringfill_workers_started_total"), 3)
            self.assertEqual(daemon.metric("ringfill_workers_lost_total"), 0)

    def test_a_killed_worker_is_replaced(self):
        with harness.Daemon("ranks.count=2", *SETTINGS) as daemon:
            ids = harness.document_tokens(daemon.client, 1500)
            client = daemon.client.start(
                "generate", "--token-ids-file", "-", "--temperature", "0", "--ignore-eos",
                "--max-tokens", "300", stdin=str(ids))
            self.assertTrue(client.stdout.read(1))
            victim = workers(daemon)[1]
            subprocess.run(["kill", "-9", str(victim)], check=True)
            _, err = client.communicate(timeout=60)
            self.assertEqual(client.returncode, 0, err)
            self.assertEqual(daemon.metric("ringfill_workers_lost_total", reason="signal"), 1)

            def whole():
                daemon.client.run("generate", "--prompt", "Hi", "--max-tokens", "1")
                return daemon.metric("ringfill_ring_ranks") == 2
            daemon.wait_until(whole, "a replacement")
            self.assertNotEqual(workers(daemon)[1], victim)

    def test_signals_to_all_processes_let_requests_finish(self):
        with harness.Daemon("ranks.count=2", *SETTINGS) as daemon:
            client = daemon.client.start("generate", "--prompt", "Once upon a time",
                                         "--ignore-eos", "--max-tokens", "200")
            self.assertTrue(client.stdout.read(1))
            pids = workers(daemon)
            for pid in pids.values():
                subprocess.run(["kill", "-TERM", str(pid)], check=True)
                subprocess.run(["kill", "-INT", str(pid)], check=True)
            self.assertEqual(daemon.stop(), 0)
            _, err = client.communicate(timeout=30)
            self.assertEqual(client.returncode, 0, err)
            for pid in pids.values():
                self.assertFalse(pathlib.Path(f"/proc/{pid}").exists())

    def test_workers_started_by_hand(self):
        leader = free_address()
        started = [self.start_worker(leader, rank) for rank in range(2)]
        with harness.Daemon("ranks.count=2", "ring.start_workers=false", f"ring.listen={leader}",
                            f"ring.secret_file={self.secret}", *SETTINGS) as daemon:
            hello = ("generate", "--prompt", "Hi", "--max-tokens", "2")
            self.assertEqual(daemon.client.run(*hello).returncode, 0)
            started[1].send_signal(signal.SIGTERM)
            self.assertEqual(started[1].wait(30), 0)
            self.assertEqual(daemon.client.run(*hello).returncode, 0)
            self.assertEqual(daemon.metric("ringfill_workers_lost_total", reason="left"), 1)
            self.assertEqual(daemon.metric("ringfill_ring_ranks"), 1)
            again = self.start_worker(leader, 1)

            def whole():
                self.assertEqual(daemon.client.run(*hello).returncode, 0)
                return daemon.metric("ringfill_ring_ranks") == 2
            daemon.wait_until(whole, "the new worker in the ring")
        self.assertEqual(started[0].wait(30), 0)
        self.assertEqual(again.wait(30), 0)

    def test_says_who_is_missing(self):
        process, log = harness.start_daemon(
            ("ranks.count=2", "ring.start_workers=false", "ring.join_timeout_s=1",
             f"ring.secret_file={self.secret}", *SETTINGS))
        self.assertEqual(process.wait(60), 2)
        text = pathlib.Path(log.name).read_text()
        self.assertIn("0 of 2 workers have joined", text)
        self.assertIn("ringfilld worker --leader", text)
        process.stdout.close()
        log.close()

    def test_exit_codes_of_workers(self):
        def code(command):
            return subprocess.run(command, capture_output=True, timeout=60, check=False).returncode
        nobody = free_address()
        self.assertEqual(code([harness.RINGFILLD, "worker", "--help"]), 0)
        self.assertEqual(code([harness.RINGFILLD, "worker", "--rank", "0"]), 2)
        command = worker_command(nobody, 0, self.secret, "--set", "ring.join_timeout_s=0.5")
        self.assertEqual(code(command), 5)
        self.assertEqual(code([*command, "--model", "/no/such/model"]), 2)  # given twice
        missing = [word if word != harness.model_path() else "/no/such/model" for word in command]
        self.assertEqual(code(missing), 3)
        self.secret.chmod(0o644)
        self.assertEqual(code(command), 2)

    def test_a_worker_that_does_not_fit_says_so(self):
        leader = free_address()
        fitting = self.start_worker(leader, 0)
        with harness.Daemon("ranks.count=1", "ring.start_workers=false", f"ring.listen={leader}",
                            f"ring.secret_file={self.secret}", *SETTINGS):
            other = subprocess.run(
                worker_command(leader, 0, self.secret, "--set", "compute.dtype=bf16"),
                capture_output=True, text=True, timeout=60, check=False)
            self.assertEqual(other.returncode, 4)
            self.assertIn("compute.dtype: the leader has f32, this worker bf16", other.stderr)
        start = time.monotonic()
        self.assertEqual(fitting.wait(30), 0)
        self.assertLess(time.monotonic() - start, 10)


if __name__ == "__main__":
    harness.main()
