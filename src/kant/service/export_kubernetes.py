"""Converts an export to Kubernetes objects: queues, start-forecast calibration, job history, and the waiting jobs.

Jobs become the same objects as with `kant submit --kube`. Names are derived from the ids of jobs, so applying the
objects twice creates each of them once.
"""

from __future__ import annotations

import hashlib
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import msgspec
from msgspec import Struct

from kant.insight.calibration import CalibrationState
from kant.insight.past_jobs import MOST_RUNS, PastRun
from kant.kube.lead.calibration_store import learned_object
from kant.kube.objects.names import OWN
from kant.kube.user.job_manifest import TAIL, PodOptions, job_manifest
from kant.kube.user.old_jobs import history_objects
from kant.kube.user.queue_objects import class_of, priority_class, queue_objects
from kant.live.learned import SavedCalibration, digest
from kant.local.record import JobPhase, JobRecord
from kant.model.errors import InputError
from kant.model.submission import Submission
from kant.model.tenant import QueueConfig
from kant.model.units import GPU, SECOND
from kant.scheduler.profile import parse_profile
from kant.service.export import MOVES, PROFILE, QUEUES, ExportHeader, jobs_of, learned_of, read_export
from kant.service.usage import FIELDS
from kant.workload.tenants_file import read_tenants

OBJECTS = "kubernetes.json"
ORIGIN = f"{OWN}/exported"
"""The annotation of a Kubernetes Job that names the exported job from which it was made."""


class KubernetesOptions(Struct, frozen=True):
    """Options of the conversion. `env` names the environment variables that jobs keep from their submission."""

    image: str
    namespace: str = "default"
    system: str = "kant-system"
    gpu_resource: str = "nvidia.com/gpu"
    env: tuple[str, ...] = ()
    workdir: bool = False


class ExportedObjects(Struct, frozen=True):
    """The number of written objects; and, by id with the reason, the jobs that are held on Kubernetes and the jobs that
    were left out.
    """

    objects: int
    jobs: int
    held: dict[str, str]
    left_out: dict[str, str]


def write_objects(folder: Path, options: KubernetesOptions) -> ExportedObjects:
    """Write the objects of an export into its folder, as one list for `kubectl apply -f`. Raises InputError."""
    header = read_export(folder)
    source = header.source
    queues = read_tenants(folder / QUEUES) if (folder / QUEUES).exists() else QueueConfig()
    past, runs, waiting = list[dict[str, Any]](), list[PastRun](), list[JobRecord]()
    for record in jobs_of(folder):
        if record.is_over:
            past.append(_row(record))
            if record.phase is JobPhase.FINISHED:
                runs.append(_run(record, options.namespace))
                del runs[:-MOST_RUNS]
        elif record.phase in MOVES:
            waiting.append(record)
    jobs, held, left_out = _jobs(waiting, header, options)
    priorities = sorted({record.submission.priority for record in waiting} - {0})
    objects = [
        *queue_objects(queues),
        *map(priority_class, priorities),
        learned_object(_learned(folder, runs), options.system),
        *history_objects(source, past, options.namespace),
        *jobs,
    ]
    text = msgspec.json.encode({"apiVersion": "v1", "kind": "List", "items": objects})
    (folder / OBJECTS).write_bytes(msgspec.json.format(text, indent=1) + b"\n")
    return ExportedObjects(len(objects), len(jobs), held, left_out)


def _row(record: JobRecord) -> dict[str, Any]:
    submission = record.submission
    values = (
        record.id, str(record.phase), submission.queue, record.user, submission.gpus, record.submitted, record.started,
        record.ended, record.attempt,
    )  # fmt: skip
    return dict(zip(FIELDS, values, strict=True))


def _run(record: JobRecord, namespace: str) -> PastRun:
    """Return the run time of a job, with the namespace as its user, as it will be on Kubernetes."""
    submission = record.submission
    said = round(submission.time_s * SECOND) if submission.time_s is not None else -1
    ran = max(record.ended - record.started, 1)
    return PastRun(submission.queue, namespace, submission.name, round(submission.gpus * GPU), said, ran)


def _learned(folder: Path, runs: list[PastRun]) -> SavedCalibration:
    kept = learned_of(folder)
    profile = parse_profile((folder / PROFILE).read_text(encoding="utf-8"), str(folder / PROFILE))
    if kept is None:
        return SavedCalibration(digest(profile), 0, CalibrationState(), runs)
    saved = msgspec.json.decode(kept, type=SavedCalibration)
    saved.memory.open.clear()  # answers about jobs, which get other names
    saved.runs = runs
    return saved


def _jobs(
    waiting: list[JobRecord], header: ExportHeader, options: KubernetesOptions
) -> tuple[list[dict[str, Any]], dict[str, str], dict[str, str]]:
    """Return the manifests; and by id with the reason, the jobs held on Kubernetes and the jobs without a manifest."""
    made, held, left_out = list[dict[str, Any]](), dict[str, str](), dict[str, str]()
    for record, count in _arrays(waiting):
        why = _held(record)
        try:
            _check(record.submission, header.widest)
            manifest = job_manifest(*_request(record, count, bool(why), options), options.namespace)
        except InputError as error:
            left_out[record.id] = str(error)
            continue
        if why and record.phase is not JobPhase.HELD:
            held[record.id] = why
        meta = manifest["metadata"]
        name = str(record.array) if count else record.id
        meta["name"] = meta.pop("generateName") + _tail(f"{header.source}/{name}")
        meta["annotations"] = {ORIGIN: f"{header.source}/{name}"}
        made.append(manifest)
    return made, held, left_out


def _arrays(waiting: list[JobRecord]) -> Iterable[tuple[JobRecord, int]]:
    """Yield each job with 0. If all members of an array wait, the array is yielded instead, once: its first job, with
    the number of its indices.
    """
    members: dict[int, list[JobRecord]] = {}
    for record in waiting:
        if record.array >= 0:
            members.setdefault(record.array, []).append(record)
    whole = {
        array
        for array, records in members.items()
        if [each.index for each in records] == list(range(len(records[0].submission.array)))
        and len({str(each.phase) for each in records}) == 1
    }
    for record in waiting:
        if record.array not in whole:
            yield record, 0
        elif record.index == 0:
            yield record, len(members[record.array])


def _request(record: JobRecord, count: int, hold: bool, options: KubernetesOptions) -> tuple[Submission, PodOptions]:
    submission = record.submission
    env = {name: submission.env[name] for name in options.env if name in submission.env}
    if record.index >= 0 and not count:
        env["KANT_ARRAY_INDEX"] = str(record.index)
    job = msgspec.structs.replace(
        submission,
        env=env,
        retries=max(submission.retries - record.failures, 0),
        array=tuple(range(count)),
        workdir=submission.workdir if options.workdir else "",
        hold=hold,
    )
    return job, PodOptions(
        image=options.image, priority_class=class_of(submission.priority), gpu_resource=options.gpu_resource
    )


def _check(submission: Submission, widest: int) -> None:
    """Raise InputError for a required feature that a Kubernetes Job does not have."""
    if submission.terminal is not None:
        raise InputError("--terminal", "no terminal on Kubernetes: use `kubectl attach`")
    if 0 < widest < submission.gpus:
        raise InputError("--gpus", f"at most {widest}, as a node has; use `kant submit --kube --pods`", submission.gpus)


def _held(record: JobRecord) -> str:
    """Return why a job must be held on Kubernetes: it waits for something that does not exist there, such as a job. "":
    it need not be held."""
    submission = record.submission
    if ahead := record.ahead:
        return f"it depends on job {', '.join(ahead)}"
    if submission.begin > time.time():
        return f"it may not start before {time.strftime('%Y-%m-%dT%H:%M:%S', time.localtime(submission.begin))}"
    if submission.singleton:
        return "only one job of its name may run at a time"
    if submission.array_most:
        return f"only {submission.array_most} jobs of its array may run at once"
    return "it is held" if record.phase is JobPhase.HELD else ""


def _tail(text: str) -> str:
    """Return five letters derived from a text, in the style of the API server's generated names."""
    number = int.from_bytes(hashlib.sha256(text.encode()).digest()[:8])
    return "".join(TAIL[number // len(TAIL) ** at % len(TAIL)] for at in range(5))
