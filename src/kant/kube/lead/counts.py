"""Counters since a replica became leader."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Counts:
    """Cycles, states built, pods bound, bindings refused, pods evicted, gangs given up."""

    cycles: int = 0
    builds: int = 0
    bound: int = 0
    refused: int = 0
    evicted: int = 0
    released: int = 0
