"""Pods that are resized in place count with what they have or are to have, whichever is more."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace
from tests.kube.api import STRATEGIC, Api
from tests.kube.live import bound, profile, says, until
from tests.kube.objects import Object, make_gang, make_node, make_pod
from tests.kube.running import Kant

from kant.kube.objects import views as k
from kant.kube.translate.resizing import as_counted
from kant.kube.translate.resources import used_of

cpus = st.integers(1, 9)
PODS = "/api/v1/namespaces/default/pods"


@given(
    st.lists(st.tuples(cpus, st.none() | cpus, st.none() | cpus), min_size=1, max_size=3), st.booleans(), st.booleans()
)
def test_a_pod_counts_with_the_most_of_what_it_asks_for_has_and_was_granted(
    given: list[tuple[int, int | None, int | None]], sidecars: bool, refused: bool
) -> None:
    """Of each container by itself; what the node can never have room for does not count."""
    containers = tuple(
        k.Container(k.Resources({"cpu": f"{asked}"}), (), "Always" if sidecars else None, f"c{at}")
        for at, (asked, _, _) in enumerate(given)
    )
    statuses = tuple(
        k.ContainerStatus(
            f"c{at}",
            None if has is None else k.Resources({"cpu": f"{has}000m"}),
            None if granted is None else {"cpu": f"{granted}"},
        )
        for at, (_, has, granted) in reversed([*enumerate(given)])
    )
    spec = k.PodSpec(containers=containers, node_name="n0")
    status = k.PodStatus("Running", (k.Condition("PodResizePending", "True", "Infeasible"),) if refused else ())
    status = replace(status, container_statuses=statuses)
    if sidecars:
        spec = replace(spec, containers=(k.Container(),), init_containers=containers)
        status = replace(status, container_statuses=(), init_container_statuses=statuses)
    found = as_counted(k.Pod(k.Meta("p"), spec, status))
    counted = [
        asked if has is None else max(0 if refused else asked, has, granted or 0) for asked, has, granted in given
    ]
    assert used_of(found.spec).cpu == sum(counted) * 1000
    assert not found.status.container_statuses and not found.status.init_container_statuses


def asks(cpu: str) -> Object:
    return {"spec": {"containers": [{"name": "main", "resources": {"requests": {"cpu": cpu}}}]}}


async def has(api: Api, pod: str, cpu: str) -> None:
    """What its kubelet says."""
    had = {"name": "main", "image": "test", "imageID": "test", "ready": True, "restartCount": 0}
    amounts = {"cpu": cpu, "memory": "1Gi"}
    own = had | {"allocatedResources": amounts, "resources": {"requests": amounts}}
    await api.patch(f"{PODS}/{pod}/status", {"status": {"containerStatuses": [own]}})


async def test_what_is_resized_in_place_is_counted_at_once(api: Api, kant: Kant) -> None:
    """A pod of ours, a gang and a pod of another scheduler grow and shrink; one that waits asks for less."""
    await api.create(make_node("n0", 8, cpu="16"))
    async with kant(profile=profile()):
        await api.create_all([make_pod("ours"), *make_gang("gang", 2), make_pod("theirs", scheduler="other")])
        await api.bind("theirs", "n0")
        await until(api, lambda pods: len(bound(pods)) == 4)
        for pod in ("ours", "gang-0", "theirs"):
            await api.patch(f"{PODS}/{pod}/resize", asks("4"), kind=STRATEGIC)
        await api.create(make_pod("four", cpu="4"))  # 13 of 16 are in use
        await until(api, lambda pods: says(pods, "four", "not enough free capacity"))
        await api.patch(f"{PODS}/four/resize", asks("3"), kind=STRATEGIC)
        await until(api, lambda pods: len(bound(pods)) == 5)
        for pod in ("ours", "gang-0", "theirs"):
            await has(api, pod, "4")
            await api.patch(f"{PODS}/{pod}/resize", asks("1"), kind=STRATEGIC)
        await api.create(make_pod("more", cpu="8"))
        await until(api, lambda pods: says(pods, "more", "not enough free capacity"))
        for pod in ("ours", "gang-0", "theirs"):
            await has(api, pod, "1")
        await until(api, lambda pods: len(bound(pods)) == 6)
