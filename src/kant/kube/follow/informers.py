"""Informers: a reflector for each kind that Kant follows; objects that define groups are read on demand."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from kant.kube.connect.client import ApiClient, ApiError
from kant.kube.connect.errors import INSTALL, advice
from kant.kube.follow.mirror import Mirror, is_over
from kant.kube.follow.reflector import Reflector
from kant.kube.follow.relevance import waits_elsewhere
from kant.kube.follow.store import Store
from kant.kube.objects.names import TAINT_RULES
from kant.kube.objects.storage_views import CsiDriver, CsiNode, StorageCapacity, VolumeAttachment
from kant.kube.objects.views import (
    Claim,
    DisruptionBudget,
    Meta,
    Namespace,
    Node,
    PartialMetadata,
    PersistentVolume,
    Pod,
    StorageClass,
    Unstructured,
)
from kant.kube.translate.crds import API
from kant.kube.translate.groups import GroupRef, group_of
from kant.kube.translate.provisioning import PROVISIONING, PROVISIONING_PATHS
from kant.kube.translate.resizing import as_counted
from kant.live.logs import log_event
from kant.model.errors import InputError

log = logging.getLogger("kant.kube")
QUEUES = "queues"
TAINT_RULES_PATHS = tuple(f"/apis/resource.k8s.io/{version}/{TAINT_RULES}" for version in ("v1beta2", "v1alpha3"))
OWN_KINDS = (QUEUES, "topologies", "reservations", "defragmentations")
KINDS: dict[str, tuple[str, ...]] = {
    **{plural: (f"{API}/{plural}",) for plural in OWN_KINDS},
    "topologies.kueue.x-k8s.io": ("/apis/kueue.x-k8s.io/v1beta2/topologies", "/apis/kueue.x-k8s.io/v1beta1/topologies"),
    "topologies.kai.scheduler": ("/apis/kai.scheduler/v1alpha1/topologies",),
    PROVISIONING: PROVISIONING_PATHS,
    TAINT_RULES: TAINT_RULES_PATHS,
}
"""Optional kinds, by their name in the mirror, with their paths: the first path that exists is used."""

BUDGETS = "/apis/policy/v1/poddisruptionbudgets"
CLAIMS = "/api/v1/persistentvolumeclaims"
NAMESPACES = "/api/v1/namespaces"
VOLUMES = "/api/v1/persistentvolumes"
STORAGE = "/apis/storage.k8s.io/v1"
CLASSES = f"{STORAGE}/storageclasses"
DEVICES = "/apis/resource.k8s.io/v1"
DEVICE_KINDS = {"deviceclasses": "classes", "resourceslices": "slices", "resourceclaims": "claims"}
INSTALLED = 30.0  # seconds between two searches for missing kinds
OWN_INSTALLED = 2.0  # the same for Kant's own kinds; the arrival of a pod also starts a search for Queues
ABSENT = 5.0  # seconds until the missing object of a group is read again
GROUPS = 5.0  # seconds to wait at the start until the objects of groups have been read

BEHIND = 5.0  # seconds for which a new leader waits until the watch is up to date

NO_BUDGETS = "disruption budgets are checked only by the Eviction API"
NO_NAMESPACES = "pods with a namespaceSelector are not scheduled"
NO_STORAGE = "pods with volume claims are not scheduled"
NO_EVENTS = "jobs wait for nodes as long as their queues say: reports of autoscalers are not read"
NO_DEVICES = "pods with device claims are not scheduled"
FORBIDDEN = {
    PROVISIONING_PATHS: "pods that consume a ProvisioningRequest are not scheduled",
    TAINT_RULES_PATHS: "devices are allocated regardless of DeviceTaintRules",
}
"""What does not work while Kant may not read an optional kind, by the kind's paths."""

T = TypeVar("T")
Trouble = Callable[[ApiError | InputError], None]
Malformed = Callable[[str, Meta, str], None]


class UninstalledError(Exception):
    """The API server no longer serves a kind."""


class BehindError(Exception):
    """The watch has not shown in time what a list has shown before."""


@dataclass(eq=False)
class Informers:
    """Keeps `mirror` up to date; `wake` is called after each change. With `once` objects are listed and not watched."""

    client: ApiClient
    mirror: Mirror
    wake: Callable[[], None]
    on_trouble: Trouble = lambda error: None
    on_malformed: Malformed = lambda kind, meta, sentence: None
    once: bool = False

    def __post_init__(self) -> None:
        mirror = self.mirror
        self.groups: dict[str, Unstructured | None] = {}
        self.read: dict[GroupRef, None] = {}  # groups read since a caller last emptied this dict
        self.pods = self._reflector("pods", "/api/v1/pods", Pod, mirror.pod, mirror.replace_pods)
        self.pods.keep = as_counted
        self.pods.skips = waits_elsewhere(mirror.schedulers) if mirror.schedulers else None
        self.nodes = self._stored("nodes", "/api/v1/nodes", Node, mirror.nodes)
        self.budgets = self._stored("budgets", BUDGETS, DisruptionBudget, mirror.budgets)
        self.budgets.on_trouble = partial(self._without, self.budgets, NO_BUDGETS)
        self.namespaces = self._stored("namespaces", NAMESPACES, Namespace, mirror.all_namespaces)
        self.namespaces.on_trouble = partial(self._without, self.namespaces, NO_NAMESPACES)
        csi = mirror.csi
        self.storage: tuple[Reflector[Any], ...] = (
            self._stored("claims", CLAIMS, Claim, mirror.claims),
            self._stored("volumes", VOLUMES, PersistentVolume, mirror.volumes),
            self._stored("classes", CLASSES, StorageClass, mirror.storage_classes),
            self._stored("drivers", f"{STORAGE}/csidrivers", CsiDriver, csi.all_drivers),
            self._stored("limits", f"{STORAGE}/csinodes", CsiNode, csi.nodes),
            self._stored("capacities", f"{STORAGE}/csistoragecapacities", StorageCapacity, csi.objects),
            self._stored("attachments", f"{STORAGE}/volumeattachments", VolumeAttachment, csi.attachments),
        )
        self.devices = [self._of_devices(kind, plural) for plural, kind in DEVICE_KINDS.items()]
        for one in self.storage:
            one.on_trouble = partial(self._without, one, NO_STORAGE)
        self.forbidden: dict[str, str] = {}  # paths that Kant may not read, with the consequences
        self.others: dict[str, Reflector[Unstructured]] = {}  # by kind
        self._absent: list[str] = []  # kinds that the cluster lacks
        self._late: set[str] = set()  # kinds of Kant that were installed later
        self._asked = self._looked = 0  # how often Queues were asked for, and up to which time served
        self._ask = asyncio.Event()
        self._wanted: asyncio.Queue[GroupRef] = asyncio.Queue()
        self._looking: set[GroupRef] = set()
        self._tasks: asyncio.TaskGroup | None = None
        self._autoscaler_events: list[tuple[Reflector[Any], asyncio.Task[None]]] = []  # Events of autoscalers

    def _stored(self, kind: str, path: str, view: type[T], store: Store[Any, T]) -> Reflector[T]:
        return self._reflector(kind, path, view, store.change, store.replace)

    def _of_devices(self, kind: str, plural: str) -> Reflector[Any]:
        """Return the reflector of a DRA kind. Few clusters have such objects: the first one imports their type."""
        mirror = self.mirror

        def change(what: str, item: Any) -> None:
            mirror.devices.kinds[plural].change(what, item)

        def replace(items: list[Any]) -> None:
            if items or mirror.has_devices:
                mirror.devices.kinds[plural].replace(items)

        made = self._reflector(kind, f"{DEVICES}/{plural}", PartialMetadata, change, replace)
        made.later = lambda: mirror.devices.kinds[plural].view
        made.on_trouble = partial(self._without, made, NO_DEVICES)
        return made

    def _reflector(
        self,
        kind: str,
        path: str,
        view: type[T],
        sink: Callable[[str, T], bool | None],
        replace: Callable[[list[T]], None],
    ) -> Reflector[T]:
        wake = self.wake

        def change(what: str, item: T) -> None:
            if sink(what, item) is not False:
                wake()

        def everything(items: list[T]) -> None:
            self.mirror.unreadable.discard(path)
            self.mirror.unreadable_devices.discard(path)
            self.forbidden.pop(path, None)
            replace(items)
            wake()

        return Reflector(
            self.client,
            path,
            view,
            change,
            on_replace=everything,
            on_malformed=lambda meta, sentence: self.on_malformed(kind, meta, sentence),
            on_trouble=self.on_trouble,
            once=self.once,
        )

    async def run(self, synced: asyncio.Event) -> None:
        """Follow all kinds forever; `synced` is set once everything has been listed."""
        self._absent = [kind for kind in KINDS if not await self._add(kind)]
        self._log_missing()
        self.mirror.serves_devices = bool(await self._served((f"{DEVICES}/resourceclaims",)))
        async with asyncio.TaskGroup() as self._tasks:
            tasks = self._tasks
            reflectors: list[Reflector[Any]] = [self.nodes, self.pods]
            others = dict(self.others)
            optionals: list[Reflector[Any]] = [self.budgets, self.namespaces, *self.storage]
            optionals += self.devices if self.mirror.serves_devices else ()
            for optional in optionals:
                tasks.create_task(optional.run())
            for optional in optionals:
                await optional.synced.wait()
            for reflector in reflectors:
                tasks.create_task(reflector.run())
            for kind, other in others.items():
                tasks.create_task(self._follow(kind, other))
            for _ in range(8):
                tasks.create_task(self._look_up())
            for reflector in (*reflectors, *others.values()):
                await reflector.synced.wait()
            await self._read_groups()
            self.look_for_queues(self.mirror.pods.values())
            synced.set()
            await self._follow_late(tasks)

    async def _read_groups(self) -> None:
        """Read the groups of all pods, for GROUPS seconds at most.

        A state that is built without them learns of its gangs later: these would be younger than all single pods.
        """
        for pod in self.mirror.pods.values():
            if pod.spec.scheduler_name in self.mirror.schedulers and not is_over(pod):
                with suppress(InputError):  # reported when the pod is translated
                    if (ref := group_of(pod)) is not None and ref.paths:
                        self.look_up(ref)
        with suppress(TimeoutError):
            async with asyncio.timeout(GROUPS):
                while self._looking:
                    await asyncio.sleep(0.01)
        self.read.clear()  # no state has been built without them

    async def _follow(self, kind: str, reflector: Reflector[Unstructured]) -> None:
        """Follow an optional kind until it is uninstalled. From then on it has no objects, and is looked for again."""
        try:
            await reflector.run()
        except UninstalledError:
            del self.others[kind]
            self._late.discard(kind)
            self._absent.append(kind)
            if kind in OWN_KINDS:
                self._log_missing()
            self.mirror.kind(kind).replace(())
            reflector.synced.set()
            self._ask.set()
            self.wake()

    async def _follow_late(self, tasks: asyncio.TaskGroup) -> None:
        """Look periodically for missing kinds, and for Queues whenever requested."""
        loop, looked_at = asyncio.get_running_loop(), asyncio.get_running_loop().time()
        while True:
            due: float | None = None
            if self._absent or not self.mirror.serves_devices:
                due = looked_at + (OWN_INSTALLED if any(kind in OWN_KINDS for kind in self._absent) else INSTALLED)
            with suppress(TimeoutError):
                async with asyncio.timeout_at(due):
                    await self._ask.wait()
            self._ask.clear()
            asked, is_due = self._asked, due is not None and loop.time() >= due
            if is_due and not self.mirror.serves_devices and await self._served((f"{DEVICES}/resourceclaims",)):
                self.mirror.serves_devices = True
                for late in self.devices:
                    tasks.create_task(late.run())
            looked = [kind for kind in self._absent if is_due or kind == QUEUES]
            found = [kind for kind in looked if await self._add(kind)]
            if QUEUES in found and not is_due:  # Kant's other kinds are installed together with Queue
                found += [
                    kind for kind in OWN_KINDS if kind in self._absent and kind != QUEUES and await self._add(kind)
                ]
            for kind in found:
                self._absent.remove(kind)
                self._late |= {kind} & {*OWN_KINDS}
                tasks.create_task(self._follow(kind, self.others[kind]))
            if is_due:
                looked_at = loop.time()
            if self._looked != asked:
                self._looked = asked
                self.wake()

    def listen_to_autoscalers(self) -> None:
        """Read autoscalers' Events about pods from now on: they are needed once a queue waits for new nodes."""
        if self._autoscaler_events or self._tasks is None:
            return
        from kant.kube.translate.autoscaling import SOURCES, PodEvent

        for source in SOURCES:
            scale_ups = self.mirror.scale_ups
            events = self._reflector("events", "/api/v1/events", PodEvent, scale_ups.event, scale_ups.replace)
            events.fields = f"involvedObject.kind=Pod,source={source}"
            events.on_trouble = partial(self._without, events, NO_EVENTS)
            begin = asyncio.create_task if self.once else self._tasks.create_task  # the task group may have ended
            self._autoscaler_events.append((events, begin(events.run())))

    def look_for_queues(self, pods: Iterable[Pod]) -> None:
        """Look for the kind Queue again if it was missing, since these new pods may belong to a Queue."""
        if QUEUES in self._absent and any(not pod.spec.node_name for pod in pods):
            self._asked += 1
            self._ask.set()

    @property
    def is_unsure(self) -> bool:
        """Whether there may be Queues, or other objects of Kant's kinds, that have not been listed."""
        return self._looked != self._asked or any(not self.others[kind].synced.is_set() for kind in self._late)

    async def _add(self, kind: str) -> bool:
        """Add a reflector of an optional kind. Returns False if the cluster lacks it."""
        path = await self._served(KINDS[kind])
        if not path:
            return False
        self.others[kind] = made = self._stored(kind, path, Unstructured, self.mirror.kind(kind))
        made.on_trouble = self._without_kind
        return True

    def _without_kind(self, error: ApiError | InputError) -> None:
        """Report an error about an optional kind. Raises UninstalledError if the API server no longer serves it."""
        if isinstance(error, ApiError) and error.code == 404:
            raise UninstalledError
        self.on_trouble(error)

    async def _served(self, candidates: tuple[str, ...]) -> str:
        """Return the first of these paths that the API server serves; "" for none, or if reading is forbidden."""
        paths = list(candidates)
        while paths:
            try:
                await self.client.call("GET", paths[0], params={"limit": "1"})
                break
            except ApiError as error:
                if error.code == 404:
                    del paths[0]
                    continue
                if error.code == 403 and candidates in FORBIDDEN:
                    self._complain(paths[0], f"{FORBIDDEN[candidates]}: {advice(error, self.client.config.source)}")
                    return ""
                if error.code == 403 and paths[0].startswith(DEVICES):
                    break  # the kind exists; its reflector reports the consequences
                self.on_trouble(error)
                await asyncio.sleep(1.0)
        return paths[0] if paths else ""

    def _without(self, reflector: Reflector[Any], what: str, error: ApiError | InputError) -> None:
        """Continue without a kind that Kant may not read or the cluster lacks. Report `what`, the consequences."""
        storage = what == NO_STORAGE
        if not isinstance(error, ApiError) or error.code not in ((403,) if storage else (403, 404)):
            self.on_trouble(error)
            return
        if what != NO_DEVICES or error.code == 403:
            self._complain(reflector.path, f"{what}: {advice(error, self.client.config.source)}")
        if what == NO_BUDGETS:
            self.mirror.budgets.replace([])
        elif what == NO_NAMESPACES:
            self.mirror.namespaces.labels = None
        elif what != NO_EVENTS:
            (self.mirror.unreadable if storage else self.mirror.unreadable_devices).add(reflector.path)
        reflector.synced.set()
        self.wake()

    def _complain(self, path: str, sentence: str) -> None:
        """Log a sentence about a path that Kant may not read, once."""
        if self.forbidden.get(path) != sentence:
            self.forbidden[path] = sentence
            log_event(log, sentence, logging.WARNING)

    @property
    def unread(self) -> list[str]:
        """Sentences about kinds of Kant that are not installed, and about what Kant may not read."""
        missing = ", ".join(kind for kind in OWN_KINDS if kind in self._absent)
        return [f"{missing} have no effect: these kinds are not installed ({INSTALL})"] * bool(missing) + [
            *self.forbidden.values()
        ]

    def _log_missing(self) -> None:
        if any(kind in OWN_KINDS for kind in self._absent):
            log_event(log, self.unread[0], logging.WARNING)

    @property
    def is_looking(self) -> bool:
        """Whether the object of a group is being read, or autoscalers' Events are being listed for the first time."""
        return bool(self._looking) or not all(events.synced.is_set() for events, _ in self._autoscaler_events)

    def look_up(self, ref: GroupRef) -> None:
        """Read the object of a group; the result is in `groups` and `read`."""
        if ref not in self._looking:
            self._looking.add(ref)
            self._wanted.put_nowait(ref)

    async def _look_up(self) -> None:
        while True:
            ref = await self._wanted.get()
            if not await self._read_group(ref):
                await asyncio.sleep(1.0)
                self._wanted.put_nowait(ref)
                continue
            self._looking.discard(ref)
            self.read[ref] = None
            self.wake()

    async def _read_group(self, ref: GroupRef) -> bool:
        """Read the object of a group. Returns False if it has to be read again, after an error that may pass."""
        for path in ref.paths:
            try:
                self.groups[path] = await self.client.get(path, Unstructured)
                return True
            except ApiError as error:
                if error.code != 404:
                    self.on_trouble(error)
                    if error.heals:
                        return False
                self.groups[path] = None
        asyncio.get_running_loop().call_later(ABSENT, self._forget, ref)
        return True

    def _forget(self, ref: GroupRef) -> None:
        """Forget that a group's object is missing, so that it is read again."""
        for path in ref.paths:
            if self.groups.get(path, self) is None:
                del self.groups[path]
        self.read[ref] = None
        self.wake()

    async def know_of_bound(self) -> None:
        """Wait until the mirror shows all pods bound by now. Raises BehindError after BEHIND seconds, and ApiError.

        A watch may lag, but a new leader must know what the previous leader has bound.
        """
        pages = self.client.pages("/api/v1/pods", PartialMetadata, 5_000, fields="spec.nodeName!=")
        known, latest = self.mirror.pods, "0"
        async for items, _ in pages:
            for one in items:
                pod = known.get(one.metadata.uid)
                if pod is None or not pod.spec.node_name:
                    latest = max(latest, one.metadata.resource_version, key=int)
        try:
            async with asyncio.timeout(BEHIND):
                while not self.pods.has_seen(latest):
                    await asyncio.sleep(0.02)
        except TimeoutError:
            raise BehindError from None

    def stale_for(self) -> float:
        """Return the seconds since the API server last sent anything about pods or nodes."""
        return max(self.pods.stale_for(), self.nodes.stale_for())
