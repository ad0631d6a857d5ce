#!/bin/bash
# SPDX-License-Identifier: MIT
# A model is made, trained over different layouts and evaluated: the loss falls, and no layout changes a number.
. "$(dirname "$0")/support/cli_common.sh"

write_config config.json
write_text book.txt 400
expect 0 uly init model --config config.json --seed 3
[ -f model/model.safetensors ] && [ -f model/tokenizer.json ] || fail "init wrote no model"

# 8 steps of 2 rows: one rank with accumulation, one split over 2 ranks, two replicas
common="--model model --data book.txt --max-length 256 --dtype float32 --max-steps 8 --learning-rate 3e-3
    --global-batch-size 2 --threads 1 --validation-split 0.1"
expect 0 uly train $common --output-dir one
cp out.txt one.txt
for word in "parameters" "dp-size 1 x sp-size 1" "float32" "1 document," "estimate" "eval loss" "AutoModelForCausalLM" \
    "from_pretrained(\"one\")"; do
    grep -qF "$word" one.txt || fail "the story does not say '$word'"
done
first=$(values loss one/metrics.jsonl | head -n 1)
last=$(values loss one/metrics.jsonl | tail -n 1)
awk -v a="$first" -v b="$last" 'BEGIN { exit !(a > 5 && a < 6.5 && b < a - 1) }' || fail "loss $first to $last"
for key in step loss grad_norm learning_rate epoch tokens valid_tokens tokens_per_second tflops step_seconds comm_bytes \
    comm_seconds peak_bytes rss_bytes eval_loss perplexity; do
    [ -n "$(values $key one/metrics.jsonl)" ] || fail "metrics.jsonl has no $key"
done
[ "$(values step one/metrics.jsonl | tail -n 2 | head -n 1)" = 8 ] || fail "the last step is not 8"
for file in config.json model.safetensors tokenizer.json tokenizer_config.json options.json; do
    [ -f "one/$file" ] || fail "one/$file is missing"
done
[ ! -e one/.ulysses.lock ] || fail "the lock is still there"

if has_mpirun; then
    expect 0 uly train $common --output-dir sp2 --nproc 2
    grep -qF "dp-size 1 x sp-size 2" out.txt || fail "the layout is not told"
    grep -q "ranks 0-1 on " out.txt || fail "the rank grid is not told"
    same_values loss one/metrics.jsonl sp2/metrics.jsonl 1e-5
    same_values grad_norm one/metrics.jsonl sp2/metrics.jsonl 1e-4
    same_values eval_loss one/metrics.jsonl sp2/metrics.jsonl 1e-5
    same_values valid_tokens one/metrics.jsonl sp2/metrics.jsonl 0
    [ "$(values comm_bytes sp2/metrics.jsonl | head -n 1)" -gt 0 ] || fail "two ranks sent nothing"
    expect 0 uly train $common --output-dir dp2 --nproc 2 --sp-size 1
    grep -qF "dp-size 2 x sp-size 1" out.txt || fail "the layout is not told"
    same_values loss one/metrics.jsonl dp2/metrics.jsonl 1e-5
    same_values grad_norm one/metrics.jsonl dp2/metrics.jsonl 1e-4
    same_values eval_loss one/metrics.jsonl dp2/metrics.jsonl 1e-5
fi

# options.json is a config file: the same run again, bit for bit
expect 0 uly train --config-file one/options.json --output-dir again
same_values loss one/metrics.jsonl again/metrics.jsonl 0
cmp one/model.safetensors again/model.safetensors || fail "the same run gave another model"
diff <(grep -v output_dir one/options.json) <(grep -v -e output_dir -e config_file again/options.json) ||
    fail "options.json did not survive a round trip"

# the whole evaluation data of the run, from the written folder
expect 0 uly eval --model one --data book.txt --max-length 256 --dtype float32 --json --dump-losses losses.bin
cp out.txt eval.json
[ "$(wc -l <eval.json)" = 1 ] || fail "eval --json printed more than one line"
tokens=$(values tokens eval.json)
[ "$(stat -c %s losses.bin)" = $((tokens * 4)) ] || fail "losses.bin has not one float32 a token"
mean=$(od -An -v -t f4 losses.bin | awk -v n="$(values valid_tokens eval.json)" \
    '{ for (i = 1; i <= NF; i++) s += $i } END { printf "%.9g", s / n }')
close_to "$mean" "$(values eval_loss eval.json)" 1e-6 || fail "the dumped losses have mean $mean"
grep -q '"loss_by_position": \[{"position": 1, ' eval.json || fail "no loss by position"
if has_mpirun; then
    for layout in "--sp-size 2" "--sp-size 1"; do
        expect 0 uly eval --model one --data book.txt --max-length 256 --dtype float32 --json --nproc 2 $layout \
            --dump-losses losses2.bin
        same_values eval_loss eval.json out.txt 1e-6
        same_values valid_tokens eval.json out.txt 0
        cmp -s <(od -An -v -t f4 losses.bin | awk '{ for (i = 1; i <= NF; i++) printf "%.3f\n", $i }') \
            <(od -An -v -t f4 losses2.bin | awk '{ for (i = 1; i <= NF; i++) printf "%.3f\n", $i }') ||
            fail "the losses by token differ with $layout"
    done
fi

# rows beyond the positions that the model knows: said, not refused
awk 'BEGIN { printf "{\"input_ids\": [5"; for (i = 0; i < 520; i++) printf ", 6"; print "]}" }' >beyond.jsonl
expect 0 uly train --model model --data beyond.jsonl --output-dir beyond \
    --max-length 600 --max-steps 1 --dtype float32 --threads 1
grep -q "warning   rows of 521 tokens, but the model's max_position_embeddings is 512" out.txt || fail "no warning of long rows"

# a tokenizer that is not known does not stand in the way of rows of token ids, and is handed on
cp -r model other
sed -i 's/"normalizer": null/"normalizer": {"type": "NFC"}/' other/tokenizer.json
printf '{"input_ids": [5, 6, 7, 9]}\n' >ids.jsonl
expect 0 uly train --model other --data ids.jsonl --output-dir ids --max-steps 1 --dtype float32 --threads 1
cmp other/tokenizer.json ids/tokenizer.json || fail "the tokenizer did not come along"

# rows without any label: the step is told, counts, and changes no weight; rows of one token are rows
printf '{"input_ids": [5, 6, 7], "labels": [-100, -100, -100]}\n{"input_ids": [9]}\n' >unlabelled.jsonl
expect 0 uly train --model model --data unlabelled.jsonl --output-dir unlabelled --max-steps 3 --dtype float32 \
    --weight-decay 0.5 --learning-rate 1e-2 --threads 1
grep -q "none of its . tokens has a label; no weight changed" out.txt || fail "a step without a label is not told"
[ "$(grep -c '"loss": null' unlabelled/metrics.jsonl)" = 3 ] || fail "a step without a label has a loss"
cmp unlabelled/model.safetensors model/model.safetensors || fail "a step without a label changed the weights"
refuses 1 "no token of the data has a label" uly eval --model model --data unlabelled.jsonl --json

# a used folder, on purpose: its old metrics go
expect 0 uly train $common --output-dir unlabelled --overwrite-output-dir
same_values loss one/metrics.jsonl unlabelled/metrics.jsonl 0

# a loss that is not finite ends the run and names the step; the input is still there, no model is written
expect 1 uly train --model model --data book.txt --max-length 256 --output-dir wild --learning-rate 1e30 \
    --lr-scheduler-type constant --dtype float32 --max-steps 5 --threads 1
grep -q "^ulysses: step 2: the " err.txt || fail "the step is not named"
[ ! -e wild/model.safetensors ] || fail "a model was written"

# the other commands
expect 0 uly inspect one
for word in "LlamaForCausalLM" "float32" "lm_head.weight" "[320, 64]"; do
    grep -qF "$word" out.txt || fail "inspect does not say '$word'"
done
expect 0 uly --help
for command in init train eval inspect selfcheck bench; do
    grep -q "ulysses $command" out.txt || fail "help has no $command"
done
for command in init train eval inspect selfcheck bench; do
    expect 0 uly $command --help
    grep -q -- "--" out.txt || fail "$command --help has no options"
done
echo ok
