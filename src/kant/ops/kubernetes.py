"""A world that is Kant on a Kubernetes cluster: Kant's leader answers, and orders use the caller's own rights.

State and forecasts come from the leader and its journal, through the API server. Orders change Kubernetes objects with
the caller's credentials, so the API server decides what is allowed, as for kubectl.
"""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import quote

import msgspec

from kant.client.kant import Api
from kant.kube.connect.client import ApiClient, ApiError
from kant.kube.connect.credentials import Bearer
from kant.kube.connect.errors import INSTALL, advice, is_unserved
from kant.kube.objects.views import Pod
from kant.kube.user.job_manifest import PodOptions
from kant.kube.user.job_objects import OF_JOB
from kant.kube.user.jobs import UserJobs
from kant.kube.user.leader_answer import ANSWERS, answer_of_leader
from kant.kube.user.orders import Orders
from kant.kube.user.overview import ticket_of
from kant.kube.user.reviews import may, own_name
from kant.model.errors import InputError
from kant.model.submission import Submission
from kant.model.units import SECOND, parse_duration
from kant.ops import orders as o
from kant.ops.orders import KINDS, Order, kind_of, to_json
from kant.ops.rules import FINAL, job_of
from kant.ops.running import RunningWorld
from kant.ops.view import WorldView
from kant.ops.world import Done, OrderFutures
from kant.service.roles import Caller, Role

if TYPE_CHECKING:
    from kant.kube.connect.config import Config
    from kant.service.route import Request

T = TypeVar("T")
FUTURES = 70.0
"""Timeout in seconds for answers that need a simulation by the leader."""
SEEN = 10.0
"""Maximum number of seconds to wait until the leader has seen an order."""
OWN = "scheduling.kant.dev"
QUEUES = {"group": OWN, "resource": "queues", "verb": "patch"}
"""The right that distinguishes operators: only those who run the cluster may change queues."""
PODS, NODES, DRAINS = ("", "pods", "patch"), ("", "nodes", "patch"), (OWN, "reservations", "create")
NEEDS: dict[type, tuple[tuple[str, str, str], ...]] = {
    o.Submit: (("batch", "jobs", "create"),),
    o.Cancel: (("batch", "jobs", "delete"), ("", "pods", "delete")),
    o.Hold: (PODS,),
    o.Release: (PODS,),
    o.Priority: (PODS,),
    o.Preempt: (("", "pods/eviction", "create"),),
    o.Quota: ((OWN, "queues", "patch"),),
    o.Drain: (NODES,),
    o.Resume: (NODES, (OWN, "reservations", "delete")),
    o.Reserve: (DRAINS,),
    o.Unreserve: ((OWN, "reservations", "delete"),),
    o.Defragment: ((OWN, "defragmentations", "create"),),
}
"""For each kind of order, the rights of which the caller needs one: API group, resource and verb."""
GANG = (("", "services", "create"), ("batch", "jobs", "patch"))
"""The additional rights for a Job of several pods, which find each other by a Service and start when it exists."""


class KubeWorld(RunningWorld):
    """The cluster of `config`, where Kant runs in the namespace `system`. Jobs are submitted to `namespace`."""

    kind = "kubernetes"
    carries = frozenset(KINDS)

    def __init__(self, config: Config, system: str = "kant-system", namespace: str = "") -> None:
        self.config = config
        self.system = system
        self.namespace = namespace or config.namespace
        self.api = Api(self._asked_leader)
        self._before = ""  # the version of the state before the first order of a transaction
        self._made: set[str] = set()  # the jobs that this world has submitted

    # --- the two ways to reach the cluster ----------------------------------------------------------------------------

    def run(self, act: Callable[[ApiClient], Awaitable[T]]) -> T:
        """Run `act` with a client of the API server that has the caller's rights. Raises InputError."""

        async def inside() -> T:
            async with ApiClient(self.config, concurrency=16, timeout=30.0) as client:
                return await act(client)

        try:
            return asyncio.run(inside())
        except ApiError as error:
            if is_unserved(error):
                raise InputError("Kubernetes", f"the kinds of Kant to be installed: {INSTALL}") from None
            raise InputError("Kubernetes", f"a request that succeeds ({advice(error, self.config.source)})") from None

    def leader(self, path: str, params: dict[str, str], answers: float = ANSWERS) -> bytes:
        """Return the leader's answer to a GET of `path`, within `answers` seconds. Raises InputError."""

        async def inside() -> bytes | None:
            ticket = await ticket_of(self.config, self.system)
            return await answer_of_leader(self.config, self.system, ticket, path, params, answers=answers)

        found = asyncio.run(inside())
        if found is None:
            expected = "a leader that serves its page (not with `--no-page`), and the role kant-planner"
            raise InputError(f"the Kant in namespace {self.system}", expected)
        return found

    def _asked_leader(self, request: Request) -> Any:
        path = request.path.replace("%2F", "%252F")  # API servers decode an encoded slash once
        text = self.leader(path, {name: str(value) for name, value in request.query.items()})
        return msgspec.json.decode(text, type=request.gives)

    def _past(self, form: type[T], **asked: Any) -> T:
        """Ask the leader a question about its journal; return the answer as a `form`."""
        text = self.leader("/v1/ops/past", {"asked": msgspec.json.encode(asked).decode()}, FUTURES)
        return msgspec.json.decode(text, type=form)

    # --- questions ----------------------------------------------------------------------------------------------------

    def caller(self) -> Caller:
        async def ask(client: ApiClient) -> Caller:
            name = await own_name(client)
            return Caller(name, Role.OPERATOR if await may(client, QUEUES) else Role.TENANT, (), "its credentials")

        return self.run(ask)

    def now(self) -> int:
        return int(time.time() * SECOND)

    def view(self) -> WorldView:
        return msgspec.json.decode(self.leader("/v1/ops/view", {}), type=WorldView)

    def explain(self, job: str) -> dict[str, Any]:
        return self._past(dict[str, Any], explain=job)

    def usage(self, by: str) -> list[dict[str, Any]]:
        return self._past(list[dict[str, Any]], usage=by)

    def log(self, job: str) -> str:
        space, name = _named(job)

        async def read(client: ApiClient) -> bytes:
            return b"".join([part async for part in UserJobs(client, space).logs(name)])

        return self.run(read).decode("utf-8", "replace")

    def rights(self, order: Order) -> str | None:
        needs = [(DRAINS,) if isinstance(order, o.Drain) and order.evict else NEEDS[type(order)]]
        needs += [(each,) for each in GANG if isinstance(order, o.Submit) and order.pods > 1]
        space = self.namespace if isinstance(order, o.Submit) else _named(job_of(order))[0] if job_of(order) else ""

        async def lacks(client: ApiClient) -> str:
            for either in needs:
                for group, resource, verb in either:
                    kind, _, part = resource.partition("/")
                    what = {"group": group, "resource": kind, "subresource": part, "verb": verb, "namespace": space}
                    if await may(client, what):
                        break
                else:
                    return f"{verb} {resource}"
            return ""

        where = f" in namespace {space}" if space else ""
        lacking = self.run(lacks)
        return f"{kind_of(order)} needs the permission to {lacking}{where}" if lacking else ""

    def foreseen(self, orders: tuple[Order, ...]) -> OrderFutures:
        bare = tuple(
            msgspec.structs.replace(one, command=(), name="") if isinstance(one, o.Submit) else one for one in orders
        )
        return self._past(OrderFutures, orders=to_json(bare))

    # --- orders -------------------------------------------------------------------------------------------------------

    def carry_out(self, order: Order, who: Caller) -> Done:
        self._before = self._before or self.view().version

        async def act(client: ApiClient) -> Done:
            space, name = _named(job_of(order)) if job_of(order) else (self.namespace, "")
            return await self._carried_out(order, client, Orders(client, space, suspends=False), name)

        return self.run(act)

    async def _carried_out(self, order: Order, client: ApiClient, orders: Orders, name: str) -> Done:
        cannot = FINAL.get(kind_of(order), "")
        match order:
            case o.Submit():
                name = await orders.jobs.submit(*_submission(order))
                job = f"{orders.namespace}/{name if order.pods > 1 else await _pod_of(name, client, orders)}"
                self._made.add(job)
                return Done(order, job, (o.Cancel(job),))
            case o.Cancel():
                await orders.cancel(name)
            case o.Hold():
                await orders.hold(name)
                return Done(order, order.job, (o.Release(order.job),))
            case o.Release():
                await orders.release(name)
                return Done(order, order.job, (o.Hold(order.job),))
            case o.Priority():
                before = await orders.priority(name)
                await orders.rank(name, order.value)
                return Done(order, order.job, (o.Priority(order.job, before),))
            case o.Preempt():
                await orders.preempt(name)
            case o.Quota():
                before_gpus = await orders.quota(order.queue, order.model, order.gpus)
                return Done(order, undo=(o.Quota(order.queue, before_gpus, order.model),))
            case o.Drain():
                await (orders.drain(f"node/{order.node}") if order.evict else orders.cordon(order.node, True))
                return Done(order, undo=(o.Resume(order.node),))
            case o.Resume():
                drained = await orders.undrain(order.node)
                if not drained:
                    await orders.cordon(order.node, False)
                return Done(order, undo=(o.Drain(order.node, evict=drained),))
            case o.Reserve():
                await orders.make("Reservation", order.name, _reservation(order))
                return Done(order, undo=(o.Unreserve(order.name),))
            case o.Unreserve():
                again = _again(order.name, await orders.unreserve(order.name))
                return Done(
                    order, undo=again, cannot="" if again else "it was for some queues, nodes or GPUs: create it again"
                )
            case o.Defragment():
                await orders.make("Defragmentation", "ops-", {"mostMoves": order.moves})
        return Done(order, job_of(order), cannot=cannot)

    def settle(self) -> None:
        """Wait until the leader has seen the orders, so that the next plan includes them."""
        before, made, until = self._before, self._made, time.monotonic() + SEEN
        self._before, self._made = "", set()
        while before and time.monotonic() < until:
            view = self.view()
            if view.version != before and made <= view.jobs.keys():
                return
            time.sleep(0.1)


def with_token(config: Config, token: str) -> Config:
    """Return the config of the same API server for another caller, who has this token."""
    return replace(config, certificate=None, key=None, credentials=Bearer(token), source="the given token")


def _named(job: str) -> tuple[str, str]:
    """Return the namespace and the name in the id of a job. Raises InputError."""
    space, slash, name = job.partition("/")
    if not slash:
        raise InputError("job", "NAMESPACE/NAME, as listed by `jobs`", job)
    return space, name.partition("~")[0]  # drop the suffix of a job whose name was used before


async def _pod_of(job: str, client: ApiClient, orders: Orders) -> str:
    """Return Kant's id of a Job: the name of its only pod, or of the Job itself while no pod is seen."""
    path = f"/api/v1/namespaces/{quote(orders.namespace, safe='')}/pods?labelSelector={OF_JOB}%3D{job}"
    for _ in range(round(SEEN / 0.1)):
        try:
            pods = await client.list(path, Pod)
        except ApiError:
            break
        if pods:
            return pods[0].metadata.name
        await asyncio.sleep(0.1)
    return job


def _submission(order: o.Submit) -> tuple[Submission, PodOptions]:
    image = os.environ.get("KANT_IMAGE", "")
    if not image or not order.command:
        raise InputError("submit", "a command, and its container image in the variable KANT_IMAGE")
    if order.priority:
        raise InputError("submit, priority", "none: the order `priority` sets it for a waiting job", order.priority)
    job = Submission(
        command=order.command, workdir="", name=order.name, queue=order.queue, gpus=order.gpus,
        time_s=parse_duration(order.time, "time") / SECOND, preemptible=order.preemptible,
    )  # fmt: skip
    return job, PodOptions(image=image, pods=order.pods, within=order.within)


def _reservation(order: o.Reserve) -> dict[str, Any]:
    start = datetime.now(UTC) + timedelta(microseconds=parse_duration(order.start, "start"))
    end = start + timedelta(microseconds=parse_duration(order.time, "time"))
    times = {key: at.strftime("%Y-%m-%dT%H:%M:%SZ") for key, at in (("start", start), ("end", end))}
    return {"gpus": order.gpus} | times | ({"within": order.within} if order.within else {})


def _again(name: str, spec: dict[str, Any]) -> tuple[Order, ...]:
    """Return the order that re-creates a reservation; empty for a reservation that orders cannot express."""
    if not {"gpus", "start", "end"} <= spec.keys() or spec.keys() & {"queues", "model"}:
        return ()
    start, end = (datetime.fromisoformat(spec[key]) for key in ("start", "end"))
    now = datetime.now(UTC)
    ahead, length = max((start - now).total_seconds(), 0), (end - max(start, now)).total_seconds()
    return (o.Reserve(name, spec["gpus"], f"{max(length, 1):.0f}s", f"{ahead:.0f}s", spec.get("within", "")),)
