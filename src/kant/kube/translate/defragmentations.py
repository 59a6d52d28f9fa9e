"""Defragmentation objects: the spec is an operator's request for a defragmentation, the status is its progress."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from kant.kube.objects.views import Unstructured, View
from kant.kube.translate.crds import about, decoded
from kant.model.errors import InputError

FINAL = ("Planned", "Done", "Stopped", "Refused")
"""The phases of a defragmentation that has ended."""


class DefragmentationSpec(View, frozen=True):
    """A request to defragment the nodes that have all of these labels and GPUs of `model` ("": any model)."""

    node_selector: dict[str, str] | None = None
    model: str = ""
    most_moves: int = 8
    dry_run: bool = False
    stop: bool = False

    def selects(self, labels: dict[str, str]) -> bool:
        """Whether `node_selector` selects a node with these labels."""
        return all(labels.get(key) == value for key, value in (self.node_selector or {}).items())


class DefragmentationStatus(View, frozen=True):
    """The progress that a previous leader has recorded."""

    phase: str = ""
    moved: int = 0


class AskedRound(NamedTuple):
    """The request of a Defragmentation object, and the status as last written."""

    name: str
    spec: DefragmentationSpec
    status: DefragmentationStatus = DefragmentationStatus()


def asked_round(found: Unstructured) -> AskedRound:
    """Return what a Defragmentation object requests, and its status. Raises InputError for an invalid spec."""
    spec: DefragmentationSpec = decoded(found, DefragmentationSpec)
    if not 1 <= spec.most_moves <= 10_000:
        raise InputError(f"{about(found)}, spec.mostMoves", "1 to 10,000 moves", spec.most_moves)
    try:
        status = msgspec.json.decode(found.status, type=DefragmentationStatus)
    except (msgspec.MsgspecError, RecursionError):
        status = DefragmentationStatus()
    return AskedRound(found.metadata.name, spec, status)
