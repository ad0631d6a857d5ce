#!/bin/bash
# SPDX-License-Identifier: MIT
# Stopping: as asked (SIGUSR1, Ctrl-C, a file, the time limit) the model of the last finished step is written and the
# status is 0; a killed rank ends all ranks within seconds.
. "$(dirname "$0")/support/cli_common.sh"

write_config config.json 's/"hidden_size": 64/"hidden_size": 128/'
write_text book.txt 400
expect 0 uly init model --config config.json
common="--model model --data book.txt --max-length 512 --dtype float32 --max-steps 1000000 --threads 1"

# wait_step FOLDER N: until that many steps are in its metrics
wait_step() {
    for _ in $(seq 600); do
        [ "$(cat "$1/metrics.jsonl" 2>/dev/null | wc -l)" -ge "$2" ] && return 0
        sleep 0.1
    done
    fail "$1 made no $2 steps in a minute"
}

# ended PID SECONDS: waits for a process; its status in $status
ended() {
    local i
    for i in $(seq $(($2 * 10))); do
        kill -0 "$1" 2>/dev/null || break
        sleep 0.1
    done
    kill -0 "$1" 2>/dev/null && { kill -9 "$1"; fail "still there after $2 seconds"; }
    wait "$1"
    status=$?
}

# stopped FOLDER WHY: what a stop leaves behind
stopped() {
    [ "$status" = 0 ] || fail "$1: exit status $status"
    grep -q "stopped .*by $2.* after step" out.txt || fail "$1: it does not say that it stopped by $2"
    [ -f "$1/model.safetensors" ] && [ -f "$1/config.json" ] || fail "$1: no model"
    cmp -s "$1/model.safetensors" model/model.safetensors && fail "$1: the model is the input's"
    expect 0 uly inspect "$1"
}

"$ULY_PROGRAM" train $common --output-dir signal >out.txt 2>err.txt &
wait_step signal 2
kill -USR1 $!
ended $! 20
stopped signal "a signal"

"$ULY_PROGRAM" train $common --output-dir file >out.txt 2>err.txt &
wait_step file 1
touch file/stop
ended $! 20
stopped file "the file stop"
[ ! -e file/stop ] || fail "the file stop is still there"

expect 0 uly train $common --output-dir limit --time-limit 3s
status=0
stopped limit "the time limit"

if has_mpirun; then
    # what the terminal's Ctrl-C does: the launcher gets it, mpirun and the ranks do not
    ASAN_OPTIONS=detect_leaks=0 "$ULY_PROGRAM" train $common --output-dir ranks --nproc 2 >out.txt 2>err.txt &
    wait_step ranks 2
    kill -TERM $!
    ended $! 20
    grep -q "stopping; the model" err.txt || fail "the launcher does not say that it stops"
    grep -q "after step $(grep -c '"loss"' ranks/metrics.jsonl) of" out.txt || fail "the step is not the last one logged"
    stopped ranks "a signal"

    # one rank is killed: everything ends, and says why
    ASAN_OPTIONS=detect_leaks=0 "$ULY_PROGRAM" train $common --output-dir killed --nproc 2 >out.txt 2>err.txt &
    wait_step killed 1
    victim=$(pgrep -f "^$ULY_PROGRAM train .*--output-dir killed" | tail -n 1)
    [ -n "$victim" ] || fail "no rank to kill"
    begin=$(date +%s)
    kill -9 "$victim"
    ended $! 20
    [ "$status" = 1 ] || fail "a killed rank: exit status $status"
    [ $(($(date +%s) - begin)) -le 10 ] || fail "a killed rank: the others took more than 10 seconds"
    grep -q "^ulysses: a rank was ended by signal 9" err.txt || fail "a killed rank: the cause is not told"
    sleep 1
    [ -z "$(pgrep -f "^$ULY_PROGRAM train .*--output-dir killed")" ] || fail "a rank was left behind"
fi
echo ok
