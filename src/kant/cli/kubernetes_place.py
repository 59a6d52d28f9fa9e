"""Lets verbs ask and command Kant on a Kubernetes cluster (`--kube`)."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from fnmatch import fnmatchcase
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any, TypeVar

from kant.cli.inputs import load_profile
from kant.cli.kube_options import Kube, KubeQuestion, KubeSubmission
from kant.cli.leader import ClusterAnswers, cluster_answers
from kant.cli.output import Printable, Reply, start_of_last
from kant.cli.place import EXPORT, Filter, Submitted, TrialReply, Wanted, WantedStage
from kant.kube.connect.client import ApiClient
from kant.kube.connect.config import load
from kant.model.errors import InputError

if TYPE_CHECKING:
    from kant.kube.user.job_manifest import PodOptions
    from kant.kube.user.jobs import UserJobs
    from kant.model.submission import Submission
    from kant.sim.past import Past

T = TypeVar("T")


class KubernetesPlace:
    """Answers from the API server: about jobs from objects of a namespace, about the cluster from its whole state."""

    def __init__(self, there: Kube) -> None:
        self.there = there

    def submit(self, wanted: Wanted) -> Submitted:
        job, options = self._asked(wanted)
        return Submitted([self._run(lambda jobs: jobs.submit(job, options))])

    def trial(self, wanted: Wanted) -> TrialReply:
        job, options = self._asked(wanted)
        sentence = self._run(lambda jobs: jobs.trial(job, options))
        return TrialReply({"sentence": sentence}, lambda: print(sentence), sentence.startswith("P50 never"))

    def _asked(self, wanted: Wanted) -> tuple[Submission, PodOptions]:
        """Return the job, and its options for Kubernetes. Raises InputError."""
        from kant.kube.user.job_manifest import PodOptions
        from kant.model.submission import Submission

        there = self.there
        assert isinstance(there, KubeSubmission), "the options of `kant submit`"
        _refuse(wanted)
        if "slurm" in wanted:
            print("kant: on Kubernetes none of Slurm's variables is set, such as SLURM_JOB_ID", file=sys.stderr)
        wanted = {name: value for name, value in wanted.items() if name != EXPORT}  # not the caller's environment
        job = Submission(**wanted | {"workdir": str(wanted.get("workdir", ""))})
        if job.array != tuple(range(len(job.array))):
            text = ",".join(map(str, job.array))
            raise InputError("--array", "indices from 0 on without a gap, such as 0-9, on Kubernetes", text)
        options = PodOptions(
            image=job.image or os.environ.get("KANT_IMAGE", ""),
            pods=there.pods,
            priority_class=there.priority_class,
            within=there.within,
            segments=there.segments,
            gpu_resource=there.gpu_resource,
        )
        return job, options

    def submit_batch(self, lines: list[tuple[int, Wanted]]) -> Submitted:
        raise InputError("--from", "none on Kubernetes: submit one job at a time")

    def submit_workflow(self, stages: list[WantedStage]) -> Submitted:
        raise InputError("--graph", "none on Kubernetes, where jobs cannot depend on each other")

    def jobs(self, chosen: Filter) -> Reply:
        if chosen.tried:
            raise InputError("--order", "latest on Kubernetes, where `kant eta` shows the queue's order", "queue")
        if chosen.before is not None:
            raise InputError("--before", "no pages on Kubernetes: use a larger --limit", chosen.before)
        rows = [row for row in self._run(lambda jobs: jobs.rows()) if _is_chosen(row, chosen)]
        more = max(len(rows) - chosen.limit, 0)
        page = {"jobs": rows[: chosen.limit], "next": None, "more": more}

        def show() -> None:
            from kant.cli.job_table import show_jobs
            from kant.cli.show import console

            show_jobs(rows[: chosen.limit], int(time.time() * 1e6), chosen.states, chosen.columns)
            if more:
                console.print(f"{more} more: use a larger --limit", style="dim")

        return Reply(page, show)

    def logs(self, job: str, follow: bool, tail: int | None, write: Callable[[bytes], None], attempt: int = 0) -> None:
        if attempt:
            raise InputError("--attempt", "none on Kubernetes, which keeps only the last run", attempt)
        if follow and tail:
            raise InputError("--tail", "no --follow with it on Kubernetes", tail)

        async def work(jobs: UserJobs) -> None:
            kept = bytearray()
            async for part in jobs.logs(job, follow=follow):
                if tail is not None:
                    kept += part
                    del kept[: start_of_last(bytes(kept), tail)]
                else:
                    write(part)
            write(bytes(kept))

        self._run(work)

    def order(self, verb: str, jobs: tuple[str, ...]) -> list[str]:
        async def work(own: UserJobs) -> list[str]:
            from kant.kube.user.orders import Orders

            orders = Orders(own.client, own.namespace)
            order = {"cancel": own.cancel, "hold": orders.hold, "release": orders.release}[verb]
            return [name for name in jobs if await order(name)]

        return self._run(work)

    def cancel_all(self, chosen: Filter, name: str) -> list[str]:
        rows = [row for row in self._run(lambda jobs: jobs.rows()) if _is_chosen(row, chosen)]
        names = tuple(row["id"] for row in rows if not name or fnmatchcase(row["name"], name))
        return self.order("cancel", names)

    def queues(self) -> Printable:
        return self._live().queues(self._namespace())

    def top(self) -> Printable:
        return self._live().top(self._namespace())

    def why(self, job: str) -> Printable:
        """Return why a job waits, or where it runs; for a job that Kant does not know, its phase."""
        from kant.kube.user.job_objects import UNMADE

        row = self._run(lambda jobs: jobs.row(job.partition("_")[0]))
        if row is None or (row["phase"] not in ("held", "finished", "failed") and row["waits"] != UNMADE):
            return self._live(futures=True).why(self._namespace(), job)
        because = row["waits"] or row["reason"]

        def show() -> None:
            from kant.cli.show import console

            sentence = f": {because}" if because else ""
            console.print(f"{job}: it is {row['phase']}{sentence}", style="bold", soft_wrap=True)

        return Reply({"job": job, "status": row["phase"], "sentence": because}, show)

    def eta(self, job: str | None) -> Printable:
        return self._live(futures=True).eta(self._namespace(), job)

    def status(self, optimality: bool) -> Reply:
        return self._live().status(optimality)

    def past(self) -> Past:
        """Return the present state of the cluster, read from its API server, as the start of simulated futures."""
        from kant.sim.past import read_past

        there = self.there
        assert isinstance(there, KubeQuestion), "the options of a question"

        def work(folder: Path) -> tuple[Path, int]:
            from kant.kube.user.overview import overview
            from kant.kube.user.rebuild import record
            from kant.scheduler.profile import parse_profile

            config, where = load(there.kubeconfig, there.context), "the profile on the Lease of Kant"
            text = "" if there.profile else asyncio.run(overview(config, there.system)).profile
            profile = parse_profile(text, where) if text else load_profile(there.profile or "kant")
            return asyncio.run(record(config, profile, folder))

        with TemporaryDirectory(prefix="kant-") as folder:
            journal, now = work(Path(folder))
            return read_past(journal, today=now)

    def _live(self, futures: bool = False) -> ClusterAnswers:
        """Return the source of answers about the present state of the cluster, as in `kubectl kant`."""
        there = self.there
        assert isinstance(there, KubeQuestion), "the options of a question"
        return cluster_answers(there.kubeconfig, there.context, there.profile, there.system, futures)

    def _namespace(self) -> str:
        """Return the namespace of the options, or else that of the kubeconfig's context."""
        there = self.there
        return there.namespace or load(there.kubeconfig, there.context).namespace

    def _run(self, work: Callable[[UserJobs], Awaitable[T]]) -> T:
        """Run `work` on the jobs of the namespace; return its result."""

        async def whole() -> T:
            async with _jobs(self.there) as jobs:
                return await work(jobs)

        return asyncio.run(whole())


_NO_DEPENDENCY = "none on Kubernetes, where jobs cannot depend on each other"
_MEANINGLESS = {
    "after": ("--after", _NO_DEPENDENCY),
    "after_ok": ("--after", _NO_DEPENDENCY),
    "after_not_ok": ("--after", _NO_DEPENDENCY),
    "after_started": ("--after-started", _NO_DEPENDENCY),
    "after_each": ("--after-each", _NO_DEPENDENCY),
    "singleton": ("--singleton", _NO_DEPENDENCY),
    "nodes": ("--nodes", "--pods on Kubernetes, and --gpus for each pod"),
    "tasks": ("--tasks", "--pods on Kubernetes, where a pod starts its processes itself"),
    "exclusive": ("--exclusive", "none on Kubernetes: request all GPUs of a node"),
    "mounts": ("--mount", "none on Kubernetes, which cannot mount folders of this machine"),
    "contract": ("--contract", "none on Kubernetes: use an elastic gang (docs/kubernetes-objects.md)"),
    "terminal": ("--terminal", "none on Kubernetes: use `kubectl attach`"),
    "output": ("--output", "none on Kubernetes: use `kant logs`"),
    "error": ("--error", "none on Kubernetes: use `kant logs`"),
    "notices": ("--webhook, --on-event", "none on Kubernetes, where Kant sends no notices"),
    "begin": ("--begin", "none on Kubernetes: use a CronJob, or --hold and `kant release`"),
    "array_most": ("--array", "indices without % on Kubernetes"),
    "priority": ("--priority", "--priority-class NAME on Kubernetes"),
    "warn_s": ("--warn", "none on Kubernetes, which only terminates pods (--grace)"),
}
"""Fields without a meaning on Kubernetes: the name of the option, and the message."""


def _refuse(wanted: Wanted) -> None:
    """Raise InputError for options without a meaning on Kubernetes."""
    for field, (option, expected) in _MEANINGLESS.items():
        value = wanted.get(field)
        if value or (field == "warn_s" and value is not None):
            got = f"{value:g}s" if field == "warn_s" else value if isinstance(value, int | str) else None
            raise InputError(option, expected, got if value is not True else None)


def _is_chosen(row: Any, chosen: Filter) -> bool:
    return (
        (not chosen.states or row["phase"] in chosen.states.split(","))
        and chosen.queue in ("", row["queue"])
        and chosen.user in ("", row["user"])
        and fnmatchcase(row["name"], chosen.name or "*")
    )


@asynccontextmanager
async def _jobs(there: Kube) -> AsyncIterator[UserJobs]:
    from kant.kube.user.jobs import UserJobs

    async with ApiClient(load(there.kubeconfig, there.context), concurrency=4, timeout=30.0) as client:
        yield UserJobs(client, there.namespace)
