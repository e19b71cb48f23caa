"""deploy/docker/sbom.py, held to the SPDX tools: of a made-up status file, and of this machine."""

import json
import os
import pathlib
import shutil
import subprocess
import sys
import tempfile
import unittest

from spdx_tools.spdx.parser.parse_anything import parse_file
from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document

import chart

PROGRAM = chart.SOURCE_DIR / "deploy/docker/sbom.py"
STATUS = """\
Package: libc6
Status: install ok installed
Maintainer: GNU Libc Maintainers <debian-glibc@lists.debian.org>
Architecture: amd64
Multi-Arch: same
Source: glibc
Version: 2.36-9+deb12u13
Description: GNU C Library: Shared libraries
 Contains: more of it.
Homepage: https://www.gnu.org/software/libc/libc.html

Package: libc6
Status: install ok installed
Maintainer: GNU Libc Maintainers <debian-glibc@lists.debian.org>
Architecture: i386
Source: glibc
Version: 2.36-9+deb12u13

Package: removed
Status: deinstall ok config-files
Architecture: all
Version: 1.0

Package: libgrpc++1.51
Status: hold ok installed
Maintainer: Nobody in particular
Architecture: amd64
Version: 1:1.51.1-3+b1~x

Package: ringfill
Status: install ok installed
Architecture: amd64
Version: 0.1.0
"""


class Sbom(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        self.status = self.folder / "status"
        self.status.write_text(STATUS, encoding="utf-8")
        self.out = self.folder / "sbom.spdx.json"

    def run_program(self, *arguments, epoch="0"):
        return subprocess.run(
            [sys.executable, str(PROGRAM), "--status", str(self.status), "--name", "ringfill/ringfilld",
             "--version", "0.1.0", "--out", str(self.out), *arguments],
            capture_output=True, text=True, timeout=60, check=False,
            env=dict(os.environ, SOURCE_DATE_EPOCH=epoch))

    def document(self, *arguments, **options):
        result = self.run_program(*arguments, **options)
        self.assertEqual((result.returncode, result.stderr), (0, ""))
        messages = validate_full_spdx_document(parse_file(str(self.out)))
        self.assertEqual([each.validation_message for each in messages], [])
        return json.loads(self.out.read_text(encoding="utf-8"))

    def urls(self, document):
        return [each["externalRefs"][0]["referenceLocator"] for each in document["packages"]
                if "externalRefs" in each]

    def test_lists_what_is_installed(self):
        document = self.document()
        self.assertEqual(self.urls(document), [
            "pkg:deb/debian/libc6@2.36-9%2Bdeb12u13?arch=amd64&distro=debian-12",
            "pkg:deb/debian/libc6@2.36-9%2Bdeb12u13?arch=i386&distro=debian-12",
            "pkg:deb/debian/libgrpc%2B%2B1.51@1%3A1.51.1-3%2Bb1~x?arch=amd64&distro=debian-12",
            "pkg:deb/ringfill/ringfill@0.1.0?arch=amd64&distro=debian-12"])
        packages = {each["SPDXID"]: each for each in document["packages"]}
        self.assertEqual(len(packages), 5)
        self.assertEqual(packages["SPDXRef-deb-libc6-amd64"]["supplier"],
                         "Organization: GNU Libc Maintainers (debian-glibc@lists.debian.org)")
        contained = {each["relatedSpdxElement"] for each in document["relationships"]
                     if each["relationshipType"] == "CONTAINS"}
        self.assertEqual(contained, packages.keys() - {"SPDXRef-image"})

    def test_lists_python_packages(self):
        folder = self.folder / "wheels/nvidia_nccl_cu13-2.28.9.dist-info"
        folder.mkdir(parents=True)
        (folder / "METADATA").write_text("Metadata-Version: 2.4\nName: nvidia-nccl-cu13\nVersion: 2.28.9\n"
                                         "Author: Nvidia\n\nVersion: 7 of the text\n", encoding="utf-8")
        urls = self.urls(self.document("--wheels", str(folder.parent)))
        self.assertEqual((len(urls), urls[-1]), (5, "pkg:pypi/nvidia-nccl-cu13@2.28.9"))

    def test_the_same_twice_is_the_same(self):
        first = self.document()
        self.assertEqual(first, self.document())
        self.assertNotEqual(first["documentNamespace"], self.document(epoch="1")["documentNamespace"])

    def test_nothing_installed_is_an_error(self):
        self.status.write_text("Package: x\nStatus: purge ok not-installed\n", encoding="utf-8")
        result = self.run_program()
        self.assertEqual(result.returncode, 2)
        self.assertIn("lists no installed package", result.stderr)
        self.assertFalse(self.out.exists())

    @unittest.skipUnless(shutil.which("dpkg-query"), "no dpkg")
    def test_this_machine(self):
        self.status = pathlib.Path("/var/lib/dpkg/status")
        document = self.document()
        listed = subprocess.run(["dpkg-query", "--show", "--showformat",
                                 "${db:Status-Status} ${Package} ${Version} ${Architecture}\\n"],
                                check=True, capture_output=True, text=True).stdout
        wanted = {tuple(line.split()[1:]) for line in listed.splitlines() if line.startswith("installed ")}
        found = {(each["name"], each["versionInfo"]) for each in document["packages"]}
        self.assertEqual(found - {("ringfill/ringfilld", "0.1.0")}, {each[:2] for each in wanted})
        self.assertEqual(len(document["packages"]), len(wanted) + 1)


if __name__ == "__main__":
    unittest.main(verbosity=2)
