"""checkov finds nothing in any rendering but what checkov_exceptions.txt argues for."""

import fnmatch
import json
import os
import pathlib
import subprocess
import tempfile
import unittest

import yaml

import chart

EXCEPTIONS = pathlib.Path(__file__).with_name("checkov_exceptions.txt")
# Left out on purpose there.
WITHOUT = {"bare"}


def exceptions():
    """[(check, pattern of resources)]; a line without a reason is an error."""
    lines = EXCEPTIONS.read_text(encoding="utf-8").splitlines()
    found = []
    for line in lines:
        if not line.startswith("#"):
            what, reason = line.split(": ", 1)
            assert len(reason) > 20, line
            found.append(tuple(what.split(" ")))
    return found


def excepts(exception, entry):
    return exception[0] == entry[1] and fnmatch.fnmatchcase(entry[2], exception[1])


def plain(objects):
    """Objects that checkov knows: the pods of a LeaderWorkerSet as pods."""
    for item in objects:
        if item["kind"] not in chart.CUSTOM_KINDS:
            yield item
    for where, pod in chart.pod_templates(objects).items():
        if where.startswith("LeaderWorkerSet"):
            name = where.rsplit("/", 1)[1]
            yield {"apiVersion": "v1", "kind": "Pod", "spec": pod["spec"],
                   "metadata": {**pod["metadata"], "name": name, "namespace": "llm"}}


def failed_checks(folder):
    """[(file, check, resource, text)]; checkov is slow to start, so that it runs once for a folder."""
    # It must not ask its maker's servers.
    environment = dict(os.environ, CHECKOV_RUN_SCA_PACKAGE_SCAN="false", LOG_LEVEL="ERROR")
    result = subprocess.run(
        [str(chart.TOOLS / "venv/bin/checkov"), "--directory", str(folder), "--framework", "kubernetes",
         "--compact", "--quiet", "--skip-download", "--output", "json", "--soft-fail"],
        capture_output=True, text=True, timeout=300, check=False, env=environment)
    report = json.loads(result.stdout)
    return [(pathlib.PurePath(check["file_path"]).stem, check["check_id"], check["resource"],
             check["check_name"]) for check in report["results"]["failed_checks"]]


class Checkov(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        jobs = [(name, chart.NEWEST) for name in chart.value_sets() if name not in WITHOUT]
        with tempfile.TemporaryDirectory() as folder:
            for (name, _), objects in chart.render_all(jobs).items():
                with open(f"{folder}/{name}.yaml", "w", encoding="utf-8") as file:
                    yaml.dump_all(plain(objects), file, Dumper=yaml.CSafeDumper)
            broken = list(plain(chart.render("cpu")))
            pod = chart.only(broken, "StatefulSet")["spec"]["template"]["spec"]
            pod["containers"][0]["securityContext"]["privileged"] = True
            del pod["containers"][0]["livenessProbe"]
            with open(f"{folder}/broken.yaml", "w", encoding="utf-8") as file:
                yaml.dump_all(broken, file, Dumper=yaml.CSafeDumper)
            cls.failed = failed_checks(folder)

    def test_nothing_but_the_exceptions(self):
        found = [entry for entry in self.failed if entry[0] != "broken"
                 and not any(excepts(each, entry) for each in exceptions())]
        self.assertEqual(found, [], "\n".join(map(str, found)))

    def test_every_exception_is_needed(self):
        for each in exceptions():
            self.assertTrue(any(excepts(each, entry) for entry in self.failed), f"{each} is not")

    def test_it_finds_what_is_broken(self):
        found = {check for name, check, _, _ in self.failed if name == "broken"}
        self.assertLessEqual({"CKV_K8S_16", "CKV_K8S_8"}, found)


if __name__ == "__main__":
    unittest.main(verbosity=2)
