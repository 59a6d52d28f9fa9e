"""How many functions of Kant a leader calls for a change of a node or a pod. The counts may only fall."""

from __future__ import annotations

from benchmarks.kubernetes_turns import KINDS, run

MOST = {"pod": 1519, "taint": 460, "label": 648, "join": 574, "leave": 1788, "report": 9}


def test_what_a_change_costs_may_only_fall_and_does_not_grow_with_the_cluster() -> None:
    _, small, large = (
        {kind: cost.calls_each for kind, cost in run(nodes, 5 * nodes, 3, counting=True).items()}
        for nodes in (50, 50, 250)  # what is done once is done in the first
    )
    assert list(large) == list(KINDS)
    assert all(large[kind] <= most for kind, most in MOST.items()), large
    assert all(large[kind] <= 1.03 * small[kind] for kind in KINDS), (small, large)
