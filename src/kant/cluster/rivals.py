"""Rivals: the live jobs that want the same pools."""

from __future__ import annotations


class Rivals:
    """The live jobs that the same pools admit; `stirred` is when one of them, or a node of the pools, last changed."""

    __slots__ = ("pending", "pools", "running", "stirred")

    def __init__(self, pools: int) -> None:
        self.pools = pools
        self.pending: dict[int, None] = {}
        self.running: dict[int, None] = {}
        self.stirred = 0
