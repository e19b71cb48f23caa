"""The image, built of the committed files by buildah and run by podman with the commands of docs/DEPLOYMENT.md.

Takes minutes: ctest runs it with `-C Slow` alone (tools/test.sh --stage slow).
"""

import contextlib
import json
import pathlib
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
import unittest

import yaml
from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

import chart
import containers
import docs_test
import dockerfile

sys.path.insert(0, str(chart.SOURCE_DIR / "tests/e2e"))
import harness  # noqa: E402

# Shells that nobody may need, each replaced by what cannot be executed.
WITHOUT_SHELLS = [word for shell in ("dash", "bash") for word in ("--volume", f"/dev/null:/usr/bin/{shell}:ro")]
MOST_BYTES = 400_000_000


def documented(*start):
    """A command of the guide, by its first words."""
    found = [command for command in docs_test.commands() if command[:len(start)] == list(start)]
    return found[0][len(start):]


def shown_by_nsenter(pid, code):
    """What Python code prints in the network of a process."""
    return subprocess.run(["nsenter", "--target", str(pid), "--net", sys.executable, "-c", code], check=True,
                          capture_output=True, text=True, timeout=60).stdout


class Image(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        stack = contextlib.ExitStack()
        cls.addClassCleanup(stack.close)
        cls.folder = pathlib.Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="ringfill-image-test-")))
        context = cls.folder / "context"
        context.mkdir()
        try:
            cls.revision = containers.committed(chart.SOURCE_DIR, context)
            cls.storage = stack.enter_context(containers.Storage())
            cls.storage.make_base()
        except containers.Unavailable as why:
            stack.close()
            print(f"SKIPPED: {why}", flush=True)
            sys.exit(chart.SKIPPED)
        arguments = [text.replace("$(git rev-parse HEAD)", cls.revision)
                     for text in documented("docker", "build")]
        cls.name = arguments[arguments.index("--tag") + 1]
        arguments[arguments.index("--file") + 1] = str(context / "deploy/docker/Dockerfile")
        assert arguments.pop() == "."
        seconds = cls.storage.build(context, *arguments)
        cls.inspected = cls.storage.inspect("image", cls.name)
        print(f"{cls.name}: {cls.inspected['Size'] / 1e6:.0f} MB, built in {seconds:.0f} s", flush=True)
        # In a folder, as it would be of a user: not of the image's user, and for all to read.
        cls.models = cls.folder / "models"
        cls.models.mkdir(mode=0o755)
        shutil.copy(harness.model_path(), cls.models / "model.gguf")
        (cls.models / "model.gguf").chmod(0o644)

    def start(self, *arguments):
        """A container, with its shells taken away; its name comes first."""
        self.addCleanup(self.storage.try_podman, "rm", "--force", "--time", "0", "ringfilld")
        self.storage.podman("run", "--detach", *self.storage.run_flags(), *WITHOUT_SHELLS, *arguments)
        return self.storage.inspect("container", "ringfilld")["State"]["Pid"]

    def start_as_documented(self):
        arguments = documented("docker", "run", "--detach")
        while "--publish" in arguments:  # there is no network to publish to
            at = arguments.index("--publish")
            del arguments[at:at + 2]
        return self.start(*[text.replace("$PWD/models", str(self.models)) for text in arguments])

    def exec(self, *arguments):
        try:
            return self.storage.podman("exec", "ringfilld", *arguments)
        except AssertionError:
            print(self.storage.try_podman("logs", "ringfilld").stderr[-3000:], file=sys.stderr)
            raise

    def in_image(self, program, *arguments):
        """What a program of the image prints, as root, who may read everything."""
        return self.storage.podman("run", "--rm", "--user", "0", *self.storage.run_flags(), "--entrypoint", program,
                                   self.name, *arguments)

    def stop(self):
        """Its exit code after SIGTERM."""
        start = time.monotonic()
        self.storage.podman("stop", *documented("docker", "stop"))
        print(f"stopped in {time.monotonic() - start:.1f} s", flush=True)
        return self.storage.inspect("container", "ringfilld")["State"]["ExitCode"]

    def test_answers_as_documented(self):
        pid = self.start_as_documented()
        command = documented("docker", "exec", "ringfilld")
        answer = self.exec(*command, "--max-tokens", "40")
        self.assertIn("blue", answer)
        print(f"answer: {answer.split(chr(10), 1)[0][:100]}", flush=True)

        # The user, and nothing that it could become.
        status = dict(line.split(":\t", 1) for line in
                      pathlib.Path(f"/proc/{pid}/status").read_text(encoding="utf-8").splitlines() if ":\t" in line)
        user = dockerfile.values()["podSecurityContext"]
        self.assertEqual(set(status["Uid"].split()), {str(user["runAsUser"])})
        self.assertEqual(set(status["Gid"].split()), {str(user["runAsGroup"])})
        for name, wanted in (("NoNewPrivs", "1"), ("Seccomp", "2"), ("CapEff", "0" * 16), ("CapBnd", "0" * 16)):
            self.assertEqual(status[name], wanted, name)
        arguments = pathlib.Path(f"/proc/{pid}/cmdline").read_bytes().decode().split("\0")[:-1]
        self.assertEqual(arguments, ["/usr/bin/ringfilld", "--config", "/etc/ringfill/ringfill.yaml"])

        # Nothing can be written, and there is no shell.
        root = next(line.split() for line in pathlib.Path(f"/proc/{pid}/mountinfo").read_text().splitlines()
                    if line.split()[4] == "/")
        self.assertIn("ro", root[5].split(","))
        for path in ("/x", "/etc/ringfill/x", "/usr/bin/x", "/models/x", "/var/lib/ringfill/x"):
            result = self.storage.try_podman("exec", "ringfilld", "touch", path)
            self.assertNotEqual(result.returncode, 0, path)
            self.assertRegex(result.stderr, "Read-only file system|Permission denied")
        # Also for who could write otherwise.
        result = self.storage.try_podman("exec", "--user", "0", "ringfilld", "touch", "/x")
        self.assertIn("Read-only file system", result.stderr)
        self.exec("touch", "/tmp/x")
        for shell in ("sh", "bash"):
            self.assertNotEqual(self.storage.try_podman("exec", "ringfilld", shell, "-c", "true").returncode, 0)

        # Metrics, over the one interface that there is.
        interfaces = shown_by_nsenter(pid, "import socket; print([name for _, name in socket.if_nameindex()])")
        self.assertEqual(interfaces.strip(), "['lo']")
        metrics = shown_by_nsenter(pid, "import urllib.request; print(urllib.request.urlopen("
                                   "'http://127.0.0.1:9464/metrics').read().decode())")
        self.assertIn('ringfill_build_info{', metrics)
        self.assertRegex(metrics, r"(?m)^ringfill_requests_total\{.*\} 1$")

        copied = self.folder / "copied.json"
        source, _ = documented("docker", "cp")
        self.storage.podman("cp", source, str(copied))
        self.assertEqual(json.loads(copied.read_text())["spdxVersion"], "SPDX-2.3")
        self.assertEqual(self.stop(), 0)
        self.assertIn('"level":"info"', self.storage.try_podman("logs", "ringfilld").stderr)

    def test_a_request_finishes_after_sigterm(self):
        self.start_as_documented()
        command = self.storage.podman_command("exec", "ringfilld", "ringfill", "--connect-timeout", "120",
                                              "generate", "--prompt", "Once upon a time", "--max-tokens", "150",
                                              "--ignore-eos", "--no-progress")
        with subprocess.Popen(command, stdout=subprocess.PIPE, env=self.storage.environment) as request:
            request.stdout.read(1)
            self.storage.podman("kill", "--signal", "TERM", "ringfilld")
            request.stdout.read()
        self.assertEqual(request.returncode, 0)
        self.assertEqual(self.storage.podman("wait", "ringfilld").strip(), "0")

    def test_starts_as_the_chart_starts_it(self):
        objects = chart.render("cpu")
        _, daemon = chart.daemon(objects)
        config = self.folder / "config"
        config.mkdir()
        text = chart.config_map(objects)["ringfill.yaml"]
        (config / "ringfill.yaml").write_text(text, encoding="utf-8")
        model = self.models / yaml.safe_load(text)["model"]["path"].removeprefix("/models/")
        if not model.exists():
            model.parent.mkdir(mode=0o755)
            model.hardlink_to(self.models / "model.gguf")
        context = dockerfile.values()["podSecurityContext"]
        arguments = [text.replace("$(RINGFILL_CPUS)", "2") for text in daemon["args"]]
        self.start("--name", "ringfilld", "--read-only", "--user", f"{context['runAsUser']}:{context['runAsGroup']}",
                   "--cap-drop", "ALL", "--security-opt", "no-new-privileges", "--tmpfs", "/tmp",
                   "--volume", f"{self.models}:/models:ro", "--volume", f"{config}:/etc/ringfill:ro",
                   "--entrypoint", json.dumps(daemon["command"]), self.name, *arguments)
        # The pod of `helm test`, and what the chart runs before SIGTERM on clusters before 1.30.
        test = chart.only(objects, "Pod")["spec"]["containers"][0]
        address = yaml.safe_load(text)["server"]["listen"]
        where = test["args"].index("--address") + 1
        self.exec(*test["command"], *test["args"][:where], address, *test["args"][where + 1:])
        old = chart.daemon(chart.render("cpu", "1.28"))[1]["lifecycle"]["preStop"]["exec"]["command"]
        self.exec(old[0], "0")
        self.assertEqual(self.stop(), 0)

    def test_labels(self):
        config = self.inspected["Config"]
        labels = config["Labels"]
        self.assertLessEqual(dockerfile.LABELS, labels.keys())
        self.assertEqual(labels["org.opencontainers.image.revision"], self.revision)
        version = self.in_image("ringfilld", "--version").split()[1]
        self.assertEqual(labels["org.opencontainers.image.version"], version)
        grpc = self.in_image("dpkg-query", "--show", "--showformat", "${source:Upstream-Version}", "libgrpc++1.51")
        self.assertEqual(labels["org.ringfill.grpc.version"], grpc)
        self.assertEqual(labels["org.ringfill.variant"], "cpu")
        context = dockerfile.values()["podSecurityContext"]
        self.assertEqual(config["User"], f"{context['runAsUser']}:{context['runAsGroup']}")
        self.assertIn(f"ringfill:x:{context['runAsUser']}:{context['runAsGroup']}:", self.in_image("cat", "/etc/passwd"))

    def test_sbom_lists_every_package(self):
        path = self.folder / "sbom.spdx.json"
        path.write_text(self.in_image("cat", self.inspected["Config"]["Labels"]["org.ringfill.sbom.path"]))
        messages = validate_full_spdx_document(parse_file(str(path)))
        self.assertEqual([each.validation_message for each in messages], [])
        document = json.loads(path.read_text(encoding="utf-8"))
        listed = {(each["name"], each["versionInfo"]) for each in document["packages"]}
        installed = self.in_image("dpkg-query", "--show", "--showformat",
                                  "${db:Status-Status} ${Package} ${Version}\\n").splitlines()
        wanted = {tuple(line.split()[1:]) for line in installed if line.startswith("installed ")}
        self.assertGreater(len(wanted), 90)
        self.assertEqual(listed - {("ringfill/ringfilld", chart_version())}, wanted)
        self.assertIn("ringfill", {name for name, _ in wanted})

    def test_holds_no_more_than_it_needs(self):
        self.assertLess(self.inspected["Size"], MOST_BYTES)
        installed = self.in_image("dpkg-query", "--show", "--showformat", "${Package}\\n").split()
        for name in installed:
            self.assertNotRegex(name, r"^(g\+\+|gcc-\d+|cmake|git|python3.*|.*-dev)$")
        found = self.in_image("find", "/", "-xdev", "(", "-perm", "/6000", "-o", "-path", "/var/lib/apt/lists/*_*",
                              "-o", "-path", "/src", "-o", "-path", "/out", "-o", "-name", "*.deb", ")",
                              "-not", "-type", "d", "-print")
        self.assertEqual(found, "")
        # Every file of the package as it was built, but for the configuration.
        self.assertNotRegex(self.in_image("dpkg", "--verify", "ringfill"), r"(?m)^\?\?5\S+ +/")


def chart_version():
    return yaml.safe_load((chart.CHART / "Chart.yaml").read_text(encoding="utf-8"))["appVersion"]


if __name__ == "__main__":
    harness.main()
