"""Pods of a Kubernetes cluster as a trace, from `kubectl get pods -A -o json` or from an audit log.

An audit log is usable if its events contain the pods (level RequestResponse for `pods` and `pods/status`). The latest
event of a pod counts. Pods of one group that were created within a minute of each other are a gang. Later pods of the
group are another job, such as a retry.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal, InvalidOperation
from pathlib import Path
from typing import Any

import numpy as np

from kant.files import open_text
from kant.model.errors import InputError
from kant.model.units import SECOND
from kant.workload.table import MAX_GPUS, MAX_TIME, MAX_WHOLE, coded, made_unique
from kant.workload.workload import Workload, make_workload

GROUPS = (
    "scheduling.kant.dev/pod-group", "pod-group-name", "scheduling.k8s.io/group-name",
    "scheduling.volcano.sh/group-name", "scheduling.x-k8s.io/pod-group", "pod-group.scheduling.sigs.k8s.io/name",
    "gang.scheduling.koordinator.sh/name", "kueue.x-k8s.io/pod-group-name", "jobset.sigs.k8s.io/jobset-name",
    "leaderworkerset.sigs.k8s.io/group-key", "training.kubeflow.org/job-name", "batch.kubernetes.io/job-name",
    "job-name",
)  # fmt: skip
"""Labels and annotations that name the group of a pod. The first that is present counts."""

APART = {"DaemonSet", "Node"}
"""Kinds of owners whose pods do not wait in a queue."""
TOGETHER = 60 * SECOND

_SCALE = {
    name: Decimal(value)
    for name, value in (
        ("", 1), ("m", "0.001"), ("k", 10**3), ("M", 10**6), ("G", 10**9), ("T", 10**12), ("P", 10**15),
        ("Ki", 2**10), ("Mi", 2**20), ("Gi", 2**30), ("Ti", 2**40), ("Pi", 2**50),
    )
}  # fmt: skip
_QUANTITY = re.compile(r"([0-9.]+(?:[eE][0-9]+)?)([A-Za-z]*)")


@dataclass(slots=True)
class _Pod:
    """One pod. Times are microseconds since 1970, -1 if not yet."""

    name: str
    namespace: str
    group: str
    queue: str
    created: int
    started: int
    ended: int
    limit: int
    gpus: int
    cpu: int
    memory: int


def read_pods(path: Path, *, queue_label: str | None = None, cpu_jobs: bool = False) -> Workload:
    """Read the jobs whose pods ran, in order of submission. `notes` says what was left out.

    The queue is the namespace, or the value of the label `queue_label`. A job is submitted when its first pod is
    created, starts when its last pod has a node, and ends with its last pod. A job that still runs counts up to the
    last time in the file. Jobs without GPUs are left out unless `cpu_jobs`. Raises InputError, which names the file and
    the invalid pod.
    """
    notes: Counter[str] = Counter()
    pods, last = _pods(path, queue_label)
    jobs: list[list[_Pod]] = []
    for gang in sorted(_gangs(pods), key=lambda gang: (gang[0].created, gang[0].namespace, gang[0].name)):
        if any(pod.started < 0 for pod in gang):
            notes["jobs left out: they never ran"] += 1
        elif not cpu_jobs and not any(pod.gpus for pod in gang):
            notes["jobs left out: they have no GPU"] += 1
        else:
            notes["jobs still run: they count with their run time so far"] += any(pod.ended < 0 for pod in gang)
            jobs.append(gang)
    left_out = tuple(f"{count} {why}" for why, count in notes.items() if count)
    if not jobs:
        raise InputError(
            str(path), "at least one job whose pods ran" + ("" if cpu_jobs else " on GPUs"), "; ".join(left_out)
        )
    return _workload(path.name, jobs, last, left_out)


def _workload(name: str, jobs: list[list[_Pod]], last: int, notes: tuple[str, ...]) -> Workload:
    names, rows = [], []
    for gang in jobs:
        first = gang[0]
        workers = [pod for pod in gang if pod.gpus] or gang  # a launcher without a GPU is no pod of the gang
        sizes = {pod.gpus for pod in workers}
        ends = max(last if pod.ended < 0 else pod.ended for pod in gang)
        starts = max(pod.started for pod in gang)
        pods, gpus = (len(workers), workers[0].gpus) if len(sizes) == 1 else (0, sum(pod.gpus for pod in workers))
        names.append(f"{first.namespace}/{first.group or first.name}")
        cpu, memory = max(pod.cpu for pod in workers), max(pod.memory for pod in workers)
        limit = max(pod.limit for pod in gang)
        rows.append((first.created, max(ends - starts, 0), gpus, pods, cpu, memory, limit))
    submit, runtime, gpus_, pods_, cpu_, memory_, limit_ = (
        np.array(column, dtype=np.int64) for column in zip(*rows, strict=True)
    )
    queue, queues = coded([gang[0].queue for gang in jobs])
    title, titles = coded([gang[0].group or gang[0].name for gang in jobs])
    origin = int(submit[0])
    return make_workload(
        name, submit - origin, runtime, gpus_, ids=made_unique(names, "."), pods=pods_, cpu=cpu_, memory=memory_,
        limit=limit_, queue=queue, queues=queues, title=title, titles=titles, origin=origin, notes=notes,
    )  # fmt: skip


def _gangs(pods: list[_Pod]) -> Iterator[list[_Pod]]:
    """Yield the pods of each job, in order of creation."""
    groups: dict[tuple[str, str], list[_Pod]] = defaultdict(list)
    for pod in sorted(pods, key=lambda pod: (pod.created, pod.name)):
        groups[pod.namespace, f"group {pod.group}" if pod.group else f"pod {pod.name}"].append(pod)
    for members in groups.values():
        gang: list[_Pod] = []
        for pod in members:
            if gang and pod.created - gang[0].created > TOGETHER:
                yield gang
                gang = []
            gang.append(pod)
        yield gang


def _pods(path: Path, queue_label: str | None) -> tuple[list[_Pod], int]:
    """Return the latest state of each pod in the file, and the latest time in the file."""
    latest: dict[str, dict[str, Any]] = {}
    gone: dict[str, str] = {}
    moments = [0]
    for found, deleted in _objects(path):
        meta = found.get("metadata")
        if not isinstance(meta, dict) or not meta.get("creationTimestamp"):
            continue  # a request, not the stored object
        key = str(meta.get("uid") or f"{meta.get('namespace')}/{meta.get('name')}")
        latest[key] = found
        if deleted:
            gone[key] = deleted
    pods = []
    for key, found in latest.items():
        where = f"{path}, pod {found['metadata'].get('namespace', 'default')}/{found['metadata'].get('name')}"
        try:
            owners = {owner.get("kind") for owner in found["metadata"].get("ownerReferences") or ()}
            pod = _pod(found, gone.get(key), queue_label)
        except (KeyError, TypeError, ValueError, AttributeError, InvalidOperation, OverflowError) as error:
            raise InputError(where, f"a pod as the API shows it ({type(error).__name__}: {error})") from None
        if not (pod.gpus <= MAX_GPUS and pod.cpu <= MAX_WHOLE and pod.memory <= MAX_WHOLE and pod.limit <= MAX_TIME):
            raise InputError(where, f"at most {MAX_GPUS} GPUs, and no more than {MAX_WHOLE} of anything")
        moments += [pod.created, pod.started, pod.ended]
        if not owners & APART:
            pods.append(pod)
    return pods, max(moments)


def _objects(path: Path) -> Iterator[tuple[dict[str, Any], str | None]]:
    """Yield the pods in the order of the file; for a deleted pod, also the time of the deletion."""
    for found in _documents(path):
        if found.get("kind") == "Pod":
            yield found, None
        elif str(found.get("kind", "")).endswith("List"):
            yield from ((item, None) for item in found.get("items") or () if isinstance(item, dict))
        elif found.get("kind") == "Event" and str(found.get("apiVersion", "")).startswith("audit.k8s.io/"):
            pod = found.get("responseObject")
            if isinstance(pod, dict) and pod.get("kind") == "Pod":
                yield pod, str(found.get("stageTimestamp")) if found.get("verb") == "delete" else None


def _documents(path: Path) -> Iterator[dict[str, Any]]:
    """Yield JSON objects: one after another, each on one or more lines."""
    lines: list[str] = []
    with open_text(path) as stream:
        for number, line in enumerate(stream, start=1):
            lines.append(line)
            first = len(lines) == 1 and line.startswith("{")
            if not line.startswith("}") and not (first and line.rstrip().endswith("}")):
                continue  # if an object has several lines, only its last line begins with a brace that closes it
            try:
                found = json.loads("".join(lines))
            except (ValueError, RecursionError) as error:
                expected = f"JSON objects: pods, a list of pods, or an audit log ({error})"
                raise InputError(f"{path}, line {number}", expected) from None
            lines.clear()
            yield found
    if "".join(lines).strip():
        raise InputError(str(path), "whole JSON objects: pods, a list of pods, or an audit log", lines[0].strip()[:40])


def _pod(found: dict[str, Any], deleted: str | None, queue_label: str | None) -> _Pod:
    meta, spec, status = found["metadata"], found["spec"], found.get("status") or {}
    marks = (meta.get("annotations") or {}) | (meta.get("labels") or {})
    containers = spec["containers"]
    states = [entry.get("state") or {} for entry in status.get("containerStatuses") or ()]
    finished = [state["terminated"].get("finishedAt") for state in states if state.get("terminated")]
    whole = len(finished) == len(containers) and status.get("phase") in ("Succeeded", "Failed")
    ends = [_moment(text) for text in finished] if whole else []
    leaving = deleted or meta.get("deletionTimestamp")
    if not ends and leaving:
        ends = [_moment(leaving)]
    bound = [
        _moment(entry.get("lastTransitionTime"))
        for entry in status.get("conditions") or ()
        if entry.get("type") == "PodScheduled" and entry.get("status") == "True"
    ]
    namespace = str(meta.get("namespace", "default"))
    deadline = spec.get("activeDeadlineSeconds")
    return _Pod(
        name=str(meta["name"]),
        namespace=namespace,
        group=next((str(marks[name]) for name in GROUPS if marks.get(name)), ""),
        queue=namespace if queue_label is None else str(marks.get(queue_label, namespace)),
        created=_moment(meta["creationTimestamp"]),
        started=bound[0] if bound else _moment(status.get("startTime")),
        ended=max(ends, default=-1),
        limit=int(deadline) * SECOND if deadline is not None else -1,
        gpus=int(_asked(containers, lambda name: name.endswith("/gpu"), 1)),
        cpu=int(_asked(containers, lambda name: name == "cpu", 1000)),
        memory=int(_asked(containers, lambda name: name == "memory", Decimal(1) / (1 << 20))),
    )


def _asked(containers: list[dict[str, Any]], wanted: Any, unit: int | Decimal) -> int:
    """Return the requests of all containers for some resource, rounded up to whole units. Limits count as requests."""
    total = Decimal(0)
    for container in containers:
        resources = container.get("resources") or {}
        asked = (resources.get("limits") or {}) | (resources.get("requests") or {})
        total += sum((_quantity(amount) for name, amount in asked.items() if wanted(name)), Decimal(0))
    return math.ceil(total * unit)


def _quantity(text: object) -> Decimal:
    """Parse a quantity of Kubernetes, such as `500m`, `16Gi` or `1e3`."""
    found = _QUANTITY.fullmatch(str(text))
    if found is None or found[2] not in _SCALE:
        raise ValueError(f"no quantity: {text}")
    return Decimal(found[1]) * _SCALE[found[2]]


def _moment(text: Any) -> int:
    """Return an API time in microseconds since 1970; -1 for none."""
    if not text:
        return -1
    return round(datetime.fromisoformat(str(text).replace("Z", "+00:00")).timestamp() * SECOND)
