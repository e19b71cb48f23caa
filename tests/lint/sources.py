"""The project's own files, for the checks beside this one. Works without git, in any checkout."""

import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("base", "kvcache", "engine", "server", "cli", "tests", "bench", "tools", "cmake", "proto",
           "config", "deploy", "docs", "packaging")
SKIPPED = 77  # SKIP_RETURN_CODE in CMakeLists.txt


def files(*suffixes, root=ROOT, folders=FOLDERS):
    """Paths with one of these suffixes, sorted."""
    found = []
    for folder in folders:
        found += [path for path in (root / folder).rglob("*")
                  if path.suffix in suffixes and path.is_file() and "__pycache__" not in path.parts]
    return sorted(found)


def includes(path):
    """(line number, included name) of every include with quotes."""
    pattern = re.compile(r'\s*#\s*include\s*"([^"]+)"')
    lines = path.read_text(encoding="utf-8").splitlines()
    return [(number, match[1]) for number, line in enumerate(lines, 1)
            if (match := pattern.match(line))]
