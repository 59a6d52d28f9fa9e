"""An InferencePool and its InferenceObjectives (Gateway API Inference Extension), listed and watched.

The endpoints of a pool are the pods that its selector matches, each at each of the pool's target ports. An endpoint may
get requests while its pod is ready and not being deleted. An objective states the priority of requests that name it.

Source: https://gateway-api-inference-extension.sigs.k8s.io/reference/spec (inference.networking.k8s.io/v1), and
InferenceObjective of inference.networking.x-k8s.io/v1alpha2, which llm-d.ai/v1alpha2 continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING
from urllib.parse import quote

import msgspec

from kant.kube.connect.client import ApiClient, ApiError
from kant.kube.objects.views import Condition, LabelSelector, PartialMetadata, View
from kant.kube.user.endpoints import LABEL, mirror, unread
from kant.model.errors import InputError

if TYPE_CHECKING:
    from kant.kube.connect.config import Config

POOLS = "inference.networking.k8s.io/v1"
RIGHTS = "the rights to list and watch inferencepools, inferenceobjectives and pods (docs/routing.md)"
OBJECTIVES = ("inference.networking.x-k8s.io/v1alpha2", "llm-d.ai/v1alpha2")


class TargetPort(View, frozen=True):
    number: int = 0


class PickerRef(View, frozen=True):
    failure_mode: str = "FailClose"


class PoolSpec(View, frozen=True):
    selector: LabelSelector = LabelSelector()
    target_ports: tuple[TargetPort, ...] = ()
    endpoint_picker_ref: PickerRef = PickerRef()


class Pool(PartialMetadata, frozen=True):
    spec: PoolSpec = PoolSpec()

    @property
    def labels(self) -> str:
        """The label selector of the pool's pods, as text. "": the pool has no pods, as a Service without a selector."""
        return ",".join(f"{key}={value}" for key, value in sorted((self.spec.selector.match_labels or {}).items()))


class PodStatus(View, frozen=True):
    pod_ip: str = msgspec.field(default="", name="podIP")
    conditions: tuple[Condition, ...] = ()


class Pod(PartialMetadata, frozen=True):
    status: PodStatus = PodStatus()

    @property
    def open(self) -> bool:
        """Whether the pod may get new requests."""
        ready = any(one.type == "Ready" and one.status == "True" for one in self.status.conditions)
        return self.metadata.deletion_timestamp is None and ready


class PoolRef(View, frozen=True):
    name: str = ""


class ObjectiveSpec(View, frozen=True):
    priority: int | None = None
    pool_ref: PoolRef = PoolRef()


class Objective(PartialMetadata, frozen=True):
    spec: ObjectiveSpec = ObjectiveSpec()


def endpoints_of(pool: Pool, pods: Iterable[Pod]) -> dict[str, bool]:
    """Return the URL of each endpoint of the pool, and whether it may get new requests."""
    found = {}
    for pod in pods:
        host = pod.status.pod_ip
        if host:
            for port in pool.spec.target_ports:
                found[f"http://{f'[{host}]' if ':' in host else host}:{port.number}"] = pod.open
    return found


class PoolEndpoints:
    """The endpoints of one pool, and the priorities of its objectives.

    Needs the rights to list and watch the pool, its pods and its objectives in their namespace. `on_trouble` is called
    with one sentence if one of these cannot be read; what was last known stays valid.
    """

    def __init__(self, config: Config, namespace: str, name: str, on_trouble: Callable[[str], None]) -> None:
        for where, given in (("--pool", name), ("--namespace", namespace)):
            if not LABEL.fullmatch(given):
                raise InputError(where, "a name of lower-case letters, digits and hyphens", given)
        self.config, self.name, self.on_trouble = config, name, on_trouble
        self.where, self.namespace = f"pool {namespace}/{name}", namespace
        self.fields = f"metadata.name={name}"
        self.failure_mode = ""
        """What the gateway does if no endpoint picker answers: FailOpen or FailClose; "" until the pool is read."""
        self.priorities: dict[str, int] = {}
        """The priority of each objective, by its name; a higher number is more urgent."""
        self.pool: Pool | None = None
        self.pods: Mapping[str, Pod] = {}

    def _path(self, group: str, plural: str) -> str:
        return f"/{group}/namespaces/{self.namespace}/{plural}"

    def _pods_path(self, pool: Pool) -> str:
        return f"{self._path('api/v1', 'pods')}?labelSelector={quote(pool.labels)}"

    async def now(self) -> Mapping[str, bool]:
        """Return whether each endpoint, by URL, may get requests. Raises InputError if the pool cannot be read."""
        try:
            async with ApiClient(self.config, concurrency=1, timeout=30.0) as client:
                path = self._path(f"apis/{POOLS}", "inferencepools")
                pools = [pool async for page, _ in client.pages(path, Pool, fields=self.fields) for pool in page]
                if not pools:
                    raise InputError(self.where, f"an InferencePool of that name ({POOLS})", "none")
                pods = await client.list(self._pods_path(pools[0]), Pod) if pools[0].labels else []
        except ApiError as error:
            raise self._sentence(error) from None
        self._take_pool(pools[0])
        return endpoints_of(pools[0], pods)

    def _take_pool(self, pool: Pool | None) -> None:
        self.pool = pool
        self.failure_mode = pool.spec.endpoint_picker_ref.failure_mode if pool else self.failure_mode

    async def follow(self, tell: Callable[[Mapping[str, bool]], None]) -> None:
        """Follow the pool forever: keep `priorities` current, and call `tell` with all endpoints after each change."""
        async with ApiClient(self.config, concurrency=8, timeout=30.0) as client, asyncio.TaskGroup() as tasks:
            following: tuple[str, asyncio.Task[None] | None] = "", None
            current: Mapping[str, bool] | None = None

            def look() -> None:
                nonlocal current
                found = endpoints_of(self.pool, self.pods.values()) if self.pool else {}
                if found != current:
                    current = found
                    tell(found)

            def look_at_pool() -> None:
                nonlocal following
                self._take_pool(pools.get(self.name))
                labels, task = following
                if self.pool is None:
                    self.on_trouble(f"{self.where}: expected an InferencePool of that name ({POOLS})")
                elif self.pool.labels != labels:
                    if task is not None:
                        task.cancel()
                    following = self.pool.labels, None
                    self.pods = {}
                    if self.pool.labels:
                        self.pods, pods = mirror(client, self._pods_path(self.pool), Pod, look, self._trouble)
                        following = self.pool.labels, tasks.create_task(pods.run())
                        return  # `look` is called once the pods have been listed
                look()

            pools, reflector = mirror(
                client, self._path(f"apis/{POOLS}", "inferencepools"), Pool, look_at_pool, self._trouble, self.fields
            )
            tasks.create_task(reflector.run())
            for group in OBJECTIVES:
                tasks.create_task(self._follow_objectives(client, group))

    async def _follow_objectives(self, client: ApiClient, group: str) -> None:
        """Keep the priorities of the objectives in one API group current. The cluster may lack this group."""
        mine: set[str] = set()

        def look() -> None:
            found = {name: one.spec.priority or 0 for name, one in known.items() if one.spec.pool_ref.name == self.name}
            for gone in mine - found.keys():
                self.priorities.pop(gone, None)
            mine.clear()
            mine.update(found)
            self.priorities.update(found)

        def trouble(error: ApiError | InputError) -> None:
            if getattr(error, "code", 0) != 404:
                self._trouble(error)

        known, reflector = mirror(client, self._path(f"apis/{group}", "inferenceobjectives"), Objective, look, trouble)
        await reflector.run()

    def _trouble(self, error: ApiError | InputError) -> None:
        self.on_trouble(str(self._sentence(error)))

    def _sentence(self, error: ApiError | InputError) -> InputError:
        return unread(error, self.where, RIGHTS, f"a cluster that has InferencePools ({POOLS})")
