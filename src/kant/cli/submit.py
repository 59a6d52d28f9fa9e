"""`kant submit`: queue a command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kant.cli.everyday import submit_job
from kant.cli.inputs import Home, Json, whole
from kant.cli.kube_options import KubeSubmission


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
    singleton: Annotated[
        bool, Parameter(help="Start when no earlier job of yours has its name any more.", negative="")
    ] = False,
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
    terminal: Annotated[bool, Parameter(help="Give it a terminal, for `kant attach`.", negative="")] = False,
    reservation: Annotated[str, Parameter(help="Run on the GPUs of this reservation, while it lasts.")] = "",
    training: Annotated[
        str | None, Parameter(help="What it trains: a TOML file, or words (docs/step-time.md).")
    ] = None,
    output: Annotated[
        str, Parameter(name=["--output", "-o"], help="A file for what it writes, such as out/%x-%j.log.")
    ] = "",
    error: Annotated[
        str, Parameter(name=["--error", "-e"], help="A file for its standard error. Default: with the output.")
    ] = "",
    slurm: Annotated[
        bool,
        Parameter(help="Give it the SLURM_ variables of a batch script, as #SBATCH lines do.", negative=""),
    ] = False,
    webhook: Annotated[
        tuple[str, ...], Parameter(help="An address that is told when it is over; may be repeated.", negative="")
    ] = (),
    on_event: Annotated[
        tuple[str, ...], Parameter(help="A command of the shell for when it is over; may be repeated.", negative="")
    ] = (),
    events: Annotated[
        str | None, Parameter(help="Of what the two are told, such as started,failed. Default: that it is over.")
    ] = None,
    graph: Annotated[
        Path | None, Parameter(help="Instead of a command: all stages of a workflow file (docs/workflows.md).")
    ] = None,
    lines: Annotated[
        Path | None,
        Parameter("--from", help="Instead of a command: a file with a submission on each line; -: standard input."),
    ] = None,
    wait: Annotated[bool, Parameter(help="Until it is over, and exit with its exit code.", negative="")] = False,
    home: Home = None,
    json: Json = False,
    there: KubeSubmission = KubeSubmission(),  # noqa: B008 - it is frozen
) -> int:
    """Queue a command and print its id. It runs with the environment of now, and sees just its GPUs.

    A job that can never start is rejected at once: the reason is printed, and the exit code is 1.

    With --kube it becomes a Job of Kubernetes, which has the environment of its image and of --env alone."""
    return submit_job(**locals())
