"""`kant eta`: when waiting jobs are expected to start, now or as of a time of a journal."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter

from kant.cli.inputs import At, Home, Json, Learn
from kant.cli.kube_options import KubeQuestion
from kant.cli.places import questions_of


def eta(
    journal: Annotated[
        str | None, Parameter(help="A journal.jsonl of a run, or a job of Kant on this machine.")
    ] = None,
    job: Annotated[str | None, Parameter(help="Only this job of the journal. Default: all waiting jobs.")] = None,
    /,
    *,
    at: At = None,
    learn: Learn = True,
    home: Home = None,
    json: Json = False,
    there: KubeQuestion = KubeQuestion(),  # noqa: B008 - it is frozen
) -> int:
    """Simulate the whole queue, and print when each waiting job is expected to start.

    Without a journal it asks Kant on this machine (`kant up`), or with --kube on a Kubernetes cluster: `kant
    eta`, or `kant eta JOB`."""
    elsewhere = bool(there) and home is None
    named = journal is not None and (job is not None or is_journal(journal, paths=not elsewhere))
    if journal is None or not named:
        return questions_of(home, there, None, at).eta(journal).print(json)
    return questions_of(home, there, Path(journal), at, learn).eta(job).print(json)


def is_journal(text: str, paths: bool = True) -> bool:
    """Whether a text names a journal, not a job. With `paths`, a text with a slash is a path: ids have no slash."""
    if re.fullmatch(r"[0-9_]+", text):
        return False
    return text.endswith(".jsonl") or (paths and "/" in text) or Path(text).is_file()
