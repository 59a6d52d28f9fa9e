"""Whether a cluster has Queues. Where there were some and none is left, nothing starts, instead of what was over quota.

That there were some outlives the leader: it stands on its Lease, in the annotation `scheduling.kant.dev/queues`, where
people also say that there are to be none any more.
"""

from __future__ import annotations

from collections.abc import Callable

from kant.kube.objects.names import QUEUES_KNOWN
from kant.model.tenant import Queue, QueueConfig

DECLARED, NONE = "declared", "none"
"""What stands there: Kant has seen Queues, which it writes itself; a person says that there are to be none."""

NONE_LEFT = QueueConfig((Queue("(no Queue is left)", state="hold"),))
"""Queues under which nothing starts."""

GONE = "no Queue is left in this cluster, where there were some: nothing starts until there is one again"


class QueuePresence:
    """`there`: the cluster has a Queue. `were`: it has, or had some. `word` is what stands on the Lease now."""

    def __init__(self, word: Callable[[], str] = lambda: "") -> None:
        self.word = word
        self.there = self.were = False

    def see(self, there: bool) -> None:
        """Take in whether there is a Queue now."""
        word = self.word()
        self.there = there
        self.were = there or word == DECLARED or (self.were and word != NONE)

    @property
    def gone(self) -> str:
        """In one sentence, that there were Queues and none is left; "" where that is not so."""
        return GONE if self.were and not self.there else ""

    @property
    def is_meant(self) -> bool:
        """Whether a person has said of Queues that are gone that there are to be none."""
        return bool(self.gone) and self.word() == NONE

    def advice(self, namespace: str) -> str:
        """What to do where they are gone, for whoever runs Kant in `namespace`; "" where they are not."""
        meant = f"kubectl -n {namespace} annotate lease kant {QUEUES_KNOWN}={NONE} --overwrite"
        return f"{GONE}; apply your Queues again, or say that none are meant: {meant}" if self.gone else ""

    def told(self, stood: str) -> str:
        """What is to stand on the Lease, where `stood` does."""
        if self.there or (self.were and stood != NONE):
            return DECLARED
        return stood
