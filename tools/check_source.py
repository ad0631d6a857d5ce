#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks the rules of the house that a compiler does not know (CONTRIBUTING.md lists them).

Banned functions, sizes of files and functions, tabs, unfinished marks, licence lines, header guards, and clang-format
where it is installed. Exit status 1 and a line for each fault.
"""
import os
import re
import shutil
import subprocess
import sys

MAX_FILE = 800      # lines
MAX_FUNCTION = 80   # lines, braces included
MAX_COLUMNS = 128   # of anything; code in C has 100, which clang-format sees to

# everywhere in C: what overflows, what hides errors, what is not ours to decide
BANNED = ["strcpy", "strcat", "sprintf", "vsprintf", "strtok", "atoi", "atol", "atoll", "atof", "rand", "srand", "random",
          "gets", "alloca", "setjmp", "longjmp", "system"]
# in src/, outside src/base/
BANNED_OUTSIDE_BASE = ["malloc", "calloc", "realloc", "free", "strdup", "strndup", "posix_memalign", "aligned_alloc"]
# in src/, below src/cli/, except the log and the fatal error of src/base/
BANNED_BELOW_CLI = ["exit", "_exit", "abort", "printf", "puts", "putchar", "perror"]
PRINTERS = ("src/base/log.c", "src/base/status.c")

CALL = re.compile(r"(?<![A-Za-z0-9_.>])([A-Za-z_][A-Za-z0-9_]*)\s*\(")
TOKENS = re.compile(r'//[^\n]*|/\*.*?\*/|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])*\'', re.S)
MARK = re.compile(r"\b(TODO|FIXME|XXX|HACK)\b")


def code_only(text):
    """The text with comments and strings blanked, line numbers kept."""
    return TOKENS.sub(lambda m: '""' if m.group(0)[0] in "\"'" else re.sub(r"[^\n]", " ", m.group(0)), text)


def check_any(path, text, out):
    lines = text.split("\n")
    if text and not text.endswith("\n"):
        out(len(lines), "no newline at the end")
    if "SPDX-License-Identifier: MIT" not in "\n".join(lines[:4]):
        out(1, "no SPDX line at the top")
    for number, line in enumerate(lines, 1):
        if "\t" in line and os.path.basename(path) != "Makefile":
            out(number, "a tab")
        if line.rstrip() != line:
            out(number, "space at the end")
        if len(line) > MAX_COLUMNS and not path.endswith("CMakeLists.txt"):
            out(number, "%d columns (limit %d)" % (len(line), MAX_COLUMNS))
        if MARK.search(line) and not path.endswith("check_source.py"):
            out(number, "unfinished: refuse it by name, or finish it")


def check_calls(path, code, out):
    banned = set(BANNED)
    if path.startswith("src/"):
        if not path.startswith("src/base/"):
            banned.update(BANNED_OUTSIDE_BASE)
        if not path.startswith("src/cli/") and path not in PRINTERS:
            banned.update(BANNED_BELOW_CLI)
    for number, line in enumerate(code.split("\n"), 1):
        for name in CALL.findall(line):
            if name in banned:
                out(number, "%s() is not used here" % name)
        if re.match(r"\s*#\s*include\s*<assert\.h>", line):
            out(number, "assert.h is not used: ULY_BUG_ON, or CHECK in tests")
        if re.match(r"\s*typedef\s+(struct|union|enum)\b", line) and "(*" not in line:
            out(number, "no typedef of a struct, union or enum")
        if re.match(r"\s*#\s*if\s+0\b", line):
            out(number, "no dead code")


def check_sizes(code, out):
    lines = code.split("\n")
    if len(lines) - 1 > MAX_FILE:
        out(len(lines), "%d lines (limit %d)" % (len(lines) - 1, MAX_FILE))
    start = None
    for number, line in enumerate(lines, 1):
        if line == "{":
            start = number
        elif line == "}" and start is not None:
            if number - start + 1 > MAX_FUNCTION:
                out(start, "a function of %d lines (limit %d)" % (number - start + 1, MAX_FUNCTION))
            start = None


def check_guard(path, text, out):
    word = re.sub(r"[^A-Za-z0-9]", "_", os.path.basename(path)).upper()
    found = re.search(r"^#ifndef (\w+)\n#define (\w+)$", text, re.M)
    if not found or found.group(1) != found.group(2):
        out(1, "no include guard")
    elif not found.group(1).startswith("ULY_") or not found.group(1).endswith(word):
        out(1, "include guard %s: wanted ULY_...%s" % (found.group(1), word))


def check_format(files):
    """clang-format's complaints, as lines."""
    if not shutil.which("clang-format"):
        print("clang-format is not installed: layout not checked", file=sys.stderr)
        return []
    run = subprocess.run(["clang-format", "--dry-run"] + files, capture_output=True, text=True)
    bad = {line.split(":")[0] for line in run.stderr.split("\n") if "-Wclang-format-violations" in line}
    return ["%s: not as clang-format lays it out (make format)" % path for path in sorted(bad)]


def main():
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    listed = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], capture_output=True, text=True, check=True)
    files = [f for f in listed.stdout.split("\n") if f and os.path.exists(f)]
    faults = []
    code_files = [f for f in files if f.endswith((".c", ".h"))]
    scripts = [f for f in files if f.endswith((".py", ".sh", "CMakeLists.txt")) or f in ("Makefile", ".ci/run")]
    for path in code_files + scripts:
        text = open(path, encoding="utf-8").read()

        def out(number, message, path=path):
            faults.append("%s:%d: %s" % (path, number, message))

        check_any(path, text, out)
        if path in code_files:
            code = code_only(text)
            check_calls(path, code, out)
            check_sizes(code, out)
        if path.endswith(".h") and not path.endswith(".inc.h"):
            check_guard(path, text, out)
    faults += check_format(code_files)
    print("\n".join(faults) if faults else "source: %d files as they should be" % len(code_files + scripts))
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
