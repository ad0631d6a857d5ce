#!/usr/bin/env bash
# SPDX-License-Identifier: MIT
#
# --config-overrides: a folder whose rope was taken away, and given back on the command line, has the loss that Transformers
# gives the whole folder; the written folder keeps it; rows beyond the positions are warned of, and not once the
# positions are extended; what cannot be changed is refused before any work.
. "$(dirname "$0")/support/cli_common.sh"
: "${ULY_TEST_DATA:?the folder of golden results}"
golden=$ULY_TEST_DATA/yarn
rope=$(python3 -c 'import json, sys; print(json.dumps(json.load(open(sys.argv[1]))["rope_parameters"]))' \
    "$golden/config.json")
want=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1]))["loss"])' "$golden/golden.json")
mkdir plain
cp "$golden"/*.safetensors plain
python3 - "$golden/config.json" plain/config.json <<'END'
import json, sys
config = json.load(open(sys.argv[1]))
config["rope_parameters"] = {"rope_type": "default", "rope_theta": config["rope_parameters"]["rope_theta"]}
config["max_position_embeddings"] = 32
json.dump(config, open(sys.argv[2], "w"), indent=2)
END
common=(--data "$golden/rows.jsonl" --dtype float32 --threads 1 --max-length 128)

expect 0 uly eval --model plain "${common[@]}" --json
close_to "$(values eval_loss out.txt)" "$want" 1e-4 && fail "the rope makes no difference"
expect 0 uly eval --model plain "${common[@]}" --json --config-overrides "{\"rope_scaling\": $rope}"
close_to "$(values eval_loss out.txt)" "$want" 1e-5 || fail "not the loss of the whole folder"

# the length before extension that is not given is the one that the folder had
short='{"rope_scaling": {"rope_type": "yarn", "factor": 4, "beta_fast": 4}, "max_position_embeddings": 128}'
expect 0 uly train --model plain "${common[@]}" --output-dir extended --max-steps 1 --learning-rate 0 \
    --config-overrides "$short"
grep -q "warning" out.txt && fail "the positions were extended, and rows are warned of"
grep -qF "$short" out.txt || fail "the start does not say what was overridden"
expect 0 uly eval --model extended "${common[@]}" --json
close_to "$(values eval_loss out.txt)" "$want" 1e-5 || fail "the written folder has another loss"
expect 0 uly inspect extended
for word in "rope yarn" "factor 4" "original 32" "at most 128"; do
    grep -qF "$word" out.txt || fail "inspect does not say '$word'"
done
expect 0 uly train --model plain "${common[@]}" --output-dir out --max-steps 1
grep -q "warning .*max_position_embeddings.*--config-overrides" out.txt || fail "no warning of long rows"

run=(uly train --model plain "${common[@]}" --output-dir refused --config-overrides)
refuses 2 '"head_dim" decides which weights' "${run[@]}" '{"head_dim": 8}'
refuses 2 '"rope_type" is not a key' "${run[@]}" '{"rope_type": "yarn"}'
refuses 2 'not a JSON object' "${run[@]}" '3'
refuses 2 '--config-overrides:1' "${run[@]}" '{"rope_theta": }'
refuses 1 'rope type "ntk"' "${run[@]}" '{"rope_scaling": {"type": "ntk"}}'
refuses 2 '--config-overrides JSON' uly train --model plain "${common[@]}" --output-dir refused --rope-theta 1e6
echo ok
