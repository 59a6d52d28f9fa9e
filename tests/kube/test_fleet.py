"""Nodes of Kubernetes come and go: the state takes them in, and knows what one that is built anew knows."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.examples import examples
from tests.kube.leading import Leader
from tests.kube.test_changing_nodes import view, waiting
from tests.kube.test_node_sets import labels, taints

from kant.cluster.columns import FREE, STATUS
from kant.kube.follow.mirror import Mirror
from kant.kube.objects import views as k
from kant.kube.reconcile.workload import Phase
from kant.kube.translate.selectors import Selection
from kant.model.event import NodeDescribed, NodesJoined, NodesLeft
from kant.model.status import NodeStatus

PLAIN = Selection((), None, ())
BARE: tuple[dict[str, str], tuple[k.Taint, ...]] = ({}, ())
NAMES = ("n0", "n1", "n2", "n3", "n4")


def leader_of(*nodes: k.Node) -> Leader:
    mirror = Mirror()
    for node in nodes:
        mirror.nodes.change("added", node)
    return Leader(mirror)


def change(leader: Leader, node: k.Node | None, name: str = "") -> None:
    """As the driver does when a node has come, changed or gone."""
    if node is None:
        leader.mirror.nodes.change("deleted", leader.mirror.nodes[name])
    else:
        name = node.metadata.name
        leader.mirror.nodes.change("modified", node)
    leader.fleet.follow([name])
    others, leader.fleet.others = leader.fleet.others, {}
    keys = leader.workloads.affected.of_changed_nodes(others) | leader.workloads.follow_sets()
    leader.workloads.settle_all(keys)
    leader.core.state.check()


def submit(leader: Leader, *pods: k.Pod) -> None:
    for pod in pods:
        leader.mirror.pod("added", pod)
    leader.settle()


def served(leader: Leader) -> dict[str, int]:
    """Thousandths of GPUs that are free on the nodes in service, by name."""
    state = leader.core.state
    rows = {name: state.table[row] for name, row in state.node_index.items()}
    return {name: int(row[FREE]) for name, row in rows.items() if row[STATUS] == NodeStatus.IN_SERVICE}


def test_a_node_that_joins_takes_who_waits_and_no_state_is_built_anew() -> None:
    leader = leader_of(view("n0", BARE, 4))
    submit(leader, waiting("large", PLAIN, 8))
    assert not leader.turn()
    change(leader, view("n1", BARE, 8))
    assert not leader.fleet.stale and not leader.translation.stale
    assert [slot.node for slot in leader.turn()] == ["n1"]


def test_a_node_that_is_gone_leaves_once_nothing_is_held_there() -> None:
    leader = leader_of(view("n0", BARE), view("n1", BARE))
    submit(leader, waiting("one", PLAIN, 8))
    (slot,) = leader.turn()
    change(leader, None, slot.node)
    assert slot.node in leader.core.state.node_index and slot.node not in served(leader)
    pod = leader.mirror.pods["one"]
    leader.mirror.pod("deleted", pod)
    leader.workloads.settle_all({key: None for key in [leader.workloads.members.note("one", None)] if key})
    leader.fleet.follow([])
    assert slot.node not in leader.core.state.node_index
    change(leader, view(slot.node, BARE, 4))
    assert served(leader)[slot.node] == 4000


def test_a_node_grows_under_what_runs_there_and_one_that_becomes_too_small_asks_for_a_new_state() -> None:
    leader = leader_of(view("n0", BARE, 4))
    submit(leader, waiting("one", PLAIN, 4), waiting("two", PLAIN, 4))
    assert len(leader.turn()) == 1
    change(leader, view("n0", BARE, 8))
    assert not leader.fleet.stale and len(leader.turn()) == 1
    leader.mirror.nodes.change("modified", view("n0", BARE, 4))
    leader.fleet.follow(["n0"])
    assert leader.fleet.stale


def test_another_level_of_the_fabric_asks_for_a_new_state() -> None:
    leader = leader_of(view("n0", BARE))
    leader.mirror.nodes.change("added", view("n1", ({"topology.kubernetes.io/zone": "z"}, ())))
    leader.fleet.follow(["n1"])
    assert leader.fleet.stale


def test_a_pod_that_is_on_a_node_before_the_node_is_known_is_counted_when_it_joins() -> None:
    leader = leader_of(view("n0", BARE))
    pod = waiting("early", PLAIN, 3)
    spec = k.PodSpec(**{name: getattr(pod.spec, name) for name in pod.spec.__struct_fields__} | {"node_name": "n1"})
    submit(leader, k.Pod(pod.metadata, spec))
    change(leader, view("n1", BARE, 8))
    assert served(leader)["n1"] == 5000


def test_what_is_said_of_nodes_are_their_own_events() -> None:
    leader = leader_of(view("n0", BARE), view("n1", BARE))
    said: list[type] = []
    happen = leader.core.happen
    leader.core.happen = lambda event: (said.append(type(event)), happen(event))[1]  # type: ignore[method-assign]
    change(leader, view("n2", BARE))
    change(leader, view("n1", BARE, 4))
    change(leader, None, "n0")
    kinds = [kind for kind in said if kind in (NodesJoined, NodeDescribed, NodesLeft)]
    assert kinds == [NodesJoined, NodeDescribed, NodesLeft]
    assert not leader.core.state.layout, "the table has had rows for nodes that join from the start"


def test_a_node_event_translates_that_node_alone_and_no_pod_that_runs() -> None:
    """Joins, leaves, labels and taints: nothing is read again of the fifty pods that are on the other nodes."""
    leader = leader_of(*(view(f"n{i}", BARE) for i in range(10)))
    submit(leader, *(waiting(f"p{i}", PLAIN, 1) for i in range(50)), waiting("huge", PLAIN, 16))
    assert len(leader.turn()) == 50
    read: list[str] = []
    job, node = leader.translation._job, leader.translation.nodes.node
    leader.translation._job = lambda ref, pods, filters, rules: (  # type: ignore[method-assign]
        read.extend(pod.metadata.name for pod in pods),
        job(ref, pods, filters, rules),
    )[1]
    leader.translation.nodes.node = lambda view, now: (  # type: ignore[method-assign]
        read.append(view.metadata.name),
        node(view, now),
    )[1]
    empty = next(name for name in leader.mirror.nodes if not leader.mirror.on_node.get(name))
    changes: list[tuple[k.Node, str]] = [
        (view("n10", BARE), "n10"),
        (view("n1", ({"a": "b"}, ())), "n1"),
        (view("n2", ({}, (k.Taint("a", "b", "NoSchedule"),))), "n2"),
    ]
    for changed, name in changes:
        read.clear()
        change(leader, changed, name)
        assert [one for one in read if one != "huge"] == [name]
    read.clear()
    change(leader, None, empty)
    assert not set(read) - {"huge"}


nodes = st.tuples(st.sampled_from(NAMES), st.sampled_from((0, 0, 4, 8)), labels, taints)


@given(st.lists(nodes, max_size=12), st.lists(st.sampled_from((1, 2, 4, 8)), max_size=5))
@settings(max_examples=examples(60))
def test_a_state_that_followed_serves_what_one_that_is_built_anew_serves(
    changes: list[tuple[str, int, dict[str, str], tuple[k.Taint, ...]]], pods: list[int]
) -> None:
    """Zero GPUs stand for a node that is not there. What is free is also counted by hand from the nodes and pods."""
    leader = leader_of(view("base", BARE, 4))
    for number, gpus in enumerate(pods):
        submit(leader, waiting(f"p{number}", PLAIN, gpus))
    for name, gpus, own_labels, own_taints in changes:
        if gpus == 0 and name not in leader.mirror.nodes:
            continue
        change(leader, view(name, (own_labels, own_taints), gpus) if gpus else None, name)
        leader.turn()
        placed = leader.workloads.by_job.values()
        for node in NAMES:
            assert leader.workloads.affected.vacant_on(node) == {
                one.key: None for one in placed if any(slot.node == node and not slot.bound for slot in one.slots)
            }
        unplaced = [one for one in placed if one.phase in (Phase.WAITING, Phase.REJECTED)]
        assert set(leader.workloads.transitions.unplaced(Phase.WAITING, Phase.REJECTED)) == set(unplaced)
        if leader.fleet.stale or leader.translation.stale:
            return
    anew = Leader(leader.mirror)
    assert {name: free for name, free in served(leader).items() if free} == {
        name: free for name, free in served(anew).items() if free
    }
    by_hand = {name: int(node.status.allocatable["nvidia.com/gpu"]) for name, node in leader.mirror.nodes.items()}
    for pod in leader.mirror.pods.values():
        if pod.spec.node_name in by_hand:
            by_hand[pod.spec.node_name] -= int(pod.spec.containers[0].resources.limits["nvidia.com/gpu"])
    assert served(leader) == {name: 1000 * free for name, free in by_hand.items()}


def test_the_place_of_a_pod_that_is_gone_is_found_on_its_node_when_that_closes() -> None:
    leader = leader_of(view("n0", BARE, 4), view("n1", BARE, 4))
    notes = {"scheduling.kant.dev/pod-group": "gang", "scheduling.kant.dev/min-available": "2"}
    pods = [waiting(f"p{number}", PLAIN, 4) for number in range(2)]
    submit(leader, *(replace(pod, metadata=replace(pod.metadata, annotations=notes)) for pod in pods))
    first, second = leader.turn()
    assert not leader.workloads.affected.vacant_on(first.node) and not leader.workloads.affected.vacant_on(second.node)
    leader.workloads.transitions.count_promised()
    leader.mirror.pod("deleted", leader.mirror.pods[first.pod])
    key = leader.workloads.members.note(first.pod, None)
    assert key is not None
    leader.workloads.settle(key)
    assert list(leader.workloads.affected.vacant_on(first.node)) == [key]
    assert not leader.workloads.affected.vacant_on(second.node)
