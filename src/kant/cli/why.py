"""`kant why`: why a job waits, now or at a time of a journal: the cause, the evidence, and the remedies."""

from __future__ import annotations

from typing import Annotated

from cyclopts import Parameter

from kant.cli.everyday import say_why
from kant.cli.inputs import At, Home, JournalFile, Json, Learn
from kant.cli.kube_options import KubeQuestion


def why(
    job: Annotated[str, Parameter(help="The id of a job.")],
    journal: JournalFile | None = None,
    /,
    *,
    at: At = None,
    learn: Learn = True,
    home: Home = None,
    json: Json = False,
    there: KubeQuestion = KubeQuestion(),  # noqa: B008 - it is frozen
) -> int:
    """Say why a job waits: what blocks it, the facts behind that, what would let it start, and when it may start.

    Without a journal it asks Kant on this machine (`kant up`), or with --kube on a Kubernetes cluster."""
    return say_why(**locals())
