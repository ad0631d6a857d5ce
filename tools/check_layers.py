#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks the #include lines of src/ and include/ against the layers.

A layer includes itself and the layers below it. Libraries from outside are named where they may be used, so that, for
example, no file above the communicator knows that there is MPI. Exit status 1 and a line for each fault.
"""
import os
import re
import sys

LAYERS = ["base", "backend", "comm", "parallel", "model", "formats", "checkpoint", "data", "train", "plan", "api",
          "cli"]

# header of a library (a prefix of its name) -> the folders under src/ that may include it
LIBRARIES = {
    "mpi.h": ["comm/"],
    "dnnl": ["backend/cpu/"],
    "omp.h": ["base/", "backend/"],
    "immintrin.h": ["backend/cpu/", "base/"],
    "arm_neon.h": ["backend/cpu/", "base/"],
    "jansson.h": ["base/options_json.c", "formats/", "checkpoint/", "data/", "train/", "plan/", "cli/"],
    "pcre2.h": ["data/", "formats/"],
    "utf8proc.h": ["data/", "formats/"],
    "pthread.h": ["base/", "backend/", "comm/", "data/", "cli/"],
}

INCLUDE = re.compile(r'^\s*#\s*include\s+([<"])([^>"]+)[>"]')


def sources(top):
    for folder, _, names in os.walk(top):
        for name in sorted(names):
            if name.endswith((".c", ".h")):
                yield os.path.join(folder, name)


def fault_of(path, kind, target):
    """What is wrong with this include in src/<path>, or None."""
    layer = path.split("/")[0]
    if kind == "<":
        for library, folders in LIBRARIES.items():
            if target.startswith(library) and not path.startswith(tuple(folders)):
                return "<%s> belongs in %s only" % (target, ", ".join("src/" + f for f in folders))
        return None
    if target.startswith("ulysses/"):
        return None if os.path.exists("include/" + target) else "include/%s does not exist" % target
    other = target.split("/")[0]
    if "/" not in target or other not in LAYERS:
        return '"%s" is not written as "layer/file.h"' % target
    if not os.path.exists("src/" + target):
        return "src/%s does not exist" % target
    if LAYERS.index(other) > LAYERS.index(layer):
        return '%s includes "%s" of a layer above it' % (layer, target)
    return None


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    faults = []
    names = {}
    for path in sources("src"):
        inside = path[len("src/"):]
        if inside.split("/")[0] not in LAYERS:
            faults.append("%s: no such layer" % path)
            continue
        if inside.count("/") > 2:
            faults.append("%s: deeper than three folders" % path)
        names.setdefault(os.path.basename(path), []).append(path)
        for number, line in enumerate(open(path, encoding="utf-8"), 1):
            found = INCLUDE.match(line)
            fault = found and fault_of(inside, *found.groups())
            if fault:
                faults.append("%s:%d: %s" % (path, number, fault))
    for path in sources("include"):
        for number, line in enumerate(open(path, encoding="utf-8"), 1):
            found = INCLUDE.match(line)
            if found and found.group(1) == '"' and not found.group(2).startswith("ulysses/"):
                faults.append("%s:%d: a public header includes public headers only" % (path, number))
    for name, paths in names.items():
        if len(paths) > 1:
            faults.append("%s: a name that more than one file has: %s" % (name, ", ".join(paths)))
    print("\n".join(faults) if faults else "layers: as they should be")
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
