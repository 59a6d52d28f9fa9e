"""The Job (batch/v1) that `kant submit --kube` makes: indexed, its pods a gang, or an array whose pods start alone."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Any

from kant.kube.groups import INDEX, MIN_AVAILABLE, OWN
from kant.model.errors import InputError

LONGEST_NAME = 46
"""Characters of a name before what makes it unique: with that and the index of a pod it is a host name (63)."""
LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobWish:
    """What is wanted. `gpus`, `cpus` and `memory_mib` are of each of the `pods`; times are seconds.

    `array`: so many pods that start one by one; 0 for a gang.
    """

    command: tuple[str, ...]
    image: str
    name: str = ""
    pods: int = 1
    gpus: float = 0
    cpus: float | None = None
    memory_mib: int = 0
    gpu_resource: str = "nvidia.com/gpu"
    queue: str = "default"
    priority_class: str = ""
    time_s: float | None = None
    grace_s: float = 30.0
    retries: int = 0
    array: int = 0
    env: tuple[tuple[str, str], ...] = ()
    workdir: str = ""
    hold: bool = False
    preemptible: bool = True
    within: str = ""
    scheduler_name: str = "kant"


def job_made(wish: JobWish, namespace: str) -> dict[str, Any]:
    """The object to create. Raises InputError for what Kubernetes or Kant would refuse."""
    _check(wish)
    count = wish.array or wish.pods
    name = _name(wish.name or wish.command[0].rpartition("/")[2])
    labels = {f"{OWN}/queue": wish.queue}
    notes = {f"{OWN}/preemptible": "true" if wish.preemptible else "false"}
    if wish.array:
        notes[MIN_AVAILABLE] = "1"
    if wish.within:
        notes[f"{OWN}/topology-required"] = wish.within
    spec: dict[str, Any] = {
        "schedulerName": wish.scheduler_name,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(wish.grace_s),
        "containers": [_container(wish, name)],
    }
    if wish.time_s is not None:  # of the pod: what a Job waits for its start is not counted
        spec["activeDeadlineSeconds"] = max(math.ceil(wish.time_s), 1)
    if wish.priority_class:
        spec["priorityClassName"] = wish.priority_class
    tries = {"backoffLimitPerIndex": wish.retries} if wish.array else {"backoffLimit": wish.retries}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"generateName": f"{name}-", "namespace": namespace, "labels": labels},
        "spec": {
            "completionMode": "Indexed",
            "completions": count,
            "parallelism": count,
            "suspend": wish.hold,
            **tries,
            "podFailurePolicy": {"rules": [_PREEMPTED]},
            "template": {"metadata": {"labels": labels, "annotations": notes}, "spec": spec},
        },
    }


_PREEMPTED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
"""Who is evicted waits and runs anew, and it is no failure of his."""


def _container(wish: JobWish, name: str) -> dict[str, Any]:
    requests: dict[str, str] = {}
    cpus = wish.cpus if wish.cpus is not None else (0.0 if wish.gpus else 1.0)
    if cpus:
        requests["cpu"] = f"{math.ceil(cpus * 1000)}m"
    if wish.memory_mib:
        requests["memory"] = f"{wish.memory_mib}Mi"
    resources: dict[str, Any] = {"requests": requests} if requests else {}
    if wish.gpus:
        resources["limits"] = {wish.gpu_resource: str(int(wish.gpus))}
    own = {"KANT_JOB_NAME": wish.name or name, "KANT_QUEUE": wish.queue, "KANT_GPUS": f"{wish.gpus:g}"}
    env: list[dict[str, Any]] = [{"name": key, "value": value} for key, value in (own | dict(wish.env)).items()]
    env.append(_from_label("KANT_JOB_ID", "batch.kubernetes.io/job-name"))
    if wish.array:
        env.append(_from_label("KANT_ARRAY_INDEX", INDEX))
    made = {"name": "main", "image": wish.image, "command": list(wish.command), "env": env, "resources": resources}
    return made | ({"workingDir": wish.workdir} if wish.workdir else {})


def _from_label(name: str, label: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}}


def _check(wish: JobWish) -> None:
    if not wish.command:
        raise InputError("COMMAND", "a program and its arguments, such as `kant submit --gpus 1 -- python train.py`")
    if not wish.image:
        raise InputError("--image", "the image in which the command runs on Kubernetes")
    if wish.gpus != int(wish.gpus) or not 0 <= wish.gpus <= 1024:
        raise InputError("--gpus", "a whole number of GPUs for each pod on Kubernetes", wish.gpus)
    if not 1 <= wish.pods <= 10_000:
        raise InputError("--pods", "a whole number from 1 to 10,000", wish.pods)
    if wish.cpus is not None and not 0 <= wish.cpus <= 1_000_000:
        raise InputError("--cpus", "a number of cores", wish.cpus)
    if wish.retries < 0:
        raise InputError("--retries", "a whole number from 0", wish.retries)
    if wish.array and wish.pods != 1:
        raise InputError("--array", "no --pods beside it: each index is one pod", wish.pods)
    if not LABEL.fullmatch(wish.queue):
        raise InputError("--queue", "a name of letters, digits, '.', '_' and '-', at most 63", wish.queue)
    if wish.workdir and not wish.workdir.startswith("/"):
        raise InputError("--workdir", "a folder of the image, from / on", wish.workdir)


def _name(text: str) -> str:
    """A name that an object may have, as near as can be to what was wanted."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    plain = plain if plain[:1].isalpha() else f"job-{plain}" if plain else "job"
    return plain[:LONGEST_NAME].rstrip("-")
