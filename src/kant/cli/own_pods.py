"""`kubectl kant` for users who may see only the pods of their own namespace: what Kant has written on these pods."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NoReturn

from kant.cli.output import Reply
from kant.model.errors import InputError
from kant.model.units import show_duration

if TYPE_CHECKING:
    from kant.kube.connect.config import Config
    from kant.kube.user.own_jobs import OwnJob

UNSEEN = (
    "this answer uses only the pods of namespace {}: quotas, positions, the jobs of others, evidence and expected "
    "starts need the role kant-inspector"
)
NO_REASON_YET = "Kant has not said why yet"
MOST = 8
"""The maximum number of pods of a job, and of jobs, that are named."""


class OwnPods:
    """Answers like `LiveCluster` for the caller's namespace; an answer's `unread` says what the caller may not read."""

    def __init__(self, config: Config) -> None:
        self.config = config

    def why(self, namespace: str, pod: str) -> Reply:
        """Return why a pod waits, by Kant's message on it; or where its gang runs."""
        namespace = namespace or self.config.namespace
        job = self._one(namespace, pod)
        answer = {
            "job": f"{namespace}/{pod}",
            "status": "pending" if job.waits else "running",
            "reason": job.reason,
            "sentence": job.sentence,
            "since_us": job.since,
            "pods": job.pods,
        }

        def show() -> None:
            print(f"{namespace}/{pod}: {job.sentence or ('it waits' if job.waits else 'it does not wait')}")
            placed = [f"{name} on {node}" for name, node in job.pods.items() if node]
            for title, names in (("runs", placed), ("waits", [name for name, node in job.pods.items() if not node])):
                if names:
                    more = f" and {len(names) - MOST:,} more" if names[MOST:] else ""
                    print(f"{title}: {', '.join(names[:MOST])}{more}")

        return self._reply(namespace, answer, show)

    def eta(self, namespace: str, pod: str | None) -> Reply:
        """Return which jobs wait, since when and why. Expected starts need rights for the whole cluster."""
        namespace = namespace or self.config.namespace
        if pod is not None:
            jobs = [self._one(namespace, pod)]
            if not jobs[0].waits:
                raise InputError("POD", "a pod that waits (see `kubectl kant why`)", pod)
        else:
            jobs = [job for job in self._all(namespace) if job.waits]
        now = _now()
        rows = [
            {
                "job": job.name, "queue": job.queue, "gpus": job.waiting_gpus, "since_us": job.since, "why": job.reason,
                "sentence": job.sentence, "expected_us": {"p50": None, "p90": None, "never": False},
            }
            for job in jobs
        ]  # fmt: skip

        def show() -> None:
            for job in jobs:
                waited, said = show_duration(max(now - job.since, 0)), job.sentence or NO_REASON_YET
                print(f"{job.name}: {job.waiting_gpus:g} GPUs in queue {job.queue}, for {waited}: {said}")
            if not jobs:
                print(f"no pod of namespace {namespace} waits for Kant")

        return self._reply(namespace, {"time_us": now, "as_of_us": now, "jobs": rows}, show)

    def queues(self, namespace: str = "") -> Reply:
        """Return how much the caller's jobs use in each queue, and how much they wait for."""
        namespace, counts = namespace or self.config.namespace, dict[str, list[float]]()
        for job in self._all(namespace):
            own = counts.setdefault(job.queue, [0, 0, 0.0, 0.0])
            own[job.waits] += 1
            own[2] += job.running_gpus
            own[3] += job.waiting_gpus
        rows = [
            {"queue": name, "used_gpus": used, "running": int(running), "waiting": int(waiting), "waiting_gpus": more}
            for name, (running, waiting, used, more) in sorted(counts.items())
        ]

        def show() -> None:
            for row in rows:
                print(
                    f"{row['queue']}: {row['running']} jobs run with {row['used_gpus']:g} GPUs, "
                    f"{row['waiting']} wait for {row['waiting_gpus']:g}"
                )
            if not rows:
                print(f"no pod of namespace {namespace} has Kant as its scheduler")

        return self._reply(namespace, {"time_us": _now(), "queues": rows}, show)

    def top(self, namespace: str = "") -> Reply:
        """Return the caller's largest running jobs."""
        namespace = namespace or self.config.namespace
        jobs = [job for job in self._all(namespace) if any(job.pods.values())]
        jobs = sorted(jobs, key=lambda job: (-job.running_gpus, job.since, job.name))[:MOST]
        rows: list[dict[str, Any]] = [
            {
                "job": job.name, "queue": job.queue, "gpus": job.running_gpus,
                "nodes": sorted({node for node in job.pods.values() if node}),
            }
            for job in jobs
        ]  # fmt: skip

        def show() -> None:
            for row in rows:
                count = len(row["nodes"])
                print(f"{row['job']}: {row['gpus']:g} GPUs on {count} node{'s' * (count != 1)}, queue {row['queue']}")
            if not rows:
                print(f"no pod of namespace {namespace} runs that Kant has started")

        return self._reply(namespace, {"time_us": _now(), "pools": [], "jobs": rows}, show)

    def status(self, optimality: bool) -> NoReturn:
        said = "no permission to list pods in the whole cluster: it needs the role kant-inspector (403)"
        raise InputError("the API server", f"one that accepts this user ({said})")

    def _reply(self, namespace: str, answer: dict[str, Any], show: Callable[[], None]) -> Reply:
        unseen = UNSEEN.format(namespace)

        def whole() -> None:
            show()
            print(unseen)

        return Reply(answer | {"unread": [unseen]}, whole)

    def _all(self, namespace: str) -> list[OwnJob]:
        import asyncio

        from kant.kube.user.overview import own_jobs

        return asyncio.run(own_jobs(self.config, namespace))

    def _one(self, namespace: str, pod: str) -> OwnJob:
        from kant.kube.user.own_jobs import job_meant

        job = job_meant(self._all(namespace), pod)
        if job is None:
            raise InputError("POD", f"a pod of namespace {namespace} with schedulerName kant", pod)
        return job


def _now() -> int:
    import time

    return int(time.time() * 1e6)
