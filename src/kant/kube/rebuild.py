"""The state of a cluster as it stands, for whoever has questions: built as by a replica that starts."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass

from kant.kube.client import ApiError, Client
from kant.kube.config import Config
from kant.kube.driver import Driver, Settings
from kant.kube.errors import advice
from kant.kube.recorder import Recorder
from kant.model.errors import InputError
from kant.scheduler.cycle import Scheduler
from kant.scheduler.profile import Profile

LOOKING = 5.0  # seconds for the objects of groups to be read


@dataclass(frozen=True, slots=True)
class Standing:
    """A scheduler before the state at `now`; the job of each pod (namespace, name), and what is wrong with others."""

    scheduler: Scheduler
    now: int
    zero: int
    jobs: dict[tuple[str, str], str]
    complaints: dict[tuple[str, str], str]


async def standing(config: Config, profile: Profile, scheduler_name: str = "kant", within: float = 120.0) -> Standing:
    """Read the cluster once. Needs only read access. Raises InputError."""
    trouble: list[Exception] = []
    async with Client(config) as client:
        settings = Settings(profile, scheduler_name=scheduler_name)
        driver = Driver(client, settings, Recorder(client, "kubectl"), on_trouble=trouble.append)
        synced = asyncio.Event()
        following = asyncio.create_task(driver.following.run(synced))
        try:
            async with asyncio.timeout(within):
                while not synced.is_set():
                    await asyncio.sleep(0.02)
                    final = next((one for one in trouble if not getattr(one, "heals", True)), None)
                    if final is not None:
                        raise InputError("the API server", "one that lets us in", _sentence(final, config))
            if not driver.build():
                raise InputError("the cluster", "at least one node")
            await _read_groups(driver)
            return _standing(driver)
        except TimeoutError:
            why = _sentence(trouble[-1], config) if trouble else "no answer"
            raise InputError("the API server", f"one that answers within {within:g} s", why) from None
        finally:
            following.cancel()
            with suppress(asyncio.CancelledError):
                await following


async def _read_groups(driver: Driver) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(LOOKING):
            while driver.following.is_looking:
                await asyncio.sleep(0.01)
    driver.take_changes()


def _standing(driver: Driver) -> Standing:
    assert driver.core is not None
    jobs: dict[tuple[str, str], str] = {}
    complaints: dict[tuple[str, str], str] = {}
    for known in driver.workloads.known.values():
        for uid in driver.workloads.pods_of.get(known.key, ()):
            pod = driver.mirror.pods.get(uid)
            if pod is not None and known.job:
                jobs[pod.metadata.namespace, pod.metadata.name] = known.job
            elif pod is not None and known.reason:
                complaints[pod.metadata.namespace, pod.metadata.name] = known.reason
    core = driver.core
    return Standing(core.scheduler, core.now, core.zero, jobs, complaints)


def _sentence(error: Exception, config: Config) -> str:
    return advice(error, config.source) if isinstance(error, ApiError) else str(error)
