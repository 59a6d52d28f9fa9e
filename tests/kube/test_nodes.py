"""Nodes of the API in the words of the model: place in the fabric, state, flavor."""

from __future__ import annotations

from itertools import combinations
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kant.cluster.state import ClusterState
from kant.kube.follow.mirror import Mirror
from kant.kube.objects import views as k
from kant.kube.reconcile.fleet import Fleet, cluster_of
from kant.kube.reconcile.translation import Translation
from kant.kube.translate.levels import Levels, levels_listed, levels_seen
from kant.kube.translate.node_facts import facts_of, taints_of, why_nowhere
from kant.kube.translate.nodes import Seen, contradictions, node_of
from kant.kube.translate.selectors import Selection, selection_of
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
    with pytest.raises(InputError) as wrong:
        node_of(k.Node(k.Meta(name="n0"), status=k.NodeStatus(room, room, READY)), Levels())
    assert str(wrong.value).startswith("node n0, ") and field in str(wrong.value)


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
    ((about, found),) = contradictions(views, ZONES).items()
    assert (
        about == "node n1"
        and found == "node n1, label rack: expected the same leaf as n0, which is in the NVLink domain c too"
    )
    assert not contradictions([node("n0", rack="0", nvl="c"), node("n1", rack="0", nvl="c")], ZONES)


def test_a_label_that_is_missing_does_not_tear_apart_what_narrower_labels_join() -> None:
    views = [node(f"n{i}", rack="7", **({"row": "z"} if i == 2 else {})) for i in range(3)]
    leaves = [seen.node.leaf for seen in (node_of(view, ZONES) for view in views) if isinstance(seen, Seen)]
    assert leaves == ["(7)/(7)/7", "(7)/(7)/7", "z/(7)/7"]


def test_models_of_too_many_pools_leave_out_the_nodes_of_the_smallest() -> None:
    mirror = Mirror()
    views = [node(f"n{i:03}", **{"nvidia.com__gpu.product": f"M{i // 2}"}) for i in range(2 * MAX_POOLS + 3)]
    mirror.nodes.replace(views)
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

    def why(*asked: Selection) -> str:
        return why_nowhere(asked, [(facts_of(view), taints_of(view)) for view in views])

    told = "each node with the labels that it asks for has a taint that it does not tolerate"
    assert why(asks[0]) == f"{told}, such as kept=yes:NoSchedule"
    lacks = "no node has the labels and devices that it asks for: none"
    assert why(asks[2]) == f"{lacks} has pool=c"
    both = k.PodSpec(node_selector={"pool": "a", "kubernetes.io/arch": "arm64"})
    views.append(node("n2", pool="b", **{"kubernetes.io__arch": "arm64"}))
    assert why(selection_of(both)) == f"{lacks} has all of kubernetes.io/arch=arm64, pool=a"
    device = selection_of(k.PodSpec(), devices=(("google.com/tpu", 4),))
    assert why(device) == f"{lacks} has 4 of google.com/tpu"
    gone = k.NodeSelector((k.SelectorTerm((k.Requirement("pool", "In", ("c", "d")),)),))
    affine = selection_of(k.PodSpec(affinity=k.Affinity(k.NodeAffinity(gone))))
    assert why(affine) == f"{lacks} matches its nodeAffinity"
    assert why(asks[1]) == "no node has the labels, taints and devices that all of its pods ask for"
