"""Every value set renders, on every version of Kubernetes, to what that version's schemas allow."""

import functools
import json
import re
import unittest

import kubernetes_validate
import kubernetes_validate.utils
import yaml

import chart


# It would read the definitions of a version, megabytes of JSON, for every object.
kubernetes_validate.utils.schema_contents = functools.cache(
    kubernetes_validate.utils.schema_contents)


def as_pods(objects):
    """The pods of custom kinds, which have no schema of their own, as plain ones."""
    for where, pod in chart.pod_templates(objects).items():
        if where.startswith("LeaderWorkerSet"):
            name = where.rsplit("/", 1)[1]
            yield {"apiVersion": "v1", "kind": "Pod", "metadata": {**pod["metadata"], "name": name},
                   "spec": pod["spec"]}


def complaints(item, version):
    """What Kubernetes' schemas say of one object, or None."""
    try:
        kubernetes_validate.validate(item, version, strict=True)
    except kubernetes_validate.ValidationError as error:
        return f"{'.'.join(str(part) for part in error.path)}: {error.message}"
    except kubernetes_validate.SchemaNotFoundError as error:
        return None if item["kind"] in chart.CUSTOM_KINDS else str(error)
    return None


class Rendering(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.rendered = chart.render_all(
            [(name, version) for name in chart.value_sets() for version in chart.versions(name)])

    def test_enough_value_sets(self):
        self.assertGreaterEqual(len(chart.value_sets()), 12)

    def test_lint(self):
        for name in chart.value_sets():
            result = chart.helm("lint", "--strict", str(chart.CHART), "--values",
                                str(chart.VALUES / f"{name}.yaml"), "--kube-version", chart.NEWEST)
            self.assertEqual(result.returncode, 0, f"{name}: {result.stdout}{result.stderr}")

    def test_schemas_of_kubernetes(self):
        checked = {}  # most objects are the same on all versions; schemas are not
        for (name, version), objects in self.rendered.items():
            for item in [*objects, *as_pods(objects)]:
                key = (version, json.dumps(item, sort_keys=True))
                if key not in checked:
                    checked[key] = complaints(item, version)
                self.assertIsNone(checked[key], f"{name} on {version}: {item['kind']}")

    def test_schemas_find_a_mistake(self):
        objects = self.rendered["cpu", chart.NEWEST]
        item = chart.only(objects, "StatefulSet")
        broken = yaml.safe_load(yaml.safe_dump(item))
        broken["spec"]["template"]["spec"]["containers"][0]["readinesProbe"] = {}
        self.assertIsNotNone(complaints(broken, chart.NEWEST))
        self.assertIsNone(complaints(item, chart.NEWEST))

    def test_a_release_with_a_dot_has_names_without(self):
        result = chart.helm("template", "a.b", str(chart.CHART), "--values", str(chart.VALUES / "cpu.yaml"))
        self.assertEqual(result.returncode, 0, result.stderr)
        for item in filter(None, yaml.safe_load_all(result.stdout)):
            if item["kind"] in ("Service", "StatefulSet"):
                self.assertRegex(item["metadata"]["name"], "^a-b-ringfill(-[a-z]+)?$")

    def test_names_and_selectors(self):
        """No two objects of one name; Service, budget and policies select pods that exist."""
        for (name, version), objects in self.rendered.items():
            keys = [(item["kind"], item["metadata"]["name"]) for item in objects]
            self.assertEqual(len(keys), len(set(keys)), f"{name} on {version}")
            labels = [pod["metadata"]["labels"] for pod in chart.pod_templates(objects).values()]
            for item in objects:
                selector = {"Service": lambda spec: spec["selector"],
                            "NetworkPolicy": lambda spec: spec["podSelector"]["matchLabels"],
                            "PodDisruptionBudget": lambda spec: spec["selector"]["matchLabels"],
                            "PodMonitor": lambda spec: spec["selector"]["matchLabels"],
                            "StatefulSet": lambda spec: spec["selector"]["matchLabels"]}
                if item["kind"] in selector:
                    wanted = selector[item["kind"]](item["spec"]).items()
                    self.assertTrue(any(wanted <= pod.items() for pod in labels),
                                    f"{name}: {item['kind']} selects nothing")

    def test_ports_exist(self):
        """Named ports of Service and PodMonitor are ports of the daemon's pod."""
        for (name, version), objects in self.rendered.items():
            pod, _ = chart.daemon(objects)
            ports = {port["name"] for container in chart.containers(pod)
                     for port in container.get("ports", [])}
            for item in objects:
                if item["kind"] == "Service":
                    named = {port["targetPort"] for port in item["spec"]["ports"]}
                elif item["kind"] == "PodMonitor":
                    named = {end["port"] for end in item["spec"]["podMetricsEndpoints"]}
                else:
                    continue
                self.assertLessEqual(named, ports, f"{name} on {version}: {item['kind']}")

    def test_targets_of_a_pod_have_labels_of_their_own(self):
        """The operator makes them of pod, port and what relabelings set, never of the path."""
        monitors = [item for objects in self.rendered.values() for item in objects if item["kind"] == "PodMonitor"]
        self.assertNotEqual(monitors, [])
        for item in monitors:
            labels = []
            for end in item["spec"]["podMetricsEndpoints"]:
                set_here = {rule["targetLabel"]: rule["replacement"] for rule in end.get("relabelings", [])}
                labels.append({"endpoint": end["port"], **set_here})
            self.assertEqual(labels, [{"endpoint": "metrics"}, {"endpoint": "envoy"}])

    def test_config_changes_restart_pods(self):
        def checksum(*extra):
            result = chart.helm("template", "ring", str(chart.CHART), "--values", str(chart.VALUES / "cpu.yaml"),
                                *extra)
            objects = list(yaml.safe_load_all(result.stdout))
            return chart.daemon(objects)[0]["metadata"]["annotations"]["checksum/config"]

        plain = checksum()
        self.assertEqual(plain, checksum("--set", "priorityClassName=x"))
        self.assertNotEqual(plain, checksum("--set", "config.log.level=debug"))
        self.assertNotEqual(plain, checksum("--set", "envoy.limits.headersKb=8"))

    def test_alerts_and_dashboards_are_all_there(self):
        objects = self.rendered["monitoring", chart.NEWEST]
        names = {(item["kind"], item["metadata"]["name"]) for item in objects}
        files = {("PrometheusRule", path.stem) for path in (chart.CHART / "files/alerts").glob("*")}
        files |= {("ConfigMap", path.stem) for path in (chart.CHART / "files/dashboards").glob("*")}
        self.assertGreaterEqual(len(files), 2)
        for kind, stem in files:
            self.assertIn((kind, f"ring-ringfill-{stem}"), names)

    def test_what_they_show_is_measured(self):
        """Metrics in alerts and dashboards are documented ones."""
        known = set(re.findall(r"`(\w+)`", (chart.SOURCE_DIR / "docs/metrics.md").read_text(encoding="utf-8")))
        for path in (chart.CHART / "files").glob("*s/*"):
            names = re.findall(r"ringfill_\w+", path.read_text(encoding="utf-8"))
            self.assertNotEqual(names, [], path.name)
            for name in names:
                self.assertIn(re.sub(r"_(bucket|sum|count)$", "", name), known, path.name)
            if path.suffix == ".json":
                json.loads(path.read_text(encoding="utf-8"))

    def test_sidecars_only_where_there_are_some(self):
        """Before 1.29 a native sidecar would be an init container that never ends."""
        for version in chart.KUBERNETES:
            pod, _ = chart.daemon(self.rendered["cpu", version])
            places = [(place, each.get("restartPolicy")) for place in ("initContainers", "containers")
                      for each in pod["spec"].get(place, []) if each["name"] == "envoy"]
            self.assertEqual(places, [("containers", None) if version == "1.28"
                                      else ("initContainers", "Always")])

    def test_leader_worker_set(self):
        """Keys of its API, which has no schema here; what the daemon needs of it."""
        for name in ("multinode", "multinode_gpu", "multinode_download"):
            item = chart.only(self.rendered[name, chart.NEWEST], "LeaderWorkerSet")
            self.assertEqual(item["apiVersion"], "leaderworkerset.x-k8s.io/v1")
            self.assertEqual(set(item["spec"]), {"replicas", "startupPolicy", "leaderWorkerTemplate"})
            # Ready only with its ranks, which must not wait for that.
            self.assertEqual(item["spec"]["startupPolicy"], "LeaderCreated")
            group = item["spec"]["leaderWorkerTemplate"]
            self.assertEqual(set(group), {"size", "restartPolicy", "leaderTemplate", "workerTemplate"})
            self.assertEqual(group["restartPolicy"], "None")
            arguments = group["workerTemplate"]["spec"]["containers"][0]["args"]
            self.assertEqual(arguments[:5], ["worker", "--leader", arguments[2], "--rank",
                                             "$(RINGFILL_RANK)"])
            self.assertRegex(arguments[2], r"^\$\(LWS_LEADER_ADDRESS\):\d+$")

    def test_version_is_the_projects(self):
        text = (chart.SOURCE_DIR / "CMakeLists.txt").read_text(encoding="utf-8")
        meta = yaml.safe_load((chart.CHART / "Chart.yaml").read_text(encoding="utf-8"))
        self.assertIn(f"project(ringfill VERSION {meta['appVersion']} ", text)

    def test_notes_name_the_next_command(self):
        result = chart.helm("install", "ring", str(chart.CHART), "--dry-run=client", "--values",
                            str(chart.VALUES / "no_envoy.yaml"))
        notes = result.stdout.partition("NOTES:")[2]
        self.assertIn("helm test ring", notes, result.stderr)
        self.assertIn("port-forward service/ring-ringfill 50051:50051", notes)
        self.assertIn("WARNING: envoy.enabled is false", notes)


if __name__ == "__main__":
    unittest.main(verbosity=2)
