"""House rules that no compiler checks: file length, banned calls, no test that nobody runs."""

import re
import unittest

import sources

MAX_LINES = 700
CODE = (".h", ".cc", ".cu", ".cuh")
# Assembled, so that this file does not break its own rule.
MARKERS = re.compile(r"\b(TO" + r"DO|FIX" + r"ME|XX" + r"X)\b")
BANNED = (
    (re.compile(r"std::regex|#\s*include\s*<regex>"), (), "backtracks without bound; use PCRE2"),
    (re.compile(r"\bgetenv\b"),
     ("server/app/config", "server/app/service_manager", "tests/", "bench/"),
     "the environment is read by the configuration and for the service manager alone"),
    (re.compile(r"^\s*#\s*if\s+0\b"), (), "delete it; git remembers"),
    (re.compile(r"\bDISABLED_|^\s*//\s*TEST(_F|_P)?\("), (), "a test that does not run"),
    (re.compile(r"^\s*#\s*include\s*<cassert>"), (), "use RF_CHECK or a status"),
)


def text_violations(name, text, suffix):
    """What is wrong with one file; `name` is relative to the root."""
    found = []
    lines = text.splitlines()
    if len(lines) > MAX_LINES:
        found.append(f"{name}: {len(lines)} lines, at most {MAX_LINES}")
    for number, line in enumerate(lines, 1):
        if MARKERS.search(line):
            found.append(f"{name}:{number}: a marker of unfinished work")
        if suffix not in CODE:
            continue
        for pattern, exempt, why in BANNED:
            if pattern.search(line) and not name.startswith(exempt):
                found.append(f"{name}:{number}: {line.strip()}: {why}")
    return found


def orphans(root):
    """Test sources that no CMakeLists.txt of their folder names."""
    found = []
    for path in sources.files(".cc", ".py", root=root, folders=("tests",)):
        if not path.stem.endswith("_test"):
            continue
        lists = path.parent / "CMakeLists.txt"
        text = lists.read_text(encoding="utf-8") if lists.exists() else ""
        # Python tests are named without their suffix.
        wanted = path.name if path.suffix == ".cc" else path.stem
        if not re.search(rf"\b{re.escape(wanted)}\b", text):
            found.append(path.relative_to(root).as_posix())
    return found


class SourceRules(unittest.TestCase):
    def test_files(self):
        found = []
        for path in sources.files(*CODE, ".py", ".sh", ".cmake", ".txt", ".proto", ".yaml", ".md"):
            name = path.relative_to(sources.ROOT).as_posix()
            if name.startswith(("tests/data/", "tests/fuzz/corpus")):
                continue
            found += text_violations(name, path.read_text(encoding="utf-8"), path.suffix)
        self.assertEqual(found, [])

    def test_every_test_is_known_to_ctest(self):
        self.assertEqual(orphans(sources.ROOT), [])

    def test_headers_are_included_once(self):
        missing = [path.relative_to(sources.ROOT).as_posix() for path in sources.files(".h")
                   if "#pragma once" not in path.read_text(encoding="utf-8")
                   and not path.name.endswith("-inl.h")]
        self.assertEqual(missing, [])


class Rules(unittest.TestCase):
    """The check itself."""

    def test_refused(self):
        for text in ("std::regex r;", "#include <regex>", 'getenv("HOME")', "#if 0",
                     "TEST(A, DIS" + "ABLED_B) {}", "// TEST(A, B) {", "#include <cassert>",
                     "// TO" + "DO: later", "\n" * (MAX_LINES + 1)):
            self.assertEqual(len(text_violations("engine/a.cc", text, ".cc")), 1, text[:40])

    def test_allowed(self):
        for name, text in (("server/app/config.cc", 'std::getenv("X")'), ("engine/a.cc", "#if 1"),
                           ("engine/a.cc", "\n" * MAX_LINES), ("tests/a_test.cc", "TEST(A, B) {")):
            self.assertEqual(text_violations(name, text, ".cc"), [], text[:40])


if __name__ == "__main__":
    unittest.main()
