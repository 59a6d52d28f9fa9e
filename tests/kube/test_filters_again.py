"""Node filters that are looked at again in place: what nodes fail is as if a state had been built now."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.kube.follow.mirror import Mirror
from kant.kube.objects.views import Meta, Node, Pod, PodSpec
from kant.kube.reconcile.node_filters import NodeFilters

PODS, NODES = ("p", "q", "r"), ("a", "b", "c")
Pairs = frozenset[tuple[str, str]]


class Filters(NodeFilters):
    """Each pod has a filter of its own, which the nodes in `fail` fail."""

    fail: Pairs = frozenset()

    def _names(self, pod: Pod) -> list[str]:
        return [pod.metadata.name]

    def _fails(self, name: str, node: str, pod: Pod) -> bool:
        return (name, node) in self.fail


pairs = st.frozensets(st.tuples(st.sampled_from(PODS), st.sampled_from(NODES)))


@given(pairs, pairs, st.sets(st.sampled_from(PODS)))
@settings(max_examples=examples(60))
def test_a_second_look_finds_what_a_first_one_would_and_names_the_nodes_that_differ(
    before: Pairs, now: Pairs, bound: set[str]
) -> None:
    mirror = Mirror()
    for name in NODES:
        mirror.nodes.change("added", Node(metadata=Meta(name=name)))
    pods = {name: Pod(metadata=Meta(name=name, uid=name), spec=PodSpec()) for name in PODS}
    for pod in pods.values():
        mirror.pod("added", pod)
    filters = Filters(mirror, "kant")
    filters.fail = before
    filters.begin(list(pods.values()))
    filters.outdated, filters.fail = True, now
    for name in bound:
        mirror.pod("modified", Pod(metadata=Meta(name=name, uid=name), spec=PodSpec(node_name="a")))

    def failing(fail: Pairs, waiting: set[str]) -> dict[str, set[str]]:
        found = {node: {name for name, at in fail if at == node and name in waiting} for node in NODES}
        return {node: names for node, names in found.items() if names}

    waiting = set(PODS) - bound
    assert set(filters.look_again()) == waiting and not filters.outdated
    assert filters.failing == failing(now, waiting)
    old = failing(before, set(PODS))
    assert set(filters.take_failed()) == {node for node in NODES if old.get(node) != filters.failing.get(node)}
    assert not filters.take_failed()
