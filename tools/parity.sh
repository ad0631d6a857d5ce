#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Runs the whole parity matrix (some ten minutes) and writes what it measured into docs/parity.md, below its last paragraph.
set -eu
cd "$(dirname "$0")/.."
program=${ULY_PARITY_PROGRAM:-build/tests/test_matrix}
page=docs/parity.md
table=$(mktemp)
new=$(mktemp)
trap 'rm -f "$table" "$new"' EXIT
ULY_CHECK=agree OMP_NUM_THREADS=1 ULY_MATRIX_TABLE=$table "$program"
# the paragraph after the heading stays
awk '/^[0-9]+ cases, / { exit } { print }' "$page" >"$new"
cat "$table" >>"$new"
cat "$new" >"$page"
