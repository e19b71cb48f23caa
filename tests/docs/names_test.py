"""What documents name is there: links and sections, metrics, configuration keys, files, messages."""

import glob
import json
import re
import unittest

import documents

ROOT = documents.ROOT
# Where code with a space in it is a command or a formula, when it begins like this; else it is a message.
NO_MESSAGE = re.compile(r"[$#/<{(]|(apt|cmake|curl|dmesg|helm|journalctl|kubectl|min|nvidia-smi|pip|ringfill|ringfilld|"
                        r"ss|sudo|systemctl|systemd-analyze|tools/\S+|top|ulimit)\b")
FORMULA_OR_FLAGS = re.compile(r"[=*|\[]|--| [<>+/] |^[a-z]+\.[a-z_]+: \S+$")
QUOTING = ("docs/RUNBOOKS.md", "docs/SIZING.md", "docs/TROUBLESHOOTING.md")
PLACES = {path.name for path in ROOT.iterdir() if path.is_dir()} - {"build"}


def files_of(path):
    """Files and folders that a path with braces and stars means; a name without its suffix means its files."""
    if match := re.search(r"\{([^}]*)\}", path):
        return [found for each in match[1].split(",") for found in files_of(path.replace(match[0], each, 1))]
    found = glob.glob(str(ROOT / path))
    return found or glob.glob(str(ROOT / path) + ".*")


def chart_values():
    """Paths of the chart's values and of what holds them."""
    found = set()
    for path in re.findall(r"^\| `([\w.]+)` \|", documents.text("deploy/helm/ringfill/README.md"), re.MULTILINE):
        parts = path.split(".")
        found.update(".".join(parts[:count]) for count in range(1, len(parts) + 1))
    return found


def panel_titles():
    found = []
    for path in (ROOT / "deploy/helm/ringfill/files/dashboards").glob("*.json"):
        found += [panel["title"] for panel in json.loads(path.read_text(encoding="utf-8"))["panels"]]
    return found


def messages(name):
    """Quoted text of programs, in the pieces between its `...`."""
    for span in documents.spans(name):
        if " " in span and not NO_MESSAGE.match(span) and not FORMULA_OR_FLAGS.search(span):
            yield span, [piece.strip() for piece in span.split("...") if piece.strip()]


class Links(unittest.TestCase):
    def test_lead_somewhere(self):
        count = 0
        for name in documents.paths():
            for file, anchor in documents.links(name):
                with self.subTest(document=name, link=f"{file}#{anchor}"):
                    target = (ROOT / name).parent / file if file else ROOT / name
                    self.assertTrue(target.exists())
                    if anchor:
                        self.assertIn(anchor, documents.anchors(target.resolve().relative_to(ROOT).as_posix()))
                    count += 1
        self.assertGreater(count, 80)

    def test_the_readme_leads_to_every_document(self):
        linked = {file for file, _ in documents.links("README.md")}
        self.assertEqual(set(documents.paths()) - linked, {"README.md"})

    def test_anchors_are_githubs(self):
        self.assertIn("a-gpu-that-fails", documents.anchors("docs/GPU.md"))
        self.assertIn("upgrades-and-the-end-of-a-pod", documents.anchors("docs/DEPLOYMENT.md"))
        self.assertIn("against-llamacpp", documents.anchors("docs/BENCHMARKS.md"))


class Layout(unittest.TestCase):
    def test_no_line_begins_with_a_space_of_no_meaning(self):
        for name in documents.paths():
            with self.subTest(document=name):
                self.assertEqual(re.findall(r"^ (?! ).+", documents.prose(name), re.MULTILINE), [])


class Names(unittest.TestCase):
    def test_metrics(self):
        known = documents.metrics()
        self.assertGreater(len(known), 50)
        for name in documents.paths():
            for metric in set(re.findall(r"\bringfill_[a-z_]+[a-z]\b(?![.(])", documents.text(name))):
                base = re.sub(r"_(bucket|sum|count)$", "", metric)
                self.assertTrue(metric in known or base in known, f"{name}: {metric}")

    def test_keys(self):
        keys, values = documents.config_keys(), chart_values()
        sections = {key.split(".")[0] for key in keys}
        self.assertGreater(len(keys), 40)
        for name in documents.paths():
            code = "\n".join(documents.spans(name) + documents.blocks(name))
            for key in set(re.findall(r"(?<![\w./-])(?:config\.)?((?:[a-z]+\.)+[a-zA-Z_]+)(?![\w/.(-])", code)):
                if key.split(".")[0] not in sections or key.endswith((".md", ".json", ".gguf")):
                    continue
                self.assertTrue(key in keys or key in values, f"{name}: {key} is no key")

    def test_files(self):
        count = 0
        for name in documents.paths():
            code = "\n".join(documents.spans(name) + documents.blocks(name))
            for path in set(re.findall(r"(?<![\w./$-])((?:\w[\w.-]*/)+[\w.*{},-]*[\w*}])", code)):
                if path.split("/")[0] in PLACES:
                    count += 1
                    self.assertTrue(files_of(path), f"{name}: {path} is not there")
        self.assertGreater(count, 60)


class Messages(unittest.TestCase):
    def test_are_those_of_the_programs(self):
        said = documents.literals() + "\n" + "\n".join(panel_titles())
        quoted = [(name, span, piece) for name in QUOTING for span, pieces in messages(name) for piece in pieces]
        self.assertGreater(len(quoted), 90)
        self.assertEqual([(name, span) for name, span, piece in quoted if piece not in said], [])

    def test_are_found_and_missed(self):
        said = documents.literals()
        for text in ("the queue is full", "nobody has called", "the trace file is complete: it holds"):
            self.assertTrue(text in said, text)
        self.assertFalse("the queue is empty" in said)

    def test_exit_codes_are_all_there(self):
        codes = set(re.findall(r"kExit\w+ = (\d)", documents.text("server/app/exit_codes.h"))) - {"1"}  # of replay
        page = documents.text("docs/TROUBLESHOOTING.md")
        worker = page[page.index("| `ringfilld worker` exits with |"):]
        self.assertEqual(set(re.findall(r"^\| (\d) \|", worker[:worker.index("\n\n")], re.MULTILINE)), codes)


class Limits(unittest.TestCase):
    """What docs/SECURITY.md says of bounds that no key of the configuration sets."""

    def test_are_the_codes(self):
        page = documents.text("docs/SECURITY.md")
        for file, constant, value, said in (
                ("server/rpc/open_calls.h", "kMaxOpenCalls", "4096", "| 4,096 |"),
                ("server/rpc/rpc_services.h", "kMaxWaitingConversions", "64", "that wait to be read | 64 |"),
                ("engine/request/request.h", "kMaxDocuments", "65536", "| 65,536, 16, 1,024, 256, 64 |"),
                ("engine/request/request.h", "kMaxStopStrings", "16", "16, 1,024, 256, 64 |"),
                ("engine/request/request.h", "kMaxStopStringBytes", "1024", "1,024, 256, 64 |"),
                ("engine/request/request.h", "kMaxStopIds", "256", "256, 64 |"),
                ("engine/request/request.h", "kMaxLogprobs", "64", "256, 64 |"),
                ("server/rpc/convert.h", "kMaxRequestIdBytes", "128", "| 128 characters"),
                ("server/app/daemon.cc", "kMaxHeaderBytes", "16384", "| headers | 16 KiB"),
                ("server/app/daemon.cc", "kQuotaMessages", "4", "| four of the largest"),
                ("server/app/daemon.cc", "kMinQuotaBytes", "int64_t{256} << 20", "at least 256 MiB |"),
                ("server/app/daemon.cc", "kHandshakeTimeoutMs", "10000", "| 10 s; 30 min |"),
                ("server/app/daemon.cc", "kMaxIdleMs", "30 * 60 * 1000", "| 10 s; 30 min |"),
                ("engine/model/pre_tokenizer.cc", "kBase", "10000, kPerByte = 8", "| 10,000 and 8 for each byte |"),
                ("engine/comm/tcp/secret.h", "kMinBytes", "16", "The secret has 16 to 4,096 bytes."),
                ("engine/comm/tcp/secret.h", "kMaxBytes", "4096", "The secret has 16 to 4,096 bytes."),
                ("engine/comm/tcp/listener.h", "kMaxPending", "64", "Of more than 64 callers"),
                ("engine/comm/tcp/listener.h", "kHandshakeLimit", "std::chrono::seconds(5)", "and 5 s for its own"),
                ("server/rpc/trace.cc", "kMaxSeconds", "60", "of up to 60 s"),
                ("server/app/file_limit.h", "kEnoughFiles", "4096", "warns below 4,096")):
            with self.subTest(constant=constant):
                self.assertTrue(f"{constant} = {value};" in documents.text(file), f"{file} has another {constant}")
                self.assertTrue(said in page, f"docs/SECURITY.md does not say `{said}`")

    def test_the_exposure_of_the_unit(self):
        self.assertIn("MOST_EXPOSURE = 1.3 ", documents.text("tests/package/debian_test.py"))
        self.assertIn("at most 1.3 of\n10 points", documents.text("docs/SECURITY.md"))


if __name__ == "__main__":
    unittest.main(verbosity=2)
