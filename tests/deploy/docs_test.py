"""The commands of docs/DEPLOYMENT.md work with the chart, as far as they do without a cluster."""

import re
import shlex
import subprocess
import sys
import unittest

import yaml

import chart


def commands():
    """Every command of a code block, as arguments."""
    text = (chart.SOURCE_DIR / "docs/DEPLOYMENT.md").read_text(encoding="utf-8")
    for block in re.findall(r"^```\n(.*?)^```$", text, re.MULTILINE | re.DOTALL):
        for line in block.replace("\\\n", " ").splitlines():
            yield shlex.split(line.rstrip(" &"))


def run(*arguments):
    return subprocess.run(arguments, cwd=chart.SOURCE_DIR, capture_output=True, text=True, timeout=60,
                          check=False)


class Commands(unittest.TestCase):
    def check_helm(self, arguments):
        if arguments[1] not in ("install", "upgrade"):
            self.assertIn(arguments[1], ("test", "rollback", "history"))
            known = run(chart.HELM, *arguments[1:], "--help").stdout
            for flag in re.findall(r"--[\w-]+", " ".join(arguments)):
                self.assertIn(flag, known)
            return
        extra = []
        for flag in ("--reuse-values", "--reset-then-reuse-values"):
            if flag in arguments:
                arguments.remove(flag)
                self.assertIn(flag, run(chart.HELM, "upgrade", "--help").stdout)
                extra = ["--set", "model.pvc.claimName=models", "--set", "image.repository=ringfill/ringfilld"]
        result = run(chart.HELM, "template", *arguments[2:], *extra, "--kube-version", chart.NEWEST)
        self.assertEqual(result.returncode, 0, result.stderr)

    def check_kubectl(self, arguments):
        dry = {"secret": ["--dry-run=client", "--output=yaml"], "namespace": ["--dry-run=client"]}
        for kind, flags in dry.items():
            if "create" in arguments and kind in arguments:
                result = run(str(chart.TOOLS / "bin/kubectl"), *arguments[1:], *flags)
                self.assertEqual(result.returncode, 0, result.stderr)
                return
        # Without a cluster, only what the flags are.
        result = run(str(chart.TOOLS / "bin/kubectl"), *arguments[1:], "--server=http://127.0.0.1:1",
                     "--request-timeout=1s")
        self.assertNotIn("unknown", result.stderr)
        self.assertIn("refused", result.stderr)

    def check_ringfill(self, arguments):
        result = run(str(chart.BIN_DIR / "ringfill"), "--connect-timeout", "0.2",
                     *[text.replace("document.txt", "README.md").replace("50051", "1")
                       for text in arguments[1:]])
        self.assertEqual(result.returncode, 4, result.stderr)  # no daemon answers

    def check_docker(self, arguments):
        """Names and numbers; what can be run of it is, in image_test.py."""
        if arguments[1] not in ("build", "run"):
            self.assertIn("ringfilld", " ".join(arguments[2:]))
            return
        options = dict(zip(arguments, arguments[1:]))
        values = yaml.safe_load((chart.CHART / "values.yaml").read_text(encoding="utf-8"))
        version = yaml.safe_load((chart.CHART / "Chart.yaml").read_text(encoding="utf-8"))["appVersion"]
        image = f"ringfill/ringfilld:{version}"
        if arguments[1] == "build":
            self.assertTrue((chart.SOURCE_DIR / options["--file"]).exists())
            self.assertEqual(options["--tag"], image + ("-cuda" if "VARIANT=cuda" in arguments else ""))
            return
        self.assertEqual(arguments[-1], image)
        context = values["podSecurityContext"]
        self.assertEqual(options["--user"], f"{context['runAsUser']}:{context['runAsGroup']}")
        for name in ("service", "metrics"):
            self.assertIn("127.0.0.1:{0}:{0}".format(values[name]["port"]), arguments)
        self.assertGreater(int(options["--stop-timeout"]), values["config"]["server"]["drain_timeout_s"])

    def test_each(self):
        seen = set()
        for arguments in commands():
            seen.add(arguments[0])
            with self.subTest(command=" ".join(arguments)):
                getattr(self, f"check_{arguments[0]}")(arguments)
        self.assertEqual(seen, {"docker", "helm", "kubectl", "ringfill"})

    def test_objects_have_the_names_that_are_said(self):
        objects = chart.render("cpu")
        result = run(chart.HELM, "template", "llm", str(chart.CHART), "--values", str(chart.VALUES / "cpu.yaml"))
        for name in ("llm-ringfill", "llm-ringfill-pods"):
            self.assertIn(f"name: {name}\n", result.stdout)
        labels = chart.daemon(objects)[0]["metadata"]["labels"]
        self.assertEqual(labels["app.kubernetes.io/component"], "daemon")


if __name__ == "__main__":
    if not (chart.BIN_DIR / "ringfill").exists():
        print(f"SKIPPED: no {chart.BIN_DIR}/ringfill")
        sys.exit(chart.SKIPPED)
    unittest.main(verbosity=2)
