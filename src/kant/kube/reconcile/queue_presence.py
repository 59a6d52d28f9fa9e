"""Whether a cluster has Queues. If all Queues have disappeared, nothing starts, so that no job exceeds its quota.

The fact that there were Queues outlives the leader: it is in the annotation `scheduling.kant.dev/queues` of its Lease.
A person may set it to state that no Queues are intended to exist.
"""

from __future__ import annotations

from collections.abc import Callable

from kant.kube.objects.names import QUEUES_KNOWN
from kant.model.tenant import Queue, QueueConfig

DECLARED, NONE = "declared", "none"
"""Values of the annotation: Queues existed (written by Kant); none are intended to exist (written by a person)."""

NONE_LEFT = QueueConfig((Queue("(no Queue is left)", state="hold"),))
"""Queues under which nothing starts."""

GONE = "no Queue is left in this cluster, which had some: nothing starts until there is one again"


class QueuePresence:
    """`there`: the cluster has a Queue now. `were`: it has or had one. `word` returns the annotation of the Lease."""

    def __init__(self, word: Callable[[], str] = lambda: "") -> None:
        self.word = word
        self.there = self.were = False

    def see(self, there: bool) -> None:
        """Record whether there is a Queue now."""
        word = self.word()
        self.there = there
        self.were = there or word == DECLARED or (self.were and word != NONE)

    @property
    def gone(self) -> str:
        """Return a sentence if there were Queues and none is left; "" otherwise."""
        return GONE if self.were and not self.there else ""

    @property
    def is_meant(self) -> bool:
        """Whether the Queues are gone and a person has stated that none are intended to exist."""
        return bool(self.gone) and self.word() == NONE

    def advice(self, namespace: str) -> str:
        """Return what the operator of Kant in `namespace` should do about missing Queues; "" if none are missing."""
        meant = f"kubectl -n {namespace} annotate lease kant {QUEUES_KNOWN}={NONE} --overwrite"
        return f"{GONE}; apply your Queues again, or state that none are intended: {meant}" if self.gone else ""

    def annotation(self, stood: str) -> str:
        """Return the new value of the annotation, given its present value `stood`."""
        if self.there or (self.were and stood != NONE):
            return DECLARED
        return stood
