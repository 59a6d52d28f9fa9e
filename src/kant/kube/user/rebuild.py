"""The state of a cluster as it stands, for questions about it: built as by a replica that starts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from kant.insight.calibration import Calibration
from kant.kube.connect.client import ApiClient, ApiError
from kant.kube.connect.config import Config
from kant.kube.connect.errors import FORBIDDEN, advice
from kant.kube.lead.calibration_store import calibration_of_leader
from kant.kube.lead.driver import KubeDriver
from kant.kube.lead.settings import DriverSettings
from kant.kube.notify.recorder import EventRecorder
from kant.kube.objects.views import Pod
from kant.kube.reconcile.workload import Phase
from kant.kube.translate.groups import INDEX
from kant.kube.user.targets import gang_of
from kant.live.journals import Journals
from kant.model.errors import InputError
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import Profile

LOOKING = 5.0  # seconds for the objects of groups to be read


@dataclass(frozen=True, slots=True)
class RebuiltState:
    """A scheduler before the state at `now`; the job of each pod (namespace, name), and what is wrong with others.

    `calibration` is what the leader has learned about expected starts. `remarks` are about nodes that take no more;
    `unread` says what of the cluster cannot be understood, or may not be read.
    """

    scheduler: Scheduler
    now: int
    zero: int
    jobs: dict[tuple[str, str], str]
    complaints: dict[tuple[str, str], str]
    calibration: Calibration | None = None
    remarks: tuple[str, ...] = ()
    unread: tuple[str, ...] = ()


async def rebuilt(
    config: Config,
    profile: Profile,
    scheduler_name: str = "kant",
    within: float = 120.0,
    namespace: str = "kant-system",
) -> RebuiltState:
    """Read the cluster once. Needs only read access. Raises InputError.

    What the leader whose Lease is in `namespace` has learned about expected starts comes with it, if it tells.
    """
    async with _read(config, DriverSettings(profile, scheduler_name=scheduler_name, once=True), within) as driver:
        return replace(
            _standing(driver), calibration=await calibration_of_leader(driver.notifier.client, namespace, profile)
        )


async def record(
    config: Config, profile: Profile, folder: Path, scheduler_name: str = "kant", within: float = 120.0
) -> tuple[Path, int]:
    """Read the cluster once, and write the journal with which a replica that starts now would begin into `folder`.

    Returns its path and the present, microseconds since the Unix epoch. Raises InputError.
    """

    def trouble(error: Exception) -> None:
        raise InputError(str(folder), f"a disk that can be written ({error})")

    journals = Journals(folder, trouble)
    async with _read(config, DriverSettings(profile, journals, scheduler_name, once=True), within) as driver:
        assert driver.core is not None
        path, now = journals.path, driver.core.now + driver.core.zero
        journals.close()
        assert path is not None
        return path, now


@asynccontextmanager
async def _read(config: Config, settings: DriverSettings, within: float) -> AsyncIterator[KubeDriver]:
    """A driver that has built its state from the API server, and will neither decide nor write. Raises InputError."""
    trouble: list[Exception] = []
    async with ApiClient(config) as client:
        driver = KubeDriver(client, settings, EventRecorder(client, "kubectl"), on_trouble=trouble.append)
        synced = asyncio.Event()
        informers = asyncio.create_task(driver.informers.run(synced))
        try:
            async with asyncio.timeout(within):
                while not synced.is_set():
                    await asyncio.sleep(0.02)
                    if informers.done():
                        informers.result()
                    final = next((one for one in trouble if not getattr(one, "heals", True)), None)
                    if final is not None:
                        raise InputError("the API server", f"one that lets us in ({_sentence(final, config)})")
            if not driver.build():
                raise InputError("the cluster", "at least one node")
            await _read_groups(driver)
            yield driver
        except TimeoutError:
            why = _sentence(trouble[-1], config) if trouble else "no answer"
            raise InputError("the API server", f"one that answers within {within:g} s ({why})") from None
        finally:
            informers.cancel()
            with suppress(asyncio.CancelledError):
                await informers


async def _read_groups(driver: KubeDriver) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(LOOKING):
            while driver.informers.is_looking:
                await asyncio.sleep(0.01)
    driver.take_changes()
    driver.workloads.messages.look_at_growing(at_once=True)  # nobody waits here for the rest of a gang to come


def _standing(driver: KubeDriver) -> RebuiltState:
    assert driver.core is not None
    jobs: dict[tuple[str, str], str] = {}
    complaints: dict[tuple[str, str], str] = {}
    owned: dict[tuple[str, str], str] = {}
    waiting: set[tuple[str, str]] = set()  # owners of which a pod that waits is known: the first stands for all
    for workload in driver.workloads.members.by_key.values():
        for uid in driver.workloads.members.pods_of.get(workload.key, ()):
            pod = driver.mirror.pods.get(uid)
            if pod is not None and workload.job:
                space, waits = pod.metadata.namespace, workload.phase is Phase.WAITING
                jobs[space, pod.metadata.name] = workload.job
                for name in _owner_names(pod):
                    if (space, name) not in jobs or (waits and (space, name) not in waiting):
                        jobs[space, name] = workload.job
                        waiting |= {(space, name)} if waits else set()
            elif pod is not None and workload.reason:
                space = pod.metadata.namespace
                complaints[space, pod.metadata.name] = workload.reason
                owned |= {(space, name): workload.reason for name in (*_owner_names(pod), *gang_of(pod)[2:])}
    complaints |= {owner: reason for owner, reason in owned.items() if owner not in jobs}
    core = driver.core
    crowded = driver.fleet.pod_capacity.remark()
    unread = [*driver.informers.forbidden, *(f"{name}: {said}" for name, said in driver.translation.complaints.items())]
    found = RebuiltState(core.scheduler, core.now, core.zero, jobs, complaints)
    return replace(found, remarks=(crowded,) if crowded else (), unread=tuple(unread))


def _owner_names(pod: Pod) -> list[str]:
    """What a person may call the pod by: its owner, and for an indexed Job NAME_3."""
    owner = next((one.name for one in pod.metadata.owner_references if one.controller), "")
    index = (pod.metadata.annotations or {}).get(INDEX, "")
    return ([owner] if owner else []) + ([f"{owner}_{index}"] if owner and index else [])


def _sentence(error: Exception, config: Config) -> str:
    found = FORBIDDEN.search(error.message) if isinstance(error, ApiError) and error.code == 403 else None
    if found is not None:
        what = found["resource"] + (f".{found['group']}" if found["group"] else "")
        return f"no permission to {found['verb']} {what} in the whole cluster: it needs the role kant-inspector (403)"
    return advice(error, config.source) if isinstance(error, ApiError) else str(error)
