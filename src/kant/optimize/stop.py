"""Who tells a search that its time is over. A search asks; it has no clock of its own."""

from __future__ import annotations

from collections.abc import Callable

Stop = Callable[[float], bool]
"""Whether so much of the time is over: `stop(0.8)` after four fifths of it."""


def never(share: float) -> bool:
    """Time that is never over."""
    return False
