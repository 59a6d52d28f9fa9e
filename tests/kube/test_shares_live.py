"""Shares of GPUs on a real API server: counted exactly in queues and on nodes, also by the next leader."""

from __future__ import annotations

from collections import Counter

from tests.kube.api import Api
from tests.kube.hami_plugin import LOCK, HamiPlugin
from tests.kube.live import bound, change, deputy_of_kant, name, of_queue, queue, says, status, until, waiting, where
from tests.kube.objects import GPU, Object, make_gang, make_node, make_pod
from tests.kube.running import Kant
from tests.patience import until as holds

REPLICAS, SHARED = "nvidia.com/gpu.replicas", "nvidia.com/gpu.shared"


def shared_node(name: str, gpus: int, replicas: int, resource: str = GPU, **labels: str) -> Object:
    """A node of NVIDIA's device plugin with time-slicing."""
    node = make_node(name, 0, labels={REPLICAS: str(replicas)} | labels)
    node["status"]["capacity"][resource] = str(gpus * replicas)
    return node


def asks(pod: Object, **amounts: int) -> Object:
    """The pod with limits of other resources of NVIDIA's, by their last name: gpumem=4000."""
    resources = pod["spec"]["containers"][0].setdefault("resources", {})
    for words in (resources.setdefault("requests", {}), resources.setdefault("limits", {})):
        words.update({f"nvidia.com/{name.replace('__', SIGNS.get(name, '.'))}": str(n) for name, n in amounts.items()})
    return pod


SIGNS = {"gpumem__percentage": "-"}


async def gone(api: Api, pod: str) -> None:
    await api.delete(f"/api/v1/namespaces/default/pods/{pod}", grace_s=0)


async def test_a_replica_of_a_gpu_counts_as_its_part_in_queues_and_on_nodes(api: Api, kant: Kant) -> None:
    await api.create_all([shared_node("n0", 2, 4), shared_node("n1", 1, 4, SHARED), make_node("n2", 1)])
    select = {"nodeSelector": {REPLICAS: "4"}}
    own = [make_pod(f"t{n}", 1, labels=of_queue("team"), **select) for n in range(3)]
    own += [asks(make_pod(f"s{n}", 0, labels=of_queue("team")), gpu__shared=1) for n in range(2)]
    async with kant():
        await api.apply([queue("team", 1), queue("default", 100)])
        await api.create_all(own)
        pods = await until(api, lambda pods: len(bound(pods)) == 4)  # four replicas are one GPU
        (left,) = {name(pod) for pod in own} - where(pods).keys()
        await until(api, lambda pods: says(pods, left, "quota"))
        found = await status(api, "queues", "team", lambda one: one.get("running") == 4)
        assert [use["amount"] for use in found["used"] if use["resource"] == "gpu"] == ["1"]
    async with kant():  # it knows of what is on the pods
        await api.create(make_pod("whole", 1))
        pods = await until(api, lambda pods: "whole" in bound(pods))
        assert where(pods)["whole"] == "n2" and left not in where(pods)
        await change(api, "queues", "team", quotas=[{"resource": "gpu", "nominal": 8}])
        await until(api, lambda pods: left in bound(pods))
        await api.create_all([make_pod(f"m{n}", 1, **select) for n in range(8)])
        pods = await until(api, lambda pods: Counter(where(pods).values())["n0"] == 8)
        late = sorted(waiting(pods))
        await until(api, lambda pods: all(says(pods, one, "0 of 1 pods fit now") for one in late))
        await gone(api, "t0")
        await until(api, lambda pods: len(waiting(pods)) == len(late) - 1)


def vendor_node(name: str, resource: str, gpus: int) -> Object:
    """A node whose device plugin gives out GPUs by this name."""
    node = make_node(name, 0)
    node["status"]["capacity"][resource] = str(gpus)
    return node


def vendor_pod(name: str, resource: str) -> Object:
    pod = make_pod(name, 0)
    pod["spec"]["containers"][0]["resources"]["limits"] = {resource: "1"}
    return pod


async def test_gpus_of_one_vendor_are_never_given_to_pods_that_ask_for_another(api: Api, kant: Kant) -> None:
    """Not where models are unknown either, nor where those asked for are all taken, or not there."""
    amd, gaudi = "amd.com/gpu", "habana.ai/gaudi"
    await api.create_all([vendor_node("n0", GPU, 4), vendor_node("a0", amd, 2), make_node("cpu", 0)])
    async with kant():
        await api.create_all([vendor_pod(f"a{n}", amd) for n in range(3)] + [vendor_pod("g", gaudi)])
        await api.create_all([vendor_pod(f"n{n}", GPU) for n in range(3)])
        pods = await until(api, lambda pods: len(bound(pods)) == 5 and says(pods, "g", f"no node has {gaudi}"))
        assert all(node == {"a": "a0", "n": "n0"}[pod[0]] for pod, node in where(pods).items())
        (left,) = {"a0", "a1", "a2"} - where(pods).keys()
        await until(api, lambda pods: says(pods, left, "0 of 1 pods fit now"))
        await api.create_all([shared_node("n1", 1, 4, SHARED), vendor_node("a1", amd, 1)])
        pods = await until(api, lambda pods: left in bound(pods))
        assert where(pods)[left] == "a1"


MIB, CARDS = 24_576, 2


def hami_node(name: str) -> Object:
    """A node whose two cards HAMi has registered, each for ten pods."""
    node = make_node(name, 10 * CARDS)
    cards = (f"GPU-{name}-{n},10,{MIB},100,NVIDIA-A10,0,true,{n},hami-core:" for n in range(CARDS))
    node["metadata"]["annotations"] = {"hami.io/node-nvidia-register": "".join(cards)}
    return node


def given_out(pods: list[Object]) -> dict[str, int]:
    """MiB of each card that pods have, as stands on them."""
    found: dict[str, int] = {}
    for pod in pods:
        for entry in pod["metadata"].get("annotations", {}).get("hami.io/vgpu-devices-allocated", "").split(":"):
            uuid, _, memory, _ = (*entry.strip(";").split(","), "", "", "0", "0")[:4]
            if uuid:
                found[uuid] = found.get(uuid, 0) + int(memory)
    return found


async def test_parts_of_gpus_are_given_out_by_hami_and_counted_exactly(api: Api, kant: Kant) -> None:
    def half(name: str, queue: str = "team") -> Object:
        return asks(make_pod(name, 1, labels=of_queue(queue)), gpumem=MIB // 2)

    await api.create_all([hami_node("n0"), make_node("n1", 1)])
    async with HamiPlugin(api) as plugin:
        async with kant():
            await api.apply([queue("team", 1), queue("free", 100)])
            await api.create_all([half(f"h{n}") for n in range(3)])
            pods = await until(api, lambda pods: len(bound(pods)) == 2)
            assert set(where(pods).values()) == {"n0"} and set(given_out(pods).values()) == {MIB}  # one card
            (left,) = {"h0", "h1", "h2"} - where(pods).keys()
            await until(api, lambda pods: says(pods, left, "quota"))
            found = await status(api, "queues", "team", lambda one: one.get("running") == 2)
            assert [use["amount"] for use in found["used"] if use["resource"] == "gpu"] == ["1"]
            await change(api, "queues", "team", quotas=[{"resource": "gpu", "nominal": 2}])
            await until(api, lambda pods: left in bound(pods))
        async with kant():  # a new leader, which reads the pods
            whole = [make_pod(f"w{n}", 1, labels=of_queue("free")) for n in range(2)]
            await api.create_all([*whole, half("h3", "free")])
            pods = await until(api, lambda pods: "h3" in bound(pods) and len(bound(pods)) == 5)
            assert where(pods)["h3"] == "n0" and sorted(given_out(pods).values()) == [MIB, MIB]
            (late,) = {"w0", "w1"} - where(pods).keys()
            await holds(lambda: {"h0", "h1", "h2", "h3"} == {*plugin.given})
            await gone(api, "h3")
            await gone(api, left)
            pods = await until(api, lambda pods: late in bound(pods))
            assert where(pods)[late] == "n0" and sorted(given_out(pods).values()) == [MIB, MIB]
            await holds(lambda: late in plugin.given)
        assert not plugin.mistaken
        assert LOCK not in (await api.get("/api/v1/nodes/n0"))["metadata"]["annotations"]


async def test_a_gang_on_one_node_of_hami_gets_its_devices_one_pod_after_the_other(api: Api, kant: Kant) -> None:
    await api.create_all([hami_node("n0"), hami_node("n1")])
    async with HamiPlugin(api, takes_s=0.2) as plugin, kant(recovery=60.0) as driver:
        gang = make_gang("g", 8, 1)
        await api.create_all([asks(pod, gpumem__percentage=50, gpucores=40) for pod in gang])
        pods = await until(api, lambda pods: len(bound(pods)) == 8)
        await holds(lambda: len(plugin.given) == 8)
        assert not plugin.mistaken and driver.counts.released == 0
        assert Counter(where(pods).values()) == {"n0": 4, "n1": 4}
        assert sorted(given_out(pods).values()) == [MIB] * 4


async def test_without_the_right_to_lock_nodes_the_pod_is_told(api: Api, kant: Kant) -> None:
    await deputy_of_kant(api)
    await api.create(hami_node("n0"))
    async with kant(user="deputy"):
        await api.create_all([asks(make_pod("part", 1), gpumem=1000), make_pod("none", 0)])
        await until(api, lambda pods: "none" in bound(pods) and says(pods, "part", "node n0 cannot be locked"))
