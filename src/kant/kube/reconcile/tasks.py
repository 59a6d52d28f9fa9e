"""Tasks: which pods a gang starts with, if its group requires a minimum number of pods of each task.

Tasks stand for Volcano's `minTaskMember`, YuniKorn's task groups, roles of an elastic Kubeflow job, head and workers of
an autoscaling Ray cluster, and PodGroups of a CompositePodGroup.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from kant.kube.objects.views import Pod
from kant.kube.translate.groups import RAY_GROUP, ROLE, TASK, TASK_GROUP

Tasks = Sequence[tuple[str, int]]
"""The name of each task, and how many of its pods must run."""


def task_of(pod: Pod) -> str:
    """Return the name of the task to which a pod belongs; "" for none."""
    if pod.spec.scheduling_group is not None and pod.spec.scheduling_group.pod_group_name:
        return pod.spec.scheduling_group.pod_group_name
    said = {**(pod.metadata.labels or {}), **(pod.metadata.annotations or {})}  # not `Meta.said`: called for each pod
    return next((said[key] for key in (TASK, TASK_GROUP, ROLE, RAY_GROUP) if said.get(key)), "")


def lacking_task(tasks: Tasks, there: Iterable[Pod]) -> str:
    """Return the first task with too few pods, as text with the numbers of pods; "" if each task has enough."""
    counts = Counter(task_of(pod) for pod in there)
    return next((f"{task} has {counts[task]} of {least}" for task, least in tasks if counts[task] < least), "")


def starting_pods(tasks: Tasks, there: Iterable[Pod], waiting: Sequence[Pod], count: int) -> list[Pod]:
    """Return `count` of the waiting pods, in their order: those that a task lacks, and then the first of the others.

    The pods in `there` run or have succeeded. If tasks lack more than `count` pods, all lacking pods are returned.
    """
    counts = Counter(task_of(pod) for pod in there)
    short = {task: least - counts[task] for task, least in tasks}
    first: list[Pod] = []
    for pod in waiting:
        task = task_of(pod)
        if short.get(task, 0) > 0:
            short[task] -= 1
            first.append(pod)
    ranked = dict.fromkeys(pod.metadata.uid for pod in (*first, *waiting))
    chosen = set(list(ranked)[: max(count, len(first))])
    return [pod for pod in waiting if pod.metadata.uid in chosen]
