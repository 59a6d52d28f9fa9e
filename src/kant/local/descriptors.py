"""File descriptors: how many this process may have, and whether few are left.

Each new descriptor has the lowest free number (POSIX.1-2024, open()). So the number of a new descriptor shows how many
are open, without counting.
"""

from __future__ import annotations

import resource

KEPT_FROM_RUNS = 4
"""n: the last 1/n of the descriptors is not used to watch runs. Further runs are polled instead."""
UNLIMITED = 1 << 20


def limit() -> int:
    """Return the maximum number of open files of this process (RLIMIT_NOFILE)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else min(soft, UNLIMITED)


def is_scarce(number: int, part: int) -> bool:
    """Return whether a descriptor with this number is among the last 1/`part` of all descriptors."""
    most = limit()
    return number >= most - most // part
