"""Operations of a user on jobs on Kubernetes, with the user's own rights: submit, list, read, hold, release, cancel.

A job is a Job (batch/v1) whose pods name Kant as scheduler. These operations do not contact Kant: it follows them.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import suppress
from typing import Any
from urllib.parse import quote

import msgspec

from kant.kube.connect.client import ApiClient, ApiError
from kant.kube.connect.errors import advice, denied_by
from kant.kube.follow.mirror import ENDED
from kant.kube.objects.names import TEST_ONLY
from kant.kube.user.job_manifest import PodOptions, job_manifest, service_of, trial_manifest
from kant.kube.user.job_objects import OF_JOB, OVER, JobObject, RunPod, index_of, latest, phase_of, row_of
from kant.model.errors import InputError, SentenceError
from kant.model.submission import Submission

ANSWERED = 60.0  # seconds to wait until Kant says when a job would start
LOOK = 1.0  # seconds between two reads of a job whose output is followed
ROLE = "the role kant-user (docs/kubernetes.md, section The same commands)"


class UserJobs:
    """The jobs of one namespace. Every method may raise InputError, with one sentence for the user."""

    def __init__(self, client: ApiClient, namespace: str = "", scheduler_name: str = "kant") -> None:
        self.client = client
        self.namespace = namespace or client.config.namespace
        self.scheduler_name = scheduler_name
        space = quote(self.namespace, safe="")
        self._jobs = f"/apis/batch/v1/namespaces/{space}/jobs"
        self._pods = f"/api/v1/namespaces/{space}/pods"
        self._services = f"/api/v1/namespaces/{space}/services"

    async def submit(self, job: Submission, options: PodOptions) -> str:
        """Create a Job, and for several pods a Service by which they find each other. Returns the Job's name."""
        made = await self._make(job, options)
        if options.pods > 1:
            try:
                service = service_of(made.metadata.name, made.metadata.uid, self.namespace)
                await self.client.create(self._services, service)
                if not job.hold:
                    await self.client.patch(self._path(made.metadata.name), _suspension(made, False))
            except ApiError as error:
                raise await self._unmade(made, error) from None
        return made.metadata.name

    async def _make(self, job: Submission, options: PodOptions) -> JobObject:
        for last in (False, False, True):
            made = job_manifest(job, options, self.namespace)
            try:
                raw = await self.client.create(self._jobs, made)
                return msgspec.json.decode(raw, type=JobObject)
            except ApiError as error:
                if error.reason != "AlreadyExists" or last:  # a generated name may be in use
                    raise self._sentence(error, "") from None
        raise AssertionError("the last try returns or raises")

    async def _unmade(self, job: JobObject, error: ApiError) -> InputError:
        """Delete a Job whose Service cannot be created, and return why. No pod has started, as the Job is suspended."""
        name = job.metadata.name
        try:
            await self.client.delete(self._path(name), uid=job.metadata.uid, propagation="Background")
        except ApiError as second:
            if second.code != 404:
                return ServerMessageError(f"{self._sentence(error, '')}; job {name} is left, held: kant cancel {name}")
        return self._sentence(error, "")

    async def trial(self, job: Submission, options: PodOptions) -> str:
        """Create a Job that only asks when it would start. Return the leader's answer, as one sentence.

        The Job is deleted afterwards.
        """
        made = trial_manifest(job, options, self.namespace)
        try:
            raw = await self.client.create(self._jobs, made)
        except ApiError as error:
            raise self._sentence(error, "") from None
        name, uid = (meta := msgspec.json.decode(raw, type=JobObject).metadata).name, meta.uid
        try:
            async with asyncio.timeout(ANSWERED):
                while True:
                    pods = await self._ask(self.client.list(f"{self._pods}?labelSelector={OF_JOB}%3D{name}", RunPod))
                    answers = [one for pod in pods for one in pod.status.conditions if one.reason == TEST_ONLY]
                    if answers:
                        return str(answers[0].message)
                    await asyncio.sleep(LOOK / 4)
        except TimeoutError:
            raise InputError("--test-only", f"a leader of Kant that answers within {ANSWERED:g} s") from None
        finally:
            with suppress(ApiError):
                await self.client.delete(self._path(name), uid=uid, propagation="Background")

    async def rows(self) -> list[dict[str, Any]]:
        """Return all jobs, the latest first."""
        jobs = [job for job in await self._ask(self.client.list(self._jobs, JobObject)) if self._ours(job)]
        pods: dict[str, list[RunPod]] = {}
        if jobs:
            for pod in await self._ask(self.client.list(f"{self._pods}?labelSelector={quote(OF_JOB)}", RunPod)):
                pods.setdefault((pod.metadata.labels or {}).get(OF_JOB, ""), []).append(pod)
        jobs.sort(key=lambda job: (job.metadata.creation_timestamp, job.metadata.name), reverse=True)
        return [row_of(job, _own(job, pods.get(job.metadata.name, ()))) for job in jobs]

    async def row(self, name: str) -> dict[str, Any] | None:
        """Return one job; None if no Job has the name, or if the Job belongs to another scheduler."""
        try:
            job, pods = await self._found(name)
        except NoSuchJobError:
            return None
        return row_of(job, pods)

    async def is_alone(self, name: str, pods: int = 0) -> bool:
        """Whether a Job of this name exists and has no owner. An owner would decide whether the Job is held.

        With `pods` other than 0 the Job must also have that many pods.
        """
        try:
            job = await self.client.get(self._path(name), JobObject)
        except ApiError as error:
            if error.code in (403, 404):
                return False
            raise self._sentence(error, name) from None
        fits = pods in (0, job.spec.completions or job.spec.parallelism)
        return fits and self._ours(job) and not job.metadata.controller.name

    async def cancel(self, name: str) -> bool:
        """Delete a job with its pods. If the job has ended, keep it and return False."""
        job, pods = await self._found(name)
        if phase_of(job, pods) in OVER:
            return False
        await self._ask(self.client.delete(self._path(name), uid=job.metadata.uid, propagation="Foreground"), name)
        return True

    async def hold(self, name: str) -> bool:
        """Keep a waiting job from starting. Returns False if the job is held already."""
        job, pods = await self._found(name)
        phase = phase_of(job, pods)
        if phase == "held":
            return False
        if phase != "waiting":
            raise InputError(f"job {name}", "a job that waits", phase)
        await self._suspend(job, True)
        return True

    async def release(self, name: str) -> bool:
        """Let a held job start. Returns True; raises InputError if the job is not held."""
        job, pods = await self._found(name)
        if not job.spec.suspend or phase_of(job, pods) in OVER:
            raise InputError(f"job {name}", "a held job", phase_of(job, pods))
        await self._suspend(job, False)
        return True

    async def _suspend(self, job: JobObject, suspended: bool) -> None:
        name = job.metadata.name
        await self._ask(self.client.patch(self._path(name), _suspension(job, suspended)), name)

    # --- output ---------------------------------------------------------------

    async def logs(self, name: str, *, follow: bool = False) -> AsyncIterator[bytes]:
        """Yield the output of a job's last run: that of pod 0, or for the name NAME_3 that of the pod with index 3.

        `follow`: continue until the job has ended, through any later runs.
        """
        job, index = _place(name)
        seen, at = "", 0  # the uid of the pod whose output was read, and how many bytes
        while True:
            found, pods = await self._found(job)
            pod = latest(one for one in pods if index_of(one) == index)
            over = phase_of(found, pods) in OVER
            if pod is not None and _has_begun(pod):
                if pod.metadata.uid != seen:
                    seen, at = pod.metadata.uid, 0
                skip = at
                try:
                    async for part in self._output(pod, follow):
                        fresh, skip = part[skip:], max(skip - len(part), 0)
                        at += len(fresh)
                        if fresh:
                            yield fresh
                except ApiError as error:
                    if not follow or not error.heals:
                        raise self._sentence(error, name) from None
                over = over or await self._is_over(job)
            elif not follow and not over:
                why = row_of(found, pods)["waits"]
                raise InputError(f"job {name}", "one that has started", f"{phase_of(found, pods)}: {why}".rstrip(": "))
            if over or not follow:
                if not seen:
                    raise InputError(f"job {name}", "a pod that still exists: output is deleted with it")
                return
            await asyncio.sleep(LOOK)

    async def _is_over(self, name: str) -> bool:
        try:
            return phase_of(await self.client.get(self._path(name), JobObject), ()) in (*OVER, "stopping")
        except ApiError as error:
            return error.code == 404

    def _output(self, pod: RunPod, follow: bool) -> AsyncIterator[bytes]:
        params = {"container": pod_container(pod)} | ({"follow": "true"} if follow else {})
        path = f"{self._pods}/{quote(pod.metadata.name, safe='')}/log"
        return self.client.stream(path, params, None if follow else 60.0)

    # --- requests ---------------------------------------------------------------

    def _path(self, name: str) -> str:
        return f"{self._jobs}/{quote(name, safe='')}"

    def _ours(self, job: JobObject) -> bool:
        return job.spec.template.spec.scheduler_name == self.scheduler_name

    async def _found(self, name: str) -> tuple[JobObject, list[RunPod]]:
        """Return a job and its pods. Raises NoSuchJobError if the job does not exist or has another scheduler."""
        job = await self._ask(self.client.get(self._path(name), JobObject), name)
        if not self._ours(job):
            raise self._unknown(name)
        selector = quote(f"{OF_JOB}={name}")
        pods = await self._ask(self.client.list(f"{self._pods}?labelSelector={selector}", RunPod))
        return job, _own(job, pods)

    async def _ask(self, call: Any, name: str = "") -> Any:
        try:
            return await call
        except ApiError as error:
            raise self._sentence(error, name) from None

    def _unknown(self, name: str) -> InputError:
        return NoSuchJobError(
            "JOB", f"a job of namespace {self.namespace} with schedulerName {self.scheduler_name}", name
        )

    def _sentence(self, error: ApiError, name: str) -> InputError:
        if error.code == 404 and name:
            return self._unknown(name)
        said = error.message if error.code in (400, 409, 422) else advice(error, self.client.config.source)
        if (denied := denied_by(error)) is not None:
            said = f"no permission to {denied[0].partition('.')[0]} in namespace {self.namespace} (403)"
            said = f"Kubernetes: expected an account with {ROLE}, got {said}"
        return ServerMessageError(said)


class NoSuchJobError(InputError):
    """No job of this scheduler has the name."""


class ServerMessageError(SentenceError):
    """A message of the API server as one line."""

    def __init__(self, sentence: str) -> None:
        super().__init__(" ".join(sentence.split()))


def _suspension(job: JobObject, suspended: bool) -> dict[str, Any]:
    """Return a patch that suspends or resumes a Job. The uid in it protects a later Job of the same name."""
    return {"metadata": {"uid": job.metadata.uid}, "spec": {"suspend": suspended}}


def _own(job: JobObject, pods: Iterable[RunPod]) -> list[RunPod]:
    """Return the pods of this job, without those of an earlier job of the same name."""
    return [pod for pod in pods if any(one.uid == job.metadata.uid for one in pod.metadata.owner_references)]


def _place(name: str) -> tuple[str, int]:
    """Split NAME_3 into NAME and the pod index 3. Names of objects contain no underscore."""
    job, line, index = name.partition("_")
    if line and not index.isdigit():
        raise InputError("JOB", "the name of a job, or NAME_3 for its pod with index 3", name)
    return job, int(index or 0)


def _has_begun(pod: RunPod) -> bool:
    return pod.status.phase in ("Running", *ENDED)


def pod_container(pod: RunPod) -> str:
    """Return the container whose output is shown: `main`, otherwise the first that has a status."""
    names: Sequence[str] = [one.name for one in pod.status.container_statuses if one.name]
    return "main" if "main" in names or not names else names[0]
