"""Messages that tell users why workloads wait. Each sentence is sent once for each workload."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kant.kube.reconcile.workload import Phase, Workload

STILL = 1.0  # seconds without a new pod after which it is reported that a gang lacks pods


UNSCHEDULABLE = "Unschedulable"  # more nodes may help
QUEUED = "Queued"  # no error, and more nodes would not help
ERROR = "SchedulerError"  # the workload cannot be scheduled as it is


class Messages:
    """`unsent` has the messages to post: workload, sentence, and reason of the condition PodScheduled."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self.clock = clock
        self.unsent: deque[tuple[Workload, str, str]] = deque()
        self.growing: dict[Workload, tuple[str, float]] = {}  # gangs that lack pods: the sentence to report, and when

    def say(self, workload: Workload, sentence: str, reason: str = ERROR) -> None:
        """Report why a workload waits, unless this sentence was reported last."""
        self.growing.pop(workload, None)
        if workload.reason != sentence and not workload.foreign:
            workload.reason = sentence
            self.unsent.append((workload, sentence, reason))

    def say_when_still(self, workload: Workload, sentence: str) -> None:
        """Report what a gang lacks once `sentence` has not changed for STILL seconds: every new pod changes it."""
        if self.growing.get(workload, ("",))[0] != sentence:
            self.growing[workload] = sentence, self.clock() + STILL

    def look_at_growing(self, at_once: bool = False) -> None:
        """Send the reports of `say_when_still` that are due; with `at_once`, all of them."""
        for workload, (sentence, due) in list(self.growing.items()):
            if at_once or due <= self.clock():
                del self.growing[workload]
                if workload.phase is Phase.INCOMPLETE:
                    self.say(workload, sentence, QUEUED)
