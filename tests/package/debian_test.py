"""The Debian package, from `apt-get install` to `apt-get purge`, under the systemd of a bare Debian.

Methods run in the order of their names, each on what the one before has left.
"""

import contextlib
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
import unittest

import debian_root

SKIPPED = 77  # SKIP_RETURN_CODE in CMakeLists.txt
SOURCE_DIR = pathlib.Path(__file__).resolve().parents[2]
BUILD_DIR = pathlib.Path(os.environ.get("RINGFILL_BUILD_DIR", SOURCE_DIR / "build/release"))
UNIT = "ringfilld.service"
CONFIG = "/etc/ringfill/ringfill.yaml"
STATE = "/var/lib/ringfill"
MOST_EXPOSURE = 1.3  # of systemd-analyze security, 0 to 10


def build_package():
    """tools/package.sh: of the tested tree where that has no CUDA, else of the tree without."""
    command = [str(SOURCE_DIR / "tools/package.sh"), "--no-install"]
    if os.environ.get("RINGFILL_HAVE_CUDA", "ON") != "ON":
        command += ["--tree", str(BUILD_DIR)]
    start = time.monotonic()
    out = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout
    path = pathlib.Path(out.strip())
    print(f"{path}: {path.stat().st_size / 1e6:.2f} MB, built in {time.monotonic() - start:.1f} s",
          flush=True)
    return path


def field(package, name):
    return subprocess.run(["dpkg-deb", "--field", str(package), name], check=True,
                          capture_output=True, text=True).stdout.strip()


def dependencies(package):
    return [entry.split()[0] for entry in field(package, "Depends").split(",")]


def with_version(package, version, folder):
    """The same package with another version."""
    tree = pathlib.Path(folder) / "tree"
    subprocess.run(["dpkg-deb", "--raw-extract", str(package), str(tree)], check=True)
    control = tree / "DEBIAN/control"
    text = re.sub(r"(?m)^Version: .*$", f"Version: {version}", control.read_text())
    control.write_text(text)
    path = pathlib.Path(folder) / f"ringfill_{version}.deb"
    subprocess.run(["dpkg-deb", "-Znone", "--build", str(tree), str(path)], check=True,
                   stdout=subprocess.DEVNULL)
    shutil.rmtree(tree)
    return path


class DebianPackage(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.stack = contextlib.ExitStack()
        cls.addClassCleanup(cls.stack.close)
        cls.package = build_package()
        cls.version = field(cls.package, "Version")
        try:
            root = debian_root.cached_root(dependencies(cls.package))
            start = time.monotonic()
            cls.machine = cls.stack.enter_context(debian_root.Machine(root))
        except debian_root.Unavailable as why:
            cls.stack.close()
            print(f"SKIPPED: {why}", flush=True)
            sys.exit(SKIPPED)
        print(f"booted in {time.monotonic() - start:.1f} s", flush=True)
        cls.before = cls.machine.files()

    def show(self, name):
        return self.machine.out("systemctl", "show", "--value", "-p", name, UNIT).strip()

    def await_state(self, name, wanted, timeout_s=30):
        deadline = time.monotonic() + timeout_s
        while (value := self.show(name)) != wanted:
            self.assertLess(time.monotonic(), deadline, f"{name} stays {value}, not {wanted}\n" +
                            self.journal())
            time.sleep(0.05)

    def journal(self):
        return self.machine.out("journalctl", "--no-pager", "-n", "30", "-o", "cat", "-u", UNIT)

    def install(self, package):
        shutil.copy(package, self.machine.path("/root/ringfill.deb"))
        return self.machine.run("apt-get", "-q", "install", "--yes", "--allow-downgrades",
                                "/root/ringfill.deb")

    def put_model(self):
        path = self.machine.path(f"{STATE}/model.gguf")
        subprocess.run([str(BUILD_DIR / "bin/ringfill-make-model"), "--out", str(path),
                        "--context", "65536"], check=True, stdout=subprocess.DEVNULL)
        path.chmod(0o644)

    def override(self, text):
        """Settings of the unit from now on; none with empty text."""
        folder = f"/etc/systemd/system/{UNIT}.d"
        path = self.machine.path(f"{folder}/test.conf")
        if text:
            path.parent.mkdir(exist_ok=True)
            path.write_text(f"[Service]\n{text}\n")
        else:
            path.unlink()
            path.parent.rmdir()
        self.machine.run("systemctl", "daemon-reload")

    def configure(self, old, new):
        path = self.machine.path(CONFIG)
        text = path.read_text()
        self.assertEqual(text.count(old), 1, old)
        path.write_text(text.replace(old, new))

    def signal(self, name, pid):
        self.machine.run("sh", "-c", f"kill -{name} {pid}")

    def generate(self, *arguments):
        return self.machine.out("ringfill", "generate", "--prompt", "Once upon a time",
                                "--max-tokens", "8", "--ignore-eos", *arguments)

    def test_01_depends_on_what_it_needs_and_on_nothing_of_nvidia(self):
        names = dependencies(self.package)
        for wanted in ("adduser", "libc6", "libdnnl2", "libgrpc++1.51"):
            self.assertIn(wanted, names)
        # A library that dpkg does not know would not be among them.
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run(["dpkg-deb", "--extract", str(self.package), folder], check=True)
            for program in ("ringfilld", "ringfill"):
                names.append(subprocess.run(["readelf", "-d", f"{folder}/usr/bin/{program}"],
                                            check=True, capture_output=True, text=True).stdout)
        self.assertNotRegex("\n".join(names), "(?i)nvidia|cuda|nccl|cudnn|cublas|r(un)?path")
        self.assertRegex(field(self.package, "Maintainer"), r"^The ringfill authors <")

    def test_02_keeps_debians_rules(self):
        lintian = shutil.which("lintian")
        if lintian is None:
            self.skipTest("no lintian")
        result = subprocess.run([lintian, "--allow-root", "--fail-on", "error,warning",
                                 str(self.package)], capture_output=True, text=True, check=False)
        self.assertEqual((result.returncode, result.stdout), (0, ""), result.stderr)

    def test_03_installs_without_a_model(self):
        result = self.install(self.package)
        self.assertNotRegex(result.stderr, r"(?i)error|fail")
        self.assertEqual(self.machine.out("dpkg", "--verify", "ringfill"), "")
        self.assertEqual(self.machine.out("systemctl", "is-enabled", UNIT), "enabled\n")
        self.assertEqual(self.show("ActiveState"), "inactive")
        self.machine.run("systemctl", "start", UNIT)
        self.assertEqual((self.show("ActiveState"), self.show("ConditionResult")),
                         ("inactive", "no"))
        user = self.machine.out("getent", "passwd", "ringfill").strip().split(":")
        self.assertLess(int(user[2]), 1000)
        self.assertEqual(user[5:], [STATE, "/usr/sbin/nologin"])
        for folder in (STATE, "/var/cache/ringfill"):
            self.assertEqual(self.machine.out("stat", "-c", "%U:%G %a", folder),
                             "ringfill:ringfill 750\n")
        self.assertIn(CONFIG, self.machine.out("dpkg-query", "-W", "-f", "${Conffiles}",
                                               "ringfill"))

    def test_04_the_unit_is_right_and_hardened(self):
        result = self.machine.run("systemd-analyze", "verify", "--man=no", UNIT)
        self.assertEqual(result.stdout + result.stderr, "")
        path = f"/usr/lib/systemd/system/{UNIT}"
        out = self.machine.out("systemd-analyze", "security", "--no-pager", "--offline=true",
                               f"--threshold={MOST_EXPOSURE * 10:.0f}", path)
        exposure = float(re.search(r"exposure level for \S+: (\d+\.\d+)", out)[1])
        print(f"exposure {exposure}", flush=True)
        self.assertLessEqual(exposure, MOST_EXPOSURE)

    def test_05_speaks_the_notify_protocol(self):
        self.put_model()
        name = "/var/tmp/notify"
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as receiver:
            receiver.bind(str(self.machine.path(name)))
            self.machine.path(name).chmod(0o777)
            receiver.settimeout(30)
            daemon = self.machine.start(
                "setpriv", "--reuid=ringfill", "--regid=ringfill", "--clear-groups",
                "env", f"NOTIFY_SOCKET={name}", "WATCHDOG_USEC=400000",
                "ringfilld", "--config", CONFIG)
            self.assertEqual(receiver.recv(4096).decode(), f"STATUS=loading {STATE}/model.gguf")
            self.assertEqual(receiver.recv(4096).decode(), "STATUS=starting 1 ranks")
            self.assertEqual(receiver.recv(4096).decode(), "READY=1")
            self.assertRegex(receiver.recv(4096).decode(), r"^WATCHDOG=1\nSTATUS=serving .*\n$")
            self.assertRegex(daemon.stdout.readline(), "^ready grpc=127.0.0.1:50051 metrics=")
            self.generate()
            self.assertTrue(receiver.recv(4096).decode().startswith("WATCHDOG=1\n"))
            self.signal("TERM", self.pid_of("ringfilld"))
            told = ""
            while "STOPPING=1" not in told:
                told = receiver.recv(4096).decode()
            self.assertIn("EXTEND_TIMEOUT_USEC=20000000\n", receiver.recv(4096).decode())
            _, err = daemon.communicate(timeout=30)
            self.assertEqual(daemon.returncode, 0, err)
        self.machine.path(name).unlink()

    def pid_of(self, program):
        """Of the one process of that name in the machine."""
        found = [line.split()[0] for line in self.machine.out(
            "sh", "-c", "for p in /proc/[0-9]*; do echo ${p#/proc/} $(cat $p/comm); done",
            check=False).splitlines() if line.split()[1:] == [program]]
        self.assertEqual(len(found), 1, found)
        return found[0]

    def test_06_serves_as_a_service(self):
        start = time.monotonic()
        self.machine.run("systemctl", "start", UNIT)  # returns when it is ready
        print(f"started in {time.monotonic() - start:.2f} s", flush=True)
        self.assertEqual(self.show("ActiveState"), "active")
        self.assertRegex(self.show("StatusText"), "^serving .* on 127.0.0.1:50051: 0 running")
        self.assertTrue(self.generate())
        self.assertIn('"compute_dtype"', self.journal())
        pid = self.show("MainPID")
        status = dict(line.split(":", 1) for line in
                      self.machine.out("cat", f"/proc/{pid}/status").splitlines())
        uid = self.machine.out("id", "-u", "ringfill").strip()
        self.assertEqual(status["Uid"].split(), [uid] * 4)
        self.assertEqual(status["NoNewPrivs"].strip(), "1")
        self.assertEqual(status["Seccomp"].strip(), "2")
        self.assertEqual(int(status["CapBnd"], 16), 0)
        self.configure("level: info", "level: debug")
        self.machine.run("systemctl", "reload", UNIT)
        deadline = time.monotonic() + 30
        while '"log.level":"debug"' not in self.journal():
            self.assertLess(time.monotonic(), deadline, self.journal())
            time.sleep(0.05)
        self.configure("level: debug", "level: info")
        self.assertEqual(self.show("ActiveState"), "active")
        self.assertEqual(self.show("MainPID"), pid)
        self.check_what_it_can_write(pid)

    def check_what_it_can_write(self, pid):
        """As docs/OPERATIONS.md says, and nothing else."""
        text = (SOURCE_DIR / "docs/OPERATIONS.md").read_text(encoding="utf-8")
        said = re.search(r"^Files that the service writes .*?Nothing else is writable\.$", text, re.S | re.M)[0]
        writable = set(re.findall(r"`(/[\w/]+)`", said))
        self.assertEqual(len(writable), 5)
        for folder in sorted(writable | {"/etc", "/etc/ringfill", "/opt", "/root", "/run", "/srv", "/usr/bin", "/var",
                                         "/var/cache", "/var/lib", "/var/log"}):
            result = self.machine.run(
                "nsenter", "-t", pid, "--mount", "setpriv", "--reuid=ringfill", "--regid=ringfill", "--clear-groups",
                "test", "-w", folder, check=False)
            self.assertEqual((result.returncode, result.stderr), (0 if folder in writable else 1, ""), folder)

    def test_07_ranks_as_processes_and_a_long_prompt_work_too(self):
        self.configure("ranks:\n", "ring:\n  transport: processes\nranks:\n")
        self.configure("  count: 1\n", "  count: 2\n")
        self.machine.run("systemctl", "restart", UNIT)
        out = self.machine.run("ringfill", "generate", "--prompt-file", "-", "--max-tokens", "4",
                               "--ignore-eos", "--stats", input="Once upon a time. " * 1000)
        self.assertRegex(out.stderr, r"tokens +\d\d,\d+ prompt")
        self.assertRegex(out.stderr, "rank 1 +busy")
        self.configure("ring:\n  transport: processes\nranks:\n", "ranks:\n")
        self.configure("  count: 2\n", "  count: 1\n")
        self.machine.run("systemctl", "restart", UNIT)

    def test_08_drains_for_longer_than_systemd_waits(self):
        self.override("TimeoutStopSec=500ms")
        self.configure("drain_timeout_s: 30", "drain_timeout_s: 300")
        self.machine.run("systemctl", "restart", UNIT)
        client = self.machine.start("ringfill", "generate", "--prompt", "Once", "--max-tokens",
                                    "40000", "--ignore-eos")
        deadline = time.monotonic() + 30
        while '"running":1' not in self.machine.out("ringfill", "status", "--json"):
            self.assertLess(time.monotonic(), deadline)
        start = time.monotonic()
        self.machine.run("systemctl", "stop", UNIT)
        took = time.monotonic() - start
        print(f"drained in {took:.2f} s", flush=True)
        _, err = client.communicate(timeout=30)
        self.assertEqual(client.returncode, 0, err)
        self.assertGreater(took, 1, "nothing that systemd's limit would have cut")
        self.assertEqual(self.show("Result"), "success")
        self.configure("drain_timeout_s: 300", "drain_timeout_s: 30")
        self.override("")

    def await_sign_of_life(self, after_s, timeout_s=120):
        """One that the unit has given so long after it was ready."""
        ready = int(self.show("ActiveEnterTimestampMonotonic"))
        deadline = time.monotonic() + timeout_s
        while int(self.show("WatchdogTimestampMonotonic")) - ready < after_s * 1e6:
            self.assertLess(time.monotonic(), deadline, "no sign of life\n" + self.journal())
            time.sleep(0.1)

    def test_09_comes_back_after_a_crash_or_a_hang(self):
        watchdog_s = 5
        self.override(f"WatchdogSec={watchdog_s}\nTimeoutAbortSec=1\nRestartSec=100ms")
        self.machine.run("systemctl", "restart", UNIT)
        self.signal("KILL", self.show("MainPID"))
        self.await_state("NRestarts", "1", timeout_s=120)
        self.await_state("ActiveState", "active", timeout_s=120)
        self.assertNotIn("Watchdog timeout", self.journal())
        self.signal("STOP", self.show("MainPID"))
        self.await_state("NRestarts", "2", timeout_s=120)
        self.await_state("ActiveState", "active", timeout_s=120)
        self.assertIn("Watchdog timeout", self.journal())
        # Its watchdog does not strike who is well: the same process goes on beyond that time.
        pid = self.show("MainPID")
        self.await_sign_of_life(1.5 * watchdog_s)
        self.assertEqual((self.show("ActiveState"), self.show("NRestarts"), self.show("MainPID")),
                         ("active", "2", pid))
        self.override("")

    def test_10_stays_down_when_trying_again_does_not_help(self):
        self.machine.run("systemctl", "stop", UNIT)
        model = self.machine.path(f"{STATE}/model.gguf")
        self.configure("  count: 1\n", "  count: many\n")
        for code, says in (("2", "ranks.count"), ("3", "the model cannot be loaded")):
            self.machine.run("systemctl", "reset-failed", UNIT)
            self.assertNotEqual(
                self.machine.run("systemctl", "start", UNIT, check=False).returncode, 0)
            time.sleep(2.5)  # RestartSec is 2
            self.assertEqual((self.show("ActiveState"), self.show("ExecMainStatus"),
                              self.show("NRestarts")), ("failed", code, "0"))
            self.assertIn(says, self.journal())
            if code == "2":
                self.configure("  count: many\n", "  count: 1\n")
                model.write_text("no model")
        self.put_model()
        self.machine.run("systemctl", "start", UNIT)

    def test_11_upgrades_and_goes_back(self):
        self.configure("max_queued_requests: 64", "max_queued_requests: 63")
        with tempfile.TemporaryDirectory() as folder:
            for package in (with_version(self.package, "99.0", folder), self.package):
                pid = self.show("MainPID")
                self.install(package)
                self.assertEqual(self.machine.out("dpkg-query", "-W", "-f", "${Version}",
                                                  "ringfill"), field(package, "Version"))
                self.assertEqual(self.show("ActiveState"), "active")
                self.assertNotEqual(self.show("MainPID"), pid)
                self.assertTrue(self.generate())
                self.assertIn("requests: 63", self.machine.path(CONFIG).read_text())
        self.machine.run("systemctl", "disable", "--now", UNIT)
        self.install(self.package)
        self.assertEqual(self.machine.run("systemctl", "is-enabled", UNIT, check=False).stdout,
                         "disabled\n")
        self.machine.run("systemctl", "enable", "--now", UNIT)

    def test_12_removed_it_stops_and_keeps_what_is_the_administrators(self):
        self.machine.run("apt-get", "remove", "--yes", "ringfill")
        self.assertFalse(self.machine.path("/usr/bin/ringfilld").exists())
        self.assertEqual(self.show("ActiveState"), "inactive")
        self.assertTrue(self.machine.path(CONFIG).exists())
        self.assertTrue(self.machine.path(f"{STATE}/model.gguf").exists())

    def test_13_purged_it_leaves_models_or_nothing(self):
        out = self.machine.run("apt-get", "purge", "--yes", "ringfill")
        self.assertIn(f"{STATE} is not empty", out.stdout + out.stderr)
        self.assertEqual(self.machine.files() - self.before,
                         {STATE[1:], f"{STATE[1:]}/model.gguf", "root/ringfill.deb"})
        self.machine.path(f"{STATE}/model.gguf").unlink()
        self.install(self.package)
        self.machine.run("apt-get", "purge", "--yes", "ringfill")
        self.assertEqual(self.machine.files() - self.before, {"root/ringfill.deb"})
        self.assertEqual(self.machine.run("getent", "passwd", "ringfill", check=False).stdout, "")


if __name__ == "__main__":
    unittest.main(verbosity=2, failfast=True)
