"""Tags that classify policies: those that every cluster policy has, and those that a policy replaces.

The keys, and the values that each may have, are in `taxonomy_keys`, which no scheduler loads.
"""

from __future__ import annotations

from collections.abc import Mapping

Tags = Mapping[str, tuple[str, ...]]
"""The values of a policy under each key of TAXONOMY."""

EVERY_CLUSTER_POLICY: dict[str, tuple[str, ...]] = {
    "level": ("cluster",),
    "architecture": ("monolithic",),
    "unit": ("gang",),
    "timing": ("online",),
    "preemption": ("none",),
    "freshness": ("live",),
}
"""The tags of every order, discipline and placement policy. A policy adds other keys, and replaces some values."""


def tagged(base: Tags, /, **values: str) -> Tags:
    """Return `base` with some keys replaced. Several values of one key are separated by spaces."""
    return {**base, **{key: tuple(value.split()) for key, value in values.items()}}
