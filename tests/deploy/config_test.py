"""The real ringfilld accepts its file, and its command line, of every value set."""

import pathlib
import subprocess
import sys
import tempfile
import unittest

import yaml

import chart

RINGFILLD = chart.BIN_DIR / "ringfilld"


def check_config(objects, *extra):
    """ringfilld --check-config with the container's own arguments."""
    _, container = chart.daemon(objects)
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "ringfill.yaml")
        path.write_text(chart.config_map(objects)["ringfill.yaml"], encoding="utf-8")
        arguments = [text.replace("/etc/ringfill/ringfill.yaml", str(path))
                     .replace("$(RINGFILL_CPUS)", "4") for text in container["args"]]
        return subprocess.run([RINGFILLD, *arguments, "--check-config", *extra],
                              capture_output=True, text=True, timeout=60, check=False)


class Config(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.rendered = chart.render_all([(name, chart.NEWEST) for name in chart.value_sets()])

    def config(self, name):
        return yaml.safe_load(chart.config_map(self.rendered[name, chart.NEWEST])["ringfill.yaml"])

    def test_accepted(self):
        for (name, _), objects in self.rendered.items():
            result = check_config(objects)
            self.assertEqual((result.returncode, result.stdout), (0, "configuration ok\n"),
                             f"{name}: {result.stderr}")

    def test_a_mistake_is_seen(self):
        objects = chart.render("cpu")
        files = chart.config_map(objects)
        files["ringfill.yaml"] += "nonsense:\n  key: 1\n"
        self.assertEqual(check_config(objects).returncode, 2)

    def test_loopback_behind_envoy(self):
        for name in chart.value_sets():
            objects = self.rendered[name, chart.NEWEST]
            config = self.config(name)
            behind = "envoy.yaml" in chart.config_map(objects)
            for section in ("server", "metrics"):
                listen = config[section]["listen"]
                if listen:
                    self.assertEqual(listen.startswith("127.0.0.1:"), behind, f"{name}: {section}")

    def test_gpus_are_ranks(self):
        _, container = chart.daemon(self.rendered["gpus_processes", chart.NEWEST])
        for kind in ("requests", "limits"):
            self.assertEqual(container["resources"][kind]["nvidia.com/gpu"], 8)
        ranks = self.config("gpus_processes")["ranks"]
        self.assertEqual((ranks["count"], ranks["backend"]), (8, "cuda"))
        self.assertNotIn("memory_bytes", self.config("gpus_processes")["kv"])
        self.assertEqual(self.config("cpu")["ranks"]["backend"], "cpu")

    def test_kv_memory_of_several_nodes_follows_the_limit(self):
        for name, wanted in (("multinode", 3 * (2 << 30)), ("multinode_download", 2 * 8000000000 // 4),
                             ("every_key", 1 << 40)):
            self.assertEqual(self.config(name)["kv"]["memory_bytes"], wanted, name)
        # One pod: the daemon sees the limit itself. A GPU's memory is the rank's to ask.
        for name in ("cpu", "no_envoy", "gpu", "multinode_gpu"):
            self.assertNotIn("memory_bytes", self.config(name).get("kv", {}), name)

    def test_a_rank_has_room_for_its_share(self):
        for limit, wanted in (("1536Mi", 1536 << 20), ("1.5Gi", 1536 << 20), ("8000M", 8000000000), ("8e9", None),
                              ("1000000001", 1000000001), ("2.25T", 2250000000000)):
            result = chart.helm("template", "ring", str(chart.CHART), "--values", str(chart.VALUES / "multinode.yaml"),
                                "--set-string", f"resources.limits.memory={limit}")
            with self.subTest(limit=limit):
                if wanted is None:
                    self.assertIn("/resources/limits/memory", result.stderr)
                    continue
                objects = [item for item in yaml.safe_load_all(result.stdout) if item]
                config = yaml.safe_load(chart.config_map(objects)["ringfill.yaml"])
                share = config["kv"]["memory_bytes"] / config["ranks"]["count"]
                self.assertLessEqual(share, wanted)
                self.assertEqual(share, wanted // 4)

    def test_threads_follow_the_limit(self):
        for name, wanted in (("cpu", True), ("every_key", False)):
            _, container = chart.daemon(self.rendered[name, chart.NEWEST])
            self.assertEqual("compute.threads=$(RINGFILL_CPUS)" in container["args"], wanted, name)
            # The kubelet leaves a reference to what comes later, or never, as it is.
            self.assertIn("RINGFILL_CPUS", [item["name"] for item in container["env"]])

    def test_several_nodes(self):
        ring = self.config("multinode_gpu")["ring"]
        self.assertEqual((ring["listen"], ring["transport"], ring["start_workers"]),
                         ("0.0.0.0:7001", "processes", False))
        self.assertEqual(self.config("ipv6")["ring"]["listen"], "[::]:7000")
        spec = chart.only(self.rendered["multinode_gpu", chart.NEWEST], "LeaderWorkerSet")["spec"]
        group = spec["leaderWorkerTemplate"]
        self.assertEqual((spec["replicas"], group["size"]), (2, 4))
        for pod, names in (("leaderTemplate", ["ringfilld", "rank"]), ("workerTemplate", ["rank"])):
            found = group[pod]["spec"]["containers"]
            self.assertEqual([each["name"] for each in found], names)
            self.assertEqual(found[-1]["resources"]["limits"]["nvidia.com/gpu"], 1)
        self.assertNotIn("nvidia.com/gpu",
                         group["leaderTemplate"]["spec"]["containers"][0]["resources"]["limits"])


if __name__ == "__main__":
    if not RINGFILLD.exists():
        print(f"SKIPPED: no {RINGFILLD}")
        sys.exit(chart.SKIPPED)
    unittest.main(verbosity=2)
