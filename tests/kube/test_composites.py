"""Groups in groups: which of them start together."""

from __future__ import annotations

import json

import msgspec
import pytest

from kant.kube.follow.mirror import Mirror
from kant.kube.objects import views as k
from kant.kube.objects.refusals import MalformedError
from kant.kube.reconcile.composites import chain_of, needed
from kant.kube.reconcile.translation import Translation
from kant.kube.translate.groups import composite_of, group_of

BASE = "/apis/scheduling.k8s.io/{}/namespaces/ml/{}/{}"


def pods(*groups: str) -> list[k.Pod]:
    return [k.Pod(k.Meta(f"{group}-0", "ml"), k.PodSpec(scheduling_group=k.SchedulingGroup(group))) for group in groups]


def translation(composites: dict[str, tuple[int, str]], groups: dict[str, tuple[int, str]], **keys: str) -> Translation:
    """Groups by name: how many they need, and what they are in. `keys` are constraints of some."""
    found = Translation(Mirror())

    def add(version: str, plural: str, name: str, policy: object, parent: str) -> None:
        spec = {"schedulingPolicy": policy, "parentCompositePodGroupName": parent}
        if name in keys:
            spec |= {"schedulingConstraints": {"topology": [{"key": keys[name]}]}}
        one = k.Unstructured("v", "Thing", k.Meta(name, "ml"), msgspec.Raw(json.dumps(spec).encode()))
        found.groups[BASE.format(version, plural, name)] = one

    for name, (least, parent) in composites.items():
        add(
            "v1alpha3",
            "compositepodgroups",
            name,
            {"gang": {"minGroupCount": least}} if least else {"basic": {}},
            parent,
        )
    for name, (least, parent) in groups.items():
        add("v1beta1", "podgroups", name, {"gang": {"minCount": least}} if least else {"basic": {}}, parent)
    return found


def test_as_many_groups_as_it_needs_start_together_the_first_by_name() -> None:
    known = translation({"all": (2, "")}, {"c": (4, "all"), "a": (2, "all"), "b": (3, "all")})
    assert needed(known, "ml", pods("c", "a", "b")) == (5, (("a", 2), ("b", 3)))
    assert needed(known, "ml", pods("c")) == (4, (("c", 4), ("another group of all", 1)))


def test_groups_of_groups_count_as_one_each() -> None:
    known = translation(
        {"top": (1, ""), "l": (2, "top"), "r": (1, "top")}, {"x": (2, "l"), "y": (1, "l"), "z": (9, "r")}
    )
    assert needed(known, "ml", pods("z", "y", "x")) == (3, (("x", 2), ("y", 1)))


def test_what_cannot_be_is_said_in_one_sentence() -> None:
    known = translation({"loop": (1, "loop")}, {"a": (1, "loop")})
    (pod,) = pods("a")
    ref = group_of(pod)
    assert ref is not None
    spec = known.group_spec(ref)
    assert spec is not None
    with pytest.raises(MalformedError, match="group a: expected groups nested at most 8 levels deep"):
        chain_of(known, ref, spec)
    known = translation({"all": (1, ""), "part": (1, "all")}, {"a": (1, "part")}, part="rack")
    words = "group part: expected no topology constraint; all and PodGroups may have one"
    with pytest.raises(MalformedError, match=words):
        needed(known, "ml", [pod])
    assert needed(translation({"all": (1, "")}, {"a": (1, "all")}, a="rack"), "ml", [pod]) == (1, (("a", 1),))
    known = translation({}, {"a": (1, "all")})
    assert chain_of(known, ref, spec._replace(parent="all")) == composite_of("ml", "all")
