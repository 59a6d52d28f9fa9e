"""Who has used up a budget: queues as a whole, and single users of them. `budgets.py` counts what they have used."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from kant.cluster.quota_limits import QuotaLimits


ALL_USERS = -1
"""In place of a user: all users of the queue together."""

Scope = tuple[int, int]
"""The scope of a budget: a node of the queue tree, and a user or `ALL_USERS`."""


class OverBudget(NamedTuple):
    """The scopes that have used up a budget in the month that began at `begun`: jobs in `hard` do not start, those in
    `soft` rank behind all others."""

    begun: int
    hard: frozenset[Scope]
    soft: frozenset[Scope]


def first_of(scopes: frozenset[Scope], tree: QuotaLimits, node: int, user: int) -> Scope | None:
    """Return the first of `scopes`, from the queue `node` upwards, that covers a job of `user` in `node`, or None."""
    return next((scope for scope in covering(tree, node, user) if scope in scopes), None) if scopes else None


def covering(tree: QuotaLimits, node: int, user: int) -> Iterable[Scope]:
    """Yield the scopes that budgets limit and that cover a job of `user` in the queue `node`, from there upwards."""
    for above in tree.paths[node]:
        if (budget := tree.budgets.get(above)) is not None:
            if budget.hard >= 0 or budget.soft >= 0:
                yield above, ALL_USERS
            if budget.limits_users:
                yield above, user
