"""The jobs of one namespace, known only from their pods: which jobs wait and why, and which run where."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from kant.kube.objects.times import microseconds
from kant.kube.objects.views import Condition, Pod
from kant.kube.translate.annotations import queue_said
from kant.kube.translate.resources import used_of
from kant.kube.user.targets import Target, gang_of, pods_meant
from kant.model.errors import InputError
from kant.model.units import GPU

ENDED = ("Succeeded", "Failed")


@dataclass(frozen=True, slots=True)
class OwnJob:
    """A gang, or a single pod: `pods` has the node of each pod, "" for a waiting one.

    `queue` is the queue that the labels of its pods name. `reason` and `sentence` are what Kant reports on a waiting
    pod. `since` is when its first pod was created, in microseconds since the Unix epoch. `milli` has the thousandths of
    GPUs that its running pods request, and those that its waiting pods request. `whole` has its pods.
    """

    name: str
    queue: str
    pods: dict[str, str]
    milli: tuple[int, int]
    since: int
    reason: str
    sentence: str
    whole: tuple[Pod, ...]

    @property
    def waits(self) -> bool:
        """Whether any pod of the job has no node yet."""
        return not all(self.pods.values())

    @property
    def running_gpus(self) -> float:
        """The number of GPUs that the job's running pods hold."""
        return self.milli[0] / GPU

    @property
    def waiting_gpus(self) -> float:
        """The number of GPUs that the job's waiting pods request."""
        return self.milli[1] / GPU


def jobs_of(pods: Iterable[Pod]) -> list[OwnJob]:
    """Return all jobs with pods that have not ended, the oldest first."""
    gangs: dict[tuple[str, ...], list[Pod]] = {}
    for pod in pods:
        if pod.status.phase not in ENDED:
            gangs.setdefault(gang_of(pod), []).append(pod)
    return sorted((_job(gang, whole) for gang, whole in gangs.items()), key=lambda job: (job.since, job.name))


def job_meant(jobs: Iterable[OwnJob], name: str) -> OwnJob | None:
    """Return the job with this name, or with a pod of this name, or with an owner of this name; None: no job."""
    found = list(jobs)
    meant = pods_meant([pod for job in found for pod in job.whole], Target("", name))
    return next((job for job in found if meant and meant[0] in job.whole), None)


def _job(gang: tuple[str, ...], pods: list[Pod]) -> OwnJob:
    pods = sorted(pods, key=lambda pod: (len(pod.metadata.name), pod.metadata.name))
    first, waiting = pods[0], [pod for pod in pods if not pod.spec.node_name]
    said = next((one for pod in waiting if (one := pod.scheduled) is not None), Condition())
    return OwnJob(
        name=f"{first.metadata.namespace}/{gang[2] if len(gang) == 3 else first.metadata.name}",
        queue=queue_said(first.metadata.said),
        pods={pod.metadata.name: pod.spec.node_name for pod in pods},
        milli=(_milli(pod for pod in pods if pod.spec.node_name), _milli(waiting)),
        since=min(microseconds(pod.metadata.creation_timestamp, pod.metadata.name) for pod in pods),
        reason=said.reason,
        sentence=said.message,
        whole=tuple(pods),
    )


def _milli(pods: Iterable[Pod]) -> int:
    total = 0
    for pod in pods:
        try:
            demand = used_of(pod.spec)
        except InputError:  # a pod with an invalid quantity counts as one without GPUs
            continue
        total += demand.gpus * demand.milli
    return total
