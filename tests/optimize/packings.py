"""Tiny packing instances, and what is true of them by trying every assignment."""

from __future__ import annotations

from itertools import product

from hypothesis import strategies as st
from msgspec.structs import replace

from kant.optimize.packing.instance import PackingInstance, PackingNode, PackingPod, check_instance
from kant.optimize.packing.problem import Assignment, Problem

LEVEL = "leaf"


@st.composite
def instances(draw: st.DrawFn, nodes: int = 3, pods: int = 5) -> PackingInstance:
    """Nodes of two models in two leaves, and pods of which some run where they fit first."""
    machines = tuple(
        PackingNode(
            f"n{i}",
            {"gpu": draw(st.integers(0, 4)), "cpu": draw(st.integers(1, 6))},
            draw(st.sampled_from(("", "A"))),
            {LEVEL: draw(st.sampled_from("xy"))} if draw(st.integers(0, 4)) else {},
        )
        for i in range(draw(st.integers(1, nodes)))
    )
    asked = [
        PackingPod(
            f"p{i}",
            {"gpu": draw(st.integers(0, 2)), "cpu": draw(st.integers(0, 3))},
            draw(st.integers(1, 3)),
            models=draw(st.sampled_from(((), (), ("A",), ("A", "B")))),
            group=draw(st.sampled_from(("", "", "", "g"))),
        )
        for i in range(draw(st.integers(1, pods)))
    ]
    gang = [pod for pod in asked if pod.group]
    within = draw(st.sampled_from(("", LEVEL)))
    asked = [replace(pod, priority=gang[0].priority, within=within) if pod.group else pod for pod in asked]
    return _begun(PackingInstance(machines, tuple(asked)), draw(st.lists(st.booleans(), min_size=pods, max_size=pods)))


def _begun(instance: PackingInstance, chosen: list[bool]) -> PackingInstance:
    """The chosen units run where they fit first."""
    problem = Problem(instance)
    found = [-1] * len(instance.pods)
    for unit in problem.units:
        if chosen[unit[0]]:
            for place in product(range(len(instance.nodes)), repeat=len(unit)):
                tried = list(found)
                for i, n in zip(unit, place, strict=True):
                    tried[i] = n
                if not problem.violations(tried):
                    found = tried
                    break
    placed = zip(instance.pods, found, strict=True)
    pods = tuple(replace(pod, node=None if n < 0 else f"n{n}") for pod, n in placed)
    begun = PackingInstance(instance.nodes, pods)
    check_instance(begun, "drawn")
    return begun


def fits(instance: PackingInstance, assignment: Assignment) -> bool:
    """Whether an assignment may be, from the words of the format alone."""
    gangs: dict[str, list[int]] = {}
    for n, node in enumerate(instance.nodes):
        here = [pod for pod, at in zip(instance.pods, assignment, strict=True) if at == n]
        if any(sum(pod.requests[name] for pod in here) > amount for name, amount in node.resources.items()):
            return False
        if any(pod.models and node.model not in pod.models for pod in here):
            return False
    for i, pod in enumerate(instance.pods):
        if pod.group:
            gangs.setdefault(pod.group, []).append(i)
    for members in gangs.values():
        on = {assignment[i] for i in members}
        level = instance.pods[members[0]].within
        if on != {-1} and (
            -1 in on or (level and len({instance.nodes[n].domains.get(level, f"{n}?") for n in on}) > 1)
        ):
            return False
        if on != {-1} and level and any(level not in instance.nodes[n].domains for n in on):
            return False
    return True


def every_assignment(instance: PackingInstance) -> list[Assignment]:
    """All that may be."""
    everywhere = product(range(-1, len(instance.nodes)), repeat=len(instance.pods))
    return [assignment for assignment in everywhere if fits(instance, assignment)]
