"""What others demand of gangs and nodes, on a real API server: tasks of Volcano and YuniKorn, node pools of KAI."""

from __future__ import annotations

import pytest
from tests.kube.api import Api
from tests.kube.audit import Auditor
from tests.kube.live import bound, install_kind, kind, says, until, where
from tests.kube.objects import Object, make_gang, make_node, make_pod
from tests.kube.running import Kant

VOLCANO, POOL = "scheduling.volcano.sh", "kai.scheduler/node-pool"


YUNIKORN = "yunikorn.apache.org"
TASKS = '[{"name": "ps", "minMember": 1}, {"name": "worker", "minMember": 2}]'


def task(name: str, of: str, gpus: int, convention: str) -> Object:
    """A pod of a task of gang g."""
    said = {
        "Volcano": {"scheduling.k8s.io/group-name": "g", "volcano.sh/task-spec": of},
        "YuniKorn": {
            f"{YUNIKORN}/app-id": "g", f"{YUNIKORN}/task-group-name": of, f"{YUNIKORN}/task-groups": TASKS,
        },
    }[convention]  # fmt: skip
    (pod,) = make_gang(name, 1, gpus, convention="none", least=1, annotations=said)
    pod["metadata"]["name"] = name
    return pod


@pytest.mark.parametrize("convention", ["Volcano", "YuniKorn"])
async def test_a_gang_starts_with_enough_of_each_task(api: Api, kant: Kant, convention: str) -> None:
    await install_kind(api, kind(VOLCANO, "v1beta1", "PodGroup", "podgroups"))
    await api.create(make_node("n0"))
    group = {
        "apiVersion": f"{VOLCANO}/v1beta1", "kind": "PodGroup", "metadata": {"name": "g", "namespace": "default"},
        "spec": {"minMember": 3, "minTaskMember": {"ps": 1, "worker": 2}},
    }  # fmt: skip
    if convention == "Volcano":
        await api.create(group)
    async with kant():
        await api.create_all([task(f"a-{number}", "worker", 2, convention) for number in range(4)])
        words = "its gang lacks pods: ps has 0 of 1"
        pods = await until(api, lambda pods: says(pods, "a-0", words))
        assert not bound(pods)
        await api.create(task("z", "ps", 3, convention))  # not everybody may run, but this one has to
        pods = await until(api, lambda pods: len(bound(pods)) == 3)
        assert bound(pods) == ["a-0", "a-1", "z"]
    if convention == "Volcano":
        await api.delete(f"/apis/{VOLCANO}/v1beta1/namespaces/default/podgroups/g")


async def test_a_pod_stays_in_its_node_pool_of_kai(api: Api, kant: Kant) -> None:
    await api.create_all([make_node("n0"), make_node("n1", labels={POOL: "a"})])
    async with Auditor(api) as auditor, kant():
        await api.create_all([make_pod(name, 4, labels={POOL: "a"}) for name in ("p0", "p1")])
        await api.create(make_pod("lost", labels={POOL: "b"}))
        pods = await until(api, lambda pods: len(bound(pods)) == 2 and says(pods, "lost", "no node has the labels"))
        assert where(pods) == {"p0": "n1", "p1": "n1"}
        (await auditor.report()).assert_kept()
