"""The evictor: victims are evicted through the Eviction API, and only if all of them may be.

The budgets (PodDisruptionBudget) of all victims of one job are asked first: whether together they take more than one of
them allows, as far as we know; then each victim by a dry run. Where one says no, nobody is evicted. What is evicted is
gone when the API server says so, not before.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from kant.kube.connect.client import ApiClient, ApiError, FencedError
from kant.kube.follow.mirror import Mirror, is_over
from kant.kube.objects.names import LEADER
from kant.kube.objects.views import Pod
from kant.kube.reconcile.workload import Workload

TIMEOUT = 4.0  # seconds for one request, unless the Lease leaves less (`Lease.in_flight`)
PATIENCE = 120.0  # seconds for which a budget that says no is asked again, once it has said yes
RETRY = 2.0
VOLUNTARY = ("fallback", "defragment")
"""The rights by which nobody has to go: all are asked about first."""


@dataclass(slots=True, eq=False)
class Eviction:
    """Pods that are evicted together, for one reason. `by` is the job that gets their place, "" for none.

    `right`: the word for by what right, as in `Preempt.why`; or limit, gang.
    """

    why: str
    by: str = ""
    victims: list[tuple[Workload, list[Pod]]] = field(default_factory=list)
    refused: str = ""
    protected: str = ""  # the uid of the pod that may not go, where all were asked about first
    right: str = "gang"


class Evictor:
    """`refused` collects evictions that may not be, and `done` those that have been asked for."""

    def __init__(
        self,
        client: ApiClient,
        wake: Callable[[], None],
        holds: Callable[[], bool],
        token: Callable[[], str],
        mirror: Mirror,
    ) -> None:
        self.client = client
        self.mirror = mirror
        self.wake = wake
        self.holds = holds
        self.token = token
        self.refused: deque[Eviction] = deque()
        self.done: deque[Eviction] = deque()
        self.timeout = TIMEOUT
        self.refuses: Callable[[Iterable[Pod]], tuple[Pod, str] | None] = lambda pods: None  # as far as we know
        self._tasks: set[asyncio.Task[None]] = set()

    def start(self, eviction: Eviction) -> None:
        task = asyncio.get_running_loop().create_task(self._carry_out(eviction))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    @property
    def is_busy(self) -> bool:
        """Whether something has been asked for, and not been answered."""
        return bool(self._tasks)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _carry_out(self, eviction: Eviction) -> None:
        pods = [pod for _, pods in eviction.victims for pod in pods]
        try:
            asks_first = eviction.by or eviction.right in VOLUNTARY
            if asks_first and (refusal := self.refuses(pods)) is not None:
                eviction.protected, eviction.refused = refusal[0].metadata.uid, refusal[1]
                self.refused.append(eviction)
                self.wake()
                return
            if asks_first:
                for pod in pods:
                    eviction.protected = pod.metadata.uid
                    await self._evict(pod, dry_run=True, patience=0.0)
                eviction.protected = ""
            await asyncio.gather(*(self._evict(pod, dry_run=False, patience=PATIENCE) for pod in pods))
            self.done.append(eviction)
        except ApiError as error:
            eviction.refused = error.message
            self.refused.append(eviction)
        except FencedError:
            return
        self.wake()

    async def _evict(self, pod: Pod, *, dry_run: bool, patience: float) -> None:
        loop = asyncio.get_running_loop()
        until = loop.time() + patience
        heals = 5
        while True:
            if not self.holds():
                raise FencedError
            seen = self.mirror.pods.get(pod.metadata.uid)
            if seen is None or is_over(seen):  # what has ended well is somebody's result: it stays
                return
            try:
                meta = pod.metadata
                leader = {LEADER: self.token()}
                await self.client.evict(
                    meta.namespace, meta.name, meta.uid, leader,
                    dry_run=dry_run, guard=self.holds, timeout=self.timeout,
                )  # fmt: skip
                return
            except ApiError as error:
                if error.code in (404, 409):  # gone, or another pod by that name
                    return
                heals -= error.code != 429
                if loop.time() > until and (error.code == 429 or heals < 0 or not error.heals):
                    raise
                await asyncio.sleep(max(error.retry_after or 0.0, RETRY if patience else 0.2))
