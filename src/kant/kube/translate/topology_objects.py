"""Reads topology levels from Topology objects: Kant's, and those of KAI and Kueue."""

from __future__ import annotations

from collections.abc import Iterable

from kant.kube.objects.views import Unstructured, View
from kant.kube.translate.crds import GROUP, about, decoded
from kant.kube.translate.levels import Levels, levels_listed, levels_named
from kant.model.errors import InputError


class LevelSpec(View, frozen=True):
    level: str = ""
    node_label: str = ""


class TopologySpec(View, frozen=True):
    levels: tuple[LevelSpec, ...] = ()


def levels_of(objects: Iterable[Unstructured]) -> tuple[Levels | None, dict[str, str]]:
    """Return the levels of the first usable Topology object (Kant's before those of KAI and Kueue), and errors.

    The levels are None if no object is usable. Every other object has an error, by its name or by NAME (GROUP).
    """
    found: Levels | None = None
    wrong: dict[str, str] = {}
    for one in sorted(objects, key=lambda one: (not one.api_version.startswith(GROUP), one.metadata.name)):
        name, group = one.metadata.name, one.api_version.partition("/")[0]
        name = name if group == GROUP else f"{name} ({group})"
        try:
            levels = _levels(one)
        except InputError as error:
            wrong[name] = str(error)
            continue
        if found is None:
            found = levels
        else:
            wrong[name] = str(InputError(about(one), f"one Topology in the cluster: {found.source} is in force"))
    return found, wrong


def _levels(found: Unstructured) -> Levels:
    spec: TopologySpec = decoded(found, TopologySpec)
    place = f"{about(found)}, spec.levels"
    if not spec.levels or not all(one.node_label for one in spec.levels):
        raise InputError(place, "one or more levels, each with its nodeLabel")
    if found.api_version.startswith(GROUP):
        return levels_named(((one.level, one.node_label) for one in spec.levels), about(found), place)
    return levels_listed((one.node_label for one in spec.levels), about(found), place)
