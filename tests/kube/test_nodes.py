"""Nodes of the API in the words of the model: place in the fabric, state, flavor."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.examples import examples

from kant.cluster.state import ClusterState
from kant.kube.follow.mirror import Mirror
from kant.kube.objects import views as k
from kant.kube.objects.validation import InvalidObject
from kant.kube.reconcile.fleet import Fleet, cluster_of
from kant.kube.reconcile.translation import Translation
from kant.kube.translate.flavors import NOWHERE, Flavors, why_nowhere
from kant.kube.translate.levels import Levels, levels_listed, levels_seen
from kant.kube.translate.nodes import Seen, contradictions, node_of
from kant.kube.translate.selectors import Selection, Term, selection_of
from kant.live.core import Core
from kant.model.errors import InputError
from kant.model.node import MAX_POOLS, ClusterSpec
from kant.model.status import NodeStatus
from kant.scheduler.profile import builtin_profile

READY = (k.Condition("Ready", "True"),)
ZONES = Levels("row", "block", "rack", "nvl", "test")


Taints = tuple[k.Taint, ...]


def node(
    name: str = "n0", gpus: int = 8, ready: bool = True, taints: tuple[k.Taint, ...] = (), **labels: str
) -> k.Node:
    room: dict[str, str | int | float] = {"cpu": "96", "memory": "1Ti", "nvidia.com/gpu": gpus}
    meta = k.Meta(name=name, labels={key.replace("__", "/"): value for key, value in labels.items()})
    return k.Node(meta, k.NodeSpec(taints=taints), k.NodeStatus(room, room, READY if ready else ()))


names = st.sampled_from(("a", "b", "a.b"))
places = st.fixed_dictionaries({}, optional={"row": names, "block": names, "rack": names, "nvl": names})


@given(st.lists(places, min_size=1, max_size=8))
def test_a_name_of_a_domain_stands_for_one_domain_whatever_the_labels_say(found: list[dict[str, str]]) -> None:
    seen = [node_of(node(f"n{number}", **labels), ZONES) for number, labels in enumerate(found)]
    hosts = [one.node for one in seen if isinstance(one, Seen)]
    assert len(hosts) == len(found)
    for one, other in combinations(hosts, 2):
        assert one.leaf != other.leaf or one.spine == other.spine
        assert one.spine != other.spine or one.superspine == other.superspine
    for labels, host in zip(found, hosts, strict=True):
        alone = not {"rack", "nvl"} & labels.keys()
        assert not alone or [other.leaf for other in hosts].count(host.leaf) == 1  # nobody knows its neighbours
    ClusterState(ClusterSpec("test", tuple(hosts))).check()


def test_capacity_allocatable_and_model() -> None:
    view = node(nvidia_com="x", **{"nvidia.com__gpu.product": "H100", "k8s.amazonaws.com__accelerator": "other"})
    left: dict[str, str | int | float] = {"cpu": "95500m", "memory": "1048576Ki", "nvidia.com/gpu": "6"}
    view = k.Node(view.metadata, view.spec, k.NodeStatus(view.status.capacity, left, READY))
    seen = node_of(view, Levels())
    assert isinstance(seen, Seen)
    assert (seen.node.gpus, seen.lost, seen.node.model) == (8, 2, "H100")
    assert (seen.node.cpu, seen.node.memory) == (95_500, 1024)


@pytest.mark.parametrize(("amount", "field"), [("many", "capacity.nvidia.com/gpu"), (63, "at most 62 GPUs")])
def test_a_malformed_node_is_a_complaint(amount: str | int, field: str) -> None:
    room: dict[str, str | int | float] = {"nvidia.com/gpu": amount}
    found = node_of(k.Node(k.Meta(name="n0"), status=k.NodeStatus(room, room, READY)), Levels())
    assert isinstance(found, InvalidObject)
    assert found.about == "node n0" and field in found.sentence


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({}, NodeStatus.IN_SERVICE),
        ({"ready": False}, NodeStatus.CORDONED),
        ({"taints": (k.Taint("node.kubernetes.io/unreachable", "", "NoExecute"),)}, NodeStatus.CORDONED),
        ({"taints": (k.Taint("nvidia.com/gpu", "", "NoSchedule"),)}, NodeStatus.IN_SERVICE),
    ],
)
def test_the_state_of_a_node(fields: dict[str, Any], status: NodeStatus) -> None:
    seen = node_of(node(**fields), Levels())
    assert isinstance(seen, Seen) and seen.status == status


TIERS = {f"fabric.topograph.run/tier-{tier}": "x" for tier in range(3)}


@pytest.mark.parametrize(
    ("labels", "levels"),
    [
        (TIERS | {"nvidia.com/gpu.clique": "c"}, ("tier-2", "tier-1", "tier-0", "gpu.clique")),
        ({f"topology.k8s.aws/network-node-layer-{layer}": "x" for layer in (1, 2, 3)}, ("-1", "-2", "-3", "")),
        ({f"topology.k8s.aws/network-node-layer-{layer}": "x" for layer in (1, 2, 3, 4)}, ("-2", "-3", "-4", "")),
        ({f"cloud.provider.com/topology-{what}": "x" for what in ("block", "rack")}, ("", "-block", "-rack", "")),
        ({f"cloud.google.com/gce-topology-{what}": "x" for what in ("block", "subblock", "host")},
         ("", "-block", "-subblock", "")),
        ({f"network.topology.nvidia.com/{what}": "x" for what in ("accelerator", "block", "spine", "datacenter")},
         ("datacenter", "spine", "block", "accelerator")),
        ({"topology.kubernetes.io/zone": "x"}, ("zone", "", "", "")),
        ({}, ("", "", "", "")),
    ],
)  # fmt: skip
def test_labels_that_are_there_name_the_levels(labels: dict[str, str], levels: tuple[str, ...]) -> None:
    found = levels_seen([labels, None])
    for level, ending in zip(("superspine", "spine", "leaf", "hbd"), levels, strict=True):
        assert getattr(found, level).endswith(ending) and bool(getattr(found, level)) == bool(ending)


def test_a_topology_lists_labels_from_broad_to_narrow() -> None:
    found = levels_listed(("zone", "block", "rack", "nvidia.com/gpu.clique", "kubernetes.io/hostname"), "t", "t")
    assert found == Levels("zone", "block", "rack", "nvidia.com/gpu.clique", "t")
    with pytest.raises(InputError, match="at most three levels"):
        levels_listed(("a", "b", "c", "d"), "t", "t")


def test_an_nvlink_domain_in_two_leaves_is_said_once() -> None:
    views = [node(f"n{number}", rack=str(number), nvl="c") for number in range(3)]
    (found,) = contradictions(views, ZONES)
    assert found.sentence == "node n1, label rack: expected the same leaf as n0, which is in the NVLink domain c too"
    assert not contradictions([node("n0", rack="0", nvl="c"), node("n1", rack="0", nvl="c")], ZONES)


# --- flavors -----------------------------------------------------------------------------------------------------

KEYS = ("team", "disk", "size")
values = st.sampled_from(("1", "2", "a"))
labels = st.dictionaries(st.sampled_from(KEYS), values)
effects = st.sampled_from(("NoSchedule", "NoExecute", "PreferNoSchedule"))
taints = st.lists(st.builds(k.Taint, st.sampled_from(KEYS), values, effects), max_size=2).map(tuple)
requirements = st.one_of(
    st.builds(k.Requirement, st.sampled_from(KEYS), st.sampled_from(("In", "NotIn")), st.tuples(values)),
    st.builds(k.Requirement, st.sampled_from(KEYS), st.sampled_from(("Exists", "DoesNotExist"))),
    st.builds(k.Requirement, st.sampled_from(KEYS), st.sampled_from(("Gt", "Lt")), st.tuples(st.just("1"))),
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


@given(
    st.lists(st.tuples(labels, taints), min_size=1, max_size=6),
    st.lists(selections, min_size=1, max_size=4),
    st.sampled_from((MAX_POOLS, 5, 3)),
)
@settings(max_examples=examples(100))
def test_a_pod_accepts_the_flavors_of_exactly_the_nodes_that_admit_it(
    nodes: list[tuple[dict[str, str], Taints]], pods: list[Selection], most: int
) -> None:
    flavors = Flavors(most)
    for pod in pods:
        flavors.learn(pod)
    views = [node(f"n{number}", taints=taints, **own) for number, (own, taints) in enumerate(nodes)]
    of = flavors.rebuild(views)
    assert not any(flavors.learn(pod) for pod in pods) and len(set(of.values())) <= max(most, 4)
    for pod in pods:
        try:
            accepted = flavors.accepted(pod, "pod")
        except InputError:
            assert most < len(nodes)
            continue
        for view in views:
            hard = [(t.key, t.value, t.effect) for t in view.spec.taints if t.effect != "PreferNoSchedule"]
            admits = pod.admits(view.metadata.labels or {}, hard)
            taken = not accepted or of[view.metadata.name] in accepted
            assert taken == admits
    for _ in pods:
        flavors.rebuild(views)
    assert flavors.served is None or all(flavors.turns.values())


def pinned(host: str) -> Selection:
    return selection_of(k.PodSpec(node_selector={"kubernetes.io/hostname": host}))


def test_of_a_label_with_too_many_values_only_those_that_pods_name_are_told_apart() -> None:
    flavors = Flavors()
    team = selection_of(k.PodSpec(node_selector={"team": "1"}))
    assert flavors.learn(pinned("n7")) and flavors.learn(team) and not flavors.learn(team)
    hosts = [{"kubernetes.io__hostname": f"n{i}", "team": str(i % 2)} for i in range(MAX_POOLS + 1)]
    views = [node(f"n{i}", **own) for i, own in enumerate(hosts)]
    of = flavors.rebuild(views)
    assert len(set(of.values())) == 3
    assert flavors.accepted(pinned("n7"), "pod") == (of["n7"],)
    assert set(flavors.accepted(team, "pod")) == {of["n1"], of["n7"]}
    assert flavors.learn(pinned("n8")) and not flavors.learn(pinned("n7"))
    for host in hosts:
        flavors.learn(pinned(host["kubernetes.io__hostname"]))
    of = flavors.rebuild(views)
    assert flavors.accepted(pinned("n7"), "pod") == (of["n7"],)
    late = [host for host in hosts if _is_turned_away(flavors, pinned(host["kubernetes.io__hostname"]))]
    assert late and flavors.turned_away
    flavors.rebuild(views)
    assert not any(_is_turned_away(flavors, pinned(host["kubernetes.io__hostname"])) for host in late)


def _is_turned_away(flavors: Flavors, pod: Selection) -> bool:
    try:
        flavors.accepted(pod, "pod")
    except InputError as error:
        assert str(error).startswith(
            f"pod: expected a turn: pods that wait ask for more kinds of nodes than {MAX_POOLS}"
        )
        return True
    return False


def test_taints_of_every_node_its_own_are_told_apart_by_the_pods_that_wait() -> None:
    flavors = Flavors()
    exists = Selection((), None, (k.Toleration("owner", "Exists"),))
    equal = Selection((), None, (k.Toleration("owner", "Equal", "3"),))
    views = [node(f"n{i}", taints=(k.Taint("owner", str(i), "NoSchedule"),)) for i in range(MAX_POOLS + 1)]
    assert set(flavors.rebuild(views).values()) == {"(meets no request)"}
    assert flavors.learn(exists) and flavors.learn(equal) and flavors.learn(Selection((), None, ()))
    of = flavors.rebuild(views)
    assert flavors.accepted(exists, "x") == ()
    assert flavors.accepted(equal, "x") == (of["n3"],)
    assert flavors.accepted(Selection((), None, ()), "x") == (NOWHERE,)


def test_devices_besides_gpus_are_asked_for_like_labels() -> None:
    flavors = Flavors()
    pod = selection_of(k.PodSpec(), devices=(("rdma/hca", 4),))
    flavors.learn(pod)
    with_hca: dict[str, str | int | float] = {"rdma/hca": 4}
    few: dict[str, str | int | float] = {"rdma/hca": 3}
    views = [
        k.Node(k.Meta(name=f"n{i}"), status=k.NodeStatus(room, room)) for i, room in enumerate((with_hca, few, {}))
    ]
    given_ = flavors.rebuild(views)
    assert flavors.accepted(pod, "x") == (given_["n0"],)


def test_a_label_that_is_missing_does_not_tear_apart_what_narrower_labels_join() -> None:
    views = [node(f"n{i}", rack="7", **({"row": "z"} if i == 2 else {})) for i in range(3)]
    leaves = [seen.node.leaf for seen in (node_of(view, ZONES) for view in views) if isinstance(seen, Seen)]
    assert leaves == ["(7)/(7)/7", "(7)/(7)/7", "z/(7)/7"]


def test_models_of_too_many_pools_leave_out_the_nodes_of_the_smallest() -> None:
    mirror = Mirror()
    views = [node(f"n{i:03}", **{"nvidia.com__gpu.product": f"M{i // 2}"}) for i in range(2 * MAX_POOLS + 3)]
    mirror.replace_nodes(views)
    translation = Translation(mirror)
    translation.begin(0)
    spec = cluster_of(mirror, translation, 0)
    assert spec is not None and len(spec.nodes) == 2 * MAX_POOLS
    left = {view.metadata.name for view in views} - {one.name for one in spec.nodes}
    assert left == {about.removeprefix("node ") for about in translation.complaints} and len(left) == 3
    fleet = Fleet(Core(spec, builtin_profile("fifo"), None, 0), mirror, translation)
    fleet.follow(mirror.nodes)
    assert not fleet.stale


def test_a_pod_for_which_no_node_will_do_is_told_what_excludes_it() -> None:
    kept = k.Taint("kept", "yes", "NoSchedule")
    views = [node("n0", pool="a", taints=(kept,)), node("n1", pool="b")]
    asks = [selection_of(k.PodSpec(node_selector={"pool": pool})) for pool in "abc"]
    told = "each node with the labels that it asks for has a taint that it does not tolerate"
    assert why_nowhere([asks[0]], views) == f"{told}, such as kept=yes:NoSchedule"
    lacks = "no node has the labels and devices that it asks for: none"
    assert why_nowhere([asks[2]], views) == f"{lacks} has pool=c"
    both = k.PodSpec(node_selector={"pool": "a", "kubernetes.io/arch": "arm64"})
    views.append(node("n2", pool="b", **{"kubernetes.io__arch": "arm64"}))
    assert why_nowhere([selection_of(both)], views) == f"{lacks} has all of kubernetes.io/arch=arm64, pool=a"
    device = selection_of(k.PodSpec(), devices=(("google.com/tpu", 4),))
    assert why_nowhere([device], views) == f"{lacks} has 4 of google.com/tpu"
    gone = k.NodeSelector((k.SelectorTerm((k.Requirement("pool", "In", ("c", "d")),)),))
    affine = selection_of(k.PodSpec(affinity=k.Affinity(k.NodeAffinity(gone))))
    assert why_nowhere([affine], views) == f"{lacks} meets its nodeAffinity"
    assert why_nowhere([asks[1]], views) == "no node has the labels, taints and devices that all of its pods ask for"
