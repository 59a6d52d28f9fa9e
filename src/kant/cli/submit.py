"""`kant submit`: queue a command."""

from __future__ import annotations

import re
import sys
from datetime import datetime, timedelta
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kant.cli.inputs import Home, Json, whole
from kant.cli.kube_options import KubeSubmission
from kant.cli.output import Reply, printable
from kant.cli.place import Wanted
from kant.cli.places import place_of
from kant.model.errors import InputError
from kant.model.units import SECOND, parse_duration

REJECTED = 1


def submit(
    *command: Annotated[str, Parameter(help="The program and its arguments, after --.", allow_leading_hyphen=True)],
    gpus: Annotated[float, Parameter(help="GPUs: a whole number, or a share of one such as 0.5.")] = 0,
    cpus: Annotated[float | None, Parameter(help="Cores. Default: 1 without GPUs, else as many as it likes.")] = None,
    memory: Annotated[str | None, Parameter(help="Main memory, such as 16GiB. Default: not counted.")] = None,
    time: Annotated[str | None, Parameter(help="The longest that it may run, such as 2h. Default: for ever.")] = None,
    name: Annotated[str, Parameter(help="What you call it.")] = "",
    queue: Annotated[str, Parameter(help="The queue to which it goes.")] = "default",
    priority: Annotated[int, Parameter(help="The higher goes first.", converter=whole)] = 0,
    array: Annotated[
        str | None, Parameter(help="Once for each index, such as 0-9, 1,3,5-7, 0-10:2; 0-99%8: 8 at once.")
    ] = None,
    after: Annotated[
        tuple[str, ...],
        Parameter(name=["--after", "--after-any"], help="Start when it has ended; may be repeated.", negative=""),
    ] = (),
    after_ok: Annotated[
        tuple[str, ...], Parameter(help="Start when this job has ended well; may be repeated.", negative="")
    ] = (),
    after_not_ok: Annotated[
        tuple[str, ...], Parameter(help="Start when this job has not ended well; may be repeated.", negative="")
    ] = (),
    begin: Annotated[str | None, Parameter(help="Not before: in 2h, or at 22:00, or at 2030-01-31T08:00.")] = None,
    retries: Annotated[int, Parameter(help="Tries more after a failure.", converter=whole)] = 0,
    warn: Annotated[str, Parameter(help="Send SIGUSR1, if it is handled, so long before the limit.")] = "60s",
    grace: Annotated[str, Parameter(help="Between SIGTERM and SIGKILL when it is stopped.")] = "30s",
    env: Annotated[
        tuple[str, ...], Parameter(help="NAME=VALUE, beside the environment of now; may be repeated.", negative="")
    ] = (),
    workdir: Annotated[Path | None, Parameter(help="Where it runs. Default: here.")] = None,
    hold: Annotated[bool, Parameter(help="Do not start it before `kant release`.", negative="")] = False,
    preemptible: Annotated[bool, Parameter(help="Others may take its place.")] = True,
    graph: Annotated[
        Path | None, Parameter(help="Instead of a command: all stages of a workflow file (docs/workflows.md).")
    ] = None,
    wait: Annotated[bool, Parameter(help="Until it is over, and exit with its exit code.", negative="")] = False,
    home: Home = None,
    json: Json = False,
    there: KubeSubmission = KubeSubmission(),  # noqa: B008 - it is frozen
) -> int:
    """Queue a command and print its id. It runs with the environment of now, and sees just its GPUs.

    A job that can never start is rejected at once: the reason is printed, and the exit code is 1.

    With --kube it becomes a Job of Kubernetes, which has the environment of its image and of --env alone."""
    wanted = Wanted(
        command=command,
        gpus=gpus,
        cpus=cpus,
        memory_mib=mebibytes(memory),
        time_s=parse_duration(time, "--time") / SECOND if time is not None else None,
        name=name,
        queue=queue,
        priority=priority,
        array=tuple(parse_array(array.partition("%")[0])) if array is not None else None,
        array_most=most_at_once(array) if array is not None else 0,
        after=after,
        after_ok=after_ok,
        after_not_ok=after_not_ok,
        begin=moment(begin, datetime.now()) if begin is not None else 0.0,
        retries=retries,
        warn_s=parse_duration(warn, "--warn") / SECOND,
        grace_s=parse_duration(grace, "--grace") / SECOND,
        env=tuple(pair(each) for each in env),
        workdir=workdir,
        hold=hold,
        preemptible=preemptible,
    )
    if graph is not None:
        return _submit_graph(graph, wanted, wait, home, json, there)
    done = place_of(home, there).submit(wanted)
    jobs, rejected = done.jobs, {"rejected": done.rejected} if done.rejected else {}
    Reply({"jobs": jobs} | rejected, lambda: print(jobs[0] if array is None else jobs[0].partition("_")[0])).print(json)
    if rejected:
        print(f"kant: job {jobs[0]} is rejected: {printable(done.rejected)}", file=sys.stderr)
        return REJECTED
    if wait:
        from kant.cli.wait import wait_for

        return wait_for(home, there, (jobs[0] if array is None else jobs[0].partition("_")[0],))
    return 0


def _submit_graph(path: Path, wanted: Wanted, wait: bool, home: Path | None, json: bool, there: KubeSubmission) -> int:
    """Queue the stages of a file, and print the id of each."""
    from kant.cli.submit_graph import stages_of

    stages = stages_of(path, wanted)
    jobs = place_of(home, there).submit_workflow(stages).jobs
    ids = {stage.facts["stage"]: job for stage, job in zip(stages, jobs, strict=True)}

    def show() -> None:
        for stage, job in ids.items():
            print(f"{job} {printable(stage)}")

    Reply({"jobs": jobs, "stages": ids}, show).print(json)
    if wait:
        from kant.cli.wait import wait_for

        return wait_for(home, there, tuple(jobs))
    return 0


def pair(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not name or not equals:
        raise InputError("--env", "NAME=VALUE", text)
    return name, value


def mebibytes(text: str | None) -> int:
    if text is None:
        return 0
    match = re.fullmatch(r"([0-9]{1,9}(?:\.[0-9]{1,3})?) ?(MiB|GiB|TiB)", text)
    if match is None:
        raise InputError("--memory", "a size such as 16GiB", text)
    return round(float(match[1]) * {"MiB": 1, "GiB": 1 << 10, "TiB": 1 << 20}[match[2]])


def parse_array(text: str) -> list[int]:
    """The indices in a text such as 0-9, 1,3,5-7 or 0-10:2. Raises InputError."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9})(?::([0-9]{1,9}))?)?", part.strip())
        low, high = (int(match[1]), int(match[2] or match[1])) if match is not None else (1, 0)
        step = int(match[3] or 1) if match is not None else 0
        if low > high or high - low >= 100_000 or step < 1:
            raise InputError("--array", "indices such as 0-9, 1,3,5-7 or 0-10:2, at most 100,000", text)
        found += range(low, high + 1, step)
    return found


def most_at_once(text: str) -> int:
    """How many of an array may wait or run at once: 8 in 0-99%8, 0 (all) without. Raises InputError."""
    _, mark, most = text.partition("%")
    if mark and not re.fullmatch("[1-9][0-9]{0,4}", most):
        raise InputError("--array", "indices, and after % how many of them at once, such as 0-99%8", text)
    return int(most) if mark else 0


def moment(text: str, now: datetime) -> float:
    """A time after `now`, in seconds since the Unix epoch: in 2h, at the next 22:00, or at 2030-01-31T08:00.

    Raises InputError.
    """
    clock = re.fullmatch("([0-9]{1,2}):([0-9]{2})", text)
    try:
        if clock is not None:
            found = now.replace(hour=int(clock[1]), minute=int(clock[2]), second=0, microsecond=0)
            return (found if found > now else found + timedelta(days=1)).timestamp()
        if re.fullmatch("[0-9]{4}-.*", text):
            return datetime.fromisoformat(text).timestamp()
    except (ValueError, OverflowError):
        raise InputError("--begin", "a time such as 2h, 22:00 or 2030-01-31T08:00", text) from None
    return now.timestamp() + parse_duration(text.removeprefix("now+"), "--begin") / SECOND
