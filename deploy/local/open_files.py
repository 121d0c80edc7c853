"""The limit on open files, checked before anything starts.

Invariant: a stack either starts with enough, or ends with one sentence that has the number; a broker that runs out of
files loses its log folder until it is restarted.
"""

from __future__ import annotations

import resource

from highwater.deploy.local.errors import LocalStackError

# A broker opens a file for each segment of each partition: 795 in a new folder with 8 partitions, and more with each
# GiB. A worker opens some 400.
OPEN_FILES_MIN = 4_096
# Enough for every segment of a disk of one machine; some programs walk over all numbers that they may use.
OPEN_FILES_WANTED = 65_536


def limit_for(soft: int, hard: int) -> int:
    """Return the soft limit to set for these limits.

    Raises:
        LocalStackError: the hard limit is too low.
    """
    highest = OPEN_FILES_WANTED if hard == resource.RLIM_INFINITY else min(hard, OPEN_FILES_WANTED)
    if highest < OPEN_FILES_MIN:
        raise LocalStackError(
            f"this shell may open {hard:,} files and the stack needs {OPEN_FILES_MIN:,}: raise the hard limit (as root `ulimit -n"
            f" {OPEN_FILES_WANTED}`, LimitNOFILE of systemd, or /etc/security/limits.conf) and start again"
        )
    return soft if soft == resource.RLIM_INFINITY else max(soft, highest)


def allow_open_files() -> None:
    """Raise the soft limit of this process and its children as far as the hard limit allows.

    Raises:
        LocalStackError: the hard limit is too low.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit_for(soft, hard), hard))
