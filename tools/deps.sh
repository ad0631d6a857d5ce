#!/bin/sh
# SPDX-License-Identifier: MIT
#
# deps.sh [--check] GROUP...: makes the packages of these groups of tools/packages.txt present.
#
# Probes first, so that a library from somewhere else counts and nothing is installed twice. What is missing is installed
# with apt-get: as root directly, otherwise through sudo, after a question where there is somebody to ask. --check, or a
# machine without apt, only lists what is missing. Exit status 0: all is there; 1: something is still missing.
set -u
list=$(dirname "$0")/packages.txt
check=no
if [ "${1:-}" = --check ]; then
    check=yes
    shift
fi
[ $# -gt 0 ] || set -- build test demo

has()
{
    case $1 in
    cmd:*) command -v "${1#cmd:}" >/dev/null 2>&1 ;;
    hdr:*) echo "#include <${1#hdr:}>" | ${CC:-cc} -E -x c - >/dev/null 2>&1 ;;
    pc:*) pkg-config --exists "${1#pc:}" >/dev/null 2>&1 ;;
    *)
        echo "deps.sh: unknown probe $1 in $list" >&2
        exit 1
        ;;
    esac
}

# prints the packages of the wanted groups whose probe fails
missing()
{
    while read -r group package probe rest; do
        case " $* " in
        *" $group "*) has "$probe" || printf '%s ' "$package" ;;
        esac
    done <"$list"
}

packages=$(missing "$@")
[ -n "$packages" ] || exit 0

install=
if command -v apt-get >/dev/null 2>&1; then
    install="apt-get install -y --no-install-recommends $packages"
fi
if [ $check = yes ] || [ -z "$install" ]; then
    echo "missing (by their Debian names): $packages" >&2
    [ -z "$install" ] || echo "to install them: make deps" >&2
    exit 1
fi

root=
if [ "$(id -u)" -ne 0 ]; then
    root=sudo
    if ! command -v sudo >/dev/null 2>&1; then
        echo "missing: $packages" >&2
        echo "to install them, as root: $install" >&2
        exit 1
    fi
fi
if [ -t 0 ] && [ -t 1 ]; then
    printf 'To be installed:\n    %s %s\nGo ahead? [Y/n] ' "$root" "$install"
    read -r answer
    case $answer in
    '' | y | Y | yes) ;;
    *)
        echo "nothing was installed" >&2
        exit 1
        ;;
    esac
fi

echo "installing: $packages"
export DEBIAN_FRONTEND=noninteractive
# shellcheck disable=SC2086 # a list of words
if ! { $root apt-get update -q && $root $install -q; }; then
    echo "apt-get could not install: $packages" >&2
    exit 1
fi
packages=$(missing "$@")
if [ -n "$packages" ]; then
    echo "installed, but still not found: $packages" >&2
    exit 1
fi
