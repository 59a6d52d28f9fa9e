"""Packages of others that are installed beside Kant are none of what its own tests are about: they do not see them.

`hide` comes before any import of Kant. A package that a test itself puts on the path is seen.
"""

from __future__ import annotations

from importlib import metadata
from typing import Any

GROUPS = ("kant.policies", "kant.readers")


def hide() -> None:
    """From now on `importlib.metadata.entry_points` leaves out what the packages of today offer to Kant."""
    every = metadata.entry_points
    beside = {point.dist.name for group in GROUPS for point in every(group=group) if point.dist is not None}

    def of_tests(**params: Any) -> metadata.EntryPoints:
        points = every(**params)
        if params.get("group") not in GROUPS or not beside:
            return points
        return metadata.EntryPoints(point for point in points if point.dist is None or point.dist.name not in beside)

    metadata.entry_points = of_tests
