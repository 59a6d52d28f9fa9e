"""The Job (batch/v1) that `kant submit --kube` makes: indexed, its pods a gang, or an array whose pods start alone.

The pods of a gang have names in the DNS, by a headless Service of the Job's own, and are told who is the first of them.
"""

from __future__ import annotations

import math
import re
import secrets
from dataclasses import dataclass, replace
from typing import Any

from msgspec import structs

from kant.kube.objects.names import OWN, TEST_GATE, TEST_PODS
from kant.kube.translate.annotations import RUNTIME
from kant.kube.translate.groups import INDEX, MIN_AVAILABLE
from kant.kube.user.job_objects import OF_JOB
from kant.model.errors import InputError
from kant.model.submission import Submission

LONGEST_NAME = 46
"""Characters of a name before what makes it unique: with that and the index of a pod it is a host name (63)."""
TAIL = "bcdfghjklmnpqrstvwxz2456789"
"""What makes a name unique is of these, as where the API server makes it: they spell no words."""
MASTER_PORT = "29500"
"""Where torchrun and `torch.distributed` meet unless told otherwise."""
LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOptions:
    """What only Kubernetes asks of a job: so many `pods`, each with what the job asks for, and what they are.

    `within` is a level of the fabric that has to hold all of them, and `segments` are levels, from outside to inside,
    that have to hold so many each: `spine=16 leaf=4`.
    """

    image: str
    pods: int = 1
    priority_class: str = ""
    within: str = ""
    segments: str = ""
    gpu_resource: str = "nvidia.com/gpu"
    scheduler_name: str = "kant"


def job_manifest(job: Submission, options: PodOptions, namespace: str) -> dict[str, Any]:
    """The object to create. Raises InputError for what Kubernetes or Kant would refuse.

    Each index of an array is a pod that starts alone. That of a gang (`options.pods` over 1) has its whole name and is
    suspended: it may start when its Service is there.
    """
    _check(job, options)
    count, gang = len(job.array) or options.pods, options.pods > 1
    name = _name(job.name or job.command[0].rpartition("/")[2])
    whole = f"{name}-{''.join(secrets.choice(TAIL) for _ in range(5))}" if gang else ""
    labels = {f"{OWN}/queue": job.queue}
    notes = {f"{OWN}/preemptible": "true" if job.preemptible else "false"}
    if count > 1:
        notes[MIN_AVAILABLE] = "1" if job.array else str(count)
    if job.time_s is not None:  # others plan with it, as on one machine
        notes[RUNTIME] = f"{math.ceil(job.time_s)}s"
    said = {
        "topology-required": options.within,
        "segments": options.segments,
        "reservation": job.reservation,
        "training": job.training,
    }
    notes |= {f"{OWN}/{key}": value for key, value in said.items() if value}
    spec: dict[str, Any] = {
        "schedulerName": options.scheduler_name,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": math.ceil(job.grace_s),
        "containers": [_container(job, options, name, whole)],
    }
    if gang:
        spec["subdomain"] = whole
    if job.time_s is not None:  # of the pod: what a Job waits for its start is not counted
        spec["activeDeadlineSeconds"] = max(math.ceil(job.time_s), 1)
    if options.priority_class:
        spec["priorityClassName"] = options.priority_class
    tries = {"backoffLimitPerIndex": job.retries} if job.array else {"backoffLimit": job.retries}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": ({"name": whole} if gang else {"generateName": f"{name}-"})
        | {"namespace": namespace, "labels": labels},
        "spec": {
            "completionMode": "Indexed",
            "completions": count,
            "parallelism": count,
            "suspend": job.hold or gang,
            **tries,
            "podFailurePolicy": {"rules": [_PREEMPTED]},
            "template": {"metadata": {"labels": labels, "annotations": notes}, "spec": spec},
        },
    }


def trial_manifest(job: Submission, options: PodOptions, namespace: str) -> dict[str, Any]:
    """A Job whose one pod asks when the job would start, behind a gate. Raises InputError as `job_manifest` does."""
    if job.array:
        raise InputError("--array", "one job beside --test-only", len(job.array))
    made = job_manifest(structs.replace(job, hold=False), replace(options, pods=1), namespace)
    template = made["spec"]["template"]
    template["spec"]["schedulingGates"] = [{"name": TEST_GATE}]
    template["metadata"]["annotations"] |= {TEST_PODS: str(options.pods)}
    return made


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


def _container(job: Submission, options: PodOptions, name: str, gang: str) -> dict[str, Any]:
    requests: dict[str, str] = {}
    cpus = job.cpus if job.cpus is not None else (0.0 if job.gpus else 1.0)
    if cpus:
        requests["cpu"] = f"{math.ceil(cpus * 1000)}m"
    if job.memory_mib:
        requests["memory"] = f"{job.memory_mib}Mi"
    resources: dict[str, Any] = {"requests": requests} if requests else {}
    if job.gpus:
        resources["limits"] = {options.gpu_resource: str(int(job.gpus))}
    own = {"KANT_JOB_NAME": job.name or name, "KANT_QUEUE": job.queue, "KANT_GPUS": f"{job.gpus:g}"}
    indices = ["KANT_ARRAY_INDEX"] if job.array else []
    if gang:
        told, indices = _meeting(job, options, gang)
        own |= told
    own |= job.env
    env: list[dict[str, Any]] = [{"name": key, "value": value} for key, value in own.items()]
    env.append(_from_label("KANT_JOB_ID", OF_JOB))
    env += [_from_label(key, INDEX) for key in indices if key not in own]
    made = {
        "name": "main",
        "image": options.image,
        "command": list(job.command),
        "env": env,
        "resources": resources,
    }
    return made | ({"workingDir": job.workdir} if job.workdir else {})


def _meeting(job: Submission, options: PodOptions, gang: str) -> tuple[dict[str, str], list[str]]:
    """What the pods of a gang have to know of each other, and what is the index of each.

    As torchrun reads it (`PET_…` are the defaults of its options). Rank and world size are of processes: Kant knows
    them where a pod has one GPU at most, and else the launcher of the processes says them.
    """
    told = {"MASTER_ADDR": f"{gang}-0.{gang}", "MASTER_PORT": MASTER_PORT, "NNODES": str(options.pods)}
    told |= {f"PET_{key}": value for key, value in told.items()}
    indices = ["NODE_RANK", "PET_NODE_RANK"]
    if job.gpus > 1:
        told["PET_NPROC_PER_NODE"] = str(int(job.gpus))
    else:
        told["WORLD_SIZE"] = str(options.pods)
        indices.append("RANK")
    return told, indices


def _from_label(name: str, label: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}}


def _check(job: Submission, options: PodOptions) -> None:
    if not job.command:
        raise InputError("COMMAND", "a program and its arguments, such as `kant submit --gpus 1 -- python train.py`")
    if not options.image:
        raise InputError("--image", "the image in which the command runs on Kubernetes")
    if job.gpus != int(job.gpus) or not 0 <= job.gpus <= 1024:
        raise InputError("--gpus", "a whole number of GPUs for each pod on Kubernetes", job.gpus)
    if not 1 <= options.pods <= 10_000:
        raise InputError("--pods", "a whole number from 1 to 10,000", options.pods)
    if job.cpus is not None and not 0 <= job.cpus <= 1_000_000:
        raise InputError("--cpus", "a number of cores", job.cpus)
    if job.retries < 0:
        raise InputError("--retries", "a whole number from 0", job.retries)
    if job.array and options.pods != 1:
        raise InputError("--array", "no --pods beside it: each index is one pod", options.pods)
    if not LABEL.fullmatch(job.queue):
        raise InputError("--queue", "a name of letters, digits, '.', '_' and '-', at most 63", job.queue)
    if job.workdir and not job.workdir.startswith("/"):
        raise InputError("--workdir", "a folder of the image, from / on", job.workdir)


def _name(text: str) -> str:
    """A name that an object may have, as near as can be to what was wanted."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    plain = plain if plain[:1].isalpha() else f"job-{plain}" if plain else "job"
    return plain[:LONGEST_NAME].rstrip("-")
