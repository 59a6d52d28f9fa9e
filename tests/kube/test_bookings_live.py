"""A Reservation of GPUs on a real API server: its nodes are free when it begins, and its pods run there."""

from __future__ import annotations

from tests.kube.api import Api
from tests.kube.kubelet import FakeKubelet
from tests.kube.live import bound, ours, profile, says, status, until, where
from tests.kube.objects import make_node, make_pod
from tests.kube.running import Kant
from tests.kube.test_topology_live import at

OWN = {"scheduling.kant.dev/reservation": "course"}
PREEMPTS = "\n[preemption]\nmin_run_s = 0\n"


async def test_its_nodes_are_free_when_it_begins_and_who_collides_says_so(api: Api, kant: Kant) -> None:
    await api.create_all([make_node("n0"), make_node("n1")])
    async with FakeKubelet(api), kant(profile=profile(PREEMPTS)):
        yes = {"scheduling.kant.dev/preemptible": "true"}
        await api.create_all([make_pod(f"guest-{i}", 8, annotations=yes) for i in range(2)])
        await until(api, lambda pods: len(bound(pods)) == 2)
        await api.create(make_pod("own", 4, annotations=OWN))
        await until(api, lambda pods: says(pods, "own", "its reservation course does not exist"))
        await api.apply([ours("Reservation", "course", gpus=5, start=at(3), end=at(3600))])
        found = await status(api, "reservations", "course", lambda s: bool(s.get("nodeNames")))
        (node,) = found["nodeNames"]
        pods = await until(api, lambda pods: where(pods).get("own") == node)
        assert [pod for pod in bound(pods) if pod != "own" and where(pods)[pod] == node] == []
        assert len(bound(pods)) == 2
        await status(api, "reservations", "course", lambda s: s.get("phase") == "Active")
        await api.apply([ours("Reservation", "all", gpus=16, start=at(60), end=at(600))])
        found = await status(api, "reservations", "all", lambda s: s.get("phase") == "Collides")
        said = found["conditions"][0]
        assert said["status"] == "False" and "it collides on cluster with course" in said["message"]
        found = await status(api, "reservations", "course", lambda s: s.get("phase") == "Active")
        assert found["nodeNames"] == [node], "it stays where it is in a state that is built anew"
