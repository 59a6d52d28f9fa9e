"""What the core does not count: `NodeFilters.check` lets pods onto nodes exactly if the API's own rules do."""

from __future__ import annotations

from itertools import combinations

from hypothesis import given
from hypothesis import strategies as st

from kant.kube.follow.mirror import Mirror
from kant.kube.objects import views as k
from kant.kube.reconcile.node_filters import NodeFilters
from kant.kube.translate.neighbours import apart_group, rules_of
from kant.kube.translate.node_facts import admits
from kant.kube.translate.node_sets import EVERYWHERE, NodeSets
from kant.kube.translate.pods import selection

HCA, HOST, ZONE, ROW = "rdma/hca", "kubernetes.io/hostname", "zone", "row"
ZONES = {"n0": "a", "n1": "a", "n2": "b"}
ROWS = {"n1": "1", "n2": "1"}
"""One node has no row."""
Wish = tuple[str, int, int, tuple[tuple[str, str], ...]]
"""The label app of a pod, how many adapters it asks for, a port of its host, and whom it keeps from: (key, app)."""

wishes = st.tuples(
    st.sampled_from(("web", "db")),
    st.integers(0, 2),
    st.sampled_from((0, 0, 80)),
    st.lists(st.tuples(st.sampled_from((HOST, ZONE)), st.sampled_from(("web", "db"))), max_size=1).map(tuple),
)
placed = st.lists(st.tuples(st.sampled_from(sorted(ZONES)), wishes), max_size=4)


def pod(name: str, wish: Wish, node: str = "", scheduler: str = "kant") -> k.Pod:
    app, hca, port, keeps = wish
    requests: dict[str, str | int | float] = {HCA: hca, "cpu": "1"} if hca else {"cpu": "1"}
    ports = (k.Port(port),) if port else ()
    terms = tuple(k.PodTerm(k.LabelSelector({"app": other}), key) for key, other in keeps)
    return k.Pod(
        k.Meta(name, "ml", uid=name, labels={"app": app}),
        k.PodSpec(
            node_name=node,
            scheduler_name=scheduler,
            containers=(k.Container(k.Resources(requests), ports),),
            affinity=k.Affinity(pod_anti_affinity=k.PodAffinity(terms)) if terms else None,
        ),
    )


def mirror_with(*pods: k.Pod, cpu: int = 8) -> Mirror:
    mirror = Mirror()
    for name, zone in ZONES.items():
        room: dict[str, str | int | float] = {HCA: 2, "cpu": cpu, "memory": "1Gi"}
        labels = {HOST: name, ZONE: zone} | ({ROW: ROWS[name]} if name in ROWS else {})
        mirror.node("added", k.Node(k.Meta(name, labels=labels), k.NodeSpec(), k.NodeStatus(room, room)))
    for one in pods:
        mirror.pod("added", one)
    return mirror


def is_allowed(there: list[tuple[str, Wish]], new: list[tuple[str, Wish]]) -> bool:
    """By the rules of the API, counted from the beginning; those who are there already may be in each other's way."""
    everybody = [*((node, wish, False) for node, wish in there), *((node, wish, True) for node, wish in new)]
    for node, wish in new:
        if wish[1] and sum(own[1] for where, own, _ in everybody if where == node) > 2:
            return False
    for (node, first, one), (other, second, two) in combinations(everybody, 2):
        if not (one or two):
            continue
        if node == other and first[2] and first[2] == second[2]:
            return False
        keys = [key for key, app in first[3] if app == second[0]] + [key for key, app in second[3] if app == first[0]]
        if any(node == other if key == HOST else ZONES[node] == ZONES[other] for key in keys):
            return False
    return True


@given(placed, placed)
def test_pods_may_have_their_nodes_exactly_if_all_rules_are_kept(
    there: list[tuple[str, Wish]], new: list[tuple[str, Wish]]
) -> None:
    existing = [pod(f"old-{number}", wish, node) for number, (node, wish) in enumerate(there)]
    coming = [pod(f"new-{number}", wish) for number, (_, wish) in enumerate(new)]
    filters = NodeFilters(mirror_with(*existing, *coming), "kant")
    said = filters.check([(node, one) for (node, _), one in zip(new, coming, strict=True)])
    assert (not said) == is_allowed(there, new), said


@given(placed, wishes)
def test_nodes_are_told_apart_by_the_filters_that_they_fail(there: list[tuple[str, Wish]], wish: Wish) -> None:
    existing = [pod(f"old-{number}", own, node, "somebody") for number, (node, own) in enumerate(there)]
    waiting = pod("new", (wish[0], 0, *wish[2:]))  # amounts are told apart only once they were found short
    mirror = mirror_with(*existing, waiting)
    filters, sets = NodeFilters(mirror, "kant"), NodeSets()
    filters.begin([waiting])
    for name, view in mirror.nodes.items():
        sets.follow(name, view, filters.failing.get(name, ()))
    asked = selection(waiting, filters=filters.requirements)
    name = sets.name_of([asked])
    accepted = set(ZONES) if name == EVERYWHERE else {node for one in sets.take_changes() for node in one.added}
    for node in ZONES:
        assert (node in accepted) == (not filters.check([(node, waiting)])), filters.failing
    would = [node for node in ZONES if admits(selection(waiting), mirror.nodes[node])]
    if not accepted:
        assert filters.why_nowhere(waiting, would)


def test_an_amount_that_was_short_is_told_apart_until_there_is_enough() -> None:
    old, new = pod("old", ("web", 2, 0, ()), "n0"), pod("new", ("web", 1, 0, ()))
    mirror = mirror_with(old, new)
    filters = NodeFilters(mirror, "kant")
    filters.begin([new])
    assert filters.requirements(new) == ()  # nobody has been refused: what GPUs bound anyway costs nothing
    assert filters.check([("n0", new)]) == "node n0 has 0 of rdma/hca left, and it asks for 1"
    filters.begin([new])
    (asked,) = filters.requirements(new)
    assert filters.failing == {"n0": frozenset({asked.key})} and not filters.improved(["n0", "n1"])
    assert filters.why_nowhere(new, ["n0"]) == "no node that would do has 1 of rdma/hca left"
    mirror.pod("deleted", old)
    assert filters.improved(["n0"])
    filters.begin([new])
    assert not filters.failing and filters.requirements(new) == ()


def test_victims_do_not_help_where_others_hold_what_is_short() -> None:
    theirs, victim = pod("theirs", ("web", 1, 0, ()), "n0", "somebody"), pod("victim", ("web", 1, 0, ()), "n0")
    new = pod("new", ("web", 2, 0, ()))
    mirror = mirror_with(theirs, victim, new, cpu=1)  # the core sees no place but by victims
    filters = NodeFilters(mirror, "kant")
    assert filters.check([("n0", new)], {"victim"}) and not filters.check([("n0", new)], {"victim", "theirs"})
    filters.begin([new])
    assert "n0" in filters.failing
    mirror.pod("deleted", theirs)
    assert filters.improved(["n0"])


def test_pods_of_one_port_and_of_one_rule_are_kept_apart_by_the_core() -> None:
    own = ((HOST, "web"),)
    assert apart_group(pod("a", ("web", 0, 0, own))) == 'ml/[["app","In",["web"]]]' and not apart_group(
        pod("a", ("db", 0, 0, own))
    )
    assert apart_group(pod("a", ("web", 0, 80, ()))) == "ports TCP/80"
    for wish in (("web", 0, 0, own), ("web", 0, 80, ())):
        ours = NodeFilters(mirror_with(pod("a", wish, "n0"), pod("b", wish)), "kant")
        ours.begin([pod("b", wish)])
        assert not ours.failing and ours.check([("n0", pod("b", wish))])
        theirs = NodeFilters(mirror_with(pod("a", wish, "n0", "somebody"), pod("b", wish)), "kant")
        theirs.begin([pod("b", wish)])
        assert list(theirs.failing) == ["n0"]


def test_pods_that_are_in_each_others_way_get_a_node_each() -> None:
    pair = [pod(name, ("web", 2, 0, ())) for name in "ab"]
    filters = NodeFilters(mirror_with(*pair), "kant")
    assert filters.check([("n0", one) for one in pair]) and filters.among_themselves([("n0", one) for one in pair])
    assert not filters.among_themselves([("n0", pair[0]), ("n1", pair[1])])


def test_a_rule_is_that_of_the_api() -> None:
    everywhere = k.PodTerm(k.LabelSelector({"app": "web"}), HOST, (), k.LabelSelector())
    there = k.PodTerm(None, ZONE, ("x", "y"))
    one = k.Pod(k.Meta("p", "ml"), k.PodSpec(affinity=k.Affinity(None, None, k.PodAffinity((everywhere, there)))))
    first, second = rules_of(one)
    web = k.Pod(k.Meta("w", "z", labels={"app": "web"}))
    assert first.is_about(web) and first.namespaces == () and not second.is_about(web)
    assert second.namespaces == ("x", "y") and not second.is_about(k.Pod(k.Meta("w", "x")))  # no selector, no pod
