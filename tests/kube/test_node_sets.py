"""Node sets: they have the nodes that the selections of pods admit, whatever becomes of labels, taints and devices."""

from __future__ import annotations

from collections.abc import Mapping

from hypothesis import example, given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.kube.objects import views as k
from kant.kube.translate.node_sets import EVERYWHERE, LEAST_SETS, NEW_TAINT, NodeSets
from kant.kube.translate.selectors import Selection, Term, selection_of

KEYS = ("team", "disk", "size")
NAMES = ("n0", "n1", "n2", "n3", "n4")
values = st.sampled_from(("1", "2", "a"))
labels = st.dictionaries(st.sampled_from(KEYS), values)
effects = st.sampled_from(("NoSchedule", "NoExecute", "PreferNoSchedule"))
taints = st.lists(st.builds(k.Taint, st.sampled_from(KEYS), values, effects), max_size=2).map(tuple)
Taints = tuple[k.Taint, ...]
requirements = st.one_of(
    st.builds(k.Requirement, st.sampled_from(KEYS), st.sampled_from(("In", "NotIn")), st.tuples(values)),
    st.builds(k.Requirement, st.sampled_from(KEYS), st.sampled_from(("Exists", "DoesNotExist"))),
    st.builds(k.Requirement, st.sampled_from(KEYS), st.sampled_from(("Gt", "Lt")), st.tuples(st.just("1"))),
    st.builds(k.Requirement, st.just("metadata.name"), st.just("In"), st.tuples(st.sampled_from(NAMES))),
)
tolerations = st.builds(
    k.Toleration,
    st.sampled_from(("", *KEYS)),
    st.sampled_from(("Equal", "Exists")),
    values,
    st.sampled_from(("", "NoSchedule")),
)
terms = st.builds(Term, st.lists(requirements, max_size=2).map(tuple))
selections = st.builds(
    Selection,
    st.lists(requirements, max_size=2).map(tuple),
    st.one_of(st.none(), st.lists(terms, min_size=1, max_size=2).map(tuple)),
    st.lists(tolerations, max_size=3).map(tuple),
)
changes = st.tuples(
    st.sampled_from(NAMES), st.one_of(st.none(), st.tuples(labels, taints, st.sampled_from("0248"))),
    st.sampled_from(((), (), KEYS[:1])), st.booleans(), st.booleans(),
)  # fmt: skip
Change = tuple[str, tuple[dict[str, str], Taints, str] | None, tuple[str, ...], bool, bool]
"""A node, what becomes of it, which filters it fails, and whether changes are taken and unused sets forgotten then."""


def node(name: str, taints: Taints = (), devices: str = "0", **labels: str) -> k.Node:
    meta = k.Meta(name=name, labels={key.replace("__", "/"): value for key, value in labels.items()})
    return k.Node(meta, k.NodeSpec(taints=taints), k.NodeStatus({}, {"rdma/hca": devices}))


class Told:
    """The nodes of each set, as whoever takes in the changes knows them; and nothing but changes is said."""

    def __init__(self, sets: NodeSets) -> None:
        self.sets, self.nodes = sets, dict[str, set[str]]()

    def take(self) -> None:
        for change in self.sets.take_changes():
            own = self.nodes.setdefault(change.name, set())
            assert own.isdisjoint(change.added) and own.issuperset(change.removed)
            own |= set(change.added)
            own -= set(change.removed)
            assert change.is_empty == (not own) or change.name in (EVERYWHERE, NEW_TAINT)

    def of(self, sets: NodeSets, selection: Selection) -> set[str]:
        name = sets.name_of(selection)
        self.take()
        return self.nodes[name]


def expected(views: dict[str, k.Node], asked: Selection, fails: Mapping[str, tuple[str, ...]] = {}) -> set[str]:
    """The nodes that admit it."""
    admitted = set()
    for name, view in views.items():
        hard = [(t.key, t.value, t.effect) for t in view.spec.taints if t.effect != "PreferNoSchedule"]
        facts = (view.metadata.labels or {}) | {
            "metadata.name": name,
            "resource:rdma/hca": str((view.status.allocatable or {})["rdma/hca"]),
        }
        facts |= dict.fromkeys(fails.get(name, ()), "yes")
        admitted |= {name} if asked.admits(facts, hard) else set()
    return admitted


@given(st.lists(changes, max_size=12), st.lists(selections, min_size=1, max_size=5), st.integers(0, 12))
@example(  # it is gone and back before anybody asks
    [("n0", ({"team": "1"}, (), "0"), (), True, False), ("n0", None, (), False, False),
     ("n0", ({"team": "1"}, (), "0"), (), True, False), ("n0", ({"team": "2"}, (), "0"), (), True, False)],
    [Selection((k.Requirement("team", "In", ("1",)),), None, ())], 0)  # fmt: skip
@example(  # what it failed is not what the next one fails
    [("n0", ({}, (), "0"), (), True, False), ("n0", None, KEYS[:1], True, False),
     ("n1", ({}, (), "0"), (), True, False)],
    [Selection((k.Requirement("team", "DoesNotExist"),), None, ())], 0)  # fmt: skip
@settings(max_examples=examples(300))
def test_sets_follow_every_change_as_if_they_were_made_of_the_nodes_as_they_are(
    changes: list[Change], asked: list[Selection], late: int
) -> None:
    """Some selections come before the nodes, the others later."""
    sets, views = NodeSets(), dict[str, k.Node]()
    told = Told(sets)
    fails = dict[str, tuple[str, ...]]()
    for number, (name, how, failing, takes, forgets) in enumerate([*changes, *changes[:3]]):
        for own in asked[:2] if number < late else asked:
            sets.name_of(own)
        if how is None:
            views.pop(name, None)
        else:
            views[name] = node(name, how[1], how[2], **how[0])
        fails[name] = failing
        sets.follow(name, views.get(name), failing)
        if takes:
            told.take()
        if forgets:
            sets.keep({sets.name_of(asked[0])})
    assert len(sets._names) <= len(NAMES)
    for own in [view.metadata.labels for view in views.values() if view.metadata.labels]:
        there = [(view.metadata.labels or {}) | dict.fromkeys(fails[name], "yes") for name, view in views.items()]
        assert sets.count(own) == sum(own.items() <= one.items() for one in there)
    fresh = NodeSets()
    for name, view in views.items():
        fresh.follow(name, view, fails[name])
    told_fresh = Told(fresh)
    for own in asked:
        right = expected(views, own, fails)
        for there, which in ((told, sets), (told_fresh, fresh)):
            name = which.name_of(own)
            there.take()
            if name == EVERYWHERE:
                assert not which.tainted and right == set(views)
            else:
                assert there.nodes.get(name, set()) == right


def pinned(host: str) -> Selection:
    return selection_of(k.PodSpec(node_selector={"kubernetes.io/hostname": host}))


def host(name: str, **labels: str) -> k.Node:
    return node(name, **{"kubernetes.io__hostname": name}, **labels)


def test_pods_that_select_nothing_have_a_set_from_the_first_taint_on() -> None:
    sets = NodeSets()
    told = Told(sets)
    plain = Selection((), None, ())
    for name in ("a", "b"):
        sets.follow(name, node(name))
    assert sets.name_of(plain) == EVERYWHERE and not sets.take_changes()
    sets.follow("a", node("a", (k.Taint("node.kubernetes.io/unschedulable", "", "NoSchedule"),)))
    assert sets.name_of(plain) == EVERYWHERE, "it says in which state the node is"
    sets.follow("a", node("a", (k.Taint("kept", "x", "NoExecute"),)))
    assert [change.name for change in sets.take_changes()] == [EVERYWHERE]
    assert told.of(sets, plain) == {"b"}
    sets.follow("a", node("a"))
    assert told.of(sets, plain) == {"a", "b"}, "it is not told apart anew with every taint"


@given(st.sets(st.integers(0, 70)))
@settings(max_examples=examples(40))
def test_a_new_set_is_said_with_its_nodes_in_order(members: set[int]) -> None:
    sets, told = NodeSets(), [f"n{i}" for i in range(71)]
    for i, name in enumerate(told):
        sets.follow(name, node(name, zone="in" if i in members else "out"))
    sets.name_of(selection_of(k.PodSpec(node_selector={"zone": "in"})))
    (change,) = sets.take_changes()
    assert change.added == tuple(told[i] for i in sorted(members)) and change.is_empty == (not members)


def test_what_changes_of_a_node_is_looked_at_for_those_who_name_it() -> None:
    sets, looked = NodeSets(), list[Selection]()
    for i in range(100):
        sets.follow(f"n{i}", host(f"n{i}"))
    for i in range(100):
        sets.name_of(pinned(f"n{i}"))
    sets.take_changes()
    once = sets._nodes_of
    sets._nodes_of = lambda selection: looked.append(selection) or once(selection)  # type: ignore[method-assign,func-returns-value]
    sets.follow("n7", host("n7", zone="b"))
    assert not looked and not sets.take_changes()
    sets.follow("n7", node("n7", **{"kubernetes.io__hostname": "other"}))
    assert looked == [pinned("n7")]
    (change,) = sets.take_changes()
    assert (change.removed, change.is_empty) == (("n7",), True)


def test_of_an_empty_set_is_said_what_may_be_another_reason_for_that() -> None:
    sets = NodeSets()
    sets.follow("a", node("a"))
    wish = selection_of(k.PodSpec(node_selector={"disk": "1", "team": "1"}))
    name = sets.name_of(wish)
    sets.take_changes()
    kept = (k.Taint("kept", "x", "NoSchedule"),)
    for view, said in (
        (node("a", disk="1"), [name]),
        (node("a", disk="1", size="2"), []),
        (node("a", kept, disk="1"), [EVERYWHERE]),  # it lacks the team still
        (node("a", kept, disk="1", team="1"), [name]),
        (node("a", (*kept, *kept), disk="1", team="1"), []),
    ):
        sets.follow("a", view)
        found = sets.take_changes()
        assert [change.name for change in found] == said and all(not change.added for change in found)


def test_sets_that_nobody_uses_are_forgotten_and_their_names_are_given_again() -> None:
    sets = NodeSets()
    told = Told(sets)
    for name in ("a", "b"):
        sets.follow(name, host(name, team=name))
    kept = sets.name_of(pinned("a"))
    names = {kept}
    for i in range(20 * LEAST_SETS):
        names.add(sets.name_of(Selection((k.Requirement("team", "NotIn", ("a", f"gone-{i}")),), None, ())))
        told.take()
        if sets.are_many:
            sets.keep({kept})
    assert len(names) <= LEAST_SETS + 1 and len(sets._naming) <= LEAST_SETS + 4
    assert told.of(sets, pinned("a")) == {"a"}
    for name in ("a", "b"):
        assert told.of(sets, selection_of(k.PodSpec(node_selector={"team": name}))) == {name}


def test_nodes_with_ever_new_names_take_no_more_room_than_those_that_are_there() -> None:
    """Each label has the bits of its nodes, so those of spot nodes would take a megabyte a name within weeks."""
    sets = NodeSets()
    told = Told(sets)
    sets.follow("kept", host("kept", team="a"))
    for i in range(100):
        sets.follow(f"spot-{i}", host(f"spot-{i}", team="b"))
        assert told.of(sets, selection_of(k.PodSpec(node_selector={"team": "b"}))) == {f"spot-{i}"}
        sets.follow(f"spot-{i}", None)
        sets.follow(f"spot-{i}", None)
    told.take()
    assert len(sets._names) <= 3 and len(sets._read) == len(sets._bit) == 1
    assert max(mask.bit_length() for masks in sets._having.values() for mask in masks.values()) <= 3


def test_devices_besides_gpus_are_asked_for_like_labels() -> None:
    sets = NodeSets()
    told = Told(sets)
    pod = selection_of(k.PodSpec(), devices=(("rdma/hca", 4),))
    for name, amount in (("a", "4"), ("b", "3"), ("c", "0")):
        sets.follow(name, node(name, devices=amount))
    assert told.of(sets, pod) == {"a"}
    sets.follow("a", node("a", devices="2"))
    sets.follow("b", node("b", devices="12"))
    assert told.of(sets, pod) == {"b"}
