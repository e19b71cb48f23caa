"""Rules as PrometheusRules of a release, and of two: valid, with the values' thresholds, each for its own daemons."""

import json
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import yaml

import chart

sys.path.insert(0, str(chart.SOURCE_DIR / "tests/observability"))
import expressions  # noqa: E402

MATCHERS = 'namespace="{}",pod=~"{}-[0-9]+"'
OTHERS = ("--set", "metrics.prometheusRule.firstToken.seconds=60", "--set",
          "metrics.prometheusRule.firstToken.ratio=0.99", "--set", "metrics.prometheusRule.queueAgeSeconds=45", "--set",
          "metrics.prometheusRule.runbookUrl=https://wiki.example.com/llm/RUNBOOKS.md")


def rules(*arguments, release="ring", namespace="llm"):
    """The text of a release's rules, as a file of Prometheus."""
    result = chart.helm("template", release, str(chart.CHART), "--namespace", namespace, "--values",
                        str(chart.VALUES / "monitoring.yaml"), *arguments)
    assert result.returncode == 0, result.stderr
    objects = [item for item in yaml.load_all(result.stdout, yaml.CSafeLoader) if item]
    return yaml.safe_dump(chart.only(objects, "PrometheusRule")["spec"], sort_keys=False, width=1000)


def by_name(text):
    return {rule.get("alert", rule.get("record")): rule
            for group in yaml.safe_load(text)["groups"] for rule in group["rules"]}


def promtool(folder, *arguments):
    result = subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, timeout=100,
                            check=False)
    return result.returncode, result.stdout + result.stderr


class Rules(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, name, text):
        (self.folder / name).write_text(text, encoding="utf-8")

    def check(self, text):
        self.write("rules.yaml", text)
        code, said = promtool(self.folder, "check", "rules", "rules.yaml")
        self.assertEqual(code, 0, said)

    def test_are_those_of_the_file_but_for_the_pods(self):
        text = rules()
        self.check(text)
        wanted = by_name(expressions.ALERTS.read_text(encoding="utf-8"))
        matchers = MATCHERS.format("llm", "ring-ringfill")
        self.assertIn("{" + matchers + "}", text)
        found = by_name(text.replace("{" + matchers + "}", "").replace(matchers + ",", ""))
        self.assertEqual(found, wanted)

    def test_every_series_is_of_the_release(self):
        matchers = MATCHERS.format("llm", "ring-ringfill")
        for name, rule in by_name(rules()).items():
            for match in re.finditer(r"\b(?:ringfill[_:][\w:]+|up|ALERTS)\b(.?)", rule["expr"]):
                self.assertTrue(rule["expr"][match.start(1):].startswith("{" + matchers), f"{name}: {match[0]}")

    def test_thresholds_are_values(self):
        text = rules(*OTHERS)
        self.check(text)
        for old in ("300", "0.05", "5 %", "600", "docs/"):
            self.assertNotIn(old, re.sub(r"for: .*", "", text))
        found = by_name(text)
        for name, rule in found.items():
            if "record" in rule:
                self.assertIn(r'le=~"60(\\.0)?"', rule["expr"], name)
            else:
                self.assertTrue(rule["annotations"]["runbook_url"].startswith(
                    "https://wiki.example.com/llm/RUNBOOKS.md#"), name)
        self.assertIn("> 45", found["RingfillQueueAge"]["expr"])
        for name, burn in (("RingfillFirstTokenBurnsFast", "14.4"), ("RingfillFirstTokenBurnsSlowly", "6")):
            self.assertEqual(found[name]["expr"].count(f"> ({burn} * 0.01)"), 2)
            self.assertIn("more than 60 s in", found[name]["annotations"]["description"])
            self.assertIn("allows 1 %.", found[name]["annotations"]["description"])

    def test_every_bound_is_a_bucket(self):
        schema = json.loads((chart.CHART / "values.schema.json").read_text(encoding="utf-8"))
        schema = schema["properties"]["metrics"]["properties"]["prometheusRule"]["properties"]["firstToken"]
        source = (chart.SOURCE_DIR / "engine/engine_metrics.cc").read_text(encoding="utf-8")
        buckets = re.search(r"kTtftBuckets = \{(.*?)\};", source, re.DOTALL)[1]
        self.assertLessEqual(set(map(float, schema["properties"]["seconds"]["enum"])),
                             set(map(float, buckets.split(","))))

    def test_two_releases_do_not_meet(self):
        """Each writes and fires for its own pods; groups of the same name are no matter in files of their own."""
        labels = 'namespace="{}",pod="{}-ringfill-0",instance="{}"'
        first, second = labels.format("llm", "ring", "a"), labels.format("llm", "other", "b")
        third = labels.format("elsewhere", "ring", "c")
        for name, release, namespace in (("1.yaml", "ring", "llm"), ("2.yaml", "other", "llm")):
            self.write(name, rules(release=release, namespace=namespace))
        series = []
        for each in (first, second, third):
            for suffix, count in (('_bucket{le="300",', "0+2x120"), ("_count{", "0+10x120")):
                series.append({"series": f"ringfill_time_to_first_token_seconds{suffix}{each}}}", "values": count})
            series.append({"series": f'up{{{each}}}', "values": "1x20 0x100"})
            series.append({"series": f'ringfill_build_info{{{each}}}', "values": "1x20"})
        recorded = [{"labels": f'{{__name__="ringfill:ttft_late:ratio_rate5m",{each}}}', "value": 0.8}
                    for each in (first, second)]
        # A rule that fires for what is another's fires twice for it.
        fired = [{"labels": f'{{{each}}}', "value": 1} for each in (first, second)]
        tests = [{"interval": "1m", "input_series": series, "promql_expr_test": [
            {"expr": "ringfill:ttft_late:ratio_rate5m", "eval_time": "60m", "exp_samples": recorded},
            {"expr": 'count by (namespace, pod, instance) (ALERTS{alertname="RingfillFirstTokenBurnsFast"})',
             "eval_time": "60m", "exp_samples": fired},
            {"expr": 'count by (namespace, pod, instance) (ALERTS{alertname="RingfillDown",alertstate="firing"})',
             "eval_time": "100m", "exp_samples": fired}]}]
        self.write("test.yaml", yaml.safe_dump({"rule_files": ["1.yaml", "2.yaml"], "evaluation_interval": "1m",
                                                "tests": tests}))
        code, said = promtool(self.folder, "test", "rules", "test.yaml")
        self.assertEqual(code, 0, said)


if __name__ == "__main__":
    expressions.need("promtool")
    unittest.main(verbosity=2)
