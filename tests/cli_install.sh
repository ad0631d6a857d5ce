#!/bin/bash
# SPDX-License-Identifier: MIT
# Installing: into a prefix that is moved afterwards; an example is built against it by pkg-config (shared and static) and
# by find_package, and run; the shared library shows the public names only.
. "$(dirname "$0")/support/cli_common.sh"
here=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
build=$(dirname "$ULY_PROGRAM")

# setting NAME: from the build's cache
setting() { sed -n "s/^$1:[A-Z]*=//p" "$build/CMakeCache.txt"; }

# run BINARY: on two ranks, or alone in a build without MPI; it checks its own result
run() {
    if [ -n "$(setting MPI_C_LIB_NAMES)" ] && [ "$(setting ULY_MPI)" = ON ]; then
        OMP_NUM_THREADS=1 expect 0 "$here/tools/mpirun.sh" 2 "$@"
        [ "$(grep -c 'of 2: .* tokens from' out.txt)" = 2 ] || fail "not two ranks"
    else
        expect 1 "$@"
        grep -q "this build has no MPI" err.txt || fail "another error than the missing MPI"
    fi
}

[ -z "$(setting ULY_SANITIZE)" ] || { echo "a sanitizer's build is not for installing"; exit 0; }
expect 0 cmake --install "$build" --prefix "$work/first"
mkdir moved
mv first moved/prefix
prefix=$work/moved/prefix
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
cc=$(setting CMAKE_C_COMPILER)
expect 0 "$prefix/bin/ulysses" --help

[ "$(pkg-config --modversion ulysses)" = "$("$prefix/bin/ulysses" --version | grep -o '[0-9.]*[0-9]' | head -n 1)" ] ||
    fail "pkg-config and the program differ in the version"
pkg-config --libs ulysses | grep -q jansson && fail "a user of the shared library is told to link jansson"

# shared: the library's own name is all that the program needs
if [ "$(setting ULY_SHARED)" = ON ]; then
    # shellcheck disable=SC2046 # lists of words
    expect 0 "$cc" -std=c99 -Wall -Werror -o shared "$here/examples/01_attention.c" $(pkg-config --cflags --libs ulysses) -lm
    LD_LIBRARY_PATH=$prefix/lib run ./shared
    nm -D --defined-only "$prefix/lib/libulysses.so" | awk '$2 ~ /[A-Z]/ && $3 !~ /^ulysses_/ {print $3}' >names
    [ -s names ] && fail "the shared library shows $(tr '\n' ' ' <names)"
    # what the header declares is what is there
    grep -o 'ulysses_[a-z_]*(' "$prefix/include/ulysses/"*.h | sed 's/.*://; s/($//' | sort -u >declared
    nm -D --defined-only "$prefix/lib/libulysses.so" | awk '{print $3}' | sort -u >defined
    cmp declared defined || fail "declared, or defined, but not both: $(comm -3 declared defined | tr -s '\t\n' ' ')"
fi

# static: the shared library is out of sight
mkdir only
cp "$prefix/lib/libulysses.a" only
# shellcheck disable=SC2046
expect 0 "$cc" -std=c99 -o static "$here/examples/01_attention.c" $(pkg-config --cflags ulysses) -Lonly \
    $(pkg-config --static --libs ulysses | sed "s|-L[^ ]*/moved/[^ ]*||")
run ./static

mkdir user
cp "$here/examples/01_attention.c" user/
cat >user/CMakeLists.txt <<'CMAKE'
cmake_minimum_required(VERSION 3.22)
project(user LANGUAGES C)
find_package(ulysses 0.1 REQUIRED)
foreach(kind ulysses ulysses_static)
  add_executable(with_${kind} 01_attention.c)
  target_link_libraries(with_${kind} PRIVATE ulysses::${kind} m)
endforeach()
CMAKE
expect 0 cmake -S user -B user/build -DCMAKE_C_COMPILER="$cc" -DCMAKE_PREFIX_PATH="$prefix"
expect 0 cmake --build user/build
run user/build/with_ulysses
run user/build/with_ulysses_static
expect 1 cmake -S user -B user/wrong -DCMAKE_C_COMPILER="$cc" -DCMAKE_PREFIX_PATH="$work/nowhere"
echo "installed, moved, found three ways"
