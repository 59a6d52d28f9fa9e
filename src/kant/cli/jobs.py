"""`kant jobs`, `logs`, `cancel`, `hold`, `release`, `queue`, `top`: what Slurm's users expect, on this machine."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from kant.cli.inputs import Json, whole
from kant.cli.kube_place import Asked, Kube
from kant.cli.simulate import print_json
from kant.cli.up import Home
from kant.model.units import show_duration

Ids = Annotated[str, Parameter(help="Ids of jobs or of arrays.")]
LIVE = "held,blocked,waiting,running,stopping"


def jobs(
    *,
    all: Annotated[bool, Parameter(help="Also those that are over.", negative="")] = False,
    queue: Annotated[str, Parameter(help="Of this queue alone.")] = "",
    state: Annotated[str, Parameter(help="Of these states alone, divided by commas.")] = "",
    user: Annotated[str, Parameter(help="Of this user alone.")] = "",
    limit: Annotated[int, Parameter(help="The most to print, from 1 to 1000.", converter=whole)] = 50,
    before: Annotated[
        int | None, Parameter(help="Those before: the number that the page before has said.", converter=whole)
    ] = None,
    home: Home = None,
    json: Json = False,
    there: Kube = Kube(),  # noqa: B008 - it is frozen
) -> int:
    """List the jobs of this machine's Kant, or of a namespace, the latest first."""
    states = state or ("" if all else LIVE)
    if there and home is None:
        return _there(there, states, queue, user, limit, before, json)
    from kant.service.client import Client, home_of

    client = Client(home_of(home))
    page = client.get("/v1/jobs", state=states, queue=queue, user=user, limit=limit, before=before)
    if json:
        print_json(page)
        return 0
    show_jobs(page["jobs"], client.get("/v1/health")["now_us"] if page["jobs"] else 0, states)
    if page["next"] is not None:
        from kant.cli.show import console

        console.print(f"more: kant jobs {'--all ' if all else ''}--before {page['next']}", style="dim")
    return 0


def _there(there: Kube, states: str, queue: str, user: str, limit: int, before: int | None, json: bool) -> int:
    """On Kubernetes."""
    import time

    from kant.cli import kube_jobs
    from kant.cli.show import console

    def chosen(row: Any) -> bool:
        return (
            (not states or row["phase"] in states.split(","))
            and queue in ("", row["queue"])
            and user in ("", row["user"])
        )

    page = kube_jobs.listed(there, chosen, limit, before)
    if json:
        print_json(page)
        return 0
    show_jobs(page["jobs"], int(time.time() * 1e6), states)
    if page["more"]:
        console.print(f"{page['more']} more: a larger --limit", style="dim")
    return 0


def show_jobs(rows: list[dict[str, Any]], now: int, states: str) -> None:
    """Jobs for the terminal."""
    from rich.table import Table

    from kant.cli.show import console

    if not rows:
        live = states == LIVE
        console.print("no jobs wait or run (kant jobs --all: also those that are over)" if live else "no jobs")
        return
    table = Table(box=None, pad_edge=False)
    for column in ("job", "name", "queue", "user", "state", "GPUs", "time", "because"):
        table.add_column(column, justify="right" if column in ("GPUs", "time") else "left")
    for row in rows:
        gpus = f"{row['gpus']:g}"
        table.add_row(
            row["id"], row["name"], row["queue"], row["user"], row["phase"], gpus, _lasted(row, now), _because(row)
        )  # fmt: skip
    console.print(table)


def _lasted(row: dict[str, Any], now: int) -> str:
    """How long it has run, or waited."""
    if row["phase"] in ("running", "stopping"):
        return show_duration(max(now - row["started"], 0))
    if row["phase"] in ("held", "blocked", "waiting"):
        return show_duration(max(now - row["submitted"], 0))
    return show_duration(row["ended"] - row["started"]) if row["started"] >= 0 else "-"


def _because(row: dict[str, Any]) -> str:
    return str(row["waits"] or row["reason"])


def logs(
    job: Annotated[str, Parameter(help="The id of a job.")],
    /,
    *,
    follow: Annotated[bool, Parameter(name=["--follow", "-f"], help="Until the job is over.", negative="")] = False,
    tail: Annotated[int | None, Parameter(help="Only the last bytes, so many.", converter=whole)] = None,
    home: Home = None,
    there: Kube = Kube(),  # noqa: B008 - it is frozen
) -> int:
    """Print what the last run of a job has written."""
    if there and home is None:
        from kant.cli import kube_jobs

        return kube_jobs.logs(there, job, follow, tail, _write)

    from kant.service.client import Client, home_of

    client, at = Client(home_of(home)), -tail if tail else 0
    while True:
        headers, body = client.stream(client.job(job, "log"), offset=at, follow="true" if follow else "")
        begins, end = int(headers["X-Kant-Offset"]), int(headers["X-Kant-End"])
        if begins > at >= 0:
            print(f"[kant: {begins - at:,} bytes before this are not kept]", flush=True)
        at = begins
        for part in body:
            _write(part)
            at += len(part)
        if follow or at >= end:
            return 0


def _write(part: bytes) -> None:
    """Bytes to the terminal as they are."""
    import sys

    if hasattr(sys.stdout, "buffer"):
        sys.stdout.buffer.write(part)
    else:
        sys.stdout.write(part.decode(errors="replace"))
    sys.stdout.flush()


def cancel(
    *jobs: Ids,
    home: Home = None,
    json: Json = False,
    there: Kube = Kube(),  # noqa: B008 - it is frozen
) -> int:
    """Withdraw jobs, waiting or running: SIGTERM, and SIGKILL after their grace."""
    return _order("cancel", jobs, home, json, there)


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


def _order(verb: str, jobs: tuple[str, ...], home: Any, json: bool, there: Kube) -> int:
    from kant.cli.show import console
    from kant.model.errors import InputError
    from kant.service.client import Client, home_of

    if not jobs:
        raise InputError("JOBS", "the ids of jobs")
    done: list[str] = []
    if there and home is None:
        from kant.cli import kube_jobs

        done = kube_jobs.orders(there, verb, jobs)
    else:
        client = Client(home_of(home))
        for job in jobs:
            done += client.post(client.job(job, verb))["jobs"]
    if json:
        print_json({"jobs": done})
    elif not done:
        console.print("all of them are over")
    return 0


def queue(
    *,
    home: Home = None,
    json: Json = False,
    there: Asked = Asked(),  # noqa: B008 - it is frozen
) -> int:
    """Print the queues, with their quotas and what they use."""
    if there and home is None:
        from kant.cli import kube_jobs
        from kant.cli.live import queues

        return queues(kube_jobs.live(there), json)
    from kant.cli.live import show_queues
    from kant.service.client import Client, home_of

    found = Client(home_of(home)).get("/v1/queues")
    print_json(found) if json else show_queues(found["queues"])
    return 0


def top(
    *,
    home: Home = None,
    json: Json = False,
    there: Asked = Asked(),  # noqa: B008 - it is frozen
) -> int:
    """Print what the nodes hold, and the largest jobs that run."""
    if there and home is None:
        from kant.cli import kube_jobs
        from kant.cli.live import top as top_of

        return top_of(kube_jobs.live(there), json)
    from kant.cli.live import show_top, table
    from kant.service.client import Client, home_of

    found = Client(home_of(home)).get("/v1/top")
    if json:
        print_json(found)
        return 0
    show_top(found["pools"], found["jobs"])
    names = {"node": "node", "gpus": "GPUs", "gpus_used": "used", "cores": "cores", "cores_used": "used"}
    table("Nodes", found["nodes"], names | {"memory_mib": "MiB", "memory_used_mib": "used"})
    return 0
