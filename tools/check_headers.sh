#!/bin/sh
# SPDX-License-Identifier: MIT
#
# Every header must compile by itself, as the first line of a file: those of src/ as C11, the public ones of include/
# also as C++17 (where a C++ compiler is installed). A *.inc.h is no header but text that several files include.
set -u
cd "$(dirname "$0")/.." || exit 1
flags="-fsyntax-only -Wall -Wextra -Werror -Isrc -Iinclude -D_GNU_SOURCE $(pkg-config --cflags jansson libpcre2-8 libutf8proc)"
failed=0
count=0
for header in $(find src include -name '*.h' 2>/dev/null | sort); do
    name=${header#*/}
    case $name in
    *.inc.h) continue ;; # the text of several files, each with settings of its own
    esac
    count=$((count + 1))
    # shellcheck disable=SC2086 # a list of words
    echo "#include \"$name\"
extern int uly_header_check;" | ${CC:-cc} -std=c11 -x c $flags - || failed=1
    case $header in
    include/*)
        if command -v "${CXX:-c++}" >/dev/null 2>&1; then
            # shellcheck disable=SC2086
            echo "#include \"$name\"" | ${CXX:-c++} -std=c++17 -x c++ $flags - || failed=1
        fi
        ;;
    esac
done
[ $failed = 0 ] && echo "headers: $count compile by themselves"
exit $failed
