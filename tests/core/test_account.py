"""What `kant explain` tells of a placement is what decided it: terms give scores, ranks give the place."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.core.test_domains import POLICIES, filled, fits_in, one_group, place, taken_nodes, topology

from kant.cluster.state import ClusterState
from kant.model.decision import NoFit
from kant.model.event import TypicalPodsGiven
from kant.model.job import LEVELS, PodGroup
from kant.model.placement import NODE, PODS
from kant.placement.explain import PlacementExplanation, RankedDomain, explain_placement
from kant.placement.fits import capacity
from kant.placement.policies.fgd import STEPS, percent
from kant.testing import make_job, make_named_policy
from kant.testing.conformance_placement import draw_typical_pods
from kant.testing.drawn import Mould, draw_cluster, draw_demand, generator
from kant.testing.naive import domains_of

Terms = dict[str, float]


def packing(terms: Terms) -> int:
    """GpuPacking by its terms."""
    node, idle = int(terms["GPUs of an idle node"]), int(terms["idle devices taken"])
    if node:
        return max(33 - node, node)
    return max(50 - idle, 33) if idle else max(100 - round(100 * terms["free on its devices"]) // 10, 50)


def clustering(terms: Terms) -> int:
    """GpuClustering by its terms."""
    base = 25 * (8 - min(terms["free GPUs"], 8)) // 8
    if terms["pods of its size"]:
        return int(base + (50 if terms["other pods"] else 75))
    return int(base if terms["other pods"] else base + 25)


DERIVED: dict[str, Callable[[Terms], int]] = {
    "best-fit": lambda terms: (1 << 20) - round(1000 * terms["free GPUs"]),
    "worst-fit": lambda terms: round(1000 * terms["free GPUs"]),
    "most-pods": lambda terms: int(terms["pods that fit"]),
    "best-fit-cpu-gpu": lambda terms: max(
        0, math.trunc(100 * (1 - 0.5 * terms["cores left, capped"] / 128 - 0.5 * terms["GPUs left"] / 8))
    ),
    "dotprod": lambda terms: max(0, math.trunc(100 * (1 - (terms["product in CPU"] + terms["product in GPUs"]) / 2))),
    "gpu-packing": packing,
    "gpu-clustering": clustering,
    "fgd": lambda terms: percent(terms["fragments before, GPUs"] - terms["fragments after, GPUs"]),
}


@pytest.mark.parametrize("name", DERIVED)
def test_a_score_is_what_its_terms_make(name: str) -> None:
    policy, compared = make_named_policy("placement", name), 0
    params = np.array(policy.params or (0,), dtype=np.int64)
    for seed in range(12):
        draw = generator(seed)
        state = ClusterState(draw_cluster(draw))
        state.apply(TypicalPodsGiven(0, draw_typical_pods(draw, state)))
        for step in range(12):
            job = make_job(f"j{step}", groups=(PodGroup(1, draw_demand(draw, Mould())),))
            result = place(state, job, "worst-fit")
            if isinstance(result, NoFit):
                continue
            shape = state.shapes.of(job)
            d, demands = shape.parts[0][1], state.shapes.demands
            for node in range(len(state.table)) if shape.gpu_milli else ():
                if capacity(state.table, node, demands, d) == 0:
                    continue
                score = policy.score(state.table, node, demands, d, state.typical_pods, params, 0)
                terms = policy.terms(state.table, node, demands, d, state.typical_pods, params)
                gain = terms.get("fragments before, GPUs", 0) - terms.get("fragments after, GPUs", 0)
                on_a_step = name == "fgd" and np.abs(STEPS - gain).min() < 1e-9
                assert on_a_step or DERIVED[name](terms) == score, terms
                compared += 1
            for piece in result:
                state.table[piece[NODE]] = taken(state.table[piece[NODE]], piece)
    assert compared > 300


def taken(row: np.ndarray, piece: np.ndarray) -> np.ndarray:
    """A node row without what a piece takes."""
    from kant.cluster.columns import NO_DEMANDS, take_piece

    table, own = row[None].copy(), piece.copy()
    own[NODE] = 0
    take_piece(table, own, NO_DEMANDS)
    return table[0]


def account_of(
    state: ClusterState, job: Any, policy: str, seed: int = 0
) -> tuple[PlacementExplanation, np.ndarray] | None:
    """A job's place, and what is told of it; None where it has none."""
    result = place(state, job, policy, seed)
    if isinstance(result, NoFit):
        return None
    chosen, before = make_named_policy("placement", policy), state.table.copy()
    found = explain_placement(state, state.table, chosen, seed, state.shapes.of(job), 0, result)
    assert np.array_equal(before, state.table)
    return found, result


def order_of(domain: RankedDomain, level: str, pods: int) -> tuple[bool | int, ...]:
    """The order of docs/policies.md."""
    last = (domain.free,) if level == "node" else (domain.whole, domain.takes)
    if level == "leaf" and pods == 1:
        last = ()
    fullest = domain.fullest if level == "leaf" and pods == 1 else 0
    return (not domain.exact, domain.breaks, not domain.broken, fullest, *domain.around, *last)


@given(filled(), one_group(), st.sampled_from(("", *LEVELS)), st.sampled_from((*POLICIES, "fgd")), st.integers(0, 9))
def test_the_place_is_the_first_of_those_that_are_told(
    state: ClusterState, gang: tuple[PodGroup, ...], level: Any, policy: str, seed: int
) -> None:
    job = make_job("j", groups=gang, within=level)
    answer = account_of(state, job, policy, seed)
    if answer is None:
        return
    found, result = answer
    for pool in found.pools:
        assert not pool.admits or pool.nodes == pool.cordoned + pool.failed + pool.full + pool.left
    for search in found.levels:
        holding = [domain for domain in domains_of(state.spec, search.level) if fits_in(state, job, domain) >= job.pods]
        assert search.holding == len(holding)
        assert bool(search.ranked) == bool(holding) and (not holding or search is found.levels[-1])
        if search.ranked:
            assert [domain.rank for domain in search.ranked] == [*range(1, len(search.ranked) + 1)]
            assert [domain.pods for domain in search.ranked] == [job.pods, *[0] * (len(search.ranked) - 1)]
            keys = [order_of(domain, search.level, job.pods) for domain in search.ranked]
            assert keys == sorted(keys)
            assert search.because
    assert bool(found.levels) == (policy == "e-binpack" or (level != "" and job.pods > 1))
    if found.nodes is None:
        used = set(result[:, NODE].tolist())
        domains = [*domains_of(state.spec, "hbd"), *domains_of(state.spec, "leaf")]
        assert len(used) == 1 or any(len(domain) == 1 for domain in domains if used & set(domain))
        return
    ranked = found.nodes.ranked
    assert [node.score for node in ranked] == sorted((node.score for node in ranked), reverse=True)
    first = next(node for node in ranked if node.pods)
    assert first.rank == 1 or (found.nodes.by_node and ranked[0].score > first.score)
    assert first.pods == int(result[result[:, NODE] == state.node_index[first.name], PODS].sum())


def test_it_says_why_a_leaf_and_a_node_won() -> None:
    state = ClusterState(topology(3, 2, 2))
    taken_nodes(state, 0)
    answer = account_of(state, make_job("j", 8, 2), "e-binpack")
    assert answer is not None
    nodes, leaves = answer[0].levels
    assert (nodes.level, nodes.holding, nodes.takes, nodes.ranked) == ("node", 0, 1, ())
    assert [(leaf.name, leaf.exact, leaf.broken) for leaf in leaves.ranked] == [
        ("leaf0", True, True), ("leaf2", True, False), ("leaf1", True, False),
    ]  # fmt: skip
    assert leaves.because == "leaf0 comes before leaf2: it is partly used already"
    plain = account_of(state, make_job("j", 8), "best-fit")
    assert plain is not None and plain[0].nodes is not None
    assert plain[0].nodes.because == "n1 and n2 have the same score, and n1 is the first in order"
    emptiest = account_of(state, make_job("j", 1), "worst-fit")
    taken_nodes(state, 1)
    assert emptiest is not None and emptiest[0].nodes is not None
    assert emptiest[0].pools[0].full == 1 and emptiest[0].pools[0].left == 6
