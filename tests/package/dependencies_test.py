"""What tools/install_dependencies.sh installs, with all that it depends on, starts no service."""

import pathlib
import re
import shutil
import subprocess
import sys
import unittest

SKIPPED = 77  # SKIP_RETURN_CODE in CMakeLists.txt
INSTALL = pathlib.Path(__file__).resolve().parents[2] / "tools/install_dependencies.sh"
STARTED = re.compile(r"/systemd/(system|user)/[^/]+\.(service|socket|timer|path)$|^/etc/init\.d/[^/]+$")
# Of Debian itself, and an index of manual pages that is renewed by night: jobs that end.
JOBS = {"apt", "dpkg", "libpam-modules-bin", "man-db", "procps"}


def output(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=60).stdout


def with_dependencies(packages):
    """Those of them that are installed, and all that they need."""
    kinds = ("suggests", "recommends", "conflicts", "breaks", "replaces", "enhances")
    text = output("apt-cache", "depends", "--recurse", "--installed", *[f"--no-{kind}" for kind in kinds], *packages)
    return set(re.findall(r"^([a-z0-9][a-z0-9.+:-]*)$", text, re.MULTILINE))


def started_by(package):
    """Files of a package that start something."""
    return [line for line in output("dpkg-query", "--listfiles", package).splitlines() if STARTED.search(line)]


class Dependencies(unittest.TestCase):
    def test_start_nothing_that_stays(self):
        listed = output(INSTALL, "--test", "--package", "--list").split()
        self.assertGreater(len(listed), 30)
        self.assertLess(set(output(INSTALL, "--list").split()), set(listed))
        known = set(output("dpkg-query", "--show", "--showformat", "${Package}\\n").split())
        closure = with_dependencies(sorted(set(listed) & known)) & known
        self.assertGreater(len(closure), len(listed))
        found = {package: files for package in sorted(closure) if (files := started_by(package))}
        self.assertEqual({package: files for package, files in found.items() if package not in JOBS}, {})

    def test_a_service_would_be_seen(self):
        self.assertTrue(STARTED.search("/lib/systemd/system/prometheus.service"))
        self.assertTrue(STARTED.search("/etc/init.d/prometheus"))
        self.assertFalse(STARTED.search("/usr/share/doc/prometheus/copyright"))
        self.assertNotEqual(started_by("apt"), [])


if __name__ == "__main__":
    if shutil.which("apt-cache") is None or shutil.which("dpkg-query") is None:
        print("SKIPPED: no apt and dpkg")
        sys.exit(SKIPPED)
    unittest.main(verbosity=2)
