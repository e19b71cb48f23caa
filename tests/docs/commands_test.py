"""Commands of the documents: those of ringfill run against a daemon, the others' flags are known to the programs."""

import functools
import json
import os
import pathlib
import re
import shlex
import shutil
import subprocess
import sys
import tempfile
import unittest

import documents

sys.path.insert(0, str(documents.ROOT / "tests/e2e"))
import harness  # noqa: E402  pylint: disable=wrong-import-position

ROOT = documents.ROOT
PROGRAMS = ("ringfill", "ringfilld", "ringfill-make-model", "ringfill-cut-model")
# What the examples call a document, and the configurations that are installed elsewhere.
STANDS_FOR = {name: str(ROOT / stands) for name, stands in (
    ("document.txt", "docs/GPU.md"), ("/etc/ringfill/ringfill.yaml", "packaging/ringfill.yaml"),
    ("README.md", "README.md"), ("config/default.yaml", "config/default.yaml"),
    ("config/quickstart.yaml", "config/quickstart.yaml"))}
CONTEXT = 65536


def words(line):
    """A command of ours as (program, arguments), else None."""
    try:
        found = shlex.split(line, comments=True)
    except ValueError:  # prose with an apostrophe, output
        return None
    if found[:1] == ["sudo"]:
        found = found[1:]
    if not found or (len(found) > 1 and not re.match(r"[\w./-]", found[1])):  # a synopsis, a diagram
        return None
    program = found[0].removeprefix("build/release/bin/")
    if program in PROGRAMS or program.startswith(("tools/", "bench/", "build/release/bench/")):
        return program, found[1:]
    return None


def of_all_documents(lines):
    """(document, program, arguments) of the commands among the `lines` of each, each command once."""
    found = {}
    for name in documents.paths():
        for line in lines(name):
            if (command := words(line)) is not None:
                found.setdefault((command[0], *command[1]), (name, *command))
    return found.values()


def flags(arguments):
    return {word.split("=")[0] for word in arguments if re.match(r"--\w", word)}


@functools.cache
def known_flags(program, *subcommand):
    result = subprocess.run([str(harness.BIN_DIR / program), *subcommand, "--help"], capture_output=True, text=True,
                            timeout=20, check=False)
    assert result.returncode == 0, f"{program} {subcommand}: {result.stderr}"
    return set(re.findall(r"(?<!\w)--\w[\w-]*", result.stdout))


def subcommand_of(program, arguments):
    """() or the one word."""
    if program == "ringfilld":
        return tuple(arguments[:1]) if arguments[:1] in (["worker"], ["replay"]) else ()
    if program == "ringfill":
        while arguments and arguments[0] in ("--address", "--timeout", "--connect-timeout"):
            arguments = arguments[2:]
        return tuple(word for word in arguments[:1] if re.fullmatch("[a-z]+", word))
    return ()


class Commands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.addClassCleanup(cls.folder.cleanup)
        cls.model = str(pathlib.Path(cls.folder.name) / "tiny.gguf")
        subprocess.run([harness.BIN_DIR / "ringfill-make-model", "--out", cls.model, "--context", str(CONTEXT)],
                       check=True, capture_output=True, timeout=60)
        cls.settings = ("ranks.count=2", "ranks.backend=cpu", "compute.threads=2")
        daemon = harness.Daemon(*cls.settings, f"model.path={cls.model}")
        cls.daemon = daemon.__enter__()  # pylint: disable=unnecessary-dunder-call
        cls.addClassCleanup(daemon.__exit__, None, None, None)

    def run_program(self, program, *arguments):
        environment = {**os.environ, "RINGFILL_ADDRESS": self.daemon.client.address, "RINGFILL_MODEL": self.model}
        return subprocess.run([str(harness.BIN_DIR / program), *arguments], capture_output=True, text=True, timeout=60,
                              check=False, cwd=self.folder.name, env=environment, stdin=subprocess.DEVNULL)

    def check_flags(self, program, arguments):
        """The programs know them; a script has them in its text."""
        if program in PROGRAMS:
            known = known_flags(program) | known_flags(program, *subcommand_of(program, arguments))
            self.assertLessEqual(flags(arguments), known)
        elif program.startswith("build/release/bench/"):
            self.assertRegex(documents.text("bench/CMakeLists.txt"), rf"\b{program.rsplit('/', 1)[1]}\b")
        else:
            self.assertTrue(os.access(ROOT / program, os.X_OK), program)
            text = documents.text(program) + documents.text("tools/lib.sh")
            self.assertEqual([flag for flag in flags(arguments) if flag not in text], [])

    def check_ringfill(self, arguments):
        subcommand = subcommand_of("ringfill", arguments)
        arguments = arguments[arguments.index(subcommand[0]):] if subcommand else arguments
        busy = None
        if subcommand == ("trace",):
            arguments[arguments.index("--seconds") + 1] = "0.3"
            busy = self.daemon.client.start("generate", "--prompt", "Once", "--ignore-eos", "--max-tokens", "60000")
        if subcommand == ("generate",) and "--max-tokens" not in arguments:
            arguments += ["--max-tokens", "2"]
        try:
            result = self.run_program("ringfill", *[STANDS_FOR.get(word, word) for word in arguments])
            self.assertEqual(result.returncode, 0, result.stderr)
        finally:
            if busy is not None:
                busy.kill()
                busy.communicate(timeout=20)

    def check_ringfilld(self, arguments):
        """What would serve is only checked; workers and replays have what only real ones have."""
        if subcommand_of("ringfilld", arguments):
            return
        arguments = [STANDS_FOR.get(word, word).replace("$RINGFILL_MODEL", self.model) for word in arguments]
        if "--check-config" not in arguments:
            arguments.append("--check-config")
        result = self.run_program("ringfilld", *arguments)
        self.assertEqual((result.returncode, result.stdout), (0, "configuration ok\n"), result.stderr)

    def test_those_in_blocks_work(self):
        ran = []
        for document, program, arguments in of_all_documents(documents.commands):
            with self.subTest(document=document, command=" ".join([program, *arguments])):
                self.check_flags(program, arguments)
                if program in ("ringfill", "ringfilld"):
                    getattr(self, f"check_{program}")(list(arguments))
                ran.append(program)
        wanted = {"ringfill", "ringfilld", "ringfill-cut-model", "tools/quickstart.sh", "tools/test.sh"}
        self.assertLessEqual(wanted, set(ran))
        self.assertGreater(len(ran), 20)

    def test_those_in_text_have_flags_that_are_known(self):
        seen = []
        for document, program, arguments in of_all_documents(documents.spans):
            with self.subTest(document=document, command=" ".join([program, *arguments])):
                if (program in PROGRAMS or arguments) and "COMMAND" not in arguments:
                    self.check_flags(program, arguments)
                    seen.append(program)
        self.assertGreater(len(seen), 25)

    def test_the_synopsis_of_the_readme_has_every_flag(self):
        block = next(block for block in documents.blocks("README.md") if block.startswith("ringfill [--address"))
        parts = re.split(r"^  (\w+) ", block, flags=re.MULTILINE)
        shared = set(re.findall(r"--\w[\w-]*", parts[0]))
        self.assertEqual(shared, known_flags("ringfill") - {"--help", "--version"})
        help_text = self.run_program("ringfill", "--help").stdout
        self.assertEqual(set(parts[1::2]), set(re.findall(r"^  (\w+) +\S", help_text[help_text.index("Subcommands:"):],
                                                          re.MULTILINE)))
        for subcommand, flag_text in zip(parts[1::2], parts[2::2]):
            with self.subTest(subcommand=subcommand):
                named = set(re.findall(r"--\w[\w-]*", flag_text))
                known = known_flags("ringfill", subcommand)
                self.assertLessEqual(named, known)
                if subcommand == "generate":
                    self.assertEqual(known - named - shared, {"--help"})

    @unittest.skipIf(shutil.which("curl") is None, "no curl")
    def test_runbooks_find_their_metrics(self):
        lines = [span for span in documents.spans("docs/RUNBOOKS.md") if span.startswith("curl ")]
        self.assertGreater(len(lines), 3)
        for line in sorted(set(lines)):
            with self.subTest(command=line):
                environment = {**os.environ, "M": self.daemon.metrics_address}
                result = subprocess.run(["bash", "-o", "pipefail", "-c", line], capture_output=True, text=True,
                                        timeout=20, check=False, env=environment)
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertIn("ringfill_", result.stdout)

    def test_status_says_what_the_pages_say_it_does(self):
        status = self.daemon.client.run("status").stdout
        for word in ("compute", "KV cache", "requests", "ring", "busy", "waited", "hidden"):
            self.assertIn(word, status)
        self.assertEqual(json.loads(self.daemon.client.run("status", "--json").stdout)["ring_ranks"], 2)


if __name__ == "__main__":
    for tool in PROGRAMS:
        if not (harness.BIN_DIR / tool).exists():
            print(f"SKIPPED: no {harness.BIN_DIR}/{tool}")
            sys.exit(documents.SKIPPED)
    unittest.main(verbosity=2)
