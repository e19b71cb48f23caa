"""`cmake --install` of the release tree: every file in its place, and what is installed works."""

import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

SOURCE_DIR = pathlib.Path(__file__).resolve().parents[2]
BUILD_DIR = pathlib.Path(os.environ.get("RINGFILL_BUILD_DIR", SOURCE_DIR / "build/release"))

FILES = {
    "daemon": {
        "etc/ringfill/ringfill.yaml",
        "usr/bin/ringfilld",
        "usr/lib/systemd/system/ringfilld.service",
        "usr/share/man/man8/ringfilld.8.gz",
        "usr/share/man/man8/ringfilld-replay.8.gz",
        "usr/share/man/man8/ringfilld-worker.8.gz",
    },
    "cli": {
        "usr/bin/ringfill",
        "usr/share/bash-completion/completions/ringfill",
        "usr/share/fish/vendor_completions.d/ringfill.fish",
        "usr/share/man/man1/ringfill.1.gz",
        "usr/share/zsh/vendor-completions/_ringfill",
    },
    "doc": {
        "usr/share/doc/ringfill/README.md",
        "usr/share/doc/ringfill/examples/default.yaml",
        "usr/share/doc/ringfill/examples/nvidia.conf",
        "usr/share/doc/ringfill/examples/proto/ringfill/v1/ringfill.proto",
        "usr/share/doc/ringfill/docs/CHART.md",
        *(f"usr/share/doc/ringfill/docs/{path.name}" for path in (SOURCE_DIR / "docs").glob("*.md")),
        *(f"usr/share/doc/ringfill/examples/{kind}/{path.name}" for kind in ("alerts", "dashboards")
          for path in (SOURCE_DIR / "deploy/helm/ringfill/files" / kind).iterdir()),
    },
}


def run(*command, **options):
    """Output of a command that succeeds and says nothing on standard error."""
    result = subprocess.run(command, capture_output=True, text=True, check=False, **options)
    if result.returncode != 0 or result.stderr:
        raise AssertionError(f"{command} exited with {result.returncode}: {result.stderr}")
    return result.stdout


def install(stage, *arguments, prefix="/usr"):
    run("cmake", "--install", str(BUILD_DIR), "--prefix", prefix, *arguments,
        env={**os.environ, "DESTDIR": str(stage)})


def files_under(stage):
    return {path.relative_to(stage).as_posix() for path in stage.rglob("*") if not path.is_dir()}


class Install(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory(prefix="ringfill-install-")
        cls.stage = pathlib.Path(cls.folder.name) / "stage"
        install(cls.stage)

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def needs(self, tool):
        if shutil.which(tool) is None:
            self.skipTest(f"no {tool}")

    def test_every_file_is_where_it_belongs(self):
        self.assertEqual(files_under(self.stage), set.union(*FILES.values()))
        for path in self.stage.rglob("*"):
            if path.is_file():
                mode = 0o755 if path.parent.name == "bin" else 0o644
                self.assertEqual(path.stat().st_mode & 0o777, mode, path)

    def test_components(self):
        for component, files in FILES.items():
            stage = pathlib.Path(self.folder.name) / component
            install(stage, "--component", component)
            self.assertEqual(files_under(stage), files, component)

    def test_another_prefix_keeps_to_itself(self):
        stage = pathlib.Path(self.folder.name) / "opt"
        install(stage, "--component", "daemon", prefix="/opt/ringfill")
        self.assertEqual({path.split("/")[0] for path in files_under(stage)}, {"opt"})
        unit = (stage / "opt/ringfill/lib/systemd/system/ringfilld.service").read_text()
        self.assertIn("ExecStart=/opt/ringfill/bin/ringfilld --config "
                      "/opt/ringfill/etc/ringfill/ringfill.yaml\n", unit)
        self.assertTrue((stage / "opt/ringfill/etc/ringfill/ringfill.yaml").is_file())

    def test_the_unit_names_what_is_installed(self):
        unit = (self.stage / "usr/lib/systemd/system/ringfilld.service").read_text()
        command = re.search(r"^ExecStart=(.*)$", unit, re.M)[1].split()
        for path in (command[0], command[2]):
            self.assertTrue((self.stage / path.lstrip("/")).is_file(), path)
        self.assertNotRegex(unit, r"@\w+@")

    def test_links_of_the_documents_lead_to_what_is_installed(self):
        count = 0
        for page in self.stage.glob("usr/share/doc/ringfill/**/*.md"):
            for target in re.findall(r"\]\(([^)\s#]+)[^)\s]*\)", page.read_text(encoding="utf-8")):
                if not re.match(r"[a-z]+:", target):
                    self.assertTrue((page.parent / target).exists(), f"{page}: {target}")
                    count += 1
        self.assertGreater(count, 60)

    def test_programs_run_and_find_their_libraries(self):
        for program in ("ringfilld", "ringfill"):
            path = str(self.stage / "usr/bin" / program)
            self.assertRegex(run(path, "--version"), rf"^{program} \d+\.\d+\.\d+\n$")
            self.assertNotIn("not found", run("ldd", path))

    def test_programs_know_nothing_of_the_build_tree(self):
        for program in ("ringfilld", "ringfill"):
            path = self.stage / "usr/bin" / program
            for line in run("readelf", "-d", str(path)).splitlines():
                if re.search(r"\((RPATH|RUNPATH)\)", line):
                    self.assertNotIn(str(SOURCE_DIR), line)
                    self.assertNotIn(str(BUILD_DIR), line)
                    self.assertNotIn("$ORIGIN", line)
            self.assertNotIn(str(BUILD_DIR).encode(), path.read_bytes())

    def test_the_configuration_is_the_default_but_for_the_model(self):
        program = str(self.stage / "usr/bin/ringfilld")
        yaml = str(self.stage / "etc/ringfill/ringfill.yaml")
        run(program, "--config", yaml, "--check-config")
        default = run(program, "--print-config").splitlines()
        ours = run(program, "--config", yaml, "--print-config").splitlines()
        differing = [line.strip() for line in ours if line not in default]
        self.assertEqual(len(differing), 1, differing)
        self.assertRegex(differing[0], r'^path: "?/var/lib/ringfill/model.gguf"?$')

    def test_completions_parse(self):
        for shell, path, check in (
                ("bash", "bash-completion/completions/ringfill", ("bash", "-n")),
                ("zsh", "zsh/vendor-completions/_ringfill", ("zsh", "-n")),
                ("fish", "fish/vendor_completions.d/ringfill.fish", ("fish", "--no-execute"))):
            with self.subTest(shell):
                script = self.stage / "usr/share" / path
                self.assertEqual(script.read_text(),
                                 run(str(self.stage / "usr/bin/ringfill"), "completion", shell))
                self.needs(shell)
                run(*check, str(script))

    def test_bash_completes(self):
        script = self.stage / "usr/share/bash-completion/completions/ringfill"
        out = run("bash", "-c", f"source {script}; COMP_WORDS=(ringfill gen); COMP_CWORD=1; "
                  "_ringfill; echo ${COMPREPLY[@]}")
        self.assertEqual(out, "generate\n")

    def test_manual_pages_render_without_a_warning(self):
        self.needs("man")
        for page in self.stage.glob("usr/share/man/man*/*.gz"):
            # As lintian calls it; what it writes is for a terminal.
            run("man", "--warnings", "-E", "UTF-8", "-l", "-Tutf8", "-Z", str(page),
                env={**os.environ, "LC_ALL": "C.UTF-8", "MANROFFSEQ": "", "MANWIDTH": "80"})

    def test_manual_pages_tell_all_that_the_programs_do(self):
        self.needs("man")
        pages = {page.name: run("man", "-l", str(page), env={**os.environ, "MANWIDTH": "200",
                                                            "LC_ALL": "C.UTF-8"})
                 for page in self.stage.glob("usr/share/man/man*/*.gz")}
        for command, page in ((("ringfill",), "ringfill.1.gz"), (("ringfilld",), "ringfilld.8.gz"),
                              (("ringfilld", "worker"), "ringfilld-worker.8.gz"),
                              (("ringfilld", "replay"), "ringfilld-replay.8.gz")):
            asked = [(command[0], *command[1:])]
            top = run(str(self.stage / "usr/bin" / command[0]), *command[1:], "--help")
            if command == ("ringfill",):
                listed = top.split("Subcommands:\n")[1].split("\n\n")[0]
                asked += [("ringfill", line.split()[0]) for line in listed.splitlines()]
                self.assertGreater(len(asked), 5)
            for words in asked:
                text = run(str(self.stage / "usr/bin" / words[0]), *words[1:], "--help")
                wanted = re.findall(r"^ +((?:-h,)?--[a-z-]+)", text, re.M)
                wanted += re.findall(r"^  ([a-z_]+\.[a-z_]+) = ", text, re.M)
                self.assertTrue(wanted)
                for word in wanted:
                    self.assertRegex(pages[page], rf"(?m)^ +{re.escape(word)}(?![\w-])")
                # The first word has another case in one of its places; titles do too.
                about = text.split("Usage:")[0].removeprefix(f"{words[0]}: ")
                about = about.replace("Examples:", "").replace("Exit codes:", "")
                wanted = about.split()[1:]
                self.assertEqual([word for word in wanted if word not in pages[page]], [])
            self.assertIn("EXIT STATUS\n", pages[page])


if __name__ == "__main__":
    unittest.main(verbosity=2)
