"""`kant jobs`, `logs`, `cancel`, `hold`, `release`, `queue`, `top`: list and control jobs, as Slurm's users expect."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from cyclopts import Parameter

from kant.cli.everyday import list_jobs
from kant.cli.inputs import Home, Json, whole
from kant.cli.kube_options import Kube, KubeQuestion
from kant.cli.output import Reply, watched
from kant.cli.place import LIVE, Filter
from kant.cli.places import place_of
from kant.model.errors import InputError

SIGNALS = ("HUP", "INT", "QUIT", "USR1", "USR2", "TERM", "STOP", "CONT", "KILL", "WINCH")
Ids = Annotated[str, Parameter(help="Ids of jobs or of arrays.")]
Watch = Annotated[bool, Parameter(help="Repeat every two seconds, until Ctrl-C.", negative="")]


def jobs(
    *,
    all: Annotated[bool, Parameter(help="List ended jobs too.", negative="")] = False,
    queue: Annotated[str, Parameter(help="Only jobs of this queue.")] = "",
    state: Annotated[str, Parameter(help="Only jobs in these states, separated by commas.")] = "",
    user: Annotated[str, Parameter(help="Only jobs of this user.")] = "",
    name: Annotated[str, Parameter(help="Only jobs of this name; * and ? are wildcards.")] = "",
    order: Annotated[
        str, Parameter(help="latest, or queue: waiting jobs in the order in which they are tried.")
    ] = "latest",
    format: Annotated[
        str | None, Parameter(help="Columns, such as job,on,left,since; an unknown name lists all columns.")
    ] = None,
    watch: Watch = False,
    limit: Annotated[int, Parameter(help="The largest number to print, from 1 to 1000.", converter=whole)] = 50,
    before: Annotated[
        int | None, Parameter(help="Only jobs before this number, which the previous page printed.", converter=whole)
    ] = None,
    home: Home = None,
    json: Json = False,
    there: Kube = Kube(),  # noqa: B008 - it is frozen
) -> int:
    """List jobs of Kant on this machine, or of a namespace: where they run, for how long, or why they wait."""
    return list_jobs(**locals())


def logs(
    job: Annotated[str, Parameter(help="The id of a job, or of an array: each of its jobs in turn, under its own id.")],
    /,
    *,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], help="Until the job has ended.", negative="")] = False,
    tail: Annotated[
        int | None, Parameter(help="Print only this number of lines, from the end.", converter=whole)
    ] = None,
    attempt: Annotated[
        int, Parameter(help="The number of the run, from 1 on. Default: the last.", converter=whole)
    ] = 0,
    home: Home = None,
    there: Kube = Kube(),  # noqa: B008 - it is frozen
) -> int:
    """Print the output of the last run of a job, or of an earlier one."""
    place_of(home, there).logs(job, follow, tail, _write, attempt)
    return 0


def _write(part: bytes) -> None:
    """Write bytes to the terminal unchanged."""
    import sys

    if hasattr(sys.stdout, "buffer"):
        sys.stdout.buffer.write(part)
    else:
        sys.stdout.write(part.decode(errors="replace"))
    sys.stdout.flush()


def cancel(
    *jobs: Ids,
    all: Annotated[bool, Parameter(help="All that have not ended.", negative="")] = False,
    user: Annotated[str, Parameter(help="All of this user.")] = "",
    queue: Annotated[str, Parameter(help="All of this queue.")] = "",
    state: Annotated[str, Parameter(help="All in these states, separated by commas.")] = "",
    name: Annotated[str, Parameter(help="All of this name; * and ? are wildcards.")] = "",
    home: Home = None,
    json: Json = False,
    there: Kube = Kube(),  # noqa: B008 - it is frozen
) -> int:
    """Cancel waiting or running jobs: with SIGTERM, and SIGKILL after their grace period.

    Without ids, options select the jobs: a job has to match all of them."""
    if not (all or user or queue or state or name):
        return _order("cancel", jobs, home, json, there)
    if jobs:
        raise InputError("JOBS", "either ids, or options that select jobs", jobs[0])
    unknown = [each for each in state.split(",") if each and each not in LIVE.split(",")]
    if unknown:
        raise InputError("--state", f"some of {LIVE}", unknown[0])
    place = place_of(home, there)
    return _ordered(
        place.cancel_all(Filter(states=state or LIVE, queue=queue, user=user, limit=0, before=None), name), json
    )


def hold(
    *jobs: Ids,
    home: Home = None,
    json: Json = False,
    there: Kube = Kube(),  # noqa: B008 - it is frozen
) -> int:
    """Keep waiting jobs from starting."""
    return _order("hold", jobs, home, json, there)


def release(
    *jobs: Ids,
    home: Home = None,
    json: Json = False,
    there: Kube = Kube(),  # noqa: B008 - it is frozen
) -> int:
    """Let held jobs start."""
    return _order("release", jobs, home, json, there)


def requeue(*jobs: Ids, home: Home = None, json: Json = False) -> int:
    """Stop running jobs in the same way as a preemption, and queue them again."""
    return _order("requeue", jobs, home, json, Kube())


def update(
    *jobs: Ids,
    priority: Annotated[int | None, Parameter(help="Jobs of higher priority start first.", converter=whole)] = None,
    time: Annotated[str | None, Parameter(help="The time limit, such as 2h.")] = None,
    queue: Annotated[str | None, Parameter(help="The queue of the job.")] = None,
    name: Annotated[str | None, Parameter(help="The name of the job.")] = None,
    dependency: Annotated[
        str | None, Parameter(help="The new dependencies, such as afterok:12,singleton; or none.")
    ] = None,
    home: Home = None,
    json: Json = False,
) -> int:
    """Change the requests of waiting jobs, or the limit of running ones. Waiting jobs keep their age.

    The owner of a running job may lower its limit; an operator may raise it too.
    """
    from kant.cli.sbatch import dependencies_of
    from kant.model.units import SECOND, parse_limit
    from kant.service.client import ServiceClient, home_of

    if not jobs:
        raise InputError("JOBS", "the ids of jobs")
    asked: dict[str, object] = {"priority": priority, "queue": queue, "name": name}
    asked["time_s"] = parse_limit(time, "--time") / SECOND if time is not None else None
    asked["dependencies"] = dependencies_of(dependency, "--dependency") if dependency is not None else None
    new = {field: value for field, value in asked.items() if value is not None}
    if not new:
        raise InputError("update", "at least one of --priority, --time, --queue, --name and --dependency")
    client, done = ServiceClient(home_of(home)), list[str]()
    for job in jobs:
        done += client.post(client.job(job, "update"), new)["jobs"]
    return Reply({"jobs": done}, lambda: None).print(json)


def signal(
    job: Annotated[str, Parameter(help="The id of a job or of an array.")],
    signal: Annotated[str, Parameter(help="Its name, such as USR1 or SIGUSR1.")],
    /,
    *,
    home: Home = None,
    json: Json = False,
) -> int:
    """Send a signal to the processes of a running job.

    HUP, USR1, USR2 and WINCH go to the processes that handle them; INT, QUIT, TERM, KILL, STOP and CONT go to all.
    """
    from kant.service.client import ServiceClient, home_of

    client, name = ServiceClient(home_of(home)), signal.upper().removeprefix("SIG")
    if name not in SIGNALS:
        raise InputError("SIGNAL", f"one of {', '.join(SIGNALS)}", signal)
    done = client.post(client.job(job, "signal"), {"signal": name})["jobs"]
    return Reply({"jobs": done}, lambda: None).print(json)


def _order(verb: str, jobs: tuple[str, ...], home: Path | None, json: bool, there: Kube) -> int:
    if not jobs:
        raise InputError("JOBS", "the ids of jobs")
    return _ordered(place_of(home, there).order(verb, jobs), json)


def _ordered(done: list[str], json: bool) -> int:
    def show() -> None:
        from kant.cli.show import console

        if not done:
            console.print("all of them have ended")

    return Reply({"jobs": done}, show).print(json)


def queue(
    order: Annotated[Literal["pause", "resume"] | None, Parameter(help="pause or resume; without it, print.")] = None,
    /,
    *queues: Annotated[str, Parameter(help="The queues to pause or resume.")],
    all: Annotated[bool, Parameter(help="All queues.", negative="")] = False,
    home: Home = None,
    json: Json = False,
    there: KubeQuestion = KubeQuestion(),  # noqa: B008 - it is frozen
) -> int:
    """Print the queues, with their quotas and their use; or pause or resume some or all of them.

    No job of a paused queue starts until it is resumed, also after a restart; running jobs run on."""
    if order is not None:
        from kant.service.client import ServiceClient, home_of

        if there and home is None:
            raise InputError(order, "Kant on this machine; on Kubernetes set `stopPolicy: Hold` on the Queue")
        if bool(queues) == all:
            raise InputError(order, "the names of queues, or --all")
        found = ServiceClient(home_of(home)).post(f"/v1/queues/{order}", {"queues": queues})
        names = ["all queues"] if found["all"] else found["queues"]
        return Reply(found, lambda: print(f"paused: {', '.join(names) or 'none'}")).print(json)
    if all:
        raise InputError("--all", "pause or resume before it")
    return place_of(home, there).queues().print(json)


def top(
    *,
    watch: Watch = False,
    home: Home = None,
    json: Json = False,
    there: KubeQuestion = KubeQuestion(),  # noqa: B008 - it is frozen
) -> int:
    """Print the free and used capacity of the nodes, and the largest running jobs."""
    place = place_of(home, there)
    return watched(place.top, watch, json)
