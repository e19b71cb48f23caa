"""Bad values are refused, with a message that names the key, and the schema knows the daemon's keys."""

import json
import re
import subprocess
import unittest

import yaml

import chart

# What helm must refuse, and what its message must hold.
REFUSED = (
    ("replicas: many", "/replicas"),
    ("replicaCount: 2", "replicaCount"),
    ("image: {repository: \"\"}", "image.repository: name the image that you pushed"),
    ("image: {repository: \"a b\"}", "/image/repository"),
    ("image: {repository: \"a/b:0.1.0\"}", "/image/repository"),
    ("image: {repository: \"b:5000\"}", "/image/repository"),
    ("image: {repository: \"host:5000/a/b:0.1.0\"}", "/image/repository"),
    ("image: {repository: \"host:5000/a:1/b\"}", "/image/repository"),
    ("image: {repository: \"host:port/a\"}", "/image/repository"),
    ("image: {repository: a/b/}", "/image/repository"),
    ("envoy: {image: {repository: \"a/b:v1\"}}", "/envoy/image/repository"),
    ("image: {tag: latest}", "/image/tag"),
    ("image: {digest: sha256:123}", "/image/digest"),
    ("image: {pullPolicy: Sometimes}", "/image/pullPolicy"),
    ("model: {source: ftp}", "/model/source"),
    ("model: {file: ../../etc/passwd}", "/model/file"),
    ("model: {file: /etc/passwd}", "/model/file"),
    ("model: {pvc: {claimName: \"\"}}", "model.pvc.claimName"),
    ("model: {source: download, download: {url: \"https://x/y\", sha256: abc}}", "/model/download/sha256"),
    ("model: {source: download, download: {url: \"https://x/y\"}}", "model.download.sha256"),
    ("model: {source: download, download: {url: \"file:///x\"}}", "/model/download/url"),
    ("model: {source: download, file: a/b.gguf, download: {url: \"https://x/y\", sha256: "
     "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53}}", "model.file"),
    ("model: {source: image}", "model.image.reference"),
    ("model: {source: image, image: {reference: \"a/b:latest\"}}", "model.image.reference"),
    ("model: {source: image, image: {reference: \"host:5000/a/b\"}}", "model.image.reference"),
    ("config: {server: {listen: \"0.0.0.0:1\"}}", "/config/server"),
    ("config: {metrics: {listen: \"0.0.0.0:1\"}}", "'metrics' not allowed"),
    ("config: {ranks: {backend: cuda}}", "'backend' not allowed"),
    ("config: {ring: {secret_file: /x}}", "'secret_file' not allowed"),
    ("config: {server: {drain_timeout_s: -1}}", "/config/server/drain_timeout_s"),
    ("config: {kv: {page_tokens: 24}}", "/config/kv/page_tokens"),
    ("config: {kv: {memory_bytes: 2Gi}}", "/config/kv/memory_bytes"),
    ("config: {ring: {strategy: fastest}}", "/config/ring/strategy"),
    ("podLabels: {app.kubernetes.io/name: other}", "/podLabels"),
    ("multinode: {enabled: true, secret: {name: s}}\nresources: {limits: {memory: 9000000Ti}}", "is no memory of a pod"),
    ("multinode: {enabled: true, secret: {name: s}}\nresources: {limits: {memory: \"0\"}}", "is no memory of a pod"),
    ("config: {compute: {threads: \"4\"}}", "/config/compute/threads"),
    ("gpu: {count: -1}", "/gpu/count"),
    ("{gpu: {count: 4}, config: {ranks: {count: 2}}}", "config.ranks.count"),
    ("multinode: {enabled: true}", "multinode.secret.name"),
    ("multinode: {enabled: true, ranks: 1, secret: {name: s}}", "/multinode/ranks"),
    ("{gpu: {count: 2}, multinode: {enabled: true, secret: {name: s}}}", "gpu.count"),
    ("{multinode: {enabled: true, secret: {name: s}}, config: {ranks: {count: 2}}}", "config.ranks.count"),
    ("{multinode: {enabled: true, secret: {name: s}}, config: {ring: {transport: threads}}}",
     "config.ring.transport"),
    ("resources: {limits: {memory: null}}", "/resources/limits"),
    ("resources: {limits: {memory: lots}}", "/resources/limits/memory"),
    ("{multinode: {enabled: true, secret: {name: s}}, resources: {limits: {memory: 8589934592000m}}}",
     "config.kv.memory_bytes"),
    ("service: {port: 80}", "/service/port"),
    ("service: {port: 50063}", "service.port"),
    ("service: {type: ExternalName}", "/service/type"),
    ("listenAddress: 10.0.0.1", "/listenAddress"),
    ("envoy: {limits: {headersKb: 1000}}", "/envoy/limits/headersKb"),
    ("envoy: {limits: {concurrentStreams: 0}}", "/envoy/limits/concurrentStreams"),
    ("terminationGracePeriodSeconds: 20", "terminationGracePeriodSeconds"),
    ("preStopSeconds: 0", "/preStopSeconds"),
    ("podDisruptionBudget: {maxUnavailable: 0}", "/podDisruptionBudget/maxUnavailable"),
    ("podSecurityContext: {runAsNonRoot: false}", "/podSecurityContext/runAsNonRoot"),
    ("podSecurityContext: {runAsUser: 0}", "/podSecurityContext/runAsUser"),
    ("containerSecurityContext: {privileged: true}", "/containerSecurityContext/privileged"),
    ("networkPolicy: {grpcFrom: [{}]}", "/networkPolicy/grpcFrom/0"),
    ("probes: {liveness: {periodSeconds: 0}}", "/probes/liveness/periodSeconds"),
    ("metrics: {podMonitor: {interval: often}}", "/metrics/podMonitor/interval"),
    ("metrics: {prometheusRule: {firstToken: {seconds: 100}}}", "/metrics/prometheusRule/firstToken/seconds"),
    # 14.4 times as many late ones as that allows would be more than all.
    ("metrics: {prometheusRule: {firstToken: {ratio: 0.9}}}", "/metrics/prometheusRule/firstToken/ratio"),
    ("metrics: {prometheusRule: {firstToken: {ratio: 1}}}", "/metrics/prometheusRule/firstToken/ratio"),
    ("metrics: {prometheusRule: {firstToken: {ratio: \"0.93\"}}}", "/metrics/prometheusRule/firstToken/ratio"),
    ("metrics: {prometheusRule: {queueAgeSeconds: 0}}", "/metrics/prometheusRule/queueAgeSeconds"),
    ("metrics: {prometheusRule: {runbookUrl: \"https://x/y#down\"}}", "/metrics/prometheusRule/runbookUrl"),
    ("metrics: {prometheusRule: {runbookUrl: docs}}", "/metrics/prometheusRule/runbookUrl"),
    ("env: [{value: x}]", "/env/0"),
    ("env: [{name: RINGFILL_RANK, value: x}]", "RINGFILL_RANK"),
    ("topologySpread: {whenUnsatisfiable: Never}", "/topologySpread/whenUnsatisfiable"),
)
# Keys of the daemon that are not for users of the chart.
OWNED = {"server.listen", "metrics.listen", "model.path", "ranks.backend", "ranks.devices",
         "ring.listen", "ring.secret_file", "ring.start_workers"}


def schema():
    return json.loads((chart.CHART / "values.schema.json").read_text(encoding="utf-8"))


class Values(unittest.TestCase):
    def test_bad_values_are_refused_by_name(self):
        good = {"claimName": ["--set", "model.pvc.claimName=m"], "repository": ["--set", "image.repository=r/i"]}
        result = chart.helm("template", "r", str(chart.CHART), *sum(good.values(), []))
        self.assertEqual(result.returncode, 0, result.stderr)
        for text, wanted in REFUSED:
            with self.subTest(values=text):
                # What is set wins over what is in a file.
                first = sum((flags for key, flags in good.items() if key not in text), [])
                result = chart.helm("template", "r", str(chart.CHART), *first, "--values", "-",
                                    "--kube-version", chart.NEWEST, stdin=text)
                self.assertNotEqual(result.returncode, 0, "accepted")
                self.assertIn(wanted, result.stderr)

    def test_repositories_may_have_a_port(self):
        for repository in ("ringfilld", "host:5000/ringfilld", "host.example.com:5000/a/b-c/d_e", "10.0.0.1/a/b"):
            with self.subTest(repository=repository):
                result = chart.helm("template", "r", str(chart.CHART), "--set", "model.pvc.claimName=m", "--set",
                                    f"image.repository={repository}", "--set", "image.tag=t")
                self.assertEqual(result.returncode, 0, result.stderr)
                self.assertIn(f"image: \"{repository}:t\"\n", result.stdout)

    def test_image_volumes_need_a_cluster_that_has_them(self):
        result = chart.template("image_volume", "1.30")
        self.assertNotEqual(result.returncode, 0)
        self.assertIn("model.source: image volumes need Kubernetes 1.31", result.stderr)

    def test_every_value_is_known(self):
        """Each key of values.yaml is in the schema, and each of the schema in values.yaml."""
        values = yaml.safe_load((chart.CHART / "values.yaml").read_text(encoding="utf-8"))
        known = schema()

        def compare(path, value, rule):
            if "$ref" in rule:
                rule = known["$defs"][rule["$ref"].rpartition("/")[2]]
            if not isinstance(value, dict) or rule.get("additionalProperties") is not False:
                return
            self.assertEqual(set(value), set(rule["properties"]) - {"global"}, path)
            for key in value:
                compare(f"{path}.{key}", value[key], rule["properties"][key])

        config = values.pop("config")
        self.assertEqual(set(config), {"server"})
        known["properties"].pop("config")
        compare("values", values, known)


class DaemonKeys(unittest.TestCase):
    """config: in the schema against what the daemon's own --help allows."""

    @classmethod
    def setUpClass(cls):
        binary = chart.BIN_DIR / "ringfilld"
        text = subprocess.run([binary, "--help"], capture_output=True, text=True, check=True,
                              timeout=60).stdout
        cls.allowed = {}
        for match in re.finditer(r"^  (\w+\.\w+) = .*\n((?:      .*\n)+)", text, re.MULTILINE):
            cls.allowed[match[1]] = match[2]
        cls.rules = {f"{section}.{key}": rule
                     for section, body in schema()["properties"]["config"]["properties"].items()
                     for key, rule in body["properties"].items()}

    def test_same_keys(self):
        self.assertEqual(set(self.rules), set(self.allowed) - OWNED)
        self.assertLessEqual(OWNED, set(self.allowed))

    def test_same_choices_and_ranges(self):
        for key, rule in self.rules.items():
            allowed = re.search(r"Allowed: (.*)\.\n", self.allowed[key])
            with self.subTest(key=key):
                if "enum" in rule:
                    self.assertEqual(rule["enum"], re.split(r", | or ", allowed[1]))
                elif rule.get("type") in ("integer", "number"):
                    low, high = re.search(r"from (\S+) to (\S+)$", allowed[1]).groups()
                    self.assertEqual((rule["minimum"], rule["maximum"]), (float(low), float(high)))
                    multiple = re.search(r"divisible by (\d+)", allowed[1])
                    self.assertEqual(rule.get("multipleOf"), int(multiple[1]) if multiple else None)


if __name__ == "__main__":
    unittest.main(verbosity=2)
