"""`kant run`, `alloc`, `attach` and `shell`: connect this terminal with a job and its GPUs."""

from __future__ import annotations

from typing import Annotated, Any

from cyclopts import Parameter

from kant.cli.attached import attach_to, begin, shell_in
from kant.cli.inputs import Home
from kant.cli.job_options import job_options

Escape = Annotated[
    str,
    Parameter(
        help="The escape key: after Enter, this key and a dot detach; twice, it is sent as typed. none: no escape key."
    ),
]
OPTIONS = (
    "gpus",
    "cpus",
    "memory",
    "time",
    "name",
    "queue",
    "priority",
    "env",
    "workdir",
    "preemptible",
    "nodes",
    "tasks",
    "task_gpus",
    "account",
    "image",
    "mount",
)
"""The options of `kant submit` for a job with a terminal."""


@job_options(*OPTIONS)
def run(
    *command: Annotated[str, Parameter(help="The program and its arguments, after --.", allow_leading_hyphen=True)],
    escape: Escape = "~",
    home: Home = None,
    **options: Any,
) -> int:
    """Queue a command, wait until it runs, and attach this terminal to it. The exit code is that of the command.

    Without a terminal it reads standard input. After ~. (typed after Enter) it continues without this terminal.
    """
    return begin(command, options, home, escape)


@job_options(*OPTIONS, name="alloc")
def alloc(
    *,
    shell: Annotated[
        bool, Parameter(help="Open a shell there. Without one the job runs until `kant cancel`, for `kant shell`.")
    ] = True,
    escape: Escape = "~",
    home: Home = None,
    **options: Any,
) -> int:
    """Wait for GPUs, and open a shell on them. They are freed when the shell ends."""
    named = {"name": "alloc"} | options
    return begin(None if shell else ("sleep", "infinity"), named, home, escape, stays=shell)


def attach(
    job: Annotated[str, Parameter(help="The id of a job.")],
    /,
    *,
    escape: Escape = "~",
    home: Home = None,
) -> int:
    """Attach this terminal to a job of `kant run`, `kant alloc` or `kant submit --terminal`, until the job has
    ended."""
    return attach_to(job, home, escape)


def shell(
    job: Annotated[str, Parameter(help="The id of a running job.")],
    /,
    *command: Annotated[
        str, Parameter(help="In place of a shell: a program and its arguments.", allow_leading_hyphen=True)
    ],
    node: Annotated[
        str, Parameter(help="For a job on several machines: the machine. Default: that of its command.")
    ] = "",
    escape: Escape = "~",
    home: Home = None,
) -> int:
    """Open a shell beside a running job: its GPUs, cores, memory, folder and environment. It ends with the job."""
    return shell_in(job, command, home, escape, node)
