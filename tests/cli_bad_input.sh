#!/bin/bash
# SPDX-License-Identifier: MIT
# What is wrong is refused: one line that names the cause, exit status 1 or 2, nothing written, no hang.
. "$(dirname "$0")/support/cli_common.sh"

write_config config.json
write_text book.txt 100
expect 0 uly init model --config config.json

# with NAME: a copy of the model to spoil
with() { rm -rf "$1"; cp -r model "$1"; }
train() { uly train --output-dir refused --data book.txt --threads 1 --max-steps 1 "$@"; }

# ---- usage
refuses 2 "no command trian; did you mean train" uly trian
refuses 2 "plan" uly plan --model model
refuses 2 "not there yet" uly tokenize --model model book.txt
refuses 2 "not there yet" uly report one
refuses 2 "--layers takes a whole number, at least 1" uly selfcheck --model model --layers 0
refuses 2 "--model is missing" uly selfcheck
refuses 1 "gone" uly selfcheck --model gone
refuses 2 "not there yet" uly bench adamw
refuses 2 "frobnicate" train --model model --frobnicate 3
refuses 2 "learning-rate" train --model model --learning-rat 3
refuses 2 "save-steps" train --model model --save-steps 10
refuses 2 "packing" train --model model --packing
refuses 2 "resume-from-checkpoint" train --model model --resume-from-checkpoint auto
refuses 2 "max-length" train --model model --max-seq-length 10
refuses 2 "dtype" train --model model --bf16
refuses 2 "model" uly train --output-dir refused --data book.txt
refuses 2 "data" uly train --output-dir refused --model model
refuses 2 "max-steps" train --model model --max-steps many
refuses 2 "sp-size" train --model model --sp-size 2
refuses 2 "dp-size" train --model model --dp-size 2
# methods: one line with the options and the sizes that would work (the model has 4 heads, 2 kv heads)
refuses 2 "--heads-per-stage takes a whole number, at least 1" train --model model --heads-per-stage 0
refuses 2 "--heads-per-stage 5 is more than the 4 of a rank (4 heads over --ulysses-size 1); 1 ... 4 work" \
    train --model model --heads-per-stage 5
refuses 2 "--method ulysses takes all 4 heads of a rank in one stage, but --heads-per-stage is 2: that is --method upipe" \
    train --model model --method ulysses --heads-per-stage 2
refuses 2 "--ring-size 2 does not divide --sp-size 1; these do: 1" train --model model --ring-size 2
refuses 2 "--method takes auto|ulysses|upipe|ring|usp" train --model model --method wheel
refuses 2 "type --ring-size N" train --model model --ring-degree 2
refuses 2 "type --ulysses-size N" train --model model --ulysses_degree 2
refuses 2 "type --sp-size N" train --model model --cp_size 2
if has_mpirun; then
    refuses 2 "--ulysses-size 4 * --ring-size 2 is 8, but --sp-size is 4; these work (ulysses x ring): 1 x 4, 2 x 2, 4 x 1" \
        train --model model --nproc 4 --ulysses-size 4 --ring-size 2
    refuses 2 "--ulysses-size 3 does not divide --sp-size 4; these do: 1, 2, 4" train --model model --nproc 4 --ulysses-size 3
    refuses 2 "--method upipe has no ring, but --ring-size is 2; 1 works, and --method usp takes 1, 2, 4" \
        train --model model --nproc 4 --method upipe --ring-size 2
    refuses 2 "--method ring exchanges no heads, but --ulysses-size is 2" \
        train --model model --nproc 4 --method ring --ulysses-size 2
    refuses 2 "--query-tile 64 needs --ring-size 1" train --model model --nproc 4 --method ring --query-tile 64
    # what only the model can tell: once, by one rank
    refuses 2 "--heads-per-stage 3 is more than the 2 of a rank (4 heads over --ulysses-size 2); 1 ... 2 work" \
        train --model model --nproc 2 --method upipe --heads-per-stage 3 --threads 1
    refuses 2 "sp-size" train --model model --nproc 3 --sp-size 2
    refuses 2 "" train --model model --nproc 4 --sp-size 2 --dp-size 3
    # a cause that only the ranks find out is told once, too
    refuses 1 "empty.jsonl" uly train --output-dir refused --data empty.jsonl --model model --nproc 2 --threads 1
fi
OMPI_COMM_WORLD_SIZE=2 refuses 2 "leave --nproc out (--nproc auto where a config file has it)" train --model model --nproc 2

# ---- model folder
refuses 1 "gone" train --model gone
with bad; rm bad/model.safetensors
refuses 1 "safetensors" train --model bad
with bad; truncate -s -1 bad/model.safetensors
refuses 1 "model.safetensors" train --model bad
with bad; truncate -s 4 bad/model.safetensors
refuses 1 "model.safetensors" train --model bad
# spoil SED: changes the header and keeps its length
spoil() {
    with bad
    sed -i "$1" bad/model.safetensors
    cmp -s bad/model.safetensors model/model.safetensors && fail "the header is as it was: $1"
}
spoil 's/"F32"/"F33"/'
refuses 1 "F33" train --model bad
spoil 's/"lm_head.weight"/"lm_haed.weight"/'
refuses 1 "lm_head.weight" train --model bad
spoil 's/"shape":\[320,64\]/"shape":[64,320]/'
refuses 1 "[64, 320]" train --model bad
spoil 's/"data_offsets":\[0,\([0-9]\)/"data_offsets":[4,\1/'
refuses 1 "model.safetensors" train --model bad
with bad; sed -i 's/LlamaForCausalLM/MambaForCausalLM/' bad/config.json
refuses 1 "MambaForCausalLM" train --model bad
with bad; sed -i 's/"hidden_act"/"rope_scaling": {"rope_type": "wobbly", "factor": 2}, "hidden_act"/' bad/config.json
refuses 1 "wobbly" train --model bad
with bad; sed -i 's/"hidden_act": "silu"/"hidden_act": "gelu"/' bad/config.json
refuses 1 "gelu" train --model bad
with bad; echo '{' >bad/config.json
refuses 1 "config.json" train --model bad
with bad; sed -i 's/"num_key_value_heads": 2/"num_key_value_heads": 3/' bad/config.json
refuses 1 "" train --model bad

# a tokenizer of another kind refuses texts, not rows of token ids (cli_train.sh)
with bad; sed -i 's/"normalizer": null/"normalizer": {"type": "NFC"}/' bad/tokenizer.json
refuses 1 "bad/tokenizer.json: normalizer NFC is not supported yet; rows with" train --model bad

# ---- data
train_on() { uly train --model model --output-dir refused --threads 1 --max-steps 1 --data "$@"; }
refuses 1 "gone.txt" train_on gone.txt
: >empty.txt
refuses 1 "empty.txt" train_on empty.txt
: >empty.jsonl
refuses 1 "empty.jsonl" train_on empty.jsonl
printf '{"text": "one"}\n{"text": "two"\n' >broken.jsonl
refuses 1 "broken.jsonl:2:" train_on broken.jsonl
printf '{"input_ids": [5, 320]}\n' >ids.jsonl
refuses 1 "320" train_on ids.jsonl
printf '{"input_ids": [5, 6, 7], "labels": [5, 6]}\n' >labels.jsonl
refuses 1 "labels.jsonl:1" train_on labels.jsonl
printf '{"chosen": "a", "rejected": "b"}\n' >preference.jsonl
refuses 1 "preference.jsonl:1" train_on preference.jsonl
awk 'BEGIN { printf "{\"input_ids\": [5"; for (i = 0; i < 600; i++) printf ", 6"; print "]}" }' >long.jsonl
refuses 1 "601" train_on long.jsonl
refuses 2 "validation" train --model model --validation-split 1.5

# ---- output folder
touch file
refuses 1 "file" uly train --model model --data book.txt --threads 1 --output-dir file/refused
refuses 1 "file" uly train --model model --data book.txt --threads 1 --output-dir file
refuses 1 "model" uly train --model model --data book.txt --threads 1 --output-dir model
mkdir used
echo '{}' >used/metrics.jsonl
refuses 1 "overwrite-output-dir" uly train --model model --data book.txt --threads 1 --output-dir used
[ "$(ls -A used)" = metrics.jsonl ] || fail "the refused run wrote into the folder"
# a full disk: a small one of our own, where this machine lets us mount it
mkdir full
if mount -t tmpfs -o size=256k tmpfs full 2>/dev/null; then
    trap 'umount "$work/full"; cleanup' EXIT
    refuses 1 "space" uly train --model model --data book.txt --threads 1 --output-dir full/refused
    [ -z "$(ls -A full)" ] || fail "the refused run wrote onto the full disk"
fi

# ---- memory: a row that no machine holds is refused with the numbers before anything is loaded
awk 'BEGIN { for (i = 0; i < 200000; i++) print "0123456789abcdefghijklmnopqrstuvwxyz" }' >huge.txt
with big; sed -i 's/"max_position_embeddings": 512/"max_position_embeddings": 999999999/' big/config.json
if [ "$(awk '/MemAvailable/ { print int($2 / 1048576) }' /proc/meminfo)" -lt 60 ]; then
    refuses 1 "does not fit" uly train --model big --data huge.txt --threads 1 --output-dir refused --max-steps 1 \
        --gradient-checkpointing none --dtype float32
fi
echo ok
