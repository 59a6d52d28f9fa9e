"""Victims by what is lost since their last checkpoint, as jobs say it on their pods, on a real API server."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest
from tests.kube.api import Api
from tests.kube.kubelet import FakeKubelet
from tests.kube.live import bound, profile, until
from tests.kube.objects import make_gang, make_node, make_pod, make_priority_class
from tests.kube.running import Kant
from tests.patience import PATIENCE_S

from kant.kube.lead.driver import KubeDriver
from kant.kube.reconcile import saved_work

SAVED, EVERY = "scheduling.kant.dev/checkpointed-at", "scheduling.kant.dev/checkpoint-every"
YES = {"scheduling.kant.dev/preemptible": "true"}


async def prices(driver: KubeDriver, *jobs: str) -> dict[str, int]:
    """The prices of jobs by name, once all of these have one."""
    async with asyncio.timeout(PATIENCE_S):
        while True:
            state = driver.core.state if driver.core is not None else None
            found = {job: state.prices.get(row) for job, row in state.rows.items()} if state is not None else {}
            if all(found.get(f"default/{job}") is not None for job in jobs):
                return {job: int(found[f"default/{job}"] or 0) for job in jobs}
            await asyncio.sleep(0.02)


@pytest.mark.parametrize("saves", [True, False])
async def test_who_has_just_saved_its_work_goes_before_who_has_run_for_less(api: Api, kant: Kant, saves: bool) -> None:
    """Of two gangs the later one loses less, unless the earlier one has made a checkpoint, as the next leader knows."""
    settings = profile("[preemption]\npriority = true\nmin_run_s = 0\n")
    await api.create_all([make_priority_class("high", 1000), make_node("n0"), make_node("n1")])
    async with FakeKubelet(api):
        async with kant(profile=settings) as driver:
            await api.create_all(make_gang("early", 2, 4, annotations=YES))
            await until(api, lambda pods: len(bound(pods)) == 2)
            await asyncio.sleep(3.0)
            await api.create_all(make_gang("late", 2, 4, annotations=YES))
            await until(api, lambda pods: len(bound(pods)) == 4)
            await asyncio.sleep(2.0)
            if saves:
                note = {"metadata": {"annotations": {SAVED: datetime.now(UTC).isoformat()}}}
                await api.patch("/api/v1/namespaces/default/pods/early-1", note)
                assert (await prices(driver, "early"))["early"] <= 8 * 1000
        async with kant(profile=settings) as driver:
            if saves:
                await prices(driver, "early")
            await api.create(make_pod("urgent", 8, priority_class="high"))
            pods = await until(api, lambda pods: "urgent" in bound(pods))
            left = {one.split("-")[0] for one in bound(pods)} - {"urgent"}
            assert left == {"late" if saves else "early"} and driver.counts.evicted == 2


async def test_what_would_be_lost_grows_until_the_next_checkpoint(
    api: Api, kant: Kant, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saved_work, "LEAST", 1_000_000)
    await api.create(make_node("n0"))
    async with kant() as driver:
        await api.create_all([make_pod("a", 2, annotations=YES), make_pod("b", 2, annotations=YES | {EVERY: "20m"})])
        await until(api, lambda pods: bound(pods) == ["a", "b"])
        assert driver.core is not None
        state = driver.core.state
        assert state.live[state.rows["default/b"]].checkpoint == 20 * 60 * 1_000_000
        long_ago = (datetime.now(UTC) - timedelta(days=3)).isoformat()  # it cannot lose more than it has run
        await api.patch("/api/v1/namespaces/default/pods/a", {"metadata": {"annotations": {SAVED: long_ago}}})
        first = (await prices(driver, "a"))["a"]
        assert first < 2000 * 600
        async with asyncio.timeout(PATIENCE_S):
            while state.prices[state.rows["default/a"]] < first + 2000:
                await asyncio.sleep(0.05)
        await api.patch("/api/v1/namespaces/default/pods/a", {"metadata": {"annotations": {SAVED: "yesterday"}}})
        async with asyncio.timeout(PATIENCE_S):
            while "pod default/a" not in driver.translation.complaints:
                await asyncio.sleep(0.02)
        assert "expected a time such as" in driver.translation.complaints["pod default/a"]
        assert state.rows["default/a"] not in state.prices
