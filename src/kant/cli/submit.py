"""`kant submit`: queue a command on this machine."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kant.cli.inputs import Json, whole
from kant.cli.kube_place import Made
from kant.cli.simulate import print_json
from kant.cli.up import Home
from kant.model.errors import InputError
from kant.model.units import SECOND, parse_duration


def submit(
    *command: Annotated[str, Parameter(help="The program and its arguments, after --.", allow_leading_hyphen=True)],
    gpus: Annotated[float, Parameter(help="GPUs: a whole number, or a share of one such as 0.5.")] = 0,
    cpus: Annotated[float | None, Parameter(help="Cores. Default: 1 without GPUs, else as many as it likes.")] = None,
    memory: Annotated[str | None, Parameter(help="Main memory, such as 16GiB. Default: not counted.")] = None,
    time: Annotated[str | None, Parameter(help="The longest that it may run, such as 2h. Default: for ever.")] = None,
    name: Annotated[str, Parameter(help="What you call it.")] = "",
    queue: Annotated[str, Parameter(help="The queue to which it goes.")] = "default",
    priority: Annotated[int, Parameter(help="The higher goes first.", converter=whole)] = 0,
    array: Annotated[str | None, Parameter(help="Once for each index, such as 0-9 or 1,3,5-7.")] = None,
    after: Annotated[tuple[str, ...], Parameter(help="Start when it has ended; may be repeated.", negative="")] = (),
    after_ok: Annotated[
        tuple[str, ...], Parameter(help="Start when this job has ended well; may be repeated.", negative="")
    ] = (),
    retries: Annotated[int, Parameter(help="Tries more after a failure.", converter=whole)] = 0,
    warn: Annotated[str, Parameter(help="Send SIGUSR1, if it is handled, so long before the limit.")] = "60s",
    grace: Annotated[str, Parameter(help="Between SIGTERM and SIGKILL when it is stopped.")] = "30s",
    env: Annotated[
        tuple[str, ...], Parameter(help="NAME=VALUE, beside the environment of now; may be repeated.", negative="")
    ] = (),
    workdir: Annotated[Path | None, Parameter(help="Where it runs. Default: here.")] = None,
    hold: Annotated[bool, Parameter(help="Do not start it before `kant release`.", negative="")] = False,
    preemptible: Annotated[bool, Parameter(help="Others may take its place.")] = True,
    home: Home = None,
    json: Json = False,
    there: Made = Made(),  # noqa: B008 - it is frozen
) -> int:
    """Queue a command and print its id. It runs with the environment of now, and sees just its GPUs.

    With --kube it becomes a Job of Kubernetes, which has the environment of its image and of --env alone."""
    if there and home is None:
        from kant.cli import kube_jobs

        said = {
            "gpus": gpus, "cpus": cpus, "memory": memory, "time": time, "name": name, "queue": queue,
            "priority": priority, "array": array, "after": after, "after_ok": after_ok, "retries": retries,
            "warn": warn, "grace": grace, "env": env, "workdir": workdir, "hold": hold, "preemptible": preemptible,
        }  # fmt: skip
        return kube_jobs.submit(there, command, said, json)
    import os

    from kant.service.client import Client, home_of

    if not command:
        raise InputError("COMMAND", "a program and its arguments, such as `kant submit --gpus 1 -- python train.py`")
    mask = os.umask(0)
    os.umask(mask)
    wish = {
        "command": command,
        "workdir": str((workdir or Path.cwd()).absolute()),
        "env": _environment() | dict(pair(each) for each in env),
        "name": name or Path(command[0]).name,
        "queue": queue,
        "priority": priority,
        "gpus": gpus,
        "cpus": cpus,
        "memory_mib": mebibytes(memory),
        "time_s": parse_duration(time, "--time") / SECOND if time is not None else None,
        "warn_s": parse_duration(warn, "--warn") / SECOND,
        "grace_s": parse_duration(grace, "--grace") / SECOND,
        "retries": retries,
        "array": parse_array(array) if array is not None else (),
        "after": after,
        "after_ok": after_ok,
        "hold": hold,
        "preemptible": preemptible,
        "umask": mask,
    }
    found = Client(home_of(home)).post("/v1/jobs", wish)["jobs"]
    if json:
        print_json({"jobs": found})
    else:
        print(found[0] if array is None else found[0].partition("_")[0])
    return 0


def _environment() -> dict[str, str]:
    """The environment of now, as far as it is UTF-8 and no other job's."""
    import os

    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("KANT_RUN", "KANT_ARRAY"))
        and not any("\ud800" <= ch <= "\udfff" for ch in name + value)
    }


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
    """The indices in a text such as 0-9 or 1,3,5-7. Raises InputError."""
    found: list[int] = []
    for part in text.split(","):
        match = re.fullmatch(r"([0-9]{1,9})(?:-([0-9]{1,9}))?", part.strip())
        low, high = (int(match[1]), int(match[2] or match[1])) if match is not None else (1, 0)
        if low > high or high - low >= 100_000:
            raise InputError("--array", "indices such as 0-9 or 1,3,5-7, at most 100,000", text)
        found += range(low, high + 1)
    return found
