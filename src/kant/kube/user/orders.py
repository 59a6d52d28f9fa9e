"""What people order: to hold, to release, to rank, to drain. With their own rights: the objects themselves are changed.

Nothing here speaks to Kant, and Kant has no right to any of it: it follows what the objects say.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import msgspec

from kant.kube.connect.client import ApiClient, ApiError
from kant.kube.connect.errors import INSTALL, UNKNOWN_FIELD, advice, denied_by, is_unserved
from kant.kube.follow.mirror import is_over
from kant.kube.objects.names import HOLD, PRIORITY
from kant.kube.objects.views import Node, Pod, Unstructured
from kant.kube.translate.crds import API
from kant.kube.translate.levels import HOSTNAME
from kant.kube.translate.orders import HIGH, LOW, is_held
from kant.kube.user.jobs import ServerMessageError, UserJobs
from kant.kube.user.targets import Target, pods_meant, target_of
from kant.model.errors import InputError
from kant.model.units import parse_duration

STRICT = {"fieldValidation": "Strict"}  # else the API server drops a field that it does not know, without a word
AT_ONCE = 16  # pods that are changed at the same time
QUEUE_STATES = {"hold": "hold", "release": "open", "drain": "drain"}
DENIED = "kant-orders"
"""The policy of the API server that keeps who may not change queues from raising priorities."""


class Orders:
    """The orders of one person in one namespace. Each raises InputError with one sentence, and says what it changed.

    `suspends`: a Job that nothing else owns is held by its own field, which takes its pods away.
    """

    def __init__(
        self, client: ApiClient, namespace: str = "", scheduler_name: str = "kant", *, suspends: bool = True
    ) -> None:
        self.client = client
        self.suspends = suspends
        self.jobs = UserJobs(client, namespace, scheduler_name)
        self.namespace = self.jobs.namespace
        self.scheduler_name = scheduler_name

    async def hold(self, text: str) -> bool:
        """Keep what waits from starting: a job, a pod with its gang, or all of a queue. False: it is held already."""
        target = target_of(text)
        if target.kind == "queue":
            return await self._queue(target, "hold")
        if target.kind == "node":
            raise InputError("TARGET", "a job, a pod or a queue; a node is drained", text)
        if await self._is_own_job(target):
            return await self.jobs.hold(target.name)
        pods = await self._waiting(target)
        free = [pod for pod in pods if not is_held(pod)]
        await self._annotate(free, HOLD, "true")
        return bool(free)

    async def release(self, text: str) -> bool:
        """Let start again what was held, or take pods again what was drained. False: nothing keeps it."""
        target = target_of(text)
        if target.kind == "queue":
            return await self._queue(target, "release")
        if target.kind == "node":
            return await self._give_back(target)
        pods = [pod for pod in await self._pods(target) if is_held(pod)]
        if not pods and target.kind != "pod" and await self._is_own_job(target):
            return await self.jobs.release(target.name)
        if not pods and not await self._pods(target):
            raise self._unknown(target)
        await self._annotate(pods, HOLD, None)
        return bool(pods)

    async def rank(self, text: str, priority: int | None) -> bool:
        """Give what waits another priority; None: that of its class."""
        target = target_of(text)
        if target.kind in ("queue", "node"):
            raise InputError("TARGET", "a job or a pod: queues have weights", text)
        if priority is not None and not LOW <= priority <= HIGH:
            raise InputError("PRIORITY", f"a whole number from {LOW} to {HIGH}", priority)
        said = None if priority is None else str(priority)
        pods = [one for one in await self._waiting(target) if (one.metadata.annotations or {}).get(PRIORITY) != said]
        await self._annotate(pods, PRIORITY, said)
        return bool(pods)

    async def drain(self, text: str, until: str = "", reason: str = "") -> bool:
        """Let a queue take no new jobs, or free a node: a Reservation for nobody, gang by gang. `until`: how long."""
        target = target_of(text)
        if target.kind == "queue":
            return await self._queue(target, "drain")
        if target.kind != "node":
            raise InputError("TARGET", "queue/NAME or node/NAME", text)
        node = await self._ask(self.client.get(f"/api/v1/nodes/{quote(target.name, safe='')}", Node), target)
        now = datetime.now(UTC).replace(microsecond=0)
        spec: dict[str, Any] = {
            "nodeSelector": {HOSTNAME: (node.metadata.labels or {}).get(HOSTNAME, target.name)},
            "start": _time(now),
            "reason": reason or f"drained by kubectl kant drain {text}",
        }
        if until:
            spec["end"] = _time(now + timedelta(microseconds=parse_duration(until, "--for")))
        body = {"apiVersion": "scheduling.kant.dev/v1alpha1", "kind": "Reservation", "spec": spec}
        body["metadata"] = {"name": _drain(target)}
        try:
            await self.client.create(f"{API}/reservations", body, params=STRICT)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise self._sentence(error, target) from None
            return False
        return True

    # --- parts ------------------------------------------------------------------------------------------------------

    async def _queue(self, target: Target, order: str) -> bool:
        path, state = f"{API}/queues/{quote(target.name, safe='')}", QUEUE_STATES[order]
        found = await self._ask(self.client.get(path, Unstructured), target)
        if (_spec(found).get("state") or "open") == state:
            return False
        await self._ask(self.client.patch(path, {"spec": {"state": state}}, params=STRICT), target)
        return True

    async def _give_back(self, target: Target) -> bool:
        try:
            await self.client.delete(f"{API}/reservations/{quote(_drain(target), safe='')}")
        except ApiError as error:
            if error.code == 404:
                raise InputError("TARGET", "a node that was drained by `kubectl kant drain`", target.name) from None
            raise self._sentence(error, target) from None
        return True

    async def _is_own_job(self, target: Target) -> bool:
        """Whether a Job of batch/v1 is meant, which is held by its own field; what a controller owns is not ours."""
        return self.suspends and target.kind != "pod" and await self.jobs.is_alone(target.name)

    async def _waiting(self, target: Target) -> list[Pod]:
        pods = await self._pods(target)
        if not pods:
            raise self._unknown(target)
        found = [pod for pod in pods if not pod.spec.node_name]
        if not found:
            raise InputError(f"{target.kind or 'job'} {target.name}", "one that waits", "running")
        return found

    async def _pods(self, target: Target) -> list[Pod]:
        path = f"/api/v1/namespaces/{quote(self.namespace, safe='')}/pods"
        pods = await self._ask(self.client.list(path, Pod), target)
        ours = [pod for pod in pods if pod.spec.scheduler_name == self.scheduler_name and not is_over(pod)]
        return pods_meant(ours, target)

    async def _annotate(self, pods: list[Pod], key: str, value: str | None) -> None:
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(pod: Pod) -> None:
            meta = pod.metadata
            path = f"/api/v1/namespaces/{quote(meta.namespace, safe='')}/pods/{quote(meta.name, safe='')}"
            async with gate:
                await self.client.patch(path, {"metadata": {"uid": meta.uid, "annotations": {key: value}}})

        done = await asyncio.gather(*map(one, pods), return_exceptions=True)
        wrong = next((each for each in done if isinstance(each, BaseException)), None)
        if isinstance(wrong, ApiError):
            raise self._sentence(wrong, Target("pod", pods[0].metadata.name))
        if wrong is not None:
            raise wrong

    async def _ask(self, call: Any, target: Target) -> Any:
        try:
            return await call
        except ApiError as error:
            raise self._sentence(error, target) from None

    def _unknown(self, target: Target) -> InputError:
        return InputError(
            "TARGET", f"a job or a pod of namespace {self.namespace} with schedulerName {self.scheduler_name}",
            target.name,
        )  # fmt: skip

    def _sentence(self, error: ApiError, target: Target) -> InputError:
        if is_unserved(error) and target.kind in ("queue", "node"):
            return ServerMessageError(f"Kubernetes: the kinds of Kant are not installed there: {INSTALL} (404)")
        if found := UNKNOWN_FIELD.search(error.message):
            what = "queues" if target.kind == "queue" else "reservations"
            return ServerMessageError(f"Kubernetes: {what} there know no {found['field']}, as an older Kant: {INSTALL}")
        if error.code == 404:
            where = "" if target.kind in ("queue", "node") else f" of namespace {self.namespace}"
            return InputError("TARGET", f"a {target.kind or 'job'}{where} that is there", target.name)
        if error.code in (403, 422) and DENIED in error.message:
            return ServerMessageError(f"Kubernetes: {error.message.rpartition('denied request: ')[2]} (403)")
        if (denied := denied_by(error)) is not None:
            where = f" in namespace {denied[1]}" if denied[1] else ""
            return ServerMessageError(f"Kubernetes: you have no permission to {denied[0]}{where} (403)")
        return ServerMessageError(advice(error, self.client.config.source))


def _drain(target: Target) -> str:
    return f"drain-{target.name}"


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _spec(found: Unstructured) -> dict[str, Any]:
    decoded = msgspec.json.decode(found.spec)
    return decoded if isinstance(decoded, dict) else {}
