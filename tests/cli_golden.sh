#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# The program against Transformers (tests/golden): loss of `eval`, gradients of `train --dump-gradients`, and the losses of
# ten AdamW steps, three rows a step, the last step of each epoch short; on one rank, on two that share a sequence and on
# three replicas (some without a row), in float32 and bfloat16.
. "$(dirname "$0")/support/cli_common.sh"
: "${ULY_TEST_DATA:?the folder of golden results}"
failed=0

compare()
{
    python3 - "$@" <<'END'
import glob, json, struct, sys

case, dtype, out, evaluated, dump = sys.argv[1:]
golden = json.load(open(case + "/golden.json"))
own = golden["bfloat16_errors_of_transformers"]
adamw = golden["adamw"]
bf16 = dtype == "bfloat16"
faults = []

def check(what, value, limit):
    if not value <= limit:
        faults.append("%s: error %.3g, at most %.3g" % (what, value, limit))

def tensors(path):
    with open(path, "rb") as file:
        size, = struct.unpack("<Q", file.read(8))
        header = json.loads(file.read(size))
        data = file.read()
    for name, entry in header.items():
        if name != "__metadata__":
            assert entry["dtype"] == "F32", (name, entry)
            begin, end = entry["data_offsets"]
            yield name, struct.unpack("<%df" % ((end - begin) // 4), data[begin:end])

def norm(a, b=None):
    return sum((x - y) ** 2 for x, y in zip(a, b or [0.0] * len(a))) ** 0.5

loss = json.loads(open(evaluated).read())["eval_loss"]
check("eval_loss", abs(loss - golden["loss"]) / golden["loss"], 1e-3 if bf16 else 1e-5)

lines = [json.loads(line) for line in open(out + "/metrics.jsonl")]
steps = [line for line in lines if "loss" in line]
assert [line["step"] for line in steps] == list(range(1, 11)), steps
losses = [line["loss"] for line in steps]
want = adamw["losses"]
if bf16:
    check("losses of ten steps", norm(losses, want) / norm(want), 1.5 * own["adamw_losses"])
else:
    for i in range(10):
        check("loss of step %d" % (i + 1), abs(losses[i] - want[i]) / want[i], 1e-5)
        check("gradient norm of step %d" % (i + 1),
              abs(steps[i]["grad_norm"] - adamw["grad_norms"][i]) / adamw["grad_norms"][i], 1e-4)

wanted = dict(tensors(case + "/golden.safetensors"))
wanted.pop("logits")
got = {}
for path in glob.glob(dump + "/**/*.safetensors", recursive=True):
    got.update(tensors(path))
assert set(got) == set(wanted), set(got) ^ set(wanted)
floor = 1e-3 * max(norm(g) for g in wanted.values())
for name, g in wanted.items():
    check("gradient of " + name, norm(got[name], g) / max(norm(g), floor),
          1.5 * own["gradients"][name] if bf16 else 1e-4)
for fault in faults:
    print(case.split("/")[-1], dtype, fault)
sys.exit(1 if faults else 0)
END
}

# run NAME DTYPE LAYOUT...
run()
{
    local case=$ULY_TEST_DATA/$1 dtype=$2
    shift 2
    # dynamic: rows above max_position_embeddings are its point
    local common=(--model "$case" --data "$case/rows.jsonl" --dtype "$dtype" --threads 1 --max-length 128 "$@")
    rm -rf all out gradients
    expect 0 uly eval "${common[@]}" --json
    cp out.txt eval.json
    expect 0 uly train "${common[@]}" --output-dir all --global-batch-size 9 --max-steps 1 \
        --train-sampling-strategy sequential --dump-gradients gradients
    expect 0 uly train "${common[@]}" --output-dir out --global-batch-size 3 --max-steps 10 \
        --train-sampling-strategy sequential --learning-rate 5e-3 --lr-scheduler-type constant \
        --weight-decay 0.1 --max-grad-norm 1
    compare "$case" "$dtype" out eval.json gradients || failed=1
}

for name in gqa tied bias llama3; do
    for dtype in float32 bfloat16; do
        run $name $dtype
        has_mpirun || continue
        run $name $dtype --nproc 2
        run $name $dtype --nproc 3 --sp-size 1
    done
done
for name in mistral qwen2 qwen3 linear dynamic yarn longrope; do
    run $name bfloat16
    if has_mpirun; then
        run $name float32 --nproc 2
    else
        run $name float32
    fi
done
[ $failed = 0 ] || fail "not the same as Transformers"
echo ok
