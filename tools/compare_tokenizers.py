#!/usr/bin/env python3
"""Compare Ringfill's tokenizer with others over generated text in many scripts.

For the pre-tokenizer that the model names, the reference is llama-cpp-python. For the others, the
model's vocabulary and merges are given to Hugging Face's `tokenizers` with the regular expression
that models of the kind ship with; texts with bytes that the vocabulary lacks are left out there,
because that library merges across the gap. Exit status 1 when any text differs.
"""

import argparse
import json
import random
import subprocess
import sys
import unicodedata

GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}"
    r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")

RANGES = [
    (0x20, 0x7E), (0xA0, 0x24F), (0x300, 0x36F), (0x370, 0x3FF), (0x400, 0x52F), (0x531, 0x58F),
    (0x591, 0x5F4), (0x600, 0x6FF), (0x900, 0x97F), (0x980, 0x9FF), (0xB80, 0xBFF),
    (0xE00, 0xE7F),
    (0x0F00, 0x0FDA), (0x1000, 0x109F), (0x10A0, 0x10FF), (0x1100, 0x11FF), (0x1200, 0x137F),
    (0x13A0, 0x13FF), (0x1780, 0x17FF), (0x1800, 0x18AF), (0x1E00, 0x1FFF), (0x2000, 0x206F),
    (0x2070, 0x20CF), (0x2100, 0x218F), (0x2190, 0x23FF), (0x2460, 0x24FF), (0x2500, 0x27BF),
    (0x3000, 0x30FF), (0x3130, 0x318F), (0x3200, 0x33FF), (0x4E00, 0x9FFF), (0xA000, 0xA4CF),
    (0xAC00, 0xD7A3), (0xE000, 0xE010), (0xF900, 0xFAFF), (0xFB00, 0xFB4F), (0xFE00, 0xFE0F),
    (0xFE20, 0xFFEF), (0xFFF9, 0xFFFD), (0x10000, 0x100FA), (0x10140, 0x1018E), (0x10300, 0x1034A),
    (0x12000, 0x1236E), (0x1D100, 0x1D1E8), (0x1D400, 0x1D7FF), (0x1F100, 0x1F1FF),
    (0x1F300, 0x1F6FF), (0x1F900, 0x1F9FF), (0x20000, 0x20100), (0xE0001, 0xE007F),
]
WORDS = [
    "the", "The", "it's", "IT'S", "we'll", "WE'LL", "they've", "I'm", "I'M", "you're", "he'd",
    "don't", "DON'T", "'s", "'S", "'ll", "''s", "\u2019s", "o'clock", "'\u017f", "'\u017fs",
    "12", "1234567", "3.14", "1,000", "0x1F", "\u0661\u0662\u0663\u0664", "\u0967\u0968",
    "\u00bd", "\u2167", "\u2460\u2461", "\u4e00\u4e8c", "x\u00b2", "\U0001d7ce\U0001d7cf",
    "hello", "world", "\u043f\u0440\u0438\u0432\u0435\u0442", "\u4f60\u597d\u4e16\u754c",
    "\u0645\u0631\u062d\u0628\u0627", "\u05e9\u05dc\u05d5\u05dd",
    "\u0928\u092e\u0938\u094d\u0924\u0947",
    "\u0e2a\u0e27\u0e31\u0e2a\u0e14\u0e35", "\ud55c\uad6d\uc5b4", "e\u0301", "\u00e9", "\u1e9e",
    "\u01c5", "\u02b0", "\U0001f468\u200d\U0001f469\u200d\U0001f467", "\U0001f44d\U0001f3fd",
    "\U0001f1e9\U0001f1ea", "\u2764\ufe0f", "<|im_start|>", "<|im_end|>", "<|endoftext|>",
    "<|im_", "|>", "<file_sep>", "def f(x):", "return", "a_b", "http://x.y/z?q=1&r=2", "...",
    "!!!", "--", "\u2014", "\u00ab\u00bb", "\u20ac", "$", "#", "@", "{}", "[]", "\\", "\"", "'",
    "`",
    "aaaaaaaaaaaaaaaaaaaaaaaa", "\u0130", "\u212a", "\ufb01",
]
SPACES = [
    " ", "  ", "   ", "\n", "\n\n", "\r\n", "\r", "\t", "\t\t", " \n", "\n ", " \n ", "  \n\n  ",
    "\u00a0", "\u3000", "\u2003", "\u200b", "\u200d", "\ufeff", "\u0085", "\u2028", "\u2029",
    "\u1680", "\u180e", "\u202f", "\u205f", "\u2060", "\x0b", "\x0c", "\x1c", "\x1f", "        ",
]
CONTROLS = ["\x00", "\x01", "\x04", "\x07", "\x08", "\x1b", "\x7f", "\x80", "\x9f", "\u00ad"]


def generate(rng):
    """One text of 1 to 40 parts: words, white space, runs of one script, rare characters."""
    parts = []
    for _ in range(rng.randint(1, 40)):
        kind = rng.random()
        if kind < 0.35:
            parts.append(rng.choice(WORDS))
        elif kind < 0.60:
            parts.append(rng.choice(SPACES) * rng.choice([1, 1, 1, 2, 5]))
        elif kind < 0.85:
            low, high = rng.choice(RANGES)
            parts.append("".join(chr(rng.randint(low, high)) for _ in range(rng.randint(1, 8))))
        elif kind < 0.92:
            parts.append("".join(rng.choice("0123456789") for _ in range(rng.randint(1, 9))))
        elif kind < 0.95:
            parts.append(rng.choice(CONTROLS))
        else:
            code = rng.randint(0, 0x10FFFF)
            parts.append("" if 0xD800 <= code <= 0xDFFF else chr(code))
    return "".join(parts)


def is_stable(text):
    """Unassigned characters have a category that depends on the Unicode version."""
    return all(unicodedata.category(c) != "Cn" for c in text)


def read_vocabulary(path):
    import gguf

    reader = gguf.GGUFReader(path)

    def strings(key):
        field = reader.fields[key]
        return [bytes(field.parts[i]).decode("utf-8") for i in field.data]

    types_field = reader.fields["tokenizer.ggml.token_type"]
    types = [int(types_field.parts[i][0]) for i in types_field.data]
    return strings("tokenizer.ggml.tokens"), types, strings("tokenizer.ggml.merges")


def huggingface(path, pre):
    from tokenizers import AddedToken, Regex, Tokenizer, models, pre_tokenizers

    tokens, types, merges = read_vocabulary(path)
    model = models.BPE(
        vocab={token: i for i, token in enumerate(tokens)},
        merges=[tuple(m.split(" ")) for m in merges],
        ignore_merges=pre == "llama-bpe",
    )
    tokenizer = Tokenizer(model)
    byte_level = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    if pre == "smollm":
        steps = [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    else:
        pattern = {"llama-bpe": LLAMA3, "qwen2": QWEN2, "default": GPT2}[pre]
        steps = [pre_tokenizers.Split(Regex(pattern), "isolated"), byte_level]
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(steps)
    tokenizer.add_special_tokens(
        [AddedToken(t, normalized=False) for t, kind in zip(tokens, types) if kind == 3]
    )
    known = {t for t in tokens if len(t) == 1}

    def encode(text):
        symbols = byte_level.pre_tokenize_str(text)
        if any(c not in known for word, _ in symbols for c in word):
            return None
        return tokenizer.encode(text, add_special_tokens=False).ids

    return encode


def llama_cpp(path):
    from llama_cpp import Llama

    model = Llama(path, vocab_only=True, verbose=False)
    return lambda text: model.tokenize(text.encode("utf-8"), add_bos=False, special=True)


class Ours:
    def __init__(self, tool, path, pre):
        self.process = subprocess.Popen(
            [tool, path, pre], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )

    def encode_all(self, texts):
        lines = "".join(text.encode("utf-8").hex() + "\n" for text in texts)
        out, _ = self.process.communicate(lines)
        return [[int(i) for i in line.split()] for line in out.splitlines()]


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", required=True, help="a GGUF file with a byte-level tokenizer")
    parser.add_argument("--tool", required=True, help="the tokenizer_dump program of a build")
    parser.add_argument("--count", type=int, default=5000, help="texts for each comparison")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--against",
        nargs="+",
        default=["smollm:llama.cpp", "smollm", "llama-bpe", "qwen2", "default"],
        help="pre-tokenizers, against tokenizers unless :llama.cpp is appended",
    )
    parser.add_argument("--any-character", action="store_true", help="unassigned ones too")
    parser.add_argument("--show", type=int, default=5, help="differences to print")
    parser.add_argument("--write-cases", help="write shared hard cases with ids to this JSON file")
    parser.add_argument(
        "--cases", type=int, default=60, help="texts to take them from, for each pre-tokenizer"
    )
    args = parser.parse_args()

    rng = random.Random(args.seed)
    texts = SPACES + WORDS + CONTROLS
    while len(texts) < args.count:
        text = generate(rng)
        if text and (args.any_character or is_stable(text)):
            texts.append(text)

    failed = False
    cases = []
    for against in args.against:
        pre = against.split(":")[0]
        encode = llama_cpp(args.model) if against != pre else huggingface(args.model, pre)
        ours = Ours(args.tool, args.model, pre).encode_all(texts)
        different = compared = 0
        agreed = []
        for text, ids in zip(texts, ours, strict=True):
            theirs = encode(text)
            compared += theirs is not None
            if ids == theirs:
                agreed.append((text, ids))
            if theirs is None or ids == theirs:
                continue
            different += 1
            if different <= args.show:
                print(f"{against}: {text!r}\n  ours   {ids}\n  theirs {theirs}")
        print(f"{against}: {compared} texts, {different} different")
        failed = failed or different > 0
        if against == pre:
            cases += [
                {"pre": pre, "text_hex": text.encode("utf-8").hex(), "ids": ids}
                for text, ids in agreed[-args.cases :]
                if len(text) <= 100
            ]
    if args.write_cases and not failed:
        with open(args.write_cases, "w", encoding="ascii") as out:
            out.write("[\n" + ",\n".join(json.dumps(case) for case in cases) + "\n]\n")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
