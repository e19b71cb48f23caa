"""The table of values in the chart's README is current, and every value has a comment."""

import importlib.util
import unittest

import chart

SPEC = importlib.util.spec_from_file_location("chart_readme", chart.SOURCE_DIR / "tools/chart_readme.py")
chart_readme = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(chart_readme)


class Readme(unittest.TestCase):
    def test_current(self):
        wanted = chart_readme.table((chart.CHART / "values.yaml").read_text(encoding="utf-8"))
        found = (chart.CHART / "README.md").read_text(encoding="utf-8")
        self.assertEqual(found, wanted, "run tools/chart_readme.py")

    def test_reads_values(self):
        text = "# -- One\n# more.\na: 1\nb:\n  # -- Two.\n  c: []\n# -- Three.\nd:\n  e: x\n  f: {g: 1}\n# -- Four.\nh:\n  i:\n    j: 1\n"
        self.assertEqual(chart_readme.values(text),
                         [("a", "1", "One more."), ("b.c", "[]", "Two."), ("d", "e: x, f: {g: 1}", "Three."),
                          ("h", None, "Four.")])

    def test_a_value_without_comment_is_refused(self):
        with self.assertRaisesRegex(ValueError, "values.yaml:2: a.b has no comment"):
            chart_readme.values("a:\n  b: 1\n")


if __name__ == "__main__":
    unittest.main(verbosity=2)
