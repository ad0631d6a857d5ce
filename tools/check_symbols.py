#!/usr/bin/env python3
# SPDX-License-Identifier: MIT
"""Checks what the built library defines: check_symbols.py build/libulysses.a

Every name that others can see begins with uly_, or with ulysses_ where it is public; and there is no global state that can
change, since ranks may be threads of one process (thread-local records are fine). Exit status 1 and a line for each fault.
"""
import re
import subprocess
import sys

WRITABLE = re.compile(r"^\.(data|bss)(\.(?!rel\.ro)|$)")


def main():
    if len(sys.argv) != 2:
        print("usage: check_symbols.py LIBRARY", file=sys.stderr)
        return 2
    table = subprocess.run(["objdump", "-t", sys.argv[1]], capture_output=True, text=True, check=True).stdout
    faults = []
    file = "?"
    count = 0
    for line in table.split("\n"):
        if "file format" in line:
            file = line.split(":")[0]
            continue
        # value, seven flag characters, section, size, name
        found = re.match(r"^[0-9a-f]{16} (.{7}) (\S+)\s+([0-9a-f]{16})\s+(?:\.hidden )?(\S+)$", line)
        if not found:
            continue
        flags, section, size, name = found.groups()
        visible = flags[0] in "gu!"
        if section == "*UND*" or "d" in flags or name.startswith("."):
            continue
        count += 1
        if visible and section != "*COM*" and not name.startswith(("uly_", "ulysses_")):
            faults.append("%s: %s is visible, but has neither uly_ nor ulysses_ in front" % (file, name))
        written = WRITABLE.match(section) or section == "*COM*"
        if written and "O" in flags and int(size, 16) > 0:
            faults.append("%s: %s is global state that can change" % (file, name))
    if count == 0:
        faults.append("no symbols found in %s" % sys.argv[1])
    print("\n".join(faults) if faults else "symbols: %d as they should be" % count)
    return 1 if faults else 0


if __name__ == "__main__":
    sys.exit(main())
