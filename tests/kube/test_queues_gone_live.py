"""Queues that go by mistake, on a real API server: nothing starts until there is one again, or none is meant."""

from __future__ import annotations

import asyncio
import re
from contextlib import suppress
from pathlib import Path
from urllib.request import urlopen

import pytest
from tests.kube.api import Api, RefusedError
from tests.kube.control_plane import NAMESPACE, ControlPlane
from tests.kube.faults import Fault, FaultProxy
from tests.kube.live import bound, condition, install, of_queue, queue, says, until, waiting
from tests.kube.objects import Object, make_node, make_pod
from tests.kube.processes import free_port
from tests.kube.running import Kant, KantProcess
from tests.patience import PATIENCE_S
from tests.patience import until as until_so

from kant.cli.app import run
from kant.cli.kubectl import cluster_answers, kubectl_app
from kant.kube.translate.crds import API

KIND = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/queues.scheduling.kant.dev"
LEASE = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/kant"
WORD = "scheduling.kant.dev/queues"
GONE = "no Queue is left in this cluster"


def pods_of(queue: str, first: int, last: int) -> list[Object]:
    return [make_pod(f"{queue}-{i}", labels=of_queue(queue)) for i in range(first, last)]


async def notes(api: Api) -> dict[str, str]:
    found: dict[str, str] = (await api.get(LEASE))["metadata"].get("annotations", {})
    return found


async def word(api: Api, said: str) -> None:
    """Wait until the Lease says it."""
    async with asyncio.timeout(PATIENCE_S):
        while (await notes(api)).get(WORD) != said:
            await asyncio.sleep(0.05)


async def events(api: Api, reason: str, count: int) -> list[Object]:
    def there(found: list[Object]) -> bool:
        return sum(one["reason"] == reason for one in found) >= count

    return [one for one in await api.until(there, "/apis/events.k8s.io/v1/events") if one["reason"] == reason]


async def delete_kind(api: Api) -> None:
    await api.delete(KIND)
    async with asyncio.timeout(PATIENCE_S):
        with suppress(RefusedError):
            while True:
                await api.list(f"{API}/queues")
                await asyncio.sleep(0.05)


async def test_nothing_starts_once_all_queues_are_gone_until_one_is_back_or_none_is_meant(
    plane: ControlPlane, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    port = free_port()
    options = ("--listen", f"127.0.0.1:{port}")

    async def metric() -> str:
        def ask() -> str:
            with urlopen(f"http://127.0.0.1:{port}/metrics", timeout=30) as answer:
                return str(answer.read().decode())

        found = re.search(r"^kant_queues_gone (\S+)$", await asyncio.to_thread(ask), re.MULTILINE)
        return found[1] if found else ""

    async def kubectl(*words: str) -> str:
        there = ("--kubeconfig", str(plane.kubeconfig("admin")))
        assert await asyncio.to_thread(run, [*words, *there], kubectl_app(cluster_answers)) == 0
        return " ".join(capsys.readouterr().out.split())

    async def stands(api: Api, gone: str, names: list[str]) -> None:
        """Two pods that came late wait for Queues, and it is said everywhere; those that ran run on."""
        pods = await until(api, lambda pods: all(says(pods, one, GONE) for one in names))
        assert bound(pods) == ["team-0", "team-1"]
        assert {condition(pod)["reason"] for pod in pods if pod["metadata"]["name"] in names} == {"Queued"}
        assert await metric() == "1.0"
        for said in (await kubectl("queue"), await kubectl("why", names[0])):
            assert GONE in said and f"annotate lease kant {WORD}=none" in said

    async with Api(plane) as api:
        await install(api)
        await api.namespace(NAMESPACE)
        await api.create(make_node("n0", 8))
        await api.apply([queue("team", 2)])
        leader = KantProcess(plane, *options, user="admin")
        try:
            await api.create_all(pods_of("team", 0, 4))
            await until(api, lambda pods: len(bound(pods)) == 2 and all(says(pods, w, "quota") for w in waiting(pods)))
            await api.delete(f"{API}/queues/team")
            await stands(api, "queues", ["team-2", "team-3"])
            (told,) = await events(api, "QueuesGone", 1)
            assert told["type"] == "Warning" and told["regarding"]["kind"] == "Lease" and GONE in told["note"]

            await api.apply([queue("team", 3)])  # it is back, with the quota that it says
            await until(api, lambda pods: len(bound(pods)) == 3 and len(waiting(pods)) == 1)
            await events(api, "QueuesBack", 1)
            assert await metric() == "0.0"
            await api.delete("/api/v1/namespaces/default/pods/team-2", grace_s=0)
            await api.delete("/api/v1/namespaces/default/pods/team-3", grace_s=0)
            await word(api, "declared")
            leader.kill()
            await delete_kind(api)

            leader = KantProcess(plane, *options, user="admin")  # which has never seen a Queue
            await api.create_all(pods_of("team", 4, 6))
            await stands(api, "kind", ["team-4", "team-5"])
            await api.patch(LEASE, {"metadata": {"annotations": {WORD: "none"}}})
            await until(api, lambda pods: not waiting(pods))
            assert await metric() == "0.0"
            await word(api, "none")
            leader.kill()

            leader = KantProcess(plane, *options, user="admin")  # it is still meant
            await api.create_all(pods_of("team", 6, 7))
            await until(api, lambda pods: not waiting(pods))
            await install(api)
            await api.apply([queue("team", 2)])
            await word(api, "declared")
        finally:
            leader.stop()
            await install(api)


async def test_kinds_that_are_uninstalled_and_installed_again_count_again(api: Api, kant: Kant) -> None:
    """What is missing is said for as long as it is missing, and is looked for as on the first day."""
    kind = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/{}.scheduling.kant.dev"
    await api.create(make_node("n0", 8))
    await api.apply([queue("team", 1)])
    try:
        async with kant() as driver:
            await api.create_all(pods_of("team", 0, 3))
            await until(api, lambda pods: len(bound(pods)) == 1 and all(says(pods, w, "quota") for w in waiting(pods)))
            assert driver.informers.unread == []
            for plural in ("queues", "reservations"):
                await api.delete(kind.format(plural))
            await until(api, lambda pods: all(says(pods, one, GONE) for one in waiting(pods)))
            await until_so(lambda: "queues, reservations have no effect" in " ".join(driver.informers.unread))
            await install(api)
            await api.apply([queue("team", 2)])
            await until(api, lambda pods: len(bound(pods)) == 2 and all(says(pods, w, "quota") for w in waiting(pods)))
            await until_so(lambda: not driver.informers.unread)
    finally:
        await install(api)


async def test_a_kind_that_goes_while_nobody_watches_has_no_objects_left(
    api: Api, plane: ControlPlane, kant: Kant
) -> None:
    await api.create(make_node("n0", 8))
    await api.apply([queue("team", 1)])
    async with FaultProxy(plane) as proxy, kant(server=proxy.url):
        await api.create_all(pods_of("team", 0, 2))
        await until(api, lambda pods: len(bound(pods)) == 1 and all(says(pods, w, "quota") for w in waiting(pods)))
        proxy.faults.append(Fault("404", resource="queues"))
        proxy.cut_watches()
        await until(api, lambda pods: all(says(pods, one, GONE) for one in waiting(pods)))
        proxy.faults.clear()
        await until(api, lambda pods: all(says(pods, one, "quota") for one in waiting(pods)))
