"""Victims for what the core does not count, on a real API server: rules among pods, MIG devices, ports and adapters."""

from __future__ import annotations

from tests.kube.api import Api
from tests.kube.audit import Auditor
from tests.kube.kubelet import FakeKubelet
from tests.kube.live import bound, of_queue, profile, queue, says, until, where
from tests.kube.objects import Object, make_pod, make_priority_class
from tests.kube.running import Kant
from tests.kube.test_filters_live import HCA, HOST, PROFILES, ZONE, asks, cut, keeps_from, node

RULED = "[preemption]\npriority = true\nmin_run_s = 0\n"


def low(name: str, gpus: int = 0, app: str = "low", **spec: str) -> Object:
    return make_pod(name, gpus, labels={"app": app}, annotations={"scheduling.kant.dev/preemptible": "true"}, **spec)


def high(name: str, gpus: int = 0, app: str = "high") -> Object:
    return make_pod(name, gpus, labels={"app": app}, priority_class="high")


def spread(pod: Object, key: str) -> Object:
    alike = {"matchLabels": {"app": pod["metadata"]["labels"]["app"]}}
    rule = {"topologyKey": key, "maxSkew": 1, "whenUnsatisfiable": "DoNotSchedule", "labelSelector": alike}
    pod["spec"]["topologySpreadConstraints"] = [rule]
    return pod


def at(pod: Object, name: str) -> Object:
    pod["spec"]["nodeSelector"] = {HOST: name}
    return pod


async def test_who_is_in_the_way_by_a_rule_or_a_device_is_stopped_for_a_pod_of_higher_priority(
    api: Api, kant: Kant
) -> None:
    """Only they, and only where the pod then runs: not for what a pod holds that may not be stopped."""
    nodes = [node("n0", {ZONE: "a"}, rdma__hca="1"), node("n1", {ZONE: "a"}), node("n2", {ZONE: "b"})]
    mig = cut("m0", 81_559, small=2, large=1)
    await api.create_all([make_priority_class("high", 1000), *nodes, mig])
    async with Auditor(api) as auditor, FakeKubelet(api), kant(profile=profile(RULED)) as k:
        first = [at(low("db-0", 1, "db"), "n0"), at(low("db-1", 1, "db"), "n1"), at(low("db-2", 1, "db"), "n2")]
        devices = [asks(low("large"), PROFILES["large"], "1"), asks(low("small"), PROFILES["small"], "1")]
        await api.create_all([*first, *devices, asks(low("card"), HCA, "1")])
        await api.create(make_pod("stays", 1, scheduler="somebody", node="n2", labels={"app": "db"}))
        await until(api, lambda pods: len(bound(pods)) == 7)

        far = make_pod("same", 1, labels={"app": "web"})  # of no higher priority
        far["spec"] |= keeps_from(ZONE, app="db")
        await api.create(far)
        await until(api, lambda pods: says(pods, "same", "that exclude it (podAntiAffinity), such as pod default/"))
        assert k.counts.evicted == 0

        web = high("web", 1)
        web["spec"] |= keeps_from(ZONE, app="db")  # zone a: both of it; zone b has one that nobody may stop
        await api.create(web)
        pods = await until(api, lambda pods: "web" in bound(pods))
        assert where(pods)["web"] in ("n0", "n1")
        assert {"db-2", "stays", "large", "small", "card"} <= {*bound(pods)} and not {"db-0", "db-1"} & {*bound(pods)}
        assert k.counts.evicted == 2

        await api.create(asks(high("cut"), PROFILES["large"], "1"))
        await api.create(asks(high("two"), PROFILES["large"], "2"))
        pods = await until(api, lambda pods: "cut" in bound(pods))
        assert where(pods)["cut"] == "m0" and "small" in bound(pods) and "large" not in bound(pods)

        await api.create(asks(high("rdma"), HCA, "1"))
        pods = await until(api, lambda pods: "rdma" in bound(pods))
        assert "card" not in bound(pods) and k.counts.evicted == 4
        (await auditor.report()).assert_kept()


async def test_a_pod_that_has_to_be_spread_takes_the_place_of_one_like_it(api: Api, kant: Kant) -> None:
    await api.create_all([make_priority_class("high", 1000), *(node(f"n{z}", {ZONE: z}) for z in "ab")])
    await api.create(make_pod("theirs", 8, scheduler="somebody", node="nb"))  # zone b is full for good
    async with FakeKubelet(api), kant(profile=profile(RULED)) as driver:
        await api.create(low("low", 1, "web"))
        await api.create(low("other", 1))
        await until(api, lambda pods: len(bound(pods)) == 3)
        await api.create(spread(high("web", 1, "web"), ZONE))
        pods = await until(api, lambda pods: "web" in bound(pods))
        assert where(pods)["web"] == "na" and "other" in bound(pods) and "low" not in bound(pods)
        assert driver.counts.evicted == 1


async def test_a_lender_takes_back_a_mig_device_from_who_borrows_and_nobody_else_is_stopped(
    api: Api, kant: Kant
) -> None:
    def device(name: str, where: str, profile: str = "large") -> Object:
        notes = {"scheduling.kant.dev/preemptible": "true"}
        return asks(make_pod(name, 0, labels=of_queue(where), annotations=notes), PROFILES[profile], "1")

    await api.create(cut("m0", 81_559, small=1, large=2))
    half = {"nominal": "500m"}
    await api.apply([queue("org", 0), queue("a", 0, quota=half, parent="org"), queue("b", 2, parent="org")])
    text = '[preemption]\nreclaim = "nominal"\nmin_run_s = 0\n'
    async with FakeKubelet(api), kant(profile=profile(text)) as driver:
        await api.create(device("a-0", "a"))
        await until(api, lambda pods: "a-0" in bound(pods))
        await api.create_all([device("a-1", "a"), device("b-0", "b", "small")])
        await until(api, lambda pods: len(bound(pods)) == 3)
        await api.create(device("b-1", "b"))
        await until(api, lambda pods: bound(pods) == ["a-0", "b-0", "b-1"])
        await api.create(device("b-2", "b"))  # who holds the other one does not borrow
        await until(api, lambda pods: says(pods, "b-2", PROFILES["large"]))
        assert driver.counts.evicted == 1
