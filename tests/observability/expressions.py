"""What dashboards, rules and documentation ask Prometheus for, as the tests beside this one read it."""

import json
import os
import pathlib
import re
import shutil
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FILES = ROOT / "deploy/helm/ringfill/files"
ALERTS = FILES / "alerts/ringfill.yaml"
RULE_TESTS = ROOT / "tests/observability/rules"
SKIPPED = 77  # SKIP_RETURN_CODE in CMakeLists.txt


def need(*programs):
    """Fetches those that are not in the PATH, or skips visibly."""
    if all(shutil.which(program) for program in programs):
        return
    fetched = subprocess.run([ROOT / "tools/fetch_prometheus.sh"], stdout=subprocess.PIPE, stdin=subprocess.DEVNULL,
                             text=True, check=False)
    if fetched.returncode != 0:
        print(f"SKIPPED: tools/fetch_prometheus.sh could not fetch {' and '.join(programs)}")
        sys.exit(SKIPPED)
    os.environ["PATH"] = f"{fetched.stdout.strip()}{os.pathsep}{os.environ['PATH']}"


def dashboards():
    """By file name."""
    return {path.name: json.loads(path.read_text(encoding="utf-8"))
            for path in sorted((FILES / "dashboards").glob("*.json"))}


def panel_expressions():
    """(where, expression) of every target."""
    return [(f"{name}: {panel['title']}", target["expr"])
            for name, board in dashboards().items() for panel in board["panels"] for target in panel["targets"]]


def rules():
    """The rules of the alerts' file, which is written in one plain way: a value is on the line of its key, or folded."""
    text = re.sub(r": >-\n(( {10}.*\n)+)", lambda match: ": " + " ".join(match[1].split()) + "\n",
                  ALERTS.read_text(encoding="utf-8"))
    found = []
    for line in text.splitlines():
        if match := re.fullmatch(r"      - (alert|record): (\S+)", line):
            found.append({"kind": match[1], "name": match[2]})
        elif match := re.fullmatch(r" {8,10}(\w+): (.+)", line):
            found[-1][match[1]] = match[2].strip('"')
    return found


def documented_expressions():
    """(question, expression) of docs/metrics.md."""
    text = (ROOT / "docs/metrics.md").read_text(encoding="utf-8").split("## Useful expressions", 1)[1]
    return [(match[1], match[2].replace("\\|", "|"))
            for match in re.finditer(r"^\| ([^|]+) \| `(.+)` \|$", text, re.MULTILINE)]


def with_window(expression, window):
    """Ranges shortened to what a test has seen."""
    return re.sub(r"\[(\$__rate_interval|\d+[smhd])\]", f"[{window}]", expression)


def without_thresholds(expression):
    """Comparisons that give 0 or 1 instead of leaving series out."""
    return re.sub(r" (>=|<=|==|!=|>|<) ", r" \1 bool ", expression)
