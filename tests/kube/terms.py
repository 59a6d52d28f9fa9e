"""Who led when, and who bound what: seen from beside, in the order in which the API server did it.

The resource versions of pods and of the Lease count in one order, and a binding leaves its token on the pod. So it can
be told exactly whether a replica bound a pod after another had become the leader.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from itertools import pairwise

from tests.kube.api import Api
from tests.kube.kubelet import first_of
from tests.kube.objects import Object
from tests.patience import PATIENCE_S

LEASES = "/apis/coordination.k8s.io/v1/namespaces/kant-system/leases"
LEADER = "scheduling.kant.dev/leader"


@dataclass(frozen=True)
class Bound:
    """A pod when it was first seen on a node."""

    version: int
    pod: str
    token: str


class Terms:
    """`async with Terms(api) as terms:`; `await terms.bound_in_all(20)`, `await terms.another(token)`."""

    def __init__(self, api: Api) -> None:
        self.api = api
        self.tokens: list[tuple[int, str]] = []
        """(resource version, "HOLDER/TRANSITIONS") of each term; nobody's have no holder."""
        self.bound: list[Bound] = []
        self.waiting: dict[str, Object] = {}
        """Pods that are on no node, by uid."""
        self._on_node: set[str] = set()
        self._seen: set[str] = set()
        self._listed = 0
        self._news = asyncio.Condition()

    async def __aenter__(self) -> Terms:
        listed = {what: asyncio.Event() for what in ("pods", LEASES)}
        self._tasks = [asyncio.create_task(self._follow(what, event)) for what, event in listed.items()]
        for event in listed.values():
            await first_of(event, *self._tasks)
        self._listed = len(self.bound)
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _follow(self, what: str, listed: asyncio.Event) -> None:
        async for kind, thing in self.api.follow(what):
            for one in thing["items"] if kind == "LISTED" else [thing]:
                (self._see_pod if what == "pods" else self._see_lease)(one, kind == "DELETED")
            listed.set()
            async with self._news:
                self._news.notify_all()

    def _see_pod(self, pod: Object, gone: bool) -> None:
        meta = pod["metadata"]
        self._seen.add(meta["uid"])
        self.waiting.pop(meta["uid"], None)
        if not gone and not pod["spec"].get("nodeName"):
            self.waiting[meta["uid"]] = pod
        if pod["spec"].get("nodeName") and meta["uid"] not in self._on_node:
            self._on_node.add(meta["uid"])
            token = (meta.get("annotations") or {}).get(LEADER, "")
            self.bound.append(Bound(int(meta["resourceVersion"]), meta["name"], token))

    def _see_lease(self, lease: Object, gone: bool) -> None:
        spec = lease["spec"]
        token = f"{spec.get('holderIdentity', '')}/{spec.get('leaseTransitions', 0)}"
        if not self.tokens or self.tokens[-1][1] != token:
            self.tokens.append((int(lease["metadata"]["resourceVersion"]), token))

    # --- waiting and judging ------------------------------------------------------------------------------------

    @property
    def token(self) -> str:
        """That of who leads now; "" while nobody does."""
        token = self.tokens[-1][1] if self.tokens else ""
        return "" if token.startswith("/") else token

    @property
    def leader_pid(self) -> int:
        """The process that leads, as its identity says: HOST_PID_RANDOM."""
        return int(self.token.rsplit("/", 1)[0].split("_")[-2])

    async def another(self, than: str = "") -> str:
        """Wait until somebody leads, in another term than this one; the token."""
        await self._until(lambda: self.token not in ("", than))
        return self.token

    async def bound_in_all(self, count: int) -> None:
        """Wait until so many pods have been bound since it began to look."""
        await self._until(lambda: len(self.bound) - self._listed >= count)

    async def bound_more(self, count: int) -> None:
        """Wait until so many more pods have been bound from now on: some of those made before may be bound already."""
        goal = len(self.bound) + count
        await self._until(lambda: len(self.bound) >= goal)

    async def bound_by(self, token: str) -> None:
        """Wait until something has been bound in this term."""
        await self._until(lambda: any(one.token == token for one in self.bound))

    async def none_waits(self) -> None:
        """Wait until every pod is on a node; raises with what those that are not say."""
        for pod in await self.api.list("pods"):  # the watch may not have told of all yet
            if pod["metadata"]["uid"] not in self._seen and not pod["spec"].get("nodeName"):
                self.waiting[pod["metadata"]["uid"]] = pod
        try:
            await self._until(lambda: not self.waiting)
        except TimeoutError:
            some = "\n".join(map(_why, list(self.waiting.values())[:40]))
            raise AssertionError(f"{len(self.waiting)} pods wait:\n{some}") from None

    async def _until(self, condition: object) -> None:
        async with asyncio.timeout(PATIENCE_S), self._news:
            await self._news.wait_for(condition)  # type: ignore[arg-type]

    def out_of_term(self) -> list[str]:
        """Sentences about pods that somebody bound who had not led, or did not lead any more."""
        terms = self.tokens
        ends = {token: later for (_, token), (later, _) in pairwise(terms)}
        known = {token for _, token in terms}
        wrong = [one for one in self.bound if one.token not in known or one.version > ends.get(one.token, 1 << 62)]
        return [f"{one.pod} was bound at {one.version} by {one.token!r}; terms: {terms}" for one in wrong]


def _why(pod: Object) -> str:
    told = [one for one in pod["status"].get("conditions", []) if one["type"] == "PodScheduled"]
    meta, said = pod["metadata"], told[0].get("message") if told else "nothing said"
    return f"{meta['name']} ({meta.get('deletionTimestamp', 'there')}): {said}"
