"""The choice of local volumes against all choices there are, on plain objects."""

from __future__ import annotations

from itertools import permutations

from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.examples import examples

from kant.kube.objects import views as k
from kant.kube.translate.local_volumes import asked_of, fits, match, reaches, size_of
from kant.kube.translate.volumes import BIND_COMPLETED, NO_PROVISIONER, Storage, chosen_claims, key_of, unbound_claims

ZONE = "zone"
MODES = ("ReadWriteOnce", "ReadOnlyMany")


def volume(name: str, size: int, zone: str, modes: tuple[str, ...], kept: str = "") -> k.PersistentVolume:
    terms = k.NodeSelector((k.SelectorTerm((k.Requirement(ZONE, "In", (zone,)),)),))
    ref = k.ClaimRef("ml", kept, f"uid-{kept}") if kept else None
    spec = k.PersistentVolumeSpec(
        ref, k.VolumeNodeAffinity(terms) if zone else None, {"storage": f"{size}Gi"}, modes, storage_class_name="local"
    )
    return k.PersistentVolume(k.Meta(name), spec, k.ClaimStatus("Bound" if kept else "Available"))


def claim(name: str, size: int, modes: tuple[str, ...] = MODES[:1]) -> k.Claim:
    resources = k.Resources(requests={"storage": f"{size}Gi"})
    return k.Claim(k.Meta(name, "ml", f"uid-{name}"), k.ClaimSpec("local", access_modes=modes, resources=resources))


modes = st.sampled_from((MODES[:1], MODES[1:], MODES))
volumes = st.lists(
    st.tuples(st.integers(1, 4), st.sampled_from(("", "a", "b")), modes, st.sampled_from(("", "", "", "c0"))),
    max_size=5,
)
claims = st.lists(st.tuples(st.integers(1, 4), st.sampled_from("ab"), modes), min_size=1, max_size=4)


@given(volumes, claims, st.sets(st.integers(0, 4), max_size=1))
@settings(max_examples=examples(150))
def test_all_claims_get_volumes_where_that_can_be_and_no_volume_is_for_two(
    made: list[tuple[int, str, tuple[str, ...], str]], asked: list[tuple[int, str, tuple[str, ...]]], taken: set[int]
) -> None:
    there = [volume(f"v{number}", *one) for number, one in enumerate(made)]
    nodes = {zone: k.Node(k.Meta(f"n{zone}", labels={ZONE: zone})) for zone in "ab"}
    wants = [(claim(f"c{number}", size, own), [nodes[zone]]) for number, (size, zone, own) in enumerate(asked)]
    gone = {f"v{number}" for number in taken}
    found = match(wants, there, gone)

    def may(one: k.PersistentVolume, want: tuple[k.Claim, list[k.Node]]) -> bool:
        own, (node,) = want
        ref = one.spec.claim_ref
        kept = [v for v in there if v.spec.claim_ref is not None and v.metadata.name not in gone]
        mine = [v for v in kept if v.spec.claim_ref is not None and v.spec.claim_ref.name == own.metadata.name]
        return (
            one.metadata.name not in gone
            and (one in mine if mine else ref is None)
            and set(own.spec.access_modes) <= set(one.spec.access_modes)
            and size_of(one) >= asked_of(own)
            and reaches(one, node)
        )

    can = any(all(map(may, some, wants)) for some in permutations(there, len(wants)))
    assert (found is not None) == can
    if found is None:
        return
    by_name = {one.metadata.name: one for one in there}
    assert len(set(found.values())) == len(found) == len(wants)
    assert all(may(by_name[found["ml", want[0].metadata.name]], want) for want in wants)
    if len(wants) == 1:
        (name,) = found.values()
        assert size_of(by_name[name]) == min(size_of(one) for one in there if may(one, wants[0]))


def test_what_a_claim_may_have() -> None:
    one = volume("v", 2, "a", MODES[:1])
    assert fits(one, claim("c", 2)) and not fits(one, claim("c", 3)) and not fits(one, claim("c", 1, MODES))
    assert fits(volume("v", 2, "a", MODES, "c"), claim("c", 2)) and not fits(
        volume("v", 2, "a", MODES, "d"), claim("c", 2)
    )
    spec = claim("c", 1).spec
    block = k.Claim(k.Meta("c", "ml"), k.ClaimSpec("local", access_modes=MODES[:1], volume_mode="Block"))
    other = k.Claim(k.Meta("c", "ml"), k.ClaimSpec("other", access_modes=MODES[:1], resources=spec.resources))
    wish = k.LabelSelector({"disk": "nvme"})
    fussy = k.Claim(k.Meta("c", "ml"), k.ClaimSpec("local", access_modes=MODES[:1], selector=wish))
    assert not any(fits(one, strange) for strange in (block, other, fussy))
    pending = k.PersistentVolume(one.metadata, one.spec, k.ClaimStatus("Pending"))
    assert not fits(pending, claim("c", 1))


def test_a_volume_that_says_nothing_of_nodes_is_reached_from_each() -> None:
    labelled = k.Node(k.Meta("n", labels={ZONE: "a"}))
    assert reaches(volume("v", 1, "", MODES), k.Node(k.Meta("n"))) and reaches(volume("v", 1, "a", MODES), labelled)
    assert not reaches(volume("v", 1, "b", MODES), labelled)


def test_volumes_are_chosen_for_claims_that_are_not_bound_and_whose_class_makes_none() -> None:
    bound, free, made = claim("bound", 1), claim("free", 1), claim("made", 1)
    bound = replace(bound, metadata=replace(bound.metadata, annotations={BIND_COMPLETED: "yes"}))
    bound = replace(bound, spec=replace(bound.spec, volume_name="v"))
    made = replace(made, spec=replace(made.spec, storage_class_name="cloud"))
    classes = {
        "local": k.StorageClass(k.Meta("local"), NO_PROVISIONER),
        "cloud": k.StorageClass(k.Meta("cloud"), "csi.example"),
    }
    storage = Storage({key_of(one): one for one in (bound, free, made)}, {}, classes, {})
    names = ("bound", "free", "made", "gone")
    volumes = tuple(k.Volume(name, persistent_volume_claim=k.VolumeClaim(name)) for name in names)
    pod = k.Pod(k.Meta("p", "ml"), k.PodSpec(volumes=volumes))
    assert [one.metadata.name for one in chosen_claims(pod, storage)] == ["free"]
    assert [one.metadata.name for one in unbound_claims(pod, storage)] == ["free", "made"]
