"""N ranks give the answer of one rank, for prompt lengths around what a ring deals out."""

import unittest

import comparison
import harness

TOLERANCE = 0.001
NEW_TOKENS = 6
LONG_PRIME = 3989


def lengths(ranks):
    return [1, 2, 2 * ranks - 1, 2 * ranks + 1, 129, 1000, LONG_PRIME]


class Ranks(unittest.TestCase):
    def test_n_ranks_against_one(self):
        counts = [2, 3, 4, 5]
        reference = {}
        with harness.Daemon("compute.dtype=f32", "ranks.count=1") as daemon:
            ids = harness.document_tokens(daemon.client, LONG_PRIME)
            for length in sorted({length for ranks in counts for length in lengths(ranks)}):
                reference[length] = daemon.client.generate_ids(ids[:length], NEW_TOKENS)
        for ranks in counts:
            with harness.Daemon("compute.dtype=f32", f"ranks.count={ranks}") as daemon:
                for length in lengths(ranks):
                    with self.subTest(ranks=ranks, length=length):
                        result = daemon.client.generate_ids(ids[:length], NEW_TOKENS)
                        self.assertEqual([share["rank"] for share in result["ranks"]],
                                         list(range(ranks)))
                        worst, step = comparison.largest_difference(reference[length], result)
                        print(f"{ranks} ranks, {length} tokens: {worst:.1e}", flush=True)
                        self.assertLessEqual(worst, TOLERANCE, f"at step {step}")
                        self.assertGreaterEqual(step, 0, "bit-equal logits: was anything compared?")


if __name__ == "__main__":
    harness.main()
