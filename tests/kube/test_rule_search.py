"""The search for places of a gang with rules: it finds some exactly if there are some, and they break no rule."""

from __future__ import annotations

from collections import Counter
from itertools import permutations, product

from hypothesis import given
from hypothesis import strategies as st

from kant.kube.reconcile.rule_problem import Apart, Even, Kind, Near, Problem, Room
from kant.kube.reconcile.rule_search import find_places
from kant.model.job import Demand

HOST, ZONE, RACK = "kubernetes.io/hostname", "zone", "rack"
NODES = ("n0", "n1", "n2", "n3")
DOMAINS = {ZONE: {"n0": "a", "n1": "a", "n2": "b", "n3": "b"}, RACK: {"n0": "1", "n1": "2", "n2": "2"}}
keys = st.sampled_from((HOST, ZONE, RACK))
some = st.frozensets(st.integers(0, 1), min_size=1)
names = st.frozensets(st.sampled_from(("a", "b", "1", "n0")), max_size=1)


def domain(key: str, node: str) -> str | None:
    return node if key == HOST else DOMAINS[key].get(node)


def even(key: str, carriers: frozenset[int], counted: frozenset[int], full: str, skew: int, least: int) -> Even:
    among = {node: at for node in NODES if (at := domain(key, node)) is not None}
    return Even(key, carriers, counted, {full: 1} if full in among.values() else {}, among, skew, least)


@st.composite
def problems(draw: st.DrawFn) -> Problem:
    pods = draw(st.lists(st.integers(0, 1), min_size=1, max_size=4))
    kinds = [Kind(Demand(cpu=draw(st.integers(1, 2)))) for _ in range(2)]
    rooms = {node: Room([], draw(st.integers(0, 3)), 0) for node in NODES}
    allowed = [frozenset(NODES) - draw(st.frozensets(st.sampled_from(NODES), max_size=1)) for _ in kinds]
    return Problem(
        kinds,
        pods,
        rooms,
        DOMAINS,
        allowed,
        draw(st.lists(st.builds(Apart, keys, some, some), max_size=1)),
        draw(st.lists(st.builds(Near, keys, some, some, names), max_size=2)),
        draw(st.lists(st.builds(even, keys, some, some, st.sampled_from("ab1"), st.integers(1, 2), st.integers(1, 3)),
                      max_size=1)),
    )  # fmt: skip


def keeps_all(problem: Problem, nodes: tuple[str, ...]) -> bool:
    """By definition: what a node has is enough, and each rule by itself could be kept by pods that come one by one."""
    placed = list(zip(problem.pods, nodes, strict=True))
    used = Counter[str]()
    for kind, node in placed:
        used[node] += problem.kinds[kind].demand.cpu
        if node not in problem.allowed[kind]:
            return False
    if any(used[node] > problem.rooms[node].cpu for node in used):
        return False
    for one in problem.apart:
        for (kind, node), (other, beside) in permutations(placed, 2):
            at = domain(one.key, node)
            if kind in one.one and other in one.other and at is not None and at == domain(one.key, beside):
                return False
    return all(_is_near(one, placed) for one in problem.near) and all(_is_even(one, placed) for one in problem.even)


def _is_near(one: Near, placed: list[tuple[int, str]]) -> bool:
    for order in permutations(placed):
        there, kept = set(one.there), True
        for kind, node in order:
            at = domain(one.key, node)
            if kind in one.carriers and not (at is not None and (at in there or (not there and kind in one.wanted))):
                kept = False
            if kind in one.wanted and at is not None:
                there.add(at)
        if kept:
            return True
    return False


def _is_even(one: Even, placed: list[tuple[int, str]]) -> bool:
    counts = Counter(one.there)
    counts.update(one.among[node] for kind, node in placed if kind in one.counted and node in one.among)
    domains = set(one.among.values())
    fewest = min(counts[at] for at in domains) if len(domains) >= one.least else 0
    carrying = [domain(one.key, node) for kind, node in placed if kind in one.carriers]
    return all(at is not None and counts[at] - fewest <= one.skew for at in carrying)


@given(problems())
def test_places_are_found_exactly_where_there_are_some_and_break_no_rule(problem: Problem) -> None:
    answer = find_places(problem)
    assert not answer.gave_up
    if answer.nodes is None:
        assert not any(keeps_all(problem, nodes) for nodes in product(NODES, repeat=len(problem.pods)))
    else:
        assert keeps_all(problem, tuple(answer.nodes))


def test_a_large_gang_costs_a_step_for_each_pod_and_one_that_cannot_be_is_known_at_once() -> None:
    nodes = [f"n{number}" for number in range(256)]
    zones = {node: f"z{number % 3}" for number, node in enumerate(nodes)}
    rooms = {node: Room([1000] * 8, 64, 64) for node in nodes}
    worker, every = Kind(Demand(8, cpu=8)), frozenset({0})
    spread = Even(ZONE, every, every, {}, zones, 1, 1)

    def gang(size: int, *rules: Near) -> Problem:
        return Problem([worker], [0] * size, rooms, {ZONE: zones}, [frozenset(nodes)], near=rules, even=[spread])

    found = find_places(gang(255), steps=0)
    assert found.nodes is not None
    assert set(Counter(zones[node] for node in found.nodes).values()) == {85}
    whole = Near(ZONE, every, every, frozenset())
    assert find_places(gang(2, whole), steps=0).nodes is None, "in one zone, and no two in one"
    full = Problem([worker], [0] * 86, rooms, {ZONE: zones}, [frozenset(nodes)], near=[whole])
    assert find_places(full).nodes is not None, "zone z0 has 86 nodes"
    apart = Problem([worker], [0] * 4, rooms, {ZONE: zones}, [frozenset(nodes)], [Apart(ZONE, every, every)])
    assert find_places(apart, steps=0).nodes is None, "four zones there are not"
    more = Problem([worker], [0] * 87, rooms, {ZONE: zones}, [frozenset(nodes)], near=[whole])
    assert find_places(more, steps=0) == find_places(more) and find_places(more).nodes is None
