"""The project's documents as the tests beside this one read them: sections, links, code, commands."""

import functools
import pathlib
import re

ROOT = pathlib.Path(__file__).resolve().parents[2]
SKIPPED = 77  # SKIP_RETURN_CODE in CMakeLists.txt
SOURCES = ("base", "kvcache", "engine", "server", "cli")
FENCE = re.compile(r"^ *```.*?\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
SPAN = re.compile(r"(`+)(.+?)\1", re.DOTALL)


def paths():
    """Of all documents, relative to the root."""
    found = [ROOT / "README.md", ROOT / "deploy/helm/ringfill/README.md", *(ROOT / "docs").glob("*.md")]
    return sorted(path.relative_to(ROOT).as_posix() for path in found)


@functools.cache
def text(name):
    return (ROOT / name).read_text(encoding="utf-8")


@functools.cache
def prose(name):
    """Without the blocks of code."""
    return FENCE.sub("", text(name))


def blocks(name):
    """What is in each block of code."""
    return FENCE.findall(text(name))


def spans(name):
    """Each piece of code within a line of prose, on one line."""
    return [" ".join(match[2].split()) for match in SPAN.finditer(prose(name))]


def links(name):
    """(file, anchor) of every link that stays in the project; the file is empty for the same one."""
    found = []
    for target in re.findall(r"\]\(([^)\s]+)\)", SPAN.sub("", prose(name))):
        if not re.match(r"[a-z]+:", target):
            file, _, anchor = target.partition("#")
            found.append((file, anchor))
    return found


@functools.cache
def anchors(name):
    """Of the headings, as GitHub makes them."""
    found = set()
    for heading in re.findall(r"^#+ (.+)$", prose(name), re.MULTILINE):
        slug = re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-")
        number = next(n for n in range(100) if (slug if n == 0 else f"{slug}-{n}") not in found)
        found.add(slug if number == 0 else f"{slug}-{number}")
    return found


def config_keys():
    """Of config/default.yaml."""
    keys = set()
    section = ""
    for line in text("config/default.yaml").splitlines():
        if match := re.fullmatch(r"(\w+):", line):
            section = match[1]
        elif match := re.match(r"  (\w+):", line):
            keys.add(f"{section}.{match[1]}")
    return keys


def metrics():
    """Names in the tables of docs/metrics.md; metrics_doc_test holds them to the daemon."""
    return set(re.findall(r"^\| `(\w+)` \|", text("docs/metrics.md"), re.MULTILINE))


@functools.cache
def literals():
    """What the programs can say: string literals, those that follow each other joined, one a line."""
    found = []
    literal = r'"(?:[^"\\\n]|\\.)*"'
    for folder in SOURCES:
        for path in sorted((ROOT / folder).rglob("*")):
            if path.suffix not in (".cc", ".h"):
                continue
            source = re.sub(r"^\s*(//|#).*$", "", path.read_text(encoding="utf-8"), flags=re.MULTILINE)
            for run in re.findall(rf"{literal}(?:\s*{literal})*", source):
                found.append("".join(piece[1:-1] for piece in re.findall(literal, run)))
    return re.sub(r"\\(['\"])", r"\1", "\n".join(found))


def commands(name):
    """Lines of a document's blocks of code that could be commands, without prompts and comments."""
    found = []
    for block in blocks(name):
        lines = block.replace("\\\n", " ").splitlines()
        prompts = any(line.lstrip().startswith("$ ") for line in lines)
        for line in lines:
            if not prompts or line.lstrip().startswith("$ "):  # the others are what it printed
                found.append(re.sub(r"\s#.*$", "", line.strip().removeprefix("$ ")).rstrip(" &"))
    return found
