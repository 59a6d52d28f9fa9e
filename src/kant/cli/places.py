"""Chooses where a verb finds its jobs: this machine, Kubernetes or, for questions about the past, a journal.

All three have the same interface, so a verb does not depend on which of them answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kant.model.errors import InputError

if TYPE_CHECKING:
    from pathlib import Path

    from kant.cli.kube_options import Kube
    from kant.cli.place import AnswerSource, Place


def place_of(home: Path | None, there: Kube | None) -> Place:
    """Return the Kant of `home`, if given; else the one on Kubernetes, if an option asks for it; else the local one."""
    if there and home is None:
        from kant.cli.kubernetes_place import KubernetesPlace

        return KubernetesPlace(there)
    from kant.cli.machine_place import MachinePlace
    from kant.service.client import home_of

    return MachinePlace(home_of(home))


def questions_of(
    home: Path | None, there: Kube | None, journal: Path | None, at: str | None, learn: bool = True
) -> AnswerSource:
    """Return a source of answers: the journal at time `at`; without a journal, the Kant that `place_of` finds."""
    if journal is not None:
        from kant.cli.journal_place import JournalPlace

        return JournalPlace(journal, at, learn)
    if at is not None:
        raise InputError("--at", "a journal; a running Kant answers only about the present", at)
    return place_of(home, there)
