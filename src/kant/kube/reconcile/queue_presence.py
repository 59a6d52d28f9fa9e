"""Whether a cluster has Queues. If all Queues disappear, nothing starts, so that no job exceeds its quota.

The annotation `scheduling.kant.dev/queues` of the leader's Lease tells the next leader that there were Queues. A person
may set the annotation to `none`, to state that the cluster should have no Queues.
"""

from __future__ import annotations

from collections.abc import Callable

from kant.kube.objects.names import QUEUES_KNOWN
from kant.model.tenant import Queue, QueueConfig

DECLARED, NONE = "declared", "none"
"""Values of the annotation: there are or were Queues (written by Kant); none should exist (written by a person)."""

NONE_LEFT = QueueConfig((Queue("(no Queue is left)", state="hold"),))
"""The queues of a cluster that has lost all Queues: nothing starts under them."""

GONE = "no Queue is left in this cluster, which had some: nothing starts until there is one again"


class QueuePresence:
    """`there`: the cluster has a Queue. `were`: it has or had one. `word` returns the annotation's value, or ""."""

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
        """Whether the Queues are gone, and a person has stated that there should be none."""
        return bool(self.gone) and self.word() == NONE

    def advice(self, namespace: str) -> str:
        """Return, as a sentence, what an operator should do about missing Queues; "" if none are missing."""
        meant = f"kubectl -n {namespace} annotate lease kant {QUEUES_KNOWN}={NONE} --overwrite"
        return f"{GONE}; apply your Queues again, or state that none are intended: {meant}" if self.gone else ""

    def annotation(self, stood: str) -> str:
        """Return the value that the annotation should have; `stood` is its present value."""
        if self.there or (self.were and stood != NONE):
            return DECLARED
        return stood
