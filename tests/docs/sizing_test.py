"""The tables of docs/SIZING.md are current, and its formulas are the daemon's."""

import importlib.util
import json
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

import documents

sys.path.insert(0, str(documents.ROOT / "tests/e2e"))
import harness  # noqa: E402  pylint: disable=wrong-import-position

SPEC = importlib.util.spec_from_file_location("write_sizing", documents.ROOT / "tools/write_sizing.py")
sizing = importlib.util.module_from_spec(SPEC)
sys.modules["write_sizing"] = sizing
SPEC.loader.exec_module(sizing)

MAKE_MODEL = harness.BIN_DIR / "ringfill-make-model"
KIB = 1 << 10


def shape(name):
    return next(model for model in sizing.MODELS if model.name == name)


class Tables(unittest.TestCase):
    def test_are_current(self):
        result = subprocess.run([sys.executable, str(documents.ROOT / "tools/write_sizing.py"), "--check"],
                                capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(result.returncode, 0, result.stderr)

    def test_a_mark_that_is_gone_is_told(self):
        text = documents.text("docs/SIZING.md")
        with self.assertRaisesRegex(ValueError, "marks of the table cpu"):
            sizing.with_tables(text.replace(sizing.marks("cpu")[1], ""))

    def test_counts_of_tokens(self):
        for count, wanted in ((0, "-"), (1023, "-"), (131072, "128K"), (10 << 20, "10M"), ((10 << 20) - 1, "10,239K")):
            self.assertEqual(sizing.tokens(count), wanted)

    def test_the_time_that_was_measured(self):
        """What the page says of the quickstart's model follows from its formula and the rates of BENCHMARKS.md."""
        page, benchmarks = documents.text("docs/SIZING.md"), documents.text("docs/BENCHMARKS.md")
        for rate in ("| bf16 | 2048 | 1425 tok/s |", "| bf16 | 8000 | 805 tok/s |"):
            self.assertIn(rate, benchmarks)
        model = shape("SmolLM2 135M")
        even = model.layer_weights() / model.q_width
        predicted = 8000 / 1425 * (1 + 8000 / even) / (1 + 2048 / even)
        self.assertIn(f"should by this take {predicted:.1f} s for 8,000; it took\n{8000 / 805:.1f} s", page)


class Daemons(unittest.TestCase):
    """Models with the KV of the shape and next to no weights."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def make(self, model, *, width=32, ffn=32, heads=None, stored="f32"):
        path = self.folder / "model.gguf"
        subprocess.run([MAKE_MODEL, "--out", path, "--layers", str(model.layers), "--width", str(width),
                        "--heads", str(heads or model.kv_heads), "--kv-heads", str(model.kv_heads), "--head-dim",
                        str(model.head_size), "--ffn", str(ffn), "--vocab", str(min(model.vocab, 4096)), "--context",
                        str(model.context), "--type", stored], check=True, capture_output=True, timeout=60)
        return path

    def pool(self, model, path, *settings, ranks, **options):
        """Compares the pool with the formula; returns the pages of a rank."""
        with harness.Daemon(f"model.path={path}", f"ranks.count={ranks}", "ranks.backend=cpu", *settings) as daemon:
            status = daemon.client.json("status")
            options.setdefault("kv_dtype", status["kv_dtype"])
            page_tokens = options.get("page_tokens", 64)
            pages = sizing.cpu_pages(model, ranks, **options)
            self.assertEqual([rank["kv_pages_total"] for rank in status["ranks"]], [pages] * ranks)
            self.assertEqual(status["kv_tokens"], pages * ranks * page_tokens)
            self.assertEqual(status["kv_bytes"],
                             pages * ranks * page_tokens * sizing.kv_bytes_per_token(model, options["kv_dtype"]))
            self.assertEqual(daemon.metric("ringfill_kv_capacity_tokens"), status["kv_tokens"])
            self.assertEqual(daemon.metric("ringfill_kv_capacity_bytes"), status["kv_bytes"])
            self.assertEqual(daemon.metric("ringfill_kv_page_tokens"), page_tokens)
            started = next(json.loads(line) for line in daemon.log().splitlines() if '"message":"started"' in line)
            self.assertEqual(started["kv_tokens"], status["kv_tokens"])
        return pages

    def test_pools_of_known_shapes(self):
        for name, ranks, memory in (("SmolLM2 135M", 1, 1 << 30), ("Llama 3.1 8B", 3, 5 << 30)):
            with self.subTest(model=name):
                model = shape(name)
                self.assertGreater(self.pool(model, self.make(model), f"kv.memory_bytes={memory}", ranks=ranks,
                                             memory_bytes=memory), 0)

    def test_types_and_pages(self):
        model = sizing.Model("small", 3, 32, 2, 2, 16, 32, 384, 4096)
        path = self.make(model)
        for kv_dtype, page_tokens in (("f32", 16), ("bf16", 128)):
            self.pool(model, path, "kv.memory_bytes=1MB", f"kv.dtype={kv_dtype}", "compute.dtype=f32",
                      f"kv.page_tokens={page_tokens}", "sharding.stripe_tokens=128", ranks=2, memory_bytes=1000000,
                      kv_dtype=kv_dtype, page_tokens=page_tokens)

    def usable_memory(self, path):
        """As the daemon sees it, which looks at limits of control groups too."""
        refused = subprocess.run([harness.RINGFILLD, "--set", f"model.path={path}", "--set",
                                  "kv.memory_bytes=1000TiB", "--set", "ranks.backend=cpu"],
                                 capture_output=True, text=True, timeout=60, check=False)
        self.assertEqual(refused.returncode, 2, refused.stderr)
        usable = int(re.search(r"this process may have (\d+) bytes", refused.stderr)[1])
        self.assertLessEqual(usable, os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
        return usable

    def test_what_it_takes_by_itself(self):
        model = sizing.Model("small", 3, 32, 2, 2, 16, 32, 384, 10000)
        machine = self.usable_memory(self.make(model))
        for ranks, context, running in ((1, 0, 64), (3, 5000, 7)):
            self.pool(model, self.make(model), f"model.max_context_tokens={context}",
                      f"scheduler.max_running_requests={running}", ranks=ranks, machine_bytes=machine, context=context,
                      running=running)
        large = shape("Llama 3.1 8B")  # more than a quarter of most machines
        self.pool(large, self.make(large), ranks=1, machine_bytes=machine)

    def test_the_largest_request(self):
        model = sizing.Model("small", 2, 32, 2, 2, 16, 32, 384, 65536)
        path = self.make(model)
        for ranks, stripe in ((1, 64), (3, 64), (2, 192)):
            memory = 7 * ranks * 64 * sizing.kv_bytes_per_token(model)  # 7 pages a rank
            with self.subTest(ranks=ranks, stripe=stripe), harness.Daemon(
                    f"model.path={path}", f"ranks.count={ranks}", f"sharding.stripe_tokens={stripe}", "kv.dtype=bf16",
                    "ranks.backend=cpu", f"kv.memory_bytes={memory}") as daemon:
                most = sizing.largest_request(7, ranks, stripe_tokens=stripe)

                def ask(tokens, new, daemon=daemon):
                    return daemon.client.run("generate", "--token-ids-file", "-", "--max-tokens", str(new),
                                             "--ignore-eos", "--json", stdin=json.dumps([5] * tokens))

                self.assertEqual(ask(most, 1).returncode, 0)
                self.assertEqual(ask(most - 9, 10).returncode, 0)
                for tokens, new in ((most + 1, 1), (most - 8, 10)):
                    refused = ask(tokens, new)
                    self.assertEqual(refused.returncode, 1)
                    self.assertRegex(refused.stderr, "RESOURCE_EXHAUSTED: the request needs .* KV pages on rank")

    def test_memory_beside_the_pages(self):
        model = sizing.Model("middle", 4, 512, 8, 2, 64, 1536, 4096, 65536, tied=True)
        path = self.make(model, width=model.width, ffn=model.ffn, heads=model.heads, stored="q8_0")
        prompt = 4096
        for ranks in (1, 2):
            with self.subTest(ranks=ranks), harness.Daemon(
                    f"model.path={path}", f"ranks.count={ranks}", "compute.threads=2", "ranks.backend=cpu",
                    "ring.strategy=pass-kv", "ring.mode=home") as daemon:
                status = daemon.client.json("status")
                self.assertEqual(daemon.client.run("generate", "--token-ids-file", "-", "--max-tokens", "1",
                                                   stdin=json.dumps([5] * prompt)).returncode, 0)
                taken = sum(daemon.metric("ringfill_memory_bytes", pool=pool)
                            for pool in ("weights", "buffers", "scratch"))
                wanted = (sizing.cpu_fixed_bytes(model, threads=2, dtype=status["compute_dtype"])
                          - model.file_bytes("Q8_0"))
                if ranks > 1:
                    wanted += 2 * prompt * sizing.kv_bytes_per_token(model, status["kv_dtype"]) // model.layers
                self.assertAlmostEqual(taken / wanted, 1, delta=0.1)
        self.assertAlmostEqual(path.stat().st_size / model.file_bytes("Q8_0"), 1, delta=0.02)


if __name__ == "__main__":
    if not MAKE_MODEL.exists():
        print(f"SKIPPED: no {MAKE_MODEL}")
        sys.exit(documents.SKIPPED)
    unittest.main(verbosity=2)
