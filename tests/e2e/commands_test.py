"""The two commands as scripts use them: exit codes, bad input, and what each command prints."""

import json
import pathlib
import subprocess
import tempfile
import time
import unittest

import harness


def run_daemon(*arguments):
    return subprocess.run([harness.RINGFILLD, *arguments], capture_output=True, text=True,
                          timeout=60, check=False)


class DaemonExitCodes(unittest.TestCase):
    def exit_code_and_log(self, settings=(), model=None):
        process, log = harness.start_daemon(settings, model)
        out, _ = process.communicate(timeout=60)
        self.assertEqual(out, "", "never says that it is ready")
        text = pathlib.Path(log.name).read_text(encoding="utf-8")
        log.close()
        return process.returncode, text

    def test_model_that_is_missing(self):
        code, log = self.exit_code_and_log(model="/nonexistent/model.gguf")
        self.assertEqual(code, 3)
        self.assertIn("/nonexistent/model.gguf", log)

    def test_model_that_is_cut_off(self):
        size = pathlib.Path(harness.model_path()).stat().st_size
        for kept in (0, 3, 20, 100_000, size // 2, size - 1):
            with self.subTest(kept=kept), tempfile.NamedTemporaryFile(suffix=".gguf") as file:
                with open(harness.model_path(), "rb") as model:
                    file.write(model.read(kept))
                file.flush()
                code, log = self.exit_code_and_log(model=file.name)
                self.assertEqual(code, 3)
                self.assertIn(file.name, log)

    def test_model_that_is_something_else(self):
        self.assertEqual(self.exit_code_and_log(model="/usr/share/common-licenses/GPL-3")[0], 3)
        self.assertEqual(self.exit_code_and_log(model="/usr/share")[0], 3)

    def test_bad_settings(self):
        for setting in ("ranks.count=0", "ranks.count=many", "ranks.cuont=2", "compute.dtype=f8",
                        "kv.page_tokens=17", "server.listen=nowhere", "ranks.count"):
            with self.subTest(setting=setting):
                code, log = self.exit_code_and_log([setting])
                self.assertEqual(code, 2)
                self.assertIn(setting.split("=", maxsplit=1)[0], log)

    def test_bad_files(self):
        with tempfile.NamedTemporaryFile("w", suffix=".yaml") as file:
            file.write("ranks:\n  count: 2\n  colour: red\n")
            file.flush()
            result = run_daemon("--config", file.name)
            self.assertEqual(result.returncode, 2)
            self.assertIn(f"{file.name}:3", result.stderr)
        self.assertEqual(run_daemon("--config", "/nonexistent.yaml").returncode, 2)
        self.assertEqual(run_daemon("--nonsense").returncode, 2)

    def test_port_in_use(self):
        with harness.Daemon() as daemon:
            code, log = self.exit_code_and_log([f"server.listen={daemon.client.address}"])
            self.assertEqual(code, 2)
            self.assertIn(daemon.client.address, log)

    def test_shipped_configurations(self):
        for name in ("default.yaml", "quickstart.yaml"):
            result = subprocess.run(
                [harness.RINGFILLD, "--config", str(harness.SOURCE_DIR / "config" / name), "--set",
                 "model.path=/m.gguf", "--check-config"], env={}, capture_output=True, text=True,
                timeout=30, check=False)
            self.assertEqual(result.returncode, 0, result.stderr)


class Commands(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.daemon = cls.enterClassContext(harness.Daemon("ranks.count=2",
                                                          "kv.memory_bytes=256MiB"))
        cls.client = cls.daemon.client

    def tearDown(self):
        self.daemon.wait_idle()

    def expect_failure(self, code_name, *arguments, stdin=""):
        result = self.client.run(*arguments, stdin=stdin)
        self.assertEqual(result.returncode, 1, result.stderr)
        self.assertRegex(result.stderr, f"^ringfill: {code_name}: ")
        self.assertEqual(result.stdout, "")
        return result.stderr

    def test_text_and_json_agree(self):
        arguments = ("generate", "--prompt", "Water boils at", "--max-tokens", "16")
        text = self.client.run(*arguments)
        self.assertEqual(text.returncode, 0, text.stderr)
        result = self.client.json(*arguments)
        self.assertEqual(result["text"], text.stdout)
        self.assertEqual(set(result), {"text", "token_ids", "finish_reason", "usage", "timings",
                                       "ranks"})
        self.assertEqual(result["usage"]["completion_tokens"], len(result["token_ids"]))
        self.assertEqual(set(result["timings"]), {"queue_ms", "prefill_ms", "ttft_ms",
                                                  "decode_ms"})
        self.assertEqual(len(result["ranks"]), 2)

    def test_logprobs(self):
        result = self.client.json("generate", "--prompt", "One, two,", "--max-tokens", "4",
                                  "--logprobs", "3")
        self.assertEqual([step["token_id"] for step in result["logprobs"]], result["token_ids"])
        for step in result["logprobs"]:
            self.assertEqual(len(step["top"]), 3)
            self.assertEqual(step["top"][0]["token_id"], step["token_id"], "greedy")
            self.assertLessEqual(step["logprob"], 0)

    def test_stop_text_is_not_part_of_the_output(self):
        whole = self.client.json("generate", "--prompt", "One, two, three,", "--max-tokens", "24",
                                 "--ignore-eos")["text"]
        stop = whole[5:8]
        result = self.client.json("generate", "--prompt", "One, two, three,", "--max-tokens", "24",
                                  "--ignore-eos", "--stop", stop)
        self.assertEqual(result["text"], whole[:whole.index(stop)])
        self.assertEqual(result["finish_reason"], "stop")

    def test_a_seed_repeats_its_draw(self):
        arguments = ("generate", "--prompt", "Once", "--max-tokens", "12", "--temperature", "1.5",
                     "--ignore-eos")
        texts = {self.client.run(*arguments, "--seed", "7").stdout for _ in range(3)}
        self.assertEqual(len(texts), 1)
        others = {self.client.run(*arguments, "--seed", str(seed)).stdout for seed in range(4)}
        self.assertGreater(len(others), 1)

    def test_tokenize_and_back(self):
        for text in ("Hello, world", "naïve café — 日本語 👍🏽", " leading", "a\tb\n\nc", "x" * 10_000):
            ids = self.client.json("tokenize", "--text", text)
            back = self.client.run("detokenize", "--token-ids-file", "-", stdin=json.dumps(ids))
            self.assertEqual(back.stdout, text)

    def test_special_tokens_only_when_asked(self):
        text = "<|im_start|>"
        self.assertGreater(len(self.client.json("tokenize", "--text", text)["token_ids"]), 1)
        self.assertEqual(len(self.client.json("tokenize", "--text", text, "--special")["token_ids"]),
                         1)

    def test_chat_renders_the_template(self):
        result = self.client.json("generate", "--chat", "--system", "You answer in one word.",
                                  "--prompt", "Hi", "--max-tokens", "4")
        self.assertGreater(result["usage"]["prompt_tokens"], 12)

    def test_score(self):
        result = self.client.json("score", "--prompt", "The capital of France is Paris.")
        odd = self.client.json("score", "--prompt", "The capital of France is purple.")
        self.assertEqual(set(result), {"tokens", "mean_nll"})
        self.assertLess(result["mean_nll"], odd["mean_nll"])

    def test_status(self):
        status = self.client.json("status")
        self.assertEqual(len(status["ranks"]), 2)
        self.assertEqual(status["model"]["vocab"], 49152)
        self.assertEqual(self.client.run("status").returncode, 0)

    def test_trace(self):
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "trace.json"
            trace = self.client.start("trace", "--seconds", "2", "--out", str(path), "--json")
            self.client.json("generate", "--prompt", "Once upon a time " * 100, "--max-tokens", "40",
                             "--ignore-eos")
            out, err = trace.communicate(timeout=120)
            self.assertEqual(trace.returncode, 0, err)
            spans = [event for event in json.loads(path.read_text()) if event["ph"] == "X"]
            self.assertEqual(json.loads(out)["spans"], len(spans))
            self.assertEqual({event["pid"] for event in spans}, {1, 2})
            self.assertIn("communication", {event["cat"] for event in spans})
            self.assertEqual([file.name for file in pathlib.Path(folder).iterdir()], ["trace.json"])

    def test_bad_requests_get_a_status(self):
        self.expect_failure("INVALID_ARGUMENT", "generate", "--prompt", "")
        self.expect_failure("INVALID_ARGUMENT", "generate", "--token-ids-file", "-", stdin="[]")
        message = self.expect_failure("INVALID_ARGUMENT", "generate", "--token-ids-file", "-",
                                      stdin="[1, 49152]")
        self.assertIn("49152", message)
        for flag, value in (("--temperature", "-1"), ("--temperature", "nan"), ("--top-p", "0"),
                            ("--top-p", "1.5"), ("--min-p", "-0.1"), ("--logprobs", "65"),
                            ("--max-tokens", "0"), ("--temperature", "inf")):
            with self.subTest(flag=flag, value=value):
                self.expect_failure("INVALID_ARGUMENT", "generate", "--prompt", "x", flag, value)

    def test_too_long_for_the_context(self):
        message = self.expect_failure("INVALID_ARGUMENT", "generate", "--token-ids-file", "-",
                                      stdin=json.dumps([5] * 8193))
        self.assertIn("8193", message)
        self.assertIn("8192", message)

    def test_invalid_utf8_is_replaced_with_a_note(self):
        result = subprocess.run(self.client.command("generate", "--prompt-file", "-",
                                                    "--max-tokens", "2"),
                                input=b"caf\xe9 au lait", capture_output=True, timeout=60,
                                check=False)
        self.assertEqual(result.returncode, 0, result.stderr)
        self.assertIn(b"not valid UTF-8", result.stderr)

    def test_hostile_text_in_linear_time(self):
        for text in ("a" * 1_000_000, "7" * 1_000_000, "\n" * 1_000_000, " " * 1_000_000,
                     "\u0301" * 300_000):
            start = time.monotonic()
            result = self.client.run("tokenize", "--file", "-", "--json", stdin=text)
            took = time.monotonic() - start
            self.assertEqual(result.returncode, 0, result.stderr)
            self.assertLess(took, 15, f"a megabyte of {text[0]!r}")

    def test_timeout_cancels(self):
        result = self.client.run("--timeout", "0.3", "generate", "--prompt", "Once",
                                 "--ignore-eos", "--max-tokens", "6000")
        self.assertEqual(result.returncode, 1)
        self.assertIn("DEADLINE_EXCEEDED", result.stderr)


class SmallPool(unittest.TestCase):
    def test_too_long_for_the_pool(self):
        with harness.Daemon("ranks.count=2", "kv.memory_bytes=32MiB") as daemon:
            result = daemon.client.run("generate", "--token-ids-file", "-",
                                       stdin=json.dumps([5] * 6000))
            self.assertEqual(result.returncode, 1)
            self.assertRegex(result.stderr, "^ringfill: RESOURCE_EXHAUSTED: .*[0-9]")
            self.assertEqual(daemon.client.run("generate", "--prompt", "Hi", "--max-tokens",
                                               "8").returncode, 0)
            daemon.wait_idle()


if __name__ == "__main__":
    harness.main()
