#!/bin/sh
# SPDX-License-Identifier: MIT
#
# options_page.sh [--check]: writes docs/options.md from the program's own table of options, or says whether it is up to
# date.
set -eu
cd "$(dirname "$0")/.."
program=${ULY_PROGRAM:-build/ulysses}
page=docs/options.md
new=$(mktemp)
trap 'rm -f "$new"' EXIT
{
    echo '# Options'
    echo
    echo 'Made by `tools/options_page.sh` from the table that the parser, `--help` and the config file use.'
    echo 'A hyphen and an underscore in a name are the same. The same names may stand in a JSON file, `--config-file FILE`;'
    echo 'the command line beats it. `OUT/options.json` of a run is such a file.'
    for command in train eval selfcheck; do
        printf '\n## ulysses %s\n\n' "$command"
        "$program" "$command" --help-markdown
    done
} >"$new"
if [ "${1:-}" = --check ]; then
    diff -u "$page" "$new" || {
        echo "$page is not what the program says: run tools/options_page.sh" >&2
        exit 1
    }
    echo "options: $page is up to date"
else
    cat "$new" >"$page"
fi
