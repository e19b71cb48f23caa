"""The init container's own script, run by sh against a real HTTP server."""

import functools
import hashlib
import http.server
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import threading
import unittest

import chart

CONTENT = os.urandom(300000)


class Server(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT, ranges too; counts requests and keeps their headers."""

    def do_GET(self):
        self.server.requests.append(self.headers)
        if self.path == "/missing":
            self.send_error(404)
            return
        first = int(self.headers.get("Range", "bytes=0-")[6:].split("-")[0])
        body = CONTENT[first:]
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first}-{len(CONTENT) - 1}/{len(CONTENT)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format, *args):
        pass


@functools.cache
def container(name="download_private"):
    pod, _ = chart.daemon(chart.render(name))
    return next(each for each in pod["spec"]["initContainers"] if each["name"] == "model")


class Download(unittest.TestCase):
    def setUp(self):
        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
        self.server.requests = []
        threading.Thread(target=self.server.serve_forever, daemon=True).start()
        self.addCleanup(self.server.server_close)
        self.addCleanup(self.server.shutdown)
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.model = self.folder / "big model.gguf"
        self.part = self.folder / "big model.gguf.part"

    def fetch(self, path="/model", sha256=None, header=""):
        environment = {item["name"]: item["value"] for item in container()["env"]}
        environment |= {
            "MODEL_URL": f"http://127.0.0.1:{self.server.server_port}{path}",
            "MODEL_SHA256": sha256 or hashlib.sha256(CONTENT).hexdigest(),
            "MODEL_FILE": environment["MODEL_FILE"].replace("/models", str(self.folder)),
            "MODEL_HEADER": header, "PATH": os.environ["PATH"]}
        command = [*container()["command"], *container()["args"]]
        return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60,
                              check=False)

    def test_fetches_once(self):
        for _ in range(2):
            result = self.fetch()
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertEqual(self.model.read_bytes(), CONTENT)
        self.assertEqual(len(self.server.requests), 1)
        self.assertFalse(self.part.exists())

    def test_another_file_is_refused_and_deleted(self):
        result = self.fetch(sha256="0" * 64)
        self.assertEqual(result.returncode, 1)
        self.assertIn("another SHA-256 than model.download.sha256", result.stderr)
        self.assertEqual(list(self.folder.iterdir()), [])

    def test_a_changed_file_is_fetched_again(self):
        self.model.write_bytes(CONTENT[:-1] + b"x")
        self.assertEqual(self.fetch().returncode, 0)
        self.assertEqual(self.model.read_bytes(), CONTENT)

    def test_goes_on_where_it_was_cut_off(self):
        self.part.write_bytes(CONTENT[:1000])
        self.assertEqual(self.fetch().returncode, 0)
        self.assertEqual(self.server.requests[0]["Range"], "bytes=1000-")
        self.assertEqual(self.model.read_bytes(), CONTENT)

    def test_sends_a_header(self):
        (self.folder / "header").write_text("Authorization: Bearer abc\n", encoding="utf-8")
        self.assertEqual(self.fetch(header=str(self.folder / "header")).returncode, 0)
        self.assertEqual(self.server.requests[0]["Authorization"], "Bearer abc")

    def test_an_error_is_one(self):
        result = self.fetch(path="/missing")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("404", result.stderr)
        self.assertFalse(self.model.exists())

    def test_mounts(self):
        """Where the script writes and reads is mounted."""
        for name in ("download", "download_private"):
            each = container(name)
            paths = {mount["mountPath"] for mount in each["volumeMounts"]}
            environment = {item["name"]: item["value"] for item in each["env"]}
            self.assertIn("/models", paths)
            header = environment["MODEL_HEADER"]
            self.assertEqual(header != "", name == "download_private")
            if header:
                self.assertIn(header.rpartition("/")[0], paths)


if __name__ == "__main__":
    if shutil.which("curl") is None:
        print("SKIPPED: no curl")
        sys.exit(chart.SKIPPED)
    unittest.main(verbosity=2)
