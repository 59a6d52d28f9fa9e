"""The order in which the groups of one gang are placed.

Groups are placed one after the other. A group that finds no place may lack the nodes that earlier groups have taken, so
it chooses first in the next attempt.
"""

from __future__ import annotations

from collections.abc import Callable

PLACED = -1
"""What an attempt returns if every group has its place."""


def place_groups(groups: int, attempt: Callable[[list[int]], int]) -> bool:
    """Return whether `attempt` places all groups in one of the orders tried, at most two per group.

    `attempt` gets the groups in the order in which to place them. It returns PLACED, or the group that failed; then it
    has changed nothing. A group that fails although it goes first would fail alone too, so no other order is tried.
    """
    order = list(range(groups))
    for _ in range(2 * groups):
        failed = attempt(order)
        if failed == PLACED:
            return True
        if failed == order[0]:
            return False
        order.remove(failed)
        order.insert(0, failed)
    return False
