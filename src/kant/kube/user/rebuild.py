"""The present state of a cluster, for questions about it, built in the same way as by a replica that starts."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from pathlib import Path

from kant.kube.connect.client import ApiClient, ApiError
from kant.kube.connect.config import Config
from kant.kube.connect.errors import advice, denied_by
from kant.kube.lead.calibration_store import calibration_of_leader, notes_on_lease
from kant.kube.lead.driver import KubeDriver
from kant.kube.lead.settings import DriverSettings
from kant.kube.notify.recorder import EventRecorder
from kant.kube.objects.names import QUEUES_KNOWN
from kant.kube.user.rebuilt_state import RebuiltState, rebuilt_state
from kant.live.journals import Journals
from kant.model.errors import InputError
from kant.scheduler.profile import Profile

LOOKING = 5.0  # seconds to wait until the objects of groups have been read


async def rebuilt(
    config: Config,
    profile: Profile,
    scheduler_name: str = "kant",
    within: float = 120.0,
    namespace: str = "kant-system",
) -> RebuiltState:
    """Read the cluster once and return its state. Needs only read access. Raises InputError.

    The state includes what the leader has published about expected starts on its Lease in `namespace`.
    """
    async with _read(
        config, DriverSettings(profile, None, scheduler_name, namespace=namespace, once=True), within
    ) as driver:
        return replace(
            rebuilt_state(driver), calibration=await calibration_of_leader(driver.client, namespace, profile)
        )


async def record(
    config: Config, profile: Profile, folder: Path, scheduler_name: str = "kant", within: float = 120.0
) -> tuple[Path, int]:
    """Read the cluster once, and write into `folder` the journal that a replica would begin if it started now.

    Returns the journal's path and the present time in microseconds since the Unix epoch. Raises InputError.
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
    """Yield a driver with a state built from the API server; it neither decides nor writes. Raises InputError."""
    trouble: list[Exception] = []
    async with ApiClient(config) as client:
        driver = KubeDriver(client, settings, EventRecorder(client, "kubectl"), on_trouble=trouble.append)
        queues_known = (await notes_on_lease(client, settings.namespace)).get(QUEUES_KNOWN, "")
        driver.translation.queues.presence.word = lambda: queues_known
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
                        raise InputError("the API server", f"one that accepts our login ({_sentence(final, config)})")
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
    for _ in range(2):  # the first pass shows whether Events of autoscalers are needed
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOKING):
                while driver.informers.is_looking:
                    await asyncio.sleep(0.01)
        driver.take_changes()
    driver.workloads.messages.look_at_growing(at_once=True)  # this state does not wait for missing pods of gangs


def _sentence(error: Exception, config: Config) -> str:
    if isinstance(error, ApiError) and (denied := denied_by(error)) is not None:
        return f"no permission to {denied[0]} in the whole cluster: it needs the role kant-inspector (403)"
    return advice(error, config.source) if isinstance(error, ApiError) else str(error)
