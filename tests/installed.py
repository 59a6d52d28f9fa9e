"""Packages of others that are installed beside Kant are none of what its own tests are about: they do not see them.

`hide` comes before any import of Kant. A package that a test itself puts on the path is seen, also where another copy
of it is installed.
"""

from __future__ import annotations

from importlib import metadata
from typing import Any

GROUPS = ("kant.policies", "kant.readers")


def hide() -> None:
    """From now on `importlib.metadata.entry_points` leaves out what the packages of today offer to Kant."""
    every = metadata.entry_points
    beside = {found for group in GROUPS for found in map(_package, every(group=group)) if found is not None}

    def of_tests(**params: Any) -> metadata.EntryPoints:
        points = every(**params)
        if params.get("group") not in GROUPS or not beside:
            return points
        return metadata.EntryPoints(point for point in points if _package(point) not in beside)

    metadata.entry_points = of_tests


def _package(point: metadata.EntryPoint) -> tuple[str, str] | None:
    """The name of the package that offers it, and the folder where that is installed."""
    return None if point.dist is None else (point.dist.name, str(point.dist.locate_file("")))
