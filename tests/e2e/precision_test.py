"""bf16 against f32: the mean negative log-likelihood of a 4K-token text."""

import json
import unittest

import harness

TOKENS = 4096
TOLERANCE = 0.01


class Precision(unittest.TestCase):
    def test_bf16_scores_like_f32(self):
        scores = {}
        for dtype in ("f32", "bf16"):
            with harness.Daemon(f"compute.dtype={dtype}", "ranks.count=2") as daemon:
                ids = harness.document_tokens(daemon.client, TOKENS)
                result = daemon.client.json("score", "--token-ids-file", "-", stdin=json.dumps(ids))
                self.assertEqual(result["tokens"], TOKENS)
                scores[dtype] = result["mean_nll"]
        print(f"mean negative log-likelihood: {scores}")
        self.assertAlmostEqual(scores["bf16"], scores["f32"], delta=TOLERANCE)
        self.assertLess(scores["f32"], 3.0, "a text that the model has read scores well")


if __name__ == "__main__":
    harness.main()
