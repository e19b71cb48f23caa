"""The init container's own script, run by sh against a real HTTP server."""

import functools
import hashlib
import http.server
import os
import pathlib
import shutil
import ssl
import subprocess
import sys
import tempfile
import threading
import unittest

import chart

CONTENT = os.urandom(300000)


class Server(http.server.BaseHTTPRequestHandler):
    """Serves CONTENT, ranges too but at /whole, and /to/URL by a redirect; counts requests and keeps their headers."""

    def do_GET(self):
        self.server.requests.append(self.headers)
        if self.path == "/missing":
            self.send_error(404)
            return
        if self.path.startswith("/to/"):
            self.send_response(302)
            self.send_header("Location", self.path.removeprefix("/to/"))
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        first = int(self.headers.get("Range", "bytes=0-")[6:].split("-")[0])
        if self.path == "/whole":
            first = 0
        if first >= len(CONTENT):
            self.send_error(416)
            return
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
        self.server = self.start_server()
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.model = self.folder / "big model.gguf"
        self.part = self.folder / "big model.gguf.part"

    def start_server(self):
        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Server)
        server.requests = []
        server.url = f"http://127.0.0.1:{server.server_port}"
        threading.Thread(target=server.serve_forever, daemon=True).start()
        self.addCleanup(server.server_close)
        self.addCleanup(server.shutdown)
        return server

    def speak_tls(self, server):
        """With a certificate of its own, which curl is told to trust; the path of that."""
        certificate, key = self.folder / "certificate.pem", self.folder / "key.pem"
        subprocess.run(["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "1", "-subj", "/CN=here",
                        "-addext", "subjectAltName=IP:127.0.0.1", "-keyout", key, "-out", certificate], check=True,
                       capture_output=True, timeout=60)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(certificate, key)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        server.url = server.url.replace("http:", "https:")
        return str(certificate)

    def header(self, text):
        path = self.folder / "header"
        path.write_text(text, encoding="utf-8")
        return str(path)

    def fetch(self, path="/model", sha256=None, header="", **more):
        environment = {item["name"]: item["value"] for item in container()["env"]}
        environment |= {
            "MODEL_URL": self.server.url + path,
            "MODEL_SHA256": sha256 or hashlib.sha256(CONTENT).hexdigest(),
            "MODEL_FILE": environment["MODEL_FILE"].replace("/models", str(self.folder)),
            "MODEL_HEADER": header, "PATH": os.environ["PATH"], **more}
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

    def test_a_server_that_sends_no_parts_sends_all(self):
        self.part.write_bytes(CONTENT[:1000])
        result = self.fetch("/whole")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual([request["Range"] for request in self.server.requests], ["bytes=1000-", None])
        self.assertEqual(self.model.read_bytes(), CONTENT)
        self.assertFalse(self.part.exists())

    def test_a_part_that_is_whole_is_taken(self):
        self.part.write_bytes(CONTENT)
        self.assertEqual(self.fetch().returncode, 0)
        self.assertEqual(self.model.read_bytes(), CONTENT)
        self.assertEqual(self.server.requests, [])

    def test_a_part_that_is_too_long_is_dropped(self):
        self.part.write_bytes(CONTENT + b"more")
        result = self.fetch()
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.model.read_bytes(), CONTENT)

    def test_brackets_are_part_of_the_name(self):
        self.fetch("/missing?[1-3]{a,b}")
        self.assertEqual(len(self.server.requests), 1)

    def test_sends_a_header(self):
        for text in ("Authorization: Bearer abc\n", "authorization:Bearer abc",
                     "X-Token: 1\r\nAuthorization: Bearer abc\r\n"):
            self.model.unlink(missing_ok=True)
            self.assertEqual(self.fetch(header=self.header(text)).returncode, 0)
            self.assertEqual(self.server.requests[-1]["Authorization"], "Bearer abc")

    def test_a_redirect_is_followed_without_the_header(self):
        other = self.start_server()
        result = self.fetch(f"/to/{other.url}/model", header=self.header("Authorization: Bearer abc\nCookie: a=b\n"))
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(self.model.read_bytes(), CONTENT)
        for name, value in (("Authorization", "Bearer abc"), ("Cookie", "a=b")):
            self.assertEqual((self.server.requests[0][name], other.requests[0][name]), (value, None))

    def test_another_header_goes_to_nobody_else(self):
        other = self.start_server()
        result = self.fetch(f"/to/{other.url}/model", header=self.header("Private-Token: abc\n"))
        self.assertEqual(result.returncode, 47)
        self.assertIn("neither Authorization nor Cookie", result.stdout)
        self.assertEqual((len(self.server.requests), len(other.requests)), (1, 0))
        self.assertFalse(self.model.exists())

    @unittest.skipIf(shutil.which("openssl") is None, "no openssl")
    def test_https_stays_https(self):
        plain = self.start_server()
        trusted = self.speak_tls(self.server)
        self.assertEqual(self.fetch(CURL_CA_BUNDLE=trusted).returncode, 0)
        self.model.unlink()
        result = self.fetch(f"/to/{plain.url}/model", CURL_CA_BUNDLE=trusted)
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("not supported", result.stderr)
        self.assertEqual(plain.requests, [])
        self.assertEqual(self.fetch(f"/to/{self.server.url}/model", CURL_CA_BUNDLE=trusted).returncode, 0)

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
