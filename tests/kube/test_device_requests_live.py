"""What claims may ask for, on a real API server: alternatives, constraints, partitions, taints, all devices."""

from __future__ import annotations

from tests.kube import device_objects as d
from tests.kube.api import Api
from tests.kube.live import bound, of_queue, queue, says, until, where
from tests.kube.objects import Object
from tests.kube.running import Kant

NIC, LINK = "nic.example.com", "example.com/root"


def takes(gpu: int, memory: str) -> Object:
    """Memory of a GPU that a device needs."""
    return {"consumesCounters": [{"counterSet": f"gpu-{gpu}", "counters": {"memory": {"value": memory}}}]}


def partitions(count: int) -> list[Object]:
    """GPUs of 40 Gi, each whole or as parts of 10 Gi."""
    whole = [d.device(f"gpu-{at}", {"memory": "40Gi"}, type="gpu", more=takes(at, "40Gi")) for at in range(count)]
    parts = [
        d.device(f"gpu-{at}-part-{part}", {"memory": "10Gi"}, type="mig", more=takes(at, "10Gi"))
        for at in range(count)
        for part in range(4)
    ]
    return [*whole, *parts]


def is_type(kind: str) -> str:
    return f'device.attributes["{d.DRIVER}"].type == "{kind}"'


async def test_whole_gpus_and_their_parts_never_take_more_than_there_is(api: Api, kant: Kant) -> None:
    sets = [{"name": f"gpu-{at}", "counters": {"memory": {"value": "40Gi"}}} for at in range(2)]
    await api.create_all([d.bare_node("n0"), d.device_class()])
    await api.create(d.device_slice("n0", partitions(2), slices=2))
    await api.create(d.device_slice("n0", slices=2, name="counters", sharedCounters=sets))
    whole, part = d.request("gpu", d.DRIVER, 1, is_type("gpu")), d.request("part", d.DRIVER, 1, is_type("mig"))
    small = f'device.capacity["{d.DRIVER}"].memory.compareTo(quantity("20Gi")) < 0'
    await api.create_all([d.claim(f"p{at}", part) for at in range(4)])
    await api.create_all([d.claim("whole", whole), d.claim("more", d.request("part", d.DRIVER, 1, small))])
    await api.create(d.claim("either", d.first_of("r", whole, part)))
    async with kant():
        await api.create_all([d.claiming_pod(f"p{at}", f"p{at}") for at in range(4)])
        await until(api, lambda pods: len(bound(pods)) == 4)
        await api.create(d.claiming_pod("whole", "whole"))
        await until(api, lambda pods: len(bound(pods)) == 5)
        await api.create_all([d.claiming_pod(name, name) for name in ("more", "either")])
        await until(
            api,
            lambda pods: (
                says(pods, "more", "are in use on the suitable nodes")
                and says(pods, "either", "are in use on the suitable nodes")
            ),
        )
        found = await d.allocated(api)
        assert found.pop("whole") == [("n0", "gpu-1")]
        assert sorted(found.values()) == [[("n0", f"gpu-0-part-{part}")] for part in range(4)]
        await api.delete("/api/v1/namespaces/default/pods/whole", grace_s=0)
        await until(api, lambda pods: "either" in bound(pods))  # whole, or as a part beside the other
        found = await d.allocated(api)
        results = (await api.get(f"{d.CLAIMS}/either"))["status"]["allocation"]["devices"]["results"]
        used = {name for own in found.values() for _, name in own if name.startswith("gpu-1")}
        assert results[0]["request"] in ("r/gpu", "r/part") and ("gpu-1" not in used or used == {"gpu-1"})


async def test_claims_share_a_device_by_its_capacity_and_count_in_quotas(api: Api, kant: Kant) -> None:
    policy = {"default": "10Gi", "validRange": {"min": "10Gi", "step": "10Gi"}}
    card: Object = {"name": "gpu-0", "allowMultipleAllocations": True}
    card["capacity"] = {"memory": {"value": "80Gi", "requestPolicy": policy}}
    await api.create_all(
        [d.bare_node("n0"), d.device_class(), d.device_slice("n0", [card]), queue("team", 1), queue("open", 8)]
    )
    asks = {"a": "35Gi", "b": "40Gi", "c": "", "d": "50Gi", "e": "1Gi"}
    for name, memory in asks.items():
        capacity = {"capacity": {"requests": {"memory": memory}}} if memory else {}
        await api.create(d.claim(name, d.request("r", d.DRIVER, 1, **capacity)))
    async with kant():
        for name in "ab":
            await api.create(d.claiming_pod(name, name, labels=of_queue("team")))
        await until(api, lambda pods: bound(pods) == ["a", "b"])
        await api.create(d.claiming_pod("c", "c", labels=of_queue("team")))
        await until(api, lambda pods: says(pods, "c", "it asks for 0.125 GPUs, and queue team has 0 GPUs left"))
        found = [(await api.get(f"{d.CLAIMS}/{name}"))["status"]["allocation"]["devices"]["results"] for name in "ab"]
        (first,), (second,) = found
        assert {first["device"], second["device"]} == {"gpu-0"} and first["shareID"] != second["shareID"]
        assert [one["consumedCapacity"] for one in (first, second)] == [{"memory": "40Gi"}] * 2
        await api.create_all([d.claiming_pod(name, name, labels=of_queue("open")) for name in "de"])
        full = "are in use on the suitable nodes"
        await until(api, lambda pods: says(pods, "d", full) and says(pods, "e", full))
        await api.delete("/api/v1/namespaces/default/pods/a", grace_s=0)
        await until(api, lambda pods: "c" in bound(pods) and "e" in bound(pods))  # 40, 10 and 10 of 80 Gi
        assert says(await api.list("pods"), "d", full)


async def test_constraints_taints_alternatives_and_all_devices_of_a_node(api: Api, kant: Kant) -> None:
    await api.create_all([*(d.bare_node(f"n{at}") for at in range(2)), d.device_class(), d.device_class(NIC)])
    bad = {"taints": [{"key": "example.com/ill", "effect": "NoSchedule"}]}
    for at in range(2):
        near = [d.device(f"gpu-{i}", type="gpu", **{LINK: f"r{i // 2}"}) for i in range(4)]
        await api.create(d.device_slice(f"n{at}", [*near, d.device("ill", type="gpu", more=bad)]))
        nics = [d.device(f"nic-{i}", **{LINK: f"r{i + at}"}) for i in range(2)]
        await api.create(d.device_slice(f"n{at}", nics, driver=NIC))
    pair = d.claim("pair", d.request("gpu", count=2), d.request("nic", NIC), constraints=[{"matchAttribute": LINK}])
    everything = d.claim("everything", d.request("nic", NIC, 0))
    asks = d.request("gpu", d.DRIVER, 1, 'device.attributes["none.com"].x == 1'), d.request("nic", NIC, 2)
    other = d.claim("other", d.first_of("any", *(one | {"name": name} for one, name in zip(asks, "ab", strict=True))))
    ill = d.claim("ill", d.request("gpu", count=1, tolerations=[{"operator": "Exists"}]))
    apart = d.claim("apart", d.request("gpu", count=2), constraints=[{"distinctAttribute": LINK}])
    await api.create_all([pair, everything, other, ill, apart])
    async with kant():
        for at in range(4):  # leave the devices of n1 that the pair can have together
            await api.create(d.claim(f"one-{at}", d.request("gpu", count=1)))
            one = d.claiming_pod(f"one-{at}", f"one-{at}", nodeSelector={"kubernetes.io/hostname": "n0"})
            await api.create(one)
        await until(api, lambda pods: len(bound(pods)) == 4)
        await api.create(d.claiming_pod("pair", "pair"))
        await until(api, lambda pods: "pair" in bound(pods))
        assert (await d.allocated(api, "pair"))["pair"] == [("n1", "gpu-2"), ("n1", "gpu-3"), ("n1", "nic-0")]
        await api.create(d.claiming_pod("everything", "everything"))
        pods = await until(api, lambda pods: "everything" in bound(pods))
        assert where(pods)["everything"] == "n0"
        assert (await d.allocated(api, "everything"))["everything"] == [("n0", "nic-0"), ("n0", "nic-1")]
        await api.create_all([d.claiming_pod(name, name) for name in ("other", "ill", "apart")])
        pods = await until(
            api,
            lambda pods: (
                "ill" in bound(pods)
                and says(pods, "apart", "0 of 1 pods fit now")
                and says(pods, "other", "claims ask for (other) are in use")
            ),
        )
        assert (await d.allocated(api, "ill"))["ill"] in [[(node, "ill")] for node in ("n0", "n1")] + [
            [("n1", f"gpu-{at}")] for at in range(2)
        ]
        await api.delete("/api/v1/namespaces/default/pods/everything", grace_s=0)
        await d.freed(api, "everything")
        await until(api, lambda pods: "other" in bound(pods))
        results = (await api.get(f"{d.CLAIMS}/other"))["status"]["allocation"]["devices"]["results"]
        assert {one["request"] for one in results} == {"any/b"} and len(results) == 2


async def test_nobody_waits_for_selectors_of_others(api: Api, kant: Kant) -> None:
    await api.create_all([d.bare_node("n0"), d.device_class(), d.device_slice("n0", d.gpus(4))])
    broken = d.claim("broken", d.request("gpu", d.DRIVER, 1, 'url("https://x/").getHost() == "x"'))
    await api.create_all([broken, d.claim("good"), d.claim("slow")])
    async with kant() as driver:
        selectors = driver.translation.devices.requests.selectors
        selectors._spent["default"] = 1e9, selectors.clock()  # as if its expressions had taken an age
        await api.create_all([d.claiming_pod(name, name) for name in ("broken", "good")])
        await until(
            api,
            lambda pods: (
                bound(pods) == ["good"]
                and (says(pods, "broken", "cannot be read") or says(pods, "broken", "have used up their time"))
            ),
        )
        selectors._spent.clear()
        await until(api, lambda pods: says(pods, "broken", "cannot be read"))
