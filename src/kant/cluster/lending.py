"""Lending: how much of the quota of each queue is used by others."""

from __future__ import annotations

from kant.cluster.quota_tree import QuotaTree
from kant.cluster.water_filling import divided


def lent(tree: QuotaTree, key: int) -> list[int]:
    """Return how much of the quota of each queue, including the queues below it, is used by queues outside it.

    What children borrow beyond their quotas comes first from what their parent gets from above and from its own nominal
    amount, then from the unused quota of its other children. Each of these children gives the same, up to its unused
    quota and lending limit (max-min fairness); the first ones give the remainder. Kueue reports only that quota is
    borrowed, not from which queue.
    """
    width = len(tree.keys)
    found = [0] * len(tree.queues)
    for node in tree.downward:
        below = tree.children[node]
        if not below:
            continue
        spare = [
            max(0, tree.nominal(child, key) - max(tree.usage(child, key), tree._guaranteed[child * width + key]))
            for child in below
        ]
        beyond = tree.own(node, key) + sum(tree.borrowed(child, key) for child in below) + found[node]
        nominal = tree._nominal[node * width + key] + tree.borrowed(node, key)
        need = min(max(0, beyond - nominal), sum(spare))
        for child, part in zip(below, divided(need, spare, [1] * len(below)), strict=True):
            found[child] = part
    return found
