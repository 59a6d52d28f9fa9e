"""Who lends: how much of the quota of each queue is in use by others."""

from __future__ import annotations

from kant.cluster.quota_tree import QuotaTree
from kant.cluster.water_filling import divided


def lent(tree: QuotaTree, key: int) -> list[int]:
    """Of each node, how much of its quota (its own nominal amount and that below it) queues outside of it use.

    What a parent's children borrow beyond their quotas comes first from what the parent got from above and from its own
    nominal amount, then from what its other children leave of theirs: each gives the same, up to all that it has to
    spare and its lending limit allows (max-min fairness), the remainder going to the earlier ones. Kueue says only
    that it is borrowed, not from whom.
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
