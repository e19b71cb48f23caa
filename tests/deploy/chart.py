"""The chart as helm renders it, for the tests beside this one. with_tools.py starts them."""

import concurrent.futures
import functools
import hashlib
import os
import pathlib
import shutil
import subprocess
import threading

import yaml

SOURCE_DIR = pathlib.Path(__file__).resolve().parents[2]
CHART = SOURCE_DIR / "deploy/helm/ringfill"
VALUES = SOURCE_DIR / "tests/deploy/values"
TOOLS = pathlib.Path(os.environ["RINGFILL_DEPLOY_TOOLS"])
HELM = str(TOOLS / "bin/helm")
ENVOY = str(TOOLS / "bin/envoy")
BIN_DIR = pathlib.Path(os.environ.get("RINGFILL_BIN_DIR", SOURCE_DIR / "build/release/bin"))
SKIPPED = 77  # SKIP_RETURN_CODE in CMakeLists.txt
# What tests before this one have rendered of the same files; none where the variable is not set.
RENDERED = os.environ.get("RINGFILL_RENDERED")

KUBERNETES = [f"1.{minor}" for minor in range(28, 38)]
NEWEST = KUBERNETES[-1]
# Image volumes.
LEAST_VERSION = {"image_volume": "1.31"}
# Of operators that a cluster may have; Kubernetes publishes no schema for them.
CUSTOM_KINDS = {"LeaderWorkerSet", "PodMonitor", "PrometheusRule"}


def value_sets():
    """Names of the files in values/."""
    return sorted(path.stem for path in VALUES.glob("*.yaml"))


def versions(name):
    """Versions of Kubernetes on which a value set renders."""
    return KUBERNETES[KUBERNETES.index(LEAST_VERSION.get(name, KUBERNETES[0])):]


def helm(*arguments, stdin=None):
    return subprocess.run([HELM, *arguments], capture_output=True, text=True, input=stdin,
                          timeout=120, check=False)


def template(values, version=NEWEST):
    """helm's answer; `values` is the name of a value set."""
    return helm("template", "ring", str(CHART), "--namespace", "llm", "--values", str(VALUES / f"{values}.yaml"),
                "--kube-version", version)


@functools.cache
def cache():
    """The folder for renderings of the chart as it is, by which helm; those of another chart are removed."""
    digest = hashlib.sha256(HELM.encode())
    for path in sorted(path for path in CHART.rglob("*") if path.is_file()):
        digest.update(f"{path.relative_to(CHART)}\0{path.stat().st_size}\0".encode() + path.read_bytes())
    folder = pathlib.Path(RENDERED) / digest.hexdigest()
    folder.mkdir(parents=True, exist_ok=True)
    for other in folder.parent.iterdir():
        if other != folder:
            shutil.rmtree(other, ignore_errors=True)
    return folder


def text(values, version):
    """helm's output, or that of a test before."""
    path = None
    if RENDERED:
        digest = hashlib.sha256((VALUES / f"{values}.yaml").read_bytes()).hexdigest()
        path = cache() / f"{values}-{version}-{digest}.yaml"
        if path.is_file():
            return path.read_text(encoding="utf-8")
    result = template(values, version)
    if result.returncode != 0:
        raise AssertionError(f"{values} on {version}: {result.stderr}")
    if path:
        # Under its name only when it is whole: tests run side by side.
        part = path.with_suffix(f".{os.getpid()}-{threading.get_ident()}")
        part.write_text(result.stdout, encoding="utf-8")
        part.rename(path)
    return result.stdout


def render(values, version=NEWEST):
    """The objects."""
    return [item for item in yaml.load_all(text(values, version), yaml.CSafeLoader) if item is not None]


def render_all(jobs):
    """{(value set, version): objects}, two at a time."""
    with concurrent.futures.ThreadPoolExecutor(2) as pool:
        return dict(zip(jobs, pool.map(lambda job: render(*job), jobs)))


def only(objects, kind, name=None):
    """The one object of a kind."""
    found = [item for item in objects if item["kind"] == kind
             and (name is None or item["metadata"]["name"] == name)]
    assert len(found) == 1, f"{len(found)} objects of kind {kind}"
    return found[0]


def pod_templates(objects):
    """{where: pod template} of everything that makes pods."""
    found = {}
    for item in objects:
        where = f"{item['kind']}/{item['metadata']['name']}"
        if item["kind"] == "StatefulSet":
            found[where] = item["spec"]["template"]
        elif item["kind"] == "LeaderWorkerSet":
            group = item["spec"]["leaderWorkerTemplate"]
            found[f"{where}/leader"] = group["leaderTemplate"]
            found[f"{where}/worker"] = group["workerTemplate"]
        elif item["kind"] == "Pod":
            found[where] = item
    return found


def containers(template_):
    """All of a pod, those that start before the others too."""
    return template_["spec"].get("initContainers", []) + template_["spec"]["containers"]


def daemon(objects):
    """(pod template, container) of the daemon."""
    for pod in pod_templates(objects).values():
        for container in pod["spec"]["containers"]:
            if container["name"] == "ringfilld":
                return pod, container
    raise AssertionError("no daemon")


def config_map(objects):
    """The files of the daemon and of Envoy."""
    name = next(volume["configMap"]["name"] for volume in daemon(objects)[0]["spec"]["volumes"]
                if volume["name"] == "config")
    return only(objects, "ConfigMap", name)["data"]
