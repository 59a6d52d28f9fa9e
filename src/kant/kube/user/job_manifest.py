"""The indexed Job (batch/v1) that `kant submit --kube` creates, for a gang of pods or an array of single pods.

The pods of a gang have DNS names, by a headless Service of the Job. Each gets the address of the first pod.
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
"""Maximum length of a name before the unique suffix. With suffix and pod index it is a host name of at most 63."""
TAIL = "bcdfghjklmnpqrstvwxz2456789"
"""Characters of the unique suffix. Like those of the API server's generated names, they spell no words."""
MASTER_PORT = "29500"
"""The default rendezvous port of torchrun and `torch.distributed`."""
LABEL = re.compile(r"[A-Za-z0-9]([A-Za-z0-9._-]{0,61}[A-Za-z0-9])?")


@dataclass(frozen=True, slots=True, kw_only=True)
class PodOptions:
    """Options that a job has only on Kubernetes. Each of its `pods` gets the resources that the submission asks for.

    `within` is a topology level: all pods run in one domain of that level ("": anywhere). `segments` are levels from
    outside to inside, each with the number of pods in one domain: `spine=16 leaf=4`.
    """

    image: str
    pods: int = 1
    priority_class: str = ""
    within: str = ""
    segments: str = ""
    gpu_resource: str = "nvidia.com/gpu"
    scheduler_name: str = "kant"


def job_manifest(job: Submission, options: PodOptions, namespace: str) -> dict[str, Any]:
    """Return the object to create. Raises InputError for options that Kubernetes or Kant would reject.

    Each index of an array is a pod that starts alone. The Job of a gang (`options.pods` over 1) has a complete name,
    and is suspended until its Service exists.
    """
    _check(job, options)
    count, gang = len(job.array) or options.pods, options.pods > 1
    name = _name(job.name or job.command[0].rpartition("/")[2])
    whole = f"{name}-{''.join(secrets.choice(TAIL) for _ in range(5))}" if gang else ""
    labels = {f"{OWN}/queue": job.queue}
    notes = {f"{OWN}/preemptible": "true" if job.preemptible else "false"}
    if count > 1:
        notes[MIN_AVAILABLE] = "1" if job.array else str(count)
    if job.time_s is not None:  # with which Kant plans other jobs, as on one machine
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
    if job.time_s is not None:  # on the pod, since the Job's own would count waiting time
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
    """Return a Job whose one gated pod only asks when the job would start. Raises InputError as `job_manifest` does."""
    if job.array:
        raise InputError("--array", "a single job with --test-only", len(job.array))
    made = job_manifest(structs.replace(job, hold=False), replace(options, pods=1), namespace)
    template = made["spec"]["template"]
    template["spec"]["schedulingGates"] = [{"name": TEST_GATE}]
    template["metadata"]["annotations"] |= {TEST_PODS: str(options.pods)}
    return made


def service_of(name: str, uid: str, namespace: str) -> dict[str, Any]:
    """Return the headless Service by which the pods of Job `name` find each other; it is deleted with the Job."""
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid, "controller": True}
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace, "ownerReferences": [owner]},
        "spec": {"clusterIP": "None", "publishNotReadyAddresses": True, "selector": {OF_JOB: name}},
    }


_PREEMPTED = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
"""The rule of the Job's podFailurePolicy by which an eviction does not count as a failure; the pod is re-created."""


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
        variables, indices = _meeting(job, options, gang)
        own |= variables
    own |= job.env
    env: list[dict[str, Any]] = [{"name": key, "value": value} for key, value in own.items()]
    env.append(_from_label("KANT_JOB_ID", OF_JOB))
    env += [_from_label(key, INDEX) for key in indices if key not in own]
    made = {"name": "main", "image": options.image, "command": list(job.command), "env": env, "resources": resources}
    return made | ({"workingDir": job.workdir} if job.workdir else {})


def _meeting(job: Submission, options: PodOptions, gang: str) -> tuple[dict[str, str], list[str]]:
    """Return a gang's environment variables for rendezvous, and the names of those that have the pod's index.

    The variables are those of torchrun (`PET_…` are the defaults of its options). Rank and world size count processes:
    Kant sets both for pods with at most one GPU; in other pods the launcher of the processes does.
    """
    variables = {"MASTER_ADDR": f"{gang}-0.{gang}", "MASTER_PORT": MASTER_PORT, "NNODES": str(options.pods)}
    variables |= {f"PET_{key}": value for key, value in variables.items()}
    indices = ["NODE_RANK", "PET_NODE_RANK"]
    if job.gpus > 1:
        variables["PET_NPROC_PER_NODE"] = str(int(job.gpus))
    else:
        variables["WORLD_SIZE"] = str(options.pods)
        indices.append("RANK")
    return variables, indices


def _from_label(name: str, label: str) -> dict[str, Any]:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.labels['{label}']"}}}


def _check(job: Submission, options: PodOptions) -> None:
    if not job.command:
        raise InputError("COMMAND", "a program and its arguments, such as `kant submit --gpus 1 -- python train.py`")
    if not options.image:
        raise InputError("--image", "the container image for the command on Kubernetes")
    if job.gpus != int(job.gpus) or not 0 <= job.gpus <= 1024:
        raise InputError("--gpus", "a whole number of GPUs up to 1024 for each pod on Kubernetes", job.gpus)
    if not 1 <= options.pods <= 10_000:
        raise InputError("--pods", "a whole number from 1 to 10,000", options.pods)
    if job.cpus is not None and not 0 <= job.cpus <= 1_000_000:
        raise InputError("--cpus", "a number of cores", job.cpus)
    if job.retries < 0:
        raise InputError("--retries", "a whole number from 0", job.retries)
    if job.array and options.pods != 1:
        raise InputError("--array", "no --pods with it: each index is one pod", options.pods)
    if not LABEL.fullmatch(job.queue):
        raise InputError("--queue", "a name of letters, digits, '.', '_' and '-', at most 63", job.queue)
    if job.workdir and not job.workdir.startswith("/"):
        raise InputError("--workdir", "a folder of the image, as an absolute path", job.workdir)


def _name(text: str) -> str:
    """Return a valid object name made from `text`."""
    plain = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")
    plain = plain if plain[:1].isalpha() else f"job-{plain}" if plain else "job"
    return plain[:LONGEST_NAME].rstrip("-")
