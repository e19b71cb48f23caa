"""Dashboards and alerts as files: what Grafana and Prometheus need of them, and each alert firing and not firing."""

import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

import expressions

ROOT = expressions.ROOT
DASHBOARDS = {"health.json", "waits.json", "ring.json", "memory.json"}
UNITS = {"short", "s", "reqps", "percentunit", "bytes", "Bps"}


def run(*command, cwd=ROOT):
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, cwd=cwd)


def anchors(path):
    """Of a Markdown file's headings, as GitHub makes them."""
    headings = re.findall(r"^#+ (.+)$", path.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading).strip().lower().replace(" ", "-") for heading in headings}


class Dashboards(unittest.TestCase):
    def test_are_what_the_tool_writes(self):
        result = run(sys.executable, str(ROOT / "tools/write_dashboards.py"), "--check")
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertEqual(set(expressions.dashboards()), DASHBOARDS)

    def test_have_what_grafana_needs(self):
        uids = set()
        for name, board in expressions.dashboards().items():
            with self.subTest(dashboard=name):
                self.assertGreaterEqual(board["schemaVersion"], 39)
                self.assertTrue(board["title"] and board["description"])
                uids.add(board["uid"])
                variables = {variable["name"]: variable["type"] for variable in board["templating"]["list"]}
                self.assertEqual(variables, {"datasource": "datasource", "namespace": "query", "instance": "query"})
                self.assertEqual(len({panel["id"] for panel in board["panels"]}), len(board["panels"]))
                for panel in board["panels"]:
                    self.check_panel(panel)
                self.check_places(board["panels"])
        self.assertEqual(len(uids), len(DASHBOARDS))

    def check_panel(self, panel):
        with self.subTest(panel=panel["title"]):
            self.assertIn(panel["type"], {"timeseries", "heatmap", "stat"})
            self.assertGreater(len(panel["description"]), 15)
            self.assertIn(panel["fieldConfig"]["defaults"]["unit"], UNITS)
            self.assertTrue(panel["targets"])
            self.assertEqual(len({target["refId"] for target in panel["targets"]}), len(panel["targets"]))
            for target in panel["targets"]:
                for source in (panel["datasource"], target["datasource"]):
                    self.assertEqual(source, {"type": "prometheus", "uid": "${datasource}"})
                self.assertTrue(target["legendFormat"])

    def check_places(self, panels):
        taken = set()
        for panel in panels:
            place = panel["gridPos"]
            cells = {(x, y) for x in range(place["x"], place["x"] + place["w"])
                     for y in range(place["y"], place["y"] + place["h"])}
            self.assertLessEqual(place["x"] + place["w"], 24)
            self.assertFalse(taken & cells, f"{panel['title']} lies on another")
            taken |= cells

    def test_choose_by_the_variables(self):
        for where, expression in expressions.panel_expressions():
            with self.subTest(where=where, expression=expression):
                for matchers in re.findall(r"\{([^}]*)\}", expression):
                    self.assertIn('namespace=~"$namespace",instance=~"$instance"', matchers)
                names = re.findall(r"\b(?:ringfill|process)_\w+", expression)
                self.assertEqual(len(names), expression.count("{"), "a metric without matchers")

    def test_show_rates_and_no_sums_since_the_start(self):
        counter = re.compile(r"(\w+\()?\b(?:ringfill|process)_\w+_(?:total|sum|count|bucket)\b")
        for where, expression in expressions.panel_expressions():
            for match in counter.finditer(expression):
                self.assertIn(match[1], {"rate(", "increase("}, f"{where}: {expression}")


class Alerts(unittest.TestCase):
    def test_are_valid_rules(self):
        result = run("promtool", "check", "rules", str(expressions.ALERTS))
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)

    def test_say_what_happened_and_where_to_read_on(self):
        runbook = anchors(ROOT / "docs/RUNBOOKS.md")
        linked = set()
        alerts = [rule for rule in expressions.rules() if rule["kind"] == "alert"]
        self.assertGreater(len(alerts), 10)
        for alert in alerts:
            with self.subTest(alert=alert["name"]):
                self.assertIn(alert["severity"], {"critical", "warning"})
                self.assertGreater(len(alert["summary"]), 20)
                self.assertGreater(len(alert["description"]), 40)
                page, anchor = alert["runbook_url"].split("#")
                self.assertEqual(page, "docs/RUNBOOKS.md")
                self.assertIn(anchor, runbook)
                linked.add(anchor)
        self.assertEqual(runbook - linked, {"runbooks"}, "a section that no alert leads to")

    def test_fire_and_do_not_fire(self):
        cases = "".join(path.read_text(encoding="utf-8") for path in expressions.RULE_TESTS.glob("*.yaml"))
        for rule in expressions.rules():
            if rule["kind"] == "record":
                continue
            with self.subTest(alert=rule["name"]):
                self.assertRegex(cases, rf"alertname: {rule['name']}, exp_alerts: \[\]")
                self.assertRegex(cases, rf"alertname: {rule['name']}\n +exp_alerts:\n +- exp_labels")
        with tempfile.TemporaryDirectory() as folder:
            shutil.copy(expressions.ALERTS, folder)
            tests = [shutil.copy(path, folder) for path in expressions.RULE_TESTS.glob("*.yaml")]
            result = run("promtool", "test", "rules", *tests, cwd=pathlib.Path(folder))
        self.assertEqual(result.returncode, 0, result.stdout + result.stderr)


if __name__ == "__main__":
    expressions.need("promtool")
    unittest.main(verbosity=2)
