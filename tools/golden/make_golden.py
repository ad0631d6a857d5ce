#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Makes tests/golden/: tiny folders of every family and rope type, and what Transformers says about them.

    python3 tools/golden/make_golden.py [OUT [CASE...]]     (needs torch and transformers; OUT is tests/golden)

Each case is a model folder as `save_pretrained` writes it, with three more files:

rows.jsonl          rows with input_ids and labels as people publish them (not shifted): uneven lengths, masks in the
                    middle, a row of one token, a row without a label
golden.json         loss (sum of token losses / valid tokens, over all rows), token losses, the losses and gradient norms
                    of ten AdamW steps, and the errors that Transformers itself makes in bfloat16
golden.safetensors  float32: every gradient of that loss under its parameter's name, and `logits` of one row

Transformers runs one row at a time, so that no padding, packing or mask of its own is in the reference, and a dynamic rope
starts anew with each row: left alone it keeps the longest row it has seen.
"""
import copy
import json
import os
import sys
import tempfile

import torch
import torch.nn.functional as F
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, LlamaConfig, MistralConfig, Qwen2Config, Qwen3Config

CASES = {
    # grouped queries, a prime vocabulary
    "gqa": dict(hidden_size=64, num_attention_heads=8, num_key_value_heads=2, intermediate_size=40, vocab_size=97),
    # one tensor for the embedding and the head
    "tied": dict(hidden_size=48, num_attention_heads=6, num_key_value_heads=3, intermediate_size=56, vocab_size=131,
                 tie_word_embeddings=True, rms_norm_eps=1e-5),
    # every bias that Llama can have, and as many kv heads as heads (a prime number)
    "bias": dict(hidden_size=40, num_attention_heads=5, num_key_value_heads=5, intermediate_size=44, vocab_size=89,
                 attention_bias=True, mlp_bias=True),
    # a head size of its own, and a rope whose three bands of wavelengths all have members
    "llama3": dict(hidden_size=32, num_attention_heads=4, num_key_value_heads=1, head_dim=16, intermediate_size=48,
                   vocab_size=101, rms_norm_eps=1e-5,
                   rope_parameters=dict(rope_type="llama3", rope_theta=500.0, factor=8.0, low_freq_factor=1.0,
                                        high_freq_factor=4.0, original_max_position_embeddings=32)),
    # a window shorter than most rows, on every layer
    "mistral": dict(config=MistralConfig, hidden_size=32, num_attention_heads=4, num_key_value_heads=2,
                    intermediate_size=40, vocab_size=59, sliding_window=7),
    # biases of q, k, v alone; the second layer has a window
    "qwen2": dict(config=Qwen2Config, hidden_size=36, num_attention_heads=6, num_key_value_heads=2,
                  intermediate_size=32, vocab_size=61, use_sliding_window=True, sliding_window=5, max_window_layers=1),
    # norms of heads, which are wider than hidden_size / heads; layer_types, the first with a window
    "qwen3": dict(config=Qwen3Config, hidden_size=24, num_attention_heads=4, num_key_value_heads=2, head_dim=10,
                  intermediate_size=32, vocab_size=53, attention_bias=True, use_sliding_window=True, sliding_window=9,
                  layer_types=["sliding_attention", "full_attention"]),
    "linear": dict(hidden_size=24, num_attention_heads=3, num_key_value_heads=1, intermediate_size=32, vocab_size=47,
                   rope_parameters=dict(rope_type="linear", rope_theta=300.0, factor=2.5)),
    # rows of up to 16 tokens keep the base, each longer one has its own
    "dynamic": dict(hidden_size=24, num_attention_heads=3, num_key_value_heads=3, intermediate_size=32, vocab_size=47,
                    max_position_embeddings=16,
                    rope_parameters=dict(rope_type="dynamic", rope_theta=300.0, factor=3.0)),
    # kept, blended and stretched dimensions, and a factor of cos and sin
    "yarn": dict(hidden_size=24, num_attention_heads=2, num_key_value_heads=1, head_dim=16, intermediate_size=32,
                 vocab_size=47, rope_parameters=dict(rope_type="yarn", rope_theta=500.0, factor=4.0, beta_fast=4.0,
                                                     original_max_position_embeddings=32)),
    # rows of up to 16 tokens take the short factors, longer ones the long ones
    "longrope": dict(hidden_size=24, num_attention_heads=3, num_key_value_heads=1, intermediate_size=32, vocab_size=47,
                     rope_parameters=dict(rope_type="longrope", rope_theta=300.0, short_factor=[1.0, 1.25, 1.5, 2.0],
                                          long_factor=[1.0, 2.0, 4.0, 8.0], factor=8.0,
                                          original_max_position_embeddings=16)),
}
LENGTHS = [29, 1, 17, 2, 71, 11, 7, 23]
LOGITS_ROW = 0
ROWS_PER_STEP = 3
STEPS = 10
STARTS = 8
ADAMW = dict(learning_rate=5e-3, weight_decay=0.1, max_grad_norm=1.0, adam_beta1=0.9, adam_beta2=0.999,
             adam_epsilon=1e-8)
GRADIENT_FLOOR = 1e-3  # of the largest gradient norm: below it a tensor's relative error says nothing


def make_model(sizes, seed):
    torch.manual_seed(seed)
    sizes = dict(dict(num_hidden_layers=2, max_position_embeddings=128, config=LlamaConfig), **sizes)
    config = sizes.pop("config")(**sizes)
    model = AutoModelForCausalLM.from_config(config).float()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "norm" in name:
                p.copy_(1 + 0.2 * torch.randn_like(p))
            elif name.endswith("bias"):
                p.copy_(0.3 * torch.randn_like(p))
            else:
                p.copy_(torch.randn_like(p) / p.shape[1] ** 0.5)
    return model


def make_rows(vocab, seed):
    generator = torch.Generator().manual_seed(seed)
    rows = []
    for i, n in enumerate(LENGTHS):
        ids = torch.randint(0, vocab, (n,), generator=generator)
        labels = ids.clone()
        if i == 3:
            labels[:] = -100  # a row without a label
        elif n > 5:
            labels[: n // 4] = -100  # as a prompt is
            labels[torch.rand(n, generator=generator) < 0.2] = -100
        rows.append(dict(input_ids=ids.tolist(), labels=labels.tolist()))
    return rows


def forget_rows(model):
    """A dynamic rope grows with the longest row so far; each row here is the first."""
    rope = model.model.rotary_emb
    rope.max_seq_len_cached = rope.original_max_seq_len
    rope.inv_freq = rope.original_inv_freq.clone()


def token_losses(model, row):
    """Loss of each token against the next label, 0 where there is none, and the logits."""
    ids = torch.tensor([row["input_ids"]])
    forget_rows(model)
    labels = torch.tensor(row["labels"][1:] + [-100])
    logits = model(input_ids=ids).logits[0]
    dtype = torch.float64 if logits.dtype == torch.float64 else torch.float32
    return F.cross_entropy(logits.to(dtype), labels, reduction="none", ignore_index=-100), logits


def n_valid(rows):
    return sum(label != -100 for row in rows for label in row["labels"][1:])


def run(model, rows):
    """Loss over all rows, its gradients (summed over rows outside the model, in at least float32), token losses."""
    total = 0.0
    losses = []
    grads = {}
    for row in rows:
        model.zero_grad()
        each, _ = token_losses(model, row)
        (each.sum() / n_valid(rows)).backward()
        total += each.double().sum().item()
        losses.append(each.detach().double())
        for name, p in model.named_parameters():
            g = p.grad.detach()
            g = g if g.dtype == torch.float64 else g.float()
            grads[name] = grads[name] + g if name in grads else g.clone()
    return total / n_valid(rows), grads, torch.cat(losses)


def logits_of(model, row):
    with torch.no_grad():
        return token_losses(model, row)[1].clone()


def relative(a, b, floor=0.0):
    return ((a.double() - b.double()).norm() / max(b.double().norm().item(), floor)).item()


def gradient_errors(grads, reference):
    floor = GRADIENT_FLOOR * max(g.double().norm().item() for g in reference.values())
    return {name: relative(grads[name], reference[name], floor) for name in reference}


def adamw(model, rows):
    """Losses and gradient norms of the steps, as the Trainer makes them with a constant learning rate. A bfloat16 model
    has float32 master weights, whose rounded copy it gets after each step."""
    keep = torch.float64 if model.dtype == torch.float64 else torch.float32
    masters = {n: torch.nn.Parameter(p.detach().to(keep, copy=True)) for n, p in model.named_parameters()}
    decay = [p for p in masters.values() if p.dim() == 2]
    other = [p for p in masters.values() if p.dim() != 2]
    optimizer = torch.optim.AdamW(
        [dict(params=decay, weight_decay=ADAMW["weight_decay"]), dict(params=other, weight_decay=0.0)],
        lr=ADAMW["learning_rate"], betas=(ADAMW["adam_beta1"], ADAMW["adam_beta2"]), eps=ADAMW["adam_epsilon"])
    batches = [rows[i:i + ROWS_PER_STEP] for i in range(0, len(rows), ROWS_PER_STEP)]  # an epoch; the last is short
    losses, norms = [], []
    for step in range(STEPS):
        batch = batches[step % len(batches)]
        loss, grads, _ = run(model, batch)
        for name, p in masters.items():
            p.grad = grads[name]
        norms.append(torch.nn.utils.clip_grad_norm_(masters.values(), ADAMW["max_grad_norm"]).item())
        losses.append(loss)
        optimizer.step()
        with torch.no_grad():
            for name, p in model.named_parameters():
                p.copy_(masters[name])
    return losses, norms


def adamw_error_in_bfloat16(model, rows, start):
    """Error of the ten losses. How errors grow over steps is chance (it varies threefold), so it is taken from several
    starts, which differ from the model's weights by a thousandth."""
    generator = torch.Generator().manual_seed(start)
    moved = copy.deepcopy(model)
    with torch.no_grad():
        for p in moved.parameters():
            p.mul_(1 + (1e-3 if start > 0 else 0.0) * torch.randn(p.shape, generator=generator))
    with tempfile.TemporaryDirectory() as folder:
        moved.save_pretrained(folder)
        both = [adamw(AutoModelForCausalLM.from_pretrained(folder, dtype=dtype), rows)[0]
                for dtype in (torch.float32, torch.bfloat16)]
    return relative(torch.tensor(both[1]), torch.tensor(both[0]))


def make_case(name, sizes, out):
    seed = 1000 + list(CASES).index(name)
    model = make_model(sizes, seed)
    rows = make_rows(sizes["vocab_size"], seed)
    folder = os.path.join(out, name)
    model.save_pretrained(folder)

    loss, grads, losses = run(model, rows)
    logits = logits_of(model, rows[LOGITS_ROW])

    def fresh(dtype):
        return AutoModelForCausalLM.from_pretrained(folder, dtype=dtype)

    # how far float32 itself is from the truth, so that the tests' tolerances mean something
    loss64, grads64, _ = run(fresh(torch.float64), rows)
    exact = dict(loss=abs(loss - loss64) / loss64, gradients=max(gradient_errors(grads, grads64).values()),
                 logits=(logits - logits_of(fresh(torch.float64), rows[LOGITS_ROW])).abs().max().item())
    loss16, grads16, losses16 = run(fresh(torch.bfloat16), rows)
    logits16 = logits_of(fresh(torch.bfloat16), rows[LOGITS_ROW])
    bf16 = dict(loss=abs(loss16 - loss) / loss, token_losses=relative(losses16, losses),
                logits=relative(logits16, logits), logits_max=(logits16 - logits).abs().max().item(),
                gradients=gradient_errors(grads16, grads))
    steps, norms = adamw(fresh(torch.float32), rows)
    steps64, _ = adamw(fresh(torch.float64), rows)
    bf16["adamw_losses"] = max(adamw_error_in_bfloat16(model, rows, start) for start in range(STARTS))
    steps_error = max(abs(a - b) / b for a, b in zip(steps, steps64))

    golden = dict(
        made_with=dict(torch=torch.__version__, transformers=transformers.__version__),
        n_valid=n_valid(rows), loss=loss, token_losses=[round(x, 7) for x in losses.tolist()], logits_row=LOGITS_ROW,
        adamw=dict(ADAMW, rows_per_step=ROWS_PER_STEP, losses=steps, grad_norms=norms),
        bfloat16_errors_of_transformers=bf16, float32_errors_of_transformers=dict(exact, adamw_losses=steps_error))
    with open(os.path.join(folder, "golden.json"), "w", encoding="utf-8") as file:
        json.dump(golden, file, indent=1)
        file.write("\n")
    with open(os.path.join(folder, "rows.jsonl"), "w", encoding="utf-8") as file:
        for row in rows:
            file.write(json.dumps(row) + "\n")
    save_file({**grads, "logits": logits}, os.path.join(folder, "golden.safetensors"))
    print("%-8s loss %.6f steps %.4f -> %.4f, norms %.2f to %.2f, float32 error: loss %.1e gradients %.1e logits %.1e "
          "steps %.1e; bfloat16: loss %.1e gradients up to %.3f steps %.1e"
          % (name, loss, steps[0], steps[-1], min(norms), max(norms), exact["loss"], exact["gradients"],
             exact["logits"], steps_error, bf16["loss"], max(bf16["gradients"].values()), bf16["adamw_losses"]))


def main():
    here = os.path.dirname(os.path.abspath(__file__))
    out = sys.argv[1] if len(sys.argv) > 1 else os.path.join(here, "..", "..", "tests", "golden")
    torch.set_num_threads(1)
    transformers.utils.logging.disable_progress_bar()
    torch.use_deterministic_algorithms(True)
    for name, sizes in CASES.items():
        if len(sys.argv) > 2 and name not in sys.argv[2:]:
            continue
        make_case(name, sizes, out)


if __name__ == "__main__":
    main()
