"""The Job (batch/v1) that `kant submit --kube` makes: indexed, its pods a gang, or an array whose pods start alone.

The pods of a gang have names in the DNS, by a headless Service of the Job's own, and are told who is the first of them.
"""

from __future__ import annotations

import math
import re
import secrets
from dataclasses import dataclass
from typing import Any

from kant.kube.objects.names import OWN
from kant.kube.translate.annotations import RUNTIME
from kant.kube.translate.groups import INDEX, MIN_AVAILABLE
from kant.kube.user.job_objects import OF_JOB
from kant.model.errors import InputError

LONGEST_NAME = 46
"""Characters of a name before what makes it unique: with that and the index of a pod it is a host name (63)."""
TAIL = "bcdfghjklmnpqrstvwxz2456789"
"""What makes a name unique is of these, as where the API server makes it: they spell no words."""
MASTER_PORT = "29500"
"""Where torchrun and `torch.distributed` meet unless told otherwise."""
LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class JobRequest:
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
    reservation: str = ""
    training: str = ""
    scheduler_name: str = "kant"


def job_manifest(request: JobRequest, namespace: str) -> dict[str, Any]:
    """The object to create. Raises InputError for what Kubernetes or Kant would refuse.

    That of a gang (`request.pods` over 1) has its whole name and is suspended: it may start when its Service is there.
    """
    _check(request)
    count, gang = request.array or request.pods, request.pods > 1
    name = _name(request.name or request.command[0].rpartition("/")[2])
    whole = f"{name}-{''.join(secrets.choice(TAIL) for _ in range(5))}" if gang else ""
    labels = {f"{OWN}/queue": request.queue}
    notes = {f"{OWN}/preemptible": "true" if request.preemptible else "false"}
    if count > 1:
        notes[MIN_AVAILABLE] = "1" if request.array else str(count)
    if request.time_s is not None:  # others plan with it, as on one machine
        notes[RUNTIME] = f"{math.ceil(request.time_s)}s"
    said = {"topology-required": request.within, "reservation": request.reservation, "training": request.training}
    notes |= {f"{OWN}/{key}": value for key, value in said.items() if value}
    spec: dict[str, Any] = {
        "schedulerName": request.scheduler_name,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(request.grace_s),
        "containers": [_container(request, name, whole)],
    }
    if gang:
        spec["subdomain"] = whole
    if request.time_s is not None:  # of the pod: what a Job waits for its start is not counted
        spec["activeDeadlineSeconds"] = max(math.ceil(request.time_s), 1)
    if request.priority_class:
        spec["priorityClassName"] = request.priority_class
    tries = {"backoffLimitPerIndex": request.retries} if request.array else {"backoffLimit": request.retries}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": ({"name": whole} if gang else {"generateName": f"{name}-"})
        | {"namespace": namespace, "labels": labels},
        "spec": {
            "completionMode": "Indexed",
            "completions": count,
            "parallelism": count,
            "suspend": request.hold or gang,
            **tries,
            "podFailurePolicy": {"rules": [_PREEMPTED]},
            "template": {"metadata": {"labels": labels, "annotations": notes}, "spec": spec},
        },
    }


def service_of(name: str, uid: str, namespace: str) -> dict[str, Any]:
    """The headless Service by which the pods of a gang, Job `name`, find each other; it goes when the Job goes."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "ownerReferences": [owner]},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {OF_JOB: name}},
    }


_PREEMPTED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
"""A pod that is evicted waits and runs anew. That is no failure of the job."""


def _container(request: JobRequest, name: str, gang: str) -> dict[str, Any]:
    requests: dict[str, str] = {}
    cpus = request.cpus if request.cpus is not None else (0.0 if request.gpus else 1.0)
    if cpus:
        requests["cpu"] = f"{math.ceil(cpus * 1000)}m"
    if request.memory_mib:
        requests["memory"] = f"{request.memory_mib}Mi"
    resources: dict[str, Any] = {"requests": requests} if requests else {}
    if request.gpus:
        resources["limits"] = {request.gpu_resource: str(int(request.gpus))}
    own = {"KANT_JOB_NAME": request.name or name, "KANT_QUEUE": request.queue, "KANT_GPUS": f"{request.gpus:g}"}
    indices = ["KANT_ARRAY_INDEX"] if request.array else []
    if gang:
        told, indices = _meeting(request, gang)
        own |= told
    own |= dict(request.env)
    env: list[dict[str, Any]] = [{"name": key, "value": value} for key, value in own.items()]
    env.append(_from_label("KANT_JOB_ID", OF_JOB))
    env += [_from_label(key, INDEX) for key in indices if key not in own]
    made = {
        "name": "main",
        "image": request.image,
        "command": list(request.command),
        "env": env,
        "resources": resources,
    }
    return made | ({"workingDir": request.workdir} if request.workdir else {})


def _meeting(request: JobRequest, gang: str) -> tuple[dict[str, str], list[str]]:
    """What the pods of a gang have to know of each other, and what is the index of each.

    As torchrun reads it (`PET_…` are the defaults of its options). Rank and world size are of processes: Kant knows
    them where a pod has one GPU at most, and else the launcher of the processes says them.
    """
    told = {"MASTER_ADDR": f"{gang}-0.{gang}", "MASTER_PORT": MASTER_PORT, "NNODES": str(request.pods)}
    told |= {f"PET_{key}": value for key, value in told.items()}
    indices = ["NODE_RANK", "PET_NODE_RANK"]
    if request.gpus > 1:
        told["PET_NPROC_PER_NODE"] = str(int(request.gpus))
    else:
        told["WORLD_SIZE"] = str(request.pods)
        indices.append("RANK")
    return told, indices


def _from_label(name: str, label: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}}


def _check(request: JobRequest) -> None:
    if not request.command:
        raise InputError("COMMAND", "a program and its arguments, such as `kant submit --gpus 1 -- python train.py`")
    if not request.image:
        raise InputError("--image", "the image in which the command runs on Kubernetes")
    if request.gpus != int(request.gpus) or not 0 <= request.gpus <= 1024:
        raise InputError("--gpus", "a whole number of GPUs for each pod on Kubernetes", request.gpus)
    if not 1 <= request.pods <= 10_000:
        raise InputError("--pods", "a whole number from 1 to 10,000", request.pods)
    if request.cpus is not None and not 0 <= request.cpus <= 1_000_000:
        raise InputError("--cpus", "a number of cores", request.cpus)
    if request.retries < 0:
        raise InputError("--retries", "a whole number from 0", request.retries)
    if request.array and request.pods != 1:
        raise InputError("--array", "no --pods beside it: each index is one pod", request.pods)
    if not LABEL.fullmatch(request.queue):
        raise InputError("--queue", "a name of letters, digits, '.', '_' and '-', at most 63", request.queue)
    if request.workdir and not request.workdir.startswith("/"):
        raise InputError("--workdir", "a folder of the image, from / on", request.workdir)


def _name(text: str) -> str:
    """A name that an object may have, as near as can be to what was wanted."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    plain = plain if plain[:1].isalpha() else f"job-{plain}" if plain else "job"
    return plain[:LONGEST_NAME].rstrip("-")
