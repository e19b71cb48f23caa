"""The real Envoy accepts its file of every value set, and the default image is the version that ran here."""

import pathlib
import subprocess
import tempfile
import unittest

import yaml

import chart


def validate(text):
    with tempfile.TemporaryDirectory() as folder:
        path = pathlib.Path(folder, "envoy.yaml")
        path.write_text(text, encoding="utf-8")
        return subprocess.run([chart.ENVOY, "--mode", "validate", "--config-path", path, "--log-level",
                               "warning"], capture_output=True, text=True, timeout=60, check=False)


def listeners(text):
    """{name: (address, port)}"""
    found = {}
    for each in yaml.safe_load(text)["static_resources"]["listeners"]:
        address = each["address"]["socket_address"]
        found[each["name"]] = (address["address"], address["port_value"])
    return found


class Envoy(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        jobs = [(name, chart.NEWEST) for name in chart.value_sets()]
        cls.rendered = {name: objects for (name, _), objects in chart.render_all(jobs).items()}
        cls.files = {name: chart.config_map(objects)["envoy.yaml"]
                     for name, objects in cls.rendered.items()
                     if "envoy.yaml" in chart.config_map(objects)}

    def test_accepted(self):
        self.assertGreaterEqual(len(self.files), 12)
        for name, text in self.files.items():
            result = validate(text)
            self.assertEqual(result.returncode, 0, f"{name}: {result.stderr}")
            self.assertNotIn("deprecated", result.stderr, name)

    def test_a_mistake_is_seen(self):
        text = self.files["cpu"]
        self.assertIn("max_request_headers_kb", text)
        result = validate(text.replace("max_request_headers_kb", "max_request_header_kb"))
        self.assertNotEqual(result.returncode, 0)

    def test_leads_to_the_daemon(self):
        """Listeners are the container's ports, clusters where the daemon listens."""
        for name, text in self.files.items():
            pod, _ = chart.daemon(self.rendered[name])
            envoy = next(each for each in chart.containers(pod) if each["name"] == "envoy")
            ports = {port["name"]: port["containerPort"] for port in envoy["ports"]}
            self.assertEqual({key: port for key, (_, port) in listeners(text).items()}, ports, name)
            config = yaml.safe_load(chart.config_map(self.rendered[name])["ringfill.yaml"])
            wanted = {"daemon": config["server"]["listen"], "daemon_health": config["server"]["listen"]}
            if config["metrics"]["listen"]:
                wanted["daemon_metrics"] = config["metrics"]["listen"]
            for cluster in yaml.safe_load(text)["static_resources"]["clusters"]:
                endpoint = cluster["load_assignment"]["endpoints"][0]["lb_endpoints"][0]["endpoint"]
                address = endpoint["address"]["socket_address"]
                if cluster["name"] != "admin":
                    self.assertEqual(f"{address['address']}:{address['port_value']}",
                                     wanted.pop(cluster["name"]), name)
            self.assertEqual(wanted, {}, name)

    def test_the_image_is_what_ran(self):
        version = subprocess.run([chart.ENVOY, "--version"], capture_output=True, text=True, check=True,
                                 timeout=60).stdout
        values = yaml.safe_load((chart.CHART / "values.yaml").read_text(encoding="utf-8"))
        self.assertIn(f"/{values['envoy']['image']['tag'][1:]}/", version)


if __name__ == "__main__":
    unittest.main(verbosity=2)
