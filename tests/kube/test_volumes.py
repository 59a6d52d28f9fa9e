"""What the volumes of a pod demand of its node: the rules of kube-scheduler, on plain objects."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kant.kube.objects import views as k
from kant.kube.translate.node_facts import admits
from kant.kube.translate.pods import selection
from kant.kube.translate.volumes import (
    BIND_COMPLETED,
    SELECTED_NODE,
    NotYetError,
    Storage,
    check_claims,
    claims_of,
    why_out_of_reach,
)
from kant.model.errors import InputError

ZONE = "topology.kubernetes.io/zone"


def terms(*options: tuple[str, ...]) -> k.NodeSelector:
    """One term for each option: the zone is one of these."""
    return k.NodeSelector(tuple(k.SelectorTerm((k.Requirement(ZONE, "In", values),)) for values in options))


def pod(*claims: str, zones: tuple[tuple[str, ...], ...] = (), **spec: object) -> k.Pod:
    volumes = tuple(k.Volume(name, k.VolumeClaim(name)) for name in claims)
    affinity = k.Affinity(k.NodeAffinity(terms(*zones))) if zones else None
    return k.Pod(k.Meta("p", "ml"), k.PodSpec(volumes=volumes, affinity=affinity))


def claim(name: str, volume: str = "", storage_class: str = "", notes: dict[str, str] | None = None) -> k.Claim:
    own = {BIND_COMPLETED: "yes"} if volume else {}
    return k.Claim(k.Meta(name, "ml", annotations=own | (notes or {})), k.ClaimSpec(storage_class, volume))


def volume(name: str, *options: tuple[str, ...], labels: dict[str, str] | None = None) -> k.PersistentVolume:
    affinity = k.VolumeNodeAffinity(terms(*options)) if options else None
    return k.PersistentVolume(k.Meta(name, labels=labels), k.PersistentVolumeSpec(node_affinity=affinity))


def node(name: str, zone: str) -> k.Node:
    return k.Node(k.Meta(name, labels={ZONE: zone}))


def storage(*things: k.Claim | k.PersistentVolume | k.StorageClass | k.Node) -> Storage:
    return Storage(
        {(one.metadata.namespace, one.metadata.name): one for one in things if isinstance(one, k.Claim)},
        {one.metadata.name: one for one in things if isinstance(one, k.PersistentVolume)},
        {one.metadata.name: one for one in things if isinstance(one, k.StorageClass)},
        {one.metadata.name: one for one in things if isinstance(one, k.Node)},
    )


zones = st.lists(st.sampled_from("abc"), min_size=1, max_size=2, unique=True).map(tuple)
options = st.lists(zones, max_size=2).map(tuple)


@given(options, options, options)
def test_a_node_has_to_meet_the_pod_and_each_of_its_volumes(
    own: tuple[tuple[str, ...], ...], first: tuple[tuple[str, ...], ...], second: tuple[tuple[str, ...], ...]
) -> None:
    known = storage(claim("x", "pv-x"), claim("y", "pv-y"), volume("pv-x", *first), volume("pv-y", *second))
    found = selection(pod("x", "y", zones=own), known)
    for zone in "abcd":
        wanted = all(not asked or any(zone in option for option in asked) for asked in (own, first, second))
        assert admits(found, node("n", zone)) == wanted


def test_zone_labels_of_older_volumes_and_topologies_of_a_class_and_the_selected_node_narrow() -> None:
    allowed = (k.TopologyTerm((k.LabelValues(ZONE, ("b",)),)),)
    disk = k.StorageClass(k.Meta("disk"), "csi", "WaitForFirstConsumer", allowed)
    known = storage(
        claim("old", "pv"), volume("pv", labels={ZONE: "a__b"}), disk, claim("new", storage_class="disk"),
        claim("begun", storage_class="disk", notes={SELECTED_NODE: "n7"}), node("n7", "c"),
        claim("lost", storage_class="disk", notes={SELECTED_NODE: "n8"}),
    )  # fmt: skip

    def takes(name: str) -> str:
        found = selection(pod(name), known)
        return "".join(zone for zone in "abc" if admits(found, node("n", zone)))

    assert (takes("old"), takes("new"), takes("lost")) == ("ab", "b", "b")
    assert not takes("begun") and admits(selection(pod("begun"), known), node("n7", "c"))
    assert why_out_of_reach(pod("new"), known) == f"claim new (class disk) needs a node with {ZONE} In b"


def test_claims_that_cannot_be_used_yet() -> None:
    local = k.StorageClass(k.Meta("local"), "kubernetes.io/no-provisioner", "WaitForFirstConsumer")
    going = k.Claim(k.Meta("going", "ml", deletion_timestamp="2026-01-01T00:00:00Z"))
    lost = k.Claim(k.Meta("lost", "ml"), k.ClaimSpec("", "pv-l"), k.ClaimStatus("Lost"))
    known = storage(going, lost, claim("slow"), claim("half", "pv"), local, claim("here", storage_class="local"))
    said = {
        "none": "its claim none does not exist",
        "going": "its claim going is being deleted",
        "lost": "its claim lost has lost its volume pv-l",
        "slow": "its claim slow is not bound to a volume yet",
        "half": "the volume pv of its claim half does not exist",
    }
    for name, sentence in said.items():
        with pytest.raises(NotYetError, match=sentence):
            check_claims(pod(name), known)
    check_claims(pod("here"), known)  # the scheduler chooses its volume
    with pytest.raises(InputError, match="permission for Kant to list persistentvolumeclaims"):
        check_claims(pod("slow"), known._replace(known=False))


def test_an_ephemeral_volume_has_a_claim_that_is_named_after_the_pod() -> None:
    one = k.Pod(k.Meta("p", "ml"), k.PodSpec(volumes=(k.Volume("scratch", None, k.EphemeralVolume()), k.Volume("x"))))
    assert claims_of(one) == ("p-scratch",)
