#!/usr/bin/env python3
"""Writes deploy/helm/ringfill/README.md: a table of every value, from the comments of values.yaml.

Usage: tools/chart_readme.py [--check]

With --check nothing is written; exits with 1 when the file is not what would be written, or when a value
has no comment. The comments begin with "# --" on the line above their key.
"""

import pathlib
import re
import sys

CHART = pathlib.Path(__file__).resolve().parents[1] / "deploy/helm/ringfill"
HEAD = """# The ringfill chart

Installs `ringfilld` on Kubernetes 1.28 or newer: on one node as a StatefulSet, on several as a
LeaderWorkerSet. docs/DEPLOYMENT.md is the guide. This file is made by `tools/chart_readme.py` from the
comments of values.yaml; values.schema.json refuses what does not fit.

| Value | Default | Meaning |
|---|---|---|
"""


def flat(lines, indent):
    """The map that `lines` begin with, below a key that is so far in, on one line; None if it has blocks in it."""
    found = []
    for line in lines:
        if not line.strip():
            continue
        if len(line) - len(line.lstrip()) <= indent:
            break
        if re.match(r" *[A-Za-z0-9_]+: +\S", line) is None:
            return None
        found.append(line.strip())
    return ", ".join(found) or None


def values(text):
    """(path, default, comment) of every documented key, in order; the default is None where it takes blocks.

    Raises ValueError for a key with a scalar or flow value that neither it nor a parent documents.
    """
    found = []
    stack = []  # (indent, key, documented) of the open maps
    comment = None
    lines = text.splitlines()
    for number, line in enumerate(lines, 1):
        stripped = line.strip()
        if stripped.startswith("#"):
            body = stripped[1:].strip()
            if body.startswith("-- "):
                comment = body[3:]
            elif comment is not None:
                comment += " " + body
            continue
        match = re.match(r"( *)([A-Za-z0-9_]+):(?: +(.*))?$", line)
        if match is None:  # an item of a list, below a documented key
            comment = None
            continue
        indent, key, default = len(match[1]), match[2], match[3]
        while stack and stack[-1][0] >= indent:
            stack.pop()
        covered = any(documented for _, _, documented in stack)
        path = ".".join([name for _, name, _ in stack] + [key])
        if comment is not None:
            found.append((path, default or flat(lines[number:], indent), comment))
        elif default is not None and not covered:
            raise ValueError(f"values.yaml:{number}: {path} has no comment (# -- ...)")
        stack.append((indent, key, comment is not None))
        comment = None
    return found


def table(text):
    rows = ""
    for path, default, comment in values(text):
        shown = f"`{default}`" if default is not None else "see values.yaml"
        rows += f"| `{path}` | {shown.replace('|', chr(92) + '|')} | {comment.replace('|', chr(92) + '|')} |\n"
    return HEAD + rows


def main():
    wanted = table((CHART / "values.yaml").read_text(encoding="utf-8"))
    readme = CHART / "README.md"
    if sys.argv[1:] == ["--check"]:
        if not readme.exists() or readme.read_text(encoding="utf-8") != wanted:
            sys.exit(f"{readme} is not current; run tools/chart_readme.py")
    elif sys.argv[1:]:
        sys.exit(__doc__)
    else:
        readme.write_text(wanted, encoding="utf-8")


if __name__ == "__main__":
    main()
