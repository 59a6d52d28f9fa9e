"""`kant run`, `alloc`, `attach` and `shell`: this terminal on the GPUs of a job."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kant.cli.attached import attach_to, begin, shell_in
from kant.cli.inputs import Home, whole

Escape = Annotated[
    str, Parameter(help="After Enter, this and a dot detach; twice it is itself. none: no key does anything.")
]
Gpus = Annotated[float, Parameter(help="GPUs: a whole number, or a share of one such as 0.5.")]
Cpus = Annotated[float | None, Parameter(help="Cores. Default: 1 without GPUs, else as many as it likes.")]
Memory = Annotated[str | None, Parameter(help="Main memory, such as 16GiB. Default: not counted.")]
Time = Annotated[str | None, Parameter(help="The longest that it may run, such as 2h. Default: for ever.")]
Name = Annotated[str, Parameter(help="What you call it.")]
Queue = Annotated[str, Parameter(help="The queue to which it goes.")]
Priority = Annotated[int, Parameter(help="The higher goes first.", converter=whole)]
Env = Annotated[
    tuple[str, ...], Parameter(help="NAME=VALUE, beside the environment of now; may be repeated.", negative="")
]
Workdir = Annotated[Path | None, Parameter(help="Where it runs. Default: here.")]
Preemptible = Annotated[bool, Parameter(help="Others may take its place.")]


def run(
    *command: Annotated[str, Parameter(help="The program and its arguments, after --.", allow_leading_hyphen=True)],
    gpus: Gpus = 0,
    cpus: Cpus = None,
    memory: Memory = None,
    time: Time = None,
    name: Name = "",
    queue: Queue = "default",
    priority: Priority = 0,
    env: Env = (),
    workdir: Workdir = None,
    preemptible: Preemptible = True,
    escape: Escape = "~",
    home: Home = None,
) -> int:
    """Queue a command, wait until it runs, and speak with it: its terminal is this one, its exit code is ours.

    Without a terminal here it reads what comes by standard input. Who leaves (~. after Enter) lets it run on."""
    options = dict(locals())
    home, escape = options.pop("home"), options.pop("escape")
    return begin(options.pop("command"), options, home, escape)


def alloc(
    *,
    gpus: Gpus = 0,
    cpus: Cpus = None,
    memory: Memory = None,
    time: Time = None,
    name: Name = "alloc",
    queue: Queue = "default",
    priority: Priority = 0,
    env: Env = (),
    workdir: Workdir = None,
    preemptible: Preemptible = True,
    shell: Annotated[
        bool, Parameter(help="Open a shell there; without one it is kept until `kant cancel`, for `kant shell`.")
    ] = True,
    escape: Escape = "~",
    home: Home = None,
) -> int:
    """Wait for GPUs, and open a shell on them. They are given back when it ends."""
    options = dict(locals())
    home, escape, shell = options.pop("home"), options.pop("escape"), options.pop("shell")
    return begin(None if shell else ("sleep", "infinity"), options, home, escape, stays=shell)


def attach(
    job: Annotated[str, Parameter(help="The id of a job.")],
    /,
    *,
    escape: Escape = "~",
    home: Home = None,
) -> int:
    """Speak with a job of `kant run`, `kant alloc` or `kant submit --terminal` from this terminal, until it is over."""
    return attach_to(job, home, escape)


def shell(
    job: Annotated[str, Parameter(help="The id of a job that runs.")],
    /,
    *command: Annotated[
        str, Parameter(help="In place of a shell: a program and its arguments.", allow_leading_hyphen=True)
    ],
    escape: Escape = "~",
    home: Home = None,
) -> int:
    """Open a shell beside a running job: its GPUs, cores, memory, folder and environment. It ends with the job."""
    return shell_in(job, command, home, escape)
