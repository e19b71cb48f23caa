"""Checks of deploy/docker/Dockerfile as text. Each is a function of it that yields complaints.

They know what the chart and the tree say; nothing is built.
"""

import io
import json
import re

import dockerfile_parse
import yaml

import chart

FOLDER = chart.SOURCE_DIR / "deploy/docker"
PATH = FOLDER / "Dockerfile"
SECRET = re.compile(r"(?i)passw|secret|token|api_?key|private_?key|credential")
LABELS = {f"org.opencontainers.image.{name}" for name in
          ("title", "description", "vendor", "version", "revision", "licenses")} | {
              "org.ringfill.variant", "org.ringfill.grpc.version", "org.ringfill.sbom.path"}


def values():
    return yaml.safe_load((chart.CHART / "values.yaml").read_text(encoding="utf-8"))


class Dockerfile:
    """Its instructions, and those of its last stage."""

    def __init__(self, text):
        parser = dockerfile_parse.DockerfileParser(fileobj=io.BytesIO(text.encode()))
        self.instructions = [(item["instruction"], item["value"]) for item in parser.structure
                             if item["instruction"] != "COMMENT"]
        self.labels = parser.labels
        self.froms = [value for name, value in self.instructions if name == "FROM"]
        starts = [i for i, item in enumerate(self.instructions) if item[0] == "FROM"]
        self.stages = [self.instructions[start + 1:end]
                       for start, end in zip(starts, [*starts[1:], len(self.instructions)])]
        self.final = self.stages[-1]
        # Arguments before the first stage, with their defaults.
        self.arguments = dict(value.split("=", 1) for _, value in self.instructions[:starts[0]])

    def all(self, name):
        return [value for each, value in self.instructions if each == name]

    def last(self, name):
        """The value of an instruction in the last stage; it must be there once."""
        found = [value for each, value in self.final if each == name]
        return found[0] if len(found) == 1 else None


def _list(value):
    """An exec form, else None."""
    try:
        parsed = json.loads(value or "")
    except ValueError:
        return None
    return parsed if isinstance(parsed, list) else None


def user(file):
    context = values()["podSecurityContext"]
    wanted = f"{context['runAsUser']}:{context['runAsGroup']}"
    if file.last("USER") != wanted:
        yield f"USER is {file.last('USER')}, the chart's pods run as {wanted}"
    names = [name for name, _ in file.final]
    if "USER" in names and "RUN" in names[names.index("USER"):]:
        yield "something runs after USER: it is for the image's own process"
    numbers = set(re.findall(r"=(\d+)\\n' FIRST_SYSTEM_UID LAST_SYSTEM_UID FIRST_SYSTEM_GID",
                             "\n".join(file.all("RUN"))))
    if numbers != {str(context["runAsUser"])}:
        yield f"the package's user is {numbers}"


def command(file):
    entry, arguments = _list(file.last("ENTRYPOINT")), _list(file.last("CMD"))
    if entry is None or arguments is None:
        yield "ENTRYPOINT and CMD are in exec form: there may be no shell"
        return
    _, daemon = chart.daemon(chart.render("cpu"))
    if [entry[0].rsplit("/", 1)[-1]] != daemon["command"]:
        yield f"{entry} starts, the chart starts {daemon['command']}"
    if arguments != daemon["args"][:2]:
        yield f"{arguments}, the chart has {daemon['args'][:2]}"


def ports(file):
    wanted = {str(values()[name]["port"]) for name in ("service", "metrics")}
    found = set((file.last("EXPOSE") or "").split())
    if found != wanted:
        yield f"EXPOSE {found}, the chart has {wanted}"


def labels(file):
    for name in LABELS - set(file.labels):
        yield f"no label {name}"
    version = yaml.safe_load((chart.CHART / "Chart.yaml").read_text(encoding="utf-8"))["appVersion"]
    project = re.search(r"project\(ringfill VERSION (\S+) ",
                        (chart.SOURCE_DIR / "CMakeLists.txt").read_text(encoding="utf-8"))[1]
    if not file.arguments.get("VERSION") == version == project:
        yield f"VERSION is {file.arguments.get('VERSION')}, the chart's {version}, CMake's {project}"


def bases(file):
    """One base from outside, by an argument, with a tag or digest that says what it is."""
    stages = set()
    for value in file.froms:
        words = value.split()
        if words[0] not in stages | {"${DEBIAN}"}:
            yield f"FROM {words[0]}: neither a stage nor DEBIAN"
        if len(words) == 3:
            stages.add(words[2])
    base = file.arguments.get("DEBIAN", "")
    if not re.search(r"@sha256:[0-9a-f]{64}$|:(?!latest$)[^:/]+$", base) or base.count("/") != 2:
        yield f"DEBIAN is {base!r}: give registry, repository and a tag"


def arguments(file):
    """An argument is known in the stages that declare it, and nothing where they do not."""
    for stage in file.stages:
        declared = {value.split("=")[0] for name, value in stage if name == "ARG"}
        for name, value in stage:
            used = set(re.findall(r"\$\{([A-Z_]+)\}", value)) if name in ("RUN", "LABEL", "COPY") else set()
            for each in used - declared:
                yield f"{name} uses {each}, which its stage does not declare"
    # Scripts read theirs from the environment.
    for script, names in (("dependencies.sh", {"VARIANT"}), ("build.sh", {"VARIANT", "VERSION", "GRPC_VERSION"})):
        for stage in file.stages:
            declared = set()
            for name, value in stage:
                if name == "ARG":
                    declared.add(value.split("=")[0])
                elif name == "RUN" and script in value and names - declared:
                    yield f"{script} runs without {names - declared}"


def from_outside(file):
    """Files come from the context and from packages that their installer verifies."""
    if file.all("ADD"):
        yield "ADD: COPY takes no URLs and unpacks nothing"
    for value in file.all("COPY"):
        if re.search(r"://", value):
            yield f"COPY {value}"
    for value in file.all("RUN"):
        if re.search(r"\b(curl|wget|git clone)\b|://", value):
            yield f"RUN fetches: {value[:60]}"


def secrets(file):
    for name in ("ENV", "ARG", "LABEL"):
        for value in file.all(name):
            if SECRET.search(value):
                yield f"{name} {value}: it would stay in the image's history"


def small(file):
    """The last image has nothing to compile with, no lists of apt and no way to become root."""
    if not file.froms[-1].startswith("runtime"):
        yield "the last stage is not of the one with run-time libraries"
    runtime = "\n".join(file.all("RUN"))
    for wanted in ("--no-install-recommends", "rm -rf /var/lib/apt/lists/*", "-perm /6000 -exec chmod ug-s"):
        if wanted not in runtime:
            yield f"no {wanted}"


CHECKS = (user, command, ports, labels, bases, arguments, from_outside, secrets, small)
