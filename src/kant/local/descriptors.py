"""Open files: how many this process may have, and how few are left when a number is given out.

The kernel gives each new descriptor the lowest number that is free (POSIX.1-2024, open()). So the number of a new one
says how many are open, and nobody has to count them.
"""

from __future__ import annotations

import resource

KEPT_FROM_RUNS = 4
"""A run is watched by a descriptor of its own while this part of all numbers is left; then it is looked at by turns."""
UNLIMITED = 1 << 20


def limit() -> int:
    """How many files this process may have open now (RLIMIT_NOFILE)."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return UNLIMITED if soft == resource.RLIM_INFINITY else min(soft, UNLIMITED)


def is_scarce(number: int, part: int) -> bool:
    """Whether a descriptor of this number is among the last `1 / part` of all."""
    most = limit()
    return number >= most - most // part
