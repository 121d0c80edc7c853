"""Checks whether this machine can run the local stack, before anything is installed; prints one line if not.

It runs under any installed `python3`, so its syntax stays that of the oldest Python 3.
"""

import platform
import sys

# Above 3.14 some locked wheels do not exist yet; below 3.11 the code does not parse.
OLDEST = (3, 11)
NEWEST = (3, 14)
MACHINES = ("x86_64", "amd64", "aarch64", "arm64")


def complaint(system: str, machine: str, version: "tuple[int, ...]") -> str:
    """Return the one line that says what is wrong, or an empty string."""
    if system != "Linux":
        return "highwater runs on Linux x86-64 and arm64; this is " + system
    if machine.lower() not in MACHINES:
        return "highwater runs on Linux x86-64 and arm64; this machine is " + machine
    if not OLDEST <= version <= NEWEST:
        found = ".".join(str(part) for part in version)
        return "highwater needs Python 3.11 to 3.14; this is " + found + " (name another: make PYTHON=python3.12)"
    return ""


def main() -> int:
    """Print the complaint, if any, and return the exit status."""
    line = complaint(platform.system(), platform.machine(), tuple(sys.version_info[:2]))
    if line:
        sys.stderr.write(line + "\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
