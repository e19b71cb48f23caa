"""How two greedy generations are compared: token by token while the model is sure."""


def top_differences(step):
    """Log-probability of each listed token minus that of the likeliest one."""
    best = step["top"][0]["logprob"]
    return {entry["token_id"]: entry["logprob"] - best for entry in step["top"]}


def margin(step):
    """How far the likeliest token is ahead of the second."""
    return step["top"][0]["logprob"] - step["top"][1]["logprob"]


def largest_difference(one, other):
    """Largest difference of a log-probability between two generations, and at which step.

    Steps after the first one at which they took different tokens are not comparable; taking
    different tokens is only fine where both have nearly the same probability.
    """
    worst, worst_step = 0.0, -1
    for step, (a, b) in enumerate(zip(one["logprobs"], other["logprobs"])):
        a_top = {entry["token_id"]: entry["logprob"] for entry in a["top"]}
        b_top = {entry["token_id"]: entry["logprob"] for entry in b["top"]}
        # The last listed token may be another one where two are nearly as likely.
        shared = a_top.keys() & b_top.keys()
        assert len(shared) >= len(a_top) - 1, f"step {step}: {a_top} against {b_top}"
        for token in shared:
            difference = abs(a_top[token] - b_top[token])
            if difference > worst:
                worst, worst_step = difference, step
        if a["token_id"] != b["token_id"]:
            assert margin(a) < 0.002, f"step {step}: other token at a margin of {margin(a)}"
            break
    return worst, worst_step
