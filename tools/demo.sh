#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# make demo: a small language model learns from one long text whose rows are split over two ranks. Everything goes to
# ./demo; what is already there is not made again, so a second run only evaluates.
set -eu
cd "$(dirname "$0")/.."
program=build/ulysses
folder=demo
length=16384 # tokens of a row; a token is a byte here
held_out=32768
say()
{
    printf '\n\033[1m%s\033[0m\n' "$*"
}
if [ ! -t 1 ]; then
    say()
    {
        printf '\n%s\n' "$*"
    }
fi
# shows a command, then runs it
run()
{
    printf '$ %s\n' "$*"
    "$@"
}

mkdir -p "$folder"

# ---- the text: all of it on the first run or not at all
if [ ! -f "$folder/book.txt" ]; then
    say "The King James Bible, as one text"
    bible -f Gen1:1-Rev22:21 >"$folder/bible.tmp" </dev/null
    verses=$(wc -l <"$folder/bible.tmp")
    bytes=$(wc -c <"$folder/bible.tmp")
    if [ "$verses" -ne 31102 ] || [ "$bytes" -lt 4000000 ]; then
        echo "demo: 'bible' printed $verses verses in $bytes bytes; the whole book has 31102 in 4.4 MB" >&2
        exit 1
    fi
    tail -c "$held_out" "$folder/bible.tmp" >"$folder/end.txt"
    head -c -"$held_out" "$folder/bible.tmp" >"$folder/book.part"
    mv "$folder/book.part" "$folder/book.txt"
    rm "$folder/bible.tmp"
    echo "$folder/book.txt: $(wc -c <"$folder/book.txt") bytes to learn from"
    echo "$folder/end.txt: the last $held_out bytes, kept back"
fi

# ---- the model
if [ ! -f "$folder/start/config.json" ]; then
    say "A model with random weights"
    cat >"$folder/config.json" <<END
{
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "hidden_size": 384,
  "intermediate_size": 1024,
  "num_hidden_layers": 2,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "head_dim": 64,
  "hidden_act": "silu",
  "vocab_size": 258,
  "bos_token_id": 256,
  "eos_token_id": 257,
  "max_position_embeddings": $length,
  "rms_norm_eps": 1e-05,
  "rope_theta": 100000.0,
  "tie_word_embeddings": false,
  "torch_dtype": "float32"
}
END
    rm -rf "$folder/start"
    run $program init "$folder/start" --config "$folder/config.json" --seed 1
fi

# ---- training: five minutes at most
if [ ! -f "$folder/out/config.json" ]; then
    say "Two ranks learn from rows of $length tokens, each of which they share"
    run $program train --model "$folder/start" --data "$folder/book.txt" --output-dir "$folder/out" \
        --overwrite-output-dir --nproc 2 --sp-size 2 --max-length $length --dtype float32 \
        --gradient-checkpointing none --max-steps 24 --learning-rate 3e-3 --warmup-steps 2 \
        --lr-scheduler-type cosine --weight-decay 0.1 --time-limit 290
else
    say "The trained model is in $folder/out already (rm -r $folder/out to train again)"
fi
awk -F'[:,]' '/"step":/ && /"loss":/ {
        for (i = 1; i < NF; i++)
            if ($i ~ /"loss"/) { if (n++ == 0) first = $(i + 1); last = $(i + 1) }
    }
    END { printf "\nloss: %.3f at the first step, %.3f at the last of %d\n", first, last, n
          exit !(n > 0 && last < first) }' "$folder/out/metrics.jsonl"

# ---- the same number on one rank and on two
say "The end of the book, which it has not seen: the same loss on one rank and on two"
number()
{
    tr ',{}' '\n\n\n' | awk -F': *' '/"eval_loss"/ {print $2; exit}'
}
evaluate()
{
    $program eval --model "$folder/out" --data "$folder/end.txt" --max-length $length --dtype float32 --json "$@"
}
one=$(evaluate --nproc 1 | number)
two=$(evaluate --nproc 2 --sp-size 2 | number)
echo "1 rank:  $one"
echo "2 ranks: $two"
awk -v a="$one" -v b="$two" 'BEGIN { d = a - b; exit !(a > 0 && d * d <= 1e-12 * a * a) }' || {
    echo "demo: these differ by more than one part in a million" >&2
    exit 1
}

say "What next"
cat <<END
What is in the model folder:         build/ulysses inspect $folder/out
Train on a text of your own:         build/ulysses train --model $folder/start --data YOUR.txt --output-dir mine --nproc 2
A model from the hub:                build/ulysses train --model FOLDER --data YOUR.txt --output-dir mine --nproc 2
All options:                         build/ulysses train --help
Write text with it (needs Python with transformers):
    from transformers import pipeline
    print(pipeline("text-generation", "$folder/out")("In the beginning", max_new_tokens=200)[0]["generated_text"])
END
