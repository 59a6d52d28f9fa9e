"""Nodes whose labels and taints change under pods that wait: what is open to each is what its selection admits."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.examples import examples
from tests.kube.leading import Leader
from tests.kube.test_node_sets import Taints, labels, selections, taints
from tests.kube.test_pods import pod as gpu_pod

from kant.kube.follow.mirror import Mirror
from kant.kube.objects import views as k
from kant.kube.reconcile.workload import Phase
from kant.kube.translate.node_sets import names_in
from kant.kube.translate.selectors import Selection, Term

NODES = ("n0", "n1", "n2", "n3")
READY = (k.Condition("Ready", "True"),)
KEPT = (k.Taint("kept", "x", "NoSchedule"),)
PLAIN = Selection((), None, ())
state = st.tuples(labels, taints)
State = tuple[dict[str, str], Taints]


def view(name: str, state: State, gpus: int = 8) -> k.Node:
    room: dict[str, str | int | float] = {"nvidia.com/gpu": gpus, "cpu": "96", "memory": "1Ti"}
    meta = k.Meta(name, labels=dict(state[0]))
    return k.Node(meta, k.NodeSpec(taints=state[1]), k.NodeStatus(room, room, conditions=READY))


def waiting(name: str, asked: Selection, gpus: int = 8) -> k.Pod:
    spec: dict[str, Any] = {"scheduler_name": "kant", "tolerations": asked.tolerations}
    spec["node_selector"] = {one.key: one.values[0] for one in asked.always if one.operator == "In"}
    if asked.terms is not None:
        terms = tuple(k.SelectorTerm(term.requirements) for term in asked.terms)
        spec["affinity"] = k.Affinity(k.NodeAffinity(k.NodeSelector(terms)))
    made = gpu_pod(name, gpus, **spec)
    return k.Pod(k.Meta(name, "ml", uid=name, creation_timestamp=made.metadata.creation_timestamp), made.spec)


def change(leader: Leader, view: k.Node) -> None:
    leader.mirror.nodes.change("modified", view)
    leader.fleet.follow([view.metadata.name])
    leader.workloads.settle_all(leader.workloads.follow_sets())


def as_pods_say(one: Selection) -> Selection:
    """The selection of a pod, which has no operators but In in its nodeSelector, and no fields."""
    always = {
        own.key: own for own in one.always if own.operator == "In" and own.key != "metadata.name"
    }  # the last of a key counts
    terms = one.terms
    if terms is not None:
        terms = tuple(
            term._replace(requirements=tuple(own for own in term.requirements if own.key != "metadata.name"))
            for term in terms
        )
    return Selection(tuple(always.values()), terms, one.tolerations)


def open_to(leader: Leader) -> dict[str, set[str]]:
    """The nodes on which the core would let each pod stand that waits; none where it is no job."""
    core, found = leader.core, dict[str, set[str]]()
    names, pools = core.state.node_rows.names, np.array(core.state.shapes.node_sets.pool_of)
    for workload in leader.workloads.members.by_key.values():
        (uid,) = leader.workloads.members.pods_of[workload.key]
        found[uid] = set()
        if workload.job:
            assert workload.phase is Phase.WAITING
            mask = core.state.shapes.admitting(core.state.shape_of(core.state.rows[workload.job]), pools)
            found[uid] = {name for name, inside in zip(names, mask, strict=True) if inside and name}
            assert found[uid], "it is a job, and has no node"
            assert (names_in(core.state.live[core.state.rows[workload.job]]) == {""}) <= (found[uid] == set(NODES))
        else:
            assert workload.reason.startswith(("no node has", "each node with")), workload.reason
    return found


@given(
    st.tuples(*[state] * len(NODES)),
    st.lists(selections.map(as_pods_say), min_size=1, max_size=5),
    st.lists(st.tuples(st.sampled_from(NODES), state), min_size=1, max_size=6),
)
@example((({}, ()),) * 4, [PLAIN], [("n1", ({}, KEPT))])
@settings(max_examples=examples(60), deadline=None)
def test_a_state_that_followed_changes_is_open_to_pods_as_one_built_anew(
    first: tuple[State, ...], asked: list[Selection], changes: list[tuple[str, State]]
) -> None:
    mirror, now = Mirror(), dict(zip(NODES, first, strict=True))
    for name, how in now.items():
        mirror.nodes.change("added", view(name, how))
    for number, one in enumerate(asked[:3]):
        mirror.pod("added", waiting(f"p{number}", one))
    leader = Leader(mirror)
    for name, how in changes:
        now[name] = how
        change(leader, view(name, how))
        assert not leader.fleet.stale and not leader.translation.stale
    for number, one in enumerate(asked[3:]):
        mirror.pod("added", waiting(f"late-{number}", one))
    leader.settle()
    leader.core.state.check()
    names = [*(f"p{i}" for i in range(len(asked[:3]))), *(f"late-{i}" for i in range(len(asked[3:])))]
    right = {
        uid: {
            name
            for name, (own, taints) in now.items()
            if one.admits(own, [(t.key, t.value, t.effect) for t in taints if t.effect != "PreferNoSchedule"])
        }
        for uid, one in zip(names, asked, strict=True)
    }
    assert open_to(leader) == right
    assert open_to(Leader(mirror)) == right


@pytest.mark.long
def test_five_hundred_distinct_requests_start_in_one_cycle() -> None:
    mirror, many = Mirror(), 500
    for i in range(many):
        mirror.nodes.change("added", view(f"n{i}", ({"of": f"v{i}"}, ()), 1))
    for i in range(many):
        only = Selection((k.Requirement("of", "In", (f"v{many - 1 - i}",)),), None, ())
        mirror.pod("added", waiting(f"p{i}", only, 1))
    leader = Leader(mirror)
    slots = leader.turn()
    assert {slot.pod: slot.node for slot in slots} == {f"p{i}": f"n{many - 1 - i}" for i in range(many)}
    assert len(leader.translation.eligible.node_sets._sets) == many


def test_sets_of_pods_that_have_gone_are_forgotten() -> None:
    mirror = Mirror()
    mirror.nodes.change("added", view("n0", ({}, ())))
    leader = Leader(mirror)
    kept = Selection((k.Requirement("of", "In", ("kept",)),), None, ())
    mirror.pod("added", waiting("kept", kept))
    leader.settle()
    for i in range(300):
        one = waiting(f"p{i}", Selection((), (Term((k.Requirement("of", "NotIn", (f"v{i}",)),)),), ()))
        for kind in ("added", "deleted"):
            mirror.pod(kind, one)
            key = leader.workloads.members.note(one.metadata.uid, one)
            assert key is not None
            leader.workloads.settle_all({key: None, **leader.workloads.follow_sets()})
    assert len(leader.translation.eligible.node_sets._sets) < 70
    assert kept in leader.translation.eligible.node_sets._sets, "somebody waits for it"
    assert len(leader.core.state.shapes.node_sets._bits) < 70
    change(leader, view("n0", ({"of": "kept"}, ())))
    assert [slot.pod for slot in leader.turn()] == ["kept"]


def test_an_elastic_gang_does_not_grow_onto_the_first_node_with_a_taint() -> None:
    mirror = Mirror()
    for name, gpus in (("a", 2), ("b", 1), ("c", 1)):
        mirror.nodes.change("added", view(name, ({}, ()), gpus))
    for name in ("b", "c"):
        mirror.pod("added", replace(waiting(f"other-{name}", PLAIN, 1), spec=gpu_pod(gpus=1, node_name=name).spec))
    for i in range(3):
        one = waiting(f"gang-{i}", PLAIN, 1)
        marks = {"scheduling.kant.dev/pod-group": "g", "scheduling.kant.dev/min-available": "2"}
        mirror.pod("added", replace(one, metadata=replace(one.metadata, labels=marks, annotations=marks)))
    leader = Leader(mirror)
    assert {slot.node for slot in leader.turn()} == {"a"} and not leader.turn()
    (workload,) = [one for one in leader.workloads.by_job.values() if one.group]
    assert [member.pod.metadata.name for member in workload.members] == ["gang-2"]
    change(leader, view("b", ({}, KEPT), 1))
    for name, node in (("b", ""), ("c", "c")):
        gone = mirror.pods[f"other-{name}"]
        mirror.pod("deleted", gone)
        key = leader.workloads.members.note(gone.metadata.uid, gone)
        assert key is not None
        leader.workloads.settle_all({key: None})
        leader.turn()
        assert mirror.pods["gang-2"].spec.node_name == node


def test_pods_ask_for_whole_gpus_once_a_node_that_they_select_has_some() -> None:
    def node(name: str, product: str, team: str, gpus: int) -> k.Node:
        labels = {"nvidia.com/gpu.product": product, "nvidia.com/gpu.replicas": "4", "team": team}
        return view(name, (labels if product.endswith("SHARED") else {"team": team}, ()), gpus)

    mirror = Mirror()
    for one in (node("shared", "A100-SHARED", "x", 4), node("whole", "", "y", 1)):
        mirror.nodes.change("added", one)
    only = Selection((k.Requirement("team", "In", ("x",)),), None, ())
    mirror.pod("added", waiting("p", only, 1))
    leader = Leader(mirror)
    leader.fleet.follow(mirror.nodes)
    assert leader.translation.demand(mirror.pods["p"]).milli == 250 and not leader.translation.stale
    mirror.nodes.change("modified", node("whole", "", "z", 1))
    leader.fleet.follow(["whole"])
    assert not leader.translation.stale, "the pod does not select it"
    mirror.nodes.change("modified", node("whole", "", "x", 1))
    leader.fleet.follow(["whole"])
    assert leader.translation.demand(mirror.pods["p"]).milli == 1000 and leader.translation.stale


def test_a_place_that_is_not_bound_is_given_up_where_its_pod_may_not_stand_any_more() -> None:
    mirror = Mirror()
    for name in ("a", "b"):
        mirror.nodes.change("added", view(name, ({"team": name}, ()), 1))
    for name in ("a", "b"):
        only = Selection((k.Requirement("team", "In", (name,)),), None, ())
        mirror.pod("added", waiting(name, only, 1))
    leader = Leader(mirror)
    leader.executor.execute(leader.core.cycle())
    phases = {workload.key: workload.phase for workload in leader.workloads.by_job.values()}
    assert phases == {"a": Phase.PLACED, "b": Phase.PLACED}
    change(leader, view("a", ({}, ()), 1))
    phases = {workload.key: workload.phase for workload in leader.workloads.by_job.values()}
    assert phases["b"] is Phase.PLACED and phases["a"] is not Phase.PLACED


def test_who_could_never_fit_is_tried_again_when_his_set_has_other_nodes() -> None:
    mirror, only = Mirror(), Selection((k.Requirement("disk", "In", ("1",)),), None, ())
    mirror.nodes.change("added", view("large", ({}, ()), 8))
    mirror.nodes.change("added", view("small", ({"disk": "1"}, ()), 4))
    mirror.pod("added", waiting("p", only, 5))
    leader = Leader(mirror)
    assert not leader.turn()
    assert [workload.phase for workload in leader.workloads.by_job.values()] == [Phase.REJECTED]
    change(leader, view("large", ({"disk": "1"}, ()), 8))
    assert [slot.node for slot in leader.turn()] == ["large"]


def test_a_pod_that_no_node_takes_says_why_as_nodes_are_now() -> None:
    """It comes anew only where another reason holds, or none."""
    mirror, only = Mirror(), Selection((k.Requirement("team", "In", ("a",)),), None, ())
    for name in ("n0", "n1"):
        mirror.nodes.change("added", view(name, ({"team": "b"}, ()), 8))
    mirror.pod("added", waiting("p", only, 1))
    leader = Leader(mirror)
    (workload,) = leader.workloads.members.by_key.values()
    lacks = "no node has the labels and devices that it asks for: none has team=a"
    assert workload.reason == lacks
    leader.workloads.messages.unsent.clear()
    change(leader, view("n1", ({"team": "c"}, ()), 8))
    assert workload.reason == lacks and not leader.workloads.messages.unsent
    change(leader, view("n1", ({"team": "a"}, (k.Taint("busy", "yes", "NoSchedule"),)), 8))
    assert "has a taint that it does not tolerate, such as busy=yes:NoSchedule" in workload.reason
    change(leader, view("n1", ({"team": "b"}, ()), 8))
    assert workload.reason == lacks
    change(leader, view("n1", ({"team": "a"}, ()), 8))
    assert [slot.node for slot in leader.turn()] == ["n1"]
