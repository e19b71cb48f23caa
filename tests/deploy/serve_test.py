"""Daemon, Envoy and ranks as the chart starts them, on the real model: calls are served, floods are not.

Paths, ports and the kubelet's variables are the only things changed.
"""

import contextlib
import os
import pathlib
import re
import signal
import socket
import subprocess
import sys
import tempfile
import time
import unittest
import urllib.error
import urllib.request

import yaml

import chart
import raw_http2

sys.path.insert(0, str(chart.SOURCE_DIR / "tests/e2e"))
import harness  # noqa: E402

STREAMS, REQUESTS, CONNECTIONS = 4, 6, 24
# Of a daemon that is no larger than it must be.
SMALL = ["--set", "resources.limits.memory=1Gi", "--set", "config.compute.threads=2",
         "--set", "config.model.max_context_tokens=4096"]
# Small enough to reach.
LIMITS = ["--set", f"envoy.limits.concurrentStreams={STREAMS}",
          "--set", f"envoy.limits.requests={REQUESTS}",
          "--set", f"envoy.limits.connections={CONNECTIONS}", *SMALL]
OPEN_CALL = "/ringfill.v1.Ringfill/Tokenize"


def free_ports(count):
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


def cpu_seconds(pid):
    fields = pathlib.Path(f"/proc/{pid}/stat").read_text(encoding="utf-8").rsplit(")", 1)[1].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def resident_mib(pid):
    text = pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8")
    return int(re.search(r"VmRSS:\s+(\d+)", text)[1]) / 1024


class Pod:
    """The programs of a rendering, on this machine. Leaving the context ends them."""

    def __init__(self, values, *arguments):
        result = chart.helm("template", "ring", str(chart.CHART), "--values",
                            str(chart.VALUES / f"{values}.yaml"), *arguments)
        assert result.returncode == 0, result.stderr
        self.objects = [item for item in yaml.safe_load_all(result.stdout) if item]
        names = ("grpc", "health", "metrics", "daemon", "admin", "daemon_metrics", "ring")
        self.ports = dict(zip(names, free_ports(len(names))))
        self.processes = []

    def __enter__(self):
        with contextlib.ExitStack() as stack:
            self.folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory()))
            stack.callback(self.kill)
            (self.folder / "models").mkdir()
            (self.folder / "models/model.gguf").symlink_to(harness.model_path())
            (self.folder / "secret").write_text("of the ranks of this test", encoding="utf-8")
            (self.folder / "secret").chmod(self.secret_mode())
            for name, text in chart.config_map(self.objects).items():
                (self.folder / name).write_text(self.here(text), encoding="utf-8")
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *exception):
        if exception[0] is not None:
            for path in sorted(self.folder.glob("*.log")):
                print(f"{path.name}:\n{path.read_text(encoding='utf-8')[-3000:]}", file=sys.stderr)
        self._stack.close()

    def secret_mode(self):
        """As its volume says."""
        for pod in chart.pod_templates(self.objects).values():
            for volume in pod["spec"].get("volumes", []):
                if volume["name"] == "secret":
                    return volume["secret"]["defaultMode"]
        return 0o400

    def here(self, text):
        """A file or argument of the pod, for this machine."""
        numbers = {"50051": "grpc", "50063": "health", "9464": "metrics", "50061": "daemon",
                   "50062": "admin", "50064": "daemon_metrics", "7000": "ring"}
        text = re.sub(r"(port_value: |:)(50051|50063|9464|50061|50062|50064|7000)\b",
                      lambda match: match[1] + str(self.ports[numbers[match[2]]]), text)
        text = text.replace("0.0.0.0", "127.0.0.1").replace("/models", f"{self.folder}/models")
        text = text.replace("/etc/ringfill-secret/", f"{self.folder}/")
        return text.replace("/etc/ringfill/", f"{self.folder}/").replace("/etc/envoy/", f"{self.folder}/")

    def start(self, program, container, **variables):
        """A container's command; `variables` are what the kubelet puts in its arguments."""
        arguments = [self.here(text) for text in container["args"]]
        for name, value in variables.items():
            arguments = [text.replace(f"$({name})", value) for text in arguments]
        assert not [text for text in arguments if "$(" in text], arguments
        log = open(self.folder / f"{container['name']}-{len(self.processes)}.log", "wb")
        process = subprocess.Popen([program, *arguments], stdin=subprocess.DEVNULL, stderr=log,
                                   stdout=subprocess.PIPE, text=True)
        log.close()
        self.processes.append(process)
        return process

    def kill(self):
        for process in self.processes:
            process.kill()
            process.wait()
            process.stdout.close()

    def container(self, name):
        for pod in chart.pod_templates(self.objects).values():
            for each in chart.containers(pod):
                if each["name"] == name:
                    return each
        raise AssertionError(f"no container {name}")

    def start_daemon(self):
        self.daemon = self.start(harness.RINGFILLD, self.container("ringfilld"), RINGFILL_CPUS="1")

    def wait_ready(self):
        line = harness.read_line(self.daemon.stdout, 120)
        assert line.startswith("ready grpc="), line

    def start_envoy(self):
        self.envoy = self.start(chart.ENVOY, self.container("envoy"))
        deadline = time.monotonic() + 30
        while True:
            try:
                return self.get("health", "/ready")
            except OSError:
                assert time.monotonic() < deadline and self.envoy.poll() is None, "no Envoy"
                time.sleep(0.05)

    def get(self, port, path):
        url = f"http://127.0.0.1:{self.ports[port]}{path}"
        with urllib.request.urlopen(url, timeout=10) as response:
            return response.read().decode()

    def health(self, port="health", **arguments):
        return raw_http2.health(self.ports[port], **arguments)

    def client(self, port="grpc"):
        return harness.Client(f"127.0.0.1:{self.ports[port]}")


class OneNode(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.pod = cls.enterClassContext(Pod("cpu", "--set", "model.file=model.gguf", *LIMITS))
        # The order of the pod: a native sidecar is there first, and has no daemon yet.
        cls.pod.start_envoy()
        cls.before = cls.pod.health()
        cls.pod.start_daemon()
        cls.pod.wait_ready()

    def setUp(self):
        # Those of the test before, which Envoy may be about to see closed.
        active = 'envoy_http_downstream_cx_active{envoy_http_conn_manager_prefix="grpc"} 0\n'
        deadline = time.monotonic() + 10
        while active not in self.pod.get("metrics", "/envoy/metrics"):
            self.assertLess(time.monotonic(), deadline, "connections that nobody holds")
            time.sleep(0.02)

    def connect(self, port="grpc"):
        connection = raw_http2.Connection(self.pod.ports[port])
        self.addCleanup(connection.socket.close)
        return connection

    def test_probes_see_the_daemon(self):
        self.assertIsNone(self.before, "healthy before the daemon was there")
        for service in ("ringfill.v1.Ringfill", ""):
            self.assertEqual(self.pod.health(service=service), "SERVING")
        self.assertIsNone(self.pod.health(service="another"))

    def test_the_health_port_has_nothing_else(self):
        with self.connect("health") as connection:
            connection.call(1, "/ringfill.v1.Ringfill/GetStatus", b"")
            self.assertTrue(connection.read(lambda: connection.ended(1)))
            self.assertEqual(connection.data(1), b"")
        for port, path in (("health", "/stats"), ("metrics", "/stats"), ("metrics", "/quitquitquit")):
            with self.assertRaises(urllib.error.HTTPError) as refused:
                self.pod.get(port, path)
            self.assertEqual(refused.exception.code, 404)
            refused.exception.close()

    def test_metrics(self):
        self.assertIn("ringfill_build_info", self.pod.get("metrics", "/metrics"))
        self.assertIn("envoy_cluster_upstream_rq_total", self.pod.get("metrics", "/envoy/metrics"))

    def test_a_request_is_streamed(self):
        request = self.pod.client().start("generate", "--prompt", "Once upon a time", "--max-tokens", "120",
                                          "--ignore-eos", "--no-progress")
        with request:
            self.assertNotEqual(request.stdout.read(1), b"")
            self.assertIsNone(request.poll(), "all came at once")
            text = request.stdout.read()
        self.assertEqual(request.returncode, 0)
        self.assertGreater(len(text), 120)

    def test_large_headers_are_refused(self):
        """As small ones are not; and neither Envoy nor the daemon works or grows for a huge block."""
        self.assertEqual(self.pod.health(port="grpc", more=[("x-a", "y" * 8000)]), "SERVING")
        self.assertIsNone(self.pod.health(port="grpc", more=[("x-a", "y" * 20000)]))
        self.assertIsNone(self.pod.health(port="grpc", more=[(f"x-{i}", "y") for i in range(100)]))
        daemon, envoy = self.pod.daemon.pid, self.pod.envoy.pid
        before = cpu_seconds(daemon), cpu_seconds(envoy), resident_mib(envoy)
        for _ in range(4):
            with self.connect() as connection:
                connection.call(1, "/grpc.health.v1.Health/Check", b"", [("x-a", "y" * (32 << 20))])
                connection.read(lambda: connection.ended(1))
                self.assertEqual(connection.data(1), b"")
        # 0.1 s for each; without Envoy each costs the daemon a minute.
        self.assertLess(cpu_seconds(daemon) - before[0], 0.4)
        self.assertLess(cpu_seconds(envoy) - before[1], 0.4)
        self.assertLess(resident_mib(envoy) - before[2], 8)
        self.assertEqual(self.pod.health(port="grpc"), "SERVING")

    def open_calls(self, count):
        """A connection with calls that stay open, and a function that counts those that ended."""
        connection = self.connect()
        self.assertEqual(connection.setting(raw_http2.MAX_CONCURRENT_STREAMS), STREAMS)
        for i in range(count):
            connection.call(2 * i + 1, OPEN_CALL)
        return connection, lambda: sum(connection.ended(2 * i + 1) for i in range(count))

    def test_streams_of_a_connection_are_bounded(self):
        """A client that does not care what it was told is cut off; one that stays below is not."""
        greedy, _ = self.open_calls(STREAMS + 1)
        self.assertTrue(greedy.read(lambda: greedy.closed or greedy.ended(2 * STREAMS + 1)))
        modest, ended = self.open_calls(STREAMS)
        modest.read(lambda: modest.closed or ended() > 0, seconds=0.5)
        self.assertEqual((modest.closed, ended()), (False, 0))

    def test_streams_of_all_connections_are_bounded(self):
        first, first_ended = self.open_calls(STREAMS)
        first.read(lambda: False, seconds=0.3)
        second, second_ended = self.open_calls(STREAMS)
        self.assertTrue(second.read(lambda: second_ended() == 2 * STREAMS - REQUESTS))
        second.read(lambda: False, seconds=0.3)
        self.assertEqual((first_ended(), second_ended()), (0, 2 * STREAMS - REQUESTS))
        # Probes have calls of their own.
        self.assertEqual(self.pod.health(), "SERVING")

    def test_connections_are_bounded(self):
        """Those of clients; probes come and go without making room for more."""
        held = []
        for _ in range(2):
            more = [self.connect() for _ in range(CONNECTIONS)]
            for connection in more:
                connection.read(lambda: connection.closed or connection.frames)
            held += more
            for _ in range(8):
                self.assertEqual(self.pod.health(), "SERVING")
                self.assertIn("ringfill_build_info", self.pod.get("metrics", "/metrics"))
        for connection in held:
            connection.read(lambda: False, seconds=0.02)
        self.assertEqual(sum(not connection.closed for connection in held), CONNECTIONS)


class Overload(unittest.TestCase):
    def test_probes_and_metrics_go_on(self):
        """With more on the heap than it may have: clients are refused, and the kubelet is not."""
        with Pod("cpu", "--set", "model.file=model.gguf", *LIMITS) as pod:
            path = pod.folder / "envoy.yaml"
            text, count = re.subn(r"max_heap_size_bytes: \d+", "max_heap_size_bytes: 1", path.read_text("utf-8"))
            self.assertEqual(count, 1)
            path.write_text(text, encoding="utf-8")
            pod.start_envoy()
            pod.start_daemon()
            pod.wait_ready()
            deadline = time.monotonic() + 10
            while pod.health(port="grpc") == "SERVING":
                self.assertLess(time.monotonic(), deadline, "no overload")
                time.sleep(0.05)
            for _ in range(3):
                self.assertEqual(pod.health(), "SERVING")
                self.assertEqual(pod.get("health", "/ready"), "LIVE\n")
                self.assertIn("ringfill_build_info", pod.get("metrics", "/metrics"))
            active = 'envoy_overload_envoy_overload_actions_stop_accepting_requests_active{} 1\n'
            self.assertIn(active, pod.get("metrics", "/envoy/metrics"))
            self.assertIsNone(pod.health(port="grpc"))


class Ending(unittest.TestCase):
    def test_calls_finish_while_the_daemon_drains(self):
        with Pod("cpu", "--set", "model.file=model.gguf", *LIMITS) as pod:
            pod.start_envoy()
            pod.start_daemon()
            pod.wait_ready()
            request = pod.client().start("generate", "--prompt", "Once upon a time", "--max-tokens", "120",
                                         "--ignore-eos", "--no-progress")
            with request:
                request.stdout.read(1)
                pod.daemon.send_signal(signal.SIGTERM)
                deadline = time.monotonic() + 5
                while pod.health() == "SERVING" and time.monotonic() < deadline:
                    time.sleep(0.02)
                self.assertEqual(pod.health(), "NOT_SERVING")
                self.assertIsNone(request.poll(), "over too soon to tell")
                request.stdout.read()
            self.assertEqual(request.returncode, 0)
            self.assertEqual(pod.daemon.wait(30), 0)
            # The kubelet ends a native sidecar then.
            pod.envoy.send_signal(signal.SIGTERM)
            self.assertEqual(pod.envoy.wait(30), 0)


class SeveralNodes(unittest.TestCase):
    def test_ranks_join(self):
        with Pod("multinode", "--set", "multinode.ranks=2", *SMALL) as pod:
            pod.start_daemon()
            ranks = [pod.start(harness.RINGFILLD, pod.container("rank"), RINGFILL_CPUS="1",
                               RINGFILL_RANK=str(rank), RINGFILL_POD_IP="127.0.0.1",
                               LWS_LEADER_ADDRESS="127.0.0.1") for rank in range(2)]
            pod.wait_ready()
            client = pod.client("daemon")
            status = client.json("status")
            self.assertEqual(len(status["ranks"]), 2)
            answer = client.json("generate", "--prompt", "Once upon a time", "--max-tokens", "4")
            self.assertNotEqual(answer["text"], "")
            # A rank that is told to stop leaves, and the daemon goes on.
            ranks[1].send_signal(signal.SIGTERM)
            self.assertEqual(ranks[1].wait(30), 0)
            answer = client.json("generate", "--prompt", "Once upon a time", "--max-tokens", "4")
            self.assertNotEqual(answer["text"], "")


if __name__ == "__main__":
    if not pathlib.Path(harness.RINGFILLD).exists():
        print(f"SKIPPED: no {harness.RINGFILLD}")
        sys.exit(chart.SKIPPED)
    harness.main()
