"""Orders of users for jobs, queues and nodes: each changes objects of the API server with the user's own rights.

Orders do not contact Kant. Kant has no right to carry them out; it follows the changed objects.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from urllib.parse import quote

import msgspec

from kant.kube.connect.client import ApiClient, ApiError
from kant.kube.connect.errors import INSTALL, UNKNOWN_FIELD, advice, denied_by, is_unserved
from kant.kube.follow.mirror import is_over
from kant.kube.objects.names import HOLD, PRIORITY
from kant.kube.objects.quantity import milli
from kant.kube.objects.views import Node, Pod, Unstructured
from kant.kube.translate.crds import API
from kant.kube.translate.levels import HOSTNAME
from kant.kube.translate.orders import HIGH, LOW, is_held, priority_of
from kant.kube.user.jobs import ServerMessageError, UserJobs
from kant.kube.user.targets import Target, pods_meant, target_of
from kant.model.errors import InputError
from kant.model.units import GPU, parse_duration

STRICT = {"fieldValidation": "Strict"}  # without this the API server silently drops unknown fields
AT_ONCE = 16  # concurrent changes of pods
QUEUE_STATES = {"hold": "hold", "release": "open", "drain": "drain"}
DENIED = "kant-orders"
"""The name of the admission policy by which only users who may change Queues can raise priorities."""


class Orders:
    """The orders of one user in one namespace. Each raises InputError, with one sentence, if denied or impossible.

    `suspends`: hold a Job that has no owner by its field `suspend`, which removes its pods, instead of by annotations.
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
        """Keep a waiting job, a pod with its gang, or a whole queue from starting. False: it is held already."""
        target = target_of(text)
        if target.kind == "queue":
            return await self._queue(target, "hold")
        if target.kind == "node":
            raise InputError("TARGET", "a job, a pod or a queue (a node can only be drained)", text)
        if await self._is_own_job(target):
            return await self.jobs.hold(target.name)
        pods = await self._waiting(target)
        free = [pod for pod in pods if not is_held(pod)]
        await self._annotate(free, HOLD, "true")
        return bool(free)

    async def release(self, text: str) -> bool:
        """Let held jobs start, or reopen a drained queue or node. False: nothing was held or drained."""
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
        """Give waiting pods another priority (None: that of their PriorityClass). False: they have it already."""
        target = target_of(text)
        if target.kind in ("queue", "node"):
            raise InputError("TARGET", "a job or a pod (a queue has a weight instead)", text)
        if priority is not None and not LOW <= priority <= HIGH:
            raise InputError("PRIORITY", f"a whole number from {LOW} to {HIGH}", priority)
        said = None if priority is None else str(priority)
        pods = [one for one in await self._waiting(target) if (one.metadata.annotations or {}).get(PRIORITY) != said]
        await self._annotate(pods, PRIORITY, said)
        return bool(pods)

    async def drain(self, text: str, until: str = "", reason: str = "") -> bool:
        """Close a queue to new jobs, or free a node by a Reservation that admits no queue, for the duration `until`."""
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
        try:
            await self.client.create(f"{API}/reservations", _object("Reservation", _drain(target), spec), params=STRICT)
        except ApiError as error:
            if error.reason != "AlreadyExists":
                raise self._sentence(error, target) from None
            return False
        return True

    async def cancel(self, text: str) -> bool:
        """Delete a job: its Job object, or its pods if no owner re-creates them. Returns False if it has ended."""
        target = target_of(text)
        if await self.jobs.is_alone(target.name):
            return await self.jobs.cancel(target.name)
        pods = await self._pods(target)
        if not pods:
            raise self._unknown(target)
        owners = {one.uid: one for pod in pods if (one := pod.metadata.controller).name}
        for owner in owners.values():
            if owner.kind == "Job" and len(owners) == 1 and await self.jobs.is_alone(owner.name, len(pods)):
                return await self.jobs.cancel(owner.name)
            what = f"{owner.kind} {owner.name}"
            raise InputError("TARGET", f"a job without an owner; to cancel this one, delete {what}", text)
        await self._each(pods, lambda path, pod: self.client.delete(path, uid=pod.metadata.uid))
        return True

    async def preempt(self, text: str) -> None:
        """Evict the pods of a running job. Their owner re-creates the pods, so the job waits again."""
        target = target_of(text)
        pods = [pod for pod in await self._pods(target) if pod.spec.node_name]
        if not pods or not all(pod.metadata.controller.name for pod in pods):
            raise InputError("TARGET", "a running job whose pods are re-created by their owner", text)
        await self._each(
            pods, lambda _, pod: self.client.evict(pod.metadata.namespace, pod.metadata.name, pod.metadata.uid)
        )

    async def cordon(self, node: str, closed: bool) -> None:
        """Close a node to new pods (`closed` True), or reopen it."""
        path = f"/api/v1/nodes/{quote(node, safe='')}"
        await self._ask(self.client.patch(path, {"spec": {"unschedulable": closed or None}}), Target("node", node))

    async def undrain(self, node: str) -> bool:
        """End a drain. False: the node was not drained."""
        try:
            await self.client.delete(f"{API}/reservations/{quote(_drain(Target('node', node)), safe='')}")
        except ApiError as error:
            if error.code == 404:
                return False
            raise self._sentence(error, Target("node", node)) from None
        return True

    async def quota(self, queue: str, model: str, gpus: float) -> float:
        """Set the nominal quota of a queue, in GPUs of `model` ("": any). Returns the previous quota."""
        target, path = Target("queue", queue), f"{API}/queues/{quote(queue, safe='')}"
        found = await self._ask(self.client.get(path, Unstructured), target)
        quotas = _spec(found).get("quotas") or []
        own = [one for one in quotas if (one.get("resource", "gpu"), one.get("model", "")) == ("gpu", model)]
        if not own:
            raise InputError("TARGET", f"a queue with a quota of GPUs{f' of {model}' * bool(model)}", queue)
        before, own[0]["nominal"] = milli(own[0]["nominal"], "nominal", up=False) / GPU, f"{round(gpus * GPU)}m"
        change = {"metadata": {"resourceVersion": found.metadata.resource_version}, "spec": {"quotas": quotas}}
        await self._ask(self.client.patch(path, change, params=STRICT), target)
        return before

    async def make(self, kind: str, name: str, spec: dict[str, Any]) -> None:
        """Create an object of one of Kant's kinds. If `name` ends in "-", the API server adds a unique suffix."""
        call = self.client.create(f"{API}/{kind.lower()}s", _object(kind, name, spec), params=STRICT)
        await self._ask(call, Target("node", name))

    async def unreserve(self, name: str) -> dict[str, Any]:
        """Delete a Reservation. Returns the spec that it had."""
        path, target = f"{API}/reservations/{quote(name, safe='')}", Target("reservation", name)
        found = await self._ask(self.client.get(path, Unstructured), target)
        await self._ask(self.client.delete(path, uid=found.metadata.uid), target)
        return _spec(found)

    async def priority(self, text: str) -> int:
        """Return the priority of waiting pods: the one that an order has set, otherwise that of their PriorityClass."""
        return priority_of((await self._waiting(target_of(text)))[0], text)

    # --- parts ------------------------------------------------------------------------------------------------------

    async def _queue(self, target: Target, order: str) -> bool:
        path, state = f"{API}/queues/{quote(target.name, safe='')}", QUEUE_STATES[order]
        found = await self._ask(self.client.get(path, Unstructured), target)
        if (_spec(found).get("state") or "open") == state:
            return False
        await self._ask(self.client.patch(path, {"spec": {"state": state}}, params=STRICT), target)
        return True

    async def _give_back(self, target: Target) -> bool:
        if not await self.undrain(target.name):
            raise InputError("TARGET", "a node that was drained by `kubectl kant drain`", target.name)
        return True

    async def _is_own_job(self, target: Target) -> bool:
        """Whether the target is a Job of batch/v1 without an owner, which is held by its field `suspend`."""
        return self.suspends and target.kind != "pod" and await self.jobs.is_alone(target.name)

    async def _waiting(self, target: Target) -> list[Pod]:
        pods = await self._pods(target)
        if not pods:
            raise self._unknown(target)
        found = [pod for pod in pods if not pod.spec.node_name]
        if not found:
            raise InputError(f"{target.kind or 'job'} {target.name}", "a waiting job", "running")
        return found

    async def _pods(self, target: Target) -> list[Pod]:
        path = f"/api/v1/namespaces/{quote(self.namespace, safe='')}/pods"
        pods = await self._ask(self.client.list(path, Pod), target)
        ours = [pod for pod in pods if pod.spec.scheduler_name == self.scheduler_name and not is_over(pod)]
        return pods_meant(ours, target)

    async def _annotate(self, pods: list[Pod], key: str, value: str | None) -> None:
        def change(path: str, pod: Pod) -> Awaitable[object]:
            return self.client.patch(path, {"metadata": {"uid": pod.metadata.uid, "annotations": {key: value}}})

        await self._each(pods, change)

    async def _each(self, pods: list[Pod], act: Callable[[str, Pod], Awaitable[object]]) -> None:
        """Apply `act` to each pod, AT_ONCE at a time. Raises InputError with the first rejection."""
        gate = asyncio.Semaphore(AT_ONCE)

        async def one(pod: Pod) -> None:
            meta = pod.metadata
            path = f"/api/v1/namespaces/{quote(meta.namespace, safe='')}/pods/{quote(meta.name, safe='')}"
            async with gate:
                await act(path, pod)

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
            return ServerMessageError(f"Kubernetes: Kant's kinds are not installed: {INSTALL} (404)")
        if found := UNKNOWN_FIELD.search(error.message):
            what = "queues" if target.kind == "queue" else "reservations"
            return ServerMessageError(f"Kubernetes: {what} have no {found['field']}, as in an older Kant: {INSTALL}")
        if error.code == 404:
            where = "" if target.kind in ("queue", "node") else f" of namespace {self.namespace}"
            return InputError("TARGET", f"an existing {target.kind or 'job'}{where}", target.name)
        if error.code in (403, 422) and DENIED in error.message:
            return ServerMessageError(f"Kubernetes: {error.message.rpartition('denied request: ')[2]} (403)")
        if (denied := denied_by(error)) is not None:
            where = f" in namespace {denied[1]}" if denied[1] else ""
            return ServerMessageError(f"Kubernetes: you have no permission to {denied[0]}{where} (403)")
        return ServerMessageError(advice(error, self.client.config.source))


def _object(kind: str, name: str, spec: dict[str, Any]) -> dict[str, Any]:
    naming = {"generateName": name} if name.endswith("-") else {"name": name}
    return {"apiVersion": "scheduling.kant.dev/v1alpha1", "kind": kind, "metadata": naming, "spec": spec}


def _drain(target: Target) -> str:
    return f"drain-{target.name}"


def _time(moment: datetime) -> str:
    return moment.strftime("%Y-%m-%dT%H:%M:%SZ")


def _spec(found: Unstructured) -> dict[str, Any]:
    decoded = msgspec.json.decode(found.spec)
    return decoded if isinstance(decoded, dict) else {}
