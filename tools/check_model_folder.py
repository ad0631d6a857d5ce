#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Loads model folders with Transformers and fails on any warning, missing, unexpected or mismatched tensor.

    check_model_folder.py DIR [--same-as DIR2] [--bytes]

--same-as: the weights of DIR2 must be equal, bit for bit. --bytes: the tokenizer must be the one of `ulysses init`:
one token a byte, special ids kept; random texts are encoded and decoded with it.
"""
import argparse
import logging
import random
import sys
import warnings

import torch
import transformers
from transformers import AutoConfig, AutoModelForCausalLM, AutoTokenizer


class Catcher(logging.Handler):
    records = []

    def emit(self, record):
        self.records.append(record.getMessage())


def load(path):
    model, info = AutoModelForCausalLM.from_pretrained(path, output_loading_info=True)
    problems = {k: v for k, v in info.items() if v}
    assert not problems, f"{path}: {problems}"
    return model


def check_bytes(path, tokenizer):
    config = AutoConfig.from_pretrained(path)
    first = lambda x: x[0] if isinstance(x, list) else x
    special = [first(getattr(config, k)) for k in ("bos_token_id", "eos_token_id", "pad_token_id")]
    assert special == [tokenizer.bos_token_id, tokenizer.eos_token_id, tokenizer.pad_token_id], special
    ids = [i for i in range(len(tokenizer) + 3) if i not in special][:256]
    rng = random.Random(5)
    for _ in range(2000):
        text = "".join(chr(rng.choice([rng.randrange(128), rng.randrange(0xd800), rng.randrange(0xe000, 0x110000)]))
                       for _ in range(rng.randrange(30)))
        expected = [ids[b] for b in text.encode()]
        assert tokenizer(text).input_ids == expected, text
        assert tokenizer.decode(expected) == text, text
    if tokenizer.eos_token:
        assert tokenizer("a" + tokenizer.eos_token).input_ids == [ids[97], tokenizer.eos_token_id]


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("folder")
    parser.add_argument("--same-as")
    parser.add_argument("--bytes", action="store_true")
    args = parser.parse_args()
    transformers.logging.get_logger().addHandler(Catcher())
    transformers.logging.set_verbosity_warning()
    logging.captureWarnings(True)
    logging.getLogger("py.warnings").addHandler(Catcher())
    warnings.simplefilter("default")
    model = load(args.folder)
    if args.same_as:
        other = load(args.same_as).state_dict()
        mine = model.state_dict()
        assert sorted(other) == sorted(mine)
        assert all(torch.equal(mine[k], other[k].to(mine[k].dtype)) for k in mine), "weights differ"
    text = "no tokenizer"
    try:
        tokenizer = AutoTokenizer.from_pretrained(args.folder)
    except (OSError, ValueError) as error:
        assert not args.bytes, error
    else:
        text = f"{type(tokenizer).__name__} of {len(tokenizer)} tokens"
        if args.bytes:
            check_bytes(args.folder, tokenizer)
        out = model.generate(**tokenizer("In the beginning", return_tensors="pt"), max_new_tokens=3, do_sample=False)
        assert out.shape[1] > 3
    if Catcher.records:
        sys.exit("warnings:\n" + "\n".join(Catcher.records))
    print(f"{args.folder}: {sum(p.numel() for p in model.parameters())} parameters in {model.dtype}, {text}, no warning")


main()
