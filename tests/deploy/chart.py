"""The chart as helm renders it, for the tests beside this one. with_tools.py starts them."""

import concurrent.futures
import os
import pathlib
import subprocess

import yaml

SOURCE_DIR = pathlib.Path(__file__).resolve().parents[2]
CHART = SOURCE_DIR / "deploy/helm/ringfill"
VALUES = SOURCE_DIR / "tests/deploy/values"
TOOLS = pathlib.Path(os.environ["RINGFILL_DEPLOY_TOOLS"])
HELM = str(TOOLS / "bin/helm")
ENVOY = str(TOOLS / "bin/envoy")
BIN_DIR = pathlib.Path(os.environ.get("RINGFILL_BIN_DIR", SOURCE_DIR / "build/release/bin"))
SKIPPED = 77  # SKIP_RETURN_CODE in CMakeLists.txt

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


def template(values, version=NEWEST, chart=CHART):
    """helm's answer; `values` is the name of a value set, or a path."""
    path = values if isinstance(values, pathlib.Path) else VALUES / f"{values}.yaml"
    return helm("template", "ring", str(chart), "--namespace", "llm", "--values", str(path),
                "--kube-version", version)


def render(values, version=NEWEST, chart=CHART):
    """The objects."""
    result = template(values, version, chart)
    if result.returncode != 0:
        raise AssertionError(f"{values} on {version}: {result.stderr}")
    return [item for item in yaml.load_all(result.stdout, yaml.CSafeLoader) if item is not None]


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
