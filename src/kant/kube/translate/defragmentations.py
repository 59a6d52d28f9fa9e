"""Defragmentations: objects by which operators request a round. The spec is the request, the status its outcome."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from kant.kube.objects.views import Unstructured, View
from kant.kube.translate.crds import about, decoded
from kant.model.errors import InputError

FINAL = ("Planned", "Done", "Stopped", "Refused")
"""The phases in which nothing more is done."""


class DefragmentationSpec(View, frozen=True):
    """A round on nodes with all of these labels and GPUs of `model` ("": of any)."""

    node_selector: dict[str, str] | None = None
    model: str = ""
    most_moves: int = 8
    dry_run: bool = False
    stop: bool = False

    def selects(self, labels: dict[str, str]) -> bool:
        """Whether the round includes a node with these labels."""
        return all(labels.get(key) == value for key, value in (self.node_selector or {}).items())


class DefragmentationStatus(View, frozen=True):
    """The progress that a previous leader has recorded."""

    phase: str = ""
    moved: int = 0


class AskedRound(NamedTuple):
    """A requested round, and its status."""

    name: str
    spec: DefragmentationSpec
    status: DefragmentationStatus = DefragmentationStatus()


def asked_round(found: Unstructured) -> AskedRound:
    """Return the round that an object requests. Raises InputError."""
    spec: DefragmentationSpec = decoded(found, DefragmentationSpec)
    if not 1 <= spec.most_moves <= 10_000:
        raise InputError(f"{about(found)}, spec.mostMoves", "1 to 10,000 moves", spec.most_moves)
    try:
        status = msgspec.json.decode(found.status, type=DefragmentationStatus)
    except (msgspec.MsgspecError, RecursionError):
        status = DefragmentationStatus()
    return AskedRound(found.metadata.name, spec, status)
