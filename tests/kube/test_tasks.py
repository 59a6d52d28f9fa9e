"""Tasks of a gang: Volcano's minTaskMember; and KAI's node pools."""

from __future__ import annotations

from collections import Counter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.kube.test_pods import nodes_of, setting
from tests.kube.test_pods import pod as gpu_pod

from kant.kube.objects import views as k
from kant.kube.objects.views import Meta, Unstructured
from kant.kube.reconcile.tasks import lacking_task, starting_pods, task_of
from kant.kube.translate.group_objects import group_spec
from kant.kube.translate.group_spec import GroupSpec
from kant.kube.translate.groups import NODE_POOL, TASK
from kant.kube.translate.node_sets import NodeSets
from kant.kube.translate.pods import GangJob, job_of
from kant.model.errors import InputError


def pod(number: int, task: str) -> k.Pod:
    return k.Pod(Meta(f"p-{number}", "ml", uid=str(number), annotations={TASK: task}))


names = st.lists(st.sampled_from(("ps", "worker", "")), max_size=8)


@given(names, names, st.dictionaries(st.sampled_from(("ps", "worker")), st.integers(1, 3)), st.integers(0, 4))
def test_who_starts_a_gang_is_enough_of_each_task_and_then_the_first(
    there: list[str], waiting: list[str], least: dict[str, int], more: int
) -> None:
    before = [pod(100 + number, task) for number, task in enumerate(there)]
    pods = [pod(number, task) for number, task in enumerate(waiting)]
    tasks = tuple(least.items())
    counts = Counter(map(task_of, [*before, *pods]))
    assert bool(lacking_task(tasks, [*before, *pods])) == any(counts[task] < pods for task, pods in tasks)
    if not lacking_task(tasks, [*before, *pods]):
        wanted = min(sum(least.values()) + more, len(pods))
        chosen = starting_pods(tasks, before, pods, wanted)
        assert chosen == [one for one in pods if one in chosen] and len(chosen) >= wanted
        assert not lacking_task(tasks, [*before, *chosen])
        alone = Counter(map(task_of, before))
        if len(chosen) > wanted:  # no more than the tasks need
            assert all(
                task in least and alone[task] + count == least[task]
                for task, count in Counter(map(task_of, chosen)).items()
            )


def group(source: str, spec: object, **meta: object) -> GroupSpec:
    return group_spec(
        source, Unstructured("v1", "PodGroup", Meta("g", "ml", **meta), msgspec.Raw(msgspec.json.encode(spec)))
    )  # type: ignore[arg-type]


def test_a_podgroup_of_volcano_counts_tasks_only_where_the_whole_does() -> None:
    volcano = "scheduling.volcano.sh"
    asked = {"minMember": 3, "minTaskMember": {"worker": 2, "ps": 1, "eval": 0}}
    assert group(volcano, asked).tasks == (("ps", 1), ("worker", 2))
    assert group(volcano, asked | {"minMember": 2}).tasks == ()
    for field, wrong in (("minTaskMember", {"worker": "two"}), ("subGroupPolicy", [{"name": "s"}])):
        with pytest.raises(InputError, match=f"PodGroup ml/g, spec.{field}"):
            group(volcano, {"minMember": 3, field: wrong})


def test_a_pod_stays_in_its_node_pool_of_kai() -> None:
    views = [
        k.Node(Meta(f"n{number}", labels={NODE_POOL: pool} if pool else {}))
        for number, pool in enumerate(("a", "b", ""))
    ]
    sets = NodeSets()
    given_ = setting(*views, sets=sets)
    inside = gpu_pod(labels={NODE_POOL: "a"})
    found = job_of("ml/p", [inside], given_)
    assert isinstance(found, GangJob) and nodes_of(sets) == {found.job.node_set: {"n0"}}
    found = job_of("ml/p", [gpu_pod(labels={NODE_POOL: "z"})], given_)
    assert isinstance(found, GangJob) and sets.is_nowhere(found.job)
    pooled = group("scheduling.run.ai", {"minMember": 1}, labels={NODE_POOL: "b"})
    assert pooled.node_pool == "b"
    with pytest.raises(InputError, match=f"label {NODE_POOL}: expected its group's pool, b, got 'a'"):
        job_of("ml/g", [inside], given_, pooled)
