# SPDX-License-Identifier: MIT
# Helpers of the whole-program tests (tests/cli_*.sh source this file). Each test runs in a fresh folder, which is removed
# at its end; the first thing that is not as it should be ends it with the line number and what was seen.
set -u
: "${ULY_PROGRAM:?the path of the program}"
export LC_ALL=C
unset ULY_LOG OMP_NUM_THREADS
work=$(mktemp -d "${TMPDIR:-/tmp}/uly_cli_XXXXXX")
cleanup() { rm -rf "$work"; }
trap cleanup EXIT
cd "$work" || exit 1

# Under mpirun a leak check (AddressSanitizer builds) blames plug-ins that MPI has unloaded by then and that no suppression
# can name; single ranks keep theirs.
uly() {
    case " $* " in
    *" --nproc "*) ASAN_OPTIONS=detect_leaks=0 "$ULY_PROGRAM" "$@" ;;
    *) "$ULY_PROGRAM" "$@" ;;
    esac
}

fail() {
    echo "FAIL (lines ${BASH_LINENO[*]}): $*" >&2
    for f in out.txt err.txt; do
        [ -s "$f" ] && { echo "--- $f" >&2; tail -n 20 "$f" >&2; }
    done
    exit 1
}

# expect CODE COMMAND...: runs it, output to out.txt and err.txt
expect() {
    local want=$1 got
    shift
    "$@" >out.txt 2>err.txt
    got=$?
    [ "$got" = "$want" ] || fail "exit status $got, wanted $want: $*"
}

# refuses CODE TEXT COMMAND...: exit status, one line on standard error that has TEXT in it, and no folder "refused"
refuses() {
    local want=$1 text=$2 lines
    shift 2
    expect "$want" "$@"
    # a line of mpirun's own, now and then, when ranks end at once, is not the program's
    lines=$(grep -v '^\[warn\] Epoll' err.txt | grep -c .)
    [ "$lines" = 1 ] || fail "$lines lines on standard error, wanted 1: $*"
    grep -q "^ulysses: " err.txt || fail "no 'ulysses: cause': $*"
    grep -qF -- "$text" err.txt || fail "the cause does not say '$text': $*"
    [ ! -e refused ] || fail "something was written: $*"
}

# write_config FILE [sed expressions]: a llama of 2 layers with room for the byte tokenizer
write_config() {
    local file=$1
    shift
    cat >"$file" <<'JSON'
{
  "architectures": ["LlamaForCausalLM"],
  "model_type": "llama",
  "hidden_size": 64,
  "intermediate_size": 160,
  "num_hidden_layers": 2,
  "num_attention_heads": 4,
  "num_key_value_heads": 2,
  "vocab_size": 320,
  "max_position_embeddings": 512,
  "rms_norm_eps": 1e-05,
  "initializer_range": 0.02,
  "rope_theta": 10000.0,
  "hidden_act": "silu",
  "tie_word_embeddings": false,
  "bos_token_id": 0,
  "eos_token_id": 1,
  "torch_dtype": "float32"
}
JSON
    [ $# = 0 ] || sed -i "$@" "$file"
}

# write_text FILE LINES: sentences that a model can learn something of
write_text() {
    awk -v n="$2" 'BEGIN {
        split("river stone light garden winter bird letter window mountain road", w, " ");
        for (i = 1; i <= n; i++)
            printf "The %s by the %s saw the %s.\n", w[(i * 7) % 10 + 1], w[(i * 3) % 10 + 1], w[(i * i) % 10 + 1];
    }' >"$1"
}

# values KEY FILE: the first number of a key in every line that has it
values() {
    awk -v k="\"$1\": " '{
        i = index($0, k)
        if (i && match(substr($0, i + length(k)), /^[-+0-9.eE]+/))
            print substr($0, i + length(k), RLENGTH)
    }' "$2"
}

# close_to A B RELATIVE: true where two numbers agree
close_to() {
    awk -v a="$1" -v b="$2" -v r="$3" 'BEGIN {
        d = a - b; d = d < 0 ? -d : d; m = b < 0 ? -b : b
        exit !(a != "" && b != "" && d <= r * m)
    }'
}

# same_values KEY FILE1 FILE2 RELATIVE: line by line
same_values() {
    values "$1" "$2" >values1.txt
    values "$1" "$3" >values2.txt
    [ -s values1.txt ] || fail "no $1 in $2"
    [ "$(wc -l <values1.txt)" = "$(wc -l <values2.txt)" ] || fail "$2 and $3 have not the same number of $1"
    paste values1.txt values2.txt | awk -v r="$4" '
        { d = $1 - $2; d = d < 0 ? -d : d; if (d > r * $2) { print; bad = 1 } }
        END { exit bad }' || fail "$1 differs between $2 and $3 by more than $4"
}

# has_mpirun: true where --nproc can work
has_mpirun() { command -v mpirun >/dev/null 2>&1; }
