"""deploy/docker without building: hadolint, checkov, the checks of dockerfile.py, and what is beside it."""

import json
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

import yaml

import chart
import dockerfile

HADOLINT = str(chart.TOOLS / "bin/hadolint")
TEXT = dockerfile.PATH.read_text(encoding="utf-8")
# The check that must complain, what is replaced, and by what.
BREAKS = (
    ("user", "USER 65532:65532", "USER ringfill"),
    ("user", "USER 65532:65532\n", ""),
    ("user", "USER 65532:65532", "USER 1000:1000"),
    ("user", "ENTRYPOINT", "RUN true\nENTRYPOINT"),
    ("user", "'%s=65532\\n'", "'%s=999\\n'"),
    ("command", 'ENTRYPOINT ["/usr/bin/ringfilld"]', "ENTRYPOINT /usr/bin/ringfilld"),
    ("command", '["/usr/bin/ringfilld"]', '["/usr/bin/ringfill"]'),
    ("command", 'CMD ["--config", "/etc/ringfill/ringfill.yaml"]', 'CMD ["--config", "/etc/x.yaml"]'),
    ("ports", "EXPOSE 50051 9464", "EXPOSE 50051"),
    ("ports", "EXPOSE 50051 9464", "EXPOSE 50051 9465"),
    ("labels", 'org.ringfill.grpc.version="${GRPC_VERSION}"', 'org.ringfill.grpc="x"'),
    ("labels", "ARG VERSION=0.1.0", "ARG VERSION=0.0.9"),
    ("bases", "debian:12-slim", "debian:latest"),
    ("bases", "debian:12-slim", "debian"),
    ("bases", "docker.io/library/debian:12-slim", "debian:12-slim"),
    ("bases", "FROM ${DEBIAN} AS runtime", "FROM docker.io/library/debian:12 AS runtime"),
    ("arguments", "FROM build AS sbom\nARG VERSION\n", "FROM build AS sbom\n"),
    ("arguments", "ARG VARIANT\nARG VERSION\nARG GRPC_VERSION\n# The commit", "# The commit"),
    ("arguments", "COPY . .\nARG VERSION\n", "COPY . .\n"),
    ("from_outside", "COPY . .", "ADD https://example.com/x.tar.gz ."),
    ("from_outside", "&& apt-get clean", "&& curl -fsSL https://example.com/x | sh"),
    ("secrets", "ARG REVISION=unknown", "ARG REVISION=unknown\nARG PYPI_TOKEN"),
    ("secrets", "USER 65532", "ENV DB_PASSWORD=x\nUSER 65532"),
    ("small", "FROM runtime\n", "FROM build\n"),
    ("small", "-perm /6000 -exec chmod ug-s {} +", "-perm /6000"),
)


def hadolint(text):
    return subprocess.run([HADOLINT, "--no-color", "-"], input=text, capture_output=True, text=True,
                          timeout=60, check=False)


class Lint(unittest.TestCase):
    def test_hadolint_finds_nothing(self):
        result = hadolint(TEXT)
        self.assertEqual((result.returncode, result.stdout), (0, ""), result.stderr)
        self.assertNotIn("hadolint ignore", TEXT)

    def test_hadolint_finds_what_is_broken(self):
        result = hadolint(TEXT.replace("debian:12-slim", "debian").replace(
            'ENTRYPOINT ["/usr/bin/ringfilld"]', "ENTRYPOINT ringfilld").replace("/mnt/ringfill.deb", "libdnnl2"))
        self.assertEqual(result.returncode, 1)
        for rule in ("DL3025", "DL3008"):
            self.assertIn(rule, result.stdout)

    def test_checkov(self):
        """Without HEALTHCHECK (CKV_DOCKER_2: health is a gRPC service, whose port is a matter of configuration)
        and without its look at tags (CKV_DOCKER_7: it does not see that the base is an argument; `bases` does)."""
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "Dockerfile"
            found = {}
            for name, text in (("as it is", TEXT), ("broken", TEXT.replace("USER 65532:65532", "USER root"))):
                path.write_text(text, encoding="utf-8")
                result = subprocess.run(
                    [str(chart.TOOLS / "venv/bin/checkov"), "--file", str(path), "--framework", "dockerfile",
                     "--compact", "--quiet", "--skip-download", "--output", "json", "--soft-fail",
                     "--skip-check", "CKV_DOCKER_2,CKV_DOCKER_7"],
                    capture_output=True, text=True, timeout=300, check=False,
                    env=dict(os.environ, CHECKOV_RUN_SCA_PACKAGE_SCAN="false", LOG_LEVEL="ERROR"))
                report = json.loads(result.stdout)
                self.assertGreater(report["summary"]["passed"], 5, result.stdout)
                found[name] = [check["check_id"] for check in report["results"]["failed_checks"]]
        self.assertEqual(found, {"as it is": [], "broken": ["CKV_DOCKER_8"]})


class Structure(unittest.TestCase):
    def test_every_check(self):
        file = dockerfile.Dockerfile(TEXT)
        for check in dockerfile.CHECKS:
            with self.subTest(check=check.__name__):
                self.assertEqual(list(check(file)), [])

    def test_each_finds_what_it_is_for(self):
        for number, (name, old, new) in enumerate(BREAKS):
            with self.subTest(check=name, number=number):
                self.assertIn(old, TEXT)
                broken = dockerfile.Dockerfile(TEXT.replace(old, new))
                self.assertNotEqual(list(getattr(dockerfile, name)(broken)), [], "not found")
        self.assertEqual({name for name, _, _ in BREAKS}, {check.__name__ for check in dockerfile.CHECKS})


class Beside(unittest.TestCase):
    """The configuration, the context and NVIDIA's packages."""

    def test_configuration(self):
        path = dockerfile.FOLDER / "ringfill.yaml"
        config = yaml.safe_load(path.read_text(encoding="utf-8"))
        values = dockerfile.values()
        for section, port in (("server", "service"), ("metrics", "metrics")):
            self.assertEqual(config[section]["listen"], f"0.0.0.0:{values[port]['port']}")
        # As the chart mounts and names it.
        _, daemon = chart.daemon(chart.render("cpu"))
        mounts = [mount["mountPath"] for mount in daemon["volumeMounts"]]
        folder, _, name = config["model"]["path"].rpartition("/")
        self.assertIn(folder, mounts)
        self.assertEqual(name, values["model"]["file"])
        self.assertIn("/etc/ringfill", mounts)
        program = chart.BIN_DIR / "ringfilld"
        if not program.exists():
            self.skipTest(f"no {program}")
        result = subprocess.run([str(program), "--config", str(path), "--check-config"], capture_output=True,
                                text=True, timeout=60, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_context(self):
        """Only what is named travels, and what is named is there."""
        lines = [line for line in (chart.SOURCE_DIR / ".dockerignore").read_text().splitlines()
                 if line and not line.startswith("#")]
        self.assertEqual(lines[0], "*")
        named = {line[1:] for line in lines if line.startswith("!")}
        for name in named:
            self.assertTrue((chart.SOURCE_DIR / name).exists(), name)
        self.assertFalse(named & {".git", "tests", "build", ".ci"})
        # All that CMake goes into without tests, and what is installed.
        cmake = (chart.SOURCE_DIR / "CMakeLists.txt").read_text(encoding="utf-8")
        wanted = set(re.findall(r"add_subdirectory\((\w+)\)", cmake)) - {"tests"}
        self.assertLessEqual(wanted | {"cmake", "docs", "README.md", "deploy/docker"}, named)
        packaging = (chart.SOURCE_DIR / "packaging/CMakeLists.txt").read_text(encoding="utf-8")
        packaging = packaging.replace("${chart}", "${PROJECT_SOURCE_DIR}/deploy/helm/ringfill")
        installed = re.findall(r"\$\{PROJECT_SOURCE_DIR\}/([\w./-]*\w)", packaging)
        self.assertGreater(len(installed), 3)
        for path in installed:
            if path != "deploy/helm/ringfill":  # only the name of what follows
                self.assertTrue(any(f"{path}/".startswith(f"{name}/") for name in named), f"{path} is in no layer")

    def test_nvidias_packages_are_fixed_and_new_enough(self):
        versions = {}
        for line in (dockerfile.FOLDER / "cuda_requirements.txt").read_text().splitlines():
            if line.startswith("#"):
                continue
            match = re.fullmatch(r"([a-z0-9-]+)==(\d+)\.(\d+)[\d.]* --hash=sha256:[0-9a-f]{64}", line)
            self.assertIsNotNone(match, line)
            versions[match[1]] = (int(match[2]), int(match[3]))
        guide = (chart.SOURCE_DIR / "docs/GPU.md").read_text(encoding="utf-8")
        for package, pattern in (("nvidia-cuda-nvcc", r"CUDA toolkit (\d+)\.(\d+) or newer"),
                                 ("nvidia-nccl-cu13", r"NCCL (\d+)\.(\d+) or newer"),
                                 ("nvidia-cudnn-cu13", r"(\d+)\.(\d+) or newer, headers to build and libcudnn")):
            least = re.search(pattern, guide)
            self.assertGreaterEqual(versions[package], (int(least[1]), int(least[2])))


if __name__ == "__main__":
    unittest.main(verbosity=2)
