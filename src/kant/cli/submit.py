"""`kant submit`: queue a command."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

from cyclopts import Parameter

from kant.cli.everyday import submit_job
from kant.cli.inputs import Home, Json
from kant.cli.job_options import job_options
from kant.cli.kube_options import KubeSubmission


@job_options()
def submit(
    *command: Annotated[str, Parameter(help="The program and its arguments, after --.", allow_leading_hyphen=True)],
    graph: Annotated[
        Path | None, Parameter(help="Instead of a command: all stages of a workflow file (docs/workflows.md).")
    ] = None,
    lines: Annotated[
        Path | None,
        Parameter("--from", help="Instead of a command: a file with a submission on each line; -: standard input."),
    ] = None,
    test_only: Annotated[
        bool, Parameter(help="Submit nothing: print when it would start, at P50 and P90.", negative="")
    ] = False,
    wait: Annotated[bool, Parameter(help="Wait until it has ended, and exit with its exit code.", negative="")] = False,
    home: Home = None,
    json: Json = False,
    there: KubeSubmission = KubeSubmission(),  # noqa: B008 - it is frozen
    **options: Any,
) -> int:
    """Queue a command and print its id. It runs in the current environment, and sees only its GPUs.

    A job that can never start is rejected at once: the reason is printed, and the exit code is 1.

    With --kube it becomes a Job of Kubernetes, with only the environment of its image and --env."""
    return submit_job(
        command, graph=graph, lines=lines, test_only=test_only, wait=wait, home=home, json=json, there=there, **options
    )
