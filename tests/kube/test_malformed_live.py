"""What is malformed is reported on that object, on a real API server, and harms no other."""

from __future__ import annotations

from pathlib import Path

from tests.kube.api import Api
from tests.kube.live import bound, condition, deputy_of_kant, events, name, until
from tests.kube.objects import GPU, Object, make_gang, make_node, make_pod
from tests.kube.running import Kant

JUNK = "x" * (200 << 10)
OWN = "scheduling.kant.dev"


async def of_node(api: Api, node: str, many: int) -> list[Object]:
    """The events of a node, once there are so many."""
    path = "/apis/events.k8s.io/v1/namespaces/default/events"
    found = await api.until(lambda found: sum(one["regarding"].get("name") == node for one in found) >= many, path)
    return sorted((one for one in found if one["regarding"]["name"] == node), key=lambda one: one["eventTime"])


async def test_a_malformed_node_is_told_so_once_for_each_fault_of_it(api: Api, kant: Kant) -> None:
    await deputy_of_kant(api)
    odd = make_node("odd")
    odd["status"]["capacity"] = odd["status"]["allocatable"] = odd["status"]["capacity"] | {"amd.com/gpu": "4"}
    await api.create_all([odd, make_node("even")])
    status = "/api/v1/nodes/odd/status"
    async with kant(user="deputy") as driver:
        await api.create_all([make_pod(f"p{i}", 4) for i in range(3)])
        await until(api, lambda pods: len(bound(pods)) == 2)  # on the other
        (first,) = await of_node(api, "odd", 1)
        assert (first["type"], first["reason"], first["regarding"]["kind"]) == ("Warning", "Malformed", "Node")
        assert "GPUs of one kind, got 'nvidia.com/gpu, amd.com/gpu'" in first["note"]
        await api.patch("/api/v1/nodes/odd", {"metadata": {"labels": {"rack": "r7"}}})  # its fault is the same
        many = {GPU: "100", "amd.com/gpu": None}
        await api.patch(status, {"status": {"capacity": many, "allocatable": many}})
        _, second = await of_node(api, "odd", 2)
        assert "at most 62 GPUs, got 100" in second["note"]
        sound = {GPU: "8"}
        await api.patch(status, {"status": {"capacity": sound, "allocatable": sound}})
        await until(api, lambda pods: len(bound(pods)) == 3)
        assert await driver.notifier.recorder.drain(30)
        assert len(await of_node(api, "odd", 2)) == 2 and not driver.translation.complaints


async def test_huge_annotations_are_told_on_their_pods_and_harm_no_other(api: Api, kant: Kant, tmp_path: Path) -> None:
    """200 KiB of junk in what Kant reads: of single pods, of a gang, and of a pod that runs already."""
    await api.create_all([make_node("n0"), make_node("n1")])
    keys = {"queue": "queue", "group": "pod-group", "level": "topology-required", "time": "expected-runtime"}
    odd = [make_pod(name, annotations={f"{OWN}/{key}": JUNK}) for name, key in keys.items()]
    runs = make_pod("runs", 2, annotations={f"{OWN}/queue": JUNK}, node="n0")
    gang = make_gang("broken", 2)
    gang[1]["metadata"]["annotations"] = {f"{OWN}/preemptible": JUNK}
    await api.create_all([*odd, runs, *gang])
    async with kant():
        await api.create_all([*make_gang("sound", 8), make_pod("alone", 6)])
        pods = await until(
            api,
            lambda pods: (
                len(bound(pods)) == 10
                and all(condition(pod).get("message") for pod in pods if not pod["spec"].get("nodeName"))
            ),
        )
        assert {*bound(pods)} == {"runs", "alone", *(f"sound-{i}" for i in range(8))}
        messages = {name(pod): condition(pod)["message"] for pod in pods if name(pod) not in bound(pods)}
        assert all(len(text) < 500 for text in messages.values())
        assert all(messages[one].startswith(f"pod default/{one}, ") for one in keys)
        assert all(messages[f"broken-{i}"].startswith("pod default/broken-1, ") for i in range(2))
        told = {one["regarding"]["name"] for one in await events(api, "FailedScheduling")}
        assert told <= {*keys, "broken-0", "broken-1", *(f"sound-{i}" for i in range(8))}
    assert max(map(len, next(tmp_path.iterdir()).read_text().splitlines())) < 10_000
