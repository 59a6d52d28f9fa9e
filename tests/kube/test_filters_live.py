"""What the core does not count, on a real API server: no node is overcommitted, and nobody waits without the reason."""

from __future__ import annotations

from collections import Counter

from tests.kube.api import Api
from tests.kube.audit import Auditor
from tests.kube.kubelet import FakeKubelet
from tests.kube.live import bound, of_queue, profile, queue, says, status, until, where
from tests.kube.objects import Object, make_gang, make_node, make_pod, make_priority_class
from tests.kube.running import Kant

HCA, SCRATCH, HOST, ZONE = "rdma/hca", "ephemeral-storage", "kubernetes.io/hostname", "topology.kubernetes.io/zone"


def node(name: str, labels: dict[str, str] | None = None, **more: str) -> Object:
    """A node with more to give; `rdma__hca` stands for rdma/hca, `ephemeral_storage` for ephemeral-storage."""
    made = make_node(name, labels=labels)
    for key, amount in more.items():
        made["status"]["capacity"][key.replace("__", "/").replace("_", "-")] = amount
    return made


def asks(pod: Object, resource: str, amount: str) -> Object:
    resources = pod["spec"]["containers"][0].setdefault("resources", {})
    resources.setdefault("requests", {})[resource] = amount
    resources.setdefault("limits", {})[resource] = amount
    return pod


def keeps_from(key: str, **labels: str) -> Object:
    """Required anti-affinity to pods with these labels, in one domain of a label."""
    term = {"labelSelector": {"matchLabels": labels}, "topologyKey": key}
    return {"affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}}


async def gone(api: Api, pod: str) -> None:
    await api.delete(f"/api/v1/namespaces/default/pods/{pod}", grace_s=0)


async def test_devices_and_storage_that_the_core_does_not_count_are_never_overcommitted(api: Api, kant: Kant) -> None:
    await api.create_all([node(f"n{number}", rdma__hca="2", ephemeral_storage="10Gi") for number in range(2)])
    await api.create(asks(make_pod("theirs", 0, scheduler="somebody", node="n0"), HCA, "1"))
    async with kant():
        await api.create_all([asks(make_pod(f"h{number}", 0), HCA, "1") for number in range(4)])
        pods = await until(api, lambda pods: len(bound(pods)) == 4)
        found = where(pods)
        assert sorted(found.values()) == ["n0", "n0", "n1", "n1"]
        (left,) = {f"h{number}" for number in range(4)} - found.keys()
        await until(api, lambda pods: says(pods, left, f"no suitable node has 1 of {HCA} left"))
        await gone(api, "theirs")
        pods = await until(api, lambda pods: left in bound(pods))
        assert where(pods)[left] == "n0"
        await api.create_all([asks(make_pod(f"s{number}", 0), SCRATCH, "6Gi") for number in range(3)])
        pods = await until(api, lambda pods: sum(name.startswith("s") for name in bound(pods)) == 2)
        found = where(pods)
        assert {found.get(f"s{number}", "") for number in range(3)} == {"n0", "n1", ""}
        (left,) = {f"s{number}" for number in range(3)} - found.keys()
        await until(api, lambda pods: says(pods, left, f"no suitable node has 6144 MiB of {SCRATCH} left"))


def cut(name: str, memory: int, **devices: int) -> Object:
    """A node whose GPUs of so many MiB are cut into MIG devices, by their profiles: small=4."""
    made = make_node(name, 0, labels={"nvidia.com/gpu.memory": str(memory)})
    made["status"]["capacity"] |= {PROFILES[profile]: str(number) for profile, number in devices.items()}
    return made


PROFILES = {"small": "nvidia.com/mig-1g.10gb", "large": "nvidia.com/mig-3g.40gb", "shared": "nvidia.com/gpu.shared"}


async def test_mig_devices_are_counted_by_node_and_as_their_part_of_a_gpu_in_quotas(api: Api, kant: Kant) -> None:
    """1g.10gb is an eighth of a GPU of 80 GB, a quarter of one of 40 GB, and 3g.40gb a half."""

    def device(name: str, profile: str, queue: str, node: str = "", gpus: int = 0) -> Object:
        spec = {"nodeSelector": {HOST: node}} if node else {}
        return asks(make_pod(name, gpus, labels=of_queue(queue), **spec), PROFILES[profile], "1")

    async def used(api: Api, queue: str, running: int) -> str:
        found = await status(api, "queues", queue, lambda one: one.get("running") == running)
        (amount,) = [str(use["amount"]) for use in found["used"] if use["resource"] == "gpu"]
        return amount

    await api.create_all([cut("n0", 81_559, small=4, large=2, shared=1), cut("n1", 40_960, small=2)])
    async with kant():
        await api.apply([queue("team", 1), queue("other", quota={"nominal": "750m"}, gpus=0), queue("free", 8)])
        await api.create_all([device(f"s{n}", "small", "team", "n0") for n in range(4)])
        await api.create(device("l0", "large", "team"))
        await until(api, lambda pods: len(bound(pods)) == 5)
        await api.create(device("l1", "large", "team"))
        await api.create_all([device(f"o{n}", "small", "other") for n in range(3)])
        pods = await until(api, lambda pods: len(bound(pods)) == 7 and says(pods, "l1", "quota"))
        assert await used(api, "team", 5) == "1" and await used(api, "other", 2) == "500m"
        (late,) = {"o0", "o1", "o2"} - where(pods).keys()
        await until(api, lambda pods: says(pods, late, f"no suitable node has 1 of {PROFILES['small']} left"))
        await api.create_all([device("both", "small", "team", gpus=1), device("part", "shared", "team")])
        await until(api, lambda pods: says(pods, "both", "either MIG devices or whole GPUs in queue team, whose quota"))
        await until(api, lambda pods: says(pods, "part", "whole GPUs in queue team, whose quota does not count"))
    async with kant():  # a new leader, which reads the pods
        await until(api, lambda pods: says(pods, "l1", "quota"))
        assert await used(api, "team", 5) == "1"
        await api.create(device("f", "large", "free"))
        await until(api, lambda pods: "f" in bound(pods))
        await gone(api, "l0")
        await gone(api, "s0")
        pods = await until(api, lambda pods: {"l1", late} <= {*bound(pods)})
        assert where(pods)[late] == where(pods)["l1"] == "n0"


async def test_a_gang_goes_to_as_many_nodes_as_its_mig_devices_need(api: Api, kant: Kant) -> None:
    """Six to two nodes of four each; and the next one, which finds two left, waits whole, and says for what."""
    await api.create_all([cut(f"n{number}", 81_559, small=4) for number in range(2)])
    async with kant():
        await api.create_all([asks(pod, PROFILES["small"], "1") for pod in make_gang("g", 6, 0)])
        pods = await until(api, lambda pods: len(bound(pods)) == 6)
        assert max(Counter(where(pods).values()).values()) <= 4
        await api.create_all([asks(pod, PROFILES["small"], "1") for pod in make_gang("h", 3, 0)])
        await until(api, lambda pods: says(pods, "h-0", PROFILES["small"]))
        for number in range(6):  # while some are there, the places of the others are kept for them
            await gone(api, f"g-{number}")
        await until(api, lambda pods: {"h-0", "h-1", "h-2"} <= {*bound(pods)})


async def test_pods_of_a_gang_that_only_mig_devices_tell_apart_start_together_each_where_its_own_is(
    api: Api, kant: Kant
) -> None:
    """In queues with a quota and without; beside whole GPUs too."""

    def gang(name: str, where: str, *profiles: str) -> list[Object]:
        pods = zip(make_gang(name, len(profiles), 0), profiles, strict=True)
        made = [asks(pod, PROFILES.get(profile, profile), "1") for pod, profile in pods]
        for pod in made:
            pod["metadata"].setdefault("labels", {}).update(of_queue(where))
        return made

    async def uses(api: Api, amount: str) -> None:
        part = {"resource": "gpu", "model": "", "amount": amount}
        await status(api, "queues", "team", lambda one: one.get("running") == 1 and part in one["used"])

    nodes = [cut("n0", 81_559, small=1), cut("n1", 81_559, large=2), cut("n2", 40_960, small=1)]
    await api.create_all([*nodes, make_node("gpu", 1)])
    async with Auditor(api) as auditor:
        async with kant():
            await api.create_all(gang("h", "team", "large", "large", "small"))
            pods = await until(api, lambda pods: len(bound(pods)) == 3)
            assert (where(pods)["h-0"], where(pods)["h-1"]) == ("n1", "n1")
            await api.create_all(gang("g", "team", "small", "large", "small", "nvidia.com/gpu"))
            await until(api, lambda pods: all(says(pods, f"g-{n}", "nvidia.com/mig-") for n in range(3)))
            assert len(bound(await api.list("pods"))) == 3
            await api.apply([queue("team", 2)])
            for name in ("h-0", "h-1", "h-2"):
                await gone(api, name)
            pods = await until(api, lambda pods: len(bound(pods)) == 4)
            found = where(pods)
            assert (found["g-1"], found["g-3"]) == ("n1", "gpu") and {found["g-0"], found["g-2"]} == {"n0", "n2"}
            await uses(api, "2")  # a small one may come to be a quarter
        async with kant():  # a new leader, which reads what runs
            await uses(api, "1875m")
            await api.create_all(gang("over", "team", "small", "large"))
            await until(api, lambda pods: says(pods, "over-0", "queue team"))
        (await auditor.report()).assert_kept()


async def test_the_rest_of_a_gang_that_is_bound_in_part_follows_with_mig_devices_and_without_gpus(
    api: Api, kant: Kant
) -> None:
    await api.create_all([cut("n0", 81_559, small=1), cut("n1", 81_559, large=1)])
    first, second, third = make_gang("g", 3, 0)
    first["spec"]["nodeName"] = "n0"  # somebody before us came so far
    await api.create_all([asks(first, PROFILES["small"], "1"), asks(second, PROFILES["large"], "1"), third])
    async with kant() as driver:
        pods = await until(api, lambda pods: len(bound(pods)) == 3)
        assert where(pods)["g-1"] == "n1" and driver.counts.evicted == 0


async def test_pods_of_a_gang_that_need_the_only_adapter_of_a_node_get_a_node_each(api: Api, kant: Kant) -> None:
    await api.create_all([node(f"n{number}", rdma__hca="1") for number in range(2)])
    async with Auditor(api) as auditor, kant():
        await api.create_all([asks(pod, HCA, "1") for pod in make_gang("g", 2, 1)])
        pods = await until(api, lambda pods: len(bound(pods)) == 2)
        assert set(where(pods).values()) == {"n0", "n1"}
        (await auditor.report()).assert_kept(all_bound=True)


async def test_nobody_is_evicted_for_a_pod_that_could_not_start_even_then(api: Api, kant: Kant) -> None:
    await api.create_all([make_priority_class("high", 1000), node("n0", rdma__hca="1")])
    await api.create(asks(make_pod("theirs", 0, scheduler="somebody", node="n0"), HCA, "1"))
    ruled = profile("[preemption]\npriority = true\nmin_run_s = 0\n")
    async with FakeKubelet(api), kant(profile=ruled) as driver:
        await api.create(make_pod("low", 8, annotations={"scheduling.kant.dev/preemptible": "true"}))
        await until(api, lambda pods: "low" in bound(pods))
        await api.create(asks(make_pod("high", 8, priority_class="high"), HCA, "1"))
        await until(api, lambda pods: says(pods, "high", f"no suitable node has 1 of {HCA} left"))
        assert driver.counts.evicted == 0 and "low" in bound(await api.list("pods"))
        await gone(api, "theirs")
        await until(api, lambda pods: "high" in bound(pods))
        assert driver.counts.evicted == 1


async def test_pods_that_must_not_run_beside_each_other_do_not(api: Api, kant: Kant) -> None:
    zones = ("a", "a", "b")
    await api.create_all([node(f"n{number}", {ZONE: zone}) for number, zone in enumerate(zones)])
    await api.create(make_pod("db", 1, scheduler="somebody", node="n0", labels={"app": "db"}))
    lone = make_pod("lone", 1, scheduler="somebody", node="n1", labels={"app": "lone"})
    lone["spec"] |= keeps_from(HOST, app="web")
    await api.create(lone)
    async with kant():
        web = [make_pod(f"web-{number}", 1, labels={"app": "web"}) for number in range(2)]
        for pod in web:
            pod["spec"] |= keeps_from(ZONE, app="db")  # not in zone a; and n1 does not want them either
        quiet = make_pod("quiet", 1, labels={"app": "web"})  # says nothing itself
        quiet["spec"]["nodeSelector"] = {ZONE: "a"}
        await api.create_all([*web, quiet])
        pods = await until(api, lambda pods: {"web-0", "web-1", "quiet"} <= {*bound(pods)})
        found = where(pods)
        assert (found["web-0"], found["web-1"], found["quiet"]) == ("n2", "n2", "n0")
        more = make_pod("more", 1, labels={"app": "web"})
        more["spec"] |= keeps_from(ZONE, app="web") | {"nodeSelector": {ZONE: "b"}}
        await api.create(more)
        await until(api, lambda pods: says(pods, "more", "that exclude it (podAntiAffinity), such as pod default/web-"))
        for name in ("web-0", "web-1"):
            await gone(api, name)
        pods = await until(api, lambda pods: "more" in bound(pods))
        assert where(pods)["more"] == "n2"


async def test_a_port_of_a_host_is_taken_once(api: Api, kant: Kant) -> None:
    await api.create_all([node(f"n{number}") for number in range(3)])

    def serving(name: str, port: int, **more: str) -> Object:
        pod = make_pod(name, 0, **more)
        pod["spec"]["containers"][0]["ports"] = [{"containerPort": port, "hostPort": port}]
        return pod

    await api.create(serving("theirs", 8080, scheduler="somebody", node="n0"))
    async with kant():
        await api.create_all([serving(f"p{number}", 8080) for number in range(3)])
        await api.create(serving("other", 9090))
        pods = await until(api, lambda pods: len(bound(pods)) == 4)
        found = where(pods)
        assert sorted(found[name] for name in found if name.startswith("p")) == ["n1", "n2"]
        (left,) = {"p0", "p1", "p2"} - found.keys()
        await gone(api, "theirs")
        pods = await until(api, lambda pods: left in bound(pods))
        assert where(pods)[left] == "n0"
        image = {"monitors": ["192.0.2.1"], "image": "data"}  # a disk that the pod names itself is likewise
        disks = [image | {"readOnly": reads} for reads in (False, True)]
        pods = [
            make_pod(f"{name}-{number}", 0, volumes=[{"name": "d", "rbd": disk}], nodeSelector={HOST: "n0"})
            for name, disk in zip(("writes", "reads"), disks, strict=True)
            for number in range(2)
        ]
        await api.create_all(pods)
        other = make_pod("writes-too", 0, volumes=[{"name": "d", "rbd": image}], nodeSelector={HOST: "n0"})
        other["spec"]["containers"][0]["ports"] = [{"containerPort": 7070, "hostPort": 7070}]
        pods = await until(api, lambda pods: len(bound(pods)) == 7)
        assert len({"writes-0", "writes-1"} & {*bound(pods)}) == 1 and "reads-1" in bound(pods)
        await api.create(other)
        await until(api, lambda pods: says(pods, "writes-too", "disk rbd/data is in use on the suitable nodes"))


async def test_replicas_are_spread_over_zones_and_a_pod_comes_beside_those_that_it_needs(api: Api, kant: Kant) -> None:
    web = {"labels": {"app": "web"}}
    spread = {"topologyKey": ZONE, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule",
              "labelSelector": {"matchLabels": {"app": "web"}}}  # fmt: skip
    term = {"labelSelector": {"matchLabels": {"app": "cache"}}, "topologyKey": ZONE}
    near = {"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}}
    await api.create_all([make_node(f"n{zone}", labels={ZONE: zone}) for zone in "ab"])
    async with kant():
        pods = [make_pod(f"web-{i}", 1, topologySpreadConstraints=[spread], **web) for i in range(4)]
        await api.create_all([*pods, make_pod("user", 1, affinity=near)])
        seen = await until(api, lambda pods: len(bound(pods)) == 4 and says(pods, "user", "podAffinity"))
        assert sorted(where(seen).values()) == ["na", "na", "nb", "nb"]
        await api.create(make_pod("cache", 1, scheduler="somebody", node="nb", labels={"app": "cache"}))
        seen = await until(api, lambda pods: "user" in bound(pods))
        assert where(seen)["user"] == "nb"
        await api.create(make_pod("full", 5, scheduler="somebody", node="na"))
        more = [make_pod(f"more-{i}", 1, topologySpreadConstraints=[spread], **web) for i in range(4)]
        await api.create_all(more)
        seen = await until(api, lambda pods: sum(name.startswith("more") for name in bound(pods)) == 3)
        (left,) = {f"more-{i}" for i in range(4)} - set(where(seen))  # zone a is full, and b would have two more
        await until(api, lambda pods: says(pods, left, "0 of 1 pods fit now"))
