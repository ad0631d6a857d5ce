#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Golden token ids from the tokenizers library, for tests/test_formats_tokenizer.c.

Trains tiny byte-level BPE tokenizers of the shapes that published models use, and encodes random texts with them:

    make_tokenizer_golden.py OUT [--texts N] [--seed K]

OUT/<case>/tokenizer.json, tokenizer_config.json (where the case has one) and golden.json: {"cases": [{"hex": text in
UTF-8 as hex, "ids": without special tokens, "special": with them}]}. The committed files are made with the defaults;
more texts make a longer check: ULY_TEST_DATA=FOLDER_OF_OUT/.. build/tests/test_formats_tokenizer.
"""
import argparse
import json
import os
import random

import tokenizers
from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

LLAMA3 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
          r"|\s*[\r\n]+|\s+(?!\S)|\s+")
QWEN2 = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*"
         r"|\s*[\r\n]+|\s+(?!\S)|\s+")

WORDS = ("the and of to in that he shall unto for his a they be is him not them it with all thou thy was God which my "
         "me said but ye their have will thee from as are when this out were upon man you by Israel king son up there "
         "I'll don't we've it's CAN'T You'Re I'ſ x'ſs 'S'LL tokenizer tokenization sequence sequences "
         "unsequenced 12 345 6789 2024 "
         "naïve façade über größer Việt Nam tiếng không được 日本語 中文 русский язык العربية हिन्दी ไทย 한국어").split()
# code points where dialects of regular expressions and versions of Unicode differ
ODD = [0, 9, 10, 11, 12, 13, 0x1c, 0x1f, 0x20, 0x7f, 0x85, 0xa0, 0xad, 0x17f, 0x212a, 0x130, 0x131, 0x1680, 0x180e,
       0x2003, 0x200b, 0x200d, 0x2028, 0x2029, 0x202f, 0x205f, 0x2060, 0x3000, 0xfeff, 0xfffd, 0xffff, 0x660, 0xb2,
       0x2160, 0x2460, 0x3007, 0x1f600, 0x1f468, 0x1f3fd, 0xfe0f, 0x301, 0x10d40, 0x1c89, 0x16d40, 0x16d70, 0x31350,
       0x2ebf0, 0x1e4d0, 0x1e4f0, 0x323af, 0x10ffff, 0x0e33, 0x1100, 0xac00, 0x2b739, 0x13460]


def random_text(rng):
    kind = rng.randrange(8)
    if kind == 0:  # one thing many times
        return rng.choice([" ", "a", "\n", "ab", "é", "1", "  \n", "'s", "🙂", "the "]) * rng.randrange(1, 70)
    parts = []
    for _ in range(rng.randrange(1, 14)):
        pick = rng.randrange(6)
        if pick < 3:
            parts.append(rng.choice(WORDS))
        elif pick == 3:
            parts.append("".join(chr(rng.choice(ODD)) for _ in range(rng.randrange(1, 4))))
        elif pick == 4:
            parts.append("".join(chr(rng.randrange(32, 127)) for _ in range(rng.randrange(1, 6))))
        else:
            c = rng.randrange(0x80, 0x20000)
            parts.append(chr(c) if not 0xd800 <= c < 0xe000 else "<|end|>")
        parts.append(rng.choice(["", " ", " ", " ", "  ", "\n", "\r\n", "\t ", "<|end|>", "<pad>", "<|e", "<|end|> x"]))
    return "".join(parts)


def train(pre, post=None, ignore_merges=False, vocab=600, special=("<|end|>", "<pad>"), unprinted=()):
    t = Tokenizer(models.BPE(ignore_merges=ignore_merges))
    t.pre_tokenizer = pre
    t.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(vocab_size=vocab, show_progress=False, special_tokens=list(special),
                                  initial_alphabet=pre_tokenizers.ByteLevel.alphabet())
    rng = random.Random(1)
    t.train_from_iterator([" ".join(rng.choice(WORDS) for _ in range(20)) for _ in range(400)] +
                          ["a" * 9, " " * 9, "\n\n\n\n  \t"] * 50, trainer)
    if unprinted:
        t.add_tokens([AddedToken(x, normalized=True) for x in unprinted])
    if post:
        t.post_processor = post(t)
    return t


def template(t):
    i = t.token_to_id("<|end|>")
    return processors.Sequence([
        processors.ByteLevel(trim_offsets=False),
        processors.TemplateProcessing(single="<|end|> $A:0 <pad>:1", special_tokens=[
            ("<|end|>", i), ("<pad>", t.token_to_id("<pad>"))])])


def split(pattern):
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(pattern), behavior="isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def cases():
    byte_level = pre_tokenizers.ByteLevel
    yield "gpt2", train(byte_level(add_prefix_space=False)), {"eos_token": "<|end|>", "add_bos_token": False}
    yield "prefix", train(byte_level(add_prefix_space=True), vocab=400), None
    yield "llama3", train(split(LLAMA3), template, ignore_merges=True, unprinted=("sequence", "日本")), {
        "bos_token": "<|end|>", "eos_token": {"content": "<pad>", "special": True}}
    yield "qwen2", train(split(QWEN2), lambda t: processors.ByteLevel(trim_offsets=False)), {"eos_token": "<|end|>"}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("out")
    parser.add_argument("--texts", type=int, default=250)
    parser.add_argument("--seed", type=int, default=7)
    args = parser.parse_args()
    print("tokenizers", tokenizers.__version__)
    for name, t, config in cases():
        folder = os.path.join(args.out, name)
        os.makedirs(folder, exist_ok=True)
        data = json.loads(t.to_str())
        if name in ("gpt2", "prefix"):  # the older spelling of merges
            data["model"]["merges"] = [" ".join(m) for m in data["model"]["merges"]]
        with open(os.path.join(folder, "tokenizer.json"), "w") as f:
            json.dump(data, f, ensure_ascii=False, separators=(",", ":"))
        if config:
            with open(os.path.join(folder, "tokenizer_config.json"), "w") as f:
                json.dump(config, f)
        t = Tokenizer.from_file(os.path.join(folder, "tokenizer.json"))
        rng = random.Random(args.seed)
        rows = []
        for text in [""] + [random_text(rng) for _ in range(args.texts)]:
            rows.append({"hex": text.encode().hex(), "ids": t.encode(text, add_special_tokens=False).ids,
                         "special": t.encode(text).ids})
        with open(os.path.join(folder, "golden.json"), "w") as f:
            f.write('{"cases": [\n' + ",\n".join(json.dumps(r, separators=(",", ":")) for r in rows) + "\n]}\n")
        print(name, t.get_vocab_size(), sum(len(r["ids"]) for r in rows), "ids")


main()
