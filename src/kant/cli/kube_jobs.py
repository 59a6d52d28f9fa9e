"""The verbs of `kant submit`, `jobs`, `logs`, … where they mean a Kant on Kubernetes (`--kube`)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from kant.cli.kube_place import Asked, Kube, Made
from kant.model.errors import InputError
from kant.model.units import SECOND, parse_duration

if TYPE_CHECKING:
    from kant.cli.live import Live
    from kant.kube.user_jobs import UserJobs

T = TypeVar("T")


def submit(there: Made, command: tuple[str, ...], said: Mapping[str, Any], json: bool) -> int:
    """Make a Job, and print its name. `said` has the other options of `kant submit`, as they were given."""
    from kant.cli.simulate import print_json
    from kant.cli.submit import mebibytes, pair, parse_array
    from kant.kube.job_made import JobWish

    _refuse(said)
    indices = parse_array(said["array"]) if said["array"] is not None else []
    if indices != list(range(len(indices))):
        raise InputError("--array", "indices from 0 on without a gap, such as 0-9, on Kubernetes", said["array"])
    wish = JobWish(
        command=command,
        image=there.image,
        name=said["name"],
        pods=there.pods,
        gpus=said["gpus"],
        cpus=said["cpus"],
        memory_mib=mebibytes(said["memory"]),
        gpu_resource=there.gpu_resource,
        queue=said["queue"],
        priority_class=there.priority_class,
        time_s=parse_duration(said["time"], "--time") / SECOND if said["time"] is not None else None,
        grace_s=parse_duration(said["grace"], "--grace") / SECOND,
        retries=said["retries"],
        array=len(indices),
        env=tuple(pair(each) for each in said["env"]),
        workdir=str(said["workdir"]) if said["workdir"] is not None else "",
        hold=said["hold"],
        preemptible=said["preemptible"],
        within=there.within,
    )
    name = run(there, lambda jobs: jobs.submit(wish))
    print_json({"jobs": [name]}) if json else print(name)
    return 0


def _refuse(said: Mapping[str, Any]) -> None:
    """What has no meaning there."""
    if said["after"] or said["after_ok"]:
        raise InputError("--after, --after-ok", "neither of them on Kubernetes, where jobs do not wait for each other")
    if said["priority"]:
        raise InputError("--priority", "--priority-class NAME on Kubernetes, which has no other", said["priority"])
    if said["warn"] != "60s":
        raise InputError("--warn", "no warning on Kubernetes, which only ends pods (--grace)", said["warn"])


def listed(there: Kube, chosen: Callable[[Mapping[str, Any]], bool], limit: int, before: int | None) -> dict[str, Any]:
    """The jobs of a namespace as a page: the latest first, without `next`."""
    if before is not None:
        raise InputError("--before", "no pages on Kubernetes: a larger --limit", before)
    rows = [row for row in run(there, lambda jobs: jobs.rows()) if chosen(row)]
    return {"jobs": rows[:limit], "next": None, "more": max(len(rows) - limit, 0)}


def orders(there: Kube, verb: str, names: tuple[str, ...]) -> list[str]:
    """Cancel, hold or release; the names of those about which something was done."""

    async def work(jobs: UserJobs) -> list[str]:
        order = {"cancel": jobs.cancel, "hold": jobs.hold, "release": jobs.release}[verb]
        return [name for name in names if await order(name)]

    return run(there, work)


def logs(there: Kube, job: str, follow: bool, tail: int | None, write: Callable[[bytes], None]) -> int:
    """Print what the last run of a job has written."""
    if follow and tail:
        raise InputError("--tail", "no --follow beside it on Kubernetes", tail)

    async def work(jobs: UserJobs) -> None:
        kept = bytearray()
        async for part in jobs.logs(job, follow=follow):
            if tail:
                kept += part
                del kept[: max(len(kept) - tail, 0)]
            else:
                write(part)
        write(bytes(kept))

    run(there, work)
    return 0


def why(there: Asked, job: str, json: bool) -> int:
    """Why a job waits, or where it runs; of one that Kant does not see, how it stands."""
    from kant.cli import live as questions
    from kant.cli.show import console
    from kant.cli.simulate import print_json
    from kant.kube.job_objects import UNMADE

    row = run(there, lambda jobs: jobs.row(job.partition("_")[0]))
    if row is None or (row["phase"] not in ("held", "finished", "failed") and row["waits"] != UNMADE):
        return questions.why(live(there), namespace_of(there), job, json)
    because = row["waits"] or row["reason"]
    if json:
        print_json({"job": job, "status": row["phase"], "sentence": because})
    else:
        console.print(f"{job}: it is {row['phase']}{': ' if because else ''}{because}", style="bold", soft_wrap=True)
    return 0


def live(there: Asked) -> Live:
    """The cluster as it stands, as `kubectl kant` sees it."""
    from kant.cli.kubectl import stand

    return _with_extra(lambda: stand(there.kubeconfig, there.context, there.profile, there.system))


def recorded(there: Asked, folder: Path) -> tuple[Path, int]:
    """The cluster as it stands, as a journal in `folder`; and the present, microseconds since the Unix epoch."""

    def work() -> tuple[Path, int]:
        import asyncio

        from kant.cli.inputs import load_profile
        from kant.kube.config import load
        from kant.kube.rebuild import record

        return asyncio.run(record(load(there.kubeconfig, there.context), load_profile(there.profile), folder))

    return _with_extra(work)


def namespace_of(there: Kube) -> str:
    """The namespace that is meant."""
    from kant.kube.config import load

    return there.namespace or _with_extra(lambda: load(there.kubeconfig, there.context)).namespace


def run(there: Kube, work: Callable[[UserJobs], Awaitable[T]]) -> T:
    """Do it with the jobs of the namespace that is meant."""
    import asyncio

    async def whole() -> T:
        async with _jobs(there) as jobs:
            return await work(jobs)

    return _with_extra(lambda: asyncio.run(whole()))


@asynccontextmanager
async def _jobs(there: Kube) -> AsyncIterator[UserJobs]:
    from kant.kube.client import Client
    from kant.kube.config import load
    from kant.kube.user_jobs import UserJobs

    async with Client(load(there.kubeconfig, there.context), concurrency=4, timeout=30.0) as client:
        yield UserJobs(client, there.namespace)


def _with_extra(work: Callable[[], T]) -> T:
    try:
        return work()
    except ModuleNotFoundError as error:
        if error.name not in ("aiohttp", "yaml", "prometheus_client"):
            raise
        raise InputError("this installation", "the extra `kube` (pip install 'kant[kube]')") from None
