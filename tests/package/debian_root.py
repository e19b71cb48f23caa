"""A bare Debian with systemd as its first process, in namespaces of its own, for the test beside it.

The packages that it is made of come from Debian's archive once, and are kept as a tar file under
${XDG_CACHE_HOME:-~/.cache}/ringfill. Nothing in it reaches a network.
"""

import hashlib
import os
import pathlib
import shutil
import subprocess
import tempfile
import time

BOOT = pathlib.Path(__file__).resolve().parent / "boot.sh"
CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "ringfill"
TOOLS = ("mmdebstrap", "unshare", "nsenter", "ip", "tar")


class Unavailable(Exception):
    """Why there can be no such Debian here."""


def codename():
    """Of this machine's Debian: what is built here runs on no other."""
    release = dict(line.split("=", 1) for line in
                   pathlib.Path("/etc/os-release").read_text(encoding="utf-8").splitlines()
                   if "=" in line)
    if release.get("ID", "").strip('"') != "debian":
        raise Unavailable("this machine runs no Debian")
    return release["VERSION_CODENAME"].strip('"')


def cached_root(packages):
    """The tar file of a root with these packages, made if it is not there."""
    if os.geteuid() != 0:
        raise Unavailable("not root")
    for tool in TOOLS:
        if shutil.which(tool) is None:
            raise Unavailable(f"no {tool}")
    packages = sorted({"dbus", "systemd", *packages})
    suite = codename()
    key = hashlib.sha256(" ".join([suite, *packages]).encode()).hexdigest()[:16]
    path = CACHE / f"debian-root-{key}.tar"
    if path.is_file():
        return path
    print(f"making {path}", flush=True)
    CACHE.mkdir(parents=True, exist_ok=True)
    start = time.monotonic()
    with tempfile.TemporaryDirectory(dir=CACHE, prefix="debian-root-") as folder:
        made = pathlib.Path(folder) / "root.tar"
        result = subprocess.run(
            ["mmdebstrap", "--mode=root", "--variant=minbase", f"--include={','.join(packages)}",
             '--aptopt=Acquire::Retries "3"', "--dpkgopt=path-exclude=/usr/share/doc/*",
             "--dpkgopt=path-exclude=/usr/share/locale/*",
             "--dpkgopt=path-include=/usr/share/doc/ringfill/*", suite, str(made)],
            capture_output=True, text=True, check=False)
        if result.returncode != 0:
            raise Unavailable(f"mmdebstrap failed:\n{result.stderr[-2000:]}")
        for old in CACHE.glob("debian-root-*.tar"):
            old.unlink()
        made.rename(path)
    print(f"made in {time.monotonic() - start:.0f} s", flush=True)
    return path


class Machine:
    """A running Debian; leaving the context ends all its processes."""

    def __init__(self, root_tar):
        self._tar = root_tar

    def __enter__(self):
        self._folder = tempfile.TemporaryDirectory(prefix="ringfill-debian-")
        self.root = pathlib.Path(self._folder.name)
        self.root.chmod(0o755)
        subprocess.run(["tar", "-xf", str(self._tar), "-C", str(self.root)], check=True)
        self.path("/etc/hosts").write_text("127.0.0.1 localhost\n::1 localhost\n")
        self._log = tempfile.NamedTemporaryFile(prefix="ringfill-debian-", suffix=".log")
        self._unshare = subprocess.Popen(
            ["unshare", "--pid", "--mount", "--uts", "--ipc", "--net", "--cgroup", "--fork",
             "--kill-child", str(BOOT), str(self.root)],
            stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log)
        try:
            self._await_systemd()
        except Unavailable:
            self.__exit__(None, None, None)
            raise
        return self

    def _await_systemd(self):
        deadline = time.monotonic() + 60
        children = pathlib.Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children")
        while time.monotonic() < deadline:
            if self._unshare.poll() is not None:
                log = pathlib.Path(self._log.name).read_text(encoding="utf-8", errors="replace")
                raise Unavailable(f"systemd does not run in namespaces here:\n{log}")
            self._init = children.read_text(encoding="ascii").strip()
            if self._init and pathlib.Path(f"/proc/{self._init}/comm").read_text() == "systemd\n":
                state = self.run("systemctl", "is-system-running", "--wait", check=False).stdout
                if state in ("running\n", "degraded\n"):
                    return
            time.sleep(0.05)
        raise Unavailable("systemd did not come up within a minute")

    def command(self, *arguments):
        return ["nsenter", "-t", self._init, "--all", "env", "-i", "LC_ALL=C.UTF-8", "HOME=/root",
                "PATH=/usr/sbin:/usr/bin:/sbin:/bin", "DEBIAN_FRONTEND=noninteractive", *arguments]

    def run(self, *arguments, check=True, timeout_s=120, **options):
        result = subprocess.run(self.command(*arguments), capture_output=True, text=True,
                                check=False, timeout=timeout_s, **options)
        if check and result.returncode != 0:
            raise AssertionError(f"{' '.join(arguments)} exited with {result.returncode}:\n"
                                 f"{result.stdout}{result.stderr}")
        return result

    def out(self, *arguments, **options):
        return self.run(*arguments, **options).stdout

    def start(self, *arguments, **options):
        return subprocess.Popen(self.command(*arguments), stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
                                **options)

    def path(self, absolute):
        """Where a file of it lies for us; not for what it mounted, as /run."""
        return self.root / absolute.lstrip("/")

    def files(self):
        """Every file that outlives a reboot, but for records of what was done and backups."""
        passing = ("dev", "mnt", "proc", "run", "sys", "tmp", "var/cache/apt", "var/cache/debconf",
                   "var/cache/ldconfig", "var/lib/apt", "var/lib/dpkg", "var/lib/systemd", "var/log", "var/tmp")
        found = set()
        for folder, folders, names in os.walk(self.root):
            here = os.path.relpath(folder, self.root)
            folders[:] = [f for f in folders if os.path.normpath(f"{here}/{f}") not in passing]
            found |= {os.path.normpath(f"{here}/{name}") for name in [*folders, *names]
                      if not name.endswith("-")}  # /etc/passwd-
        return found

    def __exit__(self, kind, value, trace):
        self._unshare.kill()  # and with it, its child and all that that started
        self._unshare.wait()
        # Processes that end let go of the folder a moment later.
        for _ in range(100):
            try:
                self._folder.cleanup()
                break
            except OSError:
                time.sleep(0.05)
        self._log.close()
