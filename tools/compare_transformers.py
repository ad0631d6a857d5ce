#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Compares the program with Transformers, live, on any folder of a supported family and any text or rows.

    python3 tools/compare_transformers.py MODEL --data FILE... [--max-length N] [--rows N] [--dtype float32|bfloat16]
            [--nproc N] [--no-gradients] [--program build/ulysses]

Prints and checks, with the tolerances of docs/numerics.md:
1. the folder loads with AutoModelForCausalLM and, where it has a tokenizer, AutoTokenizer, without any warning;
2. rows: they go to the program as input_ids that Transformers' tokenizer made, and files of text also as they are,
   which must give the same loss;
3. the loss of `ulysses eval` against Transformers', which runs row by row;
4. every gradient of `ulysses train --dump-gradients` (first step, all rows in one step) against autograd's.
In bfloat16 the limit is 1.5 times the error that Transformers itself makes. Needs torch, transformers and safetensors; no
network. Exit status 1 when something differs.
"""
import argparse
import glob
import json
import logging
import os
import subprocess
import sys
import tempfile
import warnings

os.environ.setdefault("HF_HUB_OFFLINE", "1")
import torch  # noqa: E402
import torch.nn.functional as F  # noqa: E402
import transformers  # noqa: E402
from safetensors.torch import load_file  # noqa: E402

GRADIENT_FLOOR = 1e-3  # of the largest gradient norm
FAULTS = []


def check(name, value, limit):
    good = value <= limit
    print("%-4s %-52s %.3g (at most %.3g)" % ("ok" if good else "BAD", name, value, limit))
    if not good:
        FAULTS.append(name)


class Collector(logging.Handler):
    def __init__(self):
        super().__init__(logging.WARNING)
        self.lines = []

    def emit(self, record):
        self.lines.append(record.getMessage())


def load_quietly(folder):
    """Model and tokenizer (or None), and whatever was said while loading."""
    collector = Collector()
    logger = logging.getLogger("transformers")
    logger.addHandler(collector)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model, info = transformers.AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.float32, output_loading_info=True)
        tokenizer = None
        if os.path.exists(os.path.join(folder, "tokenizer.json")):
            tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    logger.removeHandler(collector)
    said = collector.lines + [str(w.message) for w in caught]
    said += ["%s: %s" % (key, value) for key, value in info.items() if value]
    return model, tokenizer, said


def split(ids, labels, length):
    """Pieces of at most `length` tokens; the next starts with the last token of the one before."""
    at = 0
    while True:
        piece = labels[at:at + length]
        yield dict(input_ids=ids[at:at + length], labels=[-100] + piece[1:])
        if at + length >= len(ids):
            return
        at += length - 1


def read_rows(files, tokenizer, length):
    rows = []
    for path in files:
        text = open(path, encoding="utf-8", newline="").read()
        if path.endswith(".txt"):
            documents = [dict(text=text)]
        else:
            documents = [json.loads(line) for line in text.split("\n") if line.strip()]
        for document in documents:
            if "text" in document:
                ids = tokenizer(document["text"], verbose=False)["input_ids"]
                if tokenizer.eos_token_id is not None and ids[-1:] != [tokenizer.eos_token_id]:
                    ids = ids + [tokenizer.eos_token_id]
                labels = ids
            else:
                ids = document["input_ids"]
                labels = document.get("labels", ids)
            rows += split(ids, labels, length)
    return rows


def forget_rows(model):
    """A dynamic rope grows with the longest row so far; here, as in training, each row is the first."""
    rope = model.model.rotary_emb
    if rope.rope_type == "dynamic":
        rope.max_seq_len_cached = rope.original_max_seq_len
        rope.inv_freq = rope.original_inv_freq.clone()


def token_losses(model, row):
    forget_rows(model)
    labels = torch.tensor(row["labels"][1:] + [-100])
    logits = model(input_ids=torch.tensor([row["input_ids"]])).logits[0].float()
    return F.cross_entropy(logits, labels, reduction="none", ignore_index=-100)


def reference(model, rows, gradients):
    """Mean loss over valid labels and, where asked, its gradients, summed over rows in float32."""
    valid = sum(label != -100 for row in rows for label in row["labels"][1:])
    total, grads = 0.0, {}
    for row in rows:
        model.zero_grad()
        with torch.set_grad_enabled(gradients):
            losses = token_losses(model, row)
            total += losses.double().sum().item()
            if gradients:
                (losses.sum() / valid).backward()
        if gradients:
            for name, p in model.named_parameters():
                g = p.grad.float()
                grads[name] = grads[name] + g if name in grads else g.clone()
    return total / valid, grads


def program(options, *words):
    command = [options.program] + list(words)
    print("$", " ".join(command), flush=True)
    done = subprocess.run(command, capture_output=True, text=True)
    if done.returncode != 0:
        sys.exit("%s\n%s\nexit status %d" % (done.stdout, done.stderr, done.returncode))
    return done.stdout


def evaluate(options, data):
    out = program(options, "eval", "--model", options.model, "--data", *data, "--max-length", str(options.max_length),
                  "--dtype", options.dtype, "--nproc", str(options.nproc), "--json")
    return json.loads(out[out.index("{"):])["eval_loss"]


def compare_gradients(options, rows, data, want, own_errors, work):
    dump = os.path.join(work, "gradients")
    program(options, "train", "--model", options.model, "--data", data, "--output-dir", os.path.join(work, "out"),
            "--max-length", str(options.max_length), "--dtype", options.dtype, "--nproc", str(options.nproc),
            "--global-batch-size", str(len(rows)), "--per-device-train-batch-size", "1", "--max-steps", "1",
            "--train-sampling-strategy", "sequential", "--dump-gradients", dump)
    got = {}
    for path in sorted(glob.glob(os.path.join(dump, "**", "*.safetensors"), recursive=True)):
        got.update(load_file(path))
    if set(got) != set(want):
        FAULTS.append("names of gradients: %s" % sorted(set(got) ^ set(want)))
    for name, error in errors(got, want).items():
        check("gradient of " + name, error, 1.5 * own_errors[name] if own_errors else 1e-4)


def errors(got, want):
    floor = GRADIENT_FLOOR * max(g.norm().item() for g in want.values())
    return {n: ((got[n] - want[n]).norm() / max(want[n].norm().item(), floor)).item() for n in want if n in got}


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--data", nargs="+", required=True)
    parser.add_argument("--max-length", type=int, default=1024)
    parser.add_argument("--rows", type=int, default=0, help="the first N rows only")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--nproc", type=int, default=1)
    parser.add_argument("--no-gradients", action="store_true")
    parser.add_argument("--program", default="build/ulysses")
    options = parser.parse_args()

    transformers.utils.logging.disable_progress_bar()
    model, tokenizer, said = load_quietly(options.model)
    for line in said:
        print("BAD  loading said:", line)
        FAULTS.append("a warning while loading")
    rows = read_rows(options.data, tokenizer, options.max_length)
    whole = not options.rows or options.rows >= len(rows)
    rows = rows if whole else rows[:options.rows]
    print("%d rows of at most %d tokens" % (len(rows), options.max_length))
    loss, grads = reference(model, rows, not options.no_gradients)
    loss_limit, own_errors = 1e-5, None
    if options.dtype == "bfloat16":
        loss_limit = 1e-3
        _, own = reference(model.to(torch.bfloat16), rows, not options.no_gradients)
        own_errors = errors(own, grads) if own else None
    print("Transformers %s: loss %.7f" % (transformers.__version__, loss))

    with tempfile.TemporaryDirectory() as work:
        data = os.path.join(work, "rows.jsonl")
        with open(data, "w", encoding="utf-8") as file:
            file.writelines(json.dumps(row) + "\n" for row in rows)
        check("loss of rows", abs(evaluate(options, [data]) - loss) / loss, loss_limit)
        if whole and tokenizer:
            check("loss of the files as they are", abs(evaluate(options, options.data) - loss) / loss, loss_limit)
        if not options.no_gradients:
            compare_gradients(options, rows, data, grads, own_errors, work)
    print("differs: " + ", ".join(FAULTS) if FAULTS else "the same within the tolerances")
    return 1 if FAULTS else 0


if __name__ == "__main__":
    sys.exit(main())
