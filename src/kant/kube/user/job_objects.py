"""Jobs of Kubernetes (batch/v1) as `kant jobs` shows them: one row for each Job with its pods.

The phases are those of a single machine (`kant.service.views.Job`): held, waiting, running, stopping, finished, failed.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from kant.kube.follow.mirror import ENDED
from kant.kube.objects.times import microseconds
from kant.kube.objects.views import (
    Condition,
    ContainerStatus,
    Meta,
    Owner,
    PartialMetadata,
    Pod,
    PodSpec,
    PodStatus,
    View,
)
from kant.kube.translate.annotations import queue_said
from kant.kube.translate.groups import INDEX, MIN_AVAILABLE
from kant.kube.translate.pods import title
from kant.kube.translate.resources import used_of
from kant.model.errors import InputError

OF_JOB = "batch.kubernetes.io/job-name"
OVER = ("finished", "failed")
UNMADE = "its pods have not been created yet"


class Template(PartialMetadata, frozen=True):
    spec: PodSpec = PodSpec()


class JobSpec(View, frozen=True):
    suspend: bool = False
    parallelism: int = 1
    completions: int | None = None
    active_deadline_seconds: int | None = None
    template: Template = Template()


class JobObjectStatus(View, frozen=True):
    failed: int = 0
    completion_time: str | None = None
    conditions: tuple[Condition, ...] = ()


class JobObject(PartialMetadata, frozen=True):
    """A Job of batch/v1."""

    spec: JobSpec = JobSpec()
    status: JobObjectStatus = JobObjectStatus()


class Terminated(View, frozen=True):
    exit_code: int = 0
    signal: int = 0


class ContainerState(View, frozen=True):
    terminated: Terminated | None = None


class RunContainer(ContainerStatus, frozen=True):
    state: ContainerState = ContainerState()


class RunStatus(PodStatus, frozen=True):
    container_statuses: tuple[RunContainer, ...] = ()


class RunPod(Pod, frozen=True):
    """A pod, with the state of its containers."""

    status: RunStatus = RunStatus()


def index_of(pod: RunPod) -> int:
    """Return the index of a pod in its indexed Job; 0 for other Jobs."""
    said = (pod.metadata.annotations or {}).get(INDEX) or (pod.metadata.labels or {}).get(INDEX) or "0"
    return int(said) if said.isdigit() else 0


def latest(pods: Iterable[RunPod]) -> RunPod | None:
    """Return the latest of several pods with the same index, if possible a bound one. None without pods."""
    return max(
        pods,
        key=lambda pod: (bool(pod.spec.node_name), pod.metadata.creation_timestamp, pod.metadata.name),
        default=None,
    )


def phase_of(job: JobObject, pods: Sequence[RunPod]) -> str:
    """Return the phase of a job in one word."""
    ended = {one.type for one in job.status.conditions if one.status == "True"}
    if "Complete" in ended:
        return "finished"
    if "Failed" in ended:
        return "failed"
    if job.metadata.deletion_timestamp is not None:
        return "stopping"
    live = [pod for pod in pods if pod.spec.node_name and pod.status.phase not in ENDED]
    if job.spec.suspend:
        return "stopping" if live else "held"
    return "running" if live else "waiting"


def row_of(job: JobObject, pods: Sequence[RunPod]) -> dict[str, Any]:
    """Return the row of a job, with the keys of the one-machine API. Times are microseconds since 1970; -1: none.

    `priority` is None until a pod exists: the API server resolves a PriorityClass only on pods.
    """
    meta, spec, phase = job.metadata, job.spec, phase_of(job, pods)
    pods = sorted(pods, key=lambda pod: (index_of(pod), pod.metadata.creation_timestamp, pod.metadata.name))
    starts = [time for pod in pods if (time := _started(pod)) >= 0]
    code, signal = _ended_with(pods) if phase in OVER else (None, None)
    count = pods_of(job)
    return {
        "id": meta.name,
        "phase": phase,
        "name": title_of(job),
        "queue": queue_said(spec.template.metadata.said),
        "user": meta.namespace,
        "priority": max((pod.spec.priority for pod in pods), default=None),
        "gpus": float(used_of(spec.template.spec).gpus * count),
        "pods": count,
        "submitted": _time(meta.creation_timestamp),
        "started": min(starts, default=-1),
        "ended": _end(job) if phase in OVER else -1,
        "attempt": job.status.failed + bool(starts),
        "failures": job.status.failed,
        "code": code,
        "signal": signal,
        "reason": _reason(job),
        "waits": _waits(pods) if phase == "waiting" else "",
        "nodes": _nodes(pods) if phase == "running" else {},
        "limit_us": spec.active_deadline_seconds * 1_000_000 if spec.active_deadline_seconds is not None else -1,
    }


def _nodes(pods: Iterable[RunPod]) -> dict[str, str]:
    """Return the nodes of running pods, each with "": the GPUs are unknown, since the kubelets choose them."""
    return {pod.spec.node_name: "" for pod in pods if pod.spec.node_name and pod.status.phase not in ENDED}


def title_of(job: JobObject) -> str:
    """Return the name of a Job without its unique suffix."""
    owner = Owner(kind="Job", name=job.metadata.name, controller=True)
    return title(Pod(Meta(name=job.metadata.name, owner_references=(owner,))))


def pods_of(job: JobObject) -> int:
    """Return how many pods a job has: for a gang the pods that run at once, for an array all pods."""
    side, all_of_it = job.spec.parallelism, job.spec.completions
    return side if all_of_it is None else all_of_it if is_array(job) else min(side, all_of_it)


def is_array(job: JobObject) -> bool:
    """Whether a Job is an array, whose pods start one by one."""
    return job.spec.template.metadata.said.get(MIN_AVAILABLE) == "1"


def _time(text: str | None) -> int:
    try:
        return microseconds(text, "a time") if text else -1
    except InputError:
        return -1


def _started(pod: RunPod) -> int:
    """Return when the kubelet accepted the pod, or otherwise when it was bound (microseconds since 1970); -1: never."""
    said = pod.scheduled
    bound = said.last_transition_time if said is not None and said.status == "True" else None
    return _time(pod.status.start_time or bound)


def _end(job: JobObject) -> int:
    failed = next((one.last_transition_time for one in job.status.conditions if one.type == "Failed"), None)
    return _time(job.status.completion_time or failed)


def _reason(job: JobObject) -> str:
    """Return why a Job has failed, as the Job controller reports; "" if it has not."""
    failed = next((one for one in job.status.conditions if one.type == "Failed" and one.status == "True"), None)
    return (failed.message or failed.reason) if failed is not None else ""


def _waits(pods: Sequence[RunPod]) -> str:
    """Return why the pods wait, as Kant reports on one of them. It reports the same on all pods of a gang."""
    if not pods:
        return UNMADE
    found = (one for pod in pods if (one := pod.scheduled) is not None)
    return next((one.message for one in found if one.status == "False" and one.message), "")


def _ended_with(pods: Sequence[RunPod]) -> tuple[int | None, int | None]:
    """Return exit code and signal of the first failed container. (0, None): none failed; (None, None): none ended."""
    ends = [one.state.terminated for pod in pods for one in pod.status.container_statuses]
    done = [one for one in ends if one is not None]
    worst = next((one for one in done if one.exit_code), done[0] if done else None)
    if worst is None:
        return None, None
    return worst.exit_code, worst.signal or None
