"""The evictor: pods are evicted through the Eviction API. The victims of a job are evicted only if all may be.

First all victims of a job are checked together against the known PodDisruptionBudgets, then each by a dry run. If one
victim is refused, none is evicted. A pod counts as gone only when the API server says so.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from functools import partial

from kant.kube.act.effects import Effects, Step
from kant.kube.connect.client import ApiError
from kant.kube.follow.mirror import Mirror, is_over
from kant.kube.objects.views import Pod
from kant.kube.reconcile.workload import Workload

PATIENCE = 120.0  # seconds of retries if a budget refuses after the dry run was allowed
RETRY = 2.0
VOLUNTARY = ("fallback", "defragment")
"""Reasons for evictions that could be left out: all victims are checked first."""


@dataclass(slots=True, eq=False)
class Eviction:
    """Pods that are evicted together, for one reason. `by` is the job that gets their resources, "" for none.

    `right` is the reason as one word: that of `Preempt.why`, or `limit` or `gang`.
    """

    why: str
    by: str = ""
    victims: list[tuple[Workload, list[Pod]]] = field(default_factory=list)
    refused: str = ""
    protected: str = ""  # the uid of the pod that may not be evicted, if all were checked first
    right: str = "gang"


class Evictor:
    """Evicts pods. `refused` collects the refused evictions, `done` the evictions whose requests have all been sent."""

    def __init__(self, effects: Effects, mirror: Mirror) -> None:
        self.effects = effects
        self.step: Step[Eviction] = effects.step()
        self.mirror = mirror
        self.refused: deque[Eviction] = deque()
        self.done: deque[Eviction] = deque()
        self.refuses: Callable[[Iterable[Pod]], tuple[Pod, str] | None] = lambda pods: None  # the refused pod, and why

    def start(self, eviction: Eviction) -> None:
        self.step.begin(eviction, partial(self._carry_out, eviction))

    @property
    def is_busy(self) -> bool:
        """Whether an eviction has been begun and is not finished."""
        return bool(self.step.in_flight)

    async def _carry_out(self, eviction: Eviction) -> None:
        pods = [pod for _, pods in eviction.victims for pod in pods]
        try:
            asks_first = eviction.by or eviction.right in VOLUNTARY
            if asks_first and (refusal := self.refuses(pods)) is not None:
                eviction.protected, eviction.refused = refusal[0].metadata.uid, refusal[1]
                self.refused.append(eviction)
                return
            if asks_first:
                for pod in pods:
                    eviction.protected = pod.metadata.uid
                    await self._evict(pod, dry_run=True, patience=0.0)
                eviction.protected = ""
            asked = (self._evict(pod, dry_run=False, patience=PATIENCE) for pod in pods)
            answers = await asyncio.gather(*asked, return_exceptions=True)  # wait until no request is in flight
            for error in filter(None, answers):
                raise error
            self.done.append(eviction)
        except ApiError as error:
            eviction.refused = error.message
            self.refused.append(eviction)

    async def _evict(self, pod: Pod, *, dry_run: bool, patience: float) -> None:
        effects, meta, heals = self.effects, pod.metadata, 5
        until = effects.clock() + patience
        while True:
            seen = self.mirror.pods.get(meta.uid)
            if seen is None or is_over(seen):  # a finished pod is not deleted: its user may read its result
                return
            try:
                await effects.client.evict(
                    meta.namespace, meta.name, meta.uid, effects.signature,
                    dry_run=dry_run, guard=effects.holds, timeout=effects.timeout,
                )  # fmt: skip
                return
            except ApiError as error:
                if error.code in (404, 409):  # gone, or replaced by another pod of that name
                    return
                heals -= error.code != 429
                if effects.clock() > until and (error.code == 429 or heals < 0 or not error.heals):
                    raise
                await asyncio.sleep(max(error.retry_after or 0.0, RETRY if patience else 0.2))
