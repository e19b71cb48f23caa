"""Greedy tokens and log-probabilities against the stored float32 goldens, for 1 to 5 ranks."""

import json
import unittest

import comparison
import harness

GOLDENS = json.loads((harness.SOURCE_DIR / "tests/data/smollm2_135m_q4_1_goldens.json").read_text())
SURE_MARGIN = 0.01
LOGIT_TOLERANCE = 0.01


class Goldens(unittest.TestCase):
    def check_case(self, client, case):
        if case["text"] is not None:
            ids = client.json("tokenize", "--special", "--text", case["text"])["token_ids"]
            self.assertEqual(ids, case["ids"])

        # More than the golden's 8, so that near ties at the end of the list cannot hide one.
        result = client.generate_ids(case["ids"], case["n"], logprobs=16)
        self.assertEqual(len(result["token_ids"]), case["n"])
        self.assertEqual(result["usage"]["prompt_tokens"], len(case["ids"]))
        for step, (ours, golden) in enumerate(zip(result["token_ids"], case["greedy"])):
            if ours == golden:
                continue
            self.assertLessEqual(case["margin"][step], SURE_MARGIN,
                                 f"step {step}: {result['token_ids']} against {case['greedy']}")
            break

        ours = comparison.top_differences(result["logprobs"][0])
        for token, logit in zip(case["top_ids"], case["top_logits"]):
            self.assertIn(token, ours)
            self.assertAlmostEqual(ours[token], logit - case["top_logits"][0],
                                   delta=LOGIT_TOLERANCE, msg=f"token {token}")

    def test_one_to_five_ranks(self):
        for ranks in range(1, 6):
            with harness.Daemon("compute.dtype=f32", f"ranks.count={ranks}") as daemon:
                for case in GOLDENS["cases"]:
                    with self.subTest(ranks=ranks, case=case["name"]):
                        self.check_case(daemon.client, case)


if __name__ == "__main__":
    harness.main()
