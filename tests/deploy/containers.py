"""Builds and runs images without a container daemon, for image_test.py: buildah, podman and runc, as root.

Everything lies in a folder of its own, apart from what the machine may have of images and containers:
RINGFILL_IMAGE_STORAGE, which is kept and makes the next run shorter, or a temporary one.
"""

import hashlib
import json
import os
import pathlib
import resource
import shutil
import subprocess
import tempfile
import time

CACHE = pathlib.Path(os.environ.get("XDG_CACHE_HOME", pathlib.Path.home() / ".cache")) / "ringfill"
TOOLS = ("buildah", "podman", "runc", "mmdebstrap", "nsenter", "git", "tar")
BASE = "localhost/ringfill-test/debian:12"
# As the slim images of Debian: no manuals, no translations, of documents the licences alone.
BASE_ARGUMENTS = ("--mode=root", "--variant=minbase", "--aptopt=Acquire::Retries \"3\"",
                  *(f"--dpkgopt=path-{rule}" for rule in (
                      "exclude=/usr/share/man/*", "exclude=/usr/share/locale/*", "exclude=/usr/share/doc/*",
                      "include=/usr/share/doc/*/copyright")))


class Unavailable(Exception):
    """Why there can be no images here."""


def _run(command, timeout_s, **options):
    result = subprocess.run(command, capture_output=True, text=True, timeout=timeout_s, check=False, **options)
    if result.returncode != 0:
        raise AssertionError(f"{' '.join(map(str, command))} exited with {result.returncode}:\n"
                             f"{result.stdout[-4000:]}{result.stderr[-4000:]}")
    return result.stdout


def base_tar():
    """The root of a slim Debian 12 as a tar file, made once."""
    key = hashlib.sha256(" ".join(BASE_ARGUMENTS).encode()).hexdigest()[:16]
    path = CACHE / f"debian-slim-{key}.tar"
    if not path.is_file():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE, prefix="debian-slim-") as folder:
            made = pathlib.Path(folder) / "root.tar"
            result = subprocess.run(["mmdebstrap", *BASE_ARGUMENTS, "bookworm", str(made)], capture_output=True,
                                    text=True, check=False)
            if result.returncode != 0:
                raise Unavailable(f"mmdebstrap failed:\n{result.stderr[-2000:]}")
            made.rename(path)
    return path


class Storage:
    """Images and containers. Leaving the context removes the containers, and the folder where it is temporary."""

    def __enter__(self):
        if os.geteuid() != 0:
            raise Unavailable("not root")
        for tool in TOOLS:
            if shutil.which(tool) is None:
                raise Unavailable(f"no {tool}; tools/install_dependencies.sh --image installs it")
        kept = os.environ.get("RINGFILL_IMAGE_STORAGE")
        self._temporary = None if kept else tempfile.TemporaryDirectory(prefix="ringfill-image-")
        self.folder = pathlib.Path(kept or self._temporary.name)
        self.folder.mkdir(parents=True, exist_ok=True)
        conf = self.folder / "storage.conf"
        self.environment = dict(os.environ, CONTAINERS_STORAGE_CONF=str(conf))
        # Where file systems cannot be laid over each other, every layer is a copy of all below it.
        for driver in ("overlay", "vfs"):
            conf.write_text(f'[storage]\ndriver = "{driver}"\ngraphroot = "{self.folder}/{driver}"\n'
                            f'runroot = "{self.folder}/run-{driver}"\n', encoding="utf-8")
            if subprocess.run(["buildah", "info"], capture_output=True, check=False,
                              env=self.environment).returncode == 0:
                return self
        raise Unavailable("buildah can keep no images here")

    def __exit__(self, *exception):
        self.podman("rm", "--all", "--force", "--time", "0")
        self.buildah("rm", "--all")
        if self._temporary:
            self._temporary.cleanup()

    def buildah(self, *arguments, timeout_s=600):
        return _run(["buildah", *arguments], timeout_s, env=self.environment)

    def podman(self, *arguments, timeout_s=180):
        return _run(self.podman_command(*arguments), timeout_s, env=self.environment)

    def podman_command(self, *arguments):
        return ["podman", "--runtime", "runc", "--cgroup-manager", "cgroupfs", "--tmpdir", f"{self.folder}/tmp",
                *arguments]

    def try_podman(self, *arguments, timeout_s=180):
        return subprocess.run(self.podman_command(*arguments), capture_output=True, text=True, timeout=timeout_s,
                              check=False, env=self.environment)

    def make_base(self):
        if BASE in self.buildah("images", "--format", "{{.Name}}:{{.Tag}}").split():
            return
        container = self.buildah("from", "scratch").strip()
        self.buildah("add", container, str(base_tar()), "/")
        self.buildah("commit", "--rm", container, BASE)

    def build(self, context, *arguments, timeout_s=3000):
        """An image of the Dockerfile in a folder; the seconds that it took."""
        compiled = CACHE / "image-ccache"
        compiled.mkdir(parents=True, exist_ok=True)
        start = time.monotonic()
        # Commands of the build run in a chroot, which may use the machine's network.
        self.buildah("build", "--isolation", "chroot", "--network", "host", "--layers",
                     "--volume", f"{compiled}:/root/.cache/ccache", "--build-arg", f"DEBIAN={BASE}",
                     *arguments, str(context), timeout_s=timeout_s)
        return time.monotonic() - start

    def run_flags(self):
        """What `podman run` needs besides: no network but loopback, and limits that this process may give."""
        limits = {"nofile": 4096, "nproc": 4096}
        for name, kind in (("nofile", resource.RLIMIT_NOFILE), ("nproc", resource.RLIMIT_NPROC)):
            most = resource.getrlimit(kind)[1]
            limits[name] = limits[name] if most == resource.RLIM_INFINITY else min(most, limits[name])
        return ["--network", "none", *(word for name, most in limits.items()
                                       for word in ("--ulimit", f"{name}={most}:{most}"))]

    def inspect(self, kind, name):
        return json.loads(self.podman(kind, "inspect", name))[0]


def committed(source, folder):
    """The files of the last commit, in `folder`; its full name."""
    git = ["git", "-c", f"safe.directory={source}", "-C", str(source)]
    revision = subprocess.run([*git, "rev-parse", "HEAD"], capture_output=True, text=True, check=False)
    if revision.returncode != 0:
        raise Unavailable(f"{source} is no checkout of git")
    with tempfile.TemporaryFile() as file:
        subprocess.run([*git, "archive", "HEAD"], check=True, stdout=file)
        file.seek(0)
        subprocess.run(["tar", "-x", "-C", str(folder)], check=True, stdin=file)
    return revision.stdout.strip()
