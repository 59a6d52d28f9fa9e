"""Defragmentations: a round that an operator asks for, as an object. Its spec says what, its status what came of it."""

from __future__ import annotations

import msgspec
from msgspec import Struct

from kant.kube.objects.views import Unstructured, View
from kant.kube.translate.crds import about, decoded
from kant.model.errors import InputError

FINAL = ("Planned", "Done", "Stopped", "Refused")
"""The phases in which nothing more is done."""


class DefragmentationSpec(View, frozen=True):
    node_selector: dict[str, str] | None = None
    model: str = ""
    most_moves: int = 8
    dry_run: bool = False
    stop: bool = False


class DefragmentationStatus(View, frozen=True):
    phase: str = ""
    moved: int = 0


class AskedRound(Struct, frozen=True):
    """A round that somebody asks for on nodes with all of these labels and GPUs of `model` ("": of any).

    `phase` and `moved` are what its status says: how far a leader before us has come.
    """

    uid: str
    name: str
    created: str
    selector: dict[str, str]
    model: str
    most_moves: int
    dry_run: bool
    stop: bool
    phase: str
    moved: int

    def selects(self, labels: dict[str, str]) -> bool:
        """Whether a node with these labels is among those that it is about."""
        return all(labels.get(key) == value for key, value in self.selector.items())


def asked_round(found: Unstructured) -> AskedRound:
    """The round that an object asks for. Raises InputError."""
    spec: DefragmentationSpec = decoded(found, DefragmentationSpec)
    if not 1 <= spec.most_moves <= 10_000:
        raise InputError(f"{about(found)}, spec.mostMoves", "1 to 10,000 moves", spec.most_moves)
    try:
        status = msgspec.json.decode(found.status, type=DefragmentationStatus)
    except (msgspec.MsgspecError, RecursionError):
        status = DefragmentationStatus()
    meta = found.metadata
    return AskedRound(
        meta.uid,
        meta.name,
        meta.creation_timestamp,
        spec.node_selector or {},
        spec.model,
        spec.most_moves,
        spec.dry_run,
        spec.stop,
        status.phase,
        status.moved,
    )
