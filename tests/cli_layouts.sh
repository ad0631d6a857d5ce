#!/bin/bash
# SPDX-License-Identifier: MIT
# Every method trains to the same numbers over 4 ranks, says what it does and counts what it sends; selfcheck compares all
# layouts of a model with one rank.
. "$(dirname "$0")/support/cli_common.sh"

write_config config.json
write_text book.txt 400
expect 0 uly init model --config config.json --seed 3

# ---- selfcheck on one rank: its stages are all there is, and it says so
expect 0 uly selfcheck --model model --threads 1
[ "$(grep -c '^pass' out.txt)" = 3 ] || fail "three settings of one rank"
grep -q "the first 2 of 2 layers, 320 of 320 ids" out.txt || fail "the model is not told"
grep -q "Only one rank was there" out.txt || fail "it does not say that nothing was exchanged"
expect 0 uly selfcheck --model model --threads 1 --layers 1
grep -q "the first 1 of 2 layers" out.txt || fail "--layers is not obeyed"
# only the tensors of these layers are wanted: the others may be missing
cp -r model front
sed -i 's/"model.layers.1.mlp.up_proj.weight"/"model.layers.7.mlp.up_proj.weight"/' front/model.safetensors
expect 0 uly selfcheck --model front --threads 1 --layers 1
expect 1 uly selfcheck --model front --threads 1
grep -q "model.layers.1.mlp.up_proj.weight is missing" err.txt || fail "the missing tensor is not named"
has_mpirun || { echo ok; exit 0; }

expect 0 uly selfcheck --model model --nproc 2 --threads 1
[ "$(grep -c '^pass' out.txt)" = 6 ] || fail "six layouts of 2 ranks"
expect 0 uly selfcheck --model model --nproc 4 --threads 1
for layout in "ulysses ulysses-size 4, ring-size 1, heads-per-stage 1:" \
    "usp     ulysses-size 2, ring-size 2, heads-per-stage 2:" \
    "ring    ulysses-size 1, ring-size 4, heads-per-stage 4:" "heads-per-stage 1, query-tile 14:"; do
    grep -q "^pass  .*$layout" out.txt || fail "no layout '$layout'"
done
grep -q "^7 layouts of 4 ranks equal one rank" out.txt || fail "the end is not told"

# a window is cut so that it hides something, and head sizes of their own, norms and biases are checked too
for family in Mistral Qwen3; do
    write_config $family.json -e "s/LlamaFor/${family}For/" -e "s/\"llama\"/\"${family,}\"/" \
        -e 's/"hidden_act"/"head_dim": 24, "sliding_window": 200, "hidden_act"/'
    expect 0 uly init $family --config $family.json
    expect 0 uly selfcheck --model $family --nproc 4 --threads 1
    [ "$(grep -c '^pass' out.txt)" = 7 ] || fail "seven layouts of $family"
    [ $family = Qwen3 ] || grep -q "sliding windows cut from 200 to 40 tokens" out.txt || fail "the window is not told"
done

# ---- train: the same losses, gradient norms and evaluation with every method
common="--model model --data book.txt --max-length 256 --dtype float32 --max-steps 3 --learning-rate 3e-3 --global-batch-size 2
    --threads 1 --validation-split 0.1"
expect 0 uly train $common --output-dir one
grep -q "(method ulysses, ulysses-size 1, ring-size 1, heads-per-stage 4)" out.txt || fail "the layout is not told"
# method DIR LAYOUT OPTIONS...
method() {
    local dir=$1 layout=$2
    shift 2
    expect 0 uly train $common --output-dir "$dir" --nproc 4 "$@"
    grep -qF "($layout)" out.txt || fail "the layout is not '$layout'"
    same_values loss one/metrics.jsonl "$dir"/metrics.jsonl 1e-5
    same_values grad_norm one/metrics.jsonl "$dir"/metrics.jsonl 1e-4
    same_values eval_loss one/metrics.jsonl "$dir"/metrics.jsonl 1e-5
    [ "$(values comm_bytes "$dir"/metrics.jsonl | sort -u | wc -l)" = 1 ] || fail "steps of one shape sent different bytes"
}
method auto "method usp, ulysses-size 2, ring-size 2, heads-per-stage 2"
grep -q "auto: 4 ulysses ranks would be sent the 2 kv heads several times; stages of 2 heads fit" out.txt || fail "no reason"
method ulysses "method ulysses, ulysses-size 4, ring-size 1, heads-per-stage 1" --method ulysses
grep -q "auto:" out.txt && fail "a reason where nothing was chosen"
method upipe "method upipe, ulysses-size 2, ring-size 1, heads-per-stage 1" --method upipe --sp-size 2
method tile "method upipe, ulysses-size 4, ring-size 1, heads-per-stage 1, query-tile 17" --method upipe --query-tile 17
method ring "method ring, ulysses-size 1, ring-size 4, heads-per-stage 2" --method ring
method ring3 "method ring, ulysses-size 1, ring-size 4, heads-per-stage 3" --method ring --heads-per-stage 3
method usp "method usp, ulysses-size 2, ring-size 2, heads-per-stage 1" --method usp --ulysses-size 2 --heads-per-stage 1

# ---- bytes of a step, to the byte: one row of 256 tokens, 2 layers, 4 heads of 16 numbers, 2 kv heads, float32, 2 ranks.
# The gradients' sum moves each of the 127,296 once: 509,184. Ulysses: forward q, o, k, v and backward q, dO, dq, k, v, dk, dv
# of 128 tokens, of which half go to the other rank, and delta. Ring: the busiest rank sends k, v of its 128 tokens twice
# and gradients of the other's 64 that it has seen.
awk 'BEGIN { printf "{\"input_ids\": [5"; for (i = 1; i < 256; i++) printf ", %d", i * i % 300; print "]}" }' >row.jsonl
bytes() {
    expect 0 uly train --model model --data row.jsonl --dtype float32 --max-steps 1 --threads 1 --nproc 2 --output-dir bytes \
        --overwrite-output-dir --gradient-checkpointing none --method "$1"
    [ "$(values comm_bytes bytes/metrics.jsonl)" = "$2" ] ||
        fail "$1 sent $(values comm_bytes bytes/metrics.jsonl) bytes, not $2"
}
qkv=$((16 * 128 / 2 * 4)) # one head of half the shard
bytes ulysses $((509184 + 2 * (qkv * (2 * 4 + 2 * 2) + qkv * (3 * 4 + 4 * 2) + 4 * 64 * 4)))
bytes upipe $((509184 + 2 * (qkv * (2 * 4 + 2 * 2) + qkv * (3 * 4 + 4 * 2) + 4 * 64 * 4)))
key=$((2 * 2 * 16 * 4)) # k and v of a token
bytes ring $((509184 + 2 * key * (128 + 128 + 64)))

# options.json of a run gives its layout again, with what auto chose
expect 0 uly train --config-file auto/options.json --output-dir again --nproc 4
grep -qF "(method usp, ulysses-size 2, ring-size 2, heads-per-stage 2)" out.txt || fail "options.json lost the layout"
same_values loss auto/metrics.jsonl again/metrics.jsonl 0

# evaluation takes the same options
expect 0 uly eval --model one --data book.txt --max-length 256 --dtype float32 --json --threads 1
cp out.txt eval.json
expect 0 uly eval --model one --data book.txt --max-length 256 --dtype float32 --json --nproc 4 --method ring --threads 1
same_values eval_loss eval.json out.txt 1e-6
echo ok
