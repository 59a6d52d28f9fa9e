"""The queues that Queue objects declare, and the namespaces to which each is open."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kant.kube.follow.mirror import Mirror
from kant.kube.objects.refusals import MalformedError
from kant.kube.objects.views import Pod
from kant.kube.reconcile.complaints import Complaints
from kant.kube.reconcile.queue_presence import NONE_LEFT, QueuePresence
from kant.live.core import Core
from kant.model.event import QueuesChanged
from kant.model.job import Job
from kant.model.tenant import QueueConfig

if TYPE_CHECKING:
    from kant.kube.translate.queue_namespaces import QueueNamespaces


class DeclaredQueues:
    """`config` is the content of the objects. `awaits_nodes`: a queue or job waits, or has waited, for new nodes."""

    def __init__(self, mirror: Mirror, complaints: Complaints) -> None:
        self.mirror = mirror
        self.complaints = complaints
        self.config = QueueConfig()
        self.presence = QueuePresence()
        self.namespaces: QueueNamespaces | None = None  # None until there is a Queue
        self.awaits_nodes = False

    def follow(self, core: Core, at: int | None = None) -> None:
        """Tell the core which queues the objects define, if that has changed, with the time `at` (None: now)."""
        objects = self.mirror.kind("queues")
        self.presence.see(bool(objects))
        self.config, wrong = QueueConfig(), dict[str, str]()
        if objects:
            from kant.kube.translate.queue_namespaces import QueueNamespaces  # imported with the first Queue
            from kant.kube.translate.queues import queue_config_of

            self.config, wrong = queue_config_of(objects.values())
            self.namespaces = self.namespaces or QueueNamespaces()
        if self.presence.gone:
            self.config = NONE_LEFT
        if self.namespaces is not None:
            wrong |= self.namespaces.follow(objects.values(), self.config, self.mirror.namespaces.labels)
        self.complaints.found("Queue", wrong)
        if self.config != core.state.quota_usage.declared:
            self.awaits_nodes = self.awaits_nodes or any(queue.node_wait for queue in self.config.queues)
            core.happen(QueuesChanged(core.now if at is None else at, self.config))

    @property
    def selects_namespaces(self) -> bool:
        """Whether a queue selects namespaces by their labels."""
        return self.namespaces is not None and self.namespaces.selecting

    def take_reopened(self) -> set[str] | None:
        """Return the namespaces whose pods may use other queues than at the last call; None for all namespaces."""
        return self.namespaces.take_changed() if self.namespaces is not None else set()

    def check_namespace(self, job: Job, pods: list[Pod]) -> None:
        """Raise InputError if the queue of a job is not open to the namespace of its pods."""
        if self.namespaces is not None and self.namespaces.allowed:
            why = self.namespaces.refuses(job.queue, pods[0].metadata.namespace)
            if why:
                raise MalformedError(why)
